"""Estimates, standard errors, tests and heterogeneity of published data sets.

Values: R 4.2 (glm, anova, sandwich, metafor), statsmodels and an independent NumPy code; they agree to these digits.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from inference_data import oracle, published, spread, start
from scipy import stats

from fedconvex.analysis import analyse, covariances, hypothesis_tests, response_families, site_differences
from fedconvex.analysis.newton_search import inverse_of, minimise

pytestmark = pytest.mark.anywhere


class Fit:
    """A model fitted by Newton's method on plain sums, in standardised columns."""

    def __init__(self, d):
        self.d, self.scale = d, np.sqrt((d.X**2).mean(axis=0))
        scaled = d._replace(X=d.X / self.scale)
        found = minimise(oracle(scaled), start(d) * self.scale, d.family.self_concordance, spread(scaled))
        self.gap, self.rounds = found.gap[0], found.rounds
        self.b, self.N, self.p = found.b[0] / self.scale, found.value[0], d.X.shape[1]
        self.J = found.J[0] * np.outer(self.scale, self.scale)
        self.inverse = found.inverse[0] / np.outer(self.scale, self.scale)
        self.z = d.X @ self.b + d.o
        self.pearson = response_families.pearson_sum(d.family, self.z, d.y, d.s)
        self.phi = d.family.phi(self.N, self.pearson, d.n, self.p)
        self.slopes, self.curvatures = d.family.slope(self.z, d.y), d.family.curvature(self.z, d.y)
        expected = d.family.expected_curvature(self.z)
        self.expected = (d.X.T * (d.s * expected)) @ d.X
        self.constants = 0.0 if d.family.row_constant is None else float(d.s @ d.family.row_constant(d.y))

    def se(self, j, inverse=None):
        return np.sqrt(self.phi * (self.inverse if inverse is None else inverse)[j, j])

    @functools.cached_property
    def meat(self):
        d = self.d
        parts = []
        for k in range(d.K):
            rows = d.clients == k
            parts.append(covariances.meat(d.X[rows], self.slopes[rows], self.curvatures[rows], d.s[rows], self.inverse))
        return covariances.added(parts)

    def robust(self, kind, j):
        return np.sqrt(covariances.robust(kind, self.inverse, self.meat, self.d.n, self.p)[j, j])


@functools.cache
def fit(name, own=False):
    d = published(name)
    return Fit(d.own() if own else d)


@functools.cache
def site_fits(name):
    d = published(name)
    return [Fit(d.of(k)) for k in range(d.K)]


def near(value, digits=10):
    return pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


def test_spector():
    f = fit("spector")
    assert f.gap < 1e-14 and f.rounds < 12
    assert f.b[3] == near(2.378687655) and f.se(3) == near(1.064564254)
    assert 2.0 * f.N == near(25.7792684443, 12)
    share = f.d.y.mean()
    null = -2.0 * 32 * (share * np.log(share) + (1 - share) * np.log(1 - share))
    assert null == near(41.1834593932, 12)
    values = [0.9644192096, 1.031007503, 1.035939805, 1.116391342]
    for kind, value in zip(("HC0", "HC1", "HC2", "HC3"), values, strict=True):
        assert f.robust(kind, 3) == near(value), kind
    assert f.meat.leverage == pytest.approx(4.0, rel=1e-12)


def test_spector_tests_of_psi():
    """anova(reduced, full, test = "LRT") and test = "Rao"."""
    f, d = fit("spector"), published("spector")
    small = Fit(d._replace(X=d.X[:, :3]))
    ratio = hypothesis_tests.likelihood_ratio(small.N, f.N, 1)
    assert ratio.statistic == near(6.203697622)
    b0 = np.append(small.b, 0.0)
    at = oracle(d)(b0[None])
    assert hypothesis_tests.score(at.gradients[0], at.hessians[0], 1).statistic == near(6.0234976, 8)
    wald = hypothesis_tests.wald(f.b, f.inverse, hypothesis_tests.of_columns([3], 4))
    assert wald.statistic == near((2.378687655 / 1.064564254) ** 2, 9)
    assert wald.p == pytest.approx(2.0 * stats.norm.sf(2.378687655 / 1.064564254), rel=1e-8)


def test_fair():
    f, own = fit("fair"), fit("fair", own=True)
    assert f.b[5] == near(-0.372937731182, 12) and f.se(5) == near(0.034637349277, 11)
    assert f.robust("CR0", 5) == near(0.05160333254) and f.robust("CR1", 5) == near(0.05655083456)
    V = covariances.robust("CR0", f.inverse, f.meat, f.d.n, f.p)
    assert np.linalg.matrix_rank(V / np.sqrt(np.outer(np.diagonal(V), np.diagonal(V))), 1e-10, True) == 5
    assert own.b[4] == near(-0.374541537225, 12) and own.se(4) == near(0.034828608721, 11)
    assert 2.0 * own.N == near(6914.83062696, 12)


def test_fair_heterogeneity():
    sites, own = site_fits("fair"), fit("fair", own=True)
    everything = site_differences.common_effect(np.stack([s.b for s in sites]), np.stack([s.J for s in sites]))
    assert (everything.Q.statistic, everything.Q.df) == (near(70.7196932931, 12), 30)
    slopes = [site_differences.slopes_of(s.b, s.J, range(1, 6)) for s in sites]
    common = site_differences.common_effect(np.stack([b for b, _ in slopes]), np.stack([J for _, J in slopes]))
    assert (common.Q.statistic, common.Q.df) == (near(20.9757270505, 12), 25)
    assert common.b[4] == near(-0.370825176831, 12)
    ratio = site_differences.equal_slopes(own.N, np.array([s.N for s in sites]), 5)
    assert (ratio.statistic, ratio.df) == (near(25.5876352964, 11), 25)


def religious():
    sites = site_fits("fair")
    return np.array([s.b[5] for s in sites]), np.array([s.inverse[5, 5] for s in sites])


def test_fair_meta_analysis_of_religious():
    """metafor: rma(b, v, method = "FE"), "DL", "REML" with test = "knha", and predict()."""
    m = site_differences.summarise(*religious())
    assert m.common == near(-0.374495287935, 12) and m.Q.statistic == near(7.69421472227, 11) and m.Q.df == 5
    assert m.I2 == near(35.0161104, 9)
    dl = m.dersimonian_laird
    assert (dl.estimate, dl.se, dl.tau2) == (near(-0.384727871544, 12), near(0.050027080995, 11), near(0.004768196912))
    hk = m.hartung_knapp
    assert (hk.estimate, hk.tau2, hk.I2) == (near(-0.38586345044, 11), near(0.00605526831, 9), near(40.6278692, 9))
    assert (hk.se, hk.low, hk.high) == (near(0.04445180571), near(-0.50013045476, 11), near(-0.27159644612, 11))
    assert m.prediction == (near(-0.616231636, 9), near(-0.155495265, 9))


def test_the_degrees_of_freedom_of_Q_matter():
    """A planted error: K in the place of K - 1 moves tau^2 and I^2 beyond all tolerances here."""
    b, v = religious()
    w = 1.0 / v
    Q = w @ (b - w @ b / w.sum()) ** 2
    wrong = (Q - 6) / (w.sum() - w @ w / w.sum())
    assert wrong != pytest.approx(site_differences.summarise(b, v).dersimonian_laird.tau2, rel=0.1)
    assert 100 * (Q - 6) / Q != pytest.approx(35.0161104, rel=0.1)


def test_diabetes():
    f, own = fit("diabetes"), fit("diabetes", own=True)
    assert f.b[3] == near(8.48433886785, 12) and f.phi == near(3597.07405013, 12)
    assert f.d.family.aic(f.d.family.log_likelihood(f.N, f.d.n, f.constants), f.p) == near(4880.35437302, 12)
    t = stats.t.isf(0.025, 442 - 5)
    assert f.b[3] - t * f.se(3) == near(7.09843632253, 12) and f.b[3] + t * f.se(3) == near(9.87024141317, 12)
    assert own.b[2] == near(8.49616903478, 12) and own.se(2) == near(0.714962721107, 12)
    sites = site_fits("diabetes")
    N = np.array([s.N for s in sites])
    ratio = site_differences.equal_slopes(own.N, N, 4, 2.0 * N.sum() / 417, 417)
    assert (ratio.statistic, ratio.df, ratio.residual_df) == (near(0.472635531166, 12), 16, 417)
    assert ratio.p == pytest.approx(stats.f.sf(0.472635531166, 16, 417), rel=1e-10)


def test_cancer():
    pooled, own = fit("cancer"), fit("cancer", own=True)
    assert own.b[0] == near(0.289194607327, 12) and own.se(0) == near(0.030335951088, 11)
    assert 2.0 * own.N == near(530.159011536, 12)
    assert hypothesis_tests.likelihood_ratio(pooled.N, own.N, 3).statistic == near(4.87632863218, 11)


def test_randhie():
    f, own = fit("randhie"), fit("randhie", own=True)
    assert f.b[1] == near(-0.0525351153545, 12) and f.se(1) == near(0.002883989198)
    assert f.pearson / (f.d.n - f.p) == near(6.27917532149, 12) and 2.0 * f.N == near(83934.2378605, 12)
    assert f.robust("HC1", 1) == near(0.007206784106) and f.robust("CR1", 1) == near(0.006018171141)
    assert own.b[0] == near(-0.0525576696065, 12) and own.se(0) == near(0.002884052084)
    quasi = fit("randhie-quasi")
    assert quasi.phi == near(6.27917532149, 12) and quasi.d.family.reference == "t"
    assert quasi.d.family.log_likelihood(quasi.N, quasi.d.n, 0.0) is None


def test_randhie_negative_binomial():
    f = fit("randhie-nb")
    assert f.b[1] == near(-0.0576966125, 9) and 2.0 * f.N == near(25174.8564683, 12)
    assert f.se(1, inverse_of(f.expected)[0]) == near(0.005523422, 7)


def test_scotland():
    f = fit("scotland")
    assert f.b[1] == near(-0.0023770406, 8) and f.phi == near(0.003592672257)
    assert f.se(1, np.linalg.inv(f.expected)) == near(0.000963895877, 9) and f.se(1) == near(0.000955584307, 9)
    assert 2.0 * f.N == near(0.0879878184, 9)
    log_likelihood = f.d.family.log_likelihood(f.N, f.d.n, f.constants)
    assert log_likelihood == near(-82.58292483) and f.d.family.aic(log_likelihood, f.p) == near(183.1658497)
    assert f.robust("HC0", 1) == near(0.00058619655, 8)
    bread = np.linalg.inv(f.expected)  # R's sandwich has the expected information
    assert np.sqrt((bread @ f.meat.hc0 @ bread)[1, 1]) == near(0.00059889196, 7)


def test_statsmodels_of_scotland():
    """statsmodels' GLM on columns of unit variance, as `analyse` prints it: gamma, logarithmic link."""
    sm = pytest.importorskip("statsmodels.api")
    d = published("scotland")
    X, scale = d.X[:, 1:], d.X[:, 1:].std(axis=0)
    rows = {"y": d.y, "site": d.clients} | {f"x{j}": x for j, x in enumerate(X.T)}
    found = analyse(rows, "y", "site", family="gamma", guard=False)
    Z = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / scale])
    other = sm.GLM(d.y, Z, sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-14, maxiter=300)
    np.testing.assert_allclose(found.estimates[1:] * scale, other.params[1:], rtol=1e-7)
    np.testing.assert_allclose(found.standard_errors[1:] * scale, other.bse[1:], rtol=1e-8)
    assert found.deviance == near(float(other.deviance)) and found.dispersion == near(float(other.scale), 8)
    assert (float(other.llf), float(other.aic)) == (near(-83.10956973), near(182.2191395))
    assert (found.log_likelihood, found.aic) == (near(-82.58292483), near(183.1658497))  # R's conventions


def test_star98_weights_are_rows():
    f = fit("star98")
    assert f.d.n == 267611 and f.b[1] == near(-0.0168688263825, 12) and f.se(1) == near(0.000366190240, 9)
    assert 2.0 * f.N == near(332501.530161, 12)
    assert f.robust("HC0", 1) == near(0.000361083140, 9) and f.robust("HC3", 1) == near(0.000361095888, 9)
