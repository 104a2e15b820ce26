"""How much the Hessians of clients differ: the constants of methods that are fast where clients are similar.

delta is the least number with sum_k p_k ‖(h_k(x) - h_k(y))‖^2 <= delta^2 ‖x - y‖^2 for all x and y, h_k the gradient of
F - f_k (second-order dissimilarity: Jiang, Rodomanov, Stich, "Federated optimization with doubly regularized drift
correction", ICML 2024). The l2 term cancels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.loss_traits import traits


class Dissimilarity(NamedTuple):
    """A constant of the difference of Hessians."""

    value: float
    exact: bool  # or an upper bound


def second_order_dissimilarity(problem: Any) -> Dissimilarity:
    """Return delta of a problem over clients: exact for squared loss, else an upper bound.

    For squared loss it is the root of the largest eigenvalue of sum_k p_k (H_k - H)^2. Elsewhere Hessians A_k lie
    between 0 and M_k = s X_k'X_k/n_k, s the smoothness of the loss, and means of Hessians along a segment do so too:
    sum_k p_k (A_k - A)^2 <= sum_k p_k A_k^2 <= sum_k p_k ‖M_k‖ M_k (derived).
    The bound does not see similarity, except that of one client, which is 0.

    Parameters
    ----------
    problem : Problem

    Raises
    ------
    ValueError
        If squares of entries overflow.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem, Squared
    >>> from fedconvex.constants.similarity import second_order_dissimilarity
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [1.0])])
    >>> [round(second_order_dissimilarity(Problem(fed, loss)).value, 4) for loss in (Squared(), Logistic())]
    [1.5, 0.7289]
    """
    s, p = float(traits(problem.loss).smoothness), problem.weights
    if problem.federation.K == 1:
        return Dissimilarity(0.0, True)
    if traits(problem.loss).quadratic:
        mean = _mean_gram(problem)
        away = [gram(problem, k) - mean for k in range(problem.federation.K)]
        unit = max(float(np.abs(A).max()) for A in away) or 1.0  # squares of A/unit do not overflow
        spread = sum(q * (A / unit @ (A / unit)) for q, A in zip(p, away, strict=True))
        return Dissimilarity(s * unit * math.sqrt(max(_top(spread), 0.0)), True)
    grams = [gram(problem, k) for k in range(problem.federation.K)]
    tops = [_top(M) for M in grams]
    unit = max(tops) or 1.0
    total = sum(q * (top / unit) * (M / unit) for q, top, M in zip(p, tops, grams, strict=True))
    return Dissimilarity(s * unit * math.sqrt(_top(total)), False)


def leader_dissimilarity(problem: Any, k: int) -> Dissimilarity:
    """Return the largest norm of the difference of the Hessians of f_k and F: exact for squared loss, else a bound.

    Both lie between 0 and their M: the norm of the difference is at most the larger of ‖M_k‖ and ‖M‖ (derived).

    Parameters
    ----------
    problem : Problem
    k : int
        The client.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.constants.similarity import leader_dissimilarity
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [1.0])])
    >>> leader_dissimilarity(Problem(fed, Squared()), 1)
    Dissimilarity(value=1.5, exact=True)
    """
    s, mine, mean = float(traits(problem.loss).smoothness), gram(problem, k), _mean_gram(problem)
    if traits(problem.loss).quadratic:
        return Dissimilarity(s * max(_top(mine - mean), _top(mean - mine)), True)
    return Dissimilarity(s * max(_top(mine), _top(mean)), False)


def gram(problem: Any, k: int) -> np.ndarray:
    """Return X_k'X_k/n_k (d, d), rows with their weights."""
    X = problem.federation.client_rows(k)[0]
    weights = problem.weigh(k, np.ones(X.shape[0]))[:, None] / X.shape[0]
    with np.errstate(over="ignore", invalid="ignore"):  # which is told below
        found = X.T @ (X * weights if isinstance(X, np.ndarray) else X.multiply(weights))
    found = found if isinstance(found, np.ndarray) else found.toarray()
    if not np.isfinite(found).all():
        raise bad("Federation.X", "have squares that are finite, for a Hessian", "others", "use other units")
    return found


def _mean_gram(problem: Any) -> np.ndarray:
    return sum(q * gram(problem, k) for k, q in enumerate(problem.weights))  # type: ignore[return-value]


def _top(A: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(A)[-1])
