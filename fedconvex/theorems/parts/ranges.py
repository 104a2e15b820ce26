"""Which numbers theorems are asked about: those whose products are numbers in double precision.

Bounds, and what is measured, are sums of products of at most four factors, each made of two features, labels or entries
of the start: L of squares of features, gradients of features times labels or scores, F of squares of labels. Variances
of squared gradients are of this degree too. Eight numbers within 1e-37 and 1e37 have a product within 1e-296 and 1e296:
it is a normal double, and twelve powers of ten are left for numbers of rows, columns and rounds. Beyond, products
overflow or vanish in one of two numbers that are compared: a true theorem is violated, or one holds of nothing. l2 is
of the size of squares of features; so is what settings of methods are, step sizes and penalties, or its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedconvex.federation import Federation
from fedconvex.problems.protocol import has_scores
from fedconvex.theory.bound import PrecisionError, with_powers

_SIZES = ("step_size", "domain_step_size", "server_step", "mu", "proximal_mu", "alpha", "rho")  # no chances, tolerances
MOST = 1e37  # its eighth power, times 1e12, is a double


def need_products(theorem: str, problem: Any, start: np.ndarray | None = None, method: Any = None) -> None:
    """Raise unless products of eight features, labels and entries of the start neither overflow nor vanish.

    Zero is a number as well. Nothing is asked of ensembles: their features are compared with cuts, not multiplied.

    Raises
    ------
    PrecisionError
        Naming what is too large or too small, with the number.
    """
    if not has_scores(problem):
        return
    federation = problem.federation
    rows = federation if isinstance(federation, Federation) else federation.rows  # the table that owners share
    _need(theorem, "the largest entry of every feature", rows.column_sizes, 1.0 / MOST)
    _need(theorem, "the largest label", np.abs(rows.y).max(initial=0.0), 1.0 / MOST)
    if start is not None:
        _need(theorem, "the start", np.abs(start).max(initial=0.0), 0.0)
    for name, value in (("l2", getattr(problem, "l2", 0.0)), *_settings(method)):
        with_powers(theorem, name, value)


def _need(theorem: str, name: str, sizes: Any, least: float) -> None:
    """Raise unless all numbers are zero or within the limits."""
    sizes = np.atleast_1d(sizes)
    wrong = sizes[(sizes > MOST) | ((sizes < least) & (sizes > 0.0))]
    if wrong.size:
        needs = f"{name} within {least:.0e} and {MOST:.0e}, products of which are numbers, got {wrong[0]:.3g}"
        raise PrecisionError(f"{theorem} is not decided: needs {needs}: scale the features, or the labels")


def _settings(method: Any) -> Iterator[tuple[str, float]]:
    """Return the sizes that a method is set by, with their names; of its optimisers and rules too."""
    names = [f.name for f in fields(method)] if is_dataclass(method) else getattr(method, "_fields", ())
    for name in names:
        value = getattr(method, name)
        if isinstance(value, float):
            if name in _SIZES and math.isfinite(value):
                yield f"{type(method).__name__}.{name}", abs(value)
        else:
            yield from _settings(value)
