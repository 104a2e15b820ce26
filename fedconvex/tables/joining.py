"""Tables of several owners over the same rows, joined on an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, text, wrong_type
from fedconvex.tables.frame import Frame
from fedconvex.tables.reading import read_frame
from fedconvex.tables.spelling import doubles


class Join(NamedTuple):
    """Rows that all owners have, in the order of the first owner's table.

    Parameters
    ----------
    frame : Frame
        The columns of all owners, owner after owner, without the id.
    owner_of : dict from str to str
        Whose column it is.
    ids : array (n,) of str
        Of the joined rows.
    unmatched : dict from owner to tuple of str
        Ids that some other owner does not have: their rows are left out.
    """

    frame: Frame
    owner_of: dict[str, str]
    ids: np.ndarray
    unmatched: dict[str, tuple[str, ...]]

    def ending_with(self, owner: str) -> Join:
        """Return the same rows, the columns of that owner last."""
        cells, last = self.frame.cells, {name for name, other in self.owner_of.items() if other == owner}
        names = sorted(cells, key=last.__contains__)  # stable
        unmatched = {k: self.unmatched[k] for k in sorted(self.unmatched, key=owner.__eq__)}
        return self._replace(frame=replace(self.frame, cells={c: cells[c] for c in names}), unmatched=unmatched)

    def __str__(self) -> str:
        lines = [f"{len(self.ids):,} rows of {len(self.unmatched)} owners"]
        for owner, left in self.unmatched.items():
            some = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            lines.append(f"{owner}: {len(left):,} left out" + (f" ({some})" if left else ""))
        two = doubles(i for left in self.unmatched.values() for i in left)
        if two is not None:
            lines.append(f"ids {two[0]!r} and {two[1]!r} are one number: write them alike")
        return "\n".join(lines)


def joined(tables: Any, on: str, drop: Collection[str] = ()) -> Join:
    """Join tables on a column of ids that every one of them has.

    Parameters
    ----------
    tables : mapping from owner to table
        What `read_frame` reads: a file, a frame, a mapping from column to values.
    on : str
        The column of ids. "7" and "7.0" are one id; otherwise ids are compared as they are written: "007" is not "7".
    drop : collection of str
        Columns to leave out, at whoever has them.

    Raises
    ------
    ValueError, TypeError
        If an owner lacks the column, an id is missing or stands twice, two owners have a column of one name, or no id
        is everybody's.

    Examples
    --------
    >>> from fedconvex.tables.joining import joined
    >>> bank = {"customer": ["a", "b", "c"], "income": [3.0, 1.0, 2.0]}
    >>> found = joined({"bank": bank, "shop": {"customer": ["c", "a", "x"], "visits": [9.0, 5.0, 1.0]}}, "customer")
    >>> found.ids.tolist(), found.frame.cells["visits"].tolist()
    (['a', 'c'], [5.0, 9.0])
    >>> print(found)
    2 rows of 2 owners
    bank: 1 left out (b)
    shop: 1 left out (x)
    """
    text("joined: on", on)
    if not isinstance(tables, Mapping) or len(tables) < 1:
        raise wrong_type("joined: tables", "be a mapping from owners to tables", f"{tables!r}")
    names = [str(owner) for owner in tables]
    if len(set(names)) < len(names):
        raise bad("joined: tables", "have different names of owners", ", ".join(map(repr, tables)))
    frames = {name: _read(name, table, on, drop) for name, table in zip(names, tables.values(), strict=True)}
    places = {owner: _places(owner, frame, on) for owner, frame in frames.items()}
    common = set.intersection(*(set(p) for p in places.values()))
    first = next(iter(places.values()))
    ids = [i for i in first if i in common]
    if not ids:
        some = "; ".join(f"{owner}: {', '.join(list(p)[:3])}, ..." for owner, p in places.items())
        raise bad("joined", f"find ids in column {on!r} that all owners have", some, "compare how ids are written")
    owner_of = _owners(frames, on)
    parts = [frame.take([places[owner][i] for i in ids]) for owner, frame in frames.items()]
    unmatched = {owner: tuple(i for i in p if i not in common) for owner, p in places.items()}
    return Join(_side_by_side(parts, on), owner_of, np.array(ids), unmatched)


def keyed(owner: str, table: Any, on: str) -> tuple[Frame, list[str]]:
    """Return an owner's table and the ids of its rows, as they are written.

    Raises
    ------
    ValueError, TypeError
        If there is no such column, or an id is missing or stands twice.
    """
    frame = _read(owner, table, text("joined: on", on), ())
    return frame, list(_places(owner, frame, on))


def _read(owner: str, table: Any, on: str, drop: Collection[str]) -> Frame:
    frame = read_frame(table, text={on})
    if frame.rows is not None:
        raise wrong_type(f"joined: table of {owner}", "have named columns", "a sparse matrix", "use from_blocks")
    if on not in frame.cells:
        raise bad(f"joined: table of {owner}", f"have the column {on!r}", ", ".join(frame.names))
    return replace(frame, cells={name: cells for name, cells in frame.cells.items() if name == on or name not in drop})


def _places(owner: str, frame: Frame, on: str) -> dict[str, int]:
    """Return the row of every id, in the order of the rows."""
    cells = frame.cells[on]
    ids = frame.text(on).tolist()
    if cells.dtype.kind == "M":  # dates of a frame: as files write them
        days = np.datetime_as_string(cells, unit="auto").tolist()
        ids = [i and day for i, day in zip(ids, days, strict=True)]
    if None in ids:
        raise bad(f"joined: column {on!r} of {owner}", "have an id in every row", f"none in row {ids.index(None) + 1}")
    twice = [(i, m) for i, m in Counter(ids).items() if m > 1]
    if twice:
        i, m = twice[0]
        got = f"{i!r} {m} times, and {len(twice) - 1:,} more ids" if len(twice) > 1 else f"{i!r} {m} times"
        raise bad(f"joined: column {on!r} of {owner}", "hold every id once", got, "sum up or drop rows first")
    return {i: row for row, i in enumerate(ids)}


def _owners(frames: Mapping[str, Frame], on: str) -> dict[str, str]:
    owner_of: dict[str, str] = {}
    for owner, frame in frames.items():
        for name in frame.cells:
            if name != on and name in owner_of:
                cure = "rename or drop one of them: a column has one owner"
                raise bad(f"joined: column {name!r}", "be of one owner", f"{owner_of[name]} and {owner}", cure)
            if name != on:
                owner_of[name] = owner
    return owner_of


def _side_by_side(parts: list[Frame], on: str) -> Frame:
    kept = {name: cells for part in parts for name, cells in part.cells.items() if name != on}
    written = {name: cells for part in parts for name, cells in part.written.items() if name != on}
    mixed = {name: words for part in parts for name, words in part.mixed.items() if name != on}
    categories = frozenset(name for part in parts for name in part.categories if name != on)
    merged = {name: words for part in parts for name, words in part.merged.items() if name != on}
    return Frame(kept, "the joined tables", mixed=mixed, categories=categories, written=written, merged=merged)
