"""GIANT, DANE and FedNL with line search: no clients are too unlike."""

from __future__ import annotations

import math

import numpy as np

from fedconvex.methods import DANE, GIANT, FedNL
from fedconvex.methods.parts.armijo import ARMIJO, FRACTIONS
from fedconvex.methods.parts.newton_steps import ROUNDING
from fedconvex.theorems.approximate_newton import DAMPED, crossed, damping_of, dane, default_gap, giant
from fedconvex.theorems.fednl import learned
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.learned_hessians import largest_error
from fedconvex.theorems.parts.rounding import excess, of_square, rounding
from fedconvex.theorems.parts.smoothness import constants_of_F, start_length

__all__ = ["STATEMENT", "THEOREMS", "newton_line_search"]

SOURCE = "fedconvex, Armijo's rule along means of Newton directions (docs/theory/newton_line_search.md)"

STATEMENT = Statement(
    page="newton_line_search",
    title="Line search along means of Newton directions",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
GIANT, DANE and FedNL's option 1 with line search: d = -eta T grad F(w), and w <- w + s d for the largest s of 1, 1/2,
..., 1/1024 with F(w + s d) <= F(w) + c s <grad F(w), d>, c = 1e-4. A stage is three rounds, of FedNL two.
""",
    assumptions="""
F is mu-strongly convex and L_F-smooth. GIANT and DANE: the Hessians of the f_k that are inverted, with m, lie between
low and high. FedNL: low is the mu of option 1, high bounds the eigenvalues of [H]_mu. eta = 1 except for DANE.
""",
    statement="""
If s_min = min{1, (1 - c) low/(eta L_F)} is at least 1/1024,

    F(w+) - F* <= (1 - 2 c s_min eta mu/high) (F(w) - F*).

For FedNL high = L_F + sum p_k max{E_k, S_k/(alpha (1 - q))} will do: E_k = ‖hess f_k(w_0)‖_F, or 0 from an exact start,
S_k bounds ‖hess f_k(v) - hess f_k(w)‖_F, and q = (1 - delta)^(1/2) of the compressor.
""",
    source="""
Derived here; Armijo's rule is standard. Methods: as in [GIANT and DANE](approximate_newton.md) and [FedNL](fednl.md).
""",
    differs="""
Global and linear for any smooth, strongly convex clients, however unlike. The papers have rates near the optimum, or on
least squares.
""",
    meaning="""
The methods cannot diverge, and that is all: c = 1e-4 makes the rate nearly 1. In practice they need ten to thirty
stages.
""",
    proof="""
DANE's solution has d_k = -η(A_k + mI)^{-1}∇F(w), A_k the mean Hessian of f_k from w to w + d_k: the mean T of the
inverses lies between I/high and I/low, as for GIANT.

1. ‖d‖² = η²∇F'T²∇F ≤ (η/low)·η∇F'T∇F = -(η/low)⟨∇F, d⟩. By smoothness F(w + sd) ≤ F(w) + s⟨∇F, d⟩(1 - sηL_F/(2 low)):
   the rule holds for s ≤ 2(1-c)low/(ηL_F), and one of the s tried lies above half of that.
2. -⟨∇F, d⟩ ≥ (η/high)‖∇F‖² ≥ (2ημ/high)(F(w) - F*).
3. FedNL: ‖hess f_k(w) - H_k‖_F becomes at most 1 - α(1-q) times itself in an update, and grows by at most S_k with the
   next w: it is never above max{E_k, S_k/(α(1-q))}. H is off hess F(w) ⪯ L_F by at most the mean of these. ∎
""",
    loose="""
c makes it loose: stages gain far more than c promises. One parabola and DANE with eta = 2 (1 - c) gain no more than
4 c of the gap in a stage, where the bound says 2 c.
""",
)


def newton_line_search(
    constants: Constants, *, low: float, high: float, stages: int, eta: float = 1.0, start_gap: float | None = None
) -> Bound:
    """Return the bound of F(w_T) - F* after T stages with line search.

    Parameters
    ----------
    constants : Constants
        L and mu of F; without start_gap D.
    low, high : float
        Between which the matrices lie whose inverses are averaged.
    stages : int
        T.
    eta : float
        Of DANE.
    start_gap : float, optional
        F(w_0) - F*; default its bound L D^2/2.

    Raises
    ------
    AssumptionError
        If a constant is missing, low or mu is zero, or fractions below 1/1024 might be needed.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.newton_line_search import newton_line_search
    >>> bound = newton_line_search(Constants(L=1.0, mu=1.0), low=2.0, high=4.0, stages=1, start_gap=1.0)
    >>> round(bound.value, 6)  # 1 - 2e-4/4
    0.99995
    """
    T, low = whole("stages", stages), real("low", low)
    high, eta = real("high", high, low=low), real("eta", eta, low=0.0, strict=True)
    L, mu = (float(v) for v in known_constants(SOURCE, constants, "L", "mu"))
    least, needed = float(FRACTIONS[FRACTIONS > 0.0].min()), (1.0 - ARMIJO) * low / (eta * L) if L > 0.0 else math.inf
    requires = require(
        SOURCE,
        Hypothesis("F mu-strongly convex, mu > 0", f"mu = {mu:g}", mu > 0.0),
        Hypothesis("matrices between low > 0 and high", f"{low:g}, {high:g}", low > 0.0),
        Hypothesis("(1 - c) low/(eta L_F) >= 1/1024", f"{needed:g}", needed >= least),
    )
    gap = real("start_gap", default_gap(SOURCE, constants) if start_gap is None else start_gap, low=0.0)
    factor = max(1.0 - 2.0 * ARMIJO * min(1.0, needed) * eta * mu / high, 0.0)
    return Bound({"start": factor**T * gap}, LAST_SYNCHRONISED, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    m, p = s.method, s.problem
    is_method(SOURCE, m, GIANT, DANE, FedNL)
    stationary(SOURCE, p)
    checked = require(SOURCE, Hypothesis("a line search", f"line_search {m.line_search}", bool(m.line_search)))
    c = constants_of_F(SOURCE, s)
    if isinstance(m, FedNL):
        checked += require(SOURCE, Hypothesis("option 1", f"option {m.option}", m.option == 1))
        low, eta, each = m._floor(p), 1.0, 2
        high = max(float(c.L or 0.0) + largest_error(SOURCE, s), low)
    else:
        (damping, eta, leader), each = damping_of(SOURCE, m, p), 3
        chosen = slice(None) if leader is None else [leader]
        low = float(np.min(np.asarray(c.mu_k)[chosen])) + damping
        high = max(float(np.max(np.asarray(c.L_k)[chosen])) + damping, low)
    numbers = {"low": low, "high": high, "eta": eta, "stages": s.rounds // each}
    return Reading({"constants": c, **numbers, "start_gap": max(excess(p, s.start), 0.0)}, checked)


def _tolerance(s: Setting, value: float) -> float:
    """Of values that the line search compares, and of clients' solutions: up to tol (1 + their length) a stage."""
    size = abs(float(s.problem.value(s.start))) + abs(s.problem.solve().value)
    steep, tol = float(s.problem.constants().L or 0.0), float(getattr(s.method, "tol", 0.0))
    solved = of_square(2.0 * value, math.sqrt(steep) * s.rounds * tol * (1.0 + start_length(s)))
    return rounding(LAST_SYNCHRONISED, s, value) + s.rounds * ROUNDING * size + solved


THEOREMS = (
    Theorem(
        name="newton-line-search",
        title="GIANT, DANE and FedNL with line search",
        quantity=LAST_SYNCHRONISED,
        bound=newton_line_search,
        read=_read,
        tolerance=_tolerance,
        statement=STATEMENT,
        says="With line search no clients are too unlike: F - F* falls in every stage.",
        loose="Armijo's c = 1e-4 is a worst case that nothing real comes near.",
        method=giant(line_search=True),
        rounds=3,
        checks=(
            unequal_hessians,
            crossed,
            shifted_logistic,
            breast_cancer,
            Check(diabetes, dane(0.1, True), 3),
            Check(unequal_hessians, learned(line_search=True), 8),
            Check(shifted_logistic, learned("SymmetricTopK", 3, line_search=True), 4),
            Check(shifted_logistic, learned(line_search=True, option=2), 4),
            Check(one_parabola[0], dane(1e-9, True, eta=2.0 * (1.0 - ARMIJO) * (1.0 - 1e-7)), 6),
            Check(shifted_logistic, giant(), 3),  # whole steps
            Check(three_clients, giant(line_search=True), 3),  # singular Hessians
        ),
        space=Space(
            lambda k: dane(k["damping"], True, eta=k["eta"]),
            {**DAMPED, "eta": Real(0.3, 4.0)},
            losses=("squared", "logistic"),
            rounds=(3, 9),
            weighted=True,
        ),
    ),
)
