"""Local steps of clients: the loop over (trajectory, client) jobs, and the steps of one job. Callers validate."""

from __future__ import annotations

import numpy as np

from fedconvex.draws import BATCHES, stream
from fedconvex.kernels.batches import batch_add, batch_slopes, buffer_sizes, draw_rows
from fedconvex.kernels.cache import borrowing, kernel, reduction
from fedconvex.kernels.dispatch import by_output, move, plain, slope
from fedconvex.kernels.row_losses import add_rows
from fedconvex.kernels.rows import row_axpy, row_dot, row_step


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
