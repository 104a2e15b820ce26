"""Which column plays which part: what was asked for, what the guard refuses, and what settles it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import among, bad, flag, wrong_type
from fedconvex.tables.by_client import Places, missing_codes
from fedconvex.tables.columns import Column, Columns
from fedconvex.tables.frame import Frame, cleared, is_truth, parsed_number
from fedconvex.tables.guard import (
    MOST_LEVELS,
    giving_away,
    oddly_written,
    one_number,
    one_word,
    sparse_giving_away,
    suspicions,
    text_dates,
)
from fedconvex.tables.problems import ColumnProblems, Trouble
from fedconvex.tables.spelling import Names, as_text, doubles

MOST_CLASSES = 20  # whole-numbered targets with more values than this are taken as real
_KEYS = ("target", "client", "domain", "weight")


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    Attributes
    ----------
    target, client, domain, weight : str or None
    features : tuple of str or None
        Columns to use; None for all others.
    drop, keep, as_category : tuple of str
        Columns to leave out; to take although the guard refuses them (ISO dates become days); of names, even if they
        look like numbers.
    impute : {None, "median", "mode", "indicator"}
        What stands for missing cells: the median of numbers and the most frequent category; the most frequent of both;
        or the median and a further feature that says so, and a category of its own.
    task : {None, "classes", "numbers"}
        What the target is; None for classes if it is text, has two values, or at most 20 whole numbers.
    guard : bool
        False takes suspicious columns as they are.
    missing : tuple of str
        What stands for missing cells beside empty ones: "chol=0" means that 0 in the column chol does.

    Examples
    --------
    >>> from fedconvex.tables import Wishes
    >>> wishes = Wishes.of(target="ill", client="ward", drop=["id"], missing=["chol=0"])
    >>> wishes.drop, wishes.missing
    (('id',), ('chol=0',))
    """

    target: str | None = None
    client: str | None = None
    domain: str | None = None
    weight: str | None = None
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    as_category: tuple[str, ...] = ()
    impute: str | None = None
    task: str | None = None
    guard: bool = True
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, **given: Any) -> Wishes:
        """Return wishes whose lists are tuples of names.

        Raises
        ------
        ValueError, TypeError
            If something is of the wrong type, none of its choices, or unheard of.
        """
        strange = sorted(set(given) - {f.name for f in fields(cls)})
        if strange:
            known = ", ".join(f.name for f in fields(cls))
            raise wrong_type("read_table", f"be given {known}, sep, decimal or encoding", ", ".join(strange))
        for name in ("features", "drop", "keep", "as_category", "missing"):
            value = given.get(name)
            if isinstance(value, str) or not (value is None or all(isinstance(v, str) for v in value)):
                raise wrong_type(f"read_table: {name}", "be a list of column names", repr(value))
            given[name] = None if value is None and name == "features" else tuple(value or ())
        for entry in given["missing"]:
            if not all(entry.rpartition("=")):
                raise bad("read_table: missing", "be a list of COLUMN=VALUE", repr(entry), "chol=0")
        for name in _KEYS:
            if not (given.get(name) is None or isinstance(given[name], str)):
                raise wrong_type(f"read_table: {name}", "be the name of a column", repr(given[name]))
        if given.get("impute") is not None:
            among("read_table: impute", given["impute"], ("median", "mode", "indicator"))
        if given.get("task") is not None:
            among("read_table: task", given["task"], ("classes", "numbers"))
        flag("read_table: guard", given.get("guard", True))
        return cls(**given)

    @cached_property
    def keys(self) -> dict[str, str]:
        """Role of the columns that are no features."""
        return {name: role for role in reversed(_KEYS) if (name := getattr(self, role)) is not None}

    @cached_property
    def sets(self) -> dict[str, frozenset[str]]:
        """The lists as sets: tables may have tens of thousands of columns."""
        return {name: frozenset(getattr(self, name) or ()) for name in ("features", "drop", "keep", "as_category")}

    @cached_property
    def codes(self) -> dict[str, tuple[str, ...]]:
        """Values that stand for missing cells, by column."""
        found: dict[str, tuple[str, ...]] = {}
        for entry in self.missing:
            name, _, value = entry.rpartition("=")
            found[name] = (*found.get(name, ()), value)
        return found

    @property
    def text(self) -> set[str]:
        """The columns that are names even where they look like numbers."""
        return {c for c in (self.client, self.domain, *self.as_category) if c is not None}


def planned(frame: Frame, wishes: Wishes) -> Columns:
    """Decide about the role of every column, or say all that is wrong at once.

    Raises
    ------
    ColumnProblems
        If columns need a decision.
    ValueError
        If names are not there, or have two roles.
    """
    _resolve(frame, wishes)
    unheld = _unheld(frame, wishes.codes)
    frame = cleared(frame, wishes.codes)
    places = Places.of(frame, wishes.client)
    y, target, troubles = _target(frame, wishes)
    found: dict[str, list[Trouble]] = {}
    columns = [
        target if target is not None and name == wishes.target else _column(frame, name, wishes, found, places)
        for name in dict.fromkeys((*(wishes.features or ()), *frame.names))
    ]
    troubles += [t for name in frame.names for t in found.get(name, ())]
    if y is not None and wishes.guard:
        settled = {t.column for t in troubles}
        used = {c.name for c in columns if c.role == "number"} - {*wishes.keep}
        labels = target.levels if target is not None else None
        for c in columns:
            if c.role in ("number", "category") and c.name not in settled and c.name not in wishes.sets["keep"]:
                troubles += _away(frame, c, y, labels)
        if frame.rows is not None:
            told = sparse_giving_away(frame, y, len(labels) if labels else 0)
            troubles += [t for t in told if t.column in used]
    if troubles:
        raise ColumnProblems(frame.origin, frame.read_as, troubles)
    if not any(c.role in ("number", "category") for c in columns):
        raise bad(frame.origin, "have at least one feature column", f"columns {', '.join(frame.names)}")
    columns = [
        replace(c, note="; ".join(w for w in (c.note, unheld[c.name]) if w)) if c.name in unheld else c for c in columns
    ]
    return Columns(tuple(columns), wishes.impute, origin=frame.origin, read_as=frame.read_as)


def _resolve(frame: Frame, wishes: Wishes) -> None:
    """Check names against the columns of the table."""
    who, known = frame.origin, set(frame.names)
    named = [*wishes.keys, *(wishes.features or ()), *wishes.drop, *wishes.keep, *wishes.as_category, *wishes.codes]
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, frame.names, 1)
            near = near or [c for c in frame.names if c.lower().startswith(name.lower())]
            listed = ", ".join(frame.names[:40]) + (", ..." if len(frame.names) > 40 else "")
            nameless = not near and any(parsed_number(c) is not None for c in frame.names)
            cure = f"{near[0]!r} is near" if near else "the first line must name the columns" if nameless else ""
            if len(frame.names) == 1 and frame.read_as:
                cure = f"it was read with {frame.read_as}; another separator is named by sep="
            raise bad(who, f"have a column {name!r}", f"columns {listed}", cure)
    features, keys = wishes.features or (), [getattr(wishes, role) for role in _KEYS]
    twice = [c for c, m in Counter(features).items() if m > 1 or c in keys]
    if twice:
        must = "be different columns, none of them target, client, domain or weight"
        raise bad(f"{who}: features", must, twice[0])
    if wishes.target is not None and wishes.target in keys[1:]:
        raise bad(f"{who}: target", "be another column than client, domain and weight", wishes.target)
    if wishes.weight is not None and wishes.weight in (wishes.client, wishes.domain):
        raise bad(f"{who}: weight", "be another column than client and domain", wishes.weight)
    coded = set(wishes.codes) & {*wishes.keys, *wishes.drop, *frame.row_places}
    if coded:
        raise bad(f"{who}: missing", "name columns that are features, not sparse", min(coded))
    for one, other in (("drop", "keep"), ("drop", "as_category"), ("drop", "features")):
        both = set(getattr(wishes, one) or ()) & set(getattr(wishes, other) or ())
        if both:
            raise bad(f"{who}: {one}", f"name other columns than {other}", f"{min(both)!r} in both")


def _unheld(frame: Frame, codes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return in words which codes for missing cells stand in no cell of their column, by column.

    Raises
    ------
    ValueError
        If such a code has a comma in it: several codes were meant.
    """
    found: dict[str, str] = {}
    for name, values in codes.items():
        cells = set(frame.text(name).tolist()) - {None}
        absent = [v for v in values if not (Names([v]).places(cells) >= 0).any()]
        for value in absent:
            if "," in value:
                several = ",".join(f"{name}={part.strip()}" for part in value.split(","))
                raise bad(f"{frame.origin}: missing", "name one value each time", f"{name}={value}", several)
        if absent:
            found[name] = f"no cell is {' or '.join(absent)}"
    return found


def _column(frame: Frame, name: str, wishes: Wishes, found: dict[str, list[Trouble]], places: Places) -> Column:
    """Return what becomes of one column, and note what is wrong with it."""
    role = wishes.keys.get(name)
    if role is not None:
        found[name] = list(_role_troubles(frame, name, role, wishes))
        both = role == "client" and name == wishes.domain
        return Column(name, "client and domain" if both else role, frame.merged.get(name, ""))
    if name in wishes.sets["drop"]:
        return Column(name, "dropped", "as asked")
    if wishes.features is not None and name not in wishes.sets["features"]:
        return Column(name, "dropped", "not among the features")
    if name in frame.row_places:
        return Column(name, "number")
    if wishes.features is None and name not in wishes.sets["keep"]:
        if name in frame.index:
            return Column(name, "dropped", "the index of the frame")
        if name.startswith("Unnamed: ") and frame.missing(name).all():
            return Column(name, "dropped", "no name and no value")
    asked = name in wishes.sets["as_category"]
    if name not in wishes.sets["keep"]:
        found[name] = list(_troubles(frame, name, wishes, asked, places))
    else:
        named = not asked and frame.cells[name].dtype.kind == "O"
        cells = frame.cells[name][~frame.missing(name)].tolist() if named else []
        dates = text_dates(cells) if len(set(cells)) > MOST_LEVELS else ""
        found[name] = [Trouble(name, dates, "drop", keep=False)] if dates else []
        found[name] += _gap_troubles(frame, name, wishes, places)
    column = _feature(frame, name, asked)
    notes = [column.note, _gap_words(frame, name, places, wishes.impute), places.constant(frame, name)]
    return replace(column, note="; ".join(w for w in notes if w), codes=wishes.codes.get(name, ()))


def _feature(frame: Frame, name: str, asked: bool) -> Column:
    cells, note = frame.cells[name], "; ".join(w for w in ("as asked" if asked else "", frame.merged.get(name)) if w)
    if cells.dtype.kind == "f" and not asked:
        return Column(name, "number", _hint(cells))
    if not asked and (cells.dtype.kind == "M" or _readable(frame, name)):
        dates = frame.has_dates(name)
        return Column(name, "number", "days since 1970-01-01" if dates else "", dates=dates)
    return Column(name, "category", note)


def _hint(x: np.ndarray) -> str:
    """Return what one may want to know of numbers: names of categories are often written as numbers."""
    some = x[:1000]
    some = some[~np.isnan(some)]
    if not some.size or not (some == np.floor(some)).all() or np.unique(some).size > 12:
        return ""
    values = np.unique(x[~np.isnan(x)])
    few = 2 < values.size <= 12 and bool((values == np.floor(values)).all())
    return f"{values.size} whole numbers: a category, if they are names" if few else ""


def _readable(frame: Frame, name: str) -> bool:
    """Whether text reads as numbers or ISO dates; "true" and "false" are names."""
    if name in frame.mixed or name in frame.categories or any(map(is_truth, frame.cells[name].tolist())):
        return False
    try:
        frame.numbers(name)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------- what is wrong
def _troubles(frame: Frame, name: str, wishes: Wishes, asked: bool, places: Places) -> Iterator[Trouble]:
    """Yield what is wrong with a feature: with its cells always, with its meaning where the guard is on."""
    all_found = list(suspicions(frame, name, asked, wishes.sets["features"] or None, wishes.sets["drop"]))
    must = [t for t in all_found if not t.keep or frame.cells[name].dtype.kind == "M"]
    said = all_found if wishes.guard else must
    if wishes.features is None and name.startswith("Unnamed: ") and not said:
        said = [Trouble(name, "a column without a name, as the index of a frame is written", "drop")]
    gaps = list(_gap_troubles(frame, name, wishes, places))
    if wishes.guard and not said and not frame.unnamed:
        yield from _code_troubles(frame, name, wishes, places)
    if said and gaps and not said[0].what.startswith("no value"):
        yield from (t._replace(what=f"{t.what}; {gaps[0].what}") for t in said)
    else:
        yield from said or gaps


def _gap_troubles(frame: Frame, name: str, wishes: Wishes, places: Places) -> Iterator[Trouble]:
    if wishes.impute is None and (words := _gap_words(frame, name, places)):
        yield Trouble(name, words, "impute", "median", keep=False)


def _gap_words(frame: Frame, name: str, places: Places, impute: str | None = None) -> str:
    """Return how many cells are missing, at which clients, and what fills them; "" if none is."""
    gaps = frame.missing(name)
    if not gaps.any():
        return ""
    filled = {None: "", "mode": ", filled by the most frequent"}.get(impute, ", filled by the median")
    filled = filled if frame.cells[name].dtype.kind == "f" or not impute else ", filled by the most frequent"
    where = places.words(gaps)
    return f"{int(gaps.sum()):,} missing of {frame.n:,}{filled}" + (f": {where}" if where else "")


def _code_troubles(frame: Frame, name: str, wishes: Wishes, places: Places) -> Iterator[Trouble]:
    """Yield what seems to be a code for missing cells, of numbers and of names that are numbers."""
    cells = frame.cells[name]
    if cells.dtype.kind == "O":
        known = {c: np.nan if c is None else parsed_number(c) for c in set(cells.tolist())}
        if None in known.values() or len(known) > MOST_LEVELS:
            return
        cells = np.array([known[c] for c in cells.tolist()])
    for code in missing_codes(cells) if cells.dtype.kind == "f" else ():
        where = places.words(cells == code)
        what = f"{code:g} in {int((cells == code).sum()):,} cells, and no other value near it" + (
            where and f" ({where})"
        )
        also = ("impute", "median") if wishes.impute is None else ("", "")
        yield Trouble(name, f"{what}: a code for missing cells?", "missing", f"{name}={code:g}", also=also)


def _role_troubles(frame: Frame, name: str, role: str, wishes: Wishes) -> Iterator[Trouble]:
    gaps = frame.missing(name)
    if gaps.any():
        row = int(np.argmax(gaps)) + 1
        yield Trouble(name, f"{int(gaps.sum()):,} missing in the {role} column, the first in row {row}", "", keep=False)
    two = doubles(c for c in frame.cells[name].tolist() if c is not None) if frame.cells[name].dtype == object else None
    if two is not None and wishes.guard:
        yield Trouble(name, f"{one_number(two)} ({role} column)", "", keep=False)
    if role == "weight" and frame.cells[name].dtype.kind != "f":
        raise bad(f"{frame.origin}: weight", "be a column of numbers", f"text in column {name!r}")


def _class_troubles(frame: Frame, name: str, guard: bool) -> Iterator[Trouble]:
    """Yield what speaks against text as classes."""
    kept = [c for c in frame.cells[name].tolist() if c is not None]
    odd, levels = oddly_written(kept), len(set(kept))
    if odd:
        yield Trouble(name, odd, "as_category", keep=False)
    elif name in frame.mixed:
        yield Trouble(name, f"numbers and text: {frame.mixed[name]}", "as_category", keep=False)
    elif levels > MOST_LEVELS:
        what = f"text with {levels:,} different values ({kept[0][:30]!r}, ...), more than {MOST_LEVELS} classes"
        yield Trouble(name, what, "as_category", keep=False)
    elif guard and (similar := one_word(set(kept))):
        yield Trouble(name, f"{similar} (target column)", "as_category", keep=False)


def _target(frame: Frame, wishes: Wishes) -> tuple[np.ndarray | None, Column | None, list[Trouble]]:
    """Return the target as class numbers or numbers, its column, and what is wrong with it."""
    name = wishes.target
    if name is None:
        return None, None, []
    troubles = list(_role_troubles(frame, name, "target", wishes))
    cells = frame.cells[name]
    if cells.dtype.kind == "O" and name not in wishes.as_category:
        troubles += _class_troubles(frame, name, wishes.guard)
    if troubles:
        return None, Column(name, "target"), troubles
    if cells.dtype.kind == "f" and name not in wishes.as_category:
        if not np.isfinite(cells).all():
            i = int(np.argmin(np.isfinite(cells)))
            raise bad(f"{frame.origin}: column {name!r}", "be finite", f"{cells[i]:g} in row {i + 1}")
        values = np.unique(cells)
        few = values.size == 2 or (values.size <= MOST_CLASSES and bool((values == np.floor(values)).all()))
        if wishes.task == "numbers" or (wishes.task is None and not few):
            return cells, Column(name, "target", "numbers"), []
        labels: tuple[Any, ...] = tuple(int(v) if v == np.floor(v) else v for v in values.tolist())
        code = np.searchsorted(values, cells)
    else:
        if wishes.task == "numbers":
            raise bad(f"{frame.origin}: target", "be a column of numbers", f"text in column {name!r}")
        found, code = np.unique(frame.text(name).astype(str), return_inverse=True)
        labels = tuple(found.tolist())
    shown = ", ".join(map(as_text, labels[:6])) + (", ..." if len(labels) > 6 else "")
    note = "; ".join(w for w in (f"{len(labels)} classes: {shown}", frame.merged.get(name)) if w)
    return code.astype(np.float64), Column(name, "target", note, labels), []


def _away(frame: Frame, c: Column, y: np.ndarray, labels: Sequence[Any] | None) -> Iterator[Trouble]:
    if c.name not in frame.row_places:
        yield from giving_away(frame, c.name, c.role == "category", y, len(labels) if labels else 0)
