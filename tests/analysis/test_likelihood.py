"""Likelihoods over clients: their sums, site intercepts against models with indicators, offsets, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from inference_data import data, oracle, published

from fedconvex import FederatedNewton, Federation, Poisson, Problem, run
from fedconvex.analysis import covariances
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.newton_search import inverse_of, minimise
from fedconvex.analysis.response_families import GAMMA, GAUSSIAN, LOGISTIC, POISSON, QUASIPOISSON, negative_binomial

pytestmark = pytest.mark.anywhere
FAMILIES = [GAUSSIAN, LOGISTIC, POISSON, QUASIPOISSON, GAMMA, negative_binomial(2.0)]


def drawn(family, rng, n=120, K=4):
    """Rows with weights and offsets, clients in any order."""
    X, o, who = rng.normal(size=(n, 2)), 0.3 * rng.normal(size=n), rng.integers(0, K, n)
    mean = family.mean(X @ np.array([0.5, -0.3]) + o + 0.4 * who)
    y = {
        "gaussian": lambda: mean + rng.normal(size=n),
        "logistic": lambda: (rng.random(n) < mean).astype(float),
        "gamma": lambda: rng.gamma(2.0, mean / 2.0),
    }.get(family.name, lambda: rng.poisson(mean).astype(float))()
    return data(X, y, who, family, rng.integers(1, 4, n), o)


def problem_of(d, own=False):
    X = np.ascontiguousarray(d.X[:, 1:] if own else d.X)
    fed = Federation.from_arrays(X, d.y, d.clients, sample_weight=d.s, offset=d.o)
    return LikelihoodProblem(fed, d.family, site_intercepts=own)


def fitted(problem):
    return minimise(problem.sums, np.zeros((1, problem.size)), problem.self_concordance, problem.spread)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_clients_sum_to_the_likelihood(family, rng):
    d = drawn(family, rng)
    problem, B = problem_of(d), 0.3 * rng.normal(size=(3, 3))
    for found, wanted in zip(problem.sums(B), oracle(d)(B), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)
    mine = problem.client_derivatives(B, np.array([[2], [0], [3]]))
    total = sum(
        problem.client_derivatives(B[:1], np.array([[k]])).values * problem.federation.masses[k] for k in range(4)
    )
    assert total[0, 0] == pytest.approx(problem.sums(B).values[0], rel=1e-12)
    assert mine.gradients.shape == (3, 1, 3)
    assert mine.hessians.shape == (3, 1, 3, 3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_site_intercepts_are_those_of_indicators(family, rng):
    """Estimates, information and robust covariances of the slopes of a model with an indicator for each client."""
    d = drawn(family, rng)
    problem, wide = problem_of(d, own=True), d.own()
    own = fitted(problem)
    scale = np.ones(wide.X.shape[1])
    whole = minimise(oracle(wide), scale[None] * 0.0, family.self_concordance)
    np.testing.assert_allclose(own.b[0], whole.b[0, :2], rtol=1e-8, atol=1e-9)
    assert own.value[0] == pytest.approx(whole.value[0], rel=1e-12)
    inverse = inverse_of(whole.J[0])[0]
    np.testing.assert_allclose(own.inverse[0], inverse[:2, :2], rtol=1e-7)
    assert own.gap[0] <= 1e-18
    n, p, at = d.n, wide.X.shape[1], [problem.at(k, own.b[0]) for k in range(4)]
    mine = covariances.added(
        [covariances.meat(a.X, a.slopes, a.curvatures, a.s, own.inverse[0], own_intercept=True) for a in at]
    )
    z = wide.X @ whole.b[0] + d.o
    slopes, bends = family.slope(z, d.y), family.curvature(z, d.y)
    parts = [d.clients == k for k in range(4)]
    theirs = covariances.added([covariances.meat(wide.X[k], slopes[k], bends[k], d.s[k], inverse) for k in parts])
    assert mine.leverage == pytest.approx(p, rel=1e-9)
    for kind in ("HC0", "HC1", "HC2", "HC3", "CR0", "CR1"):
        found = covariances.robust(kind, own.inverse[0], mine, n, p)
        wanted = covariances.robust(kind, inverse, theirs, n, p)[:2, :2]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12, err_msg=kind)


def test_published_site_intercepts():
    """R: glm(affairs > 0 ~ ... + factor(occupation)), religious -.374541537225 (.034828608721)."""
    found = fitted(problem_of(published("fair"), own=True))
    assert found.b[0, -1] == pytest.approx(-0.374541537225, abs=1e-11)
    assert np.sqrt(found.inverse[0, -1, -1]) == pytest.approx(0.034828608721, abs=1e-11)
    assert 2.0 * found.value[0] == pytest.approx(6914.83062696, abs=1e-8)


@pytest.mark.parametrize(
    ("family", "value"), [(LOGISTIC, 1.0), (LOGISTIC, 0.0), (POISSON, 0.0)], ids=lambda v: str(v)[:16]
)
def test_a_client_whose_responses_agree_says_nothing(family, value, rng):
    """Its own intercept is infinite: the estimate is that of the others."""
    d = drawn(family, rng)
    y = np.where(d.clients == 1, value, d.y)
    problem, others = problem_of(d._replace(y=y), own=True), d.clients != 1
    rest = problem_of(
        d._replace(X=d.X[others], y=y[others], s=d.s[others], o=d.o[others], clients=d.clients[others]), True
    )
    assert problem.silent.tolist() == [False, True, False, False]
    np.testing.assert_allclose(fitted(problem).b, fitted(rest).b, rtol=1e-10)


def test_newton_runs_on_it_to_a_certified_gap(rng):
    problem = problem_of(drawn(POISSON, rng))
    result = run(FederatedNewton(), problem, rounds=30, tol=1e-12)
    assert (result.status.name, result.rounds < 12) == ("CONVERGED", True)
    np.testing.assert_allclose(result.w, fitted(problem).b[0], atol=1e-6)
    w = result.w + 0.01 * rng.normal(size=(5, 3))
    measured = problem.measure(w)
    assert (measured.gap >= measured.value - fitted(problem).value[0] / problem.n).all()
    assert (measured.gap <= 3.0 * (measured.value - fitted(problem).value[0] / problem.n)).all()


def test_offsets_belong_to_rows(rng):
    d = drawn(POISSON, rng)
    fed = problem_of(d).federation
    order = np.argsort(d.clients, kind="stable")
    np.testing.assert_array_equal(fed.offset, d.o[order])
    np.testing.assert_array_equal(fed.subset([2]).offset, d.o[d.clients == 2])
    assert sorted(np.concatenate([part.offset for part in fed.split(0.25)])) == sorted(d.o)
    assert fed.digest != Federation.from_arrays(d.X, d.y, d.clients, sample_weight=d.s).digest
    with pytest.raises(ValueError, match="have rows without offsets"):
        Problem(fed, Poisson())
    with pytest.raises(ValueError, match="offset"):
        Federation.from_arrays(d.X, d.y, d.clients, offset=np.full(d.y.size, np.nan))
    with pytest.raises(ValueError, match="read-only"):
        fed.offset[0] = 1.0


def test_what_does_not_fit_is_refused(rng):
    import scipy.sparse as sp

    d = drawn(POISSON, rng)
    with pytest.raises(ValueError, match="whole numbers"):
        problem_of(d._replace(y=d.y + 0.5))
    with pytest.raises(ValueError, match="be dense"):
        LikelihoodProblem(Federation(sp.csr_array(d.X), d.y, [0, d.y.size]), POISSON)
    with pytest.raises(ValueError, match=r"have shape \(3,\)"):
        problem_of(d).value(np.zeros(4))
