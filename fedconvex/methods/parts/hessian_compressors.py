"""Compressors of symmetric matrices: what a client of FedNL sends in the place of a Hessian.

A compressor turns a matrix D, given as its upper triangle, into floats and whole-number codes, and these back into one.
Triangles have N = d (d + 1)/2 numbers, row after row. It declares delta in (0, 1], for all symmetric D:

    ‖C(D) - D‖_F^2 <= (1 - delta) ‖D‖_F^2
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type, whole, wrong_type


@equal_by_type
class RankR(NamedTuple):
    """The r eigenvalues of largest modulus with their eigenvectors: contractive with delta = r/d.

    Parameters
    ----------
    r : int
        The rank; r (d + 1) floats are sent.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import RankR
    >>> C = RankR(1)
    >>> values, codes = C.compress(np.array([1.0, 0.0, -3.0]), 2)
    >>> C.expand(values, codes, 2).tolist(), C.delta(2), C.bits(2)
    ([0.0, 0.0, -3.0], 0.5, 0)
    """

    r: int

    def delta(self, d: int) -> float:
        """Return r/d: the r largest of d squares have at least r/d of their sum."""
        return self.r / d

    def bits(self, d: int) -> int:
        """Return 0: there are no codes."""
        return 0

    def most(self, d: int) -> int:
        """Return the largest r."""
        return d

    def compress(self, D: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return r eigenvalues and r unit eigenvectors, (r (d + 1),), and no codes."""
        none = np.zeros(0, dtype=np.int64)
        if not np.isfinite(D).all():
            return np.full(self.r * (d + 1), np.nan), none  # the driver calls it divergence
        lam, V = np.linalg.eigh(full(D, d))
        top = np.argsort(-np.abs(lam), kind="stable")[: self.r]
        return np.concatenate([lam[top], V[:, top].T.ravel()]), none

    def expand(self, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the upper triangle (N,) of the matrix that was sent."""
        return self.average(np.ones(1), values[None], codes[None], d)

    def add(self, triangle: np.ndarray, alpha: float, values: np.ndarray, codes: np.ndarray, d: int) -> None:
        """Add alpha times what was sent to an upper triangle (N,), in place."""
        triangle += alpha * self.expand(values, codes, d)

    def average(self, weights: np.ndarray, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the upper triangle (N,) of the weighted sum of m matrices, without any of them."""
        if values.shape[1] != self.r * (d + 1) or codes.shape[1]:
            raise bad("compressed reply", f"have {self.r} eigenvalues and eigenvectors of {d} entries", "others")
        lam, V = (weights[:, None] * values[:, : self.r]).ravel(), values[:, self.r :].reshape(-1, d)
        return ((V.T * lam) @ V)[upper(d)]


@equal_by_type
class SymmetricTopK(NamedTuple):
    """The k entries of the upper triangle that hold most of the Frobenius norm: contractive with delta = k/N.

    Entries off the diagonal stand twice in the matrix, so their squares count twice. Ranked by modulus alone, delta may
    be k/d^2 only: for the matrix of ones whose diagonal is slightly larger, k <= d.

    Parameters
    ----------
    k : int
        Entries that are sent, with their places.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import SymmetricTopK
    >>> C = SymmetricTopK(1)
    >>> values, codes = C.compress(np.array([3.0, 2.5, 0.0]), 2)
    >>> C.expand(values, codes, 2).tolist(), C.bits(2)  # 2 * 2.5^2 > 3^2
    ([0.0, 2.5, 0.0], 2)
    """

    k: int

    def delta(self, d: int) -> float:
        """Return k/N: the k largest of N terms of ‖D‖_F^2 have at least k/N of their sum."""
        return self.k / (d * (d + 1) // 2)

    def bits(self, d: int) -> int:
        """Return the bits of a message's places."""
        return self.k * math.ceil(math.log2(max(d * (d + 1) // 2, 1)))

    def code_range(self, d: int) -> tuple[int, int]:
        """Return the least and the largest place in the upper triangle."""
        return 0, d * (d + 1) // 2 - 1

    def most(self, d: int) -> int:
        """Return the largest k."""
        return d * (d + 1) // 2

    def compress(self, D: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return k entries, and where they stand in the upper triangle, row after row."""
        where = np.flatnonzero(D != 0.0)  # of sparse rows, entries are mostly zero
        if where.size > self.k:
            share = D[where]
            share *= share * _times(d)[where]
            where = np.sort(where[np.argpartition(share, -self.k)[-self.k :]])
        elif where.size < self.k:
            where = np.sort(np.concatenate([where, np.flatnonzero(D == 0.0)[: self.k - where.size]]))
        return D[where], where

    def expand(self, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the upper triangle (N,) with these entries, zero elsewhere."""
        return self.average(np.ones(1), values[None], codes[None], d)

    def add(self, triangle: np.ndarray, alpha: float, values: np.ndarray, codes: np.ndarray, d: int) -> None:
        """Add alpha times what was sent to an upper triangle (N,), in place."""
        triangle[codes] += alpha * values

    def average(self, weights: np.ndarray, values: np.ndarray, codes: np.ndarray, d: int) -> np.ndarray:
        """Return the upper triangle (N,) of the weighted sum of m matrices, without any of them."""
        N = d * (d + 1) // 2
        if codes.shape != values.shape or codes.min(initial=0) < 0 or codes.max(initial=0) >= N:
            raise bad("compressed reply", f"have places in 0, ..., {N - 1}, one for each value", "others")
        return np.bincount(codes.ravel(), (weights[:, None] * values).ravel(), N)


@lru_cache(8)
def upper(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns (N,) of the upper triangle, row after row."""
    return np.triu_indices(d)


@lru_cache(8)
def _times(d: int) -> np.ndarray:
    """Return how often entries (N,) of the upper triangle stand in the matrix."""
    rows, columns = upper(d)
    return np.where(rows == columns, 1.0, 2.0)


def full(triangle: np.ndarray, d: int) -> np.ndarray:
    """Return the symmetric matrices (..., d, d) of upper triangles (..., N)."""
    out, (rows, columns) = np.empty((*triangle.shape[:-1], d, d)), upper(d)
    out[..., rows, columns] = out[..., columns, rows] = triangle
    return out


def norm(triangle: np.ndarray, d: int) -> np.ndarray:
    """Return the Frobenius norm (1,) of a symmetric matrix given as its upper triangle (N,)."""
    return np.sqrt(np.array([_times(d) @ (triangle * triangle)]))


def valid(who: str, C: Any) -> Any:
    """Return a compressor of matrices, one of those here by its name too ("RankR(1)"), or raise.

    Raises
    ------
    TypeError, ValueError
        If it is another thing, or its setting is no whole number of at least 1.
    """
    if isinstance(C, str) and (found := re.fullmatch(r"(RankR|SymmetricTopK)\((\d+)\)", C.strip())):
        C = {"RankR": RankR, "SymmetricTopK": SymmetricTopK}[found[1]](int(found[2]))
    if isinstance(C, type) or not all(
        callable(getattr(C, name, None)) for name in ("compress", "add", "average", "bits")
    ):
        raise wrong_type(who, "be a compressor of matrices such as RankR(1)", f"{C!r}")
    for name in getattr(C, "_fields", ()):
        C = C._replace(**{name: whole(f"{who}: {name}", getattr(C, name), low=1)})
    return C


def check_fit(who: str, C: Any, d: int) -> None:
    """Raise if a compressor takes more than a matrix (d, d) has.

    Raises
    ------
    ValueError
    """
    for name in getattr(C, "_fields", ()):
        if getattr(C, name) > C.most(d):
            raise bad(f"{who}.compressor: {name}", f"be at most {C.most(d)}, for {d} parameters", getattr(C, name))
