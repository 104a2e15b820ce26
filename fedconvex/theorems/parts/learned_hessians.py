"""What bounds the Hessians that FedNL's server has learned: how far they are from true ones, in Frobenius norm."""

from __future__ import annotations

import math

import numpy as np

from fedconvex.constants.similarity import gram
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theory.bound import Hypothesis, require


def shrinking(s: Setting) -> float:
    """Return delta of FedNL's compressor for the problem's Hessians."""
    return float(s.method.compressor.delta(int(np.prod(s.problem.model_shape))))


def hessians_at(problem: Problem, w: np.ndarray) -> np.ndarray:
    """Return hess f_k(w) of all clients (K, d, d)."""
    K = problem.federation.K
    return np.asarray(problem.client_derivatives(w[None], np.arange(K)[None]).hessians[0])


def mean_norm(problem: Problem, A: np.ndarray) -> float:
    """Return sum_k p_k ‖A_k‖_F of matrices (K, d, d)."""
    return float(problem.weights @ np.linalg.norm(A, axis=(1, 2)))


def start_error(s: Setting, at: np.ndarray) -> float:
    """Return sum_k p_k ‖H_k - hess f_k(at)‖_F of the H_k that a run starts with."""
    true = hessians_at(s.problem, at)
    learned = hessians_at(s.problem, s.start) if s.method.exact_start else 0.0
    return mean_norm(s.problem, learned - true)


def lipschitz(theorem: str, problem: Problem) -> float:
    """Return L_H, the mean of the clients' Lipschitz constants of Hessians in Frobenius norm.

    Those of sum l''(x'w) x x' are at most the mean of max |l'''| ‖x‖^3.

    Raises
    ------
    AssumptionError
        If the loss has several scores, or no third derivative that is bounded.
    """
    kind, fed = traits(problem.loss), problem.federation
    third = math.inf if kind.several else kind.third_derivative
    text = "a loss of one score with a bounded third derivative"
    require(theorem, Hypothesis(text, f"{problem.loss!r}, {third:g}", math.isfinite(third)))
    cubes = fed.row_norms2**1.5
    each = [float(np.mean(problem.weigh(k, cubes[fed.ptr[k] : fed.ptr[k + 1]]))) for k in range(fed.K)]
    return third * float(problem.weights @ each)


def largest_error(theorem: str, s: Setting) -> float:
    """Return what sum_k p_k ‖hess f_k(w) - H_k‖_F never exceeds along a run: max{E_k, S_k/(alpha (1 - q))}, averaged.

    Hessians of f_k lie between l2 and l2 + M_k, so their differences have moduli of eigenvalues below those of M_k, on
    either side: S_k = sqrt(2) ‖M_k‖_F, or 0 for squared loss.

    Raises
    ------
    AssumptionError
        If the loss has several scores, or no bounded curvature.
    """
    kind, problem, m = traits(s.problem.loss), s.problem, s.method
    bounded = not kind.several and kind.curved and math.isfinite(kind.smoothness)
    require(theorem, Hypothesis("a loss of one score with a bounded curvature", f"{problem.loss!r}", bounded))
    learn = float(m.alpha) * (1.0 - math.sqrt(1.0 - shrinking(s)))
    first = hessians_at(problem, s.start) * (0.0 if m.exact_start else 1.0)
    total = 0.0
    for k, share in enumerate(problem.weights):
        spread = 0.0 if kind.quadratic else math.sqrt(2.0) * kind.smoothness * float(np.linalg.norm(gram(problem, k)))
        total += float(share) * max(float(np.linalg.norm(first[k])), spread / learn)
    return total
