"""Ensembles over sites: sums of losses, of their gradients and of wrong rows by domain.

With G_k the gradient of F_k at alpha and any domain weights lambda, convexity gives for beta >= 0 of sum at most B:
F(beta) >= A + M - B E, A = lambda'F, M = -lambda'G alpha, E = max(0, max_j -(lambda'G)_j), and for Phi = exp
A exp((M - B E)/A). The best lambda solves a linear programme in p + 1 unknowns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.families.boosting.problem import radius_of
from fedconvex.kernels.domain_sums import domain_sums, domains_of
from fedconvex.problems import Measure
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models, check_weights
from fedconvex.solvers.certificates.row_rounding import EPS


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return sums of losses and of rows that are wrong by domain, and the gradient of the sum weighted by alpha."""
    w, alpha = asked.get("w", np.empty(0)), asked.get("alpha", np.empty(0))
    check_models(problem.model_shape, w)
    check_weights(alpha, len(w), problem.p)
    fed = problem.federation
    losses, g = domain_sums(problem.linear, w, alpha, np.full((len(w), 1), k, dtype=np.int64))
    wrong, weight = fed.y * (fed.X @ w.T).T <= 0.0, 1.0 if fed.sample_weight is None else fed.sample_weight
    shares = np.stack([np.bincount(domains_of(fed).code, weight * row, problem.p) for row in wrong])
    return {"losses": losses[:, 0], "gradient": g[:, 0], "wrong": shares}


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    both = asked["alpha"].shape
    return {"losses": both, "gradient": (len(asked["w"]), *problem.model_shape), "wrong": both}


def points(problem: Any, asked: Arrays, report: Arrays) -> Any:
    """Return what a report says of sums of losses by domain."""
    W, R = asked["w"].reshape(len(asked["w"]), -1), len(asked["w"])
    off, g = 1e-10 * np.abs(report["losses"]), report["gradient"].reshape(R, -1)
    return zip(W, report["losses"], asked["alpha"], g, off, np.zeros(R), strict=True)


def measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return the largest of the domains' losses of R ensembles, and what it is at most above the least."""
    found = _domains(roster, w) if np.isfinite(w).all() else None
    if found is None:
        return None
    F, G, _ = found
    value = (F @ roster.vertices.T).max(axis=1)
    lower = [_lower(roster, *parts) if (parts[2] >= 0.0).all() else -np.inf for parts in zip(F, G, w, strict=True)]
    return Measure(value, np.maximum(value - np.array(lower), 0.0) + 16.0 * EPS * value * (1.0 + w.sum(axis=1)))


def _worst_errors(roster: Any, w: np.ndarray) -> np.ndarray:
    """Return the share of rows of every domain that R ensembles get wrong, (R, p); NaN where sites do not answer."""
    found = _domains(roster, w)
    return np.full((len(w), roster.p), np.nan) if found is None else found[2]


def _domains(roster: Any, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return F (R, p), their gradients (R, p, N), and shares of errors (R, p), kept for who asks at one of these w."""
    models, kept = roster.known.get("domains", ((), None))
    same = [r for r, v in enumerate(models) if len(w) == 1 and np.array_equal(v, w[0])]
    if same:
        return None if kept is None else tuple(a[same[:1]] for a in kept)  # type: ignore[return-value]
    of = np.array(roster.statistic("client_domain")).ravel()
    counts = np.bincount(of, roster.federation.masses, roster.p)
    alpha = np.tile(1.0 / counts, (len(w), 1))
    reports = roster.reports({k: {"w": w, "alpha": alpha} for k in range(of.size)})
    found = None
    if reports is not None:
        G = np.zeros((len(w), roster.p, w.shape[1]))
        for k, a in zip(of, reports, strict=True):
            G[:, k] += a["gradient"]
        F, wrong = (sum(a[name] for a in reports) / counts for name in ("losses", "wrong"))
        if np.isfinite(F).all() and np.isfinite(G).all() and (F >= 0.0).all():  # what rows can have
            found = F, G, wrong
    roster.known["domains"] = w.copy(), found
    return found


def _lower(roster: Any, F: np.ndarray, G: np.ndarray, alpha: np.ndarray) -> float:
    """Return a lower bound of the least F over sum beta <= max(100, sum alpha), from one alpha (N,)."""
    B, p = radius_of(float(alpha.sum())), F.size
    best, Z = 0.0, F @ roster.vertices.T
    for lam in (roster.vertices[Z >= Z.max()].mean(axis=0), _best_weights(F - G @ alpha, G, B, roster.vertices)):
        g, A = lam @ G, float(lam @ F)
        M, E = -float(g @ alpha), max(0.0, float((-g).max()))
        off = (roster.federation.n + alpha.size + p + 16) * EPS * A * (1.0 + float(alpha.sum()) + B)
        lower = A + M - B * E if roster.base2 else A * math.exp(min((M - B * E) / A, 0.0)) if A > 0.0 else 0.0
        best = max(best, lower - off)
    return best


def _best_weights(a: np.ndarray, G: np.ndarray, B: float, vertices: np.ndarray) -> np.ndarray:
    """Return the mix of vertices with the largest lambda'a - B E, E at least every -(lambda'G)_j; any mix bounds."""
    from scipy.optimize import linprog

    V, N = vertices, G.shape[1]
    A_ub = np.column_stack([-(V @ G).T, -np.ones(N)])
    found = linprog(
        np.append(-(V @ a), B), A_ub, np.zeros(N), np.append(np.ones(len(V)), 0.0)[None], np.ones(1), (0.0, None)
    )
    mix = np.maximum(found.x[:-1], 0.0) if found.x is not None else np.ones(len(V))
    return np.asarray(mix / mix.sum() @ V)


KIND = Kind(
    report,
    shapes,
    measure,
    lambda method, problem: [{"w", "alpha"}],
    {
        "domain_errors": lambda roster, alpha: _worst_errors(roster, np.atleast_2d(alpha))[0],
        "check_stages": lambda roster, history: roster.rowless.check_stages(history),
    },
    points,
)
