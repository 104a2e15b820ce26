"""Vertical data: owners of different columns of the same rows, and one who knows the labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, flag, instance, items, raw
from fedconvex.federation import Federation
from fedconvex.federation_input import draw_keys, frozen, matrix, names_of
from fedconvex.roster import Roster
from fedconvex.tables.joining import Join

__all__ = ["VerticalFederation"]


@dataclass(frozen=True, eq=False, repr=False)
class VerticalFederation:
    """The columns of K owners over the same n rows, owner after owner, and the labels, which the server knows.

    Columns ``ptr[k]:ptr[k+1]`` of the rows belong to owner k. Whoever knows the labels plays the server: it learns
    scores and sends slopes. Most users call `from_blocks`.

    Parameters
    ----------
    rows : Federation
        All columns of all rows, of a single client.
    ptr : int array (K+1,)
        Column pointers, 0 = ptr[0] < ptr[1] < ... < ptr[K] = d: an owner without columns is an error.
    labels : array (K,), optional
        Names of the owners; default 0, ..., K-1.
    join : Join, optional
        How the rows of tables were brought together, ids without a partner included (`from_frames`).

    Raises
    ------
    ValueError, TypeError
        If the rows are of several clients or carry weights, pointers do not fit, names are not K different ones, or all
        entries of an owner are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import VerticalFederation
    >>> fed = VerticalFederation.from_blocks({"bank": np.eye(3), "shop": [[1.0], [2.0], [3.0]]}, [1.0, -1.0, 1.0])
    >>> fed
    VerticalFederation(2 owners of 3 and 1 features, 3 rows, dense)
    >>> fed.block(1).ravel().tolist()
    [1.0, 2.0, 3.0]
    """

    rows: Federation
    ptr: np.ndarray
    labels: np.ndarray = None  # type: ignore[assignment]
    join: Join | None = None

    def __post_init__(self) -> None:
        who = "VerticalFederation"
        instance(f"{who}.rows", self.rows, Federation)
        if self.join is not None:
            instance(f"{who}.join", self.join, Join)
        fed = self.rows
        if fed.K != 1 or fed.sample_weight is not None:
            got = "row weights" if fed.sample_weight is not None else f"{fed.K}"
            raise bad(f"{who}.rows", "be of one client, without row weights", got, "pass all rows as one client")
        ptr = raw(f"{who}.ptr", self.ptr)
        must = f"be whole numbers that increase from 0 to the number of features {fed.d}"
        if ptr.ndim != 1 or ptr.size < 2 or ptr.dtype.kind not in "iu" or ptr[0] != 0 or ptr[-1] != fed.d:
            raise bad(f"{who}.ptr", must, f"{self.ptr!r}")
        if (np.diff(ptr.astype(np.int64)) <= 0).any():
            raise bad(f"{who}.ptr", must, f"{ptr.tolist()}", "leave out owners without columns")
        K = ptr.size - 1
        labels = np.arange(K) if self.labels is None else names_of(f"{who}.labels", self.labels)
        if labels.shape != (K,) or np.unique(labels).size != K:
            raise bad(f"{who}.labels", f"be {K} different names of owners", f"{labels.tolist()}")
        for name, value in (("ptr", ptr.astype(np.int64)), ("labels", labels.copy())):
            object.__setattr__(self, name, frozen(value))
        empty = [k for k in range(K) if not _any(self.block(k))]
        if empty:
            cure = "leave it out: it adds nothing to any score"
            raise bad(f"{who}: owner {labels[empty[0]]}", "have an entry that is not zero", "zeros only", cure)

    @classmethod
    def from_blocks(cls, blocks: Any, y: Any, owners: Sequence[Any] | None = None) -> VerticalFederation:
        """Put owners' blocks side by side.

        Parameters
        ----------
        blocks : mapping from name to matrix, or sequence of matrices
            One (n, d_k) array or scipy sparse matrix an owner, rows in the same order; CSR if all are sparse.
        y : array (n,)
            Labels.
        owners : sequence, optional
            Names of the owners, where blocks are a sequence.

        Raises
        ------
        ValueError, TypeError
            If there is no block, or they have different numbers of rows.

        Examples
        --------
        >>> from fedconvex import VerticalFederation
        >>> fed = VerticalFederation.from_blocks([[[1.0], [2.0]], [[0.0, 3.0], [4.0, 0.0]]], [1.0, 2.0], ["a", "b"])
        >>> fed.labels.tolist(), fed.ptr.tolist()
        (['a', 'b'], [0, 1, 3])
        """
        who = "VerticalFederation.from_blocks"
        if isinstance(blocks, Mapping):
            if owners is not None:
                raise bad(f"{who}: owners", "be left out where blocks are named", f"{owners!r}")
            owners, blocks = list(blocks), list(blocks.values())
        each = [matrix(X) for X in items(f"{who}: blocks", blocks)]
        names = list(range(len(each))) if owners is None else list(items(f"{who}: owners", owners))
        if not each or len(names) != len(each):
            raise bad(f"{who}: blocks", f"be one for each owner {names}", f"{len(each)}")
        n = each[0].shape[0]
        for name, X in zip(names, each, strict=True):
            if X.shape[0] != n:
                got, cure = f"{X.shape[0]} of {name}, {n} of {names[0]}", "join the rows by an id first"
                raise bad(f"{who}: blocks", "have the same rows in the same order", got, cure)
        sparse = all(sp.issparse(X) for X in each)
        X = sp.hstack(each, format="csr") if sparse else np.hstack([X.toarray() if sp.issparse(X) else X for X in each])
        ptr = np.concatenate([[0], np.cumsum([X.shape[1] for X in each])])
        return cls(Federation(X, y, np.array([0, n])), ptr, np.asarray(names))

    @classmethod
    def from_frames(
        cls, tables: Any, on: str, target: str, *, owner_of_target: str | None = None, intercept: bool = False,
        standardise: bool = True, drop: Sequence[str] = (), **choices: Any,
    ) -> VerticalFederation:  # fmt: skip
        """Join the tables of several owners on an id, and make features of their columns.

        Columns are decided upon, encoded and standardised as `Federation.from_frame` does it, each from its owner's
        column alone. Rows whose id some owner does not have are left out: ``join.unmatched`` lists them.

        Parameters
        ----------
        tables : mapping from owner to table
            Files, DataFrames, or mappings from column to values; each with the column of ids.
        on : str
            The column of ids.
        target : str
            The column to predict, of whichever owner. Two classes become -1 and 1.
        owner_of_target : str, optional
            Who must have it.
        intercept : bool
            Append a column of ones to the columns of the target's owner, who then comes last; l2 penalises it.
        standardise : bool
            Give features mean 0 and variance 1.
        drop : sequence of str
            Columns to leave out, at whoever has them.
        **choices
            As for `Federation.from_frame`: features, keep, as_category, impute, task, guard.

        Raises
        ------
        ValueError, TypeError
            If ids are missing or stand twice, a column has two owners, or an owner beside that of the target has no
            features; if rows are to have weights, clients or domains, or one way is given to read all files; and as
            `fedconvex.tables.read_table`.

        Examples
        --------
        >>> from fedconvex import VerticalFederation
        >>> bank = {"customer": ["a", "b", "c", "d"], "income": [3.5, 1.0, 2.0, 1.5], "default": [0, 1, 0, 1]}
        >>> shop = {"customer": ["d", "c", "x", "a"], "visits": [9.5, 5.0, 1.0, 2.0]}
        >>> fed = VerticalFederation.from_frames({"bank": bank, "shop": shop}, on="customer", target="default")
        >>> fed
        VerticalFederation(2 owners of 1 and 1 features, 3 rows, dense)
        >>> fed.y.tolist(), fed.join.unmatched
        ([-1.0, -1.0, 1.0], {'bank': ('b',), 'shop': ('x',)})
        """
        found, frame, planned = planned_join(tables, on, target, owner_of_target, intercept, drop, choices)
        columns = planned.fit(frame, standardise=standardise)
        rows, width = owners_rows(columns, frame, intercept), owners_widths(columns, found, target, intercept)
        return cls(rows, np.cumsum([0, *width.values()]), np.array([*width]), found)

    # ---------------------------------------------------------------- sizes and names

    @property
    def K(self) -> int:
        """Number of owners."""
        return int(self.ptr.size - 1)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.n

    @property
    def d(self) -> int:
        """Number of features of all owners."""
        return self.rows.d

    @cached_property
    def widths(self) -> np.ndarray:
        """Numbers of features of the owners, (K,)."""
        return np.diff(self.ptr)

    @property
    def is_sparse(self) -> bool:
        """Whether blocks are CSR."""
        return self.rows.is_sparse

    @property
    def y(self) -> np.ndarray:
        """Labels, (n,)."""
        return self.rows.y

    @cached_property
    def ids(self) -> np.ndarray:
        """Keys of the owners' random draws, (K,), made from their names."""
        return draw_keys(self.labels)

    @cached_property
    def by_key(self) -> np.ndarray:
        """Numbers of the owners in the order of their keys, (K,)."""
        return np.argsort(self.ids)

    @cached_property
    def roster(self) -> Roster:
        """The owners as a server knows them."""
        each = np.full(self.K, self.n)
        return Roster(self.labels, self.ids, each, each.astype(float), self.d, None)

    @property
    def columns(self) -> Any:
        """The record of raw columns, where rows come from tables."""
        return self.rows.columns

    n_domains = 0
    sample_weight = None

    @cached_property
    def digest(self) -> str:
        """A digest of rows, pointers and names."""
        told = self.rows.digest.encode() + self.ptr.tobytes() + repr(self.labels.tolist()).encode()
        return hashlib.blake2b(told, digest_size=16).hexdigest()

    # ---------------------------------------------------------------- rows

    def block(self, k: int) -> Any:
        """Return X_k (n, d_k): a view of dense rows, or CSR."""
        return self._blocks[int(k)]

    @cached_property
    def _blocks(self) -> tuple[Any, ...]:
        X, pairs = self.rows.X, zip(self.ptr[:-1], self.ptr[1:], strict=True)
        return tuple(X[:, a:b] for a, b in pairs)

    def __repr__(self) -> str:
        widths = self.widths.tolist()
        some = ", ".join(map(str, widths[:-1])) + f" and {widths[-1]}" if self.K > 1 else f"{widths[0]}"
        some = some if self.K <= 6 else f"{min(widths)} to {max(widths)}"
        owners = "owner" if self.K == 1 else "owners"
        kind = "CSR" if self.is_sparse else "dense"
        return f"VerticalFederation({self.K} {owners} of {some} features, {self.n:,} rows, {kind})"


def _refuse(who: str, choices: Mapping[str, Any]) -> None:
    """Raise on what `read_table` takes, and rows of several owners do not have."""
    for name in ("client", "domain", "weight", "sep", "decimal", "encoding"):
        if choices.get(name) is not None:
            read = "read the files with read_frame first"
            cure = read if name in ("sep", "decimal", "encoding") else f"drop the column: drop=[{choices[name]!r}]"
            raise bad(f"{who}: {name}", "be left out", repr(choices[name]), cure)


def planned_join(
    tables: Any, on: str, target: str, owner: str | None, intercept: bool, drop: Sequence[str], choices: dict[str, Any]
) -> tuple[Join, Any, Any]:
    """Return joined tables, their frame, and what becomes of its columns; nothing is fitted yet."""
    from fedconvex.tables.joining import joined
    from fedconvex.tables.reading import read_table

    who, dropped = "VerticalFederation.from_frames", list(items("VerticalFederation.from_frames: drop", drop))
    _refuse(who, choices)
    flag(f"{who}: intercept", intercept)
    found = joined(tables, on, dropped)
    if target not in found.owner_of:
        raise bad(f"{who}: target", "be a column of one of the owners", repr(target))
    if owner not in (None, found.owner_of[target]):
        raise bad(f"{who}: owner_of_target", f"have the column {target!r}", f"{owner}; {found.owner_of[target]} has it")
    if intercept:
        found = found.ending_with(found.owner_of[target])
    return found, *read_table(found.frame, target, **choices)


def owners_rows(columns: Any, frame: Any, intercept: bool, unknown: str = "warn") -> Federation:
    """Return the rows of a frame as fitted columns encode them, of a single client."""
    y = columns.target(frame)
    if columns.labels is None:
        y = (y - columns.target_center) / columns.target_scale
    elif len(columns.labels) == 2:
        y = 2.0 * y - 1.0
    rows = Federation(columns.standardised(columns.matrix(frame, unknown)), y, np.array([0, len(y)]))
    return replace(rows.with_intercept() if intercept else rows, columns=columns)


def owners_widths(columns: Any, found: Join, target: str, intercept: bool) -> dict[str, int]:
    """Return how many features the owners have; who knows the target only is no owner, unless of the intercept."""
    width, knows = dict.fromkeys(found.unmatched, 0), found.owner_of[target]
    for c in columns.features:
        width[found.owner_of[c.name]] += len(c.features)
    bare = [name for name, w in width.items() if not w and name != knows]
    if bare:
        who = f"VerticalFederation.from_frames: table of {bare[0]}"
        raise bad(who, "have a column that makes a feature", "none", "leave it out")
    width[knows] += intercept
    return {name: w for name, w in width.items() if w}


def _any(X: Any) -> bool:
    return bool((X.data if sp.issparse(X) else X).any())
