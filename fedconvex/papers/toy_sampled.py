"""The toy regression with points on clients at random and sampled clients: what sampling costs AgnosticFedAvg.

1. FedJAX's recipe: 500 points, domain i = 0, ..., 4 uniform on [i^2, i^2 + 10]; a point h loses (h - z)^2 at z. Every
   point goes to one of 50 clients at random, so that clients mix all domains.
2. AgnosticFedAvg (Ro et al. 2021, Algorithm 1), one full local step, everybody or 25, 10, 5 sampled clients a round,
   from h = 0; the gap of the worst domain's loss to the exact minimax value.
3. Of the last model, and of the average over the second half of the rounds, after T and 5 T rounds; with a third of the
   domain step; with counts of rows averaged over a window of 100 rounds.
4. Whether what stays is noise or bias: the mean over trajectories of the averages beside the exact point.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import AgnosticFedAvg
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.intervals import Interval, every, mean_interval
from fedconvex.papers.style import COLOURS, blank, panel
from fedconvex.problems import Problem

CLIENTS, POINTS, STEP, DOMAIN_STEP, WINDOW, LONGER = 50, 500, 0.03, 1e-3, 100, 5
NONE = 1e-3  # share of the minimax value: a gap below it counts as none


class SampledScale(NamedTuple):
    """How large the experiment is."""

    rounds: int  # T
    sampled: tuple[int, ...]  # clients a round
    trajectories: int


FULL, QUICK = SampledScale(1000, (50, 25, 10, 5), 40), SampledScale(200, (50, 5), 6)


def line(seed: int) -> Problem:
    """Return the points on the line, on clients at random; the loss (x'h - y)^2/2 of rows sqrt(2) is (h - z)^2."""
    rng = np.random.default_rng(seed)
    domain = rng.integers(0, 5, POINTS)
    z, client = domain**2 + 10.0 * rng.random(POINTS), rng.integers(0, CLIENTS, POINTS)
    root = np.sqrt(2.0)
    return Problem(Federation.from_arrays(np.full((POINTS, 1), root), root * z, client, domains=domain), Squared())


def exact(problem: Problem) -> tuple[float, float]:
    """Return the minimax point and value: the best of a fine search between the two domains that are worst there."""
    fed = problem.federation
    z = np.asarray(fed.y) / np.sqrt(2.0)
    means, variances = (np.array([f(z[fed.domain == i]) for i in range(5)]) for f in (np.mean, np.var))
    crossings = [
        (means[j] ** 2 + variances[j] - means[i] ** 2 - variances[i]) / (2.0 * (means[j] - means[i]))
        for i in range(5)
        for j in range(i)
    ]
    points = np.array([*means, *crossings])  # of a maximum of parabolas: a vertex, or where two of them meet
    worst = ((points[:, None] - means) ** 2 + variances).max(axis=1)
    return float(points[np.argmin(worst)]), float(worst.min())


def runs(problem: Problem, sampled: int, scale: SampledScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the gaps of every trajectory for one number of sampled clients."""
    value = exact(problem)[1]
    cases = {"": (1, {}), "long": (LONGER, {}), "third": (1, {"domain_step_size": DOMAIN_STEP / 3.0})}
    cases |= {"window": (1, {"window": WINDOW})}
    R = 1 if sampled == CLIENTS else scale.trajectories
    for name, (times, settings) in cases.items():
        given: dict[str, Any] = {"step_size": STEP, "domain_step_size": DOMAIN_STEP, "participation": sampled}
        last, total, rounds = np.zeros((R, 1)), np.zeros((R, 1)), times * scale.rounds
        for t, state in iterate(AgnosticFedAvg(**given | settings), problem, rounds=rounds, seed=seed, trajectories=R):
            last = state.w
            if 2 * t > rounds:
                total += state.w
        average = total / (rounds - rounds // 2)
        gaps = (problem.domain_values(w).max(axis=1) - value for w in (last, average))
        for r, (own, averaged) in enumerate(zip(*gaps, strict=True)):
            row = {"sampled": sampled, "case": name, "trajectory": r, "last": float(own), "average": float(averaged)}
            yield row | {"h": float(average[r, 0])}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run all numbers of sampled clients on one draw of the points."""
    scale, problem = QUICK if quick else FULL, line(seed)
    rows: list[dict[str, Any]] = []
    for i, sampled in enumerate(scale.sampled):
        tell(i / len(scale.sampled), f"{sampled} clients a round")
        rows += runs(problem, sampled, scale, seed)
    table = [
        {"sampled": m, "case": case or f"{scale.rounds} rounds"}
        | {k: float(np.mean(_of(rows, k, m, case))) for k in ("last", "average")}
        for m in scale.sampled
        for case in ("", "long", "third", "window")
    ]
    return Findings(
        "The toy regression with sampled clients: what sampling costs AgnosticFedAvg (Ro et al. 2021)",
        tuple(claims(rows, exact(problem), float(problem.solve_minimax().value))),
        _notes(scale),
        {"toy-sampled": _draw(rows, scale)},
        {"table": table, "runs": rows},
    )


EXPERIMENT = Experiment(
    "toy-sampled",
    "the toy regression with points on clients at random: what sampling clients costs AgnosticFedAvg",
    study,
    smaller="everybody and five clients, 200 rounds, few trajectories",
)


# ---------------------------------------------------------------- what came out


def _of(rows: Sequence[dict[str, Any]], what: str, sampled: int, case: str = "") -> np.ndarray:
    return np.array([r[what] for r in rows if r["sampled"] == sampled and r["case"] == case])


def claims(rows: Sequence[dict[str, Any]], point: tuple[float, float], solved: float) -> Iterator[Claim]:
    """Judge gaps by intervals over the trajectories."""
    h, value = point
    off = abs(solved - value)
    text = "The package's minimax value is that of the worst of five parabolas by hand"
    yield Claim(text, off <= 1e-9 * value, f"{value:.6f} at h = {h:.6f}, {off:.1e} apart", True)
    few = min(r["sampled"] for r in rows)
    whole = float(_of(rows, "last", CLIENTS)[0])
    text = f"Everybody: the gap of the last model is gone, below {NONE:g} of the value"
    yield Claim(text, whole <= NONE * value, f"{whole:.2e}")
    first, long, third, window = (mean_interval(_of(rows, "average", few, c)) for c in ("", "long", "third", "window"))
    above = f"{NONE:g} of the value = {NONE * value:.3f}"
    yield Claim(
        f"{few} of {CLIENTS} clients a round: a gap stays in the average of the second half, above {above}",
        first.above(NONE * value),
        f"{first}; of the last model {mean_interval(_of(rows, 'last', few))}",
    )
    text = f"It stays with {LONGER} times the rounds, a third of the domain step, or a window of {WINDOW} rounds"
    stays = every(d.above(NONE * value) for d in (long, third, window))
    yield Claim(text, stays, f"{long}; {third}; {window}")
    counts = sorted({r["sampled"] for r in rows if r["sampled"] < CLIENTS})
    means = {m: mean_interval(_of(rows, "average", m, "long")) for m in counts}
    pairs = [(means[a], means[b]) for a, b in itertools.pairwise(counts)]
    falls = [Interval(a.mean - b.mean, float(np.hypot(a.half, b.half))).above() for a, b in pairs]
    text = "The more clients a round, the smaller it is"
    yield Claim(text, every(falls) if falls else None, "; ".join(f"{m}: {d}" for m, d in means.items()))
    shift = mean_interval(_of(rows, "h", few, "long") - h)
    away = shift.above() if shift.mean > 0.0 else Interval(-shift.mean, shift.half).above()
    text = "It is bias, not noise: the mean over trajectories of the averages is not the exact point"
    yield Claim(text, away, f"h off by {shift}")


def _notes(scale: SampledScale) -> tuple[str, ...]:
    return (
        "Points and domains of FedJAX (fedjax/datasets/toy_regression.py); clients, steps and sampling are chosen "
        f"here: {CLIENTS} clients, step {STEP:g}, domain step {DOMAIN_STEP:g}, {scale.rounds} rounds, "
        f"{scale.trajectories} trajectories, one draw of the points.",
        "Where clients are sampled, the server divides sums over them by random numbers of rows: averages of quotients "
        "are not quotients of averages, and the point where nothing moves in the mean is another one.",
    )


def _draw(rows: Sequence[dict[str, Any]], scale: SampledScale) -> Any:
    """Draw gaps of the averages over the number of sampled clients."""
    figure, axes = blank(2, width=4.2, height=3.4)
    counts = [m for m in scale.sampled if m < CLIENTS]
    names = {"": f"{scale.rounds} rounds", "long": f"{LONGER * scale.rounds} rounds"}
    names |= {"third": "a third of the domain step", "window": f"window of {WINDOW} rounds"}
    for what, axis in zip(("average", "last"), axes, strict=True):
        for i, ((case, name), colour) in enumerate(zip(names.items(), COLOURS, strict=False)):
            found = [mean_interval(_of(rows, what, m, case)) for m in counts]
            x = np.array(counts) * (0.94 + 0.04 * i)
            axis.errorbar(
                x, [d.mean for d in found], [d.half for d in found], fmt="o-", capsize=2, color=colour, label=name
            )
        axis.set_ylim(0.0, None)
        title = "average of the second half's models" if what == "average" else "last model"
        panel(axis, title, "clients a round, of 50", "", "x")
        axis.set_xticks(counts, [str(m) for m in counts])
        axis.minorticks_off()
    axes[0].set_ylabel("gap of the worst domain's loss, mean and 95 %")
    axes[0].legend(fontsize=8, frameon=False)
    return figure
