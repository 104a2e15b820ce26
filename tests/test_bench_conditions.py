"""Conditions of `fedconvex bench`: participation, and seconds on a stated network."""

import math
from dataclasses import replace

import pytest

from fedconvex.bench import Case, Conditions, Network, bench
from fedconvex.bench.conditions import modelled, network_of
from fedconvex.bench.solvers import named, of_target
from fedconvex.bench.written_tables import fairness
from fedconvex.methods import FedSGD
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
    with pytest.raises(ValueError, match="be known to a solver"):
        Conditions(participation=2).under(given[1:2])


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


@pytest.mark.slow
def test_half_of_the_clients_take_part():
    how = Conditions(participation=2, network=Network())
    found = bench(
        suite=[CASE], against=["fedsgd", "dane"], targets=[1e-9], rounds=3, seeds=1, repeats=1, conditions=how
    )
    assert found.solvers == ["fedsgd"] and "dane" in found.apart
    (cell,) = found.cells
    assert cell.found["clients"] == 2 and cell.found["curve"]["floats"][-1] == 3 * 2 * 2 * 2
