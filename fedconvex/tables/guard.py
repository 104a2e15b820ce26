"""The guard over columns: what is no feature, though it is a column.

Dates, identifiers, numbers of rows, text with many values, columns that never change, and columns that give the target
away would all be learned without complaint, and the model would be wrong where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from fedconvex.tables.frame import Frame, parsed_day, parsed_number
from fedconvex.tables.problems import Trouble
from fedconvex.tables.spelling import alike, doubles

MOST_LEVELS = 50
_ENOUGH = 10  # rows (of every class) below which perfect agreement may be chance
_AUC, _R = 0.999, 0.9999
_SAMPLE = 4000  # rows that are looked at first
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([T ,]+\d{1,2}:\d{2}\S*( ?[AaPp][Mm])?)?$")
_NOTATION = re.compile(r"[-+]?[$€£]? ?\d[\d.,' ]*( ?[%€$£]| ?[a-zA-Zµ°]{1,4})?$")  # 83%, 54,053, 12 kg
_NUMERAL = re.compile(
    r"[-+]?[$€£]? ?(\d{1,3}([,.' ]\d{3})+([.,]\d+)?|\d+([.,]\d+)?)( ?[%€$£])?$"
)  # no unit: 83%, 54,053
_COMMA = re.compile(r"[-+]?\d*,\d+$")
_GROUPS = re.compile(r"[-+]?\d{1,3}(,\d{3})+$")  # thousands to some
_STAMP = re.compile(r"time|date|epoch|stamp", re.I)
_KEY = {"id", "ids", "key", "uuid", "guid", "ssn", "mrn", "nr", "no", "num", "number", "code", "pk", "record", "serial"}
_KEY |= {"index", "idx", "rowid", "patientid", "userid", "identifier", "nhs", "insurance"}
_ROW_NUMBER = re.compile(r"(unnamed:.*|index|idx|row|rownum(ber)?|row_(id|number|no|nr|num)|level_0|obs|x1?|)$", re.I)


def suspicions(
    frame: Frame, name: str, is_category: bool, used: Collection[str] | None = None, dropped: Collection[str] = ()
) -> Iterator[Trouble]:
    """Yield what speaks against a column as a feature, by its own cells; the first reason is enough.

    Parameters
    ----------
    frame : Frame
    name : str
    is_category : bool
        Whether it was said to hold names.
    used, dropped : names
        Columns that were asked for, None for all, and that are left out.
    """
    cells, gaps = frame.cells[name], frame.missing(name)
    kept = cells[~gaps]
    if kept.size == 0:
        yield Trouble(name, "no value in any row", "drop", keep=False)
    elif cells.dtype.kind == "f":
        yield from _numbers(name, kept, frame)
    elif cells.dtype.kind == "M":
        yield Trouble(name, f"dates ({str(kept[0])[:10]}, ...)", "drop")
    elif not is_category and _decimal_commas(kept.tolist()):
        others = (c for c in (frame.names if used is None else used) if c not in dropped)
        yield _comma_trouble(frame, name, kept.tolist(), others)
    elif name in frame.mixed and not is_category and not oddly_written(kept.tolist()):
        yield Trouble(name, f"numbers and text: {frame.mixed[name]}", "as_category", keep=False)
    else:
        yield from _names(name, kept.tolist(), is_category or name in frame.categories)


def _numbers(name: str, x: np.ndarray, frame: Frame) -> Iterator[Trouble]:
    if not np.isfinite(x).all():
        i = int(np.argmax(np.isinf(frame.cells[name])))
        yield Trouble(name, f"{frame.cells[name][i]:g} in row {i + 1}: numbers must be finite", "drop", keep=False)
        return
    if (x == x[0]).all():
        if not frame.unnamed and frame.n > 1:
            yield Trouble(name, f"constant: {x[0]:g} in every row", "drop")
        return
    if not (x == np.floor(x)).all():
        return
    n, distinct = x.size, np.unique(x).size
    steps = np.diff(x)
    if n > 2 and (steps == steps[0]).all() and abs(steps[0]) == 1.0 and (n >= _ENOUGH or _ROW_NUMBER.match(name)):
        yield Trouble(name, f"numbers the rows: {x[0]:g}, {x[1]:g}, {x[2]:g}, ...", "drop")
    elif n >= _ENOUGH and not frame.unnamed and _is_key(name) and 2 * distinct > n:
        yield Trouble(name, f"an identifier by its name: {distinct:,} different whole numbers in {n:,} rows", "drop")
    elif n >= _ENOUGH and _STAMP.search(name) and ((x >= 1e8) & (x < 1e11) | (x >= 1e11) & (x < 1e14)).all():
        yield Trouble(name, f"time stamps ({x[0]:.0f}, ...)", "drop")
    elif n >= _ENOUGH and _are_days(x):
        yield Trouble(name, f"dates written as numbers ({x[0]:.0f}, ...)", "drop")


def text_dates(kept: list[str]) -> str:
    """Return in words that cells are dates which are not read as days; nothing where they are others."""
    text = bool(kept) and parsed_day(kept[0]) is None and all(map(_DATE.match, set(kept)))
    return f"dates, as text ({kept[0]}, ...): only 2020-01-31 can be kept as days" if text else ""


def _names(name: str, kept: list[str], meant: bool) -> Iterator[Trouble]:
    levels = set(kept)
    if len(levels) == 1:
        yield Trouble(name, f"constant: {kept[0]!r} in every row", "drop")
        return
    two = doubles(sorted(levels))
    similar = one_word(levels)
    if two is not None or (meant and similar):
        yield Trouble(name, one_number(two) if two is not None else similar, "")
    if meant or two is not None:
        return
    if all(map(_DATE.match, levels)):
        yield Trouble(name, text_dates(kept) or f"dates ({kept[0]}, ...)", "drop")
    elif oddly_written(kept):
        yield Trouble(name, oddly_written(kept), "drop")
    elif len(levels) == len(kept) >= _ENOUGH:
        yield Trouble(
            name, f"an identifier: another text in each of {len(kept):,} rows ({kept[0][:30]!r}, ...)", "drop"
        )
    elif len(levels) > MOST_LEVELS:
        what = f"text with {len(levels):,} different values ({kept[0][:30]!r}, ...): more than {MOST_LEVELS}"
        yield Trouble(name, what, "drop")
    elif similar:
        yield Trouble(name, similar, "")


def one_number(two: tuple[str, str]) -> str:
    """Return what to say of two names that are one number."""
    one, other = sorted(two)
    return f"{one!r} and {other!r} are one number: to be written alike if they are one name"


def one_word(names: Iterable[str]) -> str:
    """Return what to say of names that differ in the case of letters or in blanks only; "" if none do."""
    two = alike(sorted(names))
    return (
        f"{two[0]!r} and {two[1]!r} are one word: to be written alike if they are one name" if two is not None else ""
    )


def oddly_written(cells: list[str]) -> str:
    """Return what to say of numbers with units, signs of percent or money, or marks between thousands; else ""."""
    odd = {cell for cell in cells if parsed_number(cell) is None}
    if not odd or not (all(map(_NUMERAL.match, odd)) or (len(set(cells)) > 12 and all(map(_NOTATION.match, cells)))):
        return ""
    shown = next(cell for cell in cells if cell in odd)
    what = f"numbers in another notation ({shown!r}, ...), to be written as plain numbers"
    has_comma = re.match(r"[-+]?\d+,\d+$", shown)
    return what + ("; decimal commas are named by decimal=','" if has_comma else "")


def _decimal_commas(cells: list[Any]) -> list[str]:
    """Return the cells with decimal commas where all that are no plain numbers have them; [] if they may be thousands.

    Examples
    --------
    >>> from fedconvex.tables.guard import _decimal_commas
    >>> _decimal_commas(["0,5", "2", "1.5"]), _decimal_commas(["1,500", "2,250"]), _decimal_commas(["0,5", "f"])
    (['0,5'], [], [])
    """
    odd = [cell for cell in cells if parsed_number(cell) is None]
    if not all(isinstance(cell, str) and _COMMA.match(cell) for cell in odd) or all(map(_GROUPS.match, odd)):
        return []
    return odd


def _comma_trouble(frame: Frame, name: str, cells: list[Any], used: Iterable[str]) -> Trouble:
    """Say what to do with decimal commas: name them, if no column that is used has numbers with points."""
    comma, what = _decimal_commas(cells)[0], "numbers in another notation: decimal commas"
    mine = [cell for cell in cells if isinstance(cell, str) and "." in cell]
    if mine:
        return Trouble(
            name, f"{what} and decimal points in one column ({comma!r}, {mine[0]!r}, ...)", "drop", keep=False
        )
    for other in (c for c in used if c in frame.cells and frame.cells[c].dtype.kind == "f"):
        x = frame.cells[other]
        parts = x[np.isfinite(x) & (x != np.floor(x))]
        if parts.size and np.unique(x[~np.isnan(x)]).size > 1:  # what is constant is left out anyway
            why = f"while {other!r} has decimal points ({parts[0]:g}, ...): one mark is needed for the whole file"
            return Trouble(name, f"{what} ({comma!r}, ...), {why}", "drop")
    if not frame.read_as:
        return Trouble(name, f"{what} ({comma!r}, ...), to be written as plain numbers", "drop")
    return Trouble(name, f"{what} ({comma!r}, ...)", "decimal", ",")


def _is_key(name: str) -> bool:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return any(word in _KEY for word in re.split(r"[^a-z]+", words.lower()))


def _are_days(x: np.ndarray) -> bool:
    """Whether whole numbers read as yyyymmdd."""
    month, day = np.floor(x / 100) % 100, x % 100
    in_range = (x >= 18000101) & (x <= 21991231) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool(in_range.all())


# ---------------------------------------------------------------------- the target
def giving_away(frame: Frame, name: str, is_category: bool, y: np.ndarray, n_classes: int) -> Iterator[Trouble]:
    """Yield a trouble if one column alone tells the target.

    For classes: an area of 0.999 under the ROC curve, for every division of the classes in the order of their means;
    names are ordered by what they say of the target, where there are ten rows for each. For numbers: a correlation of
    0.9999. Asked only where every class (or the table) has at least ten rows: in fewer it may be chance. Where cells
    are missing, the same is asked of the gaps: days until death are missing for the living.

    Parameters
    ----------
    frame, name, is_category
        The column.
    y : array (n,)
        Target: class numbers 0, ..., C-1, or numbers.
    n_classes : int
        C, or 0 for numbers.
    """
    known = ~frame.missing(name)
    told = "" if known.all() else _told(known.astype(np.float64), y, n_classes)
    if told:
        yield Trouble(name, f"gives the target away by its gaps: whether a cell is missing has {told}", "drop")
        return
    x = _as_scores(frame, name, is_category, known, y[known], n_classes)
    told = "" if x is None else _told(x, y[known], n_classes)
    if told:
        yield Trouble(name, f"gives the target away: alone it has {told}", "drop")


def _told(x: np.ndarray, y: np.ndarray, n_classes: int) -> str:
    """Return in words how well numbers tell the target, "" if they do not tell it, or if rows are few."""
    if _too_few(y, n_classes):
        return ""
    if not n_classes:
        r = _correlation(x, y)
        return f"|r| = {r:.6f}" if r >= _R else ""
    area = _least_area(x, y.astype(int), n_classes) if _promising(x, y.astype(int), n_classes) else 0.0
    return f"an AUC of {area:.4f}" if area >= _AUC else ""


def _too_few(y: np.ndarray, n_classes: int) -> bool:
    """Whether there are fewer than ten rows, of the table or of a class, or one class only."""
    sizes = np.bincount(y.astype(int), minlength=n_classes) if n_classes else [y.size]
    return n_classes == 1 or min(sizes) < _ENOUGH


def _as_scores(
    frame: Frame, name: str, is_category: bool, known: np.ndarray, y: np.ndarray, n_classes: int
) -> np.ndarray | None:
    """Return what orders the rows: numbers, or for names what they say of the target on average."""
    if frame.cells[name].dtype.kind == "f" and not is_category:
        return frame.cells[name][known]
    if frame.cells[name].dtype.kind == "M":
        return None
    levels, code = np.unique(frame.text(name)[known].astype(str), return_inverse=True)
    if y.size < _ENOUGH * levels.size:
        return None
    counts = np.bincount(code)
    return (np.bincount(code, weights=y) / counts)[code]


def _promising(x: np.ndarray, y: np.ndarray, n_classes: int) -> bool:
    """Whether some of many rows speak for an area of 0.999: most columns are done with after these."""
    some = slice(None, None, max(1, y.size // _SAMPLE))
    sizes = np.bincount(y[some], minlength=n_classes)
    return sizes.min() < _ENOUGH or _least_area(x[some], y[some], n_classes) >= 0.98


def _least_area(x: np.ndarray, y: np.ndarray, n_classes: int) -> float:
    """Return the least area under the ROC curve over the divisions of the classes in the order of their mean ranks."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - 0.5 * (counts - 1))[place]  # equal numbers share their mean rank
    sizes = np.bincount(y, minlength=n_classes).astype(float)
    sums = np.bincount(y, weights=ranks, minlength=n_classes)
    order = np.argsort(sums / sizes)
    sizes, sums = sizes[order], sums[order]
    above, low = np.cumsum(sums[::-1])[::-1][1:], np.cumsum(sizes)[:-1]
    high = y.size - low
    return float(((above - high * (high + 1) / 2) / (low * high)).min())


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Return |r|; columns of any unit are divided by their largest number first."""
    scaled: list[Any] = []
    for v in (x, y):
        v = v / (np.abs(v).max() or 1.0)
        v = v - v.mean()
        scaled.append(v / (np.sqrt(v @ v) or 1.0))
    return float(abs(scaled[0] @ scaled[1]))


def sparse_giving_away(frame: Frame, y: np.ndarray, n_classes: int) -> Iterator[Trouble]:
    """Yield a trouble for every column of sparse rows that alone tells the target, by the rules of `giving_away`.

    A column that is 0 in more than a tenth of the rows of two classes has an area below 0.995, and is not looked at.
    """
    X = frame.rows.tocsc()
    if _too_few(y, n_classes):
        return
    if n_classes:
        filled = np.zeros((X.shape[1], n_classes))
        column = np.repeat(np.arange(X.shape[1]), np.diff(X.indptr))
        np.add.at(filled, (column, y.astype(int)[X.indices]), X.data != 0.0)
        empty = 1.0 - filled / np.bincount(y.astype(int), minlength=n_classes)
        near = np.flatnonzero((empty > 0.1).sum(axis=1) <= 1)
    else:
        near = np.arange(X.shape[1])
    for j in near.tolist():
        x = X[:, [j]].toarray().ravel()
        if n_classes and not _promising(x, y.astype(int), n_classes):
            continue
        name, found = frame.row_names[j], _least_area(x, y.astype(int), n_classes) if n_classes else _correlation(x, y)
        if found >= (_AUC if n_classes else _R):
            what = f"alone it has an AUC of {found:.4f}" if n_classes else f"|r| = {found:.6f}"
            yield Trouble(name, f"gives the target away: {what}", "drop")
