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


def certified(problem: Any, w: np.ndarray) -> Certified:
    """Return the certificate at a model (p,)."""
    parts = dict(enumerate(problem.passes(w)))
    g, J = (np.sum([getattr(part, name) for part in parts.values()], axis=0) for name in ("gradient", "hessian"))
    error, bend = rounding_of(problem, w, parts)
    known = metric(J, bend)
    if known is None:
        return Certified(math.inf, math.inf, math.inf, False)
    kappa, decrement = 2.0 * farthest(problem.risk.X, known), _decrement(known, g, error)
    return Certified(_gap(kappa, decrement), decrement, kappa, True)


def gap_of(J: np.ndarray, g: np.ndarray, error: np.ndarray, bend: np.ndarray, kappa: float) -> float:
    """Return a bound of N(w) - min N from sums over clients, with what rounding did to g (p,) and J, and kappa."""
    known = metric(J, bend) if np.isfinite(g).all() else None
    return math.inf if known is None else _gap(kappa, _decrement(known, g, error))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def metric(J: np.ndarray, bend: np.ndarray) -> np.ndarray | None:
    """Return A with d'J^-1 d <= ‖A'd‖^2 for the true J, (p, p), or None where it may be singular.

    ``bend`` (p,) bounds what rounding did to J: by at most sum_j bend_j/s_j^2 once its columns are divided by s.
    """
    scale, p = np.sqrt(np.diagonal(J)), len(J)
    if not (np.isfinite(J).all() and (scale > 0.0).all()):
        return None
    S = J / scale / scale[:, None]
    lam, V = np.linalg.eigh(0.5 * (S + S.T))
    moved = float((bend / scale**2).sum())
    lost = (moved + 8.0 * p * EPS * lam[-1]) / lam[0] if lam[0] > 0.0 else math.inf
    return V / scale[:, None] / np.sqrt(lam * (1.0 - lost)) * (1.0 + 1e-12) if lost < 0.5 else None


def farthest(X: np.ndarray, known: np.ndarray) -> float:
    """Return the largest length of a row in a metric, 1e-300 where there is none."""
    longest = 0.0
    for lo in range(0, len(X), _CHUNK):
        far = X[lo : lo + _CHUNK] @ known
        longest = max(longest, float(np.einsum("ij,ij->i", far, far).max()))
    return math.sqrt(longest) + 1e-300


def _decrement(known: np.ndarray, g: np.ndarray, error: np.ndarray) -> float:
    return float(np.linalg.norm(g @ known) + np.linalg.norm(error @ np.abs(known)))


def _gap(kappa: float, decrement: float) -> float:
    """(rho + (1 - rho) log(1 - rho))/kappa^2, rho = kappa lambda; inf from rho = 1 on."""
    rho = kappa * decrement
    if not rho < 1.0:
        return math.inf
    if rho < 1e-2:  # lambda^2/2 (1 + rho/3 + rho^2/6 + ...)
        return 0.5 * decrement**2 * (1.0 + rho / 3.0 / (1.0 - rho)) * (1.0 + 1e-12)
    return (rho + (1.0 - rho) * math.log1p(-rho)) / kappa**2 * (1.0 + 1e-9)


def rounding_of(problem: Any, w: np.ndarray, parts: dict[int, Pass]) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of what rounding does to the sum of some clients' gradients, (p,), and the ``bend`` of `metric`."""
    risk, p = problem.risk, problem.size
    squares, total = np.zeros(p), 0.0  # of features, times the events that are seen and expected
    for k, part in parts.items():
        lo, hi, _, _ = risk.part(k)
        mass = np.abs(part.expected) + risk.event[lo:hi]
        total += float(mass.sum())
        for a in range(lo, hi, _CHUNK):
            some = risk.X[a : min(a + _CHUNK, hi)]
            squares += mass[a - lo : a - lo + len(some)] @ (some * some)
    unit = EPS * (2.0 * _longest(problem) + 32.0 + p) + 4.0 * _score_rounding(problem, w)
    return unit * np.sqrt(total * squares), 2.0 * unit * squares  # Cauchy and Schwarz


def _longest(problem: Any) -> float:
    """Return the number of rows of the longest stratum: summands of a risk sum."""
    return float(np.diff(problem.risk.rows).max(initial=0))


def _score_rounding(problem: Any, w: np.ndarray) -> float:
    """Return how far scores of centred rows may be from the true ones, up to a constant in each stratum."""
    return (problem.size + 4.0) * EPS * float(np.abs(w) @ problem.risk.column_sizes)


def value_rounding(problem: Any, w: np.ndarray) -> float:
    """Return how far the computed N may be from the true one: of sums, logarithms and scores."""
    events, longest = float(problem.client_events.sum()), _longest(problem)
    reach = float(np.abs(w) @ problem.risk.column_sizes)
    terms = events * (2.0 * reach + math.log(longest + 1.0))
    in_sums = EPS * (longest + 16.0) * events
    return in_sums + EPS * (264.0 + events / 256.0) * terms + 2.0 * events * _score_rounding(problem, w)
