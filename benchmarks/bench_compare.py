"""The comparison of ten kinds of models and methods, and its paths of l2 beside what they replace.

python benchmarks/bench_compare.py

50,000 rows, 50 columns, 20 clients, logistic loss, one split: every kind chooses among 13 values of l2 in five folds.
The peer does a part of the same: scikit-learn's LogisticRegressionCV for all rows and for every client alone, with the
same numbers of values and folds. MOCHA's path in one fold is timed with proximal Newton steps and by dual coordinate
ascent, and must come as near to the optimum.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from _timing import Report, summary

import fedconvex
from fedconvex import Logistic
from fedconvex.comparison.compared_rows import rows_of
from fedconvex.comparison.cross_validation import L2S
from fedconvex.comparison.kinds import Training, learned
from fedconvex.comparison.l2_path import TASK_ACCURACY, task_path
from fedconvex.comparison.splits import held_out
from fedconvex.datasets import logistic_federation
from fedconvex.families.multitask import joint_newton

K, D, ROWS, FOLDS, TIMES = 20, 50, 2500, 5, 3
SETTINGS = {}  # of the comparison, in the place of its own


def once(f):
    """Wall and CPU time of one call, and what it returned."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = f()
    return (time.perf_counter() - wall, time.process_time() - cpu), found


def peer(fed):
    """Choose l2 by cross-validation, for all rows and for every client alone."""
    from sklearn.linear_model import LogisticRegressionCV

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in [(0, fed.n), *zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]:
            X, y = fed.X[a:b], fed.y[a:b]
            X = (X - X.mean(axis=0)) / X.std(axis=0)
            chosen = [1.0 / (l2 * y.size * (FOLDS - 1) / FOLDS) for l2 in L2S]
            LogisticRegressionCV(Cs=chosen, cv=FOLDS, scoring="neg_log_loss", tol=1e-6).fit(X, y)


def path(fed, sweeps):
    """MOCHA's models for every l2; ``sweeps``: by dual coordinate ascent."""
    fits, relations = joint_newton.fits, [learned(fed.n * l2, fed.K) for l2 in L2S]
    joint_newton.fits = (lambda problem: False) if sweeps else fits
    try:
        return list(task_path(fed, Logistic(), relations))
    finally:
        joint_newton.fits = fits


def main():
    report = Report("compare", "A comparison of ten kinds of models and methods, 50,000 rows", "s", 1.0, clock="cpu")
    small = logistic_federation(3, 5, 60, model_shift=0.5, seed=0).federation
    fedconvex.compare(small, splits=1, progress=False, **SETTINGS)
    made = logistic_federation(K, D, ROWS, size_skew=0.5, feature_shift=0.5, model_shift=1.0, seed=0)
    fed, times = made.federation, {"ours": [], "peer": [], "newton": [], "sweeps": []}
    rows = rows_of(fed)
    train = np.flatnonzero(~held_out(rows, 0.25, 0))
    inner = Training(rows, rows.features(train), train).design.federation
    path(inner, False), path(inner, True)
    for _ in range(TIMES):
        times["ours"].append(once(lambda: fedconvex.compare(fed, progress=False, **SETTINGS))[0])
        times["peer"].append(once(lambda: peer(fed))[0])
        spent, newton = once(lambda: path(inner, False))
        times["newton"].append(spent)
        spent, sweeps = once(lambda: path(inner, True))
        times["sweeps"].append(spent)
    off = max(m.gap / (1.0 + m.value) for m in newton)
    report.check("gaps of MOCHA's path, relative", off, 2.0 * TASK_ACCURACY)
    apart = max((a.value - b.value) / (1.0 + b.value) for a, b in zip(newton, sweeps, strict=True))
    report.check("MOCHA's values above those of dual coordinate ascent", apart, TASK_ACCURACY)
    case = "50,000 x 50, 20 clients"
    ours = report.row(case, "compare", summary(times["ours"]), note="13 values, 5 folds, ten methods")
    theirs = report.row(case, "LogisticRegressionCV", summary(times["peer"]), note="pooled, and alone, only")
    a = report.row("MOCHA's path, all training rows", "proximal Newton", summary(times["newton"]))
    b = report.row("MOCHA's path, all training rows", "dual coordinate ascent", summary(times["sweeps"]))
    report.bar("compare, CPU s", ours, 10.0)
    report.bar("compare / LogisticRegressionCV of two of its kinds", ours / theirs)
    report.bar("MOCHA's path: Newton / dual coordinate ascent", a / b, 0.3)
    report.write()


if __name__ == "__main__":
    main()
