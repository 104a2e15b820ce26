"""Constants against brute force, hand-made formulas and random search."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Constants, Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared
from fedconvex.constants import (
    AT_CENTRE,
    BOUND,
    BOUND_ON_BALL,
    EXACT,
    EXACT_ON_BALL,
    INFINITE,
    noise_factor,
    record,
)
from fedconvex.families.multitask.separability import DualConstants
from fedconvex.families.multitask.theorems.dual_rates import of_smooth_losses
from fedconvex.solvers.minimax.ball import largest_on_ball
from fedconvex.theorems.agnostic_rate import agnostic_rate_any_steps
from fedconvex.theorems.parts.tracking import TrackingConstants
from fedconvex.theory.saddle_constants import AgnosticConstants


def make(seed, loss, sparse=False, K=3, d=3, n=40, l2=0.1, weights=None, equal=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.5, 2, size=d)
    if equal:
        X = np.tile(X[: n // K], (K, 1))
        n = len(X)
    y = rng.choice([-1.0, 1.0], n) if not isinstance(loss, Squared) else X @ rng.normal(size=d) + rng.normal(size=n)
    if isinstance(loss, Softmax):
        y = rng.integers(0, loss.n_classes, n)
    clients = np.repeat(np.arange(K), n // K) if equal else np.concatenate([np.arange(K), rng.integers(0, K, n - K)])
    fed = Federation.from_arrays(sp.csr_array(X) if sparse else X, y, clients)
    return Problem(fed, loss, l2, weights)


def row_gradients(problem, k, w):
    """Gradients of the single-row losses of client k with the l2 term, (n_k, d), from the textbook formulas."""
    fed = problem.federation
    rows = slice(fed.ptr[k], fed.ptr[k + 1])
    X = fed.X[rows].toarray() if fed.is_sparse else fed.X[rows]
    z, y = X @ w, fed.y[rows]
    s = z - y if isinstance(problem.loss, Squared) else -y / (1 + np.exp(y * z))
    return s[:, None] * X + problem.l2 * w


def sphere(rng, centre, radius, count):
    v = rng.normal(size=(count, centre.size))
    v *= radius * rng.uniform(0, 1, size=(count, 1)) ** (1 / centre.size) / np.linalg.norm(v, axis=1, keepdims=True)
    return centre + np.vstack([v, radius * v / np.linalg.norm(v, axis=1, keepdims=True)])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_least_squares_constants_by_hand(sparse):
    problem = make(0, Squared(), sparse)
    fed, p = problem.federation, problem.weights
    c = problem.constants(batch_size=2)
    X = fed.X.toarray() if sparse else fed.X
    H = [X[a:b].T @ X[a:b] / (b - a) + 0.1 * np.eye(3) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    b = [X[i:j].T @ fed.y[i:j] / (j - i) for i, j in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    Hbar, bbar = np.tensordot(p, H, 1), np.tensordot(p, b, 1)
    w, W = np.linalg.solve(Hbar, bbar), [np.linalg.solve(h, v) for h, v in zip(H, b, strict=True)]
    np.testing.assert_allclose(c.w_star, w, rtol=1e-10)
    np.testing.assert_allclose(c.L_k, [np.linalg.eigvalsh(h)[-1] for h in H], rtol=1e-12)
    assert c.L == pytest.approx(max(c.L_k))
    assert c.mu == pytest.approx(np.linalg.eigvalsh(Hbar)[0], rel=1e-10)
    assert c.kappa == pytest.approx(c.L / c.mu)
    assert c.L_s == pytest.approx((X**2).sum(1).max() + 0.1)
    # F* - sum p_k F_k* = sum p_k (w* - w_k)' H_k (w* - w_k) / 2
    gamma = sum(q * (w - v) @ h @ (w - v) / 2 for q, v, h in zip(p, W, H, strict=True))
    assert c.Gamma == pytest.approx(gamma, rel=1e-9)
    assert c.zeta_star == pytest.approx(
        math.sqrt(sum(q * np.sum((h @ (w - v)) ** 2) for q, v, h in zip(p, W, H, strict=True))), rel=1e-9
    )
    assert c.xi == pytest.approx(max(np.linalg.norm(v - w) for v in W), rel=1e-9)
    assert c.D == pytest.approx(np.linalg.norm(w), rel=1e-10)
    assert c.zeta == math.inf
    assert {c.how[n] for n in ("L", "mu", "Gamma", "zeta_star", "xi", "D", "F_star")} == {EXACT}
    assert c.how["zeta"] == INFINITE
    for k in range(3):
        g = row_gradients(problem, k, w)
        variance = np.mean(np.sum((g - g.mean(0)) ** 2, axis=1))
        n = len(g)
        assert c.sigma2_star_k[k] == pytest.approx((n - 2) / ((n - 1) * 2) * variance, rel=1e-10)


def test_noise_factor_is_the_variance_of_a_batch_mean():
    """By enumeration: all batches of 2 of 5 numbers, without and with replacement."""
    from itertools import combinations, product

    x = np.array([1.0, -2.0, 0.5, 4.0, -1.0])
    without = np.var([np.mean(b) for b in combinations(x, 2)])
    with_ = np.var([np.mean(b) for b in product(x, repeat=2)])
    assert without == pytest.approx(noise_factor(5, 2, False) * np.var(x))
    assert with_ == pytest.approx(noise_factor(5, 2, True) * np.var(x))
    assert noise_factor(7, 7, False) == 0.0


def ball_maximum_trial(rng, hard=None):
    """max of a convex quadratic over a ball, which random points do not exceed and projected ascent reaches."""
    d = int(rng.integers(1, 6))
    R = rng.normal(size=(d, rng.integers(1, d + 1)))
    A, beta, c, radius = R @ R.T, rng.normal(size=d), rng.normal(), rng.uniform(0.1, 3)
    if rng.random() < 0.25 if hard is None else hard:  # beta orthogonal to the top eigenvector, and sometimes zero
        _, V = np.linalg.eigh(A)
        beta = beta - V[:, -1] * (V[:, -1] @ beta)
        beta *= rng.choice([0.0, 1e-3, 1.0])
    value = c + 2.0 * largest_on_ball(A[None], -beta[None], radius)[0]
    points = sphere(rng, np.zeros(d), radius, 400)
    values = np.einsum("ij,jk,ik->i", points, A, points) + 2 * points @ beta + c
    assert values.max() <= value + 1e-12 * (1 + abs(value))
    axes = np.linalg.eigh(A)[1].T  # ascent starts at both ends of every axis of A, and at twenty points
    v = radius * np.concatenate([axes + 1e-3, -axes - 1e-3, points[-20:] / radius])
    step = 1.0 / (np.linalg.norm(A, 2) + 1e-9)
    for _ in range(2000):
        v = v + step * (v @ A + beta)
        v *= np.minimum(1.0, radius / np.linalg.norm(v, axis=1, keepdims=True))
    reached = (np.einsum("ij,jk,ik->i", v, A, v) + 2 * v @ beta + c).max()
    assert reached <= value + 1e-9 * (1 + abs(value))
    assert reached >= value - 1e-6 * (1 + abs(value))


@pytest.mark.slow
def test_ball_maximum_against_search_and_hard_case():
    rng = np.random.default_rng(1)
    for trial in range(32):
        ball_maximum_trial(rng, hard=trial % 4 == 0)


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.slow_unless(loss=Logistic(), sparse=False)
@pytest.mark.slow_unless(loss=Squared(), sparse=True)
def test_suprema_over_a_ball_are_not_exceeded(loss, sparse):
    for seed in range(4):
        problem = make(seed, loss, sparse, weights="uniform" if seed % 2 else None)
        fed, rng, radius = problem.federation, np.random.default_rng(seed), 1.5
        c = problem.constants(batch_size=3, radius=radius)
        phi = noise_factor(fed.sizes, 3, False)
        best = np.zeros((3, fed.K))
        for w in sphere(rng, c.w_star, radius, 150):
            rows = [row_gradients(problem, k, w) for k in range(fed.K)]
            means = np.array([g.mean(0) for g in rows])
            noise = phi * [np.mean(np.sum((g - g.mean(0)) ** 2, axis=1)) for g in rows]
            best[0] = np.maximum(best[0], noise)
            best[1] = np.maximum(best[1], np.sum(means**2, axis=1) + noise)
            best[2] = np.maximum(best[2], np.linalg.norm(means - problem.weights @ means, axis=1))
            H = problem.hessian(w)
            assert np.linalg.eigvalsh(H)[0] >= c.mu - 1e-12
            assert np.linalg.eigvalsh(H)[-1] <= c.L + 1e-12
        assert (best[0] <= c.sigma2_k * (1 + 1e-10)).all()
        assert (best[1] <= c.G2_k * (1 + 1e-10)).all()
        assert best[2].max() <= c.zeta * (1 + 1e-10)
        label = EXACT_ON_BALL if isinstance(loss, Squared) else BOUND_ON_BALL
        assert c.how["sigma2_k"] == c.how["G2"] == label
        assert c.how["zeta"] in (label, BOUND)
        if isinstance(loss, Squared):  # exact suprema: the search comes close
            assert (best[0] >= 0.8 * c.sigma2_k).all()
            assert best[2].max() >= 0.9 * c.zeta


def test_equal_hessians_have_a_finite_zeta_everywhere():
    problem = make(2, Squared(), equal=True, K=4)
    fed = problem.federation
    c = problem.constants()
    b = np.array([fed.X[i:j].T @ fed.y[i:j] / (j - i) for i, j in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)])
    assert c.zeta == pytest.approx(np.linalg.norm(b - b.mean(0), axis=1).max(), rel=1e-10)
    assert c.how["zeta"] == EXACT


def test_rows_that_clients_share_do_not_count_as_heterogeneity():
    """Rows w and -(c + e) w of one client, w and c w of the other: w cancels, the others' slopes span c + e and c."""
    c, e = 0.01, 0.0002
    X, who = np.array([[1.0], [-(c + e)], [1.0], [c]]), [0, 0, 1, 1]
    problem = Problem(Federation.from_arrays(X, np.ones(4), who), SmoothedHinge())
    zeta = problem.constants().zeta
    assert zeta == pytest.approx((2 * c + e) / 4, rel=1e-12)
    grid = problem.client_gradients(np.array([[-0.5], [0.0], [0.5]]))
    assert zeta == pytest.approx(np.abs(grid[:, 0] - grid[:, 1]).max() / 2, rel=1e-12)  # attained at w = 0


def test_logistic_constants():
    problem = make(3, Logistic(), l2=0.0)
    c = problem.constants()
    H0 = problem.client(0).hessian(np.zeros(3))
    assert c.L_k[0] == pytest.approx(np.linalg.eigvalsh(H0)[-1], rel=1e-12)  # attained at w = 0
    assert c.mu == 0.0
    assert math.isfinite(c.zeta)
    assert c.kappa == math.inf
    far = 50 * np.random.default_rng(0).normal(size=(200, 3))
    g = problem.client_gradients(far)
    spread = np.linalg.norm(g - np.einsum("k,rkd->rd", problem.weights, g)[:, None], axis=2).max()
    assert spread <= c.zeta


def test_dissimilarity_and_centres():
    problem = make(4, Logistic())
    w = np.ones(3)
    g = problem.client_gradients(w)
    expected = math.sqrt(problem.weights @ np.sum(g**2, axis=1)) / np.linalg.norm(problem.weights @ g)
    assert problem.constants(center=w).B == pytest.approx(expected, rel=1e-12)
    assert problem.constants(start=w).D == pytest.approx(np.linalg.norm(w - problem.solve().w))


def test_softmax_smoothness_is_a_bound_and_attained_with_two_classes():
    c = make(5, Softmax(3)).constants()
    assert c.how["L"] == BOUND
    problem = make(5, Softmax(2))
    H = problem.client(1).hessian(np.zeros((2, 3)))
    assert problem.constants().L_k[1] == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-10)
    rng = np.random.default_rng(1)
    three = make(5, Softmax(3))
    for _ in range(30):
        H = three.client(0).hessian(rng.normal(size=(3, 3)) * rng.uniform(0, 3))
        assert np.linalg.eigvalsh(H)[-1] <= c.L_k[0] + 1e-12


def test_hinge_has_no_smoothness_but_other_constants():
    c = make(6, Hinge()).constants(batch_size=1, radius=1.0)
    assert c.L == math.inf
    assert c.how["L"] == INFINITE
    assert c.Gamma >= 0
    assert math.isfinite(c.G2)


def test_clients_without_minimiser_are_said_so():
    fed = Federation.from_clients([([[1.0], [-1.0], [0.5]], [1, -1, 1]), ([[1.0], [-1.0]], [-1, 1])])
    c = Problem(fed, Logistic()).constants()
    assert c.xi == math.inf
    assert c.how["Gamma"] == BOUND
    assert "zeta_star" in str(c)


def test_hand_made_constants_and_bad_batches():
    assert Constants(L=2.0, mu=0.5).kappa == 4.0
    problem = make(7, Squared())
    with pytest.raises(ValueError, match=r"batch_size must lie in 1, \.\.\., \d+ \(client"):
        problem.constants(batch_size=100)
    assert problem.constants(batch_size=100, replacement=True).sigma2_star_k.min() > 0


def test_noise_on_the_whole_space_and_at_a_point():
    squares, logistic = make(8, Squared()), make(8, Logistic(), l2=0.0)
    c = squares.constants(batch_size=1)
    assert (c.sigma2, c.G2, c.how["sigma2"]) == (math.inf, math.inf, INFINITE)
    full = squares.constants()
    assert (full.sigma2, full.how["sigma2"]) == (0.0, EXACT)
    c = logistic.constants(batch_size=1)
    fed = logistic.federation
    means = np.add.reduceat((fed.X**2).sum(axis=1), fed.ptr[:-1]) / fed.sizes
    np.testing.assert_allclose(c.sigma2_k, means)  # |slope| <= 1
    np.testing.assert_allclose(c.G2_k, means)
    w = np.ones(3)
    at = logistic.constants(batch_size=1, center=w)
    rows = [row_gradients(logistic, k, w) for k in range(3)]
    np.testing.assert_allclose(at.sigma2_k, [np.mean(np.sum((g - g.mean(0)) ** 2, axis=1)) for g in rows])
    np.testing.assert_allclose(at.G2_k, [np.mean(np.sum(g**2, axis=1)) for g in rows])
    assert at.how["G2"] == AT_CENTRE


def test_variances_do_not_cancel():
    """Residuals of 1e8 around a spread of 0.1: the variance is that of the spread."""
    rng = np.random.default_rng(9)
    e = 0.1 * rng.normal(size=20)
    y = np.where(np.arange(20) < 10, 1e8, -1e8) + e
    problem = Problem(Federation(np.ones((20, 1)), y, [0, 10, 20]), Squared())
    c = problem.constants(batch_size=1)
    exact = [np.var(y[:10] - 1e8), np.var(y[10:] + 1e8)]
    np.testing.assert_allclose(c.sigma2_star_k, exact, rtol=1e-5)
    np.testing.assert_allclose(problem.constants(batch_size=1, radius=1.0).sigma2_k, exact, rtol=1e-5)


def test_labels_where_there_is_no_minimiser():
    fed = Federation.from_arrays([[1.0], [2.0], [-1.0], [-3.0]], [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 1])
    c = Problem(fed, Logistic()).constants()
    assert c.how["F_star"] == BOUND
    assert c.how["zeta_star"] == "at no minimiser"
    singular = Problem(Federation(np.ones((4, 2)), np.arange(4.0), [0, 2, 4]), Squared()).constants()
    assert singular.mu == 0.0
    assert singular.kappa == math.inf
    assert singular.how["D"] == "to one of the minimisers"


IMPOSSIBLE = {name: {name: -1e-3} for name in record._NUMBERS} | {
    "L_k": {"L_k": np.array([1.0, -1.0])},
    "sigma2_k": {"sigma2_k": [1.0, -1.0]},
    "p": {"p": np.array([1.5, -0.5])},
    "p: sum to one": {"p": np.array([0.5, 1.0])},
    "mu: be at most L;": {"mu": 1.01, "L": 1.0},
    "mu: be at most L_s": {"mu": 1.01, "L": 2.0, "L_s": 1.0},
    "mu_k: be at most L_k": {"mu_k": np.array([1.0, 2.0]), "L_k": np.array([2.0, 1.0])},
    "B": {"B": 0.9},
    "K": {"K": 0},
    "K: be a whole number": {"K": 1.5},
    "have K numbers": {"K": 3, "p": np.array([0.5, 0.5])},
    "D: be a number": {"D": "far"},
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_what_no_problem_has_is_refused(words):
    name, _, must = words.partition(": ")
    expected = "Constants must have K" if words == "have K numbers" else f"Constants: {name} must {must}"
    with pytest.raises((ValueError, TypeError), match=expected):
        Constants(**IMPOSSIBLE[words])
    with pytest.raises((ValueError, TypeError), match=expected):
        replace(Constants(), **IMPOSSIBLE[words])


def test_other_constants_by_hand_are_refused_too():
    """Those of Dynamic FedAvg where they are made, those of AFL and MOCHA by the theorems that take them."""
    one = np.ones(1)
    tracking = dict.fromkeys(("delta_k", "delta_P_k", "sizes", "variance_k", "gradient2_k"), one)
    for change, words in (
        ({"variance_k": -one}, "TrackingConstants: variance_k"),
        ({"nu": 2.0}, "nu must be at most delta_P"),
        ({"sizes": 0.0 * one}, "sizes must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            TrackingConstants(**{"nu": 1.0, "delta_P": 1.0} | tracking | change)
    saddle = AgnosticConstants(*[1.0] * 11, 2, False)
    steps = {"rounds": 3, "step_size": 0.1, "domain_step_size": 0.1}
    assert agnostic_rate_any_steps(saddle, **steps).value > 0.0
    with pytest.raises(ValueError, match="AgnosticConstants: G_w"):
        agnostic_rate_any_steps(saddle._replace(G_w=-1.0), **steps)
    dual = DualConstants(*[1.0] * 7)
    assert len(of_smooth_losses(dual, 0.5)) == 3
    with pytest.raises(ValueError, match="DualConstants: sigma_max"):
        of_smooth_losses(dual._replace(sigma_max=-0.5), 0.5)


def test_what_is_unknown_or_rounded_passes():
    p = np.array([0.1] * 10)  # which sum to one less 1e-16
    known = Constants(L=1.0, mu=1.0 + 1e-12, B=1.0 - 1e-12, sigma2=math.inf, zeta=math.nan, D=math.inf, K=10, p=p)
    assert known.kappa == pytest.approx(1.0) and math.isnan(known.zeta)
    assert Constants(mu_k=np.array([-1.0, 1.0]), L=1.0, mu=0.0, F_star=-3.0).mu_k[0] == -1.0  # a client is not convex


def test_clients_are_solved_once(monkeypatch):
    """No start, ball, mini-batch or weight changes what a client alone finds; another ridge does."""
    problem, solved, alone = make(0, Logistic()), [], Problem.alone
    monkeypatch.setattr(Problem, "alone", lambda self, k: solved.append(k) or alone(self, k))
    first = problem.constants()
    assert len(solved) == 3
    again = problem.reweighted(np.array([0.2, 0.3, 0.5])).constants(batch_size=1, start=np.ones(3), radius=1.0)
    assert len(solved) == 3
    assert np.array_equal(first.F_k_star, again.F_k_star)
    other = Problem(problem.federation, Logistic(), 0.2)
    assert not np.array_equal(first.F_k_star, other.constants().F_k_star) and len(solved) == 6
