"""Cells of a benchmark: one solver, one problem, one seed; judged round by round, then timed again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fedconvex.bench import offences as honesty
from fedconvex.bench import tuning
from fedconvex.bench.judging import Referee
from fedconvex.bench.own_process import Failed
from fedconvex.bench.players import Facts, Inside, Outside, player
from fedconvex.bench.running import Step, fingerprint, plain
from fedconvex.bench.solvers import Solver
from fedconvex.bench.time_limit import OutOfTime, at_most

_CURVE = 80  # points that are kept of a curve
_NUMBERS = 1 << 20  # in models that are judged together
_FIRST_LOOK = 256  # two more than the rounds after which a run may be given up, first
_PACE = 4.0  # how many times faster than in the later half of its rounds a run is supposed to go on at best
_ENOUGH, _MOST = 0.1, 25  # seconds of repetitions, and how many of them
_ASIDE = 0.05  # CPU seconds of other threads, from which on they are noted


class Rules(NamedTuple):
    """What holds for all cells."""

    targets: tuple[float, ...]  # certified gaps, decreasing
    rounds: int  # at most
    repeats: int = 3  # runs, at least: the seconds of a round are the least of them
    limit: float = 300.0  # seconds for a cell, whatever they are spent on
    trial: int = 8  # rounds of the first trial of every step size, where it is tuned


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
        with at_most(rules.limit, alone, busy=not solver.own and not alone), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run_cell(referee, solver, seed, rules)
    except OutOfTime:
        return out_of_time(rules)


def out_of_time(rules: Rules) -> dict[str, Any]:
    """Return what is kept of a cell that was stopped: it met nothing."""
    return _unfit("time limit", f"stopped after {rules.limit:g} s") | {"limit": rules.limit}


def _run_cell(referee: Referee, solver: Solver, seed: int, rules: Rules) -> dict[str, Any]:
    try:
        with player(referee.case, referee.problem, solver, rules.limit) as it:
            try:
                facts = it.ready()
            except (ValueError, TypeError) as error:
                return _unfit("not for this problem", str(error))
            return _carried_out(referee, solver, it, facts, seed, rules)
    except (Exception, SystemExit) as error:  # a cell that fails is recorded, the others go on
        return _unfit("failed", str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}")


def _unfit(status: str, why: str) -> dict[str, Any]:
    found = {"status": status, "words": " ".join(why.split())[:300], "costs": [], "curve": {}, "offences": []}
    settled = True  # another seed would be no other story
    return {
        "found": {**found, "rounds": 0, "gap": None, "worst": None, "settled": settled},
        "timed": {"costs": [], "curve": [], "notes": []},
    }


def _carried_out(
    referee: Referee, solver: Solver, it: Inside | Outside, facts: Facts, seed: int, rules: Rules
) -> dict[str, Any]:
    try:
        it.warm()
    except (ValueError, TypeError) as error:
        if solver.own:
            raise
        return _unfit("not for this problem", str(error))  # methods of the package say so when they start
    search = None
    if solver.tuned and solver.tunable():
        facts, search = tuning.tuned(referee, it, seed, rules.trial)
    paid = (0.0,) * 5 if search is None else search.paid
    before = it.cpu()
    run = _judged(referee, it.steps(seed, rules.rounds, True), rules, solver.kind != "pooled")
    spent = [after - start for after, start in zip(it.cpu(), before, strict=True)]
    wrong = _wrong(referee, solver, it, facts, run, seed, rules)
    placed = "; ".join(how for what, how in wrong if what == honesty.ALL_ROWS)
    notes = [how for what, how in wrong if what == honesty.UNSEEN]
    wrong = [(what, how) for what, how in wrong if what not in (honesty.ALL_ROWS, honesty.UNSEEN)]
    seconds = [[s.seconds for s in run.steps]]
    seconds += _repeated(it, facts, run, seed, rules, wrong, solver.own)
    least = _least(seconds, len(run.steps), solver.kind == "pooled")
    costs, at = [], _hits(run.gaps, rules.targets)
    for target, i in zip(rules.targets, at, strict=True):
        mine = None if i is None else _cost(run.steps[i], paid)
        costs.append({"target": target, **(mine or dict.fromkeys(("rounds", "floats", "passes", "up")))})
    keep = _kept(len(run.steps), at)
    curve = {n: [plain(_cost(run.steps[i], paid)[n]) for i in keep] for n in ("rounds", "floats", "passes")}
    status, how = _ended(run, rules, solver.kind != "pooled")
    notes += [how] if how else []
    found = {
        "status": status,
        "words": facts.words,
        "settled": facts.settled,
        "pooled": facts.pooled or bool(placed),
        "placed": placed,
        "notes": notes,
        "clients": plain(facts.clients),
        "rounds": run.steps[-1].round,
        "gap": plain(run.gaps[-1]),
        "worst": plain(referee.worst_client(run.last)) if np.isfinite(run.last).all() else None,
        "costs": costs,
        "curve": curve | {"gap": [plain(run.gaps[i]) for i in keep]},
        "offences": [list(o) for o in wrong],
        "tuning": None if search is None else search.found(),
    }
    took = [None if i is None else float(least[i] + paid[3]) for i in at]
    timed = {"costs": took, "curve": [float(least[i] + paid[3]) for i in keep], "notes": _notes(*spent)}
    timed |= {"tuning": paid[3]}
    return {"found": found, "timed": timed}


def _ended(run: _Judged, rules: Rules, by_round: bool) -> tuple[str, str]:
    """Return how a run ended, and in words where the solver ended it."""
    t = run.steps[-1].round
    if run.gaps[-1] <= rules.targets[-1]:
        return "reached", ""
    if not np.isfinite(run.gaps[-1]):
        return "diverged", f"{'its model' if not np.isfinite(run.last).all() else 'the gap'} of round {t} is not finite"
    if by_round and hopeless(run.gaps, rules):
        return "given up", ""
    if by_round and t < rules.rounds:
        return "ended early", f"it ended after {t} of {rules.rounds} rounds"
    return "round limit", ""


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
    values = (step.round + paid[0], step.floats + paid[1], step.passes + paid[2], step.up + paid[4])
    return {n: plain(v) for n, v in zip(("rounds", "floats", "passes", "up"), values, strict=True)}


def _judged(referee: Referee, played: Iterable[Step], rules: Rules, by_round: bool) -> _Judged:
    """Judge a run until the smallest target is met, the model is lost, the rounds are used up, or it is `hopeless`.

    The latter is asked of solvers that go round by round.
    """
    steps: list[Step] = []
    values, gaps, prints = [], [], []
    shape = tuple(referee.problem.model_shape)
    most = max(1, min(256, _NUMBERS // max(1, int(np.prod(shape)))))
    first = last = np.zeros(shape)
    for some in _batches((_fitting(step, shape) for step in played), most):
        value, gap = referee.gaps(np.stack([s.w for s in some]))
        met = np.flatnonzero((gap <= rules.targets[-1]) | ~np.isfinite(gap))
        end = int(met[0]) + 1 if met.size else len(some)
        first, last = first if steps else some[0].w, some[end - 1].w
        values.append(value[:end])
        gaps.append(gap[:end])
        prints += [fingerprint(s.w) for s in some[:end]]
        steps += [s._replace(w=s.w[..., :0]) for s in some[:end]]
        if met.size or (by_round and hopeless(np.concatenate(gaps), rules)):
            break
    return _Judged(steps, np.concatenate(values), np.concatenate(gaps), prints, first, last)


def hopeless(gaps: np.ndarray, rules: Rules) -> bool:
    """Return whether a run cannot be expected to meet the next target within the rounds that are left.

    The logarithm of the least gap so far has fallen by some amount a round in the later half of the rounds; if it would
    miss the next target at four times that pace, the run is given up. It is looked at after 254 and 510 rounds.

    Parameters
    ----------
    gaps : array (t + 1,)
        After 0, 1, ..., t rounds.
    rules : Rules

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.bench.cells import Rules, hopeless
    >>> rules = Rules(targets=(1e-3, 1e-6), rounds=1000)
    >>> hopeless(0.99 ** np.arange(255), rules), hopeless(1e-2 + 0.5 ** np.arange(255), rules)
    (False, True)
    """
    t = len(gaps) - 1
    if t + 2 < _FIRST_LOOK or (t + 2) & (t + 1) or t >= rules.rounds:
        return False
    half, best = float(gaps[: t // 2 + 1].min()), float(gaps.min())
    target = max((x for x in rules.targets if x < best), default=best)
    if not 0.0 < best <= half < math.inf:
        return False
    pace = math.log(half / best) / (t - t // 2)
    return _PACE * pace * (rules.rounds - t) < math.log(best / target)


def _fitting(step: Step, shape: tuple[int, ...]) -> Step:
    """Return a step, or raise unless its model is one of the problem: a process of its own may send what it likes."""
    if step.w.shape != shape or step.w.dtype != np.float64:
        raise Failed(f"its model of round {step.round} is no float64 array of shape {shape}")
    return step


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


# ---------------------------------------------------------------- repetition, honesty


def _repeated(
    it: Inside | Outside,
    facts: Facts,
    run: _Judged,
    seed: int,
    rules: Rules,
    wrong: list[tuple[str, str]],
    own: bool,
) -> list[list[float]]:
    """Run again, without judging, for seconds that are less a matter of chance; note models that are others.

    What comes from outside is run again at least once.
    """
    n, spent = len(run.steps), 0.0
    least, enough = max(rules.repeats - 1, int(own)), _ENOUGH if rules.repeats > 1 else 0.0
    out: list[list[float]] = []
    while len(out) < least or (spent < enough and len(out) < _MOST):
        mine, other = [], None
        for i, step in enumerate(it.steps(seed, rules.rounds, False)):
            mine.append(step.seconds)
            if other is None and i < n and fingerprint(step.w) != run.prints[i]:
                other = step.round
            if i + 1 == n:
                break
        out.append(mine)
        spent += mine[-1]
        if other is not None and facts.reproducible:
            wrong.append((honesty.UNSTEADY, f"with one seed, two runs differ from round {other} on"))
            break
        if spent > 20.0 * _ENOUGH and len(out) >= 1:
            break
    return out


def _wrong(
    referee: Referee, solver: Solver, it: Inside | Outside, facts: Facts, run: _Judged, seed: int, rules: Rules
) -> list[tuple[str, str]]:
    """Return what the solver did that it may not."""
    found: list[tuple[str, str]] = []
    for step, value in zip(run.steps, run.values, strict=True):
        if step.claim is not None and np.isfinite(value) and (short := referee.understated(value, step.claim)):
            least = value - float(referee._solution.value)
            how = f"after {step.round} rounds it claims {step.claim:.3g}; F(w) - F* is at least {least:.3g}"
            found.append((honesty.LIES, how if short == short else f"after {step.round} rounds it claims NaN"))
            break
    if solver.kind == "class" and run.first.any():
        found.append((honesty.NOT_ZERO, f"the largest entry of its first model is {np.abs(run.first).max():.3g}"))
    if solver.kind in ("class", "function"):
        found += it.offences(seed)
    known = {what for what, _ in found}
    if solver.kind == "function" and honesty.TOO_FEW not in known and (how := _impossible(referee, run)):
        found.append((honesty.TOO_FEW, how))
    if facts.settled and solver.kind != "pooled":
        again = islice(it.steps(seed + 1, rules.rounds, False), honesty.COUNTS + 1)
        other = [fingerprint(s.w) for s in again][: len(run.prints)]
        if other != run.prints[: len(other)]:
            found.append((honesty.UNSTEADY, "it says that it draws nothing, and its models differ with the seed"))
    return found


def _impossible(referee: Referee, run: _Judged) -> str:
    """Return how the floats that a function declares fall short of its models, or nothing.

    A round's model depends on the answers of clients, each at least as long as a model, and a client at least answers.
    """
    size = float(np.prod(referee.problem.model_shape))
    for step in run.steps:
        if step.round and np.isfinite(step.floats) and step.floats < step.round * size:
            return f"{step.floats / step.round:g} a round, where the answer of one client alone has {size:g}"
    return ""
