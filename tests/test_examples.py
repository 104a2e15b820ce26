"""The scripts of examples/: in the form that sphinx-gallery reads; they run, draw one picture, leave nothing behind."""

from __future__ import annotations

import ast
import re
import runpy
import warnings
from pathlib import Path

import pytest
import sklearn

FOLDER = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("plot_*.py"))
WANTED = 30  # topics
LONGEST = 85  # lines: a screen, more or less


def named(path: Path) -> str:
    return path.stem.removeprefix("plot_")


COMPILED = {  # much longer as plain Python
    *("blocks_of_a_table", "compressed_messages", "csv_to_decision", "own_solver", "partners_columns", "random_walk"),
    *("repeated_splits", "step_sizes"),
}
each = pytest.mark.parametrize("path", SCRIPTS, ids=named)
runs = pytest.mark.parametrize(
    "path", [pytest.param(p, marks=pytest.mark.compiled if named(p) in COMPILED else ()) for p in SCRIPTS], ids=named
)


def faults(source: str) -> list[str]:
    """What keeps a script from being an example."""
    tree, found = ast.parse(source), []
    lines = (ast.get_docstring(tree, clean=False) or "").strip().splitlines()
    if len(lines) < 3 or set(lines[1]) != {"="} or len(lines[0]) != len(lines[1]):
        found.append("no title underlined by as many =")
    blocks = ["", *re.split(r"^# %%.*$", source, flags=re.M)]
    if len(blocks) < 4:
        found.append("fewer than three blocks")
    if "plt.show()" not in blocks[-2] or not re.fullmatch(r"\s*(# .+\n)+", blocks[-1]):
        found.append("no picture, or no sentence after it")
    if len(source.splitlines()) > LONGEST:
        found.append("longer than a screen")
    return found


@pytest.mark.anywhere
def test_there_is_an_example_of_everything():
    assert len(SCRIPTS) >= WANTED
    assert (FOLDER / "README.rst").read_text().startswith("Examples\n========\n")


@pytest.mark.anywhere
@each
def test_form(path):
    assert not faults(path.read_text())


@pytest.mark.anywhere
def test_the_form_can_be_missed():
    source = SCRIPTS[0].read_text()
    assert faults(source.replace("===", "==", 1)) == ["no title underlined by as many ="]
    assert faults(source.replace("plt.show()", "")) == ["no picture, or no sentence after it"]
    assert faults(source + "x = 1\n") == ["no picture, or no sentence after it"]
    assert "fewer than three blocks" in faults(source.replace("# %%", "#"))
    assert "longer than a screen" in faults(source + "# x\n" * 100)


@pytest.mark.slow
@runs
def test_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))  # of child processes
    before = sorted(p.name for p in FOLDER.iterdir())
    with sklearn.config_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*non-interactive.*")
        runpy.run_path(str(path), run_name="__main__")
    (number,) = plt.get_fignums()
    axes = plt.figure(number).axes
    assert axes
    assert all(axis.has_data() for axis in axes)
    plt.close("all")
    assert not list(tmp_path.iterdir())
    assert sorted(p.name for p in FOLDER.iterdir()) == before
