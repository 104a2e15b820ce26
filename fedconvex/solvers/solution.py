"""A minimiser with its certificate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["DIRECT_SIZE", "Solution"]

DIRECT_SIZE = 3000  # parameters up to which Hessians are formed and factored


@dataclass(frozen=True)
class Solution:
    """A minimiser with its certificate: F* lies in [lower, value].

    Attributes
    ----------
    w : array, the model's shape
    value, lower : float
        F(w), and a certified lower bound of F*.
    certificate : str
        Where the lower bound comes from.
    attained : bool
        False where F has no minimiser as far as can be told (separable data without l2): then w is only a point of low
        value.
    unique : bool
        Whether the minimiser is the only one (F strictly convex at w).
    iterations : int
        Gradient evaluations.
    seconds : float
    alpha : array (n,), optional
        Dual variables that a later solution may start from, where they are at hand.
    """

    w: np.ndarray
    value: float
    lower: float
    certificate: str
    attained: bool
    unique: bool
    iterations: int
    seconds: float
    alpha: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.w.flags.writeable = False  # solutions are kept and shared
        if self.alpha is not None:
            self.alpha.flags.writeable = False

    @property
    def gap(self) -> float:
        """Certified bound of F(w) - F*."""
        return self.value - self.lower
