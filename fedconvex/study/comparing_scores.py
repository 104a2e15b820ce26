"""What models are worth on held-out rows, in sums that sites add up and in rows of the table that are a site's own.

Figures and intervals are those of `fedconvex.compare`, which needs of the rows of all sites their number and sums of
errors, of differences, and of their squares. Areas under curves and calibration need the rows in one order, so that
they are told of single sites, and not of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.comparison.baselines import base_rates
from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.kinds import Training
from fedconvex.comparison.outcomes import Joining, Outcome, judged_by
from fedconvex.comparison.scores import Measures, errors_of, label_variance, mean_measures, measures, row_losses_of
from fedconvex.comparison.skewed_intervals import (
    PAIRS,
    UNKNOWN,
    Estimate,
    Products,
    ProductSums,
    Repeats,
    averaged,
    loss_interval,
    spread_of,
    student,
)
from fedconvex.comparison.splits import parts_in
from fedconvex.loss_traits import traits
from fedconvex.report.fairness import wilson_interval
from fedconvex.study.comparing_plan import ComparePlan
from fedconvex.study.comparing_site import ComparedSite, models_of, scaling_of

BASE = "base rate"
OTHERS = ("alone", BASE)  # what all models are compared with
_SUMS, _PAIRED, _COLUMNS = 7, 5, 25  # numbers of a model by itself, beside another, and in a site's row
_ESTIMATES = ("error", "accuracy", "auc", "bias", "rmse")
Scores = dict[str, list[np.ndarray]]  # of the held-out rows, repeat by repeat, by method


def names_of(plan: ComparePlan) -> tuple[str, ...]:
    """Return what is in the table, in its order."""
    return (BASE, *plan.kinds)


def repeats_of(plan: ComparePlan) -> int:
    """Return how often every row is held out."""
    return max(plan.splits // parts_in(plan.test_size), 1)


def shapes(plan: ComparePlan) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the sums over held-out rows."""
    m, r = len(names_of(plan)), repeats_of(plan)
    return {"target": (max(plan.outputs, 2),), "each": (m, r, _SUMS), "beside": (len(OTHERS), m, r, _PAIRED)}


def spread_shape(plan: ComparePlan) -> tuple[int, ...]:
    """Return the shape of what sites are told of the spread of errors: by themselves, and beside others."""
    return (1 + len(OTHERS), len(names_of(plan)), repeats_of(plan))


def row_shape(plan: ComparePlan) -> tuple[int, ...]:
    """Return the shape of a site's row: which numbers there are, and what they are."""
    return (2, len(names_of(plan)), _COLUMNS)


# ---------------------------------------------------------------- at a site


def held_scores(problem: ComparedSite, asked: Mapping[str, np.ndarray], alone: Sequence[Any]) -> tuple[Scores, Any]:
    """Return the scores of all models on the site's held-out rows, and the numbers of these rows.

    Parameters
    ----------
    problem : ComparedSite
    asked : mapping
        The frame, and the final models of every kind and pass.
    alone : sequence of P
        Models of the site's own.
    """
    plan, rows, X = problem.plan, problem.rows, problem.federation.X
    splits = problem.parted.splits
    at, who = np.sort(np.concatenate([split.at for split in splits[0]])), np.zeros(rows.y.size, dtype=np.int64)
    each: Scores = {name: [] for name in names_of(plan)}
    a = 0
    for repeat in splits:
        Z = {name: np.empty((at.size, plan.outputs) if plan.outputs > 1 else at.size) for name in each}
        for split in repeat:
            s, place = int(plan.whole_sets[a]), np.searchsorted(at, split.at)
            Z[BASE][place] = base_rates(Training(rows, X, split.train)).scores(X[split.at], who[split.at])
            Z["alone"][place] = alone[a].scores(X[split.at], who[split.at])
            for kind in (k for k in plan.kinds if k != "alone"):
                w = models_of(problem, kind, s, asked[f"{kind} l2"][[a]], asked[kind][[a]], asked)
                Z[kind][place] = scaling_of(asked, s).models(w, plan.outputs).scores(X[split.at], who[split.at])
            a += 1
        for name in each:
            each[name].append(Z[name])
    return each, at


def sums_of(plan: ComparePlan, rows: Rows, each: Scores, at: np.ndarray, share: float, unit: float) -> Any:
    """Return what a site adds to sums over held-out rows, times ``share``; real targets in a unit."""
    out = {name: np.zeros(shape) for name, shape in shapes(plan).items()}
    y = (rows.y[at] > 0.0).astype(float) if rows.binary else rows.y[at] / unit
    several = rows.classifies and not rows.binary
    out["target"][:] = np.bincount(rows.y[at].astype(int), minlength=plan.outputs) if several else (y.sum(), y @ y)
    for i, name in enumerate(names_of(plan)):
        for r, Z in enumerate(each[name]):
            out["each"][i, r] = _of_classes(rows, Z, at) if rows.classifies else _of_numbers(rows, Z, at, unit)
        for j, other in enumerate(OTHERS):
            beside = _classes_beside if rows.classifies else _numbers_beside
            out["beside"][j, i] = beside(rows, each[name], each[other], at, unit)
    return {name: share * a for name, a in out.items()}


def _of_classes(rows: Rows, Z: np.ndarray, at: np.ndarray) -> list[float]:
    loss, doubt, P = row_losses_of(rows, Z, at), label_variance(rows, Z), np.asarray(rows.loss.probabilities(Z))
    right, hit = traits(rows.loss).predict(Z) == rows.y[at], rows.y[at] > 0.0
    if not rows.binary:  # of several classes it is the likeliest one whose probability is looked at
        P, hit = P.max(axis=1), np.argmax(P, axis=1) == rows.y[at]
    off = P - hit
    return [
        loss.sum(),
        loss @ loss,
        doubt.sum(),
        float(right.sum()),
        off.sum(),
        off @ off,
        float((P * (1.0 - P)).sum()),
    ]


def _classes_beside(rows: Rows, each: Any, others: Any, at: np.ndarray, unit: float) -> np.ndarray:
    """Return sums of differences, of their squares, and of what they vary over labels: of their means over repeats."""
    pairs = [errors_of(rows, Z, at, other) for Z, other in zip(each, others, strict=True)]
    d, doubt = (np.mean([getattr(e, name) for e in pairs], axis=0) for name in ("values", "doubt"))
    out = np.zeros((len(each), _PAIRED))
    out[0, :3] = d.sum(), d @ d, doubt.sum()
    return out


def _of_numbers(rows: Rows, Z: np.ndarray, at: np.ndarray, unit: float) -> list[float]:
    a = (Z - rows.y[at]) / unit
    return [a.sum(), a @ a, float((a**4).sum()), _spread(a, a), 0.0, 0.0, 0.0]


def _spread(a: np.ndarray, b: np.ndarray) -> float:
    return a.size * spread_of(a, b) if a.size > 1 else 0.0


def _numbers_beside(rows: Rows, each: Any, others: Any, at: np.ndarray, unit: float) -> np.ndarray:
    """Return sums of products, of their squares, of squares of both, and the spread, repeat by repeat."""
    out, y = np.zeros((len(each), _PAIRED)), rows.y[at]
    for r, (Z, other) in enumerate(zip(each, others, strict=True)):
        a, b = (Z - other) / unit, (Z - y + other - y) / unit
        out[r] = a @ b, (a * b) @ (a * b), a @ a, b @ b, _spread(a, b)
    return out


def own_row(
    problem: ComparedSite, each: Scores, at: np.ndarray, spread: np.ndarray, unit: float, l2: float
) -> tuple[np.ndarray, str]:
    """Return a site's row of the table, and what it says in words; errors of a real target in a unit."""
    plan, rows = problem.plan, problem.rows
    judged, parts = int((problem.counts.tested >= plan.min_rows).sum()), parts_of(plan)
    every, names, lines = np.arange(at.size), names_of(plan), []
    out = np.full((len(names), _COLUMNS), np.nan)
    for i, name in enumerate(names):
        errors = [_shared(errors_of(rows, Z, at), spread[0, i, r]) for r, Z in enumerate(each[name])]
        found = mean_measures(
            [
                measures(rows, Z, at, plan.level, e.mean(every, plan.level))
                for Z, e in zip(each[name], errors, strict=True)
            ]
        )
        beside = []
        for j, other in enumerate(OTHERS):
            pairs = zip(each[name], each[other], strict=True)
            own = [_shared(errors_of(rows, Z, at, o), spread[1 + j, i, r]) for r, (Z, o) in enumerate(pairs)]
            level = level_of(plan, judged, families=1 + j)
            beside.append(Repeats(tuple(own), parts).mean(every, level))
        out[i] = _flat(rows, found, beside, l2 if name == "alone" else math.nan, unit)
        if name != "alone":
            verdict = judged_by(beside[0], at.size, plan.min_rows)
            low, high = beside[0].as_text("+")[1:]
            span = "" if verdict.outcome is Outcome.FEW else f", error less that of alone {low} to {high}"
            lines.append(f"{name}: error {found.error.value:.4g}{span}: {verdict.outcome.value}")
        else:
            lines.append(f"alone: error {found.error.value:.4g}")
    known = np.isfinite(out)
    text = f"on {at.size} held-out rows:\n" + "".join(f"{line}\n" for line in lines)
    return np.array([known.astype(float), np.where(known, out, 0.0)]), text


def _shared(errors: Any, spread: float) -> Any:
    """Return errors with the spread that sites have in common, of a real target."""
    return errors._replace(spread=spread) if isinstance(errors, Products) else errors


def _flat(rows: Rows, m: Measures, beside: Sequence[Estimate], l2: float, unit: float) -> list[float]:
    square, one = (1.0, 1.0) if rows.classifies else (unit**2, unit)
    scale = {"error": square, "bias": one, "rmse": one}
    numbers = [v / scale.get(name, 1.0) for name in _ESTIMATES for v in getattr(m, name)]
    return [*numbers, m.base / one, m.calibration, m.r2, *(v / square for e in beside for v in e), l2]


# ---------------------------------------------------------------- at the coordinator


class Row(NamedTuple):
    """What a site tells of a model."""

    measures: Measures
    beside: tuple[Estimate, ...]  # its errors less those of `OTHERS`
    l2: float


def parts_of(plan: ComparePlan) -> int:
    """Return in how many parts rows are divided: 1 where they are held out once."""
    return 1 if plan.splits == 1 else parts_in(plan.test_size)


def level_of(plan: ComparePlan, sites: int, families: int = 1) -> float:
    """Return the level of one of so many intervals that hold together."""
    return 1.0 - (1.0 - plan.level) / max(families * sites, 1)


def rows_told(plan: ComparePlan, told: np.ndarray, tested: int, unit: float) -> list[Row] | None:
    """Return a site's row from what it has answered, None if it keeps it."""
    known, numbers = told
    if not known.any():
        return None
    square, one = (1.0, 1.0) if _classifies(plan) else (unit**2, unit)
    scale, out = {"error": square, "bias": one, "rmse": one}, []
    for row in np.where(known > 0.5, numbers, np.nan).tolist():
        each = {n: Estimate(*(scale.get(n, 1.0) * v for v in row[3 * i : 3 * i + 3])) for i, n in enumerate(_ESTIMATES)}
        base, calibration, r2 = row[15:18]
        m = Measures(tested, base * one, each["error"], each["accuracy"], each["auc"], each["bias"], calibration,
                     each["rmse"], r2)  # fmt: skip
        beside = tuple(Estimate(*(square * v for v in row[i : i + 3])) for i in (18, 21))
        out.append(Row(m, beside, row[-1]))
    return out


def _classifies(plan: ComparePlan) -> bool:
    return traits(plan.loss).task == "classification"


def whole_measures(plan: ComparePlan, sums: Mapping[str, np.ndarray], i: int, n: int, unit: float) -> Measures:
    """Return how good a model is on the held-out rows of all sites, from sums over these n rows."""
    (y, yy), found = sums["target"][:2].tolist(), []
    base = (y if plan.outputs == 1 else float(sums["target"].max())) / n
    for v in sums["each"][i]:
        if _classifies(plan):
            found.append(_class_measures(plan, v, n, base))
            continue
        total = ProductSums(n, v[1], v[2], v[1], v[1])
        error = _scaled(total.mean(plan.level, v[3] / n, True), unit**2)
        error = error._replace(low=max(error.low, 0.0))
        root = Estimate(*(math.sqrt(max(x, 0.0)) if x == x else x for x in error))
        off = student(n, v[0] / n, (v[1] - v[0] ** 2 / n) / (n - 1.0), plan.level)
        spread = yy - y * y / n
        r2 = 1.0 - v[1] / spread if spread > 0.0 else math.nan
        bias = _scaled(off, unit)
        found.append(Measures(n, unit * y / n, error, UNKNOWN, UNKNOWN, bias, math.nan, root, r2))
    return mean_measures(found)


def _class_measures(plan: ComparePlan, v: np.ndarray, n: int, base: float) -> Measures:
    error = loss_interval(n, v[0] / n, (v[1] - v[0] ** 2 / n) / (n - 1.0), v[2] / n, plan.level)
    error = error._replace(low=max(error.low, 0.0))
    right = float(round(v[3]))
    low, high = (float(x) for x in wilson_interval(right, n, plan.level))
    bias = student(n, v[4] / n, (v[5] - v[4] ** 2 / n) / (n - 1.0), plan.level, v[6] / n)
    return Measures(n, base, error, Estimate(right / n, low, high), UNKNOWN, bias, math.nan, UNKNOWN, math.nan)


def _scaled(e: Estimate, unit: float) -> Estimate:
    return Estimate(*(unit * v for v in e))


def paired(plan: ComparePlan, sums: Mapping[str, np.ndarray], i: int, n: int, unit: float) -> Joining:
    """Return the errors of a model on the held-out rows of all sites less those of the sites alone."""
    factor = 1.0 if parts_of(plan) == 1 or n < 2 else PAIRS
    own = sums["beside"][OTHERS.index("alone"), i]
    if _classifies(plan):
        d, dd, doubt = own[0, :3].tolist()
        found = student(n, d / n, max(dd - d * d / n, 0.0) / (n - 1.0), plan.level, doubt / n, factor)
    else:
        each = [ProductSums(n, *v[:4].tolist()).mean(plan.level, v[4] / n, False, factor) for v in own]
        found = _scaled(averaged(each), unit**2)
    return judged_by(found, n, 2)


def spreads(plan: ComparePlan, sums: Mapping[str, np.ndarray], n: int) -> np.ndarray:
    """Return the spread of errors that sites have in common: by themselves, and beside others."""
    out = np.ones(spread_shape(plan))
    if not _classifies(plan):
        out[0], out[1:] = sums["each"][:, :, 3] / n, sums["beside"][..., 4] / n
    return out
