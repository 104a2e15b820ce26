"""Branch and bound for IRMv1 with at most two features and any loss whose z l'(z, y) has a known range.

On a box of models with centre c and half-widths r every score x'v lies within sum_j |x_j| r_j of x'c, which bounds g_e
on both sides; and R^e, being convex, lies above its tangent at c, R^e(v) >= R^e(c) - sum_j |dR^e(c)/dv_j| r_j. Boxes
whose bound exceeds the lowest value found are dropped, the others halved across their longest side. Outside of the
first box sum_e R^e alone exceeds that value: it does so on the boundary, is convex, and does not inside. A column that
is 0, or an exact multiple of another, changes no score that the other cannot: it is left out.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.kernels.domain_sums import domains_of

_CHUNK = 4_000_000  # numbers at once


class Boxes(NamedTuple):
    """What branch and bound ended with: min J lies in [lower, value]."""

    w: np.ndarray
    value: float
    lower: float
    bounded: int  # boxes whose bounds were computed


class _Rows(NamedTuple):
    """Different rows with their weight in each environment."""

    X: np.ndarray  # (m, r) columns that are not 0, nor multiples of each other
    y: np.ndarray  # (m,)
    weight: np.ndarray  # (E, m), rows of sum one
    kept: np.ndarray  # (r,) their numbers
    fold: np.ndarray  # (r, d) models of all columns -> models of these

    def widened(self, centers: np.ndarray) -> np.ndarray:
        """Return models of all columns with the same scores, (B, d)."""
        W = np.zeros((len(centers), self.fold.shape[1]))
        W[:, self.kept] = centers
        return W


def least_in_boxes(problem: Any, w: np.ndarray, tol: float, most: int) -> Boxes:
    """Bound the minimum of J; w is a point of low value."""
    rows, value = _rows_of(problem), float(problem.value(w))
    half = _first_box(problem, rows, rows.fold @ w, value)
    if half is None:
        return Boxes(w, value, -np.inf, 0)
    centers, halves = np.zeros((1, rows.kept.size)), np.full((1, rows.kept.size), half)
    bounds, count = _lower(problem, rows, centers, halves), 1
    while True:
        W = rows.widened(centers)
        at = problem.value(W)
        if at.min() < value:
            w, value = W[int(np.argmin(at))].copy(), float(at.min())
        keep = bounds < value - 0.5 * tol
        lower = value - 0.5 * tol if not keep.any() else float(min(bounds[keep].min(), value - 0.5 * tol))
        if value - lower <= tol or count + 2 * keep.sum() > most:
            slack = 64.0 * np.finfo(float).eps * (1.0 + abs(value)) * (1.0 + np.log2(1.0 + len(rows.y)))
            return Boxes(w, value, float(lower - slack), count)
        centers, halves = _halved(centers[keep], halves[keep])
        bounds = np.maximum(np.tile(bounds[keep], 2), _lower(problem, rows, centers, halves))
        count += len(centers)


def _halved(centers: np.ndarray, halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both halves of every box, cut across its longest side."""
    at = np.arange(len(centers)), np.argmax(halves, axis=1)
    halves = halves.copy()
    halves[at] /= 2.0
    step = np.zeros_like(halves)
    step[at] = halves[at]
    return np.vstack([centers - step, centers + step]), np.vstack([halves, halves])


def _rows_of(problem: Any) -> _Rows:
    fed = problem.federation
    X = fed.X.toarray() if fed.is_sparse else fed.X
    code, counts = domains_of(fed)[:2]
    mass = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight
    table, inverse = np.unique(np.column_stack([X, fed.y]), axis=0, return_inverse=True)
    weight = np.zeros((counts.size, len(table)))
    np.add.at(weight, (code, inverse.ravel()), mass / counts[code])
    kept, fold = _different(table[:, :-1])
    return _Rows(table[:, kept].copy(), table[:, -1].copy(), weight, kept, fold)


def _different(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which columns are neither 0 nor exact multiples of an earlier one (r,), and the fold of models (r, d)."""
    kept: list[int] = []
    fold = np.zeros((X.shape[1], X.shape[1]))
    for j in range(X.shape[1]):
        for i in kept:
            at = int(np.argmax(np.abs(X[:, i])))
            if np.allclose(X[:, j], X[at, j] / X[at, i] * X[:, i], rtol=1e-12, atol=0.0) and _multiple(X, i, j, at):
                fold[i, j] = X[at, j] / X[at, i]
                break
        else:
            if X[:, j].any():
                fold[j, j] = 1.0
                kept.append(j)
    return np.array(kept, dtype=np.int64), fold[kept]


def _multiple(X: np.ndarray, i: int, j: int, at: int) -> bool:
    """Whether column j is exactly X[at, j]/X[at, i] times column i: in rational numbers."""
    a, b = Fraction(X[at, i]), Fraction(X[at, j])
    return all(Fraction(y) * a == Fraction(x) * b for x, y in zip(X[:, i], X[:, j], strict=True))


def _tangents(problem: Any, rows: _Rows, centers: np.ndarray, halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lower bounds (B,) of sum_e R^e by tangents, and the scores (B, m) at the centres."""
    Z, s = centers @ rows.X.T, rows.weight.sum(axis=0)
    values, slopes = np.empty(Z.shape[::-1]), np.ascontiguousarray(Z.T)
    row_losses.row_values(problem.loss, slopes, rows.y, values)
    row_losses.row_slopes(problem.loss, slopes, rows.y)
    G = (slopes.T * s) @ rows.X
    return np.maximum(s @ values - np.abs(G * halves).sum(axis=1), s.sum() * problem.traits.lower_bound), Z


def _lower(problem: Any, rows: _Rows, centers: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Return lower bounds of J over boxes, (B,)."""
    size = max(1, _CHUNK // max(1, rows.y.size))
    out = []
    for lo in range(0, len(centers), size):
        c, r = centers[lo : lo + size], halves[lo : lo + size]
        risk, Z = _tangents(problem, rows, c, r)
        off = r @ np.abs(rows.X).T
        low, high = problem.loss.scale_slope_range(Z - off, Z + off, rows.y)
        g_low, g_high = low @ rows.weight.T, high @ rows.weight.T  # (B, E)
        least = np.maximum(np.maximum(g_low, -g_high), 0.0)
        out.append(risk + problem.penalty_weight * (least**2).sum(axis=1))
    return np.concatenate(out)


def _first_box(problem: Any, rows: _Rows, w: np.ndarray, value: float) -> float | None:
    """Return the half-width of a box about zero outside of which sum_e R^e > value = J(w); None if none is found."""
    d = w.size
    half = 2.0 * (1.0 + np.abs(w).max(initial=0.0))
    for _ in range(8):
        edge = np.linspace(-half, half, 257) if d == 2 else np.zeros(2)
        middle, width = 0.5 * (edge[1:] + edge[:-1]), half / 256.0
        least = np.inf
        for j in range(d):
            for side in (-half, half):
                c = np.zeros((middle.size, d))
                r = np.zeros((middle.size, d))
                c[:, j] = side
                if d == 2:
                    c[:, 1 - j], r[:, 1 - j] = middle, width
                least = min(least, float(_tangents(problem, rows, c, r)[0].min()))
        if least > value:
            return half
        half *= 2.0
    return None
