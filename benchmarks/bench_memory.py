"""A FedAvg round whose rows come from memory, over the same round on rows that stay in the caches; CPU time.

10 clients of 200 rows, d = 100, logistic loss, one epoch of batches of 20: always the same ten (1.6 MB), ten of a
hundred (16 MB) and ten of 1,500 (240 MB). Both draw their batches; the rounds are checked against plain NumPy.

Beside it C that only reads such rows, adding them up: as they lie, in random order, and in random order with the lines
of the eighth next row asked for. No round can be faster than that.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from _reference import drawn, drawn_clients, logistic_epoch
from _timing import Report, compare, one_by_one

from fedconvex import FedAvg, Federation, Logistic, Problem, iterate

PER, D, BATCH, STEP, MANY = 200, 100, 20, 0.05, 30
METHOD = FedAvg(step_size=STEP, epochs=1, batch_size=BATCH, participation=10)
CASES = {"in the caches": 10, "ten of a hundred": 100, "from memory": 1500}


C_SOURCE = """
#include <stdint.h>
double total(const double *X, const int64_t *rows, int64_t n, int64_t d, int64_t ahead) {
    double s[16] = {0};
    for (int64_t b = 0; b < n; b++) {
        const double *x = X + rows[b] * d;
        if (ahead && b + ahead < n)
            for (int64_t j = 0; j < d; j += 8) __builtin_prefetch(X + rows[b + ahead] * d + j);
        int64_t j = 0;
        for (; j + 16 <= d; j += 16)
            for (int e = 0; e < 16; e++) s[e] += x[j + e];
        for (; j < d; j++) s[0] += x[j];
    }
    for (int e = 1; e < 16; e++) s[0] += s[e];
    return s[0];
}
"""
READERS = {"C, rows as they lie": (False, 0), "C, random order": (True, 0), "C, random order, ahead": (True, 8)}


def reader(folder):
    """Return the function in C."""
    source, library = Path(folder) / "total.c", Path(folder) / "total.so"
    source.write_text(C_SOURCE)
    subprocess.run(["gcc", "-O3", "-march=native", "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).total
    function.restype = ctypes.c_double
    return function


def reading(function, X, K, shuffled, ahead):
    """Return a call that reads MANY times the rows of ten clients of K, other ones every time."""
    rng, at, lists = np.random.default_rng(1), [0], []
    for _ in range(20 * MANY):
        clients = rng.choice(K, 10, replace=False)[:, None] * PER
        rows = clients + (rng.permuted(np.tile(np.arange(PER), (10, 1)), axis=1) if shuffled else np.arange(PER))
        lists.append(np.ascontiguousarray(rows.ravel(), dtype=np.int64))
    sizes = [ctypes.c_int64(x) for x in (lists[0].size, X.shape[1], ahead)]
    where, pointers = ctypes.c_void_p(X.ctypes.data), [ctypes.c_void_p(rows.ctypes.data) for rows in lists]

    def call():
        for _ in range(MANY):
            at[0] = (at[0] + 1) % len(lists)
            function(where, pointers[at[0]], *sizes)

    call.kept = X, lists
    first = ctypes.c_void_p(lists[0].ctypes.data)
    assert np.isclose(function(where, first, *sizes), X[lists[0]].sum(), rtol=1e-9, atol=1e-6)
    return call


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
    with tempfile.TemporaryDirectory() as folder:
        total = reader(folder) if shutil.which("gcc") else None
    if total is None:
        report.row("all", "C", None, note="gcc is not installed: nothing to compare with")
    for name, K in CASES.items():
        problem = problem_of(K)
        check(report, name, problem)
        its = one_by_one(METHOD, problem, threads=1)

        def rounds(its=its):
            for _ in range(MANY):
                next(its)

        calls[name, "fedconvex.iterate"] = rounds
        for who, how in READERS.items() if total is not None else ():
            calls[name, who] = reading(total, problem.federation.X, K, *how)
    us = {key: report.row(*key, t, MANY) for key, t in compare(calls, repeats=60).items()}
    base = us["in the caches", "fedconvex.iterate"]
    for name in list(CASES)[1:]:
        ratio, bar = us[name, "fedconvex.iterate"] / base, 1.3 if name == "from memory" else None
        report.bar(f"{name} / in the caches", ratio, bar)
    if total is not None:
        least = min(us["from memory", who] for who in READERS)
        report.bar("C that only reads the rows from memory / a round in the caches", least / base)
    report.write()


if __name__ == "__main__":
    main()
