"""Dynamic FedAvg: gradient noise and incremental noise of an iteration (Rizk, Vlaski, Sayed 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.theorems.kit import *
from fedconvex.theorems.parts import tracking_formulas as formulas
from fedconvex.theorems.parts.rounding import of_square
from fedconvex.theorems.parts.tracking import (
    ASSUMPTIONS,
    SETTING,
    SOURCE,
    TrackingConstants,
    agents_of,
    agents_space,
    client_moments,
    equal_agents,
    error2_of,
    incremental_constants,
    noise_at_optimum,
    noise_constants,
    nonexpansive,
    sampled_agents,
    sampling,
    step_of,
    tracking_constants,
)
from fedconvex.theory.moments import incremental_noise2

__all__ = [
    "GRADIENT_NOISE",
    "INCREMENTAL_NOISE",
    "STATEMENT",
    "THEOREMS",
    "gradient_noise",
    "gradient_noise_paper",
    "gradient_noise_sharp",
    "incremental_noise",
    "incremental_noise_at",
]

TINY = 1e-7  # step size, in units of the inverse smoothness, at which local steps count as taken at w_{i-1}

GRADIENT_NOISE = Quantity(
    "E‖s_i‖^2 given w_{i-1}",
    dimension=Dimension.SQUARED_GRADIENT,
    by_rounds=False,
    latex=r"\mathrm{E}\left[\|s_i\|^2 \mid w_{i-1}\right]",
)
INCREMENTAL_NOISE = Quantity(
    "E‖d_i‖^2 given w_{i-1}",
    dimension=Dimension.SQUARED_GRADIENT,
    by_rounds=False,
    latex=r"\mathrm{E}\left[\|d_i\|^2 \mid w_{i-1}\right]",
)

STATEMENT = Statement(
    page="dynamic_noise",
    title="Dynamic FedAvg: noise",
    scope=EVERYWHERE,
    setting=SETTING,
    assumptions=ASSUMPTIONS,
    statement="""
tau_s,k = (N_k - B_k)/((N_k - 1) B_k E_k), tau'_k = E_k tau_s,k, tau_eps = (K - L)/(K - 1),
a_k = ((E_k - 1)/(2 E_k))^2, V_k = variance of one row's gradient.

Identity  E[‖s‖^2 | w] = (1/(KL)) sum {tau_s,k V_k(w) + tau_eps ‖grad P_k(w) - grad P(w)‖^2}.
Lemma     <= beta_s^2 ‖e‖^2 + sigma_s^2 + eps^2 with beta_s^2 = (1/(KL)) sum (6 tau_s,k + 2 tau_eps) delta^2,
          sigma_s^2 = (3/(KL)) sum tau_s,k V_k(w^o), eps^2 = (2/(KL)) sum tau_eps ‖grad P_k(w^o)‖^2.
Sharper   <= (1/(KL)) sum tau_s,k (V_k(w^o)^(1/2) + delta_k ‖e‖/2)^2 + (tau_eps/L) (G + delta_P ‖e‖/2)^2,
          G^2 = (1/K) sum ‖grad P_k(w^o)‖^2, delta_P = max delta_{P,k}.
Lemma     mu/E_k <= 2/delta_k: E[‖d‖^2 | w] <= (mu^2/K) sum a_k kappa_k (‖grad P_k(w)‖^2 + tau'_k V_k(w)),
          kappa_k = delta_k delta_{P,k}.
""",
    source="""
Rizk, Vlaski, Sayed, "Dynamic federated learning", arXiv:2002.08782: form of the first lemma (its exact wording was not
available). Identity, second lemma and constants: this project.
""",
    differs="""
Slides on the method print tau_eps^2 in eps^2: false, see [errata](errata.md). a_k is attained by one agent with full
batches as mu -> 0; averaging squares instead of norms over the local steps would give (E_k - 1)(2 E_k - 1)/(6 E_k^2),
larger.
""",
    meaning="""
Constants: `tracking_constants(problem)` with `weights="uniform"`, exact for least squares; for the logistic loss
bounds that hold everywhere (ν = l2), or [on a ball](dynamic_ball.md); or by hand. Local steps of size μ/E_k cost
incremental noise of order μ²: no first-order bias, also when E_k differ.
""",
    proof="""
**Identity.** s = (1/L) Σ_{l∈𝓛} (∇P_l - ∇P) + (1/L) Σ_{l∈𝓛} n_l with n_l the mini-batch error averaged over E_l draws.
Given 𝓛 the n_l are independent of mean zero, Var n_k = τ_{s,k}V_k ((N-B)/((N-1)B) for one batch without replacement,
over E_k for the mean). L of K without replacement: the first sum has second moment (1/L)((K-L)/(K-1))(1/K) Σ‖∇P_k -
∇P‖². Add. ∎ Executed by enumerating all participant sets and batches: `test_gradient_noise_identity_by_enumeration`.

**Lemma.** V_k(w) ≤ 2 V_k(w°) + 2 mean‖∇Q(w) - ∇Q(w°)‖² (variance of a sum; variance ≤ second moment), the last ≤
δ²‖e‖². Likewise Σ‖∇P_k - ∇P‖² at w is at most 2 Σ‖∇P_k(w°)‖² + 2 Σ‖∇P_k(w) - ∇P_k(w°)‖² ≤ 2 Σ‖∇P_k(w°)‖² + 2Kδ²‖e‖².
Factors 2, 2; the paper has 6, 3. ∎

**Sharper.** Standard deviations add: (V_k(w))^{1/2} ≤ (V_k(w°))^{1/2} + the standard deviation of ∇Q(w) - ∇Q(w°). By
co-coercivity its second moment is at most δ_k⟨ḡ, e⟩ ≤ δ_k‖ḡ‖‖e‖, ḡ its mean, so its variance is at most δ_k‖ḡ‖‖e‖ -
‖ḡ‖² ≤ δ_k²‖e‖²/4. Likewise for ∇P_k over k, where the mean at w° is 0. ∎ Attained, each part and their cross term, by
two rows, or two agents, of which one has no curvature.

**Incremental noise.** E[‖d‖²|w] ≤ (μ²/K) Σ a_kκ_k(‖∇P_k(w)‖² + τ'_kV_k(w)) for μ/E_k ≤ 2/δ_k, a_k =
((E_k-1)/(2E_k))², κ_k = δ_kδ_{P,k}.

1. d = mean over participants of d_k = (1/E) Σ_{e=1}^{E} [g_e(w_{e-1}) - g_e(w)], g_e the mini-batch gradient; ‖mean‖²
   ≤ mean of ‖d_k‖², and E over participants is the mean over k.
2. Each local step x ↦ x - (μ/E)g_e(x) is nonexpansive (g_e is the gradient of a convex δ_k-smooth function). Hence
   ‖w_e - w‖ ≤ ‖w_{e-1} - w‖ + (μ/E)‖g_e(w)‖ ≤ (μ/E) Σ_{j≤e}‖g_j(w)‖.
3. In the norm |X| = (E‖X‖²)^{1/2}: |g_j(w)| = G_k with G_k² = ‖∇P_k(w)‖² + τ'_kV_k(w), so |w_{e-1} - w| ≤
   (μ/E)(e-1)G_k.
4. The e-th batch is independent of w_{e-1}: E‖g_e(x) - g_e(w)‖² ≤ δ_k⟨∇P_k(x) - ∇P_k(w), x - w⟩ ≤ δ_kδ_{P,k}‖x - w‖².
5. Minkowski over e: |d_k| ≤ (1/E) Σ_e √κ_k (μ/E)(e-1)G_k = μ√κ_k G_k(E-1)/(2E). Square. ∎

(Cauchy-Schwarz in the place of Minkowski in 2 and 5 gives (E-1)(2E-1)/(6E²), larger by up to 2.) Attained by one
agent, full batches, P = w²/2, μ → 0: `test_planted_incremental_factor`.

In terms of e: ‖∇P_k(w)‖² ≤ 2δ²‖e‖² + 2‖∇P_k(w°)‖² and V_k as above: β_d² = (2δ⁴/K) Σ a_k(1+τ'_k), σ_d² = (2δ²/K) Σ
a_k(‖∇P_k(w°)‖² + τ'_kV_k(w°)).
""",
    loose="""
The lemma by its factors 6, 3 and 2, and by δ² = (largest row norm)⁴; at w = w°, where the sharper form is exact, ε² is
twice the truth. The incremental lemma at w is attained.
""",
)


def gradient_noise(problem: Problem, w: Any, **agents: Any) -> Bound:
    """Return E[‖s‖^2 | w] exactly, for any loss: an identity, with the shares of data and of agents.

    Parameters
    ----------
    problem : Problem
        Equal client weights.
    w : model
        w_{i-1}.
    participation, batch_size, local_steps : int, int or array (K,), optional
        As for `fedconvex.theorems.parts.tracking.sampling`.

    Raises
    ------
    TypeError
        If problem is no `Problem`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.dynamic_noise import gradient_noise
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> gradient_noise(Problem(fed, Squared()), np.array([2.0]), participation=1).value
    1.0
    """
    instance("gradient_noise: problem", problem, Problem)
    equal_agents("gradient noise identity", problem)
    s = sampling(problem.federation.sizes, **agents)
    g = problem.client_gradients(w).reshape(problem.federation.K, -1)
    spread = np.sum((g - g.mean(axis=0)) ** 2, axis=1)
    terms = {
        "data variability": float(np.mean(s.tau_s * problem.gradient_variance(w))) / s.L,
        "model variability": s.tau_eps * float(np.mean(spread)) / s.L,
    }
    return Bound(terms, GRADIENT_NOISE, "fedconvex, exact identity (docs/theory/dynamic_noise.md)")


def gradient_noise_paper(constants: TrackingConstants, distance: float, **agents: Any) -> Bound:
    """Return the lemma as in the paper (factors 6, 3, tau_eps to the first power) at ‖w_{i-1} - w^o‖ = distance.

    Parameters
    ----------
    constants : TrackingConstants
        Of the problem.
    distance : float
        ‖w_{i-1} - w^o‖.
    **agents
        participation, batch_size, local_steps, as for `fedconvex.theorems.dynamic_msd.msd_paper`.

    Raises
    ------
    ValueError, TypeError
        If constants are not `TrackingConstants`, or distance is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_noise import gradient_noise_paper
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> gradient_noise_paper(constants, 0.0, participation=1).value  # the sharper lemma says 1
    2.0
    """
    instance("gradient_noise_paper: constants", constants, TrackingConstants)
    s = sampling(constants.sizes, **agents)
    d = real("distance", distance, low=0.0)
    beta, sigma, eps = noise_constants(constants, s)
    terms = {"distance": beta * d * d, "data variability": sigma, "model variability": eps}
    return Bound(terms, GRADIENT_NOISE, f"{SOURCE}, gradient noise lemma")


def gradient_noise_sharp(constants: TrackingConstants, distance: float, **agents: Any) -> Bound:
    """Return the sharper lemma: standard deviations add, and those of differences are at most delta ‖e‖/2.

    Parameters
    ----------
    constants, distance, **agents
        As for `gradient_noise_paper`.

    Raises
    ------
    ValueError, TypeError
        If constants are not `TrackingConstants`, or distance is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_noise import gradient_noise_sharp
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> gradient_noise_sharp(constants, 0.0, participation=1).value
    1.0
    """
    instance("gradient_noise_sharp: constants", constants, TrackingConstants)
    s = sampling(constants.sizes, **agents)
    c, half = constants, 0.5 * real("distance", distance, low=0.0)
    data, model = noise_at_optimum(c, s)
    rows = np.mean(s.tau_s * c.delta_k * (2.0 * np.sqrt(c.variance_k) + c.delta_k * half))
    delta_P = float(np.max(c.delta_P_k))
    between = s.tau_eps * delta_P * (2.0 * math.sqrt(float(np.mean(c.gradient2_k))) + delta_P * half)
    terms = {"distance": half * (float(rows) + between) / s.L, "data variability": data, "model variability": model}
    return Bound(terms, GRADIENT_NOISE, "fedconvex, sharper gradient noise lemma")


def incremental_noise(constants: TrackingConstants, distance: float, *, step_size: float, **agents: Any) -> Bound:
    """Return the form with delta throughout: E‖d‖^2 <= mu^2 (beta_d^2 ‖e‖^2 + sigma_d^2), at ‖e‖ = distance.

    Parameters
    ----------
    constants, distance, **agents
        As for `gradient_noise_paper`.
    step_size : float
        mu; a local step is mu/E_k.

    Raises
    ------
    ValueError, TypeError
        If constants are not `TrackingConstants`, step_size is not positive, or distance negative.
    AssumptionError
        If the step is so long that local steps expand.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_noise import incremental_noise
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> [incremental_noise(constants, 1.0, step_size=0.5, local_steps=E).value for E in (1, 2)]  # none with one step
    [0.0, 0.0625]
    """
    instance("incremental_noise: constants", constants, TrackingConstants)
    mu = real("step_size", step_size, low=0.0, strict=True)
    d = real("distance", distance, low=0.0)
    s = sampling(constants.sizes, **agents)
    theorem = "fedconvex, incremental noise lemma, delta form"
    requires = require(theorem, *nonexpansive(constants, mu, s))
    beta, sigma = incremental_constants(constants, s)
    terms = {"distance": mu * mu * beta * d * d, "at the optimum": mu * mu * sigma}
    return Bound(terms, INCREMENTAL_NOISE, theorem, requires)


def incremental_noise_at(
    constants: TrackingConstants, moments: tuple[np.ndarray, np.ndarray], *, step_size: float, **agents: Any
) -> Bound:
    """Return the sharper form, with ‖grad P_k(w)‖^2 and V_k(w) at w_{i-1}, as `client_moments` gives them.

    Parameters
    ----------
    constants, **agents
        As for `gradient_noise_paper`.
    moments : tuple of two arrays (K,)
        ‖grad P_k(w)‖^2 and V_k(w).
    step_size : float
        mu; a local step is mu/E_k.

    Raises
    ------
    ValueError, TypeError
        If constants are not `TrackingConstants`, step_size is not positive, or moments are not those of
        `client_moments`.
    AssumptionError
        If the step is so long that local steps expand.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.dynamic_noise import incremental_noise_at
    >>> from fedconvex.theorems.parts.tracking import TrackingConstants
    >>> one = np.ones(2)
    >>> constants = TrackingConstants(
    ...     nu=1.0, delta_P=1.0, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one, gradient2_k=one
    ... )
    >>> incremental_noise_at(constants, (one, 0 * one), step_size=0.5, local_steps=2).value
    0.015625
    """
    instance("incremental_noise_at: constants", constants, TrackingConstants)
    mu = real("step_size", step_size, low=0.0, strict=True)
    s = sampling(constants.sizes, **agents)
    theorem = "fedconvex, incremental noise lemma"
    requires = require(theorem, *nonexpansive(constants, mu, s))
    if not isinstance(moments, tuple) or len(moments) != 2:
        raise wrong_type("moments", "be a pair of arrays, see client_moments", f"{moments!r}")
    gradient2, variance = (numeric("moments", m) for m in moments)
    scale = mu * mu * s.a * constants.delta_k * constants.delta_P_k
    terms = {
        "gradients": float(np.mean(scale * gradient2)),
        "data variability": float(np.mean(scale * s.tau_1 * variance)),
    }
    return Bound(terms, INCREMENTAL_NOISE, theorem, requires)


# ---------------------------------------------------------------- read off a setting


def _move(s: Setting, step_size: float, seed: int, trajectories: int) -> np.ndarray:
    """(w_{i-1} - w_i)/mu of one iteration from the start, (R, p); the same draws for every step size."""
    p = s.problem
    stationary = Problem(p.federation, p.loss, p.l2, p.weights, intercept=p.intercept)
    method = replace(s.method, step_size=step_size)
    *_, (_, state) = iterate(method, stationary, rounds=1, seed=seed, trajectories=trajectories, start=s.start)
    return ((s.start - state.w) / step_size).reshape(trajectories, -1)


def _tiny(s: Setting) -> float:
    return TINY / float(s.problem.constants().L_s or 1.0)


def _gradient_noise(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖s_i‖^2 at w_{i-1} = start: the move of a tiny step is the mean of the agents' gradients there."""
    noise = _move(s, _tiny(s), seed, trajectories) - s.problem.gradient(s.start).ravel()
    return np.tile(np.sum(noise**2, axis=1), (len(rounds), 1))


def _exact_gradient_noise(s: Setting, rounds: Sequence[int]) -> Found:
    value = gradient_noise(s.problem, s.start, **agents_of(s)).value
    off = of_square(value, 2.0 * float(gradient_rounding(s.problem, s.start).max()))
    return Found(np.full(len(rounds), value), np.full(len(rounds), off))


def _incremental_noise(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖d_i‖^2 at w_{i-1} = start: how the move changes when the local steps are real, the draws being the same."""
    mu = s.method.step_size
    noise = _move(s, mu, seed, trajectories) - _move(s, min(_tiny(s), 1e-3 * mu), seed, trajectories)
    return np.tile(np.sum(noise**2, axis=1), (len(rounds), 1))


def _rounding(s: Setting, value: float, step: float, off: float) -> float:
    """How far a move may be off: a difference of models, divided by its step, along which gradients change by off."""
    length = float(np.linalg.norm(s.start)) * 8.0 * np.finfo(float).eps / step
    return of_square(value, float(length + off + gradient_rounding(s.problem, s.start).max()))


def _gradient_rounding(s: Setting, value: float) -> float:
    tiny = _tiny(s)
    size = math.sqrt(float(client_moments(s.problem, s.start)[0].max())) + math.sqrt(max(value, 0.0))
    return _rounding(s, value, tiny, TINY * size)


def _incremental_rounding(s: Setting, value: float) -> float:
    mu = s.method.step_size
    step = min(_tiny(s), 1e-3 * mu)
    return _rounding(s, value, step, 2.0 * step / mu * math.sqrt(max(value, 0.0)))


def _exact_incremental_noise(s: Setting, rounds: Sequence[int]) -> Found | None:
    if not traits(s.problem.loss).quadratic:
        return None
    value, off = incremental_noise2(s.problem, s.start, step_size=step_of(s), **agents_of(s))
    return Found(np.full(len(rounds), value), np.full(len(rounds), off))


def _read(s: Setting) -> dict[str, Any]:
    return {"constants": tracking_constants(s.problem), **agents_of(s)}


def _read_gradient(s: Setting) -> Reading:
    return Reading(_read(s) | {"distance": math.sqrt(error2_of(s))})


def _read_incremental(s: Setting) -> Reading:
    return Reading(_read(s) | {"distance": math.sqrt(error2_of(s)), "step_size": step_of(s)})


def _read_incremental_at(s: Setting) -> Reading:
    return Reading(_read(s) | {"moments": client_moments(s.problem, s.start), "step_size": step_of(s)})


_HERE: dict[str, Any] = {
    "statement": STATEMENT,
    "method": sampled_agents(),
    "start": 0.5,
    "space": agents_space(rounds=(1, 1)),
}
_GRADIENT: dict[str, Any] = {
    "quantity": GRADIENT_NOISE,
    "read": _read_gradient,
    "sample": _gradient_noise,
    "exact": _exact_gradient_noise,
    "tolerance": _gradient_rounding,
}
_INCREMENTAL: dict[str, Any] = {
    "quantity": INCREMENTAL_NOISE,
    "sample": _incremental_noise,
    "exact": _exact_incremental_noise,
    "tolerance": _incremental_rounding,
    "checks": (unequal_hessians, diabetes),
}

THEOREMS = (
    Theorem(
        name="dynamic-gradient-noise",
        title="Dynamic FedAvg, gradient noise lemma",
        bound=gradient_noise_paper,
        formula=formulas.GRADIENT_NOISE,
        says="An iteration's noise is at most beta_s²‖error‖² plus what mini-batches and absent agents cause at w*.",
        loose="Factors 6, 3 and 2, and delta² = (largest row norm)⁴.",
        checks=(unequal_hessians, diabetes),
        **_GRADIENT,
        **_HERE,
    ),
    Theorem(
        name="dynamic-gradient-noise-sharp",
        title="Dynamic FedAvg, sharper noise lemma",
        bound=gradient_noise_sharp,
        formula=formulas.GRADIENT_NOISE_SHARP,
        says="The same, as a square of a sum of standard deviations: exact at w*, and attained away from it.",
        loose="Rows of equal curvature vary less than rows of which some have none.",
        checks=(unequal_hessians, diabetes, Check(diabetes, sampled_agents(local_steps=1, batch_size=None))),
        **_GRADIENT,
        **_HERE,
    ),
    Theorem(
        name="dynamic-incremental-noise",
        title="Dynamic FedAvg, incremental noise, delta form",
        bound=incremental_noise,
        formula=formulas.INCREMENTAL_NOISE,
        read=_read_incremental,
        says="Taking gradients at local iterates costs an error of order mu² only.",
        loose="As below, and delta instead of the gradients at w.",
        **_INCREMENTAL,
        **_HERE,
    ),
    Theorem(
        name="dynamic-incremental-noise-at",
        title="Dynamic FedAvg, incremental noise at w",
        bound=incremental_noise_at,
        formula=formulas.INCREMENTAL_NOISE_AT,
        read=_read_incremental_at,
        says="The same with the clients' gradients and variances at w_{i-1}.",
        loose="Attained by one agent with full batches as mu tends to 0.",
        **_INCREMENTAL,
        **_HERE,
    ),
)
