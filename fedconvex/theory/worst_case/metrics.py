"""What is made as large as possible: the last, the best, the mean iterate, distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedconvex._check import bad, wrong_type
from fedconvex.theory.bound import FROM_MINIMUM, LAST_SYNCHRONISED, SHADOW_AVERAGE, Dimension, Quantity
from fedconvex.theory.worst_case.oracles import Iterates, Oracle

Metric = Callable[[Oracle, Iterates], Any]


def last(problem: Oracle, run: Iterates) -> Any:
    """F(x^T) - F(x*)."""
    return problem.value(run.rounds[-1])


def best(problem: Oracle, run: Iterates) -> Any:
    """Minimum over t of F(x^t) - F(x*); of expected values where clients are sampled."""
    return [problem.value(x) for x in run.rounds]


def average(problem: Oracle, run: Iterates) -> Any:
    """Mean over t of F(x^t) - F(x*)."""
    return sum(problem.value(x) for x in run.rounds) / len(run.rounds)


def _mean_model(problem: Oracle, run: Iterates) -> Any:
    """F at the mean of x^1, ..., x^T, less F(x*)."""
    return problem.value(sum(run.rounds) / len(run.rounds))


def shadow(problem: Oracle, run: Iterates) -> Any:
    """Mean of F - F(x*) over the shadow iterates."""
    if not run.shadow:
        raise bad("the metric shadow", "have shadow iterates", "none", "return Iterates(rounds, shadow)")
    return sum(problem.value(x) for x in run.shadow) / len(run.shadow)


def distance(problem: Oracle, run: Iterates) -> Any:
    """‖x^T - x*‖^2."""
    away = run.rounds[-1] - problem.optimum
    return away @ away


def gradient(problem: Oracle, run: Iterates) -> Any:
    """‖grad F(x^T)‖^2."""
    g = problem.gradient(run.rounds[-1])
    return g @ g


METRICS: dict[str, tuple[Quantity, Metric]] = {
    "last": (LAST_SYNCHRONISED, last),
    "shadow": (SHADOW_AVERAGE, shadow),
    "best": (Quantity("least E F(x^t) - F* over the rounds t = 1..T", "suboptimality", **FROM_MINIMUM), best),
    "average": (Quantity("mean over rounds t = 1..T of E F(x^t) - F*", "mean suboptimality", **FROM_MINIMUM), average),
    "mean model": (Quantity("E F - F* of the mean of x^1, ..., x^T", "suboptimality", **FROM_MINIMUM), _mean_model),
    "distance": (
        Quantity("E‖x^T - x*‖^2 of the last iterate", "squared distance", Dimension.SQUARED_LENGTH, **FROM_MINIMUM),
        distance,
    ),
    "gradient": (
        Quantity("E‖grad F(x^T)‖^2 of the last iterate", "squared gradient", Dimension.SQUARED_GRADIENT, least=0.0),
        gradient,
    ),
}


def metric_of(metric: str | Quantity | Metric) -> tuple[Quantity, Metric]:
    """Return the quantity and the function of a metric given by name, by quantity or as a function."""
    if isinstance(metric, str):
        if metric not in METRICS:
            raise bad("worst_case: metric", f"be one of {', '.join(METRICS)}", metric)
        return METRICS[metric]
    if isinstance(metric, Quantity):
        for quantity, function in METRICS.values():
            if quantity is metric:
                return quantity, function
        raise bad("worst_case: metric", "be SHADOW_AVERAGE, LAST_SYNCHRONISED or a name", metric.words)
    if isinstance(metric, type) or not callable(metric):
        raise wrong_type("worst_case: metric", "be a name, a Quantity or a function (problem, iterates)", metric)
    words = (metric.__doc__ or "").strip().split("\n")[0] or getattr(metric, "__name__", "a metric")
    return Quantity(words, words), metric
