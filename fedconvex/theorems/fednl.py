"""FedNL near a minimiser: a recursion of distances and errors of Hessians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.methods import FedNL, RankR, SymmetricTopK
from fedconvex.theorems.hedging import DISTANCE
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.learned_hessians import lipschitz, shrinking, start_error
from fedconvex.theorems.parts.smoothness import start_length

__all__ = ["STATEMENT", "THEOREMS", "fednl_local"]

SOURCE = "fedconvex, FedNL near a minimiser (docs/theory/fednl.md)"

STATEMENT = Statement(
    page="fednl",
    title="FedNL near a minimiser",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
FedNL, option 1 without line search, alpha = 1: w <- w - [H]_mu^{-1} grad F(w), H = sum p_k H_k, then H_k <- H_k +
C(hess f_k(w) - H_k) with the w before the step; ‖C(D) - D‖_F^2 <= (1 - delta) ‖D‖_F^2, C deterministic.
""",
    assumptions="""
F is mu-strongly convex with the mu > 0 to which eigenvalues are raised; Hessians of f_k are Lipschitz in Frobenius norm
with constants of mean L_H. For logistic loss L_H is the mean of ‖x‖^3/(6 3^(1/2)).
""",
    statement="""
With q = (1 - delta)^(1/2), r = ‖w - w*‖ and E = sum p_k ‖H_k - hess f_k(w*)‖_F a round has

    r+ <= (r/mu) (E + L_H r/2),    E+ <= q E + (1 + q) L_H r,

and the bound of ‖w_T - w*‖ is T rounds of it. If E <= mu/4 and r <= min{mu/(2 L_H), (1 - q) mu/(4 (1 + q) L_H)} at the
start, r is halved in every round, and r+/r tends to 0.
""",
    source="""
Derived here. Safaryan, Islamov, Qian, Richtarik, ICML 2022, Theorem 3.6 has ‖w_t - w*‖^2 <= 2^(-t) ‖w_0 - w*‖^2 and a
potential of r and E, under conditions of the same kind (from memory).
""",
    differs="""
The recursion itself, from any start: outside of the ball it holds, but says nothing. Weights p_k in the place of 1/n.
Free of the condition number, as the paper says.
""",
    meaning="""
Superlinear convergence whatever the clients and the condition number, from compressed Hessians: near the minimiser.
How near is mu over a constant of third derivatives; where option 1 starts further off it may leave for good, and a line
search is what to take.
""",
    proof="""
1. w⁺ - w* = [H]_μ^{-1}([H]_μ(w - w*) - ∇F(w)). ∇F(w) = hess F(w*)(w - w*) + e, ‖e‖ ≤ L_Hr²/2, and [·]_μ is the
   projection in Frobenius norm onto matrices above μI, of which hess F(w*) is one: ‖[H]_μ - hess F(w*)‖_F ≤ ‖H - hess
   F(w*)‖_F ≤ E.
2. ‖H_k⁺ - hess f_k(w*)‖ ≤ ‖H_k + C(D_k) - hess f_k(w)‖ + L_kr ≤ q‖D_k‖ + L_kr ≤ q‖H_k - hess f_k(w*)‖ + (1+q)L_kr.
3. In the ball: E ≤ μ/4 stays, as qμ/4 + (1+q)L_Hr ≤ μ/4, and r⁺/r ≤ 1/4 + 1/4. E tends to 0 with r, hence r⁺/r too. ∎
""",
    loose="""
Measured over bound 0.34 in one round of one feature, by a search; about 0.05 from E = mu/4, 0.002 from an exact start:
errors of Hessians of clients cancel in their mean, and Frobenius norms count directions in which the model does not
move.
""",
)


def fednl_local(
    constants: Constants,
    *,
    mu: float,
    delta: float,
    lipschitz: float,
    start_error: float,
    rounds: int,
    start_distance: float | None = None,
) -> Bound:
    """Return the bound of ‖w_T - w*‖: T rounds of the recursion.

    Parameters
    ----------
    constants : Constants
        mu of F; without start_distance D.
    mu : float
        To which eigenvalues are raised.
    delta : float
        In (0, 1], of the compressor.
    lipschitz, start_error : float
        L_H and E at the start.
    rounds : int
        T.
    start_distance : float, optional
        ‖w_0 - w*‖; default D.

    Raises
    ------
    AssumptionError
        If a constant is missing, or mu is not positive or above that of F.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fednl import fednl_local
    >>> at = {"mu": 1.0, "delta": 0.75, "lipschitz": 1.0, "start_error": 0.25, "start_distance": 0.0625}
    >>> [fednl_local(Constants(mu=1.0), rounds=T, **at).value for T in (0, 1, 2)]  # E = 0.21875 after a round
    [0.0625, 0.017578125, 0.003999...]
    """
    T, q = whole("rounds", rounds), math.sqrt(1.0 - real("delta", delta, low=0.0, high=1.0, strict=True))
    E, L = real("start_error", start_error, low=0.0), real("lipschitz", lipschitz, low=0.0)
    requires = raised(SOURCE, constants, mu)
    r = distance_of(SOURCE, constants, start_distance)
    with np.errstate(over="ignore"):
        for _ in range(T):
            r, E = r / mu * (E + 0.5 * L * r), q * E + (1.0 + q) * L * r
    return Bound({"start": r}, DISTANCE, SOURCE, requires)


def raised(source: str, constants: Constants, mu: float) -> tuple[Hypothesis, ...]:
    """Return the hypothesis that eigenvalues are raised to a mu that F has."""
    (convexity,) = (float(v) for v in known_constants(source, constants, "mu"))
    text = "F strongly convex with the mu > 0 to which eigenvalues are raised"
    return require(source, Hypothesis(text, f"{mu:g}, F has {convexity:g}", 0.0 < mu <= convexity * (1.0 + 1e-9)))


def distance_of(source: str, constants: Constants, given: float | None) -> float:
    """Return ‖w_0 - w*‖ as given, or else D."""
    found = float(known_constants(source, constants, "D")[0]) if given is None else given
    return real("start_distance", found, low=0.0)


# ---------------------------------------------------------------- read off a setting


def numbers_of(theorem: str, s: Setting) -> dict[str, Any]:
    """Return what both bounds are told, or raise unless it is option 1 without line search and alpha = 1."""
    m, p = s.method, s.problem
    is_method(theorem, m, FedNL)
    stationary(theorem, p)
    require(
        theorem,
        Hypothesis("option 1", f"option {m.option}", m.option == 1),
        Hypothesis("no line search", f"line_search {m.line_search}", not m.line_search),
        Hypothesis("alpha = 1", f"alpha = {m.alpha:g}", m.alpha == 1.0),
    )
    best = np.asarray(p.solve().w)
    return {
        "constants": s.constants(),
        "mu": m._floor(p),
        "delta": shrinking(s),
        "start_error": start_error(s, best),
        "rounds": s.rounds,
        "start_distance": float(np.linalg.norm(s.start - best)),
    }


def _read(s: Setting) -> Reading:
    is_method(SOURCE, s.method, FedNL)
    L = lipschitz(SOURCE, s.problem)
    return Reading({**numbers_of(SOURCE, s), "lipschitz": L})


def distances(s: Setting, rounds: Any, seed: int, trajectories: int) -> np.ndarray:
    """Return ‖w_T - w*‖ after so many rounds each, of independent runs."""
    best = s.problem.solve().w

    def far(state: Any) -> np.ndarray:
        return np.asarray(np.linalg.norm((state.w - best).reshape(len(state.w), -1), axis=1))

    return values_along(far, s, rounds, seed, trajectories)


def distance_rounding(s: Setting, value: float) -> float:
    """Add errors: those of w* and of a step, by the condition of what it inverts; they grow by (E + L_H r)/mu."""
    p, mu, length = s.problem, s.method._floor(s.problem), start_length(s)
    L = lipschitz(SOURCE, p)
    E, q = start_error(s, np.asarray(p.solve().w)), math.sqrt(1.0 - shrinking(s))
    star = off = minimiser_rounding(p)
    condition = 1.0 + (E + float(p.constants().L or 0.0)) / mu
    way = [float(np.linalg.norm(s.start - p.solve().w)), *distances(s, range(1, s.rounds + 1), 0, 1)[:, 0].tolist()]
    for t, r in enumerate(way[:-1]):
        left = max(1.0 - shrinking(s) * t, 0.0) ** 0.5 * E if L == 0.0 else E
        off = min((left + L * r) / mu, 1e100) * off + UNIT * p.size * condition * (length + r)
        E = q * E + (1.0 + q) * L * r if L > 0.0 else E
    return star + off


# ---------------------------------------------------------------- where it is checked


def learned(compressor: str = "RankR", size: int = 1, share: float = 1.0, **settings: Any) -> MethodRule:
    """Return FedNL without line search, eigenvalues raised to so many times the convexity of F."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedNL:
        d = int(np.prod(problem.model_shape))
        kind: Any = {"RankR": RankR, "SymmetricTopK": SymmetricTopK}[compressor]
        C = kind(min(size, kind(1).most(d)))
        how: dict[str, Any] = {"line_search": False, **settings}
        return FedNL(compressor=C, mu=share * float(problem.constants().mu or 0.0), **how)

    words = ", ".join([f"mu = {share:g} times that of F", *(f"{k} {v}" for k, v in settings.items())])
    return MethodRule(words, make)


def near(share: float) -> Any:
    """Return the start that is so many times the distance mu/(2 L_H) from the minimiser, along the vector of ones."""

    def start(problem: Any) -> np.ndarray:
        L, mu = lipschitz(SOURCE, problem), float(problem.constants().mu)
        away = np.ones(problem.model_shape) / math.sqrt(problem.size)
        return np.asarray(problem.solve().w + share * (mu / (2.0 * L) if L > 0.0 else 1.0) * away)

    return start


ABOUT: dict[str, Any] = {
    "quantity": DISTANCE,
    "sample": distances,
    "exact": deterministic(distances),
    "tolerance": distance_rounding,
}
KNOBS: dict[str, Whole | Real] = {"size": Whole(1, 3), "share": Real(0.1, 1.0, 2.0)}

THEOREMS = (
    Theorem(
        name="fednl-local",
        title="FedNL near a minimiser",
        bound=fednl_local,
        read=_read,
        statement=STATEMENT,
        says="Near a minimiser FedNL converges superlinearly, whatever the condition number and the compression.",
        loose="A third of it is seen in a round, a hundredth later; errors of clients' Hessians cancel in their mean.",
        method=learned(exact_start=True),
        rounds=3,
        checks=(
            Check(shifted_logistic, start=near(0.5)),
            Check(uneven_logistic, learned("SymmetricTopK", 2, exact_start=True), start=near(0.2)),
            Check(breast_cancer, learned(size=3, exact_start=True), start=near(1.0)),
            Check(unequal_hessians, learned(size=2), 2),
            Check(two_logistic_clients, learned(exact_start=True), 2, near(1.0)),
            Check(one_parabola[0], learned(share=0.001), 1),
            Check(shifted_logistic, learned(option=2)),
            Check(shifted_logistic, learned(line_search=True)),
            Check(shifted_logistic, learned(share=4.0)),  # F is less convex
        ),
        space=Space(
            lambda k: learned("RankR", int(k["size"]), k["share"], exact_start=True),
            KNOBS,
            losses=("logistic",),
            rounds=(1, 4),
            weighted=True,
        ),
        **ABOUT,
    ),
)
