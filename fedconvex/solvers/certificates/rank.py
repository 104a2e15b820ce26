"""Upper bounds of the exact rank of a matrix of doubles, proved by relations between its columns or rows.

A pivoted QR factorisation suggests which columns depend on others, and with which coefficients. Coefficients close to
fractions of small denominators give whole numbers v, and X v = 0 is then checked without rounding: every product with
a power of two is exact, and the correctly rounded sum of doubles is 0 only where the exact one is. Copies of columns
(up to powers of two), empty columns, and indicator columns that add up to others are found so; a column that rounding
moved off the span of the others is not one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.linalg as sla
import scipy.sparse as sp

_EPS = float(np.finfo(float).eps)
_BLOCK = 1 << 21  # entries held at once
_LARGEST = 1 << 20  # largest whole number in a relation
_FEW = 1000  # rows up to which relations between rows are looked for


def rank_bound(X: Any) -> int:
    """Return a number that the rank of X, dense or CSR, certainly does not exceed.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.solvers.certificates.rank import rank_bound
    >>> X = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    >>> rank_bound(X), rank_bound(X * 0.1), rank_bound(np.array([[1.0, 1.0], [1.0, 1.0 + 2**-52]]))
    (2, 2, 2)
    """
    n, d = X.shape
    bound = min(n, d - _relations(X))
    return min(bound, n - _relations(sp.csr_array(X.T) if sp.issparse(X) else X.T)) if n <= _FEW else bound


def _relations(X: Any) -> int:
    """Return how many independent v with X v = 0 are proved."""
    sizes = abs(X).max(axis=0)
    sizes = np.asarray(sizes.toarray() if sp.issparse(sizes) else sizes).ravel()
    exponents = np.frexp(sizes)[1]
    R = np.zeros((0, X.shape[1]))
    for rows, Y in _scaled(X, exponents):
        if (np.ldexp(Y, exponents) != rows).any():
            return 0  # entries of one column differ too much for a common scale
        R = np.asarray(np.linalg.qr(np.vstack([R, Y]), mode="r"))
    pivoted: Any = sla.qr(R, mode="r", pivoting=True)
    R, order = pivoted
    diagonal = np.abs(np.diag(R))
    rank = int((diagonal > 8.0 * _EPS * (X.shape[1] + math.sqrt(X.shape[0])) * diagonal[0]).sum())
    columns = X.tocsc() if sp.issparse(X) else X
    found = 0
    for j, c in enumerate(sla.solve_triangular(R[:rank, :rank], R[:rank, rank:]).T if rank else R.T[:, :0]):
        v = _whole(c)
        if v is not None:
            at = np.append(order[:rank], order[rank + j])[v != 0]
            found += _vanishes(columns[:, at], exponents[at], v[v != 0])
    return found


def _scaled(X: Any, exponents: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of rows, dense, and the same times 2^-exponents."""
    X = X.tocsr() if sp.issparse(X) else X
    step = max(1, _BLOCK // X.shape[1])
    for lo in range(0, X.shape[0], step):
        rows = X[lo : lo + step]
        rows = rows.toarray() if sp.issparse(rows) else rows
        yield rows, np.ldexp(rows, -exponents)


def _whole(c: np.ndarray) -> np.ndarray | None:
    """Return whole numbers proportional to (c, -1) up to rounding, or None."""
    near = np.rint(c)
    scale = 1
    if np.abs(c - near).max(initial=0.0) > 1e-6:
        fractions = [Fraction(x).limit_denominator(1000) for x in c.tolist()]
        scale = math.lcm(*(f.denominator for f in fractions)) if len(fractions) <= _FEW else _LARGEST + 1
        if scale > _LARGEST or max(abs(float(f) - x) for f, x in zip(fractions, c, strict=True)) > 1e-6:
            return None
        near = np.array([float(f * scale) for f in fractions])
    v = np.append(near, -scale)
    return v.astype(np.int64) if np.abs(v).max() <= _LARGEST else None


def _vanishes(columns: Any, exponents: np.ndarray, v: np.ndarray) -> bool:
    """Whether the columns, scaled by 2^-exponents, times whole numbers v sum to zero in every row, exactly."""
    bits = [b for b in range(int(np.abs(v).max()).bit_length()) if (np.abs(v) >> b & 1).any()]
    for _, Y in _scaled(columns, exponents):
        T = np.hstack([Y * (np.sign(v) * (np.abs(v) >> b & 1) * 2.0**b) for b in bits])
        grid = T * 2.0**20
        if (grid == np.rint(grid)).all() and np.abs(grid).sum(axis=1).max() < 2.0**53:
            if T.sum(axis=1).any():  # whole numbers: sums do not round
                return False
        elif any(math.fsum(row) != 0.0 for row in T.tolist()):
            return False
    return True
