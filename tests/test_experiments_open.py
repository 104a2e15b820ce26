"""Planted results that no claim may call true or false: differences within noise, intervals wider than the margin."""

import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fedconvex.families.boosting.experiments import claims as boost_claims
from fedconvex.families.multitask.experiments import har as mocha_har
from fedconvex.families.multitask.experiments import stragglers
from fedconvex.families.multitask.experiments.compared_models import GLOBAL, KINDS, LOCAL, MULTI
from fedconvex.papers import dynamic_logistic, dynamic_msd, primal_averaging, scaffold_similarity
from fedconvex.papers.agnostic_clients import claims as clients_claims
from fedconvex.papers.agnostic_toy import claims as toy_claims
from fedconvex.papers.hybrid_blocks import Cell as Block
from fedconvex.papers.hybrid_blocks import _claims as hybrid_claims
from fedconvex.papers.intervals import Interval
from fedconvex.papers.invariance import chain
from fedconvex.papers.scaffold_similarity import _below, _claims
from fedconvex.papers.virtual_har import _less
from tests.boosting.test_experiments_multiboost import study
from tests.multitask.test_experiments_mocha import outcomes as har_outcomes
from tests.test_experiments_invariance import chains
from tests.test_experiments_virtual import outcome


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.76, 0.82, None), (-0.009, 0.004, True), (-0.03, -0.02, False), (-0.012, 0.008, None), (0.009, 0.011, None)],
)
def test_clients_agree_only_within_the_margin(low, high, verdict):
    """A share of rows in [0, 1] whose interval is -.76 to .82 says nothing; an interval that leaves out 0 may agree."""
    row = {"AFL minus FedAvg": "x", "mean": 0.5 * (low + high), "low": low, "high": high}
    names = ("worst accuracy", "mean accuracy")
    agree, _ = clients_claims._claims_iid("iid, equal", dict.fromkeys(names, row) | {"lambda minus share, 1": row})
    assert agree.holds is verdict
    wide = {k: 5.0 * v for k, v in row.items() if k != "AFL minus FedAvg"} | {"AFL minus FedAvg": "lambda"}
    exact = row | {"mean": 0.0, "low": 0.0, "high": 0.0}
    _, weigh = clients_claims._claims_iid("iid, equal", dict.fromkeys(names, exact) | {"lambda minus share, 1": wide})
    assert weigh.holds is verdict  # the margin is 0.05


def test_six_differences_inside_their_intervals_decide_nothing():
    """MultiBoost a little below every baseline in the mean, by 0.01 ± 0.05 or so: it was called "not above any"."""
    noise = np.array([0.03, -0.03, 0.02, -0.02, 0.0])
    found = study()
    seen: dict[str, int] = {}
    made = []
    for o in found.outcomes:
        i = seen[o.method] = seen.get(o.method, -1) + 1
        shift = noise[i] - 0.01 if o.method == boost_claims.MULTI else 0.0
        test = np.full(2, 0.3 + shift)
        made.append(o._replace(chosen=tuple(c._replace(test=test) for c in o.chosen)))
    planted = found._replace(outcomes=tuple(made))
    for quantity in boost_claims.QUANTITIES[1:]:
        claim = boost_claims._below(planted, boost_claims.MULTI, quantity)
        assert claim.holds is None and "Within the interval of the difference: AdaBoost-a" in claim.numbers
    assert boost_claims._own_domain(planted).holds is None  # equal on every domain
    fed = next(c for c in boost_claims.judge(planted) if c.text.startswith("FedMultiBoost is near"))
    assert fed.holds is None  # 0.01 ± 0.03 below 0.02 in the mean only


def test_rounds_must_be_in_order_in_all_runs():
    slow, fast, between = (50.0, 40.0, 60.0), (10.0, 8.0, 12.0), (30.0, 9.0, 70.0)
    assert [_below(fast, slow), _below(slow, fast), _below(between, slow), _below(slow, between)] == [
        True, False, None, None,
    ]  # fmt: skip
    assert _below((10.0,) * 3, (10.0,) * 3) is True and _below((math.inf,) * 3, (math.inf,) * 3) is True
    cells = [
        scaffold_similarity.Cell(
            m, e, s, (0.5,), np.array([r]), np.array([[0.1 * r, 9.0 * r]]), np.zeros(1), np.zeros(1)
        )
        for (m, e), row in scaffold_similarity.PAPER.items()
        for s, r in zip(scaffold_similarity.SIMILARITIES, row, strict=True)
        if math.isfinite(r)
    ]
    complete = {c.epochs for c in cells if c.similarity == 0 and c.method == "FedAvg"}
    mine = [c for c in cells if c.epochs in complete and c.method != "FedProx"]
    spread = {c.text: c.holds for c in _claims([*mine, *(c._replace(method="FedProx") for c in mine)], 3)}
    assert set(spread.values()) == {None}, spread
    sharp = [c._replace(spread=np.stack([c.rounds, c.rounds], axis=1)) for c in mine]
    one = list(_claims([*sharp, *(c._replace(method="FedProx") for c in sharp)], 1))
    assert {c.said for c in one} == {"not decided here (needs 3 runs, here 1)"}


def test_a_bound_holds_only_above_the_interval():
    """Measured 1 ± 0.4 below 1.1: not refuted, and not shown."""
    point = dynamic_logistic.Point(1e-4, 0.1, 10, 1.0, 0.01, 1.1, 2.0)
    verdicts = [
        dynamic_logistic._above("x", [point._replace(standard_error=e, measured=m)], 1000).holds
        for m, e in ((1.0, 0.01), (1.0, 0.1), (1.15, 0.1), (1.5, 0.01))
    ]
    assert verdicts == [True, None, None, False]
    rate = toy_claims.RateCheck("x", 10, 1.0, 0.01, None)
    assert [Interval(rate.mean, 3.0 * e).below(1.1) for e in (0.01, 0.1)] == [True, None]


def test_first_order_and_best_steps_need_narrow_intervals():
    level = dynamic_logistic.Level(1e-4, 0.1, 0.0105, 1e-4, 0.01, 1.0, 2.0, 0.0)
    judged = [
        dynamic_logistic._first_order_claim("x", [level._replace(standard_error=e, measured=m)], 0.25).holds
        for m, e in ((0.0105, 1e-4), (0.0105, 1e-3), (0.015, 1e-2), (0.015, 1e-4))
    ]
    assert judged == [True, None, None, False]
    for error, verdict in ((1e-4, True), (1e-2, None)):
        levels = [
            dynamic_logistic.Level(q, mu, 0.01 + 0.01 * abs(j - i), error, 0.01, 1.0, 2.0, 0.0)
            for j, q in enumerate(dynamic_logistic.DRIFTS)
            for i, mu in enumerate((0.03, 0.1, 0.25))
        ]
        assert dynamic_logistic._best_steps(levels).holds is verdict
    turned = [v._replace(standard_error=1e-4, measured=0.01 + (1.0 - v.step_size) * (v.drift2 > 1e-5)) for v in levels]
    assert dynamic_logistic._best_steps(turned).holds is None  # equal at the slowest drift
    backwards = [v._replace(measured=1.0 + v.step_size * np.sign(math.log10(v.drift2) + 4.5), standard_error=1e-4)
                 for v in levels]  # fmt: skip
    assert dynamic_logistic._best_steps(backwards).holds is False


def test_moments_agree_only_within_a_decibel():
    plan = dynamic_msd.FULL
    point = dynamic_msd.MsdPoint(0.0, 0.1, 10, 1.02, 0.02, 1.0, math.nan)
    for error, measured, verdict in ((0.02, 1.02, True), (0.2, 1.02, None), (0.02, 1.2, False), (0.5, 0.5, None)):
        planted = [point._replace(standard_error=error, measured=measured)] * 3
        assert dynamic_msd._agreement("x", planted, plan.trajectories).holds is verdict
    for error, verdict in ((0.01, True), (0.2, None)):
        halves = {mu: (mu, error * mu, mu) for mu in (0.01, 0.02, 0.04)}
        assert dynamic_msd._halvings(plan, halves, -dynamic_msd._decibels(2.0))[0] is verdict
    assert dynamic_msd._halvings(plan, {0.01: (1.0, 0.1, 1.0)}, 3.0)[0] is None  # nothing to compare
    lost = {0.01: (-1e-4, 0.01, 0.01), 0.02: (0.02, 0.01, 0.02)}
    assert dynamic_msd._halvings(plan, lost, -dynamic_msd._decibels(2.0))[0] is None


def test_published_errors_agree_only_within_the_margin():
    """Draws so wide that their interval holds the published error, and twice it: that was "agree"."""
    spread = [chain.Errors(0.8208 + x, 0.8207 + x) for x in np.linspace(-1.0, 1.0, 20)]
    verdicts = [c.holds for c in chain._sample_claims(chains(draws={"least squares, three": spread}))]
    assert verdicts[0] is None
    few = list(chain._sample_claims(chains(causes=[True] * 19 + [False])))  # Wilson: 76 % to 99 %
    assert few[1].holds is None and "target in 19 of 20 (76% to 99%)" in few[1].numbers


def test_more_rows_contract_more_only_beyond_the_runs_differences():
    blocks = [Block(1, 1, m, s, f, 0.99, 5, 5, 0.004) for m, s, f in ((9, 0.1, 0.9), (90, 1.0, 0.897))]
    assert list(hybrid_claims(blocks))[3].holds is None
    assert list(hybrid_claims([b._replace(half=0.001) for b in blocks]))[3].holds is True
    assert list(hybrid_claims([b._replace(half=0.001, moves=100 - b.moves) for b in blocks]))[3].holds is False


def test_support_of_primal_averaging_is_judged_round_by_round():
    flat, swings = np.full(9, 40.0), 40.0 + 5.0 * (-1.0) ** np.arange(9)
    curves = [primal_averaging.Curve("", 16, 0.1, v, v, v, 20.0, 90) for v in (flat, swings)]
    assert [c.holds for c in primal_averaging._claims([curves])][1:3] == [None, None]


def test_overlapping_shuffles_decide_less():
    """Differences above 0 by the plain interval, and not by the one that allows for rows that shuffles share."""
    apart = 1e-3 * np.array([1.0, 2.0, 0.2, 1.5, 0.4, 2.2, 0.3, 0.1, 1.8, 0.5])
    found = mocha_har.paired(apart)
    assert found.plain.low > 0.0 and found.above is None
    planted = [
        o._replace(tasks={k: [0.02 + apart[i] * (k == LOCAL) + 0.02 * (k == GLOBAL)] * 2 for k in KINDS})
        for i, o in enumerate(har_outcomes())
    ]
    claims = {c.text: c.holds for c in mocha_har._claims(planted, True)}
    assert claims["Multi-task models err less than converged local ones"] is None
    noisy = [
        o._replace(tasks=o.tasks | {MULTI: [0.0044 + 0.002 * (-1) ** i] * 2}) for i, o in enumerate(har_outcomes())
    ]
    assert {c.text: c.holds for c in mocha_har._claims(noisy, True)}[
        "The error of multi-task models is below the paper's 0.46 %"
    ] is None
    losses = [outcome(loss={"pooled": 0.1 + 0.01 * (3 - 2 * i)}) for i in range(4)]
    assert _less(losses, "pooled", "log_loss", "x").holds is None


def test_simulated_times_must_be_in_order_in_every_run():
    a, b, c = np.array([1.0, 2.0, 3.0]), np.array([2.5, 4.0, 5.0]), np.array([3.5, np.inf, 9.0])
    assert [stragglers._sooner(a, b), stragglers._sooner(a, c), stragglers._sooner(c, a)] == [None, True, False]
    assert stragglers._sooner(np.array([np.inf]), np.array([np.inf])) is None
