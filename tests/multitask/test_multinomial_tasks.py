"""MOCHA for several classes: the multinomial dual, its exact steps and certificates, against other solvers."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import fedconvex.families.multitask.fixed_relation as module
from fedconvex import Federation, Hinge, Logistic, Problem, Softmax, run
from fedconvex.datasets import load_bundled
from fedconvex.entropic import entropic_step, near_step, negative_entropy, softmax_step
from fedconvex.families.multitask.separability import dual_constants, separability
from fedconvex.kernels.row_weights import labels_with_weights, weighted_loss
from fedconvex.methods import MOCHA, Clock, CoCoA, JointMOCHA, MiniBatchSDCA, MiniBatchSGD, NodeWork
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem, Pooled, Precision
from fedconvex.remote import Roster
from fedconvex.theory.bound import AssumptionError

PATH = Precision.laplacian(np.eye(4, k=1) + np.eye(4, k=-1), 0.7, 0.2)
FIXED = [MeanRegularised(1.0, 0.5), PATH, Covariance(0.3, 2.0, np.eye(4) / 4), Independent(0.8), Pooled(0.8)]


def federation(seed=0, C=3, m=4, d=3, sparse=False, rows=(4, 9), weights=False):
    """Tasks with models around common ones."""
    rng = np.random.default_rng(seed)
    common, parts = rng.normal(size=(C, d)), []
    for _ in range(m):
        X = rng.normal(size=(int(rng.integers(*rows)), d)) * (rng.random(d) < 0.8 if sparse else 1.0)
        z = X @ (common + 0.7 * rng.normal(size=(C, d))).T + 0.4 * rng.normal(size=(len(X), C))
        parts.append((sp.csr_array(X) if sparse else X, z.argmax(axis=1).astype(float)))
    fed = Federation.from_clients(parts)
    weight = rng.integers(1, 4, fed.n).astype(float) if weights else None
    return fed if weight is None else Federation(fed.X, fed.y, fed.ptr, sample_weight=weight)


def problem_of(relation=FIXED[0], normalisation="mean", C=3, **kwargs):
    return MultiTaskProblem(federation(C=C, **kwargs), Softmax(C), relation, normalisation)


def inner(problem, seed=0):
    """Dual variables e_y - p, p random distributions."""
    rng, fed, C = np.random.default_rng(seed), problem.federation, problem.model_shape[1]
    return np.eye(C)[fed.y.astype(int)] - rng.dirichlet(np.ones(C), fed.n)


def plain_value(problem, W):
    """sum_t c_t sum_i (log sum_c exp(z_c) - z_y), with R by its formula; W (m, C, d)."""
    fed, total = problem.federation, problem.relation.value(W.reshape(len(W), -1))
    weight = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
    for t, (a, b) in enumerate(itertools.pairwise(fed.ptr)):
        X, y = (fed.X[a:b].toarray() if fed.is_sparse else fed.X[a:b]), fed.y[a:b].astype(int)
        z = X @ W[t].T
        losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(b - a), y]
        total += problem.c[t] * float(weight[a:b] @ losses)
    return total


# ---------------------------------------------------------------- one row


def test_entropic_steps_meet_their_optimality_condition():
    """p = softmax(s - q p) at the solution, over sixteen decades of q and eight of s; p >= 0 sums to one."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        q, s = 10.0 ** rng.uniform(-8, 8), rng.normal(size=int(rng.integers(2, 12))) * 10.0 ** rng.uniform(-3, 5)
        p = s.copy()
        entropic_step(p, q)
        again = s - q * p
        again = np.exp(again - again.max())
        assert abs(p.sum() - 1.0) <= 4e-16 * p.size
        np.testing.assert_allclose(again / again.sum(), p, rtol=0, atol=1e-15 * (10.0 + np.abs(s).max() + q))
    p = np.log([0.2, 0.3, 0.5]) + 4.0
    entropic_step(p, 0.0)
    np.testing.assert_allclose(p, [0.2, 0.3, 0.5], rtol=1e-15)


def test_steps_from_the_last_distribution_are_the_nested_ones():
    """From any distribution, corners among them: equal to rounding, or said not to have converged (0 of 400 here)."""
    rng = np.random.default_rng(3)
    for _ in range(400):
        q, C = 10.0 ** rng.uniform(-3, 5), int(rng.integers(2, 12))
        before = np.eye(C)[0] if rng.random() < 0.2 else rng.dirichlet(np.full(C, 0.3))
        s = 3.0 * rng.normal(size=C) + q * before
        nested, p = s.copy(), before.copy()
        entropic_step(nested, q)
        assert near_step(s, q, p, np.empty(C))
        np.testing.assert_allclose(p / p.sum(), nested, rtol=0, atol=2e-16 * (4.0 + np.abs(s).max()))


def test_far_steps_are_left_to_the_nested_iteration():
    """Probabilities of e^-1000 are hundreds of steps of two away; the dual step is exact all the same."""
    s = np.array([1000.0, 0.0, 0.5])
    assert not near_step(s, 2.0, np.array([0.2, 0.4, 0.4]), np.empty(3))
    alpha, step = np.array([-0.2, 0.6, -0.4]), s.copy()  # label 1: p = (0.2, 0.4, 0.4)
    softmax_step(alpha, step, np.empty(6), 2.0, 1)
    np.testing.assert_allclose(alpha, [-1.0, 1.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(step, [-0.8, 0.4, 0.4], atol=1e-15)


def test_no_other_distribution_is_better():
    """The objective itself, at the solution and at 200 distributions near it and far from it."""
    rng = np.random.default_rng(1)
    for q in (0.0, 0.3, 50.0):
        s = 3.0 * rng.normal(size=4)
        p = s.copy()
        entropic_step(p, q)
        at = [
            negative_entropy(x - np.eye(4)[0], 0) - s @ x + 0.5 * q * x @ x
            for x in (p, *rng.dirichlet(np.ones(4), 100))
        ]
        near = [np.abs(p + 1e-4 * rng.normal(size=4)) for _ in range(100)]
        at += [
            negative_entropy(x / x.sum() - np.eye(4)[0], 0) - s @ x / x.sum() + 0.5 * q * x @ x / x.sum() ** 2
            for x in near
        ]
        assert at[0] <= min(at[1:])


def test_steps_of_two_classes_are_those_of_the_logistic_loss():
    """alpha = (a, -a) for the label 0 moves as a does for +1 at z_0 - z_1, with twice the curvature."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        a, z, q = rng.uniform(0, 1), 3.0 * rng.normal(size=2), 10.0 ** rng.uniform(-3, 3)
        delta = Logistic().dual_step(a, z[0] - z[1], 2.0 * q, 1.0)
        alpha, step = np.array([a, -a]), z.copy()
        Softmax(2).dual_steps(alpha, step, np.empty(4), q, 0.0)
        np.testing.assert_allclose(step, [delta, -delta], rtol=0, atol=1e-12)
        np.testing.assert_allclose(alpha, [a + delta, -a - delta], rtol=0, atol=1e-12)
        for weight in (2.5, 0.0):  # a row of weight s, and one that does not count
            y, both = labels_with_weights(np.zeros(1), np.array([weight]))[0], weighted_loss(Softmax(2))
            alpha, step = weight * np.array([a, -a]), z.copy()
            assert both.conjugate(-alpha, y) == pytest.approx(weight * Softmax(2).conjugate(np.array([-a, a]), 0))
            both.dual_steps(alpha, step, np.empty(4), q, y)
            expected = weight * (a + Logistic().dual_step(a, z[0] - z[1], 2.0 * q * weight, 1.0))
            np.testing.assert_allclose(alpha, [expected, -expected], rtol=0, atol=1e-12)
    off = labels_with_weights(np.zeros(1), np.zeros(1))[0]
    assert weighted_loss(Softmax(2)).conjugate(np.array([0.1, -0.1]), off) == math.inf


# ---------------------------------------------------------------- objectives and certificates


@pytest.mark.parametrize("sparse", [False, True])
def test_values_gradients_and_duals_equal_plain_numpy(sparse):
    for relation, weights in ((FIXED[0], False), (Covariance(0.3, 1.5), True)):
        problem = problem_of(relation, sparse=sparse, weights=weights)
        rng, fed = np.random.default_rng(5), problem.federation
        W = rng.normal(size=problem.model_shape)
        assert problem.model_shape == (4, 3, 3)
        assert problem.value(W) == pytest.approx(plain_value(problem, W), rel=1e-12)
        G, D = problem.gradient(W), rng.normal(size=W.shape)
        slope = (plain_value(problem, W + 1e-6 * D) - plain_value(problem, W - 1e-6 * D)) / 2e-6
        assert float(np.sum(G * D)) == pytest.approx(slope, rel=1e-6)
        s = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
        alpha, X = s[:, None] * inner(problem), fed.X.toarray() if sparse else fed.X
        task = np.repeat(np.arange(4), fed.sizes)
        V = np.array([problem.c[t] * alpha[task == t].T @ X[task == t] for t in range(4)])
        np.testing.assert_allclose(problem.images(alpha), V, rtol=1e-12, atol=1e-14)
        p = np.eye(3)[fed.y.astype(int)] - alpha / s[:, None]
        dual = float(problem.c[task] * s @ np.sum(p * np.log(p), axis=1)) + relation.conjugate(V.reshape(4, -1))
        assert problem.dual_value(alpha) == pytest.approx(dual, rel=1e-12)
        value, gap = problem.certificate(W, V, problem.conjugates(alpha))
        assert (value, gap) == pytest.approx((problem.value(W), problem.value(W) + dual), rel=1e-9)
        alpha[0, 0] += 0.1  # no distribution any more
        assert problem.dual_value(alpha) == math.inf


def by_cvxpy(problem):
    import cvxpy as cp

    (m, C, d), relation, fed, total = problem.model_shape, problem.relation, problem.federation, 0.0
    W = [cp.Variable((C, d)) for _ in range(m)]
    flat = cp.vstack([cp.vec(w, order="C") for w in W])
    for t, (a, b) in enumerate(itertools.pairwise(fed.ptr)):
        z, y = fed.X[a:b] @ W[t].T, fed.y[a:b].astype(int)
        total += problem.c[t] * (cp.sum(cp.log_sum_exp(z, axis=1)) - cp.sum(cp.multiply(np.eye(C)[y], z)))
    same = []
    if isinstance(relation, Pooled):
        total, same = total + 0.5 * relation.l2 * cp.sum_squares(flat), [w == W[0] for w in W[1:]]
    elif relation.learned:
        total += relation.lam * (cp.square(cp.normNuc(flat)) + cp.sum_squares(flat) / relation.sigma2)
    else:
        total += 0.5 * cp.sum_squares(np.linalg.cholesky(relation.qbar(m)).T @ flat)
    program = cp.Problem(cp.Minimize(total), same)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(program.value), np.array([w.value for w in W])


@pytest.mark.slow
@pytest.mark.parametrize("normalisation", ["sum", "mean"])
def test_solutions_equal_cvxpy(normalisation):
    for relation in [*FIXED, Covariance(0.3), Covariance(0.3, 1.5)]:
        problem = problem_of(relation, normalisation)
        found, (value, W) = problem.solve(), by_cvxpy(problem)
        assert found.gap <= 2e-9 * (1.0 + found.value)
        assert found.value == pytest.approx(value, rel=2e-8)
        assert found.lower <= value * (1.0 + 1e-8)
        np.testing.assert_allclose(found.w, W, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [False, True])
def test_dual_ascent_equals_newton(weights, monkeypatch):
    for sparse, relation in itertools.product((False, True), (FIXED[0], FIXED[4])):
        problem = problem_of(relation, sparse=sparse, weights=weights)
        expected = problem.solve()
        monkeypatch.setattr(module, "STACKED", 0)
        other = problem_of(relation, sparse=sparse, weights=weights).solve()
        monkeypatch.undo()
        assert (expected.certificate == "duality gap", other.certificate) == (False, "duality gap")
        assert other.gap <= 2e-11 * (1.0 + other.value)
        assert other.value == pytest.approx(expected.value, rel=1e-10)


def test_rows_of_whole_weights_are_repeated_rows():
    problem = problem_of(normalisation="sum", weights=True)
    fed = problem.federation
    times = fed.sample_weight.astype(int)
    ptr = np.concatenate([[0], np.cumsum(times)])[fed.ptr]
    repeated = Federation(np.repeat(fed.X, times, axis=0), np.repeat(fed.y, times), ptr)
    other = MultiTaskProblem(repeated, problem.loss, problem.relation, "sum")
    scale = fed.sample_weight.sum() / times.sum()  # weights are relative
    other = other.with_relation(MeanRegularised(1.0 / scale, 0.5 / scale))
    assert problem.solve().value / scale == pytest.approx(other.solve().value, rel=1e-10)


def test_two_classes_are_the_logistic_loss_with_half_the_penalty():
    """Of models with w_0 - w_1 = w the least ‖w_0‖^2 + ‖w_1‖^2 is ‖w‖^2/2, at w_0 = -w_1."""
    fed = federation(C=2)
    one = Federation(fed.X, 1.0 - 2.0 * fed.y, fed.ptr)
    both = MultiTaskProblem(fed, Softmax(2), MeanRegularised(1.0, 0.5)).solve()
    half = MultiTaskProblem(one, Logistic(), MeanRegularised(0.5, 0.25)).solve()
    assert both.value == pytest.approx(half.value, rel=1e-11)
    np.testing.assert_allclose(both.w, 0.5 * np.stack([half.w, -half.w], axis=1), atol=1e-6)


def test_tied_hard_is_pooled_and_untied_is_local():
    """MeanRegularised tends to the pooled multinomial model as lam1 grows and is the local ones at lam1 = 0."""
    fed = federation()
    pooled = Problem(fed, Softmax(3), l2=0.6 * 4.0 / 4.0, weights="uniform").solve()  # (m l2/2) ‖w‖^2 over sum_t
    for relation, close in ((Pooled(0.6), 1e-7), (MeanRegularised(1e7, 0.3), 1e-5)):
        found = MultiTaskProblem(fed, Softmax(3), relation, "mean").solve()
        np.testing.assert_allclose(found.w, np.tile(pooled.w, (4, 1, 1)), atol=close)
        assert found.value == pytest.approx(4.0 * pooled.value, rel=1e-6)
    untied = MultiTaskProblem(fed, Softmax(3), MeanRegularised(0.0, 0.3), "mean").solve()
    for t in range(4):
        alone = Problem(fed.subset([t]), Softmax(3), l2=0.6).solve()
        np.testing.assert_allclose(untied.w[t], alone.w, atol=1e-6)


# ---------------------------------------------------------------- methods


def test_mocha_certifies_what_it_has_reached():
    problem, best = problem_of(), problem_of().solve()
    result = run(MOCHA(clock=Clock(0.3), drop=0.2, certify=True), problem, rounds=60, tol=1e-8, progress=False)
    assert result.status.name == "CONVERGED"
    assert result.w.shape == (4, 3, 3)
    assert (result.trace.value - result.trace.gap <= best.value + 1e-12).all()
    assert (result.trace.gap >= result.trace.value - best.value - 1e-12).all()
    assert (np.diff(result.trace.dual) >= -1e-12).all()
    assert result.trace.value[-1] == pytest.approx(problem.value(result.w), rel=1e-14)
    guess = result.predict(problem.federation.X, np.repeat(problem.federation.labels, problem.federation.sizes))
    np.testing.assert_array_equal(guess, problem.predict(result.w))
    wrong = np.add.reduceat(guess != problem.federation.y, problem.federation.ptr[:-1]) / problem.federation.sizes
    np.testing.assert_allclose(problem.metrics(result.w).error, wrong, rtol=1e-14)


def test_one_step_solves_a_task_of_one_row():
    """The step is the exact minimiser of the subproblem, which with one task and one row is the problem."""
    fed = Federation.from_clients([([[2.0, -1.0]], [1.0])])
    problem = MultiTaskProblem(fed, Softmax(3), Independent(0.3))
    result = run(MOCHA(local_steps=1, sigma=1.0), problem, rounds=1, progress=False)
    assert result.gap <= 1e-12 < 0.1 < result.trace.gap[0]


@pytest.mark.slow
def test_every_dual_method_ends_at_the_solution():
    """Fixed and learned relationships; theta bounds what a node leaves, against its subproblem solved to rounding."""
    for sparse, weights in ((False, False), (True, True)):
        problem = problem_of(sparse=sparse, weights=weights)
        for method in (CoCoA(theta=0.1), MOCHA(local_steps=7, replacement=True, participation=2)):
            result = run(method, problem, rounds=3000, tol=1e-8, record_every=5, progress=False)
            assert result.status.name == "CONVERGED"
            assert result.trace.value[-1] == pytest.approx(problem.solve().value, abs=2e-8)
        joint = problem_of(Covariance(0.3), sparse=sparse, weights=weights)
        result = run(
            JointMOCHA(work=NodeWork(epochs=2.0)), joint, rounds=3000, tol=1e-6, record_every=10, progress=False
        )
        assert result.trace.value[-1] == pytest.approx(joint.solve().value, abs=2e-6)
        result = run(MOCHA(), joint, rounds=50, record_every=10, progress=False)
        assert joint.solve().lower <= result.trace.value[-1] <= joint.solve().value + 1.1 * float(result.gap)
    assert run(CoCoA(theta=0.1), problem_of(), rounds=3, progress=False).trace.theta[1:].max() <= 0.1


@pytest.mark.slow
def test_a_node_s_theta_is_no_less_than_what_it_leaves():
    """One node: theta = (D - min D)/(D(0) - min D) in the first round, with min D = -min P."""
    fed = federation(m=1, rows=(30, 31))
    problem = MultiTaskProblem(fed, Softmax(3), Independent(0.1), "mean")
    best, zero = problem.solve().value, float(problem.conjugates(np.zeros(problem.dual_shape)).sum())
    for epochs in (0.2, 1.0, 3.0):
        result = run(MOCHA(epochs=epochs, certify=True), problem, rounds=1, progress=False)
        left = (best - result.trace.dual[-1]) / (best - -zero)
        assert 0.0 < left <= result.trace.theta[-1] + 1e-12 < 1.0


@pytest.mark.slow
@pytest.mark.compiled
def test_digits_are_certified_to_1e_8():
    """600 bundled digits of ten classes at six clients: MOCHA, and Newton's method on stacked features, agree."""
    data, rng = load_bundled("digits"), np.random.default_rng(0)
    pick = rng.permutation(len(data.y))[:600]
    fed = Federation.from_arrays(data.X[pick] / 8.0, data.y[pick], rng.integers(0, 6, 600))
    for relation in (MeanRegularised(0.01, 0.005), Pooled(0.01)):
        problem = MultiTaskProblem(fed, Softmax(10), relation, "mean")
        result = run(MOCHA(epochs=2.0), problem, rounds=1000, tol=1e-8, record_every=10, progress=False)
        assert result.status.name == "CONVERGED"
        assert result.gap <= 1e-8
    flat = Problem(fed, Softmax(10), l2=0.01, weights="uniform").solve()  # by other kernels: the pooled model
    assert result.trace.value[-1] == pytest.approx(6.0 * flat.value, abs=2e-8)
    np.testing.assert_allclose(result.w[3], flat.w, atol=1e-3)


# ---------------------------------------------------------------- refusals


def test_what_is_not_made_for_several_classes_says_so():
    problem = problem_of()
    for method in (MiniBatchSDCA(batch_size=2), MiniBatchSGD(step_size=0.1, batch_size=2)):
        with pytest.raises(ValueError, match=rf"{type(method).__name__}: problem must have one score .* use MOCHA"):
            run(method, problem, rounds=1, progress=False)
    with pytest.raises(ValueError, match=r"Roster.make must return tasks with one score"):
        Roster(lambda fed: MultiTaskProblem(fed, Softmax(3), Independent(1.0)), ["a", "b"], [3, 4], 2)
    for ask in (dual_constants, lambda p: separability(p, np.zeros(p.federation.n))):
        with pytest.raises(AssumptionError, match="one score for each row"):
            ask(problem)
    with pytest.raises(ValueError, match=r"models W must have shape \(4, 3, 3\), or \(R, 4, 3, 3\)"):
        problem.value(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="alpha must have shape"):
        problem.dual_value(np.zeros(problem.federation.n))
    with pytest.raises(ValueError, match=r"-1 or \+1.*Softmax"):
        MultiTaskProblem(problem.federation, Hinge(), Independent(1.0))
