"""What an implementation is expected to be: as published, or with conventions by name; and an assertion for tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedconvex._check import bad, unknown, wrong_type
from fedconvex.conformance.families import FAMILIES, Family
from fedconvex.conformance.identified import Conformance
from fedconvex.conformance.recognition import conform

PUBLISHED = "published"


def expected(family: str, expect: Any) -> dict[str, str]:
    """Return conventions and the values that they shall have, from "published" (none), a dictionary or a text.

    Raises
    ------
    ValueError, TypeError
        If there is no such convention in the family, or no such value.

    Examples
    --------
    >>> from fedconvex.conformance.expectations import expected
    >>> expected("fedavg", "weights=1/K,last batch=dropped")
    {'weights': '1/K', 'last batch': 'dropped'}
    """
    if not isinstance(family, str) or family not in FAMILIES:
        raise unknown("conform: family", family, FAMILIES)
    f, given = FAMILIES[family], expect
    if isinstance(expect, str):
        given = {} if expect.strip() == PUBLISHED else _pairs(f, expect)
    if not isinstance(given, Mapping):
        raise wrong_type("conform: expect", 'be "published", or conventions with values', f"{expect!r}")
    known = {c.name: c for c in f.conventions}
    for name, value in given.items():
        if name not in known:
            raise unknown(f"conform: expect, a convention of {family}", name, known)
        if value not in (values := [v.name for v in known[name].values]):
            raise unknown(f"conform: expect, {name} of {family}", value, values)
    return dict(given)


def unmet(found: Conformance, expect: Any) -> tuple[str, ...]:
    """Return in which ways an answer is not what was expected; nothing if it is.

    Conventions that are named must have their values, all others those of the paper. Errors and failed checks are
    never expected.

    Raises
    ------
    ValueError, TypeError
        As `expected` does.
    """
    wanted, out = expected(found.family, expect), []
    if found.verdict == "no reading":
        return ("no reading matches",)
    said = {line.convention: line for line in found.found}
    for name, value in wanted.items():
        if name in found.untold:
            values = [line.value for line in found.untold[name]]
            if value not in values:
                out.append(f"{name} must be {value!r}; got one of {values}")
        elif name not in said:
            out.append(f"{name} must be {value!r}; got no exam that shows it")
        elif said[name].value != value:
            out.append(f"{name} must be {value!r}; got {said[name].value!r}: {said[name].says}")
    for name, lines in ((line.convention, (line,)) for line in found.found):
        if name not in wanted and lines[0].departs:
            out.append(f"{name} must be as published: {lines[0].published}; got: {lines[0].says}")
    for name, rest in found.untold.items():
        if name not in wanted and all(line.departs for line in rest):
            out.append(f"{name} must be as published: {rest[0].published}; got: {rest[0].says}, or alike")
    out += [f"an error: {e}" for e in found.errors]
    return (*out, *(f"a check fails: {c.says}" for c in found.checks if not c.holds))


def assert_conforms(train: Any, family: str = "fedavg", expect: Any = PUBLISHED, **settings: Any) -> Conformance:
    """Return the answer about an implementation, or fail with it: for tests of other packages.

    Parameters
    ----------
    train, family
        As for `conform`.
    expect : "published", dict or str
        Conventions that the implementation is meant to have, {"weights": "1/K"} or "weights=1/K,last batch=dropped";
        all others are those of the paper.
    **settings
        tol and limit, as for `conform`.

    Raises
    ------
    AssertionError
        If the implementation is not what was expected, with the whole answer.
    ValueError, TypeError
        As `conform` does, or if there is no such convention or value.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.conformance import assert_conforms, can
    >>> @can(losses=("squared",), partial=False, batches=())
    ... def train(clients, hyper, rounds):
    ...     w, models = hyper["start"], []
    ...     for _ in range(rounds):
    ...         steps = [X.T @ (X @ w - y) / len(y) + hyper["l2"] * w for X, y in clients]
    ...         w = w - hyper["step_size"] * np.mean(steps, axis=0)
    ...         models.append(w)
    ...     return models
    >>> assert_conforms(train, "fedsgd", expect={"weights": "1/K"}).grade
    'variant'
    >>> assert_conforms(train, "fedsgd")
    Traceback (most recent call last):
    AssertionError: weights must be as published: clients weigh n_k/n, their shares of all rows; got: ...
    """
    expected(family, expect)
    found = conform(train, family, **settings)
    missed = unmet(found, expect)
    if missed:
        raise AssertionError("; ".join(missed) + f"\n\n{found}")
    return found


def _pairs(family: Family, text: str) -> dict[str, str]:
    """Return name=value pairs; values may hold commas, which end a value only before the name of a convention."""
    names = "|".join(sorted((re.escape(c.name) for c in family.conventions), key=len, reverse=True))
    out: dict[str, str] = {}
    for pair in re.split(rf",\s*(?=(?:{names})\s*=)", text):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (equals and name and value) or name in out:
            raise bad("conform: expect", 'be "published", or name=value,name=value, each name once', repr(text))
        out[name] = value
    return out
