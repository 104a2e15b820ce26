"""Estimators in searches with rare clients and folds of one class; warm starts; class weights of boosting."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_val_predict

from fedconvex.estimators import (
    AgnosticClassifier,
    AgnosticRegressor,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedMultiTaskClassifier,
    FederatedMultiTaskRegressor,
    FederatedSVC,
    MultiSourceBoostClassifier,
)


@pytest.fixture
def rare():
    """Rows of six clients: one with one row, one with two, one of one class only."""
    rng = np.random.default_rng(0)
    clients = np.repeat(["a", "b", "c", "d", "e", "f"], [12, 1, 10, 2, 9, 5])
    X = rng.normal(size=(clients.size, 3))
    y = (X[:, 0] + 0.5 * rng.normal(size=clients.size) > 0).astype(int)
    y[clients == "f"] = 1
    return X, y, clients


EVERY = [
    (FederatedLogisticRegression(), "l2"),
    (FederatedLinearRegression(), "l2"),
    (FederatedSVC(), "l2"),
    (AgnosticClassifier(), "l2"),
    (AgnosticRegressor(), "l2"),
    (FederatedMultiTaskClassifier(), "lam"),
    (FederatedMultiTaskRegressor(), "lam"),
    (MultiSourceBoostClassifier(4, source_l2=0.1), "n_estimators"),
]


@pytest.mark.parametrize(("estimator", "name"), EVERY, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("split", [GroupKFold(3), pytest.param(LeaveOneGroupOut(), marks=pytest.mark.slow)])
@pytest.mark.slow_unless(estimator=[estimator for estimator, _ in EVERY[::2]])
def test_searches_over_rare_clients_have_no_nan(rare, estimator, name, split):
    X, y, clients = rare
    grid = {name: [2, 4] if name == "n_estimators" else [0.01, 0.1]}
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(estimator, grid, cv=split, error_score="raise").fit(X, y, clients=clients, groups=clients)
        found = cross_val_predict(estimator, X, y, cv=split, params={"clients": clients, "groups": clients})
    scores = [v for k, v in search.cv_results_.items() if k.startswith("split")]
    if not isinstance(split, LeaveOneGroupOut) or estimator.__class__.__name__.endswith("ifier"):
        assert np.isfinite(scores).all()  # R^2 of a single row is not defined
    assert np.isfinite(found).all() and found.shape == y.shape


@pytest.mark.parametrize("label", [0, 1])
def test_training_rows_of_one_class_give_a_constant(rare, label):
    """Two clients, one of either class: the fold without one of them has one class, and no score is NaN."""
    X, _, clients = rare
    y = np.where(np.isin(clients, ["a", "b", "c"]), label, 1 - label)
    pair = np.where(np.isin(clients, ["a", "b", "c"]), "n", "s")
    for estimator, _ in EVERY:
        with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = GridSearchCV(estimator, {}, cv=GroupKFold(2), error_score="raise")
            search.fit(X, y, clients=pair, groups=pair)
        assert np.isfinite([search.cv_results_[f"split{i}_test_score"] for i in range(2)]).all()


def test_boosting_of_one_class_predicts_it(rare):
    X, _, clients = rare
    with pytest.warns(UserWarning, match="MultiSourceBoostClassifier: all labels are 'ill', which is predicted"):
        model = MultiSourceBoostClassifier().fit(X, np.repeat("ill", len(X)), clients)
    assert set(model.predict(X)) == {"ill"} and model.predict_proba(X).tolist() == [[1.0]] * len(X)
    assert model.decision_function(X).tolist() == [0.0] * len(X) and model.gap_ == 0.0 and model.n_clients_ == 6
    with pytest.raises(ValueError, match="Only binary classification is supported: got 3 classes"):
        MultiSourceBoostClassifier().fit(X, np.arange(len(X)) % 3, clients)


def test_class_weights_of_boosting_are_weights_of_rows(rare):
    X, y, clients = rare
    model = MultiSourceBoostClassifier(6, source_model="uniform")
    one = sklearn.base.clone(model).set_params(class_weight={0: 3.0, 1: 1.0}).fit(X, y, clients)
    two = sklearn.base.clone(model).fit(X, y, clients, sample_weight=np.where(y == 0, 3.0, 1.0))
    both = sklearn.base.clone(model).set_params(class_weight="balanced").fit(X, y, clients)
    plain = sklearn.base.clone(model).fit(X, y, clients)
    assert one.decision_function(X).tolist() == two.decision_function(X).tolist()
    assert not np.allclose(both.decision_function(X), plain.decision_function(X))
    mass = np.bincount(y)
    three = sklearn.base.clone(model).fit(X, y, clients, sample_weight=(y.size / (2.0 * mass))[y])
    np.testing.assert_allclose(both.decision_function(X), three.decision_function(X), rtol=1e-10)


@pytest.mark.parametrize(
    "estimator", [FederatedLogisticRegression(), FederatedLinearRegression(), AgnosticClassifier()], ids=str
)
def test_an_exact_solution_starts_at_the_last_fit(rare, estimator):
    """A fit for a nearby l2 takes fewer iterations, and ends where a cold one does."""
    X, y, clients = rare
    warm = sklearn.base.clone(estimator).set_params(warm_start=True, l2=0.1).fit(X, y, clients)
    warm.set_params(l2=0.099).fit(X, y, clients)
    cold = sklearn.base.clone(estimator).set_params(l2=0.099).fit(X, y, clients)
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-8)
    assert warm.n_iter_ < cold.n_iter_ or isinstance(estimator, FederatedLinearRegression)


@pytest.mark.slow
def test_models_per_client_start_at_the_last_fit(rare):
    X, y, clients = rare
    warm = FederatedMultiTaskClassifier("hinge", lam=0.1, warm_start=True, tol=1e-5).fit(X, y, clients)
    first = warm.n_iter_
    again = warm.fit(X, y, clients).n_iter_
    assert again < 0.2 * first and warm.gap_ <= 1e-5 * 6
    cold = FederatedMultiTaskClassifier("hinge", lam=0.09, tol=1e-5).fit(X, y, clients)
    warm.set_params(lam=0.09).fit(X, y, clients)
    np.testing.assert_allclose(warm.objective_, cold.objective_, atol=2e-5 * 6)
    warm.fit(X[:-1], y[:-1], clients[:-1])  # of other rows: from the start
    assert warm.coef_.shape == (6, 3)


def test_a_start_of_another_shape_is_refused():
    from fedconvex import Problem, Squared
    from fedconvex.datasets import linear_federation

    problem = Problem(linear_federation(seed=0).federation, Squared(), 0.1)
    best = problem.solve(1e-9)
    np.testing.assert_allclose(problem.solve(1e-12, start=best.w).w, problem.solve().w, atol=1e-10)
    with pytest.raises(ValueError, match=r"Problem.solve: start must have shape"):
        problem.solve(start=best.w[:-1])
    with pytest.raises(ValueError, match=r"Problem.solve_minimax: start must be finite"):
        problem.solve_minimax(start=np.full(problem.model_shape, np.nan))
