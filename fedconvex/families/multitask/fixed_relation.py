"""Multi-task problems with a fixed relationship: the certified minimum, by one model's problem or in the dual."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fedconvex.draws import BATCHES, stream
from fedconvex.families.multitask.coupling import mbar_diagonal, mbar_times, safe_sigma
from fedconvex.federation import Federation
from fedconvex.problems.empirical_risk import Problem
from fedconvex.solvers.kinked import dual
from fedconvex.solvers.solution import DIRECT_SIZE, Solution

if TYPE_CHECKING:
    from fedconvex.families.multitask.problem import MultiTaskProblem

_EPS = float(np.finfo(float).eps)
STACKED = 40_000_000  # entries of stacked features up to which they are formed


def fixed(problem: MultiTaskProblem, goal: float, clock: float, start: Solution | None, most: int) -> Solution:
    """Solve for the given Mbar: where it is small enough as one model u on features C_t (x) x_i, Mbar = C C', W = C U.

    For several classes u is one model for each of them.
    """
    if problem.factored_mbar.shape[1] != len(problem.factored_mbar):
        return _ascend(problem, goal, clock, start, most)
    fed, lam, U = problem.federation, *np.linalg.eigh(problem.mbar)
    keep = lam > 1e-15 * lam[-1]
    C = U[:, keep] * np.sqrt(lam[keep])
    if C.shape[1] * problem.width > DIRECT_SIZE or fed.n * C.shape[1] * fed.d > STACKED:
        return _ascend(problem, goal, clock, start, most)
    task = np.repeat(np.arange(fed.K), fed.sizes)
    if fed.is_sparse:
        blocks = zip(range(fed.K), fed.ptr[:-1], fed.ptr[1:], strict=True)
        X: Any = sp.vstack([sp.kron(C[t : t + 1], fed.X[a:b]) for t, a, b in blocks], format="csr")
    else:
        X = (C[task][:, :, None] * fed.X[:, None, :]).reshape(fed.n, -1)
    total = float(problem.c @ fed.masses)
    rows = Federation(X, fed.y, fed.ptr, sample_weight=fed.sample_weight)
    flat = Problem(rows, problem.loss, 1.0 / total, problem.c * fed.masses / total)
    found = flat.solve()
    u = found.w.reshape(-1, C.shape[1], fed.d).swapaxes(0, 1).reshape(C.shape[1], -1)
    W = (C @ u).reshape(problem.model_shape)
    value = float(problem.value(W))
    V = problem.images(-problem._slopes(problem.task_scores(W)))
    off = 4.0 * _EPS * len(lam) * float(lam[-1]) * float(np.sum(V * V))  # D moves by V'EV/2, CC' = Mbar + E
    off += problem.relation.rounding(W.reshape(fed.K, -1))
    lower = min(total * found.lower - off, value)
    seconds = time.perf_counter() - clock
    above = problem.allowance(W, V)
    return Solution(W, value, lower, found.certificate, True, True, found.iterations, seconds, rounding=above)


def _ascend(problem: MultiTaskProblem, goal: float, clock: float, start: Solution | None, most: int) -> Solution:
    """Run sweeps of exact dual coordinate ascent until the gap is at most goal (1 + |P|).

    Tasks are visited in turn, each at fresh models; of a factored Mbar all at once, with a safe sigma', as MOCHA does.
    """
    fed, mbar, K = problem.federation, problem.factored_mbar, problem.federation.K
    rows = problem.row_loss, fed.rows, problem.row_labels, fed.ptr, problem.row_norms, problem.c
    eta = 0.0 if mbar.shape[1] == K else safe_sigma(mbar) * float(mbar_diagonal(mbar).max())
    alpha, buffers = problem.scaled(start), problem.buffers()
    V, sweep = problem.images(alpha), 0
    while True:
        if sweep % 10 == 0 or sweep >= most:
            V = problem.images(alpha)
            W = mbar_times(mbar, V.reshape(K, -1)).reshape(V.shape)
            value, gap = problem.certificate(W, V, problem.conjugates(alpha), 0.5 * float(np.sum(W * V)))
            if problem.reached(goal, W, V, value, gap) or sweep >= most:
                break
        keys = np.array([stream(0, 0, sweep, k, BATCHES) for k in fed.ids], dtype=np.uint64)
        into = V.reshape(K, -1)
        if eta:
            dual.proximal_sweeps(*rows, mbar_times(mbar, into), eta, 1, keys, alpha, into, *buffers)
        else:
            dual.dual_sweeps(*rows, mbar, keys, alpha, into, *buffers)
        sweep += 1
    seconds = time.perf_counter() - clock
    return Solution(W, value, value - gap, "duality gap", True, True, sweep, seconds, alpha)
