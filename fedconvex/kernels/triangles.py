"""What second-order methods ask of single clients: a Hessian as an upper triangle, and values along a line.

Triangles are (N,), N = p (p + 1)/2, row after row. Private; callers validate.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedconvex.kernels.cache import reduction
from fedconvex.kernels.dispatch import curvature, slope, value
from fedconvex.kernels.row_losses import block_of
from fedconvex.kernels.rows import row_axpy, row_dot


@lru_cache(8)
def places(p):
    """Return where the entries (N,) of the upper triangle stand in a matrix (p, p) that is read row after row."""
    rows, columns = np.triu_indices(p)
    return rows * p + columns


@reduction
def sparse_triangle(loss, X, y, lo, hi, w, before, g, T):
    """g and T += the means over rows lo:hi of gradients and of the upper triangles of Hessians, from sparse rows.

    An entry (a, b), a <= b, stands at T[before[a] + b].
    """
    scale = 1.0 / (hi - lo)
    for i in range(lo, hi):
        z = row_dot(X, i, w)
        row_axpy(X, i, scale * slope(loss, z, y[i]), g)
        h = scale * curvature(loss, z, y[i])
        if h != 0.0:
            first, last = np.uint64(X.indptr[i]), np.uint64(X.indptr[i + 1])
            for a in range(first, last):
                start, c = before[np.uint32(X.indices[a])], h * X.data[a]
                for b in range(a, last):
                    T[start + np.uint32(X.indices[b])] += c * X.data[b]


@reduction
def scores(X, lo, out, w):
    """out[i] = x_{lo + i}' w."""
    for i in range(out.size):
        out[i] = row_dot(X, lo + i, w)


@reduction
def values_along(loss, z, q, y, fractions, part, out):
    """out[f] = the mean of l over rows with scores z + fractions[f] q (n,) and labels y (n,); part (F,) is scratch."""
    out[:] = 0.0
    step = block_of(z.size)
    for start in range(0, z.size, step):
        part[:] = 0.0
        for i in range(start, min(start + step, z.size)):
            for f in range(fractions.size):
                part[f] += value(loss, z[i] + fractions[f] * q[i], y[i])
        for f in range(fractions.size):
            out[f] += part[f] / z.size


def means_along(problem, w, d, k, fractions):
    """Means of the loss of client k at flat models w + fractions d, (F,), for a loss with one output."""
    fed, out = problem.federation, np.empty((2, fractions.size))
    lo, hi = int(fed.ptr[k]), int(fed.ptr[k + 1])
    z, q = np.empty(hi - lo), np.empty(hi - lo)
    scores(fed.rows, lo, z, np.array(w))
    scores(fed.rows, lo, q, np.array(d))
    values_along(problem.row_loss, z, q, problem.row_labels[lo:hi], fractions, out[0], out[1])
    return out[1]


def gradient_and_triangle(problem, w, k):
    """Gradient (p,) and upper triangle (N,) of the Hessian of f_k at a flat model w (p,)."""
    fed, p = problem.federation, problem.size
    if problem.traits.several or not fed.is_sparse:
        found = problem.client_derivatives(w.reshape(1, *problem.model_shape), np.array([[k]]))
        return found.gradients[0, 0], found.hessians[0, 0].ravel().take(places(p))
    g, T, before = np.zeros(p), np.zeros(p * (p + 1) // 2), _before(p)
    lo, hi = int(fed.ptr[k]), int(fed.ptr[k + 1])
    sparse_triangle(problem.row_loss, fed.rows, problem.row_labels, lo, hi, np.array(w), before, g, T)
    T[before + np.arange(p)] += problem.ridge
    return g + problem.ridge * w, T


@lru_cache(8)
def _before(p):
    """Return where row a of an upper triangle begins, less a, (p,)."""
    a = np.arange(p)
    return a * (p - 1) - a * (a - 1) // 2
