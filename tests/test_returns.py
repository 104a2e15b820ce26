"""Runs that repeat themselves: cycles and standstills are a status, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import SCAFFOLD, DivergenceWarning, FedAvg, Federation, GradientDescent, Problem, Squared, Status, run
from fedconvex.datasets import federation_of_moments
from fedconvex.draws import key_from_seed
from fedconvex.driver.recording import Recorder
from fedconvex.driver.rounds import Engine
from fedconvex.methods import CompressedGradientDescent, Decay, FedSGD, FLGame, IRMGame, TopK, UniformSampling
from fedconvex.problems import GameProblem
from fedconvex.report import outlook
from fedconvex.traits import traits_of


def quadratic(*centres):
    """Clients with f_k = (w - c_k)^2/2."""
    return Problem(Federation.from_clients([([[1.0]], [c]) for c in centres]), Squared())


def drifting():
    """Two clients of unequal curvature: local steps end beside the optimum."""
    return Problem(Federation.from_clients([([[1.0]], [0.0]), ([[2.0]], [1.0])]), Squared(), 0.1)


def oscillating(players=2):
    """Equal coefficients: parallel best responses overshoot for ever."""
    v = np.full((players, 1), 0.5)
    return GameProblem(federation_of_moments(np.ones((players, 1, 1)), v, np.full(players, 1.25)), Squared(), 2.0)


def test_a_step_of_two_over_L_goes_to_and_fro():
    result = run(GradientDescent(step_size=2.0), quadratic(1.0), rounds=100, start=np.array([0.25]))
    assert (result.status, result.period) == (Status.CYCLE, 2) and result.rounds <= 6
    assert outlook(result, 1e-8).startswith("The same 2 models come back for ever: more rounds change nothing.")


def test_bits_that_are_counted_hide_no_standstill():
    """At 0 the gradients -(3, 1)/2 and (3, 0)/2 cancel in the entry that is sent: nothing moves, but bits are sent."""
    fed = Federation.from_clients([([[1.0, 0.0], [0.0, 1.0]], y) for y in ([3.0, 1.0], [-3.0, 0.0])])
    method = CompressedGradientDescent(step_size=0.5, compressor=TopK(1))
    result = run(method, Problem(fed, Squared(), l2=0.1), rounds=50)
    assert (result.status, result.period) == (Status.CYCLE, 1) and result.rounds <= 3
    assert not result.w.any()


def test_returns_are_looked_for_where_they_end_a_run_or_may_end_one_that_is_resumed():
    engine = Engine(GradientDescent(step_size=2.0), quadratic(1.0), key_from_seed(0), 1, 1)
    active = [
        Recorder(engine, 1, tol, saved).returns.active for tol, saved in ((1e-8, False), (0.0, False), (0.0, True))
    ]
    assert active == [True, False, True]


@pytest.mark.slow
def test_drift_stands_still():
    problem = drifting()
    result = run(FedAvg(step_size=0.2, local_steps=10), problem, rounds=5000)
    assert (result.status, result.period) == (Status.CYCLE, 1) and result.rounds < 500
    again = run(FedAvg(step_size=0.2, local_steps=10), problem, rounds=600, tol=0.0)
    assert (again.status, again.rounds) == (Status.ROUND_LIMIT, 600)
    np.testing.assert_array_equal(again.w, result.w)
    assert "client drift" in outlook(result, 1e-8, drifting=True)
    assert run(SCAFFOLD(step_size=0.2, local_steps=10), problem, rounds=5000).status is Status.CONVERGED


@pytest.mark.parametrize(
    ("method", "tol"),
    [
        (GradientDescent(step_size=1e-9), 1e-8),  # hardly moves
        (GradientDescent(step_size=2.0 - 1e-3), 1e-20),  # oscillates and converges
        (FedSGD(step_size=Decay(1e-20, 1.0)), 1e-8),  # stands still, but its steps depend on the round
        (FedSGD(step_size=1e-20, participation=UniformSampling(1)), 1e-8),  # who takes part is drawn
    ],
    ids=lambda x: str(x)[:40],
)
def test_nothing_else_is_taken_for_a_cycle(method, tol):
    result = run(method, quadratic(1.0, 3.0), rounds=600, tol=tol, start=np.array([0.5]), record_every=50)
    assert result.status in (Status.ROUND_LIMIT, Status.CONVERGED) and result.period is None


def test_a_trajectory_that_is_on_its_way_is_not_stopped_by_a_large_one_that_cycles():
    """1e-12 of the size of the first is more than what the second moves in a turn, before it is where it is going."""
    start = np.array([[1e8], [1.0]])
    method = GradientDescent(step_size=np.array([2.0, 0.02]))
    result = run(method, quadratic(0.0), rounds=1500, tol=1e-9, trajectories=2, start=start, record_every=500)
    assert result.w[0] == 1e8 and result.w[1] == pytest.approx(0.98**1500, rel=1e-9)


def test_runs_with_a_trajectory_at_infinity_are_resumed(tmp_path):
    """How far a diverged trajectory went is infinite; a checkpoint says so in a way that is read again."""
    method = GradientDescent(step_size=np.array([1e9, 0.1]))
    with pytest.warns(DivergenceWarning):
        whole = run(method, quadratic(1.0), rounds=60, tol=1e-20, trajectories=2)
        run(method, quadratic(1.0), rounds=40, tol=1e-20, trajectories=2, checkpoint=tmp_path / "c")
        again = run(method, quadratic(1.0), rounds=60, tol=1e-20, trajectories=2, checkpoint=tmp_path / "c")
    assert not np.isfinite(whole.w[0]).all()
    np.testing.assert_array_equal(again.w, whole.w)


@pytest.mark.slow
def test_a_spiral_that_shrinks_slowly_but_visibly_is_followed():
    """A factor of 1 - 1e-5 a round: states differ from those of a turn before by more than 1e-12 of their size."""
    result = run(GradientDescent(step_size=2.0 - 1e-5), quadratic(1.0), rounds=1000, tol=1e-9, start=np.array([0.5]))
    assert result.status is Status.ROUND_LIMIT


def test_all_of_the_state_must_come_back():
    """In turn a player with nothing to gain leaves all strategies as they are: no cycle, for it is another's turn."""
    v = np.array([[0.2], [0.2], [0.2], [0.9]])
    problem = GameProblem(federation_of_moments(np.ones((4, 1, 1)), v, np.full(4, 2.0)), Squared(), 2.0)
    assert run(IRMGame(), problem, tol=1e-10).status is Status.CONVERGED
    by_round = [traits_of(FedAvg(step_size=eta), quadratic(1.0)).by_round for eta in (0.1, Decay(0.1))]
    assert by_round == [False, True]


def test_methods_that_follow_from_their_state_say_so():
    """All that draw nothing in the table of the contract, but those that count rounds."""
    from test_contract import BOOSTING, EVERY, kinds, made

    counting, found = {"AFL", "MiniBatchSDCA"}, set()
    plain = quadratic(1.0, 3.0)
    for name, method in EVERY.items():
        one = kinds(name)[0] in ("linear", "logistic", "softmax")
        if type(method).__name__ in counting or name in BOOSTING or (one and "penalty" in name):
            continue
        known = traits_of(method, plain if one else made(kinds(name)[0]))
        if known.deterministic and not known.by_round:
            found.add(type(method).__name__)
    assert found >= {
        *("FedAvg", "FedProx", "FedSGD", "GradientDescent", "SCAFFOLD", "ProgressiveHedging", "OptimisticAFL", "IRMv1"),
        *("IRMGame", "FLGame", "ProximalGradient", "ProximalFedSGD"),
    }


@pytest.mark.parametrize("broken_off", [1, 2, 3, 5, 6])
def test_resumed_runs_end_in_the_same_round(tmp_path, broken_off):
    """The earlier state is part of the checkpoint; threads, records and trajectories change nothing either."""
    problem, method = oscillating(3), FLGame(buffer=2)
    whole = run(method, problem, rounds=200, tol=1e-9, record_every=4)
    assert whole.status is Status.CYCLE and whole.rounds > 6
    run(method, problem, rounds=broken_off, tol=1e-9, record_every=4, checkpoint=tmp_path / "c")
    for _ in range(2):  # the second time it has ended already
        again = run(method, problem, rounds=200, tol=1e-9, record_every=4, checkpoint=tmp_path / "c")
        assert (again.status, again.rounds, again.period) == (whole.status, whole.rounds, whole.period)
        np.testing.assert_array_equal(again.state.past, whole.state.past)
        np.testing.assert_array_equal(again.trace.gap, whole.trace.gap)
        np.testing.assert_array_equal(again.trace.round, whole.trace.round)
    for how in ({"threads": 2}, {"record_every": 1}, {"trajectories": 2}, {"seed": 7}):
        other = run(method, problem, rounds=200, **{"tol": 1e-9, "record_every": 4} | how)
        assert (other.status, other.rounds) == (whole.status, whole.rounds), how


@pytest.mark.slow
def test_memory_of_clients_belongs_to_the_state(tmp_path):
    """SCAFFOLD with corrections that are still moving has not come back, though its model has."""
    problem = drifting()
    whole = run(SCAFFOLD(step_size=0.2, local_steps=3), problem, rounds=400, tol=1e-300)
    run(SCAFFOLD(step_size=0.2, local_steps=3), problem, rounds=40, tol=1e-300, checkpoint=tmp_path / "c")
    again = run(SCAFFOLD(step_size=0.2, local_steps=3), problem, rounds=400, tol=1e-300, checkpoint=tmp_path / "c")
    assert (again.status, again.rounds, again.period) == (whole.status, whole.rounds, whole.period)


def test_a_checkpoint_without_its_earlier_state_is_refused(tmp_path, monkeypatch):
    problem, path = oscillating(3), tmp_path / "c"
    from fedconvex.driver.cycles import Returns

    saved = Returns.saved
    monkeypatch.setattr(Returns, "saved", lambda self: {"returns/numbers": saved(self)["returns/numbers"]})
    run(FLGame(buffer=2), problem, rounds=3, tol=1e-9, checkpoint=path)
    with pytest.raises(ValueError, match="hold the earlier state"):
        run(FLGame(buffer=2), problem, rounds=200, tol=1e-9, checkpoint=path)
