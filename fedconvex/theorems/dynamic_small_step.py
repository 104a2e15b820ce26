"""Dynamic FedAvg on least squares: the small-step formula of the steady state with its exact remainder."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.problems.protocol import drift_of
from fedconvex.theorems.dynamic_msd import small_step
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts import tracking_formulas as formulas
from fedconvex.theorems.parts.curvatures import hessians
from fedconvex.theorems.parts.tracking import (
    SETTING,
    TrackingConstants,
    agents_of,
    agents_space,
    equal_agents,
    sampled_agents,
    sampling,
    step_of,
    strongly_convex,
    tracking_constants,
)

__all__ = ["STATEMENT", "THEOREMS", "curvature_square", "msd_small_step"]

NAME = "fedconvex, small-step formula with its remainder"
FLAT = 1e-8  # share of the largest eigenvalue below which rounding would move H^-1

STATEMENT = Statement(
    page="dynamic_small_step",
    title="Dynamic FedAvg: the small-step formula",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting=SETTING,
    assumptions="""
Least squares, P strongly convex, all E_k = 1; batches, agents and q_i independent of the past.
""",
    statement="""
H Hessian of P, H_i that of the rows and agents of iteration i, R_s and R_q as in the small-step formula,
    m = (mu/2) tr(H^{-1} R_s) + tr(H^{-1} R_q)/(2 mu),
    M = E[H_i H^{-1} H_i] = H + (1/L) mean_k {tau_s,k C_k + tau_eps (H_k - H) H^{-1} (H_k - H)},
    C_k = mean_n (x_n'H^{-1} x_n) x_n x_n' - S_k H^{-1} S_k, S_k = mean_n x_n x_n' over the rows of agent k.

Identity  If mu lambda_max(M) < 2, a steady state exists, and its covariance S has tr S = m + (mu/2) tr(M S).
Bounds    m/(1 - mu lambda_min(M)/2) <= lim E‖e_i‖^2 <= m/(1 - mu lambda_max(M)/2).
""",
    source="""
Identity, remainder and bounds: this project. Formula: Rizk, Vlaski, Sayed, "Dynamic federated learning",
arXiv:2002.08782, and the literature on adaptation print it to first order.
""",
    differs="""
Nothing is neglected: to first order only m is left.
""",
    meaning="""
The [formula to first order](dynamic_msd.md) is never above the truth, and below it by at most the share μλ_max(M)/2.
With one feature λ_min(M) = λ_max(M), and the steady state is known. Unlike version R it has the matrices of noise and
drift: what drifts along directions of large curvature counts less.
""",
    proof="""
With E_k = 1, e_i = (I - μH_i)e_{i-1} + μg_i + q_i, where g_i is the gradient of iteration i at w°, of mean zero and
covariance R_s. (H_i, g_i), q_i and e_{i-1} are independent and E H_i = H: E e_i = (I - μH)E e_{i-1} tends to 0, and
with it the mixed terms of e and g. In the limit S = E[(I - μH_i)S(I - μH_i)] + μ²R_s + R_q, that is

    HS + SH = μR_s + R_q/μ + μE[H_iSH_i].

Multiply by H⁻¹/2 and take traces: tr S = m + (μ/2)tr(E[H_iH⁻¹H_i]S), and λ_min(M)tr S ≤ tr(MS) ≤ λ_max(M)tr S.

*Existence.* v = tr(H⁻¹S_i) changes by -2μ tr S_{i-1} + μ²tr(MS_{i-1}) + const ≤ -μ(2 - μλ_max(M))tr S_{i-1} + const,
and tr S ≥ νv: the linear map of the covariances contracts.

*M.* H_i is a mean over L agents drawn without replacement of means over batches drawn without replacement; the two
variances are those of the [noise identity](dynamic_noise.md), with A ↦ E[(H_i - H)A(H_i - H)] in the place of squares.
The ridge drops out of differences. ∎
""",
    loose="""
Attained where M is a multiple of the identity, as with one feature; else by λ_max(M) over its mean along S, times μ/2.
""",
)


def curvature_square(problem: Problem, **agents: Any) -> np.ndarray:
    """Return M = E[H_i H^{-1} H_i] of one iteration's random Hessian H_i on least squares, (d, d).

    Parameters
    ----------
    problem : Problem
        Squared loss, equal client weights.
    participation, batch_size, local_steps : int, int or array (K,), optional
        As for `fedconvex.theorems.parts.tracking.sampling`.

    Raises
    ------
    AssumptionError
        If the loss is not Squared, weights are unequal, or P is hardly strongly convex or not at all.

    Examples
    --------
    Rows 1 and 2, H = 5/2; one row at a time: E H_i^2/H = (1 + 16)/2 / (5/2).

    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_small_step import curvature_square
    >>> problem = Problem(Federation.from_clients([([[1.0], [2.0]], [1.0, 2.0])]), Squared())
    >>> round(float(curvature_square(problem, batch_size=1)[0, 0]), 12)
    3.4
    """
    instance("curvature_square: problem", problem, Problem)
    if not problem.traits.quadratic:
        raise AssumptionError(f"{NAME} does not apply: needs a problem of least squares, got {problem.loss!r}")
    equal_agents(NAME, problem)
    fed, s = problem.federation, sampling(problem.federation.sizes, **agents)
    H_k = hessians(problem, np.ones(fed.n))
    H = H_k.mean(axis=0)
    spectrum = np.linalg.eigvalsh(H)
    text = f"P strongly convex, least over largest eigenvalue at least {FLAT:g}"
    regular = bool(spectrum[0] > FLAT * spectrum[-1])
    require(NAME, Hypothesis(text, f"{spectrum[0]:g} and {spectrum[-1]:g}", regular))
    inverse, ridge = np.linalg.inv(H), problem.ridge * np.eye(fed.d)
    M = np.zeros_like(H)
    for k in range(fed.K):
        X, S = fed.client_rows(k)[0], H_k[k] - ridge
        weighted = problem.weigh(k, X)
        sizes = np.einsum("ni,ij,nj->n", X, inverse, X)
        own = (weighted.T * sizes) @ weighted / len(X) - S @ inverse @ S
        M += (s.tau_1[k] * own + s.tau_eps * (H_k[k] - H) @ inverse @ (H_k[k] - H)) / fed.K
    return np.asarray(H + M / s.L)


def msd_small_step(
    constants: TrackingConstants,
    square: Any,
    *,
    step_size: float,
    drift_covariance: Any,
    **agents: Any,
) -> Bound:
    """Return the upper bound of the limit of E‖e_i‖^2: the small-step formula over 1 - mu lambda_max(M)/2.

    Parameters
    ----------
    constants : TrackingConstants
        With hessian, covariance_k and gradient_k.
    square : array (d, d)
        M, as `curvature_square` gives it.
    step_size : float
        mu.
    drift_covariance : array (d, d)
        R_q = E q q'.
    participation, batch_size, local_steps
        As for `curvature_square`; local_steps must be 1.

    Raises
    ------
    AssumptionError
        If an agent does more than one step, or mu lambda_max(M) >= 2.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_small_step import curvature_square, msd_small_step
    >>> from fedconvex.theorems.parts.tracking import tracking_constants
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> constants, M = tracking_constants(problem), curvature_square(problem, participation=1)
    >>> bound = msd_small_step(constants, M, step_size=0.5, drift_covariance=[[0.25]], participation=1)
    >>> round(bound.value, 12)  # e <- e/2 ± 1/2 + q: (1/4 + 1/4)/(1 - 1/4)
    0.666666666667
    """
    instance("msd_small_step: constants", constants, TrackingConstants)
    mu = real("step_size", step_size, low=0.0, strict=True)
    requires = strongly_convex(NAME, constants)
    m = small_step(constants, step_size=mu, drift_covariance=drift_covariance, **agents)
    assert constants.hessian is not None  # small_step has asked
    M = array("square", square, constants.hessian.shape)
    E, share = sampling(constants.sizes, **agents).E, 0.5 * mu * float(np.linalg.eigvalsh(0.5 * (M + M.T))[-1])
    requires += require(
        NAME,
        Hypothesis("one local step each", f"{E.max():g}", bool(np.all(E == 1.0))),
        Hypothesis("step_size lambda_max(M) < 2", f"{2.0 * share:g}", share < 1.0),
    )
    terms = {"noise": m.noise / (1.0 - share), "tracking": m.tracking / (1.0 - share)}
    return Bound(terms, STEADY_STATE_MSD, NAME, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    agents, p = agents_of(s), s.problem
    moves = drift_of(p)
    R_q = np.zeros((p.size, p.size)) if moves is None else moves
    given = {"constants": tracking_constants(p), "square": curvature_square(p, **agents), "drift_covariance": R_q}
    return Reading(given | {"step_size": step_of(s), **agents})


def _one_step(share: float, **settings: Any) -> Any:
    return sampled_agents(share=share, local_steps=1, **settings)


THEOREMS = (
    Theorem(
        name="dynamic-steady-state-small-step",
        title="Dynamic FedAvg, small-step formula",
        quantity=STEADY_STATE_MSD,
        bound=msd_small_step,
        formula=formulas.small_step(),
        read=_read,
        statement=STATEMENT,
        says="The steady state is the small-step formula over 1 - θ, θ between μλ_min(M)/2 and μλ_max(M)/2.",
        loose="Attained with one feature; else the largest eigenvalue of M in the place of a mean.",
        method=_one_step(0.5),
        space=agents_space(most=1),
        drift=1e-4,
        checks=(
            unequal_hessians,
            diabetes,
            Check(mean_estimation, _one_step(0.5)),
            Check(diabetes, _one_step(0.02, batch_size=None)),
            Check(diabetes, sampled_agents(share=0.1)),  # several local steps
        ),
    ),
)
