"""From a table to the rows of a model: complete cases, an intercept, levels of categories against a reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, instance, items, wrong_type
from fedconvex.analysis import formulas, response_families
from fedconvex.analysis.multinomial import MULTINOMIAL
from fedconvex.analysis.response_families import Family
from fedconvex.federation import Federation
from fedconvex.tables.frame import Frame, cleared
from fedconvex.tables.planning import Wishes
from fedconvex.tables.reading import plan, read_frame

INTERCEPT = "Intercept"
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

    @property
    def intercepts(self) -> list[int]:
        """Where intercepts are among the coefficients."""
        if not self.classes:
            return [j for j, name in enumerate(self.names) if name == INTERCEPT]
        p = self.federation.d
        return [c * p for c in range(len(self.classes) - 1) if self.names[c * p].endswith(f": {INTERCEPT}")]


class Survival(NamedTuple):
    """Columns of a table whose target are times, None where there is none, and how ties are treated."""

    event: str | None
    entry: str | None
    strata: str | None
    ties: str


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
    extra = [name for name in (offset, exposure, *_survival_columns(survival)) if name is not None]
    name = family.name if isinstance(family, Family) else family
    task = None if name is None else "numbers" if name in NUMBERS else "classes"
    wanted = {**wanted, "task": task, "drop": [*wanted.get("drop", ()), *extra]}
    wishes = Wishes.of(target=target, client=client, weight=weight, **wanted)
    frame = cleared(read_frame(data, text=wishes.text, **how), wishes.codes)
    frame, left_out, n = _complete(frame, wishes, extra)
    columns = plan(frame, wishes).fit(frame, standardise=False)
    reference, base = _base_class(columns, reference)
    y, kind, event, classes = _response(columns, frame, family, base)
    _plain_if(classes, site_intercepts, offset, exposure)
    bare = site_intercepts or survival.event is not None
    notes: list[tuple[str, str]] = []
    if read is not None:
        X, names, terms, notes = formulas.design(read, columns, frame, reference, bare)
    else:
        X, names, terms = against_reference(columns, columns.matrix(frame), reference)
        if not bare:
            X, names = np.column_stack([np.ones(frame.n), X]), (INTERCEPT, *names)
            terms = {term: tuple(j + 1 for j in where) for term, where in terms.items()}
    names, terms = _of_classes(classes, names, terms)
    fed: Federation
    if survival.event is not None:
        from fedconvex.analysis.cox import outcomes_of
        from fedconvex.families.survival.survival_rows import SurvivalFederation

        times = outcomes_of(frame, y, survival.event, survival.entry, survival.strata)
        fed, event = SurvivalFederation.from_arrays(X, times, columns.clients(frame)), f"{event} until {survival.event}"
    else:
        given = log_offset(frame, offset, exposure)
        fed = Federation.from_arrays(X, y, columns.clients(frame), None, columns.weights(frame), given)
    return ModelRows(replace(fed, columns=columns), kind, names, terms, event, left_out, n, tuple(notes), classes)


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


def _survival_columns(survival: Survival) -> tuple[str | None, str | None, str | None]:
    event = None if survival.event is None else survival.event.rpartition("=")[0] or survival.event
    return event, survival.entry, survival.strata


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
) -> tuple[np.ndarray, Family, str, tuple[str, ...]]:
    """Return the response, its family, what it is in words, and its classes if there are several, reference first."""
    name, labels, y = columns.name_of("target"), columns.labels, columns.target(frame)
    known = response_families.FAMILIES_WITHOUT_PARAMETERS | {"multinomial": MULTINOMIAL}
    if isinstance(family, Family):
        kind = family
    elif family is not None:
        if family not in known:
            raise bad("analyse: family", f"be one of {', '.join(known)}, or a Family", f"{family!r}")
        kind = known[family]
    elif labels is not None and len(labels) == 2:
        kind = known["logistic"]
    elif labels is not None and isinstance(labels[0], str):
        kind = MULTINOMIAL
    elif labels is None and (np.any(y < 0.0) or np.any(y != np.round(y))):
        kind = known["gaussian"]
    else:
        cure = "counts: family='poisson'; measurements: family='gaussian'"
        raise bad(f"analyse: family of {name!r}", "be given where whole numbers or classes leave a doubt", "none", cure)
    if kind.name == "logistic":
        if labels is None or len(labels) != 2:
            got = "numbers" if labels is None else f"{len(labels)}"
            raise bad(f"analyse: target {name!r}", "have two classes for family 'logistic'", got)
        if base is not None and base != str(labels[0]):
            y, labels = 1.0 - y, labels[::-1]
        return y, kind, f"{name} = {labels[1]} (against {labels[0]})", ()
    if kind.name == "multinomial":
        if labels is None or len(labels) < 3:
            got = "numbers" if labels is None else f"{len(labels)}"
            if labels is not None and len(labels) < 2:
                raise bad(f"analyse: target {name!r}", "have two classes or more", f"one class, {labels[0]!r}")
            raise bad(f"analyse: target {name!r}", "have three classes or more for family 'multinomial'", got)
        listed = [str(c) for c in labels]
        first = 0 if base is None else listed.index(base)
        order = [first, *(i for i in range(len(listed)) if i != first)]
        place = np.argsort(order)[np.asarray(y, dtype=np.int64)]
        return place.astype(float), kind, f"{name} (against {listed[first]})", tuple(listed[i] for i in order)
    kind.check(y, f"analyse: target {name!r}")
    return y, kind, str(name), ()


def against_reference(
    columns: Any, X: np.ndarray, reference: Mapping[str, Any]
) -> tuple[np.ndarray, tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return the features without the reference level of each category: the first, or the one that was named."""
    X = X.toarray() if hasattr(X, "toarray") else X
    kept: list[int] = []
    names: list[str] = []
    terms: dict[str, tuple[int, ...]] = {}
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
        mine = [at + j for j in range(width) if j != left]
        terms[c.name] = tuple(range(len(kept), len(kept) + len(mine)))
        kept += mine
        names += [c.features[j - at] for j in mine]
        at += width
    return X[:, kept], tuple(names), {t: where for t, where in terms.items() if where}


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
