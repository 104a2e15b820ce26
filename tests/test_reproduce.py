"""The command ``fedconvex reproduce``: what it lists, writes, refuses, and its exit status."""

import csv
import io
import json
import math
import re
import sys
import time

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from test_written_files import full

from fedconvex._progress import progress_line
from fedconvex.cli import main
from fedconvex.papers import EXPERIMENTS, Claim, Experiment, Findings, summary, write
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.style import blank


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """An experiment that answers at once; its claim holds unless the seed is 13."""
    seen = {}

    def study(*, quick, seed, data, tell):
        seen.update(quick=quick, seed=seed, data=data)
        tell(0.5, "adding")
        if seed == 130:
            raise KeyboardInterrupt
        if seed == 77:
            finished_part("sum", lambda: seen.setdefault("made", 0))
        figure, (axis,) = blank()
        axis.plot([0, 1], [1, 2])
        rows = [{"method": "A", "rounds": "12", "loss": 1 / 3}, {"method": "Longer", "rounds": "1k+", "loss": math.nan}]
        return Findings(
            "Sums", (Claim("1 + 1 = 2", seed != 13, "2", True),), ("A note.",), {"f": figure}, {"table": rows}
        )

    monkeypatch.setattr("fedconvex.papers.EXPERIMENTS", {"sums": Experiment("sums", "adds numbers", study, "any")})
    monkeypatch.chdir(tmp_path)
    return seen


def test_it_lists_experiments(capsys):
    assert main(["reproduce"]) == 0
    text = capsys.readouterr().out
    for name, experiment in EXPERIMENTS.items():
        assert name in text
        assert experiment.description.split()[0] in text
    assert "x_train" in text


def test_list_shows_experiments(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in EXPERIMENTS)


def test_it_writes_and_prints(planted, tmp_path, capsys):
    assert main(["reproduce", "sums", "--quick", "--seed", "7", "--data", "numbers.npz"]) == 0
    assert planted == {"quick": True, "seed": 7, "data": "numbers.npz"}
    out = tmp_path / "reproduce-sums"
    assert {p.name for p in out.iterdir()} == {"f.svg", "f.png", "table.csv", "claims.json"}
    assert json.loads((out / "claims.json").read_text())["holds"] is True
    assert [row["rounds"] for row in csv.DictReader((out / "table.csv").open())] == ["12", "1k+"]
    said = capsys.readouterr()
    assert said.err == ""
    for part in ("holds   1 + 1 = 2", "A note.", "0.3333", "  Longer     1k+", "Wrote 4 files to reproduce-sums"):
        assert part in said.out


def test_a_failed_claim_is_status_1_and_written(planted, tmp_path, capsys):
    assert main(["reproduce", "sums", "--seed", "13", "--out", "here"]) == 1
    assert "FAILS   1 + 1 = 2" in capsys.readouterr().out
    assert json.loads((tmp_path / "here" / "claims.json").read_text())["holds"] is False


def test_a_claim_may_be_left_open(tmp_path):
    """Neither held nor failed: said so, null in the file, and no failure; a numpy False still is one."""
    left, held = Claim("2 + 2 = 4", None, "too few numbers"), Claim("1 + 1 = 2", True, "2")
    found = Findings("Sums", (held, left), ())
    assert found.holds and not Findings("Sums", (held, Claim("1 = 2", np.bool_(False), "")), ()).holds
    assert "not decided here   2 + 2 = 4" in summary(found)
    assert "1 of 2 claims hold, 1 not decided here." in summary(found)
    write(found, tmp_path / "f")
    assert [c["holds"] for c in json.loads((tmp_path / "f" / "claims.json").read_text())["claims"]] == [True, None]


def test_interrupted(planted, tmp_path, capsys):
    assert main(["reproduce", "sums", "--seed", "130"]) == 130
    assert "not written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_full_disk_loses_no_finished_work_and_leaves_no_empty_folder(planted, tmp_path, capsys, monkeypatch, after):
    with monkeypatch.context() as patch:
        full(patch, after)  # the mark of the parts, the part, the first figure
        assert main(["reproduce", "sums", "--seed", "77"]) == 2
    told = capsys.readouterr().err
    assert "No space left" in told
    if after < 2:
        assert list(tmp_path.iterdir()) == [] and "finished" not in told
        return
    assert "finished work is in reproduce-sums/parts: the same command resumes from it" in told.replace("\\", "/")
    del planted["made"]
    assert main(["reproduce", "sums", "--seed", "77"]) == 0
    assert "made" not in planted and not (tmp_path / "reproduce-sums" / "parts").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nope"], "must be one of dynamic-msd, "),
        (["agnostic-adlt"], "did you mean afl-adult?"),
        (["mocha_har"], "did you mean mocha-har?"),
        (["--quick"], "NAME"),
        (["--seed", "0"], "NAME"),
        (["scaffold-quadratics", "--seed", "-1"], "--seed"),
        (["scaffold-quadratics", "--seed", "1.5"], "--seed"),
        (["scaffold-quadratics", "--data", "x.npz"], "data must be left out"),
        (["scaffold-similarity", "--data", "no.npz"], "no.npz"),
        (["scaffold-similarity", "--out", "no/such/folder"], "--out"),
        (["scaffold-similarity", "--out", "file"], "--out"),
        (["scaffold-similarity", "--dat", "x"], "unrecognized"),
    ],
)
def test_bad_input(argv, words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["reproduce", *argv]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("fedconvex: error: ")
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_progress_says_how_much_is_done_and_goes_when_all_is(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    tell = progress_line()
    tell(0.0, "starting")
    time.sleep(0.15)  # it is drawn ten times a second
    tell(0.5, "half way")
    time.sleep(0.15)
    tell(1.0, "done")
    said = terminal.getvalue()
    assert re.search(r" 50%, about [\d:]+ left", said)
    assert "half way" in said
    assert said.rpartition("\r")[0].endswith(" ")  # the line is wiped
    assert "\n" not in said


def test_there_is_no_progress_without_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress_line() is None
