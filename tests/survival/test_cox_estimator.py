"""`FederatedCox` in scikit-learn's conventions: attributes, routing, text, warnings, and the values of others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from statsmodels.duration.hazard_regression import PHReg

from fedconvex.estimators import FederatedCox
from fedconvex.problems import outcomes


@pytest.fixture(scope="module")
def diabetes():
    data, i = load_diabetes(scaled=False, as_frame=True), np.arange(442)
    return data.data.iloc[:, :4], outcomes(data.target, i % 4 != 0), i % 3


def test_attributes_and_text(diabetes):
    """R: coxph(..., ties = "efron") + strata(client), as in test_cox_values; its summary gives the same test values."""
    X, y, clients = diabetes
    model = clone(FederatedCox(level=0.9)).fit(X, y, clients=clients)
    assert np.allclose(model.standard_errors_**2, np.diag(model.covariance_))
    assert abs(model.coef_[2] - -0.1576899253) < 5e-11 and abs(model.standard_errors_[2] - 0.01618467661) < 5e-11
    assert abs(2 * (model.log_likelihood_ - model.null_log_likelihood_) - 179.83729876) < 1e-6
    assert abs(model.score_statistic_ - 166.737384632) < 1e-8
    assert (model.n_events_, model.n_rows_, model.n_clients_, model.clients_.tolist()) == (331, 442, 3, [0, 1, 2])
    assert abs(model.proportional_hazards_.overall - 8.27741375173) < 1e-8 and model.accuracy_ < 1e-9
    assert np.array_equal(model.predict(X), X.to_numpy() @ model.coef_)
    assert model.score(X, y, clients) == model.concordance_ and round(model.concordance_, 10) == 0.7314480464
    text = model.summary()
    assert "331 events" in text and "exp(coef) lower 90%" in text and "concordance 0.7314" in text
    line = next(line for line in text.splitlines() if line.startswith("bmi"))
    shown = [float(cell) for cell in line.split()[1:]]
    half = 1.6448536269514722 * model.standard_errors_[2]
    b = model.coef_[2]
    expected = [b, np.exp(b), model.standard_errors_[2], b - half, b + half, np.exp(b - half), np.exp(b + half)]
    assert np.allclose(shown[:7], expected, rtol=6e-4) and np.isclose(
        shown[7], b / model.standard_errors_[2], rtol=6e-4
    )


def test_robust_standard_errors(diabetes):
    X, y, clients = diabetes
    model = FederatedCox(robust=True).fit(X, y, clients=clients)
    assert abs(model.standard_errors_[2] - 0.006006788565) < 1e-11 and "CR0 by client" in model.summary()


def test_one_client_and_scikit_survival_names_and_entry(rng):
    n = 80
    X, late = rng.normal(size=(n, 2)), rng.random(n)
    theirs = np.empty(n, dtype=[("Status", "?"), ("Survival_in_days", "<f8")])
    theirs["Status"], theirs["Survival_in_days"] = rng.random(n) < 0.7, late + rng.exponential(np.exp(-X[:, 0]))
    model = FederatedCox(ties="breslow").fit(X, theirs, entry=late)
    other = PHReg(theirs["Survival_in_days"], X, status=theirs["Status"].astype(int), entry=late, ties="breslow")
    assert np.abs(other.score(model.coef_)).max() < 1e-8
    assert np.allclose(model.standard_errors_, np.sqrt(np.diag(np.linalg.inv(-other.hessian(model.coef_)))))
    assert "one client" in model.summary()
    named = outcomes(theirs["Survival_in_days"], theirs["Status"], late, ["u", "v"] * 40)
    same = FederatedCox().fit(X, named[["event", "time"]], clients=["a"] * n, entry=late, strata=["u", "v"] * 40)
    assert np.array_equal(same.coef_, FederatedCox().fit(X, named, clients=["a"] * n).coef_)


def test_monotone_likelihoods_warn_with_the_column():
    i = np.arange(40)
    X = pd.DataFrame({"wave": np.sin(i), "treated": (i % 3 == 0).astype(float)})
    with pytest.warns(ConvergenceWarning, match="rises without end along treated"):
        model = FederatedCox().fit(X, outcomes(i * 1.0, i % 3 == 0))
    assert np.isnan(model.standard_errors_).all() and model.proportional_hazards_ is None
    assert "no maximum is certified" in model.summary()
    with pytest.warns(ConvergenceWarning, match="collinear"):
        FederatedCox().fit(np.column_stack([np.sin(i), 2.0 * np.sin(i)]), outcomes(i * 1.0, i % 2 == 0))


def test_refused(rng):
    X, y = rng.normal(size=(6, 1)), outcomes(np.arange(6.0), [1, 0, 1, 1, 0, 1])
    for make, words in (
        (lambda: FederatedCox(ties="exact").fit(X, y), "be one of 'efron', 'breslow'"),
        (lambda: FederatedCox(robust="yes").fit(X, y), "be True or False"),
        (lambda: FederatedCox(level=1.0).fit(X, y), "level must lie strictly between 0 and 1; got 1.0"),
        (lambda: FederatedCox().fit(X[:4], y), "have one time for each of 4 rows"),
        (lambda: FederatedCox().fit(X, np.arange(6.0)), "be a structured array"),
        (lambda: FederatedCox().fit(np.where(X > 0, np.nan, X), y), "NaN"),
        (lambda: FederatedCox().fit(X, y, clients=[1, 2]), "clients"),
        (lambda: FederatedCox(level=1.5).fit(X, y).summary(), "level"),
        (lambda: FederatedCox().predict(X), "not fitted"),
    ):
        with pytest.raises((ValueError, TypeError, NotFittedError), match=words):
            make()
