"""Covariances of estimates: from the model, and robust ones from sums of squared scores (HC, clustered, jackknife).

A site computes its `Meat` from its own rows; meats are added up, and the server puts them between two J^-1. Rows of
weight s stand for s equal rows. With u_i = l'_i x_i and h_i = l''_i x_i'J^-1 x_i (MacKinnon and White, J. Econometrics
29, 1985; leverages as in McCullagh and Nelder, 1989, Section 12.5):

HC0 = J^-1 (sum s_i u_i u_i') J^-1, HC1 = HC0 n/(n - p), HC2 and HC3 with u_i/(1 - h_i)^(1/2), u_i/(1 - h_i);
CR0 = J^-1 (sum_k U_k U_k') J^-1, U_k = sum of client k's s_i u_i, CR1 = CR0 K/(K - 1) (n - 1)/(n - p).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad

CERTAIN = 1e-10  # rows with 1 - h_i below it fit themselves exactly


class Meat(NamedTuple):
    """Sums over rows."""

    hc0: np.ndarray  # (p, p) sum s u u'
    hc2: np.ndarray  # (p, p) divided by 1 - h
    hc3: np.ndarray  # (p, p) divided by (1 - h)^2
    cr: np.ndarray  # (p, p) U_k U_k'
    clients: float  # K
    leverage: float  # sum s h: p, or the rank
    certain: float  # rows with h = 1, for which HC2 and HC3 do not exist


def added(parts: Sequence[Meat]) -> Meat:
    """Return the sum of several sites' sums."""
    return Meat(*(sum(entries[1:], entries[0]) for entries in zip(*parts, strict=True)))


def centred(X: np.ndarray, curvatures: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the rows of one client with its own intercept less their mean, and 1/J_aa.

    Means have the weights s l''. What is eliminated with the intercept is thereby accounted for: the block of slopes of
    any sandwich is that of these rows between two inverses of the Schur complement.
    """
    weights = s * curvatures
    total = float(weights.sum())
    if not total > 0.0:
        return np.zeros_like(X), 0.0
    return X - (weights @ X) / total, 1.0 / total


def leverages(X: np.ndarray, curvatures: np.ndarray, inverse: np.ndarray, own: float = 0.0) -> np.ndarray:
    """Return h_i (n,) of rows X (n, p); ``own`` is 1/J_aa where the client has its own intercept and X is centred."""
    return curvatures * (np.einsum("ni,ij,nj->n", X, inverse, X) + own)


def meat(
    X: np.ndarray,
    slopes: np.ndarray,
    curvatures: np.ndarray,
    s: np.ndarray,
    inverse: np.ndarray,
    own_intercept: bool = False,
) -> Meat:
    """Return the sums of one client.

    Parameters
    ----------
    X : array (n, p)
        The client's rows.
    slopes, curvatures, s : arrays (n,)
        l', l'' and weights at the common estimate.
    inverse : array (p, p)
        J^-1 over all clients; with ``own_intercept`` the inverse of the slopes' Schur complement.
    own_intercept : bool
        Whether the client has an intercept of its own that X does not hold.
    """
    X, own = centred(X, curvatures, s) if own_intercept else (X, 0.0)
    h = leverages(X, curvatures, inverse, own)
    certain = 1.0 - h <= CERTAIN
    rest = np.where(certain, 1.0, 1.0 - h)

    def square(weights: np.ndarray) -> np.ndarray:
        return (X.T * (weights * s * slopes**2)) @ X

    U = X.T @ (s * slopes)
    return Meat(
        square(np.ones_like(h)), square(1.0 / rest), square(1.0 / rest**2), np.outer(U, U), 1.0, float(s @ h),
        float(s[certain].sum()),
    )  # fmt: skip


def model(inverse: np.ndarray, phi: float) -> np.ndarray:
    """Return phi J^-1."""
    return phi * inverse


def robust(kind: str, inverse: np.ndarray, total: Meat, n: float, p: int) -> np.ndarray:
    """Return a robust covariance.

    Parameters
    ----------
    kind : "HC0", "HC1", "HC2", "HC3", "CR0" or "CR1"
        Which one; CR are clustered by client.
    inverse : array (q, q)
        J^-1, or its block of slopes; observed information.
    total : Meat
        Sums over all clients.
    n : float
        Rows, sum s.
    p : int
        Coefficients, site intercepts among them.

    Raises
    ------
    ValueError
        If HC2 or HC3 is asked for although a row determines a coefficient alone, or CR1 with one client, or n <= p.
    """
    if kind in ("HC2", "HC3") and total.certain > 0.0:
        cure = "take HC0 or HC1, or drop the column that only one row determines"
        raise bad(kind, "have leverages below 1", f"{total.certain:g} rows of leverage 1", cure)
    if kind in ("HC1", "CR1") and n <= p:
        raise bad(kind, "have more rows than coefficients", f"{n:g} rows, {p} coefficients", "take HC0 or CR0")
    if kind == "CR1" and total.clients < 2:
        raise bad(kind, "have at least 2 clients", f"{total.clients:g}", "take HC1 to HC3")
    filling, factor = {
        "HC0": (total.hc0, 1.0),
        "HC1": (total.hc0, n / (n - p) if n > p else np.nan),
        "HC2": (total.hc2, 1.0),
        "HC3": (total.hc3, 1.0),
        "CR0": (total.cr, 1.0),
        "CR1": (total.cr, clustered_factor(total.clients, n, p)),
    }[kind]
    return factor * (inverse @ filling @ inverse)


def clustered_factor(K: float, n: float, p: int) -> float:
    """Return K/(K - 1) (n - 1)/(n - p): sandwich's HC1 with clusters, Stata's, clubSandwich's CR1S."""
    return K / (K - 1.0) * (n - 1.0) / (n - p) if K > 1 and n > p else float("nan")


def jackknife(left_out: np.ndarray) -> np.ndarray:
    """Return (K - 1)/K sum_k (b_(k) - mean)(b_(k) - mean)' of the estimates (K, p), each without one client.

    Raises
    ------
    ValueError
        If there are fewer than two clients.
    """
    K = len(left_out)
    if K < 2:
        raise bad("the jackknife over clients", "have at least 2 clients", K)
    away = left_out - left_out.mean(axis=0)
    return (K - 1.0) / K * (away.T @ away)
