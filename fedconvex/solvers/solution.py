"""A minimiser with its certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedconvex import _html
from fedconvex.fitted import Fitted

__all__ = ["DIRECT_SIZE", "Solution"]

DIRECT_SIZE = 3000  # parameters up to which Hessians are formed and factored


@dataclass(frozen=True)
class Solution(Fitted):
    """A minimiser with its certificate: F* lies in [lower, value].

    Where columns are collinear up to rounding only, models of norm 1e13 may be far better, and little is certified of
    F*. Then ``lower_within`` bounds F from below over all models of bounded reach, sum_j |w_j| max_i |x_ij|.

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
        Whether the minimiser is proved to be the only one (F strictly convex at w).
    iterations : int
        Gradient evaluations.
    seconds : float
    alpha : array (n,), optional
        Dual variables that a later solution may start from, where they are at hand.
    lower_within : float
        A certified lower bound of F over models of reach at most ``reach``; default ``lower``.
    reach : float
        Default inf: then ``lower_within`` holds for every model.
    problem : problem or None
        What was solved: `model`, `predict` and `save` read it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> x = np.arange(1.0, 9.0)
    >>> X, y = np.column_stack([x, 0.1 * x]), np.array([1.0, -1.0] * 4)  # 0.1 x is rounded: columns are independent
    >>> best = Problem(Federation.from_arrays(X, y, np.arange(8)), Squared()).solve()
    >>> best.lower, best.gap_within < 1e-10, best.reach
    (0.0, True, 100000.0)
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
    lower_within: float = math.nan
    reach: float = math.inf
    problem: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if math.isnan(self.lower_within) or self.reach == math.inf:  # then it is lower, after dataclasses.replace too
            object.__setattr__(self, "lower_within", self.lower)
        self.w.flags.writeable = False  # solutions are kept and shared
        if self.alpha is not None:
            self.alpha.flags.writeable = False

    @property
    def gap(self) -> float:
        """Certified bound of F(w) - F*."""
        return self.value - self.lower

    @property
    def gap_within(self) -> float:
        """Certified bound of F(w) - F(v) for every v of reach at most ``reach``."""
        return self.value - self.lower_within

    _repr_html_ = _html.of_solution
