"""Positive labels whose spread grows with their mean, by the likelihood of the gamma distribution with mean e^z."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_counts, excess, log_root_between, scaled_exp


@declares(task="regression", lower_bound=0.0, self_concordance=1.0)
class Gamma(NamedTuple):
    """Half the unit deviance of gamma regression with the logarithm as link: l(z, y) = y e^-z + z - log y - 1, y > 0.

    The mean is e^z and the variance proportional to its square. The least value, 0, is at z = log y; with
    t = log y - z it is e^t - 1 - t. l'' = y e^-z is not bounded: no smoothness constant exists.

    References
    ----------
    McCullagh and Nelder, "Generalized linear models", 2nd edition, 1989, Section 8.3.

    Examples
    --------
    >>> from fedconvex.losses import Gamma
    >>> Gamma().value(0.0, 1.0), Gamma().slope(0.0, 3.0), Gamma().curvature(0.0, 3.0)
    (0.0, -2.0, 3.0)
    """

    def value(self, z, y):
        """Return y e^-z + z - log y - 1, infinite where it overflows."""
        t = math.log(y) - z
        return excess(t) if t <= 1.0 else scaled_exp(y, -z) - (1.0 + t)

    def slope(self, z, y):
        """Return 1 - y e^-z = 1 - e^t with t = log y - z."""
        t = math.log(y) - z
        return -math.expm1(t) if t <= 1.0 else 1.0 - scaled_exp(y, -z)

    def curvature(self, z, y):
        """Return y e^-z."""
        return scaled_exp(y, -z)

    def conjugate(self, a, y):
        """Return u log u - u + 1 + a log y with u = 1 - a >= 0."""
        u = 1.0 - a
        if u < 0.0:
            return math.inf
        return a * math.log(y) + 1.0 + (u * math.log(u) - u if u > 0.0 else 0.0)

    def dual_step(self, alpha, z, q, y):
        """Solve t + q e^t = log y - z + q (1 + alpha) for t = log of the new u = 1 + alpha."""
        t = log_root_between(q, math.log(y) - z + q * (1.0 + alpha))
        return math.exp(min(t, 709.0)) - (1.0 + alpha)

    def slope_range(self, y):
        """Slopes are below 1."""
        return np.full(len(y), -np.inf), np.ones(len(y))

    def predict(self, z):
        """Return the means e^z of scores (n,)."""
        with np.errstate(over="ignore"):
            return np.exp(z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is positive."""
        check_counts("Gamma", y, positive=True)
