"""The least value of sum_k lambda_k F_k over a ball of models, with a certificate, for one lambda and for many."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.solvers.objective import Objective


class BallMinimum(NamedTuple):
    """The least value over a ball: it lies in [lower, value]."""

    w: np.ndarray  # (size,)
    value: float
    lower: float


def least_over_ball(problem: Objective, domain_weights: Any, radius: float, start: Any = None) -> BallMinimum:
    """Minimise sum lambda_k F_k over ‖w‖ <= radius, by Newton's method with quadratic models over the ball.

    The lower bound is the least value over the ball of F + <g, . - w> + (l2/2)‖. - w‖^2 at the model found: convexity.

    Parameters
    ----------
    problem : Objective
        Of a smooth loss.
    domain_weights : array (p,)
        lambda.
    radius : float
    start : array (size,), optional
        Where to begin.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.solvers.minimax.ball import least_over_ball
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], [0, 1]), Squared())
    >>> least = least_over_ball(problem, [0.0, 1.0], 0.5)
    >>> least.w, round(least.value, 12), round(least.lower, 12)
    (array([0.5]), 1.125, 1.125)
    """
    weighted, R = problem.by_domain.reweighted(np.asarray(domain_weights, dtype=float)), float(radius)
    w = np.zeros(weighted.size) if start is None else np.array(start, dtype=float).ravel()
    w *= min(1.0, R / max(float(np.linalg.norm(w)), 1e-300))
    F, g, H = weighted.value_gradient_hessian(w)
    best = BallMinimum(w, F, float(_linear_minimum(weighted.strong_convexity, w, F, g, R)))
    for _ in range(100):
        if best.value - best.lower <= 1e-13 * (1.0 + abs(best.value)):
            break
        step, t = _over_ball(H, g - H @ w, R) - w, 1.0
        slope = float(g @ step)
        while (F_new := float(weighted.value(weighted.unflatten(w + t * step)))) > F + 1e-4 * t * slope and t > 1e-10:
            t *= 0.5
        if not F_new <= F + 1e-15 * (1.0 + abs(F)):
            break
        w = w + t * step
        F, g, H = weighted.value_gradient_hessian(w)
        lower = max(best.lower, float(_linear_minimum(weighted.strong_convexity, w, F, g, R)))
        stuck = best.value - F <= 1e-16 * (1.0 + abs(F)) and lower <= best.lower
        best = BallMinimum(w, F, lower) if best.value >= F else best._replace(lower=lower)
        if stuck:
            break
    return best


def least_values_over_ball(problem: Objective, domain_weights: Any, radius: float) -> np.ndarray:
    """Return the lower bounds of `least_over_ball` for lambda (R, p), all at once where rows are dense and few wide.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.solvers.minimax.ball import least_values_over_ball
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], [0, 1]), Squared())
    >>> least_values_over_ball(problem, [[0.0, 1.0], [0.5, 0.5]], 0.5).round(12)
    array([1.125, 0.625])
    """
    domains, lam, R = problem.by_domain, np.asarray(domain_weights, dtype=float), float(radius)
    fed, near = domains.federation, least_over_ball(problem, lam.mean(axis=0), radius)
    if len(lam) == 1:
        return np.array([near.lower])
    lower, left = np.full(len(lam), -math.inf), np.arange(len(lam))
    if domains.n_outputs == 1 and not fed.is_sparse and fed.d <= 40:
        step = max(1, 2_000_000 // max(fed.n, fed.d**2))
        for lo in range(0, len(lam), step):
            lower[lo : lo + step], sure = _newton_over_ball(domains, lam[lo : lo + step], R, near.w)
            left = np.setdiff1d(left, lo + np.flatnonzero(sure))
    for r in left:  # what Newton's method without a line search did not solve
        near = least_over_ball(problem, lam[r], radius, near.w)
        lower[r] = max(lower[r], near.lower)
    return lower


def _newton_over_ball(domains: Objective, lam: np.ndarray, R: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lower bounds (r,) from full Newton steps, and whether each is sure to 1e-13."""
    fed, l2, y = domains.federation, domains.strong_convexity, domains.row_labels
    X, d = fed.X, fed.d
    outer = (X[:, :, None] * X[:, None, :]).reshape(fed.n, -1)
    lower, sure = np.full(len(lam), -math.inf), np.zeros(len(lam), dtype=bool)
    W, left = np.tile(w, (len(lam), 1)), np.arange(len(lam))
    for _ in range(20):
        c = np.repeat(lam[left] / fed.sizes, fed.sizes, axis=1)  # (r, n)
        Z = np.ascontiguousarray(X @ W.T)
        values, bend, slopes = np.empty_like(Z), np.empty(Z.size), Z.copy()
        row_losses.row_values(domains.row_loss, Z, y, values)
        row_losses.row_slopes(domains.row_loss, slopes, y)
        ends = np.array([0, Z.size])
        row_losses.row_curvatures(domains.row_loss, Z.ravel(), np.repeat(y, len(left)), ends, np.ones(1), bend)
        F = np.einsum("rn,nr->r", c, values) + domains.ridge_terms(W)
        g = (c * slopes.T) @ X + domains.ridge * W
        low = _linear_minimum(l2, W, F, g, R)
        lower[left] = np.maximum(lower[left], low)
        done = F - lower[left] <= 1e-13 * (1.0 + np.abs(F))
        sure[left[done]] = True
        left, W, g = left[~done], W[~done], g[~done]
        if left.size == 0:
            break
        H = ((c * bend.reshape(Z.shape).T)[~done] @ outer).reshape(-1, d, d) + domains.ridge * np.eye(d)
        W = _over_balls(H, g - np.einsum("rij,rj->ri", H, W), R)
    return lower, sure


def _linear_minimum(l2: float, w: np.ndarray, F: Any, g: np.ndarray, R: float) -> Any:
    """Least value over ‖v‖ <= R of F + <g, v - w> + (l2/2)‖v - w‖^2, for models (..., size).

    Without the ball it is F - ‖g‖^2/(2 l2), from which nothing is taken back: a small l2 would leave no digit.
    """
    push = np.linalg.norm(l2 * w - g, axis=-1)
    on_ball = F - np.sum(g * w, axis=-1) - R * push + 0.5 * l2 * (np.sum(w * w, axis=-1) + R * R)
    if l2 == 0.0:
        return on_ball
    return np.where(push <= l2 * R, F - np.sum(g * g, axis=-1) / (2.0 * l2), on_ball)


def _over_balls(H: np.ndarray, b: np.ndarray, R: float) -> np.ndarray:
    """Return `_over_ball` of many quadratics, H (r, d, d) and b (r, d), by bisection."""
    lam, U = np.linalg.eigh(H)
    lam, c = np.maximum(lam, 0.0), np.einsum("rij,ri->rj", U, b)
    size = np.linalg.norm(c, axis=1) / R
    free = lam + 1e-14 * np.maximum(np.maximum(lam[:, -1], size), 1e-300)[:, None]
    low, high = np.zeros(len(b)), size
    inside = np.linalg.norm(c / free, axis=1) <= R
    for _ in range(100):
        nu = 0.5 * (low + high)
        longer = np.sum((c / (free + nu[:, None])) ** 2, axis=1) > R**2
        low, high = np.where(longer, nu, low), np.where(longer, high, nu)
    nu = np.where(inside, 0.0, high)
    return -np.einsum("rij,rj->ri", U, c / (free + nu[:, None]))


def _over_ball(H: np.ndarray, b: np.ndarray, R: float) -> np.ndarray:
    """Return argmin of v'Hv/2 + b'v over ‖v‖ <= R, H positive semidefinite: (H + nu) v = -b."""
    from scipy.optimize import brentq

    lam, U = np.linalg.eigh(H)
    lam, c = np.maximum(lam, 0.0), U.T @ b
    floor = 1e-14 * max(float(lam[-1]), float(np.linalg.norm(c)) / R, 1e-300)
    free = lam + floor

    def length(nu: float) -> float:
        return float(np.linalg.norm(c / (free + nu)))

    if length(0.0) <= R:
        return -(U @ (c / free))
    nu = brentq(lambda v: 1.0 / length(v) - 1.0 / R, 0.0, float(np.linalg.norm(c)) / R, xtol=1e-300, rtol=1e-14)
    v = -(U @ (c / (free + nu)))
    return v * min(1.0, R / float(np.linalg.norm(v)))


def largest_on_ball(A: np.ndarray, b: np.ndarray, R: float) -> np.ndarray:
    """Return max of v'Av/2 - b'v over ‖v‖ <= R for symmetric A (r, d, d), definite or not: the dual, which is exact.

    It is min over nu >= max(lam_max, 0) of nu R^2/2 + sum_i b_i^2/(2 (nu - lam_i)), in eigencoordinates; any nu gives
    an upper bound, and trust-region problems have no duality gap (More, Sorensen 1983).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.solvers.minimax.ball import largest_on_ball
    >>> largest_on_ball(np.array([[[1.0]], [[-1.0]]]), np.array([[0.0], [0.5]]), 2.0)
    array([2.   , 0.125])
    """
    if R == 0.0:
        return np.zeros(len(b))
    lam, U = np.linalg.eigh(A)
    c2 = np.einsum("rij,ri->rj", U, b) ** 2
    size = np.sqrt(c2.sum(axis=1))
    floor = np.maximum(lam[:, -1], 0.0)
    rest = floor[:, None] - lam  # nu = floor + t: t may be far below the rounding of floor
    low, high = np.zeros_like(floor), size / R
    for _ in range(100):
        t = 0.5 * (low + high)
        gap = np.maximum(rest + t[:, None], 1e-150)
        longer = np.sum(c2 / gap**2, axis=1) > R**2
        low, high = np.where(longer, t, low), np.where(longer, high, t)
    gap = np.maximum(rest + high[:, None], 1e-150)
    return 0.5 * (floor + high) * R**2 + 0.5 * np.sum(np.where(c2 > 0.0, c2 / gap, 0.0), axis=1)
