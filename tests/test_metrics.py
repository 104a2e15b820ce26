"""Drift, dissimilarity, weight divergence and loss spread against formulas written in NumPy."""

import numpy as np
import pytest

from fedconvex import (
    SGD,
    FedAvg,
    Federation,
    FedSGD,
    GradientDescent,
    Logistic,
    Problem,
    Softmax,
    Squared,
    iterate,
    run,
)
from fedconvex.datasets import linear_federation
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.methods import ClientMomentum, Decay, DynamicFedAvg, ProgressiveHedging
from fedconvex.report import (
    client_drift,
    format_table,
    gradient_dissimilarity,
    heterogeneity_plot,
    heterogeneity_table,
    heterogeneity_trace,
    loss_spread,
    weight_divergence,
)


def rows_of(problem, k):
    fed = problem.federation
    X = fed.X.toarray() if fed.is_sparse else fed.X
    return X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]


def loss_gradient(problem, k, w):
    """Mean loss of client k without the ridge term, and grad f_k with it, from the raw rows."""
    X, y = rows_of(problem, k)
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
        hit = np.eye(len(w))[y.astype(int)]
        return -np.log((P * hit).sum(axis=1)).mean(), (P - hit).T @ X / len(y) + problem.l2 * w
    z = X @ w
    if isinstance(problem.loss, Squared):
        return 0.5 * np.mean((z - y) ** 2), X.T @ (z - y) / len(y) + problem.l2 * w
    return np.log1p(np.exp(-y * z)).mean(), X.T @ (-y / (1 + np.exp(y * z))) / len(y) + problem.l2 * w


def local_models(problem, w, eta, tau, clients=None):
    out = []
    for k in range(problem.federation.K) if clients is None else clients:
        v = w
        for _ in range(tau):
            v = v - eta * loss_gradient(problem, k, v)[1]
        out.append(v)
    return np.array(out)


# ---------------------------------------------------------------- at a model


@pytest.mark.parametrize("weights", [None, "uniform"])
def test_gradient_dissimilarity(problem, weights, rng):
    mine = Problem(problem.federation, problem.loss, problem.l2, weights)
    W = rng.normal(size=(3, *mine.model_shape))
    several = gradient_dissimilarity(mine, W)
    for r, w in enumerate(W):
        G = np.array([loss_gradient(mine, k, w)[1] for k in range(mine.federation.K)])
        mean = np.tensordot(mine.weights, G, 1)
        B2 = sum(p * np.sum(g**2) for p, g in zip(mine.weights, G, strict=True)) / np.sum(mean**2)
        zeta2 = sum(p * np.sum((g - mean) ** 2) for p, g in zip(mine.weights, G, strict=True))
        found = gradient_dissimilarity(mine, w)
        assert found.B2 == pytest.approx(B2, rel=1e-12)
        assert found.zeta2 == pytest.approx(zeta2, rel=1e-12)
        assert (several.B2[r], several.zeta2[r]) == pytest.approx((found.B2, found.zeta2), rel=1e-14)
        assert mine.constants(center=w).B ** 2 == pytest.approx(B2, rel=1e-12)
    best = mine.solve().w
    assert gradient_dissimilarity(mine, best).zeta2 == pytest.approx(mine.constants().zeta_star ** 2, rel=1e-9)


def test_dissimilarity_where_gradients_vanish():
    same = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [1.0])])
    assert gradient_dissimilarity(Problem(same, Squared()), np.array([1.0])) == (1.0, 0.0)
    assert gradient_dissimilarity(Problem(same, Squared()), np.array([0.0])) == (1.0, 0.0)
    apart = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    assert gradient_dissimilarity(Problem(apart, Squared()), np.array([2.0])) == (np.inf, 1.0)


def test_loss_spread(problem, rng):
    w = rng.normal(size=problem.model_shape)
    loss = np.sort([loss_gradient(problem, k, w)[0] for k in range(problem.federation.K)])
    found = loss_spread(problem, w)
    n = len(loss) - 1

    def quantile(q):  # linear between order statistics
        i = int(np.floor(q * n))
        return loss[i] + (q * n - i) * (loss[min(i + 1, n)] - loss[i])

    assert found[:5] == pytest.approx([quantile(q) for q in (0, 0.25, 0.5, 0.75, 1)], rel=1e-12)
    assert found.std == pytest.approx(np.sqrt(np.mean((loss - loss.mean()) ** 2)), rel=1e-12)
    worst = int(np.argmax([loss_gradient(problem, k, w)[0] for k in range(problem.federation.K)]))
    assert found.worst == problem.federation.labels[worst]
    with pytest.raises(ValueError, match="be one model"):
        loss_spread(problem, np.stack([w, w]))


def test_client_drift(problem, rng):
    w = rng.normal(size=problem.model_shape)
    W = local_models(problem, w, 0.1, 4)
    mean = np.tensordot(problem.weights, W, 1)
    found = client_drift(FedAvg(step_size=0.1, local_steps=4, participation=2), problem, w)  # everybody all the same
    expected = np.array([np.sum((v - w) ** 2) for v in W])
    np.testing.assert_allclose(found.clients, expected, rtol=1e-11)
    assert found.drift == pytest.approx(expected.mean(), rel=1e-12)
    assert found.spread == pytest.approx(np.mean([np.sum((v - mean) ** 2) for v in W]), rel=1e-11)
    batches = FedAvg(step_size=0.1, local_steps=4, batch_size=2)
    a, b, c = (client_drift(batches, problem, w, seed=s).drift for s in (1, 1, 2))
    assert a == b != c


def test_drift_of_methods_with_memory_and_without_models(linear):
    w = np.array([1.0, -1.0, 0.5])
    exact = client_drift(ProgressiveHedging(rho=0.5), linear, w)
    for k in range(linear.federation.K):
        X, y = rows_of(linear, k)
        H = X.T @ X / len(y) + linear.l2 * np.eye(3)
        x = np.linalg.solve(H + 0.5 * np.eye(3), X.T @ y / len(y) + 0.5 * w)
        assert exact.clients[k] == pytest.approx(np.sum((x - w) ** 2), rel=1e-10)
    with pytest.raises(TypeError, match="clients that answer models; got FedSGD"):
        client_drift(FedSGD(step_size=0.1), linear, w)
    with pytest.raises(TypeError, match="method with clients; got GradientDescent"):
        client_drift(GradientDescent(step_size=0.1), linear, w)


# ---------------------------------------------------------------- along a run


def test_trace_of_a_run(problem, rng):
    start = rng.normal(size=problem.model_shape)
    method = FedAvg(step_size=0.1, local_steps=3, participation=2)
    trace = heterogeneity_trace(method, problem, rounds=5, seed=4, start=start)
    models = [state.w[0] for _, state in iterate(method, problem, rounds=5, seed=4, start=start)]
    np.testing.assert_array_equal(trace.round, np.arange(6))
    assert np.isnan(trace.drift[0])
    assert np.isnan(trace.spread[0])
    c = start
    for t, w in enumerate(models):
        assert trace.value[t] == pytest.approx(problem.value(w), rel=1e-13)
        assert (trace.B2[t], trace.zeta2[t]) == pytest.approx(gradient_dissimilarity(problem, w), rel=1e-13)
        spread = loss_spread(problem, w)
        names = ("loss_min", "loss_q1", "loss_median", "loss_q3", "loss_max", "loss_std")
        assert [trace[name][t] for name in names] == pytest.approx(spread[:6], rel=1e-13)
        assert trace.worst_client[t] == spread.worst
        assert trace.divergence[t] == pytest.approx(np.linalg.norm(w - c) / np.linalg.norm(c), rel=1e-9, abs=1e-14)
        for _ in range(3):
            c = c - 0.1 * sum(p * loss_gradient(problem, k, c)[1] for k, p in enumerate(problem.weights))
        if t:
            before = models[t - 1]
            clients, q = participants(method, problem, Draws(key_from_seed(4), np.arange(1), t - 1))
            W = local_models(problem, before, 0.1, 3, clients[0])
            assert trace.drift[t] == pytest.approx(np.mean([np.sum((v - before) ** 2) for v in W]), rel=1e-10)
            mean = np.tensordot(q[0], W, 1)
            assert trace.spread[t] == pytest.approx(np.mean([np.sum((v - mean) ** 2) for v in W]), rel=1e-9)
    coarse = heterogeneity_trace(method, problem, rounds=5, every=2, seed=4, start=start, baseline=False)
    np.testing.assert_array_equal(coarse.round, [0, 2, 4, 5])
    np.testing.assert_array_equal(coarse.drift[1:], trace.drift[[2, 4, 5]])
    assert "divergence" not in coarse


def test_watching_changes_nothing(linear):
    method = ProgressiveHedging(rho=0.5, participation=3)
    trace = heterogeneity_trace(method, linear, rounds=7, seed=2, baseline=GradientDescent(step_size=0.1))
    plain = run(method, linear, rounds=7, seed=2, tol=0)
    np.testing.assert_array_equal(trace.value, plain.trace.value)
    assert trace.divergence.shape == (8,)
    assert np.isnan(trace.divergence[0])  # both start at zero


# ---------------------------------------------------------------- weight divergence


def test_one_full_step_does_not_diverge(problem):
    assert weight_divergence(FedSGD(step_size=0.1), problem, rounds=8)[1:].max() < 1e-13
    assert weight_divergence(FedAvg(step_size=Decay(1.0, 9.0)), problem, rounds=8)[1:].max() < 1e-13
    uniform = Problem(problem.federation, problem.loss, problem.l2, "uniform")
    for one in (FedAvg(step_size=Decay(1.0, 9.0, by_round=True)), DynamicFedAvg(step_size=0.1)):  # rounds are steps
        assert weight_divergence(one, uniform, rounds=8)[1:].max() < 1e-13


def test_default_baselines_take_as_many_steps(linear):
    rounds, tau = 6, 4
    gd, c = [], np.zeros(3)
    for _ in range(rounds):
        for _ in range(tau):
            c = c - 0.05 * sum(p * loss_gradient(linear, k, c)[1] for k, p in enumerate(linear.weights))
        gd.append(c)
    for method in (FedAvg(step_size=0.05, local_steps=tau), FedAvg(step_size=0.05, epochs=tau)):
        found = weight_divergence(method, linear, rounds=rounds)
        w = run(method, linear, rounds=rounds, tol=0).w
        assert found[-1] == pytest.approx(np.linalg.norm(w - gd[-1]) / np.linalg.norm(gd[-1]), rel=1e-10)
        assert found[-1] > 1e-3
    batches = FedAvg(step_size=0.05, local_steps=tau, batch_size=2)
    twin = SGD(step_size=0.05, batch_size=2, steps=tau)
    found = weight_divergence(batches, linear, rounds=rounds, seed=3)
    a, b = (run(m, linear, rounds=rounds, seed=3, tol=0).w for m in (batches, twin))
    assert found[-1] == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b), rel=1e-12)
    own = weight_divergence(
        batches, linear, rounds=rounds, seed=3, baseline=GradientDescent(step_size=0.05), baseline_rounds=tau
    )
    assert own[-1] == pytest.approx(np.linalg.norm(a - gd[-1]) / np.linalg.norm(gd[-1]), rel=1e-10)
    even = Problem(Federation(linear.federation.X[:8], linear.federation.y[:8], [0, 4, 8]), Squared(), 0.1)
    a, b = (
        weight_divergence(FedAvg(step_size=0.05, batch_size=3, **how), even, rounds=1, baseline=twin)
        for how, twin in (({"epochs": 2}, None), ({"epochs": 2}, SGD(step_size=0.05, batch_size=3, steps=4)))
    )
    np.testing.assert_array_equal(a[1:], b[1:])  # two batches an epoch


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (ProgressiveHedging(rho=1.0), "be FedAvg with plain local steps"),
        (DynamicFedAvg(step_size=0.1, local_steps=2), "be FedAvg with plain local steps"),
        (FedAvg(step_size=0.1, client=ClientMomentum(0.5)), "be FedAvg with plain local steps"),
        (FedAvg(step_size=0.1, epochs=1, batch_size=2), "equally many steps at every client; got 2 to 5"),
        (FedAvg(step_size=Decay(1.0, by_round=True), local_steps=2), "constant or counts steps"),
    ],
)
def test_no_default_baseline(linear, method, text):
    with pytest.raises(ValueError, match=f"{text}.*give baseline="):
        weight_divergence(method, linear, rounds=1)


# ---------------------------------------------------------------- on paper


@pytest.fixture(scope="module")
def traces():
    rng = np.random.default_rng(3)
    pairs = []
    for k in range(6):
        X = rng.normal(size=(12, 3)) + 0.3 * k
        pairs.append((X, np.where(X @ rng.normal(size=3) > 0, 1.0, -1.0)))
    problem = Problem(Federation.from_clients(pairs, labels=list("abcdef")), Logistic(), 0.1)
    few = FedAvg(step_size=0.3, local_steps=2)
    many = FedAvg(step_size=0.3, local_steps=10)
    return {f"{m.local_steps} steps": heterogeneity_trace(m, problem, rounds=30) for m in (few, many)}


@pytest.mark.slow
def test_more_local_steps_drift_further(traces):
    few, many = traces.values()
    assert np.all(many.drift[1:] > few.drift[1:])
    assert many.divergence[-1] > few.divergence[-1]


def test_table(traces):
    trace = traces["2 steps"]
    text = heterogeneity_table(trace, rows=4)
    lines = text.splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:3] == ["0", "-", f"{trace.B2[0]:.4g}"]
    assert lines[-1].split()[0] == "30"
    assert lines[-1].split()[-1] == trace.worst_client[-1]
    headers = ["round", "drift", "B^2", "zeta^2", "divergence", "median loss", "worst loss", "worst client"]
    columns = ["round", "drift", "B2", "zeta2", "divergence", "loss_median", "loss_max", "worst_client"]
    full = [[trace[name][i].item() for name in columns] for i in range(31)]
    assert heterogeneity_table(trace, rows=99) == format_table(headers, full)


@pytest.mark.slow
def test_plot(traces, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    figure = heterogeneity_plot(traces, tmp_path / "h.svg", title="two runs")
    assert (tmp_path / "h.svg").read_text().startswith("<?xml")
    assert len(list(tmp_path.iterdir())) == 1
    drift, zeta, divergence, losses = figure.axes
    for axis, column in ((drift, "drift"), (zeta, "zeta2"), (divergence, "divergence")):
        assert axis.get_yscale() == "log"
        for line, trace in zip(axis.lines, traces.values(), strict=True):
            y = np.asarray(line.get_ydata(), dtype=float)
            kept = np.isfinite(y)
            np.testing.assert_array_equal(y[kept], trace[column][kept])
            assert kept.sum() >= 30
    assert [line.get_label() for line in losses.lines[::2]] == [f"{name}: median, middle half" for name in traces]
    colours = {matplotlib.colors.to_hex(line.get_color()) for line in drift.lines}
    assert len(colours) == 2
    with pytest.raises(ValueError, match="nonempty mapping"):
        heterogeneity_plot({})
    with pytest.raises(TypeError, match="come from heterogeneity_trace"):
        heterogeneity_plot({"a": traces})


def test_rounds_are_counted():
    problem = Problem(linear_federation(seed=0).federation, Squared())
    for measure in (heterogeneity_trace, weight_divergence):
        with pytest.raises(TypeError, match="rounds must be a whole number"):
            measure(FedAvg(step_size=0.1), problem, rounds=None)
