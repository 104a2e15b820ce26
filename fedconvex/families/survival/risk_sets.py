"""Who is at risk when: rows sorted once by client, stratum and time, and one client's pass over them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex.families.survival import risk_kernels
from fedconvex.federation import Federation

_BLOCK = 64  # means of risk sets whose squares are added at once
_CHUNK = 1 << 12  # rows that are centred at once


class Pass(NamedTuple):
    """What one pass over a client's rows found at a model: sums over event times u, weighted by omega_u."""

    value: float  # sum of omega_u (sum over r of log theta_ur - sum of z over the events): N_k for omega = 1
    gradient: np.ndarray  # (p,)
    hessian: np.ndarray  # (p, p), zeros where it was not asked for
    scores: np.ndarray  # (n_k,) z of the sorted rows, of centred features
    expected: np.ndarray  # (n_k,) expected events of the sorted rows
    log_scale: np.ndarray  # (U_k,) C_u, no less than any z at risk
    hazard: np.ndarray  # (U_k,) e^C_u sum_r 1/theta_ur


class RiskSets:
    """Rows sorted by client, stratum and time, with the event times at which each is at risk.

    A segment is a stratum of a client. Features are centred in each, which changes no difference within a risk set.

    Attributes
    ----------
    order : array (n,)
        Row of the federation that stands at each place.
    rows, times : arrays (G+1,)
        First row and first event time of every segment.
    segments : array (K+1,)
        First segment of every client.
    at : array (n, 4)
        Of every row: first event time at risk and the one after the last, within its segment and but for its own event;
        level (see `risk_kernels`), -1 if there is none; event time of its own event, -1 if it is censored.
    start, deaths : arrays (U,)
        First row with an event at every event time, and how many there are.
    """

    def __init__(self, federation: Federation, event: np.ndarray, entry: Any, strata: Any) -> None:
        fed, n = federation, federation.y.size
        who = np.repeat(np.arange(fed.K), np.diff(fed.ptr))
        code = np.zeros(n, dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
        self.order = np.lexsort((~event, fed.y, code, who))  # events before those censored at the same time
        who, code, t = who[self.order], code[self.order], fed.y[self.order]
        self.event = np.ascontiguousarray(event[self.order])
        opens = np.concatenate([[True], (np.diff(who) != 0) | (np.diff(code) != 0)])[:n]
        first_rows = np.flatnonzero(opens)
        segment = np.cumsum(opens) - 1
        self.rows = np.append(first_rows, n)
        self.segments = np.searchsorted(who[first_rows], np.arange(fed.K + 1))
        again = np.zeros(n, dtype=bool)
        again[1:] = self.event[:-1] & (t[1:] == t[:-1]) & ~opens[1:]
        new = self.event & ~again
        self.start = np.flatnonzero(new)
        self.times = np.searchsorted(segment[self.start], np.arange(self.rows.size))
        seen = np.cumsum(new)  # event times up to each row
        self.deaths = np.bincount(seen[self.event] - 1, minlength=self.start.size)
        self.event_time = t[self.start]
        base = self.times[segment] if n else segment
        late = None if entry is None else entry[self.order]
        begin = np.zeros(n, dtype=np.int64) if late is None else self._before(segment, late) - base
        stop = seen - base - self.event  # the own event's time stands apart
        self._rooms: list[tuple[tuple[np.ndarray, ...], np.ndarray]] = []  # a list's pop and append are atomic
        self.at, self.levels = _leveled(begin, stop, np.where(self.event, stop, -1), self.rows)
        self.X = np.take(fed.X.toarray() if fed.is_sparse else fed.X, self.order, axis=0)  # zeros at a server
        self.centres = _means(self.X, self.rows)
        for lo in range(0, n, _CHUNK):  # large temporary arrays would be paged in anew
            self.X[lo : lo + _CHUNK] -= self.centres[segment[lo : lo + _CHUNK]]

    @cached_property
    def column_sizes(self) -> np.ndarray:
        """Largest |x_j| of every centred feature, (p,)."""
        return np.abs(self.X).max(axis=0, initial=0.0)

    @cached_property
    def client_diameters(self) -> np.ndarray:
        """Bounds of the diameter of the widest risk set of every client, (K,): twice the distance from the centre."""
        far = np.append(2.0 * np.sqrt(np.einsum("ij,ij->i", self.X, self.X)), 0.0)
        K = self.segments.size - 1
        parts = [self.part(k)[:2] for k in range(K)]
        return np.array([far[lo:hi].max(initial=0.0) for lo, hi in parts])

    def _before(self, segment: np.ndarray, entry: np.ndarray) -> np.ndarray:
        """Return how many event times of all segments come before each row's: those up to its entry in its own."""
        U, n = self.start.size, entry.size
        t = np.concatenate([self.event_time, entry])
        kind = np.concatenate([np.zeros(U, dtype=np.int64), np.ones(n, dtype=np.int64)])
        order = np.lexsort((kind, t, np.concatenate([segment[self.start], segment])))
        counts = np.empty(U + n, dtype=np.int64)
        counts[order] = np.cumsum(kind[order] == 0)
        return counts[U:]

    def part(self, k: int) -> tuple[int, int, int, int]:
        """Return first and last row and first and last event time of client k, the last ones excluded."""
        a, b = self.segments[k], self.segments[k + 1]
        return int(self.rows[a]), int(self.rows[b]), int(self.times[a]), int(self.times[b])

    def at_risk(self, g: int) -> np.ndarray:
        """Return the number of rows at risk at the event times of segment g, those with an event included."""
        rows, D = slice(int(self.rows[g]), int(self.rows[g + 1])), int(self.times[g + 1] - self.times[g])
        begin, stop, level, _ = self.at[rows].T
        some = level >= 0
        steps = np.bincount(begin[some], minlength=D + 1) - np.bincount(stop[some], minlength=D + 1)
        return np.cumsum(steps)[:D] + self.deaths[int(self.times[g]) : int(self.times[g + 1])]

    def sweep(self, k: int, w: np.ndarray, efron: bool, omega: Any = None, second: bool = True) -> Pass:
        """Return sums over the event times of client k at a model (p,).

        Parameters
        ----------
        omega : array (U_k,), optional
            Weights of the event times; default 1.
        second : bool
            Whether to compute the Hessian too.
        """
        lo, hi, first, last = self.part(k)
        p, a, b = self.X.shape[1], int(self.segments[k]), int(self.segments[k + 1])
        X, at = self.X[lo:hi], self.at[lo:hi]
        z, e, U, width = np.empty(hi - lo), np.zeros(hi - lo), last - first, p if second else 0
        risk_kernels.scores_of(X, 0, hi - lo, np.require(w, np.float64, ["C"]), z)
        spans = np.diff(self.times[a : b + 1])
        D = int(spans.max(initial=0))
        deep = D if self.levels[a:b].any() else 0
        weight = np.ones(U) if omega is None else np.require(omega, np.float64, ["C"])
        sums = np.empty(U), np.empty(U), np.empty((U, 5))
        lent = self._rooms.pop() if self._rooms else self._new_room()
        block = np.empty((_BLOCK, width)), np.empty(_BLOCK), np.empty((1, width))
        H, none = np.zeros((width, width)), np.empty((D, 0))
        rows, times = self.rows[a : b + 1] - lo, self.times[a : b + 1] - first
        value = risk_kernels.client_sums(
            X, z, at, rows, times, self.levels[a:b], self.start[first:last] - lo, self.deaths[first:last], weight,
            efron, (0, b - a), sums, lent[1] if second else none, lent[0], np.empty((deep, width)), none, block, H, e,
        )  # fmt: skip
        self._rooms.append(lent)
        own = np.repeat(weight, self.deaths[first:last])  # events stand in the order of their times
        excess, g = e.copy(), np.zeros(p)
        seen = np.flatnonzero(self.event[lo:hi])
        excess[seen] -= own
        risk_kernels.add_rows(X, 0, hi - lo, excess, g)
        if second:
            risk_kernels.add_gram(X, 0, hi - lo, e, H)
            H += np.tril(H, -1).T
        value -= float(own @ z[seen])
        return Pass(value, g, H if second else np.zeros((p, p)), z, e, sums[0], sums[2][:, 0])

    def _new_room(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Return room for a pass over the largest client; it is kept, because new pages cost as much as sums."""
        D, n = int(np.diff(self.times).max(initial=0)), int(np.diff(self.rows[self.segments]).max(initial=0))
        return (np.empty(D), np.empty(D), np.empty(n), np.empty(n)), np.empty((D, self.X.shape[1]))

    def row_scores(self, k: int, w: np.ndarray, efron: bool) -> np.ndarray:
        """Return the score residuals of client k's sorted rows at a model, (n_k, p): they sum to minus the gradient."""
        lo, hi, first, last = self.part(k)
        X, p, found = self.X[lo:hi], self.X.shape[1], self.sweep(k, w, efron, second=False)
        values, own, mean = (np.zeros((last - first, p)) for _ in range(3))
        segments = range(int(self.segments[k]), int(self.segments[k + 1]))
        D = 0
        for g in segments:
            a, b = int(self.times[g]) - first, int(self.times[g + 1]) - first
            z, D = found.scores[self.rows[g] - lo : self.rows[g + 1] - lo], max(D, b - a)
            values[a:b], own[a:b], mean[a:b] = self._means_at(g, z, efron)
        crossed, parts = np.zeros((hi - lo, p)), slice(segments.start, segments.stop + 1)
        risk_kernels.sum_over_events(
            found.scores, self.at[lo:hi], self.rows[parts] - lo, self.times[parts] - first,
            self.levels[segments.start : segments.stop], (0, len(segments)), found.log_scale, values, own,
            np.empty(D), np.empty(D), np.empty((D, p)), crossed,
        )  # fmt: skip
        scores = crossed - found.expected[:, None] * X
        seen = np.flatnonzero(self.event[lo:hi])
        scores[seen] += X[seen] - np.repeat(mean, self.deaths[first:last], axis=0)
        return scores

    def _means_at(self, g: int, z: np.ndarray, efron: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return e^C_u sum_r (1, share_r) m_ur/theta_ur and mean_r m_ur of a segment, m_ur the means of risk sets."""
        lo, hi, a, b = int(self.rows[g]), int(self.rows[g + 1]), int(self.times[g]), int(self.times[g + 1])
        p, D = self.X.shape[1], b - a
        deep, V, T, h = D if self.levels[g] else 0, np.zeros((D, p)), np.zeros((max(D, 1), p)), np.zeros((D, 5))
        room = np.empty(D), np.empty(D), np.empty(hi - lo), np.empty(hi - lo)
        risk_kernels.client_sums(
            self.X[lo:hi], z, self.at[lo:hi], np.array([0, hi - lo]), np.array([0, D]), self.levels[g : g + 1],
            self.start[a:b] - lo, self.deaths[a:b], np.ones(D), efron, (0, 1), (np.empty(D), np.empty(D), h), V, room,
            np.empty((deep, p)), np.empty((D, 0)), (np.empty((_BLOCK, p)), np.empty(_BLOCK), T), np.zeros((p, p)),
            np.zeros(hi - lo),
        )  # fmt: skip
        q, T = h.T[:, :, None], T[:D]
        return q[2] * V + q[3] * T, q[3] * V + q[4] * T, (q[0] * V + q[1] * T) / self.deaths[a:b, None]


def _leveled(begin: np.ndarray, stop: np.ndarray, own: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the array ``at`` of `RiskSets`, and the highest level of every segment."""
    last = stop - 1
    with np.errstate(divide="ignore"):
        bits = np.frexp((begin ^ np.maximum(last, 0)).astype(np.float64))[1]  # bit length
    level = np.where(begin == 0, 0, np.maximum(bits, 1))
    level = np.where(stop > begin, level, -1)
    at = np.ascontiguousarray(np.stack([a.astype(np.int32) for a in (begin, stop, level, own)], axis=1))
    top = np.maximum.reduceat(level, rows[:-1]) if level.size else np.zeros(rows.size - 1, dtype=np.int64)
    return at, np.maximum(top, 0).astype(np.int64)


def _means(X: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the mean row of every segment, (G, p)."""
    if not len(X):
        return np.zeros((rows.size - 1, X.shape[1]))
    return np.asarray(np.add.reduceat(X, rows[:-1], axis=0) / np.diff(rows)[:, None])
