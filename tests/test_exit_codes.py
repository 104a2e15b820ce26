"""The exit status says what happened, also to a reader who leaves early, and a crash is not a violated theorem."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fedconvex import cli
from fedconvex.cli import main
from fedconvex.cli.parser import CRASHED, FAILED, INCONCLUSIVE, OK
from fedconvex.verify import suite


class Closed(io.StringIO):
    """A pipe whose reader has left."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def answers(monkeypatch, violated=False, inconclusive=False):
    """Make `fedconvex verify` find what we like."""
    found = SimpleNamespace(violated=violated, inconclusive=inconclusive)
    monkeypatch.setattr("fedconvex.cli.verify._with_counterexamples", lambda found, *a: found)
    monkeypatch.setattr("fedconvex.verify.verify_suite", lambda *a, **k: found)
    monkeypatch.setattr("fedconvex.report.checks.as_table", lambda *a, **k: "a table")
    monkeypatch.setattr("fedconvex.report.page.write_page", lambda found, folder: (folder and None) or "page")
    assert suite is not None


@pytest.mark.parametrize(
    ("violated", "inconclusive", "status"), [(0, 0, OK), (1, 0, FAILED), (1, 1, FAILED), (0, 1, INCONCLUSIVE)]
)
def test_verify(monkeypatch, capsys, violated, inconclusive, status):
    answers(monkeypatch, bool(violated), bool(inconclusive))
    assert main(["verify", "--no-search", "--theorem", "svrg"]) == status
    assert "a table" in capsys.readouterr().out


def test_a_reader_who_leaves_does_not_hide_a_violation(monkeypatch):
    """`fedconvex verify | true` printed into a closed pipe, and success was reported."""
    answers(monkeypatch, violated=True)
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["verify", "--no-search", "--theorem", "svrg"]) == FAILED


def test_the_page_is_written_before_the_table_is_printed(monkeypatch, tmp_path):
    answers(monkeypatch, violated=True)
    written = []
    monkeypatch.setattr("fedconvex.report.page.write_page", lambda found, folder: written.append(folder))
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["verify", "--no-search", "--theorem", "svrg", "--report", str(tmp_path / "out")]) == FAILED
    assert written == [str(tmp_path / "out")]


def test_a_closed_standard_output(monkeypatch):
    answers(monkeypatch)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["verify", "--no-search", "--theorem", "svrg"]) == OK


def test_a_crash_is_not_a_violation(monkeypatch, capsys):
    monkeypatch.setattr("fedconvex.verify.verify_suite", lambda *a, **k: 1 / 0)
    assert main(["verify", "--no-search", "--theorem", "svrg"]) == CRASHED
    said = capsys.readouterr().err
    assert "internal error: division by zero" in said
    assert "ZeroDivisionError" in said


def test_statuses_differ():
    names = ("OK", "FAILED", "USER", "DIVERGED", "INCONCLUSIVE", "CRASHED", "INTERRUPTED")
    assert len({getattr(cli.parser, name) for name in names}) == len(names)


@pytest.mark.slow
def test_real_pipes(tmp_path):
    """The same with processes: the status of the first command of `fedconvex list | true`, and a closed output."""
    for script, status in (
        ("{py} -m fedconvex list | true; exit ${{PIPESTATUS[0]}}", OK),
        ("{py} -m fedconvex list >&-", OK),
        ("{py} -m fedconvex reproduce nothing | true; exit ${{PIPESTATUS[0]}}", 2),
    ):
        done = subprocess.run(["bash", "-c", script.format(py=sys.executable)], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
