"""Where averaging methods end on least squares: exact round maps, fixed points and rates.

Setting
    F = sum p_k F_k, F_k(w) = w'H_k w/2 - b_k'w + const with H_k >= 0 and b_k in its range; full participation; full
    gradients. One round starts every client at w and averages with p, with server step beta.
Assumptions
    None: H_k may be singular, steps may be too large.
Statement
    Every such client moves by its gradient, filtered by its own curvature: w_k = w - s(H_k)(H_k w - b_k), so

        w <- w - beta sum p_k s(H_k)(H_k w - b_k) = (I - beta M) w + beta v,
        M = sum p_k s(H_k) H_k,  v = sum p_k s(H_k) b_k,   w_inf = M^{-1} v,   rho = spectral radius of I - beta M;

    FedAvg, E steps eta:        s(h) = (1 - (1 - eta h)^E)/h  (eta E at h = 0)
    FedAvg, E -> infinity:      s(h) = 1/h for h > 0: with regular H_k, w_inf = sum p_k w_k*, the mean of minimisers
    FedNova, E_k steps eta:     s(h) = (1 - (1 - eta h)^E_k)/(E_k h), beta times sum p_k E_k
    FedProx, exact prox(mu'):   s(h) = 1/(h + mu')
    FedProx, E steps eta:       s(h) = (1 - (1 - eta (h + mu'))^E)/(h + mu').

    w_inf does not depend on beta. Where M is singular the limit is the fixed point that keeps the start's component in
    its kernel. s(h) = s_0 - s_1 h + ... gives w_inf - w* = lag H^{-1} sum p_k H_k grad F_k(w*) + higher order with
    lag = s_1/s_0: eta (E - 1)/2 for FedAvg, 1/mu' for FedProx.
Source
    Map and fixed point of FedAvg: Patel, Glasgow, Zindari, Wang, Stich, Cheng, Joshi, Srebro, "The limits and
    potentials of local SGD for distributed heterogeneous learning with intermittent communication", COLT 2024,
    Proposition 19. The filter s, singular H_k, FedProx: this project, docs/theory/fixed_points.md.
What differs
    The limit E -> infinity is sometimes quoted as the *sum* of the minimisers: it is their average. Bounds of the bias:
    `fedconvex.theorems.fedavg_limit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import array, function, real, vector, whole
from fedconvex.problems import Problem
from fedconvex.theory.bound import Hypothesis, require
from fedconvex.theory.moments.weights import per_client
from fedconvex.theory.quadratics import Quadratic, Spread, quadratic, spectrum, spread

__all__ = [
    "Affine",
    "Quadratic",
    "Spread",
    "average_minimisers_round",
    "fedavg_filter",
    "fedavg_round",
    "fednova_round",
    "fedprox_inexact_round",
    "fedprox_round",
    "filtered_round",
    "first_order_bias",
    "quadratic",
    "spectrum",
    "spread",
]

EPS = float(np.finfo(float).eps)


class Affine(NamedTuple):
    """A round as an affine map z <- A z + c of whatever the method keeps.

    Where I - A is known by itself, give it: for tiny steps A rounds to I and the difference is lost.

    Attributes
    ----------
    matrix : array (n, n)
        A.
    offset : array (n,)
        c.
    gain : array (n, n), optional
        I - A; default that difference.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.fixed_points import Affine
    >>> halve = Affine(np.diag([0.5, 1.0]), np.array([1.0, 0.0]))
    >>> halve.limit(np.array([7.0, 3.0])), halve.rate
    (array([2., 3.]), 0.5)
    """

    matrix: np.ndarray  # (n, n) A
    offset: np.ndarray  # (n,) c
    gain: np.ndarray | None = None  # (n, n) I - A

    def __call__(self, z: Any) -> np.ndarray:
        """Return A z + c."""
        return np.asarray(self.matrix @ np.asarray(z) + self.offset)

    @property
    def spectral_radius(self) -> float:
        """Largest modulus of an eigenvalue of A; infinite where A has overflown."""
        if not np.isfinite(self.matrix).all():
            return math.inf
        return float(np.max(np.abs(np.linalg.eigvals(self.matrix))))

    @property
    def rate(self) -> float:
        """Largest modulus of an eigenvalue, those apart that are 1 because A keeps a component for ever."""
        lam = np.linalg.eigvals(self.matrix)
        moving = lam[np.argsort(np.abs(lam - 1.0))][self.kept()[0].shape[1] :]
        return float(np.max(np.abs(moving), initial=0.0))

    def limit(self, start: Any = None) -> np.ndarray:
        """Return the limit of the iteration from ``start`` (default 0).

        Raises
        ------
        AssumptionError
            If the iteration does not converge.
        """
        n = len(self.offset)
        z0 = np.zeros(n) if start is None else vector("limit: start", start, n)
        right, left, inverse = self.kept()
        lam = np.linalg.eigvals(self.change)
        lam = lam[np.argsort(np.abs(lam))][right.shape[1] :]
        shrinks = bool(np.all(np.abs(lam) ** 2 < 2.0 * lam.real))  # |1 - lam| < 1, also where 1 - lam rounds to 1
        require("limit", Hypothesis("a contraction off its kernel, rate < 1", f"rate {self.rate:g}", shrinks))
        lost = float(np.linalg.norm(left.T @ self.offset, ord=None)) if left.size else 0.0
        size = float(np.linalg.norm(self.offset)) + EPS
        require("limit", Hypothesis("a fixed point", f"drift {lost:g} per round", lost <= 1e-9 * size))
        z = inverse @ self.offset
        z += inverse @ (self.offset - self.change @ z)  # one refinement
        if left.size:
            z = z + right @ np.linalg.solve(left.T @ right, left.T @ (z0 - z))
        return np.asarray(z)

    @property
    def change(self) -> np.ndarray:
        """I - A, (n, n)."""
        return np.eye(len(self.offset)) - self.matrix if self.gain is None else self.gain

    def kept(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Right and left kernel (n, m) of I - A, and its pseudo-inverse (n, n)."""
        U, s, Vt = np.linalg.svd(self.change)
        zero = s <= 16.0 * len(s) * EPS * (max(1.0, float(s[0])) if self.gain is None else float(s[0]))
        inverse = (Vt[~zero].T / s[~zero]) @ U[:, ~zero].T
        return Vt[zero].T, U[:, zero], inverse


def filtered_round(problem: Problem, response: Callable[[np.ndarray], np.ndarray], server_step: float = 1.0) -> Affine:
    """Return the round map of the filter s: eigenvalues h >= 0 of a client, zero included, go in, s(h) comes out.

    Parameters
    ----------
    problem : Problem
        Least squares, as for `quadratic`.
    response : callable
        s: takes eigenvalues (d,), returns (d,); a client moves by s(H_k) (b_k - H_k w).
    server_step : float
        Of the server along the mean of the moves.

    Raises
    ------
    ValueError, TypeError
        If response is no function that keeps the shape of its array, or server_step not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import filtered_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[3.0]], [9.0])]), Squared())
    >>> gradient_flow = filtered_round(problem, lambda h: -np.expm1(-2.0 * h) / h)
    >>> gradient_flow.limit()
    array([2.07257888])
    """
    function("filtered_round: response", response)
    return _filtered(quadratic(problem), lambda h, k: response(h), server_step)


def _filtered(q: Quadratic, response: Callable[[np.ndarray, int], np.ndarray], server_step: float) -> Affine:
    """Return the round map where client k has the filter s(h, k)."""
    beta, d = real("server_step", server_step, low=0.0, strict=True), q.b.shape[1]
    M, v = np.zeros((d, d)), np.zeros(d)
    for k, (H, b, p) in enumerate(zip(q.H, q.b, q.p, strict=True)):
        h, V = spectrum(H)
        s = array("filtered_round: response(h)", response(h, k), h.shape)
        M += p * (V * (s * h)) @ V.T
        v += p * (V @ (s * (V.T @ b)))
    return Affine(np.eye(d) - beta * M, beta * v, beta * M)


def fedavg_round(problem: Problem, *, step_size: float, local_steps: Any, server_step: float = 1.0) -> Affine:
    """Return FedAvg's round: E local full-gradient steps eta, or E_k of client k (K,), full participation.

    Parameters
    ----------
    problem, server_step
        As for `filtered_round`.
    step_size : float
        eta of the local steps, positive.
    local_steps : int or array (K,)
        E, or E_k of every client.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or a number of local steps below 1.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import fedavg_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> [round(float(fedavg_round(problem, step_size=0.1, local_steps=E).limit()[0]), 4) for E in (1, 10, 1000)]
    [2.6, 2.2083, 2.0]
    >>> fedavg_round(problem, step_size=1e-6, local_steps=[4, 1]).limit().round(4)  # minimises 4 F_1 + F_2
    array([2.])
    """
    eta, q = real("step_size", step_size, low=0.0, strict=True), quadratic(problem)
    E = per_client("local_steps", local_steps, len(q.p)).tolist()
    return _filtered(q, lambda h, k: _steps(h, eta, E[k]), server_step)


def fednova_round(problem: Problem, *, step_size: float, local_steps: Any, server_step: float = 1.0) -> Affine:
    """Return FedNova's round: client k moves by 1/E_k of its E_k steps, the server by sum_k p_k E_k times their mean.

    Parameters
    ----------
    problem, step_size, local_steps, server_step
        As for `fedavg_round`.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or a number of local steps below 1.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import fednova_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> fednova_round(problem, step_size=1e-6, local_steps=[4, 1]).limit().round(4)  # the minimiser of F
    array([2.6])
    """
    eta, q = real("step_size", step_size, low=0.0, strict=True), quadratic(problem)
    beta = real("server_step", server_step, low=0.0, strict=True)
    E = per_client("local_steps", local_steps, len(q.p)).tolist()
    return _filtered(q, lambda h, k: _steps(h, eta, E[k]) / E[k], beta * float(q.p @ E))


def fedavg_filter(H: np.ndarray, *, step_size: float, local_steps: int) -> np.ndarray:
    """Return s(H) = eta sum_{j<E} (I - eta H)^j of FedAvg, for a symmetric H >= 0 (d, d).

    Parameters
    ----------
    H : array (d, d)
        Symmetric, its eigenvalues at least 0.
    step_size : float
        eta, positive.
    local_steps : int
        E, at least 1.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or local_steps below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.fixed_points import fedavg_filter
    >>> fedavg_filter(np.array([[1.0]]), step_size=0.5, local_steps=2)
    array([[0.75]])
    """
    eta = real("fedavg_filter: step_size", step_size, low=0.0, strict=True)
    h, V = spectrum(H)
    return np.asarray((V * _steps(h, eta, whole("fedavg_filter: local_steps", local_steps, low=1))) @ V.T)


def average_minimisers_round(problem: Problem, *, server_step: float = 1.0) -> Affine:
    """Return the round in which every client solves its own problem from w: FedAvg with E -> infinity.

    Parameters
    ----------
    problem : Problem
        Least squares, as for `quadratic`.
    server_step : float
        Of the server along the mean of the moves.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import average_minimisers_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> average_minimisers_round(problem).limit()  # mean of 1 and 3; F is least at 2.6
    array([2.])
    """
    return filtered_round(problem, lambda h: np.divide(1.0, h, out=np.zeros_like(h), where=h > 0.0), server_step)


def fedprox_round(problem: Problem, *, proximal_mu: float, server_step: float = 1.0) -> Affine:
    """Return FedProx's round with exact prox: w_k minimises F_k + (proximal_mu/2)‖. - w‖^2.

    Parameters
    ----------
    problem : Problem
        Least squares, as for `quadratic`.
    proximal_mu : float
        Positive, in the units of a Hessian.
    server_step : float
        Of the server along the mean of the moves.

    Raises
    ------
    ValueError, TypeError
        If proximal_mu is not positive.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import fedprox_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> [round(float(fedprox_round(problem, proximal_mu=mu).limit()[0]), 4) for mu in (1e-9, 1.0, 1e9)]
    [2.0, 2.2308, 2.6]
    """
    mu = real("proximal_mu", proximal_mu, low=0.0, strict=True)
    return filtered_round(problem, lambda h: 1.0 / (h + mu), server_step)


def fedprox_inexact_round(
    problem: Problem, *, proximal_mu: float, step_size: float, local_steps: int, server_step: float = 1.0
) -> Affine:
    """Return FedProx's round with E gradient steps eta on F_k + (proximal_mu/2)‖. - w‖^2; FedAvg's at 0.

    Parameters
    ----------
    problem : Problem
        Least squares, as for `quadratic`.
    proximal_mu : float
        At least 0, in the units of a Hessian.
    step_size : float
        eta of the local steps, positive.
    local_steps : int
        E, at least 1.
    server_step : float
        Of the server along the mean of the moves.

    Raises
    ------
    ValueError, TypeError
        If proximal_mu is negative, step_size not positive, or local_steps below 1.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import fedprox_inexact_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> [fedprox_inexact_round(problem, proximal_mu=1.0, step_size=0.1, local_steps=E).limit() for E in (1, 9)]
    [array([2.6]), array([2.29687149])]
    """
    mu = real("proximal_mu", proximal_mu, low=0.0)
    eta, E = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    return filtered_round(problem, lambda h: _steps(h + mu, eta, E), server_step)


def first_order_bias(problem: Problem, lag: float) -> np.ndarray:
    """Return lag H^{-1} sum p_k H_k grad F_k(w*): w_inf - w* to first order in the lag.

    Parameters
    ----------
    problem : Problem
        Least squares with regular H.
    lag : float
        eta (E - 1)/2 for FedAvg, 1/proximal_mu for FedProx with exact prox.

    Raises
    ------
    ValueError, TypeError
        If lag is negative.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.fixed_points import fedavg_round, first_order_bias, quadratic
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> w = fedavg_round(problem, step_size=0.001, local_steps=3).limit()
    >>> w - quadratic(problem).minimiser, first_order_bias(problem, 0.001)
    (array([-0.00096167]), array([-0.00096]))
    """
    q = quadratic(problem)
    H, w = np.tensordot(q.p, q.H, 1), q.minimiser
    pull = np.einsum("k,kij,kj->i", q.p, q.H, q.gradients(w))
    return np.asarray(real("lag", lag, low=0.0) * np.linalg.solve(H, pull))


# ---------------------------------------------------------------- inner workings


def _steps(h: np.ndarray, eta: float, E: int) -> np.ndarray:
    """(1 - (1 - eta h)^E)/h, without cancellation at small h."""
    x = eta * h
    small = x < 0.5
    with np.errstate(over="ignore"):
        power = np.where(small, 0.0, 1.0 - (1.0 - x) ** E)
    gain = np.where(small, -np.expm1(E * np.log1p(-np.where(small, x, 0.0))), power)
    return np.divide(gain, h, out=np.full_like(h, eta * E), where=h > 0.0)
