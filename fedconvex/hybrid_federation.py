"""Hybrid data: owners of arbitrary blocks of rows and columns of one table, and those who know the labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, flag, instance, numeric, raw, text, whole, wrong_type
from fedconvex._sparse import sound_csr
from fedconvex.federation import CSR, Federation
from fedconvex.federation_input import draw_keys, frozen, matrix, names_of
from fedconvex.roster import Roster
from fedconvex.tables.frame import Frame, parsed_number
from fedconvex.tables.joining import keyed
from fedconvex.tables.moments import moments

__all__ = ["HybridFederation"]


@dataclass(frozen=True, eq=False, repr=False)
class HybridFederation:
    """Blocks of rows and columns of one table: G groups of rows, B groups of columns, one owner a block or none.

    Rows of a group have the same owners, and so have columns of a group. A block that nobody owns is missing: its
    entries are zero. The K parties of a run are the blocks that are owned; an owner of several works on each. Whoever
    knows the labels plays the server. Most users call `from_blocks`.

    Parameters
    ----------
    rows : Federation
        All columns of all rows; its clients are the G groups of rows.
    ptr : int array (B+1,)
        Column pointers, 0 = ptr[0] < ... < ptr[B] = d.
    holder : int array (G, B)
        Number of the owner of each block, -1 for a missing one.
    owners : sequence, optional
        Names of the owners; default 0, 1, ...
    row_ids : sequence (n,), optional
        Names of the rows, in the order of ``rows``.
    feature_names : sequence (d,), optional
        Names of the columns, in the order of ``rows``.

    Raises
    ------
    ValueError, TypeError
        If rows carry weights, pointers do not fit, an owner has no block or zeros only, a group has no owner, or a
        missing block has entries.

    Examples
    --------
    >>> from fedconvex import HybridFederation
    >>> fed = HybridFederation.from_blocks({
    ...     "north": ([[1.0, 2.0], [3.0, 4.0]], ["a", "b"], ["age", "income"], [1.0, -1.0]),
    ...     "south": ([[5.0], [6.0]], ["c", "d"], ["age"], [1.0, -1.0]),
    ...     "lab": ([[7.0], [8.0], [9.0]], ["c", "b", "a"], ["sugar"]),
    ... })
    >>> fed
    HybridFederation(6 of 9 blocks of 3 owners, 4 rows in 3 groups, 3 features in 3 groups, dense)
    >>> fed.missing
    (('south+lab', ('income',)), ('south', ('income',)), ('south', ('sugar',)))
    """

    rows: Federation
    ptr: np.ndarray
    holder: np.ndarray
    owners: np.ndarray = None  # type: ignore[assignment]
    row_ids: Any = None
    feature_names: Any = None

    def __post_init__(self) -> None:
        who, fed = "HybridFederation", self.rows
        instance(f"{who}.rows", fed, Federation)
        if fed.sample_weight is not None:
            raise bad(f"{who}.rows", "be without row weights", "row weights")
        ptr, holder = raw(f"{who}.ptr", self.ptr), raw(f"{who}.holder", self.holder)
        fits = ptr.ndim == 1 and ptr.size > 1 and ptr.dtype.kind in "iu" and ptr[0] == 0 and ptr[-1] == fed.d
        if not fits or (np.diff(ptr.astype(np.int64)) <= 0).any():
            raise bad(
                f"{who}.ptr", f"be whole numbers that increase from 0 to the number of features {fed.d}", f"{ptr}"
            )
        shape = (fed.K, ptr.size - 1)
        if (
            holder.shape != shape
            or holder.dtype.kind not in "iu"
            or not -1 <= holder.min() <= holder.max() <= holder.size
            or holder.max() < 0
        ):
            raise bad(f"{who}.holder", f"be numbers of owners of shape {shape}, -1 for missing blocks", f"{holder!r}")
        count = int(holder.max()) + 1
        owners = np.arange(count) if self.owners is None else names_of(f"{who}.owners", self.owners)
        if owners.shape != (count,) or np.unique(owners).size != count:
            raise bad(f"{who}.owners", f"be {count} different names of owners", f"{owners.tolist()}")
        for name, value in (("ptr", ptr.astype(np.int64)), ("holder", holder.astype(np.int64)), ("owners", owners)):
            object.__setattr__(self, name, frozen(value.copy()))
        for name, size in (("row_ids", fed.n), ("feature_names", fed.d)):
            if getattr(self, name) is not None:
                names = names_of(f"{who}.{name}", getattr(self, name))
                if names.shape != (size,) or len(set(names.tolist())) != size:
                    raise bad(f"{who}.{name}", f"be {size} different names", f"{names.size} of shape {names.shape}")
                object.__setattr__(self, name, frozen(names) if name == "row_ids" else tuple(names.tolist()))
        self._check_blocks()

    def _check_blocks(self) -> None:
        """Raise if an owner has nothing, a group nobody, or a missing block entries."""
        who = "HybridFederation"
        filled = np.array([[_any(self._cell(g, b)) for b in range(self.B)] for g in range(self.G)])
        for k, name in enumerate(self.owners.tolist()):
            if not (self.holder == k).any():
                raise bad(f"{who}: owner {name}", "have rows and columns", "no block", "leave it out")
            if not filled[self.holder == k].any():
                cure = "leave it out: it adds nothing to any score"
                raise bad(f"{who}: owner {name}", "have an entry that is not zero", "zeros only", cure)
        for axis, what in ((1, "rows"), (0, "columns")):
            none = np.flatnonzero((self.holder < 0).all(axis=axis))
            if none.size:
                raise bad(f"{who}: group {none[0]} of {what}", "have an owner", "none", f"leave these {what} out")
        for g, b in np.argwhere(filled & (self.holder < 0)):
            raise bad(f"{who}: block ({g}, {b}), which is missing", "be zero", "entries", "name its owner in holder")

    @classmethod
    def from_blocks(cls, blocks: Any) -> HybridFederation:
        """Bring the blocks of owners together, by the names of rows and columns.

        Parameters
        ----------
        blocks : mapping from owner to (X, rows, columns) or (X, rows, columns, y)
            X (n_k, d_k), array or scipy sparse matrix; names of its rows and of its columns; and the labels of the
            rows, where the owner knows them. CSR if all are sparse.

        Raises
        ------
        ValueError, TypeError
            If an owner has no rows or names a row or column twice, two owners have the same column of the same row,
            or the label of a row is known to nobody or to two owners.

        Examples
        --------
        >>> from fedconvex import HybridFederation
        >>> fed = HybridFederation.from_blocks({
        ...     "a": ([[1.0], [2.0]], [1, 2], ["u"], [1.0, -1.0]), "b": ([[3.0], [4.0]], [2, 1], ["v"])
        ... })
        >>> fed.rows.X.tolist(), fed.missing
        ([[1.0, 4.0], [2.0, 3.0]], ())
        """
        who = "HybridFederation.from_blocks"
        if not isinstance(blocks, Mapping):
            raise wrong_type(f"{who}: blocks", "be a mapping from owner to (X, rows, columns[, y])", f"{type(blocks)}")
        if not blocks:
            raise bad(f"{who}: blocks", "hold at least one owner", "none")
        each = {name: _block(f"{who}: block of {name}", block) for name, block in blocks.items()}
        row_of, row_groups = _groups({name: b[1] for name, b in each.items()})
        column_of, column_groups = _groups({name: b[2] for name, b in each.items()})
        holder, names = np.full((len(row_groups), len(column_groups)), -1), list(each)
        for g, (theirs, ids) in enumerate(row_groups.items()):
            for b, (others, columns) in enumerate(column_groups.items()):
                both = [name for name in theirs if name in others]
                if len(both) > 1:
                    got = f"column {columns[0]!r} of row {ids[0]!r} at {both[0]} and {both[1]}"
                    raise bad(f"{who}: blocks", "not overlap", got, "leave it out of one of them")
                if both:
                    holder[g, b] = names.index(both[0])
        y, X = _labels(who, each, row_of), _joined(each, row_of, column_of)
        ends = np.cumsum([0, *(len(ids) for ids in row_groups.values())])
        groups = np.array(["+".join(map(str, theirs)) for theirs in row_groups])
        rows = Federation(X, y, ends, groups if np.unique(groups).size == groups.size else np.arange(groups.size))
        ptr = np.cumsum([0, *(len(columns) for columns in column_groups.values())])
        return cls(rows, ptr, holder, np.asarray(names), [*row_of], [*column_of])

    @classmethod
    def from_frames(cls, tables: Any, on: str, target: str, *, standardise: bool = True) -> HybridFederation:
        """Bring the tables of owners together by an id and the names of columns, which hold numbers.

        Parameters
        ----------
        tables : mapping from owner to table
            Files, DataFrames, or mappings from column to values; each with the column of ids, and columns of numbers
            without gaps. Columns of one name are one column, of other rows.
        on : str
            The column of ids.
        target : str
            The column to predict, at the owners who know it. Two classes become -1 and 1.
        standardise : bool
            Give every column mean 0 and variance 1 over all rows that have it, which sums over owners tell: then what
            is missing counts as the mean.

        Raises
        ------
        ValueError, TypeError
            If ids are missing or stand twice at an owner, a table has no column of numbers, one has gaps or is constant
            zero, and as `from_blocks`.

        Examples
        --------
        >>> from fedconvex import HybridFederation
        >>> north = {"id": ["a", "b"], "age": [61, 37], "ill": ["y", "n"]}
        >>> south = {"id": ["c", "d"], "age": [52, 40], "ill": ["n", "y"]}
        >>> lab = {"id": ["d", "c", "a"], "sugar": [5.5, 4.0, 6.1]}
        >>> fed = HybridFederation.from_frames({"north": north, "south": south, "lab": lab}, on="id", target="ill")
        >>> fed.missing, fed.y.tolist()
        ((('north', ('sugar',)),), [1.0, -1.0, -1.0, 1.0])
        """
        who = "HybridFederation.from_frames"
        if not isinstance(tables, Mapping) or not tables:
            raise wrong_type(f"{who}: tables", "be a mapping from owners to tables", f"{tables!r}")
        flag(f"{who}: standardise", standardise)
        text(f"{who}: target", target)
        read = {owner: keyed(str(owner), table, on) for owner, table in tables.items()}
        values = {owner: _numbers(f"{who}: table of {owner}", frame, on, target) for owner, (frame, _) in read.items()}
        columns = {name for mine in values.values() for name in mine} if standardise else set()
        for name in columns:
            whole_ = np.concatenate([mine[name] for mine in values.values() if name in mine])
            (center,), (spread,) = moments(whole_[:, None], [name])
            scale = spread if spread > 1e-12 * abs(center) else 1.0  # a constant column stays without scale
            for mine in values.values():
                if name in mine:
                    mine[name] = (mine[name] - center) / scale
        labels = _classes(who, {owner: frame for owner, (frame, _) in read.items() if target in frame.cells}, target)
        return cls.from_blocks({
            owner: (np.column_stack([*mine.values()]), read[owner][1], [*mine], *labels.get(owner, ()))
            for owner, mine in values.items()
        })  # fmt: skip

    @classmethod
    def from_grid(cls, X: Any, y: Any, row_groups: int, column_groups: int) -> HybridFederation:
        """Cut a table into row_groups times column_groups blocks of nearly equal size, an owner each.

        Raises
        ------
        ValueError, TypeError
            If a number of groups is below 1, or above that of rows or columns.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex import HybridFederation
        >>> HybridFederation.from_grid(np.ones((10, 5)), np.ones(10), 2, 3)
        HybridFederation(6 blocks of 6 owners, 10 rows in 2 groups, 5 features in 3 groups, dense)
        """
        who, X = "HybridFederation.from_grid", matrix(X)
        (n, d), sizes = X.shape, []
        for name, parts, most in (("row_groups", row_groups, n), ("column_groups", column_groups, d)):
            G = whole(f"{who}: {name}", parts, low=1, high=most)
            sizes.append(np.arange(G + 1) * most // G)
        holder = np.arange((len(sizes[0]) - 1) * (len(sizes[1]) - 1)).reshape(len(sizes[0]) - 1, -1)
        return cls(Federation(X, y, sizes[0]), sizes[1], holder)

    # ---------------------------------------------------------------- sizes and names

    @property
    def G(self) -> int:
        """Number of groups of rows."""
        return self.rows.K

    @property
    def B(self) -> int:
        """Number of groups of columns."""
        return int(self.ptr.size - 1)

    @cached_property
    def cells(self) -> np.ndarray:
        """Row group and column group of every block that is owned, (K, 2)."""
        return np.argwhere(self.holder >= 0)

    @property
    def K(self) -> int:
        """Number of blocks that are owned."""
        return len(self.cells)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.n

    @property
    def d(self) -> int:
        """Number of features."""
        return self.rows.d

    @cached_property
    def heights(self) -> np.ndarray:
        """Numbers of rows of the blocks, (K,)."""
        return np.asarray(self.rows.sizes[self.cells[:, 0]])

    @cached_property
    def widths(self) -> np.ndarray:
        """Numbers of columns of the blocks, (K,)."""
        return np.diff(self.ptr)[self.cells[:, 1]]

    @property
    def is_sparse(self) -> bool:
        """Whether blocks are CSR."""
        return self.rows.is_sparse

    @property
    def y(self) -> np.ndarray:
        """Labels, (n,)."""
        return self.rows.y

    @cached_property
    def labels(self) -> np.ndarray:
        """Names of the blocks, (K,): those of their owners, with the places of the blocks of owners of several."""
        owner = self.holder[tuple(self.cells.T)]
        if np.bincount(owner).max() == 1:
            return frozen(self.owners[owner])
        names = [
            str(self.owners[k]) if (owner == k).sum() == 1 else f"{self.owners[k]} ({g}, {b})"
            for k, (g, b) in zip(owner, self.cells.tolist(), strict=True)
        ]
        return frozen(np.array(names))

    @cached_property
    def ids(self) -> np.ndarray:
        """Keys of the blocks' random draws, (K,), made from their names."""
        return draw_keys(self.labels)

    @cached_property
    def by_key(self) -> np.ndarray:
        """Numbers of the blocks in the order of their keys, (K,)."""
        return np.argsort(self.ids)

    @cached_property
    def roster(self) -> Roster:
        """The blocks as a server knows them."""
        return Roster(self.labels, self.ids, self.heights, self.heights.astype(float), self.d, None)

    @property
    def columns(self) -> None:
        """The record of raw columns: blocks have none."""
        return

    n_domains = 0
    sample_weight = None

    @cached_property
    def missing(self) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
        """Row group and columns of every block that nobody owns."""
        names = tuple(range(self.d)) if self.feature_names is None else self.feature_names
        label = self.rows.labels.tolist()
        empty = np.argwhere(self.holder < 0)
        return tuple((label[g], names[self.ptr[b] : self.ptr[b + 1]]) for g, b in empty)

    @cached_property
    def digest(self) -> str:
        """A digest of rows, pointers, owners and names."""
        told = self.rows.digest.encode() + self.ptr.tobytes() + self.holder.tobytes()
        return hashlib.blake2b(told + repr(self.labels.tolist()).encode(), digest_size=16).hexdigest()

    # ---------------------------------------------------------------- rows

    def place(self, k: int) -> tuple[slice, slice]:
        """Return the rows and the columns of block k in the joined table."""
        g, b = self.cells[whole("HybridFederation.place: k", k, low=0, high=self.K - 1)]
        return slice(int(self.rows.ptr[g]), int(self.rows.ptr[g + 1])), slice(int(self.ptr[b]), int(self.ptr[b + 1]))

    def block(self, k: int) -> Any:
        """Return block k: a view of dense rows, or CSR."""
        return self._blocks[whole("HybridFederation.block: k", k, low=0, high=self.K - 1)]

    @cached_property
    def sparse_rows(self) -> tuple[CSR, ...]:
        """CSR blocks as kernels take them."""
        pointers = ((X.indices.astype(np.int32), X.indptr.astype(np.int64)) for X in self._blocks)
        return tuple(CSR(X.data, *arrays) for X, arrays in zip(self._blocks, pointers, strict=True))

    @cached_property
    def _blocks(self) -> tuple[Any, ...]:
        return tuple(self._cell(g, b) for g, b in self.cells)

    def _cell(self, g: int, b: int) -> Any:
        mine = slice(int(self.rows.ptr[g]), int(self.rows.ptr[g + 1]))
        return self.rows.X[mine, int(self.ptr[b]) : int(self.ptr[b + 1])]

    def __repr__(self) -> str:
        all_, kind = self.G * self.B, "CSR" if self.is_sparse else "dense"
        blocks = f"{self.K} of {all_} blocks" if self.K < all_ else f"{_counted(self.K, 'block')}"
        rows, features = f"{self.n:,} rows in {_counted(self.G, 'group')}", _counted(self.B, "group")
        owners = _counted(self.owners.size, "owner")
        return f"HybridFederation({blocks} of {owners}, {rows}, {self.d:,} features in {features}, {kind})"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _any(X: Any) -> bool:
    return bool((X.data if sp.issparse(X) else X).any())


def _block(who: str, block: Any) -> tuple[Any, list[Any], list[Any], np.ndarray | None]:
    """Return one owner's rows, the names of rows and columns, and the labels it knows."""
    if not isinstance(block, (tuple, list)) or len(block) not in (3, 4):
        raise wrong_type(who, "be (X, rows, columns) or (X, rows, columns, y)", type(block).__name__)
    rows = sound_csr(f"{who}: X", block[0])
    X = rows if sp.issparse(rows) else numeric(f"{who}: X", rows)
    if X.ndim != 2 or 0 in X.shape:
        raise bad(f"{who}: X", "have at least one row and one column", f"shape {X.shape}", "leave the owner out")
    entries: Any = X.data if sp.issparse(X) else X
    if off := int((~np.isfinite(entries)).sum()) if entries.dtype.kind == "f" else 0:
        raise bad(f"{who}: X", "be finite", f"NaN or infinity {off} times", "drop or impute them")
    X, names = matrix(X), []
    for what, given, size in (("rows", block[1], X.shape[0]), ("columns", block[2], X.shape[1])):
        called = names_of(f"{who}: {what}", given)
        if called.ndim != 1:
            raise bad(f"{who}: {what}", f"be {size} names", f"shape {called.shape}")
        names.append((called.astype(str) if called.dtype.kind == "M" else called).tolist())  # dates as files write them
        if len(names[-1]) != size:
            raise bad(f"{who}: {what}", f"be {size} names", f"{len(names[-1])}")
        if len(set(names[-1])) != size:
            twice = next(v for v in names[-1] if names[-1].count(v) > 1)
            raise bad(f"{who}: {what}", "be named once each", f"{twice!r} {names[-1].count(twice)} times")
    y = block[3] if len(block) == 4 else None
    if y is not None:
        y = numeric(f"{who}: y", y)
        if y.shape != (X.shape[0],):
            raise bad(f"{who}: y", f"have one label per row ({X.shape[0]})", f"shape {y.shape}")
    return X, names[0], names[1], y


def _numbers(who: str, frame: Frame, on: str, target: str) -> dict[str, np.ndarray]:
    """Return an owner's columns of numbers."""
    found = {name: frame.numbers(name) for name in frame.names if name not in (on, target)}
    if not found:
        raise bad(who, "have a column beside ids and target", "none", "give the labels to an owner of columns")
    for name, cells in found.items():
        if not np.isfinite(cells).all():
            row = int(np.argmax(~np.isfinite(cells))) + 1
            raise bad(f"{who}, column {name!r}", "hold a number in every row", f"{cells[row - 1]:g} in row {row}")
    return found


def _classes(who: str, frames: Mapping[Any, Frame], target: str) -> dict[Any, tuple[np.ndarray]]:
    """Return the labels of owners who know them: -1 and 1 for two classes, else numbers."""
    if not frames:
        raise bad(f"{who}: target", "be a column of one of the owners", repr(target))
    texts = {owner: frame.text(target).tolist() for owner, frame in frames.items()}
    found = {v for column in texts.values() for v in column}
    if None in found:
        owner = next(owner for owner, column in texts.items() if None in column)
        raise bad(f"{who}: {target!r} of {owner}", "have a label in every row", "a gap", "leave these rows out")
    read = {v: v if parsed_number(v) is None else parsed_number(v) for v in found}  # "1" is "1.0"
    kinds = set(read.values())
    if len(kinds) != 2:
        words = sorted(v for v in kinds if isinstance(v, str))
        if words:
            got = ", ".join(map(repr, sorted(found)[:5]))
            raise bad(f"{who}: {target!r}", "hold numbers, or two classes", f"{len(kinds)} values: {got}")
        return {owner: (frame.numbers(target),) for owner, frame in frames.items()}
    high = max(kinds, key=lambda v: (isinstance(v, str), 0.0 if isinstance(v, str) else v, str(v)))
    return {owner: (np.array([1.0 if read[v] == high else -1.0 for v in column]),) for owner, column in texts.items()}


def _groups(names: Mapping[Any, list[Any]]) -> tuple[dict[Any, int], dict[tuple[Any, ...], list[Any]]]:
    """Return the place of every name, group by group, and the groups: names of the same owners, by these."""
    owners: dict[Any, list[Any]] = {}
    for owner, theirs in names.items():
        for name in theirs:
            owners.setdefault(name, []).append(owner)
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for name, whose in owners.items():
        groups.setdefault(tuple(whose), []).append(name)
    return {name: i for i, name in enumerate(name for theirs in groups.values() for name in theirs)}, groups


def _labels(who: str, each: Mapping[Any, Any], row_of: Mapping[Any, int]) -> np.ndarray:
    """Return the label of every row, which exactly one owner knows."""
    y, source = np.zeros(len(row_of)), np.full(len(row_of), -1)
    for k, (name, (_, rows, _, labels)) in enumerate(each.items()):
        if labels is None:
            continue
        at = np.array([row_of[row] for row in rows])
        twice = np.flatnonzero(source[at] >= 0)
        if twice.size:
            got = f"row {rows[twice[0]]!r} at {[*each][source[at[twice[0]]]]} and {name} ({twice.size} such rows)"
            raise bad(f"{who}: labels", "be at one owner", got, "pass y of one of them only")
        y[at], source[at] = labels, k
    without = np.flatnonzero(source < 0)
    if without.size:
        ids = list(row_of)
        shown = ", ".join(repr(ids[i]) for i in without[:5]) + (", ..." if without.size > 5 else "")
        got = f"{without.size} without ({shown})"
        raise bad(f"{who}: rows", "each have a label at one of the owners", got, "leave unmatched rows out")
    return y


def _joined(each: Mapping[Any, Any], row_of: Mapping[Any, int], column_of: Mapping[Any, int]) -> Any:
    """Return the table of all rows and columns, zeros where nobody has anything."""
    parts, shape = [], (len(row_of), len(column_of))
    for X, rows, columns, _ in each.values():
        coo = sp.coo_array(X)
        at, across = np.array([row_of[row] for row in rows]), np.array([column_of[c] for c in columns])
        parts.append((coo.data, at[coo.coords[0]], across[coo.coords[1]]))
    data, at, across = (np.concatenate(vs) for vs in zip(*parts, strict=True))
    table = sp.csr_array((data, (at, across)), shape=shape)
    return table if all(sp.issparse(X) for X, *_ in each.values()) else table.toarray()
