"""AgnosticFedAvg against plain NumPy, FedAvg and the exact solution; and what its server sees of masked answers."""

from __future__ import annotations

import itertools
import warnings
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, Squared, iterate, run
from fedconvex.draws import BATCHES, Draws, key_from_seed, stream
from fedconvex.driver import participants
from fedconvex.kernels import jobs, pieces
from fedconvex.kernels.batches import draw_rows
from fedconvex.kernels.domain_sums import domain_losses, kinds_by_weight
from fedconvex.methods import (
    AFL,
    AgnosticFedAvg,
    ClientAdam,
    ClientMomentum,
    Decay,
    EntropicStep,
    KLBall,
    OptimisticAFL,
    Point,
    Polytope,
    ProjectedStep,
    SecureSums,
    ServerAdam,
    Simplex,
    SoftmaxFedAvg,
    WeightedSampling,
)
from fedconvex.methods.parts import domain_weighting
from fedconvex.secure import Party, agreement, decode, encode, sum_of
from fedconvex.solvers.minimax.agnostic import solve_minimax


def make(seed, loss=None, l2=0.05, n=60, d=3, p=3, K=4, sizes=None, by_client=False):
    rng = np.random.default_rng(seed)
    loss = Logistic() if loss is None else loss
    X, domain = rng.normal(size=(n, d)), rng.permutation(np.arange(n) % p)
    z = np.einsum("ij,ij->i", X, rng.normal(size=(p, d))[domain])
    if isinstance(loss, Squared):
        y = z + rng.normal(size=n)
    elif isinstance(loss, Softmax):
        y = rng.integers(loss.n_classes, size=n).astype(float)
    else:
        y = np.where(z + rng.logistic(size=n) > 0, 1.0, -1.0)
    clients = (
        np.r_[np.arange(K), np.arange(K), rng.integers(K, size=n - 2 * K)]
        if sizes is None
        else np.repeat(np.arange(K), sizes)
    )
    return Problem(Federation.from_arrays(X, y, domain if by_client else clients, domains=domain), loss, l2)


def rows_of(problem, w):
    """Loss and gradient (n, *model) of every row, without the ridge."""
    fed = problem.federation
    Z = fed.X @ w.reshape(-1, fed.d).T
    if isinstance(problem.loss, Squared):
        losses, S = 0.5 * (Z[:, 0] - fed.y) ** 2, Z - fed.y[:, None]
    elif isinstance(problem.loss, Logistic):
        losses, S = np.logaddexp(0, -fed.y * Z[:, 0]), (-fed.y / (1 + np.exp(fed.y * Z[:, 0])))[:, None]
    else:
        y = fed.y.astype(int)
        losses = np.logaddexp.reduce(Z, axis=1) - Z[np.arange(fed.n), y]
        S = np.exp(Z - Z.max(axis=1, keepdims=True))
        S = S / S.sum(axis=1, keepdims=True) - np.eye(Z.shape[1])[y]
    return losses, (S[:, :, None] * fed.X[:, None, :]).reshape(fed.n, *w.shape)


def batches(fed, k, plan, replacement, seed, t):
    """The batches of client k in round t: the plan is passes, block and batch."""
    passes, block, batch = plan
    first, n = int(fed.ptr[k]), int(fed.sizes[k])
    if batch == n and not replacement:
        return [np.arange(first, first + n)] * passes
    state = np.uint64(stream(key_from_seed(seed), 0, t, fed.ids[k], BATCHES))
    pool, rows = np.empty(n, np.int64), np.empty(passes * block, np.int64)
    draw_rows(state, first, n, passes, block, replacement, pool, rows)
    return [b for e in range(passes) for b in np.split(rows[e * block : (e + 1) * block], range(batch, block, batch))]


def reference(problem, method, rounds, seed):
    """The numbered lines of the paper; alpha as it is printed, not scaled."""
    fed, p = problem.federation, problem.federation.n_domains
    w, lam, window, last = np.zeros(problem.model_shape), np.full(p, 1 / p), [np.ones(p)] * method.window, np.ones(p)
    for t in range(rounds):
        yield w, lam
        mean = np.mean(window, axis=0)
        last = np.where(mean > 0, mean, last)  # the paper divides by zero where a domain was absent for r rounds
        alpha = lam / last
        clients = participants(method, problem, Draws(key_from_seed(seed), np.arange(1), t))[0][0]
        ends, betas, L, N = [], [], np.zeros(p), np.zeros(p)
        losses = rows_of(problem, w)[0]
        for k in clients:
            mine = np.arange(fed.ptr[k], fed.ptr[k + 1])
            count = np.bincount(fed.domain[mine], minlength=p)
            beta = alpha @ count
            L, N = L + np.bincount(fed.domain[mine], losses[mine], p), N + count
            n, B, v = mine.size, method.batch_size or mine.size, w
            plan = (method.local_steps, B, B) if method.epochs is None else (method.epochs, n, min(B, n))
            for b in batches(fed, k, plan, method.replacement, seed, t):
                g = np.tensordot(alpha[fed.domain[b]], rows_of(problem, v)[1][b], 1) / beta * (n / len(b))
                v = v - method.step_size * (g + problem.l2 * v)
            ends.append(v)
            betas.append(beta)
        w = np.tensordot(betas, ends, 1) / np.sum(betas)
        lam = lam * np.exp(method.domain_step_size * L / np.maximum(N, 1))
        lam, window = lam / lam.sum(), [*window[1:], N]


METHODS = {
    "full": AgnosticFedAvg(step_size=0.2, domain_step_size=0.3),
    "local": AgnosticFedAvg(step_size=0.2, domain_step_size=0.3, local_steps=3, window=3),
    "batches": AgnosticFedAvg(
        step_size=0.1, domain_step_size=0.3, local_steps=4, batch_size=2, participation=2, window=2
    ),
    "epochs": AgnosticFedAvg(step_size=0.1, domain_step_size=0.3, epochs=2, batch_size=3, participation=3),
    "replacement": AgnosticFedAvg(step_size=0.1, domain_step_size=0.3, local_steps=3, batch_size=5, replacement=True),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=str)
@pytest.mark.parametrize("by_client", [False, True], ids=["data partition", "client partition"])
def test_against_the_paper(name, loss, by_client):
    problem, method = make(0, loss, by_client=by_client), METHODS[name]
    for (_, state), (w, lam) in zip(
        iterate(method, problem, rounds=4, seed=3), reference(problem, method, 5, 3), strict=True
    ):
        np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(state.domain_weights[0], lam, rtol=0, atol=1e-12)


SAME = [
    {},
    {"local_steps": 4},
    {"local_steps": 3, "batch_size": 1},
    {"local_steps": 3, "batch_size": 4},
    {"epochs": 2, "batch_size": 4},
    {"local_steps": 3, "batch_size": 4, "replacement": True},
    {"local_steps": 2, "client": ClientMomentum(0.5)},
    {"local_steps": 2, "batch_size": 3, "client": ClientAdam(), "server": ServerAdam()},
    {"step_size": Decay(1.0, 4.0), "local_steps": 2},
]


@pytest.mark.parametrize("how", SAME, ids=str)
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=str)
@pytest.mark.slow_unless(loss=Logistic())
def test_one_domain_is_fedavg_bit_for_bit(how, loss):
    if "client" in how and not isinstance(loss, Logistic):
        pytest.skip("one loss is enough, every optimiser is compiled anew")
    how = {"step_size": 0.2} | how
    problem = make(1, loss, p=1)
    a = run(AgnosticFedAvg(domain_step_size=0.1, **how), problem, rounds=5, tol=0, seed=2, trajectories=2)
    b = run(FedAvg(**how), problem, rounds=5, tol=0, seed=2, trajectories=2)
    np.testing.assert_array_equal(a.w, b.w)
    equal = make(1, loss, p=1, sizes=[15] * 4)
    a = run(AgnosticFedAvg(domain_step_size=0.1, participation=3, **how), equal, rounds=5, tol=0, seed=2)
    b = run(FedAvg(participation=3, **how), equal, rounds=5, tol=0, seed=2)
    np.testing.assert_array_equal(a.w, b.w)


def test_equal_weights_within_a_client_take_fedavgs_steps():
    """Client partition: a client's alpha cancels, so its local steps are FedAvg's; lambda acts through beta only."""
    problem = make(2, by_client=True)
    method = AgnosticFedAvg(step_size=0.2, domain_step_size=0.5, local_steps=3, batch_size=4)
    state = method.init(problem, np.zeros((1, 3)))._replace(domain_weights=np.array([[0.7, 0.2, 0.1]]))
    draws = Draws(key_from_seed(0), np.arange(1), 0)
    clients, _ = participants(method, problem, draws)
    reply, _ = method.local(problem, method.broadcast(state), clients, None, draws)
    other = FedAvg(step_size=0.2, local_steps=3, batch_size=4)
    twin, _ = other.local(problem, other.broadcast(other.init(problem, np.zeros((1, 3)))), clients, None, draws)
    np.testing.assert_array_equal(reply.w, twin.w)
    assert np.argmax(reply.beta[0]) == 0


def test_weights_of_rows_are_as_written():
    """u_i = n alpha_i/beta, exactly 1 for domains not held and where all weigh alike; idle clients are seen."""
    problem, alpha = make(3, p=3, K=4), np.array([[0.3, 1.0, 0.7], [0.0, 1.0, 0.0]])
    clients, sizes = np.array([[0, 1, 2], [3, 0, 1]]), problem.federation.sizes
    held = np.array([[[3, 0, 4], [5, 0, 0], [0, 2, 1]], [[4, 0, 2], [1, 1, 1], [0, 6, 0]]], dtype=float)
    u, beta = domain_weighting.weights_of(problem, clients, alpha, held)
    total = (alpha[:, None] * held).sum(axis=2)
    with np.errstate(all="ignore"):
        expected = sizes[clients][:, :, None] * alpha[:, None] / np.where(total > 0.0, total, 1.0)[:, :, None]
    np.testing.assert_array_equal(beta, total)
    np.testing.assert_array_equal(u, np.where(held > 0.0, expected, 1.0))
    kinds, u[0, 1] = np.empty((2, 3), np.int64), 1.0
    seen = kinds_by_weight(u, beta, kinds)
    assert kinds.tolist() == [[jobs.OWN, jobs.UNSORTED, jobs.OWN], [jobs.IDLE, jobs.OWN, jobs.OWN]]
    assert seen == 1 << jobs.OWN | 1 << jobs.UNSORTED | 1 << jobs.IDLE


@pytest.mark.parametrize("name", ["AFL", "AFL weighted", *METHODS, "Softmax"])
def test_a_client_alone_answers_what_it_answers_among_others(name):
    """Its own rows, in another process: a federation of one client, which may lack a domain."""
    others = {
        "AFL": AFL(step_size=0.1, domain_step_size=0.1, batch_size=2),
        "AFL weighted": AFL(step_size=0.1, domain_step_size=0.1, batch_size=2, sampling=WeightedSampling(2)),
        "Softmax": SoftmaxFedAvg(mu=2.0, step_size=0.1, local_steps=3, batch_size=2),
    }
    for by_client in (False, True):
        problem, method = make(7, by_client=by_client), (METHODS | others)[name]
        draws, w = Draws(key_from_seed(0), np.arange(2), 3), np.random.default_rng(0).normal(size=(2, 3))
        message = method.broadcast(method.init(problem, w))
        everybody = np.tile(np.arange(problem.federation.K), (2, 1))
        among, _ = method.local(problem, message, everybody, None, draws)
        for k in range(problem.federation.K):
            mine = Problem(problem.federation.subset([k]), problem.loss, problem.l2)
            alone, _ = method.local(mine, message, np.zeros((2, 1), np.int64), None, draws)
            for a, b in zip(among, alone, strict=True):
                np.testing.assert_array_equal(a[:, k : k + 1], b)


def test_a_client_alone_must_know_its_domain():
    named = make(7, by_client=True)
    bare = Problem(Federation(named.federation.X, named.federation.y, named.federation.ptr), named.loss, named.l2)
    method = METHODS["full"]
    message = method.broadcast(method.init(bare, np.zeros((1, 3))))
    alone = Problem(bare.federation.subset([1]), bare.loss)
    with pytest.raises(ValueError, match="know which of the 3 domains"):
        method.local(alone, message, np.zeros((1, 1), np.int64), None, Draws(key_from_seed(0), np.arange(1), 0))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", METHODS)
def test_threads_give_the_same_bits(name):
    a, b = (run(METHODS[name], make(0), rounds=5, tol=0, trajectories=2, threads=k) for k in (1, 3))
    np.testing.assert_array_equal(a.w, b.w)


@pytest.mark.parametrize("by_client", [False, True], ids=["data partition", "client partition"])
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=str)
@pytest.mark.slow_unless(by_client=False)
def test_single_full_steps_converge_to_the_exact_solution(loss, by_client):
    problem = make(3, loss, l2=0.2, by_client=by_client)
    best = problem.solve_minimax()
    eta, gamma = (0.1, 0.2) if isinstance(loss, Squared) else (0.5, 2.0)
    result = run(AgnosticFedAvg(step_size=eta, domain_step_size=gamma), problem, rounds=4000, tol=1e-8, record_every=50)
    assert result.status.name == "CONVERGED"
    np.testing.assert_allclose(result.w, best.w, atol=1e-3)
    assert (result.trace.value >= best.lower - 1e-12).all()


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=str)
@pytest.mark.slow_unless(loss=Logistic())
def test_certified_gap_is_an_upper_bound_along_the_trace(loss):
    """Of max F_i(w) minus its minimum, by scipy on the epigraph min s, F_i(w) <= s; with drift and sampling, too."""
    for seed in range(3):
        problem = make(seed, loss)
        fed = problem.federation

        def values(w, problem=problem, fed=fed):
            losses = rows_of(problem, w)[0]
            return np.bincount(fed.domain, losses) / np.bincount(fed.domain) + 0.5 * problem.l2 * w @ w

        rows = {"type": "ineq", "fun": lambda v, values=values: v[3] - values(v[:3])}
        how = {"method": "SLSQP", "constraints": [rows], "options": {"ftol": 1e-14, "maxiter": 500}}
        found = scipy.optimize.minimize(lambda v: v[3], np.r_[np.zeros(3), values(np.zeros(3)).max()], **how)
        least = found.fun  # s may sit below max F_i(w) by the constraint's tolerance only
        assert values(found.x[:3]).max() <= least + 1e-9, seed
        for name in ("full", "batches", "epochs"):
            trace = run(METHODS[name], problem, rounds=25, tol=0, seed=seed).trace
            states = [s.w[0] for _, s in iterate(METHODS[name], problem, rounds=25, seed=seed)]
            for w, value, gap in zip(states, trace.value, trace.gap, strict=True):
                assert value == pytest.approx(values(w).max(), rel=1e-12), seed
                assert gap >= value - values(found.x[:3]).max() - 1e-12, seed
                assert gap <= value - least + 1e-7, seed


@pytest.mark.slow
def test_other_sets_and_steps():
    problem = make(4, l2=0.2)
    for sets in (Polytope([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]], [0.2, -0.5]), Point([0.2, 0.3, 0.5])):
        best = solve_minimax(problem, uncertainty_set=sets)
        for ascent in ({}, {"ascent": ProjectedStep()}):
            method = AgnosticFedAvg(step_size=0.1, domain_step_size=0.2, uncertainty_set=sets, **ascent)
            result = run(method, problem, rounds=1500, tol=1e-7, record_every=50)
            assert result.status.name == "CONVERGED"
            assert result.trace.value[-1] == pytest.approx(best.value, abs=2e-7)
            assert sets.contains(result.state.domain_weights[0])


def test_a_domain_that_is_absent_from_a_round():
    """Zero loss, hence the factor exp(0): lambda_i keeps its weight before the sum to one; its count is kept."""
    fed = Federation.from_clients([(np.ones((2, 1)), [0.0, 0.0]), (np.ones((4, 1)), [2.0] * 4)], domains=["a", "b"])
    problem = Problem(fed, Squared())
    method = AgnosticFedAvg(step_size=0.1, domain_step_size=0.5, participation=1)
    before, seen = None, set()
    for t, state in iterate(method, problem, rounds=30, seed=0):
        assert np.isfinite(state.w).all()
        assert (state.domain_weights > 0).all()
        if before is not None:
            k = int(participants(method, problem, Draws(key_from_seed(0), np.arange(1), t - 1))[0][0, 0])
            loss = 0.5 * (before.w[0, 0] - [0.0, 2.0][k]) ** 2
            factor = np.where(np.arange(2) == k, np.exp(0.5 * loss), 1.0)
            np.testing.assert_allclose(
                state.domain_weights[0],
                before.domain_weights[0] * factor / (before.domain_weights[0] @ factor),
                rtol=1e-12,
            )
            seen.add(k)
            counts = np.array([2.0 if 0 in seen else 1.0, 4.0 if 1 in seen else 1.0])
            np.testing.assert_allclose(state.expected[0], counts)
            np.testing.assert_allclose(state.window[0, 0], np.where(np.arange(2) == k, [2.0, 4.0], 0.0))
        before = state
    assert seen == {0, 1}


def test_a_client_of_domains_with_no_weight_changes_nothing():
    problem = make(5, by_client=True)
    method = AgnosticFedAvg(step_size=0.2, domain_step_size=0.1, domain_weights=[0.0, 0.5, 0.5])
    states = [s for _, s in iterate(method, problem, rounds=3)]
    assert (states[-1].domain_weights[:, 0] == 0.0).all()
    alone = AgnosticFedAvg(step_size=0.2, domain_step_size=0.1, participation=1, domain_weights=[1.0, 0.0, 0.0])
    moved = [s.w[0] for _, s in iterate(alone, problem, rounds=12, seed=1)]
    assert all(np.isfinite(w).all() for w in moved)
    assert any((a == b).all() for a, b in pairwise(moved))  # rounds without domain 0


def test_communication_is_counted_from_the_messages():
    """FedAvg 2c|W|; AgnosticFedAvg 2c|W| + c(3p + 1), masked or not."""
    problem, c, p, W = make(0), 3, 3, 3
    fedavg = run(FedAvg(step_size=0.1, participation=c), problem, rounds=4, tol=0).trace
    assert fedavg.floats_up[-1] + fedavg.floats_down[-1] == 4 * 2 * c * W
    for sums in ({}, {"sums": SecureSums()}):
        if sums:
            pytest.importorskip("cryptography")
        trace = run(
            AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, participation=c, **sums), problem, rounds=4, tol=0
        ).trace
        key = 4 if sums else 0  # 32 bytes up, and the others' keys down
        assert trace.floats_down[-1] == 4 * c * (W + p + (c - 1) * key)
        first = problem.federation.K * p  # rows by domain, before round 1
        assert trace.floats_up[-1] == first + 4 * c * (W + 1 + 2 * p + key)
        if not sums:
            assert trace.floats_up[-1] + trace.floats_down[-1] == first + 4 * (2 * c * W + c * (3 * p + 1))


# ---------------------------------------------------------------- secure sums


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=str)
def test_masked_sums_lead_to_the_same_run(loss):
    pytest.importorskip("cryptography")
    problem = make(6, loss)
    how = {"step_size": 0.2, "domain_step_size": 0.2, "local_steps": 2, "batch_size": 2, "participation": 3}
    a = run(AgnosticFedAvg(**how), problem, rounds=6, tol=0, trajectories=2)
    b = run(AgnosticFedAvg(sums=SecureSums(36), **how), problem, rounds=6, tol=0, trajectories=2)
    again = run(AgnosticFedAvg(sums=SecureSums(36), **how), problem, rounds=6, tol=0, trajectories=2)
    np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(b.w, again.w)  # the keys differ, the sums do not


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("m", [2, 3, 4])
def test_threads_share_one_agreement(m, threads, monkeypatch):
    """Same bits; and the server never sees the masks of a few clients cancel, which would open their sum."""
    pytest.importorskip("cryptography")
    problem, seen = make(6, Logistic()), []
    add = SecureSums.add
    monkeypatch.setattr(SecureSums, "add", lambda self, reply, *args: (seen.append(reply), add(self, reply, *args))[1])
    method = AgnosticFedAvg(step_size=0.2, domain_step_size=0.2, local_steps=2, participation=m, sums=SecureSums(36))
    one, many = (run(method, problem, rounds=3, tol=0, trajectories=2, threads=n) for n in (1, threads))
    np.testing.assert_array_equal(one.w, many.w)
    np.testing.assert_array_equal(one.trace.floats_up, many.trace.floats_up)
    for reply in seen:
        assert (reply.agreed[..., 0] == m).all()
        assert all(np.unique(marks).size == 1 for marks in reply.agreed[..., 1])
        some = reply.numbers[:, : m - 1].sum(axis=1, dtype=np.uint64)  # of fewer clients: noise, far above the data
        assert np.abs(decode(some, 36)).max(axis=1).min() > 1e3


def test_the_overflow_check_sees_all_clients():
    """Four clients whose numbers fit for two: slices of two would have wrapped around silently."""
    pytest.importorskip("cryptography")
    problem = make(6, Squared())
    method = AgnosticFedAvg(step_size=1e-3, domain_step_size=0.2, participation=4, sums=SecureSums(52))
    top = 2.0 ** (63 - 52) / 3.0  # below the limit for two clients, above it for four
    start = np.full(problem.model_shape, top / 3.0)  # times beta, which is at most the rows of a client
    for threads in (1, 2):
        with pytest.raises(ValueError, match="summed over 4 clients"):
            run(method, problem, rounds=1, tol=0, start=start, threads=threads)


@pytest.mark.parametrize("bits", [-5, 0, 53, 2.5, True, "28", None])
def test_bits_are_a_whole_number_in_range(bits):
    with pytest.raises((TypeError, ValueError), match=r"SecureSums\.bits must be"):
        SecureSums(bits)


def masked_round(vectors, context=b"test", bits=24):
    parties = [Party(k) for k in range(len(vectors))]
    keys = {party.number: party.public for party in parties}
    return {
        party.number: party.mask(encode(v, bits, len(vectors)), keys, context)
        for party, v in zip(parties, vectors, strict=True)
    }, keys


def test_the_sum_is_exact():
    pytest.importorskip("cryptography")
    rng = np.random.default_rng(0)
    for m in (2, 3, 7):
        vectors = rng.integers(-(2**30), 2**30, size=(m, 50)) * 2.0**-24
        masked, keys = masked_round(vectors)
        np.testing.assert_array_equal(decode(sum_of(masked, keys), 24), vectors.sum(axis=0))


def test_the_server_sees_noise_and_the_sum_only():
    """Single vectors and sums of proper subsets are uniform bytes (chi-square, 255 degrees) whatever was masked.

    The vectors are constant: unmasked, one byte value would take all of the histogram. The sum of all is the planted
    exception, and an unmasked vector is caught by the same statistic.
    """
    pytest.importorskip("cryptography")
    vectors = np.outer([1.0, -2.0, 3.0, 0.0], np.ones(8192))
    masked, keys = masked_round(vectors)

    def statistic(v):
        counts = np.bincount(np.frombuffer(v.tobytes(), np.uint8), minlength=256)
        return float(np.sum((counts - counts.mean()) ** 2) / counts.mean())

    views = [
        masked[0],
        masked[1],
        masked[2],
        masked[3],
        masked[0] + masked[1],
        masked[0] + masked[2],
        masked[1] - masked[3],
    ]
    views += [masked[0] + masked[1] + masked[2]]
    for view in views:
        assert statistic(view) < 255 + 6 * np.sqrt(2 * 255)
        assert np.unique(view).size == view.size
        bits = np.unpackbits(view.view(np.uint8)).mean()
        assert abs(bits - 0.5) < 6 * 0.5 / np.sqrt(64 * view.size)
    assert statistic(sum_of(masked, keys)) > 1e6
    assert statistic(encode(vectors[0], 24, 4)) > 1e6
    again, _ = masked_round(vectors)
    assert not (again[0] == masked[0]).any()  # fresh keys
    np.testing.assert_array_equal(sum_of(again, keys), sum_of(masked, keys))


def test_other_inputs_of_the_same_sum_are_as_likely():
    """What was sent fits every other input of the same sum: the difference is a difference of pairwise masks."""
    pytest.importorskip("cryptography")
    x, y = np.array([[1.0], [2.0], [3.0]]), np.array([[0.0], [7.0], [-1.0]])
    masked, keys = masked_round(x)
    masks = {k: masked[k] - encode(x[k], 24, 3) for k in keys}
    other = {k: masked[k] - encode(y[k], 24, 3) for k in keys}
    for m in (masks, other):
        assert sum_of(m, keys).item() == 0


def test_contexts_and_pairs_have_masks_of_their_own():
    pytest.importorskip("cryptography")
    a, b = Party(3), Party(8)
    keys, zero = {3: a.public, 8: b.public}, np.zeros(100, np.uint64)
    first, second = a.mask(zero, keys, b"1"), a.mask(zero, keys, b"2")
    with pytest.raises(ValueError, match="be used once"):
        a.mask(zero, keys, b"1")
    assert not (first == second).any()
    np.testing.assert_array_equal(first + b.mask(zero, keys, b"1"), zero)
    told = {**keys, 9: Party(9).public}  # the server tells b of a third client
    assert (second + b.mask(zero, told, b"2")).any()
    assert agreement(told) != agreement(keys)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("bits", "parties"), [(0, 2048), (24, 2048), (52, 2), (10, 3), (0, 1), (20, 7)])
def test_what_is_encoded_can_be_summed(bits, parties, sign):
    """The largest numbers on either side of the limit: what is let in is rounded, and summed, without leaving Z/2^64.

    2^52 - 1/2 lies below 2^63/2048 and is rounded to it.
    """
    edge = 2.0 ** (63 - bits) / parties
    for x in (edge, edge - 0.5 * 2.0**-bits, np.nextafter(edge, 0.0), edge * (1 - 2.0**-40), edge * (1 + 2.0**-40)):
        units = round(Fraction(float(x)) * 2**bits)  # half to even, as np.rint
        if units * parties < 2**63:
            total = np.add.reduce(np.repeat(encode(np.array([sign * x]), bits, parties), parties))
            assert decode(np.array([total]), bits)[0] == sign * float(Fraction(units * parties, 2**bits))
        else:
            with pytest.raises(ValueError, match=f"summed over {parties} clients"):
                encode(np.array([sign * x]), bits, parties)
    with pytest.raises(ValueError, match="summed over"):
        encode(np.array([1e300]), bits, parties)


def test_what_secure_sums_refuse():
    pytest.importorskip("cryptography")
    masked, keys = masked_round(np.ones((3, 2)))
    del masked[1]
    with pytest.raises(ValueError, match=r"none of \[1\]"):
        sum_of(masked, keys)
    with pytest.raises(ValueError, match="at least one other"):
        Party(0).mask(np.zeros(1, np.uint64), {0: b""}, b"")
    with pytest.raises(ValueError, match="summed over 2 clients"):
        encode(np.array([1e12]), 24, 2)
    with pytest.raises(ValueError, match="finite"):
        encode(np.array([np.nan]), 24, 2)
    problem = make(0)
    method = AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, sums=SecureSums())
    draws = Draws(key_from_seed(0), np.arange(1), 0)
    state = method.init(problem, np.zeros((1, 3)))
    clients, weights = participants(method, problem, draws)
    plain, _ = method.local(problem, method.broadcast(state), clients, None, draws)
    reply = method.send(problem, plain, clients, draws)
    lost = type(reply)(*(v[:, 1:] for v in reply))
    with pytest.raises(ValueError, match="all 4 clients that agreed"):
        method.aggregate(state, clients[:, 1:], weights[:, 1:], lost)
    halves = [
        method.send(problem, type(plain)(*(v[:, part] for v in plain)), clients[:, part], draws)
        for part in (slice(0, 2), slice(2, 4))
    ]
    joined = type(reply)(*(np.concatenate(v, axis=1) for v in zip(*halves, strict=True)))
    with pytest.raises(ValueError, match="one agreement on keys; got 2"):
        method.aggregate(state, clients, weights, joined)
    with pytest.raises(ValueError, match="at least one other"):
        run(AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, participation=1, sums=SecureSums()), problem, rounds=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"step_size": 0.0}, "AgnosticFedAvg.step_size"),
        ({"domain_step_size": -1.0}, "AgnosticFedAvg.domain_step_size"),
        ({"window": 0}, "window"),
        ({"epochs": 2, "local_steps": 3}, "local_steps or epochs"),
        ({"batch_size": 1000}, "rows of client"),
        ({"domain_weights": [0.5, 0.6, 0.1]}, "lie in Simplex"),
        ({"domain_weights": [0.5, 0.5]}, "3 entries"),
        (
            {"domain_weights": [0.5, 0.25, 0.25], "uncertainty_set": Polytope([[1.0, 0.0, 0.0]], [0.2])},
            "lie in Polytope",
        ),
        ({"uncertainty_set": Point([1.0])}, "3 domains"),
        ({"participation": 9}, "number of clients"),
        ({"sums": None}, "sums"),
        ({"domain_step_size": (0.1, 0.2)}, "one number per trajectory"),
    ],
)
def test_refusals(settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        run(AgnosticFedAvg(**({"step_size": 0.1, "domain_step_size": 0.1} | settings)), make(0), rounds=1)


def test_a_domain_absent_from_all_clients_is_refused():
    fed = Federation(np.ones((2, 1)), np.ones(2), [0, 1, 2], domain=np.array([0, 0]), domain_labels=["a", "b"])
    with pytest.raises(ValueError, match="domain b must have at least one row"):
        run(AgnosticFedAvg(step_size=0.1, domain_step_size=0.1), Problem(fed, Squared()), rounds=1)


@pytest.mark.parametrize("kind", ["dense", "sparse", "classes"])
def test_losses_by_domain_equal_those_of_single_rows(kind, monkeypatch):
    """For two trajectories, clients in any order, and work that is cut into pieces of one job."""
    problem = make(3, Softmax(3) if kind == "classes" else None)
    if kind == "sparse":
        fed = problem.federation
        rows = Federation(sp.csr_array(fed.X), fed.y, fed.ptr, domain=fed.domain)
        problem = Problem(rows, Logistic(), 0.05)
    fed, W = problem.federation, np.random.default_rng(1).normal(size=(2, *problem.model_shape))
    clients, expected = np.array([[3, 0], [1, 3]]), np.zeros((2, 2, 3))
    for r, j in np.ndindex(2, 2):
        rows = np.arange(fed.ptr[clients[r, j]], fed.ptr[clients[r, j] + 1])
        Z = (fed.X[rows] @ W[r].reshape(-1, fed.d).T).reshape(rows.size, -1)
        for row, z in zip(rows, Z, strict=True):
            y = int(fed.y[row])
            loss = np.log(np.exp(z - z[y]).sum()) if kind == "classes" else np.log1p(np.exp(-y * z[0]))
            expected[r, j, fed.domain[row]] += loss
    for piece in (pieces.PIECE, 1.0):
        monkeypatch.setattr(pieces, "PIECE", piece)
        np.testing.assert_allclose(domain_losses(problem, W, clients, 3), expected, rtol=1e-12)
        if kind == "dense":  # in jobs whose rows weigh differently, before others; of none of the passes but the first
            method = AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, epochs=3, batch_size=2)
            sent = domain_weighting.Message(W, np.array([[1.0, 1.0, 1.0], [1.0, 0.5, 0.25]]))
            reply, _ = method.local(problem, sent, clients, None, Draws(key_from_seed(0), np.arange(2), 0))
            np.testing.assert_allclose(reply.losses, expected, rtol=1e-12)


@pytest.mark.slow
def test_large_steps_of_the_domain_weights_go_round_in_circles():
    """What docs/agnostic.md says: a step of 2 does not converge where a step of 1, and OptimisticAFL, do."""
    rng = np.random.default_rng(101)
    X, domain, models = rng.normal(size=(60, 3)), np.arange(60) % 3, 3.0 * rng.normal(size=(3, 3))
    y = np.sign((X * models[domain]).sum(axis=1) + 0.5 * rng.normal(size=60))
    problem = Problem(Federation.from_arrays(X, y, np.arange(60) // 15, domain), Logistic(), 0.05)
    some = {"rounds": 600, "tol": 1e-6, "progress": False}
    circles = run(AgnosticFedAvg(step_size=0.5, domain_step_size=2.0), problem, **some)
    late = circles.trace.gap[300:]
    assert late.max() > 0.05 and late.min() < 1e-3
    assert run(AgnosticFedAvg(step_size=0.5, domain_step_size=1.0), problem, **some).gap <= 1e-6
    assert run(OptimisticAFL(step_size=0.3, domain_step_size=2.0), problem, **some).gap <= 1e-6


@pytest.mark.slow
def test_steps_that_are_too_long_end_in_a_status():
    """No error of a projection from within: runs diverge, or their weights stand at the edge of the set."""
    rng = np.random.default_rng(0)
    X, k = rng.normal(size=(24, 3)), np.arange(24)
    feds = [Federation.from_arrays(X, y, k % 4, k % 2) for y in ((k % 3).astype(float), X @ np.ones(3))]
    sets = Simplex(), KLBall([0.5, 0.5], 0.1), Polytope([[1.0, 0.0]], [0.7])
    ended = set()
    for problem in (Problem(feds[0], Softmax(3)), Problem(feds[1], Squared())):
        for ascent, where in itertools.product((EntropicStep(), ProjectedStep()), sets):
            for step, domain_step in ((30.0, 30.0), (0.1, 1e10), (1e200, 1e200), (1e3, 1e160)):
                method = AgnosticFedAvg(
                    step_size=step, domain_step_size=domain_step, ascent=ascent, uncertainty_set=where
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = run(method, problem, rounds=8, tol=0)
                ended.add(result.status.name)
                mix = result.trace.domain_weights[-1]
                assert where.contains(mix[0], 1e-6), (method, mix)
    assert ended == {"DIVERGED", "ROUND_LIMIT"}


def test_a_weight_that_vanished_grows_again():
    """exp(-800) is 0 as computed; a step later its domain has the larger loss."""
    down = EntropicStep().ascend(Simplex(), np.array([[0.5, 0.5]]), np.array([[0.0, -800.0]]))
    assert 0.0 < down[0, 1] < 1e-250
    up = EntropicStep().ascend(Simplex(), down, np.array([[0.0, 700.0]]))
    assert up[0, 1] == pytest.approx(1.0, abs=1e-12)
    none = EntropicStep().ascend(Simplex(), np.array([[1.0, 0.0]]), np.array([[0.0, 900.0]]))
    assert none.tolist() == [[1.0, 0.0]]
