"""ApproxFedAvg as published, what it converges to, and the variant that minimises the softmax objective."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, iterate, run
from fedconvex.methods import ApproxFedAvg, SoftmaxFedAvg
from fedconvex.solvers.minimax import solve_softmax


def make(seed, loss=None, l2=0.05, n=60, d=3, p=3, K=4, by_client=False, skewed=False):
    rng = np.random.default_rng(seed)
    loss = Logistic() if loss is None else loss
    X = rng.normal(size=(n, d))
    domain = np.minimum(rng.geometric(0.6, size=n) - 1, p - 1) if skewed else np.arange(n) % p
    z = np.einsum("ij,ij->i", X, 2.0 * rng.normal(size=(p, d))[domain])
    y = z + rng.normal(size=n) if isinstance(loss, Squared) else np.where(z + rng.logistic(size=n) > 0, 1.0, -1.0)
    clients = domain if by_client else np.r_[np.arange(K), rng.integers(K, size=n - K)]
    return Problem(Federation.from_arrays(X, y, clients, domains=domain), loss, l2)


def rows_of(problem, w):
    """Loss (n,) and gradient (n, d) of every row, without the ridge."""
    fed = problem.federation
    z = fed.X @ w
    if isinstance(problem.loss, Squared):
        return 0.5 * (z - fed.y) ** 2, (z - fed.y)[:, None] * fed.X
    return np.logaddexp(0, -fed.y * z), (-fed.y / (1 + np.exp(fed.y * z)))[:, None] * fed.X


def softmax_value(problem, mu, w):
    fed, losses = problem.federation, rows_of(problem, w)[0]
    F = np.array([losses[fed.domain == q].mean() for q in range(fed.n_domains)])
    return np.logaddexp.reduce(mu * F) / mu + 0.5 * problem.l2 * w @ w


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=str)
def test_approxfedavg_against_the_pseudo_code(loss):
    problem, mu, eta = make(0, loss), 3.0, 0.1
    fed, w = problem.federation, np.zeros(3)
    for _, state in iterate(ApproxFedAvg(mu=mu, step_size=eta, local_steps=3), problem, rounds=4):
        np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-13)
        losses, ends = rows_of(problem, w)[0], []
        for k in range(fed.K):
            mine = [np.flatnonzero((np.repeat(np.arange(fed.K), fed.sizes) == k) & (fed.domain == q)) for q in range(3)]
            mine = [rows for rows in mine if rows.size]
            q = np.exp([mu * losses[rows].mean() for rows in mine])
            q, v = q / q.sum(), w
            for _ in range(3):
                G = rows_of(problem, v)[1]
                v = v - eta * (sum(a * G[rows].mean(axis=0) for a, rows in zip(q, mine, strict=True)) + problem.l2 * v)
            ends.append(v)
        w = problem.weights @ np.array(ends)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=str)
def test_softmaxfedavg_against_the_pseudo_code(loss):
    problem, mu, eta = make(1, loss), 3.0, 0.05
    fed, w, F = problem.federation, np.zeros(3), np.zeros(3)
    N, owner = np.bincount(fed.domain), np.repeat(np.arange(fed.K), fed.sizes)
    for _, state in iterate(SoftmaxFedAvg(mu=mu, step_size=eta, local_steps=3), problem, rounds=5):
        np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-13)
        alpha = np.exp(mu * F) / np.exp(mu * F).sum() / N
        losses, ends, betas = rows_of(problem, w)[0], [], []
        for k in range(fed.K):
            rows, v = owner == k, w
            a = alpha[fed.domain[rows]]
            for _ in range(3):
                v = v - eta * (a @ rows_of(problem, v)[1][rows] / a.sum() + problem.l2 * v)
            ends.append(v)
            betas.append(a.sum())
        w = np.array(betas) @ np.array(ends) / np.sum(betas)
        F = np.bincount(fed.domain, losses) / N


@pytest.mark.parametrize("how", [{}, {"local_steps": 3}, {"local_steps": 3, "batch_size": 2}], ids=str)
def test_as_published_one_domain_a_client_is_fedavg_whatever_mu(how):
    """Bit for bit: the softmax of a single number is one."""
    problem = make(2, by_client=True)
    for mu in (0.1, 100.0):
        a = run(ApproxFedAvg(mu=mu, step_size=0.2, **how), problem, rounds=20, tol=0, seed=1)
        b = run(FedAvg(step_size=0.2, **how), problem, rounds=20, tol=0, seed=1)
        np.testing.assert_array_equal(a.w, b.w)


@pytest.mark.slow
def test_as_published_lands_on_the_fedavg_optimum_not_on_the_softmax_optimum():
    """Client partition: worst domain loss of ApproxFedAvg = FedAvg's; SoftmaxFedAvg finds the softmax optimum."""
    problem, mu = make(3, by_client=True, n=90, skewed=True), 20.0
    best, worst = solve_softmax(problem, mu), problem.solve_minimax()
    approx = run(ApproxFedAvg(mu=mu, step_size=0.5), problem, rounds=2000, tol=0, record_every=2000)
    right = run(SoftmaxFedAvg(mu=mu, step_size=0.1), problem, rounds=4000, tol=1e-9, record_every=100)
    plain = problem.solve()
    np.testing.assert_allclose(approx.w, plain.w, atol=1e-8)
    assert approx.gap > 0.05  # of the softmax objective that it is said to minimise
    assert right.status.name == "CONVERGED"
    np.testing.assert_allclose(right.w, best.w, atol=1e-3)
    values = [problem.domain_values(w).max() for w in (approx.w, right.w)]
    assert values[0] == pytest.approx(problem.domain_values(plain.w).max(), abs=1e-8)
    assert values[1] <= worst.value + np.log(3) / mu
    assert values[0] > values[1] + 0.05


def test_clients_that_are_all_alike_make_it_right():
    """With the same rows everywhere the clients' own losses are the domains' losses: both reach the softmax optimum."""
    rng = np.random.default_rng(0)
    X, y, domain = rng.normal(size=(12, 2)), rng.normal(size=12), np.arange(12) % 3
    fed = Federation.from_clients([(X, y)] * 3, domains=[domain] * 3)
    problem = Problem(fed, Squared(), 0.1)
    for method in (ApproxFedAvg(mu=5.0, step_size=0.05), SoftmaxFedAvg(mu=5.0, step_size=0.05)):
        assert run(method, problem, rounds=3000, tol=1e-9, record_every=100).status.name == "CONVERGED"


@pytest.mark.parametrize("mu", [0.5, 5.0, 50.0])
def test_the_gap_is_an_upper_bound_along_the_trace(mu):
    """Of the softmax objective, against scipy's minimum."""
    for seed in range(3):
        problem = make(seed)
        least = scipy.optimize.minimize(
            lambda w, problem=problem: softmax_value(problem, mu, w), np.zeros(3), method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000},
        ).fun  # fmt: skip
        for method in (
            SoftmaxFedAvg(mu=mu, step_size=0.1, local_steps=3, batch_size=1, participation=2),
            ApproxFedAvg(mu=mu, step_size=0.1, local_steps=2),
        ):
            trace = run(method, problem, rounds=20, tol=0, seed=seed).trace
            states = [s.w[0] for _, s in iterate(method, problem, rounds=20, seed=seed)]
            for w, value, gap in zip(states, trace.value, trace.gap, strict=True):
                assert value == pytest.approx(softmax_value(problem, mu, w), rel=1e-12), seed
                assert gap >= value - least - 1e-12, seed
                assert gap <= value - least + 1e-7, seed


def test_mu_trades_smoothness_for_accuracy():
    """The worst domain's loss at the softmax optimum is within log(p)/mu of the agnostic value, and falls to it."""
    problem = make(4)
    worst = problem.solve_minimax().value
    excess = [solve_softmax(problem, mu).domain_values.max() - worst for mu in (1.0, 10.0, 100.0, 1000.0)]
    assert all(-1e-12 <= e <= np.log(3) / mu for e, mu in zip(excess, (1.0, 10.0, 100.0, 1000.0), strict=True))
    assert excess[3] < 0.1 * excess[0]


def test_the_losses_of_absent_domains_are_kept():
    problem = make(5, by_client=True)
    method = SoftmaxFedAvg(mu=5.0, step_size=0.1, participation=1)
    before = None
    for _, state in iterate(method, problem, rounds=8, seed=0):
        assert np.isfinite(state.w).all()
        if before is not None:
            assert (state.values != before.values).sum() == 1
        before = state


def test_communication_is_counted_from_the_messages():
    problem, c, p, W = make(0), 3, 3, 3
    a = run(ApproxFedAvg(mu=1.0, step_size=0.1, participation=c), problem, rounds=2, tol=0).trace
    assert a.floats_up[-1] + a.floats_down[-1] == 2 * 2 * c * W
    b = run(SoftmaxFedAvg(mu=1.0, step_size=0.1, participation=c), problem, rounds=2, tol=0).trace
    first = problem.federation.K * p  # rows by domain, before round 1
    assert b.floats_up[-1] + b.floats_down[-1] == first + 2 * (2 * c * W + c * (3 * p + 1))


@pytest.mark.parametrize("kind", [ApproxFedAvg, SoftmaxFedAvg])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mu": 0.0}, "mu must be positive"),
        ({"mu": np.inf}, "mu must be positive and finite"),
        ({"step_size": -1.0}, "step_size"),
        ({"batch_size": 1000}, "rows of client"),
        ({"local_steps": 0}, "local_steps"),
        ({"participation": 9}, "number of clients"),
    ],
)
def test_refusals(kind, settings, words):
    with pytest.raises(ValueError, match=words):
        run(kind(**({"mu": 1.0, "step_size": 0.1} | settings)), make(0), rounds=1)
