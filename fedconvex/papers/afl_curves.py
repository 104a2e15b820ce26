"""Loss and accuracy of every client over rounds: FedAvg, AFL and AgnosticFedAvg on three clients.

1. Three clients, rows at random in equal parts, or by label in unequal parts (100, 30, 10 % of each client's rows).
2. Multinomial logistic regression, l2 = 0.001, from w = 0, full participation.
3. FedAvg and AgnosticFedAvg with five local steps, AFL with one gradient step; step sizes with the least training
   objective after the last round: the pooled one for FedAvg, the worst client's for the others.
4. Test loss and accuracy of every client on held-out rows of its own kind, over the rounds, on several divisions.

A survey on federated learning from several sources draws such curves for networks on MNIST and Fashion-MNIST (its
Figures 4 and 5); they print no numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg
from fedconvex.papers.agnostic_clients.data import DIVISIONS, L2, ClientDivision, SplitData, load_splits, problems_of
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.intervals import Interval, every
from fedconvex.papers.repeated import Repeated, draw_curves, higher
from fedconvex.papers.step_grids import tuned_run
from fedconvex.papers.style import blank, grid, legend, panel
from fedconvex.report import domain_scores

IID, LABEL = DIVISIONS[0], DIVISIONS[3]
LOCAL, SAME = 5, 0.02  # local steps; a difference in accuracy that counts as none
METHODS = ("FedAvg", "AFL", "AgnosticFedAvg")


class CurvesScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    rounds: int
    steps: tuple[float, ...]
    domain_steps: tuple[float, ...]
    block: int  # of pixels averaged, bundled digits


FULL = CurvesScale(10, 200, (0.3, 1.0, 3.0), (0.1, 1.0), 1)
LARGE = CurvesScale(5, 100, (0.3, 1.0, 3.0), (0.1, 1.0), 1)
QUICK = CurvesScale(3, 60, (1.0, 3.0), (0.1,), 2)


def methods(scale: CurvesScale) -> Iterator[tuple[str, Any, np.ndarray | None]]:
    """Yield name, method with the step sizes of its trajectories, and their step sizes of the domain weights."""
    alone = np.array(scale.steps)
    pair, lam = np.repeat(alone, len(scale.domain_steps)), np.tile(scale.domain_steps, len(alone))
    yield METHODS[0], FedAvg(step_size=alone / LOCAL, local_steps=LOCAL), None
    yield METHODS[1], AFL(step_size=pair, domain_step_size=lam), lam
    yield METHODS[2], AgnosticFedAvg(step_size=pair / LOCAL, domain_step_size=lam, local_steps=LOCAL), lam


def curves(data: SplitData, division: ClientDivision, s: int, scale: CurvesScale, seed: int) -> list[dict[str, Any]]:
    """Return a row for every method, recorded round and client of one division."""
    problem, test = problems_of(data, division, s, seed)  # 1, 2
    marks = {*range(0, scale.rounds, max(1, scale.rounds // 20)), scale.rounds}
    out = []
    for name, method, lam in methods(scale):  # 3
        run = tuned_run(name, method, lam, problem, 0.0, scale.rounds, marks, seed, lambda share, doing: None)
        for t, w in zip(run.rounds.tolist(), run.models, strict=True):
            scores = domain_scores(problem, w, test)  # 4
            row = {"division": division.name, "method": name, "repetition": s, "round": t, "step": run.step_size}
            out += [
                row | {"client": str(k), "loss": float(loss), "accuracy": float(accuracy)}
                for k, loss, accuracy in zip(scores.domains, scores.loss, scores.accuracy, strict=True)
            ]
    return out


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run the methods on every division of the rows; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL if data is None else LARGE
    loaded, rows = load_splits(data, scale.repetitions, seed, scale.block), []
    for j, division in enumerate((IID, LABEL)):
        for s in range(scale.repetitions):
            tell((j + s / scale.repetitions) / 2, f"{division.name}, {s + 1} of {scale.repetitions}")
            rows += finished_part(f"{division.name} {s}", partial(curves, loaded, division, s, scale, seed))
    found = Repeated(tuple(rows), loaded.overlap)
    table = found.where(round=scale.rounds).table(("division", "method", "client"), ("loss", "accuracy"))
    return Findings(
        f"Every client over rounds, FedAvg, AFL and AgnosticFedAvg: {loaded.name}",
        tuple(claims(found)),
        _notes(loaded, scale),
        {"curves": _draw(found, "accuracy"), "losses": _draw(found, "loss"), "worst": _draw_worst(found)},
        {"table": table, "curves": list(found.rows)},
    )


EXPERIMENT = Experiment(
    "afl-curves",
    "test loss and accuracy of every client over rounds: FedAvg, AFL, AgnosticFedAvg",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST, Fashion-MNIST), or a folder of CIFAR-10's binary "
    "files; default the bundled digits",
    "three divisions, 60 rounds, coarser images, few step sizes",
)


# ---------------------------------------------------------------- what came out


def worst(found: Repeated) -> Repeated:
    """Return the least accuracy, largest loss and spread of the clients' accuracies, for every setting and round."""
    keys = ("division", "method", "repetition", "round")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found.rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    out = []
    for setting, mine in groups.items():
        a, losses = [r["accuracy"] for r in mine], [r["loss"] for r in mine]
        row = dict(zip(keys, setting, strict=True))
        out.append(row | {"least accuracy": min(a), "largest loss": max(losses), "spread": max(a) - min(a)})
    return Repeated(tuple(out), found.overlap)


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge the last round by intervals over the divisions."""
    ends = worst(found)
    ends = ends.where(round=max(ends.kinds("round")))

    def gain(division: ClientDivision, what: str, sign: float) -> list[tuple[str, Interval]]:
        mine = ends.where(division=division.name)
        pairs = [(m, mine.minus(what, {"method": m}, {"method": METHODS[0]})) for m in METHODS[1:]]
        return [(m, Interval(sign * d.mean, d.half)) for m, d in pairs]

    yield higher("By label: the least accuracy of a client is above FedAvg's", gain(LABEL, "least accuracy", 1.0))
    yield higher("By label: the largest test loss of a client is below FedAvg's", gain(LABEL, "largest loss", -1.0))
    yield higher(
        "By label: the clients' accuracies are nearer to each other than FedAvg's", gain(LABEL, "spread", -1.0)
    )
    iid = gain(IID, "least accuracy", 1.0)
    same = [d.within(SAME) for _, d in iid]
    yield Claim(
        f"At random: the least accuracy is FedAvg's, within {100 * SAME:g} points",
        every(same),
        "; ".join(f"{m} {d}" for m, d in iid),
    )


def _notes(data: SplitData, scale: CurvesScale) -> tuple[str, ...]:
    rows = data.splits[0]
    return (
        f"Data: {data.name}, {data.about}{len(rows.y):,} rows to train and {len(rows.y_test):,} to test on, "
        f"{scale.repetitions} divisions; clients by label hold 100, 30 and 10 % of their classes' rows; l2 = {L2:g}.",
        f"Chosen here: {scale.rounds} rounds, {LOCAL} local steps, step sizes of {scale.steps} (a fifth of them for "
        f"local steps) times {scale.domain_steps} for the domain weights, the best on each division's training rows.",
        "The survey's figures show networks, and no numbers: only directions compare. Intervals are 95 %, t, with the "
        "variance of Nadeau and Bengio (2003) where divisions share rows.",
    )


def _draw(found: Repeated, what: str) -> Any:
    """Draw what every client has on test rows over the rounds: a row for each division, a panel for each method."""
    figure, axes = grid((2, len(METHODS)), width=3.3, height=2.7, sharey=True)
    panels = itertools.product((LABEL, IID), METHODS)
    for axis, (division, method) in zip(axes, panels, strict=True):
        mine = found.where(division=division.name, method=method)
        draw_curves(axis, mine, "round", what, "client", marked=True)
        panel(axis, f"{division.name}: {method}", "rounds", f"test {what}" if method == METHODS[0] else "")
    for axis in axes[len(METHODS) - 1 :: len(METHODS)]:
        axis.set_ylim(bottom=-0.03 * axis.get_ylim()[1])  # a curve at 0 is seen; a band may go below
        axis.legend(frameon=False, fontsize=7.5)
    return figure


def _draw_worst(found: Repeated) -> Any:
    """Draw the client that is served worst, in accuracy and in loss, method by method."""
    figure, axes = blank(4, width=3.0, height=3.3)
    extremes, pairs = worst(found), itertools.product((LABEL, IID), ("least accuracy", "largest loss"))
    for axis, (division, what) in zip(axes, pairs, strict=True):
        draw_curves(axis, extremes.where(division=division.name), "round", what, "method", marked=True)
        panel(axis, f"{division.name}: {what}", "rounds")
        axis.set_ylim(bottom=-0.03 * axis.get_ylim()[1])
    legend(figure, axes[0], columns=3)
    return figure
