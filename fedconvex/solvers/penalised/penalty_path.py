"""Solutions over the strength of a penalty, each started from the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import bad, real, vector, whole, wrong_type
from fedconvex.kernels.penalised import proximal_point
from fedconvex.penalties import Box
from fedconvex.solvers.penalised.working_sets import Search
from fedconvex.solvers.solution import Solution


@dataclass(frozen=True)
class PenaltyPath:
    """Solutions over decreasing strengths of a penalty.

    Attributes
    ----------
    strengths : array (m,)
    solutions : tuple of Solution
    """

    strengths: np.ndarray
    solutions: tuple[Solution, ...]

    @property
    def w(self) -> np.ndarray:
        """Minimisers, (m, *model)."""
        return np.stack([s.w for s in self.solutions])

    @property
    def gap(self) -> np.ndarray:
        """Certified gaps, (m,)."""
        return np.array([s.gap for s in self.solutions])

    @property
    def nonzero(self) -> np.ndarray:
        """Number of entries that are not 0, (m,), free ones among them."""
        return np.array([np.count_nonzero(s.w) for s in self.solutions])


def penalty_path(problem: Any, strengths: Any, count: int, least: float, tol: float | None) -> PenaltyPath:
    """Solve for all strengths; see `Problem.path`."""
    who = "Problem.path"
    if problem.penalty is None or not hasattr(problem.penalty, "strength"):
        raise wrong_type(f"{who}: the penalty", "have a field strength", f"{problem.penalty!r}")
    if tol is not None:
        tol = real(f"{who}: tol", tol, low=0.0, strict=True)
    if strengths is None:
        count, top = whole(f"{who}: count", count, low=1), largest_strength(problem)
        chosen = top * real(f"{who}: least", least, low=0.0, high=1.0, strict=True) ** np.linspace(0.0, 1.0, count)
    else:
        chosen = vector(f"{who}: strengths", strengths)
        if chosen.size == 0 or (np.diff(chosen) >= 0.0).any() or chosen[-1] < 0.0:
            raise bad(f"{who}: strengths", "be nonnegative and decrease", f"{strengths!r}")
    search, found = None, []
    assert problem.column_norms.size  # computed once, for all strengths
    for strength in chosen:
        one = problem.with_penalty(problem.penalty._replace(strength=float(strength)))
        search = Search(one, tol, search)
        found.append(search.solved())
    return PenaltyPath(chosen, tuple(found))


def largest_strength(problem: Any) -> float:
    """Return the least strength at which the zero model is a minimiser: prox(-grad f(0), 1) = 0; by bisection.

    Raises
    ------
    ValueError
        If it is none, however strong the penalty.
    """
    w, seen = np.zeros(problem.size), slice(None)
    if problem.free is not None:  # the free coordinates are where they are best
        w, seen = problem.with_penalty(Box(0.0, 0.0)).solve().w.ravel(), problem.penalised_entries
    u = -problem.value_gradient(w)[1]

    def zero(strength: float) -> bool:
        one = problem.with_penalty(problem.penalty._replace(strength=strength))
        return not proximal_point(one, u[None], 1.0)[:, seen].any()

    low, high = 0.0, max(float(np.abs(u).max()), 1e-300)
    while not zero(high):
        low, high = high, 2.0 * high
        if high > 1e300:
            raise bad("Problem.path: the penalty", "keep the zero model, if strong enough", f"{problem.penalty!r}")
    for _ in range(200):
        mid = 0.5 * (low + high)
        if not low < mid < high:
            break
        low, high = (low, mid) if zero(mid) else (mid, high)
    return high
