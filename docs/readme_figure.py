"""Draw the three panels of README.md, one a file: ``python docs/readme_figure.py`` (about two minutes on one core)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fedconvex import FedAvg, Problem, Squared, compare
from fedconvex.bench import bench, performance_profile
from fedconvex.datasets import linear_federation
from fedconvex.papers.style import COLOURS, blank, panel
from fedconvex.report.plots import save_figure
from fedconvex.verify import curve

FIGURES = Path(__file__).resolve().parent / "figures"
SOLVERS = ("fista", "fedsgd", "fedavg", "scaffold")


def decision(axis):
    """Draw what joining does for four hospitals: South is small, and in West a feature acts the other way round."""
    rng = np.random.default_rng(0)
    hospital = np.repeat(["East", "North", "South", "West"], [600, 200, 100, 300])
    X = rng.normal(size=(1200, 30))
    risk = X[:, 1:] @ np.linspace(0.2, 1.0, 29) + X[:, 0] * np.where(hospital == "West", -2, 2)
    ill = np.where(risk + rng.logistic(size=1200) > 0, "ill", "well")
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(30)]).assign(hospital=hospital, state=ill)
    found = compare(table, "state", "hospital", methods=["pooled", "alone"], progress=False)
    joins = found["pooled"].joins
    for at, join in enumerate(joins):
        d = join.difference
        colour = {True: COLOURS[1], False: "0.35"}[d.low > 0.0] if d.high >= 0.0 else COLOURS[0]
        axis.hlines(at, d.low, d.high, color=colour, linewidth=1.6)
        axis.plot(d.value, at, marker="s" if d.low > 0.0 else "D" if d.high >= 0.0 else "o", color=colour, markersize=5)
        axis.annotate(join.outcome.value, (d.value, at), xytext=(0, 6), textcoords="offset points", fontsize=7.5,
                      ha="center", color=colour)  # fmt: skip
    axis.axvline(0.0, color="0.2", linewidth=0.8)
    axis.set_yticks(range(len(joins)), found.rows.names)
    axis.set_ylim(-0.5, len(joins) - 0.3)
    panel(axis, "A decision: who gains by one joint model?", "change of log loss by joining (below 0: gains)")


def bound(axis):
    """Draw a published bound beside the exact expectation that it speaks about."""
    data = linear_federation(n_clients=5, rows_per_client=10, n_features=3, model_shift=1.0, seed=0)
    problem = Problem(data.federation, Squared())
    method = FedAvg(step_size=0.05, local_steps=3, batch_size=5)
    line = curve("fedavg-at-optimum", problem, method, rounds=np.unique(np.geomspace(1, 300, 12).astype(int)))
    axis.plot(line.rounds, line.bound, "s--", color=COLOURS[1], markersize=4, label="bound")
    axis.plot(line.rounds, line.measured, "o-", color=COLOURS[0], markersize=4, label="measured, exact")
    axis.legend(frameon=False, fontsize=8)
    panel(axis, "A bound and its measurement: FedAvg", "rounds T", "mean suboptimality", log="xy")


def profile(axis):
    """Draw the share of small problems and targets that a solver meets within so many times the fewest rounds."""
    board = bench(suite="small", against=SOLVERS, seeds=1)
    _, names, costs = board.medians("rounds")
    at = np.geomspace(1, 300, 200)
    shares = performance_profile(costs, at)
    for solver, colour, style in zip(SOLVERS, COLOURS, ("-", "--", "-.", ":"), strict=False):
        axis.step(at, shares[names.index(solver)], where="post", color=colour, linestyle=style, label=solver)
    axis.set_ylim(-0.02, 1.02)
    axis.legend(frameon=False, fontsize=8)
    panel(axis, "A profile: who needs the fewest rounds?", "rounds over the fewest", "share of problems", log="x")


DOORS = {"data": decision, "theorem": bound, "solver": profile}

if __name__ == "__main__":
    for door, draw in DOORS.items():
        figure, (axis,) = blank(1, width=4.0, height=3.1)
        draw(axis)
        save_figure(figure, FIGURES / f"door_{door}.png")
