"""SVRG and FSVRG against plain NumPy, against each other, and against the theorem of Johnson and Zhang."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Logistic, Problem, Softmax, Squared, iterate, run
from fedconvex.draws import BATCHES, Draws, key_from_seed, stream
from fedconvex.driver import participants
from fedconvex.kernels import batches
from fedconvex.methods import FSVRG, SGD, SVRG, Decay
from fedconvex.methods.fsvrg import frequencies


def loss_gradient(problem, w, rows):
    """Mean gradient of the given rows without the ridge, in plain NumPy."""
    fed = problem.federation
    X, y = fed.X[rows], fed.y[rows]
    X = X.toarray() if fed.is_sparse else X
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        S = np.exp(Z - Z.max(axis=1, keepdims=True))
        S = S / S.sum(axis=1, keepdims=True) - np.eye(w.shape[0])[y.astype(int)]
        return S.T @ X / len(y)
    z = X @ w
    s = z - y if isinstance(problem.loss, Squared) else -y / (1.0 + np.exp(y * z))
    return X.T @ s / len(y)


def drawn(first, n, id_, passes, block, replacement, seed, t, r=0):
    """Rows of a client in the order in which they are drawn."""
    pool, rows = np.empty(n, np.int64), np.empty(passes * block, np.int64)
    state = np.uint64(stream(key_from_seed(seed), r, t, id_, BATCHES))
    batches.draw_rows(state, first, n, passes, block, replacement, pool, rows)
    return rows


def weighted(problem, weights):
    return Problem(problem.federation, problem.loss, problem.l2, weights)


# ---------------------------------------------------------------- SVRG


def plain_svrg(method, problem, stages, seed, r=0):
    """Johnson and Zhang (2013), Figure 1, option I; every inner iterate of every stage."""
    n, B, m, w = problem.federation.n, method.batch_size, method.inner_steps, np.zeros(problem.model_shape)
    out = []
    for t in range(stages):
        rows = drawn(0, n, problem.pooled.federation.ids[0], m, B, method.replacement, seed, t, r).reshape(m, B)
        mu = loss_gradient(problem, w, np.arange(n)) + problem.l2 * w
        path = [w]
        for b in rows:
            v = path[-1]
            now, then = (loss_gradient(problem, u, b) + problem.l2 * u for u in (v, w))
            path.append(v - method.step_size * (now - then + mu))
        w = path[-1]
        out.append(path)
    return out


@pytest.mark.parametrize("how", [{}, {"batch_size": 3}, {"batch_size": 4, "replacement": True}], ids=str)
def test_svrg_equals_plain_numpy(problem, how):
    method = SVRG(step_size=0.1, inner_steps=25, option=1, **how)
    states = [state for _, state in iterate(method, problem, rounds=4, seed=8, trajectories=2)]
    for r in range(2):
        for t, path in enumerate(plain_svrg(method, problem, 4, seed=8, r=r)):
            np.testing.assert_allclose(states[t + 1].w[r], path[-1], rtol=0, atol=1e-13)


def test_option_two_takes_an_iterate_of_option_one(problem):
    """The first stages of both run through the same iterates; option II takes one of the first m of them."""
    method = SVRG(step_size=0.1, inner_steps=6)
    _, state = list(iterate(method, problem, rounds=1, seed=8, trajectories=40))[1]
    taken = set()
    for r in range(40):
        path = plain_svrg(method, problem, 1, seed=8, r=r)[0]
        distance = [np.abs(state.w[r] - w).max() for w in path]
        taken.add(int(np.argmin(distance)))
        assert min(distance) < 1e-13
    assert taken == set(range(6))  # w_0 may be taken, w_m never


@pytest.mark.slow
def test_option_two_is_uniform():
    """One row: every inner step is the gradient step w <- w/2, so that w~ = 2^-t tells t; R = 6000, m = 5."""
    problem, R, m = Problem(Federation(np.ones((1, 1)), np.zeros(1), [0, 1]), Squared()), 6000, 5
    states = list(iterate(SVRG(step_size=0.5, inner_steps=m), problem, rounds=2, trajectories=R, start=np.ones(1)))
    first = -np.log2(states[1][1].w[:, 0])
    second = -np.log2(states[2][1].w[:, 0]) - first
    assert np.all(first == np.round(first))
    for t in (first, second):
        counts = np.bincount(t.astype(int), minlength=m)
        assert counts.size == m
        assert np.abs(counts - R / m).max() < 4.5 * np.sqrt(R / m * (1 - 1 / m)), "run seed 0"
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(R)


def test_all_rows_make_gradient_descent(problem):
    n, w = problem.federation.n, np.zeros(problem.model_shape)
    found = run(SVRG(step_size=0.3, inner_steps=4, batch_size=n, option=1), problem, rounds=3, tol=0).w
    for _ in range(12):
        w = w - 0.3 * problem.gradient(w)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-13)


def test_the_minimiser_is_left_alone(problem):
    """There the correction cancels the noise of the step; without it (SGD) the same steps move away."""
    best = problem.solve().w
    for method in (
        SVRG(step_size=0.2, inner_steps=200, option=1),
        SVRG(step_size=0.2, inner_steps=200, batch_size=2),
        FSVRG(step_size=0.5),
        FSVRG(step_size=0.5, scaling=False),
        FSVRG(step_size=0.2, scaling=False, local_steps=50),
    ):
        state = list(iterate(method, problem, rounds=4, start=best))[-1][1]
        np.testing.assert_allclose(state.w[0], best, rtol=0, atol=1e-13)
    moved = run(SGD(step_size=0.2, steps=200), problem, rounds=4, tol=0, start=best).w
    assert np.linalg.norm(moved - best) > 1e-2


@pytest.mark.slow_unless(problem="linear")
def test_the_noise_of_a_stage_vanishes_with_the_distance(problem, rng):
    """It is proportional to the distance from the minimiser; and the first step of a stage has none at all."""
    best, R, direction = problem.solve().w, 400, rng.normal(size=problem.model_shape)
    spread = []
    for scale in (1e-1, 1e-2, 1e-3):
        start = best + scale * direction
        method = SVRG(step_size=0.1, inner_steps=5, option=1)
        w = list(iterate(method, problem, rounds=1, trajectories=R, start=start))[1][1].w
        spread.append(np.sqrt(np.mean((w - w.mean(axis=0)) ** 2)))
    assert spread[1] < 0.2 * spread[0]
    assert spread[2] < 0.2 * spread[1]
    one = list(iterate(SVRG(step_size=0.1, inner_steps=1, option=1), problem, rounds=1, trajectories=9, start=start))
    expected = np.tile(start - 0.1 * problem.gradient(start), (9, *[1] * start.ndim))
    np.testing.assert_allclose(one[1][1].w, expected, rtol=0, atol=1e-15)


@pytest.mark.compiled
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.slow
def test_contraction_of_johnson_and_zhang(rng, loss):
    """Option II: mean gap after s stages <= alpha^s (P(w~_0) - P*), alpha with exact L and gamma."""
    n, d, l2, R, stages, m, seed = 20, 2, 0.2, 300, 3, 400, 5
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ np.array([2.0, -1.0]) + rng.normal(size=n)
    squared = isinstance(loss, Squared)
    problem = Problem(Federation(X, y if squared else np.sign(y), [0, n]), loss, l2)
    L = (1.0 if squared else 0.25) + l2  # rows of norm one
    gamma = l2 + (np.linalg.eigvalsh(X.T @ X / n)[0] if squared else 0.0)
    eta = 0.1 / L
    alpha = 1.0 / (gamma * eta * (1.0 - 2.0 * L * eta) * m) + 2.0 * L * eta / (1.0 - 2.0 * L * eta)
    assert alpha < 0.7
    best, start = problem.solve().value, np.array([4.0, 4.0])
    first = problem.value(start) - best
    method, how = SVRG(step_size=eta, inner_steps=m), {"seed": seed, "trajectories": R, "start": start}
    for s, state in iterate(method, problem, rounds=stages, **how):
        gaps = problem.value(state.w) - best
        assert gaps.mean() <= alpha**s * first * (1 + 1e-12), f"run seed {seed}"
        if s > 0:
            error = gaps.std() / np.sqrt(R)
            assert error < 0.5 * alpha**s * first  # so that the mean is worth comparing


def test_svrg_converges_linearly_to_rounding(problem):
    n = problem.federation.n
    result = run(SVRG(step_size=0.1, inner_steps=4 * n, option=1), problem, rounds=40, tol=0)
    assert result.gap < 1e-12
    assert np.all(result.trace.gap[8] < 1e-2 * result.trace.gap[4])


# ---------------------------------------------------------------- FSVRG


def sparse_clients(rng, loss):
    """Three clients of 5, 8 and 3 rows and six features: one is dense, one is at client 1 only, one nowhere."""
    X = rng.normal(size=(16, 6)) * (rng.random((16, 6)) < 0.5)
    X[:, 0] = 1.0
    X[:5, 3] = X[13:, 3] = 0.0
    X[:, 4] = 0.0
    y = X @ rng.normal(size=6) + rng.normal(size=16)
    y = y if isinstance(loss, Squared) else np.sign(y) if isinstance(loss, Logistic) else np.digitize(y, [-1, 1])
    return X, y, [0, 5, 13, 16]


def plain_fsvrg(method, problem, stages, seed, r=0):
    """Konecny et al. (2016), Algorithms 3 and 4, with S_k on the loss gradients; models after every stage."""
    fed, p, w = problem.federation, problem.weights, np.zeros(problem.model_shape)
    X = fed.X.toarray() if fed.is_sparse else fed.X
    blocks = [np.arange(fed.ptr[k], fed.ptr[k + 1]) for k in range(fed.K)]
    phi_k = np.array([np.mean(X[b] != 0.0, axis=0) for b in blocks])
    phi, omega = p @ phi_k, np.sum(phi_k > 0.0, axis=0)
    A = np.array([fed.K / o if o else 1.0 for o in omega]) if method.scaling else 1.0
    out = [w]
    for t in range(stages):
        g = sum(q * loss_gradient(problem, w, b) for q, b in zip(p, blocks, strict=True)) + problem.l2 * w
        total = 0.0
        for k, b in enumerate(blocks):
            S = np.array([f / fk if fk else 1.0 for f, fk in zip(phi, phi_k[k], strict=True)])
            S, n, v = S if method.scaling else 1.0, len(b), w
            if method.local_steps is None:
                rows, h, q = drawn(b[0], n, fed.ids[k], 1, n, False, seed, t, r), method.step_size / n, p[k]
                assert sorted(rows) == b.tolist()
            else:
                rows = drawn(b[0], n, fed.ids[k], method.local_steps, 1, True, seed, t, r)
                h, q = method.step_size, 1.0 / fed.K
            for i in rows:
                now, then = (loss_gradient(problem, u, [i]) for u in (v, w))
                v = v - h * (S * (now - then) + problem.l2 * (v - w) + g)
            total = total + q * (v - w)
        w = w + A * total
        out.append(w)
    return out


KINDS = {
    "scaled": FSVRG(step_size=0.4),
    "unscaled": FSVRG(step_size=0.4, scaling=False),
    "naive": FSVRG(step_size=0.05, scaling=False, local_steps=7),
    "naive scaled": FSVRG(step_size=0.05, local_steps=7),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("weights", [None, "uniform"])
def test_fsvrg_equals_plain_numpy(problem, name, weights):
    mine = weighted(problem, weights)
    states = [state for _, state in iterate(KINDS[name], mine, rounds=8, seed=3, trajectories=2)]
    for r in range(2):
        for s, w in enumerate(plain_fsvrg(KINDS[name], mine, 4, seed=3, r=r)):
            np.testing.assert_allclose(states[2 * s].w[r], w, rtol=0, atol=1e-13)
            if s < 4:
                np.testing.assert_array_equal(states[2 * s + 1].w, states[2 * s].w)  # the first round moves nothing


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=repr)
def test_missing_features(rng, name, loss):
    """Dense and CSR rows agree with plain NumPy where features are missing at clients, or everywhere."""
    X, y, ptr = sparse_clients(rng, loss)
    for rows in (X, sp.csr_array(X)):
        problem = Problem(Federation(rows, y, ptr), loss, 0.1)
        found = list(iterate(KINDS[name], problem, rounds=6, seed=3))[-1][1].w[0]
        np.testing.assert_allclose(found, plain_fsvrg(KINDS[name], problem, 3, seed=3)[-1], rtol=0, atol=1e-13)
    stored = sp.csr_array(X + 1e-300)  # explicit zeros are no features
    stored.data[stored.data == 1e-300] = 0.0
    kept = Problem(Federation(stored, y, ptr), loss, 0.1)
    found_zero = list(iterate(KINDS[name], kept, rounds=6, seed=3))[-1][1].w[0]
    np.testing.assert_allclose(found_zero, found, rtol=0, atol=1e-13)


def test_scaling_makes_client_gradients_global():
    """One feature a row, labels that depend on the feature only: S_k grad f_k is the gradient of F on k's features."""
    features = np.array([0, 0, 0, 1, 1, 2, 0, 1, 2, 2, 2, 2])
    targets, w = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.7, -1.0])
    problem = Problem(Federation(np.eye(3)[features], targets[features], [0, 5, 12]), Squared())
    fed = problem.federation
    phi_k = frequencies(fed, np.arange(2))
    np.testing.assert_array_equal(phi_k, [[3 / 5, 2 / 5, 0.0], [1 / 7, 1 / 7, 5 / 7]])
    phi = problem.weights @ phi_k
    for k in range(2):
        here = phi_k[k] > 0
        scaled = phi[here] / phi_k[k, here] * problem.client_gradients(w)[k][here]
        np.testing.assert_allclose(scaled, problem.gradient(w)[here], rtol=1e-14)
    states = list(iterate(FSVRG(step_size=1.0), problem, rounds=1))
    np.testing.assert_allclose(states[1][1].frequency[0], phi, rtol=1e-15)
    np.testing.assert_array_equal(states[1][1].spread[0], [1.0, 1.0, 2.0])  # K/omega


def test_one_client_makes_svrg(problem):
    """Naive FSVRG of one client is SVRG with option I: the same rows, the same steps, two rounds for one."""
    alone = problem.pooled
    n = alone.federation.n
    for R in (1, 3):
        how = {"seed": 4, "tol": 0, "trajectories": R}
        a = run(FSVRG(step_size=0.1, scaling=False, local_steps=n), alone, rounds=10, **how)
        b = run(SVRG(step_size=0.1, inner_steps=n, option=1), problem, rounds=5, **how)
        np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-14)
        scaled = run(FSVRG(step_size=0.1, local_steps=n), alone, rounds=10, **how)
        np.testing.assert_allclose(scaled.w, a.w, rtol=0, atol=1e-14)  # S = A = I for one client


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.slow
def test_fsvrg_converges_to_the_minimiser_of_different_clients(problem, name):
    for weights in (None, "uniform"):
        result = run(KINDS[name], weighted(problem, weights), rounds=600, tol=1e-10, seed=1)
        assert result.status.name == "CONVERGED"


def test_messages_are_counted(problem):
    """Down: w; then g, and phi once. Up: gradients, and phi_k once; then w_k."""
    K, p, d = problem.federation.K, problem.size, problem.federation.d
    trace = run(FSVRG(step_size=0.1), problem, rounds=4, tol=0, trajectories=2).trace
    np.testing.assert_array_equal(np.diff(trace.floats_down), K * np.array([p, p + d, p, p]))
    np.testing.assert_array_equal(np.diff(trace.floats_up), K * np.array([p + d, p, p, p]))
    trace = run(FSVRG(step_size=0.1, scaling=False), problem, rounds=4, tol=0).trace
    np.testing.assert_array_equal(np.diff(trace.floats_down), [K * p] * 4)
    np.testing.assert_array_equal(np.diff(trace.floats_up), [K * p] * 4)
    trace = run(SVRG(step_size=0.1, inner_steps=3), problem, rounds=2, tol=0).trace
    assert trace.floats_down[-1] == trace.floats_up[-1] == 0


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["scaled", *(pytest.param(n, marks=pytest.mark.slow) for n in KINDS if n != "scaled")])
@pytest.mark.slow
def test_threads_trajectories_and_clients_alone(problem, name):
    method = KINDS[name]
    one = run(method, problem, rounds=6, tol=0, seed=2, trajectories=3)
    for threads in (2, 3, 7):
        more = run(method, problem, rounds=6, tol=0, seed=2, trajectories=3, threads=threads)
        np.testing.assert_array_equal(one.w, more.w)
    np.testing.assert_array_equal(one.w[0], run(method, problem, rounds=6, tol=0, seed=2).w)
    everybody = np.tile(np.arange(problem.federation.K), (3, 1))
    alone = Problem(problem.federation.subset([2]), problem.loss, problem.l2)
    state = method.init(problem, np.full((3, *problem.model_shape), 0.3))
    for t in range(4):
        draws, message = Draws(key_from_seed(2), np.arange(3), t), method.broadcast(state)
        clients, weights = participants(method, problem, draws)
        reply, _ = method.local(problem, message, everybody, None, draws)
        answer, _ = method.local(alone, message, np.zeros((3, 1), np.int64), None, draws)
        for mine, theirs in zip(answer, reply, strict=True):
            np.testing.assert_array_equal(mine[:, 0], theirs[:, 2])
        state = method.aggregate(state, clients, weights, reply)


def test_per_trajectory_steps(problem):
    for make in (lambda h: FSVRG(step_size=h), lambda h: SVRG(step_size=h, inner_steps=9)):
        together = run(make((0.1, 0.2)), problem, rounds=4, tol=0, trajectories=2).w
        apart = run(make(0.2), problem, rounds=4, tol=0, trajectories=2).w
        np.testing.assert_array_equal(together[1], apart[1])


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SVRG(step_size=0.0, inner_steps=1), "SVRG.step_size"),
        (lambda: SVRG(step_size=Decay(1.0), inner_steps=1), "SVRG.step_size must be constant"),
        (lambda: SVRG(step_size=0.1, inner_steps=0), "SVRG.inner_steps"),
        (lambda: SVRG(step_size=0.1, inner_steps=1, batch_size=1.5), "SVRG.batch_size"),
        (lambda: SVRG(step_size=0.1, inner_steps=1, option=3), "SVRG.option"),
        (lambda: FSVRG(step_size=-1.0), "FSVRG.step_size"),
        (lambda: FSVRG(step_size=Decay(1.0)), "FSVRG.step_size must be constant"),
        (lambda: FSVRG(step_size=0.1, scaling=None), "FSVRG.scaling"),
        (lambda: FSVRG(step_size=0.1, local_steps=0), "FSVRG.local_steps"),
    ],
)
def test_bad_settings(make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make()


def test_bad_settings_for_the_problem(linear):
    with pytest.raises(ValueError, match="must be n_k/n"):
        run(SVRG(step_size=0.1, inner_steps=2), weighted(linear, "uniform"), rounds=1)
    with pytest.raises(ValueError, match="number of rows 31"):
        run(SVRG(step_size=0.1, inner_steps=2, batch_size=32), linear, rounds=1)
    for method in (SVRG(step_size=(0.1, 0.2), inner_steps=2), FSVRG(step_size=(0.1, 0.2))):
        with pytest.raises(ValueError, match="one number per trajectory"):
            run(method, linear, rounds=1)
