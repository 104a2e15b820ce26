"""RADFed against plain NumPy, against FedAvg, and against its exact moments on quadratics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Problem, Softmax, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.methods import Decay, RADFed
from fedconvex.problems import MovingTarget


def uniform(problem):
    return Problem(problem.federation, problem.loss, problem.l2, "uniform")


def gradient(problem, w, k):
    """Gradient of f_k in plain NumPy."""
    fed = problem.federation
    X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
    X = X.toarray() if fed.is_sparse else X
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        S = np.exp(Z - Z.max(axis=1, keepdims=True))
        S = S / S.sum(axis=1, keepdims=True) - np.eye(w.shape[0])[y.astype(int)]
        return S.T @ X / len(y) + problem.l2 * w
    z = X @ w
    s = z - y if isinstance(problem.loss, Squared) else -y / (1.0 + np.exp(y * z))
    return X.T @ s / len(y) + problem.l2 * w


def dealt(method, problem, seed, t, R=1):
    return participants(method, problem, Draws(key_from_seed(seed), np.arange(R), t))[0]


# ---------------------------------------------------------------- reductions and the protocol


@pytest.mark.parametrize(
    "how", [{"local_steps": 3}, {"local_steps": 3, "batch_size": 2}, {"epochs": 2, "batch_size": 3}], ids=str
)
@pytest.mark.parametrize("models", [None, 2])
def test_one_redistribution_is_fedavg_with_equal_weights(problem, how, models):
    """The same clients are drawn, and draw the same batches; only the order of the sum differs."""
    a = run(RADFed(step_size=0.2, models=models, **how), uniform(problem), rounds=6, tol=0, seed=4, trajectories=2)
    fedavg = FedAvg(step_size=0.2, participation=1.0 if models is None else models, **how)
    b = run(fedavg, uniform(problem), rounds=6, tol=0, seed=4, trajectories=2)
    np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(a.trace.floats_down, b.trace.floats_down)
    np.testing.assert_array_equal(a.trace.floats_up, b.trace.floats_up)


@pytest.mark.parametrize("models", [None, 3])
def test_equals_plain_numpy(problem, models):
    """S = 3, two full steps of 0.2 then decaying; models move to the clients in the order in which these are drawn."""
    mine, S = uniform(problem), 3
    method = RADFed(step_size=Decay(1.0, 5.0), models=models, redistributions=S, local_steps=2)
    w = np.zeros((2, *mine.model_shape))
    bags = [[v] * (models or mine.federation.K) for v in w]
    for t, state in iterate(method, mine, rounds=7, seed=9, trajectories=2):
        np.testing.assert_allclose(state.w, w, rtol=0, atol=1e-14)
        np.testing.assert_allclose(state.models, bags, rtol=0, atol=1e-14)
        assert state.t == t
        for r, clients in enumerate(dealt(method, mine, 9, t, R=2)):
            for i, k in enumerate(clients):
                for s in range(2):
                    bags[r][i] = bags[r][i] - gradient(mine, bags[r][i], k) / (5.0 + 2 * t + s)
            if (t + 1) % S == 0:
                w[r] = np.mean(bags[r], axis=0)
                bags[r] = [w[r].copy() for _ in bags[r]]


@pytest.mark.compiled
@pytest.mark.parametrize(("K", "m"), [(4, 2), (4, 3), (4, 4), (9, 2)])
def test_models_are_dealt_uniformly(K, m):
    """Every ordered m-tuple of different clients is equally likely, independently from round to round."""
    problem, R, seed = Problem(Federation(np.ones((K, 1)), np.zeros(K), np.arange(K + 1)), Squared()), 20000, 1
    method = RADFed(step_size=0.1, models=m)
    tuples = list(itertools.permutations(range(K), m))
    first, second = (dealt(method, problem, seed, t, R) for t in (0, 1))
    code = {x: i for i, x in enumerate(tuples)}
    counts = np.bincount([code[tuple(row)] for row in first.tolist()], minlength=len(tuples))
    q = 1.0 / len(tuples)
    assert np.abs(counts - R * q).max() < 4.5 * np.sqrt(R * q * (1 - q)), f"seed {seed}"
    pairs = np.bincount(first[:, 0] * K + second[:, 0], minlength=K * K)
    assert np.abs(pairs - R / K**2).max() < 4.5 * np.sqrt(R / K**2), f"seed {seed}"


@pytest.mark.compiled
def test_threads_messages_and_clients_alone(problem):
    mine = uniform(problem)
    for models in (None, 2):
        method = RADFed(step_size=0.2, models=models, redistributions=3, local_steps=3, batch_size=2)
        one = run(method, mine, rounds=7, tol=0, seed=2, trajectories=3)
        for threads in (2, 3, 5):
            more = run(method, mine, rounds=7, tol=0, seed=2, trajectories=3, threads=threads)
            np.testing.assert_array_equal(one.state.models, more.state.models)
        m = models or mine.federation.K
        np.testing.assert_array_equal(one.trace.floats_down, m * mine.size * np.arange(8))
        np.testing.assert_array_equal(one.trace.floats_up, m * mine.size * np.arange(8))
        np.testing.assert_array_equal(one.trace.value[4], one.trace.value[3])  # measured is the last average
        draws, message = Draws(key_from_seed(2), np.arange(3), 7), method.broadcast(one.state)
        clients, _ = participants(method, mine, draws)
        among, _ = method.local(mine, message, clients, None, draws)
        own = type(message)(message.w[:1, 1:2])  # what the second client of trajectory 0 is sent
        alone = Problem(mine.federation.subset([int(clients[0, 1])]), mine.loss, mine.l2)
        first = draws._replace(trajectory=draws.trajectory[:1])
        answer, _ = method.local(alone, own, np.zeros((1, 1), np.int64), None, first)
        np.testing.assert_array_equal(answer.w[0, 0], among.w[0, 1])


def test_models_move_with_a_moving_target(linear):
    """Steps of 1e-12 leave the models where they are: in moving coordinates all of them drift alike."""
    moving = MovingTarget(uniform(linear), variance=1.0)
    method = RADFed(step_size=1e-12, redistributions=4)
    for _, state in iterate(method, moving, rounds=3, seed=1, trajectories=2):
        np.testing.assert_allclose(state.models, np.repeat(state.w[:, None], 5, axis=1), rtol=0, atol=1e-9)


# ---------------------------------------------------------------- exact moments


def quadratic(rng, K=4, n=5, d=2):
    pairs = [(rng.normal(size=(n, d)), rng.normal(size=n) + k) for k in range(K)]
    return Problem(Federation.from_clients(pairs), Squared(), 0.1)


def maps(problem, eta, E, B):
    """First and second moments of every client's local steps on z = (w, 1), batches of B drawn without replacement."""
    fed, d = problem.federation, problem.federation.d
    first, second = [], []
    for k in range(fed.K):
        X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
        step = []
        for batch in itertools.combinations(range(len(y)), B):
            A, b = X[list(batch)], y[list(batch)]
            M = np.eye(d + 1)
            M[:d, :d] -= eta * (A.T @ A / B + problem.l2 * np.eye(d))
            M[:d, d] = eta * A.T @ b / B
            step.append(M)
        first.append(np.linalg.matrix_power(np.mean(step, axis=0), E))
        second.append(np.linalg.matrix_power(np.mean([np.kron(M, M) for M in step], axis=0), E))
    return first, second


def moments(problem, eta, E, B, m, S):
    """Phibar^S, and F2 = (1/m) Fd^S + ((m-1)/m) Fo^S."""
    first, second = maps(problem, eta, E, B)
    K = len(first)
    together = sum(np.kron(first[i], first[j]) for i in range(K) for j in range(K) if i != j) / (K * (K - 1))
    power = np.linalg.matrix_power
    F2 = power(sum(second) / K, S) / m + (m - 1) / m * power(together, S)
    return power(sum(first) / K, S), F2


@pytest.mark.compiled
@pytest.mark.parametrize(("m", "S", "B"), [(2, 3, 2), (4, 3, 5), (3, 1, 1), (1, 4, 2)])
def test_moments_are_exact(rng, m, S, B):
    """Means and second moments of w after 1 and 3 aggregations within 4.5 standard errors (12 + 36 comparisons)."""
    problem, R, eta, E = quadratic(rng), 4000, 0.1, 2
    start = rng.normal(size=2) * 3
    method = RADFed(step_size=eta, models=m, redistributions=S, local_steps=E, batch_size=B)
    F1, F2 = moments(problem, eta, E, B, m, S)
    z = np.append(start, 1.0)
    Z = np.kron(z, z)
    for t, state in iterate(method, uniform(problem), rounds=3 * S, seed=7, trajectories=R, start=start):
        if t == 0 or t % S != 0:
            continue
        z, Z = F1 @ z, F2 @ Z
        w = np.column_stack([state.w, np.ones(R)])
        products = np.einsum("ri,rj->rij", w, w).reshape(R, -1)
        for sample, exact in ((w, z), (products, Z)):
            error = sample.std(axis=0) / np.sqrt(R) + 1e-12 * (1 + np.abs(exact))
            assert np.abs((sample.mean(axis=0) - exact) / error).max() < 4.5, f"run seed 7, round {t}"


@pytest.mark.compiled
def test_mean_fixed_point_is_that_of_uniform_fedavg(rng):
    """From its stationary start the mean stays; F1 z = z has the solution (sum C_k)^-1 sum C_k w_k*, whatever S is."""
    problem, eta, E = quadratic(rng), 0.15, 3
    fed, A, b = problem.federation, np.zeros((2, 2)), np.zeros(2)
    for k in range(fed.K):
        X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
        H = X.T @ X / len(y) + problem.l2 * np.eye(2)
        C = np.eye(2) - np.linalg.matrix_power(np.eye(2) - eta * H, E)
        A, b = A + C, b + C @ np.linalg.solve(H, X.T @ y / len(y))
    fixed = np.linalg.solve(A, b)
    fedavg = run(FedAvg(step_size=eta, local_steps=E), uniform(problem), rounds=800, tol=0, record_every=800).w
    np.testing.assert_allclose(fedavg, fixed, rtol=0, atol=1e-12)
    assert np.linalg.norm(fixed - uniform(problem).solve().w) > 1e-3  # biased
    R, S = 1500, 4
    F1, _ = moments(problem, eta, E, 5, 2, S)
    np.testing.assert_allclose(F1 @ np.append(fixed, 1.0), np.append(fixed, 1.0), rtol=0, atol=1e-13)
    method = RADFed(step_size=eta, models=2, redistributions=S, local_steps=E)
    result = run(
        method, uniform(problem), rounds=12 * S, seed=3, trajectories=R, start=fixed, tol=0, record_every=12 * S
    )
    error = result.w.std(axis=0) / np.sqrt(R)
    assert np.abs((result.w.mean(axis=0) - fixed) / error).max() < 4.5, "run seed 3"
    assert error.min() > 1e-4


# ---------------------------------------------------------------- bad input


def test_unequal_weights_are_pointed_out(linear, recwarn):
    with pytest.warns(UserWarning, match=r"weights='uniform'"):
        run(RADFed(step_size=0.1), linear, rounds=1)
    recwarn.clear()
    run(RADFed(step_size=0.1), uniform(linear), rounds=1)
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"step_size": 0.0}, "step_size"),
        ({"models": 0}, "RADFed.models"),
        ({"models": 0.5}, "RADFed.models"),
        ({"redistributions": 0}, "RADFed.redistributions"),
        ({"redistributions": None}, "RADFed.redistributions"),
        ({"local_steps": 2, "epochs": 1}, "both"),
        ({"batch_size": -1}, "RADFed.batch_size"),
        ({"replacement": 1}, "RADFed.replacement"),
    ],
    ids=str,
)
def test_bad_settings(how, match):
    with pytest.raises((ValueError, TypeError), match=match):
        RADFed(**({"step_size": 0.1} | how))


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"models": 6}, "number of clients 5"),
        ({"batch_size": 5}, "rows of client 1"),
        ({"step_size": (0.1, 0.2)}, "one number per trajectory"),
        ({"step_size": Decay(0.1), "epochs": 1, "batch_size": 2}, "by_round"),
    ],
    ids=str,
)
def test_bad_settings_for_the_problem(linear, how, match):
    with pytest.raises(ValueError, match=match):
        run(RADFed(**({"step_size": 0.1} | how)), uniform(linear), rounds=1)
