"""Newton's method for proximal points of clients' objectives, many jobs in one call: dense rows, one score a row."""

from __future__ import annotations

import math

from fedconvex.kernels.cache import part, reduction
from fedconvex.kernels.dispatch import curvature
from fedconvex.kernels.row_losses import add_rows
from fedconvex.kernels.rows import row_dot


@part
def _value_gradient(loss, X, y, lo, hi, ridge, v, rho, x, g):
    for t in range(x.size):
        g[t] = 0.0
    h = add_rows(loss, X, y, lo, hi, 1.0 / (hi - lo), x, g, x) / (hi - lo)
    for t in range(x.size):
        away = x[t] - v[t]
        g[t] += ridge[t] * x[t] + rho * away
        h += 0.5 * (ridge[t] * x[t] * x[t] + rho * away * away)
    return h


@part
def _hessian(loss, X, y, lo, hi, ridge, known, rho, x, H):
    """Overwrite the lower triangle of H; what the rows add to it is known for squared loss."""
    constant = known.size > 0
    for a in range(x.size):
        for b in range(a + 1):
            H[a, b] = known[a, b] if constant else 0.0
        H[a, a] += ridge[a] + rho
    for i in range(lo, lo if constant else hi):
        h = curvature(loss, row_dot(X, i, x), y[i]) / (hi - lo)
        for a in range(x.size):
            c = h * X[i, a]
            for b in range(a + 1):
                H[a, b] += c * X[i, b]


@part
def _solve(H, g, u):
    """Solve H u = g by Cholesky's decomposition, which overwrites the lower triangle; whether H is positive."""
    for a in range(g.size):
        for b in range(a + 1):
            total = H[a, b]
            for c in range(b):
                total -= H[a, c] * H[b, c]
            if a > b:
                H[a, b] = total / H[b, b]
            elif total > 0.0:
                H[a, a] = math.sqrt(total)
            else:
                return False
    for a in range(g.size):
        u[a] = g[a]
        for c in range(a):
            u[a] -= H[a, c] * u[c]
        u[a] /= H[a, a]
    for a in range(g.size - 1, -1, -1):
        for c in range(a + 1, g.size):
            u[a] -= H[c, a] * u[c]
        u[a] /= H[a, a]
    return True


@part
def _dot(a, b):
    total = 0.0
    for t in range(a.size):
        total += a[t] * b[t]
    return total


@part
def _newton(loss, X, y, lo, hi, ridge, known, v, rho, tol, room, x):
    """Overwrite x by the minimiser, NaN where h overflows; False where a Hessian is not positive up to rounding."""
    g, new, trial, u, H = room[0], room[1], room[2], room[3], room[4:]
    h = _value_gradient(loss, X, y, lo, hi, ridge, v, rho, x, g)
    for _ in range(200):
        size = math.sqrt(_dot(g, g))
        if not (size < math.inf and h < math.inf):
            for a in range(x.size):
                x[a] = math.nan
            return True
        if not size > tol * (1.0 + math.sqrt(_dot(x, x))):
            return True
        _hessian(loss, X, y, lo, hi, ridge, known, rho, x, H)
        if not _solve(H, g, u):
            return False
        slope, t, better = _dot(g, u), 1.0, False
        drowned = slope <= 1e-11 * (1.0 + abs(h))  # where a decrease drowns in rounding, the gradient is the judge
        while t > 1e-30 and not better:  # where the loss is linear the first step is as long as rho is small
            for a in range(x.size):
                trial[a] = x[a] - t * u[a]
            below = _value_gradient(loss, X, y, lo, hi, ridge, v, rho, trial, new)
            better = math.sqrt(_dot(new, new)) < 0.9 * size if drowned else below <= h - 1e-4 * t * slope
            t *= 0.0 if drowned else 0.5
        if not better:
            return True
        h = below
        for a in range(x.size):
            x[a], g[a] = trial[a], new[a]
    return True


@reduction
def newton_jobs(loss, X, y, ptr, ridge, clients, hessians, V, rho, tol, room, x, found):
    """x[j] <- argmin f_k(x) + (rho[j]/2) ‖x - V[j]‖^2, k = clients[j], from x[j]; found[j]: whether it worked.

    Each job ends where the gradient's norm is at most tol[j] (1 + ‖x‖), or where rounding stops the progress. Of
    squared loss hessians[j] is what the rows add to the Hessian; of other losses it has no entries.
    """
    for j in range(clients.size):
        lo, hi = ptr[clients[j]], ptr[clients[j] + 1]
        found[j] = _newton(loss, X, y, lo, hi, ridge, hessians[j], V[j], rho[j], tol[j], room, x[j])
