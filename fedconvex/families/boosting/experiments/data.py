"""Rows of several domains: shifted digits, or a file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, finite, numeric, whole
from fedconvex.datasets import load_bundled
from fedconvex.papers.archive import read_archive

LEAST_ROWS = 40  # of every class and domain
KEYS = ("data", "indices", "indptr", "shape", "y", "domain")


class Sources(NamedTuple):
    """Labelled rows of several domains."""

    name: str
    X: Any  # (n, d), dense or CSR
    y: np.ndarray  # (n,) -1, +1
    domain: np.ndarray  # (n,) 0, ..., p-1
    names: tuple[str, ...]  # of the domains
    group: np.ndarray  # (n,) rows with the same features have the same number

    @property
    def p(self) -> int:
        """Number of domains."""
        return len(self.names)


def shifted_digits(seed: int = 0) -> Sources:
    """Return the 1,797 digits of scikit-learn in three domains; the class is +1 for odd digits.

    "plain": as they are. "inverted": dark for light, so that every threshold of a pixel means the opposite. "turned":
    by 90 degrees. Every digit is in one domain: even digits with probabilities (1/3, 5/12, 1/4), odd ones (1/3, 1/4,
    5/12), so that shares of odd digits are about 0.5, 0.37, 0.63. Pixels are 0, 1/8, ..., 1.

    Examples
    --------
    >>> from fedconvex.families.boosting.experiments import shifted_digits
    >>> found = shifted_digits()
    >>> found.X.shape, found.names
    ((1797, 64), ('plain', 'inverted', 'turned'))
    """
    rng = np.random.default_rng(whole("shifted_digits: seed", seed, low=0))
    digits = load_bundled("digits", standardised=False)
    X, odd = np.floor(digits.X / 2.0) / 8.0, digits.y % 2 == 1
    group = np.unique(digits.X, axis=0, return_inverse=True)[1].ravel()
    chance = np.where(odd[:, None], (1 / 3, 1 / 4, 5 / 12), (1 / 3, 5 / 12, 1 / 4))
    domain = (rng.random(len(X))[:, None] > np.cumsum(chance, axis=1)[:, :2]).sum(axis=1)
    images = X.reshape(-1, 8, 8)
    moved = np.stack([images, 1.0 - images, np.rot90(images, axes=(1, 2))])[domain, np.arange(len(X))]
    y = np.where(odd, 1.0, -1.0)
    return Sources("digits in three domains", moved.reshape(-1, 64), y, domain, ("plain", "inverted", "turned"), group)


def load_sources(path: str | os.PathLike[str]) -> Sources:
    """Read rows of several domains from an npz archive.

    Parameters
    ----------
    path : path
        With CSR arrays data, indices, indptr, shape (n, d), or a dense X (n, d); y (n,) of two values, domain (n,) of
        0, ..., p-1, and optionally domain_names (p,). CSR columns become presence 0/1.

    Returns
    -------
    Sources

    Raises
    ------
    ValueError
        If the file is no such archive, its arrays do not fit, there is one domain only, or a domain has fewer than 40
        rows of a class.
    FileNotFoundError
        If there is no such file.
    """
    who, words = f"--data {Path(path).name}", f"{', '.join(KEYS)}, or X, y, domain"
    arrays = read_archive(path, ("y", "domain"), lambda key: key in (*KEYS, "X", "domain_names"), words)
    if "X" not in arrays and any(key not in arrays for key in KEYS):
        raise bad(who, f"hold {words}", ", ".join(arrays))
    X = _dense_rows(who, arrays["X"]) if "X" in arrays else _presence(who, arrays)
    values, code = np.unique(arrays["y"], return_inverse=True)
    domain, n = arrays["domain"], X.shape[0]
    if arrays["y"].shape != (n,) or values.size != 2:
        raise bad(f"{who}: y", f"be one of two classes for all {n} rows", f"shape {arrays['y'].shape}, {values.size}")
    if domain.shape != (n,) or domain.dtype.kind not in "iu" or domain.min() < 0:
        raise bad(f"{who}: domain", f"number the domains of all {n} rows", f"{domain.dtype} {domain.shape}")
    p = int(domain.max()) + 1
    names = tuple(str(v) for v in np.asarray(arrays.get("domain_names", np.arange(p))).ravel())
    if not 2 <= p <= 8 or len(names) != p or len(set(names)) != p:
        raise bad(f"{who}: domain", "be 2 to 8 domains, each with a name of its own", f"{p} and {len(names)} names")
    counts = np.bincount(2 * domain.astype(np.int64) + code.ravel(), minlength=2 * p)
    if counts.min() < LEAST_ROWS:
        k = int(np.argmin(counts)) // 2
        raise bad(f"{who}: domain {names[k]}", f"have at least {LEAST_ROWS} rows of either class", int(counts.min()))
    y = np.where(code.ravel() == 1, 1.0, -1.0)
    return Sources(Path(path).stem, X, y, domain.astype(np.int64), names, _groups(X))


def _dense_rows(who: str, X: np.ndarray) -> np.ndarray:
    rows = numeric(f"{who}: X", X)
    if rows.ndim != 2 or not rows.size:
        raise bad(f"{who}: X", "have shape (n, d), not empty", f"{rows.shape}")
    finite(f"{who}: X", rows)
    return rows


def _presence(who: str, a: Mapping[str, np.ndarray]) -> sp.csr_array:
    """Return the CSR rows, checked."""
    shape, fit = a["shape"], a["indptr"].ndim == a["indices"].ndim == 1 == a["data"].ndim
    whole_numbers = all(a[key].dtype.kind in "iu" for key in ("indices", "indptr", "shape"))
    if not (fit and whole_numbers and shape.shape == (2,) and shape.min() > 0):
        got = f"shapes {a['data'].shape}, {a['indptr'].shape}, shape = {shape.tolist()}"
        raise bad(f"{who}: data, indices, indptr, shape", "be CSR arrays", got)
    n, d = (int(v) for v in shape)
    ptr, at = a["indptr"].astype(np.int64), a["indices"].astype(np.int64)
    if ptr.size != n + 1 or ptr[0] != 0 or ptr[-1] != at.size or (np.diff(ptr) < 0).any():
        raise bad(f"{who}: indptr", f"rise from 0 to {at.size} in {n + 1} entries", f"{ptr.size} entries")
    if a["data"].size != at.size or (at.size and not 0 <= at.min() <= at.max() < d):
        raise bad(f"{who}: indices", f"be one column below {d} for each of {a['data'].size} entries", f"{at.size}")
    data = numeric(f"{who}: data", a["data"])
    finite(f"{who}: data", data)
    rows = sp.csr_array((data, at, ptr), shape=(n, d))
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows


def _groups(X: Any) -> np.ndarray:
    """Return a number for every row, the same for equal rows, (n,)."""
    if not sp.issparse(X):
        return np.asarray(np.unique(X, axis=0, return_inverse=True)[1]).ravel()
    seen: dict[bytes, int] = {}
    spans = itertools.pairwise(X.indptr.tolist())
    keys = (X.indices[a:b].astype(np.int64).tobytes() + X.data[a:b].tobytes() for a, b in spans)
    return np.array([seen.setdefault(key, len(seen)) for key in keys])
