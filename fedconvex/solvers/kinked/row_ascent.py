"""Losses with kinks by coordinate ascent on the dual, where most rows rest at an end of their interval.

The dual of F(w) = sum_i c_i l(x_i'w) + (l2/2)‖w‖^2 is to maximise

    D(alpha) = -sum_i c_i l*(-alpha_i) - (l2/2)‖u‖^2,    u = (1/l2) sum_i c_i alpha_i x_i,

and every F(u) - D(alpha) certifies. Steps visit the rows in random order (Hsieh et al. 2008, Algorithm 1, for the
hinge). A row that did not move twice in a row is left alone, as their shrinking does; but which rows rest is decided
anew, for all rows, whenever the gap is computed, since that takes all scores anyway.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex.draws import below
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.cache import kernel, reduction
from fedconvex.kernels.dispatch import conjugate, dual_step
from fedconvex.kernels.rows import row_axpy, row_dot
from fedconvex.solvers.objective import Objective

# mypy: disable-error-code="no-untyped-def"

PIECE = 50_000_000  # entries of X in one call: Ctrl-C is heard in between
_ENTRIES = 2**16  # that are squared at a time
PATIENCE = 8  # gaps within which it must be halved: otherwise smoothing is faster


class DualPoint(NamedTuple):
    """A model, the dual point that it was made of, and what both say of the minimum."""

    w: np.ndarray  # (d,) the best model seen
    value: float  # F(w)
    lower: float  # the largest D seen
    evaluations: int


@reduction
def _visit(loss, X, y, q, scale, state, steps, rows, idle, alpha, u):
    """Take at least so many coordinate steps on the rows, and return how many rows still move."""
    n, done = rows.size, 0
    while n > 0 and done < steps:
        for b in range(n):
            k = b + below(state, done + b, n - b)
            rows[b], rows[k] = rows[k], rows[b]
        done += n
        moving = 0
        for b in range(n):
            i = np.uint64(rows[b])
            delta = dual_step(loss, alpha[i], row_dot(X, i, u), q[i], y[i])
            idle[i] += 1
            if delta != 0.0:
                alpha[i] += delta
                row_axpy(X, i, scale[i] * delta, u)
                idle[i] = 0
            if idle[i] < 2:
                rows[moving], moving = rows[b], moving + 1
        n = moving
    return n


@kernel
def _rest(loss, z, y, q, alpha, idle):
    """idle_i = 2 where the step of row i from its score z_i is 0, else 0."""
    for i in range(y.size):
        idle[i] = 0 if dual_step(loss, alpha[i], z[i], q[i], y[i]) != 0.0 else 2


@kernel
def conjugates(loss, y, alpha, out):
    """out_i = l*(-alpha_i)."""
    for i in range(y.size):
        out[i] = conjugate(loss, -alpha[i], y[i])


def _squares(fed: Federation) -> np.ndarray:
    """Return ‖x_i‖^2 of every row, (n,); of sparse rows faster than by products of matrices."""
    if not fed.is_sparse:
        return fed.row_norms2
    X, out, ones = fed.X, np.empty(fed.n), np.ones(fed.d)
    step = max(1, _ENTRIES * fed.n // max(1, X.nnz))
    for lo in range(0, fed.n, step):
        ends = X.indptr[lo : lo + step + 1]
        part = X.data[ends[0] : ends[-1]]
        some = part * part, X.indices[ends[0] : ends[-1]], ends - ends[0]
        out[lo : lo + step] = sp.csr_array(some, shape=(ends.size - 1, fed.d)) @ ones
    return out


@np.errstate(over="ignore", invalid="ignore")
def ascend(problem: Objective, goal: float) -> DualPoint:
    """Return a model with F(w) - D <= goal (1 + |F|), or what was reached when progress became slow.

    Needs l2 > 0 and no free coordinate: an equality would tie the coordinates of the dual.
    """
    fed, loss, l2, c = problem.federation, problem.loss, problem.l2, problem.per_row
    scale = c / l2
    q, alpha, idle = scale * _squares(fed), np.zeros(fed.n), np.zeros(fed.n, np.int64)
    costs, values, w = np.empty(fed.n), np.empty((fed.n, 1)), np.zeros(fed.d)
    most = max(1, PIECE * fed.n // max(1, fed.X.nnz if fed.is_sparse else fed.X.size))  # rows in one call
    u, F, lower, gaps = w.copy(), float(problem.value(w)), problem.traits.lower_bound, [math.inf]
    while F - lower > goal * (1.0 + abs(F)):
        rows, looks = np.flatnonzero(idle < 2), len(gaps) - 1
        if not rows.size or (looks >= PATIENCE and gaps[-1] > 0.5 * gaps[-PATIENCE]):
            break
        parts = np.array_split(rows, -(-rows.size // most))
        steps = min(int(min(0.25 * 1.1**looks, 2.0) * fed.n) // len(parts) + 1, 2 * most)
        for j, part in enumerate(parts):
            state = np.uint64((looks << 32) + j)
            _visit(loss, fed.rows, fed.y, q, scale, state, steps, part, idle, alpha, u)
        u = np.asarray(fed.X.T @ (scale * alpha))
        z = np.ascontiguousarray(fed.X @ u)
        row_losses.row_values(loss, z[:, None], fed.y, values)
        conjugates(loss, fed.y, alpha, costs)
        ridge = 0.5 * l2 * float(u @ u)
        value, lower = float(c @ values[:, 0]) + ridge, max(lower, -float(c @ costs) - ridge)
        if value < F:
            w, F = u.copy(), value
        gaps.append(F - lower)
        _rest(loss, z, fed.y, q, alpha, idle)
    return DualPoint(w, F, lower, len(gaps) - 1)
