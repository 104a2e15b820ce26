"""How good scores are on held-out rows: losses, accuracy, AUC, calibration or R^2, each with its interval."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit
from scipy.stats import rankdata

from fedconvex.comparison.rows import Rows
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.report.fairness import wilson_interval

__all__ = [
    "Estimate",
    "Measures",
    "auc_of",
    "calibration_bins",
    "label_variance",
    "mean_of",
    "measures",
    "row_errors",
    "row_losses_of",
]

BINS = 10
_DOUBTS = 20  # rows that a variance known beforehand counts for


class Estimate(NamedTuple):
    """A number with its interval; NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return math.isfinite(self.value)

    def shown(self, sign: str = "") -> tuple[str, str, str]:
        """Return the number and the ends of its interval as text, with as many places as the interval tells.

        Examples
        --------
        >>> from fedconvex.comparison.scores import Estimate
        >>> Estimate(0.58812, 0.3991, 0.7771).shown(), Estimate(-0.004, -0.011, 0.003).shown("+")
        (('0.59', '0.40', '0.78'), ('-0.0040', '-0.0110', '+0.0030'))
        >>> Estimate(-0.0301, -0.06, -0.0004).shown("+")
        ('-0.0301', '-0.0600', '-0.0004')
        """
        half = 0.5 * (self.high - self.low)
        if not (math.isfinite(half) and half > 1e-4 * abs(self.value)):
            return tuple(f"{v:{sign},.0f}" if 1e3 <= abs(v) < 1e12 else f"{v:{sign}.3g}" for v in self)  # type: ignore[return-value]
        places = min(max(0, 1 - math.floor(math.log10(half))), 12)
        places += any(v != 0.0 and round(v, places) == 0.0 for v in (self.low, self.high))  # on which side of 0 it ends
        return tuple(f"{v:{sign}z,.{places}f}" for v in self)  # type: ignore[return-value]


UNKNOWN = Estimate(math.nan)


class Measures(NamedTuple):
    """One model on some rows."""

    rows: int
    base: float  # share of the second class, or of the largest of several; the mean of a real target
    error: Estimate  # mean log loss, or mean squared error
    accuracy: Estimate
    auc: Estimate
    bias: Estimate  # mean predicted probability less the share of the second class; mean prediction less mean target
    calibration: float  # expected calibration error over ten bins of equal counts
    rmse: Estimate
    r2: float


def losses_at(loss: Any, Z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the losses of scores Z (m,) or (m, C) at labels y, (m,)."""
    out = np.empty((y.size, 1))
    S = Z[:, None] if Z.ndim == 1 else Z
    row_losses.row_values(loss, np.ascontiguousarray(S), y, out)
    return out[:, 0]


def row_losses_of(rows: Rows, Z: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the loss of rows with scores Z, (m,)."""
    return losses_at(rows.loss, Z, rows.y[at])


def row_errors(rows: Rows, Z: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return what is compared, row by row, (m,): the log loss, or the squared error of a real target."""
    return row_losses_of(rows, Z, at) if rows.classifies else (Z - rows.y[at]) ** 2


def measures(rows: Rows, Z: np.ndarray, at: np.ndarray, level: float) -> Measures:
    """Measure scores of rows.

    Parameters
    ----------
    rows : Rows
    Z : array (m,) or (m, C)
    at : int array (m,)
        Numbers of the rows.
    level : float
        Of every interval by itself: Student's t for means, Wilson's for accuracy, Newcombe's for the AUC.
    """
    if not at.size:
        return Measures(0, math.nan, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, math.nan, UNKNOWN, math.nan)
    y, error = rows.y[at], mean_of(row_errors(rows, Z, at), level)
    error = error._replace(low=max(error.low, 0.0))  # neither losses nor squares are below zero
    if not rows.classifies:
        root = Estimate(*(math.sqrt(max(v, 0.0)) if v == v else v for v in error))
        spread = float(np.sum((y - y.mean()) ** 2))
        r2 = 1.0 - float(np.sum((Z - y) ** 2)) / spread if spread > 0.0 else math.nan
        return Measures(at.size, float(y.mean()), error, UNKNOWN, UNKNOWN, mean_of(Z - y, level), math.nan, root, r2)
    right = float(np.sum(traits(rows.loss).predict(Z) == y))
    low, high = (float(v) for v in wilson_interval(right, at.size, level))
    accuracy = Estimate(right / at.size, low, high)
    P = np.asarray(rows.loss.probabilities(Z))
    if not rows.binary:
        sure, hit = P.max(axis=1), (np.argmax(P, axis=1) == y).astype(float)
        base = float(np.bincount(y.astype(int)).max() / at.size)
        bias, off = mean_of(sure - hit, level), _calibration(sure, hit)
        return Measures(at.size, base, error, accuracy, UNKNOWN, bias, off, UNKNOWN, math.nan)
    hit = (y > 0.0).astype(float)
    bias, off = mean_of(P - hit, level), _calibration(P, hit)
    return Measures(at.size, float(hit.mean()), error, accuracy, auc_of(y, Z, level), bias, off, UNKNOWN, math.nan)


def label_variance(rows: Rows, Z: np.ndarray, own: np.ndarray) -> np.ndarray | None:
    """Return the variance of the difference of two models' losses over the label of every row, (m,).

    Labels are drawn with the mean of the probabilities that both models give them. None for a real target.

    Parameters
    ----------
    rows : Rows
    Z, own : array (m,) or (m, C)
        Scores of the models.
    """
    if not rows.classifies:
        return None
    P = 0.5 * (np.asarray(rows.loss.probabilities(Z)) + np.asarray(rows.loss.probabilities(own)))
    P = P if P.ndim == 2 else np.column_stack([1.0 - P, P])
    labels = [-1.0, 1.0] if rows.binary else range(P.shape[1])
    y = [np.full(len(P), float(label)) for label in labels]
    D = np.column_stack([losses_at(rows.loss, Z, v) - losses_at(rows.loss, own, v) for v in y])
    return np.asarray((P * (D - (P * D).sum(axis=1, keepdims=True)) ** 2).sum(axis=1))


def mean_of(v: np.ndarray, level: float, doubt: np.ndarray | None = None) -> Estimate:
    """Return the mean of independent numbers with its interval by Student's t; no interval for a single one.

    ``doubt`` holds variances of the numbers that are known otherwise: their mean counts as `_DOUBTS` more rows where
    it is larger than the variance of the numbers themselves.
    """
    if v.size == 0:
        return UNKNOWN
    mean = float(v.mean())
    if v.size == 1:
        return Estimate(mean)
    square = float(v.var(ddof=1))
    if doubt is not None:
        square = max(square, (v.size * square + _DOUBTS * float(doubt.mean())) / (v.size + _DOUBTS))
    half = float(stdtrit(v.size - 1, 0.5 + 0.5 * level)) * math.sqrt(square / v.size)
    return Estimate(mean, mean - half, mean + half)


def auc_of(y: np.ndarray, z: np.ndarray, level: float) -> Estimate:
    """Return the area under the ROC curve, unknown where a class is missing.

    The interval solves |A - a| = z sqrt(V(a)) with the variance V of Hanley and McNeil at equal numbers of both
    classes, so that it keeps a width where A = 1.

    References
    ----------
    Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic", Statistics in
    Medicine 25 (2006), 559-573, method 5.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.comparison.scores import auc_of
    >>> auc_of(np.array([-1.0, -1.0, 1.0, 1.0]), np.array([0.1, 0.4, 0.35, 0.8]), 0.95).value
    0.75
    """
    up = y > 0.0
    m, n = int(up.sum()), int((~up).sum())
    if m == 0 or n == 0:
        return UNKNOWN
    A = (float(rankdata(z)[up].sum()) - 0.5 * m * (m + 1.0)) / (m * n)
    quantile, N = float(ndtri(0.5 + 0.5 * level)), 0.5 * (m + n) - 1.0

    def beyond(a: float) -> float:
        V = a * (1.0 - a) * (1.0 + N * ((1.0 - a) / (2.0 - a) + a / (1.0 + a))) / (m * n)
        return (A - a) ** 2 - quantile**2 * V

    inside = min(max(A, 1e-12), 1.0 - 1e-12)  # V is zero at the ends themselves
    if beyond(inside) >= 0.0:  # a level next to 0
        return Estimate(A, A, A)
    low = 0.0 if A == 0.0 else float(brentq(beyond, 0.0, inside))
    high = 1.0 if A == 1.0 else float(brentq(beyond, inside, 1.0))
    return Estimate(A, low, high)


def calibration_bins(P: np.ndarray, hit: np.ndarray) -> list[tuple[int, float, float]]:
    """Return (rows, mean probability, share of hits) of at most ten bins of equal counts, by probability.

    Rows of equal probability stay in one bin: divided by the order of the rows, which may be that of the target, they
    would make the best constant look uncalibrated.
    """
    order = np.argsort(P, kind="stable")
    ends = np.cumsum([part.size for part in np.array_split(order, BINS)])[:-1]
    ends = np.searchsorted(P[order], P[order][np.maximum(ends - 1, 0)], side="right")
    parts = [part for part in np.split(order, np.unique(ends)) if part.size]
    return [(part.size, float(P[part].mean()), float(hit[part].mean())) for part in parts]


def _calibration(P: np.ndarray, hit: np.ndarray) -> float:
    bins: Any = calibration_bins(P, hit)
    return float(sum(m * abs(p - s) for m, p, s in bins) / P.size)
