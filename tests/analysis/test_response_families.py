"""Losses, informations and log-likelihoods of families, against SciPy's distributions, differences and 50 digits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from fedconvex.analysis import response_families as families

pytestmark = pytest.mark.anywhere

ALL = [*families.FAMILIES_WITHOUT_PARAMETERS.values(), families.negative_binomial(0.7)]
NAMES = [f.name for f in ALL]


def responses(family, rng, n=40):
    if family.name == "gaussian":
        return rng.normal(size=n) * 3.0
    if family.name == "logistic":
        return (rng.random(n) < 0.5).astype(float)
    if family.name == "gamma":
        return rng.gamma(2.0, size=n)
    return rng.poisson(1.5, n).astype(float)


@pytest.mark.parametrize("family", ALL, ids=NAMES)
def test_slope_and_curvature_are_derivatives(family, rng):
    y, z, h = responses(family, rng), rng.normal(size=40) * 1.5, 1e-6
    difference = (family.value(z + h, y) - family.value(z - h, y)) / (2 * h)
    assert np.allclose(family.slope(z, y), difference, rtol=1e-7, atol=1e-8)
    second = (family.slope(z + h, y) - family.slope(z - h, y)) / (2 * h)
    assert np.allclose(family.curvature(z, y), second, rtol=1e-7, atol=1e-8)
    third = (family.curvature(z + h, y) - family.curvature(z - h, y)) / (2 * h)
    assert (np.abs(third) <= family.self_concordance * family.curvature(z, y) * (1 + 1e-6) + 1e-9).all()


@pytest.mark.parametrize("family", ALL, ids=NAMES)
def test_losses_are_half_unit_deviances(family, rng):
    """l >= 0, and l = 0 where the mean is y."""
    y = responses(family, rng)
    assert (family.value(rng.normal(size=40), y) >= 0.0).all()
    inner = y[(y > 0.0) & (family.name != "logistic")]
    best = inner if family.link == "identity" else np.log(inner)
    assert np.allclose(family.value(best, inner), 0.0, atol=1e-14)


@pytest.mark.parametrize("family", ALL, ids=NAMES)
def test_expected_curvature_is_the_mean_of_the_observed(family, rng):
    """E l'' = mu'^2/V(mu), and l'' is linear in y, so E l'' is l'' at y = mu."""
    z = rng.normal(size=10)
    mu = family.mean(z)
    at_mean = family.curvature(z, mu)
    assert np.allclose(family.expected_curvature(z), at_mean, rtol=1e-12)
    slope = np.ones_like(mu) if family.link == "identity" else mu * (1 - mu) if family.link == "logit" else mu
    assert np.allclose(family.expected_curvature(z), slope**2 / family.variance(mu), rtol=1e-12)


def total(family, z, y, N=None):
    value = family.value(z, y).sum() if N is None else N
    return family.log_likelihood(value, y.size, family.row_constant(y).sum())


@pytest.mark.parametrize("family", ALL, ids=NAMES)
def test_log_likelihood_is_that_of_the_distribution(family, rng):
    if family.row_constant is None:
        assert family.log_likelihood(3.0, 10.0, 0.0) is None and family.aic(None, 3) is None
        return
    y, z = responses(family, rng), rng.normal(size=40) * 0.5
    mu = family.mean(z)
    phi = 2.0 * family.value(z, y).mean()
    expected = {
        "gaussian": lambda: stats.norm.logpdf(y, mu, np.sqrt(phi)),
        "logistic": lambda: stats.bernoulli.logpmf(y, mu),
        "poisson": lambda: stats.poisson.logpmf(y, mu),
        "gamma": lambda: stats.gamma.logpdf(y, 1 / phi, scale=mu * phi),
        "negative-binomial": lambda: stats.nbinom.logpmf(y, 0.7, 0.7 / (0.7 + mu)),
    }[family.name]().sum()
    assert total(family, z, y) == pytest.approx(expected, rel=1e-12)
    assert family.aic(expected, 2) == pytest.approx(4 + 2 * (family.name in ("gaussian", "gamma")) - 2 * expected)


def exact_value(family, z, y):
    if family.name == "gaussian":
        return (z - y) ** 2 / 2
    if family.name == "logistic":
        return mp.log1p(mp.exp(z)) - y * z
    if family.name == "gamma":
        return y * mp.exp(-z) + z - mp.log(y) - 1
    own = y * mp.log(y) if y > 0 else mp.mpf(0)
    if family.name == "negative-binomial":
        theta = mp.mpf(0.7)
        return (y + theta) * mp.log((theta + mp.exp(z)) / (theta + y)) - y * z + own
    return mp.exp(z) - y * z - y + own


@pytest.mark.parametrize("family", ALL, ids=NAMES)
def test_rounding_of_values_is_bounded(family, rng):
    """N in doubles against 50 digits, on columns of scales 1e-3 to 1e3."""
    with mp.workdps(50):
        for _ in range(5):
            X = rng.normal(size=(30, 3)) * [1.0, 1e3, 1e-3]
            b, o, s = rng.normal(size=3) / [1.0, 1e3, 1e-3], rng.normal(size=30), rng.integers(1, 4, 30).astype(float)
            y = responses(family, rng, 30)
            z = [sum(mp.mpf(float(x)) * mp.mpf(float(c)) for x, c in zip(row, b, strict=True)) for row in X]
            N = sum(
                mp.mpf(w) * exact_value(family, v + mp.mpf(float(t)), mp.mpf(float(r)))
                for w, v, t, r in zip(s, z, o, y, strict=True)
            )
            computed = float(s @ family.value(X @ b + o, y))
            bound = families.value_rounding(family, X, b, o, y, s)
            assert abs(mp.mpf(computed) - N) <= bound
            assert bound <= 1e-12 * (1.0 + float(s @ family.terms(X @ b + o, y)))


@pytest.mark.parametrize(
    ("name", "y", "says"),
    [
        ("gaussian", [1.0, np.nan], "y must hold finite numbers; got nan in 1 rows"),
        ("logistic", [0.0, 2.0], "y must hold 0 and 1; got 2 in 1 rows"),
        ("poisson", [1.0, 0.5], "y must hold whole numbers that are not negative; got 0.5 in 1 rows: quasipoisson"),
        ("poisson", [1.0, -1.0], "got -1 in 1 rows"),
        ("quasipoisson", [1.5, -1.0, -2.0], "y must hold numbers that are not negative; got -1 in 2 rows"),
        ("gamma", [1.0, 0.0], "y must hold positive numbers; got 0 in 1 rows"),
        ("negative-binomial", [0.5], "whole numbers"),
        ("poisson", [np.inf], "got inf in 1 rows"),
    ],
)
def test_responses_that_a_family_does_not_allow(name, y, says):
    family = next(f for f in ALL if f.name == name)
    with pytest.raises(ValueError) as error:
        family.check(np.array(y))
    assert says in str(error.value)


@pytest.mark.parametrize("family", ALL, ids=NAMES)
def test_allowed_responses_pass(family, rng):
    family.check(responses(family, rng))
    if family.name == "quasipoisson":
        family.check(np.array([0.5, 0.0]))


@pytest.mark.parametrize("theta", [0.0, -1.0, np.inf, "1"])
def test_theta_must_be_positive(theta):
    with pytest.raises((TypeError, ValueError), match="theta must be"):
        families.negative_binomial(theta)


def test_losses_stay_finite_far_out():
    z = np.array([-800.0, 700.0])
    for family in ALL:
        values = family.value(z, np.ones(2))
        assert np.isfinite(values[0 if family.name != "gamma" else 1]), family.name
    assert families.LOGISTIC.value(np.array([800.0]), np.zeros(1))[0] == 800.0
    assert families.negative_binomial(2.0).value(np.array([800.0]), np.ones(1))[0] == pytest.approx(
        3 * (800 - np.log(3)) - 800, rel=1e-14
    )


def test_reference_distributions_and_dispersions():
    known = {f.name: (f.reference, f.phi(50.0, 30.0, 20.0, 5)) for f in ALL}
    assert known["gaussian"] == ("t", 100.0 / 15.0) and known["gamma"] == ("t", 2.0)
    assert known["quasipoisson"] == ("t", 2.0) and known["poisson"] == ("normal", 1.0)
    assert known["logistic"] == ("normal", 1.0) and known["negative-binomial"] == ("normal", 1.0)
    assert np.isnan(families.GAUSSIAN.phi(1.0, 1.0, 5.0, 5))
