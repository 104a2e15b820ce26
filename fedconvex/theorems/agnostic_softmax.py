"""The softmax objective beside the worst domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import lambertw

from fedconvex.kernels.domain_sums import domain_counts
from fedconvex.methods import SoftmaxFedAvg
from fedconvex.simplex.uncertainty import log_sum_exp
from fedconvex.solvers.minimax.agnostic import solve_minimax, solve_softmax
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.domain_instances import (
    breast_cancer_domains,
    domains_of_slopes,
    opposite_labels,
    three_domains,
)

__all__ = ["SOFTMAX_DISTANCE", "SOFTMAX_OPTIMUM", "STATEMENT", "THEOREMS", "softmax_optimum", "softmax_sandwich"]

SOFTMAX_DISTANCE = Quantity(
    "largest |F_mu(w_t) - max_k F_k(w_t) - log(p)/(2 mu)| over the rounds t <= T", "distance from the middle", least=0.0
)
SOFTMAX_OPTIMUM = Quantity(
    "max_k F_k(w_mu) - min over w of max_k F_k(w), w_mu the minimiser of the softmax objective",
    by_rounds=False,
    least=0.0,
)
SOURCE = "log-sum-exp (docs/theory/agnostic_softmax.md)"

STATEMENT = Statement(
    page="agnostic_softmax",
    title="Agnostic learning: the softmax objective",
    scope=Scope(
        holds("it is about any F_k"),
        holds("it is about any F_k"),
        not_for("the domains' objectives that are measured leave it out"),
    ),
    setting="""
p domains with objectives F_k; h(w) = max_k F_k(w); F_mu(w) = (1/mu) log sum_k exp(mu F_k(w)), mu > 0.
""",
    assumptions="Sandwich: none. Optimum: F_k convex and differentiable.",
    statement="""
Sandwich  h <= F_mu <= h + log(p)/mu everywhere, that is |F_mu - h - log(p)/(2 mu)| <= log(p)/(2 mu).
Optimum   a minimiser w_mu of F_mu has h(w_mu) - min h <= W((p - 1)/e)/mu, W e^W = (p - 1)/e: Lambert's function.
""",
    source="Sandwich: standard (log-sum-exp). Optimum: this project; without convexity the sandwich gives log(p)/mu.",
    differs="""
ApproxFedAvg, which a survey suggests for F_mu (its Algorithm 2, beside AgnosticFedAvg of Ro et al. 2021), does not
minimise it: see `docs/agnostic.md`. Nor is F_mu equivalent to the loss of the top k domains: every domain has a
positive weight.
""",
    meaning="""
A run of `SoftmaxFedAvg` shows both sides of the sandwich in one number, largest |F_μ - h - log(p)/(2μ)| along it; the
optimum is that of both exact solutions.
""",
    proof="""
F_μ = (1/μ) log Σ exp(μF_k), h = max F_k. One summand is exp(μh), all p are at most that: h ≤ F_μ ≤ h + log(p)/μ. Hence
for its minimiser w_μ and every w, h(w_μ) ≤ F_μ(w_μ) ≤ F_μ(w) ≤ h(w) + log(p)/μ. The upper end is attained where all F_k
are equal, the lower one as one of them leaves the others behind. ∎

Optimum. ∇F_μ = Σ σ_k ∇F_k with σ_k proportional to exp(μF_k(w_μ)), so w_μ minimises the convex Σ σ_k F_k, and min h ≥
min Σ σ_k F_k = Σ σ_k F_k(w_μ). Put b_k = μ(h - F_k)(w_μ) ≥ 0, one of them 0: μ(h(w_μ) - min h) ≤ Σ σ_k b_k = Σ b_k
e^{-b_k}/Σ e^{-b_k} =: v. At a maximum of v over the others, ∂v/∂b_k = 0 says b_k = 1 + v: they are equal to b,
and v (1 + (p-1)e^{-b}) = (p-1) b e^{-b} becomes v e^v = (p-1)/e. ∎ Attained for μ = 1 by linear functions, vx
once and -x for the p - 1 others, at x = 1.
""",
    loose="""
Both ends of the sandwich are attained: the upper one where all F_k are equal, the lower one in the limit where one
F_k exceeds the others. So is the optimum's bound, 0.40 log(p)/μ for two domains and 0.48 log(p)/μ for ten; none of it
is seen where one domain is the worst everywhere.
""",
)


def softmax_sandwich(*, domains: int, mu: float) -> Bound:
    """Return log(p)/(2 mu), the largest distance of F_mu from the middle of the sandwich.

    Parameters
    ----------
    domains : int
        p.
    mu : float
        Sharpness of the softmax, positive.

    Raises
    ------
    ValueError, TypeError
        If domains is below 1, or mu not positive.

    Examples
    --------
    >>> from fedconvex.theorems.agnostic_softmax import softmax_sandwich
    >>> round(softmax_sandwich(domains=2, mu=10.0).value, 6)
    0.034657
    """
    value, requires = _half(domains, mu)
    return Bound({"half the width": value}, SOFTMAX_DISTANCE, SOURCE, requires)


def softmax_optimum(*, domains: int, mu: float) -> Bound:
    """Return W((p - 1)/e)/mu, the most by which the softmax optimum misses the agnostic one; W is Lambert's function.

    Parameters
    ----------
    domains : int
        p.
    mu : float
        Sharpness of the softmax, positive.

    Raises
    ------
    ValueError, TypeError
        If domains is below 1, or mu not positive.

    Examples
    --------
    >>> from fedconvex.theorems.agnostic_softmax import softmax_optimum
    >>> round(softmax_optimum(domains=2, mu=10.0).value, 6)
    0.027846
    """
    _, requires = _half(domains, mu)
    width = float(lambertw((domains - 1.0) / math.e).real) / mu
    return Bound({"width": width}, SOFTMAX_OPTIMUM, SOURCE, (*requires, Hypothesis("convex F_k", "as given")))


def _half(domains: int, mu: float) -> tuple[float, tuple[Hypothesis, ...]]:
    p, m = whole("domains", domains, low=1), real("mu", mu, low=0.0, strict=True)
    return math.log(p) / (2.0 * m), (Hypothesis("domains and sharpness", f"p = {p}, mu = {m:g}"),)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    is_method("the softmax objective", s.method, SoftmaxFedAvg)
    stationary("the softmax objective", s.problem)
    return Reading({"domains": domain_counts(s.problem.federation).size, "mu": s.method.mu})


def _read_optimum(s: Setting) -> Reading:
    solvable = traits(s.problem.loss).curved
    require("the softmax optimum", Hypothesis("a smooth loss, to be solved for", f"{s.problem.loss!r}", solvable))
    return _read(s)


def _sandwich(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Largest |F_mu - max F - log(p)/(2 mu)| at the models of a run."""
    domains, mu, out, most = s.problem.by_domain, s.method.mu, {}, np.zeros(trajectories)
    half = math.log(domains.federation.K) / (2.0 * mu)
    runs = iterate(s.method, s.problem, rounds=max(rounds), seed=seed, trajectories=trajectories, start=s.start)
    for t, state in runs:
        F = np.asarray(domains.client_values(state.w))
        above = log_sum_exp(F - F.max(axis=1, keepdims=True), mu)  # F_mu - max F, without their difference
        most = np.maximum(most, np.abs(above - half))
        out[t] = most
    return np.array([out[t] for t in rounds])


def _exact_optimum(s: Setting, rounds: Sequence[int]) -> Found:
    """From both exact solutions, certified from above: what they are off by is known."""
    best, smooth = solve_minimax(s.problem), solve_softmax(s.problem, s.method.mu)
    value = float(smooth.domain_values.max()) - best.lower
    domains, w = s.problem.by_domain, smooth.w.ravel()
    off = domains.rounding(w, float(np.abs(smooth.domain_values).max())) + smooth.gap + best.gap
    return Found(np.full(len(rounds), value), np.full(len(rounds), off))


def _tolerance(s: Setting, value: float) -> float:
    """Return the rounding of log(p)/mu: the sandwich holds for any p numbers, the computed F_k among them."""
    return UNIT * math.log(s.problem.by_domain.federation.K) / float(s.method.mu)


def _softmax_constants(s: Setting) -> dict[str, tuple[float, str]]:
    p = domain_counts(s.problem.federation).size
    return {"p": (float(p), "exact"), "mu": (float(s.method.mu), "given")}


_HERE: dict[str, Any] = {
    "statement": STATEMENT,
    "constants": _softmax_constants,
    "tolerance": _tolerance,
    "method": fixed_step(0.1, SoftmaxFedAvg, mu=20.0, local_steps=1),
    "space": Space(
        lambda k: fixed_step(0.1, SoftmaxFedAvg, mu=k["mu"]),
        {"mu": Real(0.1, 100.0)},
        losses=("squared", "logistic"),
        rounds=(1, 3),
    ),
}

THEOREMS = (
    Theorem(
        name="agnostic-softmax",
        title="Agnostic learning, softmax objective and worst domain",
        quantity=SOFTMAX_DISTANCE,
        bound=softmax_sandwich,
        read=_read,
        sample=_sandwich,
        exact=lambda s, rounds: _sandwich(s, rounds, s.seed, 1)[:, 0],  # the statement is about every model
        says="The softmax objective lies between the worst domain's loss and log(p)/mu above it, at every model.",
        loose="Both ends are attained: equal losses, and one loss far above the others.",
        rounds=20,
        checks=(
            three_domains,
            opposite_labels,
            breast_cancer_domains,
            Check(three_domains, fixed_step(0.1, SoftmaxFedAvg, mu=100.0), start=1.0),
        ),
        **_HERE,
    ),
    Theorem(
        name="agnostic-softmax-optimum",
        title="Agnostic learning, softmax optimum and agnostic optimum",
        quantity=SOFTMAX_OPTIMUM,
        bound=softmax_optimum,
        read=_read_optimum,
        exact=_exact_optimum,
        says="The softmax optimum misses the agnostic one by at most W((p - 1)/e)/mu, for convex losses.",
        loose="Attained by linear functions; nothing of it is seen where one domain is the worst everywhere.",
        checks=(
            three_domains,
            opposite_labels,
            breast_cancer_domains,
            *(Check(domains_of_slopes(p), fixed_step(0.1, SoftmaxFedAvg, mu=1.0)) for p in (2, 10)),
        ),
        **_HERE,
    ),
)
