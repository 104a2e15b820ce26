"""Six activities: runs of FedAvg and of MOCHA with softmax models, their errors person by person, and their rounds.

1. People with six activities (HAR: X, activity, client), or clients of bundled digits 0 to 5, upright or turned by a
   quarter. Three quarters of every client's rows to train on, softmax loss, l2.
2. FedAvg as it is run: everybody, one epoch of mini-batches of 32 rows a round, one model for all; the step size of a
   grid with the least training objective after the last round.
3. MOCHA: models drawn towards their mean, one pass over the rows a round, until the gap is 1 % of the objective; local
   models the same way, without the mean.
4. Errors per client on the test rows. Rounds: FedAvg's until its objective is within 1 % of the certified minimum for
   good, MOCHA's until its gap is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, finite, numeric
from fedconvex.driver import iterate
from fedconvex.families.multitask.experiments.har import TEST
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import MOCHA, FedAvg
from fedconvex.papers.archive import read_archive
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.repeated import Repeated, draw_bars, higher, repeat
from fedconvex.papers.style import blank, panel
from fedconvex.papers.writers import labelled_images
from fedconvex.problems import Independent, MeanRegularised, MultiTaskProblem, Problem

CLASSES, BATCH, L2, CLOSE = 6, 32, 1e-3, 0.01
STEPS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FEDAVG, LOCAL, MOCHA_ = KINDS = ("FedAvg", "local", "MOCHA")


class ActivityScale(NamedTuple):
    """How large the experiment is."""

    shuffles: int
    rounds: int  # of FedAvg
    most: int  # rounds of MOCHA


FULL, QUICK = ActivityScale(5, 150, 500), ActivityScale(2, 10, 200)


def load_activities(path: Any) -> Federation:
    """Read people from an npz archive with X (n, d), activity (n,) of 1 to 6, client (n,).

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or its arrays do not fit.
    """
    keys, who = ("X", "activity", "client"), f"--data {Path(path).name}"
    arrays = read_archive(path, keys)
    X, y, client = (arrays[k] for k in keys)
    if X.ndim != 2 or X.size == 0 or y.shape != X.shape[:1] or client.shape != y.shape:
        raise bad(
            who, "have shapes (n, d), (n,), (n,) for X, activity, client", f"{X.shape}, {y.shape}, {client.shape}"
        )
    X, y = numeric(f"{who}: X", X), numeric(f"{who}: activity", y)
    finite(f"{who}: X", X)
    if np.unique(y).tolist() != list(range(1, CLASSES + 1)):
        raise bad(f"{who}: activity", f"hold 1, ..., {CLASSES}", f"{np.unique(y)[:8].tolist()}")
    federation = Federation.from_arrays(X, y - 1.0, client)
    if federation.K < 2 or federation.sizes.min() < 20:
        raise bad(f"{who}: client", "name at least two people of 20 rows each", f"{federation.sizes.tolist()[:5]}")
    return federation


def digit_clients(seed: int) -> Federation:
    """Return eight clients of the bundled digits 0 to 5: four of them see them turned by a quarter."""
    _, images, y = labelled_images(None)
    some = np.random.default_rng(seed).permutation(np.flatnonzero(y < CLASSES))
    client = np.arange(some.size) % 8
    rows = np.where((client < 4)[:, None, None], images[some], np.rot90(images[some], axes=(1, 2)))
    X = np.hstack([rows.reshape(some.size, -1) / 16.0, np.ones((some.size, 1))])
    return Federation.from_arrays(X, y[some], client)


def client_errors(W: np.ndarray, test: Federation) -> np.ndarray:
    """Return the share of rows whose largest score is not the label's, (m,), of models (m, C, d)."""
    z = np.einsum("icd,id->ic", np.repeat(W, test.sizes, axis=0), test.X)
    return np.add.reduceat((z.argmax(axis=1) != test.y).astype(float), test.ptr[:-1]) / test.sizes


def averaged(train: Federation, scale: ActivityScale, seed: int) -> tuple[np.ndarray, float, float, float]:
    """Return FedAvg's last model with the best step, its gap over the minimum, its rounds (inf: never), that step."""
    problem = Problem(train, Softmax(CLASSES), L2)
    least, steps = problem.solve(), np.array(STEPS)
    method, path = FedAvg(step_size=steps, epochs=1, batch_size=BATCH, shrink=True), []
    for _, state in iterate(method, problem, rounds=scale.rounds, seed=seed, trajectories=steps.size):
        path.append(np.nan_to_num(problem.value(state.w), nan=np.inf))
    values = np.array(path)
    best = int(values[-1].argmin())
    above = np.flatnonzero(values[:, best] > (1.0 + CLOSE) * least.value)
    rounds = float(above[-1] + 1) if above.size and above[-1] + 1 < len(values) else np.inf
    return state.w[best], float(values[-1, best] / least.value - 1.0), rounds, STEPS[best]


def related(train: Federation, relation: Any, scale: ActivityScale, seed: int) -> tuple[np.ndarray, float, float]:
    """Return MOCHA's models (m, C, d), its gap over the objective, and its rounds."""
    problem = MultiTaskProblem(train, Softmax(CLASSES), relation, normalisation="mean")
    method = MOCHA(epochs=1.0)
    for t, state in iterate(method, problem, rounds=scale.most, seed=seed):
        value, gap = (float(x[0]) for x in method.measure(problem, state))
        if gap <= CLOSE * value:
            return state.w[0], gap / value, float(t)
    return state.w[0], gap / value, np.inf


def shuffle(people: Federation, number: int, scale: ActivityScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the test error of every client and kind of model, the gap and the rounds."""
    key = 1000 * seed + number
    train, test = people.split(TEST, seed=key)
    for kind in KINDS:
        if kind == FEDAVG:
            w, gap, rounds, step = averaged(train, scale, key)
            W = np.broadcast_to(w, (train.K, *w.shape))
        else:
            relation: Any = Independent(L2) if kind == LOCAL else MeanRegularised(L2, 0.5 * L2)
            (W, gap, rounds), step = related(train, relation, scale, key), np.nan
        for label, error in zip(test.labels.tolist(), client_errors(W, test).tolist(), strict=True):
            row = {"model": kind, "client": str(label), "repetition": number, "error %": 100.0 * error, "gap": gap}
            yield row | {"rounds": rounds, "step": step}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run both methods on every shuffle; data: a path as for `load_activities`."""
    scale = QUICK if quick else FULL
    people = digit_clients(seed) if data is None else load_activities(data)
    rows = repeat(scale.shuffles, lambda r: shuffle(people, r, scale, seed), tell)
    found = over_clients(rows)
    name = "digits 0 to 5, upright and turned" if data is None else Path(data).stem
    return Findings(
        f"Six activities, FedAvg and MOCHA as they are run: {name}",
        tuple(claims(found)),
        _notes(people, scale),
        {"har-activities": _draw(found)},
        {"table": found.table(("model",), ("error %", "over clients", "rounds", "gap")), "clients": rows},
    )


EXPERIMENT = Experiment(
    "har-activities",
    "six activities: errors of runs of FedAvg, of local models and MOCHA with softmax, and the rounds that they take",
    study,
    "optional npz with X, activity (1 to 6), client (HAR); default bundled digits, some turned",
    "two shuffles, few rounds",
)


# ---------------------------------------------------------------- what came out


def over_clients(rows: list[dict[str, Any]]) -> Repeated:
    """Return the mean and standard deviation of the error over clients, gap and rounds, of every shuffle."""
    out = []
    for kind, number in dict.fromkeys((r["model"], r["repetition"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["repetition"]) == (kind, number)]
        e = [r["error %"] for r in mine]
        row = {
            "model": kind,
            "repetition": number,
            "error %": float(np.mean(e)),
            "over clients": float(np.std(e, ddof=1)),
        }
        out.append(row | {"gap": mine[0]["gap"], "rounds": mine[0]["rounds"]})
    return Repeated(tuple(out), TEST / (1.0 - TEST))


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the shuffles."""
    ends = [r for r in found.rows if r["model"] != FEDAVG]
    gap = max(r["gap"] for r in ends)
    yield Claim(
        f"MOCHA's and local models are certified to {CLOSE:.0%}", gap <= CLOSE, f"largest {gap:.1e}", refutable=True
    )

    def minus(one: str, other: str, what: str = "error %") -> list[Any]:
        return [(f"{one} less {other}, {what}", found.minus(what, {"model": one}, {"model": other}))]

    yield higher("MOCHA errs less than FedAvg", minus(FEDAVG, MOCHA_))
    yield higher("MOCHA errs less than local models", minus(LOCAL, MOCHA_))
    yield higher("MOCHA's errors spread less over clients than FedAvg's", minus(FEDAVG, MOCHA_, "over clients"))
    rounds = {kind: found.values("rounds", model=kind) for kind in (FEDAVG, MOCHA_)}
    listed = "; ".join(
        f"{k}: " + ", ".join("never" if np.isinf(v) else f"{v:.0f}" for v in x) for k, x in rounds.items()
    )
    text = f"MOCHA is within {CLOSE:.0%} of its optimum in fewer rounds than FedAvg of its own, on every shuffle"
    yield Claim(text, bool((rounds[MOCHA_] < rounds[FEDAVG]).all()), listed)


def _notes(people: Federation, scale: ActivityScale) -> tuple[str, ...]:
    return (
        f"Data: {people.K} clients of {people.sizes.min()} to {people.sizes.max()} rows, {people.d} features, "
        f"{CLASSES} classes; {scale.shuffles} shuffles; l2 = {L2:g} of FedAvg, lam1 = {L2:g} and lam2 = {0.5 * L2:g} "
        "of MOCHA, which are not tuned.",
        f"FedAvg: {scale.rounds} rounds, steps of {STEPS}; rounds count until the objective stays within {CLOSE:.0%} "
        "of the certified minimum. A round is one pass over the rows and a model each way in both.",
    )


def _draw(found: Repeated) -> Any:
    """Draw errors and their spread over clients."""
    figure, axes = blank(2, width=4.2, height=3.3)
    named = Repeated(tuple(r | {"": "all clients"} for r in found.rows))
    for axis, what in zip(axes, ("error %", "over clients"), strict=True):
        draw_bars(axis, named, what, "", "model")
    axes[0].legend(frameon=False, fontsize=8)
    panel(axes[0], "test error, mean over clients", y="%, mean and s.d. of shuffles")
    panel(axes[1], "standard deviation over clients", y="points, mean and s.d. of shuffles")
    return figure
