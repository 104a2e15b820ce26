"""Mean-square deviation of Dynamic FedAvg on least squares: Rizk, Vlaski and Sayed (SPAWC 2020), beside exact theory.

1. K = 20 agents with their own models: w_k = w^o + c_k, c_k ~ N(0, 0.1 I); labels u'w_k + noise.
2. The minimiser is fixed, or performs a random walk with E‖q_i‖^2 = sigma_q^2 (the trace, spread equally over the
   coordinates; not the variance of each).
3. L = 7 agents a round, uniform without replacement, take E_k steps of size mu/E_k on batches of B_k rows.
4. Learning curves: MSD_i = E‖w_i^o - w_i‖^2 in dB, 10 log10, over iterations; mean of independent trajectories.
5. Levels: steady-state MSD over the step size.
6. On top, from the same problem: exact moments, the first-order formula, the bound (version R), the optimal step.

The same draws of data serve all settings, and trajectories differ in the algorithm's draws and the drift only:
expectations are conditional on the data, as in the paper's analysis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import DynamicFedAvg
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.intervals import every, standard_error
from fedconvex.papers.style import COLOURS, band, blank, legend, panel
from fedconvex.problems import MovingTarget, Problem
from fedconvex.theorems.dynamic_msd import msd_paper, msd_refined, optimal_step, small_step
from fedconvex.theorems.parts.tracking import TrackingConstants, tracking_constants
from fedconvex.theory.bound import AssumptionError
from fedconvex.theory.moments import Moments

K, L, SPREAD2 = 20, 7, 0.1  # of the experiment's description
DIM, ROWS, NOISE2, MOST_STEPS, MOST_BATCH = 10, 100, 1.0, 5, 5  # chosen here
_FIRST = (1, 2, 3, 5, 8, 13, 20)  # iterations recorded besides every so many
FAMILY = 0.01  # probability that any of a family of comparisons fails by chance
CLOSE = 1.0  # dB: what is measured agrees with theory where its interval is within this


class Agents(NamedTuple):
    """The data, and how the agents differ."""

    problem: Problem
    local_steps: np.ndarray  # (K,) E_k
    batch_size: np.ndarray  # (K,) B_k
    constants: TrackingConstants
    start: np.ndarray  # (d,) w_0 of the learning curves


class MsdScale(NamedTuple):
    """How large the experiment is."""

    trajectories: int
    rounds: int  # of the learning curves
    every: int  # iterations between recorded points
    curves: tuple[float, ...]  # step sizes of the learning curves
    drifts: tuple[float, ...]  # sigma_q^2 of the learning curves
    levels: tuple[float, ...]  # step sizes of the steady states, each twice the one before
    walks: tuple[float, ...]  # sigma_q^2 of the steady states, the first 0


FULL = MsdScale(
    400, 2500, 25, (0.1, 0.03, 0.01, 0.003), (0.0, 1e-2), tuple(0.002 * 2.0 ** np.arange(9)), (0.0, 1e-4, 1e-2)
)
QUICK = MsdScale(64, 200, 20, (0.1, 0.03), (0.0, 1e-2), (0.01, 0.02, 0.08, 0.32), (0.0, 1e-2))


class MsdPoint(NamedTuple):
    """A measured mean-square deviation beside what theory says of it."""

    drift2: float
    step_size: float
    iteration: int
    measured: float
    standard_error: float
    exact: float  # of the measured quantity
    bound: float  # version R, NaN where it does not apply

    @property
    def z(self) -> float:
        """Distance from the exact value in standard errors."""
        return (self.measured - self.exact) / self.standard_error


class SteadyState(NamedTuple):
    """What theory says of a steady state; NaN where a bound does not apply."""

    step_size: float
    exact: float
    first_order: float
    bound_R: float
    bound_P: float


def agents(seed: int = 0) -> Agents:
    """Draw the agents' data: rows u ~ N(0, I), labels u'(w^o + c_k) + N(0, 1), w^o ~ N(0, I); and w_0 ~ N(0, I).

    Examples
    --------
    >>> from fedconvex.papers.dynamic_msd import agents
    >>> agents().problem.federation
    Federation(20 clients, 2000 rows, 10 features, dense)
    """
    rng = np.random.default_rng(seed)
    steps, batches = rng.integers(1, MOST_STEPS + 1, K), rng.integers(1, MOST_BATCH + 1, K)
    w, parts = rng.standard_normal(DIM), []
    for c in math.sqrt(SPREAD2) * rng.standard_normal((K, DIM)):
        U = rng.standard_normal((ROWS, DIM))
        parts.append((U, U @ (w + c) + math.sqrt(NOISE2) * rng.standard_normal(ROWS)))
    problem = Problem(Federation.from_clients(parts), Squared(), weights="uniform")
    return Agents(problem, steps, batches, tracking_constants(problem), rng.standard_normal(DIM))


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Measure learning curves and steady states, and put exact theory beside them."""
    scale, crowd = QUICK if quick else FULL, agents(seed)
    curves: list[MsdPoint] = []
    for i, drift2 in enumerate(scale.drifts):
        tell(0.45 * i / len(scale.drifts), f"learning curves, drift {drift2:g}")
        curves += finished_part(f"curves {drift2:g}", partial(_curves, crowd, scale, drift2, seed), (MsdPoint,))
    measured: list[MsdPoint] = []
    for i, drift2 in enumerate(scale.walks):
        for j, mu in enumerate(scale.levels):
            done = (i + j / len(scale.levels)) / len(scale.walks)
            tell(0.45 + 0.45 * done, f"steady states, drift {drift2:g}, step size {mu:g}")
            make = partial(_steady, crowd, scale, drift2, mu, seed)
            measured.append(finished_part(f"level {drift2:g} {mu:g}", make, (MsdPoint,)))
    tell(0.9, "exact curves over step sizes")
    grid = np.geomspace(scale.levels[0] / 2.0, scale.levels[-1] * 1.25, 13 if quick else 61)
    lines = {drift2: [_level(crowd, drift2, float(mu)) for mu in grid] for drift2 in scale.walks}
    factors = [_factors(crowd, mu, scale.walks[1]) for mu in scale.levels]
    figures = {
        "learning_curves": _draw_curves(crowd, scale, curves),
        "steady_state": _draw_levels(crowd, measured, lines),
    }
    each = enumerate(zip(crowd.local_steps.tolist(), crowd.batch_size.tolist(), strict=True))
    tables = {
        "learning_curves": [_row(p) for p in curves],
        "steady_state": [
            _row(p) | _level(crowd, p.drift2, p.step_size)._asdict() | {"iteration": p.iteration} for p in measured
        ],
        "steady_state_theory": [{"drift2": q} | level._asdict() for q, line in lines.items() for level in line],
        "factors": factors,
        "agents": [{"agent": k, "rows": ROWS, "local_steps": E, "batch_size": B} for k, (E, B) in each],
    }
    title = "Dynamic FedAvg on least squares: mean-square deviation (Rizk, Vlaski, Sayed 2020)"
    claims = tuple(_claims(crowd, scale, curves, measured, factors))
    return Findings(title, claims, _notes(scale), figures, tables)


EXPERIMENT = Experiment(
    "dynamic-msd",
    "learning curves and steady states of Dynamic FedAvg with fixed and drifting targets, beside exact theory",
    study,
    smaller="few trajectories, step sizes and iterations",
)


# ---------------------------------------------------------------- measuring


def _method(crowd: Agents, mu: Any) -> DynamicFedAvg:
    return DynamicFedAvg(step_size=mu, local_steps=crowd.local_steps, batch_size=crowd.batch_size, participation=L)  # 3


def _deviations(crowd: Agents, mu: np.ndarray, drift2: float, rounds: int, seed: int, start: Any) -> Iterator[Any]:
    """Yield (i, ‖w_i^o - w_i‖^2 of every trajectory); mu holds a step size for each."""
    moving = MovingTarget(crowd.problem, variance=drift2)
    best = np.asarray(moving.solve().w)
    runs = iterate(_method(crowd, mu), moving, rounds=rounds, seed=seed, trajectories=mu.size, start=start)
    for i, state in runs:
        yield i, np.sum((state.w - best) ** 2, axis=1)


def _covariance(drift2: float) -> np.ndarray:
    return drift2 / DIM * np.eye(DIM)  # 2


def _curves(crowd: Agents, scale: MsdScale, drift2: float, seed: int) -> list[MsdPoint]:
    """Return all points of the learning curves from w_0; one run holds the trajectories of all step sizes."""
    mu, when, seen = np.repeat(scale.curves, scale.trajectories), [], []
    for i, deviation in _deviations(crowd, mu, drift2, scale.rounds, seed, crowd.start):
        if i in _FIRST or (i and i % scale.every == 0):
            when.append(i)
            seen.append(deviation.reshape(len(scale.curves), scale.trajectories))
    start2, points = float(np.sum((crowd.start - crowd.problem.solve().w) ** 2)), []
    at: dict[str, Any] = {"start": crowd.start, "drift": _covariance(drift2)}
    for j, step in enumerate(scale.curves):
        trace = Moments.of(_method(crowd, step), crowd.problem).run(scale.rounds, **at).deviation
        for i, values in zip(when, seen, strict=True):
            bound = _bound(msd_refined, crowd, drift2, step, rounds=i, start2=start2)
            points.append(
                MsdPoint(drift2, step, i, float(values[j].mean()), standard_error(values[j]), float(trace[i]), bound)
            )  # 4
    return points


def _steady(crowd: Agents, scale: MsdScale, drift2: float, mu: float, seed: int) -> MsdPoint:
    """Return the mean over iterations 3/mu to 9/mu of runs that start at the minimiser, and its exact expectation."""
    first, last = math.ceil(3.0 / mu), math.ceil(9.0 / mu)
    best, total = crowd.problem.solve().w, np.zeros(scale.trajectories)
    for i, deviation in _deviations(crowd, np.full(scale.trajectories, mu), drift2, last, seed, best):
        if i > first:
            total += deviation
    run_ = Moments.of(_method(crowd, mu), crowd.problem).run(last, start=best, drift=_covariance(drift2))
    exact = float(run_.deviation[first + 1 :].mean())
    bound = _bound(msd_refined, crowd, drift2, mu)
    means = total / (last - first)
    return MsdPoint(drift2, mu, last, float(means.mean()), standard_error(means), exact, bound)  # 5


# ---------------------------------------------------------------- theory


def _settings(crowd: Agents) -> dict[str, Any]:
    return {"participation": L, "batch_size": crowd.batch_size, "local_steps": crowd.local_steps}


def _bound(bound: Any, crowd: Agents, drift2: float, mu: float, **at: Any) -> float:
    try:
        return float(bound(crowd.constants, step_size=mu, drift2=drift2, **_settings(crowd), **at).value)
    except AssumptionError:
        return math.nan


def _level(crowd: Agents, drift2: float, mu: float) -> SteadyState:
    Q = _covariance(drift2)
    exact = Moments.of(_method(crowd, mu), crowd.problem).steady_state(drift=Q).deviation
    first = small_step(crowd.constants, step_size=mu, drift_covariance=Q, **_settings(crowd)).value
    R, P = (_bound(b, crowd, drift2, mu) for b in (msd_refined, msd_paper))
    return SteadyState(mu, exact, first, R, P)  # 6


def _optimum(crowd: Agents, drift2: float) -> tuple[float, float, float]:
    """Return the optimal step to first order, the exact one, and the exact MSD there."""
    guess = optimal_step(crowd.constants, drift_covariance=_covariance(drift2), **_settings(crowd))

    def deviation(log_step: float) -> float:
        moments = Moments.of(_method(crowd, math.exp(log_step)), crowd.problem)
        return moments.steady_state(drift=_covariance(drift2)).deviation

    around = (math.log(guess / 4.0), math.log(guess * 4.0))
    found = optimize.minimize_scalar(deviation, bounds=around, method="bounded", options={"xatol": 1e-4})
    return guess, math.exp(found.x), float(found.fun)


# ---------------------------------------------------------------- claims


def _claims(
    crowd: Agents, scale: MsdScale,
    curves: list[MsdPoint], levels: list[MsdPoint], factors: list[dict[str, float]],
) -> Iterator[Claim]:  # fmt: skip
    yield _agreement("learning curves", curves, scale.trajectories)
    yield _agreement("steady states", levels, scale.trajectories)
    yield _floor(scale, levels)
    yield _tracking(scale, scale.walks[-1], levels)
    yield _three_factors(factors)
    for drift2 in scale.walks[1:]:
        yield _interior(crowd, scale, drift2, [p for p in levels if p.drift2 == drift2])
    judged = [p for p in (*curves, *levels) if not math.isnan(p.bound)]
    ratios = [p.bound / p.exact for p in judged]
    numbers = f"{len(judged)} points, bound over exact value {min(ratios):.3g} to {max(ratios):.3g}; " if judged else ""
    numbers += f"the bound refuses the other {len(curves) + len(levels) - len(judged)} points (steps too large for it)"
    holds = bool(judged) and min(ratios) >= 1.0
    yield Claim("The bound (version R) lies above the exact value wherever it applies", holds, numbers, everywhere=True)


def _agreement(what: str, points: list[MsdPoint], trajectories: int) -> Claim:
    """Judge all points together: Student's t with Bonferroni's correction."""
    limit = float(stats.t.isf(FAMILY / (2.0 * len(points)), trajectories - 1))
    z = np.array([p.z for p in points])
    text = f"Measured {what} agree with the exact moments at every recorded point, within {CLOSE:g} dB"
    ends = [(p.measured + s * limit * p.standard_error) / p.exact for p in points for s in (-1.0, 1.0)]
    close = min(ends) > 0.0 and max(abs(_decibels(end)) for end in ends) <= CLOSE
    numbers = (
        f"{len(z)} points, largest distance {np.abs(z).max():.2f} standard errors, {limit:.2f} allowed (family-wise "
        f"{FAMILY:.0%}, Bonferroni); root mean square {np.sqrt(np.mean(z**2)):.2f}; relative standard error "
        f"up to {max(p.standard_error / p.measured for p in points):.1%}"
    )
    return Claim(text, False if np.abs(z).max() > limit else True if close else None, numbers)


def _halvings(scale: MsdScale, points: dict[float, Any], change: float) -> tuple[bool | None, str]:
    """Judge pairs (mu, mu/2) with mu at most 0.04 of (measured, standard error, exact): a change of so many dB each."""
    steps = [mu for mu in sorted(points) if mu <= 0.04]
    pairs = [(points[b], points[a], f"{b:g} to {a:g}") for a, b in itertools.pairwise(steps) if b == 2.0 * a]
    limit = float(stats.t.isf(FAMILY / (2.0 * max(1, len(pairs))), scale.trajectories - 1))
    holds, found = [True if pairs else None], []
    for (big, big_error, big_exact), (small, small_error, small_exact), name in pairs:
        if not min(big, big_exact, small, small_exact) > 0.0:
            far = max((big_exact - big) / big_error, (small_exact - small) / small_error) > limit
            return (False if far or min(big_exact, small_exact) <= 0.0 else None), f"{name}: not positive"
        seen, exact = _decibels(small / big), _decibels(small_exact / big_exact)
        error = 10.0 / math.log(10.0) * math.hypot(big_error / big, small_error / small)
        wrong = abs(seen - exact) > limit * error or abs(exact - change) > 0.15
        holds.append(False if wrong else True if limit * error <= CLOSE else None)
        found.append(f"{name}: {seen:+.2f} ± {error:.2f} (exact {exact:+.2f})")
    return every(holds), "change in dB, " + ("; ".join(found) or "no pair of steps")


def _floor(scale: MsdScale, levels: list[MsdPoint]) -> Claim:
    """Judge the floor without drift, which is proportional to mu."""
    fixed = {p.step_size: (p.measured, p.standard_error, p.exact) for p in levels if p.drift2 == 0.0}
    text = "Without drift the steady state falls by about 3 dB when a small step is halved"
    return Claim(text, *_halvings(scale, fixed, -_decibels(2.0)))


def _tracking(scale: MsdScale, drift2: float, levels: list[MsdPoint]) -> Claim:
    """Judge what drift adds, which is proportional to 1/mu."""
    fixed = {p.step_size: p for p in levels if p.drift2 == 0.0}
    added = {}
    for p in levels:
        if p.drift2 == drift2:
            q = fixed[p.step_size]
            error = math.hypot(p.standard_error, q.standard_error)
            added[p.step_size] = p.measured - q.measured, error, p.exact - q.exact
    text = f"What drift {drift2:g} adds rises by about 3 dB when a small step is halved: it is inverse to the step"
    return Claim(text, *_halvings(scale, added, _decibels(2.0)))


def _factors(crowd: Agents, mu: float, drift2: float) -> dict[str, float]:
    """Return exact steady states with one cause at a time, and with all of them."""
    Q, full = _covariance(drift2), replace(_method(crowd, mu), batch_size=None)
    full_participation = replace(_method(crowd, mu), participation=K)

    def deviation(method: DynamicFedAvg, drift: Any = None) -> float:
        return Moments.of(method, crowd.problem).steady_state(drift=drift).deviation

    return {
        "step_size": mu,
        "drift2": drift2,
        "data": deviation(full_participation) * K / L,  # the noise of K agents' batches is averaged over K, not L
        "model": deviation(full),
        "tracking": deviation(replace(full, participation=K), Q) - deviation(replace(full, participation=K)),
        "all": deviation(_method(crowd, mu), Q),
    }


def _three_factors(rows: list[dict[str, float]]) -> Claim:
    """Judge that the paper's three factors add up at small steps."""
    ratios = {row["step_size"]: (row["data"] + row["model"] + row["tracking"]) / row["all"] for row in rows}
    small = {mu: ratio for mu, ratio in ratios.items() if mu <= 0.02}
    numbers = f"sum over exact steady state, drift {rows[0]['drift2']:g}: " + ", ".join(
        f"{ratio:.3f} at {mu:g}" for mu, ratio in ratios.items()
    )
    text = "Data variability, model variability and tracking add up to the steady state, within 2 % up to steps of 0.02"
    return Claim(text, bool(small) and all(abs(ratio - 1.0) <= 0.02 for ratio in small.values()), numbers)


def _interior(crowd: Agents, scale: MsdScale, drift2: float, points: list[MsdPoint]) -> Claim:
    """Judge the U shape: an interior minimum, exactly and as measured, near the first-order optimum."""
    guess, best, value = _optimum(crowd, drift2)
    ends = (points[0], points[-1])
    low = min(points[1:-1], key=lambda p: p.measured)
    gaps = [(end.measured - low.measured) / math.hypot(end.standard_error, low.standard_error) for end in ends]
    limit = float(stats.t.isf(FAMILY / (2.0 * len(points)), scale.trajectories - 1))
    there = 0.7 <= best / guess <= 1.4 and points[0].step_size < best < points[-1].step_size  # near and inside
    text = f"With drift {drift2:g} the steady state has its minimum inside, near the first-order optimal step"
    numbers = (
        f"optimal step {guess:.4f} to first order, {best:.4f} exactly (MSD {_decibels(value):.2f} dB there); least "
        f"measured at {low.step_size:g}: {_decibels(low.measured):.2f} dB, below both ends by {gaps[0]:.0f} and "
        f"{gaps[1]:.0f} standard errors"
    )
    seen = every(True if gap > limit else False if gap < -limit else None for gap in gaps)
    return Claim(text, every((there, seen)), numbers)


def _notes(scale: MsdScale) -> tuple[str, ...]:
    return (
        f"From the paper's experiment, as slides describe it: K = {K} agents, L = {L} per iteration, own models "
        f"w^o + c_k with c_k ~ N(0, {SPREAD2:g} I), least squares, a fixed target and a random walk with "
        "sigma_q^2 = 0.01. The text of the experiment was not available: its figures are not reproduced point by "
        "point.",
        f"Chosen here: d = {DIM}, N_k = {ROWS} rows with u ~ N(0, I), label noise of variance {NOISE2:g}, E_k uniform "
        f"in 1..{MOST_STEPS}, B_k uniform in 1..{MOST_BATCH}, w_0 and w^o ~ N(0, I), step sizes, the slow walk "
        "sigma_q^2 = 1e-4.",
        "sigma_q^2 = E‖q_i‖^2 is the trace of the drift's covariance; read per coordinate the walk would be d times "
        "faster. The labels move by u'q_i, so the minimiser of (1/K) sum P_k moves exactly by q_i; deviations are "
        "measured after the move.",
        f"Means of {scale.trajectories} trajectories; bands and bars are two and four standard errors. Steady states: "
        "mean over iterations 3/mu to 9/mu from the minimiser, compared with the exact mean over the same iterations.",
        "Comparable with the paper: the shapes, and its conclusion that data variability, model variability and a "
        "tracking term inverse to the step determine the performance. Not comparable: absolute levels, which depend on "
        "d, noise, E_k and B_k.",
        "Factors (table `factors`, exact): data is the steady state with all agents taking part, times K/L; model that "
        "with full batches; tracking what drift adds with both.",
    )


def _row(p: MsdPoint) -> dict[str, Any]:
    row = p._asdict()
    row["bound_R"] = row.pop("bound")
    row["exact_of_measured"] = row.pop("exact")
    return row


# ---------------------------------------------------------------- figures


def _decibels(x: Any) -> Any:
    """10 log10 x."""
    return 10.0 * np.log10(x)


def _target(drift2: float) -> str:
    if drift2 == 0.0:
        return "fixed target"
    digits, power = f"{drift2:.0e}".split("e")
    return f"random walk, $\\sigma_q^2 = {'' if digits == '1' else digits + ' ·'}10^{{{int(power)}}}$"


def _draw_curves(crowd: Agents, scale: MsdScale, points: list[MsdPoint]) -> Any:
    """Draw a panel for every drift: measured with band, exact, and at the right end the limits."""
    figure, axes = blank(len(scale.drifts), sharey=True)
    for axis, drift2 in zip(axes, scale.drifts, strict=True):
        for j, mu in enumerate(scale.curves):
            mine, colour = [p for p in points if p.drift2 == drift2 and p.step_size == mu], COLOURS[j]
            i = np.array([p.iteration for p in mine])
            mean, error, exact, bound = (
                np.array([getattr(p, name) for p in mine]) for name in ("measured", "standard_error", "exact", "bound")
            )
            band(axis, i, _decibels(mean - 2.0 * error), _decibels(mean + 2.0 * error), colour, 0.4)
            axis.plot(i, _decibels(mean), color=colour, linewidth=1.3)
            axis.plot(i, _decibels(exact), color="black", linewidth=0.8, linestyle=(0, (5, 3)))
            axis.plot(i, _decibels(bound), color=colour, linewidth=1.2, linestyle=(0, (1, 1.5)))
            level = _level(crowd, drift2, mu)
            x = 1.03 * scale.rounds
            axis.plot(x, _decibels(level.exact), marker="_", markersize=9, color="black", clip_on=False)
            axis.plot(x, _decibels(level.first_order), marker="o", markersize=5, markerfacecolor="none", color=colour)
            axis.annotate(
                f"μ = {mu:g}", (x, _decibels(level.exact)), (8, 0), textcoords="offset points", va="center", fontsize=8
            )
        axis.set_xlim(0, 1.25 * scale.rounds)
        axis.set_xticks(np.linspace(0, scale.rounds, 6))
        panel(axis, _target(drift2), "iteration $i$")
    axes[0].set_ylabel(r"MSD  $\mathrm{E}\,\|w_i^o - w_i\|^2$  (dB)")
    looks: dict[str, dict[str, Any]] = {
        "measured, mean ± 2 s.e.": {"color": COLOURS[0], "linewidth": 1.3},
        "exact": {"color": "black", "linewidth": 0.8, "linestyle": (0, (5, 3))},
        "exact limit": {"color": "black", "marker": "_", "markersize": 9, "linestyle": "none"},
        "limit to first order in μ": {"color": "0.4", "marker": "o", "markerfacecolor": "none", "linestyle": "none"},
        "bound R, where it applies": {"color": "0.4", "linewidth": 1.2, "linestyle": (0, (1, 1.5))},
    }
    legend(figure, looks=looks, columns=5)
    return figure


def _draw_levels(crowd: Agents, points: list[MsdPoint], lines: dict[float, list[SteadyState]]) -> Any:
    """Draw steady states over the step size, all drifts in one panel."""
    figure, (axis,) = blank(width=6.4, height=4.2)
    for j, (drift2, line) in enumerate(lines.items()):
        colour = COLOURS[j]
        mu = np.array([level.step_size for level in line])
        for name, look in (
            ("exact", {"linewidth": 1.8}),
            ("first_order", {"linewidth": 1.0, "linestyle": (0, (5, 3))}),
            ("bound_R", {"linewidth": 1.2, "linestyle": (0, (1, 1.5))}),
        ):
            axis.plot(mu, _decibels(np.array([getattr(level, name) for level in line])), color=colour, **look)
        mine = [p for p in points if p.drift2 == drift2]
        mean, error = (np.array([getattr(p, name) for p in mine]) for name in ("measured", "standard_error"))
        low, high = _decibels(mean) - _decibels(mean - 4.0 * error), _decibels(mean + 4.0 * error) - _decibels(mean)
        axis.errorbar(
            [p.step_size for p in mine], _decibels(mean), (low, high), fmt="o", markersize=4, capsize=2, color=colour
        )
        if drift2 > 0.0:
            guess, best, value = _optimum(crowd, drift2)
            axis.axvline(guess, color=colour, linewidth=0.8, alpha=0.6)
            axis.plot(best, _decibels(value), marker="*", markersize=11, color=colour, markeredgecolor="black")
    panel(axis, x="step size μ", y="steady-state MSD (dB)", log="x")
    looks: dict[str, dict[str, Any]] = {
        "exact": {"linewidth": 1.8},
        "measured ± 4 s.e.": {"marker": "o", "markersize": 4, "linestyle": "none"},
        "first order in μ": {"linewidth": 1.0, "linestyle": (0, (5, 3))},
        "bound R, where it applies": {"linewidth": 1.2, "linestyle": (0, (1, 1.5))},
        "exact optimum": {"marker": "*", "markersize": 11, "linestyle": "none"},
        "optimal μ to first order": {"linewidth": 0.8},
    }
    legend(figure, looks={label: {"color": "0.4"} | look for label, look in looks.items()}, columns=3)
    figure.draw_without_rendering()  # the layout, which angles depend on
    for j, (drift2, line) in enumerate(lines.items()):
        _along(axis, line, _target(drift2), COLOURS[j])
    return figure


def _along(axis: Any, line: list[SteadyState], text: str, colour: str) -> None:
    """Write under the left end of a curve, parallel to it."""
    near, far = ((level.step_size, _decibels(level.exact)) for level in (line[0], line[len(line) // 8]))
    (x, y), (u, v) = axis.transData.transform([near, far])
    look = {"rotation": math.degrees(math.atan2(v - y, u - x)), "rotation_mode": "anchor", "va": "top"}
    axis.annotate(text, near, (2, -4), textcoords="offset points", fontsize=8, color=colour, **look)
