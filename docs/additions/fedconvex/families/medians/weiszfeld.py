"""Weiszfeld's algorithm for the smoothed geometric median (Pillutla, Kakade, Harchaoui, IEEE TSP 70, 2022, Alg. 2).

1. server: start at w_0
2. each round t = 0, 1, ...: server sends w_t to all clients
3.   client k answers beta_k = 1/sqrt(‖w_t - x_k‖^2 + nu^2) and beta_k x_k
4. server: w_{t+1} = sum_k p_k beta_k x_k / sum_k p_k beta_k
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from fedconvex.families.medians.problem import GeometricMedian

from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields
from fedconvex.kernels import averages


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, d) w_t


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, d) w_t


class Reply(NamedTuple):
    """Clients to server."""

    beta: np.ndarray  # (R, m, 1) beta_k
    point: np.ndarray  # (R, m, d) beta_k x_k


@dataclass(frozen=True, kw_only=True)
class Weiszfeld(CheckedFields):
    """Means weighted by inverse distances: each round minimises a quadratic above F that touches it at w_t.

    Examples
    --------
    >>> from fedconvex import Federation, run
    >>> from fedconvex.families.medians.problem import GeometricMedian
    >>> from fedconvex.families.medians.weiszfeld import Weiszfeld
    >>> fed = Federation.from_clients([([[x]], [0.0]) for x in (0.0, 1.0, 2.0, 50.0, 60.0)])
    >>> run(Weiszfeld(), GeometricMedian(fed, nu=0.1), rounds=500, tol=1e-9).w.round(2).tolist()
    [2.0]
    """

    learns = (GeometricMedian.learns,)

    def init(self, problem: GeometricMedian, w: np.ndarray) -> State:
        """Start at w_0."""
        return State(w)  # 1

    def broadcast(self, state: State) -> Message:
        """Send w_t."""
        return Message(state.w)  # 2

    def local(self, problem: GeometricMedian, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        """Answer with the inverse distance and the weighted point."""
        x = np.stack([[problem.centre(k) for k in row] for row in clients])
        beta = 1.0 / np.sqrt(((message.w[:, None] - x) ** 2).sum(axis=2, keepdims=True) + problem.nu**2)
        return Reply(beta, beta * x), memory  # 3

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        """Take the mean weighted by p_k beta_k."""
        return State(averages.over_clients(weights, reply.point) / averages.over_clients(weights, reply.beta))  # 4
