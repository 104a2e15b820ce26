"""Client-agnostic against domain-agnostic losses: the inequality, equality, its hypothesis, and a planted error."""

import numpy as np
import pytest
import scipy.optimize

from fedconvex import Federation, Problem, Squared
from fedconvex.methods import AFL
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.agnostic_clients import client_agnostic
from fedconvex.theory import AssumptionError
from fedconvex.verify import verify

THEOREM, METHOD = THEOREMS["agnostic-clients"], AFL(step_size=0.1, domain_step_size=0.1)


def mixed(copies, noise=0.0):
    """Domains at 0 and 1 of two rows each; client k holds copies[k] = (a, b) of them."""
    X, y, who, domain = [], [], [], []
    for k, pair in enumerate(copies):
        for c, times in enumerate(pair):
            for row in range(2):
                X += [[1.0 + row]] * times
                y += [float(c) * (1.0 + row) + noise * (k + 1)] * times
                who, domain = who + [k] * times, domain + [c] * times
    return Problem(Federation.from_arrays(X, y, who, domain), Squared())


def value_of(p, groups):
    """min over w of the largest of the groups' mean losses, by a search on the line."""
    X, y = p.federation.X[:, 0], p.federation.y
    worst = lambda w: max(np.mean((X[groups == g] * w - y[groups == g]) ** 2) / 2 for g in set(groups))  # noqa: E731
    return float(scipy.optimize.minimize_scalar(worst, bounds=(-1, 2), method="bounded", options={"xatol": 1e-12}).fun)


def test_both_values_by_a_search():
    """Clients with more of one domain: both sides by a search, strictly apart; equal with a client for each domain."""
    p = mixed([(3, 1), (2, 1)])
    found = verify(THEOREM, p, METHOD, rounds=1)
    assert found.outcome.name == "HOLDS"
    assert found.measured == pytest.approx(value_of(p, np.repeat([0, 1], [8, 6])), rel=1e-8)
    assert found.bound.value == pytest.approx(value_of(p, p.federation.domain), rel=1e-8)
    assert found.measured < 0.95 * found.bound.value
    alone = verify(THEOREM, mixed([(1, 0), (0, 1)]), METHOD, rounds=1)
    assert alone.measured == pytest.approx(alone.bound.value, rel=1e-9)


def test_a_bound_that_is_too_small_is_violated():
    """The value of the even mixture in the place of the worst domain's."""
    theorem = THEOREM._replace(bound=lambda shares, value: client_agnostic(shares, value=0.99 * value))
    assert verify(theorem, mixed([(1, 0), (0, 1)]), METHOD, rounds=1).outcome.name == "VIOLATED"


def test_clients_that_are_no_mixtures():
    """Rows that depend on the client too are refused with their distance; so are problems without domains."""
    for p, words in (
        (mixed([(3, 1), (1, 3)], noise=0.1), "distributed as the domain is"),
        (Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared()), "needs domains"),
        (mixed([(3, 1)]), ""),
    ):
        found = verify(THEOREM, p, METHOD, rounds=1)
        assert words in found.reason and (found.outcome.name == "NOT_APPLICABLE") == bool(words)
    with pytest.raises(AssumptionError, match="mixtures of domains"):
        client_agnostic([[0.5, 0.6]], value=1.0)
