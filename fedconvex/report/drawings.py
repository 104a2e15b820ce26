"""Figures of a page as inline SVG: ids of their own, colours from the page's style, text as text."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex import _files

if TYPE_CHECKING:  # loading all theorems takes a second
    from fedconvex.verify.check_records import Finding, StepChoice, Tightness

# Stand-ins that the page's style replaces, so that one drawing serves light and dark: Okabe and Ito's palette there.
INK, GRID = "#010101", "#020202"
COLOURS = {"measured": "#030303", "bound": "#040404", "worst": "#050505", "fourth": "#060606"}
_STYLE = {INK: "currentColor", GRID: "var(--grid)"} | {v: f"var(--{k})" for k, v in COLOURS.items()}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _needs_matplotlib() -> None:
    """Raise if drawings cannot be made.

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.
    """
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError('a page must have matplotlib: pip install "fedconvex[report]"') from error


def needs_page() -> None:
    """Raise ImportError unless matplotlib and Jinja2 are installed."""
    _needs_matplotlib()
    if find_spec("jinja2") is None:
        raise ImportError('a page must have jinja2: pip install "fedconvex[report]"')


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder if a page can be written into it, judged before any work is done.

    Raises
    ------
    ImportError
        If matplotlib or Jinja2 is not installed.
    ValueError
        If the folder cannot be made or written to.
    """
    needs_page()
    return _files.check_folder("--report", folder)


def curve_drawing(finding: Finding, prefix: str) -> str:
    """Draw measured value, bound and exact worst case over the rounds, both axes logarithmic where values allow."""
    line = finding.curve
    assert line is not None

    def draw(axis: Any) -> None:
        T = line.rounds
        shown = _positive(line.measured)
        if not line.exact:
            low, high = _positive(line.low), _positive(line.high)
            axis.fill_between(T, low, high, color=COLOURS["measured"], alpha=0.25, linewidth=0)
        label = "measured, exact" if line.exact else "measured, 95 %"
        axis.plot(T, shown, color=COLOURS["measured"], marker="o", markersize=4, label=label)
        look = {"color": COLOURS["bound"], "linestyle": (0, (5, 2)), "marker": "s", "markersize": 3.5}
        axis.plot(T, _positive(line.bound), label="bound", **look)
        worst = [(t, w) for t, w in zip(T.tolist(), finding.worst_curve, strict=True) if w.has_interval]
        if worst:
            at = [t for t, _ in worst]
            upper = _positive(np.array([w.upper for _, w in worst]))
            look = {"color": COLOURS["worst"], "linestyle": ":", "marker": "D", "markersize": 4}
            axis.plot(at, upper, label="exact worst case", **look)
            axis.vlines(at, [max(w.lower, 1e-300) for _, w in worst], upper, color=COLOURS["worst"])
        log_axis(axis.xaxis, T)
        every = [_positive(line.measured), _positive(line.bound), *([upper] if worst else [])]
        log_axis(axis.yaxis, np.concatenate(every))
        axis.set_xlabel("rounds T")
        assert finding.verdict.bound is not None
        axis.set_ylabel(finding.verdict.bound.quantity.axis)

    def span(v: np.ndarray) -> str:
        v = v[np.isfinite(v)]
        return f"{v[0]:.3g} to {v[-1]:.3g}" if v.size else "unknown"

    text = (
        f"{finding.theorem}, {finding.setting}: over {line.rounds[0]} to {line.rounds[-1]} rounds the measured value "
        f"goes from {span(line.measured)}, the bound from {span(line.bound)}."
    )
    known = np.array([w.upper for w in finding.worst_curve if w.has_interval])
    return as_svg(draw, prefix, text + (f" The exact worst case goes from {span(known)}." if known.size else ""))


def tightness_drawing(rows: Sequence[Tightness], prefix: str) -> str:
    """Draw bounds over the exact worst case, for one number of rounds, over zeta."""
    looks = {"R1#": ("measured", "o", "-"), "R1": ("worst", "^", ":"), "(15)": ("bound", "s", "--")}
    looks["(17)"] = ("fourth", "D", "-.")

    def draw(axis: Any) -> None:
        at = np.arange(len(rows))
        for name, (colour, marker, dash) in looks.items():
            values = [t.ratio(name) for t in rows]
            axis.plot(at, values, color=COLOURS[colour], marker=marker, linestyle=dash, markersize=4, label=name)
        axis.axhline(1.0, color=INK, linewidth=0.8)
        axis.set_xticks(at, [f"{t.zeta:g}" for t in rows])
        axis.set_xlabel("zeta (L = D = 1)")
        axis.set_ylabel("bound / exact worst case")
        axis.set_title(f"T = {rows[0].rounds}")
        axis.set_ylim(0.8, 100.0)
        log_axis(axis.yaxis, np.array([1.0, 100.0]))

    parts = ", ".join(f"{name} {rows[0].ratio(name):.3g} to {rows[-1].ratio(name):.3g}" for name in looks)
    text = f"T = {rows[0].rounds}: bounds over the exact worst case as zeta goes from {rows[0].zeta:g} to "
    return as_svg(draw, prefix, f"{text}{rows[-1].zeta:g}: {parts}.")


def step_drawing(s: StepChoice, prefix: str) -> str:
    """Draw exact worst case and bounds over the step size."""

    def draw(axis: Any) -> None:
        look = {"markersize": 3}
        axis.plot(s.steps, s.worst, color=COLOURS["worst"], linestyle=":", marker="D", label="exact worst case", **look)
        axis.plot(s.steps, s.sharp, color=COLOURS["measured"], marker="o", label="R1#", **look)
        axis.plot(s.steps, s.bound, color=COLOURS["bound"], linestyle="--", marker="s", label="(15)", **look)
        for at in (s.best, s.best_bound):
            axis.plot(*at, marker="o", markersize=11, markerfacecolor="none", color=INK, linestyle="none")
        log_axis(axis.xaxis, s.steps)
        log_axis(axis.yaxis, np.concatenate([_positive(v) for v in (s.worst, s.sharp, s.bound)]))
        axis.set_xlabel("step size, units of 1/L")
        axis.set_ylabel("mean suboptimality, units of L D²")

    text = (
        f"Exact worst case over the step size: least {s.best[1]:.4g} at {s.best[0]:.3g}/L; (15) is least, "
        f"{s.best_bound[1]:.4g}, at {s.best_bound[0]:.3g}/L. Circles mark both."
    )
    return as_svg(draw, prefix, text)


def _positive(v: np.ndarray) -> np.ndarray:
    v = np.asarray(v, dtype=float)
    return np.where(np.isfinite(v) & (v > 0.0), v, np.nan)


def log_axis(axis: Any, values: np.ndarray) -> None:
    """Make an axis of a drawing logarithmic if it has something to show, with ticks that are text."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    v = _positive(values)
    v = v[np.isfinite(v)]
    if not v.size or not math.isfinite(float(v.max() / v.min())):
        return
    low, high = math.log10(float(v.min())), math.log10(float(v.max()))
    if high - low < 2.0:
        decades = range(math.floor(low) - 1, math.ceil(high) + 1)
        steps = [m * 10.0**k for k in decades for m in (1, 2, 5)]
        if _inside(steps, v) < 3:
            steps = [m * 10.0**k for k in decades for m in (1, 2, 3, 4, 6, 8)]
        if _inside(steps, v) < 2:
            return  # too narrow for ticks: a linear axis
    else:
        jump = max(1, math.ceil((high - low) / 6.0))
        steps = [10.0**k for k in range(math.floor(low) - 1, math.ceil(high) + 2, jump)]
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(FixedLocator(steps))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: _tick(x)))


def _inside(steps: Sequence[float], v: np.ndarray) -> int:
    """Return how many of the steps lie in the range of the values."""
    return sum(float(v.min()) * (1.0 - 1e-9) <= x <= float(v.max()) * (1.0 + 1e-9) for x in steps)


def _tick(x: float) -> str:
    if 1e-3 < x < 1e4:
        return f"{x:g}"
    k = math.floor(math.log10(x) + 1e-9)
    m = x / 10.0**k
    power = "10" + str(k).translate(_SUPERSCRIPTS)
    return power if abs(m - 1.0) < 1e-9 else f"{m:.0f}·{power}"


def as_svg(
    draw: Callable[[Any], None], prefix: str, label: str, size: tuple[float, float] = (4.4, 2.9), columns: int = 4
) -> str:
    """Return a drawing as an SVG element whose ids start with the prefix.

    Parameters
    ----------
    draw : function
        Takes an axis of matplotlib; colours are `INK` and `COLOURS`.
    prefix : str
        Different for every drawing of a page.
    label : str
        What a screen reader says.
    size : (float, float)
        Inches; on the page the width is what there is room for.
    columns : int
        Of the legend.
    """
    from html import escape

    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.hashsalt": prefix,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlesize": 9,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.4,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    out = io.StringIO()
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axis = figure.subplots()
        draw(axis)
        if axis.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper center", ncols=columns, handlelength=2.4, columnspacing=1.2)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _inlined(out.getvalue(), prefix, escape(label))


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number.group(0)):.2f}"


def _inlined(text: str, prefix: str, label: str) -> str:
    """Return the SVG for a page: no prologue, ids that are used only and with a prefix, the page's colours and font."""
    body = text[text.index("<svg") :]
    viewbox = re.search(r'viewBox="([^"]*)"', body)
    assert viewbox is not None
    body = body[body.index(">") + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace('xlink:href="#', 'href="#')
    used = set(re.findall(r'href="#([^"]+)"', body)) | set(re.findall(r"url\(#([^)]+)\)", body))
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m.group(1)}"' if m.group(1) in used else "", body)
    body = body.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
    body = re.sub("#0[1-7]0[1-7]0[1-7]", lambda m: _STYLE.get(m.group(0), m.group(0)), body)
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    body = re.sub(r' transform="rotate\(-0[^"]*"', "", body)
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag.group(0)), body)  # not what texts say
    body = re.sub(r">\s+<", "><", re.sub(r"\s+", " ", body).strip())
    return f'<svg viewBox="{viewbox.group(1)}" role="img" aria-label="{label}">{body}</svg>'
