"""What the comparison on three clients shows: tables, claims, notes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedconvex.papers.agnostic_clients.data import DIVISIONS, L2, UNIFORM, SplitData, client_names
from fedconvex.papers.agnostic_clients.runs import DOMAIN_STEP_SIZES, STEPS, ClientsScale, DivisionRun, ExactModel
from fedconvex.papers.findings import Claim
from fedconvex.papers.intervals import Interval, every, mean_interval
from fedconvex.papers.step_grids import TunedRun, grid_notes
from fedconvex.report import DomainScores

SAME = 0.01  # accuracies agree where their difference, with its interval, is within this, weights within the next
SAME_WEIGHT = 0.05
MODELS = ("FedAvg", "AFL")  # the two exact solutions
TARGETS = (0.1, 0.03, 0.01)  # of the worst client's objective above its least value
AVERAGED = ("lambda", "objective", "test loss", "test accuracy")
_MEASURES = {
    "worst loss": lambda o: o.test.worst_loss,
    "mean loss": lambda o: float(o.shares @ o.test.loss),
    "worst accuracy": lambda o: o.test.worst_accuracy,
    "mean accuracy": lambda o: float(o.shares @ o.test.accuracy),
    "accuracy, clients alike": lambda o: float(np.mean(o.test.accuracy)),
    "accuracy spread": lambda o: o.test.accuracy_spread,
}


def pairs_of(models: Sequence[ExactModel], division: str) -> list[tuple[ExactModel, ExactModel]]:
    """Return the models of FedAvg and AFL, division by division of the rows."""
    mine = [o for o in models if o.division == division]
    kinds = [[o for o in mine if o.model == model] for model in MODELS]
    return list(zip(*kinds, strict=True))


def kinds_of(models: Sequence[ExactModel]) -> list[str]:
    """Return the names of the divisions."""
    return list(dict.fromkeys(o.division for o in models))


def difference_rows(models: Sequence[ExactModel], overlap: float) -> Iterator[dict[str, Any]]:  # 4
    """Yield AFL minus FedAvg in every measure, on the same rows, with intervals over the divisions of the rows."""
    for division in kinds_of(models):
        pairs = pairs_of(models, division)
        rows = {name: np.array([f(b) - f(a) for a, b in pairs]) for name, f in _MEASURES.items()}
        rows["worst gains minus mean loses, accuracy"] = rows["worst accuracy"] + rows["mean accuracy"]
        for k, name in enumerate(pairs[0][1].test.domains.tolist()):
            rows[f"lambda minus share, {name}"] = np.array([b.domain_weights[k] - b.shares[k] for _, b in pairs])
        for name, d in rows.items():
            found = mean_interval(d, overlap)
            row = {"division": division, "AFL minus FedAvg": name, "mean": found.mean}
            row |= {"low": found.low, "high": found.high}
            yield row | {"up": int((d > 0).sum()), "down": int((d < 0).sum()), "seeds": d.size}


def _outcome_rows(models: Sequence[ExactModel]) -> Iterator[dict[str, Any]]:
    """Yield a line for every division, seed, model and client."""
    for o in models:
        for k, name in enumerate(o.test.domains.tolist()):
            row = {"division": o.division, "seed": o.seed, "model": o.model, "client": name}
            row |= {"train rows": int(o.sizes[k]), "test rows": int(o.test.rows[k])}
            row |= {"lambda": float(o.domain_weights[k]), "objective": float(o.objective[k]), "gap": o.gap}
            row |= {"test loss": float(o.test.loss[k]), "test accuracy": float(o.test.accuracy[k])}
            yield row | {"low": float(o.test.accuracy_low[k]), "high": float(o.test.accuracy_high[k])}


def client_rows(models: Sequence[ExactModel]) -> Iterator[dict[str, Any]]:
    """Yield means over the seeds: a line for every division, model and client."""
    for division, model in itertools.product(kinds_of(models), MODELS):
        mine = [o for o in models if (o.division, o.model) == (division, model)]
        rows = list(_outcome_rows(mine))
        for k, name in enumerate(mine[0].test.domains.tolist()):
            own = [row for row in rows if row["client"] == name]
            row = {"division": division, "model": model, "client": name}
            row["train rows"] = round(float(np.mean([r["train rows"] for r in own])), 1)
            row |= {key: float(np.mean([r[key] for r in own])) for key in AVERAGED}
            row["over seeds"] = float(np.std([r["test accuracy"] for r in own], ddof=1))
            yield row | {"binomial s.e.": float(np.mean([o.test.accuracy_error[k] for o in mine]))}


def _exactly(models: Sequence[ExactModel], division: str) -> tuple[ExactModel, ExactModel]:
    """Return the exact solutions of the division that the methods were run on."""
    return next(pair for pair in pairs_of(models, division) if pair[0].seed == 0)


def left_by_fedavg(models: Sequence[ExactModel], division: str) -> float:
    """Return how far FedAvg's exact solution leaves the worst client's objective above its least value."""
    pooled, minimax = _exactly(models, division)
    return float(pooled.objective.max() - minimax.objective.max()) + minimax.gap


def run_rows(runs: Sequence[DivisionRun], models: Sequence[ExactModel]) -> Iterator[dict[str, Any]]:
    """Yield every method's rounds to the targets and its model at the end, then the exact models."""

    def row(head: dict[str, Any], reached: Sequence[str], above: float, lam: Any, test: DomainScores) -> dict[str, Any]:
        worst = int(np.argmin(test.accuracy))
        head |= {f"rounds to {target:g}": said for target, said in zip(TARGETS, reached, strict=True)}
        head |= {"above the least": float(above)}
        head |= {f"lambda {k + 1}": float(v) for k, v in enumerate(lam)}
        head |= {"worst accuracy": test.worst_accuracy, "of": str(test.least_accurate)}
        return head | {"low": float(test.accuracy_low[worst]), "high": float(test.accuracy_high[worst])}

    for division in dict.fromkeys(c.division for c in runs):
        for c in (c for c in runs if c.division == division):
            head = {"division": division, **c.run.named, "floats a round": c.floats}
            reached = [_first(c.run, target) for target in TARGETS]
            yield row(head, reached, c.run.above[-1], c.run.domain_weights, c.test)
        pooled, minimax = _exactly(models, division)
        for name, o, above in (
            ("exact, pooled", pooled, left_by_fedavg(models, division)),
            ("exact, minimax", minimax, minimax.gap),
        ):
            head = {"division": division, "method": name, "step": math.nan, "domain step": math.nan}
            head["floats a round"] = ""
            yield row(head, [""] * len(TARGETS), above, o.domain_weights, o.test)


def _first(run: TunedRun, target: float) -> str:
    below = np.flatnonzero(run.above <= target)
    return str(int(run.rounds[below[0]])) if below.size else f"over {int(run.rounds[-1])}"


def point_rows(runs: Sequence[DivisionRun]) -> Iterator[dict[str, Any]]:
    """Yield the points of the curves."""
    for c in runs:
        for t, above in zip(c.run.rounds.tolist(), c.run.above.tolist(), strict=True):
            row = {"division": c.division, "method": c.run.method, "round": t}
            yield row | {"floats": t * c.floats, "above the least": above}


def tables(
    models: Sequence[ExactModel], runs: Sequence[DivisionRun], differences: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return all tables by name."""
    return {
        "clients": list(client_rows(models)),
        "differences": differences,
        "outcomes": list(_outcome_rows(models)),
        "runs": list(run_rows(runs, models)),
        "curves": list(point_rows(runs)),
    }


# ---------------------------------------------------------------- claims


def judge(models: Sequence[ExactModel], runs: Sequence[DivisionRun], rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """Judge what the literature says of the two, by intervals over the divisions."""
    found = {(r["division"], r["AFL minus FedAvg"]): r for r in rows}
    for division in kinds_of(models):
        mine = {name: r for (d, name), r in found.items() if d == division}
        yield from (_claims_iid if division.startswith("iid") else _claims_by_label)(division, mine)
    for division in dict.fromkeys(c.division for c in runs):
        limit = left_by_fedavg(models, division)
        if not division.startswith("iid"):
            own = {c.run.method: float(c.run.above[-1]) for c in runs if c.division == division}
            agnostic = {m: v for m, v in own.items() if "A" in m and not m.startswith("Fed")}
            yield Claim(
                f"{division}: AFL and its variants leave the worst client less than FedAvg's exact solution does",
                all(v < limit for v in agnostic.values()),
                f"training objective of the worst client above the least: FedAvg's exact solution {limit:.3g}; "
                + ", ".join(f"{m} {v:.3g}" for m, v in agnostic.items()),
            )


def _claims_iid(division: str, found: dict[str, dict[str, Any]]) -> Iterator[Claim]:
    both = [found[name] for name in ("worst accuracy", "mean accuracy")]
    yield Claim(
        f"{division}: FedAvg and AFL agree; accuracies differ by less than a point",
        every(_interval(r).within(SAME) for r in both),
        "AFL minus FedAvg, " + "; ".join(_said(r) for r in both),
    )
    lam = [r for name, r in found.items() if name.startswith("lambda")]
    yield Claim(
        f"{division}: AFL weighs the clients about by their rows; off by less than {SAME_WEIGHT:g}",
        every(_interval(r).within(SAME_WEIGHT) for r in lam),
        "; ".join(_said(r) for r in lam),
    )


def _claims_by_label(division: str, found: dict[str, dict[str, Any]]) -> Iterator[Claim]:
    loss, accuracy = found["worst loss"], found["worst accuracy"]
    both, who = found["worst gains minus mean loses, accuracy"], "AFL minus FedAvg, "
    yield Claim(f"{division}: AFL lowers the worst client's test loss", _interval(loss).below(), who + _said(loss))
    yield Claim(
        f"{division}: AFL raises the worst client's test accuracy", _interval(accuracy).above(), who + _said(accuracy)
    )
    yield Claim(
        f"{division}: the mean accuracy, weighed by rows, falls by less than the worst client gains",
        _interval(both).above(),
        f"{who}{_said(found['mean accuracy'])}; {_said(both)}",
    )


def _interval(row: dict[str, Any]) -> Interval:
    return Interval(row["mean"], row["high"] - row["mean"])


def _said(row: dict[str, Any]) -> str:
    return f"{row['AFL minus FedAvg']} {row['mean']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"


def notes(
    data: SplitData, scale: ClientsScale, models: Sequence[ExactModel], runs: Sequence[DivisionRun]
) -> tuple[str, ...]:
    """Say what the data are, what is taken from the literature, and what is chosen here."""
    first = data.splits[0]
    shares = "; ".join(f"{d.name} " + ", ".join(f"{100 * v:.0f}" for v in d.shares) + " %" for d in scale.divisions)
    worst = max(o.gap for o in models)
    edges = [f"{c.run.method} ({c.division})" for c in runs if c.run.edge]
    spans = ", ".join(n.split(": ")[1] for n in client_names(DIVISIONS[2], data.classes))
    drawn = (
        "drawn anew from the same rows, which the intervals allow for (variance s²(1/S + m/n), Nadeau and Bengio 2003)"
        if data.overlap
        else "without common rows"
    )
    return (
        f"Data: {data.name}, {data.about}{first.X.shape[1] - 1} features and a constant, {data.classes} classes; "
        f"{scale.seeds} divisions into {len(first.y):,} rows to train and {len(first.y_test):,} to test on, {drawn}. "
        f"l2 = {L2:g}, chosen here.",
        f"Clients by label: {spans}; shares: {shares} (at random: of all rows; by label: of the client's own rows, the "
        "others are left out). Tests have all rows of a client's kind.",
        "FedAvg is the minimiser of the pooled loss, its limit for small steps; AFL the minimax solution. Both are "
        f"certified: the largest gap is {worst:.1e}. The mean accuracy weighs clients by their training rows.",
        f"FedAvg here is the pooled model, with weights n_k/n. {UNIFORM}",
        f"Runs: first division, {scale.rounds} rounds, full participation; step sizes with the least training "
        f"objective after the last round (pooled for FedSGD and FedAvg, the worst client's for the others), of {STEPS} "
        f"times {DOMAIN_STEP_SIZES} for model and domain weights (a fifth for five local steps, a tenth for an epoch). "
        "Floats are counted from the messages of all clients, both ways.",
        *grid_notes(edges),
    )
