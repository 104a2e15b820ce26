"""The loop over (trajectory, client) jobs. What a client does in a job is said by a rule, chosen by its type.

A rule is a NamedTuple of what its formula needs, with one of two methods, which are compiled into the loop:

* ``step(self, loss, data, job, part, s, a, w, scratch)``: step number s, of size a, on the rows ``part``, moves w;
* ``steps(self, loss, data, job, eta, w, path, scratch)``: all passes, for rules that do not walk over mini-batches.

The loop lists or draws the rows of a job, starts w at its model, and stores what the rule made of it. Jobs of different
kinds have different rules, and only the rules of the kinds that occur are compiled. Long work takes several calls: some
jobs each, or some passes of one job, between which the scratch room stays as it is. Bits do not depend on the cuts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.draws import BATCHES, stream
from fedconvex.kernels import lane_rounds, pieces, single_rows
from fedconvex.kernels.batches import again, list_rows
from fedconvex.kernels.cache import borrowing, inner_part, kernel, strict_part
from fedconvex.kernels.dispatch import by_rule
from fedconvex.kernels.ridges import increased
from fedconvex.kernels.row_losses import BLOCK
from fedconvex.kernels.single_rows import run_single_rows
from fedconvex.kernels.views import stretch

# kinds of jobs: nothing is done; no rows are listed (full gradients, rules that draw for themselves); rows are listed
UNSORTED, IDLE, FULL, ITSELF, SINGLE, BATCH, OWN, DRAWN = range(8)  # DRAWN: in random order even where all are taken


class Data(NamedTuple):
    """The rows of all clients."""

    X: Any  # (n, d), dense or `CSR`
    y: np.ndarray  # (n,)


class Job(NamedTuple):
    """One client in one trajectory."""

    r: int  # number of the trajectory among those that advance together
    j: int  # number of the client among those asked
    k: int  # the client
    lo: int  # its first row
    n: int  # its rows
    since: int  # passes that earlier calls have done
    passes: int  # those included
    block: int  # rows per pass
    batch: int  # rows per step
    full: bool  # every step takes all rows
    state: np.uint64  # key of the client's stream of draws
    outputs: int  # C
    ridge: Any  # a float, or (p,)
    tilt: np.ndarray  # (p,), or (0,) for none


class Scratch(NamedTuple):
    """Room for a job."""

    pool: np.ndarray  # (n,) whole numbers
    rows: np.ndarray  # the rows of all steps, or, where every step takes all rows, those of one
    g: np.ndarray  # (p,)
    m: np.ndarray  # (p,), zeros at first
    v: np.ndarray  # (p,), zeros at first
    c: np.ndarray  # (C batch,) or more: rounded up to a multiple of eight; with c0 and t room for BLOCK at least
    c0: np.ndarray  # (C batch,) or more, likewise
    t: np.ndarray  # (batch,) or more, likewise


step = by_rule("step")


def _each_batch(rule, loss, data, job, eta, w, path, scratch):
    """Take a step on each batch of each pass; path[r, j] records the models."""
    s, mine = job.since * -(-job.block // job.batch), min(job.j, eta.shape[1] - 1)
    for e in range(job.passes - job.since):
        base = 0 if job.full else e * job.block
        for at in range(base, base + job.block, job.batch):
            part = stretch(scratch.rows, at, min(job.batch, base + job.block - at))
            step(rule, loss, data, job, part, s, eta[job.r, mine, min(s, eta.shape[2] - 1)], w, scratch)
            if path.shape[2] > 0:
                for q in range(w.size):
                    path[job.r, job.j, s, q] = w[q]
            s += 1


steps = by_rule("steps", otherwise=_each_batch)
each_batch = by_rule("each_batch", otherwise=_each_batch)  # for rules that do more than their steps


@strict_part
def size_unless_zero(b):
    """b.size, or 0 where b is all zeros: a tilt of zeros costs, and rounds, like none."""
    for q in range(b.size):
        if b[q] != 0.0:
            return b.size
    return 0


@kernel
def sort_jobs(ptr, clients, plan, replacement, lone, kinds):
    """Replace kinds that are UNSORTED. Most rows of a client, listed for one, of a batch; kinds seen; largest plan."""
    widest = listed = largest = seen = passes = block = 0
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            n, batch = ptr[clients[r, j] + 1] - ptr[clients[r, j]], plan[r, j, 2]
            full = batch == n and not replacement
            if kinds[r, j] == UNSORTED:
                kinds[r, j] = FULL if full else (SINGLE if lone and batch == 1 else BATCH)
            passes, block = max(passes, plan[r, j, 0]), max(block, plan[r, j, 1])
            if kinds[r, j] != FULL:
                widest = max(widest, n)
                listed = max(listed, n, plan[r, j, 0] * plan[r, j, 1])
                largest = max(largest, batch)
            seen |= 1 << kinds[r, j]
    return widest, listed, largest, seen, passes, block


@inner_part
def _room(whole, widest, real, width, p):
    """Divide the scratch room: the model w, and the rest."""
    o = (-np.int64(real.ctypes.data >> 3)) % 8  # pieces of a width begin with a cache line
    w, g, m = stretch(real, o, p), stretch(real, o + width, p), stretch(real, o + 2 * width, p)
    v, left = stretch(real, o + 3 * width, p), real.size - o - 6 * width
    c, c0 = stretch(real, o + 4 * width, left + 2 * width), stretch(real, o + 5 * width, left + width)
    pool, rows = stretch(whole, 0, widest), stretch(whole, widest, whole.size - widest)
    return w, Scratch(pool, rows, g, m, v, c, c0, stretch(real, o + 6 * width, left))


@inner_part
def _begin(
    r, j, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, plan, replacement, listed, drawn, C, ridges,
    since, w, room,
):  # fmt: skip
    """Return a job, with w at its model, and its rows listed where they are asked for."""
    k, b = clients[r, j], tilt[min(r, tilt.shape[0] - 1), min(j, tilt.shape[1] - 1)]
    lo, n, passes, block, batch = ptr[k], ptr[k + 1] - ptr[k], plan[r, j, 0], plan[r, j, 1], plan[r, j, 2]
    full = batch == n and not again(replacement) and not drawn
    state = stream(key, trajectories[r], round_, ids[k], BATCHES)
    if listed:
        list_rows(state, lo, n, full, since, passes, block, replacement, room.pool, room.rows)
    for q in range(w.size if since == 0 else 0):
        w[q] = W[r, min(j, W.shape[1] - 1), q]
        room.m[q] = room.v[q] = 0.0
    a, b = increased(l2, ridge[min(r, ridge.size - 1)], ridges), stretch(b, 0, size_unless_zero(b))
    return Job(r, j, k, lo, n, since, passes, block, batch, full, state, C, a, b)


@borrowing
def run_jobs(
    rule, kind, kinds, loss, X, y, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, plan, eta,
    replacement, out, path, C, widest, whole, real, ridges, width, since,
):  # fmt: skip
    """out[r, j] = what the rule makes of the model W[r, j] with the rows of client clients[r, j], in jobs of the kind.

    plan[r, j] holds passes, block and batch. W, tilt and eta are the same for all j where their second axis is 1. With
    ``since`` above 0, the one job of the kind goes on from that pass, with what earlier ones left in the room.
    """
    w, room = _room(whole, widest, real, width, W.shape[2])
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            if kinds[r, j] != kind:
                continue
            job = _begin(
                r, j, ptr, ids, l2, ridge, tilt, key, trajectories, round_, clients, W, plan, replacement,
                kind > ITSELF, kind == DRAWN, C, ridges, since, w, room,
            )  # fmt: skip
            steps(rule, loss, Data(X, y), job, eta, w, path, room)
            for q in range(w.size):
                out[r, j, q] = w[q]


def room_alone(widest, listed, largest, p, C, l2):
    """Return memory for `run_jobs`: whole numbers, reals and a ridge, and the width of the pieces of the reals."""
    width = (
        max(p, largest * C, C, -(-BLOCK // 3)) + 7
    ) // 8 * 8 | 8  # an odd number of cache lines: pieces 4096 bytes apart collide
    ridge = np.empty(p if isinstance(l2, np.ndarray) else 0)
    return np.empty(widest + listed, np.int64), np.empty(7 * width + 8), ridge, width


def _row_bytes(fed):
    """Return the bytes of a row, on average: a number takes 8, and where it is sparse 4 more for its column."""
    X = fed.rows
    return 8 * X.shape[1] if isinstance(X, np.ndarray) else 12 * X.data.size / fed.n


def room_together(fed, replacement, number, p, widest, listed, passes, block, lanes=False, across=0):
    """Return how many jobs on single rows go side by side, or 0 where one by one is faster, and their memory.

    lanes: whether their models go in lanes. So many as lie across the clients of some trajectories go if they can.
    """
    drawn = not isinstance(replacement, np.ndarray) and (replacement or block == 1)
    lists, visited = 0 if drawn else listed, min(widest, passes * block) * _row_bytes(fed)
    together = single_rows.side_by_side(number, p, lists, visited)
    if together <= single_rows.FEW:
        return 0, ()
    if lanes:
        if 0 < across <= single_rows.side_by_side(number, p, lists, visited, number):
            together = across
        return together, (together, *lane_rounds.room(together, p, lists, widest))
    return together, (together, *single_rows.room(together, lists, widest))


NO_RIDGE, NO_TILT, NO_PATH = np.zeros(1), np.zeros((1, 1, 0)), np.zeros((1, 1, 0, 0))


def run_in_lanes(
    problem, loss, labels, l2, W, clients, draws, eta, plan, replacement, out, room, *, ridge, tilt, path=NO_PATH,
    weights=NO_TILT, few=1, most=1,
):  # fmt: skip
    """Call `lane_rounds.run_in_lanes` for so many trajectories at a time, at most."""
    fed, R = problem.federation, draws.trajectory.size
    shrunk = int(l2 != 0.0 or tilt.size > 0 or ridge.any())
    for low in range(0, R, most):
        lane_rounds.run_in_lanes(
            loss, fed.rows, labels, fed.ptr, fed.ids, l2, ridge, tilt, shrunk, draws.key, draws.trajectory, draws.round,
            clients, W, plan, eta, replacement, out, path, weights, low, min(low + most, R), few, *room,
        )  # fmt: skip
        pieces.pause()


def run(
    rules, problem, l2, W, clients, draws, eta, plan, replacement, *, kinds=None, ridge=NO_RIDGE, tilt=NO_TILT,
    path=NO_PATH, out=None, labels=None, beside=0,
):  # fmt: skip
    """Do the jobs of clients (R, m) by the rules of their kinds: models (R, m, p).

    They start at W (R, m or 1, p). l2 (a number, or (p,)), ridge (R or 1,) and tilt (R or 1, m or 1, p or 0) say what
    is added to the mean of the losses: <tilt, w> + sum_j ((l2_j + ridge)/2) w_j^2. plan (R, m, 3) says how many passes
    each client makes, over blocks of how many of its rows, in batches of what size; eta (R, m or 1, steps or 1) are the
    step sizes. Where kinds (R, m) are UNSORTED, they are overwritten. labels replace those of the problem. With
    cumulative weights of the rows for ``replacement`` rows are drawn by weight, and their losses are not weighted.
    Every step reads so many rows ``beside`` its batch, at most.
    """
    fed, p, C = problem.federation, W.shape[2], getattr(problem.loss, "n_classes", 1)
    if kinds is None:
        kinds = np.full(clients.shape, next(iter(rules))) if len(rules) == 1 else np.zeros(clients.shape, np.int64)
    widest, listed, largest, seen, passes, block = sort_jobs(
        fed.ptr, clients, plan, again(replacement), SINGLE in rules, kinds
    )
    each = float(passes) * block * (1 + beside) * clients.shape[1] * (2 * p + 64 * C + 64)  # operations of a trajectory
    long = each * len(clients) > pieces.PIECE
    if long:
        by_row, by_step = pieces.costs(fed.rows, fed.n, C, p)
        by_step += beside * by_row
        listed = max(widest, pieces.most_rows(plan, by_row, by_step))
    out = np.empty((*clients.shape, p)) if out is None else out
    loss, labels = problem.row_loss, problem.row_labels if labels is None else labels
    if isinstance(replacement, np.ndarray):
        loss, labels = problem.loss, fed.y
    where = fed.ptr, fed.ids, l2, ridge, tilt, draws.key, draws.trajectory, draws.round, clients, W
    for kind, rule in rules.items():
        if not seen >> kind & 1:
            continue
        together = 0
        if kind == SINGLE:
            lanes = seen == 1 << SINGLE and each < pieces.PIECE and lane_rounds.fits(p, fed.rows, labels, W, tilt)
            together, room = room_together(fed, replacement, clients.size, p, widest, listed, passes, block, lanes)
            if lanes and together:
                most = max(1, int(pieces.PIECE / max(each, 1.0)))
                run_in_lanes(
                    problem, loss, labels, l2, W[None], clients[None], draws, eta[None], plan[None], replacement,
                    out.reshape(-1, p), room, ridge=ridge, tilt=tilt, path=path, few=most, most=most,
                )  # fmt: skip
                break
        if not together:
            room = room_alone(widest, listed, largest, p, C, l2)
        for some, plan_, since in pieces.cut(kinds, IDLE, plan, by_row, by_step) if long else ((kinds, plan, 0),):
            todo = kind, some, loss, fed.rows, labels, *where, plan_, eta, replacement
            if together:
                run_single_rows(*todo, out.reshape(-1, p), path, *room, since)
            else:
                run_jobs(rule, *todo, out, path, C, widest, *room, since)
    return out
