"""Columns at different owners: all methods for vertical data on Adult, and what more owners cost.

1. Adult (UCI): demographic and financial columns at two owners, of whom the second knows the label, income above
   50,000 dollars, and holds the intercept; numbers standardised, categories one-hot, logistic loss. Without the file:
   breast_cancer, mean values and worst values of its tumours.
2. All methods from zero to a certified gap: rounds, numbers up and down, seconds, beside the pooled exact optimum.
3. Numbers sent against the formula: n a round, owner and direction (four more and less for Newton's residuals).
4. The same columns dealt out to more owners: descent stays as it is, damped blocks pay for every owner.
5. What the demographic owner adds: the least objective with and without its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.datasets import load_bundled
from fedconvex.driver import run as run_method
from fedconvex.losses import Logistic
from fedconvex.methods import FedBCD, VerticalAcceleratedGradient, VerticalGradientDescent, VerticalNewtonCG
from fedconvex.papers.archive import read_archive
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.style import COLOURS, blank, legend, panel
from fedconvex.problems import VerticalProblem
from fedconvex.vertical_federation import VerticalFederation

L2, TARGET = 1e-2, 1e-8
DEMOGRAPHIC = ("age", "marital-status", "relationship", "race", "sex", "native-country")
KEYS = ("num_names", "cat_names", "x_num_train", "x_cat_train", "y_train")
_LEFT_OUT = "fnlwgt"  # the weight of a census record


class Scale(NamedTuple):
    """How large the experiment is."""

    rounds: int
    owners: tuple[int, ...]
    rows: int | None  # of Adult


FULL, QUICK = Scale(20_000, (2, 3, 4, 6, 8), None), Scale(3000, (2, 4), 2000)


class Course(NamedTuple):
    """One method on one split."""

    name: str
    owners: int
    rows: int
    rounds: int
    up: int
    down: int
    seconds: float
    gap: float  # certified
    excess: float  # F - F*, by the exact optimum
    trace: dict[str, Any]  # of the run: arrays (T,) by name

    @property
    def sums(self) -> int:
        """Numbers up by the formula: n a round and owner."""
        more = 4 if self.name == "Newton-CG" else 0
        return self.rounds * self.owners * (self.rows + more)


def methods() -> dict[str, Any]:
    """Return the methods by name; their steps are what theorems give."""
    return {
        "gradient descent": VerticalGradientDescent(step_size="auto"),
        "accelerated": VerticalAcceleratedGradient(step_size="auto"),
        "FedBCD, Q = 1": FedBCD(),
        "FedBCD, Q = 10": FedBCD(local_steps=10),
        "FedBCD in turn, Q = 10": FedBCD(local_steps=10, order="in turn"),
        "Newton-CG": VerticalNewtonCG(),
    }


# ---------------------------------------------------------------- data


def split(data: Any, rows: int | None) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
    """Return the name, the owners' columns, and the labels, -1 and 1; the last owner's last column is one.

    Parameters
    ----------
    data : path or None
        An npz with num_names, cat_names, x_num_train (n, p), x_cat_train (n, q) positions of the categories, y_train
        (n,) 0 or 1, and categories_0, ..., categories_(q-1), "?" for unknown; None for breast_cancer.
    rows : int or None
        How many of the first rows; None for all.

    Raises
    ------
    ValueError
        If arrays are missing or do not fit.
    """
    if data is None:
        X, y, _ = load_bundled("breast_cancer")
        return "breast_cancer", {"means": X[:, :10], "worst values": _with_ones(X[:, 20:])}, y
    who = f"--data {Path(data).name}"
    arrays = read_archive(data, KEYS, lambda key: key.startswith("categories_"), f"{', '.join(KEYS)}, ...")
    y, numbers, codes = (arrays[key][:rows] for key in ("y_train", "x_num_train", "x_cat_train"))
    shapes = (len(y), arrays["num_names"].size), (len(y), arrays["cat_names"].size)
    if (numbers.shape, codes.shape) != shapes or not np.isin(y, (0, 1)).all() or np.unique(y).size < 2:
        got = f"{numbers.shape}, {codes.shape}, labels {np.unique(y)[:3].tolist()}"
        raise bad(who, f"hold numbers {shapes[0]}, categories {shapes[1]} and labels 0 and 1", got)
    parts: dict[str, list[np.ndarray]] = {"demographic": [], "financial": []}
    for j, name in enumerate(arrays["num_names"].tolist()):
        x = numbers[:, j].astype(float)
        if name != _LEFT_OUT and x.std() > 0.0:
            parts["demographic" if name in DEMOGRAPHIC else "financial"].append((x[:, None] - x.mean()) / x.std())
    for j, name in enumerate(arrays["cat_names"].tolist()):
        levels = arrays.get(f"categories_{j}")
        if levels is None or codes[:, j].min() < 0 or codes[:, j].max() >= levels.size:
            raise bad(f"{who}: categories_{j}", "name the categories of x_cat_train", "none, or too few")
        one_hot = (codes[:, j, None] == np.flatnonzero(levels != "?")).astype(float)
        parts["demographic" if name in DEMOGRAPHIC else "financial"].append(one_hot[:, one_hot.any(axis=0)])
    blocks = {owner: np.hstack(some) for owner, some in parts.items() if some}
    if len(blocks) < 2:
        raise bad(who, f"have demographic columns ({', '.join(DEMOGRAPHIC)}) and others", "of one kind only")
    return Path(data).stem, blocks | {"financial": _with_ones(blocks["financial"])}, 2.0 * y - 1.0


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))])


def owners_of(blocks: dict[str, np.ndarray], m: int) -> list[np.ndarray]:
    """Return the same columns, in their order, at m owners of nearly equally many; two are as given."""
    if m == len(blocks):
        return list(blocks.values())
    return list(np.array_split(np.hstack(list(blocks.values())), m, axis=1))


# ---------------------------------------------------------------- measuring


def course(name: str, method: Any, problem: VerticalProblem, rounds: int) -> Course:
    """Return what a method took to the certified gap, or to its last round."""
    of: Any = problem
    every = 1 if name in ("accelerated", "Newton-CG") else 5
    result = run_method(method, of, rounds=rounds, tol=TARGET, record_every=every, progress=False)
    trace, best = result.trace, problem.solve()
    seconds, excess = float(trace.seconds[-1]), float(trace.value[-1]) - best.value
    sent = int(trace.floats_up[-1]), int(trace.floats_down[-1])
    return Course(name, problem.federation.K, problem.federation.n, result.rounds, *sent, seconds, float(result.gap),
                  excess, dict(trace))  # fmt: skip


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run all methods, then some with more owners; data: a path as for `split`."""
    scale = QUICK if quick else FULL
    name, blocks, y = split(data, scale.rows)
    problem = VerticalProblem(VerticalFederation.from_blocks(blocks, y), Logistic(), L2)
    some, courses = methods(), []
    part = progress_part(tell, 0.0, 0.5)
    for i, (label, method) in enumerate(some.items()):
        part(i / len(some), label)
        courses.append(finished_part(label, partial(course, label, method, problem, scale.rounds), (Course,)))
    grown = []
    for i, m in enumerate(scale.owners):
        tell(0.5 + 0.4 * i / len(scale.owners), f"{m} owners")
        more = VerticalProblem(VerticalFederation.from_blocks(owners_of(blocks, m), y), Logistic(), L2)
        for label in ("accelerated", "FedBCD, Q = 10"):
            grown.append(
                finished_part(
                    f"{label}, {m} owners", partial(course, label, some[label], more, scale.rounds), (Course,)
                )
            )
    tell(0.9, "without the partner")
    own = dict(list(blocks.items())[1:])
    best, alone = problem.solve(), VerticalProblem(VerticalFederation.from_blocks(own, y), Logistic(), L2).solve()
    return Findings(
        f"Columns at different owners, {name}: methods for vertical data",
        tuple(_claims(courses, grown, best, alone)),
        _notes(problem, best, blocks),
        {"courses": _draw(courses, grown)},
        {"table": [_row(c) for c in courses], "owners": [_row(c) for c in grown]},
    )


EXPERIMENT = Experiment(
    "vertical-adult",
    "vertical data: rounds, numbers and seconds of all methods to a certified gap, and what more owners cost",
    study,
    "optional npz of Adult with columns of numbers and categories; default bundled breast_cancer",
    "fewer owners, and of Adult 2,000 rows",
)


# ---------------------------------------------------------------- what came out


def _claims(courses: Sequence[Course], grown: Sequence[Course], best: Any, alone: Any) -> Iterator[Claim]:
    by = {c.name: c for c in courses}
    worst = max(courses, key=lambda c: c.gap)
    yield Claim(
        f"Every method reaches a certified gap of {TARGET:g}",
        worst.gap <= TARGET,
        f"largest {worst.gap:.2g}, {worst.name}",
        refutable=True,
    )
    below = min(c.gap - c.excess for c in (*courses, *grown))
    yield Claim(
        "No certificate is below the distance from the exact optimum",
        below >= -1e-12,
        f"smallest difference {below:.2g}",
        everywhere=True,
    )
    off = [c for c in (*courses, *grown) if c.name != "FedBCD in turn, Q = 10" and c.up != c.sums]
    one = by["FedBCD in turn, Q = 10"]
    yield Claim(
        "Numbers sent are n a round and owner",
        not off and one.up == one.rounds * one.rows,
        ", ".join(f"{c.name}: {c.up:,} for {c.sums:,}" for c in off) or f"{by['accelerated'].up:,} for accelerated",
        everywhere=True,
    )
    plain, fast = by["gradient descent"].rounds, by["accelerated"].rounds
    yield Claim("Acceleration takes fewer rounds than plain descent", fast < plain, f"{fast:,} for {plain:,}")
    least = min(courses, key=lambda c: c.up)
    yield Claim(
        "Newton-CG sends the fewest numbers of all",
        least.name == "Newton-CG",
        f"{least.name} {least.up:,}; accelerated {by['accelerated'].up:,}",
    )
    each = {name: [c.rounds for c in grown if c.name == name] for name in ("accelerated", "FedBCD, Q = 10")}
    same = max(each["accelerated"]) - min(each["accelerated"])
    yield Claim("Accelerated rounds do not depend on the number of owners", same <= 1, f"rounds {each['accelerated']}")
    damped = each["FedBCD, Q = 10"]
    yield Claim("Damped blocks take more rounds with more owners", damped[-1] > damped[0], f"rounds {damped}")
    yield Claim(
        "The first owner's columns lower the least objective, certified",
        alone.value - alone.gap > best.value,
        f"{best.value:.6g} with them, {alone.value:.6g} to {alone.gap:.1g} without",
    )


def _row(c: Course) -> dict[str, Any]:
    return {
        "method": c.name, "owners": c.owners, "rounds": c.rounds, "numbers up": c.up, "numbers down": c.down,
        "seconds": f"{c.seconds:.3f}", "certified gap": f"{c.gap:.2g}", "F - F*": f"{c.excess:.2g}",
    }  # fmt: skip


def _notes(problem: VerticalProblem, best: Any, blocks: dict[str, Any]) -> tuple[str, ...]:
    fed = problem.federation
    owned = ", ".join(f"{name} {X.shape[1]}" for name, X in blocks.items())
    return (
        f"Data: {fed.n:,} rows, features: {owned} (with the intercept, which l2 penalises too), l2 = {L2:g}; "
        f"F* = {best.value:.10g}, certified to {best.gap:.1g}. L = {problem.smoothness.F:.4g}, "
        f"L_b = {', '.join(f'{L:.4g}' for L in problem.block_smoothness)}.",
        "Seconds are those of the rounds on one machine; owners work one after the other, and nothing travels.",
        "Owners see slopes, and with them the labels (docs/vertical.md).",
    )


def _draw(courses: Sequence[Course], grown: Sequence[Course]) -> Any:
    """Draw certified gaps over rounds and over numbers sent, and rounds over owners."""
    figure, axes = blank(3, width=3.6, height=3.4)
    for j, c in enumerate(courses):
        colour, gap = COLOURS[j % len(COLOURS)], np.asarray(c.trace["gap"])
        shown = (np.asarray(c.trace["round"]) > 0) & (gap > 0.0)  # both axes are logarithmic
        axes[0].plot(c.trace["round"][shown], gap[shown], color=colour, label=c.name)
        axes[1].plot((c.trace["floats_up"] + c.trace["floats_down"])[shown], gap[shown], color=colour)
    for j, name in enumerate(("accelerated", "FedBCD, Q = 10")):
        mine = [c for c in grown if c.name == name]
        axes[2].plot([c.owners for c in mine], [c.rounds for c in mine], "o-", color=COLOURS[(1, 3)[j]], label=name)
    panel(axes[0], x="rounds", y="certified gap", log="xy")
    panel(axes[1], x="numbers sent, both ways", log="xy")
    panel(axes[2], x="owners", y=f"rounds to {TARGET:g}")
    axes[2].set_xticks(sorted({c.owners for c in grown}))
    axes[2].set_ylim(bottom=0.0)
    legend(figure, axes[0], columns=6)
    return figure
