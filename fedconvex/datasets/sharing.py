"""Data sharing (Zhao, Li, Lai, Suda, Civin, Chandra 2018, Section 4): every client gets a part of a common set of rows.

1. A set G of rows is made public, its size a fraction beta of the rows D that stay with the clients, uniform over the
   classes and disjoint from D.
2. Every client receives its own random portion alpha of G, uniform over the classes too, and merges it with its rows.
3. A warm-up model is trained on G, and FedAvg starts there.

FedAvg on the result is FedAvg with data sharing.

What it does to heterogeneity. Let client k own n_k rows with class shares p_k(y), and receive g = alpha |G| rows with
class shares q(y). Put s_k = n_k/(n_k + g), s = n/(n + K g), n = sum_k n_k, p = sum_k (n_k/n) p_k. The new shares p_k'
and their mean p' (weights (n_k + g)/(n + K g)) satisfy

    p_k' - p' = s_k (p_k - p) + (s_k - s) (p - q),

because p_k' = s_k p_k + (1 - s_k) q and p' = s p + (1 - s) q. So EMD_k = sum_y |p_k(y) - p(y)| shrinks by exactly s_k
if q = p, or, whatever q is, if all clients have the same size; then s_k = 1/(1 + K alpha beta). (A factor "1 - beta"
counts the public rows relative to what the client holds after the merger; the paper's beta is relative to all of D.)

With alpha = 1 all clients hold the same public rows, F_k' = s_k F_k + (1 - s_k) F_G, and the same identity holds for
gradients at every model, with no assumption on class conditionals: equal clients have grad F_k - grad F scaled by s_k,
and with it the drift term in the bounds of the weight divergence. For alpha < 1 the portions differ and it holds in
expectation. The divergence itself may fall faster: to first order in the step size it is proportional to
sum_k p_k (H_k - H)(grad F_k - grad F), which carries s_k twice.

References
----------
Zhao, Li, Lai, Suda, Civin, Chandra, "Federated learning with non-IID data", arXiv:1806.00582, Section 4. From memory:
the text could not be re-read; the statements on heterogeneity are derived here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import Rng, bad, flag, real, takes_rng, whole, wrong_type
from fedconvex.federation import Federation


class Sharing(NamedTuple):
    """What `share` returns.

    Attributes
    ----------
    federation : Federation
        The clients, each with its own rows first and then its portion of G.
    shared : Federation or None
        G, one client called "shared"; None if fraction = 0.
    own : array (K,)
        s_k, the share of a client's rows that were its own.

    Examples
    --------
    >>> from fedconvex.datasets import logistic_federation, share
    >>> found = share(logistic_federation(n_clients=3, seed=1).federation, fraction=0.1)
    >>> found.federation.K, found.shared.labels.tolist(), bool((found.own < 1.0).all())
    (3, ['shared'], True)
    """

    federation: Federation  # the clients, each with its own rows first and then its portion of G
    shared: Federation | None  # G, one client called "shared"; None if fraction = 0
    own: np.ndarray  # (K,) s_k, the share of a client's rows that were its own


@takes_rng
def share(
    federation: Federation, *, fraction: float, alpha: float = 1.0, balanced: bool = True,
    holdout: Federation | None = None, seed: int = 0, rng: Rng = None,
) -> Sharing:  # fmt: skip
    """Return the clients, each with a random portion of a common set of rows G.

    Without a holdout G is drawn from the clients' own rows, which leave their owners: no row then counts twice at a
    client, and D is what stays. Every client keeps at least one row.

    Parameters
    ----------
    federation : Federation
        Its labels, draw keys and domains are kept.
    fraction : float
        beta = |G|/|D|, at least 0, the rows rounded; 0 changes nothing. The paper goes up to 0.25.
    alpha : float
        Portion of G that each client receives, in [0, 1].
    balanced : bool
        Draw equally many rows of every class, up to one, for G and for the portions, as the paper does; else uniformly
        from all rows (real-valued labels).
    holdout : Federation, optional
        Draw G from these rows, whoever owns them (the paper's 10,000 rows that no client has). With domains in the
        federation it must carry the same ones.
    seed : int
        Seed of G and, with the client's draw key, of its portion.

    Raises
    ------
    ValueError, TypeError
        If a setting is out of range, a class has too few rows, or labels are real numbers and balanced is True.

    Examples
    --------
    >>> from fedconvex.datasets import logistic_federation, share
    >>> shared = share(logistic_federation(seed=1).federation, fraction=0.1)
    >>> shared.federation.K, shared.shared.n, shared.own.round(2).tolist()[:2]
    (10, 45, [0.51, 0.51])
    """
    who = "share"
    if not isinstance(federation, Federation):
        raise wrong_type(f"{who}: federation", "be a Federation", type(federation).__name__)
    federation.need_equal_rows(who)
    beta, part = real(f"{who}: fraction", fraction, low=0.0), real(f"{who}: alpha", alpha, low=0.0, high=1.0)
    even, key = flag(f"{who}: balanced", balanced), whole(f"{who}: seed", seed)
    if holdout is not None:
        _check_holdout(who, federation, holdout, even)
    if beta == 0.0:
        return Sharing(federation, None, np.ones(federation.K))
    n = federation.n
    size = round(beta * n if holdout is not None else beta / (1.0 + beta) * n)
    if size == 0:
        raise bad(f"{who}: fraction", f"make at least one row of {n}", fraction)
    G, kept = _public(who, federation, holdout, size, even, key)
    return _shared(who, federation, G, kept, round(part * size), even, key)


def _public(
    who: str, fed: Federation, holdout: Federation | None, size: int, even: bool, key: int
) -> tuple[Federation, np.ndarray]:
    """Return G, from the holdout or from the clients, who keep at least one row each, and the rows that stay (n,)."""
    rng, kept = np.random.default_rng(key), np.ones(fed.n, dtype=bool)
    if holdout is not None:
        return _part(holdout, _draw(who, holdout.y, np.arange(holdout.n), size, even, rng)), kept
    free = np.delete(np.arange(fed.n), fed.ptr[:-1] + rng.integers(fed.sizes))
    public = _draw(who, fed.y, free, size, even, rng)
    kept[public] = False
    return _part(fed, public), kept


def _shared(who: str, fed: Federation, G: Federation, kept: np.ndarray, count: int, even: bool, key: int) -> Sharing:
    """Give every client its kept rows and ``count`` rows of G of its own choice."""
    pick: list[np.ndarray] = []
    for k in range(fed.K):
        own, mine = np.arange(fed.ptr[k], fed.ptr[k + 1]), np.arange(G.n)
        if count < G.n:
            mine = _draw(who, G.y, mine, count, even, np.random.default_rng([key, int(fed.ids[k])]))
        pick += [own[kept[own]], fed.n + mine]
    own_sizes = np.array([v.size for v in pick[::2]])
    return Sharing(_merged(fed, G, pick), G, own_sizes / (own_sizes + count))


def _draw(who: str, y: np.ndarray, rows: np.ndarray, size: int, even: bool, rng: np.random.Generator) -> np.ndarray:
    """Return ``size`` different rows, sorted; if even, equally many of every class that y has, up to one."""
    if not even:
        if size > rows.size:
            raise bad(f"{who}: fraction", f"ask for at most the {rows.size} rows that may be shared", size)
        return np.sort(rng.choice(rows, size, replace=False))
    classes = np.unique(y)
    if np.any(classes != np.floor(classes)):
        got = f"{classes[classes != np.floor(classes)][0]:g}"
        raise bad(f"{who}: labels", "be classes for a draw that is uniform over them", got, "pass balanced=False")
    out = []
    for i, c in enumerate(classes):
        mine, wanted = rows[y[rows] == c], size // classes.size + (i < size % classes.size)
        if wanted > mine.size:
            must = f"ask for at most the {mine.size} rows of class {c:g} that may be shared"
            raise bad(f"{who}: fraction", must, wanted, "lower it, give a holdout, or pass balanced=False")
        out.append(rng.choice(mine, wanted, replace=False))
    return np.sort(np.concatenate(out))


def _part(fed: Federation, rows: np.ndarray) -> Federation:
    domain = None if fed.domain is None else fed.domain[rows]
    return Federation(
        fed.X[rows], fed.y[rows], np.array([0, rows.size]), np.array(["shared"]), domain, fed.domain_labels
    )


def _merged(fed: Federation, G: Federation, pick: list[np.ndarray]) -> Federation:
    """Return the federation whose client k holds rows pick[2k] and pick[2k + 1] of fed's rows followed by G's."""
    rows = np.concatenate(pick)
    ptr = np.concatenate([[0], np.cumsum([a.size + b.size for a, b in zip(pick[::2], pick[1::2], strict=True)])])
    X = sp.vstack([fed.X, G.X], format="csr") if fed.is_sparse else np.concatenate([fed.X, G.X])
    domain = None if fed.domain is None or G.domain is None else np.concatenate([fed.domain, G.domain])[rows]
    names = None if domain is None else fed.domain_labels
    return Federation(X[rows], np.concatenate([fed.y, G.y])[rows], ptr, fed.labels, domain, names, fed.ids)


def _check_holdout(who: str, fed: Federation, holdout: Any, even: bool) -> None:
    if not isinstance(holdout, Federation):
        cure = "wrap rows: Federation.from_clients([(X, y)])"
        raise wrong_type(f"{who}: holdout", "be a Federation", type(holdout).__name__, cure)
    holdout.need_equal_rows(f"{who}: holdout")
    if holdout.d != fed.d or holdout.is_sparse != fed.is_sparse:
        kinds = ["sparse" if f.is_sparse else "dense" for f in (fed, holdout)]
        raise bad(f"{who}: holdout", f"have {fed.d} features, {kinds[0]}", f"{holdout.d}, {kinds[1]}")
    same = fed.domain is None or (
        holdout.domain is not None and np.array_equal(fed.domain_labels, holdout.domain_labels)  # type: ignore[arg-type]
    )
    if not same:
        raise bad(f"{who}: holdout", "have the federation's domains", f"{holdout.n_domains} domains")
    missing = np.setdiff1d(fed.y, holdout.y)
    if even and missing.size:
        raise bad(f"{who}: holdout", "hold every class", f"no row of class {missing[0]:g}", "pass balanced=False")
