"""Rows by client: who owns them, folds that every client takes part in, scores by each client's own model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from fedconvex._check import bad, raw
from fedconvex.tables.spelling import spelt


def client_names(who: str, clients: Any, n: int, what: str = "client") -> np.ndarray:
    """Return the clients (or what else they are called) of n rows, (n,): numbers or text, none of them missing.

    Raises
    ------
    ValueError
        If they are not n names, or some are missing, or names stand beside numbers.
    """
    names = raw(who, clients) if hasattr(clients, "dtype") else np.asarray(clients, dtype=object)
    if names.shape != (n,):
        raise bad(who, f"name the {what} of all {n} rows", f"shape {names.shape}")
    if names.dtype.kind == "O":
        missing = any(v is None or type(v).__name__ in ("NAType", "NaTType") or v != v for v in names.tolist())
        if not missing:
            kinds = {type(v) for v in names.tolist()}
            if len(kinds) > 1 and any(issubclass(kind, (str, bytes)) for kind in kinds):
                raise bad(who, "be all names or all numbers", ", ".join(sorted(k.__name__ for k in kinds)))
            plain = np.array(names.tolist())
            names = plain if plain.shape == (n,) else names
    else:
        missing = names.dtype.kind in "fmM" and bool((names != names).any())  # NaN and NaT differ from themselves
    if missing:
        raise bad(who, f"name the {what} of every row", "missing values")
    if names.dtype.kind == "M":  # of one unit, since numbers of different units look alike
        names = names.astype("datetime64[ns]").astype(str)
    if names.dtype.kind == "U":  # "1.0" is "1"
        known = {name: spelt(name) for name in set(names.tolist())}
        names = np.array([known[name] for name in names.tolist()]) if any(k != v for k, v in known.items()) else names
    return names


def folds(code: np.ndarray, strata: np.ndarray, k: int, rng: Any) -> np.ndarray:
    """Return the fold of every row, -1 for the only row of a client.

    A client's rows are dealt out stratum by stratum, in random order and from a random fold on: its numbers of rows in
    any two folds differ by one at most, and so do those of a stratum. (scikit-learn's splitters keep groups together or
    classes apart, not both within every group, and refuse clients with fewer rows than folds.)

    Parameters
    ----------
    code : array (n,)
        Number of the client of every row.
    strata : array (n,)
        Class of every row.
    k : int
    rng : RandomState
    """
    fold = np.full(code.size, -1, dtype=np.int64)
    shuffled = rng.permutation(code.size)
    order = shuffled[np.lexsort((strata[shuffled], code[shuffled]))]
    first = np.searchsorted(code[order], np.arange(int(code.max()) + 2))
    for a, b in itertools.pairwise(first.tolist()):
        if b - a > 1:
            fold[order[a:b]] = (int(rng.randint(k)) + np.arange(b - a)) % k
    return fold


def scores_of(X: Any, W: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Return x_i'w_t of rows of clients t = code_i, (n,), or (n, C) for models W (m, C, d)."""
    z = np.empty((X.shape[0], *W.shape[1:-1]))
    for t in np.unique(code).tolist():
        mine = np.flatnonzero(code == t)
        z[mine] = X[mine] @ W[t].T
    return z
