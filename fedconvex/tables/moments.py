"""Means and standard deviations of columns whose squares may be no doubles; medians and modes of weighted rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad

_SQUARED, _LARGEST = 1e100, 1e290  # beyond: squares of numbers, their differences and quotients, are no doubles
TIED = 1e-9  # of a sum of weights: what is closer is equal, whoever added them


def moments(X: Any, names: Sequence[str], weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every column; those whose squares are no doubles are scaled first.

    Parameters
    ----------
    X : array (n, d) or CSR
    names : sequence of d str
        What messages call the columns.
    weight : array (n,), optional
        What rows count; default 1.

    Raises
    ------
    ValueError
        If numbers of a column lie beyond 1e290, or are closer to 0 than 1e-290.
    """
    largest = np.asarray(abs(X).max(axis=0).toarray() if sp.issparse(X) else np.abs(X).max(axis=0)).ravel()
    wrong = np.flatnonzero((largest > _LARGEST) | ((largest < 1.0 / _LARGEST) & (largest > 0.0)))
    if wrong.size:
        j = int(wrong[0])
        must = f"have numbers between {1.0 / _LARGEST:g} and {_LARGEST:g} in absolute value"
        raise bad(f"column {names[j]!r}", must, f"{largest[j]:g}", "use other units, or --no-standardize")
    odd = (largest > _SQUARED) | ((largest < 1.0 / _SQUARED) & (largest > 0.0))
    unit = np.where(odd, np.maximum(largest, 1.0 / _LARGEST), 1.0)
    if odd.any():
        X = sp.csr_array(X @ sp.diags_array(1.0 / unit)) if sp.issparse(X) else X / unit
    weight = weight if weight is not None and weight.any() else None  # rows without weight are told elsewhere
    n = X.shape[0] if weight is None else weight.sum()
    mean = column_sums(X, weight) / n
    return unit * mean, unit * np.sqrt(squares_about(X, mean, weight=weight) / n)


def median(x: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Return the mean of lower and upper median of numbers (n,), which with whole weights is that of repeated rows."""
    if weight is None:
        return float(np.median(x))
    order = np.argsort(x, kind="stable")
    sums = np.cumsum(weight[order])
    at = np.searchsorted(sums, halves(sums[-1]))
    return float((0.5 * x[order[np.minimum(at, x.size - 1)]]).sum())


def halves(total: Any) -> np.ndarray:
    """Return the sums of weights (..., 2) that reach the lower and the upper median."""
    return np.asarray(np.stack([0.5 * (1.0 - TIED) * np.asarray(total), 0.5 * (1.0 + TIED) * np.asarray(total)], -1))


def most_frequent(values: np.ndarray, weight: np.ndarray | None = None) -> Any:
    """Return the first of those that occur most often, or weigh most."""
    found, at = np.unique(values, return_inverse=True)
    return found[heaviest(np.bincount(at, weight))].item()


def heaviest(sums: np.ndarray) -> int:
    """Return the place of the first of the largest sums of weights."""
    return int(np.argmax(sums >= (1.0 - TIED) * sums.max()))


def column_sums(X: Any, weight: np.ndarray | None = None) -> np.ndarray:
    """Return the sums of every column, (d,), over rows that count ``weight``, default 1."""
    return np.ravel(X.sum(axis=0) if weight is None else X.T @ weight)


def squares_about(X: Any, mean: np.ndarray, unit: Any = 1.0, weight: np.ndarray | None = None) -> np.ndarray:
    """Return the sums of ((x - mean)/unit)^2 of every column, (d,): squares of means would cancel."""
    if not sp.issparse(X):
        return column_sums(((X - mean) / unit) ** 2, weight)
    X, each = sp.csr_array(X), np.broadcast_to(unit, mean.shape)
    count = np.ones(X.shape[0]) if weight is None else weight
    row = np.repeat(count, np.diff(X.indptr))
    full = np.bincount(X.indices, minlength=mean.size) == X.shape[0]  # where a difference of sums would not be 0
    zeros = np.where(full, 0.0, np.maximum(count.sum() - np.bincount(X.indices, row, mean.size), 0.0))
    off = (X.data - mean[X.indices]) / each[X.indices]
    return np.asarray(np.bincount(X.indices, row * off**2, mean.size) + zeros * (mean / each) ** 2)


def sparse_standardised(X: Any, center: np.ndarray, scale: np.ndarray) -> Any:
    """Return (X - center)/scale of a CSR: columns with a centre of 0 keep their zeros."""
    moved = np.flatnonzero(center)
    kept = sp.csr_array(X @ sp.diags_array(np.where(center == 0.0, 1.0 / scale, 0.0)))
    if not moved.size:
        return kept
    kept.eliminate_zeros()
    near, ends = (X[:, moved].toarray() - center[moved]) / scale[moved], moved.size * np.arange(X.shape[0] + 1)
    return sp.csr_array(kept + sp.csr_array((near.ravel(), np.tile(moved, len(near)), ends), shape=X.shape))
