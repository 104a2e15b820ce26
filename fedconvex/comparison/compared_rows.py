"""The rows that are compared on: features, target, client and domain of every row, clients in the order of their names.

Features may have to be fitted (categories, missing values): `Rows.features` is given the training rows, and sees no
others. The order of clients in the input changes nothing, because it is left behind here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.federation import Federation
from fedconvex.federation_input import draw_keys
from fedconvex.loss_traits import traits
from fedconvex.losses import Logistic, Softmax, Squared

MOST_CLASSES = 20  # whole-numbered targets with more values than this are taken as real


@dataclass(frozen=True, eq=False)
class Rows:
    """n rows of K clients.

    Attributes
    ----------
    title : str
    features : function
        Takes the numbers of the training rows and returns the features of all rows, (n, d) or CSR.
    y : array (n,)
        Labels as the loss wants them.
    client : int array (n,)
        Number of the client of every row; rows of a client stand together.
    names : tuple of K
        What the clients are called.
    domain : int array (n,) or None
    domains : tuple
        What the domains are called.
    loss : loss
    classes : tuple or None
        What the labels stand for; None for a real target.
    columns : tuple of (name, what became of it, note)
        Of a table.
    alone : function or None
        Like ``features``, but a client's missing cells are filled from its own training rows; None where none are.
    """

    title: str
    features: Callable[[np.ndarray], Any]
    y: np.ndarray
    client: np.ndarray
    names: tuple[Any, ...]
    domain: np.ndarray | None
    domains: tuple[Any, ...]
    loss: Any
    classes: tuple[Any, ...] | None
    columns: tuple[tuple[str, str, str], ...] = ()
    gaps: tuple[tuple[str, str, int, int, str], ...] = ()  # column, client, missing cells, rows, what fills them
    alone: Callable[[np.ndarray], Any] | None = None
    by_client: tuple[Any, ...] = ()  # of a table: what is missing, constant or differently coded where
    record: Callable[[np.ndarray], Any] | None = None  # of a table: the `Columns` that training rows fill

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def classifies(self) -> bool:
        """Whether the target is a class."""
        return traits(self.loss).task == "classification"

    @property
    def binary(self) -> bool:
        """Whether there are two classes."""
        return self.classifies and not traits(self.loss).several

    @property
    def keys(self) -> np.ndarray:
        """Keys of the clients' random draws, (K,), made of their names."""
        return draw_keys(np.array(self.names))

    @property
    def strata(self) -> np.ndarray:
        """Class of every row, by which folds are stratified; zeros for a real target."""
        return self.y if self.classifies else np.zeros(self.y.size)

    @property
    def groups(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        """Domain of every row and their names; clients, where there are no domains."""
        return (self.client, self.names) if self.domain is None else (self.domain, self.domains)


def rows_of(federation: Federation, loss: Any = None, title: str = "the federation") -> Rows:
    """Return the rows of a federation.

    Parameters
    ----------
    federation : Federation
        Rows of weight one; its domains are kept.
    loss : loss, optional
        Logistic, Softmax or Squared, or a loss with probabilities of two classes; by default what the target asks for.
    title : str

    Raises
    ------
    ValueError
        With fewer than two clients, row weights, or a target of one value.
    """
    if federation.sample_weight is not None:
        why = "intervals count rows, and weights do not say how many rows one stands for"
        cure = f"drop the weights, or repeat rows: {why}"
        raise bad("compare: data", "have rows of equal weight", "sample_weight", cure)
    order = np.argsort(federation.labels, kind="stable")
    ptr = federation.ptr
    rows = np.concatenate([np.arange(ptr[k], ptr[k + 1]) for k in order])
    X, y = federation.X[rows], np.array(federation.y[rows])
    loss, y, classes = (loss, y, classes_of(loss, y)) if loss is not None else labelled(y)
    code, names = np.repeat(np.arange(federation.K), federation.sizes[order]), federation.labels[order].tolist()
    domain = None if federation.domain is None else federation.domain[rows]
    known = () if federation.domain_labels is None else tuple(federation.domain_labels.tolist())
    return checked(Rows(title, lambda train: X, y, code, tuple(names), domain, known, loss, classes))


def checked(rows: Rows) -> Rows:
    """Return the rows if they can be compared on."""
    if rows.K < 2:
        raise bad("compare: data", "belong to at least two clients", f"one, {rows.names[0]}", "name another column")
    kind = traits(rows.loss)
    if not kind.curved or (rows.classifies and not kind.probable):
        cure = "use Logistic, Softmax or Squared"
        raise wrong_type("compare: loss", "have a curvature, and probabilities of classes", f"{rows.loss!r}", cure)
    if hasattr(rows.loss, "check_labels"):
        rows.loss.check_labels(rows.y)
    return rows


def labelled(y: np.ndarray, names: tuple[Any, ...] | None = None) -> tuple[Any, np.ndarray, tuple[Any, ...] | None]:
    """Return the loss for a target, the labels as it wants them, and the classes if there are any.

    Parameters
    ----------
    y : array (n,)
        Numbers, or positions in ``names``.
    names : tuple, optional
        The class labels of a target of text.

    Raises
    ------
    ValueError
        If the target takes one value only.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.comparison.compared_rows import labelled
    >>> labelled(np.array([0.0, 1.0, 0.0]))
    (Logistic(), array([-1.,  1., -1.]), (0, 1))
    """
    values = np.unique(y)
    if values.size < 2:
        only = names[0] if names else f"{values[0]:g}"
        raise bad("compare: target", "take at least two values", f"{only} in every row", "name another column")
    is_whole = bool(np.all(values == np.floor(values)))
    if names is None and values.size > 2 and not (is_whole and values.size <= MOST_CLASSES):
        return Squared(), y, None
    code = np.searchsorted(values, y).astype(np.float64)
    shown = tuple(names[int(v)] if names else int(v) if v == math.floor(v) else float(v) for v in values)
    return (Logistic(), 2.0 * code - 1.0, shown) if values.size == 2 else (Softmax(values.size), code, shown)


def classes_of(loss: Any, y: np.ndarray) -> tuple[Any, ...] | None:
    """Return what the labels stand for where a loss was given with them; None for a real target."""
    kind = traits(loss)
    if kind.task == "regression":
        return None
    return tuple(range(kind.outputs)) if kind.several else (-1, 1)
