"""Steps on single rows, for one output, by short models that are the lanes of vectors (`lanes`): a round, or several.

Several rounds are joined by averages: a round starts at the average of the models that the one before ended with.
Trajectories go through all rounds a few at a time, so that what they read and write stays next to the core. A job ends
with the same bits alone and among others, and as one by one.
"""

from __future__ import annotations

import numpy as np

from fedconvex.draws import _GOLDEN, BATCHES, mix
from fedconvex.kernels.batches import list_rows
from fedconvex.kernels.cache import borrowing, inner_part, part, strict_part
from fedconvex.kernels.lanes import LANES, average, draw, mix_in, step
from fedconvex.kernels.rows import NARROW
from fedconvex.kernels.vectors import gather, scatter
from fedconvex.kernels.views import line

# mypy: disable-error-code="no-untyped-def"


# what is noted of every job: lines of an array of whole numbers, then of one of reals, entry l of which is the job's
AT, R, J = 0, 1, 2  # the row of the models that it writes; its trajectory, and the number of the client
LO, N, END, ROW = 3, 4, 5, 6  # its first row, its rows, its steps, and the row of this step
BEGIN = 7  # the row of W, all of them below each other, that it starts from
PATH, ROUND, PURPOSE, STATE = 8, 9, 10, 11  # key of the trajectory's streams; coordinates of that of its draws, and it
L2, SIZE, KEEP = 0, 1, 2  # the ridge, the step size, and 1 - size l2


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


@strict_part
def _of_trajectory(key, trajectory):
    """Begin the keys of a trajectory's streams (`draws.stream`)."""
    return np.int64(mix(key + _GOLDEN * np.uint64(trajectory + 1)))


@inner_part
def _place(m, per, l2, ridge, key, trajectories, low, since, across, at, size, whole, real):
    """Note what does not depend on the round, of jobs from number `at` on, of those of trajectories from ``since`` on.

    They are counted trajectory by trajectory, or, across, client by client of eight trajectories. The last block is
    filled up with copies of the last job.
    """
    my_at, my_r, my_j, my_path = line(whole, AT), line(whole, R), line(whole, J), line(whole, PATH)
    my_begin, my_l2, my_purpose = line(whole, BEGIN), line(real, L2), line(whole, PURPOSE)
    filled, own, last = -(-size // LANES) * LANES, min(per - 1, 1), at + size - 1
    for l in range(filled):
        now = min(at + l, last)
        r, j = (since + now % LANES, now // LANES) if across else (since + now // m, now % m)
        my_at[l], my_r[l], my_j[l], my_path[l] = (r - low) * m + j, r, j, _of_trajectory(key, trajectories[r])
        my_begin[l], my_l2[l], my_purpose[l] = r * per + own * j, l2 + ridge[min(r, ridge.size - 1)], BATCHES
    return filled


@inner_part
def _enter(ptr, ids, round_, clients, size, whole):
    """Look up clients, and make the keys of their streams."""
    my_r, my_j, my_row = line(whole, R), line(whole, J), line(whole, ROW)
    my_lo, my_n, my_round = line(whole, LO), line(whole, N), line(whole, ROUND)
    my_path, my_state, my_purpose = line(whole, PATH), line(whole, STATE), line(whole, PURPOSE)
    last = clients.shape[0] - 1
    for l in range(size):
        i = np.uint64(l)  # signed ones would be looked at for wrapping around
        k = np.uint64(clients[np.uint64(min(my_r[i], last)), np.uint64(my_j[i])])
        my_row[i], my_lo[i], my_n[i] = ids[k], ptr[k], ptr[k + np.uint64(1)] - ptr[k]
    for l in range(size):
        my_round[l] = round_
    for l in range(0, size, LANES):
        mix_in(my_path, my_round, l, my_state)
        mix_in(my_state, my_row, l, my_state)
        mix_in(my_state, my_purpose, l, my_state)


@inner_part
def _count(plan, size, whole):
    """Look up how many steps are taken; return the least and the most."""
    my_r, my_j, my_end = line(whole, R), line(whole, J), line(whole, END)
    more, others, least, most = plan.shape[0] - 1, plan.shape[1] - 1, 2**62, 0
    for l in range(size):
        its = plan[min(my_r[l], more), min(my_j[l], others)]
        my_end[l] = its[0] * its[1]
        least, most = min(least, my_end[l]), max(most, my_end[l])
    return least, most


@inner_part
def _list(plan, replacement, size, whole, lists, pool):
    """List the rows of all steps of every job."""
    my_r, my_j, my_state = line(whole, R), line(whole, J), line(whole, STATE)
    my_lo, my_n = line(whole, LO), line(whole, N)
    for l in range(size):
        its = plan[min(my_r[l], plan.shape[0] - 1), min(my_j[l], plan.shape[1] - 1)]
        list_rows(np.uint64(my_state[l]), my_lo[l], my_n[l], False, 0, its[0], its[1], replacement, pool, lists[l])


@inner_part
def _read(s, size, whole, lists):
    """Read the row of step s of every job from its list, or its first row once it has ended."""
    my_row, my_end, my_lo = line(whole, ROW), line(whole, END), line(whole, LO)
    for l in range(size):
        my_row[l] = lists[l, s] if s < my_end[l] else my_lo[l]


@part
def _step_sizes(eta, s, size, whole, real):
    """Look up the step size of step s of every job."""
    my_r, my_j, my_a = line(whole, R), line(whole, J), line(real, SIZE)
    my_keep, my_l2 = line(real, KEEP), line(real, L2)
    for l in range(size):
        a = eta[my_r[l], min(my_j[l], eta.shape[1] - 1), s]
        my_a[l], my_keep[l] = a, 1.0 - a * my_l2[l]


@inner_part
def _gather(p, size, across, tilt, whole, W, V, T):
    """Bring models into lanes, and tilts if there are some."""
    my_begin, my_row, my_r, my_j = line(whole, BEGIN), line(whole, ROW), line(whole, R), line(whole, J)
    m = tilt.shape[1]
    for l in range(0, LANES if across else size, LANES):
        gather(W, my_begin, l, p, V)
    for l in range(LANES, size if across else LANES, LANES):
        for q in range(LANES * p):
            V[l * p + q] = V[q]
    for l in range(size if tilt.shape[2] > 0 else 0):
        my_row[l] = min(my_r[l], tilt.shape[0] - 1) * m + min(my_j[l], m - 1)
    for l in range(0, size if tilt.shape[2] > 0 else 0, LANES):
        gather(tilt, my_row, l, p, T)


@inner_part
def _write(steps, p, size, whole, V, models):
    """Write the models of jobs that end with so many steps."""
    my_end, my_at = line(whole, END), line(whole, AT)
    for first in range(0, size, LANES):
        ended = 0
        for l in range(first, first + LANES):
            ended += 1 if my_end[l] == steps else 0
        if ended == LANES:
            scatter(V, my_at, first, p, models)
        for l in range(first, first + LANES if 0 < ended < LANES else first):
            for q in range(p if my_end[l] == steps else 0):
                models[my_at[l], q] = V[first * p + q * LANES + l - first]


@inner_part
def _note(s, p, size, whole, V, path):
    """Write the models after step s."""
    my_end, my_r, my_j = line(whole, END), line(whole, R), line(whole, J)
    for l in range(size):
        first = l // LANES * LANES
        for q in range(p if s < my_end[l] else 0):
            path[my_r[l], my_j[l], s, q] = V[first * p + q * LANES + l - first]


@inner_part
def _steps(loss, X, y, eta, p, size, least, most, shrunk, keep, whole, real, V, x, T, lists, models, path):
    """Take the steps of all jobs; to keep them is to leave models in the lanes."""
    my_state, my_lo, my_n = line(whole, STATE), line(whole, LO), line(whole, N)
    my_row, my_a, my_keep = line(whole, ROW), line(real, SIZE), line(real, KEEP)
    if least == 0 and not keep:
        _write(0, p, size, whole, V, models)
    for s in range(most):
        if s < eta.shape[2]:
            _step_sizes(eta, s, size, whole, real)
        if lists.shape[0] > 0:
            _read(s, size, whole, lists)
        for l in range(0, size if lists.shape[0] == 0 else 0, LANES):
            draw(my_state, my_lo, l, s, my_n, my_row)
        for l in range(0, size, LANES):
            step(loss, X, l, p, y, my_row, my_a, my_keep, shrunk, V, x, T)
        if s + 1 >= least and not keep:
            _write(s + 1, p, size, whole, V, models)
        if path.shape[2] > 0:
            _note(s, p, size, whole, V, path)


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
def _average_lanes(weights, p, size, whole, real, V, S, out):
    """Do the same for models across lanes, eight trajectories beside each other."""
    my_keep, my_r, my_j, my_begin = line(real, KEEP), line(whole, R), line(whole, J), line(whole, BEGIN)
    for l in range(size):
        my_keep[l] = weights[min(my_r[l], weights.shape[0] - 1), my_j[l]]
    average(V, my_keep, size, p, S)
    scatter(S, my_begin, 0, p, out)


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
    V, x, T, p, m = line(blocks, 0), line(blocks, 1), line(blocks, 2), W.shape[3], clients.shape[2]
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
                        min(width, jobs - at), whole, real,
                    )  # fmt: skip
                if t == 0 or width < jobs or plan.shape[0] > 1:
                    least, most = _count(plan[b], size, whole)
                _enter(ptr, ids, round_ + t, clients[a], size, whole)
                if lists.shape[0] > 0:
                    _list(plan[b], replacement, size, whole, lists, pool)
                _gather(p, size, across, tilt, whole, W[t], V, T)
                _steps(
                    loss, X, y, eta[min(t, eta.shape[0] - 1)], p, size, least, most, shrunk, across and least == most,
                    whole, real, V, x, T, lists, models, path,
                )  # fmt: skip
            if across and least == most:
                _average_lanes(weights[c], p, size, whole, real, V, x, W[t + 1])
            elif several:
                _average(weights[c], models, since, until, W[t + 1])
