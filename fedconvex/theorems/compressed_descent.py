"""Compressed gradient descent: of one client an exact rate, faster than error feedback; of several none."""

from __future__ import annotations

import math

import numpy as np

from fedconvex.methods import CompressedGradientDescent, TopK
from fedconvex.theorems.error_feedback import first_client, flat_diagonal, of_one_client
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.compression import contractive, model_size
from fedconvex.theorems.parts.rounding import excess
from fedconvex.theorems.parts.smoothness import constants_of_F

__all__ = ["STATEMENT", "THEOREMS", "compressed_descent", "compressed_descent_step"]

SOURCE = "fedconvex, after de Klerk, Glineur, Taylor 2020 (docs/theory/compressed_descent.md)"

STATEMENT = Statement(
    page="compressed_descent",
    title="Compressed gradient descent of one client",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
x <- x - gamma C(grad f(x)), ‖C(v) - v‖ <= s ‖v‖ for all v, s = (1 - delta)^(1/2), of one client: F = f. Several
clients: x <- x - gamma sum p_i C(grad f_i(x)).
""",
    assumptions="One client. f is mu-strongly convex and L-smooth, 0 < mu < L; s < 1.",
    statement="""
Let gamma (1 + s) L <= 2 and rho = max{1 - gamma (1 - s) mu, gamma (1 + s) L - 1}. Then

    F(x+) - F* <= rho^2 (F(x) - F*),

at best with gamma = 2/((1 + s) L + (1 - s) mu): rho = (s + q)/(1 + s q), q = (L - mu)/(L + mu). This is below the r of
[error feedback](error_feedback.md) for all 0 < s < 1, 0 < q < 1. With several clients neither rate nor limit remain.
""",
    source="""
Gradient descent with relative errors: de Klerk, Glineur, Taylor, "Worst-case convergence analysis of inexact gradient
and Newton methods through semidefinite programming performance estimation", SIAM J. Optim. 30 (2020), from memory: the
best step. Any step, and the comparison: derived here. That compressed gradient descent of one client is the faster one
is a finding of Thomsen, Taylor, Dieuleveut, NeurIPS 2025.
""",
    differs="Any step up to 2/((1 + s) L), in the place of the best one only.",
    meaning="""
A client alone needs no memory: compressing its gradients costs what a condition number (1 + s)/(1 - s) times as large
would. Error feedback is for several clients, whose gradients do not vanish at the optimum. With two, TopK(1) of
gradients (3, -1) and (-3, 0) never tells of the second entry, and the run ends away from the optimum
(`test_biased_gradients_of_several_clients_lead_elsewhere_and_of_one_do_not`).
""",
    proof="""
**Rate.** Weigh the interpolation inequality of (x, x⁺) with ρ, those of (x*, x) and (x*, x⁺) with ρ(1-ρ) and
1-ρ, and ‖C(g) - g‖² ≤ s²‖g‖² with γρ/(2s). The function values add up to F(x⁺) - ρ²F(x) - (1-ρ²)F*, and what is
left is a quadratic form in (x - x*, g, g⁺, C(g)) that is positive semidefinite: its least eigenvalue is zero up
to rounding for hundreds of drawn (μ, L, s, γ) (`test_multipliers_of_compressed_descent`). At s = 0 these are
the weights of gradient descent. The rate is attained: F of one dimension with curvature μ, C(v) = (1-s)v; or L,
C(v) = (1+s)v.

**Comparison.** r is the positive root of t² - (1-s)qt - s. At t = (s+q)/(1+sq) this is -s(1-s)(1-q)²(1+q)/(1+sq)² < 0:
that t is below r. ∎
""",
    loose="""
Attained over all functions and compressors, by programmes at every step
(`test_rates_are_exact_worst_cases_of_a_round`). Top-k projects, ⟨C(v), v⟩ = ‖C(v)‖²: on a flat diagonal,
entries of equal modulus, one round has 1 - 2γδμ + O(γ²) in the place of 1 - 2γ(1-s)μ + O(γ²), where δ =
(1+s)(1-s).
""",
)


def compressed_descent(
    constants: Constants,
    *,
    step_size: float,
    delta: float,
    rounds: int,
    clients: int = 1,
    start_gap: float | None = None,
) -> Bound:
    """Return the bound of F(x_T) - F* of one client.

    Parameters
    ----------
    constants : Constants
        L, mu of F; without start_gap D.
    step_size, delta : float
        gamma; delta in (0, 1].
    rounds, clients : int
        T; the number of clients, which has to be one.
    start_gap : float, optional
        F(x^0) - F*; default its bound L D^2/2.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, the step is too long, or there are several clients.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.compressed_descent import compressed_descent, compressed_descent_step
    >>> constants = Constants(L=19.0, mu=1.0)
    >>> gamma = compressed_descent_step(constants, delta=0.75)
    >>> round(compressed_descent(constants, step_size=gamma, delta=0.75, rounds=1, start_gap=1.0).value, 4)
    0.9322
    """
    gamma, T = real("step_size", step_size, low=0.0, strict=True), whole("rounds", rounds)
    s, L, mu = _setting(constants, delta)
    top = gamma * (1.0 + s) * L
    requires = require(
        SOURCE,
        Hypothesis("one client", f"{clients} clients", whole("clients", clients, low=1) == 1),
        Hypothesis("gamma <= 2/((1 + s) L) (vacuous otherwise)", f"gamma (1 + s) L = {top:g}", top <= 2.0),
        Hypothesis("f mu-strongly convex and L-smooth", f"mu = {mu:g}, L = {L:g}"),
    )
    rho = max(1.0 - gamma * (1.0 - s) * mu, top - 1.0)
    gap = 0.5 * L * float(known_constants(SOURCE, constants, "D")[0]) ** 2 if start_gap is None else start_gap
    start = rho ** (2 * T) * real("start_gap", gap, low=0.0)
    return Bound({"start": start}, LAST_SYNCHRONISED, SOURCE, requires)


def compressed_descent_step(constants: Constants, *, delta: float) -> float:
    """Return 2/((1 + s) L + (1 - s) mu), the step of the least factor.

    Parameters
    ----------
    constants : Constants
        L and mu of F.
    delta : float
        Of the compressor, E‖C(x) - x‖^2 <= (1 - delta) ‖x‖^2; s = (1 - delta)^(1/2).

    Raises
    ------
    ValueError, TypeError
        If delta is not in (0, 1].

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.compressed_descent import compressed_descent_step
    >>> compressed_descent_step(Constants(L=3.0, mu=1.0), delta=0.75)
    0.4
    """
    s, L, mu = _setting(constants, delta)
    return 2.0 / ((1.0 + s) * L + (1.0 - s) * mu)


def _setting(constants: Constants, delta: float) -> tuple[float, float, float]:
    """Return s, L and mu."""
    delta = real("delta", delta, low=0.0, high=1.0, strict=True)
    L, mu = (float(v) for v in known_constants(SOURCE, constants, "L", "mu"))
    require(SOURCE, Hypothesis("F strongly convex, 0 < mu <= L", f"mu = {mu:g}", 0.0 < mu <= L * (1.0 + 1e-12)))
    return math.sqrt(1.0 - delta), L, mu


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    is_method(SOURCE, s.method, CompressedGradientDescent)
    stationary(SOURCE, s.problem)
    delta, checked = contractive(SOURCE, s)
    numbers = {
        "step_size": one_number(SOURCE, "step size", s.method.step_size),
        "delta": delta,
        "rounds": s.rounds,
        "clients": s.problem.federation.K,
        "start_gap": max(excess(s.problem, s.start), 0.0),
    }
    return Reading({"constants": constants_of_F(SOURCE, s), **numbers}, checked)


def largest(k: int = 1, share: float = 1.0) -> MethodRule:
    """Return the method with Top-k and so many times the step of the least factor."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> CompressedGradientDescent:
        run = Setting(problem, None, rounds, start)
        sent = min(k, model_size(run))
        best = compressed_descent_step(constants_of_F(theorem.name, run), delta=sent / model_size(run))
        return CompressedGradientDescent(step_size=share * best, compressor=TopK(sent))

    return MethodRule(f"{share:g} times the best" if share != 1.0 else "the best of the theorem", make)


THEOREMS = (
    Theorem(
        name="compressed-descent",
        title="Compressed gradient descent, one client",
        quantity=LAST_SYNCHRONISED,
        bound=compressed_descent,
        read=_read,
        statement=STATEMENT,
        says="One client with compressed gradients gains more a round than error feedback; several need not converge.",
        loose="Attained by other compressors than Top-k, which projects; by gradient descent, k = d.",
        method=largest(),
        rounds=10,
        checks=(
            first_client(unequal_hessians),
            first_client(shifted_logistic),
            first_client(breast_cancer),
            first_client(diabetes),
            Check(one_parabola[0], largest(1, 0.5), 2),
            Check(flat_diagonal, largest(1), 1, 0.0),
            Check(flat_diagonal, largest(1), 20, 0.0),
            Check(flat_diagonal, largest(2, 0.9), 3, 0.0),
            Check(flat_diagonal, largest(1, 0.1), 1, 0.0),  # mu without 1 - s would fail
            Check(unequal_hessians, largest(2), 300),  # several clients
            Check(first_client(diabetes), largest(10, 3.0)),  # too long a step
        ),
        space=Space(
            lambda k: largest(int(k["k"]), k["share"]),
            {"k": Whole(1, 3), "share": Real(0.05, 1.0, 2.0)},
            losses=("squared", "logistic"),
            rounds=(1, 20),
            problem=of_one_client,
            tries=12,
        ),
    ),
)
