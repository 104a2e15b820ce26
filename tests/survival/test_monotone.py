"""Monotone likelihoods are found by the linear programme, and those with a certified minimum are not called so."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.families.survival.monotone import monotone_direction
from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
from tests.survival.cox_oracle import drawn


def made(X, time, event, entry, clients):
    return SurvivalProblem(SurvivalFederation.from_arrays(X, outcomes(time, event, entry), clients))


def orders(problem, v):
    """Whether x_i'v >= x_j'v for every event i and row j at risk with it, and once strictly: pair by pair."""
    fed, strict = problem.federation, False
    late = np.full(fed.n, -np.inf) if fed.entry is None else fed.entry
    who, z = np.repeat(np.arange(fed.K), fed.sizes), fed.X @ v
    for i in np.flatnonzero(fed.event):
        at_risk = (who == who[i]) & (late < fed.y[i]) & (fed.y >= fed.y[i])
        if (z[at_risk] > z[i] + 1e-8).any():
            return False
        strict |= bool((z[at_risk] < z[i] - 1e-8).any())
    return strict


@pytest.mark.slow
def test_every_problem_has_a_minimum_or_a_direction_or_flat_columns(rng):
    seen = {"minimum": 0, "direction": 0, "flat": 0}
    for trial in range(60):
        n, p = int(rng.integers(3, 15)), int(rng.integers(1, 4))
        X, time, event, late, _, clients = drawn(rng, n, p, entry=bool(trial % 2), times=8, clients=2)
        X = rng.integers(0, 3, size=X.shape).astype(float) if trial % 3 else X
        problem = made(X, time, event, late, clients)
        best, found = problem.solve(), monotone_direction(problem)
        if best.attained:
            assert found is None
            seen["minimum"] += 1
        elif found is None:
            assert "collinear" in best.certificate
            seen["flat"] += 1
        else:
            assert orders(problem, found.direction)
            values = problem.value(np.array([0.0, 1.0, 10.0, 100.0])[:, None] * found.direction)
            assert (np.diff(values) < 1e-12).all() and values[1] < values[0]
            seen["direction"] += 1
    assert min(seen.values()) > 0, seen


def test_the_column_is_named(rng):
    """The second of three columns marks who has an event first."""
    n = 30
    X, time = rng.normal(size=(n, 3)), np.arange(n, dtype=float)
    event = np.arange(n) % 2 == 0
    X[:, 1] = event
    found = monotone_direction(made(X, time, event, None, np.zeros(n, int)))
    assert found is not None and found.columns == (1,) and found.names == ("column 1",) and found.direction[1] > 0


def test_a_direction_of_no_order_would_be_seen(rng):
    """Planted: the same direction, turned."""
    _, time, event, late, _, clients = drawn(rng, 12, 1, times=6, clients=1)
    problem = made(-time[:, None], time, event, late, clients)
    found = monotone_direction(problem)
    assert found is not None and orders(problem, found.direction) and not orders(problem, -found.direction)


def test_without_a_choice_there_is_no_direction():
    """Every risk set has one row."""
    problem = made(np.array([[1.0], [2.0]]), [1.0, 2.0], [1, 1], None, [0, 1])
    assert monotone_direction(problem) is None and "constant or collinear" in problem.solve().certificate
