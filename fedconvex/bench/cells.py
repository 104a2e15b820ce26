"""Cells of a benchmark: one solver, one problem, one seed; judged round by round, then timed again."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fedconvex.bench import honesty
from fedconvex.bench.limits import OutOfTime, at_most
from fedconvex.bench.referee import Referee
from fedconvex.bench.running import Play, Step, fingerprint, play, warm
from fedconvex.bench.solvers import Solver, draws_nothing

__all__ = ["FACTORS", "TUNING_ROUNDS", "Rules", "out_of_time", "run_cell"]

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # times the step size of theory, that a tuned solver tries
TUNING_ROUNDS = 30  # each
_CURVE = 80  # points that are kept of a curve
_NUMBERS = 1 << 20  # in models that are judged together
_ENOUGH, _MOST = 0.1, 25  # seconds of repetitions, and how many of them
_ASIDE = 0.05  # CPU seconds of other threads, from which on they are noted


class Rules(NamedTuple):
    """What holds for all cells."""

    targets: tuple[float, ...]  # certified gaps, decreasing
    rounds: int  # at most
    repeats: int = 3  # runs, at least: the seconds of a round are the least of them
    limit: float = 300.0  # seconds for a cell, whatever they are spent on


class _Judged(NamedTuple):
    """A run and what the referee says about it: arrays over rounds."""

    steps: list[Step]  # without models
    values: np.ndarray
    gaps: np.ndarray
    prints: list[str]
    first: np.ndarray  # models
    last: np.ndarray


def run_cell(referee: Referee, solver: Solver, seed: int, rules: Rules, alone: bool = False) -> dict[str, Any]:
    """Return what was found, which is the same in every run, and what was timed, which is not.

    Parameters
    ----------
    referee : Referee
    solver : Solver
    seed : int
    rules : Rules
    alone : bool
        Whether the process is one of a pool, which may be ended where the time limit is not heard.

    Returns
    -------
    dict
        found: status, words, cost of every target, curve, offences; timed: seconds of the same.
    """
    try:
        with at_most(rules.limit, alone), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run_cell(referee, solver, seed, rules)
    except OutOfTime:
        return out_of_time(rules)


def out_of_time(rules: Rules) -> dict[str, Any]:
    """Return what is kept of a cell that was stopped: it met nothing."""
    return _unfit("time limit", f"stopped after {rules.limit:g} s") | {"limit": rules.limit}


def _run_cell(referee: Referee, solver: Solver, seed: int, rules: Rules) -> dict[str, Any]:
    try:
        ready = solver.ready(referee.problem, referee.case.loss)
    except (ValueError, TypeError) as error:
        return _unfit("not for this problem", str(error))
    except (Exception, SystemExit) as error:
        return _unfit("failed", f"{type(error).__name__}: {error}")
    try:
        return _carried_out(referee, solver, ready, seed, rules)
    except (Exception, SystemExit) as error:  # a cell that fails is recorded, the others go on
        return _unfit("failed", f"{type(error).__name__}: {error}")


def _unfit(status: str, why: str) -> dict[str, Any]:
    found = {"status": status, "words": " ".join(why.split())[:300], "costs": [], "curve": {}, "offences": []}
    return {
        "found": {**found, "rounds": 0, "gap": None, "worst": None},
        "timed": {"costs": [], "curve": [], "notes": []},
    }


def _carried_out(referee: Referee, solver: Solver, ready: Any, seed: int, rules: Rules) -> dict[str, Any]:
    shape = tuple(referee.problem.model_shape)
    it = Play(referee.case, honesty.copied(referee.problem.federation), solver, ready, seed, shape, True)
    try:
        warm(it)
    except (ValueError, TypeError) as error:
        if solver.own:
            raise
        return _unfit("not for this problem", str(error))  # methods of the package say so when they start
    paid = (0.0, 0.0, 0.0, 0.0)
    if solver.tuned and solver.tunable():
        it, paid = _tuned(referee, it)
    before = _cpu()
    run = _judged(referee, it, rules)
    spent = [after - start for after, start in zip(_cpu(), before, strict=True)]
    wrong = _wrong(referee, it, run, rules)
    seconds = [[s.seconds for s in run.steps]]
    seconds += _repeated(it, run, rules, wrong)
    least = _least(seconds, len(run.steps), solver.kind == "pooled")
    costs, at = [], _hits(run.gaps, rules.targets)
    for target, i in zip(rules.targets, at, strict=True):
        mine = None if i is None else _cost(run.steps[i], paid)
        costs.append({"target": target, **(mine or {"rounds": None, "floats": None, "passes": None})})
    keep = _kept(len(run.steps), at)
    curve = {n: [_plain(_cost(run.steps[i], paid)[n]) for i in keep] for n in ("rounds", "floats", "passes")}
    status = "reached" if at[-1] is not None else "diverged" if not np.isfinite(run.gaps[-1]) else "round limit"
    found = {
        "status": status,
        "words": it.ready.words,
        "rounds": run.steps[-1].round,
        "gap": _plain(run.gaps[-1]),
        "worst": _plain(referee.worst_client(run.last)) if np.isfinite(run.last).all() else None,
        "costs": costs,
        "curve": curve | {"gap": [_plain(run.gaps[i]) for i in keep]},
        "offences": [list(o) for o in wrong],
    }
    took = [None if i is None else float(least[i] + paid[3]) for i in at]
    timed = {"costs": took, "curve": [float(least[i] + paid[3]) for i in keep], "notes": _notes(*spent)}
    return {"found": found, "timed": timed}


def _cpu() -> tuple[float, float]:
    """Return the CPU seconds so far of this thread, and of all others of this process."""
    own = time.thread_time()
    return own, time.process_time() - own


def _least(seconds: list[list[float]], n: int, pooled: bool) -> np.ndarray:
    """Return the seconds until each of n rounds: of every round the least of all runs, which a disturbance misses.

    The steps of a pooled solver are runs of their own, each from the start.
    """
    table = np.array([row[:n] for row in seconds if len(row) >= n])
    return table.min(axis=0) if pooled else np.cumsum(np.diff(table, axis=1, prepend=0.0).min(axis=0))


def _notes(own: float, aside: float) -> list[str]:
    """Return what a clock finds odd, of CPU seconds of this thread and of others: no offence, and another each time."""
    if aside <= max(_ASIDE, 0.1 * own):
        return []
    return [f"threads of its own worked for {aside:.2g} s of CPU time, which rounds may not wait for"]


def _cost(step: Step, paid: tuple[float, ...]) -> dict[str, Any]:
    values = (step.round + paid[0], step.floats + paid[1], step.passes + paid[2])
    return {n: _plain(v) for n, v in zip(("rounds", "floats", "passes"), values, strict=True)}


def _plain(x: Any) -> float | int | None:
    """Return a number that JSON knows: None for what is not finite."""
    if x is None or not math.isfinite(x):
        return None
    return int(x) if float(x).is_integer() else float(x)


def _judged(referee: Referee, it: Play, rules: Rules) -> _Judged:
    """Run until the smallest target is met, the model is lost, or the rounds are used up."""
    steps: list[Step] = []
    values, gaps, prints = [], [], []
    most = max(1, min(256, _NUMBERS // max(1, int(np.prod(it.shape)))))
    first = last = np.zeros(it.shape)
    for some in _batches(play(it, rules.rounds), most):
        value, gap = referee.gaps(np.stack([s.w for s in some]))
        met = np.flatnonzero((gap <= rules.targets[-1]) | ~np.isfinite(gap))
        end = int(met[0]) + 1 if met.size else len(some)
        first, last = first if steps else some[0].w, some[end - 1].w
        values.append(value[:end])
        gaps.append(gap[:end])
        prints += [fingerprint(s.w) for s in some[:end]]
        steps += [s._replace(w=s.w[..., :0]) for s in some[:end]]
        if met.size:
            break
    return _Judged(steps, np.concatenate(values), np.concatenate(gaps), prints, first, last)


def _batches(steps: Iterable[Step], most: int) -> Iterator[list[Step]]:
    """Yield the steps in batches of 1, 2, 4, ..., at most so many: they are judged together."""
    waiting, n = [], 0
    for step in steps:
        waiting.append(step)
        if len(waiting) >= min(most, 1 + n):
            yield waiting
            n, waiting = n + len(waiting), []
    if waiting:
        yield waiting


def _hits(gaps: np.ndarray, targets: Sequence[float]) -> list[int | None]:
    out: list[int | None] = []
    for target in targets:
        met = np.flatnonzero(gaps <= target)
        out.append(int(met[0]) if met.size else None)
    return out


def _kept(n: int, hits: Sequence[int | None]) -> list[int]:
    """Return the places of a curve that are kept: dense at the start, and where targets are met."""
    some = {int(i) for i in np.unique(np.geomspace(1, n, min(n, _CURVE)).astype(int) - 1)}
    return sorted(some | {0, n - 1} | {i for i in hits if i is not None})


# ---------------------------------------------------------------- tuning, repetition, honesty


def _tuned(referee: Referee, it: Play) -> tuple[Play, tuple[float, float, float, float]]:
    """Return the solver with the best of some step sizes, and what trying all of them cost."""
    best, value, paid = it, math.inf, np.zeros(4)
    for factor in FACTORS:
        ready = it.solver.ready(referee.problem, referee.case.loss, factor)
        now = it._replace(ready=ready._replace(words=f"{factor:g} times {ready.words}, tuned"))
        end, failed = _tried(now)
        if end is None:
            continue
        paid += [end.round, end.floats, end.passes, end.seconds]
        got = math.inf if failed else float(referee.gaps(end.w[None])[0][0])
        if got < value:
            best, value = now, got
    return best, tuple(paid.tolist())  # type: ignore[return-value]


def _tried(it: Play) -> tuple[Step | None, bool]:
    """Return the last step of a trial, and whether the solver failed there: a step size may be too long."""
    end = None
    try:
        for step in play(it, TUNING_ROUNDS):
            end = step
    except (Exception, SystemExit):
        return end, True
    return end, False


def _repeated(it: Play, run: _Judged, rules: Rules, wrong: list[tuple[str, str]]) -> list[list[float]]:
    """Run again, without judging, for seconds that are less a matter of chance; note models that are others."""
    n, spent, say = len(run.steps), 0.0, getattr(it.ready.target, "reproducible", True)
    out: list[list[float]] = []
    while len(out) < rules.repeats - 1 or (spent < _ENOUGH and len(out) < _MOST):
        mine, other = [], None
        for i, step in enumerate(play(it._replace(claims=False), rules.rounds)):
            mine.append(step.seconds)
            if other is None and i < n and fingerprint(step.w) != run.prints[i]:
                other = step.round
            if i + 1 == n:
                break
        out.append(mine)
        spent += mine[-1]
        if other is not None and say:
            wrong.append((honesty.UNSTEADY, f"with one seed, two runs differ from round {other} on"))
            break
        if spent > 20.0 * _ENOUGH and len(out) >= 1:
            break
    return out


def _wrong(referee: Referee, it: Play, run: _Judged, rules: Rules) -> list[tuple[str, str]]:
    """Return what the solver did that it may not."""
    found: list[tuple[str, str]] = []
    for step, value in zip(run.steps, run.values, strict=True):
        if step.claim is not None and np.isfinite(value) and (short := referee.understated(value, step.claim)):
            least = value - float(referee._solution.value)
            how = f"after {step.round} rounds it claims {step.claim:.3g}; F(w) - F* is at least {least:.3g}"
            found.append((honesty.LIES, how if short == short else f"after {step.round} rounds it claims NaN"))
            break
    target = it.ready.target
    if it.solver.kind == "class" and run.first.any():
        found.append((honesty.NOT_ZERO, f"the largest entry of its first model is {np.abs(run.first).max():.3g}"))
    if it.solver.kind == "class":
        found += honesty.offences(target, it.case, it.federation, it.seed, it.solver.own)
    if draws_nothing(it.solver, target, referee.problem) and it.solver.kind != "pooled":
        again = islice(play(it._replace(seed=it.seed + 1, claims=False), rules.rounds), honesty.COUNTS + 1)
        other = [fingerprint(s.w) for s in again][: len(run.prints)]
        if other != run.prints[: len(other)]:
            found.append((honesty.UNSTEADY, "it says that it draws nothing, and its models differ with the seed"))
    return found
