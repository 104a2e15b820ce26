"""The limit of FedAvg on least squares: how far it is off the optimum, and off the average of local minimisers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import FedProx, ProximalPoint
from fedconvex.theorems.kit import *
from fedconvex.theory.fixed_points import (
    Affine,
    Spread,
    fedavg_filter,
    fedavg_round,
    fedprox_round,
    quadratic,
    spectrum,
    spread,
)

__all__ = [
    "CLOSENESS",
    "LIMIT_BIAS",
    "LIMIT_TO_MINIMISERS",
    "STATEMENT",
    "THEOREMS",
    "fedavg_bias",
    "fedavg_constant_steps",
    "fedavg_limit_patel",
    "fedprox_bias",
]

_PATEL = "Patel et al. 2024, Proposition 21 (re-derived, weighted)"
_BIAS = "fedconvex, bias of {} on quadratics (docs/theory/fedavg_limit.md, {})"

LI = "Li et al. 2020, arXiv:1907.02189, Theorem 4 (explicit form: docs/theory/fedavg_limit.md)"

LIMIT_BIAS = Quantity(
    "‖w_inf - w*‖ of the limit of the rounds", dimension=Dimension.LENGTH, by_rounds=False, **FROM_MINIMUM
)
LIMIT_TO_MINIMISERS = Quantity(
    "‖w_inf - sum p_k w_k*‖ of the limit of the rounds", dimension=Dimension.LENGTH, by_rounds=False, least=0.0
)
CLOSENESS = Quantity(
    "1/(F(w_inf) - F*) of the limit of the rounds, which is large near the optimum", by_rounds=False, **FROM_MINIMUM
)

STATEMENT = Statement(
    page="fedavg_limit",
    title="The limit of FedAvg on least squares",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
F = sum p_k F_k, F_k(w) = w'H_k w/2 - b_k'w + const with H_k >= 0 and b_k in its range; full participation; full
gradients. One round starts every client at w and averages with p; w_inf is the limit of the rounds, wbar* = sum p_k
w_k* the average of the clients' minimisers. The maps themselves, their fixed points and rates: [fixed
points](fixed_points.md).
""",
    assumptions="Every F_k is mu-strongly convex and L-smooth; c = max{|1 - eta mu|, |1 - eta L|} < 1.",
    statement="""
‖w_inf - w*‖ <= [eta^2 sum_{j<E} j c^(j-1)/(1 - c^E)] tau_rms zeta_*           FedAvg   (B1)
‖w_inf - w*‖ <= tau_rms zeta_*/(mu (mu + mu'))                                  FedProx with exact prox  (B2)
‖w_inf - wbar*‖ <= [eta E c^(E-1)/(1 - c^E)] tau xi                              FedAvg   (P)
F(w_inf) - F* >= (l^2/2) [‖v‖_{1/H} - eta (E - 2) u/(3 sqrt(mu))]^2               FedAvg   (L)

(L) if eta L <= 1 and the bracket is positive (short steps), with l = eta (E - 1)/2, v = sum p_k H_k grad F_k(w*),
‖v‖_{1/H} = (v'H^{-1}v)^{1/2}, u = sum p_k ‖H_k^2 grad F_k(w*)‖; so ‖w_inf - w*‖ >= l [...]/‖H‖^{1/2};

with tau = max ‖H_j - H_k‖, tau_rms^2 = sum p_k ‖H_k - H‖^2, zeta_*^2 = sum p_k ‖grad F_k(w*)‖^2,
xi^2 = sum p_k ‖w_k* - w*‖^2: `fixed_points.spread(problem)`.
""",
    source="""
(P): Patel, Glasgow, Zindari, Wang, Stich, Cheng, Joshi, Srebro, "The limits and potentials of local SGD for
distributed heterogeneous learning with intermittent communication", COLT 2024, Proposition 21 (re-derived, weighted).
B1, B2: this project. (L): the order is that of Li, Huang, Yang, Wang, Zhang, "On the convergence of FedAvg on non-IID
data", ICLR 2020, Theorem 4; instance by instance, with constants and proof, it is this project's.
""",
    differs="""
Proposition 21 has equal weights, eta <= 1/L (c = 1 - eta mu) and a class constant zeta_*/L in the place of xi. That
is not the zeta_* of `Constants`, the root mean square of ‖grad F_k(w*)‖, which is at most L xi and may be much
smaller: with that the bound is false (`test_patel_with_the_gradient_spread_would_be_false`). (P) does not vanish at
E = 1, where w_inf = w*; B1 does. The limit E -> infinity is sometimes quoted as the *sum* of the minimisers: it is
their average. Li et al.'s Theorem 4 has one ridge regression, steps that are "sufficiently small" and a constant in
Omega((E - 1) eta)‖w*‖ that depends on it; (L) says what both are, on any least squares.
""",
    meaning="""
Bias needs both: Hessians that differ *and* gradients that differ at w*. P (Patel et al. 2024,
Proposition 21, there with equal weights and η ≤ 1/L) says how fast many local steps lead to the average of
minimisers; it does not vanish at E = 1. B1 does, and as E → ∞ it stays below τ_rms ζ_*/μ² (for η ≤ 1/L).

(L) is the other side, the reason why steps must decay: with E > 1 local steps of a constant size FedAvg stays away from
the optimum by order η(E-1) unless v = 0, however long it runs. `verify` checks it as a bound of 1/(F(w_∞) - F*).
""",
    proof="""
(i) c bounds ‖I - ηA‖ for A = H_k and A = H, whose spectra lie in [μ, L]. X^j - Y^j = Σ_i X^i(X-Y)Y^{j-1-i}
gives ‖(I-ηA)^j - (I-ηB)^j‖ ≤ ηj c^{j-1}‖A-B‖. (ii) M ≥ (1-c^E)I: eigenvalues of s(H_k)H_k are 1-(1-ηh)^E. (iii) B1:
w_∞ - w* = -M⁻¹ Σ p_k s(H_k)g_k = -M⁻¹ Σ p_k(s(H_k) - s(H))g_k, and s(A) = η Σ_{j<E}(I-ηA)^j with (i): ‖s(H_k) -
s(H)‖ ≤ η² Σ_{j<E} j c^{j-1}‖H_k - H‖; Cauchy-Schwarz over k. (iv) B2: s(A) - s(B) = s(A)(B-A)s(B), ‖s‖ ≤ 1/(μ+μ'),
M ≥ μ/(μ+μ') I. (v) P: with C(A) = I-(I-ηA)^E, w_∞ - w̄* = M⁻¹ Σ p_k(C(H_k) - C(H))(w_k* - w̄*), as Σ p_k(w_k* -
w̄*) = 0; (i), ‖H_k - H‖ ≤ τ, and Σ p_k‖w_k* - w̄*‖² ≤ ξ². ∎

(vi) L: by Bonferroni, for 0 ≤ x ≤ 1, Σ_{j<E}(1-x)^j = E - E(E-1)x/2 + ρ(x) with 0 ≤ ρ(x) ≤ E(E-1)(E-2)x²/6. With e =
w_∞ - w* and Σ p_k g_k = 0, (iii) says Me = η² (E(E-1)/2) v - η Σ p_k ρ(ηH_k)g_k. As 1-(1-x)^E ≤ Ex, 0 ≤ M ≤ ηE H, so
that H^{-1/2}MH^{-1/2}/(ηE) has its eigenvalues in [0, 1] and ‖e‖_H ≥ ‖Me‖_{1/H}/(ηE) ≥ l‖v‖_{1/H} - (η²(E-1)(E-2)/6)
Σ p_k‖H_k²g_k‖/√μ. F(w_∞) - F* = ‖e‖_H²/2. ∎
""",
    loose="""
(L) is attained as η → 0: short by 0.6 % at η = 0.01/L with E = 5 on `rare parabola`, by 7 % at 0.25/L with E = 3. Two
parabolas of nearly equal curvature attain B1 and B2 (within 1 %) and half of P. On random
federations the median is 15-20 times the truth for B1 and B2.

P compares pairs of clients where (v) needs the distance from the mean: P times √((1 - Σp_k²)/2) holds as well.
*Proof.* Let g be the direction of Σ p_k C(H_k)(w_k* - w̄*), and b_k = C(H_k) g. As Σ p_k(w_k* - w̄*) = 0, its length
is Σ p_k ⟨b_k - b̄, w_k* - w̄*⟩ ≤ rms(b_k - b̄) ξ, and 2 rms² = Σ p_j p_k ‖b_j - b_k‖² ≤ (1 - Σp_k²) max ‖C(H_j) -
C(H_k)‖². ∎ K equal clients can do no more than √((K-1)/(2K)): 0.5 for two, 0.577 for three, at most 0.707. Three
attain it: H_k = I + δ(g u_k' + u_k g'), w_k* = u_k, the corners of a triangle orthogonal to g; δ → 0.
""",
)


def fedavg_bias(constants: Constants, clients: Spread, *, step_size: float, local_steps: int) -> Bound:
    """Return (B1), a bound of FedAvg's bias that vanishes for one local step, and for equal Hessians.

    Parameters
    ----------
    constants : Constants
        mu_k (or mu, if it holds for every client) and L.
    clients : Spread
        tau_rms and zeta_star.
    step_size, local_steps : float, int
        eta < 2/L, E.

    Raises
    ------
    ValueError, TypeError
        If clients are no `Spread`, step_size is not positive, or local_steps below 1.
    AssumptionError
        If the contraction is too close to 1 for double precision.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_limit import fedavg_bias
    >>> from fedconvex.theory.fixed_points import Spread
    >>> clients = Spread(tau=1.0, tau_rms=0.5, xi=1.0, zeta_star=2.0)
    >>> fedavg_bias(Constants(L=1.0, mu=0.5), clients, step_size=1.0, local_steps=2).value
    1.3333333333333333
    """
    instance("fedavg_bias: clients", clients, Spread)
    theorem = _BIAS.format("FedAvg", "B1")
    eta, E, c, gain, requires = _contraction(theorem, constants, step_size, local_steps)
    j = np.arange(1, E)
    lag = eta**2 * float(np.sum(j * c ** (j - 1.0))) / gain
    return Bound({"drift": lag * clients.tau_rms * clients.zeta_star}, LIMIT_BIAS, theorem, requires)


def fedprox_bias(constants: Constants, clients: Spread, *, proximal_mu: float) -> Bound:
    """Return (B2), a bound of the bias of FedProx with exact prox.

    Parameters
    ----------
    constants : Constants
        mu of F.
    clients : Spread
        tau_rms and zeta_star of the clients.
    proximal_mu : float
        Positive, in the units of mu.

    Raises
    ------
    ValueError, TypeError
        If clients are no `Spread`, or proximal_mu is not positive.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_limit import fedprox_bias
    >>> from fedconvex.theory.fixed_points import Spread
    >>> clients = Spread(tau=1.0, tau_rms=0.5, xi=1.0, zeta_star=2.0)
    >>> fedprox_bias(Constants(L=1.0, mu=0.5), clients, proximal_mu=1.5).value
    1.0
    """
    instance("fedprox_bias: clients", clients, Spread)
    theorem = _BIAS.format("FedProx", "B2")
    prox = real("proximal_mu", proximal_mu, low=0.0, strict=True)
    mu, _, requires = _curvature(theorem, constants)
    bias = clients.tau_rms * clients.zeta_star / (mu * (mu + prox))
    return Bound({"drift": bias}, LIMIT_BIAS, theorem, requires)


def fedavg_limit_patel(constants: Constants, clients: Spread, *, step_size: float, local_steps: int) -> Bound:
    """Return (P), the distance of FedAvg's limit from the average of the clients' minimisers.

    Parameters
    ----------
    constants, clients
        As for `fedprox_bias`; of the clients tau and xi.
    step_size, local_steps : float, int
        eta and E.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_limit import fedavg_limit_patel
    >>> from fedconvex.theory.fixed_points import Spread
    >>> clients = Spread(tau=1.0, tau_rms=0.5, xi=1.0, zeta_star=2.0)
    >>> fedavg_limit_patel(Constants(L=1.0, mu=0.5), clients, step_size=1.0, local_steps=1).value
    2.0
    """
    instance("fedavg_limit_patel: clients", clients, Spread)
    eta, E, c, gain, requires = _contraction(_PATEL, constants, step_size, local_steps)
    factor = eta * E * c ** (E - 1) / gain
    return Bound({"drift": factor * clients.tau * clients.xi}, LIMIT_TO_MINIMISERS, _PATEL, requires)


def fedavg_constant_steps(
    constants: Constants, *, pull: float, remainder: float, step_size: float, local_steps: int
) -> Bound:
    """Return the reciprocal of (L), a lower bound of the excess that FedAvg with constant steps is left with.

    Parameters
    ----------
    constants : Constants
        mu of F, and L of the clients.
    pull, remainder : float
        ‖sum p_k H_k g_k‖ in the norm of H^{-1}, and sum p_k ‖H_k^2 g_k‖, with g_k = grad F_k(w*).
    step_size, local_steps : float, int
        eta <= 1/L, E >= 2.

    Raises
    ------
    AssumptionError
        If the steps are too long for the bracket to be positive, or clients do not pull apart.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_limit import fedavg_constant_steps
    >>> constants = Constants(L=1.0, mu=1.0)
    >>> fedavg_constant_steps(constants, pull=1.0, remainder=1.0, step_size=0.5, local_steps=2).value
    32.0
    """
    eta, E = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    L, mu = known_constants(LI, constants, "L", "mu")
    first, u = real("pull", pull, low=0.0), real("remainder", remainder, low=0.0)
    requires = require(
        LI,
        Hypothesis("several local steps", f"E = {E}", E >= 2),
        Hypothesis("step_size <= 1/L", f"step_size = {eta:g}, L = {L:g}", eta * L <= 1.0 + 1e-12),
        Hypothesis("F strongly convex", f"mu = {mu:g}", mu > 0.0),
    )
    lag = 0.5 * eta * (E - 1)
    kept = first - eta * (E - 2) * u / (3.0 * math.sqrt(mu))
    far = lag * kept
    excess = 0.5 * far * far  # a power would raise where it overflows
    short = Hypothesis(
        "clients that pull apart, and steps short enough to see it", f"{kept:g} of {first:g}", kept > 0.0
    )
    requires += require(LI, short, Hypothesis("an excess above 1e-300", f"{excess:g}", excess > 1e-300))
    return Bound({"reciprocal": 1.0 / excess}, CLOSENESS, LI, requires)


def _curvature(theorem: str, constants: Constants) -> tuple[float, float, tuple[Hypothesis, ...]]:
    """Strong convexity and smoothness of every client."""
    (L,) = known_constants(theorem, constants, "L")
    mu = least_convexity(theorem, constants)
    return mu, float(L), require(theorem, Hypothesis("every F_k strongly convex", f"mu = {mu:g}", mu > 0.0))


def _contraction(
    theorem: str, constants: Constants, step_size: float, local_steps: int
) -> tuple[float, int, float, float, tuple[Hypothesis, ...]]:
    """Return eta, E, c and 1 - c^E, which does not vanish where c rounds to 1."""
    eta, E = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    mu, L, requires = _curvature(theorem, constants)
    step = Hypothesis("step_size < 2/L", f"step_size = {eta:g}, 2/L = {2.0 / L:g}", eta * L < 2.0)
    requires += require(theorem, step)
    gap = min(eta * mu, 2.0 - eta * L)  # 1 - c, at most 1
    if not gap > 0.0:
        raise AssumptionError(
            f"{theorem} does not apply: needs a contraction that double precision resolves, got {gap}"
        )
    return eta, E, 1.0 - gap, -math.expm1(E * math.log1p(-gap)) if gap < 1.0 else 1.0, requires


# ---------------------------------------------------------------- read off a setting


def _numbers(s: Setting) -> dict[str, Any]:
    p, name = s.problem, "limit of FedAvg"
    local = plain_local_sgd(name, s)
    stationary(name, p)
    require(
        name,
        Hypothesis("least squares", f"{p.loss!r}", traits(p.loss).quadratic),
        full_participation(s),
        Hypothesis("full local gradients", f"batches from {local.batch_size.min()} rows", local.full),
    )
    return {"step_size": one_number(name, "step size", local.step_size), "local_steps": int(local.steps[0])}


def _read(s: Setting) -> Reading:
    numbers = _numbers(s)
    return Reading({"constants": s.problem.constants(start=s.start), "clients": spread(s.problem), **numbers})


def _read_lower(s: Setting) -> Reading:
    numbers = _numbers(s)
    q, constants = quadratic(s.problem), s.problem.constants(start=s.start)
    moved = np.einsum("kij,kj->ki", q.H, q.gradients(q.minimiser))
    v, twice = q.p @ moved, np.einsum("kij,kj->ki", q.H, moved)
    pull = float(np.sqrt(max(v @ np.linalg.lstsq(np.tensordot(q.p, q.H, 1), v, rcond=None)[0], 0.0)))
    off = float(q.p @ (np.linalg.norm(q.H, 2, axis=(1, 2)) * gradient_rounding(s.problem, q.minimiser)))
    pull = max(pull - off / math.sqrt(constants.mu), 0.0) if constants.mu else pull  # clients that agree do not pull
    far = float(q.p @ np.linalg.norm(twice, axis=1))
    return Reading({"constants": constants, "pull": pull, "remainder": far, **numbers})


def _bias(s: Setting, rounds: Sequence[int], metric: np.ndarray | None = None) -> Found:
    """‖M^-1 sum p_k (s(H_k) - s(H)) g_k‖, step (iii) of the proof: nothing is subtracted from w*."""
    p, numbers = s.problem, _numbers(s)
    q = quadratic(p)
    w, H = q.minimiser, np.tensordot(q.p, q.H, 1)
    filters = np.array([fedavg_filter(A, **numbers) for A in q.H])
    apart = filters - fedavg_filter(H, **numbers)
    off, map_ = gradient_rounding(p, w), fedavg_round(p, **numbers)
    return _distance(map_, p, rounds, apart, filters, q.gradients(w), off, metric)


def _closeness(s: Setting, rounds: Sequence[int]) -> Found:
    """2/‖w_inf - w*‖_H^2."""
    q = quadratic(s.problem)
    h, V = spectrum(np.tensordot(q.p, q.H, 1))
    far, off = _bias(s, rounds, (V * np.sqrt(h)) @ V.T)
    least = np.maximum(far - off, 0.0)
    with np.errstate(divide="ignore"):
        return Found(2.0 / far**2, np.where(least > 0.0, 2.0 / least**2 - 2.0 / far**2, np.inf))


def _read_prox(s: Setting) -> Reading:
    mu = _proximal_weight(s)
    return Reading({"constants": s.problem.constants(start=s.start), "clients": spread(s.problem), "proximal_mu": mu})


def _proximal_weight(s: Setting) -> float:
    p, t, name = s.problem, traits_of(s.method, s.problem), "limit of FedProx"
    stationary(name, p)
    exact = t.local is None and t.proximal is not None and t.deterministic
    require(
        name,
        Hypothesis("least squares", f"{p.loss!r}", traits(p.loss).quadratic),
        full_participation(s),
        plain_averaging(s),
        Hypothesis("exact proximal points", type(s.method).__name__, exact),
    )
    return one_number(name, "proximal weight", t.proximal)


def _prox_bias(s: Setting, rounds: Sequence[int]) -> Found:
    """‖M^-1 sum p_k (s(H_k) - s(H)) g_k‖ with s(A) = (A + mu' I)^-1."""
    p, mu = s.problem, _proximal_weight(s)
    q = quadratic(p)
    w, H = q.minimiser, np.tensordot(q.p, q.H, 1)
    filters, mean = (np.linalg.inv(A + mu * np.eye(len(H))) for A in (q.H, H))
    map_ = fedprox_round(p, proximal_mu=mu)
    return _distance(map_, p, rounds, filters - mean, filters, q.gradients(w), gradient_rounding(p, w))


def _from_minimisers(s: Setting, rounds: Sequence[int]) -> Found:
    """‖M^-1 sum p_k (s(H_k) H_k - M)(w_k* - wbar*)‖, step (v) of the proof."""
    p, numbers = s.problem, _numbers(s)
    q = quadratic(p)
    own = q.minimisers
    gains = np.array([fedavg_filter(A, **numbers) @ A for A in q.H])
    push = np.array([gradient_rounding(p, w)[k] for k, w in enumerate(own)])
    least = np.array([min(h[h > 0.0], default=math.inf) for h in (spectrum(A)[0] for A in q.H)])
    apart, map_ = gains - np.tensordot(q.p, gains, 1), fedavg_round(p, **numbers)
    return _distance(map_, p, rounds, apart, gains, own - q.p @ own, push / least)


def _distance(
    map_: Affine, problem: Any, rounds: Sequence[int], apart: np.ndarray, of: np.ndarray, v: np.ndarray,
    off: np.ndarray, metric: np.ndarray | None = None,
) -> Found:  # fmt: skip
    """‖M^-1 sum p_k apart_k v_k‖ with its rounding; apart_k is a difference of matrices like of_k, v_k off by off_k.

    With a metric A, ‖A M^-1 ...‖.
    """
    p = np.asarray(problem.weights)
    map_.limit()  # refuses what does not converge
    inverse, eps = map_.kept()[2], 16.0 * EPS * len(map_.offset)
    inverse = inverse if metric is None else metric @ inverse
    value = float(np.linalg.norm(inverse @ np.einsum("k,kij,kj->i", p, apart, v)))
    size = float(np.linalg.norm(inverse, 2))
    first = np.linalg.norm(apart, 2, axis=(1, 2)) * off + eps * np.linalg.norm(of, 2, axis=(1, 2)) * (
        np.linalg.norm(v, axis=1) + off
    )
    allowed = size * float(p @ first) + eps * value * size * float(np.linalg.norm(map_.change, 2))
    return Found(np.full(len(rounds), value), np.full(len(rounds), allowed))


_SPACE = local_sgd_space(fixed_step, 1.9, batches=0, weighted=True, rounds=(1, 1))

_PROXIMAL = Space(
    lambda k: given(FedProx, proximal_mu=k["mu"], solver=ProximalPoint()),
    {"mu": Real(0.01, 100.0)},
    rounds=(1, 1),
    weighted=True,
)

THEOREMS = (
    Theorem(
        name="fedavg-bias",
        title="FedAvg, bias of the limit",
        quantity=LIMIT_BIAS,
        bound=fedavg_bias,
        read=_read,
        exact=_bias,  # no finite run shows a limit
        statement=STATEMENT,
        says="The limit of FedAvg on least squares is off the optimum by at most a multiple of step, steps and spread.",
        loose="Attained by two parabolas; 15 to 20 times on random federations.",
        method=fixed_step(0.25, local_steps=5),
        space=_SPACE,
        checks=(
            unequal_hessians,
            diabetes,
            Check(two_parabolas[0], fixed_step(0.01, local_steps=5)),
            shifted_logistic,  # not least squares
        ),
    ),
    Theorem(
        name="fedavg-constant-steps",
        title="FedAvg, constant steps stay away from the optimum (Li et al., Theorem 4)",
        quantity=CLOSENESS,
        bound=fedavg_constant_steps,
        read=_read_lower,
        exact=_closeness,
        statement=STATEMENT,
        says="With E > 1 local steps of a constant size FedAvg's limit keeps an excess of order (eta (E - 1))^2.",
        loose="Attained by short steps; it drops terms of order eta E and grows vacuous where they do not.",
        method=fixed_step(0.01, local_steps=5),
        space=local_sgd_space(fixed_step, 0.2, batches=0, most=6, weighted=True, rounds=(1, 1)),
        checks=(
            chain,
            diabetes,
            rare_parabola,
            *(Check(i, fixed_step(0.25, local_steps=3)) for i in (rare_parabola, rare_parabola_in_thousands)),
            Check(rare_parabola, fixed_step(0.001, local_steps=2)),
            unequal_hessians,
            equal_hessians,  # whose limit is the optimum
            Check(diabetes, fixed_step(0.01)),  # one local step
        ),
    ),
    Theorem(
        name="fedprox-bias",
        title="FedProx, bias of the limit",
        quantity=LIMIT_BIAS,
        bound=fedprox_bias,
        read=_read_prox,
        exact=_prox_bias,
        statement=STATEMENT,
        says="The limit of FedProx on least squares is off the optimum by spread over the proximal weight.",
        loose="Attained by two parabolas; 15 to 20 times on random federations.",
        method=given(FedProx, proximal_mu=1.0, solver=ProximalPoint()),
        space=_PROXIMAL,
        checks=(
            unequal_hessians,
            diabetes,
            two_parabolas[0],
            shifted_logistic,  # not least squares
            Check(unequal_hessians, fixed_step(0.25, local_steps=5)),  # no proximal points
        ),
    ),
    Theorem(
        name="fedavg-limit",
        title="FedAvg, limit and local minimisers (Patel et al.)",
        quantity=LIMIT_TO_MINIMISERS,
        bound=fedavg_limit_patel,
        read=_read,
        exact=_from_minimisers,
        statement=STATEMENT,
        says="The limit of FedAvg on least squares is near the average of the clients' own minimisers.",
        loose="It compares pairs of clients where the distance from the mean counts: a factor 1.41 to 2.",
        method=fixed_step(0.25, local_steps=5),
        space=_SPACE,
        checks=(
            unequal_hessians,
            diabetes,
            *(Check(two_parabolas[0], fixed_step(0.01, local_steps=E)) for E in (1, 5)),
        ),
    ),
)
