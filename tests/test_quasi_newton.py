"""The quasi-Newton search that leads to where certified methods begin."""

import tracemalloc

import numpy as np
import pytest
import scipy.linalg as sla

from fedconvex import Federation, Logistic, Problem, Softmax, Squared
from fedconvex.solvers import choice
from fedconvex.solvers.choice import minimise
from fedconvex.solvers.smooth import quasi_newton


def problem_of(classes, weights=False, intercept=False, n=300, d=6, l2=1e-2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.logspace(0.0, -1.5, d)
    X[:, -1] = 1.0
    Z = X @ rng.normal(size=(d, max(classes, 2))) + rng.gumbel(size=(n, max(classes, 2)))
    y = Z.argmax(axis=1).astype(float)
    y = y if classes else 2.0 * y - 1.0
    fed = Federation.from_arrays(X, y, np.arange(n) % 5, sample_weight=rng.random(n) + 0.1 if weights else None)
    return Problem(fed, Softmax(classes) if classes else Logistic(), l2=l2, intercept=intercept)


def reaches_the_minimum(problem):
    known = minimise(problem, np.zeros(problem.size), None, 0.0)
    for start in (None, np.random.default_rng(1).normal(size=problem.size)):
        w, evaluations = quasi_newton.approach(problem, start, 1e-10)
        assert problem.value(problem.unflatten(w)) - known.value <= 1e-10 * (1.0 + known.value)
        assert evaluations <= 40


def test_search_leads_to_the_minimum_that_newton_finds():
    """Far fewer evaluations than without a Hessian."""
    reaches_the_minimum(problem_of(3, weights=True, n=80))


@pytest.mark.slow
def test_search_leads_to_the_minimum_of_weighted_rows_and_free_coordinates():
    for classes, weights, intercept in ((0, False, False), (0, True, True), (3, True, False), (3, False, True)):
        reaches_the_minimum(problem_of(classes, weights, intercept))


def test_evaluations_by_blocks_are_values_and_gradients():
    problem = problem_of(4, weights=True, n=300, d=5)
    w = np.random.default_rng(2).normal(size=problem.size)
    F, g = quasi_newton._evaluation(problem)(w)
    known = problem.value_gradient(w)
    assert F == pytest.approx(known[0], rel=1e-13)
    np.testing.assert_allclose(g, known[1], rtol=1e-11, atol=1e-14)


def test_solve_by_the_search_certifies_what_it_returns(monkeypatch):
    """Every gap that is certified holds against a solution by Hessians alone."""
    plain = {c: minimise(problem_of(c, n=80), np.zeros(6 * max(c, 1)), None, 0.0) for c in (0, 3)}
    monkeypatch.setattr(choice, "STARTS", (choice.STARTS[0]._replace(needs=()),))
    for c, known in plain.items():
        for tol in (1e-4, 1e-8, None):
            best = problem_of(c, n=80).solve(tol=tol)
            assert best.gap <= (1e-11 if tol is None else tol) * (1.0 + best.value)
            assert best.lower <= known.value and known.lower <= best.value and best.unique
        again = problem_of(c, n=80).solve(tol=1e-6, start=np.ones(known.w.shape))
        assert again.gap <= 1e-6 * (1.0 + again.value) and again.lower <= known.value


def test_search_is_for_large_dense_strongly_convex_problems():
    search = choice.STARTS[0]
    search = search._replace(needs=tuple(need for need in search.needs if need is not choice.LARGE))
    assert not search.fits(problem_of(3))  # six features
    assert search.fits(problem_of(3, d=32))
    assert not search.fits(problem_of(3, d=32, l2=0.0))
    rows = np.random.default_rng(0).normal(size=(200, 32))
    assert not search.fits(Problem(Federation.from_arrays(rows, rows[:, 0], np.arange(200) % 2), Squared(), 0.1))


def test_a_part_of_the_curvature_stands_for_all_of_it():
    h = np.random.default_rng(3).random(1000) ** 4
    for most in (10, 50, 2000):
        part = quasi_newton._largest(h, most)
        assert part.sum() == pytest.approx(h.sum(), rel=1e-12)
        assert np.count_nonzero(part) <= 2 * most and (part[part > 0.0] >= h[part > 0.0]).all()


@pytest.mark.slow
def test_wide_multinomial_problems_agree_with_truncated_newton():
    problem = problem_of(5, n=4_000, d=60, l2=1e-3)
    assert choice.STARTS[0].fits(problem)
    best, known = problem.solve(tol=1e-9), minimise(problem, np.zeros(problem.size), 1e-9, 0.0)
    assert best.lower <= known.value and known.lower <= best.value
    assert best.gap <= 1e-9 * (1.0 + best.value) and best.iterations < 60


@pytest.mark.parametrize(("l2", "precision"), [(1e-3, np.float32), (1e-5, np.float64)])
def test_blocks_are_of_single_precision_where_l2_is_above_its_rounding(l2, precision):
    """They took twice the memory; with l2 below what is rounded, they would have wrong or no factors."""
    problem, rng = problem_of(4, n=400, d=40, l2=l2), np.random.default_rng(4)
    w, g = 0.1 * rng.normal(size=160), 1e-60 * rng.normal(size=160)  # a range that is not that of single precision
    tracemalloc.start()
    blocks = quasi_newton._Blocks.at(problem, w)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert {f.dtype.type for f, _ in blocks.factors} == {precision}
    assert kept <= 2 * 41 * 40 * np.dtype(precision).itemsize + 16_000
    P, exact = problem.probabilities(w), blocks.centre(g).reshape(4, 40)
    for c in range(4):
        h = quasi_newton._largest(problem.per_row * P[:, c] * (1.0 - P[:, c]), 16 * 40)
        H = (problem.federation.X * h[:, None]).T @ problem.federation.X + l2 * np.eye(40)
        exact[c] = np.linalg.solve(H, exact[c])
    exact = blocks.centre(exact.ravel())
    assert np.linalg.norm(blocks.solve(g) - exact) <= (1e-2 if precision is np.float32 else 1e-9) * np.linalg.norm(
        exact
    )


@pytest.mark.parametrize("unit", [1e-24, 1e-20, 1.0, 1e20, 1e30])
def test_searches_do_not_depend_on_the_unit_of_features(unit):
    """Squares of other units are beyond single precision: no factor was found, and Newton's method had to do it all."""
    problem = problem_of(4, n=400, d=40)
    fed = problem.federation
    scaled = Problem(Federation(unit * fed.X, fed.y, fed.ptr), problem.loss, l2=problem.l2 * unit**2)
    evaluations = quasi_newton.approach(problem, None, 1e-6)[1]
    w, found = quasi_newton.approach(scaled, None, 1e-6)
    assert 5 < evaluations and abs(found - evaluations) <= 2
    F, g = scaled.value_gradient(w)
    assert g @ g <= 2.0 * scaled.l2 * 1e-6 * (1.0 + F)


@pytest.mark.parametrize("alike", [False, True])
def test_triangles_of_two_classes_share_an_array(alike):
    """Of five classes, each alone or two of a kind, factors solve their own blocks, and three arrays are kept."""
    rng = np.random.default_rng(0)
    d, C = 7, 5
    H = [A @ A.T + np.eye(d) for A in rng.normal(size=(C, d, d))]
    factors: list = []
    for c in range(C):
        room, lower = quasi_newton._room(factors, d, float)
        triangle = np.tril_indices(d) if lower else np.triu_indices(d)
        assert not room[triangle].any()
        room[triangle] = H[c][triangle]
        factor = sla.cho_factor(room, lower=lower, overwrite_a=True)
        factors.append(factor)
        if alike:
            factors.append(factor)
    g = rng.normal(size=d)
    for c in range(C):
        found = sla.cho_solve(factors[2 * c if alike else c], g, check_finite=False)
        np.testing.assert_allclose(H[c] @ found, g, rtol=1e-12, atol=1e-12)
    assert len({id(a if a.base is None else a.base) for a, _ in factors}) == 3
