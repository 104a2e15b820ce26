"""Factors that take in what gradients say along the way: BFGS updates of the Hessian of the weighted domains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_MOST = 10.0  # how many times longer, in the metric of H^-1, a change of gradients may be than what is along the step


class UpdatedFactor:
    """A factor of H_0 for the BFGS update H with H s = y, as products: no matrix is formed, nothing factored anew.

    H^-1 = (I - rho s y') H_0^-1 (I - rho y s') + rho s s', rho = 1/s'y.
    """

    def __init__(self, factor: Any, s: np.ndarray, y: np.ndarray) -> None:
        self._factor, self._s, self._y, self._rho = factor, s, y, 1.0 / float(s @ y)

    def solve(self, g: np.ndarray) -> np.ndarray:
        """H^-1 g."""
        along = self._rho * float(self._s @ g)
        v = self._factor.solve(g - along * self._y)
        return np.asarray(v + (along - self._rho * float(self._y @ v)) * self._s)

    def whiten(self, G: np.ndarray) -> np.ndarray:
        """Return rows Z with Z Z' = G H^-1 G'."""
        along = G @ self._s
        rest = self._factor.whiten(G - np.outer(self._rho * along, self._y))
        return np.column_stack([rest, math.sqrt(self._rho) * along])


def updated(factor: Any, s: np.ndarray, y: np.ndarray) -> Any:
    """Return the factor updated by a step s that has changed the gradient by y.

    As it is, where y is not that of a Hessian that resembles H_0: where it is mostly rounding, or l'' has jumped.
    """
    along = float(s @ y)
    return UpdatedFactor(factor, s, y) if 0.0 < float(y @ factor.solve(y)) <= _MOST * along else factor
