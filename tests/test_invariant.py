"""IRMv1: values, certificates and the federated method, against closed forms, enumeration and grids."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from fedconvex import Federation, FedSGD, Hinge, Logistic, Softmax, Squared, run
from fedconvex.datasets import chain_federation, chain_moments, coloured_federation, federation_of_moments
from fedconvex.methods import IRMv1
from fedconvex.problems import InvariantProblem
from fedconvex.solvers.conic import attempt
from fedconvex.solvers.environments.invariance import (
    Environments,
    best_dual_bound,
    dual_bound,
    least_points,
    moment_solution,
    multiplier_matrix,
    shortfall,
)
from fedconvex.solvers.environments.invariance_boxes import _different, least_in_boxes


def _chain(lam: float) -> InvariantProblem:
    return InvariantProblem(federation_of_moments(*chain_moments((0.2, 2.0))), Squared(), lam)


def _random(seed: int, d: int, E: int, lam: float) -> Environments:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((E, d, d))
    S = A @ A.transpose(0, 2, 1) / d + 0.1 * np.eye(d)
    v = rng.standard_normal(d) * np.where(np.arange(d) < d // 2, 1.0, 0.0) + (
        rng.standard_normal((E, d)) * np.where(np.arange(d) < d // 2, 0.0, 0.6)
    )
    b = np.einsum("eij,ej->ei", S, v)
    return Environments(S, b, np.einsum("ei,ei->e", b, v) + 0.5, lam)


def _least(p: Environments, starts: int = 20, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    center, half = p.box(p.value(p.pooled()[0]))
    return least_points(p, np.vstack([center, center + half * rng.uniform(-1.0, 1.0, (starts, center.size))]))


# minimisers of the population of the chain model, computed by a dense grid and Newton's method elsewhere; each is
# checked here by its gradient, its value and the certificate
CHAIN = [
    (0.01, 0.3372, 0.6703, 0.672453),
    (0.1, 0.3702, 0.6641, 0.695417),
    (1.0, 0.5048, 0.5679, 0.823973),
    (10.0, 0.7299, 0.3603, 1.154625),
    (100.0, 0.8765, 0.1916, 1.507635),
    (1e4, 0.9755, 0.0455, 1.886218),
]


@pytest.mark.parametrize(("lam", "x", "z", "value"), CHAIN)
def test_chain(lam, x, z, value):
    """The population of the chain: minimiser, value, and the certificate that no other point is lower."""
    best = _chain(lam).solve()
    np.testing.assert_allclose(best.w, [x, z], atol=6e-5)
    assert best.value == pytest.approx(value, abs=6e-7)
    assert best.certificate == "M(w) > 0" and best.unique and best.value - best.lower <= 1e-11 + 2e-12 * lam
    grid = np.stack(np.meshgrid(np.linspace(-3, 3, 121), np.linspace(-3, 3, 121)), -1).reshape(-1, 2)
    assert _chain(lam).value(grid).min() >= best.lower


def test_second_minimum_is_shown_and_not_certified():
    """At lam = 10 the chain has a second local minimum, where M is indefinite: it must never be certified."""
    problem = _chain(10.0)
    first, second = problem.minima()
    np.testing.assert_allclose(second, [-0.4125, 0.3287], atol=6e-5)
    assert problem.value(second) == pytest.approx(5.900247, abs=1e-6)
    p = problem.environments
    assert np.linalg.eigvalsh(multiplier_matrix(p, second))[0] < 0.0 and shortfall(p, second) == np.inf
    assert np.linalg.eigvalsh(multiplier_matrix(p, first))[0] > 0.0
    gap = problem.measure(second[None]).gap[0]
    assert gap >= problem.value(second) - problem.value(first) - 1e-9


@pytest.mark.parametrize(("lam", "value"), [(1.0, 0.439412), (10.0, 0.465175), (100.0, 0.566250), (1e4, 0.744545)])
def test_coloured(lam, value):
    """The coloured binary model's values; towards lam = inf the colour is given up, (.5, 0) of risk .75."""
    best = InvariantProblem(coloured_federation(), Squared(), lam).solve()
    assert best.value == pytest.approx(value, abs=6e-7) and best.gap <= 1e-6
    pooled = InvariantProblem(coloured_federation(), Squared(), 0.0).solve()
    np.testing.assert_allclose(pooled.w, [0.290598, 0.598291], atol=1e-6)


def test_values_and_gradients_from_rows():
    """Values, slopes and gradients of squared and logistic loss by finite differences and by the definition."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 3)), np.where(rng.random(30) < 0.5, 1.0, -1.0)
    fed = Federation.from_arrays(X, y, np.arange(30) // 5, domains=np.arange(30) // 15)
    for loss in (Squared(), Logistic()):
        problem, w = InvariantProblem(fed, loss, 0.7), rng.standard_normal(3)
        h = 1e-6

        def risks(v, loss=loss):
            values = np.array([loss.value(z, t) for z, t in zip(X @ v, y, strict=True)])
            return values[:15].mean(), values[15:].mean()

        g = [(up - down) / (2 * h) for up, down in zip(risks((1 + h) * w), risks((1 - h) * w), strict=True)]
        np.testing.assert_allclose(problem.scale_slopes(w), g, rtol=1e-8, atol=1e-9)
        assert problem.value(w) == pytest.approx(sum(risks(w)) + 0.7 * sum(x * x for x in g), rel=1e-8)
        slope = [(problem.value(w + h * e) - problem.value(w - h * e)) / (2 * h) for e in np.eye(3)]
        np.testing.assert_allclose(problem.gradient(w), slope, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(problem.gradient(np.stack([w, 2 * w]))[0], problem.gradient(w), rtol=1e-13)
    p = InvariantProblem(fed, Squared(), 0.7).environments
    assert p.value(w) == pytest.approx(InvariantProblem(fed, Squared(), 0.7).value(w), rel=1e-13)


def test_weak_duality_and_identity():
    """D(mu) <= J everywhere, and J(v) - D(mu(v)) = grad J' M^-1 grad J/4 where M(v) > 0; a planted half is seen."""
    rng, seen = np.random.default_rng(1), 0
    for seed in range(40):
        p = _random(seed, 1 + seed % 5, 1 + seed % 3, float(rng.choice([0.1, 1.0, 10.0])))
        v = rng.standard_normal(p.b.shape[1])
        mu = rng.uniform(0.05, 2.0, len(p.c))
        assert dual_bound(p, mu) <= p.value(v)
        if shortfall(p, v) < np.inf:
            seen += 1
            D = dual_bound(p, 0.5 + 2.0 * p.lam * p.scale_slopes(v))
            assert p.value(v) - D == pytest.approx(shortfall(p, v), rel=1e-8, abs=1e-10)
            assert abs(p.value(v) - D - 0.5 * shortfall(p, v)) > 1e-3 * shortfall(p, v) or shortfall(p, v) < 1e-9
    assert seen >= 10


def _check_bounds(seed: int, d: int) -> str:
    p = _random(seed, d, 2 + seed % 2, 10.0)
    points = _least(p)
    J = p.value(points[0])
    dual, moments = best_dual_bound(p)[0], moment_solution(p, points[0]).lower
    assert dual <= J + 1e-9 * (1 + abs(J)) and moments <= J + 1e-9 * (1 + abs(J)), f"seed {seed}"
    assert moments >= J - 1e-6 * (1.0 + abs(J)) or d > 2, f"seed {seed}: exact for two features"
    if shortfall(p, points[0]) < 1e-9:
        assert abs(moments - J) <= 1e-6 * (1 + abs(J)) and abs(dual - J) <= 1e-5 * (1 + abs(J)), f"seed {seed}"
        for other in points[1:]:
            assert shortfall(p, other) > p.value(other) - J - 1e-9  # a planted local minimum is never certified
        return "M(v) >= 0"
    return "decided" if moments >= J - 1e-6 * (1.0 + abs(J)) else "undecided"


@pytest.mark.slow
def test_bounds_below_every_minimum():
    """Dual and moment bounds lie below the lowest minimum found, and reach it where M(v) >= 0, or d = 2."""
    kinds = [_check_bounds(seed, 2 + seed % 2) for seed in range(4)]
    assert "M(v) >= 0" in kinds


@pytest.mark.slow
def test_bounds_on_random_instances():
    """The same on 40 instances with up to five features; the undecided ones are counted."""
    kinds = [_check_bounds(seed, 2 + seed % 4) for seed in range(4, 44)]
    assert kinds.count("M(v) >= 0") >= 20 and kinds.count("undecided") <= 4, kinds


@pytest.mark.slow
@pytest.mark.parametrize("penalty_weight", [0.0, 10.0])
def test_logistic_boxes(penalty_weight):
    """Coloured model, logistic loss: without penalty naive Bayes exactly; lower bounds lie below a grid's values."""
    problem = InvariantProblem(coloured_federation(), Logistic(), penalty_weight)
    found = problem.boxes(tol=5e-2, boxes=2000)
    grid = np.stack(np.meshgrid(np.linspace(-4, 4, 81), np.linspace(-4, 4, 81)), -1).reshape(-1, 2)
    assert found.value - 5.1e-2 <= found.lower <= min(problem.value(grid).min(), found.value)
    if penalty_weight == 0.0:
        np.testing.assert_allclose(problem.minima()[0], [np.log(3.0), np.log(17.0 / 3.0)], rtol=1e-5)
        assert found.value == pytest.approx(0.708926, abs=1e-6)
    else:
        np.testing.assert_allclose(problem.minima()[0], [1.28842, 1.56918], atol=1e-4)
        assert found.value == pytest.approx(0.763458, abs=1e-6)


def test_invariant_subsets():
    """Chain: the cause alone, of value 2.02; coloured: shape alone, v = .5 of value .75; samples within a tolerance."""
    exact = _chain(1.0).subsets(tol=1e-9)
    assert [s.features for s in exact] == [(0,), ()]
    assert exact[0].w == pytest.approx([1.0, 0.0]) and exact[0].risk == pytest.approx(2.02)
    coloured = InvariantProblem(coloured_federation(), Squared()).subsets(tol=1e-9)
    assert coloured[0].features == (0,) and coloured[0].w[0] == pytest.approx(0.5)
    assert coloured[0].risk == pytest.approx(0.75)
    drawn = InvariantProblem(chain_federation((0.2, 2.0), rows=4000, pairs=1, seed=3), Squared())
    assert drawn.subsets(tol=0.01)[0].features == (0,)
    assert all(s.disagreement > 0.05 for s in drawn.subsets(tol=1e9) if 1 in s.features)


def _problem(sparse: bool = False) -> InvariantProblem:
    import scipy.sparse as sp

    fed = chain_federation((0.5, 1.0, 2.0), rows=12, pairs=2, seed=0)
    X = sp.csr_array(fed.X) if sparse else fed.X
    who = np.repeat(np.arange(6), 6)
    return InvariantProblem(Federation.from_arrays(X, fed.y, who, domains=who // 2), Squared(), 0.1)


@pytest.mark.parametrize("sparse", [False, True])
def test_method_is_gradient_descent(sparse):
    """Rounds are gradient steps on J, clients sharing environments; 2d floats up, 2 once; threads and parts equal."""
    problem = _problem(sparse)
    result = run(IRMv1(step_size=[1e-3, 2e-3]), problem, rounds=5, tol=0, trajectories=2, threads=1)
    w = np.zeros((2, 4))
    for _ in range(5):
        w = w - np.array([[1e-3], [2e-3]]) * problem.gradient(w)
    np.testing.assert_allclose(result.w, w, rtol=1e-12)
    assert result.trace.floats_up[-1] == 6 * 2 + 5 * 6 * 8 and result.trace.floats_down[-1] == 5 * 6 * 4
    again = run(IRMv1(step_size=[1e-3, 2e-3]), problem, rounds=5, tol=0, trajectories=2, threads=3)
    assert np.array_equal(result.w, again.w)


@pytest.mark.slow
def test_automatic_step_falls_and_certifies():
    """With the automatic step J falls in every round, the gap is never below the truth, and ends small."""
    for lam in (0.1, 10.0, 1e3):
        problem = InvariantProblem(coloured_federation(), Squared(), lam)
        result = run(IRMv1(step_size="auto"), problem, rounds=100, tol=1e-9)
        values = result.trace.value
        assert (np.diff(values) <= 1e-12).all()
        true = values - problem.solve().lower
        assert (result.trace.gap >= true - 1e-9).all()
    step = IRMv1(step_size="auto").default_step(_problem()).value
    with pytest.warns(RuntimeWarning, match="diverged"):
        result = run(IRMv1(step_size=1000.0 * step), _problem(), rounds=60, tol=0)
    assert result.status.name == "DIVERGED"


def test_checkpoint(tmp_path):
    """A run resumes bit for bit, and not with another penalty weight."""
    problem, method = _problem(), IRMv1(step_size=1e-3)
    whole = run(method, problem, rounds=6, tol=0)
    run(method, problem, rounds=3, tol=0, checkpoint=tmp_path / "c")
    resumed = run(method, problem, rounds=6, tol=0, checkpoint=tmp_path / "c")
    assert np.array_equal(whole.w, resumed.w)
    other = InvariantProblem(problem.federation, Squared(), 0.2)
    with pytest.raises(ValueError, match="problem"):
        run(method, other, rounds=8, tol=0, checkpoint=tmp_path / "c")


def test_refusals():
    """What cannot be posed is refused by name."""
    problem = _problem()
    fed = Federation.from_arrays(np.eye(4), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1], domains=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="clients of one environment each"):
        InvariantProblem(fed, Squared())
    with pytest.raises(TypeError, match="one output"):
        InvariantProblem(Federation.from_arrays(np.eye(4), [0, 1, 2, 0], [0, 0, 1, 1]), Softmax(3))
    with pytest.raises(TypeError):
        InvariantProblem(Federation.from_arrays(np.eye(4), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1]), Hinge())
    with pytest.raises(TypeError, match="InvariantProblem"):
        run(FedSGD(step_size=0.1), problem, rounds=1)
    with pytest.raises(TypeError, match="wrap it: InvariantProblem"):
        run(IRMv1(step_size=0.1), problem.risk, rounds=1)
    with pytest.raises(ValueError, match="penalty_weight"):
        InvariantProblem(problem.federation, Squared(), -1.0)
    with pytest.raises(ValueError, match="at most 16 features"):
        wide = chain_federation(rows=30, pairs=9)
        InvariantProblem(wide, Squared()).subsets()
    with pytest.raises(ValueError, match="positive semidefinite"):
        federation_of_moments([[[1.0]]], [[2.0]], [1.0])
    with pytest.raises(ValueError, match="backed by a theorem"):
        labels = np.where(problem.federation.y > 0, 1.0, -1.0)
        fed = Federation.from_arrays(problem.federation.X, labels, np.repeat(np.arange(6), 6))
        run(IRMv1(step_size="auto"), InvariantProblem(fed, Logistic()), rounds=1)


def _squared(X, y, lam: float = 1.0, **more) -> InvariantProblem:
    return InvariantProblem(Federation.from_arrays(X, y, np.arange(len(y)) % 2, **more), Squared(), lam)


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["small", pytest.param("close", marks=pytest.mark.slow)])
def test_nearly_collinear_columns_are_not_certified_away(kind, lam):
    """A column that second moments cannot resolve may explain everything: min J < 1e-10, and lower is no higher."""
    rng = np.random.default_rng(0)
    y, x = rng.standard_normal(20), rng.standard_normal(20)
    X = np.column_stack([x, 1e-9 * y + (x if kind == "close" else 0.0)])
    problem = _squared(X, y, lam)
    planted = np.array([-1e9 if kind == "close" else 0.0, 1e9])
    assert problem.value(planted) < 1e-10
    best = problem.solve()
    assert best.lower <= problem.value(planted)
    assert problem.measure(np.zeros((1, 2))).gap[0] >= problem.value(np.zeros(2)) - problem.value(planted)
    if kind == "small":
        assert best.value < 1e-10


@pytest.mark.slow
def test_separable_logistic_keeps_the_bound_of_the_risks():
    """Without a minimiser no box holds it; lower is then that of the risks alone, not -inf."""
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [2.0, 0.0]])
    best = InvariantProblem(Federation.from_arrays(X, np.ones(4), [0, 1, 0, 1]), Logistic(), 1.0).solve()
    assert 0.0 <= best.lower <= 0.6931472 and np.isfinite(best.gap)


@pytest.mark.slow
def test_collinear_and_empty_columns():
    """A sum of columns, a column of zeros, nothing but zeros: solved, and nothing false is certified."""
    rng = np.random.default_rng(0)
    y, X = rng.standard_normal(20), rng.standard_normal((20, 2))
    plain = _squared(X, y).solve()
    several = _squared(np.column_stack([X, X.sum(axis=1)]), y).solve()
    assert several.value == pytest.approx(plain.value, rel=1e-6) and several.lower <= plain.value
    empty = _squared(np.column_stack([X, np.zeros(20)]), y).solve()
    assert empty.value == pytest.approx(plain.value, rel=1e-9) and empty.gap <= 1e-5
    nothing = _squared(np.zeros((20, 2)), y).solve()
    assert nothing.gap <= 1e-12 * nothing.value
    with pytest.raises(ValueError, match="no curvature"):
        IRMv1(step_size="auto").default_step(_squared(np.zeros((20, 2)), y))


@pytest.mark.parametrize(
    ("size", "target", "lam", "match"),
    [
        (1e150, 1.0, 1.0, "features must be at most"),
        (1e-162, 1.0, 1.0, "features must be 0, or at least"),
        (1.0, 1e90, 1.0, "targets must be at most 1e\\+120"),
        (1.0, 1e152, 0.0, "targets must be at most 1e\\+290"),
        (1.0, 1.0, 1e300, "penalty_weight must be at most"),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_what_leaves_double_precision_is_refused(size, target, lam, match, sparse):
    """Moments that overflow or lose their digits below the smallest normal number are refused by name."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    X, y = size * np.abs(rng.standard_normal((6, 2))), target * rng.standard_normal(6)
    with pytest.raises(ValueError, match=match):
        _squared(sp.csr_array(X) if sparse else X, y, lam).solve()


def test_starting_points_are_heard():
    """Another number of starting points is another search."""
    problem = _chain(10.0)
    assert problem.solve(0) is problem.solve(0) and problem.solve(0) is not problem.solve(3)


def test_dual_bound_knows_what_cancels():
    """Multipliers of both signs, environments that are equal: what their difference loses is not certified."""
    A = np.random.default_rng(0).standard_normal((5, 3))
    S, v = A.T @ A / 5, np.array([3.0, -1.0, 2.0])
    p = Environments(np.stack([S, S]), np.stack([S @ v, S @ v]), np.full(2, v @ S @ v), lam=1e40)
    for size in 10.0 ** np.arange(0, 15):
        assert dual_bound(p, np.array([1.0 + size, -size])) <= p.risks(v).sum() + p.rounding(np.zeros(3)), size
    assert dual_bound(p, np.array([2.0, -1.0])) >= -1e-10


@pytest.mark.slow
def test_no_minimiser_is_unique_before_it_is_certified():
    """At lam = 1e16 rounding of J leaves a gap above 1e-6: neither attained nor unique."""
    rng = np.random.default_rng(0)
    best = _squared(rng.standard_normal((20, 2)), rng.standard_normal(20), 1e16).solve()
    assert best.gap > 1e-6 * (1.0 + best.value) and not best.attained and not best.unique


class _Shifted(NamedTuple):
    """Logistic loss less one: negative where it is small, and without a check of labels."""

    def value(self, z, y):
        return np.log1p(np.exp(-y * z)) - 1.0

    def slope(self, z, y):
        return -y / (1.0 + np.exp(y * z))

    def curvature(self, z, y):
        t = np.exp(-abs(z))
        return t / ((1.0 + t) * (1.0 + t))

    def scale_slope_range(self, low, high, y):
        return Logistic().scale_slope_range(low, high, y)


def test_boxes_of_losses_below_zero():
    """Risks of a loss without a lower bound may be negative: nothing cuts the bounds of boxes at zero."""
    X, y = np.array([[1.0], [1.0], [1.0], [1.0]] * 2), np.array([1.0, 1.0, 1.0, -1.0] * 2)
    fed = Federation.from_arrays(X, y, np.arange(8) // 4)
    bounds = [InvariantProblem(fed, loss, 1.0) for loss in (Logistic(), _Shifted())]
    pooled = bounds[0].risk.by_domain.solve()
    bounds[1].risk.by_domain._solution = pooled  # what solves it is not the matter
    w, low = pooled.w, bounds[0].value(pooled.w) - 2.0
    assert bounds[1].value(w) == pytest.approx(low) and low < -0.5
    found = least_in_boxes(bounds[1], w, 1e-3, 2000)
    assert low - 1e-3 - 1e-9 <= found.lower <= low


def test_models_without_a_value_have_no_finite_gap():
    measured = _chain(1.0).measure(np.array([[np.nan, 0.0], [0.0, 0.0]]))
    assert measured.gap[0] == np.inf and np.isfinite(measured.gap[1])


def test_units_do_not_matter():
    """Features of sizes 1e-9 and 1e9 and targets of size 1e3: the same minima, certificate and gap."""
    rows, feature, found = _chain(10.0).federation, np.array([1e-9, 1e9]), []
    for f, t in ((1.0, 1.0), (feature, 1e3)):
        fed = Federation.from_arrays(rows.X * f, rows.y * t, np.arange(6) // 3)
        problem = InvariantProblem(fed, Squared(), 10.0 / t**2)
        best, minima = problem.solve(), np.array(problem.minima())
        found.append((minima * f / t, best.value / t**2, best.gap / t**2, best.certificate))
    assert len(found[0][0]) == 2 and found[0][3] == found[1][3]
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6, atol=1e-8)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-12) and found[1][2] <= 10.0 * found[0][2] + 1e-9
    assert all(np.log2(unit) % 1.0 == 0.0 for unit in problem.environments.scaled()[1])  # so that nothing is rounded


def test_columns_that_are_multiples_are_left_out_of_boxes():
    """A column twice, times -4 or 0, nothing but zeros: the bound of the different columns; almost twice: none."""
    rng = np.random.default_rng(0)
    x, who = rng.standard_normal(6), np.arange(6) % 2
    y = np.where(x * rng.standard_normal(6) > 0, 1.0, -1.0)

    def bounded(*columns):
        problem = InvariantProblem(Federation.from_arrays(np.stack(columns, 1), y, who), Logistic(), 1.0)
        return least_in_boxes(problem, np.full(len(columns), 0.3), 1e-2, 2000)

    alone = bounded(x)
    assert alone.value - alone.lower <= 0.0101
    for columns in ((x, x), (x, -4.0 * x), (x, 0.0 * x), (0.0 * x, x)):
        found = bounded(*columns)
        assert abs(found.value - alone.value) <= 0.0101 and found.value - found.lower <= 0.0101
    nothing = bounded(0.0 * x, 0.0 * x)
    assert nothing.lower <= 2.0 * np.log(2.0) == pytest.approx(nothing.value) and nothing.value - nothing.lower < 0.0101
    almost = x.copy()
    almost[3] = np.nextafter(almost[3], 9.0)
    assert _different(np.stack([x, almost], 1))[0].tolist() == [0, 1]
    assert _different(np.stack([x, -4.0 * x], 1))[1].tolist() == [[1.0, -4.0]]


def test_least_squares_of_any_size():
    """Without a penalty nothing is squared twice: targets of 1e140 are solved, certified and run."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 2)), rng.standard_normal(12)
    small, large = (_squared(X, y * t, 0.0) for t in (1.0, 1e140))
    assert large.solve().value == pytest.approx(1e280 * small.solve().value) and large.solve().gap <= 1e268
    assert run(IRMv1(step_size="auto"), large, rounds=300, tol=1e274).status.name == "CONVERGED"


def test_minima_and_boxes_are_found_once(monkeypatch):
    """`solve`, `minima` and `boxes` share one search; what a caller does to a minimiser is his own."""
    problem, searched = InvariantProblem(coloured_federation(), Logistic(), 0.0), []
    search = InvariantProblem._search
    monkeypatch.setattr(InvariantProblem, "_search", lambda self, n: searched.append(n) or search(self, n))
    first = problem.boxes(0.5)
    first.w[:] = 9.0
    problem.minima()[0][:] = 9.0
    assert problem.boxes(0.5).w.max() < 9.0 and problem.minima()[0].max() < 9.0 and searched == [20]


@pytest.mark.parametrize("make", [chain_moments, chain_federation])
@pytest.mark.parametrize("name", ["scales", "noise_y", "noise_z"])
def test_deviations_are_not_negative(make, name):
    with pytest.raises(ValueError, match=f"{name} must be standard deviations"):
        make(**{"scales": (1.0,)} | {name: (-1.0,)})
    with pytest.raises(ValueError, match="scales must be standard deviations"):
        make(scales=())


def test_a_solver_that_panics_has_given_up_and_ctrl_c_has_not() -> None:
    """Compiled solvers panic with an exception that is no `Exception`; whatever else is none passes through."""

    class PanicException(BaseException):
        pass

    class Programme:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def solve(self, **options: object) -> None:
            raise self.error

    assert not attempt(Programme(PanicException("Eigval error")))
    assert not attempt(Programme(OverflowError()))
    with pytest.raises(KeyboardInterrupt):
        attempt(Programme(KeyboardInterrupt()))
    with pytest.raises(AttributeError):
        attempt(Programme(AttributeError()))


def test_clarabel_has_one_thread():
    """On a busy machine its threads wait for each other: an SDP of half a second took minutes."""
    import cvxpy as cp

    X = cp.Variable((3, 3), PSD=True)
    programme = cp.Problem(cp.Minimize(cp.trace(X)), [X[0, 1] >= 1.0])
    seen, plain = [], programme.solve
    programme.solve = lambda **options: seen.append(options) or plain(**options)
    assert attempt(programme, solver="CLARABEL", tol_gap_abs=1e-9) and abs(programme.value - 2.0) < 1e-6
    assert seen == [{"solver": "CLARABEL", "max_threads": 1, "tol_gap_abs": 1e-9}]


@pytest.mark.filterwarnings("ignore:IRMv1 diverged")
def test_a_step_that_is_too_long_ends_as_diverged():
    """Eigenvalues that overflow are not asked for."""
    assert run(IRMv1(step_size=1e200), _chain(1.0), rounds=12, tol=0).status.name == "DIVERGED"


@pytest.mark.slow
def test_equal_columns_have_a_singular_hessian_and_a_least_point():
    """SciPy's trust region ended at such Hessians with an UnboundLocalError of its own."""
    S, b = np.ones((2, 2, 2)), np.array([[0.19, 0.19], [0.25, 0.25]])
    p = Environments(np.array([0.2157, 0.4124])[:, None, None] * S, b, np.array([0.84, 0.79]), lam=1.8e16)
    starts = np.random.default_rng(0).normal(size=(40, 2))
    points = least_points(p, starts)
    assert points and p.value(points[0]) <= min(p.value(v) for v in starts)
    assert np.linalg.norm(p.gradient(points[0])) <= 1e-6 * np.linalg.norm(p.gradient(starts[0]))
