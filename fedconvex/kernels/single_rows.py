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
from fedconvex.kernels.dispatch import by_output, by_ridge, slope
from fedconvex.kernels.lanes import LANES, step
from fedconvex.kernels.rows import NARROW, row_axpy, single_dot
from fedconvex.kernels.vectors import gather, scatter

# mypy: disable-error-code="no-untyped-def"

FEW = 3  # so many jobs are faster one by one
_JOBS, _ENTRIES, _LISTED, _BYTES = 72, 2048, 4096, 2**18
_NO_LISTS, _NO_POOL, _NO_BLOCKS = np.empty((0, 0), np.int64), np.empty(0, np.int64), 0.0


def side_by_side(jobs, p, listed, visited):
    """Return how many of the jobs go side by side: what they read and write must stay in caches together.

    A job has a model of p entries, a list of so many rows, and visits rows of so many bytes.
    """
    return max(1, min(jobs, _JOBS, _ENTRIES // p, _LISTED // max(listed, 1), int(_BYTES / max(visited, 1.0))))


def room(width, listed, widest, p=0):
    """Return memory for so many jobs side by side: blocks of models, whole numbers, reals, lists of rows, a pool.

    There are blocks if models have p > 0 entries that go in lanes.
    """
    whole = -(-width // LANES) * LANES
    odd = whole | LANES  # an odd number of cache lines: pieces 4096 bytes apart collide
    lists, pool = (np.empty((whole, listed), np.int64), np.empty(widest, np.int64)) if listed else (_NO_LISTS, _NO_POOL)
    return _blocks(odd * p) if p else _NO_BLOCKS, np.empty((10, odd), np.int64), np.empty((5, odd)), lists, pool


def _blocks(size):
    """Return (3, size) numbers that begin with a cache line: models, their rows, and their tilts."""
    numbers = np.zeros(3 * size + LANES)
    return numbers[-(numbers.ctypes.data >> 3) % LANES :][: 3 * size].reshape(3, size)


def in_lanes(p, *arrays):
    """Whether models of p entries go in lanes with such arrays: rows, labels and others."""
    kinds = (isinstance(a, np.ndarray) and a.dtype == np.float64 and a.flags.c_contiguous for a in arrays)
    return p <= NARROW and all(kinds)


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


def _one_by_one(blocks, loss, X, y, tilt, eta, start, last, size, my, lists, W, models, path):
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


@inner_part
def _fill_up(size, my):
    """Fill the last block with a job that takes no steps; return the size, and whether models shrink."""
    shrunk, whole = 0, -(-size // LANES) * LANES
    for l in range(size):
        shrunk = max(shrunk, my.tilted[l], 1 if my.l2[l] != 0.0 else 0)
    for l in range(size, whole):
        my.at[l], my.begin[l], my.r[l], my.j[l] = my.at[0], my.begin[0], my.r[0], my.j[0]
        my.state[l], my.lo[l], my.n[l], my.end[l], my.l2[l] = my.state[0], my.lo[0], my.n[0], -1, my.l2[0]
    return whole, shrunk


@inner_part
def _to_lanes(size, tilt, my, W, V, T):
    """Bring models into lanes, and tilts if there are some."""
    p, m = W.shape[2], tilt.shape[1]
    for first in range(0, size, LANES):
        gather(W, my.begin, first, p, V)
    for l in range(size if tilt.shape[2] > 0 else 0):
        my.row[l] = min(my.r[l], tilt.shape[0] - 1) * m + min(my.j[l], m - 1)
    for first in range(0, size if tilt.shape[2] > 0 else 0, LANES):
        gather(tilt, my.row, first, p, T)


@inner_part
def _from_lanes(steps, size, my, V, models, path):
    """Write the models of jobs that end with so many steps, and the paths; return the steps of the next to end."""
    p, following = models.shape[1], 2**62
    for first in range(0, size, LANES):
        ended = 0
        for l in range(first, first + LANES):
            ended += 1 if my.end[l] == steps else 0
            following = min(following, my.end[l] if my.end[l] > steps else following)
        if ended == LANES:
            scatter(V, my.at, first, p, models)
        for l in range(first, first + LANES if 0 < ended < LANES else first):
            for q in range(p if my.end[l] == steps else 0):
                models[my.at[l], q] = V[first * p + q * LANES + l - first]
        for l in range(first, first + LANES if path.shape[2] > 0 and steps > 0 else first):
            for q in range(p if my.end[l] >= steps else 0):
                path[my.r[l], my.j[l], steps - 1, q] = V[first * p + q * LANES + l - first]
    return following


@inner_part
def _step_lanes(loss, X, y, p, size, shrunk, row, a, keep, V, x, T):
    for first in range(0, size, LANES):
        step(loss, X, first, p, y, row, a, keep, shrunk, V, x, T)


def _in_lanes(blocks, loss, X, y, tilt, eta, start, last, size, my, lists, W, models, path):
    V, x, T = blocks[0], blocks[1], blocks[2]
    whole, shrunk = _fill_up(size, my)
    ending = last
    if start == 0:  # otherwise earlier calls have left them in the blocks
        _to_lanes(whole, tilt, my, W, V, T)
        ending = _from_lanes(0, whole, my, V, models, path)
    for s in range(start, last):
        if s == start or s < eta.shape[2]:
            _step_sizes(eta, min(s, eta.shape[2] - 1), whole, my)
        _draw(s, start, whole, my, lists)
        _step_lanes(loss, X, y, W.shape[2], whole, shrunk, my.row, my.a, my.keep, V, x, T)
        if s + 1 == ending or path.shape[2] > 0:
            ending = _from_lanes(s + 1, whole, my, V, models, path)


_take_steps = by_ridge(_one_by_one, _in_lanes)  # steps start to last - 1 of all jobs, in lanes if there are blocks


@borrowing
def run_single_rows(
    kind, kinds, loss, X, y, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, plan, eta, replacement,
    models, path, width, blocks, whole, real, lists, pool, since,
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
        _take_steps(blocks, loss, X, y, tilt, eta, start, _last(size, my.end), size, my, lists, W, models, path)
