"""The softmax objective beside the worst domain.

Setting
    p domains with objectives F_k; h(w) = max_k F_k(w); F_mu(w) = (1/mu) log sum_k exp(mu F_k(w)), mu > 0.
Assumptions
    None. (For SoftmaxFedAvg to find the minimiser of F_mu, convexity and small steps.)
Statement
    Sandwich  h <= F_mu <= h + log(p)/mu everywhere, that is |F_mu - h - log(p)/(2 mu)| <= log(p)/(2 mu).
    Optimum   a minimiser w_mu of F_mu has h(w_mu) - min h <= log(p)/mu.
Source
    Standard (log-sum-exp). Both ends of the sandwich are attained: the upper one where all F_k are equal, the lower one
    in the limit where one F_k exceeds the others. Optimum: h(w_mu) <= F_mu(w_mu) <= F_mu(w) <= h(w) + log(p)/mu.
What differs
    ApproxFedAvg (Ro et al. 2021) does not minimise F_mu: docs/agnostic.md.
"""

from __future__ import annotations

import math

from fedconvex._check import real, whole
from fedconvex.theory.bound import SOFTMAX_DISTANCE, SOFTMAX_OPTIMUM, Bound, Hypothesis

__all__ = ["softmax_optimum", "softmax_sandwich"]

SOURCE = "log-sum-exp (docs/theory/agnostic.md)"


def softmax_sandwich(*, domains: int, mu: float) -> Bound:
    """Return log(p)/(2 mu), the largest distance of F_mu from the middle of the sandwich.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_softmax import softmax_sandwich
    >>> round(softmax_sandwich(domains=2, mu=10.0).value, 6)
    0.034657
    """
    value, requires = _half(domains, mu)
    return Bound({"half the width": value}, SOFTMAX_DISTANCE, SOURCE, requires)


def softmax_optimum(*, domains: int, mu: float) -> Bound:
    """Return log(p)/mu, the most by which the softmax optimum misses the agnostic one.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_softmax import softmax_optimum
    >>> round(softmax_optimum(domains=2, mu=10.0).value, 6)
    0.069315
    """
    value, requires = _half(domains, mu)
    return Bound({"width": 2.0 * value}, SOFTMAX_OPTIMUM, SOURCE, requires)


def _half(domains: int, mu: float) -> tuple[float, tuple[Hypothesis, ...]]:
    p, m = whole("domains", domains, low=1), real("mu", mu, low=0.0, strict=True)
    return math.log(p) / (2.0 * m), (Hypothesis("domains and sharpness", f"p = {p}, mu = {m:g}"),)
