"""Proximal Newton with working sets for F = f + P, f the smooth part, certified by the duality gap.

1. the gap at w, from the slopes at w, rescaled (`solvers.penalty_gap`); stop once it is small
2. entries that are provably 0 in every minimiser leave the race (gap-safe screening: Fercoq, Gramfort, Salmon 2015)
3. working set: the entries that are not 0, and those that the optimality conditions are violated most by
   (Massias, Gramfort, Salmon, "Celer: a fast solver for the lasso with dual extrapolation", ICML 2018)
4. minimise g'd + d'H d/2 + P(w + d) over the working set: coordinate steps on its Hessian, which find the entries
   that stay 0, and Newton steps on the others
5. move along d with backtracking on F (Lee, Sun, Saunders, "Proximal Newton-type methods", SIAM J. Optim. 2014);
   unless the loss is quadratic, repeat 4 and 5 until the set is solved as well as the whole asks for

Entries that are free of the penalty belong to every working set, and 4 is minimised over them first, in closed form:
the Hessian of the others is the Schur complement.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor

from fedconvex._check import wrong_type
from fedconvex.kernels import row_losses
from fedconvex.kernels.penalised import penalty_values, proximal_point
from fedconvex.penalties import is_entrywise, strong_convexity
from fedconvex.solvers.certificates.penalty_gap import Dual, dual_bound, zeros_for_sure
from fedconvex.solvers.certificates.slopes import Slopes
from fedconvex.solvers.choice import PENALISED
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.penalised.centring import Centring
from fedconvex.solvers.penalised.column_steps import ColumnModel, epochs_that_pay
from fedconvex.solvers.penalised.model_steps import EntrySteps, GroupSteps
from fedconvex.solvers.rows.working_hessian import WorkingHessian
from fedconvex.solvers.solution import DIRECT_SIZE, Solution

_FIRST_SET = 256  # entries of the first working set
MOST_ROUNDS = 200
FLAT = 1e-3  # share of sup l'' that every row is taken to have at least at first, so that steps stay finite


def solve_penalised(problem: Objective, w: np.ndarray, tol: float | None, start: float) -> Solution:
    """Minimise F with its penalty, from a start of its own; see `Problem.solve`, and `Search` for what is raised."""
    return Search(problem, tol).solved()


class Search:
    """Where the search stands: a model, its scores, losses, slopes and gradient.

    Parameters
    ----------
    problem : Objective
        With a penalty.
    tol : float, optional
        The gap that is asked for, relative to 1 + |F|.
    before : Search, optional
        One with another strength of the penalty that has ended: this one starts where it stands.

    Raises
    ------
    TypeError
        For losses with kinks, or without a bounded curvature or one that is known.
    """

    hessian: WorkingHessian
    centring: Centring | None
    w: np.ndarray
    F: float
    Z: np.ndarray
    values: np.ndarray
    A: np.ndarray

    def __init__(self, problem: Objective, tol: float | None, before: Search | None = None) -> None:
        kind, self.begun = problem.traits, time.perf_counter()
        if not kind.curved and not math.isfinite(kind.smoothness):
            cure = "use SmoothedHinge(gamma)" if kind.kinked else "declare its smoothness, or a curvature"
            raise wrong_type(f"Problem.solve with a penalty and {problem.loss!r}", "have a smooth loss", "kinks", cure)
        self.problem, self.tol = problem, tol
        self.c = problem.per_row
        self.norms = problem.column_norms
        self.best, self.gap, self.evaluations, self.flat = -math.inf, math.inf, 0, FLAT
        self.alive = np.ones(problem.size, dtype=np.bool_)
        every = np.arange(problem.size)
        seen = problem.penalised_entries
        self.free_entries = every[:0] if seen is None else np.setdiff1d(every, seen)
        self.stiff = False  # whether coordinate steps on columns of X made too little progress
        self.dual: Dual | None = None  # at w, once it is known
        self.u: np.ndarray | None = None  # less the gradient of the losses at w, once it is known
        self.hessian = WorkingHessian(problem) if before is None else before.hessian
        start = np.zeros(problem.size) if before is None else before.w
        w = proximal_point(problem, start[None], 0.0)[0]
        self.centring = Centring.of(problem) if before is None else before.centring
        if before is None or not np.array_equal(w, start):
            with np.errstate(all="ignore"):
                self.move_to(w)
                if before is None and w.any() and self.centring is not None:  # scores as near to 0 as they can be
                    self.move_to(self.centring.model(w))
                    if not math.isfinite(self.F):
                        self.move_to(w)
        else:
            self.w, self.Z, self.values, self.A, self.u = w, before.Z, before.values, before.A, before.u
            self.F = self.value(w, self.values)

    def solved(self) -> Solution:
        """Minimise, and return where the search ends."""
        with np.errstate(all="ignore"):  # of models at which a loss overflows
            next(way for way in PENALISED if way.fits(self.problem)).load()(self)
            return self.solution()

    # ------------------------------------------------------------------ where it stands

    def move_to(self, w: np.ndarray, Z: np.ndarray | None = None) -> None:
        """Stand at w, whose scores are Z where they are known."""
        self.w, self.dual, self.u = w, None, None
        self.Z = self.scores(w) if Z is None else Z
        self.F, self.values, self.A = self.evaluate(w, self.Z)

    def scores(self, w: np.ndarray) -> np.ndarray:
        """Return X w, (n, C), from the columns that count where those are few."""
        fed, C = self.problem.federation, self.problem.n_outputs
        W = w.reshape(C, -1)
        some = np.flatnonzero(W.any(axis=0))
        X = (
            fed.X
            if 4 * some.size > fed.d
            else fed.by_column[:, some]
            if fed.is_sparse
            else np.take(fed.X, some, axis=1)
        )
        return np.ascontiguousarray(X @ (W if 4 * some.size > fed.d else W[:, some]).T)

    def evaluate(self, w: np.ndarray, Z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return F, the losses (n,) and the slopes (n, C) of all rows."""
        problem, y = self.problem, self.problem.federation.y
        values, A = np.empty((y.size, 1)), Z.copy()
        row_losses.row_values(problem.loss, Z, y, values)
        row_losses.row_slopes(problem.loss, A, y)
        self.evaluations += 1
        return self.value(w, values[:, 0]), values[:, 0], A

    def value(self, w: np.ndarray, values: np.ndarray) -> float:
        """Return F at w, where the losses are ``values``."""
        P = float(penalty_values(self.problem, w[None])[0])
        return float(self.c @ values) + self.problem.ridge_term(w) + P

    def curvatures(self) -> np.ndarray:
        """Return c l'' of every row, (n,), or its bound where the loss has no curvature."""
        problem, fed = self.problem, self.problem.federation
        if problem.traits.several or not problem.traits.curved:
            return problem.traits.smoothness * self.c
        h, ones = np.empty(fed.n), np.ones(fed.K)
        row_losses.row_curvatures(problem.loss, self.Z[:, 0].copy(), fed.y, fed.ptr, ones, h)
        steep = problem.traits.smoothness
        return self.c * (np.maximum(h, self.flat * steep) if math.isfinite(steep) else h)

    def look(self) -> Dual:
        """Find the full gradient and the gap, and screen."""
        problem = self.problem
        if self.u is None:
            G = problem.federation.by_column.T @ (self.c[:, None] * self.A)
            self.u = -np.ascontiguousarray(G.T).ravel()
        dual = dual_bound(problem, self.c, Slopes(self.Z, self.values, self.A, self.u), self.norms, self.w)
        self.best = max(self.best, dual.lower)
        self.gap = self.F - self.best
        self.alive &= ~zeros_for_sure(problem, dual, self.F - dual.lower, self.norms)
        self.dual = dual
        return dual

    @property
    def goal(self) -> float:
        """The gap that is asked for."""
        return (1e-15 if self.tol is None else self.tol) * (1.0 + abs(self.F))

    # ------------------------------------------------------------------ working sets

    def by_working_sets(self) -> None:
        """Take steps 1 to 5 until the gap is small, or shrinks no more."""
        steps = (EntrySteps if is_entrywise(self.problem.penalty) else GroupSteps)(self.problem)
        idle, last, size, F, J = 0, math.inf, _FIRST_SET, math.inf, self.free_entries
        for _ in range(MOST_ROUNDS):
            before = self.gap
            self.look()  # 1, 2
            assert self.u is not None
            if self.gap <= self.goal or idle >= 3:
                break
            wrong = steps.violations(self.w, self.problem.ridge * self.w - self.u, self.bends())
            found = float(wrong.max())
            slow = F - self.F <= 1e-3 * self.gap and self.gap > 0.5 * before and found > 0.5 * last
            idle, last, F = idle + 1 if slow else 0, min(last, found), self.F
            if found == 0.0:
                break
            support = int(np.count_nonzero(self.w)) - self.free_entries.size
            full = J.size > 0 and support > 0.9 * J.size  # more are to come
            size = max(size, (4 if J.size == _FIRST_SET else 2) * support if full else 32 + support + support // 4)
            J = steps.chosen(self.w, np.where(self.alive | (self.w != 0.0), wrong, 0.0), size)  # 3
            rough = full or support == 0
            if not self._on_set(steps, J, (1e-2 if rough else 1e-4) * found, rough, slow):
                idle += 1

    def bends(self) -> np.ndarray:
        """Return a bound of the second derivative of f along every entry, (size,)."""
        steep, some = self.problem.traits.smoothness, self.c > 0.0
        if not math.isfinite(steep):
            steep = float((self.curvatures()[some] / self.c[some]).max())
        return steep * np.tile(self.norms * self.norms, self.problem.n_outputs) + self.problem.ridge

    def _on_set(self, steps: Any, J: np.ndarray, goal: float, rough: bool, fresh: bool) -> bool:
        """Solve on the working set J, roughly where more entries are to come; return whether w moved.

        The gap of rescaled slopes is like the root of what is left of F, so that F has to be solved for its square.
        """
        problem, hessian, moved = self.problem, self.hessian, False
        J = J if problem.free is None else np.union1d(J, self.free_entries)
        inner = None if problem.free is None else ~np.isin(J, self.free_entries)
        X, ridge = hessian.columns(J), problem.ridge if np.ndim(problem.ridge) == 0 else problem.ridge[J]
        last = math.inf
        for _ in range(20):
            g = hessian.gradient(X, J, self.c[:, None] * self.A) + ridge * self.w[J]
            x = self._minimised(steps, X, J, g, goal, inner, fresh)  # 4
            d = x - self.w[J]
            predicted = float(g @ d) + steps.value(x, J, inner) - steps.value(self.w[J], J, inner)
            if not predicted <= 1e-15 * (1.0 + abs(self.F)):
                break
            if not self._advance(J, x, hessian.scores(X, J, d), predicted):  # 5
                if fresh or problem.traits.quadratic:
                    break
                fresh = True
                continue
            fresh, last, moved = -predicted > 0.1 * last, -predicted, True
            left = 0.05 * max(min(self.gap, self.F - self.problem.traits.lower_bound), self.goal)
            if problem.traits.quadratic or -predicted <= (left if rough else left * left / (1.0 + abs(self.F))):
                break
        if moved:
            self.move_to(self.w, hessian.scores(X, J, self.w[J]))  # without what rounding has done to the scores
        return moved

    def _minimised(
        self, steps: Any, X: Any, J: np.ndarray, g: np.ndarray, goal: float, inner: np.ndarray | None, fresh: bool
    ) -> np.ndarray:
        """Return x = w + d that minimises the quadratic model over J, up to ``goal``."""
        problem, most = self.problem, 0 if self.stiff or self.problem.traits.several else epochs_that_pay(X)
        if most == 0 or not is_entrywise(problem.penalty):
            H = self.hessian.matrix(X, J, self.curvatures, self.Z, self.c, fresh)
            return np.asarray(steps.minimise_all(H, self.w[J], g, J, goal, inner))
        h = self.c if problem.traits.quadratic else self.curvatures()
        ridge = np.broadcast_to(problem.ridge, problem.size)[J]
        model = ColumnModel(problem.penalty, X, h, ridge, steps.free[J], self.w[J], g)
        self.stiff = not model.minimise(goal, 0.0 if problem.traits.quadratic else 0.05, most)
        return model.x

    def _advance(self, J: np.ndarray, x: np.ndarray, Zd: np.ndarray, predicted: float) -> bool:
        """Move towards x as far as F falls; where that drowns in rounding, all the way if F does not rise."""
        noise, t = 4e-15 * (1.0 + abs(self.F)), 1.0
        while t > 1e-10:
            w, Z = self.w.copy(), self.Z + t * Zd
            w[J] = x if t == 1.0 else w[J] + t * (x - w[J])
            F, values, A = self.evaluate(w, Z)
            if F <= self.F + 1e-4 * t * predicted or (-predicted <= 1e3 * noise and F <= self.F + noise):
                self.w, self.Z, self.F, self.values, self.A, self.dual, self.u = w, Z, F, values, A, None, None
                self.flat = max(0.1 * self.flat, 1e-12) if t == 1.0 else min(10.0 * self.flat, FLAT)
                return True
            t *= 0.5
        return False

    # ------------------------------------------------------------------ the result

    def solution(self) -> Solution:
        """Return where the search stands, with its certificate."""
        problem = self.problem
        if self.dual is None:
            self.move_to(self.w)
        dual = self.dual or self.look()
        text = f"Fenchel duality: {dual.point} as dual point"
        if not math.isfinite(self.best) or self.best <= problem.traits.lower_bound:
            text = f"F >= {self.best:g} (no dual point is known)"
        strong = problem.l2 > 0.0 or strong_convexity(problem.penalty) > 0.0
        attained = problem.traits.quadratic or ((strong or self._coercive()) and dual.bounded)
        seconds = time.perf_counter() - self.begun
        few = self.tol is None or self.alive.sum() <= _FIRST_SET  # a Hessian takes longer than the rest
        unique = attained and few and self._unique(self.free_entries if strong else np.flatnonzero(self.alive))
        w, off = problem.unflatten(self.w.copy()), problem.rounding(self.w, self.F)
        lower = self.best - 2.0 * off
        return Solution(w, self.F, lower, text, attained, unique, self.evaluations, seconds, rounding=off)

    def _coercive(self) -> bool:
        """Whether P grows in every direction: P* is finite around 0."""
        penalty, tiny = self.problem.penalty, 1e-300
        if is_entrywise(penalty):
            return max(penalty.conjugate(tiny), penalty.conjugate(-tiny)) < math.inf
        e = np.full(self.w.size - self.free_entries.size, tiny).reshape(1, self.problem.n_outputs, -1)
        return bool(np.isfinite(getattr(penalty, "conjugate_above", penalty.conjugate)(0.0 * e, e)[0]))

    def _unique(self, J: np.ndarray) -> bool:
        """Whether f is strictly convex in the entries J."""
        if J.size > min(DIRECT_SIZE, self.problem.federation.n * self.problem.n_outputs):
            return False
        if J.size == 0:
            return True
        if not self.problem.traits.curved:
            return False
        hessian = WorkingHessian(self.problem)
        X = hessian.columns(J)
        H = hessian.matrix(X, J, self.curvatures, self.Z, self.c)
        size = np.sqrt(np.maximum(np.diag(H), 0.0))
        if size.min() <= 0.0:
            return False
        H /= np.multiply.outer(size, size)
        H.flat[:: J.size + 1] -= 1e-10
        try:  # whether the least eigenvalue exceeds 1e-10
            cho_factor(H, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return False
        return True
