"""Errors planted in the source of bounds: what counts as one, and that the suite's checks catch them."""

import ast
import json
from dataclasses import replace

import pytest
from campaigns.exact_worst import FILE, worst_places
from campaigns.hypotheses import limit, without_hypotheses
from campaigns.mutants import Mutant, changes, judged, looseness, mutants

from fedconvex.constants import Constants
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.core import FOUND
from fedconvex.theory import AssumptionError


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
    assert told("max(a, b)") == ["min(a, b)"] and told("x.max()") == ["x.mean()"]
    assert told("np.maximum(a, b)") == ["np.minimum(a, b)"] and told("min(steps)") == []
    assert told("p @ x") == [] and told("p") == ["p ** 2"] and told("constants.p") == ["constants.p ** 2"]
    assert told("{'noise': x}") == ["the term 'noise' times 0", "the term 'noise' times 0.5"]
    assert told("x * y") == told("0.0") == []


@pytest.mark.slow
def test_names_are_unique_and_do_not_age():
    """By function and expression; a dropped term by its name, equal changes at several places by their number."""
    names = [mutant.what for mutant in mutants(THEOREMS["fedavg-refined-sharp"])]
    assert len(set(names)) == len(names)
    assert "_lifted: 2 -> 3, in v ** 2" in names and "_lifted: 2 -> 3, in v ** 2 (place 2)" in names
    assert "fedavg_refined_sharp: the term 'noise' times 0.5" in names


def test_formulas_in_other_files_are_changed_too():
    """The rho of FedProx stands beside the theorem's file: an error in it reaches the bound, and only the mutant's."""
    theorem = THEOREMS["fedprox"]
    at = {"value": 1.0, "gradient_norm": 1.0, "proximal_mu": 20.0, "participants": 100, "inexactness": 0.1}
    at["constants"] = Constants(L=1.0, B=1.0)
    true = theorem.bound(**at).value
    tried = [m for m in mutants(theorem) if m.what.startswith("fedprox_rho: ")]
    values = [m.bound(**at).value for m in tried if "S + -1" not in m.what]
    assert len(tried) > 5 and min(values) < true - 1e-3 and theorem.bound(**at).value == true


@pytest.mark.slow
def test_mutants_of_hypotheses():
    """S1 needs its step condition, by far, and equal weights for uniform draws, as far as is known, not."""
    found = without_hypotheses(THEOREMS["fedavg-contraction"], 30, 0)
    assert found["step_size <= 2/(L + mu)"]["largest"] > 1e3
    (weights,) = (one for name, one in found.items() if name.startswith("equal client weights"))
    assert 0 < weights["largest"] < 1
    assert "full participation" not in found


def test_the_limit_of_a_step_is_found():
    """Steps are shares of 1/L: 1 is the largest for R1#, 1/4 for (15); a radius of FedSAM's perturbation has none."""
    for name, top in (("fedavg-refined-sharp", 1.0), ("fedavg-convex", 0.25)):
        tiny = next(s.tiny for s in FOUND[name] if s.tiny.knobs["local_steps"] > 1)
        assert limit(THEOREMS[name], tiny, "share") == pytest.approx(top, rel=2e-3)
    assert limit(THEOREMS["fedsam"], FOUND["fedsam"][0].tiny, "rho") is None


def test_exact_worst_cases_excuse_a_mutant_or_do_not():
    """Half the drift of (15) stays above all exact worst cases, and no start term at all below some."""
    theorem = THEOREMS["fedavg-convex"]

    def planted(**factors):
        def bound(**run):
            true = theorem.bound(**run)
            terms = {k: factors.get(k.replace(" ", "_"), 1.0) * v for k, v in true.terms.items()}
            return replace(true, terms=terms)

        return Mutant("planted", bound)

    assert looseness(theorem, planted(heterogeneity_drift=0.5))[0] > 4.0
    assert looseness(theorem, planted(start=0.0)) is None
    assert looseness(theorem, planted()) is None  # lowers nothing


def test_exact_worst_cases_agree_where_they_meet():
    """FedSAM without its perturbation is FedAvg, and two equal rows are one client with full gradients."""
    known = json.loads(FILE.read_text())
    for kind in ("uniform", "at the optimum"):
        assert known[f"SAM, {kind} 1 2 0.05 1 rho 1e-06"] == pytest.approx(known[f"{kind} 1 2 0.05 1"], rel=1e-4)
    for T in (1, 2, 3):  # L D^2/(2 (1 + eta L (T + 1))) without noise
        assert known[f"at the optimum, two rows 1 {T} 0.25 0.01"] == pytest.approx(0.5 / (1 + 0.25 * (T + 1)), rel=1e-3)


@pytest.mark.slow
def test_no_bound_lies_below_an_exact_worst_case():
    """At all settings of all theorems: two thousand of them, FedSAM's and R2's with noise included."""
    compared = {}
    for name, theorem in THEOREMS.items():
        for place in worst_places(theorem):
            try:
                bound = theorem.bound(**place.arguments).value
            except AssumptionError:
                continue
            compared[name] = max(compared.get(name, 0.0), place.upper / bound)
    assert max(compared.values()) <= 1.0, compared
    assert compared["fedsam"] > 0.99 and compared["fedsam-at-optimum"] > 0.99  # the floor L rho^2/2, at 1/L
    assert compared["fedavg-contraction"] > 0.9 and len(compared) >= 11


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg-bias", "hedging"])
def test_mutants_are_caught(name):
    """At least nine in ten of those that lower the bound; the bound itself is none."""
    theorem = THEOREMS[name]
    assert judged(theorem, Mutant("the bound", theorem.bound)) == "same"
    verdicts = [judged(theorem, mutant) for mutant in mutants(theorem)]
    assert verdicts.count("caught") >= 2
    assert verdicts.count("missed") <= 0.1 * verdicts.count("caught")
