"""Global, local and multi-task support vector machines, each with its certificate; baselines that stop too early.

With the hinge loss l, tasks t = 1, ..., m, losses averaged per task, and no intercept:

    global      sum_t mean_i l(w'x_i, y_i) + (m lam/2) ‖w‖^2,       one model w for all tasks
    local       sum_t mean_i l(w_t'x_i, y_i) + (lam/2) ‖W‖^2
    multi-task  sum_t mean_i l(w_t'x_i, y_i) + (lam/2) ‖W‖_*^2,     the minimum of (lam/2) tr(W'Omega^-1 W) over Omega

Every solution bounds its own optimum from below. Paths run from large to small lam: the minimum at
lam' < lam is at least lam'/lam times as large as that at lam (minima of functions linear in lam are concave in it).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from fedconvex._check import bad
from fedconvex.draws import BATCHES, stream
from fedconvex.federation import Federation
from fedconvex.losses import Hinge
from fedconvex.problems import Covariance, Independent, MultiTaskProblem, Pooled, Problem
from fedconvex.solvers import Solution
from fedconvex.solvers.kinked import dual

GLOBAL, LOCAL, MULTI = KINDS = ("global", "local", "multi-task")
_MOST_LOOKS, _FEW_LOOKS = 5000, 10  # at the gap, one every 42 passes; then Newton's method where it is cheaper
TRIES = 6  # at a tighter tolerance
SETTLED = 0.1  # margins this far beyond 1 count as settled for a while


class Fit(NamedTuple):
    """Models, and what is certain about them."""

    lam: float
    W: np.ndarray  # (m, d), one row per task
    value: float  # of the objective
    lower: float  # a certified lower bound of its minimum

    @property
    def gap(self) -> float:
        """Certified suboptimality, relative to the value."""
        return (self.value - self.lower) / self.value


def joint_problem(train: Federation, lam: float) -> MultiTaskProblem:
    """Return the multi-task problem with a learned Omega."""
    return MultiTaskProblem(train, Hinge(), Covariance(lam / 2.0), normalisation="mean")


def errors(W: np.ndarray, test: Federation) -> np.ndarray:
    """Return the share of wrong signs of every task, (m,); row t of W belongs to client t of the federation."""
    z = np.einsum("ij,ij->i", test.X, np.repeat(W, test.sizes, axis=0))
    return np.add.reduceat((np.where(z >= 0.0, 1.0, -1.0) != test.y).astype(float), test.ptr[:-1]) / test.sizes


# ---------------------------------------------------------------- paths of certified solutions


def path(kind: str, train: Federation, lambdas: Sequence[float], share: float) -> Iterator[Fit]:
    """Yield models for decreasing lambdas, each with a certified gap of at most a share of its value.

    Parameters
    ----------
    kind : {"global", "local", "multi-task"}
    train : Federation
        Labels -1, +1.
    lambdas : sequence of float
        Decreasing.
    share : float
        In (0, 1).

    Examples
    --------
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.families.multitask.experiments.compared_models import path
    >>> fed = logistic_federation(n_clients=3, seed=0).federation
    >>> [fit.gap <= 0.01 for fit in path("multi-task", fed, (1.0, 0.1), 0.01)]
    [True, True]
    """
    if kind == MULTI:
        found, lower = None, 0.0
        for lam in lambdas:
            problem = joint_problem(train, lam)
            tol = share * (lower or 1.0) / (1.0 + (lower or 1.0))  # it counts 1 + |value|
            found = _certified(problem.solve, tol, share, found)
            yield Fit(lam, found.w, found.value, found.lower)
            lower = _next(found.lower, lam, lambdas)
        return
    rows, bases = (train, None) if kind == GLOBAL else _own_coordinates(train)
    alpha = np.zeros(train.n)
    for lam in lambdas:
        relation = Pooled(lam) if kind == GLOBAL else Independent(lam)
        problem = MultiTaskProblem(rows, Hinge(), relation, normalisation="mean")
        W, value, lower, alpha = _ascend(problem, alpha, share, _FEW_LOOKS if kind == GLOBAL else _MOST_LOOKS)
        if kind == GLOBAL and value - lower > share * value:
            W, value, lower = _newton(train, lam, lower, share)
        models = W if bases is None else np.array([w[: B.shape[1]] @ B.T for w, B in zip(W, bases, strict=True)])
        yield Fit(lam, models, value, lower)


def _own_coordinates(train: Federation) -> tuple[Federation, list[np.ndarray] | None]:
    """Return every task's rows in an orthonormal basis of their span, and the bases: local models lie in them."""
    if train.sizes.max() >= train.d:
        return train, None
    X, bases = np.zeros((train.n, int(train.sizes.max()))), []
    for a, b in itertools.pairwise(train.ptr.tolist()):
        Q, R = np.linalg.qr(train.X[a:b].T)
        X[a:b, : b - a] = R.T
        bases.append(Q)
    return Federation(X, train.y, train.ptr), bases


def _newton(train: Federation, lam: float, lower: float, share: float) -> tuple[np.ndarray, float, float]:
    """Return the global W, its value, and a lower bound of the minimum, by Newton's method on smoothed hinges."""
    problem, m = Problem(train, Hinge(), l2=lam, weights="uniform"), train.K
    found = _certified(lambda tol, near: problem.solve(tol), share * lower / (m + lower), share)
    return np.repeat(found.w[None], m, axis=0), m * found.value, m * found.lower


def _ascend(
    problem: MultiTaskProblem, alpha: np.ndarray, share: float, looks: int
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """Return W, its value, a lower bound of the minimum and alpha: dual coordinate ascent with the hinge loss.

    Two passes over all rows, then many over those that are not settled: settled rows have u = y alpha at 0 and a margin
    above 1, or u at 1 and a margin below. Starts from the best multiple of alpha; the models are the best multiple of
    W(alpha), which matters where data are nearly separated.
    """
    fed, c = problem.federation, np.repeat(problem.c, problem.federation.sizes)
    u, V = fed.y * alpha, problem.images(alpha)
    square = float(np.sum(V * (problem.mbar @ V)))
    if square > 0.0:
        alpha = alpha * min(float(c @ u) / square, 1.0)
    every = _Rows(fed.rows, fed.y, fed.ptr, problem.row_norms)
    best, lower, sweep = (np.zeros(problem.model_shape), math.inf), 0.0, 0
    for _ in range(looks):
        alpha, sweep = _sweep(problem, every, np.ones(fed.n, dtype=bool), alpha, sweep, 2)
        V = problem.images(alpha)
        W = problem.mbar @ V
        square, margin = float(np.sum(W * V)), fed.y * problem.task_scores(W)
        scale, value = _along(c, margin, square)
        if value < best[1]:
            best = (scale * W, value)
        lower = max(lower, float(c @ (fed.y * alpha)) - 0.5 * square)
        if best[1] - lower <= share * best[1]:
            break
        u = fed.y * alpha
        open_ = ~(((u <= 0.0) & (margin > 1.0 + SETTLED)) | ((u >= 1.0) & (margin < 1.0 - SETTLED)))
        alpha, sweep = _sweep(problem, every, open_, alpha, sweep, 40)
    return best[0], best[1], lower, alpha


class _Rows(NamedTuple):
    X: Any  # (n, d), dense
    y: np.ndarray
    ptr: np.ndarray
    norms: np.ndarray


def _sweep(
    problem: MultiTaskProblem, rows: _Rows, open_: np.ndarray, alpha: np.ndarray, sweep: int, count: int
) -> tuple[np.ndarray, int]:
    """Return alpha after passes over the open rows, and the number of passes so far."""
    V, part = problem.images(alpha), rows
    if not open_.all():
        ptr = np.concatenate([[0], np.cumsum(open_)])[rows.ptr]
        part = _Rows(np.ascontiguousarray(rows.X[open_]), rows.y[open_], ptr, rows.norms[open_])
    mine = np.ascontiguousarray(alpha[open_])
    for t in range(sweep, sweep + count):
        keys = np.array([stream(0, 0, t, k, BATCHES) for k in problem.federation.ids], dtype=np.uint64)
        dual.dual_sweeps(
            problem.loss, part.X, part.y, part.ptr, part.norms, problem.c, problem.mbar, keys, mine, V,
            *problem.buffers(),
        )  # fmt: skip
    alpha = alpha.copy()
    alpha[open_] = mine
    return alpha, sweep + count


def _along(c: np.ndarray, margin: np.ndarray, square: float) -> tuple[float, float]:
    """Return s near 1 and the value sum_i c_i max(0, 1 - s margin_i) + s^2 square/2, the least."""

    def value(s: float) -> float:
        return float(c @ np.maximum(1.0 - s * margin, 0.0)) + 0.5 * s * s * square

    found = optimize.minimize_scalar(value, bounds=(0.8, 1.25), method="bounded", options={"xatol": 1e-4})
    return (float(found.x), float(found.fun)) if found.fun < value(1.0) else (1.0, value(1.0))


def _next(lower: float, lam: float, lambdas: Sequence[float]) -> float:
    """Return a lower bound of the minimum at the next lambda."""
    after = [x for x in lambdas if x < lam]
    return lower * max(after) / lam if after else lower


def _certified(
    solve: Callable[[float, Solution | None], Solution], tol: float, share: float, start: Solution | None = None
) -> Solution:
    """Solve with tol, a tenth of it, ... until the gap is at most a share of the value."""
    found = solve(tol, start)
    for _ in range(TRIES):
        if found.gap <= share * found.value:
            break
        tol *= 0.1
        found = solve(tol, found)
    return found


# ---------------------------------------------------------------- cross-validation


def folds(train: Federation, parts: int, seed: Any) -> Iterator[tuple[Federation, Federation]]:
    """Yield a training and a validation federation per fold; every task's rows are divided at random into equal parts.

    Raises
    ------
    ValueError
        If a task has fewer rows than folds.
    """
    if train.sizes.min() < parts:
        raise bad("folds", f"have at least {parts} rows to train on in every task", int(train.sizes.min()))
    rng = np.random.default_rng(seed)
    part = np.concatenate([rng.permutation(n) % parts for n in train.sizes])
    task = np.repeat(np.arange(train.K), train.sizes)
    for j in range(parts):
        held = part == j
        yield tuple(Federation.from_arrays(train.X[r], train.y[r], task[r]) for r in (~held, held))  # type: ignore[misc]


def choose(
    kind: str, train: Federation, lambdas: Sequence[float], parts: int, share: float, seed: Any
) -> tuple[float, np.ndarray, float]:
    """Choose lam by cross-validation: least error, mean over tasks and folds; the largest such lam.

    Returns
    -------
    lam : float
    error : array (lambdas,)
    gap : float
        The largest relative gap of a model that was compared.
    """
    found, worst = np.zeros(len(lambdas)), 0.0
    for fit_on, held in folds(train, parts, seed):
        for j, fit in enumerate(path(kind, fit_on, lambdas, share)):
            found[j] += errors(fit.W, held).mean() / parts
            worst = max(worst, fit.gap)
    best = int(np.flatnonzero(found <= found.min() + 1e-12)[0])
    return lambdas[best], found, worst


# ---------------------------------------------------------------- stopped early


def stopped(
    kind: str, train: Federation, lam: float, passes: Sequence[int], tol: float | None = None
) -> Iterator[tuple[int, Fit]]:
    """Yield (passes, models) of dual coordinate ascent over rows in their order, from zero: the baselines' solver.

    The reference implementation's global model averages over all rows, and its models end one by one as soon as its
    objective mean_i l + lam ‖w‖^2 changes by less than tol in a pass.

    Parameters
    ----------
    kind : {"global", "local"}
    train : Federation
    lam : float
    passes : sequence of int
        Increasing numbers of passes after which to yield.
    tol : float, optional
        Of the reference's rule; None does not end early.
    """
    fed = train if kind == LOCAL else Federation.from_arrays(train.X, train.y, np.zeros(train.n, dtype=int))
    problem = MultiTaskProblem(fed, Hinge(), Independent(lam), normalisation="mean")
    alpha, W, active = np.zeros(fed.n), np.zeros(problem.model_shape), np.ones(fed.K, dtype=bool)
    before, done = np.zeros(fed.K), 0
    for t in range(1, max(passes) + 1):
        for k in np.flatnonzero(active):
            a, b = int(fed.ptr[k]), int(fed.ptr[k + 1])
            dual.ordered_steps(problem.loss, fed.rows, fed.y, problem.row_norms, a, b, problem.c[k] / lam, alpha, W[k])
        done += bool(active.any())
        if tol is not None:
            now = problem.client_values(W) + lam * np.sum(W * W, axis=1)
            active, before = active & (np.abs(now - before) >= tol), now
        if t in passes:
            V = problem.images(alpha)
            value, gap = problem.certificate(W, V, problem.conjugates(alpha))
            models = W.copy() if kind == LOCAL else np.repeat(W, train.K, axis=0)
            yield done, Fit(lam, models, value, value - gap)


def reference(kind: str, train: Federation, lambdas: Sequence[float], passes: int, parts: int) -> tuple[int, Fit]:
    """Return passes and models of the reference implementation's protocol for its global and local baselines.

    Its objective changes by less than 1e-5 in a pass, or so many passes are over; lam by the error on its last fold,
    every fifth row from the fifth on, the smallest of equals.
    """
    task, place = np.repeat(np.arange(train.K), train.sizes), np.concatenate([np.arange(n) for n in train.sizes])
    held = place % parts == parts - 1
    fit_on, check = (Federation.from_arrays(train.X[r], train.y[r], task[r]) for r in (~held, held))
    found = []
    for lam in sorted(lambdas):
        ((_, fit),) = stopped(kind, fit_on, lam, (passes,), 1e-5)
        found.append((errors(fit.W, check).mean(), lam))
    return next(stopped(kind, train, min(found)[1], (passes,), 1e-5))
