"""Long work in many jobs: in parallel by joblib, kept in files as it goes, resumed where it stopped.

`carried_out` knows nothing of what the jobs are. A job's answer is a mapping of names to arrays. Answers of consecutive
jobs share a file, ``part-FIRST-END.npz``, written whole or not at all, so that they can be read while others are being
worked on, and whoever starts the same work again does only what is missing. An answer does not depend on which jobs
share a file, nor on how many processes work.
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  # only libraries that are loaded can be kept to one thread
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._archives import arrays_in, json_in, json_of
from fedconvex._check import bad, whole
from fedconvex._files import check_folder, npz, write_file
from fedconvex._processes import end_with
from fedconvex.driver import DivergenceWarning

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_TASKS = 128  # at most about so many are sent to processes
_SECONDS = 1.0  # of work, after which its answers are written
_PART = re.compile(r"part-(\d+)-(\d+)\.npz")


def check_jobs(who: str, n_jobs: Any) -> int | None:
    """Return a number of processes as joblib takes it: None, a positive one, or -1 for all."""
    if n_jobs is not None and whole(who, n_jobs, low=-(1 << 20)) == 0:
        raise bad(who, "be None, a positive number, or negative as joblib counts processors", 0)
    return n_jobs


def opened(who: str, folder: Any, about: Mapping[str, Any]) -> Path:
    """Return the folder of some work, described by what JSON can hold, after checking that it is this work's.

    Raises
    ------
    ValueError
        If it cannot be written to, or holds other work: the message names what differs.
    """
    place, mine = check_folder(f"{who}: folder", folder), json.loads(json.dumps(about))
    file = place / "about.json"
    if not place.is_dir():
        write_file(file, json.dumps(mine, indent=1).encode())
        return place
    if not file.exists():
        if any(_PART.fullmatch(f.name) for f in place.iterdir()):
            raise bad(f"{who}: folder", "be new, or of this work", f"{place}, parts without about.json")
        write_file(file, json.dumps(mine, indent=1).encode())
        return place
    theirs = read_about(place)
    for name in {**theirs, **mine}:
        if theirs.get(name) != mine.get(name):
            cure = "name another folder, or repeat the settings of what is there"
            must = f"be of this work to resume it: {name} {mine.get(name)!r}"
            raise bad(f"{who}: folder {place}", must, f"{theirs.get(name)!r}", cure)
    return place


@contextmanager
def alone_in(who: str, folder: Path) -> Iterator[Path]:
    """Keep other processes of this machine out of a folder, where the system has locks that end with their process.

    Raises
    ------
    ValueError
        If another process works there.
    """
    with (folder / "lock").open("ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            cure = "wait until it has ended, or name another folder"
            raise bad(f"{who}: folder {folder}", "be worked on by one process", "another one at work", cure) from None
        yield folder


def read_about(folder: Path) -> dict[str, Any]:
    """Return the description of the work that a folder holds."""
    try:
        about = json_in(folder / "about.json")
    except (OSError, ValueError) as error:
        raise bad(f"{folder}", "be the folder of a sweep", f"no about.json that can be read ({error})") from None
    if not isinstance(about, dict):
        raise bad(f"{folder}", "be the folder of a sweep", f"an about.json with {type(about).__name__} in it")
    return about


def carried_out(
    work: Callable[[Any], Mapping[str, np.ndarray]],
    jobs: Sequence[Any],
    folder: Path,
    *,
    n_jobs: int | None = None,
    tell: Callable[[float, str], None] | None = None,
    durable: bool = True,
) -> None:
    """Do the jobs that a folder has no answers of yet, each ``work(job)``, and leave the answers there.

    Parameters
    ----------
    work : callable
        Returns arrays by name. What it raises is kept as the answer (`read_answers`), and the other jobs go on. With
        several processes it is sent to them, so that it is a function of a module, or an instance of a class of one.
    jobs : sequence
        What it is called with; jobs that share an object are best next to each other.
    folder : Path
        Of `opened`. It must be seen by all processes.
    n_jobs : int, optional
        As joblib takes it: None is 1, or what ``joblib.parallel_config`` says.
    tell : callable, optional
        Told the share done and a few words from time to time.
    durable : bool
        Whether answers are to survive a power cut too.

    Raises
    ------
    RuntimeError
        If a process ends without a word: out of memory, or killed.
    KeyboardInterrupt
        What is finished by then stays in the folder.
    """
    from joblib import Parallel, delayed

    todo = _missing(folder, len(jobs))
    most = max(1, -(-sum(map(len, todo)) // _TASKS))
    tasks = [
        range(i, min(i + most, stretch.stop)) for stretch in todo for i in range(stretch.start, stretch.stop, most)
    ]
    done = len(jobs) - sum(map(len, todo))
    where = str(folder), durable, os.getpid()
    calls = (delayed(_part)(work, [jobs[i] for i in task], task.start, *where) for task in tasks)
    try:
        pool = Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    except ValueError:  # a backend that answers when all is done
        pool = Parallel(n_jobs=n_jobs, batch_size=1)
    try:
        with threadpool_limits(1, "blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            for finished in pool(calls) if tasks else ():
                done += finished
                if tell is not None:
                    tell(done / len(jobs), f"{done:,} of {len(jobs):,} runs")
    except BrokenProcessPool as error:
        cure = "give folder= and call again: what was finished is kept; fewer n_jobs need less memory"
        raise RuntimeError(f"a process ended before its work was done ({_first_line(error)}): {cure}") from None
    if tell is not None:
        tell(1.0, "done")


def read_answers(folder: Path) -> Iterator[tuple[int, Mapping[str, np.ndarray] | str]]:
    """Yield the number of every job with an answer in a folder, in their order, and its arrays or its error.

    Raises
    ------
    ValueError
        If a file is damaged.
    """
    seen: set[int] = set()
    for first, end, file in _parts(folder):
        if first in seen and end - 1 in seen and seen.issuperset(range(first, end)):
            continue
        try:
            answers = _answers_in(file)
            if len(answers) != end - first or {*answers} != {*range(first, end)}:
                raise ValueError(f"answers of {len(answers)} jobs")
        except Exception as error:  # whatever a damaged file makes its readers raise
            got = f"a damaged or foreign file ({type(error).__name__}: {error})"
            raise bad(f"{file}", "hold answers", got, "delete it and sweep again") from None
        for i in range(first, end):
            if i not in seen:
                seen.add(i)
                yield i, answers[i]


def _answers_in(file: Path) -> dict[int, Mapping[str, np.ndarray] | str]:
    """Return what `_write` wrote, by the number of the job."""
    arrays = arrays_in(file)
    answers: dict[int, Any] = {int(i): str(error) for i, error in dict(json_of(arrays.pop("errors"))).items()}
    for name, a in arrays.items():
        number, _, column = name.partition("/")
        answers.setdefault(int(number), {})[column] = a
    return answers


def any_finished(folder: Path) -> bool:
    """Whether a folder, if it is there, holds any answers."""
    return folder.is_dir() and bool(_parts(folder))


def _parts(folder: Path) -> list[tuple[int, int, Path]]:
    """Return first job, end and name of all files of answers."""
    found = ((_PART.fullmatch(file.name), file) for file in folder.iterdir())
    return sorted((int(m[1]), int(m[2]), file) for m, file in found if m)


def _missing(folder: Path, n: int) -> list[range]:
    """Return the stretches of jobs without answers."""
    here = np.zeros(n + 2, dtype=bool)
    here[[0, -1]] = True
    for first, end, _ in _parts(folder):
        here[first + 1 : end + 1] = True
    edges = np.flatnonzero(np.diff(here.astype(int)))
    return [range(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _part(work: Any, jobs: Sequence[Any], first: int, folder: str, durable: bool, parent: int) -> int:
    """Do some jobs, write their answers from time to time, and return how many they are."""
    if os.getpid() != parent:  # another process, for which nobody else has arranged it
        warnings.simplefilter("ignore", DivergenceWarning)
        threadpool_limits(1, "blas")
        end_with(parent)
    answers: dict[int, Mapping[str, np.ndarray] | str] = {}
    began = time.monotonic()
    for i, job in enumerate(jobs, first):
        try:
            answers[i] = work(job)
        except Exception as error:
            answers[i] = _first_line(error)
        if time.monotonic() - began > _SECONDS:
            _write(answers, Path(folder), durable)
            answers, began = {}, time.monotonic()
    if answers:
        _write(answers, Path(folder), durable)
    return len(jobs)


def _write(answers: Mapping[int, Mapping[str, np.ndarray] | str], folder: Path, durable: bool) -> None:
    """Write the answers of consecutive jobs into one file."""
    arrays: dict[str, np.ndarray] = {}
    errors: dict[int, str] = {}
    for i, answer in answers.items():
        if isinstance(answer, str):
            errors[i] = answer
        else:
            arrays |= {f"{i}/{name}": a for name, a in answer.items()}
    arrays["errors"] = np.frombuffer(json.dumps(errors).encode(), dtype=np.uint8)
    write_file(folder / f"part-{min(answers):08d}-{max(answers) + 1:08d}.npz", npz(arrays), durable)


def _first_line(error: BaseException) -> str:
    """Return the message of an error in one line of at most 300 characters, after its class where that says more."""
    plain = type(error) in (ValueError, TypeError) and str(error)
    text = " ".join((f"{error}" if plain else f"{type(error).__name__}: {error}").split())
    return text if len(text) <= 300 else text[:297] + "..."
