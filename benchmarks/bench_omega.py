"""How MOCHA's server grows with the number m of tasks, by how Mbar is held: CPU time and memory, drawn.

python benchmarks/bench_omega.py             # m = 10 to 10,000; about three minutes
python benchmarks/bench_omega.py --most 1000

Five rows a task, d = 20, hinge. A step is what the server does in a round: W = Mbar V, and for a learned Omega its
update with Mbar and sigma'. Mbar is held as a matrix (to m = 1,000: beyond, a state takes 800 MB and its eigenvectors
take hours), or as a diagonal and a factor: of one column (pulled to a mean), of 20 clusters, of all 20 singular vectors
of W, or of 5. JointMOCHA's server shrinks singular values and has no Mbar. Each case is a process of its own; its peak
is over that of the same process with ten tasks. Ideal: slope 1 in m.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys

SIZES = [10, 100, 1_000, 10_000]
KINDS = {
    "mean, matrix": (1_000, "dense"),
    "mean, factor": (10_000, "thin"),
    "20 clusters, matrix": (1_000, "dense"),
    "20 clusters, factor": (10_000, "thin"),
    "learned, matrix": (1_000, "dense"),
    "learned, all singular vectors": (10_000, "thin"),
    "learned, rank 5": (10_000, "thin"),
    "learned, JointMOCHA": (10_000, "thin"),
}
D, N = 20, 5

if "--worker" not in sys.argv:
    from _timing import RESULTS, Report


def problem_of(kind, m):
    """Return the tasks, their relationship by kind, and the method."""
    import numpy as np

    from fedconvex import Federation, Hinge
    from fedconvex.families.multitask import coupling
    from fedconvex.methods import MOCHA, JointMOCHA
    from fedconvex.problems import Clustered, Covariance, MeanRegularised, MultiTaskProblem

    coupling.DENSE = 10**9 if KINDS[kind][1] == "dense" else 1
    rng = np.random.default_rng(0)
    X, common = rng.standard_normal((m * N, D)), rng.standard_normal((20, D))
    own = common[np.arange(m) % 20] + 0.3 * rng.standard_normal((m, D))
    fed = Federation(X, np.where(np.sum(X * own.repeat(N, axis=0), axis=1) > 0.0, 1.0, -1.0), np.arange(m + 1) * N)
    relation = Covariance(0.1)
    if kind.startswith("mean"):
        relation = MeanRegularised(1.0, 0.5)
    elif kind.startswith("20"):
        relation = Clustered(tuple((np.arange(m) % 20).tolist()), 1.0, 0.5)
    method = MOCHA(rank=5, anneal=0.5) if kind.endswith("5") else MOCHA(anneal=0.5)
    return MultiTaskProblem(fed, Hinge(), relation, "mean"), JointMOCHA() if kind.endswith("JointMOCHA") else method


def worker(kind, m):
    """Print CPU seconds of the set-up and of a step of the server, and the peak of memory beyond a tiny problem's."""
    import resource
    import time

    import numpy as np

    from fedconvex import iterate

    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0  # noqa: E731
    tiny, method = problem_of(kind if m > 10 else "mean, factor", 10)
    next(iterate(method if m > 10 else problem_of("mean, factor", 10)[1], tiny))
    base, begin = peak(), time.process_time()
    problem, method = problem_of(kind, m)
    rounds = iterate(method, problem)
    state = next(rounds)[1]
    setup, steps = time.process_time() - begin, []
    for _ in range(3):
        state = next(rounds)[1]
    clients, shape = np.arange(m)[None], (1, m)
    reply_of = type(method).aggregate.__globals__["dual_nodes"].Reply
    reply = reply_of(state.v, state.conjugate, np.zeros(shape), np.zeros(shape))
    for _ in range(5 if m < 10_000 else 3):
        begin = time.process_time()
        many = max(1, 300 // m)
        for _ in range(many):
            method.aggregate(state, clients, problem.weights, reply)
        steps.append((time.process_time() - begin) / many)
    held = state.mbar.shape[-1] if hasattr(state, "mbar") else 0
    print(json.dumps({"setup": setup, "step": min(steps), "peak": peak() - base, "held": held}))


def drawn(found):
    """Draw time and memory over the number of tasks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from fedconvex.report.plots import save_figure

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for i, (kind, points) in enumerate(found.items()):
        style = {"marker": "sxovD^P*"[i], "linestyle": "--" if "matrix" in kind else "-", "label": kind}
        axes[0].loglog(list(points), [p["step"] for p in points.values()], **style)
        axes[1].loglog(list(points), [max(p["peak"], 0.1) for p in points.values()], **style)
    axes[0].set(xlabel="tasks m", ylabel="CPU seconds of a server's step")
    axes[1].set(xlabel="tasks m", ylabel="peak of memory, MB")
    axes[0].legend(fontsize=8)
    RESULTS.mkdir(exist_ok=True)
    save_figure(figure, RESULTS / "omega.svg", outlines=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=SIZES[-1], help="most tasks")
    most, found = parser.parse_args().most, {}
    report = Report("omega", "A step of MOCHA's server with m tasks", "CPU ms", 1e3, clock="cpu")
    for kind, (last, _) in KINDS.items():
        found[kind] = {}
        for m in (m for m in SIZES if m <= min(most, last)):
            command = [sys.executable, __file__, "--worker", kind, str(m)]
            p = found[kind][m] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            timing = dict.fromkeys(("min", "median", "cpu_min", "cpu_median"), p["step"]) | {"repeats": 5}
            note = f"peak {p['peak']:.0f} MB, set-up {p['setup']:.2g} s, {p['held']} numbers a task"
            report.row(f"{kind}: {m:,}", "fedconvex", timing, note=note)
        if last == SIZES[-1] == most:
            slope = math.log10(found[kind][10_000]["step"] / found[kind][1_000]["step"])
            report.bar(f"{kind}: slope between 1,000 and 10,000", slope, 1.3)
    drawn(found)
    report.write()


if __name__ == "__main__":
    worker(sys.argv[2], int(sys.argv[3])) if "--worker" in sys.argv else main()
