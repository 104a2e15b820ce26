"""Coordinate steps through the columns of X: against steps on the Hessian, certified, and what ends or refuses them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.kernels.penalised import entry_values
from fedconvex.penalties import L1, Box, ElasticNet, NonNegative
from fedconvex.solvers.certificates.penalty_gap import _scales
from fedconvex.solvers.penalised import column_steps
from fedconvex.solvers.penalised import working_sets as penalised
from fedconvex.solvers.penalised.column_steps import ColumnModel, epochs_that_pay
from fedconvex.solvers.penalised.model_steps import EntrySteps
from fedconvex.solvers.penalised.working_sets import Search

ROOT = Path(__file__).resolve().parents[1]
PENALTIES = [L1(0.05), ElasticNet(0.05, 0.5), NonNegative(0.02), Box(-0.1, 0.2)]


def model(penalty, sparse, free=False, seed=0, n=30, m=12):
    """A quadratic model with a row of weight 0, a column of zeros, and its Hessian."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, m)) * (rng.random((n, m)) < 0.5)
    X[:, 4] = 0.0
    h, ridge, g = rng.random(n) / n, np.full(m, 0.01), 0.1 * rng.normal(size=m)
    h[3], ridge[4] = 0.0, 0.0
    w = np.where(rng.random(m) < 0.5, 0.1 * rng.random(m), 0.0)
    seen = np.zeros(m, dtype=np.bool_)
    seen[0] = free
    X = sp.csc_array(X) if sparse else np.asfortranarray(X)
    dense = X.toarray() if sparse else X
    return ColumnModel(penalty, X, h, ridge, seen, w, g), dense.T @ (h[:, None] * dense) + np.diag(ridge)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_minimiser_is_that_of_steps_on_the_hessian(penalty, sparse):
    mine, H = model(penalty, sparse)
    assert mine.minimise(1e-13, 0.0, 1000)
    fed = Federation(np.eye(12), np.ones(12), np.array([0, 12]))
    steps = EntrySteps(Problem(fed, Squared(), penalty=penalty))
    theirs = steps.minimise(H, mine.w, mine.g, np.arange(12), 1e-13)
    np.testing.assert_allclose(mine.x, theirs, rtol=0.0, atol=1e-11)
    assert mine.x[4] == theirs[4] == mine.w[4]


def test_free_entries_have_no_penalty():
    """The derivative of the smooth part vanishes along a free entry: off by 1e-6 it would not."""
    mine, H = model(L1(0.05), False, free=True)
    assert mine.minimise(1e-14, 0.0, 1000)
    assert abs((mine.g + H @ (mine.x - mine.w))[0]) <= 1e-12
    assert mine.x[0] != 0.0


@pytest.mark.parametrize("sparse", [False, True])
def test_the_value_of_the_model_is_that_of_its_hessian(sparse):
    mine, H = model(L1(0.05), sparse)
    mine.epoch(np.arange(12))
    d, P = mine.x - mine.w, np.empty(1)
    entry_values(mine.penalty, mine.x[None], P)
    assert mine.value(mine.x, mine.v) == pytest.approx(mine.g @ d + 0.5 * d @ H @ d + P[0], abs=1e-15)


def test_an_extrapolated_point_counts_only_where_it_is_lower(monkeypatch):
    """Weights that are nonsense change nothing, unless values lie."""
    monkeypatch.setattr(column_steps, "solve", lambda C, one, **options: np.linspace(-40.0, 41.0, len(C)))
    mine, _ = model(L1(0.001), False)
    every, points, moves = np.arange(12), [mine.x.copy()], [mine.v.copy()]
    for _ in range(3):
        mine.epoch(every)
        points.append(mine.x.copy())
        moves.append(mine.v.copy())
    mine._extrapolate(every, np.array(points), np.array(moves))
    assert np.array_equal(mine.x, points[-1])
    monkeypatch.setattr(ColumnModel, "value", lambda self, x, v: -float(np.abs(x - points[-1]).sum()))
    mine._extrapolate(every, np.array(points), np.array(moves))
    assert not np.array_equal(mine.x, points[-1])


def test_which_sets_are_worth_it():
    """Few columns go by their Hessian; thousands of sparse ones do not."""
    assert epochs_that_pay(np.empty((2000, 128))) == 0
    assert epochs_that_pay(np.empty((2000, 129))) == 50
    assert epochs_that_pay(sp.random_array((200, 4000), density=0.01, format="csc")) == 2000


# ---------------------------------------------------------------- whole problems


def problem_of(loss, sparse, penalty=None, intercept=False, n=50, d=15, l2=0.0):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d))
    X *= rng.random((n, d)) < (0.4 if sparse else 1.0)
    z = X[:, :5].sum(axis=1) + rng.normal(size=n)
    y = z if loss == Squared() else np.where(z > 0.3, 1.0, -1.0)
    weight = rng.integers(0, 3, n) + (np.arange(n) < 3).astype(float)
    fed = Federation.from_arrays(sp.csr_array(X) if sparse else X, y, np.arange(n) % 3, sample_weight=weight)
    fed = fed.with_intercept() if intercept else fed
    return Problem(fed, loss, l2, penalty=penalty or L1(0.02), intercept=intercept)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=["squared", "logistic"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.slow_unless(intercept=True)
def test_solutions_are_certified_and_those_of_the_hessian(loss, sparse, intercept, monkeypatch):
    theirs = problem_of(loss, sparse, intercept=intercept).solve()
    monkeypatch.setattr(penalised, "epochs_that_pay", lambda X: 500)
    mine = problem_of(loss, sparse, intercept=intercept).solve()
    assert mine.gap <= 1e-12 * (1.0 + mine.value)
    np.testing.assert_allclose(mine.w, theirs.w, rtol=0.0, atol=1e-6)


def test_a_stiff_model_goes_by_its_hessian(monkeypatch):
    """One epoch does not suffice for columns that are nearly equal: the certified gap is reached all the same."""
    monkeypatch.setattr(penalised, "epochs_that_pay", lambda X: 1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1)) + 1e-3 * rng.normal(size=(40, 10))
    fed = Federation(X, X @ np.linspace(-1.0, 1.0, 10), np.array([0, 40]))
    search = Search(Problem(fed, Squared(), penalty=L1(1e-6)), None)
    found = search.solved()
    assert search.stiff
    assert found.gap <= 1e-12


def test_a_search_that_starts_where_another_ended_has_its_bound():
    """What is known of the old model serves the new strength: the same bound and value as computed anew."""
    old = Search(problem_of(Logistic(), False), 1e-4)
    old.solved()
    after = problem_of(Logistic(), False, L1(0.01))
    carried, anew = Search(after, 1e-4, old), Search(after, 1e-4)
    anew.move_to(old.w)
    assert carried.u is old.u is not None
    assert carried.F == pytest.approx(anew.F, rel=1e-14)
    assert carried.look().lower == pytest.approx(anew.look().lower, rel=1e-13)
    old.move_to(old.w)
    assert old.u is None  # whoever moves forgets it


def test_a_path_is_solved_as_well_as_its_strengths_alone(monkeypatch):
    monkeypatch.setattr(penalised, "epochs_that_pay", lambda X: 500)
    problem = problem_of(Squared(), False, n=30, d=8)
    path = problem.path(count=4, least=0.1, tol=1e-9)
    for strength, one in zip(path.strengths, path.solutions, strict=True):
        alone = problem.with_penalty(L1(strength)).solve()
        assert one.gap <= 1e-9 * (1.0 + one.value)
        assert alone.lower - 1e-13 <= one.value <= alone.value + 1e-9 * (1.0 + one.value)


def test_the_common_scale_is_the_least_of_all():
    u, e = np.array([0.3, -2.0, 0.9, 1.5]), np.full(4, 1e-9)
    each, common = _scales(L1(1.0), u, e), _scales(L1(1.0), u, e, True)
    assert common[-1] == pytest.approx(each.min(), rel=4e-16)
    assert common[-1] * (2.0 + 1e-9) <= 1.0


# ---------------------------------------------------------------- the benchmark


@pytest.mark.slow
def test_the_benchmark_runs_on_small_sizes():
    """Every row has a time that was measured at the goal, or says why there is none."""
    command = [sys.executable, "bench_penalties.py", "small", "sparse lasso"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run(command, cwd=ROOT / "benchmarks", env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "sparse lasso, path of 20, fedconvex, certified: (F - F*)/(1 + F*)" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("sparse lasso")]
    assert len(lines) >= 6
    assert all("tol " in line or "not installed" in line or "no answer" in line for line in lines)
