"""Scaffnew: the identity of a local step with its coin, and the rate in communications that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedconvex.methods import Scaffnew
from fedconvex.theorems.hedging import DISTANCE
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.remembered import client_gradients, mean_square, remembered
from fedconvex.theorems.parts.rounding import of_square
from fedconvex.theorems.parts.smoothness import smoothness_of_F, start_length

__all__ = ["STATEMENT", "THEOREMS", "scaffnew", "scaffnew_factor", "scaffnew_identity"]

SOURCE = "Mishchenko, Malinovsky, Stich, Richtarik 2022, ICML, Theorem 3.6 (derived anew, docs/theory/scaffnew.md)"
STEP = Quantity(
    "E Psi after the first local step of round T and its coin, given the rounds before it",
    "potential",
    Dimension.SQUARED_LENGTH,
    **FROM_MINIMUM,
)

STATEMENT = Statement(
    page="scaffnew",
    title="Scaffnew (ProxSkip over clients)",
    scope=EVERYWHERE._replace(free=STRONGLY_CONVEX),
    setting="""
Weights q_i; x_i = x, sum q_i h_i = 0. A local step: y_i = x_i - gamma (grad f_i(x_i) - h_i). A coin, the same for all:
with probability p, x_i <- sum q_j y_j and h_i <- h_i + (p/gamma) (x_i - y_i); else x_i <- y_i. A round is what lies
between two communications. h_i* = grad f_i(x*),
Psi = sum q_i ‖x_i - x*‖^2 + (gamma/p)^2 sum q_i ‖h_i - h_i*‖^2.
""",
    assumptions="Rate: every f_i is mu-strongly convex and L-smooth, 0 < gamma < 2/L. Identity: differentiable f_i.",
    statement="""
Identity. For every local step, over its coin,

    E Psi+ = sum q_i ‖(x_i - gamma grad f_i(x_i)) - (x* - gamma h_i*)‖^2 + (1 - p^2) (gamma/p)^2 sum q_i ‖h_i - h_i*‖^2.

Rate. So E Psi+ <= rho Psi, rho = max{(1 - gamma mu)^2, (1 - gamma L)^2, 1 - p^2}, and after T communications

    E ‖x - x*‖ <= (E Psi)^(1/2) of roots: E Psi^(1/2) <= (p rho/(1 - (1 - p) rho))^(T/2) Psi_0^(1/2);

from h_i = 0, Psi_0 = ‖x^0 - x*‖^2 + (gamma/p)^2 zeta_*^2.
""",
    source="""
Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: yes! Local gradient steps provably lead to communication
acceleration! Finally!", ICML 2022, Theorem 3.6 and Algorithm 2: gamma <= 1/L, 1 - min{gamma mu, p^2}, equal
weights (from memory). Identity, weights, longer steps, and the rate in communications: derived here.
""",
    differs="""
An identity in the place of an inequality, the larger range of steps, and the count: the paper's rate is one of local
steps, here it is one of communications, of whose number of local steps nothing is assumed but that coins are fair.
""",
    meaning="""
With p about (2 gamma mu)^(1/2) both parts of rho are equal, and communications are of the order of (L/mu)^(1/2): local
steps help, provably, whatever the heterogeneity. It enters once, through the start of h_i.
""",
    proof="""
**Identity.** In the norm weighted by q, averaging is an orthogonal projection P. With k = (γ/p)(h - h*), of
which P k = 0, and t = (x_i - γ∇f_i(x_i)) - (x* - γh*): y - x* = t + pk. Tails: Psi = ‖t + pk‖² + ‖k‖². Heads: x
- x* = P t, and (γ/p)(h⁺ - h*) = k - (I-P)(t + pk), so Psi = ‖P t‖² + ‖(1-p)k - (I-P)t‖² = ‖t - (1-p)k‖². Mean:
(1-p)(‖t‖² + 2p⟨t, k⟩ + (p² + 1)‖k‖²) + p(‖t‖² - 2(1-p)⟨t, k⟩ + (1-p)²‖k‖²) = ‖t‖² + (1-p)((1+p²) + p(1-p))‖k‖²
= ‖t‖² + (1-p²)‖k‖².

**Rate.** ‖t‖² ≤ max{(1-γμ)², (1-γL)²} Σ q_i‖x_i - x*‖². So ρ^{-n}Psi_n is a nonnegative supermartingale of the
local steps n, and stopped at the T-th communication, after N steps, E ρ^{-N}Psi_N ≤ Psi_0. By the
Cauchy-Schwarz inequality E Psi_N^{1/2} ≤ (E ρ^N E ρ^{-N}Psi_N)^{1/2}, and N is a sum of T geometric numbers: E
ρ^N = (pρ/(1 - (1-p)ρ))^T. ∎
""",
    loose="""
The identity nowhere. The rate is attained for p = 1, which is gradient descent, by one parabola. For p < 1 it takes the
worst of models and controls in every step, and the mean of roots: a parabola with p = 1/2 has 0.87 after one
communication.
""",
)


def scaffnew_identity(models: float, controls: float, probability: float) -> Bound:
    """Return E Psi after a local step and its coin.

    Parameters
    ----------
    models : float
        sum q_i ‖(x_i - gamma grad f_i(x_i)) - (x* - gamma grad f_i(x*))‖^2.
    controls : float
        (gamma/p)^2 sum q_i ‖h_i - grad f_i(x*)‖^2.
    probability : float
        p.

    Raises
    ------
    ValueError, TypeError
        If probability is not in (0, 1], or models or controls is negative.

    Examples
    --------
    >>> from fedconvex.theorems.scaffnew import scaffnew_identity
    >>> scaffnew_identity(1.0, 4.0, 0.5).value
    4.0
    """
    p = real("probability", probability, low=0.0, high=1.0, strict=True)
    terms = {
        "models": real("models", models, low=0.0),
        "controls": (1.0 - p * p) * real("controls", controls, low=0.0),
    }
    return Bound(terms, STEP, SOURCE, (Hypothesis("one coin for all clients", f"p = {p:g}"),))


def scaffnew_factor(constants: Constants, *, step_size: float, probability: float) -> float:
    """Return rho, by which E Psi shrinks in a local step.

    Parameters
    ----------
    constants : Constants
        L and mu of the clients.
    step_size : float
        gamma, in (0, 2/L).
    probability : float
        p of communicating after a local step, in (0, 1).

    Raises
    ------
    AssumptionError
        If a client is not strongly convex, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffnew import scaffnew_factor
    >>> round(scaffnew_factor(Constants(L=1.0, mu=0.1), step_size=1.0, probability=0.3), 6)
    0.91
    """
    gamma, p = (
        real("step_size", step_size, low=0.0, strict=True),
        real("probability", probability, low=0.0, high=1.0, strict=True),
    )
    L, mu = float(known_constants(SOURCE, constants, "L")[0]), least_convexity(SOURCE, constants)
    require(
        SOURCE,
        Hypothesis("every f_i strongly convex, 0 < mu <= L", f"mu = {mu:g}", 0.0 < mu <= L * (1.0 + 1e-12)),
        Hypothesis("gamma < 2/L (vacuous otherwise)", f"gamma L = {gamma * L:g}", gamma * L < 2.0),
    )
    return max((1.0 - gamma * mu) ** 2, (1.0 - gamma * L) ** 2, 1.0 - p * p)


def scaffnew(constants: Constants, *, step_size: float, probability: float, rounds: int) -> Bound:
    """Return the bound of E‖x - x*‖ after so many communications, from h_i = 0.

    Parameters
    ----------
    constants : Constants
        L, mu_k (or mu), D, zeta_star.
    step_size, probability : float
        gamma < 2/L, p.
    rounds : int
        T.

    Raises
    ------
    AssumptionError
        If a constant is missing, mu = 0, or the step is too long.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.scaffnew import scaffnew
    >>> constants = Constants(L=1.0, mu=0.5, D=3.0, zeta_star=2.0)
    >>> round(scaffnew(constants, step_size=1.0, probability=1.0, rounds=1).value, 6)  # gradient descent, and h_i
    1.802776
    """
    rho, T = scaffnew_factor(constants, step_size=step_size, probability=probability), whole("rounds", rounds)
    D, zeta = (float(v) for v in known_constants(SOURCE, constants, "D", "zeta_star"))
    factor = (probability * rho / (1.0 - (1.0 - probability) * rho)) ** (0.5 * T)
    reach = step_size / probability * zeta
    both = math.hypot(D, reach)
    requires = (Hypothesis("h_i = 0 at the start", f"(gamma/p) zeta_* = {reach:g}"),)
    return Bound({"start": factor * D, "controls": factor * (both - D)}, DISTANCE, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


def _chance(s: Setting) -> float:
    return float(s.method._chances(s.problem, np.arange(1))[0])


def _numbers(s: Setting) -> dict[str, float]:
    is_method(SOURCE, s.method, Scaffnew)
    stationary(SOURCE, s.problem)
    step = one_number(SOURCE, "step size", s.method.step_size)
    return {"step_size": step, "probability": _chance(s)}


def _read_rate(s: Setting) -> Reading:
    numbers = _numbers(s)
    smoothness_of_F(SOURCE, s.problem)
    return Reading({"constants": s.constants(), "rounds": s.rounds, **numbers})


class _OneStep(Scaffnew):
    """The method with one local step in every round."""

    @staticmethod
    def _steps(p: np.ndarray, draws: Draws) -> np.ndarray:
        return np.ones(p.size, dtype=np.int64)


def _before_and_after(s: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return x and h_i before the last round, y_i after its first local step, and gamma/p."""
    gamma, p = _numbers(s).values()
    earlier = list(remembered(s, s.rounds, s.seed, 1))[-2]
    size = s.problem.size
    x, (h, before, known) = earlier.state.w, np.split(earlier.rows, (size, 2 * size), axis=2)
    h = h + known * (p / gamma) * (x.reshape(1, 1, size) - before)
    one = _OneStep(step_size=gamma, probability=p)
    K = s.problem.federation.K
    memory, where = one.memory(s.problem, 1).locate(np.arange(1), np.arange(K)[None])
    memory.rows[where] = np.concatenate([h, np.zeros_like(h), np.zeros_like(known)], axis=2)
    draws = Draws(key_from_seed(0), np.arange(1), 0)
    reply, _ = one.local(s.problem, one.broadcast(one.init(s.problem, x)), np.arange(K)[None], memory, draws)
    return x, h, reply.w.reshape(1, K, size), gamma / p


def _read_identity(s: Setting) -> Reading:
    x, h, _, reach = _before_and_after(s)
    p, gamma = s.problem, float(s.method.step_size)
    best = p.solve().w[None]
    at_star = client_gradients(s, best)
    step = (x - best).reshape(1, 1, -1) - gamma * (client_gradients(s, x) - at_star)
    controls = reach**2 * float(mean_square(s, h - at_star)[0])
    return Reading({"models": float(mean_square(s, step)[0]), "controls": controls, "probability": _chance(s)})


def _after_a_coin(s: Setting, rounds: Sequence[int]) -> Found:
    """Both faces of the coin after the step of the method, the mean of them."""
    values, off = [], []
    for T in rounds:
        _, h, y, reach = _before_and_after(s._replace(rounds=T))
        best, p = s.problem.solve().w[None], _chance(s)
        at_star, q = client_gradients(s, best), s.problem.weights
        mean = np.einsum("k,rkp->rp", q, y)[:, None]
        heads = mean_square(s, np.broadcast_to(mean, y.shape) - best.reshape(1, 1, -1))
        heads = heads + reach**2 * mean_square(s, h + (mean - y) / reach - at_star)
        tails = mean_square(s, y - best.reshape(1, 1, -1)) + reach**2 * mean_square(s, h - at_star)
        values.append(float(p * heads[0] + (1.0 - p) * tails[0]))
        push = float(np.max(gradient_rounding(s.problem, np.full(1, start_length(s)))))
        each = UNIT * (start_length(s) + reach * float(np.abs(at_star).sum())) + reach * push
        off.append(of_square(values[-1], (T + 4) * each + (1.0 + reach) * minimiser_rounding(s.problem)))
    return Found(np.array(values), np.array(off))


def _distance(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    best = s.problem.solve().w
    return values_along(
        lambda state: np.linalg.norm((state.w - best).reshape(trajectories, -1), axis=1), s, rounds, seed, trajectories
    )


def _distance_rounding(s: Setting, value: float) -> float:
    """Return the errors of steps below 2/L, which add up: 1/p of them in a round, rarely many times more."""
    push = float(np.max(gradient_rounding(s.problem, np.full(1, start_length(s)))))
    gamma, p = _numbers(s).values()
    return minimiser_rounding(s.problem) + s.rounds / p**2 * (UNIT * start_length(s) + gamma * push)


def coins(share: float = 1.0, probability: float | None = None) -> MethodRule:
    """Return Scaffnew with so many times the step 2/(L + mu), and p, by default its best one."""

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> Scaffnew:
        c = problem.constants()
        gamma = share * 2.0 / (float(c.L or 1.0) + float(np.min(c.mu_k) if c.mu_k is not None else 0.0))
        mu = float(np.min(c.mu_k)) if c.mu_k is not None else 0.0
        best = math.sqrt(max(1.0 - (1.0 - gamma * mu) ** 2, 0.01))
        return Scaffnew(step_size=gamma, probability=min(best, 1.0) if probability is None else probability)

    return MethodRule(f"{share:g} times 2/(L + mu)", make)


def _coins(least: float, rounds: tuple[int, int]) -> Space:
    """Return the space of Scaffnew with p from a least one to 1."""
    knobs = {"share": Real(0.05, 1.0, 2.0)} | ({"p": Real(least, 1.0)} if least < 1.0 else {})
    return Space(
        lambda k: coins(k["share"], k.get("p", 1.0)),
        knobs,
        losses=("squared", "logistic"),
        rounds=rounds,
        weighted=True,
        tries=12,
    )


THEOREMS = (
    Theorem(
        name="scaffnew-identity",
        title="Scaffnew, one local step",
        quantity=STEP,
        bound=scaffnew_identity,
        read=_read_identity,
        exact=_after_a_coin,
        equation=True,
        statement=STATEMENT,
        says="Over its coin a local step changes the potential by exactly (1 - p²) in the controls.",
        loose="An equation.",
        method=coins(0.5, 0.3),
        rounds=3,
        checks=(
            two_parabolas[0],
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            diabetes,
            Check(breast_cancer, coins(3.0, 0.7), 1),
            Check(unequal_hessians, fixed_step(0.5)),  # another method
        ),
        space=_coins(0.05, (1, 5)),
    ),
    Theorem(
        name="scaffnew",
        title="Scaffnew, communications",
        quantity=DISTANCE,
        bound=scaffnew,
        read=_read_rate,
        sample=_distance,
        exact=deterministic(_distance),
        tolerance=_distance_rounding,
        statement=STATEMENT,
        says="In communications the distance shrinks by about 1 - p/2, p of order (mu/L)^(1/2): local steps help.",
        loose="Attained for p = 1; below, models and controls are not at their worst at once.",
        method=coins(),
        rounds=8,
        checks=(
            unequal_hessians,
            shifted_logistic,
            uneven_logistic,
            diabetes,
            Check(one_parabola[0], coins(0.5, 1.0), 2),
            Check(one_parabola[0], coins(1.8, 1.0), 2),
            Check(one_parabola[0], coins(0.3, 0.5), 1),
            Check(two_parabolas[0], coins(0.5, 0.3), 4),
            Check(steep_and_flat, coins(1.0, 0.5), 1, at_minimiser),
            Check(two_parabolas[0], coins(0.9, 1.0), 2, 30.0),
            Check(unequal_hessians, coins(1.3, 0.5)),  # too long a step
        ),
        space=_coins(1.0, (1, 20)),  # of one local step a round, where nothing is random
    ),
)
