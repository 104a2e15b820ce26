"""Rounds in two threads over rounds in one, wall time, and in as many as `threads=None` takes: for a quiet machine."""

from __future__ import annotations

import numpy as np
from _timing import Report, compare, one_by_one

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.datasets import linear_federation

BAR = 1 / 1.6  # of time in two threads over time in one
PER, D = 100, 100  # rows of a client in small runs, half of those in the others; features of the others


def trajectories(R):
    """R small independent runs, as in bench_trajectories.py."""
    federation = linear_federation(n_clients=20, n_features=2, rows_per_client=PER, seed=0).federation
    return Problem(federation, Squared()), FedAvg(step_size=0.05, local_steps=5, batch_size=1, participation=7), R


def clients(K, m):
    """One run in which m of K clients take an epoch in batches of 20 of their 200 rows, d = 100."""
    rng, n = np.random.default_rng(0), 2 * PER
    X = rng.standard_normal((K * n, D))
    y = np.sign(X @ rng.standard_normal(D) + 5.0 * rng.standard_normal(K * n))
    problem = Problem(Federation(X, y, np.arange(0, K * n + 1, n)), Logistic())
    return problem, FedAvg(step_size=0.05, epochs=1, batch_size=20, participation=m), 1


CASES = {
    "256 trajectories": (trajectories, (256,), BAR),
    "4,096 trajectories": (trajectories, (4096,), BAR),
    "10 of 100 clients": (clients, (100, 10), None),
    "1,000 clients": (clients, (1000, 1000), BAR),
}


def main():
    report = Report("threads", "Rounds in one thread, in two, and in as many as the work is worth", "µs per round", 1e6)
    for name, (make, sizes, bar) in CASES.items():
        (problem, method, R), runs, ends = make(*sizes), {}, []
        for threads in (1, 2, None):
            run = one_by_one(method, problem, trajectories=R, threads=threads)
            states = [state.w for _, state in (next(run) for _ in range(9))]  # by the ninth the choice is made
            ends.append(states[-1])
            runs[{1: "one thread", 2: "two threads", None: "by the work"}[threads]] = lambda run=run: next(run)
        report.check(f"{name}: bits that differ", float(sum((w != ends[0]).sum() for w in ends)), 0.0)
        time = {who: report.row(name, who, t) for who, t in compare(runs, repeats=60, least=0.02).items()}
        report.bar(f"{name}: two threads / one", time["two threads"] / time["one thread"], bar)
        report.bar(f"{name}: by the work / the better", time["by the work"] / min(time.values()), 1.1)
    report.write()


if __name__ == "__main__":
    main()
