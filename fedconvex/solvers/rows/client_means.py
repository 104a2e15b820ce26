"""Mean losses of clients at many models at once, and the objective of least squares about its minimiser."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import row_losses

CHUNK = 1 << 21  # scores held at once when many models are evaluated
MANY = 8  # models from which on dense rows of at most _NARROW features are scored by one kernel
_NARROW = 32
_SIDE_BY_SIDE = 512  # of them, whose sums stay in the cache next to the core
_EPS = float(np.finfo(float).eps)


def client_means(p: Any, W: np.ndarray) -> np.ndarray:
    """Mean loss of every client of an objective at every flat model, (R, K)."""
    fed, R, y = p.federation, len(W), p.row_labels
    if R >= MANY and fed.d <= _NARROW and p.n_outputs == 1 and not fed.is_sparse:
        from fedconvex.kernels.losses_of_many import totals_of_many  # not loaded for one model

        every, sizes = np.empty((R, fed.K)), fed.sizes[:, None].astype(np.float64)
        for lo in range(0, R, _SIDE_BY_SIDE):
            V = np.ascontiguousarray(W[lo : lo + _SIDE_BY_SIDE].T)
            totals = np.empty((fed.K, V.shape[1]))
            totals_of_many(p.row_loss, fed.X, y, fed.ptr, V, np.empty((6, V.shape[1])), np.empty(4), totals)
            totals /= sizes  # row by row, which takes a third of the time of column by column
            every[lo : lo + _SIDE_BY_SIDE] = totals.T
        return every
    out, step = np.zeros((R, fed.K)), max(1, CHUNK // (R * p.n_outputs))
    if fed.n <= step:
        row_losses.client_totals(p.row_loss, p._scores(W, 0, fed.n), y, fed.ptr.copy(), out)  # one array type
        return out / fed.sizes
    for lo in range(0, fed.n, step):
        hi = min(fed.n, lo + step)
        first = int(np.searchsorted(fed.ptr, lo, side="right")) - 1
        last = int(np.searchsorted(fed.ptr, hi, side="left"))
        ends, sums = np.clip(fed.ptr[first : last + 1], lo, hi) - lo, np.zeros((R, last - first))
        row_losses.client_totals(p.row_loss, p._scores(W, lo, hi), y[lo:hi], ends, sums)
        out[:, first:last] += sums
    return out / fed.sizes


class AroundOptimum(NamedTuple):
    """F(w) = F(v) + g'(w - v) + ‖R (w - v)‖^2/2 of a quadratic loss: no sum over rows, and no cancellation near v.

    R is triangular, from a QR decomposition of the rows, so that it is off by rounding of its columns only and errors
    enter ‖R (w - v)‖ to first order, as they enter scores; of the Hessian itself they would be squares.
    """

    v: np.ndarray  # (d,) the solution
    value: float  # F(v), summed over the rows
    g: np.ndarray  # (d,) grad F(v), almost zero
    off: np.ndarray  # (d,) what rounding may do to g
    R: np.ndarray  # (d, d) R'R is the Hessian

    @classmethod
    def of(cls, p: Any, v: np.ndarray) -> AroundOptimum:
        """Return the form of an objective about a flat model."""
        F, g = p.value_gradient(v)
        return cls(v, F, g, p.gradient_rounding(v, F), p.hessian_root(v))

    def at(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return F of R flat models, and how far rounding may have moved F - F(v): both (R,)."""
        D = W - self.v
        unit, apart = 8.0 * _EPS * (len(self.v) + 1), np.abs(D)
        length = np.linalg.norm(D @ self.R.T, axis=1)
        slip = unit * (apart @ np.linalg.norm(self.R, axis=0))  # of ‖R (w - v)‖
        off = length * slip + 0.5 * slip**2 + apart @ (self.off + unit * np.abs(self.g))
        return self.value + (D @ self.g + 0.5 * length**2), off
