"""IRMv1 with squared loss: the dual bound of its minimum, and how far a model is from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.problems import InvariantProblem
from fedconvex.solvers.environments.invariance import Environments, dual_bound, multiplier_matrix
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.environments import (
    ENVIRONMENTS,
    at_rounds,
    chain_environments,
    chain_in_hundreds,
    chain_in_hundredths,
    clinics,
    coloured_environments,
    descent,
)
from fedconvex.theorems.parts.environments import last_state as last
from fedconvex.theory.bound import PrecisionError

__all__ = ["STATEMENT", "THEOREMS", "irmv1_certificate", "irmv1_dual"]

NAME, SOURCE = "irmv1", "fedconvex, docs/theory/irmv1.md"
SUBOPTIMALITY = Quantity("J(w_T) - min J, min J the least of many local minima", "suboptimality", least=0.0)
_DUAL_VALUE = Quantity("D(mu) at mu_e = 1/2 + 2 lam g_e(w_T)", "dual value")

STATEMENT = Statement(
    page="irmv1",
    title="IRMv1: a dual bound, and a certificate",
    scope=OF_ENVIRONMENTS,
    setting="""
Environments e have second moments S_e, b_e, c_e; R^e(w) = w'S_e w/2 - b_e'w + c_e/2, g_e(w) = w'S_e w - b_e'w, and
J(w) = sum_e R^e(w) + lam sum_e g_e(w)^2, which is not convex. M(w) = sum_e (1/2 + 2 lam g_e(w)) S_e.
""",
    assumptions="""
lam > 0. For the dual bound M = sum_e mu_e S_e > 0, for the certificate M(w) > 0.
""",
    statement="""
Dual         D(mu) = sum_e [c_e/2 - (1/2 - mu_e)^2/(4 lam)] - h'M^{-1}h/4 <= min J, h = sum_e (1/2 + mu_e) b_e.
Certificate  with mu_e = 1/2 + 2 lam g_e(w):  J(w) - min J <= J(w) - D(mu) = grad J(w)' M(w)^{-1} grad J(w)/4.
""",
    source="""
Derived here. IRMv1: Arjovsky, Bottou, Gulrajani, Lopez-Paz, "Invariant risk minimization", 2019, Section 3.
""",
    differs="""
The paper states no bound.
""",
    meaning="""
A critical point with M(w) > 0 is the only global minimiser, in any dimension, although J is not convex. Near a local
minimum that is not global M(w) is not positive definite, and nothing is certified. D(mu) is concave in E numbers.
""",
    proof="""
**Dual.** R^e(w) = c_e/2 + (g_e(w) - b_e'w)/2. With t_e in the place of g_e(w) in the penalty, J(w) is the value at
t_e = g_e(w) of

    sum_e [c_e/2 + (g_e(w) - b_e'w)/2 + lam t_e^2 + (mu_e - 1/2)(g_e(w) - t_e)]
    = sum_e [c_e/2 + lam t_e^2 + (1/2 - mu_e) t_e] + sum_e [mu_e g_e(w) - b_e'w/2],

whatever mu, and hence at least its minimum over all w and t. The first sum is least at t_e = (mu_e - 1/2)/(2 lam), and
gives -(1/2 - mu_e)^2/(4 lam); the second is w'M w - h'w, least at w = M^{-1}h/2, and gives -h'M^{-1}h/4.

**Certificate.** At mu_e = 1/2 + 2 lam g_e(w) the first sum is least at t_e = g_e(w), so that J(w) - D(mu) is what
w'M w - h'w exceeds its minimum by: ‖2 M w - h‖^2/4 in the norm of M^{-1}. Its gradient 2 M w - h is grad J(w).
""",
    loose="""
Both are equations at the global minimiser where M > 0 there. `irmv1-certificate` is nearly one elsewhere too, because
min J is at least D. `tests/test_verify_games.py` plants half the certificate, and D with half the cost of mu.
""",
)


def irmv1_certificate(gradient: Any, multiplier: Any) -> Bound:
    """Return grad J' M^{-1} grad J/4, the bound of J(w) - min J.

    Parameters
    ----------
    gradient : array (d,)
        grad J(w).
    multiplier : array (d, d)
        M(w).

    Raises
    ------
    AssumptionError
        If M(w) is not positive definite.

    Examples
    --------
    >>> from fedconvex.theorems.irmv1 import irmv1_certificate
    >>> irmv1_certificate([2.0, 0.0], [[4.0, 0.0], [0.0, 1.0]]).value
    0.25
    """
    g, M = (
        vector("irmv1_certificate: gradient", gradient),
        matrix("irmv1_certificate: multiplier", multiplier, known=True),
    )
    if M.shape != (g.size, g.size):
        raise bad("irmv1_certificate: multiplier", f"have shape ({g.size}, {g.size})", f"{M.shape}")
    lam, V = np.linalg.eigh(M)
    definite = Hypothesis("M(w) > 0", f"least eigenvalue {lam[0]:.4g}", bool(lam[0] > 1e-10 * np.abs(lam).max()))
    checked = require(SOURCE, definite)
    return Bound({"distance": float(((V.T @ g) ** 2 / lam).sum()) / 4.0}, SUBOPTIMALITY, SOURCE, checked)


def irmv1_dual(value: float, least: float) -> Bound:
    """Return J at some point, which no D(mu) exceeds.

    Parameters
    ----------
    value : float
        The least value of J that was found.
    least : float
        Least eigenvalue of M = sum_e mu_e S_e.

    Raises
    ------
    AssumptionError
        If M is not positive definite.

    Examples
    --------
    >>> from fedconvex.theorems.irmv1 import irmv1_dual
    >>> irmv1_dual(0.5, 1.0).value
    0.5
    """
    value, least = real("irmv1_dual: value", value), real("irmv1_dual: least", least)
    definite = Hypothesis("M > 0", f"least eigenvalue {least:.4g}", least > 0.0)
    return Bound({"J": value}, _DUAL_VALUE, SOURCE, require(SOURCE, definite))


# ---------------------------------------------------------------- what a run shows


def _environments(s: Setting) -> Environments:
    problem: Any = s.problem
    quadratic = Hypothesis("squared loss", f"{problem.loss!r}", bool(problem.traits.quadratic))
    weight = Hypothesis("lam > 0", f"{problem.penalty_weight:g}", problem.penalty_weight > 0.0)
    require(NAME, quadratic, weight)
    return problem.environments


def _least(s: Setting) -> float:
    """Return the least value of J found from many starts."""
    p = _environments(s)
    return min(p.value(v) for v in s.problem.minima(5))  # type: ignore[attr-defined]


def _multiplier(p: Environments, w: np.ndarray) -> np.ndarray:
    """Return M(w), or raise where a run that diverged has left double precision."""
    with np.errstate(over="ignore", invalid="ignore"):
        M = multiplier_matrix(p, w)
    if not np.isfinite(M).all():
        size = float(np.abs(w).max())
        raise PrecisionError(
            f"{NAME} is not decided: needs a model whose squares are numbers, got ‖w_T‖_inf = {size:g}"
        )
    return M


def _read_certificate(s: Setting) -> Reading:
    p, w = _environments(s), last(s)
    return Reading({"gradient": p.gradient(w), "multiplier": _multiplier(p, w)})


def _read_dual(s: Setting) -> Reading:
    p, w = _environments(s), last(s)
    return Reading({"value": _least(s), "least": float(np.linalg.eigvalsh(_multiplier(p, w))[0])})


def _dual(s: Setting, w: np.ndarray) -> float:
    p = _environments(s)
    return dual_bound(p, 0.5 + 2.0 * p.lam * p.scale_slopes(w))


def _constants(s: Setting) -> dict[str, tuple[float, str]]:
    p = _environments(s)
    return {
        "environments": (float(len(p.c)), "given"),
        "lam": (p.lam, "given"),
        "least J": (_least(s), "the least of local minima from 5 random starts and more"),
    }


_ABOUT: dict[str, Any] = {
    "kind": InvariantProblem,
    "constants": _constants,
    "statement": STATEMENT,
    "space": ENVIRONMENTS,
}

THEOREMS = (
    Theorem(
        name="irmv1-certificate",
        title="IRMv1: how far from the global minimum",
        quantity=SUBOPTIMALITY,
        bound=irmv1_certificate,
        read=_read_certificate,
        exact=at_rounds(
            lambda s, w: _environments(s).value(w) - _least(s), lambda s, w: 2.0 * _environments(s).rounding(w)
        ),
        says="Where M(w) > 0 a model is at most grad J' M(w)⁻¹ grad J/4 above the global minimum.",
        loose="Exact up to the distance of the dual value from the minimum, which vanishes at a certified minimiser.",
        method=descent(0.02),
        rounds=20,
        checks=(
            Check(chain_environments, descent(3e-4), start=0.7),
            Check(chain_in_hundredths, descent(3e-8), start=0.7),
            Check(chain_in_hundreds, descent(3.0), start=0.7),
            Check(coloured_environments, descent(0.002), rounds=60, start=0.5),
            clinics,
            Check(coloured_environments, descent(0.002), rounds=60),  # near zero M is indefinite
            two_clients,
        ),
        **_ABOUT,
    ),
    Theorem(
        name="irmv1-dual",
        title="IRMv1: a lower bound of the global minimum",
        quantity=_DUAL_VALUE,
        bound=irmv1_dual,
        read=_read_dual,
        exact=at_rounds(_dual, lambda s, w: 2.0 * _environments(s).rounding(w)),
        says="D(mu) is at most the global minimum of J for every mu with sum mu_e S_e > 0.",
        loose="Equal at the multipliers of the global minimiser, if M > 0 there.",
        method=descent(0.02),
        rounds=20,
        checks=(
            Check(chain_environments, descent(3e-4), start=0.7),
            Check(coloured_environments, descent(0.002), rounds=60, start=0.5),
            clinics,
            Check(coloured_environments, descent(0.002), rounds=60),
        ),
        **_ABOUT,
    ),
)
