"""Dual coordinate ascent: MOCHA's steps per second against LIBLINEAR's on one hinge problem, and a round on HAR.

Times are CPU times of the process, one thread.

Steps: sum of hinge losses + |w|^2/(2 C), C = 1, no intercept, every pass over all rows in a fresh random order.
LIBLINEAR is credited with all n rows of every one of its outer iterations, although it shrinks: it visits fewer. Its
set-up is taken off by the difference of two iteration counts.

Certified: time until P(w) - min P <= 1e-4 min P, C = 0.01. MOCHA stops by its own duality gap, LIBLINEAR at the loosest
of the tolerances 1, 10^-0.5, 10^-1, ... whose result is measured to be that good, which is not part of its time.

Round: 21 people, 561 features, 75 % of the rows for training, half an epoch per node and round, through `iterate`; and
the same steps as a plain loop in C, given the rows, with nothing but the steps.

Several classes: steps on dense rows, through `iterate`; and the step of one row without its scores, beside two nested
Newton iterations (`entropic_step`, the fall-back), from drawn distributions and scores, compared to 1e-14.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from _timing import Report, compare, data_folder
from numba import njit

from fedconvex import Federation, Hinge, Softmax, iterate, run
from fedconvex.entropic import entropic_step
from fedconvex.kernels.dispatch import dual_steps
from fedconvex.methods import MOCHA
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem

MANY = 20  # rounds per timed call on HAR
ROWS, D = 20_000, 100  # of dense data

C_SOURCE = r"""
#include <stdint.h>
void steps(const double *restrict X, const double *restrict y, const double *restrict norms,
           const int64_t *restrict rows, int64_t n, int64_t d, double rho, double *restrict a, double *restrict u) {
    for (int64_t s = 0; s < n; s++) {
        int64_t i = rows[s];
        const double *restrict x = X + i * d;
        double z = 0;
        for (int64_t j = 0; j < d; j++) z += x[j] * u[j];
        double b = y[i] * a[i], new = b + (1 - y[i] * z) / (rho * norms[i]);
        new = new < 0 ? 0 : new > 1 ? 1 : new;
        double delta = y[i] * (new - b);
        if (delta != 0) {
            a[i] += delta;
            for (int64_t j = 0; j < d; j++) u[j] += rho * delta * x[j];
        }
    }
}
"""


def a9a():
    """(X, y) as CSR float64, or None where the file is absent."""
    path = data_folder() / "a9a.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as z:
        parts = (z["data"].astype(float), z["indices"].astype(np.int32), z["indptr"].astype(np.int32))
        return sp.csr_matrix(parts, shape=tuple(z["shape"])), z["y"].astype(float)


def dense():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, D))
    return X, np.where(X @ rng.standard_normal(D) + 5.0 * rng.standard_normal(ROWS) > 0.0, 1.0, -1.0)


def peers(X, y, C):
    """Functions (iterations or None, tolerance) -> w."""
    found = {}
    try:
        from sklearn.svm import LinearSVC

        def svc(most, tol):
            how = {"loss": "hinge", "dual": True, "C": C, "fit_intercept": False, "random_state": 0}
            return LinearSVC(max_iter=most or 100_000, tol=tol, **how).fit(X, y).coef_[0]

        found["scikit-learn LinearSVC"] = svc
    except ImportError:
        pass
    try:
        from liblinear.liblinear import liblinear
        from liblinear.liblinearutil import parameter, problem

        prepared = problem(y, sp.csr_matrix(X))
        prepared.set_bias(-1)

        def lib(most, tol):  # has no limit of iterations: for times to a tolerance only
            chosen = parameter(f"-s 3 -c {C} -e {tol:g} -q")
            model = liblinear.train(prepared, chosen).contents
            return np.array(model.w[: X.shape[1]]) * model.label[0]

        found["LIBLINEAR (-s 3)"] = lib
    except ImportError:
        pass
    return found


def one_problem(report, name, X, y):
    """Time steps, and time to a certified accuracy."""
    fed = Federation(X, y, np.array([0, y.size]))
    problem = MultiTaskProblem(fed, Hinge(), Independent(1.0))
    rounds = iterate(MOCHA(), problem, threads=1)
    for _ in range(4):
        next(rounds)
    tests = {"ours": lambda: next(rounds)}
    others = peers(X, y, 1.0)
    if "scikit-learn LinearSVC" in others:
        svc = others["scikit-learn LinearSVC"]
        for most in (4, 12):
            tests[str(most)] = lambda most=most: svc(most, 1e-300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timing = compare(tests, repeats=20, limit=30.0)
    mine = report.row(f"{name}: a step", "fedconvex, through iterate", timing["ours"], y.size)
    if len(tests) > 1:
        spent = {k: timing["12"][k] - timing["4"][k] for k in ("min", "median", "cpu_min", "cpu_median")}
        theirs = report.row(f"{name}: a step", "scikit-learn LinearSVC", spent | {"repeats": 20}, 8 * y.size)
        report.bar(f"{name}: time per step / LIBLINEAR's in scikit-learn", mine / theirs, 1.0)
    problem, others = MultiTaskProblem(fed, Hinge(), Independent(100.0)), peers(X, y, 0.01)
    value = float(problem.solve(1e-7).lower)
    goal = 1e-4 * value

    def certified():
        return run(MOCHA(), problem, rounds=10_000, tol=goal, record_every=3)

    tests, notes = {"ours": certified}, {}
    assert certified().status.name == "CONVERGED"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for who, fit in others.items():
            for power in np.arange(0.0, -8.0, -0.5):
                if float(problem.value(fit(None, 10.0**power)[None])) - value <= goal:
                    tests[who] = lambda fit=fit, power=power: fit(None, 10.0**power)
                    notes[who] = f"tolerance 1e{power:g}"
                    break
        timing = compare(tests, repeats=10, limit=30.0)
    for who, t in timing.items():
        report.row(f"{name}: to 1e-4", "fedconvex, certified" if who == "ours" else who, t, note=notes.get(who, ""))


def c_steps(folder):
    """Compile the plain loop, or return None where there is no gcc."""
    if shutil.which("gcc") is None:
        return None
    source, target = Path(folder) / "steps.c", Path(folder) / "steps.so"
    source.write_text(C_SOURCE)
    cc = ["gcc", "-O3", "-march=native", "-fPIC", "-ffast-math", "-c", str(source), "-o", str(target) + ".o"]
    subprocess.run(cc, check=True)
    subprocess.run(["gcc", "-shared", str(target) + ".o", "-o", str(target)], check=True)
    return ctypes.CDLL(str(target)).steps


def har(report):
    """Time a round of half an epoch on 21 people."""
    path = data_folder() / "har21.npz"
    if not path.exists():
        report.row("HAR round", "fedconvex", None, note="har21.npz is absent")
        return
    with np.load(path, allow_pickle=False) as z:
        fed = Federation.from_arrays(z["X"].astype(float), z["y"].astype(float), z["client"].astype(int))
    train, _ = fed.split(0.25, seed=0)
    method, tests = MOCHA(epochs=0.5), {}
    for name, relation in (("fixed Omega", MeanRegularised(0.01, 0.01)), ("Omega every round", Covariance(0.005))):
        rounds = iterate(method, MultiTaskProblem(train, Hinge(), relation, "mean"))
        for _ in range(50):
            state = next(rounds)[1]

        def ours(rounds=rounds):
            for _ in range(MANY):
                next(rounds)

        tests[name] = ours
    steps = float(state.steps.sum() / state.t)
    with tempfile.TemporaryDirectory() as folder:
        loop = c_steps(folder)
        if loop is not None:
            problem = MultiTaskProblem(train, Hinge(), MeanRegularised(0.01, 0.01), "mean")
            X, norms, rng = np.ascontiguousarray(train.X), problem.row_norms, np.random.default_rng(0)
            y, a, U = np.array(train.y), np.zeros(train.n), np.zeros((train.K, train.d))
            halves = [
                np.stack([lo + rng.permutation(hi - lo)[: round(0.5 * (hi - lo))] for _ in range(MANY)])
                for lo, hi in zip(train.ptr[:-1], train.ptr[1:], strict=True)
            ]
            at = lambda v: v.ctypes.data_as(ctypes.c_void_p)  # noqa: E731
            sigma, rho = problem.pencil_sigma(), np.diag(problem.mbar) * problem.c
            n, d = ctypes.c_int64, ctypes.c_int64(train.d)
            V = np.zeros_like(U)

            def plain():
                for r in range(MANY):
                    U[:] = W = problem.mbar @ V
                    for t in range(train.K):
                        rows, q = halves[t][r], ctypes.c_double(sigma * rho[t])
                        loop(at(X), at(y), at(norms), at(rows), n(rows.size), d, q, at(a), at(U[t]))
                    V[:] += (U - W) / (sigma * np.diag(problem.mbar))[:, None]

            tests["plain loop in C"] = plain
        timing = compare(tests, repeats=20, limit=40.0)
    spent = {who: report.row(f"HAR round, {steps:.0f} steps", who, t, MANY) for who, t in timing.items()}
    for who, value in spent.items():
        if who != "plain loop in C":
            report.bar(f"HAR round, {who}: ms", value / 1e6, 0.8 if who == "fixed Omega" else None)
            if "plain loop in C" in spent:
                report.bar(f"HAR round, {who}: time / plain loop in C", value / spent["plain loop in C"])


@njit
def dual_steps_of_rows(loss, Z, P, q, room, out):
    """One dual step of every row, alpha = e_0 - p; out becomes the new distributions."""
    C = Z.shape[1]
    for i in range(Z.shape[0]):
        for k in range(C):
            out[i, k], room[k] = (1.0 if k == 0 else 0.0) - P[i, k], Z[i, k]
        dual_steps(loss, out[i], room[:C], room[C:], q, 0.0)
        for k in range(C):
            out[i, k] = (1.0 if k == 0 else 0.0) - out[i, k]


@njit
def nested_steps_of_rows(Z, P, q, out):
    """Compute the same by the nested iterations."""
    for i in range(Z.shape[0]):
        for k in range(Z.shape[1]):
            out[i, k] = Z[i, k] + q * P[i, k]
        entropic_step(out[i], q)


def several_classes(report, C=6):
    """Time dual steps of C classes: one alone, and with its scores and sums, through `iterate`."""
    rng = np.random.default_rng(3)
    Z, P = 2.0 * rng.normal(size=(ROWS // 20, C)), rng.dirichlet(np.full(C, 0.3), ROWS // 20)
    for q in (0.1, 1.0, 100.0):
        new, nested, room = np.empty_like(Z), np.empty_like(Z), np.empty(3 * C)
        tests = {
            "fedconvex": lambda q=q, new=new, room=room: dual_steps_of_rows(Softmax(C), Z, P, q, room, new),
            "nested iterations": lambda q=q, nested=nested: nested_steps_of_rows(Z, P, q, nested),
        }
        timing = compare(tests, repeats=20, limit=20.0)
        report.check(f"{C} classes, q = {q:g}: steps", float(np.abs(new - nested).max()), 1e-14)
        name = f"{C} classes, q = {q:g}: a step of one row"
        spent = [report.row(name, who, t, len(Z)) for who, t in timing.items()]
        report.bar(f"{C} classes, q = {q:g}: time / nested iterations", spent[0] / spent[1], 0.35)
    X = rng.normal(size=(ROWS, D))
    y = np.argmax(X @ rng.normal(size=(D, C)) + 5.0 * rng.normal(size=(ROWS, C)), axis=1).astype(float)
    problem = MultiTaskProblem(Federation(X, y, np.array([0, ROWS])), Softmax(C), Independent(1.0))
    rounds = iterate(MOCHA(), problem, threads=1)
    for _ in range(2):
        next(rounds)
    timing = compare({"fedconvex, through iterate": lambda: next(rounds)}, repeats=10, limit=20.0)
    step = report.row(f"{C} classes, dense, 100 columns: a step", "fedconvex", *timing.values(), ROWS)
    report.bar(f"{C} classes, dense, 100 columns: µs a step", step / 1e3, 1.8)


def main():
    report = Report("mocha", "Dual coordinate ascent on hinge losses", "ns", 1e9, clock="cpu")
    found = a9a()
    if found is None:
        report.row("a9a: a step", "fedconvex", None, note="a9a.npz is absent")
    else:
        one_problem(report, "a9a", *found)
    one_problem(report, "dense, 20,000 x 100", *dense())
    har(report)
    several_classes(report)
    report.write()


if __name__ == "__main__":
    main()
