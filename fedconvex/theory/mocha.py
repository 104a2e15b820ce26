"""MOCHA: rates of the dual objective with explicit constants, for inexact local solutions and dropped nodes.

Setting
    D(alpha) = sum_t c_t sum_i l*(-alpha_i) + (1/2) sum_st Mbar_st <v_s, v_t>, v_t = c_t X_t'alpha_t, is minimised over
    sum_t n_t dual variables; W(alpha) = Mbar V. In a round node t changes alpha_t by delta_t, which reduces its
    subproblem G_t with sigma' to a fraction theta_t: theta_t = (G_t(delta) - min G_t)/(G_t(0) - min G_t).
Assumptions
    sigma' sum_t Mbar_tt ‖v_t‖^2 >= sum_st Mbar_st <v_s, v_t> for all alpha. Given the past, theta_t = 1 (dropped) with
    probability at most p_max < 1, and E[theta_t | theta_t < 1] <= Theta_max < 1;
    Thetabar = p_max + (1 - p_max) Theta_max.
    Theorem 1: l is (1/mu)-smooth. Theorem 2: l is L-Lipschitz.
Statement
    eps_h = E D(alpha^h) - min D, rho = 1 - Thetabar, sigma_max = max_t c_t Mbar_tt ‖X_t‖_2^2.

    Theorem 1:  eps_h <= (1 - rho s)^h eps_0,  s = mu/(mu + sigma' sigma_max),  and always
                P(W(alpha)) + D(alpha) <= (D(alpha) - min D)/s.
    sigma':      sum_st Mbar_st <v_s, v_t> <= sigma' sum_t Mbar_tt ‖v_t‖^2 for all alpha with sigma' the number of
                tasks, max_t sum_s |Mbar_ts|/Mbar_tt, the largest eigenvalue of D^-1/2 Mbar D^-1/2 (D the diagonal of
                Mbar) or, the least, that of its blocks on the tasks' row spaces (pencil).
    Theorem 2:  with N = sum_t c_t n_t, w = 2 L (or the width of the domain of l*, 1 for hinge and logistic losses) and
                C = sigma' sigma_max N w^2/2:  eps_{h+1} <= phi(eps_h), phi(e) = e - rho (e - C) for e >= 2C, else
                e - rho e^2/(4C). In closed form eps_h <= 4C/(rho (h - h0) + 2) from the first h0 with eps_h0 <= 2C.
Source
    Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017, Theorems 1 and 2, whose rounds are
    stated with constants that the proofs choose; the explicit forms here and their proof: docs/theory/mocha.md.
What differs
    Weights c_t; the last iterate instead of an average in Theorem 2; the whole recursion instead of its closed form.
"""

from __future__ import annotations

import math

from fedconvex._check import real, whole
from fedconvex.theory.bound import DUAL_SUBOPTIMALITY, DUALITY_GAP, SEPARABILITY, Bound, Hypothesis, require
from fedconvex.theory.separability import DualConstants

__all__ = [
    "mocha_gap",
    "mocha_lipschitz",
    "mocha_lipschitz_closed",
    "mocha_rate",
    "mocha_rounds",
    "mocha_smooth",
    "safe_sigma_bound",
    "theta_bar",
]

SOURCE = "Smith, Chiang, Sanjabi, Talwalkar 2017, NIPS, Theorem {} (explicit form: docs/theory/mocha.md)"


def theta_bar(p_max: float, theta_max: float) -> float:
    """Return Thetabar = p_max + (1 - p_max) Theta_max, the mean local accuracy with dropped nodes.

    Examples
    --------
    >>> from fedconvex.theory.mocha import theta_bar
    >>> theta_bar(0.5, 0.2)
    0.6
    """
    p, theta = real("p_max", p_max, low=0.0, high=1.0), real("theta_max", theta_max, low=0.0, high=1.0)
    return p + (1.0 - p) * theta


def mocha_rate(constants: DualConstants, *, theta: float = 0.0) -> float:
    """Return the factor 1 - (1 - Thetabar) s of a round in Theorem 1.

    Parameters
    ----------
    constants : DualConstants
    theta : float
        Thetabar, in [0, 1).

    Examples
    --------
    >>> from fedconvex.theory.mocha import mocha_rate
    >>> from fedconvex.theory.separability import DualConstants
    >>> mocha_rate(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0), theta=0.5)
    0.875
    """
    _smooth(constants, theta)
    return 1.0 - (1.0 - theta) * _s(constants)


def mocha_smooth(constants: DualConstants, *, rounds: int, start: float, theta: float = 0.0) -> Bound:
    """Return the bound of Theorem 1.

    Parameters
    ----------
    constants : DualConstants
    rounds : int
        h.
    start : float
        D(alpha^0) - min D; at alpha = 0 at most P(0) + D(0).
    theta : float
        Thetabar.

    Raises
    ------
    AssumptionError
        If the loss is not smooth, sigma' not safe, or Thetabar not in [0, 1).

    Examples
    --------
    >>> from fedconvex.theory.mocha import mocha_smooth
    >>> from fedconvex.theory.separability import DualConstants
    >>> mocha_smooth(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), rounds=3, start=8.0).value
    1.0
    """
    requires = _smooth(constants, theta)
    value = mocha_rate(constants, theta=theta) ** whole("rounds", rounds) * real("start", start, low=0.0)
    return Bound({"start": value}, DUAL_SUBOPTIMALITY, SOURCE.format(1), requires)


def mocha_rounds(constants: DualConstants, *, start: float, eps: float, theta: float = 0.0) -> int:
    """Return the rounds after which Theorem 1 promises eps.

    Examples
    --------
    >>> from fedconvex.theory.mocha import mocha_rounds
    >>> from fedconvex.theory.separability import DualConstants
    >>> mocha_rounds(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), start=8.0, eps=1.0)
    3
    """
    start, eps = real("start", start, low=0.0), real("eps", eps, low=0.0, strict=True)
    rate = mocha_rate(constants, theta=theta)
    if start <= eps:
        return 0
    return 1 if rate <= 0.0 else math.ceil(math.log(start / eps) / -math.log(rate) - 1e-12)


def mocha_gap(constants: DualConstants, *, suboptimality: float) -> Bound:
    """Return the bound of the duality gap by the dual suboptimality, for smooth losses and any alpha.

    Examples
    --------
    >>> from fedconvex.theory.mocha import mocha_gap
    >>> from fedconvex.theory.separability import DualConstants
    >>> mocha_gap(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), suboptimality=1.0).value
    2.0
    """
    requires = _smooth(constants, 0.0)
    value = real("suboptimality", suboptimality, low=0.0) / _s(constants)
    return Bound({"suboptimality/s": value}, DUALITY_GAP, SOURCE.format(1), requires)


def mocha_lipschitz(constants: DualConstants, *, rounds: int, start: float, theta: float = 0.0) -> Bound:
    """Return the bound of Theorem 2 by its recursion eps <- phi(eps).

    Parameters
    ----------
    constants, rounds, start, theta
        As for `mocha_smooth`.

    Raises
    ------
    AssumptionError
        If the loss is not Lipschitz, sigma' not safe, or Thetabar not in [0, 1).

    Examples
    --------
    >>> from fedconvex.theory.mocha import mocha_lipschitz
    >>> from fedconvex.theory.separability import DualConstants
    >>> mocha_lipschitz(DualConstants(0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0), rounds=1, start=2.0).value
    1.0
    """
    requires, C = _lipschitz(constants, theta), _spread(constants)
    eps = real("start", start, low=0.0)
    for _ in range(whole("rounds", rounds)):
        eps -= (1.0 - theta) * (eps - C if eps >= 2.0 * C else eps * eps / (4.0 * C))
    return Bound({"recursion": eps}, DUAL_SUBOPTIMALITY, SOURCE.format(2), requires)


def mocha_lipschitz_closed(constants: DualConstants, *, rounds: int, start: float, theta: float = 0.0) -> Bound:
    """Return the closed form of Theorem 2: (1 - rho/2)^h start down to 2C, then 4C/(rho (h - h0) + 2).

    Examples
    --------
    >>> from fedconvex.theory.mocha import mocha_lipschitz_closed
    >>> from fedconvex.theory.separability import DualConstants
    >>> mocha_lipschitz_closed(DualConstants(0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0), rounds=2, start=2.0).value
    1.0
    """
    requires, C, rho = _lipschitz(constants, theta), _spread(constants), 1.0 - theta
    start, h = real("start", start, low=0.0), whole("rounds", rounds)
    h0 = 0 if start <= 2.0 * C else math.ceil(math.log(start / (2.0 * C)) / -math.log(1.0 - 0.5 * rho))
    value = start * (1.0 - 0.5 * rho) ** h if h < h0 else 4.0 * C / (rho * (h - h0) + 2.0)
    return Bound({"closed": value}, DUAL_SUBOPTIMALITY, SOURCE.format(2), requires)


# ---------------------------------------------------------------- sigma'


def safe_sigma_bound(constants: DualConstants) -> Bound:
    """Return sigma' as the bound of `separability` that a rule for it promises.

    Examples
    --------
    >>> from fedconvex.theory.mocha import safe_sigma_bound
    >>> from fedconvex.theory.separability import DualConstants
    >>> safe_sigma_bound(DualConstants(1.0, 1.0, 1.0, 2.0, 1.5, 3.0, 1.0)).value
    2.0
    """
    return Bound({"sigma'": constants.sigma}, SEPARABILITY, f"{SOURCE.format('1, safe sigma')}")


def _s(constants: DualConstants) -> float:
    return constants.mu / (constants.mu + constants.sigma * constants.sigma_max)


def _spread(constants: DualConstants) -> float:
    """C = sigma' sigma_max N w^2/2."""
    return max(0.5 * constants.sigma * constants.sigma_max * constants.weight * constants.width**2, 1e-300)


def _common(which: int, constants: DualConstants, theta: float) -> tuple[str, Hypothesis, Hypothesis]:
    numbers = f"sigma' = {constants.sigma:g}, least {constants.least_sigma:g}"
    safe = Hypothesis("a safe sigma'", numbers, constants.sigma >= constants.least_sigma * (1.0 - 1e-9))
    share = Hypothesis("0 <= Thetabar < 1", f"Thetabar = {theta:g}", 0.0 <= theta < 1.0)
    return SOURCE.format(which), safe, share


def _smooth(constants: DualConstants, theta: float) -> tuple[Hypothesis, ...]:
    source, safe, share = _common(1, constants, theta)
    return require(source, Hypothesis("a smooth loss", f"mu = {constants.mu:g}", constants.mu > 0.0), safe, share)


def _lipschitz(constants: DualConstants, theta: float) -> tuple[Hypothesis, ...]:
    source, safe, share = _common(2, constants, theta)
    finite = math.isfinite(constants.width)
    return require(source, Hypothesis("a Lipschitz loss", f"L = {constants.lipschitz:g}", finite), safe, share)
