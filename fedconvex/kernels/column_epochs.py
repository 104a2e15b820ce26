"""Coordinate steps on a quadratic model of F that is known by columns of X, not by its Hessian."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from fedconvex.kernels.cache import reduction
from fedconvex.kernels.penalised import prox
from fedconvex.kernels.rows import row_axpy, row_dot


@reduction
def column_epoch(penalty, X, bend, ridge, free, w, g, places, x, v):
    """Minimise g'd + d'(X X' + diag(ridge)) d/2 + P(w + d) by a coordinate step for each of the places.

    Row j of X belongs to entry j, bend_j is the second derivative along it; x = w + d and v = X'd move along.
    Entries that are free have no penalty. Returns the largest √bend_j |step|.
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
            row_axpy(X, j, step, v)
    return most
