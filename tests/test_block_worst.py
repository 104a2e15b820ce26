"""Exact worst cases over blocks, of progressive hedging, of FedAvg and SCAFFOLD from the optimum or with weights."""

import itertools
import math

import numpy as np
import pytest

from fedconvex.methods import SCAFFOLD, Decay, FedAvg, FedBCD, ProgressiveHedging, TrackedBlockDescent
from fedconvex.theorems import THEOREMS, Setting
from fedconvex.theorems.kit import Federation, Problem, Squared, at_minimiser, two_parabolas
from fedconvex.theorems.parts import block_owners as block_instances
from fedconvex.theorems.parts import column_owners
from fedconvex.theory.bound import AssumptionError
from fedconvex.theory.worst_case import blocks
from fedconvex.theory.worst_case.blocks import BlockClass, attained, block_descent, block_worst_case, tracked_steps
from fedconvex.verify import exact_worst
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.search import drawn


@pytest.mark.slow
def test_one_block_is_gradient_descent():
    """(1 - mu/L)^2 a step; F(w_0) - F* is 1, and the units do not count."""
    lower, upper = block_worst_case(block_descent([0.01], 2, 1.0, 1), BlockClass((1.0,), (100.0,), 25.0))
    assert lower <= 0.75**4 * (1 + 1e-9) and upper >= 0.75**4 * (1 - 1e-9)
    assert upper - lower <= 1e-6


def test_longer_steps_overshoot():
    """Beyond 2/(L + mu) the steepest direction is the slowest: (1 - eta L)^2."""
    lower, upper = block_worst_case(tracked_steps(1.8, 1, 1), BlockClass((1.0,), (1.0,), 0.25, 1.0))
    assert lower == pytest.approx(0.64, rel=1e-6)
    assert upper == pytest.approx(0.64, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "Q", "T"), [(2, 1, 2), (2, 2, 1), (2, 4, 1), (2, 2, 2), (3, 1, 1), (3, 3, 1)])
def test_damped_blocks_shrink_by_the_square_whatever_their_local_steps(m, Q, T):
    """1 - theta mu/L squared, although the theorem proves the square for Q = 1 only: both ends of the interval."""
    lower, upper = block_worst_case(block_descent([1.0] * m, Q, 1.0 / m, T), BlockClass((1.0,), (1.0,) * m, 0.25), 60)
    assert lower == pytest.approx((1 - 0.25 / m) ** (2 * T), rel=1e-6)
    assert upper == pytest.approx((1 - 0.25 / m) ** (2 * T), rel=1e-6)


CLASSES = [
    (block_descent([1.0, 2.0], 2, 0.5, 1), BlockClass((1.0,), (1.0, 0.5), 0.1)),
    (tracked_steps(0.5, 3, 1), BlockClass((0.3, 0.7), (1.0,), 0.1, 1.0)),  # FedLin
    (tracked_steps(0.5, 2, 1), BlockClass((0.5, 0.5), (1.0, 1.0), 0.1, 1.0)),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CLASSES)))
def test_the_ends_meet_and_no_quadratic_is_worse(case):
    run, problems = CLASSES[case]
    lower, upper = block_worst_case(run, problems)
    assert lower <= upper <= lower * 1.01
    rng = np.random.default_rng(7)
    found = [attained(run, problems, blocks._random(rng, problems, 1 + k % 2)) for k in range(200)]
    assert max(found) <= upper


@pytest.mark.slow
def test_a_smaller_class_is_refuted_by_what_the_larger_attains():
    """A programme that forgot a block's own curvature: its upper end lies below what a run attains."""
    run = tracked_steps(1.9, 1, 1)
    right, wrong = BlockClass((1.0,), (1.0,), 0.1, 1.0), BlockClass((1.0,), (0.7,), 0.1, 0.7)
    assert block_worst_case(run, wrong)[1] < attained(run, right, [np.eye(1)]) <= block_worst_case(run, right)[1]


def test_programmes_that_are_too_large_say_so():
    low, high, why = blocks.interval(block_descent, ((1.0,) * 3, 10, 1 / 3, 5), BlockClass((1.0,), (1.0,) * 3, 0.25))
    assert math.isnan(low) and math.isnan(high)
    assert why.startswith("the programme is too large: ")
    assert blocks.interval(block_descent, ((1.0,), 1, 1.0, 1), BlockClass((1.0,), (1.0,), 1.0))[2].startswith(
        "the prog"
    )


def _settings(name, count):
    """Yield small settings of a theorem's space, drawn at random, in which it applies."""
    theorem, rng, found = THEOREMS[name], np.random.default_rng(11), 0
    while found < count:
        check = theorem.space.check(drawn(rng, theorem.space), "drawn")
        try:
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
        except AssumptionError:
            continue
        s = s._replace(rounds=2 if name == "vertical-rate" else 1)  # blocks ask for scores first
        if theorem.value_at(s) < math.inf:
            found += 1
            yield theorem, s


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vertical-rate", "hybrid-tracked", "hedging"])
def test_runs_of_the_package_stay_below_and_bounds_above(name):
    """On 12 random problems or more, logistic and squared losses among them."""
    seen = 0
    for theorem, s in _settings(name, 40 if name == "hedging" else 12):
        worst = exact_worst(theorem, s)
        if worst.has_interval:
            seen += 1
            measured = theorem.expectation(s, [s.rounds])
            assert measured.values[0] <= worst.upper * (1 + 1e-6) + measured.rounding[0]
            assert worst.lower <= theorem.at(s).value * (1 + 1e-9)
    assert seen >= 4


@pytest.mark.slow
def test_owners_who_disagree_attain_the_worst_case():
    """The same column thrice: what is measured, the bound and both ends are one number."""
    problem = column_owners.one_column_thrice.make()
    s = Setting(problem, FedBCD(), 2, column_owners.between(problem))
    worst, theorem = exact_worst(THEOREMS["vertical-rate"], s), THEOREMS["vertical-rate"]
    assert theorem.expectation(s, [2]).values[0] == pytest.approx(worst.upper, rel=1e-6)
    assert worst.lower == pytest.approx(worst.upper, rel=1e-6)
    problem = block_instances.one_column.make()
    s = Setting(problem, TrackedBlockDescent(step_size=1.0), 4, block_instances.between(problem))
    worst, theorem = exact_worst(THEOREMS["hybrid-tracked"], s), THEOREMS["hybrid-tracked"]
    assert theorem.expectation(s, [4]).values[0] == pytest.approx(worst.upper, rel=1e-6)


# ---------------------------------------------------------------- progressive hedging, FedAvg, SCAFFOLD


def _parabolas(curvatures, minimisers, weights=None):
    """Return clients h (w - m)^2/2 in one dimension."""
    rows = [([[math.sqrt(h)]], [math.sqrt(h) * m]) for h, m in zip(curvatures, minimisers, strict=True)]
    return Problem(Federation.from_clients(rows), Squared(), 0.0, weights)


def test_one_client_hedges_by_proximal_steps():
    """rho/(rho + mu) a round, attained by a parabola of curvature mu; the class reaches up to L = 2."""
    from fedconvex.theorems.hedging import _squared

    lower, upper = _squared(0.5, 2, 0.25, 0.0, (1.0,))
    assert math.sqrt(lower) == pytest.approx((0.5 / 0.75) ** 2, rel=1e-6)
    assert math.sqrt(upper) == pytest.approx((0.5 / 0.75) ** 2, rel=1e-6)


@pytest.mark.slow
def test_hedging_on_a_grid_of_parabolas():
    """Two clients, one round and two: all parabolas stay below the worst case, and the worst of them is near it."""
    for T in (1, 2):
        ratios = []
        for h, start in itertools.product(((0.2, 0.2), (0.2, 1.0), (1.0, 1.0)), (1.0, 2.0, -3.0)):
            p = _parabolas(h, (0.5, -0.5))
            s = Setting(p, ProgressiveHedging(rho=0.4), T, [start])
            if not np.ptp(h):
                continue
            worst = exact_worst(THEOREMS["hedging"], s)
            found = THEOREMS["hedging"].expectation(s, [T]).values[0]
            assert found <= worst.upper * (1 + 1e-9)
            assert worst.upper <= THEOREMS["hedging"].at(s).value * (1 + 1e-6)
            ratios.append(found / worst.upper)
        assert max(ratios) > 0.5


WEIGHTED = _parabolas((0.3, 1.0), (1.0, -0.5), [0.8, 0.2])
RUNS = [
    ("fedavg-contraction", FedAvg(step_size=0.5, local_steps=2)),
    ("fedavg-contraction", FedAvg(step_size=Decay(1.0, 2.0), local_steps=2)),
    ("fedavg-contraction", FedAvg(step_size=Decay(1.0, 2.0, by_round=True), local_steps=2)),
    ("scaffold-contraction", SCAFFOLD(step_size=0.5, local_steps=2)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), RUNS)
@pytest.mark.parametrize("start", [[2.0], None], ids=["from afar", "from the optimum"])
def test_weights_schedules_and_starts_at_the_optimum_have_programmes(name, method, start):
    """What two parabolas show is below, the bound above, and the ends meet."""
    s = Setting(WEIGHTED, method, 2, at_minimiser(WEIGHTED) if start is None else start)
    worst, theorem = exact_worst(THEOREMS[name], s), THEOREMS[name]
    assert worst.upper - worst.lower <= 2e-3 * worst.upper
    assert theorem.expectation(s, [2]).values[0] <= worst.upper * (1 + 1e-6)
    assert worst.lower <= theorem.at(s).value
    assert theorem.expectation(s, [2]).values[0] >= 0.1 * worst.upper


@pytest.mark.slow
def test_a_start_at_the_optimum_scales_with_the_gradients_there():
    """Labels a thousand times as large: a million times the worst case, from the same programme."""
    name, (first, large, *_) = "fedavg-contraction", two_parabolas
    found = []
    for one in (first, large):
        p = one.make()
        found.append(exact_worst(THEOREMS[name], Setting(p, FedAvg(step_size=0.3, local_steps=2), 1, at_minimiser(p))))
    assert found[1].upper == pytest.approx(1e6 * found[0].upper, rel=1e-6)
    assert found[0].has_interval
