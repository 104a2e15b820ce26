"""What is nearly there: one change that turns a reading without errors into what an implementation computes.

`changes` says which changes are tried. One counts only if with it every exam is matched to the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance.changes import Change, changes, slips
from fedconvex.conformance.conventions import Reading, departs, expand
from fedconvex.conformance.exams import ORDERS
from fedconvex.conformance.families import Family
from fedconvex.conformance.first_fit import fit, separable
from fedconvex.conformance.readings_search import AT_ONCE, Asked, Search, count_outcomes, follow, predict, within

BASES, FEW_BASES = 40, 8  # readings that changes, and other slips, are tried on, at most
SPREAD = (1.0, 0.5, 2.0, 0.0)  # where the fit of a factor begins
# ---------------------------------------------------------------- which one


class Diagnosis(NamedTuple):
    """A change in words, and the readings that match all exams with it."""

    says: str
    found: Search


def diagnose(family: Family, asked: Sequence[Asked], tol: float) -> Diagnosis | None:
    """Return the change of a reading without errors that matches all exams, or None.

    Readings nearer to the paper come first.
    """
    family = family._replace(kept=False)  # what clients answer is not kept: factors change it
    bases, at = _bases(family, asked, tol)
    pairs = [(r, at, change) for r in bases for change in changes(family, r)]
    pairs += [(r, at, change) for r in bases[:FEW_BASES] for change in slips(family, r)]
    if at is not asked[0]:  # a slip may look like a convention for an exam or two
        near = sorted(expand(family.conventions, asked[0].exam, {}, 0), key=lambda r: departs(family.conventions, r))
        pairs += [(r, asked[0], change) for r in near[:FEW_BASES] for change in slips(family, r)]
    tried = set()
    for r, a, change in pairs:
        c = _fitted(family, a, r, change, tol) if change.fitted else change.neutral
        if c is None or (change.says, round(c, 9)) in tried:
            continue
        if not change.fitted and follow(change.family(family, c), _seen(a, change, c), r, tol, tol).distance > tol:
            continue
        tried.add((change.says, round(c, 9)))
        matching, n, passed = within(change.family(family, c), [_seen(b, change, c) for b in asked], tol, 0)
        if matching:
            return Diagnosis(change.told(c), Search(matching, passed, n))
    return None


def _seen(a: Asked, change: Change, c: float) -> Asked:
    """Return what was asked as the reading with a change must see it."""
    return a._replace(exam=change.exam(a.exam, c))


def _bases(family: Family, asked: Sequence[Asked], tol: float) -> tuple[list[Reading], Asked]:
    """Return the readings without errors that pass the most exams, completed for the next one; and that exam."""
    alive: list[Reading] = [{}]
    for i, a in enumerate(asked):
        ahead = [r for before in alive for r in expand(family.conventions, a.exam, before, 0)]
        ahead = [r for r in ahead if count_outcomes(a.exam, r) <= ORDERS]
        if i == 0 and separable(family, a.exam):
            passing = [r for r, _ in fit(family, a.exam, a.runs[0][0], tol, 0, AT_ONCE).near]
        else:
            passing = [r for r in ahead if follow(family, a, r, tol, tol).distance <= tol]
        if not passing:
            ahead.sort(key=lambda r: departs(family.conventions, r))
            return ahead[:BASES], a
        alive = passing
    return [], asked[0]


def _fitted(family: Family, a: Asked, r: Reading, change: Change, tol: float) -> float | None:
    """Return the factor with which a reading matches an exam, by Gauss and Newton's iteration, or None.

    It is None too where the exam draws something: factors are fitted to rounds that are certain.
    """
    if a.exam.events:
        return None
    seen = np.stack(a.runs[0])
    scale = max(1e-3, float(np.abs(seen).max()))

    def off(c: float) -> Any:
        models = predict(change.family(family, c), change.exam(a.exam, c), r)
        return (np.stack(models) - seen).ravel() / scale

    with np.errstate(all="ignore"):
        for start in SPREAD:
            before, c, line = np.inf, start, (seen, seen)
            for i in range(12):
                here = off(c)
                far = float(np.abs(here).max())
                slope = (off(c + 1e-6) - here) / 1e-6
                step = float(slope @ here) / max(float(slope @ slope), 1e-300)
                if far <= tol:
                    return None if abs(c - change.neutral) <= 1e-6 else c - step
                if not (far < 0.7 * before and np.isfinite(slope).all() and slope @ slope > 0.0):
                    break
                if start == SPREAD[0] and i == 1 and _straight(here, line, c - start):
                    return None  # the models depend on c in a straight line, and its nearest point is too far
                before, c, line = far, c - step, (here, slope)
    return None


def _straight(here: np.ndarray, line: tuple[np.ndarray, np.ndarray], moved: float) -> bool:
    """Return whether differences are where a straight line through the ones before says that they are."""
    told = line[0] + moved * line[1]
    return float(np.abs(here - told).max()) <= 1e-6 * float(np.abs(here).max())
