"""People's activities: FedAvg's models, local models and MOCHA, person by person, and what a report's table compares.

1. Tasks of labels -1 and +1: people who sit or do not (HAR), or pairs of digits. Shuffles: three quarters of every
   task's rows to train on.
2. One model for all, with softmax (two classes: the logistic loss) and with the hinge: the exact minimisers, where
   FedAvg goes with small steps. A model of every task's own, and mean-regularised models (MOCHA's), with the hinge; all
   certified.
3. lam by the error on a fifth of the training rows, then all training rows.
4. Error of every task, which is the mean squared error of labels 0 and 1: mean and standard deviation over tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import iterate
from fedconvex.families.multitask.experiments.compared_models import errors
from fedconvex.families.multitask.experiments.har import TEST, digit_pairs, load_tasks
from fedconvex.federation import Federation
from fedconvex.losses import Hinge, Logistic
from fedconvex.methods import MOCHA
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.repeated import Repeated, draw_bars, higher, repeat
from fedconvex.papers.style import COLOURS, blank, panel
from fedconvex.problems import Independent, MeanRegularised, MultiTaskProblem, Pooled

SOFTMAX, HINGE, LOCAL, MOCHA_ = KINDS = ("FedAvg, softmax", "FedAvg, hinge", "local", "MOCHA")
_REPORT = {"FedAvg": (0.51, 0.62), "MOCHA": (0.46, 0.11)}  # Table 2: labelled mean squared error (standard deviation)
SMITH = (0.46, 0.11)  # Smith et al. (NIPS 2017), Table 1: multi-task error in per cent (standard error)
TOL, ROUNDS, EVERY = 1e-2, 5000, 5  # relative gap of every model; most rounds; rounds between certificates


class PeopleScale(NamedTuple):
    """How large the experiment is."""

    shuffles: int
    lambdas: tuple[float, ...]
    digits: int  # of the bundled tasks


FULL = PeopleScale(5, (1e-3, 1e-2, 1e-1), 10)
LARGE = PeopleScale(5, (1e-5, 1e-4, 1e-3, 1e-2), 10)
QUICK = PeopleScale(3, (1e-3, 1e-2), 4)
_QUICK_LARGE = PeopleScale(3, (1e-3,), 4)


def fit(kind: str, train: Federation, lam: float) -> tuple[np.ndarray, float]:
    """Return the models of all tasks (m, d) and the certified gap over the objective's value."""
    relation: Any = {LOCAL: Independent(lam), MOCHA_: MeanRegularised(lam, 0.5 * lam)}.get(kind, Pooled(lam))
    if kind in (SOFTMAX, HINGE):
        loss = Logistic() if kind == SOFTMAX else Hinge()
        best = MultiTaskProblem(train, loss, relation, normalisation="mean").solve()
        return np.asarray(best.w), float(best.gap / best.value)
    problem = MultiTaskProblem(train, Hinge(), relation, normalisation="mean")
    method = MOCHA(local_steps=4 * int(train.sizes.max()))
    for t, state in iterate(method, problem, rounds=ROUNDS):
        if t % EVERY == 0:
            value, gap = (float(x[0]) for x in method.measure(problem, state))
            if gap <= TOL * value:
                break
    return np.asarray(state.w[0]), gap / value


def people(tasks: Federation, number: int, scale: PeopleScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the test error of every task and kind of model of one shuffle."""
    train, test = tasks.split(TEST, seed=1000 * seed + number)  # 1
    inner, held = train.split(0.2, seed=1000 * seed + number)
    for kind in KINDS:
        asked = scale.lambdas if len(scale.lambdas) > 1 else ()
        found = {lam: float(errors(fit(kind, inner, lam)[0], held).mean()) for lam in asked}  # 3
        lam = max(scale.lambdas, key=lambda x: (-found.get(x, 0.0), x))
        W, gap = fit(kind, train, lam)
        for label, error in zip(test.labels.tolist(), errors(W, test).tolist(), strict=True):  # 4
            yield {"model": kind, "task": str(label), "repetition": number, "error": error, "lam": lam, "gap": gap}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Fit all kinds of models on every shuffle; data: a path as for `load_tasks`."""
    small, large = (QUICK, FULL) if data is None else (_QUICK_LARGE, LARGE)
    scale, name = small if quick else large, "pairs of digits" if data is None else Path(data).stem
    tasks = digit_pairs(scale.digits, seed) if data is None else load_tasks(data)
    rows = repeat(scale.shuffles, lambda r: people(tasks, r, scale, seed), tell)
    found = Repeated(tuple(rows), TEST / (1.0 - TEST))
    over = over_tasks(found)
    return Findings(
        f"FedAvg, local models and MOCHA, task by task: {name}",
        tuple(claims(found)),
        _notes(tasks, scale, found),
        {"people": _draw(found)},
        {
            "table": over.table(("model",), ("error %", "over tasks")),
            "tasks": found.table(("model", "task"), ("error",)),
        },
    )


EXPERIMENT = Experiment(
    "har",
    "errors of FedAvg's models (softmax, hinge), local models and MOCHA, task by task, beside a report's table",
    study,
    "optional npz with X, y (-1, +1), client (HAR: sitting or not, 21 people); default pairs of bundled digits",
    "three shuffles, four digits, two values of lam (people: one)",
)


# ---------------------------------------------------------------- what came out


def over_tasks(found: Repeated) -> Repeated:
    """Return the mean error of the tasks in per cent, and its standard deviation over tasks, of every shuffle."""
    out = []
    for kind in found.kinds("model"):
        for number in sorted(found.kinds("repetition")):
            e = [100.0 * r["error"] for r in found.where(model=kind, repetition=number).rows]
            row = {"model": kind, "repetition": number, "error %": float(np.mean(e))}
            out.append(row | {"over tasks": float(np.std(e, ddof=1))})
    return Repeated(tuple(out), found.overlap)


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the shuffles, which allow for the rows that they share."""
    over = over_tasks(found)

    def minus(one: str, other: str) -> list[Any]:
        return [(f"{one} less {other}, points", over.minus("error %", {"model": one}, {"model": other}))]

    gap = max(r["gap"] for r in found.rows)
    yield Claim(
        f"Every model is certified to {TOL:.0%} of its objective", gap <= TOL, f"largest {gap:.1e}", refutable=True
    )
    yield higher("MOCHA errs less than FedAvg's model with the same loss", minus(HINGE, MOCHA_))
    yield higher("MOCHA errs less than local models", minus(LOCAL, MOCHA_))
    text = "MOCHA's errors spread less over tasks than those of FedAvg's model"
    spread = over.minus("over tasks", {"model": HINGE}, {"model": MOCHA_})
    yield higher(text, [("standard deviations over tasks, difference, points", spread)])


def _notes(tasks: Federation, scale: PeopleScale, found: Repeated) -> tuple[str, ...]:
    chosen = {kind: sorted({r["lam"] for r in found.where(model=kind).rows}) for kind in KINDS}
    (fed, fed_sd), (multi, multi_sd) = _REPORT.values()
    return (
        f"Data: {tasks.K} tasks of {tasks.sizes.min()} to {tasks.sizes.max()} rows, {tasks.d} features; "
        f"{scale.shuffles} shuffles, lam of {', '.join(f'{x:g}' for x in scale.lambdas)}; MOCHA's models with "
        "lam1 = lam and lam2 = lam/2.",
        "Chosen: " + "; ".join(f"{kind} {', '.join(f'{x:g}' for x in v)}" for kind, v in chosen.items()) + ".",
        f"A report's Table 2 prints FedAvg {fed} ({fed_sd}) and MOCHA {multi} ({multi_sd}), labelled MSE. The second "
        f"pair equals the multi-task error of Smith et al. (2017), {SMITH[0]} ({SMITH[1]}), which is in per cent: as a "
        "mean squared error of labels 0 and 1 it would be 0.0046. A mean squared error of 0.51 would be worse than "
        "guessing for labels 0 and 1 (0.25). The two numbers do not share a unit, and are not compared with ours.",
    )


def _draw(found: Repeated) -> Any:
    """Draw the error of every task, and the means over tasks of every shuffle."""
    figure, axes = blank(2, width=4.4, height=3.3)
    tasks = sorted(found.kinds("task"))
    for j, kind in enumerate(KINDS):
        mean = [100.0 * found.values("error", model=kind, task=t).mean() for t in tasks]
        look = {"marker": ".", "markersize": 4, "linewidth": 1.0, "label": kind, "color": COLOURS[j % len(COLOURS)]}
        axes[0].plot(range(len(tasks)), sorted(mean), **look)
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    panel(axes[0], "tasks in order of their error", "task", "test error (%), mean of the shuffles")
    axes[0].legend(frameon=False, fontsize=7.5)
    over = tuple(r | {"": "mean over tasks"} for r in over_tasks(found).rows)
    draw_bars(axes[1], Repeated(over), "error %", "", "model")
    panel(axes[1], "all tasks", y="test error (%), mean and s.d.")
    return figure
