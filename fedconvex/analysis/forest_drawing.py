"""A forest plot as an SVG element, written as text: milliseconds, where a drawing library takes a second for each.

Names stand on the left, intervals in the middle, numbers and weights on the right. Colours and fonts are the page's.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

import numpy as np

from fedconvex.analysis.forest_plots import FARTHEST, Forest, Line, axis_ends

TOP, BOTTOM = 20.0, 50.0  # units of the drawing, of which a letter of 8 takes LETTER
LETTER, LEAST = 4.3, 130.0  # the middle is at least so wide
WIDTH, NARROW = 380.0, 262.0
_INK, _GRID = "currentColor", "var(--grid)"
_COLOURS = {"client": "var(--measured)", "joint": "var(--worst)", "common": "var(--fourth)"}  # others: bound
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class _Layout(NamedTuple):
    """Where things stand: the axis from left, so wide; rows so high, their words above the intervals by raised."""

    left: float
    middle: float
    width: float
    row: float
    raised: float


def forest_figure(plot: Forest) -> str:
    """Return the plot as SVG elements: one for wide screens, one for narrow ones with words above the intervals."""
    head = _head(plot)
    left = 8.0 + (LETTER + 0.5) * max(len(_label(x)) for x in plot.lines)
    right = 14.0 + LETTER * max(len(head), *(len(x.text) for x in plot.lines)) + 9.0 * LETTER
    width = max(WIDTH, left + right + LEAST)
    wide = _Layout(left, width - left - right, width, 15.0, 0.0)
    narrow = _Layout(8.0, NARROW - 16.0, NARROW, 25.0, 11.0)
    return _figure(plot, wide, "wide") + _figure(plot, narrow, "narrow")


def _head(plot: Forest) -> str:
    return f"{plot.ratio or 'coefficient'} [{100.0 * plot.level:g} % CI]"


def _figure(plot: Forest, at: _Layout, name: str) -> str:
    """Return the plot as one SVG element."""
    lines = plot.lines
    low, high = axis_ends(lines)
    if plot.ratio:
        low, high = max(low, -FARTHEST), min(high, FARTHEST)
    gap = 0.6 * 15.0  # between clients and summaries
    top = TOP + at.raised
    ys = [top + at.row * (i + 0.5) + gap * (x.look != "client") for i, x in enumerate(lines)]
    foot = ys[-1] + 15.0

    def across(v: float) -> float:
        return at.left + at.middle * (v - low) / (high - low)

    parts = []
    for v, text in ticks(low, high, bool(plot.ratio)):
        parts.append(_rule(across(v), TOP, foot, _GRID, 0.6) + _text(across(v), foot + 9.0, text, "middle"))
    parts.append(_rule(across(0.0), TOP, foot, _INK, 0.8))
    joint = next(x.value for x in lines if x.look == "joint")
    if math.isfinite(joint) and low <= joint <= high:
        parts.append(_rule(across(joint), TOP, foot, _COLOURS["joint"], 0.8, "2 2"))
    ends = f'x1="{at.left:.1f}" x2="{at.left + at.middle:.1f}"'
    parts.append(f'<line {ends} y1="{foot:.1f}" y2="{foot:.1f}" stroke="{_INK}"/>')
    parts += [_mark(x, y, across, (low, high)) for x, y in zip(lines, ys, strict=True)]
    words = f"{plot.ratio}, logarithmic scale" if plot.ratio else "coefficient"
    parts.append(_text(at.left + 0.5 * at.middle, foot + 23.0, words, "middle", 9))
    parts.append(_text(4.0, foot + 39.0, plot.heterogeneity, "start"))
    parts += _words(plot, at, ys)
    ends = ", ".join(f"{x.name} {x.text}" for x in lines if x.look != "client")
    said = (
        f"Forest plot of {plot.name}, {sum(x.look == 'client' for x in lines)} clients. {ends}. {plot.heterogeneity}."
    )
    box = f'class="{name}" viewBox="0 0 {at.width:.0f} {foot + BOTTOM:.0f}" role="img" aria-label="{escape(said)}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _words(plot: Forest, at: _Layout, ys: list[float]) -> list[str]:
    """Return names, numbers and weights of the lines: beside the intervals, or above them."""
    each = [(_label(x), x.text, _weight(x), y - at.raised) for x, y in zip(plot.lines, ys, strict=True)]
    parts = []
    for name, numbers, weight, y in [("", _head(plot), "weight", 0.5 * TOP), *each]:
        parts.append(_text(4.0, y, name, "start", 9) if at.raised else _text(at.left - 6.0, y, name, "end", 9))
        parts.append(_text(at.width - 4.0 - 9.0 * LETTER, y, numbers, "end"))
        parts.append(_text(at.width - 4.0, y, weight, "end"))
    return parts


def ticks(low: float, high: float, ratio: bool) -> list[tuple[float, str]]:
    """Return where ticks stand between two ends, and their texts: of exp of it, on a logarithmic scale, for ratios."""
    if not ratio:
        step = _step(high - low)
        every = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return [(v, f"{v + 0.0:.6g}".replace("-", "−")) for v in every]
    decades = (high - low) / math.log(10.0)
    if decades >= 2.0:
        jump = max(1, math.ceil(decades / 5.0))
        first = math.ceil(low / math.log(10.0) / jump) * jump
        powers = range(first, math.floor(high / math.log(10.0)) + 1, jump)
        return [
            (k * math.log(10.0), f"{10.0**k:g}" if abs(k) < 4 else "10" + str(k).translate(_SUPERSCRIPTS))
            for k in powers
        ]
    for steps in ((1, 2, 5), (1, 2, 3, 4, 6, 8), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        k = math.floor(low / math.log(10.0))
        every = [m * 10.0**j for j in range(k, k + 4) for m in steps if low <= math.log(m * 10.0**j) <= high]
        if len(every) >= 3:
            return [(math.log(v), f"{v:g}") for v in every]
    a, b = math.exp(low), math.exp(high)
    step = _step(b - a)
    near = [step * k for k in range(math.ceil(a / step), math.floor(b / step) + 1)]
    return [(math.log(v), f"{v:.8g}") for v in near if v > 0.0]


def _step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, of which three to six fit into the span."""
    power = 10.0 ** math.floor(math.log10(span / 4.0))
    return float(power * next(m for m in (1.0, 2.0, 5.0, 10.0) if span <= 5.0 * m * power))


def _label(line: Line) -> str:
    return line.name if len(line.name) <= 19 else line.name[:9] + "…" + line.name[-9:]


def _weight(line: Line) -> str:
    return f"{100.0 * line.share:.1f} %" if line.look == "client" else ""


def _text(x: float, y: float, words: str, side: str, size: int = 8) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{side}" dominant-baseline="central"'
    halo = 'stroke="var(--paper)" stroke-width="3" paint-order="stroke"'  # over lines that words cross
    return f'<text {place} font-size="{size}" fill="{_INK}" {halo}>{escape(words)}</text>' if words else ""


def _rule(x: float, top: float, foot: float, colour: str, width: float, dashes: str = "none") -> str:
    look = f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"'
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{foot:.1f}" {look}/>'


def _mark(line: Line, y: float, across: object, ends: tuple[float, float]) -> str:
    """Draw a line: a square on a bar, a diamond, or a thick bar; bars that are cut end in an arrow."""
    assert callable(across)
    colour = _COLOURS.get(line.look, "var(--bound)")
    low, high = max(line.low, ends[0]), min(line.high, ends[1])
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        return ""
    a, b = across(low), across(high)
    if line.look in ("client", "prediction"):
        thick = 1.1 if line.look == "client" else 2.6
        bar = f'<line x1="{a:.2f}" x2="{b:.2f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="{thick}"/>'
        for cut, x, way in ((line.low < low, a, -1.0), (line.high > high, b, 1.0)):
            bar += _shape([(x, y - 2.5), (x + 4.0 * way, y), (x, y + 2.5)], colour) if cut else ""
        if line.look == "client" and ends[0] <= line.value <= ends[1]:
            half, v = 0.5 * (2.5 + 8.0 * math.sqrt(line.share)), across(line.value)
            bar += _shape(
                [(v - half, y - half), (v + half, y - half), (v + half, y + half), (v - half, y + half)], colour
            )
        return bar
    v = across(float(np.clip(line.value, *ends)))
    return _shape([(a, y), (v, y - 4.5), (b, y), (v, y + 4.5)], colour)


def _shape(points: list[tuple[float, float]], colour: str) -> str:
    return f'<polygon points="{" ".join(f"{x:.2f},{y:.2f}" for x, y in points)}" fill="{colour}"/>'
