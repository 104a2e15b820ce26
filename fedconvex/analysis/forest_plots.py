"""Forest plots: one coefficient at every client, in common, over clients, and for a new client.

The layout is that of medical journals (Lewis and Clarke, BMJ 322, 2001): squares whose area is the weight, lines for
intervals, diamonds for summaries. Shapes tell them apart where colours do not.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedconvex.report.drawings import COLOURS, INK, as_svg, log_axis

MOST_CLIENTS = 40
WIDTH = 5.0  # inches
FARTHEST = 200.0  # logarithms of ratios that are drawn; beyond it coefficients are


class Line(NamedTuple):
    """A line of the plot, in the units of the coefficient."""

    name: str
    value: float  # nan for a prediction interval
    low: float
    high: float
    text: str
    share: float  # of the weight; nan for summaries
    look: str  # "client", "joint", "common", "random", "prediction"


class Forest(NamedTuple):
    """All lines of one coefficient, from above."""

    name: str
    ratio: str  # what exp(coefficient) is called; "" for the coefficient itself
    lines: list[Line]
    level: float


def forest(found: Any, name: str) -> Forest:
    """Return the lines of a coefficient of an analysis, the clients of most weight if there are more than 40."""
    apart, ratio, level = found.differences, found.rows.family.exponentiated, found.level
    i, s = apart.names.index(name), apart.summaries[name]
    b, se, z = apart.estimates[:, i], apart.standard_errors[:, i], float(stats.norm.isf(0.5 * (1.0 - level)))
    weights = 1.0 / (se**2 + s.hartung_knapp.tau2)
    shares = weights / weights.sum()
    most = np.argsort(-shares, kind="stable")[:MOST_CLIENTS].tolist()
    shown = sorted(most, key=lambda k: _natural(apart.clients[k]))
    lines = [
        Line(apart.clients[k], b[k], b[k] - z * se[k], b[k] + z * se[k], "", float(shares[k]), "client") for k in shown
    ]
    joint, mean = next(c for c in found.table() if c.name == name), s.hartung_knapp
    half = z * s.common_se
    lines += [
        Line("Joint model", joint.estimate, joint.low, joint.high, "", math.nan, "joint"),
        Line("Common effect", s.common, s.common - half, s.common + half, "", math.nan, "common"),
        Line("Random effects", mean.estimate, mean.low, mean.high, "", math.nan, "random"),
        Line("Prediction interval", math.nan, s.prediction[0], s.prediction[1], "", math.nan, "prediction"),
    ]
    ends = [v for x in lines for v in (x.value, x.low, x.high) if math.isfinite(v) and x.look != "client"]
    if max(map(abs, [*ends, *b.tolist()])) > FARTHEST:  # a unit of the column is many standard deviations
        ratio = ""
    wide = max(1e-300, (mean.high - mean.low) * (math.exp(min(abs(mean.estimate), 20.0)) if ratio else 1.0))
    places = min(max(2, 1 - math.floor(math.log10(wide))), 6)
    return Forest(name, ratio, [one._replace(text=_text(one, bool(ratio), places)) for one in lines], level)


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts "Ward 2" before "Ward 10"."""
    return [(1, 0.0, s) if not s.isdecimal() else (0, float(s), "") for s in re.split(r"(\d+)", name) if s]


def _text(line: Line, ratio: bool, places: int) -> str:
    ends = (math.exp(min(v, 700.0)) if ratio else v for v in (line.value, line.low, line.high))
    value, low, high = (_shown(v, places, ratio) for v in ends)
    return f"[{low}, {high}]" if line.look == "prediction" else f"{value} [{low}, {high}]"


def _shown(v: float, places: int, ratio: bool) -> str:
    """Return a number with decimals that an interval needs, and no more than its size allows."""
    if math.isnan(v) or math.isinf(v):
        return "–" if math.isnan(v) else "∞" if v > 0.0 else "-∞"
    if abs(v) >= 1e5 or (ratio and 0.0 < v < 0.5 * 10.0**-places):
        return f"{v:.1e}"
    text = f"{v:.{max(0, places - max(0, len(str(int(abs(v)))) - 1))}f}"
    return text.removeprefix("-") if float(text) == 0.0 else text


def limits(lines: list[Line]) -> tuple[float, float]:
    """Return the ends of the axis, which shows all intervals but those much wider than the median: these are cut."""
    some = [v for x in lines for v in ((x.value,) if x.look == "client" else (x.value, x.low, x.high))]
    known = [v for v in some if math.isfinite(v)] + [0.0]
    low, high = min(known), max(known)
    clients = [x for x in lines if x.look == "client"]
    room = 1.3 * float(np.median([x.high - x.low for x in clients]))
    low = min([low, *(max(x.low, x.value - room) for x in clients)])
    high = max([high, *(min(x.high, x.value + room) for x in clients)])
    edge = 0.03 * (high - low)
    return low - edge, high + edge


def forest_figure(plot: Forest, prefix: str) -> str:
    """Return the plot as an SVG element."""
    lines, change = plot.lines, np.exp if plot.ratio else np.asarray
    low, high = limits(lines)
    if plot.ratio:
        low, high = max(low, -FARTHEST), min(high, FARTHEST)
    at = _heights(lines)

    def draw(axis: Any) -> None:
        for line, y in zip(lines, at, strict=True):
            _mark(axis, line, y, change, (low, high))
        axis.set_xlim(float(change(low)), float(change(high)))
        axis.axvline(float(change(0.0)), color=INK, linewidth=0.8)
        joint = next(x.value for x in lines if x.look == "joint")
        if math.isfinite(joint):
            axis.axvline(float(change(joint)), color=COLOURS["worst"], linewidth=0.8, linestyle=(0, (2, 2)))
        if plot.ratio:
            _logarithmic(axis, math.exp(low), math.exp(high))
        axis.set_xlim(float(change(low)), float(change(high)))
        axis.set_yticks(at, [_label(x) for x in lines])
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(min(at) - 0.7, max(at) + 1.6)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        axis.set_xlabel(f"{plot.ratio}, logarithmic scale" if plot.ratio else "coefficient")
        axis.figure.get_layout_engine().set(w_pad=0.12)
        heads = (max(at) + 1.0, f"{plot.ratio or 'coefficient'} [{100.0 * plot.level:g} %]", "weight")
        _columns(axis, [*zip(at, (x.text for x in lines), (_weight(x) for x in lines), strict=True), heads])

    ends = ", ".join(f"{x.name} {x.text}" for x in lines if x.look != "client")
    text = f"Forest plot of {plot.name}, {sum(x.look == 'client' for x in lines)} clients. {ends}."
    return as_svg(draw, prefix, text, (WIDTH, 1.1 + 0.21 * (max(at) - min(at) + 2.0)), 3)


def _logarithmic(axis: Any, low: float, high: float) -> None:
    """Make the axis logarithmic, with ticks at round numbers however narrow it is."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    log_axis(axis.xaxis, np.array([low, high]))
    if axis.get_xscale() == "log":
        return
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(MaxNLocator(4).tick_values(low, high)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}"))


def _heights(lines: list[Line]) -> list[float]:
    """Return where the lines stand: from above, summaries apart from clients."""
    clients = sum(x.look == "client" for x in lines)
    return [-float(i) - (0.7 if i >= clients else 0.0) for i in range(len(lines))]


def _label(line: Line) -> str:
    text = line.name.replace("$", r"\$")
    return text if len(text) <= 19 else text[:9] + "…" + text[-9:]


def _weight(line: Line) -> str:
    return f"{100.0 * line.share:.1f} %" if line.look == "client" else ""


def _columns(axis: Any, rows: list[Any]) -> None:
    across = axis.get_yaxis_transform()
    widest = max(len(text) for _, text, _ in rows)
    for y, words, weight in rows:
        for text, x, side in ((words, 8.0, "left"), (weight, 44.0 + 4.4 * widest, "right")):
            look = {"xycoords": across, "textcoords": "offset points", "va": "center", "ha": side, "fontsize": 8}
            drawn = axis.annotate(text, (1.0, y), (x, 0.0), annotation_clip=False, **look)
            drawn.set_in_layout(len(words) == widest or text == "weight")  # measuring all takes a second


def _mark(axis: Any, line: Line, y: float, change: Any, ends: tuple[float, float]) -> None:
    """Draw a line: a square, a diamond, or a bar."""
    colour = COLOURS[{"client": "measured", "joint": "worst", "common": "fourth"}.get(line.look, "bound")]
    a, b = max(line.low, ends[0]), min(line.high, ends[1])
    if not (math.isfinite(a) and math.isfinite(b) and a <= b):
        return
    if line.look == "client":
        axis.hlines(y, change(a), change(b), color=colour, linewidth=1.1)
        for cut, end, marker in ((line.low < a, a, 4), (line.high > b, b, 5)):  # carets to the left and to the right
            if cut:
                axis.plot(change(end), y, marker=marker, color=colour, markersize=5, clip_on=False)
        if ends[0] <= line.value <= ends[1]:
            size = 2.5 + 8.0 * math.sqrt(line.share)
            axis.plot(change(line.value), y, marker="s", color=colour, markersize=size, linestyle="none")
    elif line.look == "prediction":
        axis.hlines(y, change(a), change(b), color=colour, linewidth=2.6)
    else:
        v = min(max(line.value, ends[0]), ends[1])
        axis.fill(change(np.array([a, v, b, v])), [y, y + 0.3, y, y - 0.3], color=colour, linewidth=0.8)
