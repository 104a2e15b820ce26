"""FedAvg and SCAFFOLD on strongly convex functions: rounds as contractions, with constants at the optimum only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods import SCAFFOLD, Decay, FedAvg, UniformSampling
from fedconvex.theorems.fedavg_strongly_convex import decaying_step, with_scheme
from fedconvex.theorems.kit import *
from fedconvex.theory.moments import Moments

__all__ = ["STATEMENT", "THEOREMS", "fedavg_contraction", "scaffold_contraction", "scaffold_factor"]

S1 = "fedconvex, FedAvg as a contraction (docs/theory/contraction.md, S1)"
S2 = "fedconvex, SCAFFOLD as a contraction (docs/theory/contraction.md, S2)"

STATEMENT = Statement(
    page="contraction",
    title="Rounds as contractions",
    scope=EVERYWHERE,
    setting="""
F = sum p_i F_i, T rounds of tau local steps, step eta_j in step j; all clients take part where nothing else is said.
S1: FedAvg, mini-batch or full gradients, steps that may differ within and between rounds. In a round all K clients take
part, or m draws with replacement with probabilities p_i, or m clients uniformly (equal weights); plain averages.
S2: SCAFFOLD, option II, full gradients, one step eta, server step eta_g, controls c_i = 0 at the start.
""",
    assumptions="""
Every F_i is mu-strongly convex, mu > 0, and L-smooth; every eta_j <= 2/(L + mu). S1: stochastic gradients are unbiased
given the history, independent over clients, of expected variance at most sigma_i^2 at local iterates.
""",
    statement="""
Write c = (L + mu)/2, l = (L - mu)/2, zeta_*^2 = sum p_i ‖grad F_i(x*)‖^2, and in a round q_j = 1 - eta_j c,
r_j = 1 - eta_j mu. From R = B = M = V = 0 and P = 1, for j = 0, ..., tau - 1, all from the old values,

    B <- q_j B + eta_j l R,   R <- r_j R + eta_j,   M <- q_j M + eta_j l (V + M^2)^(1/2),   V <- r_j^2 V + eta_j^2,
    P <- r_j P.

S1: with k = B zeta_* + M sum p_i sigma_i, u = R zeta_* + M (sum p_i sigma_i^2)^(1/2), s = 0 with all clients, 1/m with
replacement, (K-m)/((K-1) m) without, Delta_0 = ‖x_0 - x*‖^2 and in every round

    Delta <- (1-s) [(P Delta^(1/2) + k)^2 + V sum p_i^2 sigma_i^2] + s [(P Delta^(1/2) + u)^2 + V sum p_i sigma_i^2],

    E F(x_T) - F* <= (L/2) E‖x_T - x*‖^2 <= (L/2) Delta_T;

if all F_i are quadratic, with M = 0, A_0 = ‖x_0 - x*‖, A <- P A + k, and P^2 (Delta - A^2) + (P A + k)^2 in the place
of (P Delta^(1/2) + k)^2, likewise with u.

S2: with e_0 = ‖x_0 - x*‖ and D_0 = zeta_*, in every round from a = e, d = 0, s = 0, tau times, from the old values,

    s <- q s + u,   a <- q a + eta l u,   d <- q d + eta l u + eta D,   u = (a^2 + d^2)^(1/2),

and then e <- |1 - eta_g (1 - q^tau)| e + eta_g eta l s,  D <- (1 - (1 - q^tau)/(tau eta c)) D + (l/tau) s:

    F(x_T) - F* <= (L/2) ‖x_T - x*‖^2 <= (L/2) e_T^2.
""",
    source="""
This project. What they sharpen: Li et al. (ICLR 2020), Theorem 1; Karimireddy et al. (ICML 2020), Theorem III.
""",
    differs="""
S1 and Li et al.: no bound G^2 of the gradients, no Gamma, steps up to 2/(L + mu) instead of 1/(4 L), any schedule;
with sampling too.
S2 and Karimireddy et al.: no step condition 1/(81 L), the factor (1 - mu h + O(h^2))^2 of F - F* instead of
1 - mu h/2, unequal weights; but full participation and full gradients only.
""",
    meaning="""
**S1.** One step with a gradient of curvature between μ and L is the step of the parabola c‖·‖²/2, and a rest that is at
most l times as long as the distance. Parabolas of one curvature have no drift, so drift comes from l alone: B = η²l
τ(τ-1)/2 to first order, M = (2/3)η²lτ^{3/2}. Noise is averaged over clients (Σ p_i²σ_i²); what does not average
is the bias M that noise leaves in curved functions. With a constant step the bound settles near (L/2)(Bζ_*/(1-P))²,
with η of order 1/t it falls like 1/t. Sampling adds what clients differ by, Rζ_* with R = ητ to first order.

**S2.** No heterogeneity in the limit: e and D go to zero together, or not at all. `scaffold_factor` is the factor by
which the *distance* shrinks in a round in the long run, that of F - F* is its square. With η_g = 1 and κ ≥ 10 it is
below 1 for h = τη up to about 3.5/(Lκ^{1/2}), whatever τ is: for κ = 10 at h = 1/L (0.936 for τ = 3), for κ = 100 at
0.3/L (0.998, squared 0.996; 1 - μh/2 at 1/(81L), for F - F*, is 0.99994). For τ = 1 it is below 1 at all steps, with
η_g > 1 at longer h = τη_gη than with η_g = 1. Where it is above 1, S2 proves nothing.
""",
    proof="""
**A lemma.** g(x) = ∇F_i(x) - cx is l-Lipschitz: ∇F_i - μ id is the gradient of a convex (L-μ)-smooth function, hence
cocoercive, ‖v‖² ≤ (L-μ)⟨v, x-y⟩ for its increments v, which says ‖v - l(x-y)‖ ≤ l‖x-y‖; and cx - μx = lx. A gradient
step G = id - η∇F_i = (1-ηc) id - ηg has Lipschitz constant |1-ηc| + ηl = 1-ημ = r where ηc ≤ 1.

**S1.** One round from x, d = ‖x - x*‖. Four kinds of local models of client i: y with noise, m = E[y | x], ŷ without
noise from x, z without noise from x*.

1. ‖ŷ - z‖ ≤ Pd: both are images under the same maps with constants r_j.
2. z: ‖z_{j+1} - x*‖ ≤ r_j‖z_j - x*‖ + η_j‖∇F_i(x*)‖, so ‖z_j - x*‖ ≤ R_j‖∇F_i(x*)‖. Average: b = Σ p_i z_i - x* obeys
   b⁺ = b - η Σ p_i(∇F_i(z_i) - ∇F_i(x*)), since Σ p_i∇F_i(x*) = 0; the bracket is c(z_i - x*) plus at most l‖z_i -
   x*‖. So ‖b⁺‖ ≤ q‖b‖ + ηlR Σ p_i‖∇F_i(x*)‖, and the last sum is at most ζ_*: ‖b‖ ≤ Bζ_*.
3. Variance: Var y = E‖y - E y‖² given x. Var G(y) ≤ E‖G(y) - G(m)‖² ≤ r² Var y, and the noise, of mean zero given y,
   adds at most η²σ_i²: Var y ≤ Vσ_i².
4. Bias of noise, zero if g is affine: m⁺ - ŷ⁺ = (1-ηc)(m - ŷ) - η E[g(y) - g(ŷ)], and E‖y - ŷ‖ ≤ (Var y + ‖m -
   ŷ‖²)^{1/2}: ‖m - ŷ‖ ≤ Mσ_i,
   as the map is homogeneous in σ_i. If σ_i² bounds the variance in the mean over x only, the same recursions bound (E
   Var y)^{1/2} and (E‖m - ŷ‖²)^{1/2}, by Minkowski's inequality in each step, and 5 needs no more.
5. The average of all, v̄ - x* = Σ p_i(y_i - m_i) + Σ p_i(m_i - ŷ_i) + Σ p_i(ŷ_i - z_i) + b. Given x the first sum has
   mean zero and, clients being independent, mean square at most V Σ p_i²σ_i²; the others are at most M Σ p_iσ_i, Pd and
   Bζ_*. So E‖v̄ - x*‖² ≤ E(Pd + k)² + V Σ p_i²σ_i², and (E(Pd + k)²)^{1/2} ≤ P(E d²)^{1/2} + k by Minkowski's
   inequality. Single clients likewise, in the norm (E Σ p_i‖·‖²)^{1/2} and with ‖z_i - x*‖ ≤ R‖∇F_i(x*)‖ in the place
   of b: E Σ p_i‖y_i - x*‖² ≤ (P(E d²)^{1/2} + u)² + V Σ p_iσ_i².
6. Given the y_i, the average x⁺ of those drawn has mean v̄ and variance s Σ p_i‖y_i - v̄‖² = s(Σ p_i‖y_i - x*‖² - ‖v̄ -
   x*‖²), and 0 ≤ s ≤ 1: E‖x⁺ - x*‖² = (1-s) E‖v̄ - x*‖² + s E Σ p_i‖y_i - x*‖². Insert 5; all increases with E d². F is
   L-smooth and ∇F(x*) = 0. If the F_i are quadratic, all maps are affine: a = ‖E x - x*‖ obeys a⁺ ≤ Pa + k with M = 0,
   and the variance of v̄, or of y_i, is at most P² times that of x plus its V term, so that E‖v̄ - x*‖² ≤ (Pa + k)² +
   P²(E d² - a²) + V Σ p_i²σ_i², which increases with a; likewise the y_i. ∎

**S2.** u_i = y_i - x*, ε_i = c_i - ∇F_i(x*), δ_i = ε_i - Σ p_jε_j; Σ p_i∇F_i(x*) = 0 makes c = Σ p_jε_j. With the
lemma ∇F_i(y_i) - ∇F_i(x*) = cu_i + ρ_i, ‖ρ_i‖ ≤ l‖u_i‖ (here c is the curvature).

1. A local step is u_i⁺ = qu_i - ηρ_i + ηδ_i. For the average ū and w_i = u_i - ū: ū⁺ = qū - ηρ̄, w_i⁺ = qw_i - η(ρ_i
   - ρ̄) + ηδ_i, as Σ p_iδ_i = 0. In the norm (Σ p_i‖·‖²)^{1/2} both ρ̄ and ρ - ρ̄ are at most l times that of u,
   which is (‖ū‖² + ‖w‖²)^{1/2}. So ‖ū‖ ≤ a and ‖w‖ ≤ d, with ‖δ‖ ≤ D.
2. Unrolled, ū_τ = q^τ ū_0 - η Σ_j q^{τ-1-j} ρ̄_j and x⁺ - x* = (1-η_g)(x - x*) + η_g ū_τ: the recursion of e; s is
   the sum of q^{τ-1-j}u_j.
3. Option II: c_i⁺ = c_i - c + (x - y_i)/(τη) is the mean of the client's gradients, so δ_i⁺ = δ_i - w_{i,τ}/(τη).
   Unrolled, w_{i,τ} = η Σ_j q^{τ-1-j}(δ_i - ρ_i + ρ̄): the factor of δ_i is 1 - (1/τ) Σ_j q^j = 1 - (1-q^τ)/(τηc) ≥
   0, and the rest is at most (l/τ)s.
4. c_i = 0 at the start: δ_i = -∇F_i(x*), D_0 = ζ_*. All recursions increase with e and D where q ≥ 0, so they may be
   iterated. ∎
""",
    loose="""
Both are attained by one parabola, S1 by equal parabolas with noise from the optimum too, its sampling by two opposed
parabolas of which one is drawn, its drift by two parabolas of nearly equal curvature, to 3 %. Beside the exact worst
case over all functions (two clients, L = D = 1, τη = 0.6): ‖x_T - x*‖² to about 2 and 8 % for S2 and S1 at μ = 0.1,
ζ_* = 1/2, T = 2, 1 and 12 % at μ = 1/2, ζ_* = 1. F - F* costs a factor 3 more at μ = 0.1, 1.7 at μ = 1/2: (L/2)‖x -
x*‖² is L/μ times F - F* in flat directions, on most problems nearly all of what is lost. S2 takes the worst of ρ̄ and
of ρ - ρ̄ at once. Of what the bias M of noise adds 0.22 was found, for kinked functions of 64 clients.
""",
)


def fedavg_contraction(
    constants: Constants,
    *,
    step_size: Any,
    local_steps: int,
    rounds: int,
    quadratic: bool = False,
    scheme: str = "everyone",
    participants: int = 1,
) -> Bound:
    """Return S1, for every schedule of steps of at most 2/(L + mu).

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), D, zeta_star, sigma2_k or sigma2, and p or K.
    step_size : float or schedule
        eta, or an object like `Decay` whose ``at(t)`` is the step after t local steps, or rounds.
    local_steps, rounds, participants : int
        tau, T and, where clients are drawn, m.
    quadratic : bool
        Whether gradients are affine, so that noise has no bias and adds to the squared distance.
    scheme : str
        "everyone", "proportional" (with replacement, probabilities p_i) or "uniform" (without, equal weights).

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, mu = 0, or a step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.contraction import fedavg_contraction
    >>> constants = Constants(L=1.0, mu=1.0, D=2.0, sigma2=0.0, zeta_star=1.0, K=2)
    >>> fedavg_contraction(constants, step_size=0.5, local_steps=1, rounds=1).value
    0.5
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    L, mu, requires = _curvature(S1, constants)
    D, zeta = (float(v) for v in known_constants(S1, constants, "D", "zeta_star"))
    p = client_weights(S1, constants)
    share, sigma2 = sampling_share(S1, scheme, participants, p), client_noise(S1, constants, p.size)
    steps = _steps(step_size, tau, T)
    name = "sigma2_k" if constants.sigma2_k is not None else "sigma2"
    requires += require(
        S1,
        _short(float(steps.max()), L, mu),
        Hypothesis("gradient noise bounded, independent over clients", f"max sigma_k^2 = {sigma2.max():g}"),
        *where_taken(constants, name),
    )
    each = [_round(row.tolist(), L, mu) for row in steps]
    every = each * T if len(each) == 1 else each
    values = _growing(every, flag("quadratic", quadratic), D, zeta, p, sigma2, share)
    names = ("start", "heterogeneity drift", "noise", "noise drift", "sampling")[: None if share > 0.0 else 4]
    terms = {name: 0.5 * L * float(v) for name, v in zip(names, np.diff([0.0, *values]), strict=False)}
    return Bound(terms, LAST_SYNCHRONISED, S1, requires)


def scaffold_contraction(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, server_step: float = 1.0
) -> Bound:
    """Return S2, for SCAFFOLD with full gradients, full participation and any weights.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), D, zeta_star.
    step_size, local_steps, rounds, server_step : float, int, int, float
        eta <= 2/(L + mu), tau, T, eta_g.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, mu = 0, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.contraction import scaffold_contraction
    >>> constants = Constants(L=1.0, mu=1.0, D=2.0, zeta_star=5.0)
    >>> scaffold_contraction(constants, step_size=0.5, local_steps=2, rounds=1).value
    0.125
    """
    eta, tau, L, mu, requires = _controlled(constants, step_size, local_steps)
    T, eta_g = whole("rounds", rounds, low=1), real("server_step", server_step, low=0.0, strict=True)
    D, zeta = (float(v) for v in known_constants(S2, constants, "D", "zeta_star"))
    both, alone = (D, zeta), (D, 0.0)
    for _ in range(T):
        both, alone = (_controlled_round(*v, eta, tau, L, mu, eta_g) for v in (both, alone))
    finite = Hypothesis("a bound that is a number", f"e_T = {both[0]:g}", both[0] < 1e150)
    requires += require(S2, finite)
    terms = {"start": 0.5 * L * alone[0] ** 2, "controls": 0.5 * L * (both[0] ** 2 - alone[0] ** 2)}
    return Bound(terms, LAST_SYNCHRONISED, S2, requires)


def scaffold_factor(constants: Constants, *, step_size: float, local_steps: int, server_step: float = 1.0) -> float:
    """Return by which e and D of S2 shrink a round in the long run; at 1 and more S2 proves nothing.

    Parameters
    ----------
    constants : Constants
        L, and mu of the least convex client.
    step_size, server_step : float
        Of the local steps, and of the server; positive.
    local_steps : int
        tau, at least 1.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or local_steps below 1.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.contraction import scaffold_factor
    >>> round(scaffold_factor(Constants(L=1.0, mu=0.1), step_size=1 / 3, local_steps=3), 3)
    0.936
    """
    eta, tau, L, mu, _ = _controlled(constants, step_size, local_steps)
    eta_g = real("server_step", server_step, low=0.0, strict=True)
    e, d, factor = 0.5, 0.5 * L, math.nan
    for _ in range(2000):
        before = factor
        e, d = _controlled_round(e, d, eta, tau, L, mu, eta_g)
        factor = e + d / L
        if factor == 0.0 or abs(factor - before) <= 1e-13 * factor:
            break
        e, d = e / factor, d / factor
    return factor


# ---------------------------------------------------------------- inner workings


def _curvature(theorem: str, constants: Constants) -> tuple[float, float, tuple[Hypothesis, ...]]:
    (L,) = known_constants(theorem, constants, "L")
    mu = least_convexity(theorem, constants)
    text = f"mu = {mu:g}, L = {L:g}"
    convex = Hypothesis("every F_k mu-strongly convex, 0 < mu <= L", text, 0 < mu <= L * (1 + 1e-12))
    smooth = Hypothesis("every F_k L-smooth", f"L = {L:g}")
    where = where_taken(constants, "mu_k" if constants.mu_k is not None else "mu")
    return float(L), min(mu, float(L)), require(theorem, convex, smooth, *where)


def _short(eta: float, L: float, mu: float) -> Hypothesis:
    text = f"step_size = {eta:g}, 2/(L + mu) = {2.0 / (L + mu):g}"
    return Hypothesis("step_size <= 2/(L + mu)", text, eta * (L + mu) <= 2.0 * (1.0 + 1e-12))


def _steps(step_size: Any, tau: int, T: int) -> np.ndarray:
    """Return the steps of all rounds (T, tau), or of one (1, tau) if all are alike."""
    if not hasattr(step_size, "at"):
        return np.full((1, tau), real("step_size", step_size, low=0.0, strict=True))
    if getattr(step_size, "by_round", False):
        return np.repeat(np.asarray(step_size.at(np.arange(T)), dtype=float)[:, None], tau, axis=1)
    return np.asarray(step_size.at(np.arange(T * tau)), dtype=float).reshape(T, tau)


class _Round(NamedTuple):
    """The numbers of a round."""

    P: float
    B: float
    reach: float  # R
    shift: float  # M, the bias of noise
    V: float


class _Size(NamedTuple):
    """How large noise, or its bias, is in the average of all clients and in single ones."""

    average: float
    single: float


def _growing(
    rounds: Sequence[_Round], affine: bool, D: float, zeta: float, p: np.ndarray, sigma2: np.ndarray, share: float
) -> list[float]:
    """Return Delta_T of the start alone, with heterogeneity, with noise, with its bias, and with sampling."""
    bias = _Size(0.0, 0.0) if affine else _Size(float(p @ np.sqrt(sigma2)), math.sqrt(float(p @ sigma2)))
    noise, none = _Size(float(p**2 @ sigma2), float(p @ sigma2)), _Size(0.0, 0.0)
    parts = ((0.0, none, none, 0.0), (zeta, none, none, 0.0), (zeta, noise, none, 0.0), (zeta, noise, bias, 0.0))
    return [_distance2(rounds, D, affine, *part) for part in (*parts, (zeta, noise, bias, share))]


def _distance2(
    rounds: Sequence[_Round], D: float, affine: bool, zeta: float, noise: _Size, bias: _Size, share: float
) -> float:
    """Return Delta_T; of quadratics, whose variance does not move the mean, as A^2 and the variance."""
    A, variance = D, 0.0
    for P, B, reach, shift, V in rounds:
        average = (P * A + B * zeta + shift * bias.average) ** 2 + V * noise.average
        single = (P * A + reach * zeta + shift * bias.single) ** 2 + V * noise.single
        delta = P**2 * variance + (1.0 - share) * average + share * single
        A = P * A + B * zeta if affine else math.sqrt(delta)
        variance = delta - A**2 if affine else 0.0
    return A**2 + variance


def _round(steps: Sequence[float], L: float, mu: float) -> _Round:
    """Return P, B, R, M and V of a round."""
    c, rest = 0.5 * (L + mu), 0.5 * (L - mu)
    P, R, B, bias, V = 1.0, 0.0, 0.0, 0.0, 0.0
    for eta in steps:
        q, r = max(1.0 - eta * c, 0.0), 1.0 - eta * mu
        B, R = q * B + eta * rest * R, r * R + eta
        bias, V = q * bias + eta * rest * math.sqrt(V + bias * bias), r * r * V + eta * eta
        P *= r
    return _Round(P, B, R, bias, V)


def _controlled(
    constants: Constants, step_size: float, local_steps: int
) -> tuple[float, int, float, float, tuple[Hypothesis, ...]]:
    """Return eta, tau, L, mu and the hypotheses of S2."""
    eta, tau = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    L, mu, requires = _curvature(S2, constants)
    return eta, tau, L, mu, requires + require(S2, _short(eta, L, mu))


def _controlled_round(
    e: float, D: float, eta: float, tau: int, L: float, mu: float, eta_g: float
) -> tuple[float, float]:
    """Return e and D after a round of S2."""
    c, rest = 0.5 * (L + mu), 0.5 * (L - mu)
    q = max(1.0 - eta * c, 0.0)
    a, d, s = e, 0.0, 0.0
    for _ in range(tau):
        u = math.hypot(a, d)
        s, a, d = q * s + u, q * a + eta * rest * u, q * d + eta * (rest * u + D)
    forgotten = 1.0 - math.exp(tau * math.log(q)) if q > 0.0 else 1.0
    e = abs(1.0 - eta_g * forgotten) * e + eta_g * eta * rest * s
    return e, max(1.0 - forgotten / (tau * eta * c), 0.0) * D + rest / tau * s


# ---------------------------------------------------------------- read off a setting


def _read_fedavg(s: Setting) -> Reading:
    """Read the noise along the run: exact for squared loss, over all of R^d otherwise."""
    local, c = plain_local_sgd("S1", s), s.constants()
    stationary("S1", s.problem)
    one = isinstance(local.step_size, float) or hasattr(local.step_size, "at")
    require("S1", Hypothesis("one step size, or a schedule", f"{local.step_size!r}", one))
    quadratic = bool(traits(s.problem.loss).quadratic)
    if quadratic and not local.full:
        along = Moments.of(s.method, s.problem).gradients(rounds=s.rounds, start=s.start).sigma2_k
        c = replace(c, sigma2_k=along, sigma2=float(along.max()), how=dict(c.how) | {"sigma2_k": MEASURED})
    t = traits_of(s.method, s.problem)
    numbers = {"step_size": local.step_size, "local_steps": int(local.steps[0]), "rounds": s.rounds}
    sampled = {"scheme": t.sampling, "participants": t.participants}
    return Reading({"constants": c, "quadratic": quadratic, **numbers, **sampled})


def _read_scaffold(s: Setting) -> Reading:
    m = s.method
    is_method("S2", m, SCAFFOLD)
    stationary("S2", s.problem)
    local = traits_of(m, s.problem).local
    assert local is not None
    full = local.full and local.fresh
    require(
        "S2",
        full_participation(s),
        Hypothesis("option II", f"option {m.option}", m.option == 2),
        Hypothesis("full gradients", f"batch_size={m.batch_size}, epochs={m.epochs}", full),
        equal_steps(local),
    )
    eta, tau = one_number("S2", "step size", m.step_size), int(local.steps[0])  # of epochs, as many as they are
    numbers = {"step_size": eta, "local_steps": tau, "server_step": float(m.server_step)}
    return Reading({"constants": s.constants(), "rounds": s.rounds, **numbers})


def _searched(
    share: float, scheme: int = 0, sampled: int = 0, power: float = 0.0, shift: float = 1.0, **settings: Any
) -> MethodRule:
    """Return the rule with everybody, with draws by weight, or with uniform ones; steps fall like t^-power."""
    work = with_scheme(scheme, settings, sampled)

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedAvg:
        first = share / smoothness(problem)
        return FedAvg(step_size=Decay(first * shift**power, shift, power), **feasible_work(problem, work))

    return MethodRule(f"{share:g}/L t^-{power:g}", make) if power else fixed_step(share, **work)


_SHARED: dict[str, Any] = {
    "quantity": LAST_SYNCHRONISED,
    "statement": STATEMENT,
    "rounds": 30,
    "worst_case": AtOptimum,
    "strongly_convex": True,
}

THEOREMS = (
    Theorem(
        name="fedavg-contraction",
        title="FedAvg, strongly convex, S1",
        bound=fedavg_contraction,
        read=_read_fedavg,
        says="Linear convergence to a ball whose radius is (L - mu)/2 times the spread of gradients and noise at w*.",
        loose="Attained by parabolas; L/2 of the squared distance stands for F - F*: a factor of up to L/mu.",
        method=fixed_step(1.0, local_steps=3),
        checks=(
            unequal_hessians,
            Check(shifted_logistic, fixed_step(0.5, local_steps=3, batch_size=4), 8),
            Check(uneven_logistic, fixed_step(0.5, local_steps=3)),
            Check(diabetes, decaying_step(local_steps=3, batch_size=4)),
            *(Check(one, fixed_step(0.5, local_steps=2), 3) for one in one_parabola),
            Check(two_logistic_clients, fixed_step(0.5, local_steps=2), 2),
            *(Check(two, fixed_step(0.05, local_steps=4), 300, at_minimiser) for two in two_parabolas),
            Check(mean_estimation, fixed_step(0.5, local_steps=3, batch_size=2), 20, at_minimiser),
            *(Check(k, fixed_step(1.0, local_steps=2, batch_size=20), 2, at_minimiser) for k in curved_noisy_kinks),
            Check(
                mean_estimation,
                given(FedAvg, step_size=Decay(0.05, 2.0, by_round=True), local_steps=2, batch_size=2),
                3,
                at_minimiser,
            ),
            Check(one_parabola[0], given(FedAvg, step_size=Decay(0.5, 2.0), local_steps=2), 3),
            Check(unequal_hessians, fixed_step(0.5, local_steps=3, scheme=UniformSampling)),
            Check(unequal_hessians, fixed_step(2.5, local_steps=3)),  # too long a step
        ),
        space=local_sgd_space(_searched, 1.0, more={"scheme": Whole(0, 2)}, weighted=True),
        **_SHARED,
    ),
    Theorem(
        name="scaffold-contraction",
        title="SCAFFOLD, strongly convex, S2",
        bound=scaffold_contraction,
        read=_read_scaffold,
        says="SCAFFOLD contracts by 1 - mu h to first order, for steps far beyond 1/(81 L) unless kappa is large.",
        loose="Attained by one parabola; elsewhere L/2 of the squared distance, and two worst cases at once.",
        method=fixed_step(0.3, SCAFFOLD, local_steps=3),
        checks=(
            unequal_hessians,
            shifted_logistic,
            diabetes,
            Check(uneven_logistic, fixed_step(0.1, SCAFFOLD, local_steps=3)),
            *(Check(one, fixed_step(0.5, SCAFFOLD, local_steps=2), 3) for one in one_parabola),
            Check(two_logistic_clients, fixed_step(0.5, SCAFFOLD, local_steps=2), 2),
            *(Check(two, fixed_step(0.3, SCAFFOLD, local_steps=4), 2, at_minimiser) for two in two_parabolas),
            Check(unequal_hessians, fixed_step(2.5, SCAFFOLD, local_steps=3)),  # too long a step
        ),
        space=local_sgd_space(fixed_step, 1.0, SCAFFOLD, batches=0, weighted=True),
        **_SHARED,
    ),
)
