"""Profile-likelihood intervals of a fitted model: every end enclosed, or known to be infinite."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from fedconvex.analysis.firth import penalised_ends
from fedconvex.analysis.fitting import Fit
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.profile_ends import ROUNDS, Ends, Level, ends
from fedconvex.analysis.response_families import Family
from fedconvex.analysis.separation import Recession
from fedconvex.methods.parts import newton_steps


class ProfileIntervals(NamedTuple):
    """Intervals of the p coefficients, in the units of their columns; each end lies between two numbers."""

    low: np.ndarray  # (p, 2) at least, at most
    high: np.ndarray  # (p, 2)
    rounds: int

    @property
    def center(self) -> tuple[np.ndarray, np.ndarray]:
        """Both ends as one number each, (p,) and (p,); of an end that is not enclosed what it reaches at least."""
        inner, outer = (np.column_stack([self.low[:, i], self.high[:, 1 - i]]) for i in (1, 0))
        with np.errstate(invalid="ignore"):
            ends = np.where(np.isfinite(inner) & ~np.isfinite(outer), inner, 0.5 * (inner + outer))
        return ends[:, 0], ends[:, 1]

    @property
    def loose(self) -> int:
        """Ends that are finite, as far as is known, and have no certified bound."""
        inner, outer = (np.column_stack([self.low[:, i], self.high[:, 1 - i]]) for i in (1, 0))
        return int((np.isfinite(inner) & ~np.isfinite(outer)).sum())


def quantile(family: Family, level: float, residual_df: float) -> float:
    """Return q: a quantile of chi2(1), or of F(1, n - p) where the dispersion is estimated."""
    half = 0.5 * (1.0 - level)
    return float(stats.norm.isf(half) ** 2 if family.reference == "normal" else stats.t(residual_df).isf(half) ** 2)


def profile_intervals(fit: Fit, level: float) -> ProfileIntervals:
    """Return the intervals on which N, minimised over the other coefficients, is at most N* + phi q/2, phi as given.

    Where phi is estimated q is the square of t's quantile, which for the gaussian family gives the usual intervals.
    """
    if fit.firth:
        return _penalised(fit, level)
    drop = 0.5 * fit.phi * quantile(fit.problem.family, level, fit.n - fit.parameters)
    N, gap = float(fit.found.value[0]), float(fit.found.gap[0])
    directions, off = np.vstack([fit.T, -fit.T]), fit.rounding + np.finfo(float).eps * (N + drop)
    levels = Level(N - gap - off + drop, N + drop, N + off + drop, drop)
    if fit.recession is None:
        found = ends(fit.problem, directions, fit.found.b[0], N + off, levels)
    else:
        found = _separated_ends(fit.recession, directions, levels)
    p = len(fit.T)
    inner, outer = found.inner, found.outer
    low = np.column_stack([-outer[p:], -inner[p:]])
    return ProfileIntervals(low, np.column_stack([inner[:p], outer[:p]]), found.rounds)


def _penalised(fit: Fit, level: float) -> ProfileIntervals:
    """Return the intervals of Firth's penalised likelihood; ends are not enclosed, but found to rounding."""
    assert isinstance(fit.problem, LikelihoodProblem)
    drop = 0.5 * quantile(fit.problem.family, level, np.nan)
    found = penalised_ends(fit.problem, fit.T, fit.found.b[0], fit.found.J[0], drop)
    return ProfileIntervals(found[:, [0, 0]], found[:, [1, 1]], 0)


def _separated_ends(recession: Recession, directions: np.ndarray, level: Level) -> Ends:
    """Enclose each end by itself, over the rows that directions of recession v with a'v = 0 leave."""
    inner, outer = np.full(len(directions), np.inf), np.full(len(directions), np.inf)
    b, rounds = np.zeros((len(directions), recession.p)), 0
    for r, a in enumerate(directions):
        if recession.rises(a):
            continue
        rest, P = recession.rest(recession.moved_along(a))
        assert rest is not None  # a is a combination of rows, or an end would be infinite
        inside, N, asked = _interior(rest, level)
        one = ends(rest, (P.T @ a)[None], inside, N, level)
        inner[r], outer[r], b[r] = one.inner[0], one.outer[0], P @ one.b[0]
        rounds += asked + one.rounds
    return Ends(inner, outer, b, rounds)


def _interior(problem: LikelihoodProblem, level: Level) -> tuple[np.ndarray, float, int]:
    """Return a point with N between a quarter and three of the drop below the level, N with its rounding, and rounds.

    Deeper inside J is nearly zero, and a quadratic model tells nothing of where the level is.
    """
    state = newton_steps.start(np.zeros((1, problem.size)))
    asked, outside = 0, None
    while asked < ROUNDS and not (asked and state.value[0] <= level.low - 0.25 * level.drop):
        outside = state.w[0].copy() if asked else None
        answer = problem.sums(state.trial)
        state, asked = newton_steps.absorb(state, answer.values, answer.gradients, answer.hessians), asked + 1
    inside, N = state.w[0], float(state.value[0])
    while outside is not None and asked < ROUNDS and N < level.low - 0.75 * level.drop:
        middle = 0.5 * (inside + outside)
        value, asked = float(problem.sums(middle[None]).values[0]), asked + 1
        if value <= level.low - 0.25 * level.drop:
            inside, N = middle, value
        else:
            outside = middle
    return inside, N + problem.value_rounding(inside), asked
