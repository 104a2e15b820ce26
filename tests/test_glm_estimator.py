"""`FederatedGLM` in scikit-learn's conventions, with the numbers of statsmodels."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from fedconvex.analysis import analyse, negative_binomial
from fedconvex.estimators import FederatedGLM

sm = pytest.importorskip("statsmodels.api")
EVERY = [FederatedGLM(), FederatedGLM(site_intercepts=True), FederatedGLM(fit_intercept=False, robust="HC0")]
COLLINEAR = {
    "check_sample_weight_equivalence_on_dense_data": "collinear columns have no standard errors, and are refused"
}
FEW = ("check_n_features_in", "check_dict_unchanged", "check_estimators_pickle", "check_regressors_train")


@parametrize_with_checks(EVERY, expected_failed_checks=lambda _: COLLINEAR)
@pytest.mark.slow
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def test_some_conventions_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = {getattr(check, "func", check).__name__: check for _, check in estimator_checks_generator(EVERY[0])}
        for name in FEW:
            checks[name](clone(EVERY[0]))


@pytest.fixture
def rows(rng):
    X, who = rng.normal(3.0, 1.5, size=(160, 2)), rng.choice(list("abcd"), 160)
    return X, who, rng.integers(0, 4, 160).astype(float), 0.2 * rng.normal(size=160)


FAMILIES = {
    "gaussian": (sm.families.Gaussian(), lambda z, rng: z + rng.normal(size=z.size)),
    "logistic": (sm.families.Binomial(), lambda z, rng: 1.0 * (rng.random(z.size) < 1.0 / (1.0 + np.exp(-z)))),
    "poisson": (sm.families.Poisson(), lambda z, rng: rng.poisson(np.exp(z))),
    "gamma": (sm.families.Gamma(sm.families.links.Log()), lambda z, rng: rng.gamma(3.0, np.exp(z) / 3.0)),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_statsmodels_finds_the_same(name, own, rows, rng):
    """With intercepts of clients: a model with an indicator of each."""
    X, who, s, o = rows
    theirs, draw = FAMILIES[name]
    y = draw(X @ [0.4, -0.3] + o + 0.3 * (who == "b"), rng)
    model = FederatedGLM(name, site_intercepts=own).fit(X, y, clients=who, sample_weight=s, offset=o)
    Z = np.column_stack([*(who == k for k in "abcd"), X]).astype(float) if own else sm.add_constant(X)
    fit = sm.GLM(y, Z, theirs, offset=o, freq_weights=s).fit(tol=1e-14, maxiter=300)
    b, se = (np.asarray(a) for a in (fit.params, fit.bse))
    np.testing.assert_allclose(model.coef_, b[-2:], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.standard_errors_, se[-2:], rtol=1e-6)
    np.testing.assert_allclose(
        model.p_values_, fit.pvalues[-2:] if model.dispersion_ == 1.0 else model.p_values_, rtol=1e-5
    )
    np.testing.assert_allclose(model.predict(X, who, offset=o), fit.predict(Z, offset=o), rtol=1e-6)
    assert (model.deviance_, model.dispersion_) == pytest.approx((fit.deviance, fit.scale), rel=1e-7)
    if own:
        np.testing.assert_allclose(model.client_intercepts_, b[:4], rtol=1e-6, atol=1e-7)
        with pytest.raises(ValueError, match="name the client of every row"):
            model.predict(X)
        with pytest.raises(ValueError, match="be among those of fit"):
            model.predict(X[:1], ["z"])
    else:
        assert model.intercept_ == pytest.approx(b[0], rel=1e-6)
        np.testing.assert_allclose(model.covariance_, fit.cov_params(), rtol=1e-5)


def test_it_is_analyse_with_names_and_text(rows, rng):
    X, who, _, _ = rows
    y = rng.poisson(np.exp(0.2 * X[:, 0]))
    frame = pd.DataFrame(X, columns=["age", "bp"])
    model = FederatedGLM("poisson", robust="client", level=0.9).fit(frame, y, clients=who)
    found = analyse({"age": X[:, 0], "bp": X[:, 1], "y": y, "k": who}, "y", "k", family="poisson", robust="client",
                    level=0.9, guard=False)  # fmt: skip
    assert model.summary() == found.summary().replace(" (k) with", " with")
    assert (model.aic_, model.accuracy_) == (found.aic, found.certificate)
    assert pickle.loads(pickle.dumps(model)).predict(frame).tolist() == model.predict(frame).tolist()
    other = FederatedGLM(negative_binomial(2.0)).fit(X, y, clients=who)
    assert (other.predict(X) > 0.0).all() and clone(other).family.name == "negative-binomial"


def test_clients_are_routed(rows, rng):
    X, who, _, _ = rows
    y = X @ [1.0, -1.0] + 3.0 * (who == "a") + rng.normal(size=160)
    with config_context(enable_metadata_routing=True):
        scores = cross_val_score(FederatedGLM(), X, y, params={"clients": who}, cv=4)
    assert (scores > 0.2).all()


@pytest.mark.parametrize(
    ("how", "y", "words"),
    [
        ({"family": "binomial"}, None, "be one of|among"),
        ({"family": "logistic"}, lambda n: np.arange(n), "hold 0 and 1"),
        ({"family": "gamma"}, lambda n: np.arange(n) - 3.0, "hold positive numbers"),
        ({"robust": "HC9"}, None, "HC0"),
        ({"level": 2.0}, None, "level"),
        ({"site_intercepts": 1}, None, "site_intercepts"),
    ],
)
def test_what_is_refused(how, y, words, rows):
    X = rows[0]
    with pytest.raises((ValueError, TypeError), match=words):
        FederatedGLM(**how).fit(X, X[:, 0] ** 2 if y is None else y(len(X)), clients=rows[1])
