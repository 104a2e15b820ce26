"""FedAvg, FedSGD and SCAFFOLD whose server learns sums only: in one process, and over sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from campaigns.sites import Site

from fedconvex import FedAvg, Federation, FedSGD, Logistic, Problem, Softmax, run
from fedconvex.methods import SCAFFOLD, PlainSums, ProportionalSampling, SecureSums
from fedconvex.remote import Roster, in_process
from fedconvex.remote.messages import ASK, MEASURE
from fedconvex.secure import decode

METHODS = (
    FedAvg(step_size=0.3, local_steps=2, sums=SecureSums(44)),
    FedSGD(step_size=0.3, batch_size=2, sums=SecureSums(44)),
    SCAFFOLD(step_size=0.3, local_steps=3, sums=SecureSums(44)),
)
names = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def pair(several=False):
    rng = np.random.default_rng(3)
    label = (lambda n: rng.integers(0, 3, n).astype(float)) if several else (lambda n: rng.choice([-1.0, 1.0], n))
    clients = [(rng.normal(size=(n, 2)), label(n)) for n in (3, 6, 4)]
    fed = Federation.from_clients(clients, labels=["north", "east", "south"])
    return fed, lambda f: Problem(f, Softmax(3) if several else Logistic(), 0.5)


@names
def test_sums_are_those_of_the_open_answers(method):
    """Up to fixed point: with sampled clients in two trajectories, and models of several outputs."""
    for more, R, several in (({}, 1, True), ({"participation": 2}, 2, False)):
        fed, make = pair(several)
        hidden, how = replace(method, **more), {"rounds": 6, "tol": 0, "trajectories": R}
        masked, plain = run(hidden, make(fed), **how), run(replace(hidden, sums=PlainSums()), make(fed), **how)
        np.testing.assert_allclose(masked.w, plain.w, rtol=0, atol=1e-11)
        assert not np.array_equal(masked.w, plain.w)  # it is fixed point
        if method is METHODS[2]:
            np.testing.assert_allclose(masked.state.c, plain.state.c, rtol=0, atol=1e-11)


@names
def test_sites_with_sums_have_the_bits_of_one_process_and_show_noise_only(method):
    """Nothing that leaves a site, in rounds or when they are measured, is near what it stands for; the gap is sound."""
    fed, make = pair()
    plain, seen = in_process([Site(method, make, fed.subset([k])) for k in range(3)]), []

    def ask(t, requests):
        seen.append((int(requests[0]["header"][1]), plain(t, requests)))
        return dict(seen[-1][1])

    roster, problem = Roster.of(make, fed), make(fed)
    result, one = run(method, roster, transport=ask, rounds=4, tol=0), run(method, problem, rounds=4, tol=0)
    np.testing.assert_array_equal(result.w, one.w)
    np.testing.assert_allclose(result.trace.value, one.trace.value, rtol=0, atol=1e-11)
    assert (result.trace.gap >= one.trace.value - problem.solve().value).all()
    assert result.trace.gap[-1] <= 2.0 * float(problem.gradient(result.w) @ problem.gradient(result.w)) + 1e-9
    assert roster.incidents == []
    for kind, name in ((ASK, "reply/numbers"), (MEASURE, "masked")):
        for found, answers in seen:
            if found == kind:
                assert {
                    n for a in answers.values() for n in a if n in ("reply/w", "reply/g", "value", "gradient")
                } == set()
                each = np.array([decode(a[name].ravel(), 44) for a in answers.values()])
                assert (np.abs(each) > 1e-3).all()  # of 2^64 equally likely numbers, in units of 2^-44
                assert (np.abs(each).max(axis=1) > 100.0).all()
                total = decode(np.sum([a[name].ravel() for a in answers.values()], axis=0, dtype=np.uint64), 44)
                assert (np.abs(total) < 10.0).all()


def test_what_has_no_sum_is_refused():
    fed, make = pair()
    for method, said in (
        (
            replace(METHODS[0], participation=ProportionalSampling(2)),
            r"FedAvg\.sums must be PlainSums\(\) with a scheme",
        ),
        (replace(METHODS[0], shadow=True), r"FedAvg\.shadow must be False with SecureSums"),
        (replace(METHODS[1], participation=1), "at least one other client in the sum"),
    ):
        with pytest.raises(ValueError, match=said):
            run(method, make(fed), rounds=1)
    for none in (SecureSums, (i for i in range(3)), 3):
        with pytest.raises(TypeError, match=r"FedSGD\.sums must be PlainSums\(\) or SecureSums\(\)"):
            FedSGD(step_size=0.1, sums=none)


@names
def test_theorems_do_not_speak_of_rounded_sums(method):
    fed, make = pair()
    open_, hidden = (m.traits(make(fed)) for m in (replace(method, sums=PlainSums()), method))
    assert (open_.averages or open_.controls is not None) and not hidden.averages
    assert hidden.controls is None
