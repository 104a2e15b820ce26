"""A line on stderr that says how far long work is, and how long it will still take."""

from __future__ import annotations

import sys
from collections.abc import Callable


def progress_line(always: bool = False) -> Callable[[float, str], None] | None:
    """Return a function of the share done and what is being done; None where stderr is no terminal, unless always.

    The line is removed when all is done. The time left assumes that the rest goes as fast as what is done.
    """
    if not (always or sys.stderr.isatty()):
        return None
    from tqdm import tqdm

    shape = "{percentage:3.0f}%, about {remaining} left  {desc}"
    bar = tqdm(total=1.0, bar_format=shape, leave=False, dynamic_ncols=True, mininterval=0.1, file=sys.stderr)

    def show(share: float, doing: str) -> None:
        bar.set_description_str(doing, refresh=False)
        bar.update(share - bar.n)
        if share >= 1.0:
            bar.close()

    return show
