"""How long work is deaf to Ctrl-C: compiled code hears it between two pieces, LAPACK when its call returns.

A process starts one kind of long work. A timer interrupts it every fiftieth of a second of CPU time; the longest time
between two ticks that Python hears is how long the work may go on after Ctrl-C. In the end SIGINT is sent: the process
must end with KeyboardInterrupt. CPU time is meant throughout: the wall's says as much of what else a machine does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns.children import cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 0.5  # without an ear, at most
LAPACK = ("Newton, 1,500 features", "constants, 1,500 features")  # factorisations and products are single calls

SETUP = """
import os, signal, sys, tempfile, time, traceback
import numpy as np
import scipy.sparse as sp
import fedconvex
from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, Squared, run
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
longest, last = [0.0, ""], [None]

def federation(n, d, K=10, classes=2, sparse=False):
    X = sp.random_array((n, d), density=0.02, rng=rng, format="csr") if sparse else rng.normal(size=(n, d))
    z = X[:, :5].sum(axis=1) + rng.normal(size=n)
    y = np.where(z > 0, 1.0, -1.0) if classes == 2 else z if classes == 0 else np.arange(n) % classes
    return Federation.from_arrays(X, y, np.arange(n) % K, np.arange(n) % 3)

def heard(number, frame):
    now = time.process_time()
    if now - last[0] > longest[0]:
        ours = [f for f in traceback.extract_stack(frame) if "/fedconvex/" in f.filename]
        longest[:] = now - last[0], f"{ours[-1].filename.split('/fedconvex/')[-1]}:{ours[-1].lineno}" if ours else "?"
    last[0] = time.process_time()

def begins():
    last[0] = time.process_time()
    signal.signal(signal.SIGPROF, heard)
    signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)
    print("begins", flush=True)
"""

END = """
except KeyboardInterrupt:
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    print(time.process_time(), *longest, flush=True)
    sys.exit(130)
"""

WORKS = {
    "constants": """
fed = federation(300_000, 60)
begins()
while True:
    Problem(fed, Logistic(), 1e-3 * rng.random()).constants()
""",
    "constants, 1,500 features": """
fed = federation(4_000, 1_500, K=2)
begins()
while True:
    Problem(fed, Logistic(), 1e-3 * rng.random()).constants()
""",
    "Newton": """
fed = federation(300_000, 60)
begins()
while True:
    Problem(fed, Logistic(), 1e-6 * rng.random()).solve()
""",
    "Newton, 1,500 features": """
fed = federation(20_000, 1_500)
begins()
while True:
    Problem(fed, Logistic(), 1e-6 * rng.random()).solve()
""",
    "Newton, sparse": """
fed = federation(300_000, 300, sparse=True)
begins()
while True:
    Problem(fed, Logistic(), 1e-6 * rng.random()).solve()
""",
    "Newton, ten classes": """
fed = federation(100_000, 40, classes=10)
begins()
while True:
    Problem(fed, Softmax(10), 1e-6 * rng.random()).solve()
""",
    "minimax": """
fed = federation(200_000, 40)
begins()
while True:
    Problem(fed, Logistic(), 1e-4 * rng.random()).solve_minimax()
""",
    "simplex": """
from fedconvex.simplex import project_simplex
V = rng.normal(size=(1_000_000, 60))
begins()
while True:
    project_simplex(V, cap=0.5 if rng.random() < 0.5 else np.inf)
""",
    "boosting": """
from fedconvex.methods import MultiBoost
from fedconvex.problems import StumpProblem
fed = federation(200_000, 40)
begins()
run(MultiBoost(), StumpProblem(fed), rounds=10_000, progress=False)
""",
    "moments": """
from fedconvex.theory import Moments
problem = Problem(federation(2_000, 30, classes=0), Squared(), 0.1)
begins()
Moments.of(FedAvg(step_size=1e-3, local_steps=5, batch_size=3), problem).run(10**7)
""",
    "loading": """
from fedconvex.datasets import load_table
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "large.csv")
    block = "\\n".join(",".join(f"{v:.6f}" for v in row) + ",a" for row in rng.normal(size=(2_000, 30)))
    with open(path, "w") as out:
        out.write(",".join(f"x{j}" for j in range(29)) + ",y,k\\n" + (block + "\\n") * 100)
    begins()
    while True:
        load_table(path, "y", "k")
""",
    "compare": """
fed = federation(20_000, 20)
begins()
while True:
    fedconvex.compare(fed, progress=False)
""",
    "search": """
from fedconvex.verify import tightest
begins()
tightest("fedavg-convex", 10**6)
""",
}


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Interrupt one kind of work after some time: it was never deaf for long, and ends with KeyboardInterrupt."""
    name = list(WORKS)[int(rng.integers(len(WORKS)))]
    found = interrupted(name, float(rng.uniform(0.5, 5.0)))
    assert found["deaf"] <= SECONDS or name in LAPACK, found
    return found


def interrupted(name: str, after: float) -> dict[str, Any]:
    """Let the work run for so many seconds of CPU time, interrupt it, and return how long it was deaf, and where."""
    code = SETUP + "try:\n" + textwrap.indent(WORKS[name], "    ") + END
    env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=told, stderr=said)
        try:
            while not _read(told) and process.poll() is None:
                time.sleep(0.02)
            assert _read(told) == "begins\n", (name, process.poll(), _read(told), _read(said)[-500:])
            end = cpu_seconds(process.pid) + after
            while (before := cpu_seconds(process.pid)) < end:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            while process.poll() is None and cpu_seconds(process.pid) < before + 20.0:
                time.sleep(0.02)
            assert process.poll() == 130, (name, process.poll(), _read(said)[-500:])
        finally:
            process.kill()
            process.wait()
        cpu, longest, where = _read(told).split()[1:]
    return {"work": name, "after": after, "ends": float(cpu) - before, "deaf": float(longest), "where": where}


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())
