"""Exact solutions on every division of the rows, and runs of the methods on the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import run as run_method
from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg, FedSGD, OptimisticAFL
from fedconvex.papers.agnostic_clients.data import DIVISIONS, ClientDivision, SplitData, problems_of
from fedconvex.papers.findings import Progress, progress_part
from fedconvex.papers.step_grids import TunedRun, tuned_run
from fedconvex.report import DomainScores, domain_scores
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.minimax.agnostic import measure_minimax

LEVEL = 0.95
STEPS, DOMAIN_STEP_SIZES = (0.3, 1.0, 3.0, 10.0), (0.1, 1.0)  # grids of the runs; local steps take a fifth of the step


class ClientsScale(NamedTuple):
    """How large the experiment is."""

    seeds: int
    divisions: tuple[ClientDivision, ...]
    runs: tuple[str, ...]  # divisions on which the methods are run
    rounds: int
    every: int  # rounds between two points of a curve
    block: int = 1  # of pixels averaged, bundled digits


FULL = ClientsScale(10, DIVISIONS, ("iid, equal", "by label, unequal"), 300, 5)
LARGE = ClientsScale(5, DIVISIONS, ("iid, equal", "by label, unequal"), 150, 5)
QUICK = ClientsScale(3, (DIVISIONS[0], DIVISIONS[3]), ("by label, unequal",), 100, 5, 2)


class ExactModel(NamedTuple):
    """One model on one division of the rows."""

    division: str
    seed: int
    model: str
    sizes: np.ndarray  # (3,) training rows
    objective: np.ndarray  # (3,) of the clients on training rows, l2 term included
    gap: float  # certified suboptimality in what the model minimises
    domain_weights: np.ndarray  # (3,) lambda
    test: DomainScores

    @property
    def shares(self) -> np.ndarray:
        """n_k/n, (3,)."""
        return self.sizes / self.sizes.sum()


class DivisionRun(NamedTuple):
    """A method on one division, with the step sizes that were best."""

    division: str
    floats: int  # sent a round, by all clients
    run: TunedRun
    test: DomainScores


def solved(data: SplitData, division: ClientDivision, s: int, seed: int) -> Iterator[ExactModel]:
    """Yield the minimiser of the pooled loss and the minimax solution of one division."""
    problem, test = problems_of(data, division, s, seed)
    pooled, minimax = problem.solve(), problem.solve_minimax()  # 3
    for model, best, lam in (("FedAvg", pooled, problem.weights), ("AFL", minimax, minimax.domain_weights)):
        scores = domain_scores(problem, best.w, test, domain_weights=lam, level=LEVEL)
        values = problem.domain_values(best.w)
        yield ExactModel(division.name, s, model, problem.federation.sizes, values, best.gap, np.array(lam), scores)


def _methods(batch: int) -> Iterator[tuple[str, Any, np.ndarray | None]]:
    """Yield name, method with the step sizes of its trajectories, and their step sizes of the domain weights."""
    alone = np.array(STEPS)
    yield "FedSGD", FedSGD(step_size=alone), None
    yield "FedAvg, 5 steps", FedAvg(step_size=alone / 5.0, local_steps=5), None
    yield f"FedAvg, 1 epoch of {batch}", FedAvg(step_size=alone / 10.0, epochs=1, batch_size=batch), None
    pair, lam = np.repeat(STEPS, len(DOMAIN_STEP_SIZES)), np.tile(DOMAIN_STEP_SIZES, len(STEPS))
    yield "AFL", AFL(step_size=pair, domain_step_size=lam), lam
    yield f"AFL, batches of {batch}", AFL(step_size=pair, domain_step_size=lam, batch_size=batch), lam
    yield "OptimisticAFL", OptimisticAFL(step_size=pair, domain_step_size=lam), lam
    local = AgnosticFedAvg(step_size=pair / 5.0, domain_step_size=lam, local_steps=5)
    yield "AgnosticFedAvg, 5 steps", local, lam


def division_runs(
    data: SplitData, division: ClientDivision, scale: ClientsScale, seed: int, tell: Progress
) -> Iterator[DivisionRun]:
    """Yield every method on the first division of the rows, with its best step sizes."""
    problem, test = problems_of(data, division, 0, seed)
    value, gap = measure_minimax(problem, Simplex(), np.zeros((1, *problem.model_shape)))
    todo = list(_methods(int(min(20, problem.federation.sizes.min()))))
    marks = {*range(0, scale.rounds, scale.every), scale.rounds}
    for i, (name, method, steps) in enumerate(todo):
        at = progress_part(tell, i / len(todo), (i + 1) / len(todo))
        run = tuned_run(name, method, steps, problem, float(value[0] - gap[0]), scale.rounds, marks, seed, at)  # 5
        one = run_method(method, problem, rounds=1, trajectories=np.size(method.step_size), tol=0.0).trace
        floats = int(one["floats_down"][-1] + one["floats_up"][-1])
        scores = domain_scores(problem, run.models[-1], test, domain_weights=run.domain_weights, level=LEVEL)
        yield DivisionRun(division.name, floats, run, scores)
