"""Many small independent runs at once: 7 of 20 clients, 100 rows each, 5 local steps, batch 1, squared loss."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from _reference import drawn, drawn_clients
from _timing import Report, compare

from fedconvex import FedAvg, Problem, Squared, iterate, run
from fedconvex.datasets import linear_federation
from fedconvex.draws import key_from_seed

K, L, PER, TAU, STEP, MANY = 20, 7, 100, 5, 0.05, 256
C_KNOWN = {2: 0.12, 10: 0.45}  # µs of such a program in C on another machine
C_BAR, JAX_BAR, ONE_BAR = 1.1, 0.125, 0.3  # the last in µs
WARM, LONG = 8192, 20  # rounds after which blocks of rounds are no longer; how many times as many a whole run has


def numpy_round(X, y, W, clients, rows):
    """One round of R trajectories, W (R, d), with clients (R, L) and rows (R, L, tau) given: W after it."""
    V = np.repeat(W[:, None, :], clients.shape[1], axis=1)
    for s in range(rows.shape[2]):
        A = X[rows[:, :, s]]
        residual = (A * V).sum(axis=2) - y[rows[:, :, s]]
        V -= STEP * residual[..., None] * A
    return V.mean(axis=1)


def numpy_rounds(X, y, R, rounds):
    """Return a call of rounds of R trajectories in NumPy, all at once, with its own draws."""
    rng, W = np.random.default_rng(0), np.zeros((R, X.shape[1]))

    def call():
        nonlocal W
        for _ in range(rounds):
            if R == 1:
                clients = rng.choice(K, L, replace=False)[None]
            else:
                clients = np.argpartition(rng.random((R, K)), L, axis=1)[:, :L]
            rows = clients[:, :, None] * PER + rng.integers(0, PER, (R, L, TAU))
            W = numpy_round(X, y, W, clients, rows)

    return call


def jax_rounds(X, y, R, rounds):
    """Return a call of rounds of R trajectories in JAX: a scan, rbg keys, clients sampled by ranks; in float64."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    X, y = jnp.asarray(X), jnp.asarray(y)

    def step(V, rows):
        A = X[rows]
        return V - STEP * ((A * V).sum(axis=2) - y[rows])[..., None] * A, None

    def one(W, key):
        who, which = jax.random.split(key)
        u = jax.random.uniform(who, (R, K))
        ranks = (u[:, :, None] > u[:, None, :]).sum(axis=2)
        clients = ((ranks[:, None, :] == jnp.arange(L)[:, None]) * jnp.arange(K)).sum(axis=2)
        rows = clients * PER + jax.random.randint(which, (TAU, R, L), 0, PER)
        return jax.lax.scan(step, jnp.repeat(W[:, None], L, axis=1), rows)[0].mean(axis=1), None

    many = jax.jit(lambda W, key: jax.lax.scan(one, W, jax.random.split(key, rounds))[0])
    W, key = jnp.zeros((R, X.shape[1])), jax.random.key(0, impl="rbg")
    return lambda: many(W, key).block_until_ready()


def c_rounds(folder):
    """Compile `lanes.c`: a function of (problem, R, first, rounds, W) that runs its rounds, W (R, d) in place."""
    library = folder / "lanes.so"
    command = ["gcc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(Path(__file__).with_name("lanes.c"))], check=True)
    run, pointer, whole = ctypes.CDLL(str(library)).run_rounds, ctypes.c_void_p, ctypes.c_int64
    run.argtypes = [pointer] * 2 + [whole] * 3 + [pointer] * 2 + [whole] * 2
    run.argtypes += [ctypes.c_double, ctypes.c_uint64, *[whole] * 3, pointer]
    run.restype = None

    def call(problem, R, first, rounds, W):
        fed = problem.federation
        ids, starts = fed.ids[fed.by_key], fed.ptr[fed.by_key]
        arrays = [a.ctypes.data for a in (fed.X, fed.y, ids, starts, W)]
        given = *arrays[:2], K, fed.d, PER, *arrays[2:4], L, TAU, STEP, int(key_from_seed(0)), R, first, rounds
        run(*given, arrays[4])

    return call


def python_rounds(X, y, rounds):
    """Return a call of rounds of one trajectory in plain Python over lists."""
    rng, data, w = random.Random(0), [(*x, t) for x, t in zip(X.tolist(), y.tolist(), strict=True)], (0.0, 0.0)

    def call():
        nonlocal w
        for _ in range(rounds):
            a = b = 0.0
            for k in rng.sample(range(K), L):
                u, v = w
                for _ in range(TAU):
                    p, q, t = data[k * PER + int(rng.random() * PER)]
                    c = STEP * (p * u + q * v - t)
                    u, v = u - c * p, v - c * q
                a, b = a + u, b + v
            w = a / L, b / L

    return call


def check(report, problem, method, in_c):
    """Three rounds of four trajectories equal NumPy given the same clients and rows, and C with the same draws."""
    X, y, d = problem.federation.X, problem.federation.y, problem.federation.d
    W, V = np.zeros((4, d)), np.zeros((4, d))
    for t, state in iterate(method, problem, rounds=3, trajectories=4):
        if t > 0:
            clients = drawn_clients(method, problem, t - 1, trajectories=4)
            rows = np.array([[drawn(problem, r, t - 1, k, TAU, 1) for k in clients[r]] for r in range(4)])
            W = numpy_round(X, y, W, clients, rows)
            report.check(f"d = {d}: round {t} = NumPy", float(np.abs(state.w - W).max()), 1e-12)
            if in_c is not None:
                in_c(problem, 4, t - 1, 1, V)
                report.check(f"d = {d}: round {t} = C", float(np.abs(state.w - V).max()), 1e-12)


def case(report, d, R, rounds, in_c):
    """Time the package and its peers on R trajectories with d features."""
    federation = linear_federation(n_clients=K, n_features=d, rows_per_client=PER, seed=0).federation
    X, y, problem = federation.X, federation.y, Problem(federation, Squared())
    method = FedAvg(step_size=STEP, local_steps=TAU, batch_size=1, participation=L)
    check(report, problem, method, in_c)
    loop, slow = iterate(method, problem, trajectories=R, threads=1), max(1, rounds // 20)
    many = LONG * rounds  # so that a sample is of many blocks of rounds computed together
    for _ in range(WARM):
        next(loop)

    def ours():
        for _ in range(many):
            next(loop)

    def whole():
        run(method, problem, rounds=many, trajectories=R, threads=1, tol=0.0, record_every=many)

    calls = {
        "fedconvex.iterate": (ours, many),
        "fedconvex.run, from its start": (whole, many),
        "NumPy, all trajectories at once": (numpy_rounds(X, y, R, slow), slow),
    }
    if R == 1 and d == 2:
        calls["plain Python"] = python_rounds(X, y, slow), slow
    if in_c is not None:
        W = np.zeros((R, d))
        calls["C, clients in SIMD lanes"] = (lambda: in_c(problem, R, 0, rounds, W)), rounds
    label = f"{R} {'trajectories' if R > 1 else 'trajectory'}, d = {d}"
    try:
        calls["JAX, scan"] = jax_rounds(X, y, R, rounds), rounds
        calls["JAX, scan"][0]()
    except Exception as error:
        calls.pop("JAX, scan", None)
        report.row(label, "JAX, scan", None, note=f"cannot be run: {type(error).__name__}: {str(error)[:60]}")
    timing = compare({name: call for name, (call, _) in calls.items()})
    return label, {name: report.row(label, name, t, R * calls[name][1]) for name, t in timing.items()}


def main():
    title = f"Monte Carlo: {L} of {K} clients, {PER} rows each, {TAU} local steps, batch 1, squared loss"
    report = Report("trajectories", title, "µs per trajectory and round", 1e6, clock="cpu")
    with tempfile.TemporaryDirectory() as folder:
        in_c = c_rounds(Path(folder)) if shutil.which("gcc") else None
        if in_c is None:
            report.row("all", "C, clients in SIMD lanes", None, note="gcc is not installed")
        for d, R, rounds in ((2, 1, 1024), (2, MANY, 180), (10, MANY, 180)):
            label, us = case(report, d, R, rounds, in_c)
            mine, c, jax = (us.get(name) for name in ("fedconvex.iterate", "C, clients in SIMD lanes", "JAX, scan"))
            if R == 1:
                report.bar(f"{label}: fedconvex.run, µs", us["fedconvex.run, from its start"], ONE_BAR)
            elif c:
                report.bar(f"{label}: fedconvex.iterate / C", mine / c, C_BAR)
                report.bar(f"{label}: fedconvex.iterate / {C_KNOWN[d]} µs of C on another machine", mine / C_KNOWN[d])
            if jax:
                report.bar(f"{label}: fedconvex.iterate / JAX", mine / jax, 1.0 if R == 1 else JAX_BAR)
    report.write()


if __name__ == "__main__":
    main()
