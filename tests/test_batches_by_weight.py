"""Mini-batches drawn by weight: unbiased, like those drawn uniformly and scaled, with a variance of their own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, SmoothedHinge, Softmax, Squared, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.kernels import batches
from fedconvex.methods import SCAFFOLD, AgnosticFedAvg, FedProx, FedSAM
from fedconvex.theory.moments import Moments
from fedconvex.verify import verify

BY_WEIGHT = {"replacement": True, "batch_draw": "weighted"}


def made(loss, weights=True, n=9, l2=0.1):
    """Two clients of four and five rows with weights from 0 to 9."""
    rng = np.random.default_rng(4)
    X, y, s = rng.normal(size=(n, 2)), rng.normal(size=n), np.array([1.0, 0.0, 9.0, 2.0, 3.0, 1.0, 0.5, 0.0, 4.0])
    if not isinstance(loss, Squared):
        y = rng.integers(0, 3, n) * 1.0 if isinstance(loss, Softmax) else np.sign(y)
    return Problem(Federation.from_arrays(X, y, np.arange(n) // 5, sample_weight=s if weights else None), loss, l2)


def gradients(p, k, w):
    """Gradients of client k's rows as they are, (n, size), with l2, and their probabilities."""
    fed = p.federation
    mine = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
    rows = [Problem(Federation(fed.X[[i]], fed.y[[i]], np.array([0, 1])), p.loss, p.l2) for i in range(fed.n)[mine]]
    return np.array([r.gradient(w).ravel() for r in rows]), fed.sample_weight[mine] / fed.sample_weight[mine].sum()


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=repr)
def test_all_batches_of_two_by_their_probabilities(loss):
    """The mean is the client's gradient; the mean square deviation is what gradient_variance says, over two."""
    p = made(loss)
    w = np.linspace(-1.0, 1.0, p.size).reshape(p.model_shape)
    for k in range(2):
        g, chance = gradients(p, k, w)
        mean, square = 0.0, 0.0
        for pair in itertools.product(range(len(g)), repeat=2):
            both = g[list(pair)].mean(axis=0)
            mean, square = mean + chance[list(pair)].prod() * both, square + chance[list(pair)].prod() * both @ both
        np.testing.assert_allclose(mean, p.client_gradients(w)[k].ravel(), rtol=1e-12)
        variance = p.gradient_variance(w, by_weight=True)[k]
        assert square - mean @ mean == pytest.approx(variance / 2.0, rel=1e-11)
        at = p.constants(batch_size=2, center=w, **BY_WEIGHT)
        assert at.sigma2_k[k] == pytest.approx(variance / 2.0, rel=1e-12)


@pytest.mark.slow
def test_rows_are_drawn_with_their_probabilities():
    """Shares of 20,000 draws within five standard deviations; rows of weight zero never; both ends are reached."""
    p, draws = made(Squared()), 20_000
    out, pool = np.empty(draws, np.int64), np.empty(9, np.int64)
    for k, state in itertools.product(range(2), (np.uint64(1), np.uint64(2**63))):
        lo, n = int(p.federation.ptr[k]), int(p.federation.sizes[k])
        batches.draw_rows(state, lo, n, draws, 1, p.cumulative_row_weights, pool, out)
        s = p.federation.sample_weight[lo : lo + n]
        seen, chance = np.bincount(out - lo, minlength=n) / draws, s / s.sum()
        assert np.all(np.abs(seen - chance) <= 5.0 * np.sqrt(chance / draws))
        assert (seen[s == 0.0] == 0.0).all() and (seen[s > 0.0] > 0.0).all()


@pytest.mark.parametrize("loss", [Squared(), Logistic(), SmoothedHinge(0.5)], ids=repr)
def test_suprema_hold_on_a_ball(loss):
    """sigma^2 and G^2 are at least what 30 models of the ball have; sigma^2 of least squares is attained on it."""
    p = made(loss)
    centre = p.solve().w
    c = p.constants(batch_size=1, center=centre, radius=0.7, **BY_WEIGHT)
    rng, most = np.random.default_rng(0), np.zeros(2)
    for _ in range(300):
        u = rng.normal(size=2)
        v = p.gradient_variance(centre + 0.7 * u / np.linalg.norm(u), by_weight=True)
        most = np.maximum(most, v)
        assert np.all(v <= np.asarray(c.sigma2_k) * (1.0 + 1e-12))
    if isinstance(loss, Squared):
        np.testing.assert_allclose(most, c.sigma2_k, rtol=1e-3)
    rough = max(float(x @ x) for x, s in zip(p.federation.X, p.federation.sample_weight, strict=True) if s > 0.0)
    assert c.L_s == pytest.approx(p.traits.smoothness * rough + 0.1, rel=1e-12)


@pytest.mark.parametrize("kron", [True, False])
def test_exact_moments_by_enumeration(kron):
    """Two local steps on single rows: every pair of rows of either client, by its probability."""
    p, eta, start = made(Squared()), 0.3, np.array([0.5, -1.0])
    best = p.solve().w
    moves, squares = [], []
    for k in range(2):
        lo, n = int(p.federation.ptr[k]), int(p.federation.sizes[k])
        X, y, s = (a[lo : lo + n] for a in (p.federation.X, p.federation.y, p.federation.sample_weight))
        mean, square = np.zeros(2), 0.0
        for i, j in itertools.product(range(n), repeat=2):
            w = start - eta * ((X[i] @ start - y[i]) * X[i] + 0.1 * start)
            w = w - eta * ((X[j] @ w - y[j]) * X[j] + 0.1 * w) - best
            chance = s[i] * s[j] / s.sum() ** 2
            mean, square = mean + chance * w, square + chance * (w @ w)
        moves.append(mean)
        squares.append(square)
    q, moves = p.weights, np.array(moves)
    exact = (q @ moves) @ (q @ moves) + sum(q[k] ** 2 * (squares[k] - moves[k] @ moves[k]) for k in range(2))
    method = FedAvg(step_size=eta, local_steps=2, batch_size=1, **BY_WEIGHT)
    found = Moments.of(method, p, kron=kron)
    assert found.run(1, start=start).deviation[-1] == pytest.approx(exact, rel=1e-11)
    uniform = Moments.of(FedAvg(step_size=eta, local_steps=2, batch_size=1, replacement=True), p, kron=kron)
    assert uniform.run(1, start=start).deviation[-1] > 1.1 * exact


def test_runs_agree_with_their_moments():
    p = made(Squared())
    method = FedAvg(step_size=0.1, local_steps=2, batch_size=1, **BY_WEIGHT)
    verdict = verify(
        "fedavg-at-optimum", p, FedAvg(step_size=0.02, local_steps=2, batch_size=1, **BY_WEIGHT), rounds=20
    )
    assert verdict.outcome.name == "HOLDS", verdict
    runs = run(method, p, rounds=5, trajectories=400, tol=0.0, progress=False)
    off = np.sum((runs.w - p.solve().w) ** 2, axis=1)
    exact = Moments.of(method, p).run(5).deviation[-1]
    assert abs(off.mean() - exact) <= 4.5 * off.std() / 20.0


def test_without_weights_nothing_changes():
    p = made(Logistic(), weights=False)
    plain = run(FedAvg(step_size=0.2, local_steps=3, batch_size=2, replacement=True), p, rounds=3, progress=False)
    other = run(FedAvg(step_size=0.2, local_steps=3, batch_size=2, **BY_WEIGHT), p, rounds=3, progress=False)
    np.testing.assert_array_equal(plain.w, other.w)


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(step_size=0.2, local_steps=3, batch_size=2, **BY_WEIGHT),
        FedAvg(step_size=0.2, epochs=2, batch_size=1, **BY_WEIGHT),
        SCAFFOLD(step_size=0.2, local_steps=3, batch_size=2, **BY_WEIGHT),
        FedProx(step_size=0.2, proximal_mu=1.0, local_steps=3, batch_size=2, **BY_WEIGHT),
        FedSAM(step_size=0.2, local_steps=2, batch_size=2, rho=0.05, **BY_WEIGHT),
    ],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=repr)
def test_methods_take_them(method, loss):
    """The same bits with two threads, and for a client alone; rows of weight zero change nothing."""
    p = made(loss)
    one, two = (run(method, p, rounds=3, seed=2, threads=t, progress=False) for t in (1, 2))
    np.testing.assert_array_equal(one.w, two.w)
    s = p.federation.sample_weight
    far = Federation.from_arrays(
        np.where(s[:, None] > 0.0, p.federation.X, 1e6), p.federation.y, np.arange(9) // 5, sample_weight=s
    )
    other = run(method, Problem(far, loss, 0.1), rounds=3, seed=2, progress=False)
    np.testing.assert_allclose(one.w, other.w, rtol=1e-12)
    if isinstance(method, FedAvg):
        draws, w = Draws(key_from_seed(0), np.zeros(1, np.int64), 1), np.zeros((1, *p.model_shape))
        among, _ = method.local_models(p, w, np.array([[0, 1]]), draws)
        alone, _ = method.local_models(p.client(1), w, np.array([[0]]), draws)
        np.testing.assert_array_equal(alone[:, 0], among[:, 1])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"FedAvg.batch_draw must be one of 'uniform', 'weighted'; got heavy"):
        FedAvg(step_size=0.1, batch_draw="heavy")
    with pytest.raises(ValueError, match=r"FedAvg.batch_draw must be 'uniform', or come with replacement=True"):
        FedAvg(step_size=0.1, batch_size=2, batch_draw="weighted")
    with pytest.raises(
        ValueError, match=r"AgnosticFedAvg.batch_draw must be 'uniform': its rows are weighted by domain"
    ):
        AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, batch_size=2, **BY_WEIGHT)
    with pytest.raises(ValueError, match=r"Moments.batch_draw must be 'uniform', or come with replacement=True"):
        Moments(made(Squared()), step_size=0.1, batch_size=1, batch_draw="weighted")
    with pytest.raises(ValueError, match=r"Problem.constants: batch_draw must be 'uniform', or come with replacement"):
        made(Squared()).constants(batch_size=1, batch_draw="weighted")


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled():
    """Kernels draw what their sources draw."""
    p = made(Logistic())
    method = FedAvg(step_size=0.2, local_steps=3, batch_size=2, **BY_WEIGHT)
    result = run(method, p, rounds=2, seed=5, progress=False)
    w, out, pool = np.zeros(2), np.empty(6, np.int64), np.empty(9, np.int64)
    from fedconvex.draws import BATCHES, stream

    for t in range(2):
        models = []
        for k in range(2):
            lo, n = int(p.federation.ptr[k]), int(p.federation.sizes[k])
            state = np.uint64(stream(key_from_seed(5), 0, t, p.federation.ids[k], BATCHES))
            batches.draw_rows(state, lo, n, 3, 2, p.cumulative_row_weights, pool, out)
            v = w.copy()
            for pair in out.reshape(3, 2):
                X, y = p.federation.X[pair], p.federation.y[pair]
                v = v - 0.2 * ((-y / (1.0 + np.exp(y * (X @ v)))) @ X / 2.0 + 0.1 * v)
            models.append(v)
        w = p.weights @ np.array(models)
    np.testing.assert_allclose(result.w, w, rtol=1e-12)
