"""What comes from outside runs in a process of its own: whatever it changes, others' results are as without it."""

import os
import re
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

from fedconvex.bench import Referee, bench, own_process
from fedconvex.bench.own_process import Failed, OwnProcess, answer, requests
from fedconvex.bench.solvers import named
from tests import bench_solvers
from tests.test_bench import TINY
from tests.test_sweep_processes import MOST, children, runs, status, wait_until

RUDE = """
import os
import numpy as np
from fedconvex.bench.judging import Referee
from tests.bench_solvers import descent

np.seterr(all="raise")
os.chdir("/")
Referee.gaps = lambda self, W: (np.zeros(len(W)), np.zeros(len(W)))
"""
HOW = {"suite": [TINY], "against": ["fedsgd", "fedavg-batch"], "rounds": 20, "seeds": 1, "repeats": 1}


def others(board):
    """Return what was found of the package's solvers, and nothing that is timed."""
    return [c.found for c in board.cells if not c.own]


@pytest.fixture(scope="module")
def without():
    return others(bench(**HOW))


@pytest.fixture
def rude(tmp_path, monkeypatch):
    """A module that changes the process that imports it, and holds an honest solver."""
    (tmp_path / "bench_rude.py").write_text(RUDE)
    monkeypatch.syspath_prepend(tmp_path)
    return "bench_rude:descent"


def state():
    chance = np.random.get_state()[1].tobytes()  # noqa: NPY002
    return np.geterr(), os.getcwd(), dict(os.environ), chance, tuple(warnings.filters)


@pytest.mark.parametrize("which", ["function", pytest.param("module", marks=pytest.mark.slow)])
def test_nothing_of_others_is_changed(which, without, rude):
    """The referee's functions were replaced, its optimum found, the process's settings changed for all after it."""
    solver = bench_solvers.usurper if which == "function" else rude
    before, gaps = state(), Referee.gaps
    board = bench([solver], **HOW)  # it runs before the others
    assert state() == before and Referee.gaps is gaps
    assert others(board) == without
    own = next(c.found for c in board.cells if c.own)
    if solver is bench_solvers.usurper:
        assert own["status"] == "round limit" and own["gap"] > 1e-3  # it found no referee, and zeros are judged
    else:
        assert own["status"] in ("reached", "round limit") and 0.0 < own["gap"] < 0.1 and own["rounds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (bench_solvers.dying, r"its process has ended \(exit code 3\)"),
        (bench_solvers.shouting, "its process answers what is no answer"),
    ],
)
def test_processes_that_end_or_talk_nonsense(solver, words, without):
    board = bench([solver], **HOW)
    (own,) = (c.found for c in board.cells if c.own)
    assert own["status"] == "failed" and others(board) == without
    assert re.search(words, own["words"])


@pytest.mark.slow
def test_somebody_elses_module_is_imported_elsewhere_alone(rude):
    before = state()
    solver = named(rude)
    assert (solver.kind, solver.own, solver.tunable()) == ("function", True, True)
    assert state() == before and "bench_rude" not in sys.modules


def _serve(pipe, payload):
    for request in requests(pipe):
        if request["do"] == "array":
            answer(pipe, {"a": np.arange(6.0).reshape(2, 3)}, said=float("inf"))
        elif request["do"] == "objects":
            pipe.send_bytes(b'{"arrays": [["a", "|O", [1]]]}')
            pipe.send_bytes(b"12345678")
        elif request["do"] == "wrong size":
            pipe.send_bytes(b'{"arrays": [["a", "<f8", [9]]]}')
            pipe.send_bytes(b"12345678")
        elif request["do"] == "number":
            pipe.send_bytes(b"7")


@pytest.mark.slow
def test_what_is_answered():
    with OwnProcess(_serve, b"", 300.0) as process:
        said = process.ask(do="array")
        assert said["said"] == np.inf and said["a"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        for kind in ("objects", "wrong size", "number"):
            with pytest.raises(Failed, match="no answer"):
                process.ask(do=kind)
    with pytest.raises(own_process.OutOfTime), OwnProcess(_serve, b"", 0.5) as process:
        process.ask(do="nothing")  # it never answers that


STUCK = {
    "a solver": """
from fedconvex.bench import bench
from tests.bench_solvers import Hung
from tests.test_bench import TINY
bench([Hung(step_size="auto")], suite=[TINY], against=[], limit=1e6)
""",
    "aggregate, without rows": """
from fedconvex.bench.offences import _asked_alone
from tests.bench_solvers import Stuck
_asked_alone(Stuck(), [()])
""",
    "a search": """
from fedconvex.verify import tightest
tightest("fedavg-convex", 1200, processes=2)
""",
}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked up in /proc")
@pytest.mark.parametrize("what", STUCK)
def test_whoever_works_for_another_process_ends_with_it(what, tmp_path):
    """Killed without a word, the referee left a solver computing; a search its workers."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen([sys.executable, "-c", STUCK[what]], cwd=tmp_path, env=environment)
    found = []

    def hangs():
        found[:] = children(process.pid)
        return any((s := status(p[0])) and int(s[11]) > 500 for p in found) or process.poll() is not None

    try:
        wait_until(hangs, "no solver at work")
        assert process.poll() is None and found
        process.kill()
        process.wait(MOST)
        wait_until(lambda: not any(map(runs, found)), "the solver computes")
    finally:
        process.kill()
        for pid, _ in filter(runs, found):
            os.kill(pid, signal.SIGKILL)
