"""Dual points where coordinates are free of l2 and of the penalty.

There P is 0, P* is infinite but at 0, and a dual point must satisfy sum_i c_i a_ic x_ij = 0 for every free feature j
and every output c. The slopes do so at the best free coordinates, up to rounding; but a sum that is nearly 0 certifies
nothing. Rows are multiplied by factors s_i in [0, 1], which leaves them in the domain of l* where l is bounded below:

1. with g_i the products a_ic x_ij, s = 1 + G eta for the least eta that makes G'(c s) = 0, G'cG eta = -G'c 1
2. divided by the largest, if it exceeds 1
3. what rounding leaves, |G'(c s)| <= r, another step of that kind would take away, and change s_i by at most
   off_i = ‖g_i‖ ‖r‖/lambda, lambda the least eigenvalue of G'cG less its rounding (all with columns of equal size): the
   exact factors lie within ``off``, and bounds are taken of the worst of them

For multinomial losses the products of the last class are left out: the a_ic of a row sum to 0.

Where lambda > 0, sums of l with P bound the free coordinates: if F did not grow along a direction beta of theirs, every
l_i would have to grow as slowly as a'_i (x_i'beta), at both a' = s a and a, hence g_i'beta = 0 for all rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.solvers.certificates.slopes import EPS, Slopes, absolute_rounding

SMALL = 1e-13  # share of the slopes that factors may change without u being computed again


def along_free(problem: Any, c: np.ndarray, at: Slopes, norms: np.ndarray) -> Slopes | None:
    """Return the slopes with factors of the rows, and u at the entries that the penalty sees; None if there are none.

    Without free coordinates these are the slopes themselves.
    """
    if problem.free is None:
        return at
    seen = problem.penalised_entries
    if not at.A.any():  # all sums are 0
        return at._replace(u=at.u[seen], bounded=False)
    G = _products(problem, at.A)
    m = G.shape[1]
    noise = np.resize(absolute_rounding(problem) * (c @ np.abs(problem.free_columns)), m)
    some = np.any(G, axis=0)
    known = _factors(c, G[:, some], noise[some])
    if known is None:
        return None
    s, off = known
    at = at._replace(bounded=bool(some.all()))
    sizes = np.sqrt(c @ (at.A * at.A))
    changed, left = _size(c, (s - 1.0)[:, None] * at.A), _size(c, off[:, None] * at.A)
    if float(changed.max()) <= SMALL * float(sizes.max()):
        return at._replace(u=at.u[seen], rows=s, off=off, left=left + changed)
    new = -(problem.federation.by_column.T @ ((c * s)[:, None] * at.A))
    return at._replace(u=np.ascontiguousarray(new.T).ravel()[seen], rows=s, off=off, left=left)


def _products(problem: Any, A: np.ndarray) -> np.ndarray:
    """Return G (n, m), the products a_ic x_ij of the free features j."""
    outputs = A[:, :-1] if problem.traits.multinomial else A
    return np.asarray(outputs[:, :, None] * problem.free_columns[:, None, :]).reshape(len(A), -1)


def _factors(c: np.ndarray, G: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return s and off (n,), or None where there are no such factors, or rounding hides them.

    ``noise`` (m,) is what errors of the slopes may add to the sums.
    """
    size = np.sqrt(c @ (G * G))
    if not size.all():
        return None  # underflow
    G = G / size
    n, m = G.shape
    lam, V = np.linalg.eigh((G * c[:, None]).T @ G)
    least = float(lam[0]) - (16.0 + math.sqrt(n)) * EPS * m * float(lam[-1])
    if not least > 1e-8:
        return None
    s = np.ones(n)
    for _ in range(2):
        s = s - G @ (V @ ((V.T @ (G.T @ (c * s))) / lam))
    if not float(s.max()) > 0.0:
        return None
    s /= max(1.0, float(s.max()))
    rest = np.abs(G.T @ (c * s)) + (16.0 + math.sqrt(n)) * EPS * (np.abs(G).T @ (c * np.abs(s))) + noise / size
    off = np.linalg.norm(G, axis=1) * (float(np.linalg.norm(rest)) / least) * (1.0 + 1e-12)
    shorter = 1.0 / (float((s + off).max()) + 8.0 * EPS)  # s + off is below 1
    s, off = s * shorter, off * shorter + 4.0 * EPS
    return (s, off) if float((s - off).min()) >= 0.0 else None


def _size(c: np.ndarray, A: np.ndarray) -> np.ndarray:
    """‖.‖_c of every output's slopes, (C,)."""
    return np.asarray(np.sqrt(c @ (A * A)))
