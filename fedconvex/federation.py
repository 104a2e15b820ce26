"""All clients' rows in one contiguous client-major block: the data of a federated problem."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex import _html
from fedconvex._check import bad, finite, flag, items, numeric, raw, real, vector, whole, wrong_type
from fedconvex._sparse import CSR, largest_entries, rows_given, squared_lengths
from fedconvex.federation_input import (
    as_listed,
    client_row_weights,
    client_rows,
    domains_of,
    draw_keys,
    encode_domains,
    frozen,
    matrix,
    matrix_shape,
    names_of,
    owned,
    row_pointers,
    row_weights,
    sealed,
)
from fedconvex.roster import Roster
from fedconvex.tables.arranging import arranged

__all__ = ["CSR", "Federation"]


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
    sample_weight : array (n,), optional
        Weights of the rows, nonnegative, not all zero for a client: means over rows become weighted means, and p_k
        the client's share of all weight. Default: all rows weigh 1. A whole weight equals so many repeated rows.
    columns : Columns, optional
        What the features were made of, where they come from a table (`from_frame`): models then take raw rows.
    offset : array (n,), optional
        What is added to the score of every row, its coefficient known to be one: log exposures of counts. For
        `LikelihoodProblem`; what does not know of offsets refuses them.

    Raises
    ------
    ValueError, TypeError
        If y, labels, ids or offset do not fit the rows of X, a number is not finite, or a client has no row.

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
    sample_weight: np.ndarray | None = None
    columns: Any = None
    offset: np.ndarray | None = None

    complete = True  # whether the rows of all clients are here

    def __post_init__(self) -> None:
        X = matrix(self.X)
        y = owned(numeric("Federation.y", self.y, copy=False), self.y)
        if y.ndim != 1:
            raise bad("Federation.y", "be one-dimensional", f"shape {y.shape}")
        if y.size != X.shape[0]:
            raise bad("Federation.y", f"have one label per row of X ({X.shape[0]})", f"{y.size} labels")
        finite("Federation.y", y)
        ptr = row_pointers(self.ptr, y.size)
        K = ptr.size - 1
        labels = np.arange(K) if self.labels is None else names_of("Federation.labels", self.labels)
        if labels.shape != (K,):
            raise bad("Federation.labels", f"name each of the {K} clients once", f"shape {labels.shape}")
        if np.unique(labels).size != K:
            twice = next(v for v in labels.tolist() if (labels == v).sum() > 1)
            raise bad("Federation.labels", "differ", f"{twice!r} twice")
        ids = draw_keys(labels) if self.ids is None else raw("Federation.ids", self.ids)
        if ids.shape != (K,) or ids.dtype.kind not in "iu" or np.unique(ids).size != K or ids.min() < 0:
            raise bad("Federation.ids", f"be {K} different nonnegative whole numbers", f"{ids!r}")
        ids = ids.astype(np.int64)
        empty = np.flatnonzero(np.diff(ptr) == 0)
        if empty.size:
            raise bad(f"Federation: client {labels[empty[0]]}", "have at least one row", "0 rows", "leave it out")
        domain, names = domains_of(self.domain, self.domain_labels, y.size)
        kept = {
            "X": X,
            "y": y,
            "ptr": ptr,
            "labels": labels.copy(),
            "ids": ids,
            "domain": domain,
            "domain_labels": names,
            "sample_weight": row_weights(self.sample_weight, ptr, labels),
            "offset": None if self.offset is None else vector("Federation.offset", self.offset, y.size),
        }
        for name, v in kept.items():
            object.__setattr__(self, name, v if v is None or sp.issparse(v) else frozen(v))

    # ------------------------------------------------------------------ construction
    @classmethod
    def from_arrays(
        cls, X: Any, y: Any, clients: Any, domains: Any = None, sample_weight: Any = None, offset: Any = None
    ) -> Federation:
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
        sample_weight, offset : array (n,), optional
            Weight of every row, and what is added to its score.

        Raises
        ------
        ValueError
            On mismatched lengths, NaN, infinities, or a client that the mapping of domains leaves out.
        TypeError
            On object, string or complex features or labels, or names of clients or domains of several kinds.
        """
        who = names_of("Federation.from_arrays: clients", clients)
        n = matrix_shape(X)[0]
        if who.shape != (n,):
            raise bad("Federation.from_arrays: clients", f"name one client per row of X ({n})", f"shape {who.shape}")
        if n == 0:
            raise bad("Federation.from_arrays: X", "have at least one row", "0 rows")
        labels, code = np.unique(who, return_inverse=True)
        order = np.argsort(code, kind="stable")
        ptr = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=labels.size))])
        domain, names = (None, None) if domains is None else encode_domains(domains, labels, code, n)
        domain = None if domain is None else domain[order]
        labels_y = numeric("Federation.y", y, copy=False)
        if labels_y.shape != (n,):
            raise bad("Federation.y", f"have one label per row of X ({n})", f"shape {labels_y.shape}")
        rows = sealed(rows_given("Federation.X", X)[order])
        weight, known = (
            None if a is None else vector(f"Federation.{k}", a, n)[order]
            for k, a in (("sample_weight", sample_weight), ("offset", offset))
        )
        return cls(rows, frozen(labels_y[order]), ptr, labels, domain, names, sample_weight=weight, offset=known)

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[tuple[Any, Any]],
        labels: Sequence[Any] | None = None,
        domains: Any = None,
        sample_weight: Any = None,
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
        sample_weight : sequence of arrays (n_k,), optional
            Every client's weights of its rows.

        Raises
        ------
        ValueError
            If there is no client, a client is empty, or the widths differ.
        """
        who, pairs = "Federation.from_clients", items("Federation.from_clients: clients", clients)
        if not pairs:
            raise bad(who, "get at least one client", "none")
        names = list(range(len(pairs)) if labels is None else items(f"{who}: labels", labels))
        flat = names_of(f"{who}: labels", names).ndim == 1
        if not flat or len(names) != len(pairs) or len(set(names)) != len(names):
            raise bad(f"{who}: labels", f"name each of the {len(pairs)} clients once", f"{names!r}")
        Xs, ys = [], []  # type: list[Any], list[np.ndarray]
        for name, pair in zip(names, pairs, strict=True):
            X, y = client_rows(who, name, pair)
            if Xs and X.shape[1] != Xs[0].shape[1]:
                raise bad(f"{who}: client {name}", f"have {Xs[0].shape[1]} features like the first", f"{X.shape[1]}")
            if Xs and sp.issparse(X) != sp.issparse(Xs[0]):
                raise wrong_type(who, "get all features dense or all sparse", "a mixture")
            Xs.append(X)
            ys.append(y)
        domain = names_of_domains = None
        if domains is not None:
            per_client = items(f"{who}: domains", domains)
            if len(per_client) != len(pairs):
                raise bad(f"{who}: domains", f"have one entry per client ({len(pairs)})", f"{len(per_client)}")
            for name, q, y in zip(names, per_client, ys, strict=True):
                if np.shape(q) not in ((), y.shape):
                    must = f"be one domain, or one per row ({y.size})"
                    raise bad(f"{who}: domains of client {name}", must, f"shape {np.shape(q)}")
            parts = [np.broadcast_to(as_listed(q), y.shape) for q, y in zip(per_client, ys, strict=True)]
            alike = len({part.dtype.kind for part in parts}) == 1
            rows = np.concatenate(parts if alike else [part.astype(object) for part in parts])
            names_of_domains, domain = np.unique(names_of(f"{who}: domains", rows), return_inverse=True)
        X = sealed(sp.vstack(Xs, format="csr") if sp.issparse(Xs[0]) else np.concatenate(Xs))
        ptr = np.cumsum([0, *(y.size for y in ys)])
        weight = None if sample_weight is None else client_row_weights(who, sample_weight, names, ys)
        called = names_of(f"{who}: labels", names)
        return cls(X, np.concatenate(ys), ptr, called, domain, names_of_domains, sample_weight=weight)

    @classmethod
    def from_frame(
        cls,
        data: Any,
        target: Any = None,
        client: Any = None,
        domain: Any = None,
        weight: Any = None,
        *,
        columns: Any = None,
        intercept: bool = False,
        **choices: Any,
    ) -> Federation:
        """Group the rows of a table by client: categories one-hot, features standardised, suspicious columns refused.

        Parameters
        ----------
        data : path, DataFrame, mapping, or Frame
            What `fedconvex.tables.read_frame` reads.
        target, client, domain, weight : str
            Columns to predict, that say whose row it is, of which domain, and what it weighs.
        columns : Columns, optional
            A record of other rows, by which these are encoded. What it lacks is refused, or unknown="zero".
        intercept : bool
            Whether to append a column of ones; ``Problem(..., intercept=True)`` then leaves it free.
        **choices
            standardise, centre, standardise_target of `Columns.fit`; signs (two classes become -1 and +1; False: 0 and
            1, for `Softmax`); and what `fedconvex.tables.read_table` takes: features, drop, keep, as_category, impute,
            task, guard, sep, decimal, encoding.

        Raises
        ------
        ColumnProblems
            If columns need a decision, all of them in one message.
        ValueError, TypeError
            If there is no target or client; as `read_table`.

        Examples
        --------
        >>> from fedconvex import Federation
        >>> table = {"age": [60, 40, 50], "ward": ["a", "b", "a"], "ill": ["yes", "no", "yes"]}
        >>> fed = Federation.from_frame(table, target="ill", client="ward")
        >>> fed.labels.tolist(), fed.y.tolist(), fed.columns.labels
        (['a', 'b'], [1.0, 1.0, -1.0], ('no', 'yes'))
        """
        names, ones = (
            {"target": target, "client": client, "domain": domain, "weight": weight},
            flag("intercept", intercept),
        )
        arrays, fitted = arranged(data, names, columns, choices)
        fed = replace(cls.from_arrays(**arrays), columns=fitted)
        return fed.with_intercept() if ones else fed

    # ------------------------------------------------------------------ parts
    def subset(self, clients: Sequence[int] | np.ndarray) -> Federation:
        """Return the federation of the given client numbers, in that order, with their labels and draw keys.

        Raises
        ------
        ValueError
            If a number is out of range, repeated, or none is given.
        """
        try:
            pick = raw("Federation.subset: clients", clients)
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

        Raises
        ------
        ValueError, TypeError
            If test_size is not strictly between 0 and 1, or no client has two rows.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex import Federation
        >>> fed = Federation.from_arrays(np.arange(8.0)[:, None], np.ones(8), [0] * 4 + [1] * 4)
        >>> train, test = fed.split(0.25)
        >>> train.sizes.tolist(), test.sizes.tolist()
        ([3, 3], [1, 1])
        """
        if (share := real("Federation.split: test_size", test_size, low=0.0, high=1.0, strict=True)) >= 1.0:
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
            sealed(self.X[rows]),
            frozen(self.y[rows]),
            ptr,
            self.labels[clients],
            domain,
            self.domain_labels,
            self.ids[clients],
            None if self.sample_weight is None else self.sample_weight[rows],
            self.columns,
            None if self.offset is None else self.offset[rows],
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
        return frozen(np.diff(self.ptr))

    @cached_property
    def masses(self) -> np.ndarray:
        """Sum of the weights of each client's rows, (K,): their number unless rows carry weights."""
        if self.sample_weight is None:
            return frozen(self.sizes.astype(np.float64))
        return frozen(np.add.reduceat(self.sample_weight, self.ptr[:-1]))

    def need_equal_rows(self, who: str) -> None:
        """Raise ValueError if rows carry weights, for what does not know of them."""
        if self.sample_weight is not None:
            raise bad(who, "get rows without weights", "sample_weight", "repeat rows instead, or drop the weights")

    @cached_property
    def roster(self) -> Roster:
        """The clients as a server knows them, without rows."""
        return Roster(self.labels, self.ids, self.sizes, self.masses, self.d, self.domain_labels)

    @cached_property
    def by_key(self) -> np.ndarray:
        """Numbers of the clients in the order of their keys, (K,): draws do not depend on the order of clients."""
        return frozen(np.argsort(self.ids))

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
        return largest_entries(self.X)

    @cached_property
    def row_norms2(self) -> np.ndarray:
        """Squared length ‖x_i‖^2 of every row, (n,)."""
        return squared_lengths(self.X)

    def client_rows(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of client k, dense (n_k, d), and their targets (n_k,)."""
        k = whole("Federation.client_rows: k", k, high=self.K - 1)
        rows = slice(int(self.ptr[k]), int(self.ptr[k + 1]))
        return self.X[rows].toarray() if self.is_sparse else self.X[rows], self.y[rows]

    @cached_property
    def rows(self) -> np.ndarray | CSR:
        """X as the kernels take it: the dense array, or a `CSR` of its three arrays."""
        if not self.is_sparse:
            return self.X
        columns, pointers = self.X.indices.astype(np.int32, copy=False), self.X.indptr.astype(np.int64, copy=False)
        return CSR(self.X.data, frozen(columns), frozen(pointers))

    @cached_property
    def by_column(self) -> Any:
        """X for access by columns: the dense array, or CSC."""
        return self.X.tocsc() if self.is_sparse else self.X

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the rows, their owners and domains (a checkpoint refuses to resume on other data)."""
        h = hashlib.blake2b(digest_size=16)
        parts = [*(self.rows if self.is_sparse else (self.X,)), self.y, self.ptr, self.ids]
        h.update(str(self.X.shape).encode())
        for a in [*parts, *(a for a in (self.domain, self.sample_weight, self.offset) if a is not None)]:
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
            for a in (v.data, v.indices, v.indptr) if sp.issparse(v) else (v,) if isinstance(v, np.ndarray) else ():
                a.flags.writeable = False
            object.__setattr__(self, name, v)

    def __repr__(self) -> str:
        kind = f"sparse, {self.X.nnz / max(1, self.n * self.d):.2%} filled" if self.is_sparse else "dense"
        domains = f", {self.n_domains} domains" if self.n_domains else ""
        weighted = "" if self.sample_weight is None else ", weighted"
        weighted += "" if self.offset is None else ", with offsets"
        return f"Federation({self.K} clients, {self.n} rows, {self.d} features{domains}, {kind}{weighted})"

    _repr_html_ = _html.of_federation
