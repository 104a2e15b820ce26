"""`Columns`: what became of every column of a table, learned from training rows and applied to any others."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import among, bad
from fedconvex.tables.frame import Frame, cleared
from fedconvex.tables.moments import median, moments, most_frequent, sparse_standardised
from fedconvex.tables.spelling import Names

FEATURES = ("number", "category")
ROLES = (*FEATURES, "target", "client", "domain", "client and domain", "weight", "dropped")
MISSING_LEVEL = "(missing)"  # the level of missing names where gaps are indicated
_SPARSE_WIDTH, _SPARSE_SHARE = 50, 0.2  # one-hot tables wider and emptier than this are stored as CSR


class UnknownCategory(UserWarning):
    """A column of names holds some that no training row had, or gaps that no feature marks: none was in training.

    Examples
    --------
    >>> import warnings
    >>> from fedconvex.tables import UnknownCategory
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", UnknownCategory)  # predictions refuse such rows
    """


@dataclass(frozen=True)
class Column:
    """What became of one column.

    Attributes
    ----------
    name : str
    role : {"number", "category", "target", "client", "domain", "client and domain", "weight", "dropped"}
    note : str
        Why it was dropped, or what else there is to know.
    levels : tuple or None
        Categories in sorted order, of the training rows; class labels of a target.
    fill : float, str or None
        What stands for a missing cell; None where a missing cell is refused.
    indicator : bool
        Whether a further feature says which cells are missing.
    dates : bool
        Whether its numbers are days since 1970-01-01, of dates.
    codes : tuple of str
        Values that stand for missing cells.
    other : str or None
        The level of names that are none of the levels; None where they count as none.
    absent : bool
        Whether a table may lack the column: all of its cells are missing there.

    Examples
    --------
    >>> from fedconvex.tables import Column
    >>> Column("sex", "category", levels=("f", "m")).features
    ['sex=f', 'sex=m']
    """

    name: str
    role: str
    note: str = ""
    levels: tuple[Any, ...] | None = None
    fill: Any = None
    indicator: bool = False
    dates: bool = False
    codes: tuple[str, ...] = ()
    other: str | None = None
    absent: bool = False

    @property
    def features(self) -> list[str]:
        """Names of the features that are made of it."""
        if self.role == "category":
            return [f"{self.name}={level}" for level in self.levels or ()]
        own = [self.name] if self.role == "number" else []
        return [*own, f"{self.name}={MISSING_LEVEL}"] if self.indicator else own


@dataclass(frozen=True, eq=False)
class Columns:
    """The record of all columns: roles, categories, what fills gaps, and how features are standardised.

    `read_table` decides about roles, `fit` learns the rest from training rows, `matrix` applies it to any rows. Rows
    that were held out play no part in `fit`, so nothing of them leaks into categories, medians, means or scales.

    Attributes
    ----------
    columns : tuple of Column
        In the order of the table.
    impute : {None, "median", "mode", "indicator"}
        What is done about missing cells of features.
    center, scale : array (d,) or None
        Features are standardised as (x - center)/scale; None before `fit`.
    target_center, target_scale : float
        The same of a target of numbers.
    rows : int
        Training rows of `fit`.
    is_sparse : bool
        Whether features are CSR.
    origin, read_as : str
        What was read, and how.
    unseen : mapping from column to int
        Cells of the rows at hand with categories that the record does not have, where these count as none.

    Examples
    --------
    >>> from fedconvex.tables import Frame, read_table
    >>> frame, columns = read_table({"age": [60, 40, 50], "sex": ["f", "m", "f"], "ill": [1, 0, 1]}, target="ill")
    >>> columns = columns.fit(frame.take([0, 1]))
    >>> columns.feature_names, columns.center.tolist(), columns.matrix(frame).tolist()
    (('age', 'sex=f', 'sex=m'), [50.0, 0.5, 0.5], [[60.0, 1.0, 0.0], [40.0, 0.0, 1.0], [50.0, 1.0, 0.0]])
    """

    columns: tuple[Column, ...]
    impute: str | None = None
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    target_center: float = 0.0
    target_scale: float = 1.0
    rows: int = 0
    is_sparse: bool = False
    origin: str = "the frame"
    read_as: str = ""
    unseen: Mapping[str, int] = field(default_factory=dict)

    # ------------------------------------------------------------------ what there is
    def of_role(self, *roles: str) -> list[Column]:
        """Return the columns of some roles."""
        return [c for c in self.columns if c.role in roles]

    def name_of(self, role: str) -> str | None:
        """Return the name of the column of a role, or None."""
        return next((c.name for c in self.columns if role in c.role.split(" and ")), None)

    @property
    def features(self) -> list[Column]:
        """The columns that features are made of."""
        return self.of_role(*FEATURES)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features, "column=value" for categories."""
        return tuple(name for c in self.features for name in c.features)

    @property
    def labels(self) -> tuple[Any, ...] | None:
        """Class labels in sorted order, or None for a target of numbers."""
        return next((c.levels for c in self.columns if c.role == "target"), None)

    @property
    def text(self) -> set[str]:
        """Columns of names, to be read as they are written."""
        return {c.name for c in self.columns if c.role in ("category", "client", "domain", "client and domain")}

    @property
    def is_fitted(self) -> bool:
        """Whether training rows have been seen."""
        return self.scale is not None

    def listed(self) -> list[tuple[str, str, str]]:
        """Return (column, what became of it, note) for every column, for tables."""
        rows = []
        for c in self.columns:
            words = [c.note] if c.note else []
            if c.role == "category" and c.levels is not None:
                words.insert(0, f"{len(c.levels)} value{'s' * (len(c.levels) != 1)}")
            if c.codes:
                words.append(f"{' and '.join(c.codes)} {'stands' if len(c.codes) == 1 else 'stand'} for missing cells")
            if c.fill is not None:
                shown = f"{c.fill:g}" if isinstance(c.fill, float) else repr(c.fill)
                words.append(f"missing cells become {shown}" + (" and are indicated" if c.indicator else ""))
            rows.append((c.name, c.role, "; ".join(words)))
        return rows

    def gaps(self, frame: Frame, names: Sequence[str], code: np.ndarray) -> Iterator[tuple[str, str, int, int, str]]:
        """Yield column, client, missing cells, rows and what fills them, for whom cells of a feature are missing.

        Parameters
        ----------
        frame : Frame
        names : sequence of K str
            The clients.
        code : array (n,)
            Number of the client of every row.
        """
        frame, rows = self.cleared(frame), np.bincount(code, minlength=len(names)).tolist()
        for c in self.features:
            gone = np.zeros(frame.n, bool) if c.name in frame.row_places else frame.missing(c.name)
            filled = "the most frequent" if c.role == "category" or self.impute == "mode" else "the median"
            if self.impute == "indicator":
                filled = "a category of its own" if c.role == "category" else "the median, and marked"
            counts = np.bincount(code[gone], minlength=len(names)).tolist() if gone.any() else []
            yield from ((c.name, name, m, n, filled) for name, m, n in zip(names, counts, rows, strict=False) if m)

    # ------------------------------------------------------------------ what is asked of rows
    def _role(self, frame: Frame, role: str) -> np.ndarray | None:
        """Return the cells of the column of a role as numbers or as text, complete."""
        name = self.name_of(role)
        if name is None:
            return None
        self._need(frame, [name])
        gaps = frame.missing(name)
        if gaps.any():
            must = f"have no missing cell in the column {name!r} ({role})"
            raise bad(frame.origin, must, f"{int(gaps.sum())}, the first in row {int(np.argmax(gaps)) + 1}")
        return frame.numbers(name) if role == "weight" else frame.text(name).astype(str)

    def clients(self, frame: Frame) -> np.ndarray | None:
        """Return whose row it is, (n,): whole numbers if all are written so, else text; None without such a column."""
        return _named(self._role(frame, "client"))

    def domains(self, frame: Frame) -> np.ndarray | None:
        """Return the domain of every row (n,), or None."""
        return _named(self._role(frame, "domain"))

    def weights(self, frame: Frame) -> np.ndarray | None:
        """Return what every row weighs (n,), or None."""
        return self._role(frame, "weight")

    def target(self, frame: Frame) -> np.ndarray:
        """Return the target (n,): positions in `labels`, or numbers as they are.

        Raises
        ------
        ValueError
            If there is no target, a cell is missing, or a label is none of `labels`.
        """
        name = self.name_of("target")
        if name is None:
            raise bad("Columns.target", "have a target", "none", "pass target= to read_table")
        cells, labels = np.asarray(self._role(frame, "target")), self.labels
        if labels is None:
            return frame.numbers(name)
        if isinstance(labels[0], str):
            code = Names(labels).places(cells.tolist())
        else:
            given = frame.numbers(name)
            near = np.minimum(np.searchsorted(np.asarray(labels), given), len(labels) - 1)
            code = np.where(np.asarray(labels)[near] == given, near, -1)
        if (code < 0).any():
            i = int(np.argmax(code < 0))
            must = f"have the classes {', '.join(map(str, labels))} in the column {name!r}"
            raise bad(frame.origin, must, f"{cells[i]} in row {i + 1}")
        return code.astype(np.float64)

    def _need(self, frame: Frame, names: list[str]) -> None:
        """Raise if columns are missing, and name them and those that nobody asked for."""
        there = set(frame.names)
        gone = [name for name in names if name not in there]
        if gone:
            mine = {c.name for c in self.columns}
            others = [name for name in frame.names if name not in mine]
            got = f"no {', '.join(map(repr, gone))}" + (f", but {', '.join(map(repr, others))}" if others else "")
            raise bad(frame.origin, f"have the columns {', '.join(names)}, in any order", got)

    # ------------------------------------------------------------------ training
    def fit(
        self, frame: Frame, *, standardise: bool = True, centre: bool = True, standardise_target: bool = False
    ) -> Columns:
        """Learn categories, what fills gaps, means and scales from training rows.

        Parameters
        ----------
        frame : Frame
            The training rows, and no others.
        standardise : bool
            Whether features are divided by their standard deviation.
        centre : bool
            Whether their mean is subtracted first, and in sparse tables that of numbers only which is larger than
            their deviation; never done to sparse rows, and of no use without an intercept.
        standardise_target : bool
            The same for a target of numbers.

        Raises
        ------
        ValueError
            If a column is missing or holds what it cannot hold.
        """
        self.check_names(frame)
        frame = self.counting(self.cleared(frame))
        fitted = tuple(self._fitted(c, frame) if c.role in FEATURES else c for c in self.columns)
        made = self.arranged(fitted, frame.n, frame.rows is not None)
        return made._scaled(frame, standardise, centre, standardise_target)

    def counting(self, frame: Frame) -> Frame:
        """Return the rows that weigh something, if some do: others teach nothing."""
        some = np.arange(frame.n) if (weight := self.weights(frame)) is None else np.flatnonzero(weight)
        return frame.take(some) if 0 < some.size < frame.n else frame

    def cleared(self, frame: Frame) -> Frame:
        """Return the frame with cells missing that hold a code for it."""
        codes = {c.name: c.codes for c in self.features if c.codes}
        return cleared(frame, codes) if codes else frame

    def check_names(self, frame: Frame) -> None:
        """Raise ValueError if a frame lacks columns that features are made of."""
        self._need(frame, [c.name for c in self.features])

    def arranged(self, columns: tuple[Column, ...], rows: int, is_sparse: bool) -> Columns:
        """Return the record with fitted columns, before means and scales; wide one-hot tables are sparse."""
        wide = sum(len(c.features) for c in columns)
        raw = sum(c.role in FEATURES for c in columns)
        is_sparse = is_sparse or (wide > _SPARSE_WIDTH and raw <= _SPARSE_SHARE * wide)
        made = replace(self, columns=columns, rows=rows, is_sparse=is_sparse)
        made.check_features(self.origin)
        return made

    def check_features(self, who: str) -> None:
        """Raise ValueError if features of two columns have one name, such as "sex=f" and category f of "sex"."""
        names = self.feature_names
        if len(set(names)) < len(names):
            twice = next(name for name, m in Counter(names).items() if m > 1)
            raise bad(who, "make features of different names", f"{twice!r} of two columns", "rename one of them")

    def _fitted(self, c: Column, frame: Frame) -> Column:
        if c.name in frame.row_places:
            return c
        gaps, weight = frame.missing(c.name), self.weights(frame)
        weight = None if weight is None or not weight.any() else weight[~gaps]
        indicate = self.impute == "indicator" and bool(gaps.any())
        if c.role == "number":
            x, middle = frame.numbers(c.name)[~gaps], most_frequent if self.impute == "mode" else median
            fill = None if self.impute is None else middle(x, weight) if x.size else 0.0
            return replace(c, fill=fill, indicator=indicate)
        cells = frame.text(c.name)[~gaps].astype(str)
        names, fill = np.unique(cells).tolist(), None
        if self.impute is not None and (indicate or not names):  # all may be missing in these rows
            names, fill = [*names, *([] if MISSING_LEVEL in names else [MISSING_LEVEL])], MISSING_LEVEL
        elif self.impute is not None:
            fill = most_frequent(cells, weight)
        return replace(c, levels=tuple(names), fill=fill)

    def _scaled(self, frame: Frame, standardise: bool, centre: bool, standardise_target: bool) -> Columns:
        """Return the record with means and scales of the features, by all rows at once."""
        X, weight = self.matrix(frame), self.weights(frame)
        center, scale, target = np.zeros(X.shape[1]), np.ones(X.shape[1]), (0.0, 1.0)
        if standardise:
            mean, sd = moments(X, self.feature_names, weight)
            center = self.centers(mean, sd, frame) if centre else center
            scale = np.where(sd > 1e-12 * np.abs(mean), sd, 1.0)
        if standardise_target and self.labels is None:
            (middle,), (spread,) = moments(self.target(frame)[:, None], ("the target",), weight)
            target = (float(middle) if centre else 0.0, float(spread) or 1.0)
        return replace(self, center=center, scale=scale, target_center=target[0], target_scale=target[1])

    # ------------------------------------------------------------------ any rows
    def matrix(self, frame: Frame, unknown: str = "warn") -> Any:
        """Return the features (n, d) in the units of the data, dense or CSR; columns are found by their names.

        Parameters
        ----------
        frame : Frame
            Rows with the columns of the features, in any order; others are not read.
        unknown : {"warn", "zero", "refuse"}
            What becomes of a category that no training row had: its one-hot columns are all zero, with or without a
            warning, or it is refused; so it is with a missing cell that was to be indicated, and has no indicator.

        Raises
        ------
        ValueError
            If columns are missing, by name; if a cell is missing where nothing fills it, or is no number.
        """
        among("Columns.matrix: unknown", unknown, ("warn", "zero", "refuse"))
        names = [c.name for c in self.features]
        frame = self.cleared(self._completed(frame.widened(names)))
        self._need(frame, names)
        if frame.rows is not None and frame.row_places.keys() >= set(names):
            return self._columns_of(frame)
        if unknown != "zero":
            self._need_indicators(frame, unknown == "refuse")
        strange = self.unknown(frame) if unknown != "zero" else {}
        if strange:
            said = _said(strange)
            if unknown == "refuse":
                cure = "write them as the rows or the code book did, or count them as none by unknown='zero'"
                raise bad(frame.origin, "hold only categories that the record of columns has", said, cure)
            warnings.warn(f"{frame.origin}: no training row had {said}; it counts as none", UnknownCategory, 2)
        blocks: list[Any] = [self._encoded(c, frame) for c in self.features]
        if self.is_sparse:
            X = sp.hstack([sp.csr_array(b) for b in blocks], format="csr")
            X.eliminate_zeros()
            return X
        return np.ascontiguousarray(np.hstack([b.toarray() if sp.issparse(b) else b for b in blocks]))

    def _completed(self, frame: Frame) -> Frame:
        """Return the frame with columns of missing cells for those that it may lack."""
        lacking = {c.name: np.full(frame.n, np.nan) for c in self.features if c.absent and c.name not in frame.names}
        return replace(frame, cells={**frame.cells, **lacking}) if lacking else frame

    def _need_indicators(self, frame: Frame, refuse: bool) -> None:
        """Raise or warn if cells are missing where gaps were to be indicated, and no training row had one."""
        for c in self.features if self.impute == "indicator" else ():
            gaps = 0 if c.name in frame.row_places else int(frame.missing(c.name).sum())
            if not gaps or c.indicator or c.fill == MISSING_LEVEL:
                continue
            if refuse:
                must = f"have no missing cell in {c.name!r}, which has no indicator (none was missing in training)"
                cure = "leave a cell of it empty in the code book, or fill it without an indicator by unknown='zero'"
                raise bad(frame.origin, must, f"{gaps:,} missing", cure)
            filled = f"{c.fill:g}" if isinstance(c.fill, float) else repr(c.fill)
            said = f"{gaps:,} missing in {c.name!r}, filled with {filled} and not indicated: no training row had a gap"
            warnings.warn(f"{frame.origin}: {said}", UnknownCategory, 3)

    def _columns_of(self, frame: Frame) -> Any:
        """Return the sparse rows with the columns in their order."""
        names = tuple(c.name for c in self.features)
        if frame.row_names == names:
            return frame.rows
        return sp.csr_array(frame.rows[:, [frame.row_places[name] for name in names]])

    def _encoded(self, c: Column, frame: Frame) -> Any:
        """Return the features of one column, (n, .), one-hot as CSR."""
        if c.name in frame.row_places:
            return frame.rows[:, [frame.row_places[c.name]]]
        gaps = frame.missing(c.name)
        if gaps.any() and c.fill is None:
            got = f"{int(gaps.sum())} missing in column {c.name!r}, the first in row {int(np.argmax(gaps)) + 1}"
            cure = "fill them in, or train with impute='median', 'mode' or 'indicator'"
            raise bad(frame.origin, "have no missing values", got, cure)
        if c.role == "number":
            x = np.where(gaps, 0.0 if c.fill is None else c.fill, frame.numbers(c.name))
            if not gaps.all() and frame.has_dates(c.name) != c.dates:
                kinds = ("numbers", "dates") if frame.has_dates(c.name) else ("dates", "numbers")
                raise bad(f"{frame.origin}: column {c.name!r}", f"hold {kinds[0]}, as in training", kinds[1])
            if not np.isfinite(x).all():
                i = int(np.argmin(np.isfinite(x)))
                raise bad(f"{frame.origin}: column {c.name!r}", "be finite", f"{x[i]:g} in row {i + 1}")
            return np.column_stack([x, gaps.astype(np.float64)]) if c.indicator else x[:, None]
        cells = np.where(gaps, c.fill, frame.text(c.name)).astype(str)
        column = Names(c.levels or ()).places(cells.tolist())
        if c.other is not None:
            column = np.where(column < 0, (c.levels or ()).index(c.other), column)
        row = np.flatnonzero(column >= 0)
        return sp.csr_array((np.ones(row.size), (row, column[row])), shape=(frame.n, len(c.levels or ())))

    def unknown(self, frame: Frame) -> dict[str, dict[str, int]]:
        """Return how often each category occurs that no training row had, by column."""
        found: dict[str, dict[str, int]] = {}
        frame = self.cleared(frame)
        for c in self.of_role("category"):
            if c.other is not None:
                continue
            cells = frame.text(c.name)
            values, counts = np.unique(cells[~frame.missing(c.name)].astype(str), return_counts=True)
            known = Names(c.levels or ()).places(values.tolist()) >= 0
            strange = dict(zip(values[~known].tolist(), counts[~known].tolist(), strict=True))
            if strange:
                found[c.name] = strange
        return found

    def standardised(self, X: Any) -> Any:
        """Return (X - center)/scale of features in the units of the data, (n, d)."""
        if self.center is None or self.scale is None:
            raise bad("Columns.standardised", "come after fit", "a record without training rows")
        return sparse_standardised(X, self.center, self.scale) if sp.issparse(X) else (X - self.center) / self.scale

    def centers(self, mean: np.ndarray, sd: np.ndarray, frame: Frame) -> np.ndarray:
        """Return what is subtracted from features (d,): means, but in sparse tables only where zeros stay few.

        A column of numbers far from zero, such as a year, is dense as it is, and beside an intercept hardly separable.
        """
        if not self.is_sparse:
            return mean
        stored = frame.row_places
        number = [c.role == "number" and f == c.name and f not in stored for c in self.features for f in c.features]
        return np.where(np.array(number, dtype=bool) & (np.abs(mean) > sd), mean, 0.0)


def _said(strange: Mapping[str, Mapping[str, int]]) -> str:
    shown = []
    for name, values in strange.items():
        some = ", ".join(f"{v!r} ({n} rows)" if n > 1 else f"{v!r}" for v, n in list(values.items())[:5])
        shown.append(f"{some}{', ...' if len(values) > 5 else ''} in column {name!r}")
    return "; ".join(shown)


def _named(cells: np.ndarray | None) -> np.ndarray | None:
    """Return names (n,), as whole numbers if all are written as such ("7", not "07" or "7.0")."""
    if cells is None:
        return None
    labels = np.unique(cells).tolist()
    plain = all(len(c) <= 18 and c.removeprefix("-").isdecimal() and str(int(c)) == c for c in labels)
    return cells.astype(np.int64) if plain else cells
