"""A solver on one problem as the referee meets it: in this process, or, from outside of the package, in its own.

What comes from outside gets arrays and gives models: it sees neither the referee nor other solvers.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._check import bad
from fedconvex._processes import killed_with
from fedconvex.bench import offences as honesty
from fedconvex.bench.cases import ONE_MODEL, Case
from fedconvex.bench.conditions import asked
from fedconvex.bench.information import too_many, too_much
from fedconvex.bench.own_process import OwnProcess, answer, refusal, refused, requests
from fedconvex.bench.running import Play, Step, play, warm
from fedconvex.bench.solvers import Ready, Solver, arrays_of, draws_nothing, has_all_rows, taking_part
from fedconvex.federation import Federation

_TOGETHER = 64  # models, at most, that a process sends at one request


class Facts(NamedTuple):
    """What is known of a solver with its settings, before it runs."""

    words: str
    settled: bool  # its models are the same for every seed
    reproducible: bool  # its models are the same for one seed, unless it says that they are not
    pooled: bool = False  # it has all rows in one place
    clients: float = math.nan  # that take part in a round; NaN where it does not say


class Inside:
    """A solver in this process.

    Parameters
    ----------
    case : Case
    federation : Federation
        Rows of its own.
    solver : Solver
    known : problem, optional
        Over the same rows, of whose constants its step size is made; they are costly, and the same for all.
    """

    def __init__(self, case: Case, federation: Federation, solver: Solver, known: Any = None) -> None:
        self._case, self._federation, self._solver = case, federation, solver
        self._known = case.over(federation) if known is None else known
        self._ready: Ready

    def ready(self, factor: float = 1.0) -> Facts:
        """Choose settings, the step size of theory times a factor.

        Raises
        ------
        ValueError, TypeError
            If the solver is not made for such a problem.
        """
        problem = self._known
        self._ready = self._solver.ready(problem, self._case.loss, factor, self._case.aim)
        target = self._ready.target
        settled = draws_nothing(self._solver, target, problem)
        reproducible = bool(getattr(target, "reproducible", True))
        all_rows = has_all_rows(self._solver, target)
        clients = math.nan if self._solver.kind != "class" or all_rows else taking_part(target, problem)
        return Facts(self._ready.words, settled, reproducible, all_rows, clients)

    def warm(self) -> None:
        """Run a few rounds that nobody measures."""
        warm(self._play(0, False))

    def steps(self, seed: int, rounds: int, claims: bool) -> Iterator[Step]:
        """Yield what there is after every round."""
        return play(self._play(seed, claims), rounds)

    def offences(self, seed: int) -> list[tuple[str, str]]:
        """Return what a class, or a function, does that it may not: `honesty.offences`, `too_much`."""
        target, own = self._ready.target, self._solver.own
        if self._solver.kind == "function":
            return self._function_offences(seed)
        most = asked(self._solver.participation, self._federation.K)
        return honesty.offences(target, self._case, self._federation, seed, own, most)

    def _function_offences(self, seed: int) -> list[tuple[str, str]]:
        target, problem = self._ready.target, self._case.over(self._federation)
        if has_all_rows(self._solver, target):
            return []
        settings = {"seed": seed, **self._ready.settings}
        arrays = arrays_of(problem, self._case.loss)
        used = too_much(target, arrays, settings) if self._case.aim == ONE_MODEL else ("", "", "")
        said = (*used, *too_many(target, arrays, settings))
        kinds = (honesty.TOO_FEW, honesty.HIDDEN, honesty.ALL_ROWS, honesty.TOO_MANY, honesty.UNSEEN)
        return [(what, how) for what, how in zip(kinds, said, strict=True) if how]

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds so far of this thread, and of all others of this process."""
        own = time.thread_time()
        return own, time.process_time() - own

    def _play(self, seed: int, claims: bool) -> Play:
        shape = tuple(self._case.over(self._federation).model_shape)
        return Play(self._case, self._federation, self._solver, self._ready, seed, shape, claims)


class Outside:
    """A solver in a process of its own: the same, told and answered as `own_process` says."""

    def __init__(self, process: OwnProcess) -> None:
        self._process = process

    def ready(self, factor: float = 1.0) -> Facts:
        """As `Inside.ready`."""
        said = self._process.ask(do="ready", factor=factor)
        settled, reproducible, pooled = (bool(said[n]) for n in ("settled", "reproducible", "pooled"))
        return Facts(str(said["words"]), settled, reproducible, pooled, float(said["clients"]))

    def warm(self) -> None:
        """As `Inside.warm`."""
        self._process.ask(do="warm")

    def steps(self, seed: int, rounds: int, claims: bool) -> Iterator[Step]:
        """As `Inside.steps`: 1, 2, 4, ... at a request, so that few are made that nobody asked for."""
        self._process.ask(do="start", seed=seed, rounds=rounds, claims=claims)
        some = 1
        while True:
            said = self._process.ask(do="steps", some=some)
            for numbers, w in zip(said["steps"], said.get("models", ()), strict=True):
                t, seconds, floats, passes, claim, up = numbers
                yield Step(int(t), w, float(seconds), float(floats), float(passes), claim, float(up))
            refused(said["failed"] or {})
            if len(said["steps"]) < some:
                return
            some = min(2 * some, _TOGETHER)

    def offences(self, seed: int) -> list[tuple[str, str]]:
        """As `Inside.offences`."""
        return [(str(what), str(how)) for what, how in self._process.ask(do="offences", seed=seed)["offences"]]

    def cpu(self) -> tuple[float, float]:
        """As `Inside.cpu`, of its process."""
        own, others = self._process.ask(do="cpu")["cpu"]
        return float(own), float(others)


@contextmanager
def player(case: Case, problem: Any, solver: Solver, seconds: float) -> Iterator[Inside | Outside]:
    """Open a solver on a problem.

    Parameters
    ----------
    case : Case
    problem : problem
        Of whose rows it gets a copy; a process of its own makes them anew from the case.
    solver : Solver
    seconds : float
        After which the process is ended and `OutOfTime` is raised.
    """
    if not solver.own:
        yield Inside(case, honesty.copied(problem.federation), solver, problem)
        return
    with OwnProcess(_serve, _packed(case, solver), seconds) as process:
        process.next()  # it is there, and has understood
        yield Outside(process)


def _packed(case: Case, solver: Solver) -> bytes:
    """Return what the process is made of; classes and functions of scripts and notebooks by their code."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps((case, solver)))
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise bad(f"bench: {solver.name}", "be something that another process can be given", got) from None


# ---------------------------------------------------------------- in the process


def _serve(pipe: Any, payload: bytes) -> None:
    """Answer the requests of `Outside`."""
    import cloudpickle  # for what the referee sends, never for what it gets

    killed_with(os.getppid())  # a solver that hangs is not left alone
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case, solver = cloudpickle.loads(payload)
            served = _Served(Inside(case, case.problem().federation, solver))
        except (Exception, SystemExit) as error:
            answer(pipe, **refusal(error))
            return
        answer(pipe)
        for request in requests(pipe):
            try:
                getattr(served, request.pop("do"))(pipe, **request)
            except (Exception, SystemExit) as error:
                answer(pipe, **refusal(error))


class _Served:
    """Requests by name."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._steps: Iterator[Step] = iter(())
        self._failed: dict[str, Any] | None = None

    def ready(self, pipe: Any, factor: float) -> None:
        answer(pipe, **self._inside.ready(factor)._asdict())

    def warm(self, pipe: Any) -> None:
        self._inside.warm()
        answer(pipe)

    def start(self, pipe: Any, seed: int, rounds: int, claims: bool) -> None:
        self._steps, self._failed = self._inside.steps(seed, rounds, claims), None
        answer(pipe)

    def steps(self, pipe: Any, some: int) -> None:
        """Send some steps; where one fails, those before it, and that."""
        made: list[Step] = []
        try:
            for step in islice(self._steps, some):
                made.append(step)
        except (Exception, SystemExit) as error:
            self._failed = refusal(error)
        numbers = [(s.round, s.seconds, s.floats, s.passes, s.claim, s.up) for s in made]
        models = {"models": np.stack([s.w for s in made])} if made else {}
        answer(pipe, models, steps=numbers, failed=self._failed)

    def offences(self, pipe: Any, seed: int) -> None:
        answer(pipe, offences=self._inside.offences(seed))

    def cpu(self, pipe: Any) -> None:
        answer(pipe, cpu=self._inside.cpu())
