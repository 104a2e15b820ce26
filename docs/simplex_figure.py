"""Draw the picture of docs/simplex.md: ``python docs/simplex_figure.py`` (seconds)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedconvex.papers.style import COLOURS, blank, legend
from fedconvex.report.plots import save_figure
from fedconvex.simplex import project_divergence_ball, project_simplex

FIGURES = Path(__file__).resolve().parent / "figures"
PLANE = np.array([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0]]) / np.sqrt([[2.0], [6.0]])  # its rows span sum x = 0
CENTRE, RADIUS = np.array([0.5, 0.3, 0.2]), 0.1


def draw() -> None:
    """Draw where points of the plane sum x = 1 go: onto the simplex, and onto a ball of KL divergence in it."""
    rng = np.random.default_rng(0)
    points = 1.0 / 3.0 + rng.uniform(-1.1, 1.1, (40, 2)) @ PLANE
    ball = lambda v: project_divergence_ball(v, CENTRE, RADIUS)  # noqa: E731
    angles = np.linspace(0.0, 2.0 * np.pi, 400)
    far = CENTRE + 3.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1) @ PLANE
    figure, axes = blank(2, width=4.0, height=3.7)
    titles = ("Onto the simplex, three domains", "Onto a KL ball around q in the simplex")
    for axis, project, title in zip(axes, (project_simplex, ball), titles, strict=True):
        corners = np.eye(3)[[0, 1, 2, 0]] @ PLANE.T
        axis.plot(*corners.T, color="0.2", linewidth=1.0)
        start, end = points @ PLANE.T, project(points) @ PLANE.T
        moved = np.linalg.norm(start - end, axis=1) > 1e-12
        for a, b in zip(start[moved], end[moved], strict=True):
            axis.plot(*np.stack([a, b]).T, color="0.7", linewidth=0.8)
        axis.plot(*start.T, "o", color="0.55", markersize=3, label="point")
        axis.plot(*end.T, "o", color=COLOURS[0], markersize=4, label="its projection")
        if project is ball:
            axis.plot(*(ball(far) @ PLANE.T).T, color=COLOURS[1], linewidth=1.2, label=f"KL(x‖q) = {RADIUS:g}")
            axis.plot(*(PLANE @ CENTRE), "s", color=COLOURS[1], markersize=5, label="q")
        for j, (x, y) in enumerate(corners[:3]):
            axis.annotate(f"all weight on {j + 1}", (x, y), xytext=(0, 6 if j == 2 else -12),
                          textcoords="offset points", ha="center", fontsize=7.5)  # fmt: skip
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_aspect("equal")
        axis.set_axis_off()
    legend(figure, axes[1], columns=4)
    save_figure(figure, FIGURES / "simplex.svg", outlines=False)


if __name__ == "__main__":
    draw()
