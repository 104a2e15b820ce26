"""Exponents of bounds: what is told to be noticed is, and what reports say."""

import json
import math

import numpy as np
import pytest

from fedconvex.cli import main
from fedconvex.constants import Constants
from fedconvex.report.checks import as_document, as_table
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.core import FOUND as KEPT_SHARP
from fedconvex.theorems.parts.ladders import derived_ladders
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.theory import AssumptionError
from fedconvex.verify import Exponent, VerificationReport, exponents
from fedconvex.verify.check_records import Note
from fedconvex.verify.exponents import _exponent, _ladders, _numbers, _place, _pressing
from fedconvex.verify.search import share_of
from tests.campaigns.exponents import KEPT, PAGE, SUPERFLUOUS, _grown, aimed, page

NOTE = Note("Sums are sums", "", "", "", "", "", "")
FOUND = (
    Exponent("drift", "local_steps", 2.0, 1.9, 32.0, 0.3, 0.3),
    Exponent("drift", "K", 0.0, math.nan, math.nan, math.inf, 0.3),
    Exponent("noise", "K", -1.0, math.nan, math.nan, math.inf, -0.1),
    Exponent("noise", "rounds", 0.0, math.nan, math.nan, 0.7, 0.4),
)


def wrong(theorem, parameter, error):
    """The theorem with its bound times a power of one number that it is told."""

    def bound(**arguments):
        true = theorem.bound(**arguments)
        factor = _numbers(arguments)[parameter] ** error
        return type(true)({k: v * factor for k, v in true.terms.items()}, true.quantity, true.source, true.requires)

    return theorem._replace(bound=bound)


@pytest.mark.slow
@pytest.mark.parametrize("parameter", ["smoothness", "theta"])
def test_an_error_of_that_size_is_noticed(parameter):
    """The vertical rate has one term, the whole bound: times a power of a number it falls below what is measured."""
    theorem = THEOREMS["vertical-rate"]
    rungs = [tiny for found in _pressing(theorem, 0) for ladder in _ladders(theorem, found) for tiny in ladder]
    (known,) = (e for e in exponents(theorem) if e.parameter == parameter)
    assert max(share_of(wrong(theorem, parameter, 0.0), tiny) for tiny in rungs) <= 1.0
    shares = [
        max(share_of(wrong(theorem, parameter, sign * (1.01 * known.error + 1e-5)), tiny) for tiny in rungs)
        for sign in (-1.0, 1.0)
    ]
    assert max(shares) > 1.0


def test_the_page_is_that_of_the_record():
    """And every exponent that is not established has one reason."""
    found = json.loads(KEPT.read_text())
    assert PAGE.read_text() == page(found)
    total = next(line for line in page(found).splitlines() if line.startswith("| **all**"))
    _, established, superfluous, told, *reasons = (int(cell) for cell in total.split("|")[2:-1])
    assert sum(reasons) == told - superfluous - established and told == sum(map(len, found.values()))


def test_terms_that_are_superfluous_are():
    """Without them a bound is not below the sharper theorem's, whatever the constants and the scheme."""
    rng = np.random.default_rng(0)
    for (name, term, *_), sharper in SUPERFLUOUS.items():
        tried = 0
        for _ in range(40):
            run = {"fedavg-strongly-convex": _decaying_run, "fedprox": _proximal_run}[name](rng)
            try:
                bound = THEOREMS[name].bound(**run)
            except AssumptionError:  # FedProx needs a large proximal weight
                continue
            without = bound.combine([0.0 if k == term and v > 0.0 else v for k, v in bound.terms.items()])
            if name == "fedprox":
                del run["participants"]
            assert THEOREMS[sharper].bound(**run).value <= without * (1.0 + 1e-9), run
            tried += 1
        assert tried >= 20


def _decaying_run(rng):
    """Return what Li et al. are told."""
    L, K = 10.0 ** rng.uniform(-2.0, 4.0), int(rng.integers(1, 6))
    numbers = dict(zip(("D", "sigma2", "G2"), 10.0 ** rng.uniform(-4.0, 2.0, 3), strict=True))
    numbers["Gamma"] = 10.0 ** rng.uniform(-12.0, 2.0)
    run = {"local_steps": int(rng.integers(1, 9)), "rounds": int(rng.integers(1, 20)), "participants": 1}
    run["scheme"] = str(rng.choice(["everyone", "proportional", "uniform"]))
    return run | {"constants": Constants(L=L, mu=L * 10.0 ** rng.uniform(-4.0, 0.0), K=K, **numbers)}


def _proximal_run(rng):
    """Return what FedProx is told: its descent is a negative term, which sampling makes smaller."""
    run = {"value": 1.0, "gradient_norm": 0.1, "participants": int(rng.integers(1, 100)), "inexactness": 0.0}
    constants = Constants(L=1.0, B=rng.uniform(1.0, 1.5), mu_k=np.zeros(2))
    return run | {"constants": constants, "proximal_mu": 10.0 ** rng.uniform(1.5, 3.0)}


def test_free_parameters_are_held():
    """What t and a of the tracking bound owe to a number is no dependence of the bound: R_q is no part of the start."""
    theorem = THEOREMS["dynamic-msd-refined"]
    places = [place for sharp in KEPT_SHARP[theorem.name] if (place := _place(theorem, sharp.tiny)) is not None]
    place = next(p for p in places if p.bound.terms["data variability"] and p.numbers.get("start2"))
    assert _exponent(theorem, place, "data variability", "step_size") > 0.5
    moved = [_exponent(theorem, place, "data variability", name) for name in ("start2", "drift2", "gradient2_k")]
    assert all(math.isnan(power) or abs(power) < 1e-9 for power in moved)


@pytest.mark.parametrize("what", ["rows", "clients", "steps", "rounds", "units"])
def test_grown_instances(what):
    """More of the same: where rows or clients are repeated the objective stays, and the numbers stay within reach."""
    tiny = Tiny(((1.0,), (2.0,), (0.5,)), (1.0, -1.0, 0.3), (2, 1), (0.1,), 3, {"local_steps": 2, "batch_size": 1})
    sizes = set()
    for seed in range(8):
        new = _grown(np.random.default_rng(seed), tiny, what)
        sizes |= {(len(new.rows), len(new.sizes), new.rounds, new.knobs["local_steps"], new.rows[0])}
        assert sum(new.sizes) == len(new.rows) and 1 <= new.knobs["batch_size"] <= min(new.sizes) * 2
        if what in ("rows", "clients"):
            np.testing.assert_allclose(new.problem().solve().w, tiny.problem().solve().w)
    assert len(sizes) > 1


@pytest.mark.slow
def test_a_search_for_one_exponent_finds_what_a_record_lacks():
    """Of a record in which nothing was noticed of mu' in B2; what is known already is left alone."""
    theorem = THEOREMS["fedprox-bias"]
    row = {"term": "drift", "parameter": "proximal_mu", "bound": -0.5, "error": None, "share": 0.5}
    (first,), (found,) = aimed(theorem, [row], pool=8, changes=0), aimed(theorem, [row], pool=8)
    assert found["error"] < 0.5 * first["error"] and found["share"] >= 0.5
    assert aimed(theorem, [{**row, "error": 0.2}]) == [{**row, "error": 0.2}]


def test_what_is_said_of_an_exponent():
    assert [e.established for e in FOUND] == [True, False, False, False]
    assert FOUND[0].words == "an error of 0.3 would be noticed"
    assert FOUND[1].words == "not established: 0.3 of the term was measured, with K near 1"
    assert FOUND[2].words == "not established: no instance is known that presses on the term"
    report = VerificationReport((), {"sums": NOTE}, exponents={"sums": FOUND})
    told = as_document(report)["theorems"]["sums"]["exponents"]
    assert [row["established"] for row in told] == [True, False, False, False]
    assert told[1]["fitted"] is None
    assert as_document(VerificationReport((), {"sums": NOTE}))["theorems"]["sums"]["exponents"] is None
    table = as_table(report, 120)
    assert "sums: 1 of 4 exponents established" in table
    assert "drift: local_steps^2.00, measured 1.90 over a factor 32; an error of 0.3 would be noticed" in table


def test_ladders_stay_within_the_space():
    """Two kinks at 32 steps lie within that of R1#, whose spread is the same at every rung to a twentieth."""
    space = THEOREMS["fedavg-refined-sharp"].space
    ladders = list(derived_ladders(space))
    assert {len(ladder) for ladder in ladders} >= {5, 7}
    for ladder in ladders:
        for tiny in ladder:
            assert set(tiny.knobs) == set(space.knobs)
            assert all(tiny.knobs[k] <= limits.high for k, limits in space.knobs.items())
    assert list(derived_ladders(THEOREMS["game-certificate"].space)) == []


def test_numbers_of_arguments():
    """Numbers above zero, arrays by their largest entry, records by their fields; no flags, texts or zeros."""
    told = {"a": 2, "b": np.array([1.0, 3.0]), "c": 0.0, "d": True, "e": "x", "constants": FOUND[0], "f": np.zeros(2)}
    assert _numbers(told) == {"a": 2.0, "b": 3.0, "bound": 2.0, "fitted": 1.9, "span": 32.0, "error": 0.3, "share": 0.3}


def test_theorems_without_a_space_have_none():
    assert exponents(THEOREMS["sam-error"]._replace(space=None)) == ()


@pytest.mark.slow
@pytest.mark.compiled
def test_the_command_tells_exponents(capsys):
    assert main(["verify", "--power", "--no-search", "--theorem", "fedprox-bias"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fedprox-bias: 4 of 4 exponents established" in out
    assert "drift: proximal_mu^-1.00, measured -0." in out
