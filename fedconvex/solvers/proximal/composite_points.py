"""Proximal points of the clients' objectives with the penalty: argmin h(x) = f_k(x) + P(x) + (rho/2) ‖x - v‖^2.

h is m-strongly convex, m = rho + l2. With p = prox_{P/L}(u - grad/L), grad of the smooth part, L-smooth, at u,
L (u - p) + grad(p) - grad(u) is a subgradient of h at p, hence ‖p - argmin h‖ <= (2 L/m) ‖u - p‖: steps end where this
is small. Where P is a sum over entries or groups these are proximal Newton steps (Lee, Sun, Saunders, SIAM J. Optim.
2014), on the whole Hessian; else, or beyond 3,000 parameters, accelerated proximal gradient steps (Nesterov 2013).
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex.kernels.penalised import penalty_values, proximal_point
from fedconvex.penalties import is_entrywise
from fedconvex.solvers.choice import BY_PARTS, DIRECT
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.penalised.model_steps import EntrySteps, GroupSteps

_KEPT: WeakKeyDictionary[Objective, dict[int, Any]] = WeakKeyDictionary()  # problems of single clients
MOST_STEPS = 100_000
PATIENCE = 300  # accelerated steps without progress, after which rounding is to blame


def composite_points(
    problem: Objective, clients: np.ndarray, v: np.ndarray, rho: np.ndarray, start: np.ndarray, tol: float
) -> np.ndarray:
    """Return argmin f_k(x) + P(x) + (rho/2) ‖x - v_k‖^2 for many clients.

    Parameters
    ----------
    problem : Objective
        With a penalty; its loss has a curvature, or is Softmax.
    clients : int array (R, m)
    v : array (R, m, *model)
    rho : array (R,)
        Positive, or l2 > 0.
    start : array (R, m, *model)
    tol : float
        Stop at a certified ‖x - argmin h‖ <= tol (1 + ‖x‖), or where rounding stops the progress.

    Returns
    -------
    array (R, m, *model)

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.penalties import L1
    >>> from fedconvex.solvers.proximal.composite_points import composite_points
    >>> problem = Problem(Federation.from_clients([([[1.0]], [4.0])]), Squared(), penalty=L1(1.0))
    >>> zero = np.zeros((1, 1, 1))
    >>> composite_points(problem, np.array([[0]]), zero, np.array([1.0]), zero, 1e-12).tolist()
    [[[1.5]]]
    """
    kept, out = _KEPT.setdefault(problem, {}), np.empty_like(v)
    for r, j in np.ndindex(clients.shape):
        k = int(clients[r, j])
        if k not in kept:
            kept[k] = problem.alone(k)
            kept[k].penalty = problem.penalty
        x = _Point(kept[k], v[r, j].ravel(), float(rho[r]), tol).found(start[r, j].ravel())
        out[r, j] = x.reshape(problem.model_shape)
    return out


class _Point:
    """One proximal point to find."""

    def __init__(self, own: Objective, v: np.ndarray, rho: float, tol: float) -> None:
        self.own, self.v, self.rho, self.tol = own, v, rho, tol
        self.modulus = rho + own.strong_convexity
        steep = own.traits.smoothness
        self.L = steep * float(own.column_norms @ own.column_norms) + own.l2 + rho  # a bound; inf where l'' has none

    def smooth(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return f_k(x) + (rho/2) ‖x - v‖^2 and its gradient."""
        value, g = self.own.value_gradient(x)
        return value + 0.5 * self.rho * float((x - self.v) @ (x - self.v)), g + self.rho * (x - self.v)

    def penalty(self, x: np.ndarray) -> float:
        """Return P(x)."""
        return float(penalty_values(self.own, x[None])[0])

    def prox(self, u: np.ndarray, g: np.ndarray, L: float) -> np.ndarray:
        """Return prox_{P/L}(u - g/L)."""
        return proximal_point(self.own, (u - g / L)[None], 1.0 / L)[0]

    def found(self, x: np.ndarray) -> np.ndarray:
        """Return the point, from x; NaN after an overflow, which the driver calls divergence."""
        own, x = self.own, proximal_point(self.own, x[None], 0.0)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            x = self.by_newton(x) if BY_PARTS.met(own) and DIRECT.met(own) else self.by_gradients(x)
        return x if np.isfinite(x).all() else np.full_like(x, np.nan)

    def by_newton(self, x: np.ndarray) -> np.ndarray:
        """Take proximal Newton steps with backtracking; where a decrease drowns in rounding, the bound is the judge."""
        own, J, best, least, drowned = self.own, np.arange(self.own.size), x, math.inf, False
        steps = (EntrySteps if is_entrywise(own.penalty) else GroupSteps)(own)
        inner = None if own.free is None else ~steps.free
        for _ in range(100):
            f, g, H = own.value_gradient_hessian(x)
            if not np.isfinite(H).all():
                return np.full_like(x, np.nan)
            f, g = f + 0.5 * self.rho * float((x - self.v) @ (x - self.v)), g + self.rho * (x - self.v)
            H.flat[:: own.size + 1] += self.rho
            L = self.L if math.isfinite(self.L) else 2.0 * float(np.abs(H).sum(axis=1).max())
            p = self.prox(x, g, L)
            size = float(np.linalg.norm(x - p))
            if size < 0.9 * least:
                best, least = p, size
            elif size >= least and drowned:
                break
            if 2.0 * L / self.modulus * size <= self.tol * (1.0 + float(np.linalg.norm(p))):
                break
            y = steps.minimise_all(H, x, g, J, 1e-6 * size * math.sqrt(self.modulus), inner)
            P, d = self.penalty(x), y - x
            predicted = float(g @ d) + self.penalty(y) - P
            drowned, t = -predicted <= 1e-11 * (1.0 + abs(f + P)), 1.0
            while not drowned and t > 1e-10:
                y = x + t * d if t < 1.0 else y
                if self.smooth(y)[0] + self.penalty(y) <= f + P + 1e-4 * t * predicted:
                    break
                t *= 0.5
            x = y
        return best

    def by_gradients(self, u: np.ndarray) -> np.ndarray:
        """Take accelerated proximal gradient steps, L by backtracking where no bound is known."""
        L = self.L if math.isfinite(self.L) else 1.0
        best, least, idle, p = u, math.inf, 0, u
        for _ in range(MOST_STEPS):
            f, g = self.smooth(u)
            new = self.prox(u, g, L)
            while not math.isfinite(self.L) and L < 1e300:
                d = new - u
                if self.smooth(new)[0] <= f + float(g @ d) + 0.5 * L * float(d @ d) + 1e-15 * (1.0 + abs(f)):
                    break
                L *= 2.0
                new = self.prox(u, g, L)
            size = float(np.linalg.norm(u - new))
            best, least, idle = (new, size, 0) if size < 0.9 * least else (best, least, idle + 1)
            if 2.0 * L / self.modulus * size <= self.tol * (1.0 + float(np.linalg.norm(new))) or idle > PATIENCE:
                break
            root = math.sqrt(L / self.modulus)
            u, p = new + (root - 1.0) / (root + 1.0) * (new - p), new
        return best
