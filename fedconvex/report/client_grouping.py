"""Clients grouped into domains, and what the number of domains costs: complexity against discrepancy.

Agnostic learning over few domains generalises well, for each has many rows, but says little about a client that
differs from its domain; over many it is the other way round (Mohri, Sivek, Suresh, ICML 2019, Section 3). For H models
that were fixed before the rows were drawn, losses in [0, M], and p domains of m_c rows, with probability 1 - delta

    max_c L_{D_c} <= max_c {L_{Dhat_c} + 2 M sqrt(2 log(H)/m_c) + M sqrt(log(p/delta)/(2 m_c))},

and for a client k of domain c, L_{D_k} <= L_{D_c} + max over the models of L_{D_k} - L_{D_c}: its discrepancy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, among, bad, codes, instance, items, matrix, real, takes_rng, vector, whole, wrong_type
from fedconvex.federation import Federation
from fedconvex.problems import Problem
from fedconvex.problems.protocol import has_one_model
from fedconvex.theorems.agnostic_generalisation import vertex_bound
from fedconvex.theory.complexity import finite_complexity

_RESTARTS = 10
_STEPS = 300  # of Lloyd's algorithm from each start; it ends by itself
_LABELS = 1000  # different ones that a histogram may have


class Clustering(NamedTuple):
    """Clients grouped into p domains.

    Attributes
    ----------
    federation : Federation
        The same rows, with the groups as domains 0, ..., p-1, numbered by their first clients.
    domain : array (K,)
        The group of every client.
    within : float
        sum_k (n_k/n) ‖v_k - centre‖^2, v_k what clients are grouped by.

    Examples
    --------
    >>> from fedconvex import Federation
    >>> from fedconvex.report import cluster
    >>> fed = Federation.from_clients([([[x]], [0.0]) for x in (0.0, 5.0, 0.1, 5.1)])
    >>> found = cluster(fed, 2)
    >>> found.federation.n_domains, found.domain.tolist()
    (2, [0, 1, 0, 1])
    """

    federation: Federation
    domain: np.ndarray
    within: float


class DomainTerms(NamedTuple):
    """The terms of the generalisation bound for p domains, at the domain where their sum is largest.

    Attributes
    ----------
    p : int
        Domains.
    smallest : int
        Rows of the smallest domain.
    empirical : float
        The loss of the model that is measured, without the ridge.
    complexity, deviation : float
        2 R, and what finite rows add with the probability that was asked for.
    discrepancy : float
        Largest over clients and models, from the rows.
    domain : int array (K,)
        The group of every client.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.report import DomainTerms
    >>> round(DomainTerms(2, 40, 0.25, 0.1, 0.05, 0.02, np.array([0, 1, 0])).bound, 12)  # their sum
    0.42
    """

    p: int
    smallest: int  # rows of the smallest domain
    empirical: float  # the loss of the model that is measured, without the ridge
    complexity: float  # 2 R
    deviation: float
    discrepancy: float  # largest over clients and models, from the rows
    domain: np.ndarray  # (K,) the group of every client

    @property
    def bound(self) -> float:
        """Sum of the four terms: for every client, up to the noise of the discrepancy."""
        return self.empirical + self.complexity + self.deviation + self.discrepancy


@takes_rng
def cluster(data: Federation | Problem, p: int, by: str = "features", *, seed: int = 0, rng: Rng = None) -> Clustering:
    """Return clients grouped into p domains by k-means; clients count by their rows.

    Parameters
    ----------
    data : Federation or Problem
        A problem where clients are grouped by their gradients.
    p : int
        Domains, 1 to the number of clients that differ.
    by : {"features", "labels", "gradients"}
        The client's mean features, in standard deviations of all rows; the shares of its labels; or the gradient of its
        objective at the minimiser of all clients' objective, which is where averaging is unfair to it.
    seed : int
        Of the ten starts (k-means++), the best of which is kept.

    Raises
    ------
    TypeError, ValueError
        If p exceeds the clients that differ, labels are real numbers (more than 1,000 different ones), or gradients
        are asked of a federation.

    References
    ----------
    Lloyd, IEEE Trans. Inf. Theory 28 (1982), 129-137. Arthur, Vassilvitskii, "k-means++", SODA 2007.

    Examples
    --------
    >>> from fedconvex import Federation
    >>> from fedconvex.report import cluster
    >>> fed = Federation.from_clients([([[x]], [0.0]) for x in (0.0, 5.0, 0.1, 5.1)])
    >>> cluster(fed, 2).domain
    array([0, 1, 0, 1])
    """
    fed, points = _points(data, by)
    domain, within = _grouped(fed, points, p, seed)
    return Clustering(
        replace(fed, domain=np.repeat(domain, fed.sizes), domain_labels=np.arange(domain.max() + 1)), domain, within
    )


@takes_rng
def domain_trade_off(
    problem: Problem,
    models: Any,
    w: Any = None,
    *,
    counts: Sequence[int] | None = None,
    by: str = "features",
    delta: float = 0.05,
    largest: float = 1.0,
    seed: int = 0,
    rng: Rng = None,
) -> list[DomainTerms]:
    """Return the terms of the generalisation bound for several numbers of domains.

    Parameters
    ----------
    problem : Problem
        Its losses are bounded, without the ridge, and its rows weigh the same.
    models : array (H, *model)
        The hypotheses, fixed before the rows were drawn.
    w : model, optional
        Whose empirical loss is reported, one of the models; default the one whose worst domain is best, for each p.
    counts : sequence of int, optional
        Numbers of domains; default 1 to the number of clients that differ.
    by, seed
        As for `cluster`.
    delta, largest : float
        Probability of failure, and M.

    Raises
    ------
    TypeError, ValueError
        As `cluster`; if the loss of a row exceeds M, or w is none of the models.

    Examples
    --------
    Two kinds of clients: from two domains on nobody differs from its domain.

    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import domain_trade_off
    >>> fed = Federation.from_clients([([[1.0]] * 50, [y] * 50) for y in (0.0, 1.0, 0.0, 1.0)])
    >>> found = domain_trade_off(Problem(fed, Squared()), np.array([[0.0], [0.5], [1.0]]), counts=[1, 2], by="labels")
    >>> [(t.p, t.smallest, round(t.complexity, 3), t.discrepancy) for t in found]
    [(1, 200, 0.21, 0.25), (2, 100, 0.296, 0.0)]
    """
    instance("domain_trade_off: problem", problem, Problem)
    fed, M = problem.federation, real("domain_trade_off: largest", largest, low=0.0, strict=True)
    W, _ = problem.flatten(models)
    values = problem.client_values(problem.unflatten(W)) - problem.ridge_terms(W)[:, None]  # (H, K)
    fed.need_equal_rows("domain_trade_off, whose bound counts rows,")
    most = max(float(losses.max()) for _, _, losses in problem._row_values(W))
    if not most <= M * (1.0 + 1e-12):
        raise bad("domain_trade_off: largest", "bound the losses", f"{largest:g}", f"losses of rows reach {most:g}")
    mine = None if w is None else values[_place(problem, W, w)]
    points = _points(problem, by)[1]
    asked = range(1, _different(points) + 1) if counts is None else items("domain_trade_off: counts", counts)
    groups = (_grouped(fed, points, p, seed)[0] for p in asked)
    return [_terms(values, mine, fed.sizes, domain, delta, M) for domain in groups]


def domain_terms(
    losses: Any, sizes: Any, domain: Any, mine: Any = None, *, delta: float = 0.05, largest: float = 1.0
) -> DomainTerms:
    """Return the terms of the generalisation bound from losses that are known already, such as shares of errors.

    Parameters
    ----------
    losses : array (H, K)
        Mean loss of every hypothesis on the rows of every client, in [0, M].
    sizes : array (K,) of int
        Rows of every client.
    domain : array (K,) of int
        The domain of every client, 0, ..., p-1.
    mine : array (K,), optional
        The losses of the hypothesis whose bound is asked; default the one whose worst domain is best.
    delta, largest : float
        Probability of failure, and M.

    Raises
    ------
    TypeError, ValueError
        If shapes differ, a loss lies outside of [0, M], a client has no rows, or a domain no clients.

    Examples
    --------
    >>> from fedconvex.report import domain_terms
    >>> found = domain_terms([[0.0, 0.4], [0.3, 0.1]], [100, 100], [0, 0])
    >>> found.empirical, round(found.complexity, 4), found.discrepancy
    (0.2, 0.1665, 0.2)
    """
    M, values = real("domain_terms: largest", largest, low=0.0, strict=True), matrix("domain_terms: losses", losses)
    K = values.shape[1]
    rows, code = codes("domain_terms: sizes", sizes, K, most=2**53), codes("domain_terms: domain", domain, K)
    if (rows < 1).any():
        raise bad("domain_terms: sizes", "be at least 1", int(rows.min()))
    if len(np.unique(code)) <= code.max():
        raise bad("domain_terms: domain", "have clients in each of 0, ..., p-1", f"{np.unique(code).tolist()}")
    own = None if mine is None else vector("domain_terms: mine", mine, K)
    for name, found in (("losses", values), ("mine", values if own is None else own)):
        if not (found.min() >= 0.0 and found.max() <= M * (1.0 + 1e-12)):
            raise bad(f"domain_terms: {name}", f"lie in [0, {M:g}]", f"{found.min():g}, ..., {found.max():g}")
    return _terms(values, own, rows, code, delta, M)


def _terms(
    values: np.ndarray, mine: np.ndarray | None, sizes: np.ndarray, domain: np.ndarray, delta: float, M: float
) -> DomainTerms:
    """Return the terms for one grouping, from the models' losses at the clients (H, K), and those of a model (K,)."""
    rows = np.bincount(domain, sizes)
    held = np.eye(len(rows))[domain] * sizes[:, None] / rows  # (K, p) shares of a domain's rows
    means = values @ held
    asked = means if mine is None else (mine @ held)[None]
    worst = asked[int(np.argmin(asked.max(axis=1)))]
    R = [finite_complexity(corner, rows, len(values), largest=M) for corner in np.eye(len(rows))]
    terms = vertex_bound(worst, R, rows, delta=delta, largest=M).terms
    apart = max(float((values - means[:, domain]).max()), 0.0)
    numbers = terms["empirical"], terms["complexity"], terms["deviation"], apart
    return DomainTerms(len(rows), int(rows.min()), *numbers, domain)


def _place(problem: Problem, models: np.ndarray, w: Any) -> int:
    """Return which of the models w is: the bound holds for no other."""
    W, single = problem.flatten(w)
    if not single:
        raise bad("domain_trade_off: w", "be one model", f"{len(W)} models")
    same = np.flatnonzero((models == W[0]).all(axis=1))
    if not same.size:
        raise bad("domain_trade_off: w", "be one of the models", "another one", "the bound holds for these only")
    return int(same[0])


# ---------------------------------------------------------------- what clients are grouped by


def _points(data: Any, by: str) -> tuple[Federation, np.ndarray]:
    """Return the federation, and what its clients are grouped by (K, ...)."""
    among("cluster: by", by, ("features", "labels", "gradients"))
    one = has_one_model(data)
    if not (one or (isinstance(data, Federation) and by != "gradients")):
        must = "be a Problem to group by gradients" if by == "gradients" else "be a Federation or a Problem"
        raise wrong_type("cluster: data", must, type(data).__name__)
    fed: Any = data.federation if one else data  # type: ignore[union-attr]
    fed.need_equal_rows("cluster, which weighs clients by their rows,")
    return fed, _gradients(data) if by == "gradients" else _POINTS[by](fed)


def _different(points: np.ndarray) -> int:
    return len(np.unique(points, axis=0))


def _grouped(fed: Federation, points: np.ndarray, p: Any, seed: Any) -> tuple[np.ndarray, float]:
    """Return the group of every client (K,), numbered by first clients, and the sum of squares within them."""
    p, different = whole("cluster: p", p, low=1, high=fed.K), _different(points)
    if p > different:
        raise bad("cluster: p", f"be at most {different}, the clients that differ", p)
    found, within = _k_means(points, fed.sizes / fed.n, p, whole("cluster: seed", seed, low=0))
    _, first = np.unique(found, return_index=True)
    return np.argsort(np.argsort(first))[found], float(within)


def _features(fed: Federation) -> np.ndarray:
    X = fed.X.toarray() if fed.is_sparse else fed.X
    scale = X.std(axis=0)
    return np.add.reduceat(X, fed.ptr[:-1]) / fed.sizes[:, None] / np.where(scale > 0.0, scale, 1.0)


def _labels(fed: Federation) -> np.ndarray:
    known, code = np.unique(fed.y, return_inverse=True)
    if known.size > _LABELS:
        raise bad("cluster: by", "be 'features' or 'gradients' for labels that are real numbers", "'labels'")
    who = np.repeat(np.arange(fed.K), fed.sizes)
    counts = np.bincount(who * known.size + code, minlength=fed.K * known.size)
    return counts.reshape(fed.K, known.size) / fed.sizes[:, None]


def _gradients(problem: Problem) -> np.ndarray:
    G = problem.client_gradients(problem.solve().w)
    return G.reshape(problem.federation.K, -1)


_POINTS = {"features": _features, "labels": _labels}


# ---------------------------------------------------------------- k-means


def _k_means(points: np.ndarray, mass: np.ndarray, p: int, seed: int) -> tuple[np.ndarray, float]:
    """Return the groups (K,) and the weighted sum of squares within them, the best of ten starts."""
    rng, best = np.random.default_rng(seed), (np.zeros(len(points), dtype=np.int64), np.inf)
    points = points - mass @ points
    for _ in range(1 if p in (1, len(points)) else _RESTARTS):
        best = min(best, _lloyd(points, mass, _spread_out(points, mass, p, rng)), key=lambda found: found[1])
    return best


def _spread_out(points: np.ndarray, mass: np.ndarray, p: int, rng: np.random.Generator) -> np.ndarray:
    """Return p first centres, each drawn in proportion to mass times the squared distance from those before it."""
    centres = [points[rng.choice(len(points), p=mass / mass.sum())]]
    for _ in range(p - 1):
        far = mass * np.min([np.sum((points - c) ** 2, axis=1) for c in centres], axis=0)
        centres.append(points[rng.choice(len(points), p=far / far.sum())])
    return np.array(centres)


def _lloyd(points: np.ndarray, mass: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    """Move centres to the means of the points that are nearest to them until nothing changes; no group runs empty."""
    group = np.full(len(points), -1)
    for _ in range(_STEPS):
        squares = np.sum((points[:, None] - centres) ** 2, axis=2)
        nearest, own = squares.argmin(axis=1), squares.min(axis=1)
        for c in np.setdiff1d(np.arange(len(centres)), nearest):  # the farthest point of a larger group founds it anew
            free = np.bincount(nearest, minlength=len(centres))[nearest] > 1
            k = int(np.argmax(np.where(free, own, -1.0)))
            nearest[k], own[k] = c, 0.0
        if (nearest == group).all():
            break
        group = nearest
        share = np.eye(len(centres))[group] * mass[:, None]
        centres = share.T @ points / share.sum(axis=0)[:, None]
    return group, float(mass @ np.sum((points - centres[group]) ** 2, axis=1))
