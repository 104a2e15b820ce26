"""A verification report as tables for papers: CSV, and LaTeX without packages."""

from __future__ import annotations

import math
import os
from typing import Any

from fedconvex._files import check_file, csv_text, write_file
from fedconvex._latex import tabular
from fedconvex.verify.check_records import OUTCOME_WORDS, VerificationReport

FIRST = ("theorem", "setting", "measured", "low", "high", "bound")
LAST = ("share", "worst case", "verdict")
NUMBERS = ("K", "tau", "T", "eta L")
HEADS = {"tau": "τ", "eta L": "ηL"}


def findings_table(found: VerificationReport) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows: a setting a row, a term of a bound a column.

    ``share`` is what was measured over the bound; "worst case" the upper end of the exact one; numbers that there are
    none of are None.

    Examples
    --------
    >>> from fedconvex.report.exports import findings_table
    >>> from fedconvex.verify.check_records import VerificationReport
    >>> findings_table(VerificationReport((), {}))[0][:3]
    ['theorem', 'setting', 'measured']
    """
    bounds = [f.verdict.bound for f in found.findings if f.verdict.bound is not None]
    terms = list(dict.fromkeys(name for bound in bounds for name in bound.terms))
    rows = []
    for f in found.findings:
        v = f.verdict
        if v.bound is None:
            numbers: list[Any] = [None] * (4 + len(terms) + 2)
        else:
            worst = f.worst.upper if f.worst.has_interval else None
            share = v.measured / v.bound.value if v.bound.value else None
            numbers = [v.measured, v.low, v.high, v.bound.value, *map(v.bound.terms.get, terms), share, worst]
        rows.append([f.theorem, f.setting, *numbers, OUTCOME_WORDS[f.outcome]])
    return [*FIRST, *terms, *LAST], rows


def write_findings_csv(found: VerificationReport, path: str | os.PathLike[str]) -> None:
    """Write all findings as CSV, numbers to their last digit."""
    file, (headers, rows) = check_file("--csv", path), findings_table(found)
    write_file(file, csv_text([headers, *([_plain(x, repr) for x in row] for row in rows)]).encode())


def paper_table(found: VerificationReport) -> tuple[list[str], list[list[Any]]]:
    """Return headers and rows for a paper: a setting a row, where the theorem applies.

    The ratio is the bound over the exact worst case, or over what was measured where there is none; the power is the
    smallest factor by which the bound could be too small and be noticed by the theorem's checks together.
    """
    rows = []
    for f in found.findings:
        v = f.verdict
        if v.bound is None:
            continue
        power = found.powers.get(f.theorem)
        worst = f.worst.upper if f.worst.has_interval else None
        ratio = f.worst.ratio(v.bound) if worst else v.ratio
        noticed = power.whole.factor if power is not None and power.whole is not None else None
        numbers = [f.numbers.get(name) for name in NUMBERS]
        rows.append([f.theorem, *numbers, v.measured, v.bound.value, worst, ratio, noticed, OUTCOME_WORDS[f.outcome]])
    return ["theorem", *NUMBERS, "measured", "bound", "worst case", "ratio", "power", "verdict"], rows


def write_findings_latex(found: VerificationReport, path: str | os.PathLike[str]) -> None:
    """Write the table for a paper, numbers with four digits, and below it the bounds as formulas where they are known.

    Formulas say what they bound and what their symbols are; where participation changes the bound, there is one for
    each way in which clients take part in the table. The table and formulas need no package.
    """
    file, (headers, rows) = check_file("--latex", path), paper_table(found)
    cells = [[_plain(x, lambda v: f"{v:.4g}") for x in row] for row in rows]
    parts = [tabular([HEADS.get(h, h) for h in headers], cells, "l" + "r" * (len(headers) - 2) + "l")]
    for one in found.maps:
        heads, rows = one.table()
        parts.append(f"% {one.theorem}: bound over exact worst case, with the constants of {one.words}\n")
        parts[-1] += tabular(heads, rows, "r" * len(heads))
    for name, note in found.notes.items():
        if note.formula:
            parts.append(f"% {name}: {note.quantity}\n{note.formula}")
    write_file(file, ("\n\n".join(parts) + "\n").encode())


def _plain(x: Any, shown: Any) -> str:
    """Return a cell; numbers that are none, or not finite, are empty."""
    if isinstance(x, str):
        return x
    return "" if x is None or not math.isfinite(x) else shown(float(x))
