"""Multi-task problems whose task relationship is learned, where rows are many: proximal Newton steps of all models.

A step minimises the quadratic model of the losses at W, plus R, by the alternating direction method (Lee, Sun,
Saunders, "Proximal Newton-type methods for minimizing composite functions", SIAM J. Optim. 24 (2014)): with H_t the
Hessians of the tasks,

    U_t <- argmin <g_t, u - w_t> + (u - w_t)'H_t (u - w_t)/2 + ‖u - z_t + eta v_t‖^2/(2 eta),
    Z <- prox_{eta R}(U + eta V),    V <- V + (U - Z)/eta,

matrices of (m, d), until the duality gap of the quadratic problem is a part of that of W. Rows are read once for H and
once for every value: where there are many to each column of each task, that is less than dual coordinate ascent takes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedconvex.families.multitask.covariance import Covariance
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.solvers.rows.hessians import weighted_gram

if TYPE_CHECKING:
    from fedconvex.families.multitask.problem import MultiTaskProblem

_ENTRIES, _WIDEST = 2_000_000, 200  # of all Hessians; columns
_PASSES = 60  # over the rows, after which coordinate ascent goes on
_INNER, _LOOK = 200, 5  # steps on the quadratic model, and after how many they are looked at
_SHARE = 0.03  # of the gap at W, that the quadratic model is minimised to
_APART = 5.0  # ratio of relative residuals from which eta is changed, by _FACTOR
_FACTOR, _SHORTEST = 1.5, 1e-3


class Point(NamedTuple):
    """Models, and what is certain of them."""

    W: np.ndarray  # (m, d)
    alpha: np.ndarray  # (n,) minus the slopes at their scores
    V: np.ndarray  # (m, d) images of alpha: minus the gradient of the losses
    value: float
    gap: float
    off: float  # what rounding may take from the gap


def fits(problem: MultiTaskProblem) -> bool:
    """Whether losses have curvature everywhere, and rows are dense and many, beside small Hessians of all tasks."""
    fed, kind = problem.federation, traits(problem.loss)
    small = fed.K * fed.d**2 <= _ENTRIES and fed.d <= _WIDEST
    bent = kind.curved and not kind.several and math.isfinite(kind.self_concordance)
    return bent and small and not fed.is_sparse and fed.n >= 2 * fed.K * fed.d


def point_at(problem: MultiTaskProblem, W: np.ndarray) -> Point:
    """Return models with their gradient, value and certified gap; one pass over the rows."""
    alpha = -problem._slopes(problem.task_scores(W))
    V = problem.images(alpha)
    off = problem.allowance(W, V)
    return Point(W, alpha, V, *problem.certificate(W, V, problem.conjugates(alpha), off=off), off)


def approach(problem: MultiTaskProblem, goal: float, W: np.ndarray, most: int) -> tuple[Point, float, int]:
    """Return the best models, a lower bound of the minimum, and passes over the rows: at most about as many as given.

    It ends where the goal is reached, where no step lowers the objective any more, or after sixty passes.
    """
    at = point_at(problem, W)
    lower, passes, eta = at.value - at.gap, 1, 0.0
    Z, V = at.W, at.V
    most = min(most, _PASSES)
    while passes + 2 <= most and not problem.reached(goal, at.W, at.V, at.value, at.value - lower, at.off):
        H = _hessians(problem, at.W)
        eta = eta or 1.0 / max(float(np.mean(np.diagonal(H, axis1=1, axis2=2))), 1e-300)
        enough = max(_SHARE * at.gap, 0.3 * goal * (1.0 + abs(at.value)))
        Z, V, eta = _quadratic_step(problem, at, H, Z, V, eta, enough)
        t, passes, slack = 1.0, passes + 2, 1e-13 * (1.0 + abs(at.value))
        new = point_at(problem, Z) if np.isfinite(Z).all() else at
        while not new.value <= at.value + slack and t > _SHORTEST and passes < most:
            t, passes = 0.5 * t, passes + 1
            new = point_at(problem, at.W + t * (Z - at.W))
        lower = max(lower, new.value - new.gap)
        before, at = at, new if new.value <= at.value + slack else at
        if at is before or (before.value - at.value <= slack and at.gap > 0.5 * before.gap):
            break
    return at, lower, passes


def _hessians(problem: MultiTaskProblem, W: np.ndarray) -> np.ndarray:
    """Return the Hessians of the tasks' losses, (m, d, d)."""
    fed, h = problem.federation, np.empty(problem.federation.n)
    row_losses.row_curvatures(problem.row_loss, problem.task_scores(W), problem.row_labels, fed.ptr, problem.c, h)
    return np.array([weighted_gram(fed.X[a:b], h[a:b]) for _, a, b in problem._blocks()])


def _quadratic_step(
    problem: MultiTaskProblem, at: Point, H: np.ndarray, Z: np.ndarray, V: np.ndarray, eta: float, enough: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return Z, V and eta after the steps on the quadratic model at a point: its duality gap is at most ``enough``."""
    R, one = problem.relation, np.eye(H.shape[1])
    assert isinstance(R, Covariance)
    inverse, linear = np.linalg.inv(H + one / eta), _times(H, at.W) + at.V
    for i in range(1, _INNER + 1):
        U, before = _times(inverse, linear + Z / eta - V), Z
        Z = R.proximal(U + eta * V, eta)
        V = V + (U - Z) / eta
        if i % _LOOK:
            continue
        minus = linear - _times(H, Z)  # the gradient of the model at Z
        if not R.value(Z) + R.conjugate(minus) - float(np.sum(Z * minus)) > enough:
            break
        apart = float(np.linalg.norm(U - Z)) / max(float(np.linalg.norm(Z)), 1e-300)
        moved = float(np.linalg.norm(Z - before)) / max(eta * float(np.linalg.norm(V)), 1e-300)
        factor = 1.0 / _FACTOR if apart > _APART * moved else _FACTOR if moved > _APART * apart else 1.0
        if factor != 1.0:
            eta *= factor
            inverse = np.linalg.inv(H + one / eta)
    return Z, V, eta


def _times(blocks: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Return the products of the tasks' matrices (m, d, d) and models (m, d)."""
    return np.asarray((blocks @ W[:, :, None])[:, :, 0])
