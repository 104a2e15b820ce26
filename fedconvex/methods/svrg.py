"""SVRG (Johnson, Zhang, NIPS 2013, Figure 1) on the pooled rows. Centralised: no messages.

P(w) = (1/n) sum_i psi_i(w), psi_i(w) = l(x_i'w, y_i) + (l2/2)‖w‖^2. One round is one stage.

1. start at w~
2. each stage: mu = grad P(w~), w_0 = w~
3.   for t = 1, ..., m: draw a mini-batch b of the n rows
4.     w_t = w_{t-1} - eta (grad psi_b(w_{t-1}) - grad psi_b(w~) + mu), psi_b the mean of psi_i over b
5.   option I: w~ <- w_m
6.   option II: w~ <- w_t for a t drawn uniformly from 0, ..., m-1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.constants import default_steps, noise_factor
from fedconvex.constants.default_steps import DefaultStep
from fedconvex.draws import INNER_PICK, Draws
from fedconvex.fields import Count, OneOrTwo
from fedconvex.kernels import batches, jobs, row_losses
from fedconvex.kernels.ridges import at
from fedconvex.methods.parts import automatic_steps, local_work, step_sizes
from fedconvex.problems import Problem
from fedconvex.traits import Traits
from fedconvex.words import Words, steps_in_words


class State(NamedTuple):
    """The snapshot."""

    w: np.ndarray  # (R, *model) w~


@dataclass(frozen=True, kw_only=True)
class SVRG(local_work.PooledWork):
    """Stochastic variance reduced gradient: steps on single rows, corrected by a full gradient at a snapshot.

    The variance of a step vanishes as iterate and snapshot approach the minimiser, so a constant step converges
    linearly: for gamma-strongly convex P, L-smooth psi_i, single rows, option II and eta < 1/(2L),
    E P(w~_s) - P* <= alpha^s (P(w~_0) - P*), alpha = 1/(gamma eta (1 - 2 L eta) m) + 2 L eta/(1 - 2 L eta).

    Parameters
    ----------
    step_size : float or array (R,)
        eta; an array gives every trajectory its own.
    inner_steps : int
        m, the length of a stage; the authors suggest 2n for convex problems.
    batch_size : int
        Rows per step.
    replacement : bool
        Draw the rows of a mini-batch with replacement.
    option : int
        2: a random inner iterate; the steps after it are not carried out. 1: the last one, about which the theorem says
        nothing.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the problem's weights are not n_k/n: pooled rows weigh 1/n each.

    References
    ----------
    Johnson, Zhang, "Accelerating stochastic gradient descent using predictive variance reduction", NIPS 2013, Figure 1
    and Theorem 1.

    Examples
    --------
    >>> from fedconvex import Logistic, Problem, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import SVRG
    >>> problem = Problem(logistic_federation(seed=1).federation, Logistic(), l2=0.1)
    >>> method = SVRG(step_size=0.1, inner_steps=2 * problem.federation.n, option=1)
    >>> run(method, problem, rounds=30, tol=1e-10).status.name
    'CONVERGED'
    """

    command = "svrg"
    benchmarks: ClassVar[Any] = {"svrg": {"inner_steps": 500}}
    no_penalty = "its theory is that of smooth objectives: ProximalGradient and FISTA take proximal steps"

    step_size: Annotated[Any, step_sizes.StepRule(automatic=True, decays=False)]
    inner_steps: Count
    option: OneOrTwo = 2

    def words(self, problem: Problem) -> Words:
        return steps_in_words(self, self.inner_steps, self.batch_size, kind="inner step", letter="m")

    def gradient_passes(self, problem: Problem) -> float:
        """Return the gradient passes over all rows that a round takes."""
        return 1.0 + 2.0 * self.inner_steps * self.batch_size / problem.federation.n

    def init(self, problem: Problem, w: np.ndarray) -> State:
        return State(w)  # 1

    def round(self, problem: Problem, state: State, draws: Draws) -> State:
        pooled, R, m = problem.pooled, len(state.w), self.inner_steps
        start, everybody = state.w.reshape(R, 1, -1), np.zeros((R, 1), dtype=np.int64)
        mu = row_losses.gradients_of(pooled, state.w, everybody)  # 2
        counts = np.full(R, m)  # 5
        if self.option == 2:
            counts = (m * draws.uniform(1, client=-1, purpose=INNER_PICK)[:, 0]).astype(np.int64)  # 6
        eta = np.array(step_sizes.round_step_sizes(self.step_size, draws.trajectory, draws.round))
        plan = np.full((R, 1, 3), self.batch_size)
        plan[:, 0, 0] = counts
        w = jobs.run(  # 3
            {jobs.DRAWN: Corrected(start, mu.reshape(R, -1))}, pooled, problem.ridge, start, everybody,
            draws, eta[:, None, None], plan, self.replacement,
        )  # fmt: skip
        return State(problem.unflatten(w[:, 0]))

    def traits(self, problem: Problem) -> Traits:
        rows = ("rows",) if self.drawn(problem) else ()  # their noise vanishes at the optimum
        return Traits(drawn=(("inner iterate",) if self.option == 2 else ()) + rows)

    def default_step(self, problem: Problem) -> DefaultStep:
        if self.option != 2:
            raise automatic_steps.no_theorem(self, "option 1, the last inner iterate", "take option=2")
        automatic_steps.smoothness(self, problem)
        c = problem.constants()
        if c.L is None or c.L_s is None or not c.mu:
            raise automatic_steps.no_theorem(self, "no strong convexity", "take l2 > 0, or give a step size")
        phi = float(noise_factor(problem.federation.n, self.batch_size, self.replacement))
        return default_steps.reduction_step(c.L, c.L_s, c.mu, self.inner_steps, phi)


# ---------------------------------------------------------------- inner steps


class Corrected(NamedTuple):
    """Steps on batches whose gradients are corrected by those at the snapshot."""

    snapshot: np.ndarray  # (R, 1, p)
    mu: np.ndarray  # (R, p) gradient at the snapshot, over all rows

    def step(self, loss, data, job, part, s, a, w, room):  # type: ignore[no-untyped-def]
        """w <- w - a (grad psi_b(w) - grad psi_b(snapshot) + mu) for the batch b."""
        snapshot = self.snapshot[job.r, 0]
        batches.batch_slopes(loss, data.X, data.y, part, -a / part.size, w, room.c, room.t)
        batches.batch_slopes(loss, data.X, data.y, part, -a / part.size, snapshot, room.c0, room.t)
        for b in range(part.size * job.outputs):
            room.c[b] -= room.c0[b]
        for q in range(w.size):
            w[q] -= a * (at(job.ridge, q) * (w[q] - snapshot[q]) + self.mu[job.r, q])
        batches.batch_add(loss, data.X, part, room.c, w)  # 4
