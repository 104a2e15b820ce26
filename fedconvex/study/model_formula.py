"""Formulas of a study: text that all sites carry out on their rows, so that it is a formula and can be nothing else.

The library that reads formulas computes what stands in them as Python does. A study's file comes from elsewhere: what
it may hold is written down here, and anything else is refused before the library sees it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fedconvex._check import bad, nearest, wrong_type

_LONGEST = 2000
_FUNCTIONS = ("C", "I", "bs", "log", "log2", "log10", "exp")
_OPTIONS = ("knots", "lower_bound", "upper_bound", "degree", "df")
_BOUND = ("knots", "lower_bound", "upper_bound")
_PART = re.compile(
    r"""(?P<quoted>`[^`{}\\\n]+`) | (?P<number>\d+(\.\d*)?([eE][+-]?\d+)?) | (?P<name>[^\W\d]\w*)
    | (?P<sign>\*\*|[-+*:/^()~,=\s])""",
    re.VERBOSE,
)


def formula(who: str, x: Any) -> str:
    """Return a formula of names, numbers, signs and a few functions.

    Raises
    ------
    TypeError, ValueError
        If it is no text, or holds anything else; splines say where their knots and ends are.
    """
    if not isinstance(x, str):
        raise wrong_type(who, "be text in quotation marks", f"{x!r}")
    if len(x) > _LONGEST or x.count("~") != 1:
        raise bad(who, f"be one formula of at most {_LONGEST:,} characters", repr(x[:80]), '"ill ~ age * C(ward)"')
    parts, depth = [p for p in _parts(who, x) if p[1].strip()], 0
    for i, (kind, part, called) in enumerate(parts):
        if kind == "name" and called and part not in _FUNCTIONS:
            raise bad(who, f"call {', '.join(_FUNCTIONS)} only", repr(part), nearest(part, _FUNCTIONS))
        if part in ("**", "^") and (i + 1 == len(parts) or parts[i + 1][1] not in ("2", "3", "4")):
            raise bad(who, "have powers 2, 3 and 4 only", repr(x[:80]))
        depth += (kind == "sign") * ((part == "(") - (part == ")"))
        if not 0 <= depth <= 20:
            raise bad(who, "have brackets that fit, at most twenty deep", repr(x[:80]))
    for call in re.findall(r"\bbs\(((?:[^()]|\([^()]*\))*)\)", x):
        if lacking := [name for name in _BOUND if f"{name}=" not in call.replace(" ", "")]:
            cure = "bs(bp, knots=(120, 140), lower_bound=60, upper_bound=260)"
            raise bad(who, f"say {lacking[0]} of a spline: no rows are there to find it", f"bs({call})", cure)
    return x


def _parts(who: str, x: str) -> list[tuple[str, str, bool]]:
    """Return the parts of a formula: what each is, its text, and whether it is called."""
    out, at = [], 0
    while at < len(x):
        found = _PART.match(x, at)
        if found is None:
            must = "hold names (of other signs in backticks), numbers, + - * : / ^ ( ) ~ , = and functions only"
            raise bad(who, must, repr(x[at : at + 20]))
        at = found.end()
        kind = next(name for name, value in found.groupdict().items() if value is not None)
        out.append((kind, found[0].strip("`"), x[at:].lstrip()[:1] == "("))
    return out


def used_in(who: str, text: str, names: Sequence[str]) -> tuple[str, set[str]]:
    """Return the name on the left of a formula, and the columns on its right.

    Raises
    ------
    ValueError
        If a name is no column.
    """
    left, right = text.split("~")
    used = {part for kind, part, called in _parts(who, right) if kind in ("quoted", "name") and not called}
    if strange := sorted(used - {*names, *_OPTIONS}):
        raise bad(who, f"use columns of the study ({', '.join(names)})", repr(strange[0]), nearest(strange[0], names))
    return left.strip().strip("`"), used & {*names}
