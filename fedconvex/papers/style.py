"""One look for all figures; matplotlib is imported when a figure is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["COLOURS", "blank", "save_figure", "tidy"]

# Okabe and Ito's palette, told apart with every common kind of colour vision; black stays with the theory
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def blank(columns: int = 1, *, width: float = 4.6, height: float = 3.6, sharey: bool = False) -> tuple[Any, Any]:
    """Return a figure and its axes (columns,), tidied.

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures must have matplotlib: pip install "fedconvex[report]"') from error
    figure = Figure(figsize=(width * columns, height), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
    for axis in axes:
        tidy(axis)
    return figure, axes


def tidy(axis: Any) -> None:
    """Leave two spines, a faint grid behind the curves, and small ticks."""
    axis.grid(True, which="major", color="0.90", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.xaxis.label.set_size(9)
    axis.yaxis.label.set_size(9)
    axis.title.set_size(9)


def save_figure(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure, whole or not at all; equal figures give equal bytes."""
    import matplotlib

    file = Path(path)
    temporary = file.with_name(f".{os.getpid()}.{file.name}")
    metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
    try:
        with matplotlib.rc_context({"svg.hashsalt": "fedconvex", "svg.fonttype": "path"}):
            figure.savefig(temporary, metadata=metadata)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    return file
