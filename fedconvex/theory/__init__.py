"""Engines of theory: exact moments, fixed points and exact worst cases, and what a bound consists of.

The theorems stand in `fedconvex.theorems`, a file each: ``from fedconvex.theorems.fedavg_convex import fedavg_convex``.
"""

from fedconvex.theory.bound import (
    LAST_SYNCHRONISED,
    MEAN_SQUARE_DEVIATION,
    SHADOW_AVERAGE,
    AssumptionError,
    Bound,
    Hypothesis,
    PrecisionError,
    Quantity,
    known_constants,
    require,
)
from fedconvex.theory.moments import Moments, StackedMoments, WeightMoments

__all__ = [
    "LAST_SYNCHRONISED",
    "MEAN_SQUARE_DEVIATION",
    "SHADOW_AVERAGE",
    "AssumptionError",
    "Bound",
    "Hypothesis",
    "Moments",
    "PrecisionError",
    "Quantity",
    "StackedMoments",
    "WeightMoments",
    "known_constants",
    "require",
]
