"""What a server makes of its answers: means and medians, each against another computation; and the experiment."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from fedconvex import DivergenceWarning, FedAvg, Federation, FedSGD, Logistic, Problem, Squared, run
from fedconvex.datasets import logistic_federation
from fedconvex.methods import (
    ApproxFedAvg,
    CoordinateMedian,
    DynamicFedAvg,
    FedProx,
    FedSAM,
    GeometricMedian,
    ScaledSampling,
    SecureSums,
    TrimmedMean,
    WeightedMean,
    resolved,
)
from fedconvex.methods.parts.geometric_median import geometric_median
from fedconvex.papers import robust_aggregation
from fedconvex.report import outlook

ROBUST = (CoordinateMedian(), TrimmedMean(0.2), GeometricMedian())


def answers(rng, R=2, m=5, shape=(3,)):
    q = rng.dirichlet(np.ones(m), R)
    return q, rng.standard_normal((R, m, *shape)) * 10.0 ** rng.uniform(-2, 2)


# ---------------------------------------------------------------- the aggregates


def test_median_with_equal_weights_is_numpys_and_with_whole_ones_that_of_repeated_answers(rng):
    for m in (1, 2, 5, 6):
        _, x = answers(rng, m=m)
        equal = np.full((2, m), 1.0 / m)
        np.testing.assert_allclose(CoordinateMedian().of(equal, x), np.median(x, axis=1), rtol=1e-14)
        times = rng.integers(1, 5, m)
        found = CoordinateMedian().of(np.tile(times / times.sum(), (2, 1)), x)
        np.testing.assert_allclose(found, np.median(np.repeat(x, times, axis=1), axis=1), rtol=1e-14)


def test_trimmed_mean_is_scipys_where_whole_answers_are_cut_and_else_that_of_repeated_ones(rng):
    _, x = answers(rng, m=10)
    for cut in (0.0, 0.1, 0.3, 0.4):
        found = TrimmedMean(cut).of(np.full((2, 10), 0.1), x)
        np.testing.assert_allclose(found, stats.trim_mean(x, cut, axis=1), rtol=1e-12, atol=1e-14)
    times = np.array([1, 2, 3, 4, 1, 1, 2, 2, 3, 1])  # 20 in all; 3/20 cuts through answers
    found = TrimmedMean(0.15).of(np.tile(times / 20, (2, 1)), x)
    np.testing.assert_allclose(found, stats.trim_mean(np.repeat(x, times, axis=1), 0.15, axis=1), rtol=1e-12)
    q, x = answers(rng)
    np.testing.assert_allclose(TrimmedMean(0.0).of(q, x), WeightedMean().of(q, x), rtol=1e-12, atol=1e-12)
    near = TrimmedMean(0.5 - 1e-9).of(q, x)  # towards 1/2: the median
    np.testing.assert_allclose(near, CoordinateMedian().of(q, x), rtol=1e-9)


def test_geometric_median_against_a_general_minimiser_and_its_certificate(rng):
    for m, d in ((3, 2), (6, 2), (9, 4), (4, 30)):
        x, q = rng.standard_normal((m, d)), rng.dirichlet(np.ones(m))
        found = geometric_median(x, q)

        def f(w, x=x, q=q):
            return q @ np.linalg.norm(w - x, axis=1)

        other = min(optimize.minimize(f, p + 1e-3, method="BFGS").fun for p in (x.mean(0), *x))
        assert found.value <= other + 1e-12
        assert found.gap <= 1e-12 * found.value
        assert other - found.value <= 1e-6


@pytest.mark.parametrize("kind", ["random", "heavy", "collinear", "twins", "near", "spread", "line of two"])
def test_geometric_median_is_certified_on_all_sorts_of_points(kind, rng):
    """ "near": the optimum is at a hair's breadth from a point, whose weight nearly makes up for all others."""
    for _ in range(60):
        m, d = int(rng.integers(2, 12)), int(rng.integers(1, 8))
        x, q = rng.standard_normal((m, d)), rng.dirichlet(np.ones(m))
        if kind == "heavy":
            q = np.where(np.arange(m) == 0, 2.0, q)
        elif kind == "collinear":
            x = rng.standard_normal((m, 1)) * rng.standard_normal(d) + 1e3
        elif kind == "twins":
            x[m // 2 :] = x[: m - m // 2]
        elif kind == "near":
            pull = np.linalg.norm(q[1:] @ ((x[0] - x[1:]) / np.linalg.norm(x[0] - x[1:], axis=1)[:, None]))
            q[0] = pull * (1.0 - 10.0 ** rng.uniform(-12, -1))
        elif kind == "spread":
            x *= 10.0 ** rng.uniform(-6, 6, (m, 1))
        elif kind == "line of two":
            x, q = x[:2], np.full(2, 0.5)
        found = geometric_median(x, q)
        assert found.gap <= 1e-12 * max(found.value, 1e-300), (kind, found)
        f = (q / q.sum()) @ np.linalg.norm(found.w + 1e-3 * rng.standard_normal((20, 1, x.shape[1])) - x, axis=2).T
        assert (f >= found.value * (1.0 - 1e-12)).all()


def test_the_certificate_sees_a_point_that_is_not_the_median(rng):
    from fedconvex.methods.parts.geometric_median import _directions, _gap

    x, q = rng.standard_normal((6, 3)), np.full(6, 1 / 6)
    best = geometric_median(x, q)
    w = best.w + 1e-3
    u, r = _directions(w, x)
    value = float(q @ r)
    assert value - best.value <= _gap(u, q, x, 0, value) <= 0.1


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.45])
def test_liars_move_robust_aggregates_no_further_than_is_said(alpha, rng):
    """Honest answers within r of z; everything else far away, infinite for those by coordinates."""
    honest = rng.standard_normal((9, 4))
    x = np.concatenate([honest, 1e7 * (1.0 + rng.random((3, 4)))])
    q = np.concatenate([np.full(9, (1 - alpha) / 9), np.full(3, alpha / 3)])[None]
    r = np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(GeometricMedian().of(q, x[None])) <= 2 * (1 - alpha) / (1 - 2 * alpha) * r
    for liars in (1e7, np.inf, -np.inf):
        x[9:] = liars
        for by in (CoordinateMedian(), TrimmedMean(0.46)):
            found = by.of(q, x[None])[0]
            assert (honest.min(axis=0) <= found).all() and (found <= honest.max(axis=0)).all()
    assert not np.isfinite(TrimmedMean(alpha / 2).of(q, x[None])).any()  # more lie than are cut away


# ---------------------------------------------------------------- in methods


@pytest.mark.parametrize("by", ROBUST, ids=repr)
def test_a_method_does_with_it_what_its_loop_says(by, rng):
    """Federated averaging written out, with three lines a round."""
    problem = Problem(logistic_federation(5, 3, 12, seed=2).federation, Logistic(), l2=0.1)
    fed, p = problem.federation, problem.weights
    w, v = np.zeros(3), np.zeros(3)
    for _ in range(6):
        each, slopes = [], []
        for k in range(5):
            X, y = fed.client_rows(k)
            own = w.copy()
            for _ in range(3):
                own = own - 0.4 * (0.1 * own - (y / (1 + np.exp(y * (X @ own)))) @ X / len(y))
            each.append(own)
            slopes.append(0.1 * v - (y / (1 + np.exp(y * (X @ v)))) @ X / len(y))
        w, v = by.of(p[None], np.array([each]))[0], v - 0.4 * by.of(p[None], np.array([slopes]))[0]
    found = run(FedAvg(step_size=0.4, local_steps=3, aggregation=by), problem, rounds=6).w
    np.testing.assert_allclose(found, w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        run(FedSGD(step_size=0.4, aggregation=by), problem, rounds=6).w, v, rtol=1e-10, atol=1e-12
    )


def test_all_averaging_methods_take_it_and_the_mean_is_what_they_do_anyway():
    problem = Problem(logistic_federation(4, 3, 9, seed=2).federation, Logistic(), l2=0.1)
    for cls, more in (
        (FedAvg, {}),
        (FedProx, {"proximal_mu": 0.3}),
        (FedSAM, {"rho": 0.1}),
        (DynamicFedAvg, {}),
        (ApproxFedAvg, {"mu": 1.0}),
    ):
        more = {"step_size": 0.3, "local_steps": 2} | more
        usual = run(cls(**more), problem, rounds=5).w
        for by in ROBUST:
            assert np.abs(run(cls(**more, aggregation=by), problem, rounds=5).w - usual).max() > 1e-6
        same = run(cls(**more, aggregation=TrimmedMean(0.0)), problem, rounds=5).w
        np.testing.assert_allclose(same, usual, rtol=1e-10)


def test_limits_of_means_are_the_aggregates_of_the_clients_optima():
    """F_k(w) = ‖w - a_k‖^2/2: every client goes the same way towards a_k, so that aggregates commute with rounds."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((7, 2))
    clients = [(np.sqrt(2.0) * np.eye(2), np.sqrt(2.0) * x) for x in a]
    problem = Problem(Federation.from_clients(clients), Squared())
    for by in (WeightedMean(), *ROBUST):
        found = run(FedAvg(step_size=0.3, local_steps=2, aggregation=by), problem, rounds=120, tol=0.0).w
        np.testing.assert_allclose(found, by.of(np.full((1, 7), 1 / 7), a[None])[0], atol=1e-9)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FedAvg(step_size=0.1, aggregation="median"), "be an aggregate such as CoordinateMedian"),
        (lambda: FedAvg(step_size=0.1, aggregation=CoordinateMedian), "be an aggregate such as CoordinateMedian"),
        (lambda: FedAvg(step_size=0.1, aggregation="TrimmedMean()"), "got 'TrimmedMean\\(\\)'"),
        (lambda: FedAvg(step_size=0.1, aggregation="TrimmedMean(0.7)"), "TrimmedMean.share must be below 0.5"),
        (lambda: FedSGD(step_size=0.1, aggregation=TrimmedMean(0.5)), "TrimmedMean.share must be below 0.5"),
        (lambda: FedSGD(step_size=0.1, aggregation=TrimmedMean(-0.1)), "TrimmedMean.share must be nonnegative"),
        (lambda: FedSGD(step_size=0.1, aggregation=GeometricMedian(0.0)), "GeometricMedian.tol must be positive"),
    ],
)
def test_bad_aggregates_are_refused(make, says):
    with pytest.raises((ValueError, TypeError), match=says):
        make()


def test_what_needs_averages_is_refused():
    problem = Problem(logistic_federation(4, 2, 9, seed=2).federation, Logistic(), l2=0.1)
    by = CoordinateMedian()
    for method, says in (
        (FedAvg(step_size=0.1, aggregation=by, sums=SecureSums()), "with SecureSums"),
        (FedAvg(step_size=0.1, aggregation=by, participation=ScaledSampling(2)), "with ScaledSampling"),
        (FedSAM(step_size=0.1, aggregation=by, shadow=True), "with shadow=True"),
        (
            FedAvg(step_size="auto", aggregation=by),
            "by a theorem; got more than plain steps and a weighted mean",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            run(method, problem, rounds=1)
    assert resolved(FedAvg(step_size="auto"), problem)[1] is not None


# ---------------------------------------------------------------- the experiment


def _planted(good):
    """Rows as the experiment makes them; where not good, every claim is contradicted."""
    bad = not good
    means = [
        {
            "aggregate": name,
            "share": share,
            "lie": 1e4,
            "off": float(bad),
            "moved": 1.15 * share * 1e4 * (1 + bad) if name == "mean" or (share > 0.5) == good else 0.1,
            "inside": good,
            "radius": 1.0,
        }
        for name in robust_aggregation.AGGREGATES
        for share in (0.2, 0.6)
    ]
    limits = [
        {
            "aggregate": name,
            "dial": 1.0,
            "lie": lie,
            "restless": float(bad),
            "distance": float(((name == "mean") == (lie > 0.0)) == good),
        }
        for name in robust_aggregation.AGGREGATES
        for lie in (0.0, 30.0)
    ]
    ratios = zip(robust_aggregation.AGGREGATES, (1.0, 1.5385, 1.2, 1.1) if good else (1.0, 1.6, 1.2, 1.7), strict=True)
    alike = [{"aggregate": name, "K": 21, "ratio": ratio, "half": 0.02} for name, ratio in ratios]
    return [c.holds for c in robust_aggregation.claims(means, means, limits, alike)]


def test_claims_can_fail():
    assert _planted(True) == [True] * 12
    assert _planted(False) == [False] * 12


@pytest.mark.slow
@pytest.mark.compiled
def test_the_experiment():
    findings = robust_aggregation.EXPERIMENT.run(quick=True, seed=3)
    assert all(c.holds is not False for c in findings.claims)
    assert sum(c.holds is True for c in findings.claims) == 7


def test_runs_with_a_robust_aggregate_are_not_told_that_their_steps_are_too_long():
    """Two clients of three pull elsewhere: the median ends above a start near the minimiser."""
    fed = Federation.from_clients([([[1.0]], [-1.0]), ([[1.0]], [-1.0]), ([[1.0]], [1.7])])
    problem = Problem(fed, Squared())
    method = FedSGD(step_size=0.3, aggregation=CoordinateMedian())
    with pytest.warns(DivergenceWarning, match="a robust aggregate leads elsewhere"):
        result = run(method, problem, rounds=30)
    assert "too large" in outlook(result, 1e-6)
    assert "step" not in outlook(result, 1e-6, robust=True)
    assert "beside the minimiser" in outlook(result, 1e-6, robust=True)
    with pytest.warns(DivergenceWarning, match=": take a smaller step size"):
        run(FedSGD(step_size=2.1), problem, rounds=3)
