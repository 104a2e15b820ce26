"""FedProx against plain NumPy, its reduction to FedAvg, its fixed point, inexactness, stragglers, adaptive mu."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from test_scaffold import batches

from fedconvex import (
    FedAvg,
    Federation,
    Hinge,
    Logistic,
    Problem,
    SmoothedHinge,
    Softmax,
    Squared,
    iterate,
    run,
)
from fedconvex.draws import Draws, below, key_from_seed, stream, uniform
from fedconvex.driver import participants
from fedconvex.driver.rounds import Engine
from fedconvex.kernels import descent
from fedconvex.methods import (
    AdaptiveProximal,
    ClientAdam,
    ClientMomentum,
    ClientSGD,
    Decay,
    FedProx,
    ProportionalSampling,
    ProximalPoint,
    ServerAdam,
    ServerSGD,
    Stragglers,
    fedprox,
)
from fedconvex.problems import MovingTarget
from fedconvex.solvers.proximal import smooth_points as proximal

# ---------------------------------------------------------------- FedAvg is the case mu = 0, bit for bit

LOCAL = {
    "full": {"local_steps": 4},
    "batch 1": {"local_steps": 5, "batch_size": 1},
    "batches": {"local_steps": 3, "batch_size": 2, "participation": 2},
    "epochs": {"epochs": 2, "batch_size": 3, "participation": 0.5},
    "epochs of 1": {"epochs": 2, "batch_size": 1},
    "replacement": {"local_steps": 3, "batch_size": 2, "replacement": True},
    "momentum": {"local_steps": 3, "batch_size": 2, "client": ClientMomentum(0.5)},
    "Adam": {"local_steps": 3, "client": ClientAdam(0.5, 0.9, 1e-3), "server": ServerSGD(0.7, momentum=0.5)},
    "server Adam": {"local_steps": 2, "batch_size": 1, "server": ServerAdam(0.1, 0.8, 0.9, 0.1)},
    "proportional": {"local_steps": 2, "participation": ProportionalSampling(3)},
    "decay": {"step_size": Decay(1.0, 5.0), "local_steps": 3, "batch_size": 2},
    "decay by round": {"step_size": Decay(1.0, 5.0, by_round=True), "epochs": 1, "batch_size": 2},
}
each_way = pytest.mark.parametrize("name", LOCAL)


def settings_of(name):
    return {"step_size": 0.1} | LOCAL[name]


@each_way
def test_without_the_proximal_term_it_is_fedavg(problem, name):
    a = run(FedProx(proximal_mu=0, **settings_of(name)), problem, rounds=4, trajectories=2, seed=3, tol=0)
    b = run(FedAvg(**settings_of(name)), problem, rounds=4, trajectories=2, seed=3, tol=0)
    np.testing.assert_array_equal(a.w, b.w)
    for column in ("value", "gap", "floats_down", "floats_up"):
        np.testing.assert_array_equal(a.trace[column], b.trace[column])


@each_way
def test_trajectories_do_not_touch_each_other(linear, name):
    """mu = 0 beside mu = 0.5: each has the bits of its own run, also in threads that split the trajectories."""
    together = [
        run(FedProx(proximal_mu=(0.0, 0.5), **settings_of(name)), linear, rounds=3, trajectories=2, tol=0, threads=n).w
        for n in (1, 2, 6)
    ]
    np.testing.assert_array_equal(together[0], together[1])
    np.testing.assert_array_equal(together[0], together[2])
    both = run(FedProx(proximal_mu=0.5, **settings_of(name)), linear, rounds=3, trajectories=2, tol=0).w
    plain = run(FedAvg(**settings_of(name)), linear, rounds=3, trajectories=2, tol=0).w
    np.testing.assert_array_equal(together[0][0], plain[0])
    np.testing.assert_array_equal(together[0][1], both[1])


# ---------------------------------------------------------------- FedProx in plain NumPy


def gradient(problem, k, w, rows=None):
    """Gradient of f_k, or of the mean over some of its rows, from the formulas of the losses."""
    fed, loss = problem.federation, problem.loss
    X = fed.X[fed.ptr[k] : fed.ptr[k + 1]]
    X, y = (X.toarray() if fed.is_sparse else X), fed.y[fed.ptr[k] : fed.ptr[k + 1]]
    X, y = (X, y) if rows is None else (X[rows], y[rows])
    if isinstance(loss, Softmax):
        E = np.exp(X @ w.T)
        S = E / E.sum(axis=1, keepdims=True) - np.eye(len(w))[y.astype(int)]
        return S.T @ X / len(y) + problem.l2 * w
    z = X @ w
    if isinstance(loss, Squared):
        s = z - y
    elif isinstance(loss, SmoothedHinge):
        s = -y * np.clip((1.0 - y * z) / loss.gamma, 0.0, 1.0)
    else:
        s = -y / (1.0 + np.exp(y * z))
    return X.T @ s / len(y) + problem.l2 * w


def work_of(method, n, client_id, key, t):
    """Whether a client is late, and the rows of every step it does, by the rules of `fedconvex.draws`."""
    passes, late = method.local_steps if method.epochs is None else method.epochs, False
    if method.stragglers is not None:
        state = np.uint64(stream(key, 0, t, client_id, 5))
        late = uniform(state, 0) < method.stragglers.share
        passes = 1 + int(below(state, 1, passes - 1)) if late else passes
    return late, batches(method, n, client_id, key, t, passes)


def plain_fedprox(method, problem, rounds, seed=0):
    """Algorithm 2, client by client, averaging by default; yields w, and gamma_k of the round before."""
    fed, key = problem.federation, key_from_seed(seed)
    w, gammas, mu = np.zeros(problem.model_shape), [], method.proximal_mu
    for t in range(rounds + 1):
        yield w, gammas
        clients, weights = participants(method, problem, Draws(key, np.arange(1), t))
        ends, kept, gammas = [], [], []
        for k, q in zip(clients[0].tolist(), weights[0].tolist(), strict=True):
            late, drawn = work_of(method, int(fed.sizes[k]), int(fed.ids[k]), key, t)
            v, m, s2 = w, np.zeros_like(w), np.zeros_like(w)
            for s, rows in enumerate(drawn, 1):
                g, opt, eta = gradient(problem, k, v, rows) + mu * (v - w), method.client, method.step_size
                if isinstance(eta, Decay):
                    tau = method.local_steps
                    eta = eta.scale / (eta.shift + (t if eta.by_round else t * tau + s - 1)) ** eta.power
                if isinstance(opt, ClientSGD):
                    v = v - eta * g
                elif isinstance(opt, ClientMomentum):
                    m = opt.beta * m + g
                    v = v - eta * m
                else:
                    m, s2 = opt.beta1 * m + (1 - opt.beta1) * g, opt.beta2 * s2 + (1 - opt.beta2) * g**2
                    v = v - eta * (m / (1 - opt.beta1**s)) / (np.sqrt(s2 / (1 - opt.beta2**s)) + opt.epsilon)
            ends.append(v)
            kept.append(0.0 if late and method.stragglers.drop else q)
            h = gradient(problem, k, v) + mu * (v - w)
            gammas.append(np.linalg.norm(h) / np.linalg.norm(gradient(problem, k, w)))
        if sum(kept) > 0.0:
            w = sum(q * v for q, v in zip(kept, ends, strict=True)) / sum(kept)


REFERENCED = {n: FedProx(proximal_mu=0.7, **({"step_size": 0.1} | s)) for n, s in LOCAL.items() if "server" not in s}
REFERENCED |= {
    "late": FedProx(proximal_mu=0.7, step_size=0.1, local_steps=4, batch_size=2, stragglers=Stragglers(0.6)),
    "late epochs": FedProx(proximal_mu=0.7, step_size=0.1, epochs=3, batch_size=2, stragglers=Stragglers(0.6)),
    "dropped": FedProx(proximal_mu=0.7, step_size=0.1, local_steps=4, stragglers=Stragglers(0.6, drop=True)),
    "late Adam": FedProx(
        proximal_mu=0.7, step_size=0.1, local_steps=4, client=ClientAdam(0.5, 0.9, 1e-3), stragglers=Stragglers(0.6)
    ),
    "late decay": FedProx(proximal_mu=0.7, step_size=Decay(1.0, 5.0), local_steps=3, stragglers=Stragglers(0.6)),
}


@pytest.fixture(scope="module")
def hinge():
    """Smoothed hinge, CSR rows with many zeros."""
    rng = np.random.default_rng(4)
    clients = []
    for n in (6, 4, 9):
        X = rng.normal(size=(n, 8)) * (rng.random((n, 8)) < 0.4)
        clients.append((sp.csr_array(X), np.where(rng.normal(size=n) > 0, 1.0, -1.0)))
    return Problem(Federation.from_clients(clients), SmoothedHinge(0.5), 0.05)


def equals_plain_numpy(method, problem, rounds=6):
    found = iterate(method, problem, rounds=rounds, seed=11)
    for (t, state), (w, _) in zip(found, plain_fedprox(method, problem, rounds, seed=11), strict=True):
        np.testing.assert_allclose(state.w[0], w, rtol=1e-9, atol=1e-12, err_msg=f"round {t}")


@pytest.mark.parametrize("name", REFERENCED)
def test_equals_plain_numpy(problem, name):
    equals_plain_numpy(REFERENCED[name], problem)


@pytest.mark.parametrize("name", ["full", "batch 1", "batches"])
def test_equals_plain_numpy_on_the_smoothed_hinge(hinge, name):
    equals_plain_numpy(REFERENCED[name], hinge)


@pytest.mark.parametrize("name", ["full", "batch 1", "batches", "momentum", "late Adam"])
@pytest.mark.parametrize("plant", ["no tilt", "no ridge", "wrong sign"])
def test_planted_errors_are_caught(linear, monkeypatch, name, plant):
    right = descent.local_updates

    def wrong(*args):
        *rest, tilt, ridge = args
        tilt, ridge = (
            {"no tilt": (0.0 * tilt, ridge), "no ridge": (tilt, 0.0 * ridge), "wrong sign": (-tilt, ridge)}[plant]
        )  # fmt: skip
        return right(*rest, tilt, ridge)

    method = REFERENCED[name]
    equals_plain_numpy(method, linear)
    monkeypatch.setattr(Engine, "early", False)  # rounds computed together do not call what is changed
    monkeypatch.setattr(fedprox.descent, "local_updates", wrong)
    with pytest.raises(AssertionError, match="Not equal"):
        equals_plain_numpy(method, linear)


def test_clients_may_start_at_models_of_their_own(problem, rng):
    """`local_updates` from (R, m, *model) is a call per client; a tilt may differ by client as well."""
    fed, R = problem.federation, 2
    draws, clients = Draws(key_from_seed(1), np.arange(R), 3), np.tile(np.arange(fed.K), (R, 1))
    start, tilt = rng.normal(size=(2, R, fed.K, *problem.model_shape))
    plan, eta, ridge = np.full((R, fed.K, 3), [3, 2, 1]), np.full((R, 1, 1), 0.1), np.array([0.0, 0.4])
    args = (draws, eta, plan, False, False)
    found, _ = descent.local_updates(problem, ClientSGD(), start, clients, *args, tilt, ridge)
    for k in range(fed.K):
        one = (draws, eta, plan[:, :1].copy(), False, False)
        mine = clients[:, k : k + 1].copy()
        alone, _ = descent.local_updates(
            problem, ClientSGD(), start[:, k].copy(), mine, *one, tilt[:, k : k + 1].copy(), ridge
        )
        np.testing.assert_array_equal(found[:, k], alone[:, 0])


# ---------------------------------------------------------------- exact solutions


@pytest.mark.parametrize("weights", [None, "uniform"])
@pytest.mark.parametrize(("mu", "rounds"), [(0.1, 60), (1.0, 120), (4.0, 240)])
def test_exact_solutions_on_quadratics_have_their_fixed_point(linear, weights, mu, rounds):
    """w_inf = (sum p_k C_k)^-1 sum p_k C_k w_k*, C_k = I - (I + H_k/mu)^-1: prox_k(w) = w_k* + (I - C_k)(w - w_k*)."""
    problem, d = Problem(linear.federation, Squared(), 0.1, weights), 3
    fed, A, b = problem.federation, np.zeros((3, 3)), np.zeros(3)
    for k in range(fed.K):
        X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
        H = X.T @ X / len(y) + 0.1 * np.eye(d)
        C = np.eye(d) - np.linalg.inv(np.eye(d) + H / mu)
        A += problem.weights[k] * C
        b += problem.weights[k] * C @ np.linalg.solve(H, X.T @ y / len(y))
    method = FedProx(proximal_mu=mu, solver=ProximalPoint())
    found = run(method, problem, rounds=rounds, tol=0, record_every=rounds).w
    np.testing.assert_allclose(found, np.linalg.solve(A, b), rtol=0, atol=1e-10)
    assert np.linalg.norm(found - problem.solve().w) > 1e-3 / mu  # biased indeed


@pytest.mark.slow_unless(problem="linear")
def test_many_steps_approach_the_exact_solution(problem):
    exact = run(FedProx(proximal_mu=1.0, solver=ProximalPoint()), problem, rounds=3, tol=0).w
    far = run(FedProx(proximal_mu=1.0, step_size=0.2, local_steps=400), problem, rounds=3, tol=0).w
    np.testing.assert_allclose(far, exact, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["exact", "late", "adaptive"])
def test_threads_change_no_bit(problem, name):
    method = {
        "exact": FedProx(proximal_mu=(0.5, 2.0, 1.0), solver=ProximalPoint(), participation=3, inexactness=True),
        "late": REFERENCED["late epochs"],
        "adaptive": FedProx(proximal_mu=AdaptiveProximal(0.1), step_size=0.1, epochs=2, batch_size=2, participation=3),
    }[name]
    one = run(method, problem, rounds=4, trajectories=3, seed=4, tol=0)
    for threads in (2, 8):
        other = run(method, problem, rounds=4, trajectories=3, seed=4, tol=0, threads=threads)
        np.testing.assert_array_equal(one.w, other.w)
        for column in set(one.trace) - {"seconds"}:
            np.testing.assert_array_equal(one.trace[column], other.trace[column])


# ---------------------------------------------------------------- inexactness


@pytest.mark.parametrize("name", ["full", "batches", "late"])
def test_inexactness_is_measured(problem, name):
    """gamma_k = ‖grad h_k(w_k)‖/‖grad f_k(w_t)‖ by plain NumPy; it is not counted as communication."""
    method = REFERENCED[name]
    asked = dataclasses.replace(method, inexactness=True)
    a, b = (run(m, problem, rounds=5, seed=11, tol=0).trace for m in (asked, method))
    for column in ("value", "floats_down", "floats_up"):
        np.testing.assert_array_equal(a[column], b[column])
    assert "gamma_max" not in b
    assert np.isnan(a.gamma_max[0])
    assert np.isnan(a.gamma_mean[0])
    for t, (_, gammas) in enumerate(plain_fedprox(method, problem, 5, seed=11)):
        if t > 0:
            assert a.gamma_max[t] == pytest.approx(max(gammas), rel=1e-9)
            assert a.gamma_mean[t] == pytest.approx(np.mean(gammas), rel=1e-9)


def test_exact_solutions_are_hardly_inexact(problem):
    trace = run(FedProx(proximal_mu=1.0, solver=ProximalPoint(), inexactness=True), problem, rounds=3, tol=0).trace
    assert trace.gamma_max[1:].max() < 1e-11


def test_more_steps_are_less_inexact(linear):
    few, many = (
        run(FedProx(proximal_mu=1.0, step_size=0.1, local_steps=n, inexactness=True), linear, rounds=3, tol=0).trace
        for n in (2, 20)
    )
    assert np.all(many.gamma_max[1:] < 0.2 * few.gamma_max[1:])


# ---------------------------------------------------------------- stragglers


def passes_done(share, E, R, t, K=4):
    """Passes of K clients in R trajectories, and who is late, as `local` is told."""
    method = FedProx(proximal_mu=1.0, step_size=0.1, local_steps=E, stragglers=Stragglers(share))
    plan = np.full((R, K, 3), [E, 5, 5])
    late = method._cut(plan, np.tile(np.arange(K), (R, 1)), Draws(key_from_seed(2), np.arange(R), t))
    return plan[..., 0], late


@pytest.mark.slow
def test_stragglers_have_their_frequencies():
    """Late with probability share; 1, ..., E - 1 passes equally likely; independent. 4.5 standard errors."""
    share, E, R = 0.3, 5, 20_000
    done, late = passes_done(share, E, R, 0)
    assert np.all(done[~late] == E)
    assert np.abs(late.mean(axis=0) - share).max() < 4.5 * np.sqrt(share * (1 - share) / R)
    counts = np.bincount(done[late], minlength=E)
    assert counts[0] == 0
    assert np.abs(counts[1:] / late.sum() - 1 / (E - 1)).max() < 4.5 * np.sqrt(0.25 / late.sum())
    assert np.abs(np.corrcoef(late.T)[np.triu_indices(4, 1)]).max() < 4.5 / np.sqrt(R)
    again, _ = passes_done(share, E, R, 1)
    assert abs(np.corrcoef(done.ravel(), again.ravel())[0, 1]) < 4.5 / np.sqrt(4 * R)
    assert not passes_done(0.0, E, 10, 0)[1].any()
    assert passes_done(1.0, E, 10, 0)[1].all()


def test_a_late_client_is_late_alone_as_well(linear):
    """Draws are keyed by the client: in a problem of its own it does the same work."""
    method, fed = REFERENCED["late"], linear.federation
    message = method.broadcast(method.init(linear, np.full((1, 3), 0.2)))
    for t in range(5):
        draws = Draws(key_from_seed(1), np.arange(1), t)
        together, _ = method.local(linear, message, np.arange(fed.K)[None], None, draws)
        for k in range(fed.K):
            own = Problem(fed.subset([k]), linear.loss, linear.l2)
            alone, _ = method.local(own, message, np.zeros((1, 1), np.int64), None, draws)
            np.testing.assert_array_equal(alone.w[0, 0], together.w[0, k])
            assert alone.late[0, 0] == together.late[0, k]


def test_a_round_without_answers_changes_nothing(linear):
    method = FedProx(proximal_mu=0.5, step_size=0.1, local_steps=3, stragglers=Stragglers(1.0, drop=True))
    assert not run(method, linear, rounds=3, tol=0).w.any()


def test_nobody_late_is_the_same_bits(linear):
    for drop in (False, True):
        a = FedProx(proximal_mu=0.5, step_size=0.1, local_steps=3, stragglers=Stragglers(0.0, drop))
        b = FedProx(proximal_mu=0.5, step_size=0.1, local_steps=3)
        np.testing.assert_allclose(*(run(m, linear, rounds=5, tol=0).w for m in (a, b)), rtol=0, atol=1e-15)


# ---------------------------------------------------------------- adaptive mu


def test_the_rule_of_adaptive_mu_by_hand():
    rule, mu, falls = AdaptiveProximal(0.15, 0.1, 3), np.array([0.15, 0.15]), np.array([0, 0])
    moves = [(-1, -1), (-1, 1), (-1, -1), (0, -1), (-1, -1), (-1, -1), (1, -1), (-1, -1)]
    seen = []
    for rise in moves:
        mu, falls = rule.next(mu, falls, np.array(rise, dtype=float))
        seen.append((round(float(mu[0]), 12), round(float(mu[1]), 12)))
    # first: falls 1 2 3 -> down, 0 resets, 1 2, rise -> up, 1; second: 1, rise -> up, 1 2 3 -> down, 1 2 3 -> down
    first = [0.15, 0.15, 0.05, 0.05, 0.05, 0.05, 0.15, 0.15]
    second = [0.15, 0.25, 0.25, 0.25, 0.15, 0.15, 0.15, 0.05]
    assert seen == list(zip(first, second, strict=True))
    assert rule.next(np.array([0.05]), np.array([2]), np.array([-1.0]))[0] == 0.0  # never below zero


@pytest.mark.parametrize("R", [1, 2])
def test_adaptive_mu_follows_the_loss(problem, R):
    """With everybody taking part, mu of round t + 1 is decided by F(w_t) - F(w_{t-1}), seen in the trace."""
    rule = AdaptiveProximal(0.0, 0.1, 2)
    method = FedProx(proximal_mu=rule, step_size=0.15, local_steps=3, batch_size=1)  # noisy: F goes up and down
    trace = run(method, problem, rounds=40, trajectories=R, tol=0, seed=3).trace
    values, mus = trace.value.reshape(41, R), trace.proximal_mu.reshape(41, R)
    mu, falls = np.zeros(R), np.zeros(R, dtype=int)
    for t in range(40):
        np.testing.assert_allclose(mus[t], mu, rtol=0, atol=1e-12, err_msg=f"round {t}")
        rise = values[t] - values[t - 1] if t else np.zeros(R)
        mu, falls = rule.next(mu, falls, rise)
    assert np.diff(mus, axis=0).max() > 0.05
    assert np.diff(mus, axis=0).min() < -0.05


def test_what_travels(linear):
    """A model each way; with adaptive mu also w_{t-1} and mu down, a number up. Diagnostics are free."""
    for method, down, up in (
        (FedProx(proximal_mu=0.5, step_size=0.1), 3, 3),
        (FedProx(proximal_mu=0.5, solver=ProximalPoint(), inexactness=True), 3, 3),
        (FedProx(proximal_mu=0.5, step_size=0.1, local_steps=2, stragglers=Stragglers(0.5)), 3, 3),
        (FedProx(proximal_mu=AdaptiveProximal(), step_size=0.1), 7, 4),
    ):
        trace = run(method, linear, rounds=2, trajectories=2, tol=0).trace
        np.testing.assert_array_equal(trace.floats_down, [0, 5 * down, 10 * down])
        np.testing.assert_array_equal(trace.floats_up, [0, 5 * up, 10 * up])


def test_both_models_move_with_the_coordinates(linear):
    moving = MovingTarget(linear, variance=0.1)
    method = FedProx(proximal_mu=AdaptiveProximal(0.3), step_size=0.1, local_steps=2)
    states = [s for _, s in iterate(method, moving, rounds=3, seed=1)]
    still = method.aggregate  # the state before the drift, from the method's own calls
    for t in range(3):
        draws = Draws(key_from_seed(1), np.arange(1), t)
        clients, weights = participants(method, moving, draws)
        reply, _ = method.local(moving, method.broadcast(states[t]), clients, None, draws)
        before = still(states[t], clients, weights, reply)
        q = moving.drift(draws)
        np.testing.assert_array_equal(states[t + 1].w, before.w - q)
        np.testing.assert_array_equal(states[t + 1].before, states[t].w - q)
        np.testing.assert_array_equal(states[t + 1].mu, before.mu)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: FedProx(proximal_mu=-0.1, step_size=0.1), "proximal_mu must be nonnegative"),
        (lambda p: FedProx(proximal_mu=(0.1, -0.1), step_size=0.1), "nonnegative numbers, one per trajectory"),
        (lambda p: FedProx(proximal_mu=True, step_size=0.1), "proximal_mu must be a number"),
        (lambda p: FedProx(proximal_mu=AdaptiveProximal(-1.0), step_size=0.1), "start must be nonnegative"),
        (lambda p: FedProx(proximal_mu=AdaptiveProximal(step=0.0), step_size=0.1), "step must be positive"),
        (lambda p: FedProx(proximal_mu=AdaptiveProximal(patience=0), step_size=0.1), "patience must be at least 1"),
        (lambda p: FedProx(proximal_mu=1.0), "step_size must be given"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.0), "step_size must be positive"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.1, local_steps=2, epochs=2), "local_steps or epochs"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.1, solver=ProximalPoint()), "step_size must be left out"),
        (lambda p: FedProx(proximal_mu=1.0, epochs=2, solver=ProximalPoint()), "epochs must be left out"),
        (lambda p: FedProx(proximal_mu=1.0, client=ClientAdam(), solver=ProximalPoint()), "client must be left out"),
        (lambda p: FedProx(proximal_mu=1.0, solver="exact"), "solver must be ProximalPoint"),
        (lambda p: FedProx(proximal_mu=1.0, solver=ProximalPoint(0.0)), "tol must be positive"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.1, stragglers=0.5), "stragglers must be Stragglers"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.1, epochs=2, stragglers=Stragglers(1.5)), r"share must be"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.1, epochs=2, stragglers=Stragglers(0.5, 1)), "True or False"),
        (lambda p: FedProx(proximal_mu=1.0, step_size=0.1, stragglers=Stragglers(0.5)), "at least 2 local_steps"),
        (lambda p: run(FedProx(proximal_mu=(1.0, 2.0), step_size=0.1), p, rounds=1), "one number per trajectory"),
        (lambda p: run(FedProx(proximal_mu=1.0, step_size=0.1, batch_size=5), p, rounds=1), "rows of client 1"),
        (lambda p: run(FedProx(proximal_mu=1.0, step_size=Decay(1.0), epochs=1, batch_size=2), p, rounds=1), "equally"),
        (lambda p: run(FedProx(proximal_mu=0, solver=ProximalPoint()), flat(p), rounds=1), "positive for exact"),
        (lambda p: run(FedProx(proximal_mu=AdaptiveProximal(), solver=ProximalPoint()), flat(p), rounds=1), "positive"),
        (lambda p: run(FedProx(proximal_mu=1.0, solver=ProximalPoint()), hinged(p), rounds=1), "loss with curvature"),
    ],
)
def test_bad_input(linear, build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(linear)


def flat(problem):
    return Problem(problem.federation, problem.loss)


def hinged(problem):
    fed = problem.federation
    return Problem(Federation(fed.X, np.where(fed.y > 0, 1.0, -1.0), fed.ptr), Hinge(), 0.1)


@pytest.mark.slow
def test_logistic_exact_and_server_momentum(logistic):
    """The solver composes with sampling and server optimisers."""
    method = FedProx(proximal_mu=2.0, solver=ProximalPoint(), participation=2, server=ServerSGD(0.5, momentum=0.5))
    assert isinstance(logistic.loss, Logistic)
    assert run(method, logistic, rounds=60, tol=0, seed=1).gap < 0.05


def test_shifts_below_the_rounding_of_the_hessian():
    """Where rho + l2 drowns in a Hessian of rank two, Cholesky refuses; eigenvectors still give the inverse."""
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    S = (V * np.array([1e20, 1e19, 0.0, 0.0, 0.0])) @ V.T
    S = 0.5 * (S + S.T)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(S + 1e-2 * np.eye(5))
    solve = proximal._positive(S, 1e-2)
    np.testing.assert_allclose(solve(V[:, 0]) @ V[:, 0], 1e-20, rtol=1e-9)
    assert np.isfinite(solve(np.ones(5))).all()
    assert np.isnan(proximal._positive(np.full((2, 2), np.inf), 1.0)(np.ones(2))).all()


def test_exact_solutions_of_huge_features():
    """Features of 1e8, and of 1e160, whose Hessian overflows: a status, never an error of linear algebra."""
    rng = np.random.default_rng(0)
    for size in (1e8, 1e160):
        X, y = size * rng.normal(size=(30, 3)), rng.integers(3, size=30).astype(float)
        problem = Problem(Federation.from_arrays(X, y, np.arange(30) % 3), Softmax(3), 0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(FedProx(proximal_mu=1.0, solver=ProximalPoint()), problem, rounds=2, tol=0)
        assert result.status.name in ("ROUND_LIMIT", "DIVERGED")


def test_adaptive_mu_ignores_rounding():
    """At the common minimiser of equal clients F moves by rounding only: mu stays."""
    X = np.random.default_rng(1).normal(size=(8, 2))
    problem = Problem(Federation.from_clients([(X, X @ [1.0, 2.0])] * 3), Squared(), 0.1)
    method = FedProx(proximal_mu=AdaptiveProximal(0.0), solver=ProximalPoint())
    trace = run(method, problem, rounds=12, tol=0, start=problem.solve().w).trace
    assert np.all(trace.proximal_mu == 0.0)
