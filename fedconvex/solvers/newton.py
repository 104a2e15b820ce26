"""Exact minimisers with certificates.

Three paths, chosen by what the problem is:

* smooth losses, moderate size: Newton's method on the pooled problem. The factor of a Hessian is kept as long as it
  contracts well (a chord method), because for sparse rows a Hessian costs many gradients.
* smooth losses, more than 3,000 parameters: truncated Newton, the systems solved by conjugate gradients.
* hinge: smoothed hinges of shrinking width, each solved by Newton's method; their slopes are dual feasible for the
  hinge itself, which gives a duality gap.

Certificates, all of the form F(w) - F* <= gap:

* l2 > 0, smooth: ‖grad F‖^2 / (2 l2) (strong convexity; equal to the Fenchel duality gap at alpha = -l').
* squared loss: g'H^+ g / 2, exact.
* l2 = 0, logistic-type losses: the loss is generalised self-concordant, |l'''| <= l'' (Bach 2010, Prop. 1), so with
  M = max ‖x_i‖ and phi(t) = (e^-t + t - 1)/t^2 we have F(w + v) >= F + g'v + phi(M‖v‖) v'Hv. If
  nu = sqrt(g'H^+ g) < s phi(M s/sqrt(m)) for some s, m the least positive eigenvalue of H, then no point with
  ‖v‖_H = s lies below F, the minimum lies inside that ellipsoid, and F - F* <= nu^2 / (4 phi(M s/sqrt(m))).
* any loss here is nonnegative: gap <= F (all there is to say where the minimum is not attained).

Every bound allows for rounding: of the gradient, of H (eigenvalues are lowered by a backward error before they divide),
and of F itself. Directions count as flat if they change no score by more than rounding; below that level double
precision decides nothing, and neither does the certificate. Beyond 3,000 parameters only ‖grad F‖^2/(2 l2) and F
remain.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg as sla

from fedconvex._check import bad
from fedconvex.kernels import row_losses
from fedconvex.losses import Exponential, Hinge, Logistic, SmoothedHinge, Softmax, Squared

if TYPE_CHECKING:
    from fedconvex.problems.empirical_risk import Problem

__all__ = ["Solution", "solve"]

EPS = float(np.finfo(float).eps)
DIRECT_SIZE = 3000  # parameters up to which Hessians are formed and factored
MAX_ITERATIONS = 500


@dataclass(frozen=True)
class Solution:
    """A minimiser with its certificate: F* lies in [lower, value].

    Attributes
    ----------
    w : array, the model's shape
    value, lower : float
        F(w), and a certified lower bound of F*.
    certificate : str
        Where the lower bound comes from.
    attained : bool
        False where F has no minimiser as far as can be told (separable data without l2): then w is only a point of low
        value.
    unique : bool
        Whether the minimiser is the only one (F strictly convex at w).
    iterations : int
        Gradient evaluations.
    seconds : float
    alpha : array (n,), optional
        Dual variables that a later solution may start from, where they are at hand.
    """

    w: np.ndarray
    value: float
    lower: float
    certificate: str
    attained: bool
    unique: bool
    iterations: int
    seconds: float
    alpha: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.w.flags.writeable = False  # solutions are kept and shared
        if self.alpha is not None:
            self.alpha.flags.writeable = False

    @property
    def gap(self) -> float:
        """Certified bound of F(w) - F*."""
        return self.value - self.lower


def solve(problem: Problem, tol: float | None) -> Solution:
    """Minimise F; see `Problem.solve`."""
    if isinstance(problem.loss, (Hinge, SmoothedHinge)) and problem.l2 == 0.0:
        raise bad(
            f"Problem.solve with {type(problem.loss).__name__}",
            "have l2 > 0 (without it nothing certifies the optimum)",
            "l2 = 0",
            "pass a small l2, for example 1e-6",
        )
    start = time.perf_counter()
    if isinstance(problem.loss, Hinge):
        return _hinge(problem, tol, start)
    w = np.zeros(problem.size)
    if problem.size > DIRECT_SIZE:
        return _truncated_newton(problem, w, tol, start)
    if problem.l2 > 0.0 and problem.federation.n >= 16 * 8 * problem.size:  # a part of the rows leads most of the way
        w = _newton(problem.thinned(16), w, 1e-4, start).w.ravel()
    return _newton(problem, w, tol, start)


def polish(problem: Problem, w: np.ndarray) -> Solution:
    """Minimise F as far as rounding allows, from a flat model close to the minimiser."""
    return _newton(problem, w, None, time.perf_counter())


# ---------------------------------------------------------------- Newton, direct


def _newton(
    problem: Problem, w: np.ndarray, tol: float | None, start: float, careful: bool = False, before: int = 0
) -> Solution:
    """Newton's method with a kept factor and backtracking, then a certificate.

    Where the certificate falls short because H is nearly singular, the iteration goes on with orthogonal factors, which
    resolve the square of the condition number that H itself does.
    """
    F, g, H = problem.value_gradient_hessian(w)
    factor, fresh, evaluations, idle = _Factor(problem, w, H, careful), True, before + 1, 0
    for _ in range(60 if careful else MAX_ITERATIONS):
        step = factor.solve(g)
        slope = float(g @ step)  # squared Newton decrement
        if tol is not None:
            gap = _gap(problem, w, F, g, factor, fresh and problem.l2 == 0.0, math.inf)[0]
            if math.isfinite(gap) and gap <= tol * (1.0 + abs(F - gap)):
                break
        if not slope > 1e-28 * (1.0 + abs(F)):
            break
        found, tried = _backtrack(problem, w, F, step, slope, factor)
        evaluations += tried
        if found is not None:
            idle += careful and F - found[2] <= 1e-13 * (1.0 + abs(F))
            t, w, F, g, contraction = found
            fresh = False
            if idle > 2:
                break
            if t == 1.0 and contraction < 0.1:
                continue  # keep the factor: for sparse rows a Hessian costs several gradients
            if t < 1e-2 and not careful and not isinstance(problem.loss, SmoothedHinge):
                break  # a Newton direction that long is mostly rounding
        elif fresh:
            break
        F, g, H = problem.value_gradient_hessian(w)
        factor, fresh, evaluations = _Factor(problem, w, H, careful), True, evaluations + 1
    if not fresh and not (problem.l2 > 0.0 or isinstance(problem.loss, Squared)):
        F, g, H = problem.value_gradient_hessian(w)
        factor = _Factor(problem, w, H, careful)
    goal = (1e-11 if tol is None else tol) * (1.0 + abs(F))
    gap, text, attained = _gap(problem, w, F, g, factor, True, goal)
    short = gap > goal
    if short and not careful and problem._nonnegative and not isinstance(problem.loss, SmoothedHinge):
        return _newton(problem, w, tol, start, True, evaluations)
    lower = _lower(problem, w, F, F - gap)
    unique = attained and (problem.l2 > 0.0 or factor.definite)
    seconds = time.perf_counter() - start
    return Solution(problem.unflatten(w), F, lower, text, attained, unique, evaluations, seconds)


def _backtrack(
    problem: Problem, w: np.ndarray, F: float, step: np.ndarray, slope: float, factor: _Factor
) -> tuple[Any, int]:
    """Return ((t, w, F, g, contraction of the squared decrement) or None, evaluations) along w - t step.

    Where the predicted decrease drowns in the rounding of F, a full step is judged by the gradient instead.
    """
    noise = 4e-15 * (1.0 + abs(F))
    t, tried = 1.0, 0
    if isinstance(problem.loss, SmoothedHinge):
        t = _line_minimum(problem, w, step)
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


def _line_minimum(problem: Problem, w: np.ndarray, step: np.ndarray) -> float:
    """Return the t > 0 that minimises F(w - t step), by safeguarded Newton steps on its derivative."""
    fed, l2 = problem.federation, problem.l2
    z, q = np.ascontiguousarray(fed.X @ w), np.ascontiguousarray(fed.X @ step)
    wp, pp = float(w @ step), float(step @ step)
    t, low, high = 1.0, 0.0, math.inf
    for _ in range(60):
        first, second = row_losses.line_slopes(problem.loss, z, q, fed.y, fed.ptr, problem.row_weights, t)
        first, second = first - l2 * (wp - t * pp), second + l2 * pp
        low, high = (low, t) if first > 0.0 else (t, high)
        new = t - first / second
        if not low < new < high:
            new = 2.0 * t if high == math.inf else 0.5 * (low + high)
        if abs(new - t) <= 1e-12 * t:
            break
        t = new
    return t


class _Factor:
    """A factor of H in equilibrated coordinates (unit diagonal): Cholesky, or the singular values of a root of H.

    Numerical rank is decided on singular values of the root, relative to the largest, at the level of rounding.
    """

    def __init__(self, problem: Problem, w: np.ndarray, H: np.ndarray, careful: bool) -> None:
        p, n = len(H), problem.federation.n
        diagonal = np.diag(H)
        self.scale = 1.0 / np.sqrt(np.where((diagonal > 0.0) & np.isfinite(diagonal), diagonal, 1.0))
        self.noise = 8.0 * EPS * (p + math.sqrt(n))
        self.H = H * np.outer(self.scale, self.scale)
        self.cholesky: Any = None
        if not careful:
            try:  # the shift lets singular matrices pass; where it matters, the certificate falls short
                shifted = self.H + self.noise * np.eye(p)
                self.cholesky = sla.cho_factor(shifted, lower=True, check_finite=False)
                if not np.isfinite(self.cholesky[0]).all():
                    self.cholesky = None
            except (np.linalg.LinAlgError, ValueError):
                self.cholesky = None
        self._least: float | None = None
        if self.cholesky is None:
            root = problem.hessian_root(w) * self.scale
            _, sigma, self.V = np.linalg.svd(np.where(np.isfinite(root), root, 0.0))
            self.keep = sigma > self.noise * sigma[0]
            self.sigma = sigma[self.keep]

    @property
    def definite(self) -> bool:
        """Whether H is certainly positive definite."""
        return self.least > 0.0 if self.cholesky is not None else bool(self.keep.all())

    @property
    def full(self) -> bool:
        """Whether no direction is left out."""
        return self.cholesky is not None or bool(self.keep.all())

    @property
    def least(self) -> float:
        """A lower bound of the least eigenvalue of the equilibrated H, on the directions that are kept."""
        if self._least is None:
            if self.cholesky is not None:
                self._least = float(sla.eigvalsh(self.H, subset_by_index=[0, 0])[0]) - self.noise
            else:
                self._least = float(self._low.min() ** 2) if self.keep.any() else 0.0
        return self._least

    @property
    def _low(self) -> np.ndarray:
        """Lower bounds of the singular values that are kept."""
        return self.sigma - 0.5 * self.noise * (self.sigma[0] if self.sigma.size else 0.0)

    def solve(self, g: np.ndarray) -> np.ndarray:
        """H^+ g."""
        if self.cholesky is not None:
            return self.scale * sla.cho_solve(self.cholesky, self.scale * g, check_finite=False)
        V = self.V[self.keep]
        return self.scale * (V.T @ ((V @ (self.scale * g)) / self.sigma**2))

    def whiten(self, G: np.ndarray) -> np.ndarray:
        """Return rows Z with Z Z' = G H^+ G'."""
        if self.cholesky is not None:
            return sla.solve_triangular(self.cholesky[0], (self.scale * G).T, lower=True, check_finite=False).T
        return ((self.scale * G) @ self.V[self.keep].T) / self.sigma

    def decrement(self, g: np.ndarray, error: np.ndarray) -> float:
        """Return an upper bound of sqrt(g'H^+ g) over gradients within ``error`` of g; inf if H is too uncertain."""
        gs, es = self.scale * g, self.scale * error
        if self.cholesky is not None:
            if self.least <= self.noise:
                return math.inf
            square = max(float(gs @ sla.cho_solve(self.cholesky, gs, check_finite=False)), 0.0)
            return math.sqrt(square * (1.0 + self.noise / self.least)) + float(np.linalg.norm(es)) / math.sqrt(
                self.least
            )
        V = self.V[self.keep]
        return float(np.linalg.norm((np.abs(V @ gs) + np.abs(V) @ es) / self._low)) if len(V) else 0.0

    def flat(self, problem: Problem) -> bool:
        """Whether the directions that are left out change no score by more than rounding."""
        if self.full:
            return True
        fed, C = problem.federation, problem.n_outputs
        out = (self.V[~self.keep] * self.scale).reshape(-1, C, fed.d)  # (m, C, d)
        for v in out:
            Z = np.asarray(fed.X @ v.T)  # (n, C); equal scores of all classes do not change a softmax
            spread = np.abs(Z - Z[:, :1]).max() if C > 1 else np.abs(Z).max()
            if spread > 8.0 * self.noise * float((np.abs(v) @ problem.column_sizes).max()):
                return False
        return True


def _gap(
    problem: Problem, w: np.ndarray, F: float, g: np.ndarray, factor: _Factor, fresh: bool, goal: float
) -> tuple[float, str, bool]:
    """Return a certified suboptimality, its origin, and whether a minimiser is known to exist.

    Strong convexity is free; the other bounds need eigenvalues, and are tried where it misses the goal.
    """
    loss, l2 = problem.loss, problem.l2
    error = problem.gradient_rounding(w, F)
    best = (F if problem._nonnegative else math.inf, "F >= 0 (no minimiser is known to exist)", False)
    if l2 > 0.0:
        gap = (float(np.linalg.norm(g)) + float(np.linalg.norm(error))) ** 2 / (2.0 * l2)
        best = (min(gap, best[0]), "strong convexity: ‖grad F‖²/(2 l2)", True)
    squared = isinstance(loss, Squared)
    reached = l2 > 0.0 and best[0] <= goal
    if not squared and (reached or not fresh or not isinstance(loss, (Logistic, Softmax, Exponential))):
        return best
    nu = factor.decrement(g, error)
    if not math.isfinite(nu) or not factor.flat(problem):
        return best
    rank = "" if factor.full else f", rank {int(factor.keep.sum())} of {factor.keep.size}"
    if squared:
        return min(0.5 * nu * nu, best[0]), f"exact quadratic: g'H⁺g/2{rank}", True
    columns = np.tile(problem.column_sizes, problem.n_outputs) * factor.scale
    M = float(np.linalg.norm(columns)) * (math.sqrt(2.0) if isinstance(loss, Softmax) else 1.0)
    for s in max(nu, 1e-300) * np.array([2.02, 2.1, 2.5, 4.0, 8.0]):
        phi = _phi(M * float(s) / math.sqrt(factor.least)) if factor.least > 0.0 else 0.0
        if nu < s * phi and nu * nu / (4.0 * phi) < best[0]:
            return float(nu * nu / (4.0 * phi)), f"self-concordance (Bach 2010){rank}", True
    return best


def _lower(problem: Problem, w: np.ndarray, F: float, bound: float) -> float:
    """Return the lower bound less what rounding may have done to two values of F, but at least 0 for losses >= 0."""
    lower = bound - 2.0 * problem.rounding(w, F)
    return max(lower, 0.0) if problem._nonnegative else lower


def _phi(t: float) -> float:
    """(e^-t + t - 1)/t^2, decreasing from 1/2."""
    return 0.5 - t / 6.0 + t * t / 24.0 - t**3 / 120.0 if t < 1e-3 else (math.expm1(-t) + t) / (t * t)


# ---------------------------------------------------------------- Newton, truncated


def _truncated_newton(problem: Problem, w: np.ndarray, tol: float | None, start: float) -> Solution:
    """Newton's method whose systems are solved by conjugate gradients to a shrinking accuracy."""
    F, g = problem.value_gradient(w)
    evaluations, size0 = 1, float(np.linalg.norm(g))
    target = 1e-13 * max(size0, 1e-300)
    l2, most = problem.l2, (lambda F: F) if problem._nonnegative else (lambda F: math.inf)
    for _ in range(MAX_ITERATIONS):
        size = float(np.linalg.norm(g))
        gap = min(size**2 / (2.0 * l2) if l2 > 0.0 else math.inf, most(F))
        if size <= target or (math.isfinite(gap) and tol is not None and gap <= tol * (1.0 + abs(F - gap))):
            break
        step = _conjugate_gradients(problem.hessian_product(w), g, min(0.1, math.sqrt(size / size0)))
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
    size = float(np.linalg.norm(g)) + float(np.linalg.norm(problem.gradient_rounding(w, F)))
    gap = min(size**2 / (2.0 * l2) if l2 > 0.0 else math.inf, most(F))
    text = "strong convexity: ‖grad F‖²/(2 l2)" if l2 > 0.0 else "F >= 0 (no minimiser is known to exist)"
    lower = _lower(problem, w, F, F - gap)
    seconds = time.perf_counter() - start
    return Solution(problem.unflatten(w), F, lower, text, l2 > 0.0, l2 > 0.0, evaluations, seconds)


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


# ---------------------------------------------------------------- hinge


def _hinge(problem: Problem, tol: float | None, start: float) -> Solution:
    """Smoothed hinges of shrinking width, with the duality gap of the hinge itself as stopping rule.

    Once the sets of rows inside and outside the band have settled, minimisers and duals are linear in the width, so two
    widths extrapolate to the minimiser of the hinge (width 0) and to a good start for the next width.
    """
    goal = 1e-11 if tol is None else tol
    fed, l2 = problem.federation, problem.l2
    per_row = np.repeat(problem.row_weights, fed.sizes)
    method = _newton if problem.size <= DIRECT_SIZE else _truncated_newton
    best_w, best_F, best_lower, evaluations = np.zeros(problem.size), 1.0, 0.0, 0
    begin, before, gamma = best_w, None, 1.0
    while gamma > 1e-12 and best_F - best_lower > goal * (1.0 + best_F):
        inner = method(problem.with_loss(SmoothedHinge(gamma)), begin, None, start)
        w, evaluations = inner.w.ravel(), evaluations + inner.iterations
        u = np.clip((1.0 - fed.y * (fed.X @ w)) / gamma, 0.0, 1.0)  # dual feasible for the hinge
        pairs = [(w, u)]
        if before is not None:
            slope_w, slope_u = (w - before[0]) / 9.0, (u - before[1]) / 9.0  # per current width; widths shrink tenfold
            pairs.append((w + slope_w, np.clip(u + slope_u, 0.0, 1.0)))
            begin = w + 0.9 * slope_w
        else:
            begin = w
        for primal, dual in pairs:
            v = np.asarray(fed.X.T @ (per_row * dual * fed.y))
            best_lower = max(best_lower, float(per_row @ dual) - float(v @ v) / (2.0 * l2))
            for candidate in (primal, v / l2):
                F = float(problem.value(candidate))
                if best_F > F:
                    best_w, best_F = candidate, F
        before, gamma = (w, u), 0.1 * gamma
    lower = _lower(problem, best_w, best_F, min(best_lower, best_F))
    seconds = time.perf_counter() - start
    return Solution(problem.unflatten(best_w), best_F, lower, "duality gap", True, True, evaluations, seconds)
