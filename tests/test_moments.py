"""Exact moments against enumeration of all outcomes, Monte Carlo through the driver, closed forms, and each other."""

import math
from itertools import combinations, product

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import FedAvg, Federation, FedSGD, Logistic, Problem, Squared, iterate
from fedconvex.constants import noise_factor
from fedconvex.methods import (
    SVRG,
    ClientAdam,
    ClientMomentum,
    Decay,
    DynamicFedAvg,
    FedProx,
    ProgressiveHedging,
    ProportionalSampling,
    ScaledSampling,
    ServerAdam,
    ServerSGD,
    UniformSampling,
)
from fedconvex.penalties import L1
from fedconvex.problems import MovingTarget
from fedconvex.theory.moments import Moments, WeightMoments, engine, stage_suboptimality
from fedconvex.verify import Outcome, verify

pytestmark = pytest.mark.compiled


def make(seed, sizes=(4, 3, 2), d=2, l2=0.1, weights=None, sparse=False):
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        X = rng.normal(size=(n, d))
        clients.append((sp.csr_array(X) if sparse else X, rng.normal(size=n) + X @ rng.normal(size=d)))
    return Problem(Federation.from_clients(clients), Squared(), l2, weights)


def rows(problem, k):
    fed = problem.federation
    part = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
    return fed.X[part], fed.y[part]


# ---------------------------------------------------------------- all outcomes, one by one


def batches(n, B, replacement):
    return list(product(range(n), repeat=B)) if replacement else list(combinations(range(n), B))


def batch_gradient(problem, k, b, W):
    X, y = rows(problem, k)
    X, y = X[list(b)], y[list(b)]
    return (W @ X.T - y) @ X / len(b) + problem.l2 * W


def client_paths(problem, k, W, steps, B, replacement):
    """All (probability, [W after 0, 1, ... steps]) of client k from start points W (N, d)."""
    paths = [(1.0, [W])]
    for a in steps:
        choices = batches(len(rows(problem, k)[1]), B, replacement)
        paths = [
            (q / len(choices), [*path, path[-1] - a * batch_gradient(problem, k, b, path[-1])])
            for q, path in paths
            for b in choices
        ]
    return paths


def samples(scheme, p):
    """All (probability, weights) of a participation scheme."""
    K = len(p)
    if scheme is None:
        return [(1.0, np.asarray(p))]
    if isinstance(scheme, ProportionalSampling):
        m = scheme.draws
        return [(math.prod(p[k] for k in s), np.bincount(s, minlength=K) / m) for s in product(range(K), repeat=m)]
    out, scaled = [], isinstance(scheme, ScaledSampling)
    m = scheme.clients if scaled else scheme
    for s in combinations(range(K), m):
        v = np.zeros(K)
        v[list(s)] = p[list(s)]
        out.append((1.0 / math.comb(K, m), v * K / m if scaled else v / v.sum()))
    return out


def enumerate_run(problem, rounds, scheme, steps_of, B, replacement=False, beta=1.0, start=None):
    """Atoms (probabilities (N,), models (N, d)) after every round; shadows and drift of the last round, by outcome."""
    K, p = problem.federation.K, problem.weights
    B = np.broadcast_to(B, K)
    q, W = np.ones(1), np.zeros((1, problem.federation.d)) if start is None else np.asarray(start)[None]
    story = [(q, W)]
    inside = []
    for t in range(rounds):
        paths = [client_paths(problem, k, W, steps_of(t, k), int(B[k]), replacement) for k in range(K)]
        new_q, new_W, inside = [], [], []
        for prob, weights in samples(scheme, p):
            who = np.flatnonzero(weights)
            for joint in product(*(paths[k] for k in who)):
                chance = q * prob * math.prod(c for c, _ in joint)
                mean = W + sum(weights[k] * (path[-1] - W) for k, (_, path) in zip(who, joint, strict=True))
                new_q.append(chance)
                new_W.append(W + beta * (mean - W))
                if len({len(path) for _, path in joint}) == 1:
                    for j in range(len(joint[0][1])):
                        at = [path[j] for _, path in joint]
                        mean = sum(weights[k] * v for k, v in zip(who, at, strict=True))
                        spread = sum(weights[k] * np.sum((v - mean) ** 2, axis=1) for k, v in zip(who, at, strict=True))
                        inside.append((j, chance, mean, spread))
        q, W = np.concatenate(new_q), np.concatenate(new_W)
        story.append((q, W))
    return story, inside


def expected(problem, q, W):
    best = problem.solve()
    e = W - best.w
    return q @ (problem.value(W) - best.value), q @ np.sum(e**2, axis=1), q @ e, np.einsum("i,ij,ik->jk", q, e, e)


ENUMERATED = {
    "everybody, E=1": {"rounds": 3, "E": 1, "B": 1, "K": 2},
    "everybody, client batches": {"rounds": 2, "E": 1, "B": (3, 2, 1)},
    "everybody, full batches": {"rounds": 3, "E": 2, "B": (4, 3, 2)},
    "with replacement": {"rounds": 2, "E": 1, "B": 2, "replacement": True, "K": 2},
    "one row": {"rounds": 3, "E": 1, "B": 2, "replacement": True, "K": 2, "sizes": (1, 2)},
    "uniform 1 of 3": {"rounds": 2, "E": 1, "B": 1, "scheme": 1, "uniform": True},
    "uniform 2 of 3": {"rounds": 2, "E": 1, "B": 2, "scheme": 2, "uniform": True},
    "uniform 2 of 3, unequal weights": {"rounds": 2, "E": 1, "B": 2, "scheme": 2},
    "scheme I, 2 draws": {"rounds": 2, "E": 1, "B": (3, 2, 1), "scheme": ProportionalSampling(2)},
    "scheme I, 3 draws": {"rounds": 1, "E": 1, "B": 1, "scheme": ProportionalSampling(3)},
    "scaled, 2 of 3": {"rounds": 2, "E": 1, "B": (3, 2, 1), "scheme": ScaledSampling(2)},
    "scaled, two steps, server step": {"rounds": 1, "E": 2, "B": (2, 2, 1), "scheme": ScaledSampling(1), "beta": 0.6},
    "two steps": {"rounds": 1, "E": 2, "B": (3, 2, 1)},
    "two steps, uniform 2 of 3": {"rounds": 1, "E": 2, "B": 1, "scheme": 2, "uniform": True},
    "two steps, scheme I": {"rounds": 1, "E": 2, "B": (2, 2, 1), "scheme": ProportionalSampling(2)},
    "two steps, two rounds": {"rounds": 2, "E": 2, "B": (3, 2, 1), "scheme": 1, "uniform": True},
    "unequal steps": {"rounds": 1, "E": (1, 2, 3), "B": (3, 2, 2), "scheme": 2, "uniform": True},
    "unequal steps, factors": {"rounds": 1, "E": (1, 2, 3), "B": (3, 2, 1), "factor": (1.0, 0.5, 1 / 3)},
    "decay by step": {"rounds": 2, "E": 2, "B": (3, 2, 2), "scheme": 1, "uniform": True, "decay": Decay(0.8, 2.0)},
    "decay by round": {
        "rounds": 2,
        "E": (1, 2, 1),
        "B": (3, 2, 1),
        "scheme": 1,
        "decay": Decay(0.8, 2.0, 0.5, by_round=True),
    },
    "server step": {"rounds": 2, "E": 1, "B": 2, "scheme": 2, "uniform": True, "beta": 1.7},
    "server step, everybody": {"rounds": 2, "E": 1, "B": (3, 2, 1), "beta": 0.6},
}


def settings_of(case, problem):
    """Moments' arguments and the steps (t, k) -> list of a case."""
    K = problem.federation.K
    E, factor = np.broadcast_to(case["E"], K), np.broadcast_to(case.get("factor", 1.0), K)
    eta = case.get("decay", 0.3)

    def steps_of(t, k):
        if not isinstance(eta, Decay):
            return [factor[k] * eta] * E[k]
        return [factor[k] * eta.at(t if eta.by_round else t * E[k] + j) for j in range(E[k])]

    arguments = {
        "step_size": eta,
        "local_steps": case["E"],
        "batch_size": case["B"],
        "replacement": case.get("replacement", False),
        "participation": case.get("scheme"),
        "step_factor": factor,
        "server_step": case.get("beta", 1.0),
    }
    return arguments, steps_of


def problem_of(case, seed=3):
    K = case.get("K", 3)
    return make(seed, case.get("sizes", (4, 3, 2))[:K], weights="uniform" if case.get("uniform") else None)


def against_enumeration(case, kron):
    """Largest relative error of the engine over everything that the enumeration gives."""
    problem = problem_of(case)
    arguments, steps_of = settings_of(case, problem)
    T, start = case["rounds"], np.array([1.0, -0.5])
    story, inside = enumerate_run(
        problem, T, case.get("scheme"), steps_of, case["B"], arguments["replacement"], arguments["server_step"], start
    )
    moments = Moments(problem, **arguments, kron=kron)
    trace = moments.run(T, start=start)
    pairs = []
    for t, (q, W) in enumerate(story):
        assert q.sum() == pytest.approx(1.0, abs=1e-13)
        sub, dev, mean, second = expected(problem, q, W)
        pairs += [(trace.suboptimality[t], sub), (trace.deviation[t], dev), (trace.mean_error[t], mean)]
    pairs.append((trace.second_moment, second))
    summed = not isinstance(case.get("scheme"), ScaledSampling)
    if inside and summed and np.ptp(arguments["local_steps"]) == 0:
        shadow = moments.shadow(T, start=start)
        best = problem.solve()
        for j in range(int(np.max(case["E"])) + 1):
            mine = [(q, m, s) for i, q, m, s in inside if i == j]
            pairs.append((shadow.drift[-1, j], sum(q @ s for q, _, s in mine)))
            pairs.append((shadow.suboptimality[-1, j], sum(q @ (problem.value(m) - best.value) for q, m, _ in mine)))
            pairs.append((shadow.deviation[-1, j], sum(q @ np.sum((m - best.w) ** 2, axis=1) for q, m, _ in mine)))
    gradients = moments.gradients(T, start=start)
    q, W = story[-2]
    for k in range(problem.federation.K):
        B = int(np.broadcast_to(case["B"], problem.federation.K)[k])
        choices = batches(len(rows(problem, k)[1]), B, arguments["replacement"])
        for j in range(len(steps_of(T - 1, k))):
            second = variance = 0.0
            for c, path in client_paths(problem, k, W, steps_of(T - 1, k)[:j], B, arguments["replacement"]):
                G = np.array([batch_gradient(problem, k, b, path[-1]) for b in choices])  # (choices, N, d)
                full = batch_gradient(problem, k, range(len(rows(problem, k)[1])), path[-1])
                second += c * (q @ np.mean(np.sum(G**2, axis=2), axis=0))
                variance += c * (q @ np.mean(np.sum((G - full) ** 2, axis=2), axis=0))
            pairs += [(gradients.second_moment[-1, j, k], second), (gradients.variance[-1, j, k], variance)]
        assert np.isnan(gradients.variance[:, len(steps_of(0, k)) :, k]).all()
    return max(float(np.max(np.abs(a - b) / (1.0 + np.abs(b)))) for a, b in pairs)


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
@pytest.mark.parametrize("case", ENUMERATED.values(), ids=ENUMERATED)
def test_all_outcomes_enumerated(case, kron):
    assert against_enumeration(case, kron) < 1e-12


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
@pytest.mark.slow_unless(kron=True)
def test_a_wrong_noise_factor_is_caught(monkeypatch, kron):
    """Forgetting the correction for drawing without replacement, 1/B instead of (n - B)/((n - 1) B)."""
    monkeypatch.setattr(engine, "noise_factor", lambda n, B, replacement: noise_factor(n, B, True))
    caught = [name for name, case in ENUMERATED.items() if against_enumeration(case, kron) > 1e-6]
    # unseen only where it changes nothing: draws with replacement, and single-row batches (of more than one row)
    blind = {name for name, case in ENUMERATED.items() if case.get("replacement") or np.max(case["B"]) == 1}
    assert set(caught) == set(ENUMERATED) - blind
    assert len(caught) >= 14


def test_a_wrong_sampling_factor_is_caught(monkeypatch):
    """Sampling with replacement instead of without: the pair probability 1/K^2 (L-1)/L of independent draws."""
    true = engine.mixing_of

    def planted(participation, problem):
        mix = true(participation, problem)
        K = mix.mean.size
        return mix._replace(scale=mix.scale * (K - 1) / K) if isinstance(participation, int) else mix

    monkeypatch.setattr(engine, "mixing_of", planted)
    assert against_enumeration(ENUMERATED["uniform 2 of 3"], True) > 1e-3


@pytest.mark.parametrize(("d", "step"), [(2, 0.3), (1, 5.0)])
@pytest.mark.slow
def test_long_runs_inside_rounds_are_those_of_every_round(d, step):
    """Rounds are followed inside by a basis of moments where that is shorter; a diverging run ends at infinity."""
    rng = np.random.default_rng(3)
    fed = Federation.from_clients([(rng.normal(size=(n, d)), rng.normal(size=n)) for n in (2, 3, 4)])
    moments = Moments(Problem(fed, Squared(), 0.1), step_size=step, local_steps=3, batch_size=1, participation=2)
    trace = moments.shadow(rounds=400, start=np.full(d, 2.0))
    states = [Z for _, Z in moments._states(400, np.full(d, 2.0), None, False)][:400]
    each = np.array([moments._inside(moments.round.mixing, Z, t) for t, Z in enumerate(states)])
    seen = np.isfinite(each[:, 0, -1])
    assert seen.all() == (step < 1.0)
    for name, column in (("suboptimality", 0), ("deviation", 1)):
        found = getattr(trace, name)
        np.testing.assert_allclose(found[seen], each[seen, column], rtol=1e-11)
        assert (found[~seen][:, -1] == np.inf).all()
    np.testing.assert_allclose(trace.drift[seen][:, 1:], each[seen, 2, 1:], rtol=1e-10)


def test_shadow_of_everyone_is_the_virtual_average():
    """Li et al.'s vbar: all clients move, whoever is sampled; after one round it does not know the sample."""
    problem = make(1, (4, 3, 2), weights="uniform")
    common = {"step_size": 0.3, "local_steps": 2, "batch_size": 1}
    sampled = Moments(problem, **common, participation=2).shadow(1, everyone=True)
    full = Moments(problem, **common).shadow(1)
    for mine, theirs in zip(sampled, full, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-15)
    assert sampled.drift[0, 0] == 0.0


# ---------------------------------------------------------------- Monte Carlo


def z_scores(problem, trace, t, W):
    best = problem.solve()
    e = W - best.w
    out = []
    for exact, x in (
        (trace.suboptimality[t], problem.value(W) - best.value),
        (trace.deviation[t], np.sum(e**2, axis=1)),
        *zip(trace.mean_error[t], e.T, strict=True),
    ):
        error, width = np.mean(x) - exact, np.std(x) / math.sqrt(len(x))
        out.append(error / width if width > 1e-12 * (1 + abs(exact)) else 0.0 if abs(error) < 1e-10 else math.inf)
    return out


def random_case(seed):
    """A problem and a method, drawn from all settings that the package's FedAvg shares with the engine."""
    rng = np.random.default_rng([seed, 20])
    K, d = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    sizes = rng.integers(2, 8, K)
    weights = "uniform" if rng.random() < 0.5 else None
    problem = make(int(rng.integers(1 << 30)), sizes, d, float(rng.choice([0.0, 0.2])), weights)
    replacement = bool(rng.random() < 0.4)
    B = [None, 1, int(rng.integers(1, sizes.min() + 1)), int(rng.integers(1, 9)) if replacement else 1][seed % 4]
    scheme = [None, int(rng.integers(1, K + 1)), ProportionalSampling(int(rng.integers(1, 6))), 0.5][seed // 4 % 4]
    E = int(rng.integers(1, 6))
    top = max(np.linalg.eigvalsh(X.T @ X)[-1] / len(X) for X, _ in (rows(problem, k) for k in range(K)))
    scale = float(rng.uniform(0.1, 0.6)) / top
    step = [scale, Decay(2 * scale, 2.0), Decay(scale, 1.0, 0.5, by_round=True)][seed % 3]
    shadow = bool(rng.random() < 0.5)
    server = ServerSGD(1.5) if rng.random() < 0.2 else FedAvg(step_size=1.0).server
    return problem, FedAvg(
        step_size=step,
        local_steps=E,
        batch_size=B,
        replacement=replacement and B is not None,
        participation=scheme,
        shadow=shadow,
        server=server,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(48))
def test_monte_carlo_through_the_driver(seed):
    problem, method = random_case(seed)
    T, R = 2 + seed % 2, 4000
    moments = Moments.of(method, problem)
    start = np.linspace(1.0, -1.0, problem.federation.d)
    trace = moments.run(T, start=start)
    scores = []
    for t, state in iterate(method, problem, rounds=T, seed=seed, trajectories=R, start=start):
        scores += z_scores(problem, trace, t, state.w)
    if method.shadow:
        exact, best = moments.shadow(T, start=start), problem.solve().value
        for j in range(method.local_steps):
            x = problem.value(state.shadow[:, j]) - best
            error, width = x.mean() - exact.suboptimality[-1, j + 1], x.std() / math.sqrt(R)
            scores.append(error / width if width > 1e-12 else 0.0 if abs(error) < 1e-10 else math.inf)
    assert np.max(np.abs(scores)) <= 4.0, (method, scores)


@pytest.mark.parametrize("epochs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_epochs_with_replacement(epochs):
    """Passes of independent batches: as many steps as batches fit, which differ over clients."""
    problem = make(5, (2, 4, 6))
    method = FedAvg(step_size=0.1, epochs=epochs, batch_size=2, replacement=True, participation=2)
    moments = Moments.of(method, problem)
    assert moments.local_steps.tolist() == [epochs, 2 * epochs, 3 * epochs]
    trace = moments.run(2)
    *_, (t, state) = iterate(method, problem, rounds=2, seed=3, trajectories=4000)
    assert np.max(np.abs(z_scores(problem, trace, t, state.w))) <= 4.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_dynamic_fedavg_on_a_moving_target_through_the_driver(seed):
    Q = np.array([[0.02, 0.01], [0.01, 0.03]])
    problem = MovingTarget(make(seed, (5, 4, 3, 6), weights="uniform"), covariance=Q)
    method = DynamicFedAvg(step_size=0.4, local_steps=(1, 2, 3, 4), batch_size=(2, 1, 3, 4), participation=2)
    trace = Moments.of(method, problem).run(3)
    free = Moments.of(method, problem).run(3, drift=np.zeros((2, 2)))
    assert np.all(trace.deviation[1:] > free.deviation[1:])
    scores = []
    for t, state in iterate(method, problem, rounds=3, seed=seed, trajectories=4000):
        scores += z_scores(problem, trace, t, state.w)
    assert np.max(np.abs(scores)) <= 4.0


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("scheme", [None, 2])
def test_plain_simulation_of_a_drifting_minimiser(rng, scheme, before):
    """All labels move by x'q; the ridge's centre moves along. No code is shared with the package."""
    problem = make(11, (5, 4, 3), weights="uniform")
    E, B, a = (3, 1, 2), (2, 3, 1), (0.1, 0.3, 0.15)
    Q = np.array([[0.05, -0.02], [-0.02, 0.03]])
    R, T = 20_000, 3
    w_star = np.linalg.solve(
        sum(rows(problem, k)[0].T @ rows(problem, k)[0] / (3 * len(rows(problem, k)[1])) for k in range(3))
        + problem.l2 * np.eye(2),
        sum(rows(problem, k)[0].T @ rows(problem, k)[1] / (3 * len(rows(problem, k)[1])) for k in range(3)),
    )
    root = np.linalg.cholesky(Q)
    w, s = np.zeros((R, 2)), np.zeros((R, 2))
    deviation = []
    for _ in range(T):
        if before:
            s = s + rng.normal(size=(R, 2)) @ root.T
        results = []
        for k in range(3):
            X, y = rows(problem, k)
            v = w.copy()
            for _ in range(E[k]):
                pick = np.argsort(rng.random((R, len(y))), axis=1)[:, : B[k]]
                residual = np.einsum("rbj,rj->rb", X[pick], v) - y[pick] - np.einsum("rbj,rj->rb", X[pick], s)
                v = v - a[k] * (np.einsum("rb,rbj->rj", residual, X[pick]) / B[k] + problem.l2 * (v - s))
            results.append(v)
        weights = np.full((R, 3), 1 / 3)
        if scheme:
            weights = (np.argsort(np.argsort(rng.random((R, 3)), axis=1), axis=1) < scheme) / scheme
        w = np.einsum("rk,krj->rj", weights, np.array(results))
        if not before:
            s = s + rng.normal(size=(R, 2)) @ root.T
        deviation.append(np.sum((w - w_star - s) ** 2, axis=1))
    moments = Moments(problem, step_size=1.0, local_steps=E, batch_size=B, step_factor=a, participation=scheme)
    exact = moments.run(T, drift=Q, drift_before=before).deviation
    for t in range(T):
        z = (deviation[t].mean() - exact[t + 1]) / (deviation[t].std() / math.sqrt(R))
        assert abs(z) <= 4.0


# ---------------------------------------------------------------- the two forms, and closed forms


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow) if s in (0, 4) else s for s in range(12)])
@pytest.mark.slow_unless(seed=[1, 2, 3, 5])
def test_operator_and_matrix_agree(seed):
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(2, 9)), int(rng.integers(1, 13))
    problem = make(seed, rng.integers(3, 40, K), d, 0.1, [None, "uniform"][seed % 2], sparse=seed % 3 == 0)
    scheme = [None, UniformSampling(max(1, K // 2)), ProportionalSampling(3)][seed % 3]
    B = rng.integers(1, np.asarray(problem.federation.sizes) + 1)
    E = rng.integers(1, 6, K)
    both = [
        Moments(
            problem,
            step_size=0.3 / d,
            local_steps=E,
            batch_size=B,
            participation=scheme,
            step_factor=1 / E,
            server_step=[1.0, 1.3][seed % 2],
            kron=kron,
        )
        for kron in (True, False)
    ]
    Q = 0.01 * np.diag(1.0 + np.arange(d))
    for before in (False, True):
        x, y = (m.run(4, drift=Q, drift_before=before) for m in both)
        for u, v in zip(x, y, strict=True):
            np.testing.assert_allclose(u, v, rtol=1e-10, atol=1e-13)
        x, y = (m.steady_state(drift=Q, drift_before=before) for m in both)
        for u, v in zip(x, y, strict=True):
            np.testing.assert_allclose(u, v, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.slow_unless(before=False)
def test_steady_state_is_the_end_of_a_long_run(kron, before):
    problem = make(4, (6, 5, 8), 3, weights="uniform")
    moments = Moments(problem, step_size=0.15, local_steps=(2, 1, 3), batch_size=2, participation=2, kron=kron)
    Q = np.diag([0.1, 0.0, 0.2])
    end, limit = (
        moments.run(4000, drift=Q, drift_before=before, start=np.ones(3)),
        moments.steady_state(drift=Q, drift_before=before),
    )
    assert moments.spectral_radius**4000 < 1e-14
    assert limit.deviation == pytest.approx(end.deviation[-1], rel=1e-11)
    assert limit.suboptimality == pytest.approx(end.suboptimality[-1], rel=1e-11)
    np.testing.assert_allclose(limit.mean_error, end.mean_error[-1], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(limit.second_moment, end.second_moment, rtol=1e-10, atol=1e-13)
    rate = end.deviation[60:64] - limit.deviation
    np.testing.assert_allclose(rate[1:] / rate[:-1], moments.spectral_radius, rtol=1e-2)


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
def test_without_noise_it_is_the_deterministic_run(kron):
    problem = make(6, (4, 7, 5), 3)
    method = FedAvg(step_size=0.2, local_steps=4, shadow=True)
    moments = Moments.of(method, problem, kron=kron)
    trace, shadow, gradients = moments.run(8), moments.shadow(8), moments.gradients(8)
    best = problem.solve()
    for t, state in iterate(method, problem, rounds=8):
        w = state.w[0]
        assert trace.suboptimality[t] == pytest.approx(problem.value(w) - best.value, abs=1e-12)
        assert trace.deviation[t] == pytest.approx(np.sum((w - best.w) ** 2), abs=1e-12)
        np.testing.assert_allclose(trace.mean_error[t], w - best.w, atol=1e-12)
        if t:
            values = problem.value(state.shadow[0]) - best.value
            np.testing.assert_allclose(shadow.suboptimality[t - 1, 1:], values, atol=1e-12)
            assert shadow.suboptimality[t - 1, -1] == pytest.approx(trace.suboptimality[t], abs=1e-13)
        if t < 8:
            norms = np.sum(problem.client_gradients(w) ** 2, axis=1)
            np.testing.assert_allclose(gradients.second_moment[t, 0], norms, atol=1e-12)
    assert np.all(gradients.variance == 0.0)
    assert shadow.average == pytest.approx(shadow.suboptimality[:, 1:].mean())


@pytest.mark.parametrize("participation", [None, 2, ProportionalSampling(2)])
@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
def test_mean_of_the_limit_is_the_fixed_point(participation, batch_size, kron):
    """w_inf = (sum p_k C_k)^-1 sum p_k C_k w_k*, C_k = I - (I - eta H_k)^E: noise and sampling do not move the mean."""
    weights = "uniform" if participation == 2 else None
    problem = make(8, (6, 9, 7, 5), 3, weights=weights)
    eta, E = 0.1, 7
    total, right = np.zeros((3, 3)), np.zeros(3)
    for k, p in enumerate(problem.weights):
        X, y = rows(problem, k)
        H = X.T @ X / len(y) + problem.l2 * np.eye(3)
        C = np.eye(3) - np.linalg.matrix_power(np.eye(3) - eta * H, E)
        total += p * C
        right += p * C @ np.linalg.solve(H, X.T @ y / len(y))
    moments = Moments(
        problem, step_size=eta, local_steps=E, batch_size=batch_size, participation=participation, kron=kron
    )
    limit = moments.steady_state()
    np.testing.assert_allclose(limit.mean_error + problem.solve().w, np.linalg.solve(total, right), rtol=1e-11)
    if participation is None and batch_size is None:
        assert limit.deviation == pytest.approx(np.sum(limit.mean_error**2), rel=1e-9)
        rate = np.max(np.abs(np.linalg.eigvals(np.eye(3) - total)))
        assert moments.spectral_radius == pytest.approx(rate, rel=1e-10)
    else:
        assert limit.deviation > np.sum(limit.mean_error**2)


def small_step(problem, mu, E, B, L, Q):
    """tr Sigma, H Sigma + Sigma H = mu R_s + Q/mu: mean-square deviation to first order in mu."""
    K, best = problem.federation.K, problem.solve().w
    d = best.size
    H, R = np.zeros((d, d)), np.zeros((d, d))
    for k in range(K):
        X, y = rows(problem, k)
        n = len(y)
        G = (X @ best - y)[:, None] * X + problem.l2 * best
        H += (X.T @ X / n + problem.l2 * np.eye(d)) / K
        R += (n - B[k]) / ((n - 1) * B[k] * E[k]) * np.cov(G.T, bias=True) / (K * L)
        R += (K - L) / (K - 1) * np.outer(G.mean(0), G.mean(0)) / (K * L)
    return 0.5 * np.trace(np.linalg.solve(H, mu * R + Q / mu))


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
@pytest.mark.parametrize(("mu", "low"), [(1e-4, 0.9997), (0.002, 0.995), (0.05, 0.96), (0.2, 0.83)])
def test_small_step_formula(mu, low, kron):
    """The ratio to the exact value tends to one, linearly in mu (it is at least .995 at mu = .002 and .83 at .2)."""
    problem = make(2, (40, 30, 50, 35, 45), 2, 0.0, "uniform")
    E, B = np.array([1, 2, 3, 2, 1]), np.array([5, 1, 10, 3, 20])
    Q = mu**2 * np.array([[0.3, 0.1], [0.1, 0.2]])  # both terms of the order mu
    exact = Moments(
        problem, step_size=mu, local_steps=E, batch_size=B, participation=3, step_factor=1 / E, kron=kron
    ).steady_state(drift=Q)
    ratio = small_step(problem, mu, E, B, 3, Q) / exact.deviation
    assert low <= ratio <= 1.0


@pytest.mark.parametrize("L", [1, 2, 3, 4])
def test_gradient_noise_identity(L):
    """E‖s‖^2 = (1/KL) sum_k (tau_s V_k + tau_eps ‖grad P_k - grad P‖^2) for E = 1: tau_eps to the first power."""
    problem = make(5, (4, 6, 5, 7), 2, weights="uniform")
    B, mu, w, K = np.array([1, 2, 5, 3]), 0.3, np.array([0.5, 1.0]), 4
    after = Moments(problem, step_size=mu, batch_size=B, participation=L).run(1, start=w)
    exact = (after.deviation[1] - np.sum(after.mean_error[1] ** 2)) / mu**2
    spread = np.sum((problem.client_gradients(w) - problem.gradient(w)) ** 2, axis=1)
    noise = noise_factor(problem.federation.sizes, B, False) * problem.gradient_variance(w)
    assert exact == pytest.approx(np.sum(noise + (K - L) / (K - 1) * spread) / (K * L), rel=1e-11)


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
@pytest.mark.slow
def test_mean_square_stability_is_sharper_than_stability_of_the_mean(kron):
    """One Gaussian-like scalar client, B = 1: E(1 - a x^2)^2 = 1 - 2a m2 + a^2 m4 < 1 iff a < 2 m2/m4 (< 2/m2)."""
    x = np.array([0.5, 1.0, 2.0])
    problem = Problem(Federation.from_clients([(x[:, None], [1.0, 0.0, -1.0])]), Squared())
    m2, m4 = np.mean(x**2), np.mean(x**4)
    for a, stable in ((0.99 * 2 * m2 / m4, True), (1.01 * 2 * m2 / m4, False)):
        moments = Moments(problem, step_size=a, batch_size=1, kron=kron)
        assert abs(1 - a * m2) < 1
        assert moments.stable is stable
        assert moments.spectral_radius == pytest.approx(max(1 - 2 * a * m2 + a * a * m4, abs(1 - a * m2)), rel=1e-12)
        if not stable:
            with pytest.raises(ValueError, match=r"spectral radius below 1; got 1\.0.*smaller step size"):
                moments.steady_state()
            assert moments.run(3000).deviation[-1] > 1e3


def test_nearly_unstable_limits_agree():
    """Where noise dominates, the preconditioner alone would converge arbitrarily slowly."""
    problem = make(3, (30, 20), 4)
    low, high = 0.01, 2.0
    for _ in range(40):
        a = 0.5 * (low + high)
        low, high = (a, high) if Moments(problem, step_size=a, batch_size=1, local_steps=2).stable else (low, a)
    limits = [
        Moments(problem, step_size=0.999 * low, batch_size=1, local_steps=2, kron=k).steady_state()
        for k in (True, False)
    ]
    assert limits[0].spectral_radius > 0.99
    for u, v in zip(*limits, strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kron", [True, False], ids=["kron", "operator"])
def test_flat_directions_and_overflow(kron):
    """Without a unique minimiser the objective is exact and the deviation has no limit; overflow is infinite."""
    X = np.array([[1.0, 1.0], [2.0, 2.0]])
    problem = Problem(Federation.from_clients([(X, [1.0, 0.0])]), Squared())
    moments = Moments(problem, step_size=0.1, batch_size=1, kron=kron)
    story, _ = enumerate_run(problem, 2, None, lambda t, k: [0.1], 1, start=np.array([1.0, -2.0]))
    trace = moments.run(2, start=np.array([1.0, -2.0]))
    assert trace.suboptimality[2] == pytest.approx(expected(problem, *story[2])[0], rel=1e-12)
    with pytest.raises(ValueError, match="add l2"):
        moments.steady_state()
    wild = Moments(problem, step_size=1e3, batch_size=1, kron=kron)
    trace = wild.run(100)
    assert trace.deviation[-1] == trace.suboptimality[-1] == math.inf
    assert not np.isnan(trace.deviation).any()
    assert wild.gradients(100).G2 == math.inf
    assert not np.isnan(wild.shadow(100).drift).any()


@pytest.mark.slow
def test_large_dimensions_never_form_the_matrix():
    problem = make(0, (80, 90, 70), 40, 0.5)
    moments = Moments(problem, step_size=0.02, local_steps=3, batch_size=8)
    assert not moments.kron
    limit = moments.steady_state()
    end = moments.run(600)
    assert limit.deviation == pytest.approx(end.deviation[-1], rel=1e-7)
    assert limit.deviation > 0


def test_maxima_along_the_run():
    problem = make(9, (5, 6, 4), 2)
    trace = Moments(problem, step_size=0.1, local_steps=(1, 3, 2), batch_size=2).gradients(5)
    assert trace.second_moment.shape == (5, 3, 3)
    assert trace.G2 == np.nanmax(trace.second_moment)
    assert trace.sigma2_k.shape == (3,)
    constants = problem.constants(batch_size=2, center=np.zeros(2))
    np.testing.assert_allclose(trace.variance[0, 0], constants.sigma2_k, rtol=1e-12)
    np.testing.assert_allclose(trace.second_moment[0, 0], constants.G2_k, rtol=1e-12)


# ---------------------------------------------------------------- settings


def test_participation_in_every_spelling():
    problem = make(2, (4, 4, 4, 4))
    p = problem.weights

    def of(x):
        return Moments(problem, step_size=0.2, local_steps=2, batch_size=1, participation=x).run(3).deviation

    pairs = 2 / 12 / 4
    scheme = WeightMoments(p, np.full((4, 4), pairs) + (1 / 8 - pairs) * np.eye(4))
    for same in (UniformSampling(2), 0.5, scheme):
        np.testing.assert_allclose(of(same), of(2), rtol=1e-13)
    for same in (1.0, 4, WeightMoments(p, np.outer(p, p))):
        np.testing.assert_allclose(of(same), of(None), rtol=1e-13)
    np.testing.assert_allclose(of(ProportionalSampling(1)), of(1), rtol=1e-13)


def test_settings_of_methods():
    problem = make(2, (4, 3, 2))
    full = Moments.of(FedAvg(step_size=0.1, epochs=3), problem)
    assert full.local_steps.tolist() == [3, 3, 3]
    np.testing.assert_allclose(
        Moments.of(FedSGD(step_size=Decay(0.3, 1.0), participation=2), problem).run(3).deviation,
        Moments.of(FedAvg(step_size=Decay(0.3, 1.0), participation=2), problem).run(3).deviation,
    )
    assert Moments.of(FedAvg(step_size=0.1, server=ServerSGD(0.5)), problem).round.server_step == 0.5
    for method, text in (
        (FedAvg(step_size=0.1, client=ClientMomentum()), "plain steps"),
        (FedAvg(step_size=0.1, client=ClientAdam()), "plain steps"),
        (FedAvg(step_size=0.1, server=ServerAdam()), "without momentum"),
        (FedAvg(step_size=0.1, server=ServerSGD(1.0, 0.9)), "without momentum"),
        (FedProx(step_size=0.1, proximal_mu=0.5), "plain steps"),
        (FedAvg(step_size=0.1, epochs=1, batch_size=2), "draw every batch anew"),
        (FedAvg(step_size=0.1, epochs=1, batch_size=2, replacement=True), "differ in size"),
        (FedAvg(step_size=[0.1, 0.2]), "one number"),
    ):
        with pytest.raises(ValueError, match=text):
            Moments.of(method, problem)
    with pytest.raises(TypeError, match="declare local steps"):
        Moments.of(object(), problem)


def test_a_method_is_known_by_what_it_declares_not_by_its_name():
    """A subclass is read like FedAvg, a class that only bears its name is refused, and so is another paper's round."""
    problem = make(2, (4, 3, 2))

    class Renamed(FedAvg):
        """FedAvg under a name of its own."""

    settings = {"step_size": 0.1, "local_steps": 3, "batch_size": 1, "participation": 2}
    mine = Moments.of(Renamed(**settings), problem).run(3)
    np.testing.assert_array_equal(mine.deviation, Moments.of(FedAvg(**settings), problem).run(3).deviation)
    namesake = type("FedAvg", (), dict(vars(FedAvg(**settings))))()
    with pytest.raises(TypeError, match="declare local steps; got FedAvg"):
        Moments.of(namesake, problem)
    without_its_term = Moments.of(FedProx(step_size=0.1, local_steps=3, proximal_mu=0.0), problem).run(3)
    plain = Moments.of(FedAvg(step_size=0.1, local_steps=3), problem).run(3)
    np.testing.assert_array_equal(without_its_term.deviation, plain.deviation)
    with pytest.raises(TypeError, match="got ProgressiveHedging"):
        Moments.of(ProgressiveHedging(), problem)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"step_size": -1.0}, ValueError, "step_size must be positive"),
        ({"step_size": [0.1, 0.2]}, ValueError, "one Moments for each"),
        ({"local_steps": 0}, ValueError, "local_steps must be at least 1"),
        ({"local_steps": (1, 2)}, ValueError, r"one per client \(3\)"),
        ({"local_steps": (1.5, 2, 3)}, TypeError, "whole numbers"),
        ({"local_steps": (1, 2, 3), "step_size": Decay(0.1, 1.0)}, ValueError, "by_round=True"),
        ({"batch_size": 3}, ValueError, "be at most 2, the rows of client 2; got 3: or pass replacement=True"),
        ({"batch_size": (1, 0, 1)}, ValueError, "at least 1; got 0"),
        ({"participation": 4}, ValueError, "at most 3"),
        ({"participation": 0.0}, ValueError, "participation"),
        ({"participation": "all"}, TypeError, "sampling scheme"),
        ({"participation": WeightMoments(np.ones(3), np.ones((3, 3)))}, ValueError, "weights that sum to one"),
        ({"participation": WeightMoments(np.ones(3) / 3, np.ones(3))}, ValueError, "shape"),
        ({"step_factor": (1.0, -1.0, 1.0)}, ValueError, "nonnegative"),
        ({"step_factor": (1.0, 1.0)}, ValueError, "3 entries"),
        ({"server_step": 0.0}, ValueError, "server_step"),
    ],
)
def test_bad_settings(change, error, text):
    with pytest.raises(error, match=text):
        Moments(make(0), **{"step_size": 0.1, **change})


def test_bad_problems_and_runs():
    X, y = np.eye(2), np.array([1.0, -1.0])
    with pytest.raises(TypeError, match="squared loss"):
        Moments(Problem(Federation.from_clients([(X, y)]), Logistic()), step_size=0.1)
    with pytest.raises(TypeError, match="be a Problem"):
        Moments(X, step_size=0.1)
    many = make(0, tuple(range(2, 32)))
    with pytest.raises(ValueError, match=r"15 of 30 with unequal weights.*weights='uniform'"):
        Moments(many, step_size=0.1, participation=15)
    moments = Moments(make(0), step_size=0.1, local_steps=(1, 2, 3))
    with pytest.raises(ValueError, match="equally many local steps"):
        moments.shadow(2)
    with pytest.raises(ValueError, match="2 entries"):
        moments.run(2, start=np.ones(3))
    with pytest.raises(ValueError, match="rounds"):
        moments.run(-1)
    for Q, text in ((np.eye(3), "shape"), (-np.eye(2), "semidefinite"), (np.array([[1.0, 1], [0, 1]]), "symmetric")):
        with pytest.raises(ValueError, match=text):
            moments.run(2, drift=Q)
    with pytest.raises(ValueError, match="constant step size"):
        Moments(make(0), step_size=Decay(0.1, 1.0)).steady_state()


@pytest.mark.parametrize(("batch", "replacement"), [(1, False), (2, False), (2, True)])
def test_stages_of_svrg_by_all_paths(batch, replacement):
    """Three rows, three steps, two stages: every batch of every step, and every iterate that may be drawn."""
    rng = np.random.default_rng(8)
    X, y, l2, eta, m = rng.normal(size=(3, 2)), rng.normal(size=3), 0.2, 0.15, 3
    problem = Problem(Federation.from_arrays(X, y, [0, 0, 0]), Squared(), l2)
    H = X[:, :, None] * X[:, None, :] + l2 * np.eye(2)
    draws = product(range(3), repeat=batch) if replacement else combinations(range(3), batch)
    rows = [H[list(b)].mean(axis=0) for b in draws]

    def stage(states):
        out = []
        for p, snapshot in states:
            now = [(p, snapshot)]
            for _ in range(m):
                out += [(q / m, e) for q, e in now]
                now = [
                    (q / len(rows), e - eta * (A @ (e - snapshot) + H.mean(axis=0) @ snapshot))
                    for q, e in now
                    for A in rows
                ]
        return out

    expected, states, stages = [], [(1.0, np.array([1.0, -2.0]))], 1 if replacement else 2
    for _ in range(stages + 1):
        expected.append(sum(q * 0.5 * e @ H.mean(axis=0) @ e for q, e in states))
        states = stage(states) if len(expected) <= stages else states
    how = {"step_size": eta, "inner_steps": m, "batch_size": batch, "replacement": replacement}
    start = problem.solve().w + np.array([1.0, -2.0])
    np.testing.assert_allclose(stage_suboptimality(problem, start, stages=stages, **how), expected, rtol=1e-11)


def test_stages_of_what_has_no_moments():
    fed = Federation.from_arrays(np.ones((2, 1)), [1.0, -1.0], [0, 0])
    with pytest.raises(TypeError, match="problem"):
        stage_suboptimality(Problem(fed, Logistic()), np.zeros(1), step_size=0.1, inner_steps=2, stages=1)
    wide = Problem(Federation.from_arrays(np.ones((2, 11)), [1.0, -1.0], [0, 0]), Squared())
    with pytest.raises(ValueError, match="at most 10 features and rows that weigh 1/n each; got 11 features"):
        stage_suboptimality(wide, np.zeros(11), step_size=0.1, inner_steps=2, stages=1)
    with pytest.raises(TypeError, match="no penalty"):  # its minimiser is another one
        stage_suboptimality(Problem(fed, Squared(), penalty=L1(0.1)), [1.0], step_size=0.1, inner_steps=2, stages=1)
    with pytest.raises(TypeError, match="stage_suboptimality: batch_size must be a whole number"):
        stage_suboptimality(Problem(fed, Squared()), [1.0], step_size=0.1, inner_steps=2, stages=1, batch_size=[1])
    uneven = Problem(Federation.from_arrays(np.ones((3, 1)), [1.0, -1.0, 0.0], [0, 0, 1]), Squared(), weights="uniform")
    with pytest.raises(ValueError, match="weights of rows or clients"):
        stage_suboptimality(uneven, [1.0], step_size=0.1, inner_steps=2, stages=1)
    far = stage_suboptimality(Problem(fed, Squared()), [1.0], step_size=30.0, inner_steps=10**6, stages=2)
    assert far[0] == 0.5 and np.isinf(far[1:]).all()  # steps far too long: no warning, no nan
    verdict = verify("svrg", uneven, SVRG(step_size=0.1, inner_steps=100), rounds=1)  # it refuses to run on this
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert "client weights n_k/n" in str(verdict)
