"""Weighted averages over the clients of every trajectory."""

from __future__ import annotations

import numpy as np

from fedconvex._check import bad
from fedconvex.kernels.cache import kernel

SHORT = 4  # entries up to which each is summed by itself: longer ones are added side by side


@kernel
def average_rows(weights, A, out):
    """out[r] = sum_j weights[r, j] A[r, j]."""
    for r in range(A.shape[0]):
        for t in range(A.shape[2] if A.shape[2] <= SHORT else 0):
            total = weights[r, 0] * A[r, 0, t]
            for j in range(1, A.shape[1]):
                total += weights[r, j] * A[r, j, t]
            out[r, t] = total
        if A.shape[2] <= SHORT:
            continue
        for t in range(A.shape[2]):
            out[r, t] = weights[r, 0] * A[r, 0, t]
        for j in range(1, A.shape[1]):
            for t in range(A.shape[2]):
                out[r, t] += weights[r, j] * A[r, j, t]


def over_clients(weights, replies):
    """Weighted averages over the second axis of (R, m, ...): (R, ...)."""
    if replies.shape[:2] != weights.shape:
        must = f"begin with axes of R, m = {weights.shape} trajectories and clients"
        raise bad("arrays of a reply", must, f"shape {replies.shape}", "do not sum over clients in local")
    R, m, *model = replies.shape
    if not (weights.flags.c_contiguous and weights.flags.writeable):
        weights = weights.copy()  # kernels see one array type
    rows = replies.reshape(R, m, -1)
    out = np.empty((R, rows.shape[2]))
    average_rows(weights, rows, out)
    return out.reshape(R, *model)
