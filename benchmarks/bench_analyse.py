"""Logistic regression with standard errors from rows of ten clients, beside statsmodels on the pooled rows.

A million rows of 20 columns, wall time in one process: the package standardises, minimises, certifies, and has the null
model too; statsmodels' GLM by iteratively reweighted least squares. The growth of the package's peak of memory, over
the size of the data, is measured in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
from _timing import Report, compare

from fedconvex import Federation
from fedconvex.analysis.analysing import analysed
from fedconvex.analysis.model_rows import ModelRows
from fedconvex.analysis.response_families import LOGISTIC

N, P, PIECE = 1_000_000, 20, 50_000


def rows():
    """Return features with an intercept, responses and where clients begin; made in pieces, for the peak of memory."""
    rng = np.random.default_rng(0)
    b, X, y = 0.3 * rng.standard_normal(P), np.ones((N, P)), np.empty(N)
    for lo in range(0, N, PIECE):
        part = X[lo : lo + PIECE]
        part[:, 1:] = rng.standard_normal((len(part), P - 1))
        y[lo : lo + PIECE] = rng.random(len(part)) < 1.0 / (1.0 + np.exp(-part @ b))
    return X, y, np.linspace(0, N, 11).astype(np.int64)


def model(X, y, ptr):
    """Return the rows of an analysis."""
    names = ("Intercept", *(f"x{j}" for j in range(1, P)))
    return ModelRows(Federation(X, y, ptr), LOGISTIC, names, {}, "y", [], N)


def fit(given):
    """Return estimates and standard errors."""
    found = analysed(given, False, None, 0.95)
    return found.estimates, found.standard_errors


def worker(name, n):
    """Print by how much the peak of memory grows while n rows are fitted, over the size of their data."""
    global N
    N = n
    given = model(*rows())
    before = high_water()
    fit(given)
    print((high_water() - before) / given.federation.X.nbytes)


def high_water():
    """Return the peak of this process's memory in bytes; that of getrusage may be the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * float(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main():
    warnings.simplefilter("ignore")
    import statsmodels.api as sm

    report = Report("analyse", "logistic regression from rows to standard errors", "s", 1.0)
    X, y, ptr = rows()
    given = model(X, y, ptr)

    def other():
        return sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-12)

    b, errors = fit(given)
    report.check("estimates, in standard errors", float((np.abs(other().params - b) / errors).max()), 1e-8)
    timing = compare({"package": lambda: fit(given), "statsmodels": other}, repeats=5, limit=120.0)
    spent = {name: report.row("1,000,000 x 20", name, timing.get(name)) for name in ("package", "statsmodels")}
    report.bar("package / statsmodels", spent["package"] / spent["statsmodels"], 0.25)
    done = subprocess.run(
        [sys.executable, __file__, "worker", "peak", str(N)], capture_output=True, text=True, check=True
    )
    report.bar("peak of memory beside the data / data", float(done.stdout), 1.5)
    report.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], int(sys.argv[3]))
    else:
        main()
