"""The margin bound of boosting with several sources, with the complexity of the union of the sources' classifiers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedconvex._check import numeric, real
from fedconvex.theorems.agnostic_generalisation import cover_bound, vertex_bound
from fedconvex.theorems.parts.theorem import Statement
from fedconvex.theory.bound import Bound

__all__ = ["STATEMENT", "margin_bound", "margin_vertex_bound"]

SOURCE = "Cortes, Mohri, Storcheus, Suresh 2021 (re-derived; complexity of the union)"

STATEMENT = Statement(
    page="boosting_margins",
    title="The margin bound of boosting with several sources",
    setting="""
An ensemble f = sum alpha_{l,j} Q(l|.) h_{l,j} with alpha >= 0, sum alpha = 1, h_{l,j} in H_l; p domains with
distributions D_k and m_k independent rows each; lambda in Lambda, a subset of the simplex. Phi_rho(u) = min(1, max(0,
1 - u/rho)).
""",
    assumptions="""
Q does not depend on the labels or rows that the bound is used with, and rho is fixed in advance.
""",
    statement="""
With probability >= 1 - delta, for all alpha with sum 1 and all lambda in Lambda, P_{D_lambda}(y f <= 0) <=
Ehat_lambda[Phi_rho(y f)] + (2/rho) R(union of Q_l H_l, lambda) + eps + sqrt(max s log(|Lambda_eps|/delta)/(2 m)), the
skewness s and the cover Lambda_eps as for the agnostic bounds; and on the whole simplex max_k {Ehat_k[Phi_rho(y f)] +
(2/rho) R_k + sqrt(log(p/delta)/(2 m_k))}.
""",
    source="""
Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021 (form of the margin bound; their text
was not at hand). Derived here; the form by vertices is this project's.
""",
    differs="""
The bound is often quoted with max_l R(Q_l H_l) in place of the complexity of the union. That is too small: a
combination across sources may choose the source after seeing the signs. One classifier per source, Q(l|x_i) =
1_{i=l}, two points: each R(Q_l H_l) = 0, being that of a single function, while sup over the combinations has mean
1/4 (`test_the_union_is_what_a_combination_across_sources_has`).
""",
    meaning="""
It speaks about samples, not about a run of one problem: it is checked over samples in `tests/test_boosting_theory.py`.
""",
    proof="""
Let ‖α‖₁ ≤ 1 and Φ_ρ(u) = min(1, max(0, 1-u/ρ)) ≥ 1_{u≤0}. Apply the agnostic bound
([agnostic_generalisation](agnostic_generalisation.md)) to the losses Φ_ρ(y f) ∈ [0, 1]. Φ_ρ is 1/ρ-Lipschitz: by
contraction (Ledoux, Talagrand 1991) their weighted complexity is at most (1/ρ) R({y f}, λ) = (1/ρ) R({f}, λ), labels
being absorbed by the signs. A supremum over a convex hull of a linear function is one over its generators, the union
of the sets Q_l H_l = {x ↦ Q(l|x)h(x): h ∈ H_l} (and 0). Hence with probability ≥ 1-δ, for all f and all λ ∈ Λ,

    P_{D_λ}(y f ≤ 0) ≤ Ê_λ[Φ_ρ(y f)] + (2/ρ) R(∪_l Q_l H_l, λ) + ε + √(max s log(|Λ_ε|/δ)/(2m)),

and on the whole simplex, without a cover, max_k {Ê_k[Φ_ρ(y f)] + (2/ρ) R_k + √(log(p/δ)/(2m_k))}. ∎ Q must not depend
on the labels or rows the bound is used with: fit it on other unlabelled points. For all stumps R is computed by the
exact stump search under random signs (`stump_complexity`).
""",
)


def margin_bound(empirical: float, complexity: float, skew: float, *, rho: float, **sample: Any) -> Bound:
    """Return the margin bound by an eps-cover of Lambda.

    Parameters
    ----------
    empirical : float
        Largest over Lambda of the mixture of `margin_losses`.
    complexity, skew : float
        Largest over Lambda of R(union of Q_l H_l, lambda), see `stump_complexity`, and of the skewness.
    rho : float
        Margin, fixed in advance.
    rows, cover, eps, delta
        As for `fedconvex.theorems.agnostic_generalisation.cover_bound`.

    Examples
    --------
    >>> from fedconvex.theorems.boosting_margins import margin_bound
    >>> round(margin_bound(0.1, 0.01, 2.0, rho=0.5, rows=10_000, cover=101, eps=0.01, delta=0.05).value, 4)
    0.1776
    """
    r = real("margin_bound: rho", rho, low=0.0, strict=True)
    complexity = real("margin_bound: complexity", complexity, low=0.0)
    return replace(cover_bound(empirical, complexity / r, skew, **sample), source=f"{SOURCE}, margin form")


def margin_vertex_bound(empirical: Any, complexity: Any, sizes: Any, *, rho: float, delta: float) -> Bound:
    """Return the margin bound on the whole simplex by its vertices, without a cover.

    Parameters
    ----------
    empirical, complexity, sizes : array (p,)
        `margin_losses`, R(union of Q_l H_l) at every vertex, and m_k.
    rho, delta : float

    Examples
    --------
    >>> from fedconvex.theorems.boosting_margins import margin_vertex_bound
    >>> round(margin_vertex_bound([0.1, 0.2], [0.01, 0.015], [5000, 5000], rho=0.5, delta=0.05).value, 4)
    0.2792
    """
    r = real("margin_vertex_bound: rho", rho, low=0.0, strict=True)
    found = vertex_bound(empirical, numeric("complexity", complexity) / r, sizes, delta=delta)
    return replace(found, source=f"{SOURCE}, margin form by vertices (docs/theory/boosting.md)")
