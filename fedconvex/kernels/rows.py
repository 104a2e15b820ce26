"""Rows of a dense array or of a `CSR`, touched only through the functions below, which are chosen by the type of X."""

from __future__ import annotations

import numpy as np

from fedconvex.kernels.cache import DISABLED, overload
from fedconvex.kernels.dispatch import by_rows


def _dense_dot(X, i, w):
    total = 0.0
    for j in range(w.size):
        total += X[i, j] * w[j]
    return total


def _sparse_dot(X, i, w):
    total = 0.0
    for j in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        total += X.data[j] * w[np.uint32(X.indices[j])]
    return total


def _dense_axpy(X, i, c, out):
    for j in range(out.size):
        out[j] += c * X[i, j]


def _sparse_axpy(X, i, c, out):
    for j in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        out[np.uint32(X.indices[j])] += c * X.data[j]


row_dot = by_rows(_dense_dot, _sparse_dot, "always")  # x_i' w

NARROW = 11  # entries of a dense row up to which eight models are side by side in `lanes`


def two_sums(X, i, w):
    """x_i' w as `lanes` computes it: even coordinates one after the other, odd ones, and both sums together."""
    even = odd = 0.0
    for j in range(0, w.size - 1, 2):
        even += X[i, j] * w[j]
        odd += X[i, j + 1] * w[j + 1]
    if w.size % 2 == 1:
        even += X[i, w.size - 1] * w[w.size - 1]
    return even + odd


if not DISABLED:
    overload(two_sums, {"contract"}, _nrt=False)(lambda *_: two_sums)


def _dense_single(X, i, w):
    return two_sums(X, i, w) if w.size <= NARROW else row_dot(X, i, w)


single_dot = by_rows(_dense_single, _sparse_dot, "always")  # x_i' w in steps on single rows

row_axpy = by_rows(_dense_axpy, _sparse_axpy, "always")  # out += c x_i


def _dense_axpy_and_rest(X, i, c, out, rest):
    for j in range(out.size):
        before, term = out[j], c * X[i, j]
        after = before + term
        added = after - before
        rest[j] += (before - (after - added)) + (term - added)
        out[j] = after


def _sparse_axpy_and_rest(X, i, c, out, rest):
    for k in range(np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])):
        j = np.uint32(X.indices[k])
        before, term = out[j], c * X.data[k]
        after = before + term
        added = after - before
        rest[j] += (before - (after - added)) + (term - added)
        out[j] = after


# out += c x_i, and what that rounds off to rest (Knuth's sum of two), in kernels of strict floating point
row_axpy_and_rest = by_rows(_dense_axpy_and_rest, _sparse_axpy_and_rest, "always")


def _dense_dots(X, rows, w, out):
    n4 = rows.size - rows.size % 4
    for b in range(0, n4, 4):
        i, j, k, e = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
        zi = zj = zk = ze = 0.0
        for t in range(w.size):
            zi += X[i, t] * w[t]
            zj += X[j, t] * w[t]
            zk += X[k, t] * w[t]
            ze += X[e, t] * w[t]
        out[b], out[b + 1], out[b + 2], out[b + 3] = zi, zj, zk, ze
    for b in range(n4, rows.size):
        out[b] = row_dot(X, rows[b], w)


def _sparse_dots(X, rows, w, out):
    for b in range(rows.size):
        out[b] = row_dot(X, np.uint64(rows[b]), w)


def _dense_axpys(X, rows, c, out):
    n4 = rows.size - rows.size % 4
    for b in range(0, n4, 4):
        i, j, k, e = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
        ci, cj, ck, ce = c[b], c[b + 1], c[b + 2], c[b + 3]
        for t in range(out.size):
            out[t] += (ci * X[i, t] + cj * X[j, t]) + (ck * X[k, t] + ce * X[e, t])
    for b in range(n4, rows.size):
        row_axpy(X, rows[b], c[b], out)


def _sparse_axpys(X, rows, c, out):
    for b in range(rows.size):
        row_axpy(X, np.uint64(rows[b]), c[b], out)


rows_dot = by_rows(_dense_dots, _sparse_dots)  # out_b = x_i' w for the b-th row i of rows, four rows to one read of w

rows_axpy = by_rows(_dense_axpys, _sparse_axpys)  # out += sum_b c_b x_i, four rows to one pass over out
