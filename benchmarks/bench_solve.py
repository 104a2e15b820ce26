"""`Problem.solve` against scikit-learn and LIBLINEAR at equal gaps: logistic, multinomial, squared and hinge losses.

F(w) = mean loss + (l2/2) |w|^2 without an intercept, hence C = 1/(l2 n), alpha = l2 n for the peers. A peer's tolerance
is tightened by factors of sqrt 10 until the *measured* (F - F*)/(1 + |F*|) is at most the goal, and that setting is
timed; F is computed by NumPy, F* is the value of a solution certified below the goal (where F is smooth by its gradient
in extended precision, not by the package). `Problem.solve`
certifies the goal within its time, and what a federation keeps of its rows (sizes of columns and such) is computed
anew in every call.

LIBLINEAR's dual solvers visit the rows in random order: the gap they reach at one tolerance varies by decades from
call to call. A setting counts only if every one of TRIALS calls reaches the goal, and the gap of every timed call is
measured as well, so that a lucky call is not timed as if it were the rule.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import tracemalloc
import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from _timing import RESULTS, Report, compare, data_folder
from scipy.special import logsumexp

from fedconvex import Federation, Hinge, Logistic, Problem, Softmax, Squared
from fedconvex.datasets import logistic_federation

PATIENCE, TRIALS, REPEATS = 15.0, 4, 7  # CPU seconds, calls, timed calls
DENSE, WIDE = (100, 200, 100), (10, 400, 3000)  # clients, rows of each, features
SPARSE = (20_000, 40_000, 75)  # rows, features, entries
ROWS = 10_000  # of MNIST


class Case(NamedTuple):
    """One row of the table: data by name, loss, l2, the relative gap, and the bar over the fastest peer."""

    data: str
    loss: Any
    l2: float
    goal: float
    bar: float

    @property
    def label(self) -> str:
        """What the tables call it."""
        return f"{self.data}, {type(self.loss).__name__.lower()}, l2 {self.l2:g}, to {self.goal:g}"


CASES = [
    *(Case(data, Logistic(), 1e-3, 1e-10, 0.9) for data in ("a9a", "w8a", "dense 20,000 x 100")),
    Case("dense 20,000 x 100", Logistic(), 1e-3, 1e-6, 0.9),
    Case("dense 4,000 x 3,000", Logistic(), 1e-3, 1e-10, 1.0),
    *(Case("sparse 20,000 x 40,000", Logistic(), l2, 1e-6, 0.9) for l2 in (1e-3, 1e-4, 1e-5)),
    *(Case("sparse 20,000 x 40,000", Logistic(), 1e-5, goal, 0.9) for goal in (1e-10, 1e-11)),
    *(Case("mnist 10,000", Softmax(10), 1e-3, goal, 0.9) for goal in (1e-6, 1e-10)),
    *(Case(data, Squared(), 1e-3, 1e-10, 1.0) for data in ("dense 20,000 x 100", "a9a", "sparse 20,000 x 40,000")),
    *(Case(data, Hinge(), 1e-3, g, 1.0) for data in ("a9a", "w8a", "dense 20,000 x 100") for g in (1e-4, 1e-6)),
]  # fmt: skip


# ---------------------------------------------------------------- data


def rows_of(name: str) -> tuple[Any, np.ndarray] | None:
    """(X, y), or None where a file is absent."""
    if name.startswith("dense"):
        K, n, d = WIDE if name.endswith("3,000") else DENSE
        federation = logistic_federation(n_clients=K, n_features=d, rows_per_client=n, seed=0).federation
        return np.array(federation.X), np.array(federation.y)
    if name.startswith("sparse"):
        return sparse_rows(*SPARSE)
    path = data_folder() / f"{name.split()[0]}.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as z:
        if name.startswith("mnist"):
            X = z["x_train"][:ROWS].reshape(ROWS, -1) / 255.0
            return np.ascontiguousarray(X[:, np.ptp(X, axis=0) > 0.0]), z["y_train"][:ROWS].astype(float)
        parts = (z["data"].astype(float), z["indices"].astype(np.int32), z["indptr"].astype(np.int32))
        return sp.csr_matrix(parts, shape=tuple(z["shape"])), z["y"].astype(float)


def sparse_rows(n: int, d: int, each: int) -> tuple[Any, np.ndarray]:
    """Rows of ``each`` entries at random, of length about one, with labels of a logistic model."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, d, (n, each)), axis=1).ravel()
    data = rng.standard_normal(n * each) / np.sqrt(each)
    X = sp.csr_matrix((data, columns, np.arange(0, n * each + 1, each)), shape=(n, d))
    X.sum_duplicates()
    z = X @ rng.standard_normal(d)
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-3.0 * z)), 1.0, -1.0)


def objective(case: Case, X: Any, y: np.ndarray) -> Any:
    """F by NumPy, not by the package."""

    def value(w: np.ndarray) -> float:
        Z = X @ w.T
        if isinstance(case.loss, Softmax):
            losses = logsumexp(Z, axis=1) - Z[np.arange(y.size), y.astype(int)]
        elif isinstance(case.loss, Logistic):
            losses = np.logaddexp(0.0, -y * Z)
        else:
            losses = 0.5 * (Z - y) ** 2 if isinstance(case.loss, Squared) else np.maximum(0.0, 1.0 - y * Z)
        return float(np.mean(losses) + 0.5 * case.l2 * np.sum(w * w))

    return value


def above(case: Case, X: Any, y: np.ndarray, w: np.ndarray) -> float:
    """How far F(w) lies above F* at most, ‖grad F(w)‖^2/(2 l2), in extended precision: in double, rounding would say.

    Not for the hinge loss, which has kinks.
    """
    X, y, w = X.astype(np.longdouble), y.astype(np.longdouble), w.astype(np.longdouble)
    Z = X @ w.T
    if isinstance(case.loss, Softmax):
        slopes = np.exp(Z - logsumexp(Z, axis=1, keepdims=True))
        slopes[np.arange(y.size), y.astype(int)] -= 1.0
    else:
        slopes = Z - y if isinstance(case.loss, Squared) else -y / (1.0 + np.exp(y * Z))
    g = np.asarray((X.T @ slopes).T) / y.size + case.l2 * w
    return float(np.sum(g * g) / (2.0 * case.l2))


# ---------------------------------------------------------------- peers: functions of a tolerance that return w


def sklearn_peers(case: Case, X: Any, y: np.ndarray) -> dict[str, Any]:
    """Return what scikit-learn has for the loss; its random solver gets a new seed for every call."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    n, seeds = y.size, itertools.count()
    common = {"fit_intercept": False, "max_iter": 100_000}
    C = 1.0 / (case.l2 * n)

    def logistic(tol: float, solver: str) -> np.ndarray:
        w = LogisticRegression(C=C, tol=tol, solver=solver, **common).fit(X, y).coef_
        return w if isinstance(case.loss, Softmax) else w[0]

    def ridge(tol: float, solver: str) -> np.ndarray:
        return Ridge(alpha=case.l2 * n, tol=tol, solver=solver, **common).fit(X, y).coef_

    def svc(tol: float) -> np.ndarray:
        return LinearSVC(C=C, loss="hinge", tol=tol, random_state=next(seeds), **common).fit(X, y).coef_[0]

    if isinstance(case.loss, Hinge):
        return {"LIBLINEAR dual, random (scikit-learn)": svc}
    if isinstance(case.loss, Squared):
        solvers = ("lsqr", "sparse_cg", *(("cholesky",) if X.shape[1] <= 3000 else ()))
        return {f"scikit-learn Ridge {s}": lambda tol, s=s: ridge(tol, s) for s in solvers}
    solvers = ("lbfgs", "newton-cg", *(("newton-cholesky",) if X.shape[1] <= 300 else ()))
    return {f"scikit-learn {s}": lambda tol, s=s: logistic(tol, s) for s in solvers}


def liblinear_peers(case: Case, X: Any, y: np.ndarray) -> dict[str, Any]:
    """Return LIBLINEAR's own package on its own problem object, whose making is not timed."""
    names = {Logistic: {7: "dual, random (-s 7)", 0: "TRON (-s 0)"}, Hinge: {3: "dual, random (-s 3)"}}
    if type(case.loss) not in names:
        return {}
    from liblinear.liblinearutil import problem, train

    prepared = problem(y, sp.csr_matrix(X))
    prepared.set_bias(-1)

    def fit(tol: float, s: int) -> np.ndarray:
        model = train(prepared, f"-s {s} -c {1.0 / (case.l2 * y.size):.17g} -e {tol:g} -q")
        return np.array(model.w[: X.shape[1]]) * model.get_labels()[0]

    return {f"LIBLINEAR {name}": lambda tol, s=s: fit(tol, s) for s, name in names[type(case.loss)].items()}


def setting(fit: Any, suboptimality: Any, goal: float, trials: int) -> tuple[float | None, str]:
    """Loosest tolerance at which every one of so many calls reaches the goal; or None and why."""
    best, begun = np.inf, time.process_time()
    for power in np.arange(0.0, -14.5, -0.5):
        tol, worst = 10.0**power, 0.0
        for _ in range(trials):
            worst = max(worst, suboptimality(fit(tol)))
            if worst > goal or time.process_time() - begun > PATIENCE:
                break
        best = min(best, worst)
        if worst <= goal:
            return tol, f"tol {tol:.2g}"
        if time.process_time() - begun > PATIENCE:
            break
    return None, f"did not reach {goal:g}: best {best:.1e}, last tol {tol:.2g}"


# ---------------------------------------------------------------- cases


def fresh(fed: Federation) -> Federation:
    """Return the federation without what it has computed of its rows."""
    return Federation(fed.X, fed.y, fed.ptr)


def measure(report: Report, case: Case, X: Any, y: np.ndarray) -> None:
    fed, value = Federation(X, y, np.array([0, y.size])), objective(case, X, y)
    exact = Problem(fed, case.loss, l2=case.l2).solve(tol=1e-3 * case.goal)
    report.check(f"{case.label}: value by the package = by NumPy", abs(value(exact.w) - exact.value), 1e-13)
    off = exact.gap if isinstance(case.loss, Hinge) else above(case, X, y, exact.w)
    report.check(f"{case.label}: certified gap of F*", off, 0.3 * case.goal)

    def suboptimality(w: np.ndarray) -> float:
        F = value(w)
        if F < exact.lower - 1e-12:
            raise SystemExit(f"{case.label}: a peer lies below the certified lower bound by {exact.lower - F:.2g}")
        return max(F - exact.value, 0.0) / (1.0 + abs(exact.value))

    notes = {"Problem.solve": "certified"}
    functions: dict[str, Any] = {
        "Problem.solve": lambda: Problem(fresh(fed), case.loss, l2=case.l2).solve(tol=case.goal).w
    }
    report.check(f"{case.label}: Problem.solve", suboptimality(functions["Problem.solve"]()), case.goal)
    for make, package in ((sklearn_peers, "scikit-learn"), (liblinear_peers, "liblinear-official")):
        try:
            peers = make(case, X, y)
        except ImportError as error:
            report.row(case.label, package, None, note=f"not installed: {error}")
            continue
        for name, fit in peers.items():
            tol, notes[name] = setting(fit, suboptimality, case.goal, TRIALS if "random" in name else 1)
            if tol is None:
                report.row(case.label, name, None, note=notes[name])
            else:
                functions[name] = lambda fit=fit, tol=tol: fit(tol)
    times_of(report, case, functions, notes, suboptimality)


def times_of(report: Report, case: Case, functions: dict[str, Any], notes: dict[str, str], suboptimality: Any) -> None:
    gaps: dict[str, list[float]] = {name: [] for name in functions}
    timing = compare(functions, REPEATS, 0.0, 6.0, after=lambda name, w: gaps[name].append(suboptimality(w)))
    times = {}
    for name, t in timing.items():
        missed = sum(gap > case.goal for gap in gaps[name])
        note = f"{notes[name]}, worst gap of timed calls {max(gaps[name]):.1e}"
        note += f", {missed} of {len(gaps[name])} above the goal" if missed else ""
        times[name] = report.row(case.label, name, t, note=note)
    mine = times.pop("Problem.solve")
    if times:
        fastest = min(times, key=times.__getitem__)
        report.bar(f"{case.label}: Problem.solve / {fastest}", mine / times[fastest], case.bar)


def memory(report: Report, case: Case, X: Any, y: np.ndarray) -> None:
    """(Traced peak of a solution + data) / data; what is compiled before does not count."""
    fed = Federation(X, y, np.array([0, y.size]))
    data = fed.y.nbytes + sum(a.nbytes for a in ((X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)))
    tracemalloc.start()
    Problem(fresh(fed), case.loss, l2=case.l2).solve(tol=case.goal)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report.bar(f"{case.label}: (peak memory + data) / data", 1.0 + peak / data, 1.2)


def kept(report: Report, measured: list[str]) -> None:
    """Put before the report what the results have of other cases than those measured."""
    path = RESULTS / "solve.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    names = {case.label for case in CASES} - set(measured)
    for part, name in (("rows", "case"), ("bars", "what"), ("checks", "what")):
        report.body[part][:0] = [row for row in old.get(part, []) if row[name].split(":")[0] in names]


def main() -> None:
    """All cases, or those whose label contains the first argument: the others keep their results."""
    warnings.simplefilter("ignore")  # of tolerances below what a solver can reach; what counts is measured
    report = Report(
        "solve", "Problem.solve and its peers at equal measured gaps, one thread", "CPU ms", 1e3, clock="cpu"
    )
    wanted = [case for case in CASES if len(sys.argv) < 2 or sys.argv[1] in case.label]
    for case in wanted:
        data = rows_of(case.data)
        if data is None:
            report.row(case.label, "all", None, note=f"{case.data}.npz not found in FEDCONVEX_DATA")
            continue
        measure(report, case, *data)
        memory(report, case, *data)
    kept(report, [case.label for case in wanted])
    report.write()


if __name__ == "__main__":
    main()
