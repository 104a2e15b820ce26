"""Local steps with a penalty: what FedMiD and FedDualAvg ask of their clients, and of the penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count, Flag, Positive
from fedconvex.kernels import jobs
from fedconvex.kernels.penalised import in_place
from fedconvex.methods.parts import automatic_steps, local_work, participation, step_sizes
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import RENORMALISE, Traits


@dataclass(frozen=True, kw_only=True)
class ProximalWork(CheckedFields):
    """Fields of the federated methods with local proximal steps.

    Parameters
    ----------
    step_size : float or array (R,)
        Client step size eta_c; an array gives every trajectory its own.
    server_step : float
        eta_s.
    local_steps : int
        K, local steps per round; each draws a fresh mini-batch.
    batch_size : int, optional
        Rows per step; default all rows of the client.
    replacement : bool
        Draw the rows of a mini-batch with replacement.
    shrink : bool
        Let clients with fewer rows than batch_size take all their rows, instead of refusing them.
    participation : int, float or scheme
        Clients per round, as for `FedAvg`.
    """

    lost = RENORMALISE

    step_size: step_sizes.ConstantStepSize
    server_step: Positive = 1.0
    local_steps: Count = 1
    batch_size: Count | None = None
    replacement: Flag = False
    shrink: Flag = False
    participation: participation.Participation = 1.0

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem, or the penalty does not act on entries or groups."""
        super().check_fit(problem, R)
        who, sizes = type(self).__name__, problem.federation.sizes
        if self.batch_size is not None and not (self.replacement or self.shrink):
            cure = "use shrink=True (smaller clients take all rows) or replacement=True"
            local_work.check_batches(who, np.broadcast_to(self.batch_size, sizes.shape), problem, cure)
        if in_place(problem) is None:
            cure = "use ProximalFedSGD, whose server alone takes proximal steps"
            got = f"{problem.penalty!r}"  # type: ignore[attr-defined]
            raise wrong_type(f"{who}: the penalty", "be a sum over entries or groups (for local steps)", got, cure)

    def run_jobs(self, rule: Any, problem: Problem, w: np.ndarray, clients: np.ndarray, draws: Draws) -> np.ndarray:
        """Return what the rule makes of w (R, *model) at clients (R, m): (R, m, *model)."""
        sizes = problem.federation.sizes[clients]
        batch = sizes if self.batch_size is None else np.broadcast_to(self.batch_size, sizes.shape)
        batch = np.minimum(batch, sizes) if self.shrink else batch
        plan = local_work.plan_of(sizes, self.local_steps, batch, batch)
        eta = step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan)
        out = jobs.run(
            {jobs.OWN: rule}, problem, problem.ridge, w.reshape(len(clients), 1, -1), clients, draws, eta, plan,
            self.replacement,
        )  # fmt: skip
        return np.asarray(problem.unflatten(out))

    def reach(self, steps: int) -> Any:
        """Return eta_s eta_c times so many steps: how much of P the server has accounted for, one number or (R,)."""
        return self.server_step * np.asarray(self.step_size) * steps

    constant_step = automatic_steps.of_clients

    def traits(self, problem: Problem) -> Traits:
        """Return who takes part, and what is drawn: proximal steps are no plain ones."""
        drawn = () if self.batch_size is None else ("batches",)
        return participation.traits_of_sampling(self.participation, problem, *drawn)
