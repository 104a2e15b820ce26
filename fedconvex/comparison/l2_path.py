"""Minimisers for decreasing l2, each reached from the one before it.

They serve cross-validation, which compares means of losses over thousands of rows: Newton's method stops where half the
squared decrement, an estimate of the suboptimality, is at most 1e-13 (1 + |F|), for AFL 1e-16 (1 + |F|), so that what
is chosen rests on no rounding, and is the same where rows stay at sites. No certificate is formed along the way; the
models that are reported are solved again and certified.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedconvex.families.multitask.relations import Relation
from fedconvex.federation import Federation
from fedconvex.problems import MultiTaskProblem, Problem
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.certificates.factor import Factor
from fedconvex.solvers.choice import minimise
from fedconvex.solvers.minimax.agnostic import saddle_point
from fedconvex.solvers.solution import Solution

ACCURACY = 1e-13
_WORST = 1e-16  # of AFL, whose models of l2 = 1e-5 and 1e-6 differ by about as much as these
MANY = 1e-6  # the like beyond `LARGE` parameters
PASSES, TASK_ACCURACY = 40, 1e-4  # over the rows, for every l2; relative gap of models per client
ALIKE = 1e-2  # distance of models, relative, from which runs for l2 between theirs are not carried out
_STEPS, LARGE = 200, 1500  # parameters beyond which systems are solved by conjugate gradients
_NEAR = 1e-6  # ‖grad F‖^2/(2 l2), relative, of models that Newton's method has come close with

Left = tuple[np.ndarray, int]  # a model, and after how many rounds a run left it


def shared_path(fed: Federation, loss: Any, l2s: Sequence[float], intercept: bool) -> Iterator[np.ndarray]:
    """Yield the flat minimiser of F for every l2, in decreasing order."""
    w = H = None
    for l2 in l2s:
        problem = Problem(fed, loss, l2, intercept=intercept)
        w, H = descend(problem, np.zeros(problem.size) if w is None else w, H)
        yield w


def descend(problem: Problem, w: np.ndarray, H: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a model near the minimiser of F, by Newton's method from a flat model, and a Hessian of the mean loss.

    Hessians are kept while they serve: H is one to begin with, of another l2, and what is returned the last one.
    """
    if problem.size > LARGE:
        return np.array(minimise(problem, w, MANY, time.perf_counter()).w).ravel(), None
    F, g = problem.value_gradient(w)
    H = _mean_hessian(problem, w) if H is None else H
    factor = _factor(problem, w, H)
    for _ in range(_STEPS):
        step = factor.solve(g)
        slope, t = float(g @ step), 1.0
        if not slope > 2.0 * ACCURACY * (1.0 + abs(F)):
            break
        while t > 1e-10:
            F_new, g_new = problem.value_gradient(w - t * step)
            if F_new <= F - 1e-4 * t * slope:
                break
            t *= 0.5
        else:
            break
        w, F, g = w - t * step, F_new, g_new
        if t < 1.0 or float(g @ factor.solve(g)) > 0.1 * slope:
            H = _mean_hessian(problem, w)
            factor = _factor(problem, w, H)
    return w, H


def _mean_hessian(problem: Problem, w: np.ndarray) -> np.ndarray:
    H = problem.flat_hessian(w)
    H.flat[:: problem.size + 1] -= problem.ridge
    return H


def _factor(problem: Problem, w: np.ndarray, H: np.ndarray) -> Factor:
    H = H.copy()
    H.flat[:: problem.size + 1] += problem.ridge
    return Factor(problem, w, problem.steep_along_free(H), False)


def least_value(problem: Problem, w: np.ndarray) -> float:
    """Return what F is at least, as well as paths know it, from a flat model that `descend` returned; -inf: unknown.

    Where its gradient does not show that it is near, the minimum is certified anew.
    """
    F, g = problem.value_gradient(w)
    if float(g @ g) <= 2.0 * problem.l2 * _NEAR * (1.0 + abs(F)):
        return F - ACCURACY * (1.0 + abs(F))
    best = problem.solve(start=problem.unflatten(w))
    return best.lower if math.isinf(best.reach) else -math.inf


def worst_path(fed: Federation, loss: Any, l2s: Sequence[float], intercept: bool) -> Iterator[np.ndarray]:
    """Yield the flat minimiser of the largest domain's objective for every l2, in decreasing order."""
    w = mix = None
    for l2 in l2s:
        domains = Problem(fed, loss, l2, intercept=intercept).by_domain
        w, mix, _ = saddle_point(domains, Simplex(), w, mix, accuracy=_WORST)
        yield w


def task_path(fed: Federation, loss: Any, relations: Sequence[Relation]) -> Iterator[Solution]:
    """Yield the models (K, d) of every relationship, from strong to weak ones."""
    found = None
    for relation in relations:
        found = MultiTaskProblem(fed, loss, relation).solve(TASK_ACCURACY, found, PASSES)
        yield found


def interpolated(
    names: Sequence[str], l2s: Sequence[float], run: Callable[[list[tuple[str, float]]], list[Left]]
) -> dict[str, list[np.ndarray]]:
    """Return what runs of methods leave for every l2, from a function that carries out some: flat models and rounds.

    After equally many rounds a model is a smooth function of l2. Every third l2 is run. Where two runs are as long, and
    their models differ by a share s of at most 1e-2, those for the l2 between are interpolated: linearly, to about
    s^2/8. The others are run then, together.
    """
    last, names = len(l2s) - 1, names[::-1]
    ends = sorted({*range(0, last, 3), last}, reverse=True)  # runs for small l2 take most rounds, and begin
    asked = [(name, k) for k in ends for name in names]
    found = dict(zip(asked, run([(name, l2s[k]) for name, k in asked]), strict=True))
    asked = []
    for (j, i), name in itertools.product(itertools.pairwise(ends), names):
        (w, rounds), (v, first) = found[name, j], found[name, i]
        alike = rounds == first and np.linalg.norm(v - w) <= ALIKE * np.linalg.norm(w)
        for k in range(j - 1, i, -1):
            share = (l2s[k] - l2s[j]) / (l2s[i] - l2s[j])
            found[name, k] = w + share * (v - w), rounds
            asked += [] if alike else [(name, k)]
    found |= dict(zip(asked, run([(name, l2s[k]) for name, k in asked]), strict=True))
    return {name: [found[name, k][0] for k in range(len(l2s))] for name in names}
