"""Categories, medians, means and scales of a table whose rows stay with their clients: the server adds, no rows move.

`Columns.fit` looks at all training rows at once. Here every client answers with counts and sums over its own rows, and
the server learns their totals only (with `SecureSums`: literally). Ranges and medians are order statistics, found by
counting how many numbers lie below thresholds: the ordered doubles are searched, sixteen at a time, so that the result
is exact. Means and squared deviations are sums of numbers in [-1, 1], sent in two parts of fixed point.

What is told beside totals: the names of categories, which become names of features (by every client, without counts),
and, through the ranges, the smallest and the largest number of each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, flag, instance, items, wrong_type
from fedconvex.secure import Circle, SecureSums
from fedconvex.tables.columns import MISSING_LEVEL, Column, Columns
from fedconvex.tables.frame import Frame
from fedconvex.tables.moments import column_sums, halves, heaviest, squares_about
from fedconvex.tables.spelling import Names, as_text, doubles

__all__ = ["Preprocessing", "fit_federated"]

_WAYS = 16  # thresholds per round of a search
_KEY_WORDS, _AGREED = 4, 2  # 8-byte words of a public key, and of what says who took part


class Preprocessing(NamedTuple):
    """A record that was fitted by sums over clients, and what it cost.

    Attributes
    ----------
    columns : Columns
        The record: levels, means and scales, which every site applies alike.
    rounds : int
        Questions to all clients.
    floats_up, floats_down : int
        8-byte numbers from all clients, and to them.

    Examples
    --------
    >>> from fedconvex.preprocessing import Preprocessing
    >>> from fedconvex.tables import read_table
    >>> _, columns = read_table({"age": [61.0, 37.0], "y": [1.0, 2.5], "ward": ["a", "b"]}, target="y", client="ward")
    >>> Preprocessing(columns, rounds=2, floats_up=12, floats_down=4).rounds
    2
    """

    columns: Columns
    rounds: int  # questions to all clients
    floats_up: int  # 8-byte numbers from all clients
    floats_down: int  # to all clients


class _Draws(NamedTuple):
    trajectory: tuple[int, ...]
    round: int


@dataclass
class _Totals:
    """Adds the answers of clients, and counts what was sent."""

    secure: SecureSums | None
    rounds: int = 0
    up: int = 0
    down: int = 0
    circle: Circle | None = None  # the clients, once they have agreed on keys

    def of(self, answers: Sequence[np.ndarray], asked: int = 0) -> np.ndarray:
        """Return the sum over clients of numbers in one vector each, (L,); asked: floats of the question."""
        flat = np.array([np.ravel(a) for a in answers], dtype=np.float64)
        K, L = flat.shape
        self.rounds += 1
        if self.secure is None:
            self.up, self.down = self.up + K * L, self.down + K * asked
            return flat.sum(axis=0)
        scale = 2.0**self.secure.bits
        high = np.rint(flat * scale) / scale
        parts = np.concatenate([high, (flat - high) * scale], axis=1)  # 2^-2 bits, in two sums of fixed point
        draws = _Draws((0,), self.rounds)
        ids = np.arange(K, dtype=np.int64)
        if self.circle is None:  # keys are exchanged once; the number of the sum is what masks differ by
            self.circle = Circle.of(ids)
            self.up, self.down = self.up + K * _KEY_WORDS, self.down + K * K * _KEY_WORDS
        total = self.secure.total(self.secure.mask(parts[None], ids[None], draws, [self.circle]))[0]
        self.up, self.down = self.up + K * (2 * L + _AGREED), self.down + K * asked
        return np.asarray(total[:L] + total[L:] / scale)

    def counts(self, answers: Sequence[np.ndarray], asked: int = 0) -> np.ndarray:
        """Return the sum of whole numbers."""
        return np.rint(self.of(answers, asked)).astype(np.int64)


def fit_federated(
    columns: Columns,
    frames: Mapping[Any, Frame] | Sequence[Frame],
    *,
    secure: SecureSums | None = None,
    standardise: bool = True,
    centre: bool = True,
    standardise_target: bool = False,
) -> Preprocessing:
    """Learn what `Columns.fit` learns, from the clients' counts and sums; equal to it up to rounding.

    Parameters
    ----------
    columns : Columns
        The roles of columns, as `fedconvex.tables.read_table` returns them. Categories that it lists already are
        a vocabulary, and no names are sent.
    frames : mapping or sequence of Frame
        Every client's training rows.
    secure : SecureSums, optional
        Add masked numbers; default plain sums.
    standardise, centre, standardise_target : bool
        As for `Columns.fit`.

    Returns
    -------
    Preprocessing
        The fitted record, rounds, and floats sent (8 bytes each; names of categories count by their length).

    Raises
    ------
    ValueError, TypeError
        If there is no client, a client holds what a column cannot hold, or frames are none.

    References
    ----------
    Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017 (the sums).

    Examples
    --------
    >>> from fedconvex.preprocessing import fit_federated
    >>> from fedconvex.tables import read_table
    >>> frame, columns = read_table({"age": [60, 40, 50, 30], "sex": ["f", "m", "f", "f"], "y": [1, 0, 1, 0]}, "y")
    >>> found = fit_federated(columns, [frame.take([0, 1]), frame.take([2, 3])])
    >>> found.columns.center.tolist() == columns.fit(frame).center.tolist(), found.floats_up
    (True, 3095)
    """
    clients = [columns.counting(f) for f in _checked(columns, frames, secure)]
    given = {"standardise": standardise, "centre": centre, "standardise_target": standardise_target}
    scaling = [flag(f"fit_federated: {name}", x) for name, x in given.items()]
    totals = _Totals(secure)
    n = int(totals.counts([np.array([f.n]) for f in clients])[0])
    learned = {**_numbers(columns, clients, n, totals), **_names(columns, clients, totals)}
    fitted = tuple(learned.get(c.name, c) for c in columns.columns)
    record = columns.arranged(fitted, n, any(f.rows is not None for f in clients))
    record = _scaled(record, clients, totals, *scaling)
    return Preprocessing(record, totals.rounds, totals.up, totals.down)


def _checked(columns: Columns, frames: Any, secure: Any) -> list[Frame]:
    """Return the frames of the clients, which have all columns."""
    clients = list(frames.values() if isinstance(frames, Mapping) else items("fit_federated: frames", frames))
    instance("fit_federated: columns", columns, Columns)
    if not clients or not all(isinstance(f, Frame) for f in clients):
        raise wrong_type("fit_federated: frames", "be the frames of at least one client", f"{type(frames).__name__}")
    if secure is not None:
        instance("fit_federated: secure", secure, SecureSums)
        if len(clients) < 2:
            raise bad("fit_federated: secure", "have at least two clients", "one, whose sums would be its answers")
    for f in clients:
        columns.check_names(f)
    return [columns.cleared(f) for f in clients]


# ---------------------------------------------------------------------- order statistics
def _as_keys(x: np.ndarray) -> np.ndarray:
    """Return doubles as uint64 in the same order."""
    bits = np.asarray(x, dtype=np.float64).view(np.int64)
    return (bits ^ ((bits >> 63) & np.int64(2**63 - 1))).view(np.uint64) ^ np.uint64(2**63)


def _as_doubles(keys: np.ndarray) -> np.ndarray:
    bits = (np.asarray(keys, dtype=np.uint64) ^ np.uint64(2**63)).view(np.int64)
    return (bits ^ ((bits >> 63) & np.int64(2**63 - 1))).view(np.float64)


class _Sorted(NamedTuple):
    """A client's numbers of a column, and what those up to each weigh together."""

    x: np.ndarray  # (m,) increasing
    sums: np.ndarray  # (m + 1,) from 0

    @classmethod
    def of(cls, x: np.ndarray, weight: np.ndarray | None = None) -> _Sorted:
        """Return numbers in order; without weights each counts 1."""
        order = np.argsort(x, kind="stable")
        sums = np.arange(x.size + 1) if weight is None else np.append(0.0, np.cumsum(weight[order]))
        return cls(x[order], sums)


def _order_statistics(held: Sequence[Sequence[_Sorted]], ranks: np.ndarray, totals: _Totals) -> np.ndarray:
    """Return the first numbers of all clients up to which column j weighs ranks[j], by sums of what is below.

    Parameters
    ----------
    held : for every client its numbers of every column
    ranks : array (J, S)
        Several per column; a number of rank r, counted from 1, is reached by r - 1/2.
    """
    low = np.full(ranks.shape, _as_keys(np.array([-np.finfo(float).max]))[0])
    high = np.full(ranks.shape, _as_keys(np.array([np.finfo(float).max]))[0])
    while (low < high).any():
        step = np.maximum((high - low) // np.uint64(_WAYS), np.uint64(1))
        offsets = step[..., None] * np.arange(_WAYS, dtype=np.uint64)
        at = low[..., None] + np.minimum(offsets, (high - low)[..., None])
        asked = _as_doubles(at)
        answers = [
            np.array([s.sums[np.searchsorted(s.x, v, side="right")] for s, v in zip(mine, asked, strict=True)])
            for mine in held
        ]
        below = totals.of(answers, asked.size).reshape(at.shape)
        enough = below >= ranks[..., None]
        first = np.where(enough.any(axis=-1), enough.argmax(axis=-1), _WAYS)
        before = np.take_along_axis(at, np.maximum(first - 1, 0)[..., None], -1)[..., 0]
        reached = np.take_along_axis(at, np.minimum(first, _WAYS - 1)[..., None], -1)[..., 0]
        low = np.where(first > 0, before + np.uint64(1), low)
        high = np.where(first < _WAYS, reached, high)
    return _as_doubles(high)


def _numbers(columns: Columns, clients: list[Frame], n: int, totals: _Totals) -> dict[str, Column]:
    """Return the columns of numbers with what fills them."""
    named = [c for c in columns.of_role("number") if c.name not in clients[0].row_places]
    if not named or columns.impute is None:
        return {}
    gaps = totals.counts([np.array([f.missing(c.name).sum() for c in named]) for f in clients])
    sizes = n - gaps
    there = [[~f.missing(c.name) for c in named] for f in clients]
    weights = [_weights(columns, f) for f in clients]
    held = [
        [_Sorted.of(f.numbers(c.name)[on], None if w is None else w[on]) for c, on in zip(named, mine, strict=True)]
        for f, w, mine in zip(clients, weights, there, strict=True)
    ]
    if columns.impute == "mode":
        middles = [_mode([mine[j] for mine in held], totals) for j in range(len(named))]
    else:
        ranks = np.stack([(sizes + 1) // 2, sizes // 2 + 1], axis=1) - 0.5
        if weights[0] is not None:
            ranks = halves(totals.of([np.array([s.sums[-1] for s in mine]) for mine in held]))
        found = _order_statistics(held, np.where(sizes[:, None] > 0, ranks, 0.0), totals)
        middles = np.where(sizes[:, None] > 0, found, 0.0).mean(axis=1).tolist()
    out = {}
    for c, middle, missing, size in zip(named, middles, gaps.tolist(), sizes.tolist(), strict=True):
        indicator = columns.impute == "indicator" and missing > 0
        out[c.name] = replace(c, fill=float(middle) if size else 0.0, indicator=indicator)
    return out


def _weights(columns: Columns, frame: Frame) -> np.ndarray | None:
    """Return what a client's rows weigh, 1 where none of them weighs anything; None without a column of weights."""
    weight = columns.weights(frame)
    return weight if weight is None or weight.any() else np.ones(frame.n)


def _mode(held: list[_Sorted], totals: _Totals) -> float:
    """Return the most frequent number; clients tell which numbers they hold."""
    totals.up += sum(np.unique(s.x).size for s in held)
    values = np.unique(np.concatenate([s.x for s in held]))
    sums = totals.of([np.array([np.diff(s.sums)[s.x == v].sum() for v in values]) for s in held], values.size)
    return float(values[heaviest(sums)]) if values.size else 0.0


# ---------------------------------------------------------------------- categories
def _names(columns: Columns, clients: list[Frame], totals: _Totals) -> dict[str, Column]:
    """Return the columns of names with their categories and what fills them."""
    out = {}
    for c in columns.of_role("category"):
        held = [f.text(c.name)[~f.missing(c.name)].astype(str) for f in clients]
        if c.levels is None:
            told = [np.unique(cells).tolist() for cells in held]
            totals.up += sum(-(-len(name.encode()) // 8) for names in told for name in names)
            vocabulary = sorted(set().union(*told))
            if (two := doubles(vocabulary)) is not None:
                cure = "write them alike, or give the column's levels"
                raise bad(
                    f"column {c.name!r}", "spell a number in one way at all clients", f"{two[0]!r}, {two[1]!r}", cure
                )
        else:
            vocabulary = sorted(map(as_text, c.levels))
        places, size = [Names(vocabulary).places(cells.tolist()) for cells in held], len(vocabulary)
        tallies = [np.append(_tally(at, size), f.missing(c.name).sum()) for at, f in zip(places, clients, strict=True)]
        counts = totals.counts(tallies, sum(-(-len(v.encode()) // 8) for v in vocabulary))
        gaps, counts = int(counts[-1]), counts[:-1]
        levels = [v for v, m in zip(vocabulary, counts.tolist(), strict=True) if m]
        fill = None
        if columns.impute is not None and ((columns.impute == "indicator" and gaps) or not levels):
            levels, fill = [*levels, *([MISSING_LEVEL] if MISSING_LEVEL not in levels else [])], MISSING_LEVEL
        elif columns.impute is not None:
            weights = [_weights(columns, f) for f in clients]
            if weights[0] is not None:
                shares = [w[~f.missing(c.name)] for w, f in zip(weights, clients, strict=True) if w is not None]
                counts = totals.of([_tally(at, size, w) for at, w in zip(places, shares, strict=True)])
            fill = vocabulary[heaviest(counts)]
        out[c.name] = replace(c, levels=tuple(levels), fill=fill)
    return out


def _tally(at: np.ndarray, size: int, weight: np.ndarray | None = None) -> np.ndarray:
    """Return how often each of so many names occurs, or what its rows weigh, by the places of cells among them."""
    known = at >= 0
    return np.bincount(at[known], None if weight is None else weight[known], size)


# ---------------------------------------------------------------------- means and scales
def _scaled(
    record: Columns, clients: list[Frame], totals: _Totals, standardise: bool, centre: bool, standardise_target: bool
) -> Columns:
    """Return the record with means and scales of features and target."""
    rows, weights = [record.matrix(f, unknown="refuse") for f in clients], [record.weights(f) for f in clients]
    n = float(record.rows)
    counted = [np.array([w.sum()]) for w in weights if w is not None]
    if counted:
        n = float(totals.of(counted)[0])
    d = rows[0].shape[1]
    center, scale, target = np.zeros(d), np.ones(d), (0.0, 1.0)
    if standardise:
        mean, sd = _moments(rows, weights, n, totals)
        center = record.centers(mean, sd, clients[0]) if centre else center
        scale = np.where(sd > 1e-12 * np.abs(mean), sd, 1.0)
    if standardise_target and record.labels is None:
        (middle,), (spread,) = _moments([record.target(f)[:, None] for f in clients], weights, n, totals)
        target = (float(middle) if centre else 0.0, float(spread) or 1.0)
    return replace(record, center=center, scale=scale, target_center=target[0], target_scale=target[1])


def _moments(rows: list[Any], weights: list[Any], n: float, totals: _Totals) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every column: sums in units of the largest number, and deviation."""
    unit = _largest([_tops(X) for X in rows], totals)
    both = list(zip(rows, weights, strict=True))
    mean = unit * totals.of([column_sums(_over(X, unit), w) for X, w in both], unit.size) / n
    unit = _largest([_tops(X, mean) for X in rows], totals)
    square = totals.of([squares_about(X, mean, unit, w) for X, w in both], mean.size) / n
    return mean, unit * np.sqrt(np.maximum(square, 0.0))


def _over(X: Any, unit: np.ndarray) -> Any:
    return sp.csr_array(X @ sp.diags_array(1.0 / unit)) if sp.issparse(X) else X / unit


def _tops(X: Any, mean: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the largest |x - mean| of every column, (d,)."""
    if not sp.issparse(X):
        return np.asarray(np.abs(X - mean).max(axis=0))
    X, mean = sp.csr_array(X), np.broadcast_to(mean, X.shape[1])
    full = np.bincount(X.indices, minlength=mean.size) == X.shape[0]
    tops = np.where(full, 0.0, np.abs(mean))
    np.maximum.at(tops, X.indices, np.abs(X.data - mean[X.indices]))
    return tops


def _largest(tops: list[np.ndarray], totals: _Totals) -> np.ndarray:
    """Return the largest of every column over all clients, 1 where all are 0, by counts."""
    held = [[_Sorted.of(x) for x in top[:, None]] for top in tops]
    found = _order_statistics(held, np.full((len(held[0]), 1), len(tops) - 0.5), totals)[:, 0]
    return np.where(found > 0.0, found, 1.0)
