"""Intervals of means of skewed errors, against exact tests, classical intervals and simulation with known means."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2, t

from fedconvex.comparison.outcomes import joining
from fedconvex.comparison.skewed_intervals import (
    Differences,
    Losses,
    Products,
    Repeats,
    mean_of,
    mean_product,
    spread_of,
)
from tests.campaigns import joining as joining_campaign

RNG, ROOT = np.random.default_rng(0), Path(__file__).resolve().parents[1]


def test_a_mean_of_squares_has_the_interval_of_a_variance():
    e, level = RNG.normal(size=12), 0.99
    found = mean_product(e, e, level)
    expected = [e @ e / chi2.ppf(p, 12) for p in (0.995, 0.005)]
    np.testing.assert_allclose([found.value, found.low, found.high], [np.mean(e**2), *expected], rtol=1e-12)
    wide = mean_product(e, e, level, spread=2.0)  # half the degrees of freedom
    np.testing.assert_allclose([wide.low, wide.high], [e @ e / (2.0 * chi2.ppf(p, 6)) for p in (0.995, 0.005)])


@pytest.mark.parametrize(("n", "link"), [(10, 0.5), (10, -0.9), (40, 0.2), (300, 0.05)])
def test_it_excludes_zero_where_the_test_of_pitman_and_morgan_does(n, link):
    """Its statistic is that of a correlation, here about known means: t with n - 1 degrees of freedom."""
    a = RNG.normal(size=n)
    b = link * a + 3.0 * math.sqrt(1.0 - link**2) * RNG.normal(size=n)
    r = a @ b / math.sqrt(a @ a * (b @ b))
    p = 2.0 * t.sf(abs(r) * math.sqrt((n - 1.0) / (1.0 - r**2)), n - 1)
    found = mean_product(a, b, 1.0 - p)
    near = found.low if r > 0.0 else found.high
    assert abs(near) < 1e-6 * (found.high - found.low)


@pytest.mark.parametrize(("n", "link", "spread"), [(10, 0.5, 1.0), (12, -0.99, 1.0), (25, 0.0, 1.7), (2, 0.3, 1.0)])
def test_its_ends_are_quantiles_of_the_pivot(n, link, spread):
    a = RNG.normal(size=n)
    b = link * a + math.sqrt(1.0 - link**2) * RNG.normal(size=n)
    A, df = a @ b, (n - 1.0) / spread
    B = math.sqrt(spread * (a @ a * (b @ b) - A * A) / (n - 1.0))
    draws = (A + B * RNG.standard_t(df, size=400_000)) / (spread * RNG.chisquare(n / spread, size=400_000))
    found = mean_product(a, b, 0.9, spread)
    assert np.mean(draws < found.low) == pytest.approx(0.05, abs=0.0015)  # four standard errors
    assert np.mean(draws > found.high) == pytest.approx(0.05, abs=0.0015)


def named(p, n, draws=20):
    """Return in which share of draws joining is named a gain, and the median half width over the gain.

    The own model is least squares of p columns without any effect, four parts of the rows held out in turn; the joint
    one is the truth. Levels are those of four clients.
    """
    found = []
    for s in range(draws):
        rng = np.random.default_rng([p, n, s])
        X, y, part = rng.normal(size=(n, p)), rng.normal(size=n), rng.permutation(n) % 4
        own = np.empty(n)
        for v in range(4):
            A, b = X[part != v], y[part != v]
            own[part == v] = X[part == v] @ np.linalg.solve(A.T @ A, A.T @ b)
        less = Differences(y**2 - (own - y) ** 2, np.zeros(n))
        found.append(Repeats((less,), 4).mean(np.arange(n), 1.0 - 0.05 / 4))
    half = np.median([0.5 * (e.high - e.low) / abs(e.value) for e in found])
    return np.mean([e.high < 0.0 for e in found]), half


def test_what_a_gain_by_less_noise_needs_is_parameters_not_rows():
    """Half the draws near p = 3 (2^(1/2) 2.5)^2 = 37: see docs/compare.md."""
    few, many = named(6, 100), named(80, 200)
    assert few[0] < 0.25 and few[1] > 1.5
    assert many[0] > 0.9 and many[1] < 0.8
    share, half = named(37, 200)
    assert 0.2 < share < 0.85 and 0.75 < half < 1.3


def test_degenerate_products():
    zero, one = np.zeros(5), np.ones(5)
    assert mean_product(zero, one, 0.9) == (0.0, 0.0, 0.0)
    assert math.isnan(mean_product(zero[:0], one[:0], 0.9).value)
    assert mean_product(2.0 * one[:1], one[:1], 0.9).value == 2.0
    assert math.isnan(mean_product(one[:1], one[:1], 0.9).low)
    for size in (1e-200, 1e150):
        with np.errstate(over="ignore"):
            found = mean_product(size * RNG.normal(size=9), RNG.normal(size=9), 0.9)
        assert found.low < found.value < found.high


def test_the_spread_is_half_the_kurtosis_less_one():
    """Var(e^2) = (k - 1) s^4 with kurtosis k, and 2 s^4 for normal numbers, k = 3; (n + 2)/n undoes its bias there."""
    e = np.r_[np.full(10, 3.0), np.full(990, 0.1)] * RNG.choice([-1.0, 1.0], 1000)
    k = np.mean(e**4) / np.mean(e**2) ** 2
    assert spread_of(e, e) == pytest.approx(0.5 * (k - 1.0) * 1002.0 / 999.0)
    some = [spread_of(a, a) for a in RNG.normal(size=(4000, 10))]
    assert np.mean(some) == pytest.approx(1.0, abs=4.0 * np.std(some) / math.sqrt(4000) + 0.1 / 10)
    x = RNG.normal(size=(2, 200_000)) * np.where(RNG.random(200_000) < 0.1, 3.0, 1.0)  # elliptical: a mixture
    factor = np.mean([1.0] * 9 + [81.0]) / np.mean([1.0] * 9 + [9.0]) ** 2
    assert spread_of(x[0], x[1]) == pytest.approx(factor, rel=0.05)
    assert spread_of(x[0], x[0]) == pytest.approx(1.0 + 1.5 * (factor - 1.0), rel=0.05)


def federations(draws, tails, n_trials):
    """Errors of a joint model (b) and of the clients' own, for 8 clients of 10 to 40 rows; true mean differences."""
    sizes = np.linspace(10, 40, 8).astype(int)
    group, off = np.repeat(np.arange(8), sizes), np.linspace(0.3, 2.0, 8)
    for _ in range(n_trials):
        x = draws.standard_t(5, size=group.size) / math.sqrt(5.0 / 3.0) if tails else draws.normal(size=group.size)
        own = draws.normal(size=group.size)
        yield group, own + off[group] * x, own, off**2


@pytest.mark.slow
@pytest.mark.parametrize("tails", [False, True])
def test_differences_of_squared_errors_hold_together(tails):
    """Student's intervals, too low where joining harms, do so in nine federations of ten at best."""
    found = {"student": 0, "products": 0}
    for group, joint, own, true in federations(np.random.default_rng(5), tails, 100):
        errors = Products.of(joint - own, joint + own, group)
        plain = Differences(errors.values, np.zeros(group.size))
        for name, given in (("student", plain), ("products", errors)):
            joins = joining(given, group, 8, 10, 0.95)
            found[name] += all(j.difference.low <= v <= j.difference.high for j, v in zip(joins, true, strict=True))
    assert found["student"] < 0.85 * 100
    assert found["products"] >= 0.93 * 100


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_log_losses_are_held_as_often_as_is_said(share):
    """Twenty rows, right probabilities: Student's intervals of a rare class are too low in a sixth of them."""
    draws, n, N = np.random.default_rng(7), 20, 600
    z = math.log(share / (1.0 - share)) + 0.5 * draws.normal(size=(N, n))
    p = 1.0 / (1.0 + np.exp(-z))
    y = np.where(draws.random((N, n)) < p, 1.0, -1.0)
    true = (p * np.logaddexp(0.0, -z) + (1.0 - p) * np.logaddexp(0.0, z)).mean(axis=1)
    held, plain = 0, 0
    for loss, doubt, mean in zip(np.logaddexp(0.0, -y * z), p * (1.0 - p) * z**2, true, strict=True):
        found, student = Losses(loss, doubt).mean(np.arange(n), 0.95), mean_of(loss, 0.95)
        held += found.low <= mean <= found.high
        plain += student.high < mean
    assert held >= 0.935 * N
    if share == 0.05:
        assert plain > 0.15 * N


def test_losses_of_many_rows_have_students_interval():
    loss = RNG.exponential(size=100_000)
    found, student = Losses(loss, np.ones(loss.size)).mean(np.arange(loss.size), 0.95), mean_of(loss, 0.95)
    np.testing.assert_allclose(found, student, rtol=1e-4)
    assert Losses(np.full(4, 0.2), np.zeros(4)).mean(np.arange(4), 0.95) == (0.2, 0.2, 0.2)
    assert math.isnan(Losses(loss, loss).mean(np.arange(1), 0.95).low)
    for few in (Losses(np.full(10, 1e-4), np.full(10, 0.05)), Losses(np.array([0.1, 2.0]), np.ones(2))):
        found, student = few.mean(np.arange(few.values.size), 0.95), mean_of(few.values, 0.95, few.doubt[0])
        assert 0.0 < found.low < found.value
        assert student.high <= found.high < max(100.0 * found.value, 1.01 * student.high)
    assert math.isnan(Losses(loss, loss).mean(np.arange(0), 0.95).value)


# ---------------------------------------------------------------- simulated federations


@pytest.mark.parametrize(("classes", "features"), [(1, "normal"), (1, "t3"), (2, "normal")])
def test_true_errors_of_simulated_clients_are_those_of_fresh_rows(classes, features):
    """Exact moments and quadrature against 200,000 rows with drawn targets, to five standard errors."""
    rng = np.random.default_rng(3)
    shift, w, c = rng.normal(size=3), rng.normal(size=(1, 3)), rng.normal(size=1)
    given = joining_campaign.World(None, [joining_campaign.Client(shift, w, c)], features, "normal", classes)
    coef, intercept = rng.normal(size=(1, 3)), rng.normal(size=1)
    (true,) = joining_campaign.expected(given, 0, [(coef, intercept)], rng)
    X = shift + joining_campaign.drawn(rng, features, (200_000, 3))
    score, z = (X @ w.T + c)[:, 0], (X @ coef.T + intercept)[:, 0]
    y = np.where(rng.random(z.size) < 1.0 / (1.0 + np.exp(-score)), 1.0, -1.0)
    error = np.logaddexp(0.0, -y * z) if classes == 2 else (score + rng.normal(size=z.size) - z) ** 2
    assert true == pytest.approx(error.mean(), abs=5.0 * error.std() / math.sqrt(z.size))


def test_the_campaigns_figures_keep_their_bar_and_are_those_of_the_page():
    """A thousand federations with real targets and with classes: joint coverage within two standard errors of 95 %."""
    found = json.loads((ROOT / "tests" / "campaigns" / "joining.json").read_text())
    for summary in found:
        n, joint = summary["mean"]["joint"]
        assert n == summary["trials"] == 1000 and summary["failed"] == []
        for what in ("joint", "over base", "paired"):
            assert summary["mean"][what][1] >= 0.95 - 2.0 * math.sqrt(0.95 * 0.05 / n), what
        assert summary["mean"]["student"][1] < joint
    assert joining_campaign.table(found) in (ROOT / "docs" / "compare.md").read_text()


# ---------------------------------------------------------------- rows that are held out in turn


def test_intervals_of_repeats():
    from fedconvex.comparison.skewed_intervals import Repeats

    rng, at = np.random.default_rng(1), np.arange(20)
    v, none = rng.normal(size=(2, 20)), np.zeros(20)
    once = Repeats((Differences(v[0], none),)).mean(at, 0.95)
    assert once == Differences(v[0], none).mean(at, 0.95)
    both = Repeats(tuple(Differences(x, none) for x in v), 4).mean(at, 0.95)
    student = mean_of(v.mean(axis=0), 0.95)
    assert both.value == pytest.approx(v.mean())
    assert both.high - both.value == pytest.approx((student.high - student.value) * 2.0**0.5)
    losses = [Losses(x**2, none) for x in v]
    own = Repeats(tuple(losses), 4).mean(at, 0.95)
    assert own.high == pytest.approx(np.mean([x.mean(at, 0.95).high for x in losses]))
    products = [Products.of(x, x + 0.5, at % 2) for x in v]
    wide, narrow = (Repeats(tuple(products), p).mean(at, 0.95) for p in (4, 1))
    assert wide.low < narrow.low < narrow.high < wide.high
