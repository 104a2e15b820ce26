"""Projections of short rows onto the simplex: sixteen rows side by side, number l of every vector belongs to row l.

Michelot's algorithm and its recentred second solution, as in `euclidean`. A row is projected to the same bits alone and
among others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels.cache import kernel, strict_part
from fedconvex.kernels.vectors import HALF, WIDTH, differ, gather, less, load, scatter, splat, store

LONGEST = 32  # entries of a row from which on its own sums fill the vector units
EPS = 2.0**-52  # here, where the cache of kernels sees it
FEASIBLE = 16 * EPS  # a nonnegative row whose sum is s up to this is its own projection


@strict_part
def _sums(y: np.ndarray, p: int, top: Any, t: Any) -> Any:
    """n = #{g_i < t} and the sum of these, g_i = top - y_i; four entries at a time, which rounds less."""
    zero, one = splat(0.0), splat(1.0)
    n, total = zero, zero
    for i in range(0, 8 * (p - p % 4), 32):
        a, b, c, d = (
            top - load(y, i, 8 * p),
            top - load(y, i + 8, 8 * p),
            top - load(y, i + 16, 8 * p),
            top - load(y, i + 24, 8 * p),
        )
        n = n + ((less(a, t, one, zero) + less(b, t, one, zero)) + (less(c, t, one, zero) + less(d, t, one, zero)))
        total = total + ((less(a, t, a, zero) + less(b, t, b, zero)) + (less(c, t, c, zero) + less(d, t, d, zero)))
    for i in range(8 * (p - p % 4), 8 * p, 8):
        g = top - load(y, i, 8 * p)
        n, total = n + less(g, t, one, zero), total + less(g, t, g, zero)
    return n, total


@strict_part
def _newton(y: np.ndarray, p: int, top: Any, s: Any, t: Any) -> Any:
    """Newton's method for sum max(t - g_i, 0) = s: t <- (s + sum_{g < t} g)/n, n = #{g < t}, until no n changes."""
    zero = splat(0.0)
    n = zero
    for _ in range(p + 3):
        m, total = _sums(y, p, top, t)
        after = (s + total) / m
        t = less(zero, m, less(after, s, after, s), t)
        if not differ(m, n):
            return t
        n = m
    return t


@strict_part
def _project(y: np.ndarray, p: int, s: Any) -> None:
    """Project sixteen rows: entries i of eight rows stand side by side, from y[8 i] on and from y[8 (p + i)] on."""
    zero = splat(0.0)
    top = low = load(y, 0, 8 * p)
    for i in range(8, 8 * p, 8):
        x = load(y, i, 8 * p)
        top, low = less(top, x, x, top), less(x, low, x, low)
    _, total = _sums(y, p, zero, splat(np.inf))
    off = total + s
    off = less(off, zero, zero - off, off)
    level = (s + total) / splat(float(p)) + top
    level = less(level, s, level, s)
    c = top - _newton(y, p, top, s, less(zero, level, level, s))
    size = less(c, zero, zero - c, c)
    d = _newton(y, p, c, s, splat(4 * EPS) * (size + s))
    near = less(splat(FEASIBLE) * s, off, zero, less(low, zero, zero, splat(1.0)))  # 1 for rows that are kept
    for i in range(0, 8 * p, 8):
        x = load(y, i, 8 * p)
        moved = (x - c) + d
        store(less(zero, near, x, less(zero, moved, moved, zero)), y, i, 8 * p)


@kernel
def project_short_rows(v: np.ndarray, s: float, out: np.ndarray) -> None:
    """Project every row."""
    p = v.shape[1]
    y, rows = np.empty(WIDTH * p), np.empty(WIDTH, np.int64)
    for first in range(0, v.shape[0], WIDTH):
        for l in range(WIDTH):
            rows[l] = min(first + l, v.shape[0] - 1)  # beyond the last row, copies of it
        for half in range(0, WIDTH, HALF):
            gather(v, rows, half, p, y)
        _project(y, p, splat(s))
        for half in range(0, WIDTH, HALF):
            scatter(y, rows, half, p, out)
