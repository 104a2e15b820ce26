"""Dynamic FedAvg tracks logistic targets: the error over time for several drift rates and steps, beside its bounds.

After Rizk, Vlaski, Sayed (SPAWC 2020), whose experiment has squared loss.

Scores that move: F(w - s_i), so that the minimiser moves exactly by q_i.
1. K agents with fixed rows and labels; logistic loss with l2; s_i a walk of steps of one length.
2. L agents a round, all rows, E_k local steps; the error ‖w_i - w_i^o‖^2, mean of independent runs.
3. Beside it the bound (version R) with constants of all models, where nu = l2, and with those of a ball that no run
   leaves; the limit to first order in the step.

Chances that move: the labels of the same rows are drawn anew every iteration.
4. P(y = 1) = sigma(x'(theta_k + s_i)); one step an iteration on a batch of these labels.
5. The minimiser w_i^o of the expected risk by Newton's method in every iteration: it is not theta + s_i, and does not
   move by q_i.
6. The error of independent walks, beside the bound along each path of minimisers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit

from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Logistic
from fedconvex.methods import DynamicFedAvg
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.intervals import Interval, every, standard_error
from fedconvex.papers.style import COLOURS, DASHED, DOTTED, band, blank, legend, panel
from fedconvex.problems import MovingTarget, Problem
from fedconvex.theorems.dynamic_ball import followed, reach
from fedconvex.theorems.dynamic_msd import msd_refined, small_step
from fedconvex.theorems.parts.tracking import sampling, tracking_constants

K, L, DIM, ROWS, L2, SPREAD2 = 10, 5, 4, 40, 0.1, 0.05
BATCH = 10  # rows of a step on fresh labels
SMALL = 0.1  # errors for which the limit to first order is judged
FAMILY = 0.01  # probability that any of a family of comparisons fails by chance
DRIFTS = (1e-6, 1e-4, 1e-2)


class Scale(NamedTuple):
    """How large the experiment is."""

    runs: int  # independent runs for every drift and step, scores that move
    rounds: int
    steps: tuple[float, ...]
    walks: int  # independent walks, chances that move
    steps_of_walks: tuple[float, ...]
    rounds_of_walks: int
    repeats: int  # runs on every walk


FULL = Scale(1000, 1500, (0.01, 0.03, 0.1, 0.25), 40, (0.1, 0.3, 1.0), 400, 4)
QUICK = Scale(200, 300, (0.03, 0.1, 0.25), 12, (0.3, 1.0), 100, 2)


class Crowd(NamedTuple):
    """The agents: rows, models of their own, and the problem with labels drawn once."""

    problem: Problem
    models: np.ndarray  # (K, d) theta_k
    local_steps: np.ndarray  # (K,)

    @property
    def X(self) -> np.ndarray:
        """Rows of all agents, (K, N, d)."""
        return np.asarray(self.problem.federation.X).reshape(K, ROWS, DIM)


class Point(NamedTuple):
    """A measured squared error beside what theory says of it."""

    drift2: float
    step_size: float
    iteration: int
    measured: float
    standard_error: float
    ball: float  # bound with constants of the ball; of chances that move: along the path
    everywhere: float  # bound with constants of all models; NaN for chances that move


class Level(NamedTuple):
    """Late means for one drift and step."""

    drift2: float
    step_size: float
    measured: float
    standard_error: float
    first_order: float
    farthest: float  # largest error of all runs and iterations, not squared
    radius: float  # of the ball; NaN for chances that move
    left: float  # what is left of the first error, squared, at half time, to first order


class Path(NamedTuple):
    """How the minimiser moved on all walks of one drift, per unit of the walk."""

    drift2: float
    largest: float  # max ‖w_i^o - w_{i-1}^o‖/‖q_i‖
    mean2: float  # mean of its square
    lipschitz: float  # what theory says
    apart: float  # mean ‖w_i^o - theta - s_i‖, theta the mean of the agents' models


def crowd(seed: int = 0) -> Crowd:
    """Draw rows x ~ N(0, I), theta_k ~ theta + N(0, 0.05 I), theta ~ N(0, I), labels by the logistic chances.

    Examples
    --------
    >>> from fedconvex.papers.dynamic_logistic import crowd
    >>> crowd().problem.federation
    Federation(10 clients, 400 rows, 4 features, dense)
    """
    rng = np.random.default_rng(seed)
    models = rng.standard_normal(DIM) + math.sqrt(SPREAD2) * rng.standard_normal((K, DIM))
    X = rng.standard_normal((K, ROWS, DIM))
    return Crowd(_problem(X, _labels(rng, _chances(X, models))), models, 1 + np.arange(K) % 3)


def _chances(X: np.ndarray, models: np.ndarray) -> np.ndarray:
    """P(y = 1) of every row, (K, N)."""
    return np.asarray(expit(np.einsum("knd,kd->kn", X, models)))


def _labels(rng: np.random.Generator, chances: np.ndarray) -> np.ndarray:
    return np.where(rng.random(chances.shape) < chances, 1.0, -1.0)


def _problem(X: np.ndarray, y: np.ndarray) -> Problem:
    fed = Federation(X.reshape(-1, DIM), y.ravel(), np.arange(0, y.size + 1, ROWS))
    return Problem(fed, Logistic(), L2, "uniform")


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Measure both kinds of movement for every drift and step, and put the bounds beside them."""
    scale, agents = QUICK if quick else FULL, crowd(seed)
    rigid: list[tuple[list[Point], Level]] = []
    pairs = [(drift2, mu) for drift2 in DRIFTS for mu in scale.steps]
    for i, (drift2, mu) in enumerate(pairs):
        tell(0.5 * i / len(pairs), f"scores that move, drift {drift2:g}, step size {mu:g}")
        make = partial(_scores, agents, scale, drift2, mu, seed)
        rigid.append(finished_part(f"scores {drift2:g} {mu:g}", make, (Point, Level)))
    fresh: list[tuple[list[Point], list[Level], Path]] = []
    for i, drift2 in enumerate(DRIFTS):
        tell(0.5 + 0.5 * i / len(DRIFTS), f"chances that move, drift {drift2:g}")
        also = partial(_drawn_anew, agents, scale, drift2, seed)
        fresh.append(finished_part(f"chances {drift2:g}", also, (Point, Level, Path)))
    points, levels = [p for found, _ in rigid for p in found], [level for _, level in rigid]
    followed_points, followed_levels = [p for f in fresh for p in f[0]], [level for f in fresh for level in f[1]]
    paths = [f[2] for f in fresh]
    figures = {
        "scores": _draw(points, levels, "scores that move"),
        "chances": _draw(followed_points, followed_levels, "chances that move"),
    }
    tables = {
        "scores": [p._asdict() for p in points],
        "scores_late": [level._asdict() for level in levels],
        "chances": [p._asdict() for p in followed_points],
        "chances_late": [level._asdict() for level in followed_levels],
        "paths": [path._asdict() for path in paths],
    }
    claims = tuple(_claims(scale, points, levels, followed_points, followed_levels, paths))
    return Findings("Dynamic FedAvg tracks logistic targets", claims, _notes(scale), figures, tables)


EXPERIMENT = Experiment(
    "dynamic-logistic",
    "tracking error of Dynamic FedAvg for logistic targets that drift, beside bounds everywhere and on a ball",
    study,
    smaller="fewer runs, walks, iterations and step sizes",
)


def _when(rounds: int) -> list[int]:
    """Return the iterations that are recorded."""
    return sorted({*np.unique(np.geomspace(1, rounds, 25).astype(int)).tolist(), rounds})


# ---------------------------------------------------------------- scores that move


def _scores(agents: Crowd, scale: Scale, drift2: float, mu: float, seed: int) -> tuple[list[Point], Level]:
    """Return the points of one drift and step, all runs from w_0 = 0, and their late mean."""
    p, T = agents.problem, scale.rounds
    moving, best = MovingTarget(p, drift2, bounded=True), np.asarray(p.solve().w)
    work: dict[str, Any] = {"step_size": mu, "local_steps": agents.local_steps, "participation": L}
    start = float(np.linalg.norm(best))
    radius = reach(p, longest=moving.longest, rounds=T, start=start, **work)
    constants = [tracking_constants(p, r) for r in (radius, None)]
    points, late, farthest = [], np.zeros(scale.runs), 0.0
    for i, state in iterate(DynamicFedAvg(**work), moving, rounds=T, seed=seed, trajectories=scale.runs):  # 2
        error2 = np.sum((state.w - best) ** 2, axis=1)
        farthest = max(farthest, math.sqrt(error2.max()))
        late += error2 / (T - T // 2) * (i > T // 2)
        if i in _when(T):
            at: dict[str, Any] = {"drift2": drift2, "rounds": i, "start2": start**2}
            bounds = (msd_refined(c, **work, **at).value for c in constants)
            points.append(Point(drift2, mu, i, float(error2.mean()), standard_error(error2), *bounds))  # 3
    first = small_step(constants[1], drift_covariance=moving.covariance, **work).value
    left = start**2 * math.exp(-mu * T * float(np.linalg.eigvalsh(p.hessian(best))[0]))
    return points, Level(drift2, mu, float(late.mean()), standard_error(late), first, farthest, radius, left)


# ---------------------------------------------------------------- chances that move


class _Target(NamedTuple):
    """The minimiser of the expected risk, and what the noise of a step there is made of."""

    w: np.ndarray  # (d,)
    noise: float  # S: batches and absent agents
    labels: float  # U
    hessian: np.ndarray  # (d, d)
    covariance: np.ndarray  # (d, d) of the averaged gradient
    moved: np.ndarray  # (d, d) dw^o/ds


def _target(X: np.ndarray, chances: np.ndarray, w: np.ndarray) -> _Target:
    """Solve mean x (sigma(x'w) - chance) + l2 w = 0 by Newton's method from w; steps are halved where F' grows."""
    rows, pi = X.reshape(-1, DIM), chances.ravel()

    def slope(v: np.ndarray) -> np.ndarray:
        return np.asarray(rows.T @ (expit(rows @ v) - pi) / pi.size + L2 * v)

    g = slope(w)
    for _ in range(50):
        s = expit(rows @ w)
        H = (rows.T * (s * (1.0 - s))) @ rows / pi.size + L2 * np.eye(DIM)
        if np.abs(g).max() <= 1e-13:
            break
        step, share = np.linalg.solve(H, g), 1.0
        while share > 1e-3 and np.linalg.norm(slope(w - share * step)) > np.linalg.norm(g):
            share *= 0.5
        w = w - share * step
        g = slope(w)
    G = (expit(X @ w) - chances)[:, :, None] * X  # gradients of the rows' expected losses, but for l2 w
    means = G.mean(axis=1)
    spread, off = G - means[:, None], means + L2 * w
    agents = sampling(np.full(K, ROWS), participation=L, batch_size=BATCH)
    own = np.einsum("kni,knj->ij", spread, spread) / (K * ROWS) * float(agents.tau_s[0])
    drawn = np.einsum("knd,kn,kne->de", X, chances * (1.0 - chances), X) / (K * ROWS * BATCH)
    absent = agents.tau_eps * off.T @ off / K
    moved = np.linalg.solve(H, (rows.T * (pi * (1.0 - pi))) @ rows / pi.size)
    covariance = (own + absent + drawn) / L
    return _Target(w, float(np.trace(own + absent)) / L, float(np.trace(drawn)) / L, H, covariance, moved)  # 5


def _drawn_anew(agents: Crowd, scale: Scale, drift2: float, seed: int) -> tuple[list[Point], list[Level], Path]:
    """Return points and late means of every step size, over all walks of one drift, and how the minimiser moved."""
    T, steps, times = scale.rounds_of_walks, scale.steps_of_walks, _when(scale.rounds_of_walks)
    errors, bounds, firsts, moves, apart = [], [], [], [], []
    constants = tracking_constants(agents.problem)  # convexity and smoothness: labels do not matter
    for walk in range(scale.walks):
        rng = np.random.default_rng([seed, walk, DRIFTS.index(drift2)])
        targets, error2, s = _followed(agents, scale, drift2, rng)
        errors.append(error2)
        length = np.array([float(np.linalg.norm(b.w - a.w)) for a, b in itertools.pairwise(targets)])
        moves.append(length / np.linalg.norm(np.diff(s, axis=0), axis=1))
        noise, labels = (np.array([getattr(t, name) for t in targets[:-1]]) for name in ("noise", "labels"))
        given: dict[str, Any] = {"labels": labels, "start2": float(targets[0].w @ targets[0].w)}
        given |= {"participation": L, "batch_size": BATCH}
        bounds.append([followed(constants, length, noise, step_size=mu, **given) for mu in steps])
        firsts.append([_first_order(targets[T // 2 :: 20], mu, drift2) for mu in steps])
        apart.append(np.linalg.norm([t.w for t in targets] - s - agents.models.mean(axis=0), axis=1).mean())
    seen, bound = np.array(errors), np.array(bounds)  # (walks, T + 1, steps, repeats), (walks, steps, T + 1)
    points, levels = [], []
    for j, mu in enumerate(steps):
        mine = seen[:, :, j].mean(axis=2)
        late, first = mine[:, T // 2 + 1 :].mean(axis=1), float(np.mean(firsts, axis=0)[j])
        for i in times:
            numbers = float(mine[:, i].mean()), standard_error(mine[:, i]), float(bound[:, j, i].mean())
            points.append(Point(drift2, mu, i, *numbers, math.nan))  # 6
        most, least = math.sqrt(float(seen[:, :, j].max())), float(np.linalg.eigvalsh(targets[0].hessian)[0])
        left = float(seen[0, 0, j, 0]) * math.exp(-mu * T * least)
        levels.append(Level(drift2, mu, float(late.mean()), standard_error(late), first, most, math.nan, left))
    ratio = np.concatenate(moves)
    top = float(np.linalg.eigvalsh(np.einsum("knd,kne->de", agents.X, agents.X) / (K * ROWS))[-1])
    found = float(ratio.max()), float(np.mean(ratio**2)), top / (4.0 * L2), float(np.mean(apart))
    return points, levels, Path(drift2, *found)


def _first_order(targets: Sequence[_Target], mu: float, drift2: float) -> float:
    """(mu/2) tr(H^-1 R_s) + tr(H^-1 R_q)/(2 mu), the mean of a path, R_q the covariance of J q."""
    out = []
    for t in targets:
        R_q = drift2 / DIM * t.moved @ t.moved.T
        out.append(0.5 * float(np.trace(np.linalg.solve(t.hessian, mu * t.covariance + R_q / mu))))
    return float(np.mean(out))


def _followed(
    agents: Crowd, scale: Scale, drift2: float, rng: np.random.Generator
) -> tuple[list[_Target], np.ndarray, np.ndarray]:
    """Return the minimisers of a walk (T + 1), the errors (T + 1, steps, repeats) and the walk (T + 1, d)."""
    T, steps = scale.rounds_of_walks, np.array(scale.steps_of_walks)
    method = DynamicFedAvg(step_size=np.repeat(steps, scale.repeats), batch_size=BATCH, participation=L)
    q = math.sqrt(drift2 / DIM) * rng.standard_normal((T, DIM))
    s, X = np.vstack([np.zeros(DIM), np.cumsum(q, axis=0)]), agents.X
    chances = _chances(X, agents.models)
    targets, w = [_target(X, chances, np.zeros(DIM))], np.zeros((steps.size * scale.repeats, DIM))
    errors = [np.sum((w - targets[0].w) ** 2, axis=1)]
    for i in range(T):
        drawn = _problem(X, _labels(rng, chances))  # 4
        *_, (_, state) = iterate(method, drawn, rounds=1, seed=rng, trajectories=len(w), start=w)
        w, chances = state.w, _chances(X, agents.models + s[i + 1])
        targets.append(_target(X, chances, targets[-1].w))
        errors.append(np.sum((w - targets[-1].w) ** 2, axis=1))
    return targets, np.array(errors).reshape(T + 1, steps.size, scale.repeats), s


# ---------------------------------------------------------------- claims


def _claims(
    scale: Scale, points: Sequence[Point], levels: Sequence[Level],
    along: Sequence[Point], late: Sequence[Level], paths: Sequence[Path],
) -> Iterator[Claim]:  # fmt: skip
    yield _above("Scores that move: no recorded mean lies above a bound", points, scale.runs)
    ratios = [level.radius / level.farthest for level in levels]
    text = f"{len(ratios)} settings, {scale.runs} runs of {scale.rounds} iterations: radius over the largest error "
    inside = text + f"{min(ratios):.3g} to {max(ratios):.3g}"
    yield Claim("No run leaves its ball", min(ratios) >= 1.0, inside, everywhere=True)
    ratios = [p.everywhere / p.ball for p in points]
    text = f"bound with constants of all models over that of the ball {min(ratios):.3g} to {max(ratios):.3g}"
    holds = min(ratios) >= 1.0 - 1e-9 and max(ratios) > 1.0
    yield Claim("Constants of the ball never make the bound worse", holds, text, everywhere=True)
    yield _first_order_claim("Scores that move", levels, 0.25)
    yield _best_steps(levels)
    yield _above("Chances that move: no recorded mean lies above the bound along the path", along, scale.walks)
    most = [path.largest / path.lipschitz for path in paths]
    text = f"most is {max(most):.3g} of it, lambda_max(mean x x')/(4 l2) = {paths[0].lipschitz:.3g}"
    yield Claim("The minimiser never moves further than the bound per step", max(most) <= 1.0, text, everywhere=True)
    text = ", ".join(f"{p.mean2:.3f} at drift {p.drift2:g} (off by {p.apart:.2f} on average)" for p in paths)
    text = f"mean of (its move over the walk's)^2: {text}"
    less = all(p.mean2 < 1.0 and p.apart > 0.0 for p in paths)
    yield Claim("The minimiser of chances that move is not where the walk is, and moves less far", less, text)
    yield _first_order_claim("Chances that move", late, 0.3)


def _above(text: str, points: Sequence[Point], runs: int) -> Claim:
    """Judge all points together: Student's t with Bonferroni's correction."""
    limit = float(stats.t.isf(FAMILY / len(points), runs - 1))
    bounds = np.array([p.ball if math.isnan(p.everywhere) else min(p.ball, p.everywhere) for p in points])
    found = [Interval(p.measured, limit * p.standard_error) for p in points]
    ratios = bounds / np.array([p.measured for p in points])
    numbers = f"{len(points)} points, the smaller bound over the measured mean {ratios.min():.3g} to {ratios.max():.3g}"
    holds = every(v.below(b * (1.0 + 1e-9)) for v, b in zip(found, bounds.tolist(), strict=True))
    return Claim(text, holds, numbers, everywhere=True)


def _first_order_claim(what: str, levels: Sequence[Level], top: float) -> Claim:
    """Judge late means at steps where the start is forgotten and errors are small: losses bend less far away."""
    fair = [v for v in levels if v.step_size <= top and v.left <= 0.01 * v.measured and v.first_order <= SMALL]
    ratios = {(v.drift2, v.step_size): v.measured / v.first_order for v in fair}
    text = f"{what}: late means up to {SMALL:g} are within 20 % of the limit to first order, at steps up to {top:g}"
    found = ", ".join(f"{ratio:.3f} at drift {q:g}, step {mu:g}" for (q, mu), ratio in ratios.items())
    numbers = f"measured over first order {found}" if found else "the start is not forgotten anywhere"
    off = [Interval(v.measured / v.first_order - 1.0, 4.0 * v.standard_error / v.first_order) for v in fair]
    holds = every(v.within(0.2) for v in off) if found else None
    return Claim(text, holds, numbers, needs="" if found else "more iterations")


def _best_steps(levels: Sequence[Level]) -> Claim:
    """Judge every choice of steps that may have the least error: nothing tells them apart from it by 4 errors."""
    able = []
    for drift2 in DRIFTS:
        mine = [v for v in levels if v.drift2 == drift2]
        least = min(mine, key=lambda v: v.measured)
        far = {v.step_size: 4.0 * math.hypot(v.standard_error, least.standard_error) for v in mine}
        able.append([v.step_size for v in mine if v.measured - least.measured <= far[v.step_size]])
    text = "The faster the target moves, the longer the step with the least late error"
    right = {list(best) == sorted(best) and best[0] < best[-1] for best in itertools.product(*able)}
    words = (f"{' or '.join(f'{mu:g}' for mu in some)} at drift {q:g}" for some, q in zip(able, DRIFTS, strict=True))
    return Claim(text, None if len(right) > 1 else right.pop(), ", ".join(words))


def _notes(scale: Scale) -> tuple[str, ...]:
    return (
        "Of the paper: the method, agents of which some take part, a minimiser that performs a random walk, and bounds "
        "with noise, model variability and tracking. Its experiment has squared loss (`dynamic-msd`); all that is "
        "logistic is chosen here.",
        f"K = {K} agents, L = {L} a round, {ROWS} rows x ~ N(0, I) in {DIM} dimensions each, l2 = {L2:g}, models of "
        f"their own theta_k ~ theta + N(0, {SPREAD2:g} I), theta ~ N(0, I). Drift: E‖q_i‖^2.",
        f"Scores that move: all rows, 1 to 3 local steps, labels drawn once, steps q_i of one length, w_0 = 0, "
        f"{scale.runs} runs. The minimiser moves exactly by q_i: scores are x'(w - s_i), and l2 is centred at s_i.",
        f"Chances that move: labels drawn anew every iteration, batches of {BATCH} of them, one step, normal q_i, "
        f"w_0 = 0, {scale.walks} walks with {scale.repeats} runs each. The bound holds along each path of exactly "
        "computed minimisers; means over the walks are compared. It supposes that every move leads away from the model "
        "and nu = l2: at the fastest drift it is far above what happens.",
        "Late: means over the second half. First order: (mu/2) tr(H^-1 R_s) + tr(H^-1 R_q)/(2 mu) at the minimiser; "
        "for chances that move with R_q of the minimiser's own moves, averaged along the path.",
    )


# ---------------------------------------------------------------- figures


def _draw(points: Sequence[Point], levels: Sequence[Level], what: str) -> Any:
    """Draw a panel for every drift: means with bands over the iterations, and bounds."""
    figure, axes = blank(len(DRIFTS), sharey=True)
    steps = list(dict.fromkeys(p.step_size for p in points))
    for axis, drift2 in zip(axes, DRIFTS, strict=True):
        for colour, mu in zip(COLOURS, steps, strict=False):
            mine = [p for p in points if p.drift2 == drift2 and p.step_size == mu]
            i = np.array([p.iteration for p in mine])
            mean, error = (np.array([getattr(p, name) for p in mine]) for name in ("measured", "standard_error"))
            band(axis, i, np.maximum(mean - 2.0 * error, mean / 10.0), mean + 2.0 * error, colour, 0.4)
            axis.plot(i, mean, color=colour, linewidth=1.4)
            axis.plot(i, [p.ball for p in mine], color=colour, linewidth=1.1, linestyle=DASHED)
            axis.plot(i, [p.everywhere for p in mine], color=colour, linewidth=1.1, linestyle=DOTTED)
            level = next(v for v in levels if v.drift2 == drift2 and v.step_size == mu)
            axis.plot(1.2 * i[-1], level.first_order, "o", markersize=5, markerfacecolor="none", color=colour)
        digits, power = f"{drift2:.0e}".split("e")
        assert digits == "1"
        panel(axis, f"drift E‖q‖² = $10^{{{int(power)}}}$", "iteration i", log="xy")
    axes[0].set_ylabel(r"$\mathrm{E}\,\|w_i^o - w_i\|^2$, " + what)
    rigid = not math.isnan(points[0].everywhere)
    looks: dict[str, dict[str, Any]] = {f"μ = {mu:g}": {"color": c} for c, mu in zip(COLOURS, steps, strict=False)}
    looks["bound on the ball" if rigid else "bound along the path"] = {"color": "0.3", "linestyle": DASHED}
    if rigid:
        looks["bound, all models"] = {"color": "0.3", "linestyle": DOTTED}
    looks["limit to first order"] = {"color": "0.3", "marker": "o", "markerfacecolor": "none", "linestyle": "none"}
    legend(figure, looks=looks, columns=len(looks))
    return figure
