"""`fedconvex warm`: what it compiles, for whom, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedconvex.cli import main
from fedconvex.kernels import cache


def test_methods_and_losses_are_run_and_named(monkeypatch, capsys):
    """A method that does not know a loss says why, and the status says so; with `all` that is expected."""
    monkeypatch.setattr(cache, "folder", lambda: "here")
    assert main(["warm", "gd", "--loss", "logistic"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["Kept in here"]
    assert main(["warm", "mocha", "--loss", "softmax"]) == 2
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("mocha, softmax, dense rows: not compiled: ")
    assert "loss" in first


@pytest.mark.parametrize(
    ("words", "part"),
    [(["fedavgg"], "METHOD"), (["--rows", "csr"], "--rows"), (["--loss", "l2"], "--loss"), ([], "NUMBA_CACHE_DIR")],
)
def test_bad_input_is_refused(words, part, monkeypatch, capsys):
    monkeypatch.setattr(cache, "folder", lambda: "")
    assert main(["warm", *words]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.slow
def test_afterwards_nothing_is_compiled(tmp_path):
    """In another process, on other data, in batches: zero functions; without it, more."""
    code = """
from fedconvex.kernels import cache
from fedconvex.cli import main
with cache.compiling() as found:
    assert main(["solve", "breast_cancer", "--rounds", "3", "--local-steps", "4", "--batch-size", "10"]) == 0
print("compiled", found.functions)
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    say = {"env": environment, "capture_output": True, "text": True, "timeout": 500}
    done = subprocess.run([sys.executable, "-m", "fedconvex", "warm", "fedavg"], **say)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert int(words[words.index("functions") - 1]) > 20
    assert words[-1].startswith(str(tmp_path))
    assert subprocess.run([sys.executable, "-c", code], **say).stdout.splitlines()[-1] == "compiled 0"
