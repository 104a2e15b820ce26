"""Verdicts and double precision: no true theorem is violated by rounding, and rounding excuses no false one."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.driver import iterate
from fedconvex.methods import (
    SVRG,
    DynamicFedAvg,
    FedProx,
    ProgressiveHedging,
    ProportionalSampling,
    ProximalPoint,
    RADFed,
    UniformSampling,
)
from fedconvex.problems import MovingTarget
from fedconvex.theorems.dynamic_msd import msd_paper, msd_refined
from fedconvex.theorems.parts.chances import rarest_draw
from fedconvex.theorems.parts.rounding import Found, excess, gradient_rounding, of_square
from fedconvex.theorems.parts.tracking import TrackingConstants
from fedconvex.theory.bound import LAST_SYNCHRONISED, SHADOW_AVERAGE, Bound
from fedconvex.theory.fixed_points import fedavg_filter, fedavg_round, quadratic
from fedconvex.theory.moments import Moments, incremental_noise2, moved
from fedconvex.theory.round_maps import scaffold_round, scaffold_split
from fedconvex.verify import THEOREMS, Outcome, Setting, Theorem, verify


def squares(seed=0, K=4, n=6, d=2, l2=0.1, scale=1.0, residual=1.0):
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(K * n, d))
    y = X @ rng.normal(size=d) / scale + residual * rng.normal(size=K * n)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), n)), Squared(), l2, "uniform")


def planted(name, share, quantity=None):
    """The theorem, or one on another quantity, with a share of the exact value of its quantity for a bound."""
    right = THEOREMS[name] if quantity is None else Theorem("planted", quantity, None)

    def bound(s):
        return Bound({"planted": share * float(right.expectation(s, [s.rounds]).values[0])}, right.quantity, "planted")

    return right._replace(bound=bound, read=None)


# ---------------------------------------------------------------- exact moments need no allowance for cancellation


@pytest.mark.parametrize("residual", [1.0, 1e5, 1e8])
def test_large_residuals_excuse_no_bound_of_an_exact_expectation(residual):
    """F* is about residual^2/2, and F - F* is computed without it: a bound 1/1.05 of the value is violated."""
    problem = squares(residual=residual)
    near = problem.solve().w + 1e-4
    method = FedAvg(step_size=0.01, local_steps=2)
    for quantity in (SHADOW_AVERAGE, LAST_SYNCHRONISED):
        for share, outcome in ((0.01, "VIOLATED"), (1.0 / 1.05, "VIOLATED"), (1.0, "HOLDS")):
            verdict = verify(planted("fedavg-at-optimum", share, quantity), problem, method, rounds=3, start=near)
            assert verdict.outcome.name == outcome, verdict


def exactly(problem, method, rounds, start):
    """E F(w_T) - F* of full batches in 60 digits, on the problem's rows as they are."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        fed, d = problem.federation, problem.federation.d
        X, y = mp.matrix(fed.X.tolist()), mp.matrix(fed.y.tolist())
        rows = [range(int(a), int(b)) for a, b in itertools.pairwise(fed.ptr)]
        p = [mp.mpf(float(v)) for v in problem.weights]

        def gradient(k, w):
            g = w * mp.mpf(problem.l2)
            for i in rows[k]:
                r = (sum(X[i, j] * w[j] for j in range(d)) - y[i]) / len(rows[k])
                g += mp.matrix([X[i, j] * r for j in range(d)])
            return g

        def value(w):
            out = mp.mpf(problem.l2) / 2 * sum(v * v for v in w)
            for k, part in enumerate(rows):
                r2 = sum((sum(X[i, j] * w[j] for j in range(d)) - y[i]) ** 2 for i in part)
                out += p[k] * r2 / (2 * len(part))
            return out

        zero, H = mp.zeros(d, 1), mp.zeros(d)
        g0 = sum((p[k] * gradient(k, zero) for k in range(fed.K)), mp.zeros(d, 1))
        for j in range(d):
            unit = mp.zeros(d, 1)
            unit[j] = 1
            column = sum((p[k] * gradient(k, unit) for k in range(fed.K)), mp.zeros(d, 1)) - g0
            for i in range(d):
                H[i, j] = column[i]
        best, w = mp.lu_solve(H, -g0), mp.matrix([mp.mpf(float(v)) for v in start])
        for _ in range(rounds):
            models = []
            for k in range(fed.K):
                v = w.copy()
                for _ in range(method.local_steps):
                    v = v - mp.mpf(method.step_size) * gradient(k, v)
                models.append(p[k] * v)
            w = sum(models, mp.zeros(d, 1))
        return float(value(w) - value(best)), float(mp.norm(w - best) ** 2)


@pytest.mark.parametrize("seed", range(12))
def test_the_rounding_of_exact_moments_is_bounded_by_what_is_said(seed):
    """Against 60 digits; and the allowance is at most 1e-8 of the value on these problems of condition up to 1e4."""
    rng = np.random.default_rng(seed)
    scale, residual = 10.0 ** rng.uniform(-3, 3), 10.0 ** rng.uniform(-3, 5)
    problem = squares(seed, scale=scale, residual=residual, l2=scale**2 * 10.0 ** rng.uniform(-4, 0), n=3)
    method = FedAvg(step_size=0.3 / float(problem.constants().L), local_steps=3)
    start = problem.solve().w * (1.0 + 10.0 ** rng.uniform(-6, 2) * rng.normal(size=2))
    moments = Moments.of(method, problem)
    trace = moments.run(5, start=start)
    off = moved(moments, trace.deviation)
    value, deviation = exactly(problem, method, 5, start)
    assert abs(trace.suboptimality[-1] - value) <= off.value[-1]
    true = abs(trace.deviation[-1] - deviation)
    assert true <= off.deviation[-1] + of_square(deviation, 1e-14 * float(np.linalg.norm(problem.solve().w)) * 1e4)
    assert off.value[-1] <= 1e-6 * value + 1e-20 * residual**2


def test_the_excess_of_least_squares_is_no_difference():
    problem = squares(residual=1e8)
    w = problem.solve().w + 1e-5
    value, _ = exactly(problem, FedAvg(step_size=1.0), 0, w)
    assert excess(problem, w) == pytest.approx(value, rel=1e-6)
    assert abs((problem.value(w) - problem.solve().value) / value - 1.0) > 0.5  # what a difference gives
    loss = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [-1.0])]), Logistic(), 0.1)
    assert excess(loss, np.ones(1)) == loss.value(np.ones(1)) - loss.solve().value


# ---------------------------------------------------------------- incremental noise


def agents(**changes):
    return DynamicFedAvg(**({"step_size": 0.02, "local_steps": (1, 2, 3)} | changes))


def by_enumeration(problem, w, mu, steps, B, L):
    """E‖d‖^2 over all batches and all samples of L agents, in 40 digits or double precision."""
    fed, means, seconds = problem.federation, [], []
    for k in range(fed.K):
        rows = range(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        batches = list(itertools.combinations(rows, B))
        total, second = np.zeros(fed.d), 0.0
        for chosen in itertools.product(batches, repeat=steps[k]):
            v, s = np.zeros(fed.d), np.zeros(fed.d)
            for batch in chosen:
                X = fed.X[list(batch)]
                H = X.T @ X / B + problem.l2 * np.eye(fed.d)
                g = X.T @ (X @ w - fed.y[list(batch)]) / B + problem.l2 * w
                s = s + H @ v
                v = v - mu / steps[k] * (H @ v + g)
            s = s / steps[k]
            total, second = total + s, second + float(s @ s)
        count = len(batches) ** steps[k]
        means.append(total / count)
        seconds.append(second / count)
    out = 0.0
    for sample in itertools.combinations(range(fed.K), L):
        together = sum(seconds[k] for k in sample)
        together += sum(float(means[k] @ means[j]) for k in sample for j in sample if j != k)
        out += together / L**2
    return out / math.comb(fed.K, L)


@pytest.mark.parametrize("mu", [0.2, 1e-2, 1e-6, 1e-8, 1e-12])
@pytest.mark.parametrize(("B", "L"), [(3, 3), (2, 3), (1, 2)])
def test_incremental_noise_by_enumeration(mu, B, L):
    """No difference of moves is divided by mu: equal at every step size (at mu = 1e-6 it was 1.8 times off)."""
    problem, w = squares(1, K=3, n=3), np.array([1.0, -0.5])
    value, off = incremental_noise2(
        problem, w, step_size=mu, participation=L, batch_size=B, local_steps=np.array([1, 2, 3])
    )
    true = by_enumeration(problem, w, mu, (1, 2, 3), B, L)
    assert value == pytest.approx(true, rel=1e-12)
    assert abs(value - true) <= off <= 1e-10 * true


@pytest.mark.parametrize("mu", [1e-2, 1e-6, 1e-8, 1e-12])
def test_incremental_noise_of_tiny_steps(mu):
    problem, w = squares(2), np.ones(2)
    for name in ("dynamic-incremental-noise", "dynamic-incremental-noise-at"):
        for batch in (None, 2):
            method = agents(step_size=mu, local_steps=(1, 2, 3, 4), batch_size=batch)
            exact = verify(name, problem, method, rounds=1, start=w)
            assert (exact.outcome, exact.trajectories) == (Outcome.HOLDS, 0)
            assert verify(planted(name, 1 / 1.05), problem, method, rounds=1, start=w).outcome is Outcome.VIOLATED
            sampled = verify(name, problem, method, rounds=1, start=w, exact=False, most=64)
            assert sampled.outcome in (Outcome.HOLDS, Outcome.VACUOUS, Outcome.INCONCLUSIVE)
            ratio = verify(name, problem, agents(step_size=1e-3, local_steps=(1, 2, 3, 4), batch_size=batch),
                           rounds=1, start=w).ratio  # fmt: skip
            assert exact.ratio == pytest.approx(ratio, rel=0.05)  # to first order both are proportional to mu^2


def test_equal_rows_leave_the_rounding_of_their_variance():
    """The noise is nothing but what subtracting equal squares leaves: measured 3e-52, bound 1e-63, "VIOLATED"."""
    X, y = np.full((20, 1), 9.405807961543854e-05), np.full(20, 7.801251878643548e-08)
    problem = Problem(Federation.from_arrays(X, y, np.arange(20) // 4), Squared(), 14.62354920911536)
    method = DynamicFedAvg(step_size=6.838285187098681e-08, local_steps=4, batch_size=1)
    found = verify("dynamic-incremental-noise", problem, method, rounds=2, start=problem.solve().w)
    assert found.outcome is Outcome.INCONCLUSIVE and 0.0 < found.measured <= found.rounding < 1e-46


def test_numbers_without_digits_are_no_violation():
    """A bound of 0 and quantities whose squares are below the smallest number with all its digits, and one above."""
    for size, violated in ((1e-321, False), (1e-158, False), (1e-140, True)):
        tiny = planted("dynamic-incremental-noise", 0.0)._replace(
            exact=lambda s, rounds, v=size: Found(np.array([v]), np.zeros(1))
        )
        found = verify(tiny, squares(), DynamicFedAvg(step_size=0.1), rounds=1).outcome
        assert (found is Outcome.VIOLATED) == violated, (size, found)


def test_a_start_next_to_the_minimiser_has_an_excess():
    """SVRG's bound is a share of F(w) - F*, which was a difference of equal numbers: the bound was 0, VIOLATED."""
    X = np.full((8, 1), 4.4e-05)
    problem = Problem(Federation.from_arrays(X, np.linspace(-1.0, 2.0, 8), np.arange(8) // 4), Squared(), 0.25)
    start = problem.solve().w + 3e-11
    assert float(problem.value(start)) - problem.solve().value == 0.0
    right = THEOREMS["svrg"]
    for share, outcome in ((1.0, Outcome.HOLDS), (1e-9, Outcome.VIOLATED)):
        theorem = right._replace(
            bound=lambda s, share=share: Bound({"start": share * right.at(s).value}, right.quantity, "p"), read=None
        )
        found = verify(theorem, problem, SVRG(step_size=0.08, inner_steps=20000), rounds=1, start=start)
        assert found.outcome is outcome, found


@pytest.mark.parametrize("share", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
@pytest.mark.parametrize("name", [name for name in THEOREMS if name.startswith("dynamic-msd")])
def test_tracking_with_a_contraction_next_to_one(name, share):
    """Full batches of everybody with one step: E‖e_T‖^2 = T sigma_q^2 + ... to within eta, and 1 - lambda is eta nu."""
    still = Problem(squares(6, K=2, d=1, l2=0.0).federation, Squared(), 1e-6, "uniform")
    problem = MovingTarget(still, 1e-4, bounded=name.endswith("ball"))
    method = DynamicFedAvg(step_size=share)
    start = problem.solve().w
    verdict = verify(name, problem, method, rounds=20, start=start)
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.bound.value == pytest.approx(20 * 1e-4, rel=100 * share + 1e-12)
    assert verify(planted(name, 1 / 1.05), problem, method, rounds=20, start=start).outcome is Outcome.VIOLATED


def test_tracking_bounds_of_tiny_steps_keep_their_digits():
    """From e = 0 with drift alone the bound is 1 + lambda + ... + lambda^19, lambda = 1 - 2 mu nu + O(mu^2)."""
    one = np.ones(2)
    c = TrackingConstants(nu=0.7, delta_P=1.3, delta_k=one, delta_P_k=one, sizes=one, variance_k=0 * one,
                          gradient2_k=0 * one)  # fmt: skip
    for mu in np.logspace(-15, -5, 41).tolist():
        for bound in (msd_paper, msd_refined):
            value = bound(c, step_size=mu, drift2=1.0, rounds=20, start2=0.0).value
            assert value / 20.0 == pytest.approx(1.0 - 9.5 * 1.4 * mu, abs=300.0 * mu**2 + 1e-13)


# ---------------------------------------------------------------- limits


ONE = Problem(Federation.from_clients([(np.ones((3, 2)), [1.0, 2.0, 5.0])]), Squared(), 1e-12)
TINY = Problem(Federation.from_clients([([[1e-9]], [1.0])]), Squared(), 1e-18)


@pytest.mark.parametrize("name", ["fedavg-bias", "fedavg-limit"])
@pytest.mark.parametrize("problem", [ONE, TINY], ids=["condition 1e12", "row of 1e-9"])
@pytest.mark.parametrize("step", [0.2, 1e-9])
def test_one_client_has_no_bias(name, problem, step):
    """Both were VIOLATED, or died of ZeroDivisionError: 1 - c^E rounded to 0."""
    verdict = verify(name, problem, FedAvg(step_size=step, local_steps=3), rounds=1)
    assert (verdict.outcome, verdict.measured) == (Outcome.VACUOUS, 0.0)


@pytest.mark.parametrize("step", [1e-1, 1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("name", ["fedavg-bias", "fedavg-limit"])
def test_limits_of_tiny_steps_keep_their_digits(name, step):
    """The bias is eta (E - 1)/2 times a constant; what is left of I - A at a step of 1e-12 is not used."""
    problem = squares(3)
    method = FedAvg(step_size=step, local_steps=3)
    verdict = verify(name, problem, method, rounds=1)
    assert verdict.outcome is Outcome.HOLDS
    if name == "fedavg-bias" and step < 1e-2:
        one = verify(name, problem, FedAvg(step_size=1e-4, local_steps=3), rounds=1)
        assert verdict.measured / step == pytest.approx(one.measured / 1e-4, rel=2e-2)
    assert verify(planted(name, 1 / 1.05), problem, method, rounds=1).outcome is Outcome.VIOLATED


def test_the_filter_is_what_local_steps_do():
    H = np.array([[2.0, 0.5], [0.5, 1.0]])
    w, steps = np.array([1.0, -1.0]), 4
    moved_ = w
    for _ in range(steps):
        moved_ = moved_ - 0.1 * (H @ moved_ - 1.0)
    filtered = w - fedavg_filter(H, step_size=0.1, local_steps=steps) @ (H @ w - 1.0)
    np.testing.assert_allclose(filtered, moved_, rtol=1e-13)
    round_ = fedavg_round(squares(), step_size=1e-13, local_steps=2)
    assert round_.rate == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(round_.limit(), quadratic(squares()).minimiser, rtol=1e-9)


# ---------------------------------------------------------------- hedging


@pytest.mark.parametrize("l2", [0.1, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("rounds", [1, 5, 10, 20, 40, 80])
@pytest.mark.slow_unless(rounds=[1, 10])
def test_hedging_with_large_penalties(l2, rounds):
    """Clients solve up to tol (1 + ‖x‖), which at l2 = 1e6 is more than the bound after 40 rounds."""
    verdict = verify("hedging", squares(l2=l2), ProgressiveHedging(), rounds=rounds)
    assert verdict.outcome in (Outcome.HOLDS, Outcome.VACUOUS, Outcome.INCONCLUSIVE), verdict
    if verdict.bound.value > 1e-10:
        assert verdict.outcome is Outcome.HOLDS
        assert verify(planted("hedging", 1 / 1.05), squares(l2=l2), ProgressiveHedging(), rounds=rounds).outcome is (
            Outcome.VIOLATED
        )
    if verdict.outcome is Outcome.INCONCLUSIVE:
        assert "rounding may move the quantity" in verdict.reason


# ---------------------------------------------------------------- FedProx


@pytest.mark.parametrize("participation", [1.0, 3, ProportionalSampling(3), ProportionalSampling(9)])
@pytest.mark.slow_unless(participation=[1.0, 3, ProportionalSampling(3)])
def test_fedprox_on_least_squares_is_exact_for_all_samplings(participation):
    problem = squares(5, K=5)
    method = FedProx(proximal_mu=60.0, solver=ProximalPoint(), participation=participation)
    exact = verify("fedprox-sharp", problem, method, rounds=1, start=[3.0, -2.0])
    assert (exact.outcome, exact.trajectories) == (Outcome.HOLDS, 0)
    sampled = verify("fedprox-sharp", problem, method, rounds=1, start=[3.0, -2.0], exact=False, most=512)
    assert sampled.outcome is not Outcome.VIOLATED
    assert sampled.low * (1 - 1e-9) <= exact.measured <= sampled.high * (1 + 1e-9)


def test_multisets_of_draws_are_enumerated():
    """Logistic loss, 3 clients, 6 draws: 28 multisets stand for 729 sequences."""
    rng = np.random.default_rng(0)
    fed = Federation.from_arrays(rng.normal(size=(12, 2)), np.sign(rng.normal(size=12)), np.arange(12) % 3)
    problem = Problem(fed, Logistic(), 0.3, [0.5, 0.3, 0.2])
    s = Setting(problem, FedProx(proximal_mu=9.0, solver=ProximalPoint(), participation=ProportionalSampling(6)), 1,
                np.ones(2))  # fmt: skip
    w = np.array(list(models_of_clients(s)))
    total = 0.0
    for chosen in itertools.product(range(3), repeat=6):
        total += float(np.prod(problem.weights[list(chosen)]) * problem.value(w[list(chosen)].mean(axis=0)))
    found = THEOREMS["fedprox-sharp"].expectation(s, [1]).values[0]
    assert found == pytest.approx(total - problem.solve().value, rel=1e-11)


def models_of_clients(s):
    """What the clients answer, each alone with all the weight."""
    for k in range(s.problem.federation.K):
        alone = Problem(s.problem.federation.subset([k]), s.problem.loss, s.problem.l2)
        _, (_, state) = iterate(replace(s.method, participation=1.0), alone, rounds=1, start=s.start)
        yield state.w[0]


@pytest.mark.parametrize("start", [0.0, 1.0, 100.0, 0.3 + 1e-6])
def test_equality_of_fedprox_is_no_violation(start):
    problem = Problem(Federation.from_clients([([[1.0]], [0.3])] * 6), Squared())
    method = FedProx(proximal_mu=2.0, solver=ProximalPoint(), participation=ProportionalSampling(6))
    for exact in (None, False):
        verdict = verify("fedprox-sharp", problem, method, rounds=1, start=[start], exact=exact, most=64)
        assert verdict.outcome is Outcome.HOLDS, verdict
        assert verdict.ratio == pytest.approx(1.0, rel=1e-6)
        small = verify(
            planted("fedprox-sharp", 1 / 1.05), problem, method, rounds=1, start=[start], exact=exact, most=64
        )
        assert small.outcome is Outcome.VIOLATED


# ---------------------------------------------------------------- intervals


def rare_client():
    """One client of weight 1e-4 with a label of 1e4 beside ten with zero labels."""
    y, weights = np.zeros(11), np.full(11, (1.0 - 1e-4) / 10)
    y[0], weights[0] = 1e4, 1e-4
    return Problem(Federation.from_arrays(np.ones((11, 1)), y, np.arange(11)), Squared(), 1.0, weights)


def test_what_no_run_has_shown_is_no_proof():
    """HOLDS came with an interval of zero width after 64 equal draws, for a bound 470 times too small."""
    problem = rare_client()
    method = FedAvg(step_size=0.1, participation=ProportionalSampling(1))
    theorem = planted("fedavg-at-optimum", 1 / 470, LAST_SYNCHRONISED)
    exact = verify(theorem, problem, method, rounds=1)
    assert exact.outcome is Outcome.VIOLATED
    for most in (64, 512):
        seen = verify(theorem, problem, method, rounds=1, exact=False, most=most)
        assert seen.outcome is not Outcome.HOLDS
        if seen.outcome is Outcome.INCONCLUSIVE:
            assert "client 0 is drawn with probability 0.0001 in a run" in seen.reason


def test_a_rare_row_is_no_less_rare_than_a_client():
    """One row of 2000 carries the whole gradient; a batch of one row sees it once in 2000 steps."""
    y = np.zeros(2000)
    y[7] = 1e4
    problem = Problem(Federation.from_clients([(np.ones((2000, 1)), y)]), Squared(), 1.0)
    method = FedAvg(step_size=0.1, batch_size=1)
    seen = verify(
        planted("fedavg-at-optimum", 1 / 20, LAST_SYNCHRONISED), problem, method, rounds=1, exact=False, most=128
    )
    assert seen.outcome is Outcome.INCONCLUSIVE
    assert "a row of client 0 is drawn with probability 0.0005 in a run" in seen.reason


def test_the_probability_of_the_rarest_draw():
    problem = squares(K=4, n=6)
    at = np.zeros(2)
    for method, rounds, chance in (
        (FedAvg(step_size=0.1, participation=1), 1, 1 / 4),
        (FedAvg(step_size=0.1, participation=2), 2, 1 - 0.5**2),
        (FedAvg(step_size=0.1, participation=ProportionalSampling(3)), 1, 1 - 0.75**3),
        (FedAvg(step_size=0.1, batch_size=2, local_steps=3), 1, 1 - (4 / 6) ** 3),
        (FedAvg(step_size=0.1, batch_size=2, replacement=True), 1, 1 - (5 / 6) ** 2),
        (FedAvg(step_size=0.1, batch_size=2, participation=1), 1, 1 / 12),
        (FedAvg(step_size=0.1), 1, 1.0),
    ):
        found = rarest_draw(Setting(problem, method, rounds, at))
        assert found.probability == pytest.approx(chance, rel=1e-12)
        assert found.missed(10) == pytest.approx((1 - chance) ** 10, abs=1e-12)


def test_the_rarest_row_of_a_batch_drawn_by_weight():
    """Rows of weights 1, 2, 3 and 1, 1, 8: a light row of the second client has chance 1/10 in each of six draws."""
    weights = [1, 2, 3, 1, 1, 8]
    fed = Federation.from_arrays(np.ones((6, 1)), [1.0, -1.0] * 3, [0, 0, 0, 1, 1, 1], sample_weight=weights)
    method = FedAvg(step_size=0.1, batch_size=3, local_steps=2, replacement=True, batch_draw="weighted")
    found = rarest_draw(Setting(Problem(fed, Logistic(), 0.1), method, 1, np.zeros(1)))
    assert found.probability == pytest.approx(1 - 0.9**6, rel=1e-12)


def told(values, interval=None):
    """A theorem that says mean <= 1 of runs whose values are given."""

    def sample(s, rounds, seed, trajectories):
        rng = np.random.default_rng(seed)
        return np.array([values(rng, trajectories)])

    bound = Bound({"one": 1.0}, LAST_SYNCHRONISED, "one")
    return Theorem("told", LAST_SYNCHRONISED, lambda s: bound, sample=sample, exact=lambda s, rounds: None,
                   interval=interval)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "outcome", "why"),
    [
        (lambda rng, n: np.full(n, 0.5), Outcome.INCONCLUSIVE, "runs do not vary: an event of probability below 0.1"),
        (lambda rng, n: rng.normal(0.5, 0.1, size=n), Outcome.HOLDS, ""),
        (lambda rng, n: np.where(rng.random(n) < 0.003, 50.0, 0.01), Outcome.INCONCLUSIVE, ""),
        (lambda rng, n: 0.3 * np.exp(3.0 * rng.normal(size=n) - 4.5), Outcome.INCONCLUSIVE, ""),
        (lambda rng, n: rng.exponential(0.5, size=n), Outcome.HOLDS, ""),
    ],
    ids=["constant", "normal", "rare and large", "lognormal", "exponential"],
)
def test_what_speaks_against_an_interval(values, outcome, why):
    from fedconvex.methods import SVRG

    problem, method = squares(), SVRG(step_size=0.01, inner_steps=3)  # declares no probabilities
    verdict = verify(told(values), problem, method, rounds=1, most=64 if "do not vary" in why else 1024, seed=1)
    assert verdict.outcome is outcome, verdict
    assert why in verdict.reason


def test_an_interval_of_the_theorems_own_is_not_doubted():
    from fedconvex.methods import SVRG

    theorem = told(lambda rng, n: np.full(n, 0.5), lambda s, values, tail: (0.5, 0.4, 0.6))
    assert verify(theorem, squares(), SVRG(step_size=0.01, inner_steps=3), rounds=1).outcome is Outcome.HOLDS


# ---------------------------------------------------------------- bounds that are none


@pytest.mark.parametrize("exact", [None, False])
def test_a_bound_that_is_no_number_decides_nothing(exact):
    for terms in ({"noise": math.nan}, {"noise": math.inf, "start": -math.inf}):
        theorem = THEOREMS["fedavg-at-optimum"]._replace(
            bound=lambda s, t=terms: Bound(t, SHADOW_AVERAGE, ""), read=None
        )
        method = FedAvg(step_size=0.01, batch_size=2)
        verdict = verify(theorem, squares(), method, rounds=1, exact=exact)
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert "needs a bound that is a number, got nan of noise = " in verdict.reason


@pytest.mark.parametrize("error", [ZeroDivisionError("float division by zero"), OverflowError("too large")])
def test_a_bound_beyond_double_precision_decides_nothing(error):
    def bound(s):
        raise error

    theorem = THEOREMS["fedavg-at-optimum"]._replace(bound=bound, read=None)
    verdict = verify(theorem, squares(), FedAvg(step_size=0.01), rounds=1)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert f"needs a bound within double precision, got {type(error).__name__}" in verdict.reason


def test_a_bound_of_another_quantity_is_refused():
    theorem = THEOREMS["fedavg-at-optimum"]._replace(quantity=LAST_SYNCHRONISED)
    with pytest.raises(ValueError, match="Theorem fedavg-at-optimum: bound must bound its quantity"):
        verify(theorem, squares(), FedAvg(step_size=0.01), rounds=1)


def test_a_quantity_that_overflows_is_no_violation():
    theorem = THEOREMS["fedavg-at-optimum"]._replace(exact=lambda s, rounds: Found(np.full(1, math.nan), np.zeros(1)))
    verdict = verify(theorem, squares(), FedAvg(step_size=0.01), rounds=1)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "not a number" in verdict.reason
    theorem = theorem._replace(exact=lambda s, rounds: Found(np.full(1, math.inf), np.zeros(1)))
    of_size = {
        1e148: Outcome.INCONCLUSIVE,
        1e60: Outcome.INCONCLUSIVE,
        1.0: Outcome.VIOLATED,
    }  # the bound is its square
    for size, outcome in of_size.items():
        found = verify(theorem, squares(), FedAvg(step_size=0.01), rounds=1, start=np.full(2, size))
        assert found.outcome is outcome, found


def test_rounding_is_told_where_the_bound_is_below_it():
    theorem = THEOREMS["fedavg-at-optimum"]
    cases = (1e-12, 0.5, "HOLDS"), (1e-3, 1.0005, "HOLDS"), (0.4, 0.5, "HOLDS"), (0.5, 0.5, "VACUOUS")
    for off, value, outcome in (*cases, (0.5, 0.9, "INCONCLUSIVE"), (0.5, 1.2, "INCONCLUSIVE"), (0.5, 1.6, "VIOLATED")):
        told_ = theorem._replace(
            bound=lambda s: Bound({"one": 1.0}, SHADOW_AVERAGE, ""),
            read=None,
            exact=lambda s, rounds, v=value, o=off: Found(np.full(1, v), np.full(1, o)),
        )
        assert verify(told_, squares(), FedAvg(step_size=0.01), rounds=1).outcome.name == outcome


def test_below_a_bound_minus_infinity_says_nothing():
    of = THEOREMS["irmv1-dual"].quantity  # a dual value, which has no least one
    for low, outcome in ((-math.inf, Outcome.VACUOUS), (-1e300, Outcome.HOLDS)):
        theorem = THEOREMS["fedavg-at-optimum"]._replace(
            quantity=of,
            bound=lambda s: Bound({"one": 1.0}, of, ""),
            read=None,
            exact=lambda s, rounds, v=low: Found(np.full(1, v), np.zeros(1)),
        )
        found = verify(theorem, squares(), FedAvg(step_size=0.01), rounds=1)
        assert found.outcome is outcome, found


def test_agnostic_rates_need_a_start_in_the_ball():
    from fedconvex.methods import AFL

    method = AFL(step_size=1e-9, domain_step_size=1e-9, radius=1.0)
    verdict = verify("agnostic-rate-any-steps", squares(), method, rounds=2, start=np.array([3.0, 4.0]))
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert "a start in the ball, got ‖w_0‖ = 5" in verdict.reason


def test_gradients_are_off_by_no_more_than_is_said():
    mp = pytest.importorskip("mpmath")
    for seed in range(5):
        rng = np.random.default_rng(seed)
        problem = squares(seed, scale=10.0 ** rng.uniform(-6, 6), residual=10.0 ** rng.uniform(-6, 6))
        w = rng.normal(size=2) * 10.0 ** rng.uniform(-6, 6)
        found, off, fed = problem.client_gradients(w), gradient_rounding(problem, w), problem.federation
        with mp.workdps(50):
            for k in range(fed.K):
                rows = range(int(fed.ptr[k]), int(fed.ptr[k + 1]))
                for j in range(2):
                    true = mp.mpf(problem.l2) * mp.mpf(w[j])
                    for i in rows:
                        r = sum(mp.mpf(fed.X[i, a]) * mp.mpf(w[a]) for a in range(2)) - mp.mpf(fed.y[i])
                        true += mp.mpf(fed.X[i, j]) * r / len(rows)
                    assert abs(found[k, j] - true) <= off[k]


# ---------------------------------------------------------------- constant noise


def test_rows_that_share_x_have_one_noise_everywhere():
    """Mean estimation, F_k = mean (w - y_i)^2/2: the variance of a batch is phi times that of the labels."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=12)
    problem = Problem(Federation.from_arrays(np.ones((12, 1)), y, np.repeat([0, 1], 6)), Squared())
    c = problem.constants(batch_size=2)
    phi = (6 - 2) / ((6 - 1) * 2)
    np.testing.assert_allclose(c.sigma2_k, phi * np.var(y.reshape(2, 6), axis=1), rtol=1e-14)
    assert c.how["sigma2_k"] == c.how["sigma2"] == "exact"
    signs = rng.choice([-1.0, 1.0], size=(12, 1)) * np.array([[2.0, 1.0]])
    turned = Problem(Federation.from_arrays(signs, y, np.repeat([0, 1], 6)), Squared(), 0.3)
    labels = (signs[:, 0] / 2.0 * y).reshape(2, 6)
    np.testing.assert_allclose(turned.constants(batch_size=2).sigma2_k, 5.0 * phi * np.var(labels, axis=1), rtol=1e-13)
    for w in ([0.0, 0.0], [5.0, -3.0], [1e3, 1.0]):
        np.testing.assert_allclose(
            turned.gradient_variance(np.array(w)), turned.gradient_variance(np.zeros(2)), rtol=1e-8
        )
    other = Problem(Federation.from_arrays(np.where(np.arange(12) == 3, 1.5, 1.0)[:, None], y, np.repeat([0, 1], 6)),
                    Squared())  # fmt: skip
    assert other.constants(batch_size=2).sigma2_k[0] == math.inf
    assert other.constants(batch_size=2).sigma2_k[1] < math.inf
    assert other.constants(batch_size=2).sigma2 == math.inf
    assert other.constants(batch_size=2).how["sigma2"] == "infinite"


@pytest.mark.parametrize("name", ["fedavg-convex", "fedavg-refined", "fedavg-refined-sharp"])
def test_the_noise_terms_hold_on_mean_estimation(name):
    rng = np.random.default_rng(1)
    y = rng.normal(size=24) + np.repeat(rng.normal(size=3), 8)
    problem = Problem(Federation.from_arrays(np.ones((24, 1)), y, np.repeat([0, 1, 2], 8)), Squared())
    verdict = verify(name, problem, FedAvg(step_size=0.2, local_steps=3, batch_size=2), rounds=10)
    assert (verdict.outcome, verdict.trajectories) == (Outcome.HOLDS, 0)
    assert sum(v for term, v in verdict.bound.terms.items() if "noise" in term) > 0.0


# ---------------------------------------------------------------- SCAFFOLD


def test_errors_of_scaffolds_corrections_shrink_by_the_filter():
    """For equal Hessians e+ = e - s(H) e/(K eta) for e_i = c_i - c - grad f_i(x*), not for c_i - c (docs/theory)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 2))
    clients = [(X, X @ rng.normal(size=2) + rng.normal(size=5)) for _ in range(3)]
    problem = Problem(Federation.from_clients(clients), Squared(), 0.2)
    eta, K = 0.15, 4
    step = scaffold_round(problem, step_size=eta, local_steps=K)
    H = X.T @ X / 5 + 0.2 * np.eye(2)
    shrink = np.eye(2) - fedavg_filter(H, step_size=eta, local_steps=K) / (K * eta)
    gradients = problem.client_gradients(problem.solve().w)
    z = rng.normal(size=8)
    before, after = scaffold_split(problem, z), scaffold_split(problem, step(z))
    deltas = [s.c - problem.weights @ s.c for s in (before, after)]
    errors = [delta - gradients for delta in deltas]
    np.testing.assert_allclose(errors[1], errors[0] @ shrink, rtol=1e-10, atol=1e-13)
    assert np.abs(deltas[1] - deltas[0] @ shrink).max() > 0.01


def test_a_mean_keeps_its_digits_beside_second_moments_of_1e280():
    """X of 1e-8 against l2 = 1e6, y of 1e150: the mean's own linear system knows nothing of squares."""
    rng = np.random.default_rng(723)
    X, y = 1e-8 * rng.normal(size=(11, 3)), 1e150 * rng.normal(size=11)
    problem = Problem(Federation.from_arrays(X, y, np.repeat([0, 1, 2], [4, 4, 3])), Squared(), 1e6)
    for kept in (2, 3):
        method = RADFed(step_size=1e-7, local_steps=3, models=2, redistributions=kept)
        verdict = verify("radfed-limit", problem, method, rounds=2)
        assert verdict.outcome is not Outcome.VIOLATED, verdict
    equal = Problem(problem.federation, Squared(), 1e6, "uniform")
    moments = Moments(equal, step_size=1e-7, local_steps=3, batch_size=2, kron=True)
    exact = fedavg_round(equal, step_size=1e-7, local_steps=3).limit()
    error = moments.steady_state().mean_error + equal.solve().w - exact
    assert np.linalg.norm(error) <= 1e-8 * np.linalg.norm(exact)


def test_what_linear_algebra_cannot_solve_is_inconclusive():
    """A theorem whose reading ends with a singular matrix has no verdict; it is not the user's error."""

    def singular(s):
        return np.linalg.solve(np.zeros((2, 2)), np.ones(2))

    theorem = THEOREMS["fedavg-at-optimum"]._replace(bound=singular, read=None)
    verdict = verify(theorem, squares(), FedAvg(step_size=0.01, local_steps=2), rounds=2)
    assert verdict.outcome is Outcome.INCONCLUSIVE and "double precision" in verdict.reason
    overflown = fedavg_round(squares(), step_size=0.1, local_steps=2)._replace(matrix=np.full((2, 2), np.inf))
    assert overflown.spectral_radius == math.inf


def test_squares_of_1e_302_refute_nothing():
    """Rows of 1e-150: gradients are found to 1e-16 of the loss, and their squares are below every digit of that."""
    fed = Federation.from_arrays(
        np.full((8, 1), 1.5e-150), np.array([-1.0, 1, -1, 1, 1, -1, -1, -1]), [0] + 3 * [1] + 4 * [2]
    )
    method = DynamicFedAvg(step_size=19.0, local_steps=2, participation=UniformSampling(1))
    problem = Problem(fed, Logistic(), 0.1, "uniform")
    found = verify("dynamic-incremental-noise-at", problem, method, rounds=3, most=64)
    assert found.outcome in (Outcome.INCONCLUSIVE, Outcome.VACUOUS), found
