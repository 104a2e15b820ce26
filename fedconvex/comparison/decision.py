"""The decision in plain words: which kind of model, for whom it is no gain, and which method reaches it.

The kind is chosen by cross-validation on the training rows; what is said about it comes from rows that were held out,
so that the choice does not flatter the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedconvex.comparison.kinds import KINDS
from fedconvex.comparison.runs import RUNS
from fedconvex.comparison.verdicts import Outcome

if TYPE_CHECKING:
    from fedconvex.comparison.result import Comparison, Scored

__all__ = ["chosen", "decision", "listed"]

PHRASES = {
    "pooled": "one model for all clients",
    "afl": "one model that is fair to the worst",
    "mocha": "a model per client with learned relations",
    "mean": "a model per client near their mean",
}


def chosen(found: Comparison, joint: bool = False) -> str:
    """Return the method of least loss in cross-validation: pooled, afl, mocha, mean, or alone unless ``joint``.

    Where the pooled optimum itself was not asked for, a method that aims at it stands for it.
    """
    best, least = "alone", math.inf
    for m in found.methods:
        kind = RUNS[m.name][0] if m.name in RUNS else m.name
        if kind not in KINDS or m.tuned is None or (joint and kind == "alone"):
            continue
        if best == "alone" and joint and least == math.inf:
            best = m.name
        if m.tuned.loss < least:
            best, least = m.name, m.tuned.loss
    return best


def decision(found: Comparison) -> list[str]:
    """Return the decision: what to do, for whom, how sure that is, and what it takes."""
    best = chosen(found)
    if best == "alone":
        other = chosen(found, joint=True)
        if other == "alone":
            return ["Every client alone was the only kind of model compared."]
        return [_against(found, found[other], stay=True), *_whom(found, found[other])]
    m = found[best]
    return [_against(found, m, stay=False), *_whom(found, m), *_cheapest(found, m), *_worst(found, m)]


def _phrase(m: Scored) -> str:
    kind = RUNS[m.name][0] if m.name in RUNS else m.name
    return f"{PHRASES[kind]} ({m.name})"


def _against(found: Comparison, m: Scored, stay: bool) -> str:
    alone, d = found["alone"].whole.error.value, m.paired.difference
    level = f"{100.0 * found.settings.level:g} % interval"
    rows = int(found.test_rows.sum())
    figures = f"{found.error_name} {m.whole.error.value:.3g} on {rows:,} held-out rows, against {alone:.3g} alone"
    paired = f"difference {d.value:+.3g}, {level} {d.low:+.3g} to {d.high:+.3g}"
    if m.paired.outcome is Outcome.OPEN:
        return f"On average it makes no clear difference whether clients join: {_phrase(m)} has {figures} ({paired})."
    better = m.paired.outcome is Outcome.GAINS
    if better:
        lead = "Join" if not stay else "Joining helps on held-out rows, though cross-validation preferred staying alone"
        return f"{lead}: {_phrase(m)} predicts better than every client alone: {figures} ({paired})."
    lead = "Stay alone" if stay else "Do not join as a whole: what cross-validation preferred does worse"
    return f"{lead}: {_phrase(m)} predicts worse than every client alone: {figures} ({paired})."


def _whom(found: Comparison, m: Scored) -> list[str]:
    """Say who gains, who loses, and of whom nothing can be said."""
    by = {o: [n for n, j in zip(found.rows.names, m.joins, strict=True) if j.outcome is o] for o in Outcome}
    K, level = found.rows.K, found.settings.level
    text = f"Of {K} clients, {len(by[Outcome.GAINS])} clearly gain{'s' if len(by[Outcome.GAINS]) == 1 else ''} by it, "
    lose = by[Outcome.LOSES]
    text += f"{len(lose)} clearly lose{'s' if len(lose) == 1 else ''}" + (f" ({listed(lose)})" if lose else "")
    text += f", {len(by[Outcome.OPEN])} show{'s' if len(by[Outcome.OPEN]) == 1 else ''} no clear difference"
    few = by[Outcome.FEW]
    if few:
        text += f", and {len(few)} {'has' if len(few) == 1 else 'have'} fewer than {found.settings.min_rows} held-out "
        text += f"rows, too few to say ({listed(few)})"
    return [f"{text}; all these verdicts hold together at {100.0 * level:g} % confidence."]


def _cheapest(found: Comparison, m: Scored) -> list[str]:
    """Say which method reaches the models, and what that takes."""
    kind = RUNS[m.name][0] if m.name in RUNS else m.name
    ways = [x for x in found.methods if x.cost is not None and RUNS[x.name][0] == kind]
    if not ways:
        return []
    reached = [x for x in ways if x.cost is not None and x.cost.reached]
    if not reached:
        names = listed([x.name for x in ways], 9)
        return [f"Within {found.settings.rounds} rounds {names} did not come within {found.settings.gap:g} of it."]
    best = min(reached, key=lambda x: x.cost.megabytes if x.cost else math.inf)
    assert best.cost is not None
    c = best.cost
    return [
        f"{best.name} reaches it to within {found.settings.gap:g} in {c.rounds} round{'s' if c.rounds != 1 else ''}, "
        f"{c.megabytes:.3g} MB and {c.seconds:.2g} s of computing."
    ]


def _worst(found: Comparison, m: Scored) -> list[str]:
    """Say how the worst client fares, beside the model that is fair to the worst."""
    if m.worst is None:
        return []
    e = m.clients[m.worst].error
    text = f"Its largest error is that of {found.rows.names[m.worst]}, {e.value:.3g} ({e.low:.3g} to {e.high:.3g})"
    fair = [x for x in found.methods if x.name == "afl" and x.name != m.name and x.worst is not None]
    if fair and fair[0].worst is not None:
        f = fair[0]
        text += f"; with afl the largest is {f.clients[f.worst].error.value:.3g} ({found.rows.names[f.worst]})"
        text += f", at a mean of {f.whole.error.value:.3g}"
    return [text + "."]


def listed(names: Sequence[Any], most: int = 3) -> str:
    """Return names with commas, the rest counted."""
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"
