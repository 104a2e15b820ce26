"""Instances of related tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedconvex.families.multitask.theorems.dual_methods import dual_steps
from fedconvex.problems import Independent, MeanRegularised, MultiTaskProblem, Pooled, Precision
from fedconvex.theorems.kit import *


@example("twin tasks", "4 tasks with the same single row and targets of mean zero, one model for all, squared loss")
def twin_tasks() -> MultiTaskProblem:
    """D - min D contracts by (1 - s)^2 in a round with exact local solutions, where Theorem 1 says 1 - s; s = 1/6."""
    return MultiTaskProblem(Federation.from_clients([([[1.0]], [t - 1.5]) for t in range(4)]), Squared(), Pooled(0.2))


@example("twin tasks, l2 = 9", "4 tasks with the same single row and targets of mean zero, one model, squared loss")
def ridged_twins() -> MultiTaskProblem:
    """s = 0.9: a node that works is nearly done."""
    return MultiTaskProblem(twin_tasks.make().federation, Squared(), Pooled(9.0))


@example("one task", "1 task with one row, squared loss, l2 = 9")
def one_task() -> MultiTaskProblem:
    """s = 0.9, and the duality gap is 1/s times the dual suboptimality."""
    return MultiTaskProblem(Federation.from_clients([([[1.0]], [1.0])]), Squared(), Independent(9.0))


@example("one mild task", "1 task with one row, squared loss, l2 = 0.43")
def one_mild_task() -> MultiTaskProblem:
    """As `one_task`, with s = 0.3."""
    return MultiTaskProblem(one_task.make().federation, Squared(), Independent(0.43))


@example("opposed tasks", "6 tasks with single rows of opposite signs, one model for all, hinge loss")
def opposed_tasks() -> MultiTaskProblem:
    """D - min D falls from 6 by 1.2 in each of five rounds; Theorem 2 says by half of that in the first."""
    return MultiTaskProblem(Federation.from_clients([([[(-1.0) ** t]], [1.0]) for t in range(6)]), Hinge(), Pooled(0.2))


def _tasks(m: int, d: int, most: int) -> Federation:
    """Tasks of 6 to so many rows whose models are a common one plus their own."""
    rng = np.random.default_rng(most)
    common, pairs = rng.normal(size=d), []
    for n in rng.integers(6, most + 1, size=m):
        X = rng.normal(size=(int(n), d))
        z = X @ (common + 0.7 * rng.normal(size=d)) + 0.4 * rng.normal(size=int(n))
        pairs.append((X, np.where(z > 0.0, 1.0, -1.0)))
    return Federation.from_clients(pairs)


@example("related tasks", "6 related tasks of 6 to 40 rows, pulled towards their mean, smoothed hinge")
def related_tasks() -> MultiTaskProblem:
    """Unequal sizes, losses averaged per task."""
    return MultiTaskProblem(_tasks(6, 4, 40), SmoothedHinge(0.5), MeanRegularised(1.0, 0.5), "mean")


@example("related tasks, hinge", "6 related tasks of 6 to 40 rows, pulled towards their mean, hinge")
def related_tasks_hinge() -> MultiTaskProblem:
    """Not smooth, on the rows of `related_tasks`."""
    return MultiTaskProblem(related_tasks.make().federation, Hinge(), MeanRegularised(1.0, 0.5), "mean")


@example("wide tasks", "5 tasks of 6 to 12 rows with 20 features, neighbours on a path alike, smoothed hinge")
def wide_tasks() -> MultiTaskProblem:
    """Tasks with fewer rows than features: all four rules give another sigma', 2.21, 2.44, 2.82 and 5."""
    path = np.eye(5, k=1) + np.eye(5, k=-1)
    return MultiTaskProblem(_tasks(5, 20, 12), SmoothedHinge(), Precision.laplacian(path, 1.0, 0.5))


@example("breast cancer, tasks", "breast_cancer, 8 hospitals as related tasks, smoothed hinge", "real")
def breast_cancer_tasks() -> MultiTaskProblem:
    """Hospitals of very different sizes, every one with a model of its own."""
    return MultiTaskProblem(breast_cancer.make().federation, SmoothedHinge(0.5), MeanRegularised(1.0, 0.5), "mean")


@example("breast cancer, tasks, hinge", "breast_cancer, 8 hospitals as related tasks, hinge", "real")
def breast_cancer_tasks_hinge() -> MultiTaskProblem:
    """Not smooth, on the rows of `breast_cancer_tasks`."""
    return MultiTaskProblem(breast_cancer.make().federation, Hinge(), MeanRegularised(1.0, 0.5), "mean")


def as_tasks(problem: Problem) -> MultiTaskProblem:
    """Return the clients of a problem as tasks that are pulled towards their mean, with the same loss."""
    return MultiTaskProblem(problem.federation, problem.loss, MeanRegularised(1.0, 0.5), "mean")


def tasks_space(*losses: str, rules: Sequence[str] = ("pencil",)) -> Space:
    """Return where to look for sharp tasks: one model for all, none in common, a common mean, neighbours on a path.

    Parameters
    ----------
    *losses : str
    rules : sequence of str
        How sigma' is chosen; of several the search takes any.
    """

    def problem(tiny: Tiny) -> MultiTaskProblem:
        ridge, p = float(tiny.knobs["ridge"]), tiny.problem()
        path = np.eye(p.federation.K, k=1) + np.eye(p.federation.K, k=-1)
        relations = (
            lambda: Pooled(ridge),
            lambda: Independent(ridge),
            lambda: MeanRegularised(1.0, ridge),
            lambda: Precision.laplacian(path, 1.0, ridge),
        )
        return MultiTaskProblem(p.federation, p.loss, relations[int(tiny.knobs["relation"])]())

    def method(k: Mapping[str, float]) -> MethodRule:
        return dual_steps(sigma=rules[int(k.get("rule", 0))])

    knobs: dict[str, Whole | Real] = {"ridge": Real(0.01, 100.0), "relation": Whole(0, 3)}
    knobs |= {"rule": Whole(0, len(rules) - 1)} if len(rules) > 1 else {}
    return Space(method, knobs, losses=losses, rounds=(1, 4), problem=problem, start=from_zero)
