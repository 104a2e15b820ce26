"""Proximal Newton steps for a learned Omega: the minimum of dual coordinate ascent, in few passes; who takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Exponential, Federation, Logistic, SmoothedHinge, Squared
from fedconvex.families.multitask import joint_newton, learned_relation
from fedconvex.problems import Covariance, MultiTaskProblem


def tasks(loss, n=30, m=4, d=3, seed=0, weights=False):
    """Tasks of n rows each, about a common model."""
    rng = np.random.default_rng(seed)
    common, pairs = rng.normal(size=d), []
    for _ in range(m):
        X = rng.normal(size=(n, d))
        z = X @ (common + 0.5 * rng.normal(size=d)) + 0.5 * rng.normal(size=n)
        pairs.append((X, z if isinstance(loss, Squared) else np.where(z > 0.0, 1.0, -1.0)))
    fed = Federation.from_clients(pairs)
    return Federation(fed.X, fed.y, fed.ptr, sample_weight=rng.uniform(0.5, 2.0, fed.n)) if weights else fed


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Exponential()], ids=repr)
def test_the_minimum_is_that_of_dual_coordinate_ascent(loss, weights, monkeypatch):
    for relation, how in ((Covariance(3.0), "sum"), (Covariance(0.05, 2.0), "mean")):
        problem = MultiTaskProblem(tasks(loss, weights=weights), loss, relation, how)
        assert joint_newton.fits(problem)
        best, size = problem.solve(tol=1e-8), 1.0 + abs(problem.value(np.zeros((4, 3))))
        assert best.iterations < 40 and best.gap <= 2e-8 * size
        monkeypatch.setattr(joint_newton, "fits", lambda problem: False)
        other = MultiTaskProblem(problem.federation, loss, relation, how).solve(tol=1e-6)
        monkeypatch.undo()
        assert other.certificate == best.certificate
        assert abs(best.value - other.value) <= 2e-6 * size
        assert max(best.lower, other.lower) <= min(best.value, other.value) + 1e-12 * size


def test_a_solution_is_where_the_next_starts():
    fed = tasks(Logistic())
    best = MultiTaskProblem(fed, Logistic(), Covariance(1.0)).solve(tol=1e-8)
    again = MultiTaskProblem(fed, Logistic(), Covariance(1.0)).solve(tol=1e-7, start=best)
    assert again.iterations == 1 and again.value == best.value


def test_dual_coordinate_ascent_goes_on_where_steps_end(monkeypatch):
    """Hessians a thousand times too large leave the goal far away; planted curvature of the wrong sign, too."""
    fed, true = tasks(Logistic()), joint_newton._hessians
    expected = MultiTaskProblem(fed, Logistic(), Covariance(1.0)).solve(tol=1e-8)
    for factor in (1e3, -1.0):
        monkeypatch.setattr(joint_newton, "_hessians", lambda p, W, f=factor: f * true(p, W))
        at, lower, passes = joint_newton.approach(
            MultiTaskProblem(fed, Logistic(), Covariance(1.0)), 1e-7, np.zeros((4, 3)), 9
        )
        assert at.value - lower > 1e-4 and passes <= 9
        found = MultiTaskProblem(fed, Logistic(), Covariance(1.0)).solve(tol=1e-6, passes=3000)
        assert found.iterations > passes
        assert found.gap <= 1e-5 * found.value and abs(found.value - expected.value) <= 1e-5 * found.value


def test_few_passes_are_not_exceeded():
    problem = MultiTaskProblem(tasks(Logistic()), Logistic(), Covariance(1.0))
    found = [problem.solve(tol=1e-12, passes=most) for most in (1, 2, 3, 4)]
    assert all(one.iterations <= most for most, one in enumerate(found, 1))
    assert max(one.lower for one in found) <= problem.solve().value


def test_who_takes_them():
    """Losses with curvature everywhere, dense rows that are many beside the columns of all tasks."""
    fed = tasks(Logistic())
    problem = MultiTaskProblem(fed, Logistic(), Covariance(1.0))
    assert joint_newton.fits(problem)
    sparse = Federation(sp.csr_matrix(fed.X), fed.y, fed.ptr)
    for other, loss in ((fed, SmoothedHinge(0.5)), (sparse, Logistic()), (tasks(Logistic(), n=5), Logistic())):
        assert not joint_newton.fits(MultiTaskProblem(other, loss, Covariance(1.0)))


def test_what_both_ways_return_is_the_better_of_the_two(monkeypatch):
    """A worse point of the second way takes nothing from the first, nor does a lower bound of its minimum."""
    fed = tasks(Logistic())
    first = MultiTaskProblem(fed, Logistic(), Covariance(1.0)).solve(tol=1e-15, passes=5)
    worse = replace(first, value=first.value + 1.0, lower=first.lower - 1.0)
    monkeypatch.setattr(learned_relation, "_ascend", lambda *given: worse)
    found = MultiTaskProblem(fed, Logistic(), Covariance(1.0)).solve(tol=1e-15, passes=6)
    assert found.value == first.value and found.lower == first.lower and found.iterations == 10
