"""LaTeX without packages: numbers, text, and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: "\\" + c for c in "&%$#_{}"
}
_BRACED = {c: f"{{{c}}}" for c in "[*"}  # after the end of a row they would be read as its arguments
_SIGNS = {
    c: f"${command}$"
    for c, command in {"<": "<", ">": ">", "τ": r"\tau", "μ": r"\mu", "σ": r"\sigma", "η": r"\eta"}.items()
}
_SIGNS |= {"≤": r"$\le$", "²": "$^2$", "‖": r"$\|$", "±": r"$\pm$", "÷": r"$\div$", "–": "--"}
_WRITTEN = str.maketrans(_SPECIAL | _BRACED | _SIGNS)


def escaped(text: str) -> str:
    r"""Return text as LaTeX; a number with an exponent becomes a power of ten.

    Examples
    --------
    >>> from fedconvex._latex import escaped
    >>> print(escaped("share_of"), escaped("1.5e-07"))
    share\_of $1.5\cdot 10^{-7}$
    """
    number, _, power = text.partition("e")
    if text[:1] in "-0123456789" and power.lstrip("+-").isdigit():
        return rf"${number}\cdot 10^{{{int(power)}}}$"
    return text.translate(_WRITTEN)


def fraction(x: float, largest: int = 1000) -> str:
    r"""Return a number for formulas: a fraction, if it is one with a small denominator, or six digits.

    Examples
    --------
    >>> from fedconvex._latex import fraction
    >>> print(fraction(-1 / 3), fraction(2.0), fraction(1.2345678e-9))
    -\frac{1}{3} 2 1.23457\cdot 10^{-9}
    """
    if not math.isfinite(x):
        return r"\mathrm{NaN}" if math.isnan(x) else r"\infty" if x > 0.0 else r"-\infty"
    near = Fraction(x).limit_denominator(largest)
    if abs(float(near) - x) <= 4e-16 * abs(x) and abs(x) < 1e6:
        sign, near = ("-" if near < 0 else ""), abs(near)
        return f"{sign}{near}" if near.denominator == 1 else rf"{sign}\frac{{{near.numerator}}}{{{near.denominator}}}"
    return escaped(f"{x:.6g}").strip("$")


def tabular(heads: Sequence[str], rows: Sequence[Sequence[str]], shape: str) -> str:
    r"""Return cells of plain text as a table of columns like ``"lrr"``.

    Examples
    --------
    >>> from fedconvex._latex import tabular
    >>> print(tabular(["K", "bound"], [["2", "1e-05"]], "rr"))
    \begin{tabular}{rr}
    \hline
    K & bound \\
    \hline
    2 & $1\cdot 10^{-5}$ \\
    \hline
    \end{tabular}
    """
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in (heads, *rows)]
    text = [rf"\begin{{tabular}}{{{shape}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
    return "\n".join(text)
