"""Loopless local gradient descent: the number of its steps, and what the steps are."""

import numpy as np
import pytest

from fedconvex import FedAvg, Problem, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import LooplessGD
from fedconvex.traits import traits_of

PROBLEM = Problem(linear_federation(seed=3).federation, Squared(), 0.1)
CONTRACT = {"LooplessGD": LooplessGD(step_size=0.2, probability=0.4)}


def test_the_number_of_steps_is_geometric():
    """P(H = 1) = p = 1/4 and E H = 1/p = 4; 20,000 draws: standard errors 0.003 and 0.024, the seed is fixed."""
    draws = Draws(key_from_seed(0), np.arange(20_000), 0)
    H = LooplessGD(step_size=0.1, probability=0.25)._length(draws)
    assert H.min() == 1
    assert abs((H == 1).mean() - 0.25) < 0.012
    assert abs(H.mean() - 4.0) < 0.1


def test_a_round_is_one_of_fedavg_with_as_many_steps():
    """Of every trajectory by itself: they draw different numbers."""
    method = LooplessGD(step_size=0.2, probability=0.3)
    H = method._length(Draws(key_from_seed(7), np.arange(6), 0))[:, 0]
    assert len(set(H.tolist())) > 1
    found = run(method, PROBLEM, rounds=1, seed=7, trajectories=6, tol=0).w
    for h, w in zip(H, found, strict=True):
        averaged = run(FedAvg(step_size=0.2, local_steps=int(h)), PROBLEM, rounds=1, tol=0).w
        np.testing.assert_allclose(w, averaged, rtol=1e-13)


def test_theorems_know_its_steps():
    """1/p of them in the mean; with p = 1 it is gradient descent, and draws nothing."""
    some, one = (traits_of(LooplessGD(step_size=0.1, probability=p), PROBLEM) for p in (0.25, 1.0))
    assert (some.local, some.random_steps.steps[0], some.drawn) == (None, 4.0, ("steps",))
    assert one.local.equal_steps == 1 and one.averages and one.deterministic


@pytest.mark.parametrize("p", [0.0, 1.5, "half"])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises((ValueError, TypeError), match=r"LooplessGD.probability must"):
        LooplessGD(step_size=0.1, probability=p)
