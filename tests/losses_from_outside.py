"""Losses as a user of the package would write them: Poisson, Huber, smoothed quantile and probit."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.special import ndtr

from fedconvex.loss_traits import declares


@declares(task="regression", self_concordance=1.0)
class Poisson(NamedTuple):
    """exp(z) - y z for counts y, whose mean is exp(z)."""

    def value(self, z, y):
        return (math.exp(z) if z < 709.0 else math.inf) - y * z

    def slope(self, z, y):
        return (math.exp(z) if z < 709.0 else math.inf) - y

    def curvature(self, z, y):
        return math.exp(z) if z < 709.0 else math.inf

    def predict(self, z):
        return np.exp(z)

    def check_labels(self, y):
        if (y < 0.0).any():
            raise ValueError(f"Poisson: labels must be counts; got {y.min():g}")


@declares(task="regression", lower_bound=0.0, smoothness=1.0, lipschitz=1.0)
class Huber(NamedTuple):
    """Quadratic for residuals up to 1, linear beyond."""

    def value(self, z, y):
        r = abs(z - y)
        return 0.5 * r * r if r <= 1.0 else r - 0.5

    def slope(self, z, y):
        return min(max(z - y, -1.0), 1.0)

    def curvature(self, z, y):
        return 1.0 if abs(z - y) <= 1.0 else 0.0


class Quantile(NamedTuple):
    """t r + h log(1 + exp(-r/h)), r = y - z: the check function of the t-quantile, smoothed over a width h."""

    t: float = 0.9
    h: float = 0.1

    task, lower_bound = "regression", 0.0
    lipschitz = property(lambda self: max(self.t, 1.0 - self.t))
    smoothness = property(lambda self: 0.25 / self.h)
    self_concordance = property(lambda self: 1.0 / self.h)

    def value(self, z, y):
        r = y - z
        return self.t * r + self.h * math.log1p(math.exp(-abs(r) / self.h)) + max(-r, 0.0)

    def slope(self, z, y):
        e = math.exp(-abs(y - z) / self.h)
        return (1.0 if z > y else e) / (1.0 + e) - self.t

    def curvature(self, z, y):
        e = math.exp(-abs(y - z) / self.h)
        return e / ((1.0 + e) * (1.0 + e) * self.h)


@njit
def _tail(m):
    """1 - 1/m^2 + 3/m^4 - 15/m^6 + 105/m^8: Phi(m) = phi(m) tail/(-m), to 1e-12 for m < -30."""
    u = 1.0 / (m * m)
    return 1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u)))


@njit
def _hazard(m):
    """phi(m)/Phi(m)."""
    return -m / _tail(m) if m < -30.0 else 0.7978845608028654 * math.exp(-0.5 * m * m) / math.erfc(-m / math.sqrt(2.0))


@declares(task="classification", lower_bound=0.0, smoothness=1.0)
class Probit(NamedTuple):
    """-log Phi(y z) for labels -1/+1."""

    def value(self, z, y):
        m = y * z
        if m < -30.0:
            return 0.5 * m * m + math.log(-m * 2.5066282746310002 / _tail(m))
        return -math.log(0.5 * math.erfc(-m / math.sqrt(2.0)))

    def slope(self, z, y):
        return -y * _hazard(y * z)

    def curvature(self, z, y):
        return max(_hazard(y * z) * (y * z + _hazard(y * z)), 0.0)

    def probabilities(self, z):
        return ndtr(z)
