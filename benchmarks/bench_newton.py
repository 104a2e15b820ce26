"""Rounds of `FederatedNewton` over ten clients to a certified gap of 1e-10: logistic regression on a9a, w8a and Adult.

Nothing is timed: rounds are what a study over sites waits for, and they do not depend on the machine. In a
round each client sends (p + 1)(p + 2)/2 numbers.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from _timing import Report, data_folder

from fedconvex import FederatedNewton, Federation, Logistic, Problem, run

CLIENTS, GAP, MOST = 10, 1e-10, 40
NAMES = ("a9a", "w8a", "adult")
STRENGTHS = (1e-3, 1e-4)


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels -1 and 1: columns of numbers standardised, categories one-hot."""
    with np.load(data_folder() / f"{name}.npz", allow_pickle=False) as z:
        if "data" in z:
            parts = (z["data"].astype(float), z["indices"].astype(np.int64), z["indptr"].astype(np.int64))
            return sp.csr_array(parts, shape=tuple(z["shape"])).toarray(), z["y"].astype(float)
        numbers = z["x_num_train"].astype(float)
        levels = [np.eye(len(z[f"categories_{j}"]))[codes] for j, codes in enumerate(z["x_cat_train"].T)]
        return np.hstack([(numbers - numbers.mean(0)) / numbers.std(0), *levels]), 2.0 * z["y_train"] - 1.0


def main() -> None:
    report = Report("newton", "rounds of Newton's method over ten clients to a certified gap of 1e-10", "rounds", 1.0)
    for name in NAMES:
        if not (data_folder() / f"{name}.npz").exists():
            report.row(name, "FederatedNewton", None, note=f"{name}.npz not found in FEDCONVEX_DATA")
            continue
        X, y = rows_of(name)
        fed = Federation(X, y, np.linspace(0, len(y), CLIENTS + 1).astype(np.int64))
        for l2 in STRENGTHS:
            found = run(FederatedNewton(), Problem(fed, Logistic(), l2=l2), rounds=MOST, tol=GAP)
            report.check(f"{name}, l2 = {l2:g}: certified gap", float(found.gap), GAP)
            report.bar(f"{name} ({len(y):,} x {X.shape[1]}), l2 = {l2:g}: rounds", float(found.rounds), 12.0)
    report.write()


if __name__ == "__main__":
    main()
