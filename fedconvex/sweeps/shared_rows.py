"""Rows that processes share: written once, mapped into memory by whoever works on them, never pickled."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad
from fedconvex._files import write_file
from fedconvex.federation import Federation

_ROWS = ("y", "ptr", "domain", "sample_weight")  # and X
_SMALL = ("labels", "domain_labels", "ids", "columns")
_LIGHT = 1 << 20  # bytes of what is computed once and sent along


class SharedFederation(Federation):
    """A federation whose rows lie in files: sent to another process it is opened there, at no cost."""

    def __reduce__(self) -> Any:
        return _opened, (self.__dict__["place"], self.d, *(getattr(self, name) for name in _SMALL))


def shared(problem: Any, folder: Path) -> Any:
    """Return a copy of the problem that has computed nothing yet, with the rows of a `Federation` in files of a folder.

    What the original has computed depends on how often, and with which tolerance, it was asked. Other federations are
    copied, as they would be for another process: views of columns become arrays of their own, which linear algebra may
    add up in another order.
    """
    fed = vars(problem).get("federation")
    mapped = type(fed) is Federation and not (fed.is_sparse and fed.X.nnz == 0)  # no file of nothing can be mapped
    other = copy.copy(problem) if mapped else copy.deepcopy(problem)
    _forget(other, lambda value: True)
    if "_solution" in vars(other):
        other._solution = None
    if mapped:
        place = folder / f"rows-{fed.digest}"
        _write(fed, place)
        small = [getattr(fed, name) for name in _SMALL]
        try:  # kernels follow indices and pointers wherever these lead
            found = _opened(str(place), fed.d, *small)
            same = found.digest == fed.digest
        except (ValueError, KeyError, TypeError, EOFError):  # whatever files of other kinds make their readers raise
            same = False
        if not same:
            must, cure = "hold the rows that the sweep wrote there", "remove it, the rows are written anew"
            raise bad(f"sweep: folder {place}", must, "other files", cure)
        other.federation = found
    return other


def lightened(problem: Any) -> Any:
    """Return a problem of `shared` without what it has computed for every row, or of a size that nobody knows."""
    n = problem.federation.n
    _forget(problem, lambda value: not _is_light(value, n))
    return problem


def _forget(problem: Any, what: Callable[[Any], bool]) -> None:
    """Remove what was computed once, where ``what`` says so."""
    for name, value in list(vars(problem).items()):
        if isinstance(getattr(type(problem), name, None), cached_property) and what(value):
            del problem.__dict__[name]


def _is_light(value: Any, n: int) -> bool:
    """Whether a value is numbers, texts and arrays in nested tuples, and no array has an entry for every row."""
    if isinstance(value, (tuple, list)):
        return all(_is_light(v, n) for v in value)
    if isinstance(value, np.ndarray):
        return value.shape[:1] != (n,) and value.nbytes <= _LIGHT
    return value is None or isinstance(value, (int, float, str, np.generic))


def _write(fed: Federation, place: Path) -> None:
    """Write the arrays of a federation, those that are not there yet; the last one is ptr."""
    X = fed.X
    arrays = {"data": X.data, "indices": X.indices, "indptr": X.indptr} if fed.is_sparse else {"X": X}
    arrays |= {name: getattr(fed, name) for name in reversed(_ROWS) if getattr(fed, name) is not None}
    place.mkdir(exist_ok=True)
    if (place / "ptr.npy").exists():
        return
    for name, a in arrays.items():
        content = io.BytesIO()
        np.lib.format.write_array(content, np.ascontiguousarray(a), allow_pickle=False)
        write_file(place / f"{name}.npy", content.getvalue())


@lru_cache(maxsize=64)
def _mapped(place: str) -> dict[str, np.ndarray]:
    """Return the arrays of a folder, mapped read-only."""
    files = sorted(file for file in Path(place).glob("*.npy") if file.is_file())
    if not any(file.stem == "ptr" for file in files):
        text = f"sweep: folder must be seen by all processes that work on it; got none at {place}"
        raise FileNotFoundError(f"{text}: pass a folder= that they share")
    return {file.stem: np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)) for file in files}


def _opened(place: str, d: int, *small: Any) -> SharedFederation:
    """Return the federation whose rows lie in a folder; nothing is checked again."""
    arrays, fed = _mapped(place), object.__new__(SharedFederation)
    X: Any = arrays.get("X")
    if X is None:
        parts = arrays["data"], arrays["indices"], arrays["indptr"]
        X = sp.csr_array(parts, shape=(len(parts[2]) - 1, d), copy=False)
    rows = {name: arrays.get(name) for name in _ROWS}
    fed.__setstate__({"X": X, **rows, **dict(zip(_SMALL, small, strict=True))})
    fed.__dict__["place"] = place
    return fed
