"""Means and standard deviations of columns whose squares may be no doubles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad

_SQUARED, _LARGEST = 1e100, 1e290  # beyond: squares of numbers, their differences and quotients, are no doubles


def moments(X: Any, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every column; those whose squares are no doubles are scaled first.

    Parameters
    ----------
    X : array (n, d) or CSR
    names : sequence of d str
        What messages call the columns.

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
    mean = np.asarray(X.mean(axis=0)).ravel()
    second = X.multiply(X).mean(axis=0) if sp.issparse(X) else ((X - mean) ** 2).mean(axis=0)
    square = np.asarray(second).ravel()
    return unit * mean, unit * np.sqrt(np.maximum(square - mean**2, 0.0) if sp.issparse(X) else square)
