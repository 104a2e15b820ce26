"""How the cells of a table become responses and columns of a model: decided by one table, applied to any like it.

A pooled table decides for itself; for tables at sites a code book does, the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.analysis import formulas
from fedconvex.analysis.formulas import INTERCEPT, Design, Formula
from fedconvex.analysis.response_families import Family
from fedconvex.federation import Federation
from fedconvex.tables.columns import Columns
from fedconvex.tables.frame import Frame


class Survival(NamedTuple):
    """Columns of a table whose target are times, None where there is none, and how ties are treated."""

    event: str | None
    entry: str | None
    strata: str | None
    ties: str

    @property
    def columns(self) -> tuple[str | None, str | None, str | None]:
        """The columns of events, entry times and strata."""
        event = None if self.event is None else self.event.rpartition("=")[0] or self.event
        return event, self.entry, self.strata


class Coding(NamedTuple):
    """What was decided about a table."""

    columns: Columns
    family: Family
    event: str  # what the response is, in words
    order: tuple[int, ...]  # of the labels of a target that has classes, the reference first
    reference: Mapping[str, Any]  # levels of categories
    survival: Survival
    offset: str | None
    exposure: str | None
    bare: bool  # whether intercepts are of clients
    formula: Formula | None
    spec: Any = None  # formulaic's, of the table that decided: levels and knots
    unit: float = 1.0  # at sites times, and gaussian responses and offsets, are divided by it: a power of two

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of several classes, the reference first."""
        labels = self.columns.labels or ()
        return tuple(str(labels[i]) for i in self.order) if self.family.name == "multinomial" else ()

    @property
    def used(self) -> list[str]:
        """Names of the columns that a row must have."""
        features = [c.name for c in self.columns.features]
        keys = [self.columns.name_of(role) for role in ("target", "weight")]
        every = [*keys, *features, self.offset, self.exposure, *self.survival.columns]
        return [name for name in dict.fromkeys(every) if name is not None]

    def response(self, frame: Frame) -> np.ndarray:
        """Return the responses (n,): numbers, or places of classes with the reference at 0."""
        y = self.columns.target(frame)
        return np.argsort(self.order)[y.astype(np.int64)].astype(float) if self.order else y

    def design(self, frame: Frame) -> Design:
        """Return the columns of a table, and their names."""
        if self.formula is None or self.spec is not None:  # unknown categories are refused
            X = self.columns.matrix(frame, unknown="refuse")
        if self.formula is not None:
            return formulas.design(self.formula, self.columns, frame, self.reference, self.bare, self.spec)
        X, names, terms, notes = against_reference(self.columns, X, self.reference)
        if not self.bare:
            X, names = np.column_stack([np.ones(frame.n), X]), (INTERCEPT, *names)
            terms = {term: tuple(j + 1 for j in where) for term, where in terms.items()}
        return Design(X, names, terms, notes)

    def federation(self, frame: Frame, X: np.ndarray, clients: Any) -> Federation:
        """Return the rows of a table with their clients, responses, weights and offsets."""
        y = self.response(frame)
        if self.survival.event is None:
            given = log_offset(frame, self.offset, self.exposure)
            given = None if given is None else given / self.unit
            return Federation.from_arrays(X, y / self.unit, clients, None, self.columns.weights(frame), given)
        from fedconvex.analysis.cox import outcomes_of
        from fedconvex.families.survival.survival_rows import SurvivalFederation

        times = outcomes_of(frame, y, self.survival.event, self.survival.entry, self.survival.strata, self.unit)
        return SurvivalFederation.from_arrays(X, times, clients)


def against_reference(
    columns: Any, X: np.ndarray, reference: Mapping[str, Any]
) -> tuple[np.ndarray, tuple[str, ...], dict[str, tuple[int, ...]], list[tuple[str, str]]]:
    """Return the features without the reference level of each category, the first or the one named, and say which."""
    X = X.toarray() if hasattr(X, "toarray") else X
    kept: list[int] = []
    names: list[str] = []
    terms: dict[str, tuple[int, ...]] = {}
    notes: list[tuple[str, str]] = []
    categories = [c.name for c in columns.features if c.role == "category"]
    if strange := [name for name in reference if name not in categories]:
        raise bad("analyse: reference", f"name categories ({', '.join(categories) or 'there are none'})", strange[0])
    at = 0
    for c in columns.features:
        width = len(c.features)
        left = -1
        if c.role == "category":
            levels = [str(v) for v in c.levels]
            base = str(reference.get(c.name, levels[0]))
            if base not in levels:
                raise bad(f"analyse: reference of {c.name!r}", f"be one of {', '.join(levels)}", base)
            left = levels.index(base)
            notes.append(formulas.note_of_levels(c.name, base, [v for v in levels if v != base]))
        mine = [at + j for j in range(width) if j != left]
        terms[c.name] = tuple(range(len(kept), len(kept) + len(mine)))
        kept += mine
        names += [c.features[j - at] for j in mine]
        at += width
    return X[:, kept], tuple(names), {t: where for t, where in terms.items() if where}, notes


def log_offset(frame: Frame, offset: str | None, exposure: str | None) -> np.ndarray | None:
    """Return what is known of every score: the offset, and the logarithm of the exposure."""
    parts: list[np.ndarray] = []
    for option, name in (("offset", offset), ("exposure", exposure)):
        if name is None:
            continue
        x = frame.numbers(name)
        if option == "exposure" and (x <= 0.0).any():
            raise bad(f"analyse: exposure {name!r}", "be positive", f"{x[x <= 0.0][0]:g}", "leave such rows out")
        parts.append(np.log(x) if option == "exposure" else x)
    return sum(parts[1:], parts[0]) if parts else None
