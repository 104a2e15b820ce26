"""Multi-task problems whose task relationship is learned: the certified minimum over models and Omega together."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from fedconvex.draws import BATCHES, stream
from fedconvex.problems.relations import Covariance
from fedconvex.solvers import dual
from fedconvex.solvers.balance import Balance
from fedconvex.solvers.solution import Solution

if TYPE_CHECKING:
    from fedconvex.problems.multitask import MultiTaskProblem

__all__ = ["along", "jointly"]


def jointly(problem: MultiTaskProblem, goal: float, clock: float, start: Solution | None, most: int) -> Solution:
    """Minimise over W and Omega together: the alternating direction method, each task by dual coordinate ascent.

    Z <- prox_{eta R}(Z + eta V); two passes over the rows of every task from w_t = (2 Z_new - Z_old)_t with rho =
    eta. With exact tasks this is the method of multipliers on losses(U) + R(Z), U = Z, whose multipliers are V.
    """
    relation, fed = problem.relation, problem.federation
    assert isinstance(relation, Covariance)
    alpha, buffers = problem.scaled(start), problem.buffers()
    Z = W = np.zeros(problem.model_shape) if start is None else start.w
    V, eta, balance = problem.images(alpha), 10.0 / problem.weighted_norm, Balance()
    if Z.any() and V.any():
        eta = 0.3 * float(np.linalg.norm(Z) / np.linalg.norm(V))  # 0.3: quickest on the HAR data, for all lam
    best_Z, best, lower, t, done = Z, math.inf, -math.inf, 0, 0
    tasks = (fed.rows, problem.row_labels, fed.ptr, problem.row_norms, problem.c)
    while True:
        if t % 10 == 0 or done >= most:
            V = problem.images(alpha)
            scaled = along(problem, Z) * Z
            value, gap = problem.certificate(scaled, V, problem.conjugates(alpha))
            lower = max(lower, value - gap)
            if value < best:
                best_Z, best = scaled, value
            if best - lower <= goal * (1.0 + abs(best)) or done >= most:
                break
        keys = np.array([stream(0, 0, t, k, BATCHES) for k in fed.ids], dtype=np.uint64)
        before = V.copy()
        passes = min(2, most - done)
        dual.proximal_sweeps(problem.row_loss, *tasks, W, eta, passes, keys, alpha, V, *buffers)
        done += passes
        new = relation.proximal(Z + eta * V, eta)
        t += 1
        next_eta, balance = balance.step(t, eta, W + eta * (V - before), new, Z, V)
        W, Z, eta = 2.0 * new - Z, new, next_eta
    seconds = time.perf_counter() - clock
    return Solution(best_Z.copy(), best, lower, "joint duality gap", True, False, done, seconds, alpha)


def along(problem: MultiTaskProblem, Z: np.ndarray) -> float:
    """Return the s near 1 with the least P(s Z)."""
    from scipy.optimize import minimize_scalar

    z, penalty = problem.task_scores(Z), problem.relation.value(Z)  # R is homogeneous of degree 2
    found = minimize_scalar(
        lambda s: float(problem._sums(problem._losses(s * z)).sum()) + s * s * penalty,
        bounds=(0.8, 1.25),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(found.x) if found.fun < float(problem._sums(problem._losses(z)).sum()) + penalty else 1.0
