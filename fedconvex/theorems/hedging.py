"""Progressive hedging (consensus ADMM): linear rate of Douglas-Rachford splitting, in the weighted product space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedconvex.methods import ProgressiveHedging
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.rounding import rounds_added
from fedconvex.theory.worst_case import Problems, worst_case
from fedconvex.theory.worst_case import hedging as progressive

__all__ = [
    "DISTANCE",
    "SPLITTING_DISTANCE",
    "STATEMENT",
    "THEOREMS",
    "best_penalty",
    "hedging",
    "hedging_best_rho",
    "hedging_factor",
]

SOURCE = "Giselsson, Boyd 2017, Theorem 2, in the p-weighted product space (docs/theory/hedging.md)"

DISTANCE = Quantity("E‖w_T - w*‖", dimension=Dimension.LENGTH, **FROM_MINIMUM)
SPLITTING_DISTANCE = Quantity("(E sum p_k ‖v_k - v_k*‖^2)^(1/2), v_k = x_k + y_k/rho, after T rounds", **FROM_MINIMUM)

STATEMENT = Statement(
    page="hedging",
    title="Progressive hedging",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX, penalty=not_for("the average would become a proximal step")),
    setting="""
Minimise F(x) = sum p_k f_k(x). A round: x_k = argmin f_k(x) + <y_k, x - z> + (rho/2)‖x - z‖^2;
z <- sum p_k x_k; y_k <- y_k + rho (x_k - z). At the start sum p_k y_k = 0, and then always. s_k = z - y_k/rho;
v_k = x_k + y_k/rho with the y_k that x_k was computed from; ‖s‖_p^2 = sum p_k ‖s_k‖^2. Or full participation in
the first round and each client with probability q in the later ones; v_k of the others stays, z = sum p_k v_k.
""",
    assumptions="Every f_k is mu-strongly convex and L-smooth, mu > 0.",
    statement="""
A round is s <- (s + R_C R_f s)/2, R_f and R_C the reflections of prox_{f_k/rho}, client by client, and of the
p-weighted average. With s_k* = x* + grad f_k(x*)/rho,

    ‖s^T - s*‖_p <= delta^T ‖s^0 - s*‖_p,
    delta = max{rho/(rho + mu), L/(rho + L)} = 1/2 + max{(g L - 1)/(g L + 1), (1 - g mu)/(1 + g mu)}/2, g = 1/rho,

least at rho = sqrt(mu L): delta = sqrt(kappa)/(1 + sqrt(kappa)). From y = 0:
‖s^0 - s*‖_p^2 = ‖z^0 - x*‖^2 + zeta_*^2/rho^2, zeta_*^2 = sum p_k ‖grad f_k(x*)‖^2. Always
‖z^T - x*‖ <= ‖s^T - s*‖_p = ‖v^T - v*‖_p. With sampling E‖v^T - v*‖_p^2 <= delta^2 (1 - q (1 - delta^2))^(T-1)
‖v^0 - v*‖_p^2.
""",
    source="""
Giselsson, Boyd, "Linear convergence and metric selection for Douglas-Rachford splitting and ADMM", IEEE TAC 62
(2017), Theorem 2, in the form max{1/(1 + g mu), g L/(1 + g L)} in which the documentation of PEPit quotes it.
The weighted space, the start and the proof: this project. The method: Rockafellar, Wets,
"Scenarios and policy aggregation in optimization under uncertainty", Math. Oper. Res. 16 (1991).
""",
    differs="""
Unequal weights: in the inner product sum p_k <x_k, y_k> the gradient of sum p_k f_k(x_k) is (grad f_k(x_k))_k, so
mu and L are those of the f_k themselves, not of p_k f_k. The factor is attained, by equal quadratics.
""",
    meaning="""
Linear convergence to the exact optimum, no bias, no step size; the rate depends on √κ, not κ. Weights do
not enter the rate: μ and L are those of the f_k, in the norm weighted by p (in the plain norm a round may expand:
`test_unweighted_norm_does_not_contract`).
""",
    proof="""
Space of (x_1, ..., x_K) with inner product Σ p_k⟨x_k, y_k⟩.

1. f(x) = Σ p_k f_k(x_k) has gradient (∇f_k(x_k))_k in it, is μ-strongly convex and L-smooth; prox_{f/ρ} acts client
   by client with the one parameter 1/ρ. The projection on consensus is P x = (Σ p_k x_k)_k. C = {x_1 = ... = x_K}.
2. z - y_k/ρ = s_k: x = prox_{f/ρ}(s). Σ p_k y_k stays 0, so z = P s. s⁺ = z⁺ - y_k/ρ - (x_k - z⁺) = 2Px - x + s -
   Ps = ½(s + R_C R_f s), R_f = 2prox - I, R_C = 2P - I.
3. R_f contracts by r = max{(l-1)/(l+1), (1-m)/(1+m)}, m = μ/ρ, l = L/ρ. s = x + ∇f(x)/ρ and R_f s = x - ∇f(x)/ρ. For
   two points let u = Δx, v = Δ∇f/ρ: claim ‖u-v‖ ≤ r‖u+v‖, that is ⟨u, v⟩ ≥ ((1-r²)/(2(1+r²)))(‖u‖² + ‖v‖²). Strong
   convexity and smoothness: (a) (l+m)⟨u, v⟩ ≥ ‖v‖² + ml‖u‖², (b) ⟨u, v⟩ ≥ m‖u‖², (c) ⟨u, v⟩ ≥ ‖v‖²/l. If ml ≤ 1, r =
   (1-m)/(1+m) and (1-r²)/(2(1+r²)) = m/(1+m²): λ(a)/(l+m) + (1-λ)(b) with λ = m(l+m)/(1+m²) ≤ 1 has coefficients
   m/(1+m²) twice. If ml ≥ 1, r = (l-1)/(l+1): the same with u and v exchanged, m ↔ 1/l, (b) ↔ (c).
4. R_C is an isometry: s ↦ ½(s + R_C R_f s) contracts by ½ + ½r = max{1/(1+m), l/(1+l)} = δ. Fixed point: x = x*, s* =
   x* + ∇f/ρ.
5. Start y = 0: s⁰ = z⁰; the cross term Σ p_k⟨z⁰ - x*, ∇f_k(x*)⟩ = 0. ‖z - x*‖ = ‖P(s - s*)‖ ≤ ‖s - s*‖.
6. v = 2z - s = R_C s: an isometric image, v⁺ = ½(v + R_f R_C v). Sampling keeps v_k of those that sit out and z = Σ
   p_k v_k: E‖v⁺ - v*‖² = (1-q)‖v - v*‖² + q‖½(v + R_f R_C v) - v*‖². ∎
""",
    loose="""
Nowhere on the class: equal parabolas of curvature μ decay like ρ/(ρ+μ) from s_1 = s_2, of curvature L like L/(ρ+L)
from s_1 = -s_2 (`test_hedging_factor_is_attained`). Claiming the best factor for half the best ρ is caught. On 300
random least-squares federations the p-norm of the exact map (`theory.round_maps.hedging_round`) reaches more than
0.95 of δ. A single run may be faster: its rate is a spectral radius, not a norm.
""",
)


def hedging_factor(constants: Constants, *, rho: float) -> float:
    """Return delta, the contraction of a round.

    Parameters
    ----------
    constants : Constants
        mu_k (or mu, if it holds for every client) and L.
    rho : float
        The penalty.

    Raises
    ------
    ValueError, TypeError
        If rho is not positive.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.hedging import hedging_factor
    >>> hedging_factor(Constants(L=4.0, mu=1.0), rho=2.0) == 2 / 3
    True
    """
    rho = real("rho", rho, low=0.0, strict=True)
    mu, L, _ = _curvature(constants)
    return max(rho / (rho + mu), L / (rho + L))


def hedging_best_rho(constants: Constants) -> float:
    """Return sqrt(mu L), the penalty of the least factor.

    Parameters
    ----------
    constants : Constants
        L, and mu of the least convex client, positive.

    Raises
    ------
    AssumptionError
        If L or mu is missing, or mu = 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.hedging import hedging_best_rho
    >>> hedging_best_rho(Constants(L=4.0, mu=1.0))
    2.0
    """
    mu, L, _ = _curvature(constants)
    return math.sqrt(mu * L)


def hedging(
    constants: Constants, *, rho: float, rounds: int, start_distance: float | None = None, share: float = 1.0
) -> Bound:
    """Return the bound of (E‖v^T - v*‖_p^2)^(1/2), which also bounds ‖z^T - x*‖.

    Parameters
    ----------
    constants : Constants
        mu_k (or mu), L; without start_distance also D = ‖z^0 - x*‖ and zeta_star.
    rho, rounds : float, int
        rho, T.
    start_distance : float, optional
        ‖s^0 - s*‖_p; default that of a start with y = 0.
    share : float
        q, the probability of a client to take part in a round after the first.

    Raises
    ------
    AssumptionError
        If a constant is missing, or mu = 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.hedging import hedging
    >>> constants = Constants(L=1.0, mu=1.0, D=3.0, zeta_star=4.0)
    >>> hedging(constants, rho=1.0, rounds=2).value
    1.25
    """
    rho, T = real("rho", rho, low=0.0, strict=True), whole("rounds", rounds)
    _, _, requires = _curvature(constants)
    if start_distance is None:
        D, zeta = known_constants(SOURCE, constants, "D", "zeta_star")
        start = math.hypot(D, zeta / rho)
        requires += (Hypothesis("y_k = 0 at the start", f"‖z - x*‖ = {D:g}, zeta_*/rho = {zeta / rho:g}"),)
    else:
        start = real("start_distance", start_distance, low=0.0)
    q, square = real("share", share, low=0.0, high=1.0, strict=True), hedging_factor(constants, rho=rho) ** 2
    later = (1.0 - q * (1.0 - square)) ** max(T - 1, 0)
    factor = math.sqrt(square ** min(T, 1) * later)
    return Bound({"start": factor * start}, SPLITTING_DISTANCE, SOURCE, requires)


def _curvature(constants: Constants) -> tuple[float, float, tuple[Hypothesis, ...]]:
    (L,) = known_constants(SOURCE, constants, "L")
    mu = least_convexity(SOURCE, constants)
    requires = require(
        SOURCE,
        Hypothesis("every f_k strongly convex", f"mu = {mu:g}", mu > 0.0),
        Hypothesis("every f_k L-smooth", f"L = {L:g}"),
    )
    return mu, float(L), requires


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    m = s.method
    is_method(SOURCE, m, ProgressiveHedging)
    stationary(SOURCE, s.problem)
    exact = m.local_steps is None and m.tol <= 1e-9
    require(SOURCE, Hypothesis("exact local solutions", f"local_steps={m.local_steps}, tol={m.tol:g}", exact))
    c = s.problem.constants(start=s.start)
    rho = hedging_best_rho(c) if m.rho is None else one_number(SOURCE, "penalty rho", m.rho)
    share = participants(s) / s.problem.federation.K
    return Reading({"constants": c, "rho": rho, "rounds": s.rounds, "share": share})


def _of_the_model(constants: Constants, **run: Any) -> Bound:
    """Return the bound as one of ‖z - x*‖, which is at most the distance that the theorem bounds."""
    return replace(hedging(constants, **run), quantity=DISTANCE)


def _distance(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """‖w_T - w*‖."""
    best = s.problem.solve().w
    return values_along(
        lambda state: np.linalg.norm((state.w - best).reshape(trajectories, -1), axis=1), s, rounds, seed, trajectories
    )


def _worst(s: Setting) -> tuple[float, float, str]:
    """Return the exact worst case of ‖z^T - x*‖ over all clients with the setting's mu, L, D and zeta_*."""
    told = _read(s).arguments
    c, p, mu = told["constants"], s.problem.weights, least_convexity(SOURCE, told["constants"])
    if told["share"] < 1.0 or not told["rounds"]:
        return math.nan, math.nan, "the programme is for full participation, and a round or more"
    if not (mu < (1.0 - 1e-9) * c.L and c.D > 0.0 and c.zeta_star < 1e6 * c.L * c.D):
        return math.nan, math.nan, "the programme is for mu < L, 0 < D and moderate zeta_*"
    if (order := len(p) * (told["rounds"] + 1)) > LARGEST:
        return math.nan, math.nan, f"the programme is too large: Gram matrix of order {order}"
    found = _squared(told["rho"] / c.L, told["rounds"], mu / c.L, c.zeta_star / (c.L * c.D), tuple(p.tolist()))
    words = f"all {len(p)} {mu:.4g}-strongly convex L-smooth clients with D = {c.D:.4g}, L = {c.L:.4g}, zeta_* = "
    return *(c.D * math.sqrt(v) for v in found), f"{words}{c.zeta_star:.4g}, in any dimension"


LARGEST = 40  # order of the Gram matrix up to which a worst case is computed unasked


@cache
def _squared(rho: float, rounds: int, mu: float, zeta: float, p: tuple[float, ...]) -> tuple[float, float]:
    """Return the interval of ‖z^T - x*‖^2 for L = D = 1."""
    of = Problems(len(p), mu=mu, heterogeneity=AtOptimum(zeta), weights=p)
    found = worst_case(progressive(rho, rounds), of, "distance")
    return max(found.lower, 0.0), found.upper


def _rounding(s: Setting, value: float) -> float:
    """Clients solve up to tol (1 + ‖x‖) and the rounding of their gradients; a contraction adds such errors up."""
    arguments, _ = _read(s)
    c, rho = arguments["constants"], arguments["rho"]
    size = float(np.linalg.norm(s.start)) + float(np.linalg.norm(s.problem.solve().w)) + c.zeta_star / rho
    push = float(gradient_rounding(s.problem, np.full(1, size)).max()) / (rho + least_convexity(SOURCE, c))
    each = s.method.tol * (1.0 + size) + 4.0 * UNIT * size + 2.0 * push
    return each * rounds_added(hedging_factor(c, rho=rho), s.rounds) + minimiser_rounding(s.problem)


def best_penalty(**settings: Any) -> MethodRule:
    """Return progressive hedging with its best penalty.

    Examples
    --------
    >>> from fedconvex.theorems.hedging import best_penalty
    >>> best_penalty().words
    '(mu L)^(1/2), the best'
    """
    return MethodRule("(mu L)^(1/2), the best", lambda theorem, problem, start, rounds: ProgressiveHedging(**settings))


def _given_penalty(share: float) -> MethodRule:
    """Return progressive hedging with so many times its best penalty."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> ProgressiveHedging:
        return ProgressiveHedging(rho=share * hedging_best_rho(problem.constants(start=start)))

    return MethodRule(f"{share:g} (mu L)^(1/2)", make)


THEOREMS = (
    Theorem(
        name="hedging",
        title="Progressive hedging",
        quantity=DISTANCE,
        bound=_of_the_model,
        read=_read,
        sample=_distance,
        tolerance=_rounding,
        worst=_worst,
        statement=STATEMENT,
        says="Consensus ADMM shrinks the distance by kappa^(1/2)/(1 + kappa^(1/2)) a round, whatever the clients.",
        loose="The factor is attained; a run may be faster, and the model is nearer than models and multipliers.",
        method=best_penalty(),
        rounds=20,
        checks=(
            unequal_hessians,
            shifted_logistic,
            breast_cancer,
            diabetes,
            Check(unequal_hessians, best_penalty(participation=0.5)),
            Check(two_logistic_clients, best_penalty(), 3),  # within reach of exact worst cases
            Check(flat_and_steep, best_penalty(), 3, all_ones),
        ),
        space=Space(lambda k: _given_penalty(k["rho"]), {"rho": Real(0.03, 30.0)}, rounds=(1, 10)),
    ),
)
