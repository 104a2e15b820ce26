"""One look for all figures of experiments; matplotlib is imported when a figure is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedconvex.report.plots import COLOURS, light_grid, panels

__all__ = ["COLOURS", "DASHED", "DOTTED", "METHOD_LOOKS", "band", "blank", "grid", "legend", "panel", "tidy"]

DASHED, DOTTED = (0, (4, 2)), (0, (1, 2))
METHOD_LOOKS: Mapping[str, tuple[str, Any]] = {
    "AFL": (COLOURS[0], "-"),
    "AFL, mini-batches": (COLOURS[5], (0, (1, 1))),
    "OptimisticAFL": (COLOURS[2], (0, (6, 2))),
    "AgnosticFedAvg": (COLOURS[1], (0, (4, 1, 1, 1))),
    "FedAvg": ("0.35", (0, (2, 2))),
}


def blank(columns: int = 1, *, width: float = 4.6, height: float = 3.6, sharey: bool = False) -> tuple[Any, Any]:
    """Return a figure and its axes (columns,), tidied.

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.
    """
    return grid((1, columns), width=width, height=height, sharey=sharey)


def grid(shape: tuple[int, int], *, width: float, height: float, sharey: bool = False) -> tuple[Any, Any]:
    """Return a figure of so many rows and columns of panels, each of a size in inches, and its axes (n,), tidied."""
    rows, columns = shape
    figure, axes = panels(shape, (width * columns, height * rows), sharey=sharey)
    for axis in axes:
        tidy(axis)
    return figure, axes


def tidy(axis: Any) -> None:
    """Leave two spines, a faint grid behind the curves, and small ticks."""
    light_grid(axis, colour="0.90")
    axis.tick_params(labelsize=8)
    axis.xaxis.label.set_size(9)
    axis.yaxis.label.set_size(9)
    axis.title.set_size(9)


def panel(axis: Any, title: str = "", x: str = "", y: str = "", log: str = "") -> None:
    """Name a panel and its axes, and make some of the axes "x", "y", "xy" logarithmic."""
    if "x" in log:
        axis.set_xscale("log")
    if "y" in log:
        axis.set_yscale("log")
    if x:
        axis.set_xlabel(x)
    if y:
        axis.set_ylabel(y)
    if title:
        axis.set_title(title, fontsize=9, loc="left")


def band(axis: Any, x: Any, low: Any, high: Any, colour: str, alpha: float = 0.25) -> None:
    """Shade between two curves."""
    axis.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)


def legend(
    figure: Any, axis: Any = None, looks: Mapping[str, Mapping[str, Any]] | None = None, *, columns: int
) -> None:
    """Put one legend above all panels: the curves of an axis, then a line of every look, by its label."""
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels() if axis is not None else ([], [])
    extra = looks or {}
    handles, labels = [*handles, *(Line2D([], [], **look) for look in extra.values())], [*labels, *extra]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
