"""Bounds over exact worst cases on grids of steps and local steps, and where they are printed."""

import json
import math

import numpy as np
import pytest

from fedconvex.report.checks import as_document, as_table
from fedconvex.report.exports import write_findings_latex
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.kit import Check, fixed_step, two_clients
from fedconvex.verify import TightnessMap, VerificationReport, tightness_map

ONE = TightnessMap(
    "sums",
    "an instance, T 1",
    "share",
    np.array([1.0, 0.5]),
    "local_steps",
    np.array([1, 2]),
    np.array([[3.0, math.nan], [4.0, 5.0]]),
    np.array([[0.9, math.nan], [2.0, math.nan]]),
    np.array([[1.0, math.nan], [2.0, math.nan]]),
    np.array([[0.5, math.nan], [1.0, 1.0]]),
)


def test_the_bound_is_divided_by_the_upper_end():
    np.testing.assert_array_equal(ONE.ratio, [[3.0, math.nan], [2.0, math.nan]])
    assert ONE.table() == (
        ["share", "local_steps 1", "local_steps 2"],
        [["1", "3", ""], ["0.5", "2", ""]],
    )


def test_maps_stand_in_the_table_in_json_and_in_latex(tmp_path):
    found = VerificationReport((), {}, maps=(ONE,))
    assert "sums: bound over exact worst case, with the constants of an instance, T 1" in as_table(found, 100)
    assert as_document(found)["maps"][0]["ratio"] == [[3.0, None], [2.0, None]]
    json.dumps(as_document(found), allow_nan=False)
    write_findings_latex(found, tmp_path / "a.tex")
    text = (tmp_path / "a.tex").read_text()
    assert "share & local\\_steps 1 & local\\_steps 2 \\\\" in text
    assert "0.5 & 2 &  \\\\" in text


@pytest.mark.slow
def test_one_local_step_without_noise_is_the_closed_form():
    """R1# is D^2/(2 eta T), the worst case L D^2/(2 (1 + eta L (T + 1))): their ratio at T = 2 is (1 + 3 a)/(2 a)."""
    check = Check(two_clients, fixed_step(0.25, local_steps=1), 2)
    found = tightness_map("fedavg-refined-sharp", check, shares=[1.0, 0.5], counts=[1])
    a = found.values[:, None]
    np.testing.assert_allclose(found.ratio, (1.0 + 3.0 * a) / (2.0 * a), rtol=1e-5)
    assert (found.measured <= found.upper * (1 + 1e-9)).all()


@pytest.mark.slow
def test_what_is_not_covered_is_nan_and_a_wrong_bound_lies_below_one():
    """R2 refuses four local steps of 1/L; a bound of a hundredth is below the worst case on the whole map."""
    theorem = THEOREMS["fedavg-at-optimum-sharp"]
    found = tightness_map(theorem, shares=[1.0, 0.1], counts=[1, 4], rounds=1)
    assert math.isnan(found.ratio[0, 1]) and found.ratio[0, 0] >= 1.0
    wrong = theorem._replace(bound=lambda **given: _hundredth(theorem.bound(**given)))
    assert np.nanmax(tightness_map(wrong, shares=[0.1], counts=[1], rounds=1).ratio) < 1.0


def _hundredth(bound):
    return type(bound)({name: 0.01 * v for name, v in bound.terms.items()}, bound.quantity, bound.source)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vertical-rate", "hybrid-tracked", "hedging"])
def test_bounds_that_bring_their_own_worst_case(name):
    found = tightness_map(name, shares=[1.0 if name == "vertical-rate" else 0.25], counts=[1], rounds=2)
    assert found.ratio[0, 0] == pytest.approx(1.0, rel=0.03)


@pytest.mark.slow
def test_theorems_without_a_step_or_a_worst_case_are_refused():
    with pytest.raises(ValueError, match="must vary a step size in its space; got fedavg-convex-tuned"):
        tightness_map("fedavg-convex-tuned")
    with pytest.raises(
        ValueError, match="must have an exact worst case in one of its checks; got weight-divergence-zhao"
    ):
        tightness_map(THEOREMS["weight-divergence-zhao"])
    with pytest.raises(ValueError, match="shares must be"):
        tightness_map("fedavg-refined", shares=[2.0])


def test_the_command_asks_for_theorems_that_have_worst_cases(monkeypatch, capsys):
    """The others are left out, and what is out of reach is said on stderr."""
    from fedconvex.cli.verify import _with_maps

    def found(theorem, progress):
        if theorem.name == "fedavg-convex-tuned":
            raise ValueError("no step")
        return theorem.name

    monkeypatch.setattr("fedconvex.verify.tightness_map", found)
    notes = dict.fromkeys(["hedging", "fedavg-convex-tuned", "weight-divergence-zhao", "fedavg-convex"])
    report = _with_maps(VerificationReport((), notes), THEOREMS)
    assert report.maps == ("hedging", "fedavg-convex")
    assert capsys.readouterr().err == "no map of fedavg-convex-tuned: no step\n"
