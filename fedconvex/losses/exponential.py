"""Two classes, as in boosting."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_signs, log_root_between


@declares(
    task="classification", lower_bound=0.0, smoothness=math.inf, lipschitz=math.inf, self_concordance=1.0,
    boosting="exp",
)  # fmt: skip
class Exponential(NamedTuple):
    """Exponential loss l(z, y) = exp(-y z), labels -1/+1 (the loss of AdaBoost).

    Examples
    --------
    >>> from fedconvex import Exponential
    >>> Exponential().value(0.0, 1.0), Exponential().value(-1000.0, 1.0)
    (1.0, inf)
    """

    def value(self, z, y):
        """Return exp(-y z), infinite where it overflows."""
        m = -y * z
        return math.exp(m) if m < 709.78 else math.inf

    def slope(self, z, y):
        """Return -y exp(-y z)."""
        m = -y * z
        return -y * (math.exp(m) if m < 709.78 else math.inf)

    def curvature(self, z, y):
        """Return exp(-y z)."""
        m = -y * z
        return math.exp(m) if m < 709.78 else math.inf

    def conjugate(self, a, y):
        """Return u log u - u with u = -y a >= 0."""
        u = -y * a
        if u < 0.0:
            return math.inf
        return u * math.log(u) - u if u > 0.0 else 0.0

    def dual_step(self, alpha, z, q, y):
        """Solve t + q exp(t) = q u - y z for t = log of the new u = y alpha, by safeguarded Newton steps."""
        u = y * alpha
        t = log_root_between(q, q * u - y * z)
        return y * (math.exp(min(t, 709.0)) - u)

    def slope_bound(self, value):
        """|l'| = l."""
        return np.abs(value)

    def curvature_below(self, value):
        """l'' = l."""
        return value

    def probabilities(self, z):
        """Return P(y = 1) = 1 / (1 + exp(-2 z)): z is half the logarithm of the odds (Friedman, Hastie, Tibshirani)."""
        from scipy.special import expit

        return expit(2.0 * z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        check_signs("Exponential", y)
