"""Theorems on compressed methods: proofs on drawn states, published forms, planted errors that are caught."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedconvex.constants import Constants
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.compressed_descent import compressed_descent_step
from fedconvex.theorems.error_feedback import error_feedback_factor, error_feedback_step
from fedconvex.theorems.parts.instances import unequal_hessians
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.parts.theorem import Check
from fedconvex.verify import Outcome
from fedconvex.verify.checking import carried_out
from tests.test_baseline_theorems import outcomes, violated


def drawn(rng):
    """Weights, Hessians of clients with eigenvalues in [mu, L], L = 1, mu and s."""
    K, d, mu, s = (
        int(rng.integers(1, 4)),
        int(rng.integers(1, 4)),
        10.0 ** rng.uniform(-3, -0.1),
        rng.uniform(0.05, 0.95),
    )
    p = rng.dirichlet(np.ones(K))
    H = []
    for _ in range(K):
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        H.append(Q @ np.diag(rng.choice([mu, 1.0, rng.uniform(mu, 1.0)], size=d)) @ Q.T)
    return p, np.array(H), mu, s


def off(rng, v, s):
    """Return v with an error of s ‖v‖ in any direction, often the worst ones: along v, or shared by all clients."""
    e = rng.normal(size=v.shape) if rng.random() < 0.5 else v * rng.choice([-1.0, 1.0])
    return v + s * np.linalg.norm(v, axis=1, keepdims=True) * e / np.linalg.norm(e, axis=1, keepdims=True)


def test_potentials_of_error_feedback_shrink_by_r_squared_whatever_the_clients():
    """80 drawn states of EF21 and EF, any weights and compressors; s^(1/2) in the place of r is not enough."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(80):
        p, H, mu, s = drawn(rng)
        K, d, _ = H.shape
        gamma = rng.uniform(0.1, 1.05) * error_feedback_step(Constants(L=1.0, mu=mu), delta=1.0 - s * s)
        if gamma >= 2.0 * (1.0 - s) / (1.0 + s):
            continue
        rate = error_feedback_factor(Constants(L=1.0, mu=mu), step_size=gamma, delta=1.0 - s * s)
        at_star = rng.normal(size=(K, d))
        at_star -= p @ at_star  # gradients at the minimiser, 0
        grad = lambda x, at=at_star, H=H: H @ x + at  # noqa: E731
        V = lambda x, g, p=p, s=s, grad=grad: s * np.sum((p @ grad(x)) ** 2) + p @ np.sum((g - grad(x)) ** 2, axis=1)  # noqa: E731
        x = rng.normal(size=d)
        g = grad(x) + rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=(K, d))
        new = x - gamma * (p @ g)
        later = g + off(rng, grad(new) - g, s)
        assert V(new, later) <= rate * V(x, g) * (1 + 1e-12)
        W = lambda x, e, p=p, s=s: np.sum((x - p @ e) ** 2) + p @ np.sum(e * e, axis=1) / s  # noqa: E731
        e = rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=(K, d))
        wanted = e + gamma * (H @ x)
        c = off(rng, wanted, s)
        ratio = W(x - p @ c, wanted - c) / W(x, e)
        assert ratio <= rate * (1 + 1e-12)
        largest = max(largest, ratio / rate, V(new, later) / V(x, g) / rate)
    assert largest > 0.99


def test_the_published_rate_is_r_squared():
    """s + (1 + s) (L - mu) lambda/4, lambda the first paper's root, at its step."""
    for L, mu, delta in ((1.0, 0.1, 0.75), (5.0, 0.01, 0.2), (2.0, 1.9, 0.99)):
        s, c = math.sqrt(1.0 - delta), Constants(L=L, mu=mu)
        eta = 2.0 / (L + mu) * (1.0 - s) / (1.0 + s)
        assert eta == pytest.approx(error_feedback_step(c, delta=delta))
        root = math.sqrt((L - mu) ** 2 + 16.0 * L * mu * s / (1.0 + s) ** 2)
        lam = eta / (L + mu) * ((1.0 - s) * (L - mu) + (1.0 + s) * root)
        published = s + 0.25 * (1.0 + s) * (L - mu) * lam
        assert error_feedback_factor(c, step_size=eta, delta=delta) == pytest.approx(published, rel=1e-12)
        for share in (0.9, 1.001):  # and no other step is better
            assert error_feedback_factor(c, step_size=share * eta, delta=delta) > published


def test_multipliers_of_compressed_descent():
    """The form that remains is positive semidefinite; with a rate 1 % better it is not."""
    rng = np.random.default_rng(1)

    def least(mu, s, gamma, rho):
        x0, g0, g1, c = np.eye(4)
        x1, zero, two = x0 - gamma * c, np.zeros(4), lambda a, b: 0.5 * (np.outer(a, b) + np.outer(b, a))
        points = {"0": (x0, g0), "1": (x1, g1), "*": (zero, zero)}
        form = gamma * rho / (2.0 * s) * (s * s * two(g0, g0) - two(c - g0, c - g0))
        for (i, j), weight in {("0", "1"): rho, ("*", "0"): rho * (1 - rho), ("*", "1"): 1 - rho}.items():
            (x, g), (y, h) = points[i], points[j]
            d, e = g - h, x - y  # f_i >= f_j + <h, e> + ...
            right = two(d, d) + mu * two(e, e) - 2.0 * mu * two(d, e)
            form = form - weight * (two(h, e) + right / (2.0 * (1.0 - mu)))
        return np.linalg.eigvalsh(-form)[0] / np.abs(form).max()

    caught = 0
    for _ in range(100):
        mu, s = 10.0 ** rng.uniform(-3, -0.1), rng.uniform(0.02, 0.98)
        gamma = rng.uniform(0.05, 1.0) * 2.0 / (1.0 + s)
        rho = max(1.0 - gamma * (1.0 - s) * mu, gamma * (1.0 + s) - 1.0)
        assert least(mu, s, gamma, rho) > -1e-9
        caught += least(mu, s, gamma, 0.99 * rho) < -1e-6
    assert caught > 90


def test_one_client_is_faster_without_memory():
    """(s + q)/(1 + s q) below r; equal where nothing is sent, or where gradient descent needs one round."""
    for s in (0.01, 0.3, 0.7, 0.99):
        for q in (0.01, 0.5, 0.99):
            L, mu, delta = 1.0 + q, 1.0 - q, 1.0 - s * s
            c = Constants(L=L, mu=mu)
            gamma = compressed_descent_step(c, delta=delta)
            at = {"constants": c, "step_size": gamma, "delta": delta, "rounds": 1, "start_gap": 1.0}
            fast = THEOREMS["compressed-descent"].bound(**at).value
            assert fast == pytest.approx(((s + q) / (1.0 + s * q)) ** 2, rel=1e-12)
            r2 = error_feedback_factor(c, step_size=error_feedback_step(c, delta=delta), delta=delta)
            t = math.sqrt(fast)
            gain = s * (1.0 - s) * (1.0 - q) ** 2 * (1.0 + q) / (1.0 + s * q) ** 2
            assert t * t - (1.0 - s) * q * t - s == pytest.approx(-gain, rel=1e-6, abs=1e-15)
            assert fast < r2


# ---------------------------------------------------------------- exact worst cases over functions and compressors


def largest(points, mu, after, before, squares=()):
    """The largest `after` while `before` <= 1, <= 0 for `squares`, over mu-strongly convex 1-smooth functions.

    Points are (x, g, f): x and g in coefficients of a basis of four vectors, f the place of the value, or None for 0.
    What is maximised and bounded are pairs of a form over the basis and of coefficients of the values.
    """
    import cvxpy as cp

    G, f = cp.Variable((4, 4), PSD=True), cp.Variable(2)

    def of(form, values=(0.0, 0.0)):
        return cp.trace(np.asarray(form) @ G) + np.asarray(values) @ f

    conditions = [of(*before) <= 1.0, *(of(q) <= 0.0 for q in squares)]
    for (x, g, a), (y, h, b) in itertools.permutations(points, 2):
        d, e, values = g - h, x - y, np.zeros(2)
        right = both(d, d) + mu * both(e, e) - 2.0 * mu * both(d, e)
        for place, sign in ((a, -1.0), (b, 1.0)):
            if place is not None:
                values[place] += sign
        conditions.append(of(both(h, e) + right / (2.0 * (1.0 - mu)), values) <= 0.0)
    problem = cp.Problem(cp.Maximize(of(*after)), conditions)
    problem.solve(solver="CLARABEL")
    return float(problem.value)


def both(a, b):
    return 0.5 * (np.outer(a, b) + np.outer(b, a))


def square(v):
    return np.outer(v, v)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "delta", "share"), [(0.1, 0.75, 1.0), (0.3, 0.2, 1.0), (0.05, 0.5, 0.6), (0.1, 0.5, 1.04)]
)
def test_rates_are_exact_worst_cases_of_a_round(mu, delta, share):
    """Over all functions and compressors, from all states: r^2 for EF21 and EF, rho^2 for compressed descent."""
    s, c = math.sqrt(1.0 - delta), Constants(L=1.0, mu=mu)
    gamma = share * error_feedback_step(c, delta=delta)
    rate = error_feedback_factor(c, step_size=gamma, delta=delta)
    d, g, new, C = np.eye(4)  # EF21: x+ = x - gamma d
    points = [(0.0 * d, g, 0), (-gamma * d, new, 1)]
    error = [square(C - new + d) - s * s * square(new - d)]
    V = (s * square(g) + square(d - g),)
    assert largest(points, mu, (s * square(new) + square(d + C - new),), V, error) == pytest.approx(rate, rel=1e-5)
    x, e, g, C = np.eye(4)  # EF
    wanted = e + gamma * g
    points = [(x, g, 0), (0.0 * x, 0.0 * x, None)]
    V, W = square(x - e) + square(e) / s, square(x - wanted) + square(wanted - C) / s
    found = largest(points, mu, (W,), (V,), [square(C - wanted) - s * s * square(wanted)])
    assert found == pytest.approx(rate, rel=1e-5)
    x, g, new, C = np.eye(4)  # compressed descent
    gamma = share * compressed_descent_step(c, delta=delta)
    points = [(x, g, 0), (x - gamma * C, new, 1), (0.0 * x, 0.0 * x, None)]
    zero, error = np.zeros((4, 4)), [square(C - g) - s * s * square(g)]
    found = largest(points, mu, (zero, (0.0, 1.0)), (zero, (1.0, 0.0)), error)
    rho = max(1.0 - gamma * (1.0 - s) * mu, gamma * (1.0 + s) - 1.0)
    assert found == pytest.approx(rho**2, rel=1e-5)


# ---------------------------------------------------------------- planted


def changed(factor):
    """The bound with another factor a round, as a function of its arguments."""

    def change(arguments):
        at = {k: arguments[k] for k in ("step_size", "delta")}
        T = arguments["rounds"] - (arguments.get("start_gradient") is not None)
        return (factor(arguments) / error_feedback_factor(arguments["constants"], **at)) ** T

    return change


def slower(arguments):
    """r^2 of a condition number 2 % smaller."""
    c, at = arguments["constants"], {k: arguments[k] for k in ("step_size", "delta")}
    return error_feedback_factor(Constants(L=c.L, mu=float(np.min(c.mu_k)) * 1.02), **at)


@pytest.mark.slow_unless(name="ef21-convex")
@pytest.mark.parametrize("name", ["ef21-convex", "error-feedback"])
def test_planted_errors_of_feedback(name):
    """A larger mu, the square root of delta, s^2 for r^2: all violated in the rounds of one client."""
    assert outcomes(name, lambda a: 1.0, "flat") == {Outcome.HOLDS}
    assert violated(name, changed(slower), "flat")
    assert violated(name, changed(lambda a: math.sqrt(1.0 - a["delta"])), "flat")
    assert violated(name, lambda a: 0.999, "flat")


@pytest.mark.slow
@pytest.mark.compiled
def test_planted_errors_of_the_printed_ef21_and_of_compressed_descent():
    """A bound that is a thousandth too small where one client attains it; a sixth on real rows."""
    assert violated("compressed-descent", lambda a: 0.999, "flat")
    assert violated("compressed-descent", lambda a: 1.0 - 0.02 * a["rounds"], "one parabola")
    assert violated("ef21", lambda a: 0.84, "diabetes")


# ---------------------------------------------------------------- DIANA


def test_planted_errors_of_diana():
    """1 - alpha in the place of 1 - alpha/2, from the optimum where memories alone shrink; half of their weight."""

    def faster(a):
        alpha = 1.0 / (1.0 + a["omega"])
        return ((1.0 - alpha) / (1.0 - 0.5 * alpha)) ** a["rounds"]

    assert outcomes("diana", lambda a: 1.0, "ten directions") == {Outcome.HOLDS}
    assert violated("diana", faster, "ten directions")
    assert violated("diana", lambda a: 0.75, "three clients")


def test_exact_moments_of_diana():
    """From the optimum, Rand-1 of two entries, equal Hessians: 1 - 3 alpha/4 of the potential at first, alpha = 1/2."""
    theorem = THEOREMS["diana"]
    check = next(c for c in theorem.checks if isinstance(c, Check) and c.instance.name == "three clients")
    found = carried_out(theorem, check).verdict
    assert found.measured == pytest.approx(found.bound.value * (1.0 - 0.375) / 0.75, rel=1e-12)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("rounds", [1, 4])
def test_exact_moments_of_diana_are_those_of_its_runs(rounds):
    theorem, problem = THEOREMS["diana"], unequal_hessians.make()
    s = Setting(problem, theorem.method.make(theorem, problem, np.zeros(4), rounds), rounds, np.ones(4))
    exact = theorem.expectation(s, [rounds]).values[0]
    seen = theorem.draw(s, [rounds], 0, 1000)[0]
    off = 4.0 * seen.std() / 1000**0.5
    assert abs(seen.mean() - exact) < off < 0.1 * exact


# ---------------------------------------------------------------- easy to get wrong


def test_several_minimisers_are_too_many_for_error_feedback():
    """The theorem refuses them, and without the hypothesis its bound would be exceeded."""
    theorem = THEOREMS["error-feedback"]
    check = next(c for c in theorem.checks if isinstance(c, Check) and c.instance.name == "three clients")
    found = carried_out(theorem, check)
    assert found.outcome is Outcome.NOT_APPLICABLE
    assert found.dropped["clients that share a minimiser, zeta_* = 0"] > 2.0


def test_top_k_of_a_symmetric_matrix_counts_entries_off_the_diagonal_twice():
    """The energy that one of 28 entries keeps, of 49: of all ones with a larger diagonal, and of drawn matrices."""

    def kept(A, twice, k):
        upper = np.triu_indices(len(A))
        weight = np.where(upper[0] == upper[1], 1.0, 2.0)
        energy = weight * A[upper] ** 2
        best = np.argsort(-(energy if twice else A[upper] ** 2), kind="stable")[:k]
        return energy[best].sum() / energy.sum()

    ones = np.ones((7, 7)) + 1e-3 * np.eye(7)
    assert kept(ones, False, 1) == pytest.approx(1 / 49, rel=1e-2)
    assert kept(ones, False, 1) < 1 / 28 < kept(ones, True, 1)
    rng = np.random.default_rng(0)
    for _ in range(50):
        d, A = 5, rng.standard_cauchy(size=(5, 5))
        k = int(rng.integers(1, 15))
        assert kept(A + A.T, True, k) >= k / (d * (d + 1) / 2) - 1e-12
