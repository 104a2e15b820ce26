"""FedSAM against plain NumPy, against FedAvg, and against what is known of SAM on quadratics."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, Squared, iterate, run
from fedconvex.draws import BATCHES, Draws, key_from_seed, stream
from fedconvex.kernels import batches
from fedconvex.methods import Decay, FedSAM, ServerAdam, ServerSGD


def gradient(problem, w, rows):
    """Mean gradient of the given rows, ridge included, in plain NumPy."""
    fed = problem.federation
    X, y = fed.X[rows], fed.y[rows]
    X = X.toarray() if fed.is_sparse else X
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        S = np.exp(Z - Z.max(axis=1, keepdims=True))
        S = S / S.sum(axis=1, keepdims=True) - np.eye(w.shape[0])[y.astype(int)]
        return S.T @ X / len(y) + problem.l2 * w
    z = X @ w
    s = z - y if isinstance(problem.loss, Squared) else -y / (1.0 + np.exp(y * z))
    return X.T @ s / len(y) + problem.l2 * w


def drawn(fed, k, plan, replacement, seed, t, r=0):
    """The batches of client k: the plan is passes, block and batch."""
    passes, block, batch = plan
    first, n = int(fed.ptr[k]), int(fed.sizes[k])
    if batch == n and not replacement:
        return [np.arange(first, first + n)] * passes
    state = np.uint64(stream(key_from_seed(seed), r, t, fed.ids[k], BATCHES))
    pool, rows = np.empty(n, np.int64), np.empty(passes * block, np.int64)
    batches.draw_rows(state, first, n, passes, block, replacement, pool, rows)
    return [b for e in range(passes) for b in np.split(rows[e * block : (e + 1) * block], range(batch, block, batch))]


def at(x, t, steps):
    """A constant, or a schedule's value in round t after so many local steps."""
    return x.scale / (x.shift + (t if x.by_round else steps)) ** x.power if isinstance(x, Decay) else x


def plain_fedsam(method, problem, rounds, seed, r=0):
    """Qu et al. (2022), Algorithm 1, with everybody and plain averaging; models after every round."""
    fed, w = problem.federation, np.zeros(problem.model_shape)
    models = [w]
    for t in range(rounds):
        ends = []
        for k, n in enumerate(fed.sizes.tolist()):
            plan = method.plan(fed.sizes, np.arange(fed.K))[k]
            v, batches = w, drawn(fed, k, plan, method.replacement, seed, t, r)
            for s, b in enumerate(batches):
                assert len(b) <= n
                eta, rho = (at(x, t, t * len(batches) + s) for x in (method.step_size, method.rho))
                g = gradient(problem, v, b)
                u = v + rho * g / np.linalg.norm(g)
                v = v - eta * gradient(problem, u, b)
            ends.append(v)
        w = sum(p * v for p, v in zip(problem.weights, ends, strict=True))
        models.append(w)
    return models


PLAIN = {
    "full": FedSAM(step_size=0.2, rho=0.3, local_steps=3),
    "batches": FedSAM(step_size=0.2, rho=0.3, local_steps=4, batch_size=2),
    "replacement": FedSAM(step_size=0.2, rho=0.3, local_steps=4, batch_size=3, replacement=True),
    "epochs": FedSAM(step_size=0.2, rho=0.3, epochs=2, batch_size=3),
    "decays": FedSAM(step_size=Decay(1.0, 4.0), rho=Decay(0.5, 2.0, 0.5), local_steps=2, batch_size=1),
    "by round": FedSAM(step_size=0.1, rho=Decay(0.5, 2.0, 0.5, by_round=True), epochs=1, batch_size=2),
}


@pytest.mark.parametrize("name", PLAIN)
def test_equals_plain_numpy(problem, name):
    states = [state for _, state in iterate(PLAIN[name], problem, rounds=4, seed=5, trajectories=2)]
    for r in range(2):
        for state, expected in zip(states, plain_fedsam(PLAIN[name], problem, 4, seed=5, r=r), strict=True):
            np.testing.assert_allclose(state.w[r], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "how",
    [
        {"local_steps": 3},
        {"local_steps": 3, "batch_size": 2, "participation": 2},
        {"epochs": 2, "batch_size": 3, "replacement": True},
        {"local_steps": 2, "batch_size": 1, "server": ServerAdam()},
        {"epochs": 1, "server": ServerSGD(0.7, momentum=0.5)},
        {"local_steps": 2, "batch_size": 2, "shadow": True},
    ],
    ids=str,
)
def test_without_perturbation_it_is_fedavg(problem, how):
    """Same draws, same steps; sums are formed in another order, hence not bit by bit."""
    for eta in (0.2, Decay(0.5, 1.0, 0.5, by_round=True)):
        a = run(FedSAM(step_size=eta, rho=0.0, **how), problem, rounds=5, tol=0, seed=3, trajectories=2)
        b = run(FedAvg(step_size=eta, **how), problem, rounds=5, tol=0, seed=3, trajectories=2)
        np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-14)
        assert set(a.trace) == set(b.trace)
        assert (a.trace.floats_down[-1], a.trace.floats_up[-1]) == (b.trace.floats_down[-1], b.trace.floats_up[-1])


def line(lam):
    """F(w) = lam w^2/2 on R."""
    return Problem(Federation(np.array([[math.sqrt(lam)]]), np.zeros(1), [0, 1]), Squared())


@pytest.mark.parametrize(("eta", "lam", "rho"), [(0.1, 3.0, 0.2), (0.5, 1.0, 1.0), (1.5, 1.0, 0.1)])
def test_two_cycle(eta, lam, rho):
    """w - eta lam (w + rho) = -w at |w| = eta lam rho/(2 - eta lam), which attracts since |1 - eta lam| < 1."""
    radius = eta * lam * rho / (2.0 - eta * lam)
    method = FedSAM(step_size=eta, rho=rho)
    for start in (radius, 1.1, -3.1):  # not on the way to 0, which is a fixed point
        states = [state.w[0, 0] for _, state in iterate(method, line(lam), rounds=600, start=np.array([start]))]
        np.testing.assert_allclose(np.abs(states[-2:]), radius, rtol=1e-13)
        assert states[-1] * states[-2] < 0.0
    np.testing.assert_allclose(
        [state.w[0, 0] for _, state in iterate(method, line(lam), rounds=4, start=np.array([radius]))],
        [radius, -radius, radius, -radius, radius],
        rtol=1e-13,
    )


def test_error_of_the_sam_gradient_is_at_most_L_rho(problem, rng):
    """L of client k: largest eigenvalue of X'X/n times 1, 1/4 or 1/2, plus l2; attained on the line."""
    bend = {Squared: 1.0, Logistic: 0.25, Softmax: 0.5}[type(problem.loss)]
    for k in range(problem.federation.K):
        alone, eta, rho = problem.client(k), 0.7, 0.4
        X = alone.federation.X.toarray() if alone.federation.is_sparse else alone.federation.X
        L = bend * np.linalg.eigvalsh(X.T @ X / len(X))[-1] + problem.l2
        starts = rng.normal(size=(20, *problem.model_shape))
        starts[::2] *= 0.01
        after = list(iterate(FedSAM(step_size=eta, rho=rho), alone, rounds=1, trajectories=20, start=starts))[1][1].w
        error = (starts - after) / eta - alone.gradient(starts)
        assert np.linalg.norm(error.reshape(20, -1), axis=1).max() <= L * rho * (1 + 1e-9)
        assert np.abs(error).max() > 1e-3 * L * rho  # there is an error to speak of
    w = run(FedSAM(step_size=1.0, rho=0.5), line(3.0), rounds=1, start=np.array([2.0]), tol=0).w[0]
    assert 2.0 - w - 3.0 * 2.0 == pytest.approx(3.0 * 0.5, rel=1e-14)


@pytest.mark.compiled
@pytest.mark.slow
def test_decaying_rho_converges_and_constant_rho_does_not(problem):
    decaying = run(FedSAM(step_size=0.3, rho=Decay(1.0, 2.0)), problem, rounds=1500, tol=0, record_every=1500)
    constant = run(FedSAM(step_size=0.3, rho=0.5), problem, rounds=1500, tol=0, record_every=1500)
    assert decaying.gap < 1e-6
    assert constant.gap > 1e-4


def test_zero_and_tiny_gradients():
    """No perturbation where the gradient is zero; elsewhere its length is rho however small the gradient is."""
    method = FedSAM(step_size=0.5, rho=1.0)
    assert [state.w[0, 0] for _, state in iterate(method, line(1.0), rounds=3)] == [0.0] * 4
    for tiny in (1e-150, 1e-160, -1e-200, 5e-324, 1e-300):
        after = list(iterate(method, line(1.0), rounds=1, start=np.array([tiny])))[1][1]
        assert after.w[0, 0] == pytest.approx(-0.5 * math.copysign(1.0, tiny), rel=1e-15)
    far = list(iterate(method, line(1.0), rounds=1, start=np.array([1e200])))[1][1]
    assert far.w[0, 0] == 0.5e200
    with pytest.warns(match="diverged"):
        lost = run(FedSAM(step_size=5.0, rho=1.0), line(1.0), rounds=2000, tol=0, start=np.ones(1))
    assert lost.status.name == "DIVERGED"


@pytest.mark.compiled
@pytest.mark.slow
def test_per_trajectory_settings_and_threads(problem):
    rhos, etas = (0.0, 0.1, 0.4), (0.1, 0.2, 0.3)
    method = FedSAM(step_size=etas, rho=rhos, local_steps=3, batch_size=2)
    together = run(method, problem, rounds=4, tol=0, seed=2, trajectories=3)
    for threads in (2, 3, 7):
        again = run(method, problem, rounds=4, tol=0, seed=2, trajectories=3, threads=threads)
        np.testing.assert_array_equal(together.w, again.w)
    for r in range(3):
        w = plain_fedsam(dataclasses.replace(method, step_size=etas[r], rho=rhos[r] or 1e-300), problem, 4, 2, r)[-1]
        np.testing.assert_allclose(together.w[r], w, rtol=0, atol=1e-13)


def test_a_client_alone_answers_as_among_others(problem):
    method, draws = (
        FedSAM(step_size=0.2, rho=0.1, local_steps=3, batch_size=2),
        Draws(key_from_seed(1), np.arange(2), 4),
    )
    message = method.broadcast(method.init(problem, np.ones((2, *problem.model_shape))))
    everyone = np.tile(np.arange(problem.federation.K), (2, 1))
    among, _ = method.local(problem, message, everyone, None, draws)
    alone = Problem(problem.federation.subset([2]), problem.loss, problem.l2)
    answer, _ = method.local(alone, message, np.zeros((2, 1), np.int64), None, draws)
    np.testing.assert_array_equal(answer.w[:, 0], among.w[:, 2])


def test_shadow(problem):
    method = FedSAM(step_size=0.2, rho=0.1, local_steps=3, batch_size=2, shadow=True)
    result = run(method, problem, rounds=3, tol=0, trajectories=2)
    np.testing.assert_allclose(result.state.shadow[:, -1], result.w, rtol=0, atol=1e-15)
    assert result.trace.shadow_value.shape == (4, 2)
    values = problem.value(result.state.shadow.reshape(-1, *problem.model_shape)).reshape(2, 3)
    np.testing.assert_allclose(result.trace.shadow_value[-1], values.mean(axis=1), rtol=1e-14)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"step_size": -1.0}, "step_size"),
        ({"step_size": 1.0, "rho": -0.1}, "FedSAM.rho must be nonnegative"),
        ({"step_size": 1.0, "rho": (0.1, -0.1)}, "FedSAM.rho must be nonnegative"),
        ({"step_size": 1.0, "rho": Decay(-1.0)}, "FedSAM.rho"),
        ({"step_size": 1.0, "rho": "0.1"}, "FedSAM.rho"),
        ({"step_size": 1.0, "epochs": 2, "local_steps": 2}, "both"),
        ({"step_size": 1.0, "batch_size": 0}, "batch_size"),
        ({"step_size": 1.0, "shadow": 1}, "shadow"),
        ({"step_size": 1.0, "server": 3}, "server"),
    ],
    ids=str,
)
def test_bad_settings(how, match):
    with pytest.raises((ValueError, TypeError), match=match):
        FedSAM(**how)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"batch_size": 5}, "rows of client 1"),
        ({"participation": 6}, "participation"),
        ({"rho": (0.1, 0.2)}, "FedSAM.rho must be one number per trajectory"),
        ({"rho": Decay(0.1), "epochs": 1, "batch_size": 2}, "by_round"),
    ],
    ids=str,
)
def test_bad_settings_for_the_problem(linear, how, match):
    with pytest.raises(ValueError, match=match):
        run(FedSAM(step_size=0.1, **how), linear, rounds=1)
