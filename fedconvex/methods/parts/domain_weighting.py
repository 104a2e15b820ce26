"""Local steps on rows weighted by domain, and the checks that the agnostic methods share.

A client with n rows, n_i of them of domain i, descends sum_i alpha_i sum_{j of domain i} l_j / beta + (l2/2)‖w‖^2 with
beta = sum_i alpha_i n_i: row j of domain i weighs u_i/n, u_i = n alpha_i/beta. A mini-batch b estimates it without bias
by (1/|b|) sum_{j in b} u_i l_j. Where all u_i are one, the steps are those of `fedconvex.FedAvg`, bit for bit.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.draws import Draws
from fedconvex.kernels import descent, jobs
from fedconvex.kernels.batches import batch_add, batch_slopes
from fedconvex.kernels.dispatch import move
from fedconvex.kernels.domain_sums import (
    add_losses,
    domain_losses,
    domains_of,
    held_by,
    kinds_by_weight,
    none_empty,
    relative_weights,
)
from fedconvex.kernels.ridges import penalty
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.simplex.ascent import EntropicStep

NO_LOSSES = np.zeros((0, 0, 0))


class Message(NamedTuple):
    """Server to clients, of the methods whose server knows the domains' weights."""

    w: np.ndarray  # (R, *model) w_t
    alpha: np.ndarray  # (R, p) weights of single rows by domain, the largest 1


class Reply(NamedTuple):
    """Clients to server, of the same methods."""

    w: np.ndarray  # (R, m, *model) w_k after the local steps
    beta: np.ndarray  # (R, m) beta^k = sum_i alpha_i N_i^k
    losses: np.ndarray  # (R, m, p) L_i^k, sums of losses at w_t
    counts: np.ndarray  # (R, m, p) N_i^k, rows


def local(method: Any, problem: Problem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
    """Return what clients answer after steps on rows that weigh alpha_i."""
    held = held_by(problem.federation, clients, message.alpha.shape[1]).astype(np.float64)
    u, beta = weights_of(problem, clients, message.alpha, held)
    losses = np.zeros(u.shape)
    w = local_steps(method, problem, message.w, clients, draws, u, beta, losses)
    return Reply(w, beta, losses, held), memory


def statistics(method: Any, problem: FederatedProblem) -> tuple[str, ...]:
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


class Kind(NamedTuple):
    """The rule of what is one of `fedconvex.simplex.uncertainty`: a set of domain weights, or a step on it."""

    attribute: str  # that every one has
    example: str

    def __call__(self, who: str, x: Any) -> Any:
        if isinstance(x, type) or not hasattr(x, self.attribute):
            raise wrong_type(who, f"be one of fedconvex.simplex.uncertainty, such as {self.example}", f"{x!r}")
        return x


UncertaintySet = Annotated[Any, Kind("support", "Simplex()")]
Ascent = Annotated[Any, Kind("ascend", "ProjectedStep()")]


def weights_of(
    problem: Problem, clients: np.ndarray, alpha: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return u (R, m, p) and beta (R, m) of clients (R, m) with held rows (R, m, p), for alpha (R, p) or (R, m, p)."""
    alpha = alpha[:, None] if alpha.ndim == 2 else alpha
    alpha = alpha if alpha.flags.carray else alpha.copy()  # kernels see one array type
    beta, u = np.add.reduce(alpha * held, axis=2), np.empty(held.shape)
    relative_weights(problem.federation.sizes, clients, alpha, held, beta, u)
    return u, beta


def local_steps(
    method: Any, problem: Problem, w: np.ndarray, clients: np.ndarray, draws: Draws, u: np.ndarray, beta: np.ndarray,
    losses: np.ndarray = NO_LOSSES,
) -> np.ndarray:  # fmt: skip
    """Return the models (R, m, *model) of clients (R, m) after the method's local steps from w (R, *model).

    To losses (R, m, p), where they are given, the sums of the losses at w are added by domain: of clients whose rows
    weigh differently by their jobs, which need the rows in any case, of others before.
    """
    kinds = np.empty(clients.shape, np.int64)
    seen = kinds_by_weight(u, beta, kinds)
    if losses.size and seen != 1 << jobs.OWN:
        losses += domain_losses(problem, w, clients, u.shape[2], kinds != jobs.OWN)
    own = DomainWeighted(method.client, domains_of(problem.federation).code, u, losses)
    return steps_by(method, problem, w, clients, draws, kinds, own)


def steps_by(
    method: Any, problem: Problem, w: np.ndarray, clients: np.ndarray, draws: Draws, kinds: np.ndarray, own: Any,
    beside: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return the models (R, m, *model) after the method's local steps from w: by the rule ``own`` where kinds are OWN.

    Every step reads so many rows ``beside`` its batch, at most, which says how long work is.
    """
    start = w.reshape(len(w), 1, -1)
    plan, eta = method.asked(problem, clients, draws)
    rules = descent.rules(method.client, problem.n_outputs, not isinstance(problem.ridge, np.ndarray)) | {jobs.OWN: own}
    out = jobs.run(
        rules, problem, problem.ridge, start, clients, draws, eta, plan, method.replacement, kinds=kinds, beside=beside,
        out=np.repeat(start, clients.shape[1], axis=1) if (kinds == jobs.IDLE).any() else None,
        labels=problem.absolute_labels,
    )  # fmt: skip
    return problem.unflatten(out)


class DomainWeighted(NamedTuple):
    """Moves of an optimiser on batches whose rows are weighted by domain."""

    opt: Any
    code: np.ndarray  # (n,) domains of the rows
    u: np.ndarray  # (R, m, p)
    losses: np.ndarray  # (R, m, p) sums of losses at the start, written, or (0, 0, 0)

    def steps(self, loss, data, job, eta, w, path, room):  # type: ignore[no-untyped-def]
        """Add the losses of all rows by domain, while they come to the cache, then take the steps."""
        if self.losses.size > 0 and job.since == 0:
            sums = self.losses[job.r, job.j]
            add_losses(loss, data.X, data.y, self.code, job.lo, job.lo + job.n, w, room.c, sums)
        jobs.each_batch(self, loss, data, job, eta, w, path, room)

    def step(self, loss, data, job, part, s, a, w, room):  # type: ignore[no-untyped-def]
        """One move along (1/|b|) sum over the batch of u_i l'(row) + l2 w."""
        batch_slopes(loss, data.X, data.y, part, 1.0 / part.size, w, room.c, room.t)
        mine = self.u[job.r, job.j]
        for b in range(part.size):
            weight = mine[
                np.uint64(self.code[np.uint64(part[b])])
            ]  # signed ones would be looked at for wrapping around
            for e in range(job.outputs):
                room.c[b * job.outputs + e] *= weight
        penalty(job.ridge, w, job.tilt, room.g)
        batch_add(loss, data.X, part, room.c, room.g)
        move(self.opt, w, room.g, a, room.m, room.v, s + 1)


def steps_in_words(method: Any) -> tuple[str, ...]:
    """Return the steps of the domain weights in words; nothing where they are not one number."""
    if not isinstance(method.domain_step_size, float):
        return ()
    kind = "entropic" if isinstance(method.ascent, EntropicStep) else "projected"
    return (f"{kind} steps {method.domain_step_size:.4g} of the domain weights in {method.uncertainty_set!r}",)
