"""One self-contained page that shows what a verification found: no script, no font, no image from elsewhere."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from fedconvex._files import write_file
from fedconvex.report.checks import tightest_ratio
from fedconvex.report.drawings import check_folder, curve_drawing, step_drawing, tightness_drawing
from fedconvex.theory.bound import Bound
from fedconvex.verify import Outcome
from fedconvex.verify.check_records import (
    OUTCOME_WORDS,
    Constant,
    Finding,
    Power,
    VerificationReport,
    WorstCaseInterval,
)

MARKS = {
    Outcome.HOLDS: "✓",
    Outcome.VACUOUS: "○",
    Outcome.VIOLATED: "✗",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NOT_APPLICABLE: "–",
    Outcome.CONTRADICTED: "!",
}


def write_page(found: VerificationReport, folder: str | os.PathLike[str]) -> Path:
    """Write the page as index.html into a folder, whole or not at all; return the file."""
    file = check_folder(folder) / "index.html"
    write_file(file, page(found).encode())
    return file


def page(found: VerificationReport) -> str:
    """Return the page.

    Parameters
    ----------
    found : VerificationReport

    Returns
    -------
    str
        HTML with styles and figures inside; it loads nothing. Its template, page.html, escapes all that it is given.

    Examples
    --------
    >>> from fedconvex.verify import VerificationReport
    >>> from fedconvex.report.page import page
    >>> text = page(VerificationReport((), {}))
    >>> text.startswith("<!DOCTYPE html>"), "src=" in text
    (True, False)
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("fedconvex", "report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    names = ("anchor", "constant", "drawn", "interval", "number", "numbers", "powers", "sharper", "terms")
    env.filters |= {name: globals()[f"_{name}"] for name in names}
    return env.get_template("page.html").render(
        found=found,
        findings=[(f"f{i}", f) for i, f in enumerate(found.findings)],
        tight=_tightness(found) if found.tightness else None,
        about=[*found.about.items(), ("time", f"{found.seconds:.0f} s")],
        marks=MARKS,
        words=OUTCOME_WORDS,
    )


# ---------------------------------------------------------------- what the template asks for


def _markup(text: str, *parts: Any) -> Any:
    """Return HTML as it is, parts escaped and put in."""
    from markupsafe import Markup

    return Markup(text).format(*parts) if parts else Markup(text)


def _number(x: float, digits: int = 4) -> Any:
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "∞"
    text = f"{x:.{digits}g}"
    mantissa, _, power = text.partition("e")
    return _markup("{}·10<sup>{}</sup>", mantissa, int(power)) if power else text


def _interval(worst: WorstCaseInterval) -> str:
    if not worst.has_interval:
        return "–"
    low, high = f"{worst.lower:.4g}", f"{worst.upper:.4g}"
    return low if low == high else f"{low} to {high}"


def _numbers(f: Finding) -> list[Any]:
    """Return the five numbers of a row of the table."""
    v = f.verdict
    assert v.bound is not None
    measured = _markup("{} <span class='soft'>exact</span>", _number(v.measured))
    if v.trajectories:
        measured = _markup("{} ± {}", _number(v.measured), _number(f.margin, 2))
    return [measured, _number(v.bound.value), _number(v.ratio), _interval(f.worst), _number(f.worst.ratio(v.bound))]


def _anchor(name: str) -> str:
    return "theorem-" + "".join(c if c.isalnum() else "-" for c in name)


def _constant(c: Constant) -> list[Any]:
    return [c.name, _number(c.value), c.how]


def _drawn(f: Finding, me: str) -> Any:
    return _markup(curve_drawing(f, me))


def _terms(bound: Bound) -> list[dict[str, Any]]:
    """Return the terms of a bound as parts of a bar and rows of a table; none if they have no shares."""
    total = sum(bound.terms.values())
    if not total > 0.0 or not math.isfinite(total):
        return []
    out = []
    for i, (name, value) in enumerate(bound.terms.items()):
        share, colour = value / total, min(i, 5)
        key = _markup('<span class="key t{}"></span>{}', colour, name)
        cells = [key, _number(value), f"{share:.1%}"]
        out.append({"name": name, "share": f"{share:.1%}", "width": 100.0 * share, "colour": colour, "cells": cells})
    return out


def _sharper(bound: Bound) -> str:
    total = sum(bound.terms.values())
    equal = math.isclose(total, bound.value, rel_tol=1e-9)
    return "" if equal else f"The bound is {_number(bound.value)}, sharper than the sum."


def _powers(power: Power) -> list[list[Any]]:
    """Return rows of the table of the smallest errors that are noticed."""
    parts = [("The bound", power.whole), *power.terms.items()] if not power.violated else []
    rows = [[name, f"÷ {_number(n.factor)}" if n else "none", n.setting if n else "–"] for name, n in parts]
    if power.violated:
        wrong = "" if power.constant is None else f"would have to be {_number(power.constant)} times as large"
        rows.append(["The bound", f"violated {wrong}".rstrip(), "–"])
    elif not power.established:
        rows[0][1:] = [f"{rows[0][1]}: power not established", tightest_ratio(power)]
    for text, n in power.hypotheses.items():
        got = f"exceeded {_number(n.factor)} times" if n else "bound holds without it"
        rows.append([f"needs {text}", got, n.setting if n else "–"])
    return rows


def _tightness(found: VerificationReport) -> dict[str, Any]:
    """Return the table and the drawings of how tight the bounds are."""
    names, rows = list(found.tightness[0].bounds), []
    for t in found.tightness:
        low, high = f"{t.lower:.5f}", f"{t.upper:.5f}"
        bounds = [_markup("{} ({:.2f})", _number(t.bounds[n]), t.ratio(n)) for n in names]
        rows.append([str(t.rounds), f"{t.zeta:g}", low if low == high else f"{low} to {high}", *bounds])
    panels = {
        T: [t for t in found.tightness if t.rounds == T] for T in dict.fromkeys(t.rounds for t in found.tightness)
    }
    return {
        "heads": ["T", "zeta", "Exact worst case", *names],
        "rows": rows,
        "drawings": [_markup(tightness_drawing(mine, f"tight{T}")) for T, mine in panels.items()],
        "steps": "" if found.steps is None else _markup(step_drawing(found.steps, "steps")),
    }
