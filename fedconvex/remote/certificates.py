"""Certificates of what is neither one empirical risk nor a model per task, from what sites answer.

Games. The regret of player k at strategies w is at most N_k = <F_k, w^k> + B ‖F_k‖_1, F_k the gradient of its risk in
its own strategy, which it knows itself: a number a client.

Environments (IRMv1). With squared loss J is a quartic in the model, known from E xx', E xy and E y^2 of each
environment. Clients answer theirs once; gradients at d + 1 models, which they send anyway, say as much.
`fedconvex.solvers.environments.invariance` bounds min J from them.

Posteriors. The gradient of the free energy in q's mean and root is made of sums over clients, each with what rounding
may do to it (`solvers/posteriors/free_energy_rounding.py`); that in c_k's is the client's own, which answers its norm.

Ensembles. With G_k the gradient of F_k at alpha and any domain weights lambda, convexity gives for beta >= 0 of sum at
most B: F(beta) >= A + M - B E, A = lambda'F, M = -lambda'G alpha, E = max(0, max_j -(lambda'G)_j), and for Phi = exp
A exp((M - B E)/A). The best lambda solves a linear programme in p + 1 unknowns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedconvex.families.boosting.problem import radius_of
from fedconvex.loss_traits import traits
from fedconvex.problems import Measure
from fedconvex.problems.invariant import shares_of
from fedconvex.solvers.certificates.row_rounding import EPS
from fedconvex.solvers.environments import invariance
from fedconvex.solvers.environments.invariance import Environments
from fedconvex.solvers.posteriors.free_energy_rounding import Block, Off, block_bound, root_error
from fedconvex.solvers.posteriors.gaussians import divergence, natural, unpack

__all__ = [
    "measure_ensembles",
    "measure_environments",
    "measure_game",
    "measure_posteriors",
    "moments_of",
    "worst_errors",
]


def measure_game(roster: Any, w: np.ndarray) -> Measure | None:
    """Return sums of the players' risks and bounds of their regrets, of R strategies (R, K, d)."""
    total = np.ascontiguousarray(w.sum(axis=1))
    reports = roster.reports({k: {"w": total, "own": w[:, [k]].copy()} for k in range(w.shape[1])})
    if reports is None:
        return None
    value = np.sum([a["value"] for a in reports], axis=0)
    each = np.abs([a["certificate"] for a in reports]) * (1.0 + len(reports) * EPS)
    inside = (np.abs(w) <= roster.bound).all(axis=(1, 2))
    gap = each.sum(axis=0)
    return Measure(value, np.where(inside & ~np.isnan(gap), gap, np.inf))


# ---------------------------------------------------------------- environments


def moments_of(roster: Any, shares: tuple[np.ndarray, np.ndarray]) -> Environments | None:
    """Return the second moments of the environments, which clients are asked for once; None if some do not answer."""
    reports = roster.reports({k: {"moments": np.ones(1)} for k in range(roster.federation.K)})
    if reports is None:
        return None
    E, (of, q) = roster.n_environments, shares
    S, b, c = (np.zeros((E, *reports[0][name].shape)) for name in ("S", "b", "c"))
    for k, a in enumerate(reports):
        for out, name in ((S, "S"), (b, "b"), (c, "c")):
            out[of[k]] += q[k] * a[name]
    return Environments(0.5 * (S + S.transpose(0, 2, 1)), b, c, roster.penalty_weight, float(roster.federation.n))


def measure_environments(roster: Any, w: np.ndarray) -> Measure | None:
    """Return J of R models, and bounds of J - min J: from moments for squared loss, else from the least loss."""
    reports = roster.reports({k: {"w": w} for k in range(roster.federation.K)})
    if reports is None:
        return None
    (of, q), E = shares_of(roster), roster.n_environments
    parts, names = np.zeros((4, E, len(w))), ("value", "slope", "off", "slope_off")
    for k, a in enumerate(reports):
        parts[:, of[k]] += q[k] * np.array([a[name] for name in names])
    (risks, slopes), (off, around) = parts[:2], np.abs(parts[2:])
    value = risks.sum(axis=0) + roster.penalty_weight * (slopes**2).sum(axis=0)
    bent = roster.penalty_weight * ((2.0 * np.abs(slopes) + around) * around).sum(axis=0)
    off = off.sum(axis=0) + bent + 16.0 * (len(reports) + 1) * EPS * np.abs(value)
    gap = value - E * traits(roster.loss).lower_bound + off
    if traits(roster.loss).quadratic:
        gap = np.minimum(gap, _by_moments(roster, w, value + off))
    return Measure(value, np.where(np.isnan(gap), np.inf, np.maximum(gap, 0.0)))


def _by_moments(roster: Any, w: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return what the moments say of J(w) - min J, (R,), for values of J; inf where they are not known."""
    if "moments" not in roster.known:
        roster.known["moments"] = found = moments_of(roster, shares_of(roster))
        if found is not None and (np.einsum("eii->ei", found.S).min() < 0.0 or not np.isfinite(found.value(w[0]))):
            return np.full(len(w), np.inf)  # no rows have such moments
        if found is not None:
            p, unit, size = roster.known["scaled"] = found.scaled()
            roster.known["lower"] = size * invariance.best_dual_bound(p)[0] if p.b.shape[1] <= 300 else -np.inf
    if roster.known["moments"] is None:
        del roster.known["moments"]  # they are asked for again
    if "scaled" not in roster.known:
        return np.full(len(w), np.inf)
    p, unit, size = roster.known["scaled"]
    near = [size * (invariance.shortfall(p, v) + 2.0 * p.rounding(v)) for v in w / unit]
    return np.minimum(near, value - roster.known["lower"])


# ---------------------------------------------------------------- posteriors


def measure_posteriors(roster: Any, precision: np.ndarray, shift: np.ndarray) -> Measure | None:
    """Return free energies of R posteriors in packed natural parameters, the c_k adapted, and certified gaps."""
    reports = roster.reports({k: {"precision": precision, "shift": shift} for k in range(roster.federation.K)})
    if reports is None:
        return None
    problem = roster.rowless
    value, gap, d = np.full(len(shift), np.inf), np.full(len(shift), np.inf), shift.shape[1]
    total = {name: np.sum([a[name] for a in reports], axis=0) for name in reports[0]}
    for name in ("off", "slope_off", "curvature_off"):
        total[name] = np.sum([np.abs(a[name]) for a in reports], axis=0)
    for r in np.flatnonzero(np.isfinite(total["value"])):
        try:
            q = natural(unpack(precision[r], d, problem.diagonal), shift[r])
            H, unsure = (unpack(total[name][r], d, problem.diagonal) for name in ("curvature", "curvature_off"))
            off = Off(float(total["off"][r]), total["slope_off"][r], unsure)
            block = Block(q, problem.prior, total["slope"][r], H, root_error(problem.prior))
            norm = block_bound(block, root_error(q), off)[0]
        except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
            continue
        value[r] = divergence(q, problem.prior) + total["value"][r]
        square = np.square(norm) + sum(np.square(a["own"][r]) for a in reports)
        gap[r] = square * (1.0 + 4.0 * len(reports) * EPS) / (2.0 * problem.certified_tau)
    return Measure(value, np.where(np.isnan(gap) | (problem.certified_tau <= 0.0), np.inf, gap))


# ---------------------------------------------------------------- ensembles


def measure_ensembles(roster: Any, w: np.ndarray) -> Measure | None:
    """Return the largest of the domains' losses of R ensembles, and what it is at most above the least."""
    found = _domains(roster, w)
    if found is None:
        return None
    F, G, _ = found
    value = (F @ roster.vertices.T).max(axis=1)
    lower = [_lower(roster, *parts) if (parts[2] >= 0.0).all() else -np.inf for parts in zip(F, G, w, strict=True)]
    return Measure(value, np.maximum(value - np.array(lower), 0.0) + 16.0 * EPS * value * (1.0 + w.sum(axis=1)))


def worst_errors(roster: Any, w: np.ndarray) -> np.ndarray:
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
