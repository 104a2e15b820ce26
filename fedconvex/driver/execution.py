"""`run`: rounds until the certified gap is small enough, with a trace, checkpoints and a progress line."""

from __future__ import annotations

import math
import os
import sys
from typing import Any, NamedTuple

from fedconvex._check import ROUNDS, Rng, bad, flag, real, takes_rng, whole, wrong_type
from fedconvex._progress import progress_line
from fedconvex.draws import key_from_seed
from fedconvex.driver.checkpoint import Checkpoint
from fedconvex.driver.recording import Recorder
from fedconvex.driver.result import Result, Status
from fedconvex.driver.rounds import Engine
from fedconvex.problems import FederatedProblem


class _Wishes(NamedTuple):
    """When to stop, record, save and show: the arguments of `run` that are not the method's business."""

    rounds: int
    tol: float
    record_every: int
    checkpoint: Any
    checkpoint_every: int | None
    progress: bool | None  # None: at most a line a minute


@takes_rng
def run(
    method: Any, problem: FederatedProblem, *, rounds: int = ROUNDS, tol: float = 1e-8, seed: Any = 0,
    trajectories: int | range = 1, start: Any = None, record_every: int = 1, threads: int | None = None,
    checkpoint: str | os.PathLike | None = None, checkpoint_every: int | None = None, progress: bool | None = None,
    transport: Any = None, rng: Rng = None,
) -> Result:  # fmt: skip
    """Return the result of running a method until its gap is at most tol, it repeats itself, or all rounds are done.

    Parameters
    ----------
    method, problem, seed, trajectories, start, threads
        As for `iterate`.
    rounds : int
        Most rounds to run.
    tol : float
        Stop once the certified gap of every trajectory is at most tol (in units of the objective); 0 never stops early
        unless the optimum is hit exactly. With tol > 0 a run also stops, with the status CYCLE, where nothing is drawn
        and a state came back: bit for bit, or within 1e-12 of its size after it was away by more than 1e-6.
    record_every : int
        Measure and record every so many rounds (round 0 and the last one always).
    checkpoint : path, optional
        Save the run there (npz, no pickle, written atomically) and resume from it if it exists. A run killed at any
        moment and started again ends with the same bits as one that was never stopped.
    checkpoint_every : int, optional
        Rounds between checkpoints; default about every five seconds.
    progress : bool, optional
        Progress line with an estimate of the time left on stderr; default only on a terminal.
    transport : callable, optional
        How the sites of a `fedconvex.remote.Roster`, in the place of a problem, are asked (``docs/sites.md``).

    Raises
    ------
    ValueError
        On settings out of range, or a checkpoint of another run.

    Warns
    -----
    DivergenceWarning
        Naming the round by which a trajectory diverged, or that the objective ended above its value at the start.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> run(FedAvg(step_size=0.1), problem, rounds=2000, tol=1e-6).status.name
    'CONVERGED'
    """
    wishes = _wishes(rounds, tol, record_every, checkpoint, checkpoint_every, progress)
    return _carry_out(_engine(method, problem, seed, trajectories, threads, transport), start, wishes)


def _engine(method: Any, problem: Any, seed: Any, trajectories: Any, threads: Any, transport: Any) -> Engine:
    """Return what carries out rounds: in this process, or through a transport where rows are at sites."""
    far, key = hasattr(problem, "engine"), key_from_seed(seed)
    if far != (transport is not None):
        must = "be given for a fedconvex.remote.Roster, and for nothing else"
        raise wrong_type("run: transport", must, f"{transport!r} for {type(problem).__name__}")
    if far:
        return problem.engine(method, transport, key, trajectories)
    return Engine(method, problem, key, trajectories, threads)


def _wishes(rounds: Any, tol: Any, every: Any, checkpoint: Any, save_every: Any, progress: Any) -> _Wishes:
    """Return the checked arguments of `run`."""
    return _Wishes(
        whole("run: rounds", rounds, low=1),
        real("run: tol", tol, low=0.0),
        whole("run: record_every", every, low=1),
        checkpoint,
        None if save_every is None else whole("run: checkpoint_every", save_every, low=1),
        (sys.stderr.isatty() or None) if progress is None else flag("run: progress", progress),
    )


def _carry_out(engine: Engine, start: Any, wishes: _Wishes) -> Result:
    """Run rounds until a status is found; the last finished round is kept on Ctrl-C too."""
    limit, state = wishes.rounds, engine.start(start)
    recorder = Recorder(engine, wishes.record_every, wishes.tol, wishes.checkpoint is not None)
    file = None if wishes.checkpoint is None else Checkpoint(wishes.checkpoint, engine, wishes.record_every, start)
    t, state = (0, state) if file is None else _resumed(file, state, recorder, limit)
    status, unbroken, bar = recorder.status(), False, _progress(limit, t, wishes.progress)
    tell = progress_line() if wishes.progress is None else None
    try:
        every = 1 if recorder.returns.active else math.gcd(wishes.record_every, wishes.checkpoint_every or 0)
        for now, current in engine.loop(state, t, limit, every) if status is None else ():
            if bar is not None:
                bar.set_postfix(gap=f"{recorder.gap:.2e}", refresh=False)
                bar.update(now - t)
            elif tell is not None:
                tell(now / limit, f"round {now:,}, gap {recorder.gap:.2g}")
            t, state, engine.done = now, current, (engine.floats_down, engine.floats_up)
            recorder.returns.see(t, state)
            if recorder.due(t, last=t == limit):
                recorder.record(t, state)
                status = recorder.status()
            if file is not None and t and file.due(t, wishes.checkpoint_every):
                file.save(t, state, recorder)
            if status is not None:
                break
        unbroken = True
    finally:
        if file is not None and (engine.memory is None or unbroken):
            file.save(t, state, recorder)
        if bar is not None:
            bar.close()
    recorder.warn()
    if start is None:  # who starts at an optimum expects to leave it
        recorder.warn_if_worse()
    return recorder.result(state, t, status or Status.ROUND_LIMIT)


def _resumed(file: Checkpoint, state: Any, recorder: Recorder, limit: int) -> tuple[int, Any]:
    """Return the round and state of the checkpoint, or round 0 and the start where there is none."""
    t, state = file.load(state, recorder) or (0, state)
    if t > limit:
        cure = "ask for at least as many, or name another file"
        raise bad(f"run: checkpoint {file.path}", f"hold at most rounds = {limit} rounds", t, cure)
    return t, state


def _progress(limit: int, done: int, wanted: bool | None) -> Any:
    """Return tqdm's line on stderr, or None."""
    if not wanted:
        return None
    from tqdm import tqdm  # an import that most runs need not pay for

    return tqdm(total=limit, initial=done, mininterval=0.5, delay=0.5, leave=False, unit="round", file=sys.stderr)
