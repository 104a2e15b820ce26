"""The search of `conform`: the first exam's readings fitted at once are those fitted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedconvex.conformance import FAMILIES, can, conform
from fedconvex.conformance.conventions import errors, expand
from fedconvex.conformance.exams import standard_exams
from fedconvex.conformance.first_fit import fit, separable
from fedconvex.conformance.implementation import abilities_of, answers
from fedconvex.conformance.readings_search import Asked, begun, follow, search


@can(losses=("squared",), partial=False, batches=())
def odd(clients, hyper, rounds):
    return [0.9**t * hyper["start"] ** 3 for t in range(1, rounds + 1)]


@pytest.mark.parametrize("family", ["fedavg", "scaffold", "feddyn", "fednova", "dynamicfedavg", "agnosticfedavg"])
def test_readings_fitted_at_once_are_those_of_the_family(family):
    f, exam = FAMILIES[family], standard_exams("squared", **FAMILIES[family].hyper)[0]
    assert separable(f, exam)
    model = odd([], exam.hyper, 1)[0]
    at_once = {tuple(r.items()) for r, _ in fit(f, exam, model, math.inf, 0, 10**6).near}
    assert at_once == {tuple(r.items()) for r in expand(f.conventions, exam, {}, 0)}


def pulled_to(share, drawn=0.0):
    """FedProx whose anchor is part of the model of the round before."""

    @can(losses=("squared",), partial=False, batches=())
    def train(clients, hyper, rounds):
        w = before = hyper["start"] * (1.0 + drawn)
        n, models = sum(len(y) for _, y in clients), []
        for _ in range(rounds):
            ends, anchor = 0 * w, (1.0 - share) * w + share * before
            for X, y in clients:
                u = w
                for _ in range(hyper["local_steps"] or hyper["epochs"]):
                    g = X.T @ (X @ u - y) / len(y) + hyper["l2"] * u + hyper["proximal_mu"] * (u - anchor)
                    u = u - hyper["step_size"] * g
                ends = ends + len(y) / n * u
            before, w = w, ends
            models.append(w)
        return models

    return train


def test_what_begins_as_published_is_held_against_that():
    """An anchor half way to the model before is that of FedProx in round 1, and was said not to use mu."""
    f, exams = FAMILIES["fedprox"], ("one step", "four rounds")
    for share, drawn, rounds in ((0.5, 0.0, 1), (0.0, 0.0, 4), (0.5, 0.1, 0)):
        train = pulled_to(share, drawn)
        asked = [a for a in answers(f, train, abilities_of(train))[0] if a.exam.name.startswith(exams)]
        found = begun(f, asked, 1e-9)
        assert (0 if found is None else found.rounds) == rounds
        if rounds == 1:
            assert found.found.rounds == {"one step, squared": 0, "four rounds, squared": 2}
            assert found.found.errors == 0 and found.found.reading["prox"] == "(mu/2) d^2"


@pytest.mark.slow
def test_the_round_in_which_it_departs_is_told():
    found = conform(pulled_to(0.5), "fedprox")
    assert found.verdict == "no reading" and found.agrees == 1 and found.errors == ()
    assert str(found).split("\n")[0].endswith("it agrees with it in round 1 of every exam.")
    assert "It departs in round 2" in str(found) and "\nErrors" not in str(found)
    assert all("from round 2 on" in line for line in found.differs)


@pytest.mark.slow
def test_their_distances_are_those_of_rounds_followed_one_by_one():
    rng = np.random.default_rng(5)
    for f in FAMILIES.values():
        exam = standard_exams("multinomial", **f.hyper)[0]
        if not separable(f, exam):
            continue
        model = odd([], exam.hyper, 1)[0]
        for wrong in (0, 1) if f.name != "fedopt" else (1,):
            near = fit(f, exam, model, math.inf, wrong, 300).near
            for i in rng.integers(0, len(near), 6):
                r, d = near[i]
                far = follow(f, Asked(exam, ((model,),)), r, 1e-9).distance
                assert errors(f.conventions, r) == wrong
                assert abs(d - far) <= 1e-12 * far, (f.name, r, d, far)


@pytest.mark.slow
def test_two_errors_at_a_server_and_its_clients_are_found_among_a_million():
    """One by one it took six minutes, and was cut off at 40,000 readings."""

    @can(losses=("squared",), partial=False, batches=())
    def train(clients, hyper, rounds):
        w, v, models = hyper["start"], hyper["epsilon"] ** 2, []
        m, n = 0 * w, sum(len(y) for _, y in clients)
        for _ in range(rounds):
            delta = 0 * w
            for X, y in clients:
                u = w
                for _ in range(hyper["local_steps"]):
                    u = u + hyper["step_size"] * (X.T @ (X @ u - y) / len(y) + hyper["l2"] * u)  # uphill
                delta = delta + len(y) / n * (u - w)
            m = hyper["beta1"] * m + (1 - hyper["beta1"]) * delta
            v = v + delta**2
            w = w + hyper["server_step_size"] * m / (v + hyper["epsilon"])  # no root
            models.append(w)
        return models

    f, a = FAMILIES["fedopt"], abilities_of(train)
    found = search(f, answers(f, train, a)[0], 1e-9, (2,))
    readings = [m.reading for m in found.matching]
    assert found.tried > 1_000_000 and readings
    assert {r["server"] for r in readings} == {"adagrad"} and {r["epsilon"] for r in readings} == {"no root"}
    assert {r["direction"] for r in readings} | {r["delta"] for r in readings} >= {"ascent"}
