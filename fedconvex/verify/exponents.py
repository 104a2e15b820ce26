"""Power in every parameter: by how much an exponent of a bound could be wrong without being noticed.

A term of a bound that is t is noticed to be t x^-d, x one of the numbers that the bound is told, as soon as some
measured value exceeds what the other terms and t x^-d make together: where the share s of the term is measured, for
d = log(1/s)/log x and more; where x is below 1, for an exponent that is too large by as much. Counts are often far from
1, and constants with a unit in some units. So the instances that press on a term are taken along *ladders*: one number
of the method, the rounds or the copies of every client are doubled as far as the space goes, and the units of features
and labels changed by a thousand. Along a ladder the exponent of what is measured is fitted beside that of the term.

Nothing says that every error is noticed: a term of two parameters may be wrong in both and right on the ladder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._check import Rng, takes_rng, whole
from fedconvex.theorems import Theorem
from fedconvex.theorems.core import FOUND
from fedconvex.theorems.parts.ladders import derived_ladders
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import Tiny, Whole
from fedconvex.theory.bound import Bound, dropping, holding
from fedconvex.verify.check_records import Exponent
from fedconvex.verify.checking import carried_out, problem_of, setting_of
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.power import noticed_below, term_share
from fedconvex.verify.search import NoSuchTerm, tightest
from fedconvex.verify.verdicts import find_theorem

UNITS = ((1e3, 1.0), (1e-3, 1.0), (1.0, 1e3), (1.0, 1e-3))  # features, labels
DOUBLED = 6  # rungs of a ladder at most
TRIES = 24  # candidates of a search for a term that no kept instance presses on


class _Place(NamedTuple):
    """What the bound is told in an instance, its value, and the number below which it would be violated."""

    numbers: Mapping[str, float]
    arguments: Mapping[str, Any]
    bound: Bound
    least: float

    def share(self, term: str) -> float:
        return min(term_share(self.bound, self.least, term), 1.0)

    def rest(self, term: str) -> float:
        """Return what is measured beside the other terms."""
        return self.least - (self.bound.value - self.bound.terms[term])


@takes_rng
@threadpool_limits.wrap(limits=1, user_api="blas")
def exponents(theorem: Theorem | str, *, seed: int = 0, rng: Rng = None) -> tuple[Exponent, ...]:
    """Return for every term and every number it depends on the smallest error of the exponent that is noticed.

    Parameters
    ----------
    theorem : Theorem or str
        With a `space`, and a reading of its arguments.
    seed : int
        Of searches for terms that no kept instance presses on.

    Raises
    ------
    ValueError
        If there is no theorem of that name.

    Examples
    --------
    >>> from fedconvex.verify import exponents
    >>> found = {(e.term, e.parameter): e for e in exponents("fedprox-bias")}
    >>> found["drift", "proximal_mu"].established
    True
    """
    theorem, seed = find_theorem(theorem), whole("exponents: seed", seed, low=0)
    if theorem.space is None or theorem.read is None:
        return ()
    rungs = [rungs for tiny in _pressing(theorem, seed) for rungs in _ladders(theorem, tiny)]
    rungs += derived_ladders(theorem.space)
    ladders = [[place for tiny in each if (place := _place(theorem, tiny)) is not None] for each in rungs]
    every = [*_checked(theorem, seed), *(place for places in ladders for place in places)]
    terms = dict.fromkeys(name for place in every for name, v in place.bound.terms.items() if v)
    return tuple(e for term in terms for e in _of_term(theorem, term, every, ladders))


def _checked(theorem: Theorem, seed: int) -> Iterator[_Place]:
    """Yield the checks of a theorem in which it applies, by trajectories and exact worst cases where these say more."""
    assert theorem.read is not None
    for item in theorem.checks:
        check = item if isinstance(item, Check) else Check(item)
        found = carried_out(theorem, check, seed=seed)
        bound = found.verdict.bound
        if bound is not None and 0.0 < bound.value < math.inf:
            s = setting_of(theorem, check, problem_of(theorem, check.instance), seed)
            arguments = theorem.read(s).arguments
            yield _Place(_numbers(arguments), arguments, bound, noticed_below(found))


def _pressing(theorem: Theorem, seed: int) -> list[Tiny]:
    """Return for each term the instance that presses on it most, of those that are kept or a short search finds."""
    given = [sharp.tiny for sharp in FOUND.get(theorem.name, ())]
    first = tightest(theorem, TRIES, seed=seed).tiny
    tried = [(tiny, place) for tiny in (*given, first) if tiny and (place := _place(theorem, tiny)) is not None]
    out = list[Tiny]()
    for term in dict.fromkeys(name for _, place in tried for name in place.bound.terms):
        mine = [(place.share(term), tiny) for tiny, place in tried if place.bound.terms.get(term)]
        share, tiny = max(mine, key=lambda pair: pair[0], default=(0.0, None))
        if share < 0.1:
            with suppress(NoSuchTerm):
                found = tightest(theorem, TRIES, isolate=term, seed=seed)
                tiny = found.tiny if found.share > share else tiny
        out += [tiny] if tiny is not None and tiny not in out else []
    return out


def _ladders(theorem: Theorem, tiny: Tiny) -> Iterator[list[Tiny]]:
    """Yield ladders through an instance: a knob, the rounds, copies of the clients, units."""
    space = theorem.space
    for name, limits in space.knobs.items():
        if isinstance(limits, Whole) and limits.low == 0 and limits.high <= 4:  # a choice rather than a number
            continue
        lowest = max(limits.low, 1) if isinstance(limits, Whole) else limits.low
        top = limits.high / (0.9999 if isinstance(limits, Whole) else 1.0)
        values = _doubled(lowest, top, isinstance(limits, Whole))
        yield [tiny._replace(knobs={**tiny.knobs, name: v}) for v in values]
    yield [tiny._replace(rounds=int(v)) for v in _doubled(space.rounds[0], space.rounds[1], True)]
    if "copies" not in space.knobs:
        yield [_copied(tiny, c) for c in (1, 2, 4, 8)]
    yield [tiny, *(tiny.scaled(*unit) for unit in UNITS)]


def _doubled(low: float, high: float, counts: bool) -> list[float]:
    """Return at most so many values from high to low, each half of the one before or less."""
    n = min(DOUBLED, max(1 + int(math.log2(max(high / low, 1.0))), 1))
    values = np.geomspace(low, high, n) if n > 1 else np.array([high])
    return sorted({int(v) for v in values}) if counts else [float(f"{v:.3g}") for v in values]


def _copied(tiny: Tiny, times: int) -> Tiny:
    weights = None if tiny.weights is None else tiny.weights * times
    return tiny._replace(rows=tiny.rows * times, labels=tiny.labels * times, sizes=tiny.sizes * times, weights=weights)


def _place(theorem: Theorem, tiny: Tiny) -> _Place | None:
    """Return the bound in an instance with what it is told; None where it does not apply, or nothing is exact."""
    assert theorem.read is not None
    try:
        with np.errstate(all="ignore"):
            check = theorem.space.check(tiny)
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            bound, arguments = theorem.at(s), theorem.read(s).arguments
            found = theorem.expectation(s, [s.rounds])
    except (ArithmeticError, ValueError):
        return None
    if found is None or not math.isfinite(bound.value) or not bound.value > 0.0:
        return None
    least = float(found.values[0] - found.rounding[0]) - slack_of(bound)
    return _Place(_numbers(arguments), arguments, bound, least)


# ---------------------------------------------------------------- what a bound is told


def _numbers(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Return the positive numbers among the arguments, those of constants by their names; of an array its largest."""
    out: dict[str, float] = {}
    for name, value in arguments.items():
        parts = _parts(value)
        for key, x in parts.items() if parts is not None else ((name, value),):
            size = _size(x)
            if size is not None:
                out[key] = size
    return out


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record, or None."""
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    return {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else None


def _size(x: Any) -> float | None:
    if isinstance(x, (bool, str)) or x is None:
        return None
    if isinstance(x, (int, float, np.number)):
        return float(x) if 0.0 < float(x) < math.inf else None
    if isinstance(x, np.ndarray) and x.size and x.dtype.kind in "fi" and x.min() >= 0.0:
        return float(x.max()) if 0.0 < x.max() < math.inf else None
    return None


def _changed(arguments: Mapping[str, Any], parameter: str, factor: float) -> dict[str, Any]:
    """Return the arguments with one number, or all numbers of an array, times a factor; counts become other counts."""
    out = dict(arguments)
    for name, value in arguments.items():
        parts = _parts(value)
        if name == parameter:
            out[name] = _times(value, factor)
        elif parts is not None and parameter in parts:
            new = {parameter: _times(parts[parameter], factor)}
            out[name] = value._replace(**new) if hasattr(value, "_replace") else replace(value, **new)
    return out


def _is_count(x: Any) -> bool:
    """Whether it is a whole number, or an array of them."""
    return isinstance(x, (int, np.integer)) or (isinstance(x, np.ndarray) and x.dtype.kind == "i")


def _times(x: Any, factor: float) -> Any:
    if not _is_count(x):
        return x * factor
    return np.maximum(np.rint(x * factor), 1).astype(int) if isinstance(x, np.ndarray) else max(round(x * factor), 1)


def _exponent(theorem: Theorem, place: _Place, term: str, parameter: str) -> float:
    """Return the exponent of a parameter in a term at a place, nan where it cannot be changed.

    Free parameters that make the bound least are held: what they owe to a number is no dependence of the bound on it.
    Hypotheses are not asked: a step that must be that of the other numbers stays what it was.
    """
    for factor in (2.0, 0.5) if _is_count(_named(place.arguments, parameter)) else (1.01, 0.99):
        try:
            with np.errstate(all="ignore"), holding(), dropping():
                arguments = _changed(place.arguments, parameter, factor)
                old = theorem.bound(**place.arguments).terms[term]
                new = theorem.bound(**arguments).terms.get(term, 0.0)
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            continue
        moved = _numbers(arguments).get(parameter, math.nan) / place.numbers[parameter]
        if 0.0 < new / old < math.inf and moved != 1.0 and math.isfinite(moved):
            return float(math.log(new / old) / math.log(moved))
    return math.nan


def _named(arguments: Mapping[str, Any], parameter: str) -> Any:
    for name, value in arguments.items():
        parts = _parts(value)
        if name == parameter:
            return value
        if parts is not None and parameter in parts:
            return parts[parameter]
    return None


# ---------------------------------------------------------------- verdicts


def _of_term(theorem: Theorem, term: str, every: list[_Place], ladders: list[list[_Place]]) -> Iterator[Exponent]:
    """Yield what is known of every exponent of a term."""
    here = [place for place in every if place.bound.terms.get(term)]
    share = max(place.share(term) for place in here)
    for parameter in dict.fromkeys(name for place in here for name in place.numbers):
        with_it = [place for place in here if parameter in place.numbers]
        powers = [_exponent(theorem, place, term, parameter) for place in with_it]
        top = max((abs(p) for p in powers if math.isfinite(p)), default=math.nan)
        least = depended(top)
        seen = [  # where the dependence is seen: terms that have settled depend on less
            (_error(place, term, parameter), -place.share(term), i)
            for i, (place, p) in enumerate(zip(with_it, powers, strict=True))
            if not least or abs(p) >= least
        ]
        if not seen:
            continue
        best, power = with_it[min(seen)[2]], powers[min(seen)[2]]
        count = _is_count(_named(best.arguments, parameter))
        if abs(power) < 1e-3 and not count:
            continue
        power = power if math.isfinite(power) else 0.0  # it cannot be changed there, and is nearly that elsewhere
        fitted, span = _fitted(term, parameter, ladders)
        yield Exponent(term, parameter, power, fitted, span, _error(best, term, parameter), share)


def depended(top: float) -> float:
    """Return from which exponent on a term depends on a number, whose exponent is at most ``top`` anywhere.

    One that is always less than a quarter is 0 within the error that is established: then any place counts.
    """
    return min(0.25, 0.5 * top) if not top < 0.25 else 0.0


def _error(place: _Place, term: str, parameter: str) -> float:
    """Return the smallest error of an exponent that is noticed at a place."""
    share, x = place.share(term), abs(math.log(place.numbers[parameter]))
    return max(-math.log(share), 1e-6) / x if share > 0.0 and x > 1e-3 else math.inf


def _fitted(term: str, parameter: str, ladders: list[list[_Place]]) -> tuple[float, float]:
    """Return the exponent that is measured on the ladder where the term presses most, and its span."""
    best, found = 0.0, (math.nan, math.nan)
    for places in ladders:
        mine = [p for p in places if p.bound.terms.get(term) and p.numbers.get(parameter) and p.rest(term) > 0.0]
        x = np.array([p.numbers[parameter] for p in mine])
        if len(set(x)) < 3 or x.max() / x.min() < 4.0:
            continue
        alone = all(_same(p, mine[0], parameter) for p in mine)
        press = float(np.mean([p.share(term) for p in mine]))
        if alone and press > best:
            slope = np.polyfit(np.log(x), np.log([p.rest(term) for p in mine]), 1)[0]
            best, found = press, (float(slope), float(x.max() / x.min()))
    return found


def _same(one: _Place, other: _Place, parameter: str) -> bool:
    """Whether no number but the parameter differs between two places by more than a twentieth."""
    names = one.numbers.keys() & other.numbers.keys() - {parameter}
    return all(math.isclose(one.numbers[n], other.numbers[n], rel_tol=0.05) for n in names)
