"""Dynamic FedAvg: deviation from a moving minimiser, and its small-step formula (Rizk, Vlaski, Sayed 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex.problems.protocol import drift_square
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts import tracking_formulas as formulas
from fedconvex.theorems.parts.tracking import (
    ASSUMPTIONS,
    SETTING,
    SOURCE,
    Sampling,
    TrackingConstants,
    agents_of,
    agents_space,
    error2_of,
    incremental_constants,
    noise_at_optimum,
    noise_constants,
    nonexpansive,
    sampled_agents,
    sampling,
    step_of,
    strongly_convex,
    tracking_constants,
)

__all__ = ["STATEMENT", "THEOREMS", "SmallStep", "msd_paper", "msd_refined", "optimal_step", "small_step"]

STATEMENT = Statement(
    page="dynamic_msd",
    title="Dynamic FedAvg: mean-square deviation",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting=SETTING,
    assumptions=ASSUMPTIONS,
    statement="""
tau_s,k = (N_k - B_k)/((N_k - 1) B_k E_k), tau'_k = E_k tau_s,k, tau_eps = (K - L)/(K - 1),
a_k = ((E_k - 1)/(2 E_k))^2, V_k = variance of one row's gradient.

MSD, P    gamma = max{|1 - mu nu|, |1 - mu delta_P|}, t in (0, 1), lambda = (gamma^2 + mu^2 beta_s^2)/(1 - t)
          + mu^4 beta_d^2/t < 1: limsup E‖e_i‖^2 <= [mu^2 (sigma_s^2 + eps^2)/(1 - t) + mu^4 sigma_d^2/t
          + sigma_q^2]/(1 - lambda).
MSD, R    t in (0, 1), a > 0, A = 2 mu - mu^2 [max{0, 1 - (1 + 1/a) tau_eps/L} delta_P + (1 + 1/a) c_s],
          C = mu^4 (1 + 1/a) c_d/t, A/(1 - t) >= C, lambda = (1 - nu A)/(1 - t) + nu C < 1:
          limsup <= [(1 + a)(mu^2 S/(1 - t) + mu^4 S_d/t) + sigma_q^2]/(1 - lambda).
          S = (1/L) mean_k {tau_s,k V_k + tau_eps ‖grad P_k‖^2}, S_d = mean_k a_k kappa_k {‖grad P_k‖^2 + tau'_k V_k}
          at w^o, c_s = (1/L) max_k {tau_s,k delta_k + (tau_eps - tau_s,k)_+ delta_{P,k}},
          c_d = max_k a_k kappa_k {tau'_k delta_k + (1 - tau'_k)_+ delta_{P,k}}, kappa_k = delta_k delta_{P,k}.
Both, if mu/E_k <= 2/delta_k where E_k > 1: E‖e_i‖^2 <= lambda^i E‖e_0‖^2 + (1 - lambda^i) limsup. All E_k = 1: t -> 0.
Small mu  limit of E‖e_i‖^2 = (mu/2) tr(H^{-1} R_s) + tr(H^{-1} R_q)/(2 mu) to first order, H = Hessian of P,
          R_s = (1/L)[mean_k tau_s,k C_k + tau_eps mean_k g_k g_k'], C_k row-gradient covariance and g_k gradient at
          w^o.

beta_s, sigma_s, eps: of the first noise lemma; beta_d, sigma_d: of the second in terms of ‖e‖. x_+ = max{x, 0}.
""",
    source="""
Rizk, Vlaski, Sayed, "Dynamic federated learning", arXiv:2002.08782: form of the MSD (its exact wording was not
available). Constants, both bounds and the small-step formula: this project.
""",
    differs="""
Version R uses expected smoothness instead of delta^2 and is informative where version P is vacuous.
""",
    meaning="""
The error of tracking a moving minimiser has a floor ∝ μ from data variability (V_k) and from model
variability (who takes part: ‖∇P_k(w°)‖, with τ_ε = 0 with full participation), and a lag ∝ 1/μ. The best step balances
them.

**Small steps.** Linearise, HΣ + ΣH = μR_s + R_q/μ: tr Σ = (μ/2)tr(H⁻¹R_s) + tr(H⁻¹R_q)/(2μ). An approximation with
relative error O(μ), hence returned as numbers; with its remainder it is [a bound](dynamic_small_step.md). Minimum at
μ = (tr H⁻¹R_q/tr H⁻¹R_s)^{1/2}.

**Time invariance.** V_k(w°) and ∇P_k(w°) must not change while w° moves. For least squares with l2 = 0 that holds
exactly if drift moves all labels by x'q; for any loss if it moves all scores by x'q, and the centre of l2 along
(`MovingTarget`).
""",
    proof="""
The lemmas: [noise](dynamic_noise.md). e_i = e_{i-1} + μ∇P(w_{i-1}) + μs + μd + q. By Young with t, ‖x + μs + μd‖² ≤
‖x + μs‖²/(1-t) + μ²‖d‖²/t, where x = e + μ∇P; given the past E‖x + μs‖² = ‖x‖² + μ²E‖s‖²; q adds σ_q².

*Version P*: ‖x‖ ≤ γ‖e‖ and the two lemmas in ‖e‖².

*Version R*. With g_k = ∇P_k(w) - ∇P_k(w°), g their mean, ρ = ⟨g, w - w°⟩ and ρ_k the same of k, co-coercivity says
‖g‖² ≤ δ_Pρ, ‖g_k‖² ≤ δ_{P,k}ρ_k and W_k = mean‖∇Q(w) - ∇Q(w°)‖² ≤ δ_kρ_k; ρ_k ≥ 0 and mean ρ_k = ρ.

1. ‖x‖² = ‖e‖² - 2μρ + μ²‖g‖².
2. Identity of E‖s‖² and Young with a, the variance of a sum being at most 1+a and 1+1/a times those of its parts:
   E‖s‖² ≤ (1+a)S + ((1+1/a)/L){mean[τ_{s,k}(W_k - ‖g_k‖²) + τ_ε‖g_k‖²] - τ_ε‖g‖²}, and the mean is at most Lc_sρ.
3. Likewise E‖d‖² ≤ μ²{(1+a)S_d + (1+1/a)c_dρ}, since ‖∇P_k‖² and V_k at w are split with the same a, and what is added
   is at most ‖g_k‖² + τ'_k(W_k - ‖g_k‖²).
4. The coefficient of ρ is -(A/(1-t) - C) ≤ 0 by assumption, and ρ ≥ ν‖e‖². ∎
""",
    loose="""
Version P has δ² = (largest row norm)⁴: vacuous at common settings. Version R is within 1.2 of the exact value where
tracking dominates, 1.3 to 4 in noise with E = 1, looser for E > 1, vacuous at large steps (then it refuses).
""",
    figure="""
Steady-state deviation over the step size, exact, to first order, and the bounds R and P. Left, one local step: R is
within 1.2 to 4 times the exact curve below a step of 0.1. Right, up to five: R leaves the exact curve near 0.005 and
ends at 0.07. P ends at 0.002 and 0.0009.
""",
    caption="""
Least squares, 7 of 20 agents, batches of 1 to 5 rows, σ_q² = 10⁻⁴; the vertical line is the optimal step to first
order. Version R has the shape of the truth, and its minimum at a step that is 0.8 (left) and 0.4 (right) of the optimal
one; there it is 1.4 and 2.6 times the least exact value. Version P is vacuous for all steps of interest. The experiment
`dynamic-msd` (`fedconvex.papers`) measures the exact curves.
""",
)


class SmallStep(NamedTuple):
    """First-order steady state: an approximation, not a bound.

    Attributes
    ----------
    value : float
        E‖e‖^2 = noise + tracking.
    noise : float
        (mu/2) tr(H^{-1} R_s), of the gradients; grows with the step.
    tracking : float
        tr(H^{-1} R_q)/(2 mu), of the drift; shrinks with it.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_msd import small_step
    >>> from fedconvex.theorems.parts.tracking import tracking_constants
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> constants = tracking_constants(Problem(fed, Squared()))
    >>> found = small_step(constants, step_size=0.1, drift_covariance=[[0.01]], participation=1)
    >>> round(found.noise, 9), round(found.tracking, 9)
    (0.05, 0.05)
    """

    value: float  # noise + tracking
    noise: float  # (mu/2) tr(H^{-1} R_s)
    tracking: float  # tr(H^{-1} R_q)/(2 mu)


def msd_paper(
    constants: TrackingConstants,
    *,
    step_size: float,
    drift2: float,
    t: float | None = None,
    rounds: int | None = None,
    start2: float | None = None,
    **agents: Any,
) -> Bound:
    """Return version P of the mean-square deviation: the paper's three terms, with delta^2 throughout.

    Parameters
    ----------
    constants : TrackingConstants
    step_size : float
        mu; a local step is mu/E_k.
    drift2 : float
        sigma_q^2 = E‖q_i‖^2, the trace.
    t : float, optional
        Young's parameter in (0, 1); default 1 - gamma, or the limit 0 where every E_k = 1.
    rounds, start2 : int, float, optional
        With both: the bound of E‖e_i‖^2 at i = rounds from E‖e_0‖^2 = start2; otherwise the limsup.
    participation, batch_size, local_steps : int, int or array (K,), optional
        As for `fedconvex.theorems.parts.tracking.sampling`.

    Raises
    ------
    AssumptionError
        If a step size condition fails, or lambda >= 1: the bound is vacuous.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_msd import msd_paper
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=0 * one
    ... )
    >>> round(msd_paper(constants, step_size=0.5, drift2=0.75).value, 6)
    1.0
    """
    instance("msd_paper: constants", constants, TrackingConstants)
    mu, q2 = real("step_size", step_size, low=0.0, strict=True), real("drift2", drift2, low=0.0)
    t = None if t is None else real("t", t, low=0.0, high=1.0, strict=True)
    s, theorem = sampling(constants.sizes, **agents), f"{SOURCE}, MSD, version P"
    room = min(mu * constants.nu, 2.0 - mu * constants.delta_P)  # 1 - gamma, not rounded to 0 for tiny steps
    requires = strongly_convex(theorem, constants) + require(theorem, *nonexpansive(constants, mu, s))
    limit = f"step_size = {mu:g}, 2/delta_P = {2.0 / constants.delta_P:g}"
    requires += require(theorem, Hypothesis("step_size < 2/delta_P", limit, room > 0.0))
    beta_s, sigma_s, eps = noise_constants(constants, s)
    young, gap, last = _young(constants, s, mu, room, beta_s, t)
    shares = {
        "data variability": mu * mu * sigma_s / (1.0 - young) if young < 1.0 else math.inf,
        "model variability": mu * mu * eps / (1.0 - young) if young < 1.0 else math.inf,
        "incremental": last,
        "tracking": q2,
    }
    return _recursion(theorem, gap, shares, requires, rounds, start2)


def _young(
    constants: TrackingConstants, s: Any, mu: float, room: float, beta_s: float, t: float | None
) -> tuple[float, float, float]:
    """Return Young's parameter, 1 - lambda times what it leaves, and the incremental term of version P."""
    if not s.a.any():
        return 0.0, room * (2.0 - room) - mu * mu * beta_s, 0.0
    beta_d, sigma_d = incremental_constants(constants, s)
    young = room if t is None else t
    left = room * (2.0 - room) - young - mu * mu * beta_s  # (1 - lambda)(1 - t), but for the last term
    gap = left / (1.0 - young) - mu**4 * beta_d / young if young < 1.0 else -math.inf
    return young, gap, mu**4 * sigma_d / young


def msd_refined(
    constants: TrackingConstants,
    *,
    step_size: float,
    drift2: float,
    rounds: int | None = None,
    start2: float | None = None,
    **agents: Any,
) -> Bound:
    """Return version R of the mean-square deviation, minimised over its t and a on logarithmic grids.

    Parameters as `msd_paper`. All t and a of the grids give valid bounds, so the grids cost tightness only.

    Parameters
    ----------
    constants, step_size, drift2, rounds, start2
        As for `msd_paper`.

    Raises
    ------
    AssumptionError
        If a step size condition fails, or lambda >= 1 for every t and a: the bound is vacuous.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_msd import msd_refined
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=0 * one
    ... )
    >>> round(msd_refined(constants, step_size=0.5, drift2=0.75).value, 12)
    1.0
    """
    instance("msd_refined: constants", constants, TrackingConstants)
    mu, q2 = real("step_size", step_size, low=0.0, strict=True), real("drift2", drift2, low=0.0)
    s = sampling(constants.sizes, **agents)
    theorem = "fedconvex, MSD, version R (form of Rizk, Vlaski, Sayed 2020)"
    requires = strongly_convex(theorem, constants) + require(theorem, *nonexpansive(constants, mu, s))
    c, kappa = constants, constants.delta_k * constants.delta_P_k
    c_d = float(np.max(s.a * kappa * (s.tau_1 * c.delta_k + np.maximum(1.0 - s.tau_1, 0.0) * c.delta_P_k)))
    data, model = noise_at_optimum(c, s)
    S_d = float(np.mean(s.a * kappa * (c.gradient2_k + s.tau_1 * c.variance_k)))
    a, t = (x.ravel() for x in np.meshgrid(_YOUNG, _SPLITS if s.a.any() else (0.0,)))
    more = 1.0 + 1.0 / a
    A = contraction(c, s, mu, more)
    text = f"step_size = {mu:g}, delta_P = {c.delta_P:g}, c_s = {_shared_noise(c, s):g}"
    requires += require(theorem, Hypothesis("A > 0 for some a (smaller steps)", text, bool(A.max() > 0.0)))
    inverse = 1.0 / t if s.a.any() else np.zeros_like(t)
    C = mu**4 * more * c_d * inverse
    gap = np.where(A / (1.0 - t) >= C, (c.nu * A - t) / (1.0 - t) - c.nu * C, -np.inf)  # 1 - lambda
    shares = {
        "data variability": (1.0 + a) * mu**2 * data / (1.0 - t),
        "model variability": (1.0 + a) * mu**2 * model / (1.0 - t),
        "incremental": (1.0 + a) * mu**4 * S_d * inverse,
        "tracking": np.full_like(t, q2),
    }
    best = _best(gap, sum(shares.values()), rounds, start2)
    return _recursion(theorem, float(gap[best]), {k: v[best] for k, v in shares.items()}, requires, rounds, start2)


def contraction(c: TrackingConstants, s: Sampling, mu: float, more: np.ndarray) -> np.ndarray:
    """Return A of version R, more = 1 + 1/a: one step leaves at most (1 - nu A)‖e‖^2 besides its noise."""
    kept = np.maximum(0.0, 1.0 - more * s.tau_eps / s.L) * c.delta_P
    return np.asarray(2.0 * mu - mu * mu * (kept + more * _shared_noise(c, s)))


def _shared_noise(c: TrackingConstants, s: Sampling) -> float:
    """c_s."""
    return float(np.max(s.tau_s * c.delta_k + np.maximum(s.tau_eps - s.tau_s, 0.0) * c.delta_P_k)) / s.L


_YOUNG = np.append(np.logspace(-4.0, 4.0, 40), 1.0)  # a
_SPLITS = np.logspace(-9.0, -1e-3, 300)  # t


def _best(gap: np.ndarray, noise: np.ndarray, rounds: int | None, start2: float | None) -> int:
    """Return where lam^i start2 + (1 - lam^i) noise/gap, lam = 1 - gap, or its limit, is least; else where lam is."""
    if not gap.max() > 0.0:
        return least_choice(-gap)
    level = np.divide(noise, gap, out=np.full_like(gap, np.inf), where=gap > 0.0)
    if rounds is not None and start2 is not None:
        rounds, start2 = whole("rounds", rounds), real("start2", start2, low=0.0)
        kept, lost = _kept_and_lost(np.maximum(gap, 0.0), rounds)
        level = np.where(gap > 0.0, kept * start2 + lost * np.where(gap > 0.0, level, 0.0), np.inf)
    return least_choice(level)


def _kept_and_lost(gap: Any, rounds: int) -> tuple[Any, Any]:
    """(1 - gap)^rounds and 1 less that, both without cancellation."""
    exponent = rounds * np.log1p(-np.minimum(gap, 1.0 - 1e-16))
    return np.exp(exponent), -np.expm1(exponent)


def small_step(constants: TrackingConstants, *, step_size: float, drift_covariance: Any, **agents: Any) -> SmallStep:
    """Return the steady-state deviation to first order in the step size; not a bound.

    Parameters
    ----------
    constants : TrackingConstants
        With hessian, covariance_k and gradient_k.
    step_size : float
        mu.
    drift_covariance : array (d, d)
        R_q = E q q'.
    participation, batch_size, local_steps
        As for `msd_paper`.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_msd import small_step
    >>> from fedconvex.theorems.parts.tracking import tracking_constants
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> constants = tracking_constants(Problem(fed, Squared()))
    >>> sizes = (0.1, 0.4)
    >>> [round(small_step(constants, step_size=s, drift_covariance=[[0.01]], participation=1).value, 4) for s in sizes]
    [0.1, 0.2125]
    """
    instance("small_step: constants", constants, TrackingConstants)
    mu = real("step_size", step_size, low=0.0, strict=True)
    noise, tracking = _traces(constants, drift_covariance, agents)
    return SmallStep(0.5 * mu * noise + 0.5 * tracking / mu, 0.5 * mu * noise, 0.5 * tracking / mu)


def optimal_step(constants: TrackingConstants, *, drift_covariance: Any, **agents: Any) -> float:
    """Return sqrt(tr(H^{-1} R_q)/tr(H^{-1} R_s)), the step size that minimises `small_step`.

    Parameters
    ----------
    constants : TrackingConstants
        With hessian, covariance_k and gradient_k.
    drift_covariance : array (d, d)
        R_q = E q q'.
    **agents
        participation, batch_size, local_steps, as for `msd_paper`.

    Raises
    ------
    ValueError, TypeError
        If constants are not `TrackingConstants`, or drift_covariance is no matrix of their size.
    AssumptionError
        If the formula's matrices are missing, or there is no gradient noise.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_msd import optimal_step, small_step
    >>> from fedconvex.theorems.parts.tracking import tracking_constants
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> constants = tracking_constants(Problem(fed, Squared()))
    >>> optimal_step(constants, drift_covariance=[[0.01]], participation=1)
    0.1
    >>> round(small_step(constants, step_size=0.1, drift_covariance=[[0.01]], participation=1).value, 12)
    0.1
    """
    instance("optimal_step: constants", constants, TrackingConstants)
    noise, tracking = _traces(constants, drift_covariance, agents)
    require("optimal step", Hypothesis("gradient noise", f"tr(H^-1 R_s) = {noise:g}", noise > 0.0))
    return math.sqrt(tracking / noise)


def _recursion(
    theorem: str,
    gap: float,
    shares: dict[str, float],
    requires: tuple[Hypothesis, ...],
    rounds: int | None,
    start2: float | None,
) -> Bound:
    """x_i <= (1 - gap) x_{i-1} + sum(shares), solved."""
    text = "contraction lambda < 1 (vacuous otherwise)"
    requires += require(theorem, Hypothesis(text, f"lambda = {1.0 - gap:g}", gap > 0.0))
    if (rounds is None) != (start2 is None):
        raise AssumptionError(f"{theorem} does not apply: needs rounds and start2 together, or neither")
    if rounds is None or start2 is None:
        terms = {name: float(v / gap) for name, v in shares.items()}
        return Bound(terms, STEADY_STATE_MSD, theorem, requires)
    kept, lost = map(float, _kept_and_lost(gap, whole("rounds", rounds)))
    terms = {"start": kept * real("start2", start2, low=0.0)}
    terms |= {name: float(v * lost / gap) for name, v in shares.items()}
    return Bound(terms, MEAN_SQUARE_DEVIATION, theorem, requires)


def _traces(c: TrackingConstants, drift_covariance: Any, agents: dict[str, Any]) -> tuple[float, float]:
    """tr(H^{-1} R_s), tr(H^{-1} R_q)."""
    if c.hessian is None or c.covariance_k is None or c.gradient_k is None:
        raise AssumptionError("small-step formula does not apply: needs hessian, covariance_k and gradient_k")
    strongly_convex("small-step formula", c)
    s = sampling(c.sizes, **agents)
    outer = np.einsum("ki,kj->ij", c.gradient_k, c.gradient_k) / c.K
    R_s = (np.einsum("k,kij->ij", s.tau_s, c.covariance_k) / c.K + s.tau_eps * outer) / s.L
    R_q = array("drift_covariance", drift_covariance, c.hessian.shape)
    return float(np.trace(np.linalg.solve(c.hessian, R_s))), float(np.trace(np.linalg.solve(c.hessian, R_q)))


# ---------------------------------------------------------------- read off a setting


def _reader(finite: bool) -> Callable[[Setting], Reading]:
    def read(s: Setting) -> Reading:
        agents, p = agents_of(s), s.problem
        drift2 = drift_square(p)
        when = {"rounds": s.rounds, "start2": error2_of(s)} if finite else {}
        squares = Hypothesis("least squares, whose limit is known", f"{p.loss!r}", traits(p.loss).quadratic)
        checked = () if finite else require("steady state", squares)
        return Reading(
            {"constants": tracking_constants(p), "step_size": step_of(s), "drift2": drift2, **agents, **when}, checked
        )

    return read


_SAYS = "The tracking error has a floor from noise that grows with the step, and a lag from drift that shrinks with it"
_VACUOUS = "Vacuous at common settings: delta² = (largest row norm)⁴."
_WITHIN = "Within 1.2 where drift dominates, 4 in noise, looser with several local steps."
_HERE: dict[str, Any] = {
    "statement": STATEMENT,
    "method": sampled_agents(True),
    "rounds": 40,
    "drift": 1e-4,
    "space": agents_space(),
}
_FINITE: dict[str, Any] = {"quantity": MEAN_SQUARE_DEVIATION, "read": _reader(True)} | _HERE
_LIMIT: dict[str, Any] = {"quantity": STEADY_STATE_MSD, "read": _reader(False)} | _HERE

THEOREMS = (
    Theorem(
        name="dynamic-msd-paper",
        title="Dynamic FedAvg, mean-square deviation, form P",
        bound=msd_paper,
        formula=formulas.msd_paper(True),
        says=f"{_SAYS}; with delta².",
        loose=_VACUOUS,
        checks=(unequal_hessians, diabetes),
        **_FINITE,
    ),
    Theorem(
        name="dynamic-msd-refined",
        title="Dynamic FedAvg, mean-square deviation, form R",
        bound=msd_refined,
        formula=formulas.msd_refined(True),
        says=f"{_SAYS}; with expected smoothness.",
        loose=_WITHIN,
        checks=(
            unequal_hessians,
            diabetes,
            Check(unequal_hessians, sampled_agents(True, local_steps=1, batch_size=None)),
            breast_cancer,  # logistic loss: convex by l2 alone
            uneven_logistic,  # unequal weights
        ),
        **_FINITE,
    ),
    Theorem(
        name="dynamic-steady-state-paper",
        title="Dynamic FedAvg, steady state, form P",
        bound=msd_paper,
        formula=formulas.msd_paper(False),
        says=f"{_SAYS}: the limit, with delta².",
        loose=_VACUOUS,
        checks=(unequal_hessians, diabetes),
        **_LIMIT,
    ),
    Theorem(
        name="dynamic-steady-state-refined",
        title="Dynamic FedAvg, steady state, form R",
        bound=msd_refined,
        formula=formulas.msd_refined(False),
        says=f"{_SAYS}: the limit, with expected smoothness.",
        loose=_WITHIN,
        checks=(unequal_hessians, diabetes),
        **_LIMIT,
    ),
)
