"""Which reading an implementation is: exams one after the other, readings that do not match left behind.

A reading is followed round by round. Where a round draws something, every outcome is tried, and those that give the
model that the implementation gave are followed on; so what nobody sees (momentum, control variates) is known all the
same. The distance of a reading in an exam is the largest difference to the models of any round, over the largest entry
of the models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.conventions import Reading, departs, errors, expand
from fedconvex.conformance.exams import ORDERS, Exam, batch_draws, coins, coordinates, participants
from fedconvex.conformance.families import Family
from fedconvex.conformance.first_fit import Fit, fit, separable

WEIGHING = ("weights", "share", "sampling")  # conventions that clients' first answers do not depend on
BRANCHES = 8  # histories of one reading that give the same models and are followed at once, at most
COINCIDENCE = 1e-3  # a reading of which the draws seen are less likely than this, beside another's, is left behind
READINGS = 40_000  # tried in one exam, at most
AT_ONCE = 15_000  # readings of a server's step in a first exam, each with all readings of clients, at most
ROUGHLY = 1_500  # the same, where none matches and the nearest is looked for
FEW = 3  # the same, beyond the first exam that none of them passes
NEAREST = 24  # readings that are followed on where none matches


class Asked(NamedTuple):
    """An exam and what an implementation answered: models by round, for every seed."""

    exam: Exam
    runs: tuple[tuple[np.ndarray, ...], ...]


class Followed(NamedTuple):
    """How far a reading is from an implementation in an exam, where it first differs, and how likely its draws are."""

    distance: float
    round: int  # 1, 2, ..., the first with a difference above the tolerance; 0 if there is none
    log_likelihood: float = 0.0


class Found(NamedTuple):
    """A reading, with its largest distance by exam."""

    reading: Reading
    errors: int
    distances: Mapping[str, float]
    rounds: Mapping[str, int]
    log_likelihood: float = 0.0  # of all draws seen, in the exams whose outcomes could be enumerated

    @property
    def distance(self) -> float:
        """The largest over exams."""
        return max(self.distances.values(), default=0.0)


Kept = dict[int, list[Fit]]  # fits to a first exam, by the number of errors

# ---------------------------------------------------------------- one reading


def outcomes(family: Family, exam: Exam, r: Reading, state: Any) -> Iterator[tuple[Any, float]]:
    """Yield the states that a round may lead to, with probabilities."""
    draws: dict[int, list[tuple[Any, float]]] = {}

    def answers(k: int) -> list[tuple[Any, float]]:
        if k not in draws:
            draws[k] = [(family.reply(exam, r, state, k, batches, None), p) for batches, p in _work(exam, k, r)]
        return draws[k]

    if not exam.events:
        yield family.move(exam, r, state, tuple(range(len(exam.clients))), _replies(family, exam, r, state)), 1.0
        return
    if exam.events == "coins":  # the same for all clients
        everybody = tuple(range(len(exam.clients)))
        for steps, p in coins(exam):
            batches = [(tuple(range(n)),) * steps for n in exam.sizes]
            heard = [family.reply(exam, r, state, k, batches[k], None) for k in everybody]
            yield family.move(exam, r, state, everybody, heard), p
        return
    for who, p in participants(exam, r.get("sampling", "distinct")):
        options = [answers(k) for k in dict.fromkeys(who)]
        for drawn in itertools.product(*options):
            at = dict(zip(dict.fromkeys(who), drawn, strict=True))
            yield (
                family.move(exam, r, state, who, [at[k][0] for k in who]),
                p * math.prod(probability for _, probability in drawn),
            )


def _replies(family: Family, exam: Exam, r: Reading, state: Any) -> list[Any]:
    """Return all clients' answers on full batches; readings that differ at the server only share them."""
    key = None
    blind = family.server_side + (WEIGHING if state["t"] == 0 and family.reply is averaging.reply else ())
    if blind and family.kept:
        mine = tuple(item for item in r.items() if item[0] not in blind)
        key = (family.name, mine, state["t"], state["sent"].tobytes())
        if _KEPT_OF[0] is not exam.hyper:  # another exam
            _KEPT.clear()
            _KEPT_OF[0] = exam.hyper
        if key in _KEPT:
            return _KEPT[key]
    replies: list[Any] = []
    for k in range(len(exam.clients)):
        batches = batch_draws(exam, exam.sizes[k], r)[0][0]
        replies.append(family.reply(exam, r, state, k, batches, replies[-1] if replies else None))
    if key is not None:
        if len(_KEPT) > 8000:
            _KEPT.clear()
        _KEPT[key] = replies
    return replies


_KEPT: dict[Any, list[Any]] = {}
_KEPT_OF: list[Any] = [None]  # the hyper-parameters of the exam whose answers are kept


def _work(exam: Exam, k: int, r: Reading) -> list[tuple[Any, float]]:
    """Return what client k may do in a round: its batches, or how many of its steps."""
    if exam.events == "stragglers":
        rows, E = tuple(range(exam.sizes[k])), exam.steps
        return [((rows,) * s, 0.5 if s == E else 0.5 / (E - 1)) for s in range(1, E + 1)]
    if exam.events == "coordinates":
        return coordinates(exam)
    return batch_draws(exam, exam.sizes[k], r)


def count_outcomes(exam: Exam, r: Reading) -> int:
    """Return how many outcomes a round has."""
    if exam.events and r.get("start") == "previous":
        return ORDERS + 1  # clients' draws are not independent
    if exam.events == "partial":
        return sum(1 for _ in participants(exam, r.get("sampling", "distinct")))
    if exam.events == "coins":
        return sum(1 for _ in coins(exam))
    return math.prod(len(_work(exam, k, r)) for k in range(len(exam.clients)))


def predict(family: Family, exam: Exam, r: Reading) -> list[np.ndarray]:
    """Return the models of a reading after every round of an exam that draws nothing."""
    state, models = family.first(exam, r), []
    for _ in range(exam.rounds):
        state = next(outcomes(family, exam, r, state))[0]
        models.append(state["w"])
    return models


def follow(family: Family, asked: Asked, r: Reading, tol: float, stop: float = math.inf) -> Followed:
    """Return how far a reading is from what was answered; give up where it is further than stop."""
    worst, where, likelihood = 0.0, 0, 0.0
    with np.errstate(all="ignore"):
        for models in asked.runs:
            found = _follow_run(family, asked.exam, r, models, tol, stop)
            likelihood += found.log_likelihood
            if found.distance > worst:
                worst, where = found.distance, found.round
            if worst > stop:
                break
    return Followed(worst, where, likelihood)


def _follow_run(
    family: Family, exam: Exam, r: Reading, models: Sequence[np.ndarray], tol: float, stop: float
) -> Followed:
    scale = max(1e-3, *(float(np.abs(w).max()) for w in models))
    branches, worst, where, likelihood = [(family.first(exam, r), 1.0)], 0.0, 0, 0.0
    for t, w in enumerate(models, 1):
        ahead = []
        for state, weight in branches:
            for new, p in outcomes(family, exam, r, state):
                d = float(np.abs(new["w"] - w).max()) / scale
                ahead.append((d if d == d else math.inf, weight * p, new))
        near = [a for a in ahead if a[0] <= tol] or [min(ahead, key=lambda a: a[0])]
        nearest = min(a[0] for a in near)
        if nearest > worst:
            worst, where = nearest, where or (t if nearest > tol else 0)
        if worst > stop:
            break
        total = sum(a[1] for a in near)
        likelihood += math.log(total)
        near.sort(key=lambda a: -a[1])
        branches = [(new, weight / total) for _, weight, new in near[:BRANCHES]]
    return Followed(worst, where, likelihood)


# ---------------------------------------------------------------- all readings


class Search(NamedTuple):
    """What a search found: readings that match everything, and what was left behind."""

    matching: list[Found]
    passed_over: float  # the smallest distance at which a reading was left behind
    tried: int


def search(family: Family, asked: Sequence[Asked], tol: float, budgets: Sequence[int] = (0, 1, 2)) -> Search:
    """Return the readings that match all exams, with as few errors as possible, or none.

    Parameters
    ----------
    family : Family
        Whose readings are tried.
    asked : sequence of Asked
        Exams with answers, the cheapest first.
    tol : float
        Largest distance that counts as equal.
    budgets : sequence of int
        Errors that a reading may hold at once, one after the other.
    """
    tried, passed, kept = 0, math.inf, Kept()
    for budget in budgets:
        found, n, excluded = within(family, asked, tol, budget, kept)
        tried, passed = tried + n, min(passed, excluded)
        if found:
            fewest = min(f.errors for f in found)
            return Search([f for f in found if f.errors == fewest], passed, tried)
    return Search([], passed, tried)


def within(
    family: Family, asked: Sequence[Asked], tol: float, budget: int, kept: Kept | None = None
) -> tuple[list[Found], int, float]:
    """Return the matching readings with at most so many errors, how many were tried, and what else was near.

    What is kept of the first exam, by numbers of errors, may be handed on to a search with a larger budget.
    """
    alive, tried, passed = [Found({}, 0, {}, {})], 0, math.inf
    for i, a in enumerate(asked):
        if i == 0 and separable(family, a.exam):
            alive, tried, passed = _at_once(family, a, tol, budget, {} if kept is None else kept)
            if not alive:
                return [], tried, passed
            continue
        passing: list[Found] = []
        readings = (r for f in alive for r in expand(family.conventions, a.exam, f.reading, budget - f.errors))
        known = {tuple(sorted(f.reading.items())): f for f in alive}
        for r in itertools.islice(readings, READINGS):
            if count_outcomes(a.exam, r) > ORDERS:  # too many to enumerate: this exam says nothing about it
                passing.append(_before(known, r)._replace(reading=r))
                continue
            tried += 1
            seen = follow(family, a, r, tol, tol)
            if seen.distance > tol:
                passed = min(passed, seen.distance)
                continue
            old = _before(known, r)
            passing.append(old._replace(
                reading=r, errors=_errors(family, r), distances={**old.distances, a.exam.name: seen.distance},
                log_likelihood=old.log_likelihood + seen.log_likelihood,
            ))  # fmt: skip
        if not passing:
            return [], tried, passed
        enumerated = [f.log_likelihood for f in passing if a.exam.name in f.distances]
        best = max(enumerated, default=0.0)
        alive = [
            f for f in passing if a.exam.name not in f.distances or f.log_likelihood >= best + math.log(COINCIDENCE)
        ]
    return alive, tried, passed


def _at_once(family: Family, a: Asked, tol: float, budget: int, kept: Kept) -> tuple[list[Found], int, float]:
    """Return what `within` does of a first exam whose readings are fitted at once; fits are kept."""
    found = []
    for wrong in range(budget + 1):
        if wrong not in kept:
            kept[wrong] = [fit(family, a.exam, models[0], tol, wrong, AT_ONCE) for models in a.runs]
        per_run = [{tuple(r.items()): (r, d) for r, d in f.near} for f in kept[wrong]]
        same = [pair for key, pair in per_run[0].items() if all(key in other for other in per_run)]
        found += [Found(r, wrong, {a.exam.name: d}, {}) for r, d in same]
    fits = [f for wrong in range(budget + 1) for f in kept[wrong]]
    return found, sum(f.tried for f in fits), min(f.passed_over for f in fits)


def _before(known: Mapping[Any, Found], r: Reading) -> Found:
    """Return what the reading that r was made from has shown so far."""
    items = tuple(sorted(r.items()))
    return next((f for key, f in known.items() if set(key) <= set(items)), Found({}, 0, {}, {}))


def _errors(family: Family, r: Reading) -> int:
    return sum(c.value(r[c.name]).kind == "error" for c in family.conventions if c.name in r)


def _close_by(family: Family, a: Asked, tol: float) -> list[tuple[Reading, float]]:
    """Return readings with at most one error whose first models are not much farther than the nearest of all."""
    model = a.runs[0][0]
    fits = [fit(family, a.exam, model, tol, wrong, AT_ONCE) for wrong in (0, 1)]
    near = [pair for found in fits for pair in found.near]
    far = 1.5 * min(found.passed_over for found in fits)
    if near or not math.isfinite(far):
        return near
    return [pair for wrong in (0, 1) for pair in fit(family, a.exam, model, far, wrong, AT_ONCE).near]


def nearest(family: Family, asked: Sequence[Asked], tol: float) -> list[Found]:
    """Return the readings with at most one error that come nearest to what matches no reading.

    In a first round that draws nothing these are the nearest of all; beyond the first exam that none passes, only the
    best few are followed on.
    """
    alive, most = [Found({}, 0, {}, {})], NEAREST
    for i, a in enumerate(asked):
        passing: list[Found] = []
        if i == 0 and separable(family, a.exam):
            near = _close_by(family, a, tol)
            near.sort(key=lambda pair: (max(pair[1], tol), errors(family.conventions, pair[0])))
            pairs = [(alive[0], r) for r, _ in near[:most]]
        else:
            share = max(1, ROUGHLY // len(alive))
            pairs = [
                (f, r)
                for f in alive
                for r in itertools.islice(expand(family.conventions, a.exam, f.reading, 1 - f.errors), share)
            ]
        for f, r in pairs:
            if count_outcomes(a.exam, r) > ORDERS:
                continue
            seen = follow(family, a, r, tol)
            passing.append(Found(
                r, _errors(family, r), {**f.distances, a.exam.name: seen.distance},
                {**f.rounds, a.exam.name: seen.round},
            ))  # fmt: skip
        alive = sorted(passing or alive, key=lambda f: (max(f.distance, tol), f.errors))[:most]
        most = NEAREST if alive[0].distance <= tol else FEW
        alive = alive[:most]
    return alive


class Beginning(NamedTuple):
    """In how many first rounds of all exams a reading without errors matches, and that reading in all rounds."""

    rounds: int
    found: Found


def begun(family: Family, asked: Sequence[Asked], tol: float) -> Beginning | None:
    """Return how many rounds some reading without errors matches; None where it is not one.

    Of several readings it is the one nearest to the paper, and of these the one whose later rounds are nearest.
    """
    rounds, alive = 0, list[Found]()
    for k in range(1, max(a.exam.rounds for a in asked) + 1):
        first = [Asked(a.exam._replace(rounds=min(k, a.exam.rounds)), tuple(run[:k] for run in a.runs)) for a in asked]
        found = search(family, first, tol, (0,)).matching
        if not found:
            break
        rounds, alive = k, found
    readings = [f.reading for f in alive]
    for a in asked:  # what later rounds show
        more = itertools.chain.from_iterable(expand(family.conventions, a.exam, r, 0) for r in readings)
        readings = sorted(itertools.islice(more, ROUGHLY), key=lambda r: departs(family.conventions, r))[:NEAREST]
    whole = [_over(family, asked, r, tol) for r in readings]
    if not whole:
        return None
    return Beginning(rounds, min(whole, key=lambda f: (departs(family.conventions, f.reading), f.distance)))


def _over(family: Family, asked: Sequence[Asked], r: Reading, tol: float) -> Found:
    """Return a reading with its distances in all exams that can be enumerated."""
    seen = {a.exam.name: follow(family, a, r, tol) for a in asked if count_outcomes(a.exam, r) <= ORDERS}
    distances, rounds = {n: s.distance for n, s in seen.items()}, {n: s.round for n, s in seen.items()}
    return Found(r, _errors(family, r), distances, rounds)
