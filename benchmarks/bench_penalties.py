"""Lasso and l1-penalised logistic regression: Problem.path against celer and skglm at equal distance from F*.

Dense 2,000 x 10,000 with correlated neighbours, and sparse 20,000 x 40,000 with 80 entries a row; 100 true
coefficients; the strength is a twentieth of the least one at which the model is 0, or 20 strengths down to a hundredth
of it, warm started by the programs' own paths. What a model lacks, (F - F*)/(1 + F*), is measured by one function, in
NumPy, for all, F* a lower bound that is certified to 1e-9. Every program gets the loosest tolerance of a grid (factors
of sqrt 10) that leaves 1e-6 at every strength; the package is timed at tol=1e-6 as well, where it certifies that.
Programs run in processes of their own, in turn; a call that takes more than 60 seconds of CPU ends its process, and the
row says so. Peers get columns in the order they like (Fortran, CSC), which is not timed; the package finds its CSC at
its first call, which is not timed either. Medians are compared. ``python bench_penalties.py small`` takes a tenth of
all sizes, ``tiny`` a hundredth, and neither writes anything; names of cases (``"dense lasso"``) choose some.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import signal
import sys
import time
import warnings

import numpy as np
import scipy.sparse as sp
from _timing import Report, summary

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.penalties import L1

GOAL, BAR, LIMIT, REPEATS = 1e-6, 1.2, 60.0, 3
EXPONENTS = np.arange(2.0, 10.0, 0.5)
PARTS = {"small": 10, "tiny": 100}  # what sizes are divided by
PATH = 20  # strengths of a path


def rows(kind, part, rng):
    """X in the layout of a federation."""
    if kind == "dense":
        X = rng.normal(size=(2_000 // part, 10_000 // part))
        X[:, 1:] = 0.5 * X[:, :-1] + np.sqrt(0.75) * X[:, 1:]
        return X
    n, d, m = 20_000 // part, 40_000 // part, 80
    places = (np.repeat(np.arange(n), m), rng.integers(0, d, n * m))
    return sp.csr_matrix((rng.normal(size=n * m), places), shape=(n, d))


def value(task, X, y, a, w):
    """F(w)."""
    z = X @ w
    losses = 0.5 * (y - z) ** 2 if task == "lasso" else np.logaddexp(0.0, -y * z)
    return float(losses.mean()) + a * float(np.abs(w).sum())


# ---------------------------------------------------------------- programs: functions of (strengths, tolerance)


def fedconvex(task, X, y):
    fed = Federation(X, y, np.array([0, y.size]))
    loss = Squared() if task == "lasso" else Logistic()
    return lambda strengths, tol: Problem(fed, loss, penalty=L1(1.0)).path(strengths, tol=tol).w


def celer(task, X, y):
    import celer as package

    def path(strengths, tol):
        options = {"tol": tol, "max_iter": 1000}
        if task == "lasso":
            return package.celer_path(X, y, "lasso", alphas=np.array(strengths), **options)[1].T
        return package.celer_path(X, y, "logreg", alphas=np.array(strengths) * y.size, use_PN=True, **options)[1].T

    return path


def skglm(task, X, y):
    import skglm as package

    options = {"fit_intercept": False, "max_iter": 1000}

    def path(strengths, tol):
        if task == "lasso":
            return package.Lasso(tol=tol, **options).path(X, y, np.array(strengths))[1].T
        fit, found = package.SparseLogisticRegression(tol=tol, warm_start=True, **options), []
        for a in strengths:
            found.append(np.ravel(fit.set_params(alpha=a).fit(X, y).coef_).copy())
        return np.array(found)

    return path


def serve(make, task, X, y, pipe):
    """Answer (strengths, tolerance) by wall and CPU seconds and the models, until a call takes too long."""
    warnings.simplefilter("ignore")
    path = make(task, X, y)
    while True:
        strengths, tol = pipe.recv()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)  # whose signal ends the process, whatever it is doing
        wall, cpu = time.perf_counter(), time.process_time()
        W = path(strengths, tol)
        times = time.perf_counter() - wall, time.process_time() - cpu
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        pipe.send((*times, np.asarray(W)))


class Program:
    """A program in a process of its own, which shares the data with this one."""

    def __init__(self, *args):
        self.made_of = args
        fork = multiprocessing.get_context("fork")
        self.pipe, other = fork.Pipe()
        self.process = fork.Process(target=serve, args=(*args, other), daemon=True)
        self.process.start()
        other.close()

    def ask(self, strengths, tol):
        """Return (wall, CPU) seconds and the models, or None where the call took too long or failed."""
        try:
            self.pipe.send((strengths, tol))
            wall, cpu, W = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return (wall, cpu), W

    def end(self):
        """End its process."""
        self.process.kill()
        self.process.join()


def setting(program, strengths, worst):
    """Return the loosest tolerance of the grid that reaches the goal, by bisection, or None; and what was found."""
    low, high, note = 0, len(EXPONENTS), "reached nothing"  # the goal is reached from `high` on
    while low < high:
        mid = (low + high) // 2
        tol = float(10.0 ** -EXPONENTS[mid])
        answer = program.ask(strengths, tol)
        if answer is None:
            return None, f"no answer within {LIMIT:g} s of CPU at tol {tol:.1e}"
        off = worst(answer[1])
        low, high, note = (low, mid, note) if off <= GOAL else (mid + 1, high, f"off by {off:.1e} at tol {tol:.1e}")
    return (float(10.0 ** -EXPONENTS[high]), "") if high < len(EXPONENTS) else (None, note)


def race(report, name, programs, strengths, worst):
    """Settle every program's tolerance, time them in turn, and compare with the fastest peer."""
    settings, samples, off = {}, {}, {}
    for who, program in programs.items():
        tol, note = setting(program, strengths, worst)
        if tol is None:
            report.row(name, who, None, note=note)
        else:
            settings[who] = who, tol
    settings["fedconvex, certified"] = "fedconvex", GOAL
    for _ in range(REPEATS):  # they are warm
        for who, (program, tol) in settings.items():
            answer = programs[program].ask(strengths, tol)
            if answer is not None:
                samples.setdefault(who, []).append(answer[0])
                off[who] = worst(answer[1])
    medians = {}
    for who, pairs in samples.items():
        report.check(f"{name}, {who}: (F - F*)/(1 + F*)", off[who], GOAL)
        timing = summary(pairs)
        report.row(name, who, timing, note=f"tol {settings[who][1]:.1e}, off by {off[who]:.1e}")
        medians[who] = timing["cpu_median"]
    peers = {who: t for who, t in medians.items() if not who.startswith("fedconvex")}
    if peers:
        fastest = min(peers, key=peers.__getitem__)
        report.bar(f"{name}: fedconvex / fastest peer ({fastest})", medians["fedconvex"] / peers[fastest], BAR)
        report.bar(f"{name}: certified / fastest peer", medians["fedconvex, certified"] / peers[fastest])


def case(report, kind, task, part):
    rng = np.random.default_rng(0)
    X = rows(kind, part, rng)
    n, d = X.shape
    true = np.zeros(d)
    true[rng.choice(d, 100 // part, replace=False)] = rng.normal(size=100 // part)
    z = X @ true
    y = z + 0.3 * z.std() * rng.normal(size=n)
    y = y if task == "lasso" else np.where(y > 0.0, 1.0, -1.0)
    top = float(np.abs(X.T @ (y if task == "lasso" else 0.5 * y)).max()) / n
    other = X.tocsc() if sp.issparse(X) else np.asfortranarray(X)
    fed, programs = Federation(X, y, np.array([0, n])), {"fedconvex": Program(fedconvex, task, X, y)}
    for peer in (celer, skglm):
        try:
            importlib.metadata.version(peer.__name__)
            programs[peer.__name__] = Program(peer, task, other, y)
        except importlib.metadata.PackageNotFoundError:
            report.row(f"{kind} {task}", peer.__name__, None, note="not installed")
    problem = Problem(fed, Squared() if task == "lasso" else Logistic(), penalty=L1(1.0))
    for label, strengths in (
        ("one", [top / 20.0]),
        (f"path of {PATH}", list(top * 0.01 ** np.linspace(0.0, 1.0, PATH))),
    ):
        least = [s.lower for s in problem.path(strengths, tol=1e-9).solutions]

        def worst(W, strengths=strengths, least=least):
            parts = zip(strengths, least, W, strict=True)
            return max((value(task, X, y, a, w) - F) / (1.0 + abs(F)) for a, F, w in parts)

        for who, program in list(programs.items()):
            if not program.process.is_alive():  # it took too long before
                programs[who] = Program(*program.made_of)
        race(report, f"{kind} {task}, {label}", programs, strengths, worst)
    for program in programs.values():
        program.end()


def main():
    part = max((PARTS[a] for a in sys.argv[1:] if a in PARTS), default=1)
    chosen = [a for a in sys.argv[1:] if a not in PARTS]
    title = "Lasso and sparse logistic regression to 1e-6 above the minimum, one thread"
    report = Report("penalties", title, "s", 1.0, "cpu")
    for task in ("logistic", "lasso"):
        for kind in ("dense", "sparse"):
            if not chosen or f"{kind} {task}" in chosen:
                case(report, kind, task, part)
                if part == 1 and not chosen:
                    report.write()


if __name__ == "__main__":
    main()
