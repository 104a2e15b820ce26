"""Two quadratics that pull apart: SGD, FedAvg, SCAFFOLD of Karimireddy et al. (ICML 2020), Section 7.2, Figure 3.

1. N = 2, f_1(x) = (x_1^2 + mu x_2^2)/2 + G x_1, f_2(x) = (mu x_1^2 + mu x_2^2)/2 - G x_1, F = (f_1 + f_2)/2:
   beta = 1, Hessians 1 - mu apart, minimiser 0, where the gradients are +G and -G; G = 1, 10, 100.
2. Full gradients, full participation, x^0 = (1, 1), c_i = 0, server step 1, option II.
3. SGD: one step a round. FedAvg and SCAFFOLD: K = 2, 10 local steps.
4. Step size of every curve: of a grid, the one with the smallest F - F* after the last round.
5. On top, exactly: the affine map of a round, its rate, FedAvg's limit; and SCAFFOLD from c_i = grad f_i(x^0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import SCAFFOLD, FedAvg, FedSGD
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, DASHED, blank, legend, panel
from fedconvex.problems import Problem
from fedconvex.theory.fixed_points import Affine, fedavg_round
from fedconvex.theory.round_maps import scaffold_round

GAPS, LOCAL_STEPS = (1.0, 10.0, 100.0), (2, 10)  # of the paper: G and K
MU, START = 0.05, (1.0, 1.0)  # chosen here
GRID = np.geomspace(1e-5, 10.0, 241)  # chosen here: forty step sizes a decade
ROUNDS, QUICK_ROUNDS, LONG = 40, 30, 240  # chosen here; the last for rates
BOTTOM = 1e-13  # of the figure
CURVES = (("SGD", 1), *((m, K) for m in ("FedAvg", "SCAFFOLD") for K in LOCAL_STEPS))


class TunedCurve(NamedTuple):
    """One method with its best step size: measured, and by the exact map of a round."""

    method: str
    local_steps: int
    G: float
    step_size: float
    measured: np.ndarray  # (rounds + 1,) F(x^r) - F*
    exact: np.ndarray  # (rounds + 1,) the same from the map
    warm: np.ndarray  # (rounds + 1,) the same for SCAFFOLD from c_i = grad f_i(x^0), else empty
    rate: float  # spectral radius of the map: contraction of the error a round
    limit: float  # F - F* at the limit of the map
    measured_rate: float  # the same, fitted to a run of 240 rounds; NaN for FedAvg, which does not converge to 0


def quadratics(G: float, mu: float = MU) -> Problem:
    """Return the two clients as least squares of two rows each: X'X/2 = H_i, X'y/2 = -grad f_i(0).

    Examples
    --------
    >>> from fedconvex.papers.scaffold_quadratics import quadratics
    >>> quadratics(10.0, mu=0.04).client_gradients([0.0, 0.0]).round(12)
    array([[ 10.,   0.],
           [-10.,   0.]])
    """
    parts = []
    for curvature, pull in ((1.0, -G), (mu, G)):
        X = np.diag(np.sqrt([2.0 * curvature, 2.0 * mu]))
        parts.append((X, np.array([2.0 * pull / X[0, 0], 0.0])))
    return Problem(Federation.from_clients(parts), Squared(), weights="uniform")  # 1


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Run every method on every G; nothing is random."""
    rounds, curves = QUICK_ROUNDS if quick else ROUNDS, []
    for i, G in enumerate(GAPS):
        for j, (method, K) in enumerate(CURVES):
            tell((i + j / len(CURVES)) / len(GAPS), f"G = {G:g}, {_name(method, K)}")
            curves.append(_curve(G, method, K, rounds))
    tables = {"table": [_row(c) for c in curves], "curves": [row for c in curves for row in _points(c)]}
    title = "Two quadratics that pull apart (Karimireddy et al. 2020, Figure 3)"
    return Findings(title, _claims(curves), _notes(rounds), {"suboptimality": _draw(curves)}, tables)


EXPERIMENT = Experiment(
    "scaffold-quadratics",
    "SGD, FedAvg and SCAFFOLD on two quadratics whose gradients differ by G, beside exact rates",
    study,
    smaller="fewer rounds",
)


# ---------------------------------------------------------------- measuring and theory


def _method(method: str, K: int, step_size: Any) -> Any:
    if method == "SGD":
        return FedSGD(step_size=step_size)
    return (FedAvg if method == "FedAvg" else SCAFFOLD)(step_size=step_size, local_steps=K)  # 2, 3


def _value(x: np.ndarray) -> np.ndarray:
    """F(x) - F* = (x_1^2 (1 + mu)/2 + mu x_2^2)/2 for x (..., 2), without the cancellation of a difference."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(0.5 * (0.5 * (1.0 + MU) * x[..., 0] ** 2 + MU * x[..., 1] ** 2))


def _curve(G: float, method: str, K: int, rounds: int) -> TunedCurve:
    """Run the whole grid at once, take the best step, and put the exact map beside it."""
    problem = quadratics(G)
    start = np.array(START)
    runs = iterate(_method(method, K, GRID), problem, rounds=rounds, trajectories=GRID.size, start=start)
    trace = np.array([_value(state.w) for _, state in runs])  # (rounds + 1, steps)
    best = int(np.argmin(np.where(np.isfinite(trace[-1]), trace[-1], np.inf)))  # 4
    eta = float(GRID[best])
    if method == "SCAFFOLD":
        map_ = scaffold_round(problem, step_size=eta, local_steps=K)
        warm = np.concatenate([start, problem.client_gradients(start).ravel()])
        z, warmed = np.concatenate([start, np.zeros(4)]), _value(_path(map_, warm, rounds))
    else:
        map_, z, warmed = fedavg_round(problem, step_size=eta, local_steps=K), start, np.empty(0)
    rate = math.nan if method == "FedAvg" else _rate(problem, _method(method, K, eta), G)
    exact, limit = _value(_path(map_, z, rounds)), float(_value(map_.limit()[:2]))  # 5
    return TunedCurve(method, K, G, eta, trace[:, best], exact, warmed, map_.spectral_radius, limit, rate)


def _rate(problem: Problem, method: Any, G: float) -> float:
    """Fit x^{r+2} = a x^{r+1} + b x^r to both coordinates and return the largest root: it sees through oscillations."""
    path = np.array([s.w[0] for _, s in iterate(method, problem, rounds=LONG, start=np.array(START))])
    roots = []
    for x in path.T:
        before, after = np.stack([x[1:-1], x[:-2]], axis=1), x[2:]
        size = np.linalg.norm(before, axis=1)
        keep = size > 1e-8 * (1.0 + G)  # above rounding
        fit = np.linalg.lstsq(before[keep] / size[keep, None], after[keep] / size[keep], rcond=1e-6)[0]
        roots.append(np.abs(np.roots([1.0, *-fit])).max())
    return float(max(roots))


def _path(map_: Affine, z: np.ndarray, rounds: int) -> np.ndarray:
    """Return the models of all rounds (rounds + 1, 2)."""
    path = [z]
    for _ in range(rounds):
        path.append(map_(path[-1]))
    return np.array(path)[:, :2]


# ---------------------------------------------------------------- tables


def _name(method: str, K: int) -> str:
    return method if method == "SGD" else f"{method}, K = {K}"


def _row(c: TunedCurve) -> dict[str, Any]:
    return {
        "G": c.G,
        "method": _name(c.method, c.local_steps),
        "step size": f"{c.step_size:.3g}",
        "last F - F*": f"{c.measured[-1]:.2e}",
        "measured rate": "" if math.isnan(c.measured_rate) else f"{c.measured_rate:.4f}",
        "exact rate": f"{c.rate:.4f}",
        "exact limit": f"{c.limit:.2e}" if c.method == "FedAvg" else "0",
    }


def _points(c: TunedCurve) -> list[dict[str, Any]]:
    name = _name(c.method, c.local_steps)
    warm = c.warm if c.warm.size else np.full(len(c.measured), np.nan)
    rows = enumerate(zip(c.measured.tolist(), c.exact.tolist(), warm.tolist(), strict=True))
    return [
        {"G": c.G, "method": name, "round": r, "measured": m, "exact": e, "exact_from_gradients": w}
        for r, (m, e, w) in rows
    ]


# ---------------------------------------------------------------- claims


def _claims(curves: Sequence[TunedCurve]) -> tuple[Claim, ...]:
    by = {(c.method, c.local_steps, c.G): c for c in curves}
    last = {key: float(c.measured[-1]) for key, c in by.items()}
    few, many = LOCAL_STEPS
    slow = {K: [last["FedAvg", K, G] for G in GAPS] for K in LOCAL_STEPS}
    sgd = [last["SGD", 1, G] for G in GAPS]
    apart = max(_apart(c.measured, c.exact, c.G) for c in curves)
    rates = [(c.measured_rate, c.rate) for c in curves if not math.isnan(c.measured_rate)]
    off = max((abs(a / b - 1.0) for a, b in rates), default=math.nan)
    return (
        Claim(
            "FedAvg slows down as G grows",
            all(a < b for row in slow.values() for a, b in itertools.pairwise(row)),
            "; ".join(f"K = {K}: last F - F* {_list(row)}" for K, row in slow.items()) + f" at G = {_list(GAPS)}",
        ),
        Claim(
            "FedAvg is slower than SGD for every G, and slower the more local steps",
            all(s < a < b for s, a, b in zip(sgd, slow[few], slow[many], strict=True)),
            f"last F - F*: SGD {_list(sgd)}; K = {few}: {_list(slow[few])}; K = {many}: {_list(slow[many])}",
        ),
        _faster(by),
        _unaffected(by),
        Claim(
            "Measured curves follow the exact map of a round",
            apart <= 1e-9,
            f"largest relative difference of ‖x^r‖, above rounding, over {len(curves)} curves: {apart:.1e}",
            everywhere=True,
        ),
        Claim(
            "Measured linear rates are the exact ones, to six digits",
            bool(rates) and off <= 1e-6,
            f"{len(rates)} curves that converge to 0; largest relative difference {off:.1e}",
            everywhere=True,
        ),
    )


def _apart(measured: np.ndarray, exact: np.ndarray, G: float) -> float:
    """Largest difference of the roots, relative beyond what rounding of gradients of size G leaves."""
    a, b = np.sqrt(measured), np.sqrt(exact)
    return float(np.max(np.abs(a - b) / (b + 1e-5 * (1.0 + G))))


def _faster(by: dict[Any, TunedCurve]) -> Claim:
    """Compare rates: -log of them is what a round is worth."""
    ok, found = True, []
    for G in GAPS:
        sgd = -math.log(by["SGD", 1, G].rate)
        worth = [-math.log(by["SCAFFOLD", K, G].rate) / sgd for K in LOCAL_STEPS]
        final = [float(by[m, K, G].measured[-1]) for m, K in CURVES if m != "FedAvg"]
        ok &= 1.0 < worth[0] < worth[1] and final[0] > final[1] > final[2]
        found.append(f"G = {G:g}: {worth[0]:.2f} and {worth[1]:.2f} rounds of SGD, last F - F* {_list(final)}")
    text = f"SCAFFOLD is faster than SGD for every G, and K = {LOCAL_STEPS[1]} faster than K = {LOCAL_STEPS[0]}"
    return Claim(text, bool(ok), f"a round at K = {LOCAL_STEPS[0]} and {LOCAL_STEPS[1]} is worth, " + "; ".join(found))


def _unaffected(by: dict[Any, TunedCurve]) -> Claim:
    """Compare maps and curves from c_i = grad f_i(x^0) at the step size of G = 1."""
    maps, paths = 0.0, 0.0
    for K in LOCAL_STEPS:
        eta, seen = by["SCAFFOLD", K, GAPS[0]].step_size, []
        for G in GAPS:
            problem = quadratics(G)
            map_ = scaffold_round(problem, step_size=eta, local_steps=K)
            z = np.concatenate([START, problem.client_gradients(np.array(START)).ravel()])
            seen.append((map_.matrix, np.sqrt(_value(_path(map_, z, 20)))))
        for matrix, path in seen[1:]:
            maps = max(maps, float(np.abs(matrix - seen[0][0]).max()))
            paths = max(paths, float(np.max(np.abs(path - seen[0][1]) / (seen[0][1] + 1e-6))))
    steps = {K: [by["SCAFFOLD", K, G].step_size for G in GAPS] for K in LOCAL_STEPS}
    ends = {K: [float(by["SCAFFOLD", K, G].measured[-1]) for G in GAPS] for K in LOCAL_STEPS}
    numbers = (
        f"at equal steps matrices differ by {maps:.1e}, 20 rounds from c_i = grad f_i(x^0) by {paths:.1e}; from "
        "c_i = 0 the start differs: "
        + "; ".join(f"K = {K}: best steps {_list(steps[K])}, last F - F* {_list(ends[K])}" for K in LOCAL_STEPS)
    )
    text = "SCAFFOLD's rate does not depend on G, nor its curve once c_i = grad f_i(x^0)"
    return Claim(text, maps <= 1e-12 and paths <= 1e-6, numbers)


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.3g}" for v in values)


def _notes(rounds: int) -> tuple[str, ...]:
    return (
        "Taken from the paper: two quadratics after its lower bound (Theorem II) that pull apart by G = 1, 10, 100, "
        "beta = 1, Hessians apart by about 1, full gradients, full participation, K = 2 and 10, server step 1, the "
        "local step chosen for every curve.",
        f"Chosen here, as the paper does not print its functions: f_1 = (x_1^2 + mu x_2^2)/2 + G x_1 and f_2 = "
        f"(mu x_1^2 + mu x_2^2)/2 - G x_1 with mu = {MU:g}, x^0 = (1, 1), {rounds} rounds, {GRID.size} step sizes from "
        f"{GRID[0]:g} to {GRID[-1]:g}. A second direction, because in one a well chosen step ends everything in one "
        "round.",
        "SCAFFOLD starts from c_i = 0, as in the paper's algorithm: its first round is FedAvg's, so that G enters "
        "once, as a factor of the error, and never the rate. The paper's figure shows curves identical over G; that is "
        "exact from c_i = grad f_i(x^0), drawn dashed.",
        "Comparable with the paper: orderings, the effect of G and K, and how many rounds of SGD one of SCAFFOLD is "
        "worth (about 2 at K = 2 and 5 at K = 10 there). Not comparable: rates.",
    )


# ---------------------------------------------------------------- figure


def _draw(curves: Sequence[TunedCurve]) -> Any:
    """Draw F - F* over rounds, a panel for every G."""
    figure, axes = blank(len(GAPS), width=3.7, height=4.0, sharey=True)
    colours = dict(zip(CURVES, ("black", *(COLOURS[i] for i in (4, 1, 5, 0))), strict=True))
    for axis, G in zip(axes, GAPS, strict=True):
        for c in (c for c in curves if c.G == G):
            colour = colours[c.method, c.local_steps]
            r = np.arange(len(c.measured))
            axis.plot(r, c.measured, color=colour, linewidth=1.8 if c.method != "SGD" else 1.4)
            if c.warm.size:
                axis.plot(r, c.warm, color=colour, linewidth=0.9, linestyle=DASHED)
            if c.method == "FedAvg":
                axis.plot(1.03 * r[-1], c.limit, marker="_", markersize=8, color=colour, clip_on=False)
        _name_curves(axis, [c for c in curves if c.G == G], colours)
        panel(axis, f"G = {G:g}", "round $r$", log="y")
        axis.set_ylim(BOTTOM, 1e5)
        axis.set_xlim(0, 1.5 * len(r))
        axis.set_xticks(np.arange(0, len(r), 10))
    axes[0].set_ylabel("$F(x^r) - F^*$, step size tuned")
    looks: dict[str, dict[str, Any]] = {
        "measured": {"linewidth": 1.8},
        "SCAFFOLD from $c_i = \\nabla f_i(x^0)$, exact": {"linewidth": 0.9, "linestyle": DASHED},
        "limit of FedAvg, exact": {"linestyle": "none", "marker": "_", "markersize": 8},
    }
    legend(figure, looks={label: {"color": "0.4"} | look for label, look in looks.items()}, columns=3)
    return figure


def _name_curves(axis: Any, curves: Sequence[TunedCurve], colours: dict[tuple[str, int], str]) -> None:
    """Write names at the right ends, apart from each other."""
    y = 0.0
    for c in sorted(curves, key=lambda c: float(c.measured[-1])):
        x, end = 1.07 * (len(c.measured) - 1), float(c.measured[-1])
        if end < BOTTOM:  # named where it leaves the panel
            x, end = float(np.flatnonzero(c.measured >= BOTTOM)[-1]) + 1.5, 3.0 * BOTTOM
        else:
            end = y = max(end, 5.0 * y)
        name, colour = _name(c.method, c.local_steps), colours[c.method, c.local_steps]
        axis.annotate(name, (x, end), fontsize=8, va="center", color=colour)
