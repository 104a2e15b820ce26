"""Boosting on rows of unequal weight: a whole weight is that many repeated rows, and D_1 is the weights."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Exponential, Federation, run
from fedconvex.families.boosting.edges import edges
from fedconvex.methods import FedMultiBoost, MultiBoost
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2, StumpProblem
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts.scope import Scope, holds
from fedconvex.verify import verify

LOSSES = (Exponential(), Logistic2())


def rows(n=24, seed=0):
    """Rows of two domains over four clients with weights 1 to 3, and the numbers of the rows repeated."""
    rng = np.random.default_rng(seed)
    X, who = rng.normal(size=(n, 3)), np.sort(rng.integers(0, 4, n))
    who[:4] = np.arange(4)
    y = np.where(X[:, 0] + 0.7 * rng.normal(size=n) > 0.0, 1.0, -1.0)
    s = rng.integers(1, 4, n)
    return X, y, np.sort(who), s, np.repeat(np.arange(n), s)


def federations(domains=2):
    X, y, who, s, again = rows()
    code = who // (4 // domains)
    weighted = Federation.from_arrays(X, y, who, code, 0.3 * s)
    return weighted, Federation.from_arrays(X[again], y[again], who[again], code[again])


def q(X):
    p = 1.0 / (1.0 + np.exp(-np.asarray(X)[:, 1]))
    return np.column_stack([p, 1.0 - p])


def ensembles(loss, domains=2, **kwargs):
    """The problem with weights and the one with repeated rows, over the stumps of four cuts of the repeated ones."""
    a, b = federations(domains)
    again = rows()[4]
    some = Dictionary.stumps(a, cuts=3)
    spread = Dictionary(some.predictions[again], some.sources)
    mix = q if domains == 2 else None
    return EnsembleProblem(a, some, mix, loss, **kwargs), EnsembleProblem(b, spread, mix, loss, **kwargs)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_values_gradients_certificates_and_solutions(loss):
    a, b = ensembles(loss)
    alpha = np.abs(np.random.default_rng(1).normal(size=a.model_shape)) * 0.1
    same = {"rtol": 1e-12, "atol": 1e-14}
    np.testing.assert_allclose(a.domain_values(alpha), b.domain_values(alpha), **same)
    np.testing.assert_allclose(a.losses_of(a.margins(alpha))[0], a.domain_values(alpha), **same)
    np.testing.assert_allclose(a.domain_gradients(alpha), b.domain_gradients(alpha), **same)
    np.testing.assert_allclose(edges(a, alpha).gradient, a.domain_gradients(alpha), **same)
    np.testing.assert_allclose(a.domain_errors(alpha), b.domain_errors(alpha), **same)
    np.testing.assert_allclose(a.certificate(alpha), b.certificate(alpha), rtol=1e-10, atol=1e-12)
    best, other = a.solve(), b.solve()
    assert best.value == pytest.approx(other.value, rel=1e-10) and best.value - best.lower <= 1e-9


HOW = {
    "plain": {},
    "smoothed": {"smoothing": 5.0},
    "corrected": {"smoothing": 5.0, "corrective": 2},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_multiboost_goes_where_it_goes_on_repeated_rows(loss, how):
    a, b = (run(MultiBoost(**HOW[how]), p, rounds=6, tol=0.0, progress=False) for p in ensembles(loss))
    corrected = how == "corrected"  # solved to 5e-10
    np.testing.assert_allclose(a.w, b.w, rtol=1e-5 if corrected else 1e-9, atol=1e-6 if corrected else 1e-12)
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=5e-9 if corrected else 1e-12)
    np.testing.assert_allclose(a.trace.gap, b.trace.gap, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(a.trace["worst_error"], b.trace["worst_error"], rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("criterion", ["error", "gini"])
def test_stumps(loss, criterion):
    """Midpoints of neighbouring values are the same however often a row is repeated."""
    problems = [StumpProblem(fed, q, loss, criterion=criterion) for fed in federations()]
    a, b = (run(MultiBoost(smoothing=10.0), p, rounds=6, tol=0.0, progress=False) for p in problems)
    np.testing.assert_allclose(a.state.history, b.state.history, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_fedmultiboost(loss):
    a, b = (run(FedMultiBoost(step_size=0.3), p, rounds=6, tol=0.0, progress=False) for p in ensembles(loss))
    np.testing.assert_allclose(a.w, b.w, rtol=1e-12)
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=1e-12)
    np.testing.assert_allclose(a.state.estimate, b.state.estimate, rtol=1e-12)


def test_adaboost_by_hand():
    """D_1 is the weights; a round multiplies by exp(-y alpha h): three rounds with one source and no Q."""
    X, y, who, s, _ = rows()
    fed = Federation.from_arrays(X, y, who, sample_weight=s)
    problem = StumpProblem(fed)
    history = run(MultiBoost(), problem, rounds=3, tol=0.0, progress=False).state.history[0]
    D = s / s.sum()
    for _, j, c, left, right, eta in history:
        u = y * np.where(X[:, int(j)] <= c, left, right)
        edge = D @ u
        assert eta == pytest.approx(0.5 * np.log((1.0 + edge) / (1.0 - edge)), rel=1e-10)
        cuts = [(k, t) for k in range(3) for t in X[:, k]]
        assert edge >= max(abs(D @ (y * np.where(X[:, k] <= t, 1.0, -1.0))) for k, t in cuts) - 1e-12
        D = D * np.exp(-eta * u)
        D /= D.sum()


def test_rows_of_weight_zero_count_for_nothing():
    X, y, who, s, _ = rows()
    s = np.where(np.arange(y.size) == 7, 0.0, s)
    fed = Federation.from_arrays(X, y, who, sample_weight=s)
    flipped = Federation.from_arrays(X, np.where(s > 0.0, y, -y), who, sample_weight=s)
    a, b = (run(MultiBoost(), StumpProblem(f, loss=Logistic2()), rounds=4, progress=False) for f in (fed, flipped))
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=1e-14)
    with pytest.raises(ValueError, match="every domain must have a row of positive weight; got none in 1"):
        code = (np.arange(y.size) == 7).astype(int)
        StumpProblem(Federation.from_arrays(X, y, who, code, s))


def test_trees_begin_with_the_weights():
    X, y, who, s, again = rows()
    a = Dictionary.trees(Federation.from_arrays(X, y, who, sample_weight=s), depth=1, rounds=3)
    b = Dictionary.trees(Federation.from_arrays(X[again], y[again], who[again]), depth=1, rounds=3)
    np.testing.assert_array_equal(a.predictions[again], b.predictions)


@pytest.mark.parametrize("name", ["adaboost", "boosting-progress", "boosting-gradient", "boosting-smoothing"])
def test_theorems_hold_with_weights_and_a_bound_that_ignores_them_is_caught(name):
    """Planted: what is read off a run without weights, where the two rows that weigh most contradict each other."""
    X, y, who, s, _ = rows()
    X[1], y[1] = X[0], -y[0]
    heavy = np.where(np.arange(y.size) < 2, 200.0, 0.01) * np.where(np.arange(y.size) < 2, 1, s)
    problems = []
    for weight in (heavy, None):
        fed = Federation.from_arrays(X, y, who, None, weight)
        problems.append(EnsembleProblem(fed, Dictionary.stumps(fed, cuts=4)))
    p, plain = problems
    theorem, how = THEOREMS[name], {"smoothing": 5.0} if name == "boosting-smoothing" else {}
    nothing = name == "boosting-smoothing"  # of one source: log(1)/mu
    assert verify(name, p, MultiBoost(**how), rounds=4).outcome.name == ("VACUOUS" if nothing else "HOLDS")
    planted = theorem._replace(
        read=lambda t: theorem.read(t._replace(problem=plain)),
        statement=theorem.statement._replace(scope=Scope(*3 * (holds("planted"),))),
    )
    if name != "boosting-smoothing":  # log(p)/mu knows no rows
        assert verify(planted, p, MultiBoost(**how), rounds=4).outcome.name == "VIOLATED"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_compiled(loss):
    a, b = (run(MultiBoost(smoothing=5.0), p, rounds=3, tol=0.0, progress=False) for p in ensembles(loss))
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=1e-12)
