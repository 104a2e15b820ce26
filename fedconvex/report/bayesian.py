"""Whether two methods differ in practice: the correlated Bayesian t-test with a region of practical equivalence."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr

from fedconvex._check import bad, finite, numeric, real


class PracticalDifference(NamedTuple):
    """Posterior of the mean difference of two methods; the three probabilities sum to one.

    Attributes
    ----------
    below : float
        Probability that the mean difference is less than -rope.
    within : float
        Probability that it lies in [-rope, rope]: the methods are equivalent in practice.
    above : float
        Probability that it is more than rope.
    mean, scale : float
        Of the posterior, a Student t with ``freedom`` degrees of freedom.
    freedom : int

    Examples
    --------
    >>> from fedconvex.report import bayesian_t_test
    >>> said = bayesian_t_test([0.01, 0.012, 0.008, 0.011], correlation=0.2, rope=0.005)
    >>> round(said.above, 3), round(said.below + said.within + said.above, 9)
    (0.989, 1.0)
    """

    below: float
    within: float
    above: float
    mean: float
    scale: float
    freedom: int


def bayesian_t_test(differences: Any, correlation: float, rope: float) -> PracticalDifference:
    """Return how likely two methods differ by more than rope, from their differences on overlapping divisions of data.

    The posterior of the mean is a Student t with n - 1 degrees of freedom, located at the mean of the differences, with
    scale^2 = (1/n + correlation/(1 - correlation)) s^2, s^2 their variance (divided by n - 1).

    Parameters
    ----------
    differences : array (n,)
        Of a score, the first method minus the second, on n >= 2 divisions.
    correlation : float
        rho in [0, 1), of differences that share training rows: the share of held-out rows, for folds and repeated
        random splits (Nadeau and Bengio 2003); 0 for independent data.
    rope : float
        Differences up to this one are of no practical importance; 0 or more.

    Raises
    ------
    ValueError, TypeError
        On fewer than two differences, ones that are not finite, and settings out of range.

    References
    ----------
    Corani, Benavoli, "A Bayesian approach for comparing cross-validated algorithms on multiple data sets", Machine
    Learning 100 (2015), 285-304. Nadeau, Bengio, "Inference for the generalization error", Machine Learning 52 (2003),
    239-281.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.report import bayesian_t_test
    >>> found = bayesian_t_test(np.linspace(-0.01, 0.03, 10), correlation=0.1, rope=0.01)
    >>> round(found.below, 6), round(found.within, 6), round(found.above, 6)
    (0.005122, 0.494878, 0.5)
    """
    d = numeric("bayesian_t_test: differences", differences)
    if d.ndim != 1 or d.size < 2:
        raise bad("bayesian_t_test: differences", "be at least two numbers", f"shape {d.shape}")
    finite("bayesian_t_test: differences", d)
    rho = real("bayesian_t_test: correlation", correlation, low=0.0)
    if rho >= 1.0:
        raise bad("bayesian_t_test: correlation", "lie in [0, 1)", correlation)
    width = real("bayesian_t_test: rope", rope, low=0.0)
    unit = float(np.abs(d).max()) or 1.0
    mean, n = unit * float(np.mean(d / unit)), d.size
    scale = math.sqrt(1.0 / n + rho / (1.0 - rho)) * unit * float(np.std(d / unit, ddof=1))
    if not scale > 0.0:  # all alike: the posterior is a point
        below, above = float(mean < -width), float(mean > width)
        return PracticalDifference(below, 1.0 - below - above, above, mean, 0.0, n - 1)
    below, above = (float(stdtr(n - 1, (-width + sign * mean) / scale)) for sign in (-1.0, 1.0))
    return PracticalDifference(below, max(1.0 - below - above, 0.0), above, mean, scale, n - 1)
