"""FedSAM on convex functions: a bound that needs no bounded set, and the two-cycle in which SAM ends.

Setting
    Clients with weights p_i, F = sum p_i F_i; everybody takes part in each of T rounds; tau local steps
    x_i <- x_i - eta grad F_i(x_i + r u_i), u_i = grad F_i(x_i)/‖grad F_i(x_i)‖ (0 where the gradient is 0); the server
    averages with p. xbar^{t,k} = sum p_i x_i^{t,k}; A = mean over t < T, k = 1..tau of F(xbar^{t,k}) - F*.
Assumptions
    Every F_i is convex and L-smooth. Full gradients. First bound, for tau > 1: sup_x ‖grad F_i(x) - grad F(x)‖ <= zeta.
Statement
    ‖grad F_i(x + r u) - grad F_i(x)‖ <= L r. With q_2 = sum p_i^2, if eta < 1/L,

        A <= D^2/(2 eta tau T) + (L/2) { r^2 eta L/(1 - eta L) + (1/tau) sum_{k<tau} (v_k + r)^2 },
        v_k = eta k (zeta + L r) min{1, sqrt(2 (1 - q_2))};

    for one local step: A <= D^2/(2 eta T) + L r^2/(2 (1 - eta L)), without any zeta.

    At the optimum: zeta_*^2 = sum p_i ‖grad F_i(x*)‖^2 in the place of zeta, Q = 2 eta^2 tau (tau - 1) L^2,
    R = 2 Q/(1 - Q), t = 2 (t = 1 for tau = 1); if eta < 1/L and Q < 1/3,

        A <= (1/(1 - R)) { D^2 (1/eta + R L)/(2 tau T) + L r^2 (t + eta L/(1 - eta L))/2
             + (2/3) L eta^2 (tau - 1)(2 tau - 1)(zeta_*^2 + L^2 r^2)/(1 - Q) }.

    Two-cycle: on F = w'H w/2 with largest eigenvalue l, eta l < 2, SAM has the cycle w, -w along the eigenvector of l,
    ‖w‖ = eta l r/(2 - eta l); along any other eigenvector it is unstable.
Source
    Bounds: this project, docs/theory/fedsam.md. Cycle: Bartlett, Long, Bousquet, "The dynamics of sharpness-aware
    minimization: bouncing across ravines and drifting towards wide minima", JMLR 24 (2023): on convex quadratics SAM
    ends, from almost everywhere, bouncing along the direction of largest curvature. FedSAM: Qu, Li, Duan, Liu, Tang,
    Lu, "Generalized federated learning via sharpness aware minimization", ICML 2022, whose theory is nonconvex.
What differs
    Treating SAM as gradient descent with errors of size L r would add L r sup ‖x - x*‖ and ask for a bounded set. The
    convexity inequality taken at the point where the gradient is taken, x_i + r u_i, needs neither. With r > 0 fixed
    the excess does not vanish, and must not: see the cycle.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import Constants
from fedconvex.problems import Problem
from fedconvex.theorems.parts.assumptions import client_weights, where_taken
from fedconvex.theory.bound import PERTURBATION, SHADOW_AVERAGE, Bound, Hypothesis, known, require
from fedconvex.theory.fixed_points import quadratic

__all__ = ["Cycle", "fedsam", "fedsam_at_optimum", "sam_cycle", "sam_error"]

SOURCE = "fedconvex, FedSAM on convex functions (docs/theory/fedsam.md)"
OPTIMUM = "fedconvex, FedSAM with constants at the optimum (docs/theory/fedsam.md)"


class Cycle(NamedTuple):
    """Where SAM ends on a quadratic: at w* + direction and w* - direction in turn."""

    direction: np.ndarray  # (d,) of length ‖w - w*‖
    radius: float  # eta l r/(2 - eta l)
    excess: float  # F(w) - F* = l radius^2/2


def fedsam(constants: Constants, *, step_size: float, local_steps: int, rounds: int, rho: float) -> Bound:
    """Return the bound of the shadow average.

    Parameters
    ----------
    constants : Constants
        L, D, p or K; with local_steps > 1 also zeta.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.
    rho : float
        r, the length of the perturbation.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, or eta >= 1/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedsam import fedsam
    >>> fedsam(Constants(L=1.0, D=1.0, K=2), step_size=0.5, local_steps=1, rounds=10, rho=0.5).value
    0.35
    """
    eta, tau, T, r, L, D, requires = _setting(SOURCE, constants, step_size, local_steps, rounds, rho)
    p = client_weights(SOURCE, constants)
    zeta = 0.0
    if tau > 1:
        (zeta,) = known(SOURCE, constants, "zeta")
        requires += (Hypothesis("sup_x ‖grad F_k - grad F‖ <= zeta", f"zeta = {zeta:g}"),)
        requires += where_taken(constants, "zeta")
    k = np.arange(tau)
    v = eta * k * (zeta + L * r) * min(1.0, math.sqrt(2.0 * max(1.0 - float(p @ p), 0.0)))
    drift = 0.5 * L * float(np.mean(v**2))
    both = 0.5 * L * float(np.mean((v + r) ** 2))
    terms = {
        "start": D**2 / (2.0 * eta * tau * T),
        "drift": drift,
        "perturbation": both - drift + 0.5 * L * r**2 * eta * L / (1.0 - eta * L),
    }
    return Bound({name: float(x) for name, x in terms.items()}, SHADOW_AVERAGE, SOURCE, requires)


def fedsam_at_optimum(constants: Constants, *, step_size: float, local_steps: int, rounds: int, rho: float) -> Bound:
    """Return the bound with heterogeneity at x* only, hence valid on R^d for least squares with unequal Hessians.

    Parameters
    ----------
    constants : Constants
        L, D, zeta_star.
    step_size, local_steps, rounds, rho
        As for `fedsam`.

    Raises
    ------
    AssumptionError
        If a constant is missing, or eta is too large: eta L < 1 and Q < 1/3 are needed.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedsam import fedsam_at_optimum
    >>> constants = Constants(L=1.0, D=1.0, zeta_star=0.5)
    >>> round(fedsam_at_optimum(constants, step_size=0.1, local_steps=2, rounds=10, rho=0.1).value, 4)
    0.2924
    """
    eta, tau, T, r, L, D, requires = _setting(OPTIMUM, constants, step_size, local_steps, rounds, rho)
    (zeta,) = known(OPTIMUM, constants, "zeta_star")
    Q = 2.0 * eta**2 * tau * (tau - 1) * L**2
    requires += require(
        OPTIMUM, Hypothesis("Q < 1/3 (smaller steps)", f"Q = {Q:g}, step_size = {eta:g}", Q < 1.0 / 3.0)
    )
    R, t = 2.0 * Q / (1.0 - Q), 1.0 if tau == 1 else 2.0
    scale = 1.0 / (1.0 - R)
    drift = scale * 2.0 / 3.0 * L * eta**2 * (tau - 1) * (2 * tau - 1) / (1.0 - Q)
    terms = {
        "start": scale * D**2 * (1.0 / eta + R * L) / (2.0 * tau * T),
        "drift": drift * float(zeta) ** 2,
        "perturbation": scale * 0.5 * L * r**2 * (t + eta * L / (1.0 - eta * L)) + drift * L**2 * r**2,
    }
    return Bound(terms, SHADOW_AVERAGE, OPTIMUM, requires)


def sam_error(constants: Constants, *, rho: float) -> Bound:
    """Return L r, how far a SAM gradient is from the gradient at most; attained by F = L x^2/2.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedsam import sam_error
    >>> sam_error(Constants(L=2.0), rho=0.5).value
    1.0
    """
    (L,) = known("SAM gradient error", constants, "L")
    r = real("rho", rho, low=0.0)
    return Bound({"perturbation": float(L) * r}, PERTURBATION, "Lipschitz gradient (docs/theory/fedsam.md)")


def sam_cycle(problem: Problem, *, step_size: float, rho: float) -> Cycle:
    """Return the cycle in which SAM ends on a least-squares problem of one client.

    Raises
    ------
    AssumptionError
        If there are several clients, the loss is not Squared, or eta l >= 2.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.fedsam import sam_cycle
    >>> problem = Problem(Federation.from_clients([([[1.0]], [3.0])]), Squared())
    >>> sam_cycle(problem, step_size=1.0, rho=0.5).radius
    0.5
    """
    eta, r = real("step_size", step_size, low=0.0, strict=True), real("rho", rho, low=0.0)
    q = quadratic(problem)
    h, V = np.linalg.eigh(q.H[0])
    top = float(h[-1])
    require(
        "SAM's cycle",
        Hypothesis("one client", f"{len(q.p)} clients", len(q.p) == 1),
        Hypothesis("step_size < 2/l", f"step_size = {eta:g}, l = {top:g}", eta * top < 2.0),
    )
    length = eta * top * r / (2.0 - eta * top)
    return Cycle(length * V[:, -1], length, 0.5 * top * length**2)


def _setting(
    theorem: str, constants: Constants, step_size: float, local_steps: int, rounds: int, rho: float
) -> tuple[float, int, int, float, float, float, tuple[Hypothesis, ...]]:
    """eta, tau, T, r, L, D and the common hypotheses."""
    eta, tau = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    T, r = whole("rounds", rounds, low=1), real("rho", rho, low=0.0)
    L, D = known(theorem, constants, "L", "D")
    requires = require(
        theorem,
        Hypothesis("every F_k convex and L-smooth", f"L = {L:g}"),
        Hypothesis("step_size < 1/L", f"step_size = {eta:g}, L = {L:g}", eta * L < 1.0),
    )
    return eta, tau, T, r, float(L), float(D), requires
