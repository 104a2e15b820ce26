"""How far double precision moves what runs of dual methods show, derived from sizes that no run exceeds.

Let E = D(0) + P(0) = sum_t c_t sum_i (l_i(0) - inf l_i), and sigma' safe. D falls and l*(s) >= -l(0): in every round
R*(V) <= E, and ‖w_t‖^2 <= 2 Mbar_tt E. G_t falls within a round: ‖u‖^2 <= 2 (1 + sigma') Mbar_tt E, and
node t's conjugates exceed -P_t(0) by E (1 + 1/sigma') at most. l* is mu-strongly convex with its minimum at l'(0):
sqrt(c_t) ‖alpha_t‖ <= a = sqrt(2 E/mu) (1 + sqrt(1 + 1/sigma')), or L sqrt(N) where l is L-Lipschitz.

A round of S steps rounds u by S eps ‖u‖, which reaches v_t divided by rho_t = sigma' Mbar_tt; every pass rounds alpha_t
by eps of itself; v_t is summed anew from alpha_t every 64 rounds. Where v_t is off by e_t, <V, W>/2 is by <E, W> and
<E, Mbar E>/2. Where Mbar is regular, ‖v_t‖^2 <= 2 E (Mbar^-1)_tt too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.families.multitask.dual_nodes import REFRESH
from fedconvex.methods import NodeWork
from fedconvex.problems import MultiTaskProblem
from fedconvex.theorems.kit import *


class Sizes(NamedTuple):
    """What no run exceeds, and how far rounding moves v_t and w_t: (m,) each, but for the first."""

    energy: float  # what losses and conjugates add up to
    w: np.ndarray  # ‖w_t‖
    v: np.ndarray  # ‖v_t‖
    slopes: np.ndarray  # c_t sum_i |l'(x_i'w_t)| ‖x_i‖
    off_v: np.ndarray
    summed: np.ndarray  # rounding of Mbar V itself
    off_w: np.ndarray  # all
    terms: np.ndarray  # square roots of the numbers of rows


def sizes_of(s: Setting, sigma: float) -> Sizes:
    """Return the sizes for a run with sigma'."""
    p = s.problem
    assert isinstance(p, MultiTaskProblem)
    if len(p.model_shape) > 2:
        raise AssumptionError(f"MOCHA's rate does not apply: needs one output a task, got models of {p.model_shape}")
    fed, loss, zero = p.federation, traits(p.loss), np.zeros(p.model_shape)
    weight = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
    at_zero, smooth = float(p.value(zero)), loss.smoothness * float(weight.max())
    energy = max(at_zero + float(p.conjugates(np.zeros(fed.n)).sum()), 0.0)
    count = float(p.c @ np.add.reduceat(weight**2, fed.ptr[:-1]))
    own, most = np.diag(p.mbar), loss.lipschitz * count**0.5
    rows = np.sqrt(p.c * np.add.reduceat(p.row_norms, fed.ptr[:-1]))
    dual = min(np.sqrt(2.0 * energy * smooth) * (1.0 + np.sqrt(1.0 + 1.0 / sigma)), most)
    w, parts = np.sqrt(2.0 * own * energy), rows * dual  # parts: c_t sum_i |alpha_i| ‖x_i‖
    slopes = rows * np.minimum(np.sqrt(2.0 * energy * smooth) + smooth * rows * w, most)
    since, terms = min(s.rounds, REFRESH), np.sqrt(fed.sizes)
    steps = _steps(s)
    move = np.sqrt(2.0 * (1.0 + sigma) * energy / own) / sigma  # ‖u‖/rho_t
    off_v = UNIT * (since * (2.0 * (steps + 2.0) * move + (steps / fed.sizes + 1.0) * parts) + terms * parts)
    lam, U = np.linalg.eigh(p.mbar)
    inverse = U**2 @ (1.0 / lam) if lam[0] > UNIT * fed.K * lam[-1] else np.full(fed.K, np.inf)
    v = np.minimum(parts, np.sqrt(2.0 * energy * inverse) if energy > 0.0 else 0.0)
    summed = UNIT * np.sqrt(fed.K) * np.abs(p.mbar) @ v
    off_w = np.abs(p.mbar) @ off_v + summed
    curved = dual**2 / smooth if np.isfinite(smooth) else 0.0
    values = abs(at_zero) + 4.0 * energy * (1.0 + 1.0 / sigma) + curved
    return Sizes(values, w, v, slopes, off_v, summed, off_w, terms)


def dual_rounding(z: Sizes) -> float:
    """Return how far D(alpha) may be off: its conjugates, and <V, W>/2."""
    return float(UNIT * z.energy * z.terms.max() + np.sum(_products_rounding(z)))


def _products_rounding(z: Sizes) -> np.ndarray:
    """Return how far the <v_t, w_t> may be off together, by node (m,)."""
    return np.asarray(z.w * z.off_v + z.off_v * z.off_w + z.v * (z.summed + UNIT * z.w))


def gap_rounding(z: Sizes) -> np.ndarray:
    """Return how far every node's part of the duality gap may be off, (m,)."""
    losses = UNIT * (z.energy * z.terms + z.slopes * z.w) + z.slopes * z.off_w
    return np.asarray(losses + _products_rounding(z))


def _steps(s: Setting) -> np.ndarray:
    """Return the most coordinate steps of every node in a round, (m,)."""
    m: Any = s.method
    problem: Any = s.problem
    work = (m if isinstance(m, NodeWork) else NodeWork(theta=m.theta, max_epochs=m.max_epochs)).asked(problem, 0)
    return np.asarray(work.steps * work.most, dtype=float)
