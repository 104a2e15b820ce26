"""A whole FedAvg round: 10 of 100 clients, one epoch, n = 20,000, d = 100, logistic loss."""

from __future__ import annotations

import numpy as np
from _reference import drawn, drawn_clients, logistic_epoch
from _timing import Report, compare, one_by_one

from fedconvex import FedAvg, Federation, Logistic, Problem, iterate

K, PER, D, M, STEP = 100, 200, 100, 10, 0.05
MANY = 50  # rounds per timed call


def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K * PER, D))
    y = np.sign(X @ rng.standard_normal(D) + 5.0 * rng.standard_normal(K * PER))
    return X, y


def numpy_rounds(X, y, batch, rounds):
    """Return a call of the same rounds in NumPy, as one would write them."""
    rng, w = np.random.default_rng(0), np.zeros(D)

    def call():
        nonlocal w
        for _ in range(rounds):
            replies = [
                logistic_epoch(X, y, k * PER + rng.permutation(PER), STEP, batch, w.copy())
                for k in rng.choice(K, M, replace=False)
            ]
            w = np.mean(replies, axis=0)

    return call


def fedjax_rounds(X, y, batch, rounds):
    """Return a call of the same rounds in FedJAX, in its own float32."""
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree_util.tree_map  # removed from JAX, still used by FedJAX
    import fedjax

    def loss(params, batch, rng):
        return jnp.mean(jnp.logaddexp(0.0, -batch["y"] * (batch["x"] @ params)))

    parts = {
        str(k): {"x": X[k * PER : (k + 1) * PER].astype(np.float32), "y": y[k * PER : (k + 1) * PER].astype(np.float32)}
        for k in range(K)
    }
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(STEP),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=batch, num_epochs=1),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(fedjax.InMemoryFederatedData(parts), M, seed=0)
    state = algorithm.init(jnp.zeros(D))

    def call():
        nonlocal state
        for _ in range(rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        return np.asarray(state.params)

    return call


def check(report, problem, method, X, y, batch):
    """Three rounds equal NumPy given the same clients and rows."""
    w = np.zeros(D)
    for t, state in iterate(method, problem, rounds=3):
        if t > 0:
            rows = [drawn(problem, 0, t - 1, k, 1, PER) for k in drawn_clients(method, problem, t - 1)[0]]
            w = np.mean([logistic_epoch(X, y, r, STEP, batch, w.copy()) for r in rows], axis=0)
            report.check(f"batch {batch}: round {t} = NumPy", float(np.abs(state.w[0] - w).max()), 1e-12)


def main():
    report = Report("round", "FedAvg round, 10 of 100 clients, one epoch, n = 20,000, d = 100", "ms per round", 1e3)
    X, y = data()
    problem = Problem(Federation(X, y, np.arange(0, K * PER + 1, PER)), Logistic())
    for batch in (20, 1):
        method = FedAvg(step_size=STEP, epochs=1, batch_size=batch, participation=M)
        check(report, problem, method, X, y, batch)
        rounds = one_by_one(method, problem, threads=1)

        def ours(rounds=rounds):
            for _ in range(MANY):
                next(rounds)

        label = f"batch {batch}"
        mine = report.row(label, "fedconvex.iterate", compare({"": ours})[""], MANY)
        if batch == 20:
            report.bar("batch 20: fedconvex.iterate, ms", mine, 0.08)
        peers = {"NumPy": numpy_rounds(X, y, batch, 1)}
        try:
            peers["FedJAX (float32)"] = fedjax_rounds(X, y, batch, 1)
        except Exception as error:
            reason = f"cannot be run: {type(error).__name__}: {str(error)[:80]}"
            report.row(label, "FedJAX (float32)", None, note=reason)
        peers["fedconvex.iterate, between the peers"] = ours
        for name, t in compare(peers, repeats=20, least=0.05).items():
            report.row(label, name, t, MANY if "fedconvex" in name else 1)
    report.write()


if __name__ == "__main__":
    main()
