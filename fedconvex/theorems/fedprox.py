"""FedProx: expected descent of one round, as published and with constants from which the sampling terms are gone.

Setting
    f = sum p_k F_k. From w: K devices drawn with probabilities p_k (with replacement); device k finds w_k with
    ‖grad h_k(w_k)‖ <= gamma ‖grad F_k(w)‖, h_k = F_k + (mu/2)‖. - w‖^2 (gamma-inexact); w^+ = plain average.
Assumptions
    F_k is L-smooth with Hessian >= -L_- I (L_- < 0: strongly convex); mubar = mu - L_- > 0; B is the dissimilarity at
    w: sum p_k ‖grad F_k(w)‖^2 <= B^2 ‖grad f(w)‖^2.
Statement
    E f(w^+) <= f(w) - rho ‖grad f(w)‖^2 with, writing G = 1 + gamma,

    paper   rho = 1/mu - gamma B/mu - sqrt(2) G B/(mubar sqrt(K)) - L G B/(mubar mu) - L G^2 B^2/(2 mubar^2)
                  - (2 sqrt(2 K) + 2) L G^2 B^2/(mubar^2 K);
    sharp   rho = 1/mu - gamma B/mu - L G B/(mubar mu) - L G^2 B^2/(2 mubar^2);
    convex  rho = [1 - (1 + B) t/2 - gamma B]/mu - L G^2 B^2/(2 mubar^2), t = L/(L + mu), for convex F_k.

    Sharp and convex hold for every unbiased choice of participants: K draws with probabilities p_k, equal weights and
    K of N without replacement, or everybody.
Source
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
    Theorem 4. FROM-MEMORY: its text could not be re-read; docs/theory/fedprox.md derives it, with these constants.
    Sharp and convex: this project, proofs there.
What differs
    The paper pays for sampling through a Lipschitz constant of f near w. Sampling is unbiased, and f is smooth: the
    second moment of the step is all that enters, and it is bounded by the same term as without sampling.
"""

from __future__ import annotations

import math

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import Constants
from fedconvex.theory.bound import NEXT_VALUE, Bound, Hypothesis, known, require

__all__ = ["fedprox", "fedprox_convex", "fedprox_rho", "fedprox_rho_convex", "fedprox_rho_sharp", "fedprox_sharp"]

PAPER = "Li et al. 2020, MLSys, Theorem 4 (re-derived)"
SHARP = "fedconvex, FedProx without sampling terms (docs/theory/fedprox.md)"
CONVEX = "fedconvex, FedProx for convex clients (docs/theory/fedprox.md)"


def fedprox(
    constants: Constants,
    *,
    proximal: float,
    value: float,
    gradient_norm: float,
    participants: int,
    inexactness: float = 0.0,
    nonconvexity: float | None = None,
) -> Bound:
    """Return the paper's bound of E f(w^+) given w.

    Parameters
    ----------
    constants : Constants
        L, and B at w (``problem.constants(center=w)``); mu_k where nonconvexity is not given.
    proximal : float
        mu.
    value, gradient_norm : float
        f(w), ‖grad f(w)‖.
    participants : int
        K draws.
    inexactness : float
        gamma in [0, 1].
    nonconvexity : float, optional
        L_-: Hessians are at least -L_-; default -min mu_k, or 0.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, mubar <= 0 or rho <= 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox, fedprox_convex
    >>> at = dict(proximal=20.0, value=1.0, gradient_norm=1.0)
    >>> round(fedprox(Constants(L=1.0, B=1.0), participants=100, **at).terms["descent"], 4)
    -0.0384
    >>> round(fedprox_convex(Constants(L=1.0, B=1.0), **at).terms["descent"], 4)
    -0.0464
    """
    rho, requires = fedprox_rho(
        constants, proximal=proximal, participants=participants, inexactness=inexactness, nonconvexity=nonconvexity
    )
    return _descent(PAPER, rho, requires, value, gradient_norm)


def fedprox_sharp(
    constants: Constants,
    *,
    proximal: float,
    value: float,
    gradient_norm: float,
    inexactness: float = 0.0,
    nonconvexity: float | None = None,
) -> Bound:
    """Return the bound without sampling terms; parameters as for `fedprox`."""
    rho, requires = fedprox_rho_sharp(constants, proximal=proximal, inexactness=inexactness, nonconvexity=nonconvexity)
    return _descent(SHARP, rho, requires, value, gradient_norm)


def fedprox_convex(
    constants: Constants, *, proximal: float, value: float, gradient_norm: float, inexactness: float = 0.0
) -> Bound:
    """Return the bound for convex clients, never above the sharp one; parameters as for `fedprox`."""
    rho, requires = fedprox_rho_convex(constants, proximal=proximal, inexactness=inexactness)
    return _descent(CONVEX, rho, requires, value, gradient_norm)


def fedprox_rho(
    constants: Constants,
    *,
    proximal: float,
    participants: int,
    inexactness: float = 0.0,
    nonconvexity: float | None = None,
) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return the paper's rho, of either sign, and the hypotheses."""
    K = whole("participants", participants, low=1)
    mu, L, B, gamma, mubar, requires = _setting(PAPER, constants, proximal, inexactness, nonconvexity)
    GB = (1.0 + gamma) * B
    rho = _sharp(mu, L, B, gamma, mubar)
    rho -= math.sqrt(2.0 / K) * GB / mubar + (2.0 * math.sqrt(2.0 * K) + 2.0) / K * L * GB**2 / mubar**2
    return rho, requires


def fedprox_rho_sharp(
    constants: Constants, *, proximal: float, inexactness: float = 0.0, nonconvexity: float | None = None
) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return rho without sampling terms, of either sign, and the hypotheses."""
    mu, L, B, gamma, mubar, requires = _setting(SHARP, constants, proximal, inexactness, nonconvexity)
    return _sharp(mu, L, B, gamma, mubar), requires


def fedprox_rho_convex(
    constants: Constants, *, proximal: float, inexactness: float = 0.0
) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return rho for convex clients, of either sign, and the hypotheses."""
    mu, L, B, gamma, mubar, requires = _setting(CONVEX, constants, proximal, inexactness, None)
    requires += require(CONVEX, Hypothesis("every F_k convex", f"mubar - mu = {mubar - mu:g}", mubar >= mu))
    t, GB = L / (L + mu), (1.0 + gamma) * B
    return (1.0 - 0.5 * t * (1.0 + B) - gamma * B) / mu - 0.5 * L * GB**2 / mubar**2, requires


def _sharp(mu: float, L: float, B: float, gamma: float, mubar: float) -> float:
    GB = (1.0 + gamma) * B
    return (1.0 - gamma * B - L * GB / mubar) / mu - 0.5 * L * GB**2 / mubar**2


def _descent(theorem: str, rho: float, requires: tuple[Hypothesis, ...], value: float, gradient_norm: float) -> Bound:
    requires += require(theorem, Hypothesis("rho > 0 (no descent otherwise)", f"rho = {rho:g}", rho > 0.0))
    g = real("gradient_norm", gradient_norm, low=0.0)
    return Bound({"value": real("value", value), "descent": -rho * g**2}, NEXT_VALUE, theorem, requires)


def _setting(
    theorem: str, constants: Constants, proximal: float, inexactness: float, nonconvexity: float | None
) -> tuple[float, float, float, float, float, tuple[Hypothesis, ...]]:
    mu = real("proximal", proximal, low=0.0, strict=True)
    gamma = real("inexactness", inexactness, low=0.0, high=1.0)
    L, B = known(theorem, constants, "L", "B")
    if nonconvexity is None:
        low = 0.0 if constants.mu_k is None else -float(np.min(constants.mu_k))
    else:
        low = real("nonconvexity", nonconvexity)
    requires = require(
        theorem,
        Hypothesis("every F_k L-smooth", f"L = {L:g}"),
        Hypothesis("dissimilarity B >= 1 at w", f"B = {B:g}", B >= 1.0 - 1e-12),
        Hypothesis("proximal > L_-", f"proximal = {mu:g}, L_- = {low:g}", mu > low),
        Hypothesis("gamma-inexact local solutions", f"gamma = {gamma:g}"),
    )
    return mu, float(L), float(B), gamma, mu - low, requires
