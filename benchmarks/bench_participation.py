"""A round with 100 sampled clients out of a thousand and out of a million: it must cost what the sample costs.

The clients hold 10 rows of 10 features each, so a million of them hold 800 MB and a sample of them is never in cache.
Three states of the cache tell that apart from work that grows with K: the same round again and again (its rows are in
cache), ordinary rounds through `iterate`, and ordinary rounds after the caches have been emptied.
"""

from __future__ import annotations

import gc
import time

import numpy as np
from _timing import Report, compare, one_by_one, summary

from fedconvex import FedAvg, Federation, Logistic, Problem
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants

PER, D, M, MANY = 10, 10, 100, 50
SIZES = 1_000, 1_000_000  # clients
JUNK, REPEATS = 16_000_000, 300  # numbers that empty the caches; rounds timed so


def problem_of(K):
    """Return a logistic problem with K clients."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K * PER, D))
    y = np.where(X[:, 0] + rng.standard_normal(K * PER) > 0.0, 1.0, -1.0)
    return Problem(Federation(X, y, np.arange(0, K * PER + 1, PER)), Logistic())


def same_round(method, problem):
    """Return a call of one fixed round, by the method's own four calls."""
    state = method.init(problem, np.zeros((1, D)))
    draws = Draws(key_from_seed(0), np.arange(1), 0)

    def call():
        clients, weights = participants(method, problem, draws)
        reply, _ = method.local(problem, method.broadcast(state), clients, None, draws)
        return method.aggregate(state, clients, weights, reply)

    return call


def emptied(rounds, junk):
    """Time single rounds, each after a walk through memory larger than the caches."""
    pairs = []
    for _ in range(REPEATS):
        junk += 1.0
        wall, cpu = time.perf_counter(), time.process_time()
        next(rounds)
        pairs.append((time.perf_counter() - wall, time.process_time() - cpu))
    return summary(pairs)


def main():
    report = Report("participation", f"Round with {M} sampled clients of {PER} rows, d = {D}", "µs per round", 1e6)
    method = FedAvg(step_size=0.1, epochs=1, batch_size=5, participation=M)
    junk, times = np.zeros(JUNK), {}
    for K in SIZES:
        problem = problem_of(K)
        rounds = one_by_one(method, problem, threads=1)

        def ours(rounds=rounds):
            for _ in range(MANY):
                next(rounds)

        timing = compare({"same": same_round(method, problem), "iterate": ours})
        label = f"K = {K:,}"
        times["the same round again", K] = report.row(label, "the same round again", timing["same"])
        times["iterate", K] = report.row(label, "iterate", timing["iterate"], MANY)
        cold = emptied(rounds, junk)
        report.row(label, "iterate, caches emptied", cold)
        times["iterate, caches emptied", K] = cold["median"] * 1e6  # the minimum would be the luckiest sample
        del problem, rounds, ours
        gc.collect()
    for who in ("the same round again", "iterate", "iterate, caches emptied"):
        bar = None if who == "iterate" else 1.25
        few, many = SIZES
        report.bar(f"{who}: K = {many:,} / K = {few:,}", times[who, many] / times[who, few], bar)
    report.write()


if __name__ == "__main__":
    main()
