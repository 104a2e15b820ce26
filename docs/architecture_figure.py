"""Draw the figure of docs/architecture.md: ``python docs/architecture_figure.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedconvex.report.plots import COLOURS, save_figure

FIGURE = Path(__file__).resolve().parent / "figures" / "architecture.svg"
FLOORS = (  # from the lowest
    ("checks, files, lazy loading", "_check, _files, _archives, _lazy"),
    ("losses, data", "losses, penalties, simplex, tables, federation, draws"),
    ("kernels", "the only room that imports Numba"),
    ("exact solutions, constants", "solvers, constants"),
    ("problems", "what is minimised, and its certificate"),
    ("methods | engines of theory", "methods, theory"),
    ("driver", "rounds, results, checkpoints"),
    ("data sets, theorems, verdicts", "datasets, theorems, verify"),
    ("families", "boosting, multitask, survival"),
    ("figures, many runs", "report, sweeps"),
    ("applications", "remote, estimators, comparison, bench, conformance, papers"),
    ("command line", "cli"),
)
PATHS: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = (
    (
        "solve",
        (
            (11, "options"),
            (1, "columns, clients"),
            (4, "F, l2"),
            (6, "rounds"),
            (5, "local steps"),
            (2, "jobs"),
            (3, "lower bound"),
            (4, "gap"),
            (11, "summary"),
        ),
    ),
    (
        "a theorem",
        (
            (7, "bound, instances"),
            (4, "instance"),
            (3, "constants"),
            (5, "exact moments"),
            (6, "or runs"),
            (7, "verdict, power"),
            (9, "page"),
            (11, "exit status"),
        ),
    ),
    (
        "a site's message",
        (
            (6, "server: round t"),
            (5, "broadcast"),
            (10, "request"),
            (10, "check"),
            (5, "local"),
            (2, "its rows"),
            (10, "answer"),
            (5, "aggregate"),
            (6, "next round"),
        ),
    ),
)


def drawn() -> Any:
    """Return the figure: floors on the left, and three paths over them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14.0, 7.2))
    axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set(xlim=(0.0, 27.2), ylim=(-0.7, len(FLOORS) + 0.2))
    axis.axis("off")
    for y, (title, rooms) in enumerate(FLOORS):
        axis.plot([7.3, 27.0], [y, y], color="0.85", linewidth=0.8, zorder=0)
        axis.text(0.2, y + 0.12, title, fontsize=9.5, weight="bold", va="center")
        axis.text(0.2, y - 0.24, rooms, fontsize=7.5, color="0.3", va="center")
    styles = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)))
    left = 7.6
    for (title, steps), colour, line in zip(PATHS, COLOURS, styles, strict=False):
        xs = [left + 0.68 * i for i in range(len(steps))]
        ys = [y for y, _ in steps]
        axis.plot(xs, ys, color=colour, linestyle=line, linewidth=1.6, zorder=1)
        axis.plot(xs, ys, "o", color=colour, markersize=11, zorder=2)
        for i, (x, (y, words)) in enumerate(zip(xs, steps, strict=True), 1):
            axis.text(x, y, str(i), color="white", fontsize=7.5, ha="center", va="center_baseline", zorder=3)
            below = i > 1 and steps[i - 2][0] == y
            axis.text(x + 0.27, y - 0.44 if below else y + 0.26, words, fontsize=7.5, zorder=3)
        axis.text(left, len(FLOORS) - 0.25, title, color=colour, fontsize=11, weight="bold", va="center")
        left += 6.4
    return figure


if __name__ == "__main__":
    save_figure(drawn(), FIGURE, outlines=False)
