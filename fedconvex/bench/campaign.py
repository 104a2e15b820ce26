"""`bench`: all cells of a benchmark, each kept in a file of its own, so that what is interrupted goes on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex import __version__
from fedconvex._archives import json_in, json_of
from fedconvex._check import ROUNDS, among, bad, function, instance, items, real, whole
from fedconvex._files import check_folder, package_digest, write_file
from fedconvex.bench.board import Board, Cell
from fedconvex.bench.cases import Case, digest
from fedconvex.bench.cells import Rules, out_of_time, run_cell
from fedconvex.bench.conditions import Conditions
from fedconvex.bench.judging import Referee
from fedconvex.bench.pooled import FITS
from fedconvex.bench.solvers import Solver, built_in, made_of, named, of_target
from fedconvex.bench.suites import data_cases, suite
from fedconvex.sweeps.answers_on_disk import alone_in, carried_out, read_answers

DEFAULT = (
    "fedsgd",
    "fedavg",
    "fedavg-batch",
    "scaffold",
    "gd",
    "sklearn-lbfgs",
    "afl",
    "optimistic-afl",
    "mocha",
    "cocoa",
)
Progress = Callable[[float, str], None]


def bench(
    solvers: Sequence[Any] = (),
    *,
    suite: Any = "first",
    against: Sequence[str] | str | None = None,
    targets: Sequence[float] | None = None,
    rounds: int = ROUNDS,
    seeds: int = 3,
    steps: str = "theory",
    data: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    repeats: int = 3,
    limit: float = 300.0,
    trial: int = 8,
    conditions: Conditions | None = None,
    progress: Progress | None = None,
) -> Board:
    """Return the board of solvers on the problems of a suite, judged by certified gaps of their models.

    Parameters
    ----------
    solvers : sequence
        Classes with fedconvex's three functions, methods with their settings, functions
        ``(arrays, settings, rounds) -> models by round``, or names of any of them (``"module:Solver"``).
    suite, against : str, path or sequence of `Case`; sequence of str or "all", optional
        As for `fedconvex.bench.suite`; solvers that are compared with, default `DEFAULT`.
    targets : sequence of float, optional
        Certified gaps F(w) - F* to be reached, default 1e-3, 1e-6, 1e-9, or excess held-out loss (`Conditions`).
    rounds, seeds : int
        Most rounds of a run; runs of a solver that draws, each with a seed of its own.
    steps : {"theory", "tuned", "both"}
        Step sizes of theory, or the best of seven multiples by successive halving, whose rounds count.
    data, folder : path, optional
        Of a9a.npz, w8a.npz, adult.npz, mnist.npz or har21.npz, which join the suite; and of finished cells.
    jobs, repeats, trial : int
        Processes; least number of runs of a cell, of which the fastest counts; rounds of a step size's first trial.
    limit : float
        Seconds after which a cell is stopped: with one process as soon as it is in Python, else its process is ended.
    conditions, progress : Conditions, callable, optional
        The latter is told the share done, and what is being done.

    Raises
    ------
    ValueError, TypeError, ImportError, OSError
        If a solver, suite or setting is none.

    Examples
    --------
    >>> from fedconvex.bench import Case, bench
    >>> tiny = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared")
    >>> bench(suite=[tiny], against=["fedsgd"], targets=[1e-3, 1e-6]).cells[0].found["status"]
    'reached'
    """
    instance("bench: conditions", how := conditions or Conditions(), Conditions)
    rules = _rules(how.targets if targets is None else targets, rounds, repeats, limit, trial)
    entries, apart = how.under(chosen(solvers, against, steps))
    work = (whole("bench: seeds", seeds, low=1), rules, steps, folder, whole("bench: jobs", jobs, low=1), progress)
    found = _board(tuple(map(how.of, _cases(suite, data))), entries, *work)
    return replace(found, conditions=how, apart={**found.apart, **apart})


def _rules(targets: Any, rounds: Any, repeats: Any, limit: Any, trial: Any) -> Rules:
    gaps, most, first = _targets(targets), whole("bench: rounds", rounds, low=1), whole("bench: trial", trial, low=1)
    times, seconds = whole("bench: repeats", repeats, low=1), real("bench: limit", limit, low=0.0, strict=True)
    return Rules(gaps, most, times, seconds, first)


def _board(
    cases: tuple[Case, ...],
    entries: tuple[Solver, ...],
    seeds: int,
    rules: Rules,
    steps: str,
    folder: Any,
    jobs: int,
    progress: Progress | None,
) -> Board:
    """Carry all cells out."""
    home = None
    if progress is not None:
        function("bench: progress", progress)
    if folder is not None:
        home = check_folder("bench: folder", folder)
        (home / "cells").mkdir(parents=True, exist_ok=True)
    aims = {case.aim for case in cases}
    for entry in entries:
        if not aims & set(entry.aims) and (entry.own or not any(aims & set(e.aims) for e in entries)):
            must = "minimise what the suite asks for, " + " or ".join(sorted(aims))
            raise bad(f"bench: solver {entry.name}", must, " or ".join(entry.aims) or "something else")
    for case in cases:  # whatever is wrong with data, digests or settings is found before the work begins
        case.problem()
    load = _load()
    sources = tuple(made_of(e.target) if e.own else "" for e in entries)
    tasks = [_Task(case, entries, sources, seeds, rules, home, time.time()) for case in cases]
    with nullcontext() if home is None else alone_in("bench", home):
        cells = list(_carried_out(tasks, jobs, progress))
    order = {case.name: i for i, case in enumerate(cases)}
    flat = sorted((c for some in cells for c in some), key=lambda c: order[c.problem])  # within: as solvers were given
    about = {**about_machine(), "load before": load, "load after": _load(), "jobs": str(jobs)}
    apart = {e.name: " or ".join(e.aims) for e in entries if not aims & set(e.aims)}
    return Board(tuple(flat), rules, steps, seeds, about, {c.name: c.sha256 or "" for c in cases}, apart)


def chosen(solvers: Sequence[Any], against: Sequence[str] | str | None, steps: str) -> tuple[Solver, ...]:
    """Return the solvers that take part, each once and by a name of its own."""
    among("bench: steps", steps, ("theory", "tuned", "both"))
    words: Any = (
        [*built_in(), *FITS]
        if isinstance(against, str) and against == "all"
        else DEFAULT
        if against is None
        else against
    )
    words = items("bench: against", [words] if isinstance(words, str) else words)
    given_solvers = items("bench: solvers", [solvers] if isinstance(solvers, str) else solvers)
    out: list[Solver] = []
    for given in (*given_solvers, *words):
        plain = named(given) if isinstance(given, str) else of_target(given)
        for tuned in {"theory": (False,), "tuned": (True,), "both": (False, True)}[steps]:
            entry = plain
            if tuned and entry.tunable():
                entry = replace(entry, name=f"{entry.name}, tuned", tuned=True)
            if all(entry != other for other in out):
                out.append(entry)
    names = [e.name for e in out]
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise bad("bench: solvers", "have names of their own", f"{twice[0]!r} twice")
    if not out:
        raise bad("bench: solvers", "be at least one", "none")
    return tuple(out)


def _cases(given: Any, data: Any) -> tuple[Case, ...]:
    listed = isinstance(given, (list, tuple)) and all(isinstance(c, Case) for c in given) and given
    cases = tuple(given) if listed else suite(given)
    cases += () if data is None else data_cases(data)
    names = [c.name for c in cases]
    if len(set(names)) < len(names):
        raise bad("bench: suite", "name every problem differently", next(n for n in names if names.count(n) > 1))
    return cases


def _targets(given: Any) -> tuple[float, ...]:
    values = [real("bench: targets", t, low=0.0, strict=True) for t in items("bench: targets", given)]
    if not values:
        raise bad("bench: targets", "be at least one gap", "none")
    return tuple(sorted(set(values), reverse=True))


# ---------------------------------------------------------------- carrying out


class _Task(NamedTuple):
    """All cells of one problem."""

    case: Case
    entries: tuple[Solver, ...]
    sources: tuple[str, ...]  # of what each solver is made
    seeds: int
    rules: Rules
    home: Path | None
    since: float = 0.0  # when the run began


def _carried_out(tasks: Sequence[_Task], jobs: int, progress: Progress | None) -> Iterator[list[Cell]]:
    """Yield the cells of one problem after the other."""
    if jobs > 1:
        with TemporaryDirectory(prefix="fedconvex-bench-") as place:
            yield from _in_processes(tasks, jobs, Path(place), progress)
        return
    for done, task in enumerate(tasks):
        report = None
        if progress is not None:
            report = lambda share, text, d=done: progress((d + share) / len(tasks), text)  # noqa: E731
        yield _of_case(task, report=report)
    if progress is not None:
        progress(1.0, "")


def _in_processes(tasks: Sequence[_Task], jobs: int, place: Path, progress: Progress | None) -> Iterator[list[Cell]]:
    """Yield the cells of one problem after the other, made by the engine of `sweep`.

    Where it stops because a process was ended that had run out of time, it goes on with what is missing.
    """
    answers = place / "answers"
    answers.mkdir()
    if tasks[0].home is None:
        (place / "cells").mkdir()
        tasks = [task._replace(home=place) for task in tasks]
    for left in _running(tasks[0]):  # of a run that was killed
        left.unlink()
    work = partial(_answer, parent=os.getpid())
    while True:
        try:
            carried_out(work, tasks, answers, n_jobs=jobs, tell=progress, durable=False)
            break
        except RuntimeError as error:
            _end(tasks[0], error)
    for i, answer in read_answers(answers):
        if isinstance(answer, str):
            raise RuntimeError(f"bench: problem {tasks[i].case.name}: {answer}")
        yield [Cell(*made) for made in json_of(answer["cells"])]


def _answer(task: _Task, parent: int) -> dict[str, np.ndarray]:
    """Return the cells of a problem as bytes."""
    made = json.dumps(_of_case(task, alone=os.getpid() != parent))
    return {"cells": np.frombuffer(made.encode(), dtype=np.uint8)}


def _running(task: _Task) -> list[Path]:
    """Return the marks of cells that are being worked on."""
    return [] if task.home is None else sorted((task.home / "cells").glob("*.running"))


def _end(task: _Task, error: RuntimeError) -> None:
    """Keep of cells that were running when a process ended that their time was over; raise where that of none was."""
    running = _running(task)
    over = [file for file in running if time.time() - file.stat().st_mtime > task.rules.limit]
    what = ", ".join(sorted(file.read_text() for file in running))
    for file in running:
        if file in over:
            write_file(file.with_suffix(".json"), json.dumps(out_of_time(task.rules)).encode())
        file.unlink()
    if not over:
        raise RuntimeError(f"bench: {error}; what was running: {what or 'nothing'}") from None


def _of_case(task: _Task, alone: bool = False, report: Any = None) -> list[Cell]:
    """Return the cells of one problem, each from its file where there is one."""
    case, rules, home, out = task.case, task.rules, task.home, []
    with threadpool_limits(1):
        referee = Referee(case)
        data = "" if home is None else digest(referee.problem.federation)
        dials = referee.dials._asdict()
        entries = [two for two in zip(task.entries, task.sources, strict=True) if case.aim in two[0].aims]
        for done, (entry, source) in enumerate(entries):
            for seed in range(task.seeds):
                words = f"{case.name}, {entry.name}"
                if report is not None:
                    report((done + seed / task.seeds) / len(entries), words)
                file = None
                if home is not None:
                    file = home / "cells" / f"{_key(case, entry, source, seed, rules, data)}.json"
                run = partial(run_cell, referee, entry, seed, rules, alone)
                stored = file is not None and file.is_file() and file.stat().st_mtime < task.since
                made, again = _kept(file, run, rules, words, entry.own)
                found, timed = made["found"], made["timed"]
                out.append(
                    Cell(case.name, entry.name, entry.kind, entry.own, seed, dials, found, timed, again and stored)
                )
                if found["settled"]:
                    break
    return out


def _kept(file: Path | None, run: Callable[[], Any], rules: Rules, words: str, own: bool) -> tuple[Any, bool]:
    """Return what was found and what was timed, and whether it stood in the file of a cell; else it is run.

    It is marked while it lasts. What failed is not kept, nor that a solver from outside refuses a problem: the cause
    may be gone the next time.
    """
    made = _read(file, rules)
    if made is not None or file is None:
        return (run(), False) if made is None else (made, True)
    mark = file.with_suffix(".running")
    write_file(mark, words.encode(), durable=False)
    try:
        made = run()
    finally:
        mark.unlink(missing_ok=True)
    if made["found"]["status"] not in ("failed", "not for this problem" if own else ""):
        write_file(file, json.dumps(made).encode())
    return made, False


def _key(case: Case, entry: Solver, source: str, seed: int, rules: Rules, data: str) -> str:
    """Return the name of a cell's file: all that its result depends on, sources and the digest of the data included."""
    what = [package_digest(), repr(case), data, entry.name, entry.kind, sorted(entry.settings.items()), entry.tuned]
    what += [source, *astuple(entry.channel), entry.participation]
    how = (rules.targets, rules.rounds, rules.repeats, rules.trial if entry.tuned else 0)
    return hashlib.sha256(repr([*what, seed, how]).encode()).hexdigest()[:32]


def _read(file: Path | None, rules: Rules) -> Any:
    """Return a finished cell, or None where there is none, it had less time than now, or the file is damaged."""
    if file is None or not file.is_file():
        return None
    try:
        made = json_in(file)
    except ValueError:
        return None
    if not isinstance(made, dict) or not {"found", "timed"} <= set(made):
        return None
    return None if made.get("limit", rules.limit) < rules.limit else made


# ---------------------------------------------------------------- where it ran


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def about_machine() -> Mapping[str, str]:
    """Return versions and machine, as text."""
    from importlib.metadata import version

    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "scikit-learn")}
    machine = {"machine": platform.machine(), "system": platform.system(), "processors": str(os.cpu_count())}
    return {"fedconvex": __version__, "python": sys.version.split()[0], **packages, **machine}
