"""ApproxFedAvg as published, what it converges to, and the variant that minimises the softmax objective."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.optimize

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, iterate, run
from fedconvex.draws import BATCHES, key_from_seed, stream
from fedconvex.kernels.batches import draw_rows
from fedconvex.methods import AgnosticFedAvg, ApproxFedAvg, SoftmaxFedAvg
from fedconvex.solvers.minimax.agnostic import solve_softmax


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


def rows_drawn(problem, t, k, steps, batch):
    """Rows of the mini-batches of client k in round t, (steps, batch); all of them without a batch size."""
    fed = problem.federation
    lo, n = int(fed.ptr[k]), int(fed.sizes[k])
    if batch is None:
        return np.tile(np.arange(lo, lo + n), (steps, 1))
    rows = np.empty(steps * batch, np.int64)
    state = np.uint64(stream(key_from_seed(0), 0, t, int(fed.ids[k]), BATCHES))
    draw_rows(state, lo, n, steps, batch, False, np.empty(n, np.int64), rows)
    return rows.reshape(steps, batch)


def softmax_of(problem, w, mu, mine, own):
    """q (p,) at w, from the rows of one client: of the domains that it has, or of all, those without rows at loss 0."""
    fed, losses = problem.federation, rows_of(problem, w)[0]
    F = np.array([losses[mine[fed.domain[mine] == i]].mean() if i in fed.domain[mine] else 0.0 for i in range(3)])
    e = np.exp(mu * F)
    present = np.isin(np.arange(3), fed.domain[mine])
    return np.where(present, e, 0.0) / (e[present].sum() if own else e.sum())


@pytest.mark.parametrize("frozen", [False, True], ids=["every batch", "once a round"])
@pytest.mark.parametrize("own", [False, True], ids=["all domains", "own domains"])
@pytest.mark.parametrize("batch", [None, 2])
def test_approxfedavg_against_the_pseudo_code(frozen, own, batch):
    """Three steps a round, written out in NumPy: full batches, and the rows that were drawn."""
    for loss in (Squared(), Logistic()):
        problem, mu, eta = make(0, loss, n=30, K=5), 3.0, 0.1
        fed, w = problem.federation, np.zeros(3)
        assert (np.bincount(fed.domain + 3 * np.repeat(np.arange(5), fed.sizes), minlength=15) == 0).any()  # absent
        method = ApproxFedAvg(
            mu=mu, step_size=eta, local_steps=3, frozen=frozen, own_domains=own, batch_size=batch
        )  # fmt: skip
        for t, state in iterate(method, problem, rounds=4):
            np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-13)
            ends = []
            for k in range(fed.K):
                mine, v = np.arange(fed.ptr[k], fed.ptr[k + 1]), w
                for b in rows_drawn(problem, t, k, 3, batch):
                    q = softmax_of(problem, w if frozen else v, mu, mine, own)
                    u = mine.size * q / np.maximum(np.bincount(fed.domain[mine], minlength=3), 1)
                    g = (u[fed.domain[b]][:, None] * rows_of(problem, v)[1][b]).mean(axis=0)
                    v = v - eta * (g + problem.l2 * v)
                ends.append(v)
            w = problem.weights @ np.array(ends)


def test_the_printed_form_differs_from_the_frozen_one():
    """Two clients with both domains, five steps a round, mu = 4: the weights follow the model within a round."""
    rng = np.random.default_rng(4)
    X, domain = rng.normal(size=(40, 2)), np.arange(40) % 2
    y = np.einsum("ij,ij->i", X, np.array([[1.0, -1.0], [3.0, 0.5]])[domain])
    problem = Problem(Federation.from_arrays(X, y, np.arange(40) // 20, domains=domain), Squared())
    printed, frozen = (
        run(ApproxFedAvg(mu=4.0, step_size=0.1, local_steps=5, frozen=f), problem, rounds=8, tol=0).w
        for f in (False, True)
    )
    expected = {}
    for f in (False, True):
        w = np.zeros(2)
        for _ in range(8):
            ends = []
            for mine in (np.arange(20), np.arange(20, 40)):
                v = w
                for _ in range(5):
                    at, g = (w if f else v), (X @ v - y)[:, None] * X
                    F = [0.5 * np.mean(((X @ at - y) ** 2)[mine[domain[mine] == i]]) for i in (0, 1)]
                    q = np.exp(4.0 * (np.array(F) - max(F)))
                    G = [g[mine[domain[mine] == i]].mean(axis=0) for i in (0, 1)]
                    v = v - 0.1 * (q @ np.array(G)) / q.sum()
                ends.append(v)
            w = np.mean(ends, axis=0)
        expected[f] = w
    np.testing.assert_allclose(printed, expected[False], atol=1e-12)
    np.testing.assert_allclose(frozen, expected[True], atol=1e-12)
    assert np.abs(printed - frozen).max() > 0.01


def test_row_weights_count_as_copies():
    """A row of weight two is two rows, in the losses that weigh and in the steps."""
    rng = np.random.default_rng(6)
    X, y, domain, client = rng.normal(size=(8, 2)), rng.normal(size=8), np.arange(8) % 3, np.arange(8) // 4
    s, twice = np.where(np.arange(8) % 2, 2.0, 1.0), np.repeat(np.arange(8), np.where(np.arange(8) % 2, 2, 1))
    weighted = Problem(Federation.from_arrays(X, y, client, domains=domain, sample_weight=s), Squared(), 0.1)
    copies = Problem(Federation.from_arrays(X[twice], y[twice], client[twice], domains=domain[twice]), Squared(), 0.1)
    for how in ({}, {"frozen": True}, {"own_domains": True}):
        method = ApproxFedAvg(mu=2.0, step_size=0.1, local_steps=3, **how)
        a, b = (run(method, p, rounds=5, tol=0).w for p in (weighted, copies))
        np.testing.assert_allclose(a, b, rtol=1e-12)


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
def test_over_own_domains_one_domain_a_client_is_fedavg_whatever_mu(how):
    """Bit for bit: the softmax of a single number is one."""
    problem = make(2, by_client=True)
    b = run(FedAvg(step_size=0.2, **how), problem, rounds=20, tol=0, seed=1)
    for mu, frozen in ((0.1, False), (100.0, False), (100.0, True)):
        method = ApproxFedAvg(mu=mu, step_size=0.2, own_domains=True, frozen=frozen, **how)
        np.testing.assert_array_equal(run(method, problem, rounds=20, tol=0, seed=1).w, b.w)
    fed = dataclasses.replace(problem.federation, domain=np.zeros(60, np.int64), domain_labels=["all"])
    one, methods = (
        Problem(fed, problem.loss),
        (ApproxFedAvg(mu=3.0, step_size=0.2, **how), FedAvg(step_size=0.2, **how)),
    )
    a, b = (run(method, one, rounds=5, tol=0).w for method in methods)
    np.testing.assert_array_equal(a, b)  # of one domain in all, too


@pytest.mark.parametrize("frozen", [False, True])
def test_over_all_domains_one_domain_a_client_ends_elsewhere(frozen):
    """Labels 1, 1 at one client and 3 at another: each shrinks its own step by q_k = exp(mu F_k)/(exp(mu F_k) + 1).

    One step a round stands still where (2/3) q_1 (w - 1) = (1/3) q_2 (3 - w), wherever q is taken. FedAvg ends at 5/3,
    the minimax is at 2, and so is the softmax optimum's limit in mu.
    """
    problem, mu = Problem(Federation.from_arrays([[1.0]] * 3, [1.0, 1.0, 3.0], clients=[0, 0, 1]), Squared()), 1.0
    share = lambda w, a: 1.0 / (1.0 + np.exp(-0.5 * mu * (w - a) ** 2))  # noqa: E731
    still = lambda w: 2.0 * share(w, 1.0) * (w - 1.0) - share(w, 3.0) * (3.0 - w)  # noqa: E731
    limit = scipy.optimize.brentq(still, 1.0, 3.0, xtol=1e-14)
    found = run(ApproxFedAvg(mu=mu, step_size=0.2, frozen=frozen), problem, rounds=300, tol=0, record_every=300).w
    assert found == pytest.approx([limit], abs=1e-10)
    assert problem.solve().w == pytest.approx([5.0 / 3.0])
    assert solve_softmax(problem, mu).w - limit > 0.1 and limit - 5.0 / 3.0 > 0.03


def test_it_is_no_special_case_of_agnosticfedavg():
    """Both clients have both domains; what is worse at the one is better at the other.

    AgnosticFedAvg weighs a domain by one number at all clients: the first steps on rows of domain 0 and 1 have the same
    ratio at both, whatever the numbers. ApproxFedAvg's have reciprocal ones. Rows are unit vectors: w shows the steps.
    """
    y, domain = np.array([2.0, 1.0, 1.0, 2.0]), np.array([0, 1, 0, 1])
    problem = Problem(Federation.from_arrays(np.eye(4), y, [0, 0, 1, 1], domains=domain), Squared())
    ratios = lambda w: ((w / y)[0] / (w / y)[1], (w / y)[2] / (w / y)[3])  # noqa: E731
    a, b = ratios(run(ApproxFedAvg(mu=1.0, step_size=0.1), problem, rounds=1, tol=0).w)
    assert a == pytest.approx(np.exp(1.5)) and b == pytest.approx(np.exp(-1.5))  # F: 2 and 1/2 (means of one row)
    for step in (0.1, 1.0, 10.0):
        trace = iterate(AgnosticFedAvg(step_size=0.1, domain_step_size=step), problem, rounds=3)
        states = [s.w[0] for _, s in trace]
        a, b = ratios(states[1])
        assert a == pytest.approx(b)
        y_left = lambda w: y - w  # noqa: E731
        a, b = ratios((states[2] - states[1]) * y / y_left(states[1]))
        assert a == pytest.approx(b)


def test_the_softmax_is_not_the_mean_of_the_largest_k():
    """Domains (w - a)^2/2 with a = 0, 1, 3: the best mean of the largest k, for no k, is the softmax optimum."""
    a, mu = np.array([0.0, 1.0, 3.0]), 1.0
    problem = Problem(Federation.from_arrays([[1.0]] * 3, a, clients=[0, 1, 2]), Squared())
    smooth, grid = solve_softmax(problem, mu).w[0], np.linspace(0.0, 3.0, 300_001)
    F = np.sort(0.5 * (grid[:, None] - a) ** 2, axis=1)[:, ::-1]
    best = [grid[np.argmin(F[:, :k].mean(axis=1))] for k in (1, 2, 3)]
    np.testing.assert_allclose(best, [1.5, 1.5, 4.0 / 3.0], atol=1e-5)
    q = np.exp(0.5 * mu * (smooth - a) ** 2)
    assert q @ (smooth - a) == pytest.approx(0.0, abs=1e-6)  # what is minimised is the softmax
    assert np.abs(np.array(best) - smooth).min() > 0.02


@pytest.mark.slow
def test_over_own_domains_it_lands_on_the_fedavg_optimum_not_on_the_softmax_optimum():
    """Client partition: worst domain loss of ApproxFedAvg = FedAvg's; SoftmaxFedAvg finds the softmax optimum."""
    problem, mu = make(3, by_client=True, n=90, skewed=True), 20.0
    best, worst = solve_softmax(problem, mu), problem.solve_minimax()
    approx = run(ApproxFedAvg(mu=mu, step_size=0.5, own_domains=True), problem, rounds=2000, tol=0, record_every=2000)
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


@pytest.mark.slow
def test_clients_that_are_all_alike_make_it_right():
    """With the same rows everywhere the clients' own losses are the domains' losses: both reach the softmax optimum."""
    rng = np.random.default_rng(0)
    X, y, domain = rng.normal(size=(12, 2)), rng.normal(size=12), np.arange(12) % 3
    fed = Federation.from_clients([(X, y)] * 3, domains=[domain] * 3)
    problem = Problem(fed, Squared(), 0.1)
    for method in (ApproxFedAvg(mu=5.0, step_size=0.05), SoftmaxFedAvg(mu=5.0, step_size=0.05)):
        assert run(method, problem, rounds=3000, tol=1e-9, record_every=100).status.name == "CONVERGED"


@pytest.mark.parametrize("mu", [0.5, 5.0, 50.0])
@pytest.mark.slow
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
