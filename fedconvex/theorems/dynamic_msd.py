"""Dynamic FedAvg: noise lemmas, mean-square deviation and small-step formula of Rizk, Vlaski and Sayed (2020).

Setting
    K agents of equal weight, P = (1/K) sum P_k, P_k(w) = mean of Q(w; x) over the N_k rows of agent k. Iteration i: L
    agents, uniform without replacement, do E_k steps of size mu/E_k with fresh mini-batches of B_k rows (without
    replacement) from w_{i-1}; the server averages. The minimiser moves, w_i^o = w_{i-1}^o + q_i, q_i of mean zero,
    independent of the past, E‖q_i‖^2 = sigma_q^2; losses of iteration i are those with minimiser w_{i-1}^o. Error
    e_i = w_i^o - w_i; w_i = w_{i-1} - mu grad P(w_{i-1}) - mu s_i - mu d_i with gradient noise s_i (who takes part,
    which rows) and incremental noise d_i (gradients taken at local iterates instead of w_{i-1}).
Assumptions
    P is nu-strongly convex and delta_P-smooth; every row loss of agent k is convex and delta_k-smooth, P_k is
    delta_{P,k}-smooth; delta = max delta_k; V_k(w^o) and ‖grad P_k(w^o)‖ do not change with time.
Statement
    tau_s,k = (N_k - B_k)/((N_k - 1) B_k E_k), tau'_k = E_k tau_s,k, tau_eps = (K - L)/(K - 1),
    a_k = ((E_k - 1)/(2 E_k))^2, V_k = variance of one row's gradient.

    Identity  E[‖s‖^2 | w] = (1/(KL)) sum {tau_s,k V_k(w) + tau_eps ‖grad P_k(w) - grad P(w)‖^2}.
    Lemma     <= beta_s^2 ‖e‖^2 + sigma_s^2 + eps^2 with beta_s^2 = (1/(KL)) sum (6 tau_s,k + 2 tau_eps) delta^2,
              sigma_s^2 = (3/(KL)) sum tau_s,k V_k(w^o), eps^2 = (2/(KL)) sum tau_eps ‖grad P_k(w^o)‖^2; sharper with 2
              for 6 and 2 for 3.
    Lemma     mu/E_k <= 2/delta_k: E[‖d‖^2 | w] <= (mu^2/K) sum a_k kappa_k (‖grad P_k(w)‖^2 + tau'_k V_k(w)),
              kappa_k = delta_k delta_{P,k}.
    MSD, P    gamma = max{|1 - mu nu|, |1 - mu delta_P|}, t in (0, 1), lambda = (gamma^2 + mu^2 beta_s^2)/(1 - t)
              + mu^4 beta_d^2/t < 1: limsup E‖e_i‖^2 <= [mu^2 (sigma_s^2 + eps^2)/(1 - t) + mu^4 sigma_d^2/t
              + sigma_q^2]/(1 - lambda).
    MSD, R    A = 2 mu - mu^2 (delta_P + c_s) > 0, A/(1 - t) >= mu^4 c_d/t, lambda = (1 - nu A)/(1 - t)
              + nu mu^4 c_d/t < 1: limsup <= [mu^2 S/(1 - t) + mu^4 S_d/t + sigma_q^2]/(1 - lambda).
    Both give E‖e_i‖^2 <= lambda^i E‖e_0‖^2 + (1 - lambda^i) limsup. With every E_k = 1, t -> 0.
    Small mu  limit of E‖e_i‖^2 = (mu/2) tr(H^{-1} R_s) + tr(H^{-1} R_q)/(2 mu) to first order, H = Hessian of P,
              R_s = (1/L)[mean_k tau_s,k C_k + tau_eps mean_k g_k g_k'], C_k row-gradient covariance and g_k gradient at
              w^o.
Source
    Rizk, Vlaski, Sayed, "Dynamic federated learning", arXiv:2002.08782: form of the first lemma and of the MSD (its
    exact wording was not available). Identity, second lemma, constants, both MSD bounds and the small-step formula:
    this project, docs/theory/dynamic.md.
What differs
    Slides of the paper print tau_eps^2 in eps^2: false, see docs/theory/errata.md. Version R uses expected smoothness
    instead of delta^2 and is informative where version P is vacuous. a_k is attained by one agent with full batches as
    mu -> 0; averaging squares instead of norms over the local steps would give (E_k - 1)(2 E_k - 1)/(6 E_k^2), larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import real, whole
from fedconvex.constants import noise_factor
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theory.bound import (
    GRADIENT_NOISE,
    INCREMENTAL_NOISE,
    MEAN_SQUARE_DEVIATION,
    STEADY_STATE_MSD,
    AssumptionError,
    Bound,
    Hypothesis,
    require,
)

__all__ = [
    "SmallStep",
    "TrackingConstants",
    "client_moments",
    "gradient_noise",
    "gradient_noise_paper",
    "gradient_noise_sharp",
    "incremental_noise",
    "incremental_noise_at",
    "msd_paper",
    "msd_refined",
    "optimal_step",
    "small_step",
    "tracking_constants",
]

SOURCE = "Rizk, Vlaski, Sayed 2020, arXiv:2002.08782"


@dataclass(frozen=True, kw_only=True)
class TrackingConstants:
    """What the theorems on Dynamic FedAvg need to know of a problem; from `tracking_constants` or by hand.

    Attributes
    ----------
    nu, delta_P : float
        Strong convexity and smoothness of P.
    delta_k, delta_P_k : array (K,)
        Smoothness of the roughest row loss of agent k, and of P_k.
    sizes : array (K,)
        Rows N_k.
    variance_k, gradient2_k : array (K,)
        V_k(w^o) = mean ‖grad Q - grad P_k‖^2 over rows, and ‖grad P_k(w^o)‖^2.
    hessian, covariance_k, gradient_k : array (d, d), (K, d, d), (K, d), optional
        H, C_k and g_k of the small-step formula, at w^o.
    """

    nu: float
    delta_P: float
    delta_k: np.ndarray
    delta_P_k: np.ndarray
    sizes: np.ndarray
    variance_k: np.ndarray
    gradient2_k: np.ndarray
    hessian: np.ndarray | None = None
    covariance_k: np.ndarray | None = None
    gradient_k: np.ndarray | None = None

    @property
    def K(self) -> int:
        """Number of agents."""
        return int(np.size(self.sizes))

    @property
    def delta(self) -> float:
        """Smoothness of the roughest row loss of all."""
        return float(np.max(self.delta_k))


class SmallStep(NamedTuple):
    """First-order steady state: an approximation, not a bound."""

    value: float  # noise + tracking
    noise: float  # (mu/2) tr(H^{-1} R_s)
    tracking: float  # tr(H^{-1} R_q)/(2 mu)


class _Sampling(NamedTuple):
    L: int
    tau_eps: float
    tau_s: np.ndarray  # (K,)
    tau_1: np.ndarray  # (K,) tau'_k
    E: np.ndarray  # (K,)
    a: np.ndarray  # (K,)


def tracking_constants(problem: Problem) -> TrackingConstants:
    """Return the exact constants of least squares with equal client weights.

    Raises
    ------
    AssumptionError
        If the loss is not Squared or the weights are unequal.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_msd import tracking_constants
    >>> fed = Federation.from_clients([([[1.0], [2.0]], [1.0, 2.0]), ([[1.0], [2.0]], [3.0, 6.0])])
    >>> constants = tracking_constants(Problem(fed, Squared()))
    >>> constants.nu, constants.delta, constants.gradient2_k
    (2.5, 4.0, array([6.25, 6.25]))
    """
    if not traits(problem.loss).quadratic:
        raise AssumptionError(f"tracking_constants does not apply: needs the Squared loss, got {problem.loss!r}")
    _equal("tracking_constants", problem)
    fed, w = problem.federation, problem.solve().w
    eye, g = np.eye(fed.d), problem.client_gradients(w)
    H_k, C_k, rows = [], [], []
    for k in range(fed.K):
        lo, hi = int(fed.ptr[k]), int(fed.ptr[k + 1])
        X = fed.X[lo:hi].toarray() if fed.is_sparse else fed.X[lo:hi]
        H_k.append(X.T @ X / (hi - lo) + problem.l2 * eye)
        G = X * (X @ w - fed.y[lo:hi])[:, None]
        G = G - G.mean(axis=0)
        C_k.append(G.T @ G / (hi - lo))
        rows.append(float((X**2).sum(axis=1).max()) + problem.l2)
    H = np.mean(H_k, axis=0)
    spectrum = np.linalg.eigvalsh(H)
    return TrackingConstants(
        nu=max(float(spectrum[0]), 0.0),
        delta_P=float(spectrum[-1]),
        delta_k=np.array(rows),
        delta_P_k=np.array([float(np.linalg.eigvalsh(h)[-1]) for h in H_k]),
        sizes=fed.sizes,
        variance_k=np.array([float(np.trace(C)) for C in C_k]),
        gradient2_k=np.sum(g**2, axis=1),
        hessian=H,
        covariance_k=np.array(C_k),
        gradient_k=g,
    )


def client_moments(problem: Problem, w: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return ‖grad P_k(w)‖^2 and V_k(w), each (K,)."""
    g = problem.client_gradients(w).reshape(problem.federation.K, -1)
    return np.sum(g**2, axis=1), problem.gradient_variance(w)


def gradient_noise(
    problem: Problem, w: Any, *, participation: int | None = None, batch_size: Any = None, local_steps: Any = 1
) -> Bound:
    """Return E[‖s‖^2 | w] exactly, for any loss: an identity, with the shares of data and of agents.

    Parameters
    ----------
    problem : Problem
        Equal client weights.
    w : model
        w_{i-1}.
    participation : int, optional
        L; default all agents.
    batch_size, local_steps : int or array (K,), optional
        B_k (default all rows) and E_k.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_msd import gradient_noise
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> gradient_noise(Problem(fed, Squared()), np.array([2.0]), participation=1).value
    1.0
    """
    _equal("gradient noise identity", problem)
    s = _sampling(problem.federation.sizes, participation, batch_size, local_steps)
    g = problem.client_gradients(w).reshape(problem.federation.K, -1)
    spread = np.sum((g - g.mean(axis=0)) ** 2, axis=1)
    terms = {
        "data variability": float(np.mean(s.tau_s * problem.gradient_variance(w))) / s.L,
        "model variability": s.tau_eps * float(np.mean(spread)) / s.L,
    }
    return Bound(terms, GRADIENT_NOISE, "fedconvex, exact identity (docs/theory/dynamic.md)")


def gradient_noise_paper(
    constants: TrackingConstants,
    distance: float,
    *,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> Bound:
    """Return the lemma as in the paper (factors 6, 3, tau_eps to the first power) at ‖w_{i-1} - w^o‖ = distance."""
    s = _sampling(constants.sizes, participation, batch_size, local_steps)
    return _noise_lemma(f"{SOURCE}, gradient noise lemma", constants, distance, s, 6.0, 3.0)


def gradient_noise_sharp(
    constants: TrackingConstants,
    distance: float,
    *,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> Bound:
    """Return the lemma with factors 2 and 2: the variance of a difference is at most its second moment.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_msd import TrackingConstants, gradient_noise_sharp
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> gradient_noise_sharp(constants, 0.0, participation=1).value
    2.0
    """
    s = _sampling(constants.sizes, participation, batch_size, local_steps)
    return _noise_lemma("fedconvex, sharper gradient noise lemma", constants, distance, s, 2.0, 2.0)


def incremental_noise(
    constants: TrackingConstants, distance: float, *, step_size: float, batch_size: Any = None, local_steps: Any = 1
) -> Bound:
    """Return the form with delta throughout: E‖d‖^2 <= mu^2 (beta_d^2 ‖e‖^2 + sigma_d^2), at ‖e‖ = distance."""
    mu = real("step_size", step_size, low=0.0, strict=True)
    d = real("distance", distance, low=0.0)
    s = _sampling(constants.sizes, None, batch_size, local_steps)
    theorem = "fedconvex, incremental noise lemma, delta form"
    requires = require(theorem, *_nonexpansive(constants, mu, s))
    beta, sigma = _incremental(constants, s)
    terms = {"distance": mu**2 * beta * d**2, "at the optimum": mu**2 * sigma}
    return Bound(terms, INCREMENTAL_NOISE, theorem, requires)


def incremental_noise_at(
    constants: TrackingConstants,
    moments: tuple[np.ndarray, np.ndarray],
    *,
    step_size: float,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> Bound:
    """Return the sharper form, with ‖grad P_k(w)‖^2 and V_k(w) at w_{i-1}, as `client_moments` gives them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_msd import TrackingConstants, incremental_noise_at
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> incremental_noise_at(constants, (one, 0 * one), step_size=0.5, local_steps=2).value
    0.015625
    """
    mu = real("step_size", step_size, low=0.0, strict=True)
    s = _sampling(constants.sizes, None, batch_size, local_steps)
    theorem = "fedconvex, incremental noise lemma"
    requires = require(theorem, *_nonexpansive(constants, mu, s))
    gradient2, variance = moments
    scale = mu**2 * s.a * constants.delta_k * constants.delta_P_k
    terms = {
        "gradients": float(np.mean(scale * gradient2)),
        "data variability": float(np.mean(scale * s.tau_1 * variance)),
    }
    return Bound(terms, INCREMENTAL_NOISE, theorem, requires)


def msd_paper(
    constants: TrackingConstants,
    *,
    step_size: float,
    drift2: float,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
    t: float | None = None,
    rounds: int | None = None,
    start2: float | None = None,
) -> Bound:
    """Return version P of the mean-square deviation: the paper's three terms, with delta^2 throughout.

    Parameters
    ----------
    constants : TrackingConstants
    step_size : float
        mu; a local step is mu/E_k.
    drift2 : float
        sigma_q^2 = E‖q_i‖^2, the trace.
    participation, batch_size, local_steps : int, int or array (K,)
        L (default everybody), B_k (default all rows), E_k.
    t : float, optional
        Young's parameter in (0, 1); default 1 - gamma, or the limit 0 where every E_k = 1.
    rounds, start2 : int, float, optional
        With both: the bound of E‖e_i‖^2 at i = rounds from E‖e_0‖^2 = start2; otherwise the limsup.

    Raises
    ------
    AssumptionError
        If a step size condition fails, or lambda >= 1: the bound is vacuous.
    """
    mu, q2 = real("step_size", step_size, low=0.0, strict=True), real("drift2", drift2, low=0.0)
    s = _sampling(constants.sizes, participation, batch_size, local_steps)
    theorem = f"{SOURCE}, MSD, version P"
    gamma = max(abs(1.0 - mu * constants.nu), abs(1.0 - mu * constants.delta_P))
    requires = _strongly_convex(theorem, constants) + require(theorem, *_nonexpansive(constants, mu, s))
    limit = f"step_size = {mu:g}, 2/delta_P = {2.0 / constants.delta_P:g}"
    requires += require(theorem, Hypothesis("step_size < 2/delta_P", limit, gamma < 1.0))
    beta_s, sigma_s, eps = _noise_constants(constants, s, 6.0, 3.0)
    beta_d, sigma_d = _incremental(constants, s)
    if s.a.any():
        young = 1.0 - gamma if t is None else real("t", t, low=0.0, high=1.0, strict=True)
        lam = (gamma**2 + mu**2 * beta_s) / (1.0 - young) + mu**4 * beta_d / young if young < 1.0 else math.inf
        last = mu**4 * sigma_d / young
    else:
        young, lam, last = 0.0, gamma**2 + mu**2 * beta_s, 0.0
    shares = {
        "data variability": mu**2 * sigma_s / (1.0 - young) if young < 1.0 else math.inf,
        "model variability": mu**2 * eps / (1.0 - young) if young < 1.0 else math.inf,
        "incremental": last,
        "tracking": q2,
    }
    return _recursion(theorem, lam, shares, requires, rounds, start2)


def msd_refined(
    constants: TrackingConstants,
    *,
    step_size: float,
    drift2: float,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
    rounds: int | None = None,
    start2: float | None = None,
) -> Bound:
    """Return version R of the mean-square deviation, minimised over Young's t on a logarithmic grid.

    Parameters as `msd_paper`. Any t of the grid gives a valid bound, so the grid costs tightness only.

    Raises
    ------
    AssumptionError
        If a step size condition fails, or lambda >= 1 for every t: the bound is vacuous.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_msd import TrackingConstants, msd_refined
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=0 * one
    ... )
    >>> round(msd_refined(constants, step_size=0.5, drift2=0.75).value, 12)
    1.0
    """
    mu, q2 = real("step_size", step_size, low=0.0, strict=True), real("drift2", drift2, low=0.0)
    s = _sampling(constants.sizes, participation, batch_size, local_steps)
    theorem = "fedconvex, MSD, version R (form of Rizk, Vlaski, Sayed 2020)"
    requires = _strongly_convex(theorem, constants) + require(theorem, *_nonexpansive(constants, mu, s))
    c = constants
    c_s = 2.0 / s.L * float(np.max(s.tau_s * c.delta_k + s.tau_eps * c.delta_P_k))
    A = 2.0 * mu - mu**2 * (c.delta_P + c_s)
    text = f"step_size = {mu:g}, 2/(delta_P + c_s) = {2.0 / (c.delta_P + c_s):g}"
    requires += require(theorem, Hypothesis("step_size < 2/(delta_P + c_s)", text, A > 0.0))
    c_d = 2.0 * float(np.max(s.a * c.delta_k * c.delta_P_k * (c.delta_P_k + s.tau_1 * c.delta_k)))
    _, sigma_s, eps = _noise_constants(c, s, 2.0, 2.0)
    S_d = 2.0 * float(np.mean(s.a * c.delta_k * c.delta_P_k * (c.gradient2_k + s.tau_1 * c.variance_k)))
    ts = np.logspace(-9.0, -1e-3, 2000) if s.a.any() else np.zeros(1)
    inverse = 1.0 / ts if s.a.any() else np.zeros(1)
    lam = (1.0 - c.nu * A) / (1.0 - ts) + c.nu * mu**4 * c_d * inverse
    lam = np.where(A / (1.0 - ts) >= mu**4 * c_d * inverse, lam, np.inf)
    if lam.min() < 1.0:
        noise = mu**2 * (sigma_s + eps) / (1.0 - ts) + mu**4 * S_d * inverse + q2
        level = np.where(lam < 1.0, noise / np.maximum(1.0 - lam, 1e-300), np.inf)
        if rounds is not None and start2 is not None:
            power = np.minimum(lam, 1.0) ** rounds
            level = np.where(lam < 1.0, power * start2 + (1.0 - power) * np.where(lam < 1.0, level, 0.0), np.inf)
        best = int(np.argmin(level))
    else:
        best = int(np.argmin(lam))
    shares = {
        "data variability": mu**2 * sigma_s / (1.0 - ts[best]),
        "model variability": mu**2 * eps / (1.0 - ts[best]),
        "incremental": mu**4 * S_d * inverse[best],
        "tracking": q2,
    }
    return _recursion(theorem, float(lam[best]), shares, requires, rounds, start2)


def small_step(
    constants: TrackingConstants,
    *,
    step_size: float,
    drift_covariance: Any,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> SmallStep:
    """Return the steady-state deviation to first order in the step size; not a bound.

    Parameters
    ----------
    constants : TrackingConstants
        With hessian, covariance_k and gradient_k.
    step_size : float
        mu.
    drift_covariance : array (d, d)
        R_q = E q q'.
    participation, batch_size, local_steps : int, int or array (K,)
        L, B_k, E_k.
    """
    mu = real("step_size", step_size, low=0.0, strict=True)
    noise, tracking = _traces(constants, drift_covariance, participation, batch_size, local_steps)
    return SmallStep(0.5 * mu * noise + 0.5 * tracking / mu, 0.5 * mu * noise, 0.5 * tracking / mu)


def optimal_step(
    constants: TrackingConstants,
    *,
    drift_covariance: Any,
    participation: int | None = None,
    batch_size: Any = None,
    local_steps: Any = 1,
) -> float:
    """Return sqrt(tr(H^{-1} R_q)/tr(H^{-1} R_s)), the step size that minimises `small_step`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_msd import optimal_step, small_step, tracking_constants
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> constants = tracking_constants(Problem(fed, Squared()))
    >>> optimal_step(constants, drift_covariance=[[0.01]], participation=1)
    0.1
    >>> round(small_step(constants, step_size=0.1, drift_covariance=[[0.01]], participation=1).value, 12)
    0.1
    """
    noise, tracking = _traces(constants, drift_covariance, participation, batch_size, local_steps)
    require("optimal step", Hypothesis("gradient noise", f"tr(H^-1 R_s) = {noise:g}", noise > 0.0))
    return math.sqrt(tracking / noise)


# ---------------------------------------------------------------- inner workings


def _sampling(sizes: np.ndarray, participation: int | None, batch_size: Any, local_steps: Any) -> _Sampling:
    n = np.asarray(sizes, dtype=float)
    K = n.size
    L = K if participation is None else whole("participation", participation, low=1, high=K)
    B = n if batch_size is None else np.broadcast_to(np.asarray(batch_size, dtype=float), (K,))
    E = np.broadcast_to(np.asarray(local_steps, dtype=float), (K,))
    fits = f"batch_size from {B.min():g} to {B.max():g}, fewest rows {n.min():g}"
    require(
        "Dynamic FedAvg",
        Hypothesis("1 <= batch_size <= rows of every client", fits, bool(np.all((B >= 1) & (B <= n)))),
        Hypothesis(
            "local_steps whole and positive", f"{E.min():g} at least", bool(np.all((E >= 1) & (E == E.round())))
        ),
    )
    phi = np.asarray(noise_factor(n, B, False))
    tau_eps = (K - L) / (K - 1) if K > 1 else 0.0
    return _Sampling(L, tau_eps, phi / E, phi, E, ((E - 1.0) / (2.0 * E)) ** 2)


def _equal(theorem: str, problem: Problem) -> None:
    p = problem.weights
    text = 'equal client weights (Problem(..., weights="uniform"))'
    numbers = f"weights from {p.min():g} to {p.max():g}"
    require(theorem, Hypothesis(text, numbers, bool(np.ptp(p) <= 1e-12 * p.max())))


def _strongly_convex(theorem: str, c: TrackingConstants) -> tuple[Hypothesis, ...]:
    return require(theorem, Hypothesis("P nu-strongly convex, nu > 0", f"nu = {c.nu:g}", c.nu > 0.0))


def _nonexpansive(c: TrackingConstants, mu: float, s: _Sampling) -> tuple[Hypothesis, ...]:
    """mu/E_k <= 2/delta_k where an agent does more than one step."""
    excess = np.where(s.E > 1, mu / s.E * c.delta_k, 0.0)
    k = int(np.argmax(excess))
    text = f"step_size/E_k = {mu / s.E[k]:g}, 2/delta_k = {2.0 / c.delta_k[k]:g} at client {k}"
    return (Hypothesis("step_size/E_k <= 2/delta_k where E_k > 1", text, bool(excess[k] <= 2.0)),)


def _noise_constants(c: TrackingConstants, s: _Sampling, six: float, three: float) -> tuple[float, float, float]:
    """beta_s^2, sigma_s^2, eps^2."""
    beta = float(np.mean(six * s.tau_s + 2.0 * s.tau_eps)) * c.delta**2 / s.L
    return (
        beta,
        three * float(np.mean(s.tau_s * c.variance_k)) / s.L,
        2.0 * s.tau_eps * float(np.mean(c.gradient2_k)) / s.L,
    )


def _noise_lemma(theorem: str, c: TrackingConstants, distance: float, s: _Sampling, six: float, three: float) -> Bound:
    d = real("distance", distance, low=0.0)
    beta, sigma, eps = _noise_constants(c, s, six, three)
    terms = {"distance": beta * d**2, "data variability": sigma, "model variability": eps}
    return Bound(terms, GRADIENT_NOISE, theorem)


def _incremental(c: TrackingConstants, s: _Sampling) -> tuple[float, float]:
    """beta_d^2, sigma_d^2."""
    beta = 2.0 * c.delta**4 * float(np.mean(s.a * (1.0 + s.tau_1)))
    return beta, 2.0 * c.delta**2 * float(np.mean(s.a * (c.gradient2_k + s.tau_1 * c.variance_k)))


def _recursion(
    theorem: str,
    lam: float,
    shares: dict[str, float],
    requires: tuple[Hypothesis, ...],
    rounds: int | None,
    start2: float | None,
) -> Bound:
    """x_i <= lam x_{i-1} + sum(shares), solved."""
    text = "contraction lambda < 1 (vacuous otherwise)"
    requires += require(theorem, Hypothesis(text, f"lambda = {lam:g}", lam < 1.0))
    if (rounds is None) != (start2 is None):
        raise AssumptionError(f"{theorem} does not apply: needs rounds and start2 together, or neither")
    if rounds is None or start2 is None:
        terms = {name: float(v / (1.0 - lam)) for name, v in shares.items()}
        return Bound(terms, STEADY_STATE_MSD, theorem, requires)
    power = lam ** whole("rounds", rounds)
    terms = {"start": power * real("start2", start2, low=0.0)}
    terms |= {name: float(v * (1.0 - power) / (1.0 - lam)) for name, v in shares.items()}
    return Bound(terms, MEAN_SQUARE_DEVIATION, theorem, requires)


def _traces(
    c: TrackingConstants, drift_covariance: Any, participation: int | None, batch_size: Any, local_steps: Any
) -> tuple[float, float]:
    """tr(H^{-1} R_s), tr(H^{-1} R_q)."""
    if c.hessian is None or c.covariance_k is None or c.gradient_k is None:
        raise AssumptionError("small-step formula does not apply: needs hessian, covariance_k and gradient_k")
    _strongly_convex("small-step formula", c)
    s = _sampling(c.sizes, participation, batch_size, local_steps)
    outer = np.einsum("ki,kj->ij", c.gradient_k, c.gradient_k) / c.K
    R_s = (np.einsum("k,kij->ij", s.tau_s, c.covariance_k) / c.K + s.tau_eps * outer) / s.L
    R_q = np.asarray(drift_covariance, dtype=float)
    return float(np.trace(np.linalg.solve(c.hessian, R_s))), float(np.trace(np.linalg.solve(c.hessian, R_q)))
