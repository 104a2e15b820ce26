"""Compressors and what they declare; DIANA, EF21, ErrorFeedback and CompressedGradientDescent against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedconvex import Federation, GradientDescent, Logistic, Problem, Softmax, Squared, run
from fedconvex.datasets import logistic_federation
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import (
    DIANA,
    EF21,
    CompressedGradientDescent,
    Dithering,
    ErrorFeedback,
    RandK,
    TopK,
    resolved,
)
from tests.test_unbiased_local_methods import L2, clients, gradients, logistic_problem

IDS = np.array([[3, 8, 1]])


def drawn(C, x, trajectories=1, round_=0, ids=IDS, seed=0):
    """C(x) of clients in so many trajectories, (R, m, d)."""
    X = np.broadcast_to(x, (trajectories, ids.shape[1], x.shape[-1]))
    at = Draws(key_from_seed(seed), np.arange(trajectories), round_)
    return C.unpack(*C.pack(np.ascontiguousarray(X), at, np.broadcast_to(ids, X.shape[:2]).copy()), x.shape[-1])


# ---------------------------------------------------------------- compressors


def test_topk_keeps_its_bound_and_attains_it(rng):
    for d, k in ((1, 1), (5, 2), (30, 7)):
        C = TopK(k)
        assert C.delta(d) == k / d
        for x in (rng.normal(size=d), rng.standard_cauchy(size=d), np.ones(d), np.zeros(d), 1e300 * rng.normal(size=d)):
            scale = max(np.abs(x).max(), 1.0)
            off = np.sum(((drawn(C, x)[0, 0] - x) / scale) ** 2)
            bound = (1 - C.delta(d)) * np.sum((x / scale) ** 2)
            assert off <= bound * (1 + 1e-12)
            assert not (x == 1.0).all() or off == pytest.approx(bound)  # equal entries attain it
        kept = np.sort(np.abs(drawn(C, x := rng.normal(size=d))[0, 0]))[d - k :]
        assert np.array_equal(kept, np.sort(np.abs(x))[d - k :])


@pytest.mark.parametrize("C", [RandK(2), RandK(5), Dithering(1), Dithering(4)], ids=repr)
def test_unbiased_compressors_have_the_mean_and_the_variance_that_they_declare(C, rng):
    """Over 2,000 draws: the mean within 5 standard errors; the square at most omega ‖x‖^2, attained by RandK."""
    x, R = rng.normal(size=5), 2_000
    found = drawn(C, x, R)[:, 1]
    off = np.sum((found - x) ** 2, axis=1)
    assert np.all(np.abs(found.mean(axis=0) - x) <= 5 * found.std(axis=0) / math.sqrt(R) + 1e-12)
    omega, size = C.omega(5) * np.sum(x * x), 5 * off.std() / math.sqrt(R)
    assert off.mean() <= omega + size + 1e-12
    if isinstance(C, RandK):
        assert abs(off.mean() - omega) <= size + 1e-12
        assert C.k == 5 or abs(off.mean() - omega * 1.2) > size  # a fifth more would be noticed


def test_draws_are_those_of_the_client_whoever_else_takes_part():
    x = np.arange(1.0, 7.0)
    for C in (RandK(2), Dithering(2)):
        together, alone = drawn(C, x, 3), drawn(C, x, 3, ids=IDS[:, 1:2])
        assert np.array_equal(together[:, 1], alone[:, 0])
        assert not np.array_equal(together[:, 0], together[:, 1]) and not np.array_equal(together[0], together[1])
        assert not np.array_equal(together, drawn(C, x, 3, round_=1))
        assert not np.array_equal(together, drawn(C, x, 3, seed=1))
        assert np.array_equal(drawn(C, np.zeros(6))[0], np.zeros((3, 6)))


def test_bits_are_what_codes_need_at_least():
    assert [TopK(2).bits(d) for d in (1, 2, 10, 16, 17)] == [0, 2, 8, 8, 10]
    assert RandK(3).bits(10) == 12 and Dithering(1).bits(10) == 20 and Dithering(3).bits(10) == 30
    _, problem = clients()
    for method, each in ((EF21(step_size=0.1, compressor=TopK(2)), 2 * 64 + 2 * 2),):
        found = run(method, problem, rounds=6, tol=0.0).trace
        assert found.bits_up.tolist() == [0, *(3 * (4 * 64 + t * each) for t in range(6))]
        assert found.floats_up.tolist() == [0, *(3 * (4 + 2 * t) for t in range(6))]
    found = run(DIANA(step_size=0.1, compressor=Dithering(2)), problem, rounds=4, tol=0.0).trace
    assert found.bits_up[-1] == 4 * 3 * (64 + 4 * 3) and found.floats_up[-1] == 4 * 3


@pytest.mark.parametrize("C", [TopK(2), RandK(2), Dithering(2)], ids=repr)
def test_replies_that_are_none_are_refused(C):
    values, codes = C.pack(np.ones((1, 1, 4)), Draws(key_from_seed(0), np.arange(1), 0), np.zeros((1, 1), np.int64))
    for wrong in (codes - 9, codes + 9, codes[..., :1]):
        with pytest.raises(ValueError, match="compressed reply must have"):
            C.unpack(values, wrong, 4)


# ---------------------------------------------------------------- line by line


@pytest.mark.parametrize("C", [TopK(1), RandK(2), Dithering(2)], ids=repr)
@pytest.mark.parametrize("name", ["DIANA", "EF21", "CompressedGradientDescent", "ErrorFeedback"])
def test_methods_equal_plain_numpy(name, C):
    """The compressor is the method's own, in the round's draws; all else is written out."""
    if name == "DIANA" and not C.unbiased:
        pytest.skip("needs an unbiased compressor")
    rows, problem = clients()
    grad, q, gamma, alpha = gradients(rows), problem.weights, 0.2, 0.3
    order = np.argsort(problem.federation.ids)
    ids = problem.federation.ids[order][None]

    def compressed(X, t):
        at = Draws(key_from_seed(4), np.arange(1), t)
        found = C.unpack(*C.pack(X[order][None].copy(), at, ids.copy()), 4)[0]
        return found[np.argsort(order)]

    w, h, mine = np.zeros(4), np.zeros(4), np.zeros((3, 4))
    for t in range(8):
        G = np.array([grad(k, w) for k in range(3)])
        if name == "DIANA":
            m = compressed(G - mine, t)
            w, h, mine = w - gamma * (h + q @ m), h + alpha * (q @ m), mine + alpha * m
        elif name == "EF21":
            mine = G if t == 0 else mine + compressed(G - mine, t)
            w = w - gamma * (q @ mine)
        elif name == "ErrorFeedback":
            c = compressed(mine + gamma * G, t)
            mine, w = mine + gamma * G - c, w - q @ c
        else:
            w = w - gamma * (q @ compressed(G, t))
    cls = {c.__name__: c for c in (DIANA, EF21, CompressedGradientDescent, ErrorFeedback)}[name]
    more = {"alpha": alpha} if name == "DIANA" else {}
    result = run(cls(step_size=gamma, compressor=C, **more), problem, rounds=8, seed=4)
    assert np.abs(result.w - w).max() < 1e-14


@pytest.mark.parametrize("loss", [Squared(), Softmax(3)], ids=lambda loss: type(loss).__name__)
def test_whole_vectors_are_gradient_descent(loss, rng):
    fed = Federation.from_clients([(rng.normal(size=(n, 2)), rng.integers(0, 3, n)) for n in (4, 7)])
    problem = Problem(fed, loss, 0.1)
    size = int(np.prod(problem.model_shape))
    descent = run(GradientDescent(step_size=0.1), problem, rounds=9).w
    for cls in (EF21, CompressedGradientDescent, ErrorFeedback, DIANA):
        C = RandK(size) if cls is DIANA else TopK(size)
        assert np.abs(run(cls(step_size=0.1, compressor=C), problem, rounds=9).w - descent).max() < 1e-14


# ---------------------------------------------------------------- rounds, theorems, what they need


@pytest.mark.slow
@pytest.mark.compiled
def test_rounds_to_a_gap_are_those_computed_elsewhere():
    """Ten unequal clients, F - F* <= 1e-10, two of ten entries: rounds of a program that shares no line with this."""
    problem = logistic_problem()
    best, L_F = problem.solve().value, 0.316851

    def needed(method, seed=0):
        found = run(method, problem, rounds=4000, seed=seed, tol=1e-12).trace
        i = np.flatnonzero(found.value - best <= 1e-10)[0]
        return int(found.round[i]), int(found.floats_up[i]) // 10

    theory = resolved(DIANA(step_size="auto", compressor=RandK(2)), problem)[0].step_size
    for times, rounds in ((1.0, 1639), (3.0, 541)):  # of another seed
        found = [needed(DIANA(step_size=times * theory, compressor=RandK(2)), seed)[0] for seed in range(4)]
        assert abs(np.mean(found) / rounds - 1.0) < 0.03
    assert needed(EF21(step_size="auto", compressor=TopK(2))) == (3152, 10 + 2 * 3151)
    assert needed(EF21(step_size=1.0 / L_F, compressor=TopK(2))) == (198, 10 + 2 * 197)
    assert needed(EF21(step_size=1.337 / L_F, compressor=TopK(2)))[0] == 144


def test_the_potential_of_ef21_shrinks_and_that_of_diana_does_in_the_mean():
    """One round from random states, over all draws of RandK for DIANA; a rate twice as fast would be violated."""
    rows, problem = clients()
    problem = Problem(problem.federation, Logistic(), L2, "uniform")
    grad, n, d = gradients(rows), 3, 4
    best, c = problem.solve(), problem.constants()
    star, L = best.w, float(c.L)
    at_star, rng = np.array([grad(k, star) for k in range(n)]), np.random.default_rng(1)
    G = lambda w: np.array([grad(k, w) for k in range(n)])  # noqa: E731
    square = lambda a: float(np.sum(a * a)) / n  # noqa: E731
    gamma = resolved(EF21(step_size="auto", compressor=TopK(1)), problem)[0].step_size
    theta, tight = 1 - math.sqrt(1 - 1 / d), 0.0
    for _ in range(40):
        w = star + rng.normal(size=d) * rng.choice([0.1, 1.0])
        mine = G(w) + rng.normal(size=(n, d)) * rng.choice([0.0, 0.01, 1.0])
        value = lambda w, mine: problem.value(w) - best.value + gamma / theta * square(mine - G(w))  # noqa: E731
        new = w - gamma * mine.mean(axis=0)
        later = mine + drawn(TopK(1), G(new) - mine)[0]
        rate = value(new, later) / value(w, mine)
        assert rate <= max(1 - gamma * L2, 1 - theta / 2)
        tight = max(tight, rate)
    assert tight > 1 - theta  # a rate of 1 - theta, twice as fast, is not true

    k, tight = 1, 0.0
    omega, alpha = d / k - 1.0, k / d
    gamma = resolved(DIANA(step_size="auto", compressor=RandK(k)), problem)[0].step_size
    assert gamma == pytest.approx(1 / (L * (1 + 6 * omega / n)))
    weight = 4 * omega / (n * alpha) * gamma**2
    V = lambda w, h: float((w - star) @ (w - star)) + weight * square(h - at_star)  # noqa: E731
    outcomes = np.array(np.meshgrid(*[range(d)] * n)).reshape(n, -1).T
    for _ in range(10):
        w, h = star + 0.3 * rng.normal(size=d), at_star + rng.normal(size=(n, d)) * rng.choice([0.0, 0.1, 1.0])
        total = 0.0
        for places in outcomes:
            m = np.zeros((n, d))
            m[range(n), places] = d * (G(w) - h)[range(n), places]
            total += V(w - gamma * (h + m).mean(axis=0), h + alpha * m)
        rate = total / len(outcomes) / V(w, h)
        assert rate <= max(1 - gamma * L2, 1 - alpha / 2)
        tight = max(tight, rate)
    assert tight > 1 - alpha


def test_biased_gradients_of_several_clients_lead_elsewhere_and_of_one_do_not():
    """TopK(1) on gradients (3, -1) and (-3, 0) at the optimum's neighbourhood keeps the first entries alone."""
    fed = Federation.from_clients([([[1.0, 0.0], [0.0, 1.0]], y) for y in ([3.0, 1.0], [-3.0, 0.0])])
    problem = Problem(fed, Squared(), 0.1)
    best = problem.solve()
    stuck = run(CompressedGradientDescent(step_size=0.5, compressor=TopK(1)), problem, rounds=400, tol=0.0)
    assert stuck.w[1] == 0.0 and abs(best.w[1]) > 0.1  # the second coordinate is never told
    assert run(EF21(step_size=0.5, compressor=TopK(1)), problem, rounds=400, tol=1e-10).status.name == "CONVERGED"
    alone = Problem(fed.subset([0]), Squared(), 0.1)
    for cls in (CompressedGradientDescent, ErrorFeedback):
        assert run(cls(step_size=0.5, compressor=TopK(1)), alone, rounds=400, tol=1e-10).status.name == "CONVERGED"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: TopK(0) and EF21(step_size=0.1, compressor=TopK(0)), "k must be at least 1"),
        (lambda p: EF21(step_size=0.1, compressor=TopK(1.5)), "k must be"),
        (lambda p: EF21(step_size=0.1, compressor=TopK), "be a compressor such as"),
        (lambda p: EF21(step_size=0.1, compressor=3), "be a compressor such as"),
        (
            lambda p: run(EF21(step_size=0.1, compressor=TopK(5)), p, rounds=1),
            "at most the 4 entries of a model; got 5",
        ),
        (lambda p: DIANA(step_size=0.1, compressor=TopK(1)), "be unbiased.*EF21"),
        (lambda p: DIANA(step_size=0.1, compressor=RandK(1), alpha=1.5), "alpha must"),
        (lambda p: run(EF21(step_size="auto", compressor=RandK(1)), p, rounds=1), "contractive"),
    ],
)
def test_settings_out_of_range_are_refused_in_words(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(clients()[1])


def test_automatic_steps_of_error_feedback_are_those_of_one_client():
    """The numbers of the theorems; several clients, unbiased compressors and l2 = 0 have none, and are told so."""
    one = Problem(logistic_federation(n_clients=1, seed=1).federation, Logistic(), l2=0.1)
    L, s = float(one.constants().L), math.sqrt(1.0 - 2 / one.size)
    for cls, step in (
        (ErrorFeedback, 2.0 / (L + 0.1) * (1.0 - s) / (1.0 + s)),
        (CompressedGradientDescent, 2.0 / ((1.0 + s) * L + (1.0 - s) * 0.1)),
    ):
        method, said = resolved(cls(step_size="auto", compressor=TopK(2)), one)
        assert method.step_size == pytest.approx(step, rel=1e-9)
        assert "docs/theory" in str(said)
        for problem, C, why in (
            (Problem(logistic_federation(n_clients=2, seed=1).federation, Logistic(), l2=0.1), TopK(2), "EF21"),
            (one, RandK(2), "not contractive"),
            (Problem(one.federation, Logistic()), TopK(2), "l2 > 0"),
        ):
            with pytest.raises(ValueError, match=why):
                resolved(cls(step_size="auto", compressor=C), problem)


def test_automatic_steps_refuse_compressors_of_more_entries_than_a_model_has():
    """Not as the root of a negative number, or a negative step."""
    problem = Problem(logistic_federation(n_clients=1, seed=1).federation, Logistic(), l2=0.1)
    for cls, C in ((EF21, TopK), (DIANA, RandK), (ErrorFeedback, TopK), (CompressedGradientDescent, TopK)):
        with pytest.raises(ValueError, match=f"{cls.__name__}.compressor: k must be at most the {problem.size}"):
            run(cls(step_size="auto", compressor=C(problem.size + 1)), problem, rounds=1)
