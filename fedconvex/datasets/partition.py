"""Partitions of any labelled data: who owns which row, as the ``clients`` of `Federation.from_arrays`.

Every function returns an int64 array (n,) with values 0, ..., n_clients-1, in which every client occurs: each row has
exactly one owner and no client is empty. The same seed gives the same partition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import Rng, bad, raw, real, takes_rng, whole, wrong_type


@takes_rng
def partition_iid(n_rows: int, n_clients: int, seed: int = 0, *, size_skew: float = 0.0, rng: Rng = None) -> np.ndarray:
    """Deal rows to clients at random, in sizes equal up to one row, or proportional to log-normal weights.

    With a skew client k gets about n exp(size_skew g_k) / sum_j exp(size_skew g_j) rows with independent standard
    normal g_k, rounded by largest remainders, and at least one row.

    Parameters
    ----------
    n_rows : int
        Number of rows n to own.
    n_clients : int
        Number of clients K <= n.
    seed : int
        Seed of the shuffle, and of the sizes.
    size_skew : float
        Standard deviation of the log-sizes, 0 to 100.

    Returns
    -------
    int array (n,)
        Owner of every row.

    Raises
    ------
    ValueError
        If there are more clients than rows, a count is below one, or size_skew is outside [0, 100].

    Examples
    --------
    >>> import numpy as np
    >>> np.bincount(partition_iid(11, 3)).tolist()
    [4, 4, 3]
    >>> sizes = np.bincount(partition_iid(1000, 50, size_skew=1.0))
    >>> int(sizes.sum()), bool(sizes.min() >= 1), bool(sizes.max() > 3 * np.median(sizes))
    (1000, True, True)
    """
    who = "partition_iid"
    n, K, rng = _arguments(who, n_rows, n_clients, seed)
    skew = real(f"{who}: size_skew", size_skew, low=0.0, high=100.0)
    sizes = lognormal_sizes(n, K, skew, 1, rng) if skew else _even(n, K)
    return rng.permutation(np.repeat(np.arange(K), sizes))


@takes_rng
def partition_dirichlet(
    y: Any, n_clients: int, alpha: float, seed: int = 0, min_rows: int = 1, *, rng: Rng = None
) -> np.ndarray:
    """Divide the rows of each class among the clients in Dirichlet(alpha) proportions.

    This is the label-wise scheme of Yurochkin et al. (2019), in which sizes differ, not the client-wise scheme of Hsu,
    Qi and Brown (2019), in which every client has the same size and its own class proportions. Instead of redrawing
    until no client is too small, which need not end, clients below ``min_rows`` take rows from the largest ones.

    Parameters
    ----------
    y : array (n,)
        Class labels: whole numbers or strings.
    n_clients, min_rows, seed : int
        Number of clients K; fewest rows of a client, K min_rows <= n; seed of the proportions and of the shuffle.
    alpha : float
        Concentration in (0, 1e100]: small means few classes per client, large means equal shares of every class.

    Returns
    -------
    int array (n,)
        Owner of every row.

    Raises
    ------
    ValueError
        If alpha is not positive, K min_rows > n, or the labels are real numbers instead of classes.

    References
    ----------
    Yurochkin et al.: Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, Section 4.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2], 40)
    >>> clients = partition_dirichlet(y, 4, alpha=0.1)
    >>> counts = np.array([np.bincount(y[clients == k], minlength=3) for k in range(4)])
    >>> counts.sum(axis=0).tolist(), bool(counts.sum(axis=1).min() >= 1)
    ([40, 40, 40], True)
    """
    who, labels = "partition_dirichlet", _labels("partition_dirichlet", y)
    n, K, rng = _arguments(who, labels.size, n_clients, seed)
    if labels.dtype.kind == "f" and np.any(labels != np.floor(labels)):
        got = f"{labels[labels != np.floor(labels)][0]:g}"
        raise bad(f"{who}: y", "hold class labels", got, "bin real targets first, for example with numpy.digitize")
    concentration = real(f"{who}: alpha", alpha, low=0.0, high=1e100, strict=True)
    least = whole(f"{who}: min_rows", min_rows, low=1)
    if K * least > n:
        raise bad(f"{who}: min_rows", f"be at most n_rows / n_clients = {n}/{K}", least)
    clients = np.empty(n, dtype=np.int64)
    code = np.unique(labels, return_inverse=True)[1]
    for group in np.split(np.argsort(code, kind="stable"), np.cumsum(np.bincount(code))[:-1]):
        rows, shares = rng.permutation(group), rng.dirichlet(np.full(K, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * rows.size).astype(np.int64)
        for k, part in enumerate(np.split(rows, cuts)):
            clients[part] = k
    _fill_up(clients, K, least, rng)
    return clients


def _fill_up(clients: np.ndarray, K: int, least: int, rng: np.random.Generator) -> None:
    """Give clients of fewer than ``least`` rows random ones of the client that is the largest at that moment."""
    sizes = np.bincount(clients, minlength=K)
    for k in range(K):
        while sizes[k] < least:
            donor = int(np.argmax(sizes))
            clients[rng.choice(np.flatnonzero(clients == donor))] = k
            sizes[k] += 1
            sizes[donor] -= 1


@takes_rng
def partition_shards(
    y: Any, n_clients: int, shards_per_client: int = 2, seed: int = 0, *, rng: Rng = None
) -> np.ndarray:
    """Sort the rows by label, cut them into shards equal up to one row, and deal the shards at random.

    With two shards each, most clients see two classes only. Rows with equal labels are shuffled first.

    Parameters
    ----------
    y : array (n,)
        Labels: numbers or strings.
    n_clients : int
        Number of clients K.
    shards_per_client : int
        Shards s dealt to each client, K s <= n.
    seed : int
        Seed of the shuffle and of the deal.

    Returns
    -------
    int array (n,)
        Owner of every row.

    Raises
    ------
    ValueError
        If there are more shards than rows, or a count is below one.

    References
    ----------
    McMahan, Moore, Ramage, Hampson and Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data, AISTATS 2017, Section 3 (their MNIST: 200 shards of 300 rows, two for each of 100 clients).

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2, 3], 25)
    >>> clients = partition_shards(y, 2)
    >>> [np.unique(y[clients == k]).size for k in range(2)]
    [2, 2]
    """
    who = "partition_shards"
    labels = _labels(who, y)
    n, K, rng = _arguments(who, labels.size, n_clients, seed)
    s = whole(f"{who}: shards_per_client", shards_per_client, low=1)
    if K * s > n:
        raise bad(f"{who}: n_clients * shards_per_client", f"be at most the number of rows {n}", K * s)
    clients = np.empty(n, dtype=np.int64)
    owner_of_shard = rng.permutation(np.repeat(np.arange(K), s))
    clients[_by_label(labels, np.arange(n), rng)] = np.repeat(owner_of_shard, _even(n, K * s))
    return clients


@takes_rng
def partition_similarity(y: Any, n_clients: int, s: float, seed: int = 0, *, rng: Rng = None) -> np.ndarray:
    """Give each client s percent of its rows at random and the rest sorted by label, in sizes equal up to one row.

    Parameters
    ----------
    y : array (n,)
        Labels: numbers or strings.
    n_clients : int
        Number of clients K <= n.
    s : float
        Similarity in percent, 0 (sorted by label) to 100 (independent of the label).
    seed : int
        Seed of the shuffle.

    Returns
    -------
    int array (n,)
        Owner of every row; client 0 has the first labels.

    Raises
    ------
    ValueError
        If s is outside 0, ..., 100, or there are more clients than rows.

    References
    ----------
    Karimireddy, Kale, Mohri, Reddi, Stich and Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning, ICML 2020, Section 7 (after Hsu, Qi and Brown 2019).

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1], 50)
    >>> int(y[partition_similarity(y, 2, s=0) == 0].sum())
    0
    >>> bool(10 <= y[partition_similarity(y, 2, s=100) == 0].sum() <= 40)
    True
    """
    who = "partition_similarity"
    labels = _labels(who, y)
    n, K, rng = _arguments(who, labels.size, n_clients, seed)
    share = real(f"{who}: s (percent)", s, low=0.0, high=100.0) / 100.0
    rows, mixed = rng.permutation(n), round(share * n)
    ends = np.concatenate([[0], np.cumsum(_even(n, K))])
    at_random = np.diff(ends * mixed // n)  # rows of each client that ignore the label
    clients = np.empty(n, dtype=np.int64)
    clients[rows[:mixed]] = np.repeat(np.arange(K), at_random)
    clients[_by_label(labels, rows[mixed:], rng)] = np.repeat(np.arange(K), np.diff(ends) - at_random)
    return clients


def lognormal_sizes(n: int, K: int, sigma: float, least: int, rng: np.random.Generator) -> np.ndarray:
    """Return K whole numbers >= least that sum to n and are else proportional to exp(sigma g), g standard normal."""
    g = sigma * rng.standard_normal(K)
    weights = np.exp(g - g.max())
    free = np.ones(K, dtype=bool)  # clients that are not held at the floor
    while True:
        ideal = np.full(K, float(least))
        ideal[free] = (n - least * (K - free.sum())) * weights[free] / weights[free].sum()
        low = free & (ideal < least)
        if not low.any() or low.sum() == free.sum():
            break
        free &= ~low
    sizes = np.maximum(np.floor(ideal).astype(np.int64), least)
    order = np.argsort(-(ideal - sizes), kind="stable")
    sizes[order[: n - sizes.sum()]] += 1
    return sizes


def _even(n: int, K: int) -> np.ndarray:
    """Return K sizes that sum to n and are equal up to one, the larger first."""
    return n // K + (np.arange(K) < n % K).astype(np.int64)


def _by_label(labels: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows sorted by label, rows with equal labels in random order."""
    shuffled = rng.permutation(rows)
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def _arguments(who: str, n_rows: Any, n_clients: Any, seed: Any) -> tuple[int, int, np.random.Generator]:
    """Return the checked numbers of rows and clients, and the generator of the seed."""
    n, K = whole(f"{who}: n_rows", n_rows, low=1), whole(f"{who}: n_clients", n_clients, low=1)
    if n < K:
        raise bad(f"{who}: n_clients", f"be at most the number of rows {n}", K, "every client needs a row")
    return n, K, np.random.default_rng(whole(f"{who}: seed", seed))


def _labels(who: str, y: Any) -> np.ndarray:
    """Return y as a vector of finite numbers or of strings."""
    labels = raw(f"{who}: y", y)
    if labels.ndim != 1 or labels.size == 0:
        raise bad(f"{who}: y", "be a nonempty vector of labels", f"shape {labels.shape}")
    if labels.dtype.kind == "O" and all(isinstance(v, str) for v in labels.tolist()):
        labels = labels.astype(str)
    if labels.dtype.kind not in "fiubUS":
        raise wrong_type(f"{who}: y", "be all numbers or all strings", f"dtype {labels.dtype}")
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        row = int(np.argmax(~np.isfinite(labels)))
        raise bad(f"{who}: y", "be finite", f"{labels[row]} at row {row}", "drop the rows without label")
    return labels
