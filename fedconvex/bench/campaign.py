"""`bench`: all cells of a benchmark, each kept in a file of its own, so that what is interrupted goes on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex import __version__
from fedconvex._check import among, bad, function, items, real, whole
from fedconvex._files import check_folder, package_digest, write_file
from fedconvex.bench.board import Board, Cell
from fedconvex.bench.cells import Rules, run_cell
from fedconvex.bench.problems import Case, digest
from fedconvex.bench.referee import Referee
from fedconvex.bench.solvers import BUILTIN, Solver, draws_nothing, named, of_target
from fedconvex.bench.suites import data_cases, suite

__all__ = ["DEFAULT", "bench", "chosen"]

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
    suite: Any = "small",
    against: Sequence[str] | str | None = None,
    targets: Sequence[float] = (1e-3, 1e-6, 1e-9),
    rounds: int = 1000,
    seeds: int = 3,
    steps: str = "theory",
    data: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    repeats: int = 3,
    progress: Progress | None = None,
) -> Board:
    """Run solvers on the problems of a suite and judge them by certified gaps of their models.

    Parameters
    ----------
    solvers : sequence
        Classes with fedconvex's three functions, methods with their settings, functions
        ``(arrays, settings, rounds) -> models by round``, or names of any of them (``"module:Solver"``).
    suite : str, path or sequence of `Case`
        As for `fedconvex.bench.suite`.
    against : sequence of str or "all", optional
        Solvers of the package and of scikit-learn that are compared with; default `DEFAULT`.
    targets : sequence of float
        Certified gaps F(w) - F* that are to be reached, in units of the objective.
    rounds, seeds : int
        Most rounds of a run; runs of a solver that draws, each with a seed of its own.
    steps : {"theory", "tuned", "both"}
        Step sizes of theory, from exact constants; or the best of six multiples, each tried for 30 rounds that count.
    data : path, optional
        A folder with a9a.npz, w8a.npz, adult.npz, mnist.npz or har.npz, which join the suite.
    folder : path, optional
        Keep finished cells there, and take up those that are there already.
    jobs, repeats : int
        Processes (seconds are steadier with one); runs of a cell, at least, of which seconds are the least.
    progress : callable, optional
        Told the share done, and what is being done.

    Raises
    ------
    ValueError, TypeError, ImportError, OSError
        If a solver, suite or setting is none.

    Examples
    --------
    >>> from fedconvex.bench import Case, bench
    >>> tiny = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared")
    >>> board = bench(suite=[tiny], against=["fedsgd"], targets=[1e-3, 1e-6])
    >>> [(c.solver, c.found["status"]) for c in board.cells]
    [('fedsgd', 'reached')]
    """
    rules = Rules(_targets(targets), whole("bench: rounds", rounds, low=1), whole("bench: repeats", repeats, low=1))
    entries, count = chosen(solvers, against, steps), whole("bench: seeds", seeds, low=1)
    return _board(
        _cases(suite, data), entries, count, rules, steps, folder, whole("bench: jobs", jobs, low=1), progress
    )


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
        (home / "cells").mkdir(exist_ok=True)
    aims = {case.aim for case in cases}
    for entry in entries:
        if not aims & set(entry.aims) and (entry.own or not any(aims & set(e.aims) for e in entries)):
            must = "minimise what the suite asks for, " + " or ".join(sorted(aims))
            raise bad(f"bench: solver {entry.name}", must, " or ".join(entry.aims) or "something else")
    for case in cases:  # whatever is wrong with data, digests or settings is found before the work begins
        case.problem()
    load, cells = _load(), []
    tasks = [(case, entries, seeds, rules, home) for case in cases]
    for done, some in enumerate(_carried_out(tasks, jobs, progress)):
        cells.append(some)
        if progress is not None:
            progress((done + 1) / len(tasks), "")
    order = {case.name: i for i, case in enumerate(cases)}
    flat = sorted((c for some in cells for c in some), key=lambda c: order[c.problem])  # within: as solvers were given
    about = {**about_machine(), "load before": load, "load after": _load(), "jobs": str(jobs)}
    return Board(tuple(flat), rules, steps, seeds, about, {c.name: c.sha256 or "" for c in cases})


def chosen(solvers: Sequence[Any], against: Sequence[str] | str | None, steps: str) -> tuple[Solver, ...]:
    """Return the solvers that take part, each once and by a name of its own."""
    among("bench: steps", steps, ("theory", "tuned", "both"))
    words = BUILTIN if isinstance(against, str) and against == "all" else DEFAULT if against is None else against
    words = items("bench: against", [words] if isinstance(words, str) else words)
    given_solvers = items("bench: solvers", [solvers] if isinstance(solvers, str) else solvers)
    out: list[Solver] = []
    for given in (*given_solvers, *words):
        for tuned in {"theory": (False,), "tuned": (True,), "both": (False, True)}[steps]:
            entry = named(given) if isinstance(given, str) else of_target(given)
            if tuned and entry.tunable():
                entry = named(given, True) if isinstance(given, str) else of_target(given, f"{entry.name}, tuned", True)
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


def _carried_out(tasks: Sequence[tuple[Any, ...]], jobs: int, progress: Progress | None) -> Iterator[list[Cell]]:
    """Yield the cells of one problem after the other."""
    if jobs == 1 or len(tasks) == 1:
        for done, task in enumerate(tasks):
            report = None
            if progress is not None:
                report = lambda text, d=done: progress(d / len(tasks), text)  # noqa: E731
            case, entries, seeds, rules, home = task
            yield _of_case(case, entries, seeds, rules, home, report)
        return
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"))
    try:
        open_ = {pool.submit(_of_case, *task) for task in tasks}
        while open_:
            done_now, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for future in done_now:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _of_case(
    case: Case, entries: Sequence[Solver], seeds: int, rules: Rules, home: Path | None, report: Any = None
) -> list[Cell]:
    """Return the cells of one problem, each from its file where there is one."""
    out: list[Cell] = []
    with threadpool_limits(1):
        referee = Referee(case)
        data = "" if home is None else digest(referee.problem.federation)
        dials = referee.dials._asdict()
        for entry in (e for e in entries if case.aim in e.aims):
            for seed in range(_runs(referee, entry, seeds)):
                if report is not None:
                    report(f"{case.name}, {entry.name}")
                file = None if home is None else home / "cells" / f"{_key(case, entry, seed, rules, data)}.json"
                made = _read(file)
                if made is None:
                    made = run_cell(referee, entry, seed, rules)
                    if file is not None:
                        write_file(file, json.dumps(made).encode())
                out.append(
                    Cell(case.name, entry.name, entry.kind, entry.own, seed, dials, made["found"], made["timed"])
                )
    return out


def _runs(referee: Referee, entry: Solver, seeds: int) -> int:
    """Return how many seeds a solver is run with: one where it draws nothing, or is not made for the problem."""
    try:
        ready = entry.ready(referee.problem, referee.case.loss)
        return 1 if draws_nothing(entry, ready.target, referee.problem) else seeds
    except Exception:  # said by the cell
        return 1


def _key(case: Case, entry: Solver, seed: int, rules: Rules, data: str) -> str:
    """Return the name of a cell's file: all that its result depends on, sources and the digest of the data included."""
    source = _source(entry.target) if entry.own else ""
    what = [package_digest(), repr(case), data, entry.name, entry.kind, sorted(entry.settings.items()), entry.tuned]
    what.append(source)
    return hashlib.sha256(repr([*what, seed, tuple(rules)]).encode()).hexdigest()[:32]


def _source(target: Any) -> str:
    """Return what a solver from outside is made of; something new every time where no file says it."""
    home = inspect.getmodule(target) or inspect.getmodule(type(target))
    path = getattr(home, "__file__", None)
    if not path or not Path(path).is_file():
        return os.urandom(16).hex()  # defined in a notebook: it may be another one the next time
    words = repr(target)
    if inspect.isroutine(target):
        cells = [c.cell_contents for c in getattr(target, "__closure__", None) or ()]
        given = (getattr(target, "__defaults__", None), getattr(target, "__kwdefaults__", None))
        words = f"{target.__qualname__} {cells!r} {given!r}"
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() + words


def _read(file: Path | None) -> Any:
    """Return a finished cell, or None where there is none or the file is damaged."""
    if file is None or not file.is_file():
        return None
    try:
        made = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return made if isinstance(made, dict) and {"found", "timed"} <= set(made) else None


# ---------------------------------------------------------------- where it ran


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def about_machine() -> Mapping[str, str]:
    """Return versions and machine, as text."""
    from importlib.metadata import version

    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "scikit-learn")}
    machine = {"machine": platform.machine(), "system": platform.system(), "processors": str(os.cpu_count())}
    return {"fedconvex": __version__, "python": sys.version.split()[0], **packages, **machine}
