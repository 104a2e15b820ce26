"""Batches that shrink to small clients: they take all their rows, and others draw as if nobody were small."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import SCAFFOLD, FedAvg, Federation, Logistic, Problem, run
from fedconvex.methods import FedMiD

RNG = np.random.default_rng(0)
SIZES = [1, 2, 7, 9]
FED = Federation.from_clients([(RNG.normal(size=(n, 3)), np.where(RNG.random(n) < 0.5, 1.0, -1.0)) for n in SIZES])


@pytest.mark.parametrize("make", [FedAvg, SCAFFOLD])
def test_small_clients_take_all_rows(make):
    problem, how = Problem(FED, Logistic(), 0.1), {"step_size": 0.3, "local_steps": 3}
    with pytest.raises(ValueError, match="batch_size must be at most 1, the rows of client 0; got 4: use shrink=True"):
        run(make(batch_size=4, **how), problem, rounds=1)
    all_small = run(make(batch_size=20, shrink=True, **how), problem, rounds=3).w
    assert all_small.tolist() == run(make(**how), problem, rounds=3).w.tolist()
    assert run(make(batch_size=4, shrink=True, **how), problem, rounds=3).w.tolist() != all_small.tolist()


@pytest.mark.parametrize("k", range(4))
def test_each_client_works_as_it_would_alone(k):
    """With its own batch size: the same rows are drawn, bit for bit."""
    alone = Problem(FED.subset([k]), Logistic(), 0.1)
    how = {"step_size": 0.3, "local_steps": 3}
    shrunk = run(FedAvg(batch_size=4, shrink=True, **how), alone, rounds=2).w
    own = run(FedAvg(batch_size=min(4, SIZES[k]), **how), alone, rounds=2).w
    assert shrunk.tolist() == own.tolist()


def test_traits_and_default_steps_know_of_it():
    problem = Problem(FED, Logistic(), 0.1)
    method = FedAvg(step_size=0.3, local_steps=3, batch_size=4, shrink=True)
    assert method.traits(problem).local.batch_size.tolist() == [1, 2, 4, 4]
    assert run(FedAvg(step_size="auto", batch_size=4, shrink=True), problem, rounds=1).step_size is not None
    with pytest.raises(ValueError, match="shrink must be False where batches are drawn with replacement"):
        FedAvg(step_size=0.3, batch_size=4, shrink=True, replacement=True)
    for batch in (4, 20):
        assert np.isfinite(run(FedMiD(step_size=0.1, batch_size=batch, shrink=True), problem, rounds=2).w).all()
