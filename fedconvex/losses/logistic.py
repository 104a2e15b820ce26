"""Two classes, by the likelihood."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_signs, exp, logit_root, softplus


@declares(
    task="classification", lower_bound=0.0, smoothness=0.25, lipschitz=1.0, self_concordance=1.0,
    third_derivative=1.0 / (6.0 * math.sqrt(3.0)),
)  # fmt: skip
class Logistic(NamedTuple):
    """Logistic loss l(z, y) = log(1 + exp(-y z)), labels -1/+1.

    Examples
    --------
    >>> from fedconvex import Logistic
    >>> Logistic().value(-1000.0, 1.0), Logistic().slope(0.0, 1.0)
    (1000.0, -0.5)
    """

    def softplus_factor(self, y):
        """Return the c with l(z, y) = log(1 + e^(c z)): sums of such losses are logarithms of products."""
        return -y

    def value(self, z, y):
        """Return log(1 + exp(-y z)) without overflow."""
        return softplus(-y * z)

    def slope(self, z, y):
        """Return -y / (1 + exp(y z)) without overflow."""
        return -y / (1.0 + exp(y * z))

    def curvature(self, z, y):
        """Return s (1 - s) with s = 1 / (1 + exp(-z))."""
        t = math.exp(-abs(z))
        return t / ((1.0 + t) * (1.0 + t))

    def conjugate(self, a, y):
        """Return u log u + (1 - u) log(1 - u) with u = -y a in [0, 1]."""
        u = -y * a
        if u < 0.0 or u > 1.0:
            return math.inf
        left = u * math.log(u) if u > 0.0 else 0.0
        right = (1.0 - u) * math.log1p(-u) if u < 1.0 else 0.0
        return left + right

    def dual_step(self, alpha, z, q, y):
        """Solve t + y z + q (s(t) - u) = 0 for the logit t of the new u = y alpha, by safeguarded Newton steps."""
        u = y * alpha
        t = logit_root(y * z, q, u)
        e = math.exp(-abs(t))
        return y * ((1.0 if t > 0.0 else e) / (1.0 + e) - u)

    def scale_slope_range(self, low, high, y):
        """Return inf and sup of z l'(z, y) = -h(y z) over [low, high]: h(t) = t/(1 + e^t) rises up to t = 1.2785."""
        ends = np.sort(np.stack([y * low, y * high]), axis=0)
        h = ends / (1.0 + np.exp(np.minimum(ends, 700.0)))
        inside = (ends[0] <= 1.278464542761074) & (ends[1] >= 1.278464542761074)
        return -np.where(inside, 0.278464542761074, h.max(axis=0)), -h.min(axis=0)

    def slope_range(self, y):
        """Slopes lie between 0 and -y."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)

    def least_curvature(self, reach):
        """Curvature falls as |z| grows: return that at the reach."""
        e = np.exp(-reach)
        return e / (1.0 + e) ** 2

    def probabilities(self, z):
        """Return P(y = 1) = 1 / (1 + exp(-z)) for scores (n,)."""
        from scipy.special import expit  # an import that runs need not pay for

        return expit(z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        check_signs("Logistic", y)
