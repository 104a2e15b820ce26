"""CSV files: separator, decimal mark and encoding are detected, and messages name the row.

Read by the standard library: pandas fills lines that are too short, pyarrow counts records where a message should name
the line, both read text behind a closing quote as part of the cell, and nothing else between a CSV file and a model
needs either of them.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np

from fedconvex._check import bad
from fedconvex.tables.frame import Frame, as_text

__all__ = ["MISSING", "read_csv"]

MISSING = ("", "?", "N/A", "NA", "NAN", "NULL", "NaN", "Null", "nan", "null", "n/a", "#N/A", "<NA>", "NaT")
_GAPS = np.array(MISSING)
_BLOCK = 1_000_000  # cells of a CSV file that are held as text at a time
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?$")
_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?$")


class _Dialect(NamedTuple):
    """How a file is read."""

    sep: str
    decimal: str
    encoding: str

    @property
    def words(self) -> str:
        mark = "decimal commas" if self.decimal == "," else "decimal points"
        return f"{_NAMES.get(self.sep, f'separator {self.sep!r}')} between cells, {mark}, {self.encoding}"


def read_csv(
    who: str,
    file: Path,
    text: Collection[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> Frame:
    """Return the columns of a CSV file, plain, .gz or .bz2.

    Parameters
    ----------
    who : str
        What messages call it.
    file : path
    text : collection of str
        Columns of names, whose cells are kept as they are written.
    sep, decimal, encoding : str, optional
        Default: detected from the first lines; UTF-8, or UTF-16 with a mark of byte order.

    Raises
    ------
    ValueError
        If the file is malformed: lines of several lengths, no header, characters that are none of the encoding.
    """
    code = encoding or _encoding(file)
    shown = "UTF-8" if code == "utf-8-sig" else code
    try:
        with _opened(file, code) as stream:
            first = [line for line in islice(stream, 50) if line.strip()]
        skip = bool(first) and re.fullmatch(r"sep=(.)", first[0].strip()) is not None
        sep = sep or (first[0].strip()[4] if skip else _separator(first))
        with _opened(file, code) as stream:
            reader = csv.reader(stream, strict=True, delimiter=sep)
            header = [c.strip() for c in next(islice(reader, int(skip), None), [])]
            if not any(header):
                raise bad(who, "start with a line that names the columns", "an empty line or file")
            names = _column_names(who, header)
            parts, mark = _blocks(who, reader, names, text, decimal)
    except LookupError as error:
        raise bad("encoding", "be one that Python knows, such as utf-8 or cp1252", f"{error}") from None
    except UnicodeError as error:
        got = f"{type(error).__name__}: {error}"
        raise bad(who, f"be {shown} text", got, "name another with encoding=, such as cp1252") from error
    except (csv.Error, EOFError, OSError, zlib.error) as error:
        raise bad(who, "be comma-separated UTF-8 text", f"{type(error).__name__}: {error}") from error
    if not next(iter(parts.values()), []):
        raise bad(who, "have at least one row", "a header only")
    cells, mixed = {}, {}
    for name, blocks in parts.items():
        cells[name], where = _joined(blocks)
        if where and name not in text:
            mixed[name] = where
    return Frame(cells, who, _Dialect(sep, mark, shown).words, mixed)


# ---------------------------------------------------------------------- what kind of file
def _encoding(file: Path) -> str:
    try:
        with _opener(file)(file, "rb") as stream:  # type: ignore[operator]
            marks = stream.read(2)
    except (OSError, EOFError, zlib.error):
        return "utf-8-sig"  # the reading says what is wrong
    return "utf-16" if marks in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _opener(file: Path) -> Any:
    return {".gz": gzip.open, ".bz2": bz2.open}.get(file.suffix.lower(), open)


def _opened(file: Path, encoding: str) -> TextIO:
    return cast(TextIO, _opener(file)(file, "rt", encoding=encoding, newline=""))


def _separator(lines: list[str]) -> str:
    """Return what divides most of the first lines into as many cells as the header, and into most of them."""
    found = {}
    for sep in _NAMES:
        try:
            rows = [row for row in csv.reader(lines, delimiter=sep) if row]
        except csv.Error:
            continue
        width = len(rows[0]) if rows else 1
        if width > 1:
            found[sep] = (sum(len(row) == width for row in rows[:-1] or rows) / len(rows[:-1] or rows), width)
    return max(found, key=lambda sep: found[sep]) if found else ","


def _column_names(who: str, header: Sequence[str]) -> list[str]:
    """Return the names of the columns; one without a name is called as pandas calls it, by its position."""
    names = [name or f"Unnamed: {j}" for j, name in enumerate(header)]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise bad(who, "name every column once", f"{twice!r} twice in {', '.join(names)}")
    return names


# ---------------------------------------------------------------------- cells
class _Part(NamedTuple):
    """A column of a block."""

    cells: np.ndarray  # numbers with NaN for gaps, or objects: str or None
    where: str  # where text stands beside numbers
    is_number: bool


def _blocks(
    who: str, reader: Any, names: list[str], text: Collection[str], decimal: str | None
) -> tuple[dict[str, list[_Part]], str]:
    """Return the parts of every column, and the decimal mark."""
    parts: dict[str, list[_Part]] = {name: [] for name in names}
    lines, first = _lines(who, reader, len(names)), 0  # first: rows before the block
    while block := list(islice(lines, max(1, _BLOCK // len(names)))):
        written = {name: np.array([row[j].strip() for row in block]) for j, name in enumerate(names)}
        if decimal is None:
            decimal = _decimal([cells for name, cells in written.items() if name not in text])
        for name, cells in written.items():
            parts[name].append(_part(cells, name in text, decimal, first))
        first += len(block)
    return parts, decimal or "."


def _lines(who: str, reader: Any, width: int) -> Iterator[list[str]]:
    """Yield the nonempty lines of a CSV reader, each with width cells."""
    for row in reader:
        if row and len(row) != width:
            raise bad(who, f"have {width} cells in every line", f"{len(row)} in line {reader.line_num}")
        if "\0" in "".join(row):  # NumPy drops them at the end of a cell
            raise bad(who, "have no NUL characters", f"one in line {reader.line_num}")
        if row:
            yield row


def _decimal(columns: list[np.ndarray]) -> str:
    """Return "," if a column has numbers with commas only, and no column has numbers with points."""
    commas = points = False
    for cells in columns:
        kept = [c for c in cells[:2000].tolist() if c not in MISSING]
        points = points or any(_POINT.match(c) for c in kept)
        with_comma = sum(_COMMA.match(c) is not None for c in kept)
        commas = commas or (with_comma > 0 and all(_COMMA.match(c) or _is_number(c) for c in kept))
    return "," if commas and not points else "."


def _part(cells: np.ndarray, as_text: bool, decimal: str, first: int) -> _Part:
    """Return the cells as numbers if all are, as text if none is or if they are names."""
    gaps = np.isin(cells, _GAPS)
    if as_text:
        return _Part(_with_gaps(cells, gaps), "", False)
    plain = _with_points(cells) if decimal == "," else cells
    try:
        if any("_" in c for c in plain.tolist()):  # Python reads 1_000 as a number, nobody else does
            raise ValueError
        return _Part(np.where(gaps, "nan", plain).astype(np.float64), "", True)
    except ValueError:
        pass
    number = np.array([_is_number(c) for c in plain.tolist()]) & ~gaps
    where = ""
    if number.any():
        i, j = int(np.argmax(number)), int(np.argmax(~number & ~gaps))
        where = f"{cells[i]!s} in row {first + i + 1} and {str(cells[j])!r} in row {first + j + 1}"
    return _Part(_with_gaps(cells, gaps), where, False)


def _with_gaps(cells: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Return text as objects, None where it is missing."""
    out = cells.astype(object)
    out[gaps] = None
    return out


def _with_points(cells: np.ndarray) -> np.ndarray:
    """Return cells with points for decimal commas; one that has a point is no number then."""
    return np.array(["text" if "." in c else c.replace(",", ".") for c in cells.tolist()])


def _is_number(cell: str) -> bool:
    try:
        return "_" not in cell and bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _joined(parts: list[_Part]) -> tuple[np.ndarray, str]:
    """Return a column, and where it mixes numbers and text."""
    full = [p for p in parts if not (p.is_number and np.isnan(p.cells).all())]  # blocks of gaps are of either kind
    if all(p.is_number for p in full):
        return np.concatenate([p.cells if p.is_number else np.full(p.cells.size, np.nan) for p in parts]), ""
    where = next((p.where for p in parts if p.where), "")
    if not where and any(p.is_number for p in full):
        where = "numbers in some rows, text in others"
    return np.concatenate([_as_texts(p.cells) if p.is_number else p.cells for p in parts]), where


def _as_texts(numbers: np.ndarray) -> np.ndarray:
    return np.array([None if c != c else as_text(c) for c in numbers.tolist()], dtype=object)
