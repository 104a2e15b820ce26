"""Figures of three classes as domains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.papers.agnostic_fashion.claims import LEVEL, MODELS
from fedconvex.papers.agnostic_fashion.data import ClassDomains
from fedconvex.papers.agnostic_fashion.runs import ClassesRun, Comparison
from fedconvex.papers.style import COLOURS, DASHED, blank, legend, panel
from fedconvex.report import wilson_interval

_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)))


def draw_classes(data: ClassDomains, compared: Sequence[Comparison]) -> Any:
    """Draw test accuracies with Wilson's intervals over l2, a panel for every model and resolution."""
    blocks = list(dict.fromkeys(c.block for c in compared))
    figure, axes = blank(2 * len(blocks), width=2.7, height=3.6, sharey=True)
    floor = 1.0
    for i, (block, m) in enumerate((b, m) for b in blocks for m in range(2)):
        mine = sorted((c for c in compared if c.block == block), key=lambda c: c.l2)
        axis, x = axes[i], np.array([c.l2 for c in mine])
        for k, name in enumerate(data.labels):
            right, rows = [c.right[m, c.y == k].sum() for c in mine], [(c.y == k).sum() for c in mine]
            low, high = wilson_interval(right, rows, LEVEL)
            at, value = x * 1.12 ** (k - 1), np.array([c.accuracy[m, k] for c in mine])
            axis.vlines(at, low, high, color=COLOURS[k], linewidth=1.1)
            axis.plot(at, value, color=COLOURS[k], marker="osD"[k], markersize=4.5, linewidth=1.3, label=name)
            floor = min(floor, float(low.min()))
        mean = np.array([c.accuracy[m].mean() for c in mine])
        axis.plot(x, mean, color="black", linestyle=DASHED, linewidth=1.1, marker="_", label="mean of the three")
        size = "as they are" if block == 1 else f"{block} x {block} averaged"
        panel(axis, f"{MODELS[m]}, images {size}", "l2", log="x")
        axis.set_xticks(x, [f"{v:g}" for v in x], rotation=0 if len(x) < 5 else 45)
        axis.minorticks_off()
        axis.set_xlim(x[0] / 2.2, x[-1] * 2.2)
    axes[0].set_ylim(math.floor(20.0 * floor) / 20.0, None)
    axes[0].set_ylabel("test accuracy, 95 % intervals")
    legend(figure, axes[0], columns=4)
    return figure


def draw_runs(data: ClassDomains, runs: Sequence[ClassesRun]) -> Any:
    """Draw test accuracies over the rounds, and the worst domain's objective above its least value."""
    figure, axes = blank(len(runs) + 1, width=2.9, height=3.6)
    floor = min(0.9, min(float(c.accuracy[c.run.rounds >= 10].min()) for c in runs))
    for axis, c in zip(axes, runs, strict=False):
        for k, name in enumerate(data.labels):
            axis.plot(c.run.rounds, c.accuracy[:, k], color=COLOURS[k], linestyle=_DASHES[k], label=name)
        axis.plot(c.run.rounds, c.accuracy.mean(axis=1), color="black", linewidth=0.9, label="mean of the three")
        panel(axis, c.run.method, "rounds", log="x")
        axis.set_ylim(math.floor(10.0 * floor) / 10.0, 1.0)
    axes[0].set_ylabel("test accuracy")
    last, shown = axes[-1], [c.run for c in runs]
    for j, run in enumerate(shown):
        last.plot(run.rounds, run.above, color=COLOURS[j + 3], linestyle=_DASHES[j], label=run.method)
    panel(last, x="rounds", y="worst domain's training objective\nabove its least value", log="xy")
    last.tick_params(which="both", labelsize=8)
    least = min(float(r.above[np.isfinite(r.above) & (r.above > 0.0)].min(initial=1.0)) for r in shown)
    last.set_ylim(0.1 * least, None)  # room for the legend
    last.legend(frameon=False, fontsize=7.5, loc="lower left")
    legend(figure, axes[0], columns=4)
    return figure
