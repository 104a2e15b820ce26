"""The exact agnostic solution against independent solvers, its certificate, and its refusals."""

import math
import warnings

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Exponential, Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared
from fedconvex.simplex.uncertainty import KLBall, Point, Polytope, Simplex, log_sum_exp
from fedconvex.solvers.certificates.factor import Factor
from fedconvex.solvers.minimax import agnostic as minimax
from fedconvex.solvers.minimax import envelopes
from fedconvex.solvers.minimax.agnostic import measure_minimax, measure_softmax, solve_minimax, solve_softmax
from fedconvex.solvers.minimax.updates import UpdatedFactor, updated
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.smooth.newton import polish


def make(seed, n, d, p, loss, l2, *, sparse=False, spread=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6)
    domain = np.arange(n) % p
    W = rng.normal(size=d) + spread * rng.normal(size=(p, d))
    z = np.einsum("ij,ij->i", X, W[domain])
    if isinstance(loss, Squared):
        y = z + rng.normal(size=n) * (1.0 + 0.3 * domain)
    elif isinstance(loss, Softmax):
        y = rng.integers(loss.n_classes, size=n).astype(float)
    else:
        y = np.where(z + rng.logistic(size=n) > 0, 1.0, -1.0)
    clients = rng.permutation(n) % 7
    return Problem(Federation.from_arrays(sp.csr_matrix(X) if sparse else X, y, clients, domains=domain), loss, l2)


class Identity:
    """A factor of the identity."""

    def whiten(self, J):
        return J

    def solve(self, g):
        return g


def plain_values(problem, w):
    """Mean loss of every domain, from the rows."""
    fed = problem.federation
    X = fed.X.toarray() if fed.is_sparse else fed.X
    Z = X @ w.reshape(-1, fed.d).T
    if isinstance(problem.loss, Squared):
        losses = 0.5 * (Z[:, 0] - fed.y) ** 2
    elif isinstance(problem.loss, Logistic):
        losses = np.logaddexp(0.0, -fed.y * Z[:, 0])
    else:
        losses = np.logaddexp.reduce(Z, axis=1) - Z[np.arange(fed.n), fed.y.astype(int)]
    means = [losses[fed.domain == q].mean() for q in range(fed.n_domains)]
    return np.array(means) + 0.5 * problem.l2 * float(np.sum(w * w))


def by_cvxpy(problem, objective=Simplex()):  # noqa: B008
    fed, C = problem.federation, problem.n_outputs
    X = fed.X.toarray() if fed.is_sparse else fed.X
    w = cp.Variable((C, fed.d))
    parts = []
    for q in range(fed.n_domains):
        A, y = X[fed.domain == q], fed.y[fed.domain == q]
        if isinstance(problem.loss, Squared):
            mean = cp.sum_squares(A @ w[0] - y) / (2 * len(y))
        elif isinstance(problem.loss, Logistic):
            mean = cp.sum(cp.logistic(cp.multiply(-y, A @ w[0]))) / len(y)
        else:
            Z = A @ w.T
            mean = (cp.sum(cp.log_sum_exp(Z, axis=1)) - cp.sum(cp.multiply(Z, np.eye(C)[y.astype(int)]))) / len(y)
        parts.append(mean)
    values, rows = cp.hstack(parts), []
    if isinstance(objective, Polytope):  # max over A lambda <= b, by its dual
        y = cp.Variable(len(objective.b), nonneg=True)
        worst = np.array(objective.b) @ y + cp.max(values - np.array(objective.A).T @ y)
    elif isinstance(objective, KLBall):  # min over nu of nu radius + nu log sum c exp(F/nu), in exponential cones
        nu, t = cp.Variable(nonneg=True), cp.Variable()
        e, F = cp.Variable(len(parts)), cp.Variable(len(parts))
        rows = [F >= values, cp.ExpCone(F - t, nu * np.ones(len(parts)), e), np.array(objective.center) @ e <= nu]
        worst = nu * objective.radius + t
    elif isinstance(objective, float):
        worst = cp.log_sum_exp(objective * values) / objective
    else:
        worst = cp.max(values) if isinstance(objective, Simplex) else np.array(objective.domain_weights) @ values
    task = cp.Problem(cp.Minimize(worst + 0.5 * problem.l2 * cp.sum_squares(w)), rows)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-9)
    return float(task.solve(solver=cp.CLARABEL, **tight))


CASES = [
    (Squared(), 1e-2, False),
    (Squared(), 0.0, True),
    (Logistic(), 1e-2, True),
    (Logistic(), 1e-6, False),
    (Softmax(3), 1e-2, False),
]


@pytest.mark.parametrize(("loss", "l2", "sparse"), CASES)
@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.slow_unless(p=2)
def test_value_against_cvxpy(loss, l2, sparse, p):
    for seed in range(2):
        problem = make(seed, 120, 4, p, loss, l2, sparse=sparse)
        best = problem.solve_minimax()
        np.testing.assert_allclose(best.domain_values, plain_values(problem, best.w), rtol=1e-12)
        assert best.value == best.domain_values.max()
        assert best.gap <= 1e-10 * (1 + abs(best.value)), (seed, best.gap)
        assert abs(best.value - by_cvxpy(problem)) <= 1e-8 * (1 + abs(best.value))
        assert best.domain_weights.min() >= 0.0
        assert abs(best.domain_weights.sum() - 1.0) <= 1e-14
        worst = best.value - best.domain_values
        assert np.all(best.domain_weights * worst <= 1e-10)  # complementary slackness


@pytest.mark.slow
def test_certificate_over_many_problems():
    """The certified interval is small, and no point near the solution lies below its lower end."""
    rng = np.random.default_rng(5)
    for seed in range(60):
        loss = [Squared(), Logistic(), SmoothedHinge(0.5)][seed % 3]
        l2 = [1e-1, 1e-4][seed % 2]
        problem = make(seed, int(rng.integers(20, 200)), int(rng.integers(1, 8)), int(rng.integers(1, 9)), loss, l2)
        best = problem.solve_minimax()
        assert 0.0 <= best.gap <= 1e-10 * (1 + abs(best.value)), (seed, best.gap)
        for scale in (1e-1, 1e-3, 1e-5):
            near = best.w + scale * rng.normal(size=(50, *best.w.shape))
            assert problem.domain_values(near).max(axis=1).min() >= best.lower, seed


def test_more_domains_than_parameters_and_equal_domains():
    problem = make(3, 400, 2, 40, Logistic(), 1e-3)
    best = problem.solve_minimax()
    assert best.gap <= 1e-10
    assert (best.domain_weights > 1e-9).sum() <= 3  # d + 1 domains determine a minimax point
    X, y = np.tile(np.random.default_rng(0).normal(size=(10, 2)), (3, 1)), np.tile([1.0, -1.0], 15)
    same = Problem(Federation.from_arrays(X, y, np.repeat([0, 1, 2], 10), domains=np.repeat([0, 1, 2], 10)), Logistic())
    twin = same.solve_minimax()
    assert abs(twin.value - same.solve().value) <= 1e-12


def test_one_domain_is_the_pooled_problem():
    problem = make(0, 50, 3, 1, Logistic(), 1e-2)
    pooled = Problem(problem.federation, Logistic(), 1e-2)
    np.testing.assert_allclose(problem.solve_minimax().w, pooled.solve().w, rtol=1e-9, atol=1e-9)


def test_a_planted_mixture_gives_no_lower_bound_above_the_value():
    """Any mixture certifies: the bound is at most the minimax value, and far below it for a wrong mixture."""
    problem = make(1, 200, 3, 4, Logistic(), 1e-2, spread=3.0)
    best = problem.solve_minimax()
    for mix in np.eye(4):
        assert problem.by_domain.reweighted(mix).solve().lower <= best.value
    uniform = problem.by_domain.reweighted(np.full(4, 0.25)).solve()
    assert uniform.lower < best.lower - 1e-3


SETS = [
    Polytope([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]], [0.3, -0.4]),
    Polytope(np.vstack([np.eye(3), -np.eye(3)]), [0.4, 0.4, 0.4, -0.3, -0.3, -0.3]),
    KLBall([0.2, 0.3, 0.5], 0.02),
    KLBall([0.6, 0.2, 0.2], 0.3),
    KLBall([1 / 3, 1 / 3, 1 / 3], 0.8),
    Point([0.2, 0.3, 0.5]),
]


@pytest.mark.parametrize("sets", SETS, ids=str)
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=str)
@pytest.mark.slow_unless(loss=Logistic(), sets=SETS[1::2])
def test_other_sets_of_mixtures_against_cvxpy(sets, loss):
    """Value, certificate, and both halves of the saddle: the mixture is in Lambda and attains the maximum at w."""
    for seed in range(2):
        problem = make(seed, 120, 4, 3, loss, 1e-2, spread=2.0)
        best = solve_minimax(problem, uncertainty_set=sets)
        F = plain_values(problem, best.w)
        assert best.gap <= 1e-9 * (1 + abs(best.value)), (seed, best.gap)
        assert sets.contains(best.domain_weights, 1e-9), seed
        assert best.value == pytest.approx(float(sets.support(F)[0]), rel=1e-12)
        assert best.domain_weights @ F >= best.value - 1e-8, seed
        assert abs(best.value - by_cvxpy(problem, sets)) <= 1e-7 * (1 + abs(best.value)), seed
        assert best.value <= problem.solve_minimax().value + 1e-10


def test_a_point_is_plain_minimisation():
    problem = make(2, 100, 3, 2, Logistic(), 1e-2)
    assert (
        solve_minimax(problem, uncertainty_set=KLBall([0.5, 0.5], 2.0)).value == problem.solve_minimax().value
    )  # all of it
    best = solve_minimax(problem, uncertainty_set=Point([0.25, 0.75]))
    plain = problem.by_domain.reweighted(np.array([0.25, 0.75])).solve()
    np.testing.assert_allclose(best.w, plain.w, atol=1e-10)
    assert best.value == pytest.approx(plain.value, rel=1e-13)


@pytest.mark.parametrize("mu", [0.1, 3.0, 100.0])
def test_softmax_objective_against_cvxpy(mu):
    for loss in (Squared(), Logistic()):
        problem = make(4, 120, 4, 3, loss, 1e-2, spread=2.0)
        best, worst = solve_softmax(problem, mu), problem.solve_minimax()
        assert best.gap <= 1e-10 * (1 + abs(best.value))
        assert best.value == pytest.approx(float(log_sum_exp(plain_values(problem, best.w), mu)), rel=1e-12)
        assert abs(best.value - by_cvxpy(problem, mu)) <= 1e-7 * (1 + abs(best.value))
        assert worst.value - 1e-10 <= best.value <= worst.value + np.log(3) / mu + 1e-10
        assert best.domain_values.max() <= worst.value + np.log(3) / mu  # what the trade-off means for the worst domain


def test_few_hessians_of_all_rows_are_formed(monkeypatch):
    """From where an eighth of the rows leads, one Hessian of all rows is good for all steps; there were three.

    None is formed for the certificate, because the gradient alone shows that rounding is all that is left.
    """
    problem, rows = make(3, 240, 2, 3, Logistic(), 1e-2), []
    hessian = Objective.flat_hessian
    monkeypatch.setattr(Objective, "flat_hessian", lambda self, w: rows.append(self.federation.n) or hessian(self, w))
    found = solve_minimax(problem)
    assert set(rows) == {30, 240}
    assert rows.count(240) == 1
    plain = solve_minimax(problem, start=np.zeros(2))
    assert found.gap <= 1e-12
    assert np.abs(found.w - plain.w).max() <= 1e-6
    assert abs(found.value - plain.value) <= 1e-13


def test_hessians_are_formed_for_the_certificate_where_the_gradient_leaves_more_than_rounding(monkeypatch):
    """A search that ends too early costs Newton steps for the weights it ended with, not the certificate."""
    problem = make(3, 240, 2, 3, Logistic(), 1e-2)
    best, search = solve_minimax(problem), minimax.saddle_point

    def early(domains, sets, *begin, **accuracy):
        w, mix, iterations = search(domains, sets, *begin, **accuracy)
        return w + (1e-4 if domains.federation.n == 240 else 0.0), mix, iterations

    monkeypatch.setattr(minimax, "saddle_point", early)
    off = solve_minimax(problem)
    assert off.value > best.value + 1e-6
    assert abs(off.lower - best.lower) <= 1e-12


def test_updated_factors_are_those_of_the_bfgs_formula():
    rng = np.random.default_rng(0)
    A, G = rng.normal(size=(9, 4)), rng.normal(size=(3, 4))
    problem = Problem(Federation.from_arrays(A, np.ones(9), np.zeros(9)), Squared(), 1e-3)
    H = problem.flat_hessian(np.zeros(4))
    factor, D = Factor(problem, np.zeros(4), H.copy(), False), H
    for _ in range(3):
        s = rng.normal(size=4)
        y = (H + 0.3 * np.diag(rng.random(4))) @ s
        factor = updated(factor, s, y)
        D = D + np.outer(y, y) / (y @ s) - np.outer(D @ s, D @ s) / (s @ D @ s)
        np.testing.assert_allclose(factor.solve(y), s, atol=1e-13)
    np.testing.assert_allclose([factor.solve(g) for g in G], np.linalg.solve(D, G.T).T, atol=1e-12)
    Z = factor.whiten(G)
    np.testing.assert_allclose(Z @ Z.T, G @ np.linalg.solve(D, G.T), atol=1e-12)


def test_factors_are_not_updated_by_rounding():
    """A change of gradients that points nearly across the step would leave a singular matrix, one against it none."""
    factor = updated(Identity(), np.array([1.0, 0.0]), np.array([1.0, 0.5]))
    assert isinstance(factor, UpdatedFactor)
    for y in ([1e-3, 1.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [math.nan, 1.0]):
        assert updated(factor, np.array([1.0, 0.0]), np.array(y)) is factor


def test_a_start_from_some_rows_that_overflows_on_others_is_not_taken():
    """Users were told to start nearer to zero, who had given no start."""
    X = np.random.default_rng(0).normal(size=(128, 1))
    y = -np.sign(X[:, 0])  # so that some rows lead below zero
    X[5], y[5] = 1e4, 1.0  # where this one, which is not among them, overflows
    problem = Problem(Federation.from_arrays(X, y, np.arange(128) // 64), Exponential(), 1e-3)
    best = solve_minimax(problem)
    assert best.gap <= 1e-8 * (1.0 + best.value)


def test_without_domains_every_client_is_one():
    problem = make(0, 60, 3, 1, Logistic(), 1e-2)
    fed = problem.federation
    named = Federation.from_arrays(
        fed.X, fed.y, np.repeat(np.arange(fed.K), fed.sizes), np.repeat(np.arange(fed.K), fed.sizes)
    )
    alone = Problem(Federation(fed.X, fed.y, fed.ptr), Logistic(), 1e-2).solve_minimax()
    assert alone.value == Problem(named, Logistic(), 1e-2).solve_minimax().value
    assert alone.domain_weights.size == fed.K


@pytest.mark.parametrize("radius", [0.05, 0.3, np.inf])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_measured_gaps_are_upper_bounds_and_tight(radius, l2):
    """Against the minimum over the ball by cvxpy, at random models and mixtures of the ball."""
    problem = make(3, 80, 3, 3, Logistic(), l2)
    fed, w = problem.federation, cp.Variable(3)
    parts = [
        cp.sum(cp.logistic(cp.multiply(-fed.y[m], fed.X[m] @ w))) / m.sum() for m in (fed.domain == q for q in range(3))
    ]
    rows = [cp.norm(w) <= radius] if np.isfinite(radius) else []
    least = cp.Problem(cp.Minimize(cp.max(cp.hstack(parts)) + l2 / 2 * cp.sum_squares(w)), rows).solve(
        solver=cp.CLARABEL
    )
    rng = np.random.default_rng(0)
    V = rng.normal(size=(40, 3))
    V *= (min(radius, 1.0) * rng.random(40) / np.linalg.norm(V, axis=1))[:, None]
    value, gap = measure_minimax(problem, Simplex(), V, rng.dirichlet(np.ones(3), size=40), radius)
    np.testing.assert_allclose(value, [plain_values(problem, v).max() for v in V], rtol=1e-12)
    assert (gap >= value - least - 1e-7).all()
    if np.isinf(radius):
        np.testing.assert_allclose(gap, value - least, atol=1e-6)


def test_gaps_without_an_exact_solution():
    """Hinge: the lower bound is that of the mixture at hand, by strong convexity, or zero."""
    problem = make(1, 60, 3, 2, Hinge(), 0.5)
    V = np.random.default_rng(0).normal(size=(20, 3)) * 0.3
    mix = np.full((20, 2), 0.5)
    value, gap = measure_minimax(problem, Simplex(), V, mix)
    fed, w = problem.federation, cp.Variable(3)
    parts = [
        cp.sum(cp.pos(1 - cp.multiply(fed.y[m], fed.X[m] @ w))) / m.sum() for m in (fed.domain == q for q in range(2))
    ]
    least = cp.Problem(cp.Minimize(cp.max(cp.hstack(parts)) + 0.25 * cp.sum_squares(w))).solve(solver=cp.CLARABEL)
    assert (gap >= value - least - 1e-7).all()
    assert (gap <= value + 1e-13).all()
    value, gap = measure_softmax(problem, 2.0, V)
    assert (value <= gap).all() and (gap <= value + 1e-13).all()


def test_refusals():
    with pytest.raises(ValueError, match="2 domains"):
        solve_minimax(make(0, 20, 2, 2, Logistic(), 0.1), uncertainty_set=Point([0.5, 0.25, 0.25]))
    with pytest.raises(ValueError, match="mu"):
        solve_softmax(make(0, 20, 2, 2, Logistic(), 0.1), 0.0)
    with pytest.raises(TypeError, match="SmoothedHinge"):
        make(0, 20, 2, 2, Hinge(), 0.1).solve_minimax()
    wide = Federation.from_arrays(sp.random(9, 3001, 0.1, "csr", random_state=0), np.ones(9), [0] * 9, domains=[0] * 9)
    with pytest.raises(ValueError, match="3000 parameters"):
        Problem(wide, Squared(), 0.1).solve_minimax()
    with pytest.raises(ValueError, match="tol"):
        make(0, 20, 2, 2, Logistic(), 0.1).solve_minimax(tol=-1.0)


def test_without_domains_clients_are_domains():
    problem = make(0, 30, 3, 2, Logistic(), 0.1)
    plain = Problem(Federation(problem.federation.X, problem.federation.y, problem.federation.ptr), Logistic(), 0.1)
    w = np.ones(3)
    np.testing.assert_array_equal(plain.domain_values(w).shape, (7,))
    np.testing.assert_allclose(plain.domain_values(w), plain.client_values(w), rtol=1e-14)
    np.testing.assert_allclose(plain.domain_gradients(w), plain.client_gradients(w), rtol=1e-12, atol=1e-15)


def test_smoothed_hinge_needs_a_ridge():
    with pytest.raises(ValueError, match="l2 > 0"):
        make(0, 20, 2, 2, SmoothedHinge(0.5), 0.0).solve_minimax()


def test_balls_so_small_that_divergences_drown_are_certified_soundly():
    """F_k = (w - y_k)^2/2 for y = 0, 1: sum lambda_k F_k is least for w = lambda_2, lambda_1 lambda_2/2."""
    fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 1.0], clients=[0, 1])
    for radius in (1e-14, 1e-11, 1e-8):
        for centre in (0.5, 0.25):  # of y = 1; the ball around 1/4 has its largest value where it is nearest to 1/2
            best = solve_minimax(Problem(fed, Squared()), uncertainty_set=KLBall([1.0 - centre, centre], radius))
            t = math.sqrt(2.0 * radius * centre * (1.0 - centre))
            t += radius * (1.0 - 2.0 * centre) / 3.0  # the divergence is t^2/(2 c (1-c)) - (1-2c) t^3/(6 c^2 (1-c)^2)
            right = 0.125 if centre == 0.5 else 0.5 * (centre + t) * (1.0 - centre - t)
            assert best.lower <= right + 2e-16 + 10.0 * radius**1.5
            assert best.value >= right - 2e-16 - 10.0 * radius**1.5
            assert best.gap <= 1e-13


def test_what_overflows_or_swamps_is_said():
    fed = Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], clients=[0, 1])
    problem = Problem(fed, Exponential(), 1e-3)
    with pytest.raises(ValueError, match="start must be a model of finite values"):
        solve_minimax(problem, start=np.array([1e4]))
    assert solve_softmax(problem, 1e-300).gap > 0.0  # log(2)/mu swamps the values: nothing is known of them
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, gap = measure_minimax(problem, Simplex(), np.array([[1e200]]), np.array([[0.5, 0.5]]), 2.0)
    assert np.isinf(value).all()
    assert np.isinf(gap).all()


def test_linear_bounds_over_a_ball_allow_for_rounding_of_the_gradient(monkeypatch):
    """The bound is lower by what the gradient may be off by, as far as the ball reaches."""
    fed = Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], clients=[0, 1])
    for l2, radius in ((0.0, 3.0), (0.5, 3.0), (0.5, math.inf)):
        domains = Problem(fed, Squared(), l2).by_domain
        args = domains, np.array([0.25]), np.array([0.5, 0.5]), radius
        before = minimax._ball_minimum(*args)
        with monkeypatch.context() as patch:
            patch.setattr(Objective, "sum_rounding", lambda *given: np.array([8e-3]))
            assert minimax._ball_minimum(*args) <= before - (8e-3 * 3.25 if radius == 3.0 else 64e-6) + 1e-12


def stalls(seed, l2s):
    """Most iterations along a path of l2 that asks for more than rounding leaves."""
    from fedconvex.datasets import logistic_federation

    fed = logistic_federation(5, 3, 60, seed=seed, model_shift=1.0, feature_shift=0.5).federation
    w = mix = None
    most = 0
    for l2 in l2s:
        w, mix, n = minimax.saddle_point(Problem(fed, Logistic(), l2).by_domain, Simplex(), w, mix, accuracy=1e-16)
        most = max(most, n)
    return most


@pytest.mark.compiled
def test_a_search_ends_where_steps_gain_rounding_only():
    """These went to and fro by 1e-14 for all 200 iterations."""
    assert max(stalls(seed, (1e-3, 1e-4, 1e-5)) for seed in (42, 55, 77)) < 20


def test_steps_are_not_halved_below_what_is_seen(monkeypatch):
    """Where no step lowers the values, those of which the model promises less than rounding are not tried."""
    calls = []

    def flat(domains, w):
        calls.append(w)
        return np.array([1.0, 1.0]) + 1e-12, np.eye(2)

    monkeypatch.setattr(minimax, "values_gradients", flat)
    F, J = np.array([1.0, 1.0]), np.eye(2)
    given = None, Simplex(), Identity(), np.zeros(2), F, J, np.array([0.5, 0.5]), -np.ones(2)
    assert minimax._search(*given, 1e-14, 8e-15) == (None, None, None)
    assert len(calls) <= 4  # three corrected steps, one half
    calls.clear()
    assert minimax._search(*given, 1e-3, 8e-15) == (None, None, None)
    assert len(calls) > 30


def test_weights_of_values_that_are_nearly_equal_sum_to_one():
    """The mean is rounded by as much as values differ: taken from differences, exact here, weights are the same."""
    ball, F = KLBall((0.5, 0.5), 1.2170936018963701e-05), np.array([0.6626560871837441, 0.6626560871839374])
    mix, far = ball.tilt(F)[1], ball.tilt((F - F[0]) * 2.0**40)[1]
    assert abs(mix.sum() - 1.0) <= 1e-15
    np.testing.assert_allclose(mix, far, rtol=1e-9)


@pytest.mark.parametrize("spread", [1e-9, 1.0, 1e150])
def test_the_envelope_of_a_ball_bends_in_inverse_proportion_to_its_values(spread):
    """phi(s F) = s phi(F): its Hessian is that at F over s, without overflow, and has F in its kernel."""
    ball, F = KLBall((0.2, 0.3, 0.5), 0.1), np.array([0.0, 1.0, 3.0])
    with np.errstate(all="raise", under="ignore"):
        one, other = envelopes.ball_envelope(ball, F), envelopes.ball_envelope(ball, spread * F)
    np.testing.assert_allclose(spread * other.curvature, one.curvature, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.curvature @ F, 0.0, atol=1e-12)
    step = 1e-5 * np.array([1.0, -2.0, 0.5])
    ahead, behind = (envelopes.ball_envelope(ball, F + way * step).domain_weights for way in (1.0, -1.0))
    np.testing.assert_allclose(one.curvature @ step, 0.5 * (ahead - behind), rtol=1e-4, atol=1e-12)


def of_unequal_scales(seed):
    """A few rows each of domains whose features differ by up to 1e4, with small l2; and a ball of weights."""
    rng = np.random.default_rng(seed)
    p, d, pairs = int(rng.integers(2, 6)), int(rng.integers(1, 5)), []
    for _ in range(p):
        n = int(rng.integers(2, 12))
        X = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-2, 3)
        pairs.append((X, np.where(rng.random(n) < 0.5, 1.0, -1.0)))
    problem = Problem(Federation.from_clients(pairs), (Logistic(), Squared())[seed % 2], 1e-6)
    return problem, KLBall(np.full(p, 1 / p), 10.0 ** rng.uniform(-6, 0.5))


@pytest.mark.parametrize("seed", [194, 205])
def test_steps_too_long_for_a_domain_of_little_weight_take_its_hessian_in(seed):
    """Its value rises by squares of steps along which the Hessian of the weights is flat: steps were 2e-4 of full ones.

    After 200 iterations the gaps were 2e-3 and 2e-4.
    """
    problem, _ = of_unequal_scales(seed)
    best = solve_minimax(problem)
    assert best.gap <= 1e-10 * (1.0 + best.value) and best.iterations < 60


@pytest.mark.parametrize("seed", [1, 32, 67, 82, 109])
def test_balls_are_solved_where_domains_tie(seed):
    """Values that tie have no nu > 0 between them: the largest mean has a kink there, and Newton's method stood still.

    Gaps were 0.02 to 0.17. At ties of logistic losses w = 0 is often the minimum, for weights inside of the ball.
    """
    problem, ball = of_unequal_scales(seed)
    best = solve_minimax(problem, 1e-8, ball)
    assert best.gap <= 1e-8 * (1.0 + best.value)
    assert ball.contains(best.domain_weights, 1e-9)
    assert best.value == pytest.approx(float(ball.support(problem.client_values(best.w))[0]), abs=1e-15)


@pytest.mark.parametrize("F", [[0.5, 0.5, 0.5], [0.0, 0.5, 0.5], [0.0, 0.1, 3.0]])
def test_with_a_least_nu_the_envelope_of_a_ball_has_no_kink(F):
    """It lies at most nu r above the largest mean, and its weights, in the ball, are its derivative."""
    ball, F, least = KLBall((0.2, 0.3, 0.5), 0.1), np.array(F), 0.7
    found = envelopes.ball_envelope(ball, F, least)
    assert 0.0 <= found.value - ball.support(F)[0] <= least * ball.radius + 1e-15
    assert ball.contains(found.domain_weights, 1e-12)
    for step in 1e-6 * np.eye(3):
        ahead, behind = (envelopes.ball_envelope(ball, F + way * step, least) for way in (1.0, -1.0))
        slope = (ahead.value - behind.value) / 2e-6
        assert found.domain_weights @ (step / 1e-6) == pytest.approx(slope, abs=1e-8)
        bend = (ahead.domain_weights - behind.domain_weights) / 2e-6
        np.testing.assert_allclose(found.curvature @ (step / 1e-6), bend, rtol=1e-4, atol=1e-6)


def test_the_envelope_of_values_that_differ_by_rounding_does_not_overflow():
    """F is in the Hessian's kernel: what is subtracted of it was divided by a product that rounding made zero."""
    ball, F = (
        KLBall((1 / 3, 1 / 3, 1 / 3), 0.18483460711025765),
        np.array([0.4980618270806647, 0.4980618270806665, 0.4980618270806655]),
    )
    with np.errstate(all="raise", under="ignore"):
        found = envelopes.ball_envelope(ball, F)
    away = F - F.mean()
    assert abs(found.domain_weights.sum() - 1.0) <= 1e-12
    size = np.abs(found.curvature).max()
    assert np.linalg.eigvalsh(found.curvature)[0] >= -1e-9 * size
    assert np.abs(found.curvature @ away).max() <= 1e-3 * size * np.abs(away).max()


@pytest.mark.parametrize("seed", range(8))
def test_steps_that_rounding_hides_from_the_decrement_still_shorten_the_gradient(seed):
    """Classes of features up to 1e9: what is off along one of these counts in ‖grad F‖^2/(2 l2), and nowhere else."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(45, 5)) * np.array([1e7, 1.0, 1e2, 1e9, 10.0])
    y = rng.integers(0, 3, 45).astype(float)
    problem = Problem(Federation.from_arrays(X, y, np.zeros(45)), Softmax(3), 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a gap above 1e-11
        best = problem.solve()
    assert best.gap < 1e-5
    for off in (3e-21, 3e-20):
        found = polish(problem, best.w.ravel() + off * np.array([-1.0, 0.0, 0.0, 1.0, 0.0] + 10 * [0.0]))
        assert found.gap <= 2.0 * best.gap and found.lower <= best.value and best.lower <= found.value
