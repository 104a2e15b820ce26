"""SCAFFOLD against plain NumPy, its fixed point and exact rate, what its clients keep, and planted errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, Squared, iterate, run
from fedconvex.draws import BATCHES, PARTICIPATION, Draws, below, choose, key_from_seed, stream
from fedconvex.driver import participants
from fedconvex.kernels import client_rows
from fedconvex.methods import SCAFFOLD, Decay, ProportionalSampling, scaffold
from fedconvex.problems import MovingTarget

# ---------------------------------------------------------------- SCAFFOLD in plain NumPy


def gradient(problem, k, w, rows=None):
    """Gradient of f_k, or of the mean over some of its rows, from the formulas of the losses."""
    fed = problem.federation
    X = fed.X[fed.ptr[k] : fed.ptr[k + 1]]
    X, y = (X.toarray() if fed.is_sparse else X), fed.y[fed.ptr[k] : fed.ptr[k + 1]]
    X, y = (X, y) if rows is None else (X[rows], y[rows])
    if isinstance(problem.loss, Softmax):
        E = np.exp(X @ w.T)
        S = E / E.sum(axis=1, keepdims=True) - np.eye(len(w))[y.astype(int)]
        return S.T @ X / len(y) + problem.l2 * w
    z = X @ w
    s = z - y if isinstance(problem.loss, Squared) else -y / (1.0 + np.exp(y * z))
    return X.T @ s / len(y) + problem.l2 * w


def batches(method, n, client_id, key, t, passes=None):
    """Rows of every local step, by the rules of `fedconvex.draws`, or None for all rows; of so many passes only."""
    B = n if method.batch_size is None else min(method.batch_size, n)
    passes = passes or (method.local_steps if method.epochs is None else method.epochs)
    block = B if method.epochs is None else n
    if B == n and not method.replacement:
        return [None] * passes
    state, pool, out = np.uint64(stream(key, 0, t, client_id, BATCHES)), list(range(n)), []
    for e in range(passes):
        for b in range(block):
            u = e * block + b
            if method.replacement or block == 1:
                out.append(int(below(state, u, n)))
            else:
                i = b + int(below(state, u, n - b))
                pool[b], pool[i] = pool[i], pool[b]
                out.append(pool[b])
    blocks = [out[i : i + block] for i in range(0, len(out), block)]
    return [rows[i : i + B] for rows in blocks for i in range(0, block, B)]


def plain_scaffold(method, problem, rounds, seed=0, drift=None):
    """Algorithm 1 of the paper, client by client; yields x, c and the dictionary of c_i before every round."""
    fed, p, key = problem.federation, problem.weights, key_from_seed(seed)
    N, x = fed.K, np.zeros(problem.model_shape)
    S = N if method.participation is None else max(1, round(method.participation * N))
    c, kept = np.zeros_like(x), {}
    for t in range(rounds + 1):
        yield x, c, dict(kept)
        sample = np.arange(N)
        if S < N:
            sample = np.empty(S, np.int64)
            choose(np.uint64(stream(key, 0, t, -1, PARTICIPATION)), N, S, sample)
        dx, dc = np.zeros_like(x), np.zeros_like(x)
        for i in sample.tolist():
            y, c_i = x.copy(), kept.get(i, np.zeros_like(x))
            drawn, total = batches(method, int(fed.sizes[i]), int(fed.ids[i]), key, t), 0.0
            for s, rows in enumerate(drawn):
                eta = method.step_size
                if isinstance(eta, Decay):
                    eta = eta.scale / (eta.shift + (t if eta.by_round else t * len(drawn) + s)) ** eta.power
                y = y - eta * (gradient(problem, i, y, rows) - c_i + c)
                total += eta
            new = gradient(problem, i, x) if method.option == 1 else c_i - c + (x - y) / total
            dx += N / S * p[i] * (y - x)
            dc += p[i] * (new - c_i)
            kept[i] = new
        x, c = x + method.server_step * dx, c + dc
        if drift is not None:
            x = x - drift(Draws(key, np.arange(1), t))[0]


SETTINGS = {
    "full": SCAFFOLD(step_size=0.2, local_steps=4),
    "batch 1": SCAFFOLD(step_size=0.1, local_steps=6, batch_size=1, participation=0.5, server_step=0.7),
    "batch 2": SCAFFOLD(step_size=0.1, local_steps=3, batch_size=2, participation=0.5),
    "epochs": SCAFFOLD(step_size=0.1, epochs=2, batch_size=3, participation=0.5),
    "epochs of 1": SCAFFOLD(step_size=0.1, epochs=2, batch_size=1),
    "replacement": SCAFFOLD(step_size=0.1, local_steps=3, batch_size=1, replacement=True, participation=0.5),
    "option I": SCAFFOLD(step_size=0.1, local_steps=3, batch_size=2, participation=0.5, option=1),
    "option I full": SCAFFOLD(step_size=0.1, local_steps=3, server_step=1.3, option=1),
    "decay": SCAFFOLD(step_size=Decay(1.0, 5.0), local_steps=3, batch_size=2),
    "decay by round": SCAFFOLD(step_size=Decay(1.0, 5.0, by_round=True), epochs=1, batch_size=2, participation=0.5),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("weights", [None, "uniform"])
def test_equals_plain_numpy(problem, name, weights):
    """All losses, dense and CSR rows; the fixtures' clients are of unequal size, hence of unequal weight."""
    mine = Problem(problem.federation, problem.loss, problem.l2, weights)
    for (t, state), (x, c, _) in zip(
        iterate(SETTINGS[name], mine, rounds=8, seed=5), plain_scaffold(SETTINGS[name], mine, 8, seed=5), strict=True
    ):
        np.testing.assert_allclose(state.w[0], x, rtol=0, atol=1e-12, err_msg=f"x of round {t}")
        np.testing.assert_allclose(state.c[0], c, rtol=0, atol=1e-12, err_msg=f"c of round {t}")


@pytest.mark.parametrize("name", SETTINGS)
def test_c_is_the_weighted_mean_of_all_controls(linear, name):
    """Whoever was sampled: sum_i p_i c_i = c, never-sampled clients counting with c_i = 0."""
    for state, controls in by_hand(SETTINGS[name], linear, 12):
        np.testing.assert_allclose(state.c[0], linear.weights @ controls, rtol=0, atol=1e-13)


def by_hand(method, problem, rounds, seed=0):
    """The method's own calls; yields the state and all c_i (N, d) after every round."""
    state, memory = method.init(problem, np.zeros((1, *problem.model_shape))), method.memory(problem, 1)
    for t in range(rounds):
        draws = Draws(key_from_seed(seed), np.arange(1), t)
        clients, weights = participants(method, problem, draws)
        reply, memory = method.local(problem, method.broadcast(state), clients, memory, draws)
        state = method.aggregate(state, clients, weights, reply)
        controls = np.zeros((problem.federation.K, problem.size))
        controls[memory.keys[: memory.known]] = memory.rows[: memory.known]  # trajectory 0: keys are clients
        yield state, controls


# ---------------------------------------------------------------- planted errors


def wrong_sign(monkeypatch):
    def corrections(rows, slots, c, tilt):
        tilt[...] = rows[slots] - c[:, None]

    monkeypatch.setattr(scaffold, "corrections", corrections)


def mean_over_the_sample(monkeypatch):
    """c + (1/S) sum (c_i^+ - c_i) in place of 1/N."""
    right = scaffold.add

    def add(out, factor, p, clients, changes, calls=[]):  # noqa: B006
        calls.append(1)
        right(out, factor if len(calls) % 2 else factor * p.size / clients.shape[1], p, clients, changes)

    monkeypatch.setattr(scaffold, "add", add)


def forgotten_server_control(monkeypatch):
    """c_i^+ = c_i + (x - y_i)/(K eta_l), without - c."""
    right = scaffold.renew

    def renew(rows, slots, x, c, *rest):
        right(rows, slots, x, np.zeros_like(c), *rest)

    monkeypatch.setattr(scaffold, "renew", renew)


@pytest.mark.parametrize("plant", [wrong_sign, mean_over_the_sample, forgotten_server_control])
def test_planted_errors_are_caught(linear, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal"):
        test_equals_plain_numpy(linear, "batch 2", None)
    if plant is mean_over_the_sample:
        with pytest.raises(AssertionError, match="Not equal"):
            test_c_is_the_weighted_mean_of_all_controls(linear, "batch 2")


# ---------------------------------------------------------------- reductions and the limit


@pytest.mark.parametrize("option", [1, 2])
def test_identical_clients_make_it_fedavg(rng, option):
    X, y = rng.normal(size=(6, 3)), rng.normal(size=6)
    twins = Problem(Federation.from_clients([(X, y)] * 4), Squared(), 0.1)
    fedavg, method = FedAvg(step_size=0.2, local_steps=4), SCAFFOLD(step_size=0.2, local_steps=4, option=option)
    for (_, a), (_, b) in zip(iterate(method, twins, rounds=30), iterate(fedavg, twins, rounds=30), strict=True):
        np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-14)


def test_the_first_round_is_fedavg_bit_for_bit(problem):
    """All corrections are zero, and a tilt of zeros leaves no trace in the bits of the local models."""
    draws = Draws(key_from_seed(3), np.arange(1), 0)
    w, clients = np.full((1, *problem.model_shape), 0.3), np.arange(problem.federation.K)[None]
    a, b = SCAFFOLD(step_size=0.1, epochs=1, batch_size=1), FedAvg(step_size=0.1, epochs=1, batch_size=1)
    mine, _ = a.local(problem, scaffold.Message(w, np.zeros_like(w)), clients, a.memory(problem, 1), draws)
    its, _ = b.local(problem, b.broadcast(b.init(problem, w)), clients, None, draws)
    np.testing.assert_array_equal(mine.dy, its.w - w[:, None])


@pytest.mark.compiled
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("participation", [1.0, 3])
def test_full_gradients_reach_the_minimiser_where_fedavg_stalls(rng, loss, option, participation):
    """Unequal weights too: the fixed point is the minimiser of sum p_k f_k."""
    clients = []
    for n in (6, 3, 8, 4, 5):
        X = rng.normal(size=(n, 2)) * rng.uniform(0.5, 1.5, 2) + 0.3 * rng.normal(size=2)
        z = X @ rng.normal(size=2) + rng.normal(size=n)
        clients.append((X, z if isinstance(loss, Squared) else np.where(z > 0, 1.0, -1.0)))
    problem = Problem(Federation.from_clients(clients), loss, 0.5)
    best, L = problem.solve().w, problem.constants().L
    method = SCAFFOLD(step_size=0.2 / L, local_steps=5, participation=participation, option=option)
    found = run(method, problem, rounds=400, tol=0, record_every=400).w
    assert np.linalg.norm(found - best) <= 1e-12
    stalled = run(FedAvg(step_size=0.2 / L, local_steps=5), problem, rounds=400, tol=0, record_every=400).w
    assert np.linalg.norm(stalled - best) > 1e-3


def round_matrix(H, p, eta, K, eta_g, option):
    """Matrix of (x, c_1, ..., c_N) -> the same after a round on f_i(w) = w'H_i w/2, column by column, c = sum p_i c_i.

    From the pseudo-code: y <- y - eta (H_i y - c_i + c), repeated K times.
    """
    N, d = len(H), H.shape[1]
    M = np.empty(((N + 1) * d, (N + 1) * d))
    for column, unit in enumerate(np.eye((N + 1) * d)):
        x, *controls = unit.reshape(N + 1, d)
        c = sum(q * v for q, v in zip(p, controls, strict=True))
        x_new, new = x.copy(), []
        for H_i, c_i, q in zip(H, controls, p, strict=True):
            y = x
            for _ in range(K):
                y = y - eta * (H_i @ y - c_i + c)
            new.append(H_i @ x if option == 1 else c_i - c + (x - y) / (K * eta))
            x_new = x_new + eta_g * q * (y - x)
        M[:, column] = np.concatenate([x_new, *new])
    return M


def one_round(method, problem, z):
    """Let the method itself carry (x, c_1, ..., c_N) through a round in which everybody takes part."""
    draws, everyone = Draws(key_from_seed(0), np.arange(1), 0), np.arange(len(z) - 1)[None]
    memory, slots = method.memory(problem, 1).locate(draws.trajectory, everyone)
    memory.rows[slots[0]] = z[1:]
    state = method.init(problem, z[:1])._replace(c=(problem.weights @ z[1:])[None])
    reply, memory = method.local(problem, method.broadcast(state), everyone, memory, draws)
    return np.concatenate([method.aggregate(state, everyone, None, reply).w, memory.rows[slots[0]]])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.slow_unless(seed=[0, 1])
def test_measured_rate_is_the_spectral_radius(seed):
    """With labels 0 rounds are linear: far out, z_{t+2} = a z_t + b z_{t+1}, and r^2 = a + b r for the dominant r."""
    rng = np.random.default_rng(seed)
    N, d, K, option = 3 + seed % 3, 2, 2 + seed % 4, 1 + seed % 2
    clients = [(rng.normal(size=(6 + 2 * k, d)), np.zeros(6 + 2 * k)) for k in range(N)]
    problem = Problem(Federation.from_clients(clients), Squared(), 0.05)
    H = np.array([X.T @ X / len(X) + 0.05 * np.eye(d) for X, _ in clients])
    method = SCAFFOLD(step_size=0.25 / np.linalg.eigvalsh(H).max(), local_steps=K, server_step=0.9, option=option)
    M = round_matrix(H, problem.weights, method.step_size, K, 0.9, option)
    z = rng.normal(size=(N + 1, d))
    np.testing.assert_allclose(one_round(method, problem, z).ravel(), M @ z.ravel(), rtol=0, atol=1e-13)
    for _ in range(300):
        z = one_round(method, problem, z / np.linalg.norm(z))
    z0, z1 = z.ravel(), one_round(method, problem, z).ravel()
    z2 = one_round(method, problem, z1.reshape(z.shape)).ravel()
    a, b = np.linalg.lstsq(np.stack([z0, z1], axis=1), z2, rcond=1e-10)[0]
    measured, exact = np.abs(np.roots([1.0, -b, -a])).max(), np.abs(np.linalg.eigvals(M)).max()
    assert exact < 1.0
    assert measured == pytest.approx(exact, abs=1e-6)


# ---------------------------------------------------------------- what clients keep


@given(st.data())
@pytest.mark.slow
def test_client_rows_are_a_dictionary(data):
    """Any sequence of requests: written rows are found again, new ones are zero, room is for those asked for only."""
    R, K = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    store, known = client_rows.ClientRows.empty(2), {}
    for step in range(data.draw(st.integers(1, 12))):
        m = data.draw(st.integers(1, K))
        order = np.random.default_rng(data.draw(st.integers(0, 99)))
        clients = np.array([order.permutation(K)[:m] for _ in range(R)])
        trajectories = np.array(data.draw(st.permutations(range(7))))[:R]
        store, slots = store.locate(trajectories, clients)
        for (r, j), slot in np.ndenumerate(slots):
            pair = trajectories[r], clients[r, j]
            np.testing.assert_array_equal(store.rows[slot], known.get(pair, [0.0, 0.0]))
            known[pair] = store.rows[slot] = [step + 1.0, 100.0 * r + j]
        assert store.known == len(known)
        assert store.rows.shape[0] <= max(2 * len(known), 1)
    assert len(set(store.keys[: store.known].tolist())) == len(known)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("method", [SETTINGS["batch 1"], SETTINGS["option I"]], ids=str)
@pytest.mark.parametrize("R", [1, 5])
def test_threads_change_no_bit(problem, method, R):
    one = run(method, problem, rounds=6, trajectories=R, seed=4, tol=0)
    for threads in (2, 8):
        other = run(method, problem, rounds=6, trajectories=R, seed=4, threads=threads, tol=0)
        np.testing.assert_array_equal(one.state.w, other.state.w)
        np.testing.assert_array_equal(one.state.c, other.state.c)


@pytest.mark.parametrize("how", ["batch 1", "option I", "epochs"])
def test_a_remote_client_keeps_its_own_control(problem, how):
    """Every client in a problem, and with a memory, of its own: the same replies, bit for bit, round after round."""
    method, fed, R = SETTINGS[how], problem.federation, 2
    alone = [Problem(fed.subset([k]), problem.loss, problem.l2) for k in range(fed.K)]
    own = [method.memory(a, R) for a in alone]
    state, memory = method.init(problem, np.zeros((R, *problem.model_shape))), method.memory(problem, R)
    for t in range(6):
        draws = Draws(key_from_seed(9), np.arange(R), t)
        clients, weights = participants(method, problem, draws)
        message = method.broadcast(state)
        reply, memory = method.local(problem, message, clients, memory, draws)
        for r, j in np.ndindex(clients.shape):
            k, mine = clients[r, j], draws._replace(trajectory=draws.trajectory[r : r + 1])
            part = scaffold.Message(message.w[r : r + 1], message.c[r : r + 1])
            answer, own[k] = method.local(alone[k], part, np.zeros((1, 1), np.int64), own[k], mine)
            np.testing.assert_array_equal(answer.dy[0, 0], reply.dy[r, j])
            np.testing.assert_array_equal(answer.dc[0, 0], reply.dc[r, j])
        state = method.aggregate(state, clients, weights, reply)


def test_checkpoints_hold_the_controls(linear, tmp_path):
    """Stopped after every number of rounds, with trajectories and threads: identical bits."""
    method, how = SETTINGS["batch 2"], {"trajectories": 3, "seed": 1, "tol": 0}
    whole = run(method, linear, rounds=7, **how)
    for stop in range(1, 7):
        file = tmp_path / f"{stop}"
        run(method, linear, rounds=stop, checkpoint=file, **how)
        again = run(method, linear, rounds=7, checkpoint=file, threads=2, **how)
        np.testing.assert_array_equal(whole.state.w, again.state.w)
        np.testing.assert_array_equal(whole.state.c, again.state.c)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
@pytest.mark.slow
def test_clients_never_sampled_cost_nothing():
    """40,000 clients of one row, d = 100 (32 MB), 20 sampled in each of 20 rounds: far below the data's size."""
    code = """
import resource, numpy as np
from fedconvex import Federation, Logistic, Problem, iterate
from fedconvex.methods import SCAFFOLD
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def rounds(K):
    X, y = np.ones((K, 100)), np.ones(K)
    X.flags.writeable = y.flags.writeable = False
    problem = Problem(Federation(X, y, np.arange(K + 1)), Logistic())
    before = peak()
    for _ in iterate(SCAFFOLD(step_size=0.1, batch_size=1, participation=20), problem, rounds=20):
        pass
    return (peak() - before) / X.nbytes
rounds(100)
print(rounds(40_000))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.25


# ---------------------------------------------------------------- communication, moving targets, bad input


@pytest.mark.parametrize(("participation", "S"), [(1.0, 5), (2, 2)])
def test_two_models_travel_each_way(linear, participation, S):
    method = SCAFFOLD(step_size=0.1, local_steps=2, participation=participation)
    trace = run(method, linear, rounds=3, trajectories=2, tol=0).trace
    np.testing.assert_array_equal(trace.floats_down, [0, 6 * S, 12 * S, 18 * S])
    np.testing.assert_array_equal(trace.floats_up, [0, 6 * S, 12 * S, 18 * S])


def test_controls_stay_when_the_coordinates_move(linear):
    """Against plain NumPy, whose x moves and whose c and c_i do not."""
    moving = MovingTarget(linear, variance=0.1)
    found = iterate(SETTINGS["batch 2"], moving, rounds=8, seed=2)
    for (t, state), (x, c, _) in zip(
        found, plain_scaffold(SETTINGS["batch 2"], linear, 8, seed=2, drift=moving.drift), strict=True
    ):
        np.testing.assert_allclose(state.w[0], x, rtol=0, atol=1e-12, err_msg=f"x of round {t}")
        np.testing.assert_allclose(state.c[0], c, rtol=0, atol=1e-12, err_msg=f"c of round {t}")


def test_step_sizes_per_trajectory(linear):
    sweep = run(SCAFFOLD(step_size=(0.1, 0.2), local_steps=3), linear, rounds=5, trajectories=2, tol=0).w
    for r, eta in enumerate((0.1, 0.2)):
        alone = run(SCAFFOLD(step_size=eta, local_steps=3), linear, rounds=5, tol=0).w
        np.testing.assert_array_equal(sweep[r], alone)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: SCAFFOLD(step_size=0.0), "step_size must be positive"),
        (lambda p: SCAFFOLD(step_size=0.1, local_steps=0), "local_steps must be at least 1"),
        (lambda p: SCAFFOLD(step_size=0.1, local_steps=2, epochs=2), "local_steps or epochs"),
        (lambda p: SCAFFOLD(step_size=0.1, epochs=0), "epochs must be at least 1"),
        (lambda p: SCAFFOLD(step_size=0.1, batch_size=0), "batch_size must be at least 1"),
        (lambda p: SCAFFOLD(step_size=0.1, replacement=1), "replacement must be True or False"),
        (lambda p: SCAFFOLD(step_size=0.1, option=3), "option must be at most 2"),
        (lambda p: SCAFFOLD(step_size=0.1, option="II"), "option must be a whole number"),
        (lambda p: SCAFFOLD(step_size=0.1, server_step=-1.0), "server_step must be positive"),
        (lambda p: SCAFFOLD(step_size=0.1, participation=ProportionalSampling(2)), "never draw a client twice"),
        (lambda p: run(SCAFFOLD(step_size=0.1, participation=6), p, rounds=1), "at most the number of clients 5"),
        (lambda p: run(SCAFFOLD(step_size=0.1, batch_size=5), p, rounds=1), "at most 4, the rows of client 1"),
        (lambda p: run(SCAFFOLD(step_size=(0.1, 0.2)), p, rounds=1), "one number per trajectory"),
        (lambda p: run(SCAFFOLD(step_size=Decay(1.0), epochs=1, batch_size=2), p, rounds=1), "equally many steps"),
    ],
)
def test_bad_input(linear, build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(linear)


def test_the_last_checkpoint_is_written_inside_a_handler_too(problem, tmp_path):
    """run() asked whether *its own* loop broke, not whether the caller is handling something."""
    file = tmp_path / "c"
    try:
        raise KeyError
    except KeyError:
        run(SCAFFOLD(step_size=0.1), problem, rounds=3, tol=0, checkpoint=file, checkpoint_every=1000)
    assert file.exists()
