"""Being fair to clients is no more than being fair to domains, where clients are mixtures of domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedconvex.methods import AFL
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.domain_instances import three_domains

__all__ = ["CLIENT_AGNOSTIC", "STATEMENT", "THEOREMS", "client_agnostic"]

CLIENT_AGNOSTIC = Quantity("min over models of the largest client loss max_k F_k(w)", by_rounds=False)

STATEMENT = Statement(
    page="agnostic_clients",
    title="Client-agnostic and domain-agnostic losses",
    scope=Scope(
        not_for("slices are compared row by row"),
        holds("all losses have the same ridge"),
        not_for("F must be smooth"),
    ),
    setting="""
Rows belong to a client k and to a domain c. L_c is the loss of domain c, F_k that of client k, with the same ridge.
""",
    assumptions="""
Every client is a mixture of the domains: its rows of domain c are distributed as all rows of domain c are, so that
F_k = sum_c q_kc L_c with shares q_kc >= 0, sum_c q_kc = 1.
""",
    statement="""
max_k F_k(w) <= max_c L_c(w) for every model w, hence min_w max_k F_k(w) <= min_w max_c L_c(w), with equality wherever a
client has rows of the worst domain only. More: for every mixture lambda of clients, sum_k lambda_k F_k =
sum_c (q'lambda)_c L_c: client-agnostic learning is domain-agnostic learning over the smaller set {q'lambda}.
""",
    source="""
Folklore of agnostic learning (Mohri, Sivek, Suresh 2019, arXiv:1902.00146, Section 2, take clients for domains; Ro et
al. 2021, arXiv:2104.02748, have clients with rows of several). Stated and proven in this project.
""",
    differs="""
Surveys print it without the assumption. For samples it is false: a client's few rows of a domain may be harder than the
domain is on average, and with one row each the largest client loss is the largest loss of all.
""",
    meaning="""
Whoever is fair to domains is fair to every client that mixes them, and to clients that are still to come; the price is
the difference of the two sides. The bound is the value of the domains' minimax problem, the quantity that of the
clients', both certified.
""",
    proof="""
F_k(w) = Σ_c q_kc L_c(w) ≤ max_c L_c(w), an average being at most the largest of its terms. Minimise both sides over w.
With q_kc = 1 for the worst domain c at the domains' solution, F_k = L_c there; its minimax value is then attained by
clients. ∎
""",
    loose="""
Attained if every domain has a client of its own. Clients with shares in [a, 1 - a] of two domains see at most 1 - 2a of
the domains' difference.
""",
)


def client_agnostic(shares: Any, *, value: float) -> Bound:
    """Return the domain-agnostic value, which bounds the client-agnostic one.

    Parameters
    ----------
    shares : array (K, p)
        q, with rows that sum to one.
    value : float
        min_w max_c L_c(w).

    Raises
    ------
    ValueError, TypeError
        If shares is no matrix, or value not one number.
    AssumptionError
        If rows of shares are no mixtures.

    Examples
    --------
    >>> from fedconvex.theorems.agnostic_clients import client_agnostic
    >>> client_agnostic([[0.5, 0.5], [0.9, 0.1]], value=0.25).value
    0.25
    """
    q = numeric("client_agnostic: shares", shares)
    if q.ndim != 2 or not q.size:
        raise bad("client_agnostic: shares", "be a matrix, clients by domains", f"shape {q.shape}")
    source = "fedconvex, client-agnostic against domain-agnostic (docs/theory/agnostic_clients.md)"
    total, least = q.sum(axis=1), float(q.min())
    mixture = Hypothesis(
        "clients that are mixtures of domains",
        f"shares from {least:g}, sums from {total.min():g} to {total.max():g}",
        least >= 0.0 and bool(np.abs(total - 1.0).max() <= 1e-9),
    )
    value = float(vector("client_agnostic: value", np.atleast_1d(raw("client_agnostic: value", value)), 1)[0])
    return Bound({"domains": value}, CLIENT_AGNOSTIC, source, require(source, mixture))


# ---------------------------------------------------------------- read off a setting


def _shares(p: Problem) -> tuple[np.ndarray, float]:
    """Return the shares q (K, p), and how far a client's slice is from a copy of its domain, in shares of rows.

    The largest distance of all clients, or that of the first client that is no mixture.
    """
    fed, domain, apart = p.federation, np.asarray(p.federation.domain), 0.0
    rows = np.column_stack([fed.X.toarray() if fed.is_sparse else fed.X, fed.y])
    code, C = np.unique(rows, axis=0, return_inverse=True)[1].ravel(), int(domain.max()) + 1
    whole = np.zeros((C, int(code.max()) + 1))
    np.add.at(whole, (domain, code), 1.0)
    whole /= whole.sum(axis=1, keepdims=True)
    shares = np.zeros((fed.K, C))
    np.add.at(shares, (np.repeat(np.arange(fed.K), fed.sizes), domain), 1.0)
    for k, counts in enumerate(shares):
        mine, held = slice(int(fed.ptr[k]), int(fed.ptr[k + 1])), np.zeros_like(whole)
        np.add.at(held, (domain[mine], code[mine]), 1.0)
        there = counts > 0.0
        distances = np.abs(held[there] / counts[there, None] - whole[there]).sum(axis=1)
        apart = max(apart, float(distances.max()))
        if apart > 1e-12:
            break
    return shares / fed.sizes[:, None], apart


def _read(s: Setting) -> Reading:
    name, p = "client-agnostic losses", s.problem
    has = p.federation.domain is not None
    curved = traits(p.loss).curved
    require(
        name,
        Hypothesis("domains", "domains" if has else "none", has),
        Hypothesis("a loss with a curvature, for the minimax values", f"{p.loss!r}", curved),
        Hypothesis("at most 3,000 parameters, for the minimax values", f"{p.size:,}", p.size <= 3000),
    )
    q, apart = _shares(p)
    text = "clients whose rows of a domain are distributed as the domain is"
    copies = require(name, Hypothesis(text, f"l1 distance up to {apart:g}", apart <= 1e-12))
    return Reading({"shares": q, "value": p.solve_minimax().value}, copies)


def _least_client_loss(s: Setting, rounds: Sequence[int]) -> Found:
    """Clients in the place of domains; what is certified of both values is allowed for."""
    p = s.problem
    found, other = _of_clients(p).solve_minimax(), p.solve_minimax()
    off = max(other.value - other.lower, 0.0) + 64.0 * EPS * (1.0 + abs(found.value))
    return Found(np.full(len(rounds), found.lower), np.full(len(rounds), off))


def _of_clients(p: Problem) -> Problem:
    """Return the problem whose domains are its clients."""
    fed = replace(p.federation, domain=None, domain_labels=None)
    return Problem(fed, p.loss, p.l2, p.weights, intercept=p.intercept)


def _by_label(given_: Instance, own: bool = False) -> Instance:
    """Return an instance with its two labels as domains; own: with clients of one label each."""

    def make() -> Problem:
        p = given_.make()
        fed = p.federation
        domain = (fed.y > 0.0).astype(np.int64)
        if own:
            fed = type(fed).from_arrays(fed.X, fed.y, domain, domain)
        else:
            fed = replace(fed, domain=domain, domain_labels=np.arange(2))
        return Problem(fed, p.loss, p.l2)

    words = f"{given_.words}, classes as domains" + (", a client for each" if own else "")
    return Instance(f"{given_.name}, by class" + (", own" if own else ""), words, given_.data, cache(make))


def _mixtures(tiny: Tiny) -> Problem:
    """Return a client with the rows of one domain, or of it and the next, for every client as a domain."""
    K, n, next_too = len(tiny.sizes), tiny.sizes[0], int(tiny.knobs["mixed"])
    domains = [[k, (k + 1) % K][: 1 + next_too] for k in range(K)]
    which = np.array([k * n + i for held in domains for k in held for i in range(n)])
    who = np.repeat(np.arange(K), [n * len(held) for held in domains])
    rows, labels = np.array(tiny.rows)[which], np.array(tiny.labels)[which]
    fed = Federation.from_arrays(rows, labels, who, which // n)
    return Problem(fed, LOSSES[tiny.loss](), tiny.l2)


THEOREMS = (
    Theorem(
        name="agnostic-clients",
        title="Client-agnostic and domain-agnostic losses",
        quantity=CLIENT_AGNOSTIC,
        bound=client_agnostic,
        read=_read,
        exact=_least_client_loss,  # no run shows a minimax value
        statement=STATEMENT,
        says="Where clients are mixtures of domains, the worst client is at least as well off as the worst domain.",
        loose="Attained if every domain has a client of its own.",
        method=given(AFL, step_size=0.1, domain_step_size=0.1),
        space=Space(
            lambda k: given(AFL, step_size=0.1, domain_step_size=0.1),
            {"mixed": Whole(0, 1)},
            losses=("squared", "logistic"),
            rounds=(1, 1),
            problem=_mixtures,
            start=from_zero,
        ),
        checks=(
            _by_label(copied_rows),
            _by_label(breast_cancer_copied),
            _by_label(copied_rows, own=True),
            three_domains,  # whose clients are no mixtures
        ),
    ),
)
