"""The minimum of a negative log partial likelihood N, certified by self-concordance.

|N'''[v, v, v]| <= q N''[v, v] with q the largest difference of x'v within a risk set, because N is a sum of logarithms
of sums of exponentials. Let J be the Hessian at w, lambda^2 = g'J^-1 g, and kappa a bound of the lengths
(d'J^-1 d)^(1/2) of differences d within risk sets, so that q <= kappa ‖v‖_J. If rho = kappa lambda < 1, then N has a
minimiser, and N(w) - min N <= (rho + (1 - rho) log(1 - rho))/kappa^2 (Sun and Tran-Dinh 2019, nu = 2). Features are
centred in strata, so twice the longest x'J^-1 x will do for kappa.

Rounding is allowed for: in g, entry by entry, and in J, whose least eigenvalue (columns scaled to a unit diagonal) must
exceed the error; lambda and kappa grow accordingly.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

from fedconvex.families.survival.risk_sets import Pass
from fedconvex.methods.parts import newton_steps
from fedconvex.solvers.solution import EPS, Solution

_MOST = 200  # Newton steps
_CHUNK = 1 << 12  # rows at once


class Certified(NamedTuple):
    """What is known of N(w) - min N at a model w."""

    gap: float  # N(w) - min N <= gap, but for the rounding of values; inf where nothing is certified
    decrement: float  # a bound of lambda
    kappa: float  # a bound of the lengths of differences within risk sets
    definite: bool  # whether J is positive definite beyond rounding

    @property
    def attained(self) -> bool:
        """Whether a minimiser is proved to exist."""
        return math.isfinite(self.gap)


def fitted(problem: Any, w: np.ndarray, goal: float | None, began: float) -> Solution:
    """Minimise from w, until half the squared decrement is at most the goal, or rounding stops the progress."""
    state, asked = newton_steps.start(w[None]), 0
    while asked < _MOST and not state.settled[0]:
        N, g, J = problem.totals(state.trial[0])
        state = newton_steps.absorb(state, np.array([N]), g[None], J[None])
        asked += 1
        if state.accepted[0] and 0.5 * state.decrement[0] <= (1e-21 if goal is None else goal):
            break
    w, total = state.w[0], float(problem.federation.masses.sum())
    known, off = certified(problem, w), problem.rounding(w)
    value, least = float(state.value[0]), problem.least
    lower = max(value - known.gap - off, least) if known.attained else least
    origin = "self-concordance (Sun and Tran-Dinh 2019)" if known.attained else _why(problem)
    return Solution(
        w.copy(), value / total, lower / total, origin, known.attained, known.attained, asked,
        time.perf_counter() - began, rounding=off / total, problem=problem,
    )  # fmt: skip


def _why(problem: Any) -> str:
    """Return what the trivial lower bound is, and why there is no better one."""
    bound = "N >= sum log d!" if problem.efron else "N >= sum d log d"
    J = problem.totals(np.zeros(problem.size))[2]  # v'J v = 0 only where x'v is constant in every risk set
    if newton_steps.newton_direction(J, np.zeros(problem.size))[2] < problem.size:
        return f"{bound} (columns are constant or collinear within risk sets)"
    return f"{bound} (no minimiser is known to exist: the likelihood may be monotone)"


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def certified(problem: Any, w: np.ndarray) -> Certified:
    """Return the certificate at a model (p,)."""
    risk, p = problem.risk, problem.size
    parts = problem.passes(w)
    g, J = np.sum([part.gradient for part in parts], axis=0), np.sum([part.hessian for part in parts], axis=0)
    scale = np.sqrt(np.diagonal(J))
    nothing = Certified(math.inf, math.inf, math.inf, False)
    if not (np.isfinite(J).all() and (scale > 0.0).all()):
        return nothing
    S = J / scale / scale[:, None]
    lam, V = np.linalg.eigh(0.5 * (S + S.T))
    error, moved = _rounding(problem, w, parts, scale)
    lost = (moved + 8.0 * p * EPS * lam[-1]) / lam[0] if lam[0] > 0.0 else math.inf
    if not lost < 0.5:
        return nothing
    root = V / np.sqrt(lam)  # of S^-1
    grown = 1.0 / math.sqrt(1.0 - lost)
    decrement = grown * float(np.linalg.norm((g / scale) @ root) + np.linalg.norm(np.abs(root).T @ (error / scale)))
    longest = 0.0
    for lo in range(0, len(risk.X), _CHUNK):
        far = risk.X[lo : lo + _CHUNK] @ (root / scale[:, None])
        longest = max(longest, float(np.einsum("ij,ij->i", far, far).max()))
    kappa = 2.0 * grown * math.sqrt(longest) * (1.0 + 1e-12) + 1e-300
    return Certified(_gap(kappa, decrement), decrement, kappa, True)


def _gap(kappa: float, decrement: float) -> float:
    """(rho + (1 - rho) log(1 - rho))/kappa^2, rho = kappa lambda; inf from rho = 1 on."""
    rho = kappa * decrement
    if not rho < 1.0:
        return math.inf
    if rho < 1e-2:  # lambda^2/2 (1 + rho/3 + rho^2/6 + ...)
        return 0.5 * decrement**2 * (1.0 + rho / 3.0 / (1.0 - rho)) * (1.0 + 1e-12)
    return (rho + (1.0 - rho) * math.log1p(-rho)) / kappa**2 * (1.0 + 1e-9)


def _rounding(problem: Any, w: np.ndarray, parts: list[Pass], scale: np.ndarray) -> tuple[np.ndarray, float]:
    """Return bounds of what rounding does to g, (p,), and to J scaled to a unit diagonal, in norm."""
    risk, p = problem.risk, problem.size
    squares, total = np.zeros(p), 0.0  # of features, times the events that are seen and expected
    for k, part in enumerate(parts):
        lo, hi, _, _ = risk.part(k)
        mass = np.abs(part.expected) + risk.event[lo:hi]
        total += float(mass.sum())
        for a in range(lo, hi, _CHUNK):
            some = risk.X[a : min(a + _CHUNK, hi)]
            squares += mass[a - lo : a - lo + len(some)] @ (some * some)
    unit = EPS * (2.0 * _longest(problem) + 32.0 + p) + 4.0 * score_rounding(problem, w)
    return unit * np.sqrt(total * squares), 2.0 * unit * float((squares / scale**2).sum())  # Cauchy and Schwarz


def _longest(problem: Any) -> float:
    """Return the number of rows of the longest stratum: summands of a risk sum."""
    return float(np.diff(problem.risk.rows).max(initial=0))


def score_rounding(problem: Any, w: np.ndarray) -> float:
    """Return how far scores of centred rows may be from the true ones, up to a constant in each stratum."""
    return (problem.size + 4.0) * EPS * float(np.abs(w) @ problem.risk.column_sizes)


def value_rounding(problem: Any, w: np.ndarray) -> float:
    """Return how far the computed N may be from the true one: of sums, logarithms and scores."""
    events, longest = float(problem.client_events.sum()), _longest(problem)
    reach = float(np.abs(w) @ problem.risk.column_sizes)
    terms = events * (2.0 * reach + math.log(longest + 1.0))
    in_sums = EPS * (longest + 16.0) * events
    return in_sums + EPS * (264.0 + events / 256.0) * terms + 2.0 * events * score_rounding(problem, w)
