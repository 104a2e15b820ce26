"""Experiments on a survey's statements: the terms of a bound, distances from the domains' mixtures. Claims can fail."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fedconvex import FedAvg, run
from fedconvex.papers import bound_terms, hull_classes, toy_sampled

JITTER = np.array([0.99, 1.0, 1.01, 1.0])


def verdicts(claims):
    return [claim.holds for claim in claims]


def terms(good):
    """Local SGD: as the every-step method of clients alike, above it apart; large batches worse first, better last."""
    every_step = {bound_terms.ALIKE: 1.0 if good else 0.5, bound_terms.APART: 0.5 if good else 2.0}
    rows = []
    for kind in (bound_terms.ALIKE, bound_terms.APART):
        for method in bound_terms.METHODS:
            for T in (3, 300):
                large = 2.0 if (T == 3) == good else 0.5
                a = {bound_terms.LOCAL: 1.0, bound_terms.EVERY_STEP: every_step[kind], bound_terms.LARGE: large}[method]
                row = {"clients": kind, "method": method, "T": T, "theory": a * JITTER, "best": a * JITTER}
                rows.append(row | {"bound": 10.0 if good else 0.1})
    return verdicts(bound_terms.claims(rows))


def test_claims_of_bound_terms_can_fail():
    assert terms(True) == [True] * 7
    assert terms(False) == [False] * 7


@pytest.mark.slow
@pytest.mark.compiled
def test_averages_are_those_of_the_trace():
    """A is the mean over rounds of the shadow values that a run records, less F*."""
    problem = bound_terms.clients(bound_terms.APART, 5)
    steps = np.array([0.3, 0.6])
    found = bound_terms.averages(problem, bound_terms.LOCAL, steps, (2, 4), 6)
    method = FedAvg(step_size=steps, local_steps=8, batch_size=4, replacement=True, shadow=True)
    trace = run(method, problem, rounds=4, seed=6, trajectories=2, tol=0).trace
    shadow = trace.shadow_value[1:] - problem.solve().value
    np.testing.assert_allclose(found, [shadow[:2].mean(axis=0), shadow.mean(axis=0)], rtol=1e-9)
    alike = bound_terms.clients(bound_terms.ALIKE, 5)
    G = alike.client_gradients(np.ones(5))
    assert np.ptp(G, axis=0).max() == 0.0 and bound_terms.constants_of(alike, bound_terms.ALIKE, 4).zeta == 0.0
    findings = bound_terms.EXPERIMENT.run(quick=True, seed=1)
    assert findings.claims[0].holds and {c.holds for c in findings.claims[1:]} == {None}


def hull(good):
    log = lambda C: np.log(C / (C - 1))  # noqa: E731
    exact = [
        {"classes": C, "distance": 1 / (C - 1) + (not good), "excess": log(C) + (not good), "allowed": 1.0}
        for C in (3, 9)
    ]
    rows = [
        {"classes": C, "domains": p, "distance": x * (C if good else 100.0 / C) * (10.0 / p if good else p)}
        for C in (2, 9)
        for p in (5, 10)
        for x in JITTER
    ]
    return verdicts(hull_classes.claims(exact, rows))


def test_claims_of_hull_distance_can_fail():
    assert hull(True) == [True] * 5
    assert hull(False) == [False] * 5


@pytest.mark.slow
def test_the_example_by_hand():
    """Distance of the best mixture of a grid for three classes, and the loss of uniform predictions."""
    target, domains = hull_classes.example(3)
    grid = np.linspace(0.0, 1.0, 10_001)[:, None]
    nearest = np.abs(target - (grid * domains[0] + (1.0 - grid) * domains[1])).sum(axis=1).min()
    row = hull_classes.by_hand(3)
    assert row["distance"] == pytest.approx(nearest, abs=1e-9) == 0.5
    assert row["excess"] == pytest.approx(np.log(1.5), abs=1e-6)
    np.testing.assert_allclose(hull_classes.agnostic(4), 0.25, atol=1e-6)


def sampled(good):
    rows = [{"sampled": 50, "case": "", "last": 0.0 if good else 1.0, "average": 0.0, "h": 3.0}]
    rows += [
        {
            "sampled": m,
            "case": case,
            "last": x,
            "average": x / m if good else 1e-6 * x * m,
            "h": (3.1 if good else 3.0) + 0.1 * (x - 1.0),
        }
        for m in (5, 10)
        for case in ("", "long", "third", "window")
        for x in JITTER
    ]
    return verdicts(toy_sampled.claims(rows, (3.0, 10.0), 10.0 if good else 10.1))


def test_claims_of_toy_sampled_can_fail():
    assert sampled(True) == [True] * 6
    assert sampled(False) == [False] * 5 + [None]  # the last asks for a difference, which an interval cannot deny


@pytest.mark.slow
@pytest.mark.compiled
def test_the_toy_on_the_line():
    problem = toy_sampled.line(4)
    h, value = toy_sampled.exact(problem)
    grid = np.linspace(0.0, 25.0, 25_001)[:, None]
    worst = problem.domain_values(grid).max(axis=1)
    assert value <= worst.min() <= value + 0.03 and abs(grid[int(worst.argmin()), 0] - h) < 2e-3
    findings = toy_sampled.EXPERIMENT.run(quick=True, seed=1)
    assert findings.claims[0].holds and findings.holds
