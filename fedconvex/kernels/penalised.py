"""Penalties over models: values, proximal maps, conjugates, and the coordinate steps of `solvers.penalised`.

A penalty that is a sum over entries is compiled in by its type; the others work on arrays (R, C, d), see
`fedconvex.penalties`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels.cache import kernel, reduction
from fedconvex.kernels.dispatch import by_method, conjugate, value
from fedconvex.penalties import is_entrywise

# mypy: disable-error-code="no-untyped-def"

EPS = 2.0**-52


@by_method
def prox(penalty, v, a):
    """argmin_w a P(w) + (w - v)^2/2."""


@kernel
def entry_values(penalty, W, out):
    """out[r] = sum_j P(W[r, j])."""
    for r in range(W.shape[0]):
        total = 0.0
        for j in range(W.shape[1]):
            total += value(penalty, W[r, j])
        out[r] = total


@kernel
def entry_proxes(penalty, V, a, out):
    """out[r, j] = prox of V[r, j] at a[r, j]; a may have one row, or one column."""
    for r in range(V.shape[0]):
        for j in range(V.shape[1]):
            out[r, j] = prox(penalty, V[r, j], a[min(r, a.shape[0] - 1), min(j, a.shape[1] - 1)])


@kernel
def dual_scales(penalty, u, e, common, out):
    """out[j] = the largest s <= 1, to the last bits, for which P* is finite at s (u_j - e_j) and s (u_j + e_j).

    0 where it is below 1e-12: there the domain ends at 0. With ``common``, the largest for all entries up to j.
    """
    for j in range(u.size):
        out[j] = out[j - 1] if common and j > 0 else 1.0
        for side in range(2):
            t = u[j] + (e[j] if side else -e[j])
            if conjugate(penalty, out[j] * t) < math.inf:
                continue
            low, high = 0.0, out[j]
            while high > 1e-12:
                mid = 0.5 * (low + high)
                if not low < mid < high:
                    break
                low, high = (mid, high) if conjugate(penalty, mid * t) < math.inf else (low, mid)
            out[j] = low


@kernel
def ridge_conjugate(penalty, u, l2):
    """sup_w u w - P(w) - (l2/2) w^2, and the magnitudes summed for it."""
    if l2 == 0.0:
        c = conjugate(penalty, u)
        return c, abs(c)
    w = prox(penalty, u / l2, 1.0 / l2)
    p = value(penalty, w)
    if not p < math.inf:
        return math.inf, 0.0
    return u * w - p - 0.5 * l2 * w * w, abs(u * w) + abs(p) + 0.5 * l2 * w * w


@kernel
def conjugates_above(penalty, u, e, l2):
    """Sum over j of the largest (P + (l2/2) w^2)* on [u_j - e_j, u_j + e_j], convex, and the magnitudes summed."""
    total, size = 0.0, 0.0
    for j in range(u.size):
        (low, a), (high, b) = ridge_conjugate(penalty, u[j] - e[j], l2), ridge_conjugate(penalty, u[j] + e[j], l2)
        total += max(low, high)
        size += max(a, b)
    return total, size


@kernel
def mark_zeros(penalty, u, radius, l2, out):
    """out[j] = whether w_j = 0 at every maximiser w of v w - P(w) - (l2/2) w^2 with |v - u_j| < radius_j.

    Without l2 that is so where P* is the same at both ends and between: convex and constant, its slope is 0.
    """
    for j in range(u.size):
        low, high = u[j] - radius[j], u[j] + radius[j]
        if l2 > 0.0:
            out[j] = prox(penalty, low / l2, 1.0 / l2) == 0.0 and prox(penalty, high / l2, 1.0 / l2) == 0.0
        else:
            mid = conjugate(penalty, u[j])
            out[j] = mid < math.inf and conjugate(penalty, low) == mid and conjugate(penalty, high) == mid


@reduction
def coordinate_epochs(penalty, H, x, r, epochs, goal):
    """Minimise r'd + d'H d/2 + P(x + d) by coordinate steps; x and r = gradient at x move along.

    x_j <- prox(x_j - r_j/h, 1/h), h = H_jj. Ends when no √h |step| of an epoch exceeds the goal; returns the largest.
    """
    most = 0.0
    for _ in range(epochs):
        most = 0.0
        for j in range(x.size):
            h = H[j, j]
            if h <= 0.0:
                continue
            step = prox(penalty, x[j] - r[j] / h, 1.0 / h) - x[j]
            if step != 0.0:
                most = max(most, abs(step) * math.sqrt(h))
                x[j] += step
                for i in range(x.size):
                    r[i] += step * H[j, i]
        if most <= goal:
            break
    return most


@reduction
def group_epochs(H, ptr, strength, h, x, r, epochs, goal):
    """Minimise likewise for P = sum_g strength_g ‖x_g‖, groups of neighbours; h_g >= the largest eigenvalue of H_gg."""
    most, v = 0.0, np.empty(x.size)
    for _ in range(epochs):
        most = 0.0
        for g in range(strength.size):
            lo, hi = ptr[g], ptr[g + 1]
            if h[g] <= 0.0:
                continue
            norm = 0.0
            for j in range(lo, hi):
                v[j] = x[j] - r[j] / h[g]
                norm += v[j] * v[j]
            norm, t = math.sqrt(norm), strength[g] / h[g]
            keep = 1.0 - t / norm if norm > t else 0.0
            for j in range(lo, hi):
                step = keep * v[j] - x[j]
                if step != 0.0:
                    most = max(most, abs(step) * math.sqrt(h[g]))
                    x[j] += step
                    for i in range(x.size):
                        r[i] += step * H[j, i]
        if most <= goal:
            break
    return most


class EntryProx(NamedTuple):
    """The proximal map of a penalty that is a sum over entries, for loops over jobs."""

    penalty: Any

    def shorten(self, w, a):
        """w_j <- prox of w_j."""
        for j in range(w.size):
            w[j] = prox(self.penalty, w[j], a)


class SomeEntriesProx(NamedTuple):
    """Likewise where some entries are free."""

    penalty: Any
    places: np.ndarray  # (p,) those that the penalty sees

    def shorten(self, w, a):
        """w_j <- prox of w_j."""
        for i in range(self.places.size):
            w[self.places[i]] = prox(self.penalty, w[self.places[i]], a)


class GroupProx(NamedTuple):
    """The proximal map of sum_g strength_g ‖w_g‖, for loops over jobs."""

    order: np.ndarray  # (p,) places of the entries, group after group
    ptr: np.ndarray  # (groups + 1,)
    strength: np.ndarray  # (groups,)

    def shorten(self, w, a):
        """w_g <- max(1 - a strength_g/‖w_g‖, 0) w_g."""
        for g in range(self.strength.size):
            total = 0.0
            for i in range(self.ptr[g], self.ptr[g + 1]):
                total += w[self.order[i]] * w[self.order[i]]
            norm, t = math.sqrt(total), a * self.strength[g]
            keep = 1.0 - t / norm if norm > t else 0.0
            for i in range(self.ptr[g], self.ptr[g + 1]):
                w[self.order[i]] *= keep


@by_method
def shorten(proximal, w, a):
    """w <- argmin_v a P(v) + ‖v - w‖^2/2, in place."""


def in_place(problem):
    """Return the proximal map of a problem's penalty as kernels take it, or None where it is no sum of such parts."""
    penalty, seen = getattr(problem, "penalty", None), getattr(problem, "penalised_entries", None)
    if penalty is None:
        return EntryProx(NoPenalty())
    if is_entrywise(penalty):
        return EntryProx(penalty) if seen is None else SomeEntriesProx(penalty, seen)
    if not hasattr(penalty, "blocks"):
        return None
    size = problem.size if seen is None else seen.size
    code, strength = penalty.blocks(size // problem.n_outputs)
    code = np.tile(code, problem.n_outputs)
    order = np.argsort(code, kind="stable")
    return GroupProx(order if seen is None else seen[order], np.append(0, np.cumsum(np.bincount(code))), strength)


class NoPenalty(NamedTuple):
    """P = 0."""

    def prox(self, v, a):
        """Return v."""
        return v


def penalty_values(problem, W):
    """P of flat models (R, size): (R,); zeros without a penalty."""
    penalty, seen = getattr(problem, "penalty", None), getattr(problem, "penalised_entries", None)
    if penalty is None:
        return np.zeros(len(W))
    W = W if seen is None else np.ascontiguousarray(W[:, seen])
    if not is_entrywise(penalty):
        return penalty.value(W.reshape(len(W), problem.n_outputs, -1))
    out = np.empty(len(W))
    entry_values(penalty, W, out)
    return out


def proximal_point(problem, W, a):
    """argmin_v a P(v) + ‖v - w‖^2/2 for models w (R, ...) in any shape, a one number or (R,); w without a penalty."""
    penalty, seen = getattr(problem, "penalty", None), getattr(problem, "penalised_entries", None)
    if penalty is None:
        return W
    flat = W.reshape(len(W), -1)
    found = _proximal(problem, penalty, flat if seen is None else flat[:, seen], a)
    if seen is None:
        return found.reshape(W.shape)
    out = flat.copy()
    out[:, seen] = found
    return out.reshape(W.shape)


def _proximal(problem, penalty, V, a):
    """Return the proximal map of flat models (R, p) without their free entries."""
    if not is_entrywise(penalty):
        return np.ascontiguousarray(penalty.prox(V.reshape(len(V), problem.n_outputs, -1), a)).reshape(V.shape)
    out = np.empty(V.shape)
    entry_proxes(penalty, np.ascontiguousarray(V), np.reshape(np.asarray(a, dtype=np.float64), (-1, 1)), out)
    return out
