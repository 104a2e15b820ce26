"""The scikit-learn faces keep scikit-learn's conventions, and do what the methods below them do."""

import pickle
import warnings

import cvxpy as cp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedconvex import FedAvg, Hinge, SmoothedHinge, Squared
from fedconvex.estimators import (
    FederatedLogisticRegression,
    FederatedMultiTaskClassifier,
    FederatedMultiTaskRegressor,
    MultiSourceBoostClassifier,
    client_scorer,
)
from fedconvex.estimators.clients import folds
from fedconvex.methods import MOCHA, FedMultiBoost
from fedconvex.problems import Covariance, MeanRegularised, Precision

CROSS_VALIDATED = {
    f"check_sample_weight_equivalence_on_{kind}_data": "a row of weight two is in one fold, two rows are in two"
    for kind in ("dense", "sparse")
}
STUMPS = {
    "check_class_weight_classifiers": "no stump is constant: five that spare the heavy rows take 18 % of new ones"
}
BINNED = {"check_sample_weight_equivalence_on_dense_data": "bins hold as many rows each, whatever these weigh"}


def known_failures(model):
    if isinstance(model, MultiSourceBoostClassifier):
        return STUMPS | BINNED if model.max_bins else STUMPS
    return CROSS_VALIDATED if getattr(model, "lam", None) == "cv" else {}


@parametrize_with_checks(
    [
        MultiSourceBoostClassifier(n_estimators=5),
        MultiSourceBoostClassifier(n_estimators=5, loss="logistic", smoothing=None, max_bins=16),
        FederatedMultiTaskClassifier(),
        FederatedMultiTaskClassifier("logistic", relation="mean", lam="cv", cv=2, lams=[0.001, 0.1]),
        FederatedMultiTaskRegressor(),
        FederatedMultiTaskRegressor(relation="global", fit_intercept=False, lam="cv", cv=3, random_state=0),
    ],
    expected_failed_checks=known_failures,
)
@pytest.mark.slow
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def sources(rng, n=400):
    """Two sources apart in x_1 whose labels depend on x_0 with opposite signs."""
    X, domains = rng.normal(size=(n, 3)), np.array(["near", "far"])[np.arange(n) % 2]
    X[domains == "far", 1] += 6.0
    y = np.where((X[:, 0] > 0) == (domains == "near"), "yes", "no")
    return X, y, domains


def test_one_source_is_adaboost(rng):
    X, y, _ = sources(rng)
    X = X.astype(np.float32).astype(float)
    peer = AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=30, random_state=0).fit(X, y)
    mine = MultiSourceBoostClassifier(n_estimators=30, criterion="gini").fit(X, y)
    np.testing.assert_allclose(2.0 * mine.ensemble_.alpha, peer.estimator_weights_, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(mine.predict(X), peer.predict(X))
    for a, b in zip(mine.staged_predict(X), peer.staged_predict(X), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_q_tells_sources_apart(rng):
    X, y, domains = sources(rng)
    fresh, truth, where = sources(rng)
    good = MultiSourceBoostClassifier(n_estimators=30, random_state=0).fit(X, y, domains)
    assert max(good.domain_errors(fresh, truth, where).values()) < 0.06
    plain = MultiSourceBoostClassifier(n_estimators=30, source_model="uniform").fit(X, y, domains)
    assert good.worst_loss_ < plain.worst_loss_
    assert good.sources_.tolist() == ["far", "near"]
    P = good.predict_proba(fresh)
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    np.testing.assert_array_equal(good.classes_[P.argmax(axis=1)], good.predict(fresh))
    own = MultiSourceBoostClassifier(n_estimators=30, source_model=good.source_model_).fit(X, y, domains)
    np.testing.assert_array_equal(own.predict(fresh), good.predict(fresh))


@pytest.mark.slow
def test_composes_with_scikit_learn(rng):
    X, y, domains = sources(rng, 120)
    model = clone(MultiSourceBoostClassifier(n_estimators=10, random_state=1, source_l2=0.1))
    assert cross_val_score(model, X, y, params={}, cv=3).mean() > 0.4
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_val_score(model, X, y, params={"domains": domains}, cv=3)
    assert scores.mean() > 0.85


def test_boosting_with_clients_and_federated_methods(rng):
    """Domains are the clients where only one of the two is given; steps of the server come with the method."""
    X, y, domains = sources(rng, 24)
    how = {"n_estimators": 3, "source_model": "uniform", "max_bins": 2}
    plain = MultiSourceBoostClassifier(**how).fit(X, y, domains)
    assert plain.fit(X, y, domains=domains).worst_loss_ == plain.worst_loss_
    assert (plain.n_clients_, plain.n_iter_, plain.trace_.value[-1]) == (2, 3, plain.worst_loss_)
    assert 0.0 < plain.gap_ < 1.0
    owners = np.arange(24) // 2 % 4 * 2 + (domains == "far")  # each within a domain
    method = FedMultiBoost(step_size=0.2)
    spread = MultiSourceBoostClassifier(method=method, **how).fit(X, y, owners, domains=domains)
    assert (spread.n_clients_, spread.sources_.tolist()) == (8, ["far", "near"])
    assert spread.trace_.floats_up[-1] > 0
    whole = MultiSourceBoostClassifier(method=method, **how).fit(
        X, y, domains
    )  # everybody answers: who holds what is equal
    np.testing.assert_allclose(spread.decision_function(X), whole.decision_function(X), atol=1e-12)
    loose = MultiSourceBoostClassifier(n_estimators=5, source_model="uniform", tol=1.1).fit(X, y, domains)
    assert (loose.n_iter_, loose.worst_loss_ > 0.9) == (1, True)  # the empty ensemble's loss is 1


def test_weights_of_boosting_are_repeated_rows(rng):
    X, y, domains = sources(rng, 24)
    weight, how = rng.integers(0, 3, 24), {"n_estimators": 4, "source_model": "uniform"}
    many = np.repeat(np.arange(24), weight)
    mine = MultiSourceBoostClassifier(**how).fit(X, y, domains, weight)
    peer = MultiSourceBoostClassifier(**how).fit(X[many], y[many], domains[many])
    np.testing.assert_allclose(mine.decision_function(X), peer.decision_function(X), atol=1e-9)


@pytest.mark.slow
def test_bad_settings(rng):
    X, y, domains = sources(rng, 40)
    for settings, text in [
        ({"n_estimators": 0}, "n_estimators"),
        ({"loss": "hinge"}, "loss"),
        ({"smoothing": -1.0}, "smoothing"),
        ({"source_model": "other"}, "source_model"),
        ({"criterion": "entropy"}, "criterion"),
        ({"max_bins": 300}, "bins"),
        ({"tol": -1.0}, "tol"),
        ({"method": "fedavg"}, "method"),
        ({"method": FedAvg(step_size=0.1)}, "learn"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            MultiSourceBoostClassifier(**settings).fit(X, y, domains)
    with pytest.raises(ValueError, match="name the domain of all 40 rows"):
        MultiSourceBoostClassifier().fit(X, y, domains, domains=domains[:5])
    three = np.arange(40) % 3
    with pytest.raises(ValueError, match="binary"):
        MultiSourceBoostClassifier().fit(X, three, domains)


# ---------------------------------------------------------------- a model per client


def tasks(rng, m=4, n=40, d=5, regression=False, apart=0.6, unequal=True):
    """Rows of m clients in random order, their models around a common one; the last client's is its opposite."""
    common, parts = rng.normal(size=d), []
    for t in range(m):
        N = n + 7 * t * unequal
        X = rng.normal(size=(N, d)) + 0.3
        z = X @ ((common + apart * rng.normal(size=d)) * (-1.0 if t == m - 1 else 1.0)) + 0.5 * rng.normal(size=N)
        parts.append((X, z if regression else np.where(z > 0.2, "yes", "no"), np.full(N, "abcdefghij"[t])))
    X, y, clients = (np.concatenate(p) for p in zip(*parts, strict=True))
    order = rng.permutation(len(y))
    return X[order], y[order], clients[order]


def of_client(name, X, y, clients):
    return X[clients == name], y[clients == name]


PEERS = {  # of sums of losses + (lam/2) ‖w‖^2
    "hinge": lambda lam: LinearSVC(
        loss="hinge", C=1 / lam, tol=1e-10, max_iter=10**6, random_state=0, fit_intercept=False
    ),
    "logistic": lambda lam: LogisticRegression(C=1 / lam, tol=1e-14, solver="newton-cholesky", fit_intercept=False),
    "squared": lambda lam: Ridge(lam, fit_intercept=False),
}


def peer_model(loss, lam, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.ravel(PEERS[loss](lam).fit(np.c_[X, np.ones(len(X))], y).coef_)


def estimator(loss, **how):
    return (FederatedMultiTaskRegressor if loss == "squared" else FederatedMultiTaskClassifier)(loss, **how)


def models(model):
    return np.c_[model.coef_, model.intercept_]


@pytest.mark.parametrize("loss", PEERS)
@pytest.mark.parametrize("lam", [0.3, 4.0])
@pytest.mark.slow_unless(lam=0.3)
def test_local_and_global_models_are_those_of_scikit_learn(loss, lam, rng):
    """Sums of losses, C = 1/lam for every client alone; one model for all m is penalised m times."""
    X, y, clients = tasks(rng, regression=loss == "squared")
    local = estimator(loss, relation="local", lam=lam, normalisation="sum").fit(X, y, clients)
    assert local.clients_.tolist() == list("abcd")
    for t, name in enumerate("abcd"):
        np.testing.assert_allclose(models(local)[t], peer_model(loss, lam, *of_client(name, X, y, clients)), atol=1e-6)
    one = estimator(loss, relation="global", lam=lam, normalisation="sum").fit(X, y, clients)
    np.testing.assert_allclose(models(one), np.tile(peer_model(loss, 4 * lam, X, y), (4, 1)), atol=1e-6)
    alone = estimator(loss, lam=lam, normalisation="sum").fit(X, y)  # no clients: one task, nothing to learn of others
    np.testing.assert_allclose(models(alone)[0], peer_model(loss, lam, X, y), atol=1e-6)
    assert alone.relationship_.tolist() == [[1.0]]


@pytest.mark.slow
def test_mean_and_joint_relations_are_those_of_cvxpy(rng):
    """Squared loss averaged per client; a common model w_0, and the squared nuclear norm."""
    X, y, clients = tasks(rng, 4, 12, 3, regression=True)
    for relation in ("mean", "joint"):
        model = FederatedMultiTaskRegressor(relation=relation, lam=0.3, tol=1e-9).fit(X, y, clients)
        W, w0 = cp.Variable((4, 4)), cp.Variable(4)
        loss = 0
        for t, name in enumerate("abcd"):
            A, b = of_client(name, X, y, clients)
            loss += cp.sum_squares(np.c_[A, np.ones(len(A))] @ W[t] - b) / (2 * len(b))
        if relation == "mean":
            penalty = cp.sum_squares(w0) + cp.sum_squares(W - cp.vstack([w0] * 4))
        else:
            penalty = cp.square(cp.normNuc(W))
        problem = cp.Problem(cp.Minimize(loss + 0.15 * penalty))
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        np.testing.assert_allclose(models(model), W.value, atol=1e-6 if relation == "mean" else 1e-4)
        assert model.objective_ == pytest.approx(problem.value, rel=1e-8)
        assert model.gap_ <= 1e-9 * model.objective_
        assert np.trace(model.relationship_) == pytest.approx(1.0)
        if relation == "joint":
            root = np.real(scipy.linalg.sqrtm(models(model) @ models(model).T))
            np.testing.assert_allclose(model.relationship_, root / np.trace(root), atol=1e-6)
        else:  # w_t = w_0 + own part, of equal variances
            np.testing.assert_allclose(model.correlations_, 0.5 + 0.5 * np.eye(4), atol=1e-12)


@pytest.mark.slow
def test_relationship_objects_and_functions(rng):
    X, y, clients = tasks(rng, 3)
    named = FederatedMultiTaskClassifier("logistic", relation="mean", lam=0.2).fit(X, y, clients)
    own = FederatedMultiTaskClassifier("logistic", relation=MeanRegularised(0.1 * 0.75, 0.1 * 0.25)).fit(X, y, clients)
    np.testing.assert_allclose(models(own), models(named), atol=1e-12)
    assert (named.lam_, own.lam_) == (0.2, None)
    path = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    chain = FederatedMultiTaskClassifier(relation=lambda lam: Precision.laplacian(path, lam, 0.1 * lam), lam=0.5)
    found = chain.fit(X, y, clients).correlations_
    assert found[0, 1] == pytest.approx(found[1, 2])
    assert found[0, 1] > found[0, 2] > 0
    given = np.diag([0.2, 0.3, 0.5])
    found = FederatedMultiTaskClassifier(relation=Covariance(0.1, omega=given)).fit(X, y, clients)
    np.testing.assert_allclose(found.relationship_, given, atol=1e-12)
    smooth = [FederatedMultiTaskClassifier(loss).fit(X, y, clients) for loss in ("smoothed_hinge", SmoothedHinge(0.5))]
    np.testing.assert_array_equal(smooth[0].coef_, smooth[1].coef_)


@pytest.mark.slow
def test_learned_relationship_finds_who_is_alike():
    """Three clients alike and one opposite: better than local and global models on average, and the signs are found."""
    score = {"joint": [], "local": [], "global": []}
    for seed in range(5):
        X, y, clients = tasks(np.random.default_rng(seed), 4, 30, 20, apart=0.2)
        train = np.arange(len(y)) % 2 == 0
        for relation, found in score.items():
            model = FederatedMultiTaskClassifier("logistic", relation=relation, lam=0.1)
            model.fit(X[train], y[train], clients[train])
            found.append(model.score(X[~train], y[~train], clients[~train]))
            if relation == "joint":
                signs = np.sign(model.correlations_)
                np.testing.assert_array_equal(signs, np.outer([1, 1, 1, -1], [1, 1, 1, -1]))
    assert np.mean(score["joint"]) > max(np.mean(score["local"]), np.mean(score["global"])) + 0.02


@pytest.mark.slow
def test_predictions_are_of_the_rows_own_client(rng):
    X, y, clients = tasks(rng)
    model = FederatedMultiTaskClassifier("logistic").fit(X, y, clients)
    z = model.decision_function(X, clients)
    by_hand = [
        x @ model.coef_["abcd".index(c)] + model.intercept_["abcd".index(c)] for x, c in zip(X, clients, strict=True)
    ]
    np.testing.assert_allclose(z, by_hand, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X, clients), model.classes_[(z >= 0).astype(int)])
    P = model.predict_proba(X, clients)
    np.testing.assert_allclose(P[:, 1], 1 / (1 + np.exp(-z)), atol=1e-15)
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    assert not hasattr(FederatedMultiTaskClassifier("hinge"), "predict_proba")
    share = {c: np.mean(model.predict(X, clients)[clients == c] == y[clients == c]) for c in "abcd"}
    assert model.client_scores(X, y, clients) == pytest.approx(share)
    assert model.score(X, y, clients) == pytest.approx(np.mean(model.predict(X, clients) == y))
    only = clients == "b"
    assert model.client_scores(X[only], y[only], clients[only]) == pytest.approx({"b": share["b"]})
    sparse = clone(model).fit(sp.csr_matrix(X), y, clients)
    np.testing.assert_allclose(sparse.decision_function(sp.csr_matrix(X), clients), z, rtol=0.02, atol=0.02)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).decision_function(X, clients), z)
    names = {"a": 7, "b": 3, "c": 11, "d": 5}
    other = clone(model).fit(X, y, [names[c] for c in clients])
    assert other.clients_.tolist() == [3, 5, 7, 11]
    found = other.decision_function(X, np.array([names[c] for c in clients], dtype=float))  # 3.0 is client 3
    np.testing.assert_allclose(found, z, rtol=0.1, atol=0.1)  # tol is 1e-3, draws are by label


@pytest.mark.slow
def test_unknown_clients(rng):
    X, y, clients = tasks(rng)
    model = FederatedMultiTaskClassifier(unknown="error").fit(X, y, clients)
    with pytest.raises(ValueError, match="among those of fit; got 'z': unknown='mean'"):
        model.predict(X, np.where(clients == "b", "z", clients))
    with pytest.raises(ValueError, match="whose of 4 models"):
        model.predict(X)
    model.set_params(unknown="mean")
    z = model.decision_function(X, np.where(clients == "b", "z", clients))
    mean = X @ model.coef_.mean(axis=0) + model.intercept_.mean()
    np.testing.assert_allclose(z, np.where(clients == "b", mean, model.decision_function(X, clients)), atol=1e-12)
    with pytest.warns(UserWarning, match="all rows are predicted by the mean of 4 models"):
        np.testing.assert_allclose(model.decision_function(X), mean, atol=1e-12)
    assert FederatedMultiTaskClassifier().unknown == "mean"


@pytest.mark.parametrize("method", ["mocha", "cocoa", MOCHA(epochs=2)])
def test_federated_methods_stay_within_their_gap(method, rng):
    X, y, clients = tasks(rng, 3, 10, 3)
    how = {"relation": "mean", "lam": 0.3}
    best = FederatedMultiTaskClassifier(**how).fit(X, y, clients)
    model = FederatedMultiTaskClassifier(method=method, max_iter=300, tol=1e-3, **how).fit(X, y, clients)
    assert -1e-12 <= model.objective_ - best.objective_ + best.gap_ <= model.gap_ + best.gap_ <= 3e-3 + best.gap_
    assert model.trace_.gap[-1] == model.gap_
    assert model.trace_.floats_up[-1] > 0
    with pytest.raises(TypeError, match="FedAvg: problem must learn one model"):
        FederatedMultiTaskClassifier(method="fedavg", step_size=0.1).fit(X, y, clients)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_weights_are_repeated_rows(loss, rng):
    X, y, clients = tasks(rng, 3, 10, 3, regression=loss == "squared")
    weight = rng.integers(0, 3, len(y))
    many = np.repeat(np.arange(len(y)), weight)
    mine = estimator(loss, relation="mean", tol=1e-9).fit(X, y, clients, weight)
    peer = estimator(loss, relation="mean", tol=1e-9).fit(X[many], y[many], clients[many])
    np.testing.assert_allclose(models(mine), models(peer), atol=1e-6)
    if loss == "logistic":
        balanced = estimator(loss, relation="mean", class_weight="balanced", tol=1e-9).fit(X, y, clients)
        share = np.where(y == "yes", 0.5 / np.mean(y == "yes"), 0.5 / np.mean(y == "no"))
        peer = estimator(loss, relation="mean", tol=1e-9).fit(X, y, clients, share)
        np.testing.assert_allclose(models(balanced), models(peer), atol=1e-9)


def test_clients_are_known_by_name_however_it_is_held(rng):
    X, y, letters = tasks(rng, 3, 10, 3)
    clients = np.unique(letters, return_inverse=True)[1]
    model = FederatedMultiTaskClassifier(unknown="error").fit(X, y, clients)
    for names in (clients.astype(float), clients.astype(str)):
        assert model.decision_function(X, names).tolist() == model.decision_function(X, clients).tolist()


@pytest.mark.parametrize("estimator", [FederatedMultiTaskClassifier, FederatedLogisticRegression])
def test_missing_labels_and_negative_weights(estimator, rng):
    X, y, _ = tasks(rng, 3, 10, 3)
    with pytest.raises(ValueError, match="y must have no missing label"):
        estimator().fit(X, np.where(np.arange(len(y)) == 3, None, y))
    with pytest.raises(ValueError, match=r"sample_weight must be nonnegative; got -1.0$"):
        estimator().fit(X, y, sample_weight=np.full(len(y), -1.0))


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_equal_weights_are_repeated_rows_of_a_sum(loss, rng):
    """Beside a sum over rows the relationship weighs half as much where every row counts twice."""
    X, y, clients = tasks(rng, 3, 10, 3, regression=loss == "squared")
    how = {"relation": "mean", "lam": 1.0, "normalisation": "sum", "tol": 1e-9}
    mine = estimator(loss, **how).fit(X, y, clients, np.full(len(y), 2.0))
    twice = np.tile(np.arange(len(y)), 2)
    np.testing.assert_allclose(
        models(mine), models(estimator(loss, **how).fit(X[twice], y[twice], clients[twice])), atol=1e-6
    )


# ---------------------------------------------------------------- scikit-learn's tools


@pytest.mark.slow
def test_scorers_by_name_ask_every_clients_own_model(rng):
    """Leaving clients out entirely, their rows are predicted by the mean; no fold is NaN."""
    X, y, clients = tasks(rng, 4, 20, 3, apart=0.1)
    code, model = (y == "yes").astype(int), FederatedMultiTaskClassifier("logistic", relation="local")
    held = np.arange(len(y)) % 3 == 0
    model.fit(X[~held], code[~held], clients[~held])
    own = client_scorer("roc_auc")(model, X[held], code[held], clients=clients[held])
    assert own == pytest.approx(roc_auc_score(code[held], model.predict_proba(X[held], clients[held])[:, 1]))
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = make_pipeline(StandardScaler(), clone(model))
        both, scorer = {"clients": clients, "groups": clients}, client_scorer("accuracy")
        found = cross_val_score(pipe, X, code, params=both, scoring=scorer, cv=LeaveOneGroupOut())
        within = cross_val_score(pipe, X, code, params={"clients": clients}, scoring=scorer, cv=StratifiedKFold(3))
    assert np.isfinite(found).all()
    assert within.mean() > 0.7 > found.mean()  # the last client's model is the opposite of the others'
    assert repr(client_scorer("roc_auc")) == "client_scorer('roc_auc')"
    with pytest.raises(ValueError, match="auc_roc"):
        client_scorer("auc_roc")


@pytest.mark.slow
def test_clients_are_routed(rng):
    """Pipelines, searches and cross-validation hand the clients of the right rows on, without being asked twice."""
    X, y, clients = tasks(rng, 3, 60, 4, apart=0.1)
    pipe = make_pipeline(StandardScaler(), FederatedMultiTaskClassifier(lam=0.05, tol=3e-3))
    folds_ = StratifiedKFold(3)
    with sklearn.config_context(enable_metadata_routing=True):
        found = cross_val_score(pipe, X, y, params={"clients": clients}, cv=folds_)
        wrong = cross_val_score(pipe, X, y, params={"clients": rng.permutation(clients)}, cv=folds_)
        grid = {"federatedmultitaskclassifier__relation": ["joint", "global"]}
        search = GridSearchCV(pipe, grid, cv=folds_).fit(X, y, clients=clients)
        best = search.best_estimator_.predict(X, clients=clients)  # a search's own predict takes no metadata
        assert search.score(X, y, clients=clients) == pytest.approx(np.mean(best == y))
        asked = FederatedMultiTaskClassifier(tol=3e-3).set_fit_request(clients=True).set_predict_request(clients=True)
        asked.set_score_request(clients=True).set_decision_function_request(clients=True)
        assert cross_val_score(asked, X, y, params={"clients": clients}, cv=folds_).mean() > 0.85
        silent = clone(asked).set_score_request(clients=False)
        with pytest.warns(UserWarning, match="mean of 3 models"):
            cross_val_score(silent, X, y, params={"clients": clients}, cv=folds_, error_score="raise")
    by_hand = []
    for train, test in folds_.split(X, y):
        scaler = StandardScaler().fit(X[train])
        model = FederatedMultiTaskClassifier(lam=0.05, tol=3e-3).fit(
            scaler.transform(X[train]), y[train], clients[train]
        )
        by_hand.append(np.mean(model.predict(scaler.transform(X[test]), clients[test]) == y[test]))
    np.testing.assert_allclose(found, by_hand)
    assert found.mean() > 0.85 > wrong.mean()
    assert search.best_params_ == {"federatedmultitaskclassifier__relation": "joint"}


def test_parameters_survive_cloning():
    for cls in (FederatedMultiTaskClassifier, FederatedMultiTaskRegressor):
        how = {"relation": "mean", "lam": 2.0, "tol": 1e-5, "normalisation": "sum", "cv": 4, "unknown": "mean"}
        model = clone(cls(**how))
        assert how.items() <= model.get_params().items()
        assert "relation='mean'" in repr(model)
    assert FederatedMultiTaskClassifier().get_params()["loss"] == "hinge"
    assert FederatedMultiTaskRegressor().get_params()["loss"] == "squared"


@pytest.mark.parametrize("k", [2, 3, 5])
def test_folds_are_even_within_clients_and_classes(k, rng):
    code, strata = rng.integers(0, 5, 200), rng.integers(0, 2, 200)
    code = np.append(code, [5, 6, 6])  # one row, two rows
    strata = np.append(strata, [0, 1, 0])
    fold = folds(code, strata, k, np.random.RandomState(1))
    assert fold[200] == -1
    assert fold[201] != fold[202]
    assert (fold[:200] >= 0).all()
    for t in range(5):
        for rows in (code == t, (code == t) & (strata == 0), (code == t) & (strata == 1)):
            assert np.ptp(np.bincount(fold[rows], minlength=k)) <= 1
    firsts = [folds(code, strata, k, np.random.RandomState(s))[0] for s in range(200)]
    assert np.abs(np.bincount(firsts, minlength=k) / 200 - 1 / k).max() < 4.5 * np.sqrt(1 / k / 200)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.slow
def test_lam_is_chosen_by_held_out_rows(loss, rng):
    """The choice, the scores and their spread are those of a plain loop over the same folds."""
    X, y, clients = tasks(rng, 3, 14, 6, regression=loss == "squared")
    lams, code = [1.0, 0.01, 0.1], np.unique(clients, return_inverse=True)[1]
    how = {"relation": "mean", "cv": 4}
    model = estimator(loss, lam="cv", lams=lams, random_state=3, **how).fit(X, y, clients)
    strata = np.zeros(len(y), int) if loss == "squared" else (y == "yes").astype(int)
    fold, scores = folds(code, strata, 4, np.random.RandomState(3)), np.empty((4, 3))
    for j in range(4):
        held = fold == j
        for i, lam in enumerate([1.0, 0.1, 0.01]):
            alone = estimator(loss, lam=lam, **how).fit(X[~held], y[~held], clients[~held])
            guess = alone.predict(X[held], clients[held])
            good = -((guess - y[held]) ** 2) if loss == "squared" else guess == y[held]
            scores[j, i] = np.mean([good[code[held] == t].mean() for t in np.unique(code[held])])
    found = model.cv_results_
    np.testing.assert_array_equal(found["param_lam"], [1.0, 0.1, 0.01])
    np.testing.assert_allclose(found["mean_test_score"], scores.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(found["std_test_score"], scores.std(axis=0), atol=1e-9)
    np.testing.assert_allclose(found["split2_test_score"], scores[2], atol=1e-9)
    assert model.lam_ == [1.0, 0.1, 0.01][scores.mean(axis=0).argmax()]
    assert found["largest_gap"].max() <= 0.01
    again = estimator(loss, lam=model.lam_, relation="mean").fit(X, y, clients)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert not hasattr(clone(model).set_params(lam=0.1).fit(X, y, clients), "cv_results_")
    assert not hasattr(model.set_params(lam=0.1).fit(X, y, clients), "cv_results_")


@pytest.mark.slow
def test_equal_scores_take_the_largest_lam():
    X, y = np.tile([[1.0], [-1.0]], (20, 1)), np.tile([1, 0], 20)
    model = FederatedMultiTaskClassifier(lam="cv", relation="local", lams=[0.1, 0.001, 0.01]).fit(X, y)
    assert model.lam_ == 0.1


@pytest.mark.slow
def test_models_that_did_not_converge_are_reported_with_their_gap(rng):
    X, y, clients = tasks(rng)
    with pytest.warns(ConvergenceWarning, match=r"certified gap of"):
        model = FederatedMultiTaskClassifier(lam=1e-3, tol=1e-8, max_iter=4).fit(X, y, clients)
    assert model.n_iter_ == 4
    best = FederatedMultiTaskClassifier(lam=1e-3, tol=1e-7, max_iter=100_000).fit(X, y, clients)
    zero = 4.0  # the objective of zero models: every client's mean hinge is 1
    assert best.gap_ <= 1e-7 * zero
    assert model.gap_ > 1e-8 * zero
    assert 0 < model.objective_ - best.objective_ <= model.gap_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FederatedMultiTaskClassifier(lam=1e-3).fit(X, y, clients).gap_ <= 1e-4 * zero


@pytest.mark.slow
def test_bad_settings_of_multi_task_estimators(rng):
    X, y, clients = tasks(rng)
    for settings, text in [
        ({"loss": "squared"}, "loss"),
        ({"relation": "both"}, "relation"),
        ({"relation": lambda lam: lam}, "relation"),
        ({"relation": Precision(np.eye(3), 1.0, 1.0)}, "4 tasks"),
        ({"relation": MeanRegularised(1.0, 1.0), "lam": "cv"}, "function of lam"),
        ({"lam": 0.0}, "lam"),
        ({"lam": "best"}, "lam"),
        ({"lam": None}, "lam"),
        ({"lam": "cv", "lams": [1.0, -1.0]}, "lams"),
        ({"lam": "cv", "lams": []}, "lams"),
        ({"lam": "cv", "cv": 1}, "cv"),
        ({"normalisation": "none"}, "normalisation"),
        ({"fit_intercept": "yes"}, "fit_intercept"),
        ({"tol": 0.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"unknown": "skip"}, "unknown"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            FederatedMultiTaskClassifier(**settings).fit(X, y, clients)
    for wrong, text in [
        (clients[:5], "name the client of all"),
        (np.tile(clients, (2, 1)).T, "name the client of all"),
        (np.where(clients == "b", None, clients), "missing"),
        (np.where(clients == "b", np.nan, 1.0), "missing"),
    ]:
        with pytest.raises(ValueError, match=text):
            FederatedMultiTaskClassifier().fit(X, y, wrong)
    with pytest.warns(UserWarning, match="all labels are 1.0, which is predicted for every row"):
        constant = FederatedMultiTaskClassifier("logistic").fit(X, np.ones(len(y)), clients)
    assert set(constant.predict(X, clients)) == {1.0}
    assert set(constant.predict_proba(X, clients).ravel()) == {1.0}
    with pytest.raises(ValueError, match="NaN"):
        FederatedMultiTaskRegressor().fit(np.where(X > 2, np.nan, X), np.arange(len(y)), clients)
    one_class = FederatedMultiTaskClassifier(Hinge(), relation="mean").fit(
        X, np.where(clients == "a", "no", y), clients
    )
    assert set(one_class.predict(X[clients == "a"], clients[clients == "a"])) == {"no"}


@pytest.mark.parametrize(
    "clients",
    [
        ["a", "a", "b", np.nan],
        ["a", "a", "b", None],
        [0.0, 0.0, 1.0, np.nan],
        np.array(["2020-01-01", "2020-01-01", "2020-01-02", "NaT"], dtype="datetime64[D]"),
        ["a", "a", 1, 1.0],
    ],
)
def test_missing_and_mixed_clients_are_refused(clients):
    X, y = np.arange(8.0).reshape(4, 2), np.array([0.0, 1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match=r"name the client of every row|be all names or all numbers"):
        FederatedMultiTaskRegressor().fit(X, y, clients=clients)


def test_dates_are_clients_too():
    X, y = np.arange(12.0).reshape(6, 2) % 5, np.array([0.0, 1.0, 0.0, 1.0, 2.0, 1.0])
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]").repeat(2)
    model = FederatedMultiTaskRegressor().fit(X, y, clients=days)
    np.testing.assert_array_equal(model.predict(X, days.astype("datetime64[ns]")), model.predict(X, days))
    assert len(model.client_scores(X, y, days.astype("datetime64[ns]"))) == 3
    with pytest.raises(ValueError, match="y must have shape"):
        model.client_scores(X, y[:-1], days)


@pytest.mark.parametrize("size", [1e-161, 0.0])
def test_tiny_labels_end(size, rng):
    X, clients = rng.normal(size=(20, 3)), np.arange(20) % 2
    model = FederatedMultiTaskRegressor().fit(X, size * rng.normal(size=20), clients=clients)
    assert np.abs(model.coef_).max() < 1e-100


@pytest.mark.parametrize("most", [1, 3, 8])
def test_passes_are_counted(most, rng):
    X, y, clients = tasks(rng)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        model = FederatedMultiTaskClassifier(lam=1e-6, max_iter=most).fit(X, y, clients=clients)
    assert model.n_iter_ == most


def test_of_equal_scores_the_largest_lam_is_taken():
    """Means over folds of equal shares differ by an ulp, and the first maximum would be another lam."""
    rng = np.random.default_rng(2)
    X, clients = rng.normal(size=(36, 2)), np.arange(36) % 3
    y = (X[:, 0] + 0.7 * rng.normal(size=36) > 0.0).astype(int)
    model = FederatedMultiTaskClassifier(Squared(), relation="local", lam="cv", cv=5, random_state=0)
    model.fit(X, y, clients=clients)
    scores = model.cv_results_["mean_test_score"]
    assert scores[0] == pytest.approx(scores.max(), abs=1e-12)
    assert model.lam_ == model.cv_results_["param_lam"].max() == 10.0
