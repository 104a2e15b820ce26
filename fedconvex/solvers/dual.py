"""Dual coordinate ascent on the rows of one task, and the passes over rows that tasks share. Private kernels.

Task t weighs its rows by c_t. Its subproblem in delta, with a = alpha + delta and rho > 0, is

    G(delta) = sum_i c l*(-a_i) + <w, c X'delta> + (rho/2) ‖c X'delta‖^2,

its dual P(u) = sum_i c l(x_i'u) + <u, v> + ‖u - w‖^2/(2 rho) with v = c X'alpha. At u = w + rho c X'delta the local gap
is G + P = c sum_i [l(z_i) + l*(-a_i) + a_i z_i], z_i = x_i'u, and G(0) - G = c sum_i [l*(-alpha_i) - l*(-a_i)]
- (‖u‖^2 - ‖w‖^2)/(2 rho).
"""

from __future__ import annotations

import numpy as np

from fedconvex.draws import below
from fedconvex.kernels.cache import kernel, part, reduction, strict_part
from fedconvex.kernels.dispatch import conjugate, dual_step, slope, value
from fedconvex.kernels.rows import row_axpy, row_dot

# mypy: disable-error-code="no-untyped-def"

ROUNDING = 4.0 * float(np.finfo(float).eps)  # of what a sum is made of


@strict_part
def draw_order(state, first, n, count, replacement, pool, rows):
    """rows[:count] = rows below n: different ones, by a shuffle of the pool's n numbers, or independent draws."""
    for b in range(count):
        if replacement:
            rows[b] = below(state, first + b, n)
        else:
            i = b + below(state, first + b, n - b)
            k = pool[i]
            pool[i] = pool[b]
            pool[b] = rows[b] = k


@part
def coordinate_steps(loss, X, y, norms, lo, n, first, last, replacement, state, rho, alpha, u, pool, rows):
    """Take steps number first, ..., last-1: draw i; delta = dual_step; alpha_i += delta; u += rho delta x_i.

    rho includes c. The pool holds a permutation of 0, ..., n-1; every n steps are a pass in a fresh order. Rows are
    drawn before they are visited: their loads then overlap.
    """
    while first < last:
        count = min(n, last - first)
        draw_order(state, first, n, count, replacement, pool, rows)
        for b in range(count):
            i = np.uint64(lo + rows[b])
            delta = dual_step(loss, alpha[i], row_dot(X, i, u), rho * norms[i], y[i])
            if delta != 0.0:
                alpha[i] += delta
                row_axpy(X, i, rho * delta, u)
        first += count


@kernel
def conjugate_sum(loss, y, lo, hi, alpha):
    """Sum of l*(-alpha_i) over rows lo:hi."""
    total = 0.0
    for i in range(lo, hi):
        total += conjugate(loss, -alpha[i], y[i])
    return total


@part
def local_gap(loss, X, y, norms, lo, hi, alpha, u):
    """Sum over rows lo:hi of l(z_i) + l*(-a_i) + a_i z_i, z_i = x_i'u, and how far rounding may have moved it."""
    total, size, length = 0.0, 0.0, 0.0
    for j in range(u.size):
        length += u[j] * u[j]
    length = np.sqrt(length)
    for i in range(lo, hi):
        z = row_dot(X, i, u)
        primal, dual = value(loss, z, y[i]), conjugate(loss, -alpha[i], y[i])
        total += primal + dual + alpha[i] * z
        size += abs(primal) + abs(dual) + (abs(alpha[i]) + abs(slope(loss, z, y[i]))) * np.sqrt(norms[i]) * length
    return total, ROUNDING * size


@reduction
def task_scores(X, ptr, W, z):
    """z_i = x_i'w_t for the rows i of task t."""
    for t in range(W.shape[0]):
        for i in range(ptr[t], ptr[t + 1]):
            z[i] = row_dot(X, i, W[t])


@reduction
def task_sums(X, ptr, c, s, V):
    """v_t = c_t sum of s_i x_i over the rows i of task t."""
    for t in range(V.shape[0]):
        V[t, :] = 0.0
        for i in range(ptr[t], ptr[t + 1]):
            if s[i] != 0.0:
                row_axpy(X, i, c[t] * s[i], V[t])


@kernel
def steps_at_once(loss, alpha, z, q, y, delta):
    """delta_e = the dual step of a row with alpha_e, score z_e and curvature q_e, all from the same model."""
    for e in range(z.size):
        delta[e] = dual_step(loss, alpha[e], z[e], q[e], y[e])


@reduction
def drawn_scores(X, rows, w, z):
    """z_e = x_i'w for row i = rows[e]."""
    for e in range(rows.size):
        z[e] = row_dot(X, np.uint64(rows[e]), w)


@reduction
def drawn_sums(X, rows, s, out):
    """out += sum of s_e x_i, i = rows[e]."""
    for e in range(rows.size):
        if s[e] != 0.0:
            row_axpy(X, np.uint64(rows[e]), s[e], out)


@kernel
def dual_sweeps(loss, X, y, ptr, norms, c, mbar, keys, alpha, V, u, pool, rows):
    """One pass over the rows of task after task, every w_t = sum_s Mbar_ts v_s fresh: exact block ascent."""
    for t in range(ptr.size - 1):
        n = ptr[t + 1] - ptr[t]
        for j in range(u.size):
            u[j] = 0.0
            for s in range(V.shape[0]):
                u[j] += mbar[t, s] * V[s, j]
            V[t, j] -= u[j] / mbar[t, t]
        for i in range(n):
            pool[i] = i
        coordinate_steps(loss, X, y, norms, ptr[t], n, 0, n, False, keys[t], mbar[t, t] * c[t], alpha, u, pool, rows)
        for j in range(u.size):
            V[t, j] += u[j] / mbar[t, t]


@kernel
def proximal_sweeps(loss, X, y, ptr, norms, c, W, eta, sweeps, keys, alpha, V, u, pool, rows):
    """Coordinate steps of every task on its own, from w_t with rho = eta: tasks do not meet within a sweep."""
    for t in range(ptr.size - 1):
        n = ptr[t + 1] - ptr[t]
        for j in range(u.size):
            u[j] = W[t, j]
        for i in range(n):
            pool[i] = i
        last = sweeps * n
        coordinate_steps(loss, X, y, norms, ptr[t], n, 0, last, False, keys[t], eta * c[t], alpha, u, pool, rows)
        for j in range(u.size):
            V[t, j] += (u[j] - W[t, j]) / eta


@reduction
def ordered_steps(loss, X, y, norms, lo, hi, rho, alpha, u):
    """One pass over rows lo:hi in their order: delta = dual_step; alpha_i += delta; u += rho delta x_i."""
    for i in range(lo, hi):
        delta = dual_step(loss, alpha[i], row_dot(X, i, u), rho * norms[i], y[i])
        if delta != 0.0:
            alpha[i] += delta
            row_axpy(X, i, rho * delta, u)
