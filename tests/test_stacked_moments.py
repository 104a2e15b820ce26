"""Exact moments of SCAFFOLD and FedProx against the enumeration of all batches and samples, and their round maps."""

from itertools import combinations, product

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, iterate
from fedconvex.methods import SCAFFOLD, FedProx, ProportionalSampling, ProximalPoint, Stragglers
from fedconvex.theory.moments import Moments, StackedMoments
from fedconvex.theory.round_maps import scaffold_round
from fedconvex.traits import traits_of


def make(seed, sizes=(3, 2, 2), weights=None, d=2):
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(n, d)), rng.normal(size=n)) for n in sizes]
    return Problem(Federation.from_clients(clients), Squared(), 0.1, weights)


def local_models(problem, k, X, extra, tau, a, B):
    """All (probability, models (N, d) after tau steps) of client k from X (N, d), steps along g + extra(y)."""
    paths, (A, y) = [(1.0, X)], problem.federation.client_rows(k)
    for _ in range(tau):
        batches = [list(b) for b in combinations(range(len(y)), B)]
        paths = [
            (q / len(batches), w - a * ((w @ A[b].T - y[b]) @ A[b] / B + problem.l2 * w + extra(w)))
            for q, w in paths
            for b in batches
        ]
    return paths


def enumerated(method, problem, rounds, start):
    """E‖w_t - w*‖^2 over all outcomes, each carried to the end with its controls."""
    K, p, best = problem.federation.K, problem.weights, problem.solve().w
    m = traits_of(method, problem).participants
    chance, X = np.ones(1), start[None].copy()
    C, out = np.zeros((1, K, len(start))), [float(np.sum((start - best) ** 2))]
    for _ in range(rounds):
        pieces, samples = [], list(combinations(range(K), m))
        for S in samples:
            c = np.einsum("k,nkd->nd", p, C)
            answers = [answers_of(method, problem, k, X, C[:, k], c) for k in S]
            for path in product(*answers):
                q = chance * np.prod([a[0] for a in path]) / len(samples)
                moved, newC = X.copy(), C.copy()
                for k, (_, dy, dc) in zip(S, path, strict=True):
                    if isinstance(method, SCAFFOLD):
                        moved = moved + method.server_step * K / m * p[k] * dy
                        newC[:, k] += dc
                    else:
                        moved = moved + p[k] / p[list(S)].sum() * dy
                pieces.append((q, moved, newC))
        chance, X, C = (np.concatenate([piece[i] for piece in pieces]) for i in range(3))
        out.append(float(chance @ np.sum((X - best) ** 2, axis=1)))
    return out


def answers_of(method, problem, k, X, own, c):
    """All (probability, y - x, c_k^+ - c_k) of client k."""
    A, y = problem.federation.client_rows(k)
    B = len(y) if getattr(method, "batch_size", None) is None else method.batch_size
    gradient = (X @ A.T - y) @ A / len(y) + problem.l2 * X
    if isinstance(method, SCAFFOLD):
        a, tau = method.step_size, method.local_steps
        paths = local_models(problem, k, X, lambda w: c - own, tau, a, B)
        return [(q, w - X, gradient - own if method.option == 1 else -c - (w - X) / (tau * a)) for q, w in paths]
    mu = method.proximal_mu
    if method.solver is not None:
        H = A.T @ A / len(y) + (problem.l2 + mu) * np.eye(X.shape[1])
        return [(1.0, -np.linalg.solve(H, gradient.T).T, 0.0)]
    paths = local_models(problem, k, X, lambda w: mu * (w - X), method.local_steps, method.step_size, B)
    return [(q, w - X, 0.0) for q, w in paths]


METHODS = [
    SCAFFOLD(step_size=0.3, local_steps=2, batch_size=1, participation=2, server_step=1.3),
    SCAFFOLD(step_size=0.3, local_steps=2, batch_size=1, option=1),
    SCAFFOLD(step_size=0.5, local_steps=2, participation=1),
    FedProx(proximal_mu=0.7, step_size=0.3, local_steps=2, batch_size=1, participation=2),
    FedProx(proximal_mu=0.7, solver=ProximalPoint(), participation=2),
]


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("weights", [None, "uniform"])
def test_equal_to_the_enumeration_of_all_outcomes(method, weights):
    problem, start = make(3, weights=weights), np.array([1.0, -0.5])
    expected = enumerated(method, problem, 2, start)
    np.testing.assert_allclose(StackedMoments(method, problem).run(2, start=start).deviation, expected, rtol=1e-11)


@pytest.mark.parametrize("option", [1, 2])
def test_without_noise_the_mean_follows_the_affine_map(option):
    problem, start = make(4, (4, 3, 5)), np.array([1.0, 2.0])
    map_ = scaffold_round(problem, step_size=0.2, local_steps=3, option=option, server_step=1.1)
    method = SCAFFOLD(step_size=0.2, local_steps=3, option=option, server_step=1.1)
    trace, s = StackedMoments(method, problem).run(5, start=start), np.append(start, np.zeros(6))
    for t in range(6):
        np.testing.assert_allclose(trace.mean_error[t], s[:2] - problem.solve().w, rtol=0, atol=1e-13)
        np.testing.assert_allclose(trace.deviation[t], np.sum(trace.mean_error[t] ** 2), rtol=1e-11)
        s = map_(s)


def test_without_a_proximal_term_it_is_fedavg():
    problem, work = make(5), {"step_size": 0.2, "local_steps": 3, "batch_size": 1, "participation": 2}
    mine = StackedMoments(FedProx(proximal_mu=0.0, **work), problem).run(4)
    np.testing.assert_allclose(mine.deviation, Moments.of(FedAvg(**work), problem).run(4).deviation, rtol=1e-12)


def test_what_does_not_close_is_refused():
    problem, logistic = make(6), Problem(Federation.from_clients([([[1.0]], [1.0])]), Logistic())
    work = {"step_size": 0.1, "local_steps": 2}
    for method, p in (
        (FedAvg(step_size=0.1), problem),
        (SCAFFOLD(**work), logistic),
        (SCAFFOLD(step_size=0.1, epochs=2, batch_size=1), problem),
        (FedProx(proximal_mu=1.0, stragglers=Stragglers(0.5), **work), problem),
        (FedProx(proximal_mu=1.0, step_size=(0.1, 0.2), local_steps=2), problem),
    ):
        with pytest.raises((TypeError, ValueError), match="StackedMoments"):
            StackedMoments(method, p)


def test_draws_with_replacement_of_fedprox():
    """Two draws with probabilities p_k: all pairs by hand, with exact proximal points."""
    problem, start = make(7), np.zeros(2)
    method = FedProx(proximal_mu=0.5, solver=ProximalPoint(), participation=ProportionalSampling(2))
    p, best = problem.weights, problem.solve().w
    y = [start + answers_of(method, problem, k, start[None], None, None)[0][1][0] for k in range(3)]
    by_hand = sum(p[j] * p[k] * np.sum((0.5 * (y[j] + y[k]) - best) ** 2) for j, k in product(range(3), repeat=2))
    assert StackedMoments(method, problem).run(1, start=start).deviation[1] == pytest.approx(by_hand, rel=1e-12)


def test_rounding_covers_what_another_order_of_sums_changes():
    """Least squares whose columns differ a thousandfold, full gradients: a run in double precision, and its moments."""
    rng = np.random.default_rng(8)
    clients = [(rng.normal(size=(4, 3)) * [1.0, 30.0, 1000.0], 1e3 * rng.normal(size=4)) for _ in range(3)]
    problem = Problem(Federation.from_clients(clients), Squared(), weights="uniform")
    assert np.isinf(StackedMoments(SCAFFOLD(step_size=1e200), problem).run(5).deviation[-1])
    method = SCAFFOLD(step_size=0.2 / problem.constants().L, local_steps=3)
    trace, off = StackedMoments(method, problem).run_with_rounding(60)
    best, errors = problem.solve().w, []
    for t, state in iterate(method, problem, rounds=60):
        errors.append(abs(np.sum((state.w[0] - best) ** 2) - trace.deviation[t]))
        assert errors[-1] <= off.deviation[t]
    assert 1e-9 * off.deviation.max() < max(errors), "nothing like the rounding that is allowed for"
    assert off.deviation.max() < 1e-7 * trace.deviation[0]
