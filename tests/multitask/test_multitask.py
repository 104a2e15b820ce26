"""Multi-task problems: objectives against plain NumPy, conjugates by duality, solutions against cvxpy."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

import fedconvex.families.multitask.fixed_relation as module
from fedconvex import (
    DivergenceWarning,
    Exponential,
    FedAvg,
    Federation,
    GradientDescent,
    Hinge,
    Logistic,
    Problem,
    SmoothedHinge,
    Softmax,
    Squared,
    run,
)
from fedconvex.families.multitask.relations import safe_sigma
from fedconvex.problems import (
    Clustered,
    Covariance,
    Independent,
    MeanRegularised,
    MultiTaskProblem,
    Pooled,
    Precision,
)

LOSSES = [Hinge(), SmoothedHinge(0.5), Squared(), Logistic()]
OMEGA = np.array([[0.4, 0.1, 0.0, -0.1], [0.1, 0.3, 0.05, 0.0], [0.0, 0.05, 0.2, 0.0], [-0.1, 0.0, 0.0, 0.1]])
FIXED = [
    MeanRegularised(1.0, 0.5),
    Clustered(("a", "b", "a", "b"), 2.0, 0.3),
    Precision.laplacian([[0, 1, 0, 0], [1, 0, 2, 0], [0, 2, 0, 1], [0, 0, 1, 0]], 0.7, 0.2),
    Covariance(0.3, 2.0, OMEGA),
    Covariance(0.3, omega=OMEGA),
    Independent(0.8),
    Pooled(0.8),
]

each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
each_fixed = pytest.mark.parametrize("relation", FIXED, ids=lambda r: type(r).__name__)
both_normalisations = pytest.mark.parametrize("normalisation", ["sum", "mean"])


def federation(rng, loss, m=4, d=3, sparse=False, rows=(4, 10)):
    """Tasks with models around a common one."""
    common, pairs = rng.normal(size=d), []
    for _ in range(m):
        X = rng.normal(size=(int(rng.integers(*rows)), d)) * (rng.random(d) < 0.8 if sparse else 1.0)
        z = X @ (common + 0.7 * rng.normal(size=d)) + 0.4 * rng.normal(size=len(X))
        pairs.append((sp.csr_array(X) if sparse else X, z if isinstance(loss, Squared) else np.where(z > 0, 1.0, -1.0)))
    return Federation.from_clients(pairs)


def rows_of(problem, t):
    fed = problem.federation
    rows = slice(fed.ptr[t], fed.ptr[t + 1])
    X = fed.X[rows]
    return (X.toarray() if sp.issparse(X) else X), fed.y[rows]


def plain_losses(loss, z, y):
    if isinstance(loss, Squared):
        return 0.5 * (z - y) ** 2
    if isinstance(loss, Logistic):
        return np.logaddexp(0.0, -y * z)
    m = 1.0 - y * z
    if isinstance(loss, Hinge):
        return np.maximum(m, 0.0)
    g = loss.gamma
    return np.where(m <= 0, 0.0, np.where(m <= g, m**2 / (2 * g), m - g / 2))


def plain_penalty(relation, W):
    """R(W) from the formulas of the papers; W is (m, d), so their W is W'."""
    m = len(W)
    if isinstance(relation, MeanRegularised):
        Omega = np.linalg.matrix_power(np.eye(m) - np.ones((m, m)) / m, 2)
        return relation.lam1 * np.trace(W.T @ Omega @ W) + relation.lam2 * np.sum(W**2)
    if isinstance(relation, Clustered):
        names, total = np.array(relation.clusters), relation.lam2 * np.sum(W**2)
        for c in set(relation.clusters):
            total += relation.lam1 * np.sum((W[names == c] - W[names == c].mean(axis=0)) ** 2)
        return total
    if isinstance(relation, Precision):
        return relation.lam1 * np.trace(W.T @ relation.omega @ W) + relation.lam2 * np.sum(W**2)
    if isinstance(relation, Covariance):
        if relation.omega is None:
            middle = np.linalg.norm(W, "nuc") ** 2
        else:
            middle = np.trace(W.T @ np.linalg.inv(relation.omega) @ W)
        return relation.lam * (np.sum(W**2) / relation.sigma2 + middle)
    return 0.5 * relation.l2 * np.sum(W**2)


def plain_value(problem, W):
    total = plain_penalty(problem.relation, W)
    for t in range(problem.federation.K):
        X, y = rows_of(problem, t)
        weight = 1.0 if problem.normalisation == "sum" else 1.0 / len(y)
        total += weight * plain_losses(problem.loss, X @ W[t], y).sum()
    return total


def by_cvxpy(problem):
    """Minimum and minimiser by an interior point method on the primal."""
    import cvxpy as cp

    relation, m, d = problem.relation, problem.federation.K, problem.federation.d
    W, total, constraints = cp.Variable((m, d)), 0.0, []
    for t in range(m):
        X, y = rows_of(problem, t)
        z, c = X @ W[t], 1.0 if problem.normalisation == "sum" else 1.0 / len(y)
        margin = 1.0 - cp.multiply(y, z)
        if isinstance(problem.loss, Squared):
            total += 0.5 * c * cp.sum_squares(z - y)
        elif isinstance(problem.loss, Logistic):
            total += c * cp.sum(cp.logistic(-cp.multiply(y, z)))
        elif isinstance(problem.loss, Hinge):
            total += c * cp.sum(cp.pos(margin))
        else:  # the smoothed hinge is the infimal convolution of the hinge with q^2/(2 gamma)
            q = cp.Variable(len(y))
            total += c * (cp.sum(cp.pos(margin - q)) + cp.sum_squares(q) / (2.0 * problem.loss.gamma))
    if isinstance(relation, Pooled):
        constraints = [W[t] == W[0] for t in range(1, m)]
        total += 0.5 * relation.l2 * cp.sum_squares(W)
    elif relation.learned:
        total += relation.lam * (cp.square(cp.normNuc(W)) + cp.sum_squares(W) / relation.sigma2)
    else:
        total += 0.5 * cp.sum_squares(np.linalg.cholesky(relation.qbar(m)).T @ W)
    program = cp.Problem(cp.Minimize(total), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return float(program.value), W.value


# ---------------------------------------------------------------- relationships


@each_fixed
def test_relations_are_what_the_papers_say(relation, rng):
    W = rng.normal(size=(4, 3))
    if isinstance(relation, Pooled):
        assert relation.value(W) == math.inf
        W = np.tile(W[0], (4, 1))
    assert relation.value(W) == pytest.approx(plain_penalty(relation, W), rel=1e-12)
    M = relation.mbar(4)
    np.testing.assert_allclose(M, M.T, rtol=0, atol=1e-14)
    if not isinstance(relation, Pooled):
        np.testing.assert_allclose(M @ relation.qbar(4), np.eye(4), atol=1e-12)
        V = relation.gradient(W)
        assert relation.value(W) + relation.conjugate(V) == pytest.approx(np.sum(V * W), rel=1e-12)  # Fenchel-Young
        assert relation.value(W) + relation.conjugate(V + 0.1) > np.sum((V + 0.1) * W)


def test_a_large_weight_loses_no_digits():
    """R of models that are Mbar V with nearly equal rows, at lam1 = 1e12: 2 R = <W, V>."""
    rng = np.random.default_rng(0)
    for relation in (MeanRegularised(1e12, 1.0), Precision(np.eye(4) - 0.25, 1e12, 1.0)):
        V = rng.normal(size=(4, 3))
        W = relation.mbar(4) @ V
        assert 2.0 * relation.value(W) == pytest.approx(np.sum(W * V), rel=1e-7)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.floats(0.01, 10.0))
def test_conjugate_and_prox_of_the_learned_relation(seed, m, d, l2_term, lam):
    """R*(V) = <V, W> - R(W) at some W (attained), and no W gives more; prox by its optimality condition."""
    rng = np.random.default_rng(seed)
    relation = Covariance(lam, float(rng.uniform(0.1, 5.0)) if l2_term else math.inf)
    V = rng.normal(size=(m, d))
    value = relation.conjugate(V)
    U, s, Vt = np.linalg.svd(V, full_matrices=False)
    x = np.where(np.arange(len(s)) == 0, s[0] / (2 * lam), 0.0)
    if l2_term:  # x_i = (s_i - 2 lam T)_+ sigma2/(2 lam), T = sum x_i
        scale = relation.sigma2 / (2 * lam)
        T = brentq(lambda T: T - scale * np.maximum(s - 2 * lam * T, 0.0).sum(), 0.0, scale * s.sum(), xtol=1e-15)
        x = scale * np.maximum(s - 2 * lam * T, 0.0)
    best = (U * x) @ Vt
    assert value == pytest.approx(np.sum(V * best) - relation.value(best), rel=1e-10)
    for _ in range(10):
        W = best + rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-4, 1)
        assert np.sum(V * W) - relation.value(W) <= value + 1e-10 * (1 + abs(value))
    step = float(rng.uniform(0.1, 3.0))
    P = relation.proximal(V, step)
    at = step * relation.value(P) + 0.5 * np.sum((P - V) ** 2)
    for _ in range(10):
        W = P + rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-4, 1)
        assert step * relation.value(W) + 0.5 * np.sum((W - V) ** 2) >= at - 1e-10 * (1 + at)


def test_omega_attains_the_nuclear_norm(rng):
    """min over Omega of tr(W' Omega^-1 W) = ‖W‖_*^2 at Omega = (W W')^{1/2}/trace, and nothing is below."""
    relation, W = Covariance(1.0), rng.normal(size=(3, 6))
    omega = relation.omega_of(W, 0.0)
    assert np.trace(omega) == pytest.approx(1.0, rel=1e-12)
    least = np.linalg.norm(W, "nuc") ** 2
    assert np.trace(W.T @ np.linalg.inv(omega) @ W) == pytest.approx(least, rel=1e-9)
    for _ in range(20):
        A = rng.normal(size=(3, 3))
        other = A @ A.T / np.trace(A @ A.T)
        assert np.trace(W.T @ np.linalg.inv(other) @ W) >= least
    assert np.linalg.eigvalsh(relation.omega_of(W[:, :2], 0.0))[0] >= 0.9e-10  # floored where W has rank 2 of 3
    np.testing.assert_array_equal(relation.omega_of(np.zeros((2, 3)), 0.0), np.eye(2) / 2)
    inverse = np.linalg.inv(2.0 * 0.3 * (np.linalg.inv(omega) + np.eye(3) / 2.0))
    np.testing.assert_allclose(Covariance(0.3, 2.0).mbar_of(W, 0.0), inverse, rtol=1e-9)
    np.testing.assert_allclose(Covariance(0.3, 2.0, omega).mbar(3), inverse, rtol=1e-9)


def test_safe_sigma_rules(rng):
    """Each bounds the next lower; the eigenvalue is attained; the pencil's is that of the data."""
    for _ in range(50):
        m = int(rng.integers(1, 6))
        A = rng.normal(size=(m, m + 1))
        M = A @ A.T
        exact, rows, tasks = (safe_sigma(M, rule) for rule in ("eigenvalue", "rows", "tasks"))
        assert exact <= rows * (1 + 1e-12)
        assert exact <= tasks * (1 + 1e-12)
        a = np.linalg.eigh(M / np.sqrt(np.outer(np.diag(M), np.diag(M))))[1][:, -1] / np.sqrt(np.diag(M))
        assert a @ M @ a == pytest.approx(exact * np.sum(np.diag(M) * a**2), rel=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_pencil_is_the_least_safe_number(rng, sparse):
    """Against the generalised eigenvalue of the full matrices; below the data-free one where row spaces differ."""
    import scipy.linalg as sla

    problem = MultiTaskProblem(federation(rng, Squared(), 3, 8, sparse, (2, 5)), Squared(), MeanRegularised(2.0, 0.3))
    fed, M = problem.federation, problem.mbar
    X = fed.X.toarray() if sparse else fed.X
    task = np.repeat(np.arange(3), fed.sizes)
    G = X @ X.T
    full = G * M[np.ix_(task, task)]
    blocks = np.where(np.equal.outer(task, task), full, 0.0)
    Q = sla.orth(blocks, rcond=1e-10)
    exact = sla.eigh(Q.T @ full @ Q, Q.T @ blocks @ Q, eigvals_only=True)[-1]
    assert problem.pencil_sigma() == pytest.approx(exact, rel=1e-8)
    assert problem.pencil_sigma() < 0.999 * safe_sigma(M)
    wide = MultiTaskProblem(federation(rng, Squared(), 3, 2, False, (6, 9)), Squared(), MeanRegularised(2.0, 0.3))
    assert wide.pencil_sigma() == pytest.approx(safe_sigma(wide.mbar), rel=1e-9)


# ---------------------------------------------------------------- objectives


@each_loss
@both_normalisations
@pytest.mark.parametrize("sparse", [False, True])
def test_value_gradient_and_dual_equal_plain_numpy(loss, normalisation, sparse, rng):
    for relation in [*FIXED[:6], Covariance(0.3), Covariance(0.3, 1.5)]:
        problem = MultiTaskProblem(federation(rng, loss, sparse=sparse), loss, relation, normalisation)
        W = rng.normal(size=(4, 3))
        assert problem.value(W) == pytest.approx(plain_value(problem, W), rel=1e-12)
        both = problem.value(np.stack([W, 2 * W]))
        np.testing.assert_allclose(both, [plain_value(problem, W), plain_value(problem, 2 * W)], rtol=1e-12)
        G, h = problem.gradient(W), 1e-6
        for i in np.ndindex(4, 3):
            E = np.zeros((4, 3))
            E[i] = h
            slope = (plain_value(problem, W + E) - plain_value(problem, W - E)) / (2 * h)
            assert G[i] == pytest.approx(slope, rel=1e-5, abs=1e-6)
        alpha = np.concatenate([rng.uniform(0, 1, n) for n in problem.federation.sizes]) * problem.federation.y
        V = np.array(
            [
                problem.c[t]
                * rows_of(problem, t)[0].T
                @ alpha[problem.federation.ptr[t] : problem.federation.ptr[t + 1]]
                for t in range(4)
            ]
        )
        np.testing.assert_allclose(problem.images(alpha), V, rtol=1e-12, atol=1e-14)
        conj = [problem.loss.conjugate(-a, y) for a, y in zip(alpha, problem.federation.y, strict=True)]
        weights = np.repeat(problem.c, problem.federation.sizes)
        assert problem.dual_value(alpha) == pytest.approx(weights @ conj + relation.conjugate(V), rel=1e-12)
        assert problem.value(W) + problem.dual_value(alpha) >= -1e-12  # weak duality


@each_loss
def test_gap_is_a_sum_over_tasks(loss, rng):
    problem = MultiTaskProblem(federation(rng, loss), loss, MeanRegularised(1.0, 0.5), "mean")
    alpha = rng.uniform(0, 1, problem.federation.n) * problem.federation.y
    W, V = problem.models(alpha), problem.images(alpha)
    parts = problem.client_values(W) + problem.conjugates(alpha) + np.sum(W * V, axis=1)
    assert (parts >= -1e-12).all()
    value, gap = problem.certificate(W, V, problem.conjugates(alpha))
    assert value == pytest.approx(plain_value(problem, W), rel=1e-12)
    assert gap == pytest.approx(parts.sum(), rel=1e-9)


# ---------------------------------------------------------------- solutions


@each_loss
@both_normalisations
@pytest.mark.slow_unless(normalisation="mean")
def test_fixed_solutions_equal_cvxpy(loss, normalisation, rng):
    for relation in FIXED:
        problem = MultiTaskProblem(federation(rng, loss), loss, relation, normalisation)
        best, (value, W) = problem.solve(), by_cvxpy(problem)
        assert best.gap <= 1e-9 * (1 + abs(best.value))
        assert best.value == pytest.approx(value, rel=1e-8)
        assert best.lower <= value + 1e-8 * (1 + abs(value))
        np.testing.assert_allclose(best.w, W, atol=2e-4)
        assert problem.solve() is best


@each_loss
def test_dual_ascent_equals_newton(loss, rng, monkeypatch):
    """Problems too large to be stacked are solved in the dual, to the same certified value."""
    for sparse in (False, True):
        problem = MultiTaskProblem(federation(rng, loss, sparse=sparse), loss, MeanRegularised(1.0, 0.5))
        expected = problem.solve()
        monkeypatch.setattr(module, "STACKED", 0)
        other = MultiTaskProblem(problem.federation, loss, problem.relation).solve()
        monkeypatch.undo()
        assert other.certificate == "duality gap"
        assert other.gap <= 1e-10 * (1 + abs(other.value))
        assert other.value == pytest.approx(expected.value, rel=1e-10)


@each_loss
@pytest.mark.parametrize(("m", "d"), [(5, 3), (3, 6)])
@pytest.mark.slow_unless(m=5)
def test_joint_solutions_equal_cvxpy(loss, m, d, rng):
    """Over W and Omega together, for fewer and more features than tasks: the nuclear norm squared."""
    for relation in (Covariance(0.3), Covariance(2.0), Covariance(0.3, 2.0)):
        problem = MultiTaskProblem(federation(rng, loss, m, d), loss, relation, "sum")
        best, (value, W) = problem.solve(), by_cvxpy(problem)
        assert best.gap <= 2e-9 * (1 + abs(best.value))
        assert best.value == pytest.approx(value, rel=1e-6)
        assert best.lower <= value + 1e-6 * (1 + abs(value))
        assert best.value >= best.lower
        np.testing.assert_allclose(best.w, W, atol=5e-3 * (1 + np.abs(W).max()))


@pytest.mark.slow
def test_rows_that_do_not_move_sit_out_of_most_passes_of_a_joint_solution():
    """140 passes where all rows in every round took 200; to the same minimum, and never more than are allowed."""
    rng = np.random.default_rng(1)
    X, W = rng.normal(size=(180, 3)), rng.normal(size=(1, 3)) + 0.3 * rng.normal(size=(3, 3))
    z = np.einsum("ij,ij->i", X, np.repeat(W, 60, axis=0)) + 0.5 * rng.normal(size=180)
    for rows in (X, sp.csr_array(X)):
        fed = Federation(rows, np.where(z > 0.0, 1.0, -1.0), np.arange(4) * 60)
        problem = MultiTaskProblem(fed, Hinge(), Covariance(0.05), "mean")
        found = problem.solve(1e-4, passes=1000)
        assert found.gap <= 1e-4 * (1.0 + found.value)
        assert found.lower <= 1.4524306692 and found.value >= 1.4524306691  # passes over all rows, to a gap of 1e-10
        assert found.iterations <= 160
    assert problem.solve(1e-9, passes=35).iterations <= 35


@pytest.mark.slow
def test_limits_are_the_global_and_the_local_models(rng):
    """As lam1 grows the solution becomes the pooled one, as it vanishes that of independent tasks."""
    for loss in LOSSES:
        fed = federation(rng, loss)
        local = [Problem(fed.subset([t]), loss, 0.6 / fed.sizes[t]).solve().w for t in range(4)]
        alone = MultiTaskProblem(fed, loss, Independent(0.6)).solve().w
        np.testing.assert_allclose(alone, local, atol=1e-5)
        np.testing.assert_allclose(MultiTaskProblem(fed, loss, MeanRegularised(0.0, 0.3)).solve().w, alone, atol=1e-5)
        pooled = Problem(fed, loss, 4 * 0.6 / fed.n).solve().w  # (4 l2/2) ‖w‖^2 and losses summed over n rows
        one = MultiTaskProblem(fed, loss, Pooled(0.6)).solve().w
        np.testing.assert_allclose(one, np.tile(pooled, (4, 1)), atol=1e-5)
        near = MultiTaskProblem(fed, loss, MeanRegularised(1e7, 0.3)).solve().w
        np.testing.assert_allclose(near, one, atol=1e-5)


def test_normalisations_are_each_others_rescaling(rng):
    """With equal tasks, averaging losses is dividing the objective by n_t."""
    X, y = rng.normal(size=(4, 6, 3)), rng.normal(size=(4, 6))
    fed = Federation.from_clients(list(zip(X, y, strict=True)))
    a = MultiTaskProblem(fed, Squared(), MeanRegularised(6.0, 3.0), "sum").solve()
    b = MultiTaskProblem(fed, Squared(), MeanRegularised(1.0, 0.5), "mean").solve()
    np.testing.assert_allclose(a.w, b.w, atol=1e-10)
    assert a.value == pytest.approx(6 * b.value, rel=1e-12)


def test_measure_certifies_any_models(rng):
    for loss in LOSSES:
        problem = MultiTaskProblem(federation(rng, loss), loss, MeanRegularised(1.0, 0.5))
        best = problem.solve()
        for scale in (0.0, 1e-6, 1.0):
            W = best.w + scale * rng.normal(size=best.w.shape)
            value, gap = problem.measure(W[None])
            assert gap[0] >= value[0] - best.lower - 1e-9 * (1 + abs(best.value)) - best.gap
        if not isinstance(loss, Hinge):
            assert problem.measure(best.w[None]).gap[0] <= 1e-7


def test_gradient_descent_runs_on_it(rng):
    problem = MultiTaskProblem(federation(rng, Logistic()), Logistic(), MeanRegularised(1.0, 0.5), "mean")
    result = run(GradientDescent(step_size=0.2), problem, rounds=3000, tol=1e-9)
    assert result.status.name == "CONVERGED"
    np.testing.assert_allclose(result.w, problem.solve().w, atol=1e-4)


# ---------------------------------------------------------------- prediction


def test_predictions_and_metrics(rng):
    fed = Federation.from_clients([(np.eye(2), [1.0, -1.0]), ([[1.0, 0.0]], [1.0])], labels=["ann", "bob"])
    problem = MultiTaskProblem(fed, Hinge(), Independent(1.0))
    W = np.array([[2.0, 1.0], [-3.0, 0.0]])
    np.testing.assert_array_equal(problem.scores(W), [2.0, 1.0, -3.0])
    np.testing.assert_array_equal(problem.predict(W), [1.0, 1.0, -1.0])
    X = np.array([[1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(problem.scores(W, X, ["bob", "ann"]), [-3.0, 3.0])
    np.testing.assert_array_equal(problem.scores(W, sp.csr_array(X), "ann"), [3.0, 3.0])
    found = problem.metrics(W)
    np.testing.assert_allclose(found.error, [0.5, 1.0])
    np.testing.assert_allclose(found.loss, [1.0, 4.0])
    assert found.mean_error == 0.75
    other = problem.metrics(W, Federation.from_clients([([[1.0, 0.0]], [-1.0])], labels=["bob"]))
    np.testing.assert_array_equal(other.rows, [0, 1])
    assert np.isnan(other.error[0])
    assert other.mean_error == 0.0
    squared = MultiTaskProblem(fed, Squared(), Independent(1.0))
    np.testing.assert_allclose(squared.metrics(W).error, [(1.0 + 4.0) / 2, 16.0])
    with pytest.raises(ValueError, match="cat"):
        problem.scores(W, X, "cat")
    with pytest.raises(ValueError, match="tasks"):
        problem.scores(W, X)
    assert problem.with_relation(Pooled(1.0)).relation == Pooled(1.0)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: MultiTaskProblem(f, Softmax(2), Independent(1.0)), "dual_step|labels"),
        (lambda f: MultiTaskProblem(f, Hinge(), "mean"), "relationship"),
        (lambda f: MultiTaskProblem(f, Hinge(), Independent(1.0), "average"), "normalisation"),
        (lambda f: MultiTaskProblem(f, Hinge(), Covariance(1.0, omega=np.eye(3) / 3)), "2 tasks"),
        (lambda f: MultiTaskProblem(f, Hinge(), Clustered((0, 1, 1), 1.0, 1.0)), "2 tasks"),
        (lambda f: Independent(0.0), "positive"),
        (lambda f: Precision(np.ones((2, 2)), 1.0, 0.0), "positive definite"),
        (lambda f: Precision(-np.eye(2), 1.0, 1.0), "semidefinite"),
        (lambda f: Precision([[1.0, 0.5], [0.0, 1.0]], 1.0, 1.0), "symmetric"),
        (lambda f: Covariance(1.0, omega=np.eye(2)), "trace"),
        (lambda f: Covariance(1.0, omega=np.diag([1.0, 0.0])), "definite"),
        (lambda f: Covariance(-1.0), "positive"),
        (lambda f: Pooled(1.0).qbar(2), "infinite"),
        (lambda f: MultiTaskProblem(f, Hinge(), Independent(1.0)).value(np.zeros(3)), "shape"),
    ],
)
def test_bad_input(make, words):
    fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [-1.0])])
    with pytest.raises((ValueError, TypeError), match=words):
        make(fed)


def test_methods_for_one_model_are_refused(rng):
    """They would read beyond the rows: all ways into their kernels are closed."""
    problem = MultiTaskProblem(federation(rng, Logistic()), Logistic(), Independent(1.0))
    for method in (FedAvg(step_size=0.1), FedAvg(step_size=0.1, local_steps=2, batch_size=2)):
        with pytest.raises(TypeError, match="model per task"), warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            run(method, problem, rounds=2)
    for name in ("size", "pooled", "by_domain", "lower_bound", "row_weights", "constants", "solve_minimax", "client"):
        assert not hasattr(problem, name)
        with pytest.raises(AttributeError, match="model per task"):
            getattr(problem, name)


@pytest.mark.slow
def test_exponential_loss_has_a_dual_too(rng):
    problem = MultiTaskProblem(federation(rng, Exponential()), Exponential(), MeanRegularised(1.0, 0.5), "mean")
    W, gaps = np.zeros((4, 3)), []
    for _ in range(300):
        gaps.append(problem.measure(W[None]).gap[0])
        W = W - 0.05 * problem.gradient(W)
    assert min(gaps) < 1e-4 < gaps[0]
