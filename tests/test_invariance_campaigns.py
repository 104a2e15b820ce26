"""Thousands of random problems of IRMv1: identities and certificates, and global minima by two independent ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedconvex import Federation, Squared, iterate
from fedconvex.methods import IRMv1
from fedconvex.problems import InvariantProblem
from fedconvex.solvers.environments import invariance
from fedconvex.solvers.environments.invariance import (
    Environments,
    least_points,
    moment_solution,
    multiplier_matrix,
    shortfall,
)


def rows_problem(rng: np.random.Generator) -> tuple[InvariantProblem, list[int]]:
    """Return a sampled problem whose first features cause y alike everywhere, and which these are.

    Each environment's residuals are made orthogonal to the causes, so that they are invariant exactly; the other
    features are effects of y, by coefficients that differ.
    """
    d, E = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    causes = int(rng.integers(1, d + 1))
    v, clients = rng.standard_normal(causes), []
    for _ in range(E):
        n = int(rng.integers(d + 8, 30))
        X = rng.standard_normal((n, causes)) * rng.uniform(0.3, 3.0)
        noise = rng.standard_normal(n) * rng.uniform(0.3, 2.0)
        y = X @ v + noise - X @ np.linalg.lstsq(X, noise, rcond=None)[0]
        Z = np.outer(y, rng.standard_normal(d - causes)) + rng.standard_normal((n, d - causes))
        clients.append((np.hstack([X, Z]), y))
    penalty = float(10.0 ** rng.uniform(-2.0, 3.0))
    return InvariantProblem(Federation.from_clients(clients), Squared(), penalty), list(range(causes))


def by_hand(problem: InvariantProblem, v: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """J(v), its gradient, M(v) and g(v) from the rows, by the definitions."""
    fed, lam = problem.federation, problem.penalty_weight
    J, G, M, gs = 0.0, np.zeros(fed.d), np.zeros((fed.d, fed.d)), []
    for k in range(fed.K):
        X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
        z = X @ v
        g = float(np.mean((z - y) * z))  # the slope at s = 1 of the mean of (s z - y)^2/2
        J += 0.5 * float(np.mean((z - y) ** 2)) + lam * g * g
        G += X.T @ (z - y) / len(y) + 2.0 * lam * g * X.T @ (2.0 * z - y) / len(y)
        M += (0.5 + 2.0 * lam * g) * X.T @ X / len(y)
        gs.append(g)
    return J, G, M, np.array(gs)


def dual(problem: InvariantProblem, mu: np.ndarray) -> float:
    """D(mu) by its definition, the least value over t and v of the Lagrangian; -inf where it has none."""
    fed, lam, E = problem.federation, problem.penalty_weight, problem.n_environments
    parts = [(fed.X[a:b], fed.y[a:b]) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    H = sum(m * X.T @ X / len(y) for m, (X, y) in zip(mu, parts, strict=True))
    if np.linalg.eigvalsh(H)[0] <= 1e-9:
        return -np.inf
    h = sum((0.5 + m) * X.T @ y / len(y) for m, (X, y) in zip(mu, parts, strict=True))
    v = 0.5 * np.linalg.solve(H, h)  # minimises sum_e R^e(v) + (1/2 - mu_e)(t_e - g_e(v)) over v
    _, _, _, g = by_hand(problem, v)
    risks = sum(0.5 * np.mean((X @ v - y) ** 2) for X, y in parts)
    t = (mu - 0.5) / (2.0 * lam)
    assert E == len(mu)
    return float(risks + ((mu - 0.5) * g).sum() - lam * (t @ t))


def identities_trial(rng: np.random.Generator) -> dict:
    """Values, slopes, M, D, the certificate at random points and along a run, ellipsoids, and invariant subsets."""
    problem, causes = rows_problem(rng)
    p, d = problem.environments, problem.federation.d
    seen, worst = 0, 0.0
    centre, half = p.box(p.value(np.zeros(d)))
    for scale in (1e-3, 0.1, 1.0, 1.0):
        v = centre + scale * half * rng.uniform(-1.0, 1.0, d) if scale < 1.0 else rng.standard_normal(d)
        J, G, M, g = by_hand(problem, v)
        size = 1.0 + abs(J)
        assert abs(p.value(v) - J) <= 1e-12 * size and abs(problem.value(v) - J) <= 1e-12 * size
        assert np.abs(p.gradient(v) - G).max() <= 1e-10 * size * (1.0 + np.abs(G).max())
        assert np.abs(multiplier_matrix(p, v) - M).max() <= 1e-10 * (1.0 + np.abs(M).max())
        own = np.array([np.linalg.solve(S, b) for S, b in zip(p.S, p.b, strict=True)])
        off = np.array([(v - o / 2) @ S @ (v - o / 2) - o @ S @ o / 4 for S, o in zip(p.S, own, strict=True)])
        assert np.abs(off - g).max() <= 1e-9 * (1.0 + np.abs(g).max()), "g_e is not an ellipsoid's"
        near = shortfall(p, v)
        if near < np.inf and np.linalg.cond(M) < 1e8:
            D, seen = dual(problem, 0.5 + 2.0 * problem.penalty_weight * g), seen + 1
            assert abs(J - D - near) <= 1e-8 * (size + near), f"J - D = {J - D}, certificate {near}"
            assert abs(J - D - 0.5 * near) > 0.1 * near or near < 1e-6 * size, "half of it would pass too"
        D = dual(problem, rng.uniform(0.05, 1.0, p.c.size))
        assert J + 1e-9 * size >= D, "D is no lower bound"
        worst = max(worst, D / J)
    return {"identities": seen, "dual over value": worst} | _along_a_run(problem) | _subsets(problem, causes)


def _along_a_run(problem: InvariantProblem) -> dict[str, float]:
    best = problem.solve()
    size = 1.0 + abs(best.value)
    assert best.gap <= 1e-6 * size or problem.federation.d > 2, f"gap {best.gap} of {best.certificate}"
    ratios = [0.0]
    for _, state in iterate(IRMv1(step_size="auto"), problem, rounds=60):
        (true,), (gap,) = problem.value(state.w) - best.value, problem.measure(state.w).gap
        near = shortfall(problem.environments, state.w[0])
        assert -1e-9 * size <= true <= min(gap, near) + 1e-9 * size, "a gap below the suboptimality"
        ratios.append(true / near if near > 1e-6 * size else 0.0)
    return {"suboptimality over certificate": float(max(ratios)), "undecided": float(best.gap > 1e-6 * size)}


def _subsets(problem: InvariantProblem, causes: list[int]) -> dict[str, float]:
    found = problem.subsets(tol=1e-9)
    assert tuple(causes) in [s.features for s in found], f"{causes} not among {[s.features for s in found]}"
    for s in found:
        at = list(s.features)
        _, _, _, g = by_hand(problem, s.w)
        assert np.abs(g).max(initial=0.0) <= 1e-4, f"{at}: g = {g}"  # invariant models meet the constraints of IRMv1
    others = [s for s in problem.subsets(tol=1e9) if set(s.features) - set(causes)]
    return {"invariant": float(len(found)), "least disagreement": min((s.disagreement for s in others), default=1.0)}


def moments_problem(rng: np.random.Generator) -> Environments:
    """Return up to six features, half of them causes, half with coefficients that differ; strong penalties at times."""
    d, E = int(rng.integers(2, 7)), int(rng.integers(2, 5))
    A = rng.standard_normal((E, d, d))
    S = A @ A.transpose(0, 2, 1) / d + 0.1 * np.eye(d)
    first, v = np.arange(d) < d // 2, rng.standard_normal(d)
    u = np.where(first, v, 0.4 * (0.5 + np.arange(E))[:, None] * rng.standard_normal((E, d)))
    b = np.einsum("eij,ej->ei", S, u)
    return Environments(S, b, np.einsum("ei,ei->e", b, u) + 0.5, float(rng.choice([1.0, 10.0, 100.0])))


def global_trial(rng: np.random.Generator) -> dict:
    """Where M(v) >= 0 the lowest of many starts is the moment solution to 1e-6; no higher minimum is certified."""
    p = moments_problem(rng)
    d, low = p.b.shape[1], p.pooled()[0]
    centre, half = p.box(p.value(low))
    points = least_points(p, np.vstack([low, centre + half * rng.uniform(-1.0, 1.0, (30, d))]))
    v, J = points[0], p.value(points[0])
    size = 1.0 + abs(J)
    moments = moment_solution(p, v)
    near = least_points(p, moments.w[None])[0]
    lower = max(moments.lower, invariance.best_dual_bound(p)[0])
    assert lower <= J + 1e-12 * size and p.value(near) >= J - 1e-9 * size, "a point below the lowest of 30 starts"
    told: dict[str, Any] = {"d": d, "minima": len(points)}
    for other in points[1:]:
        lam = np.linalg.eigvalsh(multiplier_matrix(p, other))
        if p.value(other) > J + 1e-7 * size:  # a planted local minimum
            assert lam[0] < 0.0 and shortfall(p, other) == np.inf, f"certified {p.value(other) - J} above the minimum"
            told["largest M of a local minimum"] = max(told.get("largest M of a local minimum", -np.inf), lam[0])
    if shortfall(p, v) < np.inf:
        off = float(np.abs(near - v).max() / (1.0 + np.abs(v).max()))
        assert off <= 1e-6 and J - moments.lower <= 1e-6 * size, f"{off} apart, bound {J - moments.lower} below"
        assert p.value(moments.w) - J <= 1e-6 * size, "the first moments, as they are"
        return told | {"certified": 1.0, "apart": off, "bound": (J - moments.lower) / size}
    undecided = J - lower > 1e-6 * size
    return told | {"certified": 0.0, "undecided": float(undecided), "interval": f"[{lower:.9g}, {J:.9g}]"}


# ---------------------------------------------------------------- samples, and errors that must be noticed


def test_identities():
    identities_trial(np.random.default_rng([5, 0]))


def _halved(f: Callable) -> Callable:
    return lambda *args: 0.5 * f(*args)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trial", "where", "name", "planted"),
    [
        (identities_trial, "fedconvex.solvers.environments.invariance", "shortfall", _halved),
        (identities_trial, "test_invariance_campaigns", "multiplier_matrix", lambda f: lambda p, v: f(p, v) * 1.0001),
        (global_trial, "test_invariance_campaigns", "shortfall", lambda f: lambda p, v: 0.0),
        (
            global_trial,
            "fedconvex.solvers.environments.invariance",
            "best_dual_bound",
            lambda f: lambda p: (f(p)[0] + 1e-3, None),
        ),
    ],
)
def test_planted_errors_are_noticed(monkeypatch, trial, where, name, planted):
    """Half the certificate, M off by 1e-4, minima certified wherever they are, a bound 1e-3 too high."""
    import importlib

    module = importlib.import_module(where)
    monkeypatch.setattr(module, name, planted(getattr(module, name)))
    noticed = 0
    for i in range(6):
        try:
            trial(np.random.default_rng([5, i]))
        except AssertionError:
            noticed += 1
            break
    assert noticed
