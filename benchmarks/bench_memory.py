"""A FedAvg round whose rows come from memory, over the same round on rows that stay in the caches; CPU time.

10 clients of 200 rows, d = 100, logistic loss, one epoch of batches of 20: always the same ten (1.6 MB), ten of a
hundred (16 MB) and ten of 1,500 (240 MB). Both draw their batches; the rounds are checked against plain NumPy.
"""

from __future__ import annotations

import numpy as np
from _reference import drawn, drawn_clients, logistic_epoch
from _timing import Report, compare

from fedconvex import FedAvg, Federation, Logistic, Problem, iterate

PER, D, BATCH, STEP, MANY = 200, 100, 20, 0.05, 30
METHOD = FedAvg(step_size=STEP, epochs=1, batch_size=BATCH, participation=10)
CASES = {"in the caches": 10, "ten of a hundred": 100, "from memory": 1500}


def problem_of(K):
    """Return a logistic problem with K clients."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K * PER, D))
    y = np.sign(X @ rng.standard_normal(D) + 5.0 * rng.standard_normal(K * PER))
    return Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), PER)), Logistic())


def check(report, name, problem):
    """Hold the first round against NumPy given the same clients and rows."""
    X, y = problem.federation.X, problem.federation.y
    models = []
    for k in drawn_clients(METHOD, problem, 0)[0]:
        models.append(np.zeros(D))
        logistic_epoch(X, y, drawn(problem, 0, 0, k, 1, PER), STEP, BATCH, models[-1])
    *_, (_, state) = iterate(METHOD, problem, rounds=1)
    report.check(f"{name}: round 1 = NumPy", float(np.abs(state.w[0] - np.mean(models, axis=0)).max()), 1e-12)


def main():
    report = Report("memory", "FedAvg rounds on rows from memory", "CPU µs", 1e6, clock="cpu")
    calls = {}
    for name, K in CASES.items():
        problem = problem_of(K)
        check(report, name, problem)
        its = iterate(METHOD, problem, threads=1)

        def rounds(its=its):
            for _ in range(MANY):
                next(its)

        calls[name] = rounds
    timing = compare(calls, repeats=60)
    us = {name: report.row(name, "fedconvex.iterate", t, MANY) for name, t in timing.items()}
    for name in list(CASES)[1:]:
        report.bar(f"{name} / in the caches", us[name] / us["in the caches"], 1.3 if name == "from memory" else None)
    report.write()


if __name__ == "__main__":
    main()
