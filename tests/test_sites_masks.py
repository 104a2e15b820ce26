"""Secure sums over sites: bits, what the server sees, dropouts, keys that change."""

from __future__ import annotations

import math
import warnings
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedconvex import Federation, FedSGD, Logistic, Problem, run
from fedconvex.methods import AgnosticFedAvg, FedMultiBoost, SecureSums
from fedconvex.remote import Limits, Roster, SiteWarning, in_process
from fedconvex.remote import Site as LimitedSite
from fedconvex.remote.messages import ASK, MEASURE, REFUSE, STATISTIC, Request, fingerprint
from fedconvex.secure import decode

Site = partial(LimitedSite, limits=Limits(share=math.inf))  # few rows, many rounds


def pair(**more):
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in (3, 6, 4)]
    fed = Federation.from_clients(clients, labels=["north", "east", "south"])
    method = AgnosticFedAvg(step_size=0.3, domain_step_size=0.1, local_steps=2, sums=SecureSums(40), **more)
    return fed, lambda f: Problem(f, Logistic(), 0.5), method


def watched(fed, make, method, sites=None):
    """Sites, a transport to them, and what went through it: (round, requests, answers)."""
    sites = sites or [Site(method, make, fed.subset([k])) for k in range(fed.K)]
    plain, seen = in_process(sites), []

    def ask(t, requests):
        seen.append((t, requests, plain(t, requests)))
        return dict(seen[-1][2])

    return sites, ask, seen


@pytest.mark.slow
def test_sums_of_sites_have_the_bits_of_one_process():
    """Also of sampled clients in several trajectories; keys are counted once; the gap is above the truth."""
    for more, R in (({}, 1), ({"participation": 2}, 3)):
        fed, make, method = pair(**more)
        roster, (_, ask, seen) = Roster.of(make, fed), watched(fed, make, method)
        result = run(method, roster, transport=ask, rounds=4, tol=0, trajectories=R)
        one = run(method, make(fed), rounds=4, tol=0, trajectories=R)
        np.testing.assert_array_equal(result.w, one.w)
        np.testing.assert_array_equal(result.state.domain_weights, one.state.domain_weights)
        assert roster.incidents == []
        np.testing.assert_allclose(result.trace.value, one.trace.value, atol=1e-9)
        assert (result.trace.gap >= one.trace.value - make(fed).solve_minimax().value).all()
    assert len({answers[0]["public"].tobytes() for _, _, answers in seen if "public" in answers[0]}) == 1
    assert result.trace.floats_up[0] - result.trace.floats_down[0] == 4 * 3 - 4 * 3 * 2


def test_the_server_sees_noise_only():
    """No answer holds a number in the open, in rounds or when they are measured; their sum is that of plain answers."""
    fed, make, method = pair()
    sites, ask, seen = watched(fed, make, method)
    run(method, Roster.of(make, fed), transport=ask, rounds=1, tol=0)
    for kind, name in ((ASK, "reply/numbers"), (MEASURE, "masked")):
        answers = next(a for _, r, a in seen if r[0]["header"][1] == kind)
        for k, answer in answers.items():
            assert {a.dtype.kind for a in answer.values()} <= {"u", "i"}
            assert np.abs(decode(answer[name].ravel(), 40)).max() > 1e3, k  # far above any loss
        total = np.sum([a[name] for a in answers.values()], axis=0, dtype=np.uint64)
        assert np.abs(decode(total.ravel(), 40)).max() < 100.0
    assert sites[0].masks.party.public != sites[1].masks.party.public


def test_counts_of_domains_are_masked_before_the_first_round_too():
    """How many rows of which domain a site has is not for the server to know."""
    fed, make, method = pair()
    mixed = Federation(fed.X, fed.y, fed.ptr, fed.labels, np.arange(fed.n) % 2, np.array(["ill", "well"]))
    _, ask, seen = watched(mixed, make, method)
    result = run(method, Roster.of(make, mixed), transport=ask, rounds=2, tol=0)
    asked = [a for _, r, a in seen if r[0]["header"][1] == STATISTIC]
    assert len(asked) == 1 and all(a.keys() == {"header", "masked", "agreed"} for a in asked[0].values())
    np.testing.assert_array_equal(result.w, run(method, make(mixed), rounds=2, tol=0).w)


@pytest.mark.slow
def test_an_answer_that_is_lost_is_asked_again_and_then_refused_by_name():
    fed, make, method = pair()
    one = run(method, make(fed), rounds=4, tol=0)
    for times in (2, 99):
        _, ask, _ = watched(fed, make, method)
        left = [times]

        def lossy(t, requests, ask=ask, left=left):
            answers = ask(t, requests)
            if t == 2 and 1 in answers and answers[1]["header"][1] == ASK and left[0]:
                left[0] -= 1
                del answers[1]
            return answers

        roster = Roster.of(make, fed, patience=3)
        if times == 2:
            np.testing.assert_array_equal(run(method, roster, transport=lossy, rounds=4, tol=0).w, one.w)
        else:
            with pytest.raises(ConnectionError, match="round 2: must have an answer of east, asked 3 times"):
                run(method, roster, transport=lossy, rounds=4, tol=0)


def test_what_would_open_an_answer_is_refused():
    """Other clients in the same round, another key, a circle of one, or one without this site."""
    fed, make, method = pair()
    sites, ask, seen = watched(fed, make, method)
    run(method, Roster.of(make, fed), transport=ask, rounds=1, tol=0)
    work = next(r[0] for _, r, _ in seen if r[0]["header"][1] == ASK)
    signed = lambda a: {"header": Request(*work["header"][1:5].tolist(), fingerprint(a)).header(), **a}  # noqa: E731
    plain = {k: v for k, v in work.items() if k != "header"}
    again = sites[0].answer(signed(plain))
    assert np.array_equal(again["reply/numbers"], next(a for _, r, a in seen if r[0] is work)[0]["reply/numbers"])
    keys = plain["keys"].copy()
    keys[1] ^= 1
    for more, said in (
        ({"circle": np.array([[0, 1]])}, "masked for other clients"),
        ({"circle": np.array([[0]])}, "at least two"),
        ({"circle": np.array([[1, 2]])}, "not among those"),
        ({"circle": np.array([[0, 0]])}, "different ones"),
        ({"circle": np.array([[0, 7]])}, "different ones"),
        ({"circle": np.array([[0.0, 1.0]])}, "at least two"),
        ({"keys": keys}, "the key of client 1 is another one"),
        ({"keys": keys[:, :5]}, "at least two"),
    ):
        answer = sites[0].answer(signed(plain | more))
        assert answer["header"][1] == REFUSE, said
        assert said in answer["why"].tobytes().decode()


@pytest.mark.slow
def test_a_site_that_forgot_its_key_needs_its_checkpoint(tmp_path):
    fed, make, method = pair()
    one = run(method, make(fed), rounds=5, tol=0)
    for path in (None, tmp_path / "east"):
        build = lambda k, path=path: Site(method, make, fed.subset([k]), checkpoint=path if k == 1 else None)  # noqa: E731
        sites = [build(k) for k in range(3)]

        def ask(t, requests, sites=sites, build=build):
            if t == 2 and 0 in requests and requests[0]["header"][1] == ASK:
                sites[1] = build(1)
            return in_process(sites)(t, requests)

        roster = Roster.of(make, fed, patience=2)
        if path is not None:
            np.testing.assert_array_equal(run(method, roster, transport=ask, rounds=5, tol=0).w, one.w)
        else:
            with (
                pytest.warns(SiteWarning, match="its key is another one"),
                pytest.raises(ConnectionError, match="east"),
            ):
                run(method, roster, transport=ask, rounds=5, tol=0)


@pytest.mark.slow
def test_boosting_under_masks_is_refused_over_sites():
    from campaigns.sites import shared

    fed, make = shared("FedMultiBoost", "classifiers", False)
    with pytest.raises(ValueError, match="what all clients of a round have drawn"):
        run(FedMultiBoost(step_size=0.1, sums=SecureSums(30)), Roster.of(make, fed), transport=lambda t, r: {})


def test_sums_by_domain_that_are_one_sites_are_told():
    """Every site a domain: the loss of each is in the open, and the run says so; not where domains are shared."""
    fed, make, method = pair()
    with pytest.warns(SiteWarning, match="every site is a domain of its own: .* the loss of each site"):
        run(method, Roster.of(make, fed), transport=watched(fed, make, method)[1], rounds=1, tol=0)
    ones = Federation(fed.X, fed.y, fed.ptr, fed.labels, np.zeros(fed.n, dtype=np.int64), np.array(["all"]))
    for given, how in ((ones, method), (fed, FedSGD(step_size=0.1, sums=SecureSums(40)))):
        with warnings.catch_warnings():
            warnings.simplefilter("error", SiteWarning)
            run(how, Roster.of(make, given), transport=watched(given, make, how)[1], rounds=1, tol=0)
