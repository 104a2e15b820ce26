"""How optimal a projection is: the variational inequality, as a gap relative to the sizes that enter it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.simplex import inputs, kl, polytope
from fedconvex.simplex.inputs import TINY


def _product_off(v: np.ndarray, c: np.ndarray, a: np.ndarray) -> np.ndarray:
    """v - c a with the exact product (Dekker)."""
    q = c * a
    with np.errstate(over="ignore", invalid="ignore"):
        z = 134217729.0 * c
        ch = z - (z - c)
        z = 134217729.0 * a
        ah = z - (z - a)
        low = ((ch * ah - q) + ch * (a - ah) + (c - ch) * ah) + (c - ch) * (a - ah)
    return np.asarray((v - q) - np.where(np.isfinite(low), low, 0.0))


def _box_gap(g: np.ndarray, x: np.ndarray, a: np.ndarray, u: np.ndarray) -> np.ndarray:
    """max of g'(y - x) over 0 <= y <= u, a'y = a'x, as a sum of nonnegative terms; rows (R, p).

    For any tau it is at most sum_i (g_i - tau a_i)_+ (u_i - x_i) + (tau a_i - g_i)_+ x_i, and equal for the best tau, a
    weighted quantile of g_i/a_i.
    """
    ratio = g / a
    order = np.argsort(-ratio, axis=1)
    room = np.cumsum(np.take_along_axis(a * np.maximum(u - x, 0.0), order, axis=1), axis=1)
    mass = np.cumsum(np.take_along_axis(a * np.maximum(x, 0.0), order, axis=1), axis=1)
    first = np.argmax(room >= mass[:, -1:] - mass, axis=1)[:, None]
    tau = np.take_along_axis(np.take_along_axis(ratio, order, axis=1), first, axis=1)
    d = a * (ratio - tau)
    with np.errstate(invalid="ignore"):
        up = np.where(d > 0.0, d * np.maximum(u - x, 0.0), 0.0)
    return np.asarray(np.sum(up + np.maximum(-d, 0.0) * np.maximum(x, 0.0), axis=1))


def _off(x: np.ndarray, a: np.ndarray, u: np.ndarray, s: float) -> np.ndarray:
    """How far rows are from the set: the sum and the bounds, relative to the scale."""
    total = np.array([abs(_exact_sum(row) - s) for row in a * x]) if len(x) else np.zeros(0)
    return np.asarray(total / s + np.max(a * np.maximum(np.maximum(-x, x - u), 0.0), axis=1, initial=0.0) / s)


def _exact_sum(x: np.ndarray) -> float:
    from math import fsum

    return fsum(x.tolist())


def simplex_residual(x: Any, v: Any, scale: float = 1.0, cap: Any = np.inf, weights: Any = 1.0) -> np.ndarray:
    """Optimality residual of x as the projection of v onto {0 <= x <= cap, sum_i weights_i x_i = scale}.

    max over y in the set of <v - x, y - x>, which is 0 at the projection only, divided by R^2 with R = scale/min weight
    (the square of the size of v does not enter); plus the violation of the constraints over the scale. The gap is
    computed as a sum of nonnegative terms of centred entries, so rounding adds a few units only.

    Parameters
    ----------
    x, v : array (..., p)
    scale : float
    cap, weights : float or array that broadcasts to v

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(simplex_residual([0.625, 0.375, 0.0], [0.75, 0.5, -2.0]))
    0.0
    >>> float(simplex_residual([0.5, 0.5, 0.0], [0.75, 0.5, -2.0]))
    0.125
    """
    who = "simplex_residual"
    w, s = inputs.rows(f"{who}: v", v), inputs.scale(who, scale)
    y = inputs.same_shape(who, x, w)
    a, u = inputs.weights(who, weights, w.shape), inputs.caps(who, cap, w.shape)
    w, y, shape = w.reshape(-1, w.shape[-1]), y.reshape(-1, w.shape[-1]), w.shape
    if s == 0.0:
        return np.asarray(np.abs(y).max(axis=1).reshape(shape[:-1]))
    a, u = np.broadcast_to(a, w.shape), np.broadcast_to(u, w.shape)
    loose = np.where(y < u, y, -1.0).argmax(axis=1)[:, None]  # free, where some entry is
    c = np.take_along_axis((w - y) / a, loose, axis=1)
    gap = _box_gap(_product_off(w, c, a) - y, y, a, u)
    radius = s / a.min(axis=1, initial=np.inf)
    return np.asarray((gap / radius / radius + _off(y, a, u, s)).reshape(shape[:-1]))


def l1_ball_residual(x: Any, v: Any, radius: float = 1.0) -> np.ndarray:
    """Optimality residual of x as the projection of v onto {sum |x_i| <= radius}.

    (radius max |v - x| - <v - x, x>)/radius^2 plus the violation; inside the ball, the largest |x - v| over the radius.

    Parameters
    ----------
    x, v : array (..., p)
    radius : float

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(l1_ball_residual([0.75, -0.25], [2.0, -1.5]))
    0.0
    """
    who = "l1_ball_residual"
    w, s = inputs.rows(f"{who}: v", v), inputs.scale(who, radius)
    y = inputs.same_shape(who, x, w)
    with np.errstate(over="ignore"):
        inside = np.abs(w).sum(axis=-1) <= s
    wrong = np.maximum(-np.copysign(1.0, w) * y, 0.0).max(axis=-1, initial=0.0)
    size = max(s, TINY)
    outside = simplex_residual(np.abs(y), np.abs(w), s) + wrong / size
    return np.where(inside, np.abs(w - y).max(axis=-1, initial=0.0) / size, outside)


def _row_gap(
    g: np.ndarray, x: np.ndarray, A: np.ndarray, b: np.ndarray, mu: np.ndarray, s: float, floor: float
) -> tuple[float, float]:
    """Upper bound of max g'(y - x), mu'(b - A x) + sum_i x_i (tau - (g - A'mu)_i), over its size; and the violation."""
    rows, level, length, _ = polytope.normalised(A, b, s)
    price = mu * length
    pull = rows.T @ price
    d = g - pull
    size = np.abs(A).max(initial=0.0) * s + np.abs(b).max(initial=0.0)
    off = np.max(A @ x - b, initial=0.0) / size if size > 0.0 else 0.0
    gap = np.abs(price) @ np.abs(level - rows @ x) + x @ (d.max() - d)
    return float(gap / max(floor, np.ptp(pull))), float(off)


def polytope_residual(x: Any, v: Any, A: Any, b: Any, scale: float = 1.0) -> np.ndarray:
    """Optimality residual of x as the projection of v onto {x >= 0, sum x = scale, A x <= b}.

    An upper bound of max over y in the polytope of <v - x, y - x>, by duality with the multipliers of the projection:
    0 at the projection only. It is divided by scale max(scale, spread of v over the support of x, spread of A'mu), the
    size of the terms; plus the violation of the constraints, relative to their entries.

    Parameters
    ----------
    x, v : array (..., p)
    A : array (m, p)
    b : array (m,)
    scale : float

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(polytope_residual([0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [[1.0, 0.0, 0.0]], [0.5])) < 1e-15
    True
    """
    who = "polytope_residual"
    w, s = inputs.rows(f"{who}: v", v), inputs.scale(who, scale)
    y = inputs.same_shape(who, x, w)
    A, b = inputs.constraints(who, A, b, w.shape[-1])

    def one(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        if s == 0.0:
            return np.abs(x).max()
        mu = polytope.active_set(v, A, b, s)[1]
        c = v - v[x > 0.0].max(initial=-np.inf) if np.any(x > 0.0) else v
        floor = max(s, float(np.abs(c[x > 0.0]).max(initial=0.0)))
        gap, off = _row_gap(c - x, np.maximum(x, 0.0), A, b, mu, s, floor)
        off += abs(_exact_sum(x) - s) / s + max(-x.min(), 0.0) / s
        return np.asarray(gap / s + off)

    return inputs.each(one, y, w)


def kl_simplex_residual(x: Any, v: Any, scale: float = 1.0, cap: Any = np.inf) -> np.ndarray:
    """Optimality residual of x as argmin KL(x‖v) over {0 <= x <= cap, sum x = scale}.

    max over y in the set with y = 0 where v = 0 of <log(v/x), y - x>, over the scale, plus the relative violation.

    Parameters
    ----------
    x, v : array (..., p)
    scale : float
    cap : float or array that broadcasts to v

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(kl_simplex_residual([0.25, 0.75], [1.0, 3.0])) < 1e-15
    True
    """
    who = "kl_simplex_residual"
    w, s = kl.measure(f"{who}: v", v), inputs.scale(who, scale)
    y = inputs.same_shape(who, x, w)
    u = inputs.caps(who, cap, w.shape)
    w, y, shape = w.reshape(-1, w.shape[-1]), y.reshape(-1, w.shape[-1]), w.shape
    if s == 0.0:
        return np.asarray(np.abs(y).max(axis=1).reshape(shape[:-1]))
    u = np.where(w > 0.0, np.broadcast_to(u, w.shape), 0.0)
    gap = _box_gap(_log_ratio(w, y, s, u), y, np.ones_like(w), u)
    return np.asarray((gap / s + _off(y, np.ones_like(w), u, s)).reshape(shape[:-1]))


def _log_ratio(v: np.ndarray, x: np.ndarray, s: float, u: Any = np.inf) -> np.ndarray:
    """log(v/x) up to a constant, x at least 1e-300 s; 0 where nothing can be gained."""
    with np.errstate(divide="ignore", invalid="ignore"):
        g = np.log(np.maximum(x / s, 1e-300) / (v / v.max(axis=-1, keepdims=True)))
    return np.where((v > 0.0) & (np.asarray(u) > 0.0), -g, 0.0)


def kl_polytope_residual(x: Any, v: Any, A: Any, b: Any, scale: float = 1.0) -> np.ndarray:
    """Optimality residual of x as argmin KL(x‖v) over {x >= 0, sum x = scale, A x <= b}.

    An upper bound of max over y in the polytope of <log(v/x), y - x> by duality, over the scale times the larger of 1
    and the spread of A'mu; plus the relative violation.

    Parameters
    ----------
    x, v : array (..., p)
    A : array (m, p)
    b : array (m,)
    scale : float

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(kl_polytope_residual([0.25, 0.375, 0.375], [2.0, 1.0, 1.0], [[1.0, 0.0, 0.0]], [0.25])) < 1e-15
    True
    """
    who = "kl_polytope_residual"
    w, s = kl.measure(f"{who}: v", v), inputs.scale(who, scale)
    y = inputs.same_shape(who, x, w)
    A, b = inputs.constraints(who, A, b, w.shape[-1])

    def one(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        if s == 0.0:
            return np.abs(x).max()
        mu, on = kl.dual_newton(v, A, b, s)[1], v > 0.0
        g = _log_ratio(v[on], x[on], s)
        g -= g.max()
        gap, off = _row_gap(g, np.maximum(x[on], 0.0), A[:, on], b, mu, s, 1.0)
        off += abs(_exact_sum(x) - s) / s + max(-x.min(), np.abs(x[~on]).max(initial=0.0), 0.0) / s
        return np.asarray(gap / s + off)

    return inputs.each(one, y, w)


def _ball_gap(g: np.ndarray, x: np.ndarray, q: np.ndarray, r: float, mu: float, on: np.ndarray) -> float:
    """Upper bound of max g'(y - x) over points of the ball that vanish off `on`, by duality, without cancellation.

    mu r + mu log sum_i q_i exp(g_i/mu) - g'x = mu (r - KL(x‖q)) + mu KL(x‖z), z_i proportional to q_i exp(g_i/mu).
    """
    if mu == 0.0:
        return float(x[on] @ (g[on].max() - g[on]))
    if np.isinf(mu):  # the ball is the point q
        return 0.0
    z = np.log(q[on]) + g[on] / mu
    z = kl.fixed_sum(np.exp(z - z.max()), 1.0)
    return mu * (max(r - kl.divergence(x, q), 0.0) + kl.divergence(x[on], z))


def _ball_off(x: np.ndarray, q: np.ndarray, r: float) -> float:
    """Sum and signs; and the divergence beyond the radius, as a distance (sqrt 2r is the radius in the l1 norm)."""
    beyond = kl.divergence(np.maximum(x, 0.0), q) - r
    far = max(beyond, 0.0) / max(np.sqrt(2.0 * r), np.sqrt(max(beyond, 0.0)), TINY)
    return abs(_exact_sum(x) - 1.0) + max(-x.min(), 0.0) + float(far)


def divergence_ball_residual(x: Any, v: Any, q: Any, radius: float) -> np.ndarray:
    """Optimality residual of x as the Euclidean projection of v onto {x in the simplex: KL(x‖q) <= radius}.

    An upper bound of max over y in the set of <v - x, y - x> by duality, over the larger of 1 and the spread of v - x,
    plus the distance from the set: 0 at the projection only.

    Parameters
    ----------
    x, v : array (..., p)
    q : array (p,)
    radius : float

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(divergence_ball_residual([0.5, 0.5], [0.5, 0.5], [0.4, 0.6], 1.0))
    0.0
    """
    w, c, r = kl.ball("divergence_ball_residual", v, q, radius, False)

    def one(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        mu, on = kl.divergence_point(v, c, r)[1], c > 0.0
        g = v - v[on].max() - x
        return np.asarray(_ball_gap(g, x, c, r, mu, on) / max(1.0, float(np.ptp(g[on]))) + _ball_off(x, c, r))

    return inputs.each(one, inputs.same_shape("divergence_ball_residual", x, w), w)


def kl_divergence_ball_residual(x: Any, v: Any, q: Any, radius: float) -> np.ndarray:
    """Optimality residual of x as argmin KL(x‖v) over {x in the simplex: KL(x‖q) <= radius}.

    An upper bound of max over y in the set of <log(v/x), y - x> by duality, over the larger of 1 and the spread of
    log(v/x), plus the distance from the set: 0 at the projection only.

    Parameters
    ----------
    x, v : array (..., p)
    q : array (p,)
    radius : float

    Returns
    -------
    array (...)

    Examples
    --------
    >>> float(kl_divergence_ball_residual([0.5, 0.5], [0.5, 0.5], [0.4, 0.6], 1.0))
    0.0
    """
    who = "kl_divergence_ball_residual"
    w, c, r = kl.ball(who, v, q, radius, True)

    def one(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        t = kl.geometric_point(who, v, c, r)[1]
        mu, on = (1.0 - t) / t if t > 0.0 else np.inf, (c > 0.0) & (v > 0.0)
        g = np.zeros(v.size)
        g[on] = _log_ratio(v[on], x[on], 1.0)
        return np.asarray(_ball_gap(g, x, c, r, mu, on) / max(1.0, float(np.ptp(g[on]))) + _ball_off(x, c, r))

    return inputs.each(one, inputs.same_shape(who, x, w), w)
