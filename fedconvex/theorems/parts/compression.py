"""What theorems on compressed vectors share: what a compressor declares, and rounding of what clients remember."""

from __future__ import annotations

import math

import numpy as np

from fedconvex.theorems.parts.rounding import UNIT, gradient_rounding
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.parts.smoothness import start_length
from fedconvex.theory.bound import Hypothesis, require


def model_size(s: Setting) -> int:
    """Return d, the entries of a model."""
    return int(np.prod(s.problem.model_shape))


def contractive(theorem: str, s: Setting) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return delta of a deterministic contractive compressor, and the hypothesis that it is one."""
    C = s.method.compressor
    checked = require(theorem, Hypothesis("a deterministic contractive compressor", f"{C!r}", not C.unbiased))
    return float(C.delta(model_size(s))), checked


def unbiased(theorem: str, s: Setting) -> tuple[float, tuple[Hypothesis, ...]]:
    """Return omega of an unbiased compressor, and the hypothesis that it is one."""
    C = s.method.compressor
    checked = require(theorem, Hypothesis("an unbiased compressor", f"{C!r}", bool(C.unbiased)))
    return float(C.omega(model_size(s))), checked


def feedback_rounding(s: Setting) -> float:
    """Return how far vectors of clients may be off, in root mean square: errors of rounds, which contract, added."""
    p, length = s.problem, start_length(s)
    L = float(p.constants().L or 0.0)
    push = math.sqrt(float(p.weights @ gradient_rounding(p, np.full(1, length)) ** 2))
    return (s.rounds + 2) * (2.0 * push + UNIT * L * length)
