"""FedAvg on convex functions, refined: R1 (steps below 1/L, any weights) and R2 (constants at the optimum only)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import noise_factor as batch_noise_factor
from fedconvex.methods import UniformSampling
from fedconvex.theorems.fedavg_convex import BOUNDED, WITHIN_REACH
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts import averaging_formulas as formulas

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "fedavg_at_optimum",
    "fedavg_at_optimum_sharp",
    "fedavg_refined",
    "fedavg_refined_sharp",
]

R1 = "fedconvex, refined Theorem 1 of Wang et al. 2021 (docs/theory/fedavg_refined.md, R1)"
R2 = "fedconvex, FedAvg with constants at the optimum (docs/theory/fedavg_refined.md, R2)"

STATEMENT = Statement(
    page="fedavg_refined",
    title="FedAvg on convex functions, refined",
    scope=EVERYWHERE,
    setting="""
Clients with weights p_i, F = sum p_i F_i; all take part in each of T rounds; tau local SGD steps of one constant
size eta with fresh mini-batches; the server averages with p. Shadow sequence xbar^{t,k} = sum p_i x_i^{t,k}, and
A = mean over t < T and k = 1..tau of F(xbar^{t,k}) - F*.
""",
    assumptions="""
Every F_i is convex and L-smooth; stochastic gradients are unbiased given the history, independently over clients.
R1: variance at most sigma_i^2, sup_x ‖grad F_i(x) - grad F(x)‖ <= zeta.
R2: gradients are mini-batch means, with factor phi, of convex L_s-smooth row losses; nothing is asked away from x*:
sigma_{*,i}^2 is the mini-batch variance at x*, zeta_*^2 = sum p_i ‖grad F_i(x*)‖^2.
""",
    statement="""
Write S = sum p_i^2 sigma_i^2, sigma = max sigma_i, q_2 = sum p_i^2.

R1, eta < 1/L:   E A <= D^2/(2 eta tau T) + eta S
    + [L/(2(1 - eta L))] [(1 - q_2)/2] (1/tau) sum_{k<tau} (2 eta k zeta + eta sigma sqrt(2k))^2.
R1#, eta <= 1/L: with z = zeta min{1, sqrt(2(1 - q_2))} and v_k = eta (k z + sqrt(k sum p_i (1 - p_i) sigma_i^2)),
    E A <= D^2/(2 eta tau T) + eta S/2 + (1/tau) sum_{k<tau} d(v_k),
    d(v) = L v^2/2 where L v <= 2 z, else L v^2/4 + z v - z^2/L.
R2: with A = 4 phi L_s, p = max p_i, S_* = sum p_i^2 sigma_{*,i}^2, sigma_*^2 = sum p_i sigma_{*,i}^2,
    q = 3 eta^2 tau(tau-1) L^2, Q = q + 2 eta^2 (tau-1) A L, c = L/(2(1 - eta L)) + eta A L p,
    r = 2 eta A p + 2 c Q/(L(1 - Q)); if eta L < 1, Q < 1 and r < 1,
    E A <= (1/(1-r)) {D^2 (1/eta + r L)/(2 tau T) + 2 eta S_* + (c/(1-Q)) [q zeta_*^2/L^2
    + 4 eta^2 (tau-1) sigma_*^2]}.
R2#: with s_*^2 = sum p_i (1 - p_i) sigma_{*,i}^2, p_- = min p_i and any a > 0, w_0 + w_1 + w_2 = 1 (w_2 = 0 without
noise, where 1 + 1/a counts as 0 and L_s as L) for which, with
    b = phi L_s (1 + 1/a) [eta p + (1 - p_-) L eta^2 (tau - 1)/w_2],
    b <= 1 and eta + L eta^2 tau (tau - 1)/(2 w_1) <= (1 - b)/L + b/L_s,
    E A <= D^2/(2 eta tau T) + (1 + a) eta S_*/2
           + (L eta^2/2) [(tau - 1)(2 tau - 1) zeta_*^2/(6 w_0) + (1 + a)(tau - 1) s_*^2/(2 w_2)].
""",
    source="This project. R1 sharpens Wang et al. (2021), Theorem 1.",
    differs="""
From Wang et al.: no factor 18, four times the range of steps, no drift term at tau = 1, unequal weights. R1 has
Young's inequality where the cross term in fact vanishes. R1# and R2# do not: they speak of the iterates before the
steps first, where co-coercivity pays for the steps, and pass to those after the steps at the end of the run.
""",
    meaning="""
**R1.** Local steps cost nothing but drift, and drift is quadratic in the spread of the clients. τ = 1 has none.
Steps up to 1/L are allowed, four times the range of (15). R1# ≤ R1 ≤ (15) wherever all apply. Its noise term is
attained: by parabolas at η = 1/L, and in the limit of small steps by functions with a gentle kink.

**R2.** It is the bound for least squares with unequal Hessians, on all of R^d, mini-batches included. It asks
for steps of order 1/(Lτ) (full gradients: η = 1/(4Lτ) always qualifies). R2# allows larger ones (full gradients: 1/(Lτ)
qualifies for τ ≥ 2), and steps do not multiply the start term.
""",
    proof="""
**R1.** One local step: x_i⁺ = x_i - ηg_i, g = Σ p_i g_i, ḡ = Σ p_i ∇F_i(x_i), x̄⁺ = x̄ - ηg.

1. Smoothness: F_i(x̄⁺) ≤ F_i(x_i) + ⟨∇F_i(x_i), x̄⁺ - x_i⟩ + (L/2)‖x̄⁺ - x_i‖². 2. Convexity: F_i(x*) ≥ F_i(x_i) +
⟨∇F_i(x_i), x* - x_i⟩. 3. Subtract and average: F(x̄⁺) - F* ≤ ⟨ḡ, x̄⁺ - x*⟩ + (L/2) Σ p_i ‖x̄⁺ - x_i‖². 4. Σ p_i(x̄ -
x_i) = 0, so Σ p_i‖x̄⁺ - x_i‖² = ‖x̄⁺ - x̄‖² + V with V = Σ p_i‖x_i - x̄‖²: no cross term. (R1 instead splits each
summand by Young, (1+a)‖x̄⁺ - x̄‖² + (1+1/a)‖x̄ - x_i‖² with 1+a = 1/(ηL), 1+1/a = 1/(1-ηL).) 5. ⟨g, x̄⁺ - x*⟩ = (‖x̄ -
x*‖² - ‖x̄⁺ - x*‖² - ‖x̄⁺ - x̄‖²)/(2η): expand ‖x̄ - x*‖² = ‖x̄⁺ - x* + ηg‖². 6. E⟨ḡ - g, x̄⁺ - x*⟩ = -η E⟨ḡ - g, g⟩
= η E‖g - ḡ‖² given the history, since x̄ and ḡ are known and E g = ḡ; E‖g - ḡ‖² = Σ p_i² Var g_i ≤ S by independence.
7. R1: the two multiples of ‖x̄⁺ - x̄‖², (L/2)(1/(ηL)) and -1/(2η), cancel: E[F(x̄⁺) - F*] ≤ E(‖x̄ - x*‖² - ‖x̄⁺ -
x*‖²)/(2η) + ηS + [L/(2(1-ηL))] E V. 8. R1#: with
u_i = ∇F_i(x_i), h_i = ∇F_i(x*), v_i = ∇F_i(x̄), δ_i = x_i - x̄, so that Σ p_i δ_i = Σ p_i h_i = 0. Interpolation
(Taylor, Hendrickx, Glineur 2017): F_i(x̄) ≤ F_i(x_i) - ⟨v_i, δ_i⟩ - ‖v_i - u_i‖²/(2L), F_i(x*) ≥ F_i(x_i) + ⟨u_i, x* -
x_i⟩ + ‖u_i - h_i‖²/(2L). Subtract and average: F(x̄) - F* ≤ ⟨ḡ, x̄ - x*⟩ + Σ p_i{⟨u_i - v_i, δ_i⟩ - (‖u_i - v_i‖² +
‖u_i - h_i‖²)/(2L)}. Of the squares the means over clients count ‖ḡ‖²/(2L) at least; what deviates from the means is
greatest at 2u_i = Lδ_i + v_i + h_i: the sum is at most (L/4)V + ½ Σ p_i⟨h_i - e_i, δ_i⟩ - sd(h - e)²/(4L) - ‖ḡ‖²/(2L),
e_i = v_i - ∇F(x̄), sd as in 12. By 12 sd(h - e) ≤ 2z, so that it is at most d(√V) - ‖ḡ‖²/(2L). As E‖x̄⁺ - x*‖² =
‖x̄ - x*‖² - 2η⟨ḡ, x̄ - x*⟩ + η²(‖ḡ‖² + E‖g - ḡ‖²) and ηL ≤ 1: F(x̄) - F* ≤ E(‖x̄ - x*‖² - ‖x̄⁺ - x*‖²)/(2η) + ηS/2 +
d(√V). Sum: the last distance stays, and it is at least 2η times the last excess, ≤ (L/2)‖x̄ - x*‖². So the sum may
be taken over the iterates after the steps. d is concave in v² and increasing: E d(√V) ≤ d(√(E V)). 9. Drift, R1. x ↦
x - η∇F(x) is nonexpansive for η ≤ 2/L. With n_i the noise, x_i⁺ - x_j⁺ is a difference of that map plus two terms of
norm ≤ ηζ, minus η(n_i - n_j). Noise is of mean zero given the history, and E‖n_i - n_j‖² ≤ 2σ². Hence a_k = (E‖x_i^k -
x_j^k‖²)^{1/2} has a_{k+1}² ≤ (a_k + 2ηζ)² + 2η²σ² (Minkowski), a_0 = 0. 10. a_k ≤ 2ηkζ + ησ√(2k): by induction, (u +
s)² + c² ≤ (u + √(s² + c²))² for u, s ≥ 0, with u = 2η(k+1)ζ, s = ησ√(2k), c = ησ√2. 11. V = ½ Σ_ij p_i p_j‖x_i -
x_j‖², so E V_k ≤ ½(1-q₂) a_k². 12. Drift, R1#. Write sd(u)² = Σ p_i‖u_i - Σ p_j u_j‖² = ½ Σ p_i p_j‖u_i - u_j‖², a
seminorm. The deterministic part of the step is G(x_i) - ηe_i with G nonexpansive and ‖e_i‖ ≤ ζ: sd ≤ sd(x) + η
sd(e), and sd(e) ≤ (Σ p_i‖e_i‖²)^{1/2} ≤ ζ, also sd(e) ≤ (½(1-q₂)4ζ²)^{1/2}. The noise adds η² E sd(n)² = η² Σ
p_i(1-p_i)σ_i². The induction of 10 gives v_k. 13. Sum 7 or 8 over all steps; distances telescope, also across
rounds, where all x_i restart at x̄ and V = 0. ∎

**R2.** Δ = F(x̄) - F*, V as above, D_i(x) = F_i(x) - F_i(x*) - ⟨∇F_i(x*), x - x*⟩ ≥ 0, s = Σ p_i E‖noise_i‖².

1. Σ p_i D_i(x̄) = Δ, since Σ p_i∇F_i(x*) = 0; and ‖∇F_i(x) - ∇F_i(x*)‖² ≤ 2L D_i(x). So Σ p_i‖∇F_i(x̄) - ∇F_i(x*)‖² ≤
   2LΔ.
2. Split ∇F_i(x_i) into ∇F_i(x_i) - ∇F_i(x̄), ∇F_i(x̄) - ∇F_i(x*), ∇F_i(x*): Σ p_i‖∇F_i(x_i)‖² ≤ 3(L²V + 2LΔ + ζ_*²).
3. D_i is convex and L-smooth with minimum 0: D_i(x_i) ≤ D_i(x̄) + ⟨∇D_i(x̄), x_i - x̄⟩ + (L/2)‖x_i - x̄‖² ≤ 2D_i(x̄)
   + L‖x_i - x̄‖², by Young and ‖∇D_i‖² ≤ 2LD_i.
4. Variance at x_i: at most 2 × variance of the difference to x* plus 2 × variance at x*. The first is at most φ
   mean‖∇f_n(x_i) - ∇f_n(x*)‖² ≤ 2φL_s D_i(x_i). With 3: s ≤ 2σ_*² + A(2Δ + LV), and Σ p_i² Var_i ≤ 2S_* + Ap(2Δ +
   LV).
5. Drift: x_i^k - x^0 = -η Σ_{j<k}(∇F_i(x_i^j) + n_i^j), noise terms uncorrelated in time: E V_k ≤ Σ p_i E‖x_i^k -
   x^0‖² ≤ 2η²k Σ_{j<k} Σ p_i E‖∇F_i(x_i^j)‖² + 2η² Σ_{j<k} s_j.
6. Sum over k < τ: Σ_{k>j} k ≤ τ(τ-1)/2 and #{k > j} ≤ τ-1. With 2 and 4: Σ V ≤ Q Σ V + (2Q/L) Σ Δ + τ[qζ_*²/L² +
   4η²(τ-1)σ_*²].
7. Progress step 7 of R1 with 4 in the place of S: E Δ⁺ ≤ E(‖x̄ - x*‖² - ‖x̄⁺ - x*‖²)/(2η) + 2ηS_* + 2ηApΔ +
   cV.
8. Sum over the run and insert 6: Σ Δ⁺ ≤ D²/(2η) + τT·2ηS_* + r Σ Δ + (c/(1-Q)) τT [...].
9. Σ Δ (before updates) ≤ Σ Δ⁺ + Δ_0 ≤ Σ Δ⁺ + LD²/2. Solve for Σ Δ⁺ and divide by τT. ∎

**R2#.** u_i, h_i, δ_i, ḡ, g as in step 8 of R1; U = Σ p_i‖u_i - h_i‖² ≥ ‖ḡ‖²; W = Σ p_i mean‖∇f_n(x_i) - ∇f_n(x*)‖²
over the rows n of client i, and R = W - U ≥ 0, the rows' variance of those differences.

1. Smoothness from x_i to x̄ and convexity, row by row, from x_i to x*: F(x̄) - F* ≤ ⟨ḡ, x̄ - x*⟩ + (L/2)V - B, where
   B ≥ U/(2L) and B ≥ W/(2L_s), as clients are L-smooth and rows L_s-smooth. With b in [0, 1], 2B ≥ U[(1-b)/L + b/L_s] +
   bR/L_s.
2. As in step 8: E Σ (F(x̄) - F*), after the steps, is at most D²/(2η) + E Σ {(η/2)(‖ḡ‖² + ‖g - ḡ‖²) + (L/2)V - B}.
3. Variance: Var_i(x_i) ≤ (1+a)σ_{*,i}² + (1+1/a)φ × (rows' variance of the differences). So E‖g - ḡ‖² ≤ (1+a)S_* +
   (1+1/a)φp R, and s = Σ p_i(1-p_i)Var_i ≤ (1+a)s_*² + (1+1/a)φ(1-p_-)R.
4. Drift: x_i^k - x^0 = -η Σ_{j<k}(h_i + (u_i^j - h_i) + n_i^j). In the norm (E sd²)^{1/2}, sd as in step 12 of R1:
   √(E V_k) ≤ η{kζ_* + Σ_{j<k}√(E U_j) + (Σ_{j<k} E s_j)^{1/2}}. Square with weights 1/w_0, 1/w_1, 1/w_2 and sum over
   a round: Σ V ≤ η²{τ(τ-1)(2τ-1)ζ_*²/(6w_0) + τ(τ-1)Σ U/(2w_1) + (τ-1)Σ R (1+1/a)φ(1-p_-)/w_2 +
   (1+a)τ(τ-1)s_*²/(2w_2)}.
5. In 2, U counts η/2 + Lη²τ(τ-1)/(4w_1) against [(1-b)/L + b/L_s]/2, and R counts b/(2L_s) against b/(2L_s). ∎
""",
    loose="""
**R1.** Start term: exact worst case LD²/(2(1+ηL(τT+1))) against D²/(2ητT), equal for large τT. Drift:
two clients F = f ± ζx with f' = max(Lx, -ηLζ/7), τ = 2, small η, T → ∞ from x* settle at excess Lη²ζ²/14, where R1
says Lη²ζ²/4 and (15) 72 Lη²ζ²: a factor 3.5 remains. Noise of R1#: with F = (L/2)x² and τ = 1 the excess is
ησ²/(2M(2-ηL)) of ησ²/(2M), all of it at ηL = 1; at small steps a gentle kink in the place of the parabola attains it.
Noise drift of R1#: equal clients with f' = max(Lx, -g) settle at (L/6)v² of (L/4)v² for two-valued noise of equal
chances, at all of it in the limit of chances that differ; 64 clients of 40 rows of a smoothed hinge, half of them in a
batch, at 0.56 of it.

ζ_* cannot take the place of ζ in R1#, nor in R1 or (15): no bound D²/(2ητT) + C Lη²ζ_*² holds for every τ. Clients
f_i(x) = (L/2)⟨e_i, x⟩², i = 1, ..., K, of equal weights have one minimiser, ζ_* = 0. At η = 1/L one local step solves a
client's problem, and the mean shrinks by 1 - 1/K a round, whatever τ: A = (L/2)(D²/K)(1-1/K)² Σ_{t<T} (1-1/K)^{2t}/T.
For K = 5, T = 7 and τ = 3 this is 1.02 times D²/(2ητT), and the ratio grows as τ: for two clients and one round it is
τ/8. In the limit of many clients and rounds it is τ/2, and at other steps ητL/(2 - 2(1-ηL)^τ): more than one for every
η > 2/(Lτ). Bounds in ζ_* alone, such as R2 and R2#, have to ask for steps of order 1/(Lτ).

**R2.** Step 2's factor 3 and step 5's 2 (Young twice), 4's 2. Useless once ητL exceeds about 1/2, where it refuses (Q
or r ≥ 1). R2#: the drift, as in R1#, and 1/w_0. On least squares with mini-batches it is 2 to 3 times the exact
expectation, and refuses once ητL exceeds about 1. Of the noise drifts of R2 and R2# nothing is seen: in all
instances the other terms cover them. Whether the theorems hold without them is unknown; there is no programme within
reach for several clients with noise and several local steps.
""",
    figure="""
Mean suboptimality over the step size. Left, equal Hessians: exact value below R1#, R1 and (15), which has its minimum
0.42 at 0.02/L; R1# has its minimum 0.078 at 0.09/L. Right, unequal Hessians with mini-batches: exact value below R2,
which ends at 0.07/L, and R2#, which has its minimum 0.11 at 0.11/L and ends at 0.17/L.
""",
    caption="""
Least squares, ten clients, τ = 5, T = 20. Left, equal Hessians: (15) is least at ηL = 0.02, R1# at 0.09 and 5 times
lower, 3.2 times the exact value there. The rise after it is the drift term, which this problem hardly feels. Right,
unequal Hessians and batches of 10: R2 is least at ηL = 0.04, R2# at 0.11 and 2.8 times lower, 2.7 times the exact
expectation there. They refuse steps beyond 0.07/L and 0.17/L, which here are harmless.
""",
)


def fedavg_refined(constants: Constants, *, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return R1, for every step below 1/L and any weights.

    Parameters
    ----------
    constants : Constants
        L, D, zeta, sigma2_k or sigma2, and p or K.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, or eta >= 1/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_refined
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2)
    >>> round(fedavg_refined(constants, step_size=0.25, local_steps=2, rounds=1).value, 4)
    1.0208
    """
    eta, tau, T = local_work(step_size, local_steps, rounds)
    L, D, zeta, p, sigma2, requires = _uniform(R1, constants)
    requires += require(R1, _below(eta, L, strict=True))
    k = np.arange(tau)
    factor = L / (2.0 * (1.0 - eta * L)) * (1.0 - p @ p) / 2.0
    drift = factor * np.mean((2.0 * eta * k * zeta + eta * np.sqrt(2.0 * k * sigma2.max())) ** 2)
    pure = factor * np.mean((2.0 * eta * k * zeta) ** 2)
    terms = {
        "start": D**2 / (2.0 * eta * tau * T),
        "noise": eta * float(p**2 @ sigma2),
        "heterogeneity drift": float(pure),
        "noise drift": float(drift - pure),
    }
    return Bound(terms, SHADOW_AVERAGE, R1, requires)


def fedavg_refined_sharp(constants: Constants, *, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return R1#, never above R1: half the noise or less, a smaller drift, steps up to 1/L.

    Parameters
    ----------
    constants, step_size, local_steps, rounds
        As for `fedavg_refined`.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_refined_sharp
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2)
    >>> round(fedavg_refined_sharp(constants, step_size=0.25, local_steps=2, rounds=1).value, 4)
    1.0156
    """
    eta, tau, T = local_work(step_size, local_steps, rounds)
    L, D, zeta, p, sigma2, requires = _uniform(f"{R1}#", constants)
    requires += require(f"{R1}#", _below(eta, L, strict=False))
    k = np.arange(tau)
    z = min(1.0, math.sqrt(2.0 * max(1.0 - float(p @ p), 0.0))) * zeta
    drift = np.mean(_lifted(eta * (k * z + np.sqrt(k * float(p * (1.0 - p) @ sigma2))), L, z))
    pure = np.mean(_lifted(eta * k * z, L, z))
    terms = {"start": D**2 / (2.0 * eta * tau * T), "noise": 0.5 * eta * float(p**2 @ sigma2)}
    terms |= {"heterogeneity drift": float(pure), "noise drift": float(drift - pure)}
    return Bound(terms, SHADOW_AVERAGE, f"{R1}#", requires)


def _lifted(v: np.ndarray, L: float, z: float) -> np.ndarray:
    """How far models that spread by v lift the objective at their mean."""
    return np.where(L * v <= 2.0 * z, 0.5 * L * v**2, 0.25 * L * v**2 + z * v - (z**2 / L if L > 0.0 else 0.0))


def fedavg_at_optimum(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, noise_factor: float
) -> Bound:
    """Return R2: heterogeneity and noise at x* only, hence valid on R^d for least squares with unequal Hessians.

    Parameters
    ----------
    constants : Constants
        L, D, zeta_star, sigma2_star, p or K; with noise_factor > 0 also L_s.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.
    noise_factor : float
        phi, the largest over clients: `fedconvex.constants.noise_factor` of the rows and the batch size; 0 for full
        gradients.

    Raises
    ------
    AssumptionError
        If a constant is missing, or eta is too large: eta L < 1, Q < 1 and r < 1 are needed.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_at_optimum
    >>> constants = Constants(L=1.0, D=1.0, sigma2_star=0.0, zeta_star=1.0, K=2)
    >>> round(fedavg_at_optimum(constants, step_size=0.125, local_steps=2, rounds=10, noise_factor=0.0).value, 4)
    0.2972
    """
    (eta, tau, T), phi = local_work(step_size, local_steps, rounds), real("noise_factor", noise_factor, low=0.0)
    L, D, zeta, A, p, noise = _optimum(R2, constants, phi)
    requires = _convex(R2, L, phi, noise.sum, _below(eta, L, strict=True))
    q = 3.0 * eta**2 * tau * (tau - 1) * L**2
    Q = q + 2.0 * eta**2 * (tau - 1) * A * L
    requires += require(R2, Hypothesis("Q < 1 (smaller steps)", f"Q = {Q:g}, step_size = {eta:g}", Q < 1.0))
    c = L / (2.0 * (1.0 - eta * L)) + eta * A * L * p.max()
    r = 2.0 * eta * A * p.max() + 2.0 * c * Q / (L * (1.0 - Q))
    requires += require(R2, Hypothesis("r < 1 (smaller steps)", f"r = {r:g}, step_size = {eta:g}", r < 1.0))
    scale, lift = 1.0 / (1.0 - r), c / (1.0 - Q)
    terms = {
        "start": scale * D**2 * (1.0 / eta + r * L) / (2.0 * tau * T),
        "noise": scale * 2.0 * eta * noise.mean,
        "heterogeneity drift": scale * lift * q / L**2 * zeta**2,
        "noise drift": scale * lift * 4.0 * eta**2 * (tau - 1) * noise.sum,
    }
    return Bound({k: float(v) for k, v in terms.items()}, SHADOW_AVERAGE, R2, requires)


def fedavg_at_optimum_sharp(
    constants: Constants, *, step_size: float, local_steps: int, rounds: int, noise_factor: float
) -> Bound:
    """Return R2#, the least over a grid of its a and w_2: below R2, for larger steps; arguments as for that.

    Parameters
    ----------
    constants, step_size, local_steps, rounds, noise_factor
        As for `fedavg_at_optimum`, whose errors it raises too.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_refined import fedavg_at_optimum_sharp
    >>> constants = Constants(L=1.0, D=1.0, sigma2_star=0.0, zeta_star=1.0, K=2)
    >>> round(fedavg_at_optimum_sharp(constants, step_size=0.125, local_steps=2, rounds=10, noise_factor=0.0).value, 4)
    0.204
    """
    (eta, tau, T), phi = local_work(step_size, local_steps, rounds), real("noise_factor", noise_factor, low=0.0)
    L, D, zeta, A, p, noise = _optimum(f"{R2}#", constants, phi)
    requires = _convex(f"{R2}#", L, phi, noise.sum, _below(eta, L, strict=False))
    a, w2 = (x.ravel() for x in np.meshgrid(_YOUNG, _SHARES)) if phi > 0.0 else (np.zeros(1), np.ones(1))
    gain = 0.25 * A * (1.0 + 1.0 / a) if phi > 0.0 else np.zeros(1)  # phi L_s (1 + 1/a)
    b = gain * (eta * p.max() + (1.0 - p.min()) * L * eta**2 * (tau - 1) / w2)
    L_s = 0.25 * A / phi if phi > 0.0 else L
    room = (1.0 - b) / L + b / L_s - eta
    w1 = L * eta**2 * tau * (tau - 1) / (2.0 * np.maximum(room, 1e-300))
    w0 = 1.0 - w1 - (w2 if phi > 0.0 else 0.0)
    fits = (b <= 1.0) & (room >= 0.0) & ((w0 > 0.0) | (tau == 1))
    w0 = np.where(w0 > 0.0, w0, 1.0)  # counts only where it fits
    text = f"step_size = {eta:g}, L = {L:g}, L_s = {L_s:g}, phi = {phi:g}, {tau} steps"
    requires += require(f"{R2}#", Hypothesis("a, w_0, w_1, w_2 as stated (smaller steps)", text, bool(fits.any())))
    lift = 0.5 * L * eta**2 * (tau - 1)
    choices = {
        "noise": (1.0 + a) * 0.5 * eta * noise.mean,
        "heterogeneity drift": lift * (2 * tau - 1) / (6.0 * w0) * zeta**2,
        "noise drift": lift * (1.0 + a) / (2.0 * w2) * noise.spread,
    }
    choices = {name: np.where(fits, v, np.inf) for name, v in choices.items()}
    least = least_choice(sum(choices.values()))
    terms = {"start": D**2 / (2.0 * eta * tau * T)} | {k: float(v[least]) for k, v in choices.items()}
    return Bound(terms, SHADOW_AVERAGE, f"{R2}#", requires)


_YOUNG = np.append(np.logspace(-4.0, 4.0, 80), 1.0)  # a
_SHARES = np.append(np.linspace(0.02, 0.98, 24), 1.0 / 3.0)  # w_2


class _Noise(NamedTuple):
    """What is known of the variances of mini-batch gradients at x*."""

    sum: float  # sum p_i sigma_i^2
    mean: float  # sum p_i^2 sigma_i^2, of the mean of the clients
    spread: float  # sum p_i (1 - p_i) sigma_i^2, of the clients around it


def _optimum(theorem: str, constants: Constants, phi: float) -> tuple[float, float, float, float, np.ndarray, _Noise]:
    """L, D, zeta_*, A = 4 phi L_s, p and the noise of R2."""
    L, D, zeta, sigma2 = map(float, known_constants(theorem, constants, "L", "D", "zeta_star", "sigma2_star"))
    p = client_weights(theorem, constants)
    A = 4.0 * phi * known_constants(theorem, constants, "L_s")[0] if phi > 0.0 else 0.0
    each = constants.sigma2_star_k
    if each is not None:
        return L, D, zeta, A, p, _Noise(sigma2, float(p**2 @ each), float(p * (1.0 - p) @ each))
    return L, D, zeta, A, p, _Noise(sigma2, float(p.max()) * sigma2, (1.0 - float(p.min())) * sigma2)


def _convex(theorem: str, L: float, phi: float, sigma2: float, *more: Hypothesis) -> tuple[Hypothesis, ...]:
    return require(
        theorem,
        Hypothesis("every F_k convex and L-smooth, L > 0", f"L = {L:g}", L > 0.0),
        Hypothesis("noise only from mini-batches", f"phi = {phi:g}, sigma_*^2 = {sigma2:g}", phi > 0 or not sigma2 > 0),
        *more,
    )


def _uniform(
    theorem: str, constants: Constants
) -> tuple[float, float, float, np.ndarray, np.ndarray, tuple[Hypothesis, ...]]:
    """L, D, zeta, p, sigma_i^2 of R1 with their hypotheses."""
    L, D, zeta = known_constants(theorem, constants, "L", "D", "zeta")
    p = client_weights(theorem, constants)
    sigma2 = client_noise(theorem, constants, p.size)
    requires = require(
        theorem,
        Hypothesis("every F_k convex and L-smooth", f"L = {L:g}"),
        Hypothesis("gradient noise bounded, independent over clients", f"max sigma_k^2 = {sigma2.max():g}"),
        Hypothesis("sup_x ‖grad F_k - grad F‖ <= zeta", f"zeta = {zeta:g}"),
        *where_taken(constants, "sigma2_k" if constants.sigma2_k is not None else "sigma2", "zeta"),
    )
    return float(L), float(D), float(zeta), p, sigma2, requires


def _below(eta: float, L: float, *, strict: bool) -> Hypothesis:
    inverse = 1.0 / L if L > 0.0 else math.inf
    holds = eta * L < 1.0 if strict else eta * L <= 1.0
    return Hypothesis(f"step_size {'<' if strict else '<='} 1/L", f"step_size = {eta:g}, 1/L = {inverse:g}", holds)


# ---------------------------------------------------------------- read off a setting


def _read_optimum(s: Setting) -> Reading:
    local = plain_local_sgd("R2", s)
    phi = float(np.max(batch_noise_factor(local.sizes, local.batch_size, local.replacement)))
    return Reading({"constants": s.constants(), "noise_factor": phi, **local_sgd("R2", s)})


_UNIFORM: dict[str, Any] = {
    "quantity": SHADOW_AVERAGE,
    "read": local_sgd_reading("R1"),
    "statement": STATEMENT,
    "loose": "Start and noise are sharp, to a factor that tends to 1; a factor of at most 3.5 remains in the drift.",
    "method": fixed_step(0.5, local_steps=3, batch_size=4),
    "rounds": 20,
    "worst_case": UniformUpper,
    "space": local_sgd_space(fixed_step, 0.999, weighted=True, **BOUNDED),
}
_WHERE_UNIFORM: tuple[Instance | Check, ...] = (
    shifted_logistic,
    uneven_logistic,
    breast_cancer,
    breast_cancer_by_size,
    Check(mean_estimation, fixed_step(0.5, local_steps=3, batch_size=2)),
    *WITHIN_REACH,
)
_NOISY_KINKS = [Check(k, fixed_step(0.999, local_steps=2, batch_size=20), 40, at_minimiser) for k in noisy_kinks]
_OPTIMUM: dict[str, Any] = {
    "quantity": SHADOW_AVERAGE,
    "read": _read_optimum,
    "statement": STATEMENT,
    "loose": "The drift, by the inequalities that split it; steps are of order 1/(L tau).",
    "method": least_bound_step(local_steps=3, batch_size=4),
    "rounds": 50,
    "worst_case": AtOptimum,
    "space": local_sgd_space(
        fixed_step,
        0.999,
        weighted=True,
        losses=("squared", "squared", "hinge"),
        designs=("any", "equal", "alike", "shared"),
        rounds=(1, 400),
    ),
}
_WHERE_OPTIMUM = (
    unequal_hessians,
    shifted_logistic,
    breast_cancer,
    Check(two_clients, least_bound_step(local_steps=2), 3),
    Check(breast_cancer_two, least_bound_step(local_steps=2), 3),
    Check(two_logistic_clients, least_bound_step(local_steps=3), 2),
)
_TOO_LARGE = Check(unequal_hessians, fixed_step(1.0, local_steps=10))

THEOREMS = (
    Theorem(
        name="fedavg-refined",
        title="FedAvg, convex, R1",
        bound=fedavg_refined,
        formula=formulas.REFINED,
        says="As (15) with constants that are proved to be smaller, for every step below 1/L and any weights.",
        checks=(
            *_WHERE_UNIFORM,
            Check(noisy_kinks[0], fixed_step(0.8, local_steps=2, batch_size=20), 40, at_minimiser),
            Check(at_right_angles, fixed_step(0.5, local_steps=64), 1),  # zeta_* in the place of zeta would fail
            Check(shifted_logistic, fixed_step(0.5, local_steps=3, scheme=UniformSampling)),  # not all clients
            Check(one_parabola[0], fixed_step(1.9), 5),  # too long a step
        ),
        **_UNIFORM,
    ),
    Theorem(
        name="fedavg-refined-sharp",
        title="FedAvg, convex, R1#",
        bound=fedavg_refined_sharp,
        formula=formulas.REFINED_SHARP,
        says="R1 with half the noise or less, a smaller drift and steps up to 1/L: its noise is attained.",
        checks=(
            *_WHERE_UNIFORM,
            *_NOISY_KINKS,
            Check(one_noisy_client, fixed_step(1.0, local_steps=3, batch_size=1)),
            Check(at_right_angles, fixed_step(1.0, local_steps=64), 1),  # zeta_* in the place of zeta would fail
        ),
        **_UNIFORM,
    ),
    Theorem(
        name="fedavg-at-optimum",
        title="FedAvg, constants at w*, R2",
        bound=fedavg_at_optimum,
        formula=formulas.AT_OPTIMUM,
        says="Heterogeneity and noise count at the optimum only: least squares with unequal Hessians and mini-batches.",
        checks=(*_WHERE_OPTIMUM, diabetes, _TOO_LARGE),
        **_OPTIMUM,
    ),
    Theorem(
        name="fedavg-at-optimum-sharp",
        title="FedAvg, constants at w*, R2#",
        bound=fedavg_at_optimum_sharp,
        formula=formulas.AT_OPTIMUM_SHARP,
        says="R2 with a start term that steps do not multiply, less noise, a sixth of the drift, and larger steps.",
        checks=_WHERE_OPTIMUM,
        **_OPTIMUM,
    ),
)
