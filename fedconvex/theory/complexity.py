"""Weighted Rademacher complexity, skewness of mixtures, and covers of the simplex.

p domains with m_k rows each, m = sum m_k, mbar = (m_k/m); R(G, lambda) = E sup over g in G of
sum_k (lambda_k/m_k) sum_i sigma_{k,i} g(z_{k,i}) with fair signs sigma (Mohri, Sivek, Suresh, ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, codes, finite, numeric, real, takes_rng, vector, whole
from fedconvex.draws import key_from_seed
from fedconvex.theory.bound import Hypothesis, require

__all__ = [
    "Complexity",
    "compositions",
    "cover_size",
    "finite_complexity",
    "linear_complexity",
    "rademacher",
    "simplex_cover",
    "skewness",
    "vc_complexity",
]

_ENUMERATED = 18  # rows up to which all sign vectors are enumerated
_COVER_LIMIT = 2_000_000  # points of a cover that are listed


class Complexity(NamedTuple):
    """An empirical Rademacher complexity, with the standard error of its Monte-Carlo estimate (0 if exact).

    Attributes
    ----------
    value : float
        E of the supremum over hypotheses of sum_i lambda_k/m_k s_i g(z_i), s_i fair signs.
    error : float
        Standard error of the Monte-Carlo estimate; 0 where all sign vectors were taken.
    signs : int
        Sign vectors that were used.

    Examples
    --------
    >>> from fedconvex.theory.complexity import rademacher
    >>> rademacher([[1.0, -1.0], [-1.0, 1.0]], [0, 0], [1.0])  # two hypotheses on two rows: all four sign vectors
    Complexity(value=0.5, error=0.0, signs=4)
    """

    value: float
    error: float
    signs: int  # sign vectors used


def skewness(domain_weights: Any, sizes: Any) -> Any:
    """Return s(lambda‖mbar) = sum lambda_k^2/mbar_k for mixtures (..., p) and row counts (p,).

    Parameters
    ----------
    domain_weights : array (..., p)
        Mixtures lambda, each on the simplex.
    sizes : array (p,)
        Rows m_k of the domains; mbar_k are their shares.

    Raises
    ------
    ValueError, TypeError
        If a size is below 1, or domain_weights is no mixture of as many domains.

    Examples
    --------
    >>> from fedconvex.theory.complexity import skewness
    >>> skewness([0.25, 0.75], [100, 300]), skewness([1.0, 0.0], [100, 300])
    (1.0, 4.0)
    """
    lam, m = _mixtures(domain_weights, sizes)
    out = np.sum(lam**2 * (m.sum() / m), axis=-1)
    return float(out) if out.ndim == 0 else out


def cover_size(p: int, eps: float) -> int:
    """Return the number of points of `simplex_cover`: C(q + p - 1, p - 1) with q = ceil(p/(2 eps)).

    Parameters
    ----------
    p : int
        Domains.
    eps : float
        Radius of the cover in the l1 norm, positive.

    Raises
    ------
    ValueError, TypeError
        If p is below 1, or eps below 1e-9.

    Examples
    --------
    >>> from fedconvex.theory.complexity import cover_size
    >>> cover_size(3, 0.5)
    10
    """
    p, q = _grid(p, eps)
    return math.comb(q + p - 1, p - 1)


def simplex_cover(p: int, eps: float) -> np.ndarray:
    """Return all mixtures with coordinates in {0, 1/q, ..., 1}, q = ceil(p/(2 eps)): every mixture is within eps in l1.

    Round the coordinates of q lambda down, and as many of them up, those of the largest remainders f, as the sum needs:
    r = sum f. Moved are sum_up (1 - f) + sum_down f = 2 sum_down f <= 2 (p - r) r/p <= p/2.

    Parameters
    ----------
    p : int
        Domains.
    eps : float
        Radius of the cover in the l1 norm, positive.

    Raises
    ------
    ValueError
        If the cover has more than two million points (`cover_size` counts them without listing them).

    Examples
    --------
    >>> from fedconvex.theory.complexity import simplex_cover
    >>> simplex_cover(2, 0.5)
    array([[0. , 1. ],
           [0.5, 0.5],
           [1. , 0. ]])
    """
    p, q = _grid(p, eps)
    if math.comb(q + p - 1, p - 1) > _COVER_LIMIT:
        raise bad("simplex_cover", f"have at most {_COVER_LIMIT} points", f"{math.comb(q + p - 1, p - 1)}", "raise eps")
    return np.array(list(compositions(q, p)), dtype=float) / q


@takes_rng
def rademacher(
    values: Any, domain: Any, domain_weights: Any, *, signs: int = 4096, seed: int = 0, rng: Rng = None
) -> Complexity:
    """Return the weighted Rademacher complexity of finitely many hypotheses on given rows.

    Parameters
    ----------
    values : array (H, n)
        Loss of every hypothesis on every row.
    domain : array (n,) of int
        Domain of every row, 0..p-1, each present.
    domain_weights : array (p,)
        lambda.
    signs : int
        Random sign vectors, beyond 18 rows; up to there all 2^n are enumerated.
    seed : int
        Key of the sign vectors.

    Raises
    ------
    ValueError, TypeError
        If values is no matrix, hypotheses by rows, of finite numbers, domain_weights no mixture, or signs below 2.

    Examples
    --------
    >>> from fedconvex.theory.complexity import rademacher
    >>> rademacher([[0.0, 0.0], [1.0, 1.0]], [0, 1], [0.5, 0.5]).value
    0.25
    """
    V = numeric("rademacher: values", values)
    if V.ndim != 2 or not V.size:
        raise bad("rademacher: values", "have shape (hypotheses, rows), not empty", f"{V.shape}")
    finite("rademacher: values", V)
    code = codes("rademacher: domain", domain, V.shape[1])
    lam, m = _mixture(domain_weights, np.bincount(code))
    weighted = V * (lam / m)[code]
    n = V.shape[1]
    if n <= _ENUMERATED:
        total = 1 << n
        bits = (np.arange(total)[:, None] >> np.arange(n)) & 1
        tops = ((2.0 * bits - 1.0) @ weighted.T).max(axis=1)
        return Complexity(float(tops.mean()), 0.0, total)
    count = whole("rademacher: signs", signs, low=2)
    rng = np.random.default_rng(int(key_from_seed(seed)))
    tops = np.concatenate(
        [
            (rng.choice([-1.0, 1.0], size=(min(512, count - i), n)) @ weighted.T).max(axis=1)
            for i in range(0, count, 512)
        ]
    )
    return Complexity(float(tops.mean()), float(tops.std(ddof=1) / math.sqrt(count)), count)


def linear_complexity(
    row_norms: Any, domain: Any, domain_weights: Any, *, radius: float, lipschitz: float = 1.0
) -> float:
    """Return a bound of R(G, lambda) for the hypotheses x -> l(w'x), ‖w‖ <= radius, l Lipschitz.

    It is radius lipschitz sqrt(sum c_i^2‖x_i‖^2), c_i = lambda_k/m_k, by contraction (Ledoux, Talagrand 1991) and
    Jensen's inequality.

    Parameters
    ----------
    row_norms : array (n,)
        ‖x_i‖.
    domain : array (n,) of int
        Domain of every row, 0, ..., p-1.
    domain_weights : array (p,)
        lambda.
    radius : float
        Largest ‖w‖.
    lipschitz : float
        Of the loss in the score.

    Raises
    ------
    ValueError, TypeError
        If row_norms and domain are not one number per row, domain_weights is no mixture, or radius or lipschitz is
        negative.

    Examples
    --------
    >>> from fedconvex.theory.complexity import linear_complexity
    >>> linear_complexity([3.0, 4.0], [0, 1], [0.5, 0.5], radius=2.0)
    5.0
    """
    norms = vector("linear_complexity: row_norms", row_norms)
    code = codes("linear_complexity: domain", domain, norms.size)
    lam, m = _mixture(domain_weights, np.bincount(code))
    r = real("linear_complexity: radius", radius, low=0.0)
    return r * real("linear_complexity: lipschitz", lipschitz, low=0.0) * float(np.linalg.norm((lam / m)[code] * norms))


def vc_complexity(domain_weights: Any, sizes: Any, dimension: int) -> float:
    """Return sqrt(2 s (d/m) log(e m/d)), the bound of R(G, lambda) for zero-one losses of VC dimension d <= m.

    Massart's lemma: at most (e m/d)^d loss vectors, each of Euclidean norm at most sqrt(sum lambda_k^2/m_k).

    Parameters
    ----------
    domain_weights : array (p,)
        lambda.
    sizes : array (p,)
        Rows of the domains, m in all.
    dimension : int
        d, the VC dimension.

    Raises
    ------
    ValueError, TypeError
        If dimension is below 1, or domain_weights no mixture.
    AssumptionError
        If dimension exceeds the number of rows.

    Examples
    --------
    >>> from fedconvex.theory.complexity import vc_complexity
    >>> round(vc_complexity([0.5, 0.5], [500, 500], 3), 4)
    0.2021
    """
    d = whole("vc_complexity: dimension", dimension, low=1)
    m = float(np.sum(_mixture(domain_weights, sizes)[1]))
    require("VC bound", Hypothesis("dimension <= rows", f"d = {d}, m = {m:g}", d <= m))
    return math.sqrt(2.0 * float(skewness(domain_weights, sizes)) * d / m * math.log(math.e * m / d))


def finite_complexity(domain_weights: Any, sizes: Any, hypotheses: int, *, largest: float = 1.0) -> float:
    """Return M sqrt(2 s log(H)/m), the bound of R(G, lambda) for H hypotheses: Massart's lemma.

    The vectors lambda_k g(z)/m_k have a norm of at most M sqrt(sum lambda_k^2/m_k).

    Parameters
    ----------
    domain_weights : array (p,)
        lambda.
    sizes : array (p,)
        Rows of the domains.
    hypotheses : int
        H.
    largest : float
        M, the largest absolute loss.

    Raises
    ------
    ValueError, TypeError
        If largest is negative, hypotheses below 1, or domain_weights no mixture.

    Examples
    --------
    >>> from fedconvex.theory.complexity import finite_complexity
    >>> finite_complexity([0.5, 0.5], [50, 50], 1), round(finite_complexity([1.0], [100], 8), 4)
    (0.0, 0.2039)
    """
    M, H = real("largest", largest, low=0.0), whole("finite_complexity: hypotheses", hypotheses, low=1)
    rows = float(np.sum(_mixture(domain_weights, sizes)[1]))
    return M * math.sqrt(2.0 * float(skewness(domain_weights, sizes)) * math.log(H) / rows)


def _mixture(domain_weights: Any, sizes: Any) -> tuple[np.ndarray, np.ndarray]:
    lam, m = _mixtures(domain_weights, sizes)
    if lam.ndim != 1:
        raise bad("domain_weights", "be one mixture", f"shape {lam.shape}")
    return lam, m


def _mixtures(domain_weights: Any, sizes: Any) -> tuple[np.ndarray, np.ndarray]:
    m, lam = np.atleast_1d(numeric("sizes", sizes)), numeric("domain_weights", domain_weights)
    if m.ndim != 1 or not (m >= 1).all():
        raise bad("sizes", "be one number of rows per domain, at least 1", f"{m}")
    if lam.shape[-1:] != m.shape:
        raise bad("domain_weights", f"have {m.size} entries, one per domain", f"shape {lam.shape}")
    if not (lam >= 0.0).all() or not np.abs(lam.sum(axis=-1) - 1.0).max(initial=0.0) <= 1e-9:
        raise bad("domain_weights", "be nonnegative and sum to one", f"{lam}")
    return lam, m


def _grid(p: int, eps: float) -> tuple[int, int]:
    p, e = whole("simplex_cover: p", p, low=1), real("simplex_cover: eps", eps, low=1e-9)
    return p, max(1, math.ceil(p / (2.0 * e) - 1e-12))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all vectors of nonnegative whole numbers with a given sum.

    Parameters
    ----------
    total : int
        The sum, at least 0.
    parts : int
        Length of the vectors, 1 to 100.

    Raises
    ------
    ValueError, TypeError
        If total is negative, or parts not in 1, ..., 100.

    Examples
    --------
    >>> from fedconvex.theory.complexity import compositions
    >>> list(compositions(2, 2))
    [(0, 2), (1, 1), (2, 0)]
    """
    return _compositions(whole("compositions: total", total), whole("compositions: parts", parts, low=1, high=100))


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)
