"""Theorems on limits: constant steps stay away from the optimum, RADFed ends where FedAvg does, SAM's error."""

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Problem, Squared, run
from fedconvex.constants import Constants
from fedconvex.methods import FedSAM, RADFed
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.fedavg_limit import fedavg_constant_steps
from fedconvex.theorems.parts.instances import one_parabola, rare_parabola, unequal_hessians, uneven_squares
from fedconvex.theory import AssumptionError
from fedconvex.theory.fixed_points import fedavg_round
from fedconvex.verify import verify


def planted(name, factor):
    """The theorem with a bound times a factor."""
    theorem = THEOREMS[name]

    def bound(**arguments):
        right = theorem.bound(**arguments)
        return type(right)({"planted": factor * right.value}, right.quantity, right.source, right.requires)

    return theorem._replace(bound=bound)


def quadratics(rng, K, d):
    rows = [(rng.normal(size=(d + 1, d)), rng.normal(size=d + 1)) for _ in range(K)]
    weights = rng.random(K) + 0.1
    return Problem(Federation.from_clients(rows), Squared(), 0.05, weights / weights.sum())


def test_constant_steps_leave_an_excess_of_their_square(rng):
    """The excess of limits is above (L) on random quadratics, and tends to it; half the steps leave a quarter."""
    theorem, shares = THEOREMS["fedavg-constant-steps"], []
    for _ in range(15):
        p = quadratics(rng, int(rng.integers(2, 4)), int(rng.integers(1, 4)))
        eta, E = float(rng.choice([1e-3, 1e-2, 0.1])) / p.constants().L, int(rng.integers(2, 6))
        found = verify(theorem, p, FedAvg(step_size=eta, local_steps=E), rounds=1)
        if found.outcome.name == "NOT_APPLICABLE":
            assert "short enough" in found.reason
            continue
        assert found.outcome.name == "HOLDS"
        shares.append(found.ratio)
    assert len(shares) >= 10 and min(shares) < 1.05
    p, found = rare_parabola.make(), []
    for eta in (0.02, 0.01):
        method = FedAvg(step_size=eta, local_steps=3)
        verdict = verify(theorem, p, method, rounds=1)
        end = fedavg_round(p, step_size=eta, local_steps=3).limit()
        assert verdict.measured == pytest.approx(1.0 / (p.value(end) - p.solve().value), rel=1e-4)
        found.append(verdict.bound.value)
        assert verify(planted("fedavg-constant-steps", 0.97), p, method, rounds=1).outcome.name == "VIOLATED"
    assert found[1] / found[0] == pytest.approx(4.0, rel=0.03)


def test_the_lower_bound_by_hand():
    """l = 0.1, the bracket 2 - 0.1*3/(3*2) = 1.95, hence 2/0.195^2."""
    c = Constants(L=4.0, mu=4.0)
    found = fedavg_constant_steps(c, pull=2.0, remainder=3.0, step_size=0.1, local_steps=3)
    assert found.value == pytest.approx(2.0 / 0.195**2)
    for change, words in (
        ({"local_steps": 1}, "several local steps"),
        ({"step_size": 1.1}, "step_size <= 1/L"),
        ({"remainder": 600.0}, "short enough"),
        ({"pull": 0.0}, "pull apart"),
    ):
        arguments = {"pull": 2.0, "remainder": 3.0, "step_size": 0.1, "local_steps": 3} | change
        with pytest.raises(AssumptionError, match=words):
            fedavg_constant_steps(c, **arguments)


@pytest.mark.filterwarnings("ignore:RADFed averages plainly:UserWarning")
def test_radfed_ends_where_fedavg_with_equal_weights_does():
    """Unequal weights included, in which case w* is not what equal ones aim at; 1.001 and 0.999 are violated."""
    theorem, p = THEOREMS["radfed-limit"], uneven_squares.make()
    equal = Problem(p.federation, p.loss, p.l2, "uniform")
    eta = 0.2 / p.constants().L
    end = fedavg_round(equal, step_size=eta, local_steps=3).limit()
    method = RADFed(step_size=eta, local_steps=3, models=2, redistributions=2, batch_size=2)
    found = verify(theorem, p, method, rounds=1)
    assert found.outcome.name == "HOLDS"
    assert found.measured == pytest.approx(float(np.linalg.norm(end - p.solve().w)), rel=1e-9)
    for factor in (1.001, 0.999):
        assert verify(planted("radfed-limit", factor), p, method, rounds=1).outcome.name == "VIOLATED"
    for wrong, words in (
        (RADFed(step_size=eta, epochs=1, batch_size=2), "fresh mini-batches"),
        (RADFed(step_size=100.0 * eta, local_steps=3), "rate < 1"),
        (FedAvg(step_size=eta), "the method RADFed"),
    ):
        verdict = verify(theorem, p, wrong, rounds=1)
        assert verdict.outcome.name == "NOT_APPLICABLE" and words in verdict.reason


def test_the_error_of_sam():
    """A parabola attains it; elsewhere what is measured is the gradient's change at the run's last model."""
    theorem, method = THEOREMS["sam-error"], FedSAM(step_size=0.1, local_steps=2, rho=0.3)
    p = one_parabola[0].make()
    assert verify(theorem, p, method, rounds=3).measured == pytest.approx(0.3, rel=1e-12)
    assert verify(planted("sam-error", 0.999), p, method, rounds=3).outcome.name == "VIOLATED"
    p = unequal_hessians.make()
    w = run(method, p, rounds=3, tol=0).w
    by_hand = 0.0
    for k in range(p.federation.K):
        X, y = p.federation.client_rows(k)
        g = X.T @ (X @ w - y) / len(y) + p.l2 * w
        u = 0.3 * g / np.linalg.norm(g)
        by_hand = max(by_hand, float(np.linalg.norm(X.T @ (X @ u) / len(y) + p.l2 * u)))
    assert verify(theorem, p, method, rounds=3).measured == pytest.approx(by_hand, rel=1e-10)
    assert verify(theorem, p, FedAvg(step_size=0.1), rounds=1).outcome.name == "NOT_APPLICABLE"


def test_clients_that_agree_pull_nowhere_but_for_rounding(rng):
    """One client, or the same one thrice: FedAvg's limit is the optimum, and gradients there are last bits."""
    for _ in range(8):
        rows = rng.normal(size=(4, 2)), 1e3 * rng.normal(size=4)
        for K in (1, 3):
            p = Problem(Federation.from_clients([rows] * K), Squared(), 0.1, "uniform")
            eta = 0.5 / p.constants().L
            found = verify("fedavg-constant-steps", p, FedAvg(step_size=eta, local_steps=2), rounds=1)
            assert found.outcome.name == "NOT_APPLICABLE" and "pull apart" in found.reason
            found = verify("radfed-limit", p, RADFed(step_size=eta, local_steps=2, models=1), rounds=1)
            assert found.outcome.name in ("HOLDS", "VACUOUS", "INCONCLUSIVE") and found.measured < 1e-9
