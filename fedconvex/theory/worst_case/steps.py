"""The step that is best in the worst case, and how worst cases grow with rounds, local steps and heterogeneity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, function, instance, real, vector, whole, wrong_type
from fedconvex.theory.bound import Quantity
from fedconvex.theory.worst_case.classes import Problems
from fedconvex.theory.worst_case.exact import LIMIT, WorstCase, worst_case
from fedconvex.theory.worst_case.metrics import Metric
from fedconvex.theory.worst_case.oracles import Method

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True)
class BestStep:
    """The step that minimises the exact worst case, beside the one that a theorem recommends.

    Attributes
    ----------
    step : float
        Of all that were tried, the one with the smallest certified upper end.
    worst : WorstCase
        There.
    recommended : float or None
        The step of the theorem.
    worst_there : WorstCase or None
        At that step.
    steps, lower, upper : array (n,)
        All steps that were tried, in order, with the certified ends of the worst case.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, best_step, gradient_descent
    >>> best = best_step(lambda eta: gradient_descent(eta, 1), Problems(), steps=[1.0, 1.5, 1.9], refinements=0)
    >>> best.step, best.steps, round(best.worst.value, 4)
    (1.5, array([1. , 1.5, 1.9]), 0.125)
    """

    step: float
    worst: WorstCase
    recommended: float | None
    worst_there: WorstCase | None
    steps: np.ndarray = field(repr=False)
    lower: np.ndarray = field(repr=False)
    upper: np.ndarray = field(repr=False)

    @property
    def loss(self) -> float:
        """Worst case at the recommended step over the best one, at least; NaN without a recommended step."""
        return math.nan if self.worst_there is None else self.worst_there.lower / self.worst.upper

    def __str__(self) -> str:
        text = f"best step {self.step:.4g}: worst case {self.worst.upper:.6g} ({self.worst.quantity.words})"
        if self.worst_there is not None:
            text += (
                f"\n  recommended {self.recommended:.4g}: {self.worst_there.upper:.6g}, {self.loss:.3g} times as much"
            )
        return text


def best_step(
    method: Callable[[float], Method],
    problems: Problems,
    metric: str | Quantity | Metric = "last",
    *,
    steps: Sequence[float] | None = None,
    recommended: float | None = None,
    refinements: int = 6,
    limit: int = LIMIT,
) -> BestStep:
    """Return the step with the least exact worst case: a scan, then golden sections around its best point.

    Parameters
    ----------
    method : function step -> method
        For example ``lambda eta: fedavg(eta, local_steps=2, rounds=3)``.
    problems, metric, limit
        As for `worst_case`.
    steps : sequence of float, optional
        The scan; by default ten steps from 0.05/L to 2/L.
    recommended : float, optional
        The step that a theorem asks for, whose worst case is found as well.
    refinements : int
        Number of golden sections; each shrinks the interval to 0.62 of its length.

    Raises
    ------
    ValueError
        If steps are not positive and increasing; as `worst_case`.

    Examples
    --------
    Gradient descent, one step: the last iterate is best at 1.5/L, with L D^2/8.

    >>> from fedconvex.theory.worst_case import Problems, best_step, gradient_descent
    >>> best = best_step(lambda eta: gradient_descent(eta, 1), Problems(), steps=[1.0, 1.5, 1.9], recommended=1.0)
    >>> round(best.step, 2), round(best.worst.upper, 4), round(best.loss, 3)
    (1.5, 0.125, 1.333)
    """
    function("best_step: method", method)
    instance("best_step: problems", problems, Problems)
    scan = np.geomspace(0.05, 2.0, 10) / problems.L if steps is None else vector("best_step: steps", steps)
    if not (scan.size and scan[0] > 0.0 and np.all(np.diff(scan) > 0.0)):
        raise bad("best_step: steps", "be positive and increasing", scan.tolist())
    more = [] if recommended is None else [real("best_step: recommended", recommended, low=0.0, strict=True)]
    refinements = whole("best_step: refinements", refinements)
    tried: dict[float, WorstCase] = {}

    def worst(eta: float) -> float:
        if eta not in tried:
            tried[eta] = worst_case(method(eta), problems, metric, limit=limit)
        return tried[eta].upper

    _search(worst, scan.tolist(), refinements)
    for eta in more:
        worst(eta)
    best, order = min(tried, key=lambda eta: tried[eta].upper), sorted(tried)
    lower, upper = (np.array([getattr(tried[eta], end) for eta in order]) for end in ("lower", "upper"))
    there = tried[more[0]] if more else None
    return BestStep(best, tried[best], recommended, there, np.array(order), lower, upper)


def _search(worst: Callable[[float], float], scan: list[float], refinements: int) -> None:
    """Scan, then golden sections between the neighbours of the best point."""
    j = int(np.argmin([worst(eta) for eta in scan]))
    low, high = scan[max(j - 1, 0)], scan[min(j + 1, len(scan) - 1)]
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    for _ in range(refinements if high > low else 0):
        if worst(left) <= worst(right):
            high, right = right, left
            left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + GOLDEN * (high - low)


class Exponent(NamedTuple):
    """A power law fitted to worst cases.

    Attributes
    ----------
    value : float
        Slope of log(worst case) over log(x), by least squares.
    low, high : float
        95 % interval of the slope, from how far the points are from a line; infinite with two points.
    local : tuple of float
        Slopes between neighbours: where they drift, there is no power law yet.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import fitted_exponent
    >>> fit = fitted_exponent({1: 1.0, 2: 0.5, 4: 0.3})
    >>> round(fit.value, 2), [round(s, 2) for s in fit.local]  # not yet a power law
    (-0.87, [-1.0, -0.74])
    """

    value: float
    low: float
    high: float
    local: tuple[float, ...]


def fitted_exponent(worst: Mapping[float, Any]) -> Exponent:
    """Return the power law worst case = c x^a that fits best, over rounds, local steps, heterogeneity or whatever x is.

    Parameters
    ----------
    worst : mapping from x to WorstCase or number
        At least two positive x, positive worst cases.

    Raises
    ------
    ValueError
        If there are fewer than two points, or one is not positive.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import fitted_exponent
    >>> fit = fitted_exponent({1: 3.0, 2: 1.5, 4: 0.75})
    >>> round(fit.value, 6), [round(s, 6) for s in fit.local]
    (-1.0, [-1.0, -1.0])
    """
    instance("fitted_exponent: worst", worst, Mapping)
    try:
        points = sorted((float(x), float(w)) for x, w in worst.items())
    except (TypeError, ValueError):
        raise wrong_type("fitted_exponent: worst", "map numbers to worst cases", worst) from None
    x, y = np.array(points).reshape(-1, 2).T
    if len(x) < 2 or not (x[0] > 0.0 and np.all(y > 0.0) and np.isfinite(x).all() and np.isfinite(y).all()):
        raise bad("fitted_exponent: worst", "have at least two points, all positive and finite", points)
    u, v = np.log(x), np.log(y)
    centred = u - u.mean()
    slope = float(centred @ v / (centred @ centred))
    half = math.inf
    if len(x) > 2:
        from scipy.stats import t

        rest = v - v.mean() - slope * centred
        half = float(t.ppf(0.975, len(x) - 2) * math.sqrt(rest @ rest / (len(x) - 2) / (centred @ centred)))
    return Exponent(slope, slope - half, slope + half, tuple((np.diff(v) / np.diff(u)).tolist()))
