"""Figures of boosting with several sources."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from fedconvex.families.boosting.experiments.claims import (
    COARSE,
    CURVES,
    by_domain,
    estimate,
    methods_of,
    single_sources,
)
from fedconvex.families.boosting.experiments.runs import ALL, CROSSED, FED, MULTI, OPTIMAL, PLAIN, BoostStudy
from fedconvex.papers.style import COLOURS, band, blank, legend, panel, tidy


def _colour(method: str) -> str:
    named = dict(zip((MULTI, ALL, FED, CROSSED, OPTIMAL, PLAIN), COLOURS, strict=True))
    return named.get(method, "0.45")


def draw_errors(study: BoostStudy) -> Any:
    """Draw the test error of every domain and the worst: dots with intervals, a row for every method."""
    panels = [*study.names, "worst domain"]
    methods = methods_of(study)
    figure, axes = blank(len(panels), width=2.0, height=0.25 * len(methods) + 1.0, sharey=True)
    figure.set_figwidth(2.0 * len(panels) + 1.4)
    y, limit = np.arange(len(methods))[::-1], 0.0
    for i, (axis, name) in enumerate(zip(axes, panels, strict=True)):
        for at, method in zip(y, methods, strict=True):
            values = by_domain(study, method, "test error")
            found = estimate(values.max(axis=1) if i == len(study.names) else values[:, i])
            limit = max(limit, found.mean + 0.02, min(found.mean + found.half, 1.0))
            axis.errorbar(found.mean, at, xerr=found.half, fmt="o", markersize=4, color=_colour(method), linewidth=1.3)
        panel(axis, name, "test error")
        axis.set_yticks(y, methods)
        axis.tick_params(axis="y", length=0)
    for axis in axes:
        axis.set_xlim(0.0, 1.03 * limit)
    return figure


def draw_weights(study: BoostStudy) -> Any:
    """Draw the test error over the weights of two domains, a panel for every pair, with bands."""
    pairs = list(itertools.combinations(range(len(study.names)), 2))[:6]
    lines = (*single_sources(study), ALL, OPTIMAL, MULTI, PLAIN, FED)
    count = -(-len(pairs) // 3)
    figure, _ = blank(3, width=2.9, height=2.6 * count + 0.5)
    figure.clear()
    grid = figure.subplots(count, 3, sharey=True, squeeze=False).ravel()
    lam = np.linspace(0.0, 1.0, COARSE)
    for axis in grid[len(pairs) :]:
        axis.set_visible(False)
    for axis, (a, b) in zip(grid, pairs, strict=False):
        tidy(axis)
        for method in lines:
            values = by_domain(study, method, "test error")
            found = [estimate((1.0 - x) * values[:, a] + x * values[:, b]) for x in lam]
            mean, half = np.array(found).T
            single = method in lines[: len(study.names)]
            style = {"linewidth": 0.9, "linestyle": ":"} if single else {"linewidth": 1.7}
            label = "AdaBoost-k" if method == lines[0] else None if single else method
            axis.plot(lam, mean, color=_colour(method), label=label, **style)
            if not single:
                band(axis, lam, mean - half, mean + half, _colour(method), 0.13)
        axis.set_xlim(0.0, 1.0)
        axis.set_xticks([0.0, 0.5, 1.0], [study.names[a], "half, half", study.names[b]])
        labels = axis.get_xticklabels()
        labels[0].set_horizontalalignment("left")
        labels[2].set_horizontalalignment("right")
    for axis in grid[::3]:
        axis.set_ylabel("weighted test error")
        axis.set_ylim(max(0.0, axis.get_ylim()[0]), min(1.0, axis.get_ylim()[1]))
    legend(figure, grid[0], columns=3)
    return figure


def draw_rounds(study: BoostStudy) -> Any:
    """Draw the worst domain's training loss, test loss and test error over rounds, with bands."""
    figure, axes = blank(3, width=3.1, height=3.2)
    for i, (axis, name) in enumerate(zip(axes, ("training loss", "test loss", "test error"), strict=True)):
        top = 0.0
        for method in CURVES:
            curves = np.array([o.curves[i] for o in study.outcomes if o.method == method])
            mean, half = np.array([estimate(v) for v in curves.T]).T
            t = np.arange(mean.size)[int(i == 2) :]  # f = 0 is no classifier
            axis.plot(t, mean[t], color=_colour(method), label=method, linewidth=1.6)
            band(axis, t, (mean - half)[t], (mean + half)[t], _colour(method), 0.13)
            top = max(top, float(mean[min(10, mean.size - 1) :].max()))
        panel(axis, f"worst domain: {name}", "rounds")
        axis.set_ylim(0.0, min(1.6, 1.15 * top) if i < 2 else min(1.0, 1.2 * top))
        axis.set_xlim(left=0.0)
    legend(figure, axes[0], columns=5)
    return figure
