"""How far a target lies from the mixtures of the domains, against the number of classes (Mohri, Sivek, Suresh 2019).

1. The example of the survey, for C classes: one domain has classes 1 and 2 equally often, each other class is a domain
   of its own, and the target has all classes but the second equally often. C = 3 is the target (1/2, 0, 1/2).
2. Its l1 distance from the mixtures is 1/(C - 1). Predictions without features: the agnostic optimum is uniform, of
   loss log C on the target, where log(C - 1) is possible; the guarantee pays M = log C times the distance.
3. Drawn: p domains and a target, label shares uniform on the simplex of C classes; the mean distance over draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.intervals import every, mean_interval, short
from fedconvex.papers.style import COLOURS, DASHED, blank, panel
from fedconvex.problems import Problem
from fedconvex.theory.agnostic_example import hull_distance


class HullScale(NamedTuple):
    """How large the experiment is."""

    classes: tuple[int, ...]
    domains: tuple[int, ...]
    draws: int


FULL = HullScale((2, 3, 5, 10, 20, 50, 100), (5, 10, 20), 200)
QUICK = HullScale((2, 3, 10), (5, 10), 8)


def example(C: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the target (C,) and the domains (C - 1, C) of the example.

    Examples
    --------
    >>> from fedconvex.papers.hull_classes import example
    >>> example(3)[0].tolist(), example(3)[1].tolist()
    ([0.5, 0.0, 0.5], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    """
    target = np.full(C, 1.0 / (C - 1))
    target[1] = 0.0
    domains = np.eye(C)[1:]
    domains[0] = np.eye(C)[:2].mean(axis=0)
    return target, domains


def agnostic(C: int) -> np.ndarray:
    """Return the predictions (C,) of the minimax model without features: a constant, and domains of two rows each."""
    rows = [([[1.0], [1.0]], [0, 1]), *(([[1.0], [1.0]], [k, k]) for k in range(2, C))]
    w = Problem(Federation.from_clients(rows), Softmax(C), 0.0, "uniform").solve_minimax().w.ravel()
    e = np.exp(w - w.max())
    return np.asarray(e / e.sum())


def by_hand(C: int) -> dict[str, Any]:
    """Return the example's distance, the loss of the minimax model on the target, and what the guarantee allows."""
    target, domains = example(C)
    h = agnostic(C)
    losses = -np.log(h)
    found = hull_distance(target, domains)
    best = math.log(C - 1)
    row = {"classes": C, "distance": found.distance, "loss": float(target[target > 0] @ losses[target > 0])}
    return row | {"best": best, "excess": row["loss"] - best, "allowed": float(losses.max()) * found.distance}


def drawn(scale: HullScale, seed: int, tell: Progress) -> Iterator[dict[str, Any]]:
    """Yield the distance of every draw."""
    for i, C in enumerate(scale.classes):
        tell(i / len(scale.classes), f"{C} classes")
        for p in scale.domains:
            for r in range(scale.draws):
                rng = np.random.default_rng([seed, C, p, r])
                domains, target = rng.dirichlet(np.ones(C), p), rng.dirichlet(np.ones(C))
                yield {"classes": C, "domains": p, "draw": r, "distance": hull_distance(target, domains).distance}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Compare the example with its closed form, and draw domains and targets."""
    scale = QUICK if quick else FULL
    exact, rows = [by_hand(C) for C in scale.classes if C > 2], list(drawn(scale, seed, tell))
    table = [
        {"classes": C, "domains": p, "distance": float(np.mean(_distances(rows, C, p)))}
        for p in scale.domains
        for C in scale.classes
    ]
    return Findings(
        "Distance of a target from the mixtures of the domains, against the number of classes",
        tuple(claims(exact, rows)),
        _notes(scale),
        {"hull-distance": _draw(exact, table)},
        {"table": table, "example": exact, "draws": rows},
    )


EXPERIMENT = Experiment(
    "hull-distance",
    "how far targets lie from the mixtures of the domains, against the number of classes and of domains",
    study,
    smaller="few classes and draws",
)


# ---------------------------------------------------------------- what came out


def _distances(rows: Sequence[dict[str, Any]], C: int, p: int) -> np.ndarray:
    return np.array([r["distance"] for r in rows if (r["classes"], r["domains"]) == (C, p)])


def claims(exact: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """Judge the example by its closed form, orders of means by intervals."""
    far = max(abs(r["distance"] - 1.0 / (r["classes"] - 1)) for r in exact)
    listed = ", ".join(str(r["classes"]) for r in exact)
    yield Claim(
        "Example: the l1 distance is 1/(C - 1); 1/2 for three classes, as the survey says",
        far <= 1e-9,
        f"C = {listed}: at most {far:.1e} off",
        True,
    )
    off = max(abs(r["excess"] - math.log(r["classes"] / (r["classes"] - 1))) for r in exact)
    text = "Example: the agnostic model loses log(C/(C - 1)) on the target against the best; log(3/2) for three classes"
    yield Claim(text, off <= 1e-4, f"by the package's minimax solver, at most {off:.1e} off", True)
    share = [r["excess"] / r["allowed"] for r in exact]
    yield Claim(
        "Example: that is within M times the distance, which the guarantee pays",
        max(share) <= 1.0,
        f"{min(share):.2f} to {max(share):.2f} of it",
        True,
    )
    counts, domains = sorted({r["classes"] for r in rows}), sorted({r["domains"] for r in rows})
    pairs = [(C, D, p) for p in domains for C, D in itertools.pairwise(counts)]
    steps = [
        mean_interval(_distances(rows, D, p)).mean - mean_interval(_distances(rows, C, p)).mean for C, D, p in pairs
    ]
    halves = [
        math.hypot(mean_interval(_distances(rows, D, p)).half, mean_interval(_distances(rows, C, p)).half)
        for C, D, p in pairs
    ]
    rising = [None if abs(s) <= h else s > 0.0 for s, h in zip(steps, halves, strict=True)]
    ends = "; ".join(
        f"p = {p}: " + ", ".join(short(float(_distances(rows, C, p).mean())) for C in (counts[0], counts[-1]))
        for p in domains
    )
    text = f"Drawn: with p domains the distance grows with the number of classes, from {counts[0]} to {counts[-1]}"
    yield Claim(text, every(rising), ends)
    few, many = domains[0], domains[-1]
    last = [mean_interval(_distances(rows, counts[-1], p)) for p in (few, many)]
    gap, half = last[0].mean - last[1].mean, math.hypot(last[0].half, last[1].half)
    text = f"Drawn, {counts[-1]} classes: {many} domains are nearer than {few}"
    yield Claim(text, None if abs(gap) <= half else gap > 0.0, f"difference {short(gap)} ± {short(half)}")


def _notes(scale: HullScale) -> tuple[str, ...]:
    return (
        "Of the survey: the example with three classes, distance 1/2, agnostic loss log 3 where log 2 is possible. For "
        "C classes: derived here; by linear programming, and the minimax model of a softmax without features.",
        f"Drawn: label shares uniform on the simplex (Dirichlet, all ones), {scale.draws} draws. Conditional "
        "distributions given the class are taken as equal: the distance is that of labels.",
    )


def _draw(exact: Sequence[dict[str, Any]], table: Sequence[dict[str, Any]]) -> Any:
    """Draw the example, and the means of the draws."""
    figure, axes = blank(2, width=4.2, height=3.4)
    C = [r["classes"] for r in exact]
    axes[0].plot(C, [r["distance"] for r in exact], "o-", color=COLOURS[0], label="l1 distance, 1/(C - 1)")
    axes[0].plot(C, [r["excess"] for r in exact], "s-", color=COLOURS[1], label="loss above the best, log(C/(C - 1))")
    axes[0].plot(C, [r["allowed"] for r in exact], color="0.4", linestyle=DASHED, label="M times the distance")
    axes[0].legend(fontsize=8, frameon=False)
    panel(axes[0], "the example", "classes C", "", "xy")
    for p, colour in zip(sorted({r["domains"] for r in table}), COLOURS, strict=False):
        mine = [r for r in table if r["domains"] == p]
        axes[1].plot([r["classes"] for r in mine], [r["distance"] for r in mine], "o-", color=colour, label=f"p = {p}")
    axes[1].legend(fontsize=8, frameon=False)
    panel(axes[1], "drawn label shares, p domains", "classes C", "mean l1 distance from the mixtures", "x")
    return figure
