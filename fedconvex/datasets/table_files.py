"""Tables in files: CSV and Parquet, one row per example and a name for every column."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from fedconvex._check import bad, items, text
from fedconvex.datasets.table import Table, tabulated
from fedconvex.tables.reading import existing, read_table, suffix


def load_table(
    path: str | PathLike[str],
    target: str,
    client: str | None = None,
    domain: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    weight: str | None = None,
    **how: Any,
) -> Table:
    r"""Read a CSV or Parquet file with one row per example and a name for every column; all columns are taken.

    Dates, identifiers and columns that give the target away are features too: `fedconvex.tables.read_table` refuses
    them. Columns of numbers are taken as they are, those of text one-hot encoded as "column=value" in sorted order.
    One-hot tables of more than 50 columns, at most a fifth of them not zero, are CSR.

    Parameters
    ----------
    path : path
        CSV, also .gz or .bz2, or Parquet (which needs pyarrow: ``pip install "fedconvex[report]"``).
    target : str
        Column to predict: numbers (taken as they are) or class labels (numbered in sorted order).
    client, domain, weight : str, optional
        Columns that say whose row it is, of which domain, and what it weighs; not features.
    features, categorical : sequence of str, optional
        Columns to use, default all others but the index of a pandas frame; columns of numbers that are names.
    **how
        sep, decimal, encoding, drop, impute, task, as for `fedconvex.tables.read_table`.

    Returns
    -------
    Table
        The rows in the order of the file.

    Raises
    ------
    ValueError, FileNotFoundError, ImportError
        As `fedconvex.tables.read_table`.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "wards.csv"
    ...     _ = path.write_text("age,sex,ward,ill\n61,f,7,yes\n37,m,9,no\n50,f,7,no\n")
    ...     table = load_table(path, target="ill", client="ward")
    >>> table.feature_names, table.X.tolist(), table.y.tolist(), table.classes
    (('age', 'sex=f', 'sex=m'), [[61.0, 1.0, 0.0], [37.0, 0.0, 1.0], [50.0, 1.0, 0.0]], [1.0, 0.0, 0.0], ('no', 'yes'))
    """
    file = existing("load_table", path)
    kind = suffix("load_table", path)
    if kind not in (".csv", ".parquet"):
        raise bad("load_table: path", "end in .csv, .csv.gz, .csv.bz2 or .parquet", file.name, "load reads others")
    features, categorical = _checked((target, client, domain, weight), features, categorical)
    frame, columns = read_table(
        path, target, client, domain, weight, features=features, as_category=categorical, guard=False, **how
    )
    return tabulated("load_table", frame, columns)


def _checked(roles: tuple[str | None, ...], features: Any, categorical: Any) -> tuple[Any, Any]:
    """Return the lists of columns, after a look at all names."""
    features = None if features is None else items("load_table: features", features)
    for name in (*(r for r in roles if r is not None), *(features or ())):
        text("load_table: the name of a column", name)
    return features, items("load_table: categorical", categorical)
