"""Steps of local gradient descent: plain or by a client optimiser, on full gradients, mini-batches or single rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import jobs
from fedconvex.kernels.batches import batch_add, batch_slopes
from fedconvex.kernels.cache import strict_part
from fedconvex.kernels.dispatch import move, slope
from fedconvex.kernels.penalised import shorten
from fedconvex.kernels.ridges import penalty, shrink
from fedconvex.kernels.row_losses import add_gradients
from fedconvex.kernels.rows import row_axpy, single_dot


@strict_part
def share(n):
    """1/n, strictly: its product with a slope must not be turned into a division."""
    return 1.0 / n


class FullSteps(NamedTuple):
    """Moves of an optimiser with the gradient over all rows of the client."""

    opt: Any

    def step(self, loss, data, job, part, s, a, w, room):
        """One move with g = ridge w + tilt + mean of the gradients of all rows."""
        penalty(job.ridge, w, job.tilt, room.g)
        add_gradients(loss, data.X, data.y, job.lo, job.lo + job.n, share(job.n), w, room.g, room.c)
        move(self.opt, w, room.g, a, room.m, room.v, s + 1)


class BatchSteps(NamedTuple):
    """Plain steps on mini-batches: rows are added to the model one by one."""

    def step(self, loss, data, job, part, s, a, w, room):
        """w <- (1 - a ridge) w - a tilt - (a/B) sum of the gradients of the batch."""
        batch_slopes(loss, data.X, data.y, part, -a / part.size, w, room.c, room.t)
        shrink(job.ridge, a, w, job.tilt)
        batch_add(loss, data.X, part, room.c, w)


class ProximalSteps(NamedTuple):
    """Proximal steps on mini-batches, for objectives with a penalty P."""

    prox: Any

    def step(self, loss, data, job, part, s, a, w, room):
        """w <- prox_{a P}((1 - a ridge) w - a tilt - (a/B) sum of the gradients of the batch)."""
        batch_slopes(loss, data.X, data.y, part, -a / part.size, w, room.c, room.t)
        shrink(job.ridge, a, w, job.tilt)
        batch_add(loss, data.X, part, room.c, w)
        shorten(self.prox, w, a)


class BatchMoves(NamedTuple):
    """Moves of an optimiser on mini-batches."""

    opt: Any

    def step(self, loss, data, job, part, s, a, w, room):
        """One move with g = ridge w + tilt + mean of the gradients of the batch."""
        batch_slopes(loss, data.X, data.y, part, 1.0 / part.size, w, room.c, room.t)
        penalty(job.ridge, w, job.tilt, room.g)
        batch_add(loss, data.X, part, room.c, room.g)
        move(self.opt, w, room.g, a, room.m, room.v, s + 1)


class SingleSteps(NamedTuple):
    """Plain steps on single rows, for one output: few jobs; `single_rows` does more of them at once."""

    def steps(self, loss, data, job, eta, w, path, room):
        """For each row i: w <- (1 - a ridge) w - a tilt - a l'(x_i'w, y_i) x_i."""
        last, mine, l2 = eta.shape[2] - 1, min(job.j, eta.shape[1] - 1), job.ridge
        start = job.since * job.block
        for s in range(start, job.passes * job.block):
            i, a = room.rows[s - start], eta[job.r, mine, min(s, last)]
            c = -a * slope(loss, single_dot(data.X, i, w), data.y[i])
            shrink(l2, a, w, job.tilt)
            row_axpy(data.X, i, c, w)
            if path.shape[2] > 0:
                for t in range(w.size):
                    path[job.r, job.j, s, t] = w[t]


@lru_cache(maxsize=64)
def rules(opt, n_outputs, even=True):
    """Return the rules of the kinds of jobs for a client optimiser; one ridge is for all coordinates if ``even``."""
    if not opt.plain():
        return {jobs.FULL: FullSteps(opt), jobs.BATCH: BatchMoves(opt)}
    if n_outputs > 1 or not even:
        return {jobs.FULL: FullSteps(opt), jobs.BATCH: BatchSteps()}
    return {jobs.FULL: FullSteps(opt), jobs.BATCH: BatchSteps(), jobs.SINGLE: SingleSteps()}


def local_updates(problem, opt, w, clients, draws, eta, plan, replacement, shadow, tilt=None, ridge=None, prox=None):
    """Take the local steps of clients (R, m): models (R, m, *model), paths (R, m, tau, *model).

    They start at w (R, *model), or each at its own (R, m, *model), and descend f_k(w) + <tilt, w> + (ridge/2) ‖w‖^2,
    tilt (R, m or 1, *model), ridge (R,). plan (R, m, 3) says how many passes each client makes, over blocks of how many
    of its rows, in batches of what size. A tilt of zeros gives the same bits as none. With ``prox``, a proximal map in
    place, steps are proximal ones, whatever the optimiser.
    """
    R, p = len(clients), problem.size
    tau = int(plan[0, 0, 0] * -(-plan[0, 0, 1] // plan[0, 0, 2])) if shadow else 0
    path = np.empty((*clients.shape, tau, p))
    plain = rules(opt, problem.n_outputs, not isinstance(problem.ridge, np.ndarray))
    kinds = plain if prox is None else {jobs.OWN: ProximalSteps(prox)}
    out = jobs.run(
        kinds, problem, problem.ridge, w.reshape(R, -1, p), clients, draws, eta, plan, replacement, path=path,
        tilt=jobs.NO_TILT if tilt is None else tilt.reshape(R, -1, p),
        ridge=jobs.NO_RIDGE if ridge is None else ridge,
    )  # fmt: skip
    return problem.unflatten(out), problem.unflatten(path)
