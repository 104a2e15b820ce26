"""Forest plots: one coefficient at every client, in common, over clients, and for a new client.

The layout is that of medical journals (Lewis and Clarke, BMJ 322, 2001): squares whose area is the weight, lines for
intervals, diamonds for summaries. Shapes tell them apart where colours do not.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedconvex.analysis.summary_text import interval_places, p_is, ratio_text, to_places

MOST_CLIENTS = 40
FARTHEST = 200.0  # logarithms of ratios that are drawn; beyond it coefficients are


class Line(NamedTuple):
    """A line of the plot, in the units of the coefficient."""

    name: str
    value: float  # nan for a prediction interval
    low: float
    high: float
    text: str
    share: float  # of the weight; nan for summaries
    look: str  # "client", "joint", "common", "random", "prediction"


class Forest(NamedTuple):
    """All lines of one coefficient, from above."""

    name: str
    ratio: str  # what exp(coefficient) is called; "" for the coefficient itself
    lines: list[Line]
    level: float
    heterogeneity: str  # as journals print it below the plot


def forest(found: Any, name: str) -> Forest:
    """Return the lines of a coefficient of an analysis, the clients of most weight if there are more than 40."""
    apart, ratio, level = found.differences, found.ratio, found.level
    i, s = apart.names.index(name), apart.summaries[name]
    b, se, z = apart.estimates[:, i], apart.standard_errors[:, i], float(stats.norm.isf(0.5 * (1.0 - level)))
    weights = 1.0 / (se**2 + s.hartung_knapp.tau2)
    shares = weights / weights.sum()
    most = np.argsort(-shares, kind="stable")[:MOST_CLIENTS].tolist()
    drawn = sorted(most, key=lambda k: _natural(apart.clients[k]))
    lines = [
        Line(apart.clients[k], b[k], b[k] - z * se[k], b[k] + z * se[k], "", float(shares[k]), "client") for k in drawn
    ]
    joint, mean = next(c for c in found.table() if c.name == name), s.hartung_knapp
    half = z * s.common_se
    lines += [
        Line("Joint model", joint.estimate, joint.low, joint.high, "", math.nan, "joint"),
        Line("Common effect", s.common, s.common - half, s.common + half, "", math.nan, "common"),
        Line("Random effects", mean.estimate, mean.low, mean.high, "", math.nan, "random"),
        Line("Prediction interval", math.nan, s.prediction[0], s.prediction[1], "", math.nan, "prediction"),
    ]
    ends = [v for x in lines for v in (x.value, x.low, x.high) if math.isfinite(v) and x.look != "client"]
    if max(map(abs, [*ends, *b.tolist()])) > FARTHEST:  # a unit of the column is many standard deviations
        ratio = ""
    far = math.exp(min(abs(mean.estimate), 20.0)) if ratio else 1.0
    places = interval_places(mean.low * far, mean.high * far)
    said = f"Heterogeneity: I² = {s.I2:.0f} %, τ² = {s.reml.tau2:.2g}, {p_is(s.Q.p)} (Q)"
    return Forest(name, ratio, [one._replace(text=_text(one, bool(ratio), places)) for one in lines], level, said)


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts "Ward 2" before "Ward 10"."""
    return [(1, 0.0, s) if not s.isdecimal() else (0, float(s), "") for s in re.split(r"(\d+)", name) if s]


def _text(line: Line, ratio: bool, places: int) -> str:
    ends = (math.exp(min(v, 700.0)) if ratio else v for v in (line.value, line.low, line.high))
    value, low, high = (
        (ratio_text if ratio else to_places)(v, places).replace("-", "−").replace("inf", "∞") for v in ends
    )
    return f"[{low}, {high}]" if line.look == "prediction" else f"{value} [{low}, {high}]"


def axis_ends(lines: list[Line]) -> tuple[float, float]:
    """Return the ends of the axis, which shows all intervals but those much wider than the median: these are cut."""
    some = [v for x in lines for v in ((x.value,) if x.look == "client" else (x.value, x.low, x.high))]
    known = [v for v in some if math.isfinite(v)] + [0.0]
    low, high = min(known), max(known)
    clients = [x for x in lines if x.look == "client"]
    room = 1.3 * float(np.median([x.high - x.low for x in clients]))
    low = min([low, *(max(x.low, x.value - room) for x in clients)])
    high = max([high, *(min(x.high, x.value + room) for x in clients)])
    edge = 0.03 * (high - low)
    return low - edge, high + edge
