"""A point for five clouds in the plane: the toy regression by which the literature shows agnostic learning.

The loss of a point h at a row z is ‖h - z‖^2; domain i has mean c_i and total variance v_i (divided by n), so that

    F_i(h) = ‖h - c_i‖^2 + v_i

and min max F_i asks for the centre of the smallest circle around the means c_i only if all v_i are equal.

1. Five clouds with fixed means and exactly equal variances; then the same with one noisy cloud.
2. As a regression: a point z is two rows, 2e_1 with target 2z_1 and 2e_2 with target 2z_2. The mean over these 2n rows
   of the package's loss (x'h - y)^2/2 is F_i. d = 2, no ridge; a client is a domain.
3. Exact solutions: of the package (`Problem.solve_minimax`), and by hand: at the solution at most three domains are
   worst, and it is the point of their means' affine hull where their values agree; all choices are tried.
4. AFL (all rows; mini-batches), OptimisticAFL, AgnosticFedAvg with five local steps; FedAvg for the pooled objective.
5. AFL with the step sizes of the rate theorem in a ball, against its bound.
6. On the line, with the recipe of FedJAX (``fedjax/datasets/toy_regression.py``): uniform points of equal width, whose
   variances are equal in the mean only. "The goal is to find a point that minimizes the maximum distance to all the
   domain centers", it says of agnostic federated averaging (Ro et al. 2021, arXiv:2104.02748).
"""

from __future__ import annotations

from fedconvex.papers.agnostic_toy.claims import judge, notes, tables
from fedconvex.papers.agnostic_toy.figures import draw_plane, draw_rounds, draw_weights
from fedconvex.papers.agnostic_toy.problem import VARIANCES
from fedconvex.papers.agnostic_toy.runs import FULL, QUICK, check_rate, on_the_line, solve_setting
from fedconvex.papers.findings import Experiment, Findings, Progress, progress_part

__all__ = ["EXPERIMENT"]


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Solve and run both settings, and check the rate theorem on them; the points are drawn from the seed."""
    scale, settings = QUICK if quick else FULL, []
    for number, (name, variances) in enumerate(VARIANCES.items()):
        at = progress_part(tell, 0.45 * number, 0.45 * (number + 1), f"{name}: ")
        settings.append(solve_setting(name, variances, scale, seed, at))
    tell(0.9, "the rate theorem")
    rates = [check_rate(s, T, scale.runs, seed) for s in settings for T in (scale.rounds // 4, scale.rounds)]
    found = tuple(judge(settings, rates, scale, on_the_line(seed)))
    figures = {"plane": draw_plane(settings), "rounds": draw_rounds(settings), "domain_weights": draw_weights(settings)}
    title = "A point for five clouds: agnostic location, the toy regression of agnostic federated averaging"
    return Findings(title, found, notes(scale), figures, tables(settings))


EXPERIMENT = Experiment(
    "afl-toy",
    "agnostic location of five clouds in the plane: AFL and others against the exact minimax point",
    study,
    smaller="fewer rounds and runs",
)
