"""FedMiD: federated mirror descent (Yuan, Zaheer, Reddi, "Federated composite optimization", ICML 2021, Algorithm 2).

With the mirror map ‖w‖^2/2, whose mirror steps are proximal ones:

1. server: start at w_0, projected to where P is finite
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k in S_t: w_k <- w_t
4.   repeat K times: draw a mini-batch b of its rows, w_k <- prox_{eta_c P}(w_k - eta_c grad f_k(w_k; b))
5.   client k answers w_k
6. server: v = w_t + eta_s (sum_{k in S_t} q_k w_k - w_t), q_k = p_k / sum_{j in S_t} p_j
7. server: w_{t+1} = prox_{eta_s eta_c K P}(v)

The steps and the number of the algorithm are from memory of the paper.

Every client's model may be sparse, but where the supports differ their average is not: the curse of primal averaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.kernels import averages
from fedconvex.kernels.descent import ProximalSteps
from fedconvex.kernels.penalised import in_place, proximal_point
from fedconvex.methods.parts import proximal_work
from fedconvex.problems import FederatedProblem, Problem


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k after the local steps


@dataclass(frozen=True, kw_only=True)
class FedMiD(proximal_work.ProximalWork):
    """Federated mirror descent: local proximal steps, averaged models, a proximal step of the server.

    Parameters
    ----------
    step_size, server_step, local_steps, batch_size, replacement, participation
        As for `FedDualAvg`.
    shrink : bool
        As for `FedDualAvg`.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or local_steps or batch_size below 1.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import FedMiD
    >>> from fedconvex.penalties import L1
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), penalty=L1(0.1))
    >>> bool(run(FedMiD(step_size=0.05, local_steps=4), problem, rounds=40).gap < 0.1)
    True
    """

    command = "fedmid"
    benchmarks: ClassVar[Any] = {"fedmid": {"local_steps": 5}}
    penalised = True

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(proximal_point(problem, w, 0.0))  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        rule = ProximalSteps(in_place(problem))  # 4
        return Reply(self.run_jobs(rule, problem, message.w, clients, draws)), memory  # 3, 5

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        return State(state.w + self.server_step * (averages.over_clients(weights, reply.w) - state.w))  # 6

    def settle(self, problem: FederatedProblem, state: State) -> State:
        """Return the state after the server's proximal step."""
        return State(proximal_point(problem, state.w, self.reach(self.local_steps)))  # 7
