"""Several rounds in one call, where a round is local steps of single rows or batches and a weighted average.

The loops over jobs are those of single rounds, and so are the bits. What Python does once in every round, allocating,
choosing and unpacking, is done here once in several rounds: for small problems it is most of the time of a round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels import jobs, pieces, single_rows
from fedconvex.kernels.averages import average_rows
from fedconvex.kernels.batches import again
from fedconvex.kernels.cache import kernel
from fedconvex.kernels.single_rows import run_single_rows

# mypy: disable-error-code="no-untyped-def"

MOST = 2e6  # operations of a round, roughly, from which on what Python does is no longer worth saving


@kernel
def set_tilt(mu, w, tilt):
    """tilt[r] = -mu[r] w[r]: what (mu/2) ‖. - w‖^2 adds to a gradient beside the ridge."""
    for r in range(tilt.shape[0]):
        for q in range(tilt.shape[2]):
            tilt[r, 0, q] = -mu[r] * w[r, 0, q]


@kernel
def rounds_of_single_rows(
    weights, flat, kind, kinds, loss, X, y, ptr, ids, l2, mu, tilt, key, trajectories, first, clients, W, w, plan, eta,
    replacement, models, path, width, blocks, whole, real, lists, pool,
):  # fmt: skip
    """W[t + 1] = sum_j weights[t, :, j] models[:, j], models after round first + t from W[t]; w is W, flat models."""
    for t in range(W.shape[0] - 1):
        a, b, c = min(t, clients.shape[0] - 1), min(t, plan.shape[0] - 1), min(t, weights.shape[0] - 1)
        set_tilt(mu, W[t], tilt)
        run_single_rows(
            kind, kinds[b], loss, X, y, ptr, ids, l2, mu, tilt, key, trajectories, first + t, clients[a], W[t],
            plan[b], eta[min(t, eta.shape[0] - 1)], replacement, flat, path, width,
            blocks, whole, real, lists, pool, 0,
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


def _sorted(rules, problem, clients, plan, replacement):
    """Return the kinds of the jobs of all rounds, (n or 1, R, m), and what `jobs.sort_jobs` says about them."""
    fed, single = problem.federation, jobs.SINGLE in rules
    if plan.shape[0] == clients.shape[0]:
        kinds, m = np.zeros(clients.shape, np.int64), clients.shape[2]
        rows = clients.reshape(-1, m), plan.reshape(-1, m, 3), again(replacement), single, kinds.reshape(-1, m)
        return kinds, jobs.sort_jobs(fed.ptr, *rows)
    everyone = np.arange(fed.K)[None]  # the same plan for all: the kinds of all clients, not of each round's
    kinds, plans = np.zeros(everyone.shape, np.int64), np.broadcast_to(plan[:, 0, :1], (1, fed.K, 3)).copy()
    found = jobs.sort_jobs(fed.ptr, everyone, plans, again(replacement), single, kinds)
    return np.full(plan.shape[:3], kinds[0, 0]), found


def averaged(rules, problem, w, n, clients, weights, draws, eta, plan, replacement, mu) -> Any:
    """Return the models (n, R, *model) after each of n rounds, or the first few, of local steps and averaging, or None.

    Rounds have the clients (n or 1, R, m), the weights (n or 1, R, m) of their models, and plans (n, R, m, 3), or
    (1, R, m, 3) if all clients have the same; eta (n or 1, R, 1, steps or 1) are the step sizes, mu (R,) or zeros (1,)
    the proximal terms. The first round is draws.round, and starts at w (R, *model). None is returned where jobs of
    several kinds occur, or a round is not small.
    """
    fed, (R, m), C, p = problem.federation, clients.shape[1:], problem.n_outputs, problem.size
    kinds, (widest, listed, largest, seen, passes, block) = _sorted(rules, problem, clients, plan, replacement)
    kind, cost = int(seen).bit_length() - 1, passes * block * R * m * (2.0 * p + 64 * C + 64)
    if seen != 1 << kind or cost > MOST:
        return None
    n = max(1, min(n, int(pieces.PIECE / cost)))
    W = np.empty((n + 1, R, 1, p))
    W[0] = w.reshape(R, 1, p)
    tilt, models = np.zeros((R, 1, p)) if mu.any() else jobs.NO_TILT, np.empty((R, m, p))
    together, room = 0, ()
    if kind == jobs.SINGLE:
        lanes = single_rows.in_lanes(p, fed.rows, problem.row_labels)
        together, room = jobs.room_together(fed, replacement, R * m, p, widest, listed, passes, block, lanes)
    rows = kind, kinds, problem.row_loss, fed.rows, problem.row_labels, fed.ptr, fed.ids
    where = problem.ridge, mu, tilt, draws.key, draws.trajectory, draws.round, clients, W, W.reshape(n + 1, R, p)
    many = *rows, *where, plan, eta, replacement, models, jobs.NO_PATH
    if together:
        rounds_of_single_rows(weights, models.reshape(R * m, p), *many, *room)
    else:
        room = jobs.room_alone(widest, listed, largest, p, C, problem.ridge)
        rounds_of_jobs(weights, rules[kind], *many, C, widest, *room)
    return problem.unflatten(W[1:, :, 0])
