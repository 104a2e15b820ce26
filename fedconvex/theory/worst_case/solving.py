"""The programme solved: attempts of several solvers, each judged by its certificates alone."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from fedconvex.theory.worst_case.certificates import Feasible, feasible_point, inner_point, upper_bound
from fedconvex.theory.worst_case.programme import Programme

__all__ = ["Best", "search"]

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


def solve(
    programme: Programme, attempt: Attempt, inner: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str] | None:
    """Solve the dual, minimise b'y subject to sum_j y_j A_j >= 0, sum_j y_j a_j = c, y >= 0; return (G, f, y, status).

    The dual has far fewer variables than the Gram matrix has entries, and both solvers return (G, f) as its
    multipliers. None if the solver gives up.
    """
    import cvxpy as cp
    from scipy.sparse import csr_array

    n, count = programme.gram, len(programme.b)
    A, scale, R = programme.A, np.ones(count), np.eye(n)
    b = programme.b - np.minimum(attempt.tighten, 0.01 * programme.slack(*inner))
    if attempt.whiten:
        if not inner[0].any():
            return None
        R = _root(inner[0].T @ inner[0])
        A = R @ A @ R.T  # <A, R'H R> = <R A R', H>
        scale = 1.0 / np.sqrt(np.einsum("jkl,jkl->j", A, A))
    y = cp.Variable(count, nonneg=True)
    slack = cp.reshape(csr_array((A.reshape(count, n * n) * scale[:, None]).T) @ y, (n, n), order="C") >> 0
    flow = csr_array((programme.a * scale[:, None]).T) @ y == programme.c
    problem = cp.Problem(cp.Minimize((b * scale) @ y), [slack, flow])
    try:
        with warnings.catch_warnings():  # "may be inaccurate": the certificates say how much
            warnings.simplefilter("ignore")
            problem.solve(solver=attempt.solver, **attempt.options)
    except cp.SolverError:
        return None
    if y.value is None or slack.dual_value is None or flow.dual_value is None:
        return None
    return R.T @ slack.dual_value @ R, -flow.dual_value, y.value * scale, str(problem.status)


def _root(G: np.ndarray, floor: float = 1e-6) -> np.ndarray:
    """Return a regular R with R'R near G: small eigenvalues of the correlation matrix are raised to ``floor``."""
    d = np.sqrt(np.diag(G))
    lam, U = np.linalg.eigh(G / np.outer(d, d))
    return np.asarray((U * np.sqrt(np.maximum(lam, floor * lam[-1]))) @ U.T * d)


def search(programme: Programme) -> Best:
    """Try the attempts in turn until the certified gap is small; keep the best of each certificate."""
    inner = inner_point(programme)
    found = Feasible(-math.inf, *inner)
    objective, upper, error, solver, status = math.nan, math.inf, math.inf, "none", "failed"
    for number, attempt in enumerate(ATTEMPTS):
        if upper - found.value <= GAP[number >= QUICK] * upper < math.inf:
            break
        answer = solve(programme, attempt, inner)
        if answer is None or not all(np.isfinite(part).all() for part in answer[:3]):
            continue
        G, f, y, words = answer
        above, below = upper_bound(programme, y), feasible_point(programme, G, f, inner)
        if above - below.value < error:
            error, objective = above - below.value, float(programme.c @ f)
            solver, status = attempt.name, words
        upper, found = min(upper, above), max(found, below, key=lambda point: point.value)
    if not math.isfinite(upper):
        raise RuntimeError(
            f"worst_case: Clarabel and SCS failed on a Gram matrix of {programme.gram}: try a smaller step_size or case"
        )
    return Best(objective, found, upper, solver, status)
