"""Parquet, npz and svmlight files as frames."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._archives import Unsafe, arrays_in
from fedconvex._check import bad, finite, wrong_type
from fedconvex._sparse import sound
from fedconvex.tables.frame import Frame, as_written, one_spelling, texts
from fedconvex.tables.spelling import EXACT
from fedconvex.tables.text_lines import MAX_BYTES, Lines, check_growth, opener

__all__ = ["MAX_BYTES", "plain_numbers", "read_arrays", "read_npz", "read_parquet", "read_svmlight"]

_DAMAGE = zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, MemoryError


# ---------------------------------------------------------------------- Parquet
def read_parquet(who: str, file: Path) -> Frame:
    """Return the columns of a Parquet file.

    Raises
    ------
    ImportError
        Without pyarrow.
    ValueError
        If the file is damaged or has no rows.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError('load_table must have pyarrow to read Parquet: pip install "fedconvex[report]"') from error
    try:
        with pq.ParquetFile(file) as source:
            index = _index_of(source.schema_arrow.metadata)
            check_growth(who, file, 8 * source.metadata.num_rows * source.metadata.num_columns)
            data = source.read()
    except (pa.ArrowException, OSError) as error:
        raise bad(who, "be a complete Parquet file", f"{type(error).__name__}: {error}") from error
    if data.num_rows == 0:
        raise bad(who, "have at least one row", "none")
    cells, names, categories = {}, data.schema.names, set()
    written: dict[str, np.ndarray] = {}
    if len(set(names)) < len(names):
        raise bad(who, "name every column once", f"columns {', '.join(names)}")
    for c in names:
        kind = data.schema.field(c).type
        if pa.types.is_dictionary(kind):
            categories.add(c)
            kind = kind.value_type
        cells[c] = _arrow_cells(pa, f"{who}: column {c!r}", data[c], kind, c in categories)
        whole = pa.types.is_integer(kind) and c not in categories
        if pa.types.is_boolean(kind) or (whole and np.nanmax(np.abs(cells[c]), initial=0.0) >= EXACT):
            found = as_written(np.array(data[c].to_pylist(), dtype=object))
            written |= {} if found is None else {c: found}
    index = [c for c in index if c in cells]
    return one_spelling(Frame(cells, who, "", {}, frozenset(categories), tuple(index), written=written))


def _arrow_cells(pa: Any, who: str, cells: Any, kind: Any, is_category: bool) -> np.ndarray:
    """Return a column as float64, datetime64 or objects."""
    types = pa.types
    if types.is_null(kind):
        return np.full(len(cells), np.nan)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    if numbers and not is_category:
        return np.array(cells.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    if types.is_timestamp(kind) or types.is_date(kind):
        return cells.cast(pa.timestamp("ns"), safe=False).to_numpy().astype("datetime64[ns]")
    text = types.is_string(kind) or types.is_large_string(kind) or numbers
    if not text and not types.is_string_view(kind):
        raise wrong_type(who, "hold numbers, text or dates", f"{kind}", "convert or leave it out")
    values = cells.to_pylist()
    return texts(values, [v is None or v != v for v in values])


def _index_of(metadata: Any) -> list[str]:
    """Return the columns that hold the index of a frame, by what pandas noted in the file: numbers of rows."""
    try:
        noted = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return [c for c in noted if isinstance(c, str)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


# ---------------------------------------------------------------------- svmlight
def read_svmlight(who: str, file: Path, n_features: int | None = None, most: int = MAX_BYTES) -> Frame:
    """Return the rows of an svmlight file, sparse, with the label as the column "label"."""
    from sklearn.datasets import load_svmlight_file

    try:
        with opener(file)(file, "rb") as stream:
            X, y, query = load_svmlight_file(Lines(who, file, stream), n_features=n_features, query_id=True)
    except (ValueError, IndexError, EOFError, OSError, OverflowError, zlib.error) as error:
        if str(error).startswith(who):
            raise
        raise bad(who, "hold lines 'label index:value ...' with rising indices", f"{error}") from error
    if query.size:
        raise bad(who, "have no qid (queries of a ranking are not modelled)", f"qid:{query[0]}", "remove them")
    _affordable(who, f"a model of {X.shape[1]} columns", 8 * X.shape[1], most)
    if 0 in X.shape:
        raise bad(f"{who}: X", "have at least one row and one feature", f"shape {X.shape}")
    finite(f"{who}: X", X.data)
    return _with_roles(who, sp.csr_array(X), None, {"target": y})


# ---------------------------------------------------------------------- npz
_KEYS = {"X", "x_train", "y", "y_train", "clients", "client", "domains", "domain", "feature_names", "sample_weight"}
_KEYS |= {"data", "indices", "indptr", "shape", "format"}


def read_npz(who: str, file: Path, most: int = MAX_BYTES, need_target: bool = False) -> Frame:
    """Return the arrays of an .npz archive as columns, read without pickle; y may be missing where it is not needed."""
    arrays = read_arrays(who, file, _KEYS.__contains__, most)
    y, X = _one_of(arrays, "y", "y_train"), _one_of(arrays, "X", "x_train")
    if X is None and {"data", "indices", "indptr", "shape"} <= arrays.keys():
        X = _csr(who, arrays, most)
    if X is None or (need_target and y is None):
        found = ", ".join(arrays) or "nothing"
        raise bad(who, "hold X (or x_train, or data, indices, indptr and shape) and y (or y_train)", found)
    if not sp.issparse(X):
        X = _flat(plain_numbers(f"{who}: X", X))
    if X.ndim != 2 or 0 in X.shape:
        raise bad(f"{who}: X", "have at least one row and one feature", f"shape {X.shape}")
    finite(f"{who}: X", np.asarray(X.data) if sp.issparse(X) else X)
    names = arrays.get("feature_names")
    if names is not None and names.size != X.shape[1]:
        raise bad(f"{who}: feature_names", f"name each of the {X.shape[1]} features once", f"{names.size} names")
    called = None if names is None else tuple(str(v) for v in names.ravel().tolist())
    given = {
        "target": y,
        "client": _one_of(arrays, "clients", "client"),
        "domain": _one_of(arrays, "domains", "domain"),
    }
    given["weight"] = arrays.get("sample_weight")
    return _with_roles(who, X, called, {role: v for role, v in given.items() if v is not None})


def _with_roles(who: str, X: Any, names: tuple[str, ...] | None, given: dict[str, np.ndarray]) -> Frame:
    """Return features beside columns whose role the format gives."""
    frame = Frame.of(X, names, who)
    cells, roles, n, written = dict(frame.cells), {}, frame.n, {}
    for role, v in given.items():
        v = v[:, 0] if v.ndim == 2 and v.shape[1] == 1 else v
        called = {"target": "y", "client": "clients", "domain": "domains", "weight": "sample_weight"}[role]
        if v.shape != (n,):
            raise bad(f"{who}: {called}", f"have one entry per row of X ({n})", f"shape {v.shape}")
        if v.dtype.kind in "SU" and role != "weight":
            column = texts(v.astype(str).tolist(), [False] * v.size)
        else:
            column = plain_numbers(f"{who}: {called}", v)
            finite(f"{who}: {called}", column)
        while called in frame.names:
            called += "'"
        cells[called], roles[role] = column, called
        if v.dtype.kind in "iu" and (names_ := as_written(v)) is not None:
            written[called] = names_
    return one_spelling(replace(frame, cells=cells, origin=who, roles=roles, written=written))


def _affordable(who: str, what: str, size: int, most: int) -> None:
    if size > most:
        cure = f"pass max_bytes={size} if that is what you want"
        raise bad(who, f"take at most max_bytes = {most:,} bytes in memory", f"{what}: {size:,} bytes", cure)


def read_arrays(who: str, file: Path, known: Callable[[str], bool], most: int = MAX_BYTES) -> dict[str, Any]:
    """Return the arrays of an .npz archive by name, read without pickle; None for names that are not known."""
    if not zipfile.is_zipfile(file):
        got = f"{file.stat().st_size} bytes that are none"
        raise bad(who, "be a complete .npz (zip) archive", got, "the file is truncated or of another format")
    try:
        with zipfile.ZipFile(file) as packed:
            sizes = {f.filename.removesuffix(".npy"): f.file_size for f in packed.infolist()}
            _affordable(who, "its arrays", sum(size for key, size in sizes.items() if known(key)), most)
        return arrays_in(file, known, most)
    except Unsafe as error:
        where = f"{who}: {error.entry}"
        if "pickle" in error.what:
            must, cure = "be readable without pickle", "save plain numbers or fixed-width strings"
            raise bad(where, must, "an array of pickled objects", cure) from None
        if "no .npy" in error.what:
            raise bad(where, "be an array", "bytes that are no .npy file") from None
        raise bad(who, "be a complete .npz archive", f"{error}") from None
    except ValueError as error:
        if str(error).startswith(who):
            raise
        raise bad(who, "be a complete .npz archive", f"{error}") from error
    except _DAMAGE as error:
        raise bad(who, "be a complete .npz archive", f"{error}") from error


def _one_of(arrays: dict[str, np.ndarray], *names: str) -> np.ndarray | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _flat(X: np.ndarray) -> np.ndarray:
    """Return the array with the axes after the first flattened, if there are several."""
    return X.reshape(X.shape[0], -1) if X.ndim > 2 and X.shape[0] else X


def plain_numbers(who: str, a: np.ndarray) -> np.ndarray:
    """Return an array of numbers as float64."""
    if a.dtype.kind not in "fiub":
        raise wrong_type(who, "hold real numbers", f"dtype {a.dtype}")
    return a.astype(np.float64)


def _csr(who: str, arrays: dict[str, np.ndarray], most: int) -> Any:
    """Return the CSR matrix of data, indices, indptr and shape, fully checked."""
    stored = arrays.get("format")
    if stored is not None and stored.size != 1:
        raise bad(who, "name one sparse format", f"{stored.size} of them", "save X.tocsr()")
    kind = "csr" if stored is None else stored.item()
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if kind != "csr":
        raise bad(who, "hold a sparse matrix in CSR format", kind, "save X.tocsr()")
    data = plain_numbers(f"{who}: data", arrays["data"])
    for name in ("indices", "indptr", "shape"):
        if arrays[name].dtype.kind not in "iu":
            raise wrong_type(f"{who}: {name}", "hold whole numbers", f"dtype {arrays[name].dtype}")
    try:
        X = sp.csr_array((data, arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"].tolist()))
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise bad(who, "hold data, indices, indptr and shape of a CSR matrix", f"{error}") from error
    sound(who, X)
    _affordable(who, f"a model of {X.shape[1]} columns", 8 * X.shape[1], most)
    entries = X.nnz
    X.sum_duplicates()
    if X.nnz != entries:
        raise bad(who, "hold every entry of the matrix once", f"{entries - X.nnz} entries twice", "sum them first")
    return X
