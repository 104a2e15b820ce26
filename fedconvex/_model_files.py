"""Saved models: a folder with numbers (model.npz) and a description (model.json), checked field by field, no pickle.

Also what all models do with rows: raw rows of a table become features by the record of its columns.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex import __version__
from fedconvex._archives import arrays_in, json_in
from fedconvex._check import bad, finite, numeric
from fedconvex._files import npz, read_place, write_together
from fedconvex._sparse import sound_csr
from fedconvex.tables.columns import Columns
from fedconvex.tables.frame import Frame
from fedconvex.tables.reading import read_frame
from fedconvex.tables.records import described, restored

_FORMAT = "fedconvex model 3"
KINDS = {"linear": "LinearModel", "ensemble": "EnsembleModel"}  # and the class that reads them
# what a saved model says of itself beside the model, and the types that it may have; null where it is not known
_ABOUT: dict[str, tuple[type, ...]] = {
    "loss": (str,),
    "l2": (int, float),
    "penalty": (str,),
    "method": (str,),
    "gap": (int, float),
    "certificate": (str,),
    "data": (str,),
    "digest": (str,),
}
_OWN = ("format", "kind", "classes", "clients", "unknown_client", "feature_names", "table")


class Stored(NamedTuple):
    """What a folder holds."""

    arrays: dict[str, np.ndarray]
    classes: tuple[Any, ...] | None
    clients: tuple[Any, ...] | None
    feature_names: tuple[str, ...]
    about: dict[str, Any]
    columns: Columns | None


# ---------------------------------------------------------------------- writing
def write_model(
    who: str,
    place: Path,
    kind: str,
    arrays: dict[str, np.ndarray],
    names: Mapping[str, Sequence[Any] | None],
    about: Mapping[str, Any],
    columns: Columns | None,
) -> None:
    """Write model.npz and model.json, whole or not at all, both or neither.

    Parameters
    ----------
    who : str
        For error messages.
    place : Path
        A folder, made if need be.
    kind : str
        One of `KINDS`.
    arrays : dict of arrays
    names : mapping
        classes, clients and feature_names: what outputs, models and coefficients are called; None where there are none.
    about : mapping
        Everything else that JSON can hold.
    columns : Columns or None
    """
    for name, v in about.items():
        if isinstance(v, (float, np.floating)) and not np.isfinite(v):
            cure = "a gap of inf certifies nothing: run more rounds, with all sites, or leave it out"
            raise bad(f"{who}: about[{name!r}]", "be finite", v, cure)
    table = None
    if columns is not None:
        table = described(columns)
        arrays = {"center": columns.center, "scale": columns.scale, **arrays}  # type: ignore[dict-item]
    description = {"format": _FORMAT, "kind": kind, "version": __version__, **dict.fromkeys(_ABOUT), **about}
    description |= {k: _listed(v) for k, v in names.items()} | {"unknown_client": "mean", "table": table}
    try:
        text = json.dumps(description, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise bad(f"{who}: about", "hold what JSON can hold", f"{error}") from None
    write_together({place / "model.npz": npz(arrays), place / "model.json": text.encode() + b"\n"})


def _listed(names: Any) -> list[Any] | None:
    return None if names is None else [v.item() if isinstance(v, np.generic) else v for v in names]


# ---------------------------------------------------------------------- reading
def kind_of(who: str, folder: str | os.PathLike[str]) -> str:
    """Return which of `KINDS` a folder holds."""
    return str(_description(f"{who}: {_file(who, folder, 'model.json')}", _file(who, folder, "model.json"))["kind"])


def read_model(who: str, folder: str | os.PathLike[str], kind: str, arrays: tuple[str, ...] | None) -> Stored:
    """Return what `write_model` wrote.

    Parameters
    ----------
    who : str
        For error messages.
    folder : path
    kind : str
        One of `KINDS`.
    arrays : tuple of str, or None
        Names of the float64 arrays that must be there; None for a kind that checks all arrays itself.

    Raises
    ------
    ValueError
        If a file is damaged, of another kind, or holds pickles; if a field is missing or wrong, by name.
    FileNotFoundError
        If a file is missing.
    """
    numbers, description = (_file(who, folder, name) for name in ("model.npz", "model.json"))
    about = _description(f"{who}: {description}", description)
    if about["kind"] != kind:
        raise bad(
            f"{who}: {description}: kind", f"be {kind!r}", f"{about['kind']!r}", f"use {KINDS[about['kind']]}.load"
        )
    wanted = None if arrays is None else (*arrays, *(("center", "scale") if about["table"] is not None else ()))
    found = _arrays(f"{who}: {numbers}", numbers, wanted)
    columns = about["table"]
    if columns is not None:
        columns = restored(f"{who}: {description}", columns, found.pop("center"), found.pop("scale"))
    labels, clients = (None if about[k] is None else tuple(about[k]) for k in ("classes", "clients"))
    rest = {k: v for k, v in about.items() if k not in _OWN and not (k in _ABOUT and v is None)}
    return Stored(found, labels, clients, tuple(about["feature_names"]), rest, columns)


def _file(who: str, folder: str | os.PathLike[str], name: str) -> Path:
    file = read_place(f"{who}: folder", folder) / name
    if not file.is_file():
        raise FileNotFoundError(f"{who}: folder must hold {name}; got {folder}")
    return file


def _description(who: str, file: Path) -> dict[str, Any]:
    """Return the description of a model with every field that it must have."""
    try:
        about = json_in(file)
    except ValueError as error:
        raise bad(who, "be complete JSON", f"{error}") from None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        got = about.get("format", "no format") if isinstance(about, dict) else type(about).__name__
        raise bad(who, f"have the format {_FORMAT!r}", got, "train and save the model again")
    missing = [k for k in (*_OWN, *_ABOUT, "version") if k not in about]
    if missing:
        raise bad(who, "hold every field of a model", f"no {', '.join(missing)}")
    for name, kinds in _ABOUT.items():
        value = about[name]
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise bad(f"{who}: {name}", f"be {' or '.join(k.__name__ for k in kinds)}, or null", f"{value!r}")
        if isinstance(value, (int, float)) and not (math.isfinite(value) and (value >= 0 or name == "gap")):
            raise bad(f"{who}: {name}", "be a finite number" + (" of at least 0" if name == "l2" else ""), f"{value!r}")
    for name, kinds in (("classes", (str, int, float)), ("clients", (str, int, float)), ("feature_names", (str,))):
        value = about[name]
        listed = isinstance(value, list) and all(isinstance(v, kinds) for v in value)
        if not (listed or (value is None and name != "feature_names")):
            must = "be a list of names" + ("" if name == "feature_names" else " or null")
            raise bad(f"{who}: {name}", must, f"{value!r}")
    for name, known in (("unknown_client", ("mean",)), ("kind", tuple(KINDS))):
        if about[name] not in known:
            raise bad(f"{who}: {name}", f"be {' or '.join(map(repr, known))}", f"{about[name]!r}")
    return about


def _arrays(who: str, file: Path, names: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """Return arrays of an npz file, read without pickle; of named ones, that they are numbers."""
    try:
        stored = arrays_in(file)
        arrays = {name: stored[name] for name in (stored if names is None else names)}
        wrong = [f"{name} of {a.dtype}" for name, a in arrays.items() if names and a.dtype != np.float64]
        if wrong:
            raise ValueError(", ".join(wrong))
    except Exception as error:  # whatever a damaged or foreign file makes its readers raise
        must = "hold arrays" if names is None else f"hold the float64 arrays {', '.join(names)}, without pickle"
        raise bad(who, must, f"{type(error).__name__}: {error}") from None
    return arrays


# ---------------------------------------------------------------------- rows
def feature_matrix(who: str, X: Any, columns: Columns | None, names: Sequence[str]) -> tuple[Any, Frame | None]:
    """Return the features (n, d) of rows, dense or CSR, and the table they come from, if they come from one.

    Parameters
    ----------
    who : str
        For error messages.
    X : path, DataFrame, mapping or array
        Raw rows where there is a record of columns (an array has the raw columns, or all d features); else features.
    columns : Columns or None
        What the features are made of.
    names : sequence of d names
    """
    if columns is None:
        return _features(who, X, names), None
    owned = tuple(c.name for c in columns.features)
    plain = not (isinstance(X, (str, os.PathLike, Mapping, Frame)) or hasattr(X, "columns"))
    if plain and np.shape(X)[1:] == (len(names),) != (len(owned),):
        return _features(who, X, names), None  # more features than columns: they are encoded already
    frame = Frame.of(X, owned, "the rows") if plain else read_frame(X, text=columns.text)
    return columns.matrix(frame), frame


def _features(who: str, X: Any, names: Sequence[str]) -> Any:
    given = getattr(X, "columns", None)
    if given is not None and [str(c) for c in given] != list(names):
        found = [str(c) for c in given]
        cure = f"pass X[{list(names)!r}]" if set(names) <= set(found) else ""
        raise bad(who, f"have the columns {', '.join(names)}, in this order", ", ".join(found), cure)
    rows = sp.csr_array(sound_csr(who, X)) if sp.issparse(X) else numeric(who, X, copy=False)
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise bad(who, f"have {len(names)} columns", f"shape {rows.shape}")
    finite(who, np.asarray(rows.data) if sp.issparse(rows) else rows)  # type: ignore[union-attr]
    return rows
