"""AFL and its optimistic variant against plain NumPy, against the exact solution, and against what they promise."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from test_agnosticfedavg import rows_of

from fedconvex import Federation, Logistic, Problem, Softmax, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.methods import (
    AFL,
    Decay,
    EntropicStep,
    FedSGD,
    KLBall,
    OptimisticAFL,
    Point,
    Polytope,
    Simplex,
    WeightedSampling,
)
from fedconvex.solvers.minimax.agnostic import solve_minimax


def make(seed, loss=None, l2=0.05, n=60, d=3, p=3, K=4, by_client=False):
    """p domains with optima of their own, their rows spread over K clients (or one domain a client)."""
    rng = np.random.default_rng(seed)
    loss = Logistic() if loss is None else loss
    X, domain = rng.normal(size=(n, d)), np.arange(n) % p
    z = np.einsum("ij,ij->i", X, rng.normal(size=(p, d))[domain])
    if isinstance(loss, Squared):
        y = z + rng.normal(size=n)
    elif isinstance(loss, Softmax):
        y = rng.integers(loss.n_classes, size=n).astype(float)
    else:
        y = np.where(z + rng.logistic(size=n) > 0, 1.0, -1.0)
    clients = domain if by_client else np.r_[np.arange(K), rng.integers(K, size=n - K)]
    return Problem(Federation.from_arrays(X, y, clients, domains=None if by_client else domain), loss, l2)


def plain(problem, w):
    """Values (p,) and gradients (p, *model) of the domains' objectives, from the rows."""
    fed = problem.federation
    domain = np.repeat(np.arange(fed.K), fed.sizes) if fed.domain is None else fed.domain
    losses, rows = rows_of(problem, w)
    p = domain.max() + 1
    F = np.array([losses[domain == q].mean() for q in range(p)]) + 0.5 * problem.l2 * np.sum(w**2)
    G = np.stack([rows[domain == q].mean(axis=0) for q in range(p)])
    return F, G + problem.l2 * w


def nearest(v):
    """Projection onto the simplex, by bisection of the shift."""
    lo, hi = v.min() - 1.0, v.max()
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        lo, hi = (mid, hi) if np.maximum(v - mid, 0).sum() > 1 else (lo, mid)
    return np.maximum(v - lo, 0)


LOSSES = [Squared(), Logistic(), Softmax(3)]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("entropic", [False, True])
@pytest.mark.parametrize("radius", [None, 0.2])
def test_full_gradients_against_the_paper(loss, entropic, radius):
    """Averages of the query points, steps at the same pair for both players; averages of t = 1, 2, ... are others."""
    problem = make(0, loss)
    method = AFL(step_size=0.2, domain_step_size=0.3, radius=radius, **({"ascent": EntropicStep()} if entropic else {}))
    w, lam, ws, lams = np.zeros(problem.model_shape), np.full(3, 1 / 3), [], []
    for t, state in iterate(method, problem, rounds=7):
        np.testing.assert_allclose(state.point[0], w, rtol=0, atol=1e-13)
        np.testing.assert_allclose(state.point_domain_weights[0], lam, rtol=0, atol=1e-13)
        if t:
            np.testing.assert_allclose(state.w[0], np.mean(ws, axis=0), rtol=0, atol=1e-13)
            np.testing.assert_allclose(state.domain_weights[0], np.mean(lams, axis=0), rtol=0, atol=1e-13)
            assert np.abs(state.w[0] - np.mean([*ws[1:], w], axis=0)).max() > 1e-4
        ws.append(w)
        lams.append(lam)
        F, G = plain(problem, w)
        w = w - 0.2 * np.tensordot(lam, G, 1)
        if radius is not None:
            w = w * min(1.0, radius / np.linalg.norm(w))
        lam = nearest(lam + 0.3 * F) if not entropic else lam * np.exp(0.3 * F) / np.sum(lam * np.exp(0.3 * F))


def test_optimistic_steps_against_the_paper():
    problem = make(1)
    w, lam, before = np.zeros(3), np.full(3, 1 / 3), None
    for _, state in iterate(OptimisticAFL(step_size=0.2, domain_step_size=0.3), problem, rounds=6):
        np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-13)
        np.testing.assert_allclose(state.domain_weights[0], lam, rtol=0, atol=1e-13)
        F, G = plain(problem, w)
        g = lam @ G
        last_g, last_F = before or (g, F)
        w, lam, before = w - 0.2 * (2 * g - last_g), nearest(lam + 0.3 * (2 * F - last_F)), (g, F)


@pytest.mark.parametrize("sampling", [{}, {"sampling": WeightedSampling(2)}], ids=["per domain", "weighted"])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.slow
def test_stochastic_gradients_are_unbiased(sampling, replacement, loss):
    """Means over 2500 keyed draws, in standard errors; the reference is the full gradient in plain NumPy."""
    problem, R = make(2, loss, n=24), 2500
    rng = np.random.default_rng(0)
    w, lam = rng.normal(size=problem.model_shape), np.array([0.6, 0.3, 0.1])
    method = AFL(step_size=0.1, domain_step_size=0.1, batch_size=2, replacement=replacement, **sampling)
    if not replacement and problem.federation.sizes.min() < 2:
        pytest.skip("a client of one row")
    state = method.init(problem, np.broadcast_to(w, (R, *w.shape)).copy())
    state = state._replace(point_domain_weights=np.tile(lam, (R, 1)))
    draws = Draws(key_from_seed(3), np.arange(R), 0)
    clients, _ = participants(method, problem, draws)
    reply, _ = method.local(problem, method.broadcast(state), clients, None, draws)
    F, G = plain(problem, w)
    g = reply.g.sum(axis=1).reshape(R, -1)
    losses = reply.losses.sum(axis=1) / state.counts
    for found, true in ((g, np.tensordot(lam, G, 1).ravel()), (losses, F - 0.5 * problem.l2 * np.sum(w**2))):
        error = found.std(axis=0) / np.sqrt(R)
        assert (error > 0).all()
        assert (np.abs(found.mean(axis=0) - true) <= 4.5 * error).all()


@pytest.mark.slow
def test_weighted_sampling_asks_one_domain_and_is_counted():
    """One domain a client: one client sends |W| numbers, one sends its p losses, both receive; nobody else sends."""
    problem = make(3, by_client=True)
    method = AFL(step_size=0.1, domain_step_size=0.1, sampling=WeightedSampling())
    R = 4000
    state = method.init(problem, np.zeros((R, 3)))._replace(point_domain_weights=np.tile([0.7, 0.2, 0.1], (R, 1)))
    draws = Draws(key_from_seed(0), np.arange(R), 5)
    clients, _ = participants(method, problem, draws)
    reply, _ = method.local(problem, method.broadcast(state), clients, None, draws)
    assert (reply.asked.sum(axis=1) == 1).all()
    share = reply.asked[..., 0].mean(axis=0)
    assert np.abs(share - [0.7, 0.2, 0.1]).max() <= 4.5 * np.sqrt(0.25 / R)
    assert np.abs(reply.asked[..., 1].mean(axis=0) - 1 / 3).max() <= 4.5 * np.sqrt(0.25 / R)
    assert not reply.g[~reply.asked[..., 0]].any()
    assert not reply.losses[~reply.asked[..., 1]].any()
    result = run(method, problem, rounds=50, tol=0)
    assert result.trace.floats_up[-1] == 50 * (3 + 3)
    assert result.trace.floats_down[-1] == 50 * 3 * (3 + 3)  # w and lambda to everybody, who draw with the shared key


def test_communication_is_counted_from_the_messages():
    problem = make(0, Softmax(3))
    for method in (AFL(step_size=0.1, domain_step_size=0.1), OptimisticAFL(step_size=0.1, domain_step_size=0.1)):
        trace = run(method, problem, rounds=3, tol=0).trace
        assert trace.floats_down.tolist() == [r * 4 * (9 + 3) for r in range(4)]
        assert trace.floats_up.tolist() == [4 * 3 + r * 4 * (9 + 3) for r in range(4)]  # at first, rows by domain


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.slow_unless(loss=LOSSES[0])
def test_a_single_point_is_weighted_fedsgd(loss):
    base = make(4, loss, by_client=True)
    mix = np.array([0.5, 0.2, 0.3])
    weighted = Problem(base.federation, loss, base.l2, weights=mix)
    for (_, a), (_, b) in zip(
        iterate(AFL(step_size=0.2, domain_step_size=1.0, uncertainty_set=Point(mix)), base, rounds=30),
        iterate(FedSGD(step_size=0.2), weighted, rounds=30),
        strict=True,
    ):
        np.testing.assert_allclose(a.point, b.w, rtol=0, atol=1e-14)
        np.testing.assert_array_equal(a.point_domain_weights, [mix])
    found = run(
        OptimisticAFL(step_size=0.1, domain_step_size=1.0, uncertainty_set=Point(mix)), base, rounds=2000, tol=1e-11
    )
    assert found.status.name == "CONVERGED"
    np.testing.assert_allclose(found.w, weighted.solve().w, atol=1e-4)


SETS = [Simplex(), Polytope([[1.0, 0.0, 0.0]], [0.2]), KLBall([0.5, 0.25, 0.25], 0.05), Point([0.2, 0.3, 0.5])]


@pytest.mark.parametrize("sets", SETS, ids=lambda s: type(s).__name__)
@pytest.mark.slow_unless(sets=[s for s in SETS if not isinstance(s, (KLBall, Polytope))])
def test_both_converge_to_the_exact_solution(sets):
    problem = make(5)
    best = solve_minimax(problem, uncertainty_set=sets)
    fast = run(
        OptimisticAFL(step_size=0.3, domain_step_size=0.5, uncertainty_set=sets),
        problem,
        rounds=900,
        tol=1e-9,
        record_every=30,
    )
    assert fast.status.name == "CONVERGED"
    np.testing.assert_allclose(fast.w, best.w, atol=1e-4)
    slow = run(
        AFL(step_size=0.3, domain_step_size=0.3, uncertainty_set=sets), problem, rounds=400, tol=0, record_every=100
    )
    assert slow.trace.gap[-1] <= 0.1 * slow.trace.gap[0]
    assert slow.trace.gap[-1] <= 5e-3
    assert abs(slow.trace.value[-1] - best.value - slow.trace.gap[-1]) <= 1e-9


@pytest.mark.parametrize("radius", [None, 0.3])
@pytest.mark.parametrize("sets", SETS[:3], ids=lambda s: type(s).__name__)
@pytest.mark.slow
def test_certified_gap_is_an_upper_bound_along_every_trace(sets, radius):
    """Against min max over the ball by cvxpy; values recomputed from the rows."""
    for seed in range(3):
        problem = make(seed, n=45)
        fed, w = problem.federation, cp.Variable(3)
        masks = [fed.domain == q for q in range(3)]
        F = cp.hstack([cp.sum(cp.logistic(cp.multiply(-fed.y[m], fed.X[m] @ w))) / m.sum() for m in masks])
        rows = [] if radius is None else [cp.norm(w) <= radius]
        if isinstance(sets, Polytope):  # lambda_1 <= 0.2: max of (0.2 F_1 + 0.8 F_k) and F_k, over the vertices
            worst = cp.maximum(F[1], F[2], 0.2 * F[0] + 0.8 * F[1], 0.2 * F[0] + 0.8 * F[2])
        elif isinstance(sets, KLBall):
            nu, t, e, G = cp.Variable(nonneg=True), cp.Variable(), cp.Variable(3), cp.Variable(3)
            rows += [G >= F, cp.ExpCone(G - t, nu * np.ones(3), e), np.array(sets.center) @ e <= nu]
            worst = nu * sets.radius + t
        else:
            worst = cp.max(F)
        task = cp.Problem(cp.Minimize(worst + problem.l2 / 2 * cp.sum_squares(w)), rows)
        least = task.solve(solver=cp.CLARABEL)
        for method in (
            AFL(
                step_size=0.5, domain_step_size=0.5, uncertainty_set=sets, batch_size=3, replacement=True, radius=radius
            ),
            OptimisticAFL(step_size=0.3, domain_step_size=0.5, uncertainty_set=sets, radius=radius),
        ):
            trace = run(method, problem, rounds=60, tol=0, seed=seed, record_every=5).trace
            states = [s for t, s in iterate(method, problem, rounds=60, seed=seed) if t % 5 == 0]
            for state, value, gap in zip(states, trace.value, trace.gap, strict=True):
                assert value == pytest.approx(float(sets.support(plain(problem, state.w[0])[0])[0]), rel=1e-12), seed
                assert gap >= value - least - 1e-7, seed
            assert trace.gap[-1] <= trace.value[-1] - least + (1e-6 if radius is None else 0.1), seed


@pytest.mark.slow
def test_trajectories_and_step_sizes_of_their_own():
    problem = make(6)
    both = run(
        AFL(step_size=[0.1, 0.3], domain_step_size=(0.2, 0.1), batch_size=2, replacement=True),
        problem,
        rounds=5,
        tol=0,
        trajectories=2,
    )
    one = run(AFL(step_size=0.1, domain_step_size=0.2, batch_size=2, replacement=True), problem, rounds=5, tol=0)
    np.testing.assert_array_equal(both.w[0], one.w)
    decay = run(
        AFL(step_size=Decay(0.3, 1.0, 0.5), domain_step_size=Decay(0.3, 1.0, 0.5)),
        problem,
        rounds=200,
        tol=0,
        record_every=100,
    )
    assert decay.gap < decay.trace.gap[0]


@pytest.mark.slow
@pytest.mark.compiled
def test_threads_give_the_same_bits():
    problem = make(7)
    method = AFL(step_size=0.3, domain_step_size=0.3, batch_size=2, replacement=True, sampling=WeightedSampling(2))
    a, b = (run(method, problem, rounds=8, tol=0, trajectories=3, threads=k) for k in (1, 3))
    np.testing.assert_array_equal(a.w, b.w)


def test_the_trace_shows_the_mixture():
    trace = run(AFL(step_size=0.1, domain_step_size=0.1), make(0), rounds=3, tol=0).trace
    assert trace.domain_weights.shape == (4, 1, 3)
    np.testing.assert_allclose(trace.domain_weights.sum(axis=2), 1.0, rtol=1e-14)
    assert make(0).by_domain.federation.K == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"step_size": -1.0}, "AFL.step_size"),
        ({"domain_step_size": 0.0}, "AFL.domain_step_size"),
        ({"radius": 0.0}, "radius"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 10_000}, "rows of client"),
        ({"uncertainty_set": Point([0.5, 0.5])}, "3 domains"),
        ({"uncertainty_set": Simplex}, "uncertainty_set"),
        ({"ascent": "eg"}, "ascent"),
        ({"sampling": WeightedSampling(0)}, "draws"),
        ({"sampling": None}, "sampling"),
        ({"step_size": (0.1, 0.2)}, "one number per trajectory"),
    ],
)
def test_refusals(settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        run(AFL(**({"step_size": 0.1, "domain_step_size": 0.1} | settings)), make(0), rounds=1)


def test_a_domain_without_rows_is_refused():
    fed = Federation(np.ones((2, 1)), np.ones(2), [0, 1, 2], domain=np.array([0, 0]), domain_labels=["a", "b"])
    for method in (AFL(step_size=0.1, domain_step_size=0.1), OptimisticAFL(step_size=0.1, domain_step_size=0.1)):
        with pytest.raises(ValueError, match="domain b must have at least one row"):
            run(method, Problem(fed, Squared()), rounds=1)
