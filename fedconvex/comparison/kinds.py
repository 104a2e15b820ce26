"""Kinds of models: one for all, one that is fair to the worst domain, one per client tied or alone; each with its path.

A kind says how its models follow from l2 on training rows, which l2 it prefers after cross-validation, and how the
reported models are solved and certified. l2 has one meaning throughout: the objective is a mean over rows plus l2/2
times a squared norm, which for tied models is that of `docs/compare.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.designs import Design, Models, design, whole_classes
from fedconvex.comparison.l2_path import (
    ACCURACY,
    LARGE,
    Left,
    interpolated,
    least_value,
    shared_path,
    task_path,
    worst_path,
)
from fedconvex.comparison.method_costs import shortened
from fedconvex.comparison.near_mean import near_mean_path
from fedconvex.families.multitask.relations import Relation
from fedconvex.loss_traits import traits
from fedconvex.problems import Covariance, MeanRegularised, MultiTaskProblem, Problem


@dataclass(frozen=True, eq=False)
class Training:
    """Rows that may be fitted to: features of all rows, and the numbers of those to train on, in increasing order."""

    rows: Rows
    X: Any
    train: np.ndarray
    problems: dict[float, Problem] = field(default_factory=dict)
    minima: dict[float, np.ndarray] = field(default_factory=dict)  # flat minimisers of the pooled problems, where found
    lower: dict[float, float] = field(default_factory=dict)  # bounds of the minima, where they were asked for
    left: dict[str, list[np.ndarray]] = field(default_factory=dict)  # flat models of runs along l2, by method

    @cached_property
    def design(self) -> Design:
        """All training rows, standardised together."""
        return design(self.rows, self.X, self.train)

    @cached_property
    def alone(self) -> Any:
        """Features of all rows as their clients see them that are by themselves."""
        return self.X if self.rows.alone is None else self.rows.alone(self.train)

    @cached_property
    def by_client(self) -> list[Design]:
        """Every client's training rows, filled and standardised by themselves."""
        ends = np.searchsorted(self.rows.client[self.train], np.arange(self.rows.K + 1)).tolist()
        return [design(self.rows, self.alone, self.train[a:b]) for a, b in itertools.pairwise(ends)]

    @property
    def outputs(self) -> int:
        """Scores per row."""
        return traits(self.rows.loss).outputs

    def free(self, mine: Design) -> bool:
        """Whether the intercept can be left out of l2: without rows of every class it would have no minimum."""
        return whole_classes(self.rows, mine.federation.y)

    def lower_bound(self, l2: float) -> float:
        """Return what the pooled minimum is at least, from the minimiser found, without proof; -inf: unknown."""
        if l2 not in self.lower and l2 in self.minima and (problem := self.problem(l2)).size <= LARGE:
            self.lower[l2] = least_value(problem, self.minima[l2])
        return self.lower.get(l2, -math.inf)

    def problem(self, l2: float) -> Problem:
        """Return the pooled problem; asked again for the same l2 it is the same, with what was found out about it."""
        if l2 not in self.problems:
            self.problems[l2] = Problem(self.design.federation, self.rows.loss, l2, intercept=self.free(self.design))
        return self.problems[l2]


class Fit(NamedTuple):
    """Models that were solved for, and what is certain about them."""

    models: Models
    l2: Any  # a number, or one per client (K,)
    value: float  # of the objective
    gap: float  # certified: value less the minimum is at most this
    problem: Any  # of the models' own kind; None for clients alone
    w: np.ndarray | None = None  # as the problem has it


@dataclass(frozen=True)
class Shared:
    """One model for all clients: the minimum over all rows, the pooled optimum."""

    def features(self, data: Training) -> Any:
        """Return the features that models of this kind are for."""
        return data.X

    def path(self, data: Training, l2s: Sequence[float]) -> Iterator[Models]:
        """Yield models for decreasing l2."""
        fed, scaling = data.design
        for l2, w in zip(l2s, shared_path(fed, data.rows.loss, l2s, data.free(data.design)), strict=True):
            data.minima[l2] = w
            yield scaling.models(w, data.outputs)

    def preferred(self, rows: Rows, losses: np.ndarray, held: np.ndarray, least: int) -> np.ndarray:
        """Return what is minimised over l2, from the losses (L, m) of held-out rows: their mean."""
        return losses.mean(axis=1)

    def fit(self, data: Training, l2: float) -> Fit:
        """Solve and certify."""
        problem = data.problem(l2)
        best = problem.solve()
        models = data.design.scaling.models(best.w, data.outputs)
        return Fit(models, l2, best.value, best.gap_within, problem, best.w)


@dataclass(frozen=True)
class Rounds(Shared):
    """One model for all clients, as a federated method leaves it: near the minimum, or where its local steps drift."""

    name: str  # of the method
    names: tuple[str, ...]  # of the methods that are run together, each for itself
    gap: float
    rounds: int
    local_steps: int
    seed: int

    def path(self, data: Training, l2s: Sequence[float]) -> Iterator[Models]:
        """Yield models for decreasing l2, each run from zero, for where it stops short depends on where it starts."""
        given = self.gap, self.rounds, self.local_steps, self.seed

        def run(asked: list[tuple[str, float]]) -> list[Left]:
            return shortened([(name, data.problem(l2), data.lower_bound(l2)) for name, l2 in asked], *given)

        if self.name not in data.left:
            data.left.update(interpolated(self.names, l2s, run))
        for w in data.left[self.name]:
            yield data.design.scaling.models(w, data.outputs)


@dataclass(frozen=True)
class Worst(Shared):
    """One model for all clients: the least largest loss of any domain, or client where there are no domains."""

    def path(self, data: Training, l2s: Sequence[float]) -> Iterator[Models]:
        """Yield models for decreasing l2."""
        fed, scaling = data.design
        for w in worst_path(fed, data.rows.loss, l2s, data.free(data.design)):
            yield scaling.models(w, data.outputs)

    def preferred(self, rows: Rows, losses: np.ndarray, held: np.ndarray, least: int) -> np.ndarray:
        """Return the largest mean loss of a domain with at least so many rows; of any, where none has."""
        code, names = rows.groups
        counts = np.bincount(code[held], minlength=len(names))
        counted = counts >= least if (counts >= least).any() else counts > 0
        sums = np.array([np.bincount(code[held], v, len(names)) for v in losses])
        return np.asarray((sums[:, counted] / counts[counted]).max(axis=1))

    def fit(self, data: Training, l2: float) -> Fit:
        """Solve and certify."""
        problem = data.problem(l2)
        best = problem.solve_minimax(1e-8)
        models = data.design.scaling.models(best.w, data.outputs)
        return Fit(models, l2, best.value, best.gap_within, problem, best.w)


@dataclass(frozen=True)
class Tasks(Shared):
    """A model for every client, tied by a relationship whose strength is l2."""

    relation: Any  # function of lam = n l2 and the number of clients

    accuracy = 1e-8  # relative, of the reported models
    passes = 300

    def relations(self, data: Training, l2s: Sequence[float]) -> list[Relation]:
        """Return the relationships: the objective is a sum over n rows."""
        fed = data.design.federation
        return [self.relation(fed.n * l2, fed.K) for l2 in l2s]

    def path(self, data: Training, l2s: Sequence[float]) -> Iterator[Models]:
        """Yield models for decreasing l2."""
        fed, scaling = data.design
        for found in task_path(fed, data.rows.loss, self.relations(data, l2s)):
            yield scaling.models(found.w, 1)

    def fit(self, data: Training, l2: float) -> Fit:
        """Solve and certify."""
        fed, scaling = data.design
        problem = MultiTaskProblem(fed, data.rows.loss, self.relations(data, [l2])[0])
        best = problem.solve(self.accuracy, None, self.passes)
        return Fit(scaling.models(best.w, 1), l2, best.value / fed.n, best.gap / fed.n, problem, best.w)


@dataclass(frozen=True)
class NearMean(Tasks):
    """A model for every client, drawn towards their mean: solved by Newton's method."""

    relation: Any = None

    def path(self, data: Training, l2s: Sequence[float]) -> Iterator[Models]:
        """Yield models for decreasing l2."""
        fed, scaling = data.design
        for W in near_mean_path(fed, data.rows.loss, [fed.n * l2 for l2 in l2s], ACCURACY):
            yield scaling.models(W, 1)

    def fit(self, data: Training, l2: float) -> Fit:
        """Solve, and certify by duality."""
        fed, scaling = data.design
        (W,) = near_mean_path(fed, data.rows.loss, [fed.n * l2], 1e-14)
        problem = MultiTaskProblem(fed, data.rows.loss, near_mean(fed.n * l2, fed.K))
        found = problem.measure(W)
        value, gap = float(found.value[0]) / fed.n, float(found.gap[0]) / fed.n
        return Fit(scaling.models(W, 1), l2, value, gap, problem, W)


def near_mean(lam: float, K: int) -> Relation:
    """Return (lam/2) (‖w_0‖^2 + sum_k ‖w_k - w_0‖^2), minimised over w_0 (Evgeniou, Pontil 2004)."""
    return MeanRegularised(0.5 * lam * K / (K + 1.0), 0.5 * lam / (K + 1.0))


def learned(lam: float, K: int) -> Relation:
    """Return (lam/(2 K)) ‖W‖_*^2, the least over covariances: equal models cost what one model costs."""
    return Covariance(0.5 * lam / K)


@dataclass(frozen=True)
class Alone(Shared):
    """Every client by itself: its own rows, fillings, scaling, folds and l2."""

    def features(self, data: Training) -> Any:
        """Return the features that models of this kind are for."""
        return data.alone

    def path(self, data: Training, l2s: Sequence[float]) -> Iterator[Models]:
        """Yield models for decreasing l2."""
        every = []
        for mine in data.by_client:
            found = shared_path(mine.federation, data.rows.loss, l2s, data.free(mine))
            every.append([mine.scaling.models(w, data.outputs) for w in found])
        for models in zip(*every, strict=True):
            yield _stacked(models)

    def fit(self, data: Training, l2: Any) -> Fit:
        """Solve and certify for one l2 per client, (K,); value and gap are means over rows."""
        models, value, gap = [], 0.0, 0.0
        for mine, own in zip(data.by_client, np.broadcast_to(l2, data.rows.K).tolist(), strict=True):
            best = Problem(mine.federation, data.rows.loss, own, intercept=data.free(mine)).solve()
            share = mine.federation.n / data.train.size
            value, gap = value + share * best.value, gap + share * best.gap_within
            models.append(mine.scaling.models(best.w, data.outputs))
        return Fit(_stacked(models), l2, value, max(gap, 0.0) if math.isfinite(gap) else gap, None)


def _stacked(models: Sequence[Models]) -> Models:
    return Models(np.concatenate([m.coef for m in models]), np.concatenate([m.intercept for m in models]))


KINDS = {
    "pooled": Shared(),
    "alone": Alone(),
    "afl": Worst(),
    "mocha": Tasks(learned),
    "mean-regularised": NearMean(),
}
