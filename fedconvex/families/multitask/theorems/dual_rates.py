"""What the rates of MOCHA are made of: s, C, and their hypotheses."""

from __future__ import annotations

import math

from fedconvex._check import instance, real
from fedconvex.constants.record import possible
from fedconvex.families.multitask.separability import DualConstants
from fedconvex.theory.bound import Hypothesis, require

SOURCE = "Smith, Chiang, Sanjabi, Talwalkar 2017, NIPS, Theorem {} (explicit form: docs/theory/mocha.md)"


def gain(constants: DualConstants) -> float:
    """s = mu/(mu + sigma' sigma_max)."""
    return constants.mu / (constants.mu + constants.sigma * constants.sigma_max)


def spread(constants: DualConstants) -> float:
    """C = sigma' sigma_max N w^2/2."""
    return max(0.5 * constants.sigma * constants.sigma_max * constants.weight * constants.width**2, 1e-300)


def _common(which: int, constants: DualConstants, theta: float) -> tuple[str, Hypothesis, Hypothesis]:
    instance(f"{SOURCE.format(which)}: constants", constants, DualConstants)
    possible("DualConstants", constants._asdict(), constants._fields)
    theta = real(f"{SOURCE.format(which)}: theta", theta)
    numbers = f"sigma' = {constants.sigma:g}, least {constants.least_sigma:g}"
    safe = Hypothesis("a safe sigma'", numbers, constants.sigma >= constants.least_sigma * (1.0 - 1e-9))
    share = Hypothesis("0 <= Thetabar < 1", f"Thetabar = {theta:g}", 0.0 <= theta < 1.0)
    return SOURCE.format(which), safe, share


def of_smooth_losses(constants: DualConstants, theta: float) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of Theorem 1, or raise where one fails."""
    source, safe, share = _common(1, constants, theta)
    return require(source, Hypothesis("a smooth loss", f"mu = {constants.mu:g}", constants.mu > 0.0), safe, share)


def of_lipschitz_losses(constants: DualConstants, theta: float) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of Theorem 2, or raise where one fails."""
    source, safe, share = _common(2, constants, theta)
    finite = math.isfinite(constants.width)
    return require(source, Hypothesis("a Lipschitz loss", f"L = {constants.lipschitz:g}", finite), safe, share)
