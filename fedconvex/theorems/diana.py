"""DIANA: compressed differences without bias, a potential that shrinks in expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.constants import default_steps
from fedconvex.methods import DIANA, Dithering, RandK
from fedconvex.theorems.error_feedback import first_client
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.compression import feedback_rounding, model_size, unbiased
from fedconvex.theorems.parts.remembered import Moment, client_gradients, mean_square, potentials
from fedconvex.theorems.parts.rounding import of_square
from fedconvex.theorems.parts.smoothness import smoothness_of_F, start_length
from fedconvex.theory.fixed_points import quadratic

__all__ = ["STATEMENT", "THEOREMS", "diana"]

LARGEST = 150  # entries of x and all h_i of which second moments are kept

SOURCE = "fedconvex, after Mishchenko, Gorbunov, Takac, Richtarik 2019 (docs/theory/diana.md)"
DIFFERENCES = Quantity(
    "E ‖x - x*‖^2 + (4 omega/(n alpha)) gamma^2 (1/n) sum E ‖h_i - grad f_i(x*)‖^2 after T rounds",
    "potential",
    Dimension.SQUARED_LENGTH,
    **FROM_MINIMUM,
)

STATEMENT = Statement(
    page="diana",
    title="DIANA",
    scope=EVERYWHERE._replace(free=WHOLE_STRONGLY_CONVEX),
    setting="""
n clients of equal weight; m_i = C_i(grad f_i(x) - h_i), E C_i(v) = v, E‖C_i(v) - v‖^2 <= omega ‖v‖^2, draws of clients
independent; h_i <- h_i + alpha m_i; x <- x - gamma (1/n) sum (h_i + m_i) with the old h_i; h_i = 0 at first.
""",
    assumptions="Every f_i is convex and L-smooth, F is mu-strongly convex, mu > 0.",
    statement="""
Let alpha = 1/(1 + omega) and gamma <= 1/(L (1 + 6 omega/n)). Then

    V = ‖x - x*‖^2 + (4 omega/(n alpha)) gamma^2 (1/n) sum ‖h_i - grad f_i(x*)‖^2

has E V+ <= max{1 - gamma mu, 1 - alpha/2} V.
""",
    source="""
Derived here. Method, potential and order of the rate: Mishchenko, Gorbunov, Takac, Richtarik, "Distributed learning
with compressed gradient differences", arXiv:1901.09269, 2019.
""",
    differs="Constants. Without a regulariser and momentum.",
    meaning="""
The optimum from unbiased compression, with independent errors averaged over clients: for n of the order of omega the
step is that of gradient descent, but for a constant. It is several times too small on most problems.
""",
    proof="""
g_i = ∇f_i(x), h_i* = ∇f_i(x*), D = (1/n) Σ (f_i(x) - f_i(x*) - ⟨h_i*, x - x*⟩) = F(x) - F*.

1. x⁺ = x - γ(g + ε), g = ∇F(x), ε = (1/n) Σ (m_i - g_i + h_i) of mean zero, E‖ε‖² ≤ (ω/n²) Σ ‖g_i - h_i‖² ≤
   (2ω/n)((1/n) Σ ‖g_i - h_i*‖² + H), H = (1/n) Σ ‖h_i - h_i*‖².
2. E‖h_i⁺ - h_i*‖² = ‖h_i - h_i* + α(g_i - h_i)‖² + α²E‖C_i - id‖² ≤ ... with α²(1+ω) = α: ≤ (1-α)‖h_i - h_i*‖²
   + α‖g_i - h_i*‖², by ‖a + α(b-a)‖² + α²ω‖b-a‖² = (1-α)‖a‖² + α‖b‖² - (α - α²(1+ω))‖b-a‖².
3. (1/n) Σ ‖g_i - h_i*‖² ≤ 2LD by smoothness and convexity, and ‖x - γg - x*‖² ≤ (1-γμ)‖x - x*‖² - 2γD + γ²‖g‖², ‖g‖² ≤
   2LD.
4. With c = 4ωγ²/(nα): E V⁺ ≤ (1-γμ)‖x - x*‖² + D(-2γ + 2Lγ² + 4Lωγ²/n + 2Lcα) + H(c(1-α) + 2ωγ²/n). The last factor is
   c(1-α/2), and that of D is -2γ + 2Lγ²(1 + 6ω/n) ≤ 0. ∎
""",
    loose="""
From the optimum, h_i = 0, one round of Rand-k has (1 - 3 alpha/4)/(1 - alpha/2) of the bound: 5/6 for half of the
entries. Near 1 where gamma mu is small. Largest of single rounds from drawn states: 0.99.
""",
)


def diana(constants: Constants, *, step_size: float, omega: float, rounds: int, alpha: float | None = None) -> Bound:
    """Return the bound of E V after so many rounds.

    Parameters
    ----------
    constants : Constants
        L of the clients, mu of F, D, zeta_star, p or K.
    step_size, omega : float
        gamma; omega >= 0 of the compressor.
    rounds : int
        T.
    alpha : float, optional
        Which has to be 1/(1 + omega), the default.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, weights are unequal, or gamma or alpha is another one.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.diana import diana
    >>> constants = Constants(L=1.0, mu=0.5, D=2.0, zeta_star=1.0, K=6)
    >>> diana(constants, step_size=0.5, omega=1.0, rounds=1).value  # 0.75 (4 + (4/3) 0.25)
    3.25
    """
    gamma, T = real("step_size", step_size, low=0.0, strict=True), whole("rounds", rounds)
    omega = real("omega", omega, low=0.0)
    L, mu, D, zeta = (float(v) for v in known_constants(SOURCE, constants, "L", "mu", "D", "zeta_star"))
    p, right = client_weights(SOURCE, constants), 1.0 / (1.0 + omega)
    used = right if alpha is None else real("alpha", alpha, low=0.0, strict=True)
    n, most = p.size, 1.0 / (L * (1.0 + 6.0 * omega / p.size))
    requires = require(
        SOURCE,
        equal_weights(p),
        Hypothesis("every f_i convex and L-smooth", f"L = {L:g}"),
        Hypothesis("F mu-strongly convex, mu > 0", f"mu = {mu:g}", mu > 0.0),
        Hypothesis("alpha = 1/(1 + omega)", f"{used:g}, {right:g}", abs(used - right) <= 1e-9 * right),
        Hypothesis("gamma <= 1/(L (1 + 6 omega/n))", f"gamma = {gamma:g}, {most:g}", gamma <= most * (1.0 + 1e-9)),
    )
    factor = max(1.0 - gamma * mu, 1.0 - 0.5 * right) ** T
    reach = 4.0 * omega / (n * right) * gamma**2 * zeta**2
    return Bound({"start": factor * D**2, "differences": factor * reach}, DIFFERENCES, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    is_method(SOURCE, s.method, DIANA)
    stationary(SOURCE, s.problem)
    smoothness_of_F(SOURCE, s.problem)
    omega, checked = unbiased(SOURCE, s)
    step = one_number(SOURCE, "step size", s.method.step_size)
    numbers = {"step_size": step, "omega": omega, "rounds": s.rounds, "alpha": s.method._alpha(model_size(s))}
    return Reading({"constants": s.constants(), **numbers}, checked)


def _potential(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    best, omega = s.problem.solve().w, unbiased(SOURCE, s)[0]
    at_star, n = client_gradients(s, best[None]), s.problem.federation.K
    weight = 4.0 * omega * (1.0 + omega) / n * float(s.method.step_size) ** 2

    def value(before: Moment, now: Moment) -> np.ndarray:
        away = (now.state.w - best).reshape(len(now.state.w), -1)
        return np.sum(away * away, axis=1) + weight * mean_square(s, now.rows - at_star)

    return potentials(value, s, rounds, seed, trajectories)


def _exact(s: Setting, rounds: Sequence[int]) -> Found | None:
    """Return E V on least squares with Rand-k: second moments of (x - x*, h_1 - h_1*, ..., h_n - h_n*), which close."""
    p, C, d = s.problem, s.method.compressor, model_size(s)
    n = p.federation.K
    if not (traits(p.loss).quadratic and isinstance(C, RandK) and (n + 1) * d <= LARGEST):
        return None
    q, omega, alpha, gamma = quadratic(p), C.omega(d), s.method._alpha(d), float(s.method.step_size)
    one, spread = np.eye((n + 1) * d).reshape(n + 1, d, -1), np.full((d, d), -omega / max(d - 1, 1))
    np.fill_diagonal(spread, omega)  # E C u (C u)' - u u', entry by entry over that of u u'
    seen = q.H @ one[0] - one[1:]  # what client i compresses
    mean = one.copy()
    mean[0] -= gamma * np.einsum("k,kij->ij", q.p, one[1:] + seen)
    mean[1:] += alpha * seen
    A, push = mean.reshape((n + 1) * d, -1), alpha * one[1:] - gamma * q.p[:, None, None] * one[0]
    start = np.concatenate([s.start - q.minimiser, -q.gradients(q.minimiser).ravel()])
    S, values = np.outer(start, start), []
    weight = np.concatenate([np.ones(d), np.repeat(4.0 * omega * (1.0 + omega) / n * gamma**2 * q.p, d)])
    for _ in range(max(rounds)):
        drawn = spread * np.einsum("kia,ab,kjb->kij", seen, S, seen, optimize=True)
        S = A @ S @ A.T + np.einsum("kia,kij,kjb->ab", push, drawn, push, optimize=True)
        values.append(float(weight @ np.diag(S)))
    found = np.array([values[T - 1] for T in rounds])
    off = [_tolerance(s._replace(rounds=T), v) for T, v in zip(rounds, found.tolist(), strict=True)]
    return Found(found, np.array(off))


def _tolerance(s: Setting, value: float) -> float:
    omega = unbiased(SOURCE, s)[0]
    each = UNIT * start_length(s) + (1.0 + omega) * float(s.method.step_size) * feedback_rounding(s)
    return of_square(value, minimiser_rounding(s.problem) + s.rounds * each)


def random_entries(k: int = 2, share: float = 1.0, levels: int = 0, **settings: Any) -> MethodRule:
    """Return DIANA with Rand-k, or dithering of so many levels, and so many times the step of the theorem."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> DIANA:
        size = int(np.prod(problem.model_shape))
        C = Dithering(levels) if levels else RandK(min(k, size))
        smooth = smoothness_of_F(theorem.name, problem)
        step = default_steps.difference_step(smooth, C.omega(size), problem.federation.K).value
        return DIANA(step_size=share * float(step), compressor=C, **settings)

    step = f"{share:g} times that of the theorem" if share != 1.0 else "that of the theorem"
    return MethodRule(", ".join([step, *(f"{name} {value:g}" for name, value in settings.items())]), make)


@example("ten directions", "10 clients, F = ‖w - c‖²/2 with c on a circle of radius 2")
def ten_directions() -> Problem:
    """Hessians of 1: memories are slower than the model."""
    X, angles = math.sqrt(2.0) * np.eye(2), 0.2 * math.pi * np.arange(10)
    return Problem(
        Federation.from_clients([(X, X @ [2.0 * math.cos(a), 2.0 * math.sin(a)]) for a in angles]), Squared()
    )


THEOREMS = (
    Theorem(
        name="diana",
        title="DIANA, compressed differences",
        quantity=DIFFERENCES,
        bound=diana,
        read=_read,
        sample=_potential,
        exact=_exact,
        tolerance=_tolerance,
        statement=STATEMENT,
        says="With unbiased compression models and memories shrink by max{1 - gamma mu, 1 - alpha/2} a round.",
        loose="5/6 of it in one round from the optimum; in steps that are several times too small for most problems.",
        method=random_entries(),
        rounds=10,
        checks=(
            unequal_hessians,
            shifted_logistic,
            Check(breast_cancer, random_entries(10), 3),
            Check(diabetes, random_entries(5), 5),
            Check(three_clients, random_entries(1), 1, at_minimiser),
            Check(three_clients_in_tenths, random_entries(1), 1, at_minimiser),
            Check(ten_directions, random_entries(1), 1, at_minimiser),
            Check(unequal_hessians, random_entries(levels=2), 3),
            Check(unequal_hessians, random_entries(2, 20.0)),  # too long a step
            Check(first_client(ten_directions), random_entries(1, 2.0), 1, 0.0),  # the same: omega/n is not enough
            Check(unequal_hessians, random_entries(2, alpha=1.0)),  # another alpha
            uneven_logistic,  # unequal weights
        ),
        space=Space(
            lambda k: random_entries(int(k["k"]), k["share"]),
            {"k": Whole(1, 3), "share": Real(0.05, 1.0, 2.0)},
            losses=("squared",),
            rounds=(1, 20),
            tries=12,
        ),
    ),
)
