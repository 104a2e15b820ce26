"""Finished parts of a long experiment, kept in a folder: a run that was killed goes on where it was.

A part is what a function returned: numbers, text, arrays, lists, tuples, mappings, and named tuples and dataclasses of
this package, stored in an npz archive without pickle. Parts belong to one experiment, version, seed, data (file or
folder) and state of the package's source; those of another are thrown away.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedconvex._check import bad
from fedconvex._files import package_digest, write_file

__all__ = ["keeping", "kept", "number_kept"]

T = TypeVar("T")

_HOME: ContextVar[tuple[Path, str] | None] = ContextVar("folder of finished parts, and whose they are", default=None)
_IDENTITY = "run.json"


@contextmanager
def keeping(folder: Path | None, name: str, quick: bool, seed: int, data: Any) -> Iterator[None]:
    """Keep the parts that are made inside in a folder, and throw away what another run left there.

    Nothing is kept without a folder, or where the data are an object in memory.

    Raises
    ------
    ValueError
        If the folder holds something that no run left there.
    """
    if folder is None or not (data is None or isinstance(data, (str, Path))):
        yield
        return
    identity = json.dumps([name, quick, seed, "" if data is None else _digest(Path(data)), package_digest()])
    mark = folder / _IDENTITY
    if folder.is_dir() and not mark.is_file() and any(folder.iterdir()):
        must = f"be new, or hold finished parts of an earlier run and their {_IDENTITY}"
        raise bad(f"reproduce: {folder}", must, "other files, which would be deleted", "choose another folder")
    if folder.is_dir() and not (mark.is_file() and mark.read_text() == identity):
        shutil.rmtree(folder)
    token = _HOME.set((folder, identity))
    try:
        yield
    finally:
        _HOME.reset(token)


def _digest(data: Path) -> str:
    """Return a digest of a file, or of a folder's files by name, size and date; nothing where there is neither."""
    if data.is_dir():
        files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in data.iterdir() if f.is_file())
        return hashlib.sha256(repr((str(data.resolve()), files)).encode()).hexdigest()
    return hashlib.sha256(data.read_bytes()).hexdigest() if data.is_file() else ""


def kept(part: str, make: Callable[[], T]) -> T:
    """Return what ``make`` returns, or what it returned before the run was killed.

    Parameters
    ----------
    part : str
        Name of the part, different from those of all other parts.
    make : callable
        Returns values of the kinds that the module names.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fedconvex.papers.kept import keeping, kept
    >>> with tempfile.TemporaryDirectory() as home, keeping(pathlib.Path(home) / "parts", "sums", False, 0, None):
    ...     kept("one", lambda: {"sum": 2}), kept("one", lambda: 1 / 0)  # the second is read
    ({'sum': 2}, {'sum': 2})
    """
    home = _HOME.get()
    if home is None:
        return make()
    folder, identity = home
    file = folder / (re.sub(r"[^0-9A-Za-z.]+", "-", part) + f"-{hashlib.sha256(part.encode()).hexdigest()[:8]}.npz")
    if file.is_file():
        try:
            return _read(file)  # type: ignore[no-any-return]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            file.unlink()  # damaged: made again
    made = make()
    arrays: list[np.ndarray] = []
    tree = json.dumps(_encoded(made, arrays))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _IDENTITY).is_file():
        write_file(folder / _IDENTITY, identity.encode())
    body = io.BytesIO()
    stored: dict[str, Any] = {f"a{i}": a for i, a in enumerate(arrays)}
    np.savez(body, tree=np.array(tree), **stored)
    write_file(file, body.getvalue())
    return made


def number_kept(folder: Path) -> int:
    """Return how many finished parts a folder holds."""
    return len(list(folder.glob("*.npz"))) if folder.is_dir() else 0


def _read(file: Path) -> Any:
    with np.load(file, allow_pickle=False) as archive:
        return _decoded(json.loads(str(archive["tree"])), archive)


def _encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON; its arrays are appended to ``arrays``."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        if np.asarray(value).dtype == object:
            raise TypeError("kept: arrays must hold numbers or text; got objects")
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1, "number": isinstance(value, np.generic)}
    if isinstance(value, dict):
        return {"map": [[_encoded(k, arrays), _encoded(v, arrays)] for k, v in value.items()]}
    kind = type(value)
    if dataclasses.is_dataclass(value) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        names = kind._fields if isinstance(value, tuple) else [f.name for f in dataclasses.fields(kind)]  # type: ignore[attr-defined]
        made = [_encoded(getattr(value, name), arrays) for name in names]
        return {"class": [kind.__module__, kind.__qualname__], "fields": made}
    if isinstance(value, (list, tuple)):
        return {"list": [_encoded(v, arrays) for v in value], "tuple": isinstance(value, tuple)}
    raise TypeError(f"kept: values must be numbers, text, arrays, sequences or records; got {kind.__name__}")


def _decoded(tree: Any, archive: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        value = archive[f"a{tree['array']}"]
        return value[()] if tree["number"] else value
    if "map" in tree:
        return {_decoded(k, archive): _decoded(v, archive) for k, v in tree["map"]}
    if "class" in tree:
        module, name = tree["class"]
        if not module.startswith("fedconvex."):
            raise ValueError(f"kept: classes must be of fedconvex; got {module}")
        return getattr(importlib.import_module(module), name)(*(_decoded(v, archive) for v in tree["fields"]))
    made = [_decoded(v, archive) for v in tree["list"]]
    return tuple(made) if tree["tuple"] else made
