"""FedBCD (Liu et al., arXiv:1912.11187): owners of columns take several steps on their blocks between exchanges.

1. every owner b starts at its block w_b
2. each round: server (who knows the labels): z = sum_b X_b w_b, sends z to the owners of the round
3.   owner b: v = w_b, and Q times: r_i = l'(z_i + x_{ib}'(v - w_b), y_i), v <- v - eta_b (X_b'r/n + l2 v)
4.   owner b: w_b <- w_b + theta (v - w_b), answers theta X_b (v - w_b), by which its scores changed
5. server: z <- z + sum of the answers

In turn (FedBCD-s) one owner works in a round, with theta = 1; in parallel (FedBCD-p) all do, or m that are drawn.
Derived here: in parallel, theta = 1 may diverge, on least squares it does whenever lambda_max(Pi H) > 2; theta = 1/m is
safe. With eta_b = 1/L_b, whatever Q is, F(w+) - F* <= (1 - l2/(K max L_b)) (F(w) - F*) for all K owners, and in
expectation for uniform samples: w+ is the mean of the m points at which one block has moved, F is convex, and of Q
steps of 1/L_b the first gains ‖grad_b F‖^2/(2 L_b) and the others lose nothing. Slopes at new scores need the labels at
every owner that takes more than one step, except for squared loss, where z - y does (then
r_i = z_i - y_i + x_{ib}'(v - w_b)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex import secure
from fedconvex._check import among, bad, real
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import participation, vertical_scores
from fedconvex.methods.parts.vertical_scores import Reply
from fedconvex.problems import FederatedProblem
from fedconvex.problems.protocol import VERTICAL_MODEL
from fedconvex.traits import Traits, not_sent
from fedconvex.words import Words, counted


class State(NamedTuple):
    """What server and owners keep."""

    w: np.ndarray  # (R, *model) blocks, at their owners
    z: np.ndarray  # (R, n, C) scores, at the server; (R, 0, C) before those of a start are known
    theta: np.ndarray  # (R,)
    t: int  # rounds done


@not_sent("w", "theta")
class Message(NamedTuple):
    """Server to owners."""

    z: np.ndarray  # (R, n, C)
    w: np.ndarray  # (R, *model) every owner keeps its block
    theta: np.ndarray  # (R,) agreed upon once


def _order(who: str, x: Any) -> str:
    among(who, x, ("parallel", "in turn"))
    return str(x)


def _share_of_two(who: str, x: Any) -> float:
    """Return a number in (0, 2): with eta_b = 2/L_b a block may return to where it was without being optimal."""
    if not 0.0 < real(who, x) < 2.0:
        raise bad(who, "lie strictly between 0 and 2", x)
    return float(x)


def _damping(who: str, x: Any) -> Any:
    """Return "safe" or a number in (0, 1]."""
    if isinstance(x, str):
        among(who, x, ("safe",))
        return x
    return real(who, x, low=0.0, high=1.0, strict=True)


@dataclass(frozen=True, kw_only=True)
class FedBCD(CheckedFields):
    """Block coordinate descent with several local steps, the blocks with the owners of their columns.

    Parameters
    ----------
    local_steps : int
        Q.
    step_share : float
        eta_b L_b, in (0, 2): the step as a share of 1/L_b, L_b the smoothness of F in w_b alone, which owner b knows.
        Below 2 all fixed points are minimisers, for every Q.
    order : str
        "parallel", or "in turn": owner t mod K works in round t.
    damping : float or "safe"
        theta in (0, 1]; "safe" is 1/m for m owners in a round.
    participation : int, float or scheme
        Owners in a round, in parallel; as for `FedAvg`, different ones.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        As for `VerticalGradientDescent`, of owners in parallel. Errors of the rounds add up, to m 2^-(bits + 1) each.

    Raises
    ------
    ValueError, TypeError
        If a setting is out of range, or participation or sums are given with ``order="in turn"``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Logistic, VerticalFederation, run
    >>> from fedconvex.methods import FedBCD
    >>> from fedconvex.problems import VerticalProblem
    >>> rng = np.random.default_rng(0)
    >>> A, B, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)), rng.choice([-1, 1], 50)
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    >>> run(FedBCD(local_steps=5), VerticalProblem(fed, Logistic(), 0.1), tol=1e-8).status.name
    'CONVERGED'
    """

    command = "fedbcd"
    learns = (VERTICAL_MODEL,)
    constant = ("theta",)  # of the state: no round changes it
    damped_by = "damping"

    local_steps: Count = 1
    step_share: Annotated[float, _share_of_two] = 1.0
    order: Annotated[str, _order] = "parallel"
    damping: Annotated[Any, _damping] = "safe"
    participation: participation.DistinctParticipation = 1.0
    sums: Annotated[Any, secure.as_sums] = secure.PlainSums()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order == "in turn" and self.participation is not None:
            raise bad("FedBCD.participation", 'be left out with order="in turn"', f"{self.participation!r}")
        if self.order == "in turn" and hasattr(self.sums, "mask"):
            raise bad("FedBCD.sums", 'be PlainSums() with order="in turn"', f"{self.sums!r}: one owner has no sum")

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if a setting does not fit the problem, or its loss is not smooth."""
        super().check_fit(problem, R)
        of = traits(problem.loss)
        if math.isinf(of.smoothness) and not of.self_bounded:
            cure = "take a smooth loss, or VerticalGradientDescent with a decaying step"
            raise bad("FedBCD: problem", "have a smooth loss, whose L_b gives the steps", f"{problem.loss!r}", cure)

    def words(self, problem: Any) -> Words:
        who = participation.who_takes_part(self.participation, problem.federation.K)
        theta = self.damping if isinstance(self.damping, str) else f"{self.damping:.4g}"
        work = f"{counted(self.local_steps, 'local step')} of {self.step_share:g}/L_b, {self.order}, damping {theta}"
        short = [f"tau {self.local_steps}", f"theta {theta}"]
        short += [f"share {self.step_share:g}"] * (self.step_share != 1.0) + [self.order] * (self.order != "parallel")
        taking = f"FedBCD, {work}" + (f", {who} take part" if who else "")
        return Words(taking, (*short, *([who] if who else [])))

    def init(self, problem: Any, w: np.ndarray) -> State:
        z, everybody = vertical_scores.start_scores(problem, w), self.order == "parallel" and self.participation is None
        if not z.size and not everybody:
            cure = "leave start out, or let all owners work in parallel"
            raise bad("FedBCD: start", "be zero where the first round has not all owners' scores", "another", cure)
        m = 1 if self.order == "in turn" else participation.sampling_of(self.participation, problem)[1]
        theta = 1.0 / m if self.damping == "safe" else self.damping
        return State(w, z, np.full(len(w), theta), 0)  # 1

    def participants(self, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        if self.order == "in turn":
            one = np.full((draws.trajectory.size, 1), draws.round % problem.federation.K)
            return one, np.ones(one.shape)
        return participation.participants(self.participation, problem, draws)

    def broadcast(self, state: State) -> Message:
        return Message(state.z, state.w, state.theta)  # 2

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        def move(r: int, at: Any, b: int) -> Any:
            start = v = message.w[r][at]
            if not message.z.size:  # the start is not zero: its scores are asked for first
                return np.zeros_like(v), start
            eta = self.step_share / problem.block_smoothness[b]
            for _ in range(self.local_steps):
                slopes = message.z[r] + problem.scores(v - start, b)
                row_losses.row_slopes(problem.loss, slopes, problem.y)
                v = v - eta * problem.block_gradient(slopes, v, b)  # 3
            change = message.theta[r] * (v - start)
            return change, change

        return vertical_scores.answered(problem, message.w, clients, move), memory  # 4

    def send(self, problem: Any, reply: Reply, clients: np.ndarray, draws: Draws) -> Any:
        """Return what all owners of the round send, once they have agreed on masks: `SecureSums`."""
        return vertical_scores.masked(self.sums, problem, reply, clients, draws)

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        known, came = state.z if state.z.size else 0.0, vertical_scores.total(self.sums, reply, state.z.shape[2])
        w, z = state.w + reply.step.sum(axis=1), known + came  # 5
        return state._replace(w=w, z=z, t=state.t + 1)

    def traits(self, problem: Any) -> Traits:
        if self.order == "in turn":
            return Traits(drawn=(), by_round=True)
        return participation.traits_of_sampling(self.participation, problem)
