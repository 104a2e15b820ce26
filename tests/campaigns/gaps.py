"""Gaps of all solutions with a model, against what F is at better models in 50 digits; nothing is allowed for rounding.

Families: one model for every loss, with row weights, free coordinates and without l2; the hinge; penalties; columns of
several owners; blocks of rows and columns; models per task; the largest and the softmax of the domains' objectives.
A reference is a point, found by Newton steps whose gradients have 50 digits: whatever it is worth, nothing that is
certified may contradict F there. Ensembles, and other models in 60 digits on nastier rows, stand in `campaigns.nasty`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import scipy.sparse as sp

from fedconvex import (
    Exponential,
    Federation,
    Hinge,
    HybridFederation,
    Logistic,
    Problem,
    SmoothedHinge,
    Squared,
    VerticalFederation,
)
from fedconvex.penalties import L1
from fedconvex.problems import (
    HybridProblem,
    Independent,
    MeanRegularised,
    MultiTaskProblem,
    Precision,
    VerticalProblem,
)
from fedconvex.solvers.certificates.gaps import ContradictedCertificate
from fedconvex.solvers.minimax.agnostic import solve_minimax, solve_softmax

__all__ = ["FAMILIES", "gap_trial"]

DIGITS = 50


class Exact(NamedTuple):
    """F(w) = sum_i c_i l(x_i'w, y_i) + w'Qw/2 + lam ‖w‖_1 in 50 digits, Q by entries or a diagonal."""

    X: list
    y: list
    c: list
    loss: Any
    Q: list  # (d, d)
    lam: Any = 0

    @classmethod
    def of(cls, problem: Any, X: np.ndarray, c: np.ndarray, Q: np.ndarray, lam: float = 0.0) -> Exact:
        """Take numbers of doubles as they are."""
        rows = [[mp.mpf(v) for v in row] for row in X.tolist()]
        return cls(
            rows, [mp.mpf(v) for v in problem.federation.y.tolist()], [mp.mpf(v) for v in c.tolist()], problem.loss,
            [[mp.mpf(v) for v in row] for row in np.asarray(Q).tolist()], mp.mpf(lam),
        )  # fmt: skip

    def row(self, z: Any, y: Any) -> tuple[Any, Any]:
        """l and l' at a score."""
        if isinstance(self.loss, Squared):
            return (z - y) ** 2 / 2, z - y
        if isinstance(self.loss, Logistic):
            return mp.log1p(mp.exp(-y * z)), -y / (1 + mp.exp(y * z))
        if isinstance(self.loss, Exponential):
            return mp.exp(-y * z), -y * mp.exp(-y * z)
        m = 1 - y * z
        if isinstance(self.loss, Hinge):
            return max(m, mp.mpf(0)), -y if m > 0 else mp.mpf(0)
        gamma = mp.mpf(self.loss.gamma)
        if m <= 0:
            return mp.mpf(0), mp.mpf(0)
        return (m * m / (2 * gamma), -y * m / gamma) if m <= gamma else (m - gamma / 2, -y)

    def value(self, w: list) -> Any:
        """F(w)."""
        return self.value_gradient(w)[0]

    def value_gradient(self, w: list) -> tuple[Any, list]:
        """F and the gradient of its smooth part."""
        rows = [self.row(mp.fdot(x, w), y) for x, y in zip(self.X, self.y, strict=True)]
        along = [mp.fdot(q, w) for q in self.Q]
        F = mp.fdot(self.c, [v for v, _ in rows]) + mp.fdot(w, along) / 2 + self.lam * sum(abs(v) for v in w)
        slopes = [c * s for c, (_, s) in zip(self.c, rows, strict=True)]
        return F, [mp.fdot(col, slopes) + a for col, a in zip(zip(*self.X, strict=True), along, strict=True)]


def exactly(w: np.ndarray) -> list:
    """Return the numbers of a model."""
    return [mp.mpf(v) for v in np.ravel(w).tolist()]


def better(
    value_gradient: Callable[[list], tuple[Any, list]], w: list, H: np.ndarray, moves: np.ndarray | None = None
) -> list:
    """Return the best of up to 25 Newton steps from w with H (d, d) in doubles, over the entries that move."""
    free = np.arange(len(w)) if moves is None else np.flatnonzero(moves)
    part = H[np.ix_(free, free)]
    scale = 1.0 / np.sqrt(np.where(np.diag(part) > 0.0, np.diag(part), 1.0))
    inverse = scale[:, None] * np.linalg.pinv(scale[:, None] * part * scale, rcond=1e-13) * scale
    M, (F, g) = [[mp.mpf(v) for v in row] for row in inverse.tolist()], value_gradient(w)
    for _ in range(25):
        step, t = [mp.fdot(row, [g[j] for j in free]) for row in M], mp.mpf(1)
        while t > 1e-3:
            new = list(w)
            for j, s in zip(free, step, strict=True):
                new[j] = w[j] - t * s
            after = value_gradient(new)
            if after[0] < F:
                break
            t /= 2
        if not after[0] < F:
            return w
        fallen, w, (F, g) = F - after[0], new, after
        if fallen <= mp.mpf(10) ** -40 * (1 + abs(F)):
            return w
    return w


# ---------------------------------------------------------------- problems


def rows_of(rng: np.random.Generator, real: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """Return rows, labels and what is special about them."""
    n, d = int(rng.integers(4, 25)), int(rng.integers(1, 6))
    X, kind = rng.normal(size=(n, d)), str(rng.choice(["plain", "scales", "repeated", "zero", "whole", "ones", "one"]))
    if kind == "scales":
        X = X * 10.0 ** rng.uniform(-5.0, 5.0, d)
    elif kind == "repeated":
        X = X[rng.integers(0, n, n)]
    elif kind == "zero":
        X[:, int(rng.integers(d))] = 0.0
    elif kind == "whole":
        X = rng.integers(-2, 3, size=(n, d)).astype(float)
    elif kind == "ones":
        X[:, -1] = 1.0
    elif kind == "one":
        X = np.tile(X[:1], (n, 1))
    z = X @ rng.normal(size=d) / np.maximum(np.abs(X).max(), 1e-9) + float(rng.choice([0.0, 0.3, 2.0])) * rng.normal(
        size=n
    )
    return X, z * 10.0 ** float(rng.uniform(-3.0, 3.0)) if real else np.where(z > 0.0, 1.0, -1.0), kind


def loss_of(rng: np.random.Generator, hinge: bool = False) -> Any:
    """Return a loss; of smoothed hinges any width."""
    smooth = SmoothedHinge(float(rng.choice([1e-3, 0.1, 0.5, 0.9, 1.0, 3.0])))
    losses = [Squared(), Logistic(), smooth, smooth, *([Hinge()] if hinge else [Exponential()])]
    return losses[int(rng.integers(len(losses)))]


def ridge_of(rng: np.random.Generator, bare: float = 0.5) -> float:
    """Return l2: none with that probability."""
    return 0.0 if rng.random() < bare else float(10.0 ** rng.uniform(-9.0, 1.0))


# ---------------------------------------------------------------- what must hold


def never_contradicted(
    who: str, best: Any, F: Callable[[list], Any], points: list[list], reach: Callable[[list], Any] | None = None
) -> dict:
    """No point lies below a lower bound, and no gap is less than the suboptimality: not by the least bit."""
    here, values = F(exactly(best.w)), [F(p) for p in points]
    assert not math.isnan(best.gap), who
    least = min(*values, here)
    assert best.gap > 0.0 or here == least == mp.mpf(best.lower), who  # 0 where F is at a bound of itself
    off = mp.mpf(getattr(best, "rounding", 0.0))
    assert abs(here - mp.mpf(best.value)) <= off, f"{who}: value off by {mp.nstr(here - mp.mpf(best.value), 5)}, {off}"
    assert least >= mp.mpf(best.lower), f"{who}: {mp.nstr(least, 20)} below {best.lower!r}"
    assert here - least <= mp.mpf(best.gap), f"{who}: suboptimality {mp.nstr(here - least, 8)}, gap {best.gap:.4g}"
    for p, value in zip(points, values, strict=True):
        if reach is None or reach(p) <= best.reach:
            assert here - value <= mp.mpf(best.gap_within), f"{who}: gap within {best.gap_within:.4g}"
    shortfall = float((here - least) / mp.mpf(best.gap)) if best.gap > 0.0 else 0.0
    return {"family": who, "gap": float(best.gap), "shortfall": shortfall}


def measured(who: str, problem: Any, F: Callable[[list], Any], W: np.ndarray, points: list[list]) -> None:
    """Gaps of `measure` at models W (R, *model) are not below what F is there above its value at a point."""
    gaps, least = problem.measure(W).gap, min(F(p) for p in points)
    for w, gap in zip(W, gaps, strict=True):
        assert not math.isnan(gap), who
        assert math.isinf(gap) or F(exactly(w)) - least <= mp.mpf(gap), f"{who}: measured gap {gap:.4g}"


def _near(rng: np.random.Generator, w: np.ndarray, R: int = 3) -> np.ndarray:
    return np.asarray(w + rng.normal(size=(R, *w.shape)) * 10.0 ** rng.uniform(-9.0, 0.0, (R, *[1] * w.ndim)))


def _dense(fed: Federation) -> np.ndarray:
    return fed.X.toarray() if fed.is_sparse else fed.X


def _filled(X: np.ndarray) -> np.ndarray:
    """Return rows without columns of zeros, of which an owner is not allowed to have nothing else."""
    return np.where((X != 0.0).any(axis=0), X, 1.0)


def one_model(rng: np.random.Generator, who: str, problem: Any, plain: Any, X: np.ndarray) -> dict:
    """The check of a problem whose objective is that of plain rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ContradictedCertificate)
        best = problem.solve()
    d = X.shape[1]
    ridge = np.diag(np.broadcast_to(plain.ridge, d).astype(float))
    exact = Exact.of(plain, X, plain.per_row, ridge)
    w = exactly(best.w)
    points = [w, [mp.mpf(0)] * d, better(exact.value_gradient, w, plain.flat_hessian(np.ravel(best.w)))]
    sizes = [mp.mpf(v) for v in np.abs(X).max(axis=0).tolist()]
    out = never_contradicted(
        who, best, exact.value, points, lambda p: sum(abs(v) * s for v, s in zip(p, sizes, strict=True))
    )
    near = [p for p in points if sum(abs(v) * s for v, s in zip(p, sizes, strict=True)) <= best.reach]
    measured(who, problem, exact.value, _near(rng, best.w), near)
    missed = best.attained and not best.gap <= 1e-8 * (float(points and exact.value(points[1])) or 1.0)
    return out | {"loss": repr(problem.loss), "certificate": best.certificate, "missed": int(missed)}


def plain_trial(rng: np.random.Generator) -> dict:
    """`Problem.solve`: row weights, weights of clients, free coordinates, any l2."""
    loss = loss_of(rng)
    X, y, kind = rows_of(rng, isinstance(loss, Squared))
    weight = rng.uniform(0.1, 5.0, len(y)) if rng.random() < 0.3 else None
    rows: Any = sp.csr_array(X) if rng.random() < 0.3 else X
    fed = Federation.from_arrays(rows, y, np.arange(len(y)) % 3, sample_weight=weight)
    free: Any = np.arange(X.shape[1]) < int(rng.integers(1, 3)) if rng.random() < 0.2 else False
    l2 = ridge_of(rng)
    if l2 == 0.0:
        free = False
    problem = Problem(fed, loss, l2, "uniform" if rng.random() < 0.3 else None, intercept=free)
    return one_model(rng, "one model", problem, problem, _dense(fed)) | {"kind": kind, "l2": problem.l2}


def owners_trial(rng: np.random.Generator) -> dict:
    """`VerticalProblem.solve`: columns of several owners."""
    loss = loss_of(rng)
    X, y, kind = rows_of(rng, isinstance(loss, Squared))
    X = _filled(X)
    cut = int(rng.integers(1, X.shape[1])) if X.shape[1] > 1 else 1
    blocks = [X[:, :cut], X[:, cut:]] if X.shape[1] > 1 else [X]
    problem = VerticalProblem(VerticalFederation.from_blocks(blocks, y), loss, ridge_of(rng, 0.0))
    return one_model(rng, "owners", problem, problem.pooled, _dense(problem.pooled.federation)) | {"kind": kind}


def blocks_trial(rng: np.random.Generator) -> dict:
    """`HybridProblem.solve`: blocks of rows and columns."""
    loss = loss_of(rng)
    X, y, kind = rows_of(rng, isinstance(loss, Squared))
    groups, blocks = int(rng.integers(1, 3)), int(rng.integers(1, min(X.shape[1], 2) + 1))
    X = np.concatenate(
        [_filled(rows) for rows in np.split(X, np.arange(1, groups) * len(X) // groups)]
    )  # no owner of a block has zeros only
    fed = HybridFederation.from_grid(X, y, groups, blocks)
    problem = HybridProblem(fed, loss, ridge_of(rng, 0.0))
    return one_model(rng, "blocks", problem, problem.pooled, _dense(problem.pooled.federation)) | {"kind": kind}


def kinked_trial(rng: np.random.Generator) -> dict:
    """`Problem.solve` of the hinge: against the dual point in which the rows at kinks are solved for exactly."""
    X, y, kind = rows_of(rng, False)
    problem = Problem(Federation.from_arrays(X, y, np.arange(len(y)) % 2), Hinge(), float(10.0 ** rng.uniform(-4, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = problem.solve()
    fed, d = problem.federation, X.shape[1]
    exact = Exact.of(problem, fed.X, problem.per_row, problem.l2 * np.eye(d))
    m = 1.0 - fed.y * (fed.X @ best.w)
    base = [mp.fdot([c * y for c, y, v in zip(exact.c, exact.y, m, strict=True) if v > 1e-7], col) for col in zip(
        *[x for x, v in zip(exact.X, m, strict=True) if v > 1e-7], strict=True)] or [mp.mpf(0)] * d  # fmt: skip
    points, at = [exactly(best.w), [mp.mpf(0)] * d], [i for i in range(len(m)) if abs(m[i]) <= 1e-7]
    if at and len(at) <= d:
        A = mp.matrix([[exact.y[i] * v for v in exact.X[i]] for i in at])
        rest = mp.matrix([problem.l2 - exact.y[i] * mp.fdot(exact.X[i], base) for i in at])
        try:
            alpha = mp.lu_solve(A * A.T, rest)
            points.append([(b + v) / mp.mpf(problem.l2) for b, v in zip(base, list(A.T * alpha), strict=True)])
        except ZeroDivisionError:
            pass
    elif not at:
        points.append([b / mp.mpf(problem.l2) for b in base])
    return never_contradicted("hinge", best, exact.value, points) | {"kind": kind, "l2": problem.l2}


def penalised_trial(rng: np.random.Generator) -> dict:
    """`Problem.solve` with l1: against Newton steps over the entries that are not zero."""
    loss = loss_of(rng)
    X, y, kind = rows_of(rng, isinstance(loss, Squared))
    bare = Problem(Federation.from_arrays(X, y, np.arange(len(y)) % 2), loss, ridge_of(rng))
    largest = float(np.abs(bare.gradient(np.zeros(X.shape[1]))).max())
    lam = float(largest * 10.0 ** rng.uniform(-4.0, 0.1)) or 1.0
    problem = bare.with_penalty(L1(lam))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ContradictedCertificate)
        best = problem.solve()
    exact = Exact.of(bare, bare.federation.X, bare.per_row, bare.l2 * np.eye(X.shape[1]), lam)
    signs, w = np.sign(best.w), exactly(best.w)

    def value_gradient(v: list) -> tuple[Any, list]:
        F, g = exact.value_gradient(v)
        return F, [a + mp.mpf(lam) * int(s) for a, s in zip(g, signs, strict=True)]

    moved = better(value_gradient, w, bare.flat_hessian(best.w), signs != 0.0) if signs.any() else w
    points = [w, [mp.mpf(0)] * X.shape[1], moved]
    out = never_contradicted("penalty", best, exact.value, points)
    measured("penalty", problem, exact.value, _near(rng, best.w), points)
    return out | {"kind": kind, "loss": repr(loss), "l2": bare.l2}


def tasks_trial(rng: np.random.Generator) -> dict:
    """`MultiTaskProblem.solve` with fixed relations: against one model on stacked features."""
    loss, m = loss_of(rng), int(rng.integers(2, 4))
    X, y, kind = rows_of(rng, isinstance(loss, Squared))
    fed, d = Federation.from_arrays(X, y, np.arange(len(y)) % m), X.shape[1]
    a, b = (float(v) for v in 10.0 ** rng.uniform(-4.0, 2.0, 2))
    one = np.array([[mp.mpf(int(i == j)) for j in range(m)] for i in range(m)])
    relation, P = [
        (Independent(b), mp.mpf(b) * one),
        (MeanRegularised(a, b), 2 * (mp.mpf(a) * (one - mp.mpf(1) / m) + mp.mpf(b) * one)),
        (Precision(m * np.eye(m) - 1.0, a, b), 2 * (mp.mpf(a) * (m * one - 1) + mp.mpf(b) * one)),
    ][int(rng.integers(3))]
    problem = MultiTaskProblem(fed, loss, relation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ContradictedCertificate)
        best = problem.solve()
    task = np.repeat(np.arange(m), fed.sizes)
    Z = (np.eye(m)[task][:, :, None] * fed.X[:, None, :]).reshape(len(y), -1)
    Q = np.kron(P, np.eye(d, dtype=int).astype(object))
    exact = Exact.of(problem, Z, problem.c[task], Q)
    here = float(problem.value(best.w))
    assert abs(float(exact.value(exactly(best.w))) - here) <= 1e-9 * (1.0 + abs(here)), (
        f"{relation!r}: another objective"
    )
    w, h = exactly(best.w), np.array([loss.curvature(*v) for v in zip(Z @ best.w.ravel(), fed.y, strict=True)])
    H = (Z.T * (problem.c[task] * h)) @ Z + Q.astype(float)
    points = [w, [mp.mpf(0)] * (m * d), better(exact.value_gradient, w, H)]
    out = never_contradicted("tasks", best, exact.value, points)
    measured("tasks", problem, exact.value, _near(rng, best.w), points)
    return out | {"kind": kind, "loss": repr(loss), "relation": repr(relation)}


def domains_trial(rng: np.random.Generator) -> dict:
    """`solve_minimax` and `solve_softmax`: against steps with the Hessian of the weighted domains."""
    loss = [Squared(), Logistic(), SmoothedHinge(1.0)][int(rng.integers(3))]
    X, y, kind = rows_of(rng, isinstance(loss, Squared))
    problem, mu = Problem(Federation.from_arrays(X, y, np.arange(len(y)) % 3), loss, ridge_of(rng, 0.0)), 0.0
    soft = bool(rng.random() < 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ContradictedCertificate)
        mu = float(10.0 ** rng.uniform(-2.0, 3.0))
        best = solve_softmax(problem, mu) if soft else solve_minimax(problem)
    fed, d = problem.federation, X.shape[1]
    Q, parts = problem.l2 * np.eye(d), []
    for k in range(fed.K):
        c = np.zeros(fed.n)
        c[fed.ptr[k] : fed.ptr[k + 1]] = 1.0
        parts.append((Exact.of(problem, fed.X, c, Q)._replace(Q=[[mp.mpf(0)] * d] * d), int(fed.sizes[k])))

    def values(v: list) -> list:
        square = mp.mpf(problem.l2) * mp.fdot(v, v) / 2
        return [part.value(v) / n + square for part, n in parts]

    def largest(v: list) -> Any:
        F = values(v)
        return max(F) if not soft else max(F) + mp.log(sum(mp.exp(mp.mpf(mu) * (f - max(F))) for f in F)) / mp.mpf(mu)

    def value_gradient(v: list) -> tuple[Any, list]:
        F = values(v)
        lam = [mp.exp(mp.mpf(mu) * (f - max(F))) for f in F] if soft else exactly(best.domain_weights)
        G = [[u / n + mp.mpf(problem.l2) * x for u, x in zip(p.value_gradient(v)[1], v, strict=True)] for p, n in parts]
        return largest(v), [mp.fdot(lam, col) / sum(lam) for col in zip(*G, strict=True)]

    w = exactly(best.w)
    weighted = problem.by_domain.reweighted(best.domain_weights / best.domain_weights.sum())
    points = [w, [mp.mpf(0)] * d, better(value_gradient, w, weighted.flat_hessian(best.w))]
    who = "softmax of domains" if soft else "worst domain"
    return never_contradicted(who, best, largest, points) | {"kind": kind, "loss": repr(loss), "l2": problem.l2}


FAMILIES = (
    plain_trial, plain_trial, plain_trial, owners_trial, blocks_trial, kinked_trial, penalised_trial, penalised_trial,
    tasks_trial, tasks_trial, domains_trial,
)  # fmt: skip


def gap_trial(rng: np.random.Generator) -> dict:
    """One family's solution and measured gaps, in 50 digits."""
    with mp.workdps(DIGITS):
        return FAMILIES[int(rng.integers(len(FAMILIES)))](rng)
