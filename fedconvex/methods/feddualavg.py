"""FedDualAvg (Yuan, Zaheer, Reddi, "Federated composite optimization", ICML 2021, Algorithm 3).

With the mirror map h = ‖w‖^2/2, for which grad (h + eta P)^* = prox_{eta P}:

1. server: start at z_0 = w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them z_t
3.   client k in S_t: z_k <- z_t
4.   repeat for i = 0, ..., K-1: w_k = prox_{eta_ti P}(z_k), eta_ti = eta_s eta_c t K + eta_c i
5.   draw a mini-batch b of its rows, z_k <- z_k - eta_c grad f_k(w_k; b)
6.   client k answers z_k
7. server: z_{t+1} = z_t + eta_s (sum_{k in S_t} q_k z_k - z_t), q_k = p_k / sum_{j in S_t} p_j
8. the model is w_{t+1} = prox_{eta_s eta_c (t+1) K P}(z_{t+1})

Dual states are averaged, and the model is as sparse as its proximal map makes it.

The steps and the number of the algorithm are from memory of the paper. That they fit together is derived: with one
client, eta_s = 1 and any K they are dual averaging with eta = eta_c (number of steps), whatever the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.kernels import averages
from fedconvex.kernels.batches import batch_add, batch_slopes
from fedconvex.kernels.penalised import in_place, proximal_point, shorten
from fedconvex.kernels.ridges import penalty
from fedconvex.methods.parts import proximal_work
from fedconvex.problems import FederatedProblem, Problem


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    z: np.ndarray  # (R, *model) z_t
    t: int  # rounds done


class Message(NamedTuple):
    """Server to clients; the round's number is known to all."""

    z: np.ndarray  # (R, *model) z_t


class Reply(NamedTuple):
    """Clients to server."""

    z: np.ndarray  # (R, m, *model) z_k after the local steps


@dataclass(frozen=True, kw_only=True)
class FedDualAvg(proximal_work.ProximalWork):
    """Federated dual averaging: clients accumulate gradients, and the proximal map is taken of the sums.

    Parameters
    ----------
    step_size : float or array (R,)
        Client step size eta_c; an array gives every trajectory its own.
    server_step : float
        eta_s.
    local_steps : int
        K, local steps per round; each draws a fresh mini-batch.
    batch_size : int, optional
        Rows per step; default all rows of the client.
    replacement : bool
        Draw the rows of a mini-batch with replacement.
    participation : int, float or scheme
        Clients per round, as for `FedAvg`.
    shrink : bool
        Take all rows of clients that have fewer than batch_size.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client, or the
        penalty is no sum over entries or groups.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import FedDualAvg
    >>> from fedconvex.penalties import L1
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), penalty=L1(0.1))
    >>> bool(run(FedDualAvg(step_size=0.05, local_steps=4), problem, rounds=40).gap < 0.1)
    True
    """

    command = "feddualavg"
    benchmarks: ClassVar[Any] = {"feddualavg": {"local_steps": 5}}
    penalised = True

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(proximal_point(problem, w, 0.0), w, 0)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.z)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        before = np.broadcast_to(self.reach(self.local_steps * draws.round), len(clients))
        eta = before if before.size == len(draws.trajectory) else before[draws.trajectory]
        rule = DualSteps(in_place(problem), np.ascontiguousarray(eta, dtype=np.float64))
        return Reply(self.run_jobs(rule, problem, message.z, clients, draws)), memory  # 3, 6

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        z = state.z + self.server_step * (averages.over_clients(weights, reply.z) - state.z)  # 7
        return State(state.w, z, state.t + 1)

    def settle(self, problem: FederatedProblem, state: State) -> State:
        """Return the state with the model of its dual state."""
        return state._replace(w=proximal_point(problem, state.z, self.reach(self.local_steps * state.t)))  # 8


class DualSteps(NamedTuple):
    """Steps on dual states: gradients at their proximal points."""

    prox: Any
    before: np.ndarray  # (R,) eta_s eta_c t K

    def step(self, loss, data, job, part, s, a, w, room):  # type: ignore[no-untyped-def]
        """m = prox_{(before + a s) P}(w), w <- w - a (ridge m + mean of the gradients of the batch at m)."""
        for q in range(w.size):
            room.m[q] = w[q]
        shorten(self.prox, room.m, self.before[job.r] + a * s)  # 4
        penalty(job.ridge, room.m, job.tilt, room.g)
        batch_slopes(loss, data.X, data.y, part, 1.0 / part.size, room.m, room.c, room.t)
        batch_add(loss, data.X, part, room.c, room.g)
        for q in range(w.size):
            w[q] -= a * room.g[q]  # 5
