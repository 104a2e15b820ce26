"""Rounds of FedProx and SCAFFOLD beside those of FedAvg, and what SCAFFOLD's clients keep among a million of them.

Rounds: 10 of 100 clients, n = 20,000, d = 100, logistic loss, the same sampling and the same batches for all methods.
Ratios are of CPU time: every method runs on one thread, and nothing else on the machine counts.
Memory: 1,000,000 clients of one row, d = 100, of which 100 are sampled in each of 100 rounds, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from _reference import drawn, drawn_clients
from _timing import Report, compare, one_by_one

from fedconvex import FedAvg, Federation, Logistic, Problem, iterate
from fedconvex.methods import SCAFFOLD, FedProx

K, PER, D, M, STEP, MU = 100, 200, 100, 10, 0.05, 0.1
MANY = 50  # rounds per timed call
WORK = {
    "batch 20, one epoch": {"epochs": 1, "batch_size": 20},
    "batch 1, one epoch": {"epochs": 1, "batch_size": 1},
    "full batches, 5 steps": {"local_steps": 5},
}
BAR = {"batch 20, one epoch": 1.2, "batch 1, one epoch": 1.35, "full batches, 5 steps": 1.2}

MEMORY = """
import resource
import numpy as np
from fedconvex import Federation, Logistic, Problem, iterate
from fedconvex.methods import FedAvg, SCAFFOLD
K = 1_000_000
X = np.random.default_rng(0).standard_normal((K, 100))
y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
X.flags.writeable = y.flags.writeable = False  # read-only rows are not copied
problem = Problem(Federation(X, y, np.arange(K + 1)), Logistic())
method = {method}(step_size=0.05, local_steps=5, batch_size=1, participation=100)
for _ in iterate(method, problem, rounds=100):
    pass
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (X.nbytes + y.nbytes))
"""


def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K * PER, D))
    y = np.sign(X @ rng.standard_normal(D) + 5.0 * rng.standard_normal(K * PER))
    return X, y


def steps(X, y, rows, batch, w, tilt):
    """Local steps on batches of rows from w, each gradient plus tilt(w)."""
    w = w.copy()
    for s in range(0, rows.size, batch):
        A, t = X[rows[s : s + batch]], y[rows[s : s + batch]]
        w -= STEP * (A.T @ (-t / (1.0 + np.exp(t * (A @ w)))) / t.size + tilt(w))
    return w


def check(report, problem, label, methods, work, X, y, rounds=4):
    """Compare a few rounds with NumPy given the same clients and rows."""
    batch = work.get("batch_size", PER)
    for name in ("FedProx", "SCAFFOLD"):
        w, c, kept, error = np.zeros(D), np.zeros(D), {}, 0.0
        for t, state in iterate(methods[name], problem, rounds=rounds):
            error = max(error, float(np.abs(state.w[0] - w).max()))
            clients, ends, changes = drawn_clients(methods[name], problem, t)[0].tolist(), [], []
            for k in clients:
                rows = drawn(problem, 0, t, k, 1, PER)
                rows = np.tile(k * PER + np.arange(PER), 5) if batch == PER else rows
                mine = kept.get(k, np.zeros(D))
                tilt = (lambda v, w=w: MU * (v - w)) if name == "FedProx" else (lambda v, c=c, mine=mine: c - mine)
                ends.append(steps(X, y, rows, batch, w, tilt))
                changes.append((w - ends[-1]) / (STEP * (rows.size // batch)) - c)
                kept[k] = mine + changes[-1]
            w, c = np.mean(ends, axis=0), c + np.sum(changes, axis=0) / K
        report.check(f"{label}: {name} = NumPy, {rounds} rounds", error, 1e-12)


def main():
    title = "Family of FedAvg: 10 of 100 clients, n = 20,000, d = 100, logistic"
    report = Report("family", title, "CPU µs per round", 1e6, clock="cpu")
    X, y = data()
    problem = Problem(Federation(X, y, np.arange(0, K * PER + 1, PER)), Logistic())
    for label, work in WORK.items():
        how = {"step_size": STEP, "participation": M} | work
        methods = {"FedAvg": FedAvg(**how), "FedProx": FedProx(proximal_mu=MU, **how), "SCAFFOLD": SCAFFOLD(**how)}
        check(report, problem, label, methods, work, X, y)
        calls = {}
        for name, method in methods.items():
            rounds = one_by_one(method, problem, threads=1)

            def ours(rounds=rounds):
                for _ in range(MANY):
                    next(rounds)

            calls[name] = ours
        timing = compare(calls, repeats=100)
        times = {name: report.row(label, name, t, MANY) for name, t in timing.items()}
        for name in ("FedProx", "SCAFFOLD"):
            report.bar(f"{label}: {name} / FedAvg", times[name] / times["FedAvg"], BAR.get(label))
    for method in ("FedAvg", "SCAFFOLD"):
        code = MEMORY.format(method=method)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        bar = 1.5 if method == "SCAFFOLD" else None
        report.bar(f"{method}, 1,000,000 clients: peak memory of the process / data", float(done.stdout), bar)
    report.write()


if __name__ == "__main__":
    main()
