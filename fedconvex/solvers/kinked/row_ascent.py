"""Losses with kinks by coordinate ascent on the dual, where most rows rest at an end of their interval.

The dual of F(w) = sum_i c_i l(x_i'w) + (l2/2)‖w‖^2 is to maximise

    D(alpha) = -sum_i c_i l*(-alpha_i) - (l2/2)‖u‖^2,    u = (1/l2) sum_i c_i alpha_i x_i,

and every F(u) - D(alpha) certifies, with u summed as if in twice the precision. Steps visit the rows in random order
(Hsieh et al. 2008, Algorithm 1, for the hinge). A row that did not move twice in a row is left alone, as their
shrinking does; but which rows rest is decided anew, for all rows, whenever the gap is computed, since that takes all
scores anyway.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.draws import below
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.cache import kernel, reduction
from fedconvex.kernels.dispatch import conjugate, dual_step, value
from fedconvex.kernels.rows import row_axpy, row_axpy_and_rest, row_dot
from fedconvex.solvers.certificates.slopes import EPS
from fedconvex.solvers.objective import Objective

# mypy: disable-error-code="no-untyped-def"

PIECE = 50_000_000  # entries of X in one call: Ctrl-C is heard in between
_TINY = 1e-300  # what an entry's square counts at least in lengths: it may underflow
PATIENCE = 8  # gaps within which it must be halved: otherwise smoothing is faster


class DualPoint(NamedTuple):
    """A model, the dual point that it was made of, and what both say of the minimum."""

    w: np.ndarray  # (d,) the best model seen
    value: float  # F(w)
    lower: float  # the largest D seen
    evaluations: int


@reduction
def _visit(loss, X, y, q, c, l2, state, steps, rows, idle, alpha, u):
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
                row_axpy(X, i, c[i] / l2 * delta, u)
                idle[i] = 0
            if idle[i] < 2:
                rows[moving], moving = rows[b], moving + 1
        n = moving
    return n


@kernel
def _moving(idle, rows):
    """Write the rows that do not rest, in order, and return how many they are."""
    n = 0
    for i in range(idle.size):
        if idle[i] < 2:
            rows[n], n = i, n + 1
    return n


@kernel
def _image(X, c, l2, q, alpha, u, rest):
    """u = (1/l2) sum_i c_i alpha_i x_i, and return the sum of the lengths of its terms: q_i = c_i ‖x_i‖^2/l2."""
    length, short = 0.0, u.size * _TINY
    for i in range(alpha.size):
        if alpha[i] != 0.0:
            share = c[i] / l2
            row_axpy_and_rest(X, i, share * alpha[i], u, rest)
            length += abs(alpha[i]) * math.sqrt(share * (q[i] + share * short))
    u += rest
    return length


def image(problem: Objective, l2: float, q: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, float]:
    """Return u = (1/l2) sum_i c_i alpha_i x_i, and how far in norm rounding may have moved it.

    A plain sum of n terms would be off by up to n eps/2 of their lengths. What is rounded off is summed beside it: what
    remains are three roundings of a term, one of the result, and the square of n eps/2.
    """
    fed, u = problem.federation, np.zeros(problem.federation.d)
    length = _image(fed.rows, problem.per_row, l2, q, alpha, u, np.zeros(fed.d))
    return u, EPS * (4.0 + EPS * fed.n * fed.n) * length


@reduction
def _look(loss, X, y, c, q, u, alpha, idle):
    """Return the sums of c_i l(z_i), with z the scores at u, of c_i l*(-alpha_i), and of the sizes of the latter.

    idle_i is then 2 where row i would not move. Sums are of about sqrt(n) rows each, whose scores are all that is kept.
    """
    values, costs, sizes, step = 0.0, 0.0, 0.0, row_losses.block_of(y.size)
    z = np.empty(step)
    for lo in range(0, y.size, step):
        hi = min(lo + step, y.size)
        for i in range(lo, hi):
            z[i - lo] = row_dot(X, i, u)
        value_of, cost_of, size_of = 0.0, 0.0, 0.0
        for i in range(lo, hi):
            value_of += c[i] * value(loss, z[i - lo], y[i])
            cost = c[i] * conjugate(loss, -alpha[i], y[i])
            cost_of += cost
            size_of += abs(cost)
        for i in range(lo, hi):
            idle[i] = 0 if dual_step(loss, alpha[i], z[i - lo], q[i], y[i]) != 0.0 else 2
        values += value_of
        costs += cost_of
        sizes += size_of
    return values, costs, sizes


@kernel
def conjugates(loss, y, alpha, out):
    """out_i = l*(-alpha_i)."""
    for i in range(y.size):
        out[i] = conjugate(loss, -alpha[i], y[i])


@reduction
def _sparse_squares(X, out):
    """out_i = ‖x_i‖^2 of sparse rows."""
    for i in range(out.size):
        total = 0.0
        for j in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
            total += X.data[j] * X.data[j]
        out[i] = total


def squares(fed: Federation) -> np.ndarray:
    """Return ‖x_i‖^2 of every row, (n,); of sparse rows faster than by products of matrices."""
    if not fed.is_sparse:
        return fed.row_norms2
    out = np.empty(fed.n)
    _sparse_squares(fed.rows, out)
    return out


@np.errstate(over="ignore", invalid="ignore")
def ascend(problem: Objective, goal: float) -> DualPoint:
    """Return a model with F(w) - D <= goal (1 + |F|), or what was reached when progress became slow.

    Needs l2 > 0 and no free coordinate: an equality would tie the coordinates of the dual.
    """
    fed, loss, l2, c = problem.federation, problem.loss, problem.l2, problem.per_row
    u, F, lower, gaps = np.zeros(fed.d), float(problem.value(np.zeros(fed.d))), problem.traits.lower_bound, [math.inf]
    q, w = c / l2, u
    q *= squares(fed)
    alpha, idle, room = np.zeros(fed.n), np.zeros(fed.n, np.int8), np.empty(fed.n, np.int32)
    most = max(1, PIECE * fed.n // max(1, fed.X.nnz if fed.is_sparse else fed.X.size))  # rows in one call
    while F - lower > goal * (1.0 + abs(F)):
        rows, looks = room[: _moving(idle, room)], len(gaps) - 1
        if not rows.size or (looks >= PATIENCE and gaps[-1] > 0.5 * gaps[-PATIENCE]):
            break
        parts = np.array_split(rows, -(-rows.size // most))
        steps = min(int(min(0.25 * 1.1**looks, 2.0) * fed.n) // len(parts) + 1, 2 * most)
        for j, part in enumerate(parts):
            state = np.uint64((looks << 32) + j)
            _visit(loss, fed.rows, fed.y, q, c, l2, state, steps, part, idle, alpha, u)
        u, off = image(problem, l2, q, alpha)
        values, costs, sizes = _look(loss, fed.rows, fed.y, c, q, u, alpha, idle)
        squared = float((u * u).sum())  # by pairs: BLAS may add one after the other
        here = values + 0.5 * l2 * squared
        length = math.sqrt(squared) + off
        lower = max(lower, -costs - EPS * (8.0 + math.sqrt(fed.n)) * sizes - 0.5 * l2 * (length * length))
        if here < F:
            w, F = u.copy(), here
        gaps.append(F - lower)
    return DualPoint(w, F, lower, len(gaps) - 1)
