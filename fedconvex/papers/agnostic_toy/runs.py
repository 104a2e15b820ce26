"""Methods on both settings, the rate theorem beside AFL in a ball, and FedJAX's recipe on the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import Result, iterate
from fedconvex.driver import run as run_method
from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg, OptimisticAFL
from fedconvex.papers.agnostic_toy.problem import CENTRES, MinimaxPoint, clouds, enclosing, location_problem
from fedconvex.papers.findings import Progress
from fedconvex.papers.intervals import standard_error
from fedconvex.problems import Problem
from fedconvex.solvers.minimax.agnostic import Minimax
from fedconvex.theorems.agnostic_rate import agnostic_rate
from fedconvex.theory.bound import Bound
from fedconvex.theory.saddle_constants import agnostic_steps

STEP, NOISY_STEP, BATCH, STEPS = 0.1, 0.02, 10, 5  # step sizes, rows of a mini-batch, local steps
RADIUS = 4.0  # of the ball of the theorem
DRAWN = ("AFL", "OptimisticAFL")  # whose paths are drawn


class ToyScale(NamedTuple):
    """How large the experiment is."""

    rounds: int
    runs: int  # trajectories with mini-batches
    close: float  # "reaches the minimax value": to this share of it


FULL, QUICK = ToyScale(2000, 20, 0.01), ToyScale(250, 4, 0.05)


class ToySetting(NamedTuple):
    """One setting with what was found."""

    name: str
    points: list[np.ndarray]  # (n_i, 2) each
    variances: np.ndarray  # (p,)
    problem: Problem
    minimax: Minimax
    exact: MinimaxPoint
    circle: MinimaxPoint  # centre of the smallest circle around the means; value: its squared radius
    results: dict[str, Result]
    pooled: np.ndarray  # (2,) minimiser of the pooled objective
    fedavg: dict[str, np.ndarray]  # round, value: worst domain along FedAvg's run
    paths: dict[str, np.ndarray]  # (T, 2) each


def methods() -> dict[str, Any]:
    """Return the methods by name."""
    return {
        "AFL": AFL(step_size=STEP, domain_step_size=STEP),
        "AFL, mini-batches": AFL(step_size=STEP, domain_step_size=NOISY_STEP, batch_size=BATCH, replacement=True),
        "OptimisticAFL": OptimisticAFL(step_size=STEP, domain_step_size=STEP),
        "AgnosticFedAvg": AgnosticFedAvg(step_size=STEP, domain_step_size=STEP, local_steps=STEPS),
    }  # 4


def solve_setting(name: str, variances: Sequence[float], scale: ToyScale, seed: int, tell: Progress) -> ToySetting:
    """Return one setting with its exact solutions and all runs."""
    points, v = clouds(variances, seed), np.array(variances)
    problem = location_problem(points)
    results: dict[str, Result] = {}
    paths: dict[str, np.ndarray] = {}
    for number, (method_name, method) in enumerate(methods().items()):
        tell(number / 5, method_name)
        runs = scale.runs if getattr(method, "batch_size", None) else 1
        options: dict[str, Any] = {"rounds": scale.rounds, "tol": 0.0, "seed": seed}
        results[method_name] = run_method(method, problem, trajectories=runs, progress=False, **options)
        if method_name in DRAWN:
            paths[method_name] = _path(method, problem, scale, seed)
    tell(0.8, "FedAvg")
    method = FedAvg(step_size=STEP, local_steps=STEPS)
    paths["FedAvg"] = _path(method, problem, scale, seed)
    fedavg = {"round": np.arange(scale.rounds + 1), "value": problem.domain_values(paths["FedAvg"]).max(axis=1)}
    exact, circle = enclosing(CENTRES, v), enclosing(CENTRES)
    pooled = np.vstack(points).mean(axis=0)
    return ToySetting(name, points, v, problem, problem.solve_minimax(), exact, circle, results, pooled, fedavg, paths)


def _path(method: Any, problem: Problem, scale: ToyScale, seed: int) -> np.ndarray:
    """Return the models (rounds + 1, 2) of one trajectory."""
    return np.array([state.w[0] for _, state in iterate(method, problem, rounds=scale.rounds, seed=seed)])


class RateCheck(NamedTuple):
    """The rate theorem beside a run with its step sizes."""

    setting: str
    rounds: int  # T
    mean: float  # of the suboptimality h(wA) - min h over trajectories
    error: float  # its standard error
    bound: Bound


def check_rate(setting: ToySetting, rounds: int, runs: int, seed: int) -> RateCheck:
    """Run AFL in the ball ‖h‖ <= RADIUS with the steps of the theorem, from constants that hold on the ball."""  # 5
    v, far = setting.variances, RADIUS + np.linalg.norm(CENTRES, axis=1)  # far >= ‖h - c_i‖
    # grad F_i = 2(h - c_i). A row's gradient is 4(h_j - z_j)e_j: of variance 8(‖h - c_i‖^2 + v_i) - 4‖h - c_i‖^2
    G_w = 2.0 * float(far.max())
    sigma2_w = float((4.0 * far**2 + 8.0 * v).max()) / BATCH
    # F_i(h) - mean of F: affine in h, as all have the same square; constants common to all F_i move no step
    a, B = (CENTRES**2).sum(axis=1) + v, -2.0 * CENTRES
    a, B = a - a.mean(), B - B.mean(axis=0)
    G_lambda = float(np.linalg.norm(a) + RADIUS * np.linalg.norm(B, 2))
    # a row's loss is 2(h_j - z_j)^2, of variance at most its mean square; domains are drawn independently
    sigma2_lambda = sum(float(np.mean(4.0 * (RADIUS + np.abs(z)) ** 4)) for z in setting.points) / BATCH
    constants: dict[str, Any] = {"rounds": rounds, "R_W": RADIUS, "R_lambda": 1.0, "G_w": G_w, "G_lambda": G_lambda}
    constants |= {"sigma2_w": sigma2_w, "sigma2_lambda": sigma2_lambda}
    steps = agnostic_steps(**constants)._asdict()
    method = AFL(**steps, batch_size=BATCH, replacement=True, radius=RADIUS)
    last: Any = None
    for _, state in iterate(method, setting.problem, rounds=rounds, seed=seed, trajectories=runs):
        last = state.w
    excess = setting.problem.domain_values(last).max(axis=1) - setting.exact.value
    error = standard_error(excess)
    return RateCheck(setting.name, rounds, float(excess.mean()), error, agnostic_rate(**constants))


class LineSolution(NamedTuple):
    """FedJAX's recipe: five domains on the line."""

    means: np.ndarray  # (p,)
    variances: np.ndarray  # (p,)
    h: float  # agnostic solution, of the package
    middle: float  # (min + max)/2 of the means


def on_the_line(seed: int) -> LineSolution:
    """Draw 500 points, uniform on [i^2, i^2 + 10] for domain i = 0, ..., 4."""  # 6
    rng = np.random.default_rng(seed)
    domain, points = rng.integers(0, 5, 500), 10.0 * rng.random(500)
    drawn = [(points[domain == i] + i * i)[:, None] for i in range(5)]
    means, variances = np.array([z.mean() for z in drawn]), np.array([z.var() for z in drawn])
    h = float(location_problem(drawn).solve_minimax().w[0])
    return LineSolution(means, variances, h, 0.5 * float(means.min() + means.max()))
