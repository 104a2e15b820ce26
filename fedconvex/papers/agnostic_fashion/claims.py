"""What three classes as domains show: differences, tables, claims, notes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from fedconvex.papers.agnostic_clients.data import UNIFORM
from fedconvex.papers.agnostic_fashion.data import FOLDS, ClassDomains
from fedconvex.papers.agnostic_fashion.runs import L2, ClassesRun, Comparison, FashionScale
from fedconvex.papers.findings import Claim
from fedconvex.papers.intervals import Interval, every, standard_error
from fedconvex.papers.step_grids import grid_notes
from fedconvex.report import wilson_interval

MODELS = ("pooled", "AFL")
LEVEL = 0.95
Z = NormalDist().inv_cdf(0.5 + 0.5 * LEVEL)


def paired(d: np.ndarray) -> Interval:
    """Return the mean of the differences of rows (n,), with its interval."""
    return Interval(float(d.mean()), Z * standard_error(d))


def points(d: Interval) -> str:
    """Return a difference of accuracies with its interval, in points."""
    return f"{100 * d.mean:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})"


def of_class(c: Comparison, k: int) -> Interval:
    """Return the difference in the accuracy of class k, on the same rows."""  # 4
    return paired(c.right[1, c.y == k].astype(float) - c.right[0, c.y == k])


def of_largest(c: Comparison) -> Interval:
    """Return the difference of the largest test losses, which may be of two classes."""
    a, b = c.loss.argmax(axis=1)
    if a == b:
        return paired(c.losses[1, c.y == a] - c.losses[0, c.y == a])
    parts = [c.losses[m, c.y == k] for m, k in enumerate((a, b))]
    error = math.sqrt(sum(float(v.var(ddof=1)) / v.size for v in parts))
    return Interval(float(parts[1].mean() - parts[0].mean()), Z * error)


def of_mean(c: Comparison) -> Interval:
    """Return the difference in the mean of the three accuracies."""
    found = [of_class(c, k) for k in range(3)]
    return Interval(sum(d.mean for d in found) / 3.0, math.sqrt(sum(d.half**2 for d in found)) / 3.0)


def of_least(c: Comparison) -> Interval:
    """Return the difference of the least accuracies, which may be of two classes."""
    a, b = c.accuracy.argmin(axis=1)
    if a == b:
        return of_class(c, int(a))
    low = c.accuracy.min(axis=1)
    counts = np.bincount(c.y, minlength=3)
    error = math.sqrt(sum(v * (1 - v) / counts[k] for v, k in zip(low, (a, b), strict=True)))
    return Interval(float(low[1] - low[0]), Z * error)


# ---------------------------------------------------------------- tables


def _class_rows(data: ClassDomains, compared: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """Yield both exact models on every class."""
    for c, (m, model), (k, name) in itertools.product(compared, enumerate(MODELS), enumerate(data.labels)):
        rows = int((c.y == k).sum())
        low, high = wilson_interval(c.right[m, c.y == k].sum(), rows, LEVEL)
        row = {"pixels averaged": f"{c.block} x {c.block}", "l2": c.l2, "model": model, "class": name}
        row |= {"lambda": float(c.domain_weights[m, k]), "objective": float(c.objective[m, k])}
        row |= {"train accuracy": float(c.trained[m, k]), "test rows": rows, "test loss": float(c.loss[m, k])}
        yield row | {"test accuracy": float(c.accuracy[m, k]), "low": float(low), "high": float(high)}


def difference_rows(data: ClassDomains, compared: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """Yield AFL minus pooled in the accuracies of the classes, their mean and their least."""
    for c in compared:
        found = {name: of_class(c, k) for k, name in enumerate(data.labels)}
        found |= {"mean of the three": of_mean(c), "least of the three": of_least(c)}
        for name, d in found.items():
            row = {"pixels averaged": f"{c.block} x {c.block}", "l2": c.l2, "accuracy of": name}
            yield row | {"AFL minus pooled": d.mean, "low": d.low, "high": d.high}


def _named(what: str, data: ClassDomains, values: np.ndarray) -> dict[str, float]:
    return {f"{what}, {name}": v for name, v in zip(data.labels, values.tolist(), strict=True)}


def run_rows(data: ClassDomains, runs: Sequence[ClassesRun]) -> Iterator[dict[str, Any]]:
    """Yield every method after its last round."""
    for c in runs:
        row = c.run.named | {"rounds": int(c.run.rounds[-1]), "above the least": float(c.run.above[-1])}
        yield row | _named("accuracy", data, c.accuracy[-1]) | _named("lambda", data, c.run.domain_weights)


def point_rows(data: ClassDomains, runs: Sequence[ClassesRun]) -> Iterator[dict[str, Any]]:
    """Yield the points of the curves."""
    for c in runs:
        for t, above, accuracy in zip(c.run.rounds.tolist(), c.run.above.tolist(), c.accuracy, strict=True):
            row = {"method": c.run.method, "round": t, "above the least": above}
            yield row | _named("accuracy", data, accuracy)


def tables(
    data: ClassDomains, compared: Sequence[Comparison], runs: Sequence[ClassesRun]
) -> dict[str, list[dict[str, Any]]]:
    """Return all tables by name."""
    return {
        "classes": list(_class_rows(data, compared)),
        "differences": list(difference_rows(data, compared)),
        "runs": list(run_rows(data, runs)),
        "curves": list(point_rows(data, runs)),
    }


# ---------------------------------------------------------------- claims


def judge(
    data: ClassDomains, scale: FashionScale, compared: Sequence[Comparison], runs: Sequence[ClassesRun]
) -> Iterator[Claim]:
    """Judge the paper's conclusion at every resolution that counts, and every l2 there."""
    for block in scale.judged:
        yield from _claims_at(block, data, [c for c in compared if c.block == block])
    pooled, *agnostic = runs
    rows = [int(v) for v in np.bincount(data.y[data.folds[0][1]], minlength=3)]
    base = float(pooled.accuracy[-1].min())
    gains = [Interval(float(c.accuracy[-1].min()) - base, Z * _error(c, pooled, rows)) for c in agnostic]
    ends = [f"{c.run.method} {_three(c.accuracy[-1])}, least {points(d)}" for c, d in zip(agnostic, gains, strict=True)]
    yield Claim(
        "The methods too: after their rounds AFL's least accuracy is above that of SGD on the pooled loss",
        every(d.above() for d in gains),
        "; ".join([f"{pooled.run.method} {_three(pooled.accuracy[-1])}", *ends]),
    )


def _claims_at(block: int, data: ClassDomains, mine: Sequence[Comparison]) -> Iterator[Claim]:
    worst, over = data.labels[0], "l2 = " + ", ".join(f"{c.l2:g}" for c in mine)
    where = "Images as they are" if block == 1 else f"Images averaged over {block} x {block} pixels"
    own, largest = [of_class(c, 0) for c in mine], [of_largest(c) for c in mine]
    least, means = [of_least(c) for c in mine], [of_mean(c) for c in mine]
    yield Claim(
        f"{where}: trained on all rows alike, {worst} is predicted worst",
        every(_lowest(c) for c in mine),
        f"accuracy of {', '.join(data.labels)}; {over}: " + "; ".join(_three(c.accuracy[0]) for c in mine),
    )
    yield Claim(
        f"{where}: AFL raises the accuracy of {worst}",
        every(d.above() for d in own),
        f"points, AFL minus pooled; {over}: " + "; ".join(points(d) for d in own),
    )
    yield Claim(
        f"{where}: AFL lowers the largest of the three test losses",
        every(d.below() for d in largest),
        f"AFL minus pooled; {over}: " + "; ".join(f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})" for d in largest),
    )
    yield Claim(
        f"{where}: AFL raises the least of the three accuracies",
        every(d.above() for d in least),
        f"AFL's accuracies: {'; '.join(_three(c.accuracy[1]) for c in mine)}; points, least minus least: "
        + "; ".join(points(d) for d in least),
    )
    yield Claim(
        f"{where}: the mean accuracy falls by less than the least rises",
        every(Interval(a.mean + b.mean, a.half + b.half).above() for a, b in zip(least, means, strict=True)),
        f"mean of the three, points, AFL minus pooled; {over}: " + "; ".join(points(d) for d in means),
    )


def _lowest(c: Comparison) -> bool | None:
    """Whether the first class is predicted worse than each of the others, by Welch's interval."""
    a, rows = c.accuracy[0], np.bincount(c.y, minlength=3)
    error = np.sqrt(a * (1.0 - a) / rows)
    return every(Interval(float(a[k] - a[0]), Z * math.hypot(error[0], error[k])).above() for k in (1, 2))


def _error(c: ClassesRun, other: ClassesRun, rows: Sequence[int]) -> float:
    """Return the standard error of a difference of least accuracies, as if of different rows."""
    found = [(v.accuracy[-1].min(), rows[int(v.accuracy[-1].argmin())]) for v in (c, other)]
    return math.sqrt(sum(a * (1.0 - a) / n for a, n in found))


def _three(accuracy: np.ndarray) -> str:
    return " / ".join(f"{100 * v:.1f}" for v in accuracy)


def notes(
    data: ClassDomains, scale: FashionScale, compared: Sequence[Comparison], runs: Sequence[ClassesRun]
) -> tuple[str, ...]:
    """Say what the data are, what is taken from the paper, and what is chosen here."""
    train, test = data.folds[0]
    counts = ", ".join(f"{name} {int((data.y == c).sum()):,}" for c, name in enumerate(data.labels))
    rows = (
        f"{len(train):,} rows to train and {len(test):,} to test on"
        if data.archive
        else f"{FOLDS} folds: every row is tested once, by a model that has not seen it; intervals take these rows as "
        "independent, though models of different folds share rows"
    )
    sizes = ", ".join(f"{b} x {b}: {next(c for c in compared if c.block == b).parameters:,}" for b, _ in scale.solved)
    edges = [c.run.method for c in runs if c.run.edge]
    found = [
        f"Data: {data.name}; {counts}; {rows}. Pixels standardised by the rows trained on, a constant appended; "
        f"parameters by block of pixels: {sizes}.",
        f"Both models are exact at every l2, with certified gaps of at most {max(c.gap for c in compared):.1e}; pooled "
        f"is the minimiser over all rows. {UNIFORM} Domains are classes: lambda decides how readily each is answered.",
        f"Runs: {'all rows' if data.archive else 'first fold'}, {scale.solved[0][0]} x {scale.solved[0][0]} pixels, "
        f"l2 = {L2:g}, from 0; a tenth of the rounds for OptimisticAFL, which takes all rows. Step sizes with the "
        "least training objective after the last round, of a small grid.",
        "The paper trains with stochastic gradients and stops early; its accuracies are means over runs. Compare "
        "directions, not digits.",
    ]
    if not data.archive:
        found.append(
            "Digits stand in for Fashion-MNIST: other images, 30 times fewer rows, and a third of the eights only to "
            "train on: a rare domain, where there all are equally large. As they are (8 x 8) so few are mistaken that "
            "differences drown; claims speak of averaged images (4 x 4), the table has both."
        )
    return (*found, *grid_notes(edges))
