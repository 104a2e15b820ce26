"""Dual points that are made from the slopes of the rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

EPS = float(np.finfo(float).eps)


class Slopes(NamedTuple):
    """Losses and slopes of all rows at scores Z, the gradient that they make, and what rows are multiplied by."""

    Z: np.ndarray  # (n, C)
    values: np.ndarray  # (n,)
    A: np.ndarray  # (n, C)
    u: np.ndarray  # (size,) -X'(c A); or at the entries that the penalty sees, (p,), with A times ``rows``
    rows: np.ndarray | None = None  # (n,) factors in [0, 1], where coordinates are free
    off: Any = None  # (n,) how far off they are from factors for which the sums along free coordinates are exactly 0
    left: Any = 0.0  # (C,) ‖.‖_c of what that, or factors that u leaves out, changes of the slopes
    bounded: bool = True  # whether no direction of the free coordinates leaves all rows with slopes alone


def absolute_rounding(problem: Any) -> float:
    """Return what rounding may add to a slope whatever its size: those of several outputs are differences."""
    return 2.0 * problem.n_outputs * EPS if problem.traits.several else 0.0
