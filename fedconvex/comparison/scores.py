"""How good scores are on held-out rows: losses, accuracy, AUC, calibration or R^2, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import rankdata

from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.skewed_intervals import UNKNOWN, Differences, Estimate, Losses, Products, averaged, mean_of
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.report.fairness import wilson_interval

BINS = 10


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


def errors_of(rows: Rows, Z: np.ndarray, at: np.ndarray, than: np.ndarray | None = None) -> Any:
    """Return the errors of rows, whose `mean` has an interval: log losses, or squared errors of a real target.

    Parameters
    ----------
    rows : Rows
    Z : array (m,) or (m, C)
        Scores.
    at : int array (m,)
        Numbers of the rows.
    than : array like Z, optional
        Scores of another model, whose errors are subtracted.
    """
    if rows.classifies:
        loss, doubt = row_losses_of(rows, Z, at), label_variance(rows, Z, than)
        return Losses(loss, doubt) if than is None else Differences(loss - row_losses_of(rows, than, at), doubt)
    y, client = rows.y[at], rows.client[at]
    if than is None:
        left = Z - y
        return Products.of(left, left, client)
    return Products.of(Z - than, (Z - y) + (than - y), client)  # e^2 - f^2 = (e - f)(e + f)


def measures(rows: Rows, Z: np.ndarray, at: np.ndarray, level: float, error: Estimate | None = None) -> Measures:
    """Return how good scores are.

    Parameters
    ----------
    rows : Rows
    Z : array (m,) or (m, C)
        Scores.
    at : int array (m,)
        Numbers of the rows.
    level : float
        Of every interval by itself: Student's t for means, Wilson's for accuracy, Newcombe's for the AUC.
    error : Estimate, optional
        The mean error, where more rows than these tell how far errors are spread; else these rows alone do.
    """
    if not at.size:
        return Measures(0, math.nan, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, math.nan, UNKNOWN, math.nan)
    y, error = rows.y[at], errors_of(rows, Z, at).mean(np.arange(at.size), level) if error is None else error
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
        bias, off = _bias(sure, hit, level), _calibration(sure, hit)
        return Measures(at.size, base, error, accuracy, UNKNOWN, bias, off, UNKNOWN, math.nan)
    hit = (y > 0.0).astype(float)
    bias, off = _bias(P, hit, level), _calibration(P, hit)
    return Measures(at.size, float(hit.mean()), error, accuracy, auc_of(y, Z, level), bias, off, UNKNOWN, math.nan)


def mean_measures(each: Sequence[Measures]) -> Measures:
    """Return the mean over repeats, which have the same rows; a root mean square is that of the mean square."""
    first = each[0]
    if len(each) == 1:
        return first
    error, accuracy, auc, bias = (averaged([getattr(m, n) for m in each]) for n in Measures._fields[2:6])
    root = first.rmse
    if root.is_number:
        root = Estimate(*(math.sqrt(v) if v == v else v for v in error))
    off, r2 = float(np.mean([m.calibration for m in each])), float(np.mean([m.r2 for m in each]))
    return Measures(first.rows, first.base, error, accuracy, auc, bias, off, root, r2)


def label_variance(rows: Rows, Z: np.ndarray, than: np.ndarray | None = None) -> np.ndarray:
    """Return the variance of the log loss, or of the difference of two models', over the label of every row, (m,).

    Labels are drawn with the probabilities that the model gives them, or with the mean of both models'.

    Parameters
    ----------
    rows : Rows
        Of classes.
    Z, than : array (m,) or (m, C)
        Scores of the models.
    """
    P = np.asarray(rows.loss.probabilities(Z))
    P = P if than is None else 0.5 * (P + np.asarray(rows.loss.probabilities(than)))
    P = P if P.ndim == 2 else np.column_stack([1.0 - P, P])
    labels = [-1.0, 1.0] if rows.binary else range(P.shape[1])
    y = [np.full(len(P), float(label)) for label in labels]
    D = np.column_stack([losses_at(rows.loss, Z, v) for v in y])
    D = D if than is None else D - np.column_stack([losses_at(rows.loss, than, v) for v in y])
    return np.asarray((P * (D - (P * D).sum(axis=1, keepdims=True)) ** 2).sum(axis=1))


def _bias(P: np.ndarray, hit: np.ndarray, level: float) -> Estimate:
    """Return the mean of probabilities less hits; the variance that probabilities imply counts as twenty rows more."""
    return mean_of(P - hit, level, float((P * (1.0 - P)).mean()))


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
