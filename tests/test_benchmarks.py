"""The scripts in benchmarks/ run: on tiny data, every program once, nothing timed, what they check checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no benchmarks beside the tests")

# sizes that a script names, in the place of its own
TINY = {
    "family": {"K": 6, "PER": 40, "D": 3, "M": 2, "MANY": 2, "MEMORY": "print(1.0)"},
    "joint": {},
    "local_sgd": {"ROWS": 40, "PASSES": 1},
    "memory": {"PER": 40, "D": 3, "MANY": 2, "CASES": {"in the caches": 10, "from memory": 12}},
    "recording": {"K": 20, "PER": 12, "TAU": 2, "MANY": 8, "ROUNDS": 2},
    "round": {"K": 6, "PER": 40, "D": 3, "M": 2, "MANY": 2},
    "simplex": {"SHAPES": [(3, 10), (2, 50)]},
    "trajectories": {"MANY": 3, "ONE_BY_ONE": 1},
    "vertical": {},
}

RUN = """
import contextlib, importlib, io, sys, traceback
import _timing

def once(functions, *args, after=None, **options):
    for name, f in functions.items():
        found = f()
        if after is not None:
            after(name, found)
    keys = "min", "median", "cpu_min", "cpu_median", "repeats", "calls"
    return {name: dict.fromkeys(keys, 1.0) for name in functions}

_timing.compare, _timing.Report.write = once, lambda self: None
failed = []
for name, sizes in eval(sys.argv[1]).items():
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            script = importlib.import_module(f"bench_{name}")
            for key, value in sizes.items():
                assert hasattr(script, key), f"no {key}"
                setattr(script, key, value)
            script.main()
    except (Exception, SystemExit):
        failed.append(f"{name}: {traceback.format_exc()}")
print("\\n".join(failed))
sys.exit(bool(failed))
"""


def small_data(folder):
    """Files of the names and arrays that scripts read."""
    rng = np.random.default_rng(0)
    X, client = rng.normal(size=(24, 4)), np.repeat([0, 1, 2], 8)
    np.savez(folder / "har21.npz", X=X, y=np.sign(X[:, 0] + rng.normal(size=24)), client=client)
    place = {"data": np.ones(60), "indices": np.arange(60) * 2, "indptr": np.arange(0, 61, 5)}
    np.savez(folder / "a9a.npz", shape=[12, 123], y=np.tile([1.0, -1.0], 6), **place)


def ran(sizes, folder):
    """Run scripts in one process of plain Python; returns it."""
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent)])
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    env |= one | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths, "FEDCONVEX_DATA": str(folder)}
    command = [sys.executable, "-c", RUN, repr(sizes)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_scripts_run(tmp_path):
    small_data(tmp_path)
    done = ran(TINY, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_broken_script_is_noticed(tmp_path):
    done = ran({"round": {"STEP": "far"}}, tmp_path)
    assert done.returncode == 1 and "round: Traceback" in done.stdout
