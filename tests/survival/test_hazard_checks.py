"""Residuals, pairs, baselines and tests of proportional hazards against plain sums over risk sets."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.families.survival import hazard_checks
from fedconvex.families.survival.hazard_checks import Proportionality
from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
from tests.survival.cox_oracle import drawn, log_partial

CASES = [(False, 0), (True, 0), (True, 2)]


def made(rng, entry, strata, ties="efron", n=40, p=2, whole=False):
    X, time, event, late, names, clients = drawn(rng, n, p, entry=entry, strata=strata, times=9)
    X = np.round(X) if whole else X
    return SurvivalProblem(SurvivalFederation.from_arrays(X, outcomes(time, event, late, names), clients), ties)


def groups_of(problem):
    fed = problem.federation
    who = np.repeat(np.arange(fed.K), fed.sizes)
    return np.array([f"{c}{s}" for c, s in zip(who, who if fed.strata is None else fed.strata, strict=True)])


def late_of(fed):
    return np.full(fed.n, -np.inf) if fed.entry is None else fed.entry


@pytest.mark.parametrize(("entry", "strata"), CASES)
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_score_residuals(entry, strata, ties, rng):
    """delta_i (x_i - mean) - sum_t e^z_i (x_i - mean_t)/S_t, written out; with Efron, the average over
    the d risk sets in which tied events weigh 1 - r/d."""
    problem = made(rng, entry, strata, ties)
    fed, w = problem.federation, rng.normal(size=2)
    found, groups, late = hazard_checks.score_residuals(problem, w), groups_of(problem), late_of(problem.federation)
    expected, z = np.zeros((fed.n, 2)), fed.X @ w
    for name in np.unique(groups):
        mine = groups == name
        for t in np.unique(fed.y[mine & fed.event]):
            at_risk, dying = mine & (late < t) & (t <= fed.y), mine & fed.event & (fed.y == t)
            d = dying.sum()
            for r in range(d):
                q = (at_risk - (r / d if ties == "efron" else 0.0) * dying) * np.exp(z)
                mean = q @ fed.X / q.sum()
                expected += dying[:, None] * (fed.X - mean) / d - (q / q.sum())[:, None] * (fed.X - mean)
    assert np.allclose(found, expected, atol=1e-12)
    assert np.allclose(found.sum(axis=0), -problem.gradient(w) * fed.n, atol=1e-11)
    by_client = np.add.reduceat(found, fed.ptr[:-1], axis=0)
    assert np.allclose(by_client, -problem.client_gradients(w) * fed.masses[:, None], atol=1e-11)


@pytest.mark.parametrize(("entry", "strata"), CASES)
def test_pairs_are_those_counted_one_by_one(entry, strata, rng):
    """Scores of few values, so that many are tied."""
    problem = made(rng, entry, strata, n=60, p=1, whole=True)
    fed = problem.federation
    groups, late, counts = groups_of(problem), late_of(fed), [0, 0, 0]
    for i in np.flatnonzero(fed.event):
        later = (fed.y > fed.y[i]) | ((fed.y == fed.y[i]) & ~fed.event)
        for j in np.flatnonzero((groups == groups[i]) & (late < fed.y[i]) & later):
            counts[1 + int(np.sign(fed.X[j, 0] - fed.X[i, 0]))] += 1
    found = hazard_checks.pair_counts(problem, np.array([1.0]))
    assert found == tuple(counts) and min(counts) > 0
    assert found.concordance == (counts[0] + 0.5 * counts[1]) / sum(counts)
    parts = [hazard_checks.pair_counts(problem, np.array([1.0]), [k]) for k in range(fed.K)]
    assert tuple(np.sum(parts, axis=0)) == found


def test_no_pairs_no_concordance():
    y = outcomes([1.0, 1.0], [1, 1])
    problem = SurvivalProblem(SurvivalFederation.from_arrays([[1.0], [2.0]], y, [0, 0]))
    assert np.isnan(hazard_checks.pair_counts(problem, [1.0]).concordance)


@pytest.mark.parametrize(("entry", "strata"), CASES)
def test_proportionality_sums(entry, strata, rng):
    """Each event time's part by the plain sums: that of rows at risk there whose other events are taken away."""
    problem = made(rng, entry, strata, n=30)
    fed, w, centre = problem.federation, rng.normal(size=2), 1.5
    groups, late = groups_of(problem), late_of(problem.federation)
    expected = [np.zeros((2,) * n) for n in (1, 2, 2, 2)]
    for name in np.unique(groups):
        mine = groups == name
        for t in np.unique(fed.y[mine & fed.event]):
            rows = mine & (late < t) & (t <= fed.y)
            now = fed.event[rows] & (fed.y[rows] == t)
            _, g, H = log_partial(fed.X[rows], fed.y[rows], now, w)
            for total, part in zip(expected, (-g, 1.0 * H, H, H), strict=True):
                power = {0: 1, 1: 0, 2: 1, 3: 2}[next(i for i, e in enumerate(expected) if e is total)]
                total += (t - centre) ** power * part
    found = hazard_checks.proportionality_sums(problem, w, "identity", centre)
    for a, b in zip(found, expected, strict=True):
        assert np.allclose(a, b, atol=1e-10)
    parts = [hazard_checks.proportionality_sums(problem, w, "identity", centre, [k]) for k in range(fed.K)]
    assert all(np.allclose(sum(ps), a, atol=1e-11) for ps, a in zip(zip(*parts, strict=True), found, strict=True))


def test_drift_is_found_and_its_absence_too(rng):
    """The effect of x rises with t only in the second data: hazards e^x, and e^(x t)."""
    n = 400
    x, e = rng.normal(size=n), rng.exponential(size=n)
    steady = e * np.exp(-x)
    with np.errstate(invalid="ignore"):
        drifting = np.log1p(e * x) / x  # cumulative hazard (e^(x t) - 1)/x, which stays below e for some x < 0
    for time, low in ((steady, False), (np.where(np.isfinite(drifting), drifting, 20.0), True)):
        y = outcomes(time, np.isfinite(time) & (time < 20.0))
        problem = SurvivalProblem(SurvivalFederation.from_arrays(x[:, None], y, np.arange(n) % 4))
        found = hazard_checks.proportional_hazards_test(
            hazard_checks.proportionality_sums(problem, problem.solve().w, "log")
        )
        assert (found.p_value < 1e-4) == low and np.isclose(found.overall, found.statistics[0])


@pytest.mark.parametrize(("entry", "strata"), CASES)
def test_baseline_hazards(entry, strata, rng):
    problem = made(rng, entry, strata)
    fed, w, x = problem.federation, rng.normal(size=2), rng.normal(size=2)
    groups, late = groups_of(problem), late_of(fed)
    found = hazard_checks.baseline_hazards(problem, w, x)
    assert len(found) == np.unique(groups).size
    for part in found:
        mine = (np.repeat(fed.labels, fed.sizes) == part.client) & (fed.strata is None or fed.strata == part.stratum)
        total = 0.0
        for t, d, m, H in zip(part.times, part.events, part.at_risk, part.cumulative_hazard, strict=True):
            at_risk = mine & (late < t) & (t <= fed.y)
            assert m == at_risk.sum() and d == (mine & fed.event & (fed.y == t)).sum()
            total += d / np.exp((fed.X[at_risk] - x) @ w).sum()
            assert np.isclose(H, total, rtol=1e-12)


def test_refused():
    y = outcomes([0.0, 1.0, 2.0], [1, 1, 0])
    problem = SurvivalProblem(SurvivalFederation.from_arrays([[1.0], [0.0], [2.0]], y, [0] * 3))
    with pytest.raises(ValueError, match="be 'identity' where events are at time 0"):
        hazard_checks.proportionality_sums(problem, [0.0], "log")
    with pytest.raises(ValueError, match="be one of 'identity', 'log'"):
        hazard_checks.proportionality_sums(problem, [0.0], "km")
    with pytest.raises(ValueError, match="have a variance of full rank"):
        hazard_checks.proportional_hazards_test(
            Proportionality(np.zeros(2), np.eye(2), np.zeros((2, 2)), np.diag([1, 0]))
        )
    with pytest.raises(ValueError, match="clients"):
        hazard_checks.pair_counts(problem, [0.0], [1])
