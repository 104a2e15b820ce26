"""`Problem.solve` against independent solvers, and its certificates against the truth."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

from fedconvex import Exponential, Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared
from fedconvex.penalties import L1
from fedconvex.solvers import choice
from fedconvex.solvers.kinked import smoothing
from fedconvex.solvers.rows import hessians
from fedconvex.solvers.smooth import newton, quasi_newton

pytestmark = pytest.mark.compiled_if_slow

LOSSES = [Squared(), Logistic(), Softmax(3), Hinge(), SmoothedHinge(0.5), Exponential()]


def random_problem(seed, loss, sparse, weights=None, l2=None):
    """A small federation whose labels suit the loss; noisy, so that no classes can be separated."""
    rng = np.random.default_rng(seed)
    n, d, K = int(rng.integers(30, 80)), int(rng.integers(2, 7)), int(rng.integers(1, 5))
    X = rng.normal(size=(n, d)) * rng.uniform(0.3, 2.0)
    if sparse:
        X[rng.random(X.shape) < 0.5] = 0.0
    score = X @ rng.normal(size=d) + rng.normal(size=n)
    if isinstance(loss, Squared):
        y = score
    elif isinstance(loss, Softmax):
        y = (np.digitize(score, [-0.5, 0.5]) + (rng.random(n) < 0.2)) % 3
    else:
        y = np.where(score + rng.normal(size=n) > 0, 1.0, -1.0)
    clients = np.concatenate([np.arange(K), rng.integers(0, K, n - K)])
    fed = Federation.from_arrays(sp.csr_array(X) if sparse else X, y, clients)
    l2 = 10 ** rng.uniform(-3, 0) if l2 is None else l2
    return Problem(fed, loss, l2, weights)


def cvxpy_optimum(problem):
    """The optimum of the same objective, modelled from the raw arrays."""
    cp = pytest.importorskip("cvxpy")
    fed = problem.federation
    X = fed.X.toarray() if fed.is_sparse else np.asarray(fed.X)
    c = np.concatenate([np.full(n, p / n) for p, n in zip(problem.weights, fed.sizes, strict=True)])
    w = cp.Variable(problem.model_shape)
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        onehot = np.eye(3)[fed.y.astype(int)]
        loss = c @ (cp.log_sum_exp(Z, axis=1) - cp.sum(cp.multiply(onehot, Z), axis=1))
    else:
        m = cp.multiply(fed.y, X @ w)
        loss = {
            "Squared": lambda: 0.5 * (c @ cp.square(X @ w - fed.y)),
            "Logistic": lambda: c @ cp.logistic(-m),
            "Hinge": lambda: c @ cp.pos(1 - m),
            # the smoothed hinge is huber(pos(1 - m)) with knee gamma: half the scaled Huber function
            "SmoothedHinge": lambda: c @ cp.huber(cp.pos(1 - m), 0.5) / (2 * 0.5),
            "Exponential": lambda: c @ cp.exp(-m),
        }[type(problem.loss).__name__]()
    model = cp.Problem(cp.Minimize(loss + 0.5 * problem.l2 * cp.sum_squares(w)))
    value = model.solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return value, w.value


def solver_trial(rng, loss=None, sparse=None):
    """A random problem of any loss, dense or sparse: cvxpy's optimum, a small gap, a lower bound that is one."""
    loss = LOSSES[rng.integers(len(LOSSES))] if loss is None else loss
    sparse = bool(rng.integers(2)) if sparse is None else sparse
    problem = random_problem(int(rng.integers(2**31)), loss, sparse, "uniform" if rng.integers(2) else None)
    solution = problem.solve()
    reference, w = cvxpy_optimum(problem)
    assert solution.value == pytest.approx(reference, abs=2e-8 * (1 + abs(reference))), repr(problem)
    assert solution.gap <= 1e-10 * (1 + abs(solution.value)), f"{problem}: {solution}"
    assert solution.lower <= problem.value(w) + 1e-14, f"{problem}: lower bound above an attained value"
    if problem.l2 > 1e-2:
        np.testing.assert_allclose(solution.w, w, atol=2e-3, err_msg=repr(problem))
    return {"loss": type(loss).__name__, "sparse": sparse, "gap": solution.gap}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("trials", [2, pytest.param(10, marks=pytest.mark.slow, id="compiled")])
def test_agrees_with_cvxpy(loss, sparse, trials, rng):
    for _ in range(trials):
        solver_trial(rng, loss, sparse)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_agrees_with_scikit_learn(sparse):
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    for seed in range(2):
        for loss in (Squared(), Logistic(), Softmax(3), Hinge()):
            problem = random_problem(100 + seed, loss, sparse)
            fed, l2 = problem.federation, problem.l2
            C = 1.0 / (l2 * fed.n)
            if isinstance(loss, Squared):
                other = Ridge(alpha=l2 * fed.n, fit_intercept=False, tol=1e-12).fit(fed.X, fed.y).coef_
            elif isinstance(loss, Hinge):
                svm = LinearSVC(C=C, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=1_000_000)
                other = svm.fit(fed.X, fed.y).coef_[0]
            else:
                reg = LogisticRegression(C=C, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(fed.X, fed.y)
                other = reg.coef_ if isinstance(loss, Softmax) else reg.coef_[0]
            solution = problem.solve()
            assert solution.value <= problem.value(other) + solution.gap + 1e-14, f"seed {seed} {loss}"
            assert problem.value(other) - solution.lower < 1e-5, f"seed {seed} {loss}"
            tolerance = 1e-3 if isinstance(loss, Hinge) else 2e-4
            np.testing.assert_allclose(solution.w, other, atol=tolerance, err_msg=f"seed {seed} {loss}")


@pytest.mark.parametrize("loss", [Squared(), Logistic(), SmoothedHinge(0.3), Exponential(), Softmax(3)], ids=repr)
def test_gradient_and_hessian_are_derivatives(loss):
    problem = random_problem(3, loss, False, "uniform")
    rng = np.random.default_rng(0)
    w = 0.3 * rng.normal(size=problem.size)
    F, g, H = problem.value_gradient_hessian(w)
    assert F == pytest.approx(problem.value(problem.unflatten(w)), rel=1e-14)
    eye, h = np.eye(problem.size), 1e-5
    value = lambda v: problem.value(problem.unflatten(v))  # noqa: E731
    slope = lambda v: problem.gradient(problem.unflatten(v)).ravel()  # noqa: E731
    np.testing.assert_allclose(g, [(value(w + h * e) - value(w - h * e)) / (2 * h) for e in eye], atol=1e-8)
    if not isinstance(loss, SmoothedHinge):  # whose second derivative jumps
        np.testing.assert_allclose(H, [(slope(w + h * e) - slope(w - h * e)) / (2 * h) for e in eye], atol=1e-6)
    v = rng.normal(size=problem.size)
    np.testing.assert_allclose(problem.hessian_product(w)(v), H @ v, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
def test_dense_and_sparse_agree(loss):
    dense = random_problem(5, loss, True)
    fed = dense.federation
    other = Problem(Federation(fed.X.toarray(), fed.y, fed.ptr), loss, dense.l2)
    assert other.solve().value == pytest.approx(dense.solve().value, abs=1e-10)
    w = np.random.default_rng(1).normal(size=dense.model_shape)
    np.testing.assert_allclose(other.gradient(w), dense.gradient(w), atol=1e-13)
    np.testing.assert_allclose(other.client_gradients(w), dense.client_gradients(w), atol=1e-13)
    if hasattr(loss, "curvature") or isinstance(loss, Softmax):
        np.testing.assert_allclose(other.hessian(w), dense.hessian(w), atol=1e-12)


def test_many_models_at_once_and_client_sums():
    problem = random_problem(7, Softmax(3), False)
    W = np.random.default_rng(2).normal(size=(5, *problem.model_shape))
    np.testing.assert_allclose(problem.value(W), [problem.value(w) for w in W], rtol=1e-14)
    np.testing.assert_allclose(problem.gradient(W)[3], problem.gradient(W[3]), rtol=1e-14)
    np.testing.assert_allclose(problem.client_values(W) @ problem.weights, problem.value(W), rtol=1e-13)
    together = np.einsum("k,rkcd->rcd", problem.weights, problem.client_gradients(W))
    np.testing.assert_allclose(together, problem.gradient(W), atol=1e-13)
    alone = problem.client(1)
    assert problem.client_values(W)[2, 1] == pytest.approx(alone.value(W[2]), rel=1e-13)


def test_domains_are_means_over_rows():
    rng = np.random.default_rng(4)
    X, y, q = rng.normal(size=(40, 3)), rng.choice([-1.0, 1.0], 40), rng.integers(0, 3, 40)
    problem = Problem(Federation.from_arrays(X, y, rng.integers(0, 4, 40), domains=q), Logistic(), 0.1)
    w = rng.normal(size=3)
    for name in range(3):
        mine = q == name
        m = y[mine] * (X[mine] @ w)
        value = np.mean(np.log1p(np.exp(-m))) + 0.05 * w @ w
        gradient = X[mine].T @ (-y[mine] / (1 + np.exp(m))) / mine.sum() + 0.1 * w
        assert problem.domain_values(w)[name] == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(problem.domain_gradients(w)[name], gradient, atol=1e-14)
    two = problem.domain_values(np.stack([w, 2 * w]))
    assert two.shape == (2, 3)
    assert problem.domain_gradients(np.stack([w, 2 * w])).shape == (2, 3, 3)


def test_chunks_of_rows_do_not_matter(monkeypatch):
    problem = random_problem(11, Logistic(), False)
    W = np.random.default_rng(3).normal(size=(4, *problem.model_shape))
    whole = problem.client_values(W)
    monkeypatch.setattr("fedconvex.solvers.rows.client_means.CHUNK", 4 * 7)  # seven rows at a time
    np.testing.assert_allclose(problem.client_values(W), whole, rtol=1e-13)


def test_stopping_tolerance_is_certified_and_true():
    for seed in range(4):
        problem = random_problem(seed, Logistic(), seed % 2 == 0, l2=1e-3)
        exact = Problem(problem.federation, problem.loss, problem.l2).solve()
        for tol in (1e-2, 1e-4, 1e-8):
            rough = problem.solve(tol=tol)
            assert rough.gap <= tol * (1 + abs(rough.value))
            assert rough.value - exact.value <= rough.gap + 1e-15, f"seed {seed}"


def test_certificate_without_l2_is_sound():
    """Newton points of every accuracy: the self-concordance gap bounds the true one, and is tight at the end."""
    from fedconvex.solvers.certificates.factor import Factor
    from fedconvex.solvers.certificates.gaps import certified_gap

    rng = np.random.default_rng(8)
    X, y = rng.normal(size=(60, 3)), rng.choice([-1.0, 1.0], 60)
    for loss in (Logistic(), Exponential()):
        problem = Problem(Federation.from_arrays(X, y, np.arange(60) % 3), loss)
        best = problem.solve()
        assert best.attained
        assert best.gap < 1e-13
        assert "self-concordance" in best.certificate
        checked = 0
        for scale in (1e-1, 3e-2, 1e-2, 1e-4, 1e-6):
            w = best.w + scale * rng.normal(size=3)
            F, g, H = problem.value_gradient_hessian(w)
            known = certified_gap(problem, w, F, g, Factor(problem, w, H, False), True, 0.0)
            gap, text = known.gap, known.origin
            assert F - best.value <= gap * (1 + 1e-9) + 1e-16
            if "self-concordance" in text:
                checked += 1
                assert gap <= (1.5 if scale <= 1e-2 else 10.0) * (F - best.value) + 1e-15
        assert checked >= 3


def test_separable_rows_without_l2_have_no_minimiser():
    X = np.array([[1.0], [2.0], [-1.0], [-3.0]])
    problem = Problem(Federation.from_arrays(X, np.sign(X[:, 0]), [0, 0, 1, 1]), Logistic())
    solution = problem.solve()
    assert not solution.attained
    assert solution.lower == 0.0
    assert solution.value < 1e-8
    # separable in one coordinate only: the infimum is positive and approached at infinity; nothing above 0 is certified
    X = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    problem = Problem(Federation.from_arrays(X, [1.0, -1.0, 1.0], [0, 0, 0]), Logistic())
    solution = problem.solve()
    assert not solution.attained
    assert solution.lower <= 2 * math.log(2) / 3 <= solution.value + 1e-9


def test_rank_deficient_rows_are_certified():
    rng = np.random.default_rng(9)
    A = np.round(2.0**20 * rng.normal(size=(50, 2))) / 2.0**20  # sums are exact
    X = np.column_stack([A, A[:, 0] + A[:, 1]])  # three columns of rank two
    y = rng.choice([-1.0, 1.0], 50)
    fed = Federation.from_arrays(X, y, np.arange(50) % 2)
    for loss in (Logistic(), Squared()):
        solution = Problem(fed, loss).solve()
        small = Problem(Federation.from_arrays(A, y, np.arange(50) % 2), loss).solve()
        assert solution.value == pytest.approx(small.value, abs=1e-13)
        assert solution.gap < 1e-12
        assert not solution.unique


def test_softmax_without_l2_is_certified():
    rng = np.random.default_rng(12)
    X, y = rng.normal(size=(90, 2)), rng.integers(0, 3, 90)
    solution = Problem(Federation.from_arrays(X, y, np.arange(90) % 3), Softmax(3)).solve()
    assert solution.gap < 1e-12
    assert "self-concordance" in solution.certificate


def test_two_classes_of_softmax_are_logistic():
    problem = random_problem(21, Logistic(), False)
    fed = problem.federation
    two = Problem(Federation(fed.X, (fed.y + 1) / 2, fed.ptr), Softmax(2), 2 * problem.l2)
    # w_1 = -w_0 = w/2 has l2 term 2 l2 (|w|^2/4 + |w|^2/4)/2 = (l2/2)|w|^2
    assert two.solve().value == pytest.approx(problem.solve().value, abs=1e-13)
    np.testing.assert_allclose(2 * two.solve().w[1], problem.solve().w, atol=1e-10)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3), SmoothedHinge(0.5), Hinge()], ids=repr)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.slow_unless(loss=[Squared(), Logistic()], sparse=True)
def test_truncated_newton_agrees_with_direct(loss, sparse, monkeypatch):
    problem = random_problem(31, loss, sparse, l2=0.05)
    direct = problem.solve()
    monkeypatch.setattr(choice, "DIRECT_SIZE", 0)
    krylov = Problem(problem.federation, loss, problem.l2).solve()
    assert krylov.gap < 1e-9
    assert krylov.value == pytest.approx(direct.value, abs=1e-9)


def test_hinge_duality_gap_bounds_the_truth():
    for seed in range(4):
        problem = random_problem(200 + seed, Hinge(), False)
        loose, tight = problem.solve(tol=1e-3), problem.solve()
        assert tight.gap <= 1e-11 * (1 + tight.value)
        assert loose.lower <= tight.value + 1e-14
        assert loose.value >= tight.lower - 1e-14


@pytest.mark.compiled(only="minutes of pure Python")
@pytest.mark.parametrize("name", ["a9a", "w8a"])
def test_real_sparse_data(name, shared_data):
    data = np.load(shared_data(name), allow_pickle=False)
    X = sp.csr_array(
        (data["data"].astype(float), data["indices"].astype(np.int32), data["indptr"]), tuple(data["shape"])
    )
    y = data["y"].astype(float)
    problem = Problem(Federation.from_arrays(X, y, np.arange(y.size) % 50), Logistic(), 1e-3)
    solution = problem.solve(tol=1e-12)
    assert solution.gap <= 1e-12 * (1 + solution.value)  # rounding included, of rows of up to 114 entries on w8a
    assert solution.rounding < 2e-13
    g = X.T @ (-y / (1 + np.exp(y * (X @ solution.w)))) / y.size + 1e-3 * solution.w  # independent of the kernels
    assert g @ g / (2 * 1e-3) <= 1e-12 * (1 + solution.value)


def exact_least_squares(X, y, l2=0.0):
    """min (1/2n)‖Xw - y‖^2 + (l2/2)‖w‖^2 in exact rational arithmetic (X of full rank)."""
    from fractions import Fraction

    n, d = X.shape
    A = [[Fraction(float(v)) for v in row] for row in X]
    b = [Fraction(float(v)) for v in y]
    r = Fraction(float(l2))
    M = [[sum(A[i][j] * A[i][k] for i in range(n)) / n + (r if j == k else 0) for k in range(d)] for j in range(d)]
    v = [sum(A[i][j] * b[i] for i in range(n)) / n for j in range(d)]
    rhs = list(v)
    for j in range(d):
        p = next(k for k in range(j, d) if M[k][j] != 0)
        M[j], M[p], rhs[j], rhs[p] = M[p], M[j], rhs[p], rhs[j]
        for k in range(j + 1, d):
            f = M[k][j] / M[j][j]
            M[k] = [a - f * c for a, c in zip(M[k], M[j], strict=True)]
            rhs[k] -= f * rhs[j]
    w = [Fraction(0)] * d
    for j in reversed(range(d)):
        w[j] = (rhs[j] - sum(M[j][k] * w[k] for k in range(j + 1, d))) / M[j][j]
    return float(sum(c * c for c in b) / (2 * n) - sum(a * c for a, c in zip(v, w, strict=True)) / 2)


@pytest.mark.slow
def test_badly_scaled_and_collinear_columns_are_certified():
    """Time stamps, units that differ by 1e12, columns that differ by 1e-8: against exact rational arithmetic."""
    rng = np.random.default_rng(13)
    n = 60
    a, b, noise = rng.normal(size=(3, n))
    stamp = 1.7e9 + rng.uniform(0, 1e5, n)
    y = a + b + (stamp - 1.7e9) / 1e5 + 0.1 * noise
    cases = {
        "time stamp": (np.column_stack([a, stamp, np.ones(n)]), 0.0),
        "time stamp, ridge": (np.column_stack([a, stamp, np.ones(n)]), 1e-2),
        "units": (np.column_stack([1e6 * a, 1e-6 * b]), 0.0),
        "collinear": (np.column_stack([a, a + 1e-4 * b]), 0.0),
        "collinear, ridge": (np.column_stack([a, a + 1e-8 * b]), 1e-9),
    }
    for name, (X, l2) in cases.items():
        truth = exact_least_squares(X, y, l2)
        solution = Problem(Federation.from_arrays(X, y, np.arange(n) % 4), Squared(), l2).solve()
        assert solution.lower <= truth * (1 + 1e-15), name
        assert truth <= solution.value * (1 + 1e-9), name
        assert solution.gap < 1e-6 * truth, f"{name}: {solution}"
    # where double precision cannot certify, the gap says so
    X = np.column_stack([a, a + 1e-9 * b])
    solution = Problem(Federation.from_arrays(X, y, np.arange(n) % 4), Squared()).solve()
    assert solution.lower <= exact_least_squares(X, y)


def certificate_trial(rng):
    """Singular values from 1e-9 to 1e2: F* depends only on the column space, which is known exactly."""
    U = np.linalg.qr(rng.normal(size=(40, 4)))[0]
    X = U * 10 ** rng.uniform(-9, 2, 4) @ np.linalg.qr(rng.normal(size=(4, 4)))[0].T
    y, labels = rng.normal(size=40), rng.choice([-1.0, 1.0], 40)
    truth = 0.5 * np.sum((y - U @ (U.T @ y)) ** 2) / 40
    assert Problem(Federation(X, y, [0, 20, 40]), Squared()).solve().lower <= truth * (1 + 1e-12)
    truth = Problem(Federation(6 * U, labels, [0, 20, 40]), Logistic()).solve().value
    assert Problem(Federation(X, labels, [0, 20, 40]), Logistic()).solve().lower <= truth + 1e-12


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 100), marks=pytest.mark.slow)], ids=len)
def test_no_certificate_is_unsound_on_ill_conditioned_problems(seeds):
    for seed in seeds:
        certificate_trial(np.random.default_rng(seed))


def test_huge_labels_do_not_give_a_zero_gap():
    """F = 5e13 cannot resolve 1e-8: the gap admits it and the run does not claim convergence."""
    from fedconvex import GradientDescent, run

    rng = np.random.default_rng(14)
    X, y = rng.normal(size=(100, 3)), 1e7 * rng.normal(size=100)
    problem = Problem(Federation.from_arrays(X, y, np.arange(100) % 2), Squared())
    result = run(GradientDescent(step_size=0.5), problem, rounds=60)
    assert problem.solve().gap > 1e-4
    assert result.gap > 1e-4
    assert result.status.name == "ROUND_LIMIT"


def test_solutions_cannot_be_written_to():
    problem = random_problem(1, Logistic(), False)
    with pytest.raises(ValueError, match="read-only"):
        problem.solve().w[:] = 0


def test_a_hinge_with_hardly_a_ridge_leaves_zero_where_ascent_does_not(monkeypatch):
    """Ascent was still at w = 0, where margins lay just outside a band as wide as the gap: the answer was 0, gap 1."""
    monkeypatch.setattr(smoothing, "ASCENT", smoothing.ASCENT._replace(needs=()))  # although rows are few
    rng = np.random.default_rng(6)
    X = rng.normal(size=(20, 2)) * [1e3, 0.2]
    y = np.where(X[:, 0] + 3e3 * rng.normal(size=20) > 0.0, 1.0, -1.0)
    best = Problem(Federation.from_arrays(X, y, np.arange(20) // 10), Hinge(), l2=1e-9).solve()
    costs, rows = np.r_[0.0, 0.0, np.full(20, 1.0 / 20)], np.hstack([-y[:, None] * X, -np.eye(20)])
    free = [(None, None)] * 2 + [(0.0, None)] * 20
    least = scipy.optimize.linprog(costs, rows, -np.ones(20), bounds=free).fun  # without a ridge
    assert best.gap < 1e-9
    assert least - 1e-9 <= best.value <= least + 1e-6


def test_a_hinge_with_hardly_a_ridge_is_solved_although_few_rows_stay_in_the_bands():
    """Newton's method once stood still at 0.290, with a gap of 0.045; linear programming finds 0.259."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 1)) + 1e-3 * rng.normal(size=(60, 4))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=60) > 0.0, 1.0, -1.0)
    best = Problem(Federation.from_arrays(1e6 * X, y, np.zeros(60, dtype=int)), Hinge(), 1e-4).solve()
    costs = np.concatenate([np.zeros(4), np.full(60, 1.0 / 60.0)])
    rows, free = np.hstack([-y[:, None] * X, -np.eye(60)]), [(None, None)] * 4 + [(0.0, None)] * 60
    least = scipy.optimize.linprog(costs, rows, -np.ones(60), bounds=free).fun  # without a ridge
    assert best.gap < 1e-9
    assert least - 1e-9 <= best.value <= least + 1e-5


def test_solvers_are_chosen_by_what_they_ask_for():
    """Every row of the tables names a function; each kind of problem finds its own, and nobody a kink without l2."""
    for solver in (*choice.STARTS, *choice.SOLVERS, *choice.PENALISED, choice.ASCENT):
        assert callable(solver.load()) and all(need.words for need in solver.needs)
    fed = random_problem(3, Squared(), False, l2=0.1).federation
    signs = Federation(fed.X, np.sign(fed.y), fed.ptr)
    kinds = {"newton": Problem(fed, Squared()), "smoothing": Problem(signs, Hinge(), 0.1)}
    kinds["solve_penalised"] = Problem(fed, Squared(), penalty=L1(0.1))
    assert {name: choice.first_fit(choice.SOLVERS, p).function for name, p in kinds.items()} == {n: n for n in kinds}
    assert choice.first_fit(choice.PENALISED, kinds["solve_penalised"]).function == "Search.by_working_sets"
    assert choice.first_fit(choice.STARTS, kinds["newton"]) is None
    assert not any(solver.fits(Problem(signs, Hinge())) for solver in choice.SOLVERS if choice.KINKED in solver.needs)


@pytest.mark.parametrize("weight", ["none", "some", "few"])
@pytest.mark.parametrize("n", [3_000, 17_000])
def test_least_squares_begin_with_one_pass_over_many_rows(n, weight, monkeypatch):
    """Value, gradient and Hessian at zero; of many rows the gradient comes with the Hessian, from the same blocks."""
    rng = np.random.default_rng(0)
    X, y, share = rng.normal(size=(n, 3)), rng.normal(size=n), {"none": 1.0, "some": 0.7, "few": 0.2}[weight]
    p = np.where(rng.random(n) < share, rng.random(n), 0.0) if share < 1.0 else None
    problem = Problem(Federation(X, y, np.array([0, n]), sample_weight=p), Squared(), 0.1)
    calls, product = [], hessians.weighted_gram
    monkeypatch.setattr(hessians, "weighted_gram", lambda *given: calls.append(len(given)) or product(*given))
    F, g, H = problem.value_gradient_hessian(np.zeros(3))
    h = np.full(n, 1.0 / n) if p is None else p / p.sum()
    assert calls == [4 if n == 17_000 else 2]
    assert F == pytest.approx(0.5 * (h @ y**2), rel=1e-13)
    np.testing.assert_allclose(g, -(h * y) @ X, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(H, (X * h[:, None]).T @ X + 0.1 * np.eye(3), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("most", [0, 3, 100])
def test_truncated_newton_goes_on_where_quasi_newton_steps_have_not_ended(most, monkeypatch):
    """Columns of scales from 1e-3 to 1e3, which gradients alone are slow on."""
    monkeypatch.setattr(quasi_newton, "FEW", most)
    rng = np.random.default_rng(11)
    X = rng.normal(size=(60, 12)) * np.geomspace(1e-3, 1e3, 12)
    y = rng.choice([-1.0, 1.0], 60)
    problem = Problem(Federation.from_arrays(X, y, np.arange(60) % 3), Logistic(), 1e-4)
    begun = quasi_newton.approach_by_gradients(problem, np.zeros(12), 1e-12)
    found = quasi_newton.quasi_newton(problem, np.zeros(12), 1e-10, 0.0)
    assert begun.evaluations > most and float(begun.g @ begun.g) > 2e-4 * 1e-12
    np.testing.assert_allclose(begun.g, problem.value_gradient(begun.w)[1], rtol=1e-12)
    assert found.iterations > begun.evaluations * (most < 100)
    direct = problem.solve()
    assert found.gap <= 1e-10 * (1.0 + direct.value)
    assert direct.lower - 1e-15 <= found.value <= direct.value + found.gap


@pytest.mark.slow
def test_more_features_than_a_quarter_of_the_rows_need_no_hessian():
    """Quasi-Newton steps end where direct ones do, and both are certified."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(600, 500)) / np.sqrt(500.0)
    y = np.sign(X @ rng.normal(size=500) + 0.3 * rng.normal(size=600))
    wide = Problem(Federation.from_arrays(X, y, np.arange(600) % 3), Logistic(), 1e-3)
    assert choice.first_fit(choice.SOLVERS, wide).function == "quasi_newton"
    for other in (Problem(wide.federation, Logistic()), Problem(wide.federation, Squared(), 1e-3)):
        assert choice.first_fit(choice.SOLVERS, other).function == "newton"
    best, direct = wide.solve(), newton.newton(wide, np.zeros(500), None, 0.0)
    assert max(best.gap, direct.gap) < 1e-11 and abs(best.value - direct.value) < 1e-13
    assert np.linalg.norm(best.w - direct.w) <= 2.0 * math.sqrt(2.0 * max(best.gap, direct.gap) / 1e-3)
