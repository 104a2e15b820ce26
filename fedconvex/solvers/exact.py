"""Exact minimisers with certificates, by one of three paths.

* curved losses, moderate size: Newton's method on the pooled problem;
* curved losses, more than 3,000 parameters: truncated Newton, the systems solved by conjugate gradients;
* kinked losses (the hinge): coordinate ascent on the dual, then smoothed losses of shrinking width, each solved by
  Newton's method.

On many dense rows a quasi-Newton search leads to where the first two begin.

What certifies a result stands in `solvers.certificates`.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from fedconvex._check import bad
from fedconvex.solvers.certificates import UncertifiableError
from fedconvex.solvers.newton import minimise
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.quasi_newton import lead, pays
from fedconvex.solvers.smoothing import smoothing
from fedconvex.solvers.solution import DIRECT_SIZE, Solution

__all__ = ["solve"]


def solve(problem: Objective, tol: float | None, w: np.ndarray | None = None) -> Solution:
    """Minimise F, from a flat model if one is given; see `Problem.solve`."""
    start, kinked = time.perf_counter(), problem.traits.kinked
    if kinked and problem.l2 == 0.0:
        must, cure = "have l2 > 0 (without it nothing certifies the optimum)", "pass a small l2, for example 1e-6"
        raise UncertifiableError(str(bad(f"Problem.solve with {problem.loss!r}", must, "l2 = 0", cure)))
    if kinked:
        return smoothing(problem, tol, start)
    if pays(problem):
        w, evaluations = lead(problem, w, tol)
        found = minimise(problem, w, tol, start)
        return replace(found, iterations=found.iterations + evaluations)
    if w is not None:
        return minimise(problem, w, tol, start)
    w = np.zeros(problem.size)
    some = problem.federation.n >= 16 * 8 * problem.size and bool((problem.per_row > 0.0).all())
    some = some and not problem.traits.quadratic  # one Newton step is all of it
    if problem.l2 > 0.0 and problem.size <= DIRECT_SIZE and some:
        w = minimise(problem.thinned(16), w, 1e-4, start).w.ravel()  # a part of the rows leads most of the way
    return minimise(problem, w, tol, start)
