"""Penalties that keep models away from 0, beside a free intercept and columns far from 0: years, ages, pressures."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize, minimize_scalar

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.losses import Exponential, Gamma, NegativeBinomial, Poisson
from fedconvex.penalties import Box, Simplex
from fedconvex.solvers.penalised.centring import Centring

N = 60
ROWS = {  # mean losses of scores z, by hand
    Squared(): lambda z, y: np.mean((z - y) ** 2) / 2.0,
    Gamma(): lambda z, y: np.mean(y * np.exp(-z) + z - np.log(y) - 1.0),
    Poisson(): lambda z, y: np.mean(np.exp(z) - y * z + np.where(y > 0.0, y * np.log(np.maximum(y, 1.0)) - y, 0.0)),
}


def rows(loss, scale=1.0):
    """Ages, blood pressures and years, and labels that go with them."""
    rng = np.random.default_rng(0)
    age, pressure, year = rng.normal(50.0, 10.0, N), rng.normal(130.0, 15.0, N), rng.integers(2005, 2024, N) * scale
    mean = np.exp(0.02 * (age - 50.0))
    labels = {Squared(): age / 10.0 + rng.normal(size=N), Gamma(): rng.gamma(2.0, mean)}
    y = labels.get(loss, rng.poisson(3.0 * mean).astype(float))
    if loss in (Logistic(), Exponential()):
        y = np.where(age + 10.0 * rng.normal(size=N) > 50.0, 1.0, -1.0)
    return np.column_stack([age, pressure, year]), y


def problem(loss, penalty, scale=1.0, form=np.asarray):
    X, y = rows(loss, scale)
    return Problem(
        Federation.from_arrays(form(X), y, np.arange(N) % 3).with_intercept(), loss, 1e-3, None, penalty, True
    )


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("loss", [Squared(), Gamma(), Poisson()])
def test_minima_on_the_simplex_are_those_of_sequential_quadratic_programmes(loss, form):
    best, (X, y) = problem(loss, Simplex(1.0), form=form).solve(), rows(loss)
    C = X - X.mean(axis=0)  # the intercept takes the means

    def F(v):
        return ROWS[loss](C @ v[:3] + v[3], y) + 5e-4 * v[:3] @ v[:3]

    on = {"type": "eq", "fun": lambda v: v[:3].sum() - 1.0}
    bounds, start = [(0.0, None)] * 3 + [(None, None)], np.append(np.full(3, 1.0 / 3.0), 0.0)
    theirs = minimize(F, start, method="SLSQP", bounds=bounds, constraints=on, options={"ftol": 1e-14, "maxiter": 500})
    assert best.value == pytest.approx(theirs.fun, rel=1e-7)
    assert best.gap <= 1e-7 * best.value and best.attained


@pytest.mark.parametrize("loss", [Gamma(), Poisson()])
def test_a_box_away_from_0_leaves_the_intercept_where_it_is_best(loss):
    best, (X, y) = problem(loss, Box(0.5, 0.5)).solve(), rows(loss)
    z = (X - X.mean(axis=0)).sum(axis=1) / 2.0
    theirs = minimize_scalar(lambda b: ROWS[loss](z + b, y), bracket=(-30.0, 30.0), tol=1e-12)
    assert best.value == pytest.approx(theirs.fun + 3.75e-4, rel=1e-9)
    assert best.gap <= 1e-7 * best.value and best.attained


@pytest.mark.parametrize("loss", [Logistic(), Exponential(), NegativeBinomial(2.0)])
@pytest.mark.parametrize("penalty", [Simplex(1.0), Box(0.5, 1.0)])
def test_other_losses_are_certified_too(loss, penalty):
    best = problem(loss, penalty).solve()
    assert best.gap <= 1e-7 * best.value and best.attained


@pytest.mark.parametrize("l2", [0.0, 1e-6])
@pytest.mark.parametrize("penalty", [Simplex(1.0), Box(1.0, 1.0)])
def test_what_overflows_at_the_start_is_said_and_not_raised(penalty, l2):
    X = np.array([[-1000.0], [-1001.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best = Problem(Federation.from_arrays(X, np.ones(2), np.arange(2)), Gamma(), l2, penalty=penalty).solve()
    assert best.value == math.inf and best.gap == math.inf


def test_steps_from_a_flat_loss_into_a_steep_one_are_not_kept():
    X, y = np.array([[-760.0, 1e4], [-701.0, 1e5]]), np.array([1.0, 2.0])
    fed = Federation.from_arrays(X, y, np.arange(2)).with_intercept()
    start = ROWS[Gamma()](X.mean(axis=1), y)  # the simplex's middle, intercept 0
    best = Problem(fed, Gamma(), penalty=Simplex(1.0), intercept=True).solve()
    assert best.value <= start * (1.0 + 1e-12)


def test_a_step_that_overflows_is_no_error():
    rng = np.random.default_rng(5)
    X = 1e6 + rng.normal(size=(30, 2))
    best = Problem(Federation.from_arrays(X, rng.exponential(size=30), np.arange(30) % 2).with_intercept(), Gamma(),
                   penalty=Simplex(1.0), intercept=True).solve()  # fmt: skip
    assert best.gap <= 1e-3 and best.attained


def test_centring_keeps_scores_and_gradients():
    one = problem(Squared(), Simplex(1.0))
    centring, X = Centring.of(one), one.federation.X
    assert centring.M[0] == pytest.approx(X[:, :3].mean(axis=0))
    v = np.array([0.5, -1.0, 2.0, 3.0])
    w = centring.model(v)
    centred = np.column_stack([X[:, :3] - X[:, :3].mean(axis=0), np.ones(N)])
    assert X @ w == pytest.approx(centred @ v, abs=1e-9)
    assert centring.inside(w) == pytest.approx(v, abs=1e-9)
    slopes = (X @ w - one.federation.y) / N  # every client has as many rows
    ridge = 1e-3 * np.array([0.5, -1.0, 2.0, 0.0])
    assert centring.gradient(one.value_gradient(w)[1]) == pytest.approx(centred.T @ slopes + ridge, rel=1e-8)
    squares = ((X[:, :3] - X[:, :3].mean(axis=0)) ** 2).mean(axis=0)
    assert (X[:, :3] ** 2).mean(axis=0) - centring.explained(one) == pytest.approx(squares, rel=1e-6)
