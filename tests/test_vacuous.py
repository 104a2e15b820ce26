"""Verdicts where nothing could have failed have a word of their own; a bound that is no number is never silent."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Problem, Squared
from fedconvex.cli import main
from fedconvex.report.checks import as_document, as_table
from fedconvex.report.exports import findings_table
from fedconvex.report.page import page
from fedconvex.solvers.solution import Solution
from fedconvex.theorems.parts.rounding import Found
from fedconvex.theory import PrecisionError
from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound, Quantity
from fedconvex.verify import Outcome, Theorem, verify, verify_grid, verify_suite
from fedconvex.verify.check_records import Finding, Note, VerificationReport, WorstCaseInterval
from fedconvex.verify.power import power_of

PROBLEM = Problem(Federation.from_clients([([[1.0], [2.0]], [1.0, 2.0]), ([[1.0]], [1.0])]), Squared(), 0.5)
METHOD = FedAvg(step_size=0.1)


SIGNED = Quantity("a number of either sign")


def judged(value, bound, off=0.0, equation=False, quantity=LAST_SYNCHRONISED):
    """Return the verdict on an exact value that double precision may move by ``off``."""
    planted = Theorem(
        "planted",
        quantity,
        lambda s: Bound({"a": bound}, quantity, "planted"),
        exact=lambda s, rounds: Found(np.array([value]), np.array([off])),
        equation=equation,
    )
    return verify(planted, PROBLEM, METHOD, rounds=1)


@pytest.mark.parametrize(
    ("value", "bound", "off", "outcome"),
    [
        (0.0, 0.0, 0.0, Outcome.VACUOUS),  # nothing beside nothing
        (0.0, 1.0, 0.0, Outcome.VACUOUS),  # no bound above zero would be too small
        (1e-17, 1.0, 1e-16, Outcome.VACUOUS),  # a value below its rounding
        (-1e-17, 1.0, 1e-16, Outcome.VACUOUS),
        (1e-17, 0.0, 1e-16, Outcome.VACUOUS),  # rounding above the bound
        (1.0, math.inf, 0.0, Outcome.VACUOUS),
        (math.inf, math.inf, 0.0, Outcome.VACUOUS),
        (1e-30, 1.0, 0.0, Outcome.HOLDS),  # small, and known
        (1e-16, 1.0, 1e-17, Outcome.HOLDS),
        (-2.0, -1.0, 0.1, Outcome.CONTRADICTED),  # an excess over a minimum that is none
        (-2.0, -1.0, 0.0, Outcome.CONTRADICTED),
        (1.0, 0.5, 0.0, Outcome.VIOLATED),
        (0.0, -1.0, 0.0, Outcome.VIOLATED),
    ],
)
def test_what_holds_of_nothing(value, bound, off, outcome):
    found = judged(value, bound, off)
    assert found.outcome is outcome, found
    vacuous = outcome is Outcome.VACUOUS
    assert ("which is zero" in found.reason or "the bound is infinite" in found.reason) is vacuous
    assert f"{outcome.name}" in str(found)
    assert outcome.name in found._repr_html_()


def test_bounds_of_signed_quantities_may_be_negative():
    for off in (0.1, 0.0):
        assert judged(-2.0, -1.0, off, quantity=SIGNED).outcome is Outcome.HOLDS
        assert judged(-1.0, -2.0, off, quantity=SIGNED).outcome is Outcome.VIOLATED


def test_equations_of_nothing():
    assert judged(0.0, 0.0, equation=True).outcome is Outcome.VACUOUS
    assert judged(1.0, 1.0, equation=True).outcome is Outcome.HOLDS
    assert judged(0.5, 1.0, equation=True).outcome is Outcome.VIOLATED


def test_real_theorems_of_nothing():
    """At the minimiser of the only client nothing moves, by moments and by runs; next to it something is measured."""
    problem = Problem(Federation.from_clients([([[1.0], [2.0]], [1.0, 3.0])]), Squared(), 0.5)
    best, method = problem.solve().w, FedAvg(step_size=0.1, local_steps=3)
    assert verify("fedavg-refined", problem, method, rounds=2, start=best).outcome is Outcome.VACUOUS
    assert verify("fedavg-refined", problem, method, rounds=2, start=best + 1.0).outcome is Outcome.HOLDS


def planted_report():
    """Return a report of a check of each kind."""
    none = WorstCaseInterval(0.0, math.inf, "none")
    verdicts = [judged(0.5, 1.0), judged(0.0, 1.0), judged(0.0, 0.0), judged(2.0, 1.0), judged(1.0, math.nan)]
    findings = tuple(Finding("planted", f"case {i}", "words", "yours", v, none) for i, v in enumerate(verdicts))
    note = Note("Planted", "", "", "", "", "", "")
    return VerificationReport(findings, {"planted": note}, powers={"planted": power_of(findings[:3])})


def test_reports_count_them_apart():
    found = planted_report()
    assert found.sentence.startswith("5 checks: 1 holds, 2 vacuous, 1 VIOLATED, 1 inconclusive, 0 not applicable")
    lines = as_table(found).splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("  case")] == [
        "holds",
        "vacuous",
        "vacuous",
        "VIOLATED",
        "inconclusive",
    ]
    document = as_document(found)
    counts = dict.fromkeys((o.name for o in Outcome), 0) | {"HOLDS": 1, "VACUOUS": 2, "VIOLATED": 1, "INCONCLUSIVE": 1}
    assert document["counts"] == counts
    assert [f["outcome"] for f in document["findings"]][1:3] == ["VACUOUS"] * 2
    assert [row[-1] for row in findings_table(found)[1]][:3] == ["holds", "vacuous", "vacuous"]
    html = page(found)
    assert '<li class="vacuous"><b>2</b>○ vacuous</li>' in html
    assert '<li class="holds"><b>1</b>✓ holds</li>' in html
    assert html.count('<span class="v vacuous">○ vacuous</span>') == 2 * 2  # in the table, and above each
    # what is vacuous notices nothing, and hides nothing
    assert found.powers["planted"].whole.factor == pytest.approx(2.0)
    assert power_of(found.findings[1:3]).terms == {"a": None}


# ---------------------------------------------------------------- numbers that are none


def broken(error):
    """Return a theorem whose bound cannot be computed."""

    def bound(s):
        if isinstance(error, float):
            return Bound({"a": 1.0, "b": error, "c": -error}, LAST_SYNCHRONISED, "planted")
        raise error

    return Theorem("planted", LAST_SYNCHRONISED, bound)


@pytest.mark.parametrize("error", [math.nan, math.inf, ZeroDivisionError("a"), OverflowError("b")])
def test_a_bound_that_is_no_number_is_not_decided(error):
    """inf - inf, 1/0, e^1000: whether the theorem holds is open, which is not the same as a hypothesis that fails."""
    theorem = broken(error)
    found = verify(theorem, PROBLEM, METHOD, rounds=1)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.bound is None
    assert "planted is not decided: needs a bound" in found.reason
    grid = verify_grid(theorem, lambda T: (PROBLEM, METHOD, T), {"T": [1, 2]})
    assert grid.undecided == [(1,), (2,)]
    assert grid.violated == []


@pytest.mark.parametrize("exact", [None, False])
def test_a_quantity_that_is_no_number_is_not_decided(exact):
    """Neither violated nor within the bound, by one run or by many; some that overflow make the mean infinite."""
    for values, outcome in (([math.nan, 1.0], Outcome.INCONCLUSIVE), ([math.nan, math.inf], Outcome.VIOLATED)):
        planted = Theorem(
            "planted",
            LAST_SYNCHRONISED,
            lambda s: Bound({"a": 1.0}, LAST_SYNCHRONISED, ""),
            exact=lambda s, rounds: Found(np.array([math.nan]), np.zeros(1)) if exact is None else None,
            sample=lambda s, rounds, seed, n, v=values: np.array([np.resize(v, n)]),
        )
        found = verify(planted, PROBLEM, FedAvg(step_size=0.1, batch_size=1), rounds=1, exact=exact, most=64)
        assert found.outcome is (outcome if exact is False else Outcome.INCONCLUSIVE)


def test_the_command_says_so(tmp_path, capsys, monkeypatch):
    """All checks with a bound of NaN: exit status 4, counted, with the reason; not "not applicable" and 0."""
    code = """
from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound
from fedconvex.verify import own_theorem
def bound(constants, *, step_size, local_steps, rounds):
    return Bound({"start": float("nan")}, LAST_SYNCHRONISED, "nobody")
theorem = own_theorem("none", bound, local_steps=(1, 1), batches=0)
theorem = theorem._replace(checks=theorem.checks[9:11])
"""
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is folded
    file = tmp_path / "none.py"
    file.write_text(code)
    asked = ["verify", "--theorem-file", str(file), "--search", "0"]
    assert main(asked) == 4
    out = capsys.readouterr().out
    assert "2 checks: 0 holds, 0 vacuous, 0 VIOLATED, 2 inconclusive, 0 not applicable" in out
    assert "a bound that is a number, got nan of start = nan" in " ".join(out.split())
    assert main([*asked, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["counts"]["INCONCLUSIVE"] == 2


def test_precision_errors_are_assumption_errors():
    """Who asked for a bound and catches what does not apply catches what cannot be computed."""
    with pytest.raises(PrecisionError, match="needs a bound that is a number"):
        broken(math.nan).at(_setting())
    found = verify_suite([], tightness=False)
    assert not found.inconclusive


def _setting():
    from fedconvex.verify import Setting

    return Setting(PROBLEM, METHOD, 1, np.zeros(1))


# ---------------------------------------------------------------- values that others follow from


def test_replaced_terms_make_another_value():
    bound = Bound({"start": 1.0, "noise": 0.5}, LAST_SYNCHRONISED, "planted")
    assert replace(bound, terms={"start": 1.0, "noise": 4.0}).value == 5.0
    assert replace(bound, combine=max).value == 1.0
    assert replace(bound, source="other").value == 1.5
    with pytest.raises((ValueError, TypeError), match="value"):  # the latter from Python 3.14 on
        replace(bound, value=0.1)
    with pytest.raises(TypeError, match="value"):
        Bound({}, LAST_SYNCHRONISED, "planted", value=1.0)


def test_a_replaced_lower_bound_holds_within_every_reach():
    """Of an infinite reach lower_within is lower; of a finite one it is a bound of its own, and stays."""
    best = Solution(np.zeros(1), 1.0, 0.25, "planted", True, True, 1, 0.0)
    assert replace(best, lower=0.75).gap_within == replace(best, lower=0.75).gap == pytest.approx(0.25, rel=1e-14)
    within = replace(best, lower_within=0.5, reach=10.0)
    assert replace(within, value=2.0).gap_within == pytest.approx(1.5, rel=1e-14)
    assert replace(within, reach=math.inf).lower_within == 0.25
