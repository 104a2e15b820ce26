"""Two classes, as in boosting."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_signs


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
        s = q * u - y * z
        # f(t) = t + q e^t - s is convex with f' >= 1: Newton's method from the right of the root is monotone
        high = s
        if q > 0.0 and s > 0.0:  # t >= 0 implies q e^t <= s
            high = min(s, math.log(s / q) if s > q else 0.0)
        low = high - max(high + q * math.exp(min(high, 700.0)) - s, 0.0)
        t = high
        for _ in range(200):
            e = q * math.exp(min(t, 700.0))
            f = t + e - s
            if f > 0.0:
                high = t
            else:
                low = t
            new = t - f / (1.0 + e)
            if not (low <= new <= high):
                new = 0.5 * (low + high)
            if abs(new - t) <= 1e-15 * (1.0 + abs(t)):
                t = new
                break
            t = new
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
