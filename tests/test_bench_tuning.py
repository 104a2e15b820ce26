"""`fedconvex bench --steps tuned`: the same search for every solver, whose cost is part of the result."""

import numpy as np
import pytest

from fedconvex.bench import bench, tuning
from fedconvex.bench.players import Facts
from fedconvex.bench.profiles import sensitivity_figure
from fedconvex.bench.running import Step
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
