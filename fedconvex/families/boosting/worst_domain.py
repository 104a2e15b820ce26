"""The worst of several averages of exponential or logistic losses over alpha >= 0 with sum alpha bounded.

    F_k(alpha) = weighted mean over the rows i of domain k of Phi(-u_i'alpha),  F(alpha) = max over v of sum_k v_k F_k.

`least` is an interior-point method for the exact minimum: Newton's method along the central path of the barrier

    t tau - sum_v log(tau - v'F(alpha)) - sum_j log alpha_j - log(B - sum_j alpha_j),

then primal-dual steps. General conic solvers (those of cvxpy among them) introduce a cone per row, n of them where N
variables suffice, and end at their own tolerances on cone residuals; here the Hessian is (N, N) whatever the rows, and
the steps end when the gap that the caller certifies is small enough, at about 1e-12 of F.

`corrected` minimises the smoothed maximum (1/mu) log sum_v exp(mu v'F(alpha)) from a starting point, for totally
corrective boosting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels.cache import reduction
from fedconvex.losses.stable import exp
from fedconvex.solvers.solution import Solution

# mypy: disable-error-code="no-untyped-def"

_EPS = float(np.finfo(float).eps)
_LN2 = math.log(2.0)


class WorstDomain(NamedTuple):
    """F(alpha) = max over vertices v of sum_k v_k F_k(alpha), rows sorted by domain."""

    U: np.ndarray  # (n, N) y_i Q(l|x_i) h_{l,j}(x_i)
    bounds: np.ndarray  # (p + 1,) first rows of the domains, and n
    vertices: np.ndarray  # (V, p)
    base2: bool  # whether Phi(u) = log2(1 + e^u), else e^u
    weights: np.ndarray | None = None  # (n,) s_i of the rows, of mean one over every domain

    def losses(self, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return F_k (p,) and s_i Phi'(-u_i'alpha) of every row (n,)."""
        return losses_of_domains(self.base2, self.U @ alpha, self.bounds, self.weights)

    def at_vertices(self, alpha: np.ndarray) -> np.ndarray:
        """Return v'F(alpha), (V,)."""
        return np.asarray(self.vertices @ self.losses(alpha)[0])

    def gradients(self, slopes: np.ndarray) -> np.ndarray:
        """Gradients of the vertices, (V, N)."""
        U = self.U
        return np.asarray(
            self.vertices @ np.array([-(U[a:b].T @ slopes[a:b]) / (b - a) for a, b in pairwise(self.bounds.tolist())])
        )

    def bend(self, slopes: np.ndarray) -> np.ndarray:
        """s_i Phi'' of every row, (n,)."""
        if not self.base2:
            return slopes
        alone = slopes if self.weights is None else slopes / np.where(self.weights > 0.0, self.weights, 1.0)
        return slopes * (1.0 - alone * _LN2)

    def row_weights(self, lam: np.ndarray) -> np.ndarray:
        """(sum_v lam_v v_k) / m_k of every row, (n,)."""
        counts = np.diff(self.bounds)
        return np.repeat(lam @ self.vertices / counts, counts)

    def curvature(self, bend: np.ndarray, lam: np.ndarray) -> np.ndarray:
        """Hessian of sum_v lam_v v'F, (N, N)."""
        weights = self.row_weights(lam) * bend
        return np.asarray(self.U.T @ (weights[:, None] * self.U))

    def smoothed(self, alpha: np.ndarray, mu: float | None) -> float:
        """Return (1/mu) log sum_v exp(mu v'F(alpha)); without mu the maximum."""
        Z = self.losses(alpha)[0] @ self.vertices.T
        top = Z.max(axis=-1)
        return float(top if mu is None else top + np.log(np.exp(mu * (Z - top[..., None])).sum(axis=-1)) / mu)


class _Point(NamedTuple):
    """Primal and dual variables: s = tau - F_v, lam of F_v <= tau, z of alpha >= 0, y of sum alpha <= B."""

    alpha: np.ndarray  # (N,)
    tau: float
    s: np.ndarray  # (V,)
    lam: np.ndarray  # (V,)
    z: np.ndarray  # (N,)
    y: float


def least(
    F: WorstDomain, radius: float, certify: Callable[[np.ndarray, np.ndarray], tuple[float, float]], goal: float
) -> Solution:
    """Minimise F over alpha >= 0, sum alpha <= radius, until value - lower <= goal (1 + |value|).

    The central path is followed until t = 1e4; then come primal-dual steps, which rounding hurts less. A run ends early
    where fifteen steps do not halve the gap, or after 1,000 steps.

    Parameters
    ----------
    F : WorstDomain
    radius : float
        B.
    certify : callable
        From margins U alpha (n,) and domain weights (p,) to F(alpha) and a lower bound of the minimum.
    goal : float
        Positive.
    """
    begin, V = time.perf_counter(), F.vertices
    point, steps = _central(F, radius)
    best, best_alpha, lower, since = math.inf, point.alpha, 0.0, 0
    while since < 15 and steps < 1000 and np.isfinite(point.alpha).all():
        value, low = certify(F.U @ point.alpha, point.lam / point.lam.sum() @ V)
        since = 0 if value - low < 0.5 * (best - lower) else since + 1
        if value < best:
            best, best_alpha = value, point.alpha
        lower = max(lower, low)
        if best - lower <= goal * (1.0 + abs(best)):
            break
        point, steps = _primal_dual_step(F, radius, point), steps + 1
    text = f"convexity, over alpha >= 0 with sum at most {radius:g}"
    attained = bool(best_alpha.sum() < 0.5 * radius)
    seconds = time.perf_counter() - begin
    off = value_rounding(best, float(best_alpha.sum()))
    lower = min(lower, best)
    return Solution(best_alpha.copy(), best, lower, text, attained, False, steps, seconds, rounding=off)


def value_rounding(value: Any, total: Any) -> Any:
    """Return how far values of ensembles with sum alpha = total may be off.

    A computed margin may be off by 8 eps sum alpha, and Phi' <= Phi: so far, relatively, may a value be off.
    """
    return 16.0 * _EPS * value * (1.0 + total)


def _central(F: WorstDomain, radius: float) -> tuple[_Point, int]:
    """Return the point of the central path at the first t of at least 1e4 / 8, and how many steps led there."""
    N = F.U.shape[1]
    alpha, t, steps = np.full(N, min(1.0, radius / (2.0 * N)) / N), 1.0, 0
    tau = float((F.losses(alpha)[0] @ F.vertices.T).max()) + 1.0
    while t < 1e4:
        for _ in range(50):
            steps += 1
            step, decrement = _barrier_step(F, radius, alpha, tau, t)
            size = _inside(F, radius, alpha, tau, step, t, decrement)
            alpha, tau = alpha + size * step[:N], tau + size * float(step[N])
            if decrement < 1e-3 or size == 0.0:
                break
        t *= 8.0
    t /= 8.0  # of the last centre, so that the multipliers sum to one
    room = tau - F.at_vertices(alpha)
    return _Point(alpha, tau, room, 1.0 / (t * room), 1.0 / (t * alpha), 1.0 / (t * (radius - alpha.sum()))), steps


def _barrier_step(F: WorstDomain, radius: float, alpha: np.ndarray, tau: float, t: float) -> tuple[np.ndarray, float]:
    """Return the Newton step of the barrier function in (alpha, tau), and its decrement."""
    values, J, bend = _derivatives(F, alpha)
    lam, left, N = 1.0 / (tau - values), radius - alpha.sum(), alpha.size
    g = np.append(lam @ J - 1.0 / alpha + 1.0 / left, t - lam.sum())
    K = np.empty((N + 1, N + 1))
    K[:N, :N] = F.curvature(bend, lam) + (J.T * lam**2) @ J + 1.0 / left**2
    K[np.arange(N), np.arange(N)] += 1.0 / alpha**2
    K[:N, N] = K[N, :N] = -(lam**2 @ J)
    K[N, N] = lam @ lam
    step = -_solve_scaled(K, g)
    return step, -float(g @ step)


def _inside(
    F: WorstDomain, radius: float, alpha: np.ndarray, tau: float, step: np.ndarray, t: float, decrement: float
) -> float:
    """Return a step size that stays inside and lowers the barrier function."""

    def barrier(s: float) -> float:
        a, b = alpha + s * step[:-1], tau + s * float(step[-1])
        if (a <= 0.0).any() or a.sum() >= radius:
            return math.inf
        room = b - F.at_vertices(a)
        if not (room > 0.0).all():
            return math.inf
        return t * s * float(step[-1]) - float(np.log(room).sum() + np.log(a).sum()) - math.log(radius - a.sum())

    here, size = barrier(0.0), 1.0
    while size > 1e-12:
        if barrier(size) <= here - 0.1 * size * decrement + 1e-12 * (1.0 + abs(here)):
            return size
        size *= 0.5
    return 0.0


def _primal_dual_step(F: WorstDomain, radius: float, at: _Point) -> _Point:
    """One step towards lam s = z alpha = y (B - sum alpha) = a tenth of their mean."""
    values, J, bend = _derivatives(F, at.alpha)
    N, V = at.alpha.size, values.size
    q = max(radius - float(at.alpha.sum()), _EPS * radius)  # the sum may round to the radius
    mu = 0.1 * float(at.lam @ at.s + at.z @ at.alpha + at.y * q) / (N + V + 1)
    K, r = np.zeros((N + V + 1, N + V + 1)), np.empty(N + V + 1)
    K[:N, :N] = F.curvature(bend, at.lam) + at.y / q
    K[np.arange(N), np.arange(N)] += at.z / at.alpha
    K[N : N + V, :N], K[:N, N : N + V] = J, J.T
    K[np.arange(N, N + V), np.arange(N, N + V)] = -at.s / at.lam
    K[N : N + V, -1] = K[-1, N : N + V] = -1.0
    r[:N] = -(J.T @ at.lam) + mu / at.alpha - mu / q
    r[N : N + V] = at.tau - values - mu / at.lam
    r[-1] = at.lam.sum() - 1.0
    try:
        x = np.linalg.solve(K, r)
    except np.linalg.LinAlgError:
        x = np.linalg.lstsq(K, r, rcond=None)[0]
    da, dlam, dtau = x[:N], x[N : N + V], float(x[-1])
    ds = mu / at.lam - at.s - at.s / at.lam * dlam
    dz = mu / at.alpha - at.z - at.z / at.alpha * da
    dy = mu / q - at.y + at.y / q * float(da.sum())
    primal = _longest(np.concatenate([at.alpha, at.s, [q]]), np.concatenate([da, ds, [-da.sum()]]))
    dual = _longest(np.concatenate([at.lam, at.z, [at.y]]), np.concatenate([dlam, dz, [dy]]))
    alpha, tau, s = at.alpha + primal * da, at.tau + primal * dtau, at.s + primal * ds
    return _Point(alpha, tau, s, at.lam + dual * dlam, at.z + dual * dz, at.y + dual * dy)


def _longest(x: np.ndarray, step: np.ndarray) -> float:
    """Return the longest step size up to 1 that keeps one percent of every positive entry."""
    down = step < 0.0
    return min(1.0, 0.99 * float((-x[down] / step[down]).min())) if down.any() else 1.0


def _derivatives(F: WorstDomain, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (V,) and gradients (V, N) of the vertices, and Phi'' of every row."""
    values, slopes = F.losses(alpha)
    return F.vertices @ values, F.gradients(slopes), F.bend(slopes)


def corrected(F: WorstDomain, alpha: np.ndarray, mu: float | None, radius: float) -> np.ndarray:
    """Minimise the smoothed maximum (mu None: the only vertex) over alpha >= 0, sum alpha < radius.

    Newton's method on the coordinates that are positive or shall rise, projected (Bertsekas, SIAM J. Control Optim.
    1982), with Armijo's rule and a shrinking barrier -eps log(S - sum alpha), S = radius. Returns alpha itself if that
    is better and inside.
    """
    U, V, start = F.U, F.vertices, alpha

    def objective(a: np.ndarray, eps: float) -> float:
        room = radius - float(a.sum())
        if room <= 0.0:
            return math.inf
        return F.smoothed(a, mu) - (eps * math.log(room / radius) if eps else 0.0)

    alpha = alpha * min(1.0, 0.995 * radius / max(float(alpha.sum()), 1e-300))
    for eps in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
        value = objective(alpha, eps)
        for _ in range(50):
            values, slopes = F.losses(alpha)
            J = F.gradients(slopes)
            share = np.ones(1) if mu is None else np.exp(mu * (V @ values - (V @ values).max()))
            share = share / share.sum()
            room = radius - float(alpha.sum())
            g = share @ J + eps / room
            free = (alpha > 1e-12) | (g < 0.0)
            if not free.any() or np.abs(g[free]).max() <= 1e-12 * value:
                break
            G, A = J[:, free], U[:, free]
            H = A.T @ ((F.row_weights(share) * F.bend(slopes))[:, None] * A) + eps / room**2
            H += (mu or 0.0) * ((G.T * share) @ G - np.outer(share @ G, share @ G))
            step, size = np.zeros_like(alpha), 1.0
            step[free] = _solve_scaled(H, g[free])
            new, after = alpha, value
            while size > 1e-9:
                new = np.maximum(alpha - size * step, 0.0)
                after = objective(new, eps)
                if after < value - 1e-4 * max(float(g @ (alpha - new)), 0.0):
                    break
                size *= 0.5
            else:
                break
            alpha, shrunk, value = new, value - after, after
            if shrunk <= 1e-14 * (1.0 + abs(value)):
                break
    return alpha if objective(alpha, 0.0) < objective(start, 0.0) else start


def _solve_scaled(K: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Solve K x = g for positive definite K, scaled to unit diagonal."""
    d = 1.0 / np.sqrt(np.maximum(np.diag(K), 1e-300))
    M = K * d[:, None] * d
    for ridge in (0.0, 1e-14, 1e-10, 1e-6):
        try:
            L = np.linalg.cholesky(M + ridge * np.eye(len(M)))
        except np.linalg.LinAlgError:
            continue
        return d * np.linalg.solve(L.T, np.linalg.solve(L, d * g))
    return d * np.linalg.lstsq(M, d * g, rcond=None)[0]


def losses_of_domains(
    base2: bool, margins: np.ndarray, bounds: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return F_k (p,) and s_i Phi'(-m_i) (n,) from margins of rows sorted by domain."""
    if weights is None:
        F, slopes = np.empty(len(bounds) - 1), np.empty(margins.size)
        domain_losses(base2, margins, bounds, F, slopes)
        return F, slopes
    values, slopes = phi(base2, margins)
    heavy = weights > 0.0  # what weighs nothing may be infinite
    values, slopes = (np.multiply(weights, v, out=np.zeros_like(v), where=heavy) for v in (values, slopes))
    return np.add.reduceat(values, bounds[:-1]) / np.diff(bounds), slopes


def phi(base2: bool, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Phi(-m) and Phi'(-m)."""
    if not base2:
        e = np.exp(-m)
        return e, e
    e = np.exp(-np.abs(m))
    return (np.log1p(e) + np.maximum(-m, 0.0)) / _LN2, np.where(m > 0.0, e, 1.0) / ((1.0 + e) * _LN2)


@reduction
def domain_losses(base2, m, bounds, F, slopes):
    """F_k = mean of Phi(-m_i) over domain k, and slopes_i = Phi'(-m_i); one logarithm of a product per 512 rows.

    Loops that sum do not store: where a loop does both, LLVM asks at run time whether the arrays are apart, and sums in
    another order where they lie next to each other, so that last bits would depend on where memory was found.
    """
    for i in range(m.size):
        slopes[i] = exp(-abs(m[i])) if base2 else exp(-m[i])
    for k in range(F.size):
        total, lo, hi = 0.0, bounds[k], bounds[k + 1]
        if not base2:
            for i in range(lo, hi):
                total += slopes[i]
            F[k] = total / (hi - lo)
            continue
        for first in range(lo, hi, 512):
            product = 1.0  # of factors in [1, 2]
            for i in range(first, min(first + 512, hi)):
                product *= 1.0 + slopes[i]
                total += max(-m[i], 0.0)
            total += math.log(product)
        F[k] = total / ((hi - lo) * 0.6931471805599453)
    if base2:
        for i in range(m.size):
            slopes[i] = (slopes[i] if m[i] > 0.0 else 1.0) / ((1.0 + slopes[i]) * 0.6931471805599453)
