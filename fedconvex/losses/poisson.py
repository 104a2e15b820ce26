"""Counts, by the likelihood of Poisson's distribution with mean e^z."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_counts, excess, log_root_between, scaled_exp


@declares(task="regression", lower_bound=0.0, self_concordance=1.0)
class Poisson(NamedTuple):
    """Half the unit deviance of Poisson regression: l(z, y) = e^z - y z - (y - y log y), labels y >= 0.

    The mean is e^z (the logarithm is the link), and so are the variance and l'': no smoothness constant exists. The
    least value, 0, is at z = log y. With t = z - log y it is y (e^t - 1 - t), which is how it is computed.
    A rate of counts in times (or person-years) E: labels y/E of rows that weigh E.

    References
    ----------
    McCullagh and Nelder, "Generalized linear models", 2nd edition, 1989, Section 2.3 (deviances).

    Examples
    --------
    >>> import math
    >>> from fedconvex.losses import Poisson
    >>> Poisson().value(math.log(3.0), 3.0), Poisson().slope(0.0, 3.0), Poisson().curvature(0.0, 3.0)
    (0.0, -2.0, 1.0)
    """

    def value(self, z, y):
        """Return e^z - y z - (y - y log y), infinite where it overflows."""
        if y <= 0.0:
            return scaled_exp(1.0, z)
        t = z - math.log(y)
        return y * excess(t) if t <= 1.0 else scaled_exp(1.0, z) - y * (1.0 + t)

    def slope(self, z, y):
        """Return e^z - y = y (e^t - 1) with t = z - log y."""
        if y > 0.0 and z <= math.log(y) + 1.0:
            return y * math.expm1(z - math.log(y))
        return scaled_exp(1.0, z) - y

    def curvature(self, z, y):
        """Return e^z."""
        return scaled_exp(1.0, z)

    def conjugate(self, a, y):
        """Return u log u - u + y - y log y with u = a + y >= 0."""
        u = a + y
        if u < 0.0:
            return math.inf
        own = y - y * math.log(y) if y > 0.0 else 0.0
        return own + (u * math.log(u) - u if u > 0.0 else 0.0)

    def dual_step(self, alpha, z, q, y):
        """Solve t + q e^t = z + q (y - alpha) for t = log of the new u = y - alpha, by safeguarded Newton steps."""
        return (y - alpha) - math.exp(min(log_root_between(q, z + q * (y - alpha)), 709.0))

    def slope_range(self, y):
        """Slopes are above -y."""
        return -y, np.full(len(y), np.inf)

    def predict(self, z):
        """Return the means e^z of scores (n,)."""
        with np.errstate(over="ignore"):
            return np.exp(z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError if a label is negative."""
        check_counts("Poisson", y)
