"""Certified gaps in one process are never below the truth where all is rounding: against exact numbers."""

from __future__ import annotations

from fractions import Fraction
from operator import mul

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Exponential, Federation, GradientDescent, Logistic, Problem, Squared, VerticalFederation, run
from fedconvex.problems import (
    Covariance,
    GameProblem,
    Independent,
    InvariantProblem,
    MeanRegularised,
    MultiTaskProblem,
    Precision,
    VerticalProblem,
)
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.certificates.gaps import bounded_gap
from fedconvex.solvers.minimax.agnostic import measure_minimax, measure_softmax

X, W = 1e8, 0.3  # the score x w is Y as computed, and 1e-9 off in truth
Y = X * W
RESIDUAL = Fraction(X) * Fraction(W) - Fraction(Y)


@pytest.mark.parametrize("c", [1.1, 1.3])
def test_a_sum_over_many_equal_rows_is_not_above_itself(c):
    """The optimum is c^2/2: naive sums of 4,000 equal losses are off by up to 90 eps, always to the same side."""
    problem = Problem(
        Federation.from_arrays(np.ones((4000, 1)), np.tile([c, -c], 2000), np.zeros(4000, int)), Squared()
    )
    best = problem.solve()
    assert best.w == 0.0
    assert Fraction(best.lower) <= Fraction(c) ** 2 / 2 <= Fraction(best.lower) + Fraction(1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_gradients_of_many_lopsided_rows(wide):
    """Slopes 1.05 c follow as many of -c: sums on the way are large, and the last row makes what is computed nearly 0.

    At w = 0, where l2 is all the convexity, the gap is g^2/(2 l2) of the true gradient g.
    """
    n, x, l2, c, w = 4000, 1e-9, 1e-13, 1.3, np.zeros(2001 if wide else 1)
    rows = (
        sp.csr_array((np.full(n, x), (np.arange(n), np.zeros(n, int))), shape=(n, 2001)) if wide else np.full((n, 1), x)
    )
    y = np.r_[np.full(n // 2, c), np.full(n // 2, -1.05 * c)]
    y[-100:] = 0.0
    for _ in range(4):
        problem = Problem(Federation.from_arrays(rows, y, np.zeros(n, int)), Squared(), l2)
        F, g = problem.value_gradient(w)
        y[-1] += g[0] * n / x
    y = problem.federation.y
    true = -sum(map(Fraction, y.tolist())) * Fraction(x) / n
    assert abs(Fraction(g[0]) - true) <= Fraction(problem.gradient_rounding(w, F)[0])
    gap = bounded_gap(problem, w, F, g, problem.gradient_rounding(w, F)).gap
    assert gap >= true**2 / (Fraction(l2) + Fraction(x) ** 2) / 2 > 0


def exact_gap(l2):
    """F(w) less at most F(y/x), of one row x w = y in exact numbers."""
    return RESIDUAL**2 / 2 + Fraction(l2) * (Fraction(W) ** 2 - (Fraction(Y) / Fraction(X)) ** 2) / 2


@pytest.mark.parametrize("l2", [0.0, 1e-20, 1e-5])
def test_gaps_of_one_model(l2):
    w, rows = np.array([W]), np.array([[X]])
    fed = Federation.from_clients([(rows, [Y])])
    assert exact_gap(l2) > 1e-19
    assert Problem(fed, Squared(), l2).measure(w[None]).gap[0] >= exact_gap(l2)
    wide = Federation.from_clients([(sp.csr_array(([X], ([0], [0])), shape=(1, 2001)), [Y])])  # by the gradient
    assert Problem(wide, Squared(), l2).measure(np.r_[w, np.zeros(2000)][None]).gap[0] >= exact_gap(l2)
    if l2:
        apart = VerticalFederation.from_blocks([[[X]], [[1e-8]]], [Y])
        assert VerticalProblem(apart, Squared(), l2).measure(np.array([[W, 0.0]])).gap[0] >= exact_gap(l2)
    both = Federation.from_arrays([[X], [X]], [Y, Y], clients=[0, 1], domains=[0, 1])
    problem, half = Problem(both, Squared(), l2), np.array([[0.5, 0.5]])
    assert measure_minimax(problem, Simplex(), w[None], half)[1][0] >= exact_gap(l2)
    assert measure_softmax(problem, 2.0, w[None])[1][0] >= exact_gap(l2)


def test_gaps_of_a_model_per_task():
    """Loss, dual variables and their image are 0 as computed."""
    problem = MultiTaskProblem(Federation.from_clients([([[X]], [Y])] * 2), Squared(), Independent(1e-40))
    value, gap = problem.measure(np.full((1, 2, 1), W))
    assert gap[0] >= RESIDUAL**2 - Fraction(W) ** 2 * Fraction(1e-40) > 1e6 * Fraction(float(value[0]))


@pytest.mark.parametrize(
    ("loss", "value"),
    [(Logistic(), lambda u: mp.log1p(mp.exp(-u))), (Exponential(), lambda u: mp.exp(-u)), (Squared(), None)],
    ids=["logistic", "exponential", "squared"],
)
def test_gaps_of_tasks_far_from_zero(loss, value):
    """Two tasks of far-off rows about their minimum: P less that of the best models found, in 60 digits."""
    rng = np.random.default_rng(3)
    pairs = [(20.0 + rng.normal(size=(3, 2)), rng.choice([-1.0, 1.0], 3)) for _ in range(2)]
    problem = MultiTaskProblem(Federation.from_clients(pairs), loss, MeanRegularised(0.5, 1e-3))
    best = problem.solve().w
    with mp.workdps(60):

        def primal(V):
            total, mean = mp.mpf(0), [(V[0, j] + V[1, j]) / 2 for j in range(2)]
            for t, (rows, labels) in enumerate(pairs):
                for x, y in zip(rows.tolist(), labels.tolist(), strict=True):
                    z = mp.fsum(mp.mpf(a) * V[t, j] for j, a in enumerate(x))
                    total += (z - mp.mpf(y)) ** 2 / 2 if value is None else value(mp.mpf(y) * z)
                total += mp.mpf(0.5) * sum((V[t, j] - mean[j]) ** 2 for j in range(2))
                total += mp.mpf(1e-3) * sum(V[t, j] ** 2 for j in range(2))
            return total

        least = min(primal(best * (1.0 + s * rng.normal(size=(2, 2)))) for s in (0.0, 1e-16, 1e-15, 1e-14, 1e-12))
        for s in (0.0, 1e-16, 1e-15, 1e-13, 1e-10):
            V = best * (1.0 + s * rng.normal(size=(2, 2)))
            found = problem.measure(V[None])
            assert found.gap[0] >= primal(V) - least
            assert abs(found.value[0] - primal(V)) <= found.gap[0] < 1e-6


@pytest.mark.filterwarnings("ignore:GradientDescent diverged")
def test_penalties_of_learned_relationships_may_overflow():
    rng = np.random.default_rng(3)
    fed = Federation.from_clients([(rng.normal(size=(5, 2)), rng.normal(size=5)) for _ in range(3)])
    problem = MultiTaskProblem(fed, Squared(), Covariance(0.1))
    assert run(GradientDescent(step_size=1e200), problem, rounds=9, tol=0).status.name == "DIVERGED"


@pytest.mark.parametrize("lam2", [1e-7, 1e-8])
def test_gaps_of_tasks_that_are_tied_far_more_than_shrunk(lam2):
    """Sums of images with Mbar cancel: next to the optimum in 60 digits no bound lies above it."""
    rng, (K, d), lam1 = np.random.default_rng(1), (4, 2), 1.0
    edges = np.triu(np.abs(rng.normal(size=(K, K))), 1)
    path = Precision.laplacian(edges + edges.T, lam1, lam2)
    for relation, omega in ((MeanRegularised(lam1, lam2), None), (path, path.omega)):
        fed = Federation.from_clients([(rng.normal(size=(2, d)), rng.normal(size=2)) for _ in range(K)])
        with mp.workdps(60):
            ones, eye = mp.ones(K), mp.eye(K)
            Q = 2 * (mp.mpf(lam1) * (eye - ones / K if omega is None else mp.matrix(omega)) + mp.mpf(lam2) * eye)
            H, b = mp.zeros(K * d), mp.zeros(K * d, 1)
            for s, t, j in np.ndindex(K, K, d):
                H[s * d + j, t * d + j] += Q[s, t]
            for i, (x, y) in enumerate(zip(fed.X, fed.y, strict=True)):
                for j, k in np.ndindex(d, d):
                    H[i // 2 * d + j, i // 2 * d + k] += mp.mpf(x[j]) * mp.mpf(x[k])
                for j in range(d):
                    b[i // 2 * d + j] += mp.mpf(x[j]) * mp.mpf(y)
            u = mp.lu_solve(H, b)
            least = mp.fsum(mp.mpf(y) ** 2 for y in fed.y) / 2 - mp.fsum(p * q for p, q in zip(u, b, strict=True)) / 2
            problem = MultiTaskProblem(fed, Squared(), relation)
            near = np.array([float(v) for v in u]).reshape(K, d) + 1e-10 * rng.normal(size=(4, K, d))
            for value, gap in zip(*problem.measure(near), strict=True):
                assert mp.mpf(value) - mp.mpf(gap) <= least and gap < 1e-4
            assert problem.solve().lower <= least


def test_certificates_of_games_of_logistic_loss():
    """Slopes are 1/2, and 1 + 1e-17 - 1 is 0 as computed: either player gains 1e-17/6 B, but for 1e-20."""
    rows = ([[1.0], [1e-17], [-1.0]], [1.0, 1.0, 1.0])
    problem = GameProblem(Federation.from_clients([rows, rows]), Logistic(), 1e-20)
    w = np.zeros((2, 1))
    assert problem.certificate(w) == 0.0
    assert 1.99e-37 / 6.0 <= problem.measure(w[None]).gap[0] <= 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 1e-6])
def test_gaps_of_invariant_logistic_models(lam):
    """Scores that cancel are off by 1e-8: J(w) less J of the best model found, in 60 digits."""
    rows, labels = np.array([[1e8, -1e8], [1e8, -1e8], [1e8, -1e8], [1.0, 1.0], [1.0, 1.0]]), [1, 1, -1, 1, -1]
    problem = InvariantProblem(Federation.from_clients([(rows, labels)]), Logistic(), lam)
    best, rng, under = problem.solve(), np.random.default_rng(0), 0

    def value(w):
        with mp.workdps(60):
            Z = [mp.mpf(y) * (mp.mpf(a) * w[0] + mp.mpf(b) * w[1]) for (a, b), y in zip(rows, labels, strict=True)]
            risks, slope = mp.fsum(mp.log1p(mp.exp(-z)) for z in Z) / 5, mp.fsum(-z / (1 + mp.exp(z)) for z in Z) / 5
            return risks + mp.mpf(lam) * slope**2

    for _ in range(20):
        w = rng.uniform(0.1, 0.3) + rng.normal(size=2) * 1e-8
        found = problem.measure(w[None])
        under += found.value[0] < value(w)
        assert found.gap[0] >= value(w) - value(best.w)
        assert found.gap[0] - (found.value[0] - best.lower) >= abs(found.value[0] - value(w))
    assert under


@pytest.mark.parametrize("kind", [sp.csr_array, np.asarray])
def test_a_score_over_many_equal_features_drifts(kind):
    """Of 20,000 equal terms a sum entry by entry is off by up to 2,000 eps; the value of one row is known exactly."""
    d, x, c = 20_000, 0.1, 0.7 / 100.0
    problem = Problem(Federation.from_clients([(kind(np.full((1, d), x)), [-1.0])]), Logistic(), 1e-3)
    with mp.workdps(40):
        for w in (c / 7.0, c / 2.0, c):
            z = d * mp.mpf(x) * mp.mpf(w)
            exact = mp.log1p(mp.exp(z)) + mp.mpf(1e-3) / 2 * d * mp.mpf(w) ** 2
            value = float(problem.value(np.full(d, w)))
            assert abs(value - exact) <= problem.rounding(np.full(d, w), value) < 1e-10


def interpolated(seed):
    """One row x of four features, whose label is met exactly by some model: F* = 0 without l2."""
    rng = np.random.default_rng(seed)
    return 1e6 * rng.normal(size=(1, 4)), 1e6 * rng.normal(size=1)


def exact_loss(x, y, w):
    return (sum(map(mul, map(Fraction, x[0].tolist()), map(Fraction, w.tolist()))) - Fraction(y[0])) ** 2 / 2


def test_gaps_of_solutions_allow_for_the_rounding_of_their_values():
    """F(w) is computed as 0, or nearly, and is what rounding leaves: the gap was less, in most of these."""
    larger = 0
    for seed in range(20):
        x, y = interpolated(seed)
        fed = Federation.from_clients([(x, y)])
        best = Problem(fed, Squared()).solve()
        truth = exact_loss(x, y, best.w)
        assert Fraction(best.gap) >= truth
        assert best.gap_within >= best.value - best.lower_within
        larger += truth > Fraction(best.value) - Fraction(best.lower)
        worst = Problem(fed, Squared()).solve_minimax()
        assert Fraction(worst.gap) >= exact_loss(x, y, worst.w)
    assert larger > 5


@pytest.mark.parametrize("overflow", [1e300, 1e200])
def test_an_entry_at_a_column_of_zeros_overflows_in_no_gap(overflow):
    """0 times the square of the entry was not a number, and nor was the gap."""
    X, y = np.array([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), np.array([1.0, -1.0, 1.0])
    W = np.array([[0.5, overflow], [0.5, 0.0], [overflow, overflow]])
    for loss in (Squared(), Logistic(), Exponential()):
        for l2 in (0.0, 1e-3):
            measured = Problem(Federation.from_arrays(X, y, [0, 1, 1]), loss, l2).measure(W)
            assert not np.isnan(measured.gap).any()
            assert l2 or (measured.value[0] == measured.value[1] and measured.gap[0] == measured.gap[1] < 10.0)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Exponential()])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gaps_where_values_overflow_are_infinite(loss):
    """inf - inf is no gap: those of tasks and games were NaN, which is neither above nor below a goal."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 2)), rng.choice([-1.0, 1.0], 12)
    fed = Federation.from_arrays(X, y, np.repeat([0, 1, 2], 4))
    columns = VerticalFederation.from_blocks([X[:, :1], X[:, 1:]], y)
    problems = [
        *(Problem(fed, loss, l2) for l2 in (0.0, 0.1)),
        *(MultiTaskProblem(fed, loss, relation) for relation in (Independent(0.5), Covariance(0.5))),
        VerticalProblem(columns, loss, 0.1),
    ]
    if not isinstance(loss, Logistic):  # of which the search for the least invariance takes seconds
        problems.append(InvariantProblem(fed, loss, 1.0))
    if not isinstance(loss, Exponential):
        problems.append(GameProblem(fed, loss, 1.0))
    for problem in problems:
        for size in (1e160, 1e308, np.inf):
            gap = problem.measure(np.full((1, *problem.model_shape), size)).gap
            assert gap > 0.0, (problem, size)


@pytest.mark.parametrize("kind", [sp.csr_array, np.asarray])
def test_a_score_that_rounds_up_at_every_term_is_allowed_for(kind):
    """1 and 4,095 terms a little above u: added one by one, each rounds up by nearly u, twice what equal terms do."""
    terms = np.full(4096, 1.01 * 2.0**-53)
    terms[0] = 1.0
    problem = Problem(Federation.from_clients([(kind(terms[None]), [-1.0])]), Squared())
    F, g = problem.value_gradient(np.ones(4096))
    score = sum(map(Fraction, terms.tolist()))
    assert abs(Fraction(F) - (score + 1) ** 2 / 2) <= Fraction(problem.rounding(np.ones(4096), F))
    assert abs(Fraction(g[0]) - (score + 1)) <= Fraction(problem.gradient_rounding(np.ones(4096), F)[0])
