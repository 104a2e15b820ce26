"""FedSGD (McMahan et al., AISTATS 2017, Section 2): one gradient per client and round, averaged with weights n_k/n.

1. server: start at w_0
2. each round t = 0, 1, ...: server samples clients S_t and sends them w_t
3.   client k in S_t answers g_k = grad f_k(w_t), over all its rows
4. server: w_{t+1} = w_t - eta_t sum_{k in S_t} q_k g_k, q_k = p_k / sum_{j in S_t} p_j
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages, row_losses
from fedconvex.methods.parts import automatic_steps, averaging, participation, step_sizes
from fedconvex.methods.parts.averaging import Message
from fedconvex.problems import Problem
from fedconvex.traits import RENORMALISE, LocalSteps, Traits

__all__ = ["FedSGD"]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    t: int  # rounds done


class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, m, *model) grad f_k(w_t)


@dataclass(frozen=True, kw_only=True)
class FedSGD(CheckedFields):
    """Federated gradient descent: sampled clients send gradients, the server takes the step.

    Parameters
    ----------
    step_size : float, array (R,), `Decay` or "auto"
        eta; a `Decay` counts rounds; "auto" as for `FedAvg`.
    participation : int, float or scheme
        As for `FedAvg`.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(FedSGD(step_size=0.1), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    no_penalty = "its steps follow gradients: ProximalFedSGD is FedSGD with a proximal one"

    lost = RENORMALISE

    step_size: step_sizes.AutomaticStepSize
    participation: participation.Participation = 1.0

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, 0)  # 1

    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        return Reply(row_losses.gradients_of(problem, message.w, clients)), memory  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        g = averages.over_clients(weights, reply.g)
        return State(step_sizes.descend(self.step_size, state.t, state.w, g), state.t + 1)  # 4

    def traits(self, problem: Problem) -> Traits:
        sizes, ones = problem.federation.sizes, np.ones(problem.federation.K, dtype=np.int64)
        local = LocalSteps(self.step_size, ones, sizes, sizes, False, True, True, np.ones(sizes.size))
        return participation.traits_of_sampling(
            self.participation, problem, local=local, server_step=1.0, by_round=step_sizes.decays(self)
        )

    default_step = automatic_steps.of_averaging
