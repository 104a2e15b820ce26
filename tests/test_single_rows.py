"""Jobs of single rows side by side: against the steps written out, and alone against among others."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, iterate
from fedconvex.draws import BATCHES, Draws, key_from_seed, stream
from fedconvex.kernels import descent, jobs, single_rows
from fedconvex.kernels.batches import draw_rows
from fedconvex.methods import SCAFFOLD, ClientSGD, Decay, FedProx

R, M, D, ROUND = 9, 10, 3, 4  # more jobs than go side by side


def federation(rng, sparse=False, K=M, d=D, rows=6):
    X = rng.normal(size=(rows * K, d)) * (rng.random((rows * K, d)) < 0.7)
    y = np.where(rng.random(rows * K) < 0.5, 1.0, -1.0)
    return Federation.from_arrays(sp.csr_array(X) if sparse else X, y, np.arange(rows * K) % K)


def by_hand(problem, W, clients, draws, eta, plan, replacement, tilt):
    """The steps of every job, one after the other: models and paths."""
    fed, out, path = problem.federation, np.repeat(W, M, axis=1), {}
    X = fed.X.toarray() if sp.issparse(fed.X) else fed.X
    for r, j in np.ndindex(clients.shape):
        k, (passes, block, _) = clients[r, j], plan[r, j]
        lo, n, w = fed.ptr[k], fed.ptr[k + 1] - fed.ptr[k], out[r, j]
        rows = np.empty(passes * block, np.int64)
        state = np.uint64(stream(draws.key, draws.trajectory[r], draws.round, fed.ids[k], BATCHES))
        draw_rows(state, lo, n, passes, block, replacement, np.empty(n, np.int64), rows)
        for s, i in enumerate(rows):
            a = eta[r, 0, min(s, eta.shape[2] - 1)]
            slope = problem.loss.slope(X[i] @ w, fed.y[i])
            w -= a * (slope * X[i] + problem.l2 * w + tilt[r, j])
            path[r, j, s] = w.copy()
    return out, path


@pytest.mark.compiled_if_slow
@pytest.mark.parametrize("block", ["one row", "passes", "with replacement"])
def test_steps_are_those_of_the_formula(block, rng):
    """Different numbers of steps, none among them; step sizes by trajectory and by step; with and without a tilt."""
    for sparse, tilted in ((False, False), (False, True), (True, True)):
        problem = Problem(federation(rng, sparse), Logistic(), l2=0.3)
        draws = Draws(key_from_seed(3), np.arange(R) + 5, ROUND)
        clients = np.array([rng.permutation(M) for _ in range(R)])
        plan = np.ones((R, M, 3), np.int64)
        plan[..., 0], plan[..., 1] = rng.integers(0, 4, (R, M)), 1 if block == "one row" else 6
        eta, W = rng.uniform(0.1, 0.3, (R, 1, 7)), rng.normal(size=(R, 1, D))
        tilt = rng.normal(size=(R, M, D)) * (rng.random((R, M, 1)) < 0.5) * tilted
        path, again = np.full((R, M, 18, D), np.nan), block == "with replacement"
        out = jobs.run(
            descent.rules(ClientSGD(), 1), problem, 0.3, W, clients, draws, eta, plan, again, path=path,
            tilt=tilt if tilted else jobs.NO_TILT,
        )  # fmt: skip
        expected, steps = by_hand(problem, W, clients, draws, eta, plan, again, tilt)
        np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-13)
        for at, w in steps.items():
            np.testing.assert_allclose(path[at], w, rtol=1e-13, atol=1e-13)
        assert np.isfinite(path).all(axis=3).sum() == len(steps)


def test_what_goes_side_by_side_is_bounded():
    """Long models, lists and visits go side by side in smaller numbers, or alone; one job always fits."""
    assert single_rows.side_by_side(10**6, 2, 0, 80.0) == 72
    assert single_rows.side_by_side(5, 2, 0, 80.0) == 5
    assert single_rows.side_by_side(100, 10**6, 0, 80.0) == 1
    assert single_rows.side_by_side(100, 2, 400, 80.0) == 10
    assert single_rows.side_by_side(100, 2, 0, 2.0**16) == 4
    assert single_rows.side_by_side(100, 2, 10**6, 1e9) == 1
    *_, lists, pool = single_rows.room(8, 30, 50)
    assert (lists.shape, pool.shape) == ((8, 30), (50,))


@pytest.mark.anywhere
@pytest.mark.parametrize("d", [2, 100, 1000])
def test_a_job_is_never_side_by_side_with_nobody(d, rng):
    """Too few for the caches go one by one, whatever is added to their gradients: 10 jobs, 200 rows of 100 numbers."""
    fed = federation(rng, d=d, rows=200)
    for number in (1, 2, 3, 4, 10, 1000):
        for passes, block in ((5, 1), (1, 200), (20, 200)):
            together, room = jobs.room_together(fed, False, number, d, 200, passes * block, passes, block)
            assert together == 0 or single_rows.FEW < together <= number
            assert len(room) == (5 if together else 0)


METHODS = {
    "steps": FedAvg(step_size=0.1, local_steps=5, batch_size=1, participation=7),
    "two clients": FedAvg(step_size=0.1, local_steps=5, batch_size=1, participation=2),
    "epochs": FedAvg(step_size=Decay(1.0, 50.0, by_round=True), epochs=2, batch_size=1),
    "replacement": FedAvg(step_size=Decay(1.0, 50.0), local_steps=7, batch_size=1, replacement=True, shadow=True),
    "scaffold": SCAFFOLD(step_size=0.1, local_steps=4, batch_size=1, participation=3),
    "proximal": FedProx(proximal_mu=0.5, step_size=0.1, local_steps=4, batch_size=1),
    "two proximal": FedProx(proximal_mu=0.5, step_size=0.1, epochs=2, batch_size=1, participation=2),
}


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("sparse", [False, True])
def test_a_job_does_not_depend_on_its_neighbours(sparse, rng):
    """Compiled, vector units take eight jobs, four or one: the first trajectory alone, of three, of forty; threads."""
    for d in (2, 5, 11):
        fed = federation(rng, sparse, K=20, d=d)
        for problem in (Problem(fed, Logistic()), *(() if sparse else (Problem(fed, Squared(), l2=0.1),))):
            for method in METHODS.values():
                ends = []
                for trajectories, threads in ((1, 1), (3, 1), (40, 1), (40, 3)):
                    *_, last = iterate(method, problem, rounds=3, seed=1, trajectories=trajectories, threads=threads)
                    ends.append(last[1].w)
                for w in ends[:2]:
                    assert np.array_equal(ends[2][: len(w)], w)
                assert np.array_equal(ends[2], ends[3])
