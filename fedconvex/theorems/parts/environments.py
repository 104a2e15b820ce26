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


def players_space(
    make: Callable[[Tiny], GameProblem],
    method: Any,
    rounds: tuple[int, int],
    start: Callable[[Tiny, Any], np.ndarray] = from_zero,
    **knobs: Whole | Real,
) -> Space:
    """Return where to look for sharp games: every client a player; the numbers are the game's, but for the method's."""
    return Space(lambda k: playing(method(k), "fixed"), knobs, rounds=rounds, problem=make, start=start, tries=60)


def boxed(tiny: Tiny) -> GameProblem:
    """Return the game of a tiny problem's clients, in boxes of the size "bound"."""
    return GameProblem(tiny.problem().federation, Squared(), tiny.knobs["bound"])


def in_the_box(tiny: Tiny, problem: Any) -> np.ndarray:
    """Return a start in the box that the offset points to; its corner where the offset is none or long."""
    w = np.resize(tiny.offset if any(tiny.offset) else 1.0, problem.model_shape)
    return np.asarray(np.clip(w, -problem.bound, problem.bound))


def of_one_model(tiny: Tiny) -> GameProblem:
    """Return a game of players with the offset, or ones, as coefficients, in boxes out of reach."""
    fed, v = tiny.problem().federation, np.array(tiny.offset if any(tiny.offset) else np.ones(len(tiny.offset)))
    return GameProblem(
        Federation.from_arrays(fed.X, fed.X @ v, np.repeat(np.arange(fed.K), fed.sizes)),
        Squared(),
        1e6,
    )


def of_two(tiny: Tiny) -> GameProblem:
    """Return a game of two players with one feature: coefficients of at most the bound, and a difference of a share."""
    B, D = tiny.knobs["bound"], tiny.knobs["apart"]
    first = float(np.clip(tiny.labels[0], -1.0, 1.0 - D)) * B
    return _scalar_game((first, first + D * B) if tiny.labels[-1] > 0.0 else (first + D * B, first), B)


# ---------------------------------------------------------------- games


def _scalar_game(coefficients: Sequence[float], bound: float) -> GameProblem:
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
    return _scalar_game((0.5, -1.0), 1e-3)


@example("clinics at play", "diabetes, 8 clinics as players, boxes of 1", "real")
def clinics_at_play() -> GameProblem:
    """Ten correlated features."""
    return GameProblem(diabetes.make().federation, Squared(), 1.0)


@example("two equal players", "two players with coefficient 1/2, boxes of 1000")
def two_equal_players() -> GameProblem:
    """They settle with a buffer of two."""
    return _scalar_game((0.5, 0.5), 1e3)


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
    return _scalar_game((0.2, 0.9), 2.0)


@example("nearly equal players", "two players with coefficients 0.5 and 0.5 + 2/40.001, boxes of 2")
def nearly_equal_players() -> GameProblem:
    """Eighty-odd moves; the first bound is missed by a hair in sweep 40."""
    return _scalar_game((0.5, 0.5 + 2.0 / 40.001), 2.0)


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


def invariant(tiny: Tiny) -> InvariantProblem:
    """Return every client as an environment."""
    return InvariantProblem(tiny.problem().federation, Squared(), tiny.knobs["lam"])


def _near_the_best(tiny: Tiny, problem: Any) -> np.ndarray:
    """Return the least local minimum, moved a little."""
    return np.asarray(problem.minima(5)[0] + tiny.knobs["near"] * np.array(tiny.offset))


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


ENVIRONMENTS = Space(
    lambda k: descent(1e-6),
    {"lam": Real(0.01, 100.0), "near": Real(1e-3, 1.0)},
    rounds=(1, 1),
    problem=invariant,
    start=_near_the_best,
    tries=6,
)


def descent(step_size: float) -> MethodRule:
    """Return gradient descent on J."""
    return playing(MomentDescent(step_size=step_size), "fixed")
