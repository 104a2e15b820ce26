"""Coordinate steps on a quadratic model of F that is known by columns of X, not by its Hessian."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from fedconvex.kernels.cache import reduction
from fedconvex.kernels.dispatch import by_rows
from fedconvex.kernels.penalised import prox
from fedconvex.kernels.rows import row_dot


def _dense_weighted(X, i, c, h, out):
    for j in range(out.size):
        out[j] += c * h[j] * X[i, j]


def _sparse_weighted(X, i, c, h, out):
    for t in range(X.indptr[i], X.indptr[i + 1]):
        j = X.indices[t]
        out[j] += c * h[j] * X.data[t]


weighted_axpy = by_rows(_dense_weighted, _sparse_weighted, "always")  # out += c diag(h) x_i


@reduction
def column_epoch(penalty, X, h, bend, ridge, free, w, g, places, x, v):
    """Minimise g'd + d'(X diag(h) X' + diag(ridge)) d/2 + P(w + d) by a coordinate step for each of the places.

    Row j of X is the column of entry j, bend_j the second derivative along it, v = diag(h) X'd; x = w + d and v move
    along. Entries that are free have no penalty. Returns the largest √bend_j |step|.
    """
    most = 0.0
    for p in range(places.size):
        j = places[p]
        b = bend[j]
        if b <= 0.0:
            continue
        r = g[j] + ridge[j] * (x[j] - w[j]) + row_dot(X, j, v)
        step = -r / b if free[j] else prox(penalty, x[j] - r / b, 1.0 / b) - x[j]
        if step != 0.0:
            most = max(most, abs(step) * math.sqrt(b))
            x[j] += step
            weighted_axpy(X, j, step, h, v)
    return most
