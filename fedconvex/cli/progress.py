"""A line on stderr that says how far long work is, and how long it will still take."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

__all__ = ["progress_line"]


def progress_line(every: float = 0.1) -> Callable[[float, str], None] | None:
    """Return a function of the share done and what is being done, or None where stderr is no terminal.

    The line is rewritten at most once in so many seconds, and removed when all is done. The time left assumes that the
    rest goes as fast as what is done.
    """
    if not sys.stderr.isatty():
        return None
    began, shown = time.perf_counter(), -every

    def show(share: float, doing: str) -> None:
        nonlocal shown
        spent = time.perf_counter() - began
        if share >= 1.0:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        elif spent >= shown + every:
            shown = spent
            left = f", about {spent * (1.0 - share) / share:.0f} s left" if share > 0.02 else ""
            room = max(shutil.get_terminal_size((80, 24)).columns - 1, 20)
            print(f"\r\x1b[K{f'{share:4.0%}{left}  {doing}'[:room]}", end="", file=sys.stderr, flush=True)

    return show
