"""A verification report as tables for papers: CSV, and LaTeX without packages."""

from __future__ import annotations

import math
import os
from typing import Any

from fedconvex._files import check_file, csv_text, write_file
from fedconvex.verify.check_records import OUTCOME_WORDS, VerificationReport

FIRST = ("theorem", "setting", "measured", "low", "high", "bound")
LAST = ("share", "worst case", "verdict")
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: "\\" + c for c in "&%$#_{}"
}
SIGNS = {"τ": r"$\tau$", "μ": r"$\mu$", "≤": r"$\le$", "²": r"$^2$", "‖": r"$\|$", "±": r"$\pm$", "÷": r"$\div$"}


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


def write_findings_latex(found: VerificationReport, path: str | os.PathLike[str]) -> None:
    """Write all findings as a tabular, numbers with four digits."""
    file, (headers, rows) = check_file("--latex", path), findings_table(found)
    cells = [[_tex(_plain(x, lambda v: f"{v:.4g}")) for x in row] for row in [headers, *rows]]
    lines = [" & ".join(row) + r" \\" for row in cells]
    shape = "ll" + "r" * (len(headers) - 3) + "l"
    text = "\n".join([rf"\begin{{tabular}}{{{shape}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"])
    write_file(file, (text + "\n" + r"\end{tabular}" + "\n").encode())


def _plain(x: Any, shown: Any) -> str:
    """Return a cell; numbers that are none, or not finite, are empty."""
    if isinstance(x, str):
        return x
    return "" if x is None or not math.isfinite(x) else shown(float(x))


def _tex(text: str) -> str:
    if "e" in text and text[:1] in "-0123456789":
        number, _, power = text.partition("e")
        if power.lstrip("+-").isdigit():
            return rf"${number}\cdot 10^{{{int(power)}}}$"
    return "".join(SPECIAL.get(c) or SIGNS.get(c) or c for c in text)
