"""Flower: sites as client apps, the driver as a server app, both through Flower's own messages.

All of it needs the extra `flower`, which neither tier of CI has: `pip install 'fedconvex[flower]'`, then
`pytest -m slow tests/test_flower.py`. Only the first tests are about an environment without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, FedProx, Logistic, Problem, run
from fedconvex.driver.cycles import leaves
from fedconvex.methods import (
    AFL,
    MOCHA,
    SCAFFOLD,
    Clock,
    DynamicFedAvg,
    FedSAM,
    GeometricMedian,
    SecureSums,
    ServerSGD,
)
from fedconvex.problems import MeanRegularised, MultiTaskProblem
from fedconvex.remote import Limits, Roster, SiteWarning

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="the extra flower is not installed")
NAMES = ["north", "east", "south", "west"]


def make(fed):
    return Problem(fed, Logistic(), l2=0.1)


def make_tasks(fed):
    return MultiTaskProblem(fed, Logistic(), MeanRegularised(0.1, 0.2))


def rows():
    """Four clients of unequal sizes."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 3)), rng.choice([-1.0, 1.0], n)) for n in (5, 8, 4, 7)]
    return Federation.from_clients(pairs, labels=NAMES)


def load(context):
    return rows().subset([context.node_config["partition-id"]])


METHODS = {
    "SCAFFOLD": (SCAFFOLD(step_size=0.2, local_steps=2, participation=3), make),
    "FedProx": (FedProx(proximal_mu=0.5, step_size=0.2, local_steps=2, batch_size=2), make),
    "MOCHA": (MOCHA(clock=Clock(0.3), drop=0.3), make_tasks),
    "AFL": (AFL(step_size=0.1, domain_step_size=0.1), make),
    "DynamicFedAvg": (DynamicFedAvg(step_size=0.2, local_steps=2), make),
}
HOW = {"rounds": 5, "tol": 0, "seed": 3}


def equal(one, far):
    """Assert that two runs ended in the same state, bit for bit."""
    for (name, a), (_, b) in zip(leaves(one.state), leaves(far.state), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


# ---------------------------------------------------------------- without the extra


@pytest.mark.slow
def test_without_the_extra_the_cure_is_named_and_nothing_imports_flower():
    code = "import sys; sys.modules.update(flwr=None, ray=None); import fedconvex.remote, fedconvex.cli\n"
    code += "from fedconvex import *; from fedconvex.engines.flower import client_app, server_app, Nodes\n"
    code += "from fedconvex.engines.flower import averaging_client, averaging_strategy\n"
    code += (
        "for f, n in ((client_app, 3), (server_app, 2), (Nodes, 2), (averaging_client, 3), (averaging_strategy, 1)):\n"
    )
    code += "    try: f(*n * [FedAvg(step_size=0.1)])\n"
    code += "    except ImportError as error: assert \"pip install 'fedconvex[flower]'\" in str(error), error\n"
    code += "    else: raise AssertionError(f)\n"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"NUMBA_DISABLE_JIT": "1"})


@pytest.mark.slow
def test_the_package_without_extras_imports_no_engine():
    code = "import sys, fedconvex, fedconvex.remote, fedconvex.cli; from fedconvex import *\n"
    code += "found = {m.split('.')[0] for m in sys.modules} & {'flwr', 'ray', 'dask', 'distributed', 'grpc'}\n"
    code += "engines = [m for m in sys.modules if m.startswith('fedconvex.engines')]\n"
    code += "assert not found and not engines, (found, engines)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"NUMBA_DISABLE_JIT": "1"})


# ---------------------------------------------------------------- messages


def grid_of(method, problem, nodes=4, **more):
    from flower_grid import LocalGrid

    from fedconvex.engines.flower import client_app

    more = {"limits": Limits(share=np.inf, rows=0.0)} | more  # few rows, and many rounds
    return LocalGrid(client_app(method, problem, more.pop("load", load), **more), nodes)


def far_run(method, problem, grid, deadline=5.0, **how):
    from fedconvex.engines.flower import Nodes

    roster = Roster.of(problem, rows())
    return run(method, roster, transport=Nodes(grid, roster, deadline), **(HOW | how)), roster


@needs_flower
@pytest.mark.slow
def test_states_have_the_bits_of_one_process():
    """Each message is answered by a site that is made anew, from rows and `Context.state` alone."""
    for method, problem in METHODS.values():
        grid = grid_of(method, problem)
        far, roster = far_run(method, problem, grid)
        equal(run(method, problem(rows()), **HOW), far)
        assert roster.incidents == []
        kinds = {m.metadata.message_type for m in grid.pushed}
        assert kinds == {"query.key", "query", "train", "evaluate"}
        assert sum(m.metadata.message_type == "query.key" for m in grid.pushed) == 4  # once
        assert sum(m.metadata.message_type == "query" for m in grid.pushed) in (4, 8)  # joined once; a statistic


@needs_flower
@pytest.mark.slow
def test_an_analysis_has_the_bits_of_sites_in_one_process():
    """A client app is given the plan's method and problem, and the server asks through `Nodes`; secure sums, too."""
    from flower_grid import LocalGrid

    from fedconvex.analysis import analyse_sites, plan_analysis
    from fedconvex.engines.flower import Nodes, client_app
    from fedconvex.remote import Limits, Site, in_process

    rng = np.random.default_rng(0)
    names, age = ["north", "east", "south"], rng.normal(50.0, 10.0, 240)
    ill = rng.random(240) < 1.0 / (1.0 + np.exp(-0.04 * (age - 50.0)))
    tables = {name: {"age": age[k::3], "ill": ill[k::3] * 1} for k, name in enumerate(names)}
    for sums in (None, SecureSums(bits=40)):
        plan = plan_analysis(
            {"age": [40, 60], "ill": [0, 1], "site": ["north", "east"]}, "ill", "site", sums=sums, guard=False
        )
        rows = {name: plan.rows(own, name) for name, own in tables.items()}
        near = analyse_sites(
            plan, plan.roster({k: r.n for k, r in rows.items()}),
            in_process([Site(plan.method, plan.make, r) for r in rows.values()]),
        )  # fmt: skip

        def load_rows(context, rows=rows):
            return rows[names[context.node_config["partition-id"]]]

        app = client_app(plan.method, plan.make, load_rows, limits=Limits(share=10.0))
        roster = plan.roster({k: r.n for k, r in rows.items()})
        far = analyse_sites(plan, roster, Nodes(LocalGrid(app, 3), roster, 30.0))
        np.testing.assert_array_equal(far.estimates, near.estimates)
        np.testing.assert_array_equal(far.covariance, near.covariance)
        assert far.test("age") == near.test("age") and roster.incidents == []


@needs_flower
@pytest.mark.slow
def test_only_arrays_of_plain_numbers_travel():
    from fedconvex.engines.flower.array_records import arrays_of

    method, problem = METHODS["SCAFFOLD"]
    grid = grid_of(method, problem)
    far_run(method, problem, grid)
    for message in grid.pushed:
        assert [*message.content] == ["fedconvex"] == [*message.content.array_records]
        for a in message.content["fedconvex"].values():
            assert a.stype == "numpy.ndarray" and b"O" not in a.data[:60].split(b"'descr': ")[1][:6]
    for bad in (None, message.content["fedconvex"], {}):
        assert arrays_of(bad) == {}
    message.content["fedconvex"]["header"].data = b"\x80\x04."  # a pickle
    assert arrays_of(message.content) == {}


@needs_flower
@pytest.mark.slow
def test_a_node_that_loses_its_memory_is_left_out_unless_it_has_a_file(tmp_path):
    """Killed after round 1 and started again, with another id, by the time of round 2."""

    class Killing:
        def __init__(self, grid, roster):
            from fedconvex.engines.flower import Nodes

            self.grid, self.nodes, self.killed = grid, Nodes(grid, roster, 5.0), False

        def __call__(self, t, requests):
            if t == 2 and not self.killed:
                self.killed = True
                victim = self.nodes.node_of[1]
                self.grid.lost.add(victim)  # still listed, as Flower does for a while
                self.grid.add(1)
            return self.nodes(t, requests)

    method = SCAFFOLD(step_size=0.2, local_steps=2)
    one = run(method, make(rows()), **HOW)
    roster = Roster.of(make, rows())
    path = lambda context: tmp_path / f"{context.node_config['partition-id']}.npz"  # noqa: E731
    equal(one, run(method, roster, transport=Killing(grid_of(method, make, checkpoint=path), roster), **HOW))
    assert roster.incidents == []
    roster = Roster.of(make, rows(), required=["north", "south", "west"])
    with pytest.warns(SiteWarning, match="site east, round 2: .*held is nothing"):
        far = run(method, roster, transport=Killing(grid_of(method, make), roster), **HOW)
    assert {i.client for i in roster.incidents} == {"east"}
    assert np.isfinite(far.w).all()


@needs_flower
@pytest.mark.slow
def test_whatever_a_node_does_wrong_is_named():
    method = FedAvg(step_size=0.2)

    def broken(context):
        if context.node_config["partition-id"] == 2:
            raise OSError("no such file: south.csv")
        return load(context)

    with (
        pytest.warns(SiteWarning, match=r"node \d+ must serve a client of the roster; got OSError; the log of"),
        pytest.raises(ConnectionError, match="must have an answer to the invitation of south, asked"),
    ):
        far_run(method, make, grid_of(method, make, load=broken), deadline=0.5, rounds=1)

    def stranger(context):
        own = load(context)
        return Federation.from_clients([(own.X, own.y)], labels=["elsewhere"]) if own.labels[0] == "south" else own

    with (
        pytest.warns(SiteWarning, match=r"got none of \['north', 'east', 'south', 'west'\]"),
        pytest.raises(ConnectionError, match="of south, asked"),
    ):
        far_run(method, make, grid_of(method, make, load=stranger), deadline=0.5, rounds=1)
    grid, other = grid_of(FedAvg(step_size=0.1), make), Roster.of(make, rows())
    with (
        pytest.warns(SiteWarning, match=r"the terms differ: method is .*step_size=0\.1"),
        pytest.raises(ValueError, match="every required site must join before the first round; got north"),
    ):
        from fedconvex.engines.flower import Nodes

        run(method, other, transport=Nodes(grid, other, 0.5), rounds=1)


@needs_flower
@pytest.mark.slow
def test_a_node_that_did_not_say_whose_it_is_in_time_is_asked_again():
    from fedconvex.engines.flower import Nodes

    grid = grid_of(FedAvg(step_size=0.2), make, nodes=1)
    nodes, asked = Nodes(grid, ("north", "east"), 0.2), {0: {"x": np.zeros(2)}}
    grid.lost = set(grid.contexts)
    assert nodes(0, asked) == {} and nodes.asked
    grid.lost = set()
    nodes.deadline = 2.0  # a look a second: what was asked expires, and is asked again
    assert set(nodes(0, asked) | nodes(0, asked)) == {0}


@needs_flower
@pytest.mark.slow
def test_an_answer_that_flower_cannot_read_costs_that_client_only():
    method = FedAvg(step_size=0.2)
    grid, poisoned = grid_of(method, make), []
    push, pull = grid.push_messages, grid.pull_messages

    def pushed(messages):
        names = push(messages)
        if messages[0].metadata.message_type == "train" and not poisoned:  # the first one is north's
            poisoned.extend(names)
        return names

    def pulled(names):
        if set(names) & set(poisoned):
            raise ValueError("Unexpected set of `children`")
        return pull(names)

    grid.push_messages, grid.pull_messages = pushed, pulled
    with pytest.warns(SiteWarning, match="site north, round 0: .*it cannot be read, ValueError: Unexpected set"):
        far, roster = far_run(method, make, grid)
    assert [(i.round, i.client) for i in roster.incidents] == [(0, "north")] and np.isfinite(far.w).all()


@needs_flower
@pytest.mark.slow
def test_a_server_app_runs_and_keeps_the_state():
    from flwr.app import Context, RecordDict
    from flwr.app.user_config import UserConfig

    from fedconvex.engines.flower import server_app

    method, problem = METHODS["SCAFFOLD"]
    context, results = Context(1, 0, UserConfig(), RecordDict(), UserConfig()), []
    app = server_app(method, Roster.of(problem, rows()), done=results.append, **HOW)
    app(grid_of(method, problem), context)
    equal(run(method, problem(rows()), **HOW), results[0])
    np.testing.assert_array_equal(context.state["fedconvex"]["w"].numpy(), results[0].state.w)


@needs_flower
@pytest.mark.slow
def test_arguments_are_checked():
    from fedconvex.engines.flower import Nodes, averaging_client, averaging_strategy, client_app, server_app

    method, roster = FedAvg(step_size=0.2), Roster.of(make, rows())
    for call, error in (
        (lambda: client_app(method, 3, load), TypeError),
        (lambda: client_app(method, make, 3), TypeError),
        (lambda: client_app(3, make, load), TypeError),
        (lambda: client_app(method, make, load, "file.npz"), TypeError),
        (lambda: server_app(method, make(rows())), TypeError),
        (lambda: server_app(method, roster, done=3), TypeError),
        (lambda: Nodes(3, roster), TypeError),
        (lambda: Nodes(grid_of(method, make), 3), TypeError),
        (lambda: Nodes(grid_of(method, make), roster, 0.0), ValueError),
        (lambda: averaging_client(SCAFFOLD(step_size=0.1), make, load), TypeError),
        (lambda: averaging_strategy(AFL(step_size=0.1, domain_step_size=0.1)), TypeError),
        (lambda: averaging_strategy(3), TypeError),
        (lambda: averaging_client(FedAvg(step_size=0.1, sums=SecureSums()), make, load), ValueError),
        (lambda: averaging_strategy(FedAvg(step_size=0.1, aggregation=GeometricMedian())), ValueError),
        (lambda: averaging_client(FedAvg(step_size=0.1, local_steps=(1, 2, 3)), make, load), ValueError),
    ):
        with pytest.raises(error, match="must"):
            call()


# ---------------------------------------------------------------- Flower's own messages


def led(strategy, client, rounds=5, shuffled=None):
    """The model after rounds of a strategy, from zeros, and the averaged losses."""
    from flower_grid import LocalGrid
    from flwr.app import Array, ArrayRecord

    arrays = ArrayRecord({"coefficients": Array(np.zeros(3))})
    result = strategy.start(LocalGrid(client, 4, shuffled), arrays, num_rounds=rounds)
    return result.arrays["coefficients"].numpy(), [m["loss"] for m in result.evaluate_metrics_clientapp.values()]


@needs_flower
@pytest.mark.slow
def test_the_client_under_flowers_own_fedavg_is_the_run_of_this_package():
    from flwr.serverapp.strategy import FedAvg as Theirs

    from fedconvex.engines.flower import averaging_client, averaging_strategy

    for method in (FedAvg(step_size=0.2, local_steps=3, batch_size=2), FedSAM(step_size=0.2, rho=0.1)):
        one = run(method, make(rows()), **HOW)
        client = averaging_client(method, make, load, seed=3)
        for strategy in (Theirs(), averaging_strategy(method)):
            w, losses = led(strategy, client)
            np.testing.assert_allclose(w, one.w, rtol=1e-13, atol=1e-15)
            np.testing.assert_allclose(losses, one.trace.value[1:], rtol=1e-13)


@needs_flower
@pytest.mark.slow
def test_the_strategy_takes_the_server_optimiser_and_no_order_of_answers():
    from fedconvex.engines.flower import averaging_client, averaging_strategy

    method = FedAvg(step_size=0.2, local_steps=3, server=ServerSGD(0.7, momentum=0.9))
    client, strategy = averaging_client(method, make, load, seed=3), averaging_strategy(method)
    w = led(strategy, client)[0]
    np.testing.assert_allclose(w, run(method, make(rows()), **HOW).w, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(led(strategy, client)[0], w, rtol=1e-13, atol=1e-15)  # starts anew
    plain = led(averaging_strategy(FedAvg(step_size=0.2)), client)[0]
    assert not np.allclose(plain, w, rtol=1e-3)


def answered(strategy, replies):
    """What a strategy makes of models, by node, in the order in which they are given."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

    names = {"w": np.float32, "count": np.int64}
    zeros = ArrayRecord({name: Array(np.zeros(2, dtype=kind)) for name, kind in names.items()})
    grid = grid_of(FedAvg(step_size=0.2), make, nodes=2)
    list(strategy.configure_train(1, zeros, ConfigRecord(), grid))
    messages = []
    for node, n, values in replies:
        asked = Message(RecordDict(), node, "train")
        arrays = ArrayRecord({name: Array(np.array(values, dtype=kind)) for name, kind in names.items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": n})})
        messages.append(Message(content, reply_to=asked))
    return strategy.aggregate_train(1, messages)[0]


@needs_flower
@pytest.mark.slow
def test_bits_of_the_strategy_do_not_depend_on_which_answer_came_first():
    from flwr.serverapp.strategy import FedAvg as Theirs

    from fedconvex.engines.flower import averaging_strategy

    rng = np.random.default_rng(1)
    replies = [(k, int(rng.integers(1, 50)), rng.normal(size=2) * 10.0 ** rng.integers(0, 8)) for k in range(9)]
    strategy = averaging_strategy(FedAvg(step_size=0.2))
    first = answered(strategy, replies)
    assert first["w"].numpy().dtype == np.float32 and first["count"].numpy().dtype == np.float64
    theirs = set()
    for _ in range(20):
        order = [replies[i] for i in rng.permutation(9)]
        again = answered(strategy, order)
        assert all(again[name].data == first[name].data for name in first)
        theirs.add(answered(Theirs(), order)["w"].data)
    assert len(theirs) > 1  # Flower's own sums follow the order of the answers
