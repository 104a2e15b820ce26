"""A minimiser with its certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedconvex import _html
from fedconvex.fitted import Fitted

EPS = float(np.finfo(float).eps)

DIRECT_SIZE = 3000  # parameters up to which Hessians are formed and factored


def above(value: float, lower: float, rounding: float) -> float:
    """Return how far F may be above its minimum: inf where that is not a number."""
    gap = max(value - lower, 0.0) + max(rounding, EPS * abs(value))  # the difference is rounded too
    return math.inf if math.isnan(gap) else gap


@dataclass(frozen=True, repr=False)
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
    rounding : float
        How far the computed ``value`` may be from F(w): part of the gaps, as of those of runs.
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
    rounding: float = 0.0
    problem: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if math.isnan(self.lower_within) or self.reach == math.inf:  # then it is lower, after dataclasses.replace too
            object.__setattr__(self, "lower_within", self.lower)
        self.w.flags.writeable = False  # solutions are kept and shared
        if self.alpha is not None:
            self.alpha.flags.writeable = False

    def __repr__(self) -> str:
        kind = "" if self.attained else ", no minimiser is attained"
        shape = f"w of shape {np.shape(self.w)}"
        return f"Solution(value={self.value:.10g}, gap={self.gap:.2g}, certificate={self.certificate!r}, {shape}{kind})"

    @property
    def gap(self) -> float:
        """Certified bound of F(w) - F*, with what rounding may have taken from the value."""
        return above(self.value, self.lower, self.rounding)

    @property
    def gap_within(self) -> float:
        """Certified bound of F(w) - F(v) for every v of reach at most ``reach``."""
        return above(self.value, self.lower_within, self.rounding)

    _repr_html_ = _html.of_solution
