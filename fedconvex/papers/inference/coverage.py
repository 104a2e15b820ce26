"""What intervals of `analyse` cover: equal slopes with sites that differ in level, and slopes that differ.

1. Ten sites of 30 to 300 rows, two features, one of four families (`simulated_sites`).
2. Equal slopes; the sites' intercepts (log baseline hazards) have standard deviation 0 to 2. Shares of 95 % intervals
   that hold the first slope: Wald's and the likelihood's with site intercepts, and Wald's without them.
3. Slopes that differ, with standard deviation tau. Shares of three intervals that hold the mean slope, and the pooled
   target, which the common slope estimates: Wald's of a common slope, the same clustered by client, and Hartung and
   Knapp's of the sites' own estimates.
4. Some data sets are given to `analyse`, which must find what the batch found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.inference.batched_fits import fit
from fedconvex.papers.inference.interval_verdicts import Share, disagreement, pooled_targets, slope_intervals, verdicts
from fedconvex.papers.inference.simulated_sites import FAMILIES, SLOPES, Design, drawn
from fedconvex.papers.intervals import every
from fedconvex.papers.style import COLOURS, DASHED, DOTTED, blank, legend, panel

LEVEL = 0.95
MARGIN = 0.015  # within which coverage is called 95 %
BATCH = 100
AGREE = 1e-8  # standard errors
SPREAD = 1.0  # of intercepts where slopes differ
WITH, LIKELIHOOD, WITHOUT = "Wald, site intercepts", "likelihood, site intercepts", "Wald, one intercept"
COMMON, CLIENT, RANDOM = "common slope, Wald", "common slope, clustered by client", "random effects, Hartung-Knapp"
MEAN, POOLED = "mean slope", "pooled target"


class CoverageScale(NamedTuple):
    """How large the experiment is."""

    spreads: tuple[float, ...]
    taus: tuple[float, ...]
    batches: int  # of 100 data sets, with equal slopes
    uneven: int  # the same, with slopes that differ


FULL = CoverageScale((0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 0.1, 0.2, 0.4), 50, 10)
QUICK = CoverageScale((0.0, 2.0), (0.0, 0.4), 1, 1)


def equal_slopes(design: Design, batches: int, seed: int) -> dict[str, Any]:
    """Return how many intervals hold the slope, and how far `analyse` is from the batch on one data set."""
    rng = np.random.default_rng([seed, FAMILIES.index(design.family), int(100 * design.spread)])
    held, off = dict.fromkeys((WITH, LIKELIHOOD, WITHOUT), 0), 0.0
    truth = np.full(BATCH, SLOPES[0])
    for i in range(batches):
        sample = drawn(rng, design, BATCH)  # 2
        found = verdicts(sample.batch, truth)
        held[WITH] += int(found.held["wald"].sum())
        held[LIKELIHOOD] += int(found.held["profile"].sum())
        held[WITHOUT] += int(verdicts(sample.in_one(), truth).held["wald"].sum())
        if i == 0:
            off = disagreement(sample, int(rng.integers(BATCH)), SLOPES[0], found)  # 4
    return {"held": held, "n": BATCH * batches, "off": off}


def _uneven_slopes(design: Design, batches: int, seed: int) -> dict[str, Any]:
    """Return how many of the three intervals hold the mean slope, and the pooled target."""
    rng = np.random.default_rng([seed, FAMILIES.index(design.family), int(100 * design.tau), 1])
    held = {(kind, what): 0 for kind in (COMMON, CLIENT, RANDOM) for what in (MEAN, POOLED)}
    for _ in range(batches):
        sample = drawn(rng, design, BATCH)  # 3
        found = fit(sample.batch)
        intervals, targets = slope_intervals(sample.batch, found), pooled_targets(sample, found)
        for kind, (centre, half) in zip((COMMON, CLIENT, RANDOM), intervals[:3], strict=True):
            for what, truth in ((MEAN, SLOPES[0]), (POOLED, targets)):
                held[kind, what] += int((np.abs(centre - truth) <= half).sum())
    return {"held": held, "n": BATCH * batches}


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Simulate all designs."""
    scale = QUICK if quick else FULL
    even, uneven, off = [], [], {}
    first, second = progress_part(tell, 0.0, 0.5), progress_part(tell, 0.5, 1.0)
    for j, design in enumerate(Design(f, s) for f in FAMILIES for s in scale.spreads):
        first(j / (4 * len(scale.spreads)), f"{design.family}, intercepts {design.spread:g}")
        part = finished_part(
            f"even {design.family} {design.spread:g}", partial(equal_slopes, design, scale.batches, seed)
        )
        even += [_row(design, kind, MEAN, Share(held, part["n"])) for kind, held in part["held"].items()]
        off[design.family, design.spread] = part["off"]
    for j, design in enumerate(Design(f, SPREAD, t) for f in FAMILIES for t in scale.taus):
        second(j / (4 * len(scale.taus)), f"{design.family}, slopes {design.tau:g}")
        part = finished_part(
            f"uneven {design.family} {design.tau:g}", partial(_uneven_slopes, design, scale.uneven, seed)
        )
        uneven += [_row(design, kind, what, Share(held, part["n"])) for (kind, what), held in part["held"].items()]
    return Findings(
        "What intervals of analyse cover", tuple(claims(even, uneven, max(off.values()))), _notes(scale),
        {"levels": _draw_levels(even), "slopes": _draw_slopes(uneven)}, {"levels": even, "slopes": uneven},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "analyse-coverage",
    "how often intervals of `analyse` cover: sites that differ in level, and slopes that differ",
    study,
    smaller="a hundred data sets of fewer designs",
)


def _row(design: Design, interval: str, target: str, share: Share) -> dict[str, Any]:
    low, high = share.interval()
    return {
        "family": design.family, "intercepts": design.spread, "slopes": design.tau, "interval": interval,
        "of": target, "coverage": share.mean, "low": low, "high": high, "data sets": share.n, "held": share.held,
    }  # fmt: skip


# ---------------------------------------------------------------- what came out


Rows = Sequence[dict[str, Any]]


def _of(rows: Rows, **equal: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[k] == v for k, v in equal.items())]


def _wide(rows: Rows) -> list[tuple[float, float]]:
    """Return intervals that hold together with 95 %: each at a level of its own part (Bonferroni)."""
    level = 1.0 - (1.0 - LEVEL) / max(len(rows), 1)
    return [Share(row["held"], row["data sets"]).interval(level) for row in rows]


def near(text: str, rows: Rows) -> Claim:
    """Return the claim that coverage is within the margin of 95 %."""
    found = [
        True if low >= LEVEL - MARGIN and high <= LEVEL + MARGIN
        else False if high < LEVEL - MARGIN or low > LEVEL + MARGIN else None
        for low, high in _wide(rows)
    ]  # fmt: skip
    return Claim(text, every(found), _range(rows))


def below(text: str, rows: Rows, than: float = LEVEL) -> Claim:
    """Return the claim that coverage is below a number."""
    found = [True if high < than else False if low > than else None for low, high in _wide(rows)]
    return Claim(text, every(found), _range(rows))


def _range(rows: Rows) -> str:
    """Return the smallest and largest coverage of each family."""
    out = []
    for family in FAMILIES:
        shares = [100.0 * row["coverage"] for row in _of(rows, family=family)]
        if shares:
            out.append(f"{family} {min(shares):.1f}" + (f" to {max(shares):.1f}" if len(shares) > 1 else "") + " %")
    n = {row["data sets"] for row in rows}
    error = 100.0 * math.sqrt(LEVEL * (1.0 - LEVEL) / min(n))
    return "; ".join(out) + f" (standard error at 95 %: {error:.1f})"


def claims(even: Rows, uneven: Rows, off: float) -> Iterator[Claim]:
    """Judge by intervals of the shares; the agreement with `analyse` by every data set."""
    margin = f"within {100 * MARGIN:g} points of 95 %"
    for kind, words in ((WITH, "Wald's intervals"), (LIKELIHOOD, "Intervals of the likelihood")):
        yield near(f"{words} with site intercepts cover {margin} at every spread of levels", _of(even, interval=kind))
    most = max(row["intercepts"] for row in even)
    text = f"Without site intercepts they cover less than half, where intercepts have standard deviation {most:g}"
    yield below(text, _of(even, interval=WITHOUT, intercepts=most), 0.5)
    level = _of(even, interval=WITHOUT, intercepts=0.0)
    yield near(f"Where sites do not differ in level, one intercept is enough: {margin}", level)
    tau = max(row["slopes"] for row in uneven)
    apart = _of(uneven, slopes=tau, interval=COMMON)
    text = f"Where slopes differ by {tau:g}, the common slope's interval holds the mean slope less often than 75 %"
    yield below(text, _of(apart, of=MEAN), 0.75)
    random = [row for row in _of(uneven, interval=RANDOM, of=MEAN) if row["slopes"] > 0.0]
    yield near(f"Hartung and Knapp's holds the mean slope {margin}", random)
    text = "The batch and analyse find the same estimates, standard errors and verdicts, to 1e-8 standard errors"
    yield Claim(text, off <= AGREE, f"largest difference {off:.1e}", everywhere=True)


def _notes(scale: CoverageScale) -> tuple[str, ...]:
    return (
        f"{BATCH * scale.batches:,} data sets for each family and spread of intercepts, {BATCH * scale.uneven:,} where "
        f"slopes differ (intercepts of standard deviation {SPREAD:g}); sizes of sites are drawn for every hundred.",
        "Features of a site are shifted together, so that levels of sites and means of features go together by chance: "
        "without site intercepts this is taken for an effect.",
        "The pooled target is what the common slope tends to: the fit to expected responses; of Cox's model its "
        "first-order form, the sites' slopes weighted by their informations.",
        "Gaussian intervals of the likelihood are Student's t intervals.",
    )


# ---------------------------------------------------------------- figures


LOOKS: dict[str, dict[str, Any]] = {
    WITH: {"color": COLOURS[0], "linestyle": "-", "marker": "o"},
    LIKELIHOOD: {"color": COLOURS[1], "linestyle": DASHED, "marker": "s"},
    WITHOUT: {"color": "0.45", "linestyle": DOTTED, "marker": "^"},
    COMMON: {"color": COLOURS[0], "linestyle": "-", "marker": "o"},
    CLIENT: {"color": COLOURS[1], "linestyle": DASHED, "marker": "s"},
    RANDOM: {"color": COLOURS[2], "linestyle": DOTTED, "marker": "D"},
}


def _curves(axis: Any, rows: Rows, x: str, kinds: Sequence[str]) -> None:
    """Draw coverage with its intervals, kinds side by side."""
    points = sorted({row[x] for row in rows})
    width = 0.012 * (points[-1] - points[0])
    for j, kind in enumerate(kinds):
        mine = sorted(_of(rows, interval=kind), key=lambda row: row[x])
        at = np.array([row[x] for row in mine]) + width * (j - 0.5 * (len(kinds) - 1))
        share = np.array([[row["coverage"], row["low"], row["high"]] for row in mine]).T
        error = np.maximum(np.array([share[0] - share[1], share[2] - share[0]]), 0.0)
        axis.errorbar(at, share[0], error, **LOOKS[kind], markersize=3.5, linewidth=1.2, capsize=2, label=kind)
    axis.axhline(LEVEL, color="black", linewidth=0.7)


def _draw_levels(rows: Rows) -> Any:
    """Draw coverage over the spread of intercepts, a panel for each family."""
    figure, axes = blank(len(FAMILIES), width=2.9, height=3.2, sharey=True)
    for axis, family in zip(axes, FAMILIES, strict=True):
        _curves(axis, _of(rows, family=family), "intercepts", (WITH, LIKELIHOOD, WITHOUT))
        panel(axis, family, "s.d. of sites' intercepts", "coverage of the slope" if axis is axes[0] else "")
        axis.set_ylim(0.0, 1.02)
    legend(figure, axes[0], columns=3)
    return figure


def _draw_slopes(rows: Rows) -> Any:
    """Draw coverage of the mean slope over the spread of slopes, a panel for each family."""
    figure, axes = blank(len(FAMILIES), width=2.9, height=3.2, sharey=True)
    for axis, family in zip(axes, FAMILIES, strict=True):
        _curves(axis, _of(rows, family=family, of=MEAN), "slopes", (COMMON, CLIENT, RANDOM))
        mine = sorted(_of(rows, family=family, of=POOLED, interval=COMMON), key=lambda row: row["slopes"])
        look: dict[str, Any] = {"color": COLOURS[0], "linestyle": "-", "marker": "o", "markerfacecolor": "white"}
        at = [row["slopes"] for row in mine]
        label = "common slope, Wald, of the pooled target"
        axis.plot(at, [row["coverage"] for row in mine], **look, markersize=3.5, linewidth=0.8, label=label)
        panel(axis, family, "s.d. of sites' slopes", "coverage of the mean slope" if axis is axes[0] else "")
        axis.set_ylim(0.0, 1.02)
    legend(figure, axes[0], columns=2)
    return figure
