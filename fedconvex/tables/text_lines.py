"""Lines of text files that anybody may have made: packed ones may be a thousand times as long as they look."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedconvex._check import bad

_LONGEST = 1 << 25  # characters of a line
_GROWN = 200  # times the size of its file
MAX_BYTES = 1 << 31  # what a file may ask for before somebody says that it is meant


def opener(file: Path) -> Any:
    """Return what opens a file by its name: plain, .gz or .bz2."""
    return {".gz": gzip.open, ".bz2": bz2.open}.get(file.suffix.lower(), open)


def check_growth(who: str, file: Path, size: int) -> None:
    """Raise if a file is packed so that it takes far more memory than its size on the disk says.

    Raises
    ------
    ValueError
    """
    packed = os.path.getsize(file)
    if size > MAX_BYTES and size > _GROWN * packed:
        must, got = f"unpack to at most {_GROWN} times its size", f"{packed:,} bytes that become {size:,} and more"
        raise bad(who, must, got, "unpack it first, if that is meant")


class Lines:
    """The lines of an open file, text or bytes, none of which takes the memory of a whole machine.

    Parameters
    ----------
    who : str
        For messages.
    file : Path
    stream : file object
        Of that file, unpacked.

    Raises
    ------
    ValueError
        While it is read, if a line is too long, or the file grows far beyond its size on the disk.
    """

    def __init__(self, who: str, file: Path, stream: Any) -> None:
        self.who, self.file, self.stream = who, file, stream
        self.read = stream.read  # by which scikit-learn knows a file

    def __iter__(self) -> Iterator[Any]:
        size, told, readline = 0, MAX_BYTES, self.stream.readline
        while line := readline(_LONGEST):
            if len(line) == _LONGEST:
                raise bad(self.who, "have shorter lines", f"one of {_LONGEST:,} characters and more")
            size += len(line)
            if size > told:
                check_growth(self.who, self.file, size)
                told = 2 * size
            yield line

    def first(self, most: int) -> list[Any]:
        """Return the first lines, so many at most, and together no longer than a single one may be."""
        found: list[Any] = []
        for line in self:
            found.append(line)
            if len(found) == most or sum(map(len, found)) > _LONGEST:
                break
        return found
