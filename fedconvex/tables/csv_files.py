"""CSV files: separator, decimal mark and encoding are detected, and messages name the row.

Read by the standard library: pandas fills lines that are too short, pyarrow counts records where a message should name
the line, both read text behind a closing quote as part of the cell, and nothing else between a CSV file and a model
needs either of them.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np

from fedconvex._check import bad
from fedconvex.tables.frame import Frame, one_spelling
from fedconvex.tables.spelling import as_text
from fedconvex.tables.text_lines import Lines, opener

MISSING = frozenset(("", "?", "N/A", "NA", "NAN", "NULL", "NaN", "Null", "nan", "null", "n/a", "#N/A", "<NA>", "NaT"))
_BLOCK = 1_000_000  # cells of a CSV file that are held as text at a time
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?$")
_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?$")
_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}$")  # 54,053 is 54053 to some and 54.053 to others


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
        If the file is malformed: lines of several lengths, no header, characters that are none of the encoding; if it
        unpacks to far more than its size.
    """
    code = encoding or _encoding(file)
    shown = "UTF-8" if code == "utf-8-sig" else code
    try:
        with _opened(file, code) as stream:
            first = [line for line in Lines(who, file, stream).first(50) if line.strip()]
        skip = bool(first) and re.fullmatch(r"sep=(.)", first[0].strip()) is not None
        sep = sep or (first[0].strip()[4] if skip else _separator(first))
        with _opened(file, code) as stream:
            reader = _reader(Lines(who, file, stream), sep, strict=True)
            header = [c.strip() for c in next(islice(filter(_filled, reader), int(skip), None), list[str]())]
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
    return one_spelling(Frame(cells, who, _Dialect(sep, mark, shown).words, mixed))


# ---------------------------------------------------------------------- what kind of file
def _encoding(file: Path) -> str:
    try:
        with opener(file)(file, "rb") as stream:
            marks = stream.read(2)
    except (OSError, EOFError, zlib.error):
        return "utf-8-sig"  # the reading says what is wrong
    return "utf-16" if marks in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _opened(file: Path, encoding: str) -> TextIO:
    return cast(TextIO, opener(file)(file, "rt", encoding=encoding, newline=""))


def _reader(lines: Any, sep: str, strict: bool = False) -> Any:
    """Return a reader of lines; blanks behind a separator are left out, since a quote may follow them."""
    return csv.reader(lines, strict=strict, delimiter=sep, skipinitialspace=sep != " ")


def _filled(row: list[str]) -> bool:
    """Whether a line is not empty: a lonely cell of blanks is an empty line, too."""
    return len(row) > 1 or bool(row and row[0].strip())


def _separator(lines: list[str]) -> str:
    """Return what divides most of the first lines into as many cells as the header, and into most of them."""
    found = {}
    for sep in _NAMES:
        try:
            rows = [row for row in _reader(lines, sep) if _filled(row)]
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
        written = dict(zip(names, zip(*block, strict=True), strict=True))
        if decimal is None:
            decimal = _decimal([cells for name, cells in written.items() if name not in text])
        for name, cells in written.items():
            parts[name].append(_part(cells, name in text, decimal, first))
        first += len(block)
    return parts, decimal or "."


def _lines(who: str, reader: Any, width: int) -> Iterator[list[str]]:
    """Yield the nonempty lines of a CSV reader, each with width cells."""
    for row in reader:
        if not _filled(row) and width != len(row):
            continue
        if len(row) != width:
            cure = "the first line must name the columns; a title above them is none" if width == 1 else ""
            raise bad(who, f"have {width} cells in every line", f"{len(row)} in line {reader.line_num}", cure)
        if "\0" in "".join(row):  # NumPy drops them at the end of a cell
            raise bad(who, "have no NUL characters", f"one in line {reader.line_num}")
        yield row


def _decimal(columns: list[Sequence[str]]) -> str:
    """Return "," if a column has numbers with commas only, and no column has numbers with points.

    Commas before three digits alone prove nothing: they may divide thousands.
    """
    commas = points = False
    for cells in columns:
        kept = [c for c in map(str.strip, cells[:2000]) if c not in MISSING]
        points = points or any(map(_POINT.match, kept))
        decimals = any(_COMMA.match(c) and not _GROUPS.match(c) for c in kept)
        commas = commas or (decimals and all(_COMMA.match(c) or _is_number(c) for c in kept))
    return "," if commas and not points else "."


def _part(cells: Sequence[str], as_text: bool, decimal: str, first: int) -> _Part:
    """Return the cells as numbers if all are, as text if none is or if they are names."""
    if not as_text and decimal == ".":
        try:
            numbers = np.array(list(map(float, cells)))
            if "_" not in "".join(cells):  # Python reads 1_000 as a number, nobody else does
                return _Part(numbers, "", True)
        except ValueError:
            pass
    distinct = set(cells)
    written = {c: None if c.strip() in MISSING else c.strip() for c in distinct}
    if not as_text:
        plain = {c: _plain(w, decimal) for c, w in written.items()}
        try:
            if any("_" in c for c in plain.values()):
                raise ValueError
            known = {c: float(p) for c, p in plain.items()}
            return _Part(np.array([known[c] for c in cells]), "", True)
        except ValueError:
            pass
    points = {
        c: w if w is None or decimal == "." or not _COMMA.match(w) else w.replace(",", ".") for c, w in written.items()
    }
    text = np.array([points[c] for c in cells], dtype=object)
    if as_text:
        return _Part(text, "", False)
    number = {c for c, w in written.items() if w is not None and _is_number(plain[c])}
    where = ""
    if number:
        i = next(i for i, c in enumerate(cells) if c in number)
        j = next(j for j, c in enumerate(cells) if c not in number and written[c] is not None)
        where = f"{text[i]} in row {first + i + 1} and {text[j]!r} in row {first + j + 1}"
    return _Part(text, where, False)


def _plain(cell: str | None, decimal: str) -> str:
    """Return a cell with a point for a decimal comma; one that has a point is no number then."""
    if cell is None:
        return "nan"
    return cell if decimal == "." else "text" if "." in cell else cell.replace(",", ".")


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
