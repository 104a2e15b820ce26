"""Boosting with several sources: descent, progress of smoothed rounds, accuracy of smoothing, gradient identity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.families.boosting.edges import edges
from fedconvex.families.boosting.theorems.paths import (
    ENSEMBLE_LOSS,
    NAME,
    SMALL,
    Path,
    along,
    boosting_constants,
    boosts,
    line_search,
    loss_after,
    loss_rounding,
    one_by_one,
    path_of,
    problem_of,
    value_of,
)
from fedconvex.families.boosting.theorems.sources import (
    as_list,
    as_stumps,
    breast_cancer_one_source,
    breast_cancer_sources,
    sources_space,
    three_sources,
    two_sources,
)
from fedconvex.problems import BoostingProblem, StumpProblem
from fedconvex.theorems.kit import *

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "boosting_descent",
    "boosting_progress",
    "gradient_remainder",
    "smoothed_progress",
    "smoothing_error",
]

ALGORITHM = "Cortes, Mohri, Storcheus, Suresh 2021"
STEP = 0.01  # h of the gradient identity
_LARGEST_GROWTH = Quantity("largest F(alpha_t)/F(alpha_{t-1}) of the rounds t <= T", by_rounds=False, least=0.0)
_SMOOTHING_ERROR = Quantity("|F_mu(alpha_T) - F(alpha_T)|", "error of smoothing", least=0.0)
_TAYLOR_REMAINDER = Quantity(
    "largest |F_k(alpha_T + h e) - F_k(alpha_T) - h dF_k(alpha_T)| over domains and coordinates e",
    "remainder",
    least=0.0,
)

STATEMENT = Statement(
    page="boosting",
    title="Boosting with several sources",
    scope=OF_ENSEMBLES,
    setting="""
f = sum alpha_{l,j} Q(l|.) h_{l,j}, h in [-1, 1], alpha >= 0; F_k(alpha) = mean over domain k of Phi(-y f), Phi = exp
or log2(1 + exp); F_mu = (1/mu) log sum_k exp(mu F_k); u_i = y_i Q(l|x_i) h_{l,j}(x_i) in [-1, 1]. A round is an exact
line search along a coordinate.
""",
    assumptions="|u_i| <= 1. For progress also a smoothed maximum, or one mixture, and one coordinate a round.",
    statement="""
Descent    exact line search never raises what it is made on: F, or F_mu.
Gradient   with D(k, i) = Phi'(-y f)/Z_k, Z_k the sum, eps = (1/2)(1 - sum_i D(k, i) y Q h):
           dF_k/dalpha_{l,j} = -(Z_k/m_k)(1 - 2 eps_{k,(l,j)}); hence |F_k(alpha + h e) - F_k(alpha) - h dF_k| is at
           most (h^2/2) e^h F_k(alpha) for exp and h^2/(8 log 2) for log2(1 + exp).
Smoothing  max F_k <= F_mu <= max F_k + log(p)/mu.
Progress   exact line search along a coordinate with derivative g: F_mu falls by at least g^2/(2 L), with C = F_mu
           before the step and L = C + mu C^2 for exp; L = 1/(4 log 2) + mu/(log 2)^2 for log2(1 + exp).
""",
    source="""
Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021 (algorithm, Q-ensembles; their text was
not at hand). All is derived here.
""",
    differs="Constants are explicit; without smoothing no progress is promised, for the maximum has kinks.",
    meaning="""
**Why Q.** Two domains on two points a₁, a₂, labels +1; h₁ is right on a₁ only, h₂ on a₂ only. The score of
βh₁ + (1-β)h₂ is 2β-1 on a₁ and 1-2β on a₂: never both positive, so every convex combination errs on at least half of
the half-half mixture. With Q(l|a_l) = 1 the error is 0 (`two_points`).

**On runs.** MultiBoost draws nothing: all quantities are exact. Domains, or clients, of a problem with one model become
sources. Derivatives are read off the margins before and after a round, or off all coordinates by the identity
(`edges`), not off what the method says. Capped steps, steps back that end at 0 and rounds at a kink promise nothing;
corrections of several coordinates at once are refused where a round's direction is needed.

**Kinks.** Without smoothing, F = max F_k. Margins (1, -0.9) on domain 1 and (-0.9, 1) on domain 2: at α = 0 both F_k
= 1, each coordinate lowers one F_k and raises the other, so no coordinate step lowers F; α = (3, 3) gives e^{-0.3} =
0.74. Coordinate descent stays at 1 for ever. `MultiBoost` reports event 2 (kink); with `smoothing` it goes on.
""",
    proof="""
**Gradient.** ∂F_k/∂α_{l,j} = -(1/m_k) Σ_i Φ'(-y_i f(x_i)) u_i. With Z_k = Σ_i Φ', D = Φ'/Z_k and
ε = (1 - Σ D u)/2 this is -(Z_k/m_k)(1-2ε). ∎

**Smoothed progress.** F_μ = (1/μ) log Σ exp(μF_k) lies between max F_k and max F_k + log(p)/μ. Along a coordinate,
φ(η) = F_μ(α + ηe) has φ'' = Σ q_k F_k'' + μ(Σ q_k F_k'² - (Σ q_k F_k')²), q = softmax(μF). For exp: F_k'' ≤ F_k and
|F_k'| ≤ F_k since |u| ≤ 1, and F_k ≤ F_μ; on the interval where φ ≤ φ(0) = C therefore φ'' ≤ L = C + μC². For log₂(1
+ exp): |Φ'| ≤ 1/log 2 and Φ'' ≤ 1/(4 log 2), L = 1/(4 log 2) + μ/(log 2)² everywhere. From φ'(0) = g < 0, the step
|g|/L stays in the interval (on it φ(η) ≤ φ(0) + gη + Lη²/2 < φ(0) for 0 < η < 2|g|/L, so φ cannot have left it), and
lowers φ by at least g²/(2L); the exact line search lowers it no less. ∎

**Remainder.** By Taylor's formula: F_k'' ≤ e^h F_k along a step of length h since |u| ≤ 1, and Φ'' ≤ 1/(4 log 2).
""",
    loose="""
| name | looseness in the suite |
|---|---|
| `boosting-descent` | attained at a kink, where it stays; 1.001 or so in late rounds |
| `boosting-progress` | one source: 0.88 to 0.93 of the progress is promised; several, with Q < 1: 0.01 to 0.08 |
| `boosting-smoothing` | attained by equal sources; 1.4 to 6 |
| `boosting-gradient` | h = 0.01: 1.01 for one source, 1.6 to 9 with Q < 1 |

`tests/boosting/test_verify_boosting.py` plants steps that are too long and too short, a coordinate that is not the
steepest, 1 - ε for 1 - 2ε, a wrong sign, L halved and log(p)/μ shrunk.
""",
)


def smoothed_progress(value: float, slope: float, smoothing: float, loss: Any = None) -> float:
    """Return g^2/(2 L), a lower bound of how far an exact line search lowers F_mu.

    Parameters
    ----------
    value : float
        F_mu before the step.
    slope : float
        Its derivative g along the coordinate.
    smoothing : float
        mu.
    loss : Exponential or Logistic2
        Default Exponential.

    Raises
    ------
    ValueError, TypeError
        If smoothing is not positive, or value negative.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting import smoothed_progress
    >>> smoothed_progress(1.0, -0.5, 1.0)
    0.0625
    """
    C, g = real("smoothed_progress: value", value, low=0.0), real("smoothed_progress: slope", slope)
    mu = real("smoothed_progress: smoothing", smoothing, low=0.0, strict=True)
    kind = traits(Exponential() if loss is None else loss)
    L = kind.curvature_below(C) + mu * kind.slope_bound(C) ** 2
    return float(g * g / (2.0 * L))


def boosting_descent() -> Bound:
    """Return 1, the bound of F (F_mu with smoothing) after a round over F before it, with exact line search.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting import boosting_descent
    >>> boosting_descent().value
    1.0
    """
    return Bound({"growth": 1.0}, _LARGEST_GROWTH, f"{ALGORITHM}, exact line search")


def boosting_progress(start: float, promised: Any) -> Bound:
    """Return F_mu(alpha_0) less what the rounds promise.

    Parameters
    ----------
    start : float
        F_mu(alpha_0).
    promised : array (T,)
        `smoothed_progress` of every round; 0 for rounds that promise nothing.

    Raises
    ------
    ValueError, TypeError
        If a promised decrease is negative, or start not finite.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting import boosting_progress
    >>> boosting_progress(1.0, [0.25, 0.125]).value
    0.625
    """
    first, less = real("boosting_progress: start", start), numeric("boosting_progress: promised", promised)
    finite("boosting_progress: promised", less)
    if less.min(initial=0.0) < 0.0:
        raise bad("boosting_progress: promised", "be nonnegative", f"{less.min():g}")
    source = f"{ALGORITHM}, smoothed; progress per round: docs/theory/boosting.md"
    return Bound({"start less progress": first - float(less.sum())}, ENSEMBLE_LOSS, source)


def smoothing_error(vertices: int, smoothing: float) -> Bound:
    """Return log(p)/mu, the bound of F_mu - F for p vertices of Lambda.

    Parameters
    ----------
    vertices : int
        Of Lambda; p for the simplex.
    smoothing : float
        mu, positive.

    Raises
    ------
    ValueError, TypeError
        If vertices is below 1, or smoothing not positive.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting import smoothing_error
    >>> round(smoothing_error(2, 10.0).value, 6)
    0.069315
    """
    p, mu = whole("smoothing_error: vertices", vertices, low=1), real("smoothing_error: mu", smoothing, low=0.0)
    value = math.log(p) / real("smoothing_error: mu", mu, low=0.0, strict=True)
    return Bound({"log(p)/mu": value}, _SMOOTHING_ERROR, "log-sum-exp (docs/theory/boosting.md)")


def gradient_remainder(values: Any, step: float, curvature: float | None = None) -> Bound:
    """Return the bound of how far F_k(alpha + h e) is from F_k(alpha) + h dF_k, for all domains and coordinates.

    Parameters
    ----------
    values : array (p,)
        F_k(alpha).
    step : float
        h, positive.
    curvature : float, optional
        Largest second derivative of the loss; without it the loss is exp, whose second derivative is its value.

    Raises
    ------
    ValueError, TypeError
        If a value is negative, step not in (0, 700], or curvature not finite.

    Examples
    --------
    >>> from fedconvex.families.boosting.theorems.boosting import gradient_remainder
    >>> round(gradient_remainder([1.0, 0.5], 0.1).value, 6)
    0.005526
    """
    F = vector("gradient_remainder: values", np.ravel(raw("gradient_remainder: values", values)))
    h = real("gradient_remainder: step", step, low=0.0, high=700.0, strict=True)
    if not F.size or F.min() < 0.0:
        raise bad("gradient_remainder: values", "be nonnegative", f"{values!r}")
    bend = math.exp(h) * float(F.max()) if curvature is None else real("gradient_remainder: curvature", curvature)
    return Bound({"curvature": 0.5 * h * h * bend}, _TAYLOR_REMAINDER, f"{ALGORITHM}, gradient identity")


# ---------------------------------------------------------------- read off a setting


def _read_descent(s: Setting) -> Reading:
    return Reading({}, boosts(s))


def _read_progress(s: Setting) -> Reading:
    """Add up what the rounds promise: with a list of classifiers by the steepest of all, else by the one taken."""
    checked = boosts(s)
    p, mu = problem_of(s), s.method.smoothing
    one = len(p.vertices) == 1
    smooth = Hypothesis("a smoothed maximum, or one mixture", f"smoothing={mu}", mu is not None or one)
    checked += require(NAME, smooth, one_by_one(s))
    path, promised = path_of(s, s.rounds), np.zeros(s.rounds)
    everywhere = mu is not None or not s.method.own_classifiers or p.p == 1  # else the steepest may be another source's
    for t in np.flatnonzero((path.steps > SMALL) & ~path.capped):
        before, u = path.margins[t], (path.margins[t + 1] - path.margins[t]) / path.steps[t]
        F, slopes = p.losses_of(before)
        lam = p.worst(F, mu)[0]
        slope = -float(slopes * p.row_weights_of(lam) @ u)
        if everywhere and not isinstance(p, StumpProblem):
            slope = min(slope, float((lam @ edges(p, path.alpha[t]).gradient).min()))
        promised[t] = smoothed_progress(value_of(s, before), slope, 1e-300 if one else mu, p.loss)
    return Reading({"start": value_of(s, path.margins[0]), "promised": promised}, checked)


def _read_smoothing(s: Setting) -> Reading:
    checked, mu = boosts(s), s.method.smoothing
    checked += require(NAME, Hypothesis("a smoothed maximum", f"smoothing={mu}", mu is not None))
    return Reading({"vertices": len(problem_of(s).vertices), "smoothing": mu}, checked)


def _read_gradient(s: Setting) -> Reading:
    checked, p = boosts(s), problem_of(s)
    checked += require(NAME, Hypothesis("a list of classifiers", type(p).__name__, not isinstance(p, StumpProblem)))
    values, bend = p.losses_of(path_of(s, s.rounds).margins[-1])[0], traits(p.loss).smoothness
    return Reading({"values": values, "step": STEP, "curvature": bend if math.isfinite(bend) else None}, checked)


def _growth(s: Setting, path: Path, T: int) -> float:
    F = np.array([value_of(s, m) for m in path.margins[: T + 1]])
    return float(np.divide(F[1:], F[:-1], out=np.ones(T), where=F[:-1] > 0.0).max())


def _growth_rounding(s: Setting, path: Path, T: int) -> float:
    """Both losses of a quotient may be off."""
    F = np.array([value_of(s, m) for m in path.margins[: T + 1]])
    off = np.array([loss_rounding(s, path, t) for t in range(T + 1)])
    return float(np.max(4.0 * (off[1:] + off[:-1]) / np.maximum(F[:-1], 1e-300)))


def _error(s: Setting, path: Path, T: int) -> float:
    p = problem_of(s)
    return abs(value_of(s, path.margins[T]) - float(p.objective(p.losses_of(path.margins[T])[0])))


def _remainder(s: Setting, path: Path, T: int) -> float:
    """Every coordinate is moved by h, and every F_k computed anew from its rows."""
    p, alpha = problem_of(s), path.alpha[T]
    F, gradient = p.losses_of(path.margins[T])[0], edges(p, alpha).gradient
    moved = np.array([p.losses_of(p.margins(alpha) + STEP * u)[0] for u in p.signed.T])  # (N, p)
    return float(np.abs(moved - F - STEP * gradient.T).max())


def _remainder_rounding(s: Setting, path: Path, T: int) -> float:
    """F_k is computed before and after a step h, its derivative from slopes, which margins move by their curvature."""
    p, kind = problem_of(s), traits(problem_of(s).loss)
    F, each = float(p.losses_of(path.margins[T])[0].max()), loss_rounding(s, path, T)
    slope = max(float(kind.slope_bound(F)), 1e-300)
    bend = max(1.0, kind.curvature_below(F) / slope)
    return each * (3.0 + math.exp(STEP) + STEP * bend) + UNIT * STEP * slope


_ABOUT: dict[str, Any] = {
    "kind": BoostingProblem,
    "constants": boosting_constants,
    "statement": STATEMENT,
}

THEOREMS = (
    Theorem(
        name="boosting-descent",
        title="MultiBoost, monotone descent",
        quantity=_LARGEST_GROWTH,
        bound=boosting_descent,
        read=_read_descent,
        exact=along(_growth, _growth_rounding),
        says="Exact line search never raises the worst source's loss.",
        loose="Attained at a kink, where no coordinate lowers it; nearly so where progress is slow.",
        method=line_search(),
        rounds=30,
        checks=(two_sources, three_sources, breast_cancer_sources),
        space=sources_space(as_stumps, smoothed=False),
        adapt=as_stumps,
        **_ABOUT,
    ),
    Theorem(
        name="boosting-progress",
        title="MultiBoost, progress of smoothed rounds",
        quantity=ENSEMBLE_LOSS,
        bound=boosting_progress,
        read=_read_progress,
        exact=along(loss_after),
        says="Every smoothed round along the steepest coordinate lowers F_mu by g²/(2L) or more, L = F_mu + mu F_mu².",
        loose="L is for |Q h| = 1: one source is promised nine tenths of its progress, with Q < 1 a tenth and less.",
        method=line_search(smoothing=1.0),
        rounds=30,
        checks=(
            two_sources,
            three_sources,
            breast_cancer_sources,
            Check(two_sources, line_search(smoothing=20.0)),
            Check(breast_cancer_sources, line_search(smoothing=20.0)),
            Check(breast_cancer_one_source, line_search()),
        ),
        space=sources_space(as_stumps),
        adapt=as_stumps,
        **_ABOUT,
    ),
    Theorem(
        name="boosting-smoothing",
        title="MultiBoost, accuracy of smoothing",
        quantity=_SMOOTHING_ERROR,
        bound=smoothing_error,
        read=_read_smoothing,
        exact=along(_error),
        says="The smoothed maximum exceeds the maximum by at most log(p)/mu.",
        loose="Attained where all sources have the same loss, as at the start.",
        method=line_search(smoothing=20.0),
        rounds=30,
        checks=(
            two_sources,
            three_sources,
            breast_cancer_sources,
            Check(two_sources, line_search()),  # the maximum itself
        ),
        space=sources_space(as_stumps),
        adapt=as_stumps,
        **_ABOUT,
    ),
    Theorem(
        name="boosting-gradient",
        title="MultiBoost, gradient identity",
        quantity=_TAYLOR_REMAINDER,
        bound=gradient_remainder,
        read=_read_gradient,
        exact=along(_remainder, _remainder_rounding),
        says="Errors give derivatives: a step h along a coordinate changes F_k by h dF_k up to h²/2 times its bend.",
        loose="Attained up to e^h for classifiers without doubt (Q = 1); else by squares of Q h.",
        method=line_search(smoothing=20.0),
        rounds=10,
        checks=(two_sources, breast_cancer_sources, three_sources),  # the last has no list of classifiers
        space=sources_space(as_list),
        adapt=as_list,
        **_ABOUT,
    ),
)
