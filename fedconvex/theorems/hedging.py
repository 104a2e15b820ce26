"""Progressive hedging (consensus ADMM): linear rate of Douglas-Rachford splitting, in the weighted product space.

Setting
    Minimise F(x) = sum p_k f_k(x). A round: x_k = argmin f_k(x) + <y_k, x - z> + (rho/2)‖x - z‖^2;
    z <- sum p_k x_k; y_k <- y_k + rho (x_k - z). At the start sum p_k y_k = 0, and then always. s_k = z - y_k/rho;
    v_k = x_k + y_k/rho with the y_k that x_k was computed from; ‖s‖_p^2 = sum p_k ‖s_k‖^2. Or everybody takes part in
    the first round and each client with probability q in the later ones; v_k of the others stays, z = sum p_k v_k.
Assumptions
    Every f_k is mu-strongly convex and L-smooth, mu > 0.
Statement
    A round is s <- (s + R_C R_f s)/2, R_f and R_C the reflections of prox_{f_k/rho}, client by client, and of the
    p-weighted average. With s_k* = x* + grad f_k(x*)/rho,

        ‖s^T - s*‖_p <= delta^T ‖s^0 - s*‖_p,
        delta = max{rho/(rho + mu), L/(rho + L)} = 1/2 + max{(g L - 1)/(g L + 1), (1 - g mu)/(1 + g mu)}/2, g = 1/rho,

    least at rho = sqrt(mu L): delta = sqrt(kappa)/(1 + sqrt(kappa)). From y = 0:
    ‖s^0 - s*‖_p^2 = ‖z^0 - x*‖^2 + zeta_*^2/rho^2, zeta_*^2 = sum p_k ‖grad f_k(x*)‖^2. Always
    ‖z^T - x*‖ <= ‖s^T - s*‖_p = ‖v^T - v*‖_p. With sampling E‖v^T - v*‖_p^2 <= delta^2 (1 - q (1 - delta^2))^(T-1)
    ‖v^0 - v*‖_p^2.
Source
    Giselsson, Boyd, "Linear convergence and metric selection for Douglas-Rachford splitting and ADMM", IEEE TAC 62
    (2017), Theorem 2, in the form max{1/(1 + g mu), g L/(1 + g L)} in which the documentation of PEPit quotes it.
    The weighted space, the start and the proof in docs/theory/hedging.md: this project. The method: Rockafellar, Wets,
    "Scenarios and policy aggregation in optimization under uncertainty", Math. Oper. Res. 16 (1991).
What differs
    Unequal weights: in the inner product sum p_k <x_k, y_k> the gradient of sum p_k f_k(x_k) is (grad f_k(x_k))_k, so
    mu and L are those of the f_k themselves, not of p_k f_k. The factor is attained, by equal quadratics.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import Constants
from fedconvex.problems import Problem
from fedconvex.theory.bound import SPLITTING_DISTANCE, Bound, Hypothesis, known, require
from fedconvex.theory.fixed_points import Affine, quadratic

__all__ = ["hedging", "hedging_best_rho", "hedging_factor", "hedging_optimum", "hedging_round"]

SOURCE = "Giselsson, Boyd 2017, Theorem 2, in the p-weighted product space (docs/theory/hedging.md)"


def hedging_factor(constants: Constants, *, rho: float) -> float:
    """Return delta, the contraction of a round.

    Parameters
    ----------
    constants : Constants
        mu_k (or mu, if it holds for every client) and L.
    rho : float
        The penalty.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.hedging import hedging_factor
    >>> hedging_factor(Constants(L=4.0, mu=1.0), rho=2.0) == 2 / 3
    True
    """
    rho = real("rho", rho, low=0.0, strict=True)
    mu, L, _ = _curvature(constants)
    return max(rho / (rho + mu), L / (rho + L))


def hedging_best_rho(constants: Constants) -> float:
    """Return sqrt(mu L), the penalty of the least factor.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.hedging import hedging_best_rho
    >>> hedging_best_rho(Constants(L=4.0, mu=1.0))
    2.0
    """
    mu, L, _ = _curvature(constants)
    return math.sqrt(mu * L)


def hedging(
    constants: Constants, *, rho: float, rounds: int, start_distance: float | None = None, share: float = 1.0
) -> Bound:
    """Return the bound of (E‖v^T - v*‖_p^2)^(1/2), which also bounds ‖z^T - x*‖.

    Parameters
    ----------
    constants : Constants
        mu_k (or mu), L; without start_distance also D = ‖z^0 - x*‖ and zeta_star.
    rho, rounds : float, int
        rho, T.
    start_distance : float, optional
        ‖s^0 - s*‖_p; default that of a start with y = 0.
    share : float
        q, the probability of a client to take part in a round after the first.

    Raises
    ------
    AssumptionError
        If a constant is missing, or mu = 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.hedging import hedging
    >>> constants = Constants(L=1.0, mu=1.0, D=3.0, zeta_star=4.0)
    >>> hedging(constants, rho=1.0, rounds=2).value
    1.25
    """
    rho, T = real("rho", rho, low=0.0, strict=True), whole("rounds", rounds)
    _, _, requires = _curvature(constants)
    if start_distance is None:
        D, zeta = known(SOURCE, constants, "D", "zeta_star")
        start = math.hypot(D, zeta / rho)
        requires += (Hypothesis("y_k = 0 at the start", f"‖z - x*‖ = {D:g}, zeta_*/rho = {zeta / rho:g}"),)
    else:
        start = real("start_distance", start_distance, low=0.0)
    q, square = real("share", share, low=0.0, high=1.0, strict=True), hedging_factor(constants, rho=rho) ** 2
    later = (1.0 - q * (1.0 - square)) ** max(T - 1, 0)
    factor = math.sqrt(square ** min(T, 1) * later)
    return Bound({"start": factor * start}, SPLITTING_DISTANCE, SOURCE, requires)


def hedging_optimum(problem: Problem, *, rho: float) -> np.ndarray:
    """Return s_k* = x* + grad f_k(x*)/rho, (K, *model), for any smooth loss.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.hedging import hedging_optimum
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> hedging_optimum(problem, rho=1.0)
    array([[3.],
           [1.]])
    """
    rho = real("rho", rho, low=0.0, strict=True)
    w = problem.solve().w
    return np.asarray(w + problem.client_gradients(w) / rho)


def hedging_round(problem: Problem, *, rho: float) -> Affine:
    """Return the round on least squares as an exact affine map of s, flat (K d,): s <- s + P(2x - s) - x.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.hedging import hedging_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> map = hedging_round(problem, rho=1.0)
    >>> map.limit(), map.rate
    (array([3., 1.]), 0.5)
    """
    rho = real("rho", rho, low=0.0, strict=True)
    q = quadratic(problem)
    K, d = q.b.shape

    def step(s: Any, b: np.ndarray) -> np.ndarray:
        x = np.linalg.solve(rho * np.eye(d) + q.H, (rho * s + b)[..., None])[..., 0]
        return np.asarray(s + np.tensordot(q.p, 2.0 * x - s, 1) - x)

    units = np.eye(K * d).reshape(-1, K, d)
    matrix = np.array([step(unit, 0.0 * q.b).ravel() for unit in units]).T
    return Affine(matrix, step(np.zeros((K, d)), q.b).ravel())


def _curvature(constants: Constants) -> tuple[float, float, tuple[Hypothesis, ...]]:
    (L,) = known(SOURCE, constants, "L")
    mu = float(np.min(constants.mu_k)) if constants.mu_k is not None else float(known(SOURCE, constants, "mu")[0])
    requires = require(
        SOURCE,
        Hypothesis("every f_k strongly convex", f"mu = {mu:g}", mu > 0.0),
        Hypothesis("every f_k L-smooth", f"L = {L:g}"),
    )
    return mu, float(L), requires
