"""Error feedback with exact rates: EF21 for any clients, EF for clients that share a minimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.methods import EF21, ErrorFeedback, TopK
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.compression import contractive, feedback_rounding
from fedconvex.theorems.parts.remembered import Moment, client_gradients, mean_square, potentials
from fedconvex.theorems.parts.rounding import of_square
from fedconvex.theorems.parts.smoothness import smoothness_of_F, start_length

__all__ = ["STATEMENT", "THEOREMS", "ef21_convex", "error_feedback", "error_feedback_factor", "error_feedback_step"]

SOURCE = (
    "Thomsen, Taylor, Dieuleveut 2025 (one client) and 2026; proof and unequal clients: docs/theory/error_feedback.md"
)
ERRORS = Quantity(
    "s ‖grad F(x)‖^2 + sum p_i ‖g_i - grad f_i(x)‖^2, x the model that round T starts at, g_i after it",
    "potential",
    Dimension.SQUARED_GRADIENT,
    least=0.0,
)
DELAYED = Quantity(
    "‖x - sum p_i e_i - w*‖^2 + (1/s) sum p_i ‖e_i‖^2 after T rounds",
    "potential",
    Dimension.SQUARED_LENGTH,
    **FROM_MINIMUM,
)

STATEMENT = Statement(
    page="error_feedback",
    title="Error feedback, exact rates",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
‖C(v) - v‖ <= s ‖v‖ for all v, s = (1 - delta)^(1/2); C deterministic, or all of it in expectation.
EF21: x <- x - gamma sum p_i g_i, then at the new x g_i <- g_i + C(grad f_i(x) - g_i); g_i = grad f_i(x^0) at first.
EF: c_i = C(e_i + gamma grad f_i(x)), e_i <- e_i + gamma grad f_i(x) - c_i, x <- x - sum p_i c_i; e_i = 0 at first.
""",
    assumptions="""
Every f_i is mu-strongly convex and L-smooth, 0 < mu < L; 0 < s < 1. EF: all grad f_i(x*) = 0, as for one client.
""",
    statement="""
h = gamma (1 + s)/(1 - s), q = max{h L - 1, 1 - h mu} < 1, and r the root of r^2 = (1 - s) q r + s in (s, 1):

    EF21   s ‖grad F(x)‖^2 + sum p_i ‖g_i - grad f_i(x)‖^2     shrinks by r^2 a round,
    EF     ‖x - sum p_i e_i - x*‖^2 + (1/s) sum p_i ‖e_i‖^2    shrinks by r^2 a round.

r is least at h = 2/(L + mu), gamma = (2/(L + mu)) delta/(1 + (1 - delta)^(1/2))^2, where q = (L - mu)/(L + mu).
""",
    source="""
Thomsen, Taylor, Dieuleveut, "Tight analyses of first-order methods with error feedback", NeurIPS 2025, Theorems 1 and
2: the step, the two potentials and the rate for one client, with matching lower bounds; "A tight theory of error
feedback algorithms in distributed optimization", ICML 2026: the same step and rate for several. Their texts were not at
hand, the potentials are those of the authors' programs. Form r^2 = (1 - s) q r + s of the rate, proof, other steps,
unequal clients and weights: derived here.
""",
    differs="""
The published rate, s + (1/4)(1 + s)(L - mu) lambda with lambda a root, is r^2 (`test_the_published_rate_is_r_squared`).
Any step with q < 1.
""",
    meaning="""
Beside [EF21's own theorem](ef21.md), which asks for no convexity, the step is 2 (1 - s + 2^(1/2) s)/(1
+ s) times as long where all L agree: 1.4 to 1.5 times for delta below 1/3. The rate is 1 at s = 1 and that of
gradient descent, q^2, at s = 0, which is excluded only because the potentials need not say anything there.
Heterogeneity costs EF21 nothing, as long as all clients have the same L and mu. EF with clients that do not
share a minimiser ends near the optimum only: there e_i does not vanish. [Compressed gradient
descent](compressed_descent.md) of one client is faster than both.
""",
    proof="""
θ = (1-s)/(1+s); a gradient of a μ-strongly convex L-smooth function is, between two points, h⁻¹ times their difference
and a rest of at most h⁻¹q times its length, so that hγ⁻¹ = 1/θ gives γ(∇f(u) - ∇f(v)) = θ(u - v) + w, ‖w‖ ≤ θq‖u - v‖.

**EF21.** d = Σ p_ig_i, e_i = g_i - ∇f_i(x), bars are means with p. x - x⁺ = γd: ∇f_i(x) - ∇f_i(x⁺) = θd + w_i, with Σ
p_i‖w_i‖² ≤ θ²q²‖d‖². C sees ∇f_i(x⁺) - g_i = -(e_i + θd + w_i), so V⁺ ≤ s‖∇F(x) - θd - w̄‖² + s² Σ p_i‖e_i + θd + w_i‖².
The last sum is ‖ē + θd + w̄‖² and Σ p_i‖e_i - ē + w_i - w̄‖²; ē = d - ∇F(x). With

    A² = (1+s)‖∇F(x) - d/(1+s)‖²,  B² = (s/(1+s))‖d‖²,  E² = Σ p_i‖e_i - ē‖²,  c = (1-s)q/s^{1/2}

squares can be completed before and after: V = A² + B² + E² and, with ‖w̄‖ = θq‖d‖w_1, w_1² + w_2² ≤ 1,

    V⁺ ≤ s(A + cw_1B)² + sB² + s²(E + (1+s)^{-1/2}cw_2B)².

For B = 1 the right side less ρ(A² + E²) is at most s + sρc²(w_1²/(ρ-s) + (s/(1+s))w_2²/(ρ-s²)) over A and E, for ρ > s;
the factor of w_1² is the larger one. At w_1 = 1 this is ρ iff (ρ-s)² = sρc² = (1-s)²q²ρ, that is ρ = r² with r² - s =
(1-s)qr. One client has E = w_2 = 0.

**EF.** z = x - x*, γ∇f_i(x) = θz + w_i. z - ē goes to z - ē - γ∇F(x) exactly, and V⁺ ≤ ‖z - ē - θz - w̄‖² + s Σ
p_i‖e_i + θz + w_i‖². With A² = ((1+s)/s)‖ē - sz/(1+s)‖², B² = ‖z‖²/(1+s), E² = (1/s) Σ p_i‖e_i - ē‖² these are
the same V and bound of V⁺. ∎
""",
    loose="""
Nowhere for one client: r^2 is the largest factor of a round over all functions, compressors and states, by
programmes, at every step (`test_rates_are_exact_worst_cases_of_a_round`). Top-1 of two entries attains it in
the first rounds, on a gradient with entries of equal modulus along the flat direction. Where L and mu differ
between clients, L is the largest and mu the least here, and better is possible.
""",
)


def error_feedback_factor(constants: Constants, *, step_size: float, delta: float) -> float:
    """Return r^2, the factor of both potentials.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu, if it holds for every client).
    step_size, delta : float
        gamma; delta in (0, 1), of the compressor.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.error_feedback import error_feedback_factor, error_feedback_step
    >>> constants = Constants(L=19.0, mu=1.0)
    >>> gamma = error_feedback_step(constants, delta=0.75)
    >>> round(error_feedback_factor(constants, step_size=gamma, delta=0.75), 4)
    0.9352
    """
    gamma = real("step_size", step_size, low=0.0, strict=True)
    s, L, mu = _setting(constants, delta)
    h = gamma * (1.0 + s) / (1.0 - s)
    q = max(h * L - 1.0, 1.0 - h * mu)
    longest = 2.0 * (1.0 - s) / ((1.0 + s) * L)
    text = "gamma < (2/L) (1 - s)/(1 + s) (vacuous otherwise)"
    require(SOURCE, Hypothesis(text, f"gamma = {gamma:g}, {longest:g}", 0.0 <= q < 1.0))
    r = 0.5 * ((1.0 - s) * q + math.sqrt(((1.0 - s) * q) ** 2 + 4.0 * s))
    return r * r


def error_feedback_step(constants: Constants, *, delta: float) -> float:
    """Return (2/(L + mu)) delta/(1 + (1 - delta)^(1/2))^2, the step of the least factor.

    Parameters
    ----------
    constants : Constants
        L and mu of F.
    delta : float
        Of the compressor, E‖C(x) - x‖^2 <= (1 - delta) ‖x‖^2.

    Raises
    ------
    ValueError, TypeError
        If delta is not in (0, 1].

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.error_feedback import error_feedback_step
    >>> error_feedback_step(Constants(L=3.0, mu=1.0), delta=0.75)
    0.16666666666666666
    """
    s, L, mu = _setting(constants, delta)
    return 2.0 * (1.0 - s) / ((L + mu) * (1.0 + s))


def ef21_convex(constants: Constants, *, step_size: float, delta: float, rounds: int, start_gradient: float) -> Bound:
    """Return the bound of EF21's potential.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu).
    step_size, delta : float
        gamma, delta.
    rounds : int
        T >= 1.
    start_gradient : float
        ‖grad F(x^0)‖.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.error_feedback import ef21_convex
    >>> ef21_convex(Constants(L=3.0, mu=1.0), step_size=1 / 6, delta=0.75, rounds=1, start_gradient=2.0).value
    2.0
    """
    factor, T = error_feedback_factor(constants, step_size=step_size, delta=delta), whole("rounds", rounds, low=1)
    g = real("start_gradient", start_gradient, low=0.0)
    start = math.sqrt(1.0 - delta) * g**2 * factor ** (T - 1)
    return Bound({"start": start}, ERRORS, SOURCE, _hypotheses(constants))


def error_feedback(
    constants: Constants, *, step_size: float, delta: float, rounds: int, shared: float | None = None
) -> Bound:
    """Return the bound of EF's potential.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), D, and zeta_star, which has to be zero.
    step_size, delta : float
        gamma, delta.
    rounds : int
        T.
    shared : float, optional
        zeta_* up to which a minimiser counts as shared; default 1e-9 L D.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, clients do not share a minimiser, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.error_feedback import error_feedback
    >>> constants = Constants(L=3.0, mu=1.0, D=2.0, zeta_star=0.0)
    >>> round(error_feedback(constants, step_size=1 / 6, delta=0.75, rounds=2).value, 4)
    2.0208
    """
    L, D, zeta = (float(v) for v in known_constants(SOURCE, constants, "L", "D", "zeta_star"))
    most = 1e-9 * L * D if shared is None else real("shared", shared, low=0.0)
    one = Hypothesis("clients that share a minimiser, zeta_* = 0", f"zeta_* = {zeta:g}", zeta <= most)
    requires = require(SOURCE, one) + _hypotheses(constants)
    factor, T = error_feedback_factor(constants, step_size=step_size, delta=delta), whole("rounds", rounds)
    return Bound({"start": D**2 * factor**T}, DELAYED, SOURCE, requires)


def _setting(constants: Constants, delta: float) -> tuple[float, float, float]:
    """Return s, L and mu."""
    delta = real("delta", delta, low=0.0, high=1.0, strict=True)
    (L,) = known_constants(SOURCE, constants, "L")
    mu = least_convexity(SOURCE, constants)
    require(
        SOURCE,
        Hypothesis("delta < 1: something is left out", f"delta = {delta:g}", delta < 1.0),
        Hypothesis("every f_i strongly convex, 0 < mu <= L", f"mu = {mu:g}", 0.0 < mu <= L * (1.0 + 1e-12)),
    )
    return math.sqrt(1.0 - delta), float(L), mu


def _hypotheses(constants: Constants) -> tuple[Hypothesis, ...]:
    mu = least_convexity(SOURCE, constants)
    return (Hypothesis("every f_i mu-strongly convex and L-smooth", f"mu = {mu:g}, L = {constants.L:g}"),)


# ---------------------------------------------------------------- read off a setting


def _numbers(s: Setting, kind: type) -> tuple[dict[str, Any], tuple[Hypothesis, ...]]:
    is_method(SOURCE, s.method, kind)
    stationary(SOURCE, s.problem)
    smoothness_of_F(SOURCE, s.problem)
    delta, checked = contractive(SOURCE, s)
    step = one_number(SOURCE, "step size", s.method.step_size)
    return {"constants": s.constants(), "step_size": step, "delta": delta, "rounds": s.rounds}, checked


def _read_ef21(s: Setting) -> Reading:
    numbers, checked = _numbers(s, EF21)
    return Reading({**numbers, "start_gradient": float(np.linalg.norm(s.problem.gradient(s.start)))}, checked)


def _read_ef(s: Setting) -> Reading:
    return Reading(*_numbers(s, ErrorFeedback))


def _errors(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    root = math.sqrt(1.0 - contractive(SOURCE, s)[0])

    def value(before: Moment, now: Moment) -> np.ndarray:
        g = client_gradients(s, before.state.w)
        whole = np.einsum("k,rkp->rp", s.problem.weights, g)
        return root * np.sum(whole * whole, axis=1) + mean_square(s, now.rows - g)

    return potentials(value, s, rounds, seed, trajectories)


def _delayed(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    best, root = s.problem.solve().w.ravel(), math.sqrt(1.0 - contractive(SOURCE, s)[0])

    def value(before: Moment, now: Moment) -> np.ndarray:
        e = np.einsum("k,rkp->rp", s.problem.weights, now.rows)
        away = now.state.w.reshape(len(e), -1) - e - best
        return np.sum(away * away, axis=1) + mean_square(s, now.rows) / root

    return potentials(value, s, rounds, seed, trajectories)


def _errors_rounding(s: Setting, value: float) -> float:
    return of_square(value, feedback_rounding(s))


def _delayed_rounding(s: Setting, value: float) -> float:
    """Vectors of clients are gamma times gradients; w* is off by its rounding, gradients there by zeta_*."""
    root = math.sqrt(1.0 - contractive(SOURCE, s)[0])
    c, each = s.problem.constants(), UNIT * start_length(s) + s.method.step_size * feedback_rounding(s)
    shared = (
        s.rounds * s.method.step_size * min(float(c.zeta_star or 0.0), 1e-9 * float(c.L or 0.0) * float(c.D or 0.0))
    )
    return of_square(value, minimiser_rounding(s.problem) + (s.rounds * each + shared) / math.sqrt(root))


def tight(kind: type, k: int = 1, share: float = 1.0) -> MethodRule:
    """Return the method with Top-k and so many times the step of the least factor."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Any:
        size = int(np.prod(problem.model_shape))
        sent = max(min(k, size - 1), 1)
        step = share * error_feedback_step(problem.constants(), delta=min(sent / size, 0.5 if size == 1 else 1.0))
        return kind(step_size=step, compressor=TopK(sent))

    return MethodRule(f"{share:g} times the best" if share != 1.0 else "the best of the theorem", make)


def _one_client(shift: float) -> Problem:
    """Curvatures 1/20 along (1, 1) and 1 along (1, -1): the gradient has equal entries on the flat side."""
    flat, steep = math.sqrt(0.05), 1.0
    X = np.array([[flat, flat], [steep, -steep]])
    return Problem(Federation.from_clients([(X, X @ [shift, shift])]), Squared())


flat_diagonal = example("flat diagonal", "one client, curvature 1/20 along (1, 1), 1 along (1, -1)")(
    lambda: _one_client(1.0)
)


@example("shared minimiser", "4 clients of unequal Hessians, least squares without noise")
def shared_minimiser() -> Problem:
    """All labels are x'w for one w."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(8, 4)) + 0.5 * rng.normal(size=4) for _ in range(4)]
    return Problem(Federation.from_clients([(X, X @ [1.0, -1.0, 2.0, 0.5]) for X in rows]), Squared())


def first_client(instance: Instance) -> Instance:
    """Return the first client of an instance."""

    def make() -> Problem:
        p = instance.make()
        return Problem(p.federation.subset([0]), p.loss, p.l2 or 0.1)

    return example(f"first of {instance.name}", f"the first client of: {instance.words}", instance.data)(make)


def of_one_client(tiny: Tiny) -> Problem:
    """Return all rows as those of one client."""
    return tiny._replace(sizes=(len(tiny.rows),), weights=None).problem()


def _space(kind: type) -> Space:
    """Return a space: of any clients for EF21, of one for EF."""
    return Space(
        lambda k: tight(kind, int(k["k"]), k["share"]),
        {"k": Whole(1, 3), "share": Real(0.05, 1.0, 2.0)},
        losses=("squared", "logistic"),
        rounds=(2, 20),
        weighted=kind is EF21,
        problem=Tiny.problem if kind is EF21 else of_one_client,
        tries=12,
    )


THEOREMS = (
    Theorem(
        name="ef21-convex",
        title="EF21, strongly convex",
        quantity=ERRORS,
        bound=ef21_convex,
        read=_read_ef21,
        sample=_errors,
        exact=deterministic(_errors),
        tolerance=_errors_rounding,
        statement=STATEMENT,
        says="With the tight step EF21's errors shrink by r², r² = (1 - s) q r + s, for clients of one L and mu.",
        loose="Attained by one client in the first rounds; unequal L or mu are taken at their worst.",
        method=tight(EF21),
        rounds=10,
        checks=(
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            breast_cancer,
            diabetes,
            Check(flat_diagonal, tight(EF21), 2, 0.0),
            Check(flat_diagonal, tight(EF21), 12, 0.0),
            Check(flat_diagonal, tight(EF21, 1, 0.5), 3, 0.0),
            Check(unequal_hessians, tight(EF21, 1, 30.0), 40),  # too long a step
        ),
        space=_space(EF21),
    ),
    Theorem(
        name="error-feedback",
        title="Error feedback, strongly convex",
        quantity=DELAYED,
        bound=error_feedback,
        read=_read_ef,
        sample=_delayed,
        exact=deterministic(_delayed),
        tolerance=_delayed_rounding,
        statement=STATEMENT,
        says="Classical error feedback has the step and the rate of EF21, where clients share a minimiser.",
        loose="Attained by one client in the first rounds; with several minimisers it does not hold.",
        method=tight(ErrorFeedback),
        rounds=10,
        checks=(
            shared_minimiser,
            first_client(shifted_logistic),
            first_client(diabetes),
            Check(flat_diagonal, tight(ErrorFeedback), 1, 0.0),
            Check(flat_diagonal, tight(ErrorFeedback), 12, 0.0),
            Check(flat_diagonal, tight(ErrorFeedback, 1, 0.5), 3, 0.0),
            Check(one_noisy_client, tight(ErrorFeedback)),  # one feature
            Check(three_clients, rounds=20),  # several minimisers
            Check(shared_minimiser, tight(ErrorFeedback, 1, 30.0), 40),  # too long a step
        ),
        space=_space(ErrorFeedback),
    ),
)
