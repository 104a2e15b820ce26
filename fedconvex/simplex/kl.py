"""Kullback-Leibler projections onto the simplex, its capped form, polytopes in it, and balls of the divergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex._check import bad, numeric, real
from fedconvex.simplex import inputs, polytope
from fedconvex.simplex.euclidean import project_simplex
from fedconvex.simplex.inputs import EPS, HUGE


def measure(who: str, v: Any) -> np.ndarray:
    """Return v as rows of nonnegative numbers, not all zero."""
    a = numeric(who, v, copy=False)
    known: Any = (a.min(), a.max(axis=-1)) if a.size and a.ndim else (np.nan, np.nan)
    least, largest = known
    if least >= 0.0 and largest.min() > 0.0 and largest.max() <= HUGE:
        return a
    a = inputs.rows(who, a)
    if a.size:
        if not (least >= -HUGE and largest.max() <= HUGE):
            inputs.moderate(who, a)
        if least < 0.0:
            raise bad(who, "be nonnegative", f"{least:g}", "the divergence from a negative number is infinite")
        if not largest.min() > 0.0:
            raise bad(who, "have a positive entry in every row", "a row of zeros")
    return a


def fixed_sum(x: np.ndarray, s: float) -> np.ndarray:
    """Return x s / sum x, for rows with largest entry near 1."""
    return x * (s / x.sum(axis=-1, keepdims=True))


def project_kl_simplex(v: Any, scale: float = 1.0, cap: Any = np.inf) -> np.ndarray:
    """Return argmin KL(x‖v) over {0 <= x <= cap, sum x = scale} for every row: x_i = min(cap_i, theta v_i).

    KL(x‖v) = sum_i x_i log(x_i/v_i) - x_i + v_i, infinite where x_i > 0 = v_i. Without caps x is scale v/sum v. The sum
    is concave and piecewise linear in theta; Newton's method from theta = scale/sum v climbs to the solution.

    Parameters
    ----------
    v : array (..., p)
        Nonnegative, at most 1e150, not all zero.
    scale : float
        0, or in [1e-150, 1e150].
    cap : float or array that broadcasts to v
        Nonnegative; inf for none. The caps where v > 0 must sum to the scale or more.

    Returns
    -------
    array (..., p), float64

    Raises
    ------
    ValueError, TypeError
        On input that is out of range, and on caps that leave no point.

    Examples
    --------
    >>> project_kl_simplex([1.0, 3.0]), project_kl_simplex([2.0, 1.0, 1.0], cap=0.4)
    (array([0.25, 0.75]), array([0.4, 0.3, 0.3]))
    """
    who = "project_kl_simplex"
    a, s = measure(f"{who}: v", v), inputs.scale(who, scale)
    if inputs.number(who, cap) and cap == np.inf:
        return fixed_sum(a / a.max(axis=-1, keepdims=True), s)
    u = np.broadcast_to(inputs.caps(who, cap, a.shape), (max(a.size // a.shape[-1], 1), a.shape[-1]))
    a, u, shape = a.reshape(-1, a.shape[-1]), u[: a.size // a.shape[-1]], a.shape
    a = a / a.max(axis=1, keepdims=True)
    u = np.where(a > 0.0, u, 0.0)
    inputs.room(f"{who}, where v > 0", u, s)
    at_cap = np.zeros(a.shape, bool)
    for _ in range(a.shape[1] + 1):
        rest = np.maximum(s - np.where(at_cap, u, 0.0).sum(axis=1, keepdims=True), 0.0)
        mass = np.where(at_cap, 0.0, a).sum(axis=1, keepdims=True)
        x = np.where(at_cap, u, a * (rest / np.where(mass > 0.0, mass, 1.0)))
        over = ~at_cap & (x > u)
        if not over.any():
            break
        at_cap |= over
    return np.asarray(np.minimum(x, u).reshape(shape))


def project_kl_polytope(v: Any, A: Any, b: Any, scale: float = 1.0) -> np.ndarray:
    """Return argmin KL(x‖v) over {x >= 0, sum x = scale, A x <= b} for every row.

    x_i is proportional to v_i exp(-(A'mu)_i), and mu >= 0 minimises scale log sum_i v_i exp(-(A'mu)_i) + b'mu: Newton
    steps that keep the bounds on mu, by the method of Lawson and Hanson (1974, chapter 23) for each quadratic model. An
    entry that the polytope forces to 0 comes out below 1e-15 scale.

    Parameters
    ----------
    v : array (..., p)
        Nonnegative, at most 1e150, not all zero.
    A : array (m, p)
    b : array (m,)
    scale : float
        0, or in [1e-150, 1e150].

    Returns
    -------
    array (..., p), float64

    Raises
    ------
    Infeasible
        If no point of the polytope vanishes where v does; with a certificate for these entries.
    ValueError, TypeError
        On input of wrong shape or range.

    Examples
    --------
    >>> project_kl_polytope([2.0, 1.0, 1.0], [[1.0, 0.0, 0.0]], [0.25])
    array([0.25 , 0.375, 0.375])
    """
    who = "project_kl_polytope"
    x, s = measure(f"{who}: v", v), inputs.scale(who, scale)
    A, b = inputs.constraints(who, A, b, x.shape[-1])
    return inputs.each(lambda row: dual_newton(row, A, b, s)[0], x)


def dual_newton(v: np.ndarray, A: np.ndarray, b: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the KL projection of v, and the multipliers (m,) of the rows."""
    keep, out, prices = v > 0.0, np.zeros(v.size), np.zeros(b.size)
    A = A[:, keep]
    polytope.active_set(np.zeros(A.shape[1]), A, b, s)  # raises if there is no point
    rows, level, length, noise = polytope.normalised(A, b, s)
    real = np.any(rows != 0.0, axis=1)
    if s == 0.0 or not real.any():
        out[keep] = fixed_sum(v[keep] / v.max(), s)
        return out, prices
    rows, level, noise = rows[real], level[real], noise[real]
    prior, mu = np.log(v[keep]), np.zeros(level.size)

    def point(mu: np.ndarray) -> tuple[np.ndarray, float, float]:
        z = prior - rows.T @ mu
        top = z.max()
        x = np.exp(z - top)
        scale = abs(top) + np.abs(level) @ mu / s
        return fixed_sum(x, s), float(np.log(x.sum()) + top + level @ mu / s), float(scale)

    x, value, size = point(mu)
    slope = level - rows @ x
    best, best_error, stuck = mu, np.inf, 0
    for _ in range(300):
        gap = float(mu @ np.abs(slope)) / (s * max(1.0, float(np.ptp(mu @ rows))))
        error = max(float(np.max(np.abs(np.minimum(mu * s, slope)) / noise)), gap / (16 * EPS))
        stuck = 0 if error < 0.5 * best_error else stuck + 1
        if error < best_error:
            best, best_error = mu, error
        if error <= 0.3 or (stuck > 5 and best_error < 2.0) or stuck > 60:
            break
        step, t = _newton_step(rows, x, slope, mu, s), 1.0
        for _ in range(50):
            trial = mu + t * step
            x, after, size = point(trial)
            new = level - rows @ x
            small = after <= value + 64 * EPS * size
            if after <= value + 1e-4 * t * float(slope @ step) / s or (
                small and np.max(np.abs(np.minimum(trial * s, new)) / noise) < error
            ):
                break
            t *= 0.5
        mu, value, slope = np.maximum(trial, 0.0), after, new
    out[keep], prices[real] = point(best)[0], best
    return out, prices / length


def _newton_step(rows: np.ndarray, x: np.ndarray, slope: np.ndarray, mu: np.ndarray, s: float) -> np.ndarray:
    """argmin slope'd + d'H d/2 over mu + d >= 0, H = sum_i x_i (A_i - mean)(A_i - mean)', hardly regularised."""
    centred = (rows - (rows @ (x / s))[:, None]) * np.sqrt(x)
    size = np.maximum(np.linalg.norm(centred, axis=1), EPS * np.sqrt(s))
    H = centred / size[:, None]
    H = H @ H.T + np.diag(1e-10 + 2 * EPS * s / size**2)  # no steps for what is rounding
    step = _nonnegative(H, H @ (mu * size) - slope / size) / size - mu
    change, lost = -(step @ rows), np.maximum(-37.0 - np.log(np.maximum(x / s, 1e-300)), 0.0)
    change -= change @ x / s
    far = np.where(change > 0.0, change / (20.0 + lost), np.where(lost > 0.0, 0.0, -change / 20.0)).max()
    return np.asarray(step / max(1.0, float(far)))  # no entry that counts changes more than e^20-fold


def _nonnegative(H: np.ndarray, c: np.ndarray) -> np.ndarray:
    """argmin y'H y/2 - c'y over y >= 0, H positive definite (Lawson and Hanson 1974, chapter 23).

    With `scipy.optimize.nnls` on a factor of H some projections end above rounding error.
    """
    y, on = np.zeros(c.size), np.zeros(c.size, bool)
    for _ in range(10 * c.size):
        gain = np.where(on, -np.inf, c - H @ y)
        j = int(np.argmax(gain))
        if gain[j] <= 1e-15 * np.abs(c).max():
            break
        on[j] = True
        while on.any():
            z = np.zeros(c.size)
            z[on] = np.linalg.solve(H[np.ix_(on, on)], c[on])
            if (z[on] > 0.0).all():
                break
            falling = on & (z <= 0.0)
            t = np.min(y[falling] / np.maximum(y[falling] - z[falling], 1e-300))
            y = y + t * (z - y)
            on &= y > 1e-300
            y[~on] = 0.0
        y = z if on.any() else y
    return y


# ---------------------------------------------------------------- balls of the divergence


def divergence(x: np.ndarray, q: np.ndarray) -> float:
    """KL(x‖q) = sum_i q_i phi(x_i/q_i - 1), phi(d) = (1 + d) log(1 + d) - d without cancellation."""
    on = q > 0.0
    if np.any(x[~on] > 0.0):
        return float("inf")
    d = (x[on] - q[on]) / q[on]
    small = np.abs(d) < 0.02
    e = np.where(small, d, 0.0)
    series = np.zeros_like(e)
    for k in range(10, 1, -1):
        series = 1.0 / (k * (k - 1)) - e * series
    series = e * e * series
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.where(d > -1.0, (1.0 + d) * np.log1p(d), 0.0) - d
    return float(np.sum(q[on] * np.where(small, series, plain)))


def ball(who: str, v: Any, q: Any, radius: Any, nonnegative: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return v (any, or nonnegative entries with a positive sum), the centre q and the radius of a ball, checked."""
    a = measure(f"{who}: v", v) if nonnegative else inputs.rows(f"{who}: v", v)
    inputs.moderate(f"{who}: v", a)
    c = measure(f"{who}: q", q)
    if c.shape != a.shape[-1:]:
        raise bad(f"{who}: q", f"have shape {a.shape[-1:]}", f"{c.shape}")
    if abs(c.sum() - 1.0) > 1e-12:
        raise bad(f"{who}: q", "sum to 1", f"{c.sum()!r}", "divide it by its sum")
    return a, c / c.sum(), real(f"{who}: radius", radius, low=0.0)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Zero of a monotone function of log t between low and high, which change sign."""
    from scipy.optimize import brentq

    ends = np.log(low), np.log(high)
    values = [function(np.exp(z)) for z in ends]
    if np.sign(values[0]) == np.sign(values[1]):  # a zero at an end, up to rounding
        return float(np.exp(ends[int(np.argmin(np.abs(values)))]))
    return float(np.exp(brentq(lambda z: function(np.exp(z)), *ends, xtol=1e-16, rtol=4 * EPS)))


def project_divergence_ball(v: Any, q: Any, radius: float) -> np.ndarray:
    """Project every row, in the Euclidean norm, onto {x in the simplex: KL(x‖q) <= radius}.

    Outside the ball x_i + mu log(x_i/q_i) = v_i - tau: x_i = mu omega((v_i - tau)/mu + log(q_i/mu)) with Wright's
    omega, omega + log omega = z. Newton's method finds tau (the sum is convex in it), a bracketing method mu.

    Parameters
    ----------
    v : array (..., p)
        At most 1e150 in absolute value.
    q : array (p,)
        A probability vector. Where q is 0, x is.
    radius : float
        Nonnegative.

    Returns
    -------
    array (..., p), float64

    Raises
    ------
    ValueError, TypeError
        On input that is out of range.

    Examples
    --------
    >>> x = project_divergence_ball([1.0, 0.0, 0.0], [0.5, 0.25, 0.25], 0.1)
    >>> x.round(6)
    array([0.719795, 0.140103, 0.140103])
    """
    a, c, r = ball("project_divergence_ball", v, q, radius, False)
    return inputs.each(lambda row: divergence_point(row, c, r)[0], a)


def divergence_point(v: np.ndarray, q: np.ndarray, r: float) -> tuple[np.ndarray, float]:
    """Return the projection of v and the multiplier mu of the ball."""
    on, out = q > 0.0, np.zeros(v.size)
    w, c = v[on] - v[on].max(), q[on]
    if r == 0.0:
        return q.copy(), np.inf
    out[on] = project_simplex(w)
    if divergence(out, q) <= (1 + 32 * EPS) * r:
        return out, 0.0
    mu = low = high = max(1.0, float(-w.min()))
    while divergence(_omega_point(w, c, high), c) > r and high < 1e200:
        high *= 16.0
    while divergence(_omega_point(w, c, low), c) <= r and low > 1e-200:
        low /= 16.0
    mu = _root(lambda t: divergence(_omega_point(w, c, t), c) - r, low, high)
    out[on] = _omega_point(w, c, mu)
    return out, mu


def _omega_point(v: np.ndarray, q: np.ndarray, mu: float) -> np.ndarray:
    """x_i = mu omega((v_i - tau)/mu + log(q_i/mu)) with sum 1."""
    from scipy.special import wrightomega

    prior = np.log(q)
    tau = float(np.max(v + mu * prior)) - 1.0  # one entry is 1
    for _ in range(200):
        x = mu * wrightomega((v - tau) / mu + (prior - np.log(mu)))
        excess = x.sum() - 1.0
        if excess <= 4 * EPS:
            break
        after = tau + excess / np.sum(x / (x + mu))
        if after <= tau:
            break
        tau = after
    return np.asarray(x / x.sum())


def project_kl_divergence_ball(v: Any, q: Any, radius: float) -> np.ndarray:
    """Return argmin KL(x‖v) over {x in the simplex: KL(x‖q) <= radius} for every row.

    Outside the ball x_i is proportional to v_i^t q_i^(1 - t), and t in (0, 1) makes the divergence the radius.

    Parameters
    ----------
    v : array (..., p)
        Nonnegative, at most 1e150, not all zero.
    q : array (p,)
        A probability vector. Where q is 0, x is.
    radius : float
        Nonnegative.

    Returns
    -------
    array (..., p), float64

    Raises
    ------
    ValueError, TypeError
        On input that is out of range, and if every point of the ball is positive somewhere where v is 0.

    Examples
    --------
    >>> project_kl_divergence_ball([0.5, 0.5], [0.2, 0.8], 10.0)
    array([0.5, 0.5])
    """
    who = "project_kl_divergence_ball"
    a, c, r = ball(who, v, q, radius, True)
    return inputs.each(lambda row: geometric_point(who, row, c, r)[0], a)


def geometric_point(who: str, v: np.ndarray, q: np.ndarray, r: float) -> tuple[np.ndarray, float]:
    """Return the KL projection of v and t."""
    on, out = (q > 0.0) & (v > 0.0), np.zeros(v.size)
    prior, pull = np.log(q[on]), np.log(v[on]) - np.log(q[on])

    def at(t: float) -> np.ndarray:
        z = prior + t * pull
        out[on] = fixed_sum(np.exp(z - z.max(initial=-np.inf)), 1.0)
        return out.copy()

    if not on.any() or (not on[q > 0.0].all() and -np.log(q[on].sum()) > r):
        raise bad(f"{who}: v", "be positive where points of the ball are", "zeros there", "enlarge the radius")
    if r == 0.0:
        return q.copy(), 0.0
    if divergence(at(1.0), q) <= (1 + 32 * EPS) * r:
        return at(1.0), 1.0
    t = _root(lambda t: divergence(at(t), q) - r, 1e-200, 1.0)
    return at(t), t
