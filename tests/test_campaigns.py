"""The runner of campaigns: seeds, processes, resumption, failures; and a sample of every campaign."""

import json
import math
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from fedconvex import Federation
from tests import campaigns
from tests.campaigns import CAMPAIGNS, Campaign, attempt, pending, run, summary
from tests.campaigns.__main__ import main
from tests.campaigns.children import Child, in_a_child
from tests.campaigns.planted import PLANTS, ROOT


def squares(rng):
    """A trial that fails for one number in eight."""
    x = float(rng.random())
    assert x < 0.875, "too large"
    return {"x": x, "square": x * x}


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(CAMPAIGNS, "toy", Campaign("test_campaigns:squares", "numbers that are too large", 1))


def rows_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["trial"]: {k: v for k, v in row.items() if k not in ("seconds", "cpu")} for row in rows}


def test_trials_depend_on_seed_and_number_only(toy, tmp_path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    assert len(list(run("toy", 3, 40, whole))) == 40
    list(run("toy", 3, 15, parts))
    assert pending(parts, "toy", 3, 40) == list(range(15, 40))
    list(run("toy", 3, 40, parts))
    assert rows_of(whole) == rows_of(parts)
    x = np.random.default_rng([3, 7]).random()
    assert rows_of(whole)[7].get("x", x) == x
    assert rows_of(whole)[7]["passed"] == (x < 0.875)
    assert attempt("toy", 4, 7).get("x") != x


def test_a_killed_campaign_goes_on(toy, tmp_path):
    """The kill came while line 3 was written: it is run again, and nothing is glued to its remains."""
    path = tmp_path / "toy.jsonl"
    list(run("toy", 0, 5, path))
    whole = rows_of(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    assert pending(path, "toy", 0, 5) == [2, 3, 4]
    assert [row["trial"] for row in run("toy", 0, 5, path)] == [2, 3, 4]
    assert pending(path, "toy", 0, 5) == []
    found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert {row["trial"] for row in found} == set(whole)
    with pytest.raises(ValueError, match="campaign toy with seed 0: name another file"):
        pending(path, "toy", 1, 5)


def test_failures_are_told_and_counted(toy, tmp_path, capsys):
    path = tmp_path / "toy.jsonl"
    assert main(["toy", "--seed", "1", "--n", "60", "--processes", "1", "--out", str(path)]) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    failed = [i for i in range(60) if np.random.default_rng([1, i]).random() >= 0.875]
    assert 0 < len(failed) < 20
    assert found["failed"] == failed == summary(path, "toy", 1)["failed"]
    assert told.err.count("too large") == len(failed)
    assert found == json.loads(path.with_suffix(".json").read_text())
    low, high = found["range"]["x"]
    assert 0.0 <= low < high < 0.875
    assert found["range"]["square"] == [low**2, high**2]


def test_a_file_of_rows_is_not_overwritten_by_its_summary(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["ball-maximum", "--n", "1", "--out", str(tmp_path / "rows.json")])
    assert "must be a file of JSON lines" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_child_hangs_by_its_cpu_time_or_asleep_not_by_the_clock():
    """A stopped process stands for one that a busy machine does not let run: it is late, and does not hang."""

    def stopped():
        os.kill(os.getpid(), signal.SIGSTOP)
        return "done"

    def spins():
        while True:
            pass

    assert in_a_child(spins, 0.3) == {"hung": 0.3}
    assert in_a_child(lambda: time.sleep(60.0), 0.1) == {"hung": 0.1}
    assert in_a_child(lambda: time.sleep(0.2), 0.1) == {"returned": None}
    assert in_a_child(lambda: [1], 0.1) == {"returned": [1]}
    child = Child(stopped)
    threading.Timer(0.6, os.kill, (child.pid, signal.SIGCONT)).start()
    assert child.result(0.1) == {"returned": "done"}


def test_a_child_never_goes_on_as_its_parent():
    """Whose parent is gone, who leaves, or whose memory cannot be limited."""
    parent = os.getpid()
    try:
        child = Child(time.perf_counter)
        os.close(child._pipe)
        ends = [os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])]
        found = [in_a_child(sys.exit), in_a_child(lambda: in_a_child(int, memory=1 << 40), memory=1 << 30)["returned"]]
    except BaseException:
        if os.getpid() != parent:
            os._exit(9)
        raise
    assert ends == [0]
    assert found[0] == {"crashed": 0}
    assert found[1]["message"] == "not allowed to raise maximum limit"


def test_every_error_can_be_planted():
    """The line stands where the plant says, and so do the tests that are meant to notice."""
    for plant in PLANTS:
        assert plant.source() != (ROOT / "fedconvex" / plant.file).read_text(), plant.what
        for file, _, test in (name.partition("::") for name in plant.tests.split()):
            text = (ROOT / "tests" / f"{file}.py").read_text()
            assert not test or f"def {test}(" in text, f"{plant.what}: no {test} in {file}"


@pytest.mark.slow
def test_processes_change_nothing(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    list(run("ball-maximum", 5, 12, one, processes=1))
    list(run("ball-maximum", 5, 12, two, processes=2))
    assert rows_of(one) == rows_of(two)
    assert all(row["passed"] for row in rows_of(one).values())


@pytest.mark.slow
@pytest.mark.compiled
def test_every_entry_point_has_a_call_that_works(tmp_path, monkeypatch):
    """What the fuzzer bends: a new public name needs a call, or is named among records and what is internal."""
    from tests.campaigns.entries import REFUSED, entries

    monkeypatch.chdir(tmp_path)
    failed = {}
    for name, entry in entries().items():
        try:
            entry.call(**entry.arguments)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    assert {name: text for name, text in failed.items() if name not in REFUSED} == {}
    assert len(entries()) > 300


def test_the_fuzzer_knows_its_own_errors_from_those_of_libraries():
    """Planted: our refusal, NumPy's message, an object of another class, and an acceptance."""
    from tests.campaigns import fuzz_server

    def verdict(call):
        try:
            call()
        except Exception as error:
            return fuzz_server.raised(error)["outcome"]
        return "returned"

    fed = Federation.from_clients([([[1.0]], [1.0])])
    assert verdict(lambda: Federation.from_clients([])) == "refused"
    assert verdict(lambda: np.linalg.inv(np.zeros((2, 2)))) == "raw"
    assert verdict(lambda: np.ones(2) @ np.ones(3)) == "raw"
    assert verdict(lambda: [].no) == "raw"
    assert verdict(lambda: fed.split) == "returned"


def test_campaigns_are_listed(capsys):
    assert main(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CAMPAIGNS)
    assert campaigns.HERE.name == "tests"
    for campaign in CAMPAIGNS.values():
        assert campaign.trial().__doc__


@pytest.mark.slow
def test_nasty_problems_notice_a_gap_that_is_half_of_what_it_should_be(monkeypatch):
    from fedconvex import Problem

    measure = Problem.measure
    monkeypatch.setattr(Problem, "measure", lambda self, w: measure(self, w)._replace(gap=0.5 * measure(self, w).gap))
    rows = [attempt("nasty", 0, i) for i in range(8)]
    assert any("gap" in row.get("error", "") and "of the model 0" in row["error"] for row in rows)


# samples whose kernels take longer to compile than to run as Python
INTERPRETED = {"blocks", "composite", "coverage", "crafted", "degenerate", "fuzz-api", "gaps"}
INTERPRETED |= {"hedging-rate", "kills", "mocha-gaps"}
SAMPLES = [name if name in INTERPRETED else pytest.param(name, marks=pytest.mark.compiled) for name in CAMPAIGNS]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name):
    rows = [attempt(name, 0, i) for i in range(CAMPAIGNS[name].sample)]
    assert [row for row in rows if not row["passed"]] == []
    assert math.isfinite(sum(row["seconds"] for row in rows))
