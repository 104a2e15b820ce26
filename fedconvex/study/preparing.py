"""From a site's table to the columns that a study has agreed on, and all that is wrong with it on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedconvex.study.agreement import (
    INDICATOR,
    LEAVE_OUT,
    MISSING_LEVEL,
    NUMBER,
    OTHER,
    OTHER_LEVEL,
    Study,
    StudyColumn,
)
from fedconvex.tables.by_client import missing_codes
from fedconvex.tables.frame import Frame, cleared
from fedconvex.tables.guard import giving_away
from fedconvex.tables.spelling import Names, as_text

SITE_COLUMN = "(site)"


class Finding(NamedTuple):
    """What a check has found: what is wrong, and how it is mended; no problem where it is only to be known."""

    check: str
    found: str
    cure: str = ""

    @property
    def stops(self) -> bool:
        """Whether nothing may begin before it is mended."""
        return bool(self.cure)


@dataclass
class Prepared:
    """A site's rows in the columns of the study.

    Attributes
    ----------
    columns : dict from name to array (n,)
        Numbers, and names spelt as in the study, of the rows that take part; with the target, and `SITE_COLUMN`.
    rows : int
        Of the table.
    left_out : dict from column to int
        Rows that are left out since a cell is missing there.
    findings : list of Finding
    """

    columns: dict[str, np.ndarray]
    rows: int
    left_out: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Rows that take part."""
        return len(self.columns[SITE_COLUMN])

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found that must be mended first."""
        return not any(f.stops for f in self.findings)


def prepared(study: Study, site: str, frame: Frame, accept: dict[str, tuple[str, ...]]) -> Prepared:
    """Return a site's rows as the study has agreed on, with everything that is wrong with its table.

    Parameters
    ----------
    study : Study
    site : str
        Its name in the study.
    frame : Frame
        The table as it was read: columns of names as text.
    accept : mapping
        ``constant`` and ``tells_target``: columns about which the site has decided.
    """
    made, gone = {}, {}  # type: dict[str, np.ndarray], dict[str, np.ndarray]
    out = Prepared({}, frame.n)
    if frame.n == 0:
        out.findings.append(Finding("table", "it has no rows", "give a table with rows"))
    for column in study.columns:
        cells, missing, findings = _column(column, site, frame)
        out.findings += findings
        if cells is None:
            continue
        out.findings += _odd(column, cells, missing, accept["constant"])
        if column.missing == LEAVE_OUT:
            gone[column.name] = missing
        made[column.name] = cells
        if column.marker:
            made[column.marker] = missing.astype(np.float64)
    y, missing, findings = _target(study, frame)
    out.findings += findings
    if y is not None:
        made[study.target["column"]] = y
        gone[study.target["column"]] = missing
    for key, (cells, missing, findings) in _outcome(study, frame, y).items():
        out.findings += findings
        if cells is not None:
            made[study.target[key]], gone[study.target[key]] = cells, missing
    keep = ~np.any(list(gone.values()), axis=0) if gone else np.ones(frame.n, dtype=bool)
    out.left_out = {name: int(lost.sum()) for name, lost in gone.items() if lost.any()}
    out.columns = {name: a[keep] for name, a in made.items()} | {SITE_COLUMN: np.array([site] * int(keep.sum()))}
    if out.is_sound and out.n:
        out.findings += _giving_away(study, out.columns, accept["tells_target"])
    return out


def _column(c: StudyColumn, site: str, frame: Frame) -> tuple[Any, np.ndarray, list[Finding]]:
    """Return the cells of a column, None if it cannot be read, which are missing, and what is wrong."""
    check, none = f"column {c.name!r}", np.zeros(frame.n, dtype=bool)
    if c.name not in frame.cells:
        if site in c.absent_at:
            fill = np.full(frame.n, c.center) if c.kind == NUMBER else np.full(frame.n, MISSING_LEVEL, dtype=object)
            return fill, ~none, [Finding(check, "is not in the table, as the study says")]
        cure = f"add the column, or ask for absent_at = [{site!r}] in the study"
        return (
            None,
            none,
            [Finding(check, f"is not in the table, which has {', '.join(map(repr, frame.names))}"[:200], cure)],
        )
    own = cleared(frame, {c.name: c.codes}) if c.codes else frame
    if c.kind == NUMBER:
        try:
            cells = own.numbers(c.name)
        except ValueError as error:
            return (
                None,
                none,
                [Finding(check, str(error), "correct the cells, or name a code of missing cells: codes = [...]")],
            )
        return _numbers(c, check, cells)
    return _names(c, check, own)


def _numbers(c: StudyColumn, check: str, cells: np.ndarray) -> tuple[Any, np.ndarray, list[Finding]]:
    missing, found = np.isnan(cells), []
    if c.range is not None:
        outside = (cells < c.range[0]) | (cells > c.range[1])
        if outside.any():
            low, high = float(cells[outside].min()), float(cells[outside].max())
            shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            said = f"{outside.sum()} cells are outside of {c.range[0]:g} to {c.range[1]:g} ({shown})"
            found.append(Finding(check, said, 'correct them, or name a code of missing cells: codes = ["-9"]'))
    found += list(_gaps(c, check, missing))
    infinite = np.isinf(cells)
    if infinite.any():
        found.append(Finding(check, f"{infinite.sum()} cells are infinite", "correct them"))
    return np.where(missing, c.center, cells), missing, found


def _names(c: StudyColumn, check: str, frame: Frame) -> tuple[Any, np.ndarray, list[Finding]]:
    missing, found = frame.missing(c.name), []
    values = np.array([*c.values, MISSING_LEVEL, OTHER_LEVEL], dtype=object)
    texts = frame.text(c.name)
    place = Names(c.values).places([as_text(v) if v is not None else "" for v in texts.tolist()])
    place = np.where(missing, len(c.values), np.where(place < 0, len(c.values) + 1, place))
    strange = int((place == len(c.values) + 1).sum())
    if strange:
        kinds = len({str(v) for v, p in zip(texts.tolist(), place.tolist(), strict=True) if p > len(c.values)})
        said = f"{strange} cells hold {kinds} names that the study does not have"
        cure = "" if c.unknown == OTHER else 'correct them, or ask for more values, or unknown = "other", in the study'
        found.append(Finding(check, said + ("; they count as other" if c.unknown == OTHER else ""), cure))
    return values[place], missing, [*found, *_gaps(c, check, missing)]


def _gaps(c: StudyColumn, check: str, missing: np.ndarray) -> Iterator[Finding]:
    """Yield what becomes of missing cells, if there are any."""
    if not missing.any():
        return
    said = f"{missing.sum()} of {missing.size} cells are missing"
    if c.missing == INDICATOR:
        yield Finding(check, f"{said}: marked, and set to {'the centre' if c.kind == NUMBER else 'a category'}")
    elif c.missing == LEAVE_OUT:
        yield Finding(check, f"{said}: these rows are left out")
    else:
        yield Finding(check, said, 'fill them in, or ask for missing = "leave out" or "indicator" in the study')


def _odd(c: StudyColumn, cells: np.ndarray, missing: np.ndarray, accepted: tuple[str, ...]) -> Iterator[Finding]:
    """Yield what looks wrong in a column that can be read: constants, and numbers that may stand for missing cells."""
    kept, check = cells[~missing], f"column {c.name!r}"
    if not kept.size or c.name in accepted:
        return
    cure = "mend it, name a code of missing cells in the study (codes), or accept it here: "
    cure += f'[accept] constant = ["{c.name}"]'
    if len(kept) > 1 and all(v == kept[0] for v in kept.tolist()):
        shown = f"{kept[0]:g}" if c.kind == NUMBER else repr(kept[0])
        yield Finding(check, f"every cell is {shown}", cure)
    elif c.kind == NUMBER and (codes := missing_codes(kept)):
        shown = ", ".join(f"{v:g} in {int((kept == v).sum())} cells" for v in codes)
        yield Finding(check, f"{shown}: no other value is near, so that it may mean missing", cure)


def _target(study: Study, frame: Frame) -> tuple[Any, np.ndarray, list[Finding]]:
    """Return the target, None if it cannot be read, where it is missing, and what is wrong."""
    name, values, span = (study.target[key] for key in ("column", "values", "range"))
    check, none = f"target {name!r}", np.zeros(frame.n, dtype=bool)
    if name not in frame.cells:
        return None, none, [Finding(check, "is not in the table", "add the column")]
    missing, found = frame.missing(name), []
    if missing.any():
        said, leave = f"{missing.sum()} of {missing.size} cells are missing", study.target["missing"] == LEAVE_OUT
        cure = "" if leave else 'fill them in, or ask for missing = "leave out" in the study\'s [target]'
        found.append(Finding(check, said + (": these rows are left out" if leave else ""), cure))
    if values is None:
        try:
            y = frame.numbers(name)
        except ValueError as error:
            return None, none, [Finding(check, str(error), "correct the cells")]
        outside = np.zeros_like(missing) if span is None else (y < span[0]) | (y > span[1])
        if outside.any():
            found.append(
                Finding(check, f"{outside.sum()} cells are outside of {span[0]:g} to {span[1]:g}", "correct them")
            )
        return y, missing, found
    place = Names(values).places([as_text(v) if v is not None else "" for v in frame.text(name).tolist()])
    strange = (place < 0) & ~missing
    if strange.any():
        cure = f"correct them: {' or '.join(map(repr, values))}"
        found.append(Finding(check, f"{strange.sum()} cells are none of its values", cure))
        return None, missing, found
    kept = place[~missing]
    if kept.size and (kept == kept[0]).all():
        cure = (
            "a site without both classes says which class a patient is in as soon as it is counted: it cannot take part"
        )
        found.append(Finding(check, f"every row is {values[kept[0]]!r}", cure))
    return np.array(values, dtype=object)[np.maximum(place, 0)], missing, found


def _outcome(study: Study, frame: Frame, y: Any) -> dict[str, tuple[Any, np.ndarray, list[Finding]]]:
    """Return events, as 0 and 1, and entry times of rows with times, where they are missing, and what is wrong."""
    out: dict[str, tuple[Any, np.ndarray, list[Finding]]] = {}
    for key in ("event", "entry"):
        if (name := study.target[key]) is None:
            continue
        check, none = f"{key} {name!r}", np.zeros(frame.n, dtype=bool)
        if name not in frame.cells:
            out[key] = None, none, [Finding(check, "is not in the table", "add the column")]
            continue
        missing, found = frame.missing(name), []
        if missing.any():
            said, leave = f"{missing.sum()} of {missing.size} cells are missing", study.target["missing"] == LEAVE_OUT
            cure = "" if leave else 'fill them in, or ask for missing = "leave out" in the study\'s [target]'
            found.append(Finding(check, said + (": these rows are left out" if leave else ""), cure))
        out[key] = (_events if key == "event" else _entries)(study, frame, y, check, missing, found)
    return out


def _events(study: Study, frame: Frame, y: Any, check: str, missing: np.ndarray, found: list[Finding]) -> Any:
    """Return events as 0 and 1; with them, times that cannot be are found."""
    names, texts = study.target["events"], frame.text(study.target["event"]).tolist()
    place = Names(names).places([as_text(v) if v is not None else "" for v in texts])
    if strange := int(((place < 0) & ~missing).sum()):
        found.append(
            Finding(check, f"{strange} cells are neither {names[0]!r} nor {names[1]!r}", "correct them: events")
        )
    if y is not None and (y < 0.0).any():
        found.append(Finding(check, f"{int((y < 0.0).sum())} times are below zero", "correct them"))
    return np.array(["0", "1"], dtype=object)[np.maximum(place, 0)], missing, found


def _entries(study: Study, frame: Frame, y: Any, check: str, missing: np.ndarray, found: list[Finding]) -> Any:
    """Return entry times, which lie before the times."""
    try:
        entry = frame.numbers(study.target["entry"])
    except ValueError as error:
        return None, missing, [*found, Finding(check, str(error), "correct the cells")]
    late = int((entry >= y).sum()) if y is not None else 0
    if late:
        found.append(Finding(check, f"{late} rows enter at their time, or after it", "correct them"))
    return entry, missing, found


def _giving_away(study: Study, columns: dict[str, np.ndarray], accepted: tuple[str, ...]) -> Iterator[Finding]:
    """Yield columns that alone tell the target."""
    name, values, event = (study.target[key] for key in ("column", "values", "event"))
    y = columns[name] if values is None else Names(values).places(columns[name].tolist()).astype(np.float64)
    told = [(np.asarray(y), len(values or ()))]
    if event is not None:
        told.append((columns[event].astype(np.float64), 2))
    frame = Frame.of(columns)
    for c in study.columns:
        if c.name in accepted:
            continue
        for trouble in (t for y, classes in told for t in giving_away(frame, c.name, c.kind != NUMBER, y, classes)):
            cure = f'is it known before the outcome? then accept it here: [accept] tells_target = ["{c.name}"]'
            yield Finding(f"column {c.name!r}", trouble.what, cure)
