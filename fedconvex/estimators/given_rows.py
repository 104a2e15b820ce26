"""Rows as scikit-learn hands them over, checked and gathered into a federation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from fedconvex._check import bad, flag, unmasked, vector
from fedconvex._sparse import sound
from fedconvex.estimators.clients import client_names
from fedconvex.federation import Federation
from fedconvex.tables.frame import is_gap


class Rows(NamedTuple):
    """Checked rows with who owns them; rows of weight zero have been left out."""

    X: Any  # (n, d) dense or CSR, float64
    y: np.ndarray  # (n,)
    clients: np.ndarray  # (n,) names
    domains: np.ndarray | None  # (n,) names
    weight: np.ndarray | None  # (n,) positive, or None where all are one

    def federation(self, target: np.ndarray, intercept: bool) -> Federation:
        """Return the federation of these rows with numeric labels, its last column ones if there is an intercept."""
        fed = Federation.from_arrays(self.X, target, self.clients, self.domains, self.weight)
        return fed.with_intercept() if intercept else fed

    def features(self, intercept: bool) -> Any:
        """Return X, with a last column of ones if there is an intercept."""
        if not intercept:
            return self.X
        one = np.ones((len(self.y), 1))
        sparse = sp.issparse(self.X)
        return sp.hstack([self.X, sp.csr_array(one)], format="csr") if sparse else np.hstack([self.X, one])

    def some(self, which: np.ndarray) -> Rows:
        """Return the rows of a mask or of numbers."""
        parts: Any = [None if part is None else part[which] for part in self]
        return Rows(*parts)

    @property
    def mass(self) -> np.ndarray:
        """Weights of the rows, (n,): ones where there are none."""
        return np.ones(len(self.y)) if self.weight is None else self.weight

    def coded(self, class_weight: Any) -> tuple[Rows, np.ndarray, np.ndarray]:
        """Return the rows with class weights multiplied in, the classes, and their number for every row, (n,)."""
        with _named("y", "labels of classes"):
            check_classification_targets(self.y)
        classes, code = np.unique(self.y, return_inverse=True)
        return with_class_weight(self, class_weight, classes, code), classes, code


def feature_rows(estimator: Any, X: Any) -> Any:
    """Return rows to predict from (n, d), dense or CSR; a frame must have the columns of fit."""
    who = type(estimator).__name__
    unmasked(f"{who}: X", X)
    with _named(who, "rows X of finite numbers, as in fit"):
        return validate_data(estimator, sound(f"{who}: X", X), dtype=np.float64, accept_sparse="csr", reset=False)


@contextmanager
def _named(who: str, what: str) -> Iterator[None]:
    """Say who was given what it cannot use, before scikit-learn's words for it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if str(error).startswith(who):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{who} must be given {what}; got: {error}") from None


def checked_rows(
    estimator: Any,
    X: Any,
    y: Any,
    clients: Any = None,
    sample_weight: Any = None,
    domains: Any = None,
    *,
    numeric: bool = False,
    sparse: bool = True,
) -> Rows:
    """Return the rows of fit, and set ``n_features_in_`` and ``feature_names_in_``.

    Raises
    ------
    ValueError
        On NaN, lengths that do not agree, a row whose client is missing, or weights that are negative or all zero.
    """
    who = type(estimator).__name__
    kinds = "csr" if sparse else False
    unmasked(f"{who}: X", X)
    unmasked(f"{who}: y", y)
    with _named(who, "rows X of finite numbers, and a label y of each"):
        X = sound(f"{who}: X", X)
        X, y = validate_data(estimator, X, y, dtype=np.float64, accept_sparse=kinds, y_numeric=numeric)
    y = np.asarray(y, dtype=np.float64) if numeric else y
    if not numeric and np.asarray(y).dtype.kind == "O" and any(map(is_gap, np.asarray(y).tolist())):
        raise bad(f"{who}: y", "have no missing label", "None or NaN", "leave these rows out")
    owner = client_of(who, clients, len(y))
    area = None if domains is None else client_names(f"{who}: domains", domains, len(y), "domain")
    if sample_weight is None:
        return Rows(X, y, owner, area, None)
    weight = vector(f"{who}: sample_weight", sample_weight, len(y))
    if (weight < 0.0).any():
        raise bad(f"{who}: sample_weight", "be nonnegative", weight.min())
    some = weight > 0.0
    if not some.any():
        raise bad(f"{who}: sample_weight", "be positive for at least one row", "zeros only")
    rows = Rows(X, y, owner, area, weight)
    rows = rows if some.all() else rows.some(some)
    return rows._replace(weight=None) if (weight[some] == 1.0).all() else rows


def client_of(who: str, clients: Any, n: int) -> np.ndarray:
    """Return the client of every row, (n,): the same for all without ``clients``."""
    return np.zeros(n, dtype=np.int64) if clients is None else client_names(f"{who}: clients", clients, n)


def with_class_weight(rows: Rows, class_weight: Any, classes: np.ndarray, code: np.ndarray) -> Rows:
    """Return the rows with the weights of their classes multiplied in; "balanced" makes all classes weigh the same."""
    if class_weight is None:
        return rows
    if isinstance(class_weight, str) and class_weight == "balanced":  # weighted rows: unlike scikit-learn before 1.7
        mass = np.bincount(code, rows.mass, minlength=len(classes))
        factor = mass.sum() / (len(classes) * mass)
    else:
        factor = np.asarray(compute_class_weight(class_weight, classes=classes, y=rows.y), dtype=np.float64)
    if not (np.isfinite(factor).all() and (factor > 0.0).all()):
        raise bad("class_weight", "be positive and finite for every class", f"{class_weight!r}")
    return rows._replace(weight=rows.mass * factor[code])


def intercept_wanted(estimator: Any) -> bool:
    """Return ``fit_intercept``, checked."""
    return flag(f"{type(estimator).__name__}.fit_intercept", estimator.fit_intercept)
