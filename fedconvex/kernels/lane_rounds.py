"""Steps on single rows, for one output, by short models that are the lanes of vectors (`lanes`): a round, or several.

Several rounds are joined by averages: a round starts at the average of the models that the one before ended with.
Trajectories go through all rounds a few at a time, so that what they read and write stays next to the core. A job ends
with the same bits alone and among others, and as one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex.draws import _GOLDEN, BATCHES, mix
from fedconvex.kernels.batches import list_rows
from fedconvex.kernels.cache import borrowing, inner_part, part, strict_part
from fedconvex.kernels.lanes import LANES, average, draw, mix_in, step
from fedconvex.kernels.rows import NARROW
from fedconvex.kernels.vectors import gather, scatter

# mypy: disable-error-code="no-untyped-def"


class Jobs(NamedTuple):
    """Jobs side by side: entry l of every array belongs to job l."""

    at: np.ndarray  # the row of the models that it writes
    r: np.ndarray  # the trajectory
    j: np.ndarray  # the number of the client
    path: np.ndarray  # key of the trajectory's streams
    round: np.ndarray  # the round
    purpose: np.ndarray  # what draws are for
    state: np.ndarray  # key of the client's stream of draws
    lo: np.ndarray  # its first row
    n: np.ndarray  # its rows
    end: np.ndarray  # its steps
    row: np.ndarray  # the row of this step
    begin: np.ndarray  # the row of W, all of them below each other, that it starts from
    l2: np.ndarray  # the ridge
    a: np.ndarray  # step size
    keep: np.ndarray  # 1 - a l2


def fits(p, *arrays):
    """Whether models of p entries go in lanes with such arrays: rows, labels and others."""
    kinds = (isinstance(a, np.ndarray) and a.dtype == np.float64 and a.flags.c_contiguous for a in arrays)
    return p <= NARROW and all(kinds)


def room(width, p, listed, widest):
    """Return memory for so many jobs side by side: models, their rows and tilts; numbers, reals, lists and a pool."""
    whole = -(-width // LANES) * LANES
    odd = whole | LANES  # an odd number of cache lines: pieces 4096 bytes apart collide
    blocks = np.zeros(3 * odd * p + LANES)
    blocks = blocks[-(blocks.ctypes.data >> 3) % LANES :][: 3 * odd * p].reshape(3, -1)  # they begin with a cache line
    lists = np.empty((whole if listed else 0, listed), np.int64)
    return blocks, np.empty((12, odd), np.int64), np.empty((3, odd)), lists, np.empty(widest if listed else 0, np.int64)


@inner_part
def _jobs(whole, real):
    """Divide the memory."""
    return Jobs(
        whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6], whole[7], whole[8],
        whole[9], whole[10], whole[11], real[0], real[1], real[2],
    )  # fmt: skip


@strict_part
def _of_trajectory(key, trajectory):
    """Begin the keys of a trajectory's streams (`draws.stream`)."""
    return np.int64(mix(key + _GOLDEN * np.uint64(trajectory + 1)))


@inner_part
def _place(m, per, l2, ridge, key, trajectories, low, since, across, at, size, my):
    """Note what does not depend on the round, of jobs from number `at` on, of those of trajectories from ``since`` on.

    They are counted trajectory by trajectory, or, across, client by client of eight trajectories. The last block is
    filled up with copies of the last job.
    """
    whole, own, last = -(-size // LANES) * LANES, min(per - 1, 1), at + size - 1
    for l in range(whole):
        now = min(at + l, last)
        r, j = (since + now % LANES, now // LANES) if across else (since + now // m, now % m)
        my.at[l], my.r[l], my.j[l], my.path[l] = (r - low) * m + j, r, j, _of_trajectory(key, trajectories[r])
        my.begin[l], my.l2[l], my.purpose[l] = r * per + own * j, l2 + ridge[min(r, ridge.size - 1)], BATCHES
    return whole


@inner_part
def _enter(ptr, ids, round_, clients, size, my):
    """Look up clients, and make the keys of their streams."""
    m = np.uint64(clients.shape[1])
    flat = clients.reshape(-1)
    for l in range(size):
        i = np.uint64(l)  # signed ones would be looked at for wrapping around
        k = np.uint64(flat[np.uint64(my.r[i]) * m + np.uint64(my.j[i])])
        my.row[i], my.lo[i], my.n[i] = ids[k], ptr[k], ptr[k + np.uint64(1)] - ptr[k]
    for l in range(size):
        my.round[l] = round_
    for l in range(0, size, LANES):
        mix_in(my.path, my.round, l, my.state)
        mix_in(my.state, my.row, l, my.state)
        mix_in(my.state, my.purpose, l, my.state)


@inner_part
def _count(plan, size, my):
    """Look up how many steps are taken; return the least and the most."""
    more, others, least, most = plan.shape[0] - 1, plan.shape[1] - 1, 2**62, 0
    for l in range(size):
        its = plan[min(my.r[l], more), min(my.j[l], others)]
        my.end[l] = its[0] * its[1]
        least, most = min(least, my.end[l]), max(most, my.end[l])
    return least, most


@inner_part
def _list(plan, replacement, size, my, lists, pool):
    """List the rows of all steps of every job."""
    for l in range(size):
        its = plan[min(my.r[l], plan.shape[0] - 1), min(my.j[l], plan.shape[1] - 1)]
        list_rows(np.uint64(my.state[l]), my.lo[l], my.n[l], False, 0, its[0], its[1], replacement, pool, lists[l])


@inner_part
def _read(s, size, my, lists):
    """Read the row of step s of every job from its list, or its first row once it has ended."""
    for l in range(size):
        my.row[l] = lists[l, s] if s < my.end[l] else my.lo[l]


@part
def _step_sizes(eta, s, size, my):
    """Look up the step size of step s of every job."""
    for l in range(size):
        a = eta[my.r[l], min(my.j[l], eta.shape[1] - 1), s]
        my.a[l], my.keep[l] = a, 1.0 - a * my.l2[l]


@inner_part
def _gather(p, size, across, tilt, my, W, V, T):
    """Bring models into lanes, and tilts if there are some."""
    m = tilt.shape[1]
    for l in range(0, LANES if across else size, LANES):
        gather(W, my.begin, l, p, V)
    for l in range(LANES, size if across else LANES, LANES):
        for q in range(LANES * p):
            V[l * p + q] = V[q]
    for l in range(size if tilt.shape[2] > 0 else 0):
        my.row[l] = min(my.r[l], tilt.shape[0] - 1) * m + min(my.j[l], m - 1)
    for l in range(0, size if tilt.shape[2] > 0 else 0, LANES):
        gather(tilt, my.row, l, p, T)


@inner_part
def _write(steps, p, size, my, V, models):
    """Write the models of jobs that end with so many steps."""
    for first in range(0, size, LANES):
        ended = 0
        for l in range(first, first + LANES):
            ended += 1 if my.end[l] == steps else 0
        if ended == LANES:
            scatter(V, my.at, first, p, models)
        for l in range(first, first + LANES if 0 < ended < LANES else first):
            for q in range(p if my.end[l] == steps else 0):
                models[my.at[l], q] = V[first * p + q * LANES + l - first]


@inner_part
def _note(s, p, size, my, V, path):
    """Write the models after step s."""
    for l in range(size):
        first = l // LANES * LANES
        for q in range(p if s < my.end[l] else 0):
            path[my.r[l], my.j[l], s, q] = V[first * p + q * LANES + l - first]


@inner_part
def _steps(loss, X, y, eta, p, size, least, most, shrunk, keep, my, V, x, T, lists, models, path):
    """Take the steps of all jobs; to keep them is to leave models in the lanes."""
    if least == 0 and not keep:
        _write(0, p, size, my, V, models)
    for s in range(most):
        if s < eta.shape[2]:
            _step_sizes(eta, s, size, my)
        if lists.shape[0] > 0:
            _read(s, size, my, lists)
        for l in range(0, size if lists.shape[0] == 0 else 0, LANES):
            draw(my.state, my.lo, l, s, my.n, my.row)
        for l in range(0, size, LANES):
            step(loss, X, l, p, y, my.row, my.a, my.keep, shrunk, V, x, T)
        if s + 1 >= least and not keep:
            _write(s + 1, p, size, my, V, models)
        if path.shape[2] > 0:
            _note(s, p, size, my, V, path)


@strict_part
def _average(weights, models, since, until, out):
    """out[r] = sum_j weights[r, j] models[r, j], models of the trajectories from the first on below each other."""
    m, last = weights.shape[1], weights.shape[0] - 1
    for r in range(since, until):
        at, its = (r - since) * m, weights[min(r, last)]
        for q in range(models.shape[1]):
            total = its[0] * models[at, q]
            for j in range(1, m):
                total += its[j] * models[at + j, q]
            out[r, 0, q] = total


@inner_part
def _average_lanes(weights, p, size, my, V, S, out):
    """Do the same for models across lanes, eight trajectories beside each other."""
    for l in range(size):
        my.keep[l] = weights[min(my.r[l], weights.shape[0] - 1), my.j[l]]
    average(V, my.keep, size, p, S)
    scatter(S, my.begin, 0, p, out)


@strict_part
def _set_tilt(mu, w, since, until, tilt):
    """tilt[r] = -mu[r] w[r]: what (mu/2) ‖. - w‖^2 adds to a gradient beside the ridge."""
    for r in range(since, until):
        for q in range(tilt.shape[2]):
            tilt[r, 0, q] = -mu[r] * w[r, 0, q]


@borrowing
def run_in_lanes(
    loss, X, y, ptr, ids, l2, ridge, tilt, shrunk, key, trajectories, round_, clients, W, plan, eta, replacement,
    models, path, weights, low, high, few, width, blocks, whole, real, lists, pool,
):  # fmt: skip
    """Do the jobs of trajectories low, ..., high - 1 in one round, or in as many as W has models for, and average.

    One: models[r m + j] = W[0, r, j] after its steps. Several: W[t + 1] = sum_j weights[t, :, j] models[:, j] after
    round round_ + t from W[t], and ridge says how strongly models are drawn to where they start. Arrays begin with an
    axis of rounds, or one entry for all; those of trajectories and clients may have one for all too.
    """
    my, V, x, T, p, m = _jobs(whole, real), blocks[0], blocks[1], blocks[2], W.shape[3], clients.shape[2]
    several = weights.shape[2] > 0
    least = most = size = 0
    for since in range(low, high, few):
        until = min(since + few, high)
        across, jobs = several and until - since == LANES and LANES * m <= width, (until - since) * m
        for t in range(W.shape[0] - 1 if several else 1):
            a, b, c = min(t, clients.shape[0] - 1), min(t, plan.shape[0] - 1), min(t, weights.shape[0] - 1)
            if several and tilt.shape[2] > 0:
                _set_tilt(ridge, W[t], since, until, tilt)
            for at in range(0, jobs, width):
                if t == 0 or width < jobs:
                    size = _place(
                        m, W.shape[2], l2, ridge, key, trajectories, since if several else 0, since, across, at,
                        min(width, jobs - at), my,
                    )  # fmt: skip
                if t == 0 or width < jobs or plan.shape[0] > 1:
                    least, most = _count(plan[b], size, my)
                _enter(ptr, ids, round_ + t, clients[a], size, my)
                if lists.shape[0] > 0:
                    _list(plan[b], replacement, size, my, lists, pool)
                _gather(p, size, across, tilt, my, W[t], V, T)
                _steps(
                    loss, X, y, eta[min(t, eta.shape[0] - 1)], p, size, least, most, shrunk, across and least == most,
                    my, V, x, T, lists, models, path,
                )  # fmt: skip
            if across and least == most:
                _average_lanes(weights[c], p, size, my, V, x, W[t + 1])
            elif several:
                _average(weights[c], models, since, until, W[t + 1])
