"""Tables in files: CSV and Parquet, one row per example and a name for every column.

CSV is read by the standard library: pandas fills lines that are too short, pyarrow counts records where a message
should name the line, both read text behind a closing quote as part of the cell, and nothing else between a CSV file and
a model needs either of them.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np

from fedconvex._check import bad, finite, wrong_type
from fedconvex.datasets.table import Table, checked, coded, encoded, existing, suffix

__all__ = ["load_table"]

_MISSING = np.array(["", "?", "N/A", "NA", "NAN", "NULL", "NaN", "Null", "nan", "null"])
_BLOCK = 1_000_000  # cells of a CSV file that are held as text at a time


def load_table(
    path: str | PathLike[str],
    target: str,
    client: str | None = None,
    domain: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    weight: str | None = None,
) -> Table:
    r"""Read a CSV or Parquet file with one row per example and a name for every column.

    Columns of numbers are taken as they are, those of text (in CSV: without a single number) one-hot encoded as
    "column=value" in sorted order. One-hot tables of more than 50 columns, at most a fifth of them not zero, are CSR.

    Parameters
    ----------
    path : path
        CSV (comma-separated, UTF-8, first line names the columns, optionally .gz or .bz2) or Parquet (which needs
        pyarrow: ``pip install "fedconvex[report]"``).
    target : str
        Column to predict: numbers (taken as they are) or class labels (numbered in sorted order).
    client, domain, weight : str, optional
        Columns that say whose row it is, of which domain, and what it weighs; not features.
    features, categorical : sequence of str, optional
        Columns to use, default all others but the index of a pandas frame; columns of numbers that are names.

    Returns
    -------
    Table
        The rows in the order of the file.

    Raises
    ------
    ValueError
        If a named column does not exist, a cell is missing (empty, ?, NA, N/A, NaN, null; the message counts them per
        column), a column that is not listed as categorical mixes numbers and text, or the file is malformed.
    FileNotFoundError, ImportError
        If there is no such file; if it is Parquet and pyarrow is not installed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "wards.csv"
    ...     _ = path.write_text("age,sex,ward,ill\n61,f,7,yes\n37,m,9,no\n50,f,7,no\n")
    ...     table = load_table(path, target="ill", client="ward")
    >>> table.feature_names
    ('age', 'sex=f', 'sex=m')
    >>> table.X.tolist(), table.y.tolist(), table.classes, table.clients.tolist()
    ([[61.0, 1.0, 0.0], [37.0, 0.0, 1.0], [50.0, 1.0, 0.0]], [1.0, 0.0, 0.0], ('no', 'yes'), [7, 9, 7])
    """
    file = existing("load_table", path)
    kind = suffix("load_table", path)
    if kind not in (".csv", ".parquet"):
        raise bad("load_table: path", "end in .csv, .csv.gz, .csv.bz2 or .parquet", file.name, "load reads others")
    for name, value in {"features": features, "categorical": categorical}.items():
        if isinstance(value, str):
            raise wrong_type(f"load_table: {name}", "be a list of column names", repr(value))
    roles = _Roles(target, client, domain, None if features is None else tuple(features), tuple(categorical), weight)
    return (_read_csv if kind == ".csv" else _read_parquet)(file, roles)


# ---------------------------------------------------------------------- roles
class _Roles(NamedTuple):
    """Which column plays which part."""

    target: str
    client: str | None
    domain: str | None
    features: tuple[str, ...] | None
    categorical: tuple[str, ...]
    weight: str | None

    @property
    def keys(self) -> list[str]:
        """The columns that are no features: target, client, domain and weight."""
        return [c for c in (self.target, self.client, self.domain, self.weight) if c is not None]

    def resolve(self, who: str, available: Sequence[str], index: Sequence[str] = ()) -> _Roles:
        """Check the names against the columns of the file and fill in the features, without the index of a frame."""
        listed = ", ".join(available)
        known = set(available)
        if len(known) < len(available):
            raise bad(who, "name every column once", f"{Counter(available).most_common(1)[0][0]!r} twice in {listed}")
        keys = self.keys
        if self.features is None and "" in known:
            cure = "pandas writes an index so: write with index=False, name the column, or pass features="
            raise bad(who, "name every column", f"no name in column {list(available).index('') + 1} of {listed}", cure)
        features = self.features
        if features is None:
            features = tuple(c for c in available if c not in keys and c not in index)
        for c in (*keys, *features, *self.categorical):
            if c not in known:
                raise bad(who, f"have a column {c!r}", f"columns {listed}")
        if not features:
            raise bad(who, "have at least one feature column", f"columns {listed}")
        twice = [c for c, m in Counter(features).items() if m > 1 or c in keys]
        if twice:
            raise bad(
                f"{who}: features", "be different columns, none of them target, client, domain or weight", twice[0]
            )
        if self.target in keys[1:]:
            raise bad(f"{who}: target", "be another column than client, domain and weight", self.target)
        if self.weight in (self.client, self.domain) and self.weight is not None:
            raise bad(f"{who}: weight", "be another column than client and domain", self.weight)
        return self._replace(features=features)

    @property
    def used(self) -> list[str]:
        """The columns to read, each once, in the order target, client, domain, weight, features."""
        return list(dict.fromkeys([*self.keys, *(self.features or ())]))

    @property
    def text(self) -> set[str]:
        """The columns that are names even where they look like numbers."""
        return {c for c in (self.client, self.domain, *self.categorical) if c is not None}


def _table(who: str, columns: dict[str, np.ndarray], missing: dict[str, int], roles: _Roles) -> Table:
    """Assemble columns of float64 or str; missing counts each column's missing cells."""
    gaps = {c: m for c, m in missing.items() if m}
    if gaps:
        got = ", ".join(f"{m} missing in column {c!r}" for c, m in gaps.items())
        cure = "drop these rows, impute them, or leave the columns out (features=)"
        raise bad(who, "have no missing values", got, cure)
    for c, cells in columns.items():
        if cells.dtype.kind == "f":
            finite(f"{who}: column {c!r}", cells)
    y, classes = columns[roles.target], None
    if y.dtype.kind == "U":
        classes, y = coded(y)
    X, names = encoded({c: columns[c] for c in roles.features or ()})
    clients = None if roles.client is None else _named(columns[roles.client])
    domains = None if roles.domain is None else _named(columns[roles.domain])
    weights = None if roles.weight is None else columns[roles.weight]
    if weights is not None and weights.dtype.kind != "f":
        raise bad(f"{who}: weight", "be a column of numbers", f"text in column {roles.weight!r}")
    return checked(who, Table(X, y, clients, domains, names, classes, weights))


def _named(cells: np.ndarray) -> np.ndarray:
    """Return names (n,), as whole numbers if all are written as such ("7", not "07" or "7.0")."""
    labels = np.unique(cells).tolist()
    plain = all(len(c) <= 18 and c.removeprefix("-").isdecimal() and str(int(c)) == c for c in labels)
    return cells.astype(np.int64) if plain else cells


# ---------------------------------------------------------------------- CSV
def _read_csv(file: Path, roles: _Roles) -> Table:
    who = f"load_table: {file.name}"
    try:
        with _opened(file) as stream:
            reader = csv.reader(stream, strict=True)
            header = [c.strip() for c in next(reader, [])]
            if not any(header):
                raise bad(who, "start with a line that names the columns", "an empty line or file")
            roles = roles.resolve(who, header)
            parts: dict[str, list[np.ndarray]] = {c: [] for c in roles.used}
            missing = dict.fromkeys(roles.used, 0)
            lines, first = _lines(who, reader, len(header)), 0  # first: rows before the block
            while block := list(islice(lines, max(1, _BLOCK // len(header)))):
                for c in roles.used:
                    j = header.index(c)
                    cells = np.array([row[j].strip() for row in block])
                    gaps = np.isin(cells, _MISSING)
                    missing[c] += int(gaps.sum())
                    parts[c].append(cells if c in roles.text else _parsed(who, c, cells, gaps, first))
                first += len(block)
    except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise bad(who, "be comma-separated UTF-8 text", f"{type(error).__name__}: {error}") from error
    if first == 0:
        raise bad(who, "have at least one row", "a header only")
    columns = {}
    for c, blocks in parts.items():
        if not missing[c] and {b.dtype.kind for b in blocks} == {"f", "U"}:
            raise _mixed(who, c, "numbers in some rows, text in others")
        columns[c] = np.concatenate(blocks)
    return _table(who, columns, missing, roles)


def _opened(file: Path) -> TextIO:
    opener = {".gz": gzip.open, ".bz2": bz2.open}.get(file.suffix.lower(), open)
    return cast(TextIO, opener(file, "rt", encoding="utf-8-sig", newline=""))  # type: ignore[operator]


def _lines(who: str, reader: Any, width: int) -> Iterator[list[str]]:
    """Yield the nonempty lines of a CSV reader, each with width cells."""
    for row in reader:
        if row and len(row) != width:
            raise bad(who, f"have {width} cells in every line", f"{len(row)} in line {reader.line_num}")
        if "\0" in "".join(row):  # NumPy drops them at the end of a cell
            raise bad(who, "have no NUL characters", f"one in line {reader.line_num}")
        if row:
            yield row


def _parsed(who: str, column: str, cells: np.ndarray, gaps: np.ndarray, first: int) -> np.ndarray:
    """Return the cells as numbers if all are (missing ones as 0), as text if none is."""
    if gaps.all():
        return np.zeros(cells.size)
    try:
        if any("_" in c for c in cells.tolist()):  # Python reads 1_000 as a number, nobody else does
            raise ValueError
        return np.where(gaps, "0", cells).astype(np.float64)
    except ValueError:
        pass
    number = np.array([_is_number(c) for c in cells.tolist()])
    if (number & ~gaps).any():
        i, j = int(np.argmax(number & ~gaps)), int(np.argmax(~number & ~gaps))
        raise _mixed(who, column, f"{cells[i]!s} in row {first + i + 1} and {str(cells[j])!r} in row {first + j + 1}")
    return cells


def _is_number(cell: str) -> bool:
    try:
        return "_" not in cell and np.isfinite(float(cell))
    except ValueError:
        return False


def _mixed(who: str, column: str, got: str) -> ValueError:
    cure = f"correct the cells, or pass categorical=[{column!r}] if these are names"
    return bad(f"{who}: column {column!r}", "be all numbers or all text", got, cure)


# ---------------------------------------------------------------------- Parquet
def _index_of(metadata: Any) -> list[str]:
    """Return the columns that hold the index of a frame, by what pandas noted in the file: numbers of rows."""
    try:
        noted = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return [c for c in noted if isinstance(c, str)]
    except (ValueError, KeyError, TypeError):
        return []


def _read_parquet(file: Path, roles: _Roles) -> Table:
    who = f"load_table: {file.name}"
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError('load_table must have pyarrow to read Parquet: pip install "fedconvex[report]"') from error
    try:
        with pq.ParquetFile(file) as source:
            roles = roles.resolve(who, source.schema_arrow.names, _index_of(source.schema_arrow.metadata))
            data = source.read(columns=roles.used)
    except (pa.ArrowException, OSError) as error:
        raise bad(who, "be a complete Parquet file", f"{type(error).__name__}: {error}") from error
    if data.num_rows == 0:
        raise bad(who, "have at least one row", "none")
    columns, missing = {}, {}
    for c in roles.used:
        cells = data[c]
        kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if pa.types.is_null(kind):
            missing[c], columns[c] = len(cells), np.zeros(len(cells))
            continue
        if not (numbers or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise wrong_type(f"{who}: column {c!r}", "hold numbers or text", f"{cells.type}", "convert or leave it out")
        values = (
            cells.to_pylist()
            if not numbers or c in roles.text
            else cells.cast(kind).cast(pa.float64(), safe=False).to_numpy()
        )
        if isinstance(values, list):
            columns[c] = np.array(["" if v is None or v != v else str(v) for v in values])
            missing[c] = int(np.isin(columns[c], _MISSING).sum())
        else:
            columns[c], missing[c] = values, int(np.isnan(values).sum())
    return _table(who, columns, missing, roles)
