"""Rounds of SCAFFOLD and progressive hedging on least squares as exact affine maps, and the cycle in which SAM ends.

A map's fixed point is where the method ends, its rate the linear rate: `fixed_points.Affine`. On F = w'H w/2 with
largest eigenvalue l, eta l < 2, SAM has the cycle w, -w along the eigenvector of l, ‖w‖ = eta l r/(2 - eta l); along
any other eigenvector it is unstable (Bartlett, Long, Bousquet, JMLR 24, 2023: SAM ends there from almost everywhere).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import array, instance, real, vector, whole
from fedconvex.problems import Problem
from fedconvex.theory.bound import Hypothesis, require
from fedconvex.theory.fixed_points import Affine, quadratic

__all__ = [
    "Cycle",
    "Scaffold",
    "control_error",
    "hedging_optimum",
    "hedging_round",
    "sam_cycle",
    "scaffold_round",
    "scaffold_split",
]


class Scaffold(NamedTuple):
    """State of SCAFFOLD on least squares: server model and controls.

    Attributes
    ----------
    x : array (d,)
        The server's model.
    c : array (K, d)
        Control variates of the clients.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.round_maps import Scaffold
    >>> state = Scaffold(np.zeros(2), np.zeros((3, 2)))
    >>> np.concatenate([state.x, state.c.ravel()]).shape  # flat, as `scaffold_round` moves it
    (8,)
    """

    x: np.ndarray  # (d,)
    c: np.ndarray  # (N, d)


def scaffold_round(
    problem: Problem, *, step_size: float, local_steps: int, server_step: float = 1.0, option: int = 2
) -> Affine:
    """Return a round on least squares as an exact affine map of (x, c_1, ..., c_N), flat ((N+1) d,).

    Full gradients, full participation; c and the server's average carry the problem's weights. The fixed point is x*
    with c_i = grad f_i(x*); the rate is the linear rate of the method.

    Parameters
    ----------
    problem : Problem
        Least squares.
    step_size, local_steps, server_step : float, int, float
        eta_l, K, eta_g.
    option : 1 or 2
        c_i^+ = grad f_i(x), or the mean of the K gradients.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, local_steps below 1, or option neither 1 nor 2.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import scaffold_round, scaffold_split
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    >>> map = scaffold_round(problem, step_size=0.1, local_steps=5)
    >>> scaffold_split(problem, map.limit()).x, round(map.rate, 4)
    (array([2.6]), 0.4076)
    """
    eta, K = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    eta_g = real("server_step", server_step, low=0.0, strict=True)
    whole("option", option, low=1, high=2)
    q = quadratic(problem)
    N, d = q.b.shape
    one = np.eye(d) - eta * q.H
    power = np.array([np.linalg.matrix_power(a, K) for a in one])
    filter_ = np.zeros_like(q.H)  # eta sum_{j<K} (I - eta H)^j
    for _ in range(K):
        filter_ = eta * np.eye(d) + one @ filter_

    def step(z: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, c_k = z[0], z[1:]
        c = q.p @ c_k
        y = power @ x + np.einsum("kij,kj->ki", filter_, b + c_k - c)
        new = q.H @ x - b if option == 1 else c_k - c + (x - y) / (K * eta)
        return np.vstack([x + eta_g * (q.p @ (y - x)), new])

    units = np.eye((N + 1) * d).reshape(-1, N + 1, d)
    matrix = np.array([step(unit, 0.0 * q.b).ravel() for unit in units]).T
    return Affine(matrix, step(np.zeros((N + 1, d)), q.b).ravel())


def scaffold_split(problem: Problem, z: Any) -> Scaffold:
    """Return x and c_i of a flat state.

    Parameters
    ----------
    problem : Problem
        Least squares of K clients and d coordinates.
    z : array ((K + 1) d,)
        x, then the controls client by client.

    Raises
    ------
    ValueError, TypeError
        If z is no state of SCAFFOLD on the problem.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import scaffold_round, scaffold_split
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> limit = scaffold_split(problem, scaffold_round(problem, step_size=0.1, local_steps=2).limit())
    >>> limit.x.round(6), limit.c.ravel().round(6)  # w*, and the gradients there
    (array([2.]), array([ 1., -1.]))
    """
    instance("scaffold_split: problem", problem, Problem)
    size = (problem.federation.K + 1) * problem.federation.d
    parts = vector("scaffold_split: z", z, size).reshape(-1, problem.federation.d)
    return Scaffold(parts[0], parts[1:])


def control_error(problem: Problem, controls: Any) -> float:
    """Return C_0 of controls (K, *model): the mean of ‖c_k - grad f_k(x*)‖^2.

    Parameters
    ----------
    problem : Problem
        Of a smooth loss.
    controls : array (K, *model)
        c_k.

    Raises
    ------
    ValueError, TypeError
        If controls are not one gradient per client.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import control_error
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> control_error(problem, [[0.0], [0.0]])
    1.0
    """
    instance("control_error: problem", problem, Problem)
    g = problem.client_gradients(problem.solve().w)
    c = array("controls", controls, g.shape)
    return float(np.sum((c - g) ** 2) / len(g))


def hedging_optimum(problem: Problem, *, rho: float) -> np.ndarray:
    """Return s_k* = x* + grad f_k(x*)/rho, (K, *model), for any smooth loss.

    Parameters
    ----------
    problem : Problem
        Of a smooth loss.
    rho : float
        Penalty of progressive hedging, positive.

    Raises
    ------
    ValueError, TypeError
        If rho is not positive.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import hedging_optimum
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> hedging_optimum(problem, rho=1.0)
    array([[3.],
           [1.]])
    """
    instance("hedging_optimum: problem", problem, Problem)
    rho = real("rho", rho, low=0.0, strict=True)
    w = problem.solve().w
    return np.asarray(w + problem.client_gradients(w) / rho)


def hedging_round(problem: Problem, *, rho: float) -> Affine:
    """Return the round on least squares as an exact affine map of s, flat (K d,): s <- s + P(2x - s) - x.

    Parameters
    ----------
    problem : Problem
        Least squares.
    rho : float
        Penalty of progressive hedging, positive.

    Raises
    ------
    ValueError, TypeError
        If rho is not positive.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import hedging_round
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> map = hedging_round(problem, rho=1.0)
    >>> map.limit(), map.rate
    (array([3., 1.]), 0.5)
    """
    rho = real("rho", rho, low=0.0, strict=True)
    q = quadratic(problem)
    K, d = q.b.shape

    def step(s: Any, b: np.ndarray) -> np.ndarray:
        x = np.linalg.solve(rho * np.eye(d) + q.H, (rho * s + b)[..., None])[..., 0]
        return np.asarray(s + np.tensordot(q.p, 2.0 * x - s, 1) - x)

    units = np.eye(K * d).reshape(-1, K, d)
    matrix = np.array([step(unit, 0.0 * q.b).ravel() for unit in units]).T
    return Affine(matrix, step(np.zeros((K, d)), q.b).ravel())


class Cycle(NamedTuple):
    """Where SAM ends on a quadratic: at w* + direction and w* - direction in turn.

    Attributes
    ----------
    direction : array (d,)
        From w* to one of the two ends; an eigenvector of the largest curvature l.
    radius : float
        Its length, eta l r/(2 - eta l).
    excess : float
        F - F* at both ends, l radius^2/2.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import sam_cycle
    >>> problem = Problem(Federation.from_clients([([[1.0]], [3.0])]), Squared())
    >>> cycle = sam_cycle(problem, step_size=1.0, rho=0.5)
    >>> cycle.radius, cycle.excess
    (0.5, 0.125)
    """

    direction: np.ndarray  # (d,) of length ‖w - w*‖
    radius: float  # eta l r/(2 - eta l)
    excess: float  # F(w) - F* = l radius^2/2


def sam_cycle(problem: Problem, *, step_size: float, rho: float) -> Cycle:
    """Return the cycle in which SAM ends on a least-squares problem of one client.

    Parameters
    ----------
    problem : Problem
        Least squares of one client.
    step_size : float
        eta, positive, below 2/l.
    rho : float
        r, the radius of SAM's perturbation, at least 0.

    Raises
    ------
    AssumptionError
        If there are several clients, the loss is not Squared, or eta l >= 2.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.round_maps import sam_cycle
    >>> problem = Problem(Federation.from_clients([([[1.0]], [3.0])]), Squared())
    >>> sam_cycle(problem, step_size=1.0, rho=0.5).radius
    0.5
    """
    eta, r = real("step_size", step_size, low=0.0, strict=True), real("rho", rho, low=0.0)
    q = quadratic(problem)
    h, V = np.linalg.eigh(q.H[0])
    top = float(h[-1])
    require(
        "SAM's cycle",
        Hypothesis("one client", f"{len(q.p)} clients", len(q.p) == 1),
        Hypothesis("step_size < 2/l", f"step_size = {eta:g}, l = {top:g}", eta * top < 2.0),
    )
    length = eta * top * r / (2.0 - eta * top)
    return Cycle(length * V[:, -1], length, 0.5 * top * length * length)
