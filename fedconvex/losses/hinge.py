"""Two classes, by margins: support vector machines."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex._check import real
from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_signs


@declares(task="classification", lower_bound=0.0, smoothness=math.inf, lipschitz=1.0)
class Hinge(NamedTuple):
    """Hinge loss l(z, y) = max(0, 1 - y z), labels -1/+1.

    Examples
    --------
    >>> from fedconvex import Hinge
    >>> Hinge().value(0.25, 1.0), Hinge().slope(0.25, 1.0), Hinge().smoothness
    (0.75, -1.0, inf)
    """

    def value(self, z, y):
        """Return max(0, 1 - y z), NaN for NaN."""
        m = 1.0 - y * z
        return 0.0 if m <= 0.0 else m

    def slope(self, z, y):
        """Return the subgradient -y if y z < 1, else 0."""
        return -y if y * z < 1.0 else 0.0

    def conjugate(self, a, y):
        """Return y a if -1 <= y a <= 0."""
        return y * a if -1.0 <= y * a <= 0.0 else math.inf

    def dual_step(self, alpha, z, q, y):
        """Clip u + (1 - y z)/q to [0, 1], u = y alpha; with q = 0 go to the better end."""
        u, r = y * alpha, 1.0 - y * z
        if q > 0.0:
            new = min(max(u + r / q, 0.0), 1.0)
        else:
            new = 1.0 if r > 0.0 else (0.0 if r < 0.0 else u)
        return y * (new - u)

    def slope_range(self, y):
        """Slopes lie between 0 and -y."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)

    def smoothed(self, width):
        """Return the smoothed hinge of that width: it lies below the hinge by at most width/2."""
        return SmoothedHinge(width)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless every label is -1 or +1."""
        check_signs("Hinge", y)


@declares(task="classification", lower_bound=0.0, lipschitz=1.0, banded=True)
class SmoothedHinge(NamedTuple):
    """Hinge loss smoothed over a band of width gamma: its conjugate is that of the hinge plus (gamma/2) a^2.

    With m = 1 - y z: 0 if m <= 0, m^2/(2 gamma) if m <= gamma, m - gamma/2 beyond (Shalev-Shwartz and Zhang 2013).

    Parameters
    ----------
    gamma : float
        Width of the quadratic band, positive.

    Examples
    --------
    >>> from fedconvex import SmoothedHinge
    >>> loss = SmoothedHinge(gamma=0.5)
    >>> loss.value(0.0, 1.0), loss.smoothness
    (0.75, 2.0)
    """

    gamma: float = 1.0

    def value(self, z, y):
        """Return the smoothed hinge at margin y z."""
        m = 1.0 - y * z
        if m <= 0.0:
            return 0.0
        return m * m / (2.0 * self.gamma) if m <= self.gamma else m - 0.5 * self.gamma

    def slope(self, z, y):
        """Return -y clip(m/gamma, 0, 1)."""
        return -y * min(max((1.0 - y * z) / self.gamma, 0.0), 1.0)

    def curvature(self, z, y):
        """Return 1/gamma inside the band, else 0 (an element of the generalised second derivative)."""
        m = 1.0 - y * z
        return 1.0 / self.gamma if 0.0 < m <= self.gamma else 0.0

    def conjugate(self, a, y):
        """Return y a + (gamma/2) a^2 if -1 <= y a <= 0."""
        return y * a + 0.5 * self.gamma * a * a if -1.0 <= y * a <= 0.0 else math.inf

    def dual_step(self, alpha, z, q, y):
        """Clip u + (1 - y z - gamma u)/(gamma + q) to [0, 1], u = y alpha."""
        u = y * alpha
        return y * (min(max(u + (1.0 - y * z - self.gamma * u) / (self.gamma + q), 0.0), 1.0) - u)

    @property
    def smoothness(self) -> float:
        """sup l'' = 1/gamma."""
        return 1.0 / self.gamma

    def slope_range(self, y):
        """Slopes lie between 0 and -y."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError unless gamma > 0 and every label is -1 or +1."""
        real("SmoothedHinge.gamma", self.gamma, low=0.0, strict=True)
        check_signs("SmoothedHinge", y)
