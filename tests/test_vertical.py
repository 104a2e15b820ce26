"""Columns of several owners: pooled gradient descent in sums of scores, block coordinate descent, certificates."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import (
    Federation,
    GradientDescent,
    Hinge,
    Logistic,
    Problem,
    Softmax,
    Squared,
    VerticalFederation,
    iterate,
    run,
)
from fedconvex.draws import Draws
from fedconvex.driver import DivergenceWarning
from fedconvex.methods import (
    FedBCD,
    PlainSums,
    SecureSums,
    VerticalAcceleratedGradient,
    VerticalGradientDescent,
    VerticalNewtonCG,
)
from fedconvex.methods.parts import vertical_scores
from fedconvex.problems import VerticalProblem


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **kwargs)


def ten_clients(seed=0, K=10, m=40, d=10, het=0.5, cond=10):
    """Heterogeneous logistic rows of K clients, joined; features fall in size to 1/cond."""
    rng = np.random.default_rng(seed)
    w0, scale, parts = rng.normal(size=d), cond ** (-np.arange(d) / (d - 1)), []
    for _ in range(K):
        shift = het * rng.normal(size=d)
        A = (rng.normal(size=(m, d)) + shift) * scale
        wk = w0 + het * rng.normal(size=d)
        parts.append((A, np.sign(A @ (wk / scale) / np.sqrt(d) + rng.logistic(size=m))))
    return np.vstack([A for A, _ in parts]), np.concatenate([y for _, y in parts])


def collinear_squares():
    """80 rows of 9 features that share a direction: parallel blocks overshoot."""
    rng = np.random.default_rng(1)
    d, m = 9, 80
    w0, scale = rng.normal(size=d), 3.0 ** (-np.arange(d) / (d - 1))
    M = np.eye(d) + 0.5 * rng.normal(size=(d, d)) / np.sqrt(d)
    A = rng.normal(size=(m, d)) @ M * scale
    y = A @ (w0 + 0.5 * rng.normal(size=d)) + 0.3 * rng.normal(size=m)
    return A @ (0.4 * np.eye(d) + 0.2), y


def blocks(X, *widths):
    return [X[:, b - a : b] for a, b in zip(widths, np.cumsum(widths), strict=True)]


def of_widths(X, y, loss, l2, *widths):
    return VerticalProblem(VerticalFederation.from_blocks(blocks(X, *widths), y), loss, l2)


@pytest.fixture(scope="module")
def logistic():
    X, y = ten_clients()
    return of_widths(X, y, Logistic(), 0.01, 3, 3, 4)


# ---------------------------------------------------------------- equal to the pooled methods


@pytest.mark.slow
def test_rounds_are_those_of_the_pooled_methods(rng):
    """Dense and CSR, 2 to 20 owners, one output and several, from zero and from elsewhere: 1e-13."""
    for owners, sparse in ((2, False), (20, True)):
        X = rng.normal(size=(40, 24)) * (rng.random((40, 24)) < 0.7)
        widths = np.diff([0, *np.sort(rng.choice(np.arange(1, 24), owners - 1, replace=False)), 24])
        each = [sp.csr_array(B) if sparse else B for B in blocks(X, *widths)]
        for loss, y in ((Logistic(), rng.choice([-1.0, 1.0], 40)), (Softmax(3), rng.integers(0, 3, 40).astype(float))):
            problem = VerticalProblem(VerticalFederation.from_blocks(each, y), loss, 0.05)
            start = rng.normal(size=problem.model_shape)
            ours = quiet(VerticalGradientDescent(step_size=0.2), problem, rounds=20, tol=0)
            theirs = quiet(GradientDescent(step_size=0.2), problem.pooled, rounds=20, tol=0)
            np.testing.assert_allclose(ours.w, theirs.w, rtol=0, atol=1e-13)
            ours = quiet(VerticalGradientDescent(step_size=0.2), problem, rounds=21, tol=0, start=start)
            theirs = quiet(GradientDescent(step_size=0.2), problem.pooled, rounds=20, tol=0, start=start)
            np.testing.assert_allclose(ours.w, theirs.w, rtol=0, atol=1e-13)
            C = problem.n_outputs
            assert ours.trace.floats_up[-1] == ours.trace.floats_down[-1] + owners * 40 * C == 21 * owners * 40 * C


@pytest.mark.slow
@pytest.mark.compiled
def test_acceleration_by_hand(logistic):
    """Nesterov's recursion on the joined rows; and the known numbers of rounds to 1e-10."""
    pooled, eta, best = logistic.pooled, 1.0 / logistic.smoothness.F, logistic.solve().value
    q = np.sqrt(eta * 0.01)
    w = last = np.zeros(10)
    states = [s.w[0] for _, s in iterate(VerticalAcceleratedGradient(step_size="auto"), logistic, rounds=60)]
    for state in states:
        np.testing.assert_allclose(state, w, rtol=0, atol=1e-13)
        v = w + (1 - q) / (1 + q) * (w - last)
        w, last = v - eta * pooled.gradient(v), w
    assert best == pytest.approx(0.6462450631794365, abs=1e-13)
    bound = [
        (1 - q) ** t * (pooled.value(np.zeros(10)) - best + 0.005 * np.sum(pooled.solve().w ** 2)) for t in range(61)
    ]
    assert all(pooled.value(s) - best <= b for s, b in zip(states, bound, strict=True))
    rounds = [next(t for t, s in enumerate(states) if pooled.value(s) - best <= 1e-10)]
    for t, s in iterate(VerticalGradientDescent(step_size="auto"), logistic):
        if pooled.value(s.w[0]) - best <= 1e-10:
            rounds.append(t)
            break
    assert rounds == [49, 208]


def pooled_newton(problem, steps):
    """Models after so many inexact Newton steps on the joined rows, and the sums of n scores that each has cost."""
    X, w, l2, n = problem.federation.rows.X, np.zeros(problem.federation.d), problem.l2, problem.federation.n
    models, sums = [], []
    for _ in range(steps):
        g, cost = problem.gradient(w), 1
        z = X @ w
        h = np.exp(-np.logaddexp(0.0, z) - np.logaddexp(0.0, -z))
        s, q, p = np.zeros_like(w), g, -g
        while np.linalg.norm(q) > min(0.5, np.sqrt(np.linalg.norm(g))) * np.linalg.norm(g):
            Hp = X.T @ (h * (X @ p)) / n + l2 * p
            alpha = q @ q / (p @ Hp)
            s, after = s + alpha * p, q + alpha * Hp
            p, q, cost = after @ after / (q @ q) * p - after, after, cost + 1
        t = 1.0
        while problem.value(w + t * s) > problem.value(w) + 1e-4 * t * (g @ s):
            t /= 2.0
        w = w + t * s
        models.append(w)
        sums.append(cost)
    return models, sums


@pytest.mark.slow
def test_newton_steps_are_those_of_the_joined_rows(logistic):
    """A round for a gradient and for a Hessian product; 20 sums to 2.7e-10, from elsewhere too."""
    models, sums = pooled_newton(logistic, 4)
    assert sums[:3] == [5, 7, 8]
    states = [s.w[0] for _, s in iterate(VerticalNewtonCG(), logistic, rounds=31)]
    at = np.cumsum(sums)
    for t, w in zip(at, models, strict=True):
        np.testing.assert_allclose(states[t + 1], w, rtol=0, atol=1e-11)  # owners move with the next message
    best = logistic.solve().value
    assert logistic.value(states[21]) - best == pytest.approx(2.7e-10, rel=0.02)
    assert logistic.value(states[31]) - best < 1e-15
    trace = quiet(VerticalNewtonCG(), logistic, rounds=2, tol=0).trace
    assert trace.floats_up[-1] == trace.floats_down[-1] == 2 * 3 * (400 + 4)
    far = quiet(VerticalNewtonCG(), logistic, rounds=80, tol=1e-12, start=np.full(10, 30.0))
    assert far.status.name == "CONVERGED"
    squares = of_widths(*collinear_squares(), Squared(), 0.01, 3, 3, 3)
    assert quiet(VerticalNewtonCG(), squares, rounds=60, tol=1e-14).status.name == "CONVERGED"


# ---------------------------------------------------------------- certificate


def test_the_gap_is_the_duality_gap(rng):
    """‖grad F‖^2/(2 l2) = P(w) - D(-l'(z)), from conjugates computed here, and never below F - F*."""
    X, l2 = rng.normal(size=(30, 5)), 0.2
    for loss, y in ((Squared(), rng.normal(size=30)), (Logistic(), rng.choice([-1.0, 1.0], 30))):
        problem = of_widths(X, y, loss, l2, 2, 3)
        for _ in range(20):
            w = rng.normal(size=5) * 10.0 ** rng.uniform(-3, 1)
            z = X @ w
            if isinstance(loss, Squared):
                a = y - z
                conjugate = 0.5 * a**2 - a * y  # l*(-a) of (z - y)^2/2
            else:
                low, high = -np.logaddexp(0.0, y * z), -np.logaddexp(0.0, -y * z)  # log u and log(1 - u), a = y u
                a, conjugate = y * np.exp(low), np.exp(low) * low + np.exp(high) * high
            v = X.T @ a / (30 * l2)
            gap = problem.value(w) + conjugate.mean() + 0.5 * l2 * v @ v
            measured = problem.measure(w[None])
            assert measured.gap[0] == pytest.approx(min(gap, problem.value(w)), rel=1e-9, abs=1e-13)  # F >= 0
            assert measured.gap[0] >= problem.value(w) - problem.solve().value - 1e-14


# ---------------------------------------------------------------- FedBCD


@pytest.mark.slow
@pytest.mark.compiled
def test_damped_rate_holds_and_is_not_vacuous(logistic):
    """F+ - F* <= (1 - l2/(m max L_b)) (F - F*), whatever Q; from zero with Q = 1 the worst factor seen is 0.78057."""
    bound, best = 1.0 - 0.01 / (3 * logistic.block_smoothness.max()), logistic.solve().value
    assert bound == pytest.approx(0.98945, abs=5e-6)
    for Q in (1, 4, 30):
        method = FedBCD(local_steps=Q)
        gaps = np.array([logistic.value(s.w[0]) - best for _, s in iterate(method, logistic, rounds=80)])
        factors = (gaps[1:] / gaps[:-1])[gaps[1:] > 1e-9]
        assert factors.max() <= bound
        if Q == 1:  # near the minimum w <- w - D^{-1} grad F/3, D = diag(L_b): (1 - least eigenvalue/3)^2
            X, z = logistic.federation.rows.X, logistic.federation.rows.X @ logistic.solve().w
            H = (X.T * (np.exp(-np.logaddexp(0, z) - np.logaddexp(0, -z)))) @ X / 400 + 0.01 * np.eye(10)
            least = np.linalg.eigvals(H / np.repeat(logistic.block_smoothness, [3, 3, 4])[:, None]).real.min()
            assert (1.0 - least / 3.0) ** 2 == pytest.approx(0.78057, abs=1e-5)
            assert 0.97 * (1.0 - least / 3.0) ** 2 < factors.max() <= (1.0 - least / 3.0) ** 2 + 1e-4


def test_fewer_owners_in_a_round_are_not_faster():
    """One of two owners of uncorrelated columns halves F - F*: 1 - l2/(K max L_b), not 1 - l2/(m max L_b) = 0.09."""
    X, y = np.sqrt(0.2) * np.eye(2), np.array([1.0, 1.0])
    problem = VerticalProblem(VerticalFederation.from_blocks([X[:, :1], X[:, 1:]], y), Squared(), 1.0)
    start = problem.value(np.zeros(2)) - problem.solve().value
    gaps = [run(FedBCD(participation=1), problem, rounds=1, tol=0, seed=s).trace.value[-1] for s in range(3)]
    np.testing.assert_allclose((np.array(gaps) - problem.solve().value) / start, 0.5, rtol=1e-12)
    assert 1.0 - 1.0 / (2 * problem.block_smoothness.max()) == pytest.approx(0.5 + 0.1 / 2.2)


def test_a_run_of_undamped_blocks_is_told_to_damp_them():
    """1.70 times a round with one local step, 1.72 with a thousand: what helps is damping."""
    problem = of_widths(*collinear_squares(), Squared(), 0.01, 3, 3, 3)
    with pytest.warns(DivergenceWarning, match="FedBCD .*: take a smaller damping"):
        run(FedBCD(damping=1.0), problem, rounds=10)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("Q", [1, 10, 1000])
def test_undamped_parallel_blocks_diverge_at_the_predicted_factor(Q):
    """w+ - w* = (I - theta Pi H)(w - w*), Pi = blockdiag((I - (I - eta_b H_bb)^Q) H_bb^{-1})."""
    X, y = collinear_squares()
    problem = of_widths(X, y, Squared(), 0.01, 3, 3, 3)
    H = X.T @ X / 80 + 0.01 * np.eye(9)
    Pi = np.zeros((9, 9))
    for b in range(3):
        at = slice(3 * b, 3 * b + 3)
        own = H[at, at]
        step = np.eye(3) - own / np.linalg.eigvalsh(own)[-1]
        Pi[at, at] = (np.eye(3) - np.linalg.matrix_power(step, Q)) @ np.linalg.inv(own)
    top = np.linalg.eigvals(Pi @ H).real.max()
    assert top - 1.0 == pytest.approx({1: 1.6952, 1000: 1.7205}.get(Q, top - 1.0), abs=1e-4)
    best = problem.solve().w
    states = [s.w[0] - best for _, s in iterate(FedBCD(local_steps=Q, damping=1.0), problem, rounds=40)]
    assert np.linalg.norm(states[-1]) / np.linalg.norm(states[-2]) == pytest.approx(top - 1.0, rel=1e-6)
    for share, grows in ((0.99, False), (1.01, True)) if Q < 1000 else ():
        theta = share * 2.0 / top
        states = [s.w[0] - best for _, s in iterate(FedBCD(local_steps=Q, damping=theta), problem, rounds=300)]
        if grows:  # theta top - 1 = 1.02
            assert np.linalg.norm(states[-1]) / np.linalg.norm(states[-2]) == pytest.approx(1.02, rel=1e-6)
        assert (np.linalg.norm(states[-1]) > np.linalg.norm(states[-50])) == grows
    if Q == 10:
        assert quiet(FedBCD(local_steps=Q), problem, rounds=4000, tol=1e-8).status.name == "CONVERGED"
        assert quiet(FedBCD(local_steps=Q, order="in turn"), problem, rounds=6000, tol=1e-8).status.name == "CONVERGED"


@pytest.mark.slow
@pytest.mark.compiled
def test_scores_at_the_server_stay_those_of_the_blocks(logistic):
    """In parallel, in turn, and with sampled owners; a round costs n numbers each way and owner."""
    X = logistic.federation.rows.X
    for method, m in ((FedBCD(local_steps=3), 3), (FedBCD(order="in turn"), 1), (FedBCD(participation=2), 2)):
        for t, s in iterate(method, logistic, rounds=50):
            np.testing.assert_allclose(s.z[0, :, 0], X @ s.w[0], rtol=0, atol=1e-12)
            if t == 2 and m == 1:
                assert (s.w[0, 6:] == 0.0).all()
                assert (s.w[0, :6] != 0.0).all()
        result = quiet(method, logistic, rounds=5, tol=0)
        assert result.trace.floats_up[-1] == result.trace.floats_down[-1] == 5 * m * 400


# ---------------------------------------------------------------- what is hidden, and what is not


def test_scores_and_slopes_of_descent_are_what_they_are_called(logistic):
    """The state's z are the scores of its blocks, and r the slopes that labels make of them."""
    X, y = logistic.federation.rows.X, logistic.y
    for _, s in iterate(VerticalGradientDescent(step_size="auto"), logistic, rounds=4):
        np.testing.assert_allclose(s.z[0, :, 0], X @ s.w[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(s.r[0, :, 0], -y / (1.0 + np.exp(y * s.z[0, :, 0])), rtol=1e-12)


def test_slopes_reveal_labels(logistic):
    """Why owners who receive slopes know the labels: sign(-l'(z, y)) = y for the logistic loss, masks or not.

    Of squared loss, z - y of a round with z = 0 *is* the target; and whoever knows the sum of the scores of two owners
    and is one of them knows those of the other.
    """
    pytest.importorskip("cryptography")
    for sums in (PlainSums(), SecureSums(24)):
        for _, s in iterate(VerticalGradientDescent(step_size="auto", sums=sums), logistic, rounds=3):
            np.testing.assert_array_equal(np.sign(-s.r[0, :, 0]), logistic.y)
    X, y = collinear_squares()
    squares = of_widths(X, y, Squared(), 0.01, 4, 5)
    states = [s for _, s in iterate(VerticalGradientDescent(step_size="auto", sums=SecureSums(40)), squares, rounds=2)]
    np.testing.assert_array_equal(-states[0].r[0, :, 0], y)
    mine, sum_of_both = X[:, :4] @ states[2].w[0, :4], states[2].z[0, :, 0]
    np.testing.assert_allclose(sum_of_both - mine, X[:, 4:] @ states[2].w[0, 4:], rtol=0, atol=1e-11)


def test_masked_sums_of_scores_are_right_to_half_a_unit_an_owner(logistic):
    """m 2^-(bits + 1) for m owners, and not much less; masked answers show nothing of the scores."""
    pytest.importorskip("cryptography")
    X = logistic.federation.rows.X
    for bits in (12, 24):
        method = VerticalGradientDescent(step_size="auto", sums=SecureSums(bits))
        states = [s for _, s in iterate(method, logistic, rounds=5)]
        off = max(np.abs(s.z[0, :, 0] - X @ s.w[0]).max() for s in states)
        assert 0.3 * 3 * 2.0 ** -(bits + 1) < off <= 3 * 2.0 ** -(bits + 1) * (1.0 + 1e-6)
    plain = quiet(VerticalGradientDescent(step_size="auto"), logistic, rounds=5, tol=0)
    exact = quiet(VerticalGradientDescent(step_size="auto", sums=SecureSums(24)), logistic, rounds=5, tol=0)
    np.testing.assert_allclose(exact.w, plain.w, rtol=0, atol=1e-6)
    assert exact.trace.floats_up[-1] == plain.trace.floats_up[-1] + 5 * 3 * 4  # public keys
    assert exact.trace.floats_down[-1] == plain.trace.floats_down[-1] + 5 * 3 * 2 * 4  # those of the others
    draws = Draws(0, np.zeros(1, np.int64), 0)
    reply = vertical_scores.Reply(np.zeros((1, 3, 400, 1)), np.zeros((1, 3, 10)))
    sent = vertical_scores.masked(SecureSums(24), logistic, reply, np.array([[0, 1, 2]]), draws)
    bits_set = np.unpackbits(sent.numbers.view(np.uint8)).mean()
    assert abs(bits_set - 0.5) < 0.01
    assert (vertical_scores.total(SecureSums(24), sent, 1) == 0.0).all()


@pytest.mark.slow
@pytest.mark.compiled
def test_methods_converge_on_masked_sums(logistic):
    """All owners, or sampled ones; the certificate is that of the model, whatever its scores were rounded to."""
    pytest.importorskip("cryptography")
    sums, best = SecureSums(40), logistic.solve().value
    for method in (
        VerticalAcceleratedGradient(step_size="auto", sums=sums),
        FedBCD(local_steps=3, sums=sums),
        FedBCD(participation=2, local_steps=3, sums=sums),
    ):
        result = quiet(method, logistic, rounds=4000, tol=1e-8)
        assert result.status.name == "CONVERGED"
        assert best - 1e-14 <= result.trace.value[-1] <= best + 1e-8


def test_what_masks_cannot_do(logistic):
    pytest.importorskip("cryptography")
    sums = SecureSums(40)
    for call, message in (
        (lambda: FedBCD(order="in turn", sums=sums), "FedBCD.sums must be PlainSums"),
        (lambda: run(FedBCD(participation=1, sums=sums), logistic, rounds=1), "at least one other client"),
        (lambda: VerticalGradientDescent(step_size=0.1, sums=24), "sums must be PlainSums"),
        # the parts must fit, not their sum alone: w_b of 1e9 overflows 2^(63 - 40)/3
        (
            lambda: run(VerticalGradientDescent(step_size=1e-9, sums=sums), logistic, rounds=2, start=np.full(10, 1e9)),
            "secure.encode must be finite and below 2.8e",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VerticalFederation.from_blocks([np.eye(2), np.eye(3)], [1.0, 2.0]), "have the same rows"),
        (lambda: VerticalFederation.from_blocks({"a": np.eye(2), "b": np.zeros((2, 1))}, [1.0, 2.0]), "owner b must"),
        (lambda: VerticalFederation.from_blocks([], [1.0]), "blocks must be one for each owner"),
        (lambda: VerticalFederation.from_blocks([np.eye(2)] * 2, [1.0, 2.0], ["a", "a"]), "different names"),
        (lambda: VerticalFederation.from_blocks([np.eye(2)], [1.0, 2.0, 3.0]), "one label per row"),
        (lambda: VerticalFederation(Federation(np.eye(2), [1.0, 2.0], [0, 1, 2]), [0, 2]), "be of one client"),
        (lambda: VerticalFederation(Federation(np.eye(2), [1.0, 2.0], [0, 2]), [0, 0, 2]), "without columns"),
        (lambda: of_widths(np.eye(2), [1.0, -1.0], Logistic(), 0.0, 1, 1), r"VerticalProblem.l2 must"),
        (lambda: of_widths(np.eye(2), [1.0, 2.0], Logistic(), 0.1, 1, 1), "label"),
        (lambda: FedBCD(step_share=2.0), "FedBCD.step_share must lie strictly between 0 and 2"),
        (lambda: FedBCD(order="in turn", participation=2), "FedBCD.participation must be left out"),
        (lambda: FedBCD(damping="auto"), "FedBCD.damping must"),
        (lambda: VerticalAcceleratedGradient(step_size=0.1, momentum=1.0), "momentum must lie in"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_losses_with_kinks_have_no_steps_from_curvature(logistic):
    problem = VerticalProblem(logistic.federation, Hinge(), 0.1)
    with pytest.raises(TypeError, match="VerticalNewtonCG: problem must have a loss of one score with a curvature"):
        run(VerticalNewtonCG(), problem, rounds=1)
    for method in (VerticalGradientDescent(step_size="auto"), VerticalAcceleratedGradient(step_size="auto"), FedBCD()):
        with pytest.raises(ValueError, match=r"smooth"):
            run(method, problem, rounds=1)


def test_a_problem_of_another_kind_is_refused(logistic):
    with pytest.raises(TypeError, match="VerticalProblem"):
        run(FedBCD(), Problem(logistic.federation.rows, Logistic(), 0.1), rounds=1)
    with pytest.raises(TypeError, match="GradientDescent: problem must learn"):
        run(GradientDescent(step_size=0.1), logistic, rounds=1)
    with pytest.raises(ValueError, match="FedBCD: start must be zero"):
        run(FedBCD(order="in turn"), logistic, rounds=1, start=np.ones(10))


# ---------------------------------------------------------------- tables

BANK = {
    "customer": ["0007", "7", "a", "b", "c"],
    "income": [3.5, 1.0, 2.0, 2.5, 1.5],
    "default": ["y", "n", "y", "n", "y"],
}
SHOP = {
    "customer": ["c", "x", "7", "a", "0007"],
    "visits": [9.5, 5.0, 1.0, 2.0, 4.0],
    "town": ["p", "q", "q", "p", "q"],
}


def of_tables(bank=BANK, shop=SHOP, **choices):
    return VerticalFederation.from_frames({"bank": bank, "shop": shop}, on="customer", target="default", **choices)


def test_tables_are_joined_on_ids_as_they_are_written():
    """In the order of the first table, whatever the order of the second; what has no partner is counted and listed."""
    fed = of_tables(standardise=False)
    assert fed.labels.tolist() == ["bank", "shop"]
    assert fed.ptr.tolist() == [0, 1, 4]
    assert fed.join.ids.tolist() == ["0007", "7", "a", "c"]
    assert fed.join.unmatched == {"bank": ("b",), "shop": ("x",)}
    np.testing.assert_array_equal(fed.rows.X, [[3.5, 4, 0, 1], [1, 1, 0, 1], [2, 2, 1, 0], [1.5, 9.5, 1, 0]])
    assert fed.y.tolist() == [1.0, -1.0, 1.0, 1.0]
    assert fed.columns.feature_names == ("income", "visits", "town=p", "town=q")
    upside_down = {name: column[::-1] for name, column in SHOP.items()}
    np.testing.assert_array_equal(of_tables(shop=upside_down).rows.X, of_tables().rows.X)
    best = VerticalProblem(fed, Logistic(), 0.1).solve()
    assert best.predict({"income": [3.0], "visits": [4.0], "town": ["q"]}).tolist() == ["y"]


@pytest.mark.parametrize(
    ("bank", "shop", "message"),
    [
        ({"customer": ["a", "b", "a"]}, {}, "column 'customer' of bank must hold every id once; got 'a' 2 times"),
        ({"customer": ["a", None, "b"]}, {}, "of bank must have an id in every row; got none in row 2"),
        ({}, {"customer": ["k", "l", "m"]}, "find ids in column 'customer' that all owners have"),
        ({}, {"income": [1.0, 2.0, 3.0]}, "column 'income' must be of one owner; got bank and shop"),
        ({}, {"default": ["y", "n", "y"]}, "column 'default' must be of one owner; got bank and shop"),
        ({}, {"customer": None}, "table of shop must have the column 'customer'"),
        ({}, {"visits": None}, "table of shop must have a column that makes a feature"),
        ({"default": None}, {}, "target must be a column of one of the owners; got 'default'"),
    ],
)
def test_tables_that_cannot_be_joined(bank, shop, message):
    base = (
        {"customer": ["a", "b", "c"], "income": [1.5, 2.5, 4.0], "default": ["y", "n", "y"]},
        {"visits": [1.0, 5.0, 2.5]},
    )
    tables = [
        {k: v for k, v in {**of, **new}.items() if v is not None}
        for of, new in zip((base[0], {"customer": ["c", "a", "b"], **base[1]}), (bank, shop), strict=True)
    ]
    with pytest.raises((ValueError, TypeError), match=message):
        of_tables(*tables)


def test_ids_that_are_dates_are_those_of_files():
    days = ["2020-01-02", "2020-01-03", "2020-01-04"]
    bank = {"customer": np.array(days, "datetime64[D]"), "income": [1.5, 2.5, 4.0], "default": ["y", "n", "y"]}
    fed = of_tables(bank, {"customer": days[::-1], "visits": [1.0, 5.0, 2.5]})
    assert fed.join.ids.tolist() == days
    bank["customer"] = np.array(["2020-01-02", "NaT", "2020-01-04"], "datetime64[s]")
    with pytest.raises(ValueError, match="of bank must have an id in every row; got none in row 2"):
        of_tables(bank)


def test_joined_rows_have_no_weights_and_no_clients():
    """They would be dropped in silence: the objective has neither."""
    for choice in ({"weight": "income"}, {"client": "town"}, {"domain": "town"}, {"sep": ";"}):
        with pytest.raises(ValueError, match=f"from_frames: {next(iter(choice))} must be left out"):
            of_tables(**choice)
    with pytest.raises(ValueError, match="tables must have different names of owners; got 1, '1'"):
        VerticalFederation.from_frames({1: BANK, "1": SHOP}, on="customer", target="default")


def test_damping_of_columns_that_rounding_makes_dependent():
    """A block of rank 1 beside l2 = 1e-30, where eigenvalues come out below 0; and squares that overflow."""
    x = np.random.default_rng(0).normal(size=(20, 1))
    blocks = [np.hstack([x, 3.0 * x, x]), np.random.default_rng(1).normal(size=(20, 1))]
    problem = VerticalProblem(VerticalFederation.from_blocks(blocks, x[:, 0]), Squared(), 1e-30)
    found = problem.damping(3)
    assert np.isfinite(found).all() and found.min() >= -1e-14
    dense = VerticalProblem(VerticalFederation.from_blocks([x, blocks[1]], x[:, 0]), Squared(), 0.1)
    H = np.hstack([x, blocks[1]]).T @ np.hstack([x, blocks[1]]) / 20 + 0.1 * np.eye(2)
    steps = np.diag((1.0 - (1.0 - 0.7) ** 3) / np.diag(H))  # one column an owner: Pi is diagonal
    np.testing.assert_allclose(dense.damping(3, 0.7), np.sort(np.linalg.eigvals(steps @ H).real), rtol=1e-12)
    far = VerticalProblem(VerticalFederation.from_blocks([1e200 * x, blocks[1]], x[:, 0]), Squared(), 0.1)
    with pytest.raises(ValueError, match="squares that overflow or vanish"):
        far.damping()
