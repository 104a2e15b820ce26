"""Exact second moments of SVRG's stages on least squares.

Setting. P(w) = (1/n) sum_i psi_i(w) with Hessians A_i of the rows and A of P; steps w <- w - eta v on fresh batches of
b rows, v = grad psi_b(w) - grad psi_b(w~) + grad P(w~); the next w~ is drawn uniformly from the first m iterates.

Statement. With e = w - w*, e~ = w~ - w*, M = I - eta A, C_i = A_i - A and phi the batch factor, exactly,

    e <- M e - eta (A_b - A)(e - e~),
    E[e e'] <- M E[e e'] M' + eta^2 phi mean_i C_i E[(e - e~)(e - e~)'] C_i,    E[e e~'] <- M E[e e~'],

both E[e~ e~'] at the start of a stage; labels drop out. The mean over t < m of E[e e'] is linear in E[e~ e~'], and
sum_{t < m} K^t of the linear map K above is found by doubling. E P(w~) - P* = tr(A E[e~ e~'])/2.

Source. Derived in this project. No convexity is needed, and no bound on the step.
"""

from __future__ import annotations

import numpy as np

from fedconvex._check import array, bad, instance, real, whole, wrong_type
from fedconvex.constants import noise_factor
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem

LARGEST = 10  # features: matrices of order 3 d^2 are multiplied


def stage_suboptimality(
    problem: Problem,
    start: np.ndarray,
    *,
    step_size: float,
    inner_steps: int,
    stages: int,
    batch_size: int = 1,
    replacement: bool = False,
) -> np.ndarray:
    """Return E P(w~_s) - P* after s = 0, ..., ``stages`` stages of SVRG with option II, (stages + 1,); inf on overflow.

    Parameters
    ----------
    problem : Problem
        With squared loss, no penalty, at most 10 features and rows that weigh 1/n each.
    start : array (d,)
        w~_0.
    step_size, inner_steps, stages, batch_size, replacement
        As for `fedconvex.methods.SVRG`.

    Raises
    ------
    TypeError, ValueError
        If the loss is not squared, there are a penalty or more features, or rows weigh other than 1/n.

    Examples
    --------
    One parabola and steps of one half: the iterates are 1, 1/2 and 1/4, their values 1/2, 1/8 and 1/32.

    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.moments import stage_suboptimality
    >>> problem = Problem(Federation.from_arrays([[1.0]], [0.0], [0]), Squared())
    >>> stage_suboptimality(problem, [1.0], step_size=0.5, inner_steps=3, stages=1)
    array([0.5    , 0.21875])
    """
    _check(problem)
    eta = real("stage_suboptimality: step_size", step_size, low=0.0)
    m = whole("stage_suboptimality: inner_steps", inner_steps, low=1)
    fed, d = problem.federation, problem.federation.d
    H, C = _hessians(fed.X.toarray() if fed.is_sparse else fed.X)
    A = H + np.diag(np.broadcast_to(problem.ridge, (d,)))
    phi = float(noise_factor(fed.n, whole("stage_suboptimality: batch_size", batch_size, low=1), replacement))
    one, step = np.eye(d * d), np.zeros((3, d * d, 3, d * d))  # of E[ee'], E[ee~'], E[e~e~'], flattened
    with np.errstate(over="ignore", invalid="ignore"):  # of steps that are too long
        M = np.eye(d) - eta * A
        noise = eta * eta * phi * np.einsum("nij,nkl->ikjl", C, C).reshape(d * d, d * d) / fed.n
        step[0, :, 0], step[0, :, 1], step[0, :, 2] = np.kron(M, M) + noise, -noise - _turned(noise, d), noise
        step[1, :, 1], step[2, :, 2] = np.kron(M, np.eye(d)), one
        mean = _sum_of_powers(step.reshape(3 * d * d, -1), m)[: d * d] @ np.tile(one, (3, 1)) / m
    e = array("stage_suboptimality: start", start, problem.model_shape) - problem.solve().w
    S, out = np.outer(e, e).ravel(), []
    for _ in range(whole("stage_suboptimality: stages", stages, high=100_000) + 1):
        out.append(0.5 * float(A.ravel() @ S))
        with np.errstate(over="ignore", invalid="ignore"):
            S = mean @ S
    return np.where(np.isnan(out), np.inf, out)


def _check(problem: Problem) -> None:
    """Raise if the problem's moments do not close, or SVRG does not run on it."""
    instance("stage_suboptimality: problem", problem, Problem)
    fed = problem.federation
    if not traits(problem.loss).quadratic or problem.penalty is not None:
        got = f"{problem.loss!r}, penalty {problem.penalty!r}"
        raise wrong_type("stage_suboptimality: problem", "have squared loss and no penalty", got)
    equal = fed.sample_weight is None and bool(np.abs(problem.weights - fed.sizes / fed.n).max() <= 1e-9)
    if fed.d > LARGEST or not equal:
        got = f"{fed.d} features" + ", weights of rows or clients" * (not equal)
        raise bad("stage_suboptimality: problem", f"have at most {LARGEST} features and rows that weigh 1/n each", got)


def _hessians(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of x x' over rows, and every row's difference from it."""
    H = X.T @ X / len(X)
    return H, X[:, :, None] * X[:, None, :] - H


def _turned(noise: np.ndarray, d: int) -> np.ndarray:
    """Return the map applied to the transpose of its argument."""
    return noise.reshape(d * d, d, d).transpose(0, 2, 1).reshape(d * d, d * d)


def _sum_of_powers(K: np.ndarray, m: int) -> np.ndarray:
    """Return I + K + ... + K^(m-1)."""
    total, power = np.zeros_like(K), np.eye(len(K))
    for bit in bin(m)[2:]:  # total of j powers and K^j; j -> 2 j, or 2 j + 1
        total, power = total + power @ total, power @ power
        if bit == "1":
            total, power = total + power, power @ K
    return total
