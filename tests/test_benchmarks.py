"""The scripts in benchmarks/ run: on tiny data, every program once, nothing timed, what they check checked."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no benchmarks beside the tests")

_CASES = "=[*{(type(c.loss), c.data.split()[0]): c for c in CASES}.values()]"  # one of every loss and kind of data

# sizes that a script names, in the place of its own; "=..." is evaluated among its names
TINY = {
    "agnostic": {"K": 6, "PER": 40, "D": 3, "M": 2, "MANY": 2, "MINIMAX": (3, 2, 60)},
    "analyse": {"N": 400, "P": 3},
    "baselines": {"MOST": 30, "SEEDS": 1, "FACTORS": (1.0,), "DRAWN": "={'tiny': (12, {}, 0.1)}"},
    "boosting": {"N": 60, "D": 3, "MANY": 3, "AFTER": 3},
    "compare": {
        "K": 3, "D": 3, "ROWS": 30, "TIMES": 1,
        "SETTINGS": {"methods": ["pooled", "mean-regularised"], "rounds": 2, "folds": 2},
    },
    "family": {"K": 6, "PER": 40, "D": 3, "M": 2, "MANY": 2, "MEMORY": "print(1.0)"},
    "fedmultiboost": {"COLUMNS": 4, "CASES": {"tiny": [4, 3, 2]}},
    "joint": {},
    "kernel_pairs": {
        "SIZES": {
            "rows": {"dense": (40, 3, 1.0), "csr": (40, 5, 0.5), "tiny": (40, 2, 1.0)},
            "local_steps": 2, "epochs": 1, "windows": 1, "window": 1e-9,
        },
        "CASES": "={name: case for name, case in CASES.items() if case[2] == 1}",
    },
    "local_sgd": {"ROWS": 40, "PASSES": 1},
    "memory": {"PER": 40, "D": 3, "MANY": 2, "CASES": {"in the caches": 10, "from memory": 12}},
    "mocha": {"MANY": 2, "ROWS": 40, "D": 3},
    "newton": {"rows_of": "=lambda name: (np.eye(4)[[0, 1, 2, 3, 0]], np.array([1.0, -1, 1, 1, -1]))", "CLIENTS": 2},
    "omega": {"SIZES": [10, 20]},
    "participation": {"SIZES": (5, 9), "M": 3, "MANY": 2, "JUNK": 10, "REPEATS": 2},
    "penalties": {"EXPONENTS": [6.0], "REPEATS": 1, "PATH": 1},
    "recording": {"K": 20, "PER": 12, "TAU": 2, "MANY": 8, "ROUNDS": 2},
    "round": {"K": 6, "PER": 40, "D": 3, "M": 2, "MANY": 2},
    "scale": {
        "SIZES": {"clients": [8, 16], "rows": [60], "trajectories": [1, 2]}, "ROUNDS": 3, "SAMPLED": 4, "FIRST": 40,
        "TOGETHER": 1,
    },
    "simplex": {"SHAPES": [(3, 10), (2, 50)]},
    "sites": {"K": 3, "PER": 4, "D": 2, "FEW": 1, "MANY": 2},
    "solve": {"DENSE": (3, 20, 4), "WIDE": (2, 10, 8), "SPARSE": (40, 30, 4), "ROWS": 30, "TRIALS": 1, "CASES": _CASES},
    "start": {"REPEATS": 1},
    "survival": {"SIZES": {"100,000 x 10": (60, 2), "50 x 2": (20, 1)}},
    "study": {
        "SITES": 3, "COLUMNS": 2, "ROWS": (40, 60), "FOLDS": 2, "CASES": {"tiny": False}, "DELAY": 0.0,
        "LONG": (60, 40, 40),
    },
    "sweep": {"SEEDS": 4, "STEPS": [0.01, 0.02], "LOCAL": [1, 3], "ROUNDS": 2, "JOBS": 1, "EVERY": 3, "REPEATS": 1},
    "theory": {"ROUNDS": 2, "MANY": 8, "PILOT": 8, "WITHIN": 0.3},
    "threads": {
        "PER": 10, "D": 3,
        "CASES": "={'8 trajectories': (trajectories, (8,), BAR), '2 of 4 clients': (clients, (4, 2), None)}",
    },
    "trajectories": {"MANY": 3, "WARM": 1, "LONG": 1},
    "vertical": {},
    "virtual": {"SIZES": [4, 8]},
}  # fmt: skip
ARGUMENTS = {
    "kernel_pairs": [".", ".", "--pairs", "1"],
    "penalties": ["tiny", "dense lasso", "sparse logistic"],
}  # "." is the folder of the package

RUN = """
import contextlib, importlib, io, json, os, subprocess, sys, time, traceback, types
from pathlib import Path
import _timing

def once(functions, *args, after=None, **options):
    for name, f in functions.items():
        found = f()
        if after is not None:
            after(name, found)
    keys = "min", "median", "cpu_min", "cpu_median", "repeats", "calls"
    return {name: dict.fromkeys(keys, 1.0 + i) for i, name in enumerate(functions)}  # differences are divided by

def here(command, **options):
    # what a script starts as a process of its own runs in this one: a worker of the script, or a program as text
    if command[0] != sys.executable:
        return run(command, **options)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if command[1] == "-c":
            exec(command[2], {})
        else:
            script.worker(command[3], int(command[4]))
    return types.SimpleNamespace(stdout=printed.getvalue())

run, subprocess.run = subprocess.run, here
_timing.compare, _timing.Report.write, _timing.RESULTS = once, lambda self: None, Path.cwd()
scripts, arguments = map(json.loads, sys.argv[1:])
failed = []
for name, sizes in scripts.items():
    began = time.process_time()
    try:
        sys.argv[:] = [name, *arguments.get(name, [])]
        with contextlib.redirect_stdout(io.StringIO()):
            script = importlib.import_module(f"bench_{name}")
            for key, value in sizes.items():
                assert hasattr(script, key), f"no {key}"
                of_script = isinstance(value, str) and value.startswith("=")
                setattr(script, key, eval(value[1:], vars(script)) if of_script else value)
            script.main()
    except (Exception, SystemExit):
        failed.append(f"{name}: {traceback.format_exc()}")
    print(f"{name}: {time.process_time() - began:.1f} s", file=sys.stderr)
print("\\n".join(failed))
sys.exit(bool(failed))
"""


def small_data(folder):
    """Files of the names and arrays that scripts read."""
    rng = np.random.default_rng(0)
    X, client = rng.normal(size=(24, 4)), np.repeat([0, 1, 2], 8)
    np.savez(folder / "har21.npz", X=X, y=np.sign(X[:, 0] + rng.normal(size=24)), client=client)
    place = {"data": np.ones(60), "indices": np.arange(60) * 2, "indptr": np.arange(0, 61, 5)}
    for name in ("a9a", "w8a"):
        np.savez(folder / f"{name}.npz", shape=[12, 123], y=np.tile([1.0, -1.0], 6), **place)
    np.savez(folder / "mnist.npz", x_train=rng.integers(0, 256, (30, 3, 2)), y_train=np.arange(30) % 10)


def ran(sizes, folder):
    """Run scripts in one process of plain Python; returns it."""
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent)])
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    env |= one | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths, "FEDCONVEX_DATA": str(folder)}
    arguments = {name: [str(FOLDER.parent) if a == "." else a for a in some] for name, some in ARGUMENTS.items()}
    command = [sys.executable, "-c", RUN, json.dumps(sizes), json.dumps(arguments)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_every_script_is_run():
    assert set(TINY) == {path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py")}


@pytest.mark.slow
def test_scripts_run(tmp_path):
    small_data(tmp_path)
    done = ran(TINY, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_broken_script_is_noticed(tmp_path):
    done = ran({"round": {"STEP": "far"}}, tmp_path)
    assert done.returncode == 1 and "round: Traceback" in done.stdout


@pytest.mark.slow
def test_one_size_has_no_slope(tmp_path):
    """`bench_scale.py --most 1e4` leaves one number of rows."""
    done = ran({"scale": TINY["scale"] | {"SIZES": {"clients": [8], "rows": [60], "trajectories": []}}}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_ratio_that_doubles_is_noticed(tmp_path, capsys, monkeypatch):
    """Twice in a row; once is chance. A script that fails, or no longer measures a ratio, ends the guard."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import guard

    ours = {"vertical": guard.GUARDED["vertical"]}
    monkeypatch.setattr(guard, "GUARDED", ours)
    kept = dict.fromkeys(ours["vertical"], 1.0)
    bars = [{"what": what, "value": value} for what, value in kept.items()]
    (tmp_path / "vertical.json").write_text(json.dumps({"bars": bars}))

    def after(*values):
        runs = iter([dict.fromkeys(kept, value) for value in values])
        return guard.main([], lambda name, folder: next(runs), tmp_path)

    assert (after(1.2), after(2.0, 1.1), after(2.0, 1.9)) == (0, 0, 1)
    assert capsys.readouterr().out.count("GROWN") == 2
    with pytest.raises(SystemExit, match="no longer measured"):
        guard.main([], lambda name, folder: {}, tmp_path)
    monkeypatch.setattr(guard, "HERE", tmp_path)
    (tmp_path / "bench_vertical.py").write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit, match="ended with exit status 3"):
        guard.main([], results=tmp_path)


def test_what_is_guarded_is_measured():
    """Every guarded ratio is among the results, but for those that are new since."""
    from_results = results()
    import importlib.util as imports

    spec = imports.spec_from_file_location("guard", FOLDER / "guard.py")
    guard = imports.module_from_spec(spec)
    spec.loader.exec_module(guard)
    known = {(name, bar["what"]) for name in guard.GUARDED for bar in from_results[name]["bars"]}
    missing = {(n, what) for n, some in guard.GUARDED.items() for what in some} - known
    assert missing <= {("mocha", "6 classes, q = 1: time / nested iterations")}


# ---------------------------------------------------------------- what was measured


def results():
    return {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "results").glob("*.json"))}


@pytest.mark.anywhere
def test_a_peer_that_a_bar_names_is_the_fastest():
    """A bar of `solve` over another peer than the fastest says "met" of a race that was not run."""
    solve, seen = results()["solve"], 0
    for bar in solve["bars"]:
        case, _, measure = bar["what"].partition(": ")
        if measure.startswith("Problem.solve / "):
            times = {row["who"]: row["cpu_min"] for row in solve["rows"] if row["case"] == case and "cpu_min" in row}
            mine = times.pop("Problem.solve")
            assert measure == f"Problem.solve / {min(times, key=times.__getitem__)}", bar
            assert bar["value"] == pytest.approx(mine / min(times.values()), rel=1e-12), bar
            assert bar["bar"] is not None, bar
            seen += 1
    assert seen >= 15


@pytest.mark.anywhere
def test_verdicts_are_those_of_the_numbers():
    for name, result in results().items():
        for bar in result["bars"]:
            assert bar["met"] == (None if bar["bar"] is None else bar["value"] <= bar["bar"]), (name, bar)


@pytest.mark.anywhere
def test_tables_are_those_of_the_results(monkeypatch):
    """The page is printed by `table.py`: what a JSON file says stands there line by line."""
    monkeypatch.syspath_prepend(str(FOLDER))
    table = importlib.import_module("table")
    page = set((FOLDER / "README.md").read_text(encoding="utf-8").splitlines())
    for name, result in results().items():
        if name in (*table.ORDER, *table.APART):
            missing = [line for line in table.tables(result) if line not in page]
            assert not missing, (name, missing[:3])


def test_the_page_that_helps_to_choose_shows_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import choosing

    found = json.loads(choosing.RESULTS.read_text(encoding="utf-8"))["found"]
    text = choosing.PAGE.read_text(encoding="utf-8")
    assert text == choosing.page(text, found)
    found[0]["needs"]["rounds"] += 1000.0
    assert text != choosing.page(text, found)
