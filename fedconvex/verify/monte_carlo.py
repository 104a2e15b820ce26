"""Confidence intervals from independent runs, and what speaks against them.

Student's t assumes that the mean of the runs is nearly normal. That fails where an event of small probability has a
large effect: no run may have shown it (then the interval is narrow and wrong), or a few did (then it is too narrow). So
an interval is doubted, and a verdict that rests on it is INCONCLUSIVE, where

* a client, or a row of a client, is drawn so rarely that all runs together miss it with probability above
  1 - confidence, by the probabilities that the method declares;
* the runs do not vary, something is drawn, and the method does not declare its probabilities: an event of probability
  below p in a run is unseen in n runs with probability (1 - p)^n.

Where fewer than `EFFECTIVE` runs make the variance, e = (sum d^2)^2 / sum d^4 with d the deviations from the mean, the
interval is made `EFFECTIVE`/e times wider. That is no proof either: tails that no run has shown are assumed away.

An interval of the theorem's own (quantiles by order statistics) assumes nothing, and is not doubted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.theorems import Setting, Theorem
from fedconvex.theorems.parts.chances import Chance, rarest_draw
from fedconvex.theorems.parts.rounding import natural_size
from fedconvex.theorems.parts.setting import is_random
from fedconvex.theory.bound import Bound

FIRST = 64  # trajectories of the first look; every further one doubles them
EFFECTIVE = 10.0
SMALL = 0.2  # of the bound: how precisely less than that is known changes no verdict


class Look(NamedTuple):
    """When Monte Carlo stops."""

    precision: float
    confidence: float
    most: int


class Limits(NamedTuple):
    """Between which numbers a quantity has to lie: the bound, with 1e-10 of its terms for their own rounding."""

    value: float
    least: float
    most: float
    size: float  # what rounding is small or large against
    slack: float  # of the bound's own terms
    floor: float  # no value of the quantity is below

    @classmethod
    def of(cls, theorem: Theorem, s: Setting, bound: Bound) -> Limits:
        """Return the limits; an equation has one below."""
        slack = slack_of(bound)
        least = bound.value - slack if theorem.equation else -math.inf
        size = abs(bound.value) or natural_size(theorem.quantity, s)
        return cls(bound.value, least, bound.value + slack, size, slack, theorem.quantity.least)


def slack_of(bound: Bound) -> float:
    """Return 1e-10 of a bound's terms: what it is allowed for their own rounding."""
    size = max([abs(bound.value), *(abs(v) for v in bound.terms.values() if math.isfinite(v))])
    return 1e-10 * size if math.isfinite(bound.value) else 0.0


class Seen(NamedTuple):
    """What the runs showed."""

    mean: float
    low: float
    high: float
    rounding: float  # how far double precision may have moved the mean
    runs: int
    doubt: str  # what speaks against the interval, or nothing


def monte_carlo(theorem: Theorem, s: Setting, limits: Limits, look: Look) -> Seen:
    """Run trajectories until the answer is clear and precise; their number doubles.

    The interval is widened for the number of looks (Bonferroni), so that stopping early does not bias it.
    """
    values, size, looks = np.empty(0), FIRST, max(1, math.ceil(math.log2(look.most / FIRST)) + 1)
    tail, rarest, drawn = (1.0 - look.confidence) / (2.0 * looks), rarest_draw(s), is_random(s)
    while True:
        batch = min(size, look.most - values.size)
        values = np.concatenate([values, theorem.draw(s, [s.rounds], s.seed + values.size, batch)[0]])
        if not np.isfinite(values).all():  # some runs diverge: the mean is infinite, or no number
            mean = math.inf if np.isposinf(values).any() else math.nan
            return Seen(mean, mean, mean, 0.0, values.size, "")
        n, (mean, low, high) = values.size, theorem.estimate(s, values, tail)
        off, doubt = theorem.rounding(s, mean), ""  # narrower intervals than off say nothing more
        if theorem.interval is None and drawn:
            doubt, wide = _doubt(values, off, rarest, look.confidence), _width(values)
            low, high = mean - wide * (mean - low), mean + wide * (high - mean)
        clear = limits.least - off <= low <= high <= limits.most + off
        clear = clear or low - off > limits.most or high + off < limits.least
        fine = 0.5 * (high - low) <= max(look.precision * max(abs(mean), SMALL * abs(limits.value)), off)
        if n >= look.most or (clear and fine and not doubt):
            return Seen(mean, low, high, off, n, doubt)
        size = n


def _doubt(values: np.ndarray, off: float, rarest: Chance | None, confidence: float) -> str:
    """Return what speaks against Student's t, or nothing."""
    n, d2 = values.size, (values - values.mean()) ** 2
    if rarest is not None and rarest.missed(n) > 1.0 - confidence:
        return f"{rarest.what} is drawn with probability {rarest.probability:.2g} in a run, and all may have missed it"
    if rarest is None and not np.max(d2) > off * off:
        unseen = 1.0 - (1.0 - confidence) ** (1.0 / n)
        return f"runs do not vary: an event of probability below {unseen:.2g} may be unseen"
    return ""


def _width(values: np.ndarray) -> float:
    """Return by how much Student's interval is made wider."""
    d2 = (values - values.mean()) ** 2
    if not d2.max() > 0.0:
        return 1.0
    share = d2 / d2.max()
    return max(1.0, EFFECTIVE * float(np.sum(share**2) / np.sum(share) ** 2))
