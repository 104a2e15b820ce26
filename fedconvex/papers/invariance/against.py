"""Average, agnostic and invariant learning on one family of shifts: who wins where, and what it costs elsewhere.

1. Five kinds of shift (`fedconvex.papers.invariance.shifts`): two training domains of equal size, a new one outside of
   their hull, on the line through both. Squared loss, linear models, no ridge.
2. Models: FedAvg with five full local steps (its exact limit), the pooled minimiser, AFL's exact minimax (Mohri,
   Sivek, Suresh 2019), IRMv1's global minimum at two weights of its penalty (Arjovsky et al. 2019), the equilibrium
   that best responses in turn reach from 0 in the game of Ahuja et al. (2020) with sums and boxes of B = 2, and least
   squares on the invariant features, found by enumeration of all subsets.
3. On the populations, from second moments: risk on the mixture of the training domains, on their worst mixture, and on
   the new domain; and where on the line one model overtakes another: risks are affine there.
4. The same from samples, several draws: models are trained on rows, risks are those of the population.
5. The methods themselves, as runs with certificates: FedAvg, OptimisticAFL, IRMv1 (the game's model is a run already).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import run
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import FedAvg, IRMGame, IRMv1, OptimisticAFL
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.intervals import mean_interval
from fedconvex.papers.invariance.shifts import SHIFTS, Shift, population, sampled
from fedconvex.papers.style import COLOURS, DASHED, blank, legend, panel
from fedconvex.problems import GameProblem, InvariantProblem, Problem
from fedconvex.theory.fixed_points import fedavg_round

WEAK, STRONG, BOX = 10.0, 1000.0, 2.0  # lam of IRMv1, and B of the game
LOCAL_STEPS, ROUNDS, MOVES = 5, 600, 3000
ROWS, DRAWS, QUICK_DRAWS = 2000, 30, 6
LEAST = "pooled"  # not a method: the minimiser that FedAvg's limit is held against
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {"color": "0.35", "linestyle": DASHED},
    "AFL": {"color": COLOURS[0], "linestyle": "-"},
    "IRMv1, weak": {"color": COLOURS[4], "linestyle": (0, (6, 2))},
    "IRMv1, strong": {"color": COLOURS[1], "linestyle": (0, (6, 2))},
    "game": {"color": COLOURS[3], "linestyle": (0, (3, 1, 1, 1))},
    "invariant features": {"color": COLOURS[2], "linestyle": (0, (4, 1, 1, 1))},
}


class Risks(NamedTuple):
    """Of one model."""

    mixture: float  # mean of the training domains
    worst: float  # the larger of both: the worst mixture
    new: float


class Found(NamedTuple):
    """What one kind of shift showed."""

    exact: Mapping[str, Risks]  # of the populations
    draws: Mapping[str, Sequence[Risks]]  # from samples, one for each draw
    gaps: Mapping[str, float]  # certified: AFL's value and IRMv1's above the least
    far: float  # t of the new domain
    runs: Mapping[str, tuple[float, float]]  # of a run's last model: what is true, and what is certified
    least: float  # risk of the best linear model of the new domain
    weight: float  # of the training domain at t = 1 in AFL's minimax


def _fedavg(federation: Federation) -> np.ndarray:
    problem = Problem(federation, Squared())
    limit = fedavg_round(problem, step_size=_step(problem), local_steps=LOCAL_STEPS).limit()
    return np.asarray(limit)


def _step(problem: Problem) -> float:
    return 0.5 / float(problem.constants().L or 1.0)


def _irmv1(weight: float) -> Callable[[Federation], np.ndarray]:
    return lambda federation: np.asarray(InvariantProblem(federation, Squared(), weight).solve(5).w)


def _play(federation: Federation) -> tuple[np.ndarray, float]:
    """Return the predictor where best responses in turn end, and the certificate of the equilibrium."""
    problem = GameProblem(federation, Squared(), bound=BOX)
    result = run(IRMGame(), problem, rounds=MOVES, tol=1e-10, progress=False)
    return problem.predictor(result.w), float(result.gap)


def _invariant_features(federation: Federation) -> np.ndarray:
    """Return least squares on the features that agree in both domains, those of least risk.

    Of samples up to their error: the rows times the disagreement over the risk is about chi-squared, with at most two
    degrees of freedom, which is below 9.2 in 99 %.
    """
    found = InvariantProblem(federation, Squared()).subsets(1e6)
    rows = float(federation.sizes.min())
    allowed = [1e-9 if rows < 10.0 else 9.2 * s.risk / len(federation.sizes) / rows for s in found]
    return np.asarray(next(s.w for s, tol in zip(found, allowed, strict=True) if s.disagreement <= tol))


MODELS: Mapping[str, Callable[[Federation], np.ndarray]] = {  # 2
    LEAST: lambda federation: np.asarray(Problem(federation, Squared()).solve().w),
    "FedAvg": _fedavg,
    "AFL": lambda federation: np.asarray(Problem(federation, Squared()).solve_minimax().w),
    "IRMv1, weak": _irmv1(WEAK),
    "IRMv1, strong": _irmv1(STRONG),
    "game": lambda federation: _play(federation)[0],
    "invariant features": _invariant_features,
}


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Learn every model on every kind of shift, exactly and from samples."""
    draws, found = QUICK_DRAWS if quick else DRAWS, {}
    for i, (name, shift) in enumerate(SHIFTS.items()):
        tell(i / len(SHIFTS), name)
        found[name] = _explore(shift, draws, np.random.default_rng([seed, i]))
    tables = {"table": list(_rows(found)), "crossings": list(_crossings(found))}
    title = "Average, agnostic and invariant learning under five kinds of shift"
    return Findings(title, tuple(_claims(found)), _notes(draws), {"shifts": _draw(found)}, tables)


EXPERIMENT = Experiment(
    "agnostic-against-invariant",
    "FedAvg, AFL and IRMv1 on five kinds of shift: mixture, worst mixture, and a domain outside of the hull",
    study,
    smaller=f"{QUICK_DRAWS} draws of samples instead of {DRAWS}",
)


# ---------------------------------------------------------------- measuring


def _risks(shift: Shift, w: np.ndarray) -> Risks:
    low, high = shift.risk(w, -1.0), shift.risk(w, 1.0)
    return Risks(0.5 * (low + high), max(low, high), shift.risk(w, shift.far))


def _explore(shift: Shift, draws: int, rng: np.random.Generator) -> Found:
    exact = population(shift)
    models = {name: learn(exact) for name, learn in MODELS.items()}  # 3
    samples = [sampled(shift, ROWS, rng) for _ in range(draws)]
    drawn = {name: [_risks(shift, learn(s)) for s in samples] for name, learn in MODELS.items()}  # 4
    problem, minimax = Problem(exact, Squared()), Problem(exact, Squared()).solve_minimax()
    gaps = {"AFL": float(minimax.gap)}
    for name, weight in (("IRMv1, weak", WEAK), ("IRMv1, strong", STRONG)):
        best = InvariantProblem(exact, Squared(), weight).solve()
        gaps[name] = float(best.gap) / (1.0 + abs(best.value))
    gaps["game"] = _play(exact)[1]
    risks = {name: _risks(shift, w) for name, w in models.items()}
    least, (_, weight) = shift.least_risk(shift.far), minimax.domain_weights.tolist()
    return Found(risks, drawn, gaps, shift.far, _runs(problem, models), least, weight)


def _runs(problem: Problem, models: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Run the methods; how far they end from what is exact, and how far at most by their certificates."""
    quiet: dict[str, Any] = {"rounds": ROUNDS, "progress": False}
    eta = _step(problem)
    average = run(FedAvg(step_size=eta, local_steps=LOCAL_STEPS), problem, tol=0.0, **quiet)  # 5
    agnostic = run(OptimisticAFL(step_size=0.2 * eta, domain_step_size=0.2), problem, tol=1e-6, **quiet)
    invariant = InvariantProblem(problem.federation, Squared(), WEAK)
    descent = run(IRMv1(step_size="auto"), invariant, tol=1e-6, start=models[LEAST], **quiet)
    worst = [float(problem.domain_values(w).max()) for w in (agnostic.w, models["AFL"])]
    J = [float(invariant.value(w)) for w in (descent.w, models["IRMv1, weak"])]
    return {
        "FedAvg": (float(problem.value(average.w) - problem.value(models[LEAST])), float(average.gap)),
        "OptimisticAFL": (worst[0] - worst[1], float(agnostic.gap)),
        "IRMv1": (J[0] - J[1], float(descent.gap)),
    }


def _crossing(shift: Found, one: str, other: str) -> float:
    """Return t from which on ``one`` has the lower risk, NaN if nowhere up to the new domain: risks are affine in t."""
    a, b = shift.exact[one], shift.exact[other]
    middle, end = a.mixture - b.mixture, a.new - b.new
    if end >= 0.0:
        return float("nan")
    return float(-shift.far * middle / (end - middle)) if middle > 0.0 else float("-inf")


# ---------------------------------------------------------------- claims, tables


def _claims(found: Mapping[str, Found]) -> Iterator[Claim]:
    yield _at_home(found)
    colour, effect, target = (found[k].exact for k in ("colour", "chain, effect", "chain, target"))
    yield Claim(
        "Colour, new domain: FedAvg and AFL do worse than the model 0, the strong IRMv1 and shape alone do not",
        min(colour["FedAvg"].new, colour["AFL"].new) > 0.5 > max(colour[k].new for k in _INVARIANT),
        _numbers(colour, "new", "FedAvg", "AFL", *_INVARIANT) + "; the model 0: 0.5",
    )
    yield Claim(
        "Chain with noise at the effect: on the new domain invariant features, AFL, FedAvg, in this order",
        effect["invariant features"].new < effect["AFL"].new < effect["FedAvg"].new,
        _numbers(effect, "new", "invariant features", "AFL", "FedAvg"),
        everywhere=True,
    )
    yield Claim(
        "Chain with noise at the target: the order is reversed, AFL first and the causal feature alone last",
        target["AFL"].new < target["FedAvg"].new < min(target[k].new for k in _INVARIANT)
        and max(target, key=lambda k: target[k].new) == "invariant features",
        _numbers(target, "new", "AFL", "FedAvg", *_INVARIANT),
        everywhere=True,
    )
    plain = {k: found[k].exact for k in ("covariate", "label")}
    yield Claim(
        "Covariate and label shift: on the new domain AFL is ahead of FedAvg and of IRMv1 with either weight",
        all(e["AFL"].new < min(e[k].new for k in _OTHERS) for e in plain.values()),
        "; ".join(
            f"{k}: {_numbers(e, 'new', 'AFL', 'FedAvg', 'IRMv1, weak', 'IRMv1, strong')}" for k, e in plain.items()
        ),
        everywhere=True,
    )
    label, inner = plain["label"], {k: f.weight for k, f in found.items() if 1e-6 < f.weight < 1.0 - 1e-6}
    yield Claim(
        "Where AFL weighs both training domains, its risk is the same on the whole line: label shift",
        list(inner) == ["label"] and abs(label["AFL"].new - label["AFL"].mixture) <= 1e-6,
        f"label: {_numbers(label, 'mixture', 'AFL')} on the mixture, {label['AFL'].new:.4g} on the new domain; "
        "weights of t = 1: " + ", ".join(f"{k} {f.weight:.2g}" for k, f in found.items()),
        everywhere=True,
    )
    yield Claim(
        "The game does not help against colour, and is invariant under label shift",
        colour["game"].new > 0.5 and abs(label["game"].new - label["game"].mixture) <= 1e-6,
        f"colour: {_numbers(colour, 'new', 'game', 'AFL')}; label: {_numbers(label, 'new', 'game', 'AFL')}",
    )
    costs = {k: f.exact["IRMv1, strong"].mixture / f.exact[LEAST].mixture for k, f in found.items()}
    yield Claim(
        "The strong IRMv1 pays at home, by at least 40 % more risk, but for label shift",
        all(cost >= 1.4 for k, cost in costs.items() if k != "label"),
        "risk on the training mixture over the least: " + ", ".join(f"{k} {cost:.2f}" for k, cost in costs.items()),
    )
    yield from _drawn(found)
    over = {f"{k}, {m}": true - gap for k, f in found.items() for m, (true, gap) in f.runs.items()}
    last = {m: max(f.runs[m][1] for f in found.values()) for m in ("FedAvg", "OptimisticAFL", "IRMv1")}
    yield Claim(
        "Every run ends within its certificate of the exact value",
        max(over.values()) <= 1e-9,
        f"largest excess {max(over.values()):.1e}; largest certified gap "
        + ", ".join(f"{m} {g:.1e}" for m, g in last.items()),
        everywhere=True,
    )


_INVARIANT, _OTHERS = ("IRMv1, strong", "invariant features"), ("FedAvg", "IRMv1, weak", "IRMv1, strong")


def _numbers(exact: Mapping[str, Risks], what: str, *names: str) -> str:
    return ", ".join(f"{name} {getattr(exact[name], what):.4g}" for name in names)


def _at_home(found: Mapping[str, Found]) -> Claim:
    """Least of all: the pooled minimiser on the mixture, AFL on the worst mixture; IRMv1 certified as global."""
    best = all(
        f.exact[LEAST].mixture <= min(r.mixture for r in f.exact.values()) + 1e-9
        and f.exact["AFL"].worst <= min(r.worst for r in f.exact.values()) + f.gaps["AFL"] + 1e-9
        for f in found.values()
    )
    gap = max(max(f.gaps.values()) for f in found.values())
    local = max(f.exact["FedAvg"].mixture - f.exact[LEAST].mixture for f in found.values())
    return Claim(
        "On the training mixture pooling is best, on the worst mixture AFL, in all five; all models are certified",
        best and gap <= 1e-6,
        f"largest certified gap {gap:.1e}; FedAvg loses up to {local:.2g} on the mixture by its local steps",
        everywhere=True,
    )


_ORDERS = (  # shift, the lower risk on the new domain, the higher
    ("colour", "invariant features", "AFL"),
    ("colour", "IRMv1, strong", "FedAvg"),
    ("chain, effect", "invariant features", "AFL"),
    ("chain, target", "AFL", "IRMv1, strong"),
    ("covariate", "AFL", "IRMv1, strong"),
    ("label", "AFL", "FedAvg"),
)


def _drawn(found: Mapping[str, Found]) -> Iterator[Claim]:
    """Compare on samples: held, or failed, where a 99 % interval of the mean difference excludes 0."""
    for shift, low, high in _ORDERS:
        draws = found[shift].draws
        values = [b.new - a.new for a, b in zip(draws[low], draws[high], strict=True)]
        mean = mean_interval(values, level=0.99)
        share = np.mean(np.array(values) > 0.0)
        yield Claim(
            f"From samples, {shift}: on the new domain {low} is ahead of {high}",
            True if mean.low > 0.0 else False if mean.high < 0.0 else None,
            f"by {mean} (99 %), in {share:.0%} of {len(values)} draws of {ROWS} rows a domain",
        )


def _rows(found: Mapping[str, Found]) -> Iterator[dict[str, Any]]:
    """Yield a row for every shift and model: exact risks, then mean and standard deviation over the draws."""
    for shift, f in found.items():
        for name, exact in f.exact.items():
            row: dict[str, Any] = {"shift": shift, "model": name}
            for what in Risks._fields:
                values = [getattr(r, what) for r in f.draws[name]]
                row[what] = f"{getattr(exact, what):.4f}"
                row[f"{what}, samples"] = f"{np.mean(values):.4f} ({np.std(values, ddof=1):.4f})"
            yield row


def _crossings(found: Mapping[str, Found]) -> Iterator[dict[str, Any]]:
    """Yield from which t on a model beats another; -inf: in the middle already, empty: not up to the new domain."""
    for shift, f in found.items():
        for one in ("AFL", "IRMv1, weak", "game", *_INVARIANT):
            for other in ("FedAvg", "AFL"):
                if one != other:
                    t = _crossing(f, one, other)
                    yield {"shift": shift, "model": one, "beats": other, "from t": t, "new domain at t": f.far}


def _notes(draws: int) -> tuple[str, ...]:
    return (
        "Taken from the literature: the methods, the chain and the colours (Arjovsky et al. 2019, Sections 5.1, 5.2). "
        "Chosen here: that all shifts are straight lines, covariate and label shift, the new domains, "
        f"lam = {WEAK:g} and {STRONG:g}. We know of no table with these numbers beside each other.",
        f"Risks are E (x'w - y)^2/2 on populations, exact; spreads are of {draws} draws of {ROWS} rows a domain, "
        "standard deviations in brackets.",
        "The risk of a fixed model is affine along each line. Where AFL weighs both training domains their risks are "
        "equal, so that it has one risk on the whole line; elsewhere it is the model of the worse domain alone.",
        "The models of IRMv1 are certified global minima; gradient descent may end in others (docs/invariance.md).",
        "Two training domains do not tell which shift comes next. Here the new domain continues the line through both, "
        "which is kind to AFL.",
    )


def _draw(found: Mapping[str, Found]) -> Any:
    """Draw risk along every line: exact, and from samples at the new domain; the training domains' hull is shaded."""
    figure, axes = blank(len(found), width=2.9, height=3.7)
    for axis, (name, f) in zip(axes, found.items(), strict=True):
        axis.axvspan(-1.0, 1.0, color="0.85", linewidth=0)
        for i, (model, look) in enumerate(LOOKS.items()):
            exact, new = f.exact[model], [r.new for r in f.draws[model]]
            start = exact.mixture - (exact.new - exact.mixture) / f.far
            axis.plot([-1.0, f.far], [start, exact.new], linewidth=1.5, label=model, **look)
            right = f.far * (1.03 + 0.025 * i)
            axis.errorbar(
                right, np.mean(new), np.std(new, ddof=1), fmt="o", markersize=3, color=look["color"], linewidth=1.0
            )
        axis.plot(f.far, f.least, "k_", markersize=9)
        panel(axis, name, "t: training domains at -1 and 1")
        axis.set_ylim(0.0, 1.1 * max(f.exact[model].new for model in LOOKS))
    axes[0].set_ylabel("risk")
    looks = {"best linear model of the new domain": {"color": "black", "linestyle": "", "marker": "_"}}
    legend(figure, axes[0], looks, columns=7)
    return figure
