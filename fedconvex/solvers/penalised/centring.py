"""Models beside free coordinates, in columns that are centred by the free ones.

Free coordinates are moved along with the others, b = b' - M w with M the coefficients of least squares of the other
columns on the free ones: the scores are X w + B b = (X - B M) w + B b'. The penalty, l2 and proximal maps see w alone,
and stay what they are. With an intercept X - B M has means 0, so that columns far from 0, such as years, neither cost
steps nor make exponential losses overflow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Centring(NamedTuple):
    """The change of coordinates of flat models.

    Attributes
    ----------
    M : array (q, s)
        Coefficients of s columns on the q free ones.
    free : bool array (d,)
    """

    M: np.ndarray
    free: np.ndarray

    @classmethod
    def of(cls, problem: Any) -> Centring | None:
        """Return that of a problem; None without free coordinates, or where the coefficients overflow."""
        if problem.free is None:
            return None
        with np.errstate(all="ignore"):
            root = np.sqrt(problem.per_row)[:, None]
            B = root * problem.free_columns
            Q = root * np.linalg.pinv(B).T if np.isfinite(B).all() else np.full(B.shape, np.nan)
            M = np.asarray(problem.federation.by_column.T @ Q).T[:, ~problem.free]
        return cls(M, problem.free) if np.isfinite(M).all() else None

    def model(self, v: np.ndarray) -> np.ndarray:
        """Return the model (w, b) of (w, b')."""
        return self._moved(v, -1.0)

    def inside(self, w: np.ndarray) -> np.ndarray:
        """Return (w, b') of the model (w, b)."""
        return self._moved(w, 1.0)

    def gradient(self, g: np.ndarray) -> np.ndarray:
        """Return the gradient by (w, b') from that by (w, b)."""
        G = g.reshape(-1, self.free.size).copy()
        G[:, ~self.free] -= G[:, self.free] @ self.M
        return np.asarray(G.ravel())

    def explained(self, problem: Any) -> np.ndarray:
        """Return what the free columns explain of the squares sum_i c_i x_ij^2 of the others, (s,)."""
        return np.asarray(problem.per_row @ (problem.free_columns @ self.M) ** 2)

    def _moved(self, w: np.ndarray, sign: float) -> np.ndarray:
        W = w.reshape(-1, self.free.size).copy()
        W[:, self.free] += sign * (W[:, ~self.free] @ self.M.T)
        return np.asarray(W.ravel())
