"""FedAvg on convex functions: Theorem 1 of Wang et al. (2021), with its tuned step and tuned bound.

Setting
    M clients of equal weight, F = (1/M) sum F_i; all of them take part in each of T rounds; tau local SGD steps of one
    constant size eta with fresh mini-batches; the server averages. Shadow sequence xbar^{t,k} = mean of x_i^{t,k}.
Assumptions
    Every F_i is convex and L-smooth on R^d; stochastic gradients are unbiased given the history, with variance at most
    sigma^2, independently over clients; sup_x ‖grad F_i(x) - grad F(x)‖ <= zeta for every i; D = ‖x_0 - x*‖.
Statement
    With A = mean over t < T and k = 1..tau of F(xbar^{t,k}) - F*, and 0 < eta <= 1/(4L),

    (15)  E A <= D^2/(2 eta tau T) + eta sigma^2/M + 4 tau eta^2 L sigma^2 + 18 tau^2 eta^2 L zeta^2;
    (16)  eta = min{1/(4L), sqrt(M) D/(sqrt(tau T) sigma), D^(2/3)/(tau^(2/3) T^(1/3) L^(1/3) sigma^(2/3)),
          D^(2/3)/(tau T^(1/3) L^(1/3) zeta^(2/3))};
    (17)  E A <= 2 L D^2/(tau T) + 2 sigma D/sqrt(M tau T) + 5 (L sigma^2 D^4/(tau T^2))^(1/3)
          + 19 (L zeta^2 D^4/T^2)^(1/3).
Source
    Wang et al., "A field guide to federated optimization", arXiv:2107.06917, Section 6.1.2, Theorem 1.
What differs
    Entries of (16) with sigma = 0 or zeta = 0 drop out (the printed minimum divides by zero). Inserting (16) in (15)
    gives 2, 3/2, 9/2, 37/2, which the paper rounds to 2, 2, 5, 19: pass ``factors=SHARPER``.
    ``fedavg_convex_best_step`` minimises (15) itself.
"""

from __future__ import annotations

import math

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import BOUND, EXACT, Constants
from fedconvex.theory.bound import AssumptionError, Bound, Hypothesis, Quantity, known, require

__all__ = [
    "PRINTED",
    "SHARPER",
    "client_weights",
    "equal_weights",
    "fedavg_convex",
    "fedavg_convex_best_step",
    "fedavg_convex_step",
    "fedavg_convex_tuned",
    "where_taken",
]

PRINTED = (2.0, 2.0, 5.0, 19.0)
SHARPER = (2.0, 1.5, 4.5, 18.5)
SOURCE = "Wang et al. 2021, arXiv:2107.06917, Theorem 1"


def fedavg_convex(constants: Constants, *, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return (15), the bound for a given step size.

    Parameters
    ----------
    constants : Constants
        L, D, sigma2, zeta and K.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, the weights are unequal, or eta > 1/(4L).

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=0.5, K=2)
    >>> fedavg_convex(constants, step_size=0.25, local_steps=2, rounds=1).value
    2.125
    """
    eta, tau, T = _settings(step_size, local_steps, rounds)
    theorem = f"{SOURCE} (15)"
    L, D, sigma2, zeta, M, common = _constants(theorem, constants)
    step = Hypothesis("step_size <= 1/(4L)", f"step_size = {eta:g}, 1/(4L) = {_quarter(L):g}", eta * L <= 0.25)
    requires = require(theorem, *common, step)
    return Bound(_terms(L, D, sigma2, zeta, M, eta, tau, T), Quantity.SHADOW_AVERAGE, theorem, requires)


def fedavg_convex_step(constants: Constants, *, local_steps: int, rounds: int) -> float:
    """Return (16), the step size that the theorem recommends.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex_step
    >>> fedavg_convex_step(Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2), local_steps=2, rounds=1)
    0.25
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    theorem = f"{SOURCE} (16)"
    L, D, sigma2, zeta, M, _ = _constants(theorem, constants)
    steps = [_quarter(L)]
    if sigma2 > 0.0 or zeta > 0.0:
        require(theorem, Hypothesis("D > 0 where sigma > 0 or zeta > 0 (the step is 0 otherwise)", f"D = {D:g}", D > 0))
    if sigma2 > 0.0:
        steps.append(math.sqrt(M / (tau * T * sigma2)) * D)
        steps.append((D**2 / (tau**2 * T * L * sigma2)) ** (1 / 3) if L > 0.0 else math.inf)
    if zeta > 0.0:
        steps.append((D**2 / (tau**3 * T * L * zeta**2)) ** (1 / 3) if L > 0.0 else math.inf)
    return min(steps)


def fedavg_convex_best_step(constants: Constants, *, local_steps: int, rounds: int) -> float:
    """Return the step size in (0, 1/(4L)] that minimises (15).

    (15) is a/eta + b eta + c eta^2, convex; its minimiser is the positive root of 2 c eta^3 + b eta^2 = a, or 1/(4L).

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex, fedavg_convex_best_step
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2)
    >>> eta = fedavg_convex_best_step(constants, local_steps=2, rounds=1)
    >>> round(eta, 4), round(fedavg_convex(constants, step_size=eta, local_steps=2, rounds=1).value, 4)
    (0.1202, 3.1201)
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    theorem = f"{SOURCE}, minimised (15)"
    L, D, sigma2, zeta, M, _ = _constants(theorem, constants)
    top = _quarter(L)
    a, b = D**2 / (2 * tau * T), sigma2 / M
    c = 4 * tau * L * sigma2 + 18 * tau**2 * L * zeta**2
    if b == 0.0 and c == 0.0:
        return top
    require(theorem, Hypothesis("D > 0 where sigma > 0 or zeta > 0 (the step is 0 otherwise)", f"D = {D:g}", D > 0))
    low = 0.0
    high = min((a / (2 * c)) ** (1 / 3) if c > 0.0 else math.inf, math.sqrt(a / b) if b > 0.0 else math.inf)
    for _ in range(200):  # bisection: the left side increases
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if 2 * c * middle**3 + b * middle**2 < a else (low, middle)
    return min(top, high)


def fedavg_convex_tuned(
    constants: Constants, *, local_steps: int, rounds: int, factors: tuple[float, float, float, float] = PRINTED
) -> Bound:
    """Return (17), the bound for the step size (16).

    Parameters
    ----------
    constants : Constants
        L, D, sigma2, zeta and K.
    local_steps, rounds : int
        tau, T.
    factors : tuple
        ``PRINTED`` (2, 2, 5, 19), or ``SHARPER`` (2, 1.5, 4.5, 18.5), what (15) and (16) really give.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex_tuned
    >>> fedavg_convex_tuned(Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2), local_steps=2, rounds=1).value
    20.0
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    theorem = f"{SOURCE} (17)"
    L, D, sigma2, zeta, M, requires = _constants(theorem, constants)
    a, b, c, d = factors
    terms = {
        "start": a * L * D**2 / (tau * T),
        "noise": b * math.sqrt(sigma2) * D / math.sqrt(M * tau * T),
        "noise drift": c * np.cbrt(L * sigma2 * D**4 / (tau * T**2)).item(),
        "heterogeneity drift": d * np.cbrt(L * zeta**2 * D**4 / T**2).item(),
    }
    return Bound(terms, Quantity.SHADOW_AVERAGE, theorem, requires)


# ---------------------------------------------------------------- shared by the FedAvg theorems


def client_weights(theorem: str, constants: Constants) -> np.ndarray:
    """Return the weights p_k, 1/K each where only the number of clients is given."""
    if constants.p is not None:
        return np.asarray(constants.p, dtype=float)
    (K,) = known(theorem, constants, "K")
    return np.full(K, 1.0 / K)


def equal_weights(p: np.ndarray, cure: str = "") -> Hypothesis:
    """Return the hypothesis that all clients weigh the same."""
    text = "equal client weights" + (f" ({cure})" if cure else "")
    return Hypothesis(text, f"weights from {p.min():g} to {p.max():g}", bool(np.ptp(p) <= 1e-12 * p.max()))


def where_taken(constants: Constants, *names: str) -> tuple[Hypothesis, ...]:
    """Return, for constants that do not hold on all of R^d, what the run has to satisfy for them to apply."""
    everywhere = (None, EXACT, BOUND)
    return tuple(
        Hypothesis(f"{name} covers the run", f"{name} is {constants.how[name]}")
        for name in names
        if constants.how.get(name) not in everywhere
    )


def _constants(theorem: str, constants: Constants) -> tuple[float, float, float, float, int, tuple[Hypothesis, ...]]:
    L, D, sigma2, zeta = known(theorem, constants, "L", "D", "sigma2", "zeta")
    p = client_weights(theorem, constants)
    for name, v in (("L", L), ("D", D), ("sigma2", sigma2), ("zeta", zeta)):
        if v < 0.0:
            raise AssumptionError(f"{theorem} does not apply: needs {name} >= 0, got {v}")
    requires = require(
        theorem,
        Hypothesis("every F_k convex and L-smooth", f"L = {L:g}"),
        Hypothesis("gradient noise of variance at most sigma^2, independent over clients", f"sigma^2 = {sigma2:g}"),
        Hypothesis("sup_x ‖grad F_k - grad F‖ <= zeta", f"zeta = {zeta:g}"),
        equal_weights(p, "the weighted theorem is fedavg_refined"),
        *where_taken(constants, "sigma2", "zeta"),
    )
    return float(L), float(D), float(sigma2), float(zeta), p.size, requires


def _settings(step_size: float, local_steps: int, rounds: int) -> tuple[float, int, int]:
    eta = real("step_size", step_size, low=0.0, strict=True)
    return eta, whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)


def _quarter(L: float) -> float:
    return 0.25 / L if L > 0.0 else math.inf


def _terms(L: float, D: float, sigma2: float, zeta: float, M: int, eta: float, tau: int, T: int) -> dict[str, float]:
    return {
        "start": D**2 / (2.0 * eta * tau * T),
        "noise": eta * sigma2 / M,
        "noise drift": 4.0 * tau * eta**2 * L * sigma2,
        "heterogeneity drift": 18.0 * tau**2 * eta**2 * L * zeta**2,
    }
