"""Figures of the comparison on three clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.papers.agnostic_clients.claims import MODELS, kinds_of, left_by_fedavg, pairs_of
from fedconvex.papers.agnostic_clients.runs import DivisionRun, ExactModel
from fedconvex.papers.style import COLOURS, blank, legend, panel

SHORT = {"FedAvg": COLOURS[0], "AFL": COLOURS[1]}


def draw_clients(models: Sequence[ExactModel], differences: Sequence[dict[str, Any]]) -> Any:
    """Draw test accuracies of the clients, and differences of the worst one, with intervals."""
    kinds, low = kinds_of(models), 1.0
    figure, axes = blank(len(kinds) + 1, width=2.7, height=3.7)
    for axis, division in zip(axes, kinds, strict=False):
        names = pairs_of(models, division)[0][0].test.domains.tolist()
        for m, model in enumerate(MODELS):
            mine = np.array([o.test.accuracy for o in models if (o.division, o.model) == (division, model)])
            x, look = np.arange(len(names)) + 0.22 * (m - 0.5), {"linestyle": "none", "color": SHORT[model]}
            axis.plot(np.tile(x, (len(mine), 1)), mine, marker=".", alpha=0.3, markersize=5, **look)
            axis.plot(x, mine.mean(axis=0), marker="os"[m], markersize=6, label=model, **look)
            low = min(low, float(mine.min()))
        sizes = np.mean([o.sizes for o in models if o.division == division], axis=0)
        labels = [f"{n.replace(': class', chr(10))}\n{s:.0f}" for n, s in zip(names, sizes, strict=True)]
        axis.set_xticks(range(len(names)), labels)
        axis.set_xlim(-0.5, len(names) - 0.5)
        panel(axis, division, "client" + (", its classes" if division.startswith("by") else "") + ", training rows")
    for axis in axes[:-1]:
        axis.set_ylim(max(0.0, math.floor(20.0 * low - 0.2) / 20.0), 1.0)
    axes[0].set_ylabel("test accuracy; small: one division, large: mean")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    _draw_differences(axes[-1], kinds, differences)
    return figure


def _draw_differences(axis: Any, kinds: Sequence[str], differences: Sequence[dict[str, Any]]) -> None:
    """Draw AFL minus FedAvg for the worst client's accuracy and the mean, a line for every division."""
    from matplotlib.ticker import MaxNLocator

    for m, (name, label) in enumerate((("worst accuracy", "worst client"), ("mean accuracy", "mean over rows"))):
        gaps = [r for r in differences if r["AFL minus FedAvg"] == name]
        y = np.arange(len(gaps))[::-1] + 0.16 * (0.5 - m) * 2
        axis.hlines(y, [r["low"] for r in gaps], [r["high"] for r in gaps], color="0.25", linewidth=1.2)
        style = {"marker": "Dv"[m], "color": (COLOURS[2], COLOURS[3])[m], "linestyle": "none", "markersize": 5.5}
        axis.plot([r["mean"] for r in gaps], y, label=label, **style)
    axis.axvline(0.0, color="black", linewidth=0.8)
    axis.set_yticks(np.arange(len(kinds))[::-1], [k.replace(", ", ",\n") for k in kinds])
    axis.set_ylim(-0.6, len(kinds) - 0.1)
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.set_xlabel("accuracy, AFL minus FedAvg, 95 %")
    axis.legend(frameon=False, fontsize=8, loc="upper right")


def draw_runs(runs: Sequence[DivisionRun], models: Sequence[ExactModel]) -> Any:
    """Draw the worst client's objective above its least value, over rounds, and over floats for the last division."""
    from matplotlib.ticker import NullFormatter

    kinds = list(dict.fromkeys(c.division for c in runs))
    panels = [(division, "rounds") for division in kinds] + [(kinds[-1], "floats")]
    figure, axes = blank(len(panels), width=3.5, height=4.2, sharey=True)
    dashes = ("-", (0, (5, 2)), (0, (1, 1.2)), "-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
    exact = {"color": "black", "linewidth": 0.9, "linestyle": (0, (2, 2))}
    for axis, (division, by) in zip(axes, panels, strict=True):
        for j, c in enumerate(c for c in runs if c.division == division):
            x, name = c.run.rounds[1:] * (1.0 if by == "rounds" else c.floats), c.run.method
            colour = COLOURS[0 if name.startswith("Fed") else 2 if name.startswith("Agn") else 1]
            axis.plot(x, c.run.above[1:], color=colour, linestyle=dashes[j], linewidth=1.5, label=name)
        axis.axhline(left_by_fedavg(models, division), **exact)
        panel(axis, division, "rounds" if by == "rounds" else "floats sent, all clients, both ways", log="xy")
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("worst client's training objective\nabove its least value")
    legend(figure, axes[0], {"FedAvg's exact solution": exact}, columns=4)
    return figure
