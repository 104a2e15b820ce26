"""Newton's method: direct, with a kept factor, and truncated, its systems solved by conjugate gradients.

The factor of a Hessian is kept as long as it contracts well (a chord method), because for sparse rows a Hessian costs
many gradients.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

from fedconvex.solvers.certificates.bands import damped_newton, line_minimum
from fedconvex.solvers.certificates.factor import Factor
from fedconvex.solvers.certificates.free_coordinates import convexity_gap
from fedconvex.solvers.certificates.gaps import Certificate, bounded_gap, certified_gap, convex_gap, least_value
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import Solution

MAX_ITERATIONS = 500
_SHORT = 1e-4  # of the square of a gradient, that is little
_LITTLE = 0.1  # of the rounding of F, beside which a gap does not count


class Point(NamedTuple):
    """Where a search stands."""

    w: np.ndarray
    F: float
    g: np.ndarray
    evaluations: int


def solve_part(problem: Objective, w: np.ndarray | None, tol: float | None) -> tuple[np.ndarray, int]:
    """Return the flat start, or where there is none the minimiser over a part of the rows: it leads most of the way."""
    if w is None:
        w = newton(problem.thinned(16), np.zeros(problem.size), 1e-4, time.perf_counter()).w.ravel()
    return w, 0


def polish(problem: Objective, w: np.ndarray) -> Solution:
    """Minimise F as far as rounding allows, from a flat model close to the minimiser.

    Where what is left to gain is little beside the rounding of F, no Hessian is formed.
    """
    begin = time.perf_counter()
    if problem.strong_convexity > 0.0:
        F, g = problem.value_gradient(w)
        known = convex_gap(problem, w, F, g, 0.0)
        if known.gap <= _LITTLE * known.off:
            return _solution(problem, w, F, known, False, 1, begin)
    return newton(problem, w, None, begin)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # steps too long are taken back
def newton(
    problem: Objective, w: np.ndarray, tol: float | None, start: float, careful: bool = False, before: int = 0
) -> Solution:
    """Newton's method with a kept factor and backtracking, then a certificate.

    Where the certificate falls short because H is nearly singular, the iteration goes on with orthogonal factors, which
    resolve the square of the condition number that H itself does.
    """
    if tol is not None and w.any() and problem.strong_convexity > 0.0 and not problem.traits.quadratic:
        F, g = problem.value_gradient(w)
        known = convex_gap(problem, w, F, g, tol * (1.0 + abs(F)))
        if known.gap <= tol * (1.0 + abs(F - known.gap)):  # a good start: no Hessian is formed
            return _solution(problem, w, F, known, False, before + 1, start)
    F, g, H = problem.value_gradient_hessian(w)
    steep, unit = problem.steep_along_free, 1.0  # of labels
    if problem.traits.quadratic:
        unit = min(1.0, problem.value_gradient(np.zeros(w.size))[0] if w.any() else F)
    factor, fresh, evaluations, idle = Factor(problem, w, steep(H), careful), True, before + 1, 0
    del H  # large: what is formed anew takes its place
    for _ in range(60 if careful else MAX_ITERATIONS):
        step = factor.solve(g)
        slope = float(g @ step)  # squared Newton decrement
        if tol is not None:
            new = fresh and problem.strong_convexity == 0.0
            gap = certified_gap(problem, w, F, g, factor, new, math.inf).gap_within
            if math.isfinite(gap) and gap <= tol * (1.0 + abs(F - gap)):
                break
        if not slope > 1e-28 * (unit + abs(F)):
            break
        found, tried = _backtrack(problem, w, F, step, slope, factor, 4e-15 * (unit + abs(F)))
        evaluations += tried
        if found is not None:
            idle += careful and F - found[2] <= 1e-13 * (unit + abs(F))
            t, w, F, g, contraction = found
            fresh = False
            if idle > 2:
                break
            if t == 1.0 and contraction < 0.1:
                continue  # keep the factor: for sparse rows a Hessian costs several gradients
            if t < 1e-2 and not careful and _bends_slowly(problem):
                break  # a Newton direction that long is mostly rounding
        elif fresh:
            break
        del factor
        F, g, H = problem.value_gradient_hessian(w)
        factor, fresh, evaluations = Factor(problem, w, steep(H), careful), True, evaluations + 1
        del H
    if not fresh and not (problem.strong_convexity > 0.0 or problem.traits.quadratic):
        F, g, H = problem.value_gradient_hessian(w)
        factor = Factor(problem, w, H, careful)
    goal = 1e-11 * (unit + abs(F)) if tol is None else tol * (1.0 + abs(F))
    known = certified_gap(problem, w, F, g, factor, True, 0.0 if tol is None and problem.traits.quadratic else goal)
    w, F, g, known, tried = _shorter(problem, w, F, g, factor, known, goal)
    evaluations += tried
    if known.gap > goal and not careful and _bends_slowly(problem):
        return _carefully(problem, w, F, known, tol, evaluations, start)
    if known.gap > goal and (not _bends_slowly(problem) or _stands_still(problem, g)):
        return _damped(problem, w, goal, evaluations, start)
    return _solution(problem, w, F, known, problem.strong_convexity > 0.0 or factor.definite, evaluations, start)


def _carefully(
    problem: Objective, w: np.ndarray, F: float, known: Certificate, tol: float | None, before: int, start: float
) -> Solution:
    """Go on with orthogonal factors, and return the better of where that leads and where it began."""
    again = newton(problem, w, tol, start, True, before)
    if not problem.strong_convexity > 0.0:
        return again
    here = _solution(problem, w, F, known, True, again.iterations, start)
    return again if again.gap <= here.gap else here


def _shorter(
    problem: Objective, w: np.ndarray, F: float, g: np.ndarray, factor: Factor, known: Certificate, goal: float
) -> tuple[np.ndarray, float, np.ndarray, Certificate, int]:
    """Return a point that misses the goal, or where a step leads that leaves little of its gradient; and evaluations.

    By the gradient's length strong convexity certifies. Rounding along directions that are almost flat may hide it from
    the decrement, by which Newton's method judges.
    """
    if not (known.gap > goal and problem.strong_convexity > 0.0):
        return w, F, g, known, 0
    new = w - factor.solve(g)
    F_new, g_new = problem.value_gradient(new)
    if F_new <= F + problem.rounding(w, F) and float(g_new @ g_new) < _SHORT * float(g @ g):
        return new, F_new, g_new, certified_gap(problem, new, F_new, g_new, factor, True, goal), 1
    return w, F, g, known, 1


def _damped(problem: Objective, w: np.ndarray, goal: float, before: int, start: float) -> Solution:
    """Go on from where Newton's method stood still, by damped steps."""
    w, tried = damped_newton(problem, w, MAX_ITERATIONS)
    F, g, H = problem.value_gradient_hessian(w)
    factor = Factor(problem, w, H, False)
    known = certified_gap(problem, w, F, g, factor, True, goal)
    return _solution(problem, w, F, known, factor.definite, before + tried + 1, start)


def _solution(
    problem: Objective, w: np.ndarray, F: float, known: Certificate, definite: bool, evaluations: int, start: float
) -> Solution:
    off = problem.rounding(w, F) if math.isnan(known.off) else known.off
    lower, within = (least_value(problem, F - gap, off) for gap in (known.gap, known.gap_within))
    unique = known.attained and (problem.strong_convexity > 0.0 or definite)
    return Solution(
        problem.unflatten(w), F, lower, known.origin, known.attained, unique, evaluations,
        time.perf_counter() - start, None, within, known.reach, off,
    )  # fmt: skip


def _bends_slowly(problem: Objective) -> bool:
    """Whether l'' changes at a known rate: then Newton steps tend to full ones. That of a smoothed hinge jumps."""
    return math.isfinite(problem.traits.self_concordance) or problem.traits.several


def _stands_still(problem: Objective, g: np.ndarray) -> bool:
    """Whether a gradient is hardly less than that at zero: far out losses may be straight, as far as doubles tell."""
    if problem.traits.several:
        return False
    return float(np.linalg.norm(g)) > 1e-3 * float(np.linalg.norm(problem.value_gradient(np.zeros(g.size))[1]))


def _backtrack(
    problem: Objective, w: np.ndarray, F: float, step: np.ndarray, slope: float, factor: Factor, noise: float
) -> tuple[Any, int]:
    """Return ((t, w, F, g, contraction of the squared decrement) or None, evaluations) along w - t step.

    Where the predicted decrease drowns in the rounding of F, ``noise``, a full step is judged by the gradient instead.
    """
    t, tried = 1.0, 0
    if not _bends_slowly(problem):
        t = line_minimum(problem, w, step)
    while t > 1e-12:
        trial = w - t * step
        F_new, g_new = problem.value_gradient(trial)
        tried += 1
        contraction = float(g_new @ factor.solve(g_new)) / slope
        if slope <= 1e3 * noise:
            if F_new <= F + noise and contraction < 0.25:
                return (1.0, trial, F_new, g_new, contraction), tried
            return None, tried
        if F_new <= F - 1e-4 * t * slope:
            return (t, trial, F_new, g_new, contraction), tried
        t *= 0.5
    return None, tried


def truncated_newton(problem: Objective, w: np.ndarray, tol: float | None, start: float) -> Solution:
    """Newton's method whose systems are solved by conjugate gradients to a shrinking accuracy."""
    return truncated(problem, Point(w, *problem.value_gradient(w), 1), tol, start)


@np.errstate(over="ignore", invalid="ignore")
def truncated(problem: Objective, begin: Point, tol: float | None, start: float) -> Solution:
    """Return where truncated Newton steps lead from a point."""
    (w, F, g, evaluations), size0, target = begin, 0.0, 0.0
    for _ in range(MAX_ITERATIONS):
        size, gap = float(np.linalg.norm(g)), _gap_of(problem, w, F, g)
        if math.isfinite(gap) and tol is not None and gap <= tol * (1.0 + abs(F - gap)):
            break
        if size0 == 0.0:  # what counts as small does not depend on the start
            at_zero = problem.value_gradient(np.zeros(w.size))[1] if w.any() else g
            size0 = max(size, float(np.linalg.norm(at_zero)), 1e-300)
            target = 1e-13 * size0
        if size <= target:
            break
        accuracy = min(0.1, math.sqrt(size / size0))
        if problem.traits.quadratic:  # one system is all of it
            enough = 0.7 * math.sqrt(2.0 * problem.strong_convexity * (tol or 0.0))
            accuracy = min(0.5, max(enough, target, 1e-12 * size) / size)
        step = _conjugate_gradients(problem.hessian_product(w), g, accuracy)
        slope = float(g @ step)
        t, accepted = 1.0, False
        while t > 1e-10:
            F_new, g_new = problem.value_gradient(w - t * step)
            evaluations += 1
            flat = slope <= 1e-13 * (1.0 + abs(F)) and F_new <= F + 1e-14 * (1.0 + abs(F))
            if F_new <= F - 1e-4 * t * slope or (flat and float(np.linalg.norm(g_new)) < 0.5 * size):
                w, F, g, accepted = w - t * step, F_new, g_new, True
                break
            t *= 0.5
        if not accepted:
            break
    if problem.strong_convexity > 0.0:
        known = convex_gap(problem, w, F, g, 0.0 if tol is None else tol * (1.0 + abs(F)))
    else:
        known = bounded_gap(problem, w, F, g, problem.gradient_rounding(w, F))
    return _solution(problem, w, F, known, problem.strong_convexity > 0.0, evaluations, start)


def _gap_of(problem: Objective, w: np.ndarray, F: float, g: np.ndarray) -> float:
    """Return the gap as if nothing were rounded."""
    if problem.strong_convexity > 0.0:
        return float(convexity_gap(g[None], 0.0, problem.l2)[0])
    return bounded_gap(problem, w, F, g, 0.0 * g).gap


def _conjugate_gradients(product: Any, g: np.ndarray, accuracy: float) -> np.ndarray:
    """Solve H x = g to ‖H x - g‖ <= accuracy ‖g‖."""
    x = np.zeros_like(g)
    r = g.copy()
    q = r.copy()
    rr = float(r @ r)
    goal = accuracy**2 * rr
    for _ in range(min(5000, 10 * g.size)):
        Hq = product(q)
        curved = float(q @ Hq)
        if curved <= 0.0:
            return x if x.any() else g
        a = rr / curved
        x += a * q
        r -= a * Hq
        new = float(r @ r)
        if new <= goal:
            break
        q = r + (new / rr) * q
        rr = new
    return x
