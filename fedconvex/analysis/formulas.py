"""Model formulas, as R and Wilkinson and Rogers (J. R. Statist. Soc. C 22, 1973) write them, by the library formulaic.

Levels of categories are those of all clients together, and knots of splines are quantiles of all rows together: a table
is read in one place here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.tables.frame import Frame

INTERCEPT = "Intercept"
_CURVE = re.compile(r"\b(bs|cs|cc|cr|poly)\(")
MOST_LEVELS = 8  # that a note names
_CATEGORY = re.compile(r"\bC\(\s*(`[^`]+`|[^\s,()`]+)")
_NAME = re.compile(r"`[^`]+`|[^\W\d][\w.]*")  # formulaic's required_variables lack those of splines
_WHOLE = re.compile(r"\bC\(\s*(`[^`]+`|[^\s,()`]+)[^()]*(\([^()]*\))?[^()]*\)")  # C(ward), C(ward, contr.sum())


class Formula(NamedTuple):
    """A formula that was read."""

    text: str
    target: str
    features: tuple[str, ...]  # columns that its right side uses
    categories: tuple[str, ...]  # those in C()


class Design(NamedTuple):
    """Columns that a formula makes of a table."""

    X: np.ndarray  # (n, p)
    names: tuple[str, ...]  # "ward=b" for levels, the reference left out
    terms: dict[str, tuple[int, ...]]
    notes: list[tuple[str, str]]  # what was made of all rows together
    spec: Any = None  # formulaic's, with levels and knots


def read_formula(text: str, names: Any) -> Formula:
    """Return what a formula asks for of a table with columns of some names.

    Raises
    ------
    ImportError
        Without formulaic: ``pip install "fedconvex[formula]"``.
    ValueError
        If the formula cannot be read, its left side is no column, or its right side has "." or "|".
    """
    try:
        import formulaic
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise ImportError('a formula must have formulaic: pip install "fedconvex[formula]"') from error
    who, cure = "analyse: formula", "as in 'ill ~ age + C(ward) + age:sex'"
    try:
        found = formulaic.Formula(text)
        wanted = [str(v) for v in found.rhs.required_variables]
        left = [str(v) for v in found.lhs.required_variables]
    except (FormulaicError, SyntaxError) as error:
        raise bad(who, "be one that formulaic reads", f"{text!r}: {str(error).splitlines()[0]}", cure) from None
    except AttributeError:
        raise bad(who, "have one response and one right side", repr(text), cure) from None
    if len(left) != 1 or str(found.lhs).strip("`") != left[0]:
        raise bad(who, "have a column on its left", repr(str(found.lhs)), "transform it in the table")
    if strange := [v for v in wanted if v not in names]:
        raise bad(who, f"use columns of the table ({', '.join(map(str, names))})", repr(strange[0]))
    parts = [str(factor.expr) for term in found.rhs for factor in term.factors]
    used = {t.strip("`") for part in parts for t in (part, *_NAME.findall(part))}
    inside = dict.fromkeys(m.strip("`") for m in _CATEGORY.findall(text))
    return Formula(text, left[0], tuple(sorted(used & {*names})), tuple(c for c in inside if c in names))


def design(
    formula: Formula, columns: Any, frame: Frame, reference: Mapping[str, Any], bare: bool, spec: Any = None
) -> Design:
    """Return the columns of a formula for the rows of a table, without its intercept if ``bare``.

    With a ``spec`` levels, knots and means are those of the table that it was made from.

    Raises
    ------
    ValueError
        If a part cannot be computed, or gives numbers that are not finite.
    """
    import formulaic
    import pandas as pd
    from formulaic.errors import FormulaicError

    cells: dict[str, Any] = {}
    levels: dict[str, list[str]] = {}
    for c in columns.features:
        if c.role == "category":
            levels[c.name] = _levels(c, reference)
            cells[c.name] = pd.Categorical([str(v) for v in frame.text(c.name)], categories=levels[c.name])
        else:
            cells[c.name] = frame.numbers(c.name)
    if strange := [name for name in reference if name not in levels]:
        raise bad("analyse: reference", f"name categories ({', '.join(levels) or 'there are none'})", strange[0])
    try:
        with np.errstate(all="ignore"):
            right, table = spec or formulaic.Formula(formula.text).rhs, pd.DataFrame(cells)
            made = right.get_model_matrix(table, context={}, na_action="ignore")
    except FormulaicError as error:
        raise bad(f"{frame.origin}: formula", "be computed", f"{str(error).splitlines()[0]}") from None
    X, spec = np.asarray(made, dtype=np.float64), made.model_spec
    wrong = ~np.isfinite(X)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        got = f"{int(wrong[:, j].sum())} rows where {made.columns[j]} is {X[i, j]}"
        raise bad("analyse: formula", "give finite numbers", got, "leave these rows out, or transform otherwise")
    names = tuple(_named(str(name), levels) for name in made.columns)
    terms = {_named(str(term), levels): tuple(where) for term, where in spec.term_indices.items() if str(term) != "1"}
    if bare and INTERCEPT not in names:
        cure = "leave 0 and -1 out"
        raise bad("analyse: formula", "have an intercept, which those of clients replace", formula.text, cure)
    if bare:
        X, names = X[:, 1:], names[1:]
        terms = {term: tuple(j - 1 for j in where) for term, where in terms.items()}
    return Design(X, names, terms, _notes(spec.transform_state, levels), spec)


def is_curve(name: str) -> bool:
    """Return whether a coefficient is a part of a spline or polynomial, which means nothing by itself."""
    return bool(_CURVE.search(name))


def note_of_levels(name: str, base: str, others: Sequence[str]) -> tuple[str, str]:
    """Return what the levels of a category are held against, in words."""
    more = f" and {len(others) - MOST_LEVELS} more" if len(others) > MOST_LEVELS else ""
    return "Levels", f"{name}: {', '.join(others[:MOST_LEVELS])}{more} against {base}"


def _levels(column: Any, reference: Mapping[str, Any]) -> list[str]:
    """Return the levels of a category in all clients, the reference first."""
    levels = [str(v) for v in column.levels]
    base = str(reference.get(column.name, levels[0]))
    if base not in levels:
        raise bad(f"analyse: reference of {column.name!r}", f"be one of {', '.join(levels)}", base)
    return [base, *(v for v in levels if v != base)]


def _named(text: str, levels: Mapping[str, list[str]]) -> str:
    """Return the name of a column or term as this package writes it: "ward=b" for "C(ward)[T.b]"."""
    text = _WHOLE.sub(lambda m: m.group(1), text).replace("`", "")
    for name, several in levels.items():
        for level in several:
            for coded in (f"{name}[T.{level}]", f"{name}[{level}]"):
                text = text.replace(coded, f"{name}={level}")
    return text


def _notes(state: Mapping[str, Any], levels: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Return what formulas take from the rows of all clients together, in words."""
    out = [note_of_levels(name, several[0], several[1:]) for name, several in levels.items()]
    for term, found in state.items():
        if not isinstance(found, Mapping) or not found or term.startswith("C("):
            continue
        knots = found.get("knots")
        if knots is None:
            out.append(("Scaling", f"{term}: by numbers of all rows together"))
            continue
        inner = [f"{v:.4g}" for v in dict.fromkeys(np.asarray(knots, dtype=float).tolist())]
        out.append(("Splines", f"{term}: knots at {', '.join(inner)}, ends and quantiles of all rows together"))
    return out
