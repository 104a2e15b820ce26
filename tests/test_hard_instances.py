"""Hard instances: closed forms against runs, between exact worst cases and the theorems' bounds."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from fedconvex.constants import Constants
from fedconvex.theorems.fedavg_refined import fedavg_at_optimum
from fedconvex.theory.worst_case import (
    AtOptimum,
    Problems,
    Shift,
    communication_bound,
    crossing,
    drift_bound,
    drifting,
    drifting_slowly,
    fedavg,
    fitted_exponent,
    hard_instances,
    noise_bias,
    worst_case,
)

pytestmark = pytest.mark.anywhere

RUNS = [(0.1, 4, 10), (1.0, 3, 2), (1.9, 3, 5), (0.5, 1, 3)]


@pytest.mark.parametrize(("eta", "tau", "T"), RUNS)
def test_values_in_closed_form(eta, tau, T):
    for hard in hard_instances(2.0, 3.0, 0.7, step_size=eta / 2, local_steps=tau, rounds=T):
        assert hard.simulate() == pytest.approx(hard.value, rel=1e-12)
        eigenvalues = np.linalg.eigvalsh(hard.H)
        assert eigenvalues.min() >= -1e-14
        assert eigenvalues.max() <= 2.0 * (1 + 1e-14)
        assert np.linalg.norm(hard.start) == pytest.approx(3.0)
        assert not hard.b.sum(axis=0).any()
        zeta = math.sqrt(np.mean(np.sum(hard.b**2, axis=1)))
        assert zeta == pytest.approx(hard.problems.heterogeneity.zeta)
        assert hard.problems.D == 3.0


@pytest.mark.parametrize(("eta", "tau", "T"), [(0.25, 2, 2), (1.0, 3, 1)])
def test_between_the_exact_worst_case_and_nothing(eta, tau, T):
    """Every instance lies below the exact worst case of its class; the planted one, in a smaller class, does not."""
    worst = {}
    for hard in hard_instances(1.0, 1.0, 0.5, step_size=eta, local_steps=tau, rounds=T):
        zeta = hard.problems.heterogeneity.zeta
        if zeta not in worst:
            worst[zeta] = worst_case(fedavg(eta, tau, T), hard.problems)
        assert hard.value <= worst[zeta].upper
        assert hard.value >= worst[zeta].lower / 20
    planted = drifting(1.0, 1.0, 8.0, step_size=eta, local_steps=tau, rounds=T)
    assert planted.value > worst[0.5].upper


def test_measured_worst_possible_and_bound_stand_in_order():
    """Of R2: the instances' shadow average, the exact worst case, the bound; R2 without its drift term fails."""
    constants = Constants(L=1.0, D=1.0, sigma2_star=0.0, zeta_star=4.0, K=2)
    run = {"step_size": 0.25, "local_steps": 2, "rounds": 2}
    bound = fedavg_at_optimum(constants, noise_factor=0.0, **run)
    worst = worst_case(fedavg(0.25, 2, 2), drifting(1.0, 1.0, 4.0, **run).problems, "shadow")
    measured = [hard.simulate("shadow") for hard in hard_instances(1.0, 1.0, 4.0, **run)]
    assert 0 < max(measured) <= worst.upper <= bound.value
    far = dict(run, rounds=200)
    bound = fedavg_at_optimum(constants, noise_factor=0.0, **far)
    drift = drifting(1.0, 0.0, 4.0, **far).simulate("shadow")
    assert bound.terms["start"] < drift <= bound.value


@pytest.mark.parametrize(("tau", "T", "zeta"), [(2, 2, 1.0), (3, 20, 4.0), (7, 3, 1.0), (2, 50, 0.1)])
def test_no_step_beats_the_drift_bound(tau, T, zeta):
    """Nowhere below the instance's value, and close to its least; the same in other units; zero for one local step."""
    bound = drift_bound(1.0, 1.0, zeta, local_steps=tau, rounds=T)
    run = {"local_steps": tau, "rounds": T}
    values = [drifting_slowly(1.0, 1.0, zeta, step_size=eta, **run).value for eta in np.geomspace(1e-5, 1.99, 997)]
    assert 0.99 * min(values) < bound <= min(values)
    scaled = drift_bound(4.0, 3.0, 12.0 * zeta, **run)  # F in units of L D^2 = 36, slopes of L D
    assert scaled == pytest.approx(36.0 * bound, rel=1e-9)
    assert drift_bound(1.0, 1.0, zeta, local_steps=1, rounds=T) == 0.0
    if tau == T == 2:
        for eta in (0.2, 0.5, 1.0):
            assert bound < worst_case(fedavg(eta, 2, 2), Problems(2, heterogeneity=AtOptimum(zeta))).upper


def test_the_drift_bound_has_the_order_of_the_papers():
    """0.153 ((tau - 1)/tau)^(2/3) (L zeta^2 D^4)^(1/3)/T^(2/3) for many rounds."""
    constant = 3.0 / (1024.0 * math.e**2) ** (1 / 3)
    for tau in (2, 10):
        bound = drift_bound(1.0, 1.0, 1.0, local_steps=tau, rounds=10_000)
        assert bound * 10_000 ** (2 / 3) == pytest.approx(constant * ((tau - 1) / tau) ** (2 / 3), rel=0.01)


def test_no_step_and_no_number_of_local_steps_beats_the_communication_bound():
    for T in (1, 5, 40):
        bound = communication_bound(1.0, 1.0, T)
        values = [
            crossing(1.0, 1.0, step_size=eta, local_steps=tau, rounds=T).value
            for eta in np.linspace(0.01, 1.99, 50)
            for tau in (1, 2, 3, 50)
        ]
        assert min(values) >= bound * (1 - 1e-12)
        assert min(values) <= bound * 1.1
        assert bound >= 1 / (4 * math.e * (2 * T + 1))


def test_the_best_step_leaves_a_rate_of_two_thirds_in_the_rounds():
    """min over eta of `drifting_slowly` is of the order (L zeta^2 D^4)^{1/3}/T^{2/3}."""
    best = {}
    for T in (100, 1000, 10_000):
        steps = np.geomspace(1e-4, 0.9, 400)
        best[T] = min(drifting_slowly(1.0, 1.0, 1.0, step_size=float(e), local_steps=16, rounds=T).value for e in steps)
    assert fitted_exponent(best).local[-1] == pytest.approx(-2 / 3, abs=0.02)


def test_the_drift_is_that_of_the_refined_theorem():
    """tau = 1 does not drift; from the optimum one round of small steps moves by eta^2 L zeta tau (tau - 1)/4."""
    assert drifting(1.0, 0.0, 1.0, step_size=0.3, local_steps=1, rounds=9).value == pytest.approx(0.0, abs=1e-30)
    eta, tau = 1e-4, 5
    moved = math.sqrt(4 * drifting(1.0, 0.0, 1.0, step_size=eta, local_steps=tau, rounds=1).value)
    assert moved == pytest.approx(eta**2 * tau * (tau - 1) / 4, rel=1e-3)


@pytest.mark.parametrize(("eta", "tau"), [(0.5, 2), (1.0, 2), (0.5, 3)])
def test_noise_biases_local_steps(eta, tau):
    """f(E y) <= E F(mean of two clients), by all outcomes, <= the exact worst case of such noise (two steps)."""
    L, sigma = 2.0, 0.7
    value = noise_bias(L, sigma, step_size=eta / L, local_steps=tau)
    ends = []
    for signs in itertools.product((1, -1), repeat=tau):
        y = 0.0
        for sign in signs:
            y -= eta / L * ((L if y > 0 else L / 2) * y + sign * sigma)
        ends.append(y)
    means = [(a + b) / 2 for a in ends for b in ends]
    expected = np.mean([(L if x > 0 else L / 2) * x**2 / 2 for x in means])
    assert 0 < value <= expected
    assert value == pytest.approx(L / 4 * np.mean(ends) ** 2, rel=1e-12)
    if tau == 2:
        problems = Problems(2, L=L, D=0.0, sigma=sigma, heterogeneity=Shift(0.0))
        assert expected <= worst_case(fedavg(eta / L, tau, 1, noisy=True), problems).upper


def test_one_local_step_is_not_biased():
    assert noise_bias(1.0, 1.0, step_size=0.5, local_steps=1) == 0.0
    with pytest.raises(ValueError, match="local_steps"):
        noise_bias(1.0, 1.0, step_size=0.5, local_steps=17)


def test_bad_runs():
    with pytest.raises(ValueError, match="step_size must be below 2/L"):
        crossing(1.0, 1.0, step_size=2.0, local_steps=1, rounds=1)
    with pytest.raises(ValueError, match=r"D must be a number in \(0, "):
        drifting_slowly(1.0, 0.0, 1.0, step_size=0.1, local_steps=1, rounds=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        crossing(1.0, 1.0, step_size=0.1, local_steps=1, rounds=1).value = 0.0


def test_the_drift_bound_of_extreme_constants_is_a_number():
    """A square overflowed in Python, which raises. The bound never exceeds what gradient descent starts from."""
    for L, D, zeta in ((1e-300, 1.0, 1.0), (1.0, 1.0, 1e200), (1e300, 1e-3, 1.0)):
        assert 0.0 <= drift_bound(L, D, zeta, local_steps=5, rounds=5) <= 0.5 * L * D * D
