"""`VerticalLogisticRegression`: a list of tables, one an owner, equal to the pooled fit."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from fedconvex import Federation, Logistic, Problem, Softmax
from fedconvex.estimators import VerticalLogisticRegression
from fedconvex.methods import FedAvg, FedBCD

rng = np.random.default_rng(0)
A, B = rng.normal(size=(40, 2)), rng.normal(size=(40, 3))
Y = np.where(A[:, 0] + B[:, 0] + rng.normal(size=40) > 0, "pays", "defaults")


def pooled(y, loss, l2, *blocks):
    X = np.hstack(blocks)
    return Problem(Federation(X, y, np.array([0, len(y)])), loss, l2).solve()


def test_fits_are_those_of_joined_columns():
    """Binary and three classes, with an intercept and without, dense and sparse, exact and by rounds."""
    one = np.ones((40, 1))
    best = pooled(np.where(Y == "pays", 1.0, -1.0), Logistic(), 0.05, A, B, one)
    for method in ("verticalnewtoncg", FedBCD(local_steps=3), "solve"):
        model = VerticalLogisticRegression(l2=0.05, method=method, tol=1e-8, max_iter=3000)
        model.fit({"shop": A, "bank": sp.csr_array(B)}, Y)
        assert best.value - 1e-13 <= model.objective_ <= best.value + model.gap_ + 1e-13
        assert model.gap_ <= 1e-8
        np.testing.assert_allclose(np.hstack([*model.coefs_, model.intercept_[:, None]])[0], best.w, atol=1e-3)
        scores = model.decision_function({"shop": A, "bank": B})
        np.testing.assert_allclose(scores, A @ model.coefs_[0][0] + B @ model.coefs_[1][0] + model.intercept_)
        assert model.owners_.tolist() == ["shop", "bank"]
    P = model.predict_proba({"shop": A, "bank": B})
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.log(P), model.predict_log_proba({"shop": A, "bank": B}))
    assert (model.predict({"shop": A, "bank": B}) == model.classes_[P.argmax(axis=1)]).all()
    y = rng.integers(0, 3, 40)
    model = VerticalLogisticRegression(l2=0.1, fit_intercept=False).fit([A, B], y)
    np.testing.assert_allclose(model.coef_, pooled(y.astype(float), Softmax(3), 0.1, A, B).w, atol=1e-6)
    assert model.intercept_.tolist() == [0.0, 0.0, 0.0]
    assert model.predict([A, B]).shape == (40,)


def test_one_table_in_blocks_is_what_searches_take():
    from sklearn.model_selection import cross_val_score

    pandas = pytest.importorskip("pandas")
    model = VerticalLogisticRegression(l2=0.05, blocks=[[0, 1], [2, 3, 4]])
    scores = cross_val_score(model, np.hstack([A, B]), Y, cv=2)
    assert scores.shape == (2,)
    assert scores.min() > 0.5
    frame = pandas.DataFrame(np.hstack([A, B]), columns=list("abcde"))
    named = clone(model).set_params(blocks=[list("ab"), list("cde")]).fit(frame, Y)
    np.testing.assert_array_equal(named.coef_, VerticalLogisticRegression(l2=0.05).fit([A, B], Y).coef_)
    with pytest.raises(ValueError, match="table of 1 must have the columns c, d, e, as in fit; got c, e, d"):
        named.set_params(blocks=[list("ab"), list("ced")]).predict(frame)


def test_a_warm_start_is_already_there():
    model = VerticalLogisticRegression(l2=0.05, method="verticalacceleratedgradient", warm_start=True).fit([A, B], Y)
    first = model.n_iter_
    assert model.fit([A, B], Y).n_iter_ == 1 < first


def named(X, order=1):
    """Return a frame whose rows have names."""
    return pd.DataFrame(X, index=[f"row {i}" for i in range(len(X))][::order])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.fit(A, Y), "X must be a list of tables, one an owner; got ndarray: pass blocks="),
        (lambda m: m.fit([], Y), "X must be a list of tables"),
        (lambda m: m.fit([A, B[:5]], Y), "have the same rows"),
        (lambda m: m.fit([A, B], Y[:5]), "one label per row"),
        (lambda m: m.fit([A, B], ["pays"] * 40), "y must hold at least two classes"),
        (lambda m: m.fit([A, B * np.nan], Y), "table of 1 contains NaN"),
        (lambda m: m.fit([0 * A, B], Y), "owner 0 must have an entry that is not zero"),
        (lambda m: m.set_params(l2=0).fit([A, B], Y), "l2 must be positive"),
        (lambda m: m.set_params(blocks=[[0], [9]]).fit(A, Y), "blocks must name columns of X"),
        (lambda m: m.set_params(blocks=[0, 1]).fit(A, Y), "blocks must be lists of columns"),
        (lambda m: m.set_params(blocks=5).fit(A, Y), "blocks must be lists of columns"),
        (lambda m: m.set_params(blocks=[]).fit(A, Y), "blocks must be lists of columns"),
        (lambda m: m.set_params(blocks=[[0], [1]]).fit([A, B], Y), "X must be one table where blocks are given"),
        (lambda m: m.set_params(blocks=[[0, 1], [-1]]).fit(A, Y), "hold every column once; got column 1 of X twice"),
        (lambda m: m.set_params(method="fedbcd", step_size=0.1).fit([A, B], Y), "FedBCD, which has no step size"),
        (lambda m: m.fit([named(A), named(B, -1)], Y), "table of 1 must have its rows in the order of the others"),
        (lambda m: m.set_params(method=FedAvg(step_size=0.1)).fit([A, B], Y), "be one over columns of several owners"),
        (lambda m: m.fit([A, B], Y).predict([A]), r"be tables of \[0, 1\], in this order"),
        (lambda m: m.fit([A, B], Y).predict([B, A]), "table of 0 must have 2 columns, as in fit; got 3"),
        (lambda m: m.fit([A, B], Y).predict([A, B[:3]]), "table of 1 must have 40 rows"),
        (lambda m: m.predict([A, B]), "is not fitted yet"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(VerticalLogisticRegression())
