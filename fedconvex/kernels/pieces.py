"""Long work in pieces: compiled code cannot be interrupted, so that Ctrl-C is heard between two calls only.

Pieces are chosen by an estimate of what they cost, a hundredth of a second or so, and never change a result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

PIECE = 5e7  # operations of a piece; one pass over the rows of a client is not divided
_FIXED = 64.0  # operations of a row or a step beside those on its features: draws, slopes, loops


class Unwanted(Exception):
    """Raised in a thread whose work nobody waits for any more."""


class _Thread(threading.local):
    stop: threading.Event | None = None


_THREAD = _Thread()


@contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Make `pause` raise in this thread once the event is set: Ctrl-C reaches the main thread only."""
    _THREAD.stop = stop
    try:
        yield
    finally:
        _THREAD.stop = None


def pause() -> None:
    """Do nothing between two pieces, unless the thread's work is no longer wanted."""
    if _THREAD.stop is not None and _THREAD.stop.is_set():
        raise Unwanted


def costs(X: Any, n: int, outputs: int, p: int) -> tuple[float, float]:
    """Return the operations of a visit to one of n rows, and of a step of a model with p parameters."""
    size = X.size if isinstance(X, np.ndarray) else X.data.size
    return outputs * (size / n + _FIXED), p + _FIXED


def _passes(plan: np.ndarray, by_row: float, by_step: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the cost of a pass of every job, and how many passes make a piece, at least one: (R, m) each."""
    block, batch = plan[..., 1], plan[..., 2]
    one = np.maximum(block * by_row - (-block // np.maximum(batch, 1)) * by_step, 1.0)
    return one, np.maximum(PIECE / one, 1.0).astype(np.int64)


def most_rows(plan: np.ndarray, by_row: float, by_step: float) -> int:
    """Return how many rows a job visits in one piece, at most."""
    each = _passes(plan, by_row, by_step)[1]
    return int((np.minimum(plan[..., 0], each) * plan[..., 1]).max())


def cut(
    kinds: np.ndarray, idle: int, plan: np.ndarray, by_row: float, by_step: float
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Divide jobs into pieces: some jobs each, or some passes of a job that is long by itself.

    Parameters
    ----------
    kinds : (R, m) array
        Kinds of the jobs.
    idle : int
        The kind of a job that is not done.
    plan : (R, m, 3) array
        Passes, rows per pass and rows per step of every job.
    by_row, by_step : float
        Operations of a row that is visited and of a step.

    Yields
    ------
    kinds, plan : arrays
        Those of a piece, in which all other jobs are idle, and which are overwritten when the next is asked for.
    since : int
        Passes that are done before this piece; the pieces of one job follow each other.

    Raises
    ------
    Unwanted
        Between two pieces, if nobody waits for the work any more.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.kernels import pieces
    >>> plan = np.array([[[1, 10, 10], [1, 10, 10], [4 * 10**6, 10, 10]]])
    >>> for kinds, its, since in pieces.cut(np.array([[5, 5, 5]]), 1, plan, by_row=1.0, by_step=15.0):
    ...     print(kinds, its[0, :, 0], since)
    [[5 5 1]] [      1       1 4000000] 0
    [[1 1 5]] [      1       1 2000000] 0
    [[1 1 5]] [      1       1 4000000] 2000000
    """
    one, each = (a.ravel() for a in _passes(plan, by_row, by_step))
    some, plan = np.full_like(kinds, idle), plan.copy()
    passes = plan[..., 0].flatten()
    ends, first = np.cumsum(passes * one), 0
    while first < passes.size:
        last = int(np.searchsorted(ends, (ends[first - 1] if first else 0.0) + PIECE, side="right"))
        last = max(first + 1, last)
        some.flat[first:last] = kinds.flat[first:last]
        step = int(each[first]) if last == first + 1 else int(passes[first:last].max())
        for since in range(0, max(int(passes[first]), 1), max(step, 1)):
            if last == first + 1:
                plan[..., 0].flat[first] = min(since + step, passes[first])
            pause()
            yield some, plan, since
        some.flat[first:last] = idle
        first = last
