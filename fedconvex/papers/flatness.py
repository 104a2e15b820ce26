"""Flatness of models: FedSAM over rho on clients that differ (Qu et al., ICML 2022; Caldarola et al., ECCV 2022).

1. Ten clients, classes dealt by Dirichlet(0.1); multinomial logistic regression, l2 = 0.001, from w = 0.
2. FedSAM with rho = 0 (FedAvg), 0.05, ..., 2, everybody, five local steps on all rows, the same step size.
3. At the last model: the largest eigenvalue of the pooled Hessian, the sharpness max_{‖e‖ <= 0.5} F(w + e) - F(w) as a
   certified interval, training objective, test loss and accuracy.

F is strongly convex: there is one minimum, and no flatter one to be found. What rho changes is where on the way, and
around the minimum, a run stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.datasets import partition_dirichlet
from fedconvex.driver import iterate
from fedconvex.methods import FedSAM
from fedconvex.papers.agnostic_clients.data import L2, SplitData, TrainTest, load_splits
from fedconvex.papers.communication import dealt, mean_losses
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies
from fedconvex.papers.repeated import Repeated, draw_curves, higher, repeat
from fedconvex.papers.style import blank, panel
from fedconvex.report import largest_curvature, sharpness

CLIENTS, ALPHA, STEP, LOCAL, RADIUS = 10, 0.1, 0.5, 5, 0.5
MEASURED = ("largest eigenvalue", "sharpness", "objective", "test loss", "test accuracy")


class FlatnessScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    rounds: int
    radii: tuple[float, ...]  # rho
    block: int


FULL = FlatnessScale(10, 300, (0.0, 0.05, 0.2, 0.5, 1.0, 2.0), 2)
QUICK = FlatnessScale(3, 30, (0.0, 0.2, 1.0), 2)


def runs(rows: TrainTest, number: int, scale: FlatnessScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what the last model of every rho is like."""
    problem = dealt(rows, partition_dirichlet(rows.y, CLIENTS, ALPHA, 1000 * seed + number, min_rows=2))
    rho, models = np.array(scale.radii), np.zeros((len(scale.radii), *problem.model_shape))
    method = FedSAM(step_size=STEP, rho=rho, local_steps=LOCAL)
    for _, state in iterate(method, problem, rounds=scale.rounds, trajectories=rho.size):
        models = state.w
    losses = mean_losses(models, rows.X_test, rows.y_test)
    right = accuracies(models, rows.X_test, rows.y_test)
    for r, w in enumerate(models):
        found = sharpness(problem, w, RADIUS)
        row = {"rho": scale.radii[r], "repetition": number, "largest eigenvalue": largest_curvature(problem, w)}
        row |= {"sharpness": found.lower, "sharpness at most": found.upper, "objective": float(problem.value(w))}
        yield row | {"test loss": float(losses[r]), "test accuracy": float(right[r])}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run every rho on every division of the rows; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL
    loaded = load_splits(data, scale.repetitions, seed, scale.block)
    rows = repeat(scale.repetitions, lambda r: runs(loaded.splits[r], r, scale, seed), tell)
    found = Repeated(tuple(rows), loaded.overlap)
    return Findings(
        f"Flatness of FedSAM's models over rho: {loaded.name}",
        tuple(claims(found)),
        _notes(loaded, scale),
        {"flatness": _draw(found)},
        {"table": found.table(("rho",), MEASURED), "runs": rows},
    )


EXPERIMENT = Experiment(
    "flatness",
    "sharpness, largest eigenvalue and test loss of FedSAM's models over rho, clients that differ",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "three divisions, three rho, 30 rounds",
)


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge differences from rho = 0 by intervals over the divisions."""
    radii = [rho for rho in found.kinds("rho") if rho > 0.0]

    def gains(what: str, sign: float) -> list[Any]:
        pairs = [({"rho": rho}, {"rho": 0.0}) for rho in radii]
        return [(f"rho = {a['rho']:g}", found.minus(what, *((a, b) if sign > 0.0 else (b, a)))) for a, b in pairs]

    # at the largest rho: what the papers say of networks
    yield higher("FedSAM's models are less sharp than FedAvg's", gains("sharpness", -1.0)[-1:])
    text = "The largest eigenvalue at FedSAM's models is below that at FedAvg's"
    yield higher(text, gains("largest eigenvalue", -1.0)[-1:])
    yield higher("FedSAM's test loss is below FedAvg's", gains("test loss", -1.0)[-1:])
    text = "FedSAM's training objective is above FedAvg's: it does not converge to the minimum"
    yield higher(text, gains("objective", 1.0)[-1:])
    wide = max(r["sharpness at most"] - r["sharpness"] for r in found.rows)
    low = min(r["sharpness at most"] - r["sharpness"] for r in found.rows)
    most = max(r["sharpness at most"] - 0.5 * RADIUS**2 * r["largest eigenvalue"] for r in found.rows)
    yield Claim(
        "Sharpness is certified: no interval is empty",
        low >= 0.0,
        f"widest interval {wide:.2g}; above half the largest eigenvalue times radius squared by at most {most:.2g}",
        everywhere=True,
    )


def _notes(data: SplitData, scale: FlatnessScale) -> tuple[str, ...]:
    rows = data.splits[0]
    return (
        f"Data: {data.name}, {data.about}{len(rows.y):,} rows to train and {len(rows.y_test):,} to test on, "
        f"{scale.repetitions} divisions; {CLIENTS} clients, Dirichlet({ALPHA:g}); {scale.rounds} rounds of {LOCAL} "
        f"steps of size {STEP:g}; l2 = {L2:g}.",
        "The papers' claims are about networks, which have many minima; claims here ask whether they carry over.",
    )


def _draw(found: Repeated) -> Any:
    """Draw sharpness, the largest eigenvalue and the losses over rho."""
    figure, axes = blank(3, width=3.6, height=3.2)
    long = tuple(
        {"rho": r["rho"], "repetition": r["repetition"], "what": what, "value": r[what]}
        for r in found.rows
        for what in MEASURED
    )
    every = Repeated(long)
    for axis, names, y in zip(
        axes,
        (("sharpness",), ("largest eigenvalue",), ("objective", "test loss")),
        (f"sharpness, radius {RADIUS:g} (lower end)", "largest eigenvalue", "loss"),
        strict=True,
    ):
        draw_curves(axis, every, "rho", "value", "what", names)
        panel(axis, x="rho", y=y)
    axes[2].legend(frameon=False, fontsize=7.5)
    return figure
