"""Compiled kernels: rows, losses over rows, gradients, Hessians, averages. Private; callers validate.

Rows are touched only through `row_dot` and `row_axpy` (and their four-row forms), which are chosen by the type of X: a
dense array, or a `CSR`. Losses are touched only through `value`, `slope` and `curvature`, which are chosen by the type
of the loss. Models are flat: (p,) with p = d, or p = C d for a loss with C outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex import losses
from fedconvex.draws import BATCHES, below, mix, stream
from fedconvex.kernels.cache import DISABLED, FASTMATH, borrowing, by_method, kernel, overload, reduction, types

# ---------------------------------------------------------------- dispatch


if not DISABLED:  # exp relies on the order of its operations
    overload(losses.exp, jit_options={"fastmath": {"contract"}})(lambda x: losses.exp)


@by_method
def value(loss, z, y):
    """l(z, y)."""


@by_method
def slope(loss, z, y):
    """l'(z, y)."""


@by_method
def curvature(loss, z, y):
    """l''(z, y)."""


def by_rows(dense, sparse):
    """Return a function of (X, ...) that is `dense` for arrays and `sparse` for CSR; kernels inline it."""

    def in_python(X, *args):
        return (dense if isinstance(X, np.ndarray) else sparse)(X, *args)

    def in_kernel(X, *args):
        return dense if isinstance(X, types.Array) else sparse

    if not DISABLED:
        overload(in_python, inline="always", strict=False)(in_kernel)
    return in_python


def by_output(one, many, inline="never"):
    """Return a function of (loss, ...) that is `one` for scalar losses and `many` for losses with n_classes."""

    def in_python(loss, *args):
        return (many if hasattr(loss, "n_classes") else one)(loss, *args)

    def in_kernel(loss, *args):
        return many if hasattr(loss.instance_class, "n_classes") else one

    if not DISABLED:
        overload(in_python, strict=False, inline=inline, jit_options={"fastmath": FASTMATH})(in_kernel)
    return in_python


# ---------------------------------------------------------------- rows


def _dense_dot(X, i, w):
    total = 0.0
    for j in range(w.size):
        total += X[i, j] * w[j]
    return total


def _sparse_dot(X, i, w):
    total = 0.0
    for j in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        total += X.data[j] * w[np.uint32(X.indices[j])]
    return total


def _dense_axpy(X, i, c, out):
    for j in range(out.size):
        out[j] += c * X[i, j]


def _sparse_axpy(X, i, c, out):
    for j in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        out[np.uint32(X.indices[j])] += c * X.data[j]


def _dense_step(X, i, c, keep, a, b, w):
    for j in range(w.size):
        w[j] = (keep * w[j] - a * b[j]) + c * X[i, j]


def _sparse_step(X, i, c, keep, a, b, w):
    for j in range(w.size):
        w[j] = keep * w[j] - a * b[j]
    row_axpy(X, i, c, w)


row_dot = by_rows(_dense_dot, _sparse_dot)  # x_i' w
row_axpy = by_rows(_dense_axpy, _sparse_axpy)  # out += c x_i
row_step = by_rows(_dense_step, _sparse_step)  # w <- keep w - a b + c x_i, for dense rows in one pass


def _dense_dots(X, rows, w, out):
    n4 = rows.size - rows.size % 4
    for b in range(0, n4, 4):
        i, j, k, e = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
        zi = zj = zk = ze = 0.0
        for t in range(w.size):
            zi += X[i, t] * w[t]
            zj += X[j, t] * w[t]
            zk += X[k, t] * w[t]
            ze += X[e, t] * w[t]
        out[b], out[b + 1], out[b + 2], out[b + 3] = zi, zj, zk, ze
    for b in range(n4, rows.size):
        out[b] = row_dot(X, rows[b], w)


def _sparse_dots(X, rows, w, out):
    for b in range(rows.size):
        out[b] = row_dot(X, rows[b], w)


def _dense_axpys(X, rows, c, out):
    n4 = rows.size - rows.size % 4
    for b in range(0, n4, 4):
        i, j, k, e = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
        ci, cj, ck, ce = c[b], c[b + 1], c[b + 2], c[b + 3]
        for t in range(out.size):
            out[t] += (ci * X[i, t] + cj * X[j, t]) + (ck * X[k, t] + ce * X[e, t])
    for b in range(n4, rows.size):
        row_axpy(X, rows[b], c[b], out)


def _sparse_axpys(X, rows, c, out):
    for b in range(rows.size):
        row_axpy(X, rows[b], c[b], out)


rows_dot = by_rows(_dense_dots, _sparse_dots)  # out_b = x_i' w for the b-th row i of rows, four rows to one read of w
rows_axpy = by_rows(_dense_axpys, _sparse_axpys)  # out += sum_b c_b x_i, four rows to one pass over out


# ---------------------------------------------------------------- losses over rows


def _dense_sum(X, loss, y, lo, hi, scale, w, g):
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


def _sparse_sum(X, loss, y, lo, hi, scale, w, g):
    total = 0.0
    for i in range(lo, hi):
        z = row_dot(X, i, w)
        total += value(loss, z, y[i])
        row_axpy(X, i, scale * slope(loss, z, y[i]), g)
    return total


_sum_rows = by_rows(_dense_sum, _sparse_sum)


def _sum_one(loss, X, y, lo, hi, scale, w, g, z):
    return _sum_rows(X, loss, y, lo, hi, scale, w, g)


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


@by_method
def slopes(loss, z, y, out):
    """grad l(z, y) into out, for scores z (C,)."""


# sum of l over rows lo:hi, and g += scale * (sum of their gradients); z is scratch for the C scores of a row
add_rows = by_output(_sum_one, _sum_many)


@reduction
def pooled_gradient(loss, X, y, ptr, weights, w, values, g):
    """values[k] = sum of l over client k's rows; g += sum_k weights[k] * (sum of client k's row gradients)."""
    z = np.empty(w.size)
    for k in range(values.size):
        values[k] = add_rows(loss, X, y, ptr[k], ptr[k + 1], weights[k], w, g, z)


@reduction
def client_gradients(loss, X, y, ptr, clients, W, values, G):
    """values[r, j] and G[r, j] = means of l and of its gradient over the rows of client clients[r, j] at W[r]."""
    z = np.empty(W.shape[1])
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            lo, hi = ptr[clients[r, j]], ptr[clients[r, j] + 1]
            G[r, j, :] = 0.0
            values[r, j] = add_rows(loss, X, y, lo, hi, 1.0 / (hi - lo), W[r], G[r, j], z) / (hi - lo)


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
        total = 0.0
        for i in range(ptr[k], ptr[k + 1]):
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
        values[k] = total


# ---------------------------------------------------------------- local updates


def _slopes_of_one(loss, X, y, rows, scale, w, c, t):
    rows_dot(X, rows, w, c)
    for b in range(rows.size):
        t[b] = y[rows[b]]
    for b in range(rows.size):
        c[b] = scale * slope(loss, c[b], t[b])


def _slopes_of_many(loss, X, y, rows, scale, w, c, t):
    C = loss.n_classes
    d = w.size // C
    for b in range(rows.size):
        z = c[b * C : (b + 1) * C]
        for e in range(C):
            z[e] = row_dot(X, rows[b], w[e * d : (e + 1) * d])
        slopes(loss, z, y[rows[b]], z)
        for e in range(C):
            z[e] *= scale


def _add_one(loss, X, rows, c, out):
    rows_axpy(X, rows, c, out)


def _add_many(loss, X, rows, c, out):
    C = loss.n_classes
    d = out.size // C
    for b in range(rows.size):
        for e in range(C):
            row_axpy(X, rows[b], c[b * C + e], out[e * d : (e + 1) * d])


batch_slopes = by_output(_slopes_of_one, _slopes_of_many)  # c_b = scale * slope(s) of row b; t scratch
batch_add = by_output(_add_one, _add_many)  # out += sum_b c_b x_b


@by_method
def plain(opt):
    """Whether a client optimiser adds -a g to the model and keeps no memory."""


@by_method
def move(opt, w, g, a, m, v, t):
    """One step of a client optimiser."""


@kernel
def draw_rows(state, first, n, passes, block, replacement, pool, rows):
    """Fill rows with `passes` blocks of `block` distinct rows of first, ..., first+n-1, or with independent draws."""
    if replacement or block == 1:
        for e in range(passes * block):
            rows[e] = first + below(state, e, n)
    else:
        for i in range(n):
            pool[i] = first + i
        for e in range(passes):
            for b in range(block):
                i = b + below(state, e * block + b, n - b)
                pool[b], pool[i] = pool[i], pool[b]
                rows[e * block + b] = pool[b]


def _single_steps(loss, X, y, rows, n, l2, tilt, steps, r, j, w, path):
    """For i in rows[:n]: w <- (1 - a l2) w - a tilt - a l'(x_i'w, y_i) x_i."""
    last, mine = steps.shape[2] - 1, min(j, steps.shape[1] - 1)
    for s in range(n):
        i, a = rows[s], steps[r, mine, min(s, last)]
        c = -a * slope(loss, row_dot(X, i, w), y[i])
        if tilt.size > 0:
            row_step(X, i, c, 1.0 - a * l2, a, tilt, w)
        else:
            if l2 > 0.0:
                for t in range(w.size):
                    w[t] *= 1.0 - a * l2
            row_axpy(X, i, c, w)
        if path.shape[2] > 0:
            for t in range(w.size):
                path[r, j, s, t] = w[t]


def _no_single_steps(loss, X, y, rows, n, l2, tilt, steps, r, j, w, path):
    pass


single_steps = by_output(_single_steps, _no_single_steps)  # the batch-1 case of batch_steps, for one output


@reduction
def shrink(keep, w, a, tilt):
    """w <- keep w - a tilt."""
    if tilt.size > 0:
        for q in range(w.size):
            w[q] = keep * w[q] - a * tilt[q]
    elif keep != 1.0:
        for q in range(w.size):
            w[q] *= keep


@reduction
def penalty(l2, w, tilt, g):
    """g = l2 w + tilt."""
    for q in range(w.size):
        g[q] = l2 * w[q]
    for q in range(tilt.size):
        g[q] += tilt[q]


@reduction
def batch_steps(loss, opt, X, y, rows, passes, block, batch, l2, tilt, steps, r, j, w, path, g, m, v, c, t):
    """For each batch: w <- (1 - a l2) w - a tilt - (a/B) sum of its gradients, or the optimiser's own move."""
    s = 0
    for start in range(0, passes * block, block):
        for at in range(start, start + block, batch):
            part = rows[at : min(at + batch, start + block)]
            a = steps[r, min(j, steps.shape[1] - 1), min(s, steps.shape[2] - 1)]
            s += 1
            if plain(opt):
                batch_slopes(loss, X, y, part, -a / part.size, w, c, t)
                shrink(1.0 - a * l2, w, a, tilt)
                batch_add(loss, X, part, c, w)
            else:
                batch_slopes(loss, X, y, part, 1.0 / part.size, w, c, t)
                penalty(l2, w, tilt, g)
                batch_add(loss, X, part, c, g)
                move(opt, w, g, a, m, v, s)
            if path.shape[2] > 0:
                for q in range(w.size):
                    path[r, j, s - 1, q] = w[q]


@reduction
def full_steps(loss, opt, X, y, lo, hi, n, l2, tilt, steps, r, j, w, path, g, m, v, z):
    """n steps with the gradient over all rows lo:hi."""
    for s in range(n):
        penalty(l2, w, tilt, g)
        add_rows(loss, X, y, lo, hi, 1.0 / (hi - lo), w, g, z)
        move(opt, w, g, steps[r, min(j, steps.shape[1] - 1), min(s, steps.shape[2] - 1)], m, v, s + 1)
        if path.shape[2] > 0:
            for t in range(w.size):
                path[r, j, s, t] = w[t]


@kernel
def size_unless_zero(b):
    """b.size, or 0 where b is all zeros: a tilt of zeros costs, and rounds, like none."""
    for q in range(b.size):
        if b[q] != 0.0:
            return b.size
    return 0


@borrowing
def local_jobs(
    loss, opt, X, y, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, steps, plan, replacement, out,
    path, C, pool, rows, c, t, w, g, m, v,
):  # fmt: skip
    """out[r, j] = model of client clients[r, j] after local steps from W[r, j] on f_k + <tilt, .> + (ridge/2) ‖.‖^2.

    plan[r, j] holds passes, block and batch; W, tilt and steps are the same for all j where their second axis is 1.
    """
    for r in range(clients.shape[0]):
        a = l2 + ridge[min(r, ridge.size - 1)]
        for j in range(clients.shape[1]):
            k, b = clients[r, j], tilt[min(r, tilt.shape[0] - 1), min(j, tilt.shape[1] - 1)]
            b = b[: size_unless_zero(b)]
            lo, n, passes, block, batch = ptr[k], ptr[k + 1] - ptr[k], plan[r, j, 0], plan[r, j, 1], plan[r, j, 2]
            for q in range(w.size):
                w[q] = W[r, min(j, W.shape[1] - 1), q]
                m[q] = v[q] = 0.0
            if batch == n and not replacement:
                full_steps(loss, opt, X, y, lo, lo + n, passes, a, b, steps, r, j, w, path, g, m, v, c)
            else:
                state = stream(key, trajectories[r], round_, ids[k], BATCHES)
                draw_rows(state, lo, n, passes, block, replacement, pool, rows)
                if batch == 1 and C == 1 and plain(opt):
                    single_steps(loss, X, y, rows, passes * block, a, b, steps, r, j, w, path)
                else:
                    batch_steps(loss, opt, X, y, rows, passes, block, batch, a, b, steps, r, j, w, path, g, m, v, c, t)
            for q in range(w.size):
                out[r, j, q] = w[q]


@reduction
def local_sgd(
    loss, opt, X, y, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, steps, plan, replacement, out,
    path, C,
):  # fmt: skip
    """Run `local_jobs` with buffers of the right sizes."""
    widest, drawn, largest = buffer_sizes(ptr, clients, plan)
    pool, rows = np.empty(widest, np.int64), np.empty(drawn, np.int64)
    c, t = np.empty(largest * C), np.empty(largest)
    w, g, m, v = np.empty(W.shape[2]), np.empty(W.shape[2]), np.empty(W.shape[2]), np.empty(W.shape[2])
    local_jobs(
        loss, opt, X, y, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, steps, plan, replacement,
        out, path, C, pool, rows, c, t, w, g, m, v,
    )  # fmt: skip


@kernel
def buffer_sizes(ptr, clients, plan):
    """Most rows of any of the clients, most rows drawn by one (passes * block), and largest batch."""
    rows = drawn = batch = 0
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            rows = max(rows, ptr[clients[r, j] + 1] - ptr[clients[r, j]])
            drawn = max(drawn, plan[r, j, 0] * plan[r, j, 1])
            batch = max(batch, plan[r, j, 2])
    return rows, drawn, batch


_FLAT, _LEVEL = np.zeros((1, 1, 0)), np.zeros(1)  # no tilt, no ridge


def local_updates(problem, opt, w, clients, draws, steps, plan, replacement, shadow, tilt=None, ridge=None):
    """Run `local_sgd` for clients (R, m): models (R, m, *model), paths (R, m, tau, *model).

    They start at w (R, *model), or each at its own (R, m, *model), and descend f_k(w) + <tilt, w> + (ridge/2) ‖w‖^2,
    tilt (R, m or 1, *model), ridge (R,). plan (R, m, 3) says how many passes each client makes, over blocks of how many
    of its rows, in batches of what size. A tilt of zeros gives the same bits as none.
    """
    fed, p = problem.federation, problem.size
    R, m = clients.shape
    out = np.empty((R, m, p))
    tau = int(plan[0, 0, 0] * -(-plan[0, 0, 1] // plan[0, 0, 2])) if shadow else 0
    path = np.empty((R, m, tau, p))
    local_sgd(
        problem.loss, opt, fed.rows, fed.y, fed.ptr, fed.ids, problem.l2, _LEVEL if ridge is None else ridge,
        _FLAT if tilt is None else tilt.reshape(R, -1, p), draws.key, draws.trajectory, draws.round, clients,
        w.reshape(R, -1, p), steps, plan, replacement, out, path, problem.n_outputs,
    )  # fmt: skip
    return problem.unflatten(out), problem.unflatten(path)


def gradients_of(problem, w, clients):
    """Gradients of f_k at w (R, *model) for clients (R, m), l2 term included: (R, m, *model)."""
    return values_gradients_of(problem, w, clients)[1]


def values_gradients_of(problem, w, clients):
    """Values (R, m) and gradients (R, m, *model) of f_k at w (R, *model) for clients (R, m), l2 term included."""
    fed = problem.federation
    W = w.reshape(len(w), -1)
    G, values = np.empty((*clients.shape, problem.size)), np.empty(clients.shape)
    client_gradients(problem.loss, fed.rows, fed.y, fed.ptr, clients, W, values, G)
    G += problem.l2 * W[:, None, :]
    values += 0.5 * problem.l2 * np.einsum("rj,rj->r", W, W)[:, None]
    return values, problem.unflatten(G)


@kernel
def average_rows(weights, A, out):
    """out[r] = sum_j weights[r, j] A[r, j]."""
    for r in range(A.shape[0]):
        for t in range(A.shape[2]):
            out[r, t] = weights[r, 0] * A[r, 0, t]
        for j in range(1, A.shape[1]):
            for t in range(A.shape[2]):
                out[r, t] += weights[r, j] * A[r, j, t]


def average(weights, replies):
    """Weighted averages over the second axis of (R, m, ...): (R, ...)."""
    R, m = replies.shape[:2]
    out = np.empty((R, replies[0, 0].size))
    weights = np.require(weights, requirements=["C", "W"])  # kernels see one array type
    average_rows(weights, replies.reshape(R, m, -1), out)
    return out.reshape(R, *replies.shape[2:])


# ---------------------------------------------------------------- what clients keep


@kernel
def find_keys(table, keys, known, trajectories, clients, add, slots):
    """slots[r, j] = where trajectories[r] 2^40 + clients[r, j] stands in keys, or -1, or (add) its new place behind.

    Returned is how many were new. table holds slots, -1 where it is free: open addressing, its size a power of two.
    """
    mask, new = np.int64(table.size - 1), 0
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            key = (trajectories[r] << 40) + clients[r, j]
            h = np.int64(mix(np.uint64(key)) >> np.uint64(1)) & mask
            while table[h] >= 0 and keys[table[h]] != key:
                h = (h + 1) & mask
            if table[h] < 0:
                if add:
                    table[h], keys[known + new] = known + new, key
                new += 1
            slots[r, j] = table[h]
    return new


class ClientRows(NamedTuple):
    """A row of numbers for every (trajectory, client), zeros until it is written; only rows once asked for take room.

    Rows stand in the order in which they were first asked for. Different rows may be written by different threads.
    """

    table: np.ndarray  # (a power of two,) int64, see `find_keys`
    keys: np.ndarray  # (room,) int64, trajectory 2^40 + client
    rows: np.ndarray  # (room, p)
    known: int  # rows in use

    @classmethod
    def empty(cls, p):
        """Return a store of rows of length p."""
        return cls(np.full(2, -1), np.empty(0, np.int64), np.zeros((0, p)), 0)

    def locate(self, trajectories, clients):
        """Return the store with rows for trajectories (R,) and their clients (R, m), and the places (R, m) of these."""
        slots = np.empty(clients.shape, np.int64)
        new = find_keys(self.table, self.keys, self.known, trajectories, clients, False, slots)
        if new == 0:
            return self, slots
        store = self if self.known + new <= self.keys.size else self._larger(self.known + new)
        new = find_keys(store.table, store.keys, store.known, trajectories, clients, True, slots)
        return store._replace(known=store.known + new), slots

    def _larger(self, least):
        """Return the store with at least twice the room, so that growing costs a constant per row."""
        room, n = max(least, 2 * self.keys.size), self.known
        table, keys = np.full(1 << (2 * room - 1).bit_length(), -1), np.empty(room, np.int64)
        rows = np.zeros((room, self.rows.shape[1]))
        rows[:n] = self.rows[:n]
        trajectories, clients = self.keys[:n] >> 40, self.keys[:n, None] & ((1 << 40) - 1)
        find_keys(table, keys, 0, trajectories, clients, True, np.empty((n, 1), np.int64))
        return ClientRows(table, keys, rows, n)
