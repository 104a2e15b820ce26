"""Where Python, the user or the file system are not as usual: -O, no home, nothing that can be written, workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedconvex

pytestmark = pytest.mark.slow
HERE = Path(fedconvex.__file__).parents[1]
WORK = """
import json
import numpy as np
from fedconvex import FedAvg, Federation, Problem, Squared, run
from fedconvex.datasets import load_bundled
from fedconvex.verify import verify

def one(seed=0):
    X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
    problem = Problem(Federation.from_arrays(X, [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]), Squared(), 0.1)
    method = FedAvg(step_size=0.05, local_steps=2, batch_size=1)
    w = run(method, problem, rounds=4, seed=seed, tol=0.0, progress=False).w
    return [problem.solve().value, w.tolist(), verify("fedavg-refined", problem, method, rounds=2).outcome.name]
"""
ALL = WORK + "print(json.dumps([one(), load_bundled('diabetes').X.shape]))"
NO_HOME = """
import os, pwd
os.environ.pop("HOME", None)
os.environ.pop("XDG_CACHE_HOME", None)
def unknown(*args):
    raise KeyError("uid not found")
pwd.getpwuid = unknown
"""
READ_ONLY = """
import os
from pathlib import Path
def refused(*args, **kwargs):
    raise OSError(30, "Read-only file system")
Path.mkdir = refused
os.access = lambda *args, **kwargs: False
"""


def python(code, *options, folder, compiled=False, seconds=120):
    """Standard output of a new process that runs code."""
    env = os.environ | {"PYTHONPATH": str(HERE), "NUMBA_DISABLE_JIT": str(int(not compiled))}
    file = folder / "work.py"
    file.write_text(code)
    done = subprocess.run(
        [sys.executable, *options, str(file)], env=env, capture_output=True, text=True, cwd=folder, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return json.loads(python(ALL, folder=tmp_path_factory.mktemp("usual")))


@pytest.mark.parametrize("option", ["-OO"])
def test_without_asserts_and_docstrings(option, usual, tmp_path):
    assert usual[0][2] != "VIOLATED"
    assert json.loads(python(ALL, option, folder=tmp_path)) == usual


@pytest.mark.parametrize("option", ["-OO"])
def test_the_command_line_without_asserts_and_docstrings(option, tmp_path):
    """Tables do not come from docstrings; descriptions of the list do, and leave the names."""
    (tmp_path / "d.csv").write_text("a,b,y,c\n1,0,1.5,u\n0,1,0.5,u\n1,1,1,v\n2,-1,0,v\n")
    code = "import sys\nfrom fedconvex.cli import main\nsys.exit(main({}))"
    solve = code.format(["solve", "d.csv", "--target", "y", "--client", "c", "--rounds", "5"])
    rows = [
        [
            line
            for line in python(solve, *options, folder=tmp_path).splitlines()
            if line.startswith(("FedAvg", "pooled"))
        ]
        for options in ((), (option,))
    ]
    assert rows[0] == rows[1] != []
    listed = python(code.format(["list"]), option, folder=tmp_path)
    assert all(name in listed for name in ("SmoothedHinge", "SCAFFOLD", "fedavg-convex", "diabetes"))


COMMANDS = (
    ["solve", "d.csv", "--target", "y", "--client", "c", "--rounds", "4", "--save", "model"],
    ["predict", "model", "d.csv", "--proba"],
    ["compare", "d.csv", "--target", "y", "--client", "c", "--methods", "pooled", "--folds", "2"],
    ["verify", "--theorem", "fedavg-convex", "--problem", "d.csv", "--target", "y", "--client", "c"],
)
SAYS = """
import re, sys
from contextlib import redirect_stdout
from io import StringIO
from fedconvex.cli import main
for command in {commands}:
    with redirect_stdout(StringIO()) as said:
        status = main(command)
    text = said.getvalue()
    if command[0] == 'compare':
        text = re.sub(r'(?m) \\d[0-9.e-]*$', ' TIME', text)  # seconds are the last column
    text = ' '.join(text.split())  # where lines break depends on how long the seconds are
    print(status, re.sub(r'(\\d+:)+\\d+|\\d[0-9.e+-]* ?s\\b|"(python|seconds|date)": [^,]*', 'TIME', text))
"""


def test_commands_say_the_same_without_asserts_and_docstrings(tmp_path):
    """Solve, predict, compare and verify: not a character differs but for seconds."""
    rows = [f"{np.sin(i):.3f},{np.cos(3 * i):.3f},{'yes' if np.sin(7 * i) > -0.2 else 'no'},{'uvw'[i % 3]}"
            for i in range(36)]  # fmt: skip
    said = []
    for options in ((), ("-OO",)):
        folder = tmp_path / f"python{''.join(options)}"
        folder.mkdir()
        (folder / "d.csv").write_text("\n".join(["a,b,y,c", *rows]) + "\n")
        said.append(python(SAYS.format(commands=COMMANDS), *options, folder=folder, compiled=True, seconds=400))
    assert said[0] == said[1]
    assert [line[0] for line in said[0].splitlines() if line[:2] in {f"{i} " for i in range(9)}].count("0") >= 4
    assert all(word in said[0] for word in ("FedAvg", "pooled"))


@pytest.mark.compiled(only="where nothing is compiled, nothing is cached")
@pytest.mark.parametrize("place", [NO_HOME, READ_ONLY], ids=["no home", "read-only"])
def test_kernels_without_a_place_for_a_cache(place, tmp_path):
    """The user has no home, or nothing can be written: what was compiled stays in memory."""
    code = place + "from fedconvex.kernels import averages, cache\nprint(repr(cache._FOLDER))"
    folder = python(code, folder=tmp_path, compiled=True).strip()
    assert (folder == "''") == (place is READ_ONLY)


def test_workers_of_joblib(usual, tmp_path):
    """Processes of loky import the package anew, and a run in them has the same bits."""
    pytest.importorskip("joblib")
    code = WORK + "from joblib import Parallel, delayed\nif __name__ == '__main__':\n"
    code += "    found = Parallel(2, backend='loky')(delayed(one)(seed) for seed in range(3))\n"
    code += "    print(json.dumps([found[0], found == [one(seed) for seed in range(3)]]))"
    assert json.loads(python(code, folder=tmp_path)) == [usual[0], True]
