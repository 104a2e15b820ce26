"""Lines on stderr that say how far long work is, how long it will still take, and that kernels are compiled."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate

MINUTE = 60.0  # seconds between two lines of a command whose stderr is no terminal

_commands = 0  # that are being carried out


@contextmanager
def command() -> Iterator[None]:
    """Within the block a command is carried out: it says what takes long, also where stderr is no terminal."""
    global _commands
    _commands += 1
    try:
        yield
    finally:
        _commands -= 1


def compiling_line() -> bool:
    """Say on the terminal of a command that kernels are being compiled; return whether it was said."""
    if not (_commands and sys.stderr is not None and sys.stderr.isatty()):
        return False
    print("\rfedconvex: compiling kernels; later runs read them from disk", file=sys.stderr, flush=True)
    return True


def progress_line(always: bool = False) -> Callable[[float, str], None] | None:
    """Return a function of the share done and what is being done; None where stderr is no terminal, unless always.

    The line is removed when all is done. The time left assumes that the rest goes as fast as what is done. Where stderr
    of a command is no terminal, there is a line of its own a minute.
    """
    if not (always or sys.stderr.isatty()):
        return _line_a_minute() if _commands else None
    from tqdm import tqdm

    shape = "{percentage:3.0f}%, about {remaining} left  {desc}"
    bar = tqdm(total=1.0, bar_format=shape, leave=False, dynamic_ncols=True, mininterval=0.1, file=sys.stderr)

    def show(share: float, doing: str) -> None:
        bar.set_description_str(doing, refresh=False)
        bar.update(share - bar.n)
        if share >= 1.0:
            bar.close()

    return show


def in_parts(line: Callable[[float, str], None] | None, efforts: list[float]) -> list[Callable[[float, str], None]]:
    """Return for each part of the work, one after the other, what tells the line how far it is: it never goes back.

    Parts take time in proportion to their efforts, which are guesses. Where there is no line nobody is told.
    """
    ends = list(accumulate(efforts))

    def part(end: float, effort: float) -> Callable[[float, str], None]:
        def tell(share: float, doing: str) -> None:
            if line is not None:
                line((end - (1.0 - share) * effort) / ends[-1], doing)

        return tell

    return [part(end, effort) for end, effort in zip(ends, efforts, strict=True)]


def _line_a_minute() -> Callable[[float, str], None]:
    begun = said = time.monotonic()

    def show(share: float, doing: str) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= MINUTE and share < 1.0:
            said = now
            left = f", about {(now - begun) * (1.0 - share) / share / 60.0:.0f} min left" if share > 0.0 else ""
            print(f"fedconvex: {share:.0%} after {(now - begun) / 60.0:.0f} min{left}: {doing}", file=sys.stderr)

    return show
