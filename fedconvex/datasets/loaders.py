"""Read data as a `Table`, by the suffix of the file: CSV, Parquet, svmlight and npz.

A table becomes a federation by ``Federation.from_arrays(table.X, table.y, table.clients, table.domains)``, or with a
partition of `fedconvex.datasets` in place of ``table.clients``. Nothing is read with pickle, nothing is imputed or
dropped.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fedconvex._check import bad, whole
from fedconvex.datasets.table import Table, tabulated
from fedconvex.datasets.table_files import load_table
from fedconvex.tables.frame import Frame
from fedconvex.tables.other_files import MAX_BYTES, read_npz, read_svmlight
from fedconvex.tables.planning import Wishes
from fedconvex.tables.reading import existing, plan, suffix

__all__ = ["MAX_BYTES", "load", "load_npz", "load_svmlight"]


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
    most = whole("load_svmlight: max_bytes", max_bytes, low=1)
    return _table("load_svmlight", read_svmlight(f"load_svmlight: {file.name}", file, width, most))


def load_npz(path: str | PathLike[str], max_bytes: int = MAX_BYTES) -> Table:
    """Return the arrays of a NumPy .npz archive as a table, read without pickle.

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
    most = whole("load_npz: max_bytes", max_bytes, low=1)
    return _table("load_npz", read_npz(f"load_npz: {file.name}", file, most, need_target=True))


def _table(who: str, frame: Frame) -> Table:
    return tabulated(who, frame, plan(frame, Wishes(guard=False)))
