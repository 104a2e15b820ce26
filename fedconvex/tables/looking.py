"""What a table has that a model would stumble over, by column and client, before anything is fitted.

A line says where cells are missing, where a column never changes though it does elsewhere, which numbers may stand for
missing cells, and where a client writes, or measures, differently from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.tables.by_client import Places, missing_codes
from fedconvex.tables.frame import Frame
from fedconvex.tables.reading import read_frame
from fedconvex.tables.spelling import as_text

HEADS = ["column", "client", "rows", "missing", "what is found"]
_ENOUGH = 10  # rows of a client below which it is compared with no other
_SHOWN = 4  # names that are listed


class Finding(NamedTuple):
    """One column at one client.

    Attributes
    ----------
    column, client : str
        Which.
    rows, missing : int
        Rows of the client, and its missing cells.
    found : str
        In words; "" where cells are missing and nothing else is.

    Examples
    --------
    >>> from fedconvex.tables import Finding
    >>> Finding("chol", "Budapest", 294, 23, "").missing
    23
    """

    column: str
    client: str
    rows: int  # of the client
    missing: int
    found: str  # in words; "" where cells are missing and nothing else is


def look(data: Any, client: str | None = None, **reading: Any) -> list[Finding]:
    """Return what is missing, constant or differently coded where, one finding per client and column.

    Parameters
    ----------
    data
        What `read_frame` reads.
    client : str, optional
        Column that says whose row it is; without it the table is taken as one client's, "all".
    **reading
        sep, decimal, encoding: see `read_frame`.

    Raises
    ------
    ValueError
        If the table has no column client.

    Examples
    --------
    >>> from fedconvex.tables import look
    >>> table = {"chol": [0.0] * 12 + [180.0 + i for i in range(12)], "ward": ["a"] * 12 + ["b"] * 12}
    >>> [(f.column, f.client, f.missing, f.found) for f in look(table, "ward")]
    [('chol', 'a', 0, '0 in all rows; 0 in 12 cells, which may mean missing')]
    """
    frame = read_frame(data, text=() if client is None else (client,), **reading)
    if client is not None and client not in frame.names:
        from fedconvex._check import bad

        raise bad(frame.origin, f"have the column {client!r}", f"columns {', '.join(frame.names)}")
    return list(findings(frame, Places.of(frame, client), [n for n in frame.cells if n != client]))


def findings(frame: Frame, places: Places, names: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings of some columns; places without clients count as one, "all"."""
    if not places.names:
        places = Places(("all",), np.zeros(frame.n, dtype=np.int64))
    sizes = places.sizes.tolist()
    for name in names:
        gone = frame.missing(name)
        numbers = frame.cells[name].dtype.kind == "f"
        codes = missing_codes(frame.cells[name]) if numbers else []
        for k, client in enumerate(places.names):
            mine = places.code == k
            said = list(_said(frame, name, mine, gone, codes)) if sizes[k] >= _ENOUGH else []
            missing = int(gone[mine].sum())
            if missing or said:
                yield Finding(name, client, sizes[k], missing, "; ".join(said))


def feature_findings(columns: Any, frame: Frame, clients: np.ndarray | None) -> list[Finding]:
    """Return the findings of the features of a record of columns; ``clients`` (n,) says whose row it is."""
    frame = columns.cleared(frame)
    places = Places((), np.full(frame.n, -1))
    if clients is not None:
        names, code = np.unique(clients, return_inverse=True)
        places = Places(tuple(map(str, names.tolist())), code)
    return list(findings(frame, places, [c.name for c in columns.features if c.name in frame.cells]))


def _said(frame: Frame, name: str, mine: np.ndarray, gone: np.ndarray, codes: list[float]) -> Iterator[str]:
    """Yield what is odd about a column at a client."""
    here, there = mine & ~gone, ~mine & ~gone
    cells = frame.cells[name]
    if not here.any():
        yield "no value at all"
        return
    if cells.dtype.kind == "f":
        x, y = cells[here], cells[there]
        if np.ptp(x) == 0.0 and (not y.size or np.ptp(y) > 0.0 or y[0] != x[0]) and x.size >= _ENOUGH:
            yield (
                f"{as_text(float(x[0]))} in all rows" if not gone[mine].any() else f"{as_text(float(x[0]))} throughout"
            )
        for code in codes:
            if (x == code).any():
                yield f"{as_text(code)} in {int((x == code).sum()):,} cells, which may mean missing"
        x, y = x[~np.isin(x, codes)], y[~np.isin(y, codes)]
        apart = min(x.size, y.size) >= _ENOUGH and np.unique(x).size > 2 and (x.min() > y.max() or x.max() < y.min())
        if apart:
            yield f"{x.min():g} to {x.max():g}, elsewhere {y.min():g} to {y.max():g}: another unit?"
        return
    words = frame.text(name)
    own, others = set(words[here].tolist()), set(words[there].tolist())
    if len(own) == 1 and len(others) > 1 and here.sum() >= _ENOUGH:
        yield f"{next(iter(own))!r} throughout"
    strange = sorted(own - others)
    if others and len(others) <= 50 and strange and len(own) <= 50:
        rest = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        shown = ", ".join(map(repr, strange[:_SHOWN])) + rest
        yield f"written differently: {shown} nowhere else" if len(strange) == len(own) else f"{shown} nowhere else"
