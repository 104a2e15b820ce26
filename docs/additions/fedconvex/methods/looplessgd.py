"""Loopless local gradient descent (Gorbunov, Hanzely, Richtarik, AISTATS 2021): rounds of random length.

1. server: start at w_0
2. each round t = 0, 1, ...: server sends w_t to all clients
3.   all draw the same number H of steps: P(H = h) = p (1 - p)^(h - 1), h = 1, 2, ...
4.   client k: w_k <- w_t, H times w_k <- w_k - eta grad f_k(w_k), and answers w_k
5. server: w_{t+1} = sum_k p_k w_k
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import STEP_COUNTS, Draws
from fedconvex.fields import CheckedFields, Positive
from fedconvex.kernels import averages, descent
from fedconvex.methods.parts.averaging import Message
from fedconvex.methods.parts.local_work import plan_of
from fedconvex.methods.parts.optimizers import ClientSGD
from fedconvex.methods.parts.participation import traits_of_sampling
from fedconvex.methods.parts.step_sizes import StepSize, decays, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import LocalSteps, Traits, stopping


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k


@dataclass(frozen=True, kw_only=True)
class LooplessGD(CheckedFields):
    """Local gradient steps with communication after each of them with probability p; full participation.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        eta.
    probability : float
        p, in (0, 1]: 1/p local steps a round in the mean. With p = 1 it is gradient descent, and draws nothing.

    Raises
    ------
    ValueError, TypeError
        On settings out of range.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import LooplessGD
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(LooplessGD(step_size=0.1, probability=1.0), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "loopless-gd"

    step_size: StepSize
    probability: Positive = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probability > 1.0:
            raise bad("LooplessGD.probability", "lie in (0, 1]", f"{self.probability:g}")

    def init(self, problem: FederatedProblem, w: np.ndarray) -> State:
        return State(w)  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        sizes = problem.federation.sizes[clients]
        plan = plan_of(sizes, self._length(draws), sizes, sizes)
        eta = step_sizes(self.step_size, draws.trajectory, draws.round, plan)
        w, _ = descent.local_updates(
            problem, ClientSGD(), message.w, clients, draws, eta, plan, replacement=False, shadow=False
        )  # 4
        return Reply(w), memory

    def _length(self, draws: Draws) -> np.ndarray:
        """Return H of every trajectory, (R, 1): the same for all clients, because its stream is the server's."""
        if self.probability == 1.0:
            return np.ones((draws.trajectory.size, 1), np.int64)
        u = draws.uniform(1, client=-1, purpose=STEP_COUNTS)
        return 1 + np.floor(np.log1p(-u) / np.log1p(-self.probability)).astype(np.int64)  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        return State(averages.over_clients(weights, reply.w))  # 5

    def traits(self, problem: FederatedProblem) -> Traits:
        sizes, ones = problem.federation.sizes, np.ones(problem.federation.K)
        step = LocalSteps(self.step_size, ones, sizes, sizes, replacement=False, plain=True, fresh=True, factor=ones)
        known = traits_of_sampling(None, problem, server_step=1.0, by_round=decays(self))
        return stopping(known, step, self.probability)
