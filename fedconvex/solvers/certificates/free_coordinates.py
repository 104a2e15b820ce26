"""How far minimisers may be from a model along a coordinate that is not penalised, such as a free intercept.

Let w = (v, b) with one free coordinate b, of feature f, and let F(v', b') <= F(w) =: F. The rest of the model cannot be
far: (l2/2)‖v'‖^2 <= F - m for a loss bounded below by m, so its scores move by at most r_i = ‖x_i without f‖ (‖v‖ +
sqrt(2 (F - m)/l2)). For one score, convexity gives, with slopes s_i and t_i = s_i x_if at w and Delta = b' - b,

    F >= sum_{t_i > 0} p_i (l_i - |s_i| r_i + t_i Delta) + m sum_{t_i <= 0} p_i,

a bound of Delta from above, and the rows with t_i < 0 give one from below: near a minimiser there are both, as the
gradient vanishes along b. For C classes F is constant along equal shifts of all b_c, l >= z_c - z_y bounds b'_c - b'_y
by the rows of class y, and minimisers are compared after a shift to the mean of b.

Where several coordinates are free, slopes a_i in the domain of l* bound them: with s = sum_i p_i a_i x_i, l(z) >= a z -
l*(a) gives F >= F(v', b') >= <s_free, b'> - ‖s_rest‖^2/(2 l2) - sum_i p_i l*(a_i). Linear programmes look for a with
s_free = +-eps e_j, eps as large as may be; there are none for some j where labels can be separated along b.

Then F(w) - F* <= (‖grad_v F‖^2)/(2 l2) + sum_c |dF/db_c| |Delta_c|, by strong convexity in v.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_EPS = float(np.finfo(float).eps)

_LARGEST = 20_000  # rows of which linear programmes are solved


def reach_along_free(problem: Any, w: np.ndarray, F: float) -> float:
    """Return a bound of |w'_j - w_j| over models w' with F(w') <= F at the free coordinate of every output, or inf.

    inf where the loss has no lower bound, rows do not bound the coordinate from both sides (labels of one kind), or
    several coordinates are free and the loss has several outputs, no conjugate, or more than 20,000 rows.
    """
    least, free = problem.traits.lower_bound, np.flatnonzero(problem.free)
    if not math.isfinite(least) or not math.isfinite(F):
        return math.inf
    if not free.size:
        return 0.0
    if free.size > 1:
        margin, cost = problem.bounding_slopes
        far = float(((F + cost) / margin).max()) if (margin > 0.0).all() else math.inf
        return (max(far, 0.0) + float(np.abs(w[free]).max())) * (1.0 + 1e-9) if math.isfinite(far) else math.inf
    fed, j = problem.federation, int(free[0])
    column = fed.X[:, [j]].toarray().ravel() if fed.is_sparse else fed.X[:, j]
    lengths = np.sqrt(np.maximum(fed.row_norms2 - column**2, 0.0)) * (1.0 + 1e-12)
    models = w.reshape(problem.n_outputs, -1)
    v, b = np.delete(models, j, axis=1), models[:, j]
    far = math.sqrt(2.0 * max(F - least, 0.0) / problem.l2)
    if problem.traits.several:
        return _of_classes(problem, column, lengths, far, b, F) if problem.traits.multinomial else math.inf
    moved = lengths * (far + float(np.linalg.norm(v)))
    values, slopes = problem.row_values_and_slopes(w)
    t, p = slopes * column, problem.per_row
    ends = []
    for side in (t > 0.0, t < 0.0):
        total = float(p[side] @ np.abs(t[side]))
        if total == 0.0:
            return math.inf
        known = float(p[side] @ (values[side] - np.abs(slopes[side]) * moved[side]))
        ends.append((F - least * float(p[~side].sum()) - known) / total)
    return max(*ends, 0.0) * (1.0 + 1e-9)


def bounding_slopes(problem: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return eps and the cost of slopes for both signs of every free coordinate, (2 m,) each; eps = 0: none is known.

    eps is reduced by what s_free misses +-eps e_j by, times one: coordinates are at most the largest of them.
    """
    from scipy.optimize import linprog

    fed, free, p = problem.federation, np.flatnonzero(problem.free), problem.per_row
    margin, cost = np.zeros(2 * free.size), np.zeros(2 * free.size)
    if problem.traits.several or not hasattr(problem.loss, "conjugate") or fed.n > _LARGEST:
        return margin, cost
    low, high = (np.clip(v, -1.0, 1.0) for v in problem.traits.slope_range(fed.y))
    low, high = np.where(p > 0.0, low, 0.0), np.where(p > 0.0, high, 0.0)
    columns = fed.X[:, free].toarray() if fed.is_sparse else fed.X[:, free]
    A = (p[:, None] * columns).T
    for i in range(2 * free.size):
        side = np.zeros((free.size, 1))
        side[i // 2] = -1.0 if i % 2 else 1.0
        box = [*zip(low, high, strict=True), (0.0, None)]
        aim = np.append(np.zeros(fed.n), -1.0)
        found = linprog(aim, A_eq=np.hstack([A, -side]), b_eq=np.zeros(free.size), bounds=box, method="highs")
        if found.status != 0:
            return np.zeros(2 * free.size), cost
        a, eps = np.clip(found.x[:-1], low, high), float(found.x[-1])
        s = np.asarray(fed.X.T @ (p * a))
        dual = sum(q * problem.loss.conjugate(v, y) for q, v, y in zip(p, a, fed.y, strict=True) if q > 0.0)
        rest = np.delete(s, free)
        rounding = 1e-14 * fed.n * float(np.abs(p * a) @ np.abs(columns).sum(axis=1))
        margin[i] = eps - float(np.abs(s[free] - eps * side[:, 0]).sum()) - rounding
        cost[i] = float(dual) + float(rest @ rest) / (2.0 * problem.l2)
    return margin, cost * (1.0 + 1e-9) + 1e-12


def _of_classes(problem: Any, column: np.ndarray, lengths: np.ndarray, far: float, b: np.ndarray, F: float) -> float:
    """Return the bound for C classes, over shifts: for features of one sign."""
    if not ((column > 0.0).all() or (column < 0.0).all()):
        return math.inf
    y, p, spread = problem.federation.y.astype(int), problem.per_row, 0.0
    for c in range(problem.n_outputs):
        mine = y == c
        total = float(p[mine] @ np.abs(column[mine]))
        if total == 0.0:
            return math.inf
        spread = max(spread, (F + math.sqrt(2.0) * far * float(p[mine] @ lengths[mine])) / total)
    return (spread + float(np.abs(b - b.mean()).max())) * (1.0 + 1e-9)


def free_gap(problem: Any, w: np.ndarray, F: float, g: np.ndarray, error: np.ndarray) -> float:
    """Return a bound of F(w) - F* where one coordinate is free, from a gradient known up to ``error``, or inf."""
    if problem.l2 == 0.0 or problem.free is None:
        return math.inf
    free = np.tile(problem.free, problem.n_outputs)
    along = float((np.abs(g[free]) + error[free]).sum())
    reach = reach_along_free(problem, w, F + problem.rounding(w, F))
    rest = float(convexity_gap(g[None, ~free], np.linalg.norm(error[~free]), problem.l2)[0])
    return rest + along * reach if math.isfinite(reach) else math.inf


def convexity_gap(g: np.ndarray, error: Any, l2: float) -> np.ndarray:
    """Return ‖g‖^2/(2 l2) of R gradients (R, size) that may be off by so much in norm, l2 > 0; no square vanishes."""
    top = np.maximum(np.abs(g).max(axis=1, initial=0.0, keepdims=True), np.finfo(float).tiny)
    with np.errstate(all="ignore"):  # of a run that diverges
        size = (1.0 + (g.shape[1] + 4) * _EPS) * top[:, 0] * np.linalg.norm(g / top, axis=1) + error
        return np.asarray((size / np.sqrt(2.0 * l2)) ** 2 * (1.0 + 16.0 * _EPS))
