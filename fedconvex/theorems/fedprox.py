"""FedProx: expected descent of one round, as published and with constants from which the sampling terms are gone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.methods import FedProx, ProportionalSampling, ProximalPoint
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.fedprox_rho import (
    CONVEX,
    PAPER,
    SHARP,
    fedprox_rho,
    fedprox_rho_convex,
    fedprox_rho_sharp,
)
from fedconvex.theorems.parts.rounding import excess
from fedconvex.theory.fixed_points import quadratic
from fedconvex.theory.moments.weights import of_sampling

__all__ = [
    "NEXT_VALUE",
    "STATEMENT",
    "THEOREMS",
    "fedprox",
    "fedprox_convex",
    "fedprox_rho",
    "fedprox_rho_convex",
    "fedprox_rho_sharp",
    "fedprox_sharp",
    "few_draws",
    "least_bound_proximal",
]

ENUMERATED = 5000  # samples of clients that are enumerated for an exact expectation

NEXT_VALUE = Quantity(
    "E F(w_{t+1}), or its excess over F*, given w_t",
    by_rounds=False,
    latex=r"\mathrm{E} f(w^+) - f^*",
    **FROM_MINIMUM,
)

STATEMENT = Statement(
    page="fedprox",
    title="FedProx",
    scope=EVERYWHERE,
    setting="""
f = sum p_k F_k. From w: K devices drawn with probabilities p_k (with replacement); device k finds w_k with
‖grad h_k(w_k)‖ <= gamma ‖grad F_k(w)‖, h_k = F_k + (mu/2)‖. - w‖^2 (gamma-inexact); w^+ = plain average.
""",
    assumptions="""
F_k is L-smooth with Hessian >= -L_- I (L_- < 0: strongly convex); mubar = mu - L_- > 0; B is the dissimilarity at
w: sum p_k ‖grad F_k(w)‖^2 <= B^2 ‖grad f(w)‖^2.
""",
    statement="""
E f(w^+) <= f(w) - rho ‖grad f(w)‖^2 with, writing G = 1 + gamma,

paper   rho = 1/mu - gamma B/mu - sqrt(2) G B/(mubar sqrt(K)) - L G B/(mubar mu) - L G^2 B^2/(2 mubar^2)
              - (2 sqrt(2 K) + 2) L G^2 B^2/(mubar^2 K);
sharp   rho = 1/mu - gamma B/mu - L G B/(mubar mu) - L G^2 B^2/(2 mubar^2);
convex  rho = [1 - (1 + B) t/2 - gamma B]/mu - L G^2 B^2/(2 mubar^2), t = L/(L + mu), for convex F_k.

Sharp and convex hold for every unbiased choice of participants: K draws with probabilities p_k, equal weights and
K of N without replacement, or full participation.
""",
    source="""
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
Theorem 4. FROM-MEMORY: its text could not be re-read; it is derived above, with these constants.
Sharp and convex: this project, proofs there.
""",
    differs="""
The paper pays for sampling through a Lipschitz constant of f near w. Sampling is unbiased, and f is smooth: the
second moment of the step is all that enters, and it is bounded by the same term as without sampling.
""",
    meaning="""
One round, seen from w. B(w) is measured, `problem.constants(center=w).B`; it grows without bound near w*
unless every client is optimal there, so the guarantee stops where FedProx's own bias begins (`fixed_points.md`).
Sharp: sampling costs nothing in this bound; one device per round has the guarantee of all. Strongly convex clients:
L₋ = -min μ_k. All three inequalities are true for ρ of either sign; ρ > 0 is required where a `Bound` is made. Summed
over rounds with ρ and B uniform: min_t E‖∇f(w_t)‖² ≤ (f(w_0) - f*)/(ρT).

Largest ρ over μ, L = 1, γ = 0 (`test_fedprox_best_rho_of_the_page`):

| B | K | paper | sharp | convex |
|---|---|---|---|---|
| 1 | 10 | 0.0294 | 0.1667 | 0.2093 |
| 2 | 10 | 0.0003 | 0.0625 | 0.0758 |
| 2 | 100 | 0.0247 | 0.0625 | 0.0758 |
""",
    proof="""
Write g_k = ∇F_k(w), e_k = ∇h_k(w_k) = ∇F_k(w_k) + μ(w_k - w), ‖e_k‖ ≤ γ‖g_k‖, E_k = mean with weights p_k, w̄ = E_k
w_k. E_k‖g_k‖ ≤ (E_k‖g_k‖²)^{1/2} ≤ B‖∇f‖.

1. h_k is μ̄-strongly convex: μ̄‖w_k - w‖ ≤ ‖∇h_k(w_k) - ∇h_k(w)‖ ≤ ‖e_k‖ + ‖g_k‖ ≤ G‖g_k‖.
2. w̄ - w = -(1/μ)(∇f + M), M = E_k[∇F_k(w_k) - g_k - e_k], ‖M‖ ≤ E_k[L‖w_k - w‖ + γ‖g_k‖] ≤ (LG/μ̄ + γ)B‖∇f‖.
3. ⟨∇f, w̄ - w⟩ ≤ -(1/μ)‖∇f‖² + (1/μ)(LG/μ̄ + γ)B‖∇f‖².
4. *Sharp.* f is L-smooth: E f(w⁺) ≤ f(w) + ⟨∇f, E w⁺ - w⟩ + (L/2)E‖w⁺ - w‖². Sampling is unbiased, E w⁺ = w̄; and by
   convexity of the square E‖w⁺ - w‖² ≤ E_k‖w_k - w‖² ≤ (G²/μ̄²)B²‖∇f‖². With 3: sharp. Only E w⁺ = w̄ and w⁺ = an
   average of the sampled w_k with E(weight of k) = p_k were used. ∎
5. *Paper.* Instead f(w̄) by smoothness as in 4, with ‖w̄ - w‖² ≤ E_k‖w_k - w‖²: the terms of sharp. Then f(w⁺) -
   f(w̄) ≤ L₀‖w⁺ - w̄‖ with the local Lipschitz constant L₀ ≤ ‖∇f‖ + L(‖w̄ - w‖ + ‖w⁺ - w‖) ≤ ‖∇f‖ + 2L‖w̄ - w‖ +
   L‖w⁺ - w̄‖. E‖w⁺ - w̄‖² = (1/K)E_k‖w_k - w̄‖² ≤ (2/K)E_k‖w_k - w‖² ≤ (2/K)(G²B²/μ̄²)‖∇f‖², so E[L₀‖w⁺ - w̄‖] ≤
   [√(2/K) GB/μ̄ + 2√(2/K) LG²B²/μ̄² + (2/K)LG²B²/μ̄²]‖∇f‖², and 2√(2/K) + 2/K = (2√(2K) + 2)/K. ∎ (The first 2 of
   (2/K) is not needed: a variance is at most the second moment about any point.)
6. *Convex.* u_k = w - w_k, v_k = g_k - ∇F_k(w_k): g_k - e_k = v_k + μu_k =: g'_k. Co-coercivity ⟨u_k, v_k⟩ ≥ ‖v_k‖²/L
   gives t⟨v_k, g'_k⟩ = t‖v_k‖² + tμ⟨v_k, u_k⟩ ≥ t(1+μ/L)‖v_k‖² = ‖v_k‖², that is v_k = (t/2)g'_k + r_k with ‖r_k‖ ≤
   (t/2)‖g'_k‖ ≤ (t/2)G‖g_k‖. Now -M = E_k[v_k + e_k] = (t/2)∇f + E_k[(1-t/2)e_k + r_k], so |⟨∇f, M⟩| ≤ [t/2 +
   (1-t/2)γB + (t/2)(1+γ)B]‖∇f‖² = [(1+B)t/2 + γB]‖∇f‖². Use this in 3; 4 as before. ∎ It is never below sharp:
   (1+B)/2 ≤ B, t ≤ L/μ̄.
""",
    loose="""
F_k = (L/2)‖w‖² for all k, γ = 0: sharp and convex are *equalities*, the paper's too as K → ∞
(`test_fedprox_is_tight_for_equal_parabolas`; halving any term that counts there is caught). Elsewhere step 1 and step
2 take the worst curvature of different clients at once. The inexactness terms are not attained.
""",
)


def fedprox(constants: Constants, *, value: float, gradient_norm: float, **setting: Any) -> Bound:
    """Return the paper's bound of E f(w^+) given w.

    Parameters
    ----------
    constants : Constants
        L, and B at w (``problem.constants(center=w)``); mu_k where nonconvexity is not given.
    value, gradient_norm : float
        f(w), ‖grad f(w)‖.
    proximal_mu : float
        mu.
    participants : int
        K draws.
    inexactness : float
        gamma in [0, 1].
    nonconvexity : float, optional
        L_-: Hessians are at least -L_-; default -min mu_k, or 0.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, mubar <= 0 or rho <= 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox, fedprox_convex
    >>> at = dict(proximal_mu=20.0, value=1.0, gradient_norm=1.0)
    >>> round(fedprox(Constants(L=1.0, B=1.0), participants=100, **at).terms["descent"], 4)
    -0.0384
    >>> round(fedprox_convex(Constants(L=1.0, B=1.0), **at).terms["descent"], 4)
    -0.0464
    """
    return _descent(PAPER, *fedprox_rho(constants, **setting), value, gradient_norm)


def fedprox_sharp(constants: Constants, *, value: float, gradient_norm: float, **setting: Any) -> Bound:
    """Return the bound without sampling terms; arguments as for `fedprox`, without participants.

    Parameters
    ----------
    constants, value, gradient_norm, **setting
        As for `fedprox`, without participants.

    Raises
    ------
    ValueError, TypeError
        If gradient_norm is negative, or value not finite.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox_sharp
    >>> constants = Constants(L=1.0, B=1.0)
    >>> round(fedprox_sharp(constants, value=1.0, gradient_norm=1.0, proximal_mu=4.0, nonconvexity=0.0).value, 4)
    0.8438
    """
    return _descent(SHARP, *fedprox_rho_sharp(constants, **setting), value, gradient_norm)


def fedprox_convex(constants: Constants, *, value: float, gradient_norm: float, **setting: Any) -> Bound:
    """Return the bound for convex clients, never above the sharp one; arguments as for that, without nonconvexity.

    Parameters
    ----------
    constants, value, gradient_norm, **setting
        As for `fedprox_sharp`, without nonconvexity.

    Raises
    ------
    ValueError, TypeError
        If gradient_norm is negative, or value not finite.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedprox import fedprox_convex
    >>> round(fedprox_convex(Constants(L=1.0, B=1.0), value=1.0, gradient_norm=1.0, proximal_mu=4.0).value, 4)
    0.8313
    """
    return _descent(CONVEX, *fedprox_rho_convex(constants, **setting), value, gradient_norm)


def _descent(theorem: str, rho: float, requires: tuple[Hypothesis, ...], value: float, gradient_norm: float) -> Bound:
    requires += require(theorem, Hypothesis("rho > 0 (no descent otherwise)", f"rho = {rho:g}", rho > 0.0))
    g = real("gradient_norm", gradient_norm, low=0.0)
    return Bound({"value": real("value", value), "descent": -rho * g * g}, NEXT_VALUE, theorem, requires)


def _formula(rho: str) -> Formula:
    """Return the descent by rho."""
    where = {"b": "(1 + gamma) * B / (mu - L_)", "rho": rho}
    return Formula({"value": "f", "descent": "-rho * g**2"}, where, signs={"S": "K"}, meanings=MEANINGS)


MEANINGS = {
    "mu": "the proximal weight",
    "gamma": "the inexactness of local solutions",
    "B": r"the dissimilarity of the clients' gradients at $w$",
    "L_": "a number with Hessians of at least $-L_- I$",
    "S": "the number of draws of clients",
}


FORMULA_SHARP = "(1 - gamma * B - L * b) / mu - L * b**2 / 2"
_FORMULA_PAPER = f"{FORMULA_SHARP} - sqrt(2 / S) * b - (2 * sqrt(2 * S) + 2) / S * L * b**2"
_FORMULA_CONVEX = "(1 - L * (1 + B) / (2 * (L + mu)) - gamma * B) / mu - L * b**2 / 2"

# ---------------------------------------------------------------- read off a setting


def _reader(paper: bool) -> Callable[[Setting], Reading]:
    """Read the descent of one round from the start."""

    def read(s: Setting) -> Reading:
        m, p, name = s.method, s.problem, "FedProx descent"
        is_method(name, m, FedProx)
        stationary(name, p)
        t = traits_of(m, p)
        drawn = t.sampling == "proportional"
        unbiased = drawn or t.everyone or (t.sampling == "uniform" and p.equal_weights)
        wanted = "clients drawn with probabilities p_k" if paper else "unbiased sampling of clients"
        require(
            name,
            Hypothesis(wanted, f"{m.participation!r}", drawn if paper else unbiased),
            plain_averaging(s),
            Hypothesis("no stragglers", f"{m.stragglers!r}", m.stragglers is None),
            Hypothesis("full local gradients or exact solutions", f"batch_size={m.batch_size}", m.batch_size is None),
        )
        mu, gamma = one_number(name, "proximal weight", m.proximal_mu), _inexactness(s)
        gap = excess(p, s.start)
        here = {"value": gap, "gradient_norm": float(np.linalg.norm(p.gradient(s.start)))}
        if paper:
            here["participants"] = t.participants
        c = p.constants(center=s.start)
        return Reading({"constants": c, "proximal_mu": mu, "inexactness": min(gamma, 1.0), **here})

    return read


def _inexactness(s: Setting) -> float:
    """Largest ‖grad h_k(w_k)‖/‖grad F_k(w)‖ of any client in a round from the start."""
    method = replace(s.method, inexactness=True, participation=1.0)
    *_, (_, state) = iterate(method, s.problem, rounds=1, start=s.start)
    gamma = float(method.observe(s.problem, state)["gamma_max"][0])
    require("FedProx descent", Hypothesis("gamma-inexact solutions, gamma <= 1", f"gamma = {gamma:g}", gamma <= 1.0))
    return gamma


def _next_value(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """F(w^+) - F* after one round."""
    *_, (_, state) = iterate(s.method, s.problem, rounds=1, seed=seed, trajectories=trajectories, start=s.start)
    return np.tile(s.problem.value(state.w) - s.problem.solve().value, (len(rounds), 1))


def _exact_next_value(s: Setting, rounds: Sequence[int]) -> np.ndarray | Found | None:
    """E F(w^+) - F*: from moments of the weights on least squares, else by enumeration of the samples, if few."""
    m, p = s.method, s.problem
    t, K = traits_of(m, p), p.federation.K
    each = replace(m, participation=1.0)
    state = each.init(p, np.array(s.start[None]))
    draws = Draws(key_from_seed(0), np.zeros(1, dtype=np.int64), 0)  # exact or full local work: nothing is drawn
    if traits(p.loss).quadratic:
        w = each.local(p, each.broadcast(state), np.arange(K)[None], None, draws)[0].w[0]
        return _next_of_squares(s, rounds, w)
    size, drawn = t.participants, t.sampling == "proportional"
    if (math.comb(K + size - 1, size) if drawn else math.comb(K, size)) > ENUMERATED:
        return None
    w = each.local(p, each.broadcast(state), np.arange(K)[None], None, draws)[0].w[0]
    total = 0.0
    for sample in (itertools.combinations_with_replacement if drawn else itertools.combinations)(range(K), size):
        chosen = list(sample)
        if drawn:  # a multiset, in all its orders
            orders = math.factorial(size) // math.prod(math.factorial(chosen.count(k)) for k in set(chosen))
            share, weights = orders * float(np.prod(p.weights[chosen])), np.full(size, 1.0 / size)
        else:
            share, weights = 1.0 / math.comb(K, size), p.weights[chosen] / p.weights[chosen].sum()
        total += share * float(p.value(np.tensordot(weights, w[chosen], 1)))
    return np.full(len(rounds), total - p.solve().value)


def _next_of_squares(s: Setting, rounds: Sequence[int], w: np.ndarray) -> Found | None:
    """E F(w^+) - F* of least squares: e'He/2 with e = w^+ - w*, from E[W W'] of the server's weights W."""
    p, found = s.problem, s.problem.solve()
    best, t = found.w, traits_of(s.method, p)
    drowned = found.gap + p.rounding(s.start, float(p.value(s.start)))  # of F(w) - F*, which the bound begins with
    try:
        mixing = of_sampling(t.sampling, t.participants, p)
    except ValueError:  # too many samples to enumerate
        return None
    H, e = np.tensordot(p.weights, quadratic(p).H, 1), w - best
    square, own = np.einsum("ki,ij,kj->k", e, H, e), mixing.scale @ mixing.u**2
    together = mixing.u @ e
    value = float((mixing.own - own) @ square + mixing.scale @ np.einsum("ri,ij,rj->r", together, H, together))
    value = 0.5 * value + float(p.gradient(best) @ (mixing.mean @ e))
    size = 16.0 * UNIT * float((mixing.own + own) @ square + mixing.scale @ np.sum(together**2, axis=1) * np.trace(H))
    length = float(np.linalg.norm(best)) + float(np.linalg.norm(s.start))
    mu = float(s.method.proximal_mu)
    push = float(gradient_rounding(p, np.full(1, length)).max())
    off = UNIT * length + push / mu + (1e-13 * (1.0 + length) if s.method.solver is not None else 0.0)
    top = float(np.linalg.norm(H, 2)) * float(np.linalg.norm(e, axis=1).max() + off)
    return Found(np.full(len(rounds), value), np.full(len(rounds), size + top * off + drowned + _of_the_bound(s, push)))


def _of_the_bound(s: Setting, push: float) -> float:
    """How far rho ‖g‖^2 may be off where gradients g at the start are off by ``push``, B by that over ‖g‖."""
    p, mu = s.problem, float(s.method.proximal_mu)
    L, B = known_constants("FedProx descent", p.constants(center=s.start), "L", "B")
    return float(8.0 * push * np.linalg.norm(p.gradient(s.start)) * B * (1.0 + L * B / mu) ** 2 / mu)


def few_draws(clients: int) -> ProportionalSampling:
    """Return at most three draws with probabilities p_k: few enough to enumerate.

    Parameters
    ----------
    clients : int
        How many there are, at least 1.

    Raises
    ------
    ValueError, TypeError
        If clients is below 1.

    Examples
    --------
    >>> from fedconvex.theorems.fedprox import few_draws
    >>> few_draws(2).draws, few_draws(100).draws
    (2, 3)
    """
    return ProportionalSampling(min(whole("few_draws: clients", clients, low=1), 3))


def least_bound_proximal(**settings: Any) -> MethodRule:
    """Return FedProx with exact local solutions and the proximal weight of L, 2L, 4L, ... whose bound is least.

    Examples
    --------
    >>> from fedconvex.theorems.fedprox import least_bound_proximal
    >>> least_bound_proximal().words
    'the 2^j L with the least bound'
    """
    work = {"solver": ProximalPoint()} | settings

    def method(eta: float, p: Problem) -> FedProx:
        return FedProx(proximal_mu=1.0 / eta, **feasible_work(p, work))

    return MethodRule("the 2^j L with the least bound", least_bound(method))


def _given_proximal(mu: float, draws: int = 0) -> MethodRule:
    """Return FedProx with exact local solutions and so many times L for its weight, everybody or so many draws."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedProx:
        who: dict[str, Any] = {"participation": ProportionalSampling(draws)} if draws else {}
        return FedProx(proximal_mu=mu * smoothness(problem), solver=ProximalPoint(), **who)

    return MethodRule(f"{mu:g} L", make)


_SPACE = Space(
    lambda k: _given_proximal(k["mu"], int(k["draws"])),
    {"mu": Real(0.05, 50.0), "draws": Whole(0, 3)},
    losses=("squared", "squared", "logistic"),
    rounds=(1, 1),
    weighted=True,
)
_DESCENT: dict[str, Any] = {
    "quantity": NEXT_VALUE,
    "sample": _next_value,
    "exact": _exact_next_value,
    "statement": STATEMENT,
    "space": _SPACE,
}
_EQUALITY = (
    "An equality for equal parabolas; elsewhere two steps take the worst curvature of different clients at once."
)

THEOREMS = (
    Theorem(
        name="fedprox",
        title="FedProx, descent (Li et al.)",
        bound=fedprox,
        formula=_formula(_FORMULA_PAPER),
        read=_reader(True),
        says="One round with exact or inexact proximal solutions decreases F by rho‖grad F‖², for K sampled clients.",
        loose="Terms of the sampling that are not needed; with many clients and equal parabolas it is sharp.",
        method=least_bound_proximal(scheme=few_draws),
        checks=(
            alike_logistic,
            breast_cancer,
            Check(alike_logistic, least_bound_proximal()),
        ),  # the last: full participation
        **_DESCENT,
    ),
    Theorem(
        name="fedprox-sharp",
        title="FedProx, sharper descent",
        bound=fedprox_sharp,
        formula=_formula(FORMULA_SHARP),
        read=_reader(False),
        says="The same without any term for the sampling.",
        loose=_EQUALITY,
        method=least_bound_proximal(scheme=few_draws),
        checks=(alike_logistic, unequal_hessians, breast_cancer, diabetes),
        **_DESCENT,
    ),
    Theorem(
        name="fedprox-convex",
        title="FedProx, convex descent",
        bound=fedprox_convex,
        formula=_formula(_FORMULA_CONVEX),
        read=_reader(False),
        says="The same with the convexity of every client, for smaller proximal weights.",
        loose=_EQUALITY,
        method=least_bound_proximal(),
        checks=(alike_logistic, unequal_hessians, breast_cancer, diabetes),
        **_DESCENT,
    ),
)
