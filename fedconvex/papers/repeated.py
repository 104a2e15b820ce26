"""Rows of an experiment that is repeated: means, spreads, paired differences, tables and curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedconvex.papers.findings import Claim, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.intervals import Interval, every, mean_interval
from fedconvex.papers.style import COLOURS, band

Row = dict[str, Any]
_REPETITION = "repetition"


@dataclass(frozen=True)
class Repeated:
    """Rows with a key "repetition"; a repetition has one row for every setting.

    Attributes
    ----------
    rows : tuple of dict
        Settings and measured numbers by name.
    overlap : float
        Test rows over training rows where repetitions draw from the same rows, else 0: `mean_interval`.

    Examples
    --------
    >>> from fedconvex.papers.repeated import Repeated
    >>> rows = [{"repetition": r, "method": m, "loss": r + 2.0 * (m == "B")} for r in range(3) for m in "AB"]
    >>> found = Repeated(tuple(rows))
    >>> found.values("loss", method="A").tolist(), found.minus("loss", {"method": "B"}, {"method": "A"}).mean
    ([0.0, 1.0, 2.0], 2.0)
    """

    rows: tuple[Row, ...]
    overlap: float = 0.0

    def where(self, **equal: Any) -> Repeated:
        """Return the rows that have these values."""
        return Repeated(tuple(r for r in self.rows if all(r[k] == v for k, v in equal.items())), self.overlap)

    def kinds(self, key: str) -> list[Any]:
        """Return the different values of a setting, in their order."""
        return list(dict.fromkeys(r[key] for r in self.rows))

    def values(self, what: str, **equal: Any) -> np.ndarray:
        """Return a number for every repetition (J,)."""
        mine = sorted(self.where(**equal).rows, key=lambda r: r[_REPETITION])
        times = [r[_REPETITION] for r in mine]
        if not mine or len(set(times)) < len(times):
            raise ValueError(f"{what} at {equal} must be one number a repetition; got {len(mine)} in {len(set(times))}")
        return np.array([r[what] for r in mine], dtype=float)

    def interval(self, what: str, **equal: Any) -> Interval:
        """Return the mean over repetitions with its 95 % interval."""
        return mean_interval(self.values(what, **equal), self.overlap)

    def minus(self, what: str, one: Row, other: Row) -> Interval:
        """Return the mean of the paired differences of two settings, with its 95 % interval."""
        return mean_interval(self.values(what, **one) - self.values(what, **other), self.overlap)

    def table(self, by: Sequence[str], of: Sequence[str]) -> list[Row]:
        """Return a row for every setting, with mean and standard deviation (s.d.) over repetitions, or the median."""
        out = []
        for setting in dict.fromkeys(tuple(r[k] for k in by) for r in self.rows):
            at: Row = dict(zip(by, setting, strict=True))
            row = dict(at)
            for what in of:
                v = self.values(what, **at)
                finite = bool(np.isfinite(v).all())
                row |= {what: float(v.mean()) if finite else float(np.median(v))}
                row |= {f"{what}, s.d.": float(v.std(ddof=1)) if finite and v.size > 1 else math.nan}
            out.append(row)
        return out


def higher(text: str, pairs: Sequence[tuple[str, Interval]], than: float = 0.0) -> Claim:
    """Return the claim that differences lie above a number: false if an interval lies below, open if one holds it."""
    return Claim(text, every(d.above(than) for _, d in pairs), "; ".join(f"{name} {d}" for name, d in pairs))


# ---------------------------------------------------------------- figures


def draw_curves(
    axis: Any, found: Repeated, x: str, y: str, by: str, names: Sequence[Any] | None = None, *, marked: bool = False
) -> None:
    """Draw y over x for every value of ``by``: the mean over repetitions, and the band of one standard deviation.

    Marked, curves have marks at points of their own and are thinner one by one, so that none is hidden behind another.
    """
    for j, name in enumerate(found.kinds(by) if names is None else names):
        mine = found.where(**{by: name})
        if not mine.rows:
            continue
        values = np.array([mine.values(y, **{x: at}) for at in mine.kinds(x)])  # (points, repetitions)
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=min(1, values.shape[1] - 1))
        colour = COLOURS[j % len(COLOURS)]
        dashes = ("-", (0, (5, 1.5)), (0, (4, 1, 1, 1)), (0, (1.5, 1)))[j % 4]
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.5, "label": str(name)}
        if marked:
            look |= {"marker": "osD^"[j % 4], "markersize": 3.5, "markevery": (j, 4), "markerfacecolor": "white"}
            look["linewidth"] = max(1.0, 2.4 - 0.6 * j)
        axis.plot(mine.kinds(x), mean, **look)
        band(axis, mine.kinds(x), mean - spread, mean + spread, colour, 0.15)


def draw_bars(axis: Any, found: Repeated, what: str, along: str, by: str) -> None:
    """Draw means beside each other with one standard deviation: a group for every value of ``along``."""
    groups, names = found.kinds(along), found.kinds(by)
    for j, name in enumerate(names):
        at, height, spread = zip(*_bars(found, what, along, groups, by, name), strict=True)
        shift = (j - 0.5 * (len(names) - 1)) * 0.8 / len(names)
        look = {"color": COLOURS[j % len(COLOURS)], "error_kw": {"linewidth": 0.9}, "capsize": 2, "label": str(name)}
        axis.bar(np.array(at) + shift, height, 0.8 / len(names), yerr=spread, **look)
    axis.set_xticks(range(len(groups)), [str(g) for g in groups])


def _bars(
    found: Repeated, what: str, along: str, groups: Sequence[Any], by: str, name: Any
) -> Iterator[tuple[int, float, float]]:
    for i, group in enumerate(groups):
        mine = found.where(**{along: group, by: name})
        if mine.rows:
            v = mine.values(what)
            yield i, float(v.mean()), float(v.std(ddof=1)) if v.size > 1 else 0.0


# ---------------------------------------------------------------- repeating


def repeat(times: int, make: Callable[[int], Iterable[Row]], tell: Progress, name: str = "rows") -> list[Row]:
    """Return the rows of all repetitions; each is a part that is kept if the run is killed."""
    rows: list[Row] = []
    for number in range(times):
        tell(number / times, f"repetition {number + 1} of {times}")
        rows += finished_part(f"{name} {number}", partial(_listed, make, number))
    return rows


def _listed(make: Callable[[int], Iterable[Row]], number: int) -> list[Row]:
    return list(make(number))
