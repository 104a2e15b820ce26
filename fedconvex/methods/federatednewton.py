"""Newton's method over clients: their values, gradients and Hessians sum to those of F.

1. server: start at w_0; ask at v = w_0
2. each round, server sends v to all clients
3.   client k answers f_k(v), grad f_k(v) and the upper triangle of the Hessian of f_k at v
4. server: F(v) = sum_k p_k f_k(v), and so for the derivatives
5. if F(v) is low enough: w <- v, J <- hess F(w), d <- -J^-1 grad F(w), v <- w + d
6. else: v <- w + t d with a smaller t

A round tells whether a trial is accepted, and its derivatives where it is: a damped step costs a round, an accepted one
none beside its own. The first round asks at the start. Backtracking is that of Boyd and Vandenberghe, "Convex
optimization", 2004, Algorithms 9.2 and 9.5 (`newton_steps` says how trials are shortened, and when rounding ends the
search). With p parameters a client sends (p + 1)(p + 2)/2 floats a round. A Hessian tells more of rows than a gradient:
after T rounds a client of up to T (p + 2)/2 rows may be known whole; sums over clients, `SecureSums`, hide whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import newton_steps, pooled_sums
from fedconvex.methods.parts.newton_steps import NewtonSteps
from fedconvex.problems import FederatedProblem
from fedconvex.problems.protocol import COEFFICIENTS, ONE_MODEL, has_one_model
from fedconvex.sums import PlainSums
from fedconvex.traits import REFUSE, Traits
from fedconvex.words import Words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) the last accepted point
    search: NewtonSteps  # over flat models


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) v


class Reply(NamedTuple):
    """Clients to server."""

    value: np.ndarray  # (R, m) f_k(v)
    gradient: np.ndarray  # (R, m, p) grad f_k(v), flat
    hessian: np.ndarray  # (R, m, p (p + 1)/2) the upper triangle of the Hessian, row after row


@dataclass(frozen=True, kw_only=True)
class FederatedNewton(CheckedFields):
    """Newton's method for a few hundred parameters at most: 4 to 10 rounds to full accuracy where others take hundreds.

    Parameters
    ----------
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sums over clients, as for `FedSGD`.

    Raises
    ------
    TypeError
        When a run starts, if the loss has no curvature.

    Examples
    --------
    >>> from fedconvex import FederatedNewton, Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> problem = Problem(logistic_federation(seed=0).federation, Logistic(), l2=0.01)
    >>> result = run(FederatedNewton(), problem, rounds=20, tol=1e-12)
    >>> result.status.name, result.rounds < 10
    ('CONVERGED', True)
    """

    command = "newton"
    aims = ("one model",)
    learns = (ONE_MODEL, COEFFICIENTS)
    lost = REFUSE  # a sum over some clients is another objective
    tells_hessians = True  # sites look at what rows weigh in them, too

    sums: pooled_sums.Sums = PlainSums()

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if the loss has no curvature."""
        super().check_fit(problem, R)
        if has_one_model(problem) and not (kind := traits(problem.loss)).curved:
            cure = "use a smooth loss, for example SmoothedHinge(gamma)" if kind.kinked else "declare its curvature"
            raise wrong_type("FederatedNewton: problem", "have a loss with a curvature", f"{problem.loss!r}", cure)

    def words(self, problem: FederatedProblem) -> Words:
        return Words("FederatedNewton, one Hessian of each client")

    def gradient_passes(self, problem: Any) -> float:
        """Return the passes over all rows that a round costs, in gradients: a Hessian takes about p/2 of them."""
        return 1.0 + 0.5 * int(np.prod(problem.model_shape))

    def init(self, problem: Any, w: np.ndarray) -> State:
        return State(w, newton_steps.start(w.reshape(len(w), -1)))  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.search.trial.reshape(state.w.shape))  # 2

    def local(self, problem: Any, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):  # a trial may be too far out
            value, gradient, H = problem.client_derivatives(message.w, clients)
        upper = np.triu_indices(H.shape[-1])
        return Reply(value, gradient, H[..., upper[0], upper[1]]), memory  # 3

    send = pooled_sums.send  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        p = state.search.w.shape[1]
        if pooled_sums.hides(self):
            total = self.sums.total(reply)
            flat = total[:, :-1] / total[:, -1:]
        else:
            with np.errstate(invalid="ignore"):
                each = np.concatenate([reply.value[..., None], reply.gradient, reply.hessian], axis=2)
                flat = averages.over_clients(weights, each)  # 4
        H = np.empty((len(flat), p, p))
        rows, columns = np.triu_indices(p)
        H[:, rows, columns] = H[:, columns, rows] = flat[:, 1 + p :]
        search = newton_steps.absorb(state.search, flat[:, 0], flat[:, 1 : 1 + p], H)  # 5, 6
        return State(search.w.reshape(state.w.shape), search)

    def traits(self, problem: FederatedProblem) -> Traits:
        return Traits(drawn=())
