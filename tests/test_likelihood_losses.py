"""Losses that are half unit deviances, against definitions in four hundred digits and maximum likelihood."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedconvex import Federation, Problem
from fedconvex.kernels import row_losses
from fedconvex.losses import Gamma, Logistic, NegativeBinomial, Poisson

EPS = np.finfo(float).eps
THETAS = (1e-3, 1.0, 40.0)
LOSSES = [Poisson(), Gamma(), *(NegativeBinomial(t) for t in THETAS)]
near = st.floats(-12.0, 0.5).map(lambda e: 10.0**e)
score = st.floats(-600.0, 600.0).map(lambda z: z if abs(z) > 1e-12 else 0.0) | near | near.map(lambda z: -z)
count = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(-8.0, 8.0).map(lambda e: 10.0**e)
curved = st.sampled_from([0.0]) | st.floats(-6.0, 6.0).map(lambda e: 10.0**e)


def exact(loss, z, y):
    """Return l, l' and l'' from the log-likelihoods, in four hundred digits: l(z) = log p(y; log y) - log p(y; z)."""
    with mp.workdps(400):
        z, y = mp.mpf(z), mp.mpf(y)
        own = y * mp.log(y) if y > 0 else mp.mpf(0)
        if isinstance(loss, Poisson):
            return mp.exp(z) - y * z - (y - own), mp.exp(z) - y, mp.exp(z)
        if isinstance(loss, Gamma):
            return y * mp.exp(-z) + z - mp.log(y) - 1, 1 - y * mp.exp(-z), y * mp.exp(-z)
        theta = mp.mpf(loss.theta)
        value = (y + theta) * mp.log((theta + mp.exp(z)) / (theta + y)) - y * z + own
        slope = theta * (mp.exp(z) - y) / (theta + mp.exp(z))
        return value, slope, theta * mp.exp(z) * (y + theta) / (theta + mp.exp(z)) ** 2


def allowed(loss, y):
    return y if y > 0.0 or not isinstance(loss, Gamma) else 1.0


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(z=score, y=count)
def test_values_slopes_and_curvatures_are_those_of_the_likelihood(loss, z, y):
    """To a few roundings of themselves, of z and of log y: errors of t = z - log y move l by l' and l' by l''."""
    y = allowed(loss, y)
    value, slope, curvature = (float(v) for v in exact(loss, z, y))
    moved = 4 * EPS * (1e-300 + abs(z))
    target = EPS * abs(math.log(y)) if y > 0.0 else 0.0  # 20 roundings of t where y is 1e9 or its inverse
    assert abs(loss.value(z, y) - value) <= 16 * EPS * value + (moved + target) * abs(slope)
    assert abs(loss.slope(z, y) - slope) <= 8 * EPS * abs(slope) + moved * curvature
    assert loss.curvature(z, y) == pytest.approx(curvature, rel=(8 + 4 * abs(z)) * EPS, abs=1e-300)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(z=st.floats(-30.0, 30.0), x=st.floats(-30.0, 30.0), y=count)
def test_fenchel_young(loss, z, x, y):
    """l(x) + l*(a) >= a x, with equality at a = l'(x)."""
    y = allowed(loss, y)
    a = loss.slope(z, y)
    conjugate = loss.conjugate(a, y)
    unit = 1.0 + y + abs(a) + abs(conjugate) + getattr(loss, "theta", 0.0)
    size = 1e-13 * unit * (1.0 + abs(z) + abs(x) + abs(math.log(y)) if y else 1.0 + abs(z) + abs(x))
    assert abs(loss.value(z, y) + conjugate - a * z) <= size
    assert loss.value(x, y) + conjugate - a * x >= -size - 1e-13 * loss.value(x, y)
    low, high = (float(v[0]) for v in loss.slope_range(np.array([y])))
    assert low <= a <= high
    for outside in (low - 1e-6 * (1.0 + abs(low)), high + 1e-6 * (1.0 + abs(high))):
        assert not math.isfinite(outside) or loss.conjugate(outside, y) == math.inf


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(z=st.floats(-20.0, 20.0), from_score=st.floats(-5.0, 5.0), q=curved, y=st.floats(0.01, 100.0))
def test_dual_steps_are_optimal(loss, z, from_score, q, y):
    """At the new a = -(alpha + delta) the derivative vanishes: the score of a, (l*)'(a), is z + q delta.

    In scores nothing cancels: l'(z + q delta) = a up to the roundings of a and of the score.
    """
    alpha = -loss.slope(from_score, y)
    delta = loss.dual_step(alpha, z, q, y)
    at = z + q * delta
    a, size = -(alpha + delta), abs(alpha) + abs(delta) + y
    unit = EPS * (size * (1.0 + q * loss.curvature(at, y)) + (1.0 + abs(z) + abs(at)) * loss.curvature(at, y))
    assert abs(loss.slope(at, y) - a) <= 64 * unit


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(z=st.floats(-12.0, 12.0), y=st.floats(0.0, 1e3))
def test_self_concordance(loss, z, y):
    """|l'''| <= l'': the logarithm of l'' changes by at most the change of the score."""
    y = allowed(loss, y)
    assume(not 0.0 < y < 1e-290)  # whose curvature is subnormal, with few digits
    for h in (1e-3, 0.3, 2.0):
        up = math.log(loss.curvature(z + h, y) / loss.curvature(z, y))
        assert abs(up) <= h * (1.0 + 1e-9) + 1e-12


@pytest.mark.compiled(only="there is nothing compiled to compare with")
@pytest.mark.parametrize("loss", LOSSES[:4], ids=repr)
def test_compiled_equals_python(loss, rng):
    Z, y = rng.uniform(-40.0, 40.0, (60, 2)), rng.gamma(1.0, 5.0, 60)
    values, slopes = np.empty_like(Z), Z.copy()
    row_losses.row_values(loss, Z, y, values)
    row_losses.row_slopes(loss, slopes, y)
    for i, r in np.ndindex(Z.shape):
        assert values[i, r] == pytest.approx(loss.value(Z[i, r], y[i]), rel=8 * EPS)
        assert slopes[i, r] == pytest.approx(loss.slope(Z[i, r], y[i]), rel=8 * EPS)


def counts(rng, loss, n=240, d=3):
    X = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    mean = np.exp(X @ np.array([0.7, 0.4, -0.3]))
    return X, rng.gamma(2.0, mean / 2.0) if isinstance(loss, Gamma) else rng.poisson(mean).astype(float)


@pytest.mark.parametrize("loss", [Poisson(), Gamma(), NegativeBinomial(2.0)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_the_solution_is_that_of_maximum_likelihood(loss, weighted, rng):
    """statsmodels' GLM by Newton's method finds the same coefficients, and half its deviance over n is F."""
    sm = pytest.importorskip("statsmodels.api")
    X, y = counts(rng, loss)
    s = rng.integers(1, 4, y.size).astype(float) if weighted else None
    solution = Problem(Federation.from_arrays(X, y, np.arange(y.size) % 3, sample_weight=s), loss).solve()
    log = sm.families.links.Log()
    family = {
        "Poisson": sm.families.Poisson(),
        "Gamma": sm.families.Gamma(log),
        "NegativeBinomial": sm.families.NegativeBinomial(log, alpha=0.5),
    }[type(loss).__name__]
    fit = sm.GLM(y, X, family=family, freq_weights=s).fit(method="newton", tol=1e-14, maxiter=200)
    np.testing.assert_allclose(solution.w, fit.params, rtol=1e-7, atol=1e-8)
    assert solution.value == pytest.approx(0.5 * fit.deviance / (y.size if s is None else s.sum()), rel=1e-12)
    assert solution.attained
    assert solution.value - solution.lower <= 1e-9


def test_negative_binomial_becomes_poisson():
    """Its variance m + m^2/theta tends to m: the losses differ by O(y^2/theta)."""
    for z, y in ((0.3, 2.0), (-1.0, 0.0), (2.0, 5.0)):
        assert NegativeBinomial(1e9).value(z, y) == pytest.approx(Poisson().value(z, y), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "y", "words"),
    [
        (Poisson(), [1.0, -2.0], "not be negative; got -2"),
        (Gamma(), [1.0, 0.0], "be positive; got 0"),
        (NegativeBinomial(0.0), [1.0, 2.0], "NegativeBinomial.theta must be positive"),
        (NegativeBinomial(), [1.0, -1.0], "for labels of any sign use Squared"),
        (Logistic(), [1.0, 0.0], "pass 2\\*y - 1"),
    ],
    ids=lambda v: repr(v)[:24],
)
def test_labels_that_do_not_fit_are_refused(loss, y, words):
    with pytest.raises(ValueError, match=words):
        Problem(Federation.from_arrays(np.ones((2, 1)), y, [0, 1]), loss)
