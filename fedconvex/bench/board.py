"""The result of a benchmark, and what is read off it: costs, ranks, profiles, and who wins where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, numeric
from fedconvex.bench.cells import Rules
from fedconvex.bench.conditions import AXIS as MODELLED
from fedconvex.bench.conditions import Conditions, modelled
from fedconvex.bench.ranks import Comparison, compare_pairs, mean_ranks_of, rank_intervals

AXES = ("rounds", "floats", "passes", "seconds")
AFTER = " after tuning"  # of an axis: what the run alone cost, without the trials of step sizes


class Cell(NamedTuple):
    """One solver on one problem with one seed."""

    problem: str
    solver: str
    kind: str  # class, function or pooled
    own: bool
    seed: int
    dials: Mapping[str, Any]
    found: Mapping[str, Any]  # the same in every run
    timed: Mapping[str, Any]  # seconds
    stored: bool = False  # whether it is of an earlier run

    def cost(self, target: float, axis: str) -> float:
        """Return what a target cost: infinity where it was not met, NaN where nobody counts.

        The trials of a tuned step size are part of it, unless the axis is one "after tuning".
        """
        if axis.endswith(AFTER):
            return self.cost(target, axis.removesuffix(AFTER)) - self.trials(axis.removesuffix(AFTER))
        if self.kind == "pooled" and axis == "rounds":
            return math.nan  # iterations on all rows in one place are no rounds
        for i, row in enumerate(self.found["costs"]):
            if row["target"] == target:
                curve = self.found["curve"].get(axis, [0])
                if row["rounds"] is None:
                    return math.nan if curve and curve[-1] is None else math.inf
                value = self.timed["costs"][i] if axis == "seconds" else row[axis]
                return math.nan if value is None else float(value)
        return math.inf

    def trials(self, axis: str) -> float:
        """Return what the search for a step size cost: 0 where there was none, NaN where nobody counts."""
        search = self.found.get("tuning")
        if not search:
            return 0.0
        value = self.timed["tuning"] if axis == "seconds" else search[axis]
        return math.nan if value is None else float(value)

    @property
    def runs(self) -> bool:
        """Whether the solver is made for the problem."""
        return self.found["status"] != "not for this problem"


class Spread(NamedTuple):
    """Quantiles over seeds."""

    low: float  # first decile
    median: float
    high: float  # ninth decile

    @classmethod
    def of(cls, values: Any) -> Spread:
        """Return them: by observed values, so that infinity is no trouble."""
        v = np.asarray(values, dtype=float)
        if np.isnan(v).any():
            return cls(math.nan, math.nan, math.nan)
        return cls(*(float(q) for q in np.quantile(v, [0.1, 0.5, 0.9], method="inverted_cdf")))


@dataclass(frozen=True)
class Board:
    """All cells, with the rules that they were run by.

    Attributes
    ----------
    cells : tuple of Cell
    rules : Rules
    steps : str
    seeds : int
    about : mapping
        Versions, machine and load.
    digests : mapping
        SHA-256 of the data by problem; empty where it is not fixed.
    apart : mapping
        Solvers that were named and do not take part, with what they are made for.
    conditions : Conditions

    Examples
    --------
    >>> from fedconvex.bench import Case, bench
    >>> tiny = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared")
    >>> board = bench(suite=[tiny], against=["fedsgd"], targets=[1e-3])
    >>> board.problems, board.solvers, board.reached("fedsgd", 1e-3)
    (['tiny'], ['fedsgd'], (1, 1))
    """

    cells: tuple[Cell, ...]
    rules: Rules
    steps: str
    seeds: int
    about: Mapping[str, str]
    digests: Mapping[str, str]
    apart: Mapping[str, str] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)

    @cached_property
    def problems(self) -> list[str]:
        """Names of the problems."""
        return list(dict.fromkeys(c.problem for c in self.cells))

    @cached_property
    def solvers(self) -> list[str]:
        """Names of all solvers."""
        return list(dict.fromkeys(c.solver for c in self.cells))

    @cached_property
    def offences(self) -> dict[str, dict[str, str]]:
        """By solver: what it did that it may not, with one example each."""
        out: dict[str, dict[str, str]] = {}
        for c in self.cells:
            for what, how in c.found["offences"]:
                out.setdefault(c.solver, {}).setdefault(what, f"{c.problem}: {how}")
        return out

    @cached_property
    def notes(self) -> dict[str, dict[str, str]]:
        """By solver and problem: how a run ended before its time, what could not be examined, and what the clock found.

        The last may be another in each run.
        """
        out: dict[str, dict[str, str]] = {}
        for c in self.cells:
            over = [c.found["words"]] if c.found["status"] == "time limit" else []
            for how in [*over, *c.found.get("notes", ()), *c.timed.get("notes", ())]:
                how += " (in an earlier run)" if c.stored else ""
                out.setdefault(c.solver, {}).setdefault(c.problem, how)
        return out

    @cached_property
    def classes(self) -> dict[str, str]:
        """By solver: federated, or pooled where it has all rows in one place; each class has ranks of its own."""
        pooled = {c.solver for c in self.cells if c.found.get("pooled")}
        return {s: "pooled" if s in pooled else "federated" for s in self.solvers}

    @cached_property
    def placed(self) -> dict[str, str]:
        """By solver that stands with pooled ones though it did not say so: how it showed."""
        out: dict[str, str] = {}
        for c in self.cells:
            if c.found.get("placed"):
                out.setdefault(c.solver, f"{c.problem}: {c.found['placed']}")
        return out

    @cached_property
    def ranked(self) -> list[str]:
        """Solvers that are compared: those that broke no rule, and ran somewhere."""
        ran = {c.solver for c in self.cells if c.runs}
        return [s for s in self.solvers if s not in self.offences and s in ran]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """What is counted; where step sizes were tuned, also without the trials."""
        tuned = any(c.found.get("tuning") for c in self.cells)
        after = tuple(axis + AFTER for axis in AXES[:2] if tuned)
        return AXES + after + ((MODELLED,) if self.conditions.network is not None else ())

    def of(self, problem: str, solver: str) -> list[Cell]:
        """Return the cells of a solver on a problem, one per seed; none where it is not made for it."""
        return self._by_pair.get((problem, solver), [])

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], list[Cell]]:
        out: dict[tuple[str, str], list[Cell]] = {}
        for c in self.cells:
            if c.runs:
                out.setdefault((c.problem, c.solver), []).append(c)
        return out

    @cached_property
    def _medians(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _intervals(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def _compared(self) -> dict[str, list[Comparison]]:
        return {}

    def cost(self, problem: str, solver: str, target: float, axis: str) -> Spread | None:
        """Return what a target cost, over seeds: None where the solver is not made for the problem."""
        among("Board.cost: axis", axis, self.axes)
        cells = self.of(problem, solver)
        return Spread.of([self._cost(c, target, axis) for c in cells]) if cells else None

    def modelled(self, c: Cell, target: float) -> float:
        """Return the seconds of a cell on the stated network; NaN where there is none."""
        return math.nan if self.conditions.network is None else self._cost(c, target, MODELLED)

    def _cost(self, c: Cell, target: float, axis: str) -> float:
        """Return the cost of a cell, by the clock of the stated network where that is the axis."""
        network = self.conditions.network
        if axis != MODELLED or network is None:
            return c.cost(target, axis)
        met = next((row for row in c.found["costs"] if row["target"] == target), None)
        if c.kind == "pooled" or c.found.get("pooled"):
            return math.nan  # nothing travels
        counted = all(c.found["curve"].get(n, [0])[-1:] != [None] for n in AXES[:3])
        if met is None or met["rounds"] is None:
            return math.inf if counted else math.nan
        return modelled(network, met, c.dials, c.found.get("clients"), c.seed)

    def medians(self, axis: str) -> tuple[list[tuple[str, float]], list[str], np.ndarray]:
        """Return pairs of problem and target, ranked solvers, and median costs (pairs, solvers), NaN where none."""
        if axis in self._medians:
            return self._medians[axis]
        pairs = [(p, t) for p in self.problems for t in self.rules.targets]
        names = self.ranked
        costs = np.full((len(pairs), len(names)), np.nan)
        for i, (p, t) in enumerate(pairs):
            for j, s in enumerate(names):
                found = self.cost(p, s, t, axis)
                costs[i, j] = math.nan if found is None else found.median
        self._medians[axis] = (pairs, names, costs)
        return self._medians[axis]

    def seeds_costs(self, axis: str) -> np.ndarray:
        """Return costs of `medians` by seed (pairs, solvers, seeds); what draws nothing has the same for all."""
        pairs, names, medians = self.medians(axis)
        costs = np.repeat(medians[:, :, None], max(1, self.seeds), axis=2)
        for i, (p, t) in enumerate(pairs):
            for j, s in enumerate(names):
                cells = self.of(p, s)
                if len(cells) > 1:
                    costs[i, j] = [self._cost(cells[n % len(cells)], t, axis) for n in range(costs.shape[2])]
        return costs

    def _sample(self, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return costs by seed, the problem of every pair, and the class of every solver."""
        pairs, names, _ = self.medians(axis)
        at = {p: u for u, p in enumerate(self.problems)}
        classes = np.array([self.classes[s] for s in names])
        return self.seeds_costs(axis), np.array([at[p] for p, _ in pairs], dtype=int), classes

    def mean_ranks(self, axis: str) -> dict[str, float]:
        """Return each solver's rank among those of its class, averaged over problems and targets; ties share.

        Pairs of problem and target that nobody met say nothing, and are left out.
        """
        _, names, costs = self.medians(axis)
        if not names:
            return {}
        ranks = mean_ranks_of(costs, np.array([self.classes[s] for s in names]))
        return dict(zip(names, map(float, ranks), strict=True))

    def rank_intervals(self, axis: str) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals of `mean_ranks` by the bootstrap, NaN with fewer than 6 problems."""
        names = self.medians(axis)[1]
        if axis not in self._intervals:
            self._intervals[axis] = rank_intervals(*self._sample(axis)) if names else np.zeros((0, 2))
        return {s: (float(low), float(high)) for s, (low, high) in zip(names, self._intervals[axis], strict=True)}

    def comparisons(self, axis: str) -> list[Comparison]:
        """Return for all pairs of solvers of one class who costs less on how many problems, and whether they differ."""
        if axis not in self._compared:
            names = self.medians(axis)[1]
            self._compared[axis] = compare_pairs(*self._sample(axis), names) if names else []
        return self._compared[axis]

    def reached(self, solver: str, target: float) -> tuple[int, int]:
        """Return on how many problems a solver met a target in the median, and how many it is made for."""
        found = [self.cost(p, solver, target, "seconds") for p in self.problems]
        known = [f for f in found if f is not None]
        return sum(math.isfinite(f.median) for f in known), len(known)

    def wins(self, axis: str, by: str) -> list[tuple[str, int, list[tuple[str, int]]]]:
        """Return who wins where: by class of a dial, the number of pairs, and solvers with how many they win.

        A tie counts for all who share it; pooled solvers are left out.
        """
        among("Board.wins: by", by, list(_CLASSES))
        pairs, names, costs = self.medians(axis)
        keep = [j for j, s in enumerate(names) if self.classes[s] == "federated"]
        names, costs = [names[j] for j in keep], costs[:, keep]
        dials = {c.problem: c.dials for c in self.cells}
        out = []
        for title, low, high in _CLASSES[by]:
            tally, n = dict.fromkeys(names, 0), 0
            for (p, _), row in zip(pairs, costs, strict=True):
                x = dials[p][by]
                x = math.nan if x is None else x
                met = np.isfinite(row)
                if not (low <= x < high or (math.isnan(low) and math.isnan(x))) or not met.any():
                    continue
                n += 1
                for j in np.flatnonzero(met & (row <= np.nanmin(row) * (1.0 + 1e-12))):
                    tally[names[j]] += 1
            best = sorted(((s, k) for s, k in tally.items() if k), key=lambda item: -item[1])[:3]
            if n:
                out.append((title, n, best))
        return out


_UNKNOWN = ("not known", math.nan, math.nan)
_CLASSES = {
    "heterogeneity": [
        ("clients agree (h < 0.05)", 0.0, 0.05),
        ("0.05 <= h < 0.5", 0.05, 0.5),
        ("h >= 0.5", 0.5, math.inf),
        _UNKNOWN,
    ],
    "kappa": [
        ("kappa < 30", 0.0, 30.0),
        ("30 <= kappa < 1000", 30.0, 1000.0),
        ("kappa >= 1000", 1000.0, math.inf),
        _UNKNOWN,
    ],
}


def performance_profile(costs: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Return the share of problems that each solver solves at no more than some ratio of the least cost.

    Parameters
    ----------
    costs : array (problems, solvers)
        Infinity where a solver failed, NaN where it is not counted: it is judged by the problems that it takes.
    ratios : array (T,)
        At least 1.

    Returns
    -------
    array (solvers, T)

    Raises
    ------
    ValueError, TypeError
        If costs is no matrix of numbers, or an edge is not finite.

    References
    ----------
    Dolan, More, "Benchmarking optimization software with performance profiles", Math. Program. 91 (2002), 201-213.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench.board import performance_profile
    >>> performance_profile(np.array([[1.0, 2.0], [4.0, np.inf]]), np.array([1.0, 2.0]))
    array([[1. , 1. ],
           [0. , 0.5]])
    """
    costs, ratios = _table("performance_profile", costs), _edges("performance_profile: ratios", ratios)
    known = np.isfinite(costs).any(axis=1)
    costs = costs[known]
    if not len(costs):
        return np.full((costs.shape[1], len(ratios)), np.nan)
    least = np.nanmin(costs, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(costs == least, 1.0, costs / least)
    ratio[np.isnan(costs)] = np.nan
    return _shares(ratio, ratios)


def data_profile(costs: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Return the share of problems that each solver solves within a budget: (solvers, T).

    Parameters
    ----------
    costs : array (problems, solvers)
        In units that mean the same for all problems: rounds, exchanges of a model with every client, passes, seconds.
    budgets : array (T,)

    Raises
    ------
    ValueError, TypeError
        If costs is no matrix of numbers, or an edge is not finite.

    References
    ----------
    More, Wild, "Benchmarking derivative-free optimization algorithms", SIAM J. Optim. 20 (2009), 172-191.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench.board import data_profile
    >>> data_profile(np.array([[1.0, 2.0], [4.0, np.inf]]), np.array([1.0, 5.0]))
    array([[0.5, 1. ],
           [0. , 0.5]])
    """
    return _shares(_table("data_profile", costs), _edges("data_profile: budgets", budgets))


def _table(who: str, costs: Any) -> np.ndarray:
    a = numeric(f"{who}: costs", costs)
    if a.ndim != 2 or not a.size:
        raise bad(f"{who}: costs", "be (problems, solvers)", f"shape {a.shape}")
    return a


def _edges(who: str, given: Any) -> np.ndarray:
    a = numeric(who, given).ravel()
    if not np.isfinite(a).all():
        raise bad(who, "be finite", "some that are not")
    return a


def _shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    n = (~np.isnan(values)).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        below = (values[:, :, None] <= edges * (1.0 + 1e-12)).sum(axis=0)
        return np.where(n[:, None] > 0, below / n[:, None], np.nan)
