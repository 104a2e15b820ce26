"""S-DANE and accelerated S-DANE against NumPy and DANE, their theorems, and rounds where clients are alike."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation, Hinge, Problem, iterate, run
from fedconvex.methods import DANE, SDANE, AcceleratedGradient, AcceleratedSDANE, resolved
from fedconvex.problems import MovingTarget
from tests.test_approximatenewton import hessian, minimised, quadratics
from tests.test_unbiased_local_methods import L2, clients, gradients


def solved(grad, rows, k, y, c, lam, accuracy):
    """Client k's problem, by Newton's method or by gradient steps."""
    tilted = lambda x: grad(k, x) - c + lam * (x - y)  # noqa: E731
    if accuracy is None:
        return minimised(tilted, lambda x: hessian(rows, k, x) + lam * np.eye(4), y.copy())
    X = rows[k][0]
    step, x = 1 / (np.linalg.norm(X.T @ X / len(X), 2) / 4 + L2 + lam), y.copy()
    while np.linalg.norm(tilted(x)) > accuracy * lam * np.linalg.norm(x - y):
        x = x - step * tilted(x)
    return x


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("accuracy", [None, 0.5])
@pytest.mark.parametrize("cls", [SDANE, AcceleratedSDANE])
def test_methods_equal_plain_numpy(cls, accuracy, search):
    """With A and B as in the paper; the line search's condition by gradients of all clients at the mean."""
    rows, problem = clients()
    grad, q, lam, stages = gradients(rows), problem.weights, 0.02 if search else 0.3, 5
    x = v = np.full(4, 0.3)
    A, B, accepted = 0.0, 1.0, []
    for _ in range(stages):
        a = B / (2 * lam) + np.sqrt((B / (2 * lam)) ** 2 + A * B / lam)
        y = (A * x + a * v) / (A + a)
        G = np.array([grad(k, y) for k in range(3)])
        each = np.array([solved(grad, rows, k, y, G[k] - q @ G, lam, accuracy) for k in range(3)])
        slopes, new = np.array([grad(k, each[k]) for k in range(3)]), q @ each
        if search:
            there = np.array([grad(k, new) for k in range(3)])
            found = sum(q[k] * (slopes[k] - (there[k] - q @ there)) @ (y - each[k]) for k in range(3))
            accepted.append(found >= (q @ slopes) @ (q @ slopes) / (2 * lam))
            lam *= 0.5 if accepted[-1] else 2.0
            if not accepted[-1]:
                continue
        x = new
        v = (B * v + a * L2 * x - a * (q @ slopes)) / (B + a * L2)
        if cls is AcceleratedSDANE:
            A, B = A + a, B + a * L2
    assert not search or (any(accepted) and not all(accepted))
    method = cls(step_size=1 / (0.02 if search else 0.3), accuracy=accuracy, line_search=search)
    found = run(method, problem, rounds=stages * (3 if search else 2), start=np.full(4, 0.3), tol=0.0)
    assert np.abs(found.w - x).max() < 1e-12
    vectors, numbers = 2 + (accuracy is not None), int(search)
    assert found.trace.floats_up[-1] == 3 * stages * (4 * vectors + numbers)
    assert found.trace.floats_down[-1] == 3 * stages * (4 * (2 + search) + 1)


def test_exact_sdane_is_dane():
    """v+ = v - g/lam = x+ where g = lam (v - x+): what is won by stabilising is won by solving nearly only."""
    problem = quadratics()[0]
    for step in (1.0, 3.0):
        one, two = (iterate(cls(step_size=step), problem, rounds=12) for cls in (SDANE, DANE))
        for (_, a), (_, b) in zip(one, two, strict=True):
            assert np.abs(a.w - b.w).max() < 1e-12


@pytest.mark.parametrize("accuracy", [None, 0.5])
@pytest.mark.parametrize("cls", [SDANE, pytest.param(AcceleratedSDANE, marks=pytest.mark.slow)])
def test_every_stage_keeps_its_inequality_and_would_not_keep_a_faster_one(cls, accuracy):
    """Per stage, with the potential of the theorem; the bound of F(x_T) on top. A rate 3 times as fast is violated."""
    tight = 0.0
    for seed in range(3):
        problem, H = quadratics(seed, K=4, m=12, d=4, het=(0.2, 0.7, 2.0)[seed], l2=0.1)
        method = resolved(cls(step_size="auto", accuracy=accuracy), problem)[0]
        mu, lam, best = 0.1, 1 / method.step_size, problem.solve()
        assert min(np.linalg.eigvalsh(A)[0] for A in H) >= mu
        start = best.w + np.random.default_rng(seed).normal(size=4)
        A, B, before, T = 0.0, 1.0, None, 0
        for t, s in iterate(method, problem, rounds=12, start=start):
            if t % 2:
                continue
            gap = max(problem.value(s.w[0]) - best.value, 0.0)
            off = np.sum((s.v[0] - best.w) ** 2)
            if cls is SDANE:
                now = gap + (lam + mu) / 2 * off
                if t:
                    assert now <= lam / 2 * before * (1 + 1e-9) + 1e-14
                    assert gap <= lam / 2 * (1 + mu / lam) ** -(T - 1) * np.sum((start - best.w) ** 2) + 1e-14
                    tight = max(tight, (gap + (lam + 3 * mu) / 2 * off) / (lam / 2 * before + 1e-14))
                before = off
            else:
                if t:
                    a = B / (2 * lam) + np.sqrt((B / (2 * lam)) ** 2 + A * B / lam)
                    A, B = A + a, B + a * mu
                    assert A >= (1 + np.sqrt(mu / (4 * lam))) ** (2 * (T - 1)) / lam * (1 - 1e-12)
                    assert A >= (T + 1) ** 2 / (4 * lam) * (1 - 1e-12)
                    now = A * gap + B / 2 * off
                    assert now <= before * (1 + 1e-9) + 1e-14
                    tight = max(tight, 3 * now / before)
                before = A * gap + B / 2 * off
            T += 1
    assert tight > 1.0


@pytest.mark.slow
def test_where_clients_are_alike_it_needs_fewer_rounds_than_dane_and_accelerated_gradients():
    """Rounds to a certified gap of 1e-10; two a stage, three with line search. Where they differ, they do not help."""

    def rounds(method, problem):
        found = run(method, problem, rounds=1000, tol=1e-10)
        assert found.status.name == "CONVERGED"
        return found.rounds

    alike, unlike = quadratics(m=200, het=0.2)[0], quadratics()[0]
    found = {
        name: [rounds(method, problem) for problem in (alike, unlike)]
        for name, method in {
            "gradients": AcceleratedGradient(step_size="auto"),
            "dane": DANE(step_size="auto"),
            "accelerated": AcceleratedSDANE(step_size="auto"),
            "search": AcceleratedSDANE(step_size=1.0, line_search=True),
        }.items()
    }
    assert found == {"gradients": [73, 71], "dane": [64, 156], "accelerated": [40, 82], "search": [45, 108]}


def test_clients_that_solve_nearly_lead_dane_astray_longer():
    """At one step and accuracy the stabilised centre needs fewer stages, here half as many."""
    problem = quadratics(K=4, m=12, d=4, het=0.3, l2=0.05)[0]
    step = resolved(SDANE(step_size="auto"), problem)[0].step_size
    best = problem.solve()
    gaps = [
        run(cls(step_size=step, accuracy=0.9), problem, rounds=40, tol=0.0).trace.value[-1] - best.value
        for cls in (SDANE, DANE)
    ]
    assert gaps[0] < 0.1 * gaps[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: SDANE(step_size=0.0), "step_size must be"),
        (lambda p: SDANE(step_size=1.0, accuracy=1.0), "accuracy must lie strictly between"),
        (lambda p: run(SDANE(step_size=1.0), Problem(p.federation, Hinge(), 0.1), rounds=1), "loss with a curvature"),
        (lambda p: run(SDANE(step_size=1.0, accuracy=0.5), Problem(p.federation, Hinge(), 0.1), rounds=1), "smooth"),
        (lambda p: run(DANE(step_size="auto", accuracy=0.5), p, rounds=1), "solve nearly.*SDANE"),
        (
            lambda p: run(SDANE(step_size=1.0, line_search=True), MovingTarget(p, 0.1), rounds=1),
            "must stay where it is",
        ),
    ],
)
def test_settings_out_of_range_are_refused_in_words(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(clients()[1])


def test_one_client_is_a_proximal_point_method():
    rows, _ = clients()
    alone = Problem(Federation.from_clients(rows[2:]), clients()[1].loss, L2)
    grad, w = gradients(rows), np.zeros(4)
    for _ in range(3):
        w = minimised(lambda x, w=w: grad(2, x) + 0.5 * (x - w), lambda x: hessian(rows, 2, x) + 0.5 * np.eye(4), w)
    assert np.abs(run(SDANE(step_size=2.0), alone, rounds=6, tol=0.0).w - w).max() < 1e-12
