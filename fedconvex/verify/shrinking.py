"""Smaller counterexamples: fewer clients, rows, features, rounds and local steps, then numbers that one can write down.

A step is kept if the statement stays violated beyond its rounding, and by a hundredth if it was: what is left can be
checked by hand. Numbers become 0, 1 or fractions with small denominators; those that are equal up to their sign move
together, so that rows that are alike stay alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from fedconvex._check import bad, instance, whole
from fedconvex.problems import Problem
from fedconvex.theorems import Theorem
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import LOSSES, Space, Tiny, Whole
from fedconvex.traits import problem_traits
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.search import share_of
from fedconvex.verify.verdicts import find_theorem

CLEAR = 1.01  # measured over bound, at least, where more is there to begin with
DENOMINATORS = (1, 2, 3, 4, 5, 8, 10, 20, 50, 100)
PASSES = 4
LONGEST = 20.0  # seconds of the processor: what is small by then is small enough
LARGEST = 64  # rows, or features, of what is shrunk


def shrunk(
    theorem: Theorem | str, tiny: Tiny, most: int = 4000, progress: Callable[[float, str], None] | None = None
) -> Tiny:
    """Return a smaller problem that violates a theorem, with numbers that are easier to write down.

    Parameters
    ----------
    theorem : Theorem or str
        With a ``space``.
    tiny : Tiny
        A problem on which the theorem is violated, by an exact value.
    most : int
        Problems that are tried; fewer where they take more than 20 s of the processor's time.
    progress : callable, optional
        Told, before every problem that is tried, the share of these that is used up, and what is done.

    Raises
    ------
    ValueError
        If the theorem has no space, or is not violated there.

    Examples
    --------
    >>> from fedconvex.theorems.parts.tiny import Tiny
    >>> from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound
    >>> from fedconvex.verify import own_theorem, shrunk
    >>> def bound(constants, *, step_size, local_steps, rounds):
    ...     return Bound({"start": 0.1 * constants.L * constants.D**2 / rounds}, LAST_SYNCHRONISED, "too small")
    >>> wrong = own_theorem("wrong", bound, steps=(0.01, 1.0))
    >>> rows, knobs = ((0.83, 0.2), (1.31, 0.1)), {"share": 0.0126, "local_steps": 3, "batch": 0}
    >>> shrunk(wrong, Tiny(rows, (0.4, -1.2), (1, 1), (1.41, 0.3), 7, knobs))  # doctest: +ELLIPSIS
    Tiny(rows=((1.0,),), labels=(0.0,), sizes=(1,), offset=(1.0,), rounds=1, ...)
    """
    theorem, most = find_theorem(theorem), whole("shrunk: most", most, low=1)
    instance("shrunk: tiny", tiny, Tiny)
    if theorem.space is None:
        raise bad("shrunk: theorem", "declare a space", theorem.name, "give Theorem(space=Space(...))")
    first = share_of(theorem, tiny)
    if not first > 1.0:
        raise bad("shrunk: tiny", f"violate {theorem.name} by an exact value", f"{first:.6g} of the bound")
    tries = _Tries(theorem, min(CLEAR, first), most, progress)
    for _ in range(PASSES):
        before = tiny
        for simpler in (_smaller, _in_other_units, _rounder):
            tiny = tries.all_of(simpler, tiny)
        if tiny == before or tries.left <= 0:
            break
    return tiny


def as_tiny(theorem: Theorem, check: Check) -> Tiny | None:
    """Return the instance of a check as a tiny problem, with the largest step and all rows; None for large ones.

    Checks of `own_theorem` take the largest step and the most local steps of its space; whether the result violates a
    theorem, too, is for others to see.
    """
    p, space = problem_of(theorem, check.instance), theorem.space
    small = space is not None and space.problem is Tiny.problem and type(p) is Problem and not any(problem_traits(p))
    loss = next((name for name, make in LOSSES.items() if repr(make()) == repr(getattr(p, "loss", None))), None)
    if not small or loss is None or p.federation.n > LARGEST or p.size > LARGEST:
        return None
    s, X = setting_of(theorem, check, p), p.federation.X
    knobs = {name: 0 if name.startswith("batch") else limits.high for name, limits in space.knobs.items()}
    return Tiny(
        tuple(map(tuple, np.asarray(X.toarray() if hasattr(X, "toarray") else X).tolist())),
        tuple(p.federation.y.tolist()),
        tuple(p.federation.sizes.tolist()),
        tuple((s.start - p.solve().w).tolist()),
        s.rounds,
        knobs,
        float(p.l2),
        None if p.equal_weights else tuple(p.weights.tolist()),
        loss,
    )


class _Tries:
    """What is tried, until so many candidates were, or they took too long."""

    def __init__(self, theorem: Theorem, floor: float, most: int, progress: Any = None) -> None:
        self.theorem, self.floor, self.left, self.most = theorem, floor, most, most
        self.until, self.progress = time.process_time() + LONGEST, progress

    def all_of(self, simpler: Callable[[Space, Tiny], Iterator[Tiny]], tiny: Tiny) -> Tiny:
        """Take simpler candidates as long as there are any that violate the theorem."""
        found: Tiny | None = tiny
        while found is not None:
            tiny, found = found, next(filter(self.violates, simpler(self.theorem.space, found)), None)
        return tiny

    def violates(self, tiny: Tiny) -> bool:
        """Whether a candidate does, clearly enough."""
        spent = 1.0 - (self.until - time.process_time()) / LONGEST
        if self.progress is not None:
            used = max(1.0 - self.left / self.most, spent)
            self.progress(min(max(used, 0.0), 1.0), f"a smaller counterexample to {self.theorem.name}")
        self.left = -1 if spent > 1.0 else max(self.left - 1, -1)
        return self.left >= 0 and share_of(self.theorem, tiny) >= self.floor


# ---------------------------------------------------------------- fewer of everything


def _smaller(space: Space, tiny: Tiny) -> Iterator[Tiny]:
    """Yield problems with less in them, the smallest first."""
    ends = np.cumsum((0, *tiny.sizes))
    clients = [list(range(low, high)) for low, high in pairwise(ends)]
    if len(clients) > 1:
        yield from (_of_rows(tiny, [k], [clients[k]]) for k in range(len(clients)))
        for k in range(len(clients)):
            kept = [j for j in range(len(clients)) if j != k]
            yield _of_rows(tiny, kept, [clients[j] for j in kept])
    if max(tiny.sizes) > 1:
        yield _of_rows(tiny, range(len(clients)), [rows[:1] for rows in clients])
        for i in (i for rows in clients if len(rows) > 1 for i in rows):
            yield _of_rows(tiny, range(len(clients)), [[j for j in rows if j != i] or rows for rows in clients])
    for j in range(len(tiny.offset) if len(tiny.offset) > 1 else 0):
        rows = tuple(row[:j] + row[j + 1 :] for row in tiny.rows)
        yield tiny._replace(rows=rows, offset=tiny.offset[:j] + tiny.offset[j + 1 :])
    yield from (tiny._replace(rounds=T) for T in _fewer(tiny.rounds, space.rounds[0]))
    for name, limits in space.knobs.items():
        if isinstance(limits, Whole):
            yield from (_with_knob(tiny, name, n) for n in _fewer(int(tiny.knobs[name]), limits.low))
    if tiny.loss != "squared" and "squared" in space.losses:
        yield tiny._replace(loss="squared")
    if tiny.weights is not None:
        yield tiny._replace(weights=None)
    if tiny.l2:
        yield tiny._replace(l2=0.0)
    if any(tiny.offset):
        yield tiny._replace(offset=(0.0,) * len(tiny.offset))


def _of_rows(tiny: Tiny, clients: Any, rows: list[list[int]]) -> Tiny:
    """Return the problem of some clients with some rows each."""
    every = [i for mine in rows for i in mine]
    weights = None if tiny.weights is None else tuple(tiny.weights[k] for k in clients)
    X, y = tuple(tiny.rows[i] for i in every), tuple(tiny.labels[i] for i in every)
    return tiny._replace(rows=X, labels=y, sizes=tuple(map(len, rows)), weights=weights)


def _fewer(n: int, low: int) -> list[int]:
    """Return smaller numbers, the smallest first."""
    return sorted({m for m in (low, low + 1, n // 4, n // 2, n - 1) if low <= m < n})


def _with_knob(tiny: Tiny, name: str, value: float) -> Tiny:
    return tiny._replace(knobs={**tiny.knobs, name: value})


# ---------------------------------------------------------------- numbers


def _in_other_units(space: Space, tiny: Tiny) -> Iterator[Tiny]:
    """Yield the problem with first entries above 0, and with its largest feature, label or offset 1."""
    sizes = [max(map(abs, numbers), default=0.0) for numbers in (sum(tiny.rows, ()), tiny.labels, tiny.offset)]
    features, others = sizes[0], [y for y in sizes[1:] if y]
    X, y = np.array(tiny.rows), np.array(tiny.labels)
    signs = np.array([np.sign(next(filter(None, row), 1.0)) for row in tiny.rows])
    if (signs < 0.0).any():  # (x, y) and (-x, -y) are one row
        yield _with(_with(tiny, "rows", X * signs[:, None]), "labels", y * signs)
    if tiny.loss == "squared" and next(filter(None, (*tiny.labels, *tiny.offset)), 1.0) < 0.0:  # w for -w
        yield _with(_with(tiny, "labels", -y), "offset", -np.array(tiny.offset))
    if features not in (0.0, 1.0):
        yield tiny.scaled(1.0 / features)
    if tiny.loss == "squared" and others and others[0] != 1.0:
        yield tiny.scaled(1.0, 1.0 / others[0])


def _rounder(space: Space, tiny: Tiny) -> Iterator[Tiny]:
    """Yield problems one of whose numbers is simpler, with all that are equal to it up to their sign or without."""
    for name in ("labels", "offset", "rows", "weights"):
        old = np.array(getattr(tiny, name) if getattr(tiny, name) is not None else ())
        if name == "labels" and tiny.loss != "squared":
            continue
        for at in np.ndindex(old.shape):
            same = np.abs(old) == abs(old[at])
            for where in (same, *([_alone(old, at)] if same.sum() > 1 else [])):
                for x in _simpler(abs(float(old[at])), zero=name != "weights"):
                    yield _with(tiny, name, np.where(where, np.copysign(x, old), old))
    yield from (tiny._replace(l2=x) for x in (_simpler(tiny.l2, zero=False) if tiny.l2 else ()))
    for name, limits in space.knobs.items():
        if not isinstance(limits, Whole) and tiny.knobs[name] != limits.high:
            every, top = (limits.high, *_simpler(tiny.knobs[name], zero=False)), limits.high * max(limits.beyond, 1.0)
            yield from (_with_knob(tiny, name, x) for x in every if limits.low <= x <= top)


def _alone(old: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    """Return which numbers move with one: in matrices those of the rows that are equal to its own up to their sign."""
    where = np.zeros(old.shape, dtype=bool)
    if old.ndim == 1:
        where[at] = True
    else:
        row = old[at[0]]
        where[(old == row).all(axis=1) | (old == -row).all(axis=1), at[1]] = True
    return where


def _with(tiny: Tiny, name: str, new: np.ndarray) -> Tiny:
    numbers = (new + 0.0).tolist()  # no negative zeros
    changed: dict[str, Any] = {name: tuple(map(tuple, numbers) if new.ndim == 2 else numbers)}
    return tiny._replace(**changed)


def _simpler(x: float, zero: bool = True) -> Iterator[float]:
    """Yield numbers near one that are simpler than it: 0, 1, fractions, one digit, two digits."""
    near = [float(Fraction(x).limit_denominator(q)) for q in DENOMINATORS] if abs(x) < 1e6 else []
    for y in ([0.0] if zero else []) + [math.copysign(1.0, x), *near, float(f"{x:.1g}"), float(f"{x:.2g}")]:
        if y == x:
            return
        if y or zero:
            yield y
