"""EF21: the potential of its authors, for objectives that grow quadratically and clients that need not be convex."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.methods import EF21, TopK
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.compression import contractive, feedback_rounding
from fedconvex.theorems.parts.remembered import Moment, client_gradients, mean_square, potentials
from fedconvex.theorems.parts.rounding import excess, of_square, rounding
from fedconvex.theorems.parts.smoothness import constants_of_F, smoothness_of_F

__all__ = ["POTENTIAL", "STATEMENT", "THEOREMS", "ef21"]

SOURCE = "Richtarik, Sokolov, Fatkhullin 2021, NeurIPS, Theorem 2 (derived anew, docs/theory/ef21.md)"
POTENTIAL = Quantity(
    "F(x) - F* + (gamma/theta) sum p_i ‖g_i - grad f_i(x)‖^2, x the model that round T starts at, g_i after it",
    "potential",
    **FROM_MINIMUM,
)

STATEMENT = Statement(
    page="ef21",
    title="EF21 on objectives that grow quadratically",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
x^0, g_i = grad f_i(x^0), sent whole in round 1; each round x <- x - gamma sum p_i g_i, and at the new x, in the next
round, g_i <- g_i + C(grad f_i(x) - g_i), with ‖C(v) - v‖^2 <= (1 - delta) ‖v‖^2 for all v.
""",
    assumptions="""
F is L_F-smooth with ‖grad F‖^2 >= 2 mu (F - F*); f_i is L_i-smooth. Nothing need be convex. C is deterministic, or the
statement one of expectations.
""",
    statement="""
theta = 1 - (1 - delta)^(1/2), beta = (1 - delta)/theta, Lt^2 = sum p_i L_i^2.
If gamma <= 1/(L_F + Lt (2 beta/theta)^(1/2)),

    F(x) - F* + (gamma/theta) sum p_i ‖g_i - grad f_i(x)‖^2

shrinks by max{1 - gamma mu, 1 - theta/2} a round; it is F(x^0) - F* at first.
""",
    source="""
Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and practically faster error feedback",
NeurIPS 2021, Theorem 2 for equal weights; constants from memory, proof and weights derived here.
""",
    differs="""
Any weights p_i in the place of 1/n. A round here ends with the step; the potential is known after the round that
follows, so that after T rounds it has shrunk T - 1 times.
""",
    meaning="""
The optimum from biased compressors, without memory of more than one vector per client, for objectives that need only
grow quadratically. For convex clients of one L and mu [error feedback](error_feedback.md) has exact rates, and
steps that are 1.4 times as long for small delta, twice for delta = 1.
""",
    proof="""
G = Σ p_i‖g_i - ∇f_i(x)‖².

1. Descent lemma with g = Σ p_ig_i and x⁺ = x - γg: F(x⁺) ≤ F(x) - (γ/2)‖∇F(x)‖² - (1/(2γ) - L_F/2)‖x⁺ - x‖² + (γ/2)‖g -
   ∇F(x)‖², and the last square is at most G.
2. ‖g_i⁺ - ∇f_i(x⁺)‖² ≤ (1-δ)‖g_i - ∇f_i(x⁺)‖² ≤ (1-δ)((1+s)‖g_i - ∇f_i(x)‖² + (1 + 1/s)L_i²‖x⁺ - x‖²); with 1 + s =
   (1-δ)^{-1/2} the factors are 1-θ and β: G⁺ ≤ (1-θ)G + βLt²‖x⁺ - x‖².
3. 1 plus γ/θ times 2: the factor of G is γ/2 + γ/θ - γ = (γ/θ)(1-θ/2), that of ‖x⁺ - x‖² is L_F/2 - 1/(2γ) +
   γβLt²/θ ≤ 0 for such γ, as γ²·2βLt²/θ + γL_F ≤ 1, and ‖∇F‖² ≥ 2μ(F - F*). ∎
""",
    loose="""
0.9 of it after ten rounds on breast cancer data, 0.999 in a few rounds of short steps. Over long runs what is measured
falls much faster: steps 15 times as long converge on ten unequal logistic clients (the test of
`tests/test_compressed_methods.py` counts rounds).
""",
)


def ef21(constants: Constants, *, step_size: float, delta: float, rounds: int, start_gap: float | None = None) -> Bound:
    """Return the bound of the potential.

    Parameters
    ----------
    constants : Constants
        L and mu of F, L_k of the clients, p or K; without start_gap D.
    step_size : float
        gamma.
    delta : float
        In (0, 1], of the compressor.
    rounds : int
        T >= 1.
    start_gap : float, optional
        F(x^0) - F*; default its bound L D^2/2.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, or the step is too long.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.ef21 import ef21
    >>> constants = Constants(L=1.0, mu=0.5, L_k=np.ones(1), K=1)
    >>> ef21(constants, step_size=1.0, delta=1.0, rounds=3, start_gap=4.0).value  # gradient descent
    1.0
    """
    gamma, T = real("step_size", step_size, low=0.0, strict=True), whole("rounds", rounds, low=1)
    delta = real("delta", delta, low=0.0, high=1.0, strict=True)
    L, mu, L_k = known_constants(SOURCE, constants, "L", "mu", "L_k")
    p = client_weights(SOURCE, constants)
    theta = 1.0 - math.sqrt(1.0 - delta)
    root = math.sqrt(float(p @ np.asarray(L_k, dtype=float) ** 2) * 2.0 * (1.0 - delta)) / theta
    requires = require(
        SOURCE,
        Hypothesis("F smooth, f_i L_i-smooth", f"L_F = {L:g}, largest L_i = {np.max(L_k):g}"),
        Hypothesis("‖grad F‖^2 >= 2 mu (F - F*), mu > 0", f"mu = {mu:g}", mu > 0.0),
        Hypothesis(
            "gamma <= 1/(L_F + Lt (2 beta/theta)^(1/2))",
            f"gamma = {gamma:g}, {1.0 / (L + root):g}",
            gamma * (L + root) <= 1.0 + 1e-9,
        ),
    )
    gap = 0.5 * L * float(known_constants(SOURCE, constants, "D")[0]) ** 2 if start_gap is None else start_gap
    factor = max(1.0 - gamma * float(mu), 1.0 - 0.5 * theta)
    start = factor ** (T - 1) * real("start_gap", gap, low=0.0)
    return Bound({"start": start}, POTENTIAL, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    p = s.problem
    is_method(SOURCE, s.method, EF21)
    stationary(SOURCE, p)
    delta, checked = contractive(SOURCE, s)
    numbers = {"step_size": one_number(SOURCE, "step size", s.method.step_size), "delta": delta, "rounds": s.rounds}
    return Reading(
        {"constants": constants_of_F(SOURCE, s), "start_gap": max(excess(p, s.start), 0.0), **numbers}, checked
    )


def _potential(s: Setting, rounds: Any, seed: int, trajectories: int) -> np.ndarray:
    best, weight = s.problem.solve().value, s.method.step_size / (1.0 - math.sqrt(1.0 - contractive(SOURCE, s)[0]))

    def value(before: Moment, now: Moment) -> np.ndarray:
        off = mean_square(s, now.rows - client_gradients(s, before.state.w))
        return np.asarray(s.problem.value(before.state.w) - best + weight * off)

    return potentials(value, s, rounds, seed, trajectories)


def _tolerance(s: Setting, value: float) -> float:
    weight = s.method.step_size / (1.0 - math.sqrt(1.0 - contractive(SOURCE, s)[0]))
    return rounding(POTENTIAL, s, value) + weight * of_square(value / weight, feedback_rounding(s))


def top(k: int, share: float = 1.0) -> MethodRule:
    """Return EF21 with Top-k and so many times the step of the theorem."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> EF21:
        c, size = problem.constants(), int(np.prod(problem.model_shape))
        mean = math.sqrt(float(problem.weights @ np.asarray(c.L_k) ** 2))
        sent = min(k, size)
        step = default_steps.feedback_step(smoothness_of_F(theorem.name, problem), mean, sent / size).value
        return EF21(step_size=share * float(step), compressor=TopK(sent))

    return MethodRule(f"{share:g} times that of the theorem" if share != 1.0 else "that of the theorem", make)


THEOREMS = (
    Theorem(
        name="ef21",
        title="EF21, growing quadratically",
        quantity=POTENTIAL,
        bound=ef21,
        read=_read,
        sample=_potential,
        exact=deterministic(_potential),
        tolerance=_tolerance,
        statement=STATEMENT,
        says="With biased compression F - F* and errors of the g_i shrink by max{1 - gamma mu, 1 - theta/2} a round.",
        loose="0.9 of it on real rows; its steps are many times too small on most problems.",
        method=top(1),
        rounds=10,
        checks=(
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            breast_cancer,
            diabetes,
            Check(one_parabola[0], top(1, 0.5), 1),
            Check(one_parabola[0], top(1, 0.5), 2),
            Check(three_clients, top(1), 3),
            Check(diabetes, top(3), 2),
            Check(unequal_hessians, top(2, 100.0)),  # too long a step
        ),
        space=Space(
            lambda k: top(int(k["k"]), k["share"]),
            {"k": Whole(1, 3), "share": Real(0.05, 1.0, 2.0)},
            losses=("squared", "logistic"),
            rounds=(2, 30),
            weighted=True,
            tries=12,
        ),
    ),
)
