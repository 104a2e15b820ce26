"""MOCHA (Smith, Chiang, Sanjabi, Talwalkar, NIPS 2017, Algorithm 1): a model per node, tied by a task relationship.

Tasks t = nodes; W = (w_t) = Mbar V, v_t = c_t X_t'alpha_t, and alpha_t stays at the node.

1. node t: alpha_t <- 0, v_t <- 0; server: W <- 0, sigma' safe for Mbar
2. each round: server sends w_t and rho_t = sigma' Mbar_tt to node t
3.   node t: H_t steps, a share of its full ones by its clock, 0 if it is dropped; u <- w_t
4.   repeat H_t times (or, asked for an accuracy, until theta_t <= theta): draw one of its rows i,
     delta <- argmin l*(-(alpha_i + delta)) + delta x_i'u + (rho_t c_t ‖x_i‖^2/2) delta^2,
     alpha_i <- alpha_i + delta, u <- u + rho_t c_t delta x_i
5.   v_t <- v_t + (u - w_t)/rho_t, which is c_t X_t'alpha_t, recomputed from alpha_t every 64 rounds; node answers v_t
6. server: W <- Mbar V
7. learned Omega, every so many rounds: Omega <- (W W' + e I)^{1/2} with trace one, Mbar and sigma' from it, W <- Mbar V

theta_t = (G_t(delta) - min G_t)/(G_t(0) - min G_t) is bounded by gap/(gap + G_t(0) - G_t(delta)), gap the duality gap
of the node's subproblem G_t, at the price of one more pass over its rows. It is 0 where the gap is rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.families.multitask import dual_nodes
from fedconvex.families.multitask.coupling import mbar_times, safe_sigma
from fedconvex.families.multitask.dual_nodes import Memory, Message, NodeWork, Reply, Sigma, State
from fedconvex.fields import AtLeastZero, Count
from fedconvex.problems import Covariance, MultiTaskProblem
from fedconvex.problems.protocol import MODEL_PER_TASK


@dataclass(frozen=True, kw_only=True)
class MOCHA(NodeWork):
    """Federated multi-task learning by dual coordinate ascent, for `MultiTaskProblem`.

    Nodes may do as much or as little as they can in every round, and nothing in some: the dual objective never
    increases, and the gap says where the run stands. Certified are P(W) - min P and, by the same number, the dual
    suboptimality; with a learned Omega the joint objective, over W and Omega together.

    Parameters
    ----------
    epochs : float
        Full work of a node in a round, in passes over its rows (H_t = epochs n_t, at least 1).
    local_steps : int, optional
        Instead: so many coordinate steps, the same for every node.
    theta : float, optional
        Certified local accuracy in (0, 1) to work for: after each full work theta_t is looked at, and work goes on
        until it is reached, or `max_epochs` times the full work is done.
    max_epochs : int
    clock : Clock, optional
        Draws every node's share of the full work in every round; default all of it.
    drop : float or array (m,)
        Probability in [0, 1] that a node does nothing in a round, drawn for every node and round.
    replacement : bool
        Draw rows independently instead of in passes of fresh random order.
    sigma : {"pencil", "eigenvalue", "rows", "tasks"}, float or None
        sigma'. By `MultiTaskProblem.pencil_sigma`, the least safe number for the data (not for a learned Omega); by
        `safe_sigma`; or a number. None takes the least of them: the pencil where a node has fewer rows than features
        and sum_t min(n_t, d) <= 1500, else the eigenvalue. Numbers below the pencil are not safe: see
        `fedconvex.families.multitask.theorems.mocha`.
    omega_every : int
        Rounds between updates of a learned Omega.
    anneal : float
        e = (1 + k)^(-2 anneal) ‖W‖^2/m in update k = 1, 2, ...: without e (a large `anneal`) Omega soon is singular,
        and models are stuck in its range.
    rank : int, optional
        Learn Omega among kappa I + (rank r) only, by the exact minimiser among them: updates then cost m r p instead of
        m^2 p. The gap is that of the problem over all Omega. Default any Omega; beyond 500 tasks it is held by the at
        most p singular vectors that it has.
    certify : bool
        Bound theta_t even where no accuracy is asked for: 1 for a node that did nothing, 0 for one whose subproblem is
        solved to rounding.
    participation : int, float or scheme
        Nodes that are asked in a round; default all.

    Notes
    -----
    A node that is dropped still counts as one that is sent to and answers; nodes left out by `participation` do not.

    The trace gains ``dual`` (-D(alpha), a lower bound of the optimum for fixed Omega), ``theta`` (the largest bound of
    the last round), ``steps`` (coordinate steps so far, all nodes), ``blocking`` (the node with the largest part of the
    gap for the current Omega) and ``share`` (that part).

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the problem is not a `MultiTaskProblem`, or the start is not
        zero: models follow from dual variables.

    References
    ----------
    Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017, Algorithm 1.

    Examples
    --------
    >>> from fedconvex import Hinge, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import MOCHA, Clock
    >>> from fedconvex.problems import MeanRegularised, MultiTaskProblem
    >>> fed = logistic_federation(n_clients=5, seed=1).federation
    >>> problem = MultiTaskProblem(fed, Hinge(), MeanRegularised(1.0, 1.0))
    >>> run(MOCHA(clock=Clock(0.1), drop=0.2), problem, rounds=500, tol=1e-6).status.name
    'CONVERGED'
    """

    command = ("mocha", "mean-regularised")
    benchmarks: ClassVar[Any] = {"mocha": {}, "mocha-dropped": {"drop": 0.3}}
    learns = (MODEL_PER_TASK,)

    sigma: Sigma | None = None
    omega_every: Count = 1
    anneal: AtLeastZero = 1.0
    rank: Count | None = None

    statistics, memory = dual_nodes.statistics, dual_nodes.memory

    def init(self, problem: MultiTaskProblem, w: np.ndarray) -> State:
        state = dual_nodes.start(self, problem, w, self.sigma)  # 1
        return state if self.rank is None else state._replace(mbar=self._thin(problem, state))

    broadcast = dual_nodes.broadcast  # 2

    def local(
        self, problem: MultiTaskProblem, message: Message, clients: np.ndarray, memory: Memory, draws: Draws
    ) -> tuple[Reply, Memory]:
        work = self.asked(problem, draws.round)  # 3
        return dual_nodes.take_steps(problem, message, clients, memory, draws, work), memory  # 4, 5

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        state = dual_nodes.aggregate(self, state, clients, weights, reply)  # 6
        if state.prior.size and state.t % self.omega_every == 0:
            return self._relate(state)  # 7
        return state

    measure, observe = dual_nodes.measure, dual_nodes.observe

    def _thin(self, problem: MultiTaskProblem, state: State) -> np.ndarray:
        """Return Mbar of the start as a diagonal and a factor, (R, m, 1 + rank)."""
        (R, m, p), relation = state.v.shape, problem.relation
        if not (isinstance(relation, Covariance) and relation.learned):
            raise bad(
                "MOCHA.rank", "be None for a fixed relationship", f"{self.rank}", "it is what Omega is learned in"
            )
        if self.rank is None or self.rank > m - 2:
            raise bad("MOCHA.rank", f"be at most {m - 2} for {m} tasks", f"{self.rank}", "leave it out")
        return np.tile(relation.factored_of(np.zeros((m, p)), 0.0, self.rank), (R, 1, 1))

    def _relate(self, state: State) -> State:
        """Return the state with Omega renewed from W, and W = Mbar V with it."""
        relation = Covariance(*state.prior.tolist())
        epsilon = (1.0 + state.t // self.omega_every) ** (-2.0 * self.anneal)
        m, width = state.mbar.shape[1:]
        of = relation.mbar_of if width == m else partial(relation.factored_of, rank=width - 1)
        mbar = np.array([of(w, epsilon) for w in state.w.reshape(state.v.shape)])
        number = isinstance(self.sigma, float)
        sigma = [self.sigma if number else safe_sigma(m, self.sigma or "eigenvalue") for m in mbar]
        return state._replace(mbar=mbar, sigma=np.array(sigma), w=mbar_times(mbar, state.v).reshape(state.w.shape))
