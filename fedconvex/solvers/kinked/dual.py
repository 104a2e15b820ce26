"""Dual coordinate ascent on the rows of one task, and the passes over rows that tasks share. Private kernels.

Task t weighs its rows by c_t. Its subproblem in delta, with a = alpha + delta and rho > 0, is

    G(delta) = sum_i c l*(-a_i) + <w, c X'delta> + (rho/2) ‖c X'delta‖^2,

its dual P(u) = sum_i c l(x_i'u) + <u, v> + ‖u - w‖^2/(2 rho) with v = c X'alpha. At u = w + rho c X'delta the local gap
is G + P = c sum_i [l(z_i) + l*(-a_i) + a_i z_i], z_i = x_i'u, and G(0) - G = c sum_i [l*(-alpha_i) - l*(-a_i)]
- (‖u‖^2 - ‖w‖^2)/(2 rho).

Rows of C classes have dual variables alpha_i (C,) and scores z_i = (x_i'u_1, ..., x_i'u_C); u is flat, (C d,). A step
then moves all of a row's dual variables, to the exact minimiser (`fedconvex.entropic`).
"""

from __future__ import annotations

import numpy as np

from fedconvex.draws import below
from fedconvex.kernels.cache import kernel, reduction, strict_part
from fedconvex.kernels.dispatch import by_output, conjugate, dual_step, dual_steps, slope, slopes, value
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


def _steps_one(loss, X, y, norms, lo, n, first, last, replacement, state, rho, alpha, u, pool, rows, z):
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


def _steps_many(loss, X, y, norms, lo, n, first, last, replacement, state, rho, alpha, u, pool, rows, z):
    C = loss.n_classes
    d = u.size // C
    while first < last:
        count = min(n, last - first)
        draw_order(state, first, n, count, replacement, pool, rows)
        for b in range(count):
            i = np.uint64(lo + rows[b])
            for k in range(C):
                z[k] = row_dot(X, i, u[k * d : (k + 1) * d])
            dual_steps(loss, alpha[i], z[:C], z[C : 3 * C], rho * norms[i], y[i])
            for k in range(C):
                if z[k] != 0.0:
                    row_axpy(X, i, rho * z[k], u[k * d : (k + 1) * d])
        first += count


row_steps = by_output(_steps_one, _steps_many)  # with room z (3 C,) for a row of several classes


@kernel
def conjugate_sum(loss, y, lo, hi, alpha):
    """Sum of l*(-alpha_i) over rows lo:hi."""
    total = 0.0
    for i in range(lo, hi):
        total += conjugate(loss, -alpha[i], y[i])
    return total


@kernel
def class_conjugate_sum(loss, y, lo, hi, alpha, room):
    """Sum of l*(-alpha_i) over rows lo:hi of several classes."""
    total, a = 0.0, room[: alpha.shape[1]]
    for i in range(lo, hi):
        for k in range(a.size):
            a[k] = -alpha[i, k]
        total += conjugate(loss, a, y[i])
    return total


def _conjugates_one(loss, y, lo, hi, alpha, room):
    return conjugate_sum(loss, y, lo, hi, alpha)


def _conjugates_many(loss, y, lo, hi, alpha, room):
    return class_conjugate_sum(loss, y, lo, hi, alpha, room)


conjugates = by_output(_conjugates_one, _conjugates_many)  # sum of l*(-alpha_i), with room for a row


def _gap_one(loss, X, y, norms, lo, hi, alpha, u, room):
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


def _gap_many(loss, X, y, norms, lo, hi, alpha, u, room):
    C = loss.n_classes
    d, z, a = u.size // C, room[:C], room[C : 2 * C]
    total, size, length = 0.0, 0.0, 0.0
    for j in range(u.size):
        length += u[j] * u[j]
    length = np.sqrt(length)
    for i in range(lo, hi):
        both, product = 0.0, 0.0
        for k in range(C):
            z[k], a[k] = row_dot(X, i, u[k * d : (k + 1) * d]), -alpha[i, k]
        for k in range(C):
            both += abs(alpha[i, k])
            product += alpha[i, k] * z[k]
        primal, dual = value(loss, z, y[i]), conjugate(loss, a, y[i])
        slopes(loss, z, y[i], z)
        for k in range(C):
            both += abs(z[k])
        total += primal + dual + product
        size += abs(primal) + abs(dual) + both * (10.0 + np.sqrt(norms[i]) * length)  # |log p| d p is below 40 eps
    return total, ROUNDING * size


task_gap = by_output(_gap_one, _gap_many)  # with room for two rows of scores


def _image_one(loss, X, lo, hi, c, alpha, v):
    for i in range(lo, hi):
        if alpha[i] != 0.0:
            row_axpy(X, i, c * alpha[i], v)


def _image_many(loss, X, lo, hi, c, alpha, v):
    C = loss.n_classes
    d = v.size // C
    for i in range(lo, hi):
        for k in range(C):
            if alpha[i, k] != 0.0:
                row_axpy(X, i, c * alpha[i, k], v[k * d : (k + 1) * d])


add_image = by_output(_image_one, _image_many)  # v += c X'alpha over rows lo:hi


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
def dual_sweeps(loss, X, y, ptr, norms, c, mbar, keys, alpha, V, u, pool, rows, z):
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
        row_steps(loss, X, y, norms, ptr[t], n, 0, n, False, keys[t], mbar[t, t] * c[t], alpha, u, pool, rows, z)
        for j in range(u.size):
            V[t, j] += u[j] / mbar[t, t]


@kernel
def proximal_sweeps(loss, X, y, ptr, norms, c, W, eta, sweeps, keys, alpha, V, u, pool, rows, z):
    """Coordinate steps of every task on its own, from w_t with rho = eta: tasks do not meet within a sweep."""
    for t in range(ptr.size - 1):
        n = ptr[t + 1] - ptr[t]
        for j in range(u.size):
            u[j] = W[t, j]
        for i in range(n):
            pool[i] = i
        last = sweeps * n
        row_steps(loss, X, y, norms, ptr[t], n, 0, last, False, keys[t], eta * c[t], alpha, u, pool, rows, z)
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
