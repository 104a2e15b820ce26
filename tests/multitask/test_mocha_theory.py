"""Rates of MOCHA: constants, hypotheses, searches for violations, and planted errors that are found."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedconvex import Federation, Hinge, Logistic, SmoothedHinge, Squared, run
from fedconvex.families.multitask.separability import dual_constants
from fedconvex.families.multitask.theorems.mocha import (
    mocha_gap,
    mocha_lipschitz,
    mocha_lipschitz_closed,
    mocha_rate,
    mocha_rounds,
    mocha_smooth,
    theta_bar,
)
from fedconvex.methods import MOCHA, Clock
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem, Pooled
from fedconvex.theory import AssumptionError

SMOOTH = [Squared(), SmoothedHinge(0.5), Logistic()]
LIPSCHITZ = [Hinge(), SmoothedHinge(0.5), Logistic()]


def federation(rng, loss, m=4, d=3, rows=(3, 8)):
    common, pairs = rng.normal(size=d), []
    for _ in range(m):
        X = rng.normal(size=(int(rng.integers(*rows)), d))
        z = X @ (common + 0.7 * rng.normal(size=d)) + 0.4 * rng.normal(size=len(X))
        pairs.append((X, z if isinstance(loss, Squared) else np.where(z > 0, 1.0, -1.0)))
    return Federation.from_clients(pairs)


def random_problem(rng, losses):
    loss = losses[rng.integers(len(losses))]
    relation = [
        MeanRegularised(10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(-1, 1)),
        Pooled(10.0 ** rng.uniform(-1, 1)),
        Independent(10.0 ** rng.uniform(-1, 1)),
    ][rng.integers(3)]
    fed = federation(rng, loss, int(rng.integers(1, 6)), int(rng.integers(1, 6)))
    return MultiTaskProblem(fed, loss, relation, ["sum", "mean"][rng.integers(2)])


def tight(m=4, weight=1.0):
    """m tasks with the same single row and one model for all: D = sum (a^2/2 - y a) + (sum a)^2/(2 m l2) on R^m.

    With sigma' = m exact local solutions remove the error along 1 at once, and leave the fraction 1 - s of every other
    error, s = 1/(1 + 1/l2): D - D* contracts by (1 - s)^2, twice as fast as Theorem 1 says.
    """
    fed = Federation.from_clients([([[1.0]], [float(t)]) for t in range(m)])
    return MultiTaskProblem(fed, Squared(), Pooled(weight))


# ---------------------------------------------------------------- constants


def test_constants_are_those_of_the_definition(rng):
    for normalisation in ("sum", "mean"):
        problem = MultiTaskProblem(federation(rng, Logistic()), Logistic(), MeanRegularised(1.0, 0.3), normalisation)
        c = dual_constants(problem)
        fed, M = problem.federation, np.linalg.inv(problem.relation.qbar(4))
        weights = [1.0 if normalisation == "sum" else 1.0 / n for n in fed.sizes]
        blocks = [fed.X[a:b] for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
        largest = max(
            w * M[t, t] * np.linalg.eigvalsh(X.T @ X)[-1] for t, (w, X) in enumerate(zip(weights, blocks, strict=True))
        )
        assert c.sigma_max == pytest.approx(largest, rel=1e-12)
        assert c.mu == 4.0
        assert c.weight == pytest.approx(fed.n if normalisation == "sum" else 4.0)
        assert c.sigma == c.least_sigma == problem.pencil_sigma()
    assert dual_constants(MultiTaskProblem(federation(rng, Hinge()), Hinge(), Independent(1.0))).mu == 0.0


def test_bounds_by_hand():
    c = dual_constants(tight())  # sigma' = 4, sigma_max = 1/4, mu = 1: s = 1/2
    assert c.sigma == pytest.approx(4.0)
    c = c._replace(sigma=4.0, least_sigma=4.0)
    assert mocha_rate(c) == pytest.approx(0.5)
    assert mocha_rate(c, theta=0.5) == pytest.approx(0.75)
    assert mocha_smooth(c, rounds=3, start=8.0).value == pytest.approx(1.0)
    assert mocha_rounds(c, start=8.0, eps=1.0) == 3
    assert mocha_rounds(c, start=8.0, eps=9.0) == 0
    assert mocha_gap(c, suboptimality=1.0).value == pytest.approx(2.0)
    assert theta_bar(0.5, 0.5) == 0.75
    hinge = c._replace(mu=0.0, width=1.0, lipschitz=1.0)  # C = 4 * (1/4) * 4 * 1/2 = 2
    assert mocha_lipschitz(hinge, rounds=1, start=6.0).value == pytest.approx(2.0)  # 6 - (6 - 2)
    assert mocha_lipschitz(hinge, rounds=1, start=4.0).value == pytest.approx(2.0)  # 4 - 16/8
    assert mocha_lipschitz_closed(hinge, rounds=2, start=4.0).value == pytest.approx(2.0)  # 8/(2 + 2)
    text = str(mocha_smooth(c, rounds=3, start=8.0))
    assert "Theorem 1" in text
    assert "safe sigma'" in text


def test_the_closed_form_is_above_the_recursion(rng):
    for _ in range(200):
        c = dual_constants(tight())._replace(mu=0.0, width=1.0, weight=10.0 ** rng.uniform(-3, 3))
        theta, start, h = float(rng.uniform(0, 0.99)), 10.0 ** rng.uniform(-3, 3), int(rng.integers(0, 200))
        recursion = mocha_lipschitz(c, rounds=h, start=start, theta=theta).value
        assert recursion <= mocha_lipschitz_closed(c, rounds=h, start=start, theta=theta).value * (1 + 1e-12)


def test_hypotheses_are_checked_with_numbers(rng):
    c = dual_constants(tight())
    with pytest.raises(AssumptionError, match="sigma' = 2, least 4"):
        mocha_smooth(c._replace(sigma=2.0), rounds=1, start=1.0)
    with pytest.raises(AssumptionError, match="Lipschitz"):
        mocha_lipschitz(c, rounds=1, start=1.0)
    with pytest.raises(AssumptionError, match="smooth"):
        mocha_smooth(c._replace(mu=0.0), rounds=1, start=1.0)
    with pytest.raises(AssumptionError, match="Thetabar"):
        mocha_smooth(c, rounds=1, start=1.0, theta=1.0)
    with pytest.raises(AssumptionError, match="fixed relationship"):
        dual_constants(MultiTaskProblem(federation(rng, Hinge()), Hinge(), Covariance(1.0)))


# ---------------------------------------------------------------- searches for violations


def errors(problem, trace):
    """D(alpha^h) - min D at every round, from the exact solution."""
    best = problem.solve()
    return best.value - trace.dual, 1e-11 * (1.0 + abs(best.value))


def theorem_1_trial(rng, rounds=15):
    """With the certified accuracies of the very round, Theorem 1 holds without expectations."""
    largest, problem = 0.0, random_problem(rng, SMOOTH)
    method = MOCHA(epochs=float(rng.uniform(0.2, 4.0)), clock=Clock(0.3), certify=True, drop=0.1, sigma="pencil")
    trace = run(method, problem, rounds=rounds, tol=0, seed=int(rng.integers(1000))).trace
    eps, noise = errors(problem, trace)
    c = dual_constants(problem)
    for h in range(rounds):
        theta = float(trace.theta[h + 1])
        if theta < 1.0:
            bound = mocha_smooth(c, rounds=1, start=max(eps[h], 0.0), theta=theta).value
            assert eps[h + 1] <= bound + noise, problem
            if bound > 100 * noise:
                largest = max(largest, eps[h + 1] / bound)
        assert trace.gap[h] <= mocha_gap(c, suboptimality=max(eps[h], 0.0) + noise).value * (1 + 1e-9) + noise
    assert largest <= 1.0 + 1e-9
    return {"share": float(largest)}


def test_theorem_1_round_by_round(rng):
    assert max(theorem_1_trial(rng, 6)["share"] for _ in range(12)) > 0.1


def theorem_2_trial(rng, rounds=15):
    """The same with the rate for Lipschitz losses."""
    problem = random_problem(rng, LIPSCHITZ)
    method = MOCHA(epochs=float(rng.uniform(0.5, 4.0)), certify=True, sigma="pencil")
    trace = run(method, problem, rounds=rounds, tol=0, seed=int(rng.integers(1000))).trace
    eps, noise = errors(problem, trace)
    c = dual_constants(problem)
    for h in range(rounds):
        theta = float(trace.theta[h + 1])
        if theta < 1.0:
            bound = mocha_lipschitz(c, rounds=1, start=max(eps[h], 0.0), theta=theta).value
            assert eps[h + 1] <= bound + noise, problem


def test_theorem_2_round_by_round(rng):
    for _ in range(12):
        theorem_2_trial(rng, 6)


@pytest.mark.slow
def test_both_theorems_in_expectation_with_dropped_nodes(rng):
    """100 trajectories with drops: the mean error is below the bound with Thetabar, within its confidence interval."""
    for loss in (Squared(), Logistic(), Hinge()):
        problem = MultiTaskProblem(federation(rng, loss, 4, 2, (3, 5)), loss, MeanRegularised(1.0, 0.5), "mean")
        drop, R, how = 0.4, 100, {"epochs": 40.0, "sigma": "pencil"}
        alone = run(MOCHA(certify=True, **how), problem, rounds=10, tol=0).trace
        best, c = problem.solve(), dual_constants(problem)
        theta_max = float(alone.theta[1:].max())  # of all nodes in all rounds
        assert theta_max < 0.1
        trace = run(MOCHA(drop=drop, **how), problem, rounds=6, tol=0, trajectories=R).trace
        eps = best.value - trace.dual
        mean, spread = eps.mean(axis=1), eps.std(axis=1) / math.sqrt(R)
        theorem = mocha_lipschitz if loss == Hinge() else mocha_smooth
        for h in range(7):
            bound = theorem(c, rounds=h, start=eps[0, 0], theta=theta_bar(drop, theta_max))
            assert mean[h] - 4 * spread[h] <= bound.value + 1e-10
        assert mean[3] > best.value - alone.dual[3]  # drops do slow it down


# ---------------------------------------------------------------- planted errors


def measured_rate(problem, **how):
    """Factor of D - D* of a round with exact local solutions, once it has settled."""
    trace = run(MOCHA(epochs=50.0, **how), problem, rounds=4, tol=0).trace
    eps = errors(problem, trace)[0]
    return eps[3] / eps[2]


@pytest.mark.parametrize("weight", [0.05, 0.2])
def test_planted_constants_are_caught(weight):
    """The instance contracts by (1 - s)^2: a bound with s enlarged 2.5 times is violated, the true one is not."""
    problem = tight(weight=weight)
    c, found = dual_constants(problem), measured_rate(problem)
    s = weight / (weight + 1.0)
    assert found == pytest.approx((1 - s) ** 2, rel=1e-6)
    assert found <= mocha_rate(c)
    assert found > mocha_rate(c._replace(sigma_max=c.sigma_max / 2.5))
    assert found > mocha_rate(c._replace(mu=c.mu * 2.5))


def test_planted_unsafe_sigma_is_caught():
    """With half the safe sigma' the hypothesis fails by numbers, and the run violates what the bound would promise."""
    problem = tight(m=6, weight=0.05)
    c = dual_constants(problem)
    with pytest.raises(AssumptionError):
        mocha_rate(c._replace(sigma=c.sigma / 4))
    eps = errors(problem, run(MOCHA(epochs=50.0, sigma=c.sigma / 4), problem, rounds=3, tol=0).trace)[0]
    assert eps[1] > eps[0] * mocha_rate(c._replace(sigma=c.sigma / 4, least_sigma=0.0))
    assert eps[3] > eps[0]  # it diverges


def test_weights_belong_into_sigma_max(rng):
    """Without c_t the rate of averaged losses would be promised too slow or too fast; with large rows it is caught."""
    fed = Federation.from_clients([([[1.0]] * 3, [float(t)] * 3) for t in range(4)])
    problem = MultiTaskProblem(fed, Squared(), Pooled(0.05), "mean")
    c = dual_constants(problem)
    assert c.sigma_max == pytest.approx(3 * (1 / 3) / (4 * 0.05))
    assert measured_rate(problem) <= mocha_rate(c)
    assert measured_rate(problem) > mocha_rate(c._replace(sigma_max=c.sigma_max / 3))


@pytest.mark.slow
def test_exact_nodes_do_better_and_no_better():
    """One row a task, solved in one step: (1 - s)^2 and C/2, on random problems; the tight ones attain both."""
    rng = np.random.default_rng(5)
    best = {"smooth": 0.0, "lipschitz": 0.0}
    for i in range(40):
        loss = [Squared(), SmoothedHinge(0.5), Hinge()][i % 3]
        relation = [MeanRegularised(1.0, 10.0 ** rng.uniform(-1, 1)), Pooled(10.0 ** rng.uniform(-1, 1))][i % 2]
        problem = MultiTaskProblem(federation(rng, loss, 4, int(rng.integers(1, 4)), (1, 2)), loss, relation)
        compare_exact_nodes(problem, best)
    compare_exact_nodes(tight(), best)
    opposed = Federation.from_clients([([[(-1.0) ** t]], [1.0]) for t in range(6)])
    compare_exact_nodes(MultiTaskProblem(opposed, Hinge(), Pooled(0.2)), best)
    assert best["smooth"] == pytest.approx(1.0) and best["lipschitz"] == pytest.approx(1.0)


def compare_exact_nodes(problem, best):
    """Hold the dual suboptimality of four rounds against what the one before allows; note the largest quotients."""
    c, low = dual_constants(problem), -problem.solve().value
    dual = run(MOCHA(sigma="pencil"), problem, rounds=4).trace.dual
    eps, small = -np.asarray(dual) - low, 1e-9 * (1.0 + abs(low))
    half = 0.25 * c.sigma * c.sigma_max * c.weight * c.width**2  # C/2
    for e, after in itertools.pairwise(eps):
        if c.mu > 0.0:
            s = c.mu / (c.mu + c.sigma * c.sigma_max)
            assert after <= (1.0 - s) ** 2 * e + small
            best["smooth"] = max(best["smooth"], after / ((1.0 - s) ** 2 * e) if e > 1e3 * small else 0.0)
        if math.isfinite(c.width):
            bound = half if e >= 2.0 * half else e - e * e / (4.0 * half)
            assert after <= bound + small
            best["lipschitz"] = max(best["lipschitz"], after / bound if bound > 1e3 * small else 0.0)
