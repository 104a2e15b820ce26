"""The small-step formula of Dynamic FedAvg with its remainder, against enumeration of agents and batches."""

import itertools

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.theorems.dynamic_msd import small_step
from fedconvex.theorems.dynamic_small_step import curvature_square, msd_small_step
from fedconvex.theorems.parts.tracking import tracking_constants
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify import power


def make(seed=0, d=2, n=3, K=3, l2=0.1, loss=None):
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(n, d)) * (1 + k), rng.normal(size=n) + k) for k in range(K)]
    return Problem(Federation.from_clients(clients), Squared() if loss is None else loss, l2, "uniform")


def iterations(problem, B, L):
    """All Hessians and gradients at the minimiser that one iteration may use, equally likely."""
    fed, w, out = problem.federation, problem.solve().w, []
    for agents in itertools.combinations(range(fed.K), L):
        choices = [itertools.combinations(range(int(fed.ptr[k]), int(fed.ptr[k + 1])), B) for k in agents]
        for batches in itertools.product(*choices):
            rows = np.concatenate([list(b) for b in batches])
            X, y = fed.X[rows], fed.y[rows]
            H = X.T @ X / len(rows) + problem.l2 * np.eye(fed.d)
            out.append((H, X.T @ (X @ w - y) / len(rows) + problem.l2 * w))
    return np.array([H for H, _ in out]), np.array([g for _, g in out])


def steady(H, g, mu, R_q):
    """The covariance that stays: vec S = E[(I - mu H_i) x (I - mu H_i)] vec S + vec(mu^2 R_s + R_q)."""
    d = H.shape[1]
    A = np.eye(d) - mu * H
    F = np.mean([np.kron(a, a) for a in A], axis=0)
    noise = mu**2 * g.T @ g / len(g) + R_q
    return np.linalg.solve(np.eye(d * d) - F, noise.ravel()).reshape(d, d)


@pytest.mark.parametrize(("B", "L", "d"), [(1, 1, 2), (2, 2, 2), (3, 2, 3), (1, 3, 2), (2, 1, 1)])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.8])
def test_identity_and_bounds_by_enumeration(B, L, d, share):
    problem = make(B + 3 * L, d)
    H, g = iterations(problem, B, L)
    mean = H.mean(axis=0)
    at = {"batch_size": B, "participation": L}
    M = curvature_square(problem, **at)
    np.testing.assert_allclose(M, np.mean([h @ np.linalg.solve(mean, h) for h in H], axis=0), rtol=1e-10)
    lam = np.linalg.eigvalsh(M)
    mu, R_q = share / lam[-1], np.diag(np.arange(1.0, d + 1.0)) * 1e-3
    S, c = steady(H, g, mu, R_q), tracking_constants(problem)
    at |= {"step_size": mu, "drift_covariance": R_q}
    m = small_step(c, **at).value
    assert np.trace(S) == pytest.approx(m + 0.5 * mu * np.trace(M @ S), rel=1e-9)
    assert m / (1.0 - 0.5 * mu * lam[0]) <= np.trace(S) * (1 + 1e-9)
    bound = msd_small_step(c, M, **at).value
    assert np.trace(S) <= bound * (1 + 1e-9)
    if d == 1:
        assert bound == pytest.approx(np.trace(S), rel=1e-9)
    if share == 1.8 and B < 3:  # planted: without what agents and batches add to E[H_i H^-1 H_i]
        assert msd_small_step(c, mean, **at).value < np.trace(S)


def test_row_weights():
    """A row that counts twice is two rows, where all rows are taken."""
    X, y = np.array([[1.0, 0.5], [0.3, -1.0], [0.2, 0.8]]), np.array([1.0, 0.0, 2.0])
    weighted = Federation.from_arrays(X, y, [0, 0, 1], sample_weight=[2.0, 1.0, 1.0])
    plain = Federation.from_arrays(X[[0, 0, 1, 2]], y[[0, 0, 1, 2]], [0, 0, 0, 1])
    found = [curvature_square(Problem(fed, Squared(), 0.1, "uniform"), participation=1) for fed in (weighted, plain)]
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_it_refuses():
    problem = make()
    c, M = tracking_constants(problem), curvature_square(problem)
    at = {"step_size": 0.01, "drift_covariance": np.eye(2)}
    with pytest.raises(AssumptionError, match="one local step each, got 2"):
        msd_small_step(c, M, local_steps=2, **at)
    with pytest.raises(AssumptionError, match=r"step_size lambda_max\(M\) < 2"):
        msd_small_step(c, M, **(at | {"step_size": 100.0}))
    with pytest.raises(AssumptionError, match="needs a problem of least squares, got Logistic"):
        fed = Federation.from_clients([(np.eye(2), [1.0, -1.0])])
        curvature_square(Problem(fed, Logistic(), 0.1))
    for l2 in (0.0, 1e-18):  # singular, and singular to double precision
        with pytest.raises(AssumptionError, match="strongly convex"):
            curvature_square(Problem(Federation.from_clients([([[1.0, 1.0]], [1.0])]), Squared(), l2))


@pytest.mark.slow
@pytest.mark.compiled
def test_any_error_is_noticed():
    found = power("dynamic-steady-state-small-step")
    assert found.whole.factor < 1.000001
    assert all(v.factor < 1.001 for v in found.terms.values())
