"""`compare` in a study whose target has three classes: what the pooled command finds, and what is not told."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from fedconvex import Federation, Problem
from fedconvex.losses import Softmax
from fedconvex.study import comparing_site
from fedconvex.study.comparing_coordinator import Search
from fedconvex.study.runs_asked import questions
from tests.study.test_comparing import alike, conducted, pooled, written

LIMITS = "parameters = 0.5\nsummed = 1e5\nshare = 1e5\n"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(("sums", "splits", "kinds"), [("true", 1, ["pooled", "afl"]), ("false", 4, ["pooled"])])
def test_it_is_the_pooled_comparison(tmp_path, sums, splits, kinds):
    """The same decision and l2, figures to 1e-8."""
    ask = f"compare = {{ kinds = {json.dumps(kinds)}, splits = {splits}, folds = 2 }}"
    results = conducted(tmp_path, written(tmp_path, ask, sums, 3, LIMITS))
    found = json.loads(results["compare.json"])
    alike(found, pooled(3, kinds, splits=splits, folds=2), 1e-8)
    assert {m["method"] for m in found["methods"]} == {"base rate", "alone", *kinds}


@pytest.mark.parametrize("kinds", ["", 'kinds = ["pooled", "afl"], '])
def test_models_of_several_classes_are_asked_for(tmp_path, kinds):
    """A block of parameters for each class; a share of the rows is allowed for those of all but one."""
    (question,) = questions(written(tmp_path, f"compare = {{ {kinds}folds = 2 }}", classes=3))
    plan = question.plan
    assert plan.kinds == (("pooled", "afl", "alone") if kinds else ("pooled", "alone"))
    assert plan.loss == Softmax(3) and plan.size == 3 * plan.p and question.parameters == 2 * plan.p


def test_tied_models_are_of_two_classes(tmp_path):
    with pytest.raises(
        ValueError, match=r"kinds must be of two classes or numbers; got mean-regularised: leave it out"
    ):
        written(tmp_path, 'compare = { kinds = ["pooled", "mean-regularised"] }', classes=3)


def test_what_a_site_answers_is_that_of_its_rows():
    """Value, gradient and Hessian of a flat model, and zeros where few rows would make them up."""
    rng = np.random.default_rng(1)
    X, y = np.column_stack([rng.normal(size=(40, 2)), np.ones(40)]), rng.integers(0, 3, 40).astype(float)
    part = Problem(Federation.from_clients([(X, y)]), Softmax(3), l2=0.0)
    W = rng.normal(size=(2, 9))
    W[1] = 0.0
    far = 1e3 * np.array([1.0, 0.3, 0.0])
    far[2] = -X[7] @ far  # between the score of one row and those of all others
    W[1, :3] = far
    W[1, 8] = -1e6  # a class that no row may have
    told = comparing_site._pooled(part, 0.5, np.ones(2), W)
    assert told["lost"].tolist() == [0.0, 1.0] and not told["bend"][1].any() and not told["slope"][1].any()
    S = X @ W[0].reshape(3, 3).T
    P = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True)
    G = (P - np.eye(3)[y.astype(int)]).T @ X / 40
    np.testing.assert_allclose(told["loss"][0], -0.5 * np.log(P[np.arange(40), y.astype(int)]).mean(), rtol=1e-12)
    np.testing.assert_allclose(told["slope"][0], 0.5 * G.ravel(), atol=1e-14)
    H = sum(np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x)) for p, x in zip(P, X, strict=True)) / 40
    np.testing.assert_allclose(told["bend"][0], 0.5 * H[np.triu_indices(9)], atol=1e-14)


def test_scores_of_classes_are_rows_of_a_matrix():
    X, w = np.array([[1.0, 2.0]]), np.array([1.0, 0.0, 0.0, 3.0])
    assert comparing_site.scores_at(X, w).tolist() == [[1.0, 6.0]]
    assert comparing_site.scores_at(X, w[:2]).tolist() == [1.0]


def test_what_intercepts_have_in_common_has_a_curvature():
    """Along it no loss changes: rounding of sums is taken from gradients, and a Newton step stays finite."""
    search = SimpleNamespace(plan=SimpleNamespace(outputs=3, p=2), free=np.array([True, False]))
    u = np.tile([0.0, 3**-0.5], 3)
    slopes = np.arange(12.0).reshape(2, 6)
    wanted, hessians = slopes.copy(), np.zeros((2, 6, 6))
    Search.anchored(search, np.array([0, 1]), slopes, hessians)
    assert abs(slopes[0] @ u) < 1e-14 and u @ hessians[0] @ u == pytest.approx(1.0)
    np.testing.assert_allclose(slopes[0], wanted[0] - (wanted[0] @ u) * u)
    assert (slopes[1] == wanted[1]).all() and not hessians[1].any()
