"""Long work is done in pieces, so that Ctrl-C is heard between them, and no bit depends on where it is cut."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numba.core.compiler_lock import global_compiler_lock

from fedconvex import FedAvg, Federation, Hinge, Logistic, Problem, Softmax, Squared, iterate
from fedconvex.kernels import jobs, pieces
from fedconvex.methods import (
    FSVRG,
    MOCHA,
    SCAFFOLD,
    SVRG,
    AgnosticFedAvg,
    ClientAdam,
    ClientMomentum,
    Clock,
    CoCoA,
    Decay,
    FedSAM,
    MiniBatchSDCA,
)
from fedconvex.problems import MeanRegularised, MultiTaskProblem, Presorted
from fedconvex.simplex import euclidean, project_simplex

# every kind of job, and whatever a job carries from one pass to the next: the shuffled pool, steps, momenta, paths
METHODS = {
    "full": FedAvg(step_size=0.1, local_steps=4),
    "full, Adam": FedAvg(step_size=0.1, local_steps=4, client=ClientAdam()),
    "single rows": FedAvg(step_size=0.1, epochs=3, batch_size=1),
    "single rows by step": FedAvg(step_size=Decay(1.0, 2.0), local_steps=7, batch_size=1),
    "single rows with a path": FedAvg(step_size=0.1, local_steps=4, batch_size=1, shadow=True),
    "batches": FedAvg(step_size=0.1, epochs=3, batch_size=2),
    "batches by step": FedAvg(step_size=Decay(1.0, 2.0), local_steps=5, batch_size=2, participation=2),
    "batches with a path": FedAvg(step_size=0.1, local_steps=4, batch_size=3, shadow=True),
    "batches with replacement": FedAvg(step_size=0.1, local_steps=4, batch_size=3, replacement=True),
    "momentum": FedAvg(step_size=0.1, local_steps=5, batch_size=2, client=ClientMomentum(0.5)),
    "Adam": FedAvg(step_size=0.1, epochs=3, batch_size=2, client=ClientAdam()),
    "scaffold": SCAFFOLD(step_size=0.1, epochs=2, batch_size=3, participation=2),
    "sharpness": FedSAM(step_size=0.1, rho=Decay(0.1), local_steps=3, batch_size=2),
    "svrg": SVRG(step_size=0.1, inner_steps=20, batch_size=2),
    "fsvrg": FSVRG(step_size=0.1, scaling=False, local_steps=4),
    "by domain": AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, epochs=3, batch_size=2),
}


def federation(rng, classes=2):
    sizes = (5, 3, 4, 7)
    y = [rng.integers(classes, size=n) if classes > 2 else np.sign(rng.normal(size=n)) for n in sizes]
    pairs = [(rng.normal(size=(n, 3)), v) for n, v in zip(sizes, y, strict=True)]
    return Federation.from_clients(pairs, domains=[np.arange(n) % 2 for n in sizes])


def end(method, problem, **settings):
    for _, state in iterate(method, problem, rounds=2, seed=1, **settings):
        last = state
    return last


def same(a, b):
    return all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        for x, y in zip(a, b, strict=True)
        if isinstance(x, np.ndarray)
    )


def pieces_done(monkeypatch):
    """Return a list that grows by the first pass of every piece that is done from now on."""
    calls = []
    for name in ("run_jobs", "run_single_rows"):
        call = getattr(jobs, name)
        monkeypatch.setattr(jobs, name, lambda *args, call=call: calls.append(args[-1]) or call(*args))
    return calls


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", METHODS)
def test_pieces_give_the_same_bits_compiled(name, rng, monkeypatch):
    test_pieces_give_the_same_bits(name, 1, rng, monkeypatch)


@pytest.mark.parametrize("R", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_pieces_give_the_same_bits(name, R, rng, monkeypatch):
    calls = pieces_done(monkeypatch)
    problem = Problem(federation(rng), Logistic(), l2=0.1)
    whole = end(METHODS[name], problem, trajectories=R)
    before, calls[:] = len(calls), []
    monkeypatch.setattr(pieces, "PIECE", 1.0)  # a pass a piece
    assert same(whole, end(METHODS[name], problem, trajectories=R))
    assert len(calls) > before
    assert max(calls) > 0  # some job was resumed in the middle


NODES = {
    "passes": MOCHA(epochs=2.6),
    "late and dropped": MOCHA(epochs=3.0, drop=0.3, clock=Clock(0.3), sigma="pencil", certify=True),
    "with replacement": MOCHA(local_steps=11, replacement=True),
    "to an accuracy": CoCoA(theta=0.3),
    "to no accuracy": CoCoA(theta=1e-12, max_epochs=5),
    "batches": MiniBatchSDCA(batch_size=2),
}


@pytest.mark.parametrize("R", [1, 2])
@pytest.mark.parametrize("name", NODES)
def test_pieces_of_nodes_give_the_same_bits(name, R, rng, monkeypatch):
    """Dual variables are written in place, and a node answers once, after its last piece."""
    problem = MultiTaskProblem(federation(rng), Hinge(), MeanRegularised(0.5, 0.5))
    whole = end(NODES[name], problem, trajectories=R)
    monkeypatch.setattr(pieces, "PIECE", 1.0)
    last, calls = [], pieces_done(monkeypatch)
    for _, state in iterate(NODES[name], problem, rounds=2, seed=1, trajectories=R):
        last.append(state)
    assert same(whole, last[-1])
    assert (max(calls) > 0) == (name != "batches")


def test_pieces_of_several_outputs(rng, monkeypatch):
    problem = Problem(federation(rng, 3), Softmax(3), l2=0.1)
    whole = end(METHODS["batches"], problem)
    for size in (1.0, 500.0, 2000.0):
        monkeypatch.setattr(pieces, "PIECE", size)
        assert same(whole, end(METHODS["batches"], problem))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12),
    st.floats(1.0, 3000.0),
)
def test_every_pass_is_done_once_and_no_piece_is_long(plan, size):
    """By hand: what the kernel loop would do with the pieces is written down, job by job and pass by pass."""
    plan = np.array(plan)[None]
    kinds, by_row, by_step = np.full(plan.shape[:2], 5), 3.0, 7.0
    one = plan[..., 1] * by_row + np.ceil(plan[..., 1] / plan[..., 2]) * by_step  # of a pass
    visits, done = [], np.zeros(plan.shape[1], dtype=int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", size)
        most = pieces.most_rows(plan, by_row, by_step)
        for some, its, since in pieces.cut(kinds, 1, plan, by_row, by_step):
            asked, cost = np.flatnonzero(some[0] == 5), 0.0
            assert since == 0 or asked.size == 1
            for j in asked:
                assert since == done[j]
                visits += [(j, e) for e in range(since, its[0, j, 0])]
                cost += (its[0, j, 0] - since) * one[0, j]
                done[j] = its[0, j, 0]
                assert (its[0, j, 0] - since) * plan[0, j, 1] <= most
            one_pass = asked.size == 1 and its[0, asked[0], 0] - since <= 1
            assert one_pass or cost <= size * (1.0 + 1e-9)
    assert visits == [(j, e) for j in range(plan.shape[1]) for e in range(plan[0, j, 0])]


def test_the_cost_of_a_piece_is_a_fraction_of_a_second():
    """An operation takes a few nanoseconds at most: 5e7 stay below half a second on a machine ten times slower."""
    assert pieces.PIECE <= 5e7


def test_threads_end_with_their_piece_when_nobody_waits(rng, monkeypatch):
    """One of two threads fails; the other one, which has ten thousand pieces to do, stops at the next."""
    calls, waiting, call = [], threading.Event(), jobs.run_jobs

    def run_jobs(*args):
        calls.append(args[14].shape)
        if len(calls) == 1:
            waiting.set()
            assert pieces._THREAD.stop.wait(30.0)
            return call(*args)
        assert waiting.wait(30.0)
        raise ValueError("as if")

    monkeypatch.setattr(pieces, "PIECE", 1.0)
    monkeypatch.setattr(jobs, "run_jobs", run_jobs)
    problem = Problem(federation(rng), Squared(), l2=0.1)
    with pytest.raises(ValueError, match="as if"):
        end(FedAvg(step_size=0.1, local_steps=10_000), problem, threads=2)
    assert len(calls) == 2


def test_pauses_outside_of_threads_are_free():
    pieces.pause()
    stop = threading.Event()
    with pieces.stoppable(stop):
        pieces.pause()
        stop.set()
        with pytest.raises(pieces.Unwanted):
            pieces.pause()
    pieces.pause()


BEGUN = """
from itertools import count
from fedconvex.kernels import pieces
before, number = pieces.pause, count(1)
def pause():
    if next(number) == 10:
        print("begun", flush=True)
    before()
pieces.pause = pause
from fedconvex.cli import main
raise SystemExit(main({argv}))
"""


@pytest.mark.slow
@pytest.mark.compiled(only="uncompiled work is interrupted anywhere")
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    "settings",
    [
        ["--local-steps", "100000000", "--step-size", "0.01"],
        ["--local-steps", "100000000", "--step-size", "0.01", "--batch-size", "1"],
        ["--local-steps", "100000000", "--step-size", "0.01", "--threads", "2"],
    ],
)
def test_ctrl_c_in_an_endless_round(settings, tmp_path):
    """Rounds of 10^8 steps never end: a compiled one would take hours. The tenth piece tells that it has begun."""
    argv = ["solve", "--partition", "iid", *settings, "--checkpoint", str(tmp_path / "run.npz")]
    process = subprocess.Popen(
        [sys.executable, "-c", BEGUN.format(argv=argv)], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    assert "begun\n" in iter(process.stdout.readline, "")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("boxed", [False, True])
def test_projections_of_many_rows_are_cut(boxed, monkeypatch):
    """A million rows took a second in one call; rows are independent, so that no bit depends on the pieces."""
    v = np.random.default_rng(0).normal(size=(23, 6))
    cap = {"cap": np.linspace(0.3, 0.9, 23)[:, None] * np.ones(6), "weights": np.linspace(0.5, 2.0, 6)} if boxed else {}
    whole = project_simplex(v, **cap)
    name, sizes = "_box_rows" if boxed else "project_short_rows", []
    project = getattr(euclidean, name)
    monkeypatch.setattr(euclidean, "PIECE", 30)
    monkeypatch.setattr(euclidean, name, lambda rows, *rest: [sizes.append(len(rows)), project(rows, *rest)])
    assert project_simplex(v, **cap).tobytes() == whole.tobytes()
    assert sizes == [5, 5, 5, 5, 3]


def test_ctrl_c_in_a_callback_of_the_compiler_is_not_lost(monkeypatch):
    """Python prints and drops what is raised in a callback of LLVM: a search went on for ever."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    @ctypes.CFUNCTYPE(None)
    def callback():
        signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt), global_compiler_lock:
            with global_compiler_lock:
                callback()
            reached = True
        assert reached  # the innermost lock does not interrupt what compiles around it
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with global_compiler_lock:
            pass
    finally:
        signal.signal(signal.SIGINT, before)


def test_features_are_sorted_one_by_one(monkeypatch):
    """Forty features of 200,000 rows were sorted, and their cuts marked, in calls of a second."""
    X, sizes, sort = np.random.default_rng(0).integers(0, 5, size=(50, 3)).astype(float), [], np.argsort
    monkeypatch.setattr(np, "argsort", lambda a, **how: [sizes.append(np.size(a)), sort(a, **how)][1])
    found = Presorted(X)
    assert sizes == [50, 50, 50]
    order = sort(X.T, axis=1, kind="stable")
    values = np.take_along_axis(X.T, order, axis=1)
    tied = np.column_stack([values[:, 1:] <= values[:, :-1], np.ones(3, bool)])
    assert (found.order & np.uint32(0x7FFFFFFF) == order).all()
    assert (found.order >> np.uint32(31) == tied).all()


def test_column_sizes_are_those_of_all_pieces():
    """A copy of all features was made and read in one call: half a second for 30 million entries."""
    X = np.random.default_rng(0).normal(size=(7, 400_000)).round(1)
    for rows in (X, sp.csr_array(X)):
        fed = Federation.from_arrays(rows, np.zeros(7), np.zeros(7, int))
        assert fed.column_sizes.tobytes() == np.abs(X).max(axis=0).tobytes()  # pieces of two rows
