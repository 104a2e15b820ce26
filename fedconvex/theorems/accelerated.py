"""Nesterov's gradient method: linear convergence with constant momentum, and 1/T^2 with growing momentum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedconvex.methods import AcceleratedGradient
from fedconvex.theorems.error_feedback import flat_diagonal
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.rounding import excess
from fedconvex.theorems.parts.smoothness import constants_of_F, smoothness_of_F
from fedconvex.theorems.parts.theorem import Programme
from fedconvex.theory.worst_case import accelerated

__all__ = ["STATEMENT", "THEOREMS", "accelerated_convex", "accelerated_strongly_convex"]

STRONG = "Nesterov 2018, Lectures on convex optimization, Theorem 2.2.3 with v_0 = w_0 (from memory)"
CONVEX = "Beck, Teboulle 2009, SIAM J. Imaging Sci. 2, Theorem 4.4 without a penalty (from memory)"

STATEMENT = Statement(
    page="accelerated",
    title="Nesterov's gradient method",
    scope=EVERYWHERE,
    setting="""
w_{t+1} = v_t - eta grad F(v_t), v_{t+1} = w_{t+1} + beta_t (w_{t+1} - w_t), v_0 = w_0; the gradients of all clients
make grad F. Constant momentum: beta = (1 - q^(1/2))/(1 + q^(1/2)), q = eta mu. Growing momentum:
beta_t = (s_t - 1)/s_{t+1}, s_0 = 1, s_{t+1} = (1 + (1 + 4 s_t^2)^(1/2))/2.
""",
    assumptions="F is convex and L-smooth, eta <= 1/L. Constant momentum: F is mu-strongly convex, mu > 0.",
    statement="""
Constant momentum   F(w_T) - F* <= (1 - (eta mu)^(1/2))^T (F(w_0) - F* + (mu/2) ‖w_0 - w*‖^2).
Growing momentum    F(w_T) - F* <= 2 ‖w_0 - w*‖^2/(eta (T + 1)^2).
""",
    source="""
Nesterov, "Lectures on convex optimization", 2018, Section 2.2.1, constant step scheme III. Beck, Teboulle, "A fast
iterative shrinkage-thresholding algorithm for linear inverse problems", SIAM J. Imaging Sci. 2 (2009). Both are quoted
from memory; the proofs above are written out here.
""",
    differs="""
Any step up to 1/L: an L-smooth F is 1/eta-smooth. L is that of F, which may be far below the largest of the clients'.
""",
    meaning="""
The square root of the condition number in the place of the condition number, whatever the clients are: the baseline
that local steps and compression are held against. F may rise in a round, and a mu that is too large breaks the first
bound. One message a round, and everybody has to answer.
""",
    proof="""
Write L for 1/η. For every x, with w⁺ = v - ∇F(v)/L: F(w⁺) ≤ F(x) + ⟨∇F(v), v - x⟩ - ‖∇F(v)‖²/(2L) - (μ/2)‖x - v‖² (*),
by smoothness at v and convexity between v and x.

**Constant.** q = μ/L, θ = q^(1/2), z_t = w_t + (w_t - w_{t-1})(1/θ - 1), z_0 = w_0. The momentum says v_t = (w_t +
θz_t)/(1 + θ), and then z_{t+1} = (1-θ)z_t + θv_t - ∇F(v_t)/(μ/θ), with μ/θ = θL. (*) at x = w_t with weight 1-θ and at
x = w* with weight θ, plus the square of z_{t+1} - w* written out, give F(w_{t+1}) - F* + (μ/2)‖z_{t+1} - w*‖² ≤
(1-θ)(F(w_t) - F* + (μ/2)‖z_t - w*‖²): the terms in ∇F(v_t) cancel by the choice of v_t, and what remains is ‖θv_t +
(1-θ)z_t - w*‖² ≤ (1-θ)‖z_t - w*‖² + θ‖v_t - w*‖².

**Growing.** (*) with μ = 0 at x = w_t, times s_t - 1, plus (*) at w*, all times s_t; s_t² - s_t = s_{t-1}²:
s_t²(F(w_{t+1}) - F*) + (L/2)‖u_{t+1}‖² ≤ s_{t-1}²(F(w_t) - F*) + (L/2)‖u_t‖², u_t = s_tv_t - (s_t-1)w_t - w*,
u_0 = w_0 - w*, s_{-1} =
0. So s_{T-1}²(F(w_T) - F*) ≤ (L/2)D², and s_{T-1} ≥ (T+1)/2. ∎
""",
    loose="""
Constant momentum: a few steps on a flat parabola have 0.6 of the bound; quadratics decay like its square in the
long run, as (1 - q^(1/2))^(2T). Growing momentum: the exact worst case is 2D²/(η(T+2)(T+3)) to 2 %, for T = 1
to 4, by programmes; 0.75 of the bound is seen after 10 rounds and 0.95 after 100, on a parabola that ends in a
slope as long as the run. A bound with (T+3)² is violated there (`test_planted_accelerated_rates`).
""",
)


def accelerated_strongly_convex(
    constants: Constants, *, step_size: float, mu: float, rounds: int, start_gap: float | None = None
) -> Bound:
    """Return the bound of F(w_T) - F* with constant momentum.

    Parameters
    ----------
    constants : Constants
        L and mu of F, D; without start_gap F(w_0) - F* is taken as L D^2/2.
    step_size, mu : float
        eta <= 1/L, and the strong convexity that the momentum is made for, at most that of F.
    rounds : int
        T.
    start_gap : float, optional
        F(w_0) - F*.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu exceeds that of F, or the step 1/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.accelerated import accelerated_strongly_convex
    >>> constants = Constants(L=4.0, mu=1.0, D=2.0)
    >>> accelerated_strongly_convex(constants, step_size=0.25, mu=1.0, rounds=1, start_gap=2.0).value
    2.0
    """
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("rounds", rounds)
    used = real("mu", mu, low=0.0)
    L, convexity, D = (float(v) for v in known_constants(STRONG, constants, "L", "mu", "D"))
    requires = require(
        STRONG,
        Hypothesis("F L-smooth", f"L = {L:g}"),
        Hypothesis("momentum for mu > 0", f"mu = {used:g}", used > 0.0),
        Hypothesis("F mu-strongly convex", f"mu = {used:g}, F has {convexity:g}", used <= convexity * (1.0 + 1e-9)),
        Hypothesis("step_size <= 1/L", f"step_size L = {eta * L:g}", eta * L <= 1.0 + 1e-9),
    )
    gap = 0.5 * L * D**2 if start_gap is None else real("start_gap", start_gap, low=0.0)
    factor = (1.0 - min(math.sqrt(eta * used), 1.0)) ** T
    return Bound({"start": factor * gap, "distance": factor * 0.5 * used * D**2}, LAST_SYNCHRONISED, STRONG, requires)


def accelerated_convex(constants: Constants, *, step_size: float, rounds: int) -> Bound:
    """Return the bound of F(w_T) - F* with growing momentum, 2 D^2/(eta (T + 1)^2).

    Parameters
    ----------
    constants : Constants
        L of F, D.
    step_size, rounds : float, int
        eta <= 1/L, T >= 1.

    Raises
    ------
    AssumptionError
        If a constant is missing, or the step exceeds 1/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.accelerated import accelerated_convex
    >>> accelerated_convex(Constants(L=2.0, D=3.0), step_size=0.5, rounds=2).value
    4.0
    """
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("rounds", rounds, low=1)
    L, D = (float(v) for v in known_constants(CONVEX, constants, "L", "D"))
    requires = require(
        CONVEX,
        Hypothesis("F convex and L-smooth", f"L = {L:g}"),
        Hypothesis("step_size <= 1/L", f"step_size L = {eta * L:g}", eta * L <= 1.0 + 1e-9),
    )
    return Bound({"start": 2.0 * D**2 / (eta * (T + 1.0) ** 2)}, LAST_SYNCHRONISED, CONVEX, requires)


# ---------------------------------------------------------------- read off a setting


def _numbers(theorem: str, s: Setting) -> dict[str, Any]:
    is_method(theorem, s.method, AcceleratedGradient)
    stationary(theorem, s.problem)
    step = one_number(theorem, "step size", s.method.step_size)
    return {"constants": constants_of_F(theorem, s), "step_size": step, "rounds": s.rounds}


def _momentum(s: Setting) -> float:
    """Return the mu that the momentum is made for."""
    return float(s.problem.strong_convexity if s.method.mu is None else s.method.mu)


def _read_strong(s: Setting) -> Reading:
    numbers = _numbers(STRONG, s)
    return Reading({**numbers, "mu": _momentum(s), "start_gap": max(excess(s.problem, s.start), 0.0)})


def _read_convex(s: Setting) -> Reading:
    numbers, mu = _numbers(CONVEX, s), _momentum(s)
    return Reading(numbers, require(CONVEX, Hypothesis("momentum for mu = 0", f"mu = {mu:g}", mu == 0.0)))


def _programme(s: Setting) -> Programme:
    """Return the growing momentum on F alone."""
    numbers = _numbers(CONVEX, s)
    return Programme(accelerated, numbers["step_size"], numbers["constants"])


def momentum(share: float, mu: float | None = None) -> MethodRule:
    """Return the method with the step share/L of F, and momentum for mu times the strong convexity of F, or for 0."""

    def make(theorem: Theorem, problem: Problem, start: Any, rounds: int) -> AcceleratedGradient:
        L, convexity = smoothness_of_F(theorem.name, problem).F, float(problem.constants().mu or 0.0)
        step = share / L if L > 0.0 else share
        return AcceleratedGradient(step_size=step, mu=0.0 if mu is None else min(mu * convexity, 1.0 / step))

    what = "growing momentum" if mu is None else f"momentum for {mu:g} times the convexity of F"
    return MethodRule(f"{share:g}/L of F, {what}", make)


def _searched(knobs: Mapping[str, Any]) -> MethodRule:
    return momentum(knobs["share"], knobs.get("mu"))


_SHARE = Real(0.02, 1.0, 2.0)
_ABOUT: dict[str, Any] = {"quantity": LAST_SYNCHRONISED, "statement": STATEMENT, "rounds": 8}

THEOREMS = (
    Theorem(
        name="accelerated-strongly-convex",
        title="Accelerated gradient, strongly convex",
        bound=accelerated_strongly_convex,
        read=_read_strong,
        says="Nesterov's method gains (mu/L)^(1/2) of the gap a round, whatever the clients are.",
        loose="0.6 of it is seen in short runs; on quadratics the gap falls like the square in the long run.",
        method=momentum(1.0, 1.0),
        checks=(
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            breast_cancer,
            diabetes,
            Check(chain, momentum(1.0, 1.0), 10),
            Check(steep_and_flat, momentum(0.01, 1.0), 1),
            Check(diabetes, momentum(1.0)),  # momentum for mu = 0
            Check(unequal_hessians, momentum(2.5, 0.5)),  # too long a step
            Check(shifted_logistic, momentum(1.0, 4.0)),  # F is less convex
        ),
        space=Space(
            _searched, {"share": _SHARE, "mu": Real(0.1, 1.0, 4.0)}, losses=("squared", "logistic"), rounds=(1, 40)
        ),
        **_ABOUT,
    ),
    Theorem(
        name="accelerated-convex",
        title="Accelerated gradient, convex",
        bound=accelerated_convex,
        read=_read_convex,
        programme=_programme,
        says="Without strong convexity the gap falls as 2 L D²/(T + 1)².",
        loose="The worst case is about 2 L D²/((T + 2) (T + 3)): 5 % below after 100 rounds.",
        method=momentum(1.0),
        checks=(
            unequal_hessians,
            shifted_logistic,
            breast_cancer,
            diabetes,
            Check(diabetes, momentum(1.0, 1.0)),  # momentum for mu > 0
            Check(flat_diagonal, momentum(1.0, 1e-6), 28, 0.0),  # the same, of which 2.5 times the bound is seen
            Check(unequal_hessians, momentum(2.5)),  # too long a step
        ),
        space=Space(_searched, {"share": _SHARE}, losses=("squared", "hinge"), rounds=(1, 200)),
        **_ABOUT,
    ),
)
