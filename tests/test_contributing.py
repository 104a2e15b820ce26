"""The examples of CONTRIBUTING.md, run as they stand: a method, a loss, a theorem, an experiment, a data format."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedconvex import Federation, FedSGD, Problem, run
from fedconvex.papers import Experiment, write
from fedconvex.verify import Outcome, verify
from tests import test_contract as contract

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no page beside the tests")
EXAMPLES = ("heavyball", "losses_logcosh", "gradient_descent", "descent_rate", "json_lines")


def blocks():
    """The Python blocks of the page by the stem of the file that their first line names."""
    found = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {Path(name).stem: source for name, source in found}


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """A temporary package that holds every example as a module."""
    folder = tmp_path_factory.mktemp("contributing")
    (folder / "contributed").mkdir()
    (folder / "contributed" / "__init__.py").write_text("")
    for stem, source in blocks().items():
        (folder / "contributed" / f"{stem}.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield lambda stem: importlib.import_module(f"contributed.{stem}")
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "contributed"]:
        del sys.modules[name]


def test_the_page_shows_one_of_each():
    assert tuple(blocks()) == EXAMPLES
    assert "```python" not in re.sub(r"^```python\n# \S+\n", "", PAGE.read_text(encoding="utf-8"), flags=re.M)


@pytest.mark.parametrize("stem", EXAMPLES)
def test_examples_keep_the_habits(stem, added):
    """Docstrings everywhere, their examples run, lines of 120 columns."""
    source, tree = blocks()[stem], ast.parse(blocks()[stem])
    assert max(map(len, source.splitlines())) <= 120
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name
    results = doctest.testmod(added(stem))
    assert results.failed == 0
    assert results.attempted or stem == "descent_rate"


# ---------------------------------------------------------------- the method


@pytest.fixture
def heavy(added, monkeypatch):
    """The method, listed in the table of the contract."""
    monkeypatch.setitem(contract.CONFIGURATIONS, "HeavyBall", added("heavyball").HeavyBall(step_size=0.2, momentum=0.4))
    return added("heavyball").HeavyBall


CONTRACT = (
    "same_seed_same_bits",
    "resume",
    "input_untouched",
    "gap_is_never_below_the_truth",
    "client_order_is_irrelevant",
    "server_never_touches_rows",
    "clients_touch_only_their_own_rows",
    "a_client_alone_answers_as_among_others",
)


@pytest.mark.parametrize("name", CONTRACT)
def test_the_method_keeps_the_contract(heavy, name, problem, tmp_path, rng):
    method, test = contract.CONFIGURATIONS["HeavyBall"], getattr(contract, f"test_{name}")
    known = {"method": method, "problem": problem, "name": "HeavyBall", "case": (method, problem, "HeavyBall")}
    known |= {"tmp_path": tmp_path, "rng": rng, "optimum": contract.plain_optimum(problem)}
    test(**{parameter: known[parameter] for parameter in inspect.signature(test).parameters})


def test_the_method_is_what_its_page_says(heavy, problem):
    """Without momentum FedSGD; with it the recursion of the module's docstring, from gradients of the problem."""
    plain = run(FedSGD(step_size=0.2), problem, rounds=4, tol=0)
    np.testing.assert_allclose(run(heavy(step_size=0.2, momentum=0.0), problem, rounds=4, tol=0).w, plain.w, rtol=1e-13)
    w, v = np.zeros(problem.model_shape), 0.0
    for _ in range(4):
        v = 0.4 * v + problem.gradient(w)
        w = w - 0.2 * v
    np.testing.assert_allclose(run(heavy(step_size=0.2, momentum=0.4), problem, rounds=4, tol=0).w, w, rtol=1e-12)
    with pytest.raises(ValueError, match=r"HeavyBall.momentum must .*; got 1.5"):
        heavy(step_size=0.1, momentum=1.5)


def test_code_lines_carry_the_numbers_of_the_pseudo_code():
    source = blocks()["heavyball"]
    steps = re.findall(r"^(\d+)\. ", source.split('"""')[1], flags=re.M)
    assert set(re.findall(r"# (\d+)$", source, flags=re.M)) == set(steps)


# ---------------------------------------------------------------- the loss


def test_the_loss_is_solved_with_a_certificate(added, rng):
    loss = added("losses_logcosh").LogCosh()
    X = rng.normal(size=(40, 3))
    y = X @ np.array([1.0, -2.0, 0.5]) + rng.standard_t(2, size=40)
    problem = Problem(Federation.from_arrays(X, y, np.arange(40) % 4), loss, 1e-3)
    best = problem.solve()
    assert 0.0 <= best.gap <= 1e-9
    r = X @ best.w - y
    gradient = X.T @ np.tanh(r) / 40 + 1e-3 * best.w  # by hand; clients are of equal size
    # ‖grad F‖^2/(2 l2) bounds F - F*
    assert gradient @ gradient / 2e-3 <= 1e-9
    assert best.value == pytest.approx(np.log(np.cosh(r)).mean() + 0.5e-3 * best.w @ best.w, rel=1e-12)
    np.testing.assert_allclose(
        problem.predict(best.w), problem.federation.X @ best.w
    )  # a regression predicts its scores


def test_slopes_of_the_loss_are_those_of_its_values(added):
    loss, h = added("losses_logcosh").LogCosh(), 1e-5
    for z in (-1000.0, -3.0, -0.1, 0.0, 0.7, 20.0, 1000.0):
        assert loss.slope(z, 0.3) == pytest.approx(
            (loss.value(z + h, 0.3) - loss.value(z - h, 0.3)) / (2 * h), abs=1e-6
        )
        assert loss.curvature(z, 0.3) == pytest.approx(1.0 - loss.slope(z, 0.3) ** 2, abs=1e-12)


# ---------------------------------------------------------------- the theorem


def test_the_theorem_gives_verdicts(added):
    from fedconvex import FedAvg
    from fedconvex.theorems.parts.instances import two_clients

    (theorem,) = added("gradient_descent").THEOREMS
    problem = two_clients.make()
    L = problem.constants().L
    assert verify(theorem, problem, FedAvg(step_size=0.5 / L), rounds=10).outcome is Outcome.HOLDS
    assert verify(theorem, problem, FedAvg(step_size=1.0 / L), rounds=10).outcome is Outcome.VACUOUS  # at the minimum
    for method in (FedAvg(step_size=1.5 / L), FedAvg(step_size=0.5 / L, local_steps=2)):
        assert verify(theorem, problem, method, rounds=10).outcome is Outcome.NOT_APPLICABLE
    # F = (w - c)^2/2: after one step of 1/2 the excess is D^2/8, and the bound D^2/4
    for factor, outcome in ((0.51, Outcome.HOLDS), (0.49, Outcome.VIOLATED)):
        planted = theorem._replace(bound=lambda factor=factor, **a: scaled(theorem.bound(**a), factor))
        assert verify(planted, problem, FedAvg(step_size=0.5 / L), rounds=1).outcome is outcome


def scaled(bound, factor):
    """The bound, planted too small."""
    return type(bound)({k: factor * v for k, v in bound.terms.items()}, bound.quantity, bound.source, bound.requires)


def test_the_theorem_is_checked_where_it_says(added):
    """Its checks hold, but for the last, whose step is too large."""
    (theorem,) = added("gradient_descent").THEOREMS
    outcomes = []
    for check in theorem.checks:
        instance, rule = getattr(check, "instance", check), getattr(check, "method", None) or theorem.method
        problem = instance.make()
        method = rule.make(theorem, problem, np.zeros(problem.model_shape), theorem.rounds)
        outcomes.append(verify(theorem, problem, method, rounds=theorem.rounds).outcome.name)
    assert outcomes == ["HOLDS", "HOLDS", "NOT_APPLICABLE"]


# ---------------------------------------------------------------- the experiment


def test_the_experiment_returns_findings(added, tmp_path):
    pytest.importorskip("matplotlib")
    module, said = added("descent_rate"), []
    assert isinstance(module.EXPERIMENT, Experiment)
    findings = module.EXPERIMENT.run(quick=True, progress=lambda share, doing: said.append(share))
    assert findings.holds
    assert said == [0.0, 1.0]
    assert findings.notes[-1] == "A quick version: 20 rounds."
    assert {f.name for f in write(findings, tmp_path / "out")} == {"rate.svg", "rate.png", "rate.csv", "claims.json"}
    slow = [row | {"measured": 1.001 * row["bound"]} for row in findings.tables["rate"]]
    assert not any(claim.holds for claim in module._claims(slow))  # a rate a thousandth slower is noticed
    with pytest.raises(ValueError, match="data must be left out"):
        module.EXPERIMENT.run(data="x.npz")


# ---------------------------------------------------------------- the format


def test_the_format_loads(added, tmp_path):
    load, file = added("json_lines").load_json_lines, tmp_path / "a.jsonl"
    rows = [{"a": 1.5, "who": "x", "b": -2, "y": 0.5}, {"y": 1.0, "who": "y", "b": 4, "a": 0.0}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = load(file, "y", "who")
    np.testing.assert_array_equal(table.X, [[1.5, -2.0], [0.0, 4.0]])
    assert (table.y.tolist(), table.clients.tolist(), table.feature_names) == ([0.5, 1.0], ["x", "y"], ("a", "b"))
    assert Federation.from_arrays(table.X, table.y, table.clients).K == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"y": 1, "a": 2}\nnothing\n', "line 2 must be a JSON object"),
        ('{"y": 1, "a": 2}\n{"y": 1}\n', "line 2 must be an object with the keys of line 1"),
        ("[1, 2]\n", "line 1 must be an object"),
        ('{"a": 2}\n', "have the key 'y'; got a"),
        ("", "have the key 'y'; got no lines"),
        ('{"y": 1, "a": NaN}\n', "be finite"),
        ('{"y": 1, "a": "high"}\n', "hold real numbers"),
    ],
)
def test_the_format_refuses(text, words, added, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises((ValueError, TypeError), match=words):
        added("json_lines").load_json_lines(file, "y")
    with pytest.raises(FileNotFoundError):
        added("json_lines").load_json_lines(tmp_path / "none.jsonl", "y")
