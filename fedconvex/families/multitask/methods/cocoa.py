"""CoCoA on multi-task problems (Ma et al., ICML 2015; Smith et al., JMLR 2018): all nodes work to one local accuracy.

Tasks t = nodes; W = (w_t) = Mbar V, v_t = c_t X_t'alpha_t, and alpha_t stays at the node.

1. node t: alpha_t <- 0, v_t <- 0; server: W <- 0, sigma' safe for Mbar
2. each round: server sends w_t and rho_t = sigma' Mbar_tt to node t
3.   node t: u <- w_t; passes over its rows in fresh orders until theta_t <= theta: for every row i
     delta <- argmin l*(-(alpha_i + delta)) + delta x_i'u + (rho_t c_t ‖x_i‖^2/2) delta^2,
     alpha_i <- alpha_i + delta, u <- u + rho_t c_t delta x_i
4.   v_t <- v_t + (u - w_t)/rho_t = c_t X_t'alpha_t; node answers v_t
5. server: W <- Mbar V

theta_t, and how it is bounded: `fedconvex.families.multitask.methods.mocha`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedconvex.draws import Draws
from fedconvex.families.multitask import dual_nodes
from fedconvex.families.multitask.dual_nodes import Memory, Message, NodeWork, Reply, Sigma
from fedconvex.families.multitask.node_words import rule_in_words
from fedconvex.fields import CheckedFields, Count, Inside
from fedconvex.methods.parts import participation
from fedconvex.problems import MultiTaskProblem
from fedconvex.problems.protocol import MODEL_PER_TASK
from fedconvex.traits import LEAVE_OUT, Traits
from fedconvex.words import Words


@dataclass(frozen=True, kw_only=True)
class CoCoA(CheckedFields):
    """CoCoA on multi-task problems: every node works to the same local accuracy theta in every round.

    What MOCHA is without its tolerance of stragglers: the round lasts as long as the slowest node's work.

    Parameters
    ----------
    theta : float
        In (0, 1).
    max_epochs : int
        Most passes of a node over its rows in a round.
    sigma
        As for `MOCHA`.

    Raises
    ------
    ValueError, TypeError
        If theta is not in (0, 1), max_epochs below 1, or sigma neither "safe" nor positive.

    References
    ----------
    Ma, Smith, Jaggi, Jordan, Richtarik, Takac, "Adding vs. averaging in distributed primal-dual optimization", ICML
    2015; Smith et al., "CoCoA: a general framework for communication-efficient distributed optimization", JMLR 18
    (2018); for multi-task problems Smith et al., NIPS 2017, Section 5.

    Examples
    --------
    >>> from fedconvex import Hinge, run
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.methods import CoCoA
    >>> from fedconvex.problems import MeanRegularised, MultiTaskProblem
    >>> fed = logistic_federation(n_clients=5, seed=1).federation
    >>> problem = MultiTaskProblem(fed, Hinge(), MeanRegularised(1.0, 1.0))
    >>> result = run(CoCoA(theta=0.1), problem, rounds=200, tol=1e-6)
    >>> result.status.name, bool(result.trace.theta[1:].max() <= 0.1)
    ('CONVERGED', True)
    """

    command = "cocoa"
    benchmarks: ClassVar[Any] = {"cocoa": {}}
    aims = ("model per task",)
    learns = (MODEL_PER_TASK,)
    lost = LEAVE_OUT

    theta: Inside = 0.5
    max_epochs: Count = 1000
    sigma: Sigma | None = None

    statistics, memory = dual_nodes.statistics, dual_nodes.memory

    def words(self, problem: MultiTaskProblem) -> Words:
        work = f"CoCoA, every node: local accuracy {self.theta:g}"
        return Words(work, (f"theta {self.theta:g}", *rule_in_words(self)))

    init = dual_nodes.init  # 1
    broadcast = dual_nodes.broadcast  # 2

    def local(
        self, problem: MultiTaskProblem, message: Message, clients: np.ndarray, memory: Memory, draws: Draws
    ) -> tuple[Reply, Memory]:
        work = NodeWork(theta=self.theta, max_epochs=self.max_epochs).asked(problem, draws.round)
        return dual_nodes.take_steps(problem, message, clients, memory, draws, work), memory  # 3, 4

    aggregate = dual_nodes.aggregate  # 5
    measure, observe = dual_nodes.measure, dual_nodes.observe

    def traits(self, problem: MultiTaskProblem) -> Traits:
        return participation.traits_of_sampling(None, problem, "rows")
