"""How often intervals of `analyse` cover: with intercepts of clients that differ, and with slopes that differ.

Ten clients of 30 to 300 rows. A hundred simulations run side by side (`fedconvex.papers.inference`). In every trial
some of the data sets are given to `analyse`, which must find the same estimates, standard errors and verdicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.papers.inference.batched_fits import fit
from fedconvex.papers.inference.interval_verdicts import (
    by_analyse,
    disagreement,
    pooled_targets,
    slope_intervals,
    verdicts,
)
from fedconvex.papers.inference.simulated_sites import FAMILIES, SLOPES, Design, Drawn, drawn

SPREADS = (0.0, 0.5, 1.0, 1.5, 2.0)
TAUS = (0.0, 0.1, 0.2, 0.4)
ROWS, MANY = (30, 60, 120, 240), (40, 160)  # of each client; clients
SIMULATIONS = 100
AGREE = 1e-8  # standard errors
FARTHEST = 6.0  # standard deviations of the share of intervals that hold the slope


def held(rng: np.random.Generator, design: Design, checked: bool) -> dict[str, float]:
    """Simulate equal slopes, and return how often both intervals hold the first; one data set goes to `analyse` too."""
    sample = drawn(rng, design, SIMULATIONS)
    found = verdicts(sample.batch, np.full(SIMULATIONS, SLOPES[0]))
    if checked:
        off = disagreement(sample, int(rng.integers(SIMULATIONS)), SLOPES[0], found)
        assert off <= AGREE, f"{design}: {off:.2g} standard errors from analyse"
    return {kind: float(inside.mean()) for kind, inside in found.held.items()}


def shares(rng: np.random.Generator, designs: dict[str, Design], checked: dict[str, bool]) -> dict[str, float]:
    """Return coverage in every design, which over all of them must be near 95 %."""
    out = {}
    for name, design in designs.items():
        out |= {f"{name} {kind}": share for kind, share in held(rng, design, checked[name]).items()}
    for kind in ("wald", "profile"):
        mean = np.mean([share for name, share in out.items() if name.endswith(kind)])
        far = abs(mean - 0.95) / np.sqrt(0.95 * 0.05 / (SIMULATIONS * len(designs)))
        assert far <= FARTHEST, f"{kind} intervals cover {mean:.3f}"
    return out


def trial_coverage(rng: np.random.Generator) -> dict[str, float]:
    """Every family, at five standard deviations of the clients' intercepts."""
    designs = {f"{family} {spread:g}": Design(family, spread) for family in FAMILIES for spread in SPREADS}
    chosen = {f"{family} {rng.choice(SPREADS):g}" for family in FAMILIES}
    return shares(rng, designs, {name: name in chosen for name in designs})


def trial_sizes(rng: np.random.Generator) -> dict[str, float]:
    """Clients of equally many rows, few and more, with the widest spread of intercepts; then many of such clients.

    The bias of logistic slopes falls with the rows of a client only, and their standard error with all rows: many small
    clients are where it shows (Neyman and Scott, Econometrica 16, 1948). Nothing is demanded of them.
    """
    designs = {f"{family} {m}": Design(family, SPREADS[-1], rows=(m, m)) for family in FAMILIES for m in ROWS}
    out = shares(rng, designs, dict.fromkeys(designs, False))
    for K in MANY:
        for m in ROWS[:-1]:
            found = held(rng, Design("logistic", SPREADS[-1], rows=(m, m), sites=K), False)
            out |= {f"logistic {m}, {K} clients {kind}": share for kind, share in found.items()}
    return out


def trial_slopes(rng: np.random.Generator) -> dict[str, float]:
    """Slopes that differ between clients: what three intervals cover, of the mean slope and of the pooled target."""
    out = {}
    for family in FAMILIES:
        checked = float(rng.choice(TAUS))
        for tau in TAUS:
            sample = drawn(rng, Design(family, 1.0, tau), SIMULATIONS)
            found = fit(sample.batch)
            intervals, targets = slope_intervals(sample.batch, found), pooled_targets(sample, found)
            for kind in ("common", "client", "random"):
                centre, half = getattr(intervals, kind)
                for what, truth in (("mean", SLOPES[0]), ("pooled", targets)):
                    out[f"{family} {tau:g} {kind} {what}"] = float((np.abs(centre - truth) <= half).mean())
            out[f"{family} {tau:g} sites left out"] = float(intervals.left_out.mean())
            if tau == checked:
                same_slopes(sample, intervals, int(rng.integers(SIMULATIONS)))
    return out


def same_slopes(sample: Drawn, intervals: Any, r: int) -> None:
    """Raise unless `analyse` finds the three intervals of data set r."""
    one, clustered = (by_analyse(sample, r, robust=robust) for robust in (None, "client"))
    random = one.differences.summaries["x1"].hartung_knapp
    rows = {"common": one.table()[0], "client": clustered.table()[0], "random": random}
    for kind, row in rows.items():
        centre, half = (float(part[r]) for part in getattr(intervals, kind))
        off = max(abs(row.estimate - centre), abs(row.high - row.estimate - half)) / half
        assert off <= AGREE, f"{sample.batch.family}, {kind}: {off:.2g} half widths from analyse"
    assert len(one.differences.left_out) == intervals.left_out[r]
