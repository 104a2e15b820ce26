"""Regression by a loss that is squared near 0, absolute far away, and smooth everywhere."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex._check import real
from fedconvex.loss_traits import declares


@declares(task="regression", lower_bound=0.0, smoothness=1.0)
class LogCosh(NamedTuple):
    """l(z, y) = s^2 log cosh((z - y)/s), for real labels; |l'''| = 2 |l'| l''/s^2 <= (2/s) l''.

    Parameters
    ----------
    scale : float
        s, where the loss turns from squared to absolute, in units of the label.

    Examples
    --------
    >>> import math
    >>> from fedconvex.losses import LogCosh
    >>> LogCosh().value(1001.0, 1.0) == 1000.0 - math.log(2.0), LogCosh(scale=3.0).lipschitz
    (True, 3.0)
    """

    scale: float = 1.0

    def value(self, z, y):
        """Return s^2 log cosh((z - y)/s) without overflow."""
        r = abs(z - y) / self.scale
        return self.scale * self.scale * (r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0))

    def slope(self, z, y):
        """Return s tanh((z - y)/s)."""
        return self.scale * math.tanh((z - y) / self.scale)

    def curvature(self, z, y):
        """Return 1 / cosh((z - y)/s)^2."""
        t = math.exp(-2.0 * abs(z - y) / self.scale)
        return 4.0 * t / ((1.0 + t) * (1.0 + t))

    @property
    def lipschitz(self) -> float:
        """Sup |l'| = s."""
        return self.scale

    @property
    def self_concordance(self) -> float:
        """M with |l'''| <= M l'': 2/s."""
        return 2.0 / self.scale

    def check_labels(self, y: np.ndarray) -> None:
        """Accept every finite label; a scale that is no positive number is refused here."""
        real("LogCosh.scale", self.scale, low=0.0, strict=True)
