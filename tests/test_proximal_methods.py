"""Proximal gradient, FISTA, ProximalFedSGD, FedMiD and FedDualAvg: against plain NumPy, reductions, refusals."""

import math

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, FedSGD, GradientDescent, Logistic, Problem, Softmax, Squared, run
from fedconvex.methods import FISTA, FedDualAvg, FedMiD, ProximalFedSGD, ProximalGradient
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex


def federation(seed=0, sizes=(7, 5, 9), d=4, task="regression"):
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        X = rng.normal(size=(n, d)) + 0.3 * rng.normal(size=d)
        z = X @ np.array([1.0, -0.5, 0.0, 0.0]) + 0.3 * rng.normal(size=n)
        y = {"regression": z, "signs": np.where(z > 0, 1.0, -1.0), "classes": np.arange(n) % 3.0}[task]
        clients.append((X, y))
    return Federation.from_clients(clients)


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0.0)


def gradient(fed, k, w, l2):
    rows = slice(fed.ptr[k], fed.ptr[k + 1])
    X, y = np.asarray(fed.X)[rows], np.asarray(fed.y)[rows]
    return X.T @ (X @ w - y) / len(y) + l2 * w


LAM, L2 = 0.1, 0.05


def lasso(**data):
    return Problem(federation(**data), Squared(), L2, penalty=L1(LAM))


# ---------------------------------------------------------------- plain NumPy


def test_proximal_gradient_and_federated_steps_by_hand():
    problem = lasso()
    fed, p, w = problem.federation, problem.weights, np.zeros(4)
    for _ in range(5):
        w = soft(w - 0.2 * sum(p[k] * gradient(fed, k, w, L2) for k in range(3)), 0.2 * LAM)
    for method in (ProximalGradient(step_size=0.2), ProximalFedSGD(step_size=0.2)):
        assert run(method, problem, rounds=5, tol=0.0).w == pytest.approx(w, abs=1e-14)


def test_fista_by_hand():
    problem = lasso()
    fed, p, w = problem.federation, problem.weights, np.zeros(4)
    v, s = w, 1.0
    for _ in range(6):
        new = soft(v - 0.2 * sum(p[k] * gradient(fed, k, v, L2) for k in range(3)), 0.2 * LAM)
        s_new = (1.0 + math.sqrt(1.0 + 4.0 * s * s)) / 2.0
        v, w, s = new + (s - 1.0) / s_new * (new - w), new, s_new
    assert run(FISTA(step_size=0.2), problem, rounds=6, tol=0.0).w == pytest.approx(w, abs=1e-14)


def test_fedmid_by_hand():
    """Three rounds of two local steps with all rows, eta_c = 0.2, eta_s = 0.5."""
    problem = lasso()
    fed, p, w = problem.federation, problem.weights, np.zeros(4)
    for _ in range(3):
        ends = []
        for k in range(3):
            v = w
            for _ in range(2):
                v = soft(v - 0.2 * gradient(fed, k, v, L2), 0.2 * LAM)
            ends.append(v)
        w = soft(w + 0.5 * (sum(p[k] * ends[k] for k in range(3)) - w), 0.5 * 0.2 * 2 * LAM)
    method = FedMiD(step_size=0.2, server_step=0.5, local_steps=2)
    assert run(method, problem, rounds=3, tol=0.0).w == pytest.approx(w, abs=1e-14)


def test_feddualavg_by_hand():
    problem = lasso()
    fed, p, z = problem.federation, problem.weights, np.zeros(4)
    eta, server, K = 0.2, 0.5, 2
    for t in range(4):
        ends = []
        for k in range(3):
            own = z
            for i in range(K):
                w = soft(own, (server * eta * t * K + eta * i) * LAM)
                own = own - eta * gradient(fed, k, w, L2)
            ends.append(own)
        z = z + server * (sum(p[k] * ends[k] for k in range(3)) - z)
    result = run(FedDualAvg(step_size=eta, server_step=server, local_steps=K), problem, rounds=4, tol=0.0)
    assert result.state.z[0] == pytest.approx(z, abs=1e-14)
    assert result.w == pytest.approx(soft(z, server * eta * 4 * K * LAM), abs=1e-14)


def test_a_step_size_per_trajectory_is_that_of_its_own_run():
    problem, steps = lasso(), (0.05, 0.2)
    for make in (ProximalGradient, FISTA, ProximalFedSGD, FedMiD, FedDualAvg):
        extra = {"local_steps": 2} if make in (FedMiD, FedDualAvg) else {}
        both = run(make(step_size=steps, **extra), problem, rounds=4, tol=0.0, trajectories=2).w
        for r, eta in enumerate(steps):
            alone = run(make(step_size=eta, **extra), problem, rounds=4, tol=0.0).w
            assert both[r] == pytest.approx(alone, abs=1e-15), make


# ---------------------------------------------------------------- reductions


def test_without_a_penalty_they_are_the_smooth_methods():
    problem = Problem(federation(), Squared(), 0.1)
    same = [
        (ProximalGradient(step_size=0.2), GradientDescent(step_size=0.2)),
        (ProximalFedSGD(step_size=0.2, participation=2), FedSGD(step_size=0.2, participation=2)),
        (FedMiD(step_size=0.1, local_steps=3, batch_size=2), FedAvg(step_size=0.1, local_steps=3, batch_size=2)),
        (FedDualAvg(step_size=0.1, local_steps=3, batch_size=2), FedAvg(step_size=0.1, local_steps=3, batch_size=2)),
    ]
    for one, other in same:
        a, b = (run(m, problem, rounds=6, tol=0.0, seed=3).w for m in (one, other))
        assert a == pytest.approx(b, abs=1e-13), one


def test_one_full_local_step_of_one_client_is_proximal_gradient():
    """FedMiD with one client, eta_s -> its server step doubles the shrinkage; FedDualAvg's first round is plain."""
    problem = lasso(sizes=(9,))
    first = run(FedDualAvg(step_size=0.2), problem, rounds=1, tol=0.0).w
    assert first == pytest.approx(run(ProximalGradient(step_size=0.2), problem, rounds=1, tol=0.0).w, abs=1e-15)


def test_one_client_makes_dual_averaging_whatever_the_rounds():
    """s steps of z <- z - eta grad f(prox_{eta i P}(z)), i = 0, ..., s-1, in 6 rounds of 2 or 2 rounds of 6."""
    problem, z = lasso(sizes=(9,)), np.zeros(4)
    for i in range(12):
        z = z - 0.1 * gradient(problem.federation, 0, soft(z, 0.1 * i * LAM), L2)
    for rounds, steps in ((6, 2), (2, 6), (12, 1)):
        found = run(FedDualAvg(step_size=0.1, local_steps=steps), problem, rounds=rounds, tol=0.0).w
        assert found == pytest.approx(soft(z, 1.2 * LAM), abs=1e-14)


@pytest.mark.parametrize(
    "penalty", [L1(0.1), ElasticNet(0.2, 0.5), GroupLasso(0.1, 2), NonNegative(0.05), Box(-0.2, 0.2)]
)
@pytest.mark.parametrize(("loss", "task"), [(Squared(), "regression"), (Logistic(), "signs"), (Softmax(3), "classes")])
def test_accelerated_and_plain_steps_reach_the_certified_minimum(penalty, loss, task):
    problem = Problem(federation(task=task), loss, 0.1, penalty=penalty)
    for method in (FISTA(step_size="auto"), ProximalGradient(step_size="auto")):
        result = run(method, problem, rounds=3000, tol=1e-8)
        assert result.status.name == "CONVERGED", method
        assert problem.value(result.w) >= problem.solve().lower


def test_the_simplex_needs_no_local_map():
    problem = Problem(federation(), Squared(), penalty=Simplex())
    result = run(ProximalFedSGD(step_size=0.2), problem, rounds=2000, tol=1e-9)
    assert result.status.name == "CONVERGED"
    assert result.w.sum() == pytest.approx(1.0, abs=1e-12)
    for method in (FedMiD(step_size=0.1), FedDualAvg(step_size=0.1)):
        with pytest.raises(TypeError, match="the penalty must be a sum over entries or groups"):
            run(method, problem, rounds=1)


def test_groups_are_shortened_in_local_steps():
    """One group of all columns: local and server maps are those of the Euclidean norm."""
    problem = Problem(federation(), Squared(), penalty=GroupLasso(0.3, 4, (1.0,)))
    fed, p, w = problem.federation, problem.weights, np.zeros(4)

    def shorten(v, t):
        norm = np.linalg.norm(v)
        return (1.0 - t / norm) * v if norm > t else 0.0 * v

    for _ in range(2):
        ends = [shorten(w - 0.2 * gradient(fed, k, w, 0.0), 0.2 * 0.3) for k in range(3)]
        w = shorten(sum(p[k] * ends[k] for k in range(3)), 0.2 * 0.3)
    assert run(FedMiD(step_size=0.2), problem, rounds=2, tol=0.0).w == pytest.approx(w, abs=1e-14)


# ---------------------------------------------------------------- the curse of primal averaging


@pytest.mark.slow
def test_fedmid_is_dense_where_feddualavg_is_sparse():
    """Clients see disjoint columns: local models keep their own, and the average has what nobody would keep."""
    rng = np.random.default_rng(0)
    clients = []
    for k in range(5):
        X = np.zeros((8, 10))
        X[:, 2 * k : 2 * k + 2] = rng.normal(size=(8, 2))
        clients.append((X, X[:, 2 * k] * (2.0 if k < 2 else 0.1) + 0.1 * rng.normal(size=8)))
    problem = Problem(Federation.from_clients(clients), Squared(), penalty=L1(0.05))
    best = problem.solve()
    settings = {"step_size": 0.1, "local_steps": 20}
    mirror = run(FedMiD(**settings), problem, rounds=100, tol=0.0).w
    dual = run(FedDualAvg(**settings), problem, rounds=100, tol=0.0).w
    assert np.count_nonzero(dual) <= np.count_nonzero(best.w) + 1
    assert np.count_nonzero(mirror) > np.count_nonzero(dual) or problem.value(mirror) > problem.value(dual)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("make", [FedMiD, FedDualAvg])
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError, match=f"{make.__name__}.step_size must be positive"):
        make(step_size=-1.0)
    with pytest.raises(ValueError, match=f"{make.__name__}.server_step must be positive"):
        make(step_size=0.1, server_step=0.0)
    with pytest.raises(ValueError, match=f"{make.__name__}.local_steps must be at least 1"):
        make(step_size=0.1, local_steps=0)
    with pytest.raises(ValueError, match="client"):
        run(make(step_size=0.1, batch_size=6), lasso(), rounds=1)


def test_what_is_sent_is_counted():
    """d floats down and up for each of three clients and five rounds; the round's number is no message."""
    for method in (FedMiD(step_size=0.1), FedDualAvg(step_size=0.1), ProximalFedSGD(step_size=0.1)):
        trace = run(method, lasso(), rounds=5, tol=0.0).trace
        assert (trace.floats_down[-1], trace.floats_up[-1]) == (60, 60), method
