"""What is recorded of many models at once: sums in one kernel, and least squares about the solution."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.losses.stable import half_power, log1p, softplus


def awkward(seed, n=30, spread=1e-7, scale=1e6):
    """Rows with two columns that are equal up to 1e-7, a million times as large as the third."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    X[:, 1] = X[:, 0] + spread * rng.normal(size=n)
    X[:, :2] *= scale
    return Federation.from_arrays(X, X[:, 2] + 1e-6 * rng.normal(size=n), clients=np.arange(n) % 3)


def exact_value(problem, w):
    """F(w) of least squares in rational numbers."""
    total = Fraction(0)
    for k, p in enumerate(problem.weights):
        X, y = problem.federation.client_rows(k)
        squares = sum((sum(Fraction(a) * Fraction(b) for a, b in zip(x, w, strict=True)) - Fraction(t)) ** 2
                      for x, t in zip(X.tolist(), y.tolist(), strict=True))  # fmt: skip
        total += Fraction(float(p)) * squares / (2 * len(X))
    return total + Fraction(problem.l2) / 2 * sum(Fraction(b) ** 2 for b in w)


@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_many_models_have_the_values_of_each(loss):
    rng = np.random.default_rng(0)
    fed = Federation.from_arrays(
        rng.normal(size=(700, 5)), np.sign(rng.normal(size=700)), clients=np.r_[np.zeros(600), 1 + np.arange(100) % 7]
    )
    problem, W = Problem(fed, loss, l2=0.1), rng.normal(size=(9, 5))
    values = problem.client_values(W)
    np.testing.assert_allclose(values, [problem.client_values(w) for w in W], rtol=1e-14)


@pytest.mark.slow
@pytest.mark.compiled
def test_values_do_not_depend_on_the_models_beside():
    rng = np.random.default_rng(0)
    fed = Federation.from_arrays(rng.normal(size=(50, 2)), np.sign(rng.normal(size=50)), clients=np.arange(50) % 3)
    problem, W = Problem(fed, Logistic()), rng.normal(size=(1300, 2))  # more than are taken side by side
    np.testing.assert_array_equal(problem.client_values(W)[505:530], problem.client_values(W[505:530]))


@pytest.mark.parametrize("l2", [0.0, 1e-3])
def test_least_squares_about_the_solution_is_as_good_as_it_says(l2):
    problem, rng = Problem(awkward(1), Squared(), l2=l2), np.random.default_rng(1)
    best = problem.solve()
    far = rng.normal(size=(8, 3)) * 10.0 ** np.arange(-6, 2)[:, None]
    W = np.vstack([best.w + far, best.w + far * [1.0, -1.0, 0.0], np.tile(best.w, (2, 1))])  # along the flat direction
    value, gap = problem.measure(W)
    floor, optimum = problem.rounding(best.w, best.value), exact_value(problem, best.w)
    _, off = problem._around_optimum.at(W)
    worst, gram, H = 0.0, 0.0, problem.value_gradient_hessian(best.w)[2]
    for r, w in enumerate(W):
        F = exact_value(problem, w)
        error = abs(float(Fraction(float(value[r])) - F))
        assert error <= off[r] + floor + 8 * 2.3e-16 * value[r]
        assert gap[r] >= float(F - optimum), "a gap below the distance from a model that is no better than the optimum"
        D = w - best.w
        worst = max(worst, error / (off[r] + floor))
        gram = max(gram, abs(float(Fraction(best.value + 0.5 * float(D @ H @ D)) - F)) / (off[r] + floor))
    assert l2 > 0.0 or gram > 10.0 * worst, "the Hessian itself would have done: nothing was tested"


def test_softplus():
    x = np.concatenate([np.linspace(-40, 40, 801), [-708.0, -300.0, -1e-9, 0.0, 1e-300, 300.0, 1e6]])
    for v in x:
        with mpmath.workdps(40):
            exact = mpmath.log1p(mpmath.exp(mpmath.mpf(float(v))))
            assert abs(mpmath.mpf(softplus(float(v))) / exact - 1) < 1.2e-15, v
    assert np.isnan(softplus(np.nan)) and softplus(np.inf) == np.inf and softplus(-np.inf) < 1e-300


def test_powers_of_one_half():
    y = np.concatenate([np.linspace(-40.0, 40.0, 801), [-1020.0, -300.2, -0.5, -1e-300, 0.0, 0.5, 1.5, 300.7, 1020.0]])
    for v in y:
        with mpmath.workdps(40):
            assert abs(mpmath.mpf(half_power(float(v))) * mpmath.mpf(2) ** abs(mpmath.mpf(float(v))) - 1) < 4e-16, v
    assert np.isnan(half_power(np.nan)) and 0.0 < half_power(np.inf) == half_power(-np.inf) < 1e-300


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_sums_of_logistic_losses_are_off_by_no_more_than_is_allowed(size):
    """Scores that cancel: terms of ``size``, sums of about one; and their rounding is counted."""
    rng = np.random.default_rng(7)
    X, w = rng.normal(size=(40, 6)), size * rng.normal(size=6)
    X[:, 5] = (rng.normal(size=40) - X[:, :5] @ w[:5]) / w[5]
    problem = Problem(Federation.from_arrays(X, np.sign(rng.normal(size=40)), clients=np.arange(40) % 3), Logistic())
    W = w * (1.0 + 1e-3 * rng.normal(size=(9, 6)) / size)
    values = problem.value(W)
    for v, off, model in zip(values, problem.roundings(W, values), W, strict=True):
        with mpmath.workdps(40):
            exact = mpmath.mpf(0)
            for p, x, y in zip(problem.per_row, problem.federation.X, problem.federation.y, strict=True):
                z = mpmath.fsum(mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(x, model, strict=True))
                exact += mpmath.mpf(float(p)) * mpmath.log1p(mpmath.exp(-mpmath.mpf(float(y)) * z))
            assert abs(mpmath.mpf(float(v)) - exact) <= 0.3 * off  # most of it is for what 40 rows do not show


def test_logarithms_of_products():
    q = np.concatenate([[0.0, 1e-300, 2.0**-53, 0.4, 0.5, 1.0, 2.0**512], 10.0 ** np.linspace(-20, 20, 401)])
    for v in q:
        with mpmath.workdps(40):
            exact = mpmath.log1p(mpmath.mpf(float(v)))
            assert v == log1p(v) == 0.0 or abs(mpmath.mpf(log1p(float(v))) / exact - 1) < 1.2e-15, v
    assert np.isnan(log1p(np.nan))


@pytest.mark.parametrize("rows", [1, 6, 513])  # less than four at once, four and two, and more than one product holds
@pytest.mark.parametrize("scale", [1.0, 35.0, 300.0])
def test_sums_of_logistic_losses_keep_the_digits_of_small_ones(rows, scale):
    """Losses down to e^-300, summed as the logarithm of a product: with factors 1 + t they, or digits, were lost."""
    rng = np.random.default_rng(rows)
    z, y = scale * (1.0 + rng.uniform(size=(rows, 1))), np.ones(rows)
    y[: rows // 6 if scale < 300.0 else 0] = -1.0
    problem = Problem(Federation.from_arrays(z, y, clients=np.zeros(rows)), Logistic())
    many = problem.client_values(np.ones((9, 1)))[:, 0]
    with mpmath.workdps(40):
        exact = mpmath.fsum(mpmath.log1p(mpmath.exp(mpmath.mpf(-a))) for a in z[:, 0] * y) / rows
        # x/ln 2 is a product of rounded numbers, off by five eighths of eps: e^x by |x| <= 2 scale times that
        assert max(abs(mpmath.mpf(v) / exact - 1) for v in many) < 2e-15 + 2.0 * scale * 0.625 * 2.3e-16


def test_sums_of_logistic_losses_tell_what_is_no_number():
    problem = Problem(Federation.from_arrays([[1.0], [1.0], [-1.0]], [1.0, -1.0, 1.0], clients=[0, 0, 1]), Logistic())
    values = problem.client_values(np.repeat([[np.nan], [np.inf], [0.0]], 3, axis=0))
    assert np.isnan(values[:3]).all() and (values[3:6] == np.inf).all() and np.allclose(values[6:], np.log(2.0))
