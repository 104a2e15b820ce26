"""Start-up, in CPU seconds of whole processes: import, first rounds and `fedconvex verify` from cold and warm caches.

python benchmarks/bench_start.py          # the first round, cold and warm
python benchmarks/bench_start.py verify   # and all that a cold `fedconvex verify` compiles: minutes
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from _timing import Report

ROUND = """
import json, time
t = [time.process_time()]
from fedconvex import FedAvg, Logistic, Problem, iterate, run
from fedconvex.datasets import logistic_federation
t.append(time.process_time())
problem = Problem(logistic_federation(n_clients=10, n_features=5, seed=0).federation, Logistic(), l2=0.1)
method = FedAvg(step_size=0.5, epochs=1, batch_size=8, participation=0.5)
t.append(time.process_time())
list(iterate(method, problem, rounds=1))
t.append(time.process_time())
run(method, problem, rounds=10)
t.append(time.process_time())
names = ("imports", "data", "first round", "first measured run")
print(json.dumps({name: b - a for name, a, b in zip(names, t, t[1:])}))
"""
VERIFY = """
import json, sys, time
import numba.core.event as event

class Clock(event.Listener):  # of compilations, those that they start included
    depth, seconds, count = 0, 0.0, 0
    def on_start(self, e):
        if self.depth == 0: self.begin = time.process_time()
        self.depth += 1
        self.count += 1
    def on_end(self, e):
        self.depth -= 1
        if self.depth == 0: self.seconds += time.process_time() - self.begin

clock = Clock()
event.register("numba:compile", clock)
from fedconvex.cli import main
status = main(["verify", "--no-search"])
print()
print(json.dumps({"status": status, "compiling": clock.seconds, "functions": clock.count}))
"""
PROGRAMS = {
    "bare interpreter": "pass",
    "import numpy, scipy.sparse": "import numpy, scipy.sparse",
    "import numba": "import numba",
    "import fedconvex": "import fedconvex",
    "import and first round": ROUND.replace("run(method, problem, rounds=10)", ""),
}
COLD, WARM, COMPILING = 6.0, 1.2, 45.0  # most CPU seconds
REPEATS = 9  # processes of each program


def process(code, environment):
    """CPU seconds of a whole process, and the last line of what it printed."""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, (done.stdout.splitlines() or [""])[-1]


def timing(seconds):
    """Minimum and median of CPU seconds."""
    least, middle = min(seconds), statistics.median(seconds)
    return {"min": least, "median": middle, "cpu_min": least, "cpu_median": middle, "repeats": len(seconds)}


def main():
    report = Report("start", "Start-up of whole processes, CPU time", "ms", 1e3)
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        used, printed = process(ROUND, environment)
        report.row("cold disk cache", "import, one round, one measured run", timing([used]))
        for name, seconds in json.loads(printed).items():
            report.row("cold disk cache, phases", name, timing([seconds]))
        report.bar("first round in a cold cache, CPU s", json.loads(printed)["first round"], COLD)
        samples = {name: [] for name in PROGRAMS}
        for _ in range(REPEATS):
            for name, code in PROGRAMS.items():
                samples[name].append(process(code, environment)[0])
        for name, seconds in samples.items():
            report.row("warm disk cache", name, timing(seconds))
        whole = statistics.median(samples["import and first round"])
        report.bar("import and first cached round, CPU s", whole, WARM)
    if "verify" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as cache:
            used, printed = process(VERIFY, os.environ | {"NUMBA_CACHE_DIR": cache})
        found = json.loads(printed)
        note = f"exit status {found['status']}, {found['functions']} functions"
        report.row("cold disk cache", "fedconvex verify", timing([used]), note=note)
        report.bar("compiling in a cold fedconvex verify, CPU s", found["compiling"], COMPILING)
    report.write()


if __name__ == "__main__":
    main()
