"""Second derivatives of means over rows as matrices, formed from blocks of rows: nothing of the size of X is made."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk, ssyrk

from fedconvex.kernels import row_losses

BLOCK = 2048  # rows at a time
_SYRK = 1024  # rows for one call of BLAS syrk: OpenBLAS takes a tenth longer for twice as many


def rows_between(X: Any, lo: int, hi: int) -> Any:
    """Return X[lo:hi]; all rows without the copy of their entries that slices of a CSR are."""
    return X if hi - lo == X.shape[0] else X[lo:hi]


def mirror(H: np.ndarray) -> None:
    """Write what stands below the diagonal of H above it too."""
    for lo in range(0, len(H), 64):  # nothing of the size of H is made beside it
        H[lo : lo + 64, lo + 64 :] = H[lo + 64 :, lo : lo + 64].T
        square = H[lo : lo + 64, lo : lo + 64]
        np.copyto(square, square.T, where=_above(len(square)))


@lru_cache(maxsize=64)
def _above(d: int) -> np.ndarray:
    """Return which entries of a matrix (d, d) stand above its diagonal."""
    return np.tri(d, k=-1, dtype=bool).T


def weighted_gram(X: np.ndarray, h: np.ndarray, s: np.ndarray | None = None, g: np.ndarray | None = None) -> np.ndarray:
    """X' diag(h) X for h >= 0 and dense X, half of it computed; if s (n,) is given, g += X's too."""
    H = np.zeros((X.shape[1], X.shape[1]), order="F")
    if len(X) > BLOCK and (h == h[0]).all():  # least squares whose rows weigh the same
        add_gram(X, None, H, True, s, g)
        H *= h[0]
    else:
        add_gram(X, h, H, True, s, g)
    mirror(H)
    return H.T  # symmetric, and in C order


def add_gram(
    X: np.ndarray, h: np.ndarray | None, H: np.ndarray, lower: bool, s: np.ndarray | None = None, g: Any = None
) -> None:
    """H += X' diag(h) X in one triangle, h >= 0, X dense, H (d, d) in Fortran order of double or single precision.

    BLAS takes blocks of rows that stay in cache, which are scaled in double precision; without h all rows weigh 1. With
    s also g += X's, where s is 0 for rows of which h is 0.
    """
    rows = np.arange(0) if h is None else np.flatnonzero(h)
    if 2 * rows.size >= len(X):  # smoothed hinges have few rows in their band
        rows = np.arange(0)
    n, root = rows.size or len(X), None if h is None else np.sqrt(h)[:, None]
    syrk, least, entries = (dsyrk, 512, 1 << 18) if H.itemsize == 8 else (ssyrk, 128, 1 << 16)
    step = max(least, min(_SYRK, entries // X.shape[1]))  # copies of many columns stay small beside the Hessian
    for lo in range(0, n, step):
        part: Any = rows[lo : lo + step] if rows.size else slice(lo, lo + step)
        A = X[part]
        if s is not None:
            g += s[part] @ A
        if rows.size and root is not None:
            A *= root[part]
        elif root is not None:
            A = A * root[part]
        A = A.astype(H.dtype, copy=False)
        syrk(1.0, A.T, beta=1.0, c=H, lower=lower, overwrite_c=1)
        del A  # before the next block is made


def least_squares_at_zero(problem: Any) -> tuple[float, np.ndarray, np.ndarray]:
    """Return F, its gradient -X'(p y) and its Hessian at w = 0 of a squared loss and dense rows.

    No scores are computed. Sums of the gradient are of n/8 + 8 terms at most, whatever BLAS does in a block of rows.
    """
    fed, g = problem.federation, np.zeros(problem.size)
    share = problem.per_row * fed.y
    if fed.n >= 16 * _SYRK:  # one pass: blocks are short
        H = weighted_gram(fed.X, problem.per_row, share, g)
    else:
        step = -(-fed.n // 8)
        for lo in range(0, fed.n, step):
            g += share[lo : lo + step] @ fed.X[lo : lo + step]
        H = weighted_gram(fed.X, problem.per_row)
    H.flat[:: problem.size + 1] += problem.ridge
    return 0.5 * float((share * fed.y).sum()), -g, H


def least_squares_product(problem: Any, v: np.ndarray) -> np.ndarray:
    """Return H v of a squared loss, all rows of weight 1: the gradient at v for labels 0, in one pass over the rows."""
    fed, g = problem.federation, np.zeros(problem.size)
    none, values = np.zeros(fed.n), np.empty(fed.K)
    row_losses.pooled_gradient(problem.loss, fed.rows, none, fed.ptr, problem.row_weights, v, values, g)
    return np.asarray(g + problem.ridge * v)


def softmax_hessian(problem: Any, w: np.ndarray) -> np.ndarray:
    """Blocks sum_i (p_k/n_k) P_ic (1[c = e] - P_ie) x_i x_i' at a flat model, plus l2."""
    fed, C, d = problem.federation, problem.n_outputs, problem.federation.d
    P, per_row = problem.probabilities(w), problem.per_row
    H = np.empty((C, d, C, d))
    for c in range(C):
        for e in range(c + 1):
            h = per_row * P[:, c] * ((c == e) - P[:, e])
            parts = (_product(fed.X[lo : lo + BLOCK], h[lo : lo + BLOCK, None]) for lo in range(0, fed.n, BLOCK))
            H[c, :, e, :] = sum(parts)
            H[e, :, c, :] = H[c, :, e, :].T
    flat = H.reshape(problem.size, problem.size)
    flat.flat[:: problem.size + 1] += problem.ridge
    return flat


def _product(X: Any, h: np.ndarray) -> np.ndarray:
    """X' diag(h) X of a block of rows, dense or CSR, with h of any sign."""
    if isinstance(X, np.ndarray):
        return (X * h).T @ X
    return (X.multiply(h).tocsr().T @ X).toarray()
