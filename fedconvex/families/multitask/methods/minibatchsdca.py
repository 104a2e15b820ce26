"""Mini-batch SDCA on multi-task problems (Takac, Bijral, Richtarik, Srebro, ICML 2013): batches of dual steps at once.

Tasks t = nodes; W = (w_t) = Mbar V, v_t = c_t X_t'alpha_t, and alpha_t stays at the node.

1. node t: alpha_t <- 0, v_t <- 0; server: W <- 0, sigma' safe for Mbar
2. each round: server sends w_t and rho_t = sigma' Mbar_tt to node t
3.   node t: draw b_t different rows; for each of them, all at w_t,
     delta_i <- argmin l*(-(alpha_i + delta)) + delta x_i'w_t + (beta_t rho_t c_t ‖x_i‖^2/2) delta^2
4.   alpha_i <- alpha_i + delta_i, v_t <- v_t + c_t sum of delta_i x_i; node answers v_t
5. server: W <- Mbar V
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedconvex.draws import Draws
from fedconvex.families.multitask import dual_nodes
from fedconvex.families.multitask.dual_nodes import Memory, Message, Reply, Sigma, State, answer
from fedconvex.families.multitask.node_words import rule_in_words
from fedconvex.fields import CheckedFields, Count, Positive
from fedconvex.kernels import jobs
from fedconvex.kernels.rows import row_axpy, row_dot
from fedconvex.methods.parts import participation
from fedconvex.methods.parts.local_work import plan_of
from fedconvex.problems import MultiTaskProblem
from fedconvex.problems.protocol import MODEL_PER_TASK
from fedconvex.solvers.kinked.dual import conjugate_sum, dual_step
from fedconvex.traits import LEAVE_OUT, Traits
from fedconvex.words import Words


@dataclass(frozen=True, kw_only=True)
class MiniBatchSDCA(CheckedFields):
    """Mini-batch dual coordinate ascent: all coordinates of a batch move at once, from the models of the round.

    Parameters
    ----------
    batch_size : int
        b, rows of a node in a round, without replacement; all of them at smaller nodes.
    beta : float, optional
        By which curvatures are enlarged because the steps of a batch add up. None is the safe
        beta_t = 1 + (b_t - 1)(s_t - 1)/(n_t - 1), with s_t the largest eigenvalue of the Gram matrix of the node's
        normalised rows: then the expected dual objective decreases by what the batch's own steps promise. b is always
        safe.
    sigma
        As for `MOCHA`.

    Raises
    ------
    ValueError, TypeError
        If batch_size is below 1, beta not positive, or sigma neither "safe" nor positive.

    References
    ----------
    Takac, Bijral, Richtarik, Srebro, "Mini-batch primal and dual methods for SVMs", ICML 2013 (beta, for normalised
    rows).

    Examples
    --------
    >>> from fedconvex import Hinge, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import MiniBatchSDCA
    >>> from fedconvex.problems import MeanRegularised, MultiTaskProblem
    >>> fed = logistic_federation(n_clients=5, seed=1).federation
    >>> problem = MultiTaskProblem(fed, Hinge(), MeanRegularised(1.0, 1.0))
    >>> result = run(MiniBatchSDCA(batch_size=10), problem, rounds=200)
    >>> bool(result.gap < 0.01 * result.trace.value[-1])
    True
    """

    benchmarks: ClassVar[Any] = {"minibatch-sdca": {"batch_size": 10}}
    aims = ("model per task",)
    learns = (MODEL_PER_TASK,)
    lost = LEAVE_OUT

    batch_size: Count
    beta: Positive | None = None
    sigma: Sigma | None = None

    statistics, memory = dual_nodes.statistics, dual_nodes.memory

    def words(self, problem: MultiTaskProblem) -> Words:
        work = f"MiniBatchSDCA, every node: {self.batch_size} rows at once"
        return Words(work, (f"B {self.batch_size}", *rule_in_words(self)))

    def init(self, problem: MultiTaskProblem, w: np.ndarray) -> State:
        dual_nodes.check_one_score(self, problem)
        return dual_nodes.init(self, problem, w)  # 1

    broadcast = dual_nodes.broadcast  # 2

    def local(
        self, problem: MultiTaskProblem, message: Message, clients: np.ndarray, memory: Memory, draws: Draws
    ) -> tuple[Reply, Memory]:
        sizes, reply = problem.federation.sizes, dual_nodes.empty_reply(problem, clients)
        beta = safe_beta(problem, self.batch_size) if self.beta is None else np.full(sizes.size, float(self.beta))
        nodes = dual_nodes.Nodes(problem.row_norms, problem.c, message.rho, *memory)
        fresh = dual_nodes.refreshes(draws.round)
        rule = BatchAscent(nodes, draws.trajectory, beta, fresh, reply.conjugate, reply.theta, reply.steps)
        batch = np.minimum(self.batch_size, sizes)[clients]
        plan = plan_of(clients, 1, batch, batch)
        return dual_nodes.run_nodes(jobs.DRAWN, rule, problem, message, clients, draws, plan, reply), memory  # 3, 4

    aggregate = dual_nodes.aggregate  # 5
    measure, observe = dual_nodes.measure, dual_nodes.observe

    def traits(self, problem: MultiTaskProblem) -> Traits:
        full = bool((problem.federation.sizes <= self.batch_size).all())
        return participation.traits_of_sampling(None, problem, *(() if full else ("batches",)))


def safe_beta(problem: MultiTaskProblem, batch_size: int) -> np.ndarray:
    """Return beta_t = 1 + (b_t - 1)(s_t - 1)/(n_t - 1) of every node, (m,)."""
    n = problem.federation.sizes
    b = np.minimum(batch_size, n)
    return np.asarray(1.0 + (b - 1) * np.maximum(problem.gram_norms - 1.0, 0.0) / np.maximum(n - 1, 1))


class BatchAscent(NamedTuple):
    """All steps of a batch at w_t, with curvatures beta_t rho_t c_t ‖x_i‖^2; the answer v_t stands in w afterwards."""

    nodes: dual_nodes.Nodes
    trajectories: np.ndarray  # (R,)
    beta: np.ndarray  # (m,)
    fresh: bool
    conjugate: np.ndarray  # (R, k), written, like theta and done
    theta: np.ndarray
    done: np.ndarray

    def steps(self, loss, data, job, eta, w, path, room):  # type: ignore[no-untyped-def]
        """For each row i of the batch: alpha_i <- alpha_i + delta_i; v_t <- v_t + c_t sum delta_i x_i."""
        r, j, t, c, number = job.r, job.j, job.k, self.nodes.c, self.trajectories[job.r]
        a, v, q = self.nodes.alpha[number], self.nodes.v[number, t], self.beta[t] * self.nodes.rho[r, t] * c[t]
        for e in range(job.batch):
            i = room.rows[e]
            delta = dual_step(loss, a[i], row_dot(data.X, i, w), q * self.nodes.norms[i], data.y[i])
            if delta != 0.0:
                a[i] += delta
                row_axpy(data.X, i, c[t] * delta, v)
        self.theta[r, j], self.done[r, j] = np.nan, job.batch
        answer(loss, data.X, job.lo, job.lo + job.n, c[t], a, v, self.fresh, w)
        self.conjugate[r, j] = c[t] * conjugate_sum(loss, data.y, job.lo, job.lo + job.n, a)
