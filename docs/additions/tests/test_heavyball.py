"""HeavyBall: the recursion of its docstring, from gradients of the problem, and what it refuses."""

import numpy as np
import pytest

from fedconvex import FedSGD, Problem, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.methods import HeavyBall

PROBLEM = Problem(linear_federation(seed=3).federation, Squared(), 0.1)
CONTRACT = {"HeavyBall": HeavyBall(step_size=0.2, momentum=0.4)}


def test_it_is_polyaks_recursion():
    w, v = np.zeros(PROBLEM.model_shape), 0.0
    for _ in range(4):
        v = 0.4 * v + PROBLEM.gradient(w)
        w = w - 0.2 * v
    found = run(HeavyBall(step_size=0.2, momentum=0.4), PROBLEM, rounds=4, tol=0).w
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_without_momentum_it_is_fedsgd():
    plain, heavy = (
        run(m, PROBLEM, rounds=4, tol=0).w for m in (FedSGD(step_size=0.2), HeavyBall(step_size=0.2, momentum=0.0))
    )
    np.testing.assert_allclose(heavy, plain, rtol=1e-13)


def test_momentum_beyond_one_is_refused():
    with pytest.raises(ValueError, match=r"HeavyBall.momentum must .*; got 1.5"):
        HeavyBall(step_size=0.1, momentum=1.5)
