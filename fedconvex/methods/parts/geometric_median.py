"""The geometric median argmin_w f(w) = sum_k q_k ‖w - x_k‖, q_k > 0 with sum 1, with a duality gap.

1. The best point x_b is the minimiser if ‖sum_{k != b} q_k (x_b - x_k)/‖x_b - x_k‖‖ <= q_b (then u_b of the dual makes
   up for it). Else one step of Vardi and Zhang (PNAS 97, 2000) leads below f(x_b) <= f(x_k): no later iterate meets a
   point, and f is smooth where they are.
2. Newton's steps with backtracking, taken whole where they shrink the gradient; where none leads down, Weiszfeld's.
3. Dual: max -sum q_k <u_k, x_k> over ‖u_k‖ <= 1, sum q_k u_k = 0. At w, u_k = (w - x_k)/‖w - x_k‖ without its mean,
   scaled into the balls, is feasible: f(w) minus its value bounds f(w) - min f.

Where points are fewer than coordinates, all this happens in the span of their differences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_STEPS = 200  # at most; five to fifteen are usual


class Median(NamedTuple):
    """A point and its certificate."""

    w: np.ndarray  # (d,)
    value: float  # f(w)
    gap: float  # f(w) - min f is at most this, up to rounding


def geometric_median(points: np.ndarray, weights: np.ndarray, tol: float = 1e-12) -> Median:
    """Return the geometric median of points (m, d) with weights (m,), to a gap of tol f(w) or to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods.parts.geometric_median import geometric_median
    >>> triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    >>> found = geometric_median(triangle, np.ones(3) / 3)
    >>> found.w.round(9).tolist(), round(found.value, 9), found.gap < 1e-12  # its centre, 1/sqrt 3 from each corner
    ([0.5, 0.288675135], 0.577350269, True)
    """
    x, inverse = np.unique(points[weights > 0.0], axis=0, return_inverse=True)
    q = np.bincount(inverse.ravel(), weights[weights > 0.0])
    q = q / q.sum()
    best = int(np.argmin(np.linalg.norm(x[:, None] - x[None], axis=2) @ q))
    y = x - x[best]  # distances to x_b, which may be tiny, are right to the last digit
    scale = float(np.abs(y).max())
    if scale == 0.0:
        return Median(x[best].copy(), 0.0, 0.0)
    y = y / scale
    basis = np.linalg.qr(y.T)[0] if len(y) < y.shape[1] else None
    w, value, gap = _minimised(y if basis is None else y @ basis, q, best, tol)
    return Median(x[best] + scale * (w if basis is None else basis @ w), scale * value, scale * gap)


def _minimised(x: np.ndarray, q: np.ndarray, best: int, tol: float) -> tuple[np.ndarray, float, float]:
    """Return the minimiser, its value and its gap; all points are different, and x_b is zero."""
    u, r = _directions(x[best], x)
    pull = q @ u  # without point best, where u is zero
    length = float(np.linalg.norm(pull))
    if length <= q[best]:  # 1
        value = float(q @ r)
        return x[best].copy(), value, _gap(u, q, x, best, value)
    near = np.divide(q, r, out=np.zeros_like(q), where=r > 0.0)
    w = x[best] - (1.0 - q[best] / length) * pull / near.sum()
    for _ in range(_STEPS):
        u, r = _directions(w, x)
        value = float(q @ r)
        gap = _gap(u, q, x, best, value)
        if gap <= 0.5 * tol * value:
            break
        later = _next(w, u, q / r, q, x, value)  # 2
        if later is None:
            break
        w = later
    return w, value, gap


def _next(
    w: np.ndarray, u: np.ndarray, near: np.ndarray, q: np.ndarray, x: np.ndarray, value: float
) -> np.ndarray | None:
    """Return the next iterate, or None where rounding stops the descent."""
    g = q @ u
    H = near.sum() * np.eye(w.size) - (u.T * near) @ u
    step = np.linalg.lstsq(H, -g, rcond=None)[0]
    slope = float(g @ step)
    turned, far = _directions(w + step, x)
    if q @ far <= value + 1e-15 * value and np.linalg.norm(q @ turned) <= 0.9 * np.linalg.norm(g):
        return np.asarray(w + step)  # values no longer tell near the end, gradients do
    for share in 0.5 ** np.arange(40) if slope < -1e-16 * value else ():
        trial = w + share * step
        if float(q @ np.linalg.norm(trial - x, axis=1)) <= value + 1e-4 * share * slope:
            return np.asarray(trial)
    trial = (near @ x) / near.sum()
    return np.asarray(trial) if float(q @ np.linalg.norm(trial - x, axis=1)) < value else None


def _directions(w: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (w - x_k)/‖w - x_k‖ (m, d), zero at a point itself, and the distances (m,)."""
    away = w - x
    r = np.linalg.norm(away, axis=1)
    return np.divide(away, r[:, None], out=np.zeros_like(away), where=r[:, None] > 0.0), r


def _gap(u: np.ndarray, q: np.ndarray, x: np.ndarray, best: int, value: float) -> float:  # 3
    """Return value minus the better one of two of the dual: at u without its mean, and at u with u_b making up for it.

    The second is better where w is all but x_b.
    """
    made = u.copy()
    made[best] -= (q @ u) / q[best]
    lower = []
    for v in (u - q @ u, made):
        v = v / max(1.0, float(np.linalg.norm(v, axis=1).max()))
        lower.append(-float(q @ np.einsum("kj,kj->k", v, x)))
    return max(0.0, value - max(lower))
