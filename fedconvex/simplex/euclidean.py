"""Euclidean projections onto the simplex, its capped and weighted forms, and the l1 ball.

Simplex: the projection is x_i = max(v_i - tau, 0) with sum x = s. In terms of the gaps y_i = max v - v_i it is
x_i = max(t - y_i, 0), and t solves sum max(t - y_i, 0) = s.

    1. A strided sample of m entries is solved first: its tau is at most the true one, as its sum has fewer terms. Where
       few entries lie above it, the others are dropped. Elsewhere the sample with scale s m/p gives a guess of t.
    2. Newton's method on the convex, piecewise linear equation decreases t to the solution (Michelot's algorithm, from
       a better start).
    3. Recentre: c = max v - t, rounded. The differences v_i - c are exact, or small, or irrelevant; Newton's method for
       sum max((v_i - c) + d, 0) = s gives d, and c - d is tau to twice the working precision.

Rows of at most 32 entries are projected in this way side by side, in `short_rows`.

Boxes and weights: x_i(tau) = clip(v_i - tau a_i, 0, u_i) with sum a_i x_i = s; a bracketed Newton method, recentred in
the same way with exact products.

References
----------
L. Condat, "Fast projection onto the simplex and the l1 ball", Math. Program. 158 (2016), 575-585.
C. Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex of R^n", JOTA 50
(1986), 195-200.
T. J. Dekker, "A floating-point technique for extending the available precision", Numer. Math. 18 (1971), 224-242.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels.cache import DISABLED, kernel, part, strict_part
from fedconvex.simplex import inputs
from fedconvex.simplex.short_rows import LONGEST, project_short_rows

EPS = 2.0**-52  # here, where the cache of kernels sees it
BLOCK = 8 if DISABLED else 128  # entries per plain sum (in lanes, where compiled); sums of blocks are compensated
SAMPLE = 4096  # entries of the sample at most, a sixteenth of all at most
LARGE = 512  # rows from this size on are sampled
FEASIBLE = 16 * EPS  # a nonnegative row whose sum is s up to this is its own projection
PIECE = 1_000_000  # entries that are projected at once: Ctrl-C is heard between two such pieces
_MASK = np.int64(0x7FFFFFFFFFFFFFFF)


# ---------------------------------------------------------------- kernels: the simplex


@part
def _extent(v: np.ndarray) -> Any:
    """max v_i and sum v_i; doubles are compared as integers of the same order, which vectorises."""
    bits = v.view(np.int64)
    top, total = ~_MASK, 0.0
    for i in range(v.size):
        top = max(top, bits[i] ^ ((bits[i] >> np.int64(63)) & _MASK))
        total += v[i]
    return np.int64(top ^ ((top >> np.int64(63)) & _MASK)).view(np.float64), total


@part
def _block(v: np.ndarray, top: float, t: float) -> Any:
    """#{y_i < t} and their sum, y_i = top - v_i; two loops, which vectorise where one does not."""
    n, total = 0, 0.0
    for i in range(v.size):
        n += top - v[i] < t
    for i in range(v.size):
        y = top - v[i]
        total += y if y < t else 0.0
    return n, total


@strict_part
def _below(v: np.ndarray, top: float, t: float) -> Any:
    """Like `_block`, with compensated sums of blocks."""
    n, total, lost = 0, 0.0, 0.0
    for i in range(0, v.size, BLOCK):
        k, part = _block(v[i : i + BLOCK], top, t)
        n += k
        part -= lost
        after = total + part
        lost = (after - total) - part
        total = after
    return n, total


@strict_part
def _newton(v: np.ndarray, top: float, s: float, t: float, before: int, enough: float) -> Any:
    """Newton's method for sum max(t - y_i, 0) = s: t <- (s + sum_{y < t} y)/n, n = #{y < t}, and the last n.

    From either side the first step leads to the right of the solution, then t decreases. It ends when n repeats (or is
    `before` at once), when t does not decrease, or when the sum lies in [s, enough].
    """
    first = True
    while True:
        n, total = _below(v, top, t)
        if n == 0:
            return t, 0
        after, mass = min((s + total) / n, s), n * t - total
        if n == before or (after >= t and not first) or s <= mass <= enough:
            return after, n
        first, before, t = False, n, after


@part
def _above(v: np.ndarray, floor: float) -> int:
    """#{v_i > floor}."""
    n = 0
    for i in range(v.size):
        n += v[i] > floor
    return n


@strict_part
def _gather(v: np.ndarray, floor: float, out: np.ndarray) -> Any:
    """Entries above the floor; in long rows blocks without any are skipped; no other branches."""
    n = 0
    for i in range(0, v.size, 64):
        block = v[i : i + 64]
        if v.size < 16 * LARGE or _above(block, floor) > 0:
            for j in range(block.size):
                out[n] = block[j]
                n += block[j] > floor
    return out[:n]


@strict_part
def _copy(v: np.ndarray, out: np.ndarray) -> None:
    """out = v; an assignment of slices would be compiled with its error message."""
    for i in range(v.size):
        out[i] = v[i]


@strict_part
def _write(v: np.ndarray, c: float, d: float, out: np.ndarray) -> Any:
    """x_i = max((v_i - c) + d, 0), and the number of positive ones."""
    n = 0
    for i in range(v.size):
        x = (v[i] - c) + d
        n += x > 0.0
        out[i] = x if x > 0.0 else 0.0
    return n


@strict_part
def _level_if_all(v: np.ndarray, top: float, total: float, s: float) -> float:
    """t = min(s, (s + sum y_i)/p), or s where rounding has eaten it."""
    t = min(s, (s - total) / v.size + top)
    return t if t > 0.0 else s


@strict_part
def _few(v: np.ndarray, s: float, buf: np.ndarray) -> Any:
    """Entries that can be positive, where a sample (left in buf) says that these are few, or v."""
    m = min(SAMPLE, v.size // 16)
    for i in range(m):
        buf[i] = v[i * (v.size // m)]
    top, total = _extent(buf[:m])
    t, k = _newton(buf[:m], top, s, _level_if_all(buf[:m], top, total, s), -1, 1.2 * s)
    return v if 8 * k > m else _gather(v, top - t - 1e-13 * s - 4 * EPS * abs(top), buf)


@strict_part
def _start(v: np.ndarray, top: float, total: float, s: float, buf: np.ndarray) -> Any:
    """Entries that can be positive, t with s/2 <= sum max(t - y_i, 0) <= 2s nearby, and the last count of y_i < t."""
    p, t = v.size, _level_if_all(v, top, total, s)
    if p < LARGE:
        t, n = _newton(v, top, s, t, p, 2 * s)
        return v, t, n
    m = min(SAMPLE, p // 16)
    guess, _ = _newton(buf[:m], top, s * (m / p), t, -1, 0.0)
    n, total = _below(v, top, guess)
    t = min(s, (s + total) / n) if n > 0 else s
    if 0.5 * s <= n * guess - total <= 2 * s:
        return v, t, n
    if 4 * n <= p:
        v = _gather(v, top - t - 1e-13 * s - 4 * EPS * abs(top), buf)
    t, n = _newton(v, top, s, t, -1, 2 * s)
    return v, t, n


@strict_part
def _feasible(v: np.ndarray, s: float) -> bool:
    """Whether v >= 0 and sum v = s up to rounding."""
    n, total = _below(v, 0.0, 5e-324)  # -v_i <= 0, and their sum
    return n == v.size and abs(total + s) <= FEASIBLE * s


@strict_part
def _project(v: np.ndarray, s: float, buf: np.ndarray, out: np.ndarray) -> None:
    """Write the projection of v into out; buf holds p + 1 entries."""
    w = _few(v, s, buf) if v.size >= LARGE else v
    top, total = _extent(w)
    few = w.size < v.size
    if few:
        t, n = _newton(w, top, s, _level_if_all(w, top, total, s), -1, 2 * s)
    else:
        if abs(total - s) <= 1e-9 * s and top <= 2 * s and _feasible(v, s):
            _copy(v, out)
            return
        w, t, n = _start(v, top, total, s, buf)
    c = top - t
    d, n = _newton(w, c, s, 4 * EPS * (abs(c) + s), n, (1 + 1e-6) * s if w.size == v.size else 0.0)
    if few and abs(c - d) <= 1e-9 * s and _feasible(v, s):
        _copy(v, out)
    elif _write(v, c, d, out) != n:
        d, n = _newton(w, c, s, d, -1, 0.0)
        _write(v, c, d, out)


@kernel
def project_rows(v: np.ndarray, s: float, out: np.ndarray) -> None:
    """Project every row."""
    buf = np.empty(v.shape[1] + 1)
    for r in range(v.shape[0]):
        _project(v[r], s, buf, out[r])


# ---------------------------------------------------------------- kernels: boxes and weights


@part
def _box_block(v: np.ndarray, a: np.ndarray, u: np.ndarray, t: float) -> Any:
    """g = sum a_i x_i and k = sum of a_i^2 over 0 < x_i < u_i, x_i = clip(v_i - t a_i, 0, u_i)."""
    g, k = 0.0, 0.0
    for i in range(v.size):
        x = v[i] - t * a[i]
        g += a[i] * (0.0 if x < 0.0 else u[i] if x > u[i] else x)
        k += a[i] * a[i] if 0.0 < x < u[i] else 0.0
    return g, k


@strict_part
def _box_mass(v: np.ndarray, a: np.ndarray, u: np.ndarray, t: float) -> Any:
    """Like `_box_block`, with compensated sums of blocks."""
    g, k, lost = 0.0, 0.0, 0.0
    for i in range(0, v.size, BLOCK):
        part, more = _box_block(v[i : i + BLOCK], a[i : i + BLOCK], u[i : i + BLOCK], t)
        k += more
        part -= lost
        after = g + part
        lost = (after - g) - part
        g = after
    return g, k


@strict_part
def _middle(lo: float, hi: float) -> float:
    """Return the double half way between two, counted in doubles: 64 halvings leave none between."""
    i, j = np.float64(lo).view(np.int64), np.float64(hi).view(np.int64)
    i, j = i ^ ((i >> np.int64(63)) & _MASK), j ^ ((j >> np.int64(63)) & _MASK)
    m = (i >> np.int64(1)) + (j >> np.int64(1)) + (i & j & np.int64(1))
    return np.int64(m ^ ((m >> np.int64(63)) & _MASK)).view(np.float64)


@strict_part
def _bracket(v: np.ndarray, a: np.ndarray, u: np.ndarray, s: float) -> Any:
    """[lo, hi] with g(lo) >= s >= g(hi): one entry alone carries s at lo, or all are at their caps."""
    alone, full, hi = -np.inf, np.inf, -np.inf
    for i in range(v.size):
        hi = max(hi, v[i] / a[i])
        if a[i] * u[i] >= s:
            alone = max(alone, (v[i] - s / a[i]) / a[i])
        full = min(full, (v[i] - min(u[i], s / a[i])) / a[i])
    return max(alone, full), hi


@strict_part
def _level(v: np.ndarray, a: np.ndarray, u: np.ndarray, s: float, t: float) -> Any:
    """Solve g(t) = s from t: Newton inside a bracket, and bisection in every other step where that takes long."""
    lo, hi = _bracket(v, a, u, s)
    t = min(max(t, lo), hi)
    for i in range(160):
        g, k = _box_mass(v, a, u, t)
        after = t + (g - s) / k if k > 0.0 else t
        if abs(g - s) <= 2 * EPS * s:
            return after
        if g > s:
            lo = t
        else:
            hi = t
        if not lo < after < hi or (i > 16 and i % 2 == 1):
            if k > 0.0 and after == t:
                return t
            after = _middle(lo, hi)
            if not lo < after < hi:
                return t
        t = after
    return t


@strict_part
def _recentre(w: np.ndarray, e: np.ndarray, a: np.ndarray, c: float) -> None:
    """w_i + e_i <- w_i + e_i - c a_i, with the exact product (Dekker) and the exact difference (Knuth)."""
    z = 134217729.0 * c
    ch = z - (z - c)
    cl = c - ch
    for i in range(w.size):
        z = 134217729.0 * a[i]
        h = z - (z - a[i])
        f = a[i] - h
        q = c * a[i]
        low = ((ch * h - q) + ch * f + cl * h) + cl * f
        d = w[i] - q
        z = d - w[i]
        low = e[i] + ((w[i] - (d - z)) - (q + z)) - low
        w[i] = d + low
        e[i] = (d - w[i]) + low


@strict_part
def _box_project(v: np.ndarray, a: np.ndarray, u: np.ndarray, s: float, low: np.ndarray, out: np.ndarray) -> None:
    """Write argmin |x - v| over 0 <= x <= u, a'x = s into out; low is scratch."""
    g, most, va, aa, inside = 0.0, 0.0, 0.0, 0.0, True
    for i in range(v.size):
        most += a[i] * u[i]
        va += a[i] * v[i]
        aa += a[i] * a[i]
        inside &= 0.0 <= v[i] <= u[i]
        out[i] = u[i]
    if most <= (1 + 4 * EPS) * s:
        return
    g, _ = _box_mass(v, a, u, 0.0)
    _copy(v, out)
    if inside and abs(g - s) <= FEASIBLE * s:
        return
    t, low[:] = (va - s) / aa, 0.0  # the solution if all were free
    for _ in range(3):
        _recentre(out, low, a, t)
        t = _level(out, a, u, s, 0.0)
    for i in range(v.size):
        out[i] = min(max(out[i] - t * a[i], 0.0), u[i])


@kernel
def _box_rows(v: np.ndarray, a: np.ndarray, u: np.ndarray, s: float, out: np.ndarray) -> None:
    """Project every row; a and u have one row or as many as v."""
    low = np.empty(v.shape[1])
    for r in range(v.shape[0]):
        _box_project(v[r], a[r % a.shape[0]], u[r % u.shape[0]], s, low, out[r])


# ---------------------------------------------------------------- Euclidean projections


def project_simplex(v: Any, scale: float = 1.0, cap: Any = np.inf, weights: Any = 1.0) -> np.ndarray:
    """Project every row onto {0 <= x <= cap, sum_i weights_i x_i = scale}.

    A row of the set, its sum the scale up to 16 units of rounding (3.6e-15, relative), is returned as it is: a second
    projection changes no bit.

    Parameters
    ----------
    v : array (..., p)
        Finite, of any magnitude; with caps or weights at most 1e150 in absolute value.
    scale : float
        0, or in [1e-150, 1e150].
    cap : float or array that broadcasts to v
        Nonnegative; inf for none. The weighted caps of a row must sum to the scale or more.
    weights : float or array that broadcasts to v
        Positive, in [1e-50, 1e50].

    Returns
    -------
    array (..., p), float64
        Off by a few units of rounding of the scale, however large v is; `simplex_residual` measures it.

    Raises
    ------
    ValueError, TypeError
        If v is empty along its last axis, not finite or not real, another argument is out of range, or the caps leave
        no point.

    Examples
    --------
    >>> project_simplex([0.75, 0.5, -2.0])
    array([0.625, 0.375, 0.   ])
    >>> project_simplex([3.0, 1.0, 0.5], cap=0.5), project_simplex([1.0, 1.0], weights=[1.0, 2.0])
    (array([0.5, 0.5, 0. ]), array([0.6, 0.2]))
    """
    who = "project_simplex"
    a, s = inputs.rows(f"{who}: v", v), inputs.scale(who, scale)
    out, rows = np.empty_like(a), a.reshape(-1, a.shape[-1])
    if inputs.number(who, cap) and inputs.number(who, weights) and cap == np.inf and weights == 1.0:
        w: Any = None
        u: Any = None
    else:
        inputs.moderate(f"{who}: v", a)
        w, u = inputs.weights(who, weights, a.shape), inputs.caps(who, cap, a.shape)
        inputs.room(who, w * u, s)
    if s == 0.0:
        out[...] = 0.0
    found = out.reshape(rows.shape)
    step = max(1, PIECE // rows.shape[1])
    for i in range(0, len(rows) if s > 0.0 else 0, step):
        some = slice(i, i + step)
        if w is None or u is None:
            (project_short_rows if rows.shape[1] <= LONGEST else project_rows)(rows[some], s, found[some])
        else:
            _box_rows(rows[some], *(c if len(c) == 1 else c[some] for c in (w, u)), s, found[some])
    return out


def project_l1_ball(v: Any, radius: float = 1.0) -> np.ndarray:
    """Project every row onto {sum |x_i| <= radius}: rows inside are returned as they are.

    Parameters
    ----------
    v : array (..., p)
    radius : float
        0, or in [1e-150, 1e150].

    Returns
    -------
    array (..., p), float64

    Raises
    ------
    ValueError, TypeError
        On input that is out of range.

    Examples
    --------
    >>> project_l1_ball([2.0, -1.5])
    array([ 0.75, -0.25])
    """
    who = "project_l1_ball"
    a, s = inputs.rows(f"{who}: v", v), inputs.scale(who, radius)
    size = np.abs(a)
    with np.errstate(over="ignore"):
        inside = size.sum(axis=-1, keepdims=True) <= s
    return np.where(inside, a, np.copysign(project_simplex(size, s), a))
