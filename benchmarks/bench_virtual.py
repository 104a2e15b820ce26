"""How VIRTUAL grows with the number K of clients: CPU time of a client, of the server and of the certificate; memory.

python benchmarks/bench_virtual.py             # K = 10 to 10,000 (full covariances: to 1,000); about four minutes
python benchmarks/bench_virtual.py --most 1000

Logistic loss, d = 20, 20 rows a client, diagonal or full covariances, with private parameters or without. Clients
minimise, or do one epoch of batches of five rows. A client's time is that of a round over K. Each case is a process of
its own; its peak is over that of the same process with ten clients. Ideal: slope 0 of a client's time in K, 1 of the
server's and of the certificate's.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys

SIZES = [10, 100, 1_000, 10_000]
KINDS = {
    "diagonal, minimisers": ({}, {}),
    "diagonal, one epoch of batches": ({}, {"epochs": 1, "batch_size": 5, "step_size": 0.3}),
    "diagonal, private, minimisers": ({"private_precision": 4.0}, {}),
    "full, minimisers": ({"covariance": "full"}, {}),
}
D, N = 20, 20

if "--worker" not in sys.argv:
    from _timing import Report


def case(kind, K):
    """Return the posterior's problem with K clients, and the method."""
    import numpy as np

    from fedconvex import Federation, Logistic
    from fedconvex.methods import VIRTUAL
    from fedconvex.problems import GaussianPosteriorProblem

    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((K * N, D)) / math.sqrt(D), rng.standard_normal(D)
    y = np.where(X @ w + 0.5 * rng.standard_normal(K * N) > 0.0, 1.0, -1.0)
    problem, method = KINDS[kind]
    fed = Federation(X, y, np.arange(K + 1) * N)
    return GaussianPosteriorProblem(fed, Logistic(), **problem), VIRTUAL(rho=1.0 / K, **method)


def worker(kind, K):
    """Print CPU seconds of the clients, the server and the certificate, and the peak of memory beyond ten clients'."""
    import resource
    import time

    import numpy as np

    from fedconvex.draws import Draws

    def rounds(problem, method, count):
        clients, seconds = np.arange(problem.federation.K)[None], []
        state, memory = method.init(problem, np.zeros((1, D))), method.memory(problem, 1)
        for t in range(count):
            began = time.process_time()
            reply, memory = method.local(
                problem, method.broadcast(state), clients, memory, Draws(np.uint64(1), np.arange(1), t)
            )
            answered = time.process_time()
            state = method.aggregate(state, clients, problem.weights[None], reply)
            added = time.process_time()
            method.measure(problem, state)
            seconds.append((answered - began, added - answered, time.process_time() - added))
        return np.min(seconds, axis=0).tolist()

    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0  # noqa: E731
    rounds(*case(kind, 10), 2)
    base = peak()
    clients, server, certificate = rounds(*case(kind, K), 2 if K > 1_000 else 3)
    found = {"client": clients / K, "server": server, "certificate": certificate, "peak": peak() - base}
    print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=SIZES[-1], help="most clients")
    most = parser.parse_args().most
    report = Report("virtual", "A client of VIRTUAL in a round with K clients", "CPU ms", 1e3, clock="cpu")
    for kind in KINDS:
        found = {}
        last = min(most, 1_000 if kind.startswith("full") else SIZES[-1])
        for K in (K for K in SIZES if K <= last):
            command = [sys.executable, __file__, "--worker", kind, str(K)]
            p = found[K] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            timing = dict.fromkeys(("min", "median", "cpu_min", "cpu_median"), p["client"]) | {"repeats": 3}
            note = f"server {1e3 * p['server']:.2g} ms, certificate {1e3 * p['certificate']:.3g} ms, "
            report.row(f"{kind}: {K:,}", "fedconvex", timing, note=f"{note}peak {p['peak']:.0f} MB")
        if last == SIZES[-1] == 10_000:
            slope = math.log10(found[10_000]["client"] / found[1_000]["client"])
            report.bar(f"{kind}: slope of a client's time between 1,000 and 10,000", slope, 0.15)
            slope = math.log10(found[10_000]["certificate"] / found[1_000]["certificate"])
            report.bar(f"{kind}: slope of the certificate's between 1,000 and 10,000", slope, 1.3)
    report.write()


if __name__ == "__main__":
    worker(sys.argv[2], int(sys.argv[3])) if "--worker" in sys.argv else main()
