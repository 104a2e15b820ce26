"""Several rounds in one call, where a round is local steps of single rows or batches and a weighted average.

The loops over jobs are those of single rounds, and so are the bits. What Python does once in every round, allocating,
choosing and unpacking, is done here once in several rounds: for small problems it is most of the time of a round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import jobs, lane_rounds, pieces
from fedconvex.kernels.averages import average_rows
from fedconvex.kernels.batches import again
from fedconvex.kernels.cache import kernel
from fedconvex.kernels.single_rows import run_single_rows

# mypy: disable-error-code="no-untyped-def"

MOST = 2e6  # operations of a round, roughly, from which on what Python does is no longer worth saving
_STATES = 2**20  # entries of the models of a block
_ENTRIES, _FEW = 2**15, 32  # entries of an array of a part, which has so many trajectories at least


class Work(NamedTuple):
    """What all clients do in their jobs, or need at most."""

    kind: int
    lanes: bool  # whether jobs are lanes
    widest: int  # rows of a client
    listed: int  # of its list
    largest: int  # of a batch
    passes: int
    block: int  # rows per pass

    def cost(self, problem, m):
        """Return the operations of m clients, roughly."""
        return max(1.0, float(self.passes) * self.block * m * (2.0 * problem.size + 64 * problem.n_outputs + 64))

    def sizes(self, problem, n, R, m):
        """Return how many of n rounds of R trajectories are computed together, and for how many of them in a call.

        What a call reads and writes stays in a cache, and it ends in time.
        """
        cost, p, few = self.cost(problem, m), problem.size, min(R, _FEW)
        widest = max(m, p)
        n = max(1, min(n, _STATES // (R * p), _ENTRIES // (few * widest), int(pieces.PIECE / (few * cost))))
        few = max(1, min(R, _ENTRIES // (n * widest), int(pieces.PIECE / (n * cost))))
        return n, few // lane_rounds.LANES * lane_rounds.LANES or few


def work_of(rules, problem, plan, replacement) -> Work | None:
    """Return the work of clients with plans (K, 3), or None where their jobs are of several kinds."""
    fed, kinds = problem.federation, np.zeros((1, len(plan)), np.int64)
    everyone, single = np.arange(fed.K)[None], jobs.SINGLE in rules
    found = jobs.sort_jobs(fed.ptr, everyone, plan[None], again(replacement), single, kinds)
    widest, listed, largest, seen, passes, block = found
    kind = int(seen).bit_length() - 1
    lanes = kind == jobs.SINGLE and lane_rounds.fits(problem.size, fed.rows, problem.row_labels)
    return Work(kind, lanes, widest, listed, largest, passes, block) if seen == 1 << kind else None


@kernel
def set_tilt(mu, w, tilt):
    """tilt[r] = -mu[r] w[r]: what (mu/2) ‖. - w‖^2 adds to a gradient beside the ridge."""
    for r in range(tilt.shape[0]):
        for q in range(tilt.shape[2]):
            tilt[r, 0, q] = -mu[r] * w[r, 0, q]


@kernel
def rounds_of_single_rows(
    weights, flat, kind, kinds, loss, X, y, ptr, ids, l2, mu, tilt, key, trajectories, first, clients, W, w, plan, eta,
    replacement, models, path, width, whole, real, lists, pool,
):  # fmt: skip
    """W[t + 1] = sum_j weights[t, :, j] models[:, j], models after round first + t from W[t]; w is W, flat models."""
    for t in range(W.shape[0] - 1):
        a, b, c = min(t, clients.shape[0] - 1), min(t, plan.shape[0] - 1), min(t, weights.shape[0] - 1)
        set_tilt(mu, W[t], tilt)
        run_single_rows(
            kind, kinds[b], loss, X, y, ptr, ids, l2, mu, tilt, key, trajectories, first + t, clients[a], W[t],
            plan[b], eta[min(t, eta.shape[0] - 1)], replacement, flat, path, width,
            whole, real, lists, pool, 0,
        )  # fmt: skip
        average_rows(weights[c], models, w[t + 1])


@kernel
def rounds_of_jobs(
    weights, rule, kind, kinds, loss, X, y, ptr, ids, l2, mu, tilt, key, trajectories, first, clients, W, w, plan, eta,
    replacement, models, path, C, widest, whole, real, ridges, width,
):  # fmt: skip
    """Do the same by a rule of `jobs`."""
    for t in range(W.shape[0] - 1):
        a, b, c = min(t, clients.shape[0] - 1), min(t, plan.shape[0] - 1), min(t, weights.shape[0] - 1)
        set_tilt(mu, W[t], tilt)
        jobs.run_jobs(
            rule, kind, kinds[b], loss, X, y, ptr, ids, l2, mu, tilt, key, trajectories, first + t, clients[a], W[t],
            plan[b], eta[min(t, eta.shape[0] - 1)], replacement, models, path, C, widest, whole, real, ridges, width,
            0,
        )  # fmt: skip
        average_rows(weights[c], models, w[t + 1])


def averaged(rules, problem, work, w, n, clients, weights, draws, eta, plan, replacement, late, mu) -> Any:
    """Return the models (n, R, *model) after each of n rounds of local steps and averaging, or None.

    Rounds have the clients (n, R, m) or (1, 1, m), the weights of their models likewise, and plans (n, R, m, 3) or
    (1, 1, m or 1, 3); eta (n or 1, R, 1, steps or 1) are the step sizes, mu (R,) or None the proximal terms. The first
    round is draws.round, and starts at w (R, *model). None is returned where only kernels of several rounds could
    do it, unless it is late.
    """
    fed, R, m, p, together = problem.federation, len(w), clients.shape[2], problem.size, 0
    W = np.empty((n + 1, R, 1, p))
    W[0] = w.reshape(R, 1, p)
    tilt = jobs.NO_TILT if mu is None else np.empty((R, 1, p))  # mu = 0 too: a tilt of 0 times infinity is NaN
    mu = jobs.NO_RIDGE if mu is None else mu
    if work.kind == jobs.SINGLE:
        across = lane_rounds.LANES * m if R >= lane_rounds.LANES else 0
        needs = work.widest, work.listed, work.passes, work.block, work.lanes, across
        together, room = jobs.room_together(fed, replacement, R * m, p, *needs)
    if work.lanes and together:
        few = max(1, together // m)
        jobs.run_in_lanes(
            problem, problem.row_loss, problem.row_labels, problem.ridge, W, clients, draws, eta, plan, replacement,
            np.empty((few * m, p)), room, ridge=mu, tilt=tilt, weights=weights, few=few, most=R,
        )  # fmt: skip
        return problem.unflatten(W[1:, :, 0])
    if not late:
        return None
    clients, weights = (np.broadcast_to(a, (len(a), R, m)).copy() for a in (clients, weights))
    plan, models = np.broadcast_to(plan, (len(plan), R, m, 3)).copy(), np.empty((R, m, p))
    kinds = np.full(plan.shape[:3], work.kind)
    rows = work.kind, kinds, problem.row_loss, fed.rows, problem.row_labels, fed.ptr, fed.ids
    where = problem.ridge, mu, tilt, draws.key, draws.trajectory, draws.round, clients, W, W.reshape(n + 1, R, p)
    many = *rows, *where, plan, eta, replacement, models, jobs.NO_PATH
    if together:
        rounds_of_single_rows(weights, models.reshape(R * m, p), *many, *room)
    else:
        room = jobs.room_alone(work.widest, work.listed, work.largest, p, problem.n_outputs, problem.ridge)
        rounds_of_jobs(weights, rules[work.kind], *many, problem.n_outputs, work.widest, *room)
    return problem.unflatten(W[1:, :, 0])
