"""The four terms of local SGD's bound (Wang et al. 2021, (17)) beside synchronous SGD, on paper and measured.

1. Ten clients, logistic loss, l2 = 0.01, mini-batches of B = 4 rows drawn with replacement; clients alike (copies of
   the same rows, zeta = 0) or apart (models of their own).
2. Local SGD: tau = 8 local steps, T rounds. Synchronous SGD: tau T rounds of one step, the same gradients; or T rounds
   of one step on tau B rows, the same gradients and the same messages.
3. The bound: 2 L D^2/(tau T) + 2 sigma D/sqrt(M tau T), which synchronous SGD after tau T steps has too, and two terms
   of local steps, 5 (L sigma^2 D^4/(tau T^2))^{1/3} and 19 (L zeta^2 D^4/T^2)^{1/3}.
4. Measured: A = mean over all steps of F(wbar) - F*, wbar the average of the local models; with the step of the
   theorem, and with the best of a grid for every method and T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants
from fedconvex.datasets import logistic_federation
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Logistic
from fedconvex.methods import FedAvg
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.intervals import Interval, every, mean_interval
from fedconvex.papers.style import COLOURS, DASHED, METHOD_LOOKS, blank, panel
from fedconvex.problems import Problem
from fedconvex.theorems.fedavg_convex import fedavg_convex_step, fedavg_convex_tuned

CLIENTS, ROWS, BATCH, TAU, L2 = 10, 40, 4, 8, 0.01
ALIKE, APART = "alike", "apart"
LOCAL, EVERY_STEP, LARGE = "local SGD", "synchronous, every step", "synchronous, large batches"
METHODS = (LOCAL, EVERY_STEP, LARGE)
EQUAL = 0.1  # measured A is the same where the interval of the ratio lies within this of 1


class TermsScale(NamedTuple):
    """How large the experiment is."""

    rounds: tuple[int, ...]  # T
    trajectories: int
    grid: tuple[float, ...]  # step sizes times L


FULL = TermsScale((3, 10, 30, 100, 300), 32, tuple(2.0**-j for j in range(-3, 7)))
QUICK = TermsScale((3, 20), 8, (2.0, 0.5, 0.125))


def clients(kind: str, seed: int) -> Problem:
    """Return ten logistic clients: copies of one, or with models of their own."""
    shift = 0.0 if kind == ALIKE else 2.0
    made = logistic_federation(CLIENTS, 5, ROWS, model_shift=shift, condition=3.0, seed=seed).federation
    if kind == ALIKE:
        made = Federation.from_clients([made.client_rows(0)] * CLIENTS)
    return Problem(made, Logistic(), L2, weights="uniform")


def work(method: str, T: int) -> tuple[dict[str, Any], int]:
    """Return local steps and batch of a method, and its rounds where local SGD has T."""
    if method == LOCAL:
        return {"local_steps": TAU, "batch_size": BATCH}, T
    if method == EVERY_STEP:
        return {"local_steps": 1, "batch_size": BATCH}, TAU * T
    return {"local_steps": 1, "batch_size": TAU * BATCH}, T


def constants_of(problem: Problem, kind: str, batch: int) -> Constants:
    """Return L, D, sigma and zeta, which is 0 exactly for copies."""
    c = problem.constants(batch_size=batch, replacement=True, start=np.zeros(problem.size))
    return replace(c, zeta=0.0) if kind == ALIKE else c


def averages(problem: Problem, method: str, steps: np.ndarray, horizons: Sequence[int], seed: int) -> np.ndarray:
    """Return A after each of the horizons of every trajectory, (H, R), which have step sizes of their own."""
    settings, longest = work(method, max(horizons))
    best, total, out = problem.solve().value, np.zeros(steps.size), []
    at = [work(method, T)[1] for T in horizons]
    fed = FedAvg(step_size=steps, shadow=True, replacement=True, **settings)
    for t, state in iterate(fed, problem, rounds=longest, seed=seed, trajectories=steps.size):
        if t:
            path = state.shadow.reshape(-1, problem.size)
            total += problem.value(path).reshape(steps.size, -1).mean(axis=1) - best
        if t in at:
            out.append(total / t)
    return np.array(out)


def measured(kind: str, scale: TermsScale, seed: int, tell: Progress) -> Iterator[dict[str, Any]]:
    """Yield A with the theorem's step and with the best of the grid, for every method and T, beside the bound."""
    problem, R = clients(kind, seed), scale.trajectories
    for i, method in enumerate(METHODS):
        tell(i / len(METHODS), f"clients {kind}, {method}")
        batch = work(method, 1)[0]["batch_size"]
        c, tau = constants_of(problem, kind, batch), work(method, 1)[0]["local_steps"]
        L = float(c.L or 1.0)
        grid = averages(problem, method, np.repeat(np.array(scale.grid) / L, R), scale.rounds, seed + 1)
        for h, T in enumerate(scale.rounds):
            rounds = work(method, T)[1]
            bound = fedavg_convex_tuned(c, local_steps=tau, rounds=rounds)
            eta = fedavg_convex_step(c, local_steps=tau, rounds=rounds)
            theory = averages(problem, method, np.full(R, eta), [T], seed + 2)[0]
            tuned = np.nan_to_num(grid[h].reshape(-1, R), nan=np.inf)
            top = int(np.argmin(tuned.mean(axis=1)))
            row = {"clients": kind, "method": method, "T": T, "step L": eta * L, "bound": float(bound.value)}
            row |= {f"term {name}": float(v) for name, v in bound.terms.items()}
            yield row | {"theory": theory, "best": tuned[top], "best step L": scale.grid[top]}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Measure the three methods with both kinds of clients."""
    scale = QUICK if quick else FULL
    rows: list[dict[str, Any]] = []
    for i, kind in enumerate((ALIKE, APART)):
        rows += measured(kind, scale, 100 * seed, progress_part(tell, 0.5 * i, 0.5 * (i + 1)))
    shown = [r | {k: float(np.mean(r[k])) for k in ("theory", "best")} for r in rows]
    return Findings(
        "The four terms of local SGD's bound beside synchronous SGD (Wang et al. 2021, (17))",
        tuple(claims(rows)),
        _notes(scale),
        {"bound-terms": _draw(shown)},
        {"table": [{k: v for k, v in r.items() if not k.startswith("term")} for r in shown], "terms": shown},
    )


EXPERIMENT = Experiment(
    "bound-terms",
    "the four terms of the bound of local SGD beside synchronous SGD at equal gradients and at equal messages",
    study,
    smaller="two horizons, few trajectories and step sizes",
)


# ---------------------------------------------------------------- what came out


def claims(rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """Judge the bound in all rows, orders by ratios at the ends of the horizons."""
    of = {(r["clients"], r["method"], r["T"]): r for r in rows}
    horizons = sorted({r["T"] for r in rows})
    share = [float(np.mean(r["theory"])) / r["bound"] for r in rows]
    yield Claim(
        "A with the theorem's step is below the bound",
        max(share) <= 1.0,
        f"{len(rows)} settings: {min(share):.2g} to {max(share):.2g} of it",
        True,
    )

    def ratio(kind: str, one: str, other: str, T: int, steps: str = "best") -> Interval:
        a, b = (np.log(of[kind, method, T][steps]) for method in (one, other))
        top, low = mean_interval(a), mean_interval(b)
        return Interval(top.mean - low.mean, float(np.hypot(top.half, low.half)))

    first, last = horizons[0], horizons[-1]
    same, apart = (ratio(kind, LOCAL, EVERY_STEP, last) for kind in (ALIKE, APART))
    text = "Best steps, as many gradients: local SGD of clients alike is as good as synchronous SGD"
    yield Claim(f"{text}, within {EQUAL:.0%}", same.within(float(np.log1p(EQUAL))), _shown(same, last))
    text = "Best steps, as many gradients: local SGD of clients apart is worse than synchronous SGD"
    yield Claim(text, apart.above(), _shown(apart, last))
    for steps, words in (("theory", "The theorem's steps"), ("best", "Best steps")):
        few = [ratio(kind, LOCAL, LARGE, first, steps) for kind in (ALIKE, APART)]
        text = f"{words}, as many messages, few rounds: local SGD is ahead of large batches, for its first term"
        yield Claim(text, every(d.below() for d in few), "; ".join(_shown(d, first) for d in few))
        late = ratio(APART, LOCAL, LARGE, last, steps)
        text = f"{words}, as many messages, many rounds, clients apart: large batches are ahead, for the fourth term"
        yield Claim(text, late.above(), _shown(late, last))


def _shown(d: Interval, T: int) -> str:
    return f"T = {T}: ratio of A {np.exp(d.mean):.2f}, {np.exp(d.low):.2f} to {np.exp(d.high):.2f}"


def _notes(scale: TermsScale) -> tuple[str, ...]:
    return (
        "Of the survey: the first two terms are those of synchronous SGD with as many gradients; the last two are what "
        "local steps cost. The constants are printed with the theorem and checked by `fedconvex verify`.",
        f"Chosen here: {CLIENTS} clients of {ROWS} rows, d = 5, tau = {TAU}, B = {BATCH}, {scale.trajectories} "
        f"trajectories. sigma and zeta bound gradients on all of R^d, which makes the terms large.",
        "Best steps are the best of the grid for each method and T, by the same draws that are compared.",
    )


# ---------------------------------------------------------------- figure


def _draw(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw the terms over T, and what was measured with best steps, a row of panels each for alike and apart."""
    figure, axes = blank(4, width=3.1, height=3.5)
    names = [k for k in rows[0] if k.startswith("term")]
    for i, kind in enumerate((ALIKE, APART)):
        local = [r for r in rows if r["clients"] == kind and r["method"] == LOCAL]
        for j, name in enumerate(names):
            label = f"term of {name.removeprefix('term ')}" if i else None
            axes[i].plot(
                [r["T"] for r in local], [max(r[name], 1e-12) for r in local], color=COLOURS[j + 2], label=label
            )
        axes[i].plot([r["T"] for r in local], [r["bound"] for r in local], color="black", label="bound" if i else None)
        axes[i].set_ylim(1e-3, None)
        panel(axes[i], f"bound, clients {kind}", "rounds T", "", "xy")
        for j, method in enumerate(METHODS):
            mine = [r for r in rows if r["clients"] == kind and r["method"] == method]
            look = {
                "color": (COLOURS[0], COLOURS[1], "0.4")[j],
                "linestyle": ("-", DASHED, METHOD_LOOKS["FedAvg"][1])[j],
            }
            axes[2 + i].plot([r["T"] for r in mine], [r["best"] for r in mine], label=None if i else method, **look)
        panel(axes[2 + i], f"measured A, best steps, clients {kind}", "rounds T", "", "xy")
    handles = [h for a in (axes[1], axes[2]) for h in a.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure
