"""Lower bounds of penalised minima by Fenchel duality, from rescaled dual points, with what rounding may add to them.

F(w) = sum_i c_i l(x_i'w) + R(w), R = P + (l2/2)‖.‖^2, c_i = p_k/n_k. For every a with finite conjugates,

    F* >= D(a) = -sum_i c_i l*(a_i) - R*(u),  u = -X'(c a),

with equality at a_i = l'(x_i'w*) (Rockafellar 1970, Theorem 31.3). The slopes at any w are in the domain of l*; where
u is not in that of R*, a is multiplied by the largest s < 1 that takes it there (El Ghaoui, Viallon, Rabbani 2012;
Fercoq, Gramfort, Salmon 2015). With l2 > 0, R* is finite everywhere; the better of both points is taken. Where the
domain of P* is a cone (w >= 0 alone), no multiple helps: the least change of a, in ‖.‖_c, takes the u_j that are
outside back into the domain, and keeps those of the support.

Rounding: a computed u_j is off by at most e_j = (16 + √n) eps ‖x_j‖_c ‖a‖_c, by the Cauchy-Schwarz inequality in
<a, b>_c = sum_i c_i a_i b_i. R* is convex, so that the larger of its values at u_j - e_j and u_j + e_j is no less than
the true one; both must be finite. Sums are enlarged by (16 + √n) eps times the magnitudes that were added.

Safe spheres: D is (1/L)-strongly concave in ‖.‖_c, L = sup l'', hence ‖a - a*‖_c <= r = sqrt(2 L gap), and u*_j lies
within r ‖x_j‖_c of u_j (Ndiaye, Fercoq, Gramfort, Salmon 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import penalised
from fedconvex.kernels.cache import kernel
from fedconvex.kernels.dispatch import conjugate
from fedconvex.penalties import is_entrywise
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import DIRECT_SIZE

# mypy: disable-error-code="no-untyped-def"

__all__ = ["Dual", "dual_bound", "zeros_for_sure"]

EPS = float(np.finfo(float).eps)


class Dual(NamedTuple):
    """A dual point, a multiple of the slopes, and what it certifies."""

    lower: float  # of F*
    point: str  # what it is
    u: np.ndarray  # (size,) -s X'(c a)
    e: np.ndarray  # (size,) how far off it may be


class Slopes(NamedTuple):
    """Losses and slopes of all rows at scores Z, and the gradient that they make."""

    Z: np.ndarray  # (n, C)
    values: np.ndarray  # (n,)
    A: np.ndarray  # (n, C)
    u: np.ndarray  # (size,) -X'(c A)


@kernel
def conjugates_of(loss, s, A, y, out):
    """out[i] = l*(s a_i)."""
    for i in range(y.size):
        out[i] = conjugate(loss, s * A[i, 0], y[i])


def dual_bound(problem: Objective, c: np.ndarray, at: Slopes, norms: np.ndarray, w: np.ndarray) -> Dual:
    """Return the best dual point made from the slopes.

    Parameters
    ----------
    problem : Objective
        With a penalty.
    c : array (n,)
        What every row weighs.
    at : Slopes
    norms : array (d,)
        ‖x_j‖_c of every column.
    w : array (size,)
        The model; which of its entries are 0 matters where slopes are moved.
    """
    e = _errors(c, at.A, norms)
    s = _scale(problem, at.u, e)
    found = [_bound(problem, c, at, s, e)]
    if problem.l2 > 0.0 and s < 1.0:
        found.append(_bound(problem, c, at, 1.0, e))
    elif s < 1e-3:
        found.extend(_moved(problem, c, at, norms, w))
    best = max(found, key=lambda dual: dual.lower)
    least = problem.traits.lower_bound
    return best._replace(lower=max(best.lower, least - _conjugate(problem, 0.0 * e, 0.0 * e, 0.0)[0]))


def zeros_for_sure(problem: Objective, dual: Dual, gap: float, norms: np.ndarray) -> np.ndarray:
    """Return which entries are 0 in every minimiser, (size,), where the gap of ``dual`` is ``gap``: gap-safe screening.

    None are known where the loss is not smooth, or the penalty is no sum over entries.
    """
    out = np.zeros(dual.u.size, dtype=np.bool_)
    L = problem.traits.smoothness
    if is_entrywise(problem.penalty) and math.isfinite(L) and math.isfinite(gap):
        radius = math.sqrt(2.0 * L * max(gap, 0.0)) * (1.0 + 8.0 * EPS) * np.tile(norms, problem.n_outputs) + dual.e
        penalised.mark_zeros(problem.penalty, dual.u, radius, problem.l2, out)
    return out


def _bound(problem: Objective, c: np.ndarray, at: Slopes, s: float, e: np.ndarray, moved: bool = False) -> Dual:
    """Return the bound of the point s a; ``moved`` where a are no longer the slopes at Z."""
    products = np.einsum("ic,ic->i", at.Z, at.A)
    own = products - at.values  # l*(a) = a z - l(z), as a = l'(z)
    if s < 1.0 or moved:
        if hasattr(problem.loss, "conjugate") and not problem.traits.several:
            own = np.empty_like(at.values)
            conjugates_of(problem.loss, s, at.A, problem.federation.y, own)
        else:  # by convexity, l*(0) = -inf l
            own = s * own - (1.0 - s) * problem.traits.lower_bound
    sizes = np.abs(at.Z * at.A).sum(axis=1) + 3.0 * np.abs(at.values) + np.abs(own)
    dual = float(c @ own) + (16.0 + math.sqrt(len(c))) * EPS * float(c @ sizes)
    u, e = s * at.u, max(s, EPS) * e
    conjugated, size = _conjugate(problem, u, e, problem.l2)
    lower = -dual - conjugated - (16.0 + math.sqrt(u.size)) * EPS * size
    point = "moved slopes" if moved else "slopes" if s == 1.0 else "rescaled slopes"
    return Dual(lower if math.isfinite(lower) else -math.inf, point, u, e)


def _moved(problem: Objective, c: np.ndarray, at: Slopes, norms: np.ndarray, w: np.ndarray) -> Iterator[Dual]:
    """Yield the bound of the slopes less the least change that takes u into the domain of P*, if one is found."""
    fed, penalty = problem.federation, problem.penalty
    if problem.n_outputs > 1 or not is_entrywise(penalty) or not hasattr(problem.loss, "conjugate"):
        return
    set_, point = w != 0.0, at
    for _ in range(10):
        e = _errors(c, point.A, norms)
        s = _scales(penalty, point.u, e)
        outside = s < 1.0
        if not outside.any():
            yield _bound(problem, c, point, 1.0, e, moved=True)
            return
        set_ |= outside
        J = np.flatnonzero(set_)
        if J.size > min(c.size, DIRECT_SIZE):
            return
        X = fed.by_column[:, J]
        X = X.toarray() if fed.is_sparse else X
        target = np.where(outside, s * point.u - 4.0 * e * np.sign(point.u), point.u)[J]
        change = X @ np.linalg.lstsq((X * c[:, None]).T @ X, point.u[J] - target, rcond=None)[0]
        A = point.A + change[:, None]
        point = point._replace(A=A, u=-np.asarray(fed.by_column.T @ (c * A[:, 0])))


def _errors(c: np.ndarray, A: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return e (size,), how far off the computed X'(c A) may be."""
    return (16.0 + math.sqrt(len(c))) * EPS * np.multiply.outer(np.sqrt(c @ (A * A)), norms).ravel()


def _scales(penalty: Any, u: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Return the largest s <= 1 of every entry that takes u, as far off as e, into the domain of P*."""
    out = np.empty(u.size)
    penalised.dual_scales(penalty, u, e, out)
    return out


def _scale(problem: Objective, u: np.ndarray, e: np.ndarray) -> float:
    """Return the largest s <= 1 that takes u, as far off as e, into the domain of P*."""
    penalty, d = problem.penalty, problem.federation.d
    if is_entrywise(penalty):
        return float(_scales(penalty, u, e).min())
    if hasattr(penalty, "dual_scale"):
        return float(penalty.dual_scale(u.reshape(1, -1, d), e.reshape(1, -1, d)))
    return 1.0


def _conjugate(problem: Objective, u: np.ndarray, e: np.ndarray, l2: float) -> tuple[float, float]:
    """Return the largest R* within e of u, and the magnitudes that were summed."""
    penalty = problem.penalty
    if is_entrywise(penalty):
        total, size = penalised.conjugates_above(penalty, u, e, l2)
        return float(total), float(size)
    if not hasattr(penalty, "conjugate_above"):
        return math.inf, 0.0
    shape = (1, -1, problem.federation.d)
    plain = float(penalty.conjugate_above(u.reshape(shape), e.reshape(shape))[0])
    if l2 == 0.0 or plain <= 0.0:  # R >= P, hence R* <= P*
        return plain, abs(plain)
    w = penalty.prox(u.reshape(shape) / l2, 1.0 / l2)
    p, w = float(penalty.value(w)[0]), w.ravel()
    if not math.isfinite(p):
        return plain, abs(plain)
    square = 0.5 * l2 * float(w @ w)
    size = float(np.abs(u) @ np.abs(w)) + abs(p) + square
    # the gradient of R* is w, with Lipschitz constant 1/l2
    moved = float(np.abs(w) @ e) + 0.5 * float(e @ e) / l2
    return min(plain, float(u @ w) - p - square + moved), size
