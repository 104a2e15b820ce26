"""An analysis in words and columns of text: as many digits as a standard error deserves, warnings, the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex.analysis.formulas import is_curve

MANY, SMALL = 20, 60  # clients, and rows of one, below which intervals hold less often than they say: docs/analyse.md
SHOWN = 6  # clients that are named before "and 34 more"


def places_of(c: Any) -> int:
    """Return how many decimals show a coefficient: by its standard error, or by a quarter of its interval."""
    return places(0.25 * (c.high - c.low) if math.isnan(c.standard_error) else c.standard_error)


def places(error: float) -> int:
    """Return how many decimals show three digits of an error."""
    return min(max(2 - math.floor(math.log10(error)), 0), 12) if 0.0 < error < math.inf else 3


def to_places(v: float, decimals: int) -> str:
    """Return a number with so many decimals; very large ones by powers of ten, "–" for nan.

    Examples
    --------
    >>> from fedconvex.analysis.summary_text import to_places
    >>> to_places(0.051357, 5), to_places(-0.00001, 3), to_places(float("nan"), 3)
    ('0.05136', '0.000', '–')
    """
    if math.isnan(v):
        return "–"
    if math.isinf(v) or abs(v) >= 1e9:
        return f"{v:.6g}"
    text = f"{v:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0.0 else text


def ratio_text(v: float, decimals: int) -> str:
    """Return a ratio with so many decimals, or fewer where it is large; two digits where it is below them."""
    if math.isnan(v) or math.isinf(v) or v >= 1e5 or v < 0.5 * 10.0**-decimals:
        return "–" if math.isnan(v) else f"{v:.2g}"
    return f"{v:.{max(0, decimals - max(0, len(str(int(v))) - 1))}f}"


def exponentials(c: Any) -> tuple[float, float, float]:
    """Return exp of an estimate and of the ends of its interval."""
    with np.errstate(over="ignore"):
        e, low, high = np.exp([c.estimate, c.low, c.high]).tolist()
    return e, low, high


def p_text(p: float) -> str:
    """Return a p-value with three decimals, or "<0.001"."""
    return "–" if math.isnan(p) else "<0.001" if p < 5e-4 else f"{p:.3f}"


def p_is(p: float) -> str:
    """Return "p = 0.012" or "p < 0.001"."""
    return f"p {p_text(p)}".replace("<", "< ") if p < 5e-4 else f"p = {p_text(p)}"


def interval_places(low: float, high: float) -> int:
    """Return how many decimals show an interval, two of them at least."""
    wide = high - low
    return min(max(2, 1 - math.floor(math.log10(wide))), 6) if 0.0 < wide < math.inf else 2


def has_ratio(found: Any) -> list[bool]:
    """Return for each coefficient whether its exp is a ratio: not of intercepts, nor of parts of curves."""
    bare = set(found.rows.intercepts)
    return [bool(found.ratio) and j not in bare and not is_curve(n) for j, n in enumerate(found.names)]


def named_few(names: Sequence[Any]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more


def separation(found: Any) -> str:
    """Return which coefficients have no finite estimate, and in whose rows the likelihood rises."""
    fed, moved = found.rows.federation, found.fit.recession.moved
    clients = fed.labels[np.unique(np.searchsorted(fed.ptr, moved, side="right") - 1)]
    endless = [n for n, v in zip(found.names, found.estimates, strict=True) if not math.isfinite(v)]
    return (
        f"no finite maximum-likelihood estimate of {named_few(endless)} exists: in {moved.size} rows of"
        f" {named_few(clients.tolist())} the model predicts without error in the limit. Estimates are limits without"
        " standard errors; Firth's estimate is finite"
    )


def warnings(found: Any) -> list[str]:
    """Return where an interval holds less often than it says, and why."""
    fed, out = found.rows.federation, []
    if found.robust == "client" and fed.K < MANY:
        out.append(
            f"standard errors clustered by client are too small with fewer than {MANY} clients: leave them out in turn"
        )
    if found.site_intercepts and found.rows.family.name == "logistic" and fed.n < SMALL * fed.K and fed.K > 1:
        told = f"{fed.K} clients of {fed.n / fed.K:.0f} rows have an intercept each: slopes are too far from 0"
        out.append(f"{told} where clients are many and small")
    return [*out, *_gone(found.rows)]


def _gone(rows: Any) -> list[str]:
    """Return which clients have lost all their rows to missing cells, and the column that costs them the most."""
    there, lost = {str(v) for v in rows.federation.labels}, dict[str, int]()
    gone = [client for client in dict.fromkeys(client for _, client, _ in rows.left_out) if client not in there]
    if not gone:
        return []
    for column, client, m in rows.left_out:
        lost[column] = lost.get(column, 0) + m * (client in gone)
    most = max(lost, key=lambda column: lost[column])
    told = f"missing cells leave no row of {', '.join(gone)}"
    return [f"{told}; {lost[most]} of their rows lack {most!r}: drop that column to keep those that lack nothing else"]


def summary(found: Any) -> str:
    """Return the facts of the fit, and the table of its coefficients."""
    letter = "z" if found.residual_df is None else "t"
    ends = [f"[{0.5 * (1 - found.level):.3g}", f"{0.5 * (1 + found.level):.3g}]"]
    lines = [["", "coef", "std err", letter, f"P>|{letter}|", *ends, *([found.ratio] if found.ratio else [])]]
    for c, known in zip(found.table(), has_ratio(found), strict=True):
        d = places_of(c)
        line = [
            c.name,
            to_places(c.estimate, d),
            to_places(c.standard_error, d),
            to_places(c.statistic, 3),
            p_text(c.p),
        ]
        line += [to_places(c.low, d), to_places(c.high, d)]
        if found.ratio:
            e, low, high = exponentials(c)
            line += [ratio_text(e, interval_places(low, high)) if known else ""]
        lines.append(line)
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    facts = found.facts()
    wide = 2 + max(len(name) for name, _ in facts)
    text = [f"{name:<{wide}}{said}" for name, said in facts] + [""]
    for line in lines:
        cells = (c.ljust(w) if j == 0 else c.rjust(w) for j, (c, w) in enumerate(zip(line, widths, strict=True)))
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)
