"""Newton's method over clients: written out, over sites, under masks, and where it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from test_sites import compare, far

from fedconvex import FederatedNewton, Federation, Hinge, Logistic, Poisson, Problem, Softmax, Squared, run
from fedconvex.remote import Roster, Site, in_process
from fedconvex.secure import SecureSums


def rows(rng, n=90, d=4):
    X = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    return X, X @ rng.normal(size=d), np.repeat([0, 1, 2], [20, 40, 30])


def logistic(rng, **how):
    X, z, who = rows(rng)
    y = np.where(rng.random(z.size) < 1.0 / (1.0 + np.exp(-z)), 1.0, -1.0)
    return Federation.from_arrays(X, y, who, **how)


def newton(X, y, l2, steps):
    """Undamped Newton steps for mean log(1 + exp(-y x'w)) + (l2/2)‖w‖^2, from zero."""
    w = np.zeros(X.shape[1])
    for _ in range(steps):
        s = 1.0 / (1.0 + np.exp(y * (X @ w)))
        g, H = -X.T @ (y * s) / y.size + l2 * w, X.T @ (X * (s * (1 - s))[:, None]) / y.size + l2 * np.eye(w.size)
        w = w - np.linalg.solve(H, g)
    return w


def test_full_steps_are_newtons(rng):
    """The first round asks at the start, each later one accepts a full step."""
    fed = logistic(rng)
    for rounds in (1, 2, 3, 4):
        found = run(FederatedNewton(), Problem(fed, Logistic(), 0.01), rounds=rounds, tol=0).w
        np.testing.assert_allclose(found, newton(fed.X, fed.y, 0.01, rounds - 1), rtol=1e-12, atol=1e-14)


def test_a_client_sends_its_triangle(rng):
    """(p + 1)(p + 2)/2 floats up and p down for each of three clients and rounds."""
    result = run(FederatedNewton(), Problem(logistic(rng), Logistic(), 0.01), rounds=2, tol=0)
    assert (result.trace.floats_up[-1], result.trace.floats_down[-1]) == (2 * 3 * (5 * 6 // 2), 2 * 3 * 4)


@pytest.mark.parametrize("sums", [None, SecureSums(bits=40)], ids=["plain", "secure"])
@pytest.mark.slow
def test_sites_have_the_bits_of_one_process(rng, sums):
    """With row weights, uniform weights of clients and several classes too."""
    fed = logistic(rng, sample_weight=rng.integers(1, 4, 90).astype(float))
    classes = Federation(fed.X, rng.integers(0, 3, fed.n).astype(float), fed.ptr)
    method = FederatedNewton() if sums is None else FederatedNewton(sums=sums)
    if sums is None:
        compare(method, fed, lambda f: Problem(f, Logistic(), 0.01, "uniform"), 2)
        compare(method, classes, lambda f: Problem(f, Softmax(3), 0.01), 1)
    make, how = lambda f: Problem(f, Logistic(), 0.01), {"rounds": 7, "tol": 0}
    assert far(method, fed, make, **how)[0].w.tolist() == run(method, make(fed), **how).w.tolist()
    result, _ = far(method, fed, make, rounds=9, tol=1e-9)
    assert result.status.name == "CONVERGED"
    assert result.w == pytest.approx(make(fed).solve().w, abs=1e-5)


@pytest.mark.parametrize("start", [0.0, 50.0, -30.0])
def test_steps_too_long_are_taken_back(rng, start):
    """From far out a full step of Poisson's regression overflows: the search still ends at the optimum."""
    X, z, who = rows(rng)
    problem = Problem(Federation.from_arrays(X, rng.poisson(np.exp(z)).astype(float), who), Poisson())
    result = run(FederatedNewton(), problem, rounds=700, tol=1e-11, start=np.full(4, start))
    assert result.status.name == "CONVERGED"
    assert problem.value(result.w) <= problem.solve().value + 1e-11
    assert start != 0.0 or result.rounds <= 12


def test_trajectories_do_not_see_each_other(rng):
    problem, w = Problem(logistic(rng), Logistic(), 0.01), rng.normal(size=(3, 4))
    together = run(FederatedNewton(), problem, rounds=6, tol=0, start=w, trajectories=3).w
    for one, start in zip(together, w, strict=True):
        assert run(FederatedNewton(), problem, rounds=6, tol=0, start=start).w.tolist() == one.tolist()


def test_least_squares_takes_two_rounds(rng):
    X, z, who = rows(rng)
    problem = Problem(Federation.from_arrays(X, z + rng.normal(size=z.size), who), Squared())
    result = run(FederatedNewton(), problem, tol=1e-13)
    assert (result.status.name, result.rounds) == ("CONVERGED", 2)
    np.testing.assert_allclose(result.w, np.linalg.lstsq(X, problem.federation.y, rcond=None)[0], atol=1e-12)


def test_a_site_that_does_not_answer_ends_the_run(rng):
    """A sum over some clients is another objective: nothing is renormalised."""
    fed, make = logistic(rng), lambda f: Problem(f, Logistic(), 0.01)
    sites = [Site(FederatedNewton(), make, fed.subset([k])) for k in range(3)]
    ask = in_process(sites)
    gone = lambda t, requests: {k: a for k, a in ask(t, requests).items() if t < 2 or k != 1}  # noqa: E731
    with pytest.raises(ConnectionError, match="must have an answer of 1, asked 2 times"):
        run(FederatedNewton(), Roster.of(make, fed, patience=2), transport=gone, rounds=8, tol=0)


def test_what_has_no_curvature_is_refused(rng):
    with pytest.raises(TypeError, match=r"have a loss with a curvature; got Hinge\(\): use a smooth loss"):
        run(FederatedNewton(), Problem(logistic(rng), Hinge(), 0.1))
