"""Errors planted in the source of bounds: what counts as one, and that the suite's checks catch them."""

import ast
import math
from dataclasses import replace

import pytest
from campaigns.mutants import Mutant, changes, judged, looseness, mutants

from fedconvex.theorems import THEOREMS


def told(text):
    """Return what a change makes of an expression."""
    return [what for what, _ in changes(ast.parse(text, mode="eval").body)]


def test_changes_of_an_expression():
    assert told("a + b") == ["a", "b"]
    assert told("a - b") == ["a"]
    assert told("a ** 2") == ["a ** (2 + -0.5)", "a ** (2 + 0.5)"]
    assert told("math.sqrt(x)") == ["x"]
    assert told("tau") == ["tau + -1", "tau + 1"]
    assert told("18.0") == ["9.0", "36.0"]
    assert told("{'noise': x}") == ["the term 'noise' times 0", "the term 'noise' times 0.5"]
    assert told("x * y") == told("0.0") == []


def test_exact_worst_cases_excuse_a_mutant_or_do_not():
    """Half the drift of (15) stays above all exact worst cases, and no start term at all below some."""
    theorem = THEOREMS["fedavg-convex"]

    def planted(**factors):
        def bound(**run):
            true = theorem.bound(**run)
            terms = {k: factors.get(k.replace(" ", "_"), 1.0) * v for k, v in true.terms.items()}
            return replace(true, terms=terms, value=math.nan)

        return Mutant("planted", bound)

    assert looseness(theorem, planted(heterogeneity_drift=0.5))[0] > 4.0
    assert looseness(theorem, planted(start=0.0)) is None
    assert looseness(theorem, planted()) is None  # lowers nothing


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg-bias", "dynamic-incremental-noise"])
def test_mutants_are_caught(name):
    """At least nine in ten of those that lower the bound; the bound itself is none."""
    theorem = THEOREMS[name]
    assert judged(theorem, Mutant("the bound", theorem.bound)) == "same"
    verdicts = [judged(theorem, mutant) for mutant in mutants(theorem)]
    assert verdicts.count("caught") >= 2
    assert verdicts.count("missed") <= 0.1 * verdicts.count("caught")
