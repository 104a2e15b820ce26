"""`sweep`: a method, or several, over grids of settings, problems and seeds, in one process or on a cluster."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import fedconvex
from fedconvex._check import ROUNDS, Rng, bad, maybe_flag, numeric, real, takes_rng, whole
from fedconvex._files import check_folder
from fedconvex._progress import progress_line
from fedconvex.draws import key_from_seed
from fedconvex.driver import Status, run
from fedconvex.driver.checkpoint import about_problem
from fedconvex.sweeps.answers_on_disk import alone_in, any_finished, carried_out, check_jobs, opened
from fedconvex.sweeps.combinations import Grid, Setting
from fedconvex.sweeps.shared_rows import lightened, shared
from fedconvex.sweeps.sweep_frame import STATUSES, Sweep, frame_of

TOGETHER = 64  # seeds that advance at once, whoever works on them: measured numbers depend on it in their last bits
_ROOM = 1 << 24  # numbers that the models of all clients and these seeds may take
MOST_ROWS = 20_000_000


@takes_rng
def sweep(
    method: Any, problem: Any, *, grid: Mapping[str, Sequence[Any]] | None = None, seeds: int | range = 1,
    rounds: int = ROUNDS, tol: float = 0.0, seed: int = 0, start: Any = None, record_every: int = 1,
    n_jobs: int | None = None, folder: str | os.PathLike | None = None, progress: bool | None = None, rng: Rng = None,
) -> Sweep:  # fmt: skip
    """Return the traces of methods over a grid of settings, problems and seeds as one tidy frame, a `Sweep`.

    Seeds advance together; processes are joblib's: ``joblib.parallel_config("dask")``, or "ray", around the call moves
    the work to a cluster. The frame is the same bit for bit, whoever works on it.

    Parameters
    ----------
    method : method, or mapping of names to methods
        With the settings that the grid does not vary.
    problem : problem, function that makes one, or mapping of names to either
        Parameters of a function are names of the grid: ``lambda l2: Problem(federation, Logistic(), l2)``.
    grid : mapping of names to lists of values, optional
        Settings of methods and parameters of problems; all combinations are run.
    seeds : int or range
        Repetitions. Seed r is trajectory r: ``run(..., seed=seed, trajectories=range(r, r + 1))`` repeats its states.
        All settings see the same draws.
    rounds, tol, seed, start, record_every
        As for `run`. A seed ends at its first recorded gap of at most tol: by default, only where the gap is zero.
    n_jobs : int, optional
        Processes, as joblib counts them: None is 1, or what ``joblib.parallel_config`` says; -1 all processors.
    folder : path, optional
        Keeps what is finished, for `read_sweep` and for the same call once more. All processes must see it.
    progress : bool, optional
        A line with the time left on stderr; default only on a terminal.

    Raises
    ------
    ValueError, TypeError
        On names or values that are none, too many rows, a folder of another sweep, or if every setting fails.

    Warns
    -----
    RuntimeWarning : if some settings fail; ``Sweep.failures`` says why.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, sweep
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), l2=0.1)
    >>> sweep(FedAvg(step_size=0.1, batch_size=5), problem, grid={"step_size": [0.1, 0.5]}, seeds=4, rounds=9)
    Sweep(80 rows: 2 settings, 4 seeds)
    """
    plan = _plan(rounds, tol, seed, record_every, start)
    check_jobs("sweep: n_jobs", n_jobs)
    return _swept(method, problem, grid, _seeds(seeds), plan, n_jobs, folder, _line(progress))


class _Plan(NamedTuple):
    """What is the same for all runs."""

    rounds: int
    tol: float
    seed: int
    record_every: int
    start: np.ndarray | None


class _Job(NamedTuple):
    """Seeds of a setting that advance together."""

    setting: int
    method: Any
    problem: Any
    seeds: range
    plan: _Plan
    error: str | None


def _swept(
    method: Any, problem: Any, grid: Any, seeds: range, plan: _Plan, n_jobs: int | None, folder: Any, tell: Any
) -> Sweep:
    """Run what is missing, and return the frame of all."""
    with threadpool_limits(1, "blas"):
        found = Grid.of(method, problem, grid)
        _check_rows(found, seeds, plan)
        blocks = _blocks(found, seeds)
        with _place(folder, _about(found, seeds, plan, blocks)) as home:
            problems = [p if isinstance(p, str) else _prepared(p, home) for p in found.problems]
            jobs = [_job(found.settings[i], i, problems, some, plan) for i, some in blocks]
            carried_out(_traced, jobs, home, n_jobs=n_jobs, tell=tell, durable=folder is not None)
            frame = frame_of(home)
    if not len(frame):
        raise bad("sweep", "have a setting that can be run", frame.failures[0]["error"])
    if frame.failures:
        first = frame.failures[0]
        several = len({json.dumps(failure["setting"]) for failure in frame.failures})
        text = f"sweep: {several} of {len(found.settings)} settings failed, see .failures; the first, "
        warnings.warn(f"{text}{first['setting']}: {first['error']}", RuntimeWarning, stacklevel=4)
    return frame


def _plan(rounds: Any, tol: Any, seed: Any, every: Any, start: Any) -> _Plan:
    """Return the checked numbers of a sweep."""
    key_from_seed(whole("sweep: seed", seed, low=0))
    return _Plan(
        whole("sweep: rounds", rounds, low=1),
        real("sweep: tol", tol, low=0.0),
        int(seed),
        whole("sweep: record_every", every, low=1),
        None if start is None else numeric("sweep: start", start),
    )


def _seeds(seeds: Any) -> range:
    """Return the numbers of the repetitions."""
    if not isinstance(seeds, range):
        return range(whole("sweep: seeds", seeds, low=1))
    if seeds.step != 1 or not 0 <= seeds.start < seeds.stop <= 1 << 40:
        raise bad("sweep: seeds", "be a number of them, or range(a, b) with 0 <= a < b", f"{seeds!r}")
    return seeds


def _check_rows(grid: Grid, seeds: range, plan: _Plan) -> None:
    """Raise where the frame would be too large."""
    records = plan.rounds // plan.record_every + 1
    rows = len(grid.settings) * len(seeds) * records
    if rows > MOST_ROWS:
        got = f"{rows:,}: {len(grid.settings):,} settings, {len(seeds):,} seeds, {records:,} recorded rounds"
        raise bad(
            "sweep", f"have at most {MOST_ROWS:,} rows", got, "record less often with record_every=, or divide it"
        )


def _about(grid: Grid, seeds: range, plan: _Plan, blocks: list[tuple[int, range]]) -> dict[str, Any]:
    """Return what makes two sweeps the same, and what a frame is told about itself."""
    start = None if plan.start is None else hashlib.blake2b(plan.start.tobytes(), digest_size=16).hexdigest()
    problems = [p if isinstance(p, str) else about_problem(p) for p in grid.problems]
    settings = [s.labels for s in grid.settings]
    found = {"version": fedconvex.__version__, "columns": list(grid.columns), **grid.about, "problems": problems}
    found |= {"seeds": [seeds.start, seeds.stop], "start": start, "settings": settings}
    found["runs"] = [[number, some.start, some.stop] for number, some in blocks]
    return found | {name: getattr(plan, name) for name in ("rounds", "tol", "seed", "record_every")}


@contextlib.contextmanager
def _place(folder: Any, about: dict[str, Any]) -> Iterator[Path]:
    """Open the folder of a sweep, or a temporary one; a new one in which nothing was finished does not stay."""
    if folder is not None:
        place = check_folder("sweep: folder", folder)
        new = not place.exists()
        try:
            with alone_in("sweep", opened("sweep", place, about)):
                yield place
        except BaseException:
            if new and not any_finished(place):
                shutil.rmtree(place, ignore_errors=True)
            raise
        return
    home = tempfile.mkdtemp(prefix="fedconvex-sweep-")
    try:
        yield opened("sweep", home, about)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _line(progress: Any) -> Callable[[float, str], None] | None:
    """Return what shows progress, if it is wanted."""
    wanted = maybe_flag("sweep: progress", progress)
    return None if wanted is False else progress_line(always=bool(wanted))


def _blocks(grid: Grid, seeds: range) -> list[tuple[int, range]]:
    """Return the runs of a sweep: settings, and seeds in blocks that depend on nothing but the problem."""
    found = []
    for number, s in enumerate(grid.settings):
        width = 1 << 40 if s.error is not None else _width(grid.problems[s.problem])
        for block in range(seeds.start // width, (seeds.stop - 1) // width + 1):
            found.append((number, range(max(seeds.start, block * width), min(seeds.stop, (block + 1) * width))))
    return found


def _job(s: Setting, number: int, problems: list[Any], seeds: range, plan: _Plan) -> _Job:
    return _Job(number, s.method, None if s.error else problems[s.problem], seeds, plan, s.error)


def _prepared(problem: Any, home: Path) -> Any:
    """Return a problem whose rows are shared, and which knows its solution, if that is what it measures by."""
    other = shared(problem, home)
    with np.errstate(all="ignore"), contextlib.suppress(Exception):  # what is wrong with it, runs will say
        other.measure(np.zeros((_width(other), *other.model_shape)))
    return lightened(other)


def _width(problem: Any) -> int:
    """Return how many seeds advance together, a power of two."""
    models = max(1, problem.federation.K) * max(1, int(np.prod(problem.model_shape)))
    return min(TOGETHER, 1 << max(0, (_ROOM // models).bit_length() - 1))


def _traced(job: _Job) -> dict[str, np.ndarray]:
    """Run the seeds of a job, and return the rows of their traces, seed after seed."""
    if job.error is not None:
        raise ValueError(job.error)
    p = job.plan
    result = run(
        job.method,
        job.problem,
        rounds=p.rounds,
        tol=p.tol,
        seed=p.seed,
        trajectories=job.seeds,
        start=p.start,
        record_every=p.record_every,
        threads=1,
        progress=False,
    )
    return _rows(job, result)


def _rows(job: _Job, result: Any) -> dict[str, np.ndarray]:
    """Return the trace as columns, seed after seed: of each seed up to where it converged, diverged, or all ended."""
    R, trace = len(job.seeds), result.trace
    T = len(trace.round)
    columns = {n: v.T if v.ndim == 2 else np.tile(v, (R, 1)) for n, v in trace.items() if v.shape in ((T,), (T, R))}
    del columns["seconds"]
    when, lost = columns["round"], result.diverged[:, None]
    over = (lost >= 0) & (when >= lost)
    for name in ("value", "gap"):
        columns[name] = np.where(over, np.inf, columns[name])
    met = ~over & (columns["gap"] <= job.plan.tol)
    ended = over | met
    last = np.where(ended.any(axis=1), ended.argmax(axis=1), T - 1)
    rest = Status.CYCLE if result.status is Status.CYCLE else Status.ROUND_LIMIT
    converged = np.take_along_axis(met, last[:, None], axis=1)[:, 0]
    codes = [STATUSES.index(s.name) for s in (Status.DIVERGED, Status.CONVERGED, rest)]
    how = np.where(over.any(axis=1), codes[0], np.where(converged, codes[1], codes[2])).astype(np.int8)
    kept = np.arange(T) <= last[:, None]
    seeds = np.broadcast_to(np.arange(job.seeds.start, job.seeds.stop)[:, None], (R, T))
    status = np.broadcast_to(how[:, None], (R, T))
    rows = {"seed": seeds, **columns, "status": status}
    return {"setting": np.full(int(kept.sum()), job.setting), **{n: v[kept] for n, v in rows.items()}}
