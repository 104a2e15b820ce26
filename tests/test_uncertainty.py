"""Sets of mixtures: projections, mirror steps and support functions against optimality conditions and cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedconvex.simplex import ascent
from fedconvex.simplex.ascent import EntropicStep, ProjectedStep
from fedconvex.simplex.uncertainty import (
    KLBall,
    Point,
    Polytope,
    Simplex,
    log_sum_exp,
    minimise_over_simplex,
    softmax,
)


def some_sets(rng, p):
    inside = rng.dirichlet(np.ones(p))
    A = rng.normal(size=(2, p))
    return [
        Simplex(),
        Polytope(A, A @ inside + rng.exponential(0.1, 2)),
        KLBall(inside, float(rng.exponential(0.3))),
        Point(inside),
    ]


def cvx_set(sets, lam):
    rows = [lam >= 0, cp.sum(lam) == 1]
    if isinstance(sets, Polytope):
        rows.append(np.array(sets.A) @ lam <= np.array(sets.b))
    if isinstance(sets, KLBall):
        rows.append(cp.sum(cp.kl_div(lam, np.array(sets.center))) <= sets.radius)
    if isinstance(sets, Point):
        rows.append(lam == np.array(sets.domain_weights))
    return rows


@given(st.integers(0, 2**32 - 1))
@pytest.mark.slow
def test_steps_and_support_functions_meet_their_optimality_conditions(seed):
    """All three are linear problems at their solution: no point of the set has a larger slope, as the support tells."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 7))
    v = rng.normal(size=p) * 10.0 ** rng.uniform(-3, 2)
    for sets in some_sets(rng, p):
        size = 1.0 + np.abs(v).max()
        value, best = sets.support(v)
        assert sets.contains(best), sets
        assert -1e-12 * size <= value - v @ best <= 1e-9 * size, sets  # a vertex is feasible to about 5e-13
        for _ in range(5):
            assert v @ sets.project(rng.normal(size=p)) <= value + 1e-9 * size, sets
        near = sets.project(v)
        assert sets.contains(near), sets
        assert sets.support(v - near)[0] - (v - near) @ near <= 1e-7 * size, sets
        mix = rng.dirichlet(np.ones(p))
        g = np.clip(v, -8, 8)
        up = sets.entropic(mix, g)
        assert sets.contains(up, 1e-8), sets
        slope = g - np.log(np.maximum(up, 1e-300) / mix)
        on = up > 1e-12
        slope = np.where(on, slope, slope[on].min())
        if not isinstance(sets, Polytope):  # its vanishing entries have slopes of their own
            assert sets.support(slope)[0] - slope @ up <= 1e-6 * size, sets


@pytest.mark.parametrize("kind", range(4))
def test_against_cvxpy(kind):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        p = 4
        sets, v = some_sets(rng, p)[kind], rng.normal(size=p)
        lam = cp.Variable(p)
        task = cp.Problem(cp.Maximize(v @ lam), cvx_set(sets, lam))
        assert task.solve(solver=cp.CLARABEL) == pytest.approx(float(sets.support(v)[0]), abs=1e-6), seed
        task = cp.Problem(cp.Minimize(cp.sum_squares(lam - v)), cvx_set(sets, lam))
        task.solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(sets.project(v), lam.value, atol=1e-4)
        mix = rng.dirichlet(np.ones(p))
        task = cp.Problem(cp.Maximize(v @ lam - cp.sum(cp.kl_div(lam, mix))), cvx_set(sets, lam))
        task.solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(sets.entropic(mix, v), lam.value, atol=1e-4)


@pytest.mark.slow
def test_quadratic_programmes_over_polytopes():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = int(rng.integers(2, 8))
        Z, c = rng.normal(size=(p, 3)), rng.normal(size=p)
        for sets in some_sets(rng, p)[:2]:
            mix = sets.minimise(Z, c)
            slope = Z @ (mix @ Z) + c
            assert sets.contains(mix), seed
            assert slope @ mix + sets.support(-slope)[0] <= 1e-9, seed  # the duality gap
    np.testing.assert_allclose(minimise_over_simplex(np.eye(2), np.zeros(2)), 0.5, rtol=1e-14)


def test_batches_are_rows():
    rng = np.random.default_rng(0)
    V, M = rng.normal(size=(3, 4)), rng.dirichlet(np.ones(4), size=3)
    for sets in some_sets(rng, 4):
        for whole, each in (
            (sets.project(V), [sets.project(v) for v in V]),
            (sets.entropic(M, V), [sets.entropic(m, v) for m, v in zip(M, V, strict=True)]),
            (sets.support(V)[0], [sets.support(v)[0] for v in V]),
            (sets.support(V)[1], [sets.support(v)[1] for v in V]),
        ):
            np.testing.assert_allclose(whole, each, rtol=0, atol=1e-15)
        assert sets.contains(sets.start(4))
        assert eval(repr(sets)) == sets
        assert hash(eval(repr(sets))) == hash(sets)


def test_steps_are_the_named_ones():
    mix, g = np.array([[0.2, 0.3, 0.5]]), np.array([[0.1, -0.2, 0.05]])
    weights = mix * np.exp(g)
    np.testing.assert_allclose(EntropicStep().ascend(Simplex(), mix, g), weights / weights.sum(), rtol=1e-14)
    np.testing.assert_allclose(ProjectedStep().ascend(Simplex(), mix, g), mix + g - g.mean(), rtol=1e-14)


def test_moderate_entropic_steps_have_the_bits_of_checked_ones():
    rng, short = np.random.default_rng(5), 0
    for _ in range(300):
        R, p = rng.integers(1, 5), rng.integers(1, 14)
        mix = rng.dirichlet(np.full(p, 10.0 ** rng.uniform(-2.0, 1.0)), R)
        g = 10.0 ** rng.uniform(-4.0, 2.6) * rng.standard_normal((R, p))
        if rng.random() < 0.2:
            g[0, 0] = rng.choice([np.nan, np.inf, -np.inf])
        found, fine = EntropicStep().ascend(Simplex(), mix, g), np.isfinite(g).all(axis=1)
        log = np.log(np.where(mix > 0.0, mix, 1.0))
        top = np.where(mix > 0.0, log + g, -np.inf).max(axis=1, keepdims=True)  # no weight below e^-600 of the largest
        expected = mix.copy()
        if fine.any():
            expected[fine] = Simplex().entropic(mix[fine], np.maximum(g, top - 600.0 - log)[fine])
        np.testing.assert_array_equal(found, expected)
        short += ascent._moderate(mix.ravel(), g.ravel())
    assert 50 < short < 250  # both ways are taken


def test_a_ball_that_holds_a_vertex_and_a_ball_of_radius_zero():
    """KL(e_k‖c) = -log c_k: from there on the support function is the maximum."""
    c, F = np.array([0.5, 0.3, 0.2]), np.array([1.0, 3.0, 2.0])
    assert KLBall(c, -np.log(0.3)).support(F)[0] == 3.0
    assert KLBall(c, -np.log(0.3) - 1e-3).support(F)[0] < 3.0
    value, mix = KLBall(c, 0.0).support(F)
    assert value == pytest.approx(c @ F)
    np.testing.assert_allclose(mix, c)
    np.testing.assert_allclose(KLBall([0.5, 0.5, 0.0], 5.0).support([0.0, 1.0, 9.0])[1], [0.0, 1.0, 0.0])


def test_softmax_is_within_log_p_over_mu_of_the_maximum():
    rng = np.random.default_rng(3)
    for mu in (1e-3, 1.0, 50.0, 1e6):
        F = rng.normal(size=(40, 5)) * 3.0
        value = log_sum_exp(F, mu)
        assert (value >= F.max(axis=1) - 1e-15).all()
        assert (value <= F.max(axis=1) + np.log(5) / mu + 1e-12).all()
        np.testing.assert_allclose(value[0], cp.log_sum_exp(mu * F[0]).value / mu, rtol=1e-9)
        assert (np.abs(softmax(F, mu).sum(axis=1) - 1.0) <= 1e-15 * 10).all()
    same = np.full(4, 0.25)
    assert log_sum_exp(same, 2.0) == pytest.approx(0.25 + np.log(4) / 2.0)  # attained
    huge = np.array([1e300, 0.0])  # mu times which overflows
    with np.errstate(over="ignore"):
        assert log_sum_exp(huge, 1e10) == 1e300 and softmax(huge, 1e10).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Point([0.5, 0.6]), "sum to one"),
        (lambda: Point([1.5, -0.5]), "nonnegative"),
        (lambda: Point([[0.5, 0.5]]), "one vector of domain weights"),
        (lambda: KLBall([0.5, 0.5], -1.0), "radius"),
        (lambda: KLBall([0.5, np.nan], 1.0), "finite"),
        (lambda: Polytope([[1.0, 1.0]], [0.5]), "mixture|empty|feasible|point"),
        (lambda: Polytope([[1.0, 1.0]], [0.5, 0.5]), r"\(m, p\)"),
        (lambda: log_sum_exp([1.0], 0.0), "mu"),
        (lambda: Polytope([[1.0, 0.0]], [0.5]).check("AFL", 3), "3 domains"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("radius", [1e-15, 1e-12, 1e-8])
def test_tiny_divergence_balls_against_their_closed_form(radius):
    """Two equal weights: lambda = 1/2 + t, the divergence is 2 t^2 + 4 t^4/3 + ..., and max <(1, 0), .> = 1/2 + t."""
    t = np.sqrt(0.5 * radius) * (1.0 - radius / 6.0)
    ball = KLBall([0.5, 0.5], radius)
    value, weights, nu = ball.tilt(np.array([1.0, 0.0]))
    assert abs(value - 0.5 - t) <= 1e-15
    assert abs(weights[0] - 0.5 - t) <= 1e-8 * t + 1e-16  # off by 1e-3 of t and more if taken from sums that cancel
    assert value >= float(weights[0]) - 1e-15
    assert nu == pytest.approx(1.0 / (4.0 * t), rel=1e-6)
