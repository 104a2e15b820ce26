"""The largest value of a convex quadratic on a ball."""

from __future__ import annotations

import math

import numpy as np

from fedconvex._check import real

__all__ = ["ball_maximum"]


def ball_maximum(A: np.ndarray, beta: np.ndarray, c: float, radius: float) -> float:
    """Return max of d'A d + 2 beta'd + c over ‖d‖ <= radius, for positive semidefinite A: a trust-region problem.

    The maximum lies on the sphere and d_j = beta_j/(nu - lam_j) in eigencoordinates, where nu > lam_max solves the
    secular equation sum_j (beta_j/(nu - lam_j))^2 = radius^2; in the hard case a multiple of the top eigenvector is
    added to reach the sphere.

    Parameters
    ----------
    A : array (d, d)
        Symmetric, positive semidefinite.
    beta : array (d,)
    c, radius : float
        radius >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.constants import ball_maximum
    >>> ball_maximum(np.diag([1.0, 2.0]), np.zeros(2), 0.0, 3.0)
    18.0
    """
    if real("ball_maximum: radius", radius, low=0.0) == 0.0:
        return float(c)
    lam, V = np.linalg.eigh(A)
    b = V.T @ beta
    top, scale = lam[-1], max(abs(lam[-1]), float(np.linalg.norm(b)) / radius, 1e-300)
    is_top = lam >= top - 1e-13 * scale

    def norm2(nu: float) -> float:
        return float(np.sum((b / (nu - lam)) ** 2))

    low, high = top + np.linalg.norm(b[is_top]) / radius, top + np.linalg.norm(b) / radius
    rest = b[~is_top] / (top - lam[~is_top])
    if np.linalg.norm(b[is_top]) <= 1e-15 * scale * radius and rest @ rest <= radius**2:  # hard case
        d = np.zeros_like(b)
        d[~is_top] = rest
        d[-1] = math.sqrt(max(radius**2 - rest @ rest, 0.0))
    else:
        low = max(low, np.nextafter(top, math.inf))
        for _ in range(200):  # bisection: norm2 decreases in nu
            nu = 0.5 * (low + high)
            if nu <= low or nu >= high:
                break
            low, high = (nu, high) if norm2(nu) > radius**2 else (low, nu)
        nu = high
        d = b / np.maximum(nu - lam, 1e-300)
        d *= radius / np.linalg.norm(d)
    return float(d @ (lam * d) + 2.0 * b @ d + c)
