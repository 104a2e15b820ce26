"""Damped Newton steps against SciPy and closed forms, with singular Hessians, and where values overflow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from fedconvex.methods.parts import newton_steps

pytestmark = pytest.mark.anywhere


def logistic(z, y):
    m = expit(z)
    return np.logaddexp(0.0, z) - y * z, m - y, m * (1.0 - m)


def poisson(z, y):
    with np.errstate(over="ignore"):
        m = np.exp(z)
    return m - y * z, m - y, m


def squared(z, y):
    return 0.5 * (z - y) ** 2, z - y, np.ones_like(z)


def answers(loss, X, y, b):
    value, slope, curvature = loss(b @ X.T, y)
    with np.errstate(invalid="ignore"):
        return value.sum(axis=1), slope @ X, np.einsum("rn,ni,nj->rij", curvature, X, X)


def search(loss, X, y, b, rounds=60):
    state, history = newton_steps.start(b), []
    for _ in range(rounds):
        state = newton_steps.absorb(state, *answers(loss, X, y, state.trial))
        history.append(state)
    return state, history


@pytest.mark.parametrize("loss", [logistic, poisson, squared])
def test_minimum_of_random_problems(loss, rng):
    X = np.column_stack([np.ones(60), rng.normal(size=(60, 3)) * [1e-3, 1.0, 1e3]])
    y = rng.poisson(2.0, 60).astype(float) if loss is poisson else (rng.random(60) < 0.4).astype(float)
    state, history = search(loss, X, y, np.zeros((1, 4)), 20)
    scale = X.std(axis=0) + X.mean(axis=0) * [1, 0, 0, 0]
    reference = minimize(
        lambda c: answers(loss, X / scale, y, c[None])[0][0],
        np.zeros(4),
        jac=lambda c: answers(loss, X / scale, y, c[None])[1][0],
        method="BFGS",
        options={"gtol": 1e-9},
    ).x
    assert np.allclose(state.w[0] * scale, reference, atol=1e-6)
    assert state.decrement[0] < 1e-24 and state.rank[0] == 4
    values = [h.value[0] for h in history]
    assert all(b <= a + 1e-12 * abs(a) for a, b in pairwise(values))


def test_a_quadratic_takes_one_step(rng):
    X, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    state, _ = search(squared, X, y, np.zeros((1, 4)), 2)
    assert np.allclose(state.w[0], np.linalg.lstsq(X, y)[0], rtol=1e-12)


def test_an_accepted_trial_costs_one_answer(rng):
    """From the log of the mean, Poisson regression takes full steps only."""
    X = np.column_stack([np.ones(200), rng.normal(size=(200, 2)) * 0.3])
    y = rng.poisson(np.exp(X @ [1.0, 0.5, -0.2])).astype(float)
    state, history = search(poisson, X, y, np.array([[np.log(y.mean()), 0.0, 0.0]]), 6)
    assert all(h.accepted[0] for h in history)
    assert state.decrement[0] < 1e-20


def test_full_newton_steps_diverge_here_and_damped_ones_do_not():
    """log(1 + e^z) + log(1 + e^-z) from z = 2.4: undamped, |z| grows (5.04 after one step)."""
    X, y = np.array([[1.0], [1.0]]), np.array([0.0, 1.0])
    first, _ = search(logistic, X, y, np.array([[2.4]]), 1)
    assert first.trial[0, 0] == pytest.approx(2.4 - np.sinh(2.4), rel=1e-12)
    assert abs(first.trial[0, 0]) > 2.4
    state, history = search(logistic, X, y, np.array([[2.4]]), 10)
    assert abs(state.w[0, 0]) < 1e-12
    assert not all(h.accepted[0] for h in history[:3])


@pytest.mark.parametrize("begin", [-12.0, 800.0])
def test_overflow_counts_as_rejected(begin):
    """Poisson with mean 5. The first full step from -12 is 5 e^12 = 8e5 long; at 800 the value itself overflows, and
    from 400 on full steps are of length one."""
    X, y = np.ones((4, 1)), np.array([2.0, 5.0, 6.0, 7.0])
    state, history = search(poisson, X, y, np.array([[begin]]), 420)
    assert state.w[0, 0] == pytest.approx(np.log(5.0), rel=1e-13)
    assert sum(not h.accepted[0] and not h.settled[0] for h in history) > 0


def test_trajectories_side_by_side_have_the_bits_of_one_alone(rng):
    X = rng.normal(size=(40, 3))
    y = (rng.random(40) < 0.5).astype(float)
    starts = rng.normal(size=(5, 3)) * 3.0
    together = newton_steps.start(starts)
    alone = [newton_steps.start(b[None]) for b in starts]
    for _ in range(12):
        given = [answers(logistic, X, y, s.trial) for s in alone]
        alone = [newton_steps.absorb(s, *a) for s, a in zip(alone, given, strict=True)]
        together = newton_steps.absorb(together, *(np.concatenate(parts) for parts in zip(*given, strict=True)))
    for field, stacked in zip(together._fields, together, strict=True):
        assert np.array_equal(stacked, np.concatenate([getattr(s, field) for s in alone]), equal_nan=True), field


def test_collinear_columns_leave_the_smallest_step(rng):
    """The third column is the sum of the others: N has the minimum of two columns, and J the rank 2."""
    X = rng.normal(size=(50, 2))
    y = (rng.random(50) < 0.5).astype(float)
    two, _ = search(logistic, X, y, np.zeros((1, 2)), 12)
    three, _ = search(logistic, np.column_stack([X, X.sum(axis=1)]), y, np.zeros((1, 3)), 12)
    assert three.rank[0] == 2 and two.rank[0] == 2
    assert three.value[0] == pytest.approx(two.value[0], rel=1e-13)
    assert np.abs(three.w).max() < 5.0


def test_an_all_zero_column_stays_at_zero(rng):
    X = np.column_stack([rng.normal(size=(20, 2)), np.zeros(20)])
    state, _ = search(squared, X, rng.normal(size=20), np.zeros((1, 3)), 4)
    assert state.w[0, 2] == 0.0 and state.rank[0] == 2 and state.decrement[0] < 1e-26


def test_a_direction_flat_by_rounding_is_still_used_where_the_value_can_fall():
    """Two rows with y = 1/2; the second, at z = 40, has curvature e^-40 but slope 1/2."""
    state, _ = search(logistic, np.eye(2), np.array([0.5, 0.5]), np.array([[0.3, 40.0]]), 60)
    assert np.allclose(state.w, 0.0, atol=1e-10)
    J, g = np.diag([1.0, 0.0]), np.array([0.0, 1.0])
    assert newton_steps.newton_direction(J, g, 1e-12)[1] > 1e10
    assert newton_steps.newton_direction(J, 1e-20 * g, 1e-12)[1] == 0.0


def test_rounding_settles_a_search(rng):
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30) + 1e6
    state, history = search(squared, X, y, np.zeros((1, 2)), 20)
    assert state.settled[0]
    before = next(h for h in history if h.settled[0])
    assert np.array_equal(before.w, state.w)


def test_a_gradient_of_wrong_sign_moves_nothing(rng):
    """A planted error: what rises along the step is rejected until rounding stops the search."""
    X, y = rng.normal(size=(30, 2)), (rng.random(30) < 0.5).astype(float)
    state = newton_steps.start(np.full((1, 2), 0.1))
    for _ in range(60):
        value, gradient, hessian = answers(logistic, X, y, state.trial)
        state = newton_steps.absorb(state, value, -gradient, hessian)
    assert np.array_equal(state.w, np.full((1, 2), 0.1)) and state.settled[0] and state.decrement[0] > 1e-3


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_anywhere_in_an_answer_is_rejected(place):
    X, y = np.ones((3, 1)), np.array([0.0, 1.0, 1.0])
    state = newton_steps.absorb(newton_steps.start(np.zeros((1, 1))), *answers(logistic, X, y, np.zeros((1, 1))))
    answer = [np.array(a) for a in answers(logistic, X, y, state.trial)]
    answer[place][...] = np.nan
    after = newton_steps.absorb(state, *answer)
    assert not after.accepted[0] and after.fraction[0] == 0.25 and np.array_equal(after.w, state.w)
