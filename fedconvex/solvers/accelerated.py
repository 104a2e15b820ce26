"""Accelerated proximal gradient steps for penalties that are no sums over entries or groups: the simplex, and others.

w_{t+1} = prox(v_t - grad f(v_t)/L_t, 1/L_t), v_{t+1} = w_{t+1} + beta_t (w_{t+1} - w_t) (Beck and Teboulle, "A fast
iterative shrinkage-thresholding algorithm", SIAM J. Imaging Sci. 2 (2009)); L_t by backtracking, and the momentum
starts anew where it points uphill (O'Donoghue and Candes, Found. Comput. Math. 15 (2015)).
"""

from __future__ import annotations

import math
from typing import Any

from fedconvex.kernels.penalised import proximal_point

__all__ = ["accelerate"]

MOST_STEPS = 50_000
CHECK_EVERY = 20


def accelerate(search: Any) -> None:
    """Move a search until its gap is small, or no longer shrinks."""
    problem, w = search.problem, search.w
    v, t, L, idle = w, 1.0, 1.0, 0
    least = math.inf
    for step in range(MOST_STEPS):
        if step % CHECK_EVERY == 0:
            search.move_to(w)
            search.look()
            idle = idle + 1 if search.gap > 0.9 * least else 0
            least = min(least, search.gap)
            if search.gap <= search.goal or idle >= 5:
                return
        f, g = problem.value_gradient(v)
        while True:
            new = proximal_point(problem, (v - g / L)[None], 1.0 / L)[0]
            d = new - v
            model = f + float(g @ d) + 0.5 * L * float(d @ d)
            if problem.value_gradient(new)[0] <= model + 1e-15 * (1.0 + abs(f)) or L > 1e300:
                break
            L *= 2.0
        if float((v - new) @ (new - w)) > 0.0:
            t = 1.0
        after = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * t * t))
        v, w, t = new + (t - 1.0) / after * (new - w), new, after
