"""Rows of unequal weight: a whole weight is that many repeated rows, everywhere; batches stay unbiased."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.class_weight import compute_sample_weight

from fedconvex import (
    Exponential,
    FedAvg,
    Federation,
    FedSGD,
    Hinge,
    Logistic,
    Problem,
    SmoothedHinge,
    Softmax,
    Squared,
    run,
)
from fedconvex.draws import Draws, key_from_seed
from fedconvex.kernels import batches
from fedconvex.methods import AFL, MOCHA, AgnosticFedAvg, ApproxFedAvg, SecureSums, SoftmaxFedAvg, fsvrg
from fedconvex.penalties import L1, Box, ElasticNet
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem
from fedconvex.report import domain_differences, domain_scores
from fedconvex.theory.fixed_points import quadratic
from fedconvex.theory.moments import Moments
from fedconvex.traits import traits_of
from tests.test_contract import CONFIGURATIONS, quiet

LOSSES = (Logistic(), Squared(), Softmax(3), Hinge(), SmoothedHinge(0.5), Exponential())


def rows(loss, sparse, n=30, seed=3):
    """Rows of three clients and two domains with weights 1, 2 and 3, and the numbers of the rows repeated."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.7 if sparse else 1.0)
    y = rng.normal(size=n)
    if not isinstance(loss, Squared):
        y = rng.integers(0, 3, n).astype(float) if isinstance(loss, Softmax) else np.sign(y)
    who, domain = np.repeat([0, 1, 2], [n // 6, n // 3, n - n // 6 - n // 3]), rng.integers(0, 2, n)
    weight = rng.integers(1, 4, n)
    weight[0], weight[1] = 1, 3
    return (sp.csr_array(X) if sparse else X), y, who, domain, weight


def pair(loss, sparse=False, domains=True, l2=0.1, **kwargs):
    """The problem with weights (times 0.7: only ratios matter) and the one with repeated rows."""
    X, y, who, domain, s = rows(loss, sparse)
    again = np.repeat(np.arange(y.size), s)
    weighted = Federation.from_arrays(X, y, who, domain if domains else None, 0.7 * s)
    repeated = Federation.from_arrays(X[again], y[again], who[again], domain[again] if domains else None)
    return Problem(weighted, loss, l2, **kwargs), Problem(repeated, loss, l2, **kwargs)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_whole_weights_are_repeated_rows(loss, sparse):
    a, b = pair(loss, sparse)
    w = np.random.default_rng(0).normal(size=(2, *a.model_shape))
    same = {"rtol": 1e-12, "atol": 1e-13}
    for name in ("value", "gradient", "client_values", "client_gradients", "domain_values", "domain_gradients"):
        np.testing.assert_allclose(getattr(a, name)(w), getattr(b, name)(w), **same, err_msg=name)
    np.testing.assert_allclose(a.weights, b.weights, **same)
    if a.traits.curved:
        np.testing.assert_allclose(a.hessian(w[0]), b.hessian(w[0]), **same)
        np.testing.assert_allclose(a.solve_minimax().value, b.solve_minimax().value, rtol=1e-10)
    best, other = a.solve(), b.solve()
    np.testing.assert_allclose(best.w, other.w, rtol=1e-9, atol=1e-9)
    assert best.value == pytest.approx(other.value, rel=1e-12)
    assert best.value - best.lower <= 1e-10
    uniform, other = pair(loss, sparse, weights="uniform")
    np.testing.assert_allclose(uniform.value(w), other.value(w), **same)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(3)], ids=repr)
def test_penalties(loss, sparse):
    for penalty in (L1(0.05), ElasticNet(0.05, 0.02), Box(-0.1, 0.2)):
        a, b = (p.solve() for p in pair(loss, sparse, penalty=penalty))
        np.testing.assert_allclose(a.w, b.w, rtol=1e-8, atol=1e-10)
        assert a.value == pytest.approx(b.value, rel=1e-12) and a.value - a.lower <= 1e-12


@pytest.mark.parametrize("loss", [v for v in LOSSES if not isinstance(v, Hinge)], ids=repr)
def test_constants_are_those_of_repeated_rows(loss):
    """All that is a mean over rows; L_s, the largest smoothness of a row, and the variance of batches are not."""
    a, b = (p.constants(radius=1.0, start=0.3 * np.ones(p.model_shape)) for p in pair(loss))
    for name in ("L_k", "L", "mu", "mu_k", "zeta", "zeta_star", "Gamma", "B", "F_star", "F_k_star", "D", "xi"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-8, atol=1e-12, err_msg=name)
        assert a.how[name] == b.how[name]


def test_rows_of_weight_zero_are_no_rows():
    X, y, who, domain, s = rows(Logistic(), False)
    s = np.where(np.arange(y.size) % 4 == 1, 0, s)
    kept = s > 0
    a = Problem(Federation.from_arrays(X, y, who, domain, s), Logistic(), 0.1)
    b = Problem(Federation.from_arrays(X[kept], y[kept], who[kept], domain[kept], s[kept]), Logistic(), 0.1)
    w = np.array([1.0, -2.0, 0.5])
    assert a.value(w) == pytest.approx(b.value(w), rel=1e-14)
    np.testing.assert_allclose(a.solve().w, b.solve().w, rtol=1e-12)
    far = a.federation.X.copy()
    far[a.federation.sample_weight == 0.0] = 1e200  # the loss there is not finite, and weighs nothing
    far = Federation(far, a.federation.y, a.federation.ptr, sample_weight=a.federation.sample_weight)
    assert Problem(far, Exponential(), 0.1).value(w) == pytest.approx(
        Problem(a.federation, Exponential(), 0.1).value(w)
    )


WITHOUT_CHANCE = {n: m for n, m in CONFIGURATIONS.items() if traits_of(m, pair(Logistic())[0]).deterministic}


AGNOSTIC = ("AFL", "OptimisticAFL", "AgnosticFedAvg")


@pytest.mark.parametrize(
    "name, domains", [(n, d) for n in WITHOUT_CHANCE for d in (False, True) if d is False or n in AGNOSTIC]
)
def test_methods_go_where_they_go_on_repeated_rows(name, domains):
    method = CONFIGURATIONS[name]
    a, b = (quiet(method, p, rounds=4) for p in pair(Logistic(), domains=domains))
    np.testing.assert_allclose(a.w, b.w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=1e-10)
    np.testing.assert_allclose(a.trace.gap, b.trace.gap, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ["AFL", "AgnosticFedAvg", "ApproxFedAvg", "SoftmaxFedAvg", "AgnosticFedAvg secure"])
def test_only_ratios_of_weights_count(name):
    """Domains and clients that weigh less than one row, and parts of a row under masks."""
    methods = {
        "AFL": AFL(step_size=0.2, domain_step_size=0.1),
        "AgnosticFedAvg": AgnosticFedAvg(step_size=0.2, domain_step_size=0.1, local_steps=2),
        "AgnosticFedAvg secure": AgnosticFedAvg(step_size=0.2, domain_step_size=0.1, sums=SecureSums(40)),
        "ApproxFedAvg": ApproxFedAvg(step_size=0.2, mu=3.0, local_steps=2),
        "SoftmaxFedAvg": SoftmaxFedAvg(step_size=0.2, mu=3.0, local_steps=2),
    }
    X, y, who, domain, s = rows(Logistic(), False)
    feds = [Federation.from_arrays(X, y, who, domain, c * s) for c in (1.0, 0.013)]
    a, b = (quiet(methods[name], Problem(fed, Logistic(), 0.1), rounds=4) for fed in feds)
    np.testing.assert_allclose(a.w, b.w, rtol=1e-9 if "secure" in name else 1e-11)


@pytest.mark.parametrize("name", sorted(set(CONFIGURATIONS) - set(WITHOUT_CHANCE)))
def test_methods_with_chance_run_and_their_gap_is_certified(name):
    problem = pair(Logistic())[0]
    result = quiet(CONFIGURATIONS[name], problem, rounds=3, seed=1)
    agnostic = any(word in name for word in ("AFL", "Agnostic", "Approx", "Softmax"))
    least = problem.solve_minimax().lower if agnostic and "Softmax" not in name else problem.solve().lower
    assert np.all(result.trace.value >= least - 1e-12)
    assert np.all(result.trace.value - result.trace.gap <= result.trace.value.min() + 1e-12)
    again = quiet(CONFIGURATIONS[name], problem, rounds=3, seed=1, threads=2)
    np.testing.assert_array_equal(result.w, again.w)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=repr)
def test_batches_are_unbiased(loss):
    """All batches of two rows, without and with replacement: their mean is the gradient of the client."""
    problem = pair(loss)[0]
    fed, w = problem.federation, np.linspace(-1.0, 1.0, problem.size)
    lo, n = int(fed.ptr[0]), int(fed.sizes[0])
    means = []
    for every in (itertools.combinations(range(n), 2), itertools.product(range(n), repeat=2)):
        total, count = np.zeros(problem.size), 0
        for batch in every:
            part, c, t = lo + np.array(batch), np.empty(2 * problem.n_outputs), np.empty(2)
            batches.batch_slopes(problem.row_loss, fed.rows, problem.row_labels, part, 0.5, w, c, t)
            batches.batch_add(problem.row_loss, fed.rows, part, c, total)
            count += 1
        means.append(total / count + problem.l2 * w)
    exact = problem.client_gradients(problem.unflatten(w))[0].ravel()
    np.testing.assert_allclose(means, [exact, exact], rtol=1e-13)


def test_variance_of_batches_is_that_of_all_of_them():
    """sigma^2 at w*, and the exact second moment after a round, from every draw of one row (n outcomes a client)."""
    X, y, who, _, s = rows(Squared(), False)
    fed = Federation.from_arrays(X, y, who, sample_weight=s)
    problem, eta = Problem(fed, Squared(), 0.1), 0.05
    best = problem.solve().w
    expected = []
    for k in range(fed.K):
        mine = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        relative = fed.sample_weight[mine] / fed.sample_weight[mine].mean()
        G = (relative * (fed.X[mine] @ best - fed.y[mine]))[:, None] * fed.X[mine]
        expected.append(np.mean(np.sum((G - G.mean(axis=0)) ** 2, axis=1)))
    np.testing.assert_allclose(problem.gradient_variance(best), expected, rtol=1e-12)
    wide = problem.constants(batch_size=1, center=best, radius=0.5)
    rng = np.random.default_rng(1)
    for _ in range(20):
        v = best + 0.5 * rng.uniform() * (u := rng.normal(size=3)) / np.linalg.norm(u)
        assert np.all(problem.gradient_variance(v) <= np.asarray(wide.sigma2_k) * (1.0 + 1e-12))
    start = np.array([0.5, -0.5, 1.0])
    moves, squares = [], []
    for k in range(fed.K):
        mine = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        relative = fed.sample_weight[mine] / fed.sample_weight[mine].mean()
        G = (relative * (fed.X[mine] @ start - fed.y[mine]))[:, None] * fed.X[mine] + 0.1 * start
        after = start - eta * G - best
        moves.append(after.mean(axis=0))
        squares.append(np.mean(np.sum(after**2, axis=1)))
    p, mean = problem.weights, problem.weights @ np.array(moves)
    spread = sum(p[k] ** 2 * (squares[k] - moves[k] @ moves[k]) for k in range(fed.K))
    found = Moments(problem, step_size=eta, local_steps=1, batch_size=1).run(1, start=start)
    assert found.deviation[-1] == pytest.approx(float(mean @ mean + spread), rel=1e-11)
    np.testing.assert_allclose(quadratic(problem).minimiser, best, rtol=1e-10)


@pytest.mark.parametrize("loss", [Logistic(), Squared(), Hinge(), SmoothedHinge(0.5)], ids=repr)
@pytest.mark.parametrize("normalisation", ["sum", "mean"])
@pytest.mark.slow_unless(loss=[Logistic(), Hinge()])
def test_tasks(loss, normalisation):
    X, y, who, _, s = rows(loss, False)
    again = np.repeat(np.arange(y.size), s)
    feds = Federation.from_arrays(X, y, who, sample_weight=s), Federation.from_arrays(X[again], y[again], who[again])
    W = np.random.default_rng(1).normal(size=(3, 3))
    for relation in (MeanRegularised(1.0, 0.5), Independent(1.0), Covariance(0.5)):
        a, b = (MultiTaskProblem(fed, loss, relation, normalisation) for fed in feds)
        assert a.value(W) == pytest.approx(b.value(W), rel=1e-13)
        np.testing.assert_allclose(a.gradient(W), b.gradient(W), rtol=1e-11, atol=1e-12)
        if not relation.learned:
            best = a.solve()
            np.testing.assert_allclose(best.w, b.solve().w, rtol=1e-6, atol=1e-6)
            found = run(MOCHA(epochs=3), a, rounds=20, tol=0)
            assert best.lower - 1e-9 <= found.trace.value[-1] <= best.value + found.gap + 1e-9


def test_equal_to_scikit_learn():
    X, y, who, _, s = rows(Logistic(), False, n=60)
    n, l2 = float(s.sum()), 0.05
    fed = Federation.from_arrays(X, y, who, sample_weight=s)
    peer = LogisticRegression(C=1.0 / (l2 * n), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(X, y, s)
    np.testing.assert_allclose(Problem(fed, Logistic(), l2).solve().w, peer.coef_[0], rtol=1e-6)
    balanced = compute_sample_weight("balanced", y)
    fed = Federation.from_arrays(X, y, who, sample_weight=balanced)
    peer = LogisticRegression(C=1.0 / (l2 * balanced.sum()), fit_intercept=False, class_weight="balanced", tol=1e-12)
    np.testing.assert_allclose(Problem(fed, Logistic(), l2).solve().w, peer.fit(X, y).coef_[0], rtol=1e-5)
    target = X @ [1.0, -1.0, 0.5] + y
    fed = Federation.from_arrays(X, target, who, sample_weight=s)
    peer = Ridge(alpha=l2 * n, fit_intercept=False, solver="cholesky").fit(X, target, s)
    np.testing.assert_allclose(Problem(fed, Squared(), l2).solve().w, peer.coef_, rtol=1e-10)


def test_weights_follow_their_rows():
    X, y, who, domain, s = rows(Logistic(), False)
    fed = Federation.from_arrays(X, y, who, domain, s)
    np.testing.assert_allclose(fed.masses, np.bincount(who, s))
    plain = Federation.from_arrays(X, y, who, domain)
    assert fed.digest != plain.digest != Federation.from_arrays(X, y, who, domain, 2 * s).digest
    assert plain.sample_weight is None and "weighted" in repr(fed)
    part = fed.subset([2, 0])
    np.testing.assert_array_equal(part.sample_weight, np.concatenate([s[who == 2], s[who == 0]]))
    train, test = fed.split(0.3)
    assert train.sample_weight.sum() + test.sample_weight.sum() == s.sum()
    np.testing.assert_array_equal(fed.with_intercept().sample_weight, fed.sample_weight)
    copy = pickle.loads(pickle.dumps(fed))
    assert not copy.sample_weight.flags.writeable and copy.digest == fed.digest
    pairs = [(X[who == k], y[who == k]) for k in range(3)]
    listed = Federation.from_clients(pairs, sample_weight=[s[who == k] for k in range(3)])
    np.testing.assert_array_equal(listed.sample_weight, s)
    s[:] = 9
    assert fed.sample_weight.max() == 3.0


@pytest.mark.parametrize(
    "weight, message",
    [
        ([1.0, -1.0, 1.0], "be nonnegative; got -1 at 1"),
        ([1.0, np.nan, 1.0], "be finite"),
        ([1.0, 1.0], "have 3 entries; got 2"),
        ([1.0, 1.0, 0.0], "a row of positive weight; got none for client b"),
        ([1e308, 1e308, 1e308], "have a finite sum"),
        ("heavy", "hold real numbers"),
        (2.0, "be one-dimensional"),
    ],
)
def test_bad_weights_are_refused(weight, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Federation.from_arrays(np.eye(3), np.ones(3), ["a", "a", "b"], sample_weight=weight)


def test_what_does_not_know_of_weights_says_so():
    X, y, who, domain, s = rows(Logistic(), False)
    fed = Federation.from_arrays(X, y, who, domain, s)
    problem = Problem(fed, Logistic(), 0.1)
    with pytest.raises(ValueError, match="exact test counts rows, must get rows without weights"):
        domain_differences(problem, np.zeros(3), np.ones(3))


def test_scores_of_domains():
    """Means are those of repeated rows, errors those of Kish's effective number of rows: here 6^2/18 = 2 of 3."""
    X, y, who, domain, s = rows(Logistic(), False)
    again, w = np.repeat(np.arange(y.size), s), np.array([1.0, -2.0, 0.5])
    a, b = (
        domain_scores(Problem(f, Logistic()), w)
        for f in (
            Federation.from_arrays(X, y, who, domain, s),
            Federation.from_arrays(X[again], y[again], who[again], domain[again]),
        )
    )
    np.testing.assert_allclose([a.loss, a.accuracy], [b.loss, b.accuracy], rtol=1e-13)
    assert a.rows.sum() == y.size and (a.loss_error > b.loss_error).all()
    equal, twice = (
        domain_scores(Problem(Federation.from_arrays(X, y, who, domain, c), Logistic()), w) for c in (None, 2.0 * s**0)
    )
    for name in ("loss", "loss_error", "loss_low", "accuracy_low", "accuracy_high"):
        np.testing.assert_allclose(getattr(equal, name), getattr(twice, name), rtol=1e-13)
    three = Federation.from_arrays(np.eye(3), [0.0, 0.0, 3.0], [0, 0, 0], sample_weight=[1.0, 1.0, 4.0])
    found = domain_scores(Problem(three, Squared()), np.zeros(3))  # losses 0, 0, 4.5; mean 3, weighted variance 4.5
    np.testing.assert_allclose([found.loss[0], found.loss_error[0]], [3.0, 4.5**0.5], rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("loss, sparse", [(Logistic(), True), (Softmax(3), False), (Squared(), True)], ids=repr)
def test_the_contract_with_weights_and_a_free_intercept(loss, sparse, name, tmp_path):
    """Two trajectories: threads and a resumption give the same bits, and gaps cover the suboptimality."""
    X, y, who, _, s = rows(loss, sparse)
    s = np.where(np.arange(y.size) == 5, 0, s)
    problem = Problem(Federation.from_arrays(X, y, who, sample_weight=s).with_intercept(), loss, 0.1, intercept=True)
    how = {"trajectories": 2, "seed": 3, "tol": 0}
    one = quiet(CONFIGURATIONS[name], problem, rounds=4, **how)
    two = quiet(CONFIGURATIONS[name], problem, rounds=4, threads=2, **how)
    quiet(CONFIGURATIONS[name], problem, rounds=2, checkpoint=tmp_path / "c", **how)
    again = quiet(CONFIGURATIONS[name], problem, rounds=4, checkpoint=tmp_path / "c", **how)
    for other in (two, again):
        np.testing.assert_array_equal(other.w, one.w)
        np.testing.assert_array_equal(other.trace.value, one.trace.value)
    assert np.isfinite(one.trace.gap).all()
    if not any(word in name for word in ("AFL", "Agnostic", "Approx", "Softmax")):
        best = problem.solve()
        assert best.value - best.lower <= 1e-11
        assert np.all(one.trace.gap >= one.trace.value - best.value - 1e-14)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("loss, sparse", [(Logistic(), False), (Softmax(3), True)], ids=["dense", "csr"])
def test_compiled(loss, sparse):
    """Kernels compile for records as well, and a client that works alone draws what it draws among others."""
    a, b = pair(loss, sparse)
    method = FedAvg(step_size=0.2, local_steps=3)
    np.testing.assert_allclose(run(method, a, rounds=3).w, run(method, b, rounds=3).w, rtol=1e-10)
    method = FedSGD(step_size=0.2)
    np.testing.assert_allclose(run(method, a, rounds=3).w, run(method, b, rounds=3).w, rtol=1e-10)
    batches_of_two = FedAvg(step_size=0.2, local_steps=3, batch_size=2)
    draws = Draws(key_from_seed(0), np.zeros(1, np.int64), 1)
    message = batches_of_two.broadcast(batches_of_two.init(a, np.zeros((1, *a.model_shape))))
    among, _ = batches_of_two.local(a, message, np.array([[0, 1, 2]]), None, draws)
    alone = Problem(a.federation.subset([1]), loss, a.l2)
    own, _ = batches_of_two.local(alone, message, np.array([[0]]), None, draws)
    np.testing.assert_array_equal(own.w[:, 0], among.w[:, 1])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_frequencies_of_features_count_weight(sparse):
    X, y, who, _, s = rows(Logistic(), True)
    X = X if sparse else X.toarray()
    again = np.repeat(np.arange(y.size), s)
    feds = (
        Federation.from_arrays(X, y, who, sample_weight=0.7 * s),
        Federation.from_arrays(X[again], y[again], who[again]),
    )
    a, b = (fsvrg.frequencies(fed, np.arange(3)) for fed in feds)
    np.testing.assert_allclose(a, b, rtol=1e-14)
    assert 0.0 < a.min() < 1.0
