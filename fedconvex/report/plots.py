"""Convergence plots; matplotlib is imported when a plot is drawn."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex._check import bad, instance, printable, text, wrong_type
from fedconvex._files import check_file, write_file
from fedconvex.driver import Result

if TYPE_CHECKING:
    from fedconvex.theory.worst_case import BestStep

# Okabe and Ito's palette, told apart with every common kind of colour vision; black stays with the text
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def check_plot_path(path: str | os.PathLike[str] | None, who: str = "figure: path") -> Path | None:
    """Return the path, if there is one and a figure can be saved there, judged before any work is done.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the folder does not exist or cannot be written to, or the suffix names no format that matplotlib writes.
    TypeError
        If it is no path.
    """
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type(who, "be the name of a file", type(path).__name__)
    known = _matplotlib()[1].get_supported_filetypes()
    file = check_file(who, path)
    if file.suffix.lower().lstrip(".") not in known:
        raise bad(who, "end in " + ", ".join(f".{k}" for k in sorted(known)), file.name)
    return file


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures must have matplotlib: pip install "fedconvex[report]"') from error
    return Figure, FigureCanvasAgg


def panels(
    shape: tuple[int, int], size: tuple[float, float], axes: Any = None, **share: bool
) -> tuple[Any, np.ndarray]:
    """Return a figure of so many rows and columns of panels and its axes (n,), or the axes given and their figure.

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.
    """
    if axes is not None:
        drawn = np.ravel(np.asarray(axes, dtype=object))
        if not drawn.size or not all(hasattr(axis, "plot") for axis in drawn):
            raise bad("figure: axes", "be axes of matplotlib", f"{axes!r}")
        return drawn[0].figure, drawn
    Figure, Canvas = _matplotlib()
    figure = Figure(figsize=size, dpi=144, layout="constrained")
    Canvas(figure)
    return figure, figure.subplots(*shape, squeeze=False, **share).ravel()


def light_grid(axis: Any, along: str = "both", colour: str = "0.88") -> None:
    """Leave two spines, and a faint grid behind what is drawn."""
    axis.grid(True, axis=along, which="major", color=colour, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def finished(figure: Any, file: Path | None, title: str = "") -> Any:
    """Return the figure under its title, written to the file if there is one, whole or not at all."""
    if text("figure: title", title):
        figure.suptitle(printable(title), fontsize=10, parse_math=False)  # names may hold dollars
    for legend in filter(None, [*figure.legends, *(axis.get_legend() for axis in figure.axes)]):
        for words in legend.get_texts():
            words.set_parse_math(False)
    if file is not None:
        save_figure(figure, file)
    return figure


def save_figure(figure: Any, path: str | os.PathLike[str], *, outlines: bool = True) -> Path:
    """Write a figure, whole or not at all; equal figures give equal bytes in SVG and PNG.

    Letters in SVG are outlines, which look alike everywhere, or text, which searches find and which takes less space.
    """
    import matplotlib

    file, image = Path(path), io.BytesIO()
    kind = file.suffix.lower().lstrip(".")
    metadata = {"svg": {"Date": None}, "png": {"Software": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "fedconvex", "svg.fonttype": "path" if outlines else "none"}):
        figure.savefig(image, format=kind, metadata=metadata)
    write_file(file, _lean(image.getvalue()) if kind == "svg" and not outlines else image.getvalue())
    return file


def _lean(svg: bytes) -> bytes:
    """Return a drawing without groups of one element, and with Verdana, of equal widths, where DejaVu Sans is not."""
    svg = re.sub(
        rb"font(-family)?: ([^;\"]*)'DejaVu Sans'[^;\"]*", rb"font\1: \2'DejaVu Sans', Verdana, sans-serif", svg
    )
    found = 1
    while found:
        svg, found = re.subn(rb'<g(?: id="[^"]*")?>\s*(<(?:use|path) [^<]*/>|<text [^<]*</text>)\s*</g>', rb"\1", svg)
    return svg


def convergence_plot(
    results: Mapping[str, Result],
    path: str | os.PathLike[str] | None = None,
    *,
    problem: Any = None,
    axes: Any = None,
    title: str = "",
) -> Any:
    """Draw the distance to the optimum, and the certified gap, over rounds, communicated floats and seconds.

    The distance is the objective minus the problem's pooled optimum; without a problem, minus the best certified lower
    bound of all runs. Seconds are those of the rounds, all trajectories together, without compiling and measuring. Of
    several trajectories the median is drawn, with a band from the first to the ninth decile. What is not positive, or
    below the accuracy of the optimum, is left out.

    Parameters
    ----------
    results : mapping of name to Result
        One curve each.
    path : path, optional
        Save the figure there; the suffix says in which format.
    problem : problem, optional
        What they minimised.
    axes : matplotlib axes, or up to three of them, optional
        Draw into these: over rounds, over floats, over seconds.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.
    ValueError, TypeError
        If results are no mapping of names to Results, there is neither a problem nor a certified gap, or no figure can
        be saved under the path.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import convergence_plot
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> figure = convergence_plot({"FedAvg": run(FedAvg(step_size=0.1), problem, rounds=50)}, problem=problem)
    >>> [axis.get_xlabel().split()[0] for axis in figure.axes]
    ['communication', 'communicated', 'seconds']
    """
    check_results("convergence_plot", results)
    file = check_plot_path(path)
    best, optimum = _optimum(results, problem)
    figure, drawn = panels((1, 3), (12.6, 4.0), axes, sharey=True)
    for number, (name, result) in enumerate(results.items()):
        labels = f"{name}: objective − {optimum}", f"{name}: certified gap"
        _run(drawn, labels, result, best, number, len(results) > 1)
    _set_axes(drawn)
    drawn[0].legend(frameon=False, fontsize=8)
    return finished(figure, file, title)


def best_step_plot(
    best: BestStep, path: str | os.PathLike[str] | None = None, *, axes: Any = None, title: str = ""
) -> Any:
    """Draw the exact worst case over the step, with the best step and the one that a theorem recommends.

    Parameters
    ----------
    best : BestStep
    path : path, optional
        Save the figure there; the suffix says in which format.
    axes : matplotlib axes, optional
        Draw into these.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.
    ValueError, TypeError
        If best is no BestStep, or no figure can be saved under the path.

    Examples
    --------
    >>> from fedconvex.report import best_step_plot
    >>> from fedconvex.theory.worst_case import Problems, best_step, gradient_descent
    >>> best = best_step(lambda eta: gradient_descent(eta, 1), Problems(), steps=[1.0, 1.5, 1.9], refinements=0)
    >>> best_step_plot(best).axes[0].get_xlabel()
    'step size'
    """
    from fedconvex.theory.worst_case import BestStep

    instance("best_step_plot: best", best, BestStep)
    file = check_plot_path(path)
    figure, (axis, *_) = panels((1, 1), (6.4, 4.0), axes)
    axis.fill_between(best.steps, best.lower, best.upper, color="0.7", linewidth=0)
    axis.plot(best.steps, best.upper, color="black", linewidth=1.4, label="exact worst case")
    axis.plot(best.step, best.worst.upper, COLOURS[0], marker="o", linestyle="", label=f"best step {best.step:.3g}")
    if best.worst_there is not None:
        label = f"recommended {best.recommended:.3g}: {best.loss:.3g} times as much"
        axis.plot(best.recommended, best.worst_there.upper, COLOURS[1], marker="s", linestyle="", label=label)
    axis.set(xlabel="step size", ylabel=best.worst.quantity.axis, xscale="log", yscale="log")
    light_grid(axis)
    axis.legend(frameon=False, fontsize=8)
    return finished(figure, file, title)


def _optimum(results: Mapping[str, Result], problem: Any) -> tuple[float, str]:
    """Return what objectives are compared with, and its name."""
    if problem is not None:
        if isinstance(problem, type) or not hasattr(problem, "solve"):
            raise wrong_type("convergence_plot: problem", "be a problem", type(problem).__name__)
        return float(problem.solve().value), "pooled optimum"
    bounds = [np.max(np.asarray(r.trace.value - r.trace.gap), initial=-np.inf) for r in results.values()]
    if not np.isfinite(max(bounds)):
        raise bad("convergence_plot: problem", "be given where no run has a certified gap", "None")
    return float(max(bounds)), "certified lower bound"


def check_results(who: str, results: Any) -> None:
    """Raise unless results is a nonempty mapping of names to Results."""
    if not isinstance(results, Mapping) or not results:
        cure = "pass {'a name': result}" if isinstance(results, Result) else ""
        raise bad(f"{who}: results", "be a nonempty mapping of names to Results", type(results).__name__, cure)
    for name, result in results.items():
        text(f"{who}: results: a name", name)
        if not isinstance(result, Result):
            raise wrong_type(f"{who}: results[{name!r}]", "be a Result", type(result).__name__)


def _set_axes(drawn: np.ndarray) -> None:
    drawn[0].set_xlabel("communication rounds")
    if len(drawn) > 1:
        from matplotlib.ticker import EngFormatter

        drawn[1].xaxis.set_major_formatter(EngFormatter(sep=" "))
        drawn[1].set_xlabel("communicated floats (8 bytes each, all clients, both ways)")
    drawn[0].set_ylabel("distance to the optimum (units of F)")
    if len(drawn) > 2:
        drawn[2].set_xlabel("seconds")
    for axis in drawn[:3]:
        axis.set_yscale("log")
        axis.set_xlim(left=0)
        light_grid(axis)


def look_of(number: int, points: int) -> dict[str, Any]:
    """Return colour and sparse markers of curve ``number``, which has so many points."""
    every = max(1, points // 12)
    style = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4}
    return style | {"markevery": (number * every // 4, every)}


def _run(drawn: np.ndarray, labels: tuple[str, str], result: Result, best: float, number: int, several: bool) -> None:
    """Draw the objective minus the optimum, and the certified gap, over rounds, floats and seconds."""
    trace, look = result.trace, look_of(number, len(result.trace.round))
    floats = trace.floats_down + trace.floats_up
    dashed = {"linestyle": (0, (4, 2)), "color": look["color"] if several else "black", "linewidth": 0.9}
    for axis, x in zip(drawn, (trace.round, floats, trace.seconds), strict=False):
        if x is not floats or floats[-1] > 0:  # a centralised method sends nothing
            _curve(axis, x, trace.value - best, {"label": labels[0], **look})
            _curve(axis, x, trace.gap, {"label": labels[1], **dashed})


def _curve(axis: Any, x: np.ndarray, y: np.ndarray, look: dict[str, Any]) -> None:
    """Draw y (T,), or the median and deciles of y (T, R), where it is positive and finite."""
    y = np.where(np.isfinite(y) & (y > 0.0), y, np.nan)
    if y.ndim == 1:
        axis.plot(x, y, **look)
        return
    shown = np.where(np.isnan(y), np.inf, y)
    low, high = np.quantile(shown, [0.1, 0.9], axis=1, method="nearest")  # infinities are not to be interpolated
    middle = np.median(shown, axis=1)
    axis.plot(x, np.where(np.isfinite(middle), middle, np.nan), **look)
    both = np.isfinite(low) & np.isfinite(high)
    axis.fill_between(x, low, np.where(both, high, 1.0), where=both, color=look["color"], alpha=0.15, linewidth=0)
