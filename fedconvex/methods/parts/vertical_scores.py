"""What vertical methods share: scores of owners, the slopes that the labels make of their sum, and who keeps what.

The server is whoever knows the labels. Owner b keeps its block w_b. Blocks stand in states, and the change of a block
in answers, to be measured; they are never sent, and not counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex import secure
from fedconvex.draws import Draws
from fedconvex.kernels import row_losses
from fedconvex.traits import not_sent


@not_sent("step")
class Reply(NamedTuple):
    """Owners to server."""

    z: np.ndarray  # (R, m, n, C) X_b w_b, or how it changed
    step: np.ndarray  # (R, m, *model) the change of w_b, zeros elsewhere


@not_sent("clients", "agreed", "step")
class MaskedReply(NamedTuple):
    """Owners to server: scores in fixed point under masks that cancel in the sum."""

    numbers: np.ndarray  # (R, m, n C) uint64
    keys: np.ndarray  # (R, m, 4) public keys
    clients: np.ndarray  # (R, m)
    agreed: np.ndarray  # (R, m, 2)
    step: np.ndarray  # (R, m, *model) the change of w_b, zeros elsewhere

    @property
    def relayed(self) -> int:
        """Public keys that the server passes on."""
        return secure.Masked(self.numbers, self.keys, self.clients, self.agreed).relayed


def masked(sums: Any, problem: Any, reply: Reply, clients: np.ndarray, draws: Draws) -> Any:
    """Return what owners (R, m) send so that the server learns the sum of their scores, for `SecureSums` nothing else.

    Raises
    ------
    ValueError
        If a score is too large for the sum, or a round has one owner only.
    """
    if not hasattr(sums, "mask"):
        return reply
    sent = sums.mask(reply.z.reshape(*clients.shape, -1), problem.federation.ids[clients], draws)
    return MaskedReply(sent.numbers, sent.keys, sent.clients, sent.agreed, reply.step)


def total(sums: Any, reply: Any, outputs: int) -> np.ndarray:
    """Return the sum of the owners' scores, (R, n, C); with `SecureSums` to m 2^-(bits + 1) for m owners."""
    if not hasattr(sums, "mask"):
        return np.asarray(reply.z.sum(axis=1))
    return np.asarray(sums.total(reply).reshape(len(reply.numbers), -1, outputs))


def slopes(loss: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return l'(z_i, y_i) for scores (R, n, C)."""
    R, n, C = z.shape
    Z = z.transpose(1, 0, 2).copy().reshape(n, R * C)  # scores stay what they are
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
