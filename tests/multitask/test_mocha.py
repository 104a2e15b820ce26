"""MOCHA and its baselines: plain NumPy, certificates, stragglers and drops, sigma', learned relationships, contract."""

from __future__ import annotations

import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import fedconvex.methods
from fedconvex import (
    DivergenceWarning,
    Exponential,
    Federation,
    Hinge,
    Logistic,
    Problem,
    SmoothedHinge,
    Squared,
    iterate,
    run,
)
from fedconvex.draws import BATCHES, Draws, below, key_from_seed, stream, uniform
from fedconvex.driver import participants
from fedconvex.families.multitask.dual_nodes import NODE_CLOCKS, REFRESH, accuracy
from fedconvex.families.multitask.relations import safe_sigma
from fedconvex.methods import MOCHA, Clock, CoCoA, Decay, JointMOCHA, MiniBatchSDCA, MiniBatchSGD
from fedconvex.problems import (
    Clustered,
    Covariance,
    Independent,
    MeanRegularised,
    MultiTaskProblem,
    Pooled,
    Precision,
)
from tests.docs_scripts import docs_script

LOSSES = [Hinge(), SmoothedHinge(0.5), Squared(), Logistic()]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def federation(rng, loss, m=4, d=3, sparse=False, rows=(4, 10), labels=None):
    """Tasks with models around a common one."""
    common, pairs = rng.normal(size=d), []
    for _ in range(m):
        X = rng.normal(size=(int(rng.integers(*rows)), d)) * (rng.random((1, d)) < 0.8 if sparse else 1.0)
        z = X @ (common + 0.7 * rng.normal(size=d)) + 0.4 * rng.normal(size=len(X))
        pairs.append((sp.csr_array(X) if sparse else X, z if isinstance(loss, Squared) else np.where(z > 0, 1.0, -1.0)))
    return Federation.from_clients(pairs, labels)


def random_problem(rng, loss=None):
    """A problem of any kind with a fixed relationship, and often nearly singular or strongly tied."""
    loss = LOSSES[rng.integers(4)] if loss is None else loss
    m, d = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    A = rng.normal(size=(m, m))
    relations = [
        MeanRegularised(10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(-1, 1)),
        Clustered(rng.integers(0, 2, m), 10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(-1, 1)),
        Precision(A @ A.T, 1.0, 0.1),
        Covariance(10.0 ** rng.uniform(-1, 1), 2.0, (A @ A.T + np.eye(m)) / np.trace(A @ A.T + np.eye(m))),
        Independent(10.0 ** rng.uniform(-1, 1)),
        Pooled(10.0 ** rng.uniform(-1, 1)),
    ]
    relation = relations[rng.integers(6)]
    fed = federation(rng, loss, m, d, bool(rng.integers(2)), (1, 9))
    return MultiTaskProblem(fed, loss, relation, ["sum", "mean"][rng.integers(2)])


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **kwargs)


def rows_of(problem, t):
    fed = problem.federation
    rows = slice(fed.ptr[t], fed.ptr[t + 1])
    X = fed.X[rows]
    return (X.toarray() if sp.issparse(X) else X), fed.y[rows]


def played(method, problem, rounds, seed=0):
    """Play the protocol; (state, alpha (n,)) after every round."""
    key, memory = key_from_seed(seed), method.memory(problem, 1)
    state = method.init(problem, np.zeros((1, *problem.model_shape)))
    for t in range(rounds):
        draws = Draws(key, np.arange(1), t)
        clients, weights = participants(method, problem, draws)
        reply, memory = method.local(problem, method.broadcast(state), clients, memory, draws)
        state = method.aggregate(state, clients, weights, reply)
        yield state, memory.alpha[0]


# ---------------------------------------------------------------- plain NumPy


def plain_step(loss, a, z, q, y):
    """argmin over delta of l*(-(a + delta)) + z delta + q delta^2/2."""
    if isinstance(loss, Squared):
        return (y - a - z) / (1.0 + q)
    if isinstance(loss, Hinge):
        return y * (np.clip(y * a + (1.0 - y * z) / q, 0.0, 1.0) - y * a)
    if isinstance(loss, SmoothedHinge):
        return y * (np.clip((y * a * q + 1.0 - y * z) / (q + loss.gamma), 0.0, 1.0) - y * a)
    u = y * a  # derivative of u log u + (1-u) log(1-u) - y z u + ..., increasing in u
    f = lambda v: np.log(v) - np.log1p(-v) + y * z + q * (v - u)  # noqa: E731
    return y * (scipy.optimize.brentq(f, 1e-300, 1.0 - 1e-16, xtol=1e-300, rtol=8.9e-16, maxiter=500) - u)


def plain_mocha(problem, method, sigma, rounds, seed=0):
    """Smith et al. (2017), Algorithm 1, with dense matrices and the documented draws; W after every round."""
    fed, key, M = problem.federation, key_from_seed(seed), problem.mbar
    alpha, out = [np.zeros(n) for n in fed.sizes], []
    for t in range(rounds):
        V = np.array([problem.c[k] * rows_of(problem, k)[0].T @ alpha[k] for k in range(fed.K)])
        W = M @ V
        for k in range(fed.K):
            X, y = rows_of(problem, k)
            n, full = len(y), max(1, round(method.epochs * len(y)))
            if method.clock is not None or method.drop:
                clock = np.uint64(stream(key, 0, t, fed.ids[k], NODE_CLOCKS))
                if uniform(clock, 0) < method.drop:
                    continue
                low, high = method.clock or (1.0, 1.0)
                full = max(1, int((low + (high - low) * uniform(clock, 1)) * full + 0.5))
            state, pool = np.uint64(stream(key, 0, t, fed.ids[k], BATCHES)), list(range(n))
            before = X.T @ alpha[k]
            for e in range(full):
                b = e % n
                i = b + below(state, e, n - b)
                pool[b], pool[i] = pool[i], pool[b]
                i = below(state, e, n) if method.replacement else pool[b]
                u = W[k] + sigma * M[k, k] * problem.c[k] * (X.T @ alpha[k] - before)
                q = sigma * M[k, k] * problem.c[k] * (X[i] @ X[i])
                alpha[k][i] += plain_step(problem.loss, alpha[k][i], X[i] @ u, q, y[i])
        out.append(M @ np.array([problem.c[k] * rows_of(problem, k)[0].T @ alpha[k] for k in range(fed.K)]))
    return out, np.concatenate(alpha)


@each_loss
@pytest.mark.parametrize(
    "method",
    [
        MOCHA(sigma="rows"),
        MOCHA(sigma="rows", epochs=2.5),
        MOCHA(sigma="rows", clock=Clock(0.1), drop=0.3),
        MOCHA(sigma="rows", epochs=0.5, replacement=True),
    ],
    ids=["epoch", "epochs", "clock", "replacement"],
)
def test_equals_plain_numpy(loss, method, rng):
    sparse = method.clock is not None
    problem = MultiTaskProblem(federation(rng, loss, sparse=sparse), loss, MeanRegularised(1.0, 0.4), "mean")
    M = problem.mbar
    sigma = max(sum(abs(M[t, s]) for s in range(4)) / M[t, t] for t in range(4))
    expected, alpha = plain_mocha(problem, method, sigma, 4)
    states = list(played(method, problem, 4))
    for (state, _), W in zip(states, expected, strict=True):
        np.testing.assert_allclose(state.w[0], W, rtol=0, atol=1e-10)
    np.testing.assert_allclose(states[-1][1], alpha, rtol=0, atol=1e-9)
    assert states[-1][0].sigma[0] == pytest.approx(sigma, rel=1e-12)


@pytest.mark.slow
def test_state_is_that_of_the_dual_variables(rng):
    """v_t = c_t X_t'alpha_t, W = Mbar V and the sums of conjugates, exactly recomputed, through many rounds."""
    for loss in LOSSES:
        problem = random_problem(rng, loss)
        for t, (state, alpha) in enumerate(played(MOCHA(drop=0.2), problem, 140)):
            V = problem.images(alpha)
            size = 1.0 + np.abs(V).max()
            np.testing.assert_allclose(state.v[0], V, rtol=0, atol=1e-13 * size * (1 + t))
            np.testing.assert_allclose(state.w[0], problem.mbar @ state.v[0], rtol=1e-13, atol=1e-15)
            np.testing.assert_allclose(state.conjugate[0], problem.conjugates(alpha), rtol=1e-12, atol=1e-13)
            if t % REFRESH == REFRESH - 1:
                np.testing.assert_allclose(state.v[0], V, rtol=0, atol=1e-15 * size)


# ---------------------------------------------------------------- bar 1: convergence and certificates


@each_loss
@pytest.mark.parametrize("normalisation", ["sum", "mean"])
@pytest.mark.slow_unless(normalisation="mean")
def test_gap_falls_below_1e9_and_the_primal_is_right(loss, normalisation, rng):
    for relation in (MeanRegularised(1.0, 0.5), Covariance(0.3, 2.0, np.diag([0.1, 0.2, 0.3, 0.4]))):
        for sparse in (False, True):
            problem = MultiTaskProblem(federation(rng, loss, sparse=sparse), loss, relation, normalisation)
            best = problem.solve()
            result = run(MOCHA(epochs=3.0), problem, rounds=5000, tol=1e-9 * best.value)
            assert result.status.name == "CONVERGED"
            assert result.gap <= 1e-9 * best.value
            assert result.trace.value[-1] == pytest.approx(best.value, rel=1e-8)
            assert result.trace.dual[-1] == pytest.approx(best.value, rel=1e-8)


@pytest.mark.slow
def test_one_task_is_liblinear(rng):
    """Hinge and logistic loss summed, (l2/2) ‖w‖^2: LIBLINEAR's problem with C = 1/l2."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    X = rng.normal(size=(80, 5))
    y = np.where(X @ rng.normal(size=5) + rng.normal(size=80) > 0, 1.0, -1.0)
    fed = Federation(X, y, [0, 80])
    for l2 in (0.3, 5.0):
        for loss in (Hinge(), Logistic()):
            problem = MultiTaskProblem(fed, loss, Independent(l2))
            found = run(MOCHA(epochs=10.0), problem, rounds=20000, tol=1e-11 * 80, record_every=20)
            how = {"C": 1.0 / l2, "tol": 1e-12, "fit_intercept": False, "max_iter": 1_000_000}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if isinstance(loss, Hinge):
                    w = LinearSVC(loss="hinge", dual=True, random_state=0, **how).fit(X, y).coef_
                else:
                    w = LogisticRegression(solver="newton-cholesky", **how).fit(X, y).coef_
            assert found.trace.value[-1] == pytest.approx(problem.value(w), rel=1e-8)
            np.testing.assert_allclose(found.w, w, atol=2e-5)


@pytest.mark.slow
def test_limits_reproduce_local_and_global_models(rng):
    for loss in LOSSES:
        fed = federation(rng, loss)
        pooled = run(MOCHA(epochs=5.0), MultiTaskProblem(fed, loss, Pooled(0.6)), rounds=5000, tol=1e-9)
        np.testing.assert_allclose(pooled.w, np.tile(Problem(fed, loss, 4 * 0.6 / fed.n).solve().w, (4, 1)), atol=1e-4)
        local = run(MOCHA(epochs=5.0), MultiTaskProblem(fed, loss, Independent(0.6)), rounds=5000, tol=1e-9)
        for t in range(4):
            alone = Problem(fed.subset([t]), loss, 0.6 / fed.sizes[t]).solve().w
            np.testing.assert_allclose(local.w[t], alone, atol=1e-4)


# ---------------------------------------------------------------- bars 2 and 3: drops, stragglers, sigma'


def random_method(rng):
    methods = [
        MOCHA(epochs=float(rng.uniform(0.1, 3.0)), clock=Clock(0.1), drop=float(rng.uniform(0.0, 0.9))),
        MOCHA(local_steps=int(rng.integers(1, 10)), drop=0.5, sigma="rows"),
        MOCHA(theta=float(rng.uniform(0.05, 0.9)), drop=0.3),
        MOCHA(participation=0.5, replacement=True, sigma="tasks"),
        CoCoA(theta=float(rng.uniform(0.05, 0.9))),
        MiniBatchSDCA(batch_size=int(rng.integers(1, 6))),
    ]
    return methods[rng.integers(6)]


def gap_trial(rng, rounds=25):
    """A random problem: gap >= primal and dual suboptimality in every round, and the dual never decreases."""
    problem, method = random_problem(rng), random_method(rng)
    best = problem.solve()
    size = 1.0 + abs(best.value)
    trace = quiet(method, problem, rounds=rounds, tol=0, seed=int(rng.integers(1000))).trace
    assert (trace.gap >= trace.value - best.value - 1e-12 * size).all(), (problem, method)
    assert (trace.gap >= best.lower - trace.dual - 1e-12 * size).all(), (problem, method)
    assert (trace.dual <= best.value + 1e-12 * size).all()
    if not isinstance(method, MiniBatchSDCA):  # whose promise is one in expectation
        assert (np.diff(trace.dual) >= -1e-12 * size).all(), (problem, method)
    return {"method": type(method).__name__, "loss": type(problem.loss).__name__}


def test_the_gap_never_underreports(rng):
    for _ in range(12):
        gap_trial(rng, rounds=12)


@pytest.mark.slow
def test_drops_up_to_90_percent_still_converge(rng):
    problem = MultiTaskProblem(federation(rng, Hinge()), Hinge(), MeanRegularised(1.0, 1.0))
    for drop in (0.9, (0.9, 0.0, 0.5, 0.9)):
        result = run(MOCHA(drop=drop, epochs=2.0), problem, rounds=5000, tol=1e-7)
        assert result.status.name == "CONVERGED"
    never = result.trace.steps[-1] / result.rounds / 2.0
    sizes = problem.federation.sizes
    assert never == pytest.approx(sizes @ [0.1, 1.0, 0.5, 0.1], rel=0.3)  # drops have their frequencies


@pytest.mark.compiled
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
@pytest.mark.slow
def test_a_node_that_is_always_dropped_is_named(loss, rng):
    """The others solve their part to a certified end; what is left of the gap is that node's."""
    for missing in range(4):
        problem = MultiTaskProblem(federation(rng, loss), loss, MeanRegularised(1.0, 1.0))
        drop = tuple(float(t == missing) for t in range(4))
        result = run(MOCHA(drop=drop, epochs=3.0), problem, rounds=1000, tol=0, record_every=100)
        assert result.gap > 1e-2
        assert result.trace.blocking[-1] == missing
        assert result.trace.share[-1] > 1.0 - 1e-6
        others = [t for t in range(4) if t != missing]
        state, W = result.state, result.w
        parts = problem.client_values(W) + state.conjugate[0] + np.sum(W * state.v[0], axis=1)
        assert parts[others].max() <= 1e-9
        assert parts.sum() == pytest.approx(result.gap, rel=1e-9)
        # the models of the others minimise P with the missing task's dual variables at zero
        fed = problem.federation
        relation = Precision(np.linalg.inv(problem.mbar[np.ix_(others, others)]), 0.5, 0.0)
        rest = MultiTaskProblem(fed.subset(others), loss, relation).solve().w
        np.testing.assert_allclose(W[others], rest, atol=1e-4)


@pytest.mark.slow
def test_unsafe_sigma_diverges_or_is_caught(rng):
    """Four identical tasks tied hard need sigma' near 4: with 1 the steps add up to more than the optimum.

    Squared loss diverges, and the driver says so; the hinge, whose dual variables are bounded, never gets a small gap,
    and its dual objective decreases.
    """
    X = np.array([[1.0, 0.5]] * 3)
    for loss, y in ((Squared(), [2.0, 3.0, 4.0]), (Hinge(), [1.0, 1.0, 1.0])):
        fed = Federation.from_clients([(X, y)] * 4)
        problem = MultiTaskProblem(fed, loss, Pooled(0.02))
        assert safe_sigma(problem.mbar) == pytest.approx(4.0)
        assert run(MOCHA(epochs=20.0), problem, rounds=4000, tol=1e-5).status.name == "CONVERGED"
        unsafe = MOCHA(epochs=20.0, sigma=1.0)
        if isinstance(loss, Squared):
            with pytest.warns(DivergenceWarning):
                assert run(unsafe, problem, rounds=4000, tol=1e-8).status.name == "DIVERGED"
        else:
            result = run(unsafe, problem, rounds=100, tol=1e-8)
            assert result.status.name == "ROUND_LIMIT"
            assert result.trace.gap[1:].min() > 1e-3
            assert np.diff(result.trace.dual).min() < -1e-3


def test_the_picture_of_the_subproblem_is_right(rng):
    """D never lies above the drawn bound with a safe sigma', touches it at alpha, and does with sigma' = 1."""
    drawn = docs_script("mocha_figure")
    problem, alpha = drawn.one_row_each(6), rng.normal(size=6)
    safe, steps = problem.pencil_sigma(), rng.normal(size=(200, 6))
    dual = np.array([problem.dual_value(alpha + d) for d in steps])
    for sigma, fine in ((safe, True), (0.999 * safe, False), (1.0, False)):
        own = np.array([drawn.bound(problem, alpha, d, sigma) for d in (*steps, np.ones(6))])
        least = min((own[:-1] - dual).min(), own[-1] - problem.dual_value(alpha + 1.0))
        assert (least >= -1e-12) == fine, (sigma, least)
    assert drawn.bound(problem, alpha, np.zeros(6), safe) == pytest.approx(problem.dual_value(alpha), abs=1e-12)
    curved, ellipses = lambda a: 1.0 + 3.0 * a[0] ** 2 + a[0] * a[1] + 0.5 * a[1] ** 2 - a[0], []
    drawn.levels_of(SimpleNamespace(add_patch=ellipses.append), curved, np.array([0.5, 1.0, 2.5]))
    for level, e in zip((1.0, 2.5), ellipses, strict=True):  # the least value is 0.9
        on = e.get_patch_transform().transform(e.get_path().vertices[:-1:3])
        assert np.apply_along_axis(curved, 1, on) == pytest.approx(np.full(len(on), level), abs=1e-9)
    delta = drawn.node_steps(problem, alpha, safe)  # a minimum: every other step is higher
    near = [drawn.bound(problem, alpha, delta + 1e-3 * d, safe) for d in steps]
    assert min(near) > drawn.bound(problem, alpha, delta, safe)


def test_default_sigma_is_the_least_safe_one(rng):
    """The pencil where rows are fewer than features, else the eigenvalue; less than the paper's row sums."""
    small = MultiTaskProblem(federation(rng, Hinge(), 4, 12, rows=(2, 5)), Hinge(), MeanRegularised(3.0, 0.5))
    state = MOCHA().init(small, np.zeros((1, 4, 12)))
    assert state.sigma[0] == pytest.approx(small.pencil_sigma(), rel=1e-12)
    assert state.sigma[0] < MOCHA(sigma="eigenvalue").init(small, np.zeros((1, 4, 12))).sigma[0]
    problem = MultiTaskProblem(
        federation(rng, Hinge()), Hinge(), Precision(np.diag([1.0, 2.0, 3.0, 4.0]) + 1, 1.0, 0.1)
    )
    found = [MOCHA(sigma=rule).init(problem, np.zeros((1, 4, 3))).sigma[0] for rule in (None, "rows", "tasks", 7.5)]
    assert found == pytest.approx([safe_sigma(problem.mbar), safe_sigma(problem.mbar, "rows"), 4.0, 7.5])
    assert found[0] < found[1] < found[2]


# ---------------------------------------------------------------- local accuracy


def local_minimum(problem, t, w, rho, alpha):
    """min G_t - G_t(0) by many passes of coordinate steps in plain NumPy (smooth losses)."""
    X, y = rows_of(problem, t)
    c, a, before = problem.c[t], alpha.copy(), X.T @ alpha
    for _ in range(400):
        for i in range(len(y)):
            u = w + rho * c * (X.T @ a - before)
            a[i] += plain_step(problem.loss, a[i], X[i] @ u, rho * c * (X[i] @ X[i]), y[i])
    return subproblem(problem, t, w, rho, alpha, a)


def subproblem(problem, t, w, rho, alpha, a):
    """G_t(a - alpha) - G_t(0)."""
    X, y = rows_of(problem, t)
    c, dv = problem.c[t], problem.c[t] * X.T @ (a - alpha)
    conj = sum(
        problem.loss.conjugate(-p, v) - problem.loss.conjugate(-q, v) for p, q, v in zip(a, alpha, y, strict=True)
    )
    return c * conj + w @ dv + 0.5 * rho * dv @ dv


@pytest.mark.parametrize("loss", [Squared(), SmoothedHinge(0.5)], ids=repr)
@pytest.mark.slow_unless(loss=Squared())
def test_theta_is_bounded_by_what_is_reported(loss, rng):
    """The true theta_t, from an exact solution of the subproblem, is at most the certified one, which is on target."""
    problem = MultiTaskProblem(federation(rng, loss, 3, 2), loss, MeanRegularised(1.0, 0.4))
    for method in (MOCHA(certify=True), MOCHA(theta=0.2), CoCoA(theta=0.05)):
        before = np.zeros(problem.federation.n)
        state0 = method.init(problem, np.zeros((1, *problem.model_shape)))
        for state, alpha in played(method, problem, 3):
            for t in range(3):
                rows = slice(problem.federation.ptr[t], problem.federation.ptr[t + 1])
                w, rho = state0.w[0, t], state0.sigma[0] * problem.mbar[t, t]
                least = local_minimum(problem, t, w, rho, before[rows])
                theta = 1.0 - subproblem(problem, t, w, rho, before[rows], alpha[rows]) / least
                assert -1e-9 <= theta <= state.theta[0, t] + 1e-9
                assert state.theta[0, t] <= (method.theta or 1.0)
            before, state0 = alpha.copy(), state


@pytest.mark.parametrize("loss", [*LOSSES, Exponential()], ids=repr)
@pytest.mark.slow
def test_a_solved_subproblem_has_accuracy_zero(loss, rng):
    """Where nothing is left but rounding theta_t is 0, not the 1 of a node that did nothing, and CoCoA does not go on.

    Independent tasks are solved after one round of many passes, and start every other round at their solution: the
    ratio of what is left to what there was is 0/0. Rounding alone makes it anything, 1 too, in the formula as it is.
    """
    problem = MultiTaskProblem(federation(rng, loss, 4, 2), loss, Independent(3.0), "mean")
    states = [(state, alpha.copy()) for state, alpha in played(MOCHA(certify=True, epochs=200.0), problem, 12)]
    thetas = np.array([state.theta[0] for state, _ in states])
    np.testing.assert_array_equal(thetas[1:], 0.0)
    dropped = run(MOCHA(certify=True, epochs=200.0, drop=(0.0, 1.0, 0.0, 0.0)), problem, rounds=5, tol=0).state.theta
    np.testing.assert_array_equal(dropped, [[0.0, 1.0, 0.0, 0.0]])
    steps = np.diff(run(CoCoA(theta=1e-3), problem, rounds=60, tol=0).trace.steps)
    np.testing.assert_array_equal(steps[40:], problem.federation.n)  # one pass, which shows that there is nothing to do
    plain = []  # the ratio without regard to rounding
    for (before, a), (_, b) in itertools.pairwise(states[1:]):
        for t in range(4):
            X, y = rows_of(problem, t)
            rows = slice(problem.federation.ptr[t], problem.federation.ptr[t + 1])
            rho, w = before.sigma[0] * problem.mbar[t, t], before.w[0, t]
            less = -subproblem(problem, t, w, rho, a[rows], b[rows])
            u = w + rho * problem.c[t] * X.T @ (b[rows] - a[rows])
            parts = [
                loss.value(z, v) + loss.conjugate(-q, v) + q * z for z, v, q in zip(X @ u, y, b[rows], strict=True)
            ]
            gap = problem.c[t] * sum(parts)
            plain.append(0.0 if gap <= 0.0 else gap / (gap + less) if less > 0.0 else 1.0)
    assert max(plain) > 0.1


@pytest.mark.parametrize(("gap", "noise", "less", "lost", "theta"), [
    (1.0, 1e-9, 3.0, 0.0, 0.25),
    (1.0, 1e-9, 4.0, 1.0, 0.25),  # what may be rounding does not count as gained
    (1e-9, 1e-9, 3.0, 0.0, 0.0),  # solved
    (1e-9, 2e-9, 0.0, 0.0, 0.0),  # was solved before
    (-1e-9, 2e-9, -1.0, 0.0, 0.0),
    (1.0, 1e-9, 1e-9, 1e-9, 1.0),  # not solved, and nothing gained beyond rounding
    (np.nan, 0.0, 1.0, 0.0, np.nan),
])  # fmt: skip
def test_accuracy(gap, noise, less, lost, theta):
    assert accuracy(gap, noise, less, lost) == pytest.approx(theta, nan_ok=True)


def test_less_accuracy_takes_more_rounds_and_fewer_steps_each(rng):
    problem = MultiTaskProblem(federation(rng, Logistic()), Logistic(), MeanRegularised(1.0, 0.1))
    rounds = [run(CoCoA(theta=theta), problem, rounds=3000, tol=1e-7).rounds for theta in (0.05, 0.9)]
    assert rounds[0] <= rounds[1]
    nothing = run(MOCHA(certify=True, drop=1.0), problem, rounds=2, tol=0).trace
    assert nothing.theta[-1] == 1.0
    assert nothing.steps[-1] == 0
    assert np.isnan(run(MOCHA(), problem, rounds=2, tol=0).trace.theta[-1])


# ---------------------------------------------------------------- learned Omega


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("loss", "m", "d"),
    [
        (Hinge(), 5, 3),
        (Squared(), 3, 6),
        pytest.param(Hinge(), 3, 6, marks=pytest.mark.slow),
        pytest.param(Squared(), 5, 3, marks=pytest.mark.slow),
        pytest.param(Logistic(), 5, 3, marks=pytest.mark.slow),
        pytest.param(Logistic(), 3, 6, marks=pytest.mark.slow),
    ],
    ids=repr,
)
@pytest.mark.slow
def test_learned_omega_is_certified_jointly(loss, m, d, rng):
    """The gap bounds the suboptimality of W and Omega together, and becomes small, for d < m and d > m."""
    for relation in (Covariance(0.3), Covariance(0.3, 2.0)):
        problem = MultiTaskProblem(federation(rng, loss, m, d), loss, relation)
        best = problem.solve()
        trace = run(MOCHA(epochs=2.0, drop=0.1), problem, rounds=1500, tol=0, record_every=50).trace
        size = 1.0 + abs(best.value)
        assert (trace.gap >= trace.value - best.value - 1e-12 * size).all()
        assert (trace.value >= best.lower - 1e-12 * size).all()
        assert trace.gap[-1] <= 1e-3 * size


@pytest.mark.compiled
@pytest.mark.slow
def test_plain_alternation_is_stuck_where_annealing_is_not(rng):
    """With d < m and Omega from W W' alone the models never leave the span of an early W."""
    worst = []
    for seed in range(3):
        problem = MultiTaskProblem(federation(np.random.default_rng(seed), Squared(), 6, 3), Squared(), Covariance(1.0))
        best = problem.solve().value
        gaps = [
            run(MOCHA(epochs=2.0, anneal=a), problem, rounds=800, tol=0, record_every=400).gap / best
            for a in (1.0, 40.0)
        ]
        assert gaps[0] < 2e-3
        worst.append(gaps[1])
    assert max(worst) > 0.02


@pytest.mark.compiled_if_slow
@pytest.mark.parametrize(("m", "d"), [(5, 3), pytest.param(3, 6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "loss", [Squared(), *(pytest.param(x, marks=pytest.mark.slow) for x in LOSSES if x != Squared())], ids=repr
)
def test_joint_mocha_converges_to_the_joint_solution(loss, m, d, rng):
    """To 1e-8, certified in every round, also with stragglers and drops; the dual lies below."""
    for relation in (Covariance(0.3), Covariance(3.0), Covariance(0.3, 2.0)):
        problem = MultiTaskProblem(federation(rng, loss, m, d), loss, relation)
        best = problem.solve()
        size = 1.0 + abs(best.value)
        for work in (MOCHA(epochs=2.0), MOCHA(epochs=3.0, clock=Clock(0.3), drop=0.2)):
            result = run(JointMOCHA(work=work), problem, rounds=3000, tol=1e-8 * size, record_every=5)
            assert result.status.name == "CONVERGED"
            assert result.trace.value[-1] == pytest.approx(best.value, rel=3e-8)
            assert (result.trace.gap >= result.trace.value - best.value - 1e-12 * size).all()
            assert (result.trace.dual <= best.value + 1e-12 * size).all()


@pytest.mark.slow
def test_joint_mocha_is_admm_when_nodes_solve_exactly(rng):
    """losses(U) + R(Z), U = Z, scaled by eta: U-step by normal equations, Z-step by the singular values, dual step."""
    problem, eta = MultiTaskProblem(federation(rng, Squared(), 3, 4), Squared(), Covariance(0.4, 3.0)), 0.7
    Z, Y = np.zeros((3, 4)), np.zeros((3, 4))
    for state, _ in played(JointMOCHA(work=MOCHA(epochs=400.0), eta=eta), problem, 8):
        U = np.empty((3, 4))
        for t in range(3):
            X, y = rows_of(problem, t)
            U[t] = np.linalg.solve(X.T @ X + np.eye(4) / eta, X.T @ y - Y[t] + Z[t] / eta)
        A, s, B = np.linalg.svd(U + eta * Y, full_matrices=False)
        a, x = 2.0 * eta * 0.4, np.zeros(3)
        for _ in range(5000):  # x_i = (s_i - a sum x)_+ / (1 + a/3), by a damped fixed point
            x = 0.8 * x + 0.2 * np.maximum(s - a * x.sum(), 0.0) / (1.0 + a / 3.0)
        Z = (A * x) @ B
        Y = Y + (U - Z) / eta
        np.testing.assert_allclose(state.w[0], Z, atol=1e-8)


def test_a_given_sigma_is_kept_when_omega_changes(rng):
    problem = MultiTaskProblem(federation(rng, Squared(), 3, 4), Squared(), Covariance(0.5), "mean")
    for sigma in (3, 3.0, np.int64(3)):
        assert run(MOCHA(sigma=sigma), problem, rounds=3, tol=0).state.sigma.tolist() == [3.0]


def test_updates_of_omega_are_the_formula(rng):
    problem = MultiTaskProblem(federation(rng, Squared(), 3, 4), Squared(), Covariance(0.5, 2.0), "mean")
    method, before = MOCHA(omega_every=2, anneal=0.5), None
    for t, (state, alpha) in enumerate(played(method, problem, 6), 1):
        if t % 2 == 0:
            A = before.w[0]  # W = Mbar V with the old Mbar and the new V
            A = before.mbar[0] @ state.v[0]
            lam, U = np.linalg.eigh(A @ A.T)
            root = np.sqrt(lam + np.sum(A * A) / 3.0 / (1.0 + t // 2))
            omega = (U * (root / root.sum())) @ U.T
            expected = np.linalg.inv(2.0 * 0.5 * (np.linalg.inv(omega) + np.eye(3) / 2.0))
            np.testing.assert_allclose(state.mbar[0], expected, rtol=1e-8)
            assert state.sigma[0] == pytest.approx(safe_sigma(expected), rel=1e-8)
        else:
            np.testing.assert_array_equal(state.mbar, problem.mbar[None] if before is None else before.mbar)
        np.testing.assert_allclose(state.w[0], state.mbar[0] @ problem.images(alpha), atol=1e-13)  # never accumulated
        before = state


# ---------------------------------------------------------------- baselines


@each_loss
def test_minibatch_sdca_equals_plain_numpy(loss, rng):
    problem = MultiTaskProblem(federation(rng, loss), loss, MeanRegularised(1.0, 0.4), "mean")
    fed, key, M, b = problem.federation, key_from_seed(0), problem.mbar, 3
    sigma, alpha = safe_sigma(M), [np.zeros(n) for n in fed.sizes]
    for t, (state, _) in enumerate(played(MiniBatchSDCA(batch_size=b), problem, 5)):
        W = M @ np.array([problem.c[k] * rows_of(problem, k)[0].T @ alpha[k] for k in range(fed.K)])
        for k in range(fed.K):
            X, y = rows_of(problem, k)
            N = X / np.linalg.norm(X, axis=1)[:, None]
            beta = 1.0 + (b - 1) * (np.linalg.norm(N, 2) ** 2 - 1.0) / (len(y) - 1)
            draws = np.uint64(stream(key, 0, t, fed.ids[k], BATCHES))
            pool, a = list(range(len(y))), alpha[k].copy()
            for e in range(b):
                i = e + below(draws, e, len(y) - e)
                pool[e], pool[i] = pool[i], pool[e]
            for i in pool[:b]:
                q = beta * sigma * M[k, k] * problem.c[k] * (X[i] @ X[i])
                alpha[k][i] = a[i] + plain_step(loss, a[i], X[i] @ W[k], q, y[i])
        V = np.array([problem.c[k] * rows_of(problem, k)[0].T @ alpha[k] for k in range(fed.K)])
        np.testing.assert_allclose(state.w[0], M @ V, atol=1e-11)


@pytest.mark.slow
def test_minibatch_sdca_keeps_its_promise_in_expectation(rng):
    """Takac et al. (2013): with the safe beta the mean dual objective increases; tied rows and beta = 1 overshoot."""
    X = np.tile([[1.0, 0.2]], (6, 1)) + 0.01 * rng.normal(size=(6, 2))
    fed = Federation.from_clients([(X, np.full(6, 3.0))] * 2)
    problem = MultiTaskProblem(fed, Squared(), Independent(0.05))
    dual = run(MiniBatchSDCA(batch_size=4), problem, rounds=30, tol=0, trajectories=200).trace.dual
    assert (np.diff(dual.mean(axis=1)) >= 0).all()
    bad = quiet(MiniBatchSDCA(batch_size=4, beta=1.0), problem, rounds=30, tol=0, trajectories=200).trace.dual
    assert np.diff(bad.mean(axis=1)).min() < 0


@pytest.mark.compiled_if_slow
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.slow_unless(loss=Squared())
def test_minibatch_sgd_equals_gradient_descent_on_full_batches(loss, rng):
    problem = MultiTaskProblem(federation(rng, loss), loss, MeanRegularised(1.0, 0.4), "mean")
    W, eta = np.zeros((4, 3)), Decay(1.0, 4.0)
    for t, state in iterate(MiniBatchSGD(step_size=eta, batch_size=99), problem, rounds=5):
        np.testing.assert_allclose(state.w[0], W, atol=1e-13)
        W = W - eta.at(t) * problem.gradient(W)
    draws = [run(MiniBatchSGD(step_size=0.1, batch_size=2), problem, rounds=1, trajectories=1000).w]
    mean = np.mean(draws[0], axis=0)
    np.testing.assert_allclose(mean, -0.1 * problem.gradient(np.zeros((4, 3))), atol=0.04)  # unbiased
    start = rng.normal(size=(4, 3))
    assert run(MiniBatchSGD(step_size=0.1, batch_size=9), problem, rounds=1, start=start).gap > 0


# ---------------------------------------------------------------- what nodes send and draw (contract: test_contract.py)


@pytest.mark.parametrize("method", [CoCoA(theta=0.3), MiniBatchSDCA(batch_size=3), JointMOCHA()], ids=str)
def test_relationships_are_given_or_learned(method, rng):
    relation = MeanRegularised(1.0, 0.4) if isinstance(method, JointMOCHA) else Covariance(0.3, 2.0)
    with pytest.raises(ValueError, match="use MOCHA"):
        run(method, MultiTaskProblem(federation(rng, Logistic()), Logistic(), relation), rounds=1)


def test_what_nodes_send_is_counted(rng):
    """v_t and one number up, for those who are asked; before that everybody's conjugate at zero."""
    problem = MultiTaskProblem(federation(rng, Logistic()), Logistic(), MeanRegularised(1.0, 0.4))
    trace = run(MOCHA(), problem, rounds=3, tol=0).trace
    np.testing.assert_array_equal(trace.floats_up, 4 + np.arange(4) * 4 * (3 + 1))
    trace = run(MOCHA(participation=2), problem, rounds=3, tol=0).trace
    np.testing.assert_array_equal(trace.floats_up, 4 + np.arange(4) * 2 * (3 + 1))


def test_draws_are_the_clients_own(rng):
    """Adding a task changes nobody's draws: with independent tasks, nobody's model."""
    fed = federation(rng, Hinge(), labels=["a", "b", "c", "d"])
    four = run(MOCHA(clock=Clock(0.2), drop=0.2), MultiTaskProblem(fed, Hinge(), Independent(1.0)), rounds=5, tol=0)
    part = fed.subset([2, 0])
    two = run(MOCHA(clock=Clock(0.2), drop=0.2), MultiTaskProblem(part, Hinge(), Independent(1.0)), rounds=5, tol=0)
    np.testing.assert_allclose(two.w, four.w[[2, 0]], rtol=1e-12)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"epochs": 0.0}, "epochs"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 2, "epochs": 2.0}, "both"),
        ({"theta": 1.0}, "theta"),
        ({"theta": 0.5, "clock": Clock(0.5)}, "both"),
        ({"clock": 0.5}, "Clock"),
        ({"clock": Clock(0.0)}, "low"),
        ({"clock": Clock(0.5, 0.4)}, "high"),
        ({"drop": 1.5}, "drop"),
        ({"drop": [0.1, -0.1]}, "drop"),
        ({"sigma": "exact"}, "sigma"),
        ({"sigma": 0.0}, "sigma"),
        ({"omega_every": 0}, "omega_every"),
        ({"replacement": 1}, "replacement"),
        ({"participation": fedconvex.methods.ProportionalSampling(3)}, "twice"),
    ],
)
def test_bad_settings(how, words):
    with pytest.raises((ValueError, TypeError), match=words):
        MOCHA(**how)


def test_bad_problems(rng):
    fed = federation(rng, Logistic())
    with pytest.raises(TypeError, match="MultiTaskProblem"):
        run(MOCHA(), Problem(fed, Logistic()))
    with pytest.raises(TypeError, match="MultiTaskProblem"):
        run(MiniBatchSGD(step_size=1.0, batch_size=1), Problem(fed, Logistic()))
    problem = MultiTaskProblem(fed, Logistic(), Independent(1.0))
    with pytest.raises(ValueError, match="start"):
        run(MOCHA(), problem, start=np.ones((4, 3)))
    with pytest.raises(ValueError, match="one number per node"):
        run(MOCHA(drop=(0.1, 0.2)), problem)
    with pytest.raises(ValueError, match="pencil"):
        run(MOCHA(sigma="pencil"), problem.with_relation(Covariance(1.0)))
    with pytest.raises(ValueError, match="infinite"):
        run(MiniBatchSGD(step_size=1.0, batch_size=1), problem.with_relation(Pooled(1.0)))
