"""Data as people have it become rows: a federation, or a table whose columns are encoded by its training rows alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, wrong_type
from fedconvex.comparison.compared_rows import Rows, checked, classes_of, labelled, rows_of
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.losses import Squared
from fedconvex.tables import Columns, Frame, read_table
from fedconvex.tables.looking import feature_findings


def intake(data: Any, target: Any, client: Any, domain: Any, loss: Any, **reading: Any) -> Rows:
    """Return the rows of a federation, a frame or a file.

    Parameters
    ----------
    data : Federation, or what `fedconvex.tables.read_table` takes
    target, client, domain : str or None
    loss : loss or None
    **reading
        Further arguments of `fedconvex.tables.read_table`.

    Raises
    ------
    TypeError
        For data of another kind.
    ValueError
        If columns are named for a federation, or missing for a table; `fedconvex.tables.ColumnProblems` for columns
        that should not be learned from.
    """
    named = {"target": target, "client": client, "domain": domain, **reading}
    if isinstance(data, Federation):
        given = [name for name, v in named.items() if v is not None]
        if given:
            raise bad("compare: data", "be a frame or a file where columns are named", f"a Federation and {given[0]}")
        return rows_of(data, loss)
    if not (isinstance(data, (str, os.PathLike, dict, Frame)) or hasattr(data, "columns")):
        raise wrong_type("compare: data", "be a Federation, a DataFrame or a path", type(data).__name__)
    frame, columns = read_table(data, target, client, domain, **reading)
    title = Path(data).name if isinstance(data, (str, os.PathLike)) else "the table"
    return rows_of_table(frame, columns, loss, title, columns.clients(frame))


def rows_of_table(frame: Frame, columns: Columns, loss: Any, title: str, clients: np.ndarray | None) -> Rows:
    """Return the rows of a table whose columns have roles; their encoding is fitted when training rows are known.

    Categories that no training row has count as none of them.
    """
    if columns.weights(frame) is not None:
        raise bad("compare: data", "have rows without weights", "a column of weights", "leave it out, or repeat rows")
    if clients is None:
        raise bad("compare: data", "say whose row it is", "no client", "name the column: --client COL, client=")
    order = np.argsort(clients, kind="stable")
    names, code = np.unique(clients[order], return_inverse=True)
    domains, domain, known = columns.domains(frame), None, ()
    if domains is not None:
        values, domain = np.unique(domains[order], return_inverse=True)
        known = tuple(values.tolist())
    frame = frame.take(order)

    encoded: dict[Any, Any] = {}  # folds that agree on categories and on what fills gaps share their features

    def record(train: np.ndarray) -> Columns:
        return columns.fit(frame.take(train), standardise=False, centre=False)

    def features(train: np.ndarray) -> Any:
        fitted = record(train)
        if fitted.columns not in encoded:
            encoded[fitted.columns] = fitted.matrix(frame, unknown="zero")
        return encoded[fitted.columns]

    def alone(train: np.ndarray) -> Any:
        return _filled_alone(columns, record(train), frame, code, train)

    y, loss, classes = _target(columns.target(frame), columns.labels, loss)
    found = Rows(title, features, y, code, tuple(names.tolist()), domain, known, loss, classes)
    gaps = tuple(columns.gaps(frame, [str(name) for name in names.tolist()], code))
    filled = alone if columns.impute is not None and gaps else None
    odd = tuple(feature_findings(columns, frame, names[code]))
    found = replace(found, columns=tuple(columns.listed()), gaps=gaps, by_client=odd, alone=filled, record=record)
    return checked(found)


def _filled_alone(columns: Columns, fitted: Columns, frame: Frame, code: np.ndarray, train: np.ndarray) -> Any:
    """Return the features of all rows, laid out as fitted, each client's gaps filled from its own training rows.

    Categories that a client's training rows lack are columns of zeros there, to which its own model gives no weight.
    """
    parts = []
    for k in range(int(code.max()) + 1):
        mine = columns.fit(frame.take(train[code[train] == k]), standardise=False, centre=False)
        fills = tuple(replace(c, fill=own.fill) for c, own in zip(fitted.columns, mine.columns, strict=True))
        parts.append(replace(fitted, columns=fills).matrix(frame.take(np.flatnonzero(code == k)), unknown="zero"))
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def _target(y: np.ndarray, labels: Any, loss: Any) -> tuple[np.ndarray, Any, Any]:
    """Return labels as the loss wants them, the loss, and the classes."""
    if labels is None:
        return (y, Squared(), None) if loss is None else (y, loss, classes_of(loss, y))
    by_default, coded, classes = labelled(y, tuple(labels))
    if loss is None or traits(loss).several == traits(by_default).several:
        return coded, loss or by_default, classes
    raise bad("compare: loss", f"know a target of {len(labels)} classes", f"{loss!r}")
