"""A theorem of one's own, as the page says: from the file to verdicts, power, tables; one that is wrong is caught."""

import csv
import json
import re
from pathlib import Path

import pytest

from fedconvex.cli import main
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.verify import Outcome, power
from fedconvex.verify.checking import carried_out
from fedconvex.verify.own_theorems import searched, theorems_of

PAGE = (Path(__file__).parents[1] / "docs" / "own_theorem.md").read_text()
CODE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
ONE_STEP = {"share": 1.0, "local_steps": 1, "batch": 0}
# F(w) = 1/2 - w for w <= 0, (1 - w)^2/2 up to 1, then 0, from w = -2: slope L D/3, the worst case of one step 1/L
HUBER = Tiny(((1.0,),), (1.0,), (1,), (-3.0,), 1, ONE_STEP, loss="hinge")


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
    small = [c for c in wrong.checks if c.instance.name in ("two clients", "two logistic clients", "equal Hessians")]
    assert all(carried_out(wrong, c).outcome is Outcome.HOLDS for c in small)  # only the search sees it


def test_from_file_to_tables(file, tmp_path, capsys):
    tables = [str(tmp_path / "a.csv"), str(tmp_path / "a.tex")]
    file.write_text(CODE + "\ntheorem = theorem._replace(checks=theorem.checks[9:12])\n")
    code = main(
        ["verify", "--theorem-file", str(file), "--search", "0", "--json", "--csv", tables[0], "--latex", tables[1]]
    )
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["counts"]["VIOLATED"] == 0
    found = document["theorems"]["nesterov"]["power"]
    assert 0.0 < found["smallest_constant"] <= 1.0
    rows = list(csv.DictReader(Path(tables[0]).read_text().splitlines()))
    assert len(rows) == len(document["findings"]) == 3
    assert float(rows[0]["bound"]) == document["findings"][0]["bound"]["value"] == float(rows[0]["start"])
    assert max(float(r["share"]) for r in rows) == pytest.approx(found["smallest_constant"], rel=1e-6)
    lines = Path(tables[1]).read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{llrrrrrrrl}"
    assert len(lines) == 3 + 6
    assert "two logistic clients, tau 1, T 20" in lines[-3]


def test_search_against_it_makes_checks(file):
    (theorem,) = theorems_of(file).values()
    (check,) = searched(theorem, 10)
    assert check.instance.data == "searched"
    assert carried_out(theorem, check).outcome is Outcome.HOLDS
    assert searched(theorem, 0) == ()


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


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["verify", "--theorem-file", str(tmp_path / "none.py")]) == 2
    assert "--theorem-file" in capsys.readouterr().err
