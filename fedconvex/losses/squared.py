"""Least squares."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import declares


@declares(task="regression", lower_bound=0.0, quadratic=True, smoothness=1.0, lipschitz=math.inf)
class Squared(NamedTuple):
    """Squared loss l(z, y) = (z - y)^2 / 2, for real labels.

    Examples
    --------
    >>> from fedconvex import Squared
    >>> Squared().value(3.0, 1.0), Squared().slope(3.0, 1.0)
    (2.0, 2.0)
    """

    def value(self, z, y):
        """Return (z - y)^2 / 2."""
        return 0.5 * (z - y) * (z - y)

    def slope(self, z, y):
        """Return z - y."""
        return z - y

    def curvature(self, z, y):
        """Return 1."""
        return 1.0

    def conjugate(self, a, y):
        """Return a^2/2 + a y."""
        return 0.5 * a * a + a * y

    def dual_step(self, alpha, z, q, y):
        """Return (y - z - alpha) / (1 + q)."""
        return (y - z - alpha) / (1.0 + q)

    def slope_bound(self, value):
        """Return sqrt(2 value): Jensen's inequality."""
        return np.sqrt(2.0 * np.maximum(value, 0.0))

    def check_labels(self, y: np.ndarray) -> None:
        """Accept every finite label."""
