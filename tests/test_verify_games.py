"""Theorems on games and on IRMv1: planted errors are violations, and what runs show is what the real methods do."""

from __future__ import annotations

import numpy as np
import pytest

import fedconvex.theorems.games as games
import fedconvex.theorems.irmv1 as irmv1
from fedconvex import FedSGD, iterate
from fedconvex.methods import FLGame, GradientResponse, IRMGame, IRMv1
from fedconvex.solvers.environments.games import buffer_errors
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts import environments as e
from fedconvex.verify import Outcome, verify


def outcome(theorem, problem, method, rounds, start=None):
    return verify(theorem, problem, method, rounds=rounds, start=start).outcome


def test_half_of_a_certificate_is_refuted():
    """B/2 in the place of B: in small boxes, from which nobody may be told outside."""
    problem = e.small_boxes.make()
    start = np.full((2, 1), 1e-4)
    assert outcome("game-certificate", problem, IRMGame(), 1, start) is Outcome.HOLDS
    right = games.game_certificate
    half = lambda gradients, strategies, bound: right(gradients, strategies, bound / 2)  # noqa: E731
    planted = THEOREMS["game-certificate"]._replace(bound=half)
    assert outcome(planted, problem, IRMGame(order="parallel", response=GradientResponse(1e-6)), 1, start) is (
        Outcome.VIOLATED
    )


@pytest.mark.parametrize("plant", [lambda E, b, T, s: (E, b + 1, T, s), lambda E, b, T, s: (2 * E - 1, 2 * E, T, s)])
def test_another_buffer_is_refuted(plant):
    """The mean over b + 1 strategies, and opponents that are counted twice: both ways, for it is an equation."""
    right, rule = games.game_buffer, FLGame(buffer=4)
    assert outcome("game-buffer", e.four_equal_players.make(), rule, 9) is Outcome.HOLDS
    wrong = lambda players, buffer, rounds, start: right(*plant(players, buffer, rounds, start))  # noqa: E731
    planted = THEOREMS["game-buffer"]._replace(bound=wrong)
    assert outcome(planted, e.four_equal_players.make(), rule, 9) is Outcome.VIOLATED
    assert buffer_errors(2, 1, 4).tolist() == [1.0, -1.0, 1.0, -1.0, 1.0]  # what b = 1 does: it goes to and fro


def test_one_move_less_is_refuted():
    right = games.game_rounds
    less = lambda coefficients, bound: right(coefficients, bound * 0.98)  # noqa: E731
    problem = e.nearly_equal_players.make()
    assert verify("game-rounds", problem, IRMGame(), rounds=100).ratio < 1.001
    assert outcome(THEOREMS["game-rounds"]._replace(bound=less), problem, IRMGame(), 100) is Outcome.VIOLATED


def test_half_of_the_distance_and_a_cheaper_dual_are_refuted(monkeypatch):
    problem, start = e.clinics.make(), np.array([0.05, 0.02, 0.6])
    method = e.MomentDescent(step_size=1e-3)
    assert outcome("irmv1-certificate", problem, method, 1, start) is Outcome.HOLDS
    assert outcome("irmv1-dual", problem, method, 1, start) is Outcome.HOLDS
    right = irmv1.irmv1_certificate
    half = lambda gradient, multiplier: right(gradient, 2.0 * np.asarray(multiplier))  # noqa: E731
    planted = THEOREMS["irmv1-certificate"]._replace(bound=half)
    assert outcome(planted, problem, method, 1, start) is Outcome.VIOLATED
    cheaper = lambda p, mu: irmv1_dual_value(p, mu) + ((0.5 - mu) ** 2).sum() / (8.0 * p.lam)  # noqa: E731
    irmv1_dual_value = irmv1.dual_bound
    monkeypatch.setattr(irmv1, "dual_bound", cheaper)
    assert outcome("irmv1-dual", problem, method, 1, start) is Outcome.VIOLATED


def test_hypotheses_that_fail_are_named():
    game, other = e.unequal_players.make(), e.chain_environments.make()
    for theorem, problem, method, words in [
        ("game-buffer", game, FLGame(buffer=2), "equal coefficients"),
        ("game-buffer", e.two_equal_players.make(), FLGame(buffer=1), "a buffer as long as there are players"),
        ("game-rounds", game, IRMGame(order="parallel"), "exact responses in turn"),
        ("game-certificate", other, IRMv1(step_size=0.1), "a GameProblem"),
        ("irmv1-dual", game, IRMGame(), "an InvariantProblem"),
        ("irmv1-certificate", e.coloured_environments.make(), e.MomentDescent(step_size=2e-3), "M(w) > 0"),
    ]:
        found = verify(theorem, problem, method, rounds=9)
        assert found.outcome is Outcome.NOT_APPLICABLE and words in found.reason
    assert verify("game-certificate", game.risk, FedSGD(step_size=0.1), rounds=1).outcome is Outcome.NOT_APPLICABLE


@pytest.mark.slow
def test_descent_on_moments_is_irmv1():
    """What verify runs instead, so that nothing is compiled; and the verdicts of the real method."""
    for make, eta in ((e.clinics, 0.02), (e.chain_environments, 3e-4)):
        problem, start = make.make(), np.full(make.make().model_shape, 0.5)
        pairs = [list(iterate(m(step_size=eta), problem, rounds=20, start=start)) for m in (IRMv1, e.MomentDescent)]
        for (_, a), (_, b) in zip(*pairs, strict=True):
            np.testing.assert_allclose(a.w, b.w, rtol=1e-10, atol=1e-12)
        assert outcome("irmv1-certificate", problem, IRMv1(step_size=eta), 20, start) is Outcome.HOLDS
        assert outcome("irmv1-dual", problem, IRMv1(step_size=eta), 20, start) is Outcome.HOLDS
