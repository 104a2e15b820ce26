"""Counts that spread more than Poisson's, by the likelihood of the negative binomial distribution with mean e^z."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex._check import real
from fedconvex.loss_traits import declares
from fedconvex.losses.stable import check_counts, excess, exp, logit_root, softplus


@declares(task="regression", lower_bound=0.0, self_concordance=1.0)
class NegativeBinomial(NamedTuple):
    """Half the unit deviance: l(z, y) = (y + theta) log((theta + e^z)/(theta + y)) - y z + y log y, labels y >= 0.

    The mean is e^z and the variance e^z + e^(2 z)/theta. With p = y/(y + theta) and t = z - log y it is computed as
    (y + theta) log(1 + (1 - p) f(-p t) + p f((1 - p) t)), f(u) = e^u - 1 - u, in which nothing cancels.

    Parameters
    ----------
    theta : float
        Positive; the smaller, the more the counts spread. It is given, not estimated.

    References
    ----------
    McCullagh and Nelder, "Generalized linear models", 2nd edition, 1989, Section 6.2.

    Examples
    --------
    >>> from fedconvex.losses import NegativeBinomial
    >>> loss = NegativeBinomial(theta=2.0)
    >>> loss.value(0.0, 1.0), loss.slope(0.0, 4.0), loss.slope_range([4.0])
    (0.0, -2.0, (array([-4.]), array([2.])))
    """

    theta: float = 1.0

    def value(self, z, y):
        """Return the deviance, finite for every z whose e^z or e^-z is."""
        n = y + self.theta
        if y <= 0.0:
            return n * (math.log1p(math.exp(z) / n) if z < 600.0 else softplus(z - math.log(n)))
        p, t = y / n, z - math.log(y)
        up, down = self.theta / n * t, -p * t
        if up < 700.0 and down < 700.0:
            return n * math.log1p(self.theta / n * excess(down) + p * excess(up))
        return n * (math.log(p) + up) if t > 0.0 else n * (math.log(self.theta / n) + down)

    def slope(self, z, y):
        """Return theta (e^z - y)/(theta + e^z), with e^z - y = y (e^t - 1)."""
        far = y <= 0.0 or abs(z - math.log(y)) > 1.0
        if z > 0.0:
            rise = 1.0 - y * exp(-z) if far else -math.expm1(math.log(y) - z)
            return self.theta * rise / (1.0 + self.theta * exp(-z))
        rise = exp(z) - y if far else y * math.expm1(z - math.log(y))
        return self.theta * rise / (self.theta + exp(z))

    def curvature(self, z, y):
        """Return theta e^z (y + theta)/(theta + e^z)^2."""
        x = z - math.log(self.theta)
        e = math.exp(-abs(x))
        return (y + self.theta) * (e / ((1.0 + e) * (1.0 + e)))

    def conjugate(self, a, y):
        """Return a log theta + n (u log u + (1 - u) log(1 - u)) and its value at z = log y, u = (a + y)/n."""
        n = y + self.theta
        u = (a + y) / n
        if u < 0.0 or u > 1.0:
            return math.inf
        left = u * math.log(u) if u > 0.0 else 0.0
        right = (1.0 - u) * math.log1p(-u) if u < 1.0 else 0.0
        own = self.theta * math.log(self.theta / n) + (y * math.log(y / n) if y > 0.0 else 0.0)
        return a * math.log(self.theta) + n * (left + right) - own

    def dual_step(self, alpha, z, q, y):
        """Solve x + log theta - z + q n (s(x) - (y - alpha)/n) = 0 for the logit x of the new u = (y - alpha)/n."""
        n = y + self.theta
        x = logit_root(math.log(self.theta) - z, q * n, (y - alpha) / n)
        e = math.exp(-abs(x))
        return (y - alpha) - n * ((1.0 if x > 0.0 else e) / (1.0 + e))

    def slope_range(self, y):
        """Slopes lie between -y and theta."""
        return -np.asarray(y, dtype=np.float64), np.full(len(y), self.theta)

    def predict(self, z):
        """Return the means e^z of scores (n,)."""
        with np.errstate(over="ignore"):
            return np.exp(z)

    def check_labels(self, y: np.ndarray) -> None:
        """Raise ValueError if a label is negative, or theta is not positive."""
        real("NegativeBinomial.theta", self.theta, low=0.0, strict=True)
        check_counts("NegativeBinomial", y)
