"""What notebooks show: short tables, with everything that users name escaped."""

from html.parser import HTMLParser

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, run
from fedconvex._html import table
from fedconvex.problems import Independent, MultiTaskProblem, QEnsemble, Stump
from fedconvex.verify.verdicts import Outcome, Verdict

pytestmark = pytest.mark.anywhere
EVIL = "<script>alert('x')</script>&\u202e\"|$"


class Checked(HTMLParser):
    """Only tags of tables, all closed; text and tags are collected."""

    def __init__(self, shown):
        super().__init__()
        self.open, self.text, self.tags = [], [], set()
        self.feed(shown)
        self.close()
        assert not self.open
        assert self.tags <= {"table", "caption", "b", "tr", "th", "td"}

    def handle_starttag(self, tag, attrs):
        assert all(name == "style" and value == "text-align:left" for name, value in attrs)
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def facts(self):
        return dict(zip(self.text[1::2], self.text[2::2], strict=True))


@pytest.fixture
def evil():
    """A federation whose clients and domains have hostile names."""
    X = np.arange(12.0).reshape(6, 2)
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    return Federation.from_arrays(X, y, [EVIL] * 4 + ["b"] * 2, domains=[EVIL] * 3 + ["q"] * 3, sample_weight=y + 2)


def test_names_are_escaped_and_shown(evil):
    shown = Checked(evil._repr_html_())
    assert shown.text[0] == "Federation"
    assert "<script>alert('x')</script>&\\u202e" in shown.facts["domains"]
    assert shown.facts["rows of a client"].startswith("2 (b) to 4 (<script>")
    assert (shown.facts["clients"], shown.facts["weights of rows"]) == ("2", "1 to 3")
    alike = Federation.from_arrays(np.eye(4), np.ones(4), [0, 0, 1, 1])
    assert Checked(alike._repr_html_()).facts["rows of a client"] == "2 each"
    with pytest.raises(AssertionError):  # a planted error: the parser sees what is not escaped
        Checked(evil._repr_html_().replace("&lt;", "<"))


@pytest.mark.parametrize(
    ("penalised", "several"), [(lambda fed: Problem(fed, Logistic(), 0.1, intercept=True), False),
                               (lambda fed: MultiTaskProblem(fed, Logistic(), Independent(0.1)), True)],
)  # fmt: skip
@pytest.mark.slow
def test_problems_and_solutions(evil, penalised, several):
    problem = penalised(evil.with_intercept())
    facts = Checked(problem._repr_html_()).facts
    assert facts["loss"] == "Logistic()"
    assert facts["rows"] == "6 of 2 clients, 3 features"
    assert ("relation" in facts, "not penalised" in facts) == (several, not several)
    best = problem.solve()
    facts = Checked(best._repr_html_()).facts
    assert float(facts["objective"]) == pytest.approx(best.value, rel=1e-5)
    assert facts["minimiser"] == "unique"


def test_results(linear):
    result = run(FedAvg(step_size="auto"), linear, rounds=3, trajectories=2, tol=0.0)
    facts = Checked(result._repr_html_()).facts
    assert facts["status"].startswith("ROUND_LIMIT: All rounds")
    assert facts["certified gap"].endswith("2 trajectories")
    assert "Nesterov" in facts["step size"]
    assert facts["floats sent"] == "45 down, 45 up"  # 3 rounds, 5 clients, 3 floats
    assert len(result._repr_html_()) < 3000


def test_verdicts_and_ensembles():
    shown = Checked(Verdict(EVIL, Outcome.NOT_APPLICABLE, f"L < mu {EVIL}")._repr_html_())
    assert shown.text[0].startswith("<script>")
    assert "L < mu <script>" in shown.facts["why"]
    f = QEnsemble([Stump(0, 0.5, 1.0, -1.0)] * 5, [0, 1, 0, 0, 1], [0.1, 0.5, 0.2, 0.3, 0.4], None, 2, [EVIL, "b"])
    shown = Checked(f._repr_html_())
    assert shown.facts["members"] == "5"
    assert "Stump(" in shown.facts["weight 0.5"]
    assert shown.facts["weight 0.5"].endswith("of b")


def test_long_entries_are_cut():
    assert len(Checked(table("t", [("a", "x" * 10**6)])).facts["a"]) == 300


def test_squared_results_of_a_penalised_problem(linear):
    from fedconvex.penalties import L1

    facts = Checked(Problem(linear.federation, Squared(), penalty=L1(0.1))._repr_html_()).facts
    assert facts["penalty"] == "L1(strength=0.1)"
