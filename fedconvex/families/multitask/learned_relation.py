"""Multi-task problems whose task relationship is learned: the certified minimum over models and Omega together.

Where losses are smooth, and rows dense and many, by proximal Newton steps; else, and where these end early, by dual
coordinate ascent.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex.draws import BATCHES, stream
from fedconvex.families.multitask import joint_newton
from fedconvex.families.multitask.balance import Balance
from fedconvex.families.multitask.covariance import Covariance
from fedconvex.federation import CSR
from fedconvex.solvers.kinked import dual
from fedconvex.solvers.solution import Solution

if TYPE_CHECKING:
    from fedconvex.families.multitask.problem import MultiTaskProblem

EVERY = 10  # rounds between passes over all rows
_MOST_PASSES = 20  # over the rows that move, in a round


def jointly(problem: MultiTaskProblem, goal: float, clock: float, start: Solution | None, most: int) -> Solution:
    """Minimise over W and Omega together, from another solution or from zero."""
    if not joint_newton.fits(problem):
        return _ascend(problem, goal, clock, start, most)
    W = np.zeros(problem.model_shape) if start is None else start.w
    at, lower, passes = joint_newton.approach(problem, goal, W, most)
    found = _solution(problem, at.W, at.value, lower, passes, clock, at.alpha, at.V, at.off)
    left = most - passes
    if left < 1 or problem.reached(goal, at.W, at.V, at.value, at.value - lower, at.off):
        return found
    further = _ascend(problem, goal, clock, found, left)
    better = further if further.value < found.value else found
    return replace(better, lower=max(lower, further.lower), iterations=passes + further.iterations)


def _solution(
    problem: MultiTaskProblem, W: np.ndarray, value: float, lower: float, passes: int, clock: float,
    alpha: np.ndarray, V: np.ndarray, off: float,
) -> Solution:  # fmt: skip
    seconds = time.perf_counter() - clock
    return Solution(W, value, lower, "joint duality gap", True, False, passes, seconds, alpha, rounding=off)


def _ascend(problem: MultiTaskProblem, goal: float, clock: float, start: Solution | None, most: int) -> Solution:
    """Minimise by the alternating direction method, each task by dual coordinate ascent.

    Z <- prox_{eta R}(Z + eta V); passes over the rows of every task from w_t = (2 Z_new - Z_old)_t with rho = eta. With
    exact tasks this is the method of multipliers on losses(U) + R(Z), U = Z, whose multipliers are V. In every tenth
    round all rows are passed over, twice; those whose dual variables do not move sit out of the next nine rounds.
    """
    relation = problem.relation
    assert isinstance(relation, Covariance)
    alpha, rows = problem.scaled(start), _Rows(problem)
    shape, flat = problem.model_shape, (problem.federation.K, problem.width)
    Z = W = np.zeros(flat) if start is None else start.w.reshape(flat)
    V, eta, balance = problem.images(alpha).reshape(flat), 10.0 / problem.weighted_norm, Balance()
    if Z.any() and V.any():
        eta = 0.3 * float(np.linalg.norm(Z) / np.linalg.norm(V))  # 0.3: quickest on the HAR data, for all lam
    best_Z, best, lower, t = Z, math.inf, -math.inf, 0
    while True:
        if t % EVERY == 0 or rows.done >= most:
            V = problem.images(alpha).reshape(Z.shape)
            scaled = along(problem, Z.reshape(shape)) * Z
            value, gap = problem.certificate(scaled.reshape(shape), V.reshape(shape), problem.conjugates(alpha))
            lower = max(lower, value - gap)
            if value < best:
                best_Z, best = scaled, value
            if problem.reached(goal, best_Z.reshape(shape), V, best, best - lower) or rows.done >= most:
                break
        before = V.copy()
        rows.ascend(t, W, eta, most, alpha, V)
        new = relation.proximal(Z + eta * V, eta)
        t += 1
        next_eta, balance = balance.step(t, eta, W + eta * (V - before), new, Z, V)
        W, Z, eta = 2.0 * new - Z, new, next_eta
    best_Z = best_Z.reshape(shape).copy()
    V = V.reshape(shape)
    off = problem.allowance(best_Z, V)
    return _solution(problem, best_Z, best, lower, math.ceil(rows.done), clock, alpha, V, off)


class _Rows:
    """What rounds pass over: all rows in every tenth round, then those whose dual variables moved in it."""

    def __init__(self, problem: MultiTaskProblem) -> None:
        fed = problem.federation
        self.problem, self.buffers, self.done = problem, problem.buffers(), 0.0  # done: passes so far
        self.all = (fed.rows, problem.row_labels, fed.ptr, problem.row_norms)
        self.few: tuple[Any, ...] | None = None
        self.which = np.arange(fed.n)

    def ascend(self, t: int, W: np.ndarray, eta: float, most: int, alpha: np.ndarray, V: np.ndarray) -> None:
        """Take the passes of round t from W, at most those that are left; alpha and V are written."""
        n = self.problem.federation.n
        if t % EVERY and self.few is not None:
            share = max(len(self.which), 1) / n
            passes = min(_MOST_PASSES, int(2.0 / share), math.ceil((most - self.done) / share))
            moving = alpha[self.which]
            self._sweep(self.few, passes, t, W, eta, moving, V)
            alpha[self.which] = moving
            self.done = min(self.done + passes * share, most)
            return
        before, passes = alpha.copy(), min(2, math.ceil(most - self.done))
        self._sweep(self.all, passes, t, W, eta, alpha, V)
        self.done += passes
        if t % EVERY == 0:
            self._pick(np.flatnonzero((alpha != before).reshape(len(alpha), -1).any(axis=1)))

    def _sweep(
        self, rows: tuple[Any, ...], passes: int, t: int, W: np.ndarray, eta: float, alpha: np.ndarray, V: np.ndarray
    ) -> None:
        problem = self.problem
        keys = np.array([stream(0, 0, t, k, BATCHES) for k in problem.federation.ids], dtype=np.uint64)
        dual.proximal_sweeps(problem.row_loss, *rows, problem.c, W, eta, passes, keys, alpha, V, *self.buffers)

    def _pick(self, which: np.ndarray) -> None:
        """Copy the given rows, where they are few: short arrays stay in the cache."""
        fed, (X, *others) = self.problem.federation, self.all
        self.which, self.few = which, None
        if 2 * len(which) > fed.n:
            return
        part = fed.X[which]
        rows = CSR(*map(_like, (part.data, part.indices, part.indptr), X)) if fed.is_sparse else _like(part, X)
        y, ptr, norms = others
        self.few = (rows, _like(y[which], y), _like(np.searchsorted(which, ptr), ptr), _like(norms[which], norms))


def _like(a: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Return a with the type of the model, and read-only if that is: kernels are compiled for either."""
    a = a.astype(model.dtype, copy=False)
    a.flags.writeable = model.flags.writeable
    return a


def along(problem: MultiTaskProblem, Z: np.ndarray) -> float:
    """Return the s near 1 with the least P(s Z)."""
    from scipy.optimize import minimize_scalar

    z, penalty = problem.task_scores(Z), problem.relation.value(problem._flat(Z))  # R is homogeneous of degree 2
    found = minimize_scalar(
        lambda s: float(problem._sums(problem._losses(s * z)).sum()) + s * s * penalty,
        bounds=(0.8, 1.25),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(found.x) if found.fun < float(problem._sums(problem._losses(z)).sum()) + penalty else 1.0
