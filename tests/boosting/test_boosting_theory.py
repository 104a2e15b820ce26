"""Theory of boosting with several sources: identities, progress, the two points, margin bounds, planted errors."""

import itertools
import warnings

import numpy as np
import pytest

from fedconvex import Federation, iterate
from fedconvex.families.boosting.edges import edges, margin_losses, stump_complexity, two_points
from fedconvex.families.boosting.theorems.adaboost import adaboost
from fedconvex.families.boosting.theorems.boosting import smoothed_progress
from fedconvex.families.boosting.theorems.boosting_margins import margin_bound, margin_vertex_bound
from fedconvex.methods import MultiBoost
from fedconvex.problems import Presorted, StumpProblem
from fedconvex.theory.complexity import rademacher
from tests.boosting.test_multiboost import LOSSES, instance, plain_losses


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
def test_the_gradient_identity(loss, rng):
    """-(Z_k/m_k)(1 - 2 eps) against central differences of the definition."""
    problem = instance(4, p=3, loss=loss)
    alpha = 0.5 * rng.exponential(size=problem.federation.d)
    found = edges(problem, alpha)
    for j in range(alpha.size):
        e = 1e-6 * np.eye(alpha.size)[j]
        difference = (plain_losses(problem, alpha + e) - plain_losses(problem, alpha - e)) / 2e-6
        np.testing.assert_allclose(found.gradient[:, j], difference, atol=1e-7)
    assert found.error.min() >= 0.0
    assert found.error.max() <= 1.0


def test_adaboost_is_an_equality_for_signs(rng):
    X, y = rng.normal(size=(100, 3)), rng.choice([-1.0, 1.0], 100)
    problem = StumpProblem(Federation.from_arrays(X, y, np.zeros(100, int)))
    gammas = []
    before = None
    for _, state in iterate(MultiBoost(), problem, rounds=30):
        if before is not None:
            D = np.exp(-before) / np.exp(-before).sum()
            u = (state.margins[0] - before) / state.history[0, -1, 5]
            gammas.append(float(D @ u))
            value = problem.losses_of(state.margins[0])[0][0]
            assert value == pytest.approx(adaboost(gammas).value, rel=1e-12)
        before = state.margins[0]


def test_adaboost_holds_for_confidences(rng):
    """Q(l|x) h in [-1, 1]: an inequality."""
    problem = instance(2, p=1)
    gammas, before = [], None
    for _, state in iterate(MultiBoost(), problem, rounds=20):
        if before is not None and state.event[0] == 0:
            D = np.exp(-before) / np.exp(-before).sum()
            gammas.append(float(D @ (state.margins[0] - before) / state.history[0, -1, 5]))
            assert problem.losses_of(state.margins[0])[0][0] <= adaboost(gammas).value * (1 + 1e-12)
        before = state.margins[0]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("mu", [1.0, 30.0])
def test_smoothed_progress_is_guaranteed(loss, mu):
    for seed in range(5):
        problem = instance(seed, p=3, loss=loss)
        before = promised = None
        for _, state in iterate(MultiBoost(smoothing=mu), problem, rounds=20):
            F = plain_losses(problem, state.w[0])
            now = np.logaddexp.reduce(mu * F) / mu
            if before is not None and promised is not None:
                assert before - now >= promised - 1e-14
            pick = problem.steepest(problem.worst(F, mu), problem.losses_of(state.margins[0])[1], state.w[0], False)
            # a step back may end at 0 before it is long enough
            promised = smoothed_progress(now, pick.slope, mu, loss) if pick is not None and pick.forward else None
            before = now


def test_two_points():
    example = two_points()
    assert example.q_error == 0.0
    assert example.convex_error == 0.5
    for beta in np.linspace(0, 1, 101):
        assert example.plain.domain_errors(np.array([beta, 1 - beta])).mean() >= 0.5
    assert example.plain.solve().value == pytest.approx(1.0)  # boosting without Q cannot leave F = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states = list(iterate(MultiBoost(), example.ensemble, rounds=4))
    assert example.ensemble.domain_errors(states[-1][1].w[0]).tolist() == [0.0, 0.0]


def test_margin_losses_by_hand():
    np.testing.assert_allclose(margin_losses([0.3, -0.1, 0.05], [0, 1, 3], 0.1), [0.0, 0.75])


@pytest.mark.slow
def test_stump_complexity_is_the_enumerated_one(rng):
    """All stumps of both sources listed, all sign vectors enumerated, for nine rows."""
    X, Q = rng.normal(size=(9, 2)), rng.dirichlet(np.ones(2), 9)
    domain, mix = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1]), np.array([0.3, 0.7])
    table = []
    for j in range(2):
        v = np.unique(X[:, j])
        for c in [-np.inf, *(0.5 * (v[1:] + v[:-1]))]:
            h = np.where(X[:, j] <= c, -1.0, 1.0)
            table += [s * Q[:, k] * h for s in (-1, 1) for k in range(2)]
    exact = rademacher(np.array(table), domain, mix).value
    estimate = stump_complexity(X, Q, domain, mix, signs=3000)
    assert abs(estimate.value - exact) <= 5 * estimate.error
    top = max(Presorted(X).search(Q[:, k] * (mix / [4, 5])[domain])[1] for k in range(2))
    assert top == pytest.approx(max(t @ (mix / [4, 5])[domain] for t in table))


def test_the_union_is_what_a_combination_across_sources_has():
    """One classifier per source: each R(Q_l H_l) is 0, the combination's is not; max_l would be a false bound."""
    q = np.eye(2)
    h = np.ones(2)
    each = [rademacher([q[:, k] * h], [0, 0], [1.0]).value for k in range(2)]
    assert each == [0.0, 0.0]
    union = rademacher([q[:, k] * h for k in range(2)], [0, 0], [1.0]).value
    # over all combinations alpha >= 0, sum 1: the supremum is at a vertex, for every sign vector
    signs = np.array(list(itertools.product([-1, 1], repeat=2)))
    alphas = [np.array([a, 1 - a]) for a in np.linspace(0, 1, 11)]
    hull = np.mean([max(0.5 * s @ (q @ a) for a in alphas) for s in signs])
    assert union == pytest.approx(hull) == pytest.approx(0.25)


def test_margin_bounds_are_their_terms():
    bound = margin_bound(0.1, 0.01, 2.0, rho=0.5, rows=10_000, cover=101, eps=0.01, delta=0.05)
    deviation = np.sqrt(2.0 * np.log(101 / 0.05) / 20_000)
    assert bound.value == pytest.approx(0.1 + 2 / 0.5 * 0.01 + 0.01 + deviation)
    other = margin_vertex_bound([0.1, 0.2], [0.01, 0.02], [100, 400], rho=0.25, delta=0.1)
    sums = [e + 8 * r + np.sqrt(np.log(20) / (2 * m)) for e, r, m in ((0.1, 0.01, 100), (0.2, 0.02, 400))]
    assert other.value == pytest.approx(max(sums))
    assert "margin" in bound.source


def margin_trial(rng, rounds=60):
    """Boosted stumps on 120 samples of noise: the worst true error is below the bound; is it above its other terms?"""
    p, n, d, rho = 2, 60, 20, 0.3
    test_X, truth = rng.normal(size=(4000, d)), rng.choice([-1.0, 1.0], (p, 4000))  # the true error is 1/2
    X = rng.normal(size=(p * n, d))
    domain, y = np.repeat(np.arange(p), n), rng.choice([-1.0, 1.0], p * n)
    problem = StumpProblem(Federation.from_arrays(X, y, domain, domain))
    *_, (_, state) = iterate(MultiBoost(smoothing=30.0), problem, rounds=rounds)
    f = problem.ensemble(state)
    empirical = margin_losses(state.margins[0] / (f.alpha.sum() / p), problem.bounds, rho / p)
    seed = int(rng.integers(2**31))
    R = [stump_complexity(X, problem.q * p, domain, np.eye(p)[k], signs=20, seed=seed).value for k in range(p)]
    bound = margin_vertex_bound(empirical, R, [n, n], rho=rho / p, delta=0.05)
    sign = np.sign(f.decision_function(test_X))
    worst = max(np.mean(sign != truth[k]) for k in range(p))
    assert worst <= bound.value  # at least 95 % of the time; in fact always
    return {"share": float(worst / bound.value), "needed": bool(worst > bound.value - bound.terms["complexity"])}


@pytest.mark.slow
def test_the_margin_bound_covers(rng):
    """Without the complexity it would often be below the true error."""
    assert sum(margin_trial(rng)["needed"] for _ in range(6)) >= 3


def test_bad_input():
    with pytest.raises(ValueError, match="lie in"):
        adaboost([1.2])
    with pytest.raises(ValueError, match="rho"):
        margin_losses([0.1], [0, 1], 0.0)
    with pytest.raises(ValueError, match="smoothing"):
        smoothed_progress(1.0, -0.1, 0.0)
    with pytest.raises(ValueError, match="one domain and one row"):
        stump_complexity([[0.0], [1.0]], np.ones((3, 1)), [0, 0], [1.0])
    with pytest.raises(ValueError, match="one entry per domain"):
        stump_complexity([[0.0], [1.0]], np.ones((2, 1)), [0, 0], [0.5, 0.5])
