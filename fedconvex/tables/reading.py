"""`read_frame` and `read_table`: the one way from a file or a frame to columns with roles."""

from __future__ import annotations

from collections.abc import Collection
from os import PathLike
from typing import Any

from fedconvex._check import bad, items, wrong_type
from fedconvex._files import existing
from fedconvex.tables.columns import Columns
from fedconvex.tables.csv_files import read_csv
from fedconvex.tables.frame import Frame
from fedconvex.tables.planning import Wishes, planned

__all__ = ["existing", "plan", "read_frame", "read_table", "suffix"]


def suffix(who: str, path: Any) -> str:
    """Return what kind of file the name says: .csv, .parquet, .npz or .svm."""
    name = existing(who, path).name.lower()
    stem = name.removesuffix(".gz").removesuffix(".bz2")
    for ends, kind in (((".csv", ".tsv"), ".csv"), ((".svm", ".svmlight", ".libsvm", ".txt"), ".svm")):
        if stem.endswith(ends):
            return kind
    if name.endswith((".parquet", ".npz")):
        return name[name.rindex(".") :]
    known = ".csv, .tsv, .parquet, .npz, .svm, .svmlight, .libsvm, .txt (text also with .gz or .bz2)"
    raise bad(f"{who}: path", f"end in one of {known}", name, "for svmlight under another name call load_svmlight")


def read_frame(
    data: Any,
    *,
    text: Collection[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
) -> Frame:
    r"""Return the raw columns of a file, a DataFrame, a mapping or a matrix.

    Parameters
    ----------
    data : path, DataFrame, mapping from name to values, array (n, d), or scipy.sparse matrix
        Files: .csv, .tsv (also .gz, .bz2), .parquet, .npz, .svm and the other names of svmlight.
    text : collection of str
        Columns of names, kept as they are written: "07" stays "07".
    sep, decimal, encoding : str, optional
        Of a CSV file; detected by default.

    Raises
    ------
    ValueError, TypeError
        If the file is malformed, or the object no table.
    FileNotFoundError, ImportError
        If there is no such file; if it is Parquet and pyarrow is not installed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from fedconvex.tables import read_frame
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "wards.csv"
    ...     _ = path.write_text("age;dose;ward\n61;0,5;a\n37;1,5;b\n")
    ...     frame = read_frame(path)
    >>> frame.read_as, frame.cells["dose"].tolist()
    ('semicolons between cells, decimal commas, UTF-8', [0.5, 1.5])
    """
    if not isinstance(data, (str, PathLike)):
        return Frame.of(data)
    file, kind, text = existing("read_frame", data), suffix("read_frame", data), items("read_frame: text", text)
    for name in text:
        if not isinstance(name, str):
            raise wrong_type("read_frame: text", "name columns", repr(name))
    how = {"sep": sep, "decimal": decimal, "encoding": encoding}
    for name, value in how.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise wrong_type(f"read_frame: {name}", "be text", repr(value))
    if sep is not None and len(sep) != 1:
        raise bad("read_frame: sep", "be one character", repr(sep), r'a tab is "\t"')
    if decimal not in (None, ".", ","):
        raise bad("read_frame: decimal", "be . or ,", repr(decimal))
    if kind == ".csv":
        return read_csv(file.name, file, text, **how)
    given = [f"{name}={value!r}" for name, value in how.items() if value is not None]
    if given:
        raise bad(f"read_frame: {file.name}", "be given no way to read CSV (it is none)", ", ".join(given))
    from fedconvex.tables.other_files import read_npz, read_parquet, read_svmlight

    return {".parquet": read_parquet, ".npz": read_npz, ".svm": read_svmlight}[kind](file.name, file)  # type: ignore


def read_table(
    data: Any,
    target: str | None = None,
    client: str | None = None,
    domain: str | None = None,
    weight: str | None = None,
    *,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    **choices: Any,
) -> tuple[Frame, Columns]:
    """Read a table, decide about the role of every column, and refuse what is no feature.

    Columns of numbers are features, those of text categories. Refused are dates, identifiers, numbers of rows, text
    with more than 50 values, columns that never change, columns that give the target away, and missing cells; the
    message lists all of them with what settles each.

    Parameters
    ----------
    data
        What `read_frame` reads.
    target, client, domain, weight : str, optional
        Columns to predict, that say whose row it is, of which domain, and what it weighs. Of npz and svmlight the
        format says it.
    sep, decimal, encoding : str, optional
        Of a CSV file; detected by default.
    **choices
        features, drop, keep, as_category, impute, task, guard, missing: see `fedconvex.tables.Wishes`.

    Returns
    -------
    Frame, Columns
        The raw rows, and what becomes of each column; call `Columns.fit` with the training rows.

    Raises
    ------
    ColumnProblems
        If columns need a decision.
    ValueError, TypeError, FileNotFoundError, ImportError
        If names are not there or have two roles; as `read_frame`.

    Examples
    --------
    >>> from fedconvex.tables import read_table
    >>> frame, columns = read_table({"age": [61, 37], "ward": ["a", "b"], "ill": ["yes", "no"]}, "ill", "ward")
    >>> columns.listed()
    [('age', 'number', ''), ('ward', 'client', ''), ('ill', 'target', '2 classes: no, yes')]
    >>> columns.target(frame).tolist(), columns.clients(frame).tolist()
    ([1.0, 0.0], ['a', 'b'])
    """
    wishes = Wishes.of(target=target, client=client, domain=domain, weight=weight, **choices)
    frame = read_frame(data, text=wishes.text, sep=sep, decimal=decimal, encoding=encoding)
    return frame, plan(frame, wishes)


def plan(frame: Frame, wishes: Wishes) -> Columns:
    """Return the record of a frame that was read, where the format may give roles."""
    if frame.roles:
        given = {role: getattr(wishes, role) for role in ("target", "client", "domain", "weight")}
        named = [f"{role}={name!r}" for role, name in given.items() if name is not None]
        if named:
            raise bad(frame.origin, "be given no column names (the format has none)", ", ".join(named))
        wishes = Wishes(**{**vars(wishes), **frame.roles})
    return planned(frame, wishes)
