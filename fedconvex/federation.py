"""All clients' rows in one contiguous client-major block: the data of a federated problem."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, finite, numeric, real, whole, wrong_type

__all__ = ["CSR", "Federation", "Roster"]


class CSR(NamedTuple):
    """A sparse matrix as kernels see it: row i holds data[indptr[i]:indptr[i+1]] in columns indices[...]."""

    data: np.ndarray  # (nnz,) float64
    indices: np.ndarray  # (nnz,) int32
    indptr: np.ndarray  # (n+1,) int64


@dataclass(frozen=True, eq=False)
class Roster:
    """The clients of a federation as a server knows them: names, keys of draws and numbers of rows, but no row."""

    labels: np.ndarray  # (K,)
    ids: np.ndarray  # (K,) keys of the clients' draws
    sizes: np.ndarray  # (K,) rows of each client
    d: int  # features
    domain_labels: np.ndarray | None  # (p,) names of the domains, if rows carry any

    @property
    def K(self) -> int:
        """Number of clients."""
        return int(self.sizes.size)

    @cached_property
    def n(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def n_domains(self) -> int:
        """Number of domains, 0 if rows carry none."""
        return 0 if self.domain_labels is None else int(self.domain_labels.size)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a server has no rows, hence no {name} of them: only clients read rows")


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The rows of K clients, client after client, dense or sparse, validated once and then read-only.

    Rows ``ptr[k]:ptr[k+1]`` belong to client k. Most users call `from_arrays` or `from_clients`; the constructor takes
    rows that are client-major already. Arrays are copied unless they are read-only and have the right type and layout.

    Parameters
    ----------
    X : array (n, d) or scipy sparse matrix
        Features; stored as float64, C-order or CSR.
    y : array (n,)
        Labels; their domain is the business of the loss.
    ptr : int array (K+1,)
        Row pointers, 0 = ptr[0] < ptr[1] < ... < ptr[K] = n: a client without rows is an error.
    labels : array (K,), optional
        What the user calls the clients; default 0, ..., K-1.
    domain : int array (n,), optional
        Domain number of every row, 0, ..., p-1.
    domain_labels : array (p,), optional
        What the user calls the domains.
    ids : int array (K,), optional
        Keys of the clients' random draws; by default made from the labels. `subset` keeps them, so a client draws
        the same mini-batches whether it runs alone or among others, and whoever else joins.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation
    >>> fed = Federation.from_clients([(np.eye(2), [1.0, -1.0]), (np.ones((3, 2)), [1.0, 1.0, -1.0])])
    >>> fed
    Federation(2 clients, 5 rows, 2 features, dense)
    >>> fed.sizes.tolist()
    [2, 3]
    """

    X: Any
    y: np.ndarray
    ptr: np.ndarray
    labels: np.ndarray = None  # type: ignore[assignment]
    domain: np.ndarray | None = None
    domain_labels: np.ndarray | None = None
    ids: np.ndarray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        X = _matrix(self.X)
        y = _own(numeric("Federation.y", self.y, copy=False), self.y)
        if y.ndim != 1:
            raise bad("Federation.y", "be one-dimensional", f"shape {y.shape}")
        if y.size != X.shape[0]:
            raise bad("Federation.y", f"have one label per row of X ({X.shape[0]})", f"{y.size} labels")
        finite("Federation.y", y)
        ptr = _pointers(self.ptr, y.size)
        K = ptr.size - 1
        labels = np.arange(K) if self.labels is None else _names("Federation.labels", self.labels)
        if labels.shape != (K,):
            raise bad("Federation.labels", f"name each of the {K} clients once", f"shape {labels.shape}")
        if np.unique(labels).size != K:
            twice = next(v for v in labels.tolist() if (labels == v).sum() > 1)
            raise bad("Federation.labels", "differ", f"{twice!r} twice")
        ids = _keys(labels) if self.ids is None else np.asarray(self.ids)
        if ids.shape != (K,) or ids.dtype.kind not in "iu" or np.unique(ids).size != K or ids.min() < 0:
            raise bad("Federation.ids", f"be {K} different nonnegative whole numbers", f"{ids!r}")
        ids = ids.astype(np.int64)
        empty = np.flatnonzero(np.diff(ptr) == 0)
        if empty.size:
            raise bad(f"Federation: client {labels[empty[0]]}", "have at least one row", "0 rows", "leave it out")
        domain, names = _domains(self.domain, self.domain_labels, y.size)
        kept = {
            "X": X,
            "y": y,
            "ptr": ptr,
            "labels": labels.copy(),
            "ids": ids,
            "domain": domain,
            "domain_labels": names,
        }
        for name, v in kept.items():
            object.__setattr__(self, name, v if v is None or sp.issparse(v) else _frozen(v))

    # ------------------------------------------------------------------ construction
    @classmethod
    def from_arrays(cls, X: Any, y: Any, clients: Any, domains: Any = None) -> Federation:
        """Group the rows of (X, y) by client.

        Parameters
        ----------
        X : array (n, d) or scipy sparse matrix
            Features.
        y : array (n,)
            Labels.
        clients : array (n,)
            Whose row it is: numbers or strings. Clients are ordered by label, rows of a client keep their order.
        domains : array (n,) or mapping, optional
            The domain of every row (a *data partition*: a client may hold several domains), or a mapping from client
            label to domain (a *client partition*).

        Raises
        ------
        ValueError
            On mismatched lengths, NaN, infinities, or a client that the mapping of domains leaves out.
        TypeError
            On object, string or complex features or labels, or names of clients or domains of several kinds.
        """
        who = _names("Federation.from_arrays: clients", clients)
        n = _matrix_shape(X)[0]
        if who.shape != (n,):
            raise bad("Federation.from_arrays: clients", f"name one client per row of X ({n})", f"shape {who.shape}")
        if n == 0:
            raise bad("Federation.from_arrays: X", "have at least one row", "0 rows")
        labels, code = np.unique(who, return_inverse=True)
        order = np.argsort(code, kind="stable")
        ptr = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=labels.size))])
        domain = names = None
        if domains is not None:
            domain, names = _encode_domains(domains, labels, code, n)
            domain = domain[order]
        labels_y = numeric("Federation.y", y, copy=False)
        if labels_y.shape != (n,):
            raise bad("Federation.y", f"have one label per row of X ({n})", f"shape {labels_y.shape}")
        rows = _sealed(X.tocsr()[order] if sp.issparse(X) else numeric("Federation.X", X, copy=False)[order])
        return cls(rows, _frozen(labels_y[order]), ptr, labels, domain, names)

    @classmethod
    def from_clients(
        cls, clients: Iterable[tuple[Any, Any]], labels: Sequence[Any] | None = None, domains: Any = None
    ) -> Federation:
        """Stack one (X_k, y_k) pair per client, in the given order.

        Parameters
        ----------
        clients : iterable of (array (n_k, d), array (n_k,))
            Every client's features, all dense or all sparse, and labels.
        labels : sequence of K names, optional
            What the clients are called.
        domains : sequence, optional
            One entry per client: its domain (client partition), or an array (n_k,) with the domain of each row.

        Raises
        ------
        ValueError
            If there is no client, a client is empty, or the widths differ.
        """
        pairs = list(clients)
        if not pairs:
            raise bad("Federation.from_clients", "get at least one client", "none")
        who = "Federation.from_clients"
        names = list(range(len(pairs))) if labels is None else list(labels)
        if len(names) != len(pairs) or len(set(names)) != len(names):
            raise bad(f"{who}: labels", f"name each of the {len(pairs)} clients once", f"{names!r}")
        Xs: list[Any] = []
        ys: list[np.ndarray] = []
        for name, pair in zip(names, pairs, strict=True):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise wrong_type(f"{who}: client {name}", "be a pair (X, y)", type(pair).__name__)
            X = pair[0].tocsr() if sp.issparse(pair[0]) else numeric(f"{who}: X of client {name}", pair[0])
            y = numeric(f"{who}: y of client {name}", pair[1])
            if X.ndim != 2:
                raise bad(f"{who}: X of client {name}", "be two-dimensional", f"shape {X.shape}")
            if y.shape != (X.shape[0],):
                raise bad(f"{who}: y of client {name}", f"have one label per row ({X.shape[0]})", f"shape {y.shape}")
            if X.shape[0] == 0:
                raise bad(f"{who}: client {name}", "have at least one row", "0 rows", "leave it out")
            if Xs and X.shape[1] != Xs[0].shape[1]:
                raise bad(f"{who}: client {name}", f"have {Xs[0].shape[1]} features like the first", f"{X.shape[1]}")
            if Xs and sp.issparse(X) != sp.issparse(Xs[0]):
                raise wrong_type(who, "get all features dense or all sparse", "a mixture")
            Xs.append(X)
            ys.append(y)
        domain = names_of_domains = None
        if domains is not None:
            per_client = list(domains)
            if len(per_client) != len(pairs):
                raise bad(f"{who}: domains", f"have one entry per client ({len(pairs)})", f"{len(per_client)}")
            for name, q, y in zip(names, per_client, ys, strict=True):
                if np.shape(q) not in ((), y.shape):
                    must = f"be one domain, or one per row ({y.size})"
                    raise bad(f"{who}: domains of client {name}", must, f"shape {np.shape(q)}")
            parts = [np.broadcast_to(_listed(q), y.shape) for q, y in zip(per_client, ys, strict=True)]
            alike = len({part.dtype.kind for part in parts}) == 1
            rows = np.concatenate(parts if alike else [part.astype(object) for part in parts])
            names_of_domains, domain = np.unique(_names(f"{who}: domains", rows), return_inverse=True)
        X = _sealed(sp.vstack(Xs, format="csr") if sp.issparse(Xs[0]) else np.concatenate(Xs))
        ptr = np.concatenate([[0], np.cumsum([y.size for y in ys])])
        return cls(X, np.concatenate(ys), ptr, _names(f"{who}: labels", names), domain, names_of_domains)

    # ------------------------------------------------------------------ parts
    def subset(self, clients: Sequence[int] | np.ndarray) -> Federation:
        """Return the federation of the given client numbers, in that order, with their labels and draw keys.

        Raises
        ------
        ValueError
            If a number is out of range, repeated, or none is given.
        """
        try:
            pick = np.asarray(clients)
        except ValueError:  # ragged
            pick = np.empty(0)
        if pick.ndim != 1 or pick.size == 0 or pick.dtype.kind not in "iu" or np.unique(pick).size != pick.size:
            raise bad("Federation.subset: clients", "be a nonempty list of different client numbers", f"{clients!r}")
        if pick.min() < 0 or pick.max() >= self.K:
            raise bad("Federation.subset: clients", f"lie in 0, ..., {self.K - 1}", f"{pick.tolist()}")
        rows = np.concatenate([np.arange(self.ptr[k], self.ptr[k + 1]) for k in pick])
        return self._take(rows, pick, np.repeat(np.arange(pick.size), self.sizes[pick]))

    def split(self, test_size: float = 0.25, seed: int = 0) -> tuple[Federation, Federation]:
        """Split every client's rows at random into a training and a test federation.

        A client keeps at least one training row; clients with a single row appear in the training part only.

        Parameters
        ----------
        test_size : float
            Share of each client's rows that is held out, in (0, 1).
        seed : int
            Seed of the split.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex import Federation
        >>> fed = Federation.from_arrays(np.arange(8.0)[:, None], np.ones(8), [0] * 4 + [1] * 4)
        >>> train, test = fed.split(0.25)
        >>> train.sizes.tolist(), test.sizes.tolist()
        ([3, 3], [1, 1])
        """
        share = real("Federation.split: test_size", test_size, low=0.0, high=1.0, strict=True)
        if share >= 1.0:
            raise bad("Federation.split: test_size", "lie strictly between 0 and 1", test_size)
        rng = np.random.default_rng(whole("Federation.split: seed", seed))
        held = np.zeros(self.n, dtype=bool)
        for k in range(self.K):
            a, b = int(self.ptr[k]), int(self.ptr[k + 1])
            m = min(b - a - 1, max(1, round(share * (b - a))))
            held[a + rng.permutation(b - a)[:m]] = True
        if not held.any():
            raise bad("Federation.split", "get a client with at least two rows", "one row per client")
        client = np.repeat(np.arange(self.K), self.sizes)
        parts = []
        for rows in (np.flatnonzero(~held), np.flatnonzero(held)):
            present, code = np.unique(client[rows], return_inverse=True)
            parts.append(self._take(rows, present, code))
        return parts[0], parts[1]

    def _take(self, rows: np.ndarray, clients: np.ndarray, code: np.ndarray) -> Federation:
        """Return the federation of some rows, already client-major, whose new client numbers are code."""
        ptr = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=clients.size))])
        domain = None if self.domain is None else self.domain[rows]
        return Federation(
            _sealed(self.X[rows]),
            _frozen(self.y[rows]),
            ptr,
            self.labels[clients],
            domain,
            self.domain_labels,
            self.ids[clients],
        )

    def with_intercept(self) -> Federation:
        """Return the same federation with a last column of ones."""
        one = np.ones((self.n, 1))
        X = sp.hstack([self.X, sp.csr_array(one)], format="csr") if self.is_sparse else np.hstack([self.X, one])
        return replace(self, X=X)

    # ------------------------------------------------------------------ facts
    @property
    def K(self) -> int:
        """Number of clients."""
        return self.ptr.size - 1

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.y.size)

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows of each client, (K,)."""
        return _frozen(np.diff(self.ptr))

    @cached_property
    def roster(self) -> Roster:
        """The clients as a server knows them, without rows."""
        return Roster(self.labels, self.ids, self.sizes, self.d, self.domain_labels)

    @property
    def is_sparse(self) -> bool:
        """Whether X is stored as CSR."""
        return sp.issparse(self.X)

    @property
    def n_domains(self) -> int:
        """Number of domains, 0 if rows carry none."""
        return 0 if self.domain_labels is None else int(self.domain_labels.size)

    @cached_property
    def column_sizes(self) -> np.ndarray:
        """Largest |x_j| of every feature, (d,)."""
        X = abs(self.X).max(axis=0)
        return np.asarray(X.toarray() if sp.issparse(X) else X).ravel()

    @cached_property
    def rows(self) -> np.ndarray | CSR:
        """X as the kernels take it: the dense array, or a `CSR` of its three arrays."""
        if not self.is_sparse:
            return self.X
        columns, pointers = self.X.indices.astype(np.int32, copy=False), self.X.indptr.astype(np.int64, copy=False)
        return CSR(self.X.data, _frozen(columns), _frozen(pointers))

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the rows, their owners and domains (a checkpoint refuses to resume on other data)."""
        h = hashlib.blake2b(digest_size=16)
        parts = [*(self.rows if self.is_sparse else (self.X,)), self.y, self.ptr, self.ids]
        for a in parts if self.domain is None else [*parts, self.domain]:
            h.update(str((a.shape, a.dtype.str)).encode())
            h.update(np.ascontiguousarray(a).view(np.uint8).data)
        if self.domain_labels is not None:
            h.update(repr(self.domain_labels.tolist()).encode())
        return h.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled federation, read-only again."""
        for name, v in state.items():
            for a in (v.data, v.indices, v.indptr) if sp.issparse(v) else () if v is None else (v,):
                a.flags.writeable = False
            object.__setattr__(self, name, v)

    def __repr__(self) -> str:
        kind = f"sparse, {self.X.nnz / max(1, self.n * self.d):.2%} filled" if self.is_sparse else "dense"
        domains = f", {self.n_domains} domains" if self.n_domains else ""
        return f"Federation({self.K} clients, {self.n} rows, {self.d} features{domains}, {kind})"


def _sealed(X: Any) -> Any:
    """Return a matrix of our own making, marked read-only so that it need not be copied again."""
    if not sp.issparse(X):
        return _frozen(X)
    X.sum_duplicates()
    X.data.flags.writeable = False
    return X


def _own(a: np.ndarray, given: Any) -> np.ndarray:
    """Return a read-only array that the caller cannot write to through the array that was given."""
    if isinstance(given, np.ndarray) and given.flags.writeable and np.may_share_memory(a, given):
        a = a.copy()
    return _frozen(a)


def _frozen(a: np.ndarray) -> np.ndarray:
    """Return a read-only view."""
    view = a.view()
    view.flags.writeable = False
    return view


def _keys(labels: np.ndarray) -> np.ndarray:
    """Return nonnegative whole labels themselves, and 63 bits of a digest of any other label."""
    if labels.dtype.kind in "iu" and (labels.size == 0 or labels.min() >= 0):
        return labels.astype(np.int64)
    return np.array([_key(v) for v in labels.tolist()], dtype=np.int64)


def _key(label: Any) -> int:
    if isinstance(label, int) and label >= 0:
        return label
    return int.from_bytes(hashlib.blake2b(str(label).encode(), digest_size=8).digest(), "little") >> 1


def _matrix_shape(X: Any) -> tuple[int, ...]:
    shape = X.shape if hasattr(X, "shape") else numeric("Federation.X", X, copy=False).shape
    if len(shape) != 2:
        raise bad("Federation.X", "be two-dimensional (rows, features)", f"shape {tuple(shape)}")
    return tuple(shape)


def _matrix(X: Any) -> Any:
    """Return X as read-only finite float64, C-order or canonical CSR."""
    n, d = _matrix_shape(X)
    if n == 0 or d == 0:
        raise bad("Federation.X", "have at least one row and one feature", f"shape {(n, d)}")
    if not sp.issparse(X):
        dense = numeric("Federation.X", X, copy=False)
        finite("Federation.X", dense)
        return _own(dense, X)
    if X.dtype.kind not in "fiub":
        raise wrong_type("Federation.X", "hold real numbers", f"dtype {X.dtype}")
    shared = getattr(X, "has_canonical_format", False) and X.format == "csr" and not X.data.flags.writeable
    csr = sp.csr_array(X, dtype=np.float64, copy=not shared)
    csr.sum_duplicates()
    finite("Federation.X", csr.data)
    if d > np.iinfo(np.int32).max:
        raise bad("Federation.X", "have fewer than 2^31 features", d)
    return sp.csr_array((_frozen(csr.data), _frozen(csr.indices), _frozen(csr.indptr)), shape=(n, d))


def _pointers(ptr: Any, n: int) -> np.ndarray:
    p = np.asarray(ptr)
    if p.ndim != 1 or p.size < 2 or p.dtype.kind not in "iu":
        raise bad("Federation.ptr", "be a vector of at least two whole numbers", f"{ptr!r}")
    p = p.astype(np.int64)
    if p[0] != 0 or p[-1] != n:
        raise bad("Federation.ptr", f"start at 0 and end at the number of rows {n}", f"{p[0]}, ..., {p[-1]}")
    if np.any(np.diff(p) < 0):
        k = int(np.argmax(np.diff(p) < 0))
        raise bad("Federation.ptr", "never decrease", f"{p[k]} then {p[k + 1]} at {k}")
    return p


def _domains(domain: Any, names: Any, n: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    if domain is None:
        if names is not None:
            raise bad("Federation.domain_labels", "come with domain, the domain of every row", "no domain")
        return None, None
    code = np.asarray(domain)
    if code.shape != (n,) or code.dtype.kind not in "iu":
        raise bad("Federation.domain", f"be {n} whole numbers, one per row", f"shape {code.shape}, dtype {code.dtype}")
    p = int(code.max()) + 1 if names is None else len(names)
    if code.min() < 0 or code.max() >= p:
        raise bad("Federation.domain", f"lie in 0, ..., {p - 1}", f"{code.min()}, ..., {code.max()}")
    if names is None:
        if p > n:
            cure = "number the domains from 0, or pass domain_labels"
            raise bad("Federation.domain", f"lie in 0, ..., {n - 1}, as {n} rows have no more domains", p - 1, cure)
        return code.astype(np.int64), np.arange(p)
    called = _names("Federation.domain_labels", names)
    if called.ndim != 1 or np.unique(called).size != p:
        raise bad("Federation.domain_labels", f"name each of the {p} domains once", f"{called.tolist()}")
    return code.astype(np.int64), called


def _encode_domains(domains: Any, labels: np.ndarray, code: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    who = "Federation.from_arrays: domains"
    if isinstance(domains, Mapping):
        missing = [k for k in labels.tolist() if k not in domains]
        if missing:
            raise bad(who, "name a domain for every client", f"none for {missing[0]!r}")
        rows = _names(who, [domains[k] for k in labels.tolist()])[code]
    else:
        rows = _names(who, domains)
    if rows.shape != (n,):
        raise bad(who, f"give one domain per row of X ({n})", f"shape {rows.shape}")
    names, number = np.unique(rows, return_inverse=True)
    return number, names


def _names(who: str, given: Any) -> np.ndarray:
    """Return names of clients or domains: all strings, all finite real numbers, or all dates.

    NumPy would make strings of [1, "a"], forget the mask of a masked array, and count every NaN as another client.
    """
    a = _listed(given)
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


def _listed(given: Any) -> np.ndarray:
    """Return an array as it is, and anything else as an array of objects, whose types are still seen."""
    if np.ma.is_masked(given):
        masked = int(np.ma.getmaskarray(given).sum())
        raise bad("Federation: names of clients and domains", "have no mask", f"{masked} masked", "drop those rows")
    if hasattr(given, "dtype") or hasattr(given, "__array__"):
        return np.asarray(given)
    try:
        a = np.asarray(given, dtype=object)
        return a if a.dtype.kind != "O" or len({type(v) for v in a.ravel().tolist()}) != 1 else np.asarray(given)
    except ValueError:  # ragged
        raise bad("Federation: names", "be a flat list", f"{given!r}", "one name per row or client") from None
