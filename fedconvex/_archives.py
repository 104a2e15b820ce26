"""Arrays and descriptions out of files and messages that anybody may have made: sizes are known before they are read.

An npz file is a zip archive of npy files. Its directory, and the heads of its entries, may say anything: that 2 MB
unpack to gigabytes, that all entries are one and the same place, that an array of a few bytes has a billion of rows. So
no entry is compressed (but in data of users, whose sizes are bounded), none overlaps another, each is exactly as long
as the array that its head describes, and all of them together are no longer than the file. What is read takes no more
memory than the file is long.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_ENTRIES = 60_000  # of an archive
_JSON = 1 << 26  # bytes of a description: Python's lists take up to thirty times as much
_END, _LOCATOR = b"PK\x05\x06", b"PK\x06\x07"  # of zip files: the end of the directory, and the mark of 64-bit ones
_HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Unsafe(ValueError):
    """What a file claims of its sizes is not so, or too much; ``entry`` names where, if it is one place."""

    def __init__(self, what: str, entry: str = "") -> None:
        super().__init__(f"{entry[:40]!r} {what}" if entry else what)
        self.what, self.entry = what, entry


def arrays_in(
    source: Path | bytes, known: Callable[[str], bool] | None = None, most: int | None = None
) -> dict[str, Any]:
    """Return the arrays of an npz file by name; None for those that are not asked for.

    Parameters
    ----------
    source : path or bytes
    known : callable, optional
        Which names are read; default all.
    most : int, optional
        Entries may be compressed, and those that are read take so many bytes at most; default: none is compressed.

    Raises
    ------
    Unsafe
        If sizes are not what they are said to be, or too much; if an entry is no npy file, or holds objects.
    OSError, zipfile.BadZipFile, ValueError and others
        If the file is damaged, as its readers raise.

    Examples
    --------
    >>> from fedconvex._archives import arrays_in
    >>> from fedconvex._files import npz
    >>> arrays_in(npz({"a": [1, 2], "b": [0.5]}))
    {'a': array([1, 2]), 'b': array([0.5])}
    """
    with io.BytesIO(source) if isinstance(source, bytes) else _regular(source) as file:
        _check_end(file)
        with zipfile.ZipFile(file) as archive:
            entries = _checked(archive, file.seek(0, os.SEEK_END))
            wanted = {name: known is None or known(name) for name in entries}
            if most is None and any(e.compress_type != zipfile.ZIP_STORED for e in entries.values()):
                raise Unsafe("compressed entries, which may unpack to any size")
            if most is not None and sum(e.file_size for n, e in entries.items() if wanted[n]) > most:
                raise Unsafe(f"more than {most} bytes of arrays")
            return {name: _array(archive, entry) if wanted[name] else None for name, entry in entries.items()}


def _regular(file: Path) -> BinaryIO:
    """Open a file, but no device that never ends, and no pipe that nobody may ever write to."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise Unsafe(f"{os.fspath(file)!r} is no regular file")
    return open(file, "rb")


def _check_end(file: BinaryIO) -> None:
    """Raise unless the directory of an archive is short enough to be listed."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 65_600, 0))
    tail = file.read(65_600)
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise Unsafe("no zip archive")
    directory, start = struct.unpack("<LL", tail[at + 12 : at + 20])
    if size < 0xFFFF0000 and (tail[max(at - 20, 0) : at].startswith(_LOCATOR) or start > size):
        raise Unsafe("a directory of a larger file")
    if directory > 1_000 * _ENTRIES:
        raise Unsafe(f"a directory of {directory} bytes")
    file.seek(0)


def _checked(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive by name, which do not overlap and fit into so many bytes."""
    found = sorted(archive.infolist(), key=lambda e: e.header_offset)
    if len(found) > _ENTRIES:
        raise Unsafe(f"{len(found)} entries")
    names = {e.filename.removesuffix(".npy"): e for e in found}
    if len(names) < len(found):
        raise Unsafe("entries of one name")
    ends = [e.header_offset + 30 + len(e.filename.encode()) + e.compress_size for e in found]
    starts = [*(e.header_offset for e in found), min(archive.start_dir, size)]
    for entry, end, start in zip(found, ends, starts[1:], strict=True):
        if end > start or entry.header_offset < 0 or min(entry.file_size, entry.compress_size) < 0:
            raise Unsafe(f"entries that overlap, at {entry.filename[:40]!r}")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # all that NumPy writes
            raise Unsafe(f"{entry.filename[:40]!r} compressed in an unknown way")
        if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
            raise Unsafe(f"{entry.filename[:40]!r} stored in {entry.compress_size} bytes, of {entry.file_size}")
    return {e.filename.removesuffix(".npy"): e for e in archive.infolist()}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Return the array of an entry, once its head says that it is exactly as long as the entry."""
    name = entry.filename.removesuffix(".npy")
    with archive.open(entry) as file:
        magic = file.read(8)
        if name == entry.filename or magic[:6] != b"\x93NUMPY" or (version := tuple(magic[6:])) not in _HEADS:
            raise Unsafe("is no .npy file", name)
        shape, _, dtype = _HEADS[version](file)
        if dtype.hasobject:
            raise Unsafe("holds pickled objects (allow_pickle is False)", name)
        count = math.prod(shape)
        if count * dtype.itemsize + file.tell() != entry.file_size or (count and not dtype.itemsize):
            raise Unsafe(f"has {entry.file_size} bytes for shape {shape}, {dtype}", name)
    with archive.open(entry) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def json_in(file: Path, most: int = _JSON) -> Any:
    """Return what a JSON file describes.

    Raises
    ------
    ValueError
        If it is none, or longer than ``most`` bytes; `Unsafe` is one.
    OSError
    """
    with _regular(file) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        return json_of(stream.read(min(size, most) + 1), most)


def json_of(content: bytes | np.ndarray, most: int = _JSON) -> Any:
    """Return what JSON in bytes, or in an array of bytes, describes.

    Raises
    ------
    ValueError
        If it is none, or longer than ``most`` bytes.
    """
    told = content.tobytes() if isinstance(content, np.ndarray) else content
    if len(told) > most:
        raise Unsafe(f"a description of more than {most} bytes")
    try:
        return json.loads(told)
    except RecursionError:
        raise Unsafe("a description that is nested too deeply") from None
