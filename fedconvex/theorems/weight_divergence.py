"""Weight divergence of FedAvg from centralised descent: Zhao et al. (2018), Proposition 3.1, and a convex replacement.

Setting
    Clients with shares p_k of the rows; T local full-gradient steps of size eta between synchronisations, against
    gradient descent on F = sum p_k F_k with the same eta. w_f, w_c: the two models after a synchronisation,
    w_c^j: the centralised model j steps into the round.
Assumptions
    Zhao: F_k(w) = sum_y p_k(y) l_y(w): **all clients share the class conditionals** and differ in their class shares
    p_k(y) only; grad l_y is lambda_y-Lipschitz; p(y) = sum_k p_k p_k(y). Convex: every F_k is mu_k-strongly convex
    (mu_k >= 0) and L_k-smooth.
Statement
    Zhao, a_k = 1 + eta sum_y p_k(y) lambda_y, EMD_k = sum_y |p_k(y) - p(y)|, g_max(w) = max_y ‖grad l_y(w)‖:
        ‖w_f - w_c‖ <= sum p_k a_k^T ‖previous‖ + eta sum p_k EMD_k sum_{j=1}^{T-1} a_k^j g_max(w_c^{T-1-j}).
    Convex, c_k = max{|1 - eta mu_k|, |1 - eta L_k|} (<= 1 for eta <= 2/L_k):
        ‖w_f - w_c‖ <= sum p_k c_k^T ‖previous‖ + eta sum p_k sum_{j=1}^{T-1} c_k^j ‖(grad F_k - grad F)(w_c^{T-1-j})‖.
Source
    Zhao, Li, Lai, Suda, Civin, Chandra, "Federated learning with non-IID data", arXiv:1806.00582, Proposition 3.1.
    FROM-MEMORY: its text could not be re-read. The inequality above, with the sum from j = 1, is derived here
    (docs/theory/weight_divergence.md), constants included. The convex form is this project's.
What differs
    j starts at 1 because the last local step's client terms cancel in the average (for T = 1 FedAvg is gradient
    descent): unrolling client by client would give a needless j = 0 term. The classes' gradients must be those of the
    same functions on every client; for finite data with other class conditionals use the convex form, whose factor is
    c_k <= 1 instead of a_k > 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import bad, numeric, real, whole
from fedconvex.constants import Constants
from fedconvex.problems import Problem
from fedconvex.theorems.parts.assumptions import client_weights
from fedconvex.theory.bound import WEIGHT_DIVERGENCE, AssumptionError, Bound, Hypothesis, known, require

__all__ = ["class_shares", "divergence", "divergence_convex", "divergence_zhao", "gradient_gaps", "label_distance"]

ZHAO = "Zhao et al. 2018, arXiv:1806.00582, Proposition 3.1 (re-derived)"
CONVEX = "fedconvex, weight divergence of convex FedAvg (docs/theory/weight_divergence.md)"


def divergence(w_federated: Any, w_centralised: Any) -> float:
    """Return DC = ‖w_f - w_c‖/‖w_c‖.

    Examples
    --------
    >>> from fedconvex.theorems.weight_divergence import divergence
    >>> divergence([3.0, 4.0], [3.0, 0.0])
    1.3333333333333333
    """
    f, c = numeric("w_federated", w_federated), numeric("w_centralised", w_centralised)
    if f.shape != c.shape:
        raise bad("w_federated", f"have the shape {c.shape} of w_centralised", f"{f.shape}")
    size = float(np.linalg.norm(c))
    if size == 0.0:
        raise bad("w_centralised", "be nonzero", "the zero model")
    return float(np.linalg.norm(f - c)) / size


def class_shares(problem: Problem) -> np.ndarray:
    """Return p_k(y), the share of every class among the rows of client k: (K, C).

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.weight_divergence import class_shares, label_distance
    >>> fed = Federation.from_clients([([[1.0], [2.0]], [1.0, 1.0]), ([[1.0], [2.0]], [1.0, -1.0])])
    >>> class_shares(Problem(fed, Logistic()))
    array([[0. , 1. ],
           [0.5, 0.5]])
    >>> label_distance(Problem(fed, Logistic()))
    array([0.5, 0.5])
    """
    fed = problem.federation
    classes, code = np.unique(fed.y, return_inverse=True)
    counts = np.zeros((fed.K, classes.size))
    np.add.at(counts, (np.repeat(np.arange(fed.K), fed.sizes), code), 1.0)
    return counts / fed.sizes[:, None]


def label_distance(problem: Problem) -> np.ndarray:
    """Return EMD_k = sum_y |p_k(y) - p(y)| with p = sum_k p_k p_k(y): (K,), between 0 and 2."""
    return _label_distance(class_shares(problem), problem.weights)


def gradient_gaps(problem: Problem, w: Any, *, step_size: float, local_steps: int) -> np.ndarray:
    """Return ‖(grad F_k - grad F)(w_c^j)‖ along T - 1 steps of gradient descent from w, j = 0..T-2: (T-1, K)."""
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    x, gaps = np.array(w, dtype=float), np.empty((T - 1, problem.federation.K))
    for j in range(T - 1):
        g = problem.client_gradients(x)
        mean = np.tensordot(problem.weights, g, 1)
        gaps[j] = np.linalg.norm((g - mean).reshape(len(g), -1), axis=1)
        x = x - eta * mean
    return gaps


def divergence_convex(
    constants: Constants, gaps: Any, *, step_size: float, local_steps: int, previous: float = 0.0
) -> Bound:
    """Return the convex bound of ‖w_f - w_c‖ after a round.

    Parameters
    ----------
    constants : Constants
        L_k (or L), mu_k (default 0), and p or K.
    gaps : array (T-1, K)
        ‖(grad F_k - grad F)(w_c^j)‖, as `gradient_gaps` gives them.
    step_size, local_steps : float, int
        eta <= 2/L_k, T.
    previous : float
        ‖w_f - w_c‖ at the start of the round.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.weight_divergence import divergence_convex
    >>> divergence_convex(Constants(L=1.0, K=2), [[1.0, 1.0]], step_size=0.5, local_steps=2, previous=1.0).value
    1.5
    """
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    start = real("previous", previous, low=0.0)
    p = client_weights(CONVEX, constants)
    if constants.L_k is not None:
        L = np.asarray(known(CONVEX, constants, "L_k")[0], dtype=float)
    else:
        L = np.full(p.size, known(CONVEX, constants, "L")[0])
    mu = np.zeros(p.size) if constants.mu_k is None else np.asarray(constants.mu_k, dtype=float)
    top = float(L.max())
    requires = require(
        CONVEX,
        Hypothesis("every F_k convex", f"smallest mu_k = {mu.min():g}", bool(mu.min() >= 0.0)),
        Hypothesis("step_size <= 2/L", f"step_size = {eta:g}, L = {top:g}", eta * top <= 2.0),
    )
    G = _path("gaps", gaps, (T - 1, p.size))
    return _unrolled(CONVEX, p, np.maximum(np.abs(1.0 - eta * mu), np.abs(1.0 - eta * L)), G, eta, T, start, requires)


def divergence_zhao(
    constants: Constants,
    shares: Any,
    lipschitz: Any,
    gradient_norms: Any,
    *,
    step_size: float,
    local_steps: int,
    previous: float = 0.0,
) -> Bound:
    """Return Proposition 3.1.

    Parameters
    ----------
    constants : Constants
        p or K.
    shares : array (K, C)
        p_k(y).
    lipschitz : array (C,)
        lambda_y.
    gradient_norms : array (T-1,)
        g_max(w_c^j), j = 0..T-2.
    step_size, local_steps : float, int
        eta, T.
    previous : float
        ‖w_f - w_c‖ at the start of the round.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.weight_divergence import divergence_zhao
    >>> one_class_each = [[1.0, 0.0], [0.0, 1.0]]
    >>> bound = divergence_zhao(Constants(K=2), one_class_each, [1.0, 1.0], [1.0], step_size=0.5, local_steps=2)
    >>> bound.value
    0.75
    """
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    start = real("previous", previous, low=0.0)
    p = client_weights(ZHAO, constants)
    lam = numeric("lipschitz", lipschitz)
    P = _path("shares", shares, (p.size, lam.size))
    g = _path("gradient_norms", gradient_norms, (T - 1,))
    off = float(np.abs(P.sum(axis=1) - 1.0).max())
    requires = require(
        ZHAO,
        Hypothesis("all clients share the class conditionals", f"{P.shape[1]} classes"),
        Hypothesis("class shares that sum to one", f"largest deviation {off:g}", off <= 1e-9),
        Hypothesis("finite lambda_y >= 0", f"largest {lam.max():g}", bool(np.isfinite(lam).all() and (lam >= 0).all())),
    )
    a = 1.0 + eta * (P @ lam)
    return _unrolled(ZHAO, p, a, np.outer(g, _label_distance(P, p)), eta, T, start, requires)


def _label_distance(shares: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.abs(shares - p @ shares).sum(axis=1)


def _path(name: str, x: Any, shape: tuple[int, ...]) -> np.ndarray:
    a = numeric(name, x) if np.size(x) else np.zeros((0, *shape[1:]))
    if a.shape != shape:
        raise bad(name, f"have shape {shape}", f"{a.shape}")
    if not np.isfinite(a).all() or (a < 0.0).any():
        raise AssumptionError(f"weight divergence: needs finite nonnegative {name}")
    return a


def _unrolled(
    theorem: str,
    p: np.ndarray,
    factor: np.ndarray,
    gaps: np.ndarray,
    eta: float,
    T: int,
    start: float,
    requires: tuple[Hypothesis, ...],
) -> Bound:
    """sum_k p_k [factor_k^T start + eta sum_{j=0}^{T-2} factor_k^{T-1-j} gaps_{j,k}]."""
    powers = factor ** np.arange(T - 1, 0, -1)[:, None]
    terms = {"previous": float(p @ factor**T) * start, "drift": eta * float(np.sum((powers * gaps) @ p))}
    return Bound(terms, WEIGHT_DIVERGENCE, theorem, requires)
