"""What a federation is given - rows, pointers, names of clients and domains - checked once and made read-only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, finite, items, numeric, raw, vector, wrong_type
from fedconvex._sparse import read_only_throughout, sound_csr


def sealed(X: Any) -> Any:
    """Return a matrix of our own making, marked read-only so that it need not be copied again."""
    if not sp.issparse(X):
        return frozen(X)
    X.sum_duplicates()
    for a in (X.data, X.indices, X.indptr):
        while isinstance(a, np.ndarray):
            a.flags.writeable, a = False, a.base
    return X


def owned(a: np.ndarray, given: Any) -> np.ndarray:
    """Return a read-only array that the caller cannot write to through the array that was given."""
    if not isinstance(given, np.ndarray):
        return frozen(a if isinstance(given, (list, tuple)) else a.copy())  # buffers and frames may be shared
    if given.flags.writeable and np.may_share_memory(a, given):
        a = a.copy()
    return frozen(a)


def frozen(a: np.ndarray) -> np.ndarray:
    """Return a read-only view."""
    view = a.view()
    view.flags.writeable = False
    return view


def draw_keys(labels: np.ndarray) -> np.ndarray:
    """Return nonnegative whole labels themselves, and 63 bits of a digest of any other label."""
    if labels.dtype.kind in "iu" and (labels.size == 0 or (labels.min() >= 0 and labels.max() < 2**63)):
        return labels.astype(np.int64)
    return np.array([draw_key(v) for v in labels.tolist()], dtype=np.int64)


def draw_key(label: Any) -> int:
    """Return the key of one client's draws."""
    if isinstance(label, int) and 0 <= label < 2**63:
        return label
    return int.from_bytes(hashlib.blake2b(str(label).encode(), digest_size=8).digest(), "little") >> 1


def matrix_shape(X: Any) -> tuple[int, ...]:
    """Return (n, d) of anything that is a matrix."""
    shape = X.shape if hasattr(X, "shape") else numeric("Federation.X", X, copy=False).shape
    if len(shape) != 2:
        raise bad("Federation.X", "be two-dimensional (rows, features)", f"shape {tuple(shape)}")
    return tuple(shape)


def matrix(X: Any) -> Any:
    """Return X as read-only finite float64, C-order or canonical CSR."""
    n, d = matrix_shape(X)
    if n == 0 or d == 0:
        raise bad("Federation.X", "have at least one row and one feature", f"shape {(n, d)}")
    if not sp.issparse(X):
        dense = numeric("Federation.X", X, copy=False)
        finite("Federation.X", dense)
        return owned(dense, X)
    given = sound_csr("Federation.X", X)
    parts = given.data, given.indices, given.indptr
    given = sp.csr_array(parts, shape=(n, d))  # what a matrix says of its own order and duplicates is not taken over
    canonical = all(map(read_only_throughout, parts)) and given.has_canonical_format
    csr = sp.csr_array(given, dtype=np.float64, copy=not canonical)
    if not canonical:
        csr.sum_duplicates()
    finite("Federation.X", csr.data)
    if d > np.iinfo(np.int32).max:
        raise bad("Federation.X", "have fewer than 2^31 features", d)
    return sealed(csr)


def row_pointers(ptr: Any, n: int) -> np.ndarray:
    """Return the row pointers of clients, 0 = ptr[0] <= ... <= ptr[K] = n."""
    p = raw("Federation.ptr", ptr)
    if p.ndim != 1 or p.size < 2 or p.dtype.kind not in "iu":
        raise bad("Federation.ptr", "be a vector of at least two whole numbers", f"{ptr!r}")
    p = p.astype(np.int64)
    if p[0] != 0 or p[-1] != n:
        raise bad("Federation.ptr", f"start at 0 and end at the number of rows {n}", f"{p[0]}, ..., {p[-1]}")
    if np.any(np.diff(p) < 0):
        k = int(np.argmax(np.diff(p) < 0))
        raise bad("Federation.ptr", "never decrease", f"{p[k]} then {p[k + 1]} at {k}")
    return p


def row_weights(weight: Any, ptr: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
    """Return the weights of the rows (n,), nonnegative and with a positive sum for every client, or None."""
    if weight is None:
        return None
    w = vector("Federation.sample_weight", weight, int(ptr[-1]))
    if (w < 0.0).any():
        i = int(np.argmax(w < 0.0))
        raise bad("Federation.sample_weight", "be nonnegative", f"{w[i]:g} at {i}")
    largest = np.maximum.reduceat(w, ptr[:-1]) if (np.diff(ptr) > 0).all() else np.ones(labels.size)
    if (largest == 0.0).any():
        k = labels[int(np.argmax(largest == 0.0))]
        raise bad("Federation.sample_weight", "leave every client a row of positive weight", f"none for client {k}")
    with np.errstate(over="ignore"):
        total = w.sum()
    if not np.isfinite(total):
        raise bad("Federation.sample_weight", "have a finite sum", f"{w.max():g}", "divide them by their largest")
    return w


def client_row_weights(who: str, weights: Any, names: Sequence[Any], ys: Sequence[np.ndarray]) -> np.ndarray:
    """Return the weights of all rows from those of every client."""
    parts = items(f"{who}: sample_weight", weights)
    if len(parts) != len(ys):
        raise bad(f"{who}: sample_weight", f"have one array per client ({len(ys)})", f"{len(parts)}")
    return np.concatenate([
        vector(f"{who}: sample_weight of client {name}", part, y.size)
        for name, part, y in zip(names, parts, ys, strict=True)
    ])  # fmt: skip


def domains_of(domain: Any, names: Any, n: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the domain numbers (n,) and names (p,), or None twice."""
    if domain is None:
        if names is not None:
            raise bad("Federation.domain_labels", "come with domain, the domain of every row", "no domain")
        return None, None
    code = raw("Federation.domain", domain)
    if code.shape != (n,) or code.dtype.kind not in "iu":
        raise bad("Federation.domain", f"be {n} whole numbers, one per row", f"shape {code.shape}, dtype {code.dtype}")
    p = int(code.max()) + 1 if names is None else len(items("Federation.domain_labels", names))
    if code.min() < 0 or code.max() >= p:
        raise bad("Federation.domain", f"lie in 0, ..., {p - 1}", f"{code.min()}, ..., {code.max()}")
    if names is None:
        if p > n:
            cure = "number the domains from 0, or pass domain_labels"
            raise bad("Federation.domain", f"lie in 0, ..., {n - 1}, as {n} rows have no more domains", p - 1, cure)
        return code.astype(np.int64), np.arange(p)
    called = names_of("Federation.domain_labels", names)
    if called.ndim != 1 or np.unique(called).size != p:
        raise bad("Federation.domain_labels", f"name each of the {p} domains once", f"{called.tolist()}")
    return code.astype(np.int64), called


def client_rows(who: str, name: Any, pair: Any) -> tuple[Any, np.ndarray]:
    """Return one client's features (n_k, d), dense or CSR, and labels (n_k,)."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise wrong_type(f"{who}: client {name}", "be a pair (X, y)", type(pair).__name__)
    rows = sound_csr(f"{who}: X of client {name}", pair[0])
    X = rows if sp.issparse(rows) else numeric(f"{who}: X of client {name}", rows)
    y = numeric(f"{who}: y of client {name}", pair[1])
    if X.ndim != 2:
        raise bad(f"{who}: X of client {name}", "be two-dimensional", f"shape {X.shape}")
    if y.shape != (X.shape[0],):
        raise bad(f"{who}: y of client {name}", f"have one label per row ({X.shape[0]})", f"shape {y.shape}")
    if X.shape[0] == 0:
        raise bad(f"{who}: client {name}", "have at least one row", "0 rows", "leave it out")
    return X, y


def encode_domains(domains: Any, labels: np.ndarray, code: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers (n,) and names (p,) of domains that are given by row, or by client."""
    who = "Federation.from_arrays: domains"
    if isinstance(domains, Mapping):
        keys = [
            next((k for k in (v, label) if k in domains), None)
            for v, label in zip(labels.tolist(), labels, strict=True)
        ]
        if None in keys:  # a date is the key that was given, not what NumPy makes of it
            raise bad(who, "name a domain for every client", f"none for {labels[keys.index(None)]}")
        rows = names_of(who, [domains[k] for k in keys])[code]
    else:
        rows = names_of(who, domains)
    if rows.shape != (n,):
        raise bad(who, f"give one domain per row of X ({n})", f"shape {rows.shape}")
    names, number = np.unique(rows, return_inverse=True)
    return number, names


def names_of(who: str, given: Any) -> np.ndarray:
    """Return names of clients or domains: all strings, all finite real numbers, or all dates.

    NumPy would make strings of [1, "a"], forget the mask of a masked array, and count every NaN as another client.
    """
    a = as_listed(given)
    if a.ndim == 0:  # refused for its shape
        return a
    if a.dtype.kind == "O":
        values = [v.item() if isinstance(v, np.generic) else v for v in a.ravel().tolist()]
        kinds = {type(v) for v in values}
        if not (kinds <= {str} or kinds <= {int, float} or kinds <= {bool}):
            raise wrong_type(who, "be all numbers or all strings", ", ".join(sorted(k.__name__ for k in kinds)))
        a = np.asarray(values).reshape(a.shape)
    if a.dtype.kind not in "biufUSM":
        raise wrong_type(who, "be numbers, strings or dates", f"dtype {a.dtype}", "name them 0, 1, 2, ...")
    unknown = np.isnat(a) if a.dtype.kind == "M" else ~np.isfinite(a) if a.dtype.kind == "f" else np.zeros(0, bool)
    if unknown.any():
        raise bad(who, "be finite", f"{a[unknown].ravel()[0]}", f"{int(unknown.sum())} rows without a name; drop them")
    return a


def as_listed(given: Any) -> np.ndarray:
    """Return an array as it is, and anything else as an array of objects, whose types are still seen."""
    if np.ma.is_masked(given):
        masked = int(np.ma.getmaskarray(given).sum())
        raise bad("Federation: names of clients and domains", "have no mask", f"{masked} masked", "drop those rows")
    if hasattr(given, "dtype") or hasattr(given, "__array__"):
        return np.asarray(given)
    try:
        a = np.asarray(given, dtype=object)
        if any(isinstance(v, str) and v.endswith("\0") for v in a.ravel().tolist()):  # NumPy would cut it off
            raise bad("Federation: names", "not end with a null character", f"{given!r}")
        return a if a.dtype.kind != "O" or len({type(v) for v in a.ravel().tolist()}) != 1 else np.asarray(given)
    except ValueError:  # ragged
        raise bad("Federation: names", "be a flat list", f"{given!r}", "one name per row or client") from None
