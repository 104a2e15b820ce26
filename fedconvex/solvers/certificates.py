"""Certificates of suboptimality, all of the form F(w) - F* <= gap.

* l2 > 0: ‖grad F‖^2 / (2 l2) (strong convexity; equal to the Fenchel duality gap at alpha = -l').
* quadratic losses: g'H^+ g / 2, exact.
* generalised self-concordant losses, |l'''| <= c l'' (logistic, exponential, Poisson; Bach 2010, Prop. 1): with
  M = c max ‖x_i‖ and phi(t) = (e^-t + t - 1)/t^2 we have F(w + v) >= F + g'v + phi(M‖v‖) v'Hv. If
  nu = sqrt(g'H^+ g) < s phi(M s/sqrt(m)) for some s, m the least positive eigenvalue of H, then no point with
  ‖v‖_H = s lies below F, the minimum lies inside that ellipsoid, and F - F* <= nu^2 / (4 phi(M s/sqrt(m))).
* losses that declare a lower bound b: gap <= F - b (all there is to say where the minimum is not attained).

Every bound allows for rounding: of the gradient, of H (eigenvalues are lowered by a backward error before they divide),
and of F itself. Directions that are left out count as flat only where `solvers.rank` proves that H has no higher rank;
where double precision cannot tell them from flat, only the lower bound of the loss is left. Beyond 3,000 parameters
only the first and the last remain.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from fedconvex.solvers.factor import Factor
from fedconvex.solvers.objective import Objective

__all__ = [
    "ContradictedCertificate",
    "bounded_gap",
    "certified_gap",
    "contradiction",
    "duality_gap",
    "gaps_above",
    "least_value",
]


class ContradictedCertificate(RuntimeWarning):
    """A value lies below a lower bound that was certified, by more than rounding explains: one of them is wrong."""


def bounded_gap(problem: Objective, F: float, size: float) -> tuple[float, str, bool]:
    """Return what strong convexity and the loss's lower bound certify, its origin, and whether a minimiser exists.

    ``size`` is the norm of the gradient, with what rounding may add to it.
    """
    least = problem.traits.lower_bound
    if problem.l2 > 0.0:
        gap = size**2 / (2.0 * problem.l2)
        return min(gap, F - least), "strong convexity: ‖grad F‖²/(2 l2)", True
    if math.isfinite(least):
        return F - least, f"F >= {least:g} (no minimiser is known to exist)", False
    why = "the loss declares neither self_concordance nor a lower bound"
    if math.isfinite(problem.traits.self_concordance):
        why = "no minimiser is known to exist, and the loss declares no lower bound"
    return math.inf, f"none: l2 = 0, {why}", False


def certified_gap(
    problem: Objective, w: np.ndarray, F: float, g: np.ndarray, factor: Factor, fresh: bool, goal: float
) -> tuple[float, str, bool]:
    """Return a certified suboptimality, its origin, and whether a minimiser is known to exist.

    Strong convexity is free; the other bounds need eigenvalues, and are tried where it misses the goal.
    """
    kind = problem.traits
    error = problem.gradient_rounding(w, F)
    best = bounded_gap(problem, F, float(np.linalg.norm(g)) + float(np.linalg.norm(error)))
    reached = problem.l2 > 0.0 and best[0] <= goal
    if not kind.quadratic and (reached or not fresh or not math.isfinite(kind.self_concordance)):
        return best
    nu = factor.decrement(g, error)
    if not math.isfinite(nu):
        return best
    if not factor.flat(problem):
        kept = f"rank {int(factor.keep.sum())} of {factor.keep.size} up to rounding"
        left = f"; {kept}, not proved exact (a small l2 would do)"
        return (best[0], best[1] + left, best[2]) if problem.l2 == 0.0 else best
    rank = "" if factor.full else f", rank {int(factor.keep.sum())} of {factor.keep.size}"
    if kind.quadratic:
        return min(0.5 * nu * nu, best[0]), f"exact quadratic: g'H⁺g/2{rank}", True
    columns = np.tile(problem.federation.column_sizes, problem.n_outputs) * factor.scale
    M = float(np.linalg.norm(columns)) * kind.self_concordance
    for s in max(nu, 1e-300) * np.array([2.02, 2.1, 2.5, 4.0, 8.0]):
        phi = _phi(M * float(s) / math.sqrt(factor.least)) if factor.least > 0.0 else 0.0
        if nu < s * phi and nu * nu / (4.0 * phi) < best[0]:
            return float(nu * nu / (4.0 * phi)), f"self-concordance (Bach 2010){rank}", True
    return best


def least_value(problem: Objective, w: np.ndarray, F: float, bound: float) -> float:
    """Return the lower bound less what rounding may have done to two values of F, or the loss's own lower bound."""
    return max(bound - 2.0 * problem.rounding(w, F), problem.traits.lower_bound)


def contradiction(who: str, problem: Any, value: float, lower: float, stacklevel: int) -> None:
    """Warn that a value lies below a certified lower bound."""
    warnings.warn(
        f"{who}: the value {value:.17g} of {problem!r} lies below the certified lower bound {lower:.17g}, by more than "
        "rounding explains; no gap is certified: please report it with the data",
        ContradictedCertificate,
        stacklevel=stacklevel + 1,
    )


def gaps_above(who: str, problem: Objective, value: np.ndarray, lower: float, rounding: Any) -> np.ndarray:
    """Return value - lower of R models, 0 where a value is less by no more than rounding(r).

    Where it is less by more, the gap is inf, with a warning.
    """
    gap = np.maximum(value - lower, 0.0)
    for r in np.flatnonzero(value < lower):
        if lower - float(value[r]) > rounding(r):
            gap[r] = math.inf
            contradiction(who, problem, float(value[r]), lower, 3)
    return gap


def duality_gap(who: str, problem: Any, value: float, negative_dual: float, rounding: float) -> float:
    """Return the gap between a primal value and a dual one, with what rounding may add to it.

    Where it is negative by more than 250 times that (1,000 eps times the magnitudes summed), it is inf, with a warning.
    """
    gap = value + negative_dual
    if gap < -250.0 * rounding:
        contradiction(who, problem, value, -negative_dual, 3)
        return math.inf
    return max(gap, 0.0) + rounding


def _phi(t: float) -> float:
    """(e^-t + t - 1)/t^2, decreasing from 1/2."""
    return 0.5 - t / 6.0 + t * t / 24.0 - t**3 / 120.0 if t < 1e-3 else (math.expm1(-t) + t) / (t * t)
