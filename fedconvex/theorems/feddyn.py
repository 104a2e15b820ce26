"""FedDyn: Douglas-Rachford splitting, hence a linear rate to the optimum for every weight of the proximal term."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import FedDyn
from fedconvex.theorems.hedging import DISTANCE, hedging_factor
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.rounding import rounds_added
from fedconvex.theorems.parts.smoothness import smoothness_of_F, start_length

__all__ = ["STATEMENT", "THEOREMS", "feddyn"]

SOURCE = "Giselsson, Boyd 2017, Theorem 2, for FedDyn as Douglas-Rachford splitting (docs/theory/feddyn.md)"

STATEMENT = Statement(
    page="feddyn",
    title="FedDyn",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
A round: w_k = argmin f_k(v) - <h_k, v> + (alpha/2) ‖v - w‖^2; h_k <- h_k - alpha (w_k - w); h <- h - alpha sum p_k
(w_k - w); w <- sum p_k w_k - h/alpha. Full participation, exact solutions; h_k = h = 0 at first.
""",
    assumptions="Every f_k is mu-strongly convex and L-smooth, mu > 0.",
    statement="""
v_k = w + h_k/alpha obeys v <- (v + R_C R_f v)/2, R_f and R_C the reflections of prox_{f_k/alpha}, client by client, and
of the p-weighted average: the recursion of progressive hedging with rho = alpha. The fixed point is w* with
h_k = grad f_k(w*), whatever alpha and p. With delta = max{alpha/(alpha + mu), L/(L + alpha)}, for T >= 1,

    ‖w_T - w*‖ <= (2 delta - 1) delta^(T-1) (‖w_0 - w*‖^2 + zeta_*^2/alpha^2)^(1/2).
""",
    source="""
Method: Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic regularization", ICLR
2021, Algorithm 1. Rate of the splitting: Giselsson, Boyd, IEEE TAC 62 (2017), Theorem 2, proved in
[progressive hedging](hedging.md). That FedDyn is that splitting: derived here.
""",
    differs="""
The paper asks for large alpha and bounds averages of F - F*, for equal weights. Where clients solve exactly and
all take part every alpha > 0 converges linearly.
""",
    meaning="""
FedDyn and progressive hedging (consensus ADMM) from the same start make the same models at the clients in every
round; only what the server calls its model differs, sum p_k (2 w_k - v_k) here and sum p_k w_k there. So
FedDyn's best alpha is (mu L)^(1/2), and its rate that of ADMM.
""",
    proof="""
1. The first line is w_k = prox_{f_k/α}(w + h_k/α) = prox(v_k), and h_k⁺ = ∇f_k(w_k) = α(v_k - w_k).
2. h = Σ p_kh_k stays, so w⁺ = Σ p_k(w_k - h_k⁺/α) = Σ p_k(2w_k - v_k) = P R_f v, P the weighted average.
3. v⁺ = w⁺ + h_k⁺/α = P R_f v + v - w, and w = (v + R_f v)/2 client by client: v⁺ = ½(v - R_f v) + P R_f v = ½(v
   + (2P - I) R_f v), R_C = 2P - I.
4. This is the map of [progressive hedging](hedging.md), which contracts by δ in the norm (Σ p_k‖·‖²)^{1/2}; v_k* = w* +
   ∇f_k(w*)/α, and v⁰ = w_0: the cross term with Σ p_k∇f_k(w*) = 0 vanishes. R_f contracts by 2δ - 1, P does not expand,
   and P R_f v* = w*: ‖w_T - w*‖ ≤ (2δ - 1)‖v^{T-1} - v*‖. ∎
""",
    loose="Attained by one parabola, of curvature mu or L. The best alpha is slower than it need be on most problems.",
)


def feddyn(constants: Constants, *, alpha: float, rounds: int) -> Bound:
    """Return the bound of ‖w_T - w*‖.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), D, zeta_star.
    alpha, rounds : float, int
        alpha, T >= 1.

    Raises
    ------
    AssumptionError
        If a constant is missing, or mu = 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.feddyn import feddyn
    >>> round(feddyn(Constants(L=1.0, mu=1.0, D=3.0, zeta_star=8.0), alpha=2.0, rounds=2).value, 6)  # (1/3) (2/3) 5
    1.111111
    """
    alpha, T = real("alpha", alpha, low=0.0, strict=True), whole("rounds", rounds, low=1)
    L, D, zeta = (float(v) for v in known_constants(SOURCE, constants, "L", "D", "zeta_star"))
    mu = least_convexity(SOURCE, constants)
    requires = require(
        SOURCE,
        Hypothesis("every f_k mu-strongly convex, mu > 0", f"mu = {mu:g}", mu > 0.0),
        Hypothesis("every f_k L-smooth", f"L = {L:g}"),
    )
    delta, reach = hedging_factor(constants, rho=alpha), zeta / alpha
    factor = (2.0 * delta - 1.0) * delta ** (T - 1)
    terms = {"start": factor * D, "memories": factor * (math.hypot(D, reach) - D)}
    return Bound(terms, DISTANCE, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    m = s.method
    is_method(SOURCE, m, FedDyn)
    stationary(SOURCE, s.problem)
    smoothness_of_F(SOURCE, s.problem)
    exact = m.local_steps is None and m.tol <= 1e-9
    checked = require(
        SOURCE,
        full_participation(s),
        Hypothesis("exact local solutions", f"local_steps={m.local_steps}, tol={m.tol:g}", exact),
    )
    numbers = {"alpha": one_number(SOURCE, "weight alpha", m.alpha), "rounds": s.rounds}
    return Reading({"constants": s.constants(), **numbers}, checked)


def _distance(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    best = s.problem.solve().w
    return values_along(
        lambda state: np.linalg.norm((state.w - best).reshape(trajectories, -1), axis=1), s, rounds, seed, trajectories
    )


def _rounding(s: Setting, value: float) -> float:
    """Return the errors of local solutions and of sums, which a contraction adds up; the server divides h by alpha."""
    c, alpha = s.constants(), float(s.method.alpha)
    size = start_length(s) + float(c.zeta_star or 0.0) / alpha
    push = float(gradient_rounding(s.problem, np.full(1, size)).max()) / alpha
    each = s.method.tol * (1.0 + size) + 8.0 * UNIT * size + 3.0 * push
    return each * rounds_added(hedging_factor(c, rho=alpha), s.rounds) + minimiser_rounding(s.problem)


def weight(share: float = 1.0, **settings: Any) -> MethodRule:
    """Return FedDyn with so many times the best weight, (mu L)^(1/2)."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedDyn:
        c = problem.constants()
        mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
        best = math.sqrt(mu * float(c.L or 1.0))
        return FedDyn(alpha=share * best if best > 0.0 else share, **settings)

    return MethodRule(f"{share:g} (mu L)^(1/2)" if share != 1.0 else "(mu L)^(1/2), the best", make)


THEOREMS = (
    Theorem(
        name="feddyn",
        title="FedDyn",
        quantity=DISTANCE,
        bound=feddyn,
        read=_read,
        sample=_distance,
        exact=deterministic(_distance),
        tolerance=_rounding,
        statement=STATEMENT,
        says="FedDyn is Douglas-Rachford splitting: linear to the optimum, for any alpha, weights and heterogeneity.",
        loose="Attained by one parabola.",
        method=weight(),
        rounds=8,
        checks=(
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            breast_cancer,
            diabetes,
            Check(one_parabola[0], weight(3.0), 3),
            Check(steep_and_flat, weight(0.1), 3),
            Check(steep_and_flat, weight(0.01), 40),
            Check(steep_and_flat, weight(1.0), 1, at_minimiser),
            Check(unequal_hessians, weight(participation=0.5)),  # sampled clients
            Check(unequal_hessians, weight(local_steps=3, step_size=0.1)),  # inexact solutions
        ),
        space=Space(
            lambda k: weight(k["alpha"]),
            {"alpha": Real(0.03, 30.0)},
            losses=("squared", "logistic"),
            rounds=(1, 10),
            weighted=True,
            tries=12,
        ),
    ),
)
