"""How work grows: rounds with K clients, exact solutions of n rows, R trajectories at once; CPU time and memory, drawn.

python benchmarks/bench_scale.py            # K to 1e6, n to 1e7, R to 1e5: about 6 GB and some minutes
python benchmarks/bench_scale.py --most 1e5 # every size at most so large

* Rounds: FedAvg, 100 of K clients of five rows, d = 20, batches of one. Ideal: slope 0 in K (a round costs what its
  participants cost); memory slope 1.
* solve: logistic regression, d = 20, l2 = 1e-3, to the default accuracy. Ideal: slope 1.
* Trajectories: R at once, K = 20, d = 2, five steps, batches of one; time of a round of all. Ideal: slope 1.

Every size runs in a process of its own, whose peak of memory is divided by the size of the data. The slope is that of
log time over log size between the last two sizes; at small sizes what is fixed hides it. Beyond the private caches a
visit to a client costs more, which is part of every slope.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys

SIZES = {
    "clients": [10**3, 10**4, 10**5, 10**6],
    "rows": [10**4, 10**5, 10**6, 10**7],
    "trajectories": [1, 10, 10**2, 10**3, 10**4, 10**5],
}
IDEAL = {"clients": 0.0, "rows": 1.0, "trajectories": 1.0}
WITHIN = 0.15  # of the ideal slope
ROUNDS, SAMPLED, FIRST = 500, 100, 1000  # rounds of a sample, participants, rows of the solution that compiles
TOGETHER = 2**18  # rounds of a sample of one trajectory, and fewer of more

if "--worker" not in sys.argv:
    from _timing import RESULTS, Report


def rows(n, d):
    """Return read-only rows and labels: they are not copied."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = np.where(X @ rng.standard_normal(d) + rng.logistic(size=n) > 0.0, 1.0, -1.0)
    X.flags.writeable = y.flags.writeable = False
    return X, y


def worker(kind, size):
    """Print CPU seconds of a unit of work, and the peak of memory over the size of the data."""
    import resource
    import time

    import numpy as np

    from fedconvex import FedAvg, Federation, Logistic, Problem, iterate

    least = math.inf
    if kind == "rows":
        small, (X, y) = rows(FIRST, 20), rows(size, 20)
        for A, b in (small, (X, y), (X, y)):  # the first compiles
            problem = Problem(Federation(A, b, np.linspace(0, len(b), 11).astype(int)), Logistic(), l2=1e-3)
            begin = time.process_time()
            problem.solve()
            least = min(least, math.inf if A is small[0] else time.process_time() - begin)
    else:
        K, d, R, m = (size, 20, 1, SAMPLED) if kind == "clients" else (20, 2, size, 20)
        X, y = rows(5 * K, d)
        problem = Problem(Federation(X, y, np.arange(K + 1) * 5), Logistic())
        method = FedAvg(step_size=0.05, local_steps=5, batch_size=1, participation=m)
        rounds = iterate(method, problem, trajectories=R, threads=1)
        many = ROUNDS if kind == "clients" else max(20, TOGETHER // R)  # several blocks, where they are computed so
        for _ in range(many):
            next(rounds)
        for _ in range(7):
            begin = time.process_time()
            for _ in range(many):
                next(rounds)
            least = min(least, (time.process_time() - begin) / many)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": least, "peak": peak / 1e6, "data": (X.nbytes + y.nbytes) / 1e6}))


def drawn(found):
    """Draw time and memory over size, with the ideal slope; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from fedconvex.report.plots import save_figure

    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    names = {
        "clients": "clients K, a round of 100",
        "rows": "rows n, solve()",
        "trajectories": "trajectories R, a round",
    }
    for (time_axis, memory_axis), (kind, points) in zip(axes.T, found.items(), strict=True):
        x, t = [s for s, _ in points], [p["seconds"] for _, p in points]
        time_axis.loglog(x, t, "o-", label="measured")
        time_axis.loglog(x, [t[-1] * (s / x[-1]) ** IDEAL[kind] for s in x], "--", label=f"slope {IDEAL[kind]:g}")
        time_axis.set(title=names[kind], ylabel="CPU seconds")
        time_axis.legend()
        memory_axis.loglog(x, [p["peak"] for _, p in points], "o-", label="peak of the process")
        memory_axis.loglog(x, [p["data"] for _, p in points], "--", label="data")
        memory_axis.set(xlabel=names[kind].partition(",")[0], ylabel="MB")
        memory_axis.legend()
    RESULTS.mkdir(exist_ok=True)
    save_figure(figure, RESULTS / "scale.svg", outlines=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=float, default=math.inf, help="largest size of any kind")
    most = parser.parse_args().most
    report, found = Report("scale", "How work grows with its size", "CPU ms", 1e3, clock="cpu"), {}
    for kind, sizes in SIZES.items():
        found[kind] = []
        for size in (s for s in sizes if s <= most):
            command = [sys.executable, __file__, "--worker", kind, str(size)]
            p = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            found[kind].append((size, p))
            timing = dict.fromkeys(("min", "median", "cpu_min", "cpu_median"), p["seconds"]) | {"repeats": 7}
            note = f"peak {p['peak']:.0f} MB, data {p['data']:.3g} MB"
            report.row(f"{kind}: {size:,}", "fedconvex", timing, note=note)
        for (s, p), (t, q) in list(itertools.pairwise(found[kind]))[-1:]:  # none where --most leaves one size
            slope = math.log(q["seconds"] / p["seconds"]) / math.log(t / s)
            report.bar(f"{kind}: slope between {s:,} and {t:,}, off {IDEAL[kind]:g}", abs(slope - IDEAL[kind]), WITHIN)
    drawn(found)
    report.write()


if __name__ == "__main__":
    worker(sys.argv[2], int(sys.argv[3])) if "--worker" in sys.argv else main()
