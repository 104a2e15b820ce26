"""The loop over jobs of two checkouts, timed in turn: FedAvg rounds of the one over those of the other, CPU time.

python benchmarks/bench_kernel_pairs.py OLD NEW                  # folders with a fedconvex package each; all cases
python benchmarks/bench_kernel_pairs.py OLD NEW --case "CSR, batch 20" --pairs 40

Each checkout has a process of its own, which stays alive; a pair is one sample of each, in alternating order. A sample
is the least CPU time of short windows: what other processes take from the caches does not count against either.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

if "--worker" not in sys.argv:  # a worker imports the package of its checkout and nothing of this folder's
    import numpy as np
    from _timing import Report

SIZES = {  # what workers are told
    "rows": {"dense": (4000, 100, 1.0), "csr": (8000, 123, 14 / 123), "tiny": (400, 10, 1.0)},  # n, d, share filled
    "local_steps": 80,  # of all rows, or in many trajectories; much beside the driver
    "epochs": 20,
    "windows": 12,  # of a sample
    "window": 0.01,  # seconds
}
# rows, batch (None: all rows of the client), trajectories
CASES = {
    "dense, batch 1": ("dense", 1, 1),
    "dense, batch 20": ("dense", 20, 1),
    "dense, all rows": ("dense", None, 1),
    "dense, batch 1, 256 trajectories": ("tiny", 1, 256),
    "CSR, batch 1": ("csr", 1, 1),
    "CSR, batch 20": ("csr", 20, 1),
}
ROUNDS = 5  # that both must agree on
MEDIAN, UPPER = 1.03, 1.06  # most ratio, and most upper end of its 95 % interval


def rounds_of(sizes, rows, batch, trajectories):
    """Return a function of a number that runs so many FedAvg rounds and returns the sum of the last model."""
    import numpy as np
    import scipy.sparse as sp

    from fedconvex import FedAvg, Federation, Logistic, Problem, iterate

    rng, K = np.random.default_rng(0), 20
    n, d, filled = sizes["rows"][rows]
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < filled)
    y = np.where(X @ rng.normal(size=d) + rng.normal(size=n) > 0.0, 1.0, -1.0)
    X = sp.csr_array(X) if rows == "csr" else X
    problem = Problem(Federation.from_arrays(X, y, np.arange(n) % K), Logistic(), l2=1e-3)
    work = "local_steps" if batch is None or trajectories > 1 else "epochs"
    method = FedAvg(step_size=0.05, batch_size=batch, participation=10, **{work: sizes[work]})

    def run(count):
        for state in iterate(method, problem, rounds=count, seed=1, trajectories=trajectories, threads=1):
            last = state
        return float(last[1].w.sum())

    return run


def worker(sizes):
    """Answer each line, the name of a case, with the least CPU seconds of a round and a checksum."""
    known = {}
    for line in sys.stdin:
        name = json.loads(line)
        if name not in known:
            run = rounds_of(sizes, *CASES[name])
            total = run(ROUNDS)
            begin = time.process_time()
            run(10)
            known[name] = run, max(1, round(sizes["window"] * 10 / (time.process_time() - begin))), total
        run, count, total = known[name]
        least = float("inf")
        for _ in range(sizes["windows"]):
            begin = time.process_time()
            run(count)
            least = min(least, (time.process_time() - begin) / count)
        print(json.dumps([least, total]), flush=True)


class Checkout:
    """The process that runs the package of a folder."""

    def __init__(self, folder):
        environment = os.environ | {"PYTHONPATH": os.path.abspath(folder)}
        command = [sys.executable, "-P", os.path.abspath(__file__), "--worker", json.dumps(SIZES)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def sample(self, name):
        """Return the least CPU seconds of a round, and the checksum of the case."""
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def interval(ratios, rng):
    """Median and its 95 % interval by the bootstrap."""
    medians = np.median(rng.choice(ratios, size=(4000, len(ratios))), axis=1)
    return float(np.median(ratios)), *map(float, np.quantile(medians, [0.025, 0.975]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--pairs", type=int, default=20)
    asked = parser.parse_args()
    report = Report("kernel_pairs", "FedAvg rounds of two checkouts in turn", "us", 1e6, clock="cpu")
    old, new = Checkout(asked.old), Checkout(asked.new)
    for name in asked.case or CASES:
        first, second = old.sample(name)[1], new.sample(name)[1]
        report.check(f"{name}: models", abs(first - second) / abs(first), 1e-9)
        pairs = []
        for i in range(asked.pairs):
            order = (old, new) if i % 2 else (new, old)
            taken = {id(c): c.sample(name)[0] for c in order}
            pairs.append((taken[id(old)], taken[id(new)]))
        a, b = np.array(pairs).T
        for who, times in (("old", a), ("new", b)):
            least, middle = float(times.min()), float(np.median(times))
            timing = {"min": least, "median": middle, "cpu_min": least, "cpu_median": middle, "repeats": asked.pairs}
            report.row(name, who, timing)
        middle, low, high = interval(b / a, np.random.default_rng(0))
        report.bar(f"{name}: median of new/old [from {low:.3f}]", middle, MEDIAN)
        report.bar(f"{name}: upper end of its 95 % interval", high, UPPER)
    report.write()


if __name__ == "__main__":
    worker(json.loads(sys.argv[2])) if "--worker" in sys.argv else main()
