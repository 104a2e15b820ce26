"""FedAvg and agnostic federated learning on three clients, rows divided at random and by label.

1. Three clients, each a domain: rows at random (equal sizes; 70, 20 and 10 % of them), or by label (all rows; all, 30 %
   and 10 % of the clients' rows). By label, a client holds a run of consecutive classes: 0-3, 4-6, 7-9 of ten.
2. Multinomial logistic regression with l2 = 0.001. A client is tested on rows of its own kind that nobody trained on.
3. Several divisions into training and test rows; on each, exactly: the minimiser of the pooled loss, where FedAvg and
   FedSGD are to arrive, and the minimax solution, where AFL is to arrive.
4. Differences between the two models on the same rows, with intervals over the divisions.
5. On the first division the methods themselves, each with the best step sizes of a small grid: how far the worst
   client's training objective is above its least value, over rounds and floats sent.

The comparison is the usual demonstration of AFL (Mohri, Sivek, Suresh, ICML 2019) on images; its sizes are chosen here.
"""

from __future__ import annotations

from typing import Any

from fedconvex.papers.agnostic_clients.claims import difference_rows, judge, notes, tables
from fedconvex.papers.agnostic_clients.data import load_splits
from fedconvex.papers.agnostic_clients.figures import draw_clients, draw_runs
from fedconvex.papers.agnostic_clients.runs import FULL, LARGE, QUICK, DivisionRun, ExactModel, division_runs, solved
from fedconvex.papers.findings import Experiment, Findings, Progress, progress_part

__all__ = ["EXPERIMENT"]


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Solve on every division of the rows, run the methods on the first; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL if data is None else LARGE
    tell(0.0, "reading")
    loaded = load_splits(data, scale.seeds, seed, scale.block)
    models: list[ExactModel] = []
    runs: list[DivisionRun] = []
    work = len(scale.divisions) * scale.seeds
    for j, division in enumerate(scale.divisions):
        for s in range(scale.seeds):
            tell(0.6 * (j * scale.seeds + s) / work, f"{division.name}: exact solutions, {s + 1} of {scale.seeds}")
            models += solved(loaded, division, s, seed)
    for j, division in enumerate(d for d in scale.divisions if d.name in scale.runs):
        n = len(scale.runs)
        at = progress_part(tell, 0.6 + 0.4 * j / n, 0.6 + 0.4 * (j + 1) / n, f"{division.name}: ")
        runs += division_runs(loaded, division, scale, seed, at)
    title = f"FedAvg and AFL on three clients, rows divided at random and by label: {loaded.name}"
    differences = list(difference_rows(models, loaded.overlap))
    found = tuple(judge(models, runs, differences))
    figures = {"clients": draw_clients(models, differences), "runs": draw_runs(runs, models)}
    return Findings(title, found, notes(loaded, scale, models, runs), figures, tables(models, runs, differences))


EXPERIMENT = Experiment(
    "afl-clients",
    "FedAvg and agnostic federated learning on three clients, rows divided at random and by label",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST, Fashion-MNIST); default the bundled digits",
    "two kinds of division, three seeds, coarser images and fewer rounds",
)
