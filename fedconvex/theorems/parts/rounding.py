"""How far double precision moves what is measured: derived from what was computed, with the conditioning in it.

A gradient is a sum of rows' slopes times features; a score x'w is off by at most a few eps ‖x‖‖w‖, which the slope
passes on by the loss's smoothness, and the sum adds eps of its terms. Of what follows, steps of gradient descent move
two models apart by no more than before (steps up to 2/L), so that a run's errors add up; a minimiser is off by its
gradient over the convexity; a square q = r^2 is off by 2 r delta + delta^2 where r is off by delta.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theory.bound import Dimension, Quantity
from fedconvex.traits import traits_of

EPS = float(np.finfo(float).eps)
UNIT = 8.0 * EPS  # of a sum: blocks, fused or not


class Found(NamedTuple):
    """An exact computation: values, and how far double precision may have moved each of them."""

    values: np.ndarray  # (len(rounds),)
    rounding: np.ndarray  # (len(rounds),)


def gradient_rounding(p: Problem, w: np.ndarray) -> np.ndarray:
    """Return how far the clients' gradients at w may be off, (K,)."""
    fed, zero = p.federation, np.zeros(p.model_shape)
    norms2 = fed.row_norms2 if p.relative_weights is None else p.relative_weights * fed.row_norms2
    rough = traits(p.loss).smoothness
    rough = rough if math.isfinite(rough) else 0.0  # slopes that jump: their size below
    curvature = rough * np.add.reduceat(norms2, fed.ptr[:-1]) / fed.sizes + p.l2
    at_zero = np.sum(p.client_gradients(zero).reshape(fed.K, -1) ** 2, axis=1) + p.gradient_variance(zero)
    return np.asarray(UNIT * (2.0 * curvature * float(np.linalg.norm(w)) + np.sqrt(at_zero)))


def excess(p: Problem, w: np.ndarray) -> float:
    """Return F(w) - F*, on least squares without a difference: e'He/2 + grad F(w*)'e with e = w - w*."""
    best = p.solve()
    if not traits(p.loss).quadratic:
        return float(p.value(w)) - best.value
    fed, e = p.federation, np.asarray(w - best.w)
    squares = p.per_row @ np.asarray(fed.X @ e) ** 2
    return 0.5 * float(squares) + p.ridge_term(e) + float(p.gradient(best.w) @ e)


def minimiser_rounding(p: Problem) -> float:
    """Return how far the computed minimiser may be from the true one: its gradient over mu."""
    w, mu = np.asarray(p.solve().w), float(p.constants().mu or 0.0)
    off = float(np.linalg.norm(p.gradient(w))) + float(p.weights @ gradient_rounding(p, w))
    return off / mu if mu > 0.0 else math.inf if off > 0.0 else 0.0


def model_rounding(s: Setting) -> float:
    """Return how far the model of a run may be off after its rounds: errors of its steps, added up."""
    p, t = s.problem, traits_of(s.method, s.problem)
    length = float(np.linalg.norm(s.start)) + float(np.linalg.norm(p.solve().w))
    if t.local is None:
        return 0.0
    push = gradient_rounding(p, np.full(1, length))
    eta = t.local.step_size
    step = max(float(eta.at(i)) for i in (0, s.rounds)) if hasattr(eta, "at") else float(np.max(eta))
    each = UNIT * length + step * t.local.factor * push
    return s.rounds * float(np.max(t.local.steps * each))


def natural_size(quantity: Quantity, s: Setting) -> float:
    """Return what rounding is compared with where the bound is zero; infinite where there is no one model."""
    p = s.problem
    if not hasattr(p, "gradient_variance"):
        return math.inf
    length = float(np.linalg.norm(s.start)) + float(np.linalg.norm(p.solve().w))
    if quantity.dimension is Dimension.SQUARED_GRADIENT:
        return float(np.max(gradient_rounding(p, np.full(1, length)) / UNIT) ** 2)
    if quantity.dimension is Dimension.VALUE:
        return abs(float(p.value(s.start))) + abs(p.solve().value)
    return length if quantity.dimension is Dimension.LENGTH else length**2


def of_square(value: float, off: float) -> float:
    """Return how far r^2 may be off, where r is by ``off``."""
    return 2.0 * math.sqrt(max(value, 0.0)) * off + off * off


def rounds_added(factor: float, rounds: int) -> float:
    """Return how many errors of a round add up where a round contracts by a factor, which may be 1 up to rounding."""
    return min(float(rounds), 1.0 / (1.0 - factor)) if factor < 1.0 else float(rounds)


def rounding(quantity: Quantity, s: Setting, value: float) -> float:
    """Return how far double precision may move a quantity that runs show, by what it is measured in."""
    p = s.problem
    if quantity.dimension is Dimension.LENGTH:
        return minimiser_rounding(p) + model_rounding(s)
    if quantity.dimension is Dimension.SQUARED_LENGTH:
        return of_square(value, minimiser_rounding(p) + model_rounding(s))
    best, w = p.solve(), p.flatten(s.start)[0][0]
    known = best.gap if quantity.of_minimum else 0.0  # F* is not above best.value, and at most that far below
    return known + 4.0 * (p.rounding(best.w.ravel(), best.value) + p.rounding(w, float(p.value(s.start))))
