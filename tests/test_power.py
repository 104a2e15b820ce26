"""What verdicts would have caught: the smallest errors that are noticed are those at which verdicts turn."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedconvex import FedAvg
from fedconvex.report.checks import as_document, as_table
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts.instances import two_clients
from fedconvex.theorems.parts.rules import fixed_step
from fedconvex.theorems.parts.theorem import Check, MethodRule, Theorem
from fedconvex.theory.bound import LAST_SYNCHRONISED, AssumptionError, Bound, Hypothesis, dropping, require
from fedconvex.verify import Outcome, checks, power, verify_suite
from fedconvex.verify.checking import carried_out

ONE = (Check(two_clients, fixed_step(0.25, local_steps=2), 1),)  # F(w_1) - F* = 0.75^4/2


def with_terms(terms, combine=sum, **fields):
    def bound(s):
        return Bound(terms, LAST_SYNCHRONISED, "a test", combine=combine)

    return Theorem("mine", LAST_SYNCHRONISED, bound, **fields)


def test_factors_by_hand():
    """0.75^4/2 = 0.158203125: the whole may be 2/0.1582 times smaller, the start 1/(0.1582 - 1), which is never."""
    value = 0.75**4 / 2
    found = power(with_terms({"start": 1.0, "noise": 1.0}), ONE)
    assert found.whole.factor == pytest.approx(2.0 / value, rel=1e-8)
    assert found.terms == {"start": None, "noise": None}
    assert found.whole.setting == "two clients, tau 2, T 1"
    found = power(with_terms({"start": 1.0, "noise": 0.1, "sharp": -0.5, "none": 0.0}), ONE)
    assert found.terms["start"].factor == pytest.approx(1.0 / (value - 0.1 + 0.5), rel=1e-8)
    assert found.terms["sharp"].factor == pytest.approx((1.1 - value) / 0.5, rel=1e-8)  # more negative
    assert found.terms["none"] is None
    found = power(with_terms({"a": 1.0, "b": 2.0 * value}, combine=max), ONE)  # b alone may go
    assert found.terms["a"] is None
    assert found.terms["b"] is None
    found = power(with_terms({"a": 0.1, "b": 2.0 * value}, combine=max), ONE)
    assert (found.terms["a"], found.terms["b"].factor) == (None, pytest.approx(2.0, rel=1e-8))


@pytest.mark.parametrize("name", ["fedavg-convex", "fedavg-at-optimum", "fedavg-bias", "dynamic-steady-state-paper"])
def test_verdicts_turn_where_power_says(name):
    """A bound divided by a little less holds, by a little more is violated."""
    theorem = THEOREMS[name]
    every = [c if isinstance(c, Check) else Check(c) for c in theorem.checks]
    check = next((c for c in every if c.instance.name == "two clients"), every[0])
    found = power(theorem, [check])

    def turned(change):
        def bound(**arguments):
            right = theorem.bound(**arguments)
            return replace(right, terms=change(right.terms))

        return carried_out(theorem._replace(bound=bound), check).outcome is Outcome.VIOLATED

    for share, violated in ((1.0 - 1e-6, False), (1.0 + 1e-6, True)):
        less = {None: found.whole} | {n: f for n, f in found.terms.items() if f is not None}
        for term, noticed in less.items():
            f = noticed.factor * share
            assert turned(lambda t, f=f, n=term: {k: v / f if n in (None, k) else v for k, v in t.items()}) is violated


def test_a_hypothesis_that_is_needed_is_noticed():
    """With the step 3/L the quantity exceeds a bound that asks for 1/L."""

    def bound(s):
        step = Hypothesis("step_size <= 1/L", f"{s.method.step_size:g}", s.method.step_size <= 1.0)
        return Bound({"start": 0.5}, LAST_SYNCHRONISED, "a test", require("mine", step))

    mine = Theorem("mine", LAST_SYNCHRONISED, bound)
    rule = MethodRule("3/L", lambda *_: FedAvg(step_size=3.0))
    found = power(mine, [Check(two_clients, rule, 1), *ONE])
    assert found.hypotheses["step_size <= 1/L"].factor == pytest.approx(4.0, rel=1e-9)  # (1 - 3)^2/2 over 1/2
    assert power(mine, [Check(two_clients, rule._replace(make=lambda *_: FedAvg(step_size=1.5)), 1)]).hypotheses == {
        "step_size <= 1/L": None
    }  # (1 - 1.5)^2/2 is below
    with dropping():
        assert require("mine", Hypothesis("nothing", "", False))
    with pytest.raises(AssumptionError, match="mine does not apply: needs nothing"):
        require("mine", Hypothesis("nothing", "", False))


@pytest.mark.slow
def test_power_stands_in_table_and_document():
    report = verify_suite(checks(["fedavg-bias", "fedavg-limit"]), tightness=False)
    document = json.loads(json.dumps(as_document(report), allow_nan=False))
    found = document["theorems"]["fedavg-bias"]["power"]
    assert found["whole"] == pytest.approx(report.powers["fedavg-bias"].whole.factor)
    assert set(found) == {
        "whole", "terms", "hypotheses", "noticed_by", "smallest_constant", "established", "looseness",
    }  # fmt: skip
    assert found["terms"] == {"drift": pytest.approx(found["whole"], rel=1e-6)}
    assert f"smallest errors noticed: the bound ÷ {found['whole']:.3g}" in as_table(report)
    least = min(f.verdict.ratio for f in report.findings if f.theorem == "fedavg-bias" and f.verdict.bound is not None)
    assert found["whole"] == pytest.approx(least, rel=1e-6)
    assert np.isfinite(found["whole"])
