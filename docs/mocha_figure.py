"""Draw the picture of MOCHA's subproblem in docs/mocha.md: ``python docs/mocha_figure.py`` (seconds)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Ellipse

from fedconvex import Federation, Squared, run
from fedconvex.datasets import logistic_federation
from fedconvex.losses import Logistic
from fedconvex.methods import MOCHA
from fedconvex.papers.style import COLOURS, DASHED, blank, legend, panel
from fedconvex.problems import MeanRegularised, MultiTaskProblem
from fedconvex.report.plots import save_figure

FIGURES = Path(__file__).resolve().parent / "figures"
THETAS = (0.9, 0.5, 0.1)


def one_row_each(m: int, lam2: float = 0.05) -> MultiTaskProblem:
    """Return m tied tasks of one row (1, y_t) each, squared loss: D is a quadratic of m variables."""
    fed = Federation.from_arrays(np.ones((m, 1)), np.linspace(1.0, 0.4, m), np.arange(m))
    return MultiTaskProblem(fed, Squared(), MeanRegularised(1.0, lam2))


def bound(problem: MultiTaskProblem, alpha: np.ndarray, delta: np.ndarray, sigma: float) -> float:
    """Return what the nodes minimise, each its own delta_t: D(alpha + delta) with R* replaced by its bound.

    R*(V) + <W, delta> + (sigma'/2) sum Mbar_tt delta_t^2, at most R*(V + delta) where sigma' is safe.
    """
    V, w = problem.images(alpha), problem.models(alpha).ravel()
    tied = problem.relation.conjugate(V) + w @ delta + 0.5 * sigma * np.diag(problem.mbar) @ delta**2
    return float(problem.conjugates(alpha + delta).sum() + tied)


def node_steps(problem: MultiTaskProblem, alpha: np.ndarray, sigma: float) -> np.ndarray:
    """Return the minimisers delta_t of the nodes' subproblems, l*(-a) = a^2/2 - a y for squared loss."""
    y, w = problem.federation.y, problem.models(alpha).ravel()
    return np.asarray((y - alpha - w) / (1.0 + sigma * np.diag(problem.mbar)))


def levels_of(axis: Any, quadratic: Callable[[np.ndarray], float], levels: np.ndarray, **looks: Any) -> None:
    """Draw the ellipses on which a convex quadratic of two variables takes values; its differences are exact."""
    E, zero = np.eye(2), quadratic(np.zeros(2))
    H = np.array([[quadratic(a + b) - quadratic(a) - quadratic(b) + zero for b in E] for a in E])
    centre = np.linalg.solve(H, [zero - quadratic(a) + 0.5 * a @ H @ a for a in E])
    curvatures, directions = np.linalg.eigh(H)
    angle = np.degrees(np.arctan2(*directions[::-1, 0]))
    for level in levels[levels > quadratic(centre)]:
        width, height = 2.0 * np.sqrt(2.0 * (level - quadratic(centre)) / curvatures)
        axis.add_patch(Ellipse(centre, width, height, angle=angle, fill=False, linewidth=0.9, **looks))


def plane(axis: Any) -> None:
    """Draw two tasks: D and its bound at alpha, whose minimiser is the next alpha."""
    problem = one_row_each(2, 0.4)
    sigma, alpha = problem.pencil_sigma(), np.array([-0.25, 0.45])
    path = [alpha]
    for _ in range(12):
        path.append(path[-1] + node_steps(problem, path[-1], sigma))
    least = problem.dual_value(path[-1])
    levels = least + (problem.dual_value(alpha) - least) * np.array([0.02, 0.1, 0.25, 0.45, 0.7, 1.0, 1.4, 1.9])
    levels_of(axis, problem.dual_value, levels, color="0.6")
    levels_of(axis, lambda a: bound(problem, alpha, a - alpha, sigma), levels, color=COLOURS[0], linestyle="dashed")
    axis.set(xlim=(-0.5, 0.9), ylim=(-0.6, 0.75))
    axis.plot(*np.array(path).T, ".-", color="black", markersize=4, linewidth=0.8)
    axis.plot(*alpha, "o", color="black", markersize=6)
    axis.plot(*path[1], "o", color=COLOURS[0], markersize=6)
    panel(axis, f"Two tasks, one row each: σ' = {sigma:.2f}", "$α_1$", "$α_2$")


def line(axis: Any) -> None:
    """Draw six tasks along the nodes' answers: D and its bounds for a safe sigma' and for 1."""
    problem = one_row_each(6)
    alpha, s = np.zeros(6), np.linspace(0.0, 1.25, 21)
    for sigma, colour in ((problem.pencil_sigma(), COLOURS[0]), (1.0, COLOURS[1])):
        delta = node_steps(problem, alpha, sigma)
        axis.plot(s, [problem.dual_value(alpha + x * delta) for x in s], color=colour, linewidth=1.6)
        axis.plot(
            s, [bound(problem, alpha, x * delta, sigma) for x in s], color=colour, linestyle=DASHED, linewidth=1.2
        )
        axis.plot(1.0, problem.dual_value(alpha + delta), "o", color=colour, markersize=5)
        axis.annotate(f"σ' = {sigma:.2f}", (s[-1], problem.dual_value(alpha + s[-1] * delta)), (-2, 4),
                      textcoords="offset points", fontsize=8, ha="right", color=colour)  # fmt: skip
    panel(axis, "Six tasks, along the nodes' answers δ", "share of δ", "$D(α + sδ)$")


def accuracies(axis: Any) -> None:
    """Draw what theta costs in rounds: dual suboptimality of MOCHA."""
    fed = logistic_federation(n_clients=8, n_features=10, rows_per_client=40, model_shift=1.0, seed=0).federation
    problem = MultiTaskProblem(fed, Logistic(), MeanRegularised(1.0, 0.1))
    best = problem.solve(tol=1e-12).value
    for theta, colour in zip(THETAS, COLOURS, strict=False):
        method = MOCHA(theta=theta, epochs=0.1, max_epochs=2000)
        trace = run(method, problem, rounds=60, tol=0).trace
        passes = float(trace.steps[-1]) / fed.n / 60
        bent = (trace.round <= 10) | (trace.round % 10 == 0)  # straight after that
        label = f"θ = {theta:g}: {passes:.1f} passes a round"
        axis.plot(trace.round[bent], best - trace.dual[bent], color=colour, label=label)
    axis.legend(fontsize=8, frameon=False)
    panel(axis, "Nodes stop at accuracy θ: logistic loss, 8 tasks", "rounds", "$D(α) - D^*$", "y")
    axis.minorticks_off()


def draw() -> None:
    """Draw the three panels."""
    figure, axes = blank(3, width=3.9, height=3.7)
    for axis, part in zip(axes, (plane, line, accuracies), strict=True):
        part(axis)
    looks = {
        "dual objective D": {"color": "0.5", "linewidth": 1.2},
        "its bound, a sum over nodes": {"color": "0.4", "linestyle": DASHED, "linewidth": 1.2},
        "rounds of exact nodes": {"color": "black", "marker": ".", "linewidth": 0.8},
    }
    legend(figure, looks=looks, columns=3)
    save_figure(figure, FIGURES / "mocha_subproblem.svg", outlines=False)


if __name__ == "__main__":
    draw()
