"""Penalties with a free intercept, and with weights: against scikit-learn, cvxpy and arithmetic by hand."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import LogisticRegression

from fedconvex import Federation, Logistic, Problem, SmoothedHinge, Softmax, Squared, run
from fedconvex.kernels.penalised import in_place, penalty_values, proximal_point
from fedconvex.methods import FISTA, FedDualAvg, FedMiD, ProximalFedSGD, ProximalGradient
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex
from fedconvex.problems import ServerProblem
from fedconvex.solvers.certificates import free_duals
from fedconvex.solvers.penalised.penalty_path import largest_strength
from tests.test_penalised_solve import by_cvxpy, elastic_net

N, D = 40, 6


def federation(task="regression", sparse=False, weighted=False, seed=0):
    """Rows of mean 1 and targets far from 0, so that the intercept matters."""
    rng = np.random.default_rng(seed)
    X = 1.0 + rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.6 if sparse else 1.0)
    z = X @ (rng.normal(size=D) * (rng.random(D) < 0.6)) + 3.0 + rng.normal(size=N)
    labels = {"signs": np.where(z > np.quantile(z, 0.3), 1.0, -1.0), "regression": z}
    y = labels.get(task, np.digitize(z, np.quantile(z, [0.2, 0.6])).astype(float))
    weights = 0.5 + rng.random(N) if weighted else None
    rows = sp.csr_matrix(X) if sparse else X
    return Federation.from_arrays(rows, y, np.arange(N) % 3, sample_weight=weights).with_intercept()


def features(fed):
    """Rows without the column of ones, dense."""
    return (fed.X.toarray() if fed.is_sparse else fed.X)[:, :-1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("ratio, positive", [(1.0, False), (0.3, False), (1.0, True), (0.3, True)])
def test_lasso_and_elastic_net_are_those_of_scikit_learn(ratio, positive, sparse, weighted):
    fed, lam = federation(sparse=sparse, weighted=weighted), 0.1
    make = SklearnElasticNet(alpha=lam, l1_ratio=ratio, positive=positive, tol=1e-14, max_iter=10**6)
    theirs = make.fit(features(fed), fed.y, fed.sample_weight)
    penalty = NonNegative(lam * ratio) if positive else ElasticNet(lam, ratio) if ratio < 1.0 else L1(lam)
    problem = Problem(fed, Squared(), lam * (1.0 - ratio) if positive else 0.0, penalty=penalty, intercept=True)
    best, w = problem.solve(), np.append(theirs.coef_, theirs.intercept_)
    assert best.value == pytest.approx(problem.value(w), rel=1e-12)
    assert best.w == pytest.approx(w, abs=1e-9)
    assert best.unique and best.attained and best.gap <= 1e-11
    assert abs(best.w[-1]) > 0.1  # or the intercept would not matter


@pytest.mark.parametrize("task", ["signs", "classes"])
def test_logistic_regression_is_that_of_scikit_learn(task):
    fed, lam = federation(task, weighted=True), 0.03
    C = 1.0 / (lam * fed.sample_weight.sum())
    make = LogisticRegression(**elastic_net(0.7), C=C, solver="saga", tol=1e-10, max_iter=10**6)
    theirs = make.fit(features(fed), fed.y, fed.sample_weight)
    loss = Softmax(3) if task == "classes" else Logistic()
    problem = Problem(fed, loss, penalty=ElasticNet(lam, 0.7), intercept=True)
    best, w = problem.solve(), np.column_stack([theirs.coef_, theirs.intercept_]).reshape(problem.model_shape)
    assert best.value == pytest.approx(problem.value(w), rel=1e-9)
    assert best.gap <= 1e-11 and best.attained
    found, peer = np.atleast_2d(best.w), np.atleast_2d(w)
    if task == "classes":  # equal shifts of all intercepts change nothing
        assert not best.unique
        found, peer = (v - np.append(np.zeros(D), v[:, -1].mean()) for v in (found, peer))
    assert found == pytest.approx(peer, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss, task", [(Squared(), "regression"), (Logistic(), "signs"), (Softmax(3), "classes")])
def test_groups_boxes_and_the_simplex_are_those_of_cvxpy(loss, task):
    import cvxpy as cp

    fed = federation(task)
    cases = [
        (GroupLasso(0.05, 2), {"penalty": lambda W: 0.05 * math.sqrt(2.0) * sum(
            cp.norm(W[:, 2 * g : 2 * g + 2], "fro") for g in range(3))}),
        (Box(-0.2, 0.3), {"constraints": lambda W: [W[:, :-1] >= -0.2, W[:, :-1] <= 0.3]}),
        (Simplex(1.5), {"constraints": lambda W: [W[:, :-1] >= 0.0, cp.sum(W[:, :-1], axis=1) == 1.5]}),
    ]  # fmt: skip
    for penalty, words in cases:
        problem = Problem(fed, loss, 0.0, penalty=penalty, intercept=True)
        best, (value, _) = problem.solve(), by_cvxpy(problem, **words)
        assert best.value == pytest.approx(value, abs=2e-7), penalty
        assert best.gap <= 1e-10, penalty


def test_centred_columns_make_the_intercept_the_mean():
    """By hand: with columns of mean 0, b = mean(y) = 2 and the lasso of y - 2 on x: w = (9/2 - 1)/(5/2) = 7/5."""
    X = np.array([[-2.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    y = 2.0 + np.array([-4.0, -1.0, 1.0, 4.0])
    problem = Problem(Federation.from_clients([(X, y)]), Squared(), penalty=L1(1.0), intercept=True)
    best = problem.solve()
    assert best.w == pytest.approx([1.4, 2.0], abs=1e-14)
    assert largest_strength(problem) == pytest.approx(4.5, rel=1e-12)  # |mean of x (y - 2)|


@pytest.mark.parametrize("loss, task", [(Logistic(), "signs"), (Softmax(3), "classes"), (Squared(), "regression")])
def test_paths_begin_where_only_the_intercept_is_left(loss, task):
    path = Problem(federation(task), loss, penalty=L1(1.0), intercept=True).path(count=4)
    models = path.w.reshape(4, -1, D + 1)
    assert np.abs(models[0, :, :-1]).max() <= 1e-7 and np.abs(models[0, :, -1]).max() > 0.1
    assert np.count_nonzero(models[-1, :, :-1]) >= 4
    assert path.gap.max() <= 1e-7


# ---------------------------------------------------------------- certificates


@pytest.mark.parametrize("loss, task", [(Logistic(), "signs"), (Softmax(3), "classes"), (SmoothedHinge(0.5), "signs")])
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.slow
def test_the_bound_of_any_point_lies_below_the_minimum(loss, task, l2):
    from tests.test_penalised_solve import at_random, dual_bound

    sound = 0
    for penalty in (L1(0.05), ElasticNet(0.1, 0.5), Box(-0.3, 0.3), GroupLasso(0.05, 2), NonNegative(0.01)):
        problem = Problem(federation(task), loss, l2, penalty=penalty, intercept=True)
        best, rng = problem.solve(), np.random.default_rng(0)
        for size in (0.0, 1e-3, 0.1, 1.0):
            w, c, _ = at_random(problem, rng, size)
            _, c, at = at_random(_At(problem), _Fixed(best.w.ravel() + w), 1.0)
            lower = dual_bound(problem, c, at, problem.column_norms, best.w.ravel()).lower
            assert lower <= best.value
            sound += lower > 0.5 * best.value
    assert sound >= 10


class _At:
    """A problem, for slopes at a given model."""

    def __init__(self, problem):
        self._problem = problem

    def __getattr__(self, name):
        return getattr(self._problem, name)


class _Fixed:
    """A generator that draws one model."""

    def __init__(self, w):
        self.w = w

    def normal(self, size):
        return self.w

    def random(self, size):
        return np.zeros(size)


def test_slopes_out_of_balance_certify_too_much(monkeypatch):
    """Planted: without the factors, slopes at a model whose intercept is off make a bound above the minimum."""
    from fedconvex.solvers.certificates import penalty_gap
    from tests.test_penalised_solve import at_random, dual_bound

    problem = Problem(federation("signs"), Logistic(), penalty=L1(0.05), intercept=True)
    best = problem.solve()
    w = best.w + np.append(np.zeros(D), 1.0)
    _, c, at = at_random(_At(problem), _Fixed(w), 1.0)
    right = dual_bound(problem, c, at, problem.column_norms, w).lower
    assert 0.5 * best.value < right <= best.value
    fed = problem.federation
    without = Problem(Federation(features(fed), fed.y, fed.ptr), Logistic(), penalty=L1(0.05)).solve()
    monkeypatch.setattr(penalty_gap, "along_free", lambda p, c, at, n: at._replace(u=at.u[:-1]))
    _, c, at = at_random(_At(problem), _Fixed(np.append(without.w, 0.0)), 1.0)
    assert dual_bound(problem, c, at, problem.column_norms, w).lower > best.value * (1.0 + 1e-4)


def test_factors_are_exact_up_to_what_they_say():
    """In 50 digits: among factors within ``off`` there are some for which the sums vanish, and all lie in [0, 1]."""
    import mpmath as mp

    rng = np.random.default_rng(3)
    for n, m in ((7, 1), (30, 1), (40, 3)):
        c, G = rng.random(n) / n, rng.normal(size=(n, m)) * 10.0 ** rng.uniform(-3, 3, size=m)
        s, off = free_duals._factors(c, G, np.zeros(m))
        assert (s - off).min() >= 0.0 and (s + off).max() <= 1.0 and off.max() < 1e-12
        with mp.workdps(50):
            exact = [mp.fsum(mp.mpf(c[i]) * mp.mpf(s[i]) * mp.mpf(G[i, j]) for i in range(n)) for j in range(m)]
            M = mp.matrix(m, m)
            for j in range(m):
                for k in range(m):
                    M[j, k] = mp.fsum(mp.mpf(c[i]) * mp.mpf(G[i, j]) * mp.mpf(G[i, k]) for i in range(n))
            eta = mp.lu_solve(M, mp.matrix(exact))
            needed = [abs(mp.fsum(mp.mpf(G[i, j]) * eta[j] for j in range(m))) for i in range(n)]
        assert all(float(v) <= o for v, o in zip(needed, off, strict=True))
        assert max(float(v) / o for v, o in zip(needed, off, strict=True)) > 1e-4  # not off by orders of magnitude


def test_labels_of_one_kind_have_no_minimiser():
    X = np.column_stack([np.random.default_rng(0).normal(size=(9, 2)), np.ones(9)])
    fed = Federation.from_arrays(X, np.ones(9), np.arange(9) % 2)
    best = Problem(fed, Logistic(), penalty=L1(0.1), intercept=True).solve()
    assert best.lower <= 1e-12 and best.value >= 0.0 and not best.attained


# ---------------------------------------------------------------- methods, servers, refusals


@pytest.mark.parametrize("penalty", [L1(0.05), GroupLasso(0.05, 2), Simplex()], ids=repr)
def test_values_and_proximal_maps_leave_the_intercept_out(penalty):
    problem = Problem(federation("classes"), Softmax(3), penalty=penalty, intercept=True)
    W = np.random.default_rng(1).normal(size=(2, 3, D + 1))
    rest = Problem(Federation.from_arrays(features(problem.federation), problem.federation.y, np.arange(N) % 3),
                   Softmax(3), penalty=penalty)  # fmt: skip
    for place in (problem, ServerProblem(problem)):
        found = proximal_point(place, W, 0.7)
        assert (found[..., -1] == W[..., -1]).all()
        V = np.ascontiguousarray(W[..., :-1])
        assert found[..., :-1] == pytest.approx(proximal_point(rest, V, 0.7), abs=1e-15)
    projected = proximal_point(rest, V, 0.0)
    W[..., :-1] = projected
    assert penalty_values(problem, W.reshape(2, -1)) == pytest.approx(penalty_values(rest, projected.reshape(2, -1)))
    if not isinstance(penalty, Simplex):
        local = W[0].ravel().copy()
        in_place(problem).shorten(local, 0.7)
        assert local == pytest.approx(proximal_point(problem, W[:1], 0.7).ravel(), abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [L1(0.05), ElasticNet(0.1, 0.5), GroupLasso(0.05, 2)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_methods_minimise_with_a_free_intercept(penalty, weighted):
    """The intercept that they find is not 0, and what they reach is covered by their gap."""
    problem = Problem(federation("signs", weighted=weighted), Logistic(), 0.05, penalty=penalty, intercept=True)
    methods = {
        FISTA(step_size="auto"): (250, 1e-4),
        ProximalGradient(step_size="auto"): (60, 0.03),
        ProximalFedSGD(step_size=0.2): (60, 0.03),
        FedMiD(step_size=0.1, local_steps=2): (60, 0.1),  # P counts twice, for clients and server: biased
        FedDualAvg(step_size=0.1, local_steps=2): (60, 0.03),
    }
    best = problem.solve()
    for method, (rounds, near) in methods.items():
        result = run(method, problem, rounds=rounds, tol=0.0)
        assert -1e-15 <= problem.value(result.w) - best.value <= result.gap <= near, method
        assert result.w[-1] > 0.0, method


def test_what_does_not_fit_is_refused(tmp_path):
    fed = federation()
    with pytest.raises(ValueError, match=r"GroupLasso.groups must name the group of each of the 6 columns; got 7"):
        Problem(fed, Squared(), penalty=GroupLasso(0.1, tuple(range(7))), intercept=True)
    with pytest.raises(ValueError, match=r"Problem.intercept must leave a feature to the penalty; got all of them"):
        Problem(fed, Squared(), penalty=L1(0.1), intercept=np.ones(7, dtype=bool))
    path, method = tmp_path / "run.npz", ProximalFedSGD(step_size=0.1)
    run(method, Problem(fed, Squared(), penalty=L1(0.1), intercept=True), rounds=2, checkpoint=path)
    for other in ({"penalty": L1(0.1)}, {"penalty": L1(0.2), "intercept": True}, {"intercept": True}):
        with pytest.raises(ValueError, match="checkpoint"):
            run(FISTA(step_size=0.1) if "penalty" not in other else method, Problem(fed, Squared(), **other), rounds=3,
                checkpoint=path)  # fmt: skip
