"""Intervals for means of skewed numbers: differences of squared errors, and of log losses, of ten rows and more.

A squared error of normal errors is a multiple of chi-squared, and the difference of two, e^2 - f^2 = (e - f)(e + f), a
product of two correlated normal numbers. `mean_product` is made for them: with a, b normal with mean zero, A = sum a b
and B^2 = (sum a^2 sum b^2 - A^2)/(n - 1), the regression of b on a gives the pivots

    E ab = (A - B T)/C,    C ~ chi-squared with n degrees of freedom, T ~ Student's t with n - 1, independent,

and the quantiles of the right-hand side are a generalised confidence interval (Weerahandi, "Generalized confidence
intervals", JASA 88 (1993), 899-905). It excludes zero where the exact test of Pitman (Biometrika 31 (1939), 9-12) and
Morgan (ibid., 13-19) for equal variances of correlated numbers does: P((A - B T)/C <= 0) = P(T >= A/B). With a = b it
is the exact interval of a variance. A mean other than zero makes products less spread than their second moments say, so
that the interval is too wide rather than too narrow. Heavier tails make them more spread by a factor, `spread_of`, and
take as much from the degrees of freedom (Box, "Non-normality and tests on variances", Biometrika 40 (1953), 318-335).

The interval that is given is the least that holds this one and Student's, which needs no normal errors, only many rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, gammaln, ndtr, stdtr, stdtrit

_DOUBTS = 20  # rows that what is known from elsewhere counts for
_NODES = 256  # of the integral over C
PAIRS = 2.0  # variance of a mean of differences of rows held out in turn, over that of independent rows, at most
_FEWEST = 3.0  # degrees of freedom of chi-squared in place of log losses


class Estimate(NamedTuple):
    """A number with its interval; NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_number(self) -> bool:
        """Whether there is a number."""
        return math.isfinite(self.value)

    def as_text(self, sign: str = "") -> tuple[str, str, str]:
        """Return the number and the ends of its interval as text, with as many places as the interval tells.

        Examples
        --------
        >>> from fedconvex.comparison.skewed_intervals import Estimate
        >>> Estimate(0.58812, 0.3991, 0.7771).as_text(), Estimate(-0.004, -0.011, 0.003).as_text("+")
        (('0.59', '0.40', '0.78'), ('-0.0040', '-0.0110', '+0.0030'))
        >>> Estimate(-0.0301, -0.06, -0.0004).as_text("+")
        ('-0.0301', '-0.0600', '-0.0004')
        """
        half = 0.5 * (self.high - self.low)
        if not (math.isfinite(half) and half > 1e-4 * abs(self.value)):
            return tuple(f"{v:{sign},.0f}" if 1e3 <= abs(v) < 1e12 else f"{v:{sign}.3g}" for v in self)  # type: ignore[return-value]
        places = min(max(0, 1 - math.floor(math.log10(half))), 12)
        places += any(v != 0.0 and round(v, places) == 0.0 for v in (self.low, self.high))  # on which side of 0 it ends
        return tuple(f"{v:{sign}z,.{places}f}" for v in self)  # type: ignore[return-value]


UNKNOWN = Estimate(math.nan)


def mean_of(v: np.ndarray, level: float, doubt: float | None = None, factor: float = 1.0) -> Estimate:
    """Return the mean of independent numbers with its interval by Student's t; no interval for a single one.

    Parameters
    ----------
    v : array (m,)
    level : float
    doubt : float, optional
        Variance of the numbers that is known otherwise: it counts as that of twenty more rows where it is larger than
        the variance of the numbers themselves.
    factor : float
        Variance of the mean over that of independent numbers.
    """
    if v.size == 0:
        return UNKNOWN
    mean = float(v.mean())
    if v.size == 1:
        return Estimate(mean)
    return student(v.size, mean, float(v.var(ddof=1)), level, doubt, factor)


def student(
    n: int, mean: float, square: float, level: float, doubt: float | None = None, factor: float = 1.0
) -> Estimate:
    """Return the like of `mean_of` from the number of rows, at least two, their mean and their variance."""
    half = float(stdtrit(n - 1, 0.5 + 0.5 * level)) * math.sqrt(factor * _variance(n, square, doubt) / n)
    return Estimate(mean, mean - half, mean + half)


def _variance(n: int, square: float, doubt: float | None) -> float:
    return square if doubt is None else max(square, (n * square + _DOUBTS * doubt) / (n + _DOUBTS))


def mean_product(a: np.ndarray, b: np.ndarray, level: float, spread: float = 1.0) -> Estimate:
    """Return the mean of products a_i b_i, its interval exact or nearly so for normal numbers of mean zero.

    Parameters
    ----------
    a, b : array (m,)
    level : float
    spread : float
        Variance of the products over that of products of normal numbers, at least 1.

    Examples
    --------
    A variance of ten normal numbers: the classical interval is (10 v/20.48, 10 v/3.25).

    >>> import numpy as np
    >>> from fedconvex.comparison.skewed_intervals import mean_product
    >>> e = np.array([1.0, -1.0] * 5)
    >>> [round(v, 3) for v in mean_product(e, e, 0.95)]
    [1.0, 0.488, 3.08]
    """
    m = a.size
    if m < 2:
        return Estimate(float(a @ b)) if m else UNKNOWN
    large = np.array([np.abs(a).max(), np.abs(b).max()])
    if not large.all():
        return Estimate(0.0, 0.0, 0.0)
    a, b = a / large[0], b / large[1]
    found = _product(m, float(a @ b), float(a @ a), float(b @ b), level, spread)
    return Estimate(*(float(large[0] * (v * large[1])) for v in found))


def _product(m: int, A: float, P: float, Q: float, level: float, spread: float) -> Estimate:
    """Return the like from sums of a b, a^2 and b^2, numbers of about 1."""
    nu, df, tails = m / spread, (m - 1.0) / spread, (0.5 - 0.5 * level, 0.5 + 0.5 * level)
    B = math.sqrt(spread * max(P * Q - A * A, 0.0) / (m - 1.0))
    if B <= 1e-9 * abs(A):
        low, high = sorted(A / (spread * float(chdtri(nu, p))) for p in tails)
        return Estimate(A / m, low, high)
    C, share = _chi_squared(nu, spread)

    def below(q: float) -> float:
        return float(share @ stdtr(df, (q * C - A) / B))

    unit = (B + abs(A)) / m
    return Estimate(A / m, *(_quantile(lambda q, p=p: below(q) - p, A / m, unit) for p in tails))  # type: ignore[misc]


def _chi_squared(nu: float, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of ``scale`` times chi-squared with nu degrees of freedom: even steps of its logarithm.

    The density of the logarithm, exp(nu c/2 - exp(c)/2), falls as exp(nu c/2) below and doubly exponentially above.
    """
    wide = math.sqrt(2.0 / nu)
    c = np.linspace(math.log(nu) - 9.0 * wide - 40.0 / nu, math.log(nu) + 8.0 * min(wide, 1.0) + 1.0 / nu, _NODES)
    log = 0.5 * nu * (c - math.log(2.0)) - 0.5 * np.exp(c) - gammaln(0.5 * nu)
    share = np.exp(log - log.max())
    return scale * np.exp(c), share / share.sum()


def _quantile(f: Callable[[float], float], middle: float, unit: float) -> float:
    """Return the zero of an increasing function."""
    low = high = middle
    step = unit
    while f(low) > 0.0 and step < 1e30 * unit:
        low, step = low - step, 4.0 * step
    step = unit
    while f(high) < 0.0 and step < 1e30 * unit:
        high, step = high + step, 4.0 * step
    return float(brentq(f, low, high, xtol=1e-9 * unit, rtol=1e-12)) if low < high else middle


def spread_of(a: np.ndarray, b: np.ndarray) -> float:
    """Return the variance of products over that of products of normal numbers of mean zero with the same moments.

    Var(ab) = E a^2 E b^2 + (E ab)^2 for normal numbers. Elliptical ones, whose fourth moments are 1 + k times as large,
    are 1 + k times as spread where E ab = 0, and 1 + 3 k/2 times where a = b.
    """
    large = np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0)
    if 0.0 in large:
        return 1.0
    a, b = a / large[0], b / large[1]
    normal = float((a @ a) * (b @ b) + (a @ b) ** 2) / a.size**2
    return float((a * b).var(ddof=1)) * (a.size + 2.0) / (a.size * normal)


class ProductSums(NamedTuple):
    """Sums over rows of products of two numbers: all that the intervals of `Products` are made of."""

    rows: int
    ab: float
    abab: float  # of squares of products
    aa: float
    bb: float

    @property
    def spread(self) -> float:
        """The like of `spread_of`."""
        m, normal = self.rows, (self.aa * self.bb + self.ab**2) / self.rows**2
        if normal <= 0.0:
            return 1.0
        return (self.abab - self.ab**2 / m) / (m - 1.0) * (m + 2.0) / (m * normal)

    def mean(self, level: float, shared: float, own: bool, factor: float = 1.0) -> Estimate:
        """Return the mean of at least two rows and its interval, as `Products.mean` does.

        Parameters
        ----------
        level : float
        shared : float
            Spread that clients have in common.
        own : bool
            Whether these are errors of one model, no differences.
        factor : float
        """
        m, large = self.rows, (math.sqrt(self.aa / self.rows), math.sqrt(self.bb / self.rows))
        if 0.0 in large:
            return Estimate(0.0, 0.0, 0.0)
        spread = max(1.0, (m * self.spread + _DOUBTS * shared) / (m + _DOUBTS))
        spread = max(spread, shared) if own else factor * spread
        ab = float(m) if own else self.ab / large[0] / large[1]  # a = b, without what rounding would leave between them
        found = _product(m, ab, float(m), float(m), level, spread)
        value, low, high = (large[0] * v * large[1] for v in found)
        if own:
            return Estimate(value, low, high)
        square = max(self.abab - self.ab**2 / m, 0.0) / (m - 1.0)
        plain = student(m, self.ab / m, square, level, None, factor)
        return Estimate(plain.value, min(plain.low, low), max(plain.high, high))


class Products(NamedTuple):
    """Squared errors, or differences of them, as products of two numbers per row.

    How far products of some rows are spread counts by the number of these rows, and what the clients have in common as
    twenty more. Differences get the least interval that holds both of this module; squared errors, which share one
    array, that of `mean_product`, for Student's ends below zero; and no less spread than clients have in common.
    """

    a: np.ndarray  # (m,)
    b: np.ndarray  # (m,)
    spread: float  # the mean of that of the clients, by their rows

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray, group: np.ndarray) -> Products:
        """Return the products of rows of groups, (m,), which share their spread."""
        parts = [np.flatnonzero(group == k) for k in np.unique(group)]
        known = [(p.size, spread_of(a[p], b[p])) for p in parts if p.size > 1]
        total = sum(m for m, _ in known)
        return cls(a, b, sum(m * s for m, s in known) / total if total else 1.0)

    @property
    def values(self) -> np.ndarray:
        """The numbers whose mean is wanted, (m,)."""
        return self.a * self.b

    @property
    def one_model(self) -> bool:
        """Whether these are errors of one model, no differences."""
        return self.a is self.b

    def mean(self, at: np.ndarray, level: float, factor: float = 1.0) -> Estimate:
        """Return the mean over some rows, and its interval; ``factor`` is that of `mean_of`."""
        a, b = self.a[at], self.b[at]
        student = mean_of(a * b, level, None, factor)
        if at.size < 2:
            return student
        spread = (at.size * spread_of(a, b) + _DOUBTS * self.spread) / (at.size + _DOUBTS)
        if self.one_model:
            return mean_product(a, b, level, max(1.0, spread, self.spread))
        other = mean_product(a, b, level, factor * max(1.0, spread))
        return Estimate(student.value, min(student.low, other.low), max(student.high, other.high))


class Losses(NamedTuple):
    """Log losses: numbers not below zero, most of them small and a few large.

    The interval is that of a multiple of chi-squared with the mean and variance of theirs, exact where losses are
    exponential or squares of normal numbers (Satterthwaite, "An approximate distribution of estimates of variance
    components", Biometrics 2 (1946), 110-114), at the level at which a normal interval would be as wide as Student's.
    It has three degrees of freedom at least, since rows without any large loss would leave its upper end without limit;
    nor is that end below Student's.
    """

    values: np.ndarray  # (m,)
    doubt: np.ndarray  # (m,) variance over the label that a row may have

    def mean(self, at: np.ndarray, level: float) -> Estimate:
        """Return the mean over some rows, and its interval."""
        v = self.values[at]
        if v.size < 2:
            return mean_of(v, level)
        return loss_interval(v.size, float(v.mean()), float(v.var(ddof=1)), float(self.doubt[at].mean()), level)


def loss_interval(n: int, mean: float, square: float, doubt: float, level: float) -> Estimate:
    """Return the interval of `Losses` from the number of rows, at least two, their mean, variance, and mean doubt."""
    known = student(n, mean, square, level, doubt)
    if not known.high > mean > 0.0:
        return known
    square = _variance(n, square, doubt)
    nu = max(2.0 * n * mean * mean / square, _FEWEST)
    tail = float(ndtr(-stdtrit(max(n - 1, 4), 0.5 + 0.5 * level)))  # of fewer than five rows: Student's says all
    low, high = (nu * mean / float(chdtri(nu, p)) for p in (tail, 1.0 - tail))
    return Estimate(mean, low, max(high, known.high))


class Differences(NamedTuple):
    """Differences of log losses: a model that is too sure is a little better in most rows and much worse in few.

    The interval is Student's, for a variance in which that over labels counts as that of twenty more rows.
    """

    values: np.ndarray  # (m,)
    doubt: np.ndarray  # (m,) variance over the label that a row may have

    def mean(self, at: np.ndarray, level: float) -> Estimate:
        """Return the mean over some rows, and its interval."""
        return mean_of(self.values[at], level, float(self.doubt[at].mean()) if at.size else None)


def averaged(found: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates, its ends the means of theirs: valid whatever their dependence, if they are normal.

    With normal errors of deviations s_r that of the mean is at most the mean of the s_r (Minkowski's inequality), and
    quantiles of normal, or jointly elliptical, numbers are proportional to deviations.

    Examples
    --------
    >>> from fedconvex.comparison.skewed_intervals import Estimate, averaged
    >>> averaged([Estimate(1.0, 0.0, 2.0), Estimate(2.0, 1.0, 5.0)])
    Estimate(value=1.5, low=0.5, high=3.5)
    """
    return found[0] if len(found) == 1 else Estimate(*(float(np.mean(v)) for v in zip(*found, strict=True)))


class Repeats(NamedTuple):
    """Numbers of the same rows: of one split, or of repeats in each of which all rows were held out in turn."""

    each: tuple[Any, ...]  # of Products, Losses or Differences
    parts: int = 1  # in which rows were divided: 1 where they were held out once

    def mean(self, at: np.ndarray, level: float) -> Estimate:
        """Return the mean over some rows and all repeats, and its interval.

        Errors of one model depend on their own rows above all, and count as independent (Bayle, Bayle, Janson, Mackey,
        "Cross-validation confidence intervals for test error", NeurIPS 2020). Differences u_i have twice the variance.
        Given all other rows, u_i less its expectation has mean zero, so that u_i and u_j are correlated only through
        terms b_ij of the analysis of variance of u_i over the rows that need rows i and j. If terms of three rows are
        negligible, sum E b_ij b_ji is at most sum E b_ij^2, which is at most the sum of the variances; least squares
        have b_ij = b_ji, and come near it where models differ only by the noise that they learned.
        """
        first = self.each[0]
        of_one_model = isinstance(first, Losses) or (isinstance(first, Products) and first.one_model)
        if self.parts == 1 or at.size < 2 or of_one_model:
            return averaged([errors.mean(at, level) for errors in self.each])
        if isinstance(first, Products):
            return averaged([errors.mean(at, level, PAIRS) for errors in self.each])
        values, doubt = (np.mean([getattr(e, n)[at] for e in self.each], axis=0) for n in ("values", "doubt"))
        return mean_of(values, level, float(doubt.mean()), PAIRS)
