"""One solver on one problem with one seed: models by round, what they cost, and a clock that only the solver moves."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.bench.cases import Case
from fedconvex.bench.channel import ChannelEngine
from fedconvex.bench.information import declared
from fedconvex.bench.pooled import rows_of
from fedconvex.bench.solvers import Ready, Solver, arrays_of, passes_per_round
from fedconvex.draws import key_from_seed
from fedconvex.driver import defaults
from fedconvex.driver.rounds import Engine
from fedconvex.federation import Federation
from fedconvex.kernels import cache

WARM = 2  # rounds before the clock starts: what is compiled or imported is compiled and imported then


class Step(NamedTuple):
    """What there is after a round."""

    round: int
    w: np.ndarray  # a copy
    seconds: float  # so far
    floats: float  # sent and received so far, by all clients; NaN where nobody counts
    passes: float  # gradient passes over all rows so far; NaN where nobody counts
    claim: Any  # the gap that the solver claims, or None
    up: float = math.nan  # of the floats, those that clients sent; NaN where nobody says


class Clock:
    """Seconds within ``with``, compiling left out.

    Examples
    --------
    >>> from fedconvex.bench.running import Clock
    >>> clock = Clock()
    >>> with clock:
    ...     total = sum(range(1000))
    >>> 0.0 < clock.seconds < 1.0
    True
    """

    def __init__(self) -> None:
        self.seconds, self._since = 0.0, 0.0

    @staticmethod
    def _now() -> float:
        return time.perf_counter() - cache.compile_seconds()

    def __enter__(self) -> Clock:
        self._since = self._now()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.seconds += self._now() - self._since


class Play(NamedTuple):
    """A solver that is about to run on rows of its own."""

    case: Case
    federation: Federation
    solver: Solver
    ready: Ready
    seed: int
    shape: tuple[int, ...]  # of a model
    claims: bool = False  # ask for the gap that a class claims; never on the clock


def fingerprint(w: np.ndarray) -> str:
    """Return 16 digits that tell models apart bit by bit."""
    return blake2b(np.ascontiguousarray(w).tobytes(), digest_size=8).hexdigest()


def plain(x: Any) -> float | int | None:
    """Return a number that JSON knows: None for what is not finite."""
    if x is None or not math.isfinite(x):
        return None
    return int(x) if float(x).is_integer() else float(x)


def play(it: Play, rounds: int) -> Iterator[Step]:
    """Yield what there is after 0, 1, 2, ... rounds; for pooled solvers after 1, 2, 4, ... iterations.

    Raises
    ------
    ValueError, TypeError
        If what the solver gives is no model of the problem's shape.
    """
    ways = {"class": _rounds, "function": _function, "pooled": _fits}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from ways[it.solver.kind](it, rounds)


def warm(it: Play) -> None:
    """Run a few rounds that nobody measures."""
    for step in play(it, WARM):
        if step.round >= WARM:
            break


def _rounds(it: Play, rounds: int) -> Iterator[Step]:
    method, problem, clock = it.ready.target, it.case.over(it.federation), Clock()
    each = passes_per_round(method, problem)
    own = type(method) if it.claims and hasattr(type(method), "measure") else None
    with clock:
        channel, key = it.solver.channel, key_from_seed(it.seed)
        clear = channel.clear or not hasattr(method, "local")
        engine = Engine(method, problem, key, 1, 1) if clear else ChannelEngine(channel, method, problem, key)
        loop = engine.loop(engine.start(None), 0, rounds)
    while True:
        with clock:
            found = next(loop, None)
        if found is None:
            return
        t, state = found
        w = _model(it, np.asarray(state.w)[0])
        sent = float(engine.floats_down + engine.floats_up) if hasattr(method, "local") else np.nan
        up = float(engine.floats_up) if hasattr(method, "local") else np.nan
        yield Step(t, w, clock.seconds, sent, t * each, _claim(own, method, problem, state, t), up)


def _claim(own: Any, method: Any, problem: Any, state: Any, t: int) -> Any:
    """Return the gap that a class with a ``measure`` of its own claims, after 1, 2, 4, ... rounds."""
    if own is None or t & (t - 1):
        return None
    with np.errstate(all="ignore"):
        return float(np.ravel(defaults.measure(method, problem, state)[1])[0])


def _function(it: Play, rounds: int) -> Iterator[Step]:
    """Models of a function: timed one by one where it yields them, else all together, in equal parts."""
    problem, clock, f = it.case.over(it.federation), Clock(), it.ready.target
    arrays, settings = arrays_of(problem, it.case.loss), {"seed": it.seed, **it.ready.settings}
    floats, passes = (declared(f, name, arrays) for name in ("floats_per_round", "passes_per_round"))
    yield Step(0, arrays.start.copy(), 0.0, 0.0 * floats, 0.0 * passes, None)
    with clock:
        models = f(arrays, settings, rounds)
        listed = list(models) if isinstance(models, (list, tuple, np.ndarray)) else None
    if listed is None and not hasattr(models, "__next__"):
        raise wrong_type(f"bench: {it.solver.name}", "return models by round", type(models).__name__)
    if listed is not None:
        _apart(it, listed)
        models = iter(listed)
    t, total = 0, clock.seconds
    while t < rounds:
        with clock:
            item = next(models, None)
        if item is None:
            return
        t += 1
        w, claim = _pair(it, item)
        seconds = clock.seconds if listed is None else total * t / len(listed)
        yield Step(t, _model(it, w), seconds, t * floats, t * passes, None if claim is None else float(claim))


def _apart(it: Play, listed: list[Any]) -> None:
    """Raise where all models of a list are one array: what was changed in place since would count for round 1."""
    models = [item[0] if isinstance(item, tuple) and item else item for item in listed]
    same = len(models) > 1 and isinstance(models[0], np.ndarray) and all(w is models[0] for w in models)
    if same and np.any(models[0]):
        must, cure = "return a model of its own for every round", "append copies"
        raise bad(f"bench: {it.solver.name}", must, "the same array every time", cure)


def _pair(it: Play, item: Any) -> tuple[Any, Any]:
    """Return a model and the gap that is claimed for it, or None."""
    if not isinstance(item, tuple):
        return item, None
    claim = item[1] if len(item) == 2 else item
    if len(item) != 2 or not (claim is None or isinstance(claim, (int, float, np.number))):
        raise wrong_type(f"bench: {it.solver.name}", "yield a model, or (model, claimed gap)", f"{item!r}")
    return item


def _fits(it: Play, rounds: int) -> Iterator[Step]:
    fed, fit = it.federation, it.ready.target
    X, y = rows_of(fed)
    l2 = float(getattr(it.case.over(fed), "l2", 0.0))
    for level in (n for n in fit.levels if n <= max(rounds, 1)):
        clock = Clock()
        with clock:
            w = fit.fit_to(X, y, l2, level)
        yield Step(level, _model(it, w), clock.seconds, np.nan, np.nan, None)


def _model(it: Play, w: Any) -> np.ndarray:
    """Return a copy of a model, or raise unless it is one."""
    if np.iscomplexobj(w):
        raise wrong_type(f"bench: {it.solver.name}: model", "have real numbers", "complex ones")
    a = np.array(w, dtype=np.float64)
    if a.shape != it.shape:
        cure = "yield (model, claimed gap) as a tuple, or the model alone"
        raise bad(f"bench: {it.solver.name}: model", f"have shape {it.shape}", f"{a.shape}", cure)
    return a
