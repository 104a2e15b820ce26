"""Gaussians by mean and precision, diagonal or full, and how they are sent: packed natural parameters."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Gaussian(NamedTuple):
    """N(mean, precision^-1)."""

    mean: np.ndarray  # (d,)
    precision: np.ndarray  # (d,) a diagonal, or (d, d)

    @property
    def shift(self) -> np.ndarray:
        """Precision times mean, (d,)."""
        return times(self.precision, self.mean)

    @property
    def root(self) -> np.ndarray:
        """Standard deviations (d,), or the upper triangular C (d, d) with covariance CC'.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the precision is not positive definite.
        """
        if self.precision.ndim == 1:
            if not (self.precision > 0.0).all():
                raise np.linalg.LinAlgError("a precision is not positive")
            return 1.0 / np.sqrt(self.precision)
        return np.triu(np.linalg.inv(np.linalg.cholesky(self.precision)).T)

    @property
    def variances(self) -> np.ndarray:
        """Variances of the coordinates, (d,)."""
        C = self.root
        return C * C if C.ndim == 1 else np.sum(C * C, axis=1)

    @property
    def covariance(self) -> np.ndarray:
        """Covariance, (d, d)."""
        C = self.root
        return np.diag(C * C) if C.ndim == 1 else C @ C.T

    def scores(self, X: np.ndarray, root: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the scores of rows X, (n,) each; ``root`` is `root` where it is known."""
        C = self.root if root is None else root
        return X @ self.mean, (X * X) @ (C * C) if C.ndim == 1 else np.sum((X @ C) ** 2, axis=1)


def times(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return A v for a diagonal (d,) or full (d, d) matrix A."""
    return A * v if A.ndim == 1 else A @ v


def dense(A: np.ndarray) -> np.ndarray:
    """Return a diagonal (d,) or full (d, d) matrix as (d, d)."""
    return np.diag(A) if A.ndim == 1 else A


def _log_det(A: np.ndarray) -> float:
    """Return the logarithm of the determinant of a positive definite matrix, diagonal or full."""
    root = np.sqrt(A) if A.ndim == 1 else np.diag(np.linalg.cholesky(A))
    return 2.0 * float(np.log(root).sum())


def divergence(q: Gaussian, p: Gaussian) -> float:
    """Return KL(q || p)."""
    off, C = q.mean - p.mean, q.root
    trace = p.precision @ (C * C) if C.ndim == 1 else np.sum(C * (dense(p.precision) @ C))
    quadratic = off @ times(p.precision, off)
    return 0.5 * float(trace + quadratic - q.mean.size + _log_det(q.precision) - _log_det(p.precision))


@lru_cache(maxsize=8)
def _upper(d: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(d)


def packed_size(d: int, diagonal: bool) -> int:
    """Return how many numbers a precision is."""
    return d if diagonal else d * (d + 1) // 2


def pack(A: np.ndarray) -> np.ndarray:
    """Return a diagonal as it is, of a symmetric matrix the upper triangle, (d (d + 1)/2,)."""
    return A if A.ndim == 1 else A[_upper(len(A))]


def unpack(v: np.ndarray, d: int, diagonal: bool) -> np.ndarray:
    """Return the diagonal (d,) or the symmetric matrix (d, d) that was packed."""
    if diagonal:
        return v
    A = np.empty((d, d))
    i, j = _upper(d)
    A[i, j] = A[j, i] = v
    return A


def natural(precision: np.ndarray, shift: np.ndarray) -> Gaussian:
    """Return the Gaussian with these natural parameters.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the precision is not positive definite.
    """
    if precision.ndim == 1:
        return Gaussian(shift / precision, precision)
    np.linalg.cholesky(precision)
    return Gaussian(np.linalg.solve(precision, shift), precision)
