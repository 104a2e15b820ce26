"""Estimators for the worst domain: the exact minimax solution, federated methods within their gap, conventions."""

import cvxpy as cp
import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedconvex import FedAvg
from fedconvex.estimators import AgnosticClassifier, AgnosticRegressor, FederatedLogisticRegression
from fedconvex.methods import AFL, AgnosticFedAvg, OptimisticAFL
from fedconvex.simplex.uncertainty import KLBall, Point


@parametrize_with_checks([AgnosticClassifier(), AgnosticRegressor()])
@pytest.mark.slow
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture
def rows(rng):
    """Three domains of 30, 12 and 8 rows with models of their own, spread over four clients, and weights."""
    domains = np.repeat(["a", "b", "c"], [30, 12, 8])
    X = rng.normal(size=(50, 3))
    W = {"a": [1.0, 0.5, 0.0], "b": [0.5, -0.5, 1.0], "c": [-1.0, 1.0, 0.0]}
    z = np.array([x @ W[k] for x, k in zip(X, domains, strict=True)]) + 0.3 * rng.normal(size=50)
    return X, z, domains, rng.integers(0, 4, 50), rng.random(50) + 0.5


@pytest.mark.parametrize("weighted", [True, False])
def test_regressor_is_cvxpys(weighted, rows):
    X, y, domains, clients, weight = rows
    s = weight if weighted else np.ones(50)
    model = AgnosticRegressor(l2=0.1).fit(X, y, clients, weight if weighted else None, domains)
    w, b = cp.Variable(3), cp.Variable()
    losses = [
        cp.sum(cp.multiply(s[mine] / s[mine].sum(), (X[mine] @ w + b - y[mine]) ** 2)) / 2
        for mine in (domains == k for k in "abc")
    ]
    objective = cp.Problem(cp.Minimize(cp.maximum(*losses) + 0.05 * cp.sum_squares(w)))
    objective.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    assert model.objective_ == pytest.approx(objective.value, rel=1e-9)
    np.testing.assert_allclose(model.coef_, w.value, atol=1e-5)
    np.testing.assert_allclose(model.domain_losses_, [float(f.value) for f in losses], atol=1e-5)
    assert model.worst_loss_ == model.domain_losses_.max()
    assert model.domain_weights_.sum() == pytest.approx(1.0)
    assert (model.n_clients_, model.domains_.tolist()) == (4, ["a", "b", "c"])
    assert model.gap_ < 1e-9


def test_classifier_is_better_on_its_worst_domain(rows):
    X, z, domains, _, _ = rows
    y = np.digitize(z, [-0.3, 0.3])
    worst, mean = AgnosticClassifier().fit(X, y, domains), FederatedLogisticRegression().fit(X, y, domains)
    losses = [-mean.predict_log_proba(X)[np.arange(50), y][domains == k].mean() for k in "abc"]
    assert worst.worst_loss_ < max(losses) - 0.05
    mine = [-worst.predict_log_proba(X)[np.arange(50), y][domains == k].mean() for k in "abc"]
    np.testing.assert_allclose(worst.domain_losses_, mine, atol=1e-9)
    one = AgnosticClassifier(uncertainty_set=Point([30 / 50, 12 / 50, 8 / 50])).fit(X, y, domains)  # nobody to choose
    np.testing.assert_allclose(one.coef_, mean.coef_, atol=1e-5)
    between = AgnosticClassifier(uncertainty_set=KLBall([1 / 3, 1 / 3, 1 / 3], 0.01)).fit(X, y, domains)
    assert one.worst_loss_ > between.worst_loss_ > worst.worst_loss_


@pytest.mark.parametrize(
    "method",
    [
        OptimisticAFL(step_size=0.3, domain_step_size=0.3),
        AFL(step_size=0.2, domain_step_size=0.2),
        AgnosticFedAvg(step_size=0.2, domain_step_size=0.2),
        "optimistic-afl",
    ],
)
def test_methods_stay_within_their_gap(method, rows):
    X, z, domains, clients, _ = rows
    how = {"step_size": 0.3} if isinstance(method, str) else {}
    best = AgnosticClassifier(l2=0.1).fit(X, z > 0, clients, domains=domains)
    with pytest.warns(UserWarning, match="certified gap"):
        model = AgnosticClassifier(l2=0.1, method=method, max_iter=60, **how).fit(X, z > 0, clients, domains=domains)
    assert -1e-12 <= model.objective_ - best.objective_ <= model.gap_ < 0.3
    assert model.domain_weights_.shape == (3,)
    assert model.n_iter_ == 60


def test_other_methods_are_refused_in_words(rows):
    X, z, domains, clients, _ = rows
    for how, text in [
        ({"method": FedAvg(step_size=0.1)}, "minimise the largest domain loss; got FedAvg: AFL, OptimisticAFL and"),
        ({"method": "afl"}, "'auto', for which no theorem is known"),
        ({"method": AFL(step_size=1, domain_step_size=1), "uncertainty_set": Point([1.0])}, "set it on the method"),
        ({"uncertainty_set": Point([0.5, 0.5])}, "3"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            AgnosticClassifier(**how).fit(X, z > 0, clients, domains=domains)
    with pytest.raises(ValueError, match="domains must name the domain of all 50 rows"):
        AgnosticClassifier().fit(X, z > 0, clients, domains=domains[:3])


def test_domains_are_routed(rows):
    X, z, domains, clients, _ = rows
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(AgnosticRegressor(), {"l2": [0.01, 0.1]}, cv=GroupKFold(3))
        search.fit(X, z, clients=clients, domains=domains, groups=clients)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.domains_.tolist() == ["a", "b", "c"]


def test_one_class(rows):
    X, _, domains, _, _ = rows
    with pytest.warns(UserWarning, match="all labels are 1"):
        model = AgnosticClassifier().fit(X, np.ones(50, int), domains)
    assert (model.predict(X).tolist(), model.domain_losses_.tolist()) == ([1] * 50, [0.0] * 3)
