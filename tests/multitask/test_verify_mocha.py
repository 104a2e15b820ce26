"""MOCHA's theorems held against real runs through `verify`, with planted errors that are caught."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import eigh

from fedconvex import FedAvg, Federation, Hinge, Logistic, Problem, SmoothedHinge, Softmax, Squared, run
from fedconvex.families.multitask.separability import dual_constants, separability, worst_duals
from fedconvex.families.multitask.theorems.mocha import mocha_gap, mocha_lipschitz, mocha_smooth
from fedconvex.families.multitask.theorems.tasks import (
    opposed_tasks,
    related_tasks,
    related_tasks_hinge,
    twin_tasks,
    wide_tasks,
)
from fedconvex.kernels.cache import DISABLED
from fedconvex.methods import MOCHA, Clock, CoCoA, MiniBatchSDCA, UniformSampling
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem
from fedconvex.theory.bound import AssumptionError, Bound
from fedconvex.verify import THEOREMS, Outcome, Setting, checks, curve, own_instance, verify, verify_grid, verify_suite

pytestmark = pytest.mark.compiled_if_slow

EXACT = MOCHA(epochs=50.0, sigma="pencil")
MOST = 64 if DISABLED else 512  # trajectories; uncompiled runs are there for the code, not for the numbers


def planted(name, change):
    """The theorem with another bound: change(setting, right bound) -> number."""
    right = THEOREMS[name]

    def bound(s):
        found = right.at(s)
        return Bound({"planted": change(s, found)}, found.quantity, "planted", found.requires)

    return right._replace(bound=bound, read=None)


def refuses(name, problem, method, why, **options):
    verdict = verify(name, problem, method, rounds=2, **options)
    assert verdict.outcome is Outcome.NOT_APPLICABLE, verdict
    assert why in verdict.reason, verdict.reason


# ---------------------------------------------------------------- values that are known


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_twins_contract_by_the_square(rounds):
    """D - min D = ‖y - alpha‖^2/2 on sum alpha = 0, from 5/2; s = 1/(1 + 1/l2) = 1/6, every error keeps 1 - s."""
    smooth, gap = (verify(name, twin_tasks.make(), EXACT, rounds=rounds) for name in ("mocha-smooth", "mocha-gap"))
    assert smooth.measured == pytest.approx(2.5 * (5 / 6) ** (2 * rounds), rel=1e-9)
    assert smooth.bound.value == pytest.approx(2.5 * (5 / 6) ** rounds, rel=1e-9)
    assert gap.measured == pytest.approx(smooth.measured, rel=1e-9)  # W = 0: the gap is ‖y - alpha‖^2/2 as well
    assert gap.bound.value == pytest.approx(6 * smooth.bound.value, rel=1e-9)
    assert {smooth.outcome, gap.outcome} == {Outcome.HOLDS}
    assert (smooth.trajectories, smooth.low) == (0, smooth.high)


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_opposed_tasks_fall_by_six_fifths_a_round(rounds):
    """W = 0 throughout: every alpha rises by l2 = 1/5 from 0 to 1, D = -sum alpha. C = 6 (1/1.2) 6/2 = 15."""
    verdict = verify("mocha-lipschitz", opposed_tasks.make(), EXACT, rounds=rounds)
    assert verdict.measured == pytest.approx(6 - 1.2 * rounds, abs=1e-9)
    assert verdict.outcome is (Outcome.VACUOUS if rounds == 5 else Outcome.HOLDS)  # 6 - 1.2 * 5 = 0
    eps = 6.0
    for _ in range(rounds):
        eps -= eps**2 / 60
    assert verdict.bound.value == pytest.approx(eps, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [0.03, 0.01])
def test_dropped_nodes_are_the_mean_over_all_subsets(precision):
    problem, drop = twin_tasks.make(), 0.3
    expected, best = 0.0, problem.solve().value
    for moved in itertools.product((0.0, 1.0), repeat=4):
        share = np.prod([1 - drop if b else drop for b in moved])
        expected += share * (problem.dual_value(np.array(moved) * problem.federation.y / 6) + best)
    verdict = verify("mocha-smooth", problem, replace(EXACT, drop=drop), rounds=1, precision=precision)
    assert verdict.trajectories > 0
    assert verdict.low <= expected <= verdict.high
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.bound.value == pytest.approx(2.5 * (1 - 0.7 / 6))


@pytest.mark.slow
def test_the_quantities_are_those_of_a_run():
    problem, method = related_tasks.make(), MOCHA(epochs=1.0)
    trace = run(method, problem, rounds=3, tol=0, trajectories=5, seed=4).trace
    setting = Setting(problem, method, 3, np.zeros(problem.model_shape))
    found = THEOREMS["mocha-smooth"].draw(setting, [1, 3], 4, 5)
    np.testing.assert_allclose(found, problem.solve().value - trace.dual[[1, 3]], rtol=1e-9, atol=1e-13)
    gaps = THEOREMS["mocha-gap"].draw(setting, [3], 4, 5)
    np.testing.assert_allclose(gaps[0], trace.gap[3], rtol=1e-6, atol=1e-12)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("method", "absent"),
    [
        (MOCHA(epochs=1.0), 0.0),
        (MOCHA(epochs=3.0, clock=Clock(0.3), drop=0.2), 0.2),
        (MOCHA(theta=0.2, drop=0.3), 0.3),
        (MOCHA(epochs=2.0, participation=3), 0.5),
        (MOCHA(epochs=2.0, participation=UniformSampling(3), drop=0.2), 0.6),
        (MOCHA(epochs=2.0, drop=[0.1, 0.2, 0.0, 0.3, 0.0, 0.5]), 0.5),
        (CoCoA(theta=0.3), 0.0),
    ],
    ids=["one pass", "clock", "theta", "half of them", "half and drops", "own drops", "CoCoA"],
)
@pytest.mark.slow
def test_the_theorems_hold(method, absent):
    for name, problem in (
        ("mocha-smooth", related_tasks),
        ("mocha-gap", related_tasks),
        ("mocha-lipschitz", related_tasks_hinge),
    ):
        verdict = verify(name, problem.make(), method, rounds=3, most=MOST, precision=0.1)
        assert verdict.outcome is Outcome.HOLDS, verdict
        assert verdict.low < verdict.high <= verdict.bound.value
    p_max = {h.text: h.numbers for h in verdict.bound.requires}["theta_t = 1 with probability <= p_max"]
    assert f"{absent:.4g} absent" in p_max


@pytest.mark.slow
def test_nodes_that_work_in_vain_count():
    """Single coordinate steps: often the drawn coordinate is where it should be, and theta_t = 1 without a drop."""
    method = MOCHA(local_steps=1, replacement=True)
    verdict = verify("mocha-lipschitz", related_tasks_hinge.make(), method, rounds=30, most=64)
    numbers = {h.text: h.numbers for h in verdict.bound.requires}["theta_t = 1 with probability <= p_max"]
    assert float(numbers.partition("absent, ")[2].partition(" idle")[0]) > 0.05
    assert verdict.outcome is Outcome.HOLDS


@pytest.mark.slow
def test_curves_and_grids():
    line = curve("mocha-smooth", twin_tasks.make(), EXACT, rounds=[1, 2, 8])
    assert line.exact
    assert (line.measured <= line.bound).all()
    sampled = curve("mocha-gap", related_tasks.make(), MOCHA(epochs=1.0), rounds=[1, 4], trajectories=64)
    assert not sampled.exact
    assert (sampled.low < sampled.measured).all()
    assert (sampled.high <= sampled.bound).all()

    def setting(drop, loss):
        fed = related_tasks.make().federation
        return MultiTaskProblem(fed, loss, MeanRegularised(1.0, 0.5), "mean"), MOCHA(drop=drop), 2

    corners = verify_grid("mocha-smooth", setting, {"drop": [0.0, 0.5], "loss": [SmoothedHinge(0.5), Hinge()]}, most=64)
    assert corners.violated == []
    outcomes = [v.outcome for v in corners.verdicts.values()]
    assert outcomes == [Outcome.HOLDS, Outcome.NOT_APPLICABLE] * 2
    with pytest.raises(AssumptionError, match="needs a MultiTaskProblem, got Problem"):
        curve("mocha-smooth", Problem(twin_tasks.make().federation, Squared()), EXACT, rounds=[1])


# ---------------------------------------------------------------- hypotheses


def test_kinds_of_problems_are_told_apart():
    tasks = twin_tasks.make()
    one_model = Problem(tasks.federation, Squared(), 0.1)
    for name in ("mocha-smooth", "mocha-gap", "mocha-lipschitz", "mocha-sigma"):
        refuses(name, one_model, EXACT, f"{name} does not apply: needs a MultiTaskProblem, got Problem")
        refuses(name, tasks, FedAvg(step_size=0.1), "needs the method MOCHA or CoCoA, got FedAvg")
        refuses(name, tasks, MiniBatchSDCA(batch_size=1), "needs the method MOCHA or CoCoA, got MiniBatchSDCA")
    for name in ("fedavg-convex", "scaffold", "dynamic-msd-refined", "hedging"):
        refuses(name, tasks, FedAvg(step_size=0.1), f"{name} does not apply: needs a Problem, got MultiTaskProblem")
    refuses("boosting-descent", tasks, EXACT, "needs a BoostingProblem, got MultiTaskProblem")


@pytest.mark.slow
def test_hypotheses_are_named(monkeypatch):
    problem = related_tasks.make()
    learned = MultiTaskProblem(problem.federation, Hinge(), Covariance(1.0))
    refuses("mocha-smooth", problem, MOCHA(sigma=1.0), "a safe sigma', got sigma' = 1, least 2.25")
    refuses("mocha-smooth", related_tasks_hinge.make(), MOCHA(), "a smooth loss, got mu = 0")
    refuses("mocha-gap", related_tasks_hinge.make(), MOCHA(), "a smooth loss")
    refuses("mocha-lipschitz", twin_tasks.make(), MOCHA(), "a Lipschitz loss")
    refuses("mocha-lipschitz", learned, MOCHA(), "a fixed relationship")
    refuses("mocha-sigma", learned, MOCHA(), "a fixed relationship")
    refuses("mocha-sigma", problem, MOCHA(sigma=9.0), "sigma' by a rule")
    refuses("mocha-smooth", problem, MOCHA(), "a start at alpha = 0", start=np.ones(problem.model_shape))
    refuses("mocha-smooth", problem, CoCoA(theta=1e-6, max_epochs=1), "nodes that reach the accuracy theta = 1e-06")
    refuses("mocha-smooth", problem, MOCHA(drop=1.0), "0 <= Thetabar < 1")
    monkeypatch.setattr("fedconvex.families.multitask.theorems.dual_methods.LARGEST", 3)
    refuses(
        "mocha-sigma", twin_tasks.make(), MOCHA(sigma="tasks"), "row spaces of at most 3 dimensions together, got 4"
    )


# ---------------------------------------------------------------- planted errors


@pytest.mark.slow
def test_a_rate_with_twice_the_s_is_violated():
    def doubled(s, found):
        c = dual_constants(s.problem)
        return found.value / (1 - c.mu / (c.mu + c.sigma * c.sigma_max)) ** s.rounds * (1 - 2 / 6) ** s.rounds

    for rounds in (1, 3, 6):
        verdict = verify(planted("mocha-smooth", doubled), twin_tasks.make(), EXACT, rounds=rounds)
        assert verdict.outcome is Outcome.VIOLATED
    assert verify("mocha-smooth", twin_tasks.make(), EXACT, rounds=3).outcome is Outcome.HOLDS


@pytest.mark.parametrize("factor", [2.5, 10.0])
def test_a_spread_that_is_too_small_is_violated(factor):
    """Theorem 2 with C divided: the first round of the opposed tasks falls by 1.2, 36/(4C/2.5) = 1.5 is promised."""

    def smaller(s, found):
        c = dual_constants(s.problem)
        return mocha_lipschitz(c._replace(weight=c.weight / factor), rounds=s.rounds, start=6.0).value

    verdict = verify(planted("mocha-lipschitz", smaller), opposed_tasks.make(), EXACT, rounds=1)
    assert verdict.outcome is Outcome.VIOLATED


@pytest.mark.slow
def test_an_unsafe_sigma_is_violated():
    """A quarter of the least sigma', with the hypothesis struck out: D rises where the theorem lets it fall.

    The twins with other targets: errors along 1 are what all nodes remove at once.
    """
    fed = Federation.from_clients([([[1.0]], [t]) for t in range(4)])
    problem = MultiTaskProblem(fed, Squared(), twin_tasks.make().relation)
    method = replace(EXACT, sigma=1.0)
    refuses("mocha-smooth", problem, method, "a safe sigma', got sigma' = 1, least 4")
    start = problem.dual_value(np.zeros(4)) + problem.solve().value
    believed = dual_constants(problem)._replace(sigma=1.0, least_sigma=0.0)
    wrong = THEOREMS["mocha-smooth"]._replace(
        read=None, bound=lambda s: mocha_smooth(believed, rounds=s.rounds, start=start)
    )
    for rounds in (1, 3):
        assert verify(wrong, problem, method, rounds=rounds).outcome is Outcome.VIOLATED
        assert verify("mocha-smooth", problem, EXACT, rounds=rounds).outcome is Outcome.HOLDS


@pytest.mark.slow
def test_accuracies_and_drops_that_are_ignored_are_violated():
    def forgetful(s, found):
        return mocha_smooth(dual_constants(s.problem), rounds=s.rounds, start=2.5, theta=0.0).value

    wrong = planted("mocha-smooth", forgetful)
    assert verify(wrong, twin_tasks.make(), replace(EXACT, drop=0.9), rounds=3).outcome is Outcome.VIOLATED
    assert verify("mocha-smooth", twin_tasks.make(), replace(EXACT, drop=0.9), rounds=3).outcome is Outcome.HOLDS

    def perfect(s, found):
        start = found.value / (1 - (1 - _thetabar(found)) * _s(s.problem)) ** s.rounds
        return mocha_smooth(dual_constants(s.problem), rounds=s.rounds, start=start, theta=0.0).value

    lazy = MOCHA(local_steps=1)
    strong = MultiTaskProblem(related_tasks.make().federation, Squared(), Independent(20.0), "mean")
    assert verify(planted("mocha-smooth", perfect), strong, lazy, rounds=2, most=256).outcome is Outcome.VIOLATED
    assert verify("mocha-smooth", strong, lazy, rounds=2, most=256).outcome is Outcome.HOLDS


def _s(problem):
    c = dual_constants(problem)
    return c.mu / (c.mu + c.sigma * c.sigma_max)


def _thetabar(bound):
    text = {h.text: h.numbers for h in bound.requires}["0 <= Thetabar < 1"]
    return float(text.partition("= ")[2])


@pytest.mark.slow
def test_a_gap_without_its_factor_is_violated():
    """The gap is up to 1/s times the suboptimality: with lazy nodes it exceeds the bound of the latter."""
    problem, lazy = related_tasks.make(), MOCHA(local_steps=1)
    wrong = planted("mocha-gap", lambda s, found: found.value * _s(s.problem))
    assert verify(wrong, problem, lazy, rounds=2, most=256).outcome is Outcome.VIOLATED
    assert verify("mocha-gap", problem, lazy, rounds=2, most=256).outcome is Outcome.HOLDS
    eps = verify("mocha-smooth", problem, lazy, rounds=2, most=256).measured
    assert mocha_gap(dual_constants(problem), suboptimality=eps).value > eps


# ---------------------------------------------------------------- sigma'


@pytest.mark.parametrize("rule", ["pencil", "eigenvalue", "rows", "tasks", None])
def test_rules_for_sigma_are_safe(rule):
    verdict = verify("mocha-sigma", wide_tasks.make(), MOCHA(sigma=rule), rounds=1)
    assert verdict.outcome is Outcome.HOLDS
    expected = {"pencil": 1.0, None: 1.0, "eigenvalue": 1.1016, "rows": 1.2742, "tasks": 2.2607}
    assert verdict.ratio == pytest.approx(expected[rule], rel=1e-3)


def test_the_worst_duals_are_the_largest_eigenvalue():
    """K a = r B a, K = blocks Mbar_st c_s c_t X_s X_t', B its diagonal blocks; rows are fewer than features."""
    problem = wide_tasks.make()
    fed, task = problem.federation, np.repeat(np.arange(problem.federation.K), problem.federation.sizes)
    gram = (fed.X @ fed.X.T) * problem.mbar[np.ix_(task, task)] * np.outer(problem.c[task], problem.c[task])
    own_blocks = np.where(np.equal.outer(task, task), gram, 0.0)
    largest = eigh(gram, own_blocks, eigvals_only=True)[-1]
    assert separability(problem, worst_duals(problem)) == pytest.approx(largest, rel=1e-9)
    assert problem.pencil_sigma() == pytest.approx(largest, rel=1e-9)
    rng = np.random.default_rng(0)
    assert all(separability(problem, rng.normal(size=fed.n)) <= largest for _ in range(50))


@pytest.mark.parametrize(("share", "outcome"), [(1.0, Outcome.HOLDS), (0.99, Outcome.VIOLATED)])
def test_a_rule_below_the_pencil_is_violated(share, outcome):
    wrong = planted("mocha-sigma", lambda s, found: share * found.value)
    for world in (twin_tasks, related_tasks, wide_tasks):
        assert verify(wrong, world.make(), MOCHA(sigma="pencil"), rounds=1).outcome is outcome


def test_duals_without_images_are_refused():
    problem = twin_tasks.make()
    with pytest.raises(ValueError, match="move some v_t away from zero"):
        separability(problem, np.zeros(4))
    with pytest.raises(ValueError, match="4 entries"):
        separability(problem, np.ones(3))
    with pytest.raises(ValueError, match="steps must be at least 1"):
        worst_duals(problem, steps=0)


# ---------------------------------------------------------------- the command's suite


NAMES = ["mocha-smooth", "mocha-gap", "mocha-lipschitz", "mocha-sigma"]


@pytest.mark.slow
def test_your_own_clients_become_tasks():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.where(rng.normal(size=60) > 0, 1.0, -1.0)
    fed = Federation.from_arrays(X, y, np.arange(60) % 3)
    found = verify_suite(
        checks(NAMES, own_instance(Problem(fed, Logistic(), 0.1), "mine")), most=64, tightness=False, curves=True
    )
    assert [f.outcome for f in found.findings] == [Outcome.HOLDS] * 4
    assert all("3 tasks of 20 rows" in f.words and f.setting.startswith("mine, ") for f in found.findings)
    assert {"sigma_max", "sigma'", "mu"} <= {c.name for c in found.findings[0].constants}
    classes = Federation.from_arrays(X, np.arange(60) % 3.0, np.arange(60) % 3)
    found = verify_suite(checks(NAMES, own_instance(Problem(classes, Softmax(3), 0.1), "mine")), tightness=False)
    assert [f.why for f in found.findings] == ["needs one score for each row, got 3 scores"] * len(NAMES)


@pytest.mark.slow
def test_your_own_tasks_are_taken_as_they_are():
    world = own_instance(related_tasks.make(), "mine")
    found = verify_suite(checks(["mocha-smooth", "fedavg-convex", "svrg"], world), most=64, tightness=False)
    outcomes = {f.theorem: (f.outcome, f.why) for f in found.findings}
    assert outcomes["mocha-smooth"][0] is Outcome.HOLDS
    assert outcomes["fedavg-convex"] == (Outcome.NOT_APPLICABLE, "needs a Problem, got MultiTaskProblem")
    assert outcomes["svrg"][0] is Outcome.NOT_APPLICABLE


def test_rows_whose_products_overflow_are_not_decided():
    """Rows of 1e150: the steps of one round overflow, and an infinite gap refutes nothing."""
    fed = Federation.from_arrays(np.full((5, 1), 1e150), np.ones(5), np.array([0, 0, 0, 0, 1]))
    problem = MultiTaskProblem(fed, Logistic(), Independent(1e-12))
    verdict = verify("mocha-lipschitz", problem, MOCHA(epochs=5.0, sigma="pencil"), rounds=2, most=64)
    assert verdict.outcome is Outcome.INCONCLUSIVE and "scale the features" in verdict.reason, verdict
