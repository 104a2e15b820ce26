"""VIRTUAL and Gaussian posteriors: against quadrature, stacked Gaussians, SciPy, and the numbers of the derivation."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import scipy.integrate
import scipy.sparse as sp
from scipy.stats import multivariate_normal

from fedconvex import Federation, Logistic, Problem, Squared, iterate, run
from fedconvex.draws import Draws
from fedconvex.driver import DivergenceWarning, participants
from fedconvex.driver.rounds import Engine
from fedconvex.methods import VIRTUAL
from fedconvex.methods.virtual import Message
from fedconvex.problems import GaussHermite, GaussianPosteriorProblem, JaakkolaJordan, MultiTaskProblem, Precision
from fedconvex.solvers.damping import best_damping, largest_damping, radius, site_map
from fedconvex.solvers.posteriors.free_energy import gradient, slope_and_curvature
from fedconvex.solvers.posteriors.gaussians import Gaussian, pack, times
from fedconvex.solvers.posteriors.mean_steps import Columns, RowSpace


class Absolute(NamedTuple):
    """A loss whose exp(-l) is no likelihood that is known here."""

    def value(self, z, y):
        return abs(z - y)

    def slope(self, z, y):
        return np.sign(z - y)


def linear_clients(seed, K=3, d=3, n=12):
    rng = np.random.default_rng(seed)
    common = rng.normal(size=d)
    pairs = []
    for _ in range(K):
        X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.5 * rng.normal(size=(d, d)))
        pairs.append((X, X @ (common + 0.4 * rng.normal(size=d)) + 0.5 * rng.normal(size=n)))
    return Federation.from_clients(pairs)


def logistic_clients(seed, K=3, d=2, n=15):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=d)
    pairs = []
    for _ in range(K):
        X = rng.normal(size=(n, d))
        pairs.append((X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-X @ theta)), 1.0, -1.0)))
    return Federation.from_clients(pairs)


def published_logistic():
    """The instance of the derivation, in its order of draws."""
    rng = np.random.default_rng(2)
    theta = rng.normal(size=3)
    Xs = [rng.normal(size=(40, 3)) + 0.5 * rng.normal(size=3) for _ in range(4)]
    ys = [np.where(rng.random(40) < 1.0 / (1.0 + np.exp(-X @ theta)), 1.0, -1.0) for X in Xs]
    return GaussianPosteriorProblem(
        Federation.from_clients(list(zip(Xs, ys, strict=True))), Logistic(), prior_precision=0.5
    )


def correlated(K=5, d=10, c=0.95):
    """K clients with the same A = c 11' + (1 - c) I."""
    X = np.linalg.cholesky(c * np.ones((d, d)) + (1.0 - c) * np.eye(d)).T
    return GaussianPosteriorProblem(Federation.from_clients([(X, X @ np.arange(d))] * K), Squared())


# ---------------------------------------------------------------- expectations and the free energy


@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_expected_losses_against_adaptive_quadrature(y):
    def sigma(a):
        return 1.0 / (1.0 + math.exp(-a))

    for mu, sd in ((0.3, 0.1), (-1.0, 0.7), (2.0, 2.0)):

        def mean(f, mu=mu, sd=sd):
            return scipy.integrate.quad(lambda z: f(mu + sd * z) * math.exp(-z * z / 2), -12, 12)[0] / math.sqrt(
                2 * math.pi
            )

        exact = (
            mean(lambda a: np.logaddexp(0.0, -y * a)),
            mean(lambda a: -y * sigma(-y * a)),
            mean(lambda a: sigma(a) * sigma(-a)),
        )
        found = [float(v[0]) for v in GaussHermite().moments(np.array([mu]), np.array([sd**2]), np.array([y]))]
        np.testing.assert_allclose(found, exact, atol=2e-9)
        assert JaakkolaJordan().moments(np.array([mu]), np.array([sd**2]), np.array([y]))[0][0] > exact[0]


@pytest.mark.parametrize("expected", [GaussHermite(2), GaussHermite(5), GaussHermite(), JaakkolaJordan()])
def test_slope_and_curvature_are_derivatives_of_the_value(expected):
    """Of the sum over few nodes too, which is what the certificate speaks about."""
    mu, v, y, h = np.array([0.4, -2.0, 1.0]), np.array([0.04, 0.3, 9.0]), np.array([1.0, 1.0, -1.0]), 1e-5
    _, slope, curvature = expected.moments(mu, v, y)
    by_mu = (expected.moments(mu + h, v, y)[0] - expected.moments(mu - h, v, y)[0]) / (2 * h)
    by_v = (expected.moments(mu, v + h, y)[0] - expected.moments(mu, v - h, y)[0]) / (2 * h)
    np.testing.assert_allclose(slope, by_mu, atol=1e-8)
    np.testing.assert_allclose(curvature, 2.0 * by_v, atol=1e-8)


def of_roots(problem, m, C):
    """The free energy without private parameters, from its definition, at mean m and covariance CC'."""
    V, P = C @ C.T, problem.prior.precision
    P, d = (np.diag(P) if P.ndim == 1 else P), len(m)
    off = m - problem.prior.mean
    kl = 0.5 * (np.trace(P @ V) + off @ P @ off - d - np.linalg.slogdet(P @ V)[1])
    total = kl
    for rows in problem.rows:
        mu, v = rows.X @ m, np.einsum("ij,jk,ik->i", rows.X, V, rows.X)
        total += rows.weight @ problem.expected.moments(mu, v, rows.y)[0]
    return total


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_value_gradient_and_certificate_by_hand(covariance):
    prior = np.array([0.5, 2.0])
    problem = GaussianPosteriorProblem(
        logistic_clients(0), Logistic(), prior_precision=prior, prior_mean=[0.3, -1.0], covariance=covariance
    )
    C = np.array([[0.6, 0.0 if covariance == "diagonal" else 0.2], [0.0, 0.4]])
    m, L = np.array([0.2, 0.5]), np.linalg.inv(C @ C.T)
    q = Gaussian(m, np.diag(L).copy() if covariance == "diagonal" else L)
    np.testing.assert_allclose(q.root if covariance == "full" else np.diag(q.root), C, atol=1e-14)
    found = problem.posterior(q)
    assert found.value == pytest.approx(of_roots(problem, m, C), rel=1e-13)
    free = [(0, 0), (1, 1)] + ([(0, 1)] if covariance == "full" else [])
    h, squares = 1e-6, 0.0
    for j in range(2):
        e = h * np.eye(2)[j]
        squares += ((of_roots(problem, m + e, C) - of_roots(problem, m - e, C)) / (2 * h)) ** 2
    for i, j in free:
        E = np.zeros((2, 2))
        E[i, j] = h
        squares += ((of_roots(problem, m, C + E) - of_roots(problem, m, C - E)) / (2 * h)) ** 2
    assert found.gap == pytest.approx(squares / (2.0 * 0.5), rel=1e-7)
    best = problem.solve()
    assert 0.0 < found.value - best.value <= found.gap


def test_the_certificate_is_attained():
    """Rows of zeros: F = tau ‖m‖^2/2 + (terms of V alone), and the gap at q = N(m, prior) is exact: less is wrong."""
    fed = Federation.from_clients([(np.zeros((2, 2)), [1.0, -1.0])])
    problem = GaussianPosteriorProblem(fed, Squared(), prior_precision=0.7)
    m = np.array([3.0, -4.0])
    found = problem.posterior(Gaussian(m, np.full(2, 0.7)))
    assert found.value - problem.solve().value == pytest.approx(0.5 * 0.7 * 25.0, rel=1e-13)
    assert found.gap == pytest.approx(0.5 * 0.7 * 25.0, rel=1e-13)


def test_numbers_of_the_derivation_logistic():
    """Free energy without constants, found there by L-BFGS; suboptimality after rounds 0, 1, 2, 5, 10."""
    problem = published_logistic()
    best, constants = problem.solve(), 1.5 + 1.5 * math.log(0.5)
    assert best.value + constants == pytest.approx(113.639427015484, abs=1e-11)
    np.testing.assert_allclose(best.w, [0.139045, -0.286631, -0.370258], atol=1e-6)
    np.testing.assert_allclose(best.posterior.q.root, [0.133754, 0.145272, 0.158915], atol=1e-6)
    for expected, total in ((GaussHermite(), -107.78343), (JaakkolaJordan(), -107.87948)):
        parts = [slope_and_curvature(expected, rows, best.posterior.q, None, False)[0] for rows in problem.rows]
        assert -sum(parts) == pytest.approx(total, abs=1e-5)
    for rho, wanted in ((1.0, [92.3, 0.048, 0.0016, 1.6e-8]), (0.5, [92.3, 0.57, 0.094, 1.6e-3])):
        trace = run(VIRTUAL(rho=rho), problem, rounds=5, tol=0).trace
        np.testing.assert_allclose((trace.value - best.value)[[0, 1, 2, 5]], wanted, rtol=0.03)
        assert (trace.value - best.value <= trace.gap + 1e-13).all()


# ---------------------------------------------------------------- exact answers of linear models


def stacked(problem, fed, s2):
    """The exact joint posterior of (theta, w_1, ..., w_K) and the log evidence, from one big Gaussian."""
    K, d, P, Q = fed.K, fed.d, np.diag(problem.prior.precision), np.diag(problem.private.precision)
    Z = np.zeros((fed.n, (K + 1) * d))
    Z[:, :d] = fed.X
    for k, (a, b) in enumerate(zip(fed.ptr[:-1], fed.ptr[1:], strict=True)):
        Z[a:b, (k + 1) * d : (k + 2) * d] = fed.X[a:b]
    prior = np.concatenate([P, np.tile(Q, K)])
    mean0 = np.concatenate([problem.prior.mean, np.zeros(K * d)])
    H = np.diag(prior) + Z.T @ Z / s2
    mean = np.linalg.solve(H, prior * mean0 + Z.T @ fed.y / s2)
    evidence = multivariate_normal(Z @ mean0, Z @ np.diag(1 / prior) @ Z.T + s2 * np.eye(fed.n)).logpdf(fed.y)
    return mean, np.linalg.inv(H), evidence


def test_exact_posterior_is_that_of_the_stacked_model():
    fed, s2 = linear_clients(3), 0.25
    problem = GaussianPosteriorProblem(
        fed, Squared(), prior_precision=0.5, prior_mean=[1.0, 0.0, -1.0], private_precision=2.0,
        noise_variance=s2, covariance="full",
    )  # fmt: skip
    mean, cov, evidence = stacked(problem, fed, s2)
    exact, d = problem.exact(), fed.d
    np.testing.assert_allclose(exact.mean, mean[:d], atol=1e-11)
    np.testing.assert_allclose(exact.covariance, cov[:d, :d], atol=1e-12)
    for k in range(fed.K):
        at = slice((k + 1) * d, (k + 2) * d)
        np.testing.assert_allclose(exact.models[k], mean[:d] + mean[at], atol=1e-11)
        both = cov[:d, :d] + cov[at, at] + cov[:d, at] + cov[at, :d]
        np.testing.assert_allclose(exact.model_variances[k], np.diag(both), atol=1e-12)
    assert exact.log_evidence == pytest.approx(evidence, abs=1e-9)
    best = problem.solve()
    np.testing.assert_allclose(best.w, exact.mean, atol=1e-11)
    np.testing.assert_allclose(best.posterior.models, exact.models, atol=1e-11)
    low, high = best.posterior.log_evidence
    assert low < evidence
    assert high == pytest.approx(evidence, abs=1e-9)
    deficit = 1.0 - best.posterior.variances / np.diag(exact.covariance)
    np.testing.assert_allclose(best.posterior.variance_deficit, deficit, atol=1e-11)
    assert (deficit > 0.5).all()  # mean field between theta and the w_k is far too sure


def test_diagonal_posteriors_have_exact_means_and_too_small_variances():
    problem = GaussianPosteriorProblem(linear_clients(1), Squared(), noise_variance=0.25)
    exact, best = problem.exact(), problem.solve()
    np.testing.assert_allclose(best.w, exact.mean, atol=1e-11)
    np.testing.assert_allclose(1.0 / best.posterior.variances, np.diag(np.linalg.inv(exact.covariance)), rtol=1e-12)
    assert (best.posterior.variance_deficit > 0.0).all()


def test_one_round_is_exact_without_private_parameters():
    problem = GaussianPosteriorProblem(linear_clients(2), Squared(), covariance="full")
    result = run(VIRTUAL(rho=1.0), problem, rounds=1, tol=0)
    np.testing.assert_allclose(result.w, problem.exact().mean, atol=1e-12)
    assert result.gap < 1e-18
    assert -problem.solve().value == pytest.approx(problem.exact().log_evidence, abs=1e-9)  # the bound is tight


@pytest.mark.parametrize(
    "participation", [1, pytest.param(None, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_theta_plus_w_is_the_mean_regularised_solution(participation):
    """Qbar = q (I - q/(p + Kq) 11'): minimising over theta leaves this penalty of the models theta + w_k."""
    fed, p, q = linear_clients(5), 0.5, 8.0
    problem = GaussianPosteriorProblem(fed, Squared(), prior_precision=p, private_precision=q, covariance="full")
    K, apart = fed.K, np.eye(fed.K) - 1.0 / fed.K  # Qbar = q apart + q p/(p + Kq) (I - apart)
    level = q * p / (p + K * q)
    tasks = MultiTaskProblem(fed, Squared(), Precision(apart, 0.5 * (q - level), 0.5 * level))
    result = run(VIRTUAL(rho=0.9, participation=participation), problem, rounds=200, tol=1e-20, record_every=10)
    assert result.status.name == "CONVERGED"
    np.testing.assert_allclose(problem.posterior(result.state).models, tasks.solve().w, atol=1e-10)


# ---------------------------------------------------------------- rounds


def test_numbers_of_the_derivation_damping():
    """A = c 11' + (1 - c) I, K of them: eigenvalue -(K-1) l/(1 + K + l) of T, l = c (d - 1)."""
    problem, l = correlated(), 0.95 * 9
    kappa = problem.damping()
    assert 1.0 - kappa.real.max() == pytest.approx(-4 * l / (6 + l), rel=1e-12)
    assert largest_damping(kappa) == pytest.approx(2.0 / (1.0 + 4 * l / (6 + l)), rel=1e-12)
    with pytest.warns(DivergenceWarning, match="VIRTUAL diverged, .*: take a smaller rho"):
        assert run(VIRTUAL(rho=1.0), problem, rounds=50).status.name == "DIVERGED"


@pytest.mark.slow
def test_numbers_of_the_derivation_on_both_sides_of_the_limit():
    """2/(1 + 2.3505) = 0.59692."""
    problem, ends = correlated(), {}
    for rho in (0.591, 0.603):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            trace = run(VIRTUAL(rho=rho), problem, rounds=300, tol=0, record_every=100).trace
        ends[rho] = trace.gap
    assert ends[0.591][3] < 1e-3 * ends[0.591][1]
    assert ends[0.603][3] > 1e3 * ends[0.603][1]
    assert run(VIRTUAL(), problem, rounds=300, tol=1e-10).status.name == "CONVERGED"


def published_private():
    rng = np.random.default_rng(1)
    Xs = [rng.normal(size=(30, 4)) @ (np.eye(4) + 0.5 * rng.normal(size=(4, 4))) for _ in range(5)]
    theta = rng.normal(size=4)
    ys = [X @ (theta + 0.4 * rng.normal(size=4)) + 0.5 * rng.normal(size=30) for X in Xs]
    return GaussianPosteriorProblem(
        Federation.from_clients(list(zip(Xs, ys, strict=True))), Squared(), prior_precision=0.5,
        private_precision=2.0, noise_variance=0.25, covariance="full",
    )  # fmt: skip


def test_private_parameters_need_damping_too():
    problem = published_private()
    kappa = problem.damping()
    assert radius(kappa, 1.0) == pytest.approx(1.021265, abs=1e-6)
    assert np.abs(kappa.imag).max() < 1e-3
    assert 0.0 < kappa.real.min()
    assert kappa.real.max() < problem.federation.K
    assert radius(kappa, best_damping(kappa)) < 1.0
    assert 2.0 / problem.federation.K < largest_damping(kappa) < 1.0


def site_errors(problem, rho, rounds):
    """Errors of the K shifts after every round, from the fixed point t_k = exp of the linear and quadratic terms."""
    best = problem.solve().posterior
    fixed = []
    for rows, c in problem.blocks(best.private):
        _, g, B = slope_and_curvature(problem.expected, rows, best.q, c, not problem.diagonal)
        fixed.append((B * best.mean if B.ndim == 1 else B @ best.mean) - g)
    engine = Engine(VIRTUAL(rho=rho), problem, np.uint64(0), 1, 1)
    return [engine.memory.shift[0] - fixed for _ in engine.loop(engine.start(None), 0, rounds)]


@pytest.mark.parametrize("problem", [correlated(3, 4, 0.8), published_private()], ids=["diagonal", "private"])
def test_errors_of_sites_obey_the_map(problem):
    """With rho = 1 precisions are final after the first round, and each further one multiplies by T."""
    kappa = problem.damping()
    A = problem._quadratics[0]
    private = None if problem.private is None else problem.private.precision
    T = site_map(A, problem.prior.precision, private, problem.diagonal)
    assert sorted(np.round(1.0 - np.linalg.eigvals(T).real, 9)) == sorted(np.round(kappa.real, 9))
    errors = site_errors(problem, 1.0, 4)
    for before, after in itertools.pairwise(errors[1:]):
        np.testing.assert_allclose(after.ravel(), T @ before.ravel(), atol=1e-9)


@pytest.mark.slow
def test_only_the_right_sites_stand_still():
    """At the optimum a wrong split of the same s moves."""
    problem = GaussianPosteriorProblem(linear_clients(4), Squared())
    method = VIRTUAL(rho=1.0)
    for t, state in iterate(method, problem, rounds=400):
        last = (t, state)
    state = last[1]
    assert problem.measure(state.precision, state.shift).gap[0] < 1e-20
    draws = Draws(np.uint64(0), np.arange(1), 5)
    clients, weights = participants(method, problem, draws)
    wrong = method.memory(problem, 1)
    wrong.shift[0, 0] += 1.0
    wrong.shift[0, 1] -= 1.0
    reply, _ = method.local(problem, method.broadcast(state), clients, wrong, draws)
    moved = method.aggregate(state, clients, weights, reply)
    assert np.abs(moved.w - state.w).max() > 1e-3


@pytest.mark.slow
def test_rho_follows_the_certificate_where_rounds_are_not_linear():
    rng = np.random.default_rng(0)
    common, pairs = rng.normal(size=(30, 1)), []
    for _ in range(5):
        X = common + 0.4 * rng.normal(size=(30, 4))
        pairs.append((X, np.where(rng.random(30) < 1.0 / (1.0 + np.exp(-X[:, 0])), 1.0, -1.0)))
    problem = GaussianPosteriorProblem(Federation.from_clients(pairs), Logistic(), expectation=JaakkolaJordan())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        stuck = run(VIRTUAL(rho=1.0), problem, rounds=60, tol=1e-4)
    result = run(VIRTUAL(), problem, rounds=200, tol=1e-4)
    assert stuck.status.name != "CONVERGED"
    assert result.status.name == "CONVERGED"
    assert result.trace.damping[0] == 1.0
    assert result.trace.damping[-1] in (0.5, 0.25, 0.125)


def test_local_steps_end_at_the_same_posterior():
    problem = GaussianPosteriorProblem(logistic_clients(2), Logistic(), private_precision=1.0)
    method = VIRTUAL(rho=0.7, local_steps=2, step_size=0.7)
    result = run(method, problem, rounds=60, tol=1e-8, record_every=10)
    assert result.status.name == "CONVERGED"
    np.testing.assert_allclose(result.w, problem.solve().w, atol=2e-4)


@pytest.mark.parametrize(("covariance", "floats"), [("diagonal", 6), ("full", 9)])
def test_messages_are_counted(covariance, floats):
    """2d = 6 or d + d(d+1)/2 = 9 numbers for each of 3 clients and 2 rounds, each way; private parameters cost none."""
    problem = GaussianPosteriorProblem(linear_clients(0), Squared(), private_precision=1.0, covariance=covariance)
    trace = run(VIRTUAL(rho=0.5), problem, rounds=2, tol=0).trace
    assert (trace.floats_down[-1], trace.floats_up[-1]) == (6 * floats, 6 * floats)
    trace = run(VIRTUAL(), problem, rounds=2, tol=0).trace  # rho is sent, curvatures are answered once
    assert (trace.floats_down[-1], trace.floats_up[-1]) == (6 * floats + 6, 6 * floats + 3 * 6)


def test_damping_of_every_trajectory():
    problem = GaussianPosteriorProblem(linear_clients(0), Squared())
    both = run(VIRTUAL(rho=[0.3, 0.6]), problem, rounds=3, tol=0, trajectories=2)
    alone = run(VIRTUAL(rho=0.6), problem, rounds=3, tol=0)
    np.testing.assert_array_equal(both.w[1], alone.w)
    assert both.trace.damping[-1].tolist() == [0.3, 0.6]


# ---------------------------------------------------------------- what the posterior says


def test_bounds_of_the_evidence_hold():
    """One feature: the evidence by adaptive quadrature."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 1))
    y = np.where(rng.random(12) < 0.7, 1.0, -1.0)
    fed = Federation.from_clients([(X[:6], y[:6]), (X[6:], y[6:])])
    density = lambda t: math.exp(-0.5 * 0.5 * t * t - np.logaddexp(0.0, -y * X[:, 0] * t).sum())  # noqa: E731
    evidence = math.log(scipy.integrate.quad(density, -20, 20)[0] * math.sqrt(0.5 / (2 * math.pi)))
    for expectation in (GaussHermite(), JaakkolaJordan()):
        problem = GaussianPosteriorProblem(fed, Logistic(), prior_precision=0.5, expectation=expectation)
        low, high = problem.solve().posterior.log_evidence
        assert evidence - 0.1 < low < evidence < high < evidence + 2.0


def test_bounds_of_the_evidence_with_private_parameters():
    """One feature, one client: theta + w ~ N(m0, 1/p + 1/q), so that the model without w has the same evidence."""
    fed = logistic_clients(1, K=1, d=1)
    y, x = fed.y, fed.X[:, 0]
    problem = GaussianPosteriorProblem(fed, Logistic(), prior_precision=2.0, prior_mean=[0.5], private_precision=2.0)
    density = lambda t: math.exp(-0.5 * (t - 0.5) ** 2 - np.logaddexp(0.0, -y * x * t).sum())  # noqa: E731
    evidence = math.log(scipy.integrate.quad(density, -20, 20)[0] / math.sqrt(2 * math.pi))
    low, high = problem.solve().posterior.log_evidence
    assert low < evidence < high < evidence + 2.0


def test_predictions_average_over_the_posterior():
    fed = logistic_clients(3)
    problem = GaussianPosteriorProblem(fed, Logistic(), private_precision=1.0)
    posterior, x = problem.solve().posterior, np.array([[1.0, -0.5]])
    rng, N = np.random.default_rng(0), 200_000
    theta = posterior.mean + rng.normal(size=(N, 2)) * np.sqrt(posterior.variances)
    for client in (None, fed.labels[1].item()):
        c = problem.private if client is None else posterior.private[1]
        a = (theta + c.mean + rng.normal(size=(N, 2)) * np.sqrt(c.variances)) @ x[0]
        prob, found = 1.0 / (1.0 + np.exp(-a)), posterior.predict(x, client)
        assert found.mean[0] == pytest.approx(prob.mean(), abs=3e-3)
        assert found.score_sd[0] == pytest.approx(a.std(), rel=1e-2)
        np.testing.assert_allclose([found.low[0], found.high[0]], np.quantile(prob, [0.025, 0.975]), atol=5e-3)
    linear = GaussianPosteriorProblem(linear_clients(0), Squared(), noise_variance=0.3).solve().posterior
    found = linear.predict(np.eye(3), level=0.5)
    np.testing.assert_allclose(found.high - found.low, 2 * 0.6744897501960817 * np.sqrt(found.score_sd**2 + 0.3))


def test_rows_may_be_sparse_or_weighted():
    fed = linear_clients(0)
    pairs = [(fed.X[a:b], fed.y[a:b]) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    dense = GaussianPosteriorProblem(fed, Squared()).solve()
    sparse = GaussianPosteriorProblem(Federation.from_clients([(sp.csr_array(X), y) for X, y in pairs]), Squared())
    np.testing.assert_array_equal(sparse.solve().w, dense.w)
    twice = Federation.from_clients([(np.vstack([X, X]), np.concatenate([y, y])) for X, y in pairs])
    weighted = Federation.from_clients(pairs, sample_weight=[np.full(len(y), 2.0) for _, y in pairs])
    a, b = (GaussianPosteriorProblem(f, Squared()).solve() for f in (twice, weighted))
    assert a.value == pytest.approx(b.value, rel=1e-13)
    np.testing.assert_allclose(a.w, b.w, atol=1e-13)


def test_quadrature_error_is_seen():
    fed = logistic_clients(0)
    few = GaussianPosteriorProblem(fed, Logistic(), expectation=GaussHermite(3)).solve().posterior
    assert (
        few.quadrature_error
        > 1e-6
        > 1e-9
        > GaussianPosteriorProblem(fed, Logistic()).solve().posterior.quadrature_error
    )
    assert GaussianPosteriorProblem(fed, Squared()).solve().posterior.quadrature_error == 0.0


def test_sparse_rows_are_predicted():
    posterior = GaussianPosteriorProblem(linear_clients(0), Squared()).solve().posterior
    X = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, -1.0]])
    np.testing.assert_array_equal(posterior.predict(sp.csr_array(X)), posterior.predict(X))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"loss": Absolute()}, r"loss must be Squared\(\) or Logistic\(\)"),
        ({"prior_precision": 0.0}, "prior_precision must be positive definite"),
        ({"prior_precision": np.eye(3)}, "covariance"),
        ({"prior_precision": [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]], "covariance": "full"}, "definite"),
        ({"private_precision": [1.0, 1.0]}, "private_precision must have shape"),
        ({"private_precision": math.nan}, "private_precision must be positive definite and finite"),
        ({"noise_variance": -1.0}, "noise_variance must be positive"),
        ({"covariance": "block"}, "covariance must be one of"),
        ({"expectation": GaussHermite()}, "expectation must be left out for squared loss"),
        ({"noise_variance": 1e-31}, "noise_variance must lie in"),
        ({"private_precision": 1e40}, "private_precision must lie in"),
        ({"prior_mean": [1.0]}, "prior_mean must have shape"),
    ],
)
def test_problems_that_are_refused(settings, text):
    with pytest.raises((ValueError, TypeError), match=text):
        GaussianPosteriorProblem(linear_clients(0), **({"loss": Squared()} | settings))


def test_runs_that_are_refused():
    linear = GaussianPosteriorProblem(linear_clients(0), Squared())
    logistic = GaussianPosteriorProblem(logistic_clients(0), Logistic())
    with pytest.raises(ValueError, match="noise_variance must be left out for logistic loss"):
        GaussianPosteriorProblem(logistic_clients(0), Logistic(), noise_variance=0.5)
    for rho in (0.0, 2.0, "best", True, [0.5, 3.0]):
        with pytest.raises((ValueError, TypeError), match=r"VIRTUAL\.rho must"):
            VIRTUAL(rho=rho)
    with pytest.raises(ValueError, match=r"VIRTUAL\.step_size must"):
        VIRTUAL(step_size=1.5)
    with pytest.raises(ValueError, match="whole certificate"):
        run(VIRTUAL(participation=1), logistic)
    with pytest.raises(ValueError, match="start must be zero"):
        run(VIRTUAL(), linear, start=np.ones(3))
    with pytest.raises(TypeError, match="GaussianPosteriorProblem"):
        run(VIRTUAL(), Problem(linear_clients(0), Squared()))
    with pytest.raises(TypeError, match="exact answers"):
        logistic.damping()
    with pytest.raises(ValueError, match="client must be a label"):
        linear.solve().posterior.predict(np.eye(3), client="nobody")
    with pytest.raises(ValueError, match="positive definite"):
        linear.posterior(Gaussian(np.zeros(3), -np.ones(3)))


def test_the_gradient_finds_a_wrong_curvature():
    """The certificate is blind to nothing: half the curvature leaves a gradient in the roots."""
    problem = GaussianPosteriorProblem(linear_clients(0), Squared())
    q = problem.solve().posterior.q
    parts = [problem.gradient_parts(q, k) for k in range(3)]
    slope, H = sum(g for g, _ in parts), sum(B for _, B in parts)
    assert gradient(q, problem.prior, slope, H).square < 1e-20
    assert gradient(q, problem.prior, slope, 0.5 * H).square > 1.0


# ---------------------------------------------------------------- campaigns


def random_problem(rng):
    """A small problem of any kind."""
    K, d, n = (int(v) for v in rng.integers((1, 1, 2), (5, 5, 25)))
    linear, full, private, scalar = rng.random(4) < (0.5, 0.5, 0.6, 0.5)
    common, pairs = rng.normal(size=d), []
    for _ in range(K):
        X = rng.normal(size=(n, d)) @ (np.eye(d) + rng.normal(size=(d, d))) * 10 ** rng.uniform(-1, 1)
        a = X @ (common + rng.normal(size=d))
        y = (
            a + rng.normal(size=n)
            if linear
            else np.where(rng.random(n) < 1 / (1 + np.exp(-np.clip(a, -30, 30))), 1, -1)
        )
        pairs.append((X, y.astype(float)))
    how = {"covariance": "full" if full else "diagonal", "prior_mean": rng.normal(size=d)}
    size = () if scalar else (d,)
    how["prior_precision"] = 10 ** rng.uniform(-1, 1, size)
    how["private_precision"] = 10 ** rng.uniform(-1, 1, size) if private else None
    if linear:
        how["noise_variance"] = 10 ** rng.uniform(-1, 1)
    elif rng.random() < 0.5:
        how["expectation"] = JaakkolaJordan()
    return GaussianPosteriorProblem(Federation.from_clients(pairs), Squared() if linear else Logistic(), **how)


def identities_trial(rng):
    """Certificate, fixed point, exact answers and bounds of the evidence on a random problem."""
    problem = random_problem(rng)
    d, best = problem.federation.d, problem.solve()
    scale = 1.0 + abs(best.value)
    assert best.posterior.gap <= 1e-12 * scale
    assert best.gap <= 1e-10 * scale  # with the rounding of the value
    worst = 0.0
    for size in (1e-2, 1.0, 3.0):
        half = rng.normal(size=(d, d))
        bend = np.exp(size * rng.normal(size=d)) if problem.diagonal else np.eye(d) + size * half @ half.T
        q = best.posterior.q
        precision = q.precision * bend if problem.diagonal else bend @ q.precision @ bend.T
        found = problem.posterior(Gaussian(q.mean + size * rng.normal(size=d), precision))
        short = found.value - best.value
        assert -1e-11 * scale <= short <= found.gap + 1e-11 * scale
        worst = max(worst, short / found.gap)
    method = VIRTUAL(rho=1.0)
    memory, q = method.memory(problem, 1), best.posterior.q
    for k, (rows, c) in enumerate(problem.blocks(best.posterior.private)):
        _, g, B = slope_and_curvature(problem.expected, rows, q, c, not problem.diagonal)
        memory.precision[0, k], memory.shift[0, k] = pack(B), times(B, q.mean) - g
    message = Message(pack(q.precision)[None], q.shift[None], np.zeros((1, 0)), np.zeros((1, 0)))
    clients = np.arange(problem.federation.K)[None]
    reply, _ = method.local(problem, message, clients, memory, Draws(np.uint64(0), np.arange(1), 0))
    moved = [np.abs(r).max() / (1.0 + np.abs(m).max()) for r, m in zip(reply[:2], message[:2], strict=True)]
    assert max(moved) < 1e-6  # Theorem A, the converse half
    low, high = best.posterior.log_evidence
    assert low <= high + 1e-9 * scale
    if problem.linear:
        exact = problem.exact()
        np.testing.assert_allclose(best.w, exact.mean, atol=1e-8 * (1.0 + np.abs(exact.mean).max()))
        np.testing.assert_allclose(best.posterior.models, exact.models, atol=1e-8 * (1.0 + np.abs(exact.models).max()))
        assert (best.posterior.variance_deficit > -1e-9).all()
    return {"certificate": worst, "moved": max(moved), "gap": best.gap / scale}


def test_solutions_do_not_stop_where_a_full_step_changes_the_value_by_rounding_only():
    """In this trial a client's full step raised F by 7e-12 and its gradient too; half of it lowers that by a tenth."""
    assert identities_trial(np.random.default_rng([77, 172]))["moved"] < 1e-8


def damping_trial(rng):
    """Errors of the sites grow or shrink by the predicted factor at 0.99 and 1.01 of 2/lambda_max(GS)."""
    while True:
        K, d = int(rng.integers(2, 5)), int(rng.integers(1, 4))
        fed = linear_clients(int(rng.integers(2**31)), K, d, 2 * d)
        problem = GaussianPosteriorProblem(
            fed, Squared(), prior_precision=10 ** rng.uniform(-1, 1), private_precision=10 ** rng.uniform(-0.5, 1),
            noise_variance=10 ** rng.uniform(-1, 0.5), covariance="full",
        )  # fmt: skip
        kappa = problem.damping()
        limit, out = largest_damping(kappa), {}
        assert np.abs(kappa.imag).max() < 1e-3
        assert 0.0 < kappa.real.min()
        assert kappa.real.max() < K
        plans = {share: rounds_needed(kappa, share * limit) for share in (0.99, 1.01)}
        if max(plans.values()) <= 450:
            break
    for share, rounds in plans.items():
        rho = share * limit
        errors = [np.linalg.norm(e) for e in site_errors(problem, rho, rounds)[-2:]]
        growth, predicted = errors[1] / errors[0], radius(kappa, rho)
        assert abs(growth - predicted) < 1e-6
        assert (growth > 1.0) == (share > 1.0)
        out[f"off at {share}"] = abs(growth - predicted)
    return out | {"largest": float(kappa.real.max()) / K}


def rounds_needed(kappa, rho):
    """Rounds until all but the leading mode, and the precisions, are below 1e-9 of it."""
    modes = np.sort(np.append(np.abs(1.0 - rho * kappa), abs(1.0 - rho)))
    slower = modes[modes < modes[-1] * (1.0 - 1e-9)]
    ratio = slower[-1] / modes[-1] if slower.size else 0.0
    return 10 if ratio == 0.0 else 10 + math.ceil(math.log(1e-9) / math.log(ratio))


# ---------------------------------------------------------------- systems among rows


@pytest.mark.parametrize("private", [None, 3.0])
@pytest.mark.parametrize("clients", [2, 6])  # fewer rows than columns in all, and more
def test_systems_among_rows_are_those_of_columns(private, clients):
    """Woodbury against matrices of the columns' size: steps, answers, rounds."""
    rng = np.random.default_rng(3)
    pairs = []
    for k in range(clients):
        X = rng.normal(size=(5 + k, 20)) @ np.diag(3.0 ** -np.arange(20))
        pairs.append((X, np.where(X[:, 0] + 0.1 * rng.normal(size=5 + k) > 0.0, 1.0, -1.0)))
    P, Q = rng.uniform(0.1, 2.0, size=20), None if private is None else np.full(20, private)
    X, bent = [X for X, _ in pairs], [rng.uniform(0.0, 0.25, size=len(y)) for _, y in pairs]
    assert RowSpace.fits(X, bent, P, Q)
    assert not RowSpace.fits(X, bent, 1e-12 * P, Q)  # differences would lose what they are to tell
    assert not RowSpace.fits([X[0].T], [np.ones(20)], P[:5], None)  # more rows than columns
    pull, own = rng.normal(size=20), [] if Q is None else list(rng.normal(size=(clients, 20)))
    found, hand = RowSpace(X, P, Q), Columns(X, P, Q)
    one, other = found.steps(found.bend(bent), pull, own), hand.steps(hand.bend(bent), pull, own)
    np.testing.assert_allclose(one[0], other[0], atol=1e-13)
    np.testing.assert_allclose(np.array(one[1]), np.array(other[1]), atol=1e-13)
    for more, less in zip(found.spread(found.bend(bent), [P]), hand.spread(hand.bend(bent), [P]), strict=True):
        assert (more >= less).all()


def test_answers_and_rounds_do_not_depend_on_the_systems(monkeypatch):
    rng = np.random.default_rng(4)
    pairs = [(X, np.where(X[:, 0] > 0.0, 1.0, -1.0)) for X in rng.normal(size=(2, 5, 9))]

    def answers():
        problem = GaussianPosteriorProblem(Federation.from_clients(pairs), Logistic(), private_precision=2.0)
        best, result = problem.solve().posterior, run(VIRTUAL(), problem, rounds=2, record_every=2)
        return np.concatenate([best.mean, best.variances, best.models.ravel(), result.w, result.trace.value])

    among_rows = answers()
    monkeypatch.setattr(RowSpace, "fits", staticmethod(lambda *args: False))
    np.testing.assert_allclose(answers(), among_rows, rtol=1e-11, atol=1e-11)


def test_what_is_no_federation_is_refused_by_name():
    with pytest.raises(TypeError, match=r"GaussianPosteriorProblem\.federation must be a Federation"):
        GaussianPosteriorProblem(float("-inf"), Logistic())
