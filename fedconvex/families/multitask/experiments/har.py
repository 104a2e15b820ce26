"""Global, local and multi-task models of people: Smith, Chiang, Sanjabi, Talwalkar (NIPS 2017), Table 1, Figures 1-3.

1. 10 shuffles: three quarters of every task's rows to train on, a quarter to test on.
2. lam of {1e-5, ..., 10} for each kind of model by 5-fold cross-validation on the training rows, folds within tasks;
   every model that is compared has a certified gap of at most 5 % of its objective; of equal errors the largest lam.
3. Models for that lam: global and local ones to a certified gap of 0.1 %; multi-task ones, with Omega learned, by
   JointMOCHA from zero, to a joint gap of 1 %, for W and Omega together.
4. The baselines once more, stopped early: after so many passes at the same lam, and by the protocol of the paper's
   reference implementation (at most 500 passes over rows in their order, an end when its objective changes by less
   than 1e-5, lam from the last fold only).
5. Test error of every task; mean over tasks; over the shuffles means, standard errors, paired differences.
6. Stragglers: see `fedconvex.families.multitask.experiments.stragglers`.

The bundled tasks are pairs of digits: task (a, b) tells a from b, every image is in one task only. A classifier of a
against b is about a difference of two of ten models, so that 45 tasks have about nine dimensions. These tasks are
related but not equal: one global model is useless there, by construction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, finite, numeric, whole
from fedconvex.datasets import load_bundled
from fedconvex.driver import run as run_method
from fedconvex.families.multitask.experiments.compared_models import (
    GLOBAL,
    KINDS,
    LOCAL,
    MULTI,
    Fit,
    choose,
    errors,
    joint_problem,
    path,
    reference,
    stopped,
)
from fedconvex.families.multitask.experiments.stragglers import StragglerScale, straggler_study
from fedconvex.federation import Federation
from fedconvex.methods import JointMOCHA, NodeWork
from fedconvex.papers.archive import read_archive
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.intervals import Interval, mean_interval, standard_error
from fedconvex.papers.style import COLOURS, DASHED, band, blank, legend, panel

_LAMBDAS = tuple(10.0**e for e in range(1, -6, -1))  # of the paper
TEST, FOLDS, SHUFFLES = 0.25, 5, 10  # of the paper
COARSE, FINE, JOINT = 0.05, 1e-3, 0.01  # relative gaps: in cross-validation, of baselines, of multi-task models
EPOCHS, MOST_ROUNDS = 2.0, 20_000  # chosen here: of JointMOCHA
PASSES = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # the last is the reference implementation's
PAPER = {GLOBAL: (2.23, 0.30), LOCAL: (1.34, 0.21), MULTI: (0.46, 0.11)}  # Table 1, HAR: percent, standard error
HAR_SHAPE = (21, 561)
KEYS = ("X", "y", "client")


class HarScale(NamedTuple):
    """How large the experiment is."""

    shuffles: int
    lambdas: tuple[float, ...]  # decreasing
    parts: int  # folds of cross-validation
    passes: tuple[int, ...]  # after which baselines are stopped
    digits: int  # of the bundled tasks
    stragglers: StragglerScale


HAR = HarScale(
    SHUFFLES, _LAMBDAS, FOLDS, PASSES, 10,
    StragglerScale(
        0.01, (0.25, 1.0, 4.0, 16.0, 64.0), (0.9, 0.5, 0.1), (8, 32, 128), (1.0, 0.3, 0.1, 0.03, 0.01),
        (0.0, 0.5, 0.75, 0.9), 2000, 3,
    ),
)  # fmt: skip
QUICK = HarScale(
    3, (1e-1, 1e-2, 1e-3), 3, (1, 10, 100), 5,
    StragglerScale(0.01, (1.0, 4.0), (0.5,), (8,), (0.3, 0.1), (0.0, 0.9), 500, 1),
)  # fmt: skip


class TaskModels(NamedTuple):
    """One shuffle: what was chosen, certified and measured for each kind of model."""

    number: int
    lam: dict[str, float]
    gap: dict[str, float]  # relative, certified
    tasks: dict[str, list[float]]  # test error of every task
    rows: dict[str, float]  # test error over rows
    rounds: int  # of JointMOCHA
    compared: float  # the largest relative gap of a model that was compared in cross-validation
    early: list[tuple[str, int, float, float]]  # kind, passes, error, relative gap, at the chosen lam
    reference: dict[str, tuple[float, int, float, float]]  # lam, passes, error, relative gap

    def error(self, kind: str) -> float:
        """Mean of the tasks' test errors."""
        return float(np.mean(self.tasks[kind]))


class PairedErrors(NamedTuple):
    """Differences of errors over shuffles."""

    plain: Interval  # 95 %, Student's t
    corrected: Interval  # for overlapping training rows
    signs: tuple[int, int, int]  # positive, zero, negative

    @property
    def above(self) -> bool | None:
        """Whether the corrected interval lies above zero: false if it lies below, None if it holds zero."""
        return self.corrected.above()

    def __str__(self) -> str:
        more, equal, less = self.signs
        return (
            f"{100 * self.plain.mean:.2f} ± {100 * self.plain.half:.2f} points (± {100 * self.corrected.half:.2f} "
            f"corrected for overlap), more in {more}, equal in {equal}, less in {less} shuffles"
        )


def paired(differences: Any) -> PairedErrors:
    """Return the mean of differences (J,) with 95 % intervals, and their signs.

    Examples
    --------
    >>> from fedconvex.families.multitask.experiments.har import paired
    >>> found = paired([1.0, 3.0])
    >>> found.plain.mean, round(found.plain.half, 3), found.above
    (2.0, 12.706, None)
    """
    d = np.asarray(differences, dtype=float)
    signs = int(np.sum(d > 1e-12)), int(np.sum(np.abs(d) <= 1e-12)), int(np.sum(d < -1e-12))
    return PairedErrors(mean_interval(d), mean_interval(d, TEST / (1.0 - TEST)), signs)


# ---------------------------------------------------------------- data


def digit_pairs(digits: int = 10, seed: int = 0) -> Federation:
    """Return the tasks of telling digit a from digit b, a < b: scikit-learn's images, each dealt to one task.

    Parameters
    ----------
    digits : int
        0, ..., digits - 1 are used: at least 3.
    seed : int
        Of the deal.

    Examples
    --------
    >>> from fedconvex.families.multitask.experiments.har import digit_pairs
    >>> digit_pairs()
    Federation(45 clients, 1797 rows, 64 features, dense)
    """
    whole("digit_pairs: digits", digits, low=3, high=10)
    images, rng = load_bundled("digits", standardised=False), np.random.default_rng(seed)
    X, y, names = [], [], []
    for k in range(digits):
        others = [j for j in range(digits) if j != k]
        for i, row in enumerate(rng.permutation(np.flatnonzero(images.y == k))):
            j = others[i % len(others)]
            X.append(images.X[row] / 16.0)
            y.append(1.0 if k < j else -1.0)
            names.append(f"{min(j, k)}-{max(j, k)}")
    return Federation.from_arrays(np.array(X), np.array(y), np.array(names))


def load_tasks(path: str | os.PathLike[str]) -> Federation:
    """Read tasks from an npz archive.

    Parameters
    ----------
    path : path
        With X (n, d), y (n,) of -1 and +1, client (n,), the task of every row. Every task has at least 20 rows.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is no such archive, or its arrays do not fit.
    """
    who, arrays = f"--data {Path(path).name}", read_archive(path, KEYS)
    X, y, client = (arrays[key] for key in KEYS)
    if X.ndim != 2 or X.size == 0 or y.shape != X.shape[:1] or client.shape != y.shape:
        raise bad(who, "have shapes (n, d), (n,), (n,) for X, y, client", f"{X.shape}, {y.shape}, {client.shape}")
    X, y = numeric(f"{who}: X", X), numeric(f"{who}: y", y)
    finite(f"{who}: X", X)
    if not np.isin(y, (-1.0, 1.0)).all() or np.unique(y).size < 2:
        raise bad(f"{who}: y", "hold both -1 and +1 and nothing else", f"{np.unique(y)[:5].tolist()}")
    federation = Federation.from_arrays(X, y, client)
    if federation.K < 2:
        raise bad(f"{who}: client", "name at least two tasks", "one")
    if federation.sizes.min() < 20:
        raise bad(f"{who}: client", "leave at least 20 rows to every task", int(federation.sizes.min()))
    if not np.add.reduceat(np.sum(X[np.argsort(client, kind="stable")] ** 2, axis=1), federation.ptr[:-1]).all():
        raise bad(f"{who}: X", "differ from zero in every task", "a task of zeros")
    return federation


# ---------------------------------------------------------------- measuring


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Fit all kinds of models on every shuffle, then study stragglers; data: a path as for `load_tasks`."""
    scale, name = QUICK if quick else HAR, "pairs of digits" if data is None else Path(data).stem
    tasks = digit_pairs(scale.digits, seed) if data is None else load_tasks(data)
    n, outcomes = scale.shuffles, []
    for number in range(n):
        at = progress_part(tell, 0.7 * number / n, 0.7 * (number + 1) / n, f"shuffle {number + 1} of {n}, ")
        outcomes.append(
            finished_part(f"shuffle {number}", partial(shuffle, tasks, number, scale, seed, at), (TaskModels,))
        )
    train, _ = tasks.split(TEST, seed=1000 * seed)
    slow = straggler_study(train, scale.stragglers, seed, progress_part(tell, 0.7, 1.0))  # 6
    har = (tasks.K, tasks.d) == HAR_SHAPE
    return Findings(
        f"Multi-task learning on {name}: converged models, and stragglers (Smith et al. 2017)",
        (*_claims(outcomes, har), *slow.claims),
        (*_notes(tasks, outcomes, scale, har), *slow.notes),
        {"errors": _draw_errors(outcomes, har), "fair_and_unfair": _draw_early(outcomes, scale), **slow.figures},
        {
            "prediction": _prediction(outcomes, har),
            "shuffles": [_row(o) for o in outcomes],
            "baselines": _baselines(outcomes, scale),
            **slow.tables,
        },
    )


EXPERIMENT = Experiment(
    "mocha-har",
    "errors of converged global, local and multi-task models; MOCHA and others under stragglers",
    study,
    "optional npz with X, y (-1, +1), client (HAR: sitting or not, 21 people); default pairs of bundled digits",
    "fewer shuffles, folds, values of lam",
)


def shuffle(tasks: Federation, number: int, scale: HarScale, seed: int, tell: Progress) -> TaskModels:
    """Divide the rows, choose lam for every kind of model, fit with certificates, test; stop baselines early."""
    train, test = tasks.split(TEST, seed=1000 * seed + number)  # 1
    lam, gap, by_task, by_row, worst, rounds = {}, {}, {}, {}, 0.0, 0
    for j, kind in enumerate(KINDS):
        tell(0.3 * j, f"cross-validation of {kind} models")
        lam[kind], _, compared = choose(kind, train, scale.lambdas, scale.parts, COARSE, [seed, number])  # 2
        worst = max(worst, compared)
        upto = [x for x in scale.lambdas if x >= lam[kind]]
        *_, fit = path(kind, train, upto, COARSE if kind == MULTI else FINE)  # 3
        if kind == MULTI:
            fit, rounds = federated(train, fit)
        by_task[kind], gap[kind] = errors(fit.W, test).tolist(), fit.gap  # 5
        by_row[kind] = float(np.average(by_task[kind], weights=test.sizes))
    tell(0.9, "baselines that stop early")
    early, protocol = [], {}
    for kind in (GLOBAL, LOCAL):  # 4
        for count, fit in stopped(kind, train, lam[kind], scale.passes):
            early.append((kind, count, float(errors(fit.W, test).mean()), fit.gap))
        count, fit = reference(kind, train, [x for x in scale.lambdas if x != 1.0], max(scale.passes), scale.parts)
        protocol[kind] = (fit.lam, count, float(errors(fit.W, test).mean()), fit.gap)
    return TaskModels(number, lam, gap, by_task, by_row, rounds, worst, early, protocol)


def federated(train: Federation, near: Fit) -> tuple[Fit, int]:
    """Return the models of JointMOCHA, from zero, at a gap of 1 % of a lower bound of the optimum; and its rounds."""
    problem = joint_problem(train, near.lam)
    method = JointMOCHA(work=NodeWork(epochs=EPOCHS))
    result = run_method(method, problem, rounds=MOST_ROUNDS, tol=JOINT * near.lower, record_every=20, progress=False)
    value, gap = float(result.trace.value[-1]), float(result.gap)
    return Fit(near.lam, result.w, value, value - gap), result.rounds


# ---------------------------------------------------------------- what came out


def _claims(outcomes: Sequence[TaskModels], har: bool) -> Iterator[Claim]:
    gap = {kind: max(o.gap[kind] for o in outcomes) for kind in KINDS}
    error = {kind: np.array([o.error(kind) for o in outcomes]) for kind in KINDS}
    said = {kind: _percent(error[kind]) for kind in KINDS}
    yield Claim(
        "Every model that is compared is converged under its own certificate: relative gap at most 0.1 % for local "
        "and global models, joint gap at most 1 % for W and Omega",
        gap[MULTI] <= JOINT and max(gap[LOCAL], gap[GLOBAL]) <= FINE,
        "largest over the shuffles: " + ", ".join(f"{kind} {100 * gap[kind]:.3g} %" for kind in KINDS),
        refutable=True,
    )
    for small, large, text in (
        (MULTI, LOCAL, "Multi-task models err less than converged local ones"),
        (LOCAL, GLOBAL, "Converged local models err less than the converged global one"),
    ):
        found = paired(error[large] - error[small])
        yield Claim(text, found.above, f"{small} {said[small]}, {large} {said[large]}; paired {found}")
    if har:
        most = PAPER[MULTI][0]
        mean = mean_interval(100 * error[MULTI], TEST / (1.0 - TEST))
        text = f"The error of multi-task models is below the paper's {most:g} %"
        yield Claim(text, mean.below(most), f"{said[MULTI]}; {mean} (95 %, corrected for overlap)")
    for kind in (LOCAL, GLOBAL):
        stopped_error, gaps = (np.array([o.reference[kind][i] for o in outcomes]) for i in (2, 3))
        found = paired(stopped_error - error[kind])
        yield Claim(
            f"Stopped by the reference implementation's rule, {kind} models err more than converged ones",
            found.above,
            f"stopped {_percent(stopped_error)} at relative gaps of {100 * gaps.min():.3g} to "
            f"{100 * gaps.max():.3g} %, converged {said[kind]}; paired {found}",
        )


def _mean(values: Any) -> tuple[float, float]:
    """Return mean and standard error in percent."""
    v = 100 * np.asarray(values, dtype=float)
    return float(v.mean()), standard_error(v)


def _percent(values: Any) -> str:
    mean, error = _mean(values)
    return f"{mean:.2f} % (s.e. {error:.2f})"


def _prediction(outcomes: Sequence[TaskModels], har: bool) -> list[dict[str, Any]]:
    out = []
    for kind in KINDS:
        over_tasks, over_rows = _mean([o.error(kind) for o in outcomes]), _mean([o.rows[kind] for o in outcomes])
        lams = [o.lam[kind] for o in outcomes]
        row: dict[str, Any] = {
            "models": kind,
            "error %": f"{over_tasks[0]:.2f}",
            "s.e.": f"{over_tasks[1]:.2f}",
            "over rows %": f"{over_rows[0]:.2f}",
            "rows s.e.": f"{over_rows[1]:.2f}",
            "largest gap %": f"{100 * max(o.gap[kind] for o in outcomes):.3g}",
            "lam": ", ".join(f"{x:g} x {lams.count(x)}" for x in sorted(set(lams), reverse=True)),
        }
        if har:
            row |= {"paper %": PAPER[kind][0], "paper s.e.": PAPER[kind][1]}
        out.append(row)
    return out


def _row(o: TaskModels) -> dict[str, Any]:
    row: dict[str, Any] = {"shuffle": o.number}
    for kind in KINDS:
        row |= {f"{kind} error": o.error(kind), f"{kind} over rows": o.rows[kind]}
        row |= {f"{kind} lam": o.lam[kind], f"{kind} gap": o.gap[kind]}
    row |= {"rounds": o.rounds, "gap in cross-validation": o.compared}
    for kind, (lam, passes, error, gap) in o.reference.items():
        row |= {f"{kind} stopped error": error, f"{kind} stopped lam": lam}
        row |= {f"{kind} stopped passes": passes, f"{kind} stopped gap": gap}
    return row


def _baselines(outcomes: Sequence[TaskModels], scale: HarScale) -> list[dict[str, Any]]:
    out = []
    for kind in (GLOBAL, LOCAL):
        found: list[tuple[str, list[float], list[float]]] = []
        for passes in scale.passes:
            mine = [(e, g) for o in outcomes for k, p, e, g in o.early if (k, p) == (kind, passes)]
            found.append((f"{passes} passes, lam as converged", [e for e, _ in mine], [g for _, g in mine]))
        rule = [o.reference[kind] for o in outcomes]
        found.append(("reference rule, its lam", [r[2] for r in rule], [r[3] for r in rule]))
        found.append(("converged", [o.error(kind) for o in outcomes], [o.gap[kind] for o in outcomes]))
        for how, error, gap in found:
            mean, se = _mean(error)
            row = {"models": kind, "how": how, "error %": f"{mean:.2f}", "s.e.": f"{se:.2f}"}
            out.append(row | {"least gap %": f"{100 * min(gap):.3g}", "largest gap %": f"{100 * max(gap):.3g}"})
    return out


def _notes(tasks: Federation, outcomes: Sequence[TaskModels], scale: HarScale, har: bool) -> tuple[str, ...]:
    sizes = tasks.sizes
    notes = [
        f"Data: {tasks.K} tasks of {sizes.min()} to {sizes.max()} rows, {tasks.d} features as they are, no intercept; "
        f"hinge loss averaged per task, {scale.shuffles} shuffles, {scale.parts} folds, lam of "
        f"{', '.join(f'{x:g}' for x in scale.lambdas)}.",
        "Taken from the paper: shuffles, shares, lam, folds, the hinge loss, models of one w, of one w_t each, and "
        "with Omega learned (its eq. 4 without the L2 term). From its reference implementation: averages per task, "
        "(lam/2) tr(W'Omega^-1 W), no intercept. Chosen here: of equal errors in cross-validation the largest lam; "
        "one lam for all local models.",
        f"In cross-validation every model has a relative gap of at most "
        f"{100 * max(o.compared for o in outcomes):.3g} %. JointMOCHA needed {min(o.rounds for o in outcomes)} to "
        f"{max(o.rounds for o in outcomes)} rounds of {EPOCHS:g} epochs.",
        "Shuffles share rows, so that standard errors and plain intervals are too small; the corrected ones allow for "
        "it roughly. Claims are judged by the plain ones, as the paper's standard errors are plain.",
        "The reference implementation's own multi-task models are not run: it does not form W anew when Omega changes.",
    ]
    if har:
        notes.append(
            "Comparable with the paper: errors. It counts 30 people, but prints 210 to 306 training rows, which is "
            "what these 21 people of the public training part have."
        )
    return tuple(notes)


# ---------------------------------------------------------------- figures


_CONVERGED = "converged here, mean and 95 %", {"color": COLOURS[0], "marker": "o", "markersize": 6}
_STOPPED = "stopped by the reference's rule", {"color": COLOURS[1], "marker": "s", "markersize": 5}
_PRINTED = "paper, 1.96 s.e.", {"color": "0.2", "marker": "D", "markersize": 4.5}


def _draw_errors(outcomes: Sequence[TaskModels], har: bool) -> Any:
    """Draw test errors of every shuffle, joined across kinds, with means and their 95 % intervals."""
    figure, (axis,) = blank(1, width=4.8, height=3.6)
    for o in outcomes:
        axis.plot(range(3), [100 * o.error(k) for k in KINDS], color="0.75", linewidth=0.8, marker=".", markersize=4)
    for j, kind in enumerate(KINDS):
        shown = [(mean_interval([100 * o.error(kind) for o in outcomes]), -0.08, *_CONVERGED)]
        if kind in (GLOBAL, LOCAL):
            shown.append((mean_interval([100 * o.reference[kind][2] for o in outcomes]), 0.08, *_STOPPED))
        if har:
            shown.append((Interval(PAPER[kind][0], 1.96 * PAPER[kind][1]), 0.2, *_PRINTED))
        for found, shift, label, look in shown:
            name = label if j == 0 else None
            axis.errorbar(j + shift, found.mean, found.half, capsize=3, linestyle="none", label=name, **look)
    axis.plot([], [], color="0.75", linewidth=0.8, marker=".", label="one shuffle")
    axis.set_xticks(range(3), list(KINDS))
    axis.set_xlim(-0.4, 2.5)
    axis.set_ylim(bottom=0.0)
    axis.set_ylabel("test error, mean over tasks (%)")
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_early(outcomes: Sequence[TaskModels], scale: HarScale) -> Any:
    """Draw errors and certified gaps of baselines over passes, beside their converged values and multi-task models."""
    figure, axes = blank(2, width=4.0, height=3.6)
    x, multi = np.array(scale.passes), 100 * np.mean([o.error(MULTI) for o in outcomes])
    for j, kind in enumerate((GLOBAL, LOCAL)):
        mine = [[(e, g) for k, p, e, g in o.early if k == kind] for o in outcomes]
        error, gap = 100 * np.array(mine)[:, :, 0], 100 * np.array(mine)[:, :, 1]
        se = [standard_error(e) for e in error.T]
        colour = COLOURS[j]
        look = {"color": colour, "marker": "os"[j], "markersize": 4}
        axes[0].errorbar(x, error.mean(axis=0), 1.96 * np.array(se), label=f"{kind}, stopped", **look)
        done = 100 * np.mean([o.error(kind) for o in outcomes])
        axes[0].axhline(done, color=colour, linewidth=1.0, linestyle=DASHED, label=f"{kind}, converged")
        axes[1].plot(x, gap.mean(axis=0), label=kind, **look)
        band(axes[1], x, gap.min(axis=0), gap.max(axis=0), colour, 0.15)
    axes[0].axhline(multi, color=COLOURS[2], linewidth=1.4, label="multi-task, converged")
    for axis in axes:
        panel(axis, x="passes over the rows", log="x")
        shown = [p for p in scale.passes if p not in (2, 20, 200)]
        axis.set_xticks(shown, [str(p) for p in shown])
        axis.minorticks_off()
    axes[0].set_yscale("log")
    low, high = axes[0].get_ylim()
    ticks = [v for v in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= v <= high]
    axes[0].set_yticks(ticks, [f"{v:g}" for v in ticks])
    axes[0].minorticks_off()
    axes[1].set_ylim(0.0, 105.0)
    axes[0].set_ylabel("test error (%)")
    axes[1].set_ylabel("certified gap (% of the objective)")
    legend(figure, axes[0], columns=3)
    return figure
