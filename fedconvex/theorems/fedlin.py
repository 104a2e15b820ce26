"""FedLin: local steps along the gradient of F contract F - F*, and gain nothing at a fixed step."""

from __future__ import annotations

import numpy as np

from fedconvex.methods import FedLin
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.rounding import excess
from fedconvex.theorems.parts.smoothness import smoothness_of_F

__all__ = ["STATEMENT", "THEOREMS", "fedlin", "fedlin_factor"]

SOURCE = "fedconvex, FedLin with unequal local steps (docs/theory/fedlin.md)"

STATEMENT = Statement(
    page="fedlin",
    title="FedLin",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
A stage, which is two rounds: g = sum p_i grad f_i(x); client i takes tau_i steps x_i <- x_i - (eta/tau_i)
(grad f_i(x_i) - grad f_i(x) + g) from x; x <- sum p_i x_i.
""",
    assumptions="Every f_i is convex and L-smooth; ‖grad F‖^2 >= 2 mu (F - F*), mu > 0.",
    statement="""
With tau the largest tau_i, a = eta L, delta = a (tau - 1)/(2 tau) and c = 1 - delta - (a/2) (1 + delta)^2, if c > 0 and
a <= 2,

    F(x+) - F* <= (1 - 2 a c mu/L) (F(x) - F*).
""",
    source="""
Derived here. Method: Mitra, Jaafar, Pappas, Hassani, "Linear convergence in federated learning: tackling client
heterogeneity and sparse gradients", NeurIPS 2021, which has 1 - mu/(6 L) at a = 1/6 (from memory).
""",
    differs="""
Constants, and any numbers of local steps. Only F has to grow quadratically; the clients need be convex and smooth.
""",
    meaning="""
The optimum whatever the heterogeneity, and clients may do as much or as little as they can. At a fixed step a the
factor does not fall with tau: gradient descent, tau = 1, has the best one, 1 - mu/L at a = 1. `even_step` is
the best a: 0.38 for many steps. What local steps gain is longer steps, which the theorem does not cover.
""",
    proof="""
Client i follows gradient descent with steps η/τ_i on f_i + ⟨g - ∇f_i(x), ·⟩, convex and L-smooth, η/τ_i ≤ 2/L; its
gradient at x is g.

1. Such steps are nonexpansive, so gradients along them do not grow in the sense ‖x_{i,l+1} - x_{i,l}‖ ≤ ‖x_{i,l} -
   x_{i,l-1}‖ ≤ ... ≤ (η/τ_i)‖g‖, and ‖x_{i,l} - x‖ ≤ (ηl/τ_i)‖g‖.
2. x_i - x = -η(g + e_i), e_i = (1/τ_i) Σ_{l<τ_i} (∇f_i(x_{i,l}) - ∇f_i(x)), ‖e_i‖ ≤ (L/τ_i) Σ_l (ηl/τ_i)‖g‖ =
   a(τ_i-1)/(2τ_i)‖g‖ ≤ δ‖g‖. So x⁺ - x = -η(g + e), ‖e‖ ≤ δ‖g‖.
3. F(x⁺) ≤ F(x) - η⟨g, g + e⟩ + (L/2)η²‖g + e‖² ≤ F(x) - ηc‖g‖² ≤ F(x) - 2ηcμ(F(x) - F*). ∎
""",
    loose="""
With tau = 1 a parabola has (1 - a)^2 = 1 - 2a(1 - a/2): attained. With more steps one parabola forgets (1 - a/tau)^tau
of its distance, between 1 - a and e^(-a) of it: nearly attained for small a. Where the clients are mu-strongly convex
themselves the squared distance shrinks like that of one parabola, whatever they are: by 0.9264 for two clients with
mu/L = 0.1, tau = 3, a = 0.38, by a programme (`test_local_steps_of_fedlin_slow_nothing_down`); here it is 0.952.
""",
)


def fedlin(
    constants: Constants, *, step_size: float, local_steps: int, stages: int, start_gap: float | None = None
) -> Bound:
    """Return the bound of F(x) - F* after so many stages of two rounds.

    Parameters
    ----------
    constants : Constants
        L of the clients, mu of F; without start_gap D.
    step_size : float
        eta, of a whole stage.
    local_steps : int
        tau, the largest tau_i.
    stages : int
    start_gap : float, optional
        F(x^0) - F*; default its bound L D^2/2.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, or the step is so long that c <= 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedlin import fedlin
    >>> fedlin(Constants(L=1.0, mu=0.5), step_size=1.0, local_steps=1, stages=2, start_gap=4.0).value
    1.0
    """
    n, factor = whole("stages", stages), fedlin_factor(constants, step_size=step_size, local_steps=local_steps)
    L, mu = (float(v) for v in known_constants(SOURCE, constants, "L", "mu"))
    if start_gap is None:
        start_gap = 0.5 * L * float(known_constants(SOURCE, constants, "D")[0]) ** 2
    requires = (
        Hypothesis("every f_i convex and L-smooth", f"L = {L:g}"),
        Hypothesis("‖grad F‖^2 >= 2 mu (F - F*)", f"mu = {mu:g}"),
    )
    return Bound({"start": factor**n * real("start_gap", start_gap, low=0.0)}, LAST_SYNCHRONISED, SOURCE, requires)


def fedlin_factor(constants: Constants, *, step_size: float, local_steps: int) -> float:
    """Return 1 - 2 a c mu/L, the factor of a stage.

    Parameters
    ----------
    constants : Constants
        L and mu of F.
    step_size : float
        eta of the stage, shared by its local steps.
    local_steps : int
        tau.

    Raises
    ------
    AssumptionError
        If F is not strongly convex, or the step is too long for c > 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedlin import fedlin_factor
    >>> [round(fedlin_factor(Constants(L=1.0, mu=0.1), step_size=0.38, local_steps=t), 4) for t in (1, 2, 50)]
    [0.9384, 0.9485, 0.9585]
    """
    eta, tau = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    L, mu = (float(v) for v in known_constants(SOURCE, constants, "L", "mu"))
    a = eta * L
    delta = 0.5 * a * (tau - 1) / tau
    c = 1.0 - delta - 0.5 * a * (1.0 + delta) ** 2
    require(
        SOURCE,
        Hypothesis("F strongly convex, 0 < mu <= L", f"mu = {mu:g}, L = {L:g}", 0.0 < mu <= L * (1.0 + 1e-12)),
        Hypothesis("c > 0 (shorter steps)", f"c = {c:g} at step_size L = {a:g}", c > 0.0),
    )
    return max(1.0 - 2.0 * a * c * mu / L, 0.0)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    m, p = s.method, s.problem
    is_method(SOURCE, m, FedLin)
    stationary(SOURCE, p)
    smoothness_of_F(SOURCE, p)
    numbers = {
        "step_size": one_number(SOURCE, "step size", m.step_size),
        "local_steps": int(np.max(m.local_steps)),
        "stages": s.rounds // 2,  # the first round of a stage leaves x where it is
        "start_gap": max(excess(p, s.start), 0.0),
    }
    return Reading({"constants": s.constants(), **numbers})


def uneven_steps(share: float, most: int = 4) -> MethodRule:
    """Return FedLin with the step share/L and most, ..., 2, 1, most, ... local steps."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedLin:
        tau = tuple(most - k % most for k in range(problem.federation.K))
        return FedLin(step_size=share / float(problem.constants().L or 1.0), local_steps=tau)

    return MethodRule(f"{share:g}/L", make)


@example("two equal parabolas", "2 clients, (w - 1)²/2 each")
def equal_parabolas() -> Problem:
    """With one and two local steps the mean of the models is behind that of one step each."""
    return Problem(Federation.from_clients([([[1.0]], [1.0])] * 2), Squared())


THEOREMS = (
    Theorem(
        name="fedlin",
        title="FedLin, unequal local steps",
        quantity=LAST_SYNCHRONISED,
        bound=fedlin,
        read=_read,
        statement=STATEMENT,
        says="F - F* falls by 1 - 2 a c mu/L a stage, whatever the heterogeneity and the numbers of local steps.",
        loose="Attained by one parabola and one local step; nearly, with more of them, for short steps.",
        method=uneven_steps(0.38),
        rounds=20,
        checks=(
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            breast_cancer,
            diabetes,
            Check(one_parabola[0], uneven_steps(0.3, 1), 2),
            Check(one_parabola[0], uneven_steps(0.5, 8), 2),
            Check(two_parabolas[0], uneven_steps(0.05, 4), 40),
            Check(equal_parabolas, uneven_steps(0.5, 2), 2),  # the least tau_i in the place of the largest would fail
            Check(diabetes, rounds=5),  # two stages and a half
            Check(unequal_hessians, uneven_steps(3.0)),  # too long a step
        ),
        space=Space(
            lambda k: uneven_steps(k["share"], k["local_steps"]),
            {"share": Real(0.02, 0.9, 2.0), "local_steps": Whole(1, 8)},
            losses=("squared", "logistic"),
            rounds=(2, 20),
            weighted=True,
        ),
    ),
)
