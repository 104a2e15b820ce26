"""The decision in plain words: which kind of model, for whom it is no gain, and which method reaches it.

The kind is chosen by cross-validation: with one split on its training rows, so that held-out rows play no part; where
all rows are held out in turn on all of them, so that the choice among few kinds may flatter the figures a little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedconvex.comparison.method_costs import RUNS
from fedconvex.comparison.outcomes import Outcome, Standing, standings
from fedconvex.comparison.skewed_intervals import Estimate
from fedconvex.registry import methods

if TYPE_CHECKING:
    from fedconvex.comparison.comparison import Comparison, Scored

PHRASES = {
    "pooled": "one model for all clients",
    "afl": "one model that is fair to the worst",
    "mocha": "a model per client, with learned relations",
    "mean-regularised": "a model per client, drawn towards their mean",
}


def spelt(name: str) -> str:
    """Return the name of a method as papers write it."""
    return methods()[name].cls + (", drawn to the mean," if name == "mean-regularised" else "")


def kind_of(m: Scored) -> str:
    """Return the kind of models that a method aims at."""
    return RUNS[m.name][0] if m.name in RUNS else m.name


def _tuned(found: Comparison) -> list[Scored]:
    """Return one method for every kind of models with an l2: of those that aim at one optimum the first."""
    out: dict[str, Scored] = {}
    for m in found.methods:
        if m.tuned is not None:
            out.setdefault(kind_of(m), m)
    return list(out.values())


def chosen(found: Comparison) -> str:
    """Return the method of least loss in cross-validation; where the pooled optimum is not there, one that aims at it.

    Where nothing can be validated (one training row per client) it is every client alone.
    """
    known = [m for m in _tuned(found) if m.tuned is not None and math.isfinite(m.tuned.loss)]
    return min(known, key=lambda m: m.tuned.loss if m.tuned else math.inf).name if known else "alone"


def best_joint(found: Comparison) -> str:
    """Return the like of `chosen` among those that join; every client alone where there are none."""
    known = [m for m in _tuned(found) if m.name != "alone" and m.tuned is not None and not math.isnan(m.tuned.loss)]
    return min(known, key=lambda m: m.tuned.loss if m.tuned else math.inf).name if known else "alone"


def decision(found: Comparison) -> list[str]:
    """Return the decision: what to do, for whom, how sure that is, and what it takes."""
    best = chosen(found)
    if best == "alone":
        other = best_joint(found)
        if other == "alone":
            return ["Every client alone was the only kind of model compared."]
        return [_against(found, found[other], stay=True), *_whom(found, found[other]), *_base(found)]
    m = found[best]
    return [_against(found, m, stay=False), *_whom(found, m), *_base(found), *_cheapest(found, m), *_worst(found, m)]


def _phrase(m: Scored) -> str:
    return f"{PHRASES[kind_of(m)]} ({m.name})"


def _against(found: Comparison, m: Scored, stay: bool) -> str:
    d = m.paired.difference.as_text("+")
    rows, level = int(found.test_rows.sum()), f"{100.0 * found.settings.level:g} % interval"
    mine, alone = (span(x.whole.error).split(" (")[0] for x in (m, found["alone"]))
    held = "held-out rows" if found.settings.splits == 1 else f"rows, each held out {times(len(found.splits))}"
    figures = f"{found.error_name} {mine} on {rows:,} {held}, against {alone} alone"
    paired = f"difference {d[0]}, {level} {d[1]} to {d[2]}"
    if m.paired.outcome is Outcome.OPEN:
        return f"On average it makes no clear difference whether clients join: {_phrase(m)} has {figures} ({paired})."
    if m.paired.outcome is Outcome.GAINS:
        lead = "Join" if not stay else "Joining helps on held-out rows, though cross-validation preferred staying alone"
        return f"{lead}: {_phrase(m)} predicts better than every client alone: {figures} ({paired})."
    lead = "Stay alone" if stay else "Do not join as a whole: what cross-validation preferred does worse"
    return f"{lead}: {_phrase(m)} predicts worse than every client alone: {figures} ({paired})."


def _whom(found: Comparison, m: Scored) -> list[str]:
    """Say who gains, who loses, and of whom nothing can be said."""
    by = {o: [n for n, j in zip(found.rows.names, m.joins, strict=True) if j.outcome is o] for o in Outcome}
    gains, loses, open_, few, kept = by.values()
    parts = [_count(gains, "clearly gains by it", "clearly gain by it")]
    parts += [_count(loses, "clearly loses", "clearly lose") + (f" ({listed(loses)})" if loses else "")]
    parts += [_count(open_, "shows no clear difference", "show no clear difference")] if open_ else []
    if few:
        least = f"fewer than {found.settings.min_rows} held-out rows, too few to say ({listed(few)})"
        parts += [_count(few, f"has {least}", f"have {least}")]
    if kept:
        parts += [_count(kept, "keeps its scores to itself", "keep their scores to themselves") + f" ({listed(kept)})"]
    text = f"Of {found.rows.K} clients, {', '.join(parts[:-1])} and {parts[-1]}"
    held = f"{100.0 * found.settings.level:g} % confidence"
    return [f"{text}; all these verdicts, and the intervals of the differences, hold together at {held}."]


def beside_base(found: Comparison) -> list[Standing]:
    """Return how each client's base rate stands beside the chosen joint model and the client's own."""
    models = [m for m in found.methods if m.name != "base rate"]
    return standings([found[n].over_base for n in (best_joint(found), "alone")], [m.over_base for m in models])


def _base(found: Comparison) -> list[str]:
    """Say where a model is better than no features at all, and where none is."""
    stands = beside_base(found)
    by = {s: [n for n, x in zip(found.rows.names, stands, strict=True) if x is s] for s in Standing}
    known = found.rows.K - len(by[Standing.FEW]) - len(by[Standing.KEPT])
    if not known:
        return []
    what = "share of each class" if found.rows.classifies else "mean target"
    text = (
        f"The base rate, the {what} at each client without any features, is clearly beaten by {best_joint(found)} or "
    )
    text += f"alone at {len(by[Standing.BEATEN]) or 'none'} of {known} client{'s' if known > 1 else ''}"
    if by[Standing.BEST]:
        text += f"; at {len(by[Standing.BEST])} no model has a lower error on the held-out rows"
        text += f" ({listed(by[Standing.BEST])})"
    if by[Standing.OPEN]:
        text += f"; at {len(by[Standing.OPEN])} the difference is not clear ({listed(by[Standing.OPEN])})"
    return [f"{text}. Intervals of these differences hold together at {100.0 * found.settings.level:g} % confidence."]


def _count(names: Sequence[Any], one: str, more: str) -> str:
    return f"{len(names) or 'none'} {one if len(names) == 1 else more}"


def _cheapest(found: Comparison, m: Scored) -> list[str]:
    """Say which method reaches the models, and what that takes."""
    kind = kind_of(m)
    ways = [x for x in found.methods if x.cost is not None and RUNS[x.name][0] == kind]
    if not ways:
        return []
    reached = [x for x in ways if x.cost is not None and x.cost.reached]
    gap = f"{found.settings.gap:g}"
    if not reached:
        names = listed([spelt(x.name) for x in ways], 9)
        return [f"In {found.settings.rounds} rounds {names} did not get within {gap} of the optimum."]
    best = min(reached, key=lambda x: x.cost.megabytes if x.cost else math.inf)
    assert best.cost is not None
    c = best.cost
    rounds = f"{c.rounds} round{'s' if c.rounds != 1 else ''}"
    return [f"{spelt(best.name)} needs {rounds} and {c.megabytes:.2g} MB to get within {gap} of its optimum."]


def _worst(found: Comparison, m: Scored) -> list[str]:
    """Say how the worst-off domain or client fares, beside the model that is fair to the worst."""
    kind, largest = _largest(found, m)
    if not largest:
        return []
    text = f"The worst-off {kind} is {largest}"
    fair = next((x for x in found.methods if x.name == "afl" and x.name != m.name), None)
    if fair is not None:
        text += f". With AFL, which is fair to the worst, it is {_largest(found, fair)[1]}, "
        text += f"and all rows together have {span(fair.whole.error)}"
    return [text + "."]


def _largest(found: Comparison, m: Scored) -> tuple[str, str]:
    """Return what has the largest error, a domain where there are any, else a client, and its name with that error."""
    if m.domains:
        q = m.worst_domain(found.settings.min_rows)
        who, error = (None, None) if q is None else (found.rows.domains[q], m.domains[q].error)
    else:
        who, error = (None, None) if m.worst is None else (found.rows.names[m.worst], m.clients[m.worst].error)
    return "domain" if m.domains else "client", "" if error is None else f"{who}: {found.error_name} {span(error)}"


def listed(names: Sequence[Any], most: int = 3) -> str:
    """Return names with commas, the rest counted."""
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def times(n: int) -> str:
    """Return how often, in words."""
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def span(e: Estimate) -> str:
    """Return a number with its interval."""
    if not e.is_number:
        return "–"
    value, low, high = e.as_text()
    return f"{value} ({low} to {high})" if math.isfinite(e.low) else value
