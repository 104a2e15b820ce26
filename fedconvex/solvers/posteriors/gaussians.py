"""Gaussians by mean and precision, diagonal or full, and how they are sent: packed natural parameters."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dtrtri


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
        return _inverse(np.linalg.cholesky(self.precision).T)

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


def _inverse(U: np.ndarray) -> np.ndarray:
    """Return the inverse of an upper triangular matrix."""
    found, singular = dtrtri(U, lower=0)
    if singular:
        raise np.linalg.LinAlgError("a root is singular")
    return np.ascontiguousarray(found)


def times(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return A v for a diagonal (d,) or full (d, d) matrix A."""
    return A * v if A.ndim == 1 else A @ v


def dense(A: np.ndarray) -> np.ndarray:
    """Return a diagonal (d,) or full (d, d) matrix as (d, d)."""
    return np.diag(A) if A.ndim == 1 else A


def divergence(q: Gaussian, p: Gaussian) -> Any:
    """Return KL(q || p); with a first axis of q to several, that of each."""
    full, off = q.precision.ndim > q.mean.ndim, q.mean - p.mean
    C, log_det = roots(q.precision, full)
    trace = np.sum(C * (p.precision @ C), axis=(-2, -1)) if full else np.sum(C * C * p.precision, axis=-1)
    quadratic = np.sum(off * ((p.precision @ off[..., None])[..., 0] if full else p.precision * off), axis=-1)
    return 0.5 * (trace + quadratic - off.shape[-1] + log_det - roots(p.precision, full)[1])


@lru_cache(maxsize=8)
def _upper(d: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(d)


def packed_size(d: int, diagonal: bool) -> int:
    """Return how many numbers a precision is."""
    return d if diagonal else d * (d + 1) // 2


def pack(A: np.ndarray) -> np.ndarray:
    """Return a diagonal as it is, of a symmetric matrix the upper triangle, (d (d + 1)/2,)."""
    return A if A.ndim == 1 else A[_upper(len(A))]


def pack_each(A: np.ndarray, full: bool) -> np.ndarray:
    """Return diagonals (..., d) as they are, of symmetric matrices (..., d, d) the upper triangles."""
    if not full:
        return A
    d = A.shape[-1]
    return A.reshape(*A.shape[:-2], d * d)[..., np.ravel_multi_index(_upper(d), (d, d))]


@lru_cache(maxsize=8)
def _packed(d: int) -> np.ndarray:
    """Return where an entry of a symmetric matrix stands among the packed ones, (d, d)."""
    where, (i, j) = np.empty((d, d), dtype=int), _upper(d)
    where[i, j] = where[j, i] = np.arange(i.size)
    return where


def unpack(v: np.ndarray, d: int, diagonal: bool) -> np.ndarray:
    """Return the diagonals (..., d) or the symmetric matrices (..., d, d) that were packed."""
    return v if diagonal else np.take(v, _packed(d), axis=-1)


def roots(P: np.ndarray, full: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return `Gaussian.root` of precisions (..., d) or (..., d, d), and the logarithms of their determinants, (...).

    Raises
    ------
    numpy.linalg.LinAlgError
        If one of them is not positive definite.
    """
    if not full:
        if not (P > 0.0).all():
            raise np.linalg.LinAlgError("a precision is not positive")
        root = np.sqrt(P)
        return 1.0 / root, 2.0 * np.log(root).sum(axis=-1)
    L = np.linalg.cholesky(P)
    C = np.empty_like(L)
    for one, inverse in zip(L.reshape(-1, *L.shape[-2:]), C.reshape(-1, *L.shape[-2:]), strict=True):
        inverse[:] = _inverse(one.T)
    return C, 2.0 * np.log(np.diagonal(L, axis1=-2, axis2=-1)).sum(axis=-1)


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


def natural_each(precisions: np.ndarray, shifts: np.ndarray) -> list[Gaussian | None]:
    """Return the Gaussians with these natural parameters, (K, d) or (K, d, d) and (K, d); None where there is none."""
    try:
        if precisions.ndim == 2:
            means = shifts / precisions
        else:
            np.linalg.cholesky(precisions)
            means = np.linalg.solve(precisions, shifts[:, :, None])[:, :, 0]
        return [Gaussian(m, P) for m, P in zip(means, precisions, strict=True)]
    except np.linalg.LinAlgError:
        if len(shifts) == 1:
            return [None]
    return [natural_each(P[None], shift[None])[0] for P, shift in zip(precisions, shifts, strict=True)]
