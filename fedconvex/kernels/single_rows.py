"""Plain steps on single rows, for one output: many jobs side by side, each taking step s before any takes step s + 1.

One such job alone waits at every step for the one before. Side by side the processor works on several at once, and
draws, step sizes and slopes fill its vector units, and so do whole steps of short models (`lanes`). A job ends with the
same bits alone and among others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex.draws import BATCHES, below, stream
from fedconvex.kernels.batches import list_rows
from fedconvex.kernels.cache import borrowing, inner_part, part, strict_part
from fedconvex.kernels.dispatch import by_output, slope
from fedconvex.kernels.rows import row_axpy, single_dot

# mypy: disable-error-code="no-untyped-def"

FEW = 3  # so many jobs are faster one by one
_JOBS, _ENTRIES, _LISTED, _BYTES = 72, 2048, 4096, 2**18
_NO_LISTS, _NO_POOL = np.empty((0, 0), np.int64), np.empty(0, np.int64)


def side_by_side(jobs, p, listed, visited, most=_JOBS):
    """Return how many of the jobs go side by side: what they read and write must stay in caches together.

    A job has a model of p entries, a list of so many rows, and visits rows of so many bytes.
    """
    return max(1, min(jobs, most, _ENTRIES // p, _LISTED // max(listed, 1), int(_BYTES / max(visited, 1.0))))


def room(width, listed, widest):
    """Return memory for so many jobs side by side: whole numbers, reals, lists of rows, and a pool."""
    odd = -(-width // 8) * 8 | 8  # an odd number of cache lines: pieces 4096 bytes apart collide
    lists, pool = (np.empty((width, listed), np.int64), np.empty(widest, np.int64)) if listed else (_NO_LISTS, _NO_POOL)
    return np.empty((10, odd), np.int64), np.empty((5, odd)), lists, pool


class Jobs(NamedTuple):
    """Jobs side by side: entry l of every array belongs to job l."""

    at: np.ndarray  # its number among all jobs
    r: np.ndarray  # the trajectory
    j: np.ndarray  # the number of the client
    state: np.ndarray  # key of the client's stream of draws
    lo: np.ndarray  # its first row
    n: np.ndarray  # its rows
    end: np.ndarray  # its steps
    tilted: np.ndarray  # whether it is tilted
    row: np.ndarray  # the row of this step
    begin: np.ndarray  # the row of W, all of them below each other, that it starts from
    l2: np.ndarray  # the ridge
    a: np.ndarray  # step size
    keep: np.ndarray  # 1 - a l2
    t: np.ndarray  # label of the row
    c: np.ndarray  # score of the row, then its coefficient


@inner_part
def _jobs(whole, real):
    """Divide the memory."""
    return Jobs(
        whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6], whole[7], whole[8],
        whole[9],         real[0], real[1], real[2], real[3], real[4],
    )  # fmt: skip


@strict_part
def _any(b):
    """Whether b is not all zeros: a tilt of zeros costs, and rounds, like none."""
    for q in range(b.size):
        if b[q] != 0.0:
            return 1
    return 0


@inner_part
def _enter(kind, kinds, ptr, ids, l2, ridge, tilt, trajectories, clients, W, plan, most, my, at):
    """Let the next jobs of the kind enter, from number `at` on: how many do, and where the rest begins."""
    m, size, many, own = clients.shape[1], 0, tilt.shape[1] - 1, min(W.shape[1] - 1, 1)
    r, j = at // m, at % m
    while r < clients.shape[0] and size < most:
        number, more, b = trajectories[r], ridge[min(r, ridge.size - 1)], tilt[min(r, tilt.shape[0] - 1)]
        row, begin = np.uint64(r), r * W.shape[1]
        while j < m and size < most:
            c, l = np.uint64(j), np.uint64(size)  # signed ones would be looked at for wrapping around
            if kinds[row, c] == kind:
                k = np.uint64(clients[row, c])
                my.at[l], my.r[l], my.j[l], my.state[l], my.row[l] = r * m + j, r, j, number, ids[k]
                my.lo[l], my.n[l] = ptr[k], ptr[k + np.uint64(1)] - ptr[k]
                my.end[l], my.l2[l] = plan[row, c, 0] * plan[row, c, 1], l2 + more
                my.begin[l] = begin + own * j
                my.tilted[l] = _any(b[min(j, many)]) if tilt.shape[2] > 0 else 0
                size += 1
            j += 1
        if j == m:
            r, j = r + 1, 0
    return size, r * m + j


@strict_part
def _address(key, round_, size, state, row):
    """Turn trajectories and clients' keys into the keys of streams."""
    for l in range(size):
        state[l] = np.int64(stream(key, state[l], round_, row[l], BATCHES))


@inner_part
def _list(plan, since, replacement, size, my, lists, pool):
    """List the rows of all steps of every job."""
    for l in range(size):
        passes, block, state = plan[my.r[l], my.j[l], 0], plan[my.r[l], my.j[l], 1], np.uint64(my.state[l])
        list_rows(state, my.lo[l], my.n[l], False, since, passes, block, replacement, pool, lists[l])


@strict_part
def _last(size, end):
    """How many steps the jobs take, at most."""
    last = 0
    for l in range(size):
        last = max(last, end[l])
    return last


@inner_part
def _draw(s, start, size, my, lists):
    """Draw, or read from its list, the row of step s of every job, or its first row once it has ended."""
    if lists.shape[1] == 0:
        for l in range(size):
            my.row[l] = my.lo[l] + below(np.uint64(my.state[l]), s, my.n[l])
    else:
        for l in range(size):
            my.row[l] = lists[l, s - start] if s < my.end[l] else my.lo[l]


@part
def _step_sizes(eta, s, size, my):
    """Look up the step size of step s of every job."""
    for l in range(size):
        a = eta[my.r[l], min(my.j[l], eta.shape[1] - 1), s]
        my.a[l], my.keep[l] = a, 1.0 - a * my.l2[l]


@inner_part
def _score(X, i, w):
    """x_i' w, apart: a function that Numba inlines a call into loses its stores to arrays in tuples."""
    return single_dot(X, i, w)


def _of_labels(loss, y, size, my):
    for l in range(size):
        my.t[l] = y[my.row[l]]
    for l in range(size):
        my.c[l] = -my.a[l] * slope(loss, my.c[l], my.t[l])


def _of_weighted_labels(loss, y, size, my):
    for l in range(size):
        my.c[l] = -my.a[l] * slope(loss, my.c[l], y[my.row[l]])


_slopes = by_output(_of_labels, None, _of_weighted_labels)  # c = -a l'(c, y)


@inner_part
def _move(X, tilt, s, l, my, w, path):
    """w <- (1 - a l2) w - a tilt + c x_i for job l."""
    i, c, a, keep = my.row[l], my.c[l], my.a[l], my.keep[l]
    if my.tilted[l] > 0:
        b = tilt[min(my.r[l], tilt.shape[0] - 1), min(my.j[l], tilt.shape[1] - 1)]
        for t in range(w.size):
            w[t] = keep * w[t] - a * b[t]
    elif keep != 1.0:
        for t in range(w.size):
            w[t] *= keep
    row_axpy(X, i, c, w)
    for t in range(w.size if path.shape[2] > 0 else 0):
        path[my.r[l], my.j[l], s, t] = w[t]


@strict_part
def _begin(size, my, W, models):
    """Copy the models that jobs begin with."""
    m = W.shape[1]
    for l in range(size):
        for q in range(W.shape[2]):
            models[my.at[l], q] = W[my.begin[l] // m, my.begin[l] % m, q]


@inner_part
def _take_steps(loss, X, y, tilt, eta, start, last, size, my, lists, W, models, path):
    if start == 0:
        _begin(size, my, W, models)
    for s in range(start, last):
        if s == start or s < eta.shape[2]:
            _step_sizes(eta, min(s, eta.shape[2] - 1), size, my)
        _draw(s, start, size, my, lists)
        for l in range(size):
            if s < my.end[l]:
                my.c[l] = _score(X, my.row[l], models[my.at[l]])
        _slopes(loss, y, size, my)
        for l in range(size):
            if s < my.end[l]:
                _move(X, tilt, s, l, my, models[my.at[l]], path)


@borrowing
def run_single_rows(
    kind, kinds, loss, X, y, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, plan, eta, replacement,
    models, path, width, whole, real, lists, pool, since,
):  # fmt: skip
    """out[r, j] = the model W[r, j] after w <- (1 - a l2) w - a tilt - a l'(x_i'w, y_i) x_i for row after row i.

    For jobs of the kind; arguments as in `jobs.run_jobs`. Without room for lists, every step draws a row for itself.
    """
    my, at = _jobs(whole, real), 0
    while at < clients.size:
        size, at = _enter(kind, kinds, ptr, ids, l2, ridge, tilt, trajectories, clients, W, plan, width, my, at)
        _address(key, round_, size, my.state, my.row)
        if lists.shape[1] > 0:
            _list(plan, since, replacement, size, my, lists, pool)
        start = since * plan[my.r[0], my.j[0], 1] if since > 0 and size > 0 else 0  # then there is one job
        _take_steps(loss, X, y, tilt, eta, start, _last(size, my.end), size, my, lists, W, models, path)
