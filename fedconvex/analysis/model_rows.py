"""From a table to the rows of a model: complete cases, an intercept, levels of categories against a reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, instance, items, wrong_type
from fedconvex.analysis import formulas, response_families
from fedconvex.analysis.formulas import INTERCEPT
from fedconvex.analysis.multinomial import MULTINOMIAL
from fedconvex.analysis.response_families import Family
from fedconvex.analysis.table_coding import Coding, Survival
from fedconvex.federation import Federation
from fedconvex.tables.frame import Frame, cleared
from fedconvex.tables.planning import Wishes
from fedconvex.tables.problems import ColumnProblems
from fedconvex.tables.reading import plan, read_frame

NUMBERS = ("gaussian", "poisson", "quasipoisson", "gamma", "negative-binomial", "cox")


class ModelRows(NamedTuple):
    """What is analysed."""

    federation: Federation  # columns as they are written, responses of the family
    family: Family
    names: tuple[str, ...]  # of the p columns
    terms: dict[str, tuple[int, ...]]  # columns of each term, the intercept not among them
    event: str  # what the response is, in words
    left_out: list[tuple[str, str, int]]  # column, client, rows that it leaves out: a row counts for every column
    rows_read: int
    notes: tuple[tuple[str, str], ...] = ()  # of a formula: what was made of all rows together
    classes: tuple[str, ...] = ()  # of several ones, the reference first: coefficients are named "class: column"
    coding: Any = None  # the `Coding` that was decided

    @property
    def unit(self) -> float:
        """What gaussian responses and their offsets are divided by in a fit: a power of two near the largest one."""
        return response_unit(self.family, self.federation.y)

    @property
    def has_strata(self) -> bool:
        """Whether risk sets lie within strata of clients."""
        return getattr(self.federation, "strata", None) is not None

    @property
    def intercepts(self) -> list[int]:
        """Where intercepts are among the coefficients."""
        return intercepts_of(self.names)


def response_unit(family: Family, y: np.ndarray) -> float:
    """Return a power of two near the largest of gaussian responses; 1 for others, and where squares would overflow."""
    size = float(np.abs(y).max(initial=0.0))
    return 2.0 ** round(np.log2(size)) if family.name == "gaussian" and 1e-60 < size < 1e60 else 1.0


def intercepts_of(names: tuple[str, ...]) -> list[int]:
    """Return where intercepts are among coefficients, also of several classes."""
    return [j for j, name in enumerate(names) if name == INTERCEPT or name.endswith(f": {INTERCEPT}")]


def columns_of_all(kept: list[int], several: int, p: int) -> list[int]:
    """Return the columns, 0 to p - 1, whose coefficients are kept: those of several classes, all or none.

    Raises
    ------
    ValueError
        If a column has coefficients in some of the classes only.
    """
    columns = sorted({j % p for j in kept})
    if sorted(kept) != [c * p + j for c in range(several) for j in columns]:
        cure = "name the column: its coefficients of all classes are tested together"
        raise bad("Analysis.test: terms", "be columns of all classes, but for Wald tests", "some classes only", cure)
    return columns


def model_rows(
    data: Any,
    target: str | None,
    client: str,
    family: str | Family | None,
    *,
    site_intercepts: bool,
    offset: str | None,
    exposure: str | None,
    weight: str | None,
    reference: Mapping[str, Any] | None,
    survival: Survival,
    formula: str | None,
    reading: Mapping[str, Any],
) -> ModelRows:
    """Read a table; rows with a missing cell in a column that is used are left out, and counted.

    Raises
    ------
    ColumnProblems, ValueError, TypeError
        As `fedconvex.tables.read_table`; if the response is none of the family.
    """
    others = {"offset": offset, "exposure": exposure, "weight": weight, **survival._asdict()}
    reading, reference = _checked(target, client, family, others, reference, reading)
    read, target, reading = _formula(formula, target, data, reading)
    how = {k: v for k, v in reading.items() if k in ("sep", "decimal", "encoding")}
    wanted = {k: v for k, v in reading.items() if k not in how}
    family = _survival_family(family, survival, others, site_intercepts)
    extra = [name for name in (offset, exposure, *survival.columns) if name is not None]
    name = family.name if isinstance(family, Family) else family
    task = None if name is None else "numbers" if name in NUMBERS else "classes"
    wanted = {**wanted, "task": task, "drop": [*wanted.get("drop", ()), *extra]}
    wishes = Wishes.of(target=target, client=client, weight=weight, **wanted)
    frame = cleared(read_frame(data, text=wishes.text, **how), wishes.codes)
    frame, left_out, n = _complete(frame, wishes, extra)
    try:
        columns = plan(frame, wishes).fit(frame, standardise=False)
    except ColumnProblems as found:  # rows with missing cells are left out, which makes no filling necessary
        raise found.without("impute") from None
    reference, base = _base_class(columns, reference)
    kind, event, order = _response(columns, frame, family, base)
    bare = site_intercepts or survival.event is not None
    event = event if survival.event is None else f"{event} until {survival.event}"
    coding = Coding(columns, kind, event, order, reference, survival, offset, exposure, bare, read)
    _plain_if(coding.classes, site_intercepts, offset, exposure)
    made = coding.design(frame)
    fed = coding.federation(frame, made.X, columns.clients(frame))
    kind.check(fed.y, f"analyse: target {target!r}")
    names, terms = _of_classes(coding.classes, made.names, made.terms)
    coding = coding._replace(spec=made.spec)
    return ModelRows(
        replace(fed, columns=columns), kind, names, terms, event, left_out, n, tuple(made.notes), coding.classes, coding
    )


def _plain_if(classes: tuple[str, ...], *others: Any) -> None:
    """Raise ValueError where several classes come with what they cannot have."""
    if classes and any(others):
        raise bad("analyse: site_intercepts, offset, exposure", "not be given for family 'multinomial'", "one of them")


def _of_classes(
    classes: tuple[str, ...], names: tuple[str, ...], terms: dict[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return names and terms of the coefficients: of each class but the reference, where there are several."""
    p, several = len(names), classes[1:]
    if not several:
        return names, terms
    terms = {term: tuple(c * p + j for c in range(len(several)) for j in where) for term, where in terms.items()}
    return tuple(f"{c}: {name}" for c in several for name in names), terms


def _base_class(columns: Any, reference: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the reference levels of columns, and the class of the target that is one; no column is the intercept."""
    if any(c.name == INTERCEPT for c in columns.features):
        raise bad("analyse: columns", f"have other names than {INTERCEPT!r}", "one of that name", "rename it")
    name = columns.name_of("target")
    rest = {column: level for column, level in reference.items() if column != name}
    if len(rest) == len(reference):
        return reference, None
    known, base = [str(c) for c in columns.labels or ()], str(reference[name])
    if base not in known:
        raise bad(
            f"analyse: reference of {name!r}", f"be one of {', '.join(known) or 'its classes (it has none)'}", base
        )
    return rest, base


def _checked(
    target: Any, client: Any, family: Any, others: Mapping[str, Any], reference: Any, reading: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return what was asked of reading, and the reference levels, all of the right types."""
    for what, column in (("target", target), ("client", client), *others.items()):
        if column is not None or what == "client":
            instance(f"analyse: {what}", column, str)
    lists = ("features", "drop", "keep", "as_category", "missing")
    reading = {k: items(f"analyse: {k}", v) if k in lists else v for k, v in reading.items() if v is not None}
    if family is not None and not isinstance(family, (str, Family)):
        raise wrong_type("analyse: family", "be a name or a Family", repr(family))
    reference = {} if reference is None else reference
    instance("analyse: reference", reference, Mapping)
    if reading.get("impute") is not None:
        cure = "leave it out: rows with missing cells are left out, and counted"
        raise bad("analyse: impute", "not be given: standard errors would be too small", reading["impute"], cure)
    return reading, reference


def _formula(
    formula: str | None, target: str | None, data: Any, reading: dict[str, Any]
) -> tuple[formulas.Formula | None, str, dict[str, Any]]:
    """Return the formula, the target, and how to read the table: columns in C() are categories."""
    if formula is None:
        if target is None:
            raise bad("analyse: target", "name the response, if no formula does", "none")
        return None, target, reading
    instance("analyse: formula", formula, str)
    for what in ("features", "task"):
        if what in reading:
            raise bad(f"analyse: {what}", "not be given beside a formula", repr(reading[what]))
    how = {k: v for k, v in reading.items() if k in ("sep", "decimal", "encoding")}
    names = read_frame(data, **how).names
    read = formulas.read_formula(formula, names)
    if target not in (None, read.target):
        raise bad("analyse: target", "be the left side of the formula", f"{target!r} and {read.target!r}")
    more = {"features": list(read.features), "as_category": [*reading.get("as_category", ()), *read.categories]}
    return read, read.target, {**reading, **more}


def _survival_family(
    family: str | Family | None, survival: Survival, others: Mapping[str, Any], site_intercepts: bool
) -> str | Family | None:
    """Return the family of Cox's model where events are named, and the family as it is elsewhere."""
    among("analyse: ties", survival.ties, ("efron", "breslow"))
    if family not in (None, "cox") or (family is None and survival.event is None):
        for what in ("event", "entry", "strata"):
            if others[what] is not None:
                raise bad(f"analyse: {what}", "be given for family 'cox' only", repr(family))
        return family
    if survival.event is None:
        cure = "event='died', a column of 0 and 1, or event='status=2'"
        raise bad("analyse: event", "name the column that says whether the event was seen", "none", cure)
    for what in ("offset", "exposure", "weight"):
        if others[what] is not None:
            raise bad(f"analyse: {what}", "not be given for family 'cox': rows count alike", repr(others[what]))
    if site_intercepts:
        cure = "every client has a baseline hazard of its own, which takes up its level"
        raise bad("analyse: site_intercepts", "not be given for family 'cox'", True, cure)
    from fedconvex.analysis.cox import cox

    return cox(survival.ties)


def _complete(frame: Frame, wishes: Wishes, extra: Collection[str]) -> tuple[Frame, list[tuple[str, str, int]], int]:
    """Return the rows without a missing cell in a column that is used, and who lacks what."""
    keys = [name for name in (wishes.target, wishes.weight) if name is not None]
    features = frame.names if wishes.features is None else wishes.features
    used = [c for c in features if c not in (*keys, *wishes.drop, wishes.client, wishes.domain)]
    present = [c for c in dict.fromkeys([*keys, *used, *extra]) if c in frame.cells]
    gone = {c: frame.missing(c) for c in present}
    if wishes.client not in frame.cells or not any(g.any() for g in gone.values()):
        return frame, [], frame.n
    who = frame.text(str(wishes.client)).astype(str)
    found = [(c, str(k), int((g & (who == k)).sum())) for c, g in gone.items() if g.any() for k in np.unique(who[g])]
    keep = ~np.any(list(gone.values()), axis=0)
    if not keep.any():
        most = max(gone, key=lambda c: int(gone[c].sum()))
        cure = f"drop=[{most!r}] leaves out a column that lacks {int(gone[most].sum())} of {frame.n} cells"
        raise bad("analyse: data", "have a row without missing cells", "none", cure)
    return frame.take(np.flatnonzero(keep)), found, frame.n


def _response(
    columns: Any, frame: Frame, family: str | Family | None, base: str | None
) -> tuple[Family, str, tuple[int, ...]]:
    """Return the family of the response, what it is in words, and the order of its classes, the reference first."""
    name, labels, kind = columns.name_of("target"), columns.labels, _family_of(columns, frame, family)
    if kind.name not in ("logistic", "multinomial"):
        return kind, str(name), ()
    listed = [str(c) for c in labels or ()]
    if kind.name == "logistic" and len(listed) != 2:
        raise bad(f"analyse: target {name!r}", "have two classes for family 'logistic'", len(listed) or "numbers")
    if kind.name == "multinomial" and len(listed) == 1:
        raise bad(f"analyse: target {name!r}", "have two classes or more", f"one class, {listed[0]!r}")
    if kind.name == "multinomial" and len(listed) < 3:
        got = len(listed) or "numbers"
        raise bad(f"analyse: target {name!r}", "have three classes or more for family 'multinomial'", got)
    first = 0 if base is None else listed.index(base)
    order = (first, *(i for i in range(len(listed)) if i != first))
    if kind.name == "logistic":
        return kind, f"{name} = {listed[order[1]]} (against {listed[first]})", order
    return kind, f"{name} (against {listed[first]})", order


def _family_of(columns: Any, frame: Frame, family: str | Family | None) -> Family:
    """Return the family that was named, or the one that the responses leave no doubt about."""
    known = response_families.FAMILIES_WITHOUT_PARAMETERS | {"multinomial": MULTINOMIAL}
    if isinstance(family, Family):
        return family
    if family is not None:
        if family not in known:
            raise bad("analyse: family", f"be one of {', '.join(known)}, or a Family", f"{family!r}")
        return known[family]
    labels = columns.labels
    if labels is not None and len(labels) == 2:
        return known["logistic"]
    if labels is not None and isinstance(labels[0], str):
        return MULTINOMIAL
    y = columns.target(frame)
    if labels is None and (np.any(y < 0.0) or np.any(y != np.round(y))):
        return known["gaussian"]
    cure = "counts: family='poisson'; measurements: family='gaussian'"
    name = columns.name_of("target")
    raise bad(f"analyse: family of {name!r}", "be given where whole numbers or classes leave a doubt", "none", cure)
