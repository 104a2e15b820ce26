"""L-smooth mu-strongly convex functions through given points, gradients and values, and when there is one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedconvex.simplex.uncertainty import minimise_over_simplex


class Point(NamedTuple):
    """A point of a function: coefficients of x and of the gradient over the basis, of the value over the values."""

    x: np.ndarray  # (gram,)
    g: np.ndarray  # (gram,)
    f: np.ndarray  # (values,)


def product(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix A with <A, G> = <u, v> for vectors u, v given by coefficients."""
    outer = np.outer(u, v)
    return 0.5 * (outer + outer.T)


def curvature(dx: np.ndarray, dg: np.ndarray, L: float, mu: float) -> np.ndarray:
    """Return [‖dg‖^2/L + mu ‖dx‖^2 - 2 (mu/L) <dg, dx>]/(2 (1 - mu/L)) over the last axis."""
    inner = np.sum(dg * dg, -1) / L + mu * np.sum(dx * dx, -1) - 2.0 * mu / L * np.sum(dg * dx, -1)
    return np.asarray(inner / (2.0 * (1.0 - mu / L)))


def interpolation(p: Point, q: Point, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (A, a) of the interpolation inequality <A, G> + a'f <= 0 with L = 1: f_q + ... - f_p <= 0."""
    dx, dg = p.x - q.x, p.g - q.g
    inner = product(dg, dg) + mu * product(dx, dx) - 2.0 * mu * product(dg, dx)
    return product(q.g, dx) + inner / (2.0 * (1.0 - mu)), q.f - p.f


@dataclass(frozen=True)
class Interpolant:
    """The largest L-smooth mu-strongly convex function through given points, gradients and values.

    With h(x) = F(x) - (mu/2)‖x‖^2, l = L - mu, z_j = x_j - h_j'/l and c_j = h_j - ‖h_j'‖^2/(2 l) (h_j, h_j' the data
    of h),

        h(x) = min over weights w >= 0, sum w = 1, of (l/2) ‖x - sum_j w_j z_j‖^2 + sum_j w_j c_j,
        grad h(x) = l (x - sum_j w_j z_j).

    It is L-smooth and mu-strongly convex whatever the data are, and passes through them if `violation` is <= 0.

    Attributes
    ----------
    L, mu : float
    x, g : array (m, d)
        Points and gradients; point 0 is x* = 0.
    f : array (m,)
        Values.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.worst_case import Interpolant
    >>> x, g, f = np.array([[-3.0], [0.0], [3.0]]), np.array([[-1.0], [0.0], [1.0]]), np.array([2.5, 0.0, 2.5])
    >>> huber = Interpolant(1.0, 0.0, x, g, f)
    >>> huber.value(np.array([2.0])), huber.gradient(np.array([2.0]))
    (1.5, array([1.]))
    """

    L: float
    mu: float
    x: np.ndarray
    g: np.ndarray
    f: np.ndarray

    def violation(self) -> float:
        """Return the largest violation of an interpolation inequality: <= 0 if the class interpolates the data."""
        dx, dg = self.x[:, None] - self.x[None], self.g[:, None] - self.g[None]  # [p, q]
        right = np.einsum("qd,pqd->pq", self.g, dx) + curvature(dx, dg, self.L, self.mu)
        return float(np.max(self.f[None] + right - self.f[:, None] - np.diag(np.full(len(self.f), math.inf))))

    def value(self, x: np.ndarray) -> float:
        """F(x)."""
        return self._at(x)[0]

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient of F at x, (d,)."""
        return self._at(x)[1]

    def prox(self, x: np.ndarray, step: float) -> np.ndarray:
        """Return argmin_y F(y) + ‖y - x‖^2/(2 step), (d,).

        Minimised over y first, what is left over the simplex is (l/A) (mu + 1/step)/2 ‖z - x/(1 + step mu)‖^2 + c'w
        with z = sum_j w_j z_j, A = l + mu + 1/step, and y = (l z + x/step)/A.
        """
        ell, pull = self.L - self.mu, 1.0 / step
        z, c = self._pieces()
        A = ell + self.mu + pull
        w = minimise_over_simplex(math.sqrt(ell * (self.mu + pull) / A) * (z - x / (1.0 + step * self.mu)), c)
        return np.asarray((ell * (w @ z) + pull * x) / A)

    def _pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """z_j, (m, d), and c_j, (m,)."""
        ell, dh = self.L - self.mu, self.g - self.mu * self.x
        c = self.f - 0.5 * self.mu * np.sum(self.x**2, axis=1) - np.sum(dh**2, axis=1) / (2.0 * ell)
        return self.x - dh / ell, c

    def _at(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        ell, (z, c) = self.L - self.mu, self._pieces()
        w = minimise_over_simplex(math.sqrt(ell) * (z - x), c)
        r = x - w @ z
        return float(0.5 * ell * r @ r + w @ c + 0.5 * self.mu * x @ x), ell * r + self.mu * x
