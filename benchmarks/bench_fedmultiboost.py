"""What clients of FedMultiBoost do in a round: the package's kernel, NumPy client by client, NumPy on all rows at once.

A dictionary of 40 classifiers, two sources; everybody takes part and is asked for the 20 classifiers of its domain.
All three answer the same sums, which are compared before anything is timed. CPU time; the kernel's is that of `local`
whole. "Client by client" is the loop that the kernel replaced, "all rows at once" knows that everybody takes part.
"""

from __future__ import annotations

import numpy as np
from _timing import Report, compare

from fedconvex import Federation
from fedconvex.draws import Draws
from fedconvex.families.boosting.worst_domain import phi
from fedconvex.methods import FedMultiBoost
from fedconvex.problems import Dictionary, EnsembleProblem

COLUMNS = 40
CASES = {  # clients, rows of each, trajectories
    "100 clients of 50 rows": (100, 50, 1),
    "1,000 clients of 10 rows": (1000, 10, 1),
    "20 clients of 500 rows": (20, 500, 1),
    "20 clients of 20 rows, 64 trajectories": (20, 20, 64),
}


def ensemble(K, rows):
    """Return a problem over classifiers with values -1 and 1, half of either domain; K clients, every other of each."""
    rng = np.random.default_rng(0)
    n = K * rows
    H = np.where(rng.random((n, COLUMNS)) < 0.5, -1.0, 1.0)
    y = np.where(H[:, 0] + H[:, -1] + rng.standard_normal(n) > 0.0, 1.0, -1.0)
    who = np.repeat(np.arange(K), rows)
    fed = Federation.from_arrays(rng.standard_normal((n, 1)), y, who, who % 2)
    q = rng.dirichlet([1.0, 1.0], n)
    return EnsembleProblem(fed, Dictionary(H, np.arange(COLUMNS) * 2 // COLUMNS), q)


def by_client(problem, w, clients, column):
    """Losses (R, m) and edges (R, m, s), a client and a trajectory at a time."""
    fed, loss, edge = problem.federation, np.empty(clients.shape), np.empty(column.shape)
    for r, j in np.ndindex(clients.shape):
        mine = slice(fed.ptr[clients[r, j]], fed.ptr[clients[r, j] + 1])
        X, y = fed.X[mine], fed.y[mine]
        Phi, slope = phi(problem.base2, y * (X @ w[r]))
        loss[r, j], edge[r, j] = Phi.sum(), (slope * y) @ X[:, column[r, j]]
    return loss, edge


def all_rows(problem, w, clients, column):
    """Return the same where everybody takes part, in order: products of all rows, then sums over clients."""
    fed = problem.federation
    Phi, slope = phi(problem.base2, fed.y[:, None] * (fed.X @ w.T))
    loss, slope = np.add.reduceat(Phi, fed.ptr[:-1], axis=0).T, slope * fed.y[:, None]
    edge = np.empty(column.shape)
    for r in range(len(w)):
        every = np.add.reduceat(fed.X * slope[:, r, None], fed.ptr[:-1], axis=0)
        edge[r] = np.take_along_axis(every, column[r], axis=1)
    return loss, edge


def main():
    report = Report("fedmultiboost", "What the clients of FedMultiBoost do in a round, one thread", "ms", 1e3, "cpu")
    for case, (K, rows, R) in CASES.items():
        problem, method = ensemble(K, rows), FedMultiBoost(step_size=0.1)
        rng = np.random.default_rng(1)
        w, clients = rng.uniform(0.0, 0.05, (R, COLUMNS)), np.tile(np.arange(K), (R, 1))
        message, draws = method.broadcast(method.init(problem, w)), Draws(np.uint64(1), np.arange(R), 0)

        def package(method=method, arguments=(problem, message, clients, None, draws)):
            return method.local(*arguments)[0]

        found = package()
        others = {"NumPy, client by client": by_client, "NumPy, all rows at once": all_rows}
        calls = {"package": package}
        for who, f in others.items():
            loss, edge = f(problem, w, clients, found.column)
            report.check(f"{case}: losses of {who}", float(np.abs(loss / found.loss - 1.0).max()), 1e-12)
            report.check(f"{case}: edges of {who}", float(np.abs(edge - found.edge).max() / rows), 1e-12)
            calls[who] = lambda f=f, arguments=(problem, w, clients, found.column): f(*arguments)
        times = compare(calls, repeats=30, limit=20.0)
        spent = {who: report.row(case, who, t) for who, t in times.items()}
        for who in others:
            report.bar(f"{case}: package / {who}", spent["package"] / spent[who], 1.0)
    report.write()


if __name__ == "__main__":
    main()
