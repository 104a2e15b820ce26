"""Figures of the page: performance and data profiles, and gaps over rounds, floats and seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.bench.board import AXES, Board, Cell, data_profile, performance_profile
from fedconvex.bench.tuning import FACTORS
from fedconvex.report.drawings import COLOURS, as_svg, log_axis

MOST = 8  # solvers in a figure
_WORST = 10.0  # ratio of gaps, at which a step size that diverged is drawn
_LOOKS = [("measured", "o", "-"), ("bound", "s", "--"), ("worst", "^", ":"), ("fourth", "D", "-."),
          ("measured", "v", ":"), ("bound", "P", "-."), ("worst", "X", "--"), ("fourth", "*", "-")]  # fmt: skip
_UNITS = {
    "rounds": "rounds",
    "floats": "floats, in models to and from every client",
    "passes": "gradient passes over all rows",
    "seconds": "seconds",
}


def drawn_solvers(board: Board, axis: str = "rounds") -> list[str]:
    """Return the federated solvers that are drawn: your own first, then the best by mean rank on an axis."""
    ranks = board.mean_ranks(axis)
    own = {c.solver for c in board.cells if c.own}
    known = [s for s in board.ranked if not math.isnan(ranks[s]) and board.classes[s] == "federated"]
    return sorted(known, key=lambda s: (s not in own, ranks[s]))[:MOST]


def looks(board: Board) -> dict[str, tuple[str, str, str]]:
    """Return colour, marker and line of every solver that is drawn somewhere: the same in all figures."""
    names = dict.fromkeys(s for axis in AXES for s in drawn_solvers(board, axis))
    return {s: _LOOKS[i % len(_LOOKS)] for i, s in enumerate(names)}


def profile_figure(board: Board, axis: str, kind: str) -> str:
    """Draw a performance profile (Dolan, More) or a data profile (More, Wild) of one axis, over all targets.

    Parameters
    ----------
    board : Board
    axis : str
    kind : {"performance", "data"}
    """
    pairs, names, costs = board.medians(axis)
    federated = [j for j, s in enumerate(names) if board.classes[s] == "federated"]
    names, costs = [names[j] for j in federated], costs[:, federated]
    shown = [s for s in drawn_solvers(board, axis) if np.isfinite(costs[:, names.index(s)]).any()]
    if not shown:
        return ""
    if kind == "performance":
        at = np.geomspace(1.0, _most_ratio(costs), 200)
        shares, label = performance_profile(costs, at), f"{axis} over the least, at most"
    else:
        if axis == "floats":
            size = {c.problem: 2.0 * c.dials["K"] * c.dials["size"] for c in board.cells}
            costs = costs / np.array([size[p] for p, _ in pairs])[:, None]
        finite = costs[np.isfinite(costs) & (costs > 0.0)]
        at = np.geomspace(float(finite.min()), float(finite.max()), 200)
        shares, label = data_profile(costs, at), _UNITS[axis]
    style = looks(board)

    def draw(panel: Any) -> None:
        for s in shown:
            colour, marker, dash = style[s]
            y = shares[names.index(s)]
            look = {"color": COLOURS[colour], "linestyle": dash, "marker": marker, "markersize": 4, "markevery": 40}
            panel.step(at, y, where="post", label=s, **look)
        log_axis(panel.xaxis, at)
        panel.set_ylim(-0.03, 1.05)
        panel.set_xlabel(label)
        panel.set_ylabel("share solved")

    best = max(shown, key=lambda s: shares[names.index(s)][-1])
    end = shares[names.index(best)][-1]
    text = f"{kind} profile by {axis}: {best} solves the largest share in the end, {end:.0%}."
    return as_svg(draw, f"{kind}-{axis}", text, (4.4, 3.3), 2)


def _most_ratio(costs: np.ndarray) -> float:
    known = costs[np.isfinite(costs).any(axis=1)]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = known / np.nanmin(known, axis=1, keepdims=True)
    ratio = ratio[np.isfinite(ratio)]
    return max(2.0, float(ratio.max()) if ratio.size else 2.0)


def sensitivity_figure(board: Board) -> str:
    """Draw what a step size does: the gap after the first trial over that at the start, over multiples of theory's.

    Medians over problems and seeds; what diverged counts as 10, so that a line shows where it is the rule.
    """
    lines = {s: line for s in board.solvers if (line := _sensitivity(board, s)) is not None}
    order = [s for s in drawn_solvers(board, "rounds") if s in lines]
    if not order:
        return ""
    style = looks(board)

    def draw(panel: Any) -> None:
        for s in order:
            colour, marker, dash = style[s]
            look = {"color": COLOURS[colour], "linestyle": dash, "marker": marker, "markersize": 4}
            panel.plot(*lines[s], label=s, **look)
        log_axis(panel.xaxis, np.array(FACTORS))
        log_axis(panel.yaxis, np.concatenate([lines[s][1] for s in order]))
        panel.set_xlabel("step size over that of theory")
        panel.set_ylabel(f"gap after {board.rules.trial} rounds, over the first")

    ends = ", ".join(f"{s} at {lines[s][0][np.argmin(lines[s][1])]:g}" for s in order)
    return as_svg(draw, "sensitivity", f"Gaps over multiples of theory's step size; least: {ends}.", (4.4, 3.3), 2)


def _sensitivity(board: Board, solver: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the multiples, and the median ratio of gaps at each."""
    ratios = []
    for c in board.cells:
        start = c.found["curve"].get("gap", [None])[0]
        if c.solver == solver and c.found.get("tuning") and start:
            first = {f: gap for f, n, gap in c.found["tuning"]["trials"] if n == board.rules.trial}
            ratios.append([_WORST if first.get(f) is None else first[f] / start for f in FACTORS])
    if not ratios:
        return None
    return np.array(FACTORS), np.median(np.clip(ratios, 1e-16, _WORST), axis=0)


def curve_figure(board: Board, problem: str, axis: str, prefix: str) -> str:
    """Draw certified gaps of one problem over rounds, floats, passes or seconds, with bands over seeds."""
    shown = [s for s in drawn_solvers(board) if any(c.found["curve"] for c in board.of(problem, s))]
    lines = {s: line for s in shown if (line := _line(board.of(problem, s), axis)) is not None}
    if not lines:
        return ""
    style = looks(board)

    def draw(panel: Any) -> None:
        for s, (x, low, middle, high) in lines.items():
            colour, marker, dash = style[s]
            look = {"color": COLOURS[colour], "linestyle": dash, "marker": marker, "markersize": 3.5}
            panel.plot(x, middle, label=s, markevery=max(1, len(x) // 8), **look)
            if np.nanmax(np.abs(high - low), initial=0.0) > 0.0:
                panel.fill_between(x, low, high, color=COLOURS[colour], alpha=0.2, linewidth=0)
        log_axis(panel.xaxis, np.concatenate([line[0] for line in lines.values()]))
        log_axis(panel.yaxis, np.concatenate([line[2] for line in lines.values()]))
        panel.set_xlabel(axis)
        panel.set_ylabel(board.conditions.measured)

    ends = ", ".join(f"{s} {line[2][-1]:.2g}" for s, line in lines.items())
    return as_svg(draw, prefix, f"{problem}, gaps over {axis}; in the end: {ends}.", (4.4, 3.3), 2)


def _line(cells: Sequence[Cell], axis: str) -> Any:
    """Return the cost and, of the gap, first decile, median and ninth decile over seeds; None where there is none."""
    curves = []
    for c in cells:
        curve = c.found["curve"]
        if not curve:
            continue
        raw = c.timed["curve"] if axis == "seconds" else curve[axis]
        x, gap = (np.array([np.nan if v is None else v for v in a], dtype=float) for a in (raw, curve["gap"]))
        good = (x > 0.0) & np.isfinite(gap)
        if good.sum() > 1:
            order = np.argsort(x[good], kind="stable")
            curves.append((x[good][order], np.maximum(gap[good][order], 1e-17)))
    if not curves:
        return None
    at = curves[0][0]
    logs = np.stack([np.interp(np.log(at), np.log(x), np.log(g)) for x, g in curves])
    low, middle, high = np.exp(np.quantile(logs, [0.1, 0.5, 0.9], axis=0))
    return at, low, middle, high
