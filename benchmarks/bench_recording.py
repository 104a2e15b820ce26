"""What recording costs beside the run: 256 trajectories, 20 clients of 100 rows, 5 local steps, batch 1."""

from __future__ import annotations

import numpy as np
from _timing import Report, compare

from fedconvex import FedAvg, Logistic, Problem, Squared, iterate, run
from fedconvex.datasets import linear_federation, logistic_federation

K, PER, TAU, STEP, MANY, ROUNDS = 20, 100, 5, 0.05, 256, 20
CASES = (
    ("squared", Squared(), linear_federation, (1.3, None)),
    ("logistic", Logistic(), logistic_federation, (2.0, 4.0)),
)


def direct(problem, W):
    """Mean over the rows in NumPy, for problems of equal client sizes."""
    Z, y = problem.federation.X @ W.T, problem.federation.y[:, None]
    squared = isinstance(problem.loss, Squared)
    values = 0.5 * (Z - y) ** 2 if squared else np.logaddexp(0.0, -y * Z)
    return values.mean(axis=0) + 0.5 * problem.l2 * (W**2).sum(axis=1)


def main():
    """Measure CPU time of runs with and without recording every round."""
    title = f"Recording {MANY} trajectories: {K} clients, {PER} rows each, {TAU} local steps, batch 1"
    report = Report("recording", title, "µs per trajectory and round", 1e6, clock="cpu")
    for name, loss, federation, bars in CASES:
        for d in (2, 10):
            fed = federation(n_clients=K, n_features=d, rows_per_client=PER, seed=0).federation
            problem = Problem(fed, loss, l2=0.01)
            W = np.random.default_rng(0).normal(size=(MANY, d))
            off = np.abs(problem.measure(W).value / direct(problem, W) - 1.0).max()
            report.check(f"{name}, d = {d}: recorded value = NumPy", float(off), 1e-13)
            for (who, L), bar in zip((("everyone", None), ("7 of 20", 7)), bars, strict=True):
                method = FedAvg(step_size=STEP, local_steps=TAU, batch_size=1, participation=L)

                def bare(method=method, problem=problem):
                    for _ in iterate(method, problem, rounds=ROUNDS, trajectories=MANY, threads=1):
                        pass

                def recorded(method=method, problem=problem):
                    run(method, problem, rounds=ROUNDS, trajectories=MANY, threads=1, tol=0.0)

                case, times = f"{name}, d = {d}, {who}", compare({"run": bare, "run, recorded": recorded}, repeats=15)
                cost = [report.row(case, what, t, MANY * ROUNDS) for what, t in times.items()]
                report.bar(f"{case}: recording / run", cost[1] / cost[0] - 1.0, bar)
    report.write()


if __name__ == "__main__":
    main()
