"""`Frame`: the raw columns of a table by name, as they were read; nothing is encoded, filled in or dropped."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, numeric, raw, wrong_type
from fedconvex._sparse import sound_csr
from fedconvex.tables.spelling import EXACT, Names, as_text, merged, spelt

_ISO = re.compile(r"\d{4}[-/]\d{2}[-/]\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?$")
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+$")
_TRUTH = {"true": 1.0, "false": 0.0}
_EPOCH = np.datetime64("1970-01-01", "D")


@dataclass(frozen=True, eq=False)
class Frame:
    """Columns of one length, by name, in their order.

    Attributes
    ----------
    cells : mapping from name to array (n,)
        Numbers: float64, NaN where a cell is missing. Text: objects, str or None. Dates of a frame: datetime64, NaT.
    origin : str
        What messages call it: the name of the file.
    read_as : str
        What was detected while reading, in words.
    mixed : mapping
        Columns of text in which some cells are numbers, and where.
    categories : frozenset of str
        Columns of names by their type (pandas' category, booleans of text).
    index : tuple of str
        Columns that hold the index of a frame.
    roles : mapping
        Columns whose role the format gives (npz, svmlight): "target", "client", "domain", "weight".
    unnamed : bool
        Whether the names were made up: x1, x2, ...
    rows : scipy.sparse.csr_array or None
        Sparse features (n, d), named by ``row_names``.
    written : mapping from name to array (n,)
        Columns of numbers whose names are not those of doubles: whole numbers beyond 2^53, and "True" and "False".
    merged : mapping
        Columns of text in which one number was spelt in several ways, "1" and "1.0", and which these were.
    row_names : tuple of str
        Names of the columns of ``rows``.

    Examples
    --------
    >>> from fedconvex.tables import Frame
    >>> frame = Frame.of({"age": [61, 37], "sex": ["f", None]})
    >>> frame.n, frame.names, frame.cells["sex"].tolist()
    (2, ('age', 'sex'), ['f', None])
    """

    cells: Mapping[str, np.ndarray]
    origin: str = "the frame"
    read_as: str = ""
    mixed: Mapping[str, str] = field(default_factory=dict)
    categories: frozenset[str] = frozenset()
    index: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    unnamed: bool = False
    rows: Any = None
    row_names: tuple[str, ...] = ()
    written: Mapping[str, np.ndarray] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[0]) if self.rows is not None else len(next(iter(self.cells.values()), ()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.cells, *self.row_names)

    @cached_property
    def row_places(self) -> dict[str, int]:
        """Where the sparse features stand, by name."""
        return {name: j for j, name in enumerate(self.row_names)}

    def widened(self, names: Iterable[str]) -> Frame:
        """Return sparse rows with made-up names with further columns of zeros, up to the last of some names.

        svmlight files leave zeros out, so that a file of new rows may lack the last columns.
        """
        if self.rows is None or not self.unnamed:
            return self
        width = max((int(name[1:]) for name in names if re.fullmatch(r"x\d+", name)), default=0)
        if width <= len(self.row_names):
            return self
        rows = self.rows
        wide = sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], width))
        return replace(self, rows=wide, row_names=_made(width))

    def take(self, rows: Any) -> Frame:
        """Return the frame of some rows, given by numbers or a mask."""
        cells, written = (
            {name: column[rows] for name, column in group.items()} for group in (self.cells, self.written)
        )
        return replace(self, cells=cells, rows=None if self.rows is None else self.rows[rows], written=written)

    def missing(self, name: str) -> np.ndarray:
        """Whether each cell of a column is missing, (n,)."""
        cells = self.cells[name]
        if cells.dtype.kind == "f":
            return np.isnan(cells)
        return np.isnat(cells) if cells.dtype.kind == "M" else np.array([c is None for c in cells.tolist()], bool)

    def numbers(self, name: str) -> np.ndarray:
        """Return a column as float64, NaN where a cell is missing; dates become days since 1970-01-01.

        Raises
        ------
        ValueError
            If a cell is no number.
        """
        cells = self.cells[name]
        if cells.dtype.kind == "f":
            return cells
        if cells.dtype.kind == "M":
            return _days(cells)
        found = np.empty(len(cells))
        for i, cell in enumerate(cells.tolist()):
            value = np.nan if cell is None else parsed_number(cell)
            value = parsed_day(cell) if value is None else value
            value = _TRUTH.get(cell.lower()) if value is None else value
            if value is None:
                cure = "a decimal comma is named by decimal=','" if _WITH_COMMA.match(cell) else ""
                raise bad(f"{self.origin}: column {name!r}", "hold numbers", f"{cell!r} in row {i + 1}", cure)
            found[i] = value
        return found

    def has_dates(self, name: str) -> bool:
        """Whether a column holds dates, by their type or as ISO text."""
        cells = self.cells[name]
        if cells.dtype.kind != "O":
            return cells.dtype.kind == "M"
        return any(c is not None and parsed_day(c) is not None for c in cells.tolist())

    def text(self, name: str) -> np.ndarray:
        """Return a column as objects, str or None: 7.0 as "7", dates as ISO text, with a time if not midnight."""
        cells = self.written.get(name, self.cells[name])
        if cells.dtype.kind == "O":
            return cells
        gaps = self.missing(name)
        if cells.dtype.kind == "M":
            dates = [None if gap else str(np.datetime_as_string(c, "auto")) for c, gap in zip(cells, gaps, strict=True)]
            return np.array(dates, object)
        return np.array([None if gap else as_text(c) for c, gap in zip(cells.tolist(), gaps, strict=True)], object)

    @classmethod
    def of(cls, data: Any, names: Sequence[str] | None = None, origin: str = "the frame") -> Frame:
        """Return the columns of a DataFrame, a mapping from name to values, a matrix, or a frame as it is.

        Parameters
        ----------
        data : DataFrame (pandas, polars or whatever narwhals reads), mapping, array (n, d), sparse matrix, or Frame
        names : sequence of d str, optional
            Names of the columns of a matrix; default x1, ..., xd.
        origin : str
            What messages call it.

        Raises
        ------
        ValueError, TypeError
            If columns are of different lengths, or two have one name; if values are neither numbers nor text nor dates.
        """
        if isinstance(data, cls):
            return data
        if hasattr(data, "iloc") and hasattr(data, "dtypes"):
            return _of_pandas(cls, data, origin)
        if hasattr(data, "columns") and not isinstance(data, Mapping):
            return _of_other_frame(cls, data, origin)
        if isinstance(data, Mapping) and not sp.issparse(data):  # a matrix by keys is both
            pairs = [(str(name), _column(f"{origin}: column {name!r}", values)) for name, values in data.items()]
            written = {str(name): found for name, v in data.items() if (found := as_written(v)) is not None}
            return _checked(cls(dict(pairs), origin, written=written), len(pairs))
        return _of_matrix(cls, data, names, origin)


def _checked(frame: Frame, given: int) -> Frame:
    sizes = {name: len(column) for name, column in frame.cells.items()}
    if len(sizes) < given:
        raise bad(frame.origin, "name every column once", f"{given} columns with {len(sizes)} names")
    if len(set(sizes.values())) > 1 or not sizes or 0 in sizes.values():
        raise bad(frame.origin, "have columns of one length, and at least one row", f"{sizes}")
    return one_spelling(replace(frame, mixed=dict(_mixtures(frame))))


def one_spelling(frame: Frame) -> Frame:
    """Return the frame with one spelling of every number among its names, and what was spelt in several ways."""
    cells, several = dict(frame.cells), dict[str, str]()
    for name, column in frame.cells.items():
        if column.dtype.kind != "O":
            continue
        known = {c: c if c is None else spelt(c) for c in set(column.tolist())}
        if any(c != word for c, word in known.items()):
            cells[name] = np.array([known[c] for c in column.tolist()], dtype=object)
            words = merged(c for c in known if c is not None)
            several |= {name: words} if words else {}
    return replace(frame, cells=cells, merged={**frame.merged, **several})


def cleared(frame: Frame, codes: Mapping[str, Sequence[str]]) -> Frame:
    """Return the frame with cells that hold codes for missing ones missing; numbers match however they are spelt."""
    cells, written = dict(frame.cells), dict(frame.written)
    for name, values in codes.items():
        if not values or name not in cells:
            continue
        known = Names(values)
        gone = known.places(frame.text(name).tolist()) >= 0
        kind = cells[name].dtype
        gap: Any = {"f": np.nan, "M": np.array("NaT", kind) if kind.kind == "M" else None}.get(kind.kind)
        cells[name] = np.where(gone, gap, cells[name])
        if name in written:
            written[name] = written[name].copy()
            written[name][gone] = None
    return replace(frame, cells=cells, written=written)


def _of_pandas(cls: type[Frame], data: Any, origin: str) -> Frame:
    """Return the columns of a DataFrame, without importing pandas; its index is no column."""
    given, cells, written, categories = list(data.columns), {}, {}, set()
    for j, name in enumerate(given):
        series = data.iloc[:, j]
        who = f"{origin}: column {str(name)!r}"
        plain = isinstance(series.dtype, np.dtype) and series.dtype.kind != "O"
        names = as_written(series.to_numpy() if plain else series.astype(object).to_numpy())
        if names is not None:
            written[str(name)] = names
        if str(series.dtype) == "category":
            categories.add(str(name))
            cells[str(name)] = texts(series.astype(object).tolist(), series.isna().to_numpy())
        elif getattr(series.dtype, "kind", "O") in "biuf":
            cells[str(name)] = series.to_numpy(dtype=np.float64, na_value=np.nan)
        elif getattr(series.dtype, "kind", "O") == "M":
            cells[str(name)] = series.to_numpy(dtype="datetime64[ns]")
        else:
            cells[str(name)] = _column(who, series.astype(object).to_numpy(), series.isna().to_numpy())
    unnamed = [str(name) for name in given] == [str(j) for j in range(len(given))]
    frame = cls(cells, origin, categories=frozenset(categories), unnamed=unnamed, written=written)
    return _checked(frame, len(given))


def _of_other_frame(cls: type[Frame], data: Any, origin: str) -> Frame:
    """Return the columns of a polars or pyarrow table, or of another that narwhals reads."""
    import narwhals as nw

    try:
        table = nw.from_native(data, eager_only=True)
    except TypeError:
        cure = "pass data.collect()" if hasattr(data, "collect") else ""
        raise wrong_type(origin, "be a DataFrame of pandas, polars or pyarrow", type(data).__name__, cure) from None
    cells, written, categories = {}, {}, set()
    for series in table.iter_columns():
        name, values = str(series.name), np.array([*series.to_list(), None], dtype=object)[:-1]
        who = f"{origin}: column {name!r}"
        gaps = np.array([is_gap(v) for v in values.tolist()])
        names = as_written(values)
        if names is not None:
            written[name] = names
        if series.dtype in (nw.Categorical, nw.Enum):
            categories.add(name)
            cells[name] = texts(values.tolist(), gaps)
        elif series.dtype in (nw.Date, nw.Datetime):
            zone_free = [None if gap else np.datetime64(v.replace(tzinfo=None) if hasattr(v, "tzinfo") else v)
                         for v, gap in zip(values.tolist(), gaps, strict=True)]  # fmt: skip
            cells[name] = np.array(zone_free, dtype="datetime64[ns]")
        else:
            cells[name] = _column(who, values, gaps)
    return _checked(cls(cells, origin, categories=frozenset(categories), written=written), len(table.columns))


def _of_matrix(cls: type[Frame], data: Any, names: Sequence[str] | None, origin: str) -> Frame:
    if sp.issparse(data):
        rows, called = sp.csr_array(sound_csr(origin, data), dtype=np.float64), names
        called = _made(rows.shape[1]) if names is None else tuple(map(str, names))
        if len(set(called)) < len(called):
            raise bad(origin, "name every column once", f"{len(called)} columns with {len(set(called))} names")
        return cls({}, origin, unnamed=names is None, rows=rows, row_names=called)
    objects = raw(origin, data)
    objects = objects.astype(object) if objects.dtype.kind in "OUS" else numeric(origin, data, False)
    if objects.ndim != 2 or 0 in objects.shape:
        raise bad(origin, "be a table: (rows, columns), with at least one of each", f"shape {objects.shape}")
    called = _made(objects.shape[1]) if names is None else tuple(map(str, names))
    if len(called) != objects.shape[1]:
        raise bad(origin, f"have {len(called)} columns ({', '.join(called[:20])})", f"{objects.shape[1]}")
    cells = {name: _column(f"{origin}: column {name!r}", objects[:, j]) for j, name in enumerate(called)}
    return _checked(cls(cells, origin, unnamed=names is None), len(called))


def _made(d: int) -> tuple[str, ...]:
    return tuple(f"x{j + 1}" for j in range(d))


def _column(who: str, values: Any, gaps: np.ndarray | None = None) -> np.ndarray:
    """Return values as float64, as datetime64, or as objects (str or None)."""
    a: Any = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if a.ndim != 1:
        raise bad(who, "be one-dimensional", f"shape {a.shape}")
    if np.ma.is_masked(a):  # a masked cell is a missing one
        gaps = np.ma.getmaskarray(a) | (False if gaps is None else gaps)
        a = a.astype(object).filled(None)
    if a.dtype.kind in "biuf":
        return a.astype(np.float64)
    if a.dtype.kind in "MSU":
        return a.astype("datetime64[ns]") if a.dtype.kind == "M" else texts(a.astype(str).tolist(), [False] * a.size)
    cells = a.tolist()
    gone = np.array([is_gap(c) for c in cells]) if gaps is None else gaps
    kept = [c for c, gap in zip(cells, gone, strict=True) if not gap]
    if all(isinstance(c, (numbers.Real, np.bool_, Decimal)) for c in kept):
        return np.array([np.nan if gap else float(c) for c, gap in zip(cells, gone, strict=True)])
    if all(hasattr(c, "isoformat") for c in kept):
        return np.array([None if gap else c.isoformat() for c, gap in zip(cells, gone, strict=True)], object)
    wrong = [type(c).__name__ for c in kept if not isinstance(c, (str, numbers.Real, np.bool_, Decimal))]
    if wrong:
        raise wrong_type(who, "hold numbers, text or dates", wrong[0], "convert it or leave it out")
    return texts(cells, gone)


def texts(cells: list[Any], gaps: Any) -> np.ndarray:
    """Return names without blanks around them, as they are read from files; blanks alone are a missing cell."""
    return np.array(
        [None if gap else as_text(c).strip() or None for c, gap in zip(cells, gaps, strict=True)], dtype=object
    )


def _mixtures(frame: Frame) -> Iterator[tuple[str, str]]:
    """Yield the object columns of a frame that hold numbers beside text, and where."""
    for name, cells in frame.cells.items():
        if cells.dtype.kind != "O" or name in frame.categories:
            continue
        is_number = np.array([c is not None and parsed_number(c) is not None for c in cells.tolist()])
        text = ~is_number & ~frame.missing(name)
        if is_number.any() and text.any():
            i, j = int(np.argmax(is_number)), int(np.argmax(text))
            yield name, f"{cells[i]} in row {i + 1} and {cells[j]!r} in row {j + 1}"


def as_written(values: Any) -> np.ndarray | None:
    """Return the names of truth values, or of whole numbers of which some are no doubles, (n,): str or None.

    None for all other columns, whose names are those of their cells.
    """
    a = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if a.ndim != 1 or a.dtype.kind not in "biuO" or not a.size:
        return None
    if a.dtype.kind in "iu" and max(-int(a.min()), int(a.max())) <= EXACT:
        return None
    cells = [None if is_gap(c) else c for c in a.tolist()]
    kept = [c for c in cells if c is not None]
    truth = bool(kept) and all(isinstance(c, (bool, np.bool_)) for c in kept)
    if not truth and not all(isinstance(c, numbers.Integral) for c in kept):
        return None
    if not truth and not any(abs(int(c)) > EXACT for c in kept):
        return None
    return np.array([None if c is None else str(c) for c in cells], dtype=object)


def is_gap(cell: Any) -> bool:
    """Whether a cell is missing: None, NaN, NaT, or pandas' NA, which cannot even be compared."""
    return cell is None or type(cell).__name__ == "NAType" or bool(cell != cell)


def parsed_number(cell: str) -> float | None:
    """Return the number that a cell is, or None.

    >>> parsed_number("1e3"), parsed_number("1_000"), parsed_number("two")
    (1000.0, None, None)
    """
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def is_truth(cell: Any) -> bool:
    """Whether a cell of text says true or false."""
    return isinstance(cell, str) and cell.lower() in _TRUTH


def parsed_day(cell: str) -> float | None:
    """Return the days since 1970-01-01 of an ISO date, with or without a time, or None.

    >>> parsed_day("1970-01-03"), parsed_day("1970/01/01 12:00"), parsed_day("3.1.1970")
    (2.0, 0.5, None)
    """
    try:
        return float(_days(np.array([np.datetime64(cell.replace("/", "-"))]))[0]) if _ISO.match(cell) else None
    except ValueError:
        return None


def _days(dates: np.ndarray) -> np.ndarray:
    """Return days since 1970-01-01, with fractions, NaN for NaT."""
    days = (dates.astype("datetime64[ns]") - _EPOCH.astype("datetime64[ns]")) / np.timedelta64(1, "D")
    return np.asarray(days, dtype=np.float64)
