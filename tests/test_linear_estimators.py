"""Estimators of one linear model: equal to scikit-learn's own on pooled rows; conventions, tools, federated methods."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from fedconvex import FedAvg, Logistic, Problem, run
from fedconvex.estimators import FederatedLinearRegression, FederatedLogisticRegression, FederatedSVC
from fedconvex.federation import Federation
from fedconvex.methods import AFL, FedProx

EVERY = [
    FederatedLogisticRegression(),
    FederatedLogisticRegression(method="fedavg", max_iter=50, tol=1e-3, client_weights="uniform"),
    FederatedLinearRegression(),
    FederatedLinearRegression(l2=0.0, fit_intercept=False, method="fedavg", max_iter=20),
    FederatedSVC(),
    FederatedSVC("smoothed_hinge", method="fedsgd", max_iter=20, warm_start=True),
]
FEW = ("check_n_features_in", "check_dict_unchanged", "check_sample_weight_equivalence_on_dense_data")


@parametrize_with_checks(EVERY)
@pytest.mark.slow
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", EVERY[:3:2], ids=lambda e: type(e).__name__)
@pytest.mark.slow
def test_some_conventions_of_scikit_learn(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = {getattr(check, "func", check).__name__: check for _, check in estimator_checks_generator(estimator)}
        for name in FEW:
            checks[name](clone(estimator))


@pytest.fixture
def rows(rng):
    """90 rows of 5 unequal clients, their weights, and targets for every kind of estimator."""
    X, clients = rng.normal(size=(90, 4)) + 0.5, rng.choice(list("abcde"), 90, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    z = X @ [1.0, -1.0, 0.5, 0.0] + 0.7 * rng.normal(size=90)
    weight = rng.integers(0, 4, 90).astype(float)
    return X, clients, np.where(z > 0.3, "yes", "no"), np.digitize(z, [0.0, 1.0]), z, weight


# ---------------------------------------------------------------- equal to scikit-learn's own estimators


def logistic(C, **how):
    return LogisticRegression(C=C, tol=1e-14, solver="newton-cholesky", max_iter=1000, **how)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("several", [True, False])
def test_logistic_regression_is_scikit_learns(several, class_weight, weighted, intercept, rows):
    """C = 1/(l2 n), n the total weight."""
    X, clients, two, three, _, weight = rows
    y, how = three if several else two, {"fit_intercept": intercept, "class_weight": class_weight}
    sample_weight = weight if weighted else None
    total = weight.sum() if weighted else 90.0
    mine = FederatedLogisticRegression(l2=0.02, **how).fit(X, y, clients, sample_weight)
    if class_weight is None or not weighted:
        peer = logistic(1.0 / (0.02 * total), **how).fit(X, y, sample_weight)
    else:  # scikit-learn before 1.7 balances rows, not their weights
        mass = {c: weight[y == c].sum() for c in np.unique(y)}
        balance = weight * [total / (len(mass) * mass[c]) for c in y]
        peer = logistic(1.0 / (0.02 * total), fit_intercept=intercept).fit(X, y, balance)
    np.testing.assert_allclose(mine.coef_, peer.coef_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(mine.intercept_, peer.intercept_ - several * peer.intercept_.mean(), rtol=0, atol=1e-8)
    np.testing.assert_allclose(mine.predict_proba(X), peer.predict_proba(X), rtol=0, atol=1e-8)
    np.testing.assert_allclose(mine.predict_log_proba(X), peer.predict_log_proba(X), rtol=0, atol=1e-7)
    np.testing.assert_allclose(mine.decision_function(X), peer.decision_function(X) - several * peer.intercept_.mean())
    np.testing.assert_array_equal(mine.predict(X), peer.predict(X))
    assert mine.gap_ < 1e-10
    assert mine.n_clients_ == 5


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_linear_regression_is_ridge(weighted, intercept, rows):
    """Alpha = l2 n."""
    X, clients, _, _, y, weight = rows
    sample_weight, total = (weight, weight.sum()) if weighted else (None, 90.0)
    mine = FederatedLinearRegression(l2=0.3, fit_intercept=intercept).fit(X, y, clients, sample_weight)
    peer = Ridge(0.3 * total, fit_intercept=intercept).fit(X, y, sample_weight)
    np.testing.assert_allclose(mine.coef_, peer.coef_, rtol=0, atol=1e-8)
    assert mine.intercept_ == pytest.approx(peer.intercept_, abs=1e-8)
    np.testing.assert_allclose(mine.predict(X), peer.predict(X), rtol=0, atol=1e-8)


def test_support_vectors_are_scikit_learns(rows):
    """C = 1/(l2 n) of the machine with a free intercept."""
    X, clients, y, *_ = rows
    mine = FederatedSVC(l2=0.1).fit(X, y, clients)
    peer = SVC(kernel="linear", C=1.0 / (0.1 * 90), tol=1e-13).fit(X, y)
    np.testing.assert_allclose(mine.coef_, peer.coef_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mine.intercept_, peer.intercept_, rtol=0, atol=1e-6)


def test_uniform_weights_let_clients_weigh_the_same(rows):
    X, clients, y, *_ = rows
    names, code, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    mine = FederatedLogisticRegression(client_weights="uniform").fit(X, y, clients)
    peer = FederatedLogisticRegression().fit(X, y, sample_weight=1.0 / sizes[code])
    np.testing.assert_allclose(mine.coef_, peer.coef_, atol=1e-9)
    assert mine.clients_.tolist() == names.tolist()
    assert (peer.n_clients_, mine.n_clients_) == (1, 5)


def test_rows_without_weight_do_not_exist(rows):
    X, clients, _, y, _, weight = rows
    weight = np.where(clients == "b", 0.0, 1.0)
    mine = FederatedLogisticRegression(client_weights="uniform").fit(X, y, clients, weight)
    peer = FederatedLogisticRegression(client_weights="uniform").fit(X[weight > 0], y[weight > 0], clients[weight > 0])
    np.testing.assert_array_equal(mine.coef_, peer.coef_)
    assert mine.clients_.tolist() == list("acde")


def test_sparse_rows_and_frames(rows):
    X, clients, y, *_ = rows
    dense, names = FederatedLogisticRegression().fit(X, y, clients), ["age", "dose", "heart", "lung"]
    sparse = FederatedLogisticRegression().fit(sp.csr_array(X), y, clients)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=1e-9)
    np.testing.assert_allclose(sparse.predict_proba(sp.csr_matrix(X)), dense.predict_proba(X), atol=1e-9)
    frame = pd.DataFrame(X, columns=names)
    model = FederatedLogisticRegression().fit(frame, pd.Series(y), clients=pd.Series(clients))
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(model.predict(frame), dense.predict(X))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[names[::-1]])


# ---------------------------------------------------------------- federated methods


@pytest.mark.parametrize("kind", [FederatedLogisticRegression, FederatedLinearRegression])
@pytest.mark.parametrize("method", ["fedavg", "FedSGD", "scaffold", FedAvg(step_size="auto")])
def test_methods_reach_the_solution_within_their_gap(kind, method, rows):
    X, clients, two, _, z, _ = rows
    X, y = StandardScaler().fit_transform(X), two if kind is FederatedLogisticRegression else z
    best = kind(l2=0.1).fit(X, y, clients)
    model = kind(l2=0.1, method=method, tol=1e-7).fit(X, y, clients)
    null = np.log(2.0) if kind is FederatedLogisticRegression else np.var(z) / 2.0
    assert 0.0 <= model.objective_ - best.objective_ + 1e-13 <= model.gap_ + 1e-13 <= 1e-7 * null + 2e-13
    np.testing.assert_allclose(model.coef_, best.coef_, atol=2e-3)
    assert model.trace_.gap[-1] == model.gap_
    assert model.n_iter_ == model.trace_["round"][-1] > 1
    assert (np.diff(model.trace_.floats_up) > 0).all()
    assert "1/" in model.step_size_
    assert (best.step_size_, len(best.trace_.gap)) == (None, 1)


@pytest.mark.parametrize("kind", [FederatedLogisticRegression, FederatedLinearRegression])
def test_settings_that_exact_solutions_do_not_use_are_checked(kind, rows):
    X, clients, two, _, z, _ = rows
    y = two if kind is FederatedLogisticRegression else z
    for step in (-1.0, 0.0, np.nan, "large", None):
        with pytest.raises((ValueError, TypeError), match=f"{kind.__name__}.step_size must be "):
            kind(step_size=step).fit(X, y, clients)
    with pytest.raises(ValueError, match="cannot be used to seed"):
        kind(random_state="seven").fit(X, y, clients)
    usual = kind().fit(X, y, clients).coef_
    np.testing.assert_array_equal(kind(step_size=0.5, random_state=3).fit(X, y, clients).coef_, usual)


def test_fit_does_what_run_does(rows):
    X, clients, y, *_ = rows
    method = FedAvg(step_size=0.2, local_steps=2, batch_size=1, participation=0.6)
    with pytest.warns(ConvergenceWarning, match="certified gap of"):
        model = FederatedLogisticRegression(method=method, max_iter=4, random_state=7).fit(X, y, clients)
    fed = Federation.from_arrays(X, np.where(y == "yes", 1.0, -1.0), clients).with_intercept()
    result = run(method, Problem(fed, Logistic(), 0.01, intercept=True), rounds=4, tol=0.0, seed=7)
    np.testing.assert_array_equal(np.append(model.coef_, model.intercept_), result.w)


@pytest.mark.slow
def test_warm_starts_go_on(rows):
    X, clients, _, y, *_ = rows
    X = StandardScaler().fit_transform(X)
    with pytest.warns(ConvergenceWarning):
        some = FederatedLogisticRegression(method="fedavg", max_iter=8, warm_start=True).fit(X, y, clients)
    with pytest.warns(ConvergenceWarning):
        whole = FederatedLogisticRegression(method="fedavg", max_iter=16).fit(X, y, clients)
    with pytest.warns(ConvergenceWarning):
        some.fit(X, y, clients)
    np.testing.assert_allclose(some.coef_, whole.coef_, atol=1e-12)
    with pytest.warns(ConvergenceWarning):  # another shape starts afresh
        some.fit(X[:, :2], y, clients)
    assert some.coef_.shape == (3, 2)


def test_the_hinge_gets_decaying_steps(rows):
    X, clients, y, *_ = rows
    with pytest.warns(ConvergenceWarning):
        model = FederatedSVC(l2=0.5, method="fedavg", max_iter=60).fit(X, y, clients)
    assert "decaying" in model.step_size_
    best = FederatedSVC(l2=0.5).fit(X, y, clients)
    assert -1e-12 < model.objective_ - best.objective_ < 0.05


def test_methods_that_do_not_fit_are_refused_in_words(rows):
    X, clients, y, *_ = rows
    for how, text in [
        ({"method": "newton"}, "FederatedLogisticRegression.method must be one of solve, .*fedavg"),
        ({"method": FedAvg}, "be 'solve', a method's name or a method"),
        ({"method": "fedprox"}, r"leaves open proximal_mu: method=FedProx\(proximal_mu=..., step_size=...\)"),
        ({"method": AFL(step_size=0.1, domain_step_size=0.1)}, "minimise the mean loss over all rows; got AFL"),
        ({"method": "afl"}, "'auto', for which no theorem is known"),
        ({"method": "mocha"}, "MOCHA"),
        ({"method": FedAvg(step_size=0.1), "step_size": 0.2}, "set it on the method"),
        ({"method": "fedavg", "step_size": -1.0}, "FedAvg.step_size must be"),
        ({"l2": -1.0}, "FederatedLogisticRegression.l2"),
        ({"tol": 0.0}, "FederatedLogisticRegression.tol"),
        ({"max_iter": 0}, "FederatedLogisticRegression.max_iter"),
        ({"fit_intercept": "yes"}, "FederatedLogisticRegression.fit_intercept"),
        ({"client_weights": "rows"}, "FederatedLogisticRegression.client_weights"),
        ({"class_weight": {"yes": -1.0, "no": 1.0}}, "class_weight must be positive"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            FederatedLogisticRegression(**how).fit(X, y, clients)
    with (
        pytest.raises(ValueError, match=r"FedAvg diverged in .* rounds; take a smaller step_size"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        FederatedLinearRegression(method="fedavg", step_size=1e3).fit(X, X[:, 0], clients)
    with pytest.raises(ValueError, match=r"FederatedSVC.l2 must be positive"):
        FederatedSVC(l2=0.0).fit(X, y, clients)
    prox = FederatedLogisticRegression(method=FedProx(proximal_mu=0.1, step_size=0.5), tol=1e-2).fit(X, y, clients)
    assert prox.score(X, y) > 0.7


def test_bad_rows_are_refused_in_words(rows):
    X, clients, y, *_ = rows
    for how, text in [
        ({"clients": clients[:5]}, "clients must name the client of all 90 rows"),
        ({"clients": np.where(clients == "a", None, clients)}, "missing values"),
        ({"sample_weight": np.full(90, -1.0)}, "sample_weight must be nonnegative"),
        ({"sample_weight": np.zeros(90)}, "sample_weight must be positive for at least one row"),
    ]:
        with pytest.raises(ValueError, match=text):
            FederatedLogisticRegression().fit(X, y, **how)
    with pytest.raises(ValueError, match=r"Only binary .* OneVsRestClassifier\(FederatedSVC"):
        FederatedSVC().fit(X, np.arange(90) % 3, clients)
    assert OneVsRestClassifier(FederatedSVC()).fit(X, rows[3]).score(X, rows[3]) > 0.6


def test_one_class_is_predicted_everywhere_with_a_warning(rows):
    X, clients, *_ = rows
    with pytest.warns(UserWarning, match="all labels are 'yes'"):
        model = FederatedLogisticRegression().fit(X, np.full(90, "yes"), clients)
    assert set(model.predict(X)) == {"yes"}
    assert model.predict_proba(X).tolist() == [[1.0]] * 90


# ---------------------------------------------------------------- scikit-learn's tools


@pytest.mark.slow
def test_clients_are_routed_to_fit(rows):
    """Through a pipeline, with folds that keep clients together; wrong clients would be seen in uniform weights."""
    X, clients, y, *_ = rows
    pipe = make_pipeline(StandardScaler(), FederatedLogisticRegression(client_weights="uniform"))
    folds = GroupKFold(3)
    with sklearn.config_context(enable_metadata_routing=True):
        both = {"clients": clients, "groups": clients}
        found = cross_val_predict(pipe, X, y, params=both, cv=LeaveOneGroupOut(), method="decision_function")
        search = GridSearchCV(pipe, {"federatedlogisticregression__l2": [1e-2, 1e-1]}, cv=folds, scoring="accuracy")
        search.fit(X, y, **both)
    for name in "ab":
        held = clients == name
        scaler = StandardScaler().fit(X[~held])
        alone = FederatedLogisticRegression(client_weights="uniform")
        alone.fit(scaler.transform(X[~held]), y[~held], clients[~held])
        np.testing.assert_allclose(found[held], alone.decision_function(scaler.transform(X[held])), atol=1e-9)
    assert search.best_estimator_[-1].n_clients_ == 5
    plain = GridSearchCV(pipe, {"federatedlogisticregression__l2": [1e-2, 1e-1]}, cv=folds)  # without routing
    plain.fit(X, y, groups=clients, federatedlogisticregression__clients=clients)
    np.testing.assert_allclose(plain.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


@pytest.mark.slow
def test_rare_clients_and_classes_give_no_nan(rng):
    """Seven clients, most of one or two rows, some of one class; a class that a single client has."""
    clients = np.repeat(np.arange(7), [20, 10, 5, 2, 2, 1, 1])
    X = rng.normal(size=(len(clients), 3))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=len(clients)) > 0, "yes", "no")
    y[clients >= 4] = "yes"
    y[clients == 3] = "rare"
    for model in (FederatedLogisticRegression(), OneVsRestClassifier(FederatedSVC())):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            name = "l2" if isinstance(model, FederatedLogisticRegression) else "estimator__l2"
            search = GridSearchCV(
                model,
                {name: [1e-2, 1e-1] if name == "l2" else [0.1, 0.2]},
                cv=GroupKFold(7),
                scoring=["accuracy", "f1_micro"],
                refit="accuracy",
            )
            search.fit(X, y, groups=clients, **({"clients": clients} if name == "l2" else {}))
        scores = [v for k, v in search.cv_results_.items() if "test_" in k]
        assert np.isfinite(np.array(scores)).all()
    one_class = np.where(clients == 0, "yes", "no")  # held out, the rest is of one class
    with pytest.warns(UserWarning, match="all labels are 'no'"):
        scores = cross_val_score(
            FederatedLogisticRegression(), X, one_class, groups=clients, cv=GroupKFold(7), params={"clients": clients}
        )
    assert np.isfinite(scores).all()
    assert scores.min() == 0.0


@pytest.mark.slow
def test_named_scorers_and_calibration(rows):
    X, clients, y, *_ = rows
    code = (y == "yes").astype(int)
    for name in ("roc_auc", "neg_log_loss", "neg_brier_score", "balanced_accuracy"):
        assert np.isfinite(
            cross_val_score(FederatedLogisticRegression(), X, code, scoring=name, params={"clients": clients})
        ).all()
    calibrated = CalibratedClassifierCV(FederatedSVC(l2=0.1), cv=3).fit(X, y, clients=clients)
    assert calibrated.score(X, y) > 0.75
    assert all(inner.estimator.n_clients_ > 1 for inner in calibrated.calibrated_classifiers_)


@pytest.mark.slow
def test_parameters_survive_cloning(rows):
    X, clients, y, *_ = rows
    model = FederatedLogisticRegression(
        l2=0.3, method=FedAvg(step_size=0.5, local_steps=3), class_weight={"yes": 2.0, "no": 1.0}
    )
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert "l2=0.3" in repr(again)
    search = GridSearchCV(clone(model).set_params(tol=0.1), {"method": ["solve", FedAvg(step_size=0.1)]}, cv=2)
    assert np.isfinite(search.fit(X, y, clients=clients).cv_results_["mean_test_score"]).all()
