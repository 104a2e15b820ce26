"""Local steps on rows weighted by domain, and the checks that the agnostic methods share.

A client with n rows, n_i of them of domain i, descends sum_i alpha_i sum_{j of domain i} l_j / beta + (l2/2)‖w‖^2 with
beta = sum_i alpha_i n_i: row j of domain i weighs u_i/n, u_i = n alpha_i/beta. A mini-batch b estimates it without bias
by (1/|b|) sum_{j in b} u_i l_j. Where all u_i are one, the steps are those of `fedconvex.FedAvg`, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.draws import BATCHES, Draws, stream
from fedconvex.kernels import batches, dispatch, jobs
from fedconvex.kernels.cache import borrowing, reduction
from fedconvex.kernels.domains import domains_of, held_by
from fedconvex.methods.parts import local_work, step_sizes
from fedconvex.problems import Problem

__all__ = ["as_domain_step_size", "check_fit", "check_uncertainty_set", "local_steps", "weights_of"]

_IDLE, _PLAIN, _WEIGHTED = 0, 1, 2  # what a client does: nothing (beta = 0), steps of FedAvg, weighted steps


def as_domain_step_size(who: str, x: Any) -> Any:
    """Return a valid step size of the domain weights, as `step_sizes.as_step_size` does."""
    try:
        return step_sizes.as_step_size(who, x)
    except (ValueError, TypeError) as error:
        raise type(error)(str(error).replace(f"{who}.step_size", f"{who}.domain_step_size")) from None


def check_uncertainty_set(who: str, uncertainty_set: Any, ascent: Any) -> None:
    """Raise unless uncertainty_set is a set of domain weights and ascent a step on it."""
    for name, x, attribute, example in (
        ("uncertainty_set", uncertainty_set, "largest", "Simplex()"),
        ("ascent", ascent, "ascend", "ProjectedStep()"),
    ):
        if isinstance(x, type) or not hasattr(x, attribute):
            raise wrong_type(f"{who}.{name}", f"be one of fedconvex.simplex.uncertainty, such as {example}", f"{x!r}")


def check_fit(who: str, method: Any, problem: Problem, R: int) -> None:
    """Raise if step sizes, participation or mini-batches do not fit the problem and its R trajectories."""
    local_work.check_fit(who, method, problem, R)
    step_sizes.check_trajectories(who, getattr(method, "domain_step_size", 1.0), R)


def weights_of(problem: Problem, clients: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return u (R, m, p) and beta (R, m) of clients (R, m), for alpha (R, p) or (R, m, p)."""
    held = held_by(problem.federation, clients, alpha.shape[-1])
    alpha = alpha[:, None] if alpha.ndim == 2 else alpha
    beta = (alpha * held).sum(axis=2)
    n = problem.federation.sizes[clients][:, :, None]
    u = np.where(held > 0, n * alpha / np.where(beta > 0.0, beta, 1.0)[:, :, None], 1.0)
    return u, beta


def local_steps(
    method: Any, problem: Problem, w: np.ndarray, clients: np.ndarray, draws: Draws, u: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """Return the models (R, m, *model) of clients (R, m) after the method's local steps from w (R, *model)."""
    fed, p, (R, m) = problem.federation, problem.size, clients.shape
    plan = local_work.plan_of(method, fed.sizes[clients])
    eta = step_sizes.step_sizes(method.step_size, draws.trajectory, draws.round, plan)
    how = np.where((u == 1.0).all(axis=2), _PLAIN, np.where(beta > 0.0, _WEIGHTED, _IDLE))
    out = np.empty((R, m, p))
    _weighted_sgd(
        problem.loss, method.client, fed.rows, fed.y, domains_of(fed).code, fed.ptr, fed.ids, problem.l2, draws.key,
        draws.trajectory, draws.round, clients, w.reshape(R, p), eta, plan, method.replacement, u, how, out,
        problem.n_outputs,
    )  # fmt: skip
    return problem.unflatten(out)


@borrowing
def _weighted_steps(  # type: ignore[no-untyped-def]
    loss, opt, X, y, code, rows, still, passes, block, batch, l2, tilt, eta, r, j, u, w, g, m, v, c, t, C
):
    """For each batch b: one move of the optimiser along (1/|b|) sum u_i l'(row) + l2 w; still: b is always rows."""
    s = 0
    for start in range(0, passes * block, block):
        base = 0 if still else start
        for at in range(base, base + block, batch):
            part = rows[at : min(at + batch, base + block)]
            batches.batch_slopes(loss, X, y, part, 1.0 / part.size, w, c, t)
            for b in range(part.size):
                for e in range(C):
                    c[b * C + e] *= u[code[part[b]]]
            jobs.penalty(l2, w, tilt, g)
            batches.batch_add(loss, X, part, c, g)
            dispatch.move(opt, w, g, eta[r, min(j, eta.shape[1] - 1), min(s, eta.shape[2] - 1)], m, v, s + 1)
            s += 1


@borrowing
def _plain_steps(  # type: ignore[no-untyped-def]
    loss, opt, X, y, rows, lo, n, full, passes, block, batch, l2, tilt, eta, r, j, w, path, g, m, v, c, t, C
):
    """Take the steps of FedAvg, by its own kernels."""
    if full:
        jobs.full_steps(loss, opt, X, y, lo, lo + n, passes, l2, tilt, eta, r, j, w, path, g, m, v, c)
    elif batch == 1 and C == 1 and dispatch.plain(opt):
        jobs.single_steps(loss, X, y, rows, passes * block, l2, tilt, eta, r, j, w, path)
    else:
        jobs.batch_steps(loss, opt, X, y, rows, passes, block, batch, l2, tilt, eta, r, j, w, path, g, m, v, c, t)


@borrowing
def _fill_rows(state, lo, n, full, passes, block, replacement, pool, rows):  # type: ignore[no-untyped-def]
    """Write the rows of all steps, or, for full steps, every row once."""
    if full:
        for i in range(n):
            rows[i] = lo + i
    else:
        batches.draw_rows(state, lo, n, passes, block, replacement, pool, rows)


@borrowing
def _jobs(  # type: ignore[no-untyped-def]
    loss, opt, X, y, code, ptr, ids, l2, key, trajectories, round_, clients, W, eta, plan, replacement, u, how, out,
    C, pool, rows, c, t, w, g, m, v, tilt, path,
):  # fmt: skip
    """out[r, j] = model of client clients[r, j] after its steps from W[r]."""
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            k, passes, block, batch = clients[r, j], plan[r, j, 0], plan[r, j, 1], plan[r, j, 2]
            lo, n = ptr[k], ptr[k + 1] - ptr[k]
            full = batch == n and not replacement
            for q in range(w.size):
                w[q] = W[r, q]
                m[q] = v[q] = 0.0
            state = stream(key, trajectories[r], round_, ids[k], BATCHES)
            _fill_rows(state, lo, n, full, passes, block, replacement, pool, rows)
            if how[r, j] == _PLAIN:
                _plain_steps(
                    loss, opt, X, y, rows, lo, n, full, passes, block, batch, l2, tilt, eta, r, j, w, path, g, m, v,
                    c, t, C,
                )  # fmt: skip
            elif how[r, j] == _WEIGHTED:
                _weighted_steps(
                    loss, opt, X, y, code, rows, full, passes, block, batch, l2, tilt, eta, r, j, u[r, j], w, g, m,
                    v, c, t, C,
                )  # fmt: skip
            for q in range(w.size):
                out[r, j, q] = w[q]


@reduction
def _weighted_sgd(  # type: ignore[no-untyped-def]
    loss, opt, X, y, code, ptr, ids, l2, key, trajectories, round_, clients, W, eta, plan, replacement, u, how, out,
    C,
):  # fmt: skip
    """Run `_jobs` with buffers of the right sizes."""
    widest, drawn, largest = batches.buffer_sizes(ptr, clients, plan)
    pool, rows = np.empty(widest, np.int64), np.empty(max(widest, drawn), np.int64)
    c, t, p = np.empty(largest * C), np.empty(largest), W.shape[1]
    w, g, m, v = np.empty(p), np.empty(p), np.empty(p), np.empty(p)
    _jobs(
        loss, opt, X, y, code, ptr, ids, l2, key, trajectories, round_, clients, W, eta, plan, replacement, u, how,
        out, C, pool, rows, c, t, w, g, m, v, np.empty(0), np.empty((1, 1, 0, 1)),
    )  # fmt: skip
