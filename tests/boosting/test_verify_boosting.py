"""Boosting's theorems held against real runs through `verify`, with planted errors that are caught."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fedconvex import Exponential, FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.families.boosting.edges import edges
from fedconvex.families.boosting.theorems.adaboost import adaboost_weak
from fedconvex.families.boosting.theorems.boosting import boosting_progress, gradient_remainder, smoothing_error
from fedconvex.families.boosting.theorems.sources import breast_cancer_sources, one_source, three_sources, two_sources
from fedconvex.methods import FedMultiBoost, MultiBoost
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2, StumpProblem
from fedconvex.theory.bound import AssumptionError, Bound
from fedconvex.verify import THEOREMS, Outcome, checks, curve, own_instance, verify, verify_grid, verify_suite
from tests.boosting.test_multiboost import LOSSES, instance, plain_losses

NAMES = [name for name in THEOREMS if name.startswith(("boosting", "adaboost"))]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)


def planted(name, change):
    """The theorem with another bound: change(setting, right bound) -> number."""
    right = THEOREMS[name]

    def bound(s):
        found = right.at(s)
        return Bound({"planted": change(s, found)}, found.quantity, "planted", found.requires)

    return right._replace(bound=bound, read=None)


def holds(name, problem, method, rounds=15, **options):
    verdict = verify(name, problem, method, rounds=rounds, **options)
    nothing = name == "boosting-smoothing" and verdict.bound.value == 0.0  # one source: log(1)/mu
    assert verdict.outcome is (Outcome.VACUOUS if nothing else Outcome.HOLDS), verdict
    assert (verdict.trajectories, verdict.low) == (0, verdict.high)
    return verdict


def refuses(name, problem, method, why, **options):
    verdict = verify(name, problem, method, rounds=2, **options)
    assert verdict.outcome is Outcome.NOT_APPLICABLE, verdict
    assert why in verdict.reason, verdict.reason


def mirrored(p=2):
    """p sources with the same losses for every alpha: all coordinates of one row each, mirrored."""
    fed = Federation.from_arrays(np.zeros((p, 1)), np.ones(p), np.arange(p), np.arange(p))
    return EnsembleProblem(fed, Dictionary(np.full((p, 1), 0.5), [0]), uncertainty_set=np.eye(p))


# ---------------------------------------------------------------- they hold, and say what they measure


@each_loss
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_unless(seed=0)
def test_all_hold_on_random_dictionaries(loss, seed):
    problem = instance(seed, p=1 + seed % 3, loss=loss)
    for mu in (None, 1.0, 30.0):
        method = MultiBoost(smoothing=mu)
        assert holds("boosting-descent", problem, method).measured <= 1.0 + 1e-13
        if mu is not None:
            loss_now = holds("boosting-progress", problem, method).measured
            error = holds("boosting-smoothing", problem, method).measured
            F = plain_losses(problem, _alpha(problem, method, 15))
            smoothed = np.logaddexp.reduce(mu * F) / mu
            assert loss_now == pytest.approx(smoothed, rel=1e-11)
            assert error == pytest.approx(smoothed - F.max(), abs=1e-12)
        assert holds("boosting-gradient", problem, method).measured > 0


def _alpha(problem, method, rounds):
    from fedconvex import iterate

    *_, (_, state) = iterate(method, problem, rounds=rounds)
    return state.w[0]


def test_the_remainder_is_that_of_the_definition():
    problem = instance(5, p=3)
    verdict = holds("boosting-gradient", problem, MultiBoost(), rounds=4)
    alpha, h = _alpha(problem, MultiBoost(), 4), 0.01
    slope = np.array([_central(problem, alpha, j) for j in range(alpha.size)])
    moved = np.array([plain_losses(problem, alpha + h * e) for e in np.eye(alpha.size)])
    rest = np.abs(moved - plain_losses(problem, alpha) - h * slope)
    assert verdict.measured == pytest.approx(rest.max(), rel=1e-4)


def _central(problem, alpha, j):
    e = 1e-5 * np.eye(alpha.size)[j]
    return (plain_losses(problem, alpha + e) - plain_losses(problem, alpha - e)) / 2e-5


def test_adaboost_is_an_equality_for_signs():
    for rounds in (1, 10, 30):
        product = holds("adaboost", one_source.make(), MultiBoost(), rounds)
        assert product.ratio == pytest.approx(1.0, rel=1e-12)
        assert holds("adaboost-weak", one_source.make(), MultiBoost(), rounds).ratio > 1.0
    doubtful = instance(2, p=1)  # Q h in {-1/2, 1/2}: the inequality is strict
    assert holds("adaboost", doubtful, MultiBoost(), 5).ratio > 1.001


def test_smoothing_is_attained_by_equal_sources():
    verdict = holds("boosting-smoothing", mirrored(3), MultiBoost(smoothing=7.0))
    assert verdict.measured == pytest.approx(math.log(3) / 7, rel=1e-12)
    assert verdict.ratio == pytest.approx(1.0, rel=1e-12)


def test_a_first_step_by_hand():
    """One source, one classifier right on 3 of 4 rows: gamma = 1/2, F = (3/4)^(1/2)."""
    fed = Federation.from_arrays(np.zeros((4, 1)), np.ones(4), [0, 0, 0, 0])
    problem = EnsembleProblem(fed, Dictionary([[1.0], [1.0], [1.0], [-1.0]], [0]))
    assert holds("adaboost", problem, MultiBoost(), 1).measured == pytest.approx(0.75**0.5)
    assert holds("adaboost-weak", problem, MultiBoost(), 1).bound.value == pytest.approx(math.exp(-0.125))
    progress = holds("boosting-progress", problem, MultiBoost(), 1)
    assert progress.bound.value == pytest.approx(1 - 0.25 / 2)  # g = -1/2, L = 1


@pytest.mark.slow
def test_curves_and_grids():
    for name in ("boosting-progress", "boosting-smoothing", "boosting-gradient"):
        line = curve(name, two_sources.make(), MultiBoost(smoothing=5.0), rounds=[1, 4, 12])
        assert line.exact
        assert (line.measured <= line.bound * (1 + 1e-10)).all()

    def setting(mu, world):
        return world.make(), MultiBoost(smoothing=mu), 10

    corners = verify_grid(
        "boosting-progress", setting, {"mu": [1.0, 20.0], "world": [two_sources, three_sources, breast_cancer_sources]}
    )
    assert corners.violated == []
    assert {v.outcome for v in corners.verdicts.values()} == {Outcome.HOLDS}


# ---------------------------------------------------------------- hypotheses


def test_kinds_of_problems_are_told_apart():
    one_model = Problem(two_sources.make().data, Logistic(), 0.1)
    for name in NAMES:
        refuses(name, one_model, MultiBoost(), f"{name} does not apply: needs a BoostingProblem, got Problem")
        refuses(
            name, two_sources.make(), FedMultiBoost(step_size=0.1), "needs the method MultiBoost, got FedMultiBoost"
        )
    refuses("fedavg-convex", two_sources.make(), FedAvg(step_size=0.1), "needs a Problem, got EnsembleProblem")
    refuses("fedavg-convex", three_sources.make(), FedAvg(step_size=0.1), "needs a Problem, got StumpProblem")
    refuses("mocha-smooth", three_sources.make(), MultiBoost(), "needs a MultiTaskProblem, got StumpProblem")


@pytest.mark.filterwarnings("ignore:MultiBoost:RuntimeWarning")
def test_hypotheses_are_named():
    refuses(
        "boosting-progress", two_sources.make(), MultiBoost(), "a smoothed maximum, or one mixture, got smoothing=None"
    )
    refuses("boosting-smoothing", two_sources.make(), MultiBoost(), "a smoothed maximum")
    refuses("boosting-gradient", three_sources.make(), MultiBoost(), "a list of classifiers, got StumpProblem")
    refuses("adaboost", two_sources.make(), MultiBoost(), "one source, got 2 sources")
    one = one_source.make()
    refuses("adaboost", StumpProblem(one.data, loss=Logistic2()), MultiBoost(), "exponential loss, got Logistic2()")
    refuses("adaboost", one, MultiBoost(max_step=0.01), "no step that is cut off, got largest step 0.01")
    perfect = Federation.from_arrays([[0.0], [1.0]], [-1.0, 1.0], [0, 0])
    refuses("adaboost", StumpProblem(perfect), MultiBoost(), "no step that is cut off")
    start = np.full(two_sources.make().model_shape, -1.0)
    refuses("boosting-descent", two_sources.make(), MultiBoost(), "a start with alpha >= 0", start=start)
    with pytest.raises(AssumptionError, match="gamma = 0"):
        adaboost_weak(0.0, rounds=3)


def test_capped_steps_promise_nothing():
    """A step that is cut off may gain less than g^2/(2L), and still nothing rises."""
    for world in (two_sources, three_sources):
        method = MultiBoost(smoothing=5.0, max_step=0.02)
        verdict = holds("boosting-progress", world.make(), method, 5)
        first = holds("boosting-progress", world.make(), method, 1)
        assert verdict.bound.value == first.bound.value  # the start
        holds("boosting-descent", world.make(), method, 5)


def test_steps_back_promise_nothing_where_they_end_at_zero():
    """Start far beyond the minimum along one coordinate: the step back is the whole of it."""
    fed = Federation.from_arrays(np.zeros((4, 1)), np.ones(4), [0, 0, 0, 0])
    problem = EnsembleProblem(fed, Dictionary([[-1.0], [-1.0], [-1.0], [1.0]], [0]))
    start = np.array([0.1])
    assert holds("boosting-descent", problem, MultiBoost(), 1, start=start).measured < 1.0
    verdict = holds("boosting-progress", problem, MultiBoost(), 1, start=start)
    assert verdict.bound.value == pytest.approx(0.75 * math.exp(0.1) + 0.25 * math.exp(-0.1))
    refuses("adaboost", problem, MultiBoost(), "a start at alpha = 0", start=start)


# ---------------------------------------------------------------- planted errors


def _overshooting(factor):
    """MultiBoost with steps that are too long or too short by a factor."""

    @dataclass(frozen=True, kw_only=True)
    class Wrong(MultiBoost):
        def _step(self, *args):
            eta, capped = super()._step(*args)
            return factor * eta, capped

    Wrong.__name__ = "MultiBoost"
    return Wrong


@pytest.mark.parametrize("world", [one_source, two_sources])
def test_a_line_search_that_overshoots_is_violated(world):
    wrong = _overshooting(4.0)(smoothing=1.0)
    assert verify("boosting-descent", world.make(), wrong, rounds=5).outcome is Outcome.VIOLATED
    assert verify("boosting-progress", world.make(), wrong, rounds=5).outcome is Outcome.VIOLATED
    if world is one_source:
        assert verify("adaboost", world.make(), wrong, rounds=1).outcome is Outcome.VIOLATED


def test_a_line_search_that_is_a_hair_short_is_violated():
    """The product of the rounds is an equality: half a step is seen there, not in what merely has to fall."""
    wrong = _overshooting(0.5)()
    assert verify("adaboost", one_source.make(), wrong, rounds=5).outcome is Outcome.VIOLATED
    assert verify("boosting-descent", one_source.make(), wrong, rounds=5).outcome is Outcome.HOLDS


def test_a_choice_that_is_not_the_steepest_is_violated():
    """The round's promise is that of the steepest coordinate; a method that takes the flattest breaks it."""

    class Lazy(EnsembleProblem):
        def steepest(self, mixes, slopes, alpha, own):
            pick = super().steepest(mixes, slopes, alpha, own)
            g = -(self.signed.T @ (slopes * self.row_weights_of(mixes[0])))
            j = int(np.argmax(np.where(g < -1e-3, g, -np.inf)))
            return pick._replace(column=j, direction=self.signed[:, j], slope=float(g[j]), forward=True)

    right = instance(1, p=2, N=(6, 7))
    wrong = Lazy(right.data, right.dictionary, right.q)
    method = MultiBoost(smoothing=1.0)
    assert verify("boosting-progress", right, method, rounds=1).outcome is Outcome.HOLDS
    assert verify("boosting-progress", wrong, method, rounds=1).outcome is Outcome.VIOLATED
    assert verify("boosting-descent", wrong, method, rounds=1).outcome is Outcome.HOLDS


@pytest.mark.parametrize("wrong", [lambda e, m: -(e.mass / m)[:, None] * (1.0 - e.error), lambda e, m: -e.gradient])
def test_a_wrong_gradient_is_violated(monkeypatch, wrong):
    """1 - eps in place of 1 - 2 eps, and a wrong sign."""
    problem = two_sources.make()
    assert holds("boosting-gradient", problem, MultiBoost(), 3).ratio < 2.0
    right = edges

    def changed(p, alpha):
        e = right(p, alpha)
        return e._replace(gradient=wrong(e, p.counts))

    monkeypatch.setattr("fedconvex.families.boosting.theorems.boosting.edges", changed)
    assert verify("boosting-gradient", problem, MultiBoost(), rounds=3).outcome is Outcome.VIOLATED


@pytest.mark.slow
def test_bounds_that_promise_too_much_are_violated():
    village_, coasts_ = one_source.make(), two_sources.make()
    weak = planted("adaboost-weak", lambda s, found: found.value**4)  # gamma doubled
    assert verify(weak, village_, MultiBoost(), rounds=10).outcome is Outcome.VIOLATED
    product = planted("adaboost", lambda s, found: found.value * (1 - 1e-6))
    assert verify(product, village_, MultiBoost(), rounds=10).outcome is Outcome.VIOLATED
    half = planted("boosting-smoothing", lambda s, found: 0.9 * found.value)
    assert verify(half, mirrored(), MultiBoost(smoothing=9.0), rounds=2).outcome is Outcome.VIOLATED
    far = planted("boosting-progress", lambda s, found: 1.0 - 2.0 * (1.0 - found.value))  # L halved
    assert verify(far, village_, MultiBoost(), rounds=10).outcome is Outcome.VIOLATED
    down = planted("boosting-descent", lambda s, found: 0.999)
    assert verify(down, coasts_, MultiBoost(), rounds=30).outcome is Outcome.VIOLATED
    flat = planted("boosting-gradient", lambda s, found: found.value / 2)
    assert verify(flat, coasts_, MultiBoost(), rounds=3).outcome is Outcome.VIOLATED


# ---------------------------------------------------------------- bounds by themselves


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="promised must be nonnegative"):
        boosting_progress(1.0, [-0.1])
    with pytest.raises(ValueError, match="mu must be positive"):
        smoothing_error(2, 0.0)
    with pytest.raises(ValueError, match=r"step must be a number in \(0, 700\]"):
        gradient_remainder([1.0], 0.0)
    with pytest.raises(ValueError, match="gamma"):
        adaboost_weak(1.5, rounds=1)
    assert gradient_remainder([1.0, 3.0], 0.2).value == pytest.approx(0.02 * math.exp(0.2) * 3)
    assert gradient_remainder([1.0], 0.2, Logistic2().smoothness).value == pytest.approx(0.02 / (4 * math.log(2)))


# ---------------------------------------------------------------- the command's suite


@pytest.mark.filterwarnings("ignore:MultiBoost:RuntimeWarning")
@pytest.mark.slow
def test_your_own_rows_are_boosted():
    rng = np.random.default_rng(0)
    X, z = rng.normal(size=(60, 3)), rng.normal(size=60)
    fed = Federation.from_arrays(X, np.where(z > 0, 1.0, -1.0), np.arange(60) % 3)
    found = verify_suite(
        checks(NAMES, own_instance(Problem(fed, Logistic(), 0.1), "mine")), tightness=False, curves=True
    )
    assert {f.outcome for f in found.findings} == {Outcome.HOLDS}
    words = {f.theorem: f.words for f in found.findings}
    assert "3 sources, 60 rows, all stumps" in words["boosting-descent"]
    assert "1 source, 60 rows, all stumps" in words["adaboost"]
    assert "classifiers" in words["boosting-gradient"]
    curves = {f.theorem: f.curve for f in found.findings}
    assert curves["boosting-descent"] is None
    assert curves["adaboost"].rounds[-1] == 30
    real = Problem(Federation.from_arrays(X, z, np.arange(60) % 3), Squared(), 0.1)
    found = verify_suite(checks(NAMES, own_instance(real, "mine")), tightness=False)
    assert all(f.why.startswith("needs rows that make a BoostingProblem, got: ") for f in found.findings)


def test_many_clients_are_one_source_and_lists_stay_short(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(63, 2)), rng.choice([-1.0, 1.0], 63)
    many = Problem(Federation.from_arrays(X, y, np.arange(63) % 21), Logistic(), 0.1)
    found = verify_suite(
        checks(["boosting-smoothing", "boosting-gradient"], own_instance(many, "mine")), tightness=False
    )
    assert [f.outcome for f in found.findings] == [Outcome.VACUOUS, Outcome.HOLDS]  # log(1)/mu = 0
    assert all("1 source, 63 rows" in f.words for f in found.findings)
    monkeypatch.setattr("fedconvex.families.boosting.theorems.sources._LONGEST", 10)
    (refused,) = verify_suite(checks(["boosting-gradient"], own_instance(many, "mine")), tightness=False).findings
    assert "got: a list of stumps must have at most 10 predictions; got 630" in refused.why


def test_your_own_ensemble_is_taken_as_it_is():
    found = verify_suite(
        checks(["boosting-descent", "scaffold"], own_instance(two_sources.make(), "mine")), tightness=False
    )
    assert {f.theorem: f.outcome.name for f in found.findings} == {
        "boosting-descent": "HOLDS",
        "scaffold": "NOT_APPLICABLE",
    }
    assert isinstance(two_sources.make().loss, Exponential)


def test_adaboost_has_one_vertex():
    """Two equal vertices raise the smoothed maximum by log(2)/mu, and the rate would be false."""
    fed = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [-1.0, 1.0, 1.0, -1.0], clients=[0] * 4)
    problem = StumpProblem(fed, uncertainty_set=[[1.0], [1.0]])
    verdict = verify("adaboost", problem, MultiBoost(smoothing=0.1), rounds=1)
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert "one vertex" in verdict.reason
