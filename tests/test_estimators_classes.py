"""Multi-task estimators for more than two classes: one multinomial problem, or one class against all others."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from fedconvex import Federation, Hinge, Logistic, Softmax, Squared
from fedconvex.estimators import FederatedMultiTaskClassifier
from fedconvex.methods import MOCHA
from fedconvex.problems import Covariance, MeanRegularised, MultiTaskProblem, OneVsRest

NAMES = np.array(["run", "sit", "walk"])


def rows_of(seed=0, m=3, n=25, d=4):
    """Rows of three clients with models around common ones, in three classes."""
    rng = np.random.default_rng(seed)
    X, clients = rng.normal(size=(m * n, d)), np.repeat(list("cab")[:m], n)
    common = rng.normal(size=(3, d))
    models = {name: common + 0.6 * rng.normal(size=(3, d)) for name in np.unique(clients)}
    z = np.array([models[c] @ x for x, c in zip(X, clients, strict=True)]) + 0.3 * rng.normal(size=(m * n, 3))
    return X, NAMES[z.argmax(axis=1)], clients


def test_multinomial_fits_are_the_problem_s_solution():
    X, y, clients = rows_of()
    model = FederatedMultiTaskClassifier("logistic", relation="mean", lam=0.1, tol=1e-9).fit(X, y, clients)
    code = np.unique(y, return_inverse=True)[1].astype(float)
    fed = Federation.from_arrays(X, code, clients).with_intercept()
    best = MultiTaskProblem(fed, Softmax(3), MeanRegularised(0.05 * 0.75, 0.05 * 0.25), "mean").solve()
    np.testing.assert_allclose(model.coef_, best.w[..., :4], atol=1e-6)
    np.testing.assert_allclose(model.intercept_, best.w[..., 4], atol=1e-6)
    assert model.objective_ == pytest.approx(best.value, rel=1e-9)
    z = model.decision_function(X, clients)
    assert z.shape == (75, 3)
    t = model.clients_.tolist().index("b")
    np.testing.assert_allclose(
        z[clients == "b"], X[clients == "b"] @ model.coef_[t].T + model.intercept_[t], atol=1e-12
    )
    np.testing.assert_array_equal(model.predict(X, clients), model.classes_[z.argmax(axis=1)])
    P = model.predict_proba(X, clients)
    np.testing.assert_allclose(P, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), rtol=1e-12)
    assert model.score(X, y, clients) > 0.8
    assert set(model.client_scores(X, y, clients)) == {"a", "b", "c"}
    with pytest.warns(UserWarning, match="mean of 3 models"):
        mean = model.decision_function(X)
    np.testing.assert_allclose(mean, X @ model.coef_.mean(axis=0).T + model.intercept_.mean(axis=0), atol=1e-12)


@pytest.mark.slow
def test_local_models_are_scikit_learns():
    """(lam/2) ‖W‖^2 and mean losses: C = 1/(lam n_t), the intercept penalised as the weight of a column of ones."""
    X, y, clients = rows_of()
    model = FederatedMultiTaskClassifier("logistic", relation="local", lam=0.2, fit_intercept=False, tol=1e-10)
    model.fit(X, y, clients)
    for t, name in enumerate(model.clients_):
        mine = clients == name
        peer = LogisticRegression(C=1.0 / (0.2 * mine.sum()), fit_intercept=False, tol=1e-10, max_iter=10_000)
        np.testing.assert_allclose(model.coef_[t], peer.fit(X[mine], y[mine]).coef_, atol=1e-4)


@pytest.mark.parametrize("relation", ["mean", pytest.param("joint", marks=pytest.mark.slow)])
def test_one_against_the_rest_is_a_binary_fit_for_each_class(relation):
    X, y, clients = rows_of(n=10)
    model = FederatedMultiTaskClassifier("smoothed_hinge", relation=relation, lam=0.1, tol=1e-5).fit(X, y, clients)
    binary = FederatedMultiTaskClassifier("smoothed_hinge", relation=relation, lam=0.1, tol=1e-5)
    gaps = []
    for c, name in enumerate(model.classes_):
        one = clone(binary).fit(X, (y == name).astype(int), clients)
        np.testing.assert_array_equal(model.coef_[:, c], one.coef_)
        np.testing.assert_array_equal(model.intercept_[:, c], one.intercept_)
        np.testing.assert_array_equal(model.relationship_[c], one.relationship_)
        np.testing.assert_array_equal(model.correlations_[c], one.correlations_)
        gaps.append(one.gap_)
    assert model.gap_ == pytest.approx(sum(gaps), rel=1e-12)
    assert model.lam_.tolist() == [0.1] * 3
    assert model.score(X, y, clients) > 0.8
    assert not hasattr(model, "predict_proba")
    assert not hasattr(FederatedMultiTaskClassifier("logistic", multi_class="ovr").fit(X, y, clients), "predict_proba")


def test_one_vs_rest_problems_add_up():
    """OneVsRest is its C problems: their solutions side by side, values and lower bounds as sums."""
    X, y, clients = rows_of()
    code = np.unique(y, return_inverse=True)[1].astype(float)
    fed = Federation.from_arrays(X, code, clients)
    every = OneVsRest(fed, Logistic(), MeanRegularised(0.1, 0.05), "mean")
    best = every.solve()
    assert (every.n_classes, best.w.shape) == (3, (3, 3, 4))
    for c, problem in enumerate(every.problems):
        one = Federation(fed.X, np.where(fed.y == c, 1.0, -1.0), fed.ptr, labels=fed.labels)
        alone = MultiTaskProblem(one, Logistic(), MeanRegularised(0.1, 0.05), "mean").solve()
        np.testing.assert_allclose(best.w[:, c], alone.w, atol=1e-7)
        assert problem.federation.labels.tolist() == fed.labels.tolist()
    total = sum(p.solve().value for p in every.problems)
    assert best.value == pytest.approx(total, rel=1e-12)
    assert best.gap == pytest.approx(sum(p.solve().gap for p in every.problems), rel=1e-6, abs=1e-14)
    z = np.stack([p.scores(best.w[:, c]) for c, p in enumerate(every.problems)], axis=1)
    np.testing.assert_array_equal(every.scores(best.w), z)
    np.testing.assert_array_equal(every.predict(best.w), z.argmax(axis=1))
    names = np.repeat(fed.labels, fed.sizes)
    np.testing.assert_allclose(every.scores(best.w, fed.X, names), z, atol=1e-12)


@pytest.mark.slow
def test_lam_is_chosen_for_several_classes():
    X, y, clients = rows_of(n=20)
    for how in ({"loss": "logistic"}, {"loss": "hinge"}):
        model = FederatedMultiTaskClassifier(**how, relation="mean", lam="cv", lams=[1e-3, 0.1, 10.0], cv=3, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(X, y, clients)
        results = model.cv_results_ if how["loss"] == "hinge" else [model.cv_results_]
        lams = np.atleast_1d(model.lam_)
        for lam, one in zip(lams, results, strict=True):
            scores = one["mean_test_score"]
            assert lam == one["param_lam"][np.flatnonzero(scores == scores.max())[0]]
            assert scores.max() > 0.6


@pytest.mark.slow
def test_federated_methods_and_warm_starts_take_several_classes():
    X, y, clients = rows_of(n=10)
    how = {"loss": "logistic", "relation": "mean", "lam": 0.1}
    best = FederatedMultiTaskClassifier(**how, tol=1e-8).fit(X, y, clients)
    model = FederatedMultiTaskClassifier(**how, method=MOCHA(epochs=2.0), tol=1e-6).fit(X, y, clients)
    assert best.objective_ - 1e-12 <= model.objective_ <= best.objective_ + model.gap_
    for how in ({"loss": "logistic", "relation": "mean"}, {"loss": "hinge"}):
        warm = FederatedMultiTaskClassifier(**how, lam=0.1, warm_start=True, tol=1e-5).fit(X, y, clients)
        cold = warm.n_iter_
        assert warm.set_params(lam=0.099).fit(X, y, clients).n_iter_ <= cold


def test_losses_that_cannot_say_so():
    X, y, clients = rows_of(n=8)
    for settings, text in [
        ({"multi_class": "multinomial"}, r"multi_class must be 'ovr' for this loss; got 'multinomial' with Hinge"),
        ({"multi_class": "both"}, "multi_class must be one of .auto., .ovr., .multinomial."),
        ({"loss": Softmax(4)}, r"loss must be for 3 classes; got Softmax\(n_classes=4\): use Softmax\(3\)"),
        ({"loss": Softmax(3), "multi_class": "ovr"}, "multi_class must be 'multinomial' for this loss"),
    ]:
        with pytest.raises(ValueError, match=text):
            FederatedMultiTaskClassifier(**settings).fit(X, y, clients)
    with pytest.raises(ValueError, match="loss must be for 2 classes"):
        FederatedMultiTaskClassifier(Softmax(2)).fit(X, y == "run", clients)
    fed = Federation.from_arrays(X, np.zeros(len(y)), clients)
    with pytest.raises(ValueError, match=r"OneVsRest: labels must be whole numbers 0, \.\.\., C - 1 of at least two"):
        OneVsRest(fed, Hinge(), Covariance(0.1))
    with pytest.raises(TypeError, match=r"OneVsRest.loss must have one score"):
        OneVsRest(fed, Softmax(3), Covariance(0.1))
    two = OneVsRest(Federation.from_arrays(X, np.arange(len(y)) % 2 * 1.0, clients), Squared(), Covariance(0.1))
    with pytest.raises(ValueError, match=r"OneVsRest: models W must have shape \(3, 2, 4\)"):
        two.predict(np.zeros((3, 4)))
