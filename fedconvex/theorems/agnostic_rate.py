"""Stochastic agnostic federated learning: rates of the duality gap, as published, for any steps, for entropic steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedconvex.constants.record import possible
from fedconvex.methods import AFL
from fedconvex.methods.afl import WeightedSampling
from fedconvex.simplex.ascent import EntropicStep, ProjectedStep
from fedconvex.solvers.minimax.ball import least_values_over_ball
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.afl_steps import afl_constants, published_steps, with_steps
from fedconvex.theorems.parts.domain_instances import (
    breast_cancer_domains,
    flat_domains,
    one_row,
    one_steep_row,
    rare_losses,
    rare_slopes,
    saddle_space,
    three_domains,
    values_rounding,
)
from fedconvex.theory.saddle_constants import (
    AgnosticConstants,
)

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "afl_constants",
    "agnostic_rate",
    "agnostic_rate_any_steps",
    "agnostic_rate_entropic",
    "saddle_steps",
    "with_steps",
]

SOURCE = "Mohri, Sivek, Suresh 2019, arXiv:1902.00146, Stochastic-AFL (re-derived)"
SADDLE_GAP = Quantity("E[max over mixtures of L(wA, .) - min over models of L(., lambdaA)]", "duality gap", least=0.0)

STATEMENT = Statement(
    page="agnostic_rate",
    title="The rate of AFL",
    scope=EVERYWHERE._replace(weights=holds("bounds of rows count by their weights")),
    setting="""
min over w in W of max over lambda in Lambda of L(w, lambda) = sum lambda_k F_k(w); T simultaneous projected steps
w <- P_W(w - gamma_w delta_w), lambda <- P_Lambda(lambda + gamma_lambda delta_lambda) with stochastic gradients
taken at the current pair; wA, lambdaA: averages of the T points at which gradients were taken.
""",
    assumptions="""
W and Lambda convex and compact, ‖w‖ <= R_W, ‖lambda‖ <= R_Lambda; F_k convex; ‖grad_w L‖ <= G_w,
‖grad_lambda L‖ <= G_lambda on W x Lambda; unbiased stochastic gradients of variances at most sigma_w^2,
sigma_lambda^2.
""",
    statement="""
With gamma = 2R/sqrt(T (sigma^2 + G^2)) for either player,
E[max_lambda L(wA, lambda) - min_w L(w, lambdaA)] <= {3 R_W sqrt(sigma_w^2 + G_w^2)
                                                     + 3 R_Lambda sqrt(sigma_lambda^2 + G_lambda^2)}/sqrt(T).
Any steps: with constant gamma, D the largest distance of a player's set from where he starts,
a player costs D^2/(2 gamma T) + gamma (G^2 + sigma^2)/2 + r sigma/sqrt(T), r = R_W (0 if Lambda is a point) and D;
G_lambda^2 = p V^2/4, p the domains and [0, V] the range of their losses, because constants added to them change no
step.
Entropic steps: lambda <- argmax gamma <delta, .> - KL(.‖lambda), stochastic losses delta in [0, D]^p, costs
KL_max/(gamma T) + gamma D^2/8 + [D sqrt(log(p)/(2T)) if anything is random], KL_max = max over Lambda of
KL(.‖lambda_0), log p on the simplex.
""",
    source="""
Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019, arXiv:1902.00146, convergence of Stochastic-AFL.
The statement was not taken from the text but derived again, with the same constants: regret of either player
(2R)^2/(2 gamma T) + gamma (G^2 + sigma^2)/2 = 2R sqrt(G^2 + sigma^2)/sqrt(T), and R sigma/sqrt(T) because the
comparator depends on the noise. The forms for any steps and for entropic steps are this project's.
""",
    differs="""
The pseudo-code that circulates averages t = 1..T although gradients are taken at t - 1: average the query points.
It also lost the minus sign of the step in w. The left side is the duality gap, so it bounds the excess of wA too.
""",
    meaning="""
On the simplex R_Λ = 1, and constants added to all losses change no step: G_λ may be taken of centred losses. A player
with one choice contributes nothing (`Point`: R_Λ = 0). The maximum over Λ is a support function; the minimum over the
ball is found by Newton's method and certified from below by convexity, to 1e-13 or so. One run is enough where
nothing is random.

**With variances.** Client c draws B of its n_c rows with replacement and sends (n_c/B) Σ α_i ∇l, α_i = λ_i/N_i. The
variance of the sum over clients is at most Σ_c (n_c/B) Σ_{j in c} α²‖∇l_j‖², convex in λ, hence largest at a vertex;
times (n_c - B)/(n_c - 1) without replacement. Weighted sampling draws s domains from λ: G_w²/s is added; its losses are
weighted by p times the share of s uniform draws, of variance (p-1)/s, so σ_λ² becomes (1 + (p-1)/s) σ_λ² + ((p-1)/s)
ΣV_k². `agnostic_constants` computes all of it: on ‖w‖ ≤ R the loss of row j and the size of its slope are largest at a
score ±R‖x_j‖, by convexity.
""",
    proof="""
**Proof.** L(wA, λ) - L(w, λA) ≤ (1/T) Σ_t [L(w_t, λ) - L(w, λ_t)] ≤ (1/T) Σ_t [⟨∇_w L(w_t, λ_t), w_t - w⟩ + ⟨∇_λ
L(w_t, λ_t), λ - λ_t⟩], by convexity in w and linearity in λ. For the descending player with stochastic gradients δ_t
= ∇_t + ν_t: Σ⟨∇_t, w_t - w⟩ = Σ⟨δ_t, w_t - w⟩ - Σ⟨ν_t, w_t⟩ + ⟨Σν_t, w⟩. Projections do not expand, so Σ⟨δ_t, w_t -
w⟩ ≤ ‖w_0 - w‖²/(2γ) + (γ/2) Σ‖δ_t‖², of expectation at most (2R)²/(2γ) + γT(G² + σ²)/2 = 2R √(T(G² + σ²)). The second
sum has mean 0. The third is at most R‖Σν_t‖, of expectation ≤ Rσ√T, whatever w is chosen in the light of the noise.
Divide by T; R σ ≤ R√(σ² + G²). The other player alike. ∎ The left side bounds E h(wA) - min h.

**Any constant steps** (this project's). With D the largest distance of a player's set from where he starts, he costs

    D²/(2γT) + γ(G² + σ²)/2 + rσ/√T,     r = R_W for the model (0 if Λ is a point), r = D for the domain weights,

where G_λ² = pV²/4 if all domains' losses lie in [0, V]. *Proof.* As above with ‖w_0 - w‖ ≤ D. For the weights, ⟨Σν_t,
λ⟩ may be taken from λ_0, whose product has mean 0, as that with a w that does not depend on λ_A; and steps on a subset
of {Σλ = 1} do not change when a constant is added to all losses: ‖F - F̄1‖² ≤ Σ(F_k - V/2)² ≤ pV²/4. ∎ Least at γ =
D/√(T(G² + σ²)). Attained, T = 1, by a linear function from the end of the ball (2RG), and by two domains with the
losses V and 0 that no model changes (V/2); rare steep rows and a large γ show a quarter, nearly all of it noise.

**Entropic steps** λ ← argmax γ⟨δ, ·⟩ - KL(·‖λ) over Λ (this project's). With stochastic losses δ_k in [0, D], the
domain weights cost

    KL_max/(γT) + γD²/8 + [D √(log(p)/(2T)) if anything is random],     KL_max = max over Λ of KL(·‖λ_0).

*Proof.* With Z = Σ λ_{t,k} exp(γδ_k) and λ' = λ_t exp(γδ)/Z, γ⟨δ, λ - λ_t⟩ = KL(λ‖λ_t) - KL(λ‖λ') + log Z - γ⟨δ,
λ_t⟩. The last two are at most γ²D²/8 (Hoeffding); λ_{t+1} is the projection of λ' in the sense of KL, so KL(λ‖λ') ≥
KL(λ‖λ_{t+1}) (Pythagoras). Sum. The noise: max_k Σ_t ν_{t,k} has expectation ≤ D √(T log(p)/2), because ν_{t,k} lies
in an interval of length D given the past. ∎ On the simplex KL_max = log p. Within 1.18 of what two domains with the
losses D and 0 do, T = 1.
""",
    loose="""
One linear function, start at one end of W, T = 1: the gap is 2RG, two thirds of the bound (without
noise the proof gives 2RG/√T, attained there). For large T the same example keeps RG/√T, a third. On 60 random
logistic problems measured/bound is at most 0.07 with full gradients and 0.09 with batches of two. A constant of 1.9
in the place of 3 is refuted by `test_a_rate_with_a_wrong_constant_is_caught`. Averages over t = 1, ..., T differ by
at most 2R/T from those over the query points: too little for the rate to notice, but they are not what the proof is
about.

Bound over measured value in the suite: `agnostic-rate` 1.5 (one step on a line) to 70, `agnostic-rate-any-steps`
1.005 to 20, `agnostic-rate-entropic` 4 to 20. Planted errors that are found (`tests/test_verify_agnostic.py`): 3 →
1.9 in the rate; 2 % less in the bound for any steps; log p left out of the entropic rate; σ forgotten. Not found,
because the proof is loose there: no noise of the comparator, of which no instance is known that needs it.
""",
)


def agnostic_rate(
    *,
    rounds: int,
    R_W: float,
    R_lambda: float,
    G_w: float,
    G_lambda: float,
    sigma2_w: float = 0.0,
    sigma2_lambda: float = 0.0,
) -> Bound:
    """Return the bound of the expected duality gap of the averaged query points, for the steps of `agnostic_steps`.

    Parameters
    ----------
    rounds : int
        T.
    R_W, R_lambda : float
        Radii of the sets around the origin; R_lambda = 1 for the simplex.
    G_w, G_lambda : float
        Largest gradient norms.
    sigma2_w, sigma2_lambda : float
        Largest variances.

    Raises
    ------
    ValueError, TypeError
        If rounds is below 1, or a constant negative.

    Examples
    --------
    >>> from fedconvex.theorems.agnostic_rate import agnostic_rate
    >>> round(agnostic_rate(rounds=900, R_W=1.0, R_lambda=1.0, G_w=2.0, G_lambda=1.0).value, 12)
    0.3
    """
    T = whole("rounds", rounds, low=1)
    model = math.hypot(math.sqrt(real("sigma2_w", sigma2_w, low=0.0)), real("G_w", G_w, low=0.0))
    weights = math.hypot(math.sqrt(real("sigma2_lambda", sigma2_lambda, low=0.0)), real("G_lambda", G_lambda, low=0.0))
    terms = {
        "model": 3.0 * real("R_W", R_W, low=0.0) * model / math.sqrt(T),
        "domain weights": 3.0 * real("R_lambda", R_lambda, low=0.0) * weights / math.sqrt(T),
    }
    requires = (
        Hypothesis("convex F_k, W and Lambda convex and compact", f"R_W = {R_W:g}, R_Lambda = {R_lambda:g}"),
        Hypothesis("gradients and noise bounded on W x Lambda", f"{model:g} and {weights:g}"),
        Hypothesis("the steps of agnostic_steps, averages of the query points", f"T = {T}"),
    )
    return Bound(terms, SADDLE_GAP, SOURCE, requires)


def agnostic_rate_any_steps(
    constants: AgnosticConstants, *, rounds: int, step_size: float, domain_step_size: float
) -> Bound:
    """Return the bound of the expected duality gap for constant projected steps of any size.

    Parameters
    ----------
    constants : AgnosticConstants
    rounds : int
        T.
    step_size, domain_step_size : float
        gamma_w, gamma_lambda.

    Raises
    ------
    ValueError, TypeError
        If constants are not `AgnosticConstants`, a step is not positive, or rounds below 1.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.agnostic_rate import agnostic_rate_any_steps
    >>> from fedconvex.theory.saddle_constants import agnostic_best_steps, agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> c = agnostic_constants(problem, radius=1.0)
    >>> steps = agnostic_best_steps(c, rounds=100)
    >>> round(agnostic_rate_any_steps(c, rounds=100, **steps._asdict()).value, 4)
    0.1388
    """
    instance("agnostic_rate_any_steps: constants", constants, AgnosticConstants)
    c, T = constants, whole("rounds", rounds, low=1)
    terms = _model_terms(c, T, step_size)
    if c.reach_lambda > 0.0:
        gamma = real("domain_step_size", domain_step_size, low=0.0, strict=True)
        terms["domain weights, start"] = c.reach_lambda**2 / (2.0 * gamma * T)
        terms["domain weights, steps"] = 0.5 * gamma * (c.centred**2 + c.sigma2_lambda)
        terms["domain weights, noise"] = c.reach_lambda * math.sqrt(c.sigma2_lambda / T)
    return Bound(terms, SADDLE_GAP, f"{SOURCE}, any steps", _requires(c, T, "projected steps of the domain weights"))


def agnostic_rate_entropic(
    constants: AgnosticConstants, *, rounds: int, step_size: float, domain_step_size: float
) -> Bound:
    """Return the bound of the expected duality gap for entropic steps of the domain weights.

    Parameters
    ----------
    constants, rounds, step_size, domain_step_size
        As for `agnostic_rate_any_steps`.

    Raises
    ------
    ValueError, TypeError
        If constants are not `AgnosticConstants`, a step is not positive, or rounds below 1.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.agnostic_rate import agnostic_rate_entropic
    >>> from fedconvex.theory.saddle_constants import agnostic_best_steps, agnostic_constants
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), Logistic())
    >>> c = agnostic_constants(problem, radius=1.0)
    >>> steps = agnostic_best_steps(c, rounds=100, entropic=True)
    >>> round(agnostic_rate_entropic(c, rounds=100, **steps._asdict()).value, 4)
    0.1504
    """
    instance("agnostic_rate_entropic: constants", constants, AgnosticConstants)
    c, T = constants, whole("rounds", rounds, low=1)
    terms = _model_terms(c, T, step_size)
    if c.divergence > 0.0:
        gamma = real("domain_step_size", domain_step_size, low=0.0, strict=True)
        terms["domain weights, start"] = c.divergence / (gamma * T)
        terms["domain weights, steps"] = gamma * c.width**2 / 8.0
        terms["domain weights, noise"] = c.width * math.sqrt(math.log(c.p) / (2.0 * T)) if c.random else 0.0
    requires = _requires(c, T, "entropic steps of the domain weights")
    return Bound(terms, SADDLE_GAP, f"{SOURCE}, entropic steps", requires)


def _model_terms(c: AgnosticConstants, T: int, step_size: float) -> dict[str, float]:
    gamma = real("step_size", step_size, low=0.0, strict=True)
    return {
        "model, start": c.reach_w**2 / (2.0 * gamma * T),
        "model, steps": 0.5 * gamma * (c.G_w**2 + c.sigma2_w),
        "model, noise": c.R_W * math.sqrt(c.sigma2_w / T) if c.R_lambda > 0.0 else 0.0,  # else a fixed comparator
    }


def _requires(c: AgnosticConstants, T: int, steps: str) -> tuple[Hypothesis, ...]:
    possible("AgnosticConstants", c._asdict(), c._fields[:-1])  # the last says whether anything is drawn
    return (
        Hypothesis("convex F_k, ‖w‖ <= R_W", f"R_W = {c.R_W:g}, p = {c.p}"),
        Hypothesis("gradients and noise bounded", f"G_w = {c.G_w:.4g}, sigma_w^2 = {c.sigma2_w:.4g}"),
        Hypothesis("losses and noise of the domains bounded", f"[0, {c.width:.4g}], sigma^2 = {c.sigma2_lambda:.4g}"),
        Hypothesis(f"{steps}, averages of the query points", f"T = {T}"),
    )


# ---------------------------------------------------------------- read off a setting


def _game(name: str, s: Setting, ascent: type) -> AgnosticConstants:
    """Return the constants of an AFL on a ball, or raise."""
    m, p = s.method, s.problem
    is_method(name, m, AFL)
    stationary(name, p)
    smooth, length = traits(p.loss).curved, float(np.linalg.norm(s.start))
    inside = m.radius is None or length <= m.radius * (1.0 + 1e-12)
    require(
        name,
        Hypothesis("a ball of models", f"radius {m.radius!r}", m.radius is not None),
        Hypothesis("a start in the ball", f"‖w_0‖ = {length:g}", inside),
        Hypothesis(
            "constant steps",
            f"{m.step_size!r}, {m.domain_step_size!r}",
            isinstance(m.step_size, float) and isinstance(m.domain_step_size, float),
        ),
        Hypothesis(f"{ascent.__name__} of the domain weights", f"{m.ascent!r}", isinstance(m.ascent, ascent)),
        Hypothesis("a smooth loss, whose least value over the ball is known", f"{p.loss!r}", smooth),
    )
    return afl_constants(p, m, s.start)


def _read_published(s: Setting) -> Reading:
    """Read the published rate: steps may be smaller than the theorem's, as if the gradients were larger."""
    name, m = "the rate of AFL", s.method
    c = _game(name, s, ProjectedStep)
    top = published_steps(c, s.rounds)
    at_most = [
        Hypothesis(
            f"gamma_{who} <= 2 R/(T (sigma^2 + G^2))^(1/2)", f"{mine:.4g}, {most:.4g}", mine <= most * (1 + 1e-9)
        )
        for who, mine, most in (("w", m.step_size, top.step_size), ("lambda", m.domain_step_size, top.domain_step_size))
    ]
    require(name, *at_most[: 1 if c.R_lambda == 0.0 else 2])
    scale = {"G_w": (m.step_size, c.R_W, c.sigma2_w), "G_lambda": (m.domain_step_size, c.R_lambda, c.sigma2_lambda)}
    larger = {k: math.sqrt(max(4.0 * R**2 / (s.rounds * g**2) - v, 0.0)) for k, (g, R, v) in scale.items()}
    return Reading({"rounds": s.rounds, **c.of_theorem(), **larger}, tuple(at_most))


def _reader(name: str, ascent: type) -> Callable[[Setting], Reading]:
    def read(s: Setting) -> Reading:
        told = {"constants": _game(name, s, ascent), "rounds": s.rounds}  # is the method AFL?
        return Reading(told | {"step_size": s.method.step_size, "domain_step_size": s.method.domain_step_size})

    return read


def _saddle_gap(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """max over Lambda of L(wA, .) - min over the ball of L(., lambdaA): certified from above, to 1e-12 or so."""
    m, domains = s.method, s.problem.by_domain

    def gap(state: Any) -> np.ndarray:
        top = np.asarray(m.uncertainty_set.support(domains.client_values(state.w))[0])
        return top - least_values_over_ball(s.problem, state.domain_weights, m.radius)

    return values_along(gap, s, rounds, seed, trajectories)


def _constants_of_game(s: Setting) -> dict[str, tuple[float, str]]:
    c = afl_constants(s.problem, s.method, s.start)
    how = "rigorous bound on the ball"
    names = ("G_w", "G_lambda", "sigma2_w", "sigma2_lambda", "centred", "width")
    out = {"R_W": (c.R_W, "given"), "R_Lambda": (c.R_lambda, "exact")}
    out |= {name: (float(getattr(c, name)), how) for name in names}
    return out | {"reach_w": (c.reach_w, "exact"), "reach_Lambda": (c.reach_lambda, how)}


def saddle_steps(published: bool = False, **settings: Any) -> MethodRule:
    """Return AFL on the unit ball, with the steps of its published rate, or those of the least bound for any steps.

    Parameters
    ----------
    published : bool
        As for `with_steps`.
    **settings
        Of `AFL`.

    Raises
    ------
    TypeError
        If published is neither True nor False.

    Examples
    --------
    >>> from fedconvex.theorems.agnostic_rate import saddle_steps
    >>> saddle_steps(published=True).words
    '2R/(T (sigma² + G²))^(1/2)'
    """
    flag("saddle_steps: published", published)

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> AFL:
        method = AFL(step_size=1.0, domain_step_size=1.0, radius=1.0, **feasible_work(problem, settings))
        try:
            return with_steps(method, problem, rounds=rounds, start=start, published=published)
        except AssumptionError:  # the verdict says why
            return method

    return MethodRule("2R/(T (sigma² + G²))^(1/2)" if published else "the least bound", make, True)


_ABOUT: dict[str, Any] = {
    "quantity": SADDLE_GAP,
    "sample": _saddle_gap,
    "exact": deterministic(_saddle_gap),
    "constants": _constants_of_game,
    "tolerance": lambda s, value: values_rounding(s),
    "statement": STATEMENT,
    "rounds": 50,
    "space": saddle_space(),
}
_LARGE: dict[str, Any] = {"domain_step_size": 6.0, "radius": 1.0, "batch_size": 1}
_WHERE = (three_domains, breast_cancer_domains, breast_cancer)


def _flat(**settings: Any) -> tuple[Check, ...]:
    """Nothing but the domain weights' part of the gap: few domains and many, short and longer, in several units."""
    cases = ((2, 1.0, 1), (2, 1.0, 3), (4, 1.0, 1), (2, 30.0, 1), (2, 0.03, 2))
    return tuple(Check(flat_domains(p, unit), saddle_steps(**settings), T) for p, unit, T in cases)


THEOREMS = (
    Theorem(
        name="agnostic-rate",
        title="Agnostic learning, rate of stochastic AFL (Mohri et al.)",
        bound=agnostic_rate,
        read=_read_published,
        says="Stochastic AFL with the published steps: the duality gap of the averages falls like 1/T^(1/2).",
        loose="Two thirds of the bound are attained by a linear function after one step, a third in the long run; "
        "problems whose gradients are smaller than their largest are 20 to 70 times better.",
        method=saddle_steps(published=True, batch_size=4),
        checks=(
            *_WHERE,
            Check(three_domains, saddle_steps(published=True)),
            Check(three_domains, saddle_steps(published=True, batch_size=4, sampling=WeightedSampling(1))),
            *(Check(one_row, saddle_steps(published=True), T, -1.0) for T in (1, 100)),
            *_flat(published=True),
            Check(flat_domains(2, 1.0), saddle_steps(published=True), 400),
            Check(rare_slopes(30, 0.0), saddle_steps(published=True, batch_size=1), 30, -1.0),
            Check(rare_losses(240, 0.0), saddle_steps(published=True, batch_size=1), 300),
            Check(three_domains, fixed_step(2.0, AFL, domain_step_size=0.1, radius=1.0)),  # hypotheses that fail
            Check(three_domains, saddle_steps(published=True, ascent=EntropicStep())),
            Check(three_domains, fixed_step(0.25, AFL, domain_step_size=0.1)),
        ),
        **_ABOUT,
    ),
    Theorem(
        name="agnostic-rate-any-steps",
        title="Agnostic learning, rate of AFL for any steps",
        bound=agnostic_rate_any_steps,
        read=_reader("the rate of AFL, any steps", ProjectedStep),
        says="The same for constant steps of any size, with the distances from the start and losses up to a constant.",
        loose="Attained by a linear function after one step from the end of the ball; elsewhere 5 to 20 times.",
        method=saddle_steps(batch_size=4),
        checks=(
            *_WHERE,
            Check(three_domains, saddle_steps()),
            *(Check(line, saddle_steps(), 1, -1.0) for line in (one_row, one_steep_row)),
            *_flat(),
            Check(rare_slopes(24, 0.3), given(AFL, step_size=3.0, **_LARGE), 500),
            Check(rare_losses(30, 0.3), given(AFL, step_size=1.0, **_LARGE), 600),
        ),
        **_ABOUT,
    ),
    Theorem(
        name="agnostic-rate-entropic",
        title="Agnostic learning, rate of AFL with entropic steps",
        bound=agnostic_rate_entropic,
        read=_reader("the rate of AFL, entropic steps", EntropicStep),
        says="Entropic steps of the domain weights pay log p in the place of the number of domains.",
        loose="The largest losses on the ball count, and noise by its range: 4 to 20 times; 1.1 on flat domains.",
        method=saddle_steps(ascent=EntropicStep()),
        checks=(
            *_WHERE,
            Check(three_domains, saddle_steps(ascent=EntropicStep(), batch_size=4)),
            *(Check(line, saddle_steps(ascent=EntropicStep()), 1, -1.0) for line in (one_row, one_steep_row)),
            *_flat(ascent=EntropicStep()),
            Check(rare_slopes(24, 0.3), given(AFL, step_size=3.0, ascent=EntropicStep(), **_LARGE), 500),
        ),
        **_ABOUT | {"space": saddle_space(ascent=EntropicStep())},
    ),
)
