"""Files that are written: whole or not at all, in places that are tried before the work begins; whose they are."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._check import bad, wrong_type

_NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|[+-](inf|nan)")


def identity(x: Any) -> str:
    """Return what tells an object from others in files: its repr, and a digest of the arrays in it, if there are any.

    The repr of an array rounds to eight digits, and leaves most of a long one out.

    >>> identity(0.5), identity([np.ones(2)]) == identity([np.array([1.0, 1.0 + 1e-12])])
    ('0.5', False)
    """
    arrays = list(_arrays_in(x))
    if not arrays:
        return repr(x)
    h = hashlib.blake2b(digest_size=16)
    for name, a in arrays:
        a = np.ascontiguousarray(a)
        content = repr(a.tolist()).encode() if a.dtype.hasobject else a.tobytes()
        h.update(f"{name} {a.shape} {a.dtype.str};".encode() + content)
    return f"{x!r} #{h.hexdigest()}"


def _arrays_in(x: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays in an object with where they stand: in dataclasses, containers and sparse arrays."""
    parts: Any = ()
    if isinstance(x, np.ndarray):
        yield name, x
    elif isinstance(x, Mapping):
        parts = x.items()
    elif isinstance(x, (tuple, list)):
        parts = enumerate(x)
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        parts = ((f.name, getattr(x, f.name)) for f in dataclasses.fields(x))
    elif hasattr(x, "tocoo"):
        parts = vars(x.tocoo()).items()
    for key, part in parts:
        yield from _arrays_in(part, f"{name}/{key}")


def digest_of(arrays: Mapping[str, np.ndarray], more: bytes = b"") -> bytes:
    """Return a digest of arrays and their names, and of what else a file says."""
    h = hashlib.blake2b(more, digest_size=16)
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        h.update(f"{name} {a.shape} {a.dtype.str};".encode())
        h.update(a.tobytes())
    return h.digest()


def owner_only(path: str, flags: int) -> int:
    """Open a file that, if it is made, nobody else may read: an ``opener`` of `open`."""
    return os.open(path, flags, 0o600)


def write_private(path: str | os.PathLike[str], content: bytes) -> None:
    """Write as `write_file` does, a file that nobody but its owner may read, whatever the permissions were."""
    write_together({path: content}, private=True)


def write_file(path: str | os.PathLike[str], content: bytes, durable: bool = True) -> None:
    """Write to a temporary file beside the target and rename it over the target, so that no reader sees a part.

    A file that is replaced leaves its permissions and, where that is allowed, its owner. The target of a link is
    written, the link stays; a device or a pipe is written to: only regular files are ever replaced. What is
    not durable need not survive a power cut: nobody waits for the disk. The folder is made if need be.
    """
    write_together({path: content}, durable)


def write_together(
    contents: Mapping[str | os.PathLike[str], bytes], durable: bool = True, private: bool = False
) -> None:
    """Write files that belong together, as `write_file` does: all are on the disk before one takes its place.

    Private ones are readable by their owner only. A disk that is full leaves everything as it was, without the folders
    that were made for the files.
    """
    ready: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for path, content in contents.items():
            before = _stat(path)
            if before is not None and not stat.S_ISREG(before.st_mode):
                if stat.S_ISSOCK(before.st_mode):
                    raise bad("file", "not be a socket, which no file can be written to", f"{os.fspath(path)!r}")
                with open(path, "wb") as f:
                    f.write(content)
                continue
            target = Path(os.path.realpath(path))
            made += _made(target.parent)
            ready.append((_temporary(target), target))
            _fill(ready[-1][0], content, None if private else before, durable, owner_only if private else None)
        for temporary, target in ready:
            os.replace(temporary, target)
    except BaseException:
        for temporary, _ in ready:
            temporary.unlink(missing_ok=True)
        _unmade(made)
        raise


def _fill(temporary: Path, content: bytes, before: os.stat_result | None, durable: bool, opener: Any = None) -> None:
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb", opener=opener) as f:  # never through a link that somebody else has put there
        f.write(content)
        if before is not None:
            _hand_down(f.fileno(), before)
        f.flush()
        if durable:
            os.fsync(f.fileno())


def _made(folder: Path) -> list[Path]:
    """Make a folder and those above it where they are missing; return them from the top."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()][::-1]
    try:
        for p in missing:
            p.mkdir(exist_ok=True)
    except OSError:
        _unmade(missing)
        raise
    return missing


def _unmade(folders: Sequence[Path]) -> None:
    with suppress(OSError):  # somebody else has put something there, or it was not made
        for p in reversed([p for p in folders if p.exists()]):
            p.rmdir()


def check_owner_only(who: str, path: str | os.PathLike[str]) -> None:
    """Raise ValueError if others of this machine may read or write a file or folder."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if os.name == "posix" and mode & 0o077:
        cure = f"chmod {'700' if os.path.isdir(path) else '600'} {os.fspath(path)}"
        raise bad(who, "be readable by its owner only", f"mode {mode:o}", cure)


def own_folder(who: str, path: str | os.PathLike[str], secret: bool = False) -> Path:
    """Return a folder that nobody else can write to, made if need be, and without links that lead out of it.

    Parameters
    ----------
    who : str
    path : path
    secret : bool
        Whether nobody else may read it either.

    Raises
    ------
    ValueError
        If it is a file, belongs to somebody else, others may write to it, or a link is in it.
    """
    folder = _path(who, "folder", path)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        entries, found = sorted(folder.iterdir()), folder.stat()
    except OSError as error:
        raise _unusable(who, "folder", path, error) from None
    if secret:
        check_owner_only(who, folder)
    if os.name == "posix" and found.st_mode & 0o022:
        raise bad(
            who,
            "be a folder that others cannot write to",
            f"mode {stat.S_IMODE(found.st_mode):o}",
            f"chmod 700 {folder}",
        )
    if hasattr(os, "geteuid") and os.geteuid() not in (0, found.st_uid):
        raise bad(who, "be a folder of who runs this", f"one of user {found.st_uid}: {folder}")
    if links := [entry.name for entry in entries if entry.is_symlink()]:
        raise bad(who, "hold files and no links", f"{links[0]!r} in {folder}", "take it away, or name another folder")
    return folder


def regular_or_new(path: str | os.PathLike[str]) -> bool:
    """Whether a path, links followed, is a regular file or nothing yet.

    >>> regular_or_new(os.devnull), regular_or_new(__file__), regular_or_new(__file__ + ".none")
    (False, True, True)
    """
    found = _stat(path)
    return found is None or stat.S_ISREG(found.st_mode)


def _stat(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _hand_down(file: int, before: os.stat_result) -> None:
    """Give an open file the owner and the permissions of the one that it replaces, the owner first: it clears bits."""
    if hasattr(os, "fchown"):
        with suppress(OSError):
            os.fchown(file, before.st_uid, before.st_gid)
    if hasattr(os, "fchmod"):
        with suppress(OSError):
            os.fchmod(file, stat.S_IMODE(before.st_mode))


@lru_cache(maxsize=1)
def package_digest() -> str:
    """Return a digest of the package's source: results that are kept are those of one state of it."""
    total = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(file.read_bytes())
    return total.hexdigest()


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    r"""Return rows as lines of a CSV file without formulas: text that begins with = + - @ gets an apostrophe before it.

    Labels, ids and names of columns are the users', and may be commands; numbers stay numbers.

    >>> csv_text([["id", "=cmd()"], ["-5", "@x"], ["+", -1.5]])
    "id,'=cmd()\n-5,'@x\n'+,-1.5\n"
    """
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([[_inert(cell) for cell in row] for row in rows])
    return out.getvalue()


def _inert(cell: Any) -> Any:
    """Return a cell that is no formula, and in one line for readers that end lines at carriage returns."""
    if not isinstance(cell, str):
        return cell
    formula = cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) and _NUMBER.fullmatch(cell) is None
    return ("'" if formula else "") + cell.replace("\r", " ")


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Return the content of an npz file without pickles: NumPy 2.1 takes ``savez(allow_pickle=)`` for an array.

    Equal arrays give equal bytes: no time is written down.
    """
    buffer = io.BytesIO()
    archive = zipfile.ZipFile(buffer, "w")
    try:
        for name, values in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)
    except BaseException:  # Ctrl-C too: to close an archive in which a file is open would end in another error
        archive.fp = None
        raise
    archive.close()
    return buffer.getvalue()


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def check_file(who: str, name: str | os.PathLike[str]) -> Path:
    """Return the path of a file to be written, after trying to write beside it, or asking whether a device may be.

    Raises
    ------
    ValueError
        If the name is empty or none, or a folder; if its folder does not exist or cannot be written to; if it is a
        device or a pipe that cannot be written to, or a socket.
    """
    file = _path(who, "file", name)
    target = Path(os.path.realpath(file))
    if not regular_or_new(file) and not file.is_dir():
        if not os.access(file, os.W_OK) or stat.S_ISSOCK(file.stat().st_mode):
            raise bad(who, "be a file that can be written to", f"{os.fspath(name)!r}")
        return file
    if file.is_dir() or not target.parent.is_dir():
        raise bad(who, "be a file in an existing folder", f"{os.fspath(name)!r}")
    _try(who, "file", name, _temporary(target))
    return file


def check_regular_file(who: str, name: str | os.PathLike[str]) -> Path:
    """Return the path of a file to be written and read again, as `check_file` does.

    Raises
    ------
    ValueError
        As `check_file` does, and if it is a device, a pipe or a socket.
    """
    file = check_file(who, name)
    if not regular_or_new(file):
        raise bad(who, "be a regular file, or new: it is read again", f"{os.fspath(name)!r}")
    return file


def check_folder(who: str, name: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that can be made and written to; nothing of the trial is left there.

    Raises
    ------
    ValueError
        If the name is empty or none, or a file; if the folder cannot be made or written to.
    """
    folder = _path(who, "folder", name)
    if folder.exists() and not folder.is_dir():
        raise bad(who, "be a folder that can be written to", f"{os.fspath(name)!r}, a file")
    try:
        made = _made(folder.absolute())
    except OSError as error:
        raise _unusable(who, "folder", name, error) from None
    try:
        _try(who, "folder", name, folder / f".fedconvex.{os.getpid()}")
    finally:
        _unmade(made)
    return folder


def read_place(who: str, name: str | os.PathLike[str]) -> Path:
    """Return the path of what is to be read, a name that can be one.

    Raises
    ------
    TypeError, ValueError
        If it is no path, or holds NUL, or is too long for a name.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise wrong_type(who, "be a path", type(name).__name__)
    text = os.fspath(name)
    if not text or "\0" in text:
        raise bad(who, "be a name, without NUL", f"{text!r}")
    try:
        os.stat(text)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise bad(who, "be a place that can be read", f"{text!r} ({error.strerror})") from None
    return Path(text)


def existing(who: str, path: Any) -> Path:
    """Return the path of a file that exists."""
    file = read_place(f"{who}: path", path)
    if not file.is_file():
        raise FileNotFoundError(f"{who}: path must be an existing file; got {file}")
    return file


def _path(who: str, kind: str, name: str | os.PathLike[str]) -> Path:
    if not isinstance(name, (str, os.PathLike)):
        raise wrong_type(who, f"be the name of a {kind}", f"{type(name).__name__} {name!r}")
    text = os.fspath(name)
    if not text or "\0" in text:
        raise bad(who, f"be the name of a {kind}", f"{text!r}")
    try:
        os.stat(text)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(who, kind, name, error) from None
    return Path(text)


def _try(who: str, kind: str, name: str | os.PathLike[str], probe: Path) -> None:
    """Write and remove a file of another name."""
    try:
        probe.unlink(missing_ok=True)
        probe.open("xb").close()
        probe.unlink()
    except OSError as error:
        raise _unusable(who, kind, name, error) from None


def _unusable(who: str, kind: str, name: str | os.PathLike[str], error: OSError) -> ValueError:
    return bad(who, f"be a {kind} that can be written to", f"{os.fspath(name)!r} ({error.strerror})")
