"""Gradient descent over columns of several owners, plain and accelerated: the pooled methods, in sums of scores.

VerticalGradientDescent
1. every owner b starts at its block w_b
2. each round: server (who knows the labels): z = sum_b z_b, sends r_i = l'(z_i, y_i)
3.   owner b: w_b <- w_b - eta (X_b'r/n + l2 w_b), answers z_b = X_b w_b

VerticalAcceleratedGradient (Nesterov 2018, (2.2.22), constant steps)
4. every owner starts at w_b = w_b', scores and slopes are those of v = w
5.   owner b: v_b = w_b + beta (w_b - w_b'), w_b' <- w_b, w_b <- v_b - eta (X_b'r/n + l2 v_b)
6.   owner b answers the scores of its next v_b, X_b (w_b + beta (w_b - w_b'))

The iterates are those of gradient descent on the joined rows. n numbers an owner and round go each way, whatever the
number of columns. A start other than zero costs a round in which owners only answer the scores of their blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex import secure
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, share
from fedconvex.methods.parts import automatic_steps, step_sizes, vertical_scores
from fedconvex.methods.parts.vertical_scores import Reply
from fedconvex.problems.protocol import VERTICAL_MODEL
from fedconvex.traits import Traits, not_sent
from fedconvex.words import Words


class State(NamedTuple):
    """What server and owners keep."""

    w: np.ndarray  # (R, *model) blocks, at their owners
    last: np.ndarray  # (R, *model) blocks of the round before
    z: np.ndarray  # (R, n, C) scores; (R, 0, C) before those of a start are known
    r: np.ndarray  # (R, n, C) their slopes, at the server
    t: int  # rounds done


@not_sent("w", "last")
class Message(NamedTuple):
    """Server to owners."""

    r: np.ndarray  # (R, n, C)
    w: np.ndarray  # (R, *model) every owner keeps its block
    last: np.ndarray  # (R, *model)


def _automatic_share(who: str, x: Any) -> Any:
    """Return "auto" or a number in [0, 1)."""
    return x if isinstance(x, str) and x == "auto" else share(who, x)


AutomaticConstant = Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]
Momentum = Annotated[Any, _automatic_share]


@dataclass(frozen=True, kw_only=True)
class VerticalGradientDescent(CheckedFields):
    """Gradient descent on F, the columns of whose rows lie with several owners.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts rounds. "auto": 1/L of F, from X'X of the joined rows.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sum of the scores: from the answers, or from masked ones, to m 2^-(bits + 1) for m
        owners. Slopes still reveal the labels, and of two owners one of whom is the server nothing is hidden.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive.

    References
    ----------
    Liu et al., "FedBCD: a communication-efficient collaborative learning framework for distributed features",
    arXiv:1912.11187 (with one local step; there "FedSGD"). What slopes reveal: docs/vertical.md.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Logistic, VerticalFederation, run
    >>> from fedconvex.methods import VerticalGradientDescent
    >>> from fedconvex.problems import VerticalProblem
    >>> rng = np.random.default_rng(0)
    >>> A, B, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)), rng.choice([-1, 1], 50)
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    >>> result = run(VerticalGradientDescent(step_size="auto"), VerticalProblem(fed, Logistic(), 0.1), tol=1e-8)
    >>> result.status.name, int(result.trace.floats_up[1])  # two owners send 50 scores each
    ('CONVERGED', 100)
    """

    command = "vertical-gd"
    learns = (VERTICAL_MODEL,)

    step_size: step_sizes.AutomaticStepSize
    sums: Annotated[Any, secure.as_sums] = secure.PlainSums()

    def words(self, problem: Any) -> Words:
        return Words(f"{type(self).__name__}, one gradient")

    def init(self, problem: Any, w: np.ndarray) -> State:
        z = vertical_scores.start_scores(problem, w)
        return State(w, w, z, vertical_scores.slopes(problem.loss, z, problem.y) if z.size else z, 0)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.r, state.w, state.last)  # 2

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        return _descended(problem, message, clients, draws, self.step_size, np.zeros(len(clients))), memory  # 3

    def send(self, problem: Any, reply: Reply, clients: np.ndarray, draws: Draws) -> Any:
        """Return what all owners of the round send, once they have agreed on masks: `SecureSums`."""
        return vertical_scores.masked(self.sums, problem, reply, clients, draws)

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        z = vertical_scores.total(self.sums, reply, state.z.shape[2])
        return State(state.w + reply.step.sum(axis=1), state.w, z, state.r, state.t + 1)

    def settle(self, problem: Any, state: State) -> State:
        """Return the state with the slopes that the labels make of the scores."""
        return state._replace(r=vertical_scores.slopes(problem.loss, state.z, problem.y))  # 2

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=step_sizes.decays(self))

    def default_step(self, problem: Any) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness(self, problem.pooled, falling=True))


@dataclass(frozen=True, kw_only=True)
class VerticalAcceleratedGradient(CheckedFields):
    """Nesterov's method with constant steps on F, the columns of whose rows lie with several owners.

    Parameters
    ----------
    step_size : float, array (R,) or "auto"
        eta; "auto": 1/L of F.
    momentum : float or "auto"
        beta in [0, 1); "auto": (1 - q)/(1 + q), q = sqrt(eta l2). With eta <= 1/L, then
        F(w_t) - F* <= (1 - q)^t (F(w_0) - F* + (l2/2) ‖w_0 - w*‖^2) (Nesterov 2018, Theorem 2.2.3).
    sums
        As for `VerticalGradientDescent`.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or momentum not in [0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Logistic, VerticalFederation, run
    >>> from fedconvex.methods import VerticalAcceleratedGradient
    >>> from fedconvex.problems import VerticalProblem
    >>> rng = np.random.default_rng(0)
    >>> A, B, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 3)), rng.choice([-1, 1], 50)
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    >>> run(VerticalAcceleratedGradient(step_size="auto"), VerticalProblem(fed, Logistic(), 0.01), tol=1e-8).status.name
    'CONVERGED'
    """

    command = "vertical-accelerated"
    learns = (VERTICAL_MODEL,)

    step_size: AutomaticConstant
    momentum: Momentum = "auto"
    sums: Annotated[Any, secure.as_sums] = secure.PlainSums()

    words = VerticalGradientDescent.words
    init = VerticalGradientDescent.init  # 4
    broadcast = VerticalGradientDescent.broadcast
    send = VerticalGradientDescent.send
    aggregate = VerticalGradientDescent.aggregate
    settle = VerticalGradientDescent.settle

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        q = np.sqrt(_sizes(self.step_size, draws) * problem.l2)
        beta = (1.0 - q) / (1.0 + q) if self.momentum == "auto" else np.full(q.size, self.momentum)
        return _descended(problem, message, clients, draws, self.step_size, beta), memory  # 5, 6

    def traits(self, problem: Any) -> Traits:
        return Traits(drawn=(), by_round=False)

    def default_step(self, problem: Any) -> DefaultStep:
        return default_steps.descent_step(automatic_steps.smoothness(self, problem.pooled))


def _descended(problem: Any, message: Message, clients: np.ndarray, draws: Draws, step_size: Any, beta: Any) -> Reply:
    """Return steps from v_b = w_b + beta (w_b - w_b'), and the scores ahead of where they lead."""
    eta = _sizes(step_size, draws)

    def move(r: int, at: Any, b: int) -> Any:
        w = message.w[r][at]
        if not message.r.size:  # the start is not zero: its scores are asked for first
            return np.zeros_like(w), w
        v = w + beta[r] * (w - message.last[r][at])
        step = v - eta[r] * problem.block_gradient(message.r[r], v, b) - w
        return step, w + (1.0 + beta[r]) * step

    return vertical_scores.answered(problem, message.w, clients, move)


def _sizes(step_size: Any, draws: Draws) -> np.ndarray:
    return np.asarray(step_sizes.round_step_sizes(step_size, draws.trajectory, draws.round))
