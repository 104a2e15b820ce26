"""FedNova (Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020): averages of moves per local step, for plain local steps.

1. server: start at w_0
2. each round, server sends w_t to sampled clients S_t
3.   client k: w_k <- w_t, then tau_k steps on mini-batches: w_k <- w_k - eta grad f_k(w_k; b)
4.   client k answers d_k = (w_k - w_t)/tau_k, and tau_k
5. server: w_{t+1} = w_t + beta tau_eff sum_{k in S_t} q_k d_k, tau_eff = sum_{k in S_t} q_k tau_k

q_k = p_k / sum_{j in S_t} p_j. FedAvg moves by sum_k q_k tau_k d_k: who takes more steps weighs more, and small steps
lead to the minimiser of sum_k p_k tau_k f_k. Here they lead to that of F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import Positive
from fedconvex.kernels import averages
from fedconvex.methods.parts import local_work, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import Traits


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    d: np.ndarray  # (R, m, *model) (w_k - w_t)/tau_k
    tau: np.ndarray  # (R, m) tau_k


@dataclass(frozen=True, kw_only=True)
class FedNova(local_work.LocalWork):
    """Federated averaging of normalised moves: clients may take different numbers of steps without shifting the limit.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        eta; a `Decay` counts rounds (``by_round=True``), unless all take equally many steps.
    local_steps, epochs, batch_size, replacement, shrink, batch_draw
        As for `FedAvg`; with epochs tau_k follows from the rows of a client.
    participation : int, float or scheme
        As for `FedAvg`.
    server_step : float
        beta.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a mini-batch without replacement exceeds a client.

    Notes
    -----
    With equally many steps everywhere and beta = 1 it is `FedAvg` up to rounding. Several steps of one client still
    drift towards its own minimiser: the limit is that of F only as eta tends to 0 (its fixed point on least squares is
    exact: the tests have it).

    References
    ----------
    Wang, Liu, Liang, Joshi, Poor, "Tackling the objective inconsistency problem in heterogeneous federated
    optimization", NeurIPS 2020, Algorithm 1 with a_k = (1, ..., 1): plain local SGD. Sampled clients: weights of those
    that take part, as in FedAvg.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import FedNova
    >>> problem = Problem(linear_federation(n_clients=3, zeta_star=1.0, seed=0).federation, Squared())
    >>> unequal = {"step_size": 0.05, "local_steps": (1, 5, 20)}
    >>> gaps = [run(method(**unequal), problem, rounds=150).gap for method in (FedNova, FedAvg)]
    >>> gaps[0] < 0.03 * gaps[1]
    True
    """

    command = "fednova"
    benchmarks: ClassVar[Any] = {"fednova": {"local_steps": 5}}
    no_penalty = "its steps follow gradients: FedMiD, FedDualAvg and FedProx take proximal ones"
    lost = participation.lost

    participation: participation.Participation = 1.0
    server_step: Positive = 1.0

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        w, _ = self.local_models(problem, message.w, clients, draws)  # 3
        tau = step_sizes.step_counts(self.plan(problem.federation.sizes[clients], clients)).astype(float)
        each = tau.reshape(*tau.shape, *[1] * (w.ndim - 2))
        return Reply((w - message.w[:, None]) / each, tau), memory  # 4

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        effective = np.sum(weights * reply.tau, axis=1).reshape(-1, *[1] * (state.w.ndim - 1))
        return State(state.w + self.server_step * effective * averages.over_clients(weights, reply.d))  # 5

    def traits(self, problem: Problem) -> Traits:
        local = self.steps_of(problem, plain=True)
        step = self.server_step if local.equal_steps is not None else None
        by_round = step_sizes.decays(self)
        return participation.traits_of_sampling(
            self.participation, problem, local=local, server_step=step, by_round=by_round
        )
