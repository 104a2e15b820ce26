"""Environments (IRMv1): risks and slopes along rays; with squared loss, second moments.

With squared loss J is a quartic in the model, known from E xx', E xy and E y^2 of each environment. Clients answer
theirs once; gradients at d + 1 models, which they send anyway, say as much. `solvers/environments/invariance.py` bounds
min J from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels.row_losses import row_slopes, values_gradients_of
from fedconvex.loss_traits import traits
from fedconvex.problems import Measure
from fedconvex.problems.invariant import second_moments, shares_of
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models
from fedconvex.solvers.certificates.row_rounding import EPS, allowances
from fedconvex.solvers.environments import invariance
from fedconvex.solvers.environments.invariance import Environments


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return a client's second moments; or R_k and g_k at R models, with what rounding may do to its part of J."""
    fed = problem.federation
    if asked.keys() == {"moments"}:
        code = np.zeros(fed.n, dtype=np.int64)
        S, b, c = second_moments("InvariantProblem", fed, code, fed.masses[[k]])
        return {"S": S[0], "b": b[0], "c": np.asarray(c[0])}
    w = asked.get("w", np.empty(0))
    check_models(problem.model_shape, w)
    who = np.full((len(w), 1), k, dtype=np.int64)
    value, slope = (values_gradients_of(p, w, who)[0][:, 0] for p in (problem.risk, problem.scale))
    off = allowances(problem.risk, w)["off"]
    return {"value": value, "slope": slope, "off": off, "slope_off": _slope_off(problem.risk, w)}


def _slope_off(risk: Any, w: np.ndarray) -> np.ndarray:
    """Return what rounding may do to the mean of l'(z) z over a client's rows at models w (R, d): as in `rounding`."""
    fed, Z = risk.federation, np.ascontiguousarray(risk.federation.X @ w.T)
    row_slopes(risk.row_loss, Z, risk.row_labels)
    reach = np.sqrt(fed.row_norms2)[:, None] * np.linalg.norm(w, axis=1)
    share = 1.0 if risk.relative_weights is None else risk.relative_weights[:, None]
    terms = (np.abs(Z) + risk.traits.smoothness * share * reach) * reach
    return np.asarray(4.0 * (fed.n + fed.d + 16) * EPS * terms.mean(axis=0))


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


def measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return J of R models, and bounds of J - min J: from moments for squared loss, else from the least loss."""
    if not np.isfinite(w).all():
        return None
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


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    d = problem.federation.d
    if "moments" in asked:
        return {"S": (d, d), "b": (d,), "c": ()}
    return dict.fromkeys(("value", "slope", "off", "slope_off"), (len(asked["w"]),))


def asked_at(method: Any, problem: Any) -> list[set[str]]:
    """Return what a certificate is measured at."""
    return [{"w"}, {"moments"}] if traits(problem.loss).quadratic else [{"w"}]


KIND = Kind(report, shapes, measure, asked_at, audited=lambda problem, worked: problem.risk, rays=True)
