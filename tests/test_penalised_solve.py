"""Exact solution with penalties: against scikit-learn, cvxpy and arithmetic by hand; certificates that can fail."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import Lasso, LogisticRegression

from fedconvex import Exponential, Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared
from fedconvex.loss_traits import declares
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex
from fedconvex.solvers.certificates import penalty_gap
from fedconvex.solvers.certificates.penalty_gap import Slopes, dual_bound, zeros_for_sure


def federation(seed, n, d, task="regression", sparse=False, classes=3):
    """Correlated columns, a third of the true coefficients nonzero, three clients."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.5 * rng.normal(size=(d, d)) / math.sqrt(d))
    if sparse:
        X *= rng.random((n, d)) < 0.3
    z = X @ (rng.normal(size=d) * (rng.random(d) < 0.4)) + rng.normal(size=n)
    y = z if task == "regression" else np.where(z > np.median(z), 1.0, -1.0)
    if task == "classes":
        y = np.digitize(z, np.quantile(z, np.arange(1, classes) / classes)).astype(float)
    return Federation.from_arrays(sp.csr_matrix(X) if sparse else X, y, np.arange(n) % 3)


def dense(fed):
    return fed.X.toarray() if fed.is_sparse else np.asarray(fed.X)


def strength(fed, share=0.1):
    return share * float(np.abs(dense(fed).T @ fed.y).max()) / fed.n


# ---------------------------------------------------------------- scikit-learn


@pytest.mark.parametrize(("n", "d"), [(60, 8), (12, 30)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow_unless(n=60)
@pytest.mark.slow_unless(positive=False)
@pytest.mark.compiled_if_slow
def test_lasso_and_elastic_net_are_those_of_scikit_learn(n, d, sparse, positive, seed):
    """Lasso minimises ‖y - Xw‖^2/(2n) + alpha ‖w‖_1: the convention here."""
    fed = federation(seed, n, d, sparse=sparse)
    lam = strength(fed)
    for ratio in (1.0, 0.4):
        make = Lasso(alpha=lam) if ratio == 1.0 else SklearnElasticNet(alpha=lam, l1_ratio=ratio)
        theirs = make.set_params(fit_intercept=False, positive=positive, tol=1e-13, max_iter=10**6).fit(
            dense(fed), fed.y
        )
        penalty = NonNegative(lam * ratio) if positive else ElasticNet(lam, ratio) if ratio < 1.0 else L1(lam)
        problem = Problem(fed, Squared(), lam * (1.0 - ratio) if positive else 0.0, penalty=penalty)
        mine = problem.solve()
        assert mine.value <= problem.value(theirs.coef_) * (1.0 + 1e-9)
        assert mine.gap <= 1e-11 * (1.0 + mine.value)
        if mine.unique:
            assert mine.w == pytest.approx(theirs.coef_, abs=1e-6)
        assert mine.unique or d > n


def elastic_net(ratio):
    """Return how scikit-learn is asked for it: from 1.8 by the ratio alone, before by the penalty's name too."""
    old = tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8)
    return {"l1_ratio": ratio} | ({"penalty": "elasticnet"} if old else {})


@pytest.mark.parametrize("ratio", [1.0, 0.5])
@pytest.mark.parametrize("task", ["signs", "classes"])
def test_logistic_regression_is_that_of_scikit_learn(ratio, task):
    """LogisticRegression minimises C sum of the losses + penalty, here divided by C n."""
    fed = federation(2, 60, 6, task)
    lam = 0.02
    theirs = LogisticRegression(
        **elastic_net(ratio), C=1.0 / (fed.n * lam), solver="saga", fit_intercept=False, tol=1e-12, max_iter=100_000
    ).fit(fed.X, fed.y)
    loss = Softmax(3) if task == "classes" else Logistic()
    problem = Problem(fed, loss, penalty=ElasticNet(lam, ratio))
    mine, coef = problem.solve(), theirs.coef_ if task == "classes" else theirs.coef_[0]
    assert mine.value == pytest.approx(problem.value(coef), rel=1e-9)
    assert mine.gap <= 1e-11
    assert mine.unique
    assert mine.w == pytest.approx(coef, abs=1e-6)


# ---------------------------------------------------------------- cvxpy


def by_cvxpy(problem, constraints=lambda W: [], penalty=lambda W: 0.0):
    """The least value of the same objective, written down again in cvxpy."""
    import cvxpy as cp

    fed, C = problem.federation, problem.n_outputs
    W = cp.Variable((C, fed.d))
    Z, y = dense(fed) @ W.T, np.asarray(fed.y)
    per_row = np.repeat(problem.weights / fed.sizes, fed.sizes)
    if isinstance(problem.loss, Squared):
        loss = 0.5 * cp.sum(cp.multiply(per_row, cp.square(Z[:, 0] - y)))
    elif C == 1:
        loss = cp.sum(cp.multiply(per_row, cp.logistic(cp.multiply(-y, Z[:, 0]))))
    else:
        own = cp.sum(cp.multiply(np.eye(C)[y.astype(int)], Z), axis=1)
        loss = cp.sum(cp.multiply(per_row, cp.log_sum_exp(Z, axis=1) - own))
    goal = loss + 0.5 * problem.l2 * cp.sum_squares(W) + penalty(W)
    model = cp.Problem(cp.Minimize(goal), constraints(W))
    model.solve(solver=cp.CLARABEL)
    return model.value, W.value if C > 1 else W.value[0]


def constrained():
    import cvxpy as cp

    groups = (0, 0, 1, 1, 2, 2)

    def norms(W):
        return 0.05 * math.sqrt(2.0) * sum(cp.norm(W[:, 2 * g : 2 * g + 2], "fro") for g in range(3))

    yield GroupLasso(0.05, groups), {"penalty": norms}
    yield GroupLasso(0.05, 2), {"penalty": norms}
    yield Box(-0.2, 0.3), {"constraints": lambda W: [W >= -0.2, W <= 0.3]}
    yield NonNegative(), {"constraints": lambda W: [W >= 0.0]}
    yield Simplex(1.5), {"constraints": lambda W: [W >= 0.0, cp.sum(W, axis=1) == 1.5]}


@pytest.mark.parametrize("weights", [None, "uniform"])
@pytest.mark.parametrize(("loss", "task"), [(Squared(), "regression"), (Logistic(), "signs"), (Softmax(3), "classes")])
@pytest.mark.slow
def test_groups_boxes_and_the_simplex_are_those_of_cvxpy(loss, task, weights):
    fed = federation(3, 25, 6, task)
    for penalty, words in constrained():
        l2 = 0.05 if task == "classes" else 0.0  # without it scores shift freely along the classes
        problem = Problem(fed, loss, l2, weights, penalty=penalty)
        best, (value, w) = problem.solve(), by_cvxpy(problem, **words)
        assert best.value == pytest.approx(value, abs=2e-7), penalty
        assert best.lower <= value + 2e-7, penalty
        assert best.gap <= 1e-10, penalty
        assert best.w == pytest.approx(w, abs=2e-3), penalty


def test_whole_weights_of_rows_equal_repeated_rows():
    fed = federation(10, 24, 6, "signs")
    times = np.arange(fed.n) % 3 + 1
    client = np.repeat(np.arange(fed.K), fed.sizes)
    heavy = Federation.from_arrays(fed.X, fed.y, client, sample_weight=times)
    often = Federation.from_arrays(np.repeat(fed.X, times, axis=0), np.repeat(fed.y, times), np.repeat(client, times))
    for penalty in (L1(0.02), GroupLasso(0.02, 2), Box(-0.1, 0.2)):
        one, other = (Problem(f, Logistic(), 0.01, "uniform", penalty=penalty).solve() for f in (heavy, often))
        assert one.value == pytest.approx(other.value, rel=1e-12)
        assert one.w == pytest.approx(other.w, abs=1e-9)


# ---------------------------------------------------------------- by hand, and other losses


def test_the_lasso_of_one_column_by_hand():
    """Minimise (w - 3)^2/2 + |w|: w = 2, F = 1/2 + 2; and with NonNegative where the slope is positive, w = 0."""
    fed = Federation.from_clients([([[1.0]], [3.0])])
    best = Problem(fed, Squared(), penalty=L1(1.0)).solve()
    assert (best.w.tolist(), best.value) == ([2.0], 2.5)
    assert 2.5 - 1e-13 <= best.lower <= 2.5
    assert Problem(fed, Squared(), penalty=L1(3.5)).solve().w.tolist() == [0.0]
    below = Federation.from_clients([([[1.0]], [-3.0])])
    best = Problem(below, Squared(), penalty=NonNegative()).solve()
    assert (best.w.tolist(), best.value) == ([0.0], 4.5)
    assert best.lower == pytest.approx(4.5, abs=1e-12)


@declares(task="regression", lower_bound=0.0, smoothness=1.0)
class Huber(NamedTuple):
    """A user's own loss: no conjugate, no curvature."""

    def value(self, z, y):
        r = abs(z - y)
        return 0.5 * r * r if r <= 1.0 else r - 0.5

    def slope(self, z, y):
        return min(max(z - y, -1.0), 1.0)


@pytest.mark.parametrize("loss", [Huber(), SmoothedHinge(0.5), Exponential(), Logistic()], ids=repr)
@pytest.mark.parametrize("penalty", [L1(0.05), ElasticNet(0.1, 0.5), GroupLasso(0.03, 2), Box(-0.5, 0.5)], ids=repr)
def test_any_smooth_loss_is_solved_and_certified(loss, penalty):
    task = "regression" if isinstance(loss, Huber) else "signs"
    problem = Problem(federation(4, 40, 6, task), loss, 0.01, penalty=penalty)
    best = problem.solve()
    assert best.gap <= 1e-9 * (1.0 + best.value)
    rng = np.random.default_rng(0)
    for size in (1e-6, 1e-3, 1.0):
        assert problem.value(best.w + size * rng.normal(size=6)) >= best.lower


def test_losses_with_kinks_are_refused():
    with pytest.raises(
        TypeError, match=r"Problem.solve with a penalty and Hinge\(\) must have a smooth loss; .* Smoothed"
    ):
        Problem(federation(0, 9, 2, "signs"), Hinge(), 0.1, penalty=L1(0.1)).solve()


def test_equal_columns_leave_the_minimiser_open():
    """Two equal columns share any weight: the value is that of one column, and the minimiser is not unique."""
    X = np.array([[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]])
    y = np.array([1.0, 3.0, 0.0])
    both = Problem(Federation.from_clients([(X, y)]), Squared(), penalty=L1(0.1)).solve()
    one = Problem(Federation.from_clients([(X[:, :1], y)]), Squared(), penalty=L1(0.1)).solve()
    assert both.value == pytest.approx(one.value, rel=1e-13)
    assert one.unique
    assert not both.unique


def test_a_penalty_that_leaves_nothing_leaves_no_noise(capfd):
    """Every entry is screened: the Hessian over none of them is asked of nobody (BLAS complains of empty matrices)."""
    best = Problem(federation(5, 12, 4), Squared(), penalty=L1(1e3)).solve()
    assert best.unique
    assert not best.w.any()
    assert capfd.readouterr() == ("", "")


def test_columns_of_zeros_and_scales_far_apart():
    X = np.array([[1e3, 0.0, 1e-3], [2e3, 0.0, -1e-3], [0.5e3, 0.0, 3e-3]])
    fed = Federation.from_clients([(X, np.array([1.0, 3.0, 0.0]))])
    best = Problem(fed, Squared(), penalty=L1(1e-6)).solve()
    assert best.w[1] == 0.0
    assert best.w[2] < -100.0
    assert best.gap <= 1e-8


def test_a_tolerance_ends_the_search_early():
    problem = Problem(federation(5, 40, 30), Squared(), penalty=L1(0.05))
    rough, fine = problem.solve(tol=1e-2), problem.solve()
    assert rough.gap <= 1e-2 * (1.0 + rough.value)
    assert rough.iterations <= fine.iterations
    assert rough.lower <= fine.value
    assert fine.lower <= rough.value


# ---------------------------------------------------------------- certificates


def test_rounding_does_not_take_the_scaled_point_out_of_the_domain():
    """s (u + e) <= lambda and s u + s e one bit above it: the bound was that of the loss, and the gap F itself."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        u, e = rng.normal(size=3), np.full(3, 1e-15)
        s = penalty_gap._scales(L1(2.0**-5), u, e).min()
        assert (s * np.abs(u) + s * e <= 2.0**-5).all()
        assert s * np.abs(u).max() >= 2.0**-5 * (1.0 - 1e-13)


def at_random(problem, rng, size=1.0):
    """Slopes at a random model, with the gradient that they make."""
    fed = problem.federation
    w = rng.normal(size=problem.size) * size * (rng.random(problem.size) < 0.5)
    Z = np.ascontiguousarray(dense(fed) @ w.reshape(problem.n_outputs, -1).T)
    c = np.repeat(problem.row_weights, fed.sizes)
    from fedconvex.kernels import row_losses

    values, A = np.empty((fed.n, 1)), Z.copy()
    row_losses.row_values(problem.loss, Z, fed.y, values)
    row_losses.row_slopes(problem.loss, A, fed.y)
    u = -(dense(fed).T @ (c[:, None] * A)).T.ravel()
    return w, c, Slopes(Z, values[:, 0], A, u)


CERTIFIED = [L1(0.05), ElasticNet(0.1, 0.5), NonNegative(0.02), NonNegative(), Box(-0.3, 0.3), GroupLasso(0.05, 2)]


@pytest.mark.parametrize("penalty", [*CERTIFIED, Simplex()], ids=repr)
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize(("loss", "task"), [(Squared(), "regression"), (Logistic(), "signs"), (Softmax(3), "classes")])
@pytest.mark.slow
def test_the_bound_of_any_point_lies_below_the_minimum(loss, task, l2, penalty):
    problem = Problem(federation(6, 20, 6, task), loss, l2, penalty=penalty)
    best, rng = problem.solve(), np.random.default_rng(0)
    for size in (0.01, 0.1, 1.0):
        w, c, at = at_random(problem, rng, size)
        assert dual_bound(problem, c, at, problem.column_norms, w).lower <= best.value


@pytest.mark.parametrize("planted", [1.0 + 1e-9, 1.0 + 1e-6])
def test_a_dual_point_outside_the_domain_is_noticed(planted, monkeypatch):
    """Scaled by too much, no matter how little, the conjugate of the lasso is infinite and nothing is certified."""
    problem = Problem(federation(7, 20, 6), Squared(), penalty=L1(0.05))
    right = penalty_gap._scale
    monkeypatch.setattr(penalty_gap, "_scale", lambda *args: planted * right(*args))
    monkeypatch.setattr(penalty_gap, "_moved", lambda *args: iter(()))
    w, c, at = at_random(problem, np.random.default_rng(1))
    assert dual_bound(problem, c, at, problem.column_norms, w).lower == 0.0


def test_a_conjugate_that_is_too_small_is_caught(monkeypatch):
    """Planted: 1% off the loss's conjugates lifts the bound above the minimum, and the comparison above sees it."""
    problem = Problem(federation(8, 20, 6), Squared(), 0.1, penalty=L1(0.05))
    best = problem.solve()
    fed = problem.federation
    c = np.repeat(problem.row_weights, fed.sizes)
    Z = (dense(fed) @ best.w)[:, None]
    A = Z - fed.y[:, None]
    u = -(dense(fed).T @ (c * A[:, 0]))
    at = Slopes(Z, 0.5 * A[:, 0] ** 2, A, u)
    assert dual_bound(problem, c, at, problem.column_norms, best.w).lower <= best.value
    wrong = at._replace(values=1.01 * at.values)
    assert dual_bound(problem, c, wrong, problem.column_norms, best.w).lower > best.value


@pytest.mark.parametrize(("loss", "task"), [(Squared(), "regression"), (Logistic(), "signs")])
@pytest.mark.parametrize("penalty", [L1(0.08), ElasticNet(0.1, 0.9), NonNegative(0.05)], ids=repr)
def test_screened_entries_are_zero_in_the_solution(loss, task, penalty):
    problem = Problem(federation(9, 40, 12, task), loss, penalty=penalty)
    best, rng, screened = problem.solve(), np.random.default_rng(0), 0
    for size in (1e-6, 1e-4, 1e-2, 1.0):
        w, c, _ = at_random(problem, rng, size)
        w = np.where(best.w != 0.0, best.w + w, 0.0)
        fed = problem.federation
        Z = (dense(fed) @ w)[:, None]
        values = np.array([problem.loss.value(z, y) for z, y in zip(Z[:, 0], fed.y, strict=True)])
        A = np.array([problem.loss.slope(z, y) for z, y in zip(Z[:, 0], fed.y, strict=True)])[:, None]
        at = Slopes(Z, values, A, -(dense(fed).T @ (c * A[:, 0])))
        dual = dual_bound(problem, c, at, problem.column_norms, w)
        zeros = zeros_for_sure(problem, dual, problem.value(w) - dual.lower, problem.column_norms)
        assert not best.w[zeros].any()
        screened += int(zeros.sum())
    assert screened > 0


def test_the_ridge_counts_in_the_bound_over_a_simplex():
    """0 is not in the simplex, so a bound that leaves out the ridge lies below by (l2/2) min ‖w‖^2 > 0.01 here."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 5)), rng.normal(size=40)
    problem = Problem(Federation.from_arrays(X, y, np.arange(40) % 3), Squared(), 0.1, penalty=Simplex())
    best = problem.solve()
    assert 0.05 * np.sum(best.w**2) > 0.01
    assert best.gap <= 1e-9 and best.w.sum() == pytest.approx(1.0, abs=1e-12)


def test_a_saved_model_names_its_penalty_and_predicts_the_same_bits(tmp_path):
    from fedconvex.models import LinearModel

    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(40, 5)), rng.normal(size=40)
    problem = Problem(Federation.from_arrays(X, y, np.arange(40) % 3), Squared(), penalty=L1(0.1))
    best = problem.solve()
    best.save(tmp_path / "m")
    loaded = LinearModel.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(X), best.predict(X))
    assert loaded.about["penalty"] == repr(L1(0.1))
