"""Accelerated proximal gradient steps for penalties that are no sums over entries or groups: the simplex, and others.

w_{t+1} = prox(v_t - grad f(v_t)/L_t, 1/L_t), v_{t+1} = w_{t+1} + beta_t (w_{t+1} - w_t) (Beck and Teboulle, "A fast
iterative shrinkage-thresholding algorithm", SIAM J. Imaging Sci. 2 (2009)); L_t by backtracking, and the momentum
starts anew where it points uphill (O'Donoghue and Candes, Found. Comput. Math. 15 (2015)). Free coordinates, which the
map leaves alone, take longer steps where their columns are shorter than the others together: 1/L_t is multiplied by the
ratio of the squares, which is safe as the Hessian is at most twice that of both parts apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedconvex.kernels.penalised import proximal_point
from fedconvex.solvers.solution import EPS

MOST_STEPS = 50_000
_CHECK_EVERY = 20


def accelerate(search: Any) -> None:
    """Move a search until its gap is small, or no longer shrinks; it ends at the best model of those looked at."""
    kept, least = search.w, search.F
    for w in _steps(search):
        search.move_to(w)
        search.look()
        if search.F <= least:
            kept, least = w, search.F
    if least < search.F:
        search.move_to(kept)
        search.look()


def _steps(search: Any) -> Iterator[np.ndarray]:
    """Yield every so many steps a model, and go on from where the search stands then, until it is done."""
    problem, inner = search.problem, _Inner(search)
    w = inner.centred.inside(search.w) if inner.centred else search.w
    v, t, L, idle, stretch = w, 1.0, 1.0, 0, inner.stretch()
    least, F = math.inf, math.inf
    for step in range(MOST_STEPS):
        if step % _CHECK_EVERY == 0:
            yield inner.model(w)
            stuck = search.gap > 0.9 * least and search.F >= F - 1e-4 * search.gap
            idle = idle + 1 if stuck else 0
            if F - search.F > 0.1 * abs(F) and not problem.traits.quadratic:  # less curved here, by much perhaps
                v, t, L = w, 1.0, 1.0
            least, F = min(least, search.gap), min(F, search.F)
            if search.gap <= search.goal or idle >= 5:
                return
        f, g = inner.value_gradient(v)
        if not np.isfinite(stretch * g).all():
            return
        while True:
            new = proximal_point(problem, (v - stretch * g / L)[None], 1.0 / L)[0]
            d = new - v
            model = f + float(g @ d) + 0.5 * L * float(d @ (d / stretch))
            if inner.value_gradient(new)[0] <= model + 1e-15 * (1.0 + abs(f)) or L > 1e300:
                break
            L *= 2.0
        if float(((v - new) / stretch) @ (new - w)) > 0.0:
            t = 1.0
        after = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * t * t))
        v, w, t = new + (t - 1.0) / after * (new - w), new, after


class _Inner:
    """The smooth part of F in centred columns."""

    def __init__(self, search: Any) -> None:
        self.problem, self.centred = search.problem, search.centring

    def model(self, v: np.ndarray) -> np.ndarray:
        """Return the model whose centred coordinates are v."""
        return self.centred.model(v) if self.centred else v

    def value_gradient(self, v: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient at v."""
        f, g = self.problem.value_gradient(self.model(v))
        return f, self.centred.gradient(g) if self.centred else g

    def stretch(self) -> np.ndarray:
        """Return how much longer the steps of every entry are than those of the entries that the penalty sees."""
        problem, out = self.problem, np.ones(self.problem.size)
        if problem.free is not None:
            squares = problem.column_norms**2
            seen = squares[~problem.free]
            if self.centred:
                seen = np.maximum(seen - self.centred.explained(problem), EPS * seen)
            ratio = seen.sum() / np.maximum(squares[problem.free], 1e-300)
            out.reshape(problem.n_outputs, -1)[:, problem.free] = np.maximum(ratio, 1.0)
        return out
