"""Theorems on estimates and intervals: planted errors are violations, orders are measured, ends are analyse's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedconvex import FederatedNewton, Federation, Problem, Squared
from fedconvex.analysis.likelihood import LikelihoodProblem, certified_minimum
from fedconvex.analysis.profile_ends import Level, ends
from fedconvex.analysis.response_families import POISSON
from fedconvex.losses import Poisson
from fedconvex.theorems import THEOREMS, clustered_rank, profile_enclosure, weighted_estimates
from fedconvex.theorems.parts import instances
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theory import AssumptionError, PrecisionError
from fedconvex.verify import Outcome, verify


def outcome(theorem, instance, rounds):
    return verify(theorem, instance.make(), FederatedNewton(), rounds=rounds).outcome


def planted(name, *terms, factor=0.5):
    """The theorem with some terms of its bound halved."""
    theorem = THEOREMS[name]

    def bound(**arguments):
        true = theorem.bound(**arguments)
        return replace(true, terms={k: factor * v if k in terms else v for k, v in true.terms.items()})

    return theorem._replace(bound=bound)


@pytest.mark.parametrize(
    ("name", "term", "instance", "rounds"),
    [
        ("weighted-estimates", "spread", weighted_estimates.two_counts, 8),
        ("weighted-estimates", "gradient", instances.unequal_hessians, 1),
        ("clustered-rank", "gradient", clustered_rank.opposing, 1),
        ("profile-enclosure", "gap", instances.two_logistic_clients, 10),
        ("profile-enclosure", "slack", instances.two_logistic_clients, 10),
    ],
)
def test_half_of_a_term_is_refuted(name, term, instance, rounds):
    """Also a part of it, where the bound is nearly attained."""
    assert outcome(name, instance, rounds) is Outcome.HOLDS
    assert outcome(planted(name, term), instance, rounds) is Outcome.VIOLATED
    if name != "profile-enclosure":
        assert outcome(planted(name, term, factor=0.99), instance, rounds) is Outcome.VIOLATED


def test_hypotheses_are_named():
    """More clients than coefficients, a loss without self-concordance, a point that is too far."""
    for name, instance, text in (
        ("clustered-rank", instances.shifted_logistic, "K <= p"),
        ("weighted-estimates", instances.noisy_kinks[1], "c l''"),
        ("profile-enclosure", instances.two_logistic_clients, "rho"),
    ):
        problem = instance.make()
        with pytest.raises(AssumptionError, match=text.replace("'", ".")):
            THEOREMS[name].at(Setting(problem, FederatedNewton(), 1, np.zeros(problem.model_shape)))
    with pytest.raises(AssumptionError, match="rho"):
        profile_enclosure.profile_enclosure(0.0, 0.0, 1.0, 2.0, 0.5)


def test_the_bound_is_of_second_order():
    """Two clients with mean counts 1 -+ h: twice the heterogeneity, four times the bound."""

    def bound(h):
        rows = [(np.ones((2, 1)), np.array([0.5, 1.5]) + sign * h) for sign in (-1.0, 1.0)]
        s = Setting(Problem(Federation.from_clients(rows), Poisson()), FederatedNewton(), 8, np.zeros(1))
        return THEOREMS["weighted-estimates"].at(s).value

    assert bound(0.02) / bound(0.01) == pytest.approx(4.0, rel=0.01)


@pytest.mark.slow
def test_ends_of_the_theorem_are_those_of_analyse():
    """Bisection there, enclosed by the numbers that analyse finds for the same rows."""
    problem = weighted_estimates.counts_apart.make()
    theorem = THEOREMS["profile-enclosure"]
    s = Setting(problem, FederatedNewton(), 10, np.zeros(3))
    end = theorem.expectation(s, [10])
    likelihood = LikelihoodProblem(problem.federation, POISSON)
    found = certified_minimum(likelihood, np.zeros((1, 3)))
    N, drop = float(found.value[0]), 0.5 * profile_enclosure.QUANTILE
    one = ends(likelihood, np.eye(3)[:1], found.b[0], N, Level(N + drop, N + drop, N + drop, drop))
    assert one.inner[0] - 1e-9 <= end.values[0] <= one.outer[0] + 1e-9
    assert one.outer[0] - one.inner[0] <= 1e-8
    assert theorem.at(s).value == pytest.approx(end.values[0], rel=1e-3)


def test_a_level_that_rounds_to_the_minimum_is_not_decided():
    """F* of 1e300: the level lies above it by less than its last digit, and the bisection would never end."""
    rng = np.random.default_rng(930)
    X, y = rng.normal(size=(12, 1)), 1e150 * rng.normal(size=12)
    problem = Problem(Federation.from_arrays(X, y, np.repeat([0, 1], 6)), Squared(), 0.0)
    start = np.asarray(problem.solve().w)
    verdict = verify("profile-enclosure", problem, FederatedNewton(), rounds=1, start=start + 1e140)
    assert verdict.outcome is not Outcome.VIOLATED
    s = Setting(problem, FederatedNewton(), 1, start)
    with pytest.raises(PrecisionError, match="needs a level above F"):
        profile_enclosure._end(s, start)
