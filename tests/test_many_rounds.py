"""Rounds that are computed together: bit for bit those computed one by one, and nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, iterate, run
from fedconvex.draws import PARTICIPATION, Draws, choose_many, key_from_seed
from fedconvex.driver import rounds
from fedconvex.kernels import many_rounds
from fedconvex.kernels.lane_samples import choose_in_rounds
from fedconvex.methods import (
    AdaptiveProximal,
    Averaging,
    ClientMomentum,
    ClientSGD,
    Decay,
    FedProx,
    ProportionalSampling,
    ServerSGD,
    Stragglers,
    WeightedMean,
)
from fedconvex.methods.parts.participation import as_participation, participants, participants_of_rounds

SINGLE = {"local_steps": 3, "batch_size": 1}
TOGETHER = {
    "single rows": FedAvg(step_size=0.1, participation=2, **SINGLE),
    "one client": FedAvg(step_size=0.1, participation=1, **SINGLE),
    "everybody, unequal weights": FedAvg(step_size=0.1, **SINGLE),
    "with replacement": FedAvg(step_size=0.1, replacement=True, **SINGLE),
    "batches": FedAvg(step_size=0.1, participation=3, local_steps=2, batch_size=2),
    "epochs": FedAvg(step_size=0.1, participation=2, epochs=2, batch_size=1),
    "full gradients": FedAvg(step_size=0.1, local_steps=2),
    "momentum of clients": FedAvg(step_size=0.1, local_steps=2, client=ClientMomentum(0.5)),
    "steps that decay": FedAvg(step_size=Decay(1.0, 9.0), participation=2, **SINGLE),
    "steps that decay by round": FedAvg(step_size=Decay(1.0, 9.0, 0.5, by_round=True), participation=2, **SINGLE),
    "a step for each trajectory": FedAvg(step_size=np.array([0.1, 0.2]), **SINGLE),
    "proximal": FedProx(proximal_mu=0.4, step_size=0.1, participation=2, **SINGLE),
    "proximal, batches": FedProx(proximal_mu=np.array([0.4, 0.0]), step_size=0.1, local_steps=2, batch_size=2),
}
LANES = (
    "single rows", "everybody, unequal weights", "with replacement", "epochs", "steps that decay", "proximal",
    "steps that decay by round",
)  # fmt: skip
ONE_BY_ONE = {
    "drawn by weight": FedAvg(step_size=0.1, participation=ProportionalSampling(2), **SINGLE),
    "server with a memory": FedAvg(step_size=0.1, server=ServerSGD(0.5), **SINGLE),
    "shadow": FedAvg(step_size=0.1, shadow=True, **SINGLE),
    "stragglers": FedProx(proximal_mu=0.4, step_size=0.1, stragglers=Stragglers(0.5), **SINGLE),
    "adaptive": FedProx(proximal_mu=AdaptiveProximal(0.2), step_size=0.1, **SINGLE),
    "jobs of two kinds": FedAvg(step_size=0.1, epochs=1, batch_size=3),
}


def small_problem(l2=0.1):
    rng, sizes = np.random.default_rng(4), (3, 5, 4, 6)
    clients = [(rng.normal(size=(n, 3)), np.where(rng.random(n) < 0.5, -1.0, 1.0)) for n in sizes]
    return Problem(Federation.from_clients(clients), Logistic(), l2=l2)


def begin(monkeypatch, first, early=True):
    """Have rounds computed together after round `first`, in blocks of at most four, and never early, unless early."""
    monkeypatch.setattr(rounds, "ONE_BY_ONE", first)
    monkeypatch.setattr(rounds, "BLOCK", 4)
    monkeypatch.setattr(rounds.Engine, "early", early)


def states(method, problem, R, threads=1, n=9):
    """Return the states of n rounds, and the engine."""
    engine = rounds.Engine(method, problem, key_from_seed(3), R, threads)
    return [s for _, s in engine.loop(engine.start(None), 0, n)], engine


def same(method, problem, monkeypatch, R=2, first=1, threads=1):
    """Check that all arrays of all states, and what was sent, are equal; return the engine of the second run."""
    begin(monkeypatch, 10**9, early=False)
    alone, one = states(method, problem, R)
    begin(monkeypatch, first)
    together, other = states(method, problem, R, threads)
    assert len(alone) == len(together)
    for a, b in zip(alone, together, strict=True):
        assert a._fields == b._fields
        arrays = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, np.ndarray)]
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in arrays) and np.isfinite(a.w).all()
    assert (one.floats_down, one.floats_up) == (other.floats_down, other.floats_up)
    return other


@pytest.mark.slow
def test_rounds_together_are_those_one_by_one(monkeypatch):
    for name, method in TOGETHER.items():
        assert same(method, small_problem(), monkeypatch).ahead is not None, name
    for name, method in ONE_BY_ONE.items():
        assert same(method, small_problem(), monkeypatch).ahead is None, name


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled_rounds_together_are_those_one_by_one(monkeypatch):
    """Kernels linked into another kernel could add in another order."""
    for name in ("single rows", "one client", "batches", "full gradients", "proximal"):
        assert same(TOGETHER[name], small_problem(), monkeypatch).ahead is not None, name
    for name in LANES:
        assert same(TOGETHER[name], small_problem(), monkeypatch, 11, 10**9).early, name


def test_models_that_overflow_are_the_same_together(monkeypatch):
    """A proximal term of weight 0 makes NaN of an infinite model, as its product with 0 is."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(3, 1)), rng.normal(size=3)) for _ in range(2)]
    problem = Problem(Federation.from_clients(clients), Squared(), l2=0.1)
    method = FedProx(proximal_mu=np.array([0.0, 0.3, 0.0]), step_size=1e200, local_steps=1, batch_size=1)
    for one in (method, replace(method, proximal_mu=0.0)):
        begin(monkeypatch, 10**9, early=False)
        alone, _ = states(one, problem, 3)
        begin(monkeypatch, 10**9)
        together, engine = states(one, problem, 3)
        assert engine.early and any(np.isinf(s.w).any() for s in alone)
        assert all(np.array_equal(a.w, b.w, equal_nan=True) for a, b in zip(alone, together, strict=True))


@pytest.mark.slow
def test_rounds_in_lanes_are_together_from_the_second_round_on(monkeypatch):
    """Eleven trajectories: eight across the lanes of vectors, and three one after the other; in three threads too."""
    for threads in (1, 3):
        for name in LANES:
            assert same(TOGETHER[name], small_problem(), monkeypatch, 11, 10**9, threads).early, name
    for name in ("batches", "full gradients", "momentum of clients"):
        assert not same(TOGETHER[name], small_problem(), monkeypatch, 11, 10**9).early, name


def test_rounds_of_many_trajectories_are_computed_in_parts(monkeypatch):
    monkeypatch.setattr(many_rounds, "_ENTRIES", 64)
    monkeypatch.setattr(many_rounds, "_FEW", 4)
    assert same(TOGETHER["proximal"], small_problem(), monkeypatch, 11, 10**9).early
    assert same(TOGETHER["one client"], small_problem(), monkeypatch, 25, 10**9).early


def test_a_loop_may_leave_rounds_out(monkeypatch):
    """Of rounds computed together; the last is never left out, and neither are those one by one."""
    begin(monkeypatch, 10**9)
    method, problem = TOGETHER["single rows"], small_problem()
    engine = rounds.Engine(method, problem, key_from_seed(3), 2, 1)
    found = [(t, s.w, engine.floats_up) for t, s in engine.loop(engine.start(None), 0, 20, 3)]
    assert [t for t, _, _ in found] == [0, 1, 3, 5, 6, 9, 12, 13, 15, 17, 18, 20]
    whole, floats = states(method, problem, 2, n=20)[0], found[1][2]
    assert all(np.array_equal(w, whole[t].w) and sent == t * floats for t, w, sent in found)


def test_participants_of_several_rounds(monkeypatch):
    for weights in (None, "uniform"):
        problem, key = small_problem(), key_from_seed(5)
        problem = Problem(problem.federation, Logistic(), weights=weights)
        for given in (1.0, 3, 0.5):
            scheme = as_participation("who", given)
            found = participants_of_rounds(scheme, problem, Draws(key, np.arange(2), 7), 3)
            clients, shares = (np.broadcast_to(a, (3, 2, a.shape[2])) for a in found)
            for t in range(3):
                a, b = participants(scheme, problem, Draws(key, np.arange(2), 7 + t))
                assert np.array_equal(clients[t], a) and np.array_equal(shares[t], b)


@pytest.mark.compiled_if_slow
def test_samples_of_many_rounds_are_those_of_each():
    """By Floyd's method, eleven trajectories by eights, and by partial shuffles; numbers are turned into clients."""
    key = key_from_seed(2)
    for K, m in ((20, 7), (20, 10), (9, 1)):
        found, one, ordered = np.empty((3, 11, m), np.int64), np.empty((11, m), np.int64), np.arange(K)[::-1].copy()
        choose_in_rounds(key, np.arange(11) + 2, 5, K, ordered, found)
        for t in range(3):
            choose_many(key, np.arange(11) + 2, 5 + t, -1, PARTICIPATION, K, m, one)
            assert np.array_equal(found[t], ordered[one]) and all(len(set(its)) == m for its in one.tolist())


def test_a_class_that_changes_the_round_does_not_inherit_it(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Halved(FedAvg):
        def aggregate(self, state, clients, weights, reply):
            new = super().aggregate(state, clients, weights, reply)
            return new._replace(w=0.5 * new.w)

    assert same(Halved(step_size=0.1, **SINGLE), small_problem(), monkeypatch).ahead is None


def halving(function):
    """Return a function that halves the model that another one leaves."""

    def half(*args):
        found = function(*args)
        return found._replace(w=0.5 * found.w) if hasattr(found, "w") else (found[0]._replace(w=0.5 * found[0].w), None)

    return half


class Half(Averaging):
    def move(self, memory, w, average):
        return memory, 0.5 * average


class HalfMean(WeightedMean):
    def of(self, weights, answers):
        return 0.5 * super().of(weights, answers)


class Longer(ClientSGD):
    def move(self, w, g, a, m, v, t):
        for j in range(w.size):
            w[j] -= 2.0 * a * g[j]


@pytest.mark.parametrize("part", ["local", "aggregate"])
@pytest.mark.parametrize("where", ["class", "instance"])
@pytest.mark.parametrize("kind", [FedAvg, FedProx])
def test_parts_that_are_replaced_are_those_of_every_round(kind, where, part, monkeypatch):
    """With one local step on one row a client, halved answers or averages are those of a server that halves."""
    given = {"step_size": 0.1, "batch_size": 1} | ({"proximal_mu": 0.3} if kind is FedProx else {})
    problem, n = small_problem(), 6
    begin(monkeypatch, 10**9, early=False)
    expected, method = states(kind(server=Half(), **given), problem, 2, n=n)[0], kind(**given)
    begin(monkeypatch, 1)
    if where == "class":
        monkeypatch.setattr(kind, part, halving(getattr(kind, part)))
    else:
        object.__setattr__(method, part, halving(getattr(method, part)))
    found = states(method, problem, 2, n=n)[0]
    assert np.abs(expected[-1].w).max() > 0.0
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a.w, b.w, rtol=1e-14)


def test_optimisers_and_aggregates_that_are_replaced_are_those_of_every_round(monkeypatch):
    """Half the average, by a server or an aggregate, and steps twice as long, also where rows are added one by one."""
    monkeypatch.setattr(rounds, "ONE_BY_ONE", 1)
    problem = small_problem()
    for kind, more in ((FedAvg, {}), (FedProx, {"proximal_mu": 0.3})):
        method = kind(step_size=0.1, **SINGLE, **more)
        halves = [
            states(replace(method, **new), problem, 2) for new in ({"server": Half()}, {"aggregation": HalfMean()})
        ]
        w = halves[0][0][1].w
        monkeypatch.setattr(rounds.Engine, "ahead", None)
        plain = states(method, problem, 2, n=1)[0][1].w
        for found, engine in halves:
            assert engine.ahead is None
            np.testing.assert_allclose(found[1].w, 0.5 * plain, rtol=1e-14)
            np.testing.assert_allclose(found[-1].w, halves[0][0][-1].w, rtol=1e-14)
        twice = states(replace(method, step_size=0.2), problem, 2)[0]
        longer, engine = states(replace(method, client=Longer()), problem, 2)
        if kind is FedAvg:
            np.testing.assert_allclose(longer[-1].w, twice[-1].w, rtol=1e-13)
        assert not np.allclose(longer[1].w, w) and not replace(method, client=Longer()).traits(problem).local.plain
    assert Half().plain_step is None and Averaging().plain_step == 1.0


def test_a_weight_that_is_changed_between_rounds_is_that_of_the_next(monkeypatch):
    method, found = TOGETHER["proximal"], []
    for first in (10**9, 1):
        begin(monkeypatch, first, first == 1)
        for t, state in iterate(method, small_problem(), rounds=9, trajectories=2):
            if t in (3, 4):
                state.mu[t - 3] = 5.0
        found.append(state)
    assert np.array_equal(found[0].w, found[1].w) and found[1].mu.tolist() == [5.0, 5.0]
    unchanged = [s.w for _, s in iterate(method, small_problem(), rounds=9, trajectories=2)]
    assert not np.array_equal(unchanged[-1], found[1].w)


def test_states_that_are_kept_hold_little_of_their_block():
    """At most 4096 bytes, or eight states, of a block of 64 rounds; and they stay as they were."""
    method, problem = FedAvg(step_size=0.1, batch_size=1, participation=1), small_problem()
    for R, most in ((4, 4096), (24, 8 * 24 * 24)):
        kept = [(s, s.w.copy()) for t, s in iterate(method, problem, rounds=84, trajectories=R) if t % 20 == 7]
        assert all(np.array_equal(s.w, w) for s, w in kept) and len(kept) == 4
        for s, _ in kept:
            held = s.w
            while held.base is not None:
                held = held.base
            assert held.nbytes <= most


def test_a_state_that_is_changed_between_rounds_is_the_one_gone_on_from(monkeypatch):
    def ends(first):
        begin(monkeypatch, first, first == 1)
        for t, state in iterate(TOGETHER["single rows"], small_problem(), rounds=9):
            if t in (3, 4):
                state.w[:, 0] = 0.0
        return state.w

    assert np.array_equal(ends(10**9), ends(1))


def test_runs_record_and_stop_as_before(monkeypatch):
    method, found = FedAvg(step_size=0.5), []
    for first in (10**9, 1):
        begin(monkeypatch, first, first == 1)
        found.append(run(method, small_problem(), rounds=300, tol=1e-3, record_every=3))
    for name in ("round", "value", "gap", "floats_down", "floats_up"):
        assert np.array_equal(found[0].trace[name], found[1].trace[name]), name
    assert found[0].status is found[1].status and found[0].rounds == found[1].rounds


def test_rounds_between_two_records_are_computed_at_once(monkeypatch):
    """Nobody asks for the states between, and a run that is not stopped by them need not begin with short blocks."""
    method, problem, asked, alone = TOGETHER["single rows"], small_problem(), [], rounds.Engine._block
    monkeypatch.setattr(rounds.Engine, "_block", lambda engine, t, *rest: asked.append(t) or alone(engine, t, *rest))
    result = run(method, problem, rounds=70, record_every=35, tol=0.0, seed=3, trajectories=2)
    assert asked == [0, 1, 36]  # the first round alone
    asked.clear()
    every_one, _ = states(method, problem, 2, n=70)
    assert asked == [0, 1, 5, 21]
    np.testing.assert_array_equal(result.w, every_one[-1].w)
