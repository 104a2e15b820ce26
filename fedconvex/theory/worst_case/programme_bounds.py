"""Certificates of a programme: upper bounds from any multipliers, feasible points near any solution.

docs/theory/worst_case.md, Sections 2 and 3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedconvex.theory.worst_case.classes import Arbitrary
from fedconvex.theory.worst_case.programme import Programme

EPS = float(np.finfo(float).eps)


class Feasible(NamedTuple):
    """A feasible point of the programme: basis vectors, whose Gram matrix it is, and function values."""

    value: float
    vectors: np.ndarray  # (d, gram)
    values: np.ndarray


class Multipliers(NamedTuple):
    """Multipliers of the inequalities, and weights of the objectives, repaired to a proof up to rounding."""

    bound: float  # b'y
    missing: float  # what S and the flow lack, in units of trace(G)


def reach(p: Programme) -> float:
    """Return a bound on the trace of G over the class, from lengths: docs/theory/worst_case.md, Section 3."""
    return float(np.sum(np.square(p.oracle.lengths)))


def repaired(p: Programme, y: np.ndarray, C: np.ndarray, c: np.ndarray) -> Multipliers:
    """Return what multipliers prove about <C, G> + c'f: clipped, flow repaired, the rest stated.

    <C, G> + c'f <= b'y - <S, G> + r'f with S = sum_j y_j A_j - C and r = c - sum_j y_j a_j for every y >= 0.
    """
    y = np.maximum(y, 0.0)
    r = c - y @ p.a
    for v, residual in enumerate(r):  # an inequality with x* moves f_v alone: a = e_v or -e_v
        y[p.star[v, residual < 0.0]] += abs(residual)
    r = c - y @ p.a
    S = np.einsum("j,jkl->kl", y, p.A) - C
    size = float(y @ np.sqrt(np.einsum("jkl,jkl->j", p.A, p.A))) + float(np.linalg.norm(C))
    rounding = EPS * (len(y) + 10.0 * p.gram) * size
    negative = max(0.0, rounding - float(np.linalg.eigvalsh(S)[0]))
    loose = float(np.abs(r) @ p.heights) + EPS * len(y) * float(np.sum(y)) * float(np.max(p.heights, initial=0.0))
    return Multipliers(float(y @ p.b) * (1.0 + EPS * len(y)), negative + loose)


def upper_bound(p: Programme, multipliers: np.ndarray, weights: np.ndarray, trace: float) -> float:
    """Return an upper bound on the programme from any multipliers, given a bound on the trace of G."""
    if not (np.isfinite(multipliers).all() and np.isfinite(weights).all()):
        return math.inf
    w = np.maximum(weights, 0.0)
    w = w / w.sum() if w.sum() > 0.0 else np.full(len(w), 1.0 / len(w))
    found = repaired(p, multipliers, np.tensordot(w, p.C, 1), w @ p.c)
    return found.bound + (found.missing * trace if found.missing > 0.0 else 0.0)


def trace_bound(p: Programme, multipliers: np.ndarray) -> float:
    """Return a bound on the trace of G from multipliers of the programme that maximises it.

    trace(G) <= b'y + missing trace(G), so that trace(G) <= b'y/(1 - missing).
    """
    if not np.isfinite(multipliers).all():
        return math.inf
    found = repaired(p, multipliers, np.eye(p.gram), np.zeros(p.count))
    return found.bound / (1.0 - found.missing) if found.missing < 1.0 else math.inf


def feasible_point(p: Programme, G: np.ndarray, f: np.ndarray, inner: tuple[np.ndarray, np.ndarray]) -> Feasible:
    """Return a feasible point near (G, f): projected to G >= 0, then moved towards a strictly feasible point."""
    V, (V0, f0) = factor(G), inner
    G = V.T @ V
    short, room = p.slack(V, f), p.slack(V0, f0)
    margin = 1e-14 * (1.0 + float(np.trace(G)))
    need = np.maximum(margin - short, 0.0)
    theta = float(np.max(need / np.maximum(need + room, 1e-300)))
    while theta < 1.0:
        W, w = factor((1.0 - theta) * G + theta * V0.T @ V0), (1.0 - theta) * f + theta * f0
        if p.slack(W, w).min() >= 0.0:
            return Feasible(below(p, W, w), W, w)
        theta = 2.0 * theta + 1e-14
    return Feasible(below(p, V0, f0), V0, f0)


def below(p: Programme, V: np.ndarray, f: np.ndarray) -> float:
    """Return the objective at a point, less its rounding."""
    value = p.value(V, f)
    return value - 4.0 * EPS * abs(value)


def inner_point(p: Programme) -> tuple[np.ndarray, np.ndarray]:
    """Return a strictly feasible point: the mean of the Gram matrices of runs on random quadratics."""
    rng, d = np.random.default_rng(0), 4
    copies = max(12, p.gram // 3)
    total, values = np.zeros((p.gram, p.gram)), np.zeros(p.count)
    h, M = p.problems.heterogeneity, len(p.oracle.p)
    for _ in range(copies):
        H, E = _hessian(rng, d, p.mu), [_hessian(rng, d, p.mu) for _ in range(M)]
        B = rng.standard_normal((M, d))
        B -= p.oracle.p @ B
        zeta = 1.0 if isinstance(h, Arbitrary) else h.zeta / (p.problems.L * p.problems.length)
        B *= 0.5 * zeta / max(float(np.max(np.linalg.norm(B, axis=1))), 1e-300)
        free = rng.standard_normal((p.gram, d))  # start and noise
        several = np.array([len(p.problems.chances) - 1.0 if made.kind == "noise" else 1.0 for made in p.made])
        free *= 0.9 / (several * np.linalg.norm(free, axis=1))[:, None]  # of several values their mean is feasible
        spread = 0.0 if p.oracle.one else 1.0
        while True:
            V, f = _quadratic_run(p, [(1.0 - spread) * H + spread * Ei for Ei in E], B, free)
            norms = p.slack(V, f)[p.b > 0.0]  # the inequalities that are not interpolation
            if norms.min() > 0.0 or spread < EPS:
                break
            spread *= 0.5
        total += V.T @ V / copies
        values += f / copies
    V = factor(total)
    if p.slack(V, values).min() <= 0.0:  # no room in double precision: the zero functions, feasible always
        return np.zeros((1, p.gram)), np.zeros(p.count)
    return V, values


def _quadratic_run(p: Programme, H: list[np.ndarray], B: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return basis vectors and values of a run on F_i = x'H_i x/2 + <B_i, x>."""
    V, f = np.zeros((free.shape[1], p.gram)), []
    for j, made in enumerate(p.made):
        x = V[:, : len(made.x)] @ made.x
        if made.kind == "prox":  # y = x - step (H y + b)
            shifted = x - made.step * (V @ p.at_optimum[made.client])
            x = np.linalg.solve(np.eye(len(x)) + made.step * H[made.function], shifted)
        if made.kind in ("gradient", "prox"):
            V[:, j] = H[made.function] @ x
            f.append(float(0.5 * x @ H[made.function] @ x))
        else:
            V[:, j] = B[made.client] if made.kind == "optimum" else free[j] * p.oracle.lengths[j]
    return V, np.array(f)


def _hessian(rng: np.random.Generator, d: int, mu: float) -> np.ndarray:
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray((Q * (mu + (1.0 - mu) * rng.uniform(0.2, 0.8, d))) @ Q.T)


def factor(G: np.ndarray) -> np.ndarray:
    """Return V with V'V the nearest positive semidefinite matrix; rows of no length are left out."""
    lam, Q = np.linalg.eigh(0.5 * (G + G.T))
    keep = lam > EPS * max(float(lam[-1]), 0.0)
    return np.asarray((Q[:, keep] * np.sqrt(lam[keep])).T)
