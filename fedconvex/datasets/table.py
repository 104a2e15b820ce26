"""`Table`: the rows of a data set with what names them, and what every loader checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, finite
from fedconvex.tables.columns import Columns
from fedconvex.tables.frame import Frame

_SPARSE_WIDTH, _SPARSE_SHARE = 50, 0.2  # one-hot tables wider and emptier than this are stored as CSR


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a data set, with what names them.

    Attributes
    ----------
    X : array (n, d) or scipy.sparse.csr_array
        Features, float64.
    y : array (n,)
        Target, float64: numbers as they were, or the positions of class labels in ``classes``.
    clients : array (n,) or None
        Whose row it is: whole numbers or strings.
    domains : array (n,) or None
        Domain of every row.
    feature_names : tuple of d strings, or None
        Names of the columns of X, if the file has any; a one-hot column is named "column=value".
    classes : tuple of strings, or None
        The class labels, sorted, if the target was text. With two of them, ``Logistic`` wants ``2 * y - 1``.
    weights : array (n,) or None
        What every row weighs, for ``Federation(sample_weight=)``.
    columns : Columns or None
        What the features were made of, if the rows come from a file.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation
    >>> from fedconvex.datasets import Table
    >>> table = Table(np.eye(3), np.array([0.0, 1.0, 1.0]), clients=np.array(["a", "b", "a"]), classes=("no", "yes"))
    >>> Federation.from_arrays(table.X, 2 * table.y - 1, table.clients)
    Federation(2 clients, 3 rows, 3 features, dense)
    """

    X: Any
    y: np.ndarray
    clients: np.ndarray | None = None
    domains: np.ndarray | None = None
    feature_names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    weights: np.ndarray | None = None
    columns: Columns | None = None

    def __repr__(self) -> str:
        kind = "sparse" if sp.issparse(self.X) else "dense"
        counts = [
            f"{np.unique(a).size} {name}"
            for name, a in (("clients", self.clients), ("domains", self.domains))
            if a is not None
        ]
        counts += [f"{len(self.classes)} classes"] if self.classes is not None else []
        return f"Table({', '.join([f'{self.X.shape[0]} rows', f'{self.X.shape[1]} features', *counts, kind])})"


def coded(labels: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the sorted class labels and their codes (n,) as floats."""
    classes, code = np.unique(labels, return_inverse=True)
    return tuple(classes.tolist()), code.astype(np.float64)


def encoded(columns: dict[str, np.ndarray]) -> tuple[Any, tuple[str, ...]]:
    """Return the features (n, d), text one-hot encoded, dense or CSR, and their names."""
    names: list[str] = []
    blocks: list[Any] = []
    for name, cells in columns.items():
        if cells.dtype.kind == "U":
            from sklearn.preprocessing import OneHotEncoder

            encoder = OneHotEncoder().fit(cells[:, None])
            blocks.append(encoder.transform(cells[:, None]))
            names += [f"{name}={v}" for v in encoder.categories_[0].tolist()]
        else:
            blocks.append(cells[:, None])
            names.append(name)
    if len(names) > _SPARSE_WIDTH and len(columns) <= _SPARSE_SHARE * len(names):
        X = sp.hstack([sp.csr_array(b) for b in blocks], format="csr")
        X.eliminate_zeros()
        return X, tuple(names)
    return np.hstack([b.toarray() if sp.issparse(b) else b for b in blocks]), tuple(names)


def checked(who: str, table: Table) -> Table:
    """Return the table if its parts fit and its numbers are finite."""
    if table.X.ndim != 2 or 0 in table.X.shape:
        raise bad(f"{who}: X", "have at least one row and one feature", f"shape {table.X.shape}")
    n, d = table.X.shape
    for name, a in (
        ("y", table.y),
        ("clients", table.clients),
        ("domains", table.domains),
        ("weights", table.weights),
    ):
        if a is not None and a.shape != (n,):
            raise bad(f"{who}: {name}", f"have one entry per row of X ({n})", f"shape {a.shape}")
    if table.feature_names is not None and len(table.feature_names) != d:
        raise bad(f"{who}: feature_names", f"name each of the {d} features once", f"{len(table.feature_names)} names")
    finite(f"{who}: X", table.X.data if sp.issparse(table.X) else table.X)
    finite(f"{who}: y", table.y)
    if table.weights is not None:
        finite(f"{who}: weights", table.weights)
    return table


def tabulated(who: str, frame: Frame, columns: Columns) -> Table:
    """Return the table of a frame, with the record that was fitted on all of its rows."""
    fitted = columns.fit(frame, standardise=False)
    y, labels = fitted.target(frame), fitted.labels
    classes = labels if labels is not None and isinstance(labels[0], str) else None
    if labels is not None and classes is None:
        y = np.array([float(v) for v in labels])[y.astype(int)]  # numbers stay as they were
    names = None if frame.unnamed else fitted.feature_names
    clients, domains, weights = fitted.clients(frame), fitted.domains(frame), fitted.weights(frame)
    return checked(who, Table(fitted.matrix(frame), y, clients, domains, names, classes, weights, fitted))
