"""Families beyond averaging: plain implementations are recognised, and an error in each is named."""

from __future__ import annotations

import time

import numpy as np
import pytest
from conformance_further import RIGHT, WRONG, implementation
from conformance_methods import problem_of

from fedconvex import FedAvg, iterate
from fedconvex.conformance import FAMILIES, can, conform
from fedconvex.conformance.exams import standard_exams
from fedconvex.methods import DANE, DIANA, EF21, CoordinateMedian, FedLin, RandK, Scaffnew, TopK, TrimmedMean

QUICK = ("fedlin", "ef21", "qfedavg")
LONG = {  # seconds each: `python -m tests.campaigns conform-answers` has them
    *("scaffnew", "scaffnew, p", "scaffnew, sign", "mime, beta", "fedlin, stale", "diana, scale", "diana, alpha"),
    *("dane, mean", "dane, factor"),
}


def check_right(name):
    family, function, settings, expected = RIGHT[name]
    found = conform(implementation(function, settings), family)
    assert found.conforms, (name, str(found))
    got = {c: found.reading.get(c) or [line.value for line in found.untold[c]] for c in expected}
    assert all(v == got[c] or v in got[c] for c, v in expected.items()), (name, got)
    return found


def check_wrong(name):
    family, function, settings, says = WRONG[name]
    begun = time.process_time()
    found = conform(implementation(function, settings), family)
    line = str(found).splitlines()[0]
    assert found.grade == "deviation" and says in line, (name, line)
    assert time.process_time() - begun < 20.0
    return found


@pytest.mark.parametrize("name", QUICK)
def test_plain_implementations_are_recognised(name):
    check_right(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RIGHT if name not in {*QUICK, *LONG}])
def test_more_plain_implementations_are_recognised(name):
    check_right(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRONG if name not in LONG])
def test_planted_errors_are_named(name):
    check_wrong(name)


def test_the_median_is_numpys_where_weights_are_equal():
    from fedconvex.conformance.served import median, trimmed

    rng = np.random.default_rng(1)
    for K in (3, 4, 5):
        W, q = rng.normal(size=(K, 2)), np.full(K, 1 / K)
        np.testing.assert_allclose(median(W, q), np.median(W, axis=0), rtol=1e-14)
        np.testing.assert_allclose(trimmed(W, q, 1 / K, 1 - 1 / K), np.sort(W, axis=0)[1:-1].mean(axis=0), rtol=1e-13)


def method(build, every=1):
    """A method of the package as train(clients, hyper, rounds); a round is so many exchanges."""

    @can(losses=("squared",), partial=False, batches=())
    def train(clients, h, rounds):
        states = iterate(
            build(h), problem_of(clients, h), rounds=every * rounds, seed=h["seed"], start=h["start"], threads=1
        )
        return [state.w[0].copy() for t, state in states if t > 0 and t % every == 0]

    return train


def steps(h):
    return {"step_size": h["step_size"], "local_steps": h["local_steps"]}


PACKAGE = {
    "fedlin": (lambda h: FedLin(**steps(h)), 2, {"correction": "both"}),
    "dane": (lambda h: DANE(step_size=1.0 / h["proximal_mu"]), 2, {"correction": "both"}),
    "ef21": (lambda h: EF21(step_size=h["step_size"], compressor=TopK(h["top"])), 1, {"first": "whole"}),
    "diana": (lambda h: DIANA(step_size=h["step_size"], compressor=RandK(h["top"]), alpha=h["alpha"]), 1, {}),
    "scaffnew": (lambda h: Scaffnew(step_size=h["step_size"], probability=h["probability"]), 1, {}),
    "robust": (lambda h: FedAvg(**steps(h), aggregation=CoordinateMedian()), 1, {"aggregate": "median"}),
    "robust, trimmed": (lambda h: FedAvg(**steps(h), aggregation=TrimmedMean(h["trim"])), 1, {"aggregate": "trimmed"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGE)
def test_the_packages_methods_are_as_published(name):
    build, every, expected = PACKAGE[name]
    found = conform(method(build, every), name.split(",")[0])
    assert found.conforms and found.grade == "published", str(found)
    assert {c: found.reading[c] for c in expected} == expected and found.distance < 1e-10


def test_every_family_is_asked_something():
    names = {e.name.split(",")[0] for e in standard_exams("squared")}
    assert all(set(f.exams) <= names and f.exams for f in FAMILIES.values())
