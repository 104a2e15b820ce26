"""Smoothness of F and of its clients on all of R^d, for theorems on full gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.constants import BOUND, EXACT, Constants, default_steps
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theory.bound import Hypothesis, require


def smoothness_of_F(theorem: str, problem: Problem) -> default_steps.Smoothness:
    """Return L of F = sum_k p_k f_k and of its clients, or raise where there is none.

    Raises
    ------
    AssumptionError
        If the loss is not smooth on all of R^d.
    """
    rough = float(traits(problem.loss).smoothness)
    require(theorem, Hypothesis("a smooth loss", f"{problem.loss!r}, smoothness {rough:g}", math.isfinite(rough)))
    return default_steps.smoothness_of(problem.federation, problem.weights, problem.loss, problem.l2)


def constants_of_F(theorem: str, s: Setting) -> Constants:
    """Return the setting's constants with the smoothness of F itself in the place of the clients' largest."""
    smooth, c = smoothness_of_F(theorem, s.problem), s.constants()
    how: dict[str, Any] = dict(c.how) | {"L": EXACT if smooth.exact and c.how.get("L") == EXACT else BOUND}
    return replace(c, L=smooth.F, how=how)


def start_length(s: Setting) -> float:
    """Return ‖w_0‖ + ‖w*‖, from which rounding of models is told."""
    return float(np.linalg.norm(s.start)) + float(np.linalg.norm(s.problem.solve().w))
