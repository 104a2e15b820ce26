"""A theorem of one's own, as the page says: from the file to verdicts, power, tables; one that is wrong is caught."""

import csv
import json
import re
from pathlib import Path

import pytest

from fedconvex.cli import main
from fedconvex.report.checks import as_table
from fedconvex.report.page import page
from fedconvex.theorems.kit import LAST_SYNCHRONISED, Bound, Hypothesis, require
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.theory.worst_case import Arbitrary, AtOptimum, UniformUpper
from fedconvex.verify import Outcome, checks, power, verify_suite
from fedconvex.verify.checking import carried_out
from fedconvex.verify.own_theorems import own_theorem, searched, theorems_of

PAGE = (Path(__file__).parents[1] / "docs" / "own_theorem.md").read_text()
CODE, *_, LOCAL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ONE_STEP = {"share": 1.0, "local_steps": 1, "batch": 0}
# F(w) = 1/2 - w for w <= 0, (1 - w)^2/2 up to 1, then 0, from w = -2: slope L D/3, the worst case of one step 1/L
HUBER = Tiny(((1.0,),), (1.0,), (1,), (-3.0,), 1, ONE_STEP, loss="hinge")

# two clients from the optimum of smoothed hinges, where only their drift moves them
FROM_THE_OPTIMUM = Tiny(
    ((-0.472, -1.66, 0.986), (0.0199, 0.0757, 0.17), (-0.372, 0.131, -0.0438), (1.07, 0.751, -5.84)),
    (-1.0, -1.0, 1.0, -1.0),
    (2, 2),
    (0.0, 0.0, 0.0),
    100,
    {"share": 0.0386, "local_steps": 3, "batch": 0},
    l2=0.00544,
    loss="hinge",
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nesterov.py"
    path.write_text(CODE)
    return path


def test_the_page_keeps_its_word(file):
    """Twenty lines; one step on a Huber function attains (1/6)/(2/5) of the bound; + 12 for + 4 is violated."""
    assert len(CODE.strip().splitlines()) <= 20
    (theorem,) = theorems_of(file).values()
    found = power(theorem, [theorem.space.check(HUBER)])
    assert found.constant == pytest.approx((1.0 / 6.0) / (2.0 / 5.0), rel=1e-9)
    assert found.whole.factor == pytest.approx(1.0 / found.constant)
    file.write_text(CODE.replace("rounds + 4.0", "rounds + 12.0"))
    (wrong,) = theorems_of(file).values()
    finding = carried_out(wrong, wrong.space.check(HUBER))
    assert finding.outcome is Outcome.VIOLATED
    assert power(wrong, [wrong.space.check(HUBER)]).constant == pytest.approx((1.0 / 6.0) / (2.0 / 13.0))
    assert power(wrong, [wrong.space.check(HUBER)]).whole is None
    once = next(c for c in wrong.checks if c.instance.name == "two logistic clients" and c.rounds == 1)
    finding = carried_out(wrong, once)  # no run of the suite sees it, the exact worst case does: L D^2/6
    assert finding.verdict.outcome is Outcome.HOLDS
    assert finding.outcome is Outcome.VIOLATED
    assert finding.worst.upper / (1.0 / 6.0) == pytest.approx(finding.verdict.bound.value / (2.0 / 13.0), rel=1e-6)


def test_a_bound_that_is_violated_notices_no_smaller_one(file):
    file.write_text(CODE.replace("rounds + 4.0", "rounds + 12.0"))
    known = theorems_of(file)
    suite = [c for c in checks(known=known) if c.instance.name == "two logistic clients" and c.rounds < 20]
    report = verify_suite(suite, tightness=False, theorems=known)
    assert [f.outcome.name for f in report.findings] == ["VIOLATED", "HOLDS"]
    assert report.powers["nesterov"].whole is None
    assert set(report.powers["nesterov"].terms.values()) == {None}
    shown = as_table(report), page(report)
    assert not any("÷ 1.87" in text or "not established" in text for text in shown)
    assert all("would have to be 1.083 times as large" in text for text in shown)


def test_from_file_to_tables(file, tmp_path, capsys):
    tables = [str(tmp_path / "a.csv"), str(tmp_path / "a.tex")]
    file.write_text(CODE + "\ntheorem = theorem._replace(checks=theorem.checks[9:11])\n")
    code = main(
        ["verify", "--theorem-file", str(file), "--search", "0", "--json", "--csv", tables[0], "--latex", tables[1]]
    )
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["counts"]["VIOLATED"] == 0
    found = document["theorems"]["nesterov"]["power"]
    assert 0.0 < found["smallest_constant"] <= 1.0
    rows = list(csv.DictReader(Path(tables[0]).read_text().splitlines()))
    assert len(rows) == len(document["findings"]) == 2
    assert all(f["bound_over_worst"] > 1.0 for f in document["findings"])
    assert float(rows[0]["bound"]) == document["findings"][0]["bound"]["value"] == float(rows[0]["start"])
    assert found["smallest_constant"] == pytest.approx((1.0 / 6.0) / (2.0 / 5.0), rel=1e-6)  # the exact worst case's
    assert max(float(r["share"]) for r in rows) < found["smallest_constant"]
    lines = Path(tables[1]).read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrrrrrl}"
    assert len(lines) == 2 + 6
    assert lines[-3].startswith("nesterov & 2 & 1 & 3 & 1 & ")  # K, tau, T, eta L


@pytest.mark.slow
def test_one_with_local_steps(file):
    """Eighteen lines from a paper; a drift 1,200 times too small is seen from the optimum, as the search found it."""
    assert len(LOCAL.strip().splitlines()) <= 20
    for code, outcome in ((LOCAL, Outcome.HOLDS), (LOCAL.replace("24 * eta", "0.02 * eta"), Outcome.VIOLATED)):
        file.write_text(code)
        (theorem,) = theorems_of(file).values()
        suite = [c for c in theorem.checks if c.instance.name == "two clients" and c.rounds < 20]
        assert all(carried_out(theorem, c).outcome is Outcome.HOLDS for c in suite)
        assert carried_out(theorem, theorem.space.check(FROM_THE_OPTIMUM)).outcome is outcome


def test_search_against_it_makes_checks(file):
    (theorem,) = theorems_of(file).values()
    (check,) = searched(theorem, 10)
    assert check.instance.data == "searched"
    assert carried_out(theorem, check).outcome is Outcome.HOLDS
    assert searched(theorem, 0) == ()


@pytest.mark.slow
def test_searches_against_the_theorems_of_the_suite(capsys):
    """A search makes checks beside the suite's own, unless it is told not to; own data are no place for one."""
    asked = ["verify", "--json", "--theorem", "weight-divergence-convex"]
    found = []
    for more in (["--no-search"], [], ["--search", "6"], ["--thorough", "--search", "0", "--trajectories", "8"]):
        assert main([*asked, *more]) == 0
        found.append([f["setting"].partition(", ")[0] for f in json.loads(capsys.readouterr().out)["findings"]])
    assert found[1][: len(found[0])] == found[2][: len(found[0])] == found[0] == found[3]
    assert found[1][len(found[0]) :] == ["searched 1"]
    assert found[2][len(found[0])] == "searched 1"
    assert main([*asked, "--search", "5", "--no-search"]) == 2
    assert "--no-search must be given without --search" in capsys.readouterr().err
    assert main([*asked, "--search", "5", "--problem", "breast-cancer"]) == 2
    assert "--search must be without --problem" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "--theorem-file must define a Theorem; got none"),
        ("x = 1/0", "--theorem-file must be a file of Python that runs; got line 1: division by zero"),
        ("import sys\nsys.exit(0)", "--theorem-file must be a file of Python that runs; got line 2: SystemExit(0)"),
        ("x = (", "--theorem-file must be a file of Python that runs; got '(' was never closed"),
        (CODE + "\nother = own_theorem('nesterov', bound)", "--theorem-file must define theorems of different names"),
    ],
)
def test_files_that_define_no_theorem(tmp_path, capsys, code, message):
    path = tmp_path / "bad.py"
    path.write_text(code)
    assert main(["verify", "--theorem-file", str(path)]) == 2
    assert message in capsys.readouterr().err


BOUND = (
    "from fedconvex.theorems.kit import *\nfrom fedconvex.verify import own_theorem\n"
    "def bound(constants, *, step_size, local_steps, rounds):\n"
    "    return Bound({'start': 1.0}, LAST_SYNCHRONISED, 'one')\n"
)
OWN = BOUND + "theorem = own_theorem('one', bound)\n"
GUIDE = BOUND + (
    "THEOREMS = (Theorem('one', LAST_SYNCHRONISED, bound, read=local_sgd_reading('one'), method=fixed_step(1.0),\n"
    "                    statement=Statement(scope=EVERYWHERE), checks=(two_clients,)),)\n"
)


@pytest.mark.parametrize("code", [OWN, GUIDE], ids=["own_theorem", "as in CONTRIBUTING"])
def test_theorems_that_can_be_checked_are_taken(tmp_path, code):
    (tmp_path / "one.py").write_text(code)
    assert list(theorems_of(tmp_path / "one.py")) == ["one"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            OWN.replace("constants, ", ""),
            "have a bound that takes step_size, local_steps, rounds, constants; got b",
        ),
        (
            GUIDE.replace("constants, ", ""),
            "have a bound that takes step_size, local_steps, rounds, constants; got b",
        ),
        (
            GUIDE.replace("read=local_sgd_reading('one'), ", ""),
            "have a bound that takes the setting; got bound(",
        ),
        (
            OWN.replace("', bound)", "', bound, checks=())"),
            "have checks, or nothing is verified; got none: give T",
        ),
        (GUIDE.replace("(two_clients,)", "()"), "have checks, or nothing is verified; got none: give Theorem(checks="),
        (GUIDE.replace("method=fixed_step(1.0),", ""), "say how the method of its checks is set; got none for two cl"),
        (OWN.replace("Bound({'start': 1.0}, LAST_SYNCHRONISED, 'one')", "1.0"), "bound must return a Bound; got 1.0"),
        (
            OWN.replace("1.0}", "{}['a']}"),
            "a bound that can be computed on two clients; got line 4: KeyError('a')",
        ),
    ],
)
def test_theorems_that_cannot_be_checked_are_refused_in_one_sentence(tmp_path, capsys, code, message):
    (tmp_path / "one.py").write_text(code)
    assert main(["verify", "--theorem-file", str(tmp_path / "one.py")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedconvex: error: --theorem-file: one must ")
    assert message in line


def test_a_bound_that_raises_is_a_fault_and_not_a_theorem_that_does_not_apply(file, capsys):
    file.write_text(CODE.replace("rounds + 4.0", "rounds + (4.0 if constants.K < 3 else float('four'))"))
    assert main(["verify", "--theorem-file", str(file), "--no-search"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"error: \S+ on .+: could not convert string to float: 'four'", error), error


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["verify", "--theorem-file", str(tmp_path / "none.py")]) == 2
    assert "--theorem-file" in capsys.readouterr().err


def test_steps_may_be_shares_of_another_step_than_one_over_L():
    """On squared losses gradient descent with 2/(L + mu) contracts by (kappa - 1)/(kappa + 1) a round."""

    def bound(constants, *, step_size, local_steps, rounds):
        L, mu, D = constants.L, constants.mu, constants.D
        start = 0.5 * L * D**2 * ((L - mu) / (L + mu)) ** (2 * rounds)
        two = Hypothesis("step 2/(L + mu)", f"{step_size:g}", abs(step_size * (L + mu) - 2.0) < 1e-9)
        return Bound({"start": start}, LAST_SYNCHRONISED, "Nesterov 2004, Theorem 2.1.15", require("mine", two))

    steps = {"steps": (1.0, 1.0), "local_steps": (1, 1), "batches": 0, "losses": ("squared",)}
    mine = own_theorem("mine", bound, unit=lambda c: 2.0 / (c.L + c.mu), **steps)
    check = next(c for c in mine.checks if c.instance.name == "diabetes" and c.rounds == 20)
    assert carried_out(mine, check).outcome is Outcome.HOLDS
    assert carried_out(own_theorem("mine", bound, **steps), check).outcome is Outcome.NOT_APPLICABLE
    wrong = carried_out(own_theorem("mine", bound, unit=lambda c: -1.0, **steps), check)
    assert wrong.outcome is Outcome.NOT_APPLICABLE and "unit(constants) must be positive" in wrong.verdict.reason


def test_the_class_of_exact_worst_cases_is_named_at_once():
    """Its name in quotes, or a class without a programme of its own, was found out only when a verdict asked."""
    for wrong in ("AtOptimum", 3, Arbitrary, AtOptimum(1.0)):
        with pytest.raises(ValueError, match="worst_case must be the class AtOptimum or UniformUpper"):
            own_theorem("any", print, worst_case=wrong)
    assert own_theorem("any", print, worst_case=UniformUpper).worst_case is UniformUpper
