"""Coordinate ascent on the dual of losses with kinks, and the smoothing that goes on where it becomes slow."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Hinge, Problem
from fedconvex.solvers import choice
from fedconvex.solvers.kinked import row_ascent, smoothing
from fedconvex.solvers.kinked.row_ascent import EPS, ascend, image, squares
from fedconvex.solvers.kinked.smoothing import _dual_value


def noisy(n=120, d=4, seed=0, weights=False):
    """Rows of which some are equal, some empty, and some weigh nothing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).round(1) * (rng.random((n, d)) < 0.8)
    y = np.where(X @ np.arange(1.0, d + 1) + 2.0 * rng.normal(size=n) > 0.0, 1.0, -1.0)
    weight = np.where(rng.random(n) < 0.1, 0.0, rng.random(n)) if weights else None
    return X, y, np.arange(n) % 3, weight


@pytest.mark.slow
def test_ascent_finds_what_smoothing_finds():
    """Both certify; the two methods have nothing in common but the gap."""
    for weights, make in ((False, np.asarray), (True, sp.csr_array)):
        X, y, who, weight = noisy(weights=weights)
        fed = Federation.from_arrays(make(X), y, who, sample_weight=weight)
        known = Problem(fed, Hinge(), l2=0.1).solve(tol=1e-9)  # few rows: by smoothing
        found = ascend(Problem(fed, Hinge(), l2=0.1), 1e-6)
        assert found.lower <= known.value and known.lower <= found.value
        assert found.value - found.lower <= 1e-6 * (1.0 + found.value) and found.evaluations < 60
        assert found.value == pytest.approx(Problem(fed, Hinge(), l2=0.1).value(found.w), rel=1e-13)
        np.testing.assert_allclose(found.w, known.w, atol=1e-2)


def test_rows_in_pieces_lead_to_the_same_minimum(monkeypatch):
    X, y, who, _ = noisy()
    problem = Problem(Federation.from_arrays(X, y, who), Hinge(), l2=0.1)
    whole = ascend(problem, 1e-5)
    monkeypatch.setattr(row_ascent, "PIECE", 100)  # 25 rows in one call
    parts = ascend(problem, 1e-5)
    assert max(whole.lower, parts.lower) <= min(whole.value, parts.value)
    assert max(whole.value - whole.lower, parts.value - parts.lower) <= 2e-5
    assert not np.array_equal(whole.w, parts.w)  # another order of steps


def test_solve_ends_by_itself_where_ascent_is_slow(monkeypatch):
    """A small l2 makes coordinate steps slow: smoothing starts from where they gave up."""
    monkeypatch.setattr(smoothing, "ASCENT", smoothing.ASCENT._replace(needs=()))
    X, y, who, _ = noisy(d=6, seed=1)
    problem = Problem(Federation.from_arrays(X, y, who), Hinge(), l2=1e-6)
    begun, best = ascend(problem, 1e-9), problem.solve(tol=1e-9)
    assert begun.value - begun.lower > 1e-9 > best.gap / (1.0 + best.value)
    assert begun.lower <= best.value and best.lower <= begun.value


def test_rows_too_large_for_squares_do_not_end_ascent_in_nonsense():
    X, y, who, _ = noisy()
    found = ascend(Problem(Federation.from_arrays(1e200 * X, y, who), Hinge(), l2=1.0), 1e-6)
    assert np.isfinite(found.value) and 0.0 <= found.lower <= found.value


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_sums_of_many_equal_terms_lose_nothing(make):
    """F(w) = max(0, 1 - x w) + l2 w^2/2: D is as large as the minimum, which plain sums of the rows went beyond."""
    n, x, l2 = 20_000, 0.805, 1.7
    fed = Federation.from_arrays(make(np.full((n, 1), x)), np.ones(n), np.zeros(n))
    least = float(1 - Fraction(x) ** 2 / (2 * Fraction(l2)))
    problem = Problem(fed, Hinge(), l2)
    found, c = ascend(problem, 1e-11), problem.per_row
    assert least - 1e-13 < found.lower <= least == pytest.approx(found.value, rel=1e-14)
    assert least - 1e-13 < _dual_value(problem, found.w, np.ones(n)) <= least
    w, off = image(problem, l2, c / l2 * squares(fed), np.ones(n))
    assert abs(Fraction(float(w[0])) - sum(map(Fraction, c.tolist())) * Fraction(x) / Fraction(l2)) <= off < 4.0 * EPS


@pytest.mark.slow
@pytest.mark.compiled
def test_large_hinge_problems_are_solved_by_coordinate_steps():
    """20,000 rows took 32 Hessians; the value is held against the smoothed path."""
    X, y, who, _ = noisy(20_000, 50, seed=2)
    problem = Problem(Federation.from_arrays(X / 7.0, y, who), Hinge(), l2=1e-3)
    best = problem.solve(tol=1e-7)
    assert best.gap <= 1e-7 * (1.0 + best.value) and best.iterations < 60
    with pytest.MonkeyPatch.context() as patch:
        never = choice.Need("nothing", lambda problem: False)
        patch.setattr(smoothing, "ASCENT", smoothing.ASCENT._replace(needs=(never,)))
        other = problem.solve(tol=1e-7)
    assert other.lower <= best.value and best.lower <= other.value


@pytest.mark.slow
def test_a_gap_that_rounding_leaves_is_told():
    """Hinge with an l2 that double precision hardly sees: the gap is honest, and a warning says that it is large."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = np.sign(X @ rng.normal(size=4) + rng.normal(size=60))
    fed = Federation.from_arrays(X, y, np.arange(60) % 3)
    with pytest.warns(UserWarning, match=r"Problem\.solve: the certified gap is .*, more than tol = 1e-11 asks for"):
        best = Problem(fed, Hinge(), 1e-25).solve()
    assert best.gap > 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Problem(fed, Hinge(), 1e-16).solve().gap < 1e-11
