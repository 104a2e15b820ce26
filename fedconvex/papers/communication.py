"""Rounds and floats to a test accuracy: FedSGD and FedAvg over epochs and batches (McMahan et al., AISTATS 2017).

1. 20 clients, a quarter of them a round; rows at random, or sorted by label and dealt in two shards each. Multinomial
   logistic regression, l2 = 0.001, from w = 0.
2. FedSGD, and FedAvg with E = 1, 5, 20 epochs of batches of B = 10 or all rows; rounds until the test accuracy first is
   the exact pooled model's less 0.03; the step size of a grid with the fewest rounds.
3. Weights: FedAvg with 1/K and with n_k/n on unequal clients, dealt by label; pooled test loss after all rounds.
4. Starts: two clients take local steps from one random model or from two; the loss of their average beside the mean of
   their losses (the paper's Figure 1).
5. One round: the average of the clients' exact minimisers beside the exact pooled model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex.datasets import partition_dirichlet, partition_iid, partition_shards
from fedconvex.driver import iterate, run
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import FedAvg, FedSGD
from fedconvex.papers.agnostic_clients.data import L2, SplitData, TrainTest, load_splits
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.images import accuracies
from fedconvex.papers.repeated import Repeated, draw_bars, draw_curves, higher
from fedconvex.papers.style import blank, panel
from fedconvex.problems import Problem

CLIENTS, SHARE, MARGIN, BATCH = 20, 0.25, 0.03, 10
GRID = tuple(10.0 ** (e / 2.0) for e in range(-3, 4))  # of step sizes, over the number of local steps' square root
DIVISIONS = ("at random", "two shards")
STARTS = (1, 3, 10, 30, 100)  # local steps
PAPER = {  # rounds to 99 % on MNIST, a convolutional network, Table 2: at random, two shards
    ("FedSGD", 1, 0): (626, 483),
    ("FedAvg", 5, 0): (179, 1000),
    ("FedAvg", 20, 0): (234, 672),
    ("FedAvg", 1, 10): (34, 350),
    ("FedAvg", 5, 10): (20, 229),
    ("FedAvg", 20, 10): (18, 173),
}
Row = dict[str, Any]


class CommunicationScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    limit: int  # most rounds
    cells: tuple[tuple[str, int, int], ...]  # method, E, B (0: all rows)
    block: int


FULL = CommunicationScale(5, 300, tuple(PAPER), 1)
QUICK = CommunicationScale(3, 200, tuple(c for c in PAPER if c[1] < 20), 2)


def dealt(rows: TrainTest, owners: np.ndarray, weights: Any = None) -> Problem:
    """Return the problem of training rows that have owners."""
    federation = Federation.from_arrays(rows.X, rows.y, owners)
    return Problem(federation, Softmax(int(rows.y.max()) + 1), L2, weights=weights)


def cells(rows: TrainTest, number: int, scale: CommunicationScale, seed: int) -> Iterator[Row]:
    """Yield rounds and floats to the target, for every division and cell of the table."""
    key = 1000 * seed + number
    owners = partition_iid(len(rows.y), CLIENTS, key), partition_shards(rows.y, CLIENTS, 2, key)  # 1
    for division, owner in zip(DIVISIONS, owners, strict=True):
        problem = dealt(rows, owner)
        exact = accuracies(problem.solve().w[None], rows.X_test, rows.y_test)[0]
        for method, epochs, batch in scale.cells:
            rounds, step = _to_target(problem, rows, exact - MARGIN, method, epochs, batch, scale.limit, key)
            floats = rounds * 2.0 * SHARE * CLIENTS * problem.size
            row = {"division": division, "method": method, "epochs": epochs, "batch": batch, "repetition": number}
            yield row | {"rounds": rounds, "floats": floats, "step": step, "target": float(exact - MARGIN)}


def _to_target(
    problem: Problem, rows: TrainTest, target: float, method: str, epochs: int, batch: int, limit: int, seed: int
) -> tuple[float, float]:
    """Return the fewest rounds of a grid of step sizes, inf if more than the limit, and the step size."""  # 2
    steps = epochs * (1 if batch == 0 else math.ceil(problem.federation.sizes.mean() / batch))
    grid = np.array(GRID) / math.sqrt(steps)
    if method == "FedSGD":
        chosen: Any = FedSGD(step_size=grid, participation=SHARE)
    else:
        work: dict[str, Any] = (
            {"local_steps": epochs} if batch == 0 else {"epochs": epochs, "batch_size": batch, "shrink": True}
        )
        chosen = FedAvg(step_size=grid, participation=SHARE, **work)
    for t, state in iterate(chosen, problem, rounds=limit, seed=seed, trajectories=grid.size):
        found = accuracies(state.w, rows.X_test, rows.y_test)
        if found.max() >= target:
            return float(t), float(grid[int(found.argmax())])
    return math.inf, math.nan


def weights(rows: TrainTest, number: int, scale: CommunicationScale, seed: int) -> Iterator[Row]:  # 3
    """Yield the pooled test loss of FedAvg with either weights on unequal clients."""
    owner = partition_dirichlet(rows.y, CLIENTS, 0.3, 1000 * seed + number, min_rows=2)
    for name, p in (("n_k/n", None), ("1/K", "uniform")):
        problem = dealt(rows, owner, p)
        method = FedAvg(step_size=0.3, local_steps=5)
        w = run(method, problem, rounds=scale.limit // 2, tol=0.0, record_every=scale.limit, progress=False).w[None]
        loss = float(mean_losses(w, rows.X_test, rows.y_test)[0])
        accuracy = float(accuracies(w, rows.X_test, rows.y_test)[0])
        yield {"weights": name, "repetition": number, "test loss": loss, "test accuracy": accuracy}


def starts(rows: TrainTest, number: int, seed: int) -> Iterator[Row]:  # 4
    """Yield the training loss of the average of two clients' models less the mean of their losses, over local steps."""
    rng = np.random.default_rng([seed, number, 1])
    problem = dealt(rows, partition_iid(len(rows.y), 2, 1000 * seed + number))
    halves = [Problem(problem.federation.subset([k]), problem.loss, L2) for k in (0, 1)]
    first = rng.standard_normal((2, *problem.model_shape))
    for kind, pair in (("common", first[[0, 0]]), ("separate", first)):
        each = zip(halves, pair, strict=True)
        runs = [iterate(FedSGD(step_size=0.5), half, rounds=max(STARTS), start=w) for half, w in each]
        for (t, a), (_, b) in zip(*runs, strict=True):
            if t in STARTS:
                one, other, average = problem.value(np.concatenate([a.w, b.w, 0.5 * (a.w + b.w)])).tolist()
                row = {"start": kind, "local steps": t, "repetition": number, "average": average}
                yield row | {"parents": 0.5 * (one + other), "average less parents": average - 0.5 * (one + other)}


def one_shot(rows: TrainTest, number: int, seed: int) -> Iterator[Row]:  # 5
    """Yield test accuracies of the averaged exact local models, of the pooled one, and of a client alone."""
    key = 1000 * seed + number
    for division, owner in zip(
        DIVISIONS, (partition_iid(len(rows.y), CLIENTS, key), partition_shards(rows.y, CLIENTS, 2, key)), strict=True
    ):
        problem = dealt(rows, owner)
        own = np.array([Problem(problem.federation.subset([k]), problem.loss, L2).solve().w for k in range(CLIENTS)])
        average = np.tensordot(problem.weights, own, 1)
        found = accuracies(np.stack([average, problem.solve().w, *own]), rows.X_test, rows.y_test)
        row = {"division": division, "repetition": number, "one round": float(found[0]), "pooled": float(found[1])}
        yield row | {"a client alone": float(found[2:].mean())}


def mean_losses(w: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the mean cross-entropy of models (R, C, d) on rows: (R,)."""
    scores = np.einsum("nd,rcd->rnc", X, w)
    return np.mean(np.logaddexp.reduce(scores, axis=2) - scores[:, np.arange(len(y)), y.astype(int)], axis=1)


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Fill the tables, division by division of the rows; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL
    loaded = load_splits(data, scale.repetitions, seed, scale.block)
    parts: dict[str, list[Row]] = {"table": [], "weights": [], "starts": [], "one_round": []}
    for number, rows in enumerate(loaded.splits):
        tell(number / scale.repetitions, f"division {number + 1} of {scale.repetitions}")
        todo = (cells, rows, number, scale, seed), (weights, rows, number, scale, seed)
        also = (starts, rows, number, seed), (one_shot, rows, number, seed)
        for name, (make, *arguments) in zip(parts, (*todo, *also), strict=True):
            parts[name] += finished_part(f"{name} {number}", partial(_listed, make, *arguments))
    found = {name: Repeated(tuple(rows), loaded.overlap) for name, rows in parts.items()}
    return Findings(
        f"Rounds to a test accuracy, FedSGD and FedAvg (McMahan et al. 2017): {loaded.name}",
        tuple(claims(found)),
        _notes(loaded, scale),
        {"communication": _draw(found)},
        {"table": list(_table(found["table"])), "cells": parts["table"]}
        | {name: parts[name] for name in ("weights", "starts", "one_round")},
    )


def _listed(make: Any, *arguments: Any) -> list[Row]:
    return list(make(*arguments))


EXPERIMENT = Experiment(
    "communication",
    "rounds and floats to a test accuracy, FedSGD against FedAvg over E and B; weights, starts, one round",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "three divisions, E up to 5, coarser images",
)


# ---------------------------------------------------------------- what came out


def claims(found: dict[str, Repeated]) -> Iterator[Claim]:
    """Judge ratios of rounds, losses and accuracies by intervals over the divisions."""
    table = found["table"]
    logs = Repeated(tuple(r | {"log": math.log(_at_most(r["rounds"], table))} for r in table.rows), table.overlap)
    for division in DIVISIONS:
        sgd = {"division": division, "method": "FedSGD"}
        settings = [{"method": "FedAvg", "epochs": E, "batch": B} for m, E, B in PAPER if m == "FedAvg"]
        there = [s | {"division": division} for s in settings if table.where(division=division, **s).rows]
        pairs = [(f"E = {s['epochs']}, B = {s['batch'] or 'all'}", logs.minus("log", sgd, s)) for s in there]
        yield higher(f"{division}: FedAvg needs fewer rounds than FedSGD (logarithm of the ratio)", pairs)
    best = max(E for m, E, B in PAPER if table.where(method=m, epochs=E, batch=B).rows and m == "FedAvg")
    both = [logs.minus("log", {"division": d, "method": "FedSGD"}, _best(best) | {"division": d}) for d in DIVISIONS]
    gain = Repeated(
        tuple(
            {"repetition": r, "gain": float(x)}
            for r, x in enumerate(_gains(logs, DIVISIONS[0], best) - _gains(logs, DIVISIONS[1], best))
        ),
        table.overlap,
    )
    words = f"gains {both[0]} at random, {both[1]} by shards; difference"
    text = f"Local work (E = {best}, B = {BATCH}) gains more at random than by shards"
    yield higher(text, [(words, gain.interval("gain"))])
    loss = found["weights"].minus("test loss", {"weights": "1/K"}, {"weights": "n_k/n"})
    yield higher("Unequal clients: weights 1/K end at a higher pooled test loss than n_k/n", [("difference", loss)])
    above = max(row["average less parents"] for row in found["starts"].rows)
    yield Claim(
        "The average of two models never has a larger loss than they have in the mean, from one start or from two",
        above <= 1e-9,
        f"largest difference {above:.3g}; F is convex",
        everywhere=True,
    )
    few = {"local steps": STARTS[0]}
    ahead = found["starts"].minus("average", {"start": "common", **few}, {"start": "separate", **few})
    text = "After the first step the average from two random starts is ahead of that from one: their noise is halved"
    yield higher(text, [("average from one start less that from two", ahead)])
    shot = found["one_round"]
    falls = Repeated(tuple(r | {"lost": r["pooled"] - r["one round"]} for r in shot.rows), shot.overlap)
    pairs = [(d, falls.interval("lost", division=d)) for d in DIVISIONS]
    yield higher("One round: the average of exact local models is behind the pooled model by shards", pairs[1:])


def _at_most(rounds: float, table: Repeated) -> float:
    """Return rounds, twice the most that were needed where the target was not reached."""
    return min(rounds, 2.0 * max(r["rounds"] for r in table.rows if math.isfinite(r["rounds"])))


def _best(epochs: int) -> Row:
    return {"method": "FedAvg", "epochs": epochs, "batch": BATCH}


def _gains(logs: Repeated, division: str, epochs: int) -> np.ndarray:
    sgd = logs.values("log", division=division, method="FedSGD")
    return sgd - logs.values("log", division=division, **_best(epochs))


def _table(found: Repeated) -> Iterator[Row]:
    """Yield medians over the divisions with fewest and most, speed-ups and the paper's rounds."""
    for (method, epochs, batch), paper in PAPER.items():
        mine = found.where(method=method, epochs=epochs, batch=batch)
        if not mine.rows:
            continue
        row: Row = {"method": method, "E": epochs, "B": batch or "all"}
        for division, published in zip(DIVISIONS, paper, strict=True):
            v = mine.values("rounds", division=division)
            sgd = found.values("rounds", division=division, method="FedSGD")
            row[division] = f"{np.median(v):g} ({v.min():g}-{v.max():g})"
            row[f"{division}, speed-up"] = f"{np.median(sgd / v):.1f}"
            row[f"{division}, Mfloats"] = f"{np.median(mine.values('floats', division=division)) / 1e6:.2f}"
            first = PAPER["FedSGD", 1, 0][DIVISIONS.index(division)]
            row[f"{division}, paper"] = f"{published} ({first / published:.1f})"
        yield row


def _notes(data: SplitData, scale: CommunicationScale) -> tuple[str, ...]:
    rows = data.splits[0]
    return (
        f"Data: {data.name}, {data.about}{len(rows.y):,} rows to train and {len(rows.y_test):,} to test on, "
        f"{scale.repetitions} divisions; {CLIENTS} clients, a quarter a round; medians, fewest and most.",
        f"Step sizes: the best of seven a factor sqrt(10) apart for every cell and division; at most {scale.limit} "
        "rounds; what takes longer counts as twice the most that were needed. Chosen here: numbers of clients and "
        "rows, target, l2, grid.",
        "The paper's Table 2 (100 clients, a tenth a round, CNN, 99 % on MNIST) is quoted, as a public summary of "
        "the paper prints it (the paper itself could not be re-read): rounds and, in brackets, "
        "FedSGD's over them. Compare directions: the model here is convex, and its clients have few rows.",
    )


def _draw(found: dict[str, Repeated]) -> Any:
    """Draw rounds to the target for every cell, and the losses of averages of two models over local steps."""
    figure, axes = blank(3, width=3.7, height=3.4)
    table = found["table"]
    short = {("FedSGD", 1, 0): "FedSGD"}
    named = tuple(
        r
        | {"cell": short.get((r["method"], r["epochs"], r["batch"]), f"{r['epochs']}, {r['batch'] or 'all'}")}
        | {"rounds": _at_most(r["rounds"], table)}
        for r in table.rows
    )
    draw_bars(axes[0], Repeated(named), "rounds", "cell", "division")
    panel(axes[0], "to the target: E, B", y="rounds, mean and s.d.", log="y")
    axes[0].set_ylim(top=8.0 * max(r["rounds"] for r in named))  # room for the legend
    axes[0].legend(frameon=False, fontsize=7.5, loc="upper left", ncols=2)
    draw_curves(axes[1], found["starts"], "local steps", "average", "start")
    panel(axes[1], "average of two models", "local steps", "training loss", log="xy")
    axes[1].tick_params(which="minor", labelsize=8)
    axes[1].legend(frameon=False, fontsize=7.5)
    shot = found["one_round"]
    long = [
        {"division": r["division"], "repetition": r["repetition"], "model": k, "accuracy": r[k]}
        for r in shot.rows
        for k in ("a client alone", "one round", "pooled")
    ]
    draw_bars(axes[2], Repeated(tuple(long)), "accuracy", "division", "model")
    panel(axes[2], "exact models", y="test accuracy")
    axes[2].set_ylim(0.0, 1.25)
    axes[2].legend(frameon=False, fontsize=7.5, loc="upper right")
    return figure
