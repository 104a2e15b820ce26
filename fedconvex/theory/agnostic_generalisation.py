"""Generalisation of agnostic learning: skewness, weighted Rademacher complexity, covers, and the bounds made of them.

Setting
    p domains with distributions D_k and m_k rows each, m = sum m_k, mbar = (m_k/m); losses in [0, M]; mixtures
    lambda in Lambda, a subset of the simplex; D_lambda = sum lambda_k D_k, and Dhat_lambda its empirical version.
Assumptions
    Rows are independent, those of domain k from D_k.
Statement
    Skewness s(lambda‖mbar) = sum lambda_k^2/mbar_k = chi^2(lambda‖mbar) + 1, so that s/m = sum lambda_k^2/m_k.
    R(G, lambda) = E sup_{g in G} sum_k (lambda_k/m_k) sum_i sigma_{k,i} g(z_{k,i}), sigma fair signs.
    Cover     with probability >= 1 - delta, for all hypotheses and all lambda in Lambda,
              L_{D_lambda} <= L_{Dhat_lambda} + 2 max R + M eps + M sqrt(max s log(|Lambda_eps|/delta)/(2m)),
              Lambda_eps an l1 eps-cover of Lambda by points of Lambda; maxima over Lambda. For any distribution D, add
              M min ‖D - D_lambda‖_1 (M/2 suffices).
    Vertices  Lambda the simplex: with probability >= 1 - delta, for all hypotheses,
              max_k L_{D_k} <= max_k {L_{Dhat_k} + 2 R_k + M sqrt(log(p/delta)/(2 m_k))}, R_k = R at the vertex k.
    VC        zero-one losses, VC dimension d <= m: R(G, lambda) <= sqrt(2 s (d/m) log(e m/d)).
    Finite    H hypotheses: R(G, lambda) <= M sqrt(2 s log(H)/m).
Source
    Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019, arXiv:1902.00146 (skewness, weighted Rademacher
    complexity, form of the cover bound and of the VC bound). FROM-MEMORY; re-derived in docs/theory/agnostic.md, with
    the constants above. The vertex bound is this project's.
What differs
    On the whole simplex the cover is not needed: a linear function of lambda is largest at a vertex, and p vertices
    make a union bound of log p instead of log |Lambda_eps| ~ p log(1/eps). Survey texts print s(Lambda‖mbar) =
    max 1/m_k for the simplex; it is max 1/mbar_k = m/min m_k, larger by the factor m.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex._check import bad, numeric, real, whole
from fedconvex.theory.bound import AGNOSTIC_RISK, Bound, Hypothesis

__all__ = [
    "cover_bound",
    "vertex_bound",
]

SOURCE = "Mohri, Sivek, Suresh 2019, arXiv:1902.00146 (re-derived)"


def cover_bound(
    empirical: float,
    complexity: float,
    skew: float,
    *,
    rows: int,
    cover: int,
    eps: float,
    delta: float,
    largest: float = 1.0,
    distance: float = 0.0,
) -> Bound:
    """Return the bound by an eps-cover.

    Parameters
    ----------
    empirical : float
        L_{Dhat_lambda} of the hypothesis (its maximum over Lambda for a bound of all mixtures at once).
    complexity, skew : float
        Largest R(G, lambda) and s(lambda‖mbar) over Lambda.
    rows, cover : int
        m and |Lambda_eps|.
    eps, delta : float
        Radius of the cover, 0 where it is Lambda itself, and the probability of failure.
    largest : float
        M.
    distance : float
        min over Lambda of ‖D - D_lambda‖_1, for a distribution D outside.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_generalisation import cover_bound
    >>> from fedconvex.theory.complexity import cover_size
    >>> bound = cover_bound(0.1, 0.02, 2.0, rows=10_000, cover=cover_size(2, 0.01), eps=0.01, delta=0.05)
    >>> round(bound.value, 4)
    0.1776
    """
    e, d = real("eps", eps, low=0.0), _probability(delta)
    M, m = real("largest", largest, low=0.0, strict=True), whole("rows", rows, low=1)
    size = whole("cover", cover, low=1)
    terms = {
        "empirical": real("empirical", empirical),
        "complexity": 2.0 * real("complexity", complexity, low=0.0),
        "cover radius": M * e,
        "deviation": M * math.sqrt(real("skew", skew, low=0.0) * (math.log(size) - math.log(d)) / (2.0 * m)),
        "distance of the target": M * real("distance", distance, low=0.0),
    }
    return Bound(terms, AGNOSTIC_RISK, f"{SOURCE}, cover form", _bounded(M))


def vertex_bound(empirical: Any, complexity: Any, sizes: Any, *, delta: float, largest: float = 1.0) -> Bound:
    """Return the bound by the vertices of the simplex, with the terms of the domain that attains it.

    Parameters
    ----------
    empirical, complexity, sizes : array (p,)
        L_{Dhat_k}, R_k and m_k.
    delta, largest : float
        Probability of failure, and M.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_generalisation import vertex_bound
    >>> round(vertex_bound([0.1, 0.2], [0.02, 0.03], [5000, 5000], delta=0.05).value, 4)
    0.2792
    """
    d, M = _probability(delta), real("largest", largest, low=0.0, strict=True)
    L, R, m = (
        np.atleast_1d(numeric(name, v))
        for name, v in zip(("empirical", "complexity", "sizes"), (empirical, complexity, sizes), strict=True)
    )
    if not L.shape == R.shape == m.shape or L.ndim != 1:
        raise bad("vertex_bound", "be given one number per domain, three times", f"{L.shape}, {R.shape}, {m.shape}")
    if (m < 1).any():
        raise bad("vertex_bound: sizes", "be at least 1", f"{m.min():g}")
    deviation = M * np.sqrt(math.log(m.size / d) / (2.0 * m))
    k = int(np.argmax(L + 2.0 * R + deviation))
    terms = {"empirical": float(L[k]), "complexity": float(2.0 * R[k]), "deviation": float(deviation[k])}
    source = "fedconvex, agnostic bound by vertices (docs/theory/agnostic.md)"
    return Bound(terms, AGNOSTIC_RISK, source, (*_bounded(M), Hypothesis("Lambda is the simplex", f"p = {m.size}")))


# ---------------------------------------------------------------- small things


def _bounded(M: float) -> tuple[Hypothesis, ...]:
    return (
        Hypothesis("losses in [0, M]", f"M = {M:g}"),
        Hypothesis("independent rows, those of domain k from D_k", "as given"),
    )


def _probability(delta: float) -> float:
    if not 0.0 < real("delta", delta) < 1.0:
        raise bad("delta", "lie strictly between 0 and 1", delta)
    return float(delta)
