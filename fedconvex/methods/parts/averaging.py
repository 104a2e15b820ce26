"""Federated averaging whose local steps are left open: `FedAvg`, and the methods that change nothing but its steps.

The server sends w_t to the sampled clients and moves by SERVEROPT to the weighted average of their answers, or to
another aggregate of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods.parts import aggregation, participation, pooled_sums
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import not_sent


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, *model) w_t
    server: tuple  # SERVEROPT's memory, arrays like w
    shadow: np.ndarray  # (R, tau, *model) averaged local iterates of the last round, or tau = 0


class Message(NamedTuple):
    """Server to clients."""

    w: np.ndarray  # (R, *model) w_t


@not_sent("path")
class Reply(NamedTuple):
    """Clients to server."""

    w: np.ndarray  # (R, m, *model) w_k after the local steps
    path: np.ndarray  # (R, m, tau, *model) w_k after each of them, or tau = 0; a diagnostic


def init(method: Any, problem: FederatedProblem, w: np.ndarray) -> State:
    """Return the start w_0, and SERVEROPT's first memory."""
    return State(w, method.server.init(w), w[:, None][:, :0])


def broadcast(method: Any, state: State) -> Message:
    """Return w_t."""
    return Message(state.w)


def aggregate(method: Any, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
    """Return w_{t+1} = SERVEROPT(w_t, sum_k q_k w_k - w_t), q_k the weights of the participants.

    In the place of the weighted mean another aggregate may stand.
    """
    if pooled_sums.hides(method):
        average = pooled_sums.mean(method, reply, state.w.shape[1:])
        server, w = method.server.move(state.server, state.w, average)
        return State(w, server, state.shadow)
    average = aggregation.combined(method, weights, state.w, reply.w)
    server, w = method.server.move(state.server, state.w, average)
    if not reply.path.size:
        return State(w, server, state.shadow)
    shadow = participation.average(method.participation, weights, state.w[:, None], reply.path)
    return State(w, server, shadow)


def observe_shadow(method: Any, problem: Problem, state: State) -> dict[str, np.ndarray]:
    """shadow_value (R,): mean of F over the shadow iterates of the last round."""
    if not method.shadow:
        return {}
    R, tau = state.shadow.shape[:2]
    if tau == 0:
        return {"shadow_value": np.full(R, np.nan)}
    return {"shadow_value": problem.value(state.shadow.reshape(-1, *problem.model_shape)).reshape(R, tau).mean(1)}
