"""Twelve cheats, by functions and classes: caught, or impossible; and honest solvers that are not accused."""

from dataclasses import replace

import numpy as np
import pytest

from fedconvex.bench import Case, Referee
from fedconvex.bench.cells import Rules, run_cell
from fedconvex.bench.information import Rows, clients_read, numbers_used, too_many, too_much
from fedconvex.bench.offences import (
    HIDDEN,
    LIES,
    NOT_ZERO,
    READS_OTHERS,
    READS_ROWS,
    TOO_FEW,
    TOO_MANY,
    UNCOUNTED,
    UNSTEADY,
    offences,
)
from fedconvex.bench.solvers import arrays_of, of_target
from fedconvex.methods import FedSGD
from tests import bench_solvers

CASE = Case("cheats", "linear", {"n_clients": 4, "n_features": 5, "zeta_star": 1.0, "feature_shift": 0.5}, "squared")


@pytest.fixture(scope="module")
def referee():
    return Referee(CASE)


def found(referee, name, rounds=12):
    solver = replace(of_target(getattr(bench_solvers, name)), own=False)  # in this process, which is quicker
    return run_cell(referee, solver, 0, Rules((1e-3,), rounds, 1))["found"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "offence"),
    [
        ("Liar", LIES),
        ("Dice", UNSTEADY),
        ("Elsewhere", NOT_ZERO),
        ("Peek", READS_ROWS),
        ("Nosy", READS_OTHERS),
        ("Smuggler", UNCOUNTED),
        ("boastful", LIES),
        ("closed", TOO_FEW),
        ("alone", TOO_FEW),
        ("plausible", HIDDEN),
        ("late", HIDDEN),
        ("after_a_step", HIDDEN),
    ],
)
def test_cheats_are_caught(referee, name, offence):
    """`test_bench.py` has one that needs a process without rows, `test_bench_processes.py` impossible ones."""
    assert offence in [what for what, _ in found(referee, name)["offences"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["descent", "honest", "averaging", "second_order", "horizon"])
def test_honest_functions_are_not_accused_and_are_no_pooled_solvers(referee, name):
    said = found(referee, name)
    assert said["status"] in ("reached", "round limit"), said["words"]
    assert said["offences"] == [] and said["placed"] == "" and not said["pooled"]


def test_who_fits_pooled_rows_stands_with_pooled_solvers(referee):
    said = found(referee, "silent")
    assert said["pooled"] and said["offences"] == []
    assert "that of round 1 depends on a client by at least 2" in said["placed"]
    said = found(referee, "open_about_it")
    assert said["pooled"] and said["placed"] == ""


def test_rows_that_are_read_are_noted(referee):
    arrays = arrays_of(referee.problem, "squared")
    assert clients_read(bench_solvers.descent, arrays, {"step_size": 0.1}) == 4
    assert clients_read(bench_solvers.averaging, arrays, {"seed": 0, "local_step_size": 0.1}) == 2
    read = set()
    rows = Rows([1, 2, 3], read)
    assert (rows[-1], rows[:2], len(rows)) == (3, [1, 2], 3) and read == {0, 1, 2}
    how = too_much(bench_solvers.alone, arrays, {"step_size": 0.1})[0]
    assert how == "10 a round, in which it reads rows of 4 clients, whose answers have 5 each"


def test_functions_ask_no_more_clients_than_take_part(referee):
    """Sizes of all are read, and a share of floats declared, without an accusation."""
    arrays, steps = arrays_of(referee.problem, "squared"), {"step_size": 0.1, "step_size_at": lambda t: 0.1, "seed": 0}
    copied = lambda arrays, *more: bench_solvers.descent(arrays._replace(X=list(arrays.X)), *more)  # noqa: E731
    chance = lambda arrays, *more: iter(np.random.default_rng().standard_normal((9, 6)))  # noqa: E731
    for share, words in ((0.5, "6 clients the model of round {} depends on the rows of 6, where 3"),
                         (2, "6 clients the model of round {} depends on the rows of 6, where 2")):  # fmt: skip
        settings = steps | {"participation": share}
        assert too_many(bench_solvers.sampled, arrays, settings) == ("", "")
        for cheat, t in ((bench_solvers.descent, 1), (copied, 1), (bench_solvers.crowded, 2)):
            assert words.format(t) in too_many(cheat, arrays, settings)[0]
    assert too_many(bench_solvers.descent, arrays, steps) == ("", "")
    assert too_many(bench_solvers.descent, arrays, steps | {"participation": 4}) == ("", "")
    tasks = arrays._replace(start=np.zeros((4, 5)))
    assert "every task" in too_many(bench_solvers.descent, tasks, settings)[1]
    assert "two runs" in too_many(chance, arrays, settings)[1]
    assert (
        "too many"
        in too_many(bench_solvers.descent, arrays._replace(X=arrays.X * 30), steps | {"participation": 0.98})[1]
    )


def test_a_share_of_the_floats_is_no_offence_where_a_share_takes_part(referee):
    def sampled(*given):
        yield from bench_solvers.sampled(*given)

    sampled.floats_per_round = lambda arrays: 2 * 0.25 * len(arrays.X) * arrays.start.size
    arrays, at = arrays_of(referee.problem, "squared"), lambda t: 0.1
    assert too_much(sampled, arrays, {"step_size_at": at, "seed": 0, "participation": 0.25}) == ("", "", "")


def test_classes_that_ask_everybody_where_half_take_part_are_named(referee):
    method, rows = FedSGD(step_size=0.1), referee.problem.federation
    (found,) = offences(method, CASE, rows, 0, False, 2)
    assert found == (TOO_MANY, "4 in a round, where 2 take part: let it have a setting participation")
    assert offences(FedSGD(step_size=0.1, participation=2), CASE, rows, 0, False, 2) == []


def test_numbers_of_a_client_by_hand():
    """A server that hears the first two moments of a row's sum, and one whose models are chance."""

    def moments(arrays, settings, rounds):
        sums = np.array([X.sum() for X in arrays.X])
        w = np.zeros(6)
        w[:3] = sums.sum(), (sums**2).sum(), np.prod(sums)
        for _ in range(rounds):
            yield w

    def chance(arrays, settings, rounds):
        for _ in range(rounds):
            yield np.random.default_rng().standard_normal(6)

    assert numbers_used(moments, "squared", 0.0, {}, 6)[0] == 1  # all three are functions of one number of the client
    assert numbers_used(chance, "squared", 0.0, {}, 6) == []
    for loss in ("squared", "logistic", "softmax", "hinge"):
        size = 18 if loss == "softmax" else 6

        def mean(arrays, settings, rounds, size=size):
            for _ in range(rounds):
                yield np.resize(sum(X.mean(axis=0) for X in arrays.X), arrays.start.shape)

        assert numbers_used(mean, loss, 0.1, {}, size)[0] == 6
