"""Lasso and l1-penalised logistic regression: Problem.solve and Problem.path against scikit-learn, celer and skglm.

Dense 2,000 x 10,000 with correlated neighbours, and sparse 20,000 x 40,000 with 80 entries a row; 100 true
coefficients; the strength is a twentieth of the least one at which the model is 0, or 20 strengths down to a hundredth
of it. Peers get columns in the order they like (Fortran, CSC), which is not timed. A peer's tolerance is tightened by
factors of 10 until the measured (F - F*)/(1 + F*) is at most 1e-6, and that setting is timed. celer and skglm are run
where they are installed. ``python bench_penalties.py small`` takes a tenth of all sizes.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import scipy.sparse as sp
from _timing import Report, compare

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.penalties import L1
from fedconvex.solvers.penalty_path import largest_strength

GOAL, BAR = 1e-6, 1.2


def rows(kind, part, rng):
    """X in the layout of a federation."""
    if kind == "dense":
        X = rng.normal(size=(2_000 // part, 10_000 // part))
        X[:, 1:] = 0.5 * X[:, :-1] + np.sqrt(0.75) * X[:, 1:]
        return X
    n, d, m = 20_000 // part, 40_000 // part, 80
    places = (np.repeat(np.arange(n), m), rng.integers(0, d, n * m))
    return sp.csr_matrix((rng.normal(size=n * m), places), shape=(n, d))


def peers_of(task, X, y):
    """Functions of (strength, tolerance, start) that return coefficients, by name."""
    n = y.size
    if task == "lasso":
        from sklearn.linear_model import Lasso

        yield "scikit-learn", lambda a, t: Lasso(alpha=a, fit_intercept=False, tol=t, max_iter=10**6).fit(X, y).coef_
    else:
        from sklearn.linear_model import LogisticRegression

        options = {"l1_ratio": 1.0, "solver": "liblinear", "fit_intercept": False, "max_iter": 10**5}
        yield "scikit-learn", lambda a, t: LogisticRegression(C=1.0 / (a * n), tol=t, **options).fit(X, y).coef_[0]
    try:
        import celer

        if task == "lasso":
            yield "celer", lambda a, t: celer.Lasso(alpha=a, fit_intercept=False, tol=t).fit(X, y).coef_
        else:
            make = celer.LogisticRegression
            yield "celer", lambda a, t: make(C=1.0 / (a * n), fit_intercept=False, tol=t).fit(X, y).coef_[0]
    except ImportError:
        pass
    try:
        import skglm

        own = skglm.Lasso if task == "lasso" else skglm.SparseLogisticRegression
        yield "skglm", lambda a, t: np.ravel(own(alpha=a, fit_intercept=False, tol=t).fit(X, y).coef_)
    except ImportError:
        pass


def setting(fit, strengths, measured):
    """Return the loosest tolerance, a power of ten, that reaches the goal at every strength, or None."""
    for tol in 10.0 ** -np.arange(2.0, 13.0):
        if all(measured(a, fit(a, tol)) <= GOAL for a in strengths):
            return float(tol)
    return None


def case(report, kind, task, part):
    rng = np.random.default_rng(0)
    X = rows(kind, part, rng)
    n, d = X.shape
    true = np.zeros(d)
    true[rng.choice(d, 100 // part, replace=False)] = rng.normal(size=100 // part)
    z = X @ true
    y = z + 0.3 * z.std() * rng.normal(size=n)
    y, loss = (y, Squared()) if task == "lasso" else (np.where(y > 0.0, 1.0, -1.0), Logistic())
    problem = Problem(Federation(X, y, np.array([0, n])), loss, penalty=L1(1.0))
    top, other = largest_strength(problem), X.tocsc() if sp.issparse(X) else np.asfortranarray(X)

    def value(a, w):  # by NumPy, not by the package
        scores = X @ w
        losses = 0.5 * (scores - y) ** 2 if task == "lasso" else np.logaddexp(0.0, -y * scores)
        return float(np.mean(losses)) + a * float(np.abs(w).sum())

    for label, strengths in (("one", [top / 20.0]), ("path of 20", list(top * 0.01 ** np.linspace(0.0, 1.0, 20)))):
        best = {a: problem.with_penalty(L1(a)).solve(tol=1e-10).value for a in strengths}
        name = f"{kind} {task}, {label}"

        def measured(a, w, best=best):
            return (value(a, w) - best[a]) / (1.0 + abs(best[a]))

        solutions = problem.path(strengths, tol=GOAL)
        off = max(measured(a, s.w) for a, s in zip(strengths, solutions.solutions, strict=True))
        report.check(f"{name}: (F - F*)/(1 + F*) of fedconvex", off, GOAL)
        functions = {"fedconvex": lambda strengths=strengths: problem.path(strengths, tol=GOAL)}
        for who, fit in peers_of(task, other, y):
            tol = setting(fit, strengths, measured)
            if tol is None:
                report.row(name, who, None, note="did not reach the goal")
                continue
            functions[who] = lambda fit=fit, tol=tol, strengths=strengths: [fit(a, tol) for a in strengths]
        timing = compare(functions, 7, least=0.0, limit=120.0)
        times = {who: report.row(name, who, t) for who, t in timing.items()}
        mine = times.pop("fedconvex")
        fastest = min(times, key=times.__getitem__)
        report.bar(f"{name}: fedconvex / fastest peer ({fastest})", mine / times[fastest], BAR)


def main():
    warnings.simplefilter("ignore")
    part = 10 if sys.argv[1:] == ["small"] else 1
    report = Report("penalties", "Lasso and sparse logistic regression to a relative gap of 1e-6", "s", 1.0, "cpu")
    for kind in ("dense", "sparse"):
        for task in ("lasso", "logistic"):
            case(report, kind, task, part)
    if part == 1:
        report.write()


if __name__ == "__main__":
    main()
