"""Projections of short rows onto the simplex: rows side by side, entry l of every array belongs to row l.

Michelot's algorithm and its recentred second solution, as in `euclidean`; the processor's vector units work on several
rows at once. A row is projected to the same bits alone and among others.
"""

from __future__ import annotations

import numpy as np

from fedconvex.kernels.cache import kernel, strict_part

LONGEST = 32  # entries of a row from which on its own sums fill the vector units
ROWS = 64  # side by side: rows of ten stay in the cache next to the core
EPS = 2.0**-52  # here, where the cache of kernels sees it
FEASIBLE = 16 * EPS  # a nonnegative row whose sum is s up to this is its own projection


@strict_part
def _take(v: np.ndarray, first: int, y: np.ndarray, top: np.ndarray, low: np.ndarray) -> None:
    """y[:, l] = row first + l of v, with its largest and its smallest entry; beyond the last row, copies of it."""
    for l in range(y.shape[1]):
        r = min(first + l, v.shape[0] - 1)
        for i in range(y.shape[0]):
            y[i, l] = v[r, i]
        top[l] = low[l] = y[0, l]
    for i in range(1, y.shape[0]):
        for l in range(y.shape[1]):
            top[l] = y[i, l] if y[i, l] > top[l] else top[l]
            low[l] = y[i, l] if y[i, l] < low[l] else low[l]


@strict_part
def _one(g: float, t: float) -> float:
    """1 where g < t, else 0."""
    return 1.0 if g < t else 0.0


@strict_part
def _below(g: float, t: float) -> float:
    """Return g where g < t, else 0."""
    return g if g < t else 0.0


@strict_part
def _sums(y: np.ndarray, top: np.ndarray, t: np.ndarray, n: np.ndarray, total: np.ndarray) -> None:
    """n = #{g_i < t} and the sum of these, g_i = top - y_i; four entries at a time, which rounds less."""
    for l in range(t.size):
        n[l] = total[l] = 0.0
    four = y.shape[0] - y.shape[0] % 4
    for i in range(0, four, 4):
        for l in range(t.size):
            a, b, c, d = top[l] - y[i, l], top[l] - y[i + 1, l], top[l] - y[i + 2, l], top[l] - y[i + 3, l]
            n[l] += (_one(a, t[l]) + _one(b, t[l])) + (_one(c, t[l]) + _one(d, t[l]))
            total[l] += (_below(a, t[l]) + _below(b, t[l])) + (_below(c, t[l]) + _below(d, t[l]))
    for i in range(four, y.shape[0]):
        for l in range(t.size):
            g = top[l] - y[i, l]
            n[l] += _one(g, t[l])
            total[l] += _below(g, t[l])


@strict_part
def _newton(y: np.ndarray, top: np.ndarray, s: float, t: np.ndarray, n: np.ndarray, sums: np.ndarray) -> None:
    """Newton's method for sum max(t - g_i, 0) = s: t <- (s + sum_{g < t} g)/n, n = #{g < t}, until no n changes."""
    for l in range(t.size):
        n[l] = 0.0
    for _ in range(y.shape[0] + 3):
        _sums(y, top, t, sums[0], sums[1])
        changed = 0.0
        for l in range(t.size):
            m = sums[0, l]
            changed += abs(m - n[l])
            after = (s + sums[1, l]) / m
            after = after if after < s else s
            t[l] = after if m > 0.0 else t[l]
            n[l] = m
        if changed == 0.0:
            return


@strict_part
def _write(y: np.ndarray, c: np.ndarray, d: np.ndarray, kept: np.ndarray, first: int, out: np.ndarray) -> None:
    """x_i = max((v_i - c) + d, 0), or v_i where a row is kept."""
    for i in range(y.shape[0]):
        for l in range(d.size):
            x = (y[i, l] - c[l]) + d[l]
            x = x if x > 0.0 else 0.0
            y[i, l] = y[i, l] if kept[l] > 0.0 else x
    for l in range(min(d.size, out.shape[0] - first)):
        for i in range(y.shape[0]):
            out[first + l, i] = y[i, l]


@kernel
def project_short_rows(v: np.ndarray, s: float, out: np.ndarray) -> None:
    """Project every row."""
    width = min(ROWS, v.shape[0])
    y, room, sums = np.empty((v.shape[1], width)), np.empty((7, width)), np.empty((2, width))
    top, low, t, c, d, kept, n = room[0], room[1], room[2], room[3], room[4], room[5], room[6]
    for first in range(0, v.shape[0], width):
        _take(v, first, y, top, low)
        for l in range(width):
            c[l], d[l] = 0.0, np.inf
        _sums(y, c, d, sums[0], sums[1])
        for l in range(width):
            kept[l] = 1.0 if low[l] >= 0.0 and abs(sums[1, l] + s) <= FEASIBLE * s else 0.0
            level = (s + sums[1, l]) / v.shape[1] + top[l]
            level = level if level < s else s
            t[l] = level if level > 0.0 else s
        _newton(y, top, s, t, n, sums)
        for l in range(width):
            c[l] = top[l] - t[l]
            d[l] = 4 * EPS * (abs(c[l]) + s)
        _newton(y, c, s, d, n, sums)
        _write(y, c, d, kept, first, out)
