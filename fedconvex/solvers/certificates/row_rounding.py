"""What rounding may do to values and gradients made of rows: a site's answers, and tasks of one process.

Any sum of m rounded terms is off by at most m eps times the sum of their sizes: eps is twice the unit roundoff, which
makes up for products of errors. With n rows of d features and m = n + d + 16, the computed score z' of a row x is off
by delta <= m eps ‖x‖ ‖w‖, and the computed slope r of its loss by 16 eps |r| from the slope l'(z') (with C outputs,
whose slopes are differences, by 16 C eps beside). The gradient that a site answers is therefore within a vector e,

    ‖e‖ <= m eps mean ‖x_i‖ (|r_i| + C) + 8 eps ‖ridge w‖,

of that made of the exact slopes l'(z'). These are slopes at scores that are not quite w's: since l is convex, with L
the largest |l'| within delta of z',

    F(v) >= F(w) + g'(v - w) + (l2/2) ‖v - w‖^2 - off,   off = mean (L + |r|) delta + m eps mean |l| + ridge terms,

for every v, so that F(w) - F* <= (‖g‖ + ‖e‖)^2/(2 l2) + off. L is the Lipschitz constant of the loss, or |r| + B delta,
B a bound of l'' there. The same off bounds what the value is off by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.kernels.domain_sums import domains_of
from fedconvex.loss_traits import traits

EPS = float(np.finfo(float).eps)
_LEAST = 1e-300  # squares of shorter rows may have lost their digits: they count as this long


def allowances(
    problem: Any, w: np.ndarray, alpha: np.ndarray | None = None, size: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return ``error`` (R,), ‖e‖ of a client's gradient at models w (R, *model), and ``off`` of its values.

    Parameters
    ----------
    problem : problem
        As a site has it, with its own rows only.
    w : array (R, *model)
    alpha : array (R, p), optional
        Weights of rows by domain: sums over rows take the place of f_k, ``off`` is (R, p), and no ridge is counted.
    size : array (R,), optional
        At least ‖w‖, which it is without: larger where w is itself a rounded sum.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.solvers.certificates.row_rounding import allowances
    >>> problem = Problem(Federation.from_clients([([[1.0]], [2.0])]), Squared(), 0.1)
    >>> found = allowances(problem, np.array([[1.0], [1e6]]))
    >>> bool(found["off"][0] < 1e-13), bool(1e-6 < found["off"][1] < 1e-1)
    (True, True)
    """
    fed, (R, C) = problem.federation, (len(w), problem.n_outputs)
    y = problem.row_labels if alpha is None else problem.absolute_labels
    share = problem.relative_weights if alpha is None else fed.sample_weight
    W, n, m = w.reshape(R, -1), fed.n, (fed.n + fed.d + 16) * EPS
    sizes = np.sqrt(np.maximum(fed.row_norms2, _LEAST))
    size = np.linalg.norm(W.reshape(R, C, fed.d), axis=2).max(axis=1) if size is None else size
    delta = m * sizes[:, None] * size
    Z = np.ascontiguousarray(fed.X @ W.reshape(-1, fed.d).T)
    rows, r = _of_rows(problem, Z, y, share, delta, m)
    if alpha is not None:
        code = domains_of(fed).code
        off = np.stack([np.bincount(code, rows[:, i], alpha.shape[1]) for i in range(R)])
        by_row, ridge = r * alpha[:, code].T, 0.0
    else:
        off = rows.mean(axis=0) + 4.0 * m * problem.ridge_terms(W)
        by_row, ridge = r / n, problem.ridge
    error = m * np.sqrt(C) * (sizes @ by_row)
    return {"error": error + 8.0 * EPS * np.linalg.norm(ridge * W, axis=1), "off": off}


def scale_slope_allowances(problem: Any, w: np.ndarray) -> np.ndarray:
    """Return ``off`` of sums over the rows of every domain of z l'(z, y) at models w (R, d), (R, p).

    For losses of one score that have a curvature: with B the largest l'' within delta of a score z, z l'(z) is off by
    |z| B delta + (|l'| + B delta) delta.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.solvers.certificates.row_rounding import scale_slope_allowances
    >>> problem = Problem(Federation.from_clients([([[1e8]], [1.0])]), Logistic())
    >>> bool(1e-9 < scale_slope_allowances(problem, np.array([[0.3]]))[0, 0] < 1e3)
    True
    """
    fed, y = problem.federation, problem.absolute_labels
    m, code = (fed.n + fed.d + 16) * EPS, domains_of(fed).code
    sizes = np.sqrt(np.maximum(fed.row_norms2, _LEAST))
    delta = m * sizes[:, None] * np.linalg.norm(w, axis=1)
    Z = np.ascontiguousarray(fed.X @ w.T)
    each = np.ones((fed.n, 1)) if fed.sample_weight is None else fed.sample_weight[:, None]
    r = _of_rows(problem, Z, y, fed.sample_weight, delta, m)[1]
    moved = _bend(problem, Z, y, each, delta) * delta
    rows = np.abs(Z) * (moved + m * r) + (r + moved) * delta
    return np.stack([np.bincount(code, column) for column in rows.T])


def task_allowances(problem: Any, W: np.ndarray) -> np.ndarray:
    """Return ``off`` of the loss of every task at its own model, (m,), and of the product of model and image.

    Parameters
    ----------
    problem : MultiTaskProblem
    W : array (m, d), or (m, C, d)

    Notes
    -----
    Of C classes, sums of dual variables are off by C eps as well, and p log p moves by less than 40 eps where p does by
    eps.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import Independent, MultiTaskProblem
    >>> from fedconvex.solvers.certificates.row_rounding import task_allowances
    >>> problem = MultiTaskProblem(Federation.from_clients([([[1e8]], [3e7])]), Squared(), Independent(1.0))
    >>> bool(1e-18 < task_allowances(problem, np.array([[0.3]]))[0] < 1e-12)
    True
    """
    fed = problem.federation
    each = lambda v: np.repeat(v, fed.sizes)[:, None]  # noqa: E731
    m = each((fed.sizes + fed.d + 16) * EPS)
    delta = (
        m * np.sqrt(np.maximum(fed.row_norms2, _LEAST))[:, None] * each(np.linalg.norm(W.reshape(len(W), -1), axis=1))
    )
    Z = problem.task_scores(W).reshape(fed.n, -1)
    rows = _of_rows(problem, Z, problem.row_labels, fed.sample_weight, delta, m)[0]
    if Z.shape[1] > 1:
        rows += 20.0 * Z.shape[1] * EPS * (1.0 if fed.sample_weight is None else fed.sample_weight[:, None])
    return np.asarray(problem._sums(rows[:, 0]))


def _of_rows(
    problem: Any, Z: np.ndarray, y: np.ndarray, share: np.ndarray | None, delta: np.ndarray, m: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return (L + |r|) delta + m |l| of every row at scores Z (n, R C), which may be off by delta; and |r|: (n, R)."""
    (n, R), loss = delta.shape, problem.row_loss
    values, slopes, C = np.empty((n, R)), Z.copy(), Z.shape[1] // R
    row_losses.row_values(loss, Z, y, values)
    row_losses.row_slopes(loss, slopes, y)
    r = np.abs(slopes).reshape(n, R, C).max(axis=2) + (float(C) if C > 1 else 0.0)
    each = np.ones((n, 1)) if share is None else share[:, None]
    return (_steepest(problem, Z, y, each, r, delta) + r) * delta + m * np.abs(values), r


def _steepest(
    problem: Any, Z: np.ndarray, y: np.ndarray, share: np.ndarray, r: np.ndarray, delta: np.ndarray
) -> np.ndarray:
    """Return a bound of |l'| of every row (n, R) within delta of its scores; inf where the loss tells nothing."""
    kind = traits(problem.loss)
    if np.isfinite(kind.lipschitz):
        return kind.lipschitz * share
    if not np.isfinite(kind.smoothness) and (not kind.curved or kind.several):
        return np.full(r.shape, np.inf)
    return r + _bend(problem, Z, y, share, delta) * delta


def _bend(problem: Any, Z: np.ndarray, y: np.ndarray, share: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return a bound of l'' of every row (n, R) within delta of its scores, or (n, 1), for losses that tell of it."""
    kind = traits(problem.loss)
    if np.isfinite(kind.smoothness):
        return kind.smoothness * share
    bend, ends = np.empty(delta.shape[::-1]), np.array([0, len(delta)])
    for h, z in zip(bend, Z.T, strict=True):
        row_losses.row_curvatures(problem.row_loss, z.copy(), y, ends, np.ones(1), h)
    growth = kind.self_concordance * delta if np.isfinite(kind.self_concordance) else 0.0 * delta
    return np.asarray(bend.T * np.exp(np.minimum(growth, 700.0)))
