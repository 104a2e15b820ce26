"""Local steps on rows weighted by domain, and the checks that the agnostic methods share.

A client with n rows, n_i of them of domain i, descends sum_i alpha_i sum_{j of domain i} l_j / beta + (l2/2)‖w‖^2 with
beta = sum_i alpha_i n_i: row j of domain i weighs u_i/n, u_i = n alpha_i/beta. A mini-batch b estimates it without bias
by (1/|b|) sum_{j in b} u_i l_j. Where all u_i are one, the steps are those of `fedconvex.FedAvg`, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.draws import Draws
from fedconvex.kernels import descent, jobs
from fedconvex.kernels.batches import batch_add, batch_slopes
from fedconvex.kernels.dispatch import move
from fedconvex.kernels.domains import domains_of, held_by, none_empty
from fedconvex.methods.parts import local_work, step_sizes
from fedconvex.problems import FederatedProblem, Problem

__all__ = [
    "as_domain_step_size",
    "check_fit",
    "check_uncertainty_set",
    "counts_of",
    "local_steps",
    "statistics",
    "weights_of",
]


def statistics(problem: FederatedProblem) -> tuple[str, ...]:
    """Return what clients are asked for before round 1: rows by domain; without domains, clients are the domains."""
    return ("domain_counts",) if problem.federation.n_domains else ()


def counts_of(problem: FederatedProblem) -> np.ndarray:
    """Return the rows of each domain, (p,), as floats.

    Raises
    ------
    ValueError
        If a domain has no row.
    """
    fed = problem.federation
    held = fed.masses if not fed.n_domains else np.sum(problem.statistic("domain_counts"), axis=0)
    return np.asarray(none_empty(fed, held), dtype=np.float64)


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
    fed, start = problem.federation, w.reshape(len(w), 1, -1)
    plan = local_work.plan_of(method, fed.sizes[clients])
    eta = step_sizes.step_sizes(method.step_size, draws.trajectory, draws.round, plan)
    kinds = np.where((u == 1.0).all(axis=2), jobs.UNSORTED, np.where(beta > 0.0, jobs.OWN, jobs.IDLE))
    own = DomainWeighted(method.client, domains_of(fed).code, u)
    rules = descent.rules(method.client, problem.n_outputs) | {jobs.OWN: own}
    out = jobs.run(
        rules, problem, problem.l2, start, clients, draws, eta, plan, method.replacement, kinds=kinds,
        out=np.repeat(start, clients.shape[1], axis=1), labels=problem.absolute_labels,
    )  # fmt: skip
    return problem.unflatten(out)


class DomainWeighted(NamedTuple):
    """Moves of an optimiser on batches whose rows are weighted by domain."""

    opt: Any
    code: np.ndarray  # (n,) domains of the rows
    u: np.ndarray  # (R, m, p)

    def step(self, loss, data, job, part, s, a, w, room):  # type: ignore[no-untyped-def]
        """One move along (1/|b|) sum over the batch of u_i l'(row) + l2 w."""
        batch_slopes(loss, data.X, data.y, part, 1.0 / part.size, w, room.c, room.t)
        for b in range(part.size):
            for e in range(job.outputs):
                room.c[b * job.outputs + e] *= self.u[job.r, job.j, self.code[part[b]]]
        descent.penalty(job.ridge, w, job.tilt, room.g)
        batch_add(loss, data.X, part, room.c, room.g)
        move(self.opt, w, room.g, a, room.m, room.v, s + 1)
