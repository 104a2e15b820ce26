"""FedProx and progressive hedging with penalties: proximal points, limits, reductions, refusals."""

import math

import numpy as np
import pytest

from fedconvex import Exponential, Federation, Logistic, Problem, SmoothedHinge, Softmax, Squared, run
from fedconvex.methods import (
    SCAFFOLD,
    AdaptiveProximal,
    ClientMomentum,
    FedAvg,
    FedMiD,
    FedProx,
    FedSAM,
    FedSGD,
    ProgressiveHedging,
    ProximalPoint,
    ServerAdam,
    ServerSGD,
    Stragglers,
)
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex
from fedconvex.solvers.proximal.composite_points import composite_points

PENALTIES = [L1(0.1), ElasticNet(0.2, 0.5), GroupLasso(0.03, 2), NonNegative(0.05), Box(-0.2, 0.2), Simplex()]


def federation(task="regression", sizes=(9, 7, 12), d=4, intercept=False, seed=0):
    rng, clients = np.random.default_rng(seed), []
    for n in sizes:
        X = rng.normal(size=(n, d))
        z = X @ (rng.normal(size=d) * [1.0, 1.0, 0.1, 0.0]) + rng.normal(size=n)
        labels = {"signs": np.sign(z), "classes": np.digitize(z, [-0.5, 0.5]).astype(float)}
        clients.append((X, labels.get(task, z)))
    fed = Federation.from_clients(clients)
    return fed.with_intercept() if intercept else fed


LOSSES = {"regression": Squared(), "signs": Logistic(), "classes": Softmax(3)}


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0.0)


# ---------------------------------------------------------------- proximal points


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("task", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_proximal_points_are_minimisers(task, penalty, intercept):
    """v - (argmin + grad f_k(argmin)/rho) is what the proximal map takes off: argmin = prox_{P/rho}(v - grad/rho)."""
    from fedconvex.kernels.penalised import proximal_point

    problem = Problem(federation(task, intercept=intercept), LOSSES[task], 0.05, penalty=penalty, intercept=intercept)
    rng, rho = np.random.default_rng(1), 0.7
    v = rng.normal(size=(1, 3, *problem.model_shape))
    x = composite_points(problem, np.array([[0, 1, 2]]), v, np.array([rho]), 0.0 * v, 1e-12)
    for k in range(3):
        own = problem.client(k).with_penalty(None)
        back = proximal_point(problem, v[0, k][None] - own.gradient(x[0, k])[None] / rho, 1.0 / rho)[0]
        assert back == pytest.approx(x[0, k], abs=2e-11)


@pytest.mark.parametrize("loss", [Exponential(), SmoothedHinge(0.5)], ids=repr)
@pytest.mark.parametrize("penalty", [L1(0.1), Simplex()], ids=repr)
def test_proximal_points_of_other_losses(loss, penalty):
    from fedconvex.kernels.penalised import proximal_point

    problem = Problem(federation("signs"), loss, penalty=penalty)
    v = np.random.default_rng(1).normal(size=(1, 1, 4))
    x = composite_points(problem, np.array([[0]]), v, np.array([2.0]), 0.0 * v, 1e-12)[0, 0]
    g = problem.client(0).with_penalty(None).gradient(x)
    assert proximal_point(problem, (v[0] - g / 2.0), 0.5)[0] == pytest.approx(x, abs=1e-9)


def test_a_loose_tolerance_is_kept():
    problem = Problem(federation(), Squared(), penalty=L1(0.1))
    v, rho = np.random.default_rng(1).normal(size=(1, 3, 4)), np.array([0.5])
    exact, loose = (composite_points(problem, np.array([[0, 1, 2]]), v, rho, 0.0 * v, t) for t in (1e-13, 1e-2))
    off = np.linalg.norm(exact - loose, axis=2)
    assert (off <= 1e-2 * (1.0 + np.linalg.norm(loose, axis=2))).all()


# ---------------------------------------------------------------- FedProx


def test_a_round_of_fedprox_by_hand():
    """f_k = (w - a_k)^2/2, P = lambda |w|: w_k = soft(a_k + mu w_t, lambda)/(1 + mu)."""
    a, lam, mu, w = np.array([3.0, 0.2, -1.0]), 0.5, 2.0, 0.4
    fed = Federation.from_clients([([[1.0]], [float(t)]) for t in a])
    problem = Problem(fed, Squared(), penalty=L1(lam))
    found = run(FedProx(proximal_mu=mu, solver=ProximalPoint()), problem, rounds=2, start=np.array([w])).w
    for _ in range(2):
        w = np.mean(soft(a + mu * w, lam) / (1.0 + mu))
    assert found == pytest.approx([w], abs=1e-13)


def test_local_steps_are_proximal_ones():
    problem, eta, mu, lam = Problem(federation(), Squared(), 0.1, penalty=L1(0.1)), 0.1, 0.7, 0.1
    fed, w, new = problem.federation, np.array([0.3, -0.2, 0.1, 0.0]), np.zeros(4)
    for k in range(3):
        v, own = w, problem.client(k).with_penalty(None)
        for _ in range(3):
            v = soft(v - eta * (own.gradient(v) + mu * (v - w)), eta * lam)
        new += fed.sizes[k] / fed.n * v
    found = run(FedProx(proximal_mu=mu, step_size=eta, local_steps=3), problem, rounds=1, start=w).w
    assert found == pytest.approx(new, abs=1e-14)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_many_local_steps_approach_the_exact_solution(penalty):
    problem = Problem(federation("signs"), Logistic(), 0.05, penalty=penalty)
    exact = run(FedProx(proximal_mu=1.0, solver=ProximalPoint()), problem, rounds=2)
    assert np.isfinite(problem.value(exact.w))
    if isinstance(penalty, Simplex):
        with pytest.raises(TypeError, match="solve exactly: solver=ProximalPoint"):
            run(FedProx(proximal_mu=1.0, step_size=0.3, local_steps=5), problem, rounds=1)
        return
    near = run(FedProx(proximal_mu=1.0, step_size=0.3, local_steps=60), problem, rounds=2)
    assert near.w == pytest.approx(exact.w, abs=1e-7)


def test_equal_clients_make_fedprox_a_proximal_point_method():
    """All clients alike: w_{t+1} = argmin F + (mu/2)‖w - w_t‖^2, which converges to the minimiser, exactly sparse."""
    X, y = federation(sizes=(12,)).X, federation(sizes=(12,)).y
    problem = Problem(Federation.from_clients([(X, y)] * 3), Squared(), penalty=L1(0.2))
    best = problem.solve()
    found = run(FedProx(proximal_mu=0.5, solver=ProximalPoint()), problem, rounds=60, tol=1e-11)
    assert found.status.name == "CONVERGED"
    assert ((found.w == 0.0) == (best.w == 0.0)).all() and (best.w == 0.0).any()


def test_without_a_proximal_term_local_steps_are_those_of_fedmid():
    """mu = 0 and FedMiD's clients are the same; its server takes one more proximal step."""
    from fedconvex.kernels.penalised import proximal_point

    problem = Problem(federation(), Squared(), 0.1, penalty=L1(0.1))
    one = run(FedProx(proximal_mu=0.0, step_size=0.1, local_steps=3, batch_size=2), problem, rounds=1, seed=5).w
    other = run(FedMiD(step_size=0.1, local_steps=3, batch_size=2), problem, rounds=1, seed=5).w
    assert proximal_point(problem, one[None], 0.3)[0] == pytest.approx(other, abs=1e-15)


def test_stragglers_and_an_adaptive_mu():
    problem = Problem(federation("signs"), Logistic(), 0.05, penalty=L1(0.02))
    late = FedProx(proximal_mu=0.5, step_size=0.3, local_steps=5, stragglers=Stragglers(0.5, drop=True))
    assert run(late, problem, rounds=40).gap < 0.1
    method = FedProx(proximal_mu=AdaptiveProximal(1.0), step_size=0.3, local_steps=5)
    trace = run(method, problem, rounds=20).trace
    falls = np.diff(trace.value) < 0.0  # of F with its penalty, which is what moves mu
    assert falls[:5].all() and trace.proximal_mu[-1] < 1.0


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"client": ClientMomentum()}, TypeError, r"FedProx.client with a penalty must be ClientSGD\(\)"),
        ({"server": ServerAdam(0.1)}, ValueError, r"FedProx.server with a penalty must be Averaging\(\)"),
        ({"server": ServerSGD(1.5)}, ValueError, "leaves the set where the penalty is finite"),
        ({"inexactness": True}, ValueError, "FedProx.inexactness must be False where there is a penalty"),
    ],
)
def test_settings_that_do_not_carry_over_are_refused(settings, kind, message):
    problem = Problem(federation(), Squared(), penalty=L1(0.1))
    with pytest.raises(kind, match=message):
        run(FedProx(proximal_mu=1.0, step_size=0.1, **settings), problem, rounds=1)


# ---------------------------------------------------------------- progressive hedging


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("participation", [1.0, 2])
@pytest.mark.slow_unless(participation=2)
def test_hedging_reaches_the_minimiser_whoever_takes_part(penalty, participation):
    problem = Problem(federation("signs"), Logistic(), 0.1, "uniform", penalty=penalty)
    best = problem.solve()
    result = run(ProgressiveHedging(participation=participation), problem, rounds=150, tol=1e-9)
    assert result.status.name == "CONVERGED"
    assert result.w == pytest.approx(best.w, abs=2e-4)
    if isinstance(penalty, (L1, GroupLasso, NonNegative)):
        assert ((result.w == 0.0) == (best.w == 0.0)).all()
    assert result.trace.primal_residual[-1] < 1e-2


def test_hedging_with_a_free_intercept_and_several_classes():
    problem = Problem(federation("classes", intercept=True), Softmax(3), 0.1, penalty=L1(0.02), intercept=True)
    result = run(ProgressiveHedging(rho=0.3), problem, rounds=300, tol=1e-7)
    assert result.status.name == "CONVERGED"


def test_a_round_of_hedging_by_hand():
    """f_k = (x - a_k)^2/2: x_k = (a_k + rho z - y_k)/(1 + rho); v = mean of x_k + y_k/rho; z = soft(v, lambda/rho)."""
    a, lam, rho = np.array([3.0, 0.2, -1.0]), 0.5, 2.0
    fed = Federation.from_clients([([[1.0]], [float(t)]) for t in a])
    problem = Problem(fed, Squared(), penalty=L1(lam))
    z, x, y = 0.4, np.full(3, 0.4), np.zeros(3)
    for _ in range(4):
        y = y + rho * (x - z)
        x = (a + rho * z - y) / (1.0 + rho)
        z = soft(np.mean(x + y / rho), lam / rho)
    result = run(ProgressiveHedging(rho=rho), problem, rounds=4, start=np.array([0.4]), tol=0.0)
    assert result.w == pytest.approx([z], abs=1e-13)
    assert result.trace.primal_residual[-1] == pytest.approx(math.sqrt(np.mean((x - z) ** 2)), abs=1e-13)


def test_the_rate_of_hedging_carries_over():
    """The map of P is nonexpansive, so v contracts by delta = sqrt(kappa)/(sqrt(kappa) + 1) at least."""
    problem = Problem(federation(), Squared(), 0.3, penalty=L1(0.2))
    c, best = problem.constants(), problem.solve().w
    kappa = float(c.L_k.max() / c.mu_k.min())
    delta = math.sqrt(kappa) / (math.sqrt(kappa) + 1.0)
    gaps = [np.linalg.norm(run(ProgressiveHedging(), problem, rounds=t, tol=0.0).w - best) for t in (10, 40)]
    assert gaps[1] <= 3.0 * delta**30 * gaps[0] + 1e-12


def test_inexact_hedging():
    problem = Problem(federation("signs"), Logistic(), 0.1, penalty=L1(0.03))
    result = run(ProgressiveHedging(rho=0.5, local_steps=5, step_size=0.5), problem, rounds=200, tol=1e-7)
    assert result.status.name == "CONVERGED"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (FedAvg(step_size=0.1), r"got L1\(strength=0.1\): its steps follow gradients: FedMiD, FedDualAvg and FedProx"),
        (FedSGD(step_size=0.1), "ProximalFedSGD is FedSGD with a proximal one"),
        (SCAFFOLD(step_size=0.1), "control variates correct gradients only"),
        (FedSAM(step_size=0.1), "its theory, are those of smooth objectives: ProximalFedSGD, FedMiD, FedDualAvg"),
    ],
)
def test_other_methods_refuse_with_the_reason(method, message):
    with pytest.raises(TypeError, match=f"{type(method).__name__}: problem must have no penalty; .*{message}"):
        run(method, Problem(federation(), Squared(), penalty=L1(0.1)), rounds=1)
