"""Sums of losses at many models side by side, for recording. Private; callers validate.

The models are the lanes of the vector units, so that short clients are as fast as long ones. Losses log(1 + e^x) are
max{x, 0} + log(1 + t) with t = e^-|x|, and the sum of the logarithms is that of the product: the product less one grows
by positive terms only, so that no digit of small losses is lost, and its rounding errors are those of a sum.

Such an x is a multiple of the score, by the loss's `softplus_factor`. Rows are scaled so that scores are x/ln 2, and
t = 2^-|x/ln 2|: two roundings more in every term of a score, of half an eps each, where `Objective.in_scores` has eight
eps for what is not the sum.
"""

from __future__ import annotations

from fedconvex.kernels.cache import part, reduction
from fedconvex.kernels.dispatch import by_output, softplus_factor, value
from fedconvex.kernels.row_losses import block_of
from fedconvex.losses.stable import half_power, log1p

LOG_TWO, PER_LOG_TWO = 0.6931471805599453, 1.4426950408889634
MOST = 512  # rows of one product: each of its factors is at most 2


@part
def _four(X, i, last, t, by):
    """Entry t of rows i to i + 3, each times its factor; behind the last row, of the last."""
    h, k, m = min(i + 1, last), min(i + 2, last), min(i + 3, last)
    return by[0] * X[i, t], by[1] * X[h, t], by[2] * X[k, t], by[3] * X[m, t]


@part
def _scores(X, i, last, by, V, Z):
    """Z[j, r] = by[j] times the score of row i + j at model r, j < 4; behind the last row, of the last."""
    d, R = V.shape
    a, b, c, e = _four(X, i, last, 0, by)
    for r in range(R):
        v = V[0, r]
        Z[0, r], Z[1, r], Z[2, r], Z[3, r] = a * v, b * v, c * v, e * v
    t = 1
    while t + 2 < d:
        a, b, c, e = _four(X, i, last, t, by)
        a1, b1, c1, e1 = _four(X, i, last, t + 1, by)
        a2, b2, c2, e2 = _four(X, i, last, t + 2, by)
        for r in range(R):
            u, v, w = V[t, r], V[t + 1, r], V[t + 2, r]
            Z[0, r] += a * u + (a1 * v + a2 * w)
            Z[1, r] += b * u + (b1 * v + b2 * w)
            Z[2, r] += c * u + (c1 * v + c2 * w)
            Z[3, r] += e * u + (e1 * v + e2 * w)
        t += 3
    while t < d:
        a, b, c, e = _four(X, i, last, t, by)
        for r in range(R):
            Z[0, r] += a * V[t, r]
            Z[1, r] += b * V[t, r]
            Z[2, r] += c * V[t, r]
            Z[3, r] += e * V[t, r]
        t += 1


def _no_factor(loss, y):
    return 1.0


def _factor(loss, y):
    return softplus_factor(loss, y) * PER_LOG_TWO


def _add_value(loss, z, y, total, q):
    for r in range(total.size):
        total[r] += value(loss, z[r], y)


def _add_softplus(loss, z, y, total, q):
    for r in range(total.size):
        total[r] += max(z[r], 0.0)
        q[r] += half_power(z[r]) * (1.0 + q[r])


def _take_total(loss, total, q, out):
    for r in range(total.size):
        out[r] += total[r]
        total[r] = 0.0


def _take_product(loss, total, q, out):
    for r in range(total.size):
        out[r] += LOG_TWO * total[r] + log1p(q[r])
        total[r] = q[r] = 0.0


# what scores of a row are multiplied by
_factor_of = by_output(_no_factor, _no_factor, softplus=_factor)

# total[r], and of losses log(1 + e^x) the product 1 + q[r], with one row more; then both into out[r], and begun anew
_add_row = by_output(_add_value, _add_value, softplus=_add_softplus)
_take = by_output(_take_total, _take_total, softplus=_take_product)


@reduction
def totals_of_many(loss, X, y, ptr, V, room, by, out):
    """out[k, r] = sum of l over client k's rows at model r: dense rows, models V (d, R), room (6, R), by (4,)."""
    total, q = room[4], room[5]
    total[:] = q[:] = 0.0
    for k in range(out.shape[0]):
        out[k, :] = 0.0
        step = min(4 * block_of(ptr[k + 1] - ptr[k]), MOST)
        for lo in range(ptr[k], ptr[k + 1], step):
            hi = min(lo + step, ptr[k + 1])
            for i in range(lo, hi, 4):
                for j in range(4):
                    by[j] = _factor_of(loss, y[min(i + j, hi - 1)])
                _scores(X, i, hi - 1, by, V, room)
                for j in range(min(4, hi - i)):
                    _add_row(loss, room[j], y[i + j], total, q)
            _take(loss, total, q, out[k])
