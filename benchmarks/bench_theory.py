"""The theory laboratory: Dynamic FedAvg by Monte Carlo and exactly, 7 of 20 agents, d = 10, 100 rows each.

Programs: the package, NumPy over all trajectories at once, a NumPy loop for one trajectory, and a loop that lets
scikit-learn's SGDRegressor.partial_fit do the local steps. The latter takes its rows one by one, so it is the same
algorithm for B_k = 1 only, and joins that case only. Ratios are of medians: the programs take turns.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from _timing import Report, compare

from fedconvex import Problem, Squared, iterate
from fedconvex.methods import DynamicFedAvg
from fedconvex.papers.dynamic_msd import K, L, agents
from fedconvex.theory.moments import Moments

MU, ROUNDS, MANY = 0.05, 100, 256
PILOT, WITHIN = 1024, 0.01  # runs that tell the spread; relative error that Monte Carlo is to have


def package(problem, E, B, R):
    """Return a call that gives (R, d) models after the rounds; each call has a seed of its own."""
    method, seed = DynamicFedAvg(step_size=MU, local_steps=E, batch_size=B, participation=L), iter(range(10**9))

    def call(rounds=ROUNDS):
        runs = iterate(method, problem, rounds=rounds, trajectories=R, seed=next(seed), threads=1)
        return deque(runs, maxlen=1)[0][1].w

    return call


def numpy_loop(X, y, E, B):
    """Return a call for one trajectory in NumPy."""
    rng, (rows, d) = np.random.default_rng(0), X.shape[1:]

    def call(rounds=ROUNDS):
        w = np.zeros(d)
        for _ in range(rounds):
            total = np.zeros(d)
            for k in rng.permutation(K)[:L]:
                v, a = w, MU / E[k] / B[k]
                for _ in range(E[k]):
                    if B[k] == 1:
                        i = rng.integers(rows)
                        x = X[k, i]
                        v = v - a * (x @ v - y[k, i]) * x
                    else:
                        batch = rng.permutation(rows)[: B[k]]
                        A = X[k, batch]
                        v = v - a * ((A @ v - y[k, batch]) @ A)
                total += v
            w = total / L
        return w[None]

    return call


def numpy_all(X, y, E, B, R):
    """Return a call for R trajectories at once in NumPy: agents that have done their E_k steps get steps of zero."""
    rng, (rows, d) = np.random.default_rng(1), X.shape[1:]
    most, width = int(E.max()), int(B.max())
    steps = np.where(np.arange(most)[:, None] < E, MU / E / B, 0.0)  # (most, K)
    inside = (np.arange(width) < B[:, None]).astype(float)  # (K, width)

    def batches(shape):
        """Different rows below `rows`, Floyd's method, (*shape, width)."""
        out = np.empty((*shape, width), dtype=np.int64)
        for j in range(width):
            pick = rng.integers(0, rows - width + j + 1, shape)
            taken = (out[..., :j] == pick[..., None]).any(axis=-1)
            out[..., j] = np.where(taken, rows - width + j, pick)
        return rng.permuted(out, axis=-1) if width > 1 else out  # the first B_k of them are a sample too

    def call(rounds=ROUNDS):
        W = np.zeros((R, d))
        for _ in range(rounds):
            who = np.argpartition(rng.random((R, K)), L, axis=1)[:, :L]
            V = np.repeat(W[:, None, :], L, axis=1)
            for e in range(most):
                batch = batches((R, L))
                A = X[who[..., None], batch]  # (R, L, width, d)
                residual = (np.einsum("rlbd,rld->rlb", A, V) - y[who[..., None], batch]) * inside[who]
                V -= steps[e][who][..., None] * np.einsum("rlb,rlbd->rld", residual, A)
            W = V.mean(axis=1)
        return W

    return call


def scikit_loop(X, y, E):
    """Return a call for one trajectory whose local steps, on one row each, are one partial_fit per agent."""
    from sklearn import config_context
    from sklearn.linear_model import SGDRegressor

    rng, (rows, d) = np.random.default_rng(2), X.shape[1:]
    plain = {"penalty": None, "alpha": 0.0, "learning_rate": "constant", "fit_intercept": False, "shuffle": False}
    local = [SGDRegressor(**plain, eta0=MU / e).partial_fit(X[k, :1], y[k, :1]) for k, e in enumerate(E)]

    def call(rounds=ROUNDS):
        w = np.zeros(d)
        with config_context(assume_finite=True, skip_parameter_validation=True):
            for _ in range(rounds):
                total = np.zeros(d)
                for k in rng.permutation(K)[:L]:
                    batch, agent = rng.integers(0, rows, E[k]), local[k]
                    agent.coef_ = w.copy()
                    total += agent.partial_fit(X[k, batch], y[k, batch]).coef_
                w = total / L
        return w[None]

    return call


def agree(report, name, call, runs, best, exact):
    """Check that the mean square deviation after the rounds is the exact one, within four standard errors."""
    found = np.concatenate([np.sum((call() - best) ** 2, axis=1) for _ in range(runs)])
    error = found.std(ddof=1) / math.sqrt(found.size)
    report.check(f"{name}: MSD of {found.size} runs, standard errors off", abs(found.mean() - exact) / error, 4.0)
    return found.std(ddof=1) / found.mean()


def monte_carlo(report, label, problem, E, B):
    """Time all programs on one setting."""
    fed = problem.federation
    X, y = fed.X.reshape(K, -1, fed.d), fed.y.reshape(K, -1)
    ours, vectors = package(problem, E, B, MANY), numpy_all(X, y, E, B, MANY)
    one, peer = numpy_loop(X, y, E, B), scikit_loop(X, y, E) if B.max() == 1 else None
    best, moments = (
        problem.solve().w,
        Moments(problem, step_size=MU, local_steps=E, batch_size=B, participation=L, step_factor=1.0 / E),
    )
    exact = float(moments.run(ROUNDS).deviation[-1])
    names = {
        f"fedconvex.iterate, {MANY} at once": (ours, 4, 1, ROUNDS),
        f"NumPy, {MANY} at once": (vectors, 2, 1, 10),
        "NumPy loop, one by one": (one, 200, MANY, 10),
        "scikit-learn partial_fit, one by one": (peer, 100, MANY, 5),
    }
    calls, scale = {}, {}
    for name, (call, runs, times, rounds) in names.items():
        if call is not None:
            agree(report, f"{label}, {name}", call, runs, best, exact)
            calls[name], scale[name] = (lambda call=call, rounds=rounds: call(rounds)), times * ROUNDS / rounds
    timing = compare(calls)
    for name, t in timing.items():
        note = "" if scale[name] == 1 else f"timed on 1/{scale[name]:g} of the work"
        report.row(label, name, t, 1.0 / scale[name], note)
    mine, *others = timing
    report.bar(f"{label}: package, trajectory-rounds per second", MANY * ROUNDS / timing[mine]["median"])
    for name in others:
        ratio = timing[name]["median"] * scale[name] / timing[mine]["median"]
        report.bar(f"{label}: {name} / package, medians", ratio)


def exact_against_sampled(report, crowd):
    """Time exact moments, everything built anew, beside Monte Carlo of the same curve to 1 %."""
    E, B, fed = crowd.local_steps, crowd.batch_size, crowd.problem.federation

    def moments(kron):
        def call():
            problem = Problem(fed, Squared(), weights="uniform")
            m = Moments(
                problem, step_size=MU, local_steps=E, batch_size=B, participation=L, step_factor=1.0 / E, kron=kron
            )
            return m.run(ROUNDS).deviation[-1], m.steady_state().deviation

        return call

    by_matrix, by_operator = moments(True)(), moments(False)()
    report.check("exact: matrix = operator", float(np.ptp([by_matrix, by_operator], axis=0).max()), 1e-12)
    pilot, best = package(crowd.problem, E, B, PILOT), crowd.problem.solve().w
    spread = agree(report, "Monte Carlo", pilot, 2, best, by_matrix[0])
    runs = math.ceil((spread / WITHIN) ** 2)
    timing = compare(
        {
            "exact: matrix of a round": moments(True),
            "exact: operator": moments(False),
            f"Monte Carlo to 1 %, {runs} runs": package(crowd.problem, E, B, runs),
        },
        repeats=15,
    )
    label = f"MSD after {ROUNDS} rounds, and its limit"
    for name, t in timing.items():
        note = "the limit would need longer runs" if "Monte" in name else "cold: solution and all tables included"
        report.row(label, name, t, note=note)
    cold, _, sampled = timing.values()
    report.bar("exact moments with the matrix of a round, cold, ms (median)", 1e3 * cold["median"], 1000.0)
    report.bar("Monte Carlo to 1 % / exact, medians", sampled["median"] / cold["median"])
    report.bar("Monte Carlo to 0.1 % (100 times the runs) / exact", 100.0 * sampled["median"] / cold["median"])


def main():
    title = f"Theory laboratory: Dynamic FedAvg, {L} of {K} agents, d = 10, E_k in 1..5, {MANY} x {ROUNDS} rounds"
    report, crowd = Report("theory", title, "ms", 1e3), agents(0)
    monte_carlo(report, "B_k = 1", crowd.problem, crowd.local_steps, np.ones(K, dtype=np.int64))
    monte_carlo(report, "B_k in 1..5", crowd.problem, crowd.local_steps, crowd.batch_size)
    exact_against_sampled(report, crowd)
    report.write()


if __name__ == "__main__":
    main()
