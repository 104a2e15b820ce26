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

from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import Draws
from fedconvex.kernels import averages, row_losses
from fedconvex.methods.parts import automatic_steps, participation, step_sizes
from fedconvex.problems import Measure, Problem
from fedconvex.traits import LocalSteps, Traits

__all__ = ["FedSGD"]


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    t: int  # rounds done


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, m, *model) grad f_k(w_t)


@dataclass(frozen=True, kw_only=True)
class FedSGD:
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

    step_size: Any
    participation: Any = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", step_sizes.as_step_size("FedSGD", self.step_size, automatic=True))
        object.__setattr__(self, "participation", participation.as_participation("FedSGD", self.participation))

    def init(self, problem: Problem, w: np.ndarray) -> State:
        participation.check_participation("FedSGD", self.participation, problem)
        step_sizes.check_trajectories("FedSGD", self.step_size, len(w))
        return State(w, 0)  # 1

    def participants(self, problem: Problem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        return participation.participants(self.participation, problem, draws)  # 2

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        return Reply(row_losses.gradients_of(problem, message.w, clients)), memory  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        g = averages.over_clients(weights, reply.g)
        return State(step_sizes.descend(self.step_size, state.t, state.w, g), state.t + 1)  # 4

    def traits(self, problem: Problem) -> Traits:
        sampling, m = participation.sampling_of(self.participation, problem)
        sizes, ones = problem.federation.sizes, np.ones(problem.federation.K, dtype=np.int64)
        local = LocalSteps(self.step_size, ones, sizes, sizes, False, True, True, np.ones(sizes.size))
        return Traits(local, 1.0, sampling, m, () if sampling == "everyone" else ("clients",))

    def default_step(self, problem: Problem) -> DefaultStep:
        return automatic_steps.of_averaging("FedSGD", self, problem)

    def measure(self, problem: Problem, state: State) -> Measure:
        return problem.measure(state.w)
