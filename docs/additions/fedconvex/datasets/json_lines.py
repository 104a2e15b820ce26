"""Read JSON lines: one object per line, the same keys in each."""

from __future__ import annotations

import json
from os import PathLike

import numpy as np

from fedconvex._check import bad, numeric
from fedconvex.datasets.table import Table, checked
from fedconvex.tables.reading import existing


def load_json_lines(path: str | PathLike[str], target: str, client: str | None = None) -> Table:
    r"""Read a file of JSON objects, one per line, as rows.

    Parameters
    ----------
    path : path
    target : str
        Key of the label, a number.
    client : str, optional
        Key that says whose row it is.

    Returns
    -------
    Table
        All other keys are features, in the order of the first line.

    Raises
    ------
    ValueError, TypeError
        If a line is no object, has other keys than the first, or a value is not a finite number.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from fedconvex.datasets import load_json_lines
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "wards.jsonl"
    ...     _ = path.write_text('{"age": 61, "ward": "a", "ill": 1}\n{"age": 37, "ward": "b", "ill": 0}\n')
    ...     load_json_lines(path, "ill", "ward")
    Table(2 rows, 1 features, 2 clients, dense)
    """
    file = existing("load_json_lines", path)
    who, rows = f"load_json_lines: {file.name}", []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise bad(f"{who}, line {number}", "be a JSON object", f"{line.strip()!r} ({error})") from None
            if not isinstance(rows[-1], dict) or rows[-1].keys() != rows[0].keys():
                raise bad(f"{who}, line {number}", "be an object with the keys of line 1", line.strip())
    missing = [key for key in (target, client) if key is not None and (not rows or key not in rows[0])]
    if missing:
        raise bad(who, f"have the key {missing[0]!r}", "no lines" if not rows else ", ".join(rows[0]))
    names = tuple(key for key in rows[0] if key not in (target, client))
    X = numeric(f"{who}: features", [[row[key] for key in names] for row in rows])
    y = numeric(f"{who}: {target}", [row[target] for row in rows])
    clients = None if client is None else np.array([row[client] for row in rows])
    return checked(who, Table(X, y, clients, None, names))
