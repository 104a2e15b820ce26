"""Figures of the toy regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.papers.agnostic_toy.problem import CENTRES, QUIET
from fedconvex.papers.agnostic_toy.runs import DRAWN, ToySetting
from fedconvex.papers.style import COLOURS, DOTTED, METHOD_LOOKS, band, blank, legend, panel
from fedconvex.report import domain_weights_plot


def draw_plane(settings: Sequence[ToySetting]) -> Any:
    """Draw points, means, the circle, the solutions and the paths towards them."""
    figure, axes = blank(len(settings), width=4.6, height=4.9)
    for axis, setting in zip(axes, settings, strict=True):
        _draw_domains(axis, setting)
        for name in (*DRAWN, "FedAvg"):
            colour, dash = METHOD_LOOKS[name]
            label = f"path of {name}" + (" (averages)" if name == "AFL" else "")
            axis.plot(*setting.paths[name].T, color=colour, linestyle=dash, linewidth=1.4, label=label, zorder=3)
        look = {"linestyle": "none", "zorder": 5}
        axis.plot(*setting.circle.h, marker="+", markersize=12, markeredgewidth=1.6, color="black",
                  label="its centre", **look)  # fmt: skip
        look |= {"markeredgecolor": "black"}
        axis.plot(*setting.exact.h, marker="*", markersize=13, color=COLOURS[4], label="agnostic solution", **look)
        axis.plot(*setting.pooled, marker="X", markersize=9, color=COLOURS[3], label="pooled mean", **look)
        noisy = "" if np.ptp(setting.variances) == 0.0 else f"; D5 has {setting.variances[-1]:g}"
        panel(axis, f"{setting.name}: Var = {QUIET:g}{noisy}", "$h_1$")
        axis.set_aspect("equal")
        axis.set_xlim(-1.8, 4.8)
        axis.set_ylim(-2.2, 4.4)
    axes[0].set_ylabel("$h_2$")
    legend(figure, axes[0], columns=4)
    return figure


def _draw_domains(axis: Any, setting: ToySetting) -> None:
    """Draw every domain's points and mean, and the smallest circle around the means."""
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    for i, (z, mark) in enumerate(zip(setting.points, ("o", "s", "^", "D", "v"), strict=True)):
        axis.plot(*z.T, linestyle="none", marker=mark, markersize=2.6, color="0.72", zorder=1)
        mean = {"marker": mark, "markersize": 8, "color": "white", "markeredgecolor": "black", "zorder": 4}
        axis.plot(*CENTRES[i], linestyle="none", **mean)
        axis.annotate(f"D{i + 1}", CENTRES[i], (7, -3), textcoords="offset points", fontsize=8, zorder=3.5, bbox=box)
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    circle = setting.circle.h + math.sqrt(setting.circle.value) * np.column_stack([np.cos(angle), np.sin(angle)])
    axis.plot(*circle.T, color="0.5", linewidth=0.9, linestyle=DOTTED, label="smallest circle around the means")


def draw_rounds(settings: Sequence[ToySetting]) -> Any:
    """Draw excess and certified gap over rounds, both axes logarithmic."""
    figure, axes = blank(len(settings), width=4.6, height=4.1, sharey=True)
    for axis, setting in zip(axes, settings, strict=True):
        for name, result in setting.results.items():
            colour, dash = METHOD_LOOKS[name]
            rounds = result.trace.round[1:]
            excess = np.reshape(result.trace.value, (len(result.trace.round), -1))[1:] - setting.exact.value
            low, middle, high = np.quantile(excess, [0.1, 0.5, 0.9], axis=1)
            shown = np.where(middle > 1e-13, middle, np.nan)
            axis.plot(rounds, shown, color=colour, linestyle=dash, linewidth=1.6, label=name)
            if excess.shape[1] > 1:
                band(axis, rounds, np.maximum(low, 1e-13), np.maximum(high, 1e-13), colour)
        colour, dash = METHOD_LOOKS["FedAvg"]
        excess, rounds = setting.fedavg["value"] - setting.exact.value, setting.fedavg["round"]
        axis.plot(rounds[1:], excess[1:], color=colour, linestyle=dash, linewidth=1.6, label="FedAvg")
        panel(axis, f"{setting.name}: min max F = {setting.exact.value:.4f}", "communication rounds", log="xy")
        axis.set_ylim(1e-13, 30.0)
    axes[0].set_ylabel("worst domain's loss minus its least possible")
    legend(figure, axes[0], columns=5)
    return figure


def draw_weights(settings: Sequence[ToySetting]) -> Any:
    """Draw lambda over rounds in the second setting; dotted: exact."""
    setting = settings[-1]
    figure, axes = blank(len(setting.results), width=3.0, height=3.4, sharey=True)
    domain_weights_plot(setting.results, problem=setting.problem, exact=setting.minimax, axes=list(axes), log=True)
    exact = {"color": "0.3", "linestyle": DOTTED, "linewidth": 1.2}
    legend(figure, axes[0], {"exact λ*": exact}, columns=6)
    return figure
