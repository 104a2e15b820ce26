"""Finished parts of a long experiment, kept in a folder: a run that was killed goes on where it was.

A part is what a function returned: numbers, text, arrays, lists, tuples, dictionaries, and named tuples of the kinds
that the experiment names, stored in an npz archive without pickle. A file names kinds of that list and nothing else:
it never decides what is imported or called. Parts belong to one experiment, version, seed, data (file or folder) and
state of the package's source; those of another are thrown away.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedconvex._archives import arrays_in, json_in, json_of
from fedconvex._check import bad, wrong_type
from fedconvex._files import npz, package_digest, write_file

T = TypeVar("T")

_HOME: ContextVar[tuple[Path, str] | None] = ContextVar("folder of finished parts, and whose they are", default=None)
_IDENTITY = "run.json"


@contextmanager
def keeping(folder: Path | None, name: str, quick: bool, seed: int, data: Any) -> Iterator[None]:
    """Keep the parts that are made inside in a folder, and throw away what another run left there.

    A folder without parts does not stay. Nothing is kept without a folder, or where the data are an object in memory.

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
    if folder.is_dir() and any(folder.iterdir()) and not _ours(folder):
        must = f"be new, or hold finished parts of an earlier run and their {_IDENTITY}"
        raise bad(f"reproduce: {folder}", must, "other files, which would be deleted", "choose another folder")
    if folder.is_dir() and not (mark.is_file() and mark.read_text() == identity):
        shutil.rmtree(folder)
    token = _HOME.set((folder, identity))
    try:
        yield
    finally:
        _HOME.reset(token)
        if folder.is_dir() and not number_kept(folder):
            shutil.rmtree(folder)


def _ours(folder: Path) -> bool:
    """Whether a folder holds what runs leave there, and nothing else: their mark, parts, and parts half written."""
    others = [f.name for f in folder.iterdir() if f.name != _IDENTITY and not f.name.endswith((".npz", ".part"))]
    try:
        mark = json_in(folder / _IDENTITY)
    except (OSError, ValueError):
        return False
    return not others and isinstance(mark, list) and len(mark) == 5 and isinstance(mark[0], str)


def _digest(data: Path) -> str:
    """Return a digest of a file, or of a folder's files by name, size and date; nothing where there is neither."""
    if data.is_dir():
        files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in data.iterdir() if f.is_file())
        return hashlib.sha256(repr((str(data.resolve()), files)).encode()).hexdigest()
    return hashlib.sha256(data.read_bytes()).hexdigest() if data.is_file() else ""


def finished_part(part: str, make: Callable[[], T], records: Sequence[type] = ()) -> T:
    """Return what ``make`` returns, or what it returned before the run was killed.

    Parameters
    ----------
    part : str
        Name of the part, different from those of all other parts.
    make : callable
        Returns values of the kinds that the module names.
    records : sequence of types
        The named tuples that the part may hold.

    Raises
    ------
    TypeError
        If the part holds something else.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fedconvex.papers.finished_parts import finished_part, keeping
    >>> with tempfile.TemporaryDirectory() as home, keeping(pathlib.Path(home) / "parts", "sums", False, 0, None):
    ...     finished_part("one", lambda: {"sum": 2}), finished_part("one", lambda: 1 / 0)  # the second is read
    ({'sum': 2}, {'sum': 2})
    """
    home, kinds = _HOME.get(), {kind.__name__: kind for kind in records}
    if home is None:
        made = make()
        _encoded(made, [], kinds)  # what could not be kept is seen in every run
        return made
    folder, identity = home
    file = folder / (re.sub(r"[^0-9A-Za-z.]+", "-", part) + f"-{hashlib.sha256(part.encode()).hexdigest()[:8]}.npz")
    if file.is_file():
        try:
            return _read(file, kinds)  # type: ignore[no-any-return]
        except Exception:  # whatever a damaged or foreign file makes its readers raise
            file.unlink()  # damaged: made again
    made = make()
    arrays: list[np.ndarray] = []
    tree = json.dumps(_encoded(made, arrays, kinds))
    if not (folder / _IDENTITY).is_file():
        write_file(folder / _IDENTITY, identity.encode())
    write_file(file, npz({"tree": np.array(tree)} | {f"a{i}": a for i, a in enumerate(arrays)}))
    return made


def number_kept(folder: Path) -> int:
    """Return how many finished parts a folder holds."""
    return len(list(folder.glob("*.npz"))) if folder.is_dir() else 0


def _read(file: Path, kinds: Mapping[str, Any]) -> Any:
    archive = arrays_in(file)
    return _decoded(json_of(str(archive["tree"]).encode()), archive, kinds)


def _encoded(value: Any, arrays: list[np.ndarray], kinds: Mapping[str, Any]) -> Any:
    """Return a value as JSON; its arrays are appended to ``arrays``."""
    if isinstance(value, (np.ndarray, np.generic)):
        if np.asarray(value).dtype == object:
            raise TypeError("kept: arrays must hold numbers or text; got objects")
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1, "number": isinstance(value, np.generic)}
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is dict:
        return {"map": [[_encoded(k, arrays, kinds), _encoded(v, arrays, kinds)] for k, v in value.items()]}
    if kind in kinds.values():
        return {"record": kind.__name__, "fields": [_encoded(v, arrays, kinds) for v in value]}
    if kind in (list, tuple):
        return {"list": [_encoded(v, arrays, kinds) for v in value], "tuple": kind is tuple}
    named = ", ".join(kinds) or "none"
    must = f"be numbers, text, arrays, lists, tuples, dictionaries or records ({named} named)"
    raise wrong_type("kept: values", must, kind.__name__)


def _decoded(tree: Any, archive: Any, kinds: Mapping[str, Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        value = archive[f"a{tree['array']}"]
        return value[()] if tree["number"] else value
    if "map" in tree:
        return {_decoded(k, archive, kinds): _decoded(v, archive, kinds) for k, v in tree["map"]}
    made = [_decoded(v, archive, kinds) for v in tree["fields" if "record" in tree else "list"]]
    if "record" in tree:
        return kinds[tree["record"]]._make(made)
    return tuple(made) if tree["tuple"] else made
