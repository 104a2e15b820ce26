"""FedAvg on strongly convex functions with decaying steps: Li, Huang, Yang, Wang, Zhang (ICLR 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants.default_steps import Schedule
from fedconvex.methods import Decay, FedAvg, ProportionalSampling, ScaledSampling, UniformSampling
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.assumptions import known_scheme
from fedconvex.theorems.parts.averaging_formulas import decaying_steps
from fedconvex.theory.moments import Moments

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "Schedule",
    "decaying_step",
    "fedavg_schedule",
    "fedavg_scheme_one",
    "fedavg_scheme_two",
    "fedavg_step_by_step",
    "fedavg_strongly_convex",
]

SOURCE = "Li et al. 2020, arXiv:1907.02189"
_RECORDED = 256  # trajectories that are followed step by step to find the ball that a run stays in

STATEMENT = Statement(
    page="fedavg_strongly_convex",
    title="FedAvg on strongly convex functions",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
N devices with weights p_k, F = sum p_k F_k, E local SGD steps between synchronisations. **t counts local steps**;
the start is w_0 and step t = 0, 1, ... has size eta_t = 2/(mu (gamma + t)), the same on all devices.
""",
    assumptions="""
A1 every F_k is L-smooth; A2 every F_k is mu-strongly convex; A3 E‖g_k - grad F_k‖^2 <= sigma_k^2 and A4
E‖g_k‖^2 <= G^2 at every local iterate of the run.
""",
    statement="""
kappa = L/mu, gamma = max{8 kappa, E}, Gamma = F* - sum p_k F_k*, B = sum p_k^2 sigma_k^2 + 6 L Gamma
+ 8 (E-1)^2 G^2, and C = 0 (full participation), (4/K) E^2 G^2 (scheme I: K devices drawn with replacement with
probabilities p_k, plain average) or (4/K) E^2 G^2 (N-K)/(N-1) (scheme II: K of N uniformly without replacement,
equal weights), times N sum p_k^2 for unequal ones, with the moves of a round weighted by p_k N/K. At every
synchronisation t = E r

E F(w_t) - F* <= (L/2) max{4(B + C)/mu^2, gamma ‖w_0 - w*‖^2}/(gamma + t)
              <= [kappa/(gamma + t)] (2(B + C)/mu + (mu gamma/2) ‖w_0 - w*‖^2).

Step by step (this project's, never above): E F(w_t) - F* <= (L/2) Delta_t at t = E r, Delta_0 = ‖w_0 - w*‖^2 and

Delta_{t+1} = eta_t^2 sum p_k^2 sigma_k^2 + min{ ((1 - eta_t mu) Delta_t^(1/2) + eta_t L s_t G)^2,
                                                 (1 - eta_t mu)^2 (Delta_t + s_t^2 G^2) },

s_t the sum of the steps since the last synchronisation (0 right after it); at the end of a round, where clients are
sampled, plus (1/K) s^2 G^2 (scheme I) or (1/K) s^2 G^2 (N-K)/(N-1) (scheme II; times N sum p_k^2 if weighted), s the
sum of the round's E steps.
""",
    source="""
Li et al., "On the convergence of FedAvg on non-IID data", arXiv:1907.02189, Theorems 1-3.
""",
    differs="""
The paper prints gamma + T - 1 and w_1 beside eta_t = 2/(mu (gamma + t)). That is true as well (proof above) but
numbers steps from 1; here the start is w_0 and the first step eta_0, so that ``Decay(*fedavg_schedule(...))`` runs
it. The value is the maximum, which is sharper; the sum of the terms is the paper's form. mu is the smallest mu_k.
Scheme II with unequal weights is proven here for moves (`ScaledSampling`). The paper prints (N/K) sum p_k w_k, over the
models: at w_k = w* that alone has variance (N-K)/(K(N-1)) (N sum p_k^2 - 1) ‖w*‖^2, whatever the steps, and does not
converge; its proof takes p_k = 1/N, and for other weights it scales the objectives by N p_k, and L and G with them.
""",
    meaning="""
1/t convergence with local steps and sampling, if steps decay. G² over R^d is infinite for strongly
convex functions; take it over a ball that holds the run, or along the run.

**Theorem 4 (steps must decay).** With a fixed step, E > 1 and full gradients FedAvg converges to another point. On
quadratics w_inf - w* = (η(E-1)/2) H⁻¹ Σ p_k H_k∇F_k(w*) + O(η²): `test_fixed_steps_leave_a_bias`. The paper's
Ω((E-1)η)‖w*‖ is quoted from memory.
""",
    proof="""
Indices are consistent here. v̄_{t+1} = Σ p_k(w_k - η_t g_k): the virtual average of all devices, sampled or
not; w̄ what the server holds after a synchronisation, w̄ = v̄ in between and with full participation. Δ_t = E‖w̄_t -
w*‖².

1. One step. G_k(x) = x - η_t∇F_k(x) is a contraction by 1-ημ, as η_t ≤ 1/(4L) ≤ 2/(L+μ). As Σ p_k∇F_k(w*) = 0, Σ
   p_kG_k(w_k) - w* = Σ p_k(G_k(w_k) - G_k(w*)), whose square is at most (1-ημ)² Σ p_k‖w_k - w*‖² = (1-ημ)²(‖w̄ - w*‖²
   + Σ p_k‖w_k - w̄‖²). Noise, of mean zero given the history and independent over devices, adds η² Σ p_k²σ_k²:
   E‖v̄_{t+1} - w*‖² ≤ (1-ημ)²(Δ_t + E Σ p_k‖w_k - w̄_t‖²) + η² Σ p_k²σ_k². (The paper's expansion of the square has
   6LΓη² besides, and twice the drift.)
2. Drift: with t_0 the last synchronisation, E Σ p_k‖w_k - w̄‖² ≤ Σ p_k E‖w_k - w_{t_0}‖² ≤ (E-1)²η_{t_0}²G² ≤
   4η_t²(E-1)²G²; the last since γ ≥ E makes η_{t_0} ≤ 2η_t. So 1 and 2: (1-η_tμ)Δ_t + η_t²B', B'
   = Σ p_k²σ_k² + 4(E-1)²G² ≤ B.
3. Sampling, at a synchronisation only: E_S w̄ = v̄ and E‖w̄ - v̄‖² is 1/K (II: times (N-K)/(N-1)) of Σ p_k‖v_k - v̄‖²
   ≤ Σ p_k‖v_k - w_{t_0}‖² ≤ E²η_{t_0}²G² ≤ 4E²η_t²G²: η_t²C. Scaled: w̄ - w_{t_0} is the mean over the sample of a_k =
   N p_k (v_k - w_{t_0}), whose mean over all is v̄ - w_{t_0}; its variance is (N-K)/(K(N-1)) of (1/N) Σ‖a_k‖² - ‖v̄ -
   w_{t_0}‖² ≤ N Σ p_k²‖v_k - w_{t_0}‖² ≤ N Σ p_k² · E²η_{t_0}²G².
4. Δ_{t+1} ≤ (1-η_tμ)Δ_t + η_t²(B+C); η_0 = 2/(μγ) ≤ 1/(4L).
5. v = max{4(B+C)/μ², γΔ_0}. Claim Δ_t ≤ v/(γ+t). True at t = 0. With n = γ+t: Δ_{t+1} ≤ (1 - 2/n)v/n + v/n² =
   v(n-1)/n² ≤ v/(n+1), since (n-1)(n+1) ≤ n².
6. F(w) - F* ≤ (L/2)‖w - w*‖². The maximum is at most the sum. ∎

**Step by step.** 1 with the drift E Σ p_k‖w_k - w̄‖² ≤ s_t²G² (Minkowski) is the second entry of the minimum. For the
first, with F = Σ p_kF_k: Σ p_kG_k(w_k) - w* = [w̄ - η∇F(w̄) - w*] - η Σ p_k(∇F_k(w_k) - ∇F_k(w̄)), because Σ p_k(w_k - w̄)
= 0. The bracket has norm ≤ (1-ημ)‖w̄ - w*‖, the rest ≤ ηL(Σ p_k‖w_k - w̄‖²)^{1/2}. Take L² norms (Minkowski) and add the
noise. Both right sides increase with Δ_t, so their minimum may be iterated. At a synchronisation 3 adds the variance
of sampling, ≤ s²G² (share). Since s_t ≤ (E-1)η_{t_0} ≤ 2(E-1)η_t, the second entry alone gives B', and the recursion
with C stays below v/(γ+t) by 5: never above the closed form. With one local step no G is left, and F = μ‖w‖²/2 with
noise attains it. ∎

**6LΓ is superfluous**, and half of 8(E-1)²G²: 2 has B', and 4 to 6 hold with it in the place of B. ∎

**The printed indices.** The paper writes [κ/(γ+T-1)](2B/μ + (μγ/2)E‖w_1 - w*‖²) beside η_t = 2/(μ(γ+t)). With steps
numbered from 1 that is true too, though not by step 5: put n = γ+t-1, so that steps are 2/(μ(n+1)); then (1 -
2/(n+1))v/n + v/(n+1)² ≤ v/(n+1) ⇔ (n-1)/n + 1/(n+1) ≤ 1 ⇔ 1/(n+1) ≤ 1/n. False are the mixtures: γ+t+1 with w_0
(fails at t = 0), and γ+T with w_1 (fails at T = 1): `test_planted_index_off_by_one`.
""",
    loose="""
Closed form: 3 to 7 orders of magnitude with local steps, mostly by 8(E-1)²G²; a factor 3 in noise alone. Step by step:
sharp for one local step and κ = 1; the drift of a step counts by η²LG instead of ηG: one power of t less in the end.
Drift is needed by steep and flat losses, sampling by one of many equal clients with noise; 6LΓ is superfluous.
""",
    figure="""
Expected suboptimality over local steps, exact, and its bounds. Left: for 1, 5 and 20 local steps a round the exact
curves meet at 3.6e-5 after 4000 steps, the bounds are 0.05, 11 and 254. Right: sampling 3 of 10 devices raises the
exact curve twentyfold, the bound by a quarter.
""",
    caption="""
Least squares, ten devices, batches of 5, the theorem's own steps, σ_k and G exact along the run. Slopes agree: both
fall like 1/t. Levels do not: after 4000 steps the bound is 1.5e3 (E = 1), 3e5 (E = 5) and 7e6 (E = 20) times the
exact value. The step from one to the other is 8(E-1)²G²; in truth E hardly matters here. Sampling costs a factor 16
to 21 in truth and a quarter in the bound, where 8(E-1)²G² hides it.
""",
)


def fedavg_schedule(constants: Constants, *, local_steps: int) -> Schedule:
    """Return the step sizes that all three theorems ask for.

    Parameters
    ----------
    constants, local_steps
        As for `fedavg_strongly_convex`; L and mu are enough.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_schedule
    >>> fedavg_schedule(Constants(L=4.0, mu=0.5), local_steps=5)
    Schedule(scale=4.0, shift=64.0)
    """
    L, mu, _ = _curvature(f"{SOURCE}, step sizes", constants)
    return default_steps.decaying_step(L, mu, whole("local_steps", local_steps, low=1)).value


def fedavg_strongly_convex(constants: Constants, *, local_steps: int, rounds: int) -> Bound:
    """Return Theorem 1: all devices take part.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), Gamma, D = ‖w_0 - w*‖, sigma2_k (or sigma2), and with local_steps > 1 also G2; p or K.
    local_steps, rounds : int
        E and the number r of rounds done; t = E r local steps.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, or mu = 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_strongly_convex
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, K=2)
    >>> fedavg_strongly_convex(constants, local_steps=1, rounds=8).value
    0.25
    """
    return _bound(f"{SOURCE}, Theorem 1", constants, local_steps, rounds, None, 0.0)


def fedavg_scheme_one(constants: Constants, *, local_steps: int, rounds: int, participants: int) -> Bound:
    """Return Theorem 2: K devices drawn with replacement with probabilities p_k, plain average of the K results.

    Parameters
    ----------
    constants, local_steps, rounds, participants
        As for `fedavg_strongly_convex`, G2 among the constants; K.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_scheme_one
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, G2=1.0, K=4)
    >>> fedavg_scheme_one(constants, local_steps=1, rounds=8, participants=2).terms["sampling"]
    0.25
    """
    theorem, K = f"{SOURCE}, Theorem 2 (scheme I)", whole("participants", participants, low=1)
    return _bound(theorem, constants, local_steps, rounds, K, 1.0)


def fedavg_scheme_two(constants: Constants, *, local_steps: int, rounds: int, participants: int) -> Bound:
    """Return Theorem 3: K of N devices, uniformly without replacement; moves weighted by p_k N/K where p_k are unequal.

    Parameters
    ----------
    constants, local_steps, rounds, participants
        As for `fedavg_strongly_convex`, G2 among the constants; K.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_scheme_two
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, G2=1.0, K=4)
    >>> round(fedavg_scheme_two(constants, local_steps=1, rounds=8, participants=2).terms["sampling"], 4)
    0.1667
    """
    theorem = f"{SOURCE}, Theorem 3 (scheme II)"
    K = whole("participants", participants, low=1, high=(p := client_weights(theorem, constants)).size)
    return _bound(theorem, constants, local_steps, rounds, K, K * share_of_moves(theorem, "scaled", K, p))


class _Given(NamedTuple):
    """The numbers of a run, with their hypotheses."""

    L: float
    mu: float
    Gamma: float
    D: float
    noise: float  # sum p_k^2 sigma_k^2
    G2: float  # 0 where it is not needed
    gamma: float
    steps: int  # E r
    requires: tuple[Hypothesis, ...]


def _given(theorem: str, constants: Constants, E: int, r: int, sampled: bool) -> _Given:
    L, mu, requires = _curvature(theorem, constants)
    Gamma, D = known_constants(theorem, constants, "Gamma", "D")
    p = client_weights(theorem, constants)
    noise = float(p**2 @ client_noise(theorem, constants, p.size))
    used = ["sigma2_k" if constants.sigma2_k is not None else "sigma2"]
    G2 = 0.0
    if E > 1 or sampled:
        (G2,) = known_constants(theorem, constants, "G2")
        used.append("G2")
        requires += (Hypothesis("E‖g_k‖^2 <= G^2 along the run", f"G^2 = {G2:g}"),)
    requires += where_taken(constants, *used)
    gamma = fedavg_schedule(constants, local_steps=E).shift
    requires += (Hypothesis("steps 2/(mu (gamma + t)), t = 0, 1, ...", f"2/mu = {2 / mu:g}, gamma = {gamma:g}"),)
    return _Given(L, mu, float(Gamma), float(D), noise, float(G2), gamma, E * r, requires)


def _bound(
    theorem: str, constants: Constants, local_steps: int, rounds: int, participants: int | None, share: float
) -> Bound:
    E, r = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=0)
    g = _given(theorem, constants, E, r, participants is not None and share > 0.0)
    unit = 2.0 * g.L / (g.mu**2 * (g.gamma + g.steps))
    terms = {
        "start": 0.5 * g.L * g.gamma * g.D**2 / (g.gamma + g.steps),
        "noise": unit * g.noise,
        "heterogeneity": unit * 6.0 * g.L * g.Gamma,
        "drift": unit * 8.0 * (E - 1) ** 2 * g.G2,
    }
    if participants is not None:
        terms["sampling"] = unit * share * 4.0 / participants * E**2 * g.G2
    terms = {name: float(v) for name, v in terms.items()}
    return Bound(terms, LAST_SYNCHRONISED, theorem, g.requires, combine=_larger)


def fedavg_step_by_step(
    constants: Constants, *, local_steps: int, rounds: int, scheme: str = "everyone", participants: int = 1
) -> Bound:
    """Return the sharper form of all three theorems: their recursion step by step, or a contraction where that is less.

    Parameters
    ----------
    constants, local_steps, rounds
        As for `fedavg_strongly_convex`.
    scheme : str
        "everyone", "proportional" (scheme I), "uniform" (scheme II) or "scaled" (scheme II, any weights).
    participants : int
        Devices drawn in a round, for the schemes.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_strongly_convex import fedavg_step_by_step
    >>> constants = Constants(L=1.0, mu=1.0, Gamma=0.0, D=1.0, sigma2=0.0, K=2)
    >>> round(fedavg_step_by_step(constants, local_steps=1, rounds=1).value, 6)  # (1 - 2/8)^2/2
    0.28125
    """
    theorem = "fedconvex, sharper form of Li et al. 2020 (docs/theory/fedavg_strongly_convex.md)"
    E, r = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=0)
    share = share_of_moves(theorem, scheme, participants, client_weights(theorem, constants))
    g = _given(theorem, constants, E, r, share > 0.0)
    quiet = g._replace(noise=0.0, G2=0.0)
    parts = [_distance(x, E, s) for x, s in ((quiet, 0.0), (quiet._replace(noise=g.noise), 0.0), (g, 0.0), (g, share))]
    values = 0.5 * g.L * np.diff([0.0, *parts])
    names = ("start", "noise", "drift", "sampling") if share > 0.0 else ("start", "noise", "drift")
    terms = {name: float(v) for name, v in zip(names, values, strict=False)}
    return Bound(terms, LAST_SYNCHRONISED, theorem, g.requires)


def share_of_moves(theorem: str, scheme: str, participants: int, p: np.ndarray) -> float:
    """Return the variance of what a sample moves, as a share of the squared length s^2 G^2 of a device's move."""
    if not (isinstance(scheme, str) and scheme == "scaled"):
        return sampling_share(theorem, scheme, participants, p)
    K = whole("participants", participants, low=1, high=p.size)
    return (p.size - K) / max(p.size - 1, 1) / K * p.size * float(p @ p)


def _distance(g: _Given, E: int, share: float) -> float:
    """Return the bound of E‖w_t - w*‖^2 after all steps."""
    delta, moved = g.D**2, 0.0
    for t in range(g.steps):
        eta = 2.0 / (g.mu * (g.gamma + t))
        moved = 0.0 if t % E == 0 else moved  # the local steps since the last synchronisation, summed
        near = ((1.0 - eta * g.mu) * math.sqrt(delta) + eta * g.L * moved * math.sqrt(g.G2)) ** 2
        far = (1.0 - eta * g.mu) ** 2 * (delta + moved**2 * g.G2)
        delta, moved = min(near, far) + eta**2 * g.noise, moved + eta
        if t % E == E - 1:
            delta += share * moved**2 * g.G2
    return delta


def _larger(terms: Sequence[float]) -> float:
    """Return the start term or the sum of all others: the induction needs the larger one."""
    return max(terms[0], sum(terms[1:]))


def _curvature(theorem: str, constants: Constants) -> tuple[float, float, tuple[Hypothesis, ...]]:
    """L, min mu_k and the hypotheses A1, A2."""
    (L,) = known_constants(theorem, constants, "L")
    mu = least_convexity(theorem, constants)
    text = "every F_k mu-strongly convex, 0 < mu <= L"
    requires = require(
        theorem,
        Hypothesis("every F_k L-smooth", f"L = {L:g}"),
        Hypothesis(text, f"mu = {mu:g}, L = {L:g}", 0.0 < mu <= L * (1 + 1e-12)),
        *where_taken(constants, "mu_k" if constants.mu_k is not None else "mu"),
    )
    return float(L), mu, requires


# ---------------------------------------------------------------- read off a setting


def _bound_of_scheme(constants: Constants, *, scheme: str, participants: int, **run: Any) -> Bound:
    """Return Theorem 1, 2 or 3 by who takes part."""
    if scheme != "scaled":
        require(SOURCE, known_scheme(scheme))
    if scheme == "everyone":
        return fedavg_strongly_convex(constants, **run)
    if scheme == "uniform":
        require(SOURCE, equal_weights(client_weights(SOURCE, constants), "or ScaledSampling"))
    theorem = fedavg_scheme_one if scheme == "proportional" else fedavg_scheme_two
    return theorem(constants, participants=participants, **run)


def along_the_run(s: Setting) -> Reading:
    """Read sigma and G along the run: exact for squared loss, over the ball of the run otherwise."""
    name, m = "Li et al. 2020", s.method
    local = plain_local_sgd(name, s)
    stationary(name, s.problem)
    c = s.constants()
    tau, eta = int(local.steps[0]), local.step_size
    mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
    gamma = max(8.0 * float(c.L or 0.0) / mu, tau) if mu > 0.0 else math.nan
    right = isinstance(eta, Decay) and not eta.by_round
    right = right and eta.power == 1.0 and math.isclose(eta.scale, 2.0 / mu) and math.isclose(eta.shift, gamma)
    wanted = f"the step sizes Decay(2/mu, max(8 L/mu, E)) = Decay({2 / mu if mu else math.nan:g}, {gamma:g})"
    require(name, Hypothesis(wanted, f"{eta!r}", bool(right)))
    if traits(s.problem.loss).quadratic:
        along = Moments.of(m, s.problem).gradients(rounds=s.rounds, start=s.start)
        how = dict(c.how) | {"G2": MEASURED, "sigma2_k": MEASURED}
        c = replace(c, G2=along.G2, sigma2_k=along.sigma2_k, sigma2=float(along.sigma2_k.max()), how=how)
    elif not math.isfinite(float(c.G2 or math.inf)):
        c = s.constants(radius=_reach(s))
    t = traits_of(m, s.problem)
    numbers = {"local_steps": tau, "rounds": s.rounds, "scheme": t.sampling, "participants": t.participants}
    return Reading({"constants": c, **numbers})


def _reach(s: Setting) -> float:
    """Largest distance from w* of any local iterate of any client, in recorded trajectories of this seed."""
    p, every = s.problem, replace(s.method, participation=1.0, shadow=True)
    clients = np.tile(np.arange(p.federation.K), (_RECORDED, 1))
    key, w, far = key_from_seed(s.seed), p.solve().w, 0.0
    runs = iterate(s.method, p, rounds=s.rounds, seed=s.seed, trajectories=_RECORDED, start=s.start)
    for t, state in runs:
        if t == s.rounds:
            break
        draws = Draws(key, np.arange(_RECORDED), t)
        reply, _ = every.local(p, every.broadcast(state), clients, None, draws)
        error = np.concatenate([(state.w - w)[:, None], (reply.path - w).reshape(_RECORDED, -1, *w.shape)], axis=1)
        far = max(far, float(np.sqrt(np.sum(error.reshape(*error.shape[:2], -1) ** 2, axis=2).max())))
    return far


def decaying_step(**settings: Any) -> MethodRule:
    """Return the rule that gives FedAvg the step sizes of Li et al.

    Examples
    --------
    >>> from fedconvex.theorems.fedavg_strongly_convex import decaying_step
    >>> decaying_step(local_steps=5).words
    '2/(mu (gamma + t))'
    """

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedAvg:
        c = problem.constants()
        mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
        if not mu > 0.0 or not math.isfinite(float(c.L or math.inf)):  # the verdict says that they are needed
            return FedAvg(step_size=1.0 / smoothness(problem), **feasible_work(problem, settings))
        schedule = fedavg_schedule(replace(c, mu=mu), local_steps=int(settings.get("local_steps", 1)))
        return FedAvg(step_size=Decay(*schedule), **feasible_work(problem, settings))

    return MethodRule("2/(mu (gamma + t))", make)


def with_scheme(scheme: int, settings: Mapping[str, Any], sampled: int = 0) -> dict[str, Any]:
    """Return settings with everybody (0), with draws by weight (1), or uniform ones, plain (2) or scaled (3).

    So many are drawn as ``sampled`` says; with 0 half of the clients.
    """
    kind = (None, ProportionalSampling, UniformSampling, ScaledSampling)[scheme]
    return dict(settings) if kind is None else {**settings, "scheme": lambda half: kind(sampled or half)}


def _searched(scheme: int = 0, sampled: int = 0, **settings: Any) -> MethodRule:
    """Return the rule with one of four ways to take part."""
    return decaying_step(**with_scheme(scheme, settings, sampled))


def with_schemes(most: int, **space: Any) -> Space:
    """Return the space of FedAvg with decaying steps and every scheme of sampling."""
    return local_sgd_space(_searched, more={"scheme": Whole(0, 3)}, weighted=True, most=most, **space)


_SPACE = with_schemes(16)

THEOREMS = (
    Theorem(
        name="fedavg-strongly-convex",
        title="FedAvg, strongly convex, decaying steps (Li et al.)",
        quantity=LAST_SYNCHRONISED,
        bound=_bound_of_scheme,
        formula=decaying_steps(SOURCE),
        read=along_the_run,
        statement=STATEMENT,
        says="With steps that decay like 1/t the last model converges like 1/t, also if clients are sampled.",
        loose="3 to 7 orders of magnitude with local steps, mostly by 8(E-1)²G²; a factor 3 in noise alone.",
        method=decaying_step(local_steps=3, batch_size=4),
        rounds=30,
        checks=(
            unequal_hessians,
            Check(steep_and_flat, decaying_step(local_steps=1000), 1, at_minimiser),
            shifted_logistic,
            diabetes,
            *(
                Check(instance, decaying_step(local_steps=3, batch_size=4, scheme=scheme))
                for instance in (unequal_hessians, diabetes)
                for scheme in (ProportionalSampling, UniformSampling)
            ),
            *(
                Check(instance, decaying_step(local_steps=3, batch_size=4, scheme=ScaledSampling))
                for instance in (uneven_squares, diabetes_unequal)
            ),
            Check(unequal_hessians, fixed_step(0.25, local_steps=3)),  # steps that do not decay
        ),
        space=_SPACE,
    ),
    Theorem(
        name="fedavg-strongly-convex-sharp",
        title="FedAvg, strongly convex, decaying steps, step by step",
        quantity=LAST_SYNCHRONISED,
        bound=fedavg_step_by_step,
        read=along_the_run,
        statement=STATEMENT,
        says="The recursion of Li et al. step by step, with a contraction where that is less: never above their bound.",
        loose="Sharp for one local step where L = mu; the drift counts by the largest gradients of the run.",
        method=decaying_step(local_steps=3, batch_size=4),
        rounds=30,
        checks=(
            unequal_hessians,
            diabetes,
            *(
                Check(unequal_hessians, decaying_step(local_steps=3, batch_size=4, scheme=scheme))
                for scheme in (ProportionalSampling, UniformSampling)
            ),
            Check(uneven_squares, decaying_step(local_steps=3, batch_size=4, scheme=ScaledSampling)),
        ),
        space=_SPACE,
    ),
)
