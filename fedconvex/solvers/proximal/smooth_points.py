"""Proximal points of the clients' objectives, exact up to a certified tolerance.

h(x) = f_k(x) + (rho/2) ‖x - v‖^2 is (rho + l2)-strongly convex, hence ‖x - argmin h‖ <= ‖grad h(x)‖/(rho + l2), and
Newton's method runs until this is small: of all jobs in one kernel, for dense rows of few features; else one by one,
with linear systems in the rows of the client or in the parameters, whichever are fewer. For squared loss the Hessian or
its spectrum is kept, which serves every rho.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.linalg as sla

from fedconvex.federation import Federation
from fedconvex.kernels.proximal_newton import newton_jobs
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import DIRECT_SIZE

_COMPILED = 32  # parameters up to which all jobs are done by one kernel
_PIECE = 1 << 19  # rows times parameters of the jobs of one call
Inverse = Callable[[np.ndarray], np.ndarray]  # g -> (grad^2 f(x) + rho I)^{-1} g
# problems of single clients, and for squared loss their inverses by rho: kept as long as the problem of all lives
_KEPT: WeakKeyDictionary[Objective, dict[int, tuple[Objective, Any]]] = WeakKeyDictionary()
_HESSIANS: WeakKeyDictionary[Objective, dict[int, np.ndarray]] = WeakKeyDictionary()  # of squared loss, without l2


def proximal_points(
    problem: Objective, clients: np.ndarray, v: np.ndarray, rho: np.ndarray, start: np.ndarray, tol: float
) -> np.ndarray:
    """Return argmin f_k(x) + (rho/2) ‖x - v_k‖^2 for many clients.

    Parameters
    ----------
    problem : Objective
        Its loss has a curvature, or is Softmax.
    clients : int array (R, m)
    v : array (R, m, *model)
    rho : array (R,)
        Positive.
    start : array (R, m, *model)
        Where Newton's method starts.
    tol : float
        Stop at ‖grad h‖ <= tol (rho + l2) (1 + ‖x‖), or where rounding stops the progress.

    Returns
    -------
    array (R, m, *model)

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.solvers.proximal.smooth_points import proximal_points
    >>> problem = Problem(Federation.from_clients([([[1.0]], [4.0])]), Squared())
    >>> zero = np.zeros((1, 1, 1))
    >>> proximal_points(problem, np.array([[0]]), zero, np.array([1.0]), zero, 1e-12).round(12).tolist()
    [[[2.0]]]
    """
    if problem.n_outputs == 1 and problem.size <= _COMPILED and not problem.federation.is_sparse:
        x = start.reshape(-1, problem.size).copy()
        which, each = clients.ravel(), np.repeat(rho, clients.shape[1])
        failed = _in_one_call(problem, which, v.reshape(x.shape), each, x, tol)
        jobs, out = [np.unravel_index(j, clients.shape) for j in failed], x.reshape(v.shape)
    else:
        jobs, out = list(np.ndindex(clients.shape)), np.empty_like(v)
    kept = _KEPT.setdefault(problem, {})
    for r, j in jobs:
        k = int(clients[r, j])
        if k not in kept:
            own = problem.alone(k)
            kept[k] = own, _spectral(own) if own.traits.quadratic else None
        own, inverses = kept[k]
        out[r, j] = _newton(own, inverses, v[r, j].ravel(), float(rho[r]), start[r, j].ravel(), tol).reshape(
            problem.model_shape
        )
    return out


def _in_one_call(
    problem: Objective, clients: np.ndarray, v: np.ndarray, rho: np.ndarray, x: np.ndarray, tol: float
) -> np.ndarray:
    """Overwrite x (J, p), the start, by the minimisers of J jobs; return the numbers of the jobs that failed."""
    fed, p, J = problem.federation, problem.size, clients.size
    ridge, found = np.broadcast_to(np.asarray(problem.ridge, dtype=float), p).copy(), np.zeros(J, dtype=bool)
    goal, room = tol * (rho + problem.l2), np.empty((4 + p, p))
    few = max(1, _PIECE // int(p * fed.sizes.max()))
    for lo in range(0, J, few):  # compiled code cannot be interrupted
        piece = slice(lo, lo + few)
        H = _row_hessians(problem, clients[piece])
        args = clients[piece], H, v[piece], rho[piece], goal[piece], room, x[piece], found[piece]
        newton_jobs(problem.row_loss, fed.X, problem.row_labels, fed.ptr, ridge, *args)
    return np.flatnonzero(~found)


def _row_hessians(problem: Objective, clients: np.ndarray) -> np.ndarray:
    """Return what the rows add to the Hessians of squared loss, (J, p, p); of other losses (J, 0, 0)."""
    if not problem.traits.quadratic:
        return np.empty((clients.size, 0, 0))
    kept, (distinct, place) = _HESSIANS.setdefault(problem, {}), np.unique(clients, return_inverse=True)
    for k in distinct.tolist():
        if k not in kept:
            X = problem.federation.client_rows(k)[0]
            kept[k] = X.T @ problem.weigh(k, X) / len(X)
    return np.stack([kept[k] for k in distinct.tolist()])[place]


def _newton(own: Objective, inverses: Any, v: np.ndarray, rho: float, x: np.ndarray, tol: float) -> np.ndarray:
    """Minimise h by Newton steps with backtracking; where a decrease drowns in rounding, the gradient is the judge."""

    def value_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = own.value_gradient(x)
        away = x - v
        return value + 0.5 * rho * float(away @ away), g + rho * away

    h, g = value_gradient(x)
    for _ in range(200):
        size = math.sqrt(g.dot(g))
        if not (size < math.inf and h < math.inf):
            return np.full_like(x, np.nan)  # overflow: the driver calls it divergence
        if not size > tol * (rho + own.l2) * (1.0 + math.sqrt(x.dot(x))):
            break
        step = (_inverse(own, x, rho) if inverses is None else inverses(rho))(g)
        if not np.isfinite(step).all():
            return np.full_like(x, np.nan)
        slope, t = float(g @ step), 1.0
        drowned = slope <= 1e-11 * (1.0 + abs(h))
        while t > 1e-30:  # where the loss is linear the first step is as long as rho is small
            trial = x - t * step
            h_new, g_new = value_gradient(trial)
            if math.sqrt(g_new.dot(g_new)) < 0.9 * size if drowned else h_new <= h - 1e-4 * t * slope:
                break
            t *= 0.0 if drowned else 0.5
        else:
            break
        x, h, g = trial, h_new, g_new
    return x


def _inverse(own: Objective, x: np.ndarray, rho: float) -> Inverse:
    """Factor the Hessian of h at x."""
    fed, a = own.federation, own.l2 + rho
    if (
        own.n_outputs == 1 and np.ndim(own.ridge) == 0 and fed.n < min(own.size, DIRECT_SIZE)
    ):  # (aI + A'A)^{-1} = (I - A'(aI + AA')^{-1} A)/a
        A = _scaled(fed, np.sqrt(np.maximum(own.curvatures(x), 0.0)))
        small = _positive(_gram(A), a)
        return lambda g: (g - A.T @ small(A @ g)) / a
    if own.size <= DIRECT_SIZE:
        H = own.value_gradient_hessian(x)[2]
        return _positive(H - own.ridge * np.eye(own.size), own.ridge + rho)
    from scipy.sparse.linalg import LinearOperator, cg

    product = own.hessian_product(x)
    shifted = LinearOperator((own.size, own.size), matvec=lambda u: product(u) + rho * u)
    return lambda g: cg(shifted, g, rtol=1e-8)[0]


def _positive(S: np.ndarray, a: Any) -> Inverse:
    """Return g -> (S + a I)^{-1} g for S >= 0, also where a is below the rounding of S; NaN where S overflowed.

    a is a number, or has one for every coordinate.
    """
    if not np.isfinite(S).all():
        return lambda g: np.full_like(g, np.nan)
    try:
        factor = sla.cho_factor(S + a * np.eye(len(S)), lower=True)
        return lambda g: sla.cho_solve(factor, g)
    except np.linalg.LinAlgError:
        low = float(np.min(a))
        lam, Q = sla.eigh(S + (a - low) * np.eye(len(S)))
        return lambda g: Q @ ((Q.T @ g) / (np.maximum(lam, 0.0) + low))


def _spectral(own: Objective) -> Callable[[float], Inverse]:
    """Decompose the constant Hessian of squared loss once; return rho -> inverse."""
    fed, l2 = own.federation, own.l2
    if np.ndim(own.ridge) == 0 and fed.n < min(own.size, DIRECT_SIZE):
        A = _scaled(fed, np.full(fed.n, fed.n**-0.5))
        G = _gram(A)
        if not np.isfinite(G).all():
            return lambda rho: lambda g: np.full_like(g, np.nan)
        lam, Q = sla.eigh(G)
        return lambda rho: lambda g: (g - A.T @ (Q @ ((Q.T @ (A @ g)) / (lam + l2 + rho)))) / (l2 + rho)
    if own.size <= DIRECT_SIZE:
        H = own.value_gradient_hessian(np.zeros(own.size))[2]
        if not np.isfinite(H).all():
            return lambda rho: lambda g: np.full_like(g, np.nan)
        lam, V = sla.eigh(H)
        return lambda rho: lambda g: V @ ((V.T @ g) / (lam + rho))
    return lambda rho: _inverse(own, np.zeros(own.size), rho)


def _scaled(fed: Federation, factors: np.ndarray) -> Any:
    """Rows times their factors."""
    return fed.X.multiply(factors[:, None]).tocsr() if fed.is_sparse else fed.X * factors[:, None]


def _gram(A: Any) -> np.ndarray:
    """Return A A' as a dense array."""
    G = A @ A.T
    return np.asarray(G if isinstance(G, np.ndarray) else G.toarray())
