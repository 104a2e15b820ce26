"""Models and their relationship learned together on HAR: `solve` beside passes over all rows in every round, CPU time.

Both stop at the same certified gap, 1e-6 (1 + P), counted by the same certificate in every tenth round. The peer is the
same alternating direction method as `MultiTaskProblem.solve` had it before rows could sit out: two passes over all rows
in every round, by the same kernel.
"""

from __future__ import annotations

import math

import numpy as np
from _timing import Report, compare, data_folder

from fedconvex import Federation, Hinge
from fedconvex.draws import BATCHES, stream
from fedconvex.families.multitask.balance import Balance
from fedconvex.families.multitask.learned_relation import along
from fedconvex.problems import Covariance, MultiTaskProblem
from fedconvex.solvers.kinked import dual

TOL = 1e-6


def all_rows(problem):
    """Return the value and a lower bound of the minimum, by two passes over all rows in every round."""
    fed, relation, alpha, balance, t = problem.federation, problem.relation, problem.scaled(None), Balance(), 0
    tasks, buffers = (fed.rows, problem.row_labels, fed.ptr, problem.row_norms, problem.c), problem.buffers()
    Z = W = np.zeros(problem.model_shape)
    V, eta, best, lower = problem.images(alpha), 10.0 / problem.weighted_norm, math.inf, -math.inf
    while True:
        if t % 10 == 0:
            V = problem.images(alpha)
            value, gap = problem.certificate(along(problem, Z) * Z, V, problem.conjugates(alpha))
            best, lower = min(best, value), max(lower, value - gap)
            if best - lower <= TOL * (1.0 + best):
                return best, lower
        keys = np.array([stream(0, 0, t, k, BATCHES) for k in fed.ids], dtype=np.uint64)
        before = V.copy()
        dual.proximal_sweeps(problem.row_loss, *tasks, W, eta, 2, keys, alpha, V, *buffers)
        new = relation.proximal(Z + eta * V, eta)
        t += 1
        following, balance = balance.step(t, eta, W + eta * (V - before), new, Z, V)
        W, Z, eta = 2.0 * new - Z, new, following


def ours(problem):
    """Return the same from `solve`."""
    found = problem.solve(TOL)
    return found.value, found.lower


def main():
    title = "Models and their relationship together, HAR, to a relative gap of 1e-6"
    report = Report("joint", title, "s", 1.0, clock="cpu")
    path = data_folder() / "har21.npz"
    if not path.exists():
        report.row("HAR", "fedconvex", None, note="har21.npz is absent")
        return
    with np.load(path, allow_pickle=False) as z:
        fed = Federation.from_arrays(z["X"].astype(float), z["y"].astype(float), z["client"].astype(int))
    train, _ = fed.split(0.25, seed=0)
    for lam in (1.0, 0.1, 0.01, 0.001, 0.0001):
        problem = MultiTaskProblem(train, Hinge(), Covariance(lam / 2.0), normalisation="mean")
        answers = [solve(problem) for solve in (ours, all_rows)]
        value, lower = np.min(answers, axis=0)[0], np.max(answers, axis=0)[1]
        report.check(f"lam {lam:g}: lower bounds above values", lower - value, 0.0)
        report.check(f"lam {lam:g}: gaps", max(v - b for v, b in answers) / (1.0 + value), TOL * 1.0001)
        tests = {"solve": lambda p=problem: ours(p), "all rows in every round": lambda p=problem: all_rows(p)}
        timing = compare(tests, repeats=3, limit=1.0)
        spent = {who: report.row(f"lam = {lam:g}", who, t) for who, t in timing.items()}
        ratio = spent["solve"] / spent["all rows in every round"]
        report.bar(f"lam = {lam:g}: time / all rows in every round", ratio, 0.2)
    report.write()


if __name__ == "__main__":
    main()
