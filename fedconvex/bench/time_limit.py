"""A time limit: an alarm that Python hears, and the end of the process where it does not."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GRACE = 2.0  # seconds after the alarm, in which a solver may hear it before its process is ended
_AGAIN = 1.0  # seconds, after which an alarm that was caught rings once more
_LONGEST = 1e8  # three years: clocks of systems take no arbitrary number of seconds


class OutOfTime(BaseException):
    """Something has taken longer than it may; no `Exception`, which solvers catch."""


@contextmanager
def at_most(seconds: float, alone: bool, busy: bool = False) -> Iterator[None]:
    """Raise `OutOfTime` where what is within takes longer.

    Parameters
    ----------
    seconds : float
    alone : bool
        Whether the process may be ended, `GRACE` seconds later, if the alarm is not heard: compiled code hears it only
        when it returns. The process then ends with status 1, and says nothing.
    busy : bool
        Whether the alarm goes by seconds of processor time, which others on the machine do not lengthen.

    Notes
    -----
    There is an alarm in the main thread of systems with signals only, and none where another alarm is set already.

    Examples
    --------
    >>> from fedconvex.bench.time_limit import OutOfTime, at_most
    >>> try:
    ...     with at_most(0.01, alone=False):
    ...         while True:
    ...             pass
    ... except OutOfTime:
    ...     print("stopped")
    stopped
    """
    within, seconds = [True], min(seconds, _LONGEST)
    main = threading.current_thread() is threading.main_thread()
    heard = main and hasattr(signal, "setitimer")
    if heard:
        timer, alarm = (signal.ITIMER_PROF, signal.SIGPROF) if busy else (signal.ITIMER_REAL, signal.SIGALRM)
        heard = signal.getitimer(timer)[0] == 0.0
    with open(os.devnull, "w") as nowhere:
        if alone:
            faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=nowhere)
        if heard:
            before = signal.signal(alarm, lambda number, frame: _ring(within))
            signal.setitimer(timer, seconds, _AGAIN)
        try:
            yield
        finally:
            try:
                within.clear()  # an alarm just now still counts, and what follows is done all the same
            finally:
                if heard:
                    signal.setitimer(timer, 0.0)
                    signal.signal(alarm, before)
                if alone:
                    faulthandler.cancel_dump_traceback_later()


def _ring(within: list[bool]) -> None:
    if within:
        raise OutOfTime
