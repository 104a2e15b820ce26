"""The page for those who decide: its table is that of messages that ran, and its worked examples are run."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation, FedSGD, Logistic, Problem, Squared, run
from fedconvex.analysis import Guards, plan_analysis
from fedconvex.remote import Limits, Roster, Site, in_process
from fedconvex.remote.site_engine import SiteEngine
from tests.docs_scripts import docs_script


@pytest.mark.slow
def test_the_table_is_that_of_messages():
    script = docs_script("what_leaves")
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), "python docs/what_leaves.py"


def test_the_gradient_of_one_row_is_the_row():
    x, w = np.array([61.0, 0.5, -2.0]), np.array([0.02, 0.3, 0.1, -0.4])
    for loss, y in ((Squared(), 3.0), (Logistic(), -1.0)):
        g = Problem(Federation.from_clients([([[*x, 1.0]], [y])]), loss).gradient(w)
        np.testing.assert_allclose(g[:3] / g[3], x, rtol=1e-12)
    plan = plan_analysis({"age": [40, 60], "ill": ["no", "yes"], "site": ["a", "b"]}, "ill", "site")
    with pytest.raises(ValueError, match="rows must be at least 10; got 1"):
        plan.rows({"age": [61.0], "ill": ["yes"]}, "a", Guards())


def measured(site, make, models, fed):
    """What a coordinator is told at models of its choice: gradients."""
    roster = Roster.of(make, fed)
    server = SiteEngine(
        site.method, roster, lambda t, asked: {k: site.answer(m) for k, m in asked.items()}, 0, 1
    ).server
    return [server.asked(w[None])[0]["gradient"][0] for w in models]


def test_models_that_point_at_a_patient_are_refused():
    """Far along a direction, where the score of one row only is not certain: in the open it would be that row."""
    rng = np.random.default_rng(1)
    X, y = np.column_stack([rng.normal(size=(60, 2)), np.ones(60)]), rng.choice([-1.0, 1.0], 60)
    fed = Federation.from_clients([(X, y)])
    make = lambda f: Problem(f, Logistic(), l2=0.0)  # noqa: E731
    a = np.array([1.0, 0.3, 0.0])
    order = np.argsort(X @ a)
    between = -0.5 * (X[order[[29, 30]]] @ a).sum()
    after = -0.5 * (X[order[[30, 31]]] @ a).sum()
    models = [1e6 * (a + np.array([0.0, 0.0, t])) for t in (between, after)]
    told = measured(Site(FedSGD(step_size=0.1), make, fed, limits=Limits(rows=0.0)), make, models, fed)
    row = (told[1] - told[0]) * 60.0  # what a site without an audit would tell
    np.testing.assert_allclose(row / row[2], X[order[30]], rtol=1e-6)
    with pytest.raises(ConnectionError, match="differ from an earlier one, or from nothing, by a single row"):
        measured(Site(FedSGD(step_size=0.1), make, fed, limits=Limits()), make, models, fed)


def test_equations_are_counted():
    """A site answers no more numbers than its rows hold, whatever it is asked."""
    rng = np.random.default_rng(2)
    fed = Federation.from_clients([(rng.normal(size=(50, 4)), rng.choice([-1.0, 1.0], 50))])
    make = lambda f: Problem(f, Logistic(), l2=0.1)  # noqa: E731
    site, method = Site(FedSGD(step_size=0.1), make, fed, limits=Limits()), FedSGD(step_size=0.1)
    with pytest.raises(ConnectionError, match="numbers are answered about rows that hold 250"):
        run(method, Roster.of(make, fed), transport=in_process([site]), rounds=500, tol=0)
    assert 200 < site.ledger.numbers <= 50 * 5
