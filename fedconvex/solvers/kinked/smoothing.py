"""Kinked losses: coordinate ascent on the dual, and smooth losses that approach them where that becomes slow.

What certifies is the duality gap of the kinked loss itself.
"""

from __future__ import annotations

import math
import time
import warnings

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.solvers.certificates.free_coordinates import reach_along_free
from fedconvex.solvers.certificates.gaps import least_value
from fedconvex.solvers.certificates.slopes import EPS
from fedconvex.solvers.choice import ASCENT, minimise
from fedconvex.solvers.kinked.row_ascent import DualPoint, ascend, conjugates, image, squares
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import Solution

_TENTH, _SLOW = 0.1, 0.9  # by what widths shrink, and from where on even that little was too much
_WIDEST = 100.0  # of first widths: bands around the start


def smoothing(problem: Objective, w: np.ndarray, tol: float | None, start: float) -> Solution:
    """Minimise with losses of shrinking width; the duality gap of the kinked loss is the stopping rule.

    It has a start of its own. Slopes of the smooth losses are dual feasible for the kinked one. Once the sets of rows
    inside and outside the bands have settled, minimisers and duals are linear in the width, so two widths extrapolate
    to the minimiser of the kinked loss (width 0) and to a good start for the next width. Where a width leaves too few
    rows in the bands for Newton's method to move, a wider one is taken between it and the last; the first is widened
    until it moves.
    """
    goal = 1e-11 if tol is None else tol
    fed, l2, kind, free = problem.federation, problem.l2, problem.traits, problem.free
    per_row = problem.per_row
    best_w, best_F, best_lower, evaluations = _first(problem, goal)
    begin, before, width = best_w, None, min(1.0, max(best_F - best_lower, 1e-12) ** 0.5)
    shrink = _TENTH
    while width > 1e-12 and best_F - best_lower > goal * (1.0 + abs(best_F)):
        smooth = problem.with_loss(kind.loss.smoothed(width))
        inner = minimise(smooth, begin, None, start)
        w, evaluations = inner.w.ravel(), evaluations + inner.iterations
        slopes = np.ascontiguousarray(fed.X @ w)[:, None]
        row_losses.row_slopes(smooth.loss, slopes, fed.y)
        u = -slopes[:, 0]
        if (before is not None or width < _WIDEST) and not _balanced(problem, w, u):  # too few rows in the bands
            if before is None:
                width *= 4.0
                continue
            if shrink > _SLOW:
                break
            width, shrink, begin = width / shrink * shrink**0.5, shrink**0.5, before[0]
            continue
        pairs = [(w, u)]
        if before is not None:
            rest = 1.0 / shrink - 1.0
            low, high = kind.slope_range(fed.y)
            slope_w, slope_u = (w - before[0]) / rest, (u - before[1]) / rest  # per current width
            pairs.append((w + slope_w, np.clip(u + slope_u, -high, -low)))
            begin = w + (1.0 - _TENTH) * slope_w
            shrink = _TENTH
        else:
            begin = w
        for primal, dual in pairs:
            best_lower = max(best_lower, _dual_value(problem, primal, dual))
            v = np.asarray(fed.X.T @ (per_row * dual)) / l2
            for candidate in (primal, v if free is None else np.where(free, primal, v)):
                F = float(problem.value(candidate))
                if best_F > F:
                    best_w, best_F = candidate, F
        before, width = (w, u), shrink * width
    off = problem.rounding(best_w, best_F)
    lower = least_value(problem, min(best_lower, best_F), off)
    seconds, left = time.perf_counter() - start, best_F - best_lower
    if left > goal * (1.0 + abs(best_F)) + 4.0 * off:
        text = f"Problem.solve: the certified gap is {left:.2g}, more than tol = {goal:g} asks for"
        warnings.warn(f"{text}: l2 = {l2:g} leaves no better one in double precision", stacklevel=4)
    return Solution(
        problem.unflatten(best_w), best_F, lower, "duality gap", True, True, evaluations, seconds, rounding=off
    )


def _first(problem: Objective, goal: float) -> DualPoint:
    """Return a first model: by coordinate ascent, where the dual has no constraint that ties its coordinates."""
    if ASCENT.fits(problem):
        return ascend(problem, goal)
    w = np.zeros(problem.size)
    return DualPoint(w, float(problem.value(problem.unflatten(w))), problem.traits.lower_bound, 0)


def _dual_value(problem: Objective, primal: np.ndarray, dual: np.ndarray) -> float:
    """Return what dual variables certify, with free coordinates as far as these go."""
    fed, free, costs = problem.federation, problem.free, np.empty(problem.federation.n)
    v, off = image(problem, 1.0, problem.per_row * squares(fed), dual)
    conjugates(problem.loss, fed.y, dual, costs)
    beyond = 0.0
    if free is not None:  # D holds where v vanishes along free coordinates: elsewhere up to how far these go
        along = float(np.abs(v[free]).sum()) + math.sqrt(free.sum()) * off
        here = float(problem.value(primal))
        away = reach_along_free(problem, primal, here + problem.rounding(primal, here))
        beyond = along * (away + float(np.abs(primal[free]).max())) if along > 0.0 else 0.0
        v = np.where(free, 0.0, v)
    costs *= problem.per_row
    rounded = EPS * (8.0 + math.sqrt(fed.n)) * float(np.abs(costs).sum())  # of sums by pairs
    length = math.sqrt(float((v * v).sum())) + off
    return -float(costs.sum()) - rounded - length * length / (2.0 * problem.l2) - beyond


def _balanced(problem: Objective, w: np.ndarray, u: np.ndarray) -> bool:
    """Whether the gradient of the smooth problem, with slopes -u, is small beside what rows could make of it."""
    fed = problem.federation
    left = problem.ridge * w - np.asarray(fed.X.T @ (problem.per_row * u))
    return bool((np.abs(left) <= 1e-6 * fed.column_sizes).all())
