"""`fedconvex sweep`: a grid from the command line, files, resumption, and messages in one line."""

import json

import numpy as np
import pytest
from test_written_files import full

from fedconvex.cli import main
from fedconvex.registry import method_names
from fedconvex.sweeps import read_sweep, sweeping

MANY = ",".join(map(str, range(1, 14)))
DATA = ["sweep", "d.csv", "--target", "y", "--client", "c", "--rounds", "2"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Sixty rows of three clients, in the folder that commands are run in."""
    rows = [f"{np.sin(i):.3f},{np.cos(3 * i):.3f},{'yes' if np.sin(7 * i) > -0.2 else 'no'},{'uvw'[i % 3]}"
            for i in range(60)]  # fmt: skip
    (tmp_path / "d.csv").write_text("\n".join(["a,b,y,c", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *options):
    status = main([*DATA, *options])
    return status, capsys.readouterr()


@pytest.mark.slow
def test_a_grid_of_settings_and_l2(table, capsys):
    more = ["--method", "fedprox", "--grid", "proximal_mu=0.1,1", "--grid", "l2=0.1,-1", "--seeds", "2"]
    status, out = said(capsys, *more, "--out", "f.npz", "--over", "l2")
    assert status == 0 and "FedProx" in out.out and "Best l2 at proximal_mu 1: 0.1" in out.out
    assert "Failed: proximal_mu 0.1, l2 -1: the problem could not be made" in out.out and "Wrote f.npz." in out.out
    found = read_sweep("f.npz")
    assert found.parameters == ("proximal_mu", "l2") and len(found) == 2 * 2 * 3
    assert not (table / "f.npz.parts").exists()
    status, out = said(capsys, *more, "--json", "--seed", "1")
    told = json.loads(out.out)
    assert status == 0 and told["rows"] == 12 and len(told["failures"]) == 2 and len(told["best"]) == 1


def test_the_step_size_holds_for_all_l2(table, capsys):
    """It was that of --l2, by which a larger l2 of the grid diverged."""
    status, out = said(capsys, "--grid", "l2=0.1,100", "--out", "f.npz")
    assert status == 0 and "step size 0.0099" in out.out
    gaps = read_sweep("f.npz").select(l2=100)["gap"]
    assert 0.0 < gaps[2] <= gaps[1] <= gaps[0]


@pytest.mark.slow
def test_a_full_disk_leaves_finished_runs_or_nothing(table, capsys, monkeypatch):
    grid = ["--method", "fedavg", "--grid", "step_size=0.1,0.2", "--seeds", "1", "--out", "f.npz"]
    for after in (0, 1):  # the description of the sweep, its first runs
        with monkeypatch.context() as patch:
            full(patch, after)
            status, out = said(capsys, *grid)
        assert status == 2 and "No space left" in out.err and "finished" not in out.err
        assert [f.name for f in table.iterdir()] == ["d.csv"]
    with monkeypatch.context() as patch:
        full(patch, 5)
        status, out = said(capsys, *grid)
    assert status == 2 and "finished work is in f.npz.parts: the same command resumes from it" in out.err
    status, out = said(capsys, *grid)
    assert status == 0 and sorted(f.name for f in table.iterdir()) == ["d.csv", "f.npz"]


@pytest.mark.slow
def test_ctrl_c_and_once_more(table, capsys, monkeypatch):
    traced, calls = sweeping._traced, []

    def stopping(job):
        calls.append(job)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return traced(job)

    monkeypatch.setattr(sweeping, "_traced", stopping)
    options = ["--grid", "step_size=0.1,0.2,0.3", "--out", "f.csv"]
    status, out = said(capsys, *options)
    assert status == 130 and "f.csv.parts holds the run" in out.err
    assert read_sweep("f.csv.parts").finished == (1, 3)
    status, out = said(capsys, *options)
    assert status == 0 and len(calls) == 4 and "edge of the grid" in out.out
    assert len((table / "f.csv").read_text().splitlines()) == 10


@pytest.mark.slow
def test_pictures(table, capsys):
    options = ["--grid", "step_size=0.1,0.3", "--grid", "local_steps=1,3", "--seeds", "3"]
    files = ["--plot", "a.png", "--heat-map", "b.svg", "--best-plot", "c.png"]
    status, out = said(capsys, *options, *files)
    assert status == 0 and all((table / name).stat().st_size > 1000 for name in ("a.png", "b.svg", "c.png"))
    assert out.out.count("Wrote") == 3


@pytest.mark.slow
def test_mistakes_are_one_line(table, capsys):
    (table / "o.csv.parts").mkdir()
    (table / "o.csv.parts" / "mine").touch()  # was removed with the sweep's own files
    for options, words in (
        (["--grid", "foo=1"], "--grid must name l2 or a setting of FedAvg (step_size"),
        (["--grid", "step_size"], "--grid must be NAME=VALUE,VALUE,..."),
        (["--grid", "step_size=0.1,,0.2"], "--grid must be NAME=VALUE,VALUE,..."),
        (["--grid", "step_size=0.1", "--grid", "step_size=1"], "--grid step_size must be given once"),
        (["--grid", "step_size=0.1,0.1"], "values that differ; got 0.1 twice"),
        (["--grid", "step_size=-1"], "--step-size must be positive"),
        (["--method", "mocha"], f"--method must be one of {', '.join(method_names(learns='ONE_MODEL'))}"),
        (["--out", "x.json"], "--out must end in .parquet, .npz, .csv"),
        (["--out", "none/x.npz"], "existing folder"),
        (["--plot", "x.txt"], "--plot must end in"),
        (["--heat-map", "x.png"], "--heat-map must come with two settings"),
        (["--best-plot", "x.png"], "--best-plot must come with a setting"),
        (["--plot", "x.png", "--grid", f"l2={MANY}"], "--plot must draw at most 12 curves; got 13"),
        (
            ["--best-plot", "x.png", "--grid", f"l2={MANY}", "--grid", "step_size=1,2"],
            "--best-plot must draw at most 12",
        ),
        (["--best-plot", "x.png", "--grid", "step_size=0.1,auto"], "come with numbers for step_size; got 'auto'"),
        (["--out", "o.csv"], "--out must leave o.csv.parts to the sweep"),
        (["--over", "step_size"], "--over must name a setting of the grid"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--seeds", "100000000"], "at most 20,000,000 rows"),
    ):
        status, out = said(capsys, *options)
        assert status == 2 and words in out.err and out.err.count("\n") == 1, (options, out.err)
    assert {f.name for f in table.rglob("*")} == {"d.csv", "o.csv.parts", "mine"}
