"""MOCHA: rates of the dual objective with explicit constants, for inexact local solutions and dropped nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex.families.multitask.separability import DualConstants
from fedconvex.families.multitask.theorems.dual_methods import (
    NAME,
    accuracy,
    constants_of,
    constants_shown,
    dual_steps,
    dual_tolerance,
    dual_value,
    exact_of,
    first_state,
    gap_parts,
    gap_tolerance,
)
from fedconvex.families.multitask.theorems.dual_rates import (
    SOURCE,
    gain,
    of_lipschitz_losses,
    of_smooth_losses,
    spread,
)
from fedconvex.families.multitask.theorems.tasks import (
    as_tasks,
    breast_cancer_tasks,
    breast_cancer_tasks_hinge,
    one_mild_task,
    one_task,
    opposed_tasks,
    related_tasks,
    related_tasks_hinge,
    ridged_twins,
    tasks_space,
    twin_tasks,
    wide_tasks,
)
from fedconvex.methods import MOCHA, Clock, CoCoA
from fedconvex.problems import MultiTaskProblem
from fedconvex.theorems.kit import *

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "mocha_gap",
    "mocha_gap_rate",
    "mocha_lipschitz",
    "mocha_lipschitz_closed",
    "mocha_rate",
    "mocha_rounds",
    "mocha_smooth",
    "theta_bar",
]

_DUAL_SUBOPTIMALITY = Quantity(
    "E D(alpha^h) - min D, of the dual objective that is minimised", "dual suboptimality", least=0.0
)
_DUALITY_GAP = Quantity("P(W(alpha)) + D(alpha)", "duality gap", least=0.0)

STATEMENT = Statement(
    page="mocha",
    title="MOCHA's rates with explicit constants",
    scope=OF_TASKS,
    setting="""
D(alpha) = sum_t c_t sum_i l*(-alpha_i) + (1/2) sum_st Mbar_st <v_s, v_t>, v_t = c_t X_t'alpha_t, is minimised over
sum_t n_t dual variables; W(alpha) = Mbar V. In a round node t changes alpha_t by delta_t, which reduces its
subproblem G_t with sigma' to a fraction theta_t: theta_t = (G_t(delta) - min G_t)/(G_t(0) - min G_t).

Node t's subproblem, with dv = c_t X_t'delta,

    G_t(delta) = c_t sum_i l*(-alpha_i - delta_i) + <w_t, dv> + (sigma' Mbar_tt/2) ‖dv‖²,

and theta_t = (G_t(delta_t) - min G_t)/(G_t(0) - min G_t). Put D(alpha) = sum_t G_t(0) + R*(V).
""",
    assumptions="""
sigma' sum_t Mbar_tt ‖v_t‖^2 >= sum_st Mbar_st <v_s, v_t> for all alpha. Given the past, theta_t = 1 (dropped) with
probability at most p_max < 1, and E[theta_t | theta_t < 1] <= Theta_max < 1;
Thetabar = p_max + (1 - p_max) Theta_max.
Theorem 1: l is (1/mu)-smooth. Theorem 2: l is L-Lipschitz.
""",
    statement="""
eps_h = E D(alpha^h) - min D, rho = 1 - Thetabar, sigma_max = max_t c_t Mbar_tt ‖X_t‖_2^2.

Theorem 1:  eps_h <= (1 - rho s)^h eps_0,  s = mu/(mu + sigma' sigma_max),  and always
            P(W(alpha)) + D(alpha) <= (D(alpha) - min D)/s.
Theorem 2:  with N = sum_t c_t n_t, w = 2 L (or the width of the domain of l*, 1 for hinge and logistic losses) and
            C = sigma' sigma_max N w^2/2:  eps_{h+1} <= phi(eps_h), phi(e) = e - rho (e - C) for e >= 2C, else
            e - rho e^2/(4C). In closed form eps_h <= 4C/(rho (h - h0) + 2) from the first h0 with eps_h0 <= 2C.
""",
    source="""
Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017, Theorems 1 and 2, whose rounds are
stated with constants that the proofs choose; the explicit forms here and their proof are this project's.
""",
    differs="""
Weights c_t; the last iterate instead of an average in Theorem 2; the whole recursion instead of its closed form.
""",
    meaning="""
**On runs.** Clients of a problem with one model become tasks. A run without clocks and
drops on single rows is exact, all others are means over independent trajectories. What goes in:

* eps_0 from alpha = 0 and the exact solution; sigma' that the method uses, which must not be below the pencil.
* p_max: nodes that the method drops or does not ask, and, measured, nodes that work and gain nothing.
* Theta_max: the accuracy that the method asks for and is seen to reach, else the largest certified theta_t of 32
  other trajectories. The theorems ask for a bound of its mean given any past. The largest value seen is 3 to 20 times
  the mean over trajectories of any node and round (related tasks and hospitals of the suite, 2 to 10 passes, clocks
  from 0.3 and 0.5), but it is measured, not proved. Nodes that have nothing left to gain are not counted.

| name | says | tightest setting of the suite |
|---|---|---|
| `mocha-smooth` | E eps_h <= (1 - rho s)^h eps_0 | the instance above: 1.2 after one round, 2.07 after four |
| `mocha-gap` | E gap_h <= (1 - rho s)^h eps_0/s | the same, 12.4 after four rounds: there gap = eps |
| `mocha-lipschitz` | E eps_h <= phi applied h times | 6 opposed rows: falls by 1.2 where half of it is promised |

*Opposed rows*: m tasks with x = ±1 in equal numbers, y = 1,
hinge loss, `Pooled(l2)`: W = 0 throughout, every alpha rises by l2 a round, and D - min D = m (1 - h l2); Theorem 2
says m (1 - l2/2) after the first round. Divided by more than 2, C is refuted. `tests/multitask/test_verify_mocha.py`
plants this, s doubled, an unsafe sigma', accuracies and drops ignored, 1/s left out.

**Certified accuracy.** min G_t is not known, but the subproblem has a duality gap g (in
`fedconvex/solvers/kinked/dual.py`), and theta_t <= g/(g + G_t(0) - G_t(delta_t)).
""",
    proof="""
**Step 1, safety.** R*(V + dV) = R*(V) + sum <w_t, dv_t> + (1/2) sum Mbar_st <dv_s, dv_t>. If sigma' is safe the last
term is at most (sigma'/2) sum Mbar_tt ‖dv_t‖², hence D(alpha + delta) <= R*(V) + sum_t G_t(delta_t).

**Step 2, accuracy.** G_t(delta_t) = theta_t G_t(0) + (1 - theta_t) min G_t. Given the past, E theta_t <= Thetabar =
p_max + (1 - p_max) Theta_max, and min G_t <= G_t(0), so with rho = 1 - Thetabar

    E D(alpha + delta) <= D(alpha) - rho sum_t (G_t(0) - min G_t).

**Step 3, a trial point.** Let -u_i be a slope of l at z_i = x_i'w_t, so that l(z_i) + l*(-u_i) + u_i z_i = 0, and take
delta = s (u - alpha), 0 <= s <= 1. With l* mu-strongly convex (mu = 0 allowed),

    l*(-(1-s) alpha_i - s u_i) <= (1-s) l*(-alpha_i) + s l*(-u_i) - (mu/2) s (1-s) (u_i - alpha_i)²,

and ‖dv‖² <= c_t² s² ‖X_t‖² ‖u - alpha‖². The gap is sum_t c_t sum_i [l(z_i) + l*(-alpha_i) + alpha_i z_i], hence

    sum_t (G_t(0) - min G_t) >= s Gap + sum_t (c_t/2) [mu s (1-s) - sigma' c_t Mbar_tt ‖X_t‖² s²] ‖u_t - alpha_t‖².

**Theorem 1.** With sigma_max = max_t c_t Mbar_tt ‖X_t‖² and s = mu/(mu + sigma' sigma_max) the bracket is >= 0. As
Gap >= eps = D - min D,

    E eps_{h+1} <= (1 - rho s) eps_h,     Gap <= eps/s for every alpha (rho = 1: eps cannot become negative).

**Theorem 2.** mu = 0 and |u_i - alpha_i| <= w, the width of the domain of l* (2L in general; 1 for the hinge, the
smoothed hinge and the logistic loss, whose y alpha lies in [0, 1]). With N = sum c_t n_t, C = sigma' sigma_max N w²/2,

    E eps_{h+1} <= eps_h - rho max over 0 <= s <= 1 of (s eps_h - C s²),

with the maximum eps²/(4C) at s = eps/(2C) if eps <= 2C, else eps - C. phi(e) = e - rho (e - C), or e - rho e²/(4C), is
concave and increasing: expectations may be iterated. For e >= 2C, phi(e) <= (1 - rho/2) e; below, 1/phi(e) >=
1/e + rho/(4C). So eps_h <= 4C/(rho (h - h0) + 2) from the first h0 with eps_h0 <= 2C.
""",
    loose="""
**How tight.** Take m tasks with the same single row x = 1, squared loss, one model for all (`Pooled`), sigma' = m.
Exact local solutions remove errors along 1 in one round and leave the fraction 1 - s of all others: D - min D
contracts by (1 - s)² where Theorem 1 says 1 - s. A constant that is too good by a factor of 2.5 is refuted by this
instance. Nodes dropped with probability p close the difference: p + (1 - p)(1 - s)² against p + (1 - p)(1 - s),
and a single task has the duality gap eps/s.

**Exact local solutions, nobody dropped.** Then more is true: eps_{h+1} <= (1 - s)² eps_h in the place of Theorem 1, and
phi with C/2 in the place of C. Both are attained, by twin tasks and by the opposed rows, so that Theorem 1 is loose by
1/(1 - s) a round and Theorem 2 by 2 in C. *Proof.* K_st = c_s c_t Mbar_st X_s X_t', B = σ' diag(K), N = B - K >= 0
and A = μ diag(c) + K. (1) The nodes' conditions of optimality make g = -Nδ a slope of D at α + δ. (2) D is strongly
convex in A: eps_h - eps_{h+1} >= <g, -δ> + ½δ'Aδ = δ'Nδ + ½δ'Aδ and eps_{h+1} <= ½ g'A⁻¹g = ½ δ'NA⁻¹Nδ. (3) In a
basis where both are diagonal, with quotients ν: eps_h/eps_{h+1} >= 1 + min (2ν + 1)/ν² = min (1 + 1/ν)², and
ν/(1 + ν) <= max B/(B + μ diag(c)) <= 1 - s. (4) Without μ, with ω = α* - α, ω'Bω <= 2C and e = eps_{h+1}:
e <= δ'N(ω - δ) - ½(ω - δ)'K(ω - δ) <= C/2. If e > f := eps_h - e (else f >= eps_h/2), eps_h² <= 2C f: the quotient
eps_h²/f only grows when f is δ'Nδ + ½δ'Kδ and eps_h is q = δ'Bω - ½ω'Kω, with f < q/2. Let y = q²/f and S = ω'B(B -
½K)⁻¹Bω. By Cauchy-Schwarz q <= (fS)^½ - ½ω'Kω, so y + ω'Kω <= (yS)^½ by y >= 2q; but S <= ω'Bω + ω'Kω, so
(y + ω'Kω)² <= yS is impossible for y > ω'Bω. ∎

**Checks.** `tests/multitask/test_mocha_theory.py`: both theorems round by round, with the certified accuracies of the
very round in place of Thetabar, on 120 random problems (relationships from independent to pooled, both normalisations);
in expectation with nodes dropped 40 % of the time, over 100 trajectories; planted errors (s too large, an unsafe
sigma', weights left out) are found.
""",
)


def theta_bar(p_max: float, theta_max: float) -> float:
    """Return Thetabar = p_max + (1 - p_max) Theta_max, the mean local accuracy with dropped nodes.

    Parameters
    ----------
    p_max, theta_max : float
        Largest probability of dropping out, and largest Theta of who stays; in [0, 1].

    Raises
    ------
    ValueError, TypeError
        If p_max or theta_max is not in [0, 1].

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import theta_bar
    >>> theta_bar(0.5, 0.2)
    0.6
    """
    p, theta = real("p_max", p_max, low=0.0, high=1.0), real("theta_max", theta_max, low=0.0, high=1.0)
    return p + (1.0 - p) * theta


def mocha_rate(constants: DualConstants, *, theta: float = 0.0) -> float:
    """Return the factor 1 - (1 - Thetabar) s of a round in Theorem 1.

    Parameters
    ----------
    constants : DualConstants
    theta : float
        Thetabar, in [0, 1).

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_rate
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_rate(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0), theta=0.5)
    0.875
    """
    of_smooth_losses(constants, theta)
    return 1.0 - (1.0 - theta) * gain(constants)


def mocha_smooth(constants: DualConstants, *, rounds: int, start: float, theta: float = 0.0) -> Bound:
    """Return the bound of Theorem 1.

    Parameters
    ----------
    constants : DualConstants
    rounds : int
        h.
    start : float
        D(alpha^0) - min D; at alpha = 0 at most P(0) + D(0).
    theta : float
        Thetabar.

    Raises
    ------
    AssumptionError
        If the loss is not smooth, sigma' not safe, or Thetabar not in [0, 1).

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_smooth
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_smooth(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), rounds=3, start=8.0).value
    1.0
    """
    requires = of_smooth_losses(constants, theta)
    value = mocha_rate(constants, theta=theta) ** whole("rounds", rounds) * real("start", start, low=0.0)
    return Bound({"start": value}, _DUAL_SUBOPTIMALITY, SOURCE.format(1), requires)


def mocha_rounds(constants: DualConstants, *, start: float, eps: float, theta: float = 0.0) -> int:
    """Return the rounds after which Theorem 1 promises eps.

    Parameters
    ----------
    constants, start, theta
        As for `mocha_smooth`.
    eps : float
        Dual suboptimality, positive.

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_rounds
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_rounds(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), start=8.0, eps=1.0)
    3
    """
    start, eps = real("start", start, low=0.0), real("eps", eps, low=0.0, strict=True)
    rate = mocha_rate(constants, theta=theta)
    if start <= eps:
        return 0
    return 1 if rate <= 0.0 else math.ceil((math.log(start) - math.log(eps)) / -math.log(rate) - 1e-12)


def mocha_gap(constants: DualConstants, *, suboptimality: float) -> Bound:
    """Return the bound of the duality gap by the dual suboptimality, for smooth losses and any alpha.

    Parameters
    ----------
    constants : DualConstants
    suboptimality : float
        D(alpha) - min D, at least 0.

    Raises
    ------
    ValueError, TypeError
        If suboptimality is negative.

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_gap
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_gap(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), suboptimality=1.0).value
    2.0
    """
    requires = of_smooth_losses(constants, 0.0)
    value = real("suboptimality", suboptimality, low=0.0) / gain(constants)
    return Bound({"suboptimality/s": value}, _DUALITY_GAP, SOURCE.format(1), requires)


def mocha_gap_rate(constants: DualConstants, **run: Any) -> Bound:
    """Return the bound of the expected duality gap: that of `mocha_smooth`, with its arguments, over s.

    Parameters
    ----------
    constants, **run
        As for `mocha_smooth`.

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_gap_rate
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_gap_rate(DualConstants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), rounds=3, start=8.0).value
    2.0
    """
    eps = mocha_smooth(constants, **run)
    return replace(mocha_gap(constants, suboptimality=eps.value), requires=eps.requires)


def mocha_lipschitz(constants: DualConstants, *, rounds: int, start: float, theta: float = 0.0) -> Bound:
    """Return the bound of Theorem 2 by its recursion eps <- phi(eps).

    Parameters
    ----------
    constants, rounds, start, theta
        As for `mocha_smooth`.

    Raises
    ------
    AssumptionError
        If the loss is not Lipschitz, sigma' not safe, or Thetabar not in [0, 1).

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_lipschitz
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_lipschitz(DualConstants(0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0), rounds=1, start=2.0).value
    1.0
    """
    requires, C = of_lipschitz_losses(constants, theta), spread(constants)
    eps = real("start", start, low=0.0)
    for _ in range(whole("rounds", rounds)):
        eps -= (1.0 - theta) * (eps - C if eps >= 2.0 * C else eps * eps / (4.0 * C))
    return Bound({"recursion": eps}, _DUAL_SUBOPTIMALITY, SOURCE.format(2), requires)


def mocha_lipschitz_closed(constants: DualConstants, *, rounds: int, start: float, theta: float = 0.0) -> Bound:
    """Return the closed form of Theorem 2: (1 - rho/2)^h start down to 2C, then 4C/(rho (h - h0) + 2).

    Parameters
    ----------
    constants, rounds, start, theta
        As for `mocha_smooth`.

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha import mocha_lipschitz_closed
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> mocha_lipschitz_closed(DualConstants(0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0), rounds=2, start=2.0).value
    1.0
    """
    requires, C, rho = of_lipschitz_losses(constants, theta), spread(constants), 1.0 - theta
    start, h = real("start", start, low=0.0), whole("rounds", rounds)
    h0 = 0 if start <= 2.0 * C else math.ceil(math.log(start / (2.0 * C)) / -math.log(1.0 - 0.5 * rho))
    value = start * (1.0 - 0.5 * rho) ** h if h < h0 else 4.0 * C / (rho * (h - h0) + 2.0)
    return Bound({"closed": value}, _DUAL_SUBOPTIMALITY, SOURCE.format(2), requires)


# ---------------------------------------------------------------- what a run shows


def _suboptimality(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """D(alpha^h) - min D; min D = -min P."""
    best = s.problem.solve().value
    return values_along(lambda state: dual_value(state) + best, s, rounds, seed, trajectories)


def _gap(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """P(W(alpha^h)) + D(alpha^h), with W = Mbar V, where R(W) = R*(V) = <V, W>/2."""
    return values_along(lambda state: gap_parts(s, state).sum(axis=1), s, rounds, seed, trajectories)


def _read(s: Setting) -> Reading:
    is_method(NAME, s.method, MOCHA, CoCoA)
    c = constants_of(s)
    p_max, theta_max, checked = accuracy(s)
    start = float(dual_value(first_state(s))[0]) + s.problem.solve().value
    return Reading(
        {"constants": c, "rounds": s.rounds, "start": max(start, 0.0), "theta": theta_bar(p_max, theta_max)}, checked
    )


_ABOUT: dict[str, Any] = {
    "kind": MultiTaskProblem,
    "constants": constants_shown,
    "statement": STATEMENT,
    "adapt": as_tasks,
}
_PASSES: dict[str, Any] = {"method": dual_steps(epochs=2.0, sigma="pencil"), "rounds": 4}
_UNEQUAL = dual_steps(epochs=5.0, drop=0.3, clock=Clock(0.3), sigma="pencil")

THEOREMS = (
    Theorem(
        name="mocha-smooth",
        title="MOCHA, smooth losses (Smith et al., Theorem 1)",
        quantity=_DUAL_SUBOPTIMALITY,
        bound=mocha_smooth,
        read=_read,
        sample=_suboptimality,
        tolerance=lambda s, value: dual_tolerance(s),
        exact=exact_of(_suboptimality),
        says="Smooth losses: the dual suboptimality shrinks by 1 - (1 - Theta) s a round, however unequal nodes work.",
        loose="1/(1 - s) a round where all nodes solve exactly; typical rounds beat Theta, the largest measured.",
        space=tasks_space("squared", "hinge"),
        checks=(
            twin_tasks,
            related_tasks,
            breast_cancer_tasks,
            Check(related_tasks, _UNEQUAL),
            Check(breast_cancer_tasks, dual_steps(CoCoA, theta=0.3)),
            Check(twin_tasks, dual_steps(epochs=2.0, drop=0.3, sigma="pencil")),
            Check(ridged_twins, rounds=1),
            Check(ridged_twins, dual_steps(drop=0.5, sigma="pencil"), 1),
            # hypotheses that fail
            Check(related_tasks, dual_steps(sigma=1.0)),
            related_tasks_hinge,
            Check(breast_cancer, fixed_step(0.25)),
        ),
        **_ABOUT,
        **_PASSES,
    ),
    Theorem(
        name="mocha-gap",
        title="MOCHA, duality gap",
        quantity=_DUALITY_GAP,
        bound=mocha_gap_rate,
        read=_read,
        sample=_gap,
        tolerance=lambda s, value: gap_tolerance(s),
        exact=exact_of(_gap),
        says="The duality gap is at most 1/s times the dual suboptimality, hence shrinks as fast.",
        loose="As Theorem 1; the gap of a single task is 1/s times the suboptimality, that of several rarely is.",
        space=tasks_space("squared", "hinge"),
        checks=(
            twin_tasks,
            related_tasks,
            breast_cancer_tasks,
            Check(breast_cancer_tasks, _UNEQUAL),
            Check(one_task, dual_steps(drop=0.5, sigma="pencil"), 1),
            Check(one_mild_task, dual_steps(drop=0.9, sigma="pencil"), 1),
        ),
        **_ABOUT,
        **_PASSES,
    ),
    Theorem(
        name="mocha-lipschitz",
        title="MOCHA, Lipschitz losses (Smith et al., Theorem 2)",
        quantity=_DUAL_SUBOPTIMALITY,
        bound=mocha_lipschitz,
        read=_read,
        sample=_suboptimality,
        tolerance=lambda s, value: dual_tolerance(s),
        exact=exact_of(_suboptimality),
        says="For Lipschitz losses the dual suboptimality falls by halves down to 2C, then like 4C/h.",
        loose="2 in C where all nodes solve exactly; later it falls like 1/h only, where coordinates stand still.",
        space=tasks_space("hinge"),
        checks=(
            opposed_tasks,
            related_tasks_hinge,
            breast_cancer_tasks_hinge,
            wide_tasks,
            Check(related_tasks_hinge, _UNEQUAL),
            Check(opposed_tasks, rounds=1),
            Check(opposed_tasks, dual_steps(drop=0.9, sigma="pencil"), 1),
            twin_tasks,  # not Lipschitz
        ),
        **_ABOUT,
        **_PASSES,
    ),
)
