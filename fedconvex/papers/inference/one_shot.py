"""Estimators of one or two rounds beside the exact one: how far from it, in its standard errors.

1. Logistic regression with site intercepts, ten sites, two features (`simulated_sites`). The exact estimate is that of
   `analyse`: the maximum of the likelihood of all rows.
2. The mean of each coefficient by itself, weighted by inverse variances: a fixed-effect meta-analysis.
3. b_GLS = (sum J_k)^-1 sum J_k b_k, by full covariances (Zhu, Li, Wang, "Least squares approximation for a distributed
   system", J. Comput. Graph. Stat. 30, 2021).
4. One Newton step of the whole likelihood from b_GLS.
5. ODAL: the first site minimises N_1/n_1 + (grad N/n - grad N_1/n_1)'b, gradients at its own estimate (Duan, Boland,
   Moore, Chen, "ODAL: a one-shot distributed algorithm to perform logistic regressions on electronic health records
   data from multiple clinical sites", Pac. Symp. Biocomput. 24, 2019; after Jordan, Lee, Yang, J. Am. Stat. Assoc. 114,
   2019), here with intercepts eliminated at the sites.
6. Rows a site, spread of intercepts, and how far sites' features are correlated otherwise. Distance: the root mean
   square over coefficients ((b - b^)'J (b - b^)/p)^(1/2), its median over data sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.inference.batched_fits import Batch, Fits, fit
from fedconvex.papers.inference.simulated_sites import Design, drawn
from fedconvex.papers.intervals import every, short
from fedconvex.papers.style import COLOURS, DASHED, DOTTED, blank, legend, panel

MEANS, GLS, STEP, ODAL = "coefficientwise mean", "b_GLS", "Newton step from b_GLS", "ODAL, one leader"
NAMES = (MEANS, GLS, STEP, ODAL)
ROWS, INTERCEPTS, FEATURES = "rows of a site", "s.d. of intercepts", "correlations that differ, up to"
USUAL = {ROWS: 200.0, INTERCEPTS: 1.0, FEATURES: 0.9}
QUANTILE = 1.959964  # of the normal, for intervals of medians


class OneShotScale(NamedTuple):
    """How large the experiment is."""

    along: dict[str, tuple[float, ...]]
    batches: int
    batch: int


FULL = OneShotScale(
    {ROWS: (50, 100, 200, 400, 800, 1600), INTERCEPTS: (0.0, 0.5, 1.0, 1.5, 2.0), FEATURES: (0.0, 0.3, 0.6, 0.9)}, 8, 50
)
QUICK = OneShotScale({ROWS: (100, 400), INTERCEPTS: (0.0, 2.0), FEATURES: (0.0, 0.9)}, 1, 40)


def estimates(batch: Batch) -> tuple[Fits, dict[str, np.ndarray]]:
    """Return the exact fit, and the slopes (R, p) of each estimator; nan where there is none."""
    exact, own = fit(batch), fit(batch, alone=True)  # 1
    good = own.settled[..., None]
    J, b = np.where(good[..., None], own.J, 0.0), np.where(good, own.b, 0.0)
    safe = np.where(good[..., None], own.J, np.eye(b.shape[-1]))
    w = np.where(good, 1.0 / np.einsum("rkjj->rkj", np.linalg.inv(safe)), 0.0)
    found = {MEANS: (w * b).sum(axis=1) / w.sum(axis=1)}  # 2
    whole = np.linalg.inv(J.sum(axis=1))
    found[GLS] = np.einsum("rij,rkjl,rkl->ri", whole, J, b)  # 3
    at = fit(batch, found[GLS], exact)
    found[STEP] = found[GLS] - np.einsum("rij,rkj->ri", at.inverse, at.scores)  # 4
    found[ODAL] = _surrogate(batch, own)  # 5
    return exact, found


def _surrogate(batch: Batch, own: Fits) -> np.ndarray:
    """Return the minimisers of the first site's surrogates, nan where it has no estimate or none exists."""
    first = int(batch.sizes[0])
    lead = Batch(batch.family, batch.X[:, :, :first], batch.y[:, :first], batch.sizes[:1])
    start, n = own.b[:, 0], batch.y.shape[1]
    everywhere, here = fit(batch, start).scores.sum(axis=1), own.scores[:, 0]
    found = fit(lead, tilt=first * everywhere / n - here)
    good = own.settled[:, 0] & found.settled[:, 0]
    return np.where(good[:, None], found.b[:, 0], np.nan)


def distances(design: Design, batches: int, size: int, seed: int) -> dict[str, np.ndarray]:
    """Return the distance of each estimator on every data set, in standard errors; inf where there is none."""
    rng = np.random.default_rng([seed, int(design.rows[0]), int(10 * design.spread), int(10 * design.mixing)])
    found: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for _ in range(batches):
        exact, others = estimates(drawn(rng, design, size).batch)
        J = exact.J.sum(axis=1)
        for name, b in others.items():
            away = b - exact.b[:, 0]
            square = np.einsum("ri,rij,rj->r", away, J, away) / b.shape[1]
            found[name].append(np.where(np.isfinite(square), np.sqrt(np.maximum(square, 0.0)), np.inf))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Draw the data sets of all designs."""
    scale = QUICK if quick else FULL
    rows: list[dict[str, Any]] = []
    jobs = [(what, value) for what, values in scale.along.items() for value in values]
    for i, (what, value) in enumerate(jobs):
        tell(i / len(jobs), f"{what} {value:g}")
        at = USUAL | {what: value}
        m = int(at[ROWS])
        design = Design("logistic", at[INTERCEPTS], rows=(m, m), mixing=at[FEATURES])
        found = finished_part(f"{what} {value:g}", partial(distances, design, scale.batches, scale.batch, seed))
        rows += [{"along": what, "at": float(value), "estimator": name} | median(d) for name, d in found.items()]
    alike = distances(Design("gaussian", 1.0, rows=(30, 60), mixing=0.9), 1, scale.batch, seed)
    off = max(float(alike[name].max()) for name in (GLS, STEP))
    return Findings(
        "One-shot estimators beside the exact one", tuple(claims(rows, off)), _notes(scale), {"distances": draw(rows)},
        {"distances": rows},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "one-shot", "estimators of one or two rounds beside the exact one, in standard errors", study,
    smaller="forty data sets of two designs along each axis",
)  # fmt: skip


def median(d: np.ndarray) -> dict[str, float]:
    """Return the median with its 95 % interval by order statistics, and the share without an estimate."""
    n, ordered = d.size, np.sort(d)
    reach = 0.5 * QUANTILE * math.sqrt(n)
    low, high = max(math.floor(0.5 * n - reach), 0), min(math.ceil(0.5 * n + reach), n - 1)
    numbers = {"distance": float(np.median(d)), "low": float(ordered[low]), "high": float(ordered[high])}
    return numbers | {"none": float(np.isinf(d).mean()), "data sets": float(n)}


# ---------------------------------------------------------------- what came out

Rows = Sequence[dict[str, Any]]


def _of(rows: Rows, **equal: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[k] == v for k, v in equal.items())]


def order(rows: Rows, name: str) -> tuple[float, float]:
    """Return the slope of log distance over log rows of a site, and half of its 95 % interval.

    A line through medians whose logarithms have the standard errors of their intervals.
    """
    mine = _of(rows, along=ROWS, estimator=name)
    x, y = np.log([row["at"] for row in mine]), np.log([row["distance"] for row in mine])
    error = np.array([math.log(row["high"] / row["low"]) / (2.0 * QUANTILE) for row in mine])
    w = 1.0 / error**2
    away = x - w @ x / w.sum()
    return float(w @ (away * y) / (w @ away**2)), float(QUANTILE / math.sqrt(w @ away**2))


def _falls(rows: Rows, name: str, power: float, words: str) -> Claim:
    """Return the claim that the distance falls with a power of the rows of a site, within 0.25."""
    slope, half = order(rows, name)
    low, high = slope - half - power, slope + half - power
    holds = True if -0.25 <= low and high <= 0.25 else False if low > 0.25 or high < -0.25 else None
    return Claim(f"{words} falls with the power {power:g} of a site's rows, within 0.25", holds,
                 f"{short(slope)} ± {short(half)}")  # fmt: skip


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool | None:
    """Whether the first distance is above the second: false if below, None where intervals overlap."""
    return True if one["low"] > other["high"] else False if one["high"] < other["low"] else None


def _larger(text: str, rows: Rows, where: dict[str, Any], than: str, *names: str) -> Claim:
    """Return the claim that some estimators are farther off than another."""
    (base,) = _of(rows, estimator=than, **where)
    others = [row for name in names for row in _of(rows, estimator=name, **where)]
    said = "; ".join(f"{row['estimator']} {short(row['distance'])}" for row in (base, *others))
    return Claim(text, every(_apart(row, base) for row in others), said)


def claims(rows: Rows, off: float) -> Iterator[Claim]:
    """Judge by intervals of medians; an identity by every data set."""
    text = "With squared loss b_GLS, and one Newton step from it, are the exact estimate"
    yield Claim(text, off <= 1e-8, f"largest distance {off:.1e} standard errors", everywhere=True)
    yield _falls(rows, GLS, -0.5, "The distance of b_GLS in standard errors")
    yield _falls(rows, STEP, -1.5, "That of one Newton step from it")
    yield _falls(
        rows, MEANS, 0.0, "Where features are correlated otherwise at every site, that of the mean of each coefficient"
    )
    usual = {"along": ROWS, "at": max(row["at"] for row in rows if row["along"] == ROWS)}
    text = f"With {usual['at']:g} rows a site, means of coefficients and ODAL are farther off than b_GLS"
    yield _larger(text, rows, usual, GLS, MEANS, ODAL)
    for along, words in ((INTERCEPTS, "intercepts"), (FEATURES, "features")):
        most = {"along": along, "at": max(row["at"] for row in rows if row["along"] == along)}
        text = f"Where sites differ most in their {words}, b_GLS is farther off than one Newton step from it"
        yield _larger(text, rows, most, STEP, GLS)
    alike = {"along": FEATURES, "at": min(row["at"] for row in rows if row["along"] == FEATURES)}
    (one,), (other,) = (_of(rows, estimator=name, **alike) for name in (MEANS, GLS))
    near = every((one["low"] <= 2.0 * other["high"], other["low"] <= 2.0 * one["high"]))
    text = "Where features are distributed alike, the mean of each coefficient is within a factor of two of b_GLS"
    yield Claim(text, near, f"{short(one['distance'])} and {short(other['distance'])}")


def _notes(scale: OneShotScale) -> tuple[str, ...]:
    usual = (
        f"{USUAL[ROWS]:g} rows, intercepts of standard deviation {USUAL[INTERCEPTS]:g}, correlations of two features"
    )
    return (
        f"{scale.batches * scale.batch} data sets for each design; ten sites of equally many rows. What is not varied: "
        f"{usual} between -{USUAL[FEATURES]:g} and {USUAL[FEATURES]:g}, drawn for every site.",
        "Sites without a finite estimate (separated, or one class) are left out of means. ODAL has none where the "
        "first site has none, or its surrogate no minimum; such data sets count as infinitely far.",
        "A distance of 1 is as large as the sampling error itself. Floats of a site: 2 p for means, p(p + 3)/2 for "
        "b_GLS, p for ODAL after a broadcast, (p + 1)(p + 2)/2 in each of 5 to 8 rounds for the exact estimate.",
        "ODAL as printed has one common intercept; here intercepts are eliminated at the sites, as for the others.",
    )


LOOKS: dict[str, dict[str, Any]] = {
    MEANS: {"color": COLOURS[1], "linestyle": DASHED, "marker": "s"},
    GLS: {"color": COLOURS[0], "linestyle": "-", "marker": "o"},
    STEP: {"color": COLOURS[2], "linestyle": (0, (4, 1, 1, 1)), "marker": "D"},
    ODAL: {"color": "0.35", "linestyle": DOTTED, "marker": "^"},
}


def draw(rows: Rows) -> Any:
    """Draw median distances over what is varied, with their intervals."""
    figure, axes = blank(3, width=3.6, height=3.4, sharey=True)
    for axis, along in zip(axes, (ROWS, INTERCEPTS, FEATURES), strict=True):
        for name in NAMES:
            mine = [row for row in _of(rows, along=along, estimator=name) if np.isfinite(row["high"])]
            x, y = [row["at"] for row in mine], np.array([row["distance"] for row in mine])
            low, high = (np.array([row[k] for row in mine]) for k in ("low", "high"))
            axis.errorbar(
                x, y, [y - low, high - y], **LOOKS[name], markersize=3.5, linewidth=1.2, capsize=2, label=name
            )
        scales = "xy" if along == ROWS else "y"
        panel(axis, "", along, "distance in standard errors" if axis is axes[0] else "", log=scales)
    ticks = sorted({row["at"] for row in _of(rows, along=ROWS)})
    axes[0].set_xticks(ticks, [f"{m:g}" for m in ticks])
    axes[0].minorticks_off()
    legend(figure, axes[0], columns=4)
    return figure
