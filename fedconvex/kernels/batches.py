"""Mini-batches: which rows they hold, and the slopes of a loss over them."""

from __future__ import annotations

import numpy as np

from fedconvex.draws import below, uniform
from fedconvex.kernels.cache import kernel, strict_part
from fedconvex.kernels.dispatch import by_output, by_ridge, slope, slopes
from fedconvex.kernels.rows import row_axpy, row_dot, rows_axpy, rows_dot

# mypy: disable-error-code="no-untyped-def"


def _said(replacement):
    return replacement


def _by_weight(replacement):
    return True


again = by_ridge(
    _said, _by_weight, "always"
)  # whether rows may be drawn twice: as it is said, or by cumulative weights


def _any_row(replacement, state, e, first, n):
    return first + below(state, e, n)


def _heavy_row(cumulative, state, e, first, n):
    total = cumulative[first + n - 1]
    u = uniform(state, e) * total
    u = u if u < total else 0.0
    low, high = first, first + n - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > u:
            high = middle
        else:
            low = middle + 1
    return low


row = by_ridge(_any_row, _heavy_row)  # one of first, ..., first+n-1: uniformly, or by weights summed up from first on


@kernel
def draw_rows(state, first, n, passes, block, replacement, pool, rows, since=0):
    """Fill rows with `passes` blocks of `block` distinct rows of first, ..., first+n-1, or with independent draws.

    ``replacement`` says which; cumulative weights of every client's rows (all rows,) in its place draw by weight.

    With ``since`` above 0, those of the passes from there on, the pool being as the earlier ones left it.
    """
    start = since * block
    if again(replacement) or block == 1:
        for e in range(passes * block - start):
            rows[e] = row(replacement, state, start + e, first, n)
    else:
        for i in range(n if since == 0 else 0):
            pool[i] = first + i
        for e in range(passes - since):
            for b in range(block):
                i = b + below(state, start + e * block + b, n - b)
                pool[b], pool[i] = pool[i], pool[b]
                rows[e * block + b] = pool[b]


@strict_part
def list_rows(state, first, n, full, since, until, block, replacement, pool, rows):
    """Write the rows of some passes, or, where every step takes all rows, each of them once and in order."""
    if full:
        for i in range(n):
            rows[i] = first + i
    else:
        draw_rows(state, first, n, until, block, replacement, pool, rows, since)


@strict_part
def _filled(size, c, t):
    """Size, or a multiple of eight with copies of row 0 up to there: eight slopes at once cost less than four alone."""
    if size % 8 < 4:
        return size
    whole = (size + 7) // 8 * 8
    for b in range(size, whole):
        c[b], t[b] = c[0], t[0]
    return whole


def _slopes_of_one(loss, X, y, rows, scale, w, c, t):
    rows_dot(X, rows, w, c)
    for b in range(rows.size):
        t[b] = y[np.uint64(rows[b])]
    for b in range(_filled(rows.size, c, t)):
        c[b] = scale * slope(loss, c[b], t[b])


def _slopes_of_weighted(loss, X, y, rows, scale, w, c, t):
    rows_dot(X, rows, w, c)
    for b in range(rows.size):
        c[b] = scale * slope(loss, c[b], y[rows[b]])


def _slopes_of_many(loss, X, y, rows, scale, w, c, t):
    C = loss.n_classes
    d = w.size // C
    for b in range(rows.size):
        z = c[b * C : (b + 1) * C]
        for e in range(C):
            z[e] = row_dot(X, rows[b], w[e * d : (e + 1) * d])
        slopes(loss, z, y[rows[b]], z)
        for e in range(C):
            z[e] *= scale


def _add_one(loss, X, rows, c, out):
    rows_axpy(X, rows, c, out)


def _add_many(loss, X, rows, c, out):
    C = loss.n_classes
    d = out.size // C
    for b in range(rows.size):
        for e in range(C):
            row_axpy(X, rows[b], c[b * C + e], out[e * d : (e + 1) * d])


batch_slopes = by_output(
    _slopes_of_one, _slopes_of_many, _slopes_of_weighted
)  # c_b = scale * slope(s) of row b; t scratch; both have room for a multiple of eight rows

batch_add = by_output(_add_one, _add_many)  # out += sum_b c_b x_b
