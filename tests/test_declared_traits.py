"""What methods declare about their rounds is true: theorems and exact moments rest on it, and look no further."""

import dataclasses

import numpy as np
import pytest

from fedconvex import Federation, Problem, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.theory.moments import Moments
from fedconvex.traits import traits_of
from tests.test_contract import CONFIGURATIONS


def made():
    """Clients that disagree: their minimisers are some 3 apart."""
    rng = np.random.default_rng(5)
    rows = [rng.normal(size=(8, 3)) for _ in range(4)]
    return Problem(Federation.from_clients([(X, X @ (3.0 * rng.normal(size=3))) for X in rows]), Squared(), 0.1)


PROBLEM, ROUNDS = made(), 3
START = PROBLEM.solve().w + np.array([0.1, -0.2, 0.1])  # near the minimiser, where clients move in different directions
FULL = {"participation": None, "batch_size": None, "replacement": False, "batch_draw": "uniform"}


def everybody(method):
    """The method with all clients and all rows, so that its rounds draw nothing."""
    own = {f.name for f in dataclasses.fields(method)}
    return dataclasses.replace(method, **{name: value for name, value in FULL.items() if name in own})


def closed(method):
    """The exact moments of what it declares, or None where they do not close."""
    try:
        return Moments.of(method, PROBLEM)
    except (TypeError, ValueError):
        return None


ONE_MODEL = {name: m for name, m in CONFIGURATIONS.items() if hasattr(m, "local")}
AVERAGING = [name for name, m in ONE_MODEL.items() if closed(m) is not None]


@pytest.mark.parametrize("name", AVERAGING)
def test_rounds_of_everybody_are_those_declared(name):
    method = everybody(ONE_MODEL[name])
    trace = closed(method).run(rounds=ROUNDS, start=START)
    found = run(method, PROBLEM, rounds=ROUNDS, start=START, tol=0).w - PROBLEM.solve().w
    np.testing.assert_allclose(found, trace.mean_error[-1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", AVERAGING)
def test_means_of_what_is_drawn_are_those_declared(name):
    """Over 5,000 runs, with a fixed seed: means within 5 of their standard errors."""
    method, R = ONE_MODEL[name], 5_000
    trace = closed(method).run(rounds=ROUNDS, start=START)
    away = run(method, PROBLEM, rounds=ROUNDS, start=START, tol=0, trajectories=R, seed=1).w - PROBLEM.solve().w
    for seen, exact in ((away, trace.mean_error[-1]), ((away**2).sum(axis=1), trace.deviation[-1])):
        error = 5.0 * seen.std(axis=0) / np.sqrt(R)
        assert (np.abs(seen.mean(axis=0) - exact) <= error + 1e-9 * np.abs(exact)).all()


@pytest.mark.parametrize("name", [n for n, m in ONE_MODEL.items() if hasattr(m, "traits")])
def test_who_takes_part_and_what_is_drawn_is_declared(name):
    method = ONE_MODEL[name]
    found = traits_of(method, PROBLEM)
    clients, weights = participants(method, PROBLEM, Draws(key_from_seed(3), np.arange(2), 1))
    if found.sampling != "other" and not hasattr(method, "participants"):
        assert clients.shape[1] == found.participants
    if found.everyone and not hasattr(method, "participants"):
        assert (np.sort(clients, axis=1) == np.arange(PROBLEM.federation.K)).all()
        np.testing.assert_allclose(weights, PROBLEM.weights[clients])
    if found.deterministic:
        a, b = (list(iterate(method, PROBLEM, rounds=2, seed=s))[-1][1].w for s in (1, 2))
        np.testing.assert_array_equal(a, b)


def test_a_wrong_declaration_is_found(monkeypatch):
    """FedAvg whose server moves half the way, and says that it averages."""
    from fedconvex import FedAvg
    from fedconvex.methods import ServerSGD

    monkeypatch.setattr(ServerSGD, "plain_step", property(lambda self: 1.0))
    assert "wrong" not in ONE_MODEL
    ONE_MODEL["wrong"] = FedAvg(step_size=0.2, local_steps=2, server=ServerSGD(0.5))
    try:
        with pytest.raises(AssertionError):
            test_rounds_of_everybody_are_those_declared("wrong")
    finally:
        del ONE_MODEL["wrong"]


def test_traits_that_return_something_else_are_refused_in_words():
    from fedconvex import FedSGD

    class Silent(FedSGD):
        """Forgets to return what it declares."""

        def traits(self, problem):
            super().traits(problem)

    problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared())
    with pytest.raises(
        TypeError, match=r"Silent\.traits\(problem\) must return Traits; got None: return Traits\(\), wh"
    ):
        traits_of(Silent(step_size=0.1), problem)
