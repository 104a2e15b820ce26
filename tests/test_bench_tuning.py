"""`fedconvex bench --steps tuned`: the same search for every solver, whose cost is part of the result."""

import numpy as np
import pytest

from fedconvex.bench import bench, tuning
from fedconvex.bench.campaign import chosen
from fedconvex.bench.cells import Rules, hopeless
from fedconvex.bench.players import Facts
from fedconvex.bench.profiles import sensitivity_figure
from fedconvex.bench.running import Step
from fedconvex.bench.solvers import named
from fedconvex.bench.written_tables import summary_table, trials, tuning_table
from tests.test_bench import TINY


@pytest.mark.slow
def test_tuned_solvers_pay_for_tuning():
    board = bench(suite=[TINY], against=["fedsgd"], targets=[1e-3], steps="both")
    plain, tuned = board.cells
    assert tuned.solver == "fedsgd, tuned" and "tuned" in tuned.found["words"]
    spent = 7 * 8 + 4 * 16 + 2 * 32
    ran = [plain.cost(1e-3, "rounds"), tuned.cost(1e-3, "rounds after tuning")]
    assert tuned.cost(1e-3, "rounds") == spent + ran[1]
    assert tuned.cost(1e-3, "floats") == 12 * (spent + ran[1]) and tuned.found["tuning"]["floats"] == 12 * spent
    assert tuned.found["tuning"]["factor"] == 1.0 and ran[0] == ran[1]  # 1/L of F is the best of the seven
    assert board.mean_ranks("rounds") == {"fedsgd": 1.0, "fedsgd, tuned": 2.0}
    assert board.mean_ranks("rounds after tuning") == {"fedsgd": 1.5, "fedsgd, tuned": 1.5}
    assert tuning_table(board)[1] == [["fedsgd, tuned", "184", "2,208", "1", "0 of 1"]]
    assert len(trials(board)[1]) == 7 + 4 + 2 and "fedsgd, tuned" in sensitivity_figure(board)
    assert "rank by rounds after tuning" in summary_table(board)[0]


class Bent:
    """A player whose model after t rounds is at distance |log2 of the multiple less two|, larger before a round."""

    def __init__(self, late):
        self.late, self.factor, self.asked = late, None, []

    def ready(self, factor=1.0):
        self.factor = factor
        return Facts("steps", True, True)

    def steps(self, seed, rounds, claims):
        self.asked.append((self.factor, rounds, seed))
        if self.factor > 4.0:
            raise ArithmeticError("too long")
        best = 4.0 if rounds >= self.late else 1.0
        far = abs(np.log2(self.factor / best))
        yield Step(rounds, np.full(2, far), 1.0, 10.0 * rounds, 0.5 * rounds, None)


class Distance:
    """A referee whose objective is the first entry."""

    def gaps(self, W):
        return W[:, 0], W[:, 0]


def test_the_better_half_of_step_sizes_is_tried_for_twice_as_long():
    player = Bent(late=6)  # 1 looks best after 3 rounds, 4 from 6 on
    facts, search = tuning.tuned(Distance(), player, 5, first=3)
    assert [rounds for _, rounds, _ in player.asked] == [3] * 7 + [6] * 4 + [12] * 2
    assert {f for f, n, _ in player.asked if n == 6} == {1.0, 4.0, 0.25, 1 / 16}  # 1/16 and 16 fail alike: 16 raises
    assert all(seed != 5 for _, _, seed in player.asked)  # other numbers than those of the run
    assert search.factor == 4.0 == player.factor and facts.words == "4 times steps, tuned"
    rounds = 3 * 5 + 6 * 4 + 12 * 2  # of those that did not fail
    assert search.paid[:4] == (rounds, 10.0 * rounds, 0.5 * rounds, 11.0) and np.isnan(search.paid[4])
    assert tuning.budget(3) == 3 * 7 + 6 * 4 + 12 * 2
    assert [t.gap for t in search.trials if t.factor == 64.0] == [np.inf]


def test_who_cannot_get_anywhere_is_given_up_after_254_rounds_and_nobody_else():
    """By hand: the least gap falls by the later half's pace, four times as fast at best."""
    rules, t = Rules(targets=(1e-3, 1e-6), rounds=1000), np.arange(255)
    slow = np.log(10.0) / 745 / 4  # from 1e-2 to 1e-3 in the 746 rounds that are left, at four times its pace
    for pace, left in ((1.01 * slow, False), (0.97 * slow, True), (0.0, True)):
        gaps = 1e-2 * np.exp(pace * (254 - t))
        assert hopeless(gaps, rules) == left, pace
        assert not hopeless(gaps[:-1], rules) and not hopeless(np.append(gaps, gaps[-1]), rules)
    noisy = np.where(t % 2, 1.0, 1e-2 * np.exp(1.05 * slow * (254 - t)))
    assert not hopeless(noisy, rules)  # the least so far counts
    assert not hopeless(np.full(255, np.inf), rules) and not hopeless(np.full(255, 1e-7), rules)


def test_exact_clients_have_no_step_to_search_for():
    assert [named(n).tunable() for n in ("feddyn", "progressive-hedging", "newton")] == [False] * 3
    assert [named(n).tunable() for n in ("fedprox", "dane", "fedavg")] == [True] * 3
    names = [s.name for s in chosen([], ["feddyn", "fedavg"], "tuned")]
    assert names == ["feddyn", "fedavg, tuned"]
