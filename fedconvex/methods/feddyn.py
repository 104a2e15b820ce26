"""FedDyn (Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, Algorithm 1), for any client weights p_k.

1. server: start at w, h = 0; clients: h_k = 0
2. each round, server sends w to sampled clients S
3.   client k: w_k <- argmin f_k(v) - <h_k, v> + (alpha/2) ‖v - w‖^2, solved to rounding
4.   or: local steps on that objective, from w
5.   client k: h_k <- h_k - alpha (w_k - w), and answers w_k
6. server: h <- h - alpha sum_{k in S} p_k (w_k - w)
7. server: w <- sum_{k in S} q_k w_k - h/alpha, q_k = p_k / sum_{j in S} p_j

After line 3 solved exactly, h_k = grad f_k(w_k): the paper's gradient. h = sum_k p_k h_k in every round, whoever was
sampled. A fixed point under full participation has w_k = w for all k, h = 0 by line 7, h_k = grad f_k(w), and so
grad F(w) = 0, whatever alpha and the weights. The paper's are equal, 1/m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count, Positive
from fedconvex.kernels import averages, client_rows, descent
from fedconvex.loss_traits import traits
from fedconvex.methods.parts import local_work, optimizers, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.solvers.proximal.smooth_points import proximal_points
from fedconvex.traits import RENORMALISE, Traits
from fedconvex.words import Words, steps_in_words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model)
    h: np.ndarray  # (R, *model)
    p: np.ndarray  # (1, K) client weights, the same for all trajectories


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model)


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k


@dataclass(frozen=True, kw_only=True)
class FedDyn(CheckedFields):
    """Dynamic regularisation: clients' proximal problems are tilted until their minimisers agree.

    With exact solutions and full participation it converges to the minimiser of F. One model travels each way.

    Parameters
    ----------
    alpha : float
        Weight of the proximal term. With exact solutions and full participation every one converges for strongly
        convex smooth clients, fastest about (mu L)^(1/2); small ones take long (docs/theory/feddyn.md).
    tol : float
        Clients solve up to ‖w_k - argmin‖ <= tol (1 + ‖w_k‖), or until rounding stops the progress.
    local_steps : int, optional
        Instead of solving exactly: gradient steps on all rows, from w.
    step_size : float, array (R,) or `Decay`
        Of the gradient steps; required with local_steps.
    participation : int or float
        Clients per round, sampled uniformly without replacement.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the loss has no curvature to solve with.

    References
    ----------
    Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic regularization", ICLR 2021,
    Algorithm 1. Unequal weights, inexact steps with h_k <- h_k - alpha (w_k - w): derived above.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import FedDyn
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> run(FedDyn(alpha=0.2), problem, rounds=200, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "feddyn"
    benchmarks: ClassVar[Any] = {"feddyn": {"alpha": 0.1}}
    constant = ("p",)  # of the state: no round changes it
    lost = RENORMALISE  # line 7 averages the models that came; line 6 leaves out the others
    no_penalty = "its clients' problems are smooth: ProgressiveHedging has a proximal step of the server"

    alpha: Positive
    tol: Positive = 1e-13
    local_steps: Count | None = None
    step_size: step_sizes.StepSize | None = None
    participation: participation.DistinctParticipation = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.local_steps is None) != (self.step_size is None):
            cure = "1/(L + alpha) is safe, with L the largest smoothness of a client"
            raise bad("FedDyn", "be given both local_steps and step_size, or neither", "one of them", cure)

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        if self.local_steps is None and not traits(problem.loss).curved:
            cure = "use SmoothedHinge(gamma), or local_steps= and step_size="
            raise bad("FedDyn with exact local solutions", "have a loss with curvature", f"{problem.loss!r}", cure)

    def words(self, problem: FederatedProblem) -> Words:
        who = participation.who_takes_part(self.participation, problem.federation.K)
        return steps_in_words(self, self.local_steps, None, who)

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, np.zeros_like(w), problem.weights[None].copy())  # 1

    def memory(self, problem: Problem, R: int) -> client_rows.ClientRows:
        """Return the h_k: all zero."""
        return client_rows.ClientRows.empty(problem.size)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        memory, mine = memory.locate(draws.trajectory, clients)
        w, h = message.w[:, None], problem.unflatten(memory.rows[mine])
        alpha = np.full(len(clients), self.alpha)
        if self.local_steps is None:
            start = np.broadcast_to(w, h.shape).copy()
            w_k = proximal_points(problem, clients, w + h / self.alpha, alpha, start, self.tol)  # 3
        else:
            sizes = problem.federation.sizes[clients]
            plan = local_work.plan_of(clients, self.local_steps, sizes, sizes)
            eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan)
            w_k, _ = descent.local_updates(  # 4
                problem, optimizers.ClientSGD(), message.w, clients, draws, eta, plan, False, False,
                -h - self.alpha * w, alpha,
            )  # fmt: skip
        memory.rows[mine] = (h - self.alpha * (w_k - w)).reshape(*clients.shape, -1)  # 5
        return Reply(w_k), memory  # 5

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        p = np.take_along_axis(np.broadcast_to(state.p, (len(clients), state.p.shape[1])), clients, axis=1)
        h = state.h - self.alpha * averages.over_clients(p, reply.w - state.w[:, None])  # 6
        return State(averages.over_clients(weights, reply.w) - h / self.alpha, h, state.p)  # 7

    def traits(self, problem: Problem) -> Traits:
        return participation.traits_of_sampling(self.participation, problem, by_round=step_sizes.decays(self))
