"""Conditions of `fedconvex bench`: participation, losses, noise, held-out rows, and seconds on a stated network."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fedconvex.bench import Case, Channel, Conditions, Network, Referee, bench
from fedconvex.bench.board_page import page
from fedconvex.bench.channel import ChannelEngine
from fedconvex.bench.conditions import CARRIED, CHOSEN, asked, modelled, network_of
from fedconvex.bench.solvers import Reference, Solver, named, of_target
from fedconvex.bench.written_tables import _about, failures, fairness, left_out, results
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver.rounds import Engine
from fedconvex.methods import SCAFFOLD, ErrorFeedback, FedSGD, TopK
from tests import bench_solvers
from tests.test_bench_ranks import board  # noqa: F401  (a fixture)

CASE = Case("four", "linear", {"n_clients": 4, "n_features": 2, "zeta_star": 1.0}, "squared")


def test_seconds_of_a_network_by_hand():
    """3 rounds of 2 clients: 6 messages down and 6 up, of 5 floats; 100 rows, of which a client has half."""
    network = Network(latency=0.5, down=1e3, up=1e2, row=1e-3, slowest=4.0)
    by_hand = 3 * 2 * 0.5 + 8 * 3 * 5 / 1e3 + 8 * 3 * 5 / 1e2 + 4 * 50e-3
    assert network.seconds(3, 30, 30, 100, 2) == pytest.approx(by_hand)
    cost = {"rounds": 3, "floats": 60, "passes": 0.5, "up": 30}
    assert modelled(network, cost, {"n": 200, "K": 7}, 2) == pytest.approx(by_hand)
    assert modelled(network, cost | {"up": None}, {"n": 200, "K": 2}, None) == pytest.approx(by_hand)
    more = modelled(network, cost | {"up": 40}, {"n": 200, "K": 2}, 2)
    assert more == pytest.approx(by_hand + 8 * 5 * (1 / 1e2 - 1 / 1e3))
    assert math.isnan(modelled(network, cost | {"passes": None}, {"n": 200, "K": 7}, 2))


def test_networks_in_words():
    assert network_of("--network", "latency=0.1, up=1e5") == Network(latency=0.1, up=1e5)
    for text, words in (("speed=3", "name of latency, down, up, row, slowest"), ("up=fast", "up must be a number")):
        with pytest.raises(ValueError, match=words):
            network_of("--network", text)
    for bad in (Network(up=0.0), Network(latency=-1.0), Network(slowest=0.5), Network(down=math.nan)):
        with pytest.raises(ValueError, match="Network"):
            Conditions(network=bad)
    with pytest.raises(TypeError, match="be a Network"):
        Conditions(network={"up": 1.0})
    with pytest.raises(TypeError, match="bench: conditions must be a Conditions"):
        bench(suite=[CASE], against=["fedsgd"], conditions=0.5)
    for share in (1.5, 0.0, -2):
        with pytest.raises(ValueError, match="participation"):
            Conditions(participation=share)


def test_who_can_have_clients_drawn():
    given = (
        named("fedavg"),
        named("dane"),
        named("gd"),
        of_target(bench_solvers.descent),
        of_target(FedSGD(step_size=1.0)),
    )
    kept, apart = Conditions(participation=0.5).under(given)
    assert [s.name for s in kept] == ["fedavg", "gd", "descent"] and list(apart) == ["dane", "FedSGD"]
    assert [s.settings.get("participation") for s in kept] == [0.5, None, 0.5]
    assert Conditions().under(given) == (given, {})
    with pytest.raises(ValueError, match="a solver at least can be run"):
        Conditions(participation=2).under(given[1:2])


def test_functions_are_offered_the_steps_of_fedsgd_and_fedavg_where_half_take_part():
    """They were offered 1/L of F, where fedsgd's steps decay from a small one."""
    problem = CASE.problem()
    for share in (None, 0.5):
        (function, sgd, avg), _ = Conditions(participation=share).under(
            (of_target(bench_solvers.descent), named("fedsgd"), named("fedavg"))
        )
        ready = function.ready(problem, "squared", 2.0)
        steps = [s.ready(problem, "squared", 2.0).target.step_size for s in (sgd, avg)]
        for name, step, tau in zip(("step_size", "local_step_size"), steps, (1, 5), strict=True):
            at = ready.settings[f"{name}_at"]
            assert ready.settings[name] == at(0) == (step.at(0) if share else step)
            assert at(7, 3) == (step.at(7 * tau + 3) if share else step)
            assert f"{name} {at(0):.4g} offered" in ready.words


def test_a_class_of_a_module_is_told_who_takes_part():
    """It was run with everybody."""
    target = Reference("mine:Half", True, "", ("step_size", "participation"))
    (mine, other), _ = Conditions(participation=0.5).under(
        (Solver("a", target, "class", own=True), Solver("b", target._replace(takes=()), "class", own=True))
    )
    assert mine.settings == {"participation": 0.5} and other.settings == {}
    assert mine.participation == other.participation == 0.5
    assert asked(0.5, 7) == 4 and asked(2, 7) == 2 and asked(1.0, 7) == 7


def test_modelled_seconds_stand_in_the_results(board):  # noqa: F811
    """Ranks by them follow from the rows, as others do."""
    assert "modelled_seconds" not in results(board, False)[0] and _about(board)["conditions"]["network"] is None
    slow = replace(board, conditions=Conditions(network=Network(latency=1.0)))
    heads, rows = results(slow, False)
    assert json.loads(json.dumps(_about(slow)))["conditions"]["network"]["latency"] == 1.0
    mine = [row[heads.index("modelled_seconds")] for row in rows if row[heads.index("solver")] == "slow"]
    want = [slow.modelled(c, t) for c in slow.cells if c.solver == "slow" for t in (0.1, 0.01)]
    assert mine == want and math.inf in mine
    assert {row[heads.index("modelled_seconds")] for row in rows if row[heads.index("solver")] == "pooled"} == {None}


def test_modelled_seconds_are_an_axis(board):  # noqa: F811
    assert "modelled seconds" not in board.axes
    slow = replace(board, conditions=Conditions(network=Network(latency=1.0)))
    assert slow.axes[-1] == "modelled seconds" and any("Modelled seconds" in line for line in fairness(slow))
    ranks = slow.mean_ranks("modelled seconds")
    assert math.isnan(ranks["undeclared"]) and math.isnan(ranks["pooled"])
    assert ranks["fast"] < ranks["drawn"] < ranks["slow"]
    # 3 rounds, 36 floats of which half go up, 3 passes over 9 rows; everybody takes part
    assert slow.cost("p0", "fast", 0.1, "modelled seconds").median == pytest.approx(
        6.0 + 8 * 18 / 3 * (1e-7 + 1e-6) + 27e-6 / 3
    )
    assert slow.cost("p0", "slow", 0.01, "modelled seconds").median == math.inf


def _last(engine, rounds):
    return [(engine.floats_down, engine.floats_up, state.w) for _, state in engine.loop(engine.start(None), 0, rounds)]


def test_lost_answers_weigh_nothing_and_their_messages_are_counted():
    """Gradient descent with those that are heard, who are the same ones for every method, by hand."""
    problem, key = CASE.problem(), key_from_seed(3)
    found = _last(ChannelEngine(Channel(lost=0.6), FedSGD(step_size=0.5), problem, key), 12)
    w, down, up, heard_of = np.zeros(2), 0, 0, []
    for t, (sent, back, model) in enumerate(found[1:]):
        heard = Draws(key, np.arange(1), t).uniform(4, 0, 901)[0] >= 0.6
        heard_of.append(int(heard.sum()))
        if heard.any():
            p = problem.weights * heard / problem.weights[heard].sum()
            w = w - 0.5 * p @ problem.client_gradients(w[None])[0]
        down, up = down + 8, up + 2 * heard_of[-1]
        assert (sent, back) == (down, up) and model[0] == pytest.approx(w, rel=1e-12)
    assert min(heard_of) == 0 and len(set(heard_of)) > 2  # seed 3 has rounds in which nobody is heard
    clear = _last(ChannelEngine(Channel(lost=1e-12), SCAFFOLD(step_size=0.1, local_steps=2), problem, key), 5)
    plain = _last(Engine(SCAFFOLD(step_size=0.1, local_steps=2), problem, key, 1, 1), 5)
    assert all(a[:2] == b[:2] and np.array_equal(a[2], b[2]) for a, b in zip(clear, plain, strict=True))


def test_noise_is_of_the_size_that_is_named_and_zeros_stay():
    case = Case("wide", "logistic", {"n_clients": 3, "n_features": 400, "rows_per_client": 5})
    problem, key = case.problem(), key_from_seed(0)
    found = _last(ChannelEngine(Channel(noise=0.1), FedSGD(step_size=1.0), problem, key), 1)[-1][2][0]
    g = problem.client_gradients(np.zeros((1, 400)))[0]
    rms = np.sqrt(np.sum((problem.weights[:, None] * 0.1) ** 2 * (g**2).mean(axis=1, keepdims=True)))
    assert np.std(found + problem.weights @ g) == pytest.approx(rms, rel=0.15)  # 400 normal numbers, seed 0
    sparse = _last(
        ChannelEngine(Channel(noise=0.1), ErrorFeedback(step_size=0.1, compressor=TopK(k=1)), problem, key), 1
    )[-1][2]
    assert 0 < np.count_nonzero(sparse) < 400


def test_channels_leave_out_whom_they_cannot_serve():
    given = named("fedavg"), named("dane"), named("gd"), of_target(bench_solvers.descent)
    kept, apart = Conditions(channel=Channel(lost=0.1)).under(given)
    assert [s.name for s in kept if not s.channel.clear] == ["fedavg"] and "gd" in [s.name for s in kept]
    assert "descent" in apart and "carry" in apart["descent"]
    for bad in ({"lost": 1.0}, {"lost": -0.1}, {"noise": math.nan}):
        with pytest.raises(ValueError, match="Channel"):
            Channel(**bad)
    with pytest.raises(ValueError, match="held_out must be a share"):
        Conditions(held_out=1.0)


def test_who_is_left_out_is_told_with_the_reason(board):  # noqa: F811
    apart = {"mine": CARRIED, "yours": CARRIED, "dane": CHOSEN, "afl": "worst domain"}
    assert left_out(replace(board, apart=apart)) == [
        f"left out under these conditions: mine, yours; {CARRIED}",
        f"left out under these conditions: dane; {CHOSEN}",
        "not applicable to this suite: afl, made for worst domain",
    ]
    with pytest.raises(ValueError, match=f"descent: {CARRIED}"):
        Conditions(channel=Channel(lost=0.1)).under((of_target(bench_solvers.descent),))


@pytest.mark.slow
def test_the_page_names_who_is_left_out_and_who_failed(board):  # noqa: F811
    lost = board.cells[0]._replace(found=board.cells[0].found | {"status": "failed", "words": "no file"}, stored=True)
    told = replace(board, cells=(lost, *board.cells[1:]))
    assert failures(told) == ["fast failed on p0: no file"] and failures(board) == []
    for words in ("fast failed on p0: no file.", f"Of {len(board.cells)} cells 1 are of an earlier run."):
        assert words in page(told) and words not in page(board)
    assert f"Left out under these conditions: dane; {CHOSEN}." in page(replace(board, apart={"dane": CHOSEN}))


def test_held_out_rows_are_nobodys_and_their_loss_is_the_target():
    case = Conditions(held_out=0.2).of(CASE)
    whole, rest, aside = (f() for f in (CASE.problem, case.problem, case.held_out_rows))
    rows = {tuple(x) for x in whole.federation.X}
    kept, left = ({tuple(x) for x in f.X} for f in (rest.federation, aside))
    assert kept | left == rows and not kept & left and aside.n == 0.2 * whole.federation.n
    assert np.diff(aside.ptr).tolist() == [10] * 4
    referee, w = Referee(case), np.ones(2)
    least, mine = (0.5 * np.mean((aside.X @ v - aside.y) ** 2) for v in (referee.optimum, w))
    assert referee.gaps(w[None])[1][0] == pytest.approx(mine / least - 1.0, rel=1e-9)
    assert referee.gaps(referee.optimum[None])[1][0] == 0.0
    with pytest.raises(ValueError, match="leave client 0 a row"):
        Case("thin", "logistic", {"n_clients": 4, "n_features": 2, "rows_per_client": 1}, held_out=0.5).problem()


def test_the_slowest_of_random_clients_is_waited_for():
    """The largest of m exponentials is 1 + 1/2 + ... + 1/m on average, and the same for whoever asks as many."""
    network = Network(latency=0.0, row=1.0, spread=2.0)
    assert network.waiting(20_000, 3, 0) == pytest.approx(1.0 + 2.0 * (1 + 1 / 2 + 1 / 3), rel=0.02)
    one, two = (network.seconds(rounds=n, down=0.0, up=0.0, rows=n * 3.0, clients=3, seed=5) for n in (1, 2))
    assert two > one and Network(row=1.0, latency=0.0).seconds(2, 0.0, 0.0, 6.0, 3) == 2.0


@pytest.mark.slow
def test_half_of_the_clients_take_part():
    how = Conditions(participation=2, network=Network())
    found = bench(
        suite=[CASE], against=["fedsgd", "dane"], targets=[1e-9], rounds=3, seeds=1, repeats=1, conditions=how
    )
    assert found.solvers == ["fedsgd"] and "dane" in found.apart
    (cell,) = found.cells
    assert cell.found["clients"] == 2 and cell.found["curve"]["floats"][-1] == 3 * 2 * 2 * 2
