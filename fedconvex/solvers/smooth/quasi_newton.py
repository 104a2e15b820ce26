"""Limited-memory BFGS: large problems solved with few or no full Hessians.

Nocedal and Wright, "Numerical Optimization" (2006), Algorithms 7.4 and 7.5, with H_0 scaled by s'y/(y'H_0 y) as in
(7.20). Where rows are many for each feature, H_0 is a factor of the Hessian at the model where the search begins, made
of the rows that bend most. Several outputs have one block each. A shift of all classes changes no probability, and the
blocks do not know of it: H_0 is projected onto models whose classes sum to zero, where minimisers lie. Where a Hessian
would cost more than the search, H_0 is a multiple of the identity, at first by the curvature along the gradient. Where
l2 is far above what single precision rounds, H_0 is formed, factored and applied in it: values and gradients are not.
What is found is a start for the methods that certify.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as sla

from fedconvex.kernels import row_losses
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.rows.hessians import add_gram
from fedconvex.solvers.smooth.newton import Point, truncated
from fedconvex.solvers.solution import Solution

PAIRS = 20  # of steps and changes of the gradient
MOST = 500  # steps of a search
FEW = 100  # of one that knows no curvature: if it has not ended by then, systems with the Hessian are cheaper
SHARE = 0.8  # of the curvature that the rows of H_0 have
_RANGE = 1e-25, 1e30  # of traces in single precision, whose numbers range from 1e-38 to 3e38
SINGLE = 8.0 * float(np.finfo(np.float32).eps)  # of the largest possible trace of H_0, from which l2 on it is enough


class _Blocks(NamedTuple):
    """H_0: Cholesky factors, one for every output."""

    factors: list[Any]  # lower or upper triangles, two in one array
    centred: bool  # whether models are projected onto those whose outputs sum to zero

    @classmethod
    def at(cls, problem: Objective, w: np.ndarray) -> _Blocks:
        """Return H_0 at a flat model.

        Raises
        ------
        LinAlgError
            If a block is not positive definite.
        """
        several = problem.traits.several
        if several:
            bends = problem.probabilities(w)
            bends *= 1.0 - bends
            bends *= problem.per_row[:, None]
        else:
            bends = problem.curvatures(w)[:, None]
        factors: list[Any] = []
        X, ridge, precision = problem.federation.X, problem.ridge, _precision(problem)
        for c in range(problem.n_outputs):
            if c > 0 and np.array_equal(bends[:, c], bends[:, c - 1]):
                factors.append(factors[-1])  # at w = 0 all classes are alike
                continue
            H, lower = _room(factors, X.shape[1], precision)
            add_gram(X, _largest(bends[:, c], 16 * X.shape[1]), H, lower)
            H[np.diag_indices(len(H))] += np.broadcast_to(ridge, problem.size)[: len(H)].astype(precision)
            factors.append(sla.cho_factor(H, lower=lower, overwrite_a=True, check_finite=True))
        return cls(factors, several)

    def solve(self, g: np.ndarray) -> np.ndarray:
        """H_0 g."""
        G = self.centre(g).reshape(len(self.factors), -1)
        unit = math.ldexp(1.0, math.frexp(float(np.abs(G).max()))[1])  # numbers in single precision are not small
        G = (G / unit).astype(self.factors[0][0].dtype)
        parts = [sla.cho_solve(f, row, check_finite=False) for f, row in zip(self.factors, G, strict=True)]
        return self.centre(unit * np.concatenate(parts).astype(float))

    def centre(self, w: np.ndarray) -> np.ndarray:
        """Return a flat model whose outputs sum to zero."""
        if not self.centred:
            return w
        W = w.reshape(len(self.factors), -1)
        return (W - W.mean(axis=0)).ravel()


def _precision(problem: Objective) -> Any:
    """Return single precision where l2 is above what it rounds in any H_0, and both within its range, else double."""
    trace = problem.traits.smoothness * float(np.sum(problem.federation.column_sizes**2))
    enough = np.min(problem.ridge) >= SINGLE * trace and _RANGE[0] <= trace
    return np.float32 if enough and trace + np.max(problem.ridge) <= _RANGE[1] else np.float64


def _room(factors: list[Any], d: int, precision: Any) -> tuple[np.ndarray, bool]:
    """Return a matrix (d, d) of zeros in one triangle, and whether that is the lower one: there a factor is made.

    Every second one is what stands above the factor before, in an array of d + 1 columns. Both are in Fortran order,
    which LAPACK takes without a copy.
    """
    if factors and factors[-1][1]:
        return factors[-1][0].base[1:].T, False
    return np.zeros((d + 1, d), precision).T[:, :d], True


def _largest(h: np.ndarray, most: int) -> np.ndarray:
    """Return h with zeros but for the largest entries, of which a part stands for all where there are very many."""
    order = np.argsort(h)[::-1]
    sums = np.cumsum(h[order])
    kept = order[: int(np.searchsorted(sums, SHARE * sums[-1])) + 1]
    kept = kept[:: max(1, len(kept) // most)]
    out = np.zeros_like(h)
    out[kept] = h[kept] * (sums[-1] / max(float(h[kept].sum()), 1e-300))
    return out


class _Memory:
    """The last pairs s, y and H_0 y, with the direction that they make of a gradient; H_0 comes scaled beside them."""

    def __init__(self, scale: float) -> None:
        self.pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray, float]] = []
        self.scale = scale

    def add(self, s: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
        """Keep a pair, if it has curvature."""
        bend, inner = float(s @ y), float(y @ z)
        if bend > 0.0 and inner > 0.0:
            self.pairs = [*self.pairs[1 - PAIRS :], (s, y, z, 1.0 / bend)]
            self.scale = bend / inner

    def direction(self, g: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return the two-loop recursion's product with g, from u = H_0 g: H_0 is applied nowhere here."""
        q, sizes = g.copy(), []
        r = q if u is g else u.copy()
        for s, y, z, rho in reversed(self.pairs):
            sizes.append(rho * float(s @ q))
            q -= sizes[-1] * y
            if z is not y:
                r -= sizes[-1] * z
        r *= self.scale
        for (s, y, _, rho), a in zip(self.pairs, reversed(sizes), strict=True):
            r += (a - rho * float(y @ r)) * s
        return r


@np.errstate(over="ignore", invalid="ignore")
def approach(problem: Objective, w: np.ndarray | None, tol: float | None) -> tuple[np.ndarray, int]:
    """Return a flat model with ‖grad F‖^2/(2 l2) about tol (1 + |F|), or as far as steps lead, and evaluations of F.

    The search begins at w if it is given; if not, an eighth of the rows or less leads most of the way.
    """
    if w is None:
        w, (n, d) = np.zeros(problem.size), problem.federation.X.shape
        if n >= 8 * d and problem.row_weight_range[0] > 0.0:
            w, _ = approach(problem.thinned(16 if n >= 128 * d else 8), w, 1e-3)
    try:
        inverse = _Blocks.at(problem, w)
    except (np.linalg.LinAlgError, ValueError):
        return w, 0
    evaluate, w = _evaluation(problem), inverse.centre(w)
    end = _search(problem, evaluate, Point(w, *evaluate(w), 1), tol, MOST, inverse)
    return end.w, end.evaluations


def quasi_newton(problem: Objective, w: np.ndarray, tol: float | None, start: float) -> Solution:
    """Quasi-Newton steps, and where they have not led to the accuracy, truncated Newton steps from there."""
    return truncated(problem, approach_by_gradients(problem, w, tol), tol, start)


@np.errstate(over="ignore", invalid="ignore")
def approach_by_gradients(problem: Objective, w: np.ndarray, tol: float | None) -> Point:
    """Return what `approach` does, of one output, from no more of the Hessian than its size along the gradient."""
    F, g = problem.value_gradient(w)
    square = float(g @ g)
    bend = float(problem.curvatures(w) @ (problem.federation.X @ g) ** 2) + float(g @ (problem.ridge * g))
    scale = square / bend if bend > 0.0 else 1.0
    return _search(problem, problem.value_gradient, Point(w, F, g, 1), tol, FEW, None, scale)


def _search(
    problem: Objective, evaluate: Any, begin: Point, tol: float | None, most: int, inverse: _Blocks | None,
    scale: float = 1.0,
) -> Point:  # fmt: skip
    """Return where at most so many steps lead; without an inverse H_0 is a number, at first ``scale``."""
    goal, memory = 1e-13 if tol is None else 0.5 * tol, _Memory(scale)
    w, F, g, evaluations = begin
    u = g if inverse is None else inverse.solve(g)
    for _ in range(most):
        step = memory.direction(g, u)
        slope = float(g @ step)
        if not float(g @ g) > 2.0 * problem.l2 * goal * (1.0 + abs(F)) or not slope > 1e-14 * (1.0 + abs(F)):
            break
        t, F_new, g_new, tried = _backtrack(evaluate, w, F, step, slope)
        evaluations += tried
        if t == 0.0:
            break
        new, y = g_new if inverse is None else inverse.solve(g_new), g_new - g
        memory.add(-t * step, y, y if inverse is None else new - u)
        w, F, g, u = w - t * step, F_new, g_new, new
    return Point(w, F, g, evaluations)


def _backtrack(evaluate: Any, w: np.ndarray, F: float, step: np.ndarray, slope: float) -> tuple[float, float, Any, int]:
    """Return (t, F, g) at w - t step after a sufficient decrease, or t = 0, and the number of evaluations."""
    t, tried = 1.0, 0
    while t > 1e-10:
        F_new, g_new = evaluate(w - t * step)
        tried += 1
        if F_new <= F - 1e-4 * t * slope + 1e-15 * (1.0 + abs(F)):
            return t, F_new, g_new, tried
        best = 0.5 * slope * t * t / (F_new - F + slope * t)  # minimiser of the parabola through both values
        t = min(max(best, 0.1 * t), 0.5 * t) if np.isfinite(best) else 0.1 * t
    return 0.0, F, None, tried


def _evaluation(problem: Objective) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return what computes F and its gradient at flat models, for several outputs by products of blocks of rows."""
    if not problem.traits.several:
        return problem.value_gradient
    fed, loss, y = problem.federation, problem.row_loss, problem.row_labels
    c = np.repeat(problem.row_weights, fed.sizes)  # the labels carry what rows weigh among their client
    step = max(16, 40_000 // fed.d)

    def evaluate(w: np.ndarray) -> tuple[float, np.ndarray]:
        W, G, F = w.reshape(-1, fed.d), np.zeros((problem.n_outputs, fed.d)), 0.0
        values = np.empty((step, 1))
        for lo in range(0, fed.n, step):
            X, labels = fed.X[lo : lo + step], y[lo : lo + step]
            Z = X @ W.T
            row_losses.row_values(loss, Z, labels, values)
            row_losses.row_slopes(loss, Z, labels)
            share = c[lo : lo + step]
            F += float(share @ values[: len(X), 0])
            Z *= share[:, None]
            G += Z.T @ X
        return F + problem.ridge_term(w), G.ravel() + problem.ridge * w

    return evaluate
