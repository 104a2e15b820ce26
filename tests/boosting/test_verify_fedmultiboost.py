"""FedMultiBoost's product and rate, why there is no more, and margins of a small loss."""

import math

import numpy as np
import pytest

from fedconvex import Federation, run
from fedconvex.families.boosting.theorems.boosting_margins import empirical_margin_loss
from fedconvex.families.boosting.theorems.fedmultiboost import fedmultiboost, fedmultiboost_weak
from fedconvex.families.boosting.theorems.sources import (
    one_source_listed,
    opposed_classifiers,
    timid_classifier,
    two_sources,
)
from fedconvex.methods import FedMultiBoost, MultiBoost
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2
from fedconvex.theorems import THEOREMS
from fedconvex.theory import AssumptionError
from fedconvex.verify import Outcome, verify
from tests.boosting.test_multiboost import instance


def planted(name, factor):
    """The theorem with a bound times a factor."""
    theorem = THEOREMS[name]

    def bound(*args, **arguments):
        right = theorem.bound(*args, **arguments)
        return type(right)({"planted": factor * right.value}, right.quantity, right.source, right.requires)

    return theorem._replace(bound=bound)


@pytest.mark.filterwarnings("ignore:FedMultiBoost ended above its start")
def test_steps_that_lose_digits_of_edges_violate_nothing():
    """At eta = 20 the factor (1 - gamma) e^20 of a round keeps few digits of gamma."""
    verdict = verify("fedmultiboost", one_source_listed.make(), FedMultiBoost(step_size=20.0), rounds=30, seed=30)
    assert verdict.outcome is Outcome.INCONCLUSIVE and verdict.measured == pytest.approx(verdict.bound.value, rel=1e-3)


@pytest.mark.filterwarnings("ignore:FedMultiBoost ended above its start")
@pytest.mark.slow
def test_the_product_and_the_rate_hold_on_random_dictionaries():
    """Clients and classifiers drawn or not; what is measured is the run's own loss."""
    for seed in range(1, 3):
        problem = instance(seed, p=1 + seed % 3, N=(12, 13))
        for settings in ({}, {"classifiers": 1}, {"step_size": 2.0}):
            method = FedMultiBoost(**{"step_size": 0.4} | settings)
            for name in ("fedmultiboost", "fedmultiboost-weak"):
                verdict = verify(name, problem, method, rounds=8, seed=seed)
                assert verdict.outcome is Outcome.HOLDS or "a classifier in every round" in verdict.reason
            end = run(method, problem, rounds=8, tol=0, seed=seed, progress=False)
            assert verify("fedmultiboost", problem, method, rounds=8, seed=seed).measured == pytest.approx(
                float(problem.losses_of(problem.margins(end.w))[0].max()), rel=1e-12
            )


def test_planted_errors_are_violated():
    stumps, method = one_source_listed.make(), FedMultiBoost(step_size=0.1)
    assert verify(planted("fedmultiboost", 1.0 - 1e-9), stumps, method, rounds=10).outcome is Outcome.VIOLATED
    assert verify(planted("fedmultiboost-weak", 0.99), stumps, method, rounds=3).outcome is Outcome.VIOLATED
    timid = timid_classifier.make()
    assert verify(planted("boosting-margins", 0.98), timid, MultiBoost(), rounds=1).outcome is Outcome.VIOLATED
    for name in ("fedmultiboost", "fedmultiboost-weak"):
        for problem, words in (
            (EnsembleProblem(stumps.data, stumps.dictionary, loss=Logistic2()), "exponential loss"),
            (stumps, "a start at alpha = 0"),
        ):
            start = np.full(problem.model_shape, 0.1) if "start" in words else None
            verdict = verify(name, problem, method, rounds=2, start=start)
            assert verdict.outcome is Outcome.NOT_APPLICABLE and words in verdict.reason
    assert verify("fedmultiboost", stumps, MultiBoost(), rounds=2).outcome is Outcome.NOT_APPLICABLE


@pytest.mark.filterwarnings("ignore:FedMultiBoost ended above its start")
def test_fedmultiboost_can_diverge():
    """No rate without an edge on every domain: the minimum is 1, at alpha = 0, and the loss grows without end.

    F_1 F_2 = exp(0.8 sum alpha), whatever is chosen; MultiBoost stays at the kink.
    """
    problem = opposed_classifiers.make()
    result = run(FedMultiBoost(step_size=0.5), problem, rounds=400, tol=0, progress=False)
    total = 0.5 * np.sum(1.0 / np.sqrt(np.arange(1, 401)))
    assert result.w.sum() == pytest.approx(total, rel=1e-12)
    F = problem.losses_of(problem.margins(result.w))[0]
    assert F.prod() == pytest.approx(math.exp(0.8 * total), rel=1e-10)
    assert F.max() > 1000.0
    rng = np.random.default_rng(0)
    others = rng.exponential(size=(50, 2)) * rng.choice([1e-3, 1.0, 10.0], size=(50, 1))
    assert min(problem.losses_of(problem.margins(a))[0].max() for a in others) > 1.0
    assert not run(MultiBoost(), problem, rounds=5, tol=0, progress=False).w.any()


def test_bounds_by_hand():
    """One round of edges 0.6 and 0.8 at eta = log 2: cosh = 1.25, sinh = 0.75; and c(2) = e/2."""
    assert fedmultiboost([[0.6, 0.8]], [math.log(2.0)]).value == pytest.approx(1.25 - 0.75 * 0.6)
    assert fedmultiboost([[0.6], [-0.5]], [0.0, 0.3]).value == pytest.approx(math.cosh(0.3) + 0.5 * math.sinh(0.3))
    sums = 1.0 + 0.5**0.5 + 3.0**-0.5, 1.0 + 0.5 + 1.0 / 3.0
    weak = fedmultiboost_weak(0.2, step_size=0.3, rounds=3).value
    assert weak == pytest.approx(math.exp(0.045 * sums[1] - 0.06 * sums[0]))
    assert empirical_margin_loss(0.5, total=0.5, rho=2.0).value == 0.5
    assert empirical_margin_loss(0.5, total=4.0, rho=0.5).value == pytest.approx(0.25 * math.e)
    assert empirical_margin_loss(math.exp(-700.0), total=800.0, rho=1.0).value >= 0.125  # a row of margin 700
    assert fedmultiboost([[1.0]], [800.0]).value == 0.0 and fedmultiboost([[-1.0]], [800.0]).value == math.inf
    assert fedmultiboost(np.repeat([[1.0], [-1.0]], 9, axis=0), np.full(18, 100.0)).value == pytest.approx(1.0)
    assert fedmultiboost_weak(1.0, step_size=1e308, rounds=3).value == math.inf
    for wrong, words in (([[1.1]], "lie in"), ([0.5], "be a matrix")):
        with pytest.raises(ValueError, match=words):
            fedmultiboost(wrong, [0.1])
    with pytest.raises(AssumptionError, match="with a classifier"):
        empirical_margin_loss(0.5, total=0.0, rho=1.0)


def test_a_source_without_classifiers_is_named():
    fed = Federation.from_arrays(np.zeros((2, 1)), np.ones(2), [0, 1], [0, 1])
    problem = EnsembleProblem(fed, Dictionary([[1.0], [1.0]], [1]), [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match="have a classifier of every source; got none of source 0"):
        run(FedMultiBoost(step_size=0.1), problem, rounds=1, progress=False)


def test_no_smaller_factor_of_the_margin_loss_would_do():
    """c(x) is the largest of Phi_rho(v/A) e^v over margins v, found on a grid."""
    v = np.linspace(-5.0, 12.0, 17_001)
    for x in (0.3, 1.0, 1.75, 4.0, 9.0):
        largest = float(np.max(np.clip(1.0 - v / x, 0.0, 1.0) * np.exp(v)))
        assert empirical_margin_loss(1.0, total=1.0, rho=x).value == pytest.approx(largest, rel=1e-6)


def test_margins_are_those_of_the_run():
    """The share by hand, with two sources of unequal sizes; an ensemble without classifiers is refused."""
    problem, method = two_sources.make(), MultiBoost(smoothing=5.0)
    verdict = verify("boosting-margins", problem, method, rounds=8)
    w = run(method, problem, rounds=8, tol=0, progress=False).w
    m, A = problem.margins(w), float(w.sum())
    rho = float(np.median(m)) / A + 1.0 / A
    losses = np.clip(1.0 - m / (A * rho), 0.0, 1.0)
    by_domain = [losses[a:b].mean() for a, b in zip(problem.bounds, problem.bounds[1:], strict=False)]
    assert verdict.outcome is Outcome.HOLDS and verdict.measured == pytest.approx(max(by_domain), rel=1e-12)
    nothing = EnsembleProblem(
        Federation.from_arrays(np.zeros((2, 1)), np.ones(2), [0, 0], [0, 0]), Dictionary([[1.0], [-1.0]], [0])
    )
    refused = verify("boosting-margins", nothing, MultiBoost(), rounds=1)
    assert refused.outcome is Outcome.NOT_APPLICABLE and "with a classifier" in refused.reason
