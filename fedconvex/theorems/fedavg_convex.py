"""FedAvg on convex functions: Theorem 1 of Wang et al. (2021), with its tuned step and tuned bound."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.methods import FedAvg
from fedconvex.theorems.kit import *

__all__ = [
    "PRINTED",
    "SHARPER",
    "STATEMENT",
    "THEOREMS",
    "WITHIN_REACH",
    "fedavg_convex",
    "fedavg_convex_best_step",
    "fedavg_convex_step",
    "fedavg_convex_tuned",
    "tuned_step",
]

PRINTED = (2.0, 2.0, 5.0, 19.0)
SHARPER = (2.0, 1.5, 4.5, 18.5)
SOURCE = "Wang et al. 2021, arXiv:2107.06917, Theorem 1"

STATEMENT = Statement(
    page="fedavg_convex",
    title="FedAvg on convex functions",
    scope=EVERYWHERE,
    setting="""
M clients of equal weight, F = (1/M) sum F_i; all of them take part in each of T rounds; tau local SGD steps of one
constant size eta with fresh mini-batches; the server averages. Shadow sequence xbar^{t,k} = mean of x_i^{t,k}.
""",
    assumptions="""
Every F_i is convex and L-smooth on R^d; stochastic gradients are unbiased given the history, with variance at most
sigma^2, independently over clients; sup_x ‖grad F_i(x) - grad F(x)‖ <= zeta for every i; D = ‖x_0 - x*‖.
""",
    statement="""
With A = mean over t < T and k = 1..tau of F(xbar^{t,k}) - F*, and 0 < eta <= 1/(4L),

(15)  E A <= D^2/(2 eta tau T) + eta sigma^2/M + 4 tau eta^2 L sigma^2 + 18 tau^2 eta^2 L zeta^2;
(16)  eta = min{1/(4L), sqrt(M) D/(sqrt(tau T) sigma), D^(2/3)/(tau^(2/3) T^(1/3) L^(1/3) sigma^(2/3)),
      D^(2/3)/(tau T^(1/3) L^(1/3) zeta^(2/3))};
(17)  E A <= 2 L D^2/(tau T) + 2 sigma D/sqrt(M tau T) + 5 (L sigma^2 D^4/(tau T^2))^(1/3)
      + 19 (L zeta^2 D^4/T^2)^(1/3).
""",
    source="""
Wang et al., "A field guide to federated optimization", arXiv:2107.06917, Section 6.1.2, Theorem 1.
""",
    differs="""
Entries of (16) with sigma = 0 or zeta = 0 drop out (the printed minimum divides by zero). Inserting (16) in (15)
gives 2, 3/2, 9/2, 37/2, which the paper rounds to 2, 2, 5, 19: pass ``factors=SHARPER``.
``fedavg_convex_best_step`` minimises (15) itself.
""",
    meaning="""
It speaks about an average over all local steps of all rounds, of models that nobody holds during a
round; not about the last model. A run measures it with `FedAvg(..., shadow=True)` and the trace's `shadow_value`. The
four terms are the start, the noise that averaging divides by M, and two prices of local steps: noise drift and
heterogeneity drift.

**When it applies.** ζ must be finite. For logistic regression with a common l2 it is, on all of R^d. For least
squares it is infinite unless all clients have the same Hessian; take a ball (and check that the run stays inside), or
`fedavg_at_optimum`. Mini-batches must be drawn afresh at every step: passes over a shuffled order (`epochs=`) are not
unbiased given the history.
""",
    proof="""
Per round; the statement is machine-checked in public, the constants below are R1's, which are smaller:
see [fedavg_refined](fedavg_refined.md). Inserting (16) in (15): 1/η is at most the sum of the four reciprocals, so
the start term gives 2, 1/2, 1/2, 1/2 times the terms of (17); each other term of (15) is increasing in η and at most
its value at its own entry of (16): 1, 4, 18. Sums: 2, 3/2, 9/2, 37/2. `factors=SHARPER` uses them; the paper rounds
up.
""",
    loose="""
The start term is sharp to a factor: without noise and heterogeneity the worst case is LD²/(2(1
+ ηL(τT+1))). The constant 18 is not: R1 proves less than 4/9 at η = 1/(4L), a factor above 40, and vanishes at τ = 1.
An instance that attains 1/56 (τ = 2) and 0.042 (many local steps) in the place of 18 is in
`test_planted_drift_constant_four_times_too_small`. For M = τ = 2, L = D = 1, σ = 0, η = 1/4, T = 1:

| ζ | exact worst case | R1# | R1 | (15) | (17) |
|---|---|---|---|---|---|
| 0 | 0.2857 | 1.0000 | 1.0000 | 1.0000 | 1.0000 |
| 0.1 | 0.2858 | 1.0002 | 1.0002 | 1.0450 | 5.0934 |
| 0.5 | 0.2868 | 1.0039 | 1.0052 | 2.1250 | 12.9692 |
| 1 | 0.2895 | 1.0156 | 1.0208 | 5.5000 | 20.0000 |

Of the noise drift of (17) nothing is seen: in all instances the other terms cover it. Whether (17) holds without it is
unknown. That of (15) is needed.
""",
    figure="""
Mean suboptimality of FedAvg on logistic regression beside the bounds (15) and (17). Left, over rounds: the measured
value falls from 0.11 to 0.0016, the bound settles at 1.2 at its heterogeneity term. Right, over local steps: bounds
near 1.3, measured 0.016 at the tuned step and 0.004 to 0.0004 at the largest step.
""",
    caption="""
Logistic regression, ten clients, batches of 10, 64 runs with bars of four standard errors. The start term has the
slope of the truth; the heterogeneity term, 18τ²η²Lζ² with ζ over all of R^d, soon is the bound: 80 times the measured
value after 100 rounds. Because of it the tuned step shrinks like 1/τ and local steps gain nothing, in bound and in run;
at η = 1/(4L) the same method gains ninefold from 32 of them.
""",
)


def fedavg_convex(constants: Constants, *, step_size: float, local_steps: int, rounds: int) -> Bound:
    """Return (15), the bound for a given step size.

    Parameters
    ----------
    constants : Constants
        L, D, sigma2, zeta and K.
    step_size, local_steps, rounds : float, int, int
        eta, tau, T.

    Raises
    ------
    AssumptionError
        If a constant is missing or infinite, the weights are unequal, or eta > 1/(4L).

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=0.5, K=2)
    >>> fedavg_convex(constants, step_size=0.25, local_steps=2, rounds=1).value
    2.125
    """
    eta, tau, T = local_work(step_size, local_steps, rounds)
    theorem = f"{SOURCE} (15)"
    L, D, sigma2, zeta, M, common = _constants(theorem, constants)
    step = Hypothesis("step_size <= 1/(4L)", f"step_size = {eta:g}, 1/(4L) = {_quarter(L):g}", eta * L <= 0.25)
    requires = require(theorem, *common, step)
    return Bound(_terms(L, D, sigma2, zeta, M, eta, tau, T), SHADOW_AVERAGE, theorem, requires)


def fedavg_convex_step(constants: Constants, *, local_steps: int, rounds: int) -> float:
    """Return (16), the step size that the theorem recommends.

    Parameters
    ----------
    constants : Constants
        L, D, sigma2, zeta, and K clients of equal weight.
    local_steps, rounds : int
        tau and T.

    Raises
    ------
    AssumptionError
        If a constant is missing, or the step would be 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex_step
    >>> fedavg_convex_step(Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2), local_steps=2, rounds=1)
    0.25
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    theorem = f"{SOURCE} (16)"
    L, D, sigma2, zeta, M, _ = _constants(theorem, constants)
    steps = [_quarter(L)]
    if sigma2 > 0.0 or zeta > 0.0:
        require(theorem, Hypothesis("D > 0 where sigma > 0 or zeta > 0 (the step is 0 otherwise)", f"D = {D:g}", D > 0))
    if sigma2 > 0.0:
        steps.append(math.sqrt(M / (tau * T * sigma2)) * D)
        steps.append((D**2 / (tau**2 * T * L * sigma2)) ** (1 / 3) if L > 0.0 else math.inf)
    if zeta > 0.0:
        steps.append((D**2 / (tau**3 * T * L * zeta**2)) ** (1 / 3) if L > 0.0 else math.inf)
    return min(steps)


def fedavg_convex_best_step(constants: Constants, *, local_steps: int, rounds: int) -> float:
    """Return the step size in (0, 1/(4L)] that minimises (15).

    (15) is a/eta + b eta + c eta^2, convex; its minimiser is the positive root of 2 c eta^3 + b eta^2 = a, or 1/(4L).

    Parameters
    ----------
    constants, local_steps, rounds
        As for `fedavg_convex_step`.

    Raises
    ------
    ValueError, TypeError
        If local_steps or rounds is below 1.
    AssumptionError
        If a constant is missing or negative, weights are unequal, or the best step is 0.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex, fedavg_convex_best_step
    >>> constants = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2)
    >>> eta = fedavg_convex_best_step(constants, local_steps=2, rounds=1)
    >>> round(eta, 4), round(fedavg_convex(constants, step_size=eta, local_steps=2, rounds=1).value, 4)
    (0.1202, 3.1201)
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    theorem = f"{SOURCE}, minimised (15)"
    L, D, sigma2, zeta, M, _ = _constants(theorem, constants)
    top = _quarter(L)
    a, b = D**2 / (2 * tau * T), sigma2 / M
    c = 4 * tau * L * sigma2 + 18 * tau**2 * L * zeta**2
    if b == 0.0 and c == 0.0:
        return top
    require(theorem, Hypothesis("D > 0 where sigma > 0 or zeta > 0 (the step is 0 otherwise)", f"D = {D:g}", D > 0))
    low = 0.0
    high = min((a / (2 * c)) ** (1 / 3) if c > 0.0 else math.inf, math.sqrt(a / b) if b > 0.0 else math.inf)
    for _ in range(200):  # bisection: the left side increases
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if 2 * c * middle**3 + b * middle**2 < a else (low, middle)
    return min(top, high)


def fedavg_convex_tuned(
    constants: Constants,
    *,
    local_steps: int,
    rounds: int,
    factors: tuple[float, float, float, float] = PRINTED,
    step_size: float | None = None,
) -> Bound:
    """Return (17), the bound for the step size (16).

    Parameters
    ----------
    constants : Constants
        L, D, sigma2, zeta and K.
    local_steps, rounds : int
        tau, T.
    factors : tuple
        ``PRINTED`` (2, 2, 5, 19), or ``SHARPER`` (2, 1.5, 4.5, 18.5), what (15) and (16) really give.
    step_size : float, optional
        The step that was taken: it must be (16), which is the default.

    Raises
    ------
    ValueError, TypeError
        If local_steps or rounds is below 1, or step_size not positive.
    AssumptionError
        If a constant is missing or negative, weights are unequal, or the step is another one.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.fedavg_convex import fedavg_convex_tuned
    >>> fedavg_convex_tuned(Constants(L=1.0, D=1.0, sigma2=0.0, zeta=1.0, K=2), local_steps=2, rounds=1).value
    20.0
    """
    tau, T = whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)
    theorem = f"{SOURCE} (17)"
    L, D, sigma2, zeta, M, requires = _constants(theorem, constants)
    if step_size is not None:
        step_size = real("step_size", step_size, low=0.0, strict=True)
        wanted = fedavg_convex_step(constants, local_steps=tau, rounds=T)
        tuned = math.isclose(step_size, wanted, rel_tol=1e-9)
        text = f"step_size = {step_size:g}, (16) = {wanted:g}"
        requires += require("Wang et al. 2021, Theorem 1 (17)", Hypothesis("the step size (16)", text, tuned))
    a, b, c, d = vector("factors", factors, 4).tolist()
    terms = {
        "start": a * L * D**2 / (tau * T),
        "noise": b * math.sqrt(sigma2) * D / math.sqrt(M * tau * T),
        "noise drift": c * np.cbrt(L * sigma2 * D**4 / (tau * T**2)).item(),
        "heterogeneity drift": d * np.cbrt(L * zeta**2 * D**4 / T**2).item(),
    }
    return Bound(terms, SHADOW_AVERAGE, theorem, requires)


def _constants(theorem: str, constants: Constants) -> tuple[float, float, float, float, int, tuple[Hypothesis, ...]]:
    L, D, sigma2, zeta = known_constants(theorem, constants, "L", "D", "sigma2", "zeta")
    p = client_weights(theorem, constants)
    for name, v in (("L", L), ("D", D), ("sigma2", sigma2), ("zeta", zeta)):
        if v < 0.0:
            raise AssumptionError(f"{theorem} does not apply: needs {name} >= 0, got {v}")
    requires = require(
        theorem,
        Hypothesis("every F_k convex and L-smooth", f"L = {L:g}"),
        Hypothesis("gradient noise of variance at most sigma^2, independent over clients", f"sigma^2 = {sigma2:g}"),
        Hypothesis("sup_x ‖grad F_k - grad F‖ <= zeta", f"zeta = {zeta:g}"),
        equal_weights(p, "fedavg-refined has the weighted theorem"),
        *where_taken(constants, "sigma2", "zeta"),
    )
    return float(L), float(D), float(sigma2), float(zeta), p.size, requires


def _quarter(L: float) -> float:
    return 0.25 / L if L > 0.0 else math.inf


def _terms(L: float, D: float, sigma2: float, zeta: float, M: int, eta: float, tau: int, T: int) -> dict[str, float]:
    return {
        "start": D**2 / (2.0 * eta * tau * T),
        "noise": eta * sigma2 / M,
        "noise drift": 4.0 * tau * eta**2 * L * sigma2,
        "heterogeneity drift": 18.0 * tau**2 * eta**2 * L * zeta**2,
    }


FORMULA = Formula(
    {
        "start": "D**2 / (2 * eta * tau * T)",
        "noise": "eta * sigma2 / M",
        "noise drift": "4 * tau * eta**2 * L * sigma2",
        "heterogeneity drift": "18 * tau**2 * eta**2 * L * zeta**2",
    }
)
TUNED = Formula(
    {
        "start": "2 * L * D**2 / (tau * T)",
        "noise": "2 * sqrt(sigma2) * D / sqrt(M * tau * T)",
        "noise drift": "5 * cbrt(L * sigma2 * D**4 / (tau * T**2))",
        "heterogeneity drift": "19 * cbrt(L * zeta**2 * D**4 / T**2)",
    }
)

# ---------------------------------------------------------------- read off a setting


def tuned_step(**settings: Any) -> MethodRule:
    """Return the rule that sets FedAvg's step by (16).

    Examples
    --------
    >>> from fedconvex.theorems.fedavg_convex import tuned_step
    >>> rule = tuned_step(local_steps=4)
    >>> rule.words, rule.by_rounds  # the step depends on how many rounds are run
    ('(16)', True)
    """

    def make(theorem: Theorem, problem: Problem, start: np.ndarray, rounds: int) -> FedAvg:
        method = fixed_step(**settings).make(theorem, problem, start, rounds)
        c = Setting(problem, method, rounds, start).constants()
        try:
            eta = fedavg_convex_step(c, local_steps=method.local_steps, rounds=rounds)
        except AssumptionError:  # the verdict says why
            return method
        return replace(method, step_size=eta)

    return MethodRule("(16)", make, True)


BOUNDED: dict[str, Any] = {
    "designs": ("equal", "alike", "shared"),
    "losses": ("squared", "logistic", "hinge"),
    "rounds": (1, 400),
}
_SPACE = local_sgd_space(fixed_step, 0.25, **BOUNDED)

WITHIN_REACH = (  # of exact worst cases: (M, tau, T) = (2, 2, 1..3), (2, 3, 2), (3, 2, 2), and equal clients
    Check(two_clients, fixed_step(0.25, local_steps=2), 1),
    Check(two_clients, fixed_step(0.25, local_steps=2), 3),
    Check(two_logistic_clients, fixed_step(0.25, local_steps=3), 2),
    Check(three_clients, fixed_step(0.25, local_steps=2), 2),
    Check(breast_cancer_two, fixed_step(0.25, local_steps=2), 3),
    Check(equal_clients, fixed_step(0.25, local_steps=2), 10),
    Check(equal_hessians, fixed_step(0.25, local_steps=5), 20),
    Check(diabetes_whitened, fixed_step(0.25, local_steps=5), 20),
)

THEOREMS = (
    Theorem(
        name="fedavg-convex",
        title="FedAvg, convex (15)",
        quantity=SHADOW_AVERAGE,
        bound=fedavg_convex,
        formula=FORMULA,
        read=local_sgd_reading("Wang et al. 2021, Theorem 1"),
        statement=STATEMENT,
        says="The average suboptimality of local SGD falls like 1/(tau T), up to noise and two prices of local steps.",
        loose="The factor 18 of the heterogeneity drift is over 40 times too large, and is there even for tau = 1.",
        method=fixed_step(0.25, local_steps=3, batch_size=4),
        rounds=20,
        checks=(
            shifted_logistic,
            alike_logistic,
            breast_cancer,
            Check(mean_estimation, fixed_step(0.25, local_steps=3, batch_size=2)),
            *WITHIN_REACH,
            Check(noisy_kinks[0], fixed_step(0.25, local_steps=16, batch_size=20), 4, at_minimiser),
            Check(noisy_kinks[1], fixed_step(0.25, local_steps=16, batch_size=20), 4, at_minimiser),
            Check(at_right_angles, fixed_step(0.25, local_steps=64), 1),  # zeta_* in the place of zeta would fail
            # hypotheses that fail
            Check(diabetes, fixed_step(0.25, local_steps=3)),
            Check(shifted_logistic, fixed_step(1.0, local_steps=3)),
            Check(rows_at_right_angles, fixed_step(0.25, batch_size=1), 20, all_ones),  # the noise at w* is no bound
            breast_cancer_by_size,
        ),
        worst_case=UniformUpper,
        space=_SPACE,
    ),
    Theorem(
        name="fedavg-convex-tuned",
        title="FedAvg, convex, tuned step (16), (17)",
        quantity=SHADOW_AVERAGE,
        bound=fedavg_convex_tuned,
        formula=TUNED,
        read=local_sgd_reading("Wang et al. 2021, Theorem 1 (17)"),
        statement=STATEMENT,
        says="With the step (16) the four terms balance: the price of heterogeneity falls like T^(-2/3).",
        loose="As (15), and its constants are rounded up; (16) is far smaller than the best step.",
        method=tuned_step(local_steps=3, batch_size=4),
        rounds=20,
        checks=(
            shifted_logistic,
            breast_cancer,
            Check(two_clients, tuned_step(local_steps=2), 3),
            Check(breast_cancer_two, tuned_step(local_steps=2), 3),
            Check(diabetes_whitened, tuned_step(local_steps=5), 20),
            Check(one_very_noisy_client, tuned_step(batch_size=1), 10_000, all_ones),
            Check(shifted_logistic, fixed_step(0.25, local_steps=3)),  # not the step (16)
        ),
        worst_case=UniformUpper,
        space=local_sgd_space(tuned_step, **BOUNDED),
    ),
)
