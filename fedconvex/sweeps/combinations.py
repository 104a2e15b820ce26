"""What a sweep runs: every combination of problems, methods and values of a grid, each with names for its columns."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, items, printable, text, wrong_type
from fedconvex._files import identity
from fedconvex.methods.parts.automatic_steps import resolved

MOST_SETTINGS = 100_000
_RESERVED = ("problem", "method", "setting", "seed", "round", "value", "gap", "status", "floats_down", "floats_up")


class Setting(NamedTuple):
    """One combination: what its columns say, and the method and problem, or why there are none."""

    labels: dict[str, Any]  # column: number, text, or None where the method or problem has no such parameter
    problem: int  # number in `Grid.problems`
    method: Any
    error: str | None  # of what could not be made


@dataclasses.dataclass(frozen=True)
class Grid:
    """The combinations of a sweep.

    Attributes
    ----------
    columns : tuple of str
        Columns that tell settings apart.
    problems : list
        A problem each; or the text of the error that making it raised.
    settings : list of Setting
        Problems vary slowest, then methods, then the names of the grid in their order.
    about : dict
        What makes two grids the same, as JSON can hold it; the problems aside.
    """

    columns: tuple[str, ...]
    problems: list[Any]
    settings: list[Setting]
    about: dict[str, Any]

    @classmethod
    def of(cls, method: Any, problem: Any, grid: Any) -> Grid:
        """Return the combinations that `sweep` was asked for.

        Raises
        ------
        ValueError, TypeError
            If a name of the grid is no parameter of a method or of the function that makes problems, or a name of a
            column; if values are none, or equal; if there are too many combinations, or none can be made.
        """
        methods, made = _methods(method), _problems(problem)
        values = _values(grid)
        known = {name: _fields(m) for name, m in methods.items()}
        _check_names(values, known, made.parameters)
        ours = [n for n in values if n in made.parameters]
        total = math.prod(len(values[n]) for n in ours) * len(made.named)
        total *= sum(math.prod(len(values[n]) for n in values if n in known[m]) for m in methods)
        if total > MOST_SETTINGS:
            cure = "take fewer values, or several sweeps"
            raise bad("sweep: grid", f"have at most {MOST_SETTINGS:,} combinations", f"{total:,}", cure)
        problems, rows = [], []
        for labels, given in _combinations(made.named, ours, values):
            problems.append(_made(made, given))
            for name, m in methods.items():
                mine = {n: values[n] for n in values if n in known[name]}
                for chosen in itertools.product(*mine.values()):
                    more = {n: label_of(v) for n, v in zip(mine, chosen, strict=True)}
                    title = {"method": name} if isinstance(method, Mapping) else {}
                    own = dict(zip(mine, chosen, strict=True))
                    rows.append(_setting(labels | title | more, len(problems) - 1, problems[-1], m, own))
        if all(row.error is not None for row in rows):
            raise bad("sweep", "have a setting that can be made", f"{rows[0].labels}: {rows[0].error}")
        several = ("problem",) * isinstance(problem, Mapping) + ("method",) * isinstance(method, Mapping)
        columns = (*several, *values)
        rows = [row._replace(labels={c: row.labels.get(c) for c in columns}) for row in rows]
        about: dict[str, Any] = {"methods": {name: identity(m) for name, m in methods.items()}}
        about |= {"grid": {n: [identity(v) for v in vs] for n, vs in values.items()}}
        return cls(columns, problems, rows, about)


class _Made(NamedTuple):
    """Problems by name, or functions that make them, and what these take from the grid."""

    named: dict[str | None, Any]
    parameters: dict[str, bool]  # name: whether there must be values, as there is no default


def label_of(value: Any) -> Any:
    """Return what stands in a column for a value: a number or text as it is, else how it is written.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import Decay
    >>> from fedconvex.sweeps.combinations import label_of
    >>> label_of(np.float64(0.5)), label_of(Decay(1.0)).partition("(")[0]
    (0.5, 'Decay')
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return printable(repr(value))


# ---------------------------------------------------------------- what was given


def _methods(method: Any) -> dict[str, Any]:
    """Return methods by name."""
    several = isinstance(method, Mapping)
    named = dict(method) if several else {"": method}
    if not named:
        raise bad("sweep: method", "be a method, or a mapping of names to methods", "none")
    for name, m in named.items():
        who = f"sweep: method[{text('sweep: method: a name', name)!r}]" if several else "sweep: method"
        if isinstance(m, type) or not hasattr(m, "init"):
            cure = f"pass {m.__name__}(...)" if isinstance(m, type) else "a grid of settings is given as grid="
            raise wrong_type(who, "be a method, or a mapping of names to methods", f"{m!r}", cure)
    return named


def _problems(problem: Any) -> _Made:
    """Return problems, or functions that make them, by name."""
    several = isinstance(problem, Mapping)
    named = dict(problem) if several else {None: problem}
    if not named:
        raise bad("sweep: problem", "be a problem, or a mapping of names to problems", "none")
    parameters: dict[str, bool] | None = None
    for name, p in named.items():
        who = f"sweep: problem[{text('sweep: problem: a name', name)!r}]" if several else "sweep: problem"
        factory = callable(p) and not isinstance(p, type) and not hasattr(p, "learns")
        if not factory and (isinstance(p, type) or not hasattr(p, "learns")):
            got = f"the class {p.__name__}" if isinstance(p, type) else type(p).__name__
            raise wrong_type(who, "be a problem, a function that makes one, or a mapping of names to them", got)
        if hasattr(p, "engine"):
            raise wrong_type(who, "have its rows here", f"{p!r}", "sites run one by one: run(..., transport=...)")
        mine = _parameters(who, p) if factory else {}
        if parameters not in (None, mine):
            raise bad(who, f"take the parameters {tuple(parameters)} like the first", f"{tuple(mine)}")
        parameters = mine
    return _Made(named, parameters or {})


def _parameters(who: str, f: Any) -> dict[str, bool]:
    """Return the parameters of a function by name, and whether they have no default."""
    try:
        found = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        cure = "wrap it: lambda l2: ..."
        raise wrong_type(who, "be a function whose parameters are known", f"{f!r}", cure) from None
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return {p.name: p.default is p.empty for p in found if p.kind in kinds}


def _values(grid: Any) -> dict[str, tuple[Any, ...]]:
    """Return the values of every name, which must differ."""
    if not isinstance(grid, Mapping | None):
        raise wrong_type("sweep: grid", "be a mapping of names to lists of values", f"{grid!r}")
    found: dict[str, tuple[Any, ...]] = {}
    for name, given in (grid or {}).items():
        who = f"sweep: grid[{text('sweep: grid: a name', name)!r}]"
        if isinstance(given, Sequence) and not isinstance(given, (str, bytes)) and len(given) > MOST_SETTINGS:
            raise bad(who, f"have at most {MOST_SETTINGS:,} values", f"{len(given):,}")
        values = items(who, given if not isinstance(given, Iterator) else itertools.islice(given, MOST_SETTINGS + 1))
        if not 0 < len(values) <= MOST_SETTINGS:
            raise bad(who, f"have 1 to {MOST_SETTINGS:,} values", f"{len(values):,}")
        labels = [label_of(v) for v in values]
        if len(set(labels)) < len(labels):
            twice = next(v for i, v in enumerate(labels) if v in labels[:i])
            raise bad(who, "hold values that differ", f"{twice!r} twice", "take it once")
        found[name] = values
    return found


def _fields(method: Any) -> tuple[str, ...]:
    """Return the names of a method's settings."""
    if not dataclasses.is_dataclass(method):
        return ()
    return tuple(f.name for f in dataclasses.fields(method) if f.init)


def _check_names(
    values: Mapping[str, Any], methods: Mapping[str, tuple[str, ...]], parameters: Mapping[str, bool]
) -> None:
    """Raise where a name of the grid is unknown, ambiguous or a column, or a parameter has no values."""
    fields = list(dict.fromkeys(n for found in methods.values() for n in found))
    for name in values:
        if name in _RESERVED:
            raise bad("sweep: grid", "name no column of the frame", name, "give the parameter another name")
        if name in fields and name in parameters:
            raise bad("sweep: grid", "name a setting of a method or of a problem", f"{name}, which both have")
        if name not in fields and name not in parameters:
            known = ", ".join([*fields, *parameters]) or "none"
            raise bad("sweep: grid", f"name settings of the methods or parameters of the problem ({known})", name)
    missing = [p for p, needed in parameters.items() if needed and p not in values]
    if missing:
        got = f"none for {', '.join(missing)}"
        raise bad("sweep: grid", "have values for all parameters of the problem without a default", got)


# ---------------------------------------------------------------- combinations


def _combinations(named: Mapping[str | None, Any], ours: Sequence[str], values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield labels, and what makes the problem with which arguments."""
    for name, p in named.items():
        title = {} if name is None else {"problem": name}
        for chosen in itertools.product(*(values[n] for n in ours)):
            labels = {n: label_of(v) for n, v in zip(ours, chosen, strict=True)}
            yield title | labels, (p, dict(zip(ours, chosen, strict=True)))


def _made(made: _Made, given: tuple[Any, dict[str, Any]]) -> Any:
    """Return a problem, or the text of the error that making it raised."""
    p, arguments = given
    if hasattr(p, "learns"):
        return p
    try:
        problem = p(**arguments)
    except Exception as error:  # a user's function
        return f"{type(error).__name__}: {error}"
    if not hasattr(problem, "learns"):
        raise wrong_type("sweep: problem", "return a problem", f"{type(problem).__name__} for {arguments}")
    return problem


def _setting(labels: dict[str, Any], number: int, problem: Any, method: Any, own: dict[str, Any]) -> Setting:
    """Return the setting of a method with its own values, "auto" resolved."""
    if isinstance(problem, str):
        return Setting(labels, number, None, f"the problem could not be made: {problem}")
    try:
        made = dataclasses.replace(method, **own) if own else method
        return Setting(labels, number, resolved(made, problem)[0], None)
    except (ValueError, TypeError) as error:
        return Setting(labels, number, None, str(error))
