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

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, whole
from fedconvex.driver import Result, iterate
from fedconvex.driver import run as run_method
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg, OptimisticAFL
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, blank
from fedconvex.problems import Problem
from fedconvex.solvers.minimax import Minimax
from fedconvex.theory.agnostic_rate import agnostic_rate, agnostic_steps
from fedconvex.theory.bound import Bound

__all__ = ["CENTRES", "EXPERIMENT", "Exact", "clouds", "enclosing", "location_problem", "run"]

# chosen here: three outer means, two inner ones; points of each cloud, so that the pooled mean is not the mean of means
CENTRES = np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 2.5], [0.8, 1.0], [2.0, 1.2]])
POINTS = (60, 40, 30, 20, 10)
QUIET, NOISY = 0.5, 4.0  # variances; the last cloud is the noisy one
WORLDS = {"equal variances": (QUIET,) * 5, "one noisy domain": (QUIET,) * 4 + (NOISY,)}
STEP, NOISY_MIX_STEP, BATCH, STEPS = 0.1, 0.02, 10, 5  # step sizes, rows of a mini-batch, local steps
RADIUS = 4.0  # of the ball of the theorem
ROUNDING = 1e-12  # what sums of numbers of size ten may be off by, with room
DRAWN = ("AFL", "OptimisticAFL")  # whose paths are drawn


class Plan(NamedTuple):
    """How large the experiment is."""

    rounds: int
    runs: int  # trajectories with mini-batches
    close: float  # "reaches the minimax value": to this share of it


FULL, QUICK = Plan(2000, 20, 0.01), Plan(250, 4, 0.05)


class Exact(NamedTuple):
    """The point that minimises max_i ‖h - c_i‖^2 + v_i, by trying all choices of at most three worst domains."""

    h: np.ndarray  # (2,)
    value: float
    domain_weights: np.ndarray  # (p,) h = sum mix_i c_i, nonnegative, of sum 1, zero where a domain is not worst


class World(NamedTuple):
    """One setting with what was found."""

    name: str
    points: list[np.ndarray]  # (n_i, 2) each
    variances: np.ndarray  # (p,)
    problem: Problem
    minimax: Minimax
    exact: Exact
    circle: Exact  # centre of the smallest circle around the means; value: its squared radius
    results: dict[str, Result]
    pooled: np.ndarray  # (2,) minimiser of the pooled objective
    fedavg: dict[str, np.ndarray]  # round, value: worst domain along FedAvg's run
    paths: dict[str, np.ndarray]  # (T, 2) each


# ---------------------------------------------------------------- the problem


def clouds(variances: Sequence[float], seed: int = 0) -> list[np.ndarray]:
    """Draw normal points around `CENTRES`, moved and stretched so that means and total variances are exact.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_toy import clouds
    >>> points = clouds((0.5,) * 5)
    >>> [len(z) for z in points], bool(abs(points[1].mean(axis=0) - [3.0, 0.0]).max() < 1e-12)
    ([60, 40, 30, 20, 10], True)
    >>> float(points[1].var(axis=0).sum().round(9))
    0.5
    """
    rng, out = np.random.default_rng(seed), []
    for c, v, n in zip(CENTRES, variances, POINTS, strict=True):
        z = rng.standard_normal((n, 2))
        z -= z.mean(axis=0)
        out.append(c + z * math.sqrt(v / z.var(axis=0).sum()))  # 1
    return out


def location_problem(points: Sequence[np.ndarray]) -> Problem:
    """Return the problem with F_i(h) = mean over domain i of ‖h - z‖^2; clients are domains.

    Parameters
    ----------
    points : sequence of arrays (n_i, d)

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_toy import location_problem
    >>> problem = location_problem([np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 3.0]])])
    >>> problem.domain_values(np.array([1.0, 1.0])).tolist()
    [2.0, 5.0]
    """
    rows = []
    for z in points:
        n, d = z.shape
        scale = math.sqrt(2.0 * d)  # 2 in the plane
        rows.append((scale * np.tile(np.eye(d), (n, 1)), scale * z.ravel()))  # 2
    return Problem(Federation.from_clients(rows, labels=[f"D{i + 1}" for i in range(len(points))]), Squared())


def enclosing(centres: np.ndarray, variances: Any = 0.0) -> Exact:
    """Minimise max_i ‖h - c_i‖^2 + v_i over the plane, by trying all sets of at most three domains.

    Without variances h is the centre of the smallest circle around the centres, and the value its squared radius.

    Parameters
    ----------
    centres : array (p, 2)
    variances : float or array (p,)

    Examples
    --------
    >>> from fedconvex.papers.agnostic_toy import enclosing
    >>> import numpy as np
    >>> found = enclosing(np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 1.0]]))
    >>> found.h.tolist(), found.value, found.domain_weights.tolist()
    ([2.0, 0.0], 4.0, [0.5, 0.5, 0.0])
    """
    c = np.asarray(centres, dtype=float)
    v = np.broadcast_to(np.asarray(variances, dtype=float), len(c))
    best: Exact | None = None
    least = math.inf
    for size in (1, 2, 3):
        for some in map(list, itertools.combinations(range(len(c)), size)):
            mix = _balanced(c[some], v[some])
            if mix is None or mix.min() < 0.0:
                continue
            h = mix @ c[some]
            F = ((h - c) ** 2).sum(axis=1) + v
            beyond = float(F.max() - F[some[0]])  # zero where these domains are worst: then h is optimal
            if beyond < least - ROUNDING:
                least, full = beyond, np.zeros(len(c))
                full[some] = mix
                best = Exact(h, float(F.max()), full)
    assert best is not None
    return best  # 3


def _balanced(c: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """Return mix with sum 1 and all ‖mix c - c_i‖^2 + v_i equal; None if the means are affinely dependent."""
    D = c[1:] - c[0]
    # h = c_0 + D'x: 2 (c_i - c_0)'(h - c_0) = ‖c_i - c_0‖^2 + v_i - v_0
    G = D @ D.T
    if len(D) and np.linalg.matrix_rank(G) < len(D):
        return None
    x = np.linalg.solve(2.0 * G, np.diag(G) + v[1:] - v[0]) if len(D) else np.empty(0)
    return np.concatenate([[1.0 - x.sum()], x])


# ---------------------------------------------------------------- running


def methods() -> dict[str, Any]:
    """Return the methods by name."""
    return {
        "AFL": AFL(step_size=STEP, domain_step_size=STEP),
        "AFL, mini-batches": AFL(step_size=STEP, domain_step_size=NOISY_MIX_STEP, batch_size=BATCH, replacement=True),
        "OptimisticAFL": OptimisticAFL(step_size=STEP, domain_step_size=STEP),
        "AgnosticFedAvg": AgnosticFedAvg(step_size=STEP, domain_step_size=STEP, local_steps=STEPS),
    }  # 4


def run(*, quick: bool = False, seed: int = 0, data: Any = None, progress: Progress | None = None) -> Findings:
    """Run the experiment.

    Parameters
    ----------
    quick : bool
        A smaller version: fewer rounds and trajectories.
    seed : int
        Of the points and mini-batches.
    data : None
        Must be left out.
    progress : callable, optional
        Takes the share done and what is being done.

    Returns
    -------
    Findings
    """
    if data is not None:
        raise bad("afl-toy: data", "be left out", f"{data!r}", "its points are drawn from the seed")
    seed, plan = whole("afl-toy: seed", seed, low=0), QUICK if quick else FULL
    tell = progress or (lambda share, doing: None)
    worlds = []
    for number, (name, variances) in enumerate(WORLDS.items()):

        def at(share: float, doing: str, number: int = number, name: str = name) -> None:
            tell(0.45 * (number + share), f"{name}: {doing}")

        worlds.append(_world(name, variances, plan, seed, at))
    tell(0.9, "the rate theorem")
    rates = [_rate(world, T, plan.runs, seed) for world in worlds for T in (plan.rounds // 4, plan.rounds)]
    claims = _claims(worlds, rates, plan, _on_the_line(seed))
    tables = {"table": _table(worlds), "solutions": _solutions(worlds), "curves": list(_curves(worlds))}
    figures = {"plane": _draw_plane(worlds), "rounds": _draw_rounds(worlds), "mixtures": _draw_domain_weights(worlds)}
    tell(1.0, "done")
    title = "A point for five clouds: agnostic location, the toy regression of agnostic federated averaging"
    return Findings(title, claims, _notes(plan, worlds, quick), figures, tables)


EXPERIMENT = Experiment(
    "afl-toy", "agnostic location of five clouds in the plane: AFL and others against the exact minimax point", run
)


def _world(name: str, variances: Sequence[float], plan: Plan, seed: int, tell: Progress) -> World:
    points = clouds(variances, seed)
    problem = location_problem(points)
    v = np.array(variances)
    results: dict[str, Result] = {}
    paths: dict[str, np.ndarray] = {}
    for number, (method_name, method) in enumerate(methods().items()):
        tell(number / 5, method_name)
        runs = plan.runs if getattr(method, "batch_size", None) else 1
        options: dict[str, Any] = {"rounds": plan.rounds, "tol": 0.0, "seed": seed}
        results[method_name] = run_method(method, problem, trajectories=runs, progress=False, **options)
        if method_name in DRAWN:
            paths[method_name] = _path(method, problem, plan, seed)
    tell(0.8, "FedAvg")
    method = FedAvg(step_size=STEP, local_steps=STEPS)
    paths["FedAvg"] = _path(method, problem, plan, seed)
    fedavg = {"round": np.arange(plan.rounds + 1), "value": problem.domain_values(paths["FedAvg"]).max(axis=1)}
    exact, circle = enclosing(CENTRES, v), enclosing(CENTRES)
    pooled = np.vstack(points).mean(axis=0)
    return World(name, points, v, problem, problem.solve_minimax(), exact, circle, results, pooled, fedavg, paths)


def _path(method: Any, problem: Problem, plan: Plan, seed: int) -> np.ndarray:
    """Return the models (rounds + 1, 2) of one trajectory."""
    return np.array([state.w[0] for _, state in iterate(method, problem, rounds=plan.rounds, seed=seed)])


class Rate(NamedTuple):
    """The rate theorem beside a run with its step sizes."""

    world: str
    rounds: int  # T
    mean: float  # of the suboptimality h(wA) - min h over trajectories
    error: float  # its standard error
    bound: Bound


def _rate(world: World, rounds: int, runs: int, seed: int) -> Rate:
    """Run AFL in the ball ‖h‖ <= RADIUS with the steps of the theorem, from constants that hold on the ball."""  # 5
    v, far = world.variances, RADIUS + np.linalg.norm(CENTRES, axis=1)  # far >= ‖h - c_i‖
    # grad F_i = 2(h - c_i). A row's gradient is 4(h_j - z_j)e_j: of variance 8(‖h - c_i‖^2 + v_i) - 4‖h - c_i‖^2
    G_w = 2.0 * float(far.max())
    sigma2_w = float((4.0 * far**2 + 8.0 * v).max()) / BATCH
    # F_i(h) - mean of F: affine in h, as all have the same square; constants common to all F_i move no step
    a, B = (CENTRES**2).sum(axis=1) + v, -2.0 * CENTRES
    a, B = a - a.mean(), B - B.mean(axis=0)
    G_lambda = float(np.linalg.norm(a) + RADIUS * np.linalg.norm(B, 2))
    # a row's loss is 2(h_j - z_j)^2, of variance at most its mean square; domains are drawn independently
    sigma2_lambda = sum(float(np.mean(4.0 * (RADIUS + np.abs(z)) ** 4)) for z in world.points) / BATCH
    constants: dict[str, Any] = {"rounds": rounds, "R_W": RADIUS, "R_lambda": 1.0, "G_w": G_w, "G_lambda": G_lambda}
    constants |= {"sigma2_w": sigma2_w, "sigma2_lambda": sigma2_lambda}
    steps = agnostic_steps(**constants)
    method = AFL(
        step_size=steps.model, domain_step_size=steps.mixture, batch_size=BATCH, replacement=True, radius=RADIUS
    )
    last: Any = None
    for _, state in iterate(method, world.problem, rounds=rounds, seed=seed, trajectories=runs):
        last = state.w
    excess = world.problem.domain_values(last).max(axis=1) - world.exact.value
    error = float(excess.std(ddof=1)) / math.sqrt(runs)
    return Rate(world.name, rounds, float(excess.mean()), error, agnostic_rate(**constants))


class Line(NamedTuple):
    """FedJAX's recipe: five domains on the line."""

    means: np.ndarray  # (p,)
    variances: np.ndarray  # (p,)
    h: float  # agnostic solution, of the package
    middle: float  # (min + max)/2 of the means


def _on_the_line(seed: int) -> Line:
    """Draw 500 points, uniform on [i^2, i^2 + 10] for domain i = 0, ..., 4."""  # 6
    rng = np.random.default_rng(seed)
    domain, points = rng.integers(0, 5, 500), 10.0 * rng.random(500)
    clouds_ = [(points[domain == i] + i * i)[:, None] for i in range(5)]
    means, variances = np.array([z.mean() for z in clouds_]), np.array([z.var() for z in clouds_])
    h = float(location_problem(clouds_).solve_minimax().w[0])
    return Line(means, variances, h, 0.5 * float(means.min() + means.max()))


# ---------------------------------------------------------------- tables and claims


def _last(result: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (R,), certified gaps (R,) and mixtures (R, p) of the last record."""
    trace = result.trace
    p = trace["domain_weights"].shape[-1]
    return np.atleast_1d(trace.value[-1]), np.atleast_1d(trace.gap[-1]), trace["domain_weights"][-1].reshape(-1, p)


def _table(worlds: Sequence[World]) -> list[dict[str, Any]]:
    rows = []
    for world in worlds:
        for name, result in world.results.items():
            value, gap, mix = _last(result)
            models = np.asarray(result.w).reshape(-1, 2)
            row = {"setting": world.name, "method": name, "rounds": str(result.rounds)}
            row |= {"h(w) - min h": f"{np.median(value - world.exact.value):.2e}", "certified": f"{np.median(gap):.2e}"}
            row["distance"] = f"{np.median(np.linalg.norm(models - world.exact.h, axis=1)):.2e}"
            row["distance of lambda"] = f"{np.median(np.linalg.norm(mix - world.exact.domain_weights, axis=1)):.2e}"
            rows.append(row)
        value = world.fedavg["value"][-1]
        row = {"setting": world.name, "method": "FedAvg", "rounds": str(len(world.paths["FedAvg"]) - 1)}
        row |= {"h(w) - min h": f"{value - world.exact.value:.2e}", "certified": ""}
        row["distance"] = f"{np.linalg.norm(world.paths['FedAvg'][-1] - world.exact.h):.2e}"
        rows.append(row | {"distance of lambda": ""})
    return rows


def _solutions(worlds: Sequence[World]) -> list[dict[str, Any]]:
    """Return the points, with their worst domain and their pooled objective."""
    rows = []
    for world in worlds:
        points = {
            "agnostic, solve_minimax": world.minimax.w,
            "agnostic, by hand": world.exact.h,
            "centre of the smallest circle": world.circle.h,
            "pooled": world.pooled,
        }
        for name, h in points.items():
            F = world.problem.domain_values(h)
            row: dict[str, Any] = {"setting": world.name, "point": name, "h_1": float(h[0]), "h_2": float(h[1])}
            row |= {"worst domain": float(F.max()), "pooled objective": float(world.problem.value(h))}
            row |= {f"F_{i + 1}": float(f) for i, f in enumerate(F)}
            if name.startswith("agnostic"):
                mix = world.minimax.domain_weights if name.endswith("minimax") else world.exact.domain_weights
            else:
                mix = np.full(len(F), math.nan)
            rows.append(row | {f"lambda_{i + 1}": float(m) for i, m in enumerate(mix)})
    return rows


def _curves(worlds: Sequence[World]) -> Iterator[dict[str, Any]]:
    for world in worlds:
        for name, result in world.results.items():
            trace = result.trace
            T = len(trace.round)
            value, gap = (np.median(np.reshape(trace[key], (T, -1)), axis=1) for key in ("value", "gap"))
            mix = np.median(trace["domain_weights"].reshape(T, -1, trace["domain_weights"].shape[-1]), axis=1)
            for i in np.unique(np.geomspace(1, T, 60).round().astype(int)) - 1:
                t = int(trace.round[i])
                row: dict[str, Any] = {"setting": world.name, "method": name, "round": t, "value": float(value[i])}
                row |= {"excess": float(value[i] - world.exact.value), "certified gap": float(gap[i])}
                yield row | {f"lambda_{k + 1}": float(m) for k, m in enumerate(mix[i])}


def _claims(worlds: Sequence[World], rates: Sequence[Rate], plan: Plan, line: Line) -> tuple[Claim, ...]:
    equal, noisy = worlds
    off = max(_formula_error(world) for world in worlds)
    r2 = equal.circle.value
    apart = float(np.linalg.norm(equal.minimax.w - equal.circle.h))
    claims = [
        Claim(
            "The mean loss of domain i is ‖h - c_i‖² + Var_i (largest difference at 100 points h)",
            off <= ROUNDING * 100.0,
            f"{off:.1e}",
        ),
        Claim(
            "With equal variances the agnostic solution is the centre of the smallest circle around the means",
            apart <= 1e-6 and abs(equal.minimax.value - (r2 + QUIET)) <= 1e-8,
            f"distance {apart:.1e}; minimax value {equal.minimax.value:.10f}, radius² + variance {r2 + QUIET:.10f}",
        ),
        _not_the_circle(noisy),
        _by_hand(worlds),
        _line(line),
        _reached(worlds, plan.close),
        _certified(worlds),
        _pooled_is_worse(worlds),
        Claim(
            "With mini-batches and the theorem's step sizes the mean suboptimality of AFL stays below its bound",
            all(r.mean + 3.0 * r.error <= r.bound.value for r in rates),
            "; ".join(
                f"{r.world}, T = {r.rounds}: {r.mean:.3g} (s.e. {r.error:.1g}), bound {r.bound.value:.3g}"
                for r in rates
            ),
        ),
    ]
    return tuple(claims)


def _formula_error(world: World) -> float:
    h = np.random.default_rng(0).uniform(-2.0, 5.0, (100, 2))
    mine = ((h[:, None] - CENTRES) ** 2).sum(axis=2) + world.variances
    return float(np.abs(world.problem.domain_values(h) - mine).max())


def _not_the_circle(world: World) -> Claim:
    apart = float(np.linalg.norm(world.minimax.w - world.circle.h))
    there = float(world.problem.domain_values(world.circle.h).max())
    return Claim(
        "With unequal variances it is not: the centre of the circle serves the noisy domain worse",
        there > world.minimax.value + 1e-6 and apart > 1e-3,
        f"distance {apart:.3f}; worst domain {there:.4f} at the centre of the circle, {world.minimax.value:.4f} at the "
        "agnostic solution",
    )


def _line(line: Line) -> Claim:
    """Whether the outermost domains a, b decide: (h - c_a)^2 + v_a = (h - c_b)^2 + v_b."""
    a, b = int(line.means.argmin()), int(line.means.argmax())
    c, v = line.means, line.variances
    off = (v[b] - v[a]) / (2.0 * (c[b] - c[a]))
    return Claim(
        "In FedJAX's recipe variances are equal in the mean only, so that the solution is off the middle of the "
        "outermost means by (v_b - v_a)/(2(c_b - c_a))",
        abs(line.h - line.middle - off) <= 1e-6 and abs(off) > 1e-6,
        f"variances {v[a]:.3f} and {v[b]:.3f}: off by {line.h - line.middle:+.4f}, formula {off:+.4f}",
    )


def _by_hand(worlds: Sequence[World]) -> Claim:
    errors = [
        max(
            abs(w.minimax.value - w.exact.value),
            float(np.abs(w.minimax.w - w.exact.h).max()),
            float(np.abs(w.minimax.domain_weights - w.exact.domain_weights).max()),
        )
        for w in worlds
    ]
    return Claim(
        "solve_minimax agrees with the solution by hand in value, point and weights, and certifies itself",
        max(errors) <= 1e-6 and all(w.minimax.lower <= w.exact.value + ROUNDING for w in worlds),
        "; ".join(
            f"{w.name}: off by {e:.1e}, certified gap {w.minimax.gap:.1e}" for w, e in zip(worlds, errors, strict=True)
        ),
    )


def _reached(worlds: Sequence[World], close: float) -> Claim:
    """Whether every method ends close to the minimax value, and within its own certificate of it."""
    shares: dict[str, float] = {}
    holds = True
    for world in worlds:
        for name, result in world.results.items():
            value, gap, _ = _last(result)
            excess = value - world.exact.value
            holds &= bool((excess <= gap + ROUNDING).all() and np.median(excess) <= close * world.exact.value)
            shares[name] = max(shares.get(name, 0.0), float(np.median(excess)) / world.exact.value)
    return Claim(
        f"AFL, OptimisticAFL and AgnosticFedAvg reach the minimax value, within {close:.0%} and their certificates",
        holds,
        "excess over the minimax value, the larger of both settings: "
        + ", ".join(f"{name} {max(share, 0.0):.1e}" for name, share in shares.items()),
    )


def _certified(worlds: Sequence[World]) -> Claim:
    """Whether certified gaps bound the true ones, which come from the solution by hand."""
    worst, records = -math.inf, 0
    for world in worlds:
        for result in world.results.values():
            short = result.trace.value - world.exact.value - result.trace.gap
            worst, records = max(worst, float(short.max())), records + short.size
    return Claim(
        "The certified gap is an upper bound of the true one along every trace",
        worst <= ROUNDING,
        f"largest true gap minus certified gap {worst:.1e} in {records:,} records",
    )


def _pooled_is_worse(worlds: Sequence[World]) -> Claim:
    holds, words = True, []
    for world in worlds:
        end = world.paths["FedAvg"][-1]
        value = float(world.problem.domain_values(end).max())
        lost = float(world.problem.value(world.minimax.w) - world.problem.value(world.pooled))
        holds &= value > 1.01 * world.minimax.value and float(np.linalg.norm(end - world.pooled)) <= 1e-6
        words.append(
            f"{world.name}: worst domain {value:.3f} against {world.minimax.value:.3f}; the agnostic solution costs "
            f"{lost:.3f} of the pooled objective"
        )
    return Claim("FedAvg goes to the pooled mean, whose worst domain is worse", holds, "; ".join(words))


def _notes(plan: Plan, worlds: Sequence[World], quick: bool) -> tuple[str, ...]:
    notes = [
        "Taken from the literature: domains of points, squared distance, all mixtures. "
        "Chosen here: means, numbers of points, variances, step sizes: "
        f"{STEP:g} for both players, {NOISY_MIX_STEP:g} for λ with mini-batches of {BATCH} rows.",
        "A point is two rows: 2e_1 with target 2z_1, 2e_2 with target 2z_2; (x'h - y)²/2 averaged over both is "
        "‖h - z‖². A mini-batch therefore draws single coordinates.",
        f"{plan.rounds} rounds; with mini-batches the median of {plan.runs} runs. AFL's points are averages. All "
        "domains have the same Hessian, so that local steps cause no drift here: AgnosticFedAvg's limit is exact.",
        "λ is the vector of barycentric weights of the solution in the means: h = Σ λ_i c_i, over the worst domains.",
    ]
    if quick:
        notes.append("A quick version: fewer rounds and runs.")
    return tuple(notes)


# ---------------------------------------------------------------- figures

_LOOKS: Mapping[str, tuple[str, Any]] = {
    "AFL": (COLOURS[0], "-"),
    "AFL, mini-batches": (COLOURS[5], (0, (1, 1))),
    "OptimisticAFL": (COLOURS[2], (0, (6, 2))),
    "AgnosticFedAvg": (COLOURS[1], (0, (4, 1, 1, 1))),
    "FedAvg": ("0.35", (0, (2, 2))),
}


def _draw_plane(worlds: Sequence[World]) -> Any:
    """Draw points, means, the circle, the solutions and the paths towards them."""
    figure, axes = blank(len(worlds), width=4.6, height=4.9)
    marks = ("o", "s", "^", "D", "v")
    for axis, world in zip(axes, worlds, strict=True):
        for i, z in enumerate(world.points):
            axis.plot(*z.T, linestyle="none", marker=marks[i], markersize=2.6, color="0.72", zorder=1)
            axis.plot(*CENTRES[i], linestyle="none", marker=marks[i], markersize=8, color="white",
                      markeredgecolor="black", zorder=4)  # fmt: skip
            box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
            axis.annotate(
                f"D{i + 1}", CENTRES[i], (7, -3), textcoords="offset points", fontsize=8, zorder=3.5, bbox=box
            )
        angle = np.linspace(0.0, 2.0 * np.pi, 200)
        circle = world.circle.h + math.sqrt(world.circle.value) * np.column_stack([np.cos(angle), np.sin(angle)])
        axis.plot(
            *circle.T, color="0.5", linewidth=0.9, linestyle=(0, (1, 2)), label="smallest circle around the means"
        )
        for name in (*DRAWN, "FedAvg"):
            colour, dash = _LOOKS[name]
            label = f"path of {name}" + (" (averages)" if name == "AFL" else "")
            axis.plot(*world.paths[name].T, color=colour, linestyle=dash, linewidth=1.4, label=label, zorder=3)
        look = {"linestyle": "none", "zorder": 5}
        axis.plot(*world.circle.h, marker="+", markersize=12, markeredgewidth=1.6, color="black",
                  label="its centre", **look)  # fmt: skip
        axis.plot(*world.exact.h, marker="*", markersize=13, color=COLOURS[4], markeredgecolor="black",
                  label="agnostic solution", **look)  # fmt: skip
        axis.plot(*world.pooled, marker="X", markersize=9, color=COLOURS[3], markeredgecolor="black",
                  label="pooled mean", **look)  # fmt: skip
        noisy = "" if np.ptp(world.variances) == 0.0 else f"; D5 has {world.variances[-1]:g}"
        axis.set_title(f"{world.name}: Var = {QUIET:g}{noisy}", loc="left", fontsize=9)
        axis.set_aspect("equal")
        axis.set_xlim(-1.8, 4.8)
        axis.set_ylim(-2.2, 4.4)
        axis.set_xlabel("$h_1$")
    axes[0].set_ylabel("$h_2$")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_rounds(worlds: Sequence[World]) -> Any:
    """Draw excess and certified gap over rounds, both axes logarithmic."""
    figure, axes = blank(len(worlds), width=4.6, height=4.1, sharey=True)
    for axis, world in zip(axes, worlds, strict=True):
        for name, result in world.results.items():
            colour, dash = _LOOKS[name]
            rounds = result.trace.round[1:]
            excess = np.reshape(result.trace.value, (len(result.trace.round), -1))[1:] - world.exact.value
            low, middle, high = np.quantile(excess, [0.1, 0.5, 0.9], axis=1)
            shown = np.where(middle > 1e-13, middle, np.nan)
            axis.plot(rounds, shown, color=colour, linestyle=dash, linewidth=1.6, label=name)
            if excess.shape[1] > 1:
                axis.fill_between(rounds, np.maximum(low, 1e-13), np.maximum(high, 1e-13), color=colour, alpha=0.25,
                                  linewidth=0)  # fmt: skip
        colour, dash = _LOOKS["FedAvg"]
        excess = world.fedavg["value"] - world.exact.value
        axis.plot(world.fedavg["round"][1:], excess[1:], color=colour, linestyle=dash, linewidth=1.6, label="FedAvg")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(1e-13, 30.0)
        axis.set_xlabel("communication rounds")
        axis.set_title(f"{world.name}: min max F = {world.exact.value:.4f}", loc="left", fontsize=9)
    axes[0].set_ylabel("worst domain's loss minus its least possible")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    return figure


def _draw_domain_weights(worlds: Sequence[World]) -> Any:
    """Draw lambda over rounds in the second setting; dotted: exact."""
    from fedconvex.report import domain_weights_plot

    world = worlds[-1]
    figure, axes = blank(len(world.results), width=3.0, height=3.4, sharey=True)
    domain_weights_plot(world.results, world.problem, world.minimax, axes=list(axes), log=True)
    handles, labels = axes[0].get_legend_handles_labels()
    from matplotlib.lines import Line2D

    handles.append(Line2D([], [], color="0.3", linestyle=(0, (1, 2)), linewidth=1.2))
    labels = [*labels, "exact λ*"]
    figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False, fontsize=8)
    return figure
