"""FedAvg on strongly convex functions with decaying steps: Li, Huang, Yang, Wang, Zhang (ICLR 2020).

Setting
    N devices with weights p_k, F = sum p_k F_k, E local SGD steps between synchronisations. **t counts local steps**;
    the start is w_0 and step t = 0, 1, ... has size eta_t = 2/(mu (gamma + t)), the same on all devices.
Assumptions
    A1 every F_k is L-smooth; A2 every F_k is mu-strongly convex; A3 E‖g_k - grad F_k‖^2 <= sigma_k^2 and A4
    E‖g_k‖^2 <= G^2 at every local iterate of the run.
Statement
    kappa = L/mu, gamma = max{8 kappa, E}, Gamma = F* - sum p_k F_k*, B = sum p_k^2 sigma_k^2 + 6 L Gamma
    + 8 (E-1)^2 G^2, and C = 0 (everybody), (4/K) E^2 G^2 (scheme I: K devices drawn with replacement with
    probabilities p_k, plain average) or (4/K) E^2 G^2 (N-K)/(N-1) (scheme II: K of N uniformly without replacement,
    equal weights). At every synchronisation t = E r

    E F(w_t) - F* <= (L/2) max{4(B + C)/mu^2, gamma ‖w_0 - w*‖^2}/(gamma + t)
                  <= [kappa/(gamma + t)] (2(B + C)/mu + (mu gamma/2) ‖w_0 - w*‖^2).
Source
    Li et al., "On the convergence of FedAvg on non-IID data", arXiv:1907.02189, Theorems 1-3.
What differs
    The paper prints gamma + T - 1 and w_1 beside eta_t = 2/(mu (gamma + t)). That is true as well (proof in
    docs/theory/fedavg_strongly_convex.md) but numbers steps from 1; here the start is w_0 and the first step eta_0, so
    that ``Decay(*fedavg_schedule(...))`` runs it. The value is the maximum, which is sharper; the sum of the terms is
    the paper's form. mu is the smallest mu_k.
Remark (Theorem 4)
    Steps must decay: with a fixed step, E > 1 and full gradients there are problems whose limit stays
    Omega((E-1) eta) away from w*. On quadratics w_inf - w* = (eta (E-1)/2) H^{-1} sum p_k H_k grad F_k(w*) + O(eta^2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedconvex._check import whole
from fedconvex.constants import Constants
from fedconvex.theorems.fedavg_convex import client_weights, equal_weights, where_taken
from fedconvex.theory.bound import AssumptionError, Bound, Hypothesis, Quantity, known, require

__all__ = ["Schedule", "fedavg_schedule", "fedavg_scheme_one", "fedavg_scheme_two", "fedavg_strongly_convex"]

SOURCE = "Li et al. 2020, arXiv:1907.02189"


class Schedule(NamedTuple):
    """Step eta_t = scale/(shift + t) for local step t = 0, 1, ...; ``Decay(*schedule)`` runs it."""

    scale: float  # 2/mu
    shift: float  # gamma = max{8 L/mu, E}


def fedavg_schedule(constants: Constants, *, local_steps: int) -> Schedule:
    """Return the step sizes that all three theorems ask for.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_schedule
    >>> fedavg_schedule(Constants(L=4.0, mu=0.5), local_steps=5)
    Schedule(scale=4.0, shift=64.0)
    """
    E = whole("local_steps", local_steps, low=1)
    L, mu, _ = _curvature(f"{SOURCE}, step sizes", constants)
    return Schedule(2.0 / mu, max(8.0 * L / mu, float(E)))


def fedavg_strongly_convex(constants: Constants, *, local_steps: int, rounds: int) -> Bound:
    """Return Theorem 1: all devices take part.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), Gamma, D = ‖w_0 - w*‖, sigma2_k (or sigma2), and with local_steps > 1 also G2; p or K.
    local_steps, rounds : int
        E and the number r of rounds done; t = E r local steps.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, or mu = 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_strongly_convex
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, K=2)
    >>> fedavg_strongly_convex(constants, local_steps=1, rounds=8).value
    0.25
    """
    return _bound(f"{SOURCE}, Theorem 1", constants, local_steps, rounds, None, 0.0)


def fedavg_scheme_one(constants: Constants, *, local_steps: int, rounds: int, participants: int) -> Bound:
    """Return Theorem 2: K devices drawn with replacement with probabilities p_k, plain average of the K results.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_scheme_one
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, G2=1.0, K=4)
    >>> fedavg_scheme_one(constants, local_steps=1, rounds=8, participants=2).terms["sampling"]
    0.25
    """
    K = whole("participants", participants, low=1)
    return _bound(f"{SOURCE}, Theorem 2 (scheme I)", constants, local_steps, rounds, K, 1.0)


def fedavg_scheme_two(constants: Constants, *, local_steps: int, rounds: int, participants: int) -> Bound:
    """Return Theorem 3: K of N devices of equal weight, uniformly without replacement.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_scheme_two
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, G2=1.0, K=4)
    >>> round(fedavg_scheme_two(constants, local_steps=1, rounds=8, participants=2).terms["sampling"], 4)
    0.1667
    """
    theorem = f"{SOURCE}, Theorem 3 (scheme II)"
    p = client_weights(theorem, constants)
    K = whole("participants", participants, low=1, high=p.size)
    require(theorem, equal_weights(p))
    return _bound(theorem, constants, local_steps, rounds, K, (p.size - K) / max(p.size - 1, 1))


def _bound(
    theorem: str, constants: Constants, local_steps: int, rounds: int, participants: int | None, share: float
) -> Bound:
    E, r = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=0)
    L, mu, requires = _curvature(theorem, constants)
    Gamma, D = known(theorem, constants, "Gamma", "D")
    p = client_weights(theorem, constants)
    noise = _noise(theorem, constants, p)
    used = ["sigma2_k" if constants.sigma2_k is not None else "sigma2"]
    G2 = 0.0
    if E > 1 or (participants is not None and share > 0.0):
        (G2,) = known(theorem, constants, "G2")
        used.append("G2")
        requires += (Hypothesis("E‖g_k‖^2 <= G^2 along the run", f"G^2 = {G2:g}"),)
    requires += where_taken(constants, *used)
    t, gamma = E * r, fedavg_schedule(constants, local_steps=E).shift
    requires += (Hypothesis("steps 2/(mu (gamma + t)), t = 0, 1, ...", f"2/mu = {2 / mu:g}, gamma = {gamma:g}"),)
    unit = 2.0 * L / (mu**2 * (gamma + t))
    terms = {
        "start": 0.5 * L * gamma * D**2 / (gamma + t),
        "noise": unit * noise,
        "heterogeneity": unit * 6.0 * L * Gamma,
        "drift": unit * 8.0 * (E - 1) ** 2 * G2,
    }
    if participants is not None:
        terms["sampling"] = unit * share * 4.0 / participants * E**2 * G2
    terms = {name: float(v) for name, v in terms.items()}
    value = max(terms["start"], sum(terms.values()) - terms["start"])
    return Bound(terms, Quantity.LAST_SYNCHRONISED, theorem, requires, value)


def _curvature(theorem: str, constants: Constants) -> tuple[float, float, tuple[Hypothesis, ...]]:
    """L, min mu_k and the hypotheses A1, A2."""
    (L,) = known(theorem, constants, "L")
    mu = float(np.min(constants.mu_k)) if constants.mu_k is not None else float(known(theorem, constants, "mu")[0])
    text = "every F_k mu-strongly convex, 0 < mu <= L"
    requires = require(
        theorem,
        Hypothesis("every F_k L-smooth", f"L = {L:g}"),
        Hypothesis(text, f"mu = {mu:g}, L = {L:g}", 0.0 < mu <= L * (1 + 1e-12)),
        *where_taken(constants, "mu_k" if constants.mu_k is not None else "mu"),
    )
    return float(L), mu, requires


def _noise(theorem: str, constants: Constants, p: np.ndarray) -> float:
    """Sum of p_k^2 sigma_k^2."""
    if constants.sigma2_k is None:
        return float(p @ p) * float(known(theorem, constants, "sigma2")[0])
    sigma2 = np.asarray(known(theorem, constants, "sigma2_k")[0], dtype=float)
    if not np.isfinite(sigma2).all():
        how = constants.how.get("sigma2_k", "given")
        raise AssumptionError(f"{theorem} does not apply: needs a finite sigma2_k, got {sigma2.max()} ({how})")
    return float(p**2 @ sigma2)
