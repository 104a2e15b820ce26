"""Losses over rows: their sums, gradients and second derivatives. Private; callers validate.

Models are flat: (p,) with p = d, or p = C d for a loss with C outputs. Values of n rows are summed in about sqrt(n)
blocks, so that a sum takes part in 2 sqrt(n) roundings instead of n (`Objective.rounding`).
"""

from __future__ import annotations

import math

import numpy as np

from fedconvex.kernels.cache import kernel, part, reduction
from fedconvex.kernels.dispatch import by_output, curvature, slope, slopes, value
from fedconvex.kernels.rows import row_axpy, row_dot


def _sum_dense(loss, X, y, lo, hi, scale, w, g, room):
    total = 0.0
    i = lo
    while i + 4 <= hi:
        p = q = r = s = 0.0
        for t in range(w.size):
            p += X[i, t] * w[t]
            q += X[i + 1, t] * w[t]
            r += X[i + 2, t] * w[t]
            s += X[i + 3, t] * w[t]
        total += value(loss, p, y[i]) + value(loss, q, y[i + 1]) + value(loss, r, y[i + 2]) + value(loss, s, y[i + 3])
        p, q = scale * slope(loss, p, y[i]), scale * slope(loss, q, y[i + 1])
        r, s = scale * slope(loss, r, y[i + 2]), scale * slope(loss, s, y[i + 3])
        for t in range(w.size):
            g[t] += (p * X[i, t] + q * X[i + 1, t]) + (r * X[i + 2, t] + s * X[i + 3, t])
        i += 4
    while i < hi:
        z = row_dot(X, i, w)
        total += value(loss, z, y[i])
        row_axpy(X, i, scale * slope(loss, z, y[i]), g)
        i += 1
    return total


def _sum_sparse(loss, X, y, lo, hi, scale, w, g, room):
    total = 0.0
    for i in range(lo, hi):
        z = row_dot(X, i, w)
        total += value(loss, z, y[i])
        row_axpy(X, i, scale * slope(loss, z, y[i]), g)
    return total


def _sum_many(loss, X, y, lo, hi, scale, w, g, z):
    C = loss.n_classes
    d = w.size // C
    total = 0.0
    for i in range(lo, hi):
        for c in range(C):
            z[c] = row_dot(X, i, w[c * d : (c + 1) * d])
        total += value(loss, z, y[i])
        slopes(loss, z, y[i], z)
        for c in range(C):
            row_axpy(X, i, scale * z[c], g[c * d : (c + 1) * d])
    return total


# sum of l over rows lo:hi, and g += scale * (sum of their gradients); z is scratch for the C scores of a row
add_rows = by_output(_sum_dense, _sum_many, sparse=_sum_sparse)


BLOCK = 64  # most rows whose scores stand side by side, and entries of room for them
_ENTRIES = 4096  # of such rows, that stay in the first cache


@part
def _together(d):
    """So many rows of d columns at a time: a multiple of four."""
    return max(4, min(BLOCK, _ENTRIES // d // 4 * 4))


@part
def _scores(X, lo, hi, w, z):
    """z = the scores of rows lo:hi, four rows to one read of w."""
    i = lo
    while i + 4 <= hi:
        p = q = r = s = 0.0
        for t in range(w.size):
            p += X[i, t] * w[t]
            q += X[i + 1, t] * w[t]
            r += X[i + 2, t] * w[t]
            s += X[i + 3, t] * w[t]
        z[i - lo], z[i - lo + 1], z[i - lo + 2], z[i - lo + 3] = p, q, r, s
        i += 4
    while i < hi:
        z[i - lo] = row_dot(X, i, w)
        i += 1


@part
def _add(X, lo, hi, c, g):
    """g += sum of c_i x_i over rows lo:hi, four rows to one pass over g."""
    i = lo
    while i + 4 <= hi:
        p, q, r, s = c[i - lo], c[i - lo + 1], c[i - lo + 2], c[i - lo + 3]
        for t in range(g.size):
            g[t] += (p * X[i, t] + q * X[i + 1, t]) + (r * X[i + 2, t] + s * X[i + 3, t])
        i += 4
    while i < hi:
        row_axpy(X, i, c[i - lo], g)
        i += 1


def _blocks_dense(loss, X, y, lo, hi, scale, w, g, room):
    total, step = 0.0, _together(w.size)
    for a in range(lo, hi, step):
        b = min(a + step, hi)
        _scores(X, a, b, w, room)
        for i in range(b - a):
            total += value(loss, room[i], y[a + i])
        for i in range(b - a):
            room[i] = scale * slope(loss, room[i], y[a + i])
        _add(X, a, b, room, g)
    return total


def _gradients_dense(loss, X, y, lo, hi, scale, w, g, room):
    step = _together(w.size)
    for a in range(lo, hi, step):
        b = min(a + step, hi)
        _scores(X, a, b, w, room)
        for i in range(b - a):
            room[i] = scale * slope(loss, room[i], y[a + i])
        _add(X, a, b, room, g)
    return 0.0


# `add_rows` for many rows, with room for BLOCK scores, and for C: slopes and values of several rows at once
add_blocks = by_output(_blocks_dense, _sum_many, sparse=_sum_sparse)

# the gradients only, into g; what is returned means nothing
add_gradients = by_output(_gradients_dense, _sum_many, sparse=_sum_sparse)


@part
def block_of(n):
    """Rows whose values are summed by themselves, of n: about sqrt(n), a multiple of four."""
    return 4 * (1 + int(math.sqrt(n)) // 4)


@reduction
def pooled_gradient(loss, X, y, ptr, weights, w, values, g):
    """values[k] = sum of l over client k's rows; g += sum_k weights[k] * (sum of client k's row gradients)."""
    z = np.empty(max(w.size, BLOCK))
    for k in range(values.size):
        values[k] = 0.0
        step = block_of(ptr[k + 1] - ptr[k])
        for lo in range(ptr[k], ptr[k + 1], step):
            values[k] += add_blocks(loss, X, y, lo, min(lo + step, ptr[k + 1]), weights[k], w, g, z)


@reduction
def client_gradients(loss, X, y, ptr, clients, W, values, G):
    """values[r, j] and G[r, j] = means of l and of its gradient over the rows of client clients[r, j] at W[r]."""
    z = np.empty(max(W.shape[1], BLOCK))
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            first, last = ptr[clients[r, j]], ptr[clients[r, j] + 1]
            n, step = last - first, block_of(last - first)
            G[r, j, :] = values[r, j] = 0.0
            for lo in range(first, last, step):
                values[r, j] += add_blocks(loss, X, y, lo, min(lo + step, last), 1.0 / n, W[r], G[r, j], z)
            values[r, j] /= n


def _values_one(loss, Z, y, out):
    for i in range(y.size):
        for r in range(Z.shape[1]):
            out[i, r] = value(loss, Z[i, r], y[i])


def _values_many(loss, Z, y, out):
    C = loss.n_classes
    for i in range(y.size):
        for r in range(out.shape[1]):
            out[i, r] = value(loss, Z[i, r * C : (r + 1) * C], y[i])


_row_values = by_output(_values_one, _values_many)


@kernel
def row_values(loss, Z, y, out):
    """out[i, r] = l of row i at model r, from the scores Z (n, R) or (n, R C)."""
    _row_values(loss, Z, y, out)


def _totals_one(loss, Z, y, ends, out):
    for j in range(out.shape[1]):
        for r in range(out.shape[0]):
            step = block_of(ends[j + 1] - ends[j])
            for lo in range(ends[j], ends[j + 1], step):
                total = 0.0
                for i in range(lo, min(lo + step, ends[j + 1])):
                    total += value(loss, Z[i, r], y[i])
                out[r, j] += total


def _totals_many(loss, Z, y, ends, out):
    C = loss.n_classes
    for j in range(out.shape[1]):
        for r in range(out.shape[0]):
            step = block_of(ends[j + 1] - ends[j])
            for lo in range(ends[j], ends[j + 1], step):
                total = 0.0
                for i in range(lo, min(lo + step, ends[j + 1])):
                    total += value(loss, Z[i, r * C : (r + 1) * C], y[i])
                out[r, j] += total


_totals = by_output(_totals_one, _totals_many)


@reduction
def client_totals(loss, Z, y, ends, out):
    """out[r, j] += sum of l over rows ends[j]:ends[j + 1] at model r, from the scores Z (n, R) or (n, R C)."""
    _totals(loss, Z, y, ends, out)


def _slopes_one(loss, Z, y):
    for i in range(y.size):
        for r in range(Z.shape[1]):
            Z[i, r] = slope(loss, Z[i, r], y[i])


def _slopes_many(loss, Z, y):
    C = loss.n_classes
    for i in range(y.size):
        for r in range(Z.shape[1] // C):
            slopes(loss, Z[i, r * C : (r + 1) * C], y[i], Z[i, r * C : (r + 1) * C])


_row_slopes = by_output(_slopes_one, _slopes_many)


@kernel
def row_slopes(loss, Z, y):
    """Overwrite the scores Z (n, R) or (n, R C) by the slopes of the loss."""
    _row_slopes(loss, Z, y)


@kernel
def row_curvatures(loss, z, y, ptr, weights, out):
    """out[i] = weights[k] l''(z_i, y_i) for the rows i of client k."""
    for k in range(weights.size):
        for i in range(ptr[k], ptr[k + 1]):
            out[i] = weights[k] * curvature(loss, z[i], y[i])


@reduction
def line_slopes(loss, z, q, y, ptr, weights, t):
    """First and second derivative at t of sum_i weights[k] l(z_i - t q_i, y_i)."""
    first = second = 0.0
    for k in range(weights.size):
        a = b = 0.0
        for i in range(ptr[k], ptr[k + 1]):
            a -= slope(loss, z[i] - t * q[i], y[i]) * q[i]
            b += curvature(loss, z[i] - t * q[i], y[i]) * q[i] * q[i]
        first += weights[k] * a
        second += weights[k] * b
    return first, second


@reduction
def newton_rows(loss, X, y, ptr, weights, w, values, g, H):
    """Values and gradient as in `pooled_gradient`, and the lower triangle of the Hessian, from sparse rows."""
    for k in range(values.size):
        values[k] = total = 0.0
        step = block_of(ptr[k + 1] - ptr[k])
        for i in range(ptr[k], ptr[k + 1]):
            if (i - ptr[k]) % step == 0:
                values[k] += total
                total = 0.0
            z = row_dot(X, i, w)
            total += value(loss, z, y[i])
            row_axpy(X, i, weights[k] * slope(loss, z, y[i]), g)
            h = weights[k] * curvature(loss, z, y[i])
            if h != 0.0:
                first, last = np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])
                for a in range(first, last):
                    row, c = np.uint32(X.indices[a]), h * X.data[a]
                    for b in range(first, a + np.uint64(1)):
                        H[row, np.uint32(X.indices[b])] += c * X.data[b]
        values[k] += total


def gradients_of(problem, w, clients):
    """Gradients of f_k at w (R, *model) for clients (R, m), l2 term included: (R, m, *model)."""
    return values_gradients_of(problem, w, clients)[1]


def values_gradients_of(problem, w, clients):
    """Values (R, m) and gradients (R, m, *model) of f_k at w (R, *model) for clients (R, m), l2 term included."""
    fed = problem.federation
    W = w.reshape(len(w), -1)
    G, values = np.empty((*clients.shape, problem.size)), np.empty(clients.shape)
    client_gradients(problem.row_loss, fed.rows, problem.row_labels, fed.ptr, clients, W, values, G)
    G += problem.ridge * W[:, None, :]
    values += problem.ridge_terms(W)[:, None]
    return values, problem.unflatten(G)
