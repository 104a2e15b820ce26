"""Functions of an exact worst case as programs: they exceed the bound, and what is wrong with them is caught."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from test_own_theorem import CODE, LOCAL, PAGE

from fedconvex.cli import main
from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound
from fedconvex.verify import power
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.own_theorems import searched, theorems_of
from fedconvex.verify.tightness import WorstData, exact_worst
from fedconvex.verify.worst_text import attained, worst_counterexample, worst_text

# the Huber function of width 1/3: one step of 1/L from 1 ends at 2/3, of value 1/6
HUBER = WorstData(
    np.array([1.0]),
    np.array([[[0.0], [1.0], [2 / 3]]]),
    np.array([[[0.0], [1 / 3], [1 / 3]]]),
    np.array([[0.0, 5 / 18, 1 / 6]]),
    np.array([1.0]),
    1.0,
    0.0,
    1.0,
    1,
    1,
)
FIRST = "theorem = theorem._replace(checks=theorem.checks[:1])"
BOUND = Bound({"start": 2.0 / 13.0}, LAST_SYNCHRONISED, "too small")


def ran(data):
    text = worst_text(data, LAST_SYNCHRONISED, BOUND, 4e-16)
    return subprocess.run([sys.executable, "-I", "-"], input=text, capture_output=True, text=True)


def refused(data):
    """Whether the program fails by one of its own assertions."""
    done = ran(data)
    return done.returncode == 1 and "AssertionError" in done.stderr


@pytest.mark.slow
def test_a_program_asserts_that_its_functions_exist():
    """No convex 1-smooth function has other values there, or a gradient at its minimiser; the run meets its points."""
    assert attained(HUBER, LAST_SYNCHRONISED) == pytest.approx(1 / 6)
    assert ran(HUBER).stdout.split()[1] == ">" and not refused(HUBER)
    assert refused(HUBER._replace(values=np.array([[0.0, 5 / 18, 1 / 4]])))
    assert refused(HUBER._replace(gradients=HUBER.gradients + 0.1))
    assert refused(HUBER._replace(step_size=0.9))
    assert refused(HUBER._replace(mu=0.5))


def _nine_digits(text):
    """Without blanks, which the page's formatter sets, and the last digits of a bound, which are the processor's."""
    return "".join(re.sub(r"\d+\.\d{9,}", lambda found: f"{float(found[0]):.9g}", text).split())


@pytest.mark.slow
def test_what_the_exact_worst_case_alone_violates_is_printed(tmp_path, capsys):
    """The page's theorem with + 12 for + 4, without a search: one Huber function, in fractions."""
    file = tmp_path / "nesterov.py"
    file.write_text(CODE.replace("rounds + 4.0", "rounds + 12.0") + FIRST)
    assert main(["verify", "--theorem-file", str(file), "--search", "0"]) == 1
    shown = capsys.readouterr().out
    assert _nine_digits(shown.partition("step 1\n")[2].partition("\n\n1 check")[0]) in _nine_digits(PAGE)
    assert "# nesterov: 0.166667 > 0.153846; FedAvg on functions of the exact worst case: 2 clients" in shown
    assert main(["verify", "--theorem-file", str(file), "--search", "0", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["counterexamples"]
    assert found["measured"] > found["bound"] and np.shape(found["instance"]["points"]) == (2, 3, 1)
    assert r"\nabla f_k(x)" in found["latex"]


@pytest.mark.slow
@pytest.mark.compiled
def test_searches_find_what_the_page_says(tmp_path):
    file, page = tmp_path / "nesterov.py", " ".join(PAGE.split())
    for plus, budget, seed, said in (
        ("4.0", 400, 0, r"tried by default the search comes to (\d\.\d+)"),
        ("12.0", 400, 0, r"The default search sees (\d\.\d+) of it"),
        ("12.0", 4000, 1, r"`--search 4000 --seed 1` finds (\d\.\d+) times the bound"),
    ):
        file.write_text(CODE.replace("rounds + 4.0", f"rounds + {plus}"))
        (theorem,) = theorems_of(file).values()
        (number,) = re.findall(said, page)
        decimals = len(number.partition(".")[2])
        found = power(theorem, searched(theorem, budget, seed)).constant
        assert round(found, decimals) == float(number), (plus, budget, seed)
    file.write_text(LOCAL)
    (theorem,) = theorems_of(file).values()
    drift = power(theorem, searched(theorem, 400)).terms["drift"]
    assert f"the search finds 1/{drift.factor:.0f} of it" in page


@pytest.mark.slow
def test_where_there_are_no_functions_it_is_said(tmp_path, capsys):
    """Of clients that differ by zeta everywhere no functions are printed: a larger search may find some."""
    file = tmp_path / "nesterov.py"
    code = CODE.replace("rounds + 4.0", "rounds + 12.0").replace("AtOptimum", "UniformUpper")
    file.write_text(code + FIRST)
    assert main(["verify", "--theorem-file", str(file), "--search", "0"]) == 1
    shown = capsys.readouterr()
    assert "np.array" not in shown.out
    assert "no counterexample to nesterov can be printed: --search 4000" in shown.err


@pytest.mark.slow
def test_several_steps_of_clients_that_differ(tmp_path):
    """The shadow average of two clients with three local steps attains the certified end; the bound is 5 % below it."""
    file = tmp_path / "khaled.py"
    file.write_text(LOCAL)
    (theorem,) = theorems_of(file).values()
    check = theorem.checks[0]
    worst = exact_worst(theorem, setting_of(theorem, check, problem_of(theorem, check.instance)))
    less = theorem._replace(bound=lambda **at: Bound({"start": 0.95 * worst.lower}, theorem.quantity, "too small"))
    found = worst_counterexample(less, check)
    assert found.measured == pytest.approx(worst.lower, rel=1e-6) and "total += F(" in found.numpy
    more = theorem._replace(bound=lambda **at: Bound({"start": 1.05 * worst.lower}, theorem.quantity, "true"))
    assert worst_counterexample(more, check) is None
