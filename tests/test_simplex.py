"""Projections onto the simplex family: exact oracles, optimality residuals, hard inputs, planted errors."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from fedconvex.kernels.cache import DISABLED
from fedconvex.simplex import (
    Infeasible,
    divergence_ball_residual,
    euclidean,
    kl_divergence_ball_residual,
    kl_polytope_residual,
    kl_simplex_residual,
    l1_ball_residual,
    polytope_residual,
    project_divergence_ball,
    project_kl_divergence_ball,
    project_kl_polytope,
    project_kl_simplex,
    project_l1_ball,
    project_polytope,
    project_simplex,
    simplex_residual,
)

pytestmark = pytest.mark.compiled

MANY = 20 if DISABLED else 20_000  # rows of each kind
LONG = 700 if DISABLED else 1_000_000
BAR = 1e-14


def rows(kind, rng, shape):
    """Rows of one kind, of any shape (..., p)."""
    p = shape[-1]
    if kind == "uniform":
        return rng.random(shape)
    if kind == "gaussian":
        return rng.normal(size=shape)
    if kind == "huge":
        return 1e9 * rng.normal(size=shape)
    if kind == "far":  # differences far below the size, close to its rounding
        return 1e9 + rng.normal(size=shape) * 10.0 ** rng.uniform(-7, 1, size=(*shape[:-1], 1))
    if kind == "tiny":
        return 1e-9 * rng.normal(size=shape)
    if kind == "tied":
        return np.broadcast_to(rng.normal(size=(*shape[:-1], 1)) * 1e3, shape).copy()
    if kind == "few values":
        return rng.integers(-2, 3, size=shape) / p
    if kind == "heavy":
        return rng.standard_cauchy(size=shape) ** 3
    if kind == "ascending":
        return np.sort(rng.random(shape), axis=-1)
    if kind == "descending":
        return -np.sort(rng.random(shape), axis=-1)
    if kind == "geometric":  # every Newton step drops few entries
        return np.broadcast_to(-np.geomspace(1e-12, 1.0, p), shape) * rng.random((*shape[:-1], 1))
    if kind == "dense":
        return rng.random(shape) * 2.5 / p
    if kind == "sparse":
        return rng.random(shape) * (rng.random(shape) < 0.05)
    if kind == "rounding ties":  # a million entries within a few units of rounding of the threshold
        v = 0.5 + 2.0**-53 * rng.integers(0, 8, size=shape)
        v[..., 0] = 1.5
        return v
    if kind == "feasible":
        x = rng.exponential(size=shape)
        return x / x.sum(axis=-1, keepdims=True)
    raise AssertionError(kind)


KINDS = [
    "uniform", "gaussian", "huge", "far", "tiny", "tied", "few values", "heavy", "ascending", "descending",
    "geometric", "dense", "sparse", "rounding ties", "feasible",
]  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS)


def by_sorting(v, s=1.0):
    """The projection by sorting, in extended precision and relative to the maximum (Held, Wolfe, Crowder 1974)."""
    y = np.longdouble(v.max()) - v.astype(np.longdouble)
    ordered = np.sort(y)
    t = (s + np.cumsum(ordered)) / np.arange(1, v.size + 1)
    return np.maximum(t[np.flatnonzero(ordered < t)[-1]] - y, 0)


def in_fractions(v, a, u, s):
    """argmin |x - v| over 0 <= x <= u, a'x = s, in rational arithmetic: all breakpoints, then one linear equation."""
    v, a, s = [Fraction(z) for z in v.tolist()], [Fraction(z) for z in a.tolist()], Fraction(s)
    u = [None if math.isinf(z) else Fraction(z) for z in u.tolist()]

    def x(t):
        free = [max(Fraction(0), vi - t * ai) for vi, ai in zip(v, a, strict=True)]
        return [z if ui is None else min(z, ui) for z, ui in zip(free, u, strict=True)]

    def g(t):
        return sum(ai * z for ai, z in zip(a, x(t), strict=True))

    points = {vi / ai for vi, ai in zip(v, a, strict=True)}
    points |= {(vi - ui) / ai for vi, ai, ui in zip(v, a, u, strict=True) if ui is not None}
    points = sorted(points, reverse=True)
    points.append(points[-1] - 1)
    low, high = 0, len(points) - 1
    if g(points[high]) < s:
        slope = sum(ai * ai for ai, ui in zip(a, u, strict=True) if ui is None)
        t = points[high] - (s - g(points[high])) / slope if slope else points[high]
        return np.array([float(z) for z in x(t)])
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if g(points[middle]) >= s else (middle + 1, high)
    left, right = points[low - 1], points[low]
    t = left + (right - left) * (s - g(left)) / (g(right) - g(left)) if low else left
    return np.array([float(z) for z in x(t)])


# ---------------------------------------------------------------- the simplex


@each_kind
@pytest.mark.parametrize("p", [1, 2, 10])
def test_many_small_rows(kind, p, rng):
    v = rows(kind, rng, (MANY // (3 if p < 10 else 1), p))
    x = project_simplex(v)
    assert x.min() >= 0.0
    assert simplex_residual(x, v).max() <= BAR
    assert np.array_equal(project_simplex(x), x)  # to the bit


@each_kind
@pytest.mark.parametrize("p", [100, 511, 512, 1000, 5000])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9, 0.3])
def test_middling_rows_against_sorting(kind, p, scale, rng):
    v = rows(kind, rng, (1 if DISABLED else 2, p))
    x = project_simplex(v, scale)
    for i in range(len(v)):
        assert np.abs(x[i] - by_sorting(v[i], scale)).max() <= 4e-15 * scale
    assert simplex_residual(x, v, scale).max() <= BAR
    assert np.array_equal(project_simplex(x, scale), x)


@each_kind
@pytest.mark.slow
def test_a_long_row(kind, rng):
    v = rows(kind, rng, (LONG,))
    x = project_simplex(v)
    assert np.abs(x - by_sorting(v)).max() <= 4e-15
    assert abs(math.fsum(x) - 1.0) <= 4e-15
    assert simplex_residual(x, v) <= BAR
    assert np.array_equal(project_simplex(x), x)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9, 2.0])
@pytest.mark.slow
def test_against_rational_arithmetic(scale, rng):
    for _ in range(40):
        for kind in KINDS:
            v = rows(kind, rng, (int(rng.integers(1, 12)),))
            exact = in_fractions(v, np.ones(v.size), np.full(v.size, np.inf), scale)
            assert np.abs(project_simplex(v, scale) - exact).max() <= 4e-15 * scale, (kind, v)


def test_a_million_at_a_billion(rng):
    """Sum and threshold survive where a plain mean would be off by 1e-7 in every entry."""
    v = 1e9 + rng.random(LONG) / LONG
    x = project_simplex(v)
    assert abs(math.fsum(x) - 1.0) <= 1e-15 * 4


def test_extreme_doubles():
    top = np.finfo(float).max
    assert project_simplex([top, -top, top]).tolist() == [0.5, 0.0, 0.5]
    assert project_simplex([-top, -top]).tolist() == [0.5, 0.5]
    assert project_simplex([5e-324, 0.0]).tolist() == [0.5, 0.5]
    assert project_simplex([3.0], 1e-150).tolist() == [1e-150]
    assert project_simplex([-0.0, 0.0], 1e150).tolist() == [5e149, 5e149]


@pytest.mark.parametrize("project", [project_simplex, project_l1_ball, project_kl_simplex])
def test_shapes_types_and_strides(project, rng):
    v = np.abs(rng.normal(size=(4, 3, 6)))
    x = project(v)
    assert x.dtype == np.float64
    for i in np.ndindex(4, 3):
        assert np.array_equal(x[i], project(v[i]))
    assert np.array_equal(project(v[:, ::-1, ::2]), project(np.ascontiguousarray(v[:, ::-1, ::2])))
    assert np.array_equal(project(np.asfortranarray(v)), x)
    assert np.array_equal(project(v.astype(np.float32)), project(v.astype(np.float32).astype(float)))
    assert np.array_equal(project([[3, 1, 2]]), project([[3.0, 1.0, 2.0]]))
    assert project(np.empty((0, 5))).shape == (0, 5)
    assert project(np.empty((2, 0, 5))).shape == (2, 0, 5)
    assert not project(v, 0.0).any()
    before = v.copy()
    project(v)
    assert np.array_equal(v, before)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=40), st.floats(1e-6, 1e6))
def test_properties(v, scale):
    v = np.array(v)
    x = project_simplex(v, scale)
    assert x.min() >= 0.0
    assert abs(math.fsum(x) - scale) <= 4e-15 * scale
    assert simplex_residual(x, v, scale) <= BAR
    order = np.argsort(v, kind="stable")
    assert (np.diff(x[order]) >= 0.0).all()  # larger entries stay larger
    assert np.array_equal(project_simplex(x, scale), x)


def test_the_residual_sees_errors(rng):
    v = rng.normal(size=50)
    x = project_simplex(v)
    threshold = v[x > 0.0][0] - x[x > 0.0][0]
    shifted = np.maximum(v - threshold + 1e-9, 0.0)
    swapped = x.copy()
    i, j = np.flatnonzero(x)[:2]
    swapped[[i, j]] += [1e-9, -1e-9]  # feasible, not optimal
    softmax = np.exp(v) / np.exp(v).sum()
    for wrong, at_least in [(shifted, 1e-9), (swapped, 1e-10), (softmax, 1e-2), (np.roll(x, 1), 1e-2)]:
        assert simplex_residual(wrong, v) >= at_least
    assert simplex_residual(x, v) <= BAR


def test_the_residual_is_the_variational_inequality(rng):
    for _ in range(50):
        v, x = rng.normal(size=6), rng.dirichlet(np.ones(6))
        cap = rng.uniform(0.2, 1.0, size=6)
        cap = np.maximum(cap, x)
        g = v - x
        assert simplex_residual(x, v) == pytest.approx(g.max() - g @ x, abs=1e-14)
        best = linprog(-g, A_eq=np.ones((1, 6)), b_eq=[1.0], bounds=list(zip(np.zeros(6), cap, strict=True)))
        assert simplex_residual(x, v, cap=cap) == pytest.approx(-best.fun - g @ x, abs=1e-9)
        a = rng.uniform(0.5, 2.0, size=6)
        s = float(a @ x)
        best = linprog(-g, A_eq=a[None], b_eq=[s], bounds=(0, None))
        got = simplex_residual(x, v, s, weights=a) * (s / a.min()) ** 2
        assert got == pytest.approx(-best.fun - g @ x, abs=1e-9)


# ---------------------------------------------------------------- caps, weights, the l1 ball


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
@pytest.mark.slow
def test_boxes_against_rational_arithmetic(scale, rng):
    for _ in range(4 if DISABLED else 25):
        for kind in KINDS:
            p = int(rng.integers(1, 12))
            v, one, free = rows(kind, rng, (p,)), np.ones(p), np.full(p, np.inf)
            cap = rng.uniform(0, 3, size=p) * scale / p
            cap[rng.random(p) < 0.2] = np.inf
            if cap.sum() < scale:
                cap += (scale - cap.sum()) / p * 1.25
            x = project_simplex(v, scale, cap=cap)
            assert np.abs(x - in_fractions(v, one, cap, scale)).max() <= 4e-15 * scale, (kind, v, cap)
            assert simplex_residual(x, v, scale, cap=cap) <= BAR
            assert np.array_equal(project_simplex(x, scale, cap=cap), x)
            a = 10.0 ** rng.uniform(-3, 3, size=p)
            x = project_simplex(v, scale, weights=a)
            assert np.abs(a * (x - in_fractions(v, a, free, scale))).max() <= 4e-15 * scale, (kind, v, a)
            assert simplex_residual(x, v, scale, weights=a) <= BAR
            assert np.array_equal(project_simplex(x, scale, weights=a), x)
            room = cap * max(1.0, 1.25 * scale / float(a @ np.minimum(cap, scale / a)))
            x = project_simplex(v, scale, room, a)
            assert np.abs(a * (x - in_fractions(v, a, room, scale))).max() <= 4e-15 * scale, (kind, v, a, room)
            assert simplex_residual(x, v, scale, room, a) <= BAR


@each_kind
@pytest.mark.slow
def test_a_long_row_in_a_box(kind, rng):
    v, p = rows(kind, rng, (LONG // 10,)), LONG // 10
    x = project_simplex(v, cap=3.0 / p)
    assert simplex_residual(x, v, cap=3.0 / p) <= BAR
    a = rng.uniform(0.1, 10.0, size=p)
    x = project_simplex(v, weights=a)
    assert simplex_residual(x, v, weights=a) <= BAR


@pytest.mark.slow
def test_boxes_that_are_simplices(rng):
    v = rng.normal(size=(30, 8))
    x = project_simplex(v)
    for y in (project_simplex(v, cap=1.0), project_simplex(v, cap=[np.inf]), project_simplex(v, weights=[1.0])):
        assert np.abs(x - y).max() <= 1e-15
    assert np.abs(project_simplex(v, 2.0, weights=2.0) - x).max() <= 1e-15


@pytest.mark.slow
def test_caps_broadcast(rng):
    v, cap = rng.normal(size=(2, 3, 5)), rng.uniform(0.3, 1.0, size=(2, 3, 5))
    x = project_simplex(v, cap=cap)
    for i in np.ndindex(2, 3):
        assert np.array_equal(x[i], project_simplex(v[i], cap=cap[i]))
    row = project_simplex(v, cap=cap[0, 0])
    assert np.array_equal(row[1, 2], project_simplex(v[1, 2], cap=cap[0, 0]))
    assert np.array_equal(project_simplex(v, cap=cap[:, :1]), project_simplex(v, cap=cap[:, [0, 0, 0]]))
    assert np.array_equal(project_simplex(v, cap=0.2), np.full(v.shape, 0.2))  # the only point
    assert project_simplex(np.empty((0, 5)), cap=0.5).shape == (0, 5)


def test_the_middle_of_two_doubles():
    for low, high in [(-1.0, 1.0), (1.0, 2.0), (-1e300, 1e-300), (-8.0, -2.0), (0.0, 5e-324), (1e9, 1e9 + 1)]:
        count = 0
        while low < (middle := euclidean._middle(low, high)) < high:
            low, count = middle, count + 1
        assert count <= 64
        assert np.nextafter(low, np.inf) >= high


def test_the_l1_ball(rng):
    v = rng.normal(size=(200, 7)) * 10.0 ** rng.uniform(-3, 9, size=(200, 1))
    x = project_l1_ball(v, 2.0)
    assert l1_ball_residual(x, v, 2.0).max() <= BAR
    assert np.array_equal(project_l1_ball(x, 2.0), x)
    inside = np.abs(v).sum(axis=1) <= 2.0
    assert np.array_equal(x[inside], v[inside])
    assert l1_ball_residual(-x, v, 2.0).min() > 1e-4


# ---------------------------------------------------------------- polytopes


def polytope(kind, rng, p, m, s):
    """A and b of a polytope with a point (unless "perhaps empty")."""
    A, x = rng.normal(size=(m, p)), rng.dirichlet(np.full(p, 0.3)) * s
    if kind == "integers":
        A = rng.integers(-1, 2, size=(m, p)).astype(float)
    if kind == "unit rows":
        A = np.eye(p)[rng.integers(p, size=m)]
    if kind == "vertex":
        x = np.eye(p)[0] * s
    b = A @ x + rng.exponential(size=m) * s * rng.choice([0.0, 0.01, 1.0], size=m)
    if kind == "equalities, twice":
        A, b = np.vstack([A, -A, A]), np.concatenate([A @ x, -(A @ x), A @ x])
    if kind == "perhaps empty":
        b = b - rng.exponential(size=m) * s
    return A, b


POLYTOPES = ["normal", "integers", "unit rows", "equalities, twice", "perhaps empty", "vertex"]


@pytest.mark.parametrize("kind", POLYTOPES)
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
@pytest.mark.slow_unless(scale=1.0)
def test_polytopes(kind, scale, rng):
    met = 0
    for _ in range(60):
        p, m = int(rng.choice([1, 2, 3, 5, 10, 40])), int(rng.choice([1, 2, 3, 6, 12]))
        A, b = polytope(kind, rng, p, m, scale)
        v = rng.normal(size=p) * scale * 10.0 ** rng.choice([-9, -1, 0, 0, 1, 3]) + scale * rng.choice([0, 0, 1e3])
        prior = np.abs(v) + 1e-12 * scale
        try:
            x = project_polytope(v, A, b, scale)
        except Infeasible as error:
            assert kind == "perhaps empty", error
            assert_empty(error, A, b, scale)
            with pytest.raises(Infeasible):
                project_kl_polytope(prior, A, b, scale)
            continue
        met += 1
        assert polytope_residual(x, v, A, b, scale) <= BAR
        y = project_kl_polytope(prior, A, b, scale)
        assert kl_polytope_residual(y, prior, A, b, scale) <= (1e-12 if "twice" in kind else 2 * BAR)
    assert met > 5


def assert_empty(error, A, b, s):
    y = error.certificate
    assert y.min() >= 0.0
    assert y.sum() == pytest.approx(1.0)
    assert error.violation > 0.0
    assert s * (y @ A).min() - y @ b == pytest.approx(error.violation, rel=1e-6)  # Farkas, recomputed
    m, p = A.shape
    least = linprog(
        np.r_[np.zeros(p), 1.0],
        A_ub=np.c_[A, -np.ones(m)],
        b_ub=b / s,
        A_eq=np.c_[np.ones((1, p)), 0.0],
        b_eq=[1.0],
        bounds=[(0, None)] * p + [(None, None)],
    ).fun
    assert error.violation / s <= least + 1e-6  # no more is claimed than is true


def test_an_empty_polytope_says_why():
    A, b = [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0.2, -0.5, 1.0]  # x_1 <= 0.2, x_1 >= 0.5
    with pytest.raises(Infeasible, match=r"must not be empty; got no point: .* >= 0\.15") as caught:
        project_polytope(np.zeros(3), A, b)
    assert caught.value.certificate == pytest.approx([0.5, 0.5, 0.0])
    assert caught.value.violation == pytest.approx(0.15)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(Infeasible):  # only entry 1 may be positive, and is capped
        project_kl_polytope([1.0, 0.0, 0.0], [[1.0, 0.0, 0.0]], [0.5])


def test_a_larger_polytope(rng):
    p, m = (60, 3) if DISABLED else (400, 12)
    A, b = polytope("normal", rng, p, m, 1.0)
    v = rng.normal(size=(2, p))
    x = project_polytope(v, A, b)
    assert polytope_residual(x, v, A, b).max() <= BAR
    y = project_kl_polytope(np.exp(v), A, b)
    assert kl_polytope_residual(y, np.exp(v), A, b).max() <= 2 * BAR


def test_polytope_residuals_see_errors(rng):
    A, b = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]), np.array([0.3, 0.4])
    v = np.array([1.0, 0.5, 0.2, 0.1])
    x, y = project_polytope(v, A, b), project_kl_polytope(v, A, b)
    other = 0.999 * x + 0.001 * np.full(4, 0.1) @ np.eye(4) + 0.001 * np.array([0.0, 0.0, 0.3, 0.3])
    assert A @ other == pytest.approx(np.minimum(A @ other, b))
    assert polytope_residual(other, v, A, b) > 1e-5
    assert kl_polytope_residual(0.999 * y + 0.001 * np.array([0.1, 0.1, 0.4, 0.4]), v, A, b) > 1e-5
    assert polytope_residual(project_simplex(v), v, A, b) > 0.1  # not in the polytope


# ---------------------------------------------------------------- Kullback-Leibler


def test_kl_simplex(rng):
    v = np.exp(rng.normal(size=(300, 9)) * 10.0)
    v[rng.random(v.shape) < 0.2] = 0.0
    v[:, 0] = 1.0
    x = project_kl_simplex(v, 3.0)
    assert kl_simplex_residual(x, v, 3.0).max() <= BAR
    assert np.array_equal(x == 0.0, v == 0.0)
    assert kl_simplex_residual(project_simplex(v, 3.0), v, 3.0).max() > 1e-3
    assert project_kl_simplex([1e150, 1e150]).tolist() == [0.5, 0.5]
    assert project_kl_simplex([5e-324, 0.0]).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_kl_capped_simplex(scale, rng):
    for _ in range(200):
        p = int(rng.integers(1, 12))
        v = np.exp(rng.normal(size=p) * rng.choice([0.1, 1.0, 20.0]))
        cap = rng.uniform(0, 3, size=p) * scale / p
        if cap.sum() < scale:
            cap *= scale / cap.sum() * rng.choice([1.0000001, 1.3])
        x = project_kl_simplex(v, scale, cap=cap)
        assert kl_simplex_residual(x, v, scale, cap=cap) <= BAR
        top = np.log((cap / v).max() * (1 + 1e-9))  # all capped

        def excess(z, cap=cap, v=v):
            return np.minimum(cap, np.exp(z) * v).sum() - scale

        theta = np.exp(brentq(excess, top - 100, top, xtol=1e-14))
        assert np.abs(x - np.minimum(cap, theta * v)).max() <= 1e-11 * scale
    many = rng.random((4, 5, 6))
    x = project_kl_simplex(many, cap=0.4)
    assert np.array_equal(x[2, 3], project_kl_simplex(many[2, 3], cap=0.4))


@pytest.mark.slow
def test_balls(rng):
    for _ in range(10 if DISABLED else 150):
        p = int(rng.choice([1, 2, 3, 10, 60]))
        q = rng.dirichlet(np.full(p, rng.choice([0.3, 1.0, 10.0])))
        r = float(rng.choice([0.0, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 10.0]))
        v = rng.normal(size=p) * 10.0 ** rng.choice([-9, -1, 0, 1, 3, 9]) + rng.choice([0.0, 1e3])
        x = project_divergence_ball(v, q, r)
        assert divergence_ball_residual(x, v, q, r) <= 2 * BAR
        assert np.abs(project_divergence_ball(x, q, r) - x).max() <= 4e-15
        y = project_kl_divergence_ball(np.exp(v / np.abs(v).max()), q, r)
        assert kl_divergence_ball_residual(y, np.exp(v / np.abs(v).max()), q, r) <= 2 * BAR


def test_balls_at_their_ends(rng):
    q, v = np.array([0.5, 0.3, 0.2]), np.array([0.9, -0.3, 0.6])
    assert np.array_equal(project_divergence_ball(v, q, 0.0), q)
    assert np.array_equal(project_divergence_ball(v, q, 100.0), project_simplex(v))
    w = np.abs(v)
    assert np.array_equal(project_kl_divergence_ball(w, q, 0.0), q)
    assert project_kl_divergence_ball(w, q, 100.0) == pytest.approx(project_kl_simplex(w), abs=1e-15)
    q0 = np.array([0.6, 0.4, 0.0])
    assert project_divergence_ball(v, q0, 0.1)[2] == 0.0
    with pytest.raises(ValueError, match="must be positive where points of the ball are"):
        project_kl_divergence_ball([1.0, 0.0, 0.0], q, 0.1)
    x = project_kl_divergence_ball([1.0, 1.0, 0.0], q, 0.3)
    assert kl_divergence_ball_residual(x, [1.0, 1.0, 0.0], q, 0.3) <= BAR
    assert divergence_ball_residual(q, v, q, 0.1) > 1e-2
    assert divergence_ball_residual(project_simplex(v), v, q, 0.1) > 1e-2
    assert kl_divergence_ball_residual(q, w, q, 0.1) > 1e-2


# ---------------------------------------------------------------- an independent solver


@pytest.mark.slow
def test_against_cvxpy(rng):
    cp = pytest.importorskip("cvxpy")
    p, m = 6, 3
    for trial in range(3):
        v, q = rng.normal(size=p), rng.dirichlet(np.ones(p))
        A, b = polytope("normal", rng, p, m, 1.0)
        a, cap, w = rng.uniform(0.5, 2.0, size=p), rng.uniform(0.2, 0.5, size=p), rng.random(p)
        x = cp.Variable(p, nonneg=True)
        distance, divergence = cp.sum_squares(x - v), cp.sum(cp.kl_div(x, w))
        one, ball = cp.sum(x) == 1, cp.sum(cp.kl_div(x, q)) <= 0.05
        cases = [
            (distance, [one], project_simplex(v)),
            (distance, [one, x <= cap], project_simplex(v, cap=cap)),
            (distance, [a @ x == 1], project_simplex(v, weights=a)),
            (distance, [one, A @ x <= b], project_polytope(v, A, b)),
            (distance, [one, ball], project_divergence_ball(v, q, 0.05)),
            (divergence, [one], project_kl_simplex(w)),
            (divergence, [one, x <= cap], project_kl_simplex(w, cap=cap)),
            (divergence, [one, A @ x <= b], project_kl_polytope(w, A, b)),
            (divergence, [one, ball], project_kl_divergence_ball(w, q, 0.05)),
        ]
        for i, (objective, constraints, ours) in enumerate(cases):
            cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)
            assert np.abs(x.value - ours).max() <= 2e-4, (trial, i)  # the solver's accuracy in x


# ---------------------------------------------------------------- bad input

nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: project_simplex([1.0, nan]), ValueError, "v must be finite; got nan at 1"),
        (lambda: project_simplex([[1.0, 2.0], [inf, 0.0]]), ValueError, r"v must be finite; got inf at \(1, 0\)"),
        (lambda: project_simplex([1.0, -inf]), ValueError, "v must be finite; got -inf"),
        (lambda: project_simplex(3.0), ValueError, "must have at least one axis; got a number"),
        (lambda: project_simplex([]), ValueError, r"at least one entry along the last axis; got shape \(0,\)"),
        (lambda: project_simplex(["a"]), TypeError, "v must hold real numbers"),
        (lambda: project_simplex([1j]), TypeError, "v must hold real numbers"),
        (lambda: project_simplex([1.0], -1.0), ValueError, "scale must be a number in"),
        (lambda: project_simplex([1.0], nan), ValueError, "scale must be"),
        (lambda: project_simplex([1.0], inf), ValueError, "scale must be"),
        (lambda: project_simplex([1.0], 1e-200), ValueError, "scale must be 0 or at least 1e-150"),
        (lambda: project_simplex([1.0], "1"), TypeError, "scale must be a number"),
        (lambda: project_simplex([1.0, 1.0], cap=0.4), ValueError, "cap must leave room for the scale 1; got caps"),
        (lambda: project_simplex([1.0, 1.0], cap=[2.0, -1.0]), ValueError, "cap must be nonnegative.*got -1"),
        (lambda: project_simplex([1.0, 1.0], cap=nan), ValueError, "cap must be nonnegative.*got nan"),
        (lambda: project_simplex([1.0, 1.0], cap=[1.0] * 3), ValueError, r"cap must broadcast to shape \(2,\)"),
        (lambda: project_simplex([1e200, 1.0], cap=1.0), ValueError, "v must be at most 1e.150"),
        (lambda: project_simplex([1.0, 1.0], weights=[1.0, 0.0]), ValueError, "weights must be positive.*got 0"),
        (lambda: project_simplex([1.0, 1.0], weights=[1.0, nan]), ValueError, "weights must be positive.*got nan"),
        (lambda: project_polytope([1.0, 1.0], [[1.0]], [1.0]), ValueError, r"A must have shape \(m, 2\)"),
        (lambda: project_polytope([1.0, 1.0], [[1.0, 1.0]], 1.0), ValueError, r"b must have shape \(1,\)"),
        (lambda: project_polytope([1.0, 1.0], [[1.0, nan]], [1.0]), ValueError, "A must be finite"),
        (lambda: project_kl_simplex([1.0, -1.0]), ValueError, "v must be nonnegative; got -1"),
        (lambda: project_kl_simplex([0.0, 0.0]), ValueError, "v must have a positive entry in every row"),
        (lambda: project_kl_simplex([1.0, 0.0], cap=0.6), ValueError, "where v > 0: cap must leave room"),
        (lambda: project_divergence_ball([1.0, 0.0], [0.5, 0.6], 1.0), ValueError, "q must sum to 1"),
        (lambda: project_divergence_ball([1.0, 0.0], [1.0], 1.0), ValueError, r"q must have shape \(2,\)"),
        (lambda: project_divergence_ball([1.0, 0.0], [0.5, 0.5], -1.0), ValueError, "radius must be nonnegative"),
        (lambda: simplex_residual([1.0], [1.0, 2.0]), ValueError, r"x must have shape \(2,\), as v has; got \(1,\)"),
    ],
)
def test_bad_input(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_no_rows_and_no_constraints():
    none = np.empty((0, 3))
    assert project_polytope([1.0, 0.0, 0.0], none, []).tolist() == [1.0, 0.0, 0.0]
    assert project_kl_polytope([1.0, 1.0, 2.0], none, []).tolist() == [0.25, 0.25, 0.5]
    assert project_polytope(none, np.ones((1, 3)), [2.0]).shape == (0, 3)
    assert project_divergence_ball(none, np.full(3, 1 / 3), 0.1).shape == (0, 3)
    assert simplex_residual(none, none).shape == (0,)
    assert project_polytope([1.0, 2.0], [[1.0, 0.0]], [0.0], 0.0).tolist() == [0.0, 0.0]
    with pytest.raises(Infeasible):
        project_polytope([1.0, 2.0], [[1.0, 0.0]], [-1.0], 0.0)


def test_short_rows_have_the_same_bits_alone_and_among_others():
    """Rows go side by side in groups; one that is its own projection, or takes long, must not change its neighbours."""
    rng = np.random.default_rng(7)
    for p in (1, 3, 4, 10, 32):
        count = 5 if DISABLED else 131
        v = np.concatenate([rows(kind, rng, (count, p)) for kind in ("gaussian", "far", "tied", "heavy", "huge")])
        v = rng.permutation(np.concatenate([v, project_simplex(v[:9])]))
        together = project_simplex(v)
        assert together.tobytes() == np.concatenate([project_simplex(row[None]) for row in v]).tobytes()
        assert project_simplex(together).tobytes() == together.tobytes()


def test_short_rows_are_those_of_the_other_algorithm():
    """Up to two units of rounding of the scale, for scales of all sizes."""
    rng = np.random.default_rng(8)
    for s in (1e-100, 1e-3, 1.0, 7.0, 1e100):
        for kind in ("gaussian", "far", "tied", "few values", "ascending"):
            v = s * rows(kind, rng, (MANY // 20, 9))
            other = np.empty_like(v)
            euclidean.project_rows(v, s, other)
            assert np.abs(project_simplex(v, s) - other).max() <= 2 * euclidean.EPS * s
