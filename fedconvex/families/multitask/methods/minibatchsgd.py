"""Mini-batch subgradient steps on multi-task problems: a baseline of Smith et al. (NIPS 2017), without dual variables.

P(W) = sum_t c_t sum_i l(x_i'w_t, y_i) + R(W), R a fixed relationship, finite everywhere.

1. each round: node t, sent w_t, answers g_t, c_t n_t times the mean of l'(x_i'w_t) x_i over b_t of its rows
2. server: W <- W - eta (g + grad R(W))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.families.multitask import dual_nodes
from fedconvex.fields import CheckedFields, Count
from fedconvex.kernels import jobs
from fedconvex.kernels.dispatch import slope
from fedconvex.kernels.rows import row_axpy, row_dot
from fedconvex.methods.parts import local_work, participation, step_sizes
from fedconvex.problems import MultiTaskProblem
from fedconvex.problems.protocol import MODEL_PER_TASK
from fedconvex.traits import Traits, sent_apart


class Models(NamedTuple):
    """What the server of MiniBatchSGD keeps."""

    w: np.ndarray  # (R, m, d) W
    qbar: np.ndarray  # (m, m) Qbar
    t: int


@sent_apart("w")
class OwnModel(NamedTuple):
    """Server of MiniBatchSGD to nodes."""

    w: np.ndarray  # (R, m, d)


class Gradients(NamedTuple):
    """Nodes of MiniBatchSGD to server."""

    g: np.ndarray  # (R, k, d)


@dataclass(frozen=True, kw_only=True)
class MiniBatchSGD(CheckedFields):
    """Mini-batch (sub)gradient steps on P(W), for fixed relationships with finite R.

    The gap comes from the dual variables -l'(x_i'w_t): for the hinge it need not vanish.

    Parameters
    ----------
    step_size : float, array (R,) or `Decay`
        eta; a `Decay` counts rounds.
    batch_size : int
        Rows of a node in a round, without replacement; all of them at smaller nodes.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or batch_size below 1.

    Examples
    --------
    >>> from fedconvex import Logistic, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import MiniBatchSGD
    >>> from fedconvex.problems import MeanRegularised, MultiTaskProblem
    >>> fed = logistic_federation(n_clients=5, seed=1).federation
    >>> problem = MultiTaskProblem(fed, Logistic(), MeanRegularised(1.0, 1.0), normalisation="mean")
    >>> bool(run(MiniBatchSGD(step_size=0.1, batch_size=10), problem, rounds=200).gap < 0.1)
    True
    """

    learns = (MODEL_PER_TASK,)
    constant = ("qbar",)  # of the state: no round changes it

    step_size: step_sizes.StepSize
    batch_size: Count

    def init(self, problem: MultiTaskProblem, w: np.ndarray) -> Models:
        dual_nodes.check_one_score(self, problem)
        if problem.relation.learned:
            raise bad("MiniBatchSGD", "have a fixed relationship", f"{problem.relation!r}", "use MOCHA")
        return Models(w, problem.relation.qbar(problem.federation.K), 0)

    def broadcast(self, state: Models) -> OwnModel:
        return OwnModel(state.w)

    def local(
        self, problem: MultiTaskProblem, message: OwnModel, clients: np.ndarray, memory: Any, draws: Draws
    ) -> tuple[Gradients, Any]:
        B = np.minimum(self.batch_size, problem.federation.sizes[clients])
        none = np.zeros(1)
        start = message.w[np.arange(len(clients))[:, None], clients]
        rule = {jobs.DRAWN: BatchSum(problem.c)}
        g = jobs.run(
            rule,
            problem,
            0.0,
            start,
            clients,
            draws,
            none.reshape(1, 1, 1),
            local_work.plan_of(clients, 1, B, B),
            False,
        )
        return Gradients(g), memory  # 1

    def aggregate(self, state: Models, clients: np.ndarray, weights: np.ndarray, reply: Gradients) -> Models:
        g = state.qbar @ state.w
        g[np.arange(len(clients))[:, None], clients] += reply.g
        return state._replace(w=step_sizes.descend(self.step_size, state.t, state.w, g), t=state.t + 1)  # 2

    def traits(self, problem: MultiTaskProblem) -> Traits:
        full = bool((problem.federation.sizes <= self.batch_size).all())
        drawn, by_round = () if full else ("batches",), step_sizes.decays(self)
        return participation.traits_of_sampling(None, problem, *drawn, by_round=by_round)


class BatchSum(NamedTuple):
    """The gradient of a node's weighted losses, estimated from a batch, instead of steps."""

    c: np.ndarray  # (m,) weights of a node's rows

    def steps(self, loss, data, job, eta, w, path, room):  # type: ignore[no-untyped-def]
        """w = (c_t n_t/b_t) sum of l'(x_i'w_t) x_i over a batch."""
        for e in range(job.batch):
            i = room.rows[e]
            s = slope(loss, row_dot(data.X, i, w), data.y[i])
            row_axpy(data.X, i, self.c[job.k] * job.n / job.batch * s, room.m)
        for q in range(w.size):
            w[q] = room.m[q]
