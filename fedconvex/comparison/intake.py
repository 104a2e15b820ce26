"""Data as people have it become rows: a federation, a frame, or a file."""

from __future__ import annotations

from typing import Any

from fedconvex._check import bad, wrong_type
from fedconvex.comparison.rows import Rows, rows_of
from fedconvex.federation import Federation

__all__ = ["intake"]


def intake(data: Any, target: Any, client: Any, domain: Any, loss: Any, **reading: Any) -> Rows:
    """Return the rows of a federation, a frame or a file.

    Raises
    ------
    TypeError
        For data of another kind.
    ValueError
        If columns are named for a federation, or missing for a frame or file.
    """
    if isinstance(data, Federation):
        named = [n for n, v in (("target", target), ("client", client), ("domain", domain), *reading.items()) if v]
        if named:
            raise bad("compare: data", "be a frame or a file where columns are named", f"a Federation and {named[0]}")
        return rows_of(data, loss)
    raise wrong_type("compare: data", "be a Federation, a DataFrame or a path", type(data).__name__)
