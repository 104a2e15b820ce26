"""Pooled rows without an intercept of each site: levels of sites that go with a column are taken for its effect.

DataSHIELD's ds.glm fits the pooled rows as if they lay in one table, by Fisher scoring on sums (Gaye et al.,
"DataSHIELD: taking the analysis to the data, not the data to the analysis", Int. J. Epidemiology 43, 2014; Jones et
al., Norsk Epidemiologi 21, 2012). So does every exact federated fit. An indicator of each study enters only if the
analyst asks; without it differences between sites and within them are mixed (Robinson, "Ecological correlations and the
behavior of individuals", Am. Sociological Review 15, 1950).

1. Ten sites, slope 0.5 within each. A site's level is tied to the mean of its first feature: between sites the slope is
   0.5 + g. Gaussian, logistic and Poisson responses (`simulated_sites`).
2. The pooled interval with one intercept, with an intercept of each site, and the intervals of all sites alone.
3. Is the pooled interval disjoint from those of all sites, or from the one with site intercepts? Does the likelihood
   ratio refuse equal intercepts?
4. Exactly, with squared loss: the pooled slopes are (W + B)^-1 (W b_W + B b_B), W and B the sums of squares within and
   between sites (Maddala, "The use of variance components models in pooling cross section and time series data",
   Econometrica 39, 1971).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from fedconvex.analysis.site_differences import confounded
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.inference.batched_fits import Batch, Fits, fit
from fedconvex.papers.inference.interval_verdicts import HALF, Share, by_analyse, dispersion
from fedconvex.papers.inference.simulated_sites import SLOPES, Design, Drawn, drawn
from fedconvex.papers.intervals import every
from fedconvex.papers.style import COLOURS, DASHED, DOTTED, blank, legend, panel

FAMILIES = ("gaussian", "logistic", "poisson")
_TIES, _QUICK_TIES = (-2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0), (-2.0, 0.0)
BATCH, AGREE = 100, 1e-8
POOLED, WITHIN = "one intercept holds 0.5", "site intercepts hold 0.5"
DISJOINT, APART, RATIO = "disjoint from all sites", "disjoint from site intercepts", "likelihood ratio of intercepts"


def design(family: str, tie: float) -> Design:
    """Return sites whose first feature has as much variance between them as within."""
    return Design(family, 0.0, rows=(100, 200), shift=1.0, tied=tie)


def interval(batch: Batch, found: Fits) -> tuple[np.ndarray, np.ndarray]:
    """Return Wald's interval of the first slope, (R,) and (R,)."""
    phi, reach = dispersion(batch, found)
    half = reach * np.sqrt(phi * found.inverse[:, 0, 0])
    return found.b[:, 0, 0] - half, found.b[:, 0, 0] + half


def of_sites(batch: Batch) -> list[np.ndarray]:
    """Return the normal intervals of the sites alone that have finite estimates, (sites, 2) for each data set."""
    own = fit(batch, alone=True)
    v = np.linalg.inv(np.where(own.settled[..., None, None], own.J, np.eye(len(batch.X))))[..., 0, 0]
    if batch.family == "gaussian":
        v = v * 2.0 * own.N / (batch.sizes - len(batch.X) - 1)
    half = float(stats.norm.isf(HALF)) * np.sqrt(v)
    both = np.stack([own.b[..., 0] - half, own.b[..., 0] + half], axis=-1)
    return [ends[good] for ends, good in zip(both, own.settled, strict=True)]


def refused(batch: Batch, one: Fits, own: Fits) -> np.ndarray:
    """Return whether the likelihood ratio refuses equal intercepts at 5 %, (R,)."""
    K, n = batch.sizes.size, batch.y.shape[1]
    ratio = 2.0 * (one.N - own.N)[:, 0] / dispersion(batch, own)[0]
    if batch.family == "gaussian":
        return np.asarray(ratio / (K - 1) > stats.f(K - 1, n - K - len(batch.X)).isf(0.05))
    return np.asarray(ratio > stats.chi2(K - 1).isf(0.05))


def _confounded_counts(family: str, tie: float, batches: int, seed: int) -> dict[str, Any]:
    """Return counts over data sets, the pooled estimates, and how far identities are off."""
    rng = np.random.default_rng([seed, FAMILIES.index(family), int(100 * (tie + 5.0))])
    held = dict.fromkeys((POOLED, WITHIN, DISJOINT, APART, RATIO), 0)
    estimates, off, mixed = [], 0.0, 0.0
    for i in range(batches):
        sample = drawn(rng, design(family, tie), BATCH)  # 1
        whole, batch = sample.in_one(), sample.batch
        one, own = fit(whole), fit(batch)
        (low, high), (inner, outer) = interval(whole, one), interval(batch, own)  # 2
        held[POOLED] += int(((low <= SLOPES[0]) & (SLOPES[0] <= high)).sum())
        held[WITHIN] += int(((inner <= SLOPES[0]) & (SLOPES[0] <= outer)).sum())
        alone = of_sites(batch)
        held[DISJOINT] += sum(confounded((a, b), ends) for a, b, ends in zip(low, high, alone, strict=True))  # 3
        held[APART] += int(((low > outer) | (high < inner)).sum())
        held[RATIO] += int(refused(batch, one, own).sum())
        estimates.append(one.b[:, 0, 0])
        if i == 0:
            row = by_analyse(sample, 0, site_intercepts=False).table()[1]
            off = max(abs(row.low - low[0]), abs(row.high - high[0])) / row.standard_error
            mixed = mixture(sample, one, own) if family == "gaussian" else 0.0
    numbers = {"estimate": float(np.median(np.concatenate(estimates))), "off": off, "mixed": mixed}
    return numbers | {"held": held, "n": BATCH * batches}


def mixture(sample: Drawn, one: Fits, own: Fits) -> float:
    """Return how far pooled slopes of squared loss are from the mean of those within and between sites."""
    batch = sample.batch
    means = np.stack([batch.added(v) / batch.sizes for v in (*batch.X, batch.y)], axis=-1)  # (R, K, p + 1)
    away = means - (batch.sizes @ means / batch.sizes.sum())[:, None]
    between = np.einsum("k,rki,rkj->rij", batch.sizes, away, away)
    B, right = between[:, :-1, :-1], between[:, :-1, -1]
    W = own.J.sum(axis=1)
    pooled = np.linalg.solve(W + B, np.einsum("rij,rj->ri", W, own.b[:, 0])[..., None] + right[..., None])  # 4
    return float(np.abs(pooled[..., 0] - one.b[:, 0]).max())


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Draw data sets of every family and tie."""
    ties, batches = (_QUICK_TIES, 1) if quick else (_TIES, 40)
    rows, off, mixed = [], [], []
    for i, (family, tie) in enumerate((f, t) for f in FAMILIES for t in ties):
        tell(i / (3 * len(ties)), f"{family}, {tie:g}")
        found = finished_part(f"{family} {tie:g}", partial(_confounded_counts, family, tie, batches, seed))
        rows.append(
            {"family": family, "tie": tie, "estimate": found["estimate"]} | found["held"] | {"data sets": found["n"]}
        )
        off.append(found["off"])
        mixed.append(found["mixed"])
    return Findings(
        "Levels of sites that are taken for an effect", tuple(claims(rows, max(off), max(mixed))), _notes(),
        {"levels": draw(rows)}, {"levels": rows},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "confounded-levels", "pooled rows without site intercepts, where levels of sites go with a column", study,
    smaller="a hundred data sets of two designs",
)  # fmt: skip


# ---------------------------------------------------------------- what came out

Rows = Sequence[dict[str, Any]]


def _shares(rows: Rows, what: str, **where: float) -> list[tuple[str, Share]]:
    mine = [row for row in rows if all(row[k] == v for k, v in where.items())]
    return [(row["family"], Share(row[what], row["data sets"])) for row in mine]


def _bounded(text: str, shares: Sequence[tuple[str, Share]], low: float, high: float) -> Claim:
    """Return the claim that shares lie between two numbers, by intervals that hold together with 95 %."""
    verdicts = []
    for _, share in shares:
        a, b = share.interval(1.0 - 0.05 / len(shares))
        verdicts.append(True if a >= low and b <= high else False if a > high or b < low else None)
    return Claim(text, every(verdicts), "; ".join(f"{name} {100 * s.mean:.1f} %" for name, s in shares))


def claims(rows: Rows, off: float, mixed: float) -> Iterator[Claim]:
    """Judge by intervals of shares; identities by every data set."""
    text = "With squared loss pooled slopes are the mean of those within and between sites, weighted by W and B"
    yield Claim(text, mixed <= 1e-10, f"largest difference {mixed:.1e}", everywhere=True)
    text = "The batch and analyse find the same pooled intervals"
    yield Claim(text, off <= AGREE, f"largest difference {off:.1e} standard errors", everywhere=True)
    worst = min(row["tie"] for row in rows)
    signs = [row["estimate"] for row in rows if row["tie"] == worst]
    said = "; ".join(f"{row['family']} {row['estimate']:.2f}" for row in rows if row["tie"] == worst)
    yield Claim(f"With g = {worst:g} the median pooled slope is negative, where it is 0.5 within every site",
                all(b < 0.0 for b in signs), said)  # fmt: skip
    wrong = _shares(rows, POOLED, tie=worst)
    yield _bounded("There less than 1 % of the pooled intervals with one intercept hold 0.5", wrong, 0.0, 0.01)
    right = [one for tie in sorted({row["tie"] for row in rows}) for one in _shares(rows, WITHIN, tie=tie)]
    yield _bounded("With site intercepts 93 to 97 % hold it, whatever g", right, 0.93, 0.97)
    text = "There more than 95 % of the pooled intervals are disjoint from the one with site intercepts"
    yield _bounded(text, _shares(rows, APART, tie=worst), 0.95, 1.0)
    for what, words in ((DISJOINT, "all sites'"), (APART, "the one with site intercepts")):
        text = f"With g = 0 less than 1 % are disjoint from {words}: false alarms"
        yield _bounded(text, _shares(rows, what, tie=0.0), 0.0, 0.01)
    level = _shares(rows, RATIO, tie=0.0)
    yield _bounded("With g = 0 the likelihood ratio refuses equal intercepts in 3.5 to 7 %", level, 0.035, 0.07)


def _notes() -> tuple[str, ...]:
    return (
        "Ten sites of 100 to 200 rows; means of a site's features have standard deviation 1, as features have within a "
        "site; levels are g times the mean of the first, and no other difference.",
        "Names of DataSHIELD's functions and what they fit are those of its documentation; no DataSHIELD was run. Its "
        "ds.glmSLMA fits every study alone and combines estimates, which such levels do not disturb.",
        "The likelihood ratio is of K - 1 intercepts; it finds differences of level, whether they confound or not.",
    )


LOOKS: dict[str, dict[str, Any]] = {
    POOLED: {"color": "0.35", "linestyle": DOTTED, "marker": "^"},
    WITHIN: {"color": COLOURS[0], "linestyle": "-", "marker": "o"},
    DISJOINT: {"color": COLOURS[1], "linestyle": DASHED, "marker": "s"},
    APART: {"color": COLOURS[2], "linestyle": (0, (4, 1, 1, 1)), "marker": "D"},
    RATIO: {"color": COLOURS[3], "linestyle": (0, (6, 2)), "marker": "v"},
}


def draw(rows: Rows) -> Any:
    """Draw the pooled slope, and shares, over g."""
    figure, axes = blank(4, width=2.9, height=3.3)
    for j, family in enumerate(FAMILIES):
        mine = sorted((row for row in rows if row["family"] == family), key=lambda row: row["tie"])
        x = [row["tie"] for row in mine]
        line = ("-", DASHED, DOTTED)[j]
        axes[0].plot(x, [row["estimate"] for row in mine], color=COLOURS[j], linestyle=line, marker=".", label=family)
        for what, look in LOOKS.items():
            y = [row[what] / row["data sets"] for row in mine]
            axes[j + 1].plot(x, y, **look, markersize=3.5, linewidth=1.2, label=what)
        panel(axes[j + 1], family, "slope between less within sites, g", "share of data sets" if j == 0 else "")
        axes[j + 1].set_ylim(-0.02, 1.02)
    axes[0].axhline(SLOPES[0], color="black", linewidth=0.7)
    axes[0].legend(frameon=False, fontsize=7.5)
    panel(axes[0], "pooled slope, one intercept", "slope between less within sites, g", "median estimate")
    legend(figure, axes[1], columns=5)
    return figure
