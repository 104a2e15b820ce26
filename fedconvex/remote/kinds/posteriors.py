"""Gaussian posteriors: parts of the free energy and of its gradient.

The gradient in q's mean and root is made of sums over clients, each with what rounding may do to it
(`fedconvex.solvers.posteriors.free_energy_rounding`); that in c_k's is the client's own, which answers its norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.problems import Measure
from fedconvex.remote.kinds import Arrays, Kind, Shapes, check_models
from fedconvex.solvers.certificates.row_rounding import EPS
from fedconvex.solvers.posteriors.free_energy import Rows
from fedconvex.solvers.posteriors.free_energy_rounding import Block, Parts, block_bound, root_error, some_parts
from fedconvex.solvers.posteriors.gaussians import Gaussian, divergence, natural, pack, packed_size, unpack


def report(problem: Any, k: int, asked: Arrays) -> dict[str, np.ndarray]:
    """Return a client's part of the free energy of R posteriors, its c_k adapted, and what rounding may do to it.

    What does not exist, where a precision is not positive definite, is NaN.
    """
    precision, shift = asked.get("precision", np.empty(0)), asked.get("shift", np.empty(0))
    d, rows, full = problem.federation.d, problem.rows[k], not problem.diagonal
    check_models((packed_size(d, problem.diagonal),), precision)
    check_models((d,), shift)
    sizes = shapes(problem, asked)
    out = {name: np.full(size, np.nan) for name, size in sizes.items()}
    terms = problem.federation.K + int(problem.federation.sizes.sum())
    for r in range(len(shift)):
        try:
            q = natural(unpack(precision[r], d, problem.diagonal), shift[r])
            c = None if problem.private is None else problem.adapt(q, k)
            stacks = [Gaussian(p.mean[None], p.precision[None]) for p in (q, c) if p is not None]
            blocks = [(p, root_error(p)) for p in stacks]
            if not all(np.isfinite(root).all() for _, root in blocks):
                continue
            one = Rows(*(v[None] for v in rows[:3]))
            parts, off = (
                Parts(*(v[0] for v in some)) for some in some_parts(problem.expected, one, blocks, full, terms)
            )
            value, own = parts.value, 0.0
            if c is not None:
                value = value + divergence(c, problem.private)
                block = Block(c, problem.private, *parts[1:], root_error(problem.private))
                own = block_bound(block, blocks[1][1][0], off)[0]
        except (np.linalg.LinAlgError, ValueError):
            continue
        found = value, parts.slope, pack(parts.curvature), *off[:2], pack(off.curvature), own
        for a, v in zip(out.values(), found, strict=True):
            a[r] = v
    return out


def measure(roster: Any, precision: np.ndarray, shift: np.ndarray) -> Measure | None:
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
            off = Parts(float(total["off"][r]), total["slope_off"][r], unsure)
            block = Block(q, problem.prior, total["slope"][r], H, root_error(problem.prior))
            norm = block_bound(block, root_error(q), off)[0]
        except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
            continue
        value[r] = divergence(q, problem.prior) + total["value"][r]
        square = np.square(norm) + sum(np.square(a["own"][r]) for a in reports)
        gap[r] = square * (1.0 + 4.0 * len(reports) * EPS) / (2.0 * problem.certified_tau)
    return Measure(value, np.where(np.isnan(gap) | (problem.certified_tau <= 0.0), np.inf, gap))


def shapes(problem: Any, asked: Arrays) -> Shapes:
    """Return the shapes of a report."""
    (R, P), d = asked["precision"].shape, problem.federation.d
    wide = {"slope": (R, d), "curvature": (R, P), "off": (R,), "slope_off": (R, d), "curvature_off": (R, P)}
    return {"value": (R,), **wide, "own": (R,)}


def refuses(arrays: Arrays) -> str:
    """Return why a message is not worked on, or nothing."""
    return "message/rho must lie in (0, 2)" if (arrays.get("message/rho", np.zeros(0)) >= 2.0).any() else ""


KIND = Kind(
    report,
    shapes,
    measure,
    lambda method, problem: [{"precision", "shift"}],
    weights=((1,), (0,)),
    refuses=refuses,
)
