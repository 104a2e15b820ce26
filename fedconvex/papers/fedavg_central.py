"""FedAvg beside centralised training on ten divisions, by the Bayesian t-test (Corani and Benavoli 2015).

1. Ten clients, rows at random, or sorted by label and dealt in two shards each; multinomial logistic regression,
   l2 = 0.001, from w = 0; a third of the rows to test on, ten divisions.
2. FedAvg: everybody, one epoch of batches of 32 a round. Centralised: stochastic gradients on the pooled rows with as
   many steps a round, in batches of 32 and of 320 rows, the rows that ten clients see together.
3. For each the step size of a grid with the least training objective after the last round.
4. The difference in test accuracy: the posterior probabilities that FedAvg is worse by more than a point, equivalent
   within a point, better by more than a point; the correlation of divisions is the share of test rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.datasets import partition_iid, partition_shards
from fedconvex.driver import iterate
from fedconvex.methods import SGD, FedAvg
from fedconvex.papers.agnostic_clients.data import SplitData, TrainTest, load_splits
from fedconvex.papers.communication import dealt
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies
from fedconvex.papers.repeated import Repeated, draw_bars, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import Problem
from fedconvex.report import bayesian_t_test

CLIENTS, BATCH, ROPE, SURE = 10, 32, 0.01, 0.95
GRID = (0.1, 0.3, 1.0, 3.0)
IID, SHARDS = "FedAvg, at random", "FedAvg, two shards"
SMALL, LARGE_BATCH = f"centralised, {BATCH}", f"centralised, {BATCH * CLIENTS}"


class CentralScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    rounds: int
    block: int


FULL, QUICK = CentralScale(10, 50, 1), CentralScale(4, 15, 2)


def runs(rows: TrainTest, number: int, scale: CentralScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield test accuracy of every way to train on one division."""
    key, grid = 1000 * seed + number, np.array(GRID)
    iid, shards = partition_iid(len(rows.y), CLIENTS, key), partition_shards(rows.y, CLIENTS, 2, key)
    local = FedAvg(step_size=grid, epochs=1, batch_size=BATCH, shrink=True)
    steps = -(-len(rows.y) // CLIENTS // BATCH)  # of a client in a round
    pooled = dealt(rows, iid)
    large = min(BATCH * CLIENTS, len(rows.y))
    for name, method, problem, rounds in (
        (IID, local, pooled, scale.rounds),
        (SHARDS, local, dealt(rows, shards), scale.rounds),
        (SMALL, SGD(step_size=grid, batch_size=BATCH), pooled, scale.rounds * steps),
        (LARGE_BATCH, SGD(step_size=grid, batch_size=large), pooled, scale.rounds * steps),
    ):
        w = _last(method, problem, rounds, key)
        best = int(np.argmin(np.nan_to_num(pooled.value(w), nan=np.inf)))  # 3
        accuracy = float(accuracies(w, rows.X_test, rows.y_test)[best])
        row = {"method": name, "repetition": number, "accuracy": accuracy, "step": GRID[best]}
        yield row | {"objective": float(pooled.value(w[best]))}


def _last(method: Any, problem: Problem, rounds: int, seed: int) -> np.ndarray:
    w = np.zeros((len(GRID), *problem.model_shape))
    for _, state in iterate(method, problem, rounds=rounds, seed=seed, trajectories=len(GRID)):
        w = state.w
    return w


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Train in all ways on every division of the rows; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL
    loaded = load_splits(data, scale.repetitions, seed, scale.block)
    rows = repeat(scale.repetitions, lambda r: runs(loaded.splits[r], r, scale, seed), tell)
    found = Repeated(tuple(rows), loaded.overlap)
    return Findings(
        f"FedAvg beside centralised training: {loaded.name}",
        tuple(claims(found)),
        _notes(loaded, scale),
        {"central": _draw(found)},
        {
            "table": found.table(("method",), ("accuracy", "objective")),
            "posteriors": list(posteriors(found)),
            "runs": rows,
        },
    )


EXPERIMENT = Experiment(
    "fedavg-central",
    "FedAvg against centralised training on ten divisions, clients at random or by label, by the Bayesian t-test",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "four divisions, 15 rounds, coarser images",
)


def posteriors(found: Repeated) -> Iterator[dict[str, Any]]:
    """Yield the posterior of FedAvg's test accuracy less that of centralised training."""
    correlation = found.overlap / (1.0 + found.overlap)  # test rows over all rows; 0 where divisions share none
    for method in (IID, SHARDS):
        for other in (SMALL, LARGE_BATCH):
            d = found.values("accuracy", method=method) - found.values("accuracy", method=other)
            p = bayesian_t_test(d, correlation, ROPE)
            row = {"method": method, "less": other, "mean": p.mean, "worse": p.below, "equivalent": p.within}
            yield row | {"better": p.above}


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge posterior probabilities: at least 0.95 one way or the other, else open."""
    for row in posteriors(found):
        right = row["equivalent"] if row["method"] == IID else row["worse"]
        what = "is equivalent, within a point," if row["method"] == IID else "is worse by more than a point"
        joined = "to" if row["method"] == IID else "than"
        words = ", ".join(f"{k} {row[k]:.3f}" for k in ("worse", "equivalent", "better"))
        yield Claim(
            f"{row['method']}: it {what} {joined} {row['less']} rows a step",
            True if right >= SURE else False if right <= 1.0 - SURE else None,
            f"difference {100 * row['mean']:+.2f} points; probabilities: {words}",
        )


def _notes(data: SplitData, scale: CentralScale) -> tuple[str, ...]:
    rows = data.splits[0]
    return (
        f"Data: {data.name}, {data.about}{len(rows.y):,} rows to train and {len(rows.y_test):,} to test on, "
        f"{scale.repetitions} divisions, {scale.rounds} rounds of one epoch; step sizes of {GRID}.",
        f"The Bayesian t-test takes the correlation of divisions as the share of test rows; equivalent is within "
        f"{100 * ROPE:g} point, and {SURE:.0%} of the posterior decides.",
    )


def _draw(found: Repeated) -> Any:
    """Draw test accuracies, and the posterior probabilities of the differences."""
    figure, axes = blank(2, width=4.6, height=3.3)
    named = tuple(r | {"": "ten clients"} for r in found.rows)
    draw_bars(axes[0], Repeated(named), "accuracy", "", "method")
    low = min(r["accuracy"] for r in found.rows)
    axes[0].set_ylim(max(0.0, low - 0.1), 1.0)
    panel(axes[0], y="test accuracy, mean and s.d.")
    legend(figure, axes[0], columns=4)
    shown = list(posteriors(found))
    for i, row in enumerate(shown):
        left = 0.0
        for kind, colour in (("worse", "0.35"), ("equivalent", "0.8"), ("better", "0.6")):
            axes[1].barh(i, row[kind], left=left, color=colour)
            left += row[kind]
    axes[1].set_yticks(range(len(shown)), [f"{r['method'][8:]}\nless {r['less']}" for r in shown], fontsize=7)
    panel(axes[1], "FedAvg worse (dark), equivalent (light), better (middle)", "posterior probability")
    return figure
