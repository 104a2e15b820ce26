"""Steps of quadratic programmes within faces of the simplex."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=16)
def _sums_of_zero(m: int) -> np.ndarray:
    """Return an orthonormal basis (m, m - 1) of the vectors whose entries sum to zero."""
    N = np.eye(m)[:, 1:]
    N[0] = -1.0
    N = np.linalg.qr(N)[0]
    N.flags.writeable = False
    return np.asarray(N)


def face_step(Q: np.ndarray, slope: np.ndarray, free: np.ndarray, scale: float) -> np.ndarray:
    """Return the step to the minimum over the affine hull of a face, or a long one downhill where there is none."""
    index = np.flatnonzero(free)
    step = np.zeros(len(slope))
    if len(index) < 2:
        return step
    N = _sums_of_zero(len(index))
    lam, U = np.linalg.eigh(N.T @ Q[np.ix_(index, index)] @ N)
    h = U.T @ (N.T @ slope[index])
    flat = lam <= 1e-13 * scale
    if np.any(np.abs(h[flat]) > 1e-13 * scale):
        y = np.where(flat, -h, 0.0)
        y *= 4.0 / np.linalg.norm(y)  # longer than any chord: the ratio test stops it
    else:
        y = np.where(flat, 0.0, -h / np.where(flat, 1.0, lam))
    step[index] = N @ (U @ y)
    return step
