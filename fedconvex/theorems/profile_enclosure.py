"""Ends of profile-likelihood intervals: a bound from one gradient and one Hessian beside the end."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.methods import FederatedNewton
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.environments import at_rounds, last_state
from fedconvex.theory.bound import PrecisionError

__all__ = ["STATEMENT", "THEOREMS", "profile_enclosure"]

NAME, SOURCE = "profile-enclosure", "fedconvex, docs/theory/profile_enclosure.md"
QUANTILE = 3.841458820694124  # of chi2 with one degree of freedom, 95 %
END = Quantity(
    "max of v_1 over v with F(v) <= F* + q/(2n), q the 95 % quantile of chi2_1", "end of the interval",
    dimension=Dimension.LENGTH, of_minimum=True,
)  # fmt: skip

STATEMENT = Statement(
    page="profile_enclosure",
    title="Ends of profile-likelihood intervals",
    scope=Scope(holds("F is the weighted sum"), not_for("not derived"), not_for("F must be smooth")),
    setting="""
n F is minus a log-likelihood, of all clients' rows, up to a constant. The profile-likelihood interval of a'v holds the
numbers a'v with F(v) <= F* + delta, delta = q/(2n). Its upper end is e = max {a'v : F(v) <= F* + delta}.
""",
    assumptions="""
|l'''| <= c l'' for the loss of a row; F is convex with hess F(w) > 0. At a point w and for a multiplier theta > 0, with
g = grad F(w) - theta a, lambda^2 = g'H^{-1}g, H = hess F(w), kappa = c max_i (x_i'H^{-1}x_i)^(1/2):
rho = kappa lambda < 1.
""",
    statement="""
    e <= a'w + (F* + delta - F(w) + gap)/theta,
    gap = (rho + (1 - rho) log(1 - rho))/kappa^2 = lambda^2/2 (1 + rho/3 + ...).
""",
    source="""
Derived here from Sun, Tran-Dinh, "Generalized self-concordant functions", Math. Program. 178 (2019), nu = 2. The
search: Venzon, Moolgavkar, "A method for computing profile-likelihood-based confidence intervals", Applied Statistics
37 (1988).
""",
    differs="""
The literature has searches that converge to e. This is a bound at any w, however the search ended.
""",
    meaning="""
One round at a point beside the end certifies it. `analyse(intervals="profile")` moves w and theta until the bound and a
point inside agree to ten digits or more (`fedconvex/analysis/profile_ends.py`); against ends in 50 digits that is
tested in `tests/analysis/test_profile_intervals.py`. Here w is one such step from w_T, and a is the first coordinate.
""",
    proof="""
For every v with F(v) <= F* + delta: a'v = (F(v) - (F(v) - theta a'v))/theta <= (F* + delta - inf M)/theta, with
M(v) = F(v) - theta a'v. M has F's third derivatives and Hessian, so that where rho < 1 its minimum is attained and
M(w) - inf M <= gap. Hence -inf M <= gap - F(w) + theta a'w.
""",
    loose="""
An equation at w = argmin M and the theta for which F(w) = F* + delta, by duality. One step leaves a part of a percent
of the interval. `tests/test_inference_theorems.py` plants half of the gap.
""",
)


def profile_enclosure(point: float, over: float, theta: float, decrement: float, kappa: float) -> Bound:
    """Return the bound of the upper end of a profile-likelihood interval.

    Parameters
    ----------
    point : float
        a'w.
    over : float
        F(w) - F* - delta.
    theta : float
        The multiplier.
    decrement, kappa : float
        lambda and kappa of M at w.

    Raises
    ------
    AssumptionError
        If rho >= 1.

    Examples
    --------
    >>> from fedconvex.theorems.profile_enclosure import profile_enclosure
    >>> profile_enclosure(2.0, 0.0, 1.0, 0.0, 1.0).value  # F = v^2/2 at the end of F <= 2
    2.0
    >>> profile_enclosure(1.0, -1.5, 1.0, 0.0, 0.0).value  # the same F at w = 1: as 2 <= 1/(2 theta) + 2 theta
    2.5
    """
    point, over = real("profile_enclosure: point", point), real("profile_enclosure: over", over)
    theta = real("profile_enclosure: theta", theta, low=0.0, strict=True)
    lam, kappa = (
        real("profile_enclosure: decrement", decrement, low=0.0),
        real("profile_enclosure: kappa", kappa, low=0.0),
    )
    rho = kappa * lam
    near = Hypothesis("rho = kappa lambda < 1", f"rho = {rho:.4g}", rho < 1.0)
    checked = require(SOURCE, near)
    series = 0.5 * lam**2 * (1.0 + rho / 3.0 + rho**2 / (6.0 * (1.0 - rho)))  # 1/6, 1/10, ... <= 1/6
    gap = series if rho < 1e-3 else (rho + (1.0 - rho) * math.log1p(-rho)) / kappa**2
    return Bound({"point": point, "slack": -over / theta, "gap": gap / theta}, END, SOURCE, checked)


# ---------------------------------------------------------------- read off a setting


class Beside(NamedTuple):
    """A point beside the end."""

    w: np.ndarray
    F: float
    g: np.ndarray
    inverse: np.ndarray  # H^{-1}
    theta: float


def _level(s: Setting) -> float:
    return float(s.problem.solve().value) + QUANTILE / (2.0 * s.problem.federation.n)


def _derivatives(problem: Any, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    return float(problem.value(w)), np.asarray(problem.gradient(w)), np.asarray(problem.hessian(w))


def _beside(s: Setting) -> Beside:
    """Return the point one step from w_T towards the end, with its multiplier."""
    is_method(NAME, s.method, FederatedNewton)
    problem = s.problem
    stationary(NAME, problem)
    c = traits(problem.loss).self_concordance
    flat = Hypothesis("one score of a row", f"models of shape {problem.model_shape}", len(problem.model_shape) == 1)
    concordant = Hypothesis("|l'''| <= c l''", f"c = {c:g}, {problem.loss!r}", math.isfinite(c))
    require(NAME, flat, concordant)
    w = last_state(s)
    theta, level = 0.0, _level(s)
    for moved in (False, True):
        F, g, H = _derivatives(problem, w)
        least = float(np.linalg.eigvalsh(H)[0]) if np.isfinite(H).all() else math.nan
        require(NAME, Hypothesis("hess F(w) > 0", f"least eigenvalue {least:.4g}", least > 1e-12))
        inverse = np.linalg.inv(H)
        square = (2.0 * (level - F) + float(g @ inverse @ g)) / float(inverse[0, 0])
        require(NAME, Hypothesis("a multiplier theta > 0", f"theta^2 = {square:.4g}", square > 0.0))
        theta = math.sqrt(square)
        if not moved:
            w = w + inverse @ (theta * np.eye(w.size)[0] - g)
    return Beside(w, F, g, inverse, theta)


def _read(s: Setting) -> Reading:
    at = _beside(s)
    tilted = at.g - at.theta * np.eye(at.w.size)[0]
    X = np.asarray(s.problem.federation.X)
    reach = float(np.sqrt(np.einsum("ni,ij,nj->n", X, at.inverse, X).max()))
    decrement = math.sqrt(max(float(tilted @ at.inverse @ tilted), 0.0))
    kappa = traits(s.problem.loss).self_concordance * reach
    over = at.F - _level(s)
    return Reading({"point": float(at.w[0]), "over": over, "theta": at.theta, "decrement": decrement, "kappa": kappa})


def _end(s: Setting, _: np.ndarray) -> float:
    """Return the end by bisection: the largest v_1 for which F, minimised over the other coordinates, is low enough."""
    problem, level = s.problem, _level(s)
    v = np.array(problem.solve().w, dtype=np.float64)
    inside, outside = v.copy(), math.inf
    room = max(level - float(problem.value(v)), 0.0)
    step = math.sqrt(2.0 * room * np.linalg.inv(problem.hessian(v))[0, 0])
    while not math.isfinite(outside) or outside - inside[0] > 1e-13 * (abs(outside) + step):
        end = inside[0] + step if math.isinf(outside) else 0.5 * (inside[0] + outside)
        if not inside[0] < end < outside:
            what = f"{NAME} is not decided: needs a level above F* by more than rounding"
            raise PrecisionError(f"{what}, got {room:.3g} above {level:.6g}")
        v = _least_at(problem, inside, end)
        if float(problem.value(v)) <= level:
            inside, step = v, 2.0 * step if math.isinf(outside) else step
        else:
            outside = end
    return float(inside[0])


def _least_at(problem: Any, start: np.ndarray, first: float) -> np.ndarray:
    """Return the minimiser of F where the first coordinate is given, by Newton steps that F must fall along."""
    v = start.copy()
    v[0] = first
    for _ in range(40 if v.size > 1 else 0):
        F, g, H = _derivatives(problem, v)
        d = np.zeros_like(v)
        d[1:] = -np.linalg.solve(H[1:, 1:], g[1:])
        if -float(g @ d) <= 1e-22:
            break
        t = 1.0
        while float(problem.value(v + t * d)) > F and t > 1e-3:
            t *= 0.5
        v = v + t * d
    return v


def _rounding(s: Setting, _: np.ndarray) -> float:
    """Return what the gap of F* and the rounding of F, at the end and at w, move over theta."""
    best, at = s.problem.solve(), _beside(s)
    size = abs(best.value) + 1.0 / s.problem.federation.n
    return (best.gap + 32.0 * UNIT * size) / at.theta + 4.0 * UNIT * float(np.abs(at.w).max())


THEOREMS = (
    Theorem(
        name=NAME,
        title="An end of a profile-likelihood interval",
        quantity=END,
        bound=profile_enclosure,
        read=_read,
        exact=at_rounds(_end, _rounding),
        constants=lambda s: {"c": (traits(s.problem.loss).self_concordance, "declared by the loss")},
        statement=STATEMENT,
        says="One gradient and Hessian beside the end of a profile-likelihood interval bound it, if rho < 1.",
        loose="An equation at the end itself; one step from the minimum leaves a part of a percent of the interval.",
        method=given(FederatedNewton),
        rounds=10,
        space=Space(lambda k: given(FederatedNewton), {}, losses=("logistic", "logistic", "squared"), rounds=(1, 6)),
        checks=(
            two_logistic_clients,
            shifted_logistic,
            breast_cancer_two,
            unequal_hessians,
            diabetes,
            Check(shifted_logistic, rounds=3),
            Check(two_logistic_clients, rounds=1),
            noisy_kinks[1],
        ),
    ),
)
