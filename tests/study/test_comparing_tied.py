"""MOCHA in a study's `compare`: sums over sites give the models of the pooled command, and no site shows its own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedconvex import Federation, Problem
from fedconvex.analysis.site_answers import symmetric, triangle
from fedconvex.losses import Logistic, Squared
from fedconvex.problems import Covariance, MultiTaskProblem
from fedconvex.remote.messages import Refused
from fedconvex.study import comparing_answers, comparing_site
from fedconvex.study.audit_log import read_log
from fedconvex.study.comparing_tied import TieSearch, gap_of
from fedconvex.study.runs_asked import questions
from tests.study.test_comparing import conducted, pooled, written


def sites(loss, rows=(14, 9, 11)):
    """Rows of three sites whose slopes differ."""
    rng, parts = np.random.default_rng(4), []
    for k, n in enumerate(rows):
        X = np.column_stack([rng.normal(size=(n, 2)), np.ones(n)])
        z = X @ [1.0, 0.5 * k - 0.5, 0.3] + rng.logistic(size=n)
        parts.append((X, np.where(z > 0.0, 1.0, -1.0) if loss == Logistic() else z))
    return parts


def told(parts, loss, c, D):
    """What all sites together answer at a covariance of features, and their models."""
    n = sum(len(y) for _, y in parts)
    each, models = [], []
    for X, y in parts:
        part, one = Problem(Federation.from_clients([(X, y)]), loss), np.array([c])
        each.append(comparing_site._through(part, len(y) / n, one, triangle(D)[None], 1e9))
        models.append(comparing_site._tied(part, len(y) / n, one, triangle(D)[None])[0][0])
    assert not any(a["lost"][0] for a in each)
    return sum(a["loss"][0] for a in each), symmetric(sum(a["bend"][0] for a in each), 3), np.array(models)


@pytest.mark.slow_unless(loss=Squared(), l2=0.1)
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=["numbers", "classes"])
@pytest.mark.parametrize("l2", [0.5, 0.1, 1e-3])
def test_sums_lead_to_the_models_of_mocha(loss, l2):
    """Beside a solution that sees all rows, and its certificate; for large l2 W has a smaller rank."""
    parts = sites(loss)
    n, c = sum(len(y) for _, y in parts), l2 / 3
    problem = MultiTaskProblem(Federation.from_clients(parts), loss, Covariance(0.5 * n * c))
    best = problem.solve(1e-10)
    search = TieSearch(3, c, 0.0)
    while not search.settled:
        value, gamma, W = told(parts, loss, c, search.trial @ search.trial.T)
        gap = gap_of(c, search.trial @ search.trial.T, gamma)  # at every trial a bound, up to the solver's own gap
        assert problem.value(W) / n - best.value / n <= gap + 1e-10
        search.absorb(value, gamma)
    W = told(parts, loss, c, search.best @ search.best.T)[2]
    assert search.gap <= 1e-8 * (1.0 + search.value)
    assert problem.value(W) <= best.value + n * search.gap
    np.testing.assert_allclose(W, best.w, atol=2e-4 * np.abs(best.w).max())


def test_the_slope_is_that_of_the_least_value():
    """phi(D + t (F - D)) beside differences."""
    parts, c = sites(Squared()), 0.05
    A, B = (np.diag([0.5, 0.3, 0.2]), np.array([[0.3, 0.1, 0.0], [0.1, 0.4, 0.1], [0.0, 0.1, 0.3]]))
    _, gamma, _ = told(parts, Squared(), c, A)
    t = 1e-5
    up, down = (told(parts, Squared(), c, A + s * (B - A))[0] for s in (t, -t))
    assert (up - down) / (2.0 * t) == pytest.approx(-0.5 * c * float(np.sum(gamma * (B - A))), rel=1e-6)


def test_what_few_rows_make_up_is_not_told():
    """Nor what is too large to be summed: zeros and a mark, of which the second only shortens a step."""
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=(40, 2)), np.ones(40)])
    part = Problem(Federation.from_clients([(X, np.where(X[:, 0] > 0.0, 1.0, -1.0))]), Logistic())
    D = np.array([triangle(np.diag(d)) for d in ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5])])
    found = comparing_site._through(part, 0.5, np.array([1e-12, 1e-3]), D, 1.0)  # classes that can be told apart
    assert found["lost"].tolist() == [1.0, comparing_site.TOO_FAR]
    assert not found["bend"].any() and found["loss"][0] == 0.0
    found = comparing_site._through(part, 0.5, np.array([1e-3, 1e-3]), D, 1e9)
    assert not found["lost"].any() and found["bend"].any()


@pytest.mark.parametrize("D", [np.eye(6), np.diag([2.0, -1.0, 0.0, 0.0, 0.0, 0.0])])
def test_covariances_that_are_none_are_refused(tmp_path, D):
    study = written(tmp_path, 'compare = { kinds = ["mocha"], folds = 2 }')
    (question,) = questions(study)
    plan = question.plan
    asked = {
        "mocha": triangle(D)[None], "part": np.zeros(1), "l2": np.ones(1),
        "shift": np.zeros((plan.sets, plan.p - 1)), "scale": np.ones((plan.sets, plan.p - 1)),
        "target": np.tile([0.0, 1.0], (plan.sets, 1)),
    }  # fmt: skip
    fed = Federation.from_clients([(np.zeros((9, plan.p - 1)), np.ones(9))] * 2)
    with pytest.raises(Refused, match="its covariance of features is none"):
        comparing_answers.report(question.make(fed), 0, asked)
    assert comparing_answers.told_apart(plan, 2, asked) == (0, 2 + plan.t)


def test_other_l2_and_another_scaling_are_outside_of_the_schedule(tmp_path):
    """By columns of a thousandth of their size, or an l2 of one's own, models would point where one likes."""
    study = written(tmp_path, 'compare = { kinds = ["mocha"], folds = 2 }')
    (question,) = questions(study)
    plan, rng = question.plan, np.random.default_rng(6)
    X, y = rng.normal(size=(40, plan.p - 1)), rng.choice([-1.0, 1.0], 40)
    problem = question.make(Federation.from_clients([(X, y)]))
    asked = {
        "mocha": triangle(np.eye(6) / 6)[None], "part": np.zeros(1), "l2": np.ones(1),
        "shift": np.zeros((plan.sets, plan.p - 1)), "scale": np.ones((plan.sets, plan.p - 1)),
        "target": np.tile([0.0, 1.0], (plan.sets, 1)),
    }  # fmt: skip
    assert comparing_answers.report(problem, 0, asked)["bend"].any()
    with pytest.raises(Refused, match="its l2 is none of those that are compared"):
        comparing_answers.report(problem, 0, asked | {"l2": np.full(1, 0.2)})
    for name, a in (("scale", 1e-3 * asked["scale"]), ("shift", asked["shift"] + 9.0), ("target", asked["target"] * 2)):
        with pytest.raises(Refused, match="in another way than before"):
            comparing_answers.report(problem, 0, asked | {name: a})
    assert comparing_answers.report(problem, 0, asked)["bend"].any()


@pytest.mark.slow
@pytest.mark.compiled
def test_it_is_the_pooled_comparison(tmp_path):
    """The same decision, verdicts and l2; figures to 1e-4 of their intervals: both are certified to 1e-8."""
    ask = 'compare = { kinds = ["mocha"], folds = 2 }'
    study = written(tmp_path, ask, classes=False, limits="parameters = 0.2\nsummed = 1e4\nshare = 2.0\n")
    found, wanted = json.loads(conducted(tmp_path, study)["compare.json"]), pooled(False, ["mocha"], folds=2)
    assert found["decision"] == [s for s in wanted.sentences if " rounds " not in s]
    (mine,) = [m for m in found["methods"] if m["method"] == "mocha"]
    assert mine["l2"] == pytest.approx(wanted["mocha"].l2, rel=1e-9)
    for name in ("error", "bias", "rmse"):
        theirs = np.array(getattr(wanted["mocha"].whole, name))
        assert np.abs(np.array(list(mine[name].values())) - theirs).max() <= 1e-4 * np.ptp(theirs), name
    for one, other in zip(found["clients"], wanted.clients, strict=True):
        assert (one["client"], one["method"], one["verdict"]) == (other["client"], other["method"], other["verdict"])
    assert float(found["notes"][1].split(" is ")[1].split(" per ")[0]) <= 1e-7
    lines = [line for line in read_log(tmp_path / "s_north" / "audit.jsonl") if "mocha" in line.get("asked", ())]
    assert 10 <= len(lines) <= 150 and sum(line["new"] for line in lines[:-1]) == 0  # own numbers: its row of the table
