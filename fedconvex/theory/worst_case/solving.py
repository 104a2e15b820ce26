"""The programme solved: attempts of several solvers, each judged by its certificates alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.solvers import conic
from fedconvex.theory.worst_case.programme import Programme
from fedconvex.theory.worst_case.programme_bounds import (
    Feasible,
    factor,
    feasible_point,
    inner_point,
    reach,
    trace_bound,
    upper_bound,
)

GAP = 1e-6, 1e-5  # certified gap, relative to the value, that ends the search: in the quick attempts, in the others
QUICK = 2


class Best(NamedTuple):
    """The best that the attempts found."""

    objective: float  # the solver's own
    point: Feasible  # attains the lower certificate
    upper: float  # certified
    solver: str
    status: str


class Attempt(NamedTuple):
    """A solver at a tolerance.

    ``tighten`` pulls the primal constraints in, so that inaccurate points stay feasible. ``whiten`` changes the basis
    so that the strictly feasible Gram matrix becomes the identity, and scales the inequalities: slower, and better
    where all iterates lie close together (small steps).
    """

    name: str
    solver: str
    options: dict[str, Any]
    tighten: float = 0.0
    whiten: bool = False


def _clarabel(tol: float, tighten: float = 0.0, whiten: bool = False) -> Attempt:
    options = {"tol_gap_abs": tol, "tol_gap_rel": tol, "tol_feas": tol}
    name = f"Clarabel {tol:g}" + (", tightened" if tighten else "") + (", whitened" if whiten else "")
    return Attempt(name, "CLARABEL", options, tighten, whiten)


ATTEMPTS = (
    _clarabel(1e-11),
    _clarabel(1e-9, tighten=1e-9),
    _clarabel(1e-11, whiten=True),
    _clarabel(1e-7, tighten=1e-8),
    _clarabel(1e-6, tighten=1e-7),
    Attempt("SCS 1e-7", "SCS", {"eps_abs": 1e-7, "eps_rel": 1e-7, "max_iters": 20_000}, 1e-7),
)


class Answer(NamedTuple):
    """What a solver says."""

    G: np.ndarray
    f: np.ndarray
    y: np.ndarray  # multipliers of the inequalities
    w: np.ndarray  # weights of the objectives
    status: str


def solve(p: Programme, attempt: Attempt, inner: tuple[np.ndarray, np.ndarray], trace: bool = False) -> Answer | None:
    """Solve the dual of a programme, or of the same with the trace of G for its objective.

    Minimise b'y subject to sum_j y_j A_j - sum_s w_s C_s >= 0, sum_j y_j a_j = sum_s w_s c_s, sum_s w_s = 1, y, w >= 0.
    The dual has far fewer variables than the Gram matrix has entries, and both solvers return (G, f) as its
    multipliers. None if the solver gives up.
    """
    import cvxpy as cp
    from scipy.sparse import csr_array

    n, count = p.gram, len(p.b)
    A, scale, R = p.A, np.ones(count), np.eye(n)
    C, c = (np.eye(n)[None], np.zeros((1, p.count))) if trace else (p.C, p.c)
    b = p.b - np.minimum(attempt.tighten, 0.01 * p.slack(*inner))
    if attempt.whiten:
        if not inner[0].any():
            return None
        R = _root(inner[0].T @ inner[0])
        A, C = R @ A @ R.T, R @ C @ R.T  # <A, R'H R> = <R A R', H>
        scale = 1.0 / np.sqrt(np.einsum("jkl,jkl->j", A, A))
    y, w = cp.Variable(count, nonneg=True), cp.Variable(len(C), nonneg=True)
    left = csr_array((A.reshape(count, n * n) * scale[:, None]).T) @ y - C.reshape(len(C), n * n).T @ w
    slack = cp.reshape(left, (n, n), order="C") >> 0
    flow = csr_array((p.a * scale[:, None]).T) @ y - c.T @ w == 0.0
    problem = cp.Problem(cp.Minimize((b * scale) @ y), [slack, flow, cp.sum(w) == 1.0])
    if not conic.attempt(problem, solver=attempt.solver, **attempt.options):
        return None
    if y.value is None or w.value is None or slack.dual_value is None or flow.dual_value is None:
        return None
    return Answer(R.T @ slack.dual_value @ R, -flow.dual_value, y.value * scale, w.value, str(problem.status))


def _root(G: np.ndarray, floor: float = 1e-6) -> np.ndarray:
    """Return a regular R with R'R near G: small eigenvalues of the correlation matrix are raised to ``floor``."""
    d = np.sqrt(np.diag(G))
    lam, U = np.linalg.eigh(G / np.outer(d, d))
    return np.asarray((U * np.sqrt(np.maximum(lam, floor * lam[-1]))) @ U.T * d)


class TraceBound:
    """A bound on the trace of G: from lengths, or, where that is not enough, from a programme of its own."""

    def __init__(self, programme: Programme, inner: tuple[np.ndarray, np.ndarray]) -> None:
        self._programme, self._inner = programme, inner
        self.value, self._solved = reach(programme), False

    def upper(self, answer: Answer) -> float:
        """Return the certified upper bound of an answer."""
        p = self._programme
        free, paid = (upper_bound(p, answer.y, answer.w, trace) for trace in (0.0, self.value))
        if not self._solved and paid - free > 1e-8 * abs(free):
            self._solved = True
            for attempt in (_clarabel(1e-7), _clarabel(1e-7, whiten=True)):
                found = solve(p, attempt, self._inner, trace=True)
                if found is not None:
                    self.value = min(self.value, trace_bound(p, found.y))
                if math.isfinite(self.value):
                    break
            return upper_bound(p, answer.y, answer.w, self.value)
        return paid


def search(programme: Programme, inner: tuple[np.ndarray, np.ndarray] | None = None) -> Best:
    """Try the attempts in turn until the certified gap is small; keep the best of each certificate.

    ``inner`` is a strictly feasible point, basis vectors and values; default `inner_point`.
    """
    if programme.gram == 0:  # runs start at a minimiser of every client, and stay
        still = Feasible(0.0, np.zeros((1, 0)), np.zeros(programme.count))
        return Best(0.0, still, 0.0, "none", "nothing moves")
    inner = inner_point(programme) if inner is None else inner
    trace = TraceBound(programme, inner)
    found = Feasible(-math.inf, *inner)
    objective, upper, error, solver, status = math.nan, math.inf, math.inf, "none", "failed"
    for number, attempt in enumerate(ATTEMPTS):
        if upper - found.value <= GAP[number >= QUICK] * upper < math.inf:
            break
        answer = solve(programme, attempt, inner)
        if answer is None or not all(np.isfinite(part).all() for part in answer[:4]):
            continue
        above, below = trace.upper(answer), feasible_point(programme, answer.G, answer.f, inner)
        if above - below.value < error or solver == "none":
            error, objective = above - below.value, programme.value(factor(answer.G), answer.f)
            solver, status = attempt.name, answer.status
        upper, found = min(upper, above), max(found, below, key=lambda point: point.value)
    if solver == "none":
        raise RuntimeError(
            f"worst_case: Clarabel and SCS failed on a Gram matrix of {programme.gram}: the worst case is infinite, or "
            "take a smaller step_size or a smaller case"
        )
    return Best(objective, found, upper, solver, status)
