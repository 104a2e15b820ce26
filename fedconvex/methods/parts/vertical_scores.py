"""What vertical methods share: scores of owners, the slopes that the labels make of their sum, and who keeps what.

The server is whoever knows the labels. Owner b keeps its block w_b. Blocks stand in states, and the change of a block
in answers, to be measured; they are never sent, and not counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.traits import not_sent

__all__ = ["Reply", "answered", "slopes", "start_scores"]


@not_sent("step")
class Reply(NamedTuple):
    """Owners to server."""

    z: np.ndarray  # (R, m, n, C) X_b w_b, or how it changed
    step: np.ndarray  # (R, m, *model) the change of w_b, zeros elsewhere


def slopes(loss: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return l'(z_i, y_i) for scores (R, n, C)."""
    R, n, C = z.shape
    Z = np.ascontiguousarray(z.transpose(1, 0, 2)).reshape(n, R * C)
    row_losses.row_slopes(loss, Z, y)
    return np.ascontiguousarray(Z.reshape(n, R, C).transpose(1, 0, 2))


def start_scores(problem: Any, w: np.ndarray) -> np.ndarray:
    """Return the scores of the start (R, n, C) where it is zero; elsewhere (R, 0, C): owners are asked first."""
    return np.zeros((len(w), 0 if w.any() else problem.y.size, problem.n_outputs))


def answered(problem: Any, w: np.ndarray, clients: np.ndarray, move: Any) -> Reply:
    """Return what owners (R, m) answer: changes of their blocks, and scores.

    ``move(r, at, b)`` returns the change of the block of owner b, at its place in model r, and the block (C, d_b) whose
    scores are sent.
    """
    (R, m), fed = clients.shape, problem.federation
    z = np.empty((R, m, fed.n, problem.n_outputs))
    step = np.zeros((R, m, *problem.model_shape))
    for r in range(R):
        for j, b in enumerate(clients[r]):
            at = (..., slice(int(fed.ptr[b]), int(fed.ptr[b + 1])))
            step[r, j][at], scored = move(r, at, b)
            z[r, j] = problem.scores(scored, b)
    return Reply(z, step)
