"""The margin bound of boosting with several sources, with the complexity of the union of the sources' classifiers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.families.boosting.edges import margin_losses
from fedconvex.families.boosting.theorems.paths import (
    NAME,
    Path,
    along,
    boosting_constants,
    boosts,
    line_search,
    loss_rounding,
    path_of,
    problem_of,
)
from fedconvex.families.boosting.theorems.sources import (
    as_stumps,
    breast_cancer_sources,
    sources_space,
    three_sources,
    timid_classifier,
    two_sources,
)
from fedconvex.problems import BoostingProblem
from fedconvex.theorems.agnostic_generalisation import cover_bound, vertex_bound
from fedconvex.theorems.kit import *

__all__ = ["MARGIN_LOSS", "STATEMENT", "THEOREMS", "empirical_margin_loss", "margin_bound", "margin_vertex_bound"]

SOURCE = "Cortes, Mohri, Storcheus, Suresh 2021 (re-derived; complexity of the union)"
MARGIN_LOSS = Quantity(
    "largest mean of Phi_rho(y f/sum alpha) over a mixture of the domains, rho = 1/sum alpha beyond the median margin",
    "margin loss",
    least=0.0,
)

STATEMENT = Statement(
    page="boosting_margins",
    title="The margin bound of boosting with several sources",
    scope=OF_ENSEMBLES._replace(weights=not_for("shares of rows are counted")),
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

The part that training controls (`boosting-margins`): for any alpha >= 0 with A = sum alpha > 0, any rho > 0 and exp,

    max over lambda of Ehat_lambda[Phi_rho(y f/A)] <= c(A rho) F(alpha),  c(x) = 1 for x <= 1, e^(x-1)/x beyond,

so that a small exponential loss on all mixtures means large margins on all mixtures; c is the least such factor.
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
The generalisation bound speaks about samples, not about a run of one problem: it is checked over samples in
`tests/boosting/test_boosting_theory.py`. Its empirical term is what MultiBoost minimises, up to c: `verify` checks that
on runs, at the rho where c is least against the median row. With `boosting-progress`, or AdaBoost's product, it becomes
a bound that is known from the edges alone.
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

**Training.** Let v = y f, x = Aρ, so that Φ_ρ(v/A) = min(1, max(0, 1 - v/x)). Φ_ρ(v/A) e^v is at most 1 for v ≤ 0, 0
beyond x, and (1 - v/x)e^v between, which rises to v = x - 1 and falls after it: for x ≥ 1 its maximum is e^{x-1}/x ≥ 1,
for x ≤ 1 it is 1, at v = 0. So Φ_ρ(v/A) ≤ c(x) e^{-v} row by row, and on average over any mixture. ∎
""",
    loose="""
Attained where nearly all rows have the margin rho - 1/A: one timid classifier that is right on all rows but one comes
within 3 %. Where margins spread the bound is 1.5 to 3 times the truth. The generalisation bound: by its complexity.
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

    Raises
    ------
    ValueError, TypeError
        If rho is not positive, or complexity negative.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting_margins import margin_bound
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

    Raises
    ------
    ValueError, TypeError
        If rho is not positive, or complexity holds no numbers.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting_margins import margin_vertex_bound
    >>> round(margin_vertex_bound([0.1, 0.2], [0.01, 0.015], [5000, 5000], rho=0.5, delta=0.05).value, 4)
    0.2792
    """
    r = real("margin_vertex_bound: rho", rho, low=0.0, strict=True)
    found = vertex_bound(empirical, numeric("complexity", complexity) / r, sizes, delta=delta)
    return replace(found, source=f"{SOURCE}, margin form by vertices (docs/theory/boosting.md)")


def empirical_margin_loss(loss: float, *, total: float, rho: float) -> Bound:
    """Return c(A rho) F(alpha), which bounds the margin loss of every mixture of the domains.

    Parameters
    ----------
    loss : float
        F(alpha), the largest exponential loss of a mixture.
    total, rho : float
        A = sum alpha, positive, and the margin.

    Raises
    ------
    ValueError, TypeError
        If loss or total is negative, or rho not positive.
    AssumptionError
        If total is zero: an ensemble without classifiers.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting_margins import empirical_margin_loss
    >>> round(empirical_margin_loss(0.1, total=4.0, rho=0.5).value, 6)  # e/2 times 0.1
    0.135914
    """
    F, A = real("empirical_margin_loss: loss", loss, low=0.0), real("empirical_margin_loss: total", total, low=0.0)
    x = A * real("empirical_margin_loss: rho", rho, low=0.0, strict=True)
    requires = require(f"{SOURCE}, training", Hypothesis("an ensemble with a classifier", f"A = {A:g}", A > 0.0))
    power = x - 1.0 - math.log(x) + math.log(F) if x > 1.0 and F > 0.0 else -math.inf  # the factor alone may overflow
    value = F if x <= 1.0 else math.exp(power) if power < 709.0 else math.inf
    return Bound({"loss": value}, MARGIN_LOSS, f"{SOURCE}, training (docs/theory/boosting_margins.md)", requires)


# ---------------------------------------------------------------- read off a setting


def _margin(s: Setting, path: Path, T: int) -> tuple[float, float]:
    """Return A, and the median margin plus 1/A."""
    m = path.margins[T]
    total = float(np.sum(path.alpha[T])) if path.alpha[T].size else float(path.steps[:T].sum() + path.alpha[0].sum())
    require(NAME, Hypothesis("an ensemble with a classifier", f"sum alpha = {total:g}", total > 1e-6))
    return total, max(float(np.median(m)), 0.0) / total + 1.0 / total


def _read(s: Setting) -> Reading:
    checked, p = boosts(s), problem_of(s)
    checked += require(NAME, Hypothesis("exponential loss", f"{p.loss!r}", p.loss == Exponential()))
    path = path_of(s, s.rounds)
    total, rho = _margin(s, path, s.rounds)
    F = float(p.objective(p.losses_of(path.margins[s.rounds])[0]))
    return Reading({"loss": F, "total": total, "rho": rho}, checked)


def _margin_loss(s: Setting, path: Path, T: int) -> float:
    p, (total, rho) = problem_of(s), _margin(s, path, T)
    return float(p.objective(margin_losses(path.margins[T] / total, p.bounds, rho)))


def _margin_rounding(s: Setting, path: Path, T: int) -> float:
    """Margins are off by eps of the steps' sizes; a margin loss has the slope 1/(A rho), at most 1."""
    return 4.0 * loss_rounding(s, path, T) / max(float(problem_of(s).losses_of(path.margins[T])[0].max()), 1e-300)


THEOREMS = (
    Theorem(
        name="boosting-margins",
        title="MultiBoost, margins of a small loss",
        quantity=MARGIN_LOSS,
        bound=empirical_margin_loss,
        read=_read,
        exact=along(_margin_loss, _margin_rounding),
        kind=BoostingProblem,
        constants=boosting_constants,
        statement=STATEMENT,
        says="On every mixture of the domains the margin loss is at most e^(x-1)/x times the loss, x = rho sum alpha.",
        loose="Attained where nearly all rows have one margin; 1.5 to 3 where margins spread.",
        method=line_search(smoothing=20.0),
        rounds=30,
        checks=(
            two_sources,
            three_sources,
            breast_cancer_sources,
            Check(timid_classifier, line_search(), 1),
            Check(breast_cancer_sources, line_search(), 5),
        ),
        space=sources_space(as_stumps),
        adapt=as_stumps,
    ),
)
