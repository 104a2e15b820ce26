"""Progressive hedging against plain NumPy, the Douglas-Rachford rate, the minimiser; sampled and inexact clients."""

import itertools
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import fedconvex.methods.progressivehedging as module
import fedconvex.solvers.proximal.smooth_points as proximal
from fedconvex import FedAvg, Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.methods import Decay, ProgressiveHedging, ProportionalSampling
from fedconvex.problems import MovingTarget
from fedconvex.solvers.proximal.smooth_points import proximal_points

# ---------------------------------------------------------------- independent formulas


def federation(rng, loss, K=4, d=3, sparse=False):
    pairs = []
    for n in rng.integers(4, 9, size=K):
        X = rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0, size=d)
        z = X @ rng.normal(size=d) + 0.5 * rng.normal(size=n)
        y = z if isinstance(loss, Squared) else np.where(z > 0, 1.0, -1.0)
        y = rng.integers(0, 3, size=n).astype(float) if isinstance(loss, Softmax) else y
        pairs.append((sp.csr_array(X) if sparse else X, y))
    return Federation.from_clients(pairs)


def weights_of(rng, K):
    p = rng.uniform(0.2, 1.0, size=K) ** 2
    return p / p.sum()


def rows_of(problem, k):
    fed = problem.federation
    rows = slice(fed.ptr[k], fed.ptr[k + 1])
    X = fed.X[rows]
    return (X.toarray() if sp.issparse(X) else X), fed.y[rows]


def gradient(problem, k, w):
    """grad f_k from the raw rows."""
    X, y = rows_of(problem, k)
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        S = np.exp(Z - Z.max(axis=1, keepdims=True))
        S = S / S.sum(axis=1, keepdims=True) - np.eye(len(w))[y.astype(int)]
        return S.T @ X / len(y) + problem.l2 * w
    z = X @ w
    if isinstance(problem.loss, Squared):
        s = z - y
    elif isinstance(problem.loss, SmoothedHinge):
        s = -y * np.clip((1.0 - y * z) / problem.loss.gamma, 0.0, 1.0)
    else:
        s = -y / (1.0 + np.exp(y * z))
    return X.T @ s / len(y) + problem.l2 * w


def hessian(problem, k, w):
    X, y = rows_of(problem, k)
    s = 1.0 / (1.0 + np.exp(-(X @ w)))
    h = np.ones(len(y)) if isinstance(problem.loss, Squared) else s * (1.0 - s)
    return X.T @ (h[:, None] * X) / len(y) + problem.l2 * np.eye(len(w))


def plain_prox(problem, k, v, rho):
    """argmin f_k + (rho/2)‖. - v‖^2 for squared and logistic loss: Newton's method, 40 steps with halving."""
    x = v.copy()
    for _ in range(40):
        g = gradient(problem, k, x) + rho * (x - v)
        step = np.linalg.solve(hessian(problem, k, x) + rho * np.eye(len(x)), g)
        for _ in range(40):
            if np.linalg.norm(gradient(problem, k, x - step) + rho * (x - step - v)) <= np.linalg.norm(g):
                break
            step = step / 2
        x = x - step
    return x


def plain_admm(problem, rho, rounds, z):
    """Boyd et al. (2011), eqs. (7.3)-(7.5), with x_k first and weighted means; (z, x, y) after every round."""
    K = problem.federation.K
    x, y, out = np.tile(z, (K, 1)), np.zeros((K, z.size)), [(z, np.tile(z, (K, 1)), np.zeros((K, z.size)))]
    for _ in range(rounds):
        x = np.array([plain_prox(problem, k, z - y[k] / rho, rho) for k in range(K)])
        z = problem.weights @ x
        y = y + rho * (x - z)
        out.append((z, x, y))
    return out


def by_hand(method, problem, rounds, seed=0, start=None, prices=None):
    """Play the protocol; states, memories, and who took part. With prices y_k the run begins in round 1 at x_k = z."""
    w = np.zeros((1, *problem.model_shape)) if start is None else np.array(start, dtype=float)[None]
    state, memory, out = method.init(problem, w), method.memory(problem, 1), []
    if prices is not None:
        memory.x[:], memory.y[0] = w[:, None], prices
    for t in range(rounds) if prices is None else range(1, rounds + 1):
        draws = Draws(key_from_seed(seed), np.arange(1), t)
        clients, weights = participants(method, problem, draws)
        reply, memory = method.local(problem, method.broadcast(state), clients, memory, draws)
        state = method.aggregate(state, clients, weights, reply)
        out.append((state, memory.x[0].copy(), memory.y[0].copy(), clients[0].copy()))
    return out


def contraction(problem, rho):
    """delta from exact eigenvalues: mu_k, L_k of the clients (logistic: curvature between 0 and 1/4)."""
    lam = [np.linalg.eigvalsh(hessian(problem, k, np.zeros(problem.size))) for k in range(problem.federation.K)]
    mu = min(v[0] for v in lam) if isinstance(problem.loss, Squared) else problem.l2
    L, g = max(v[-1] for v in lam), 1.0 / rho
    return 0.5 + 0.5 * max((g * L - 1) / (g * L + 1), (1 - g * mu) / (1 + g * mu)), mu, L


# ---------------------------------------------------------------- the iteration


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.slow
def test_equals_plain_numpy(loss, rng):
    problem = Problem(federation(rng, loss), loss, 0.1, weights_of(rng, 4))
    start = rng.normal(size=3)
    expected = plain_admm(problem, 0.7, 25, start)
    found = by_hand(ProgressiveHedging(rho=0.7), problem, 25, start=start)
    for t, (state, x, y, _) in enumerate(found):
        z, x_plain, _ = expected[t + 1]
        np.testing.assert_allclose(state.w[0], z, rtol=0, atol=1e-12)
        np.testing.assert_allclose(x, x_plain, rtol=0, atol=1e-12)
        np.testing.assert_allclose(y, expected[t][2], rtol=0, atol=1e-12)  # a client prices a round when it sees z
    trace = run(ProgressiveHedging(rho=0.7), problem, rounds=25, tol=0, start=start).trace
    assert np.isnan([trace.primal_residual[0], trace.dual_residual[0], trace.local_residual[0]]).all()
    for t in range(1, 26):
        (before, _, _), (z, x, _) = expected[t - 1], expected[t]
        rms = np.sqrt(problem.weights @ np.sum((x - z) ** 2, axis=1))
        assert trace.primal_residual[t] == pytest.approx(rms, rel=1e-9, abs=1e-12)
        assert trace.dual_residual[t] == pytest.approx(0.7 * np.linalg.norm(z - before), rel=1e-9, abs=1e-12)
    assert trace.local_residual[1:].max() < 1e-12
    np.testing.assert_array_equal(trace.floats_down, np.arange(26) * 4 * (3 + 1))  # z and rho to four clients
    np.testing.assert_array_equal(trace.floats_up, np.arange(26) * 4 * 3)


def altered(old, new):
    """The method compiled from its source with one line changed."""
    source = Path(module.__file__).read_text()
    assert source.count(old) == 1
    other = types.ModuleType("altered_hedging")
    sys.modules["altered_hedging"] = other
    exec(compile(source.replace(old, new), module.__file__, "exec"), other.__dict__)
    return other.ProgressiveHedging


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = y + rho * (x - z)  # 3", "y = y - rho * (x - z)  # 3"),
        ("z - y / rho, message.rho", "z + y / rho, message.rho"),
        ("p = np.take_along_axis(state.p, clients, axis=1)", "p = np.full(clients.shape, 1.0 / clients.shape[1])"),
    ],
)
@pytest.mark.slow
def test_planted_errors_are_caught(old, new, rng):
    problem = Problem(federation(rng, Squared()), Squared(), 0.1, weights_of(rng, 4))
    wrong = by_hand(altered(old, new)(rho=0.7), problem, 60)
    right = plain_admm(problem, 0.7, 60, np.zeros(3))
    assert max(np.abs(w[0].w[0] - r[0]).max() for w, r in zip(wrong, right[1:], strict=True)) > 1e-4
    best = problem.solve().w
    assert np.abs(right[-1][0] - best).max() < 1e-3 < np.abs(wrong[-1][0].w[0] - best).max() * 1e3
    same = by_hand(altered("# 1\n\n    def statistics", "# 1\n\n    def statistics")(rho=0.7), problem, 60)
    assert np.abs(same[-1][0].w[0] - right[-1][0]).max() < 1e-12


@pytest.mark.compiled
@pytest.mark.parametrize("weights", [None, "uniform", "unequal"])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=repr)
@pytest.mark.slow
def test_fixed_point_is_the_minimiser(loss, weights, rng):
    p = weights_of(rng, 4) if weights == "unequal" else weights
    problem = Problem(federation(rng, loss), loss, 0.1, p)
    for method in (ProgressiveHedging(), ProgressiveHedging(rho=1.0)):
        w = run(method, problem, rounds=800, tol=0, record_every=800).w
        mean = sum(q * gradient(problem, k, w) for k, q in enumerate(problem.weights))
        assert np.linalg.norm(mean) < 1e-11
        assert np.abs(w - problem.solve().w).max() < 1e-10
    state, x, y, _ = by_hand(ProgressiveHedging(rho=1.0), problem, 800)[-1]
    assert np.abs(x - state.w).max() < 1e-10
    prices = [-gradient(problem, k, state.w[0]) for k in range(4)]
    np.testing.assert_allclose(y, prices, rtol=0, atol=1e-10)


@pytest.mark.compiled
@pytest.mark.slow
def test_converges_without_strong_convexity(rng):
    """l2 = 0 and clients with fewer rows than features, dense and sparse: every rho > 0 will do."""
    pairs = [(rng.normal(size=(2, 3)), rng.normal(size=2)) for _ in range(4)]
    for pack in (np.asarray, sp.csr_array):
        problem = Problem(Federation.from_clients([(pack(X), y) for X, y in pairs]), Squared())
        w = run(ProgressiveHedging(rho=0.5), problem, rounds=3000, tol=0, record_every=3000).w
        assert np.abs(w - problem.solve().w).max() < 1e-9


# ---------------------------------------------------------------- rates


def norm(p, v):
    return np.sqrt(p @ np.sum(v**2, axis=1))


def contraction_trial(rng, loss=None):
    """A random federation, random weights and rho: both variables contract by delta in every round."""
    loss, best = [Squared(), Logistic()][rng.integers(2)] if loss is None else loss, 0.0
    problem = Problem(federation(rng, loss), loss, float(rng.choice([0.05, 0.3])), weights_of(rng, 4))
    p, w = problem.weights, problem.solve().w
    _, mu, L = contraction(problem, 1.0)
    rho = float(np.sqrt(mu * L) * 10 ** rng.uniform(-1, 1))
    delta = contraction(problem, rho)[0]
    slopes = np.array([gradient(problem, k, w) for k in range(4)])
    previous = None
    for state, x, y, _ in by_hand(ProgressiveHedging(rho=rho), problem, 25, start=3 * rng.normal(size=3)):
        z = state.w[0]
        after = y + rho * (x - z)
        pair = norm(p, z - after / rho - (w + slopes / rho)), norm(p, x + y / rho - (w - slopes / rho))
        np.testing.assert_allclose(p @ (x + y / rho), z, rtol=0, atol=1e-12)
        if previous is not None:
            for now, before in zip(pair, previous, strict=True):
                if before > 1e-5:
                    assert now <= delta * before * (1 + 1e-8)
                    best = max(best, now / before / delta)
        previous = pair
    assert pair[0] >= np.linalg.norm(z - w) * (1 - 1e-6) - 1e-12
    return {"share": float(best)}


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.slow_unless(loss=Squared())
def test_contraction_of_the_splitting_variables(loss, rng):
    assert max(contraction_trial(rng, loss)["share"] for _ in range(8)) > 0.9  # and the factor is of use


def test_the_rule_is_the_geometric_mean():
    """kappa = 9: delta = sqrt(9)/(sqrt(9) + 1)."""
    fed = Federation.from_clients([([[1.0, 0.0], [0.0, 3.0]], [0.0, 0.0])])  # H = diag(1, 9)/2
    problem = Problem(fed, Squared())
    state = ProgressiveHedging().init(problem, np.zeros((1, 2)))
    assert state.rho[0] == pytest.approx(np.sqrt(0.5 * 4.5), rel=1e-12)
    assert contraction(problem, state.rho[0])[0] == pytest.approx(3 / 4, rel=1e-12)


@pytest.mark.parametrize("rho", [0.3, 1.0, 4.0])
@pytest.mark.slow_unless(rho=4.0)
def test_linear_rate_is_the_spectral_radius(rho, rng):
    """Labels zero make a round linear: its map of (z, y_1, ..., y_K), built in NumPy, and 30 rounds along it."""
    K, d = 4, 3
    for _ in range(4):
        fed = federation(rng, Squared(), K, d)
        problem = Problem(Federation(fed.X, np.zeros(fed.n), fed.ptr), Squared(), 0.1, weights_of(rng, K))
        p, method = problem.weights, ProgressiveHedging(rho=rho, tol=1e-300)
        H = [hessian(problem, k, np.zeros(d)) for k in range(K)]
        right = [np.hstack([rho * np.eye(d), -np.kron(unit, np.eye(d))]) for unit in np.eye(K)]  # rho z - y_k
        X = np.vstack([np.linalg.solve(H[k] + rho * np.eye(d), right[k]) for k in range(K)])
        Z = np.kron(p, np.eye(d)) @ X  # stacked x_k and their mean, as maps of (z, y)
        Y = np.hstack([np.zeros((K * d, d)), np.eye(K * d)]) + rho * (X - np.tile(Z, (K, 1)))
        project = np.eye(K * d) - np.tile(np.kron(p, np.eye(d)), (K, 1))  # prices have sum_k p_k y_k = 0
        onto = np.block([[np.eye(d), np.zeros((d, K * d))], [np.zeros((K * d, d)), project]])
        M = np.vstack([Z, Y]) @ onto

        def by_code(s, rounds=1):
            z, y = s[:d], s[d:].reshape(K, d)
            state, x, y, _ = by_hand(method, problem, rounds, start=z, prices=y)[-1]  # noqa: B023
            return np.concatenate([state.w[0], (y + rho * (x - state.w[0])).ravel()])

        columns = np.array([by_code(onto @ e) for e in np.eye(d + K * d)]).T
        np.testing.assert_allclose(columns, M, rtol=0, atol=1e-13)
        lam, V = np.linalg.eig(M)
        top = int(np.argmax(np.abs(lam)))
        plane = np.linalg.qr(np.array([V[:, top].real, V[:, top].imag]).T)[0] if lam[top].imag else V[:, [top]].real
        ends = np.array([by_code(v, 30) for v in plane.T]).T
        inside = np.linalg.lstsq(plane, ends, rcond=None)[0]
        np.testing.assert_allclose(plane @ inside, ends, rtol=0, atol=1e-12)
        rate = np.abs(np.linalg.eigvals(inside)) ** (1 / 30)
        np.testing.assert_allclose(rate, np.abs(lam[top]), rtol=0, atol=1e-8)
        assert np.abs(lam[top]) <= contraction(problem, rho)[0] + 1e-12


# ---------------------------------------------------------------- sampled clients


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.slow_unless(loss=Squared())
def test_sampled_clients_reach_the_minimiser(loss, rng):
    problem = Problem(federation(rng, loss), loss, 0.2, weights_of(rng, 4))
    method = ProgressiveHedging(participation=2)
    end = by_hand(method, problem, 1500, seed=5, start=rng.normal(size=3))
    assert [len(who) for *_, who in end[:3]] == [4, 2, 2]  # everybody learns z_0
    assert np.abs(end[-1][0].w[0] - problem.solve().w).max() < 1e-10
    for state, x, y, _ in end[::100]:
        np.testing.assert_allclose(problem.weights @ (x + y / state.rho[0]), state.w[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_expected_contraction_of_sampled_rounds(m, rng):
    """Mean over all subsets of m of 4 clients of ‖v - v*‖_p^2, from one state: at most 1 - (m/4)(1 - delta^2)."""
    for _ in range(5):
        problem = Problem(federation(rng, Logistic()), Logistic(), 0.2, weights_of(rng, 4))
        p, w, rho = problem.weights, problem.solve().w, 0.4
        delta, method = contraction(problem, rho)[0], ProgressiveHedging(rho=rho)
        target = w - np.array([gradient(problem, k, w) for k in range(4)]) / rho
        z, memory = method.init(problem, np.zeros((1, 3))), method.memory(problem, 1)
        memory.x[:], memory.y[:] = rng.normal(size=(2, 1, 4, 3))
        v = memory.x[0] + memory.y[0] / rho
        z = z._replace(w=(p @ v)[None], v=(p @ v)[None])
        squares = []
        for chosen in itertools.combinations(range(4), m):
            mine = type(memory)(memory.x.copy(), memory.y.copy())
            who = np.array([chosen])
            reply, mine = method.local(
                problem, method.broadcast(z), who, mine, Draws(key_from_seed(0), np.arange(1), 1)
            )
            new = method.aggregate(z, who, np.full(who.shape, 1 / m), reply)
            after = mine.x[0] + mine.y[0] / rho
            rest = [k for k in range(4) if k not in chosen]
            np.testing.assert_array_equal(after[rest], v[rest])
            np.testing.assert_allclose(p @ after, new.w[0], rtol=0, atol=1e-13)
            squares.append(norm(p, after - target) ** 2)
        assert np.mean(squares) <= (1 - m / 4 * (1 - delta**2)) * norm(p, v - target) ** 2


# ---------------------------------------------------------------- inexact clients


def test_gradient_steps_equal_plain_numpy(problem, rng):
    p, rho, eta, K = problem.weights, 0.6, 0.15, problem.federation.K
    z = rng.normal(size=problem.model_shape)
    for warm in (True, False):
        method = ProgressiveHedging(rho=rho, local_steps=3, step_size=eta, warm_start=warm)
        w, x, y = z.copy(), [z.copy()] * K, [np.zeros_like(z)] * K
        for state, x_found, _, _ in by_hand(method, problem, 6, start=z):
            left = []
            for k in range(K):
                y[k] = y[k] + rho * (x[k] - w)
                u = x[k] if warm else w
                for _ in range(3):
                    u = u - eta * (gradient(problem, k, u) + y[k] + rho * (u - w))
                x[k] = u
                left.append(np.linalg.norm(gradient(problem, k, u) + y[k] + rho * (u - w)))
            w = sum(q * v for q, v in zip(p, x, strict=True))
            np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-12)
            np.testing.assert_allclose(x_found, x, rtol=0, atol=1e-12)
            assert state.residual[0] == pytest.approx(max(left), rel=1e-9)


@pytest.mark.slow
@pytest.mark.compiled
def test_inexact_clients_reach_the_minimiser(problem):
    """The fixed point does not depend on how many steps are taken from x_k: it is a zero of every tilted gradient."""
    method = ProgressiveHedging(rho=0.5, local_steps=4, step_size=0.3)
    result = run(method, problem, rounds=1500, tol=0, record_every=1500)
    assert np.abs(result.w - problem.solve().w).max() < 1e-10
    assert result.trace.local_residual[-1] < 1e-10


def test_batches_are_those_of_fedavg(problem):
    """With a vanishing penalty and no price yet, round 0 is FedAvg's; a batch of all rows is a full step."""
    for B in (1, 2, 4):
        mine = ProgressiveHedging(rho=1e-200, local_steps=3, step_size=0.2, batch_size=B)
        theirs = FedAvg(step_size=0.2, local_steps=3, batch_size=B)
        a, b = (run(m, problem, rounds=1, seed=3, tol=0, trajectories=2).w for m in (mine, theirs))
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
        assert np.abs(a[0] - a[1]).max() > 1e-6
    fed = problem.federation
    even = Problem(Federation(fed.X[:8], fed.y[:8], [0, 4, 8]), problem.loss, problem.l2)
    how = {"rho": 0.5, "local_steps": 3, "step_size": 0.2}
    a = run(ProgressiveHedging(batch_size=4, **how), even, rounds=5, tol=0).w
    np.testing.assert_allclose(a, run(ProgressiveHedging(**how), even, rounds=5, tol=0).w, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.compiled
def test_decaying_steps_settle(linear):
    base = {"rho": 1.0, "local_steps": 5, "batch_size": 2}
    wide = run(ProgressiveHedging(step_size=0.2, **base), linear, rounds=2000, tol=0, record_every=100)
    fine = run(
        ProgressiveHedging(step_size=Decay(10.0, 50.0, by_round=True), **base),
        linear,
        rounds=2000,
        tol=0,
        record_every=100,
    )
    assert fine.gap < 0.1 * np.median(wide.trace.gap[10:])


# ---------------------------------------------------------------- proximal points


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("path", ["one call", "rows", "parameters", "gradients"])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), SmoothedHinge(0.3), Softmax(3)], ids=repr)
@pytest.mark.slow_unless(sparse=False)
def test_proximal_points_are_certified(loss, path, sparse, rng, monkeypatch):
    """All in one kernel; or systems in rows (6 features and more), in parameters, and by conjugate gradients."""
    if path == "gradients":
        monkeypatch.setattr(proximal, "DIRECT_SIZE", 0)
    if path != "one call":
        monkeypatch.setattr(proximal, "_COMPILED", 0)
    d = 12 if path == "rows" else 3
    problem = Problem(federation(rng, loss, d=d, sparse=sparse), loss, 0.01)
    clients, rho = np.array([[0, 2, 1], [3, 1, 0]]), np.array([0.05, 30.0])
    v, start = 3 * rng.normal(size=(2, 2, 3, *problem.model_shape))
    for _ in range(2):  # the second time from what was kept
        x = proximal_points(problem, clients, v, rho, start, 1e-13)
        for r, j in np.ndindex(2, 3):
            left = gradient(problem, clients[r, j], x[r, j]) + rho[r] * (x[r, j] - v[r, j])
            assert np.linalg.norm(left) <= 2e-13 * (rho[r] + 0.01) * (1 + np.linalg.norm(v[r, j])) + 3e-13
    loose = proximal_points(problem, clients, v, rho, start, 1e-3)
    for r, j in np.ndindex(2, 3):
        assert np.linalg.norm(loose[r, j] - x[r, j]) <= 1e-3 * (1 + np.linalg.norm(loose[r, j]))


# ---------------------------------------------------------------- trajectories, checkpoints, moving targets


@pytest.mark.slow_unless(problem=["linear", "logistic"])
def test_every_trajectory_has_its_own_penalty(problem):
    for extra in ({}, {"local_steps": 2, "step_size": 0.2}):
        both = run(ProgressiveHedging(rho=(0.3, 2.0), **extra), problem, rounds=6, tol=0, trajectories=2)
        for r, rho in enumerate((0.3, 2.0)):
            alone = run(ProgressiveHedging(rho=rho, **extra), problem, rounds=6, tol=0)
            np.testing.assert_array_equal(both.w[r], alone.w)
            np.testing.assert_array_equal(both.trace.dual_residual[:, r], alone.trace.dual_residual)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("how", [{}, {"local_steps": 2, "step_size": 0.2, "batch_size": 2}], ids=["exact", "steps"])
def test_threads_and_resumption_change_no_bit(problem, how, tmp_path):
    method = ProgressiveHedging(rho=0.5, participation=2, **how)
    setting = {"tol": 0, "trajectories": 3, "seed": 2}
    whole = run(method, problem, rounds=9, **setting)
    for threads in (2, 4):  # over clients, and over trajectories where there are fewer clients than threads
        np.testing.assert_array_equal(whole.w, run(method, problem, rounds=9, threads=threads, **setting).w)
    run(method, problem, rounds=4, checkpoint=tmp_path / "c", **setting)
    again = run(method, problem, rounds=9, checkpoint=tmp_path / "c", **setting)
    np.testing.assert_array_equal(whole.w, again.w)
    for name in ("value", "primal_residual", "dual_residual", "local_residual"):
        np.testing.assert_array_equal(whole.trace[name], again.trace[name])


@pytest.mark.parametrize("m", [4, 2])
def test_moving_targets_move_models_and_not_prices(m, rng):
    """In fixed coordinates F_t(w) = F(w - s_t) and nothing of the method moves."""
    problem = Problem(federation(rng, Logistic()), Logistic(), 0.2, weights_of(rng, 4))
    moving, method, seed = MovingTarget(problem, variance=0.5), ProgressiveHedging(rho=0.4, participation=m), 3
    s, z, x, y = np.zeros(3), np.zeros(3), np.zeros((4, 3)), np.zeros((4, 3))
    for t, state in iterate(method, moving, rounds=12, seed=seed):
        np.testing.assert_allclose(state.w[0], z - s, rtol=0, atol=1e-11, err_msg=f"round {t}")
        draws = Draws(key_from_seed(seed), np.arange(1), t)
        clients = participants(method, problem, draws)[0][0]
        step = 0.0
        for k in clients:
            y[k] = y[k] + 0.4 * (x[k] - z)
            x[k] = s + plain_prox(problem, k, z - s - y[k] / 0.4, 0.4)
            step = step + problem.weights[k] * (x[k] - z)
        z, s = z + step, s + moving.drift(draws)[0]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"rho": 0.0}, "rho must be positive"),
        ({"rho": (1.0, -1.0)}, "positive numbers, one per trajectory"),
        ({"rho": "best"}, "rho must be a number"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"step_size": 0.1}, "come with local_steps"),
        ({"batch_size": 2}, "come with local_steps"),
        ({"local_steps": 2}, "step_size must be given"),
        ({"local_steps": 0, "step_size": 0.1}, "local_steps must be at least 1"),
        ({"local_steps": 2, "step_size": 0.1, "batch_size": 0}, "batch_size must be at least 1"),
        ({"warm_start": 1}, "warm_start must be True or False"),
        ({"participation": ProportionalSampling(2)}, "never draw a client twice"),
    ],
)
def test_settings_out_of_range(how, text):
    with pytest.raises((ValueError, TypeError), match=text):
        ProgressiveHedging(**how)


def test_problems_that_do_not_fit(linear, rng):
    flat = Problem(Federation.from_clients([([[1.0, 0.0]], [1.0]), ([[0.0, 1.0]], [1.0])]), Squared())
    with pytest.raises(ValueError, match=r"mu > 0 .* got mu = 0, L = 1: give rho a number"):
        run(ProgressiveHedging(), flat, rounds=1)
    signs = Problem(federation(rng, Logistic()), Hinge(), 0.1)
    with pytest.raises(ValueError, match=r"curvature; got Hinge\(\): use SmoothedHinge"):
        run(ProgressiveHedging(rho=1.0), signs, rounds=1)
    with pytest.raises(ValueError, match="one number per trajectory"):
        run(ProgressiveHedging(rho=(1.0, 2.0)), linear, rounds=1)
    with pytest.raises(ValueError, match="at most 4, the rows of client 1"):
        run(ProgressiveHedging(rho=1.0, local_steps=1, step_size=0.1, batch_size=5), linear, rounds=1)
    with pytest.raises(ValueError, match="number of clients 5"):
        run(ProgressiveHedging(rho=1.0, participation=6), linear, rounds=1)
