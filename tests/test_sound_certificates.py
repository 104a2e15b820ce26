"""Certificates where double precision sees less than there is: against exact rational and 50-digit references."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction
from typing import NamedTuple

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Exponential, Federation, Hinge, Logistic, Problem, Softmax, Squared
from fedconvex.loss_traits import declares
from fedconvex.problems import MeanRegularised, MultiTaskProblem
from fedconvex.solvers.certificates.gaps import ContradictedCertificate
from fedconvex.solvers.certificates.rank import rank_bound
from fedconvex.solvers.minimax import agnostic as minimax
from fedconvex.solvers.minimax.agnostic import measure_minimax, measure_softmax

ULP = 2.0**-52


def pooled(X, y, loss, l2=0.0):
    return Problem(Federation.from_arrays(X, y, np.zeros(len(y), dtype=int)), loss, l2)


def exact_minimum(X, y):
    """Return (w, F*, rank) of least squares of any rank, exactly: rational elimination, free coordinates zero."""
    d = X.shape[1]
    A = [[Fraction(v) for v in row] for row in X.tolist()]
    b = [Fraction(v) for v in y.tolist()]
    M = [
        [sum(r[j] * r[k] for r in A) for k in range(d)] + [sum(r[j] * t for r, t in zip(A, b, strict=True))]
        for j in range(d)
    ]
    pivots = []
    for k in range(d):
        i = next((i for i in range(len(pivots), d) if M[i][k] != 0), None)
        if i is None:
            continue
        r = len(pivots)
        M[r], M[i] = M[i], M[r]
        M[r] = [v / M[r][k] for v in M[r]]
        M = [row if q == r else [u - row[k] * v for u, v in zip(row, M[r], strict=True)] for q, row in enumerate(M)]
        pivots.append(k)
    w = [Fraction(0)] * d
    for r, k in enumerate(pivots):
        w[k] = M[r][d]
    return w, exact_value(A, b, w), len(pivots)


def exact_value(A, b, w):
    scores = [sum(u * v for u, v in zip(row, w, strict=True)) for row in A]
    return sum((z - t) ** 2 for z, t in zip(scores, b, strict=True)) / (2 * len(b))


def fifty_digits(X, y, loss):
    """Minimise the mean logistic or exponential loss of labels +-1 by damped Newton steps in 50 digits."""
    with mp.workdps(50):
        A, b = mp.matrix(X.tolist()), [mp.mpf(v) for v in y.tolist()]
        (n, d) = X.shape

        def value(w):
            z = A * w
            m = [b[i] * z[i] for i in range(n)]
            return sum(mp.log1p(mp.exp(-v)) if loss == Logistic() else mp.exp(-v) for v in m) / n, m

        w = mp.matrix(d, 1)
        F, m = value(w)
        for _ in range(60):
            p = [1 / (1 + mp.exp(v)) if loss == Logistic() else mp.exp(-v) for v in m]
            h = [q * (1 - q) if loss == Logistic() else q for q in p]
            g = A.T * mp.matrix([-b[i] * p[i] / n for i in range(n)])
            H = A.T * mp.matrix([[h[i] * A[i, j] / n for j in range(d)] for i in range(n)])
            step, t = mp.lu_solve(H, g), mp.mpf(1)
            while value(w - t * step)[0] > F and t > mp.mpf(10) ** -20:
                t /= 2
            w = w - t * step
            F, m = value(w)
            if t * mp.norm(step) < mp.mpf(10) ** -30 * (1 + mp.norm(w)):
                break
        return np.array([float(v) for v in w])


def one_ulp_apart(n, k, d=2):
    """Columns between 1 and 2; the second lies k ulp from the first, along labels +-1."""
    rng = np.random.default_rng(n + k)
    X, y = 1.25 + 0.5 * rng.random((n, d)), rng.choice([-1.0, 1.0], n)
    X[:, 1] = X[:, 0] + k * ULP * y
    return X, y


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Exponential()], ids=str)
@pytest.mark.slow
def test_no_model_lies_below_the_lower_bound_where_columns_differ_by_ulps(loss, d, k):
    X, y = one_ulp_apart(800, k, d)
    problem = pooled(X, y, loss)
    best = problem.solve()
    for margin in (1.0, 3.0, 10.0):  # X w = margin y, exactly but for one rounding
        w = np.zeros(d)
        w[:2] = np.array([-1.0, 1.0]) * margin / (k * ULP)
        assert problem.value(w) >= best.lower, (margin, best.certificate)
    assert not best.attained
    assert "not proved" in best.certificate
    assert not math.isnan(best.gap)


@pytest.mark.parametrize("loss", [Logistic(), Exponential()], ids=str)
def test_fifty_digits_find_nothing_below_the_lower_bound(loss):
    X, y = one_ulp_apart(40, 2)
    y = y * np.where(np.arange(40) % 4, 1.0, -1.0)  # not separable
    X[:, 1] = X[:, 0] + np.round(300 * (X[:, 1] - X[:, 0]) / ULP) * ULP
    problem = pooled(X, y, loss)
    best, w = problem.solve(), fifty_digits(X, y, loss)
    assert np.linalg.norm(w) > 1e10
    assert problem.value(w) < problem.value(np.zeros(2)) - 0.05  # the 50-digit search finds far better models
    assert problem.value(w) >= best.lower


def test_a_tiny_ridge_does_not_make_directions_flat():
    X, y = one_ulp_apart(2000, 40)
    problem = pooled(X, y, Squared(), 1e-40)
    w = np.array([-1.0, 1.0]) / (40 * ULP)
    assert problem.value(w) < 1e-3
    assert problem.solve().lower <= problem.value(w)


def test_no_model_lies_below_the_minimax_bound_where_columns_differ_by_ulps():
    X, y = one_ulp_apart(300, 40)
    problem = Problem(Federation.from_arrays(X, y, np.arange(300) % 3), Squared())
    w = np.array([-1.0, 1.0]) / (40 * ULP)
    assert problem.client_values(w).max() < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the gap asked for is missed
        assert problem.solve_minimax().lower <= problem.client_values(w).max()
    assert measure_minimax(problem, minimax.Simplex(), w[None])[1][0] >= 0.0


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Exponential()], ids=str)
def test_the_bound_within_reach_is_attained_where_columns_differ_by_ulps(loss):
    """At the end of its reach the direction (-1, 1) lowers F by nearly what the certificate allows for."""
    X, y = one_ulp_apart(300, 2)
    problem = pooled(X, y, loss)
    best = problem.solve()
    t = best.reach / float(np.abs(X).max(axis=0).sum())
    far = best.w + np.array([-t, t]) * (1.0 - best.reach**-1 * problem.reach(best.w))
    assert 0.999 * best.reach <= problem.reach(far) <= best.reach
    with mp.workdps(50):
        fallen = mean_loss(X, y, loss, best.w) - mean_loss(X, y, loss, far)
        share = 0.2 if loss == Logistic() else 0.3  # above 0.5, and 0.34 for squares with a later NumPy, were seen
        assert share * best.gap_within < fallen <= best.gap_within


def mean_loss(X, y, loss, w):
    z = mp.matrix(X.tolist()) * mp.matrix([mp.mpf(v) for v in w.tolist()])
    pairs = [(z[i], mp.mpf(float(y[i]))) for i in range(len(y))]
    one = {
        Squared(): lambda z, y: (z - y) ** 2 / 2,
        Logistic(): lambda z, y: mp.log1p(mp.exp(-y * z)),
        Exponential(): lambda z, y: mp.exp(-y * z),
    }[loss]
    return sum(one(z, y) for z, y in pairs) / len(y)


def nearly_collinear(name, n):
    rng = np.random.default_rng(8)
    X, Z = one_hot(n, (4, 3, 5), 1), rng.normal(size=(n, 3))
    centred = np.column_stack([X[:, 0], X[:, 1:] - X[:, 1:].mean(axis=0)])
    return {
        "standardised": np.column_stack([X[:, 0], centred[:, 1:] / X[:, 1:].std(axis=0)]),
        "centred": centred,
        "a hundred times": np.hstack([Z, 100.0 * Z]),
        "other units": np.hstack([Z, 1e9 / 3.0 * Z]),
        "shares": np.column_stack([np.ones(n), rng.dirichlet(np.ones(4), size=n)]),
        "sums": np.column_stack([Z, Z[:, 0] + Z[:, 1]]),
    }[name]


NEARLY = ("standardised", "centred", "a hundred times", "other units", "shares", "sums")


@pytest.mark.parametrize(
    ("loss", "name"),
    [*itertools.product([Squared(), Logistic()], NEARLY), (Exponential(), "shares"), (Softmax(3), "standardised")],
    ids=str,
)
@pytest.mark.slow_unless(name="shares")
@pytest.mark.slow_unless(loss=Softmax(3))
def test_columns_that_rounding_made_independent_are_certified_within_reach(loss, name):
    X = nearly_collinear(name, 1100)
    rng = np.random.default_rng(9)
    y = (X / np.abs(X).max(axis=0)).sum(axis=1) + rng.normal(size=1100)
    y = y if loss == Squared() else np.arange(1100.0) % 3 if loss == Softmax(3) else rng.choice([-1.0, 1.0], 1100)
    for rows in (X, sp.csr_array(X)) if loss == Squared() else (X,):
        problem = pooled(rows, y, loss)
        best = problem.solve()
        assert not best.attained
        assert not best.unique
        assert best.lower == 0.0
        assert best.gap_within <= 1e-9 * best.value
        assert best.reach >= max(1e3, 10.0 * problem.reach(best.w.ravel()))
        assert f"up to reach {best.reach:.3g}" in best.certificate
        inside, outside = best.w, best.w * (1.01 * best.reach / problem.reach(best.w.ravel()))
        gap = problem.measure(np.stack([inside, outside])).gap
        off = [problem.rounding(w.ravel(), problem.value(w)) for w in (inside, outside)]
        assert abs(gap[0] - best.gap_within) <= 1e-14 + off[0]
        assert gap[1] == pytest.approx(problem.value(outside) + off[1], rel=1e-14)  # beyond: only F >= 0


@pytest.mark.parametrize("name", NEARLY)
@pytest.mark.slow_unless(name=["shares", "sums", "other units", "a hundred times"])
def test_no_ridge_solution_within_reach_lies_below_the_bound(name):
    """Along the path of ridge solutions, in 50 digits, F falls towards its infimum; what lies within reach may not."""
    X = nearly_collinear(name, 25)
    y = np.random.default_rng(4).normal(size=25)
    problem = pooled(X, y, Squared())
    best, found = problem.solve(), 0
    with mp.workdps(60):
        A, b = mp.matrix(X.tolist()), mp.matrix(y.tolist())
        for power in range(4, 36, 4):
            D = mp.diag([mp.mpf(10) ** -power * (A.T * A)[j, j] for j in range(A.cols)])
            w = mp.lu_solve(A.T * A + D, A.T * b)
            if sum(abs(v) * s for v, s in zip(w, np.abs(X).max(axis=0), strict=True)) <= best.reach:
                found += 1
                assert mp.norm(A * w - b) ** 2 / 50 >= best.lower_within
    assert found >= 3


def test_minimax_bounds_within_reach():
    X = nearly_collinear("a hundred times", 300)
    y = X[:, 0] + np.random.default_rng(9).normal(size=300)
    problem = Problem(Federation.from_arrays(X, y, np.arange(300) % 3), Squared())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best = problem.solve_minimax(tol=1e-9)
    assert best.lower <= 0.0 < best.lower_within <= best.value
    assert best.gap_within <= 1e-9 * best.value
    assert best.reach >= 1e3
    plain = Problem(Federation.from_arrays(X[:, :3], y, np.arange(300) % 3), Squared()).solve_minimax()
    assert abs(plain.value - best.value) <= best.gap_within + plain.gap  # the same scores, but for rounding
    off = problem.by_domain.rounding(best.w, best.value)
    assert measure_minimax(problem, minimax.Simplex(), best.w[None])[1][0] <= best.gap_within + off * (1.0 + 1e-9)


def test_what_certificates_say_of_a_quadratic_and_of_a_loss_without_curvature():
    X, y = one_ulp_apart(50, 40)
    assert "no minimiser" not in pooled(X, y, Squared()).solve().certificate  # a quadratic has one
    assert "no minimiser" in pooled(X, y, Logistic()).solve().certificate
    with pytest.raises(TypeError, match=r"define curvature\(z, y\)"):
        pooled(X, y, Bare()).solve()
    with pytest.raises(TypeError, match=r"define curvature\(z, y\)"):
        pooled(X, y, Bare()).solve_minimax()
    with pytest.raises(TypeError, match="SmoothedHinge"):
        pooled(X, y, Hinge()).hessian(np.zeros(2))


@declares(smoothness=1.0)
class Bare(NamedTuple):
    """Half a square, of which only the slope is known."""

    def value(self, z, y):
        return 0.5 * (z - y) ** 2

    def slope(self, z, y):
        return z - y


def one_hot(n, sizes, seed):
    rng = np.random.default_rng(seed)
    return np.hstack([np.ones((n, 1))] + [np.eye(s)[rng.integers(0, s, n)] for s in sizes])


def collinear(name):
    rng = np.random.default_rng(5)
    A = rng.normal(size=(80, 3))
    return {
        "copies": A[:, [0, 1, 2, 0, 1]],
        "copies up to powers of two": A[:, [0, 1, 2, 0]] * [1.0, 1.0, 1.0, -(2.0**-40)],
        "empty columns": np.column_stack([np.zeros(80), A, np.zeros(80)]),
        "one-hot and ones": one_hot(80, (4, 3, 3), 1),
        "one-hot, tenths": 0.1 * one_hot(80, (4,), 2)[:, 1:].repeat(2, axis=1),
        "whole numbers": rng.integers(-9, 9, (80, 2)) @ np.array([[1, 2, 3, 0], [0, 1, -1, 5]]) * 1.0,
        "fewer rows than columns": rng.normal(size=(6, 15)),
        "few distinct rows": rng.normal(size=(6, 15))[rng.integers(0, 6, 30)],
    }[name]


NAMES = (
    "copies", "copies up to powers of two", "empty columns", "one-hot and ones", "one-hot, tenths", "whole numbers",
    "fewer rows than columns", "few distinct rows",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_exactly_collinear_columns_keep_their_certificate(name):
    X = collinear(name)
    y = np.random.default_rng(6).normal(size=len(X))
    _, least, rank = exact_minimum(X, y)
    assert rank_bound(X) == rank_bound(sp.csr_array(X)) == rank < X.shape[1]
    for rows in (X, sp.csr_array(X)):
        best = pooled(rows, y, Squared()).solve()
        assert best.lower <= least
        assert best.gap <= 1e-12
        assert best.attained or best.value < 1e-20
        assert not best.unique
    if len(X) == 80:
        best = pooled(X, np.where(y > 0, 1.0, -1.0), Logistic()).solve()
        assert best.gap <= 1e-11
        assert "self-concordance" in best.certificate
        three = pooled(X, np.arange(80.0) % 3, Softmax(3)).solve()
        assert three.gap <= 1e-11


@pytest.mark.parametrize("name", NAMES)
def test_a_relation_that_one_ulp_breaks_proves_nothing(name):
    X = collinear(name).copy()
    _, _, rank = exact_minimum(X, X[:, 0])
    rng = np.random.default_rng(7)
    for _ in range(5):
        broken = X.copy()
        i, j = (int(rng.integers(0, s)) for s in X.shape)
        broken[i, j] = np.nextafter(broken[i, j], 1e300)
        assert rank_bound(broken) >= exact_minimum(broken, X[:, 0])[2] >= rank


def test_a_value_below_the_lower_bound_is_reported():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    problem = Problem(Federation.from_arrays(X, y, np.arange(30) % 3), Squared(), 0.1)
    best = problem.solve()
    problem.__dict__["lower_bound"] = best.value + 1e-9
    with pytest.warns(ContradictedCertificate, match=r"Problem\(.*certified lower bound.*please report"):
        found = problem.measure(np.stack([best.w, best.w + 1.0]))
    assert found.gap[0] == math.inf
    assert 0.0 < found.gap[1] < math.inf
    problem.__dict__["lower_bound"] = best.value + 1e-17  # within rounding: no contradiction
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problem.measure(best.w[None]).gap[0] <= problem.rounding(best.w, best.value)


def test_a_contradicted_minimax_value_is_reported(monkeypatch):
    rng = np.random.default_rng(3)
    problem = Problem(
        Federation.from_arrays(rng.normal(size=(30, 2)), rng.normal(size=30), np.arange(30) % 3), Squared()
    )
    best, smooth = problem.solve_minimax(), minimax.solve_softmax(problem, 2.0)
    monkeypatch.setattr(minimax, "_known", lambda *a: minimax._Known(best.value + 1e-9, best.value + 1e-9, math.inf))
    with pytest.warns(ContradictedCertificate, match="measure_minimax"):
        assert measure_minimax(problem, minimax.Simplex(), best.w[None])[1][0] == math.inf
    monkeypatch.setattr(
        minimax, "_known", lambda *a: minimax._Known(smooth.value + 1e-9, smooth.value + 1e-9, math.inf)
    )
    with pytest.warns(ContradictedCertificate, match="measure_softmax"):
        assert measure_softmax(problem, 2.0, smooth.w[None])[1][0] == math.inf


def test_a_contradicted_duality_gap_is_reported():
    rng = np.random.default_rng(4)
    fed = Federation.from_arrays(rng.normal(size=(30, 2)), rng.normal(size=30), np.arange(30) % 3)
    problem = MultiTaskProblem(fed, Squared(), MeanRegularised(1.0, 0.5))
    w = problem.solve().w
    alpha = -problem._slopes(problem.task_scores(w))
    V, conjugates = problem.images(alpha), problem.conjugates(alpha)
    assert problem.certificate(w, V, conjugates)[1] < 1e-9
    with pytest.warns(ContradictedCertificate, match="MultiTaskProblem"):
        assert problem.certificate(w, V, conjugates - 1e-8)[1] == math.inf


def test_subnormal_columns_certify_the_least_value_of_the_loss_only():
    """Their rounding is absolute: a relative error analysis put the lower bound above the minimum (campaign, 771)."""
    rng = np.random.default_rng([0, 771])
    X, y = 1e-310 * rng.normal(size=(8, 1)), rng.normal(size=8)
    best = pooled(X, y, Squared()).solve()
    assert best.lower == 0.0 < best.value
    assert not best.attained
    best = pooled(np.hstack([X * 0.0, 1e-150 * np.ones((8, 1))]), y, Squared()).solve()  # empty, and merely small
    assert best.gap <= 1e-12
    assert best.attained


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Exponential(), Softmax(2)], ids=str)
def test_empty_features_only(loss):
    """F does not change at all: every model is a minimiser (campaign, 80)."""
    problem = pooled(
        np.zeros((4, 2)), np.array([1.0, 1.0, 0.0, 1.0] if loss == Softmax(2) else [1.0, 1.0, -1.0, 1.0]), loss
    )
    best = problem.solve()
    assert best.gap <= 1e-14
    assert best.attained


@pytest.mark.parametrize("scale", [1e-100, 1e-8, 1.0, 1e100])
def test_least_squares_are_solved_whatever_the_unit_of_the_labels(scale):
    """Tiny labels met an absolute stopping rule at w = 0: a certified gap of one half of F (campaign, 94)."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    one, other = pooled(X, y, Squared()).solve(), pooled(X, scale * y, Squared()).solve()
    np.testing.assert_allclose(other.w, scale * one.w, rtol=1e-12)
    assert other.gap <= 1e-13 * other.value


def test_overflow_within_reach_is_no_error():
    """Directions left out whose scores overflow: (nu + eta)^2 of floats raised OverflowError (campaign, 75)."""
    rng = np.random.default_rng(1)
    x = 1e140 * rng.normal(size=(20, 1))
    best = pooled(
        np.hstack([x, x / 3.0, 1e-140 * rng.normal(size=(20, 1))]), 1e100 * rng.normal(size=20), Squared()
    ).solve()
    assert not math.isnan(best.gap)
    assert best.lower_within <= best.value


def test_lower_bounds_of_related_tasks_allow_for_the_root_of_their_relation():
    """lam1/lam2 = 1e7: the root of Mbar moved the minimum by 2.5e-12 of it (campaign, 1329)."""
    X, y = np.array([[0.1], [-1.0], [0.05], [-0.1], [-0.2], [-0.9]]), np.array([0.9, -1.0, 0.7, -0.8, -0.4, -0.5])
    lam1, lam2 = 11.774212924166733, 1.1956605650158753e-06
    problem = MultiTaskProblem(Federation.from_arrays(X, y, np.arange(6) % 3), Squared(), MeanRegularised(lam1, lam2))
    best = problem.solve(tol=0.9)
    for found in (best, problem.solve()):
        assert found.lower <= exact_tasks(problem, lam1, lam2) <= found.value + 1e-15


def exact_tasks(problem, lam1, lam2):
    """Least value of mean-regularised tasks of one feature, in 50 digits."""
    fed, m = problem.federation, problem.federation.K
    with mp.workdps(50):
        A, b, constant = mp.zeros(m), mp.zeros(m, 1), mp.mpf(0)
        for t in range(m):
            rows = range(int(fed.ptr[t]), int(fed.ptr[t + 1]))
            x, y, c = [mp.mpf(float(fed.X[i, 0])) for i in rows], [mp.mpf(float(fed.y[i])) for i in rows], problem.c[t]
            A[t, t] = mp.mpf(float(c)) * sum(v * v for v in x) + 2 * mp.mpf(lam2) + 2 * mp.mpf(lam1)
            b[t] = mp.mpf(float(c)) * sum(v * u for v, u in zip(x, y, strict=True))
            constant += mp.mpf(float(c)) * sum(u * u for u in y) / 2
        for s in range(m):
            for t in range(m):
                A[s, t] -= 2 * mp.mpf(lam1) / m
        return constant - (b.T * mp.lu_solve(A, b))[0] / 2


def test_rounding_of_huge_scores_is_squared():
    """A score off by eps 1e20 moves the squared loss by (eps 1e20)^2/2 where l' = 0: exact value 6.4e5, computed 0."""
    X, y = np.array([[0.1, 0.7]]), np.array([1e20 / 3])
    problem = pooled(X, y, Squared())
    best = problem.solve()
    true = exact_value([[Fraction(v) for v in X[0]]], [Fraction(y[0])], [Fraction(v) for v in best.w.tolist()])
    assert abs(float(true) - best.value) <= problem.rounding(best.w.ravel(), best.value) < 1e6 * max(float(true), 1e5)


def nasty(seed):
    """Return rows and labels +-1 (with noise for odd seeds) that are hard on double precision."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 16)), int(rng.integers(1, 6))
    X, y = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], n)
    kind = seed % 8
    if kind == 1:
        X *= 10.0 ** rng.uniform(-150, 150, d)
    elif kind == 2 and d > 1:
        X[:, 1] = X[:, 0] * (1.0 + ULP * rng.integers(0, 2 ** int(rng.integers(1, 40)), n))
    elif kind == 3:
        y = np.where(X[:, 0] > 0, 1.0, -1.0)
    elif kind == 4:
        X = X[:, rng.integers(0, d, d)][rng.integers(0, n, n)]
    elif kind == 5:
        X[:, rng.integers(0, d)] = 0.0
    elif kind == 6:
        X = rng.normal(size=(d, n + d))
        y = rng.choice([-1.0, 1.0], d)
    elif kind == 7:
        X = X @ np.diag(10.0 ** rng.uniform(-8, 8, d)) @ rng.normal(size=(d, d))
    return X, y + (0.3 * rng.normal(size=len(y)) if seed % 16 > 7 else 0.0)


@pytest.mark.slow
def test_nasty_least_squares_against_rational_arithmetic():
    """No lower bound above the exact minimum, no gap below the truth; what is well-conditioned is certified to 1e-9."""
    good = tight = 0
    for seed in range(104):
        X, y = nasty(seed)
        problem = pooled(X, y, Squared())
        best = problem.solve()
        _, least, rank = exact_minimum(X, y)
        A, b = [[Fraction(v) for v in row] for row in X.tolist()], [Fraction(v) for v in y.tolist()]
        true = exact_value(A, b, [Fraction(v) for v in best.w.tolist()])
        assert best.lower <= least, f"seed {seed}: {best.certificate}"
        assert true - least <= best.gap + problem.rounding(best.w, best.value), f"seed {seed}: {best.certificate}"
        size = np.abs(X).max(axis=0)
        s = np.linalg.svd(X / np.where(size > 0.0, size, 1.0), compute_uv=False)
        if s[rank - 1] * 1e8 >= s[0]:
            good += 1
            tight += best.gap <= 1e-9 * max(float(least), 1e-3)
    assert good >= 70
    assert tight >= 0.9 * good, (tight, good)


@pytest.mark.slow
def test_nasty_logistic_regressions_against_fifty_digits():
    for seed in (0, 2, 7, 8, 10, 15, 16, 18):
        X, y = nasty(seed)
        y = np.sign(y)
        problem, w = pooled(X, y, Logistic()), fifty_digits(X, y, Logistic())
        if np.isfinite(w).all():
            assert problem.value(w) >= problem.solve().lower - problem.rounding(w, problem.value(w)), f"seed {seed}"
