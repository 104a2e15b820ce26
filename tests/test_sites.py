"""Federations of sites: the bits of one process, certificates, faults, and messages that nobody should send."""

from __future__ import annotations

import os
import re
import time
import warnings
from fractions import Fraction
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from campaigns.sites import SHARED, Site, compare, fault_trial, replayed, required_trial, shared
from test_contract import CONFIGURATIONS, EVERY, kinds

from fedconvex import (
    FedAvg,
    Federation,
    FedSGD,
    GradientDescent,
    Logistic,
    Problem,
    Squared,
    VerticalFederation,
    iterate,
    run,
)
from fedconvex.methods import AFL, MOCHA, SCAFFOLD, Clock, OptimisticAFL
from fedconvex.problems import MeanRegularised, MovingTarget, MultiTaskProblem, StumpProblem
from fedconvex.remote import Roster, SiteWarning, in_process
from fedconvex.remote.messages import ASK, MEASURE, REFUSE, Request, fingerprint

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sites.md"
QUICK = ["FedAvg proportional", "SCAFFOLD batches", "FSVRG", "RADFed batches", "MOCHA clock"]


def rotated(names):
    """Every configuration once, kinds of problems, dense and sparse rows and trajectories in turn."""
    for i, name in enumerate(names):
        kind = kinds(name)[i % len(kinds(name))]
        yield name, kind, name in CONFIGURATIONS and i % 2 == 0, 1 + (i // 2) % 2


@pytest.mark.slow
def test_sites_have_the_bits_of_one_process():
    for name, kind, sparse, R in rotated(QUICK):
        compare(EVERY[name], *shared(name, kind, sparse), R)


@pytest.mark.slow
def test_every_method_of_the_contract_has_the_bits_of_one_process():
    for name, kind, sparse, R in rotated([n for n in SHARED if n not in QUICK]):
        compare(EVERY[name], *shared(name, kind, sparse), R)


def pair(l2=0.1, loss=None, domains=None):
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in (3, 6, 4)]
    fed = Federation.from_clients(clients, labels=["north", "east", "south"], domains=domains)
    return fed, lambda f: Problem(f, loss or Logistic(), l2)


def far(method, fed, make, patience=5, **how):
    """A run over sites of this process, and its roster."""
    roster, sites = Roster.of(make, fed, patience), [Site(method, make, fed.subset([k])) for k in range(fed.K)]
    return run(method, roster, transport=in_process(sites), **how), roster


def test_weights_and_domains_travel():
    """Rows with weights, drawn by weight; domains that not every client has."""
    rng = np.random.default_rng(5)
    X, y, who = rng.normal(size=(20, 2)), rng.normal(size=20), np.repeat([0, 1, 2], [6, 8, 6])
    fed = Federation.from_arrays(X, y, who, np.where(who == 1, "b", "a"), rng.uniform(0.5, 2.0, 20))
    make = lambda f: Problem(f, Squared(), 0.1)  # noqa: E731
    drawn = FedAvg(step_size=0.2, local_steps=3, batch_size=2, replacement=True, batch_draw="weighted")
    for method in (drawn, AFL(step_size=0.1, domain_step_size=0.1)):
        compare(method, fed, make, 2)


def test_a_server_has_no_rows():
    fed, make = pair()
    roster = Roster.of(make, fed)
    for name in ("X", "y", "rows", "domain"):
        with pytest.raises(AttributeError, match="no rows"):
            getattr(roster.federation, name)
    with pytest.raises(AttributeError, match="no rows"):
        roster.gradient(np.zeros(2))


def test_the_gap_is_that_of_strong_convexity():
    """‖grad F‖^2/(2 l2), above the truth, and inf or F itself without l2."""
    fed, make = pair()
    result, _ = far(FedSGD(step_size=0.5), fed, make, rounds=3, tol=0)
    problem = make(fed)
    g = problem.gradient(result.w)
    assert result.gap == pytest.approx(float(g @ g) / 0.2, rel=1e-12)
    assert result.model().coef.tolist() == result.w.tolist()
    assert result.gap >= problem.value(result.w) - problem.solve().value > 0.0
    assert far(FedSGD(step_size=1.5), fed, make, rounds=60, tol=1e-6)[0].status.name == "CONVERGED"
    fed, make = pair(l2=0.0)
    result, _ = far(FedSGD(step_size=0.5), fed, make, rounds=3, tol=0)
    assert result.gap == pytest.approx(result.trace.value[-1], rel=1e-14)  # a loss is at least 0


def test_the_gap_is_above_the_truth_where_all_is_rounding():
    """Against the least squares solution in rational numbers; ‖grad F‖^2/(2 l2) alone is too small."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.choice([-1.0, 1.0], 20)
    fed = Federation.from_arrays(X, y, np.repeat([0, 1, 2], [5, 9, 6]))
    make = lambda f: Problem(f, Squared(), 0.5)  # noqa: E731
    result, _ = far(FedSGD(step_size=0.5), fed, make, rounds=150, tol=0, record_every=150)
    rows, half = [[Fraction(v) for v in (*x, z)] for x, z in zip(X.tolist(), y.tolist(), strict=True)], Fraction(1, 2)
    a, b, c = (sum(r[i] * r[j] for r in rows) / 20 + half * (i == j) for i, j in ((0, 0), (0, 1), (1, 1)))
    u, v = (sum(r[i] * r[2] for r in rows) / 20 for i in (0, 1))
    best = (c * u - b * v) / (a * c - b * b), (a * v - b * u) / (a * c - b * b)
    d, e = (Fraction(w) - v for w, v in zip(result.w.tolist(), best, strict=True))
    assert result.gap >= half * (a * d * d + 2 * b * d * e + c * e * e) > 0


@pytest.mark.slow
def test_agnostic_and_dual_gaps_converge():
    fed, make = pair(l2=0.5)
    result, _ = far(OptimisticAFL(step_size=0.6, domain_step_size=0.6), fed, make, rounds=200, tol=1e-3)
    assert result.status.name == "CONVERGED"
    assert result.trace.value[-1] - make(fed).solve_minimax().value <= result.gap
    tasks = lambda f: MultiTaskProblem(f, Logistic(), MeanRegularised(1.0, 0.5))  # noqa: E731
    result, _ = far(MOCHA(), fed, tasks, rounds=60, tol=1e-6)
    assert result.status.name == "CONVERGED"
    assert result.trace.value[-1] - tasks(fed).solve().value <= result.gap


def test_what_sites_cannot_share_is_refused():
    fed, make = pair()
    roster, sites = Roster.of(make, fed), [Site(FedSGD(step_size=0.1), make, fed.subset([k])) for k in range(3)]
    ask = in_process(sites)
    for method, problem, said in (
        (GradientDescent(step_size=0.1), roster, "broadcast and local"),
        (FedSGD(step_size="auto"), roster, "be given"),
        (FedSGD(step_size=0.1), make(fed), "Roster"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            run(method, problem, transport=ask)
    with pytest.raises(TypeError, match="Roster"):
        run(FedSGD(step_size=0.1), roster)
    with pytest.raises(TypeError, match="have its rows here"):
        next(iterate(FedSGD(step_size=0.1), roster))
    for method in (3, FedSGD, GradientDescent(step_size=0.1)):
        with pytest.raises(TypeError, match="broadcast and local"):
            Site(method, make, fed.subset([0]))
    for wrong in (lambda f: 3, lambda f: MovingTarget(make(f), 0.1)):
        with pytest.raises(TypeError, match=r"Roster\.make must return a problem"):
            Roster(wrong, ["a"], [3], 2)
    date = np.array(["2020-01-01"], dtype="datetime64[D]")
    for wrong in (
        {"sizes": [0]},
        {"labels": ["a", "a"]},
        {"masses": [-1.0]},
        {"domain_labels": []},
        {"domain_labels": [b"a"]},
        {"domain_labels": date},
        {"features": 0},
        {"required": ["b"]},
    ):
        with pytest.raises(ValueError, match=f"Roster.{next(iter(wrong))} must"):
            Roster(**({"make": make, "labels": ["a"], "sizes": [3], "features": 2} | wrong))
    columns = VerticalFederation.from_blocks([np.ones((3, 1)), np.eye(3)], np.ones(3))
    for wrong in (columns, 3):
        with pytest.raises(TypeError, match=r"Roster\.of: federation must be a Federation, whose clients hold rows"):
            Roster.of(make, wrong)
    with pytest.raises(TypeError, match=r"Site\.federation must"):
        Site(FedSGD(step_size=0.1), make, columns)
    with pytest.raises(ValueError, match="hold one client"):
        Site(FedSGD(step_size=0.1), make, fed)
    assert not hasattr(StumpProblem, "engine")
    with pytest.raises(TypeError, match=r"ask\(t, \{client: arrays\}\)"):
        run(FedSGD(step_size=0.1), roster, transport=3)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (lambda fed, make: (FedSGD(step_size=0.2), make, fed), "method is FedSGD"),
        (lambda fed, make: (FedSGD(step_size=0.1), lambda f: Problem(f, Logistic(), 0.2), fed), "l2 is 0.2 here"),
        (lambda fed, make: (FedSGD(step_size=0.1), lambda f: Problem(f, Squared(), 0.1), fed), "loss is"),
        (lambda fed, make: (FedSGD(step_size=0.1), make, fed.split(0.5)[0]), "rows must be 6"),
    ],
)
def test_a_site_that_takes_part_in_something_else_says_so(there, said):
    fed, make = pair()
    method, other, rows = there(fed, make)
    sites = [Site(FedSGD(step_size=0.1), make, fed.subset([k])) for k in range(3)]
    sites[1] = Site(method, other, rows.subset([1]))
    for required in ((), None):
        roster = Roster.of(make, fed, required=required)
        with pytest.warns(UserWarning, match="site east") as told:
            go = lambda: run(FedSGD(step_size=0.1), roster, transport=in_process(sites), rounds=2)  # noqa: E731, B023
            if required is None:
                with pytest.raises(ValueError, match="every required site must join before the first round") as error:
                    go()
                assert said in str(error.value)
            else:
                assert np.isinf(go().gap)
        assert said in str(told[0].message)
        assert {i.client for i in roster.incidents} == {"east"}


def test_an_error_that_quotes_a_row_stays_at_its_site(caplog):
    """What its own code raises may hold cells of its rows: the server learns the class, the site's log the rest."""
    fed, make = pair()
    other = fed.y.copy()
    other[fed.ptr[1]] = 37.25  # no label of a logistic loss
    method, spoiled = FedSGD(step_size=0.1), Federation(fed.X, other, fed.ptr, fed.labels)
    sites = [Site(method, make, f.subset([k])) for k, f in enumerate((fed, spoiled, fed))]
    roster = Roster.of(make, fed, required=["north", "south"])
    with pytest.warns(SiteWarning, match=r"site east: ValueError; the log of the site"):
        run(method, roster, transport=in_process(sites), rounds=2)
    assert "37.25" in caplog.text and not any("37.25" in i.what for i in roster.incidents)


def test_another_version_is_refused(monkeypatch):
    fed, make = pair()
    method = SCAFFOLD(step_size=0.1)
    roster, sites = Roster.of(make, fed), [Site(method, make, fed.subset([k])) for k in range(3)]
    ask, mine = in_process(sites), "0.0.1"

    def older(t, requests):
        monkeypatch.setattr("fedconvex.__version__", mine)
        answers = ask(t, requests)
        monkeypatch.undo()
        return answers

    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"before the first.*version is 0\.0\.1 here"):
        run(method, roster, transport=older, rounds=2)


# ---------------------------------------------------------------- faults


def answering(sites, *, lost=(), spoil=None):
    """A transport that loses answers (round, client), or spoils those of client 1 from round 1 on."""
    ask = in_process(sites)

    def faulty(t, requests):
        answers = ask(t, requests)
        kind = next(iter(requests.values()))["header"][1]
        answers = {k: a for k, a in answers.items() if kind != ASK or (t, k) not in lost}
        if spoil is not None and 1 in answers and t >= 1 and kind == ASK:
            answers[1] = spoil(dict(answers[1]))
        return answers

    return faulty


def test_what_a_lost_answer_means(tmp_path):
    """Weights are renormalised, the client is left out with its memory as it was, or the round is asked for again."""
    fed, make = pair()
    lost = {(1, 0), (2, 2), (3, 0), (3, 1)}
    counted = {t: np.array([k for k in range(3) if (t, k) not in lost]) for t in range(6)}
    for method in (FedAvg(step_size=0.3, local_steps=2), SCAFFOLD(step_size=0.3, local_steps=2)):
        sites = [Site(method, make, fed.subset([k])) for k in range(3)]
        roster = Roster.of(make, fed, required=())
        result = run(method, roster, transport=answering(sites, lost=lost), rounds=6, tol=0, seed=3)
        np.testing.assert_array_equal(result.state.w, replayed(method, make(fed), 6, counted)[0].w)
        assert sorted((i.round, i.client) for i in roster.incidents) == sorted((t, fed.labels[k]) for t, k in lost)
        assert np.isfinite(result.trace.gap).all()
    held = [site.kept[max(site.kept)].rows[0] for site in sites]
    np.testing.assert_allclose(result.state.c[0], make(fed).weights @ held, rtol=0, atol=1e-15)
    method = AFL(step_size=0.1, domain_step_size=0.1)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    with pytest.raises(ConnectionError, match="round 1: must have an answer of north, asked 5 times"):
        run(method, Roster.of(make, fed), transport=answering(sites, lost=lost), rounds=6)


def test_trajectories_that_lose_different_clients():
    """They are asked once more; if they stay away the run ends with who is missing, and why."""
    fed, make = pair()
    method, R = FedAvg(step_size=0.3, participation=2), 6
    for times in (1, 9):
        sites, left = [Site(method, make, fed.subset([k])) for k in range(3)], {(t, 1): times for t in range(4)}
        plain = in_process(sites)

        def ask(t, requests, plain=plain, left=left):
            answers = plain(t, requests)
            if 1 in answers and answers[1]["header"][1] == ASK and left.get((t, 1), 0):
                left[t, 1] -= 1
                del answers[1]
            return answers

        go = lambda: run(method, Roster.of(make, fed, required=()), transport=ask, rounds=4, tol=0, trajectories=R)  # noqa: E731
        if times == 1:
            np.testing.assert_array_equal(go().w, run(method, make(fed), rounds=4, tol=0, trajectories=R).w)
        else:
            with pytest.raises(ConnectionError, match=r"of east, asked 5 times.*one at a time"):
                go()


def test_messages_that_come_at_once_are_answered_in_turn():
    """A site's memory is for one request at a time."""
    fed, make = pair()
    method, inside, most = SCAFFOLD(step_size=0.3), [0], [0]
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    requests, plain = [], in_process(sites)

    def ask(t, asked):
        requests.append(asked[0])
        return plain(t, asked)

    run(method, Roster.of(make, fed), transport=ask, rounds=1)
    work = next(a for a in requests if a["header"][1] == ASK)

    class Watched:
        def local(self, *args):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            inside[0] -= 1
            return method.local(*args)

        memory = staticmethod(method.memory)

    sites[0].own_method = Watched()
    threads = [Thread(target=sites[0].answer, args=(work,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_transport_cannot_change_what_others_are_told():
    """Sites that are told the same share its arrays, which are for reading; what is a site's own is its own."""
    fed, make = pair()
    method = FedAvg(step_size=0.3, local_steps=2)
    ask, seen = in_process([Site(method, make, fed.subset([k])) for k in range(3)]), []

    def writing(t, requests):
        asked = [a for a in requests.values() if "message/w" in a]
        seen.append(len({id(a["message/w"]) for a in asked}))
        for a in asked:
            for name in ("message/w", "trajectories", "acknowledged"):
                with pytest.raises(ValueError, match="read-only"):
                    a[name][...] = 0
        return ask(t, requests)

    result = run(method, Roster.of(make, fed), transport=writing, rounds=3, seed=1)
    np.testing.assert_array_equal(result.w, run(method, make(fed), rounds=3, seed=1).w)
    assert 1 in seen
    assert max(seen) == 1


def test_nobody_answers():
    fed, make = pair()
    method = FedSGD(step_size=0.1)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    with pytest.raises(ConnectionError, match="must have an answer of north, east, south"):
        run(method, Roster.of(make, fed), transport=answering(sites, lost={(2, k) for k in range(3)}), rounds=6)
    with pytest.raises(ConnectionError, match="must have an answer"):
        run(method, Roster.of(make, fed), transport=lambda t, requests: {})


def test_a_site_that_is_gone_costs_the_certificate_only():
    """Value NaN and gap inf, also in the checkpoint; no trajectory counts as diverged."""
    fed, make = pair()
    method = FedSGD(step_size=0.5)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    ask = in_process(sites)
    roster = Roster.of(make, fed, patience=2, required=())
    gone = lambda t, requests: {k: a for k, a in ask(t, requests).items() if t < 2 or k != 1}  # noqa: E731
    result = run(method, roster, transport=gone, rounds=5, tol=1e-9)
    assert result.status.name == "ROUND_LIMIT"
    assert np.isnan(result.trace.value[3:]).all()
    assert np.isinf(result.trace.gap[3:]).all()
    assert (result.diverged == -1).all()
    assert np.isfinite(result.w).all()


def test_losses_that_cannot_be_certify_nothing():
    """A site that reports negative losses is named; the run does not end as converged."""
    fed, make = pair()
    for method, name in ((FedSGD(step_size=0.5), "value"), (AFL(step_size=0.1, domain_step_size=0.1), "losses")):
        ask = in_process([Site(method, make, fed.subset([k])) for k in range(3)])

        def lying(t, requests, ask=ask, name=name):
            return {k: a | {name: a[name] - 1e9} if k == 1 and name in a else a for k, a in ask(t, requests).items()}

        with pytest.warns(SiteWarning, match="site east, round -1: its losses are below the least value"):
            result = run(method, Roster.of(make, fed), transport=lying, rounds=3, tol=1e-6)
        assert result.status.name == "ROUND_LIMIT"
        assert np.isinf(result.trace.gap).all()


def test_a_required_site_is_waited_for_or_the_run_stops_by_name(tmp_path):
    """In rounds, in measuring and before the first round; what was saved goes on with the bits of one process."""
    fed, make = pair()
    method = SCAFFOLD(step_size=0.3, local_steps=2)
    asked = []

    def ask(t, requests, gone=()):
        kind = int(next(iter(requests.values()))["header"][1])
        asked.append((t, kind, sorted(requests)))
        return {k: a for k, a in plain(t, requests).items() if k not in gone or (t, kind) not in when}

    for when in ({(-1, 0)}, {(2, ASK)}, {(2, MEASURE)}):
        plain = in_process([Site(method, make, fed.subset([k]), checkpoint=tmp_path / f"{k}") for k in range(3)])
        asked.clear()
        roster, file = Roster.of(make, fed, patience=4), tmp_path / "server"
        how = {"rounds": 5, "tol": 0, "seed": 3, "checkpoint": file, "checkpoint_every": 1}
        with pytest.raises(ConnectionError, match=r"must have an answer.* of south, asked 4 times"):
            run(method, roster, transport=lambda t, r: ask(t, r, (2,)), **how)
        (t, kind), last = next(iter(when)), asked[-4:]
        assert last == [(t, kind, [0, 1, 2]), *[(t, kind, [2])] * 3]  # who has answered is left in peace
        assert (t < 0) == (not file.exists())
        result = run(method, roster, transport=ask, **how)
        np.testing.assert_array_equal(result.state.w, run(method, make(fed), rounds=5, tol=0, seed=3).state.w)
        assert np.isfinite(result.trace.gap).all()
        for name in ("0", "1", "2", "server"):
            (tmp_path / name).unlink()


def test_nothing_starts_before_every_required_site_has_joined():
    """A table that does not fit stops the run before any site is asked for work; all who refuse are named at once."""
    fed, make = pair()
    method, kinds_asked = FedSGD(step_size=0.1), set()
    wrong = (("north", (4, 2)), ("east", (6, 3)))  # a row more, a column more than the roster says
    grown = [Federation.from_clients([(np.ones(shape), np.ones(shape[0]))], [name]) for name, shape in wrong]
    plain = in_process([Site(method, make, own) for own in (*grown, fed.subset([2]))])

    def ask(t, requests):
        kinds_asked.update(int(a["header"][1]) for a in requests.values())
        return plain(t, requests)

    said = r"(?s)north: .*rows must be 3.*got 4.*east: .*features is 3 here, 2 at the server.*nothing was started"
    with pytest.warns(SiteWarning, match="cannot go on without it"), pytest.raises(ValueError, match=said):
        run(method, Roster.of(make, fed), transport=ask, rounds=2)
    assert kinds_asked == {0}


def test_divergence_is_no_fault_of_a_client():
    fed, make = pair(loss=Squared())
    with pytest.warns(RuntimeWarning, match="diverged"):
        result, roster = far(FedAvg(step_size=1e3, local_steps=80), fed, make, rounds=10)
    assert result.status.name == "DIVERGED"
    assert roster.incidents == []


def test_a_client_that_is_asked_alone_cannot_spoil_the_model():
    fed, make = pair()
    method = FedAvg(step_size=0.3, participation=1)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    ask = answering(sites, spoil=lambda a: a | {"reply/w": a["reply/w"] * np.inf})
    with (
        pytest.warns(SiteWarning, match="reply/w is not finite: refused"),
        pytest.raises(ConnectionError, match="east"),
    ):
        run(method, Roster.of(make, fed, patience=2, required=()), transport=ask, rounds=30, tol=0)


class Sub(np.ndarray):
    """A foreign class of arrays."""


SPOILED = {
    "nothing": lambda a: None,
    "a list": lambda a: [1, 2],
    "an object": lambda a: a | {"reply/w": object()},
    "objects": lambda a: a | {"reply/w": np.array([object()])},
    "a foreign class": lambda a: a | {"reply/w": a["reply/w"].view(Sub)},
    "text": lambda a: a | {"reply/w": np.array("x")},
    "single precision": lambda a: a | {"reply/w": a["reply/w"].astype(np.float32)},
    "the other byte order": lambda a: a | {"reply/w": a["reply/w"].astype(">f8")},
    "another shape": lambda a: a | {"reply/w": a["reply/w"][..., :1]},
    "a huge array": lambda a: a | {"reply/w": np.broadcast_to(0.0, (1 << 40,))},
    "one too many": lambda a: a | {"reply/v": np.zeros(1)},
    "one too few": lambda a: {"header": a["header"]},
    "a number as name": lambda a: a | {3: np.zeros(1)},
    "NaN": lambda a: a | {"reply/w": a["reply/w"] * np.nan},
    "no header": lambda a: {"reply/w": a["reply/w"]},
    "half a header": lambda a: a | {"header": a["header"][:3]},
    "another protocol": lambda a: a | {"header": a["header"] + np.array([1, 0, 0, 0, 0, 0])},
    "another round": lambda a: a | {"header": a["header"] - np.array([0, 0, 1, 0, 0, 0])},
    "another client": lambda a: a | {"header": a["header"] - np.array([0, 0, 0, 1, 0, 0])},
    "another session": lambda a: a | {"header": a["header"] - np.array([0, 0, 0, 0, 1, 0])},
    "another question": lambda a: a | {"header": a["header"] - np.array([0, 0, 0, 0, 0, 1])},
    "a refusal": lambda a: {"header": np.array([1, 4, 0, 0, 0, 0]), "why": np.arange(256).astype(np.uint8)},
    "a refusal of numbers": lambda a: {"header": np.array([1, 4, 0, 0, 0, 0]), "why": np.zeros((2, 2))},
    "no session": lambda a: {"header": np.array([1, 5, 0, 0, 0, 0])},
}


def test_messages_that_nobody_should_send_are_refused_and_named():
    """And the run goes on without that client, as if it had not been asked."""
    fed, make = pair()
    method = FedAvg(step_size=0.3, local_steps=2)
    counted = {0: np.arange(3), 1: np.array([0, 2]), 2: np.array([0, 2])}
    expected = replayed(method, make(fed), 3, counted)[0].w
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    for name, spoil in SPOILED.items():
        roster = Roster.of(make, fed, patience=2, required=())
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ask = answering(sites, spoil=spoil)
            result = run(method, roster, transport=ask, rounds=3, tol=0, seed=3, record_every=3)
        np.testing.assert_array_equal(result.state.w, expected, err_msg=name)
        if name != "no session":  # it joins again, in vain
            assert [str(m.message)[:10] for m in told if m.category is SiteWarning] == ["site east,"], name
            assert {i.client for i in roster.incidents} == {"east"}, name
        assert all(i.what.isprintable() for i in roster.incidents)


def test_a_site_survives_what_a_server_should_not_send():
    fed, make = pair()
    method = SCAFFOLD(step_size=0.3)
    site, requests = Site(method, make, fed.subset([0])), []

    def ask(t, asked):
        requests.append(asked[0])
        return {k: (site if k == 0 else others[k]).answer(a) for k, a in asked.items()}

    others = {k: Site(method, make, fed.subset([k])) for k in (1, 2)}
    run(method, Roster.of(make, fed), transport=ask, rounds=2)
    for request in requests:
        before = {t: m.rows.copy() for t, m in site.kept.items()}
        for name in request:
            for wrong in (np.zeros(0), np.full((2, 3), -1), np.full((1, 9), np.nan), np.array(7, np.uint8), "x", None):
                answer = site.answer(request | {name: wrong})
                assert answer["header"][1] == REFUSE, (name, wrong)
            assert site.answer({k: a for k, a in request.items() if k != name})["header"][1] == REFUSE
        assert {t: m.rows.tolist() for t, m in site.kept.items()} == {t: a.tolist() for t, a in before.items()}
    signed = lambda a, h: {"header": Request(*h[1:5].tolist(), fingerprint(a)).header(), **a}  # noqa: E731
    join = {k: a for k, a in requests[0].items() if k != "header"}
    for name, wrong in (("key", np.zeros(2, np.uint64)), ("first", np.array(-5)), ("trajectories", np.array(0))):
        other = Site(method, make, fed.subset([0]))
        assert other.answer(signed(join | {name: wrong}, requests[0]["header"]))["header"][1] == REFUSE, name
        assert other.problem is None  # not half joined
    work = next(a for a in requests if a["header"][1] == ASK)  # a server that signs what it should not send
    for name, wrong in (("message/w", np.zeros((1, 9))), ("message/c", np.zeros((2, 2))), ("trajectories", np.ones(1))):
        spoiled = {k: a for k, a in work.items() if k != "header"} | {name: wrong}
        assert site.answer(signed(spoiled, work["header"]))["header"][1] == REFUSE, name


def test_arrays_that_a_kernel_would_read_beyond_their_end_are_refused():
    """Compiled kernels check no length: what stands in memory behind a short array would be answered."""
    fed, make = pair()
    signed = lambda a, h: {"header": Request(*h[1:5].tolist(), fingerprint(a)).header(), **a}  # noqa: E731
    for method, kind, name, wrong in (
        (SCAFFOLD(step_size=0.3), ASK, "message/c", np.zeros((1, 1))),
        (SCAFFOLD(step_size=0.3), ASK, "message/c", np.zeros((1, 2), np.int64)),
        (FedSGD(step_size=0.3), ASK, "message/w", np.zeros((1, 1))),
        (AFL(step_size=0.1, domain_step_size=0.1), ASK, "message/domain_weights", np.zeros((1, 1))),
        (AFL(step_size=0.1, domain_step_size=0.1), MEASURE, "alpha", np.zeros((0, 3))),
    ):
        requests, sites = [], [Site(method, make, fed.subset([k])) for k in range(3)]
        seen, plain = requests.append, in_process(sites)
        run(method, Roster.of(make, fed), transport=lambda t, r, s=seen, p=plain: s(r[0]) or p(t, r), rounds=1)
        given = next(a for a in requests if a["header"][1] == kind)
        answer = sites[0].answer(
            signed({k: a for k, a in given.items() if k != "header"} | {name: wrong}, given["header"])
        )
        assert answer["header"][1] == REFUSE
        assert b"has shape" in answer["why"].tobytes() or b"have shape" in answer["why"].tobytes(), (name, kind)


def test_an_answer_to_another_life_of_the_server_is_none():
    """The server is killed after it asked for round 1, goes on from round 0 without a client, and asks again."""
    fed, make = pair()
    method = FedAvg(step_size=0.3, local_steps=2)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    plain, late = in_process(sites), {}

    def first(t, requests):
        answers = plain(t, requests)
        if t == 1 and next(iter(requests.values()))["header"][1] == ASK:
            late.update(answers)
        return answers

    run(method, Roster.of(make, fed), transport=first, rounds=2, seed=3)

    def second(t, requests):
        asked = next(iter(requests.values()))["header"][1] == ASK
        answers = plain(t, requests)
        return (
            {**answers, 1: late[1]} if asked and t == 1 else {k: a for k, a in answers.items() if t or k or not asked}
        )

    with pytest.warns(SiteWarning, match="site east, round 1: answer refused: it answers another request"):
        result = run(method, Roster.of(make, fed, required=()), transport=second, rounds=2, seed=3, tol=0)
    counted = {0: np.array([1, 2]), 1: np.array([0, 2])}
    np.testing.assert_array_equal(result.state.w, replayed(method, make(fed), 2, counted)[0].w)


def test_an_old_request_that_comes_late_costs_nothing():
    """It is answered in vain, or refused: the memory that the server counts on stays."""
    fed, make = pair()
    method = SCAFFOLD(step_size=0.3)
    sites, held = [Site(method, make, fed.subset([k])) for k in range(3)], {}
    plain = in_process(sites)

    def ask(t, requests):
        if requests[1]["header"][1] != ASK:
            return plain(t, requests)
        late = held.pop(t - 2, None)
        held[t] = {k: {n: a.copy() for n, a in r.items()} for k, r in requests.items()}
        if late and t % 2:  # before what is asked now, or after it
            plain(t, late)
        answers = plain(t, requests)
        if late and not t % 2:
            plain(t, late)
        return answers

    roster = Roster.of(make, fed)
    result = run(method, roster, transport=ask, rounds=9, tol=0)
    assert roster.incidents == []
    np.testing.assert_array_equal(result.state.w, run(method, make(fed), rounds=9, tol=0).state.w)
    assert max(len(site.kept) for site in sites) <= 4


def test_a_chunk_of_trajectories_over_sites():
    """Sites and server are given the numbers of all trajectories."""
    fed, make = pair()
    method = SCAFFOLD(step_size=(0.1, 0.2, 0.3, 0.4), local_steps=2, batch_size=2, participation=2)
    whole = run(method, make(fed), trajectories=4, rounds=3, tol=0).w
    part, roster = far(method, fed, make, trajectories=range(1, 3), rounds=3, tol=0)
    np.testing.assert_array_equal(part.w, whole[1:3])
    assert roster.incidents == []
    with pytest.raises(ValueError, match="one for each client of the roster"):
        run(method, roster, transport=in_process([Site(method, make, fed.subset([0]))]), trajectories=4)


def test_checkpoints_of_sites(tmp_path):
    """A site without its memory says so; one with the file of another, or a damaged one, does not start."""
    fed, make = pair()
    method = SCAFFOLD(step_size=0.3)
    build = lambda k, **how: Site(method, make, fed.subset([k]), **how)  # noqa: E731
    sites = [build(k, checkpoint=tmp_path / f"{k}") for k in range(3)]
    run(method, Roster.of(make, fed), transport=in_process(sites), rounds=3, tol=0, checkpoint=tmp_path / "server")
    again = [build(k, checkpoint=tmp_path / f"{k}") for k in range(3)]
    how = {"rounds": 5, "tol": 0}
    result = run(method, Roster.of(make, fed), transport=in_process(again), checkpoint=tmp_path / "server", **how)
    np.testing.assert_array_equal(result.state.w, run(method, make(fed), **how).state.w)
    again[0] = build(0)
    with pytest.warns(SiteWarning, match="counts on the memory after round 4; held is nothing"):
        run(
            method,
            Roster.of(make, fed, required=()),
            transport=in_process(again),
            checkpoint=tmp_path / "server",
            rounds=7,
            tol=0,
        )
    with pytest.raises(ValueError, match="Site north: checkpoint must be of this site"):
        build(0, checkpoint=tmp_path / "1")
    with pytest.raises(ValueError, match="method is"):
        Site(SCAFFOLD(step_size=0.2), make, fed.subset([0]), checkpoint=tmp_path / "0")
    content = (tmp_path / "0").read_bytes()
    at = content.index(fed.ids.tobytes())  # what is between the arrays of a zip file need not be noticed
    (tmp_path / "0").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(ValueError, match="checkpoint"):
        build(0, checkpoint=tmp_path / "0")


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_files_of_sites_and_servers_are_for_their_owners(tmp_path):
    """Also where a file of before was for everybody."""
    fed, make = pair()
    method, file = SCAFFOLD(step_size=0.3), tmp_path / "site"
    for _ in range(2):
        sites = [Site(method, make, fed.subset([k]), checkpoint=file if k == 0 else None) for k in range(3)]
        run(method, Roster.of(make, fed), transport=in_process(sites), rounds=2, checkpoint=tmp_path / "server")
        for written in (file, tmp_path / "server"):
            assert written.stat().st_mode & 0o777 == 0o600
        (tmp_path / "server").unlink()
        file.chmod(0o644)


@pytest.mark.slow
def test_schedules_of_faults():
    """Of methods that remember; the campaign ``site-faults`` runs as many of all of them as one likes."""
    for i, name in enumerate(("SCAFFOLD", "MOCHA")):
        assert sum(fault_trial(np.random.default_rng([0, i]), name)["faults"].values()) > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SCAFFOLD", "FedAvg", "MOCHA"])
def test_required_sites_keep_the_bits_through_crashes(name):
    """Answers lost, late or twice, sites and server killed and started again: bits as if nothing had happened."""
    assert required_trial(np.random.default_rng(7), name)["faults"]["crash"] > 0


@pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")
def test_the_pages_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)[:1]:
        exec(compile(block, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("CONVERGED")


@pytest.mark.slow
def test_diagnostics_of_nodes_that_dropped_out_are_no_fault():
    """A bound of theta is NaN where nothing is certified, and 1 at a node that dropped out, the template's too."""
    fed, method = pair()[0], MOCHA(clock=Clock(0.3), drop=0.3)
    make = lambda f: MultiTaskProblem(f, Logistic(), MeanRegularised(0.1, 0.2))  # noqa: E731
    for seed in range(6):
        how = {"rounds": 4, "tol": 0, "seed": seed}
        result, roster = far(method, fed, make, **how)
        np.testing.assert_array_equal(result.w, run(method, make(fed), **how).w)
        assert roster.incidents == []
