"""Certificates of suboptimality, all of the form F(w) - F* <= gap.

* l2 > 0: ‖grad F‖^2 / (2 l2) (strong convexity; equal to the Fenchel duality gap at alpha = -l').
* one free coordinate: that of the others, and the rest from how far minimisers can be (`solvers.free_coordinates`).
* quadratic losses: g'H^+ g / 2, exact.
* generalised self-concordant losses, |l'''| <= c l'' (logistic, exponential, Poisson; Bach 2010, Prop. 1): with
  M = c max ‖x_i‖ and phi(t) = (e^-t + t - 1)/t^2 we have F(w + v) >= F + g'v + phi(M‖v‖) v'Hv. If
  nu = sqrt(g'H^+ g) < s phi(M s/sqrt(m)) for some s, m the least positive eigenvalue of H, then no point with
  ‖v‖_H = s lies below F, the minimum lies inside that ellipsoid, and F - F* <= nu^2 / (4 phi(M s/sqrt(m))).
* losses that are parabolas inside a band and straight outside it: g'H^+ g / 2 too, where few rows are near the ends of
  their bands (`solvers.bands`).
* losses that declare a lower bound b: gap <= F - b (all there is to say where the minimum is not attained).

Every bound allows for rounding: of the gradient, of H (eigenvalues are lowered by a backward error before they divide),
and of F itself. Directions that are left out count as flat only where `solvers.rank` proves that H has no higher rank;
where double precision cannot tell them from flat, only the lower bound of the loss is left. Beyond 3,000 parameters
only the first and the last remain.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from fedconvex.solvers.certificates.bands import band_gap
from fedconvex.solvers.certificates.factor import EPS, Factor
from fedconvex.solvers.certificates.free_coordinates import convexity_gap, free_gap
from fedconvex.solvers.certificates.norm_rounding import by_entries, by_norms, known
from fedconvex.solvers.objective import Objective


class ContradictedCertificate(RuntimeWarning):
    """A value lies below a lower bound that was certified, by more than rounding explains: one of them is wrong."""


class UncertifiableError(ValueError):
    """A problem is not solved, because nothing would certify its minimum."""


class Certificate(NamedTuple):
    """What is known of F(w) - F* at a model w."""

    gap: float  # F(w) - F* <= gap
    origin: str
    attained: bool  # whether a minimiser is known to exist
    gap_within: float  # F(w) - F(v) <= gap_within for every v of that reach
    reach: float = math.inf
    off: float = math.nan  # how far F(w) may be from its computed value, where that is known better than by `rounding`


STRONG = "strong convexity: ‖grad F‖²/(2 l2)"


def convex_gap(problem: Objective, w: np.ndarray, F: float, g: np.ndarray, goal: float) -> Certificate:
    """Return what strong convexity certifies, with the cheapest allowance of rounding that is good enough.

    That is one that certifies the goal, or is small beside what it is added to; where there is none, the least.
    """
    best = Certificate(math.inf, STRONG, True, math.inf)
    with np.errstate(all="ignore"):
        enough = max(goal, 1.05 * float(convexity_gap(g[None], 0.0, problem.l2)[0]))
    for allowance in (by_norms, by_entries) if known(problem) else ():
        with np.errstate(all="ignore"):  # of a run that diverges
            error, off = allowance(problem, w, F)
            gap = min(float(convexity_gap(g[None], error, problem.l2)[0]), F + off - problem.traits.lower_bound)
        if gap + 3.0 * off < best.gap + (0.0 if math.isnan(best.off) else 3.0 * best.off):
            best = Certificate(gap, STRONG, True, gap, off=off)
        if gap + 3.0 * off <= enough:
            return best
    coarse = bounded_gap(problem, w, F, g, problem.gradient_rounding(w, F))
    coarse = coarse._replace(off=problem.rounding(w, F))
    less = coarse.gap + 3.0 * coarse.off < best.gap + 3.0 * best.off
    return coarse if less or math.isnan(best.off) else best


def bounded_gap(problem: Objective, w: np.ndarray, F: float, g: np.ndarray, error: np.ndarray) -> Certificate:
    """Return what strong convexity and the loss's lower bound certify; ``error`` is what rounding may do to g."""
    least, kind = problem.traits.lower_bound, problem.traits
    above = F + problem.rounding(w, F) - least if math.isfinite(least) else math.inf
    if problem.strong_convexity > 0.0:
        gap = min(float(convexity_gap(g[None], np.linalg.norm(error), problem.l2)[0]), above)
        return Certificate(gap, STRONG, True, gap)
    gap = free_gap(problem, w, F, g, error)
    if gap < above:
        return Certificate(gap, "strong convexity, and a bound of the free coordinate", True, gap)
    why = "" if kind.quadratic or kind.banded else "no minimiser is known to exist"
    if math.isfinite(least):
        return Certificate(above, f"F >= {least:g}" + (f" ({why})" if why else ""), kind.banded, above)
    if math.isfinite(kind.self_concordance):
        why += ", and the loss declares no lower bound"
    else:
        why = "the loss declares neither self_concordance nor a lower bound"
    penalised = "l2 = 0" if problem.l2 == 0.0 else "coordinates are free"
    return Certificate(math.inf, f"none: {penalised}, {why}", False, math.inf)


def certified_gap(
    problem: Objective, w: np.ndarray, F: float, g: np.ndarray, factor: Factor, fresh: bool, goal: float
) -> Certificate:
    """Return what is known of F(w) - F*.

    Strong convexity is free; the other bounds need eigenvalues, and are tried where it misses the goal.
    """
    kind, convex = problem.traits, problem.strong_convexity > 0.0
    if convex:
        best = convex_gap(problem, w, F, g, goal)
        if best.gap <= goal:
            return best
    error = problem.gradient_rounding(w, F)
    best = best if convex else bounded_gap(problem, w, F, g, error)
    reached = problem.l2 > 0.0 and best.gap <= goal
    if kind.banded and not reached and fresh:
        gap = band_gap(problem, w, g, error)
        return Certificate(gap, "bands: g'H⁺g/2", True, gap, off=best.off) if gap < best.gap else best
    if not kind.quadratic and (reached or not fresh or not math.isfinite(kind.self_concordance)):
        return best
    nu = factor.decrement(g, error)
    if not math.isfinite(nu):
        return best
    origin = "exact quadratic: g'H⁺g/2" if kind.quadratic else "self-concordance (Bach 2010)"
    if not factor.full:
        origin += f", rank {int(factor.keep.sum())} of {factor.keep.size}"
    if factor.flat(problem):
        gap = _newton_gap(problem, factor, nu)
        gap = min(gap, best.gap) if kind.quadratic else gap
        return Certificate(gap, origin, True, gap, off=best.off) if gap < best.gap or kind.quadratic else best
    return _within_reach(problem, w, F, factor, nu, best, origin) if problem.strong_convexity == 0.0 else best


def _newton_gap(
    problem: Objective, factor: Factor, nu: float, drop: float = 0.0, bend: float = 0.0, moved: float = 0.0
) -> float:
    """Return a bound of F(w) - F(w + v) from nu = sqrt(g'H⁺g), or inf.

    Directions left out, as far as v goes there, change F to first order by at most ``drop``, a root of v'Hv by ``bend``
    and scores by ``moved``: zeros where they are flat. See docs/certificates.md.
    """
    kind = problem.traits
    if kind.quadratic:
        return drop + 0.5 * (nu + bend) * (nu + bend)  # a power of a float would raise where it overflows
    if not factor.least > 0.0 or kind.self_concordance * moved > 1.0:
        return math.inf
    columns = np.tile(problem.federation.column_sizes, problem.n_outputs) * factor.scale
    M = float(np.linalg.norm(columns)) / math.sqrt(factor.least)
    least = max(nu + math.sqrt(nu * nu + 4.0 * drop) + 2.0 * bend, 1e-150)
    for s in least * np.array([1.01, 1.05, 1.25, 2.0, 4.0]):
        phi = _phi(kind.self_concordance * (M * float(s) + moved))
        if nu * s + 2.0 * drop + bend * bend < phi * (s - bend) ** 2:
            return float(drop + nu * bend + nu * nu / (4.0 * phi))
    return math.inf


def _within_reach(
    problem: Objective, w: np.ndarray, F: float, factor: Factor, nu: float, best: Certificate, origin: str
) -> Certificate:
    """Return the certificate, completed by one for models of bounded reach: as far as 1e-10 of the gap allows.

    Directions left out are not proved flat, but rows are nearly orthogonal to them.
    """
    scores, share = factor.left_out(problem)
    off = problem.rounding(w, F)
    left, here = f"{origin} up to rounding, not proved exact", problem.reach(w)
    curved = problem.bend(w, F + off)
    steep = problem.steepness(w, F + off) + curved * problem.in_scores * EPS * here  # what rounding does to slopes
    budget = 1e-10 * (best.gap if math.isfinite(best.gap) else 1.0 + abs(F))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        far = float(np.float64(budget) / (steep * scores * share)) - here
        reach = max(10.0 ** math.floor(math.log10(far)), 10.0 * here) if 0.0 < far < 1e300 else 10.0 * here
        along = scores * share * (reach + here)
        gap = _newton_gap(problem, factor, nu, steep * along, math.sqrt(curved) * along, along)
    if not gap < 0.5 * best.gap:
        return best._replace(origin=f"{best.origin}; {left}")
    return best._replace(origin=f"{best.origin}; up to reach {reach:.3g}: {left}", gap_within=gap, reach=reach)


def least_value(problem: Objective, bound: float, off: float) -> float:
    """Return the lower bound less what rounding may have done to two values of F, or the loss's own lower bound."""
    return max(bound - 2.0 * off, problem.traits.lower_bound)


def contradiction(who: str, problem: Any, value: float, lower: float, stacklevel: int) -> None:
    """Warn that a value lies below a certified lower bound."""
    warnings.warn(
        f"{who}: the value {value:.17g} of {problem!r} lies below the certified lower bound {lower:.17g}, by more than "
        "rounding explains; no gap is certified: please report it with the data",
        ContradictedCertificate,
        stacklevel=stacklevel + 1,
    )


def lower_at(problem: Objective, best: Any, W: np.ndarray) -> np.ndarray:
    """Return the lower bounds of a solution that R flat models are compared with, (R,): by their reach."""
    if math.isinf(best.reach):
        return np.full(len(W), best.lower)
    return np.array([best.lower_within if problem.reach(w) <= best.reach else best.lower for w in W])


def gaps_above(who: str, problem: Any, value: np.ndarray, lower: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    """Return value - lower of R models, or 0 if that is negative, plus rounding (R,), what values may be off by.

    Where a value is less than its lower bound by more than that, the gap is inf, with a warning; where it is not a
    number, the gap is inf.
    """
    gap = np.maximum(value - lower, 0.0) + rounding
    below = value < lower
    for r in np.flatnonzero(below) if below.any() else ():
        if float(lower[r] - value[r]) > rounding[r]:
            gap[r] = math.inf
            contradiction(who, problem, float(value[r]), float(lower[r]), 3)
    return np.where(np.isnan(gap), np.inf, gap)


def duality_gap(who: str, problem: Any, value: float, negative_dual: float, rounding: float) -> float:
    """Return the gap between a primal value and a dual one, with what rounding may add to it.

    Where it is negative by more than 250 times that (1,000 eps times the magnitudes summed), it is inf, with a warning;
    where it is not a number, it is inf.
    """
    gap = value + negative_dual
    if gap < -250.0 * rounding:
        contradiction(who, problem, value, -negative_dual, 3)
        return math.inf
    gap = max(gap, 0.0) + rounding
    return math.inf if math.isnan(gap) else gap


def _phi(t: float) -> float:
    """(e^-t + t - 1)/t^2, decreasing from 1/2."""
    return 0.5 - t / 6.0 + t * t / 24.0 - t**3 / 120.0 if t < 1e-3 else (math.expm1(-t) + t) / (t * t)
