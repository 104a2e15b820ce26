"""Rounds of AgnosticFedAvg over those of FedAvg, and the exact minimax solution over SLSQP given the same functions.

Rounds: 10 of 100 clients, n = 20,000, d = 100, logistic loss, five domains; the same sampling and the same batches.
AgnosticFedAvg does what FedAvg does and sums the losses of all rows of its clients at the start of every round.

Minimax: n = 20,000, d = 50, p = 10, logistic loss, l2 = 1e-3. SLSQP minimises t subject to F_i(w) <= t with values and
gradients of all domains from the package's kernel; both are held against the package's certificate.

CPU time, one thread.
"""

from __future__ import annotations

import numpy as np
from _timing import Report, compare, one_by_one
from scipy.optimize import minimize

from fedconvex import FedAvg, Federation, Logistic, Problem, iterate
from fedconvex.kernels.row_losses import values_gradients_of
from fedconvex.methods import AgnosticFedAvg
from fedconvex.solvers.minimax.agnostic import solve_minimax

K, PER, D, M = 100, 200, 100, 10  # clients, rows of each, features, participants
MINIMAX = 10, 50, 20_000  # domains, features, rows
MANY = 50  # rounds per timed call
WORK = {
    "batch 20, one epoch": {"epochs": 1, "batch_size": 20},
    "batch 1, one epoch": {"epochs": 1, "batch_size": 1},
    "full batches, 5 steps": {"local_steps": 5},
}


def rounds(report):
    """Time rounds of both methods in turn."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K * PER, D))
    y = np.sign(X @ rng.standard_normal(D) + 5.0 * rng.standard_normal(K * PER))
    domains = rng.integers(0, 5, K * PER)
    problem = Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), PER), domains=domains), Logistic())
    one = Problem(Federation.from_arrays(X, y, np.repeat(np.arange(K), PER), domains=0 * domains), Logistic())
    for label, work in WORK.items():
        how = {"step_size": 0.05, "participation": M} | work
        methods = {"FedAvg": FedAvg(**how), "AgnosticFedAvg": AgnosticFedAvg(domain_step_size=0.1, **how)}
        ends = [[s.w for _, s in iterate(m, one, rounds=3)][-1] for m in methods.values()]
        report.check(f"{label}: AgnosticFedAvg with one domain = FedAvg", float(np.abs(ends[0] - ends[1]).max()), 0.0)
        calls = {}
        for name, method in methods.items():
            its = one_by_one(method, problem, threads=1)

            def ours(its=its):
                for _ in range(MANY):
                    next(its)

            calls[name] = ours
        timing = compare(calls, repeats=60)
        times = {name: report.row(label, name, t, MANY) for name, t in timing.items()}
        bar = 1.4 if label.startswith("batch 20") else None
        report.bar(f"{label}: AgnosticFedAvg / FedAvg", times["AgnosticFedAvg"] / times["FedAvg"], bar)


def by_slsqp(problem, tol):
    """Return w from SLSQP on t with F_i(w) <= t."""
    p, d = problem.federation.K, problem.size
    everybody = np.arange(p)[None]

    def both(x):
        values, gradients = values_gradients_of(problem, x[None, :d], everybody)
        return values[0], gradients[0]

    constraint = {
        "type": "ineq",
        "fun": lambda x: x[d] - both(x)[0],
        "jac": lambda x: np.column_stack([-both(x)[1], np.ones(p)]),
    }
    start = np.append(np.zeros(d), both(np.zeros(d))[0].max())
    grow = np.append(np.zeros(d), 1.0)
    options = {"maxiter": 500, "ftol": tol}
    found = minimize(lambda x: x[d], start, jac=lambda x: grow, constraints=constraint, method="SLSQP", options=options)
    return found.x[:d]


def minimax(report):
    """Time both solvers in turn, at the same measured gap."""
    rng, (p, d, n) = np.random.default_rng(0), MINIMAX
    X, w = rng.standard_normal((n, d)), rng.standard_normal(d)
    k = np.arange(n) % p
    shift = 0.7 * rng.standard_normal((p, d))
    y = np.sign(np.einsum("ij,ij->i", X, w + shift[k]) + 2.0 * rng.standard_normal(n))
    problem = Problem(Federation.from_arrays(X, y, k), Logistic(), l2=1e-3)
    theirs = by_slsqp(problem, 1e-10)
    mine = solve_minimax(problem)
    everybody = np.arange(p)[None]
    largest = [float(values_gradients_of(problem, v[None], everybody)[0].max()) for v in (mine.w, theirs)]
    report.check("minimax: largest losses", abs(largest[0] - largest[1]), 1e-7)
    calls = {"solve_minimax": lambda: solve_minimax(problem), "SLSQP": lambda: by_slsqp(problem, 1e-10)}
    timing = compare(calls, repeats=20, limit=30.0)
    case = "minimax, n = 20,000, d = 50, p = 10"
    notes = {"solve_minimax": f"certified gap {mine.gap:.1e}", "SLSQP": f"off by {largest[1] - mine.lower:.1e}"}
    times = {name: report.row(case, name, t, note=notes[name]) for name, t in timing.items()}
    report.bar(f"{case}: time / SLSQP", times["solve_minimax"] / times["SLSQP"], 1.1)


def main():
    report = Report("agnostic", "Agnostic learning beside FedAvg and SLSQP", "CPU µs", 1e6, clock="cpu")
    rounds(report)
    minimax(report)
    report.write()


if __name__ == "__main__":
    main()
