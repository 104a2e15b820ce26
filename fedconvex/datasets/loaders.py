"""Read data as a `Table`, by the suffix of the file: CSV, Parquet, svmlight and npz.

A table becomes a federation by ``Federation.from_arrays(table.X, table.y, table.clients, table.domains)``, or with a
partition of `fedconvex.datasets` in place of ``table.clients``. Nothing is read with pickle, nothing is imputed or
dropped.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, whole, wrong_type
from fedconvex.datasets.table import Table, checked, coded, existing, suffix
from fedconvex.datasets.table_files import load_table

__all__ = ["MAX_BYTES", "load", "load_npz", "load_svmlight"]

MAX_BYTES = 2**31  # what a file may ask for before somebody says that it is meant


def load(
    path: str | PathLike[str],
    target: str | None = None,
    client: str | None = None,
    domain: str | None = None,
    weight: str | None = None,
) -> Table:
    r"""Read a file by its suffix.

    ========================================================== ==========================
    suffix                                                     read by
    ========================================================== ==========================
    .csv .csv.gz .csv.bz2 .parquet                             `load_table`
    .svm .svmlight .libsvm .txt, each also with .gz or .bz2    `load_svmlight`
    .npz                                                       `load_npz`
    ========================================================== ==========================

    Parameters
    ----------
    path : path
        The file.
    target, client, domain, weight : str, optional
        Columns of a table; a table needs at least the target. The other formats carry their own and take none.

    Returns
    -------
    Table
        The rows.

    Raises
    ------
    ValueError
        If the suffix is unknown, the file is malformed, or column names are missing or out of place.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "wards.csv"
    ...     _ = path.write_text("age,ward,ill\n61,a,yes\n37,b,no\n50,a,no\n")
    ...     load(path, target="ill", client="ward")
    Table(3 rows, 1 features, 2 clients, 2 classes, dense)
    """
    kind = suffix("load", path)
    if kind in (".csv", ".parquet"):
        if target is None:
            raise bad(f"load: {Path(path).name}", "come with the name of its target column", "none", "pass target=")
        return load_table(path, target, client, domain, weight=weight)
    named = {"target": target, "client": client, "domain": domain, "weight": weight}
    given = [f"{k}={v!r}" for k, v in named.items() if v is not None]
    if given:
        raise bad(f"load: {Path(path).name}", "be given no column names (the format has none)", ", ".join(given))
    return load_npz(path) if kind == ".npz" else load_svmlight(path)


def load_svmlight(path: str | PathLike[str], n_features: int | None = None, max_bytes: int = MAX_BYTES) -> Table:
    r"""Read a file in the svmlight / LIBSVM format: per line a label and index:value pairs.

    Indices that start at 1 are recognised by the absence of 0.

    Parameters
    ----------
    path : path
        The file, optionally .gz or .bz2.
    n_features : int, optional
        Number of columns, if the file may lack the last ones (a test file); default the largest index found.
    max_bytes : int
        Largest size of a model of these columns, 8 bytes each: a wrong index would ask for gigabytes.

    Returns
    -------
    Table
        X as csr_array, y as in the file, nothing else.

    Raises
    ------
    ValueError
        If a line is malformed or has a qid (queries are not modelled), a number is NaN or infinite, the file has no
        rows, n_features is too small, or there are too many columns for max_bytes.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "a.svm"
    ...     _ = path.write_text("+1 1:0.5 3:2\n-1 2:1\n")
    ...     table = load_svmlight(path)
    >>> table.X.toarray().tolist(), table.y.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1.0, -1.0])
    """
    file = existing("load_svmlight", path)
    width = None if n_features is None else whole("load_svmlight: n_features", n_features, low=1)
    from sklearn.datasets import load_svmlight_file

    who = f"load_svmlight: {file.name}"
    most = whole("load_svmlight: max_bytes", max_bytes, low=1)
    try:
        X, y, query = load_svmlight_file(str(file), n_features=width, query_id=True)
    except (ValueError, IndexError, EOFError, OSError, OverflowError) as error:
        raise bad(who, "hold lines 'label index:value ...' with rising indices", f"{error}") from error
    if query.size:
        raise bad(who, "have no qid (queries of a ranking are not modelled)", f"qid:{query[0]}", "remove them")
    _affordable(who, f"a model of {X.shape[1]} columns", 8 * X.shape[1], most)
    return checked(who, Table(sp.csr_array(X), y))


def load_npz(path: str | PathLike[str], max_bytes: int = MAX_BYTES) -> Table:
    """Read arrays from a NumPy .npz archive, without pickle.

    ====================== ===========================================================================================
    key (or)               array
    ====================== ===========================================================================================
    X (x_train)            features (n, ...), axes after the first are flattened; or, as `scipy.sparse.save_npz` writes
                           a CSR matrix, data, indices, indptr and shape
    y (y_train)            target (n,), numbers or strings
    clients (client)       optional, (n,)
    domains (domain)       optional, (n,)
    sample_weight          optional, (n,), what every row weighs
    feature_names          optional, (d,); other keys, such as x_test, are ignored
    ====================== ===========================================================================================

    Parameters
    ----------
    path : path
        The archive.
    max_bytes : int
        Largest size of its arrays in memory; an archive of a megabyte may unpack to gigabytes.

    Raises
    ------
    ValueError
        If the file is truncated or no zip archive, lacks a key, holds pickled objects, its arrays do not fit, have
        entries twice, or take more than max_bytes.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "a.npz"
    ...     np.savez(path, X=np.eye(2), y=np.array(["no", "yes"]), clients=np.array([4, 2]))
    ...     load_npz(path)
    Table(2 rows, 2 features, 2 clients, 2 classes, dense)
    """
    file = existing("load_npz", path)
    who = f"load_npz: {file.name}"
    arrays = read_arrays(who, file, _KEYS.__contains__, whole("load_npz: max_bytes", max_bytes, low=1))
    y, classes = _one_of(arrays, "y", "y_train"), None
    X = _one_of(arrays, "X", "x_train")
    if X is None and {"data", "indices", "indptr", "shape"} <= arrays.keys():
        X = _csr(who, arrays, max_bytes)
    if X is None or y is None:
        found = ", ".join(arrays) or "nothing"
        raise bad(who, "hold X (or x_train, or data, indices, indptr and shape) and y (or y_train)", found)
    if not sp.issparse(X):
        X = _flat(_plain_numbers(f"{who}: X", X))
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind in "US":
        classes, y = coded(y.astype(str))
    y, names = _plain_numbers(f"{who}: y", y), arrays.get("feature_names")
    columns = None if names is None else tuple(str(v) for v in names.ravel().tolist())
    owners, domains = _one_of(arrays, "clients", "client"), _one_of(arrays, "domains", "domain")
    weights = _plain_numbers(f"{who}: sample_weight", arrays["sample_weight"]) if "sample_weight" in arrays else None
    return checked(who, Table(X, y, owners, domains, columns, classes, weights))


# ---------------------------------------------------------------------- npz
_KEYS = {"X", "x_train", "y", "y_train", "clients", "client", "domains", "domain", "feature_names", "sample_weight"}
_KEYS |= {"data", "indices", "indptr", "shape", "format"}


def _affordable(who: str, what: str, size: int, most: int) -> None:
    if size > most:
        cure = f"pass max_bytes={size} if that is what you want"
        raise bad(who, f"take at most max_bytes = {most:,} bytes in memory", f"{what}: {size:,} bytes", cure)


def read_arrays(who: str, file: Path, known: Callable[[str], bool], most: int = MAX_BYTES) -> dict[str, Any]:
    """Return the arrays of an .npz archive by name, read without pickle; None for names that are not known."""
    if not zipfile.is_zipfile(file):
        got = f"{file.stat().st_size} bytes that are none"
        raise bad(who, "be a complete .npz (zip) archive", got, "the file is truncated or of another format")
    arrays: dict[str, Any] = {}
    key = ""
    try:
        with zipfile.ZipFile(file) as packed:
            sizes = {f.filename.removesuffix(".npy"): f.file_size for f in packed.infolist()}
            _affordable(who, "its arrays", sum(size for key, size in sizes.items() if known(key)), most)
        with np.load(file, allow_pickle=False) as archive:
            for key in archive.files:
                arrays[key] = archive[key] if known(key) else None
                if known(key) and not isinstance(arrays[key], np.ndarray):
                    raise bad(f"{who}: {key}", "be an array", "bytes that are no .npy file")
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, MemoryError) as error:
        raise bad(who, "be a complete .npz archive", f"{error} (at {key or 'its start'})") from error
    except ValueError as error:
        if str(error).startswith(who):
            raise
        if "allow_pickle" not in str(error):
            raise bad(who, "be a complete .npz archive", f"{error} (at {key})") from error
        cure = "save plain numbers or fixed-width strings"
        raise bad(f"{who}: {key}", "be readable without pickle", "an array of pickled objects", cure) from None
    return arrays


def _one_of(arrays: dict[str, np.ndarray], *names: str) -> np.ndarray | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _flat(X: np.ndarray) -> np.ndarray:
    """Return the array with the axes after the first flattened, if there are several."""
    return X.reshape(X.shape[0], -1) if X.ndim > 2 and X.shape[0] else X


def _plain_numbers(who: str, a: np.ndarray) -> np.ndarray:
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
    data = _plain_numbers(f"{who}: data", arrays["data"])
    for name in ("indices", "indptr", "shape"):
        if arrays[name].dtype.kind not in "iu":
            raise wrong_type(f"{who}: {name}", "hold whole numbers", f"dtype {arrays[name].dtype}")
    try:
        X = sp.csr_array((data, arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"].tolist()))
        X.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise bad(who, "hold data, indices, indptr and shape of a CSR matrix", f"{error}") from error
    _affordable(who, f"a model of {X.shape[1]} columns", 8 * X.shape[1], most)
    entries = X.nnz
    X.sum_duplicates()
    if X.nnz != entries:
        raise bad(who, "hold every entry of the matrix once", f"{entries - X.nnz} entries twice", "sum them first")
    return X
