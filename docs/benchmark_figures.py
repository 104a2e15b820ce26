"""Draw the figures of docs/benchmark.md: ``python docs/benchmark_figures.py FOLDER``.

FOLDER is that of ``fedconvex bench --suite standard --solvers all --limit 120 --out FOLDER``: its cells are read, and
what is missing is run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedconvex.bench import bench, data_profile, performance_profile
from fedconvex.papers.style import COLOURS, blank, panel
from fedconvex.report.plots import save_figure

FIGURES = Path(__file__).resolve().parent / "figures"
DRAWN = ("fedsgd", "fista", "fedavg", "fedavg-batch", "scaffold", "fsvrg", "fedadam")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
LOOKS = {
    s: {"color": colour, "linestyle": line} for s, colour, line in zip(DRAWN, (*COLOURS, "0.25"), LINES, strict=False)
}
CURVES = (
    "linear-K10-d20-cond100-zeta0",
    "linear-K10-d20-cond100-zeta10",
    "logistic-K100-d20-l2_0.001-shift0.5-size1",
    "digits-softmax-K10-shards2",
)


def profiles(board):
    """Draw performance profiles by rounds and passes, data profiles by floats."""
    figure, axes = blank(3, width=3.6)
    for axis, by in zip(axes, ("rounds", "passes", "floats"), strict=True):
        pairs, names, costs = board.medians(by)
        if by == "floats":
            dials = {c.problem: c.dials for c in board.cells}
            costs = costs / np.array([2.0 * dials[p]["K"] * dials[p]["size"] for p, _ in pairs])[:, None]
            at = np.geomspace(1, 1000, 200)
            shares, label = data_profile(costs, at), "floats, in models to and from every client"
        else:
            at = np.geomspace(1, 300, 200)
            shares, label = performance_profile(costs, at), f"{by} over the least, at most"
        for s in DRAWN:
            if np.isfinite(costs[:, names.index(s)]).any():
                axis.step(at, shares[names.index(s)], where="post", label=s, **LOOKS[s])
        axis.set_ylim(-0.02, 1.02)
        panel(axis, x=label, y="share of problems and targets", log="x")
    axes[2].legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=7, loc="upper left")  # FISTA's too
    save_figure(figure, FIGURES / "benchmark_profiles.png")


def by_heterogeneity(board, target=1e-3):
    """Draw rounds to a target over those of fedsgd by problem, over heterogeneity, and over conditioning."""
    figure, axes = blank(2, width=4.6, sharey=True)
    marks = dict(zip(("fedavg", "scaffold", "fsvrg"), "os^", strict=True))
    for axis, dial in zip(axes, ("heterogeneity", "kappa"), strict=True):
        dials = {c.problem: c.dials[dial] for c in board.cells}
        for s, mark in marks.items():
            points = []
            for p in board.problems:
                cost, base = board.cost(p, s, target, "rounds"), board.cost(p, "fedsgd", target, "rounds")
                if cost is not None and np.isfinite(base.median) and base.median > 0 and dials[p] == dials[p]:
                    points.append((max(dials[p], 1e-3), min(cost.median / base.median, 200.0)))
            x, y = np.array(points).T
            axis.plot(x, y, mark, color=LOOKS[s]["color"], label=s, markersize=5, alpha=0.8)
        axis.axhline(1.0, color="0.5", linewidth=0.8)
        axis.axhline(200.0, color="0.5", linewidth=0.8, linestyle=":")
        panel(axis, x={"heterogeneity": "heterogeneity h"}.get(dial, "condition number"), log="xy")
    axes[0].set_ylabel(f"rounds to {target:g} over those of fedsgd")
    axes[0].annotate("not met", (1e-3, 150.0), fontsize=7.5, color="0.3", va="top")
    axes[0].legend(frameon=False, fontsize=7.5, loc=(0.25, 0.1))
    save_figure(figure, FIGURES / "benchmark_dials.png")


def curves(board):
    """Draw certified gaps over rounds on four problems, the median of seeds."""
    figure, axes = blank(4, width=3.1, height=3.2)
    for axis, p in zip(axes, CURVES, strict=True):
        for s in DRAWN:
            found = [c.found["curve"] for c in board.of(p, s) if c.found["curve"]]
            if found:
                x = np.array(found[0]["rounds"], dtype=float)
                rows = [np.interp(x, c["rounds"], np.log([g or 1e-17 for g in c["gap"]])) for c in found]
                axis.plot(x + 1, np.exp(np.median(rows, axis=0)), label=s, **LOOKS[s])
        axis.set_ylim(3e-10, None)
        panel(axis, title=p.replace("-size1", ""), x="rounds + 1", log="xy")
        axis.title.set_size(7.5)
    axes[0].set_ylabel("certified gap")
    axes[0].legend(frameon=False, fontsize=6.5)
    save_figure(figure, FIGURES / "benchmark_curves.png")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    result = bench(suite="standard", against="all", limit=120.0, folder=sys.argv[1])
    for draw in (profiles, by_heterogeneity, curves):
        draw(result)
