"""Rows by domain: who holds how many, and sums over a client's domains.

A federation without domains is one whose clients are the domains, the setting of Mohri, Sivek, Suresh (ICML 2019).
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.federation import Federation
from fedconvex.kernels import jobs, pieces, row_losses
from fedconvex.kernels.cache import borrowing, kernel, strict_part
from fedconvex.kernels.dispatch import by_output, value
from fedconvex.kernels.rows import row_dot


class Domains(NamedTuple):
    """Which domain every row belongs to; without domains, its client."""

    code: np.ndarray  # (n,) int64
    counts: np.ndarray  # (p,) rows of each domain, or the sum of their weights
    held: np.ndarray  # (K, p) those of each client


_KNOWN: WeakKeyDictionary[Federation, Domains] = WeakKeyDictionary()


def domains_of(federation: Federation) -> Domains:
    """Return the domains of the rows; the clients where the federation has none.

    Examples
    --------
    >>> from fedconvex import Federation
    >>> from fedconvex.kernels.domain_sums import domains_of
    >>> domains_of(Federation.from_arrays([[1.0], [2.0]], [0.0, 1.0], clients=[0, 0], domains=[0, 1])).held
    array([[1, 1]])
    """
    if federation not in _KNOWN and hasattr(federation, "domain_parts"):  # rows of other clients are elsewhere
        _KNOWN[federation] = federation.domain_parts()
    if federation not in _KNOWN:
        fed, who = federation, np.repeat(np.arange(federation.K), federation.sizes)
        code = who if fed.domain is None else fed.domain
        p = fed.K if fed.domain is None else fed.n_domains
        held = np.bincount(who * p + code, fed.sample_weight, minlength=fed.K * p).reshape(fed.K, p)
        code = np.ascontiguousarray(code, dtype=np.int64)
        code.flags.writeable = False  # kernels see one array type
        _KNOWN[federation] = Domains(code, held.sum(axis=0), held)
    return _KNOWN[federation]


def domain_counts(federation: Federation) -> np.ndarray:
    """Return the rows of each domain, (p,), or the sum of their weights.

    Raises
    ------
    ValueError
        If a domain has no row.
    """
    return none_empty(federation, domains_of(federation).counts)


def none_empty(federation: Any, counts: np.ndarray) -> np.ndarray:
    """Return the rows of each domain, (p,), or raise if a domain has none; a roster of clients will do."""
    if (counts == 0).any():
        name = federation.domain_labels[int(np.argmin(counts))]
        raise bad(f"Federation: domain {name}", "have at least one row", "0 rows", "leave it out")
    return counts


def held_by(federation: Federation, clients: np.ndarray, p: int) -> np.ndarray:
    """Return the rows (R, m, p) of each of p domains at clients (R, m).

    Raises
    ------
    ValueError
        If there are not p domains: a part of a federation whose clients are the domains.
    """
    return _held_of(federation, p)[clients]


def _held_of(federation: Federation, p: int) -> np.ndarray:
    """Return the rows (K, p) of each of p domains at every client, or raise if there are not p."""
    held = domains_of(federation).held
    if held.shape[1] != p:
        cure = "name the domains: Federation.from_arrays(..., domains=...)"
        raise bad("a client that works alone", f"know which of the {p} domains its rows belong to", "no domains", cure)
    return held


@strict_part
def _relative(n, alpha, held, beta, u):  # type: ignore[no-untyped-def]
    """u_i = n alpha_i/beta, as written: where all rows weigh alike it is exactly 1, as it is of domains not held."""
    for i in range(u.size):
        u[i] = n * alpha[i] / beta if held[i] > 0.0 else 1.0


@kernel
def relative_weights(sizes, clients, alpha, held, beta, u):  # type: ignore[no-untyped-def]
    """u[r, j, i] = n alpha_i/beta for rows of domain i at client clients[r, j]; alpha is (R, m or 1, p)."""
    for r in range(u.shape[0]):
        for j in range(u.shape[1]):
            b = beta[r, j] if beta[r, j] > 0.0 else 1.0
            _relative(sizes[clients[r, j]], alpha[r, min(j, alpha.shape[1] - 1)], held[r, j], b, u[r, j])


@kernel
def kinds_by_weight(u, beta, kinds):  # type: ignore[no-untyped-def]
    """Replace kinds: UNSORTED where all rows weigh one, else OWN, or IDLE where none does; return those that occur."""
    seen = 0
    for r in range(u.shape[0]):
        for j in range(u.shape[1]):
            plain = True
            for i in range(u.shape[2]):
                plain &= u[r, j, i] == 1.0
            kinds[r, j] = jobs.UNSORTED if plain else jobs.OWN if beta[r, j] > 0.0 else jobs.IDLE
            seen |= 1 << kinds[r, j]
    return seen


def domain_losses(problem: Any, w: np.ndarray, clients: np.ndarray, p: int, asked: Any = None) -> np.ndarray:
    """Return the sums (R, m, p) of the losses by domain at w (R, *model), over the rows of clients (R, m).

    Of clients that are not ``asked``, (R, m), the sums are zero.
    """
    fed, sums = problem.federation, np.zeros((*clients.shape, p))
    _held_of(fed, p)
    asked = np.ones(clients.shape, dtype=bool) if asked is None else asked
    W, code, jobs_ = w.reshape(len(w), -1), domains_of(fed).code, clients.size
    most, C, data = int(fed.sizes[clients].max()), problem.n_outputs, (fed.rows, problem.absolute_labels, fed.ptr)
    room = np.empty(max(most, C))
    step = max(1, int(pieces.PIECE / (most * pieces.costs(fed.rows, fed.n, C, 0)[0])))
    for first in range(0, jobs_, step):
        pieces.pause()
        _losses_of_jobs(problem.row_loss, *data, code, clients, asked, W, first, min(first + step, jobs_), room, sums)
    return sums


def _add_losses_one(loss, X, y, code, lo, hi, w, z, sums):  # type: ignore[no-untyped-def]
    for a in range(lo, hi, z.size):
        b = min(a + z.size, hi)
        for i in range(a, b):
            z[i - a] = row_dot(X, i, w)
        for i in range(a, b):
            z[i - a] = value(loss, z[i - a], y[i])
        for i in range(a, b):
            sums[code[i]] += z[i - a]


def _add_losses_many(loss, X, y, code, lo, hi, w, z, sums):  # type: ignore[no-untyped-def]
    C = loss.n_classes
    d = w.size // C
    for i in range(lo, hi):
        for c in range(C):
            z[c] = row_dot(X, i, w[c * d : (c + 1) * d])
        sums[code[i]] += value(loss, z[:C], y[i])


# sums[i] += the losses of the rows lo:hi of domain i; z is scratch, for the C scores of a row at least
add_losses = by_output(_add_losses_one, _add_losses_many)


@borrowing
def _losses_of_jobs(loss, X, y, ptr, code, clients, asked, W, first, last, z, sums):  # type: ignore[no-untyped-def]
    """sums[r, j, i] += the losses of the rows of domain i at client clients[r, j], for jobs first, ..., last - 1."""
    for q in range(first, last):
        r, j = q // clients.shape[1], q % clients.shape[1]
        if asked[r, j]:
            lo, hi = ptr[clients[r, j]], ptr[clients[r, j] + 1]
            add_losses(loss, X, y, code, lo, hi, W[r], z, sums[r, j])


def domain_sums(
    problem: Any, w: np.ndarray, alpha: np.ndarray, clients: np.ndarray, draws: Any = None,
    batch_size: int | None = None, replacement: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return sums over the rows of clients (R, m) at w (R, *model), without the l2 term.

    Losses (R, m, p), summed per domain, and gradients (R, m, *model), summed with weights alpha (R, p) per domain. With
    a batch size a client sums over a batch b of its n rows, times n/b: unbiased.
    """
    fed, (R, m), p = problem.federation, clients.shape, alpha.shape[1]
    _held_of(fed, p)
    sums, n = np.zeros((R, m, p)), fed.sizes[clients]
    draws = Draws(np.uint64(0), np.zeros(R, np.int64), 0) if draws is None else draws
    plan = np.ones((R, m, 3), dtype=np.int64)
    plan[..., 1] = plan[..., 2] = n if batch_size is None else batch_size
    alpha = np.require(alpha, requirements=["C", "W"])
    G = jobs.run(
        {jobs.OWN: DomainSums(domains_of(fed).code, alpha, sums)}, problem, 0.0, w.reshape(R, 1, -1), clients,
        draws, np.ones((1, 1, 1)), plan, replacement and batch_size is not None, labels=problem.absolute_labels,
    )  # fmt: skip
    return sums, problem.unflatten(G)


class DomainSums(NamedTuple):
    """Sums over a batch, or over all rows, instead of steps: w becomes the sum of gradients."""

    code: np.ndarray  # (n,) domains of the rows
    alpha: np.ndarray  # (R, p)
    sums: np.ndarray  # (R, m, p) losses by domain, written

    def steps(self, loss, data, job, eta, w, path, room):  # type: ignore[no-untyped-def]
        """sums[i] = (n/b) sum of l over batch rows of domain i; w = (n/b) sum_i alpha_i (their gradients at w)."""
        alpha, sums = self.alpha[job.r], self.sums[job.r, job.j]
        if job.full:
            _add_runs(loss, data.X, data.y, self.code, job.lo, job.lo + job.n, alpha, w, sums, room.m, room.c)
        else:
            rows, scale = room.rows[: job.batch], job.n / job.batch
            _add_batch(loss, data.X, data.y, self.code, rows, scale, alpha, w, sums, room.m, room.c)
        for q in range(w.size):
            w[q] = room.m[q]


@borrowing
def _add_runs(loss, X, y, code, lo, hi, alpha, w, sums, g, z):  # type: ignore[no-untyped-def]
    """Add the losses of rows lo:hi by domain, and alpha times their gradients; equal neighbours go together."""
    i = lo
    while i < hi:
        e = i + 1
        while e < hi and code[e] == code[i]:
            e += 1
        sums[code[i]] += row_losses.add_rows(loss, X, y, i, e, alpha[code[i]], w, g, z)
        i = e


@borrowing
def _add_batch(loss, X, y, code, rows, scale, alpha, w, sums, g, z):  # type: ignore[no-untyped-def]
    """Add scale times the losses of some rows by domain, and scale alpha times their gradients."""
    for b in range(rows.size):
        i = rows[b]
        a = scale * alpha[code[i]]
        sums[code[i]] += scale * row_losses.add_rows(loss, X, y, i, i + 1, a, w, g, z)
