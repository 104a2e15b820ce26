"""The search of `conform`: the first exam's readings fitted at once are those fitted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedconvex.conformance import FAMILIES, can
from fedconvex.conformance.conventions import errors, expand
from fedconvex.conformance.exams import standard_exams
from fedconvex.conformance.first_fit import fit, separable
from fedconvex.conformance.implementation import abilities_of, answers
from fedconvex.conformance.readings_search import Asked, follow, search


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
