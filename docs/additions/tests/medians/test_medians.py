"""The geometric median: against a minimisation by SciPy, its certificate, and the contract of methods."""

import numpy as np
import pytest
import scipy.optimize
from fedconvex.families.medians.problem import GeometricMedian
from fedconvex.families.medians.weiszfeld import Weiszfeld

from fedconvex import Federation, FedSGD, Problem, Squared, run
from tests import test_contract as contract

POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [40.0, 30.0]])
PROBLEM = GeometricMedian(Federation.from_clients([([x, x], [0.0, 0.0]) for x in POINTS]), nu=0.1)


def test_the_median_is_scipys_and_the_gap_is_above_the_truth():
    def F(w):
        return np.sqrt(((w - POINTS) ** 2).sum(axis=1) + 0.01).mean()

    best = scipy.optimize.minimize(F, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    found = run(Weiszfeld(), PROBLEM, rounds=300, tol=1e-10)
    np.testing.assert_allclose(found.w, best.x, atol=1e-5)
    assert (found.trace.gap >= found.trace.value - best.fun - 1e-13).all()
    assert (np.diff(found.trace.value) <= 1e-14).all()  # every round descends


@pytest.mark.parametrize(
    "kept",
    [
        contract.test_same_seed_same_bits,
        contract.test_input_untouched,
        contract.test_a_client_alone_answers_as_among_others,
    ],
)
def test_the_method_keeps_the_contract(kept):
    kept((Weiszfeld(), PROBLEM, "Weiszfeld"))


def test_trajectories_do_not_mix(rng):
    contract.test_a_trajectory_alone_is_what_it_is_among_others((Weiszfeld(), PROBLEM, "Weiszfeld"), rng)


def test_other_problems_are_refused():
    other = Problem(PROBLEM.federation, Squared())
    with pytest.raises(TypeError, match="Weiszfeld: problem must learn a median of the clients; got Problem"):
        run(Weiszfeld(), other, rounds=1)
    with pytest.raises(TypeError, match=r"FedSGD: problem must learn one model .*; got GeometricMedian"):
        run(FedSGD(step_size=0.1), PROBLEM, rounds=1)


def test_a_run_is_resumed(tmp_path):
    contract.test_resume((Weiszfeld(), PROBLEM, "Weiszfeld"), tmp_path)


def test_smoothing_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"GeometricMedian.nu must be positive.*; got 0"):
        GeometricMedian(PROBLEM.federation, nu=0.0)
