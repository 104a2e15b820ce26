"""FedMultiBoost beside its pseudo-code in plain Python, over trees and any numbers, with weights and samples."""

import math

import numpy as np
import pytest

from fedconvex import Federation, run
from fedconvex.draws import Draws
from fedconvex.driver import participants
from fedconvex.losses import Exponential
from fedconvex.methods import FedMultiBoost
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2


def problem(rng, loss, weighted, kind):
    """Five clients of two domains; base classifiers are AdaBoost's trees of every source, or any numbers in [-1, 1]."""
    X, who = rng.normal(size=(60, 3)), rng.permutation(np.repeat(range(5), 12))
    y = np.where(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=60) > 0.0, 1.0, -1.0)
    s = rng.integers(0, 3, 60) + 0.5 * (who == 0) if weighted else None
    fed = Federation.from_arrays(X, y, who, np.where(who < 2, "a", "b"), s)
    H = (
        Dictionary.trees(fed, rounds=4, depth=2)
        if kind == "trees"
        else Dictionary(rng.uniform(-1.0, 1.0, (60, 7)), [0, 0, 0, 1, 1, 1, 1])
    )
    q = rng.dirichlet([1.0, 1.0], 60)
    return EnsembleProblem(fed, H, q, loss=loss)


def answers(p, c, alpha, asked):
    """What client c sends: its sum of losses, and the sum of slopes times margins of every classifier asked for."""
    fed, loss, edge = p.federation, 0.0, [0.0] * len(asked)
    for i in range(fed.ptr[c], fed.ptr[c + 1]):
        s = 1.0 if fed.sample_weight is None else float(fed.sample_weight[i])
        m = float(fed.y[i]) * sum(float(a) * float(x) for a, x in zip(alpha, fed.X[i], strict=True))
        if p.base2:
            value, slope = math.log2(1.0 + math.exp(-m)), 1.0 / (1.0 + math.exp(m)) / math.log(2.0)
        else:
            value = slope = math.exp(-m)
        loss += s * value
        edge = [e + s * slope * float(fed.y[i]) * float(fed.X[i, j]) for e, j in zip(edge, asked, strict=True)]
    return loss, edge


@pytest.mark.parametrize("kind", [pytest.param("trees", marks=pytest.mark.slow), "numbers"])
@pytest.mark.parametrize("loss", [Exponential(), Logistic2()], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_everybody_is_the_pseudo_code(kind, loss, weighted):
    rng = np.random.default_rng(3)
    p, eta = problem(rng, loss, weighted, kind), 0.3
    fed, alpha, sources = p.federation, np.zeros(len(p.sources)), np.asarray(p.sources)
    domain = [int(fed.domain[fed.ptr[c]]) for c in range(fed.K)]
    for t in range(1, 9):
        mean, gain = [0.0, 0.0], np.zeros(len(p.sources))
        for k in (0, 1):
            mine = [c for c in range(fed.K) if domain[c] == k]
            rows, asked = sum(float(fed.masses[c]) for c in mine), np.flatnonzero(sources == k)
            each = [answers(p, c, alpha, asked) for c in mine]
            mean[k] = 1.0 + (sum(v for v, _ in each) - rows) / rows  # equal at the start, to the bit
            gain[asked] = np.sum([e for _, e in each], axis=0) / rows
        gain[np.array(mean)[sources] < max(mean)] = -np.inf
        if gain.max() > 0.0:
            alpha[int(np.argmax(gain))] += eta / math.sqrt(t)
    found = run(FedMultiBoost(step_size=eta), p, rounds=8, tol=0.0, progress=False).w
    np.testing.assert_allclose(found, alpha, rtol=1e-12)
    assert np.count_nonzero(alpha) >= 2


@pytest.mark.compiled_if_slow
def test_samples_answer_for_what_they_were_asked():
    rng = np.random.default_rng(8)
    p = problem(rng, Logistic2(), True, "numbers")
    method, draws = (
        FedMultiBoost(step_size=0.3, clients_per_domain=1, classifiers=2),
        Draws(np.uint64(3), np.arange(3), 4),
    )
    clients, _ = participants(method, p, draws)
    w = rng.random((3, len(p.sources)))
    state = method.init(p, w)
    reply, _ = method.local(p, method.broadcast(state), clients, None, draws)
    for r, j in np.ndindex(clients.shape):
        asked = reply.column[r, j]
        assert len(set(asked.tolist())) == 2
        loss, edge = answers(p, int(clients[r, j]), w[r], asked)
        np.testing.assert_allclose(reply.loss[r, j], loss, rtol=1e-12)
        np.testing.assert_allclose(reply.edge[r, j], edge, rtol=1e-11, atol=1e-13)
    assert len({tuple(c) for c in reply.column[:, 0].tolist()}) > 1  # trajectories draw their own


def test_a_row_without_weight_may_be_infinitely_wrong():
    fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], [0, 0], [0, 0], [1.0, 0.0])
    p = EnsembleProblem(fed, Dictionary([[1.0], [-1.0]], [0]))
    method = FedMultiBoost(step_size=0.3)
    state, draws = method.init(p, np.array([[800.0]])), Draws(np.uint64(3), np.arange(1), 0)
    reply, _ = method.local(p, method.broadcast(state), np.zeros((1, 1), dtype=np.int64), None, draws)
    assert reply.loss[0, 0] == 0.0 and np.isfinite(reply.edge).all()
