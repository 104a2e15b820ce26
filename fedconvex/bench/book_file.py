"""The file of a book: its index and its arrays, checked before anything is made of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._archives import json_of
from fedconvex._check import bad
from fedconvex._files import existing
from fedconvex.federation import Federation
from fedconvex.tables.other_files import read_arrays

FORMAT = "fedconvex book 1"
MOST_GAP = 1e-9  # certified, that an optimum of a book has at most
_FIELDS = {"name": str, "loss": str, "l2": float, "classes": int, "sha256": str, "value": float, "gap": float}
_DENSE, _SPARSE, _ALL = ("X",), ("data", "indices", "indptr"), ("y", "ptr", "weights", "optimum")


def rows_of_book(path: str, name: Any) -> Federation:
    """Return the rows of a problem of a book, by its name."""
    place = existing("book", path)
    for i, said in enumerate(index_of(place)):
        if said["name"] == name:
            return federation_of(f"book {place.name}: problem {name}", arrays_of_problem(place, i), said)
    raise bad(f"book {place.name}: problem", "be one of the book", f"{name!r}")


def index_of(place: Path) -> list[dict[str, Any]]:
    """Return what a book says of its problems, checked but for losses, of which `Case` knows which there are."""
    who, raw = f"book {place.name}", read_arrays(f"book {place.name}", place, lambda name: name == "index").get("index")
    if raw is None or raw.dtype != np.uint8 or raw.ndim != 1:
        raise bad(who, "have an entry `index` of bytes", "none" if raw is None else f"{raw.dtype} of shape {raw.shape}")
    try:
        told = json_of(raw)
    except ValueError as error:
        raise bad(f"{who}: index", "be JSON", str(error)) from None
    if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("problems"), list):
        raise bad(f"{who}: index", f"say that its format is {FORMAT!r}, and list problems", f"{told!r:.60}")
    names = set()
    for said in told["problems"]:
        if not isinstance(said, dict) or any(not _fits(said.get(n), kind) for n, kind in _FIELDS.items()):
            raise bad(f"{who}: index", f"say {', '.join(_FIELDS)} of every problem", f"{said!r:.90}")
        if said["name"] in names or not 0.0 <= said["gap"] <= MOST_GAP:
            must = f"have names of their own and gaps up to {MOST_GAP:g}"
            raise bad(f"{who}: problems", must, f"{said['name']!r:.40}, {said['gap']!r}")
        names.add(said["name"])
    return list(told["problems"])


def _fits(value: Any, kind: type) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) if kind is float else isinstance(value, kind) and value is not True


def arrays_of_problem(place: Path, i: int) -> dict[str, np.ndarray]:
    """Return the arrays of a problem, by their names without its number."""
    found = read_arrays(f"book {place.name}", place, lambda name: name.startswith(f"p{i}_"))
    return {name.partition("_")[2]: a for name, a in found.items() if a is not None}


def federation_of(who: str, given: dict[str, np.ndarray], said: dict[str, Any]) -> Federation:
    """Return the rows, checked."""
    rows = _SPARSE if "data" in given else _DENSE
    if missing := [n for n in (*rows, *_ALL) if n not in given]:
        raise bad(who, f"have the arrays {', '.join((*rows, *_ALL))}", f"no {missing[0]}")
    whole = ("ptr", "indices", "indptr")
    for name, a in given.items():
        if a.dtype.kind not in ("iu" if name in whole else "f"):
            raise bad(f"{who}: {name}", "hold " + ("whole numbers" if name in whole else "floats"), str(a.dtype))
    y, ptr = given["y"], given["ptr"]
    if ptr.ndim != 1 or len(ptr) < 2 or ptr[0] != 0 or ptr[-1] != len(y) or (np.diff(ptr.astype(np.int64)) < 1).any():
        raise bad(f"{who}: ptr", f"rise from 0 to {len(y)}, the number of labels", f"{ptr[:5]!r}")
    X = given["X"] if rows == _DENSE else _csr(who, given, said)
    return Federation(X, y, ptr.astype(np.int64))


def _csr(who: str, given: dict[str, np.ndarray], said: dict[str, Any]) -> Any:
    data, indices, indptr = (given[n] for n in _SPARSE)
    d = said.get("columns")
    if not isinstance(d, int) or isinstance(d, bool) or not 1 <= d <= 1 << 31:
        raise bad(f"{who}: columns", "be a whole number from 1", f"{d!r}")
    ends = len(indptr) == len(given["y"]) + 1 and indptr[0] == 0 and indptr[-1] == len(data) == len(indices)
    if not ends or (np.diff(indptr.astype(np.int64)) < 0).any():
        raise bad(f"{who}: indptr", f"rise from 0 to {len(data)}, the number of entries", f"{indptr[:5]!r}")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < d:
        raise bad(f"{who}: indices", f"be columns, 0 to {d - 1}", f"{indices.min()} to {indices.max()}")
    return sp.csr_array((data, indices, indptr), shape=(len(given["y"]), d))
