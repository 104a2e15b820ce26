"""What theorems on games and on IRMv1 share: instances, methods, and what they read off a run. Nothing is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex import datasets
from fedconvex.problems import GameProblem, InvariantProblem
from fedconvex.problems.protocol import INVARIANT_MODEL
from fedconvex.theorems.kit import *
from fedconvex.traits import Traits
from fedconvex.words import Words


def last_state(s: Setting) -> np.ndarray:
    """Return w after the setting's rounds, without the leading axis."""
    states = [state for _, state in iterate(s.method, s.problem, rounds=s.rounds, start=s.start)]
    return np.asarray(states[-1].w[0])


def at_rounds(
    quantity: Callable[[Setting, np.ndarray], float], off: Callable[[Setting, np.ndarray], float]
) -> Callable[[Setting, Sequence[int]], Found]:
    """Return a quantity of the last state, and its rounding, after so many rounds each."""

    def exact(s: Setting, rounds: Sequence[int]) -> Found:
        last = [(s._replace(rounds=T), last_state(s._replace(rounds=T))) for T in rounds]
        return Found(np.array([quantity(*at) for at in last]), np.array([off(*at) for at in last]))

    return exact


def playing(method: Any, words: str) -> MethodRule:
    """Return a method with fixed settings."""
    return MethodRule(words, lambda theorem, problem, start, rounds: method)


# ---------------------------------------------------------------- games


def scalar_game(coefficients: Sequence[float], bound: float) -> GameProblem:
    """Return players with one feature, E x^2 = 1, and these least-squares coefficients."""
    v = np.array(coefficients)[:, None]
    fed = datasets.federation_of_moments(np.ones((v.size, 1, 1)), v, v[:, 0] ** 2 + 1.0)
    return GameProblem(fed, Squared(), bound)


@example("chain game", "chain x -> y -> z in two environments, boxes of 2")
def chain_game() -> GameProblem:
    """Second moments of the population."""
    return GameProblem(datasets.federation_of_moments(*datasets.chain_moments((0.2, 2.0))), Squared(), 2.0)


@example("coloured game", "coloured binary model in three environments, boxes of 1")
def coloured_game() -> GameProblem:
    """Rows weighted by their probabilities, and an average of strategies."""
    return GameProblem(datasets.coloured_federation((0.2, 0.1, 0.4)), Squared(), 1.0, "average")


@example("small boxes", "two players whose boxes are a thousandth of their coefficients")
def small_boxes() -> GameProblem:
    """Risks are nearly linear in the boxes: N is nearly the sum of the regrets."""
    return scalar_game((0.5, -1.0), 1e-3)


@example("clinics at play", "diabetes, 8 clinics as players, boxes of 1", "real")
def clinics_at_play() -> GameProblem:
    """Ten correlated features."""
    return GameProblem(diabetes.make().federation, Squared(), 1.0)


@example("two equal players", "two players with coefficient 1/2, boxes of 1000")
def two_equal_players() -> GameProblem:
    """They settle with a buffer of two."""
    return scalar_game((0.5, 0.5), 1e3)


@example("four equal players", "four players with unequal moments and equal coefficients, boxes of 10⁶")
def four_equal_players() -> GameProblem:
    """Two correlated features."""
    rng, v = np.random.default_rng(4), np.array([0.7, -0.2])
    A = rng.normal(size=(4, 2, 2))
    S = A @ A.transpose(0, 2, 1) + 0.5 * np.eye(2)
    fed = datasets.federation_of_moments(S, S @ v, np.einsum("i,eij,j->e", v, S, v) + 1.0)
    return GameProblem(fed, Squared(), 1e6)


@example("clinics that agree", "diabetes, features of 4 clinics, targets of one model of three, boxes of 10⁶", "real")
def clinics_that_agree() -> GameProblem:
    """Correlated features, whose moments differ, and equal coefficients."""
    X, v = diabetes.make().federation.X[:400, :3], np.array([0.3, -0.5, 0.2])
    return GameProblem(Federation.from_arrays(X, X @ v, np.arange(400) // 100), Squared(), 1e6)


@example("two clinics", "diabetes, 2 clinics as players, one feature, boxes of 1", "real")
def two_clinics() -> GameProblem:
    """Body mass index, in the first and the third clinic."""
    two = diabetes.make().federation.subset([0, 2])
    who = np.repeat([0, 1], two.sizes)
    return GameProblem(Federation.from_arrays(two.X[:, [2]], two.y, who), Squared(), 1.0)


@example("unequal players", "two players with coefficients 0.2 and 0.9, boxes of 2")
def unequal_players() -> GameProblem:
    """One ends at its bound."""
    return scalar_game((0.2, 0.9), 2.0)


@example("nearly equal players", "two players with coefficients 0.5 and 0.5 + 2/40.001, boxes of 2")
def nearly_equal_players() -> GameProblem:
    """Eighty-odd moves; the first bound is missed by a hair in sweep 40."""
    return scalar_game((0.5, 0.5 + 2.0 / 40.001), 2.0)


@example("opposed players", "two players with coefficients (-0.2, 0.5) and (0.9, 0.55), uncorrelated, boxes of 2")
def opposed_players() -> GameProblem:
    """Two features, of which one takes long."""
    v, D = np.array([[-0.2, 0.5], [0.9, 0.55]]), np.array([[1.0, 2.0], [0.5, 1.0]])
    S = np.array([np.diag(x) for x in D])
    return GameProblem(datasets.federation_of_moments(S, D * v, (D * v * v).sum(axis=1) + 1.0), Squared(), 2.0)


# ---------------------------------------------------------------- IRMv1


def _chain_environments(unit: float) -> InvariantProblem:
    """Second moments of the population; J has two minima."""
    moments = (unit**2 * np.asarray(m) for m in datasets.chain_moments((0.2, 2.0)))
    return InvariantProblem(datasets.federation_of_moments(*moments), Squared(), 10.0 / unit**2)


chain_environments, chain_in_hundredths, chain_in_hundreds = (
    example(f"chain{more}", f"chain x -> y -> z in two environments, lam = {lam}{more}")(
        partial(_chain_environments, unit)
    )
    for unit, lam, more in ((1.0, "10", ""), (100.0, "0.001", ", in hundredths"), (0.01, "100,000", ", in hundreds"))
)


@example("colour", "coloured binary model in two environments, lam = 100")
def coloured_environments() -> InvariantProblem:
    """Rows weighted by their probabilities."""
    return InvariantProblem(datasets.coloured_federation((0.2, 0.1)), Squared(), 100.0)


@example("clinics", "diabetes, 8 clinics as environments, three features, lam = 1", "real")
def clinics() -> InvariantProblem:
    """Take the first three features."""
    fed = diabetes.make().federation
    parts = zip(fed.ptr, fed.ptr[1:], strict=False)
    return InvariantProblem(Federation.from_clients([(fed.X[a:b, :3], fed.y[a:b]) for a, b in parts]), Squared(), 1.0)


class DescentState(NamedTuple):
    """The model and how many rounds it took."""

    w: np.ndarray  # (R, d)
    t: int


@dataclass(frozen=True, kw_only=True)
class MomentDescent:
    """IRMv1 with squared loss, computed from the environments' second moments: the same models up to rounding.

    `fedconvex verify` compiles nothing for it; a test holds it against `IRMv1`.
    """

    step_size: float
    learns = (INVARIANT_MODEL,)

    def words(self, problem: Any) -> Words:
        """Return its step."""
        return Words(f"MomentDescent, step size {self.step_size:g}", (f"eta {self.step_size:g}",))

    def init(self, problem: Any, w: np.ndarray) -> DescentState:
        """Return the start."""
        return DescentState(w, 0)

    def round(self, problem: Any, state: DescentState, draws: Any) -> DescentState:
        """Return w - eta grad J(w)."""
        g = np.stack([problem.environments.gradient(v) for v in state.w])
        return DescentState(state.w - self.step_size * g, state.t + 1)

    def traits(self, problem: Any) -> Traits:
        """Nothing is drawn."""
        return Traits(drawn=(), by_round=False)


def descent(step_size: float) -> MethodRule:
    """Return gradient descent on J."""
    return playing(MomentDescent(step_size=step_size), "fixed")
