"""Losses that are straight outside a band: minima that are reached without l2, and what certifies them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

from fedconvex import FedAvg, Federation, Hinge, Logistic, Problem, SmoothedHinge, Squared
from fedconvex.loss_traits import declares, traits
from fedconvex.solvers.certificates.bands import band_gap, line_minimum
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory.bound import SHADOW_AVERAGE, AssumptionError, Bound, known_constants
from fedconvex.verify import Outcome, verify

GAMMAS = (0.01, 0.5, 0.9, 1.0, 3.0)


def noisy(seed=0, n=20, d=3, separable=False):
    """Two clients of normal rows whose labels follow the first feature, with noise."""
    rng = np.random.default_rng(seed)
    X, noise = rng.normal(size=(n, d)), rng.normal(size=n)
    y = np.where(X[:, 0] + (0.0 if separable else noise) > 0.0, 1.0, -1.0)
    return X, y, np.repeat([0, 1], n // 2)


def problem_of(gamma, l2=0.0, **rows):
    return Problem(Federation.from_arrays(*noisy(**rows)), SmoothedHinge(gamma), l2)


def exact_value(problem, w):
    """F(w) in fractions."""
    gamma, fed = Fraction(problem.loss.gamma), problem.federation
    total = Fraction(0)
    for x, y, c in zip(fed.X.tolist(), fed.y.tolist(), problem.per_row.tolist(), strict=True):
        m = 1 - Fraction(y) * sum(Fraction(a) * Fraction(b) for a, b in zip(x, w.tolist(), strict=True))
        total += Fraction(c) * (0 if m <= 0 else m * m / (2 * gamma) if m <= gamma else m - gamma / 2)
    return total


def from_outside(problem):
    """The minimum by L-BFGS from many starts of the epigraph form's smooth F, without this package's solvers."""
    fed, gamma, p = problem.federation, problem.loss.gamma, problem.per_row

    def F(w):
        m = 1.0 - fed.y * (fed.X @ w)
        inside = np.clip(m / gamma, 0.0, 1.0)
        return float(p @ (inside * (m - 0.5 * gamma * inside))), -fed.X.T @ (p * fed.y * inside)

    starts = np.random.default_rng(1).normal(size=(5, fed.d))
    options = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 5000}
    return min(scipy.optimize.minimize(F, s, jac=True, method="L-BFGS-B", options=options).fun for s in starts)


# ---------------------------------------------------------------- solutions


@pytest.mark.slow_unless(gamma=0.5, seed=0)
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("seed", [0, 1])
def test_without_l2_the_minimum_is_reached_and_certified(gamma, seed):
    """For gamma < 1 all margins at w = 0 lie beyond the band: the Hessian is zero there."""
    problem = problem_of(gamma, seed=seed)
    best = problem.solve()
    assert best.attained and best.gap < 1e-12
    assert best.value == pytest.approx(from_outside(problem), abs=1e-9)
    assert best.certificate.startswith("bands")
    assert Fraction(best.lower) <= exact_value(problem, best.w) <= Fraction(best.lower) + Fraction(best.gap)


def test_the_zero_model_of_narrow_bands_is_flat_to_second_order():
    problem = problem_of(0.5)
    assert not problem.hessian(np.zeros(3)).any()
    assert problem.value(np.zeros(3)) == 0.75


@pytest.mark.parametrize("l2", [1e-14, 1e-9])
def test_a_small_l2_changes_nothing(l2):
    best, bare = problem_of(0.5, l2).solve(), problem_of(0.5).solve()
    np.testing.assert_allclose(best.w, bare.w, atol=1e-6)
    assert best.gap < 1e-9


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_separable_rows_have_a_minimiser_of_value_zero(gamma):
    """Margins of one are enough; a minimiser is found that is not far beyond."""
    problem = problem_of(gamma, separable=True)
    best = problem.solve()
    assert best.attained and best.value < 1e-30 and best.gap < 1e-12
    assert exact_value(problem, best.w) <= Fraction(best.gap)
    least = scipy.optimize.linprog(  # of the sum of absolute entries, with margins of one
        np.ones(6), np.hstack([a := -problem.federation.y[:, None] * problem.federation.X, -a]), -np.ones(20)
    )
    assert np.abs(best.w).sum() < 50.0 * least.fun


def test_zero_and_repeated_columns_leave_the_certificate():
    X, y, ids = noisy()
    for more in (np.zeros((20, 1)), X[:, :1], 0.5 * X[:, 1:2]):
        best = Problem(Federation.from_arrays(np.hstack([X, more]), y, ids), SmoothedHinge(0.5)).solve()
        assert best.attained and best.gap < 1e-12
        assert best.value == pytest.approx(problem_of(0.5).solve().value, abs=1e-12)


def test_sparse_rows_are_solved_as_dense_ones():
    X, y, ids = noisy()
    X[np.abs(X) < 0.5] = 0.0
    dense, sparse = (
        Problem(Federation.from_arrays(A, y, ids), SmoothedHinge(0.5)).solve() for A in (X, sp.csr_array(X))
    )
    assert sparse.attained and sparse.gap < 1e-12
    np.testing.assert_allclose(sparse.w, dense.w, rtol=1e-9)


def test_rows_that_leave_no_band_are_not_certified():
    """One row with both labels: F is flat for |w| <= 1 - gamma, and no row is in its band."""
    problem = Problem(Federation.from_arrays([[1.0], [1.0]], [1.0, -1.0], [0, 1]), SmoothedHinge(0.5))
    best = problem.solve()
    assert best.attained and best.value == pytest.approx(0.75, abs=1e-15)
    assert (best.lower, best.certificate) == (0.0, "F >= 0")


def test_row_weights_and_free_columns():
    X, y, ids = noisy(3, 40)
    s = np.random.default_rng(2).uniform(0.2, 4.0, 40)
    problem = Problem(Federation.from_arrays(X, y, ids, sample_weight=s), SmoothedHinge(0.5))
    best = problem.solve()
    assert best.attained and best.gap < 1e-12
    assert best.value == pytest.approx(from_outside(problem), abs=1e-9)
    two = Problem(Federation.from_arrays(X, y, ids), SmoothedHinge(0.5), 1e-3, intercept=np.array([True, True, False]))
    best = two.solve()
    assert best.attained and best.gap < 1e-10


def bounds_near_the_minimum(factor=1.0):
    """Where the bound is finite it holds at other models than the minimiser: F(w) - F* against fractions."""
    problem, said = problem_of(0.9), 0
    best = problem.solve()
    for size in 10.0 ** np.arange(-12, 0):
        w = best.w + size * np.random.default_rng(5).normal(size=3)
        F, g = problem.value_gradient(w)
        gap = band_gap(problem, w, g, problem.gradient_rounding(w, F))
        truth = exact_value(problem, w) - exact_value(problem, best.w)
        assert factor * gap >= float(truth) > 0.0
        said += math.isfinite(gap) and gap < 2.0 * float(truth)  # F is a parabola here
    assert said > 5


def test_models_near_the_minimum_are_never_below_the_bound():
    bounds_near_the_minimum()
    with pytest.raises(AssertionError):  # planted: F is a parabola there
        bounds_near_the_minimum(0.5)


def test_a_flat_bottom_is_left_at_its_nearer_end():
    """F(t) = max(0, 1 - t)^2/2 along one row: its least zero is 1, not 2^60."""
    problem = Problem(Federation.from_arrays([[1.0]], [1.0], [0]), SmoothedHinge(1.0))
    assert line_minimum(problem, np.zeros(1), np.array([-0.3])) == pytest.approx(1.0 / 0.3)


@declares(task="regression", lower_bound=0.0, smoothness=1.0, banded=True)
class Huber(NamedTuple):
    """The loss of Huber."""

    lipschitz: float = 1.0

    def value(self, z, y):
        r = abs(z - y)
        return 0.5 * r * r if r <= self.lipschitz else self.lipschitz * (r - 0.5 * self.lipschitz)

    def slope(self, z, y):
        return min(max(z - y, -self.lipschitz), self.lipschitz)

    def curvature(self, z, y):
        return 1.0 if abs(z - y) < self.lipschitz else 0.0

    def check_labels(self, y):
        """Accept every label."""


def test_a_loss_of_ones_own_with_two_straight_sides():
    """Residuals of 5 to 50 from the zero model: no curvature there either."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = X @ [20.0, -7.0] + rng.standard_t(2, size=30) + 60.0 * np.sign(X[:, 0])
    problem = Problem(Federation.from_arrays(X, y, np.zeros(30, int)), Huber())
    best = problem.solve()
    assert traits(Huber()).banded and best.attained and best.gap < 1e-10
    found = scipy.optimize.minimize(
        lambda w: float(np.mean([Huber().value(z, t) for z, t in zip(X @ w, y, strict=True)])), best.w + 1.0
    )
    assert best.value <= found.fun + 1e-12 and found.fun == pytest.approx(best.value, abs=1e-6)


@declares(task="regression", lower_bound=0.0, smoothness=1.0, lipschitz=1.0, self_concordance=2.0)
class LogCosh(NamedTuple):
    """log cosh(z - y): curved everywhere, by e^{-2|z - y|} far out, which is 0 in doubles."""

    def value(self, z, y):
        r = abs(z - y)
        return r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0)

    def slope(self, z, y):
        return math.tanh(z - y)

    def curvature(self, z, y):
        t = math.exp(-2.0 * abs(z - y))
        return 4.0 * t / ((1.0 + t) * (1.0 + t))

    def check_labels(self, y):
        """Accept every label."""


@pytest.mark.slow_unless(unit=1.0)
@pytest.mark.parametrize("unit", [1.0, 20.0, 1000.0])
@pytest.mark.parametrize("l2", [0.0, 1e-14])
def test_a_loss_that_is_straight_in_doubles(unit, l2):
    """Residuals of 50 to 50,000: Newton's direction is none at the zero model, and the solver stood still there."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    y = unit * (X @ [20.0, -7.0, 1.0] + rng.standard_t(2, size=30) + 60.0 * np.sign(X[:, 0]))
    problem = Problem(Federation.from_arrays(X, y, np.zeros(30, int)), LogCosh(), l2)
    best = problem.solve()
    found = scipy.optimize.linprog(  # |z - y| is at most log 2 above the loss: z - y = u - v
        np.r_[np.zeros(3), np.full(60, 1.0 / 30.0)], A_eq=np.hstack([X, -np.eye(30), np.eye(30)]), b_eq=y,
        bounds=[(None, None)] * 3 + [(0.0, None)] * 60,
    )  # fmt: skip
    assert best.attained and found.fun - math.log(2.0) - 1e-9 <= best.value <= found.fun + 1e-6
    assert best.gap < 1e-10 * (1.0 + best.value)


# ---------------------------------------------------------------- verdicts


def fedavg():
    return FedAvg(step_size=0.01, local_steps=2)


@pytest.mark.slow_unless(gamma=0.5)
@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", ["fedavg-convex", "fedavg-refined"])
def test_bounds_without_l2_speak_of_the_true_minimum(gamma, name):
    """The bound was 0 and the excess negative; divided by 1e9, the bound held too."""
    problem = problem_of(gamma)
    verdict = verify(name, problem, fedavg(), rounds=5)
    assert verdict.outcome is Outcome.HOLDS and 0.0 < verdict.measured < verdict.bound.value
    right = THEOREMS[name]

    def small(**given):
        bound = right.bound(**given)
        return Bound({"all": bound.value / 1e9}, bound.quantity, "planted")

    assert verify(right._replace(bound=small), problem, fedavg(), rounds=5).outcome is Outcome.VIOLATED


def test_an_excess_below_zero_is_an_error(monkeypatch):
    """Planted: a minimum that is too high."""
    problem = problem_of(1.0)
    best = problem.solve()
    monkeypatch.setattr(problem, "_solution", replace(best, value=best.value + 0.5, lower=best.value + 0.5))
    verdict = verify("fedavg-refined", problem, fedavg(), rounds=100)
    assert verdict.measured < -0.1
    assert verdict.outcome is Outcome.CONTRADICTED and "no value of it is below 0" in verdict.reason


def test_a_minimum_that_is_hardly_known_is_not_taken_for_one(monkeypatch):
    problem = problem_of(1.0)
    best = problem.solve()
    monkeypatch.setattr(problem, "_solution", replace(best, lower=best.value - 1e-6))
    verdict = verify("fedavg-refined", problem, fedavg(), rounds=5)
    assert verdict.outcome is Outcome.NOT_APPLICABLE and "F* certified" in verdict.reason


@pytest.mark.slow_unless(name=["fedavg-convex", "scaffold"])
@pytest.mark.parametrize("name", [n for n, t in THEOREMS.items() if t.quantity.of_minimum and t.kind is Problem])
def test_separable_logistic_rows_have_no_minimiser(name):
    X, y, ids = noisy(separable=True)
    problem = Problem(Federation.from_arrays(X, y, ids), Logistic())
    theorem = THEOREMS[name]
    assert not problem.solve().attained
    try:
        method = theorem.method.make(theorem, problem, np.zeros(3), 3)
    except AssumptionError as refused:  # its step needs strong convexity
        assert "strongly convex" in str(refused)
        return
    assert verify(name, problem, method, rounds=3, most=64).outcome is Outcome.NOT_APPLICABLE


def test_constants_at_no_minimiser_are_refused():
    X, y, ids = noisy(separable=True)
    constants = Problem(Federation.from_arrays(X, y, ids), Logistic()).constants()
    for name in ("D", "zeta_star", "sigma2_star"):
        with pytest.raises(AssumptionError, match=f"needs {name} at a minimiser"):
            known_constants("a theorem", constants, name)
    assert known_constants("a theorem", Problem(Federation.from_arrays(X, y, ids), Squared()).constants(), "D")[0] > 0.0


def test_a_hinge_without_l2_is_not_applicable():
    problem = Problem(Federation.from_arrays(*noisy()), Hinge())
    for name in ("fedavg-convex", "fedavg-strongly-convex", "weight-divergence-convex"):
        verdict = verify(name, problem, fedavg(), rounds=2)
        assert verdict.outcome is Outcome.NOT_APPLICABLE and "have l2 > 0" in verdict.reason
    mine = Theorem("mine", SHADOW_AVERAGE, lambda _: Bound({"all": 1.0}, SHADOW_AVERAGE, "mine"))
    assert verify(mine, problem, fedavg(), rounds=2).outcome is Outcome.NOT_APPLICABLE
