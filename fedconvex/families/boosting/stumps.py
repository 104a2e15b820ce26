"""Decision stumps: exact weighted search over presorted features, and over histograms of binned features.

A stump predicts left where x_j <= c and right elsewhere, left and right in {-1, +1}. For signed weights omega_i (weight
times label) with total S, a cut whose left rows sum to L has the edge sum_i omega_i h(x_i) = |L| + |S - L| with the
better labels. Since |L| + |S - L| = max(|S|, |2 L - S|), the best cut of a feature is the one whose L is largest or
least: one pass over the sorted rows keeps two numbers, O(n d) for all stumps.

``criterion="error"`` maximises the edge, that is, minimises the weighted error. ``criterion="gini"`` maximises
L^2/W_L + R^2/W_R, where W are sums of |omega|: the impurity that classification trees use by default.

Most features need no pass. Let a >= 0 and c <= 0 be the sums of positive and of negative weights left of a cut:
L = a + c, W_L = a - c, and both gains are convex in (a, c). Sorted rows are grouped into 128 bins; inside a bin (a, c)
lies in a rectangle known from the sums of the bins, so that the gain is at most that at its corners. Only features
whose bound reaches the best gain found are scanned cut by cut: the result is that of scanning all (the interval pruning
of Alsabti, Ranka, Singh, "CLOUDS: a decision tree classifier for large datasets", KDD 1998). The sums need few digits:
weights are rounded to whole numbers, two sources to a 64-bit word, and added by one instruction.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, finite, numeric, real, whole, wrong_type
from fedconvex.kernels.stump_search import (
    HALF,
    LARGEST,
    ROW,
    TINY,
    bin_cuts,
    bin_tops,
    corners,
    extremes,
    gini_cuts,
    inside_bins,
    locate,
    pack,
)

_CRITERIA = ("error", "gini")
_FEW = 2048  # rows up to which all features are scanned
_ROUNDING = 8.0  # whole numbers per row by which rounding changes a gain at most


class _Fields(NamedTuple):
    feature: int
    threshold: float
    left: float
    right: float


class Stump(_Fields):
    """h(x) = left if x[feature] <= threshold else right.

    Parameters
    ----------
    feature : int
        0, 1, ...
    threshold : float
        Infinite for a constant.
    left, right : float
        In [-1, 1].

    Raises
    ------
    ValueError, TypeError
        On a negative or fractional feature, a threshold that is NaN, or values outside [-1, 1].

    Examples
    --------
    >>> from fedconvex.problems import Stump
    >>> Stump(0, 0.5, -1.0, 1.0).predict([[0.0], [1.0]])
    array([-1.,  1.])
    """

    __slots__ = ()

    def __new__(cls, feature: int, threshold: float, left: float, right: float) -> Stump:
        """Check what a stump is made of."""
        whole("Stump.feature", feature)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.integer, np.floating)):
            raise wrong_type("Stump.threshold", "be a number", f"{type(threshold).__name__} {threshold!r}")
        if not abs(threshold) <= math.inf:
            raise bad("Stump.threshold", "be a number or infinite", "NaN")
        if isinstance(threshold, int):
            real("Stump.threshold", threshold)
        for name, value in (("left", left), ("right", right)):
            real(f"Stump.{name}", value, low=-1.0, high=1.0)
        return super().__new__(cls, feature, threshold, left, right)

    def predict(self, X: Any) -> np.ndarray:
        """Return h of every row of X (n, d)."""
        rows = numeric("Stump.predict: X", X, copy=False)
        if rows.ndim != 2 or rows.shape[1] <= self.feature:
            raise bad("Stump.predict: X", f"have shape (n, d) with d > {self.feature}", f"{rows.shape}")
        column = rows[:, self.feature]
        finite("Stump.predict: X", column)
        return np.where(column <= self.threshold, self.left, self.right)


class _Scan(NamedTuple):
    """What was found for one weight vector: per feature the largest gain (-inf where not scanned) and its cut."""

    total: float  # S
    gains: np.ndarray  # (d,)
    spots: np.ndarray  # (d,) sorted position or bin of the cut; for the error of sorted rows, whether L is the largest
    lefts: np.ndarray  # (d,) L, where bins are searched


class _Bounds(NamedTuple):
    """Upper bounds of the gains for p weight vectors, and the whole numbers behind them."""

    tops: np.ndarray  # (p, d)
    words: Any = None  # (p/2, n) weights, two rows to a word; None where no finer bound is known
    sums: Any = None  # (p/2, d or a little more, 256) their sums over bins
    units: Any = None  # (p,) what a whole number stands for


class _Table:
    """What both tables share: which features are scanned, and what is returned."""

    columns: np.ndarray  # (d, n)

    def search(self, omega: Any, criterion: str = "error") -> tuple[Stump, float]:
        """Return the best stump for signed weights (n,), and its edge sum_i omega_i h(x_i) >= 0."""
        w = numeric("omega", omega, copy=False)
        if not np.isfinite(w).all():
            raise bad("omega", "have finite weights", "NaN or infinity")
        return self.search_best(w[None], criterion)[1:]

    def search_many(self, omega: Any, criterion: str = "error") -> list[tuple[Stump, float]]:
        """Return `search` of every row of omega (p, n)."""
        w = _weights(omega, self.columns.shape[1])
        if len(w) > 1 and np.abs(w).max() * 1e-18 > np.abs(w).max(axis=1).min():  # each in its own unit
            return [self.search_many(row[None], criterion)[0] for row in w]
        w, unit = _moderate(w)
        scans = self._scan(w, criterion, False)
        found = (self._found(w[e], criterion, scans[e]) for e in range(len(w)))
        return [(stump, edge * unit) for stump, edge in found]

    def search_best(self, omega: Any, criterion: str = "error") -> tuple[int, Stump, float]:
        """Return the first row of omega (p, n) whose `search` has the largest edge, the stump and its edge."""
        w, unit = _moderate(_weights(omega, self.columns.shape[1]))
        scans = self._scan(w, criterion, criterion == "error")
        found = {e: self._found(w[e], criterion, scan) for e, scan in sorted(scans.items())}
        e = max(found, key=lambda i: found[i][1])
        stump, edge = found[e]
        return e, stump, edge * unit

    def _scan(self, omega: np.ndarray, criterion: str, shared: bool) -> dict[int, _Scan]:
        """Scan for every row of omega the features that can be its best; if shared, the best of all rows."""
        among("criterion", criterion, _CRITERIA)
        d, floor = len(self.columns), -np.inf
        scans: dict[int, _Scan] = {}
        bounds = self._bounds(omega, criterion)
        tops = bounds.tops
        for e in np.argsort(-tops.max(axis=1), kind="stable").tolist() if len(tops) > 1 else (0,):
            floor = floor if shared else -np.inf
            if tops[e].max() < floor:
                continue
            scans[e] = scan = _Scan(
                float(omega[e].sum()), np.full(d, -np.inf), np.zeros(d, dtype=np.int64), np.zeros(d)
            )
            if tops[e, 0] == np.inf:  # nothing is known
                self._scan_features(omega[e], np.arange(d), criterion, scan)
                floor = max(floor, float(scan.gains.max()))
                continue
            ranked = np.argsort(-tops[e])
            for features in (ranked[:4], ranked[4:]):
                chosen = features[~(tops[e, features] < floor)]
                if chosen.size > 4 and bounds.words is not None:
                    self._sharpen(bounds, e, chosen, floor, criterion)
                    chosen = chosen[~(tops[e, chosen] < floor)]
                if chosen.size:
                    self._scan_features(omega[e], chosen, criterion, scan)
                    floor = max(floor, float(scan.gains[chosen].max()))
        return scans

    def _bounds(self, omega: np.ndarray, criterion: str) -> _Bounds:
        """Return upper bounds of the gains; infinite where they would cost as much as scanning all."""
        raise NotImplementedError

    def _sharpen(self, bounds: _Bounds, e: int, features: np.ndarray, floor: float, criterion: str) -> None:
        """Lower the bounds of the given features by what is known inside bins."""
        raise NotImplementedError

    def _scan_features(self, w: np.ndarray, features: np.ndarray, criterion: str, scan: _Scan) -> None:
        """Fill a scan at the given features."""
        raise NotImplementedError

    def _found(self, w: np.ndarray, criterion: str, scan: _Scan) -> tuple[Stump, float]:
        """Return the best stump of a scan and its edge."""
        raise NotImplementedError


class Presorted(_Table):
    """Rows sorted by every feature once; `search` then finds the best of all stumps for any weights.

    Parameters
    ----------
    X : array (n, d)
        Finite features.

    Raises
    ------
    ValueError, TypeError
        If X is no matrix of finite numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import Presorted
    >>> y = np.array([-1.0, -1.0, 1.0])
    >>> stump, edge = Presorted([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]]).search(y / 3)
    >>> stump, float(edge)
    (Stump(feature=0, threshold=1.5, left=-1.0, right=1.0), 1.0)
    """

    def __init__(self, X: Any) -> None:
        self.columns = _columns("Presorted.X", X)
        self.order: np.ndarray = np.empty(self.columns.shape, dtype=np.uint32)
        for order, column in zip(self.order, self.columns, strict=True):  # one by one: Ctrl-C is heard in between
            order[:] = np.argsort(column, kind="stable")
        self._finish()

    def _finish(self) -> None:
        """Group the rows for the bounds, and mark positions that no cut follows, the next value being equal."""
        n = self.order.shape[1]
        angle = np.arcsin(np.sqrt((np.arange(n) + 0.5) / n)) * 2.0 / np.pi  # short bins at the ends: see `gini_gain`
        self.code, bins = np.empty(self.order.shape, dtype=np.uint8), (angle * HALF).astype(np.uint8)
        self.starts = np.searchsorted(bins, np.arange(HALF + 1))
        for order, column, code in zip(self.order, self.columns, self.code, strict=True):
            code[order], values, last = bins, column[order], np.ones(n, dtype=np.bool_)
            last[:-1] = values[1:] <= values[:-1]
            order |= last.astype(np.uint32) << np.uint32(31)

    def rows(self, lo: int, hi: int) -> Presorted:
        """Return the same structure for rows lo:hi alone, without sorting again."""
        part = object.__new__(Presorted)
        part.columns = np.ascontiguousarray(self.columns[:, lo:hi])
        order = self.order & ROW
        inside = (order >= lo) & (order < hi)
        part.order = (order[inside] - np.uint32(lo)).reshape(len(self.columns), hi - lo)
        part._finish()
        return part

    def _bounds(self, omega: np.ndarray, criterion: str) -> _Bounds:
        p, d, n = len(omega), *self.columns.shape
        tops = np.full((p, d), np.inf)
        if n <= _FEW:
            return _Bounds(tops)
        words, side, units = _packed(omega)
        if words is None or side is None:
            return _Bounds(tops)
        sums = np.empty((len(words), d + 3 - (d - 1) % 4, 2 * HALF), dtype=np.int64)
        corners(self.code, side, words, criterion == "gini", sums, tops)
        tops += _ROUNDING * n
        tops *= units[:, None]
        return _Bounds(tops, words, sums, units)

    def _sharpen(self, bounds: _Bounds, e: int, features: np.ndarray, floor: float, criterion: str) -> None:
        top, unit, slack = bounds.tops[e], float(bounds.units[e]), _ROUNDING * self.columns.shape[1]
        words, sums, gini = bounds.words[e // 2], bounds.sums[e // 2], criterion == "gini"
        inside_bins(self.order, self.starts, words, sums, e % 2, gini, features, floor / unit - slack, top)
        top[features] = (top[features] + slack) * unit

    def _scan_features(self, w: np.ndarray, features: np.ndarray, criterion: str, scan: _Scan) -> None:
        if criterion == "error":
            extremes(self.order, features, w, scan.total, scan.gains, scan.spots)
            return
        heavy = np.abs(w)
        mass = float(heavy.sum())
        parts = np.column_stack([mass * w - scan.total * heavy, heavy])
        gini_cuts(self.order, features, parts, mass, scan.gains, scan.spots)

    def _found(self, w: np.ndarray, criterion: str, scan: _Scan) -> tuple[Stump, float]:
        j = int(np.argmax(scan.gains))
        gain, s, total = float(scan.gains[j]), int(scan.spots[j]), scan.total
        if criterion == "error":
            if not gain > abs(total):
                return _constant(total)
            side = 1.0 if s else -1.0  # the gain exceeds |S|: the labels differ
            return Stump(j, self._threshold(j, int(locate(self.order[j], w, bool(s)))), side, -side), gain
        if gain < 0.0:
            return _constant(total)
        order = self.order[j] & ROW
        left, right = float(w[order[: s + 1]].sum()), float(w[order[s + 1 :]].sum())
        return Stump(j, self._threshold(j, s), _sign(left), _sign(right)), abs(left) + abs(right)

    def _threshold(self, j: int, s: int) -> float:
        """Return the middle of the values on both sides of a cut."""
        a, b = self.columns[j, self.order[j, s : s + 2] & ROW]
        middle = 0.5 * a + 0.5 * b
        return float(middle if a <= middle < b else a)


class Binned(_Table):
    """Features cut into at most 255 bins of equal row counts; thresholds lie between bins. Exact up to 255 values.

    Parameters
    ----------
    X : array (n, d)
        Finite features.
    bins : int
        2 to 255.

    Raises
    ------
    ValueError, TypeError
        If X is no matrix of finite numbers, or bins not in 2, ..., 255.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import Binned
    >>> Binned([[0.0], [1.0], [2.0]]).search(np.array([-1.0, -1.0, 1.0]) / 3)[0]
    Stump(feature=0, threshold=1.5, left=-1.0, right=1.0)
    """

    def __init__(self, X: Any, bins: int = 255) -> None:
        self.most = most = whole("Binned.bins", bins, low=2, high=255)
        self.columns = _columns("Binned.X", X)
        self.edges = [cut_points(column, most) for column in self.columns]
        code = [np.searchsorted(e, c, side="left") for e, c in zip(self.edges, self.columns, strict=True)]
        self.code = np.array(code, dtype=np.uint8)
        self.counts = np.array([e.size for e in self.edges])

    def rows(self, lo: int, hi: int) -> Binned:
        """Return the same bins for rows lo:hi alone."""
        part = object.__new__(Binned)
        part.columns, part.code = (np.ascontiguousarray(a[:, lo:hi]) for a in (self.columns, self.code))
        part.edges, part.counts, part.most = self.edges, self.counts, self.most
        return part

    def _bounds(self, omega: np.ndarray, criterion: str) -> _Bounds:
        p, d, n = len(omega), *self.columns.shape
        tops = np.full((p, d), np.inf)
        if p == 1 or n <= _FEW or criterion != "error":
            return _Bounds(tops)
        words, _, units = _packed(omega)
        if words is not None:
            bin_tops(self.code, words, self.counts, np.empty((4, 256), dtype=np.int64), tops)
            tops += _ROUNDING * n
            tops *= units[:, None]
        return _Bounds(tops)

    def _scan_features(self, w: np.ndarray, features: np.ndarray, criterion: str, scan: _Scan) -> None:
        gini, sums = criterion == "gini", np.empty((4, 256))
        heavy, masses = (np.abs(w), np.empty((4, 256))) if gini else (w, sums)
        mass = float(heavy.sum()) if gini else 0.0
        bin_cuts(self.code, features, w, heavy, gini, self.counts, mass, sums, masses, *scan)

    def _found(self, w: np.ndarray, criterion: str, scan: _Scan) -> tuple[Stump, float]:
        j = int(np.argmax(scan.gains))
        total, left = scan.total, float(scan.lefts[j])
        right = total - left
        if scan.gains[j] < 0.0 or (criterion == "error" and left * right >= 0.0):
            return _constant(total)
        return Stump(j, float(self.edges[j][scan.spots[j]]), _sign(left), _sign(right)), abs(left) + abs(right)


# ---------------------------------------------------------------- small things


def _columns(who: str, X: Any) -> np.ndarray:
    a = numeric(who, X, copy=False)
    if a.ndim != 2 or a.size == 0:
        raise bad(who, "be two-dimensional (rows, features), not empty", f"shape {a.shape}")
    finite(who, a)
    return np.ascontiguousarray(a.T)


def _weights(omega: Any, n: int) -> np.ndarray:
    w = omega if isinstance(omega, np.ndarray) and omega.dtype == np.float64 else numeric("omega", omega, copy=False)
    if w.ndim != 2 or w.shape[1] != n:
        raise bad("omega", f"be one signed weight per row ({n})", f"shape {w.shape}")
    return np.require(w, requirements=["C", "W"])


def _moderate(w: np.ndarray) -> tuple[np.ndarray, float]:
    """Return weights whose fourth powers are numbers, and the power of two that was taken out, which is exact."""
    most = max(float(w.max(initial=0.0)), -float(w.min(initial=0.0)))
    if most == 0.0 or 1e-18 <= most <= 1e18 or not math.isfinite(most):  # a diverged run still ends
        return w, 1.0
    unit = 2.0 ** min(max(math.frexp(most)[1], -1021), 1023)
    return w / unit, unit


def _packed(omega: np.ndarray) -> tuple[Any, Any, Any]:
    """Return weights (p, n) as whole numbers, two rows to a word, the tables of their signs, and what 1 stands for.

    There are no words where weights are not finite, and no tables where rows differ in sign.
    """
    p, n = omega.shape
    mass, words, side = np.empty(p), np.empty(((p + 1) // 2, n), dtype=np.int64), np.empty(n, dtype=np.uint8)
    alike = pack(omega, mass, words, side)
    return (words if np.isfinite(mass).all() else None), (side if alike else None), np.maximum(mass, TINY) / LARGEST


def _sign(x: float) -> float:
    return 1.0 if x >= 0.0 else -1.0


def _constant(total: float) -> tuple[Stump, float]:
    return Stump(0, float("inf"), _sign(total), _sign(total)), abs(total)


def cut_points(column: np.ndarray, most: int) -> np.ndarray:
    """Cuts between the bins, midpoints of neighbouring values: all, or those nearest to equal row counts."""
    values, counts = np.unique(column, return_counts=True)
    cuts = 0.5 * values[:-1] + 0.5 * values[1:]
    cuts = np.where((cuts >= values[:-1]) & (cuts < values[1:]), cuts, values[:-1])
    if cuts.size < most:
        return cuts
    below = np.cumsum(counts)[:-1]
    return cuts[np.unique(np.searchsorted(below, np.arange(1, most) * column.size / most).clip(max=cuts.size - 1))]
