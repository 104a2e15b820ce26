"""Gradient descent on convex smooth functions: the exact rate of its last iterate."""

from __future__ import annotations

from fedconvex.theorems.kit import *

__all__ = ["STATEMENT", "THEOREMS", "gradient_descent_rate"]

SOURCE = "Drori and Teboulle, Math. Program. 145 (2014), Theorem 3.1"

STATEMENT = Statement(
    page="gradient_descent",
    title="Gradient descent",
    scope=EVERYWHERE,
    setting="w_{t+1} = w_t - eta grad F(w_t), D = ‖w_0 - w*‖.",
    assumptions="F is convex and L-smooth, eta L <= 1.",
    statement="    F(w_T) - F* <= L D^2 / (4 T eta L + 2).",
    source=SOURCE + ".",
    differs="Nothing; L is the largest of the clients', which is at least that of F.",
    meaning="One over T, whatever the data; no step up to 1/L does better in the worst case.",
    proof="Theorem 3.1 there.",
    loose="Equality for a Huber-like function that is linear beyond the reach of T steps.",
)


def gradient_descent_rate(constants: Constants, *, step_size: float, rounds: int) -> Bound:
    """Return L D^2/(4 T eta L + 2).

    Parameters
    ----------
    constants : Constants
        L and D.
    step_size, rounds : float, int
        eta, T.

    Raises
    ------
    AssumptionError
        If a constant is missing, or the step exceeds 1/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.gradient_descent import gradient_descent_rate
    >>> gradient_descent_rate(Constants(L=2.0, D=1.0), step_size=0.5, rounds=1).value  # 2/(4 + 2)
    0.3333333333333333
    """
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("rounds", rounds, low=1)
    L, D = known_constants(SOURCE, constants, "L", "D")
    requires = require(
        SOURCE,
        Hypothesis("F convex and L-smooth", f"L = {L:g}"),
        Hypothesis("step_size <= 1/L", f"step_size L = {eta * L:g}", eta * L <= 1.0 + 1e-12),
    )
    return Bound({"start": L * D**2 / (4.0 * T * eta * L + 2.0)}, LAST_SYNCHRONISED, SOURCE, requires)


def _read(s: Setting) -> Reading:
    found, local = traits_of(s.method, s.problem), traits_of(s.method, s.problem).local
    one = local is not None and local.plain and local.full and local.equal_steps == 1
    checked = require(
        "gradient-descent",
        Hypothesis("one plain step of all rows", f"{s.method!r}", bool(one)),
        Hypothesis("full participation, averaged", f"{found.sampling}", found.everyone and found.averages),
        Hypothesis("one constant step size", f"{s.method.step_size!r}", isinstance(s.method.step_size, float)),
    )
    return Reading({"constants": s.constants(), "step_size": s.method.step_size, "rounds": s.rounds}, checked)


THEOREMS = (
    Theorem(
        name="gradient-descent",
        title="Gradient descent, convex",
        quantity=LAST_SYNCHRONISED,
        bound=gradient_descent_rate,
        read=_read,
        statement=STATEMENT,
        says="The last iterate of gradient descent is within L D^2/(4T + 2) of the minimum at the step 1/L.",
        loose="Sharp for one function; on strongly convex problems the rate is linear.",
        method=fixed_step(1.0),
        rounds=20,
        checks=(unequal_hessians, diabetes, Check(diabetes, fixed_step(2.5))),  # the last: too large a step
        space=Space(lambda knobs: fixed_step(knobs["share"]), {"share": Real(0.02, 1.0)}, losses=("squared", "hinge")),
    ),
)
