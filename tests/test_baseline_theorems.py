"""Theorems on Nesterov's method and on methods with local steps: worst cases, and planted errors that are caught."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedconvex import Federation, Problem, Squared, iterate
from fedconvex.constants import Constants
from fedconvex.methods import FedDyn, ProgressiveHedging
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.fedlin import fedlin_factor
from fedconvex.theorems.parts.instances import shifted_logistic
from fedconvex.theorems.parts.theorem import Check, Instance
from fedconvex.theory.fixed_points import fedavg_round
from fedconvex.theory.worst_case import Problems, accelerated, contraction, fedlin_round, worst_case
from fedconvex.traits import traits_of
from fedconvex.verify import Outcome
from fedconvex.verify.checking import carried_out


def outcomes(name, change=None, only=None):
    """Return the outcomes of a theorem's checks, its bound changed by a function of its arguments and value."""
    right = THEOREMS[name]

    def planted(**arguments):
        bound = right.bound(**arguments)
        factor = change(arguments)
        return replace(bound, terms={k: factor * v for k, v in bound.terms.items()})

    theorem = right if change is None else right._replace(bound=planted)
    every = [c if isinstance(c, Check) else Check(c) for c in theorem.checks]
    every = [c for c in every if only is None or c.instance.name.startswith(only)]
    return {carried_out(theorem, check).outcome for check in every}


def violated(name, change, only=None):
    return Outcome.VIOLATED in outcomes(name, change, only)


# ---------------------------------------------------------------- accelerated gradient


@pytest.mark.slow
@pytest.mark.compiled
def test_planted_accelerated_rates():
    """(T + 3)^2 in the place of (T + 1)^2, and a factor 1.7 of the strongly convex bound."""
    assert Outcome.VIOLATED not in outcomes(
        "accelerated-convex", lambda a: ((a["rounds"] + 1) / (a["rounds"] + 2)) ** 2
    )
    assert violated("accelerated-convex", lambda a: ((a["rounds"] + 1) / (a["rounds"] + 3)) ** 2, "sharp")
    assert violated("accelerated-strongly-convex", lambda a: 1 / 1.7, "sharp 3")


@pytest.mark.slow
@pytest.mark.parametrize("T", [1, 2, 3, 4])
def test_the_exact_worst_case_of_growing_momentum(T):
    """2 D^2/(eta (T + 2) (T + 3)) to 2 %, by a programme on all convex L-smooth functions."""
    found = worst_case(accelerated(1.0, T), Problems(1), "last")
    bound = THEOREMS["accelerated-convex"].bound(constants=Constants(L=1.0, D=1.0), step_size=1.0, rounds=T)
    assert found.upper <= bound.value
    assert found.value == pytest.approx(2.0 / ((T + 2) * (T + 3)), rel=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.05])
def test_the_programme_of_momentum_is_the_method(mu):
    """On the function that it found the method reaches what it says; with mu it obeys the strongly convex bound."""
    found = worst_case(accelerated(1.0, 3, mu), Problems(1, mu=mu), "last")
    assert found.instance.simulate() == pytest.approx(found.lower, rel=1e-6)
    c = Constants(L=1.0, mu=mu, D=1.0)
    if mu:
        bound = THEOREMS["accelerated-strongly-convex"].bound(constants=c, step_size=1.0, mu=mu, rounds=3)
        assert found.upper <= bound.value


@pytest.mark.slow
@pytest.mark.compiled
def test_a_bound_below_the_exact_worst_case_is_violated_although_the_run_obeys():
    """Half of the bound is far above what a run on real rows shows, and below what convex functions can do."""
    right = THEOREMS["accelerated-convex"]
    check = Check(shifted_logistic)
    assert carried_out(right, check).outcome is Outcome.HOLDS

    def half(**arguments):
        bound = right.bound(**arguments)
        return replace(bound, terms={"start": 0.5 * bound.value})

    found = carried_out(right._replace(bound=half), check)
    assert found.verdict.outcome is Outcome.HOLDS and found.outcome is Outcome.VIOLATED


# ---------------------------------------------------------------- FedLin


def _gain(a, tau, delta):
    d = delta * 0.5 * a * (tau - 1) / tau
    return 2.0 * a * (1.0 - d - 0.5 * a * (1.0 + d) ** 2)


def test_planted_fedlin_factors():
    """Without delta, or with that of one local step less, eight of them are slower than the bound; so is (1 - a)^2."""

    def wrong(delta, fewer=0):
        def change(arguments):
            c, tau, n = arguments["constants"], arguments["local_steps"], arguments["stages"]
            a = arguments["step_size"] * c.L
            factors = [1.0 - g * c.mu / c.L for g in (_gain(a, tau, 1.0), _gain(a, max(tau - fewer, 1), delta))]
            return (factors[1] / factors[0]) ** n

        return change

    assert outcomes("fedlin", wrong(1.0), "one parabola") == {Outcome.HOLDS}
    assert violated("fedlin", wrong(0.0), "one parabola")
    assert violated("fedlin", wrong(0.5), "two parabolas")
    assert violated("fedlin", lambda a: 1.0 / 1.001, "one parabola")


@pytest.mark.slow
def test_local_steps_of_fedlin_slow_nothing_down():
    """A programme for strongly convex clients: the rate of one parabola, below the theorem's."""
    rate = contraction(fedlin_round(0.38 / 3, 3), Problems(2, mu=0.1))
    assert rate.upper == pytest.approx((1.0 - 0.038 / 3) ** 6, rel=1e-4)
    factor = fedlin_factor(Constants(L=1.0, mu=0.1), step_size=0.38, local_steps=3)
    assert (round(rate.upper, 4), round(factor, 4)) == (0.9264, 0.952)


# ---------------------------------------------------------------- Scaffnew


def test_planted_errors_of_the_identity_of_scaffnew():
    """1 - p and 1 - p^2/2 for 1 - p^2 in the controls, and either term a thousandth off, to both sides."""
    right = THEOREMS["scaffnew-identity"]
    check = next(c for c in right.checks if isinstance(c, Instance) and c.name == "two parabolas")

    def outcome(models, controls):
        def bound(**a):
            found = right.bound(**a)
            terms = {"models": models * a["models"], "controls": controls(a["probability"]) * a["controls"]}
            return replace(found, terms=terms)

        return carried_out(right._replace(bound=bound), Check(check)).outcome

    assert outcome(1.0, lambda p: 1 - p * p) is Outcome.HOLDS
    for models, controls in (
        (1.0, lambda p: 1 - p),
        (1.0, lambda p: 1 - 0.5 * p * p),
        (1.001, lambda p: 1 - p * p),
        (0.999, lambda p: 1 - p * p),
        (1.0, lambda p: 1.001 * (1 - p * p)),
    ):
        assert outcome(models, controls) is Outcome.VIOLATED


@pytest.mark.slow
@pytest.mark.compiled
def test_planted_rates_of_scaffnew():
    """A thousandth too small with p = 1; 0.6 of it with p = 1/2; a quarter of the controls."""
    assert violated("scaffnew", lambda a: 0.999, "one parabola")
    assert violated("scaffnew", lambda a: 0.6 if a["probability"] < 1.0 else 1.0, "one parabola")
    assert violated("scaffnew", lambda a: 0.25, "steep")


# ---------------------------------------------------------------- FedDyn, FedNova


def test_feddyn_is_progressive_hedging_at_the_clients(rng):
    """From one start, of any weights: w of the one is 2 z - P v of the other in every round."""
    fed = Federation.from_clients([(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (4, 6, 9)])
    problem = Problem(fed, Squared(), 0.1)
    for alpha in (0.05, 2.0):
        runs = FedDyn(alpha=alpha), ProgressiveHedging(rho=alpha)
        mine, other = ([state.w[0] for _, state in iterate(m, problem, rounds=6)] for m in runs)
        mean = mine[0]  # of the v_k
        for new, z in zip(mine[1:], other[1:], strict=True):
            assert np.abs(new - (2.0 * z - mean)).max() < 1e-12
            mean = mean + new - z


def test_planted_errors_of_feddyn():
    """A thousandth less than the bound is false: of the start for one parabola, of the memories from the optimum."""
    assert violated("feddyn", lambda a: 0.999, "one parabola")
    assert violated("feddyn", lambda a: 0.999, "steep")


@pytest.mark.slow
@pytest.mark.compiled
def test_planted_errors_of_fednovas_limit():
    """The filters of FedAvg, or steps a hundredth longer, end elsewhere: both directions are noticed."""
    assert outcomes("fednova-limit", lambda a: 1.0, "two parabolas") == {Outcome.HOLDS}
    assert violated("fednova-limit", lambda a: 1.001, "two parabolas")
    assert violated("fednova-limit", lambda a: 0.999, "two parabolas")
    right = THEOREMS["fednova-limit"]
    check = next(c for c in right.checks if isinstance(c, Check) and c.instance.name == "steep and flat")

    def of_fedavg(s):
        reading, local = right.read(s), traits_of(s.method, s.problem).local
        end = fedavg_round(s.problem, step_size=local.step_size, local_steps=local.steps).limit()
        bias = float(np.linalg.norm(end - s.problem.solve().w))
        return reading._replace(arguments={**reading.arguments, "bias": bias})

    assert carried_out(right._replace(read=of_fedavg), check).outcome is Outcome.VIOLATED
