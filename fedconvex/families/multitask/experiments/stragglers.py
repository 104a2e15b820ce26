"""Multi-task learning under stragglers: simulated time to a suboptimality (Smith et al., NIPS 2017, Figures 1 to 3).

1. Task t keeps a share 10^-r of its rows, r uniform on [0, 1]: statistical heterogeneity. P with the hinge loss, losses
   averaged per task, and mean-regularised models; its minimum is known to 1e-5 from exact coordinate ascent.
2. In every round a node works at a share of its full speed, uniform on [low, 1]: systems heterogeneity.
3. MOCHA: a round lasts the time of H steps at full speed; a node does the share of H that it manages. CoCoA: all nodes
   reach accuracy theta, a round lasts as long as the slowest. Mini-batches: b rows each, likewise.
4. H, theta, b, and the step size of mini-batch SGD are the best of a grid for every method, network and setting.
5. Simulated time of a round: most over nodes of 4 d flops a row / (speed x share), + 2 latencies
   + the floats that a node is sent and sends, as counted by the driver, x 64 bit / rate.
6. Nodes dropped with probability p: rounds of MOCHA to a certified gap. One node always dropped: what stays, and who
   is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import iterate
from fedconvex.driver import run as run_method
from fedconvex.federation import Federation
from fedconvex.losses import Hinge
from fedconvex.methods import MOCHA, Clock, CoCoA, Decay, MiniBatchSDCA, MiniBatchSGD
from fedconvex.papers.findings import Claim, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.intervals import every
from fedconvex.papers.style import COLOURS, blank, legend, panel
from fedconvex.problems import MeanRegularised, MultiTaskProblem

SPEED, FLOPS, BITS = 1e8, 4.0, 64.0  # chosen here: flops a second of a node; flops a row and feature; bits a float
GOAL = 0.01  # (P - P*)/P* that counts as solved
OPTIMUM = 1e-5  # relative accuracy of P*


class Network(NamedTuple):
    """How long messages take; sending and receiving at the same rate, nodes at the same time."""

    name: str
    latency: float  # seconds, one way
    rate: float  # bits a second


NETWORKS = (Network("WiFi", 0.005, 20e6), Network("LTE", 0.035, 6e6), Network("3G", 0.1, 1e6))  # chosen here
SETTINGS = (("none", 1.0), ("low", 0.9), ("high", 0.1))  # of the paper: least share of the full speed
METHODS = ("MOCHA", "CoCoA", "mini-batch SDCA", "mini-batch SGD")


class StragglerScale(NamedTuple):
    """How large the study is."""

    lam: float  # of MeanRegularised(lam, lam)
    work: tuple[float, ...]  # H over the mean number of rows
    theta: tuple[float, ...]
    batch: tuple[int, ...]
    steps: tuple[float, ...]  # of mini-batch SGD, over 1/lam
    drops: tuple[float, ...]
    rounds: int  # most
    seeds: int


class TimedRun(NamedTuple):
    """A run: suboptimality over rounds, and what every round asked of the nodes."""

    method: str
    setting: str
    choice: str  # H, theta, b
    rounds: np.ndarray  # (T,)
    work: np.ndarray  # (T,) seconds of computation so far
    suboptimality: np.ndarray  # (T,) certified upper bound of (P - P*)/P*
    floats: float  # a round and node, both ways

    def time(self, network: Network) -> np.ndarray:
        """Return the simulated seconds so far, (T,)."""
        return self.work + self.rounds * (2.0 * network.latency + self.floats * BITS / network.rate)

    def reached(self, network: Network) -> float:
        """Return the simulated seconds to the goal, inf if it is not reached."""
        hit = np.flatnonzero(self.suboptimality <= GOAL)
        return float(self.time(network)[hit[0]]) if hit.size else math.inf


class DroppedNodes(NamedTuple):
    """MOCHA with dropped nodes."""

    p: float
    rounds: list[int]  # of each seed, to the goal
    solved: bool


class StragglerStudy(NamedTuple):
    """What came out."""

    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    tables: dict[str, list[dict[str, Any]]]
    figures: dict[str, Any]


def skewed(federation: Federation, seed: Any) -> Federation:
    """Return a federation whose task t keeps a share 10^-r of its rows, r uniform on [0, 1]; at least five rows."""
    rng, keep = np.random.default_rng(seed), []
    for a, n in zip(federation.ptr[:-1], federation.sizes, strict=True):
        many = max(min(5, n), round(n * 10.0 ** -rng.uniform()))
        keep.append(a + np.sort(rng.permutation(n)[:many]))
    rows, task = np.concatenate(keep), np.repeat(np.arange(federation.K), [len(k) for k in keep])
    return Federation.from_arrays(federation.X[rows], federation.y[rows], federation.labels[task])


def straggler_study(federation: Federation, scale: StragglerScale, seed: int, tell: Progress) -> StragglerStudy:
    """Run the study on tasks of a federation with labels -1, +1."""
    rows = skewed(federation, [seed, 7])  # 1
    problem = MultiTaskProblem(rows, Hinge(), MeanRegularised(scale.lam, scale.lam), normalisation="mean")
    tell(0.0, "the optimum")
    optimum = problem.solve(OPTIMUM)
    curves: list[TimedRun] = []
    for number in range(scale.seeds):
        for j, name in enumerate(METHODS):
            share = (number + j / len(METHODS)) / scale.seeds
            tell(0.05 + 0.75 * share, f"{name}, run {number + 1} of {scale.seeds}")
            part = partial(_curves, name, problem, optimum.lower, scale, 1000 * seed + number)
            curves += finished_part(f"stragglers, {name}, run {number}", part, (TimedRun,))
    drops = []
    for j, p in enumerate(scale.drops):
        tell(0.8 + 0.15 * j / len(scale.drops), f"nodes dropped with probability {p:g}")
        drops.append(_dropped(problem, optimum.lower, p, scale, seed))  # 6
    tell(0.95, "a node that is always dropped")
    blocked = _blocked(problem, scale, seed)
    best = _best(curves)
    return StragglerStudy(
        tuple(_claims(best, drops, blocked)),
        _notes(problem, scale, best),
        {"times": _times(best), "drops": [_drop_row(d) for d in drops], "blocked": [blocked]},
        {"stragglers": _draw(best, drops)},
    )


# ---------------------------------------------------------------- runs


def _curves(name: str, problem: MultiTaskProblem, optimum: float, scale: StragglerScale, seed: int) -> list[TimedRun]:
    """Run one method with its whole grid in all settings."""
    runs: list[tuple[str, Any]]
    method: Any
    out, mean, d = [], float(problem.federation.sizes.mean()), problem.federation.d
    if name == "MOCHA":  # 3
        for factor in scale.work:
            H = max(1, round(factor * mean))
            for setting, low in SETTINGS:
                method = MOCHA(local_steps=H, clock=None if low == 1.0 else Clock(low, 1.0))
                rounds, steps, sub, floats = _run(method, problem, optimum, scale, seed)
                out.append(_timed(name, setting, f"H = {H}", rounds, np.full_like(steps, H), sub, floats, 1.0, seed, d))
        return out
    if name == "CoCoA":
        runs = [(f"theta = {x:g}", CoCoA(theta=x)) for x in scale.theta]
    elif name == "mini-batch SDCA":
        runs = [(f"b = {b}", MiniBatchSDCA(batch_size=b)) for b in scale.batch]
    else:
        grid = [(s / scale.lam, power) for s in scale.steps for power in (0.0, 0.5, 1.0)]
        runs = [
            (f"b = {b}, step {eta:.3g}{'' if q == 0 else '/(1 + t)' if q == 1 else '/sqrt(1 + t)'}", _sgd(eta, q, b))
            for b in scale.batch
            for eta, q in grid
        ]
    for choice, method in runs:
        rounds, steps, sub, floats = _run(method, problem, optimum, scale, seed)
        for setting, low in SETTINGS:
            out.append(_timed(name, setting, choice, rounds, steps, sub, floats, low, seed, d))
    return out


def _sgd(eta: float, power: float, batch: int) -> MiniBatchSGD:
    return MiniBatchSGD(step_size=eta if power == 0.0 else Decay(eta, 1.0, power), batch_size=batch)


def _run(
    method: Any, problem: MultiTaskProblem, optimum: float, scale: StragglerScale, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return rounds looked at (T,), steps of every round and node, suboptimality (T,), floats a round and node."""
    fed, batch = problem.federation, getattr(method, "batch_size", 0)
    before, steps, rounds, sub = np.zeros(fed.K), [], [], []
    for t, state in iterate(method, problem, rounds=scale.rounds, seed=seed):
        if t:
            now = state.steps[0] if hasattr(state, "steps") else t * np.minimum(batch, fed.sizes).astype(float)
            steps.append(now - before)
            before = now
        if t % max(1, t // 25) == 0:
            rounds.append(t)
            sub.append(float(problem.value(state.w)[0]) / optimum - 1.0)
            if not sub[-1] < 1e6 or sub[-1] <= GOAL:
                break
    one = run_method(method, problem, rounds=1, tol=0.0, seed=seed, progress=False).trace
    floats = float(one.floats_down[-1] + one.floats_up[-1]) / fed.K
    return np.array(rounds), np.array(steps), np.array(sub), floats


def _timed(
    name: str, setting: str, choice: str, rounds: np.ndarray, steps: np.ndarray, sub: np.ndarray,
    floats: float, low: float, seed: int, d: int,
) -> TimedRun:  # fmt: skip
    """Return the curve in seconds of computation: every round waits for its slowest node."""
    share = np.random.default_rng([seed, 11]).uniform(low, 1.0, steps.shape)  # 2
    work = np.concatenate([[0.0], np.cumsum((steps / share).max(axis=1))]) if len(steps) else np.zeros(1)
    return TimedRun(name, setting, choice, rounds, work[rounds] * FLOPS * d / SPEED, sub, floats)  # 5


def _dropped(problem: MultiTaskProblem, optimum: float, p: float, scale: StragglerScale, seed: int) -> DroppedNodes:
    """Run MOCHA with nodes dropped until its duality gap is at most a share GOAL of the optimum."""
    method = MOCHA(local_steps=_usual(problem), drop=p)
    options: dict[str, Any] = {"rounds": 20 * scale.rounds, "tol": GOAL * optimum, "record_every": 5, "progress": False}
    runs = [run_method(method, problem, seed=1000 * seed + number, **options) for number in range(scale.seeds)]
    return DroppedNodes(p, [r.rounds for r in runs], all(float(r.gap) <= GOAL * optimum for r in runs))


def _blocked(problem: MultiTaskProblem, scale: StragglerScale, seed: int) -> dict[str, Any]:
    """Run MOCHA with one node that never answers: the one in the middle."""
    fed = problem.federation
    node = fed.K // 2
    drop = [float(t == node) for t in range(fed.K)]
    method = MOCHA(local_steps=_usual(problem), drop=drop)
    trace = run_method(method, problem, rounds=scale.rounds, tol=0.0, seed=seed, record_every=10, progress=False).trace
    gap, share = trace.gap / trace.value, trace.share
    return {
        "node": str(fed.labels[node]),
        "named": str(fed.labels[int(trace.blocking[-1])]),
        "rounds": int(trace.round[-1]),
        "relative_gap": float(gap[-1]),
        "its_part": float(share[-1] * gap[-1]),
        "others_part": float((1.0 - share[-1]) * gap[-1]),
    }


def _usual(problem: MultiTaskProblem) -> int:
    return max(1, round(float(problem.federation.sizes.mean())))


# ---------------------------------------------------------------- what is best


Best = Mapping[tuple[str, str, str], list[TimedRun]]  # by setting, network, method
EVERYWHERE = list(itertools.product(SETTINGS, NETWORKS, METHODS))


def _best(curves: Sequence[TimedRun]) -> Best:
    """Return the runs of the choice with the least median time, else farthest down, everywhere."""
    out = {}
    for (setting, _), network, name in EVERYWHERE:
        mine = [c for c in curves if (c.method, c.setting) == (name, setting)]
        groups = [[c for c in mine if c.choice == choice] for choice in dict.fromkeys(c.choice for c in mine)]

        def key(group: list[TimedRun], network: Network = network) -> tuple[float, float]:
            worst = max(float(c.suboptimality[-1]) for c in group)
            return float(np.median([c.reached(network) for c in group])), worst

        out[setting, network.name, name] = min(groups, key=key)
    return out


def _seconds(best: Best, setting: str, network: Network, name: str) -> np.ndarray:
    return np.array([c.reached(network) for c in best[setting, network.name, name]])


def _times(best: Best) -> list[dict[str, Any]]:
    rows = []
    for (setting, low), network, name in EVERYWHERE:
        group, reached = best[setting, network.name, name], _seconds(best, setting, network, name)
        row: dict[str, Any] = {"variability": setting, "least_share": low, "network": network.name, "method": name}
        row |= {"choice": group[0].choice, "seconds": _shown(float(np.median(reached)))}
        row |= {"fewest": _shown(float(reached.min())), "most": _shown(float(reached.max()))}
        row |= {"rounds": int(np.median([c.rounds[-1] for c in group])), "floats_a_round_and_node": group[0].floats}
        rows.append(row | {"last_suboptimality": float(np.median([c.suboptimality[-1] for c in group]))})
    return rows


def _shown(seconds: float) -> str:
    return f"{seconds:.4g}" if math.isfinite(seconds) else "not reached"


def _drop_row(d: DroppedNodes) -> dict[str, Any]:
    row = {"p": d.p, "rounds": float(np.median(d.rounds)), "fewest": min(d.rounds), "most": max(d.rounds)}
    return row | {"solved": d.solved}


def _claims(best: Best, drops: Sequence[DroppedNodes], blocked: dict[str, Any]) -> Iterator[Claim]:
    """Judge what the paper says of stragglers."""
    for setting, words in (("none", "unequal tasks alone"), ("high", "speeds that vary tenfold")):
        numbers, first = [], []
        for network in NETWORKS:
            runs = {name: _seconds(best, setting, network, name) for name in METHODS}
            median = {name: float(np.median(v)) for name, v in runs.items()}
            first += [_sooner(runs["MOCHA"], runs[name]) for name in METHODS[1:]]
            said = ", ".join(
                f"{name} {_shown(median[name])}"
                + (f" ({_shown(float(v.min()))} to {_shown(float(v.max()))})" if np.isfinite(v).all() else "")
                for name, v in runs.items()
            )
            numbers.append(f"{network.name}: {said}")
        yield Claim(
            f"With {words} MOCHA needs the least simulated time on every network, in every run",
            every(first),
            "seconds, median (range) of the runs; " + "; ".join(numbers),
        )
    most = [d for d in drops if d.p > 0.0]
    rounds = [f"p = {d.p:g}: {np.median(d.rounds):g}" + ("" if d.solved else " (not reached)") for d in drops]
    yield Claim(
        f"MOCHA converges with nodes dropped with probability {', '.join(f'{d.p:g}' for d in most)}",
        all(d.solved for d in most),
        f"rounds to a certified gap of {100 * GOAL:g} %: " + ", ".join(rounds),
    )
    yield Claim(
        "A node that is always dropped blocks the gap, and is named",
        blocked["named"] == blocked["node"] and blocked["relative_gap"] > GOAL,
        f"after {blocked['rounds']} rounds the gap is {100 * blocked['relative_gap']:.3g} % of the objective; node "
        f"{blocked['named']} is named ({blocked['node']} never answered)",
        everywhere=True,
    )
    yield Claim(
        f"The part of all other nodes falls below {100 * GOAL:g} % of that node's",
        blocked["others_part"] < GOAL * blocked["its_part"],
        f"theirs is {100 * blocked['others_part']:.2g} % of the objective, its {100 * blocked['its_part']:.3g} %",
    )


def _sooner(mine: np.ndarray, theirs: np.ndarray) -> bool | None:
    """Whether all my runs are done before all of theirs: false if all are later, None in between."""
    return True if mine.max() < theirs.min() else False if mine.min() > theirs.max() else None


def _notes(problem: MultiTaskProblem, scale: StragglerScale, best: Best) -> tuple[str, ...]:
    sizes, networks = problem.federation.sizes, []
    for n in NETWORKS:
        networks.append(f"{n.name} {1e3 * n.latency:g} ms and {n.rate / 1e6:g} Mbit/s")
    tuned = {name: {g[0].choice for (_, _, who), g in best.items() if who == name} for name in METHODS}
    return (
        f"Stragglers: {len(sizes)} tasks of {sizes.min()} to {sizes.max()} rows, mean-regularised with lam1 = lam2 = "
        f"{scale.lam:g}, losses averaged per task. Simulated: {SPEED:.0e} flop/s a node, {FLOPS:g} flops a row and "
        f"feature, {BITS:g} bits a float as counted; {', '.join(networks)} one way. These numbers are chosen here: "
        "simulated times can be compared with each other only.",
        f"Solved means (P - P*)/P* <= {GOAL:g}. Every method has the best of its grid for every network and setting "
        f"({scale.seeds} runs): " + "; ".join(f"{name} {', '.join(sorted(c))}" for name, c in tuned.items()) + ".",
        "CoCoA's looks at its accuracy are not charged. MOCHA's round lasts H steps at full speed, whatever "
        "the nodes manage.",
    )


def _draw(best: Best, drops: Sequence[DroppedNodes]) -> Any:
    """Draw suboptimality over simulated time for two networks under high variability, and rounds over drops."""
    figure, axes = blank(4, width=3.1, height=3.4)
    for axis, (setting, network) in zip(
        axes, (("none", NETWORKS[0]), ("high", NETWORKS[0]), ("high", NETWORKS[2])), strict=False
    ):
        for j, name in enumerate(METHODS):
            for i, c in enumerate(best[setting, network.name, name]):
                look = {"linewidth": 1.6, "label": name} if i == 0 else {"linewidth": 0.7, "alpha": 0.5}
                dashes = ("-", "--", "-.", ":")[j]
                x, y = c.time(network)[1:], np.maximum(c.suboptimality[1:], 1e-4)
                axis.plot(x, y, color=COLOURS[j], linestyle=dashes, **look)
        axis.axhline(GOAL, color="0.5", linewidth=0.8)
        speeds = "equal speeds" if setting == "none" else "speeds vary tenfold"
        panel(axis, f"{network.name}, {speeds}", "simulated seconds", log="xy")
    axes[0].set_ylabel("(P - P*) / P*")
    last, p = axes[3], [d.p for d in drops]
    last.plot(p, [np.median(d.rounds) for d in drops], color=COLOURS[0], marker="o", markersize=4.5, label="MOCHA")
    last.vlines(p, [min(d.rounds) for d in drops], [max(d.rounds) for d in drops], color=COLOURS[0], linewidth=1.0)
    grid, base = np.linspace(0.0, max(p), 50), float(np.median(drops[0].rounds))
    look = {"color": "0.3", "linewidth": 0.9, "linestyle": "--", "label": "rounds at p = 0, / (1 - p)"}
    last.plot(grid, base / (1.0 - grid), **look)
    panel(last, "dropped nodes", "probability p of a drop", f"rounds to a gap of {100 * GOAL:g} %", log="y")
    last.legend(frameon=False, fontsize=7.5, loc="upper left")
    legend(figure, axes[0], columns=4)
    return figure
