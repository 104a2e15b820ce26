"""What `heterogeneity_trace` measured, as a table and as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex._check import bad, text, whole, wrong_type
from fedconvex.driver import Trace
from fedconvex.report.plots import check_plot_path, finished, light_grid, look_of, panels
from fedconvex.report.tables import format_table


def heterogeneity_table(trace: Trace, rows: int = 11) -> str:
    """Return a plain-text table of what `heterogeneity_trace` measured.

    Parameters
    ----------
    trace : Trace
    rows : int
        Most lines, spread evenly, the first and the last among them.

    Raises
    ------
    ValueError, TypeError
        If trace is not from `heterogeneity_trace`, or rows below 2.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import heterogeneity_table, heterogeneity_trace
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> trace = heterogeneity_trace(FedAvg(step_size=0.05, local_steps=5), problem, rounds=20, baseline=False)
    >>> heterogeneity_table(trace, rows=2).splitlines()[0].split()
    ['round', 'drift', 'B^2', 'zeta^2', 'median', 'loss', 'worst', 'loss', 'worst', 'client']
    """
    if not isinstance(trace, Trace) or "zeta2" not in trace:
        raise wrong_type("heterogeneity_table: trace", "come from heterogeneity_trace", type(trace).__name__)
    most = whole("heterogeneity_table: rows", rows, low=2)
    pick = np.unique(np.linspace(0, len(trace.round) - 1, most).round().astype(int))
    names = {"round": "round", "drift": "drift", "B2": "B^2", "zeta2": "zeta^2", "divergence": "divergence"}
    names |= {"loss_median": "median loss", "loss_max": "worst loss", "worst_client": "worst client"}
    shown = {name: header for name, header in names.items() if name in trace}
    return format_table(list(shown.values()), [[trace[name][i].item() for name in shown] for i in pick])


def heterogeneity_plot(
    traces: Mapping[str, Trace], path: str | os.PathLike[str] | None = None, *, title: str = ""
) -> Any:
    """Draw drift, gradient dissimilarity, weight divergence and the clients' losses over rounds.

    Losses are shown as the median (line), the middle half of the clients (band) and the worst one (dashed).

    Parameters
    ----------
    traces : mapping of name to Trace
        What `heterogeneity_trace` measured, one colour each.
    path : path, optional
        Save the figure there; the suffix says in which format.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import heterogeneity_plot, heterogeneity_trace
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> trace = heterogeneity_trace(FedAvg(step_size=0.05, local_steps=5), problem, rounds=20)
    >>> [axis.get_ylabel() for axis in heterogeneity_plot({"FedAvg": trace}).axes]
    ['client drift', 'gradient dissimilarity ζ²', 'weight divergence', "clients' losses"]
    """
    if not isinstance(traces, Mapping) or not traces:
        raise bad("heterogeneity_plot: traces", "be a nonempty mapping of names to Traces", type(traces).__name__)
    for name, trace in traces.items():
        text("heterogeneity_plot: traces: a name", name)
        if not isinstance(trace, Trace) or "zeta2" not in trace:
            who = f"heterogeneity_plot: traces[{name!r}]"
            raise wrong_type(who, "come from heterogeneity_trace", type(trace).__name__)
    file = check_plot_path(path)
    figure, axes = panels((2, 2), (9.6, 6.4), sharex=True)
    curves = {"drift": "client drift", "zeta2": "gradient dissimilarity ζ²", "divergence": "weight divergence"}
    for number, (name, trace) in enumerate(traces.items()):
        look = look_of(number, len(trace["round"]))
        for axis, column in zip(axes, curves, strict=False):
            if column in trace:
                y = np.where(trace[column] > 0.0, trace[column], np.nan)
                axis.plot(trace["round"], y, label=name, **look)
        _draw_losses(axes[3], name, trace, look)
    for axis, words in zip(axes, [*curves.values(), "clients' losses"], strict=True):
        axis.set(ylabel=words, yscale="linear" if axis is axes[3] else "log")
        light_grid(axis)
    for axis in axes[2:]:
        axis.set_xlabel("communication rounds")
    for axis in axes[[0, 3]]:
        axis.legend(frameon=False, fontsize=8)
    return finished(figure, file, title)


def _draw_losses(axis: Any, name: str, trace: Trace, look: dict[str, Any]) -> None:
    """Draw the clients' median loss with the middle half, and the worst."""
    axis.fill_between(trace["round"], trace["loss_q1"], trace["loss_q3"], color=look["color"], alpha=0.2, linewidth=0)
    axis.plot(trace["round"], trace["loss_median"], label=f"{name}: median, middle half", **look)
    worst = {"color": look["color"], "linestyle": (0, (4, 2)), "label": f"{name}: worst"}
    axis.plot(trace["round"], trace["loss_max"], **worst)
