"""Minimising g'd + d'H d/2 + P(w + d) over a working set: coordinate steps, and Newton steps where P is smooth.

Coordinate steps find which entries (or groups) stay where P has its kinks; those cost nothing while they stay, as the
gradient r of the quadratic is kept up to date. On the others the optimality conditions are smooth equations, and a
Newton step solves them at once: it is taken where it lowers the objective, else halved.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fedconvex.kernels import penalised
from fedconvex.solvers.objective import Objective

_MOST_TURNS = 200
EPOCHS = 4  # between two Newton steps


class _Steps:
    """What both kinds share: the turns of coordinate epochs and Newton steps."""

    prepare: Any
    epochs: Any
    smooth_part: Any
    value_of: Any

    def __init__(self, problem: Objective) -> None:
        self.problem, seen = problem, problem.penalised_entries
        self.seen: Any = slice(None) if seen is None else seen  # the entries that the penalty sees
        self.free = np.zeros(problem.size, dtype=np.bool_)
        if seen is not None:
            self.free[:] = True
            self.free[seen] = False

    def minimise(self, H: np.ndarray, w: np.ndarray, g: np.ndarray, J: np.ndarray, goal: float) -> np.ndarray:
        """Return x = w + d; ends when no √H_jj |step| exceeds ``goal``, or rounding stops them."""
        x, r = w.copy(), g.copy()
        prepared, epochs = self.prepare(H, J), EPOCHS
        size = np.sqrt(np.maximum(np.diag(H), 0.0))
        least = 4e-16 * float((np.abs(g[size > 0.0]) / size[size > 0.0]).max(initial=0.0))
        for _ in range(_MOST_TURNS):
            most = self.epochs(prepared, H, x, r, epochs, goal)
            if most <= max(goal, least):
                break
            epochs = EPOCHS if self.newton(prepared, H, w, g, x, r) else min(2 * epochs, 64)
        return x

    def minimise_all(
        self, H: np.ndarray, w: np.ndarray, g: np.ndarray, J: np.ndarray, goal: float, inner: np.ndarray | None
    ) -> np.ndarray:
        """Return x likewise where J has free entries too, all but ``inner``: they are eliminated, and follow from x."""
        if inner is None:
            return self.minimise(H, w, g, J, goal)
        outer, x = ~inner, w.copy()
        size = np.sqrt(np.maximum(np.diag(H)[outer], 1e-300))
        lam, V = np.linalg.eigh(H[np.ix_(outer, outer)] / np.multiply.outer(size, size))
        root = V[:, lam > 1e-13 * lam[-1]] / np.sqrt(lam[lam > 1e-13 * lam[-1]]) / size[:, None]
        inverse, cross = root @ root.T, H[np.ix_(outer, inner)]
        follow = inverse @ cross
        if inner.any():
            own = H[np.ix_(inner, inner)] - cross.T @ follow
            flat = np.diag(own) <= 1e-13 * np.diag(H)[inner]  # nothing but rounding
            own[flat], own[:, flat] = 0.0, 0.0
            x[inner] = self.minimise(own, w[inner], g[inner] - follow.T @ g[outer], J[inner], goal)
        x[outer] -= inverse @ g[outer] + follow @ (x - w)[inner]
        return x

    def newton(self, prepared: Any, H: np.ndarray, w: np.ndarray, g: np.ndarray, x: np.ndarray, r: np.ndarray) -> bool:
        """Take a Newton step on the entries where P is smooth, in place; return whether the objective fell.

        Where the whole step does not lower it, one that ends where the first entry would change its sign is tried, with
        a 0 there, and then shorter ones.
        """
        free, gradient, bend = self.smooth_part(prepared, H, x, r)
        if free.size == 0:
            return False
        system = H[np.ix_(free, free)] + bend
        system.flat[:: free.size + 1] += 1e-14 * float(np.trace(system)) / free.size
        try:
            step = cho_solve(cho_factor(system, lower=True, check_finite=False), gradient, check_finite=False)
        except LinAlgError:
            return False
        before = self.value_of(prepared, x)
        for part in _shorter(x[free], step):
            trial = x.copy()
            trial[free] = part
            trial = self.feasible(trial)
            move = trial - x
            change = float(r @ move + 0.5 * move @ (H @ move)) + self.value_of(prepared, trial) - before
            if change < 0.0:
                x[:] = trial
                r[:] = g + H @ (x - w)
                return True
        return False

    def feasible(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest point where P is finite."""
        return x


def _shorter(x: np.ndarray, step: np.ndarray) -> Iterator[np.ndarray]:
    """Yield x - step, x - t step where t < 1 takes the first entry to 0, and x - step/2, step/4, ..., step/64."""
    yield x - step
    crossing = (x != 0.0) & (x * (x - step) < 0.0)
    if crossing.any():
        ends = np.where(crossing, x / np.where(crossing, step, 1.0), np.inf)
        first = int(np.argmin(ends))
        found = x - ends[first] * step
        found[first] = 0.0
        yield found
    for halves in range(1, 7):
        yield x - 0.5**halves * step


class EntrySteps(_Steps):
    """Penalties that are sums over entries."""

    def prepare(self, H: np.ndarray, J: np.ndarray) -> Any:
        """Nothing to prepare."""
        return None

    def epochs(self, prepared: Any, H: np.ndarray, x: np.ndarray, r: np.ndarray, count: int, goal: float) -> float:
        """Take coordinate steps; return the largest √H_jj |step| of the last epoch."""
        return float(penalised.coordinate_epochs(self.problem.penalty, H, x, r, count, goal))

    def smooth_part(self, prepared: Any, H: np.ndarray, x: np.ndarray, r: np.ndarray) -> tuple[Any, Any, Any]:
        """Where the proximal map moves with its argument: those entries, the gradient there, and P'' as a matrix.

        With x+ = prox(v, 1/h), v = x - r/h, and slope s of the map at v: P' = h (v - x+) and P'' = h (1/s - 1) at x+,
        hence r + P'(x) = (h/s)(x - x+) to first order.
        """
        h = np.diag(H).copy()
        h[h <= 0.0] = 1.0
        v = x - r / h
        wide = 1e-7 * (np.abs(v) + np.abs(x) + 1e-300)
        at, above, below = (self._prox(u, h) for u in (v, v + wide, v - wide))
        slope = np.clip((above - below) / (2.0 * wide), 0.0, 1.0)
        slope[slope > 1.0 - 1e-6] = 1.0
        free = np.flatnonzero((slope > 1e-3) & (np.diag(H) > 0.0))
        s = slope[free]
        return free, h[free] / s * (x - at)[free], np.diag(h[free] * (1.0 / s - 1.0))

    def _prox(self, v: np.ndarray, h: np.ndarray) -> np.ndarray:
        out = np.empty((1, v.size))
        penalised.entry_proxes(self.problem.penalty, v[None], (1.0 / h)[None], out)
        return out[0]

    def feasible(self, x: np.ndarray) -> np.ndarray:
        """Return the nearest point where P is finite: the proximal map at 0."""
        return self._prox(x, np.full(x.size, np.inf))

    def value(self, x: np.ndarray, J: np.ndarray, inner: np.ndarray | None) -> float:
        """P over the entries J, or over those of them that are not free."""
        return self.value_of(None, x if inner is None else x[inner])

    def value_of(self, prepared: Any, x: np.ndarray) -> float:
        """P of some entries."""
        out = np.empty(1)
        penalised.entry_values(self.problem.penalty, np.ascontiguousarray(x)[None], out)
        return float(out[0])

    def violations(self, w: np.ndarray, g: np.ndarray, bend: np.ndarray) -> np.ndarray:
        """Return √h |w_j - prox(w_j - g_j/h, 1/h)|, h at least the curvature along entry j: 0 at a minimiser."""
        h, v = np.maximum(bend, 1e-300), w.copy()
        v[self.seen] = self._prox((w - g / h)[self.seen], h[self.seen])
        off = np.where(self.free, np.abs(g) / h, np.abs(w - v))
        return np.where(bend > 0.0, np.sqrt(h) * off, 0.0)

    def chosen(self, w: np.ndarray, wrong: np.ndarray, size: int) -> np.ndarray:
        """Return the working set: entries that are not 0, and those most wrong up to ``size`` in all, sorted."""
        support = np.flatnonzero((w != 0.0) & ~self.free)
        room = max(size - support.size, FEWEST)
        return np.union1d(support, _largest(np.where((w == 0.0) & ~self.free, wrong, 0.0), room))


class GroupSteps(_Steps):
    """Penalties that are sums of norms over groups of columns: they declare ``blocks``."""

    def __init__(self, problem: Objective) -> None:
        super().__init__(problem)
        places = np.arange(problem.size)[self.seen]
        code, self.strength = problem.penalty.blocks(places.size // problem.n_outputs)
        self.code = np.full(problem.size, self.strength.size)  # free entries are of no group
        self.code[places] = np.tile(code, problem.n_outputs)

    def prepare(self, H: np.ndarray, J: np.ndarray) -> Any:
        """Return the order of J by groups, their pointers, strengths and largest curvatures."""
        order = np.argsort(self.code[J], kind="stable")
        groups, first = np.unique(self.code[J][order], return_index=True)
        ptr = np.append(first, J.size)
        parts = [order[a:b] for a, b in pairwise(ptr)]
        h = np.array([np.linalg.eigvalsh(H[np.ix_(p, p)])[-1] * (1.0 + 1e-12) for p in parts])
        return order, ptr, self.strength[groups], np.maximum(h, 0.0), np.ascontiguousarray(H[np.ix_(order, order)])

    def epochs(self, prepared: Any, H: np.ndarray, x: np.ndarray, r: np.ndarray, count: int, goal: float) -> float:
        """Take block steps; return the largest √h |step| of the last epoch."""
        order, ptr, strength, h, sorted_H = prepared
        xs, rs = x[order], r[order]
        most = float(penalised.group_epochs(sorted_H, ptr, strength, h, xs, rs, count, goal))
        x[order], r[order] = xs, rs
        return most

    def smooth_part(self, prepared: Any, H: np.ndarray, x: np.ndarray, r: np.ndarray) -> tuple[Any, Any, Any]:
        """Return, of groups that are not 0, their entries, r + P'(x), and the blocks t (I/‖x‖ - x x'/‖x‖^3) of P''."""
        order, ptr, strength, _, _ = prepared
        parts = [(order[a:b], t) for a, b, t in zip(ptr[:-1], ptr[1:], strength, strict=True) if x[order[a:b]].any()]
        free = np.concatenate([p for p, _ in parts]) if parts else np.empty(0, dtype=np.int64)
        gradient, bend, at = r[free].copy(), np.zeros((free.size, free.size)), 0
        for p, t in parts:
            norm, here = float(np.linalg.norm(x[p])), slice(at, at + p.size)
            unit = x[p] / norm
            gradient[here] += t * unit
            bend[here, here] = t / norm * (np.eye(p.size) - np.multiply.outer(unit, unit))
            at += p.size
        return free, gradient, bend

    def value(self, x: np.ndarray, J: np.ndarray, inner: np.ndarray | None) -> float:
        """P over the entries J, whole groups."""
        return self._sum(self.code[J], x)

    def value_of(self, prepared: Any, x: np.ndarray) -> float:
        """P of the entries that were prepared."""
        order, ptr, strength, _, _ = prepared
        return float(np.sqrt(np.add.reduceat(x[order] ** 2, ptr[:-1])) @ strength)

    def _sum(self, code: np.ndarray, x: np.ndarray) -> float:
        squares = np.bincount(code, weights=x * x, minlength=self.strength.size)[: self.strength.size]
        return float(np.sqrt(squares) @ self.strength)

    def violations(self, w: np.ndarray, g: np.ndarray, bend: np.ndarray) -> np.ndarray:
        """Return √h_g ‖w_g - prox(w_g - g_g/h_g)‖ of every entry's group, h_g the sum of the entries' curvatures."""
        size = self.strength.size + 1  # the last holds the free entries
        h = np.maximum(np.bincount(self.code, weights=bend, minlength=size), 1e-300)
        v = w - g / h[self.code]
        norms = np.sqrt(np.bincount(self.code, weights=v * v, minlength=size))
        t = np.append(self.strength, 0.0) / h
        keep = np.where(norms > t, 1.0 - t / np.where(norms > t, norms, 1.0), 0.0)
        off = w - keep[self.code] * v
        per_group = np.sqrt(h * np.bincount(self.code, weights=off * off, minlength=size))
        return np.asarray(per_group[self.code])

    def chosen(self, w: np.ndarray, wrong: np.ndarray, size: int) -> np.ndarray:
        """Return the working set: whole groups, those that are not 0 and those most wrong."""
        groups = self.strength.size
        active = np.bincount(self.code, weights=w != 0.0, minlength=groups + 1)[:groups] > 0
        per_group = np.zeros(groups + 1)
        np.maximum.at(per_group, self.code, wrong)
        per_group[:groups][active] = 0.0
        sizes = np.bincount(self.code, minlength=groups)[:groups]
        room = max(size - int(sizes[active].sum()), FEWEST)
        most = _largest(per_group[:groups], max(1, int(room // max(1.0, sizes.mean()))))
        return np.flatnonzero(np.isin(self.code, np.union1d(np.flatnonzero(active), most)))


FEWEST = 10  # entries that a working set gains


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the largest positive entries, at most ``count``."""
    some = np.flatnonzero(x > 0.0)
    if some.size > count:
        some = some[np.argpartition(x[some], some.size - count)[some.size - count :]]
    return np.sort(some)
