"""Find out which published algorithm an implementation computes.

Readings hold as few errors as possible: what may be a convention is not called an error. At most two are found at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import bad, real, unknown, wrong_type
from fedconvex.conformance.closed_forms import checks
from fedconvex.conformance.conventions import Reading
from fedconvex.conformance.counterexample import counterexample
from fedconvex.conformance.diagnosis import diagnose
from fedconvex.conformance.exams import ORDERS
from fedconvex.conformance.families import FAMILIES, Family
from fedconvex.conformance.floats import sent
from fedconvex.conformance.identified import Conformance, Exclusion, Line
from fedconvex.conformance.implementation import Abilities, abilities_of, answers, digest, limited, name_of
from fedconvex.conformance.readings_search import Asked, Found, begun, count_outcomes, follow, nearest, predict, search

FLOAT64, FLOAT32 = 1e-9, 3e-5


def conform(
    train: Any, family: str = "fedavg", *, tol: float | None = None, limit: float | None = None, progress: Any = None
) -> Conformance:
    """Return which reading of an algorithm an implementation computes.

    Parameters
    ----------
    train : callable
        ``train(clients, hyper, rounds)`` returns the models (d,), or (C, d), after each of the rounds. It may declare
        what it can do by `can`, and raise NotImplementedError for what it cannot.
    family : str
        The algorithm that it claims to be, of `FAMILIES`.
    tol : float, optional
        Largest difference that counts as equal, relative to the largest entry of the models; default 1e-9, or 3e-5 for
        implementations in single precision.
    limit : float, optional
        Seconds that one call of ``train`` may take; default no limit.
    progress : callable, optional
        Is told the share that is done, in [0, 1], and what is being done.

    Returns
    -------
    Conformance

    Raises
    ------
    ValueError, TypeError
        If there is no such family, no exam can be asked, or ``train`` raises, takes longer than its limit, or returns
        something else.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.conformance import can, conform
    >>> @can(losses=("squared",), partial=False, batches=())
    ... def train(clients, hyper, rounds):
    ...     w, models = hyper["start"], []
    ...     for _ in range(rounds):
    ...         slopes = [X.T @ (X @ w - y) / len(y) + hyper["l2"] * w for X, y in clients]
    ...         models.append(w := w - hyper["step_size"] * np.mean(slopes, axis=0))
    ...     return models
    >>> found = conform(train, "fedsgd")
    >>> found.verdict, found.grade, found.reading["weights"]
    ('matches', 'variant', '1/K')
    """
    _check(train, family)
    a, f = abilities_of(train), FAMILIES[family]
    tol = (FLOAT32 if a.float32 else FLOAT64) if tol is None else real("conform: tol", tol, low=0.0, strict=True)
    tell = progress or (lambda share, doing: None)
    train = limited(train, limit)
    tell(0.0, "exams")
    asked, left = answers(f, train, a)
    if not asked:
        raise bad("conform: train", "be able to take an exam", "; ".join(f"{n}: {w}" for n, w in left.items()))
    found = _answer(f, train, a, tol, asked, left, tell)
    tell(0.9, "the smallest exam that shows it")
    departs = None if found.grade == "published" else counterexample(f, train, a, asked, tol)
    tell(1.0, "")
    return replace(found, counterexample=departs, train=name_of(train), digest=digest(asked))


def _check(train: Any, family: Any) -> None:
    if not callable(train):
        raise wrong_type("conform: train", "be a function train(clients, hyper, rounds)", f"{train!r}")
    if not isinstance(family, str) or family not in FAMILIES:
        raise unknown("conform: family", family, FAMILIES)


def _answer(
    f: Family, train: Any, a: Abilities, tol: float, asked: Sequence[Asked], left: dict[str, str], tell: Any
) -> Conformance:
    """Return what the exams that ran say."""
    lost = [b.exam.name for b in asked if not all(np.isfinite(w).all() for run in b.runs for w in run)]
    if lost:
        return _unread(
            f, tol, (), dict.fromkeys(lost, math.inf), left, [f"{n}: models are not finite" for n in lost], 0
        )
    tell(0.1, "readings")
    found, change = search(f, asked, tol, (0, 1)), ""
    tell(0.3, "readings with one change")
    if not found.matching and (nearly := diagnose(f, asked, tol)) is not None:
        change, found = nearly.says, nearly.found
    elif not found.matching:
        tell(0.5, "readings with two errors")
        found = search(f, asked, tol, (2,))
    if not found.matching:
        tell(0.7, "the nearest reading")
        beginning = begun(f, asked, tol)
        agrees, best = beginning or (0, nearest(f, asked, tol)[0])
        differs = list(_differences(f, asked, best, tol))
        return _unread(f, tol, _lines(f, [best.reading]), best.distances, left, differs, found.tried, agrees)
    readings = [m.reading for m in found.matching]
    best = min(found.matching, key=lambda m: m.distance)
    lines = _lines(f, readings)
    verdict = "deviates" if best.errors or change else "matches"
    held = checks(f.name, best.reading, train, a, tol) if verdict == "matches" else []
    held += sent(f.name, train, a, f.hyper)
    return Conformance(
        f.name, f.title, f.source, verdict, tol, lines, _untold(f, readings), _next(f, asked, best.reading, lines, tol),
        found.passed_over, best.distances, left, (), tuple(held), found.tried, change,
    )  # fmt: skip


def _unread(
    f: Family, tol: float, lines: Any, distances: Any, left: Any, differs: Sequence[str], tried: int, agrees: int = 0
) -> Conformance:
    """Return the answer where no reading matches."""
    away = max(distances.values())
    return Conformance(
        f.name, f.title, f.source, "no reading", tol, lines, {}, (), away, distances, left, tuple(differs), (), tried,
        agrees=agrees,
    )  # fmt: skip


def _line(family: Family, convention: str, value: str) -> Line:
    c = next(c for c in family.conventions if c.name == convention)
    v = c.value(value)
    published = [other for other in c.values if other.kind == "published"]
    departs = v.kind == "convention" and bool(published)
    return Line(convention, v.name, v.kind, v.says, departs, published[0].says if departs else "")


def _lines(family: Family, readings: Sequence[Reading]) -> tuple[Line, ...]:
    """Return the conventions in which all readings agree."""
    first = readings[0]
    same = [name for name in first if all(r.get(name) == first[name] for r in readings)]
    return tuple(_line(family, name, first[name]) for name in same)


def _untold(family: Family, readings: Sequence[Reading]) -> dict[str, tuple[Line, ...]]:
    """Return the conventions in which they do not."""
    out = {}
    for c in family.conventions:
        values = list(dict.fromkeys(r[c.name] for r in readings if c.name in r))
        if len(values) > 1 or (values and any(c.name not in r for r in readings)):
            out[c.name] = tuple(_line(family, c.name, v) for v in values)
    return out


def _next(
    family: Family, asked: Sequence[Asked], r: Reading, lines: Sequence[Line], tol: float
) -> tuple[Exclusion, ...]:
    """Return, for each convention that is pinned down, the nearest other value with all else as it is."""
    out = []
    for c in family.conventions:
        if c.name not in {line.convention for line in lines}:
            continue
        others = []
        for v in c.values:
            if v.name == r[c.name] or (v.when is not None and not v.when(r)):
                continue
            distance, exam = _apart(family, asked, r | {c.name: v.name}, tol)
            if exam:
                others.append(Exclusion(c.name, v.name, distance, exam))
        if others:
            out.append(min(others, key=lambda e: e.distance))
    return tuple(out)


def _apart(family: Family, asked: Sequence[Asked], r: Reading, tol: float) -> tuple[float, str]:
    """Return the distance of a reading in the first exam in which it shows, and that exam."""
    for a in asked:
        if count_outcomes(a.exam, r) > ORDERS:
            continue
        seen = follow(family, a, r, tol)
        if seen.distance > tol:
            return seen.distance, a.exam.name
    return 0.0, ""


def _differences(family: Family, asked: Sequence[Asked], best: Found, tol: float) -> Any:
    """Yield where an implementation leaves the nearest reading, and by what."""
    for a in asked:
        d = best.distances.get(a.exam.name, 0.0)
        if d <= tol:
            continue
        yield f"{a.exam.name}: from round {max(1, best.rounds[a.exam.name])} on, by {d:.1e}"
        if not a.exam.events:
            yield from _how(predict(family, a.exam, best.reading), a, tol)


def _how(models: Sequence[np.ndarray], a: Asked, tol: float) -> Any:
    """Yield what the first round's update is to the one expected, if that is a multiple."""
    start = a.exam.hyper["start"]
    got, expected = (a.runs[0][0] - start).ravel(), (models[0] - start).ravel()
    length = float(expected @ expected)
    factor = float(got @ expected) / length if length > 0.0 else math.nan
    if not math.isfinite(factor) or abs(factor - 1.0) <= 10 * tol:
        return
    if np.abs(got - factor * expected).max() <= 10 * tol * max(1.0, abs(factor)):
        yield f"  the first round's update is {factor:.6g} times the expected one"
    else:
        cosine = float(got @ expected) / math.sqrt(length * float(got @ got)) if got.any() else 0.0
        yield f"  the first round's update is no multiple of the expected one (cosine {cosine:.4f})"
