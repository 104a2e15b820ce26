"""The theorems of the averaging family held against the real methods, with planted errors that are caught."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, run
from fedconvex.methods import SCAFFOLD, SVRG, FedProx, FedSAM, ProgressiveHedging, ProportionalSampling
from fedconvex.methods.fedprox import ProximalPoint
from fedconvex.theorems.scaffold import scaffold_best_step
from fedconvex.theorems.svrg import svrg_best_step
from fedconvex.theory.bound import Bound
from fedconvex.theory.fixed_points import average_minimisers_round
from fedconvex.verify import THEOREMS, Outcome, Setting, curve, verify

pytestmark = pytest.mark.compiled_if_slow


def squares(seed=0, K=4, n=6, d=2, l2=0.1, weights="uniform"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(K * n, d))
    y = X @ rng.normal(size=d) + np.repeat(rng.normal(size=K), n) + 0.3 * rng.normal(size=K * n)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), n)), Squared(), l2, weights)


def logistic(seed=0, K=4, n=6, d=2, l2=0.1, weights="uniform"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(K * n, d))
    y = np.where(X[:, 0] + rng.normal(size=K * n) > 0, 1.0, -1.0)
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), n)), Logistic(), l2, weights)


def holds(name, problem, method, rounds, **options):
    verdict = verify(name, problem, method, rounds=rounds, **({"most": 512} | options))
    nothing = name == "fedavg-bias" and verdict.bound.value == 0.0  # one local step
    assert verdict.outcome is (Outcome.VACUOUS if nothing else Outcome.HOLDS), verdict
    return verdict


def refuses(name, problem, method, why, rounds=2):
    verdict = verify(name, problem, method, rounds=rounds)
    assert verdict.outcome is Outcome.NOT_APPLICABLE, verdict
    assert why in verdict.reason, verdict.reason


# ---------------------------------------------------------------- SCAFFOLD


@pytest.mark.parametrize("make", [squares, logistic])
@pytest.mark.slow_unless(make=squares)
def test_scaffold(make):
    for participation, server in ((1.0, 1.0), (2, 1.0), (2, 2.0)):
        problem = make()
        c = problem.constants()
        eta = scaffold_best_step(c, local_steps=3, participants=2, server_step=server)
        method = SCAFFOLD(step_size=eta, local_steps=3, participation=participation, server_step=server)
        for rounds in (1, 6):
            verdict = holds("scaffold", problem, method, rounds)
            exact = participation == 1.0 or make is squares  # least squares: exact moments of sampled clients too
            assert (verdict.trajectories == 0) == exact
    batches = SCAFFOLD(step_size=eta, local_steps=3, batch_size=2)
    holds("scaffold", logistic(), batches, 4)
    refuses("scaffold", squares(), batches, "finite sigma2")
    refuses("scaffold", squares(), replace(method, option=1), "option II")
    refuses("scaffold", squares(), replace(method, step_size=10.0), "<= 1/(81 L)")
    refuses("scaffold", squares(weights=[0.4, 0.2, 0.2, 0.2]), method, "equal client weights")
    refuses("scaffold", squares(), FedAvg(step_size=0.1), "the method SCAFFOLD")


def test_scaffold_measures_the_weighted_average_before_the_rounds():
    problem = squares()
    eta = scaffold_best_step(problem.constants(), local_steps=3)
    method = SCAFFOLD(step_size=eta, local_steps=3)
    trace = run(method, problem, rounds=3, tol=0).trace
    gaps = trace.value - problem.solve().value
    q = 1.0 - 0.5 * float(problem.constants().mu_k.min()) * 3 * eta
    w = np.array([q ** -(r + 1) for r in range(3)])
    expected = float(w @ gaps[:3] / w.sum())  # rounds 0, 1, 2: not the last model
    assert math.isclose(holds("scaffold", problem, method, 3).measured, expected, rel_tol=1e-12)


# ---------------------------------------------------------------- FedProx


@pytest.mark.parametrize("make", [squares, pytest.param(logistic, marks=pytest.mark.slow)])
def test_fedprox(make):
    problem, start = make(l2=0.5), 5.0 * np.ones(2)
    B = float(problem.constants(center=start).B)
    mu = 30.0 * float(problem.constants().L) * max(1.0, B) ** 2
    for name in ("fedprox-sharp", "fedprox-convex"):
        holds(name, problem, FedProx(proximal_mu=mu, solver=ProximalPoint()), 1, start=start)
        holds(name, problem, FedProx(proximal_mu=mu, solver=ProximalPoint(), participation=2), 1, start=start)
        few = FedProx(proximal_mu=mu, step_size=0.5 / mu, local_steps=30)
        assert holds(name, problem, few, 1, start=start).trajectories == 0
    method = FedProx(proximal_mu=mu, solver=ProximalPoint(), participation=ProportionalSampling(60))
    holds("fedprox", problem, method, 1, start=start)


def test_what_fedprox_needs():
    sampled = ProportionalSampling(5)
    refuses("fedprox", squares(), FedProx(proximal_mu=1.0, solver=ProximalPoint()), "drawn with probabilities")
    refuses("fedprox", squares(), FedProx(proximal_mu=1.0, solver=ProximalPoint(), participation=sampled), "rho > 0")
    refuses("fedprox-convex", squares(), FedProx(proximal_mu=1.0, step_size=0.1, batch_size=2), "full local gradients")
    unequal = squares(weights=[0.4, 0.2, 0.2, 0.2])
    refuses("fedprox-sharp", unequal, FedProx(proximal_mu=1.0, solver=ProximalPoint(), participation=2), "unbiased")


# ---------------------------------------------------------------- FedSAM


@pytest.mark.parametrize("tau, rounds", [(3, 2), *(pytest.param(t, 8, marks=pytest.mark.slow) for t in (1, 3))])
@pytest.mark.slow
def test_fedsam_on_a_curved_problem(tau, rounds):
    problem = logistic()
    method = FedSAM(step_size=0.1 / float(problem.constants().L), rho=0.05, local_steps=tau)
    assert holds("fedsam", problem, method, rounds).trajectories == 0


def test_fedsam():
    problem = logistic()
    parabolas = squares()
    method = FedSAM(step_size=0.02 / float(parabolas.constants().L), rho=0.05, local_steps=3)
    holds("fedsam-at-optimum", parabolas, method, 5)
    refuses("fedsam", parabolas, method, "finite zeta")
    refuses("fedsam", problem, FedSAM(step_size=0.1, rho=0.05, participation=2), "full participation")
    refuses("fedsam", problem, FedSAM(step_size=0.1, rho=0.05, batch_size=2), "full local gradients")


# ---------------------------------------------------------------- SVRG


@pytest.mark.compiled(only="two minutes of pure Python")
@pytest.mark.slow
def test_svrg():
    problem = Problem(logistic(l2=0.5).federation, Logistic(), 0.5)
    c = problem.constants()
    for batch, replacement in ((1, False), (3, False), (3, True)):
        eta = 0.5 * svrg_best_step(c, inner_steps=400)
        method = SVRG(step_size=eta, inner_steps=400, batch_size=batch, replacement=replacement)
        verdict = holds("svrg", problem, method, 2, start=np.ones(2), most=2048)  # early inner iterates are rare
        assert verdict.trajectories >= 64
    refuses("svrg", problem, SVRG(step_size=eta, inner_steps=400, option=1), "option II")
    refuses("svrg", problem, SVRG(step_size=10.0, inner_steps=400), "< 1")


# ---------------------------------------------------------------- hedging


@pytest.mark.slow
def test_hedging():
    weighted = squares(weights=[0.4, 0.3, 0.2, 0.1])
    for problem, participation in ((squares(), 1.0), (logistic(), 1.0), (weighted, 1.0), (weighted, 2)):
        for rounds in (1, 5):
            method = ProgressiveHedging(participation=participation)
            verdict = holds("hedging", problem, method, rounds, most=128)
            assert (verdict.trajectories == 0) == (participation == 1.0)
    method = ProgressiveHedging(rho=1.0)
    line = curve("hedging", squares(), method, rounds=[1, 2, 4, 8])
    assert (line.measured <= line.bound).all()
    refuses("hedging", squares(), ProgressiveHedging(rho=1.0, local_steps=3, step_size=0.1), "exact local solutions")
    refuses("hedging", squares(l2=0.0, d=7), method, "strongly convex")


# ---------------------------------------------------------------- limits


@pytest.mark.slow
def test_limits_of_fedavg():
    for seed in range(2):
        problem = squares(seed=seed)
        L = float(problem.constants().L)
        for tau in (1, 4):
            method = FedAvg(step_size=0.3 / L, local_steps=tau)
            for name in ("fedavg-bias", "fedavg-limit"):
                holds(name, problem, method, 1)
            measured = verify("fedavg-bias", problem, method, rounds=1).measured
            w = run(method, problem, rounds=1000, tol=0, record_every=1000).w
            assert math.isclose(measured, np.linalg.norm(w - problem.solve().w), rel_tol=1e-8, abs_tol=1e-12)
            average = problem.weights @ np.array([problem.client(k).solve().w for k in range(4)])
            away = verify("fedavg-limit", problem, method, rounds=1).measured
            assert math.isclose(away, np.linalg.norm(w - average), rel_tol=1e-7, abs_tol=1e-11)
            np.testing.assert_allclose(average_minimisers_round(problem).limit(), average, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="know how to measure"):  # no finite run shows a limit
        verify("fedavg-bias", squares(), FedAvg(step_size=0.1, local_steps=2), rounds=1, exact=False)
    refuses("fedavg-bias", logistic(), FedAvg(step_size=0.1, local_steps=2), "least squares")
    refuses("fedavg-limit", squares(), FedAvg(step_size=0.1, local_steps=2, batch_size=1), "full local gradients")


# ---------------------------------------------------------------- planted errors


PLANTED = [
    ("scaffold", squares(), SCAFFOLD(step_size=0.0005, local_steps=3), 6, 1e-3),
    ("fedprox-convex", logistic(l2=0.5), FedProx(proximal_mu=200.0, solver=ProximalPoint()), 1, None),
    ("svrg", Problem(logistic(l2=0.5).federation, Logistic(), 0.5), SVRG(step_size=0.02, inner_steps=900), 1, 1e-2),
    ("hedging", squares(), ProgressiveHedging(rho=1.0), 6, 1e-3),
    ("fedavg-bias", squares(), FedAvg(step_size=0.05, local_steps=4), 1, 1e-2),
    ("fedavg-limit", squares(), FedAvg(step_size=0.05, local_steps=4), 1, 1e-2),
]


@pytest.mark.parametrize(
    ("name", "problem", "method", "rounds", "factor"),
    [pytest.param(*p, marks=pytest.mark.compiled if p[0] == "svrg" else (), id=p[0]) for p in PLANTED],
)
def test_planted_bounds_are_violated(name, problem, method, rounds, factor):
    """A bound far below, or (a descent) one that promises three times as much."""
    start = 3.0 * np.ones(2)
    truth = THEOREMS[name]

    def wrong(s):
        bound = truth.at(s)
        if factor is None:
            terms = {k: v * (3.0 if k == "descent" else 1.0) for k, v in bound.terms.items()}
        else:
            terms = {k: v * factor for k, v in bound.terms.items()}
        return Bound(terms, bound.quantity, "planted")

    assert verify(truth, problem, method, rounds=rounds, start=start, most=256).outcome is Outcome.HOLDS
    planted = truth._replace(name="planted", bound=wrong, read=None)
    assert verify(planted, problem, method, rounds=rounds, start=start, most=256).outcome is Outcome.VIOLATED


@pytest.mark.slow
def test_descent_of_fedprox_by_enumeration_is_what_runs_show():
    """Both sampling schemes, unequal weights where they are unbiased: enumeration within 4 standard errors of runs."""
    problem, start = logistic(l2=0.5, weights=[0.4, 0.3, 0.2, 0.1]), 5.0 * np.ones(2)
    method = FedProx(proximal_mu=20.0, solver=ProximalPoint(), participation=ProportionalSampling(3))
    equal, two = logistic(l2=0.5), FedProx(proximal_mu=20.0, solver=ProximalPoint(), participation=2)
    for case, how in ((problem, method), (equal, two)):
        setting = Setting(case, how, 1, start)
        exact = THEOREMS["fedprox-convex"].expectation(setting, [1]).values[0]
        values = THEOREMS["fedprox-convex"].draw(setting, [1], 7, 1024)[0]
        z = (values.mean() - exact) / (values.std(ddof=1) / 32.0)
        assert abs(z) < 4.0, z
