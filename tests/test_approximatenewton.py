"""GIANT and DANE against NumPy, their exact radius on quadratics, DANE's theorems, and known numbers of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation, Hinge, Logistic, Problem, Squared, iterate, run
from fedconvex.constants.similarity import leader_dissimilarity, second_order_dissimilarity
from fedconvex.methods import DANE, GIANT, resolved
from tests.test_unbiased_local_methods import L2, clients, gradients, logistic_problem


def quadratics(seed=0, K=6, m=30, d=8, l2=1e-2, het=0.5, cond=5.0, weights=None):
    """Least squares of K clients that differ in features and in models, columns scaled by powers; and the Hessians."""
    rng = np.random.default_rng(seed)
    w0, scale, rows = rng.normal(size=d), cond ** (-np.arange(d) / (d - 1)), []
    for _ in range(K):
        M = np.eye(d) + het * rng.normal(size=(d, d)) / np.sqrt(d)
        A = rng.normal(size=(m, d)) @ M * scale
        rows.append((A, A @ (w0 + het * rng.normal(size=d)) + 0.3 * rng.normal(size=m)))
    H = np.array([A.T @ A / m + l2 * np.eye(d) for A, _ in rows])
    return Problem(Federation.from_clients(rows), Squared(), l2, weights), H


def hessian(rows, k, w):
    X, y = rows[k]
    s = 1.0 / (1.0 + np.exp(y * (X @ w)))
    return X.T @ ((s * (1 - s))[:, None] * X) / len(y) + L2 * np.eye(X.shape[1])


def value(rows, q, w):
    each = [np.logaddexp(0.0, -y * (X @ w)).mean() for X, y in rows]
    return q @ each + 0.5 * L2 * w @ w


def minimised(gradient, curvature, v):
    """Newton's method, undamped, on a problem whose proximal term keeps it from leaving."""
    for _ in range(60):
        v = v - np.linalg.solve(curvature(v), gradient(v))
    return v


# ---------------------------------------------------------------- line by line


@pytest.mark.parametrize(("search", "leader"), [(True, None), (False, None), (False, 1)])
def test_dane_equals_plain_numpy(search, leader):
    rows, problem = clients()
    grad, q, w, m, eta = gradients(rows), problem.weights, np.full(4, 0.3), 0.7, 0.9
    of = q if leader is None else np.eye(3)[leader]
    for _ in range(4):
        g, d = sum(q[k] * grad(k, w) for k in range(3)), np.zeros(4)
        for k in range(3):
            c = grad(k, w) - eta * g
            own = minimised(
                lambda v, k=k, c=c, w0=w: grad(k, v) - c + m * (v - w0),
                lambda v, k=k: hessian(rows, k, v) + m * np.eye(4),
                w.copy(),
            )
            d += of[k] * (own - w)
        w = w + (armijo(rows, q, w, g, d) if search else 1.0) * d
    method = DANE(step_size=1 / m, eta=eta, leader=leader, line_search=search)
    found = run(method, problem, rounds=12 if search else 8, start=np.full(4, 0.3), tol=0.0)
    assert np.abs(found.w - w).max() < 1e-12
    up = 4 * 4 * 6 + search * 4 * 3 * 12 if leader is None else 4 * 4 * 4
    assert found.trace.floats_up[-1] == up


def armijo(rows, q, w, g, d):
    s = 1.0
    while value(rows, q, w + s * d) > value(rows, q, w) + 1e-4 * s * g @ d:
        s /= 2
    return s


@pytest.mark.parametrize("damping", [0.0, 0.2])
@pytest.mark.parametrize("start", [0.0, 4.0])
def test_giant_equals_plain_numpy(damping, start):
    """Without damping steps are halved: the line search is that of the textbook."""
    rows, problem = clients()
    grad, q, w, fractions = gradients(rows), problem.weights, np.full(4, start), []
    for _ in range(5):
        g = sum(q[k] * grad(k, w) for k in range(3))
        d = -sum(q[k] * np.linalg.solve(hessian(rows, k, w) + damping * np.eye(4), g) for k in range(3))
        fractions.append(armijo(rows, q, w, g, d))
        w = w + fractions[-1] * d
    assert (min(fractions) < 1.0) == (damping == 0.0)
    found = run(GIANT(damping=damping), problem, rounds=15, start=np.full(4, start), tol=0.0)
    assert np.abs(found.w - w).max() < 1e-12


# ---------------------------------------------------------------- exact radius


@pytest.mark.parametrize(
    ("settings", "m", "leader", "radius"),
    [
        pytest.param({"m": 200, "het": 0.2}, 0.0, None, 0.2017, marks=pytest.mark.slow),
        ({}, 0.0, None, 2.06),
        ({}, 0.1, None, 0.583),
        pytest.param({"m": 200, "het": 0.2}, 0.17539, 0, 0.8037, marks=pytest.mark.slow),
        ({"m": 6}, 0.0, None, 24.8),
        ({"m": 6}, 0.1, None, 3.20),
        ({"m": 6}, 1.0, None, 0.960),
    ],
)
def test_errors_of_quadratics_follow_the_iteration_matrix_and_radii_are_those_computed_elsewhere(
    settings, m, leader, radius
):
    problem, H = quadratics(**settings)
    q, star = problem.weights, problem.solve().w
    ridge = m * np.eye(8)
    T = np.linalg.inv(H[leader] + ridge) if leader is not None else q @ np.linalg.inv(H + ridge).reshape(6, -1)
    G = np.eye(8) - T.reshape(8, 8) @ np.tensordot(q, H, 1)
    top = np.abs(np.linalg.eigvals(G)).max()
    assert top == pytest.approx(radius, rel=3e-3)
    method = DANE(step_size=1 / m, leader=leader) if m else GIANT(line_search=False)
    start = star + np.random.default_rng(1).normal(size=8)
    off = [s.w[0] - star for t, s in iterate(method, problem, rounds=18, start=start) if t % 2 == 0]
    for T in (1, 2, 3):
        exact = np.linalg.matrix_power(G, T) @ (start - star)
        assert np.abs(off[T] - exact).max() < 1e-9 * max(1.0, np.abs(exact).max())
    if top < 0.9:  # the measured rate of late stages
        eigen = np.sort(np.abs(np.linalg.eigvals(G)))
        rate = np.linalg.norm(off[9]) / np.linalg.norm(off[8])
        assert abs(rate / top - 1.0) < 4.0 * (eigen[-2] / top) ** 8 + 1e-3


def test_equal_clients_need_one_stage():
    X, y = np.random.default_rng(0).normal(size=(9, 3)), np.arange(9.0)
    problem = Problem(Federation.from_clients([(X, y)] * 3), Squared(), 0.1)
    for method in (GIANT(line_search=False), DANE(step_size="auto"), DANE(step_size=1e6, leader=2)):
        start = problem.measure(np.ones((1, 3))).gap[0]
        found = run(method, problem, rounds=2, start=np.ones(3), tol=0.0)
        assert found.gap < 1e-9 * start


# ---------------------------------------------------------------- theorems and rounds


def test_the_dissimilarities_are_those_of_hessians_and_bound_those_of_logistic_ones(rng):
    problem, H = quadratics(m=12, weights=[0.3, 0.1, 0.1, 0.2, 0.1, 0.2])
    q, mean = problem.weights, np.tensordot(problem.weights, H, 1)
    spread = sum(q[k] * (H[k] - mean) @ (H[k] - mean) for k in range(6))
    found = second_order_dissimilarity(problem)
    assert found.exact and found.value == pytest.approx(np.sqrt(np.linalg.norm(spread, 2)), rel=1e-12)
    for k in (0, 3):
        assert leader_dissimilarity(problem, k).value == pytest.approx(np.linalg.norm(H[k] - mean, 2), rel=1e-12)
    rows, logistic = clients()
    q, bound, leader = logistic.weights, second_order_dissimilarity(logistic), leader_dissimilarity(logistic, 1)
    assert not bound.exact and not leader.exact
    for _ in range(20):
        w = rng.normal(size=4) * rng.choice([0.1, 1.0, 5.0])
        A = np.array([hessian(rows, k, w) for k in range(3)])
        away = A - np.tensordot(q, A, 1)
        assert np.linalg.norm(sum(q[k] * away[k] @ away[k] for k in range(3)), 2) <= bound.value**2
        assert np.linalg.norm(away[1], 2) <= leader.value


def test_dissimilarities_do_not_overflow_before_their_hessians_do_and_then_are_refused_in_words(rng):
    X, ptr = rng.normal(size=(8, 3)), [0, 3, 6, 8]
    for loss in (Squared(), Logistic()):
        y = np.sign(rng.normal(size=8))
        plain, huge, beyond = (Problem(Federation(X * size, y, ptr), loss) for size in (1.0, 1e120, 1e160))
        for asked in (second_order_dissimilarity, lambda problem: leader_dissimilarity(problem, 1)):
            assert asked(huge).value == pytest.approx(1e240 * asked(plain).value, rel=1e-12)
            with pytest.raises(ValueError, match="have squares that are finite, for a Hessian"):
                asked(beyond)


@pytest.mark.slow
@pytest.mark.parametrize("leader", [None, 0])
def test_dane_keeps_its_theorems_and_would_not_keep_faster_ones(leader):
    tight = 0.0
    for seed in range(4):
        problem, H = quadratics(seed, het=(0.2, 0.5, 1.0, 2.0)[seed], l2=0.1)
        mu = min(np.linalg.eigvalsh(A)[0] for A in H)
        mu = mu if leader is None else np.linalg.eigvalsh(np.tensordot(problem.weights, H, 1))[0]
        best, method = problem.solve(), resolved(DANE(step_size="auto", leader=leader), problem)[0]
        m, star = 1 / method.step_size, best.w
        for T in (1, 3, 8):
            F = run(method, problem, rounds=2 * T, tol=0.0).trace.value[-1] - best.value
            if leader is None:
                bound = lambda fast: m / 2 * (1 + fast * mu / m) ** -(T - 1) * (star @ star)  # noqa: B023, E731
            else:
                D = star @ H[0] @ star / 2 + m / 2 * star @ star
                bound = lambda fast: (1 - min(1.0, fast / (1 + 2 * m / mu))) ** T * D  # noqa: B023, E731
            assert F <= bound(1.0) * (1 + 1e-9)
            tight = max(tight, F / max(bound(12.0), 1e-300))
    assert tight > 1.0


@pytest.mark.slow
def test_rounds_to_a_gap_are_those_computed_elsewhere():
    """Ten unequal clients, F - F* <= 1e-10: ten stages of whole steps, with 12 values each for the line search."""
    problem = logistic_problem()
    best = problem.solve().value
    for search, rounds, floats in ((True, 30, 10 * (20 + 12)), (False, 20, 200)):
        found = run(GIANT(line_search=search), problem, rounds=40, tol=1e-12).trace
        i = np.flatnonzero(found.value - best <= 1e-10)[0]
        assert (found.round[i], found.floats_up[i] / 10) == (rounds, floats)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: DANE(step_size=0.0), "step_size must be"),
        (lambda p: run(DANE(step_size=1.0, leader="nobody"), p, rounds=1), "leader must be the label of a client"),
        (lambda p: GIANT(damping=-1.0), "damping must"),
        (lambda p: run(GIANT(), Problem(p.federation, Hinge(), 0.1), rounds=1), "have a loss with a curvature"),
        (lambda p: run(DANE(step_size=1.0), Problem(p.federation, Hinge(), 0.1), rounds=1), "loss with a curvature"),
    ],
)
def test_settings_out_of_range_are_refused_in_words(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(clients()[1])


def test_the_logistic_theorem_of_dane_holds_with_its_bound():
    problem = Problem(clients()[1].federation, Logistic(), L2)
    best, method = problem.solve(), resolved(DANE(step_size="auto"), problem)[0]
    m = 1 / method.step_size
    for T in (1, 4):
        F = run(method, problem, rounds=2 * T, tol=0.0).trace.value[-1] - best.value
        assert F <= m / 2 * (1 + L2 / m) ** -(T - 1) * (best.w @ best.w)
