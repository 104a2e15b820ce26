"""Losses that are straight outside a band of scores and a parabola inside it, such as the smoothed hinge.

Let l'' be kappa where l' lies strictly between its least and largest value, and 0 elsewhere: l* is then quadratic on
the range of l', with curvature 1/kappa. F is convex and piecewise quadratic, hence has a minimiser if it is bounded
below (Frank and Wolfe, Naval Research Logistics Quarterly 3 (1956), Appendix i).

**Certificate.** Let s_i be the slopes at w, g = grad F(w), B rows whose slopes are at least t inside their range, and
H_B = sum_B p_i kappa x_i x_i' + ridge. Let H_B v = g and a_i = s_i - kappa x_i'v for i in B, a_i = s_i for the others.
If kappa |x_i'v| <= t on B, then a lies in the domain of l*, and l(z) >= a z - l*(a) with the ridge's own inequality at
w - v gives a lower bound of F whose linear term vanishes:

    F(w) - F* <= g'H_B^+ g/2,

as if F were a quadratic, whatever happens outside the bands. Where H_B is singular, v exists if the rows whose slopes
are not 0 lie in its range: the others are no part of g.

**Search.** Where few rows are in the bands, Newton's direction is long or does not exist; so it is where rows of any
loss lie so far out that doubles tell no curvature. The steps here solve (H + tau M) step = g with M the largest
possible Hessian; tau falls while steps succeed, and rises where they fail.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg as sla

from fedconvex.kernels import row_losses
from fedconvex.solvers.certificates.factor import EPS, Factor
from fedconvex.solvers.certificates.rank import rank_bound
from fedconvex.solvers.objective import Objective

_INSIDE = (0.1, 1e-3, 1e-6, 1e-9)  # shares of the range of slopes that rows of B keep from its ends, tried in turn
LEAST = 1e-12  # tau


def band_gap(problem: Objective, w: np.ndarray, g: np.ndarray, error: np.ndarray) -> float:
    """Return the bound of F(w) - F* above, from a gradient known up to ``error`` (size,), or inf."""
    kind, fed = problem.traits, problem.federation
    kappa, (low, high) = kind.smoothness, kind.slope_range(fed.y)
    slopes, off = problem.row_values_and_slopes(w)[1], problem.in_scores * EPS * problem.reach(w)
    inside, width = np.minimum(slopes - low, high - slopes), float(np.max(high - low))
    for share in _INSIDE:
        t = share * width if math.isfinite(width) else share
        h = np.where(inside > t, kappa * problem.per_row, 0.0)
        factor = Factor(problem, w, _gram(problem, h), False, h)
        nu = factor.decrement(g, error)
        if not math.isfinite(nu):  # H is singular, as far as Cholesky's factor tells
            factor = Factor(problem, w, _gram(problem, h), True, h)
            nu = factor.decrement(g, error) if _spans(problem, factor, w, off) else math.inf
        if math.isfinite(nu) and factor.least > 0.0:
            along = kappa * nu * float(np.linalg.norm(fed.column_sizes * factor.scale)) / math.sqrt(factor.least)
            if along * (1.0 + 1e-9) <= t - kappa * off:
                return 0.5 * nu * nu
    return math.inf


def _spans(problem: Objective, factor: Factor, w: np.ndarray, off: float) -> bool:
    """Whether the rows with slopes that are not 0 are proved to lie in the range of H: their gradient does then."""
    if factor.full or problem.l2 > 0.0:
        return factor.full
    fed, y = problem.federation, problem.federation.y
    sloped, kept = np.zeros(fed.n, dtype=bool), int(factor.keep.sum())
    for moved in (-off, off):  # by rounding
        slopes = np.ascontiguousarray(fed.X @ w + moved)[:, None]
        row_losses.row_slopes(problem.loss, slopes, y)
        sloped |= slopes[:, 0] != 0.0
    sloped &= problem.per_row > 0.0
    return kept >= min(int(sloped.sum()), fed.d) or kept >= rank_bound(fed.X[sloped])


def damped_newton(problem: Objective, w: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Return a flat model no worse than w, as far as rounding allows, and evaluations of F."""
    smooth = problem.traits.smoothness
    M = _gram(problem, (smooth if math.isfinite(smooth) else 1.0) * problem.per_row)
    diagonal = np.diag(M)
    scale = 1.0 / np.sqrt(np.where((diagonal > 0.0) & np.isfinite(diagonal), diagonal, 1.0))
    M = scale[:, None] * M * scale
    shift = 8.0 * EPS * (len(M) + math.sqrt(problem.federation.n)) * np.eye(len(M))
    F, g, H = problem.value_gradient_hessian(w)
    tau, tried, noise = 1.0, 1, 4e-15 * (1.0 + abs(F))
    for _ in range(most):
        try:
            factor = sla.cho_factor(scale[:, None] * H * scale + tau * M + shift * (1.0 + tau), lower=True)
        except (np.linalg.LinAlgError, ValueError):
            break
        step = scale * sla.cho_solve(factor, scale * g)
        if not float(g @ step) > 1e-30 * (1.0 + abs(F)):
            break
        trial = w - line_minimum(problem, w, step) * step
        F_new, g_new = problem.value_gradient(trial)
        tried += 1
        nearer = float(np.linalg.norm(scale * g_new)) < 0.5 * float(np.linalg.norm(scale * g))
        if not (F_new < F - noise or (F_new <= F + noise and nearer)):
            if tau >= 1.0:
                break
            tau = min(1.0, 100.0 * tau)
            continue
        w, tau = trial, max(LEAST, 0.1 * tau)
        F, g, H = problem.value_gradient_hessian(w)
    return w, tried


def _gram(problem: Objective, h: np.ndarray) -> np.ndarray:
    """Return X' diag(h) X plus the ridge, (d, d)."""
    from fedconvex.solvers.rows.working_hessian import weighted_gram

    H = weighted_gram(problem.federation.by_column, h)
    H.flat[:: len(H) + 1] += problem.ridge
    return H


def line_minimum(problem: Objective, w: np.ndarray, step: np.ndarray) -> float:
    """Return the t > 0 that minimises F(w - t step), by safeguarded Newton steps on its derivative."""
    fed, loss, y = problem.federation, problem.row_loss, problem.row_labels
    z, q = np.ascontiguousarray(fed.X @ w), np.ascontiguousarray(fed.X @ step)
    wp, pp = float(w @ (problem.ridge * step)), float(step @ (problem.ridge * step))
    t, low, high = 1.0, 0.0, math.inf
    for _ in range(60):
        first, second = row_losses.line_slopes(loss, z, q, y, fed.ptr, problem.row_weights, t)
        first, second = first - (wp - t * pp), second + pp
        if first == 0.0 and second > 0.0:
            break
        low, high = (low, t) if first >= 0.0 else (t, high)  # of a flat bottom the nearer end is sought
        new = t - first / second if second > 0.0 else math.nan
        if not low < new < high:
            new = 2.0 * t if high == math.inf else 0.5 * (low + high)
        elif high == math.inf:
            new = min(new, 100.0 * t)  # almost straight: Newton's step may be of any length
        if abs(new - t) <= 1e-12 * t:
            break
        t = new
    return t
