"""Gradient descent with momentum at the server (Polyak, USSR Comput. Math. Math. Phys. 4 (1964), 1-17).

1. server: start at w_0, v_0 = 0
2. each round t = 0, 1, ...: server sends w_t to all clients
3.   client k answers g_k = grad f_k(w_t), over all its rows
4. server: v_{t+1} = beta v_t + sum_k p_k g_k, w_{t+1} = w_t - eta v_{t+1}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Positive, Share
from fedconvex.kernels import averages, row_losses
from fedconvex.problems import Problem


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    v: np.ndarray  # (R, *model) v_t


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


class Reply(NamedTuple):
    """Clients to server."""

    g: np.ndarray  # (R, m, *model) grad f_k(w_t)


@dataclass(frozen=True, kw_only=True)
class HeavyBall(CheckedFields):
    """Federated gradient descent with momentum, full participation.

    Parameters
    ----------
    step_size : float
        eta.
    momentum : float
        beta, in [0, 1).

    Raises
    ------
    ValueError, TypeError
        On settings out of range.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import HeavyBall
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(HeavyBall(step_size=0.1, momentum=0.5), problem, rounds=1000, tol=1e-6).status.name
    'CONVERGED'
    """

    command = "heavyball"

    step_size: Positive
    momentum: Share = 0.5

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w, np.zeros_like(w))  # 1

    def broadcast(self, state: State) -> Message:
        return Message(state.w)  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        return Reply(row_losses.gradients_of(problem, message.w, clients)), memory  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        v = self.momentum * state.v + averages.over_clients(weights, reply.g)
        return State(state.w - self.step_size * v, v)  # 4
