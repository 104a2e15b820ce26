"""The factors rho of FedProx: E f(w^+) <= f(w) - rho ‖grad f(w)‖^2 (`fedconvex.theorems.fedprox` states them)."""

from __future__ import annotations

import math

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import Constants
from fedconvex.theory.bound import Hypothesis, known_constants, require

PAPER = "Li et al. 2020, MLSys, Theorem 4 (re-derived)"
SHARP = "fedconvex, FedProx without sampling terms (docs/theory/fedprox.md)"
CONVEX = "fedconvex, FedProx for convex clients (docs/theory/fedprox.md)"


def fedprox_rho(
    constants: Constants,
    *,
    proximal_mu: float,
    participants: int,
    inexactness: float = 0.0,
    nonconvexity: float | None = None,
) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return the paper's rho, of either sign, and the hypotheses.

    Parameters
    ----------
    constants : Constants
        L, and B at the model; mu_k where nonconvexity is not given.
    proximal_mu : float
        mu, positive.
    participants : int
        K, draws a round.
    inexactness : float
        gamma of the local solutions, in [0, 1].
    nonconvexity : float, optional
        L_-: Hessians are at least -L_-; default -min mu_k, or 0.

    Raises
    ------
    ValueError, TypeError
        If participants is below 1, proximal_mu not positive, or inexactness not in [0, 1].

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox_rho
    >>> rho, _ = fedprox_rho(Constants(L=1.0, B=1.0), proximal_mu=4.0, participants=10, nonconvexity=0.0)
    >>> round(rho, 4)  # negative: nothing is promised with so small a proximal weight
    -0.024
    """
    K = whole("participants", participants, low=1)
    mu, L, B, gamma, mubar, requires = _setting(PAPER, constants, proximal_mu, inexactness, nonconvexity)
    GB = (1.0 + gamma) * B
    rho = _sharp(mu, L, B, gamma, mubar)
    rho -= math.sqrt(2.0 / K) * GB / mubar + (2.0 * math.sqrt(2.0 * K) + 2.0) / K * L * (GB / mubar) * (GB / mubar)
    return rho, requires


def fedprox_rho_sharp(
    constants: Constants, *, proximal_mu: float, inexactness: float = 0.0, nonconvexity: float | None = None
) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return rho without sampling terms, of either sign, and the hypotheses.

    Parameters
    ----------
    constants, proximal_mu, inexactness, nonconvexity
        As for `fedprox_rho`.

    Raises
    ------
    ValueError, TypeError
        If proximal_mu is not positive, or inexactness not in [0, 1].

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox_rho_sharp
    >>> round(fedprox_rho_sharp(Constants(L=1.0, B=1.0), proximal_mu=4.0, nonconvexity=0.0)[0], 4)
    0.1562
    """
    mu, L, B, gamma, mubar, requires = _setting(SHARP, constants, proximal_mu, inexactness, nonconvexity)
    return _sharp(mu, L, B, gamma, mubar), requires


def fedprox_rho_convex(
    constants: Constants, *, proximal_mu: float, inexactness: float = 0.0
) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return rho for convex clients, of either sign, and the hypotheses.

    Parameters
    ----------
    constants, proximal_mu, inexactness
        As for `fedprox_rho`.

    Raises
    ------
    ValueError, TypeError
        If proximal_mu is not positive, or inexactness not in [0, 1].
    AssumptionError
        If a client is not convex.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox_rho_convex
    >>> round(fedprox_rho_convex(Constants(L=1.0, B=1.0), proximal_mu=4.0)[0], 4)
    0.1688
    """
    mu, L, B, gamma, mubar, requires = _setting(CONVEX, constants, proximal_mu, inexactness, None)
    requires += require(CONVEX, Hypothesis("every F_k convex", f"mubar - mu = {mubar - mu:g}", mubar >= mu))
    t, GB = L / (L + mu), (1.0 + gamma) * B
    return (1.0 - 0.5 * t * (1.0 + B) - gamma * B) / mu - 0.5 * L * (GB / mubar) * (GB / mubar), requires


def _sharp(mu: float, L: float, B: float, gamma: float, mubar: float) -> float:
    GB = (1.0 + gamma) * B
    return (1.0 - gamma * B - L * GB / mubar) / mu - 0.5 * L * (GB / mubar) * (GB / mubar)


def _setting(
    theorem: str, constants: Constants, proximal_mu: float, inexactness: float, nonconvexity: float | None
) -> tuple[float, float, float, float, float, tuple[Hypothesis, ...]]:
    mu = real("proximal_mu", proximal_mu, low=0.0, strict=True)
    gamma = real("inexactness", inexactness, low=0.0, high=1.0)
    L, B = known_constants(theorem, constants, "L", "B")
    if nonconvexity is None:
        low = 0.0 if constants.mu_k is None else -float(np.min(constants.mu_k))
    else:
        low = real("nonconvexity", nonconvexity)
    requires = require(
        theorem,
        Hypothesis("every F_k L-smooth", f"L = {L:g}"),
        Hypothesis("dissimilarity B >= 1 at w", f"B = {B:g}", B >= 1.0 - 1e-12),
        Hypothesis("proximal_mu > L_-", f"proximal_mu = {mu:g}, L_- = {low:g}", mu > low),
        Hypothesis("gamma-inexact local solutions", f"gamma = {gamma:g}"),
    )
    return mu, float(L), float(B), gamma, mu - low, requires
