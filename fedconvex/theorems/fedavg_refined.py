"""FedAvg on convex functions, refined: R1 (every step below 1/L, any weights) and R2 (constants at the optimum only).

Setting
    Clients with weights p_i, F = sum p_i F_i; all take part in each of T rounds; tau local SGD steps of one constant
    size eta with fresh mini-batches; the server averages with p. Shadow sequence xbar^{t,k} = sum p_i x_i^{t,k}, and
    A = mean over t < T and k = 1..tau of F(xbar^{t,k}) - F*.
Assumptions
    Every F_i is convex and L-smooth; stochastic gradients are unbiased given the history, independently over clients.
    R1: variance at most sigma_i^2, sup_x ‖grad F_i(x) - grad F(x)‖ <= zeta.
    R2: gradients are mini-batch means, with factor phi, of convex L_s-smooth row losses; nothing is asked away from x*:
    sigma_{*,i}^2 is the mini-batch variance at x*, zeta_*^2 = sum p_i ‖grad F_i(x*)‖^2.
Statement
    Write S = sum p_i^2 sigma_i^2, sigma = max sigma_i, q_2 = sum p_i^2.

    R1, eta < 1/L:   E A <= D^2/(2 eta tau T) + eta S
        + [L/(2(1 - eta L))] [(1 - q_2)/2] (1/tau) sum_{k<tau} (2 eta k zeta + eta sigma sqrt(2k))^2.
    R1#, eta <= 1/L: E A <= D^2/(2 eta tau T) + eta (1 + eta L) S/2 + (L/2) (1/tau) sum_{k<tau} v_k^2,
        v_k = eta (k zeta min{1, sqrt(2(1 - q_2))} + sqrt(k sum p_i (1 - p_i) sigma_i^2)).
    R2: with A = 4 phi L_s, p = max p_i, S_* = sum p_i^2 sigma_{*,i}^2, sigma_*^2 = sum p_i sigma_{*,i}^2,
        q = 3 eta^2 tau(tau-1) L^2, Q = q + 2 eta^2 (tau-1) A L, c = L/(2(1 - eta L)) + eta A L p,
        r = 2 eta A p + 2 c Q/(L(1 - Q)); if eta L < 1, Q < 1 and r < 1,
        E A <= (1/(1-r)) {D^2 (1/eta + r L)/(2 tau T) + 2 eta S_* + (c/(1-Q)) [q zeta_*^2/L^2
        + 4 eta^2 (tau-1) sigma_*^2]}.
    R2#: the same for eta L <= 1 with c = L/2 + e A L p, r = 2 e A p + 2 c Q/(L(1-Q)), e = eta (1 + eta L)/2,
        2 eta S_* -> 2 e S_*, and the bracket [eta^2 (tau-1)(2 tau-1) zeta_*^2 + 2 eta^2 (tau-1) sigma_*^2].
Source
    This project; proofs line by line in docs/theory/fedavg_refined.md. R1 sharpens Wang et al. (2021), Theorem 1.
What differs
    From Wang et al.: no factor 18, four times the range of steps, no drift term at tau = 1, unequal weights. R1 has
    Young's inequality where the cross term in fact vanishes; R1# and R2# do not, and keep -‖xbar+ - xbar‖^2.
"""

from __future__ import annotations

import math

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import Constants
from fedconvex.theorems.fedavg_convex import client_weights, where_taken
from fedconvex.theory.bound import AssumptionError, Bound, Hypothesis, Quantity, known, require

__all__ = ["fedavg_at_optimum", "fedavg_at_optimum_sharp", "fedavg_refined", "fedavg_refined_sharp"]

R1 = "fedconvex, refined Theorem 1 of Wang et al. 2021 (docs/theory/fedavg_refined.md, R1)"
R2 = "fedconvex, FedAvg with constants at the optimum (docs/theory/fedavg_refined.md, R2)"


def fedavg_refined(constants: Constants, *, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return R1, for every step below 1/L and any weights.

    Parameters
    ----------
    constants : Constants
        L, D, zeta, sigma2_k or sigma2, and p or K.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, or eta >= 1/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_refined
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2)
    >>> round(fedavg_refined(constants, step_size=0.25, local_steps=2, rounds=1).value, 4)
    1.0208
    """
    eta, tau, T = _settings(step_size, local_steps, rounds)
    L, D, zeta, p, sigma2, requires = _uniform(R1, constants)
    requires += require(R1, _below(eta, L, strict=True))
    k = np.arange(tau)
    factor = L / (2.0 * (1.0 - eta * L)) * (1.0 - p @ p) / 2.0
    drift = factor * np.mean((2.0 * eta * k * zeta + eta * np.sqrt(2.0 * k * sigma2.max())) ** 2)
    pure = factor * np.mean((2.0 * eta * k * zeta) ** 2)
    terms = {
        "start": D**2 / (2.0 * eta * tau * T),
        "noise": eta * float(p**2 @ sigma2),
        "heterogeneity drift": float(pure),
        "noise drift": float(drift - pure),
    }
    return Bound(terms, Quantity.SHADOW_AVERAGE, R1, requires)


def fedavg_refined_sharp(constants: Constants, *, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return R1#, never above R1: no Young inequality, half the noise at small steps, smaller drift at many clients.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_refined_sharp
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2)
    >>> round(fedavg_refined_sharp(constants, step_size=0.25, local_steps=2, rounds=1).value, 4)
    1.0156
    """
    eta, tau, T = _settings(step_size, local_steps, rounds)
    L, D, zeta, p, sigma2, requires = _uniform(f"{R1}#", constants)
    requires += require(f"{R1}#", _below(eta, L, strict=False))
    k = np.arange(tau)
    spread = min(1.0, math.sqrt(2.0 * max(1.0 - float(p @ p), 0.0))) * zeta
    drift = 0.5 * L * np.mean((eta * (k * spread + np.sqrt(k * float(p * (1.0 - p) @ sigma2)))) ** 2)
    pure = 0.5 * L * np.mean((eta * k * spread) ** 2)
    terms = {
        "start": D**2 / (2.0 * eta * tau * T),
        "noise": 0.5 * eta * (1.0 + eta * L) * float(p**2 @ sigma2),
        "heterogeneity drift": float(pure),
        "noise drift": float(drift - pure),
    }
    return Bound(terms, Quantity.SHADOW_AVERAGE, f"{R1}#", requires)


def fedavg_at_optimum(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, noise_factor: float
) -> Bound:
    """Return R2: heterogeneity and noise at x* only, hence valid on R^d for least squares with unequal Hessians.

    Parameters
    ----------
    constants : Constants
        L, D, zeta_star, sigma2_star, p or K; with noise_factor > 0 also L_s.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.
    noise_factor : float
        phi, the largest over clients: `fedconvex.problems.noise_factor` of the rows and the batch size; 0 for full
        gradients.

    Raises
    ------
    AssumptionError
        If a constant is missing, or eta is too large: eta L < 1, Q < 1 and r < 1 are needed.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_at_optimum
    >>> constants = Constants(L=1.0, D=1.0, sigma2_star=0.0, zeta_star=1.0, K=2)
    >>> round(fedavg_at_optimum(constants, step_size=0.125, local_steps=2, rounds=10, noise_factor=0.0).value, 4)
    0.2972
    """
    return _optimum(R2, constants, step_size, local_steps, rounds, noise_factor, sharp=False)


def fedavg_at_optimum_sharp(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, noise_factor: float
) -> Bound:
    """Return R2#, never above R2; same parameters.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_at_optimum_sharp
    >>> constants = Constants(L=1.0, D=1.0, sigma2_star=0.0, zeta_star=1.0, K=2)
    >>> round(fedavg_at_optimum_sharp(constants, step_size=0.125, local_steps=2, rounds=10, noise_factor=0.0).value, 4)
    0.2548
    """
    return _optimum(f"{R2}#", constants, step_size, local_steps, rounds, noise_factor, sharp=True)


def _optimum(
    theorem: str, constants: Constants, step_size: float, local_steps: int, rounds: int, phi: float, *, sharp: bool
) -> Bound:
    eta, tau, T = _settings(step_size, local_steps, rounds)
    phi = real("noise_factor", phi, low=0.0)
    L, D, zeta_star, sigma2_star = known(theorem, constants, "L", "D", "zeta_star", "sigma2_star")
    p = client_weights(theorem, constants)
    L_s = known(theorem, constants, "L_s")[0] if phi > 0.0 else 0.0
    A, top = 4.0 * phi * L_s, float(p.max())
    if constants.sigma2_star_k is not None:
        S = float(p**2 @ constants.sigma2_star_k)
    else:
        S = top * sigma2_star  # sum p_i^2 s_i <= max p_i sum p_i s_i
    requires = require(
        theorem,
        Hypothesis("every F_k convex and L-smooth, L > 0", f"L = {L:g}", L > 0.0),
        Hypothesis("noise only from mini-batches", f"phi = {phi:g}, sigma_*^2 = {sigma2_star:g}", phi > 0 or not S > 0),
        _below(eta, L, strict=not sharp),
    )
    q = 3.0 * eta**2 * tau * (tau - 1) * L**2
    Q = q + 2.0 * eta**2 * (tau - 1) * A * L
    requires += require(theorem, Hypothesis("Q < 1 (smaller steps)", f"Q = {Q:g}, step_size = {eta:g}", Q < 1.0))
    e = 0.5 * eta * (1.0 + eta * L) if sharp else eta
    c = (0.5 * L if sharp else L / (2.0 * (1.0 - eta * L))) + e * A * L * top
    r = 2.0 * e * A * top + 2.0 * c * Q / (L * (1.0 - Q))
    requires += require(theorem, Hypothesis("r < 1 (smaller steps)", f"r = {r:g}, step_size = {eta:g}", r < 1.0))
    per_zeta = eta**2 * (tau - 1) * (2 * tau - 1) if sharp else q / L**2
    per_sigma = (2.0 if sharp else 4.0) * eta**2 * (tau - 1)
    scale, lift = 1.0 / (1.0 - r), c / (1.0 - Q)
    terms = {
        "start": scale * D**2 * (1.0 / eta + r * L) / (2.0 * tau * T),
        "noise": scale * 2.0 * e * S,
        "heterogeneity drift": scale * lift * per_zeta * zeta_star**2,
        "noise drift": scale * lift * per_sigma * sigma2_star,
    }
    return Bound({k: float(v) for k, v in terms.items()}, Quantity.SHADOW_AVERAGE, theorem, requires)


def _uniform(
    theorem: str, constants: Constants
) -> tuple[float, float, float, np.ndarray, np.ndarray, tuple[Hypothesis, ...]]:
    """L, D, zeta, p, sigma_i^2 of R1 with their hypotheses."""
    L, D, zeta = known(theorem, constants, "L", "D", "zeta")
    p = client_weights(theorem, constants)
    if constants.sigma2_k is not None:
        (sigma2,) = known(theorem, constants, "sigma2_k")
    else:
        sigma2 = np.full(p.size, known(theorem, constants, "sigma2")[0])
    sigma2 = np.asarray(sigma2, dtype=float)
    if not np.isfinite(sigma2).all():
        how = constants.how.get("sigma2_k", "given")
        raise AssumptionError(f"{theorem} does not apply: needs a finite sigma2_k, got {sigma2.max()} ({how})")
    requires = require(
        theorem,
        Hypothesis("every F_k convex and L-smooth", f"L = {L:g}"),
        Hypothesis("gradient noise bounded, independent over clients", f"max sigma_k^2 = {sigma2.max():g}"),
        Hypothesis("sup_x ‖grad F_k - grad F‖ <= zeta", f"zeta = {zeta:g}"),
        *where_taken(constants, "sigma2_k" if constants.sigma2_k is not None else "sigma2", "zeta"),
    )
    return float(L), float(D), float(zeta), p, sigma2, requires


def _below(eta: float, L: float, *, strict: bool) -> Hypothesis:
    inverse = 1.0 / L if L > 0.0 else math.inf
    holds = eta * L < 1.0 if strict else eta * L <= 1.0
    return Hypothesis(f"step_size {'<' if strict else '<='} 1/L", f"step_size = {eta:g}, 1/L = {inverse:g}", holds)


def _settings(step_size: float, local_steps: int, rounds: int) -> tuple[float, int, int]:
    eta = real("step_size", step_size, low=0.0, strict=True)
    return eta, whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
