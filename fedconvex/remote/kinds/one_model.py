"""One model for all clients: values, gradients, sums by domain; the mean, the worst domain, a softmax of domains."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels.domain_sums import domain_sums, domains_of
from fedconvex.kernels.penalised import penalty_values
from fedconvex.kernels.row_losses import values_gradients_of
from fedconvex.loss_traits import traits
from fedconvex.methods.parts.domain_weighting import counts_of
from fedconvex.problems import Measure
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models, check_weights, or_inf, unknown
from fedconvex.simplex.uncertainty import log_sum_exp, softmax
from fedconvex.solvers.certificates.free_coordinates import convexity_gap
from fedconvex.solvers.certificates.row_rounding import EPS, allowances
from fedconvex.solvers.minimax.agnostic import largest_values


def report(problem: Any, number: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return f_k and its gradient at ``w`` (R, *model), or sums by domain where weights ``alpha`` (R, p) are asked for.

    With them come `allowances` for rounding.
    """
    w = asked.get("w", np.empty(0))
    check_models(problem.model_shape, w)
    clients = np.full((len(w), 1), number, dtype=np.int64)
    if "alpha" in asked:
        check_weights(asked["alpha"], len(w), domains_of(problem.federation).held.shape[1])
        losses, g = domain_sums(problem, w, asked["alpha"], clients)
        found = allowances(problem, w, asked["alpha"])  # and, where the server learns sums only, those of gradients
        found["error"] += (problem.federation.K + 16) * EPS * np.linalg.norm(g[:, 0].reshape(len(w), -1), axis=1)
        return {"losses": losses[:, 0], "gradient": g[:, 0], **found}
    values, G = values_gradients_of(problem, w, clients)
    return {"value": values[:, 0], "gradient": G[:, 0], **allowances(problem, w)}


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    R, shape = len(asked["w"]), problem.model_shape
    if "alpha" in asked:
        both = asked["alpha"].shape
        return {"losses": both, "gradient": (R, *shape), "error": (R,), "off": both}
    return {"value": (R,), "gradient": (R, *shape), "error": (R,), "off": (R,)}


def asked_at(method: Any, problem: Any) -> list[set[str]]:
    """Return what a certificate is measured at: by domain, too, where the method has a measure of its own."""
    return [{"w"}, {"w", "alpha"}] if hasattr(method, "measure") else [{"w"}]


def points(problem: Any, asked: Arrays, report: Arrays) -> Any:
    """Return what a report says of f, or of sums by domain."""
    W = asked["w"].reshape(len(asked["w"]), -1)
    R, g, error = len(W), report["gradient"].reshape(len(W), -1), np.abs(report["error"])
    if "alpha" in asked:
        return zip(W, report["losses"], asked["alpha"], g, np.abs(report["off"]), error, strict=True)
    return zip(W, report["value"][:, None], np.ones((R, 1)), g, np.abs(report["off"])[:, None], error, strict=True)


# ---------------------------------------------------------------- at the server


class DomainParts(NamedTuple):
    """What all clients say of the domains at R models, with what rounding may have done to it."""

    F: np.ndarray  # (R, p)
    g: np.ndarray  # (R, size) of a weighted sum of them
    error: np.ndarray  # (R,) of g, in norm
    off: np.ndarray  # (R,) of every F_k


def measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return F of R models, and gaps by strong convexity or from the least value of the loss."""
    reports = roster.asked(w)
    if reports is None or roster.impossible([a["value"] for a in reports], traits(roster.loss).lower_bound):
        return None
    p, R = roster.weights if roster.secure is None else np.ones(1), len(w)  # of sums, clients have weighed their parts
    values, G = np.array([a["value"] for a in reports]), np.array([a["gradient"].reshape(R, -1) for a in reports])
    value, g = np.einsum("k,kr->r", p, values), np.einsum("k,krj->rj", p, G)
    if roster.penalty is not None:
        return Measure(value + penalty_values(roster, w.reshape(R, -1)), np.full(R, np.inf))
    error, off = (np.einsum("k,kr->r", p, np.array([a[name] for a in reports])) for name in ("error", "off"))
    few = (len(p) + 16) * EPS  # sums over clients, and the bound itself
    error = np.abs(error) + few * np.einsum("k,kr->r", p, np.linalg.norm(G, axis=2))
    off = np.abs(off) + few * np.einsum("k,kr->r", p, np.abs(values))
    gap = np.minimum(_by_convexity(roster, g, error), value - traits(roster.loss).lower_bound) + off
    return Measure(value, or_inf(gap))


def _by_convexity(roster: Any, g: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return ‖g‖^2/(2 l2) of R gradients that may be off by so much, inf without l2."""
    l2 = roster.strong_convexity
    if l2 <= 0.0:
        return np.full(len(g), np.inf)
    return convexity_gap(g, error, l2)


def domain_parts(roster: Any, w: np.ndarray, mix: np.ndarray) -> DomainParts | None:
    """Return the domains' objectives, and the gradients of their sums weighted by mix (R, p)."""
    counts = counts_of(roster)
    reports = roster.asked(w, mix / counts)
    least = 0.0 if traits(roster.loss).lower_bound >= 0.0 else -np.inf  # of a sum over rows
    if reports is None or roster.impossible([a["losses"] for a in reports], least):
        return None
    W, few = w.reshape(len(w), -1), (roster.federation.K + 16) * EPS
    G, ridge = [a["gradient"].reshape(len(w), -1) for a in reports], roster.rowless.ridge_terms(W)[:, None]
    F = sum(a["losses"] for a in reports) / counts + ridge
    off = sum(np.abs(a["off"]) + few * np.abs(a["losses"]) for a in reports) / counts + 4.0 * W.shape[1] * EPS * ridge
    pull = mix.sum(axis=1, keepdims=True) * roster.rowless.ridge * W
    error = sum(np.abs(a["error"]) for a in reports) + few * sum(np.linalg.norm(g, axis=1) for g in [*G, pull])
    return DomainParts(F, sum(G) + pull, error, off.max(axis=1) + few * np.abs(F).max(axis=1))


def measure_minimax(
    roster: Any, uncertainty_set: Any, w: np.ndarray, domain_weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return max over Lambda of lambda'F(w), and its gap to the lower bound at the domain weights, (R,) each."""
    parts = domain_parts(roster, w, domain_weights)
    if parts is None:
        return unknown(w)
    value, least = largest_values(uncertainty_set, parts.F), traits(roster.loss).lower_bound
    lower = np.einsum("rp,rp->r", domain_weights, parts.F) - _by_convexity(roster, parts.g, parts.error)
    return value, or_inf(np.maximum(value - np.maximum(lower, least), 0.0) + 2.0 * parts.off)


def measure_softmax(roster: Any, mu: float, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (1/mu) log sum exp(mu F_k(w)), and its gap by strong convexity, (R,) each.

    For any q on the simplex the objective is at least q'F - (1/mu) sum q log q, whose gradient is that of q'F.
    """
    first = domain_parts(roster, w, np.zeros((len(w), counts_of(roster).size)))
    q = None if first is None else softmax(first.F, mu)
    second = None if q is None else domain_parts(roster, w, q)
    if second is None or q is None:
        return unknown(w)
    value, p = np.asarray(log_sum_exp(second.F, mu)), q.shape[1]
    entropy = -np.sum(q * np.log(np.maximum(q, np.finfo(float).tiny)), axis=1) / mu
    short = np.maximum(value - np.einsum("rp,rp->r", q, second.F) - entropy, 0.0)
    few = 8.0 * (p + 2) * EPS * (np.abs(value) + np.log(p) / mu)
    gap = np.minimum(short + _by_convexity(roster, second.g, second.error), value - traits(roster.loss).lower_bound)
    return value, or_inf(gap + 2.0 * second.off + few)


KIND = Kind(
    report,
    shapes,
    measure,
    asked_at,
    {"measure_minimax": measure_minimax, "measure_softmax": measure_softmax},
    points,
    audited=lambda problem, worked: problem,
    plain=True,
)
