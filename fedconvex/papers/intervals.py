"""Means over repetitions with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean with its interval."""

    mean: float
    half: float  # half the width

    def __str__(self) -> str:
        return f"{short(self.mean)} ± {short(self.half)}"

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half

    def above(self, x: float = 0.0) -> bool | None:
        """Whether the interval lies above x: false if it lies below, None if it holds x."""
        return True if self.low > x else False if self.high < x else None

    def below(self, x: float = 0.0) -> bool | None:
        """Whether the interval lies below x: false if it lies above, None if it holds x."""
        return Interval(-self.mean, self.half).above(-x)

    def within(self, margin: float) -> bool | None:
        """Whether the interval lies within a margin around 0: false if it lies beyond, None if it reaches over."""
        return every((self.above(-margin), self.below(margin)))


def every(verdicts: Iterable[bool | None]) -> bool | None:
    """Return False if a verdict is, else None if one is not there, else True.

    Examples
    --------
    >>> from fedconvex.papers.intervals import Interval, every
    >>> found = Interval(1.0, 0.5), Interval(0.1, 0.5)
    >>> found[0].above(0.0), every(v.above(0.0) for v in found), every([True, False, None])
    (True, None, False)
    """
    found = set(verdicts)
    return False if False in found else None if None in found else True


def short(x: float) -> str:
    """Return a number with three decimals, fewer where it is large."""
    return f"{x:.3f}" if abs(x) < 10.0 else f"{x:.1f}" if abs(x) < 1000.0 else f"{x:.1e}"


def standard_error(values: Any) -> float:
    """Return the standard error of the mean of values (n,)."""
    v = np.asarray(values, dtype=float)
    return float(v.std(ddof=1)) / math.sqrt(v.size)


def mean_interval(values: Any, overlap: float = 0.0, level: float = 0.95) -> Interval:
    """Return the mean of one number a repetition, or of paired differences, with its interval by Student's t.

    Repetitions that draw m test rows and n training rows from the same rows are not independent: the variance of the
    mean of J repetitions is then taken as s^2 (1/J + m/n).

    Parameters
    ----------
    values : array (J,)
    overlap : float
        m/n; 0 where repetitions share no rows.
    level : float

    Returns
    -------
    Interval
        Of NaN width for a single value.

    References
    ----------
    Nadeau, Bengio, "Inference for the generalization error", Machine Learning 52 (2003), 239-281.

    Examples
    --------
    >>> from fedconvex.papers.intervals import mean_interval
    >>> found = mean_interval([1.0, 2.0, 3.0])  # 2 -+ 4.303/sqrt(3)
    >>> round(found.low, 4), round(found.high, 4)
    (-0.4841, 4.4841)
    """
    v = np.asarray(values, dtype=float)
    J = v.size
    spread = float(v.std(ddof=1)) if J > 1 else math.nan
    quantile = float(stats.t.ppf(0.5 + 0.5 * level, max(J - 1, 1)))
    return Interval(float(v.mean()), quantile * spread * math.sqrt(1.0 / J + overlap))
