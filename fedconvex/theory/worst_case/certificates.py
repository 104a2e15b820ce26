"""Certificates of a programme: upper bounds from any multipliers, feasible points near any solution.

docs/theory/worst_case.md, Sections 2 and 3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.theory.worst_case.heterogeneity import AtOptimum, Shift
from fedconvex.theory.worst_case.programme import Programme

__all__ = ["Feasible", "feasible_point", "inner_point", "reach", "upper_bound"]

EPS = float(np.finfo(float).eps)


class Feasible(NamedTuple):
    """A feasible point of the programme: basis vectors, whose Gram matrix it is, and function values."""

    value: float
    vectors: np.ndarray  # (d, gram)
    values: np.ndarray


def reach(p: Programme) -> tuple[float, float]:
    """Return bounds on the trace of G and on |f| over the class: docs/theory/worst_case.md, Section 3."""
    z = p.zeta * (math.sqrt(p.M - 1.0) if isinstance(p.h, AtOptimum) else 1.0)  # on ‖grad F_i(x*)‖
    stretch = max(abs(1.0 - p.eta), abs(1.0 - p.eta * p.mu))
    radius = [1.0]
    for _ in range(max(p.depth.values())):
        radius.append(stretch * radius[-1] + p.eta * z)
    own = 0.0 if isinstance(p.h, Shift) else z  # gradient of a function at the optimum
    trace, largest = 1.0 + p.M * p.zeta**2, 0.0
    for points in p.points:
        for P in points[1:]:
            R = radius[p.depth[P.x.tobytes()]]
            trace += (own + R) ** 2
            largest = max(largest, own * R + 0.5 * R**2)
    return trace, largest


def upper_bound(p: Programme, multipliers: np.ndarray) -> float:
    """Return an upper bound on the programme from any multipliers: clipped, flow repaired, residual paid for.

    c'f <= b'y - <S, G> + r'f with S = sum_j y_j A_j and r = c - sum_j y_j a_j for every y >= 0.
    """
    if not np.isfinite(multipliers).all():
        return math.inf
    y = np.maximum(multipliers, 0.0)
    r = p.c - y @ p.a
    for v, residual in enumerate(r):  # an inequality with x* moves f_v alone: a = e_v or -e_v
        y[p.star[v, residual < 0.0]] += abs(residual)
    r = p.c - y @ p.a
    S = np.einsum("j,jkl->kl", y, p.A)
    trace, largest = reach(p)
    size = float(y @ np.sqrt(np.einsum("jkl,jkl->j", p.A, p.A)))
    rounding = EPS * (len(y) + 10.0 * p.gram) * size
    negative = max(0.0, rounding - float(np.linalg.eigvalsh(S)[0]))
    loose = float(np.sum(np.abs(r))) + EPS * len(y) * float(np.sum(y))
    return float(y @ p.b) * (1.0 + EPS * len(y)) + negative * trace + loose * largest


def feasible_point(p: Programme, G: np.ndarray, f: np.ndarray, inner: tuple[np.ndarray, np.ndarray]) -> Feasible:
    """Return a feasible point near (G, f): projected to G >= 0, then moved towards a strictly feasible point."""
    V, (V0, f0) = _factor(G), inner
    G = V.T @ V
    short, room = p.slack(V, f), p.slack(V0, f0)
    margin = 1e-14 * (1.0 + float(np.trace(G)))
    need = np.maximum(margin - short, 0.0)
    theta = float(np.max(need / np.maximum(need + room, 1e-300)))
    while theta < 1.0:
        W, w = _factor((1.0 - theta) * G + theta * V0.T @ V0), (1.0 - theta) * f + theta * f0
        if p.slack(W, w).min() >= 0.0:
            return Feasible(float(p.c @ w) * (1.0 - 4.0 * EPS), W, w)
        theta = 2.0 * theta + 1e-14
    return Feasible(float(p.c @ f0) * (1.0 - 4.0 * EPS), V0, f0)


def inner_point(p: Programme) -> tuple[np.ndarray, np.ndarray]:
    """Return a strictly feasible point: the mean of the Gram matrices of runs on random quadratics."""
    rng, copies, d = np.random.default_rng(0), 12, 4
    total, values = np.zeros((p.gram, p.gram)), np.zeros(p.count)
    for _ in range(copies):
        H, E = _hessian(rng, d, p.mu), [_hessian(rng, d, p.mu) for _ in range(p.M)]
        B = rng.standard_normal((p.M, d))
        B -= B.mean(axis=0)
        B *= 0.5 * p.zeta / max(float(np.max(np.linalg.norm(B, axis=1))), 1e-300)
        x0 = rng.standard_normal(d)
        x0 *= 0.9 / np.linalg.norm(x0)
        spread = 1.0
        while True:
            V, f = _quadratic_run(p, [(1.0 - spread) * H + spread * Ei for Ei in E], B, x0)
            norms = p.slack(V, f)[p.b > 0.0]  # the inequalities that are not interpolation
            if norms.min() > 0.0 or spread < EPS:
                break
            spread *= 0.5
        total += V.T @ V / copies
        values += f / copies
    V = _factor(total)
    if p.slack(V, values).min() <= 0.0:  # no room in double precision: the zero functions, feasible always
        return np.zeros((1, p.gram)), np.zeros(p.count)
    return V, values


def _quadratic_run(p: Programme, H: list[np.ndarray], B: np.ndarray, x0: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return basis vectors and values of a run on F_i = x'H_i x/2 + <B_i, x> (for Shift, H_0 for all)."""
    V, f = np.zeros((len(x0), p.gram)), []
    linear = np.zeros_like(B) if isinstance(p.h, Shift) else B
    for j, (kind, i, x) in enumerate(p.made):
        if kind == "gradient":
            v = V @ x
            V[:, j] = H[i] @ v + linear[i]
            f.append(float(0.5 * v @ H[i] @ v + linear[i] @ v))
        else:
            V[:, j] = x0 if kind == "start" else B[i]
    return V, np.array(f)


def _hessian(rng: np.random.Generator, d: int, mu: float) -> np.ndarray:
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray((Q * (mu + (1.0 - mu) * rng.uniform(0.2, 0.8, d))) @ Q.T)


def _factor(G: np.ndarray) -> np.ndarray:
    """Return V with V'V the nearest positive semidefinite matrix; rows of no length are left out."""
    lam, Q = np.linalg.eigh(0.5 * (G + G.T))
    keep = lam > EPS * max(float(lam[-1]), 0.0)
    return np.asarray((Q[:, keep] * np.sqrt(lam[keep])).T)
