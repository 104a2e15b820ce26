"""Cox models over sites: a client's value, gradient and Hessian, and how far its rows lie from the centres of strata.

The certificate is that of `certified_fit` with the Hessian J summed over sites. J is at least the client's own Hessian
J_k, so that kappa <= 2 max_k max_i (x_i'J_k^-1 x_i)^(1/2): a number a client. Where J_k is singular it is infinite, and
then nothing but N >= 0 is certified.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.families.survival.certified_fit import farthest, gap_of, metric, rounding_of, value_rounding
from fedconvex.problems import Measure
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models
from fedconvex.solvers.solution import EPS

_CAP = 1e4  # of the reach: where it is larger, nothing is certified by it, and sums under masks stay small


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return f_k at ``w`` (R, p), its gradient and the upper triangle of its Hessian, their rounding, and the reach."""
    W = asked.get("w", np.empty(0))
    check_models(problem.model_shape, W)
    p, n, out = problem.size, float(problem.federation.masses[k]), {}
    for name, shape in _shapes(p).items():
        out[name] = np.empty((len(W), *shape))
    lo, hi, _, _ = problem.risk.part(k)
    for r, w in enumerate(W):
        with np.errstate(all="ignore"):  # of a run that diverges
            found = problem.sweep(k, w)
            errors, bend = rounding_of(problem, w, {k: found})
            known = metric(found.hessian, bend)
            parts = {"value": found.value, "gradient": found.gradient, "hessian": found.hessian[np.triu_indices(p)]}
            parts |= {
                "off": value_rounding(problem, w),
                "error": np.linalg.norm(errors),
                "errors": errors,
                "bend": bend,
            }
        for name, part in parts.items():
            out[name][r] = part / n
        out["reach"][r] = _CAP if known is None else min(farthest(problem.risk.X[lo:hi], known), _CAP)
    return out


def _shapes(p: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a report about one model; of ``error`` there is the norm, too, as of all reports."""
    one, each = ("value", "off", "error", "reach"), ("gradient", "errors", "bend")
    found: dict[str, tuple[int, ...]] = dict.fromkeys(one, ())
    return found | dict.fromkeys(each, (p,)) | {"hessian": (p * (p + 1) // 2,)}


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    return {name: (len(asked["w"]), *shape) for name, shape in _shapes(problem.size).items()}


def points(problem: Any, asked: Arrays, report: Arrays) -> Any:
    """Return what a report says of f_k."""
    ones, off = np.ones((len(asked["w"]), 1)), np.abs(report["off"])[:, None]
    return zip(
        asked["w"], report["value"][:, None], ones, report["gradient"], off, np.abs(report["error"]), strict=True
    )


def measure(roster: Any, w: np.ndarray) -> Measure | None:
    """Return F of R models, and gaps by self-concordance where all sites' Hessians are regular; else F - 0."""
    reports = roster.asked(w)
    if reports is None or roster.impossible([a["value"] for a in reports], 0.0):
        return None
    weights, n, few = roster.weights, float(roster.federation.masses.sum()), (roster.federation.K + 16) * EPS
    p = weights if roster.secure is None else np.ones(1)  # of sums, clients have weighed their parts
    each = {name: np.array([a[name] for a in reports]) for name in _shapes(roster.size)}
    total = {name: np.einsum("k,k...->...", p, a) for name, a in each.items()}
    size = {name: np.einsum("k,k...->...", p, np.abs(a)) for name, a in each.items()}
    errors, bend, reach = size["errors"] + few * size["gradient"], size["bend"], each["reach"].max(axis=0)
    if roster.secure is not None:  # masked numbers are rounded to 2^-bits, and the largest reach hides in a sum
        places = roster.federation.K * 2.0 ** -(roster.secure[0] + 1)
        errors, bend, reach = errors + 2.0 * places, bend + 2.0 * roster.size * places, reach[:] / weights.min()
    kappa = np.where(reach < _CAP, 2.0 * reach, np.inf)
    J, (rows, columns) = np.zeros((len(w), roster.size, roster.size)), np.triu_indices(roster.size)
    J[:, rows, columns] = J[:, columns, rows] = total["hessian"]
    bend = bend + roster.size * few * np.diagonal(J, axis1=1, axis2=2)
    gaps = [gap_of(n * J[r], n * total["gradient"][r], n * errors[r], n * bend[r], kappa[r]) for r in range(len(w))]
    gap = np.minimum(np.array(gaps) / n, total["value"]) + size["off"] + few * size["value"]  # N >= 0
    return Measure(total["value"], np.where(np.isnan(gap), np.inf, gap))


KIND = Kind(report, shapes, measure, lambda method, problem: [{"w"}], points=points, plain=True)
