"""Sharpness and curvature of models, text scores and the Bayesian t-test, each against an independent computation."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.sparse
import scipy.stats

from fedconvex import Federation, Hinge, Logistic, Problem, Softmax, Squared
from fedconvex.penalties import L1
from fedconvex.report import bayesian_t_test, domain_scores, flatness, largest_curvature, sharpness, text_scores
from fedconvex.solvers.certificates.gaps import ContradictedCertificate


def problem(loss, seed=0, **more):
    """Three clients of ten rows, two or three features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 30).astype(float) if isinstance(loss, Softmax) else rng.choice([-1.0, 1.0], 30)
    weight = {"sample_weight": rng.uniform(0.2, 3.0, 30)} if more.pop("weighted", False) else {}
    X = rng.normal(size=(30, 2 if isinstance(loss, Softmax) else 3))
    X = scipy.sparse.csr_matrix(X) if more.pop("sparse", False) else X
    return Problem(Federation.from_arrays(X, y, np.repeat([0, 1, 2], 10), **weight), loss, 0.1, **more)


def climbed(p, w, rho, starts=20, seed=1):
    """The largest rise that SLSQP finds on the ball, from random starts."""
    rng, first, best = np.random.default_rng(seed), p.value(w), 0.0
    rise = lambda e: first - p.value(w + e.reshape(p.model_shape))  # noqa: E731
    slope = lambda e: -p.gradient(w + e.reshape(p.model_shape)).ravel()  # noqa: E731
    ball = {"type": "ineq", "fun": lambda e: rho**2 - e @ e, "jac": lambda e: -2.0 * e}
    for _ in range(starts):
        e = rng.normal(size=p.size)
        found = scipy.optimize.minimize(
            rise, rho * e / np.linalg.norm(e), jac=slope, constraints=[ball], method="SLSQP", options={"ftol": 1e-14}
        )
        if found.x @ found.x <= rho**2 * (1.0 + 1e-9):
            best = max(best, -found.fun)
    return best


def test_least_squares_are_exact():
    """Both ends meet, at the optimum (half the largest eigenvalue times rho^2) and elsewhere; the step attains them."""
    p = problem(Squared(), weighted=True)
    best = p.solve().w
    for w, rho in ((best, 0.3), (best + 1.0, 2.0), (np.array([5.0, 0.0, -3.0]), 1e-4)):
        found = sharpness(p, w, rho)
        assert 0.0 <= found.upper - found.lower <= 1e-12 * found.upper
        assert np.linalg.norm(found.step) == pytest.approx(rho, rel=1e-12)
        assert p.value(w + found.step) - p.value(w) == pytest.approx(found.upper, rel=1e-8, abs=1e-13)
    assert sharpness(p, best, 0.3).upper == pytest.approx(0.5 * 0.09 * largest_curvature(p, best), rel=1e-10)
    assert sharpness(p, best + 1.0, 2.0).upper == pytest.approx(climbed(p, best + 1.0, 2.0, 2), rel=1e-8)


def test_no_gradient_along_the_steepest_direction():
    """F = (w_1^2 + 4 w_2^2)/2 at (1, 0): the maximum of e_1 + e_1^2/2 + 2 e_2^2, by all points of the circle."""
    H, g = np.diag([1.0, 4.0]), np.array([1.0, 0.0])
    for rho in (0.2, 0.4, 1.0):
        at = np.linspace(0.0, np.pi, 20001)
        wanted = (rho * np.cos(at) + 0.5 * rho**2 * np.cos(at) ** 2 + 2.0 * rho**2 * np.sin(at) ** 2).max()
        _, low, high = flatness._over_ball(g, H, rho)
        assert low == pytest.approx(wanted, rel=1e-6) and high == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_intervals_hold_what_a_search_finds():
    """Logistic, softmax, sparse, hinge: the lower end is what SLSQP finds, and nothing exceeds the upper end."""
    cases = [(Logistic(), {"sparse": True}, 1.06), (Softmax(3), {}, 1.4), (Hinge(), {}, 40.0)]
    for loss, more, ratio in cases:
        p = problem(loss, **more)
        w = p.solve().w
        for rho in (0.1, 1.0):
            found, other = sharpness(p, w, rho), climbed(p, w, rho, 6)
            assert found.lower >= other * (1.0 - (1e-6 if loss != Hinge() else 0.02))
            assert other * (1.0 - 1e-9) <= found.upper <= (ratio + 2.0 * (rho - 0.1)) * found.lower


def test_weights_of_rows_count_once():
    """Long rows of small weight: every bound, not their least only, is above what a step attains."""
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(20, 2)), np.where(np.arange(20) < 5, 0.05, 1.0)
    X[:5] *= 20.0
    for loss, y in ((Logistic(), rng.choice([-1.0, 1.0], 20)), (Softmax(2), rng.choice([0.0, 1.0], 20))):
        p = Problem(Federation.from_arrays(X, y, np.arange(20) % 2, sample_weight=weight), loss, 0.01)
        w = 0.1 * np.ones(p.size)
        attained = sharpness(p, p.unflatten(w), 0.1).lower
        g = p.gradient(p.unflatten(w)).ravel()
        bounds = [flatness._over_ball(g, H, 0.1)[2] for H in flatness._matrices_above(p, w, 0.1)]
        assert bounds and min(bounds + flatness._rows_apart(p, w, 0.1)) >= attained > 0.0


def test_rows_apart_start_from_the_loss_with_its_weights():
    """Along one feature with one sign of all labels the bound is attained: F(w - rho) - F(w), without a ridge."""
    weight = np.array([0.1, 1.0, 5.0, 0.4])
    fed = Federation.from_arrays(np.array([[1.0], [2.0], [0.5], [3.0]]), np.ones(4), [0, 0, 1, 1], sample_weight=weight)
    p, w = Problem(fed, Logistic()), np.array([0.3])
    (bound,) = flatness._rows_apart(p, w, 2.0)
    assert bound == pytest.approx(p.value(w - 2.0) - p.value(w), rel=1e-12)


def test_least_squares_hold_the_exact_value_at_small_radii():
    """One feature, in fractions: |g| rho + h rho^2/2. A minimiser's gradient is rounding, which small radii show."""
    rng, outside = np.random.default_rng(3), 0
    for _ in range(10):
        x, y = 10.0 * rng.normal(size=6), 1e5 + rng.normal(size=6)
        p = Problem(Federation.from_arrays(x[:, None], y, [0, 0, 0, 1, 1, 1]), Squared())
        w, rho = p.solve().w, 1e-9
        rows = [(Fraction(a), Fraction(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        g = sum(a * (a * Fraction(float(w[0])) - b) for a, b in rows) / 6
        exact = abs(g) * Fraction(rho) + sum(a * a for a, _ in rows) * Fraction(rho) ** 2 / 12
        found = sharpness(p, w, rho)
        assert Fraction(found.lower) <= exact <= Fraction(found.upper)
        _, low, high = flatness._over_ball(p.gradient(w), p.hessian(w), rho)
        outside += not Fraction(low) <= exact <= Fraction(high)
    assert outside  # without the rounding of the gradient


def test_a_matrix_that_is_too_small_is_caught(monkeypatch):
    """Half the curvature, where the bound is tight, puts the upper end below what a step attains."""
    p, above = problem(Logistic()), flatness._matrices_above
    w = p.solve().w
    monkeypatch.setattr(flatness, "_matrices_above", lambda *a: [0.5 * H for H in above(*a)])
    monkeypatch.setattr(flatness, "STEPS", 20)
    monkeypatch.setattr(flatness, "_rows_apart", lambda *a: [])
    with pytest.warns(ContradictedCertificate, match="rises by .* above the certified bound"):
        found = sharpness(p, w, 0.1)
    assert found.upper == np.inf  # it was below
    monkeypatch.undo()
    assert np.inf > sharpness(p, w, 0.1).upper > found.lower


def test_curvature_is_the_largest_eigenvalue():
    """Of the Hessian by differences of gradients."""
    for loss in (Squared(), Logistic(), Softmax(3)):
        p = problem(loss, weighted=True)
        w = 0.3 * np.ones(p.model_shape)
        steps = 1e-5 * np.eye(p.size).reshape(-1, *p.model_shape)
        H = np.array([(p.gradient(w + e) - p.gradient(w - e)).ravel() / 2e-5 for e in steps])
        assert largest_curvature(p, w) == pytest.approx(np.linalg.eigvalsh(0.5 * (H + H.T))[-1], rel=1e-7)


def test_text_scores_by_hand():
    """Perplexity from probabilities row by row; an unknown letter is never right, and stays in the denominator."""
    rng = np.random.default_rng(3)
    X, y, s = rng.normal(size=(12, 2)), np.tile([0.0, 1.0, 2.0], 4), rng.uniform(0.5, 2.0, 12)
    domain = np.repeat(["short", "long"], [4, 8])
    p = Problem(Federation.from_arrays(X, y, np.arange(12), domain, sample_weight=s), Softmax(3), 0.1)
    w = rng.normal(size=(3, 2))
    z = X @ w.T
    P = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    right = z.argmax(axis=1) == y
    found = text_scores(p, w, unknown=[2])
    for i, name in enumerate(found.domains):
        mine = domain == name
        entropy = -np.average(np.log(P[np.arange(12), y.astype(int)])[mine], weights=s[mine])
        assert found.perplexity[i] == pytest.approx(np.exp(entropy), rel=1e-12)
        assert found.accuracy[i] == pytest.approx(np.average(right[mine], weights=s[mine]), rel=1e-12)
        hit = np.average((right & (y != 2))[mine], weights=s[mine])
        assert found.in_vocabulary[i] == pytest.approx(hit, rel=1e-12)
    np.testing.assert_allclose(np.log(found.perplexity), domain_scores(p, w).loss, rtol=1e-12)
    assert found.total_in_vocabulary == pytest.approx(np.average(right & (y != 2), weights=s), rel=1e-12)


def test_unknown_words_stay_in_the_denominator():
    """Two domains of 30 rows, four classes, the last unknown, 3 and 7 of their rows: 15 and 12 words are predicted."""
    y = np.concatenate([np.arange(27) % 3, [3] * 3, np.arange(23) % 3, [3] * 7]).astype(float)
    said = y.copy()
    said[15:27], said[30 + 12 : 30 + 23] = 3.0, 3.0  # the other words are taken for unknown ones, and these are found
    fed = Federation.from_arrays(np.eye(4)[said.astype(int)], y, np.arange(60) // 30)
    found = text_scores(Problem(fed, Softmax(4)), np.eye(4), unknown=[3])
    np.testing.assert_allclose(found.in_vocabulary, [0.5, 0.4], rtol=1e-15)  # not 15/27 = .556 and 12/23 = .522
    np.testing.assert_allclose(found.accuracy, [18 / 30, 19 / 30], rtol=1e-15)
    assert found.total_in_vocabulary == 27 / 60


def test_the_bayesian_t_test_by_integration():
    """The published example, and the density integrated; without spread the posterior is a point."""
    found = bayesian_t_test(np.linspace(-0.01, 0.03, 10), 0.1, 0.01)
    np.testing.assert_allclose(found[:3], [0.005122, 0.494878, 0.5], atol=5e-7)
    d = np.random.default_rng(0).normal(0.02, 0.03, 8)
    scale = np.sqrt((1 / 8 + 0.25 / 0.75) * d.var(ddof=1))
    density = lambda x: scipy.stats.t.pdf((x - d.mean()) / scale, 7) / scale  # noqa: E731
    found = bayesian_t_test(d, 0.25, 0.015)
    assert found.within == pytest.approx(scipy.integrate.quad(density, -0.015, 0.015)[0], abs=1e-10)
    assert found.above == pytest.approx(scipy.integrate.quad(density, 0.015, np.inf)[0], abs=1e-10)
    assert found.within - bayesian_t_test(d, 0.0, 0.015).within > 0.01  # a forgotten correlation would be seen
    assert bayesian_t_test([0.02, 0.02], 0.1, 0.01)[:3] == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bayesian_t_test([0.1], 0.1, 0.0), r"at least two numbers; got shape \(1,\)"),
        (lambda: bayesian_t_test([0.1, 0.2], 1.0, 0.0), r"correlation must lie in \[0, 1\)"),
        (lambda: bayesian_t_test([0.1, np.nan], 0.1, 0.0), "differences"),
        (lambda: sharpness(problem(Squared()), np.zeros(3), 0.0), "sharpness: radius"),
        (lambda: sharpness(problem(Squared(), penalty=L1(0.1)), np.zeros(3), 1.0), "have no penalty"),
        (lambda: largest_curvature(problem(Hinge()), np.zeros(3)), "curvature"),
        (lambda: text_scores(problem(Logistic()), np.zeros(3)), "Softmax loss"),
        (lambda: text_scores(problem(Softmax(3)), np.zeros((3, 2)), unknown=[0, 1, 2]), "leave a class"),
        (lambda: text_scores(problem(Softmax(3)), np.zeros((3, 2)), unknown=[3]), "unknown must be at most 2"),
    ],
)
def test_what_is_refused(call, words):
    """By name, with what was given."""
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize("radius", [0.0, -1.0, 5e-324, 1e308, float("inf")])
def test_radii_without_squares_are_refused(radius):
    problem = Problem(Federation.from_arrays(np.eye(2), [1.0, 0.0], [0, 1]), Squared())
    with pytest.raises(ValueError, match="sharpness: radius must be"):
        sharpness(problem, [0.0, 0.0], radius)
