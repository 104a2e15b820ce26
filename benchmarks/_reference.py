"""Plain NumPy FedAvg, and the rows that the package draws, so that both can be given the same ones."""

from __future__ import annotations

import numpy as np

from fedconvex.draws import BATCHES, Draws, key_from_seed, stream
from fedconvex.driver import participants
from fedconvex.kernels.batches import draw_rows


def drawn_clients(method, problem, round_, seed=0, trajectories=1):
    """Clients (R, m) of a round."""
    draws = Draws(key_from_seed(seed), np.arange(trajectories), round_)
    return participants(method, problem, draws)[0]


def drawn(problem, trajectory, round_, k, passes, block, seed=0):
    """Rows (passes * block,) that client k works through in a round without replacement."""
    fed = problem.federation
    lo, n = int(fed.ptr[k]), int(fed.sizes[k])
    state = np.uint64(stream(key_from_seed(seed), trajectory, round_, int(fed.ids[k]), BATCHES))
    rows = np.empty(passes * block, np.int64)
    draw_rows(state, lo, n, passes, block, False, np.empty(n, np.int64), rows)
    return rows


def logistic_epoch(X, y, rows, step, batch, w):
    """One pass over rows from w, in place."""
    for s in range(0, rows.size, batch):
        part = rows[s : s + batch]
        A, t = X[part], y[part]
        e = np.exp(-t * (A @ w))
        w += (step / part.size) * (A.T @ (t * e / (1.0 + e)))
    return w
