"""Which solver is for which objective: tables of what each asks for, of which the first that fits is taken.

A row of a table names a function below `fedconvex.solvers`, whose file is loaded when it is chosen, and what it asks of
the loss, the penalty, the weights and the size. `SOLVERS` minimise and certify; `STARTS` lead to where they begin, and
need not fit. What certifies a result stands in `solvers.certificates`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.penalties import is_entrywise
from fedconvex.solvers.certificates.gaps import UncertifiableError
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import DIRECT_SIZE, Solution


class Need(NamedTuple):
    """Something that a solver asks of an objective."""

    words: str
    met: Callable[[Objective], bool]


KINKED = Need("a loss with kinks", lambda p: p.traits.kinked)
_CURVED = Need("a smooth loss whose curvature is known", lambda p: p.traits.curved and not p.traits.kinked)
_NOT_QUADRATIC = Need("a loss that is not quadratic", lambda p: not p.traits.quadratic)  # else one step is all of it
BLOCKS = Need("one score, or a multinomial loss", lambda p: p.traits.multinomial or not p.traits.several)
_DUAL_STEP = Need("exact steps of its dual", lambda p: hasattr(p.loss, "dual_step"))
STRONGLY_CONVEX = Need("l2 > 0", lambda p: p.l2 > 0.0)
_NO_FREE = Need("no free coordinates", lambda p: p.free is None)  # which would tie the coordinates of the dual
_PENALTY = Need("a penalty", lambda p: p.penalty is not None)
BY_PARTS = Need(
    "a penalty that is a sum over entries or groups",
    lambda p: is_entrywise(p.penalty) or hasattr(p.penalty, "blocks"),
)
DENSE = Need("dense rows", lambda p: not p.federation.is_sparse)
_ALL_ROWS = Need("no row of weight 0", lambda p: p.row_weight_range[0] > 0.0)
DIRECT = Need(f"at most {DIRECT_SIZE:,} parameters", lambda p: p.size <= DIRECT_SIZE)
_MANY_ROWS = Need("at least 1,000 rows", lambda p: p.federation.n >= 1000)
_PARTS_ENOUGH = Need("at least 128 rows for a parameter", lambda p: p.federation.n >= 128 * p.size)
# where a search with a part of the Hessian is worth its own cost, and blocks of Hessians can be factored
LARGE = Need("2^20 or more entries of the rows times outputs", lambda p: p.federation.n * p.size >= 1 << 20)
WIDE = Need("32 to 4,000 features", lambda p: 32 <= p.federation.d <= 4000)
_TALL = Need("at least four rows for a feature", lambda p: p.federation.n >= 4 * p.federation.d)
# where products with a Hessian are cheaper than the Hessian and its factor, which cost n d^2 and d^3/3 or more
LOW = Need("500 or more features, and fewer than four rows for each", lambda p: p.size >= 500 and not _TALL.met(p))
_ONE_SCORE = Need("one score", lambda p: not p.traits.several)


class Solver(NamedTuple):
    """A function below `fedconvex.solvers`, and what it asks for."""

    home: str
    function: str
    needs: tuple[Need, ...] = ()

    def fits(self, problem: Objective) -> bool:
        """Return whether the objective is what it asks for."""
        return all(need.met(problem) for need in self.needs)

    def load(self) -> Any:
        """Return the function."""
        return attrgetter(self.function)(import_module(f"fedconvex.solvers.{self.home}"))


# (problem, flat start or None, tol) -> (flat start, evaluations)
STARTS = (
    Solver(
        "smooth.quasi_newton",
        "approach",
        (STRONGLY_CONVEX, _NOT_QUADRATIC, _CURVED, LARGE, BLOCKS, DENSE, WIDE, _TALL),
    ),
    Solver("smooth.newton", "solve_part", (STRONGLY_CONVEX, _NOT_QUADRATIC, _CURVED, DIRECT, _PARTS_ENOUGH, _ALL_ROWS)),
)
# (problem, flat start, tol, when the clock began) -> Solution
_GRADIENTS = (_ONE_SCORE, STRONGLY_CONVEX, _NO_FREE, _NOT_QUADRATIC, _CURVED)  # lead to a certified minimum
SMOOTH = (
    Solver("smooth.quasi_newton", "quasi_newton", (LOW, DENSE, *_GRADIENTS)),
    Solver("smooth.newton", "newton", (DIRECT,)),
    Solver("smooth.quasi_newton", "quasi_newton", _GRADIENTS),
    Solver("smooth.newton", "truncated_newton"),
)
SOLVERS = (
    Solver("penalised.working_sets", "solve_penalised", (_PENALTY,)),
    Solver("kinked.smoothing", "smoothing", (KINKED, STRONGLY_CONVEX)),
    *SMOOTH,
)
# a search for penalised minima -> None: it stands at the minimum
PENALISED = (
    Solver("penalised.working_sets", "Search.by_working_sets", (BY_PARTS,)),
    Solver("penalised.accelerated", "accelerate"),
)
ASCENT = Solver("kinked.row_ascent", "ascend", (_NO_FREE, _DUAL_STEP, _MANY_ROWS))  # before smoothing


def first_fit(table: Sequence[Solver], problem: Objective) -> Solver | None:
    """Return the first row of a table that fits, or None."""
    return next((solver for solver in table if solver.fits(problem)), None)


def minimise(problem: Objective, w: np.ndarray, tol: float | None, start: float) -> Solution:
    """Minimise a smooth F from a flat model w, by the method for its size; ``start`` is when the clock began."""
    return next(s for s in SMOOTH if s.fits(problem)).load()(problem, w, tol, start)


def solve(problem: Objective, tol: float | None, w: np.ndarray | None = None) -> Solution:
    """Minimise F, from a flat model if one is given; see `Problem.solve`."""
    begun, before = time.perf_counter(), 0
    plain = problem.penalty is None
    if plain and problem.traits.kinked and problem.l2 == 0.0:
        must, cure = "have l2 > 0 (without it nothing certifies the optimum)", "pass a small l2, for example 1e-6"
        raise UncertifiableError(str(bad(f"Problem.solve with {problem.loss!r}", must, "l2 = 0", cure)))
    if plain and (first := first_fit(STARTS, problem)):
        w, before = first.load()(problem, w, tol)
    w = np.zeros(problem.size) if w is None else w
    found = next(s for s in SOLVERS if s.fits(problem)).load()(problem, w, tol, begun)
    return replace(found, iterations=found.iterations + before)
