"""SCAFFOLD on convex functions: the finite-round theorem with all constants, and the exact rate on least squares.

Setting
    N clients of equal weight, f = (1/N) sum f_i. Round r: S of N clients, uniform without replacement; each starts at
    x^r, does K steps y_i <- y_i - eta_l (g_i(y_i) - c_i + c), and sets c_i^+ = c_i - c + (x^r - y_i)/(K eta_l) (option
    II: the mean of its K gradients); x^{r+1} = x^r + (eta_g/S) sum (y_i - x^r), c <- c + (1/N) sum (c_i^+ - c_i).
Assumptions
    Every f_i is beta-smooth and mu-strongly convex (mu >= 0); g_i is unbiased with variance at most sigma^2.
Statement
    h = K eta_l eta_g, q = 1 - mu h/2, C_0 = (1/N) sum ‖c_i^0 - grad f_i(x*)‖^2. If eta_g >= 1, h <= 1/(81 beta) and
    mu h <= S/(15 N), then for the server's iterates *before* rounds 0, ..., T-1, with w_r = q^-(r+1), W = sum w_r,

        (1/W) sum_{r<T} w_r E[f(x^r) - f*]
            <= [‖x^0 - x*‖^2 + (9 N h^2/S) C_0]/(h W) + (12 h sigma^2/(K S))(1 + S/eta_g^2).
Source
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning",
    ICML 2020, proof of Theorem III: unrolling of Lemma 15 (from a secondary transcription). Linear map: this project.
What differs
    Theorem III itself hides constants: O~((sigma^2/(mu R K S))(1 + S/eta_g^2) + (N mu/S) D~^2 exp(-min{S/(30 N),
    mu/(162 beta)} R)). The rate depends on N/S: SCAFFOLD is free of heterogeneity, not of client sampling.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, numeric, real, whole
from fedconvex.constants import Constants, default_steps
from fedconvex.problems import Problem
from fedconvex.theorems.parts.assumptions import client_weights, equal_weights, where_taken
from fedconvex.theory.bound import WEIGHTED_AVERAGE, AssumptionError, Bound, Hypothesis, known, require
from fedconvex.theory.fixed_points import Affine, quadratic

__all__ = [
    "Scaffold",
    "control_error",
    "scaffold",
    "scaffold_best_step",
    "scaffold_round",
    "scaffold_rounds",
    "scaffold_split",
    "scaffold_weights",
]

SOURCE = "Karimireddy et al. 2020, ICML, Lemma 15 and Theorem III"


class Scaffold(NamedTuple):
    """State of SCAFFOLD on least squares: server model and controls."""

    x: np.ndarray  # (d,)
    c: np.ndarray  # (N, d)


def scaffold(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    rounds: int,
    participants: int | None = None,
    server_step: float = 1.0,
    control_error: float | None = None,
) -> Bound:
    """Return the bound of the weighted average of pre-round suboptimalities; weights: `scaffold_weights`.

    Parameters
    ----------
    constants : Constants
        L = beta, mu_k (or mu), D, sigma2, p or K; without control_error also zeta_star.
    step_size, local_steps, rounds : float, int, int
        eta_l, K, T.
    participants : int, optional
        S; default everybody.
    server_step : float
        eta_g.
    control_error : float, optional
        C_0; default zeta_star^2, that of c_i = 0.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, the weights are unequal or a step is out of range.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold
    >>> constants = Constants(L=1 / 81, mu=0.0, D=1.0, sigma2=0.0, zeta_star=0.0, K=10)
    >>> scaffold(constants, step_size=0.5, local_steps=2, rounds=4).value
    0.25
    """
    theorem = SOURCE
    eta, K = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    T, eta_g = whole("rounds", rounds, low=1), real("server_step", server_step, low=0.0, strict=True)
    beta, mu, N, S, common = _setting(constants, participants)
    D, sigma2 = known(theorem, constants, "D", "sigma2")
    C0 = known(theorem, constants, "zeta_star")[0] ** 2 if control_error is None else control_error
    C0 = real("control_error", C0, low=0.0)
    h = K * eta * eta_g
    requires = common + require(
        theorem,
        Hypothesis("server_step >= 1", f"server_step = {eta_g:g}", eta_g >= 1.0),
        Hypothesis(
            "h = local_steps step_size server_step <= 1/(81 L)",
            f"81 L h = {81 * beta * h:g}",
            _at_most(81 * beta * h, 1),
        ),
        Hypothesis("mu h <= S/(15 N)", f"mu h = {mu * h:g}, S/(15 N) = {S / (15 * N):g}", _at_most(15 * N * mu * h, S)),
        Hypothesis("gradient noise of variance at most sigma^2", f"sigma^2 = {sigma2:g}"),
    )
    requires += where_taken(constants, "sigma2")
    share = 1.0 / (h * _total_weight(0.5 * mu * h, T))
    terms = {
        "start": share * float(D) ** 2,
        "controls": share * 9.0 * N * h**2 / S * C0,
        "noise": 12.0 * h * float(sigma2) / (K * S) * (1.0 + S / eta_g**2),
    }
    return Bound(terms, WEIGHTED_AVERAGE, theorem, requires)


def scaffold_weights(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, server_step: float = 1.0
) -> np.ndarray:
    """Return w_r/W for r = 0, ..., T-1: how the theorem averages the server's iterates before the rounds.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold_weights
    >>> scaffold_weights(Constants(L=1.0, mu=1.0), step_size=1.0, local_steps=1, rounds=2)
    array([0.33333333, 0.66666667])
    """
    h = whole("local_steps", local_steps, low=1) * real("step_size", step_size, low=0.0, strict=True)
    mu = _convexity(constants)
    half = 0.5 * mu * h * real("server_step", server_step, low=0.0, strict=True)
    require(SOURCE, Hypothesis("mu h < 2", f"mu h = {2 * half:g}", half < 1.0))
    back = np.arange(whole("rounds", rounds, low=1))[::-1]  # T - 1 - r
    w = np.exp(back * math.log1p(-half))
    return np.asarray(w / w.sum())


def scaffold_best_step(
    constants: Constants, *, local_steps: int, participants: int | None = None, server_step: float = 1.0
) -> float:
    """Return the largest local step that the theorem allows, the best one where there is no noise.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold_best_step
    >>> scaffold_best_step(Constants(L=1 / 81, mu=0.0, K=10), local_steps=2)
    0.5
    """
    K, eta_g = whole("local_steps", local_steps, low=1), real("server_step", server_step, low=1.0)
    beta, mu, N, S, _ = _setting(constants, participants)
    return default_steps.control_step(beta, mu, N, S, K, eta_g).value


def scaffold_rounds(
    constants: Constants, accuracy: float, *, step_size: float, local_steps: int, **settings: Any
) -> int:
    """Return the fewest rounds after which the bound is at most ``accuracy``; settings as for `scaffold`.

    Raises
    ------
    AssumptionError
        If the noise term alone exceeds the accuracy.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffold import scaffold_rounds
    >>> constants = Constants(L=1 / 81, mu=0.0, D=1.0, sigma2=0.0, zeta_star=0.0, K=10)
    >>> scaffold_rounds(constants, 0.25, step_size=0.5, local_steps=2)
    4
    """
    eps = real("accuracy", accuracy, low=0.0, strict=True)

    def bound(T: int) -> Bound:
        return scaffold(constants, step_size=step_size, local_steps=local_steps, rounds=T, **settings)

    noise = bound(1).terms["noise"]
    require(SOURCE, Hypothesis("accuracy above the noise term", f"{eps:g}, noise {noise:g}", eps > noise))
    low, high = 0, 1
    while bound(high).value > eps:
        low, high = high, 2 * high
        if high > 1 << 60:
            raise AssumptionError(f"{SOURCE} does not reach {eps:g} within 2^60 rounds")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle).value > eps else (low, middle)
    return high


def control_error(problem: Problem, controls: Any) -> float:
    """Return C_0 of controls (K, *model): the mean of ‖c_k - grad f_k(x*)‖^2.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.scaffold import control_error
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> control_error(problem, [[0.0], [0.0]])
    1.0
    """
    g = problem.client_gradients(problem.solve().w)
    c = numeric("controls", controls)
    if c.shape != g.shape:
        raise bad("controls", f"have shape {g.shape}", f"{c.shape}")
    return float(np.sum((c - g) ** 2) / len(g))


# ---------------------------------------------------------------- least squares, exactly


def scaffold_round(
    problem: Problem, *, step_size: float, local_steps: int, server_step: float = 1.0, option: int = 2
) -> Affine:
    """Return a round on least squares as an exact affine map of (x, c_1, ..., c_N), flat ((N+1) d,).

    Full gradients, everybody takes part; c and the server's average carry the problem's weights. The fixed point is x*
    with c_i = grad f_i(x*); the rate is the linear rate of the method.

    Parameters
    ----------
    problem : Problem
        Least squares.
    step_size, local_steps, server_step : float, int, float
        eta_l, K, eta_g.
    option : 1 or 2
        c_i^+ = grad f_i(x), or the mean of the K gradients.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.scaffold import scaffold_round, scaffold_split
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> map = scaffold_round(problem, step_size=0.1, local_steps=5)
    >>> scaffold_split(problem, map.limit()).x, round(map.rate, 4)
    (array([2.6]), 0.4076)
    """
    eta, K = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    eta_g = real("server_step", server_step, low=0.0, strict=True)
    whole("option", option, low=1, high=2)
    q = quadratic(problem)
    N, d = q.b.shape
    one = np.eye(d) - eta * q.H
    power = np.array([np.linalg.matrix_power(a, K) for a in one])
    filter_ = np.zeros_like(q.H)  # eta sum_{j<K} (I - eta H)^j
    for _ in range(K):
        filter_ = eta * np.eye(d) + one @ filter_

    def step(z: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, c_k = z[0], z[1:]
        c = q.p @ c_k
        y = power @ x + np.einsum("kij,kj->ki", filter_, b + c_k - c)
        new = q.H @ x - b if option == 1 else c_k - c + (x - y) / (K * eta)
        return np.vstack([x + eta_g * (q.p @ (y - x)), new])

    units = np.eye((N + 1) * d).reshape(-1, N + 1, d)
    matrix = np.array([step(unit, 0.0 * q.b).ravel() for unit in units]).T
    return Affine(matrix, step(np.zeros((N + 1, d)), q.b).ravel())


def scaffold_split(problem: Problem, z: Any) -> Scaffold:
    """Return x and c_i of a flat state."""
    parts = np.asarray(z, dtype=float).reshape(problem.federation.K + 1, problem.federation.d)
    return Scaffold(parts[0], parts[1:])


# ---------------------------------------------------------------- inner workings


def _setting(constants: Constants, participants: int | None) -> tuple[float, float, int, int, tuple[Hypothesis, ...]]:
    (beta,) = known(SOURCE, constants, "L")
    p = client_weights(SOURCE, constants)
    S = p.size if participants is None else whole("participants", participants, low=1, high=p.size)
    mu = _convexity(constants)
    requires = require(
        SOURCE,
        equal_weights(p),
        Hypothesis("every f_i L-smooth, L > 0", f"L = {beta:g}", beta > 0.0),
        Hypothesis("every f_i mu-strongly convex, mu >= 0", f"mu = {mu:g}", mu >= 0.0),
    )
    return float(beta), mu, p.size, S, requires


def _convexity(constants: Constants) -> float:
    return float(np.min(constants.mu_k)) if constants.mu_k is not None else float(known(SOURCE, constants, "mu")[0])


def _at_most(x: float, y: float) -> bool:
    return x <= y * (1.0 + 1e-12)


def _total_weight(half: float, T: int) -> float:
    """sum_{r<T} (1 - half)^-(r+1)."""
    if half == 0.0:
        return float(T)
    log = math.log1p(-half)
    return math.expm1(-T * log) / half if -T * log < 700.0 else math.inf
