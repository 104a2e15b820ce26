"""Lower bounds of penalised minima by Fenchel duality, from rescaled dual points, with what rounding may add to them.

F(w) = sum_i c_i l(x_i'w) + R(w), R = P + (l2/2)‖.‖^2, c_i = p_k/n_k. For every a with finite conjugates,

    F* >= D(a) = -sum_i c_i l*(a_i) - R*(u),  u = -X'(c a),

with equality at a_i = l'(x_i'w*) (Rockafellar 1970, Theorem 31.3). The slopes at any w are in the domain of l*; where
u is not in that of R*, a is multiplied by the largest s < 1 that takes it there (El Ghaoui, Viallon, Rabbani 2012;
Fercoq, Gramfort, Salmon 2015). With l2 > 0, R* is finite everywhere; the better of both points is taken. Where the
domain of P* is a cone (w >= 0 alone), no multiple helps: the least change of a, in ‖.‖_c, takes the u_j that are
outside back into the domain, and keeps those of the support. Where coordinates are free, rows are multiplied by factors
of their own that make u 0 there, exactly (`solvers.free_duals`), and u stands for the other entries.

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
from fedconvex.solvers.certificates.free_duals import along_free
from fedconvex.solvers.certificates.slopes import EPS, Slopes, absolute_rounding
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import DIRECT_SIZE

# mypy: disable-error-code="no-untyped-def"


class Dual(NamedTuple):
    """A dual point, a multiple of the slopes, and what it certifies."""

    lower: float  # of F*
    point: str  # what it is
    u: np.ndarray  # (p,) -s X'(c a) at the entries that the penalty sees
    e: np.ndarray  # (p,) how far off it may be
    bounded: bool = True  # whether F bounds the free coordinates where it bounds the others


@kernel
def conjugates_of(loss, low, high, A, y, out):
    """out[i] = the largest l*(s a_i) for low_i <= s <= high_i: at an end, as l* is convex."""
    for i in range(y.size):
        out[i] = conjugate(loss, low[i] * A[i, 0], y[i])
        if high[i] > low[i]:
            out[i] = max(out[i], conjugate(loss, high[i] * A[i, 0], y[i]))


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
    point = along_free(problem, c, at, norms)
    found = []
    if point is not None:
        e = _errors(problem, c, point, norms)
        s = _scale(problem, point.u, e)
        found.append(_bound(problem, c, point, s, e))
        if problem.l2 > 0.0 and s < 1.0:
            found.append(_bound(problem, c, point, 1.0, e))
        elif s < 1e-3:
            found.extend(_moved(problem, c, at, norms, w))
    zero = np.zeros(problem.size if problem.penalised_entries is None else problem.penalised_entries.size)
    nothing = problem.traits.lower_bound - _conjugate(problem, zero, zero, 0.0)[0]  # the bound of a = 0
    if not found:
        return Dual(nothing, "zeros", zero, zero, False)
    best = max(found, key=lambda dual: dual.lower)
    return best._replace(lower=max(best.lower, nothing))


def zeros_for_sure(problem: Objective, dual: Dual, gap: float, norms: np.ndarray) -> np.ndarray:
    """Return which entries are 0 in every minimiser, (size,), where the gap of ``dual`` is ``gap``: gap-safe screening.

    None are known where the loss is not smooth, or the penalty is no sum over entries.
    """
    L = problem.traits.smoothness
    if not (is_entrywise(problem.penalty) and math.isfinite(L) and math.isfinite(gap)):
        return np.zeros(problem.size, dtype=np.bool_)
    zeros = np.zeros(dual.u.size, dtype=np.bool_)
    sizes = _seen(problem, np.tile(norms, problem.n_outputs))
    radius = math.sqrt(2.0 * L * max(gap, 0.0)) * (1.0 + 8.0 * EPS) * sizes + dual.e
    penalised.mark_zeros(problem.penalty, dual.u, radius, problem.l2, zeros)
    if problem.penalised_entries is None:
        return zeros
    out = np.zeros(problem.size, dtype=np.bool_)
    out[problem.penalised_entries] = zeros
    return out


def _bound(problem: Objective, c: np.ndarray, at: Slopes, s: float, e: np.ndarray, moved: bool = False) -> Dual:
    """Return the bound of the point s a; ``moved`` where a are no longer the slopes at Z."""
    products = np.einsum("ic,ic->i", at.Z, at.A)
    own = products - at.values  # l*(a) = a z - l(z), as a = l'(z)
    if s < 1.0 or moved or at.rows is not None:
        rows, off = (np.ones(len(c)), np.zeros(len(c))) if at.rows is None else (at.rows, at.off)
        if hasattr(problem.loss, "conjugate") and not problem.traits.several:
            own = np.empty_like(at.values)
            conjugates_of(problem.loss, s * (rows - off), s * (rows + off), at.A, problem.federation.y, own)
        else:  # by convexity, l*(0) = -inf l
            least = problem.traits.lower_bound
            own = s * rows * own - (1.0 - s * rows) * least + s * off * np.abs(own + least)
    sizes = np.abs(at.Z * at.A).sum(axis=1) + 3.0 * np.abs(at.values) + np.abs(own)
    if problem.traits.several:
        sizes += np.abs(at.Z).max(axis=1)  # as slopes are off by rounding of their own
    dual = float(c @ own) + (16.0 + math.sqrt(len(c))) * EPS * float(c @ sizes)
    u, e = s * at.u, max(s, EPS) * e
    conjugated, size = _conjugate(problem, u, e, problem.l2)
    lower = -dual - conjugated - (16.0 + math.sqrt(u.size)) * EPS * size
    point = "moved slopes" if moved else "slopes" if s == 1.0 else "rescaled slopes"
    point += "" if at.rows is None else ", in balance along the free coordinates"
    return Dual(lower if math.isfinite(lower) else -math.inf, point, u, e, at.bounded)


def _moved(problem: Objective, c: np.ndarray, at: Slopes, norms: np.ndarray, w: np.ndarray) -> Iterator[Dual]:
    """Yield the bound of the slopes less the least change that takes u into the domain of P*, if one is found."""
    fed, penalty = problem.federation, problem.penalty
    if problem.n_outputs > 1 or not is_entrywise(penalty) or not hasattr(problem.loss, "conjugate"):
        return
    seen = np.arange(problem.size) if problem.penalised_entries is None else problem.penalised_entries
    free = np.setdiff1d(np.arange(problem.size), seen)
    set_, A = w[seen] != 0.0, at.A
    for _ in range(10):
        u = -np.asarray(fed.by_column.T @ (c * A[:, 0]))
        point = along_free(problem, c, Slopes(at.Z, at.values, A, u), norms)
        if point is None:
            return
        e = _errors(problem, c, point, norms)
        s = _scales(penalty, point.u, e)
        outside = s < 1.0
        if not outside.any():
            yield _bound(problem, c, point, 1.0, e, moved=True)
            return
        set_ |= outside
        J = np.append(seen[set_], free)
        if J.size > min(c.size, DIRECT_SIZE):
            return
        X = fed.by_column[:, J]
        X = X.toarray() if fed.is_sparse else X
        target = np.zeros(J.size)  # of the free ones
        target[: J.size - free.size] = np.where(outside, s * point.u - 4.0 * e * np.sign(point.u), point.u)[set_]
        size = np.maximum(norms[J], 1e-300)
        X = X / size
        change = X @ np.linalg.lstsq((X * c[:, None]).T @ X, (u[J] - target) / size, rcond=None)[0]
        A = A + change[:, None]


def _seen(problem: Objective, x: np.ndarray) -> np.ndarray:
    """Return the entries of a flat model (size,) that the penalty sees."""
    return x if problem.penalised_entries is None else x[problem.penalised_entries]


def _errors(problem: Objective, c: np.ndarray, at: Slopes, norms: np.ndarray) -> np.ndarray:
    """Return how far off the u of slopes may be, at the entries that the penalty sees: by rounding, or by its rows."""
    sizes = (16.0 + math.sqrt(len(c))) * EPS * np.sqrt(c @ (at.A * at.A)) + absolute_rounding(problem) + at.left
    return _seen(problem, np.multiply.outer(sizes, norms).ravel())


def _scales(penalty: Any, u: np.ndarray, e: np.ndarray, common: bool = False) -> np.ndarray:
    """Return the largest s <= 1 of every entry that takes u, as far off as e, into the domain of P*.

    Where they are to have one in ``common``, it is the last.
    """
    out = np.empty(u.size)
    penalised.dual_scales(penalty, u, e, common, out)
    return np.where(out < 1.0, out * (1.0 - 4.0 * EPS), out)  # products with u and e are rounded apart


def _scale(problem: Objective, u: np.ndarray, e: np.ndarray) -> float:
    """Return the largest s <= 1 that takes u, as far off as e, into the domain of P*."""
    penalty, shape = problem.penalty, (1, problem.n_outputs, -1)
    if is_entrywise(penalty):
        return float(_scales(penalty, u, e, True)[-1])
    if hasattr(penalty, "dual_scale"):
        return float(penalty.dual_scale(u.reshape(shape), e.reshape(shape)))
    return 1.0


def _conjugate(problem: Objective, u: np.ndarray, e: np.ndarray, l2: float) -> tuple[float, float]:
    """Return the largest R* within e of u, and the magnitudes that were summed."""
    penalty = problem.penalty
    if is_entrywise(penalty):
        total, size = penalised.conjugates_above(penalty, u, e, l2)
        return float(total), float(size)
    if not hasattr(penalty, "conjugate_above"):
        return math.inf, 0.0
    shape = (1, problem.n_outputs, -1)
    plain = float(penalty.conjugate_above(u.reshape(shape), e.reshape(shape))[0])
    if l2 == 0.0 or not np.isfinite(u / l2).all():
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
