"""Where agnostic learning wins by a constant, and where it cannot win at all.

Setting
    One point, two classes, cross-entropy, all hypotheses h_q = P(class 0) = q. D_1: always class 1; D_2: both classes
    equally often. Lambda: all mixtures of the two.
Statement
    L_1(q) = -log(1 - q), L_2(q) = -(1/2) log q - (1/2) log(1 - q). The agnostic optimum is q = 1/2 with value log 2;
    the uniform mixture is minimised by q = 1/4, whose agnostic loss is log(4/sqrt 3): worse by log(2/sqrt 3) = 0.1438.
    Hull: the target (1/2, 0, 1/2) is at l1 distance 1/2 from all mixtures of (1/2, 1/2, 0) and (0, 0, 1).
Source
    Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019, arXiv:1902.00146 (the log(2/sqrt 3) instance);
    derived again. The hull example: derived.
What differs
    The instance shows that such problems exist, not that agnostic learning is always better by a constant. Outside the
    hull of the domains the agnostic guarantee pays M times the l1 distance, and can be far from the best hypothesis.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, finite, numeric

__all__ = ["HullDistance", "domain_losses", "hull_distance", "uniform_excess"]


class HullDistance(NamedTuple):
    """The l1 distance of a distribution from all mixtures of the domains.

    Attributes
    ----------
    distance : float
        sum of absolute differences, in [0, 2]; 0 where the target is a mixture of the domains.
    domain_weights : array (p,)
        A nearest mixture.
    certificate : array (outcomes,)
        u with |u| <= 1 and u'target - max_k u'D_k = distance: no mixture is nearer.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_example import hull_distance
    >>> found = hull_distance([0.0, 0.0, 1.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> round(found.distance, 9), round(float(found.domain_weights.sum()), 9)
    (2.0, 1.0)
    """

    distance: float  # in [0, 2]
    domain_weights: np.ndarray  # (p,) a nearest mixture
    certificate: np.ndarray  # (outcomes,) |u| <= 1 with u'target - max_k u'D_k = distance


def domain_losses(q: Any) -> np.ndarray:
    """Return L_1(q) and L_2(q), (..., 2), for 0 < q < 1.

    Parameters
    ----------
    q : float or array (...)
        The probability that the model gives to the outcome 1.

    Raises
    ------
    ValueError, TypeError
        If q is not strictly between 0 and 1.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_example import domain_losses
    >>> domain_losses(0.5).round(6).tolist()
    [0.693147, 0.693147]
    """
    q = numeric("domain_losses: q", q)
    if not ((q > 0.0) & (q < 1.0)).all():
        raise bad("domain_losses: q", "lie strictly between 0 and 1", f"{q}")
    return np.stack([-np.log1p(-q), -0.5 * np.log(q) - 0.5 * np.log1p(-q)], axis=-1)


def uniform_excess() -> float:
    """Return log(2/sqrt 3), by how much the uniform mixture's optimum misses the agnostic optimum.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_example import domain_losses, uniform_excess
    >>> bool(abs(domain_losses(0.25).max() - domain_losses(0.5).max() - uniform_excess()) < 1e-15)
    True
    """
    return math.log(2.0 / math.sqrt(3.0))


def hull_distance(target: Any, domains: Any) -> HullDistance:
    """Return min over mixtures of ‖target - sum lambda_k D_k‖_1, by linear programming, with a dual certificate.

    Parameters
    ----------
    target : array (outcomes,)
        A distribution.
    domains : array (p, outcomes)
        The domains' distributions.

    Raises
    ------
    ValueError
        If a row is not a distribution.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_example import hull_distance
    >>> hull_distance([0.5, 0.0, 0.5], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]).distance
    0.5
    """
    from scipy.optimize import linprog

    t, D = numeric("hull_distance: target", target), np.atleast_2d(numeric("hull_distance: domains", domains))
    if t.ndim != 1 or D.ndim != 2 or D.shape[1] != t.size:
        raise bad("hull_distance: domains", f"have shape (p, {t.size})", f"{D.shape}")
    for name, rows in (("target", t[None]), ("domains", D)):
        finite(f"hull_distance: {name}", rows)
        if rows.size == 0 or (rows < 0.0).any() or np.abs(rows.sum(axis=1) - 1.0).max() > 1e-9:
            raise bad(f"hull_distance: {name}", "be distributions", f"{rows}")
    p, n = D.shape
    # min 1'(a + b), D'lambda + a - b = t, sum lambda = 1
    equal = np.block([[D.T, np.eye(n), -np.eye(n)], [np.ones((1, p)), np.zeros((1, 2 * n))]])
    found = linprog(np.r_[np.zeros(p), np.ones(2 * n)], A_eq=equal, b_eq=np.r_[t, 1.0], method="highs")
    u = np.clip(found.eqlin.marginals[:n], -1.0, 1.0)
    lam = np.maximum(found.x[:p], 0.0)
    lam /= lam.sum()
    return HullDistance(float(np.abs(t - lam @ D).sum()), lam, u)
