"""DANE, S-DANE and accelerated S-DANE where clients are alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.constants import similarity
from fedconvex.methods import DANE, SDANE, AcceleratedSDANE
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.rounding import of_square, rounding
from fedconvex.theorems.parts.smoothness import smoothness_of_F, start_length

__all__ = ["STATEMENT", "THEOREMS", "accelerated_sdane", "accelerated_sdane_growth", "sdane"]

SOURCE = "fedconvex, after Jiang, Rodomanov, Stich 2024 (docs/theory/sdane.md)"

STATEMENT = Statement(
    page="sdane",
    title="S-DANE and accelerated S-DANE",
    scope=EVERYWHERE,
    setting="""
A stage, which is two rounds: y = (A x + a v)/(A + a) with lam a^2 = A + a; x_k is the minimiser of f_k(x) - <grad
f_k(y) - grad F(y), x> + (lam/2) ‖x - y‖^2, exactly, or with a gradient b_k of at most theta lam ‖x_k - y‖ left;
x+ = sum p_k x_k; v+ = (v + a mu x+ - a g)/(1 + a mu), g = sum p_k grad f_k(x_k); A+ = (A + a)/(1 + a mu). S-DANE
keeps A = 0, so that y = v and a = 1/lam. Solved exactly it is DANE with m = lam and eta = 1.
""",
    assumptions="""
Every f_k is mu-strongly convex; delta is the second-order dissimilarity: sum p_k ‖h_k(x) - h_k(y)‖^2 <= delta^2 ‖x -
y‖^2 for all x, y, h_k = grad F - grad f_k. lam >= delta/2^(1/2) with exact solutions, delta/(1 - theta^2) else.
""",
    statement="""
S-DANE nearly  F(x_T) - F* <= (lam/2) (1 + mu/lam)^{-(T - 1)} ‖w_0 - w*‖^2,
exactly        F(x_T) - F* <= (mu/2) ‖w_0 - w*‖^2/((1 + mu/lam)^T - 1), which is lam/(2 T) ‖w_0 - w*‖^2 for mu = 0,
accelerated    F(x_T) - F* <= ‖w_0 - w*‖^2/(2 S_T), S_T = A_T prod_{t < T} (1 + a_t mu),

after T >= 1 stages; S_T is at least (1 + (mu/(4 lam))^(1/2))^{2 (T - 1)}/lam and (T + 1)^2/(4 lam).
""",
    source="""
Jiang, Rodomanov, Stich, "Stabilized proximal-point methods for federated optimization", NeurIPS 2024, Theorems 1 and 2,
which have lam = 2 delta at theta = 1/2. Steps, any theta and the proof: this project.
""",
    differs="""
Steps of the condition that is needed: lam = delta/2^(1/2) with exact solutions, 4/3 delta at theta = 1/2. S_T as it is
computed in the place of its bound. The last model, where the paper has the second rate for a mean of models. Weights
p_k.
""",
    meaning="""
Rounds depend on how much clients' Hessians differ, delta/mu or its root, not on L/mu. delta is exact for squared loss;
for others it is a bound that does not see similarity, and so is the rate: tune, or take the line search, whose lam
follows what is met.
""",
    proof="""
1. v⁺ minimises Σ p_k(⟨g_k, x⟩ + (μ/2)‖x - x_k‖²) + (λ/2)‖x - v‖² for A = 0, and f_k lies above its tangents at x_k with
   (μ/2)‖·‖²: F(x⁺) - F* + ((λ+μ)/2)‖v⁺ - w*‖² ≤ (λ/2)‖v - w*‖² if Σ p_k(f_k(x_k) + ⟨g_k, y - x_k⟩) - ‖g‖²/(2λ) ≥ F(x⁺).
   With A > 0 add A times the same inequality at x: A(F(x) - F*) + ‖v - w*‖²/2 shrinks by 1/(1 + aμ).
2. By tangents of f_k at x⁺ the condition holds if Σ p_kq_k ≥ ‖g‖²/(2λ), q_k = ⟨g_k - ∇f_k(x⁺), y - x_k⟩ +
   ⟨∇f_k(x⁺), y - x⁺⟩.
3. With u_k = y - x_k, λb_k the gradient that is left, s² = Σ p_k‖u_k - u‖², u and b the means, that follows from
   (λ/2) Σ p_k(‖u_k‖² - ‖b_k‖²) + (λ/2) Σ p_k‖u_k + b_k - u - b‖² ≥ δ‖u‖s. Exactly, b = 0: (λ/2)(‖u‖² + s²) + (λ/2)s² ≥
   2^{1/2}λ‖u‖s ≥ δ‖u‖s. Nearly, ‖b_k‖ ≤ θ‖u_k‖: (λ/2)(1-θ²)(‖u‖² + s²) ≥ λ(1-θ²)‖u‖s.
4. S-DANE: the inequality of 1 for T - 1 stages without its first term, then with it. Accelerated: A_T(F(x_T) - F*) ≤
   ‖w_0 - w*‖²/(2Π(1 + a_tμ)).
5. Exactly, v⁺ = x⁺, and the inequality of 1 with v in the place of w* says that F falls. Times (1 + μ/λ)^t and added
   over the stages t < T, it gives (F(x_T) - F*) Σ (1 + μ/λ)^t ≤ (λ/2)‖w_0 - w*‖². ∎
""",
    loose="""
One client with a slope that ends at the minimiser has 1/2 of the second after any number of stages, and more is not
possible: proximal points have lam/(4 T) for mu = 0. Quadratics gain the square of what is promised.
""",
)


def sdane(
    constants: Constants,
    *,
    proximal: float,
    mu: float,
    dissimilarity: float,
    stages: int,
    accuracy: float | None = None,
) -> Bound:
    """Return the bound of F(x_T) - F* after T >= 1 stages of S-DANE, or of DANE.

    Parameters
    ----------
    constants : Constants
        D, and mu_k of the clients.
    proximal : float
        lam.
    mu : float
        A strong convexity of all f_k.
    dissimilarity : float
        delta.
    stages : int
        T.
    accuracy : float, optional
        theta; default exact solutions.

    Raises
    ------
    AssumptionError
        If a constant is missing, a client is less convex, or lam is too small.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.sdane import sdane
    >>> at = {"proximal": 1.0, "mu": 0.25, "dissimilarity": 1.0, "stages": 2}
    >>> round(sdane(Constants(D=1.0, mu_k=np.full(2, 0.25)), **at).value, 4)  # 0.125/(1.25^2 - 1)
    0.2222
    """
    lam, T, mu, requires = _similar(constants, proximal, mu, dissimilarity, stages, accuracy)
    D = float(known_constants(SOURCE, constants, "D")[0])
    grown = (1.0 + mu / lam) ** (T - 1)
    if accuracy is None:
        grown = lam / mu * math.expm1(T * math.log1p(mu / lam)) if mu > 0.0 else float(T)
    return Bound({"start": 0.5 * lam * D**2 / grown}, LAST_SYNCHRONISED, SOURCE, requires)


def accelerated_sdane(
    constants: Constants,
    *,
    proximal: float,
    mu: float,
    dissimilarity: float,
    stages: int,
    accuracy: float | None = None,
) -> Bound:
    """Return the bound of F(x_T) - F* after T >= 1 stages of accelerated S-DANE.

    Parameters
    ----------
    constants : Constants
        D, and mu_k of the clients.
    proximal, mu, dissimilarity : float
        lam, a strong convexity of all f_k, and delta.
    stages : int
        T.
    accuracy : float, optional
        theta; default exact solutions.

    Raises
    ------
    AssumptionError
        If a constant is missing, a client is less convex, or lam is too small.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.sdane import accelerated_sdane
    >>> at = {"proximal": 1.0, "mu": 0.0, "dissimilarity": 1.0, "stages": 1}
    >>> accelerated_sdane(Constants(D=1.0, mu_k=np.zeros(2)), **at).value
    0.5
    """
    lam, T, mu, requires = _similar(constants, proximal, mu, dissimilarity, stages, accuracy)
    D = float(known_constants(SOURCE, constants, "D")[0])
    value = 0.5 * D**2 / accelerated_sdane_growth(proximal=lam, mu=mu, stages=T)
    return Bound({"start": value}, LAST_SYNCHRONISED, SOURCE, requires)


def accelerated_sdane_growth(*, proximal: float, mu: float, stages: int) -> float:
    """Return S_T, by which the method's distances are divided: at least (T + 1)^2/4 where mu = 0 and lambda = 1.

    Parameters
    ----------
    proximal : float
        lambda, positive.
    mu : float
        Convexity of F, at least 0.
    stages : int
        T.

    Raises
    ------
    ValueError, TypeError
        If proximal is not positive, or stages negative.

    Examples
    --------
    >>> from fedconvex.theorems.sdane import accelerated_sdane_growth
    >>> [round(accelerated_sdane_growth(proximal=1.0, mu=0.0, stages=T), 4) for T in (1, 2, 3)]  # >= (T + 1)^2/4
    [1.0, 2.618, 4.8116]
    """
    lam, total, A = real("proximal", proximal, low=0.0, strict=True), 1.0, 0.0
    for _ in range(whole("stages", stages)):
        a = 0.5 / lam + math.sqrt(0.25 / lam**2 + A / lam)
        total *= 1.0 + a * mu
        A = (A + a) / (1.0 + a * mu)
    return A * total


def _similar(
    constants: Constants, proximal: float, mu: float, dissimilarity: float, stages: int, accuracy: float | None
) -> tuple[float, int, float, tuple[Hypothesis, ...]]:
    """Return lam, T, mu and what both rates ask for."""
    lam, delta = real("proximal", proximal, low=0.0, strict=True), real("dissimilarity", dissimilarity, low=0.0)
    theta = None if accuracy is None else real("accuracy", accuracy, low=0.0, high=1.0)
    mu_k = np.asarray(known_constants(SOURCE, constants, "mu_k")[0], dtype=float)
    mu, least = real("mu", mu, low=0.0), float(mu_k.min())
    enough = delta / math.sqrt(2.0) if theta is None else delta / (1.0 - theta**2) if theta < 1.0 else math.inf
    text = "lam >= delta/2^(1/2)" if theta is None else "lam >= delta/(1 - theta^2)"
    requires = require(
        SOURCE,
        Hypothesis("every f_k mu-strongly convex", f"mu = {mu:g}, least {least:g}", mu <= least * (1.0 + 1e-9)),
        Hypothesis(text, f"lam = {lam:g}, {enough:g}", lam >= enough * (1.0 - 1e-9)),
    )
    return lam, whole("stages", stages, low=1), mu, requires


# ---------------------------------------------------------------- read off a setting


def whole_stages(theorem: str, s: Setting) -> dict[str, Any]:
    """Return lam, and stages that are whole, of two rounds each."""
    m = s.method
    stationary(theorem, s.problem)
    smoothness_of_F(theorem, s.problem)
    require(
        theorem,
        Hypothesis("no line search", f"line_search {m.line_search}", not m.line_search),
        Hypothesis("a whole stage", f"{s.rounds} rounds", s.rounds >= 2),
    )
    return {"proximal": 1.0 / one_number(theorem, "step size", m.step_size), "stages": s.rounds // 2}


def plain_dane(theorem: str, s: Setting) -> None:
    """Raise unless eta = 1 and clients solve exactly."""
    m = s.method
    require(
        theorem,
        Hypothesis("eta = 1", f"eta {m.eta:g}", m.eta == 1.0),
        Hypothesis("clients that solve exactly", f"accuracy {m.accuracy!r}", m.accuracy is None),
    )


def _read(s: Setting) -> Reading:
    m = s.method
    is_method(SOURCE, m, SDANE, DANE)
    if isinstance(m, DANE):
        plain_dane(SOURCE, s)
        require(SOURCE, Hypothesis("all clients solve", f"leader {m.leader!r}", m.leader is None))
    return Reading(_known(s, float(np.min(np.asarray(s.constants().mu_k))) if isinstance(m, DANE) else None))


def _read_accelerated(s: Setting) -> Reading:
    is_method(SOURCE, s.method, AcceleratedSDANE)
    return Reading(_known(s, None))


def _known(s: Setting, mu: float | None) -> dict[str, Any]:
    m, p = s.method, s.problem
    if mu is None:
        mu = float(p.strong_convexity if m.mu is None else m.mu)
    numbers = {**whole_stages(SOURCE, s), "dissimilarity": similarity.second_order_dissimilarity(p).value}
    return {"constants": s.constants(), **numbers, "mu": mu, "accuracy": m.accuracy}


def _tolerance(s: Setting, value: float) -> float:
    """Errors of stages add up: proximal points move no more than their centres, but for the gradients that are told."""
    p, m, L = s.problem, s.method, float(s.problem.constants().L or 0.0)
    length = start_length(s)
    push = float(np.max(m.step_size)) * float(p.weights @ gradient_rounding(p, np.full(1, length)))
    off = math.sqrt(L) * s.rounds * (4.0 * push + (UNIT + m.tol) * (1.0 + length))
    return rounding(LAST_SYNCHRONISED, s, value) + of_square(2.0 * value, off)


# ---------------------------------------------------------------- where they are checked


def similar_step(problem: Problem, share: float, leader: int | None = None, accuracy: float | None = None) -> float:
    """Return so many times the step of the theorem."""
    smooth = default_steps.smoothness_of(problem.federation, problem.weights, problem.loss, problem.l2)
    return share * float(default_steps.similarity_step(problem, smooth, leader, accuracy).value)


def stabilised(share: float = 1.0, kind: type = SDANE, **settings: Any) -> MethodRule:
    """Return S-DANE, or another of its kind, with so many times the step of the theorem."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Any:
        return kind(step_size=similar_step(problem, share, None, settings.get("accuracy")), **settings)

    step = f"{share:g} times that of the theorem" if share != 1.0 else "that of the theorem"
    return MethodRule(", ".join([kind.__name__, step, *(f"{k} {v}" for k, v in settings.items())]), make)


@example("a steep slope", "one client, slope 1000 up to its end at w = 0, then flat")
def steep_slope() -> Problem:
    """Proximal points that end half-way are slowest: those with lam = 2000 T, from -1 on."""
    return Problem(Federation.from_clients([([[1000.0]], [1.0])]), SmoothedHinge())


def _half_way(T: int, kind: type = SDANE) -> Check:
    """Return the check of T stages on the slope."""
    return Check(steep_slope, given(kind, step_size=1.0 / (2000.0 * T)), 2 * T, -1.0)


@example("alike by the hundred", "two clients, F = (w - 1)²/2 ± w²/200")
def alike() -> Problem:
    """delta = 0.01: proximal terms are weak, and one stage is nearly Newton's."""
    X = [math.sqrt(1.01), math.sqrt(0.99)]
    return Problem(Federation.from_clients([([[x]], [1.0 / x]) for x in X]), Squared())


ABOUT: dict[str, Any] = {"quantity": LAST_SYNCHRONISED, "tolerance": _tolerance, "rounds": 8}
SPACE: dict[str, Any] = {"losses": ("squared", "logistic"), "rounds": (2, 20), "weighted": True}
SHARE = Real(0.02, 1.0, 2.0)

THEOREMS = (
    Theorem(
        name="sdane",
        title="DANE and S-DANE",
        bound=sdane,
        read=_read,
        statement=STATEMENT,
        says="Where Hessians of clients differ by delta, F - F* falls by 1/(1 + mu/lam) a stage, lam about delta.",
        loose="Half of it after any number of stages without strong convexity; quadratics gain squares.",
        method=stabilised(),
        checks=(
            unequal_hessians,
            uneven_logistic,
            diabetes,
            Check(breast_cancer, stabilised(accuracy=0.5)),
            Check(unequal_hessians, stabilised(accuracy=0.5), 20),
            Check(unequal_hessians, stabilised(0.5, DANE), 6),
            Check(alike, stabilised(0.01), 2),
            _half_way(1),
            _half_way(10),
            Check(alike, stabilised(0.001), 40),
            Check(unequal_hessians, rounds=1),  # no whole stage
            Check(unequal_hessians, stabilised(10.0)),  # too weak a proximal term
            Check(unequal_hessians, stabilised(line_search=True)),
            Check(unequal_hessians, stabilised(mu=100.0)),  # clients are less convex
        ),
        space=Space(lambda k: stabilised(k["share"]), {"share": SHARE}, **SPACE),
        **ABOUT,
    ),
    Theorem(
        name="accelerated-sdane",
        title="Accelerated S-DANE",
        bound=accelerated_sdane,
        read=_read_accelerated,
        statement=STATEMENT,
        says="Acceleration takes the root of lam/mu stages, or falls as 2 lam D²/(T + 1)² without strong convexity.",
        loose="Half of it in one stage; quadratics gain squares.",
        method=stabilised(1.0, AcceleratedSDANE),
        checks=(
            unequal_hessians,
            uneven_logistic,
            diabetes,
            Check(breast_cancer, stabilised(1.0, AcceleratedSDANE, accuracy=0.5)),
            Check(unequal_hessians, stabilised(1.0, AcceleratedSDANE, mu=0.0), 20),
            Check(alike, stabilised(0.01, AcceleratedSDANE), 2),
            _half_way(1, AcceleratedSDANE),
            Check(alike, stabilised(0.0001, AcceleratedSDANE), 40),
            Check(unequal_hessians, stabilised(10.0, AcceleratedSDANE)),  # too weak a proximal term
            Check(unequal_hessians, stabilised(1.0, AcceleratedSDANE, mu=100.0)),  # clients are less convex
        ),
        space=Space(lambda k: stabilised(k["share"], AcceleratedSDANE), {"share": SHARE}, **SPACE),
        **ABOUT,
    ),
)
