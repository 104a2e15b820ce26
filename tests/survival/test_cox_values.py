"""Values of R 4.2 (survival 3.5: coxph, cox.zph, concordance) on open data, and statsmodels' PHReg beside.

R: ``coxph(Surv(t, e) ~ ... + strata(client), control = coxph.control(eps = 1e-14))``, ties = "efron" or "breslow",
``Surv(entry, t, e)`` with entry times; ``cluster = client`` for the robust standard errors (CR0);
``cox.zph(fit, "identity", terms = FALSE)``; ``concordance(fit)``; profile ends by ``uniroot`` on ``coxph`` fits with
``offset(end * bmi)``. Each was also computed by a plain NumPy code of its own.
"""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_diabetes
from statsmodels.duration.hazard_regression import PHReg

from fedconvex.families.survival import hazard_checks
from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
from tests.survival.cox_oracle import drawn

QUANTILE = 3.841458820694124  # of chi2 with one degree of freedom, .95


def heart():
    """Stanford heart transplants, 69 rows, clients i mod 3."""
    data = sm.datasets.heart.load_pandas().data
    y, clients = outcomes(data["survival"].to_numpy(float), data["censors"].to_numpy()), np.arange(len(data)) % 3
    return SurvivalProblem(SurvivalFederation.from_arrays(data[["age"]].to_numpy(float), y, clients))


def diabetes(ties="efron", entry=False):
    """442 rows with 62 tied times, clients i mod 3: time = target, events where i mod 4 is not 0."""
    data = load_diabetes(scaled=False)
    X, t, i = data.data[:, :4], data.target, np.arange(442)
    late = np.minimum(5.0 * (i % 20), t - 1.0) if entry else None
    return SurvivalProblem(SurvivalFederation.from_arrays(X, outcomes(t, i % 4 != 0, late), i % 3), ties)


def fit(problem):
    """Coefficients, standard errors, log-likelihoods at zero and at the maximum, the score statistic."""
    best = problem.solve()
    N, _, J = problem.totals(best.w)
    null, U, J0 = problem.totals(np.zeros(problem.size))
    assert best.attained and problem.certificate(best.w).gap < 1e-18
    return best.w, np.sqrt(np.diag(np.linalg.inv(J))), -null, -N, U @ np.linalg.solve(J0, U)


def test_heart():
    problem = heart()
    w, se, null, best, score = fit(problem)
    assert np.allclose([w[0], se[0]], [0.05109651681, 0.02310255205], rtol=1e-9)
    assert np.allclose([null, best, score], [-114.469446992, -111.660848384, 4.922576544], rtol=1e-10)
    assert round(hazard_checks.pair_counts(problem, w).concordance, 4) == 0.6025


def test_diabetes_with_efron_ties():
    problem = diabetes()
    w, se, null, best, score = fit(problem)
    assert np.allclose([w[2], se[2]], [-0.1576899253, 0.01618467661], rtol=1e-9)
    assert np.allclose([null, best, score], [-1344.26943745, -1254.35078807, 166.737384632], rtol=1e-11)
    robust = np.sqrt(np.diag(hazard_checks.clustered_covariance(problem, w)))
    assert np.allclose(robust, [0.000826455652607, 0.127823210171890, 0.006006788564868, 0.003883403584927], rtol=1e-9)
    counts = hazard_checks.pair_counts(problem, w)
    assert counts == (6343 + 5848 + 5837, 0, 2053 + 2365 + 2201)
    assert abs(counts.concordance - 0.7314480464) < 5e-11
    identity = [0.08887943581392, 0.00741818588376, 3.65169927781270, 5.01165503611631]
    log = [0.1762456407866, 0.0018385208557, 4.1983830669479, 2.8722196850964]
    for transform, single, overall in (("identity", identity, 8.27741375173), ("log", log, 6.12978048205)):
        total, events = hazard_checks.event_times_sum(problem, transform)
        for centre in (total / events, 0.0):
            found = hazard_checks.proportional_hazards_test(
                hazard_checks.proportionality_sums(problem, w, transform, centre)
            )
            assert np.allclose(found.statistics, single, rtol=1e-8) and abs(found.overall - overall) < 1e-8


@pytest.mark.slow
def test_diabetes_with_breslow_ties_and_with_entry_times():
    assert abs(fit(diabetes("breslow"))[0][2] - -0.1567874925) < 5e-11
    problem = diabetes(entry=True)
    w, se, *_ = fit(problem)
    assert np.allclose([w[2], se[2]], [-0.1587210657, 0.01608956296], rtol=1e-9)
    counts = hazard_checks.pair_counts(problem, w)
    assert counts == (5156 + 4788 + 5150, 0, 1733 + 1915 + 1958)
    found = hazard_checks.proportional_hazards_test(hazard_checks.proportionality_sums(problem, w, centre=150.0))
    assert np.allclose(found.statistics, [0.00606669850827, 0.22553457771018, 3.98568906592109, 4.42432206269783])
    assert abs(found.overall - 8.20730102578742) < 1e-8


@pytest.mark.parametrize(
    ("ties", "ends"),
    [("efron", (-0.189848089927, -0.126394544154)), ("breslow", (-0.188881627233, -0.125554274308))],
)
def test_profile_ends(ties, ends):
    """With bmi held at an end and the rest minimised, twice the rise of N is the quantile."""
    problem = diabetes(ties)
    best, others = problem.solve(), [0, 1, 3]
    least = best.value * problem.federation.n
    for end in ends:
        w = best.w.copy()
        w[2] = end
        for _ in range(6):
            N, g, J = problem.totals(w)
            w[others] -= np.linalg.solve(J[np.ix_(others, others)], g[others])
        assert abs(2.0 * (N - least) - QUANTILE) < 1e-8


@pytest.mark.parametrize(
    ("ties", "entry", "strata"), [("efron", False, 2), ("breslow", True, 0), ("breslow", False, 2)]
)
def test_random_rows_against_statsmodels(ties, entry, strata, rng):
    """Log-likelihood, score and Hessian at our solution; PHReg's own search stops earlier. PHReg counts rows that enter
    at t as at risk there, so that entries lie half a unit before times here; it refuses negative ones."""
    for _ in range(5):
        X, time, event, late, names, clients = drawn(rng, 120, 2, entry=entry, strata=strata, times=25)
        time, late = time + 10.0, None if late is None else late + 9.5
        problem = SurvivalProblem(SurvivalFederation.from_arrays(X, outcomes(time, event, late, names), clients), ties)
        best = problem.solve()
        groups = np.unique([f"{c}{s}" for c, s in zip(clients, names if strata else clients, strict=True)],
                           return_inverse=True)[1]  # fmt: skip
        other = PHReg(time, X, status=event.astype(int), strata=groups, entry=late, ties=ties)
        N, _, J = problem.totals(best.w)
        assert abs(other.loglike(best.w) + N) < 1e-9 * N
        assert np.abs(other.score(best.w)).max() < 1e-8
        assert np.allclose(-other.hessian(best.w), J, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.compiled
def test_many_drawn_data_sets_against_statsmodels(rng):
    """60 data sets of 15 to 2,000 rows, 1 to 6 columns of scales 1e-4 to 1e4 with offsets, 2 to 40 sites.

    PHReg gets standardised columns, since it loses digits otherwise; its score vanishes at our coefficients, and its
    Hessian gives our standard errors to 1e-8.
    """
    compared = 0
    for _ in range(60):
        n, p, K = int(rng.integers(15, 2001)), int(rng.integers(1, 7)), int(rng.integers(2, 41))
        X, time, event, late, names, clients = drawn(
            rng, n, p, entry=bool(rng.random() < 0.4), strata=2 * int(rng.random() < 0.3),
            times=int(rng.integers(3, n)), clients=min(K, n // 5 + 1),
        )  # fmt: skip
        time, late = time + 10.0, None if late is None else late + 9.5
        scale, shift = 10.0 ** rng.uniform(-4.0, 4.0, p), 3.0 * rng.normal(size=p)
        y, ties = outcomes(time, event, late, names), ("efron", "breslow")[int(rng.integers(2))]
        problem = SurvivalProblem(SurvivalFederation.from_arrays((X + shift) * scale, y, clients), ties)
        best = problem.solve()
        if not best.attained:  # few rows: `test_monotone` has those
            continue
        labels = [f"{c} {s}" for c, s in zip(clients, names if names is not None else clients, strict=True)]
        groups = np.unique(labels, return_inverse=True)[1]
        other = PHReg(time, X, status=event.astype(int), strata=groups, entry=late, ties=ties)
        b = best.w * scale
        J = -other.hessian(b)
        se = np.sqrt(np.diag(np.linalg.inv(J)))
        mine = np.sqrt(np.diag(np.linalg.inv(problem.totals(best.w)[2]))) * scale
        assert np.allclose(mine, se, rtol=1e-8)
        assert np.abs(np.linalg.solve(J, other.score(b)) / se).max() < 1e-9  # PHReg's Newton step, in standard errors
        assert abs(other.loglike(b) + best.value * n) < 1e-9 * n
        compared += 1
    assert compared >= 50
