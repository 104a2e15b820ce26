"""Slopes of several outputs against 60 digits: how far off they are, absolutely, and that certificates allow for it."""

import mpmath as mp
import numpy as np
import pytest

from fedconvex import Federation, Problem, Softmax
from fedconvex.kernels import row_losses
from fedconvex.penalties import L1
from fedconvex.solvers.certificates import penalty_gap
from fedconvex.solvers.certificates.slopes import EPS, absolute_rounding
from fedconvex.solvers.penalised.working_sets import Search


def softmax_problem(C):
    return Problem(Federation(np.eye(C), np.arange(C) % C * 1.0, np.array([0, C])), Softmax(C), penalty=L1(0.1))


def scores(C, seed=0, n=60):
    """Scores of all sizes, ties, and rows that are decided so clearly that a slope is next to nothing."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, C)) * 10.0 ** rng.integers(-3, 4, size=(n, 1))
    Z[0], Z[1], Z[2] = 0.0, 700.0, np.linspace(0.0, 30.0, C)
    Z[3:9] = rng.normal(size=(6, C))
    Z[3:9, 0] += np.array([5.0, 10.0, 20.0, 30.0, 36.0, 40.0])
    y = rng.integers(0, C, n).astype(np.float64)
    y[3:9] = 0.0
    return Z, y


def errors(Z, y):
    """How far the computed slopes are from those at the same scores in 60 digits, and these, (n, C)."""
    computed, off, true = Z.copy(), np.empty(Z.shape), np.empty(Z.shape)
    row_losses.row_slopes(Softmax(Z.shape[1]), computed, y)
    with mp.workdps(60):
        for i, z in enumerate(Z):
            e = [mp.exp(mp.mpf(float(v)) - mp.mpf(float(z.max()))) for v in z]
            for c, v in enumerate(e):
                exact = v / sum(e) - (1 if c == int(y[i]) else 0)
                off[i, c], true[i, c] = float(abs(mp.mpf(float(computed[i, c])) - exact)), float(exact)
    return off, true


@pytest.mark.parametrize("C", [2, 3, pytest.param(10, marks=pytest.mark.slow)])
def test_slopes_are_as_near_as_certificates_take_them_to_be(C):
    """Absolutely, not relatively: 1 - p cancels where p is near 1, and a relative allowance alone would be wrong."""
    Z, y = scores(C)
    off, true = errors(Z, y)
    allowed = absolute_rounding(softmax_problem(C))
    assert off.max() <= allowed
    relative = (16.0 + np.sqrt(len(Z))) * EPS
    assert (off[3:9, 0] > relative * np.abs(true[3:9, 0])).any()
    assert 16.0 * C * off.max() > allowed  # nor is it a hundred times too much


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled_slopes_are_as_near():
    for C in (2, 5):
        assert errors(*scores(C, seed=1, n=200))[0].max() <= absolute_rounding(softmax_problem(C))


def test_slopes_of_decided_rows_do_not_lift_the_bound(monkeypatch):
    """u is off by what slopes are off by: without the allowance, e is too small for a row that is all but decided."""
    X, y = np.array([[1.0], [1.0]]), np.array([0.0, 0.0])
    problem = Problem(Federation(X, y, np.array([0, 2])), Softmax(2), penalty=L1(1e-12))
    search = Search(problem, None)
    search.move_to(np.array([30.0, 0.0]))  # 1 - p = 9.4e-14, of which 3 digits are left
    with mp.workdps(60):
        e = mp.exp(-30)
        exact = float(e / (1 + e))
    off = np.abs(search.look().u - np.array([exact, -exact]) * min(1.0, 1e-12 / exact))
    assert off.max() > 1e-17  # they are not equal
    assert (off <= search.dual.e).all()
    monkeypatch.setattr(penalty_gap, "absolute_rounding", lambda problem: 0.0)
    search.move_to(search.w)
    assert not (off <= search.look().e).all()
