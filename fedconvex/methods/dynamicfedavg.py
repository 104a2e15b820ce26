"""Dynamic FedAvg (Rizk, Vlaski, Sayed, SPAWC 2020, Algorithm 1): agents differ in local epochs and batch sizes.

1. server: start at w_0
2. each iteration i: server draws L of K agents uniformly without replacement and sends them w_{i-1}
3.   agent k: w_{k,0} = w_{i-1}
4.   for e = 1..E_k: draw B_k of N_k rows without replacement, w_{k,e} = w_{k,e-1} - (mu/E_k) grad P_k(w_{k,e-1}; batch)
5.   agent k answers w_{k,E_k}
6. server: w_i = (1/L) sum_{k in L_i} w_{k,E_k}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, CountPerClient
from fedconvex.kernels import descent
from fedconvex.methods.parts import aggregation, averaging, local_work, optimizers, participation, step_sizes
from fedconvex.methods.parts.averaging import Message, Reply
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import RENORMALISE, LocalSteps, Traits
from fedconvex.words import Words, steps_in_words


@dataclass(frozen=True, kw_only=True)
class DynamicFedAvg(CheckedFields):
    """FedAvg for drifting targets, with agent-specific local epochs E_k, batch sizes B_k and local steps mu/E_k.

    The division by E_k gives every agent the same total step, so that unequal E_k cause no bias of first order.

    Parameters
    ----------
    step_size : float or array (R,)
        mu; an array gives every trajectory its own.
    local_steps : int or array (K,)
        E_k.
    batch_size : int, array (K,) or None
        B_k, rows drawn without replacement in every local step; None for all rows.
    participation : int, float or scheme
        L, agents per iteration. The paper minimises (1/K) sum P_k and averages plainly: ``Problem(...,
        weights="uniform")``. Other weights enter the average as for `FedAvg`.
    aggregation : aggregate
        As for `FedAvg`.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if a batch exceeds its agent, or lengths are not K.

    References
    ----------
    Rizk, Vlaski, Sayed, "Dynamic federated learning", IEEE SPAWC 2020, arXiv:2002.08782.

    Examples
    --------
    >>> from fedconvex import Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import DynamicFedAvg
    >>> problem = Problem(linear_federation(n_clients=4, seed=0).federation, Squared())
    >>> method = DynamicFedAvg(step_size=0.2, local_steps=(1, 2, 3, 4), batch_size=5, participation=2)
    >>> run(method, problem, rounds=20).rounds
    20
    """

    step_size: Annotated[Any, step_sizes.StepRule(decays=False, instead="use FedAvg")]
    local_steps: CountPerClient = 1
    batch_size: CountPerClient | None = None
    participation: participation.Participation = 1.0
    aggregation: aggregation.Aggregate = aggregation.WeightedMean()

    server = optimizers.Averaging()
    lost = RENORMALISE

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories."""
        super().check_fit(problem, R)
        aggregation.check_fit(self)
        local_work.check_batches("DynamicFedAvg", self._plan(problem, np.arange(problem.federation.K))[:, 2], problem)

    init = averaging.init  # 1
    broadcast = averaging.broadcast  # 2

    def local(self, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        plan = self._plan(problem, clients)  # 3
        eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan) / plan[:, :, :1]
        plain = optimizers.ClientSGD()
        w, path = descent.local_updates(problem, plain, message.w, clients, draws, eta, plan, False, False)  # 4
        return Reply(w, path), memory  # 5

    aggregate = averaging.aggregate  # 6

    def words(self, problem: Problem) -> Words:
        who = participation.who_takes_part(self.participation, problem.federation.K)
        return steps_in_words(self, self.local_steps, self.batch_size, who)

    def traits(self, problem: Problem) -> Traits:
        plan, sizes = self._plan(problem, np.arange(problem.federation.K)), problem.federation.sizes
        step = 1.0 if aggregation.is_mean(self) else None
        local = LocalSteps(self.step_size, plan[:, 0], plan[:, 1], sizes, False, True, True, 1.0 / plan[:, 0])
        return participation.traits_of_sampling(
            self.participation, problem, local=local, server_step=step, by_round=False
        )

    def _plan(self, problem: FederatedProblem, clients: np.ndarray) -> np.ndarray:
        """Return E_k, B_k, B_k of the given clients, (*clients.shape, 3)."""
        sizes = problem.federation.sizes
        E, B = (np.broadcast_to(x, sizes.shape) for x in (self.local_steps, self.batch_size or sizes))
        return local_work.plan_of(clients, E[clients], B[clients], B[clients])
