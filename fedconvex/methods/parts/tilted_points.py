"""Clients' solutions of tilted proximal problems: argmin_x f_k(x) - <c_k, x> + (rho/2) ‖x - y‖^2, exact or nearly so.

Nearly: gradient steps of 1/(L_k + rho) from y, L_k the smoothness of f_k, until the gradient of the problem at x is at
most accuracy rho ‖x - y‖. The nearer y is to the minimum, the smaller is what is allowed, so that no error stays.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.constants import similarity
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.solvers.proximal.smooth_points import proximal_points

_MOST = 100_000  # steps
_SMOOTHNESS: WeakKeyDictionary[Any, dict[int, float]] = WeakKeyDictionary()  # rows do not change


def points(
    problem: Problem, clients: np.ndarray, y: np.ndarray, c: np.ndarray, rho: np.ndarray, tol: float, accuracy: Any
) -> np.ndarray:
    """Return the solutions (R, m, *model).

    Parameters
    ----------
    problem : Problem
    clients : int array (R, m)
    y : array (R, *model)
    c : array (R, m, *model)
    rho : array (R,)
    tol : float
        Of exact solutions, as in `proximal_points`.
    accuracy : float, optional
        In (0, 1): stop gradient steps there.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.methods.parts import tilted_points
    >>> problem = Problem(Federation.from_clients([([[1.0]], [4.0])]), Squared())
    >>> given = np.array([[0]]), np.zeros((1, 1)), np.full((1, 1, 1), 2.0), np.ones(1), 1e-12
    >>> [tilted_points.points(problem, *given, accuracy).round(9).tolist() for accuracy in (None, 0.5)]
    [[[[3.0]]], [[[3.0]]]]
    """
    start = np.broadcast_to(y[:, None], c.shape).copy()
    weight = rho.reshape(-1, *[1] * y.ndim)
    if accuracy is None:
        return proximal_points(problem, clients, start + c / weight, rho, start.copy(), tol)
    return _descended(problem, clients, start, c, weight, accuracy)


def _descended(
    problem: Problem, clients: np.ndarray, y: np.ndarray, c: np.ndarray, rho: np.ndarray, accuracy: float
) -> np.ndarray:
    """Take gradient steps of all clients until each is near enough."""
    J, model = clients.size, problem.model_shape
    who, y, c = clients.reshape(J, 1), y.reshape(J, *model), c.reshape(J, *model)
    rho = np.broadcast_to(rho, (*clients.shape, *[1] * len(model))).reshape(J, *[1] * len(model))
    step = 1.0 / (_smoothness(problem, who[:, 0]).reshape(rho.shape) + rho)
    x, left = y.copy(), np.arange(J)
    for _ in range(_MOST):
        g = row_losses.gradients_of(problem, x[left], who[left])[:, 0] - c[left]
        away = rho[left] * (x[left] - y[left])
        size = np.sum(np.abs(g) + np.abs(c[left]), axis=tuple(range(1, g.ndim)))
        norm, far = (np.linalg.norm(a.reshape(len(left), -1), axis=1) for a in (g + away, away))
        more = (norm > accuracy * far) & (norm > 1e-15 * size)  # below it is rounding
        left = left[more]
        if not left.size:
            break
        x[left] -= step[left] * (g + away)[more]
    return x.reshape(*clients.shape, *model)


def _smoothness(problem: Problem, clients: np.ndarray) -> np.ndarray:
    """Return L_k of clients (J,), each from its own rows."""
    kept = _SMOOTHNESS.setdefault(problem, {})
    for k in set(clients.tolist()) - set(kept):
        alone = problem.alone(k)
        top = float(np.linalg.eigvalsh(similarity.gram(alone, 0))[-1])
        kept[k] = float(traits(problem.loss).smoothness) * top + problem.l2
    return np.array([kept[k] for k in clients.tolist()])


def check_fit(method: Any, problem: Any) -> None:
    """Raise if the loss has no curvature to solve with, or no smoothness to take steps by.

    Raises
    ------
    TypeError, ValueError
    """
    if method.accuracy is None:
        needs_curvature(method, problem)
    elif math.isinf(traits(problem.loss).smoothness):
        who = f"{type(method).__name__}.accuracy"
        raise bad(who, "be given for a smooth loss only", f"{problem.loss!r}", "solve exactly")


def needs_curvature(method: Any, problem: Any) -> None:
    """Raise if the loss has no curvature.

    Raises
    ------
    TypeError
    """
    if not (kind := traits(problem.loss)).curved:
        cure = "use a smooth loss, for example SmoothedHinge(gamma)" if kind.kinked else "declare its curvature"
        raise wrong_type(f"{type(method).__name__}: problem", "have a loss with a curvature", f"{problem.loss!r}", cure)
