"""The rate of gradient descent: where it holds, what it refuses, and that a bound that is too small is caught."""

import pytest

from fedconvex import FedAvg
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.kit import two_clients
from fedconvex.verify import Outcome, verify

THEOREM, PROBLEM = THEOREMS["gradient-descent"], two_clients.make()
L = PROBLEM.constants().L


@pytest.mark.parametrize(
    ("method", "outcome"),
    [
        (FedAvg(step_size=0.5 / L), Outcome.HOLDS),
        (FedAvg(step_size=1.0 / L), Outcome.VACUOUS),  # at the minimum
        (FedAvg(step_size=1.5 / L), Outcome.NOT_APPLICABLE),
        (FedAvg(step_size=0.5 / L, local_steps=2), Outcome.NOT_APPLICABLE),
    ],
)
def test_verdicts(method, outcome):
    assert verify(THEOREM, PROBLEM, method, rounds=10).outcome is outcome


@pytest.mark.parametrize(("factor", "outcome"), [(0.51, Outcome.HOLDS), (0.49, Outcome.VIOLATED)])
def test_a_bound_that_is_too_small_is_caught(factor, outcome):
    """F = (w - c)^2/2: after one step of 1/2 the excess is D^2/8, and the bound D^2/4."""

    def planted(**arguments):
        bound = THEOREM.bound(**arguments)
        return type(bound)(
            {k: factor * v for k, v in bound.terms.items()}, bound.quantity, bound.source, bound.requires
        )

    found = verify(THEOREM._replace(bound=planted), PROBLEM, FedAvg(step_size=0.5 / L), rounds=1)
    assert found.outcome is outcome
