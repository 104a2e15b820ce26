"""How Mbar is held for many tasks: factors against matrices, and runs and updates of Omega with either."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedconvex import Federation, Hinge, Logistic, Squared, run
from fedconvex.families.multitask import coupling
from fedconvex.families.multitask.coupling import dense, mbar_diagonal, mbar_of, mbar_times, safe_sigma
from fedconvex.methods import MOCHA, JointMOCHA
from fedconvex.problems import Clustered, Covariance, Independent, MeanRegularised, MultiTaskProblem, Pooled


def fixed(m):
    """Relationships with factors, with clusters of different sizes."""
    clusters = tuple(np.arange(m) % 7 // 2)
    return [MeanRegularised(1.0, 0.5), Clustered(clusters, 2.0, 0.3), Independent(0.8), Pooled(0.8)]


def many_tasks(m, n=2, d=3, seed=0):
    """Tasks of few rows with models around four common ones."""
    rng = np.random.default_rng(seed)
    X, common = rng.normal(size=(m * n, d)), rng.normal(size=(4, d))
    z = np.sum(X * (common[np.arange(m) % 4] + 0.3 * rng.normal(size=(m, d))).repeat(n, axis=0), axis=1)
    return Federation(X, np.where(z > 0, 1.0, -1.0), np.arange(0, m * n + 1, n))


@pytest.mark.parametrize("m", [24, pytest.param(600, marks=pytest.mark.slow)])
def test_factors_are_the_matrix(m, monkeypatch):
    monkeypatch.setattr(coupling, "DENSE", min(coupling.DENSE, m - 1))
    for relation in fixed(m):
        check_factors(relation, m)


def check_factors(relation, m):
    rng, full = np.random.default_rng(0), relation.mbar(m)
    thin, V = mbar_of(relation, m, 3), rng.normal(size=(2, m, 3))
    assert thin.shape[1] <= 5
    np.testing.assert_allclose(dense(thin), full, rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(mbar_times(thin, V), full @ V, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(mbar_diagonal(thin), np.diag(full), rtol=1e-13)
    for rule in ("eigenvalue", "rows", "tasks"):
        assert safe_sigma(thin, rule) == pytest.approx(safe_sigma(full, rule), rel=1e-11)
    W = full @ V[0]
    assert relation.conjugate(V[0]) == pytest.approx(0.5 * np.sum(V[0] * W), rel=1e-12)
    assert relation.value(W) == pytest.approx(0.5 * np.sum(V[0] * W), rel=1e-12)
    if not isinstance(relation, Pooled):
        np.testing.assert_allclose(relation.gradient(W), V[0], rtol=1e-9, atol=1e-11)


def test_the_thin_eigenvalue_is_not_below_the_largest():
    rng = np.random.default_rng(1)
    for _ in range(20):
        m, r = int(rng.integers(5, 30)), int(rng.integers(1, 4))
        thin = np.hstack([rng.uniform(0.0, 1.0, (m, 1)) * (rng.random() < 0.7), rng.normal(size=(m, r)) * rng.random()])
        exact = safe_sigma(dense(thin))
        assert exact * (1.0 - 1e-13) <= safe_sigma(thin) <= exact * (1.0 + 1e-10)


def test_updates_of_omega_from_singular_vectors_are_exact():
    """Against the matrix's own eigenvectors; of smaller rank, the least tr((W W' + e I) Omega^-1) in its class."""
    rng = np.random.default_rng(2)
    for sigma2, epsilon in ((math.inf, 0.1), (2.0, 1e-3), (math.inf, 0.0)):
        relation, W = Covariance(0.3, sigma2), rng.normal(size=(12, 3)) @ np.diag([3.0, 1.0, 0.2])
        full = relation.mbar_of(W, epsilon)
        np.testing.assert_allclose(dense(relation.factored_of(W, epsilon)), full, rtol=1e-6, atol=1e-9 * full.max())
        np.testing.assert_allclose(dense(relation.factored_of(0.0 * W, epsilon)), relation.mbar(12), rtol=1e-13)
    relation, e = Covariance(0.5), 1e-4 * np.sum(W * W) / 12  # Mbar = Omega

    def cost(omega):
        return float(np.trace(np.linalg.solve(omega, W @ W.T + e * np.eye(12)))) * float(np.trace(omega))

    best = dense(relation.factored_of(W, 1e-4, rank=2))
    assert np.trace(best) == pytest.approx(1.0, rel=1e-12)
    for t in (-0.02, 0.02):  # kappa alone
        assert cost(best) < cost(best + t * np.linalg.eigvalsh(best)[0] * np.eye(12))
    for _ in range(200):  # of all kappa I + (rank 2), near and far
        kappa, F = rng.uniform(0.2, 1.0), rng.normal(size=(12, 2)) * 10.0 ** rng.uniform(-3, 0.5)
        near = relation.factored_of(W + 1e-3 * rng.normal(size=W.shape), 1e-4, rank=2)
        for omega in (kappa * np.eye(12) + F @ F.T, dense(near)):
            assert cost(best) <= cost(omega) * (1.0 + 1e-12)


def test_runs_hold_the_factor_and_agree_with_the_matrix(monkeypatch):
    m = 24
    fed, least = many_tasks(m), min(coupling.DENSE, m - 1)
    for relation, method in ((fixed(m)[0], MOCHA()), (fixed(m)[1], MOCHA()), (Covariance(0.1), MOCHA(anneal=0.5))):
        monkeypatch.setattr(coupling, "DENSE", least)
        problem = MultiTaskProblem(fed, Hinge(), relation, "mean")
        thin = run(method, problem, rounds=2, progress=False)
        assert thin.state.mbar.shape == (1, m, problem.factored_mbar.shape[1])
        assert "mbar" not in vars(problem)  # nobody has made the matrix
        monkeypatch.setattr(coupling, "DENSE", m)
        full = run(method, MultiTaskProblem(fed, Hinge(), relation, "mean"), rounds=2, progress=False)
        assert full.state.mbar.shape == (1, m, m)
        np.testing.assert_allclose(thin.w, full.w, atol=1e-6)
        np.testing.assert_allclose(thin.trace.gap, full.trace.gap, rtol=1e-5)


def test_omega_of_small_rank_is_learned_and_measured_over_all():
    """Five tasks by rank 2: the certified gap is that of the problem over all Omega; rank 3 = d is the same as any."""
    problem = MultiTaskProblem(many_tasks(6, 6), Logistic(), Covariance(0.05), "mean")
    best = problem.solve()
    values = {
        rank: run(MOCHA(rank=rank, anneal=0.5), problem, rounds=10, record_every=5, progress=False)
        for rank in (1, 3, None)
    }
    for result in values.values():
        assert best.lower <= result.trace.value[-1] <= best.value + float(result.gap)
    np.testing.assert_allclose(values[3].w, values[None].w, atol=1e-6)
    assert np.abs(values[1].w - values[None].w).max() > 1e-3
    with pytest.raises(ValueError, match=r"MOCHA.rank must be at most 4 for 6 tasks; got 5"):
        run(MOCHA(rank=5), problem, rounds=1, progress=False)
    with pytest.raises(ValueError, match=r"MOCHA.rank must be None for a fixed relationship"):
        run(MOCHA(rank=2), problem.with_relation(MeanRegularised(1.0, 0.5)), rounds=1, progress=False)


@pytest.mark.slow
@pytest.mark.compiled
def test_six_hundred_tasks_are_solved_without_their_matrix():
    """By factors to a certified gap, and by JointMOCHA with a learned Omega."""
    problem = MultiTaskProblem(many_tasks(600), Hinge(), fixed(600)[1], "mean")
    found = problem.solve(1e-3)
    assert found.gap <= 1.1e-3 * (1.0 + found.value)
    joint = problem.with_relation(Covariance(0.1))
    result = run(JointMOCHA(), joint, rounds=20, record_every=20, progress=False)
    assert 0.0 < result.gap < 0.5 * result.trace.value[0]
    assert not {"mbar"} & {*vars(problem), *vars(joint)}


@pytest.mark.parametrize("which", [0, 1])
def test_factors_are_solved_to_the_minimum_of_the_matrix(which, monkeypatch):
    problem = MultiTaskProblem(many_tasks(24), Squared(), fixed(24)[which], "mean")
    monkeypatch.setattr(coupling, "DENSE", 1)
    thin = MultiTaskProblem(problem.federation, Squared(), fixed(24)[which], "mean").solve(1e-8)
    assert thin.problem.factored_mbar.shape[1] < problem.factored_mbar.shape[1] == 24
    assert thin.gap <= 1.1e-8 * (1.0 + thin.value)
    assert thin.value == pytest.approx(problem.solve().value, rel=2e-8)
