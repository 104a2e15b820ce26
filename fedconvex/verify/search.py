"""Adversarial instances: the tiny problems on which a bound, or one of its terms, is closest to what is measured.

Random instances of a theorem's `Space`, each improved by random changes of one number at a time. Only exact values
count (moments, runs without randomness), so that noise fools nobody. A restart is a function of the seed and of its
number, and its candidates are rounded to three digits: what is found is found again, and is as short as it looks.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex import _files
from fedconvex._archives import json_in
from fedconvex._check import Rng, bad, function, takes_rng, whole
from fedconvex._files import check_regular_file
from fedconvex._processes import end_with
from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.tiny import Real, Sharp, Space, Tiny, Whole, tiny_of
from fedconvex.theory.bound import Bound
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.monte_carlo import slack_of
from fedconvex.verify.power import term_share, whole_share
from fedconvex.verify.verdicts import find_theorem

ROUND = 200  # candidates of a restart
FIRST = 100  # of them random, or half of what there is: the same for the bound and for all its terms
LONG = 1000  # a budget from which on half of it goes into the best three restarts


class NoSuchTerm(ValueError):
    """No candidate of a search has the term that was to be isolated."""


class Tightest(NamedTuple):
    """The sharpest instance that a search found.

    Parameters
    ----------
    share : float
        Measured over bound; or, of an isolated term, the share of it that the other terms do not cover (negative where
        they cover all: the term could be dropped).
    tiny : Tiny or None
        None where the theorem applied to no candidate.
    restart : int
        The restart that found it; -1 to -3: the best restarts, improved.
    evaluated : int
        Candidates in all.

    Examples
    --------
    What `tightest` returns; a share of 0.9 leaves the bound a tenth of room at most.

    >>> from fedconvex.verify import Tightest
    >>> found = Tightest(share=0.9, tiny=None, restart=-1, evaluated=4000)
    >>> round(1.0 / found.share, 2)  # a bound that is smaller by this factor would be violated
    1.11
    """

    share: float
    tiny: Tiny | None
    restart: int
    evaluated: int


@takes_rng
def tightest(
    theorem: Theorem | str, budget: int = 4000, *, isolate: str | None = None, seed: int = 0, processes: int = 1,
    path: str | os.PathLike[str] | None = None, progress: Callable[[float, str], None] | None = None, rng: Rng = None,
) -> Tightest:  # fmt: skip
    """Return the tiny problem with the largest share of a bound, or of one of its terms, that is attained: a search.

    Parameters
    ----------
    theorem : Theorem or str
        With a `space`.
    budget : int
        Candidates; restarts of 200 are made until it is spent. From 1,000 on, one half improves the best three further,
        by several changes at once and by trading local steps for step size.
    isolate : str, optional
        A term of the bound: the search is for instances on which the other terms cover least of what is measured.
    seed : int
    processes : int
        Restarts that are made at once.
    path : path, optional
        A JSON file that restarts are written to as they end; a search that was stopped goes on from it.
    progress : callable, optional
        Takes the share done and the best so far in words.

    Raises
    ------
    ValueError
        If the theorem has no space to search in, no candidate has the term, or the file is of another search.

    Examples
    --------
    >>> from fedconvex.verify import tightest
    >>> found = tightest("fedavg-convex", 12, isolate="heterogeneity drift")
    >>> found.evaluated, found.tiny is not None
    (12, True)
    """
    theorem, budget = find_theorem(theorem), whole("tightest: budget", budget, low=1)
    seed, processes = whole("tightest: seed", seed), whole("tightest: processes", processes, low=1)
    function("tightest: progress", print if progress is None else progress)
    if theorem.space is None:
        raise bad("tightest: theorem", "declare a space to search in", theorem.name, "give Theorem(space=Space(...))")
    heading = {"theorem": theorem.name, "isolate": isolate, "seed": seed}
    done = _checked_rows(theorem, isolate, path, _read(path, heading))
    rows: dict[int, dict[str, Any]] = {}
    for plan in (_first, _further):
        for row in _rows((theorem, isolate, seed), plan(rows, budget), done, processes):
            done[row["restart"]] = rows[row["restart"]] = row
            _write(path, heading, done)
            _say(progress, rows, budget)
    best = _best(rows)
    if best["tiny"] is None and isolate is not None:
        raise NoSuchTerm(bad("tightest: isolate", "be a term of the bound that some candidate has", isolate))
    evaluated = sum(r["evaluated"] for r in rows.values())
    return Tightest(best["share"], best["tiny"] and tiny_of(best["tiny"]), best["restart"], evaluated)


def _best(rows: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    return max((rows[i] for i in sorted(rows, key=abs)), key=lambda r: r["share"])


def _say(progress: Callable[[float, str], None] | None, rows: Mapping[int, dict[str, Any]], budget: int) -> None:
    if progress is not None:
        progress(sum(r["evaluated"] for r in rows.values()) / budget, f"best share {_best(rows)['share']:.4g}")


def found_by(theorem: Theorem | str, budget: int, *, isolate: str | None = None, seed: int = 0) -> Sharp | None:
    """Return what a search found in the form in which theorems keep it, or None."""
    best = tightest(theorem, budget, isolate=isolate, seed=seed)
    return None if best.tiny is None else Sharp(isolate or "", round(best.share, 4), seed, best.tiny)


# ---------------------------------------------------------------- restarts


def _rows(search: tuple[Any, ...], jobs: list[_Job], done: dict[int, Any], processes: int) -> Iterator[dict[str, Any]]:
    """Yield what is there, and then what is found anew."""
    there = [job for job in jobs if job.made(done.get(job.number, {}))]
    yield from (done[job.number] for job in there)
    yield from _restarts([(*search, job) for job in jobs if job not in there], processes)


def _restarts(todo: list[tuple[Any, ...]], processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1 or len(todo) < 2:
        yield from map(_restart, todo)
        return
    if any(THEOREMS.get(theorem.name) is not theorem for theorem, *_ in todo):
        must = "be 1 for a theorem that is none of the package's: other processes do not know it"
        raise bad("tightest: processes", must, processes)
    todo = [(theorem.name, *rest) for theorem, *rest in todo]
    with multiprocessing.get_context("spawn").Pool(processes, end_with, (os.getpid(),)) as pool:
        yield from pool.imap_unordered(_restart, todo)


class _Job(NamedTuple):
    """A restart: its number, its candidates, and the candidate to begin with, of which restart."""

    number: int
    budget: int
    origin: int | None = None
    begin: dict[str, Any] | None = None

    def made(self, row: dict[str, Any]) -> bool:
        """Whether a row of a file is of this restart."""
        return row.get("evaluated") == self.budget and row.get("origin") == self.origin


def _first(rows: dict[int, dict[str, Any]], budget: int) -> list[_Job]:
    """Restarts of 200 candidates each; of a long search half of all."""
    total = budget if budget < LONG else budget // 2 // ROUND * ROUND
    return [_Job(i // ROUND, min(ROUND, total - i)) for i in range(0, total, ROUND)]


def _further(rows: dict[int, dict[str, Any]], budget: int) -> list[_Job]:
    """Improve the best three with what is left of the budget."""
    budget -= sum(r["evaluated"] for r in rows.values())
    found = sorted((r for r in rows.values() if r["tiny"] is not None), key=lambda r: (-r["share"], r["restart"]))[:3]
    share = [len(range(i, budget, len(found))) for i in range(len(found))]
    return [_Job(-i, n, r["restart"], r["tiny"]) for i, (r, n) in enumerate(zip(found, share, strict=True), 1) if n]


@threadpool_limits.wrap(limits=1, user_api="blas")  # candidates are tiny: threads would wait for each other
def _restart(work: tuple[Any, ...]) -> dict[str, Any]:
    """Improve the best of some random candidates, or one that was found; a pure function of its argument."""
    name, isolate, seed, job = work
    theorem = find_theorem(name)
    rng, space = (
        np.random.default_rng([seed, job.number] if job.begin is None else [seed, -job.number, 1]),
        theorem.space,
    )
    assert space is not None
    long = job.begin is not None
    best = tiny_of(job.begin) if job.begin is not None else None
    share = -math.inf if best is None else share_of(theorem, best, isolate)
    step, failures = 0.5, 0
    for i in range(job.budget):
        fresh = not long and (i < min(FIRST, -(-job.budget // 2)) or best is None)
        tiny = drawn(rng, space) if fresh or best is None else _next(rng, space, best, step, long)
        value = share_of(theorem, tiny, isolate)
        if value > share:
            best, share, failures, step = tiny, value, 0, min(2.0 * step, 1.0)
        elif not fresh:
            failures += 1
            step = max(0.8 * step, 0.01) if failures % 4 == 0 else step
            step = 0.5 if long and failures % 60 == 0 else step
    out = {"restart": job.number, "share": share, "tiny": best and best._asdict(), "evaluated": job.budget}
    return out | ({} if job.origin is None else {"origin": job.origin})


def _next(rng: np.random.Generator, space: Space, tiny: Tiny, step: float, long: bool) -> Tiny:
    """Change a candidate at one place; in a long search at several sometimes, or steps for their size."""
    if not long:
        return changed(rng, space, tiny, step)
    if rng.random() < 0.3 and {"share", "local_steps"} <= {*space.knobs}:
        return traded(rng, space, tiny)
    for _ in range(min(int(rng.geometric(0.6)), 4)):
        tiny = changed(rng, space, tiny, step)
    return tiny


def share_of(theorem: Theorem, tiny: Tiny, isolate: str | None = None) -> float:
    """Return the share of the bound, or of a term, that is attained exactly; minus infinity where nothing is."""
    key = (id(theorem), json.dumps(tiny._asdict()))
    if key not in _SEEN:
        if len(_SEEN) > 10_000:
            _SEEN.clear()
        _SEEN[key] = theorem, _least(theorem, tiny)
    found = _SEEN[key][1]
    if found is None:
        return -math.inf
    bound, least = found
    if isolate is not None and str(isolate) not in bound.terms:  # not in this setting: sampling with full participation
        return -math.inf
    if isolate is None and bound.value == 0.0 < least:  # nothing was allowed
        return sys.float_info.max
    share = whole_share(bound, least) if isolate is None else term_share(bound, least, isolate)
    return share if math.isfinite(share) else -math.inf


# random candidates are the same for the bound and its terms; a theorem that is kept shares its number with no other
_SEEN: dict[Hashable, tuple[Theorem, tuple[Bound, float] | None]] = {}


def _least(theorem: Theorem, tiny: Tiny) -> tuple[Bound, float] | None:
    """Return the bound on a candidate, and the number below which it would be violated."""
    try:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # candidates may leave double precision
            check = theorem.space.check(tiny)
            s = setting_of(theorem, check, problem_of(theorem, check.instance))
            bound = theorem.at(s)
            found = theorem.expectation(s, [s.rounds])
    except (ArithmeticError, ValueError):  # the theorem does not apply, or the problem cannot be
        return None
    return None if found is None else (bound, float(found.values[0] - found.rounding[0]) - slack_of(bound))


# ---------------------------------------------------------------- candidates


def rounded(x: Any) -> Any:
    """Round to three digits."""
    return float(f"{float(x):.3g}")


def drawn(rng: np.random.Generator, space: Space) -> Tiny:
    """Draw a candidate."""
    K, d, n = int(rng.integers(1, 5)), int(rng.choice([1, 1, 1, 2, 2, 3])), int(rng.choice([1, 1, 2, 2, 3]))
    design, loss = str(rng.choice(space.designs)), str(rng.choice(space.losses))
    X = rng.normal(size=(K, n, d)) * 10.0 ** rng.choice([0.0, 0.0, -1.0], size=(K, n, 1))
    if design == "equal":
        X[:] = X[0]
    if design == "alike":
        X[:] = X[0, 0]
    up = rng.random((K, n)) < 0.5
    if design == "classes":
        X[:] = np.where(up[:, :, None], X[0, 0], X[-1, -1])
    y = rng.normal(size=(K, n)) * 10.0 ** rng.choice([0.0, -1.0, 1.0])
    y = np.round(y) if rng.random() < 0.3 else y
    y = np.where(up, 1.0, -1.0) if loss != "squared" else y
    linear = design == "shared" and loss != "squared"
    if linear:
        X, y = _shared(rng, d)
        K, n = X.shape[:2]
    offset = np.zeros(d) if rng.random() < 0.5 else rng.normal(size=d) * 10.0 ** rng.uniform(-2.0, 1.0)
    ridged = 0.3 if loss == "squared" else 0.1 if linear else 0.7
    weights = None
    if space.weighted and K > 1 and rng.random() < 0.5:
        weights = tuple(map(rounded, 10.0 ** rng.uniform(-1.0, 0.0, size=K)))
    return Tiny(
        tuple(tuple(map(rounded, row)) for row in X.reshape(K * n, d)),
        tuple(map(rounded, y.ravel())),
        (n,) * K,
        tuple(map(rounded, offset)),
        round(math.exp(rng.uniform(math.log(space.rounds[0]), math.log(space.rounds[1])))),
        {name: _knob(rng, limits) for name, limits in space.knobs.items()},
        rounded(10.0 ** rng.uniform(-2.0, 0.5)) if rng.random() < ridged else 0.0,
        weights,
        loss,
    )


def _shared(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a row for all clients and a short one of each client's own, of either sign in turn, and labels."""
    K = int(rng.integers(2, 5))
    X, y = np.repeat(rng.normal(size=(1, 1, d)), 2 * K, axis=0).reshape(K, 2, d), np.ones((K, 2))
    lengths = 10.0 ** rng.uniform(-2.5, -0.5) * (1.0 + 0.2 * rng.random(K))
    X[:, 1] *= (lengths * np.where(np.arange(K) % 2, 1.0, -1.0))[:, None]
    return X, y


def _knob(rng: np.random.Generator, limits: Whole | Real) -> float:
    if isinstance(limits, Whole):
        low, high = max(limits.low, 0.5), limits.high + 1
        return max(limits.low, int(low * (high / low) ** rng.random()))  # small ones as often as large ones
    edge = rng.random()  # limits are sharp more often than what lies between
    value = limits.high if edge < 0.3 else limits.low * (limits.high / limits.low) ** rng.random()
    if edge > 0.8 and limits.beyond > 1.0:
        value = limits.high * limits.beyond ** ((edge - 0.8) / 0.2)
    return rounded(value)


def changed(rng: np.random.Generator, space: Space, tiny: Tiny, step: float) -> Tiny:
    """Change something: features, labels, the start, rounds, l2, weights or a number of the method."""
    numbers = ["knobs", "knobs"] if space.knobs else []
    what = str(rng.choice(["rows", "labels", "labels", "offset", "rounds", "l2", "weights", *numbers]))
    if what == "rows":
        return tiny._replace(rows=_moved_rows(rng, tiny, step))
    if what == "labels":
        y = np.array(tiny.labels)
        i = int(rng.integers(y.size))
        y[i] = -y[i] if tiny.loss != "squared" or rng.random() < 0.1 else y[i] + step * rng.normal() * (1 + abs(y[i]))
        return tiny._replace(labels=tuple(map(rounded, y)))
    if what == "offset":
        old = np.array(tiny.offset)
        new = old * (1.0 + step * rng.normal()) if rng.random() < 0.5 else old + step * rng.normal(size=old.size)
        return tiny._replace(offset=tuple(map(rounded, 0.0 * new if rng.random() < 0.1 else new)))
    if what == "rounds":
        low, high = space.rounds
        return tiny._replace(
            rounds=int(np.clip(round(tiny.rounds * 2.0 ** rng.normal()) + rng.choice([-1, 0, 1]), low, high))
        )
    if what == "l2":
        new_l2 = 0.0 if rng.random() < 0.3 else rounded((tiny.l2 or 0.1) * 10.0 ** (step * rng.normal()))
        return tiny._replace(l2=new_l2)
    if what == "weights" and tiny.weights is not None:
        p = np.array(tiny.weights)
        p[rng.integers(p.size)] *= 10.0 ** (step * rng.normal())
        return tiny._replace(weights=tuple(map(rounded, p)))
    if not space.knobs:
        return tiny
    name = str(rng.choice(list(space.knobs)))
    return tiny._replace(knobs={**tiny.knobs, name: _moved_knob(rng, space.knobs[name], tiny.knobs[name], step)})


def traded(rng: np.random.Generator, space: Space, tiny: Tiny) -> Tiny:
    """Trade local steps for step size: what clients drift depends on the product of both first of all."""
    share, local = space.knobs["share"], space.knobs["local_steps"]
    tau = int(np.clip(round(tiny.knobs["local_steps"] * rng.choice([0.5, 0.7, 1.4, 2.0])), local.low, local.high))
    eta = np.clip(tiny.knobs["share"] * tiny.knobs["local_steps"] / tau, share.low, share.high)
    return tiny._replace(knobs={**tiny.knobs, "local_steps": tau, "share": rounded(eta)})


def _moved_rows(rng: np.random.Generator, tiny: Tiny, step: float) -> tuple[tuple[float, ...], ...]:
    """Move one feature of one row, and of all rows that are equal to it: designs stay what they are."""
    X = np.array(tiny.rows)
    i, j = int(rng.integers(X.shape[0])), int(rng.integers(X.shape[1]))
    same = (X == X[i]).all(axis=1) if rng.random() < 0.9 else np.arange(len(X)) == i
    size = abs(X[i, j]) + (0.3 if rng.random() < 0.5 else 0.0)  # a short row stays short half of the time
    X[same, j] = 0.0 if rng.random() < 0.05 else X[i, j] + step * rng.normal() * size
    return tuple(tuple(map(rounded, row)) for row in X)


def _moved_knob(rng: np.random.Generator, limits: Whole | Real, value: float, step: float) -> float:
    if isinstance(limits, Whole):
        new = value + rng.choice([-2, -1, 1, 2]) if rng.random() < 0.5 else value * rng.choice([0.5, 0.7, 1.5, 2.0])
        return int(np.clip(round(new), limits.low, limits.high))
    if rng.random() < 0.2:
        return rounded(limits.high)
    return rounded(np.clip(value * 10.0 ** (step * rng.normal()), limits.low, limits.high))


# ---------------------------------------------------------------- files


def _read(path: str | os.PathLike[str] | None, heading: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the restarts that an earlier search wrote."""
    if path is None or not check_regular_file("tightest: path", path).exists():
        return {}
    try:
        data = json_in(Path(path))
    except ValueError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("restarts"), list):
        raise bad("tightest: path", "hold a search, or nothing", f"the file {path}", "name another file")
    if {k: data.get(k) for k in heading} != heading:
        raise bad("tightest: path", f"hold the search {heading}", f"{ {k: data.get(k) for k in heading} }")
    try:
        rows = [row | {"share": -math.inf if row["share"] is None else float(row["share"])} for row in data["restarts"]]
        return {row["restart"]: row for row in rows if {*row} >= {"tiny", "evaluated"}}
    except (KeyError, TypeError, ValueError) as error:
        raise bad("tightest: path", "hold restarts of a search", f"{error!r} in {path}", "name another file") from None


def _checked_rows(theorem: Theorem, isolate: str | None, path: Any, done: dict[int, Any]) -> dict[int, Any]:
    """Return the restarts, if what a file says was found is found again: the theorem may have been edited since."""
    for row in done.values():
        if row["tiny"] is None:
            continue
        try:
            share = share_of(theorem, tiny_of(row["tiny"]), isolate)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            share = math.nan
        if not math.isclose(share, row["share"], rel_tol=1e-6, abs_tol=1e-9):
            must = f"hold what a search against {theorem.name} as it is now finds"
            raise bad("tightest: path", must, f"the share {row['share']:g}, now {share:g}", f"delete {path}")
    return done


def _write(path: str | os.PathLike[str] | None, heading: dict[str, Any], done: dict[int, dict[str, Any]]) -> None:
    if path is None:
        return
    rows = [row | {"share": row["share"] if math.isfinite(row["share"]) else None} for _, row in sorted(done.items())]
    _files.write_file(Path(path), json.dumps(heading | {"restarts": rows}, indent=1).encode())
