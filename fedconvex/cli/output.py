"""Output: text that keeps to the terminal's width and cannot command the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedconvex._check import printable

_NARROWEST, _WIDEST = 40, 140  # columns; text is not easier to read on wider terminals


def width() -> int:
    """Return the columns of the terminal or of COLUMNS, between 40 and 140; 120 where output goes elsewhere."""
    return min(max(shutil.get_terminal_size((120, 24)).columns, _NARROWEST), _WIDEST)


def fits() -> int | None:
    """Return the columns that tables keep to; None, as many as they need, in files and pipes unless COLUMNS is set."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return width() if terminal or os.environ.get("COLUMNS", "").isdigit() else None


def fill(text: str, first: str = "", indent: int = 0) -> str:
    """Fold a paragraph at words; the first line begins with some text, the others are indented."""
    return textwrap.fill(
        printable(text),
        min(width(), 110),
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


@contextmanager
def writing(files: Iterable[Any]) -> Iterator[list[Any]]:
    """Write files, so that a file that fails does not take what is printed with it: it fails after that.

    Whoever reads what is printed may leave early, so that files come first.
    """
    written: list[Any] = []
    try:
        written.extend(files)
    except Exception as error:
        yield written
        raise error from None
    else:
        yield written


@contextmanager
def resumable(place: Path | None, finished: Callable[[], bool]) -> Iterator[None]:
    """Say where finished work is kept if the disk or the memory is full."""
    try:
        yield
    except BrokenPipeError:  # nobody reads what is printed
        raise
    except (OSError, RuntimeError, MemoryError):
        if place is not None and finished():
            say(f"fedconvex: finished work is in {place}: the same command resumes from it", sys.stderr)
        raise


def say(text: str, file: Any = None) -> None:
    """Print lines, with control characters and marks of writing direction escaped: names may hold anything."""
    print("\n".join(map(printable, text.split("\n"))), file=file)
