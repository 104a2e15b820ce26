"""A sweep of 1,000 seeds, 8 step sizes and 3 numbers of local steps, beside a loop over `run` with joblib.

Both have two processes, started and warm, and record the first and the last of 20 rounds. Seconds of wall time, since
the work is done in other processes. The loop is timed on every thirtieth of the 24,000 runs, and the time of a run is
what its bar refers to. What both return is compared: states are the same bit for bit, gaps up to rounding.
"""

from __future__ import annotations

import time

import numpy as np
from _timing import Report
from joblib import Parallel, delayed

from fedconvex import FedAvg, Problem, Squared, run, sweep
from fedconvex.datasets import linear_federation

SEEDS, STEPS, LOCAL = 1000, [0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12], [1, 3, 5]
ROUNDS, JOBS, EVERY, REPEATS, BAR = 20, 2, 30, 3, 0.1
METHOD = {"batch_size": 5, "participation": 5}


def alone(problem, step, local, seed):
    """Return the last gap of a run of its own."""
    method = FedAvg(step_size=step, local_steps=local, **METHOD)
    how = {"rounds": ROUNDS, "tol": 0.0, "record_every": ROUNDS, "threads": 1, "progress": False}
    return run(method, problem, trajectories=range(seed, seed + 1), **how).gap


def together(problem):
    """Return the sweep."""
    grid = {"step_size": STEPS, "local_steps": LOCAL}
    how = {"seeds": SEEDS, "rounds": ROUNDS, "record_every": ROUNDS, "n_jobs": JOBS}
    return sweep(FedAvg(step_size=0.1, **METHOD), problem, grid=grid, **how)


def loop(problem, cells):
    """Return the last gaps of some runs, in a plain loop."""
    return Parallel(n_jobs=JOBS)(delayed(alone)(problem, *cell) for cell in cells)


def timed(call):
    """Return seconds, and what was returned."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def main():
    fed = linear_federation(n_clients=10, n_features=5, rows_per_client=20, seed=0).federation
    problem = Problem(fed, Squared(), 0.1)
    problem.solve()
    cells = [(step, local, seed) for step in STEPS for local in LOCAL for seed in range(SEEDS)]
    some = cells[::EVERY]
    together(problem), loop(problem, some[:8])  # processes are started, kernels read
    swept, looped = [], []
    for _ in range(REPEATS):
        seconds, found = timed(lambda: together(problem))
        swept.append(seconds)
        seconds, gaps = timed(lambda: loop(problem, some))
        looped.append(seconds)
    title = f"{len(cells):,} runs of {ROUNDS} rounds: 5 of 10 clients, batches of 5, d = 5; {JOBS} processes"
    report = Report("sweep", title, "µs per run", 1e6)
    last = found.final()["gap"][::EVERY]
    report.check("gaps of the loop and of the sweep", float(np.max(np.abs(last - gaps) / np.array(gaps))), 1e-8)
    mine = report.row("sweep", "fedconvex.sweep", _timing(swept), len(cells))
    plain = report.row("sweep", "a loop over run, joblib", _timing(looped), len(some), f"{len(some)} of them")
    report.bar("sweep / loop", mine / plain, BAR)
    report.write()


def _timing(seconds):
    """Return wall times in the form of a row; the CPU time of other processes is not known here."""
    return {"min": min(seconds), "median": float(np.median(seconds)), "repeats": REPEATS}


if __name__ == "__main__":
    main()
