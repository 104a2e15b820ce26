"""Logistic regression over columns of several owners, as a scikit-learn estimator that takes a list of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedconvex._check import ROUNDS, bad, real, wrong_type
from fedconvex._sparse import sound
from fedconvex.estimators.given_rows import intercept_wanted
from fedconvex.estimators.training import start_of, trained
from fedconvex.losses import Logistic, Softmax
from fedconvex.problems import VerticalProblem
from fedconvex.problems.protocol import VERTICAL_MODEL
from fedconvex.vertical_federation import VerticalFederation


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression, binary or multinomial, over columns of several owners, with a certified gap.

    Minimises mean_i l(sum_b x_{ib}'w_b + b, y_i) + (l2/2)(‖w‖^2 + ‖b‖^2). `fit` and `predict` take a list of tables
    with the same rows in the same order, one an owner, or a mapping from owners to tables; the last owner knows the
    labels, and its block holds the intercept.

    Parameters
    ----------
    l2 : float
        Positive: the certificate and the rates of methods rest on it. It penalises the intercept too.
    fit_intercept : bool
    blocks : sequence of sequences, optional
        Columns of each owner, by number or by name: `fit` and `predict` then take one table, as cross-validation and
        searches hand it over.
    method : "solve", str or method
        "solve": exactly, on joined columns. Else a vertical method: the name of its class in small letters ("fedbcd",
        "verticalacceleratedgradient", "verticalnewtoncg"), with its defaults, or an instance.
    step_size : "auto" or float
        Of a method by name.
    tol : float
        Certified gap at which a method stops, as a share of F at the zero model.
    max_iter : int
        Most rounds.
    warm_start : bool
        Start at the model of the last fit, if that has the same shape.
    random_state : int, RandomState or None
        Seed of sampled owners.

    Attributes
    ----------
    classes_ : array (C,)
    coefs_ : list of arrays (1, d_b), or (C, d_b) for C > 2
        Each owner's own.
    coef_ : array (1, d) or (C, d)
        All of them, side by side.
    intercept_ : array (1,) or (C,)
    owners_ : array (K,)
        Names, or numbers.
    objective_, gap_ : float
        F, and a certified bound of F - min F.
    n_iter_ : int
        Rounds; of "solve" its gradient evaluations.
    trace_ : Trace
        round, value, gap, seconds and, of a method, floats_down and floats_up.
    step_size_ : str or None
        What "auto" came to.
    n_features_in_ : int
        Of all owners.

    Raises
    ------
    ValueError, TypeError
        If tables have different rows, frames have the same rows in another order, columns differ from those of `fit`,
        hold NaN, have two owners, or are all zero at an owner; for one class only; on settings out of range, or a
        method that diverged.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import VerticalLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> shop, bank = rng.normal(size=(80, 2)), rng.normal(size=(80, 3))
    >>> y = np.where(shop[:, 0] + bank[:, 0] + rng.normal(size=80) > 0, "pays", "defaults")
    >>> model = VerticalLogisticRegression(l2=0.01, method="fedbcd", max_iter=5000).fit([shop, bank], y)
    >>> model.predict([shop[:2], bank[:2]]).shape, [w.shape for w in model.coefs_], model.gap_ < 1e-6
    ((2,), [(1, 2), (1, 3)], True)
    """

    l2: float = 0.01
    fit_intercept: bool = True
    blocks: Any = None
    method: Any = "solve"
    step_size: Any = "auto"
    tol: float = 1e-6
    max_iter: int = ROUNDS
    warm_start: bool = False
    random_state: Any = 0

    def fit(self, X: Any, y: Any) -> VerticalLogisticRegression:
        """Fit to tables X, one an owner, and classes y (n,)."""
        who, intercept = type(self).__name__, intercept_wanted(self)
        l2 = real(f"{who}.l2", self.l2, low=0.0, strict=True)
        owners, tables = self._tables(X)
        names, matrices = [_names(t) for t in tables], [_matrix(who, o, t) for o, t in zip(owners, tables, strict=True)]
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        classes, code = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise bad(f"{who}: y", "hold at least two classes", f"{classes.tolist()}")
        loss = Logistic() if len(classes) == 2 else Softmax(len(classes))
        widths = [X.shape[1] for X in matrices]
        target = 2.0 * code - 1.0 if len(classes) == 2 else code.astype(float)
        last = [*matrices[:-1], _with_ones(matrices[-1])] if intercept else matrices
        problem: Any = VerticalProblem(VerticalFederation.from_blocks(last, target, owners), loss, l2)
        start = start_of(self, self._packed, problem.model_shape)
        scale = float(problem.value(np.zeros(problem.model_shape)))
        fit = trained(self, problem, problem.solve, scale=scale, start=start, fitting=self._fitting)
        W = np.atleast_2d(fit.w)
        self.classes_, self.owners_, self._names = classes, np.asarray(owners), names
        self.n_features_in_ = sum(widths)
        self.coef_ = W[:, : self.n_features_in_].copy()
        self.intercept_ = W[:, self.n_features_in_ :].sum(axis=1)
        self.coefs_ = np.split(self.coef_, np.cumsum(widths)[:-1], axis=1)
        self.objective_, self.gap_, self.n_iter_ = fit.value, fit.gap, fit.n_iter
        self.trace_, self.step_size_ = fit.trace, fit.step_size
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return sum_b x_b'w_b + b of every row: (n,), positive for classes_[1], or (n, C) for C > 2 classes."""
        Z = self._scores(X)
        return Z[:, 0] if Z.shape[1] == 1 else Z

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of every row, (n,)."""
        Z = self._scores(X)
        return np.asarray(self.classes_[(Z[:, 0] >= 0.0).astype(int) if Z.shape[1] == 1 else Z.argmax(axis=1)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, (n, C)."""
        Z = self._scores(X)
        if Z.shape[1] > 1:
            return np.asarray(Softmax(Z.shape[1]).probabilities(Z))
        one = Logistic().probabilities(Z[:, 0])
        return np.column_stack([1.0 - one, one])

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities of the classes, (n, C)."""
        Z = self._scores(X)
        Z = np.column_stack([np.zeros(len(Z)), Z]) if Z.shape[1] == 1 else Z
        return np.asarray(Z - np.logaddexp.reduce(Z, axis=1, keepdims=True))

    # ---------------------------------------------------------------- inside

    def _scores(self, X: Any) -> np.ndarray:
        """Return the sum of what the owners would send, (n, outputs)."""
        check_is_fitted(self)
        who, (owners, tables) = type(self).__name__, self._tables(X)
        if list(owners) != self.owners_.tolist():
            raise bad(f"{who}: X", f"be tables of {self.owners_.tolist()}, in this order", f"{list(owners)}")
        total = np.zeros(self.intercept_.shape) + self.intercept_
        rows: int | None = None
        for owner, table, w, names in zip(owners, tables, self.coefs_, self._names, strict=True):
            block, given = _matrix(who, owner, table), _names(table)
            if block.shape[1] != w.shape[1] or (names is not None and given is not None and given != names):
                required = f"{w.shape[1]} columns" if names is None else f"the columns {', '.join(names)}"
                got = f"{block.shape[1]}" if names is None or given is None else ", ".join(given)
                raise bad(f"{who}: table of {owner}", f"have {required}, as in fit", got)
            if rows not in (None, block.shape[0]):
                raise bad(f"{who}: table of {owner}", f"have {rows} rows, as those before", f"{block.shape[0]}")
            rows = block.shape[0]
            total = total + np.asarray(block @ w.T)
        return total

    def _tables(self, X: Any) -> tuple[list[Any], list[Any]]:
        """Return owners and their tables."""
        who = type(self).__name__
        if self.blocks is not None:
            return self._blocks_of(X)
        if isinstance(X, Mapping):
            return list(X), _aligned(who, list(X), list(X.values()))
        if not isinstance(X, Sequence) or isinstance(X, (str, bytes)) or not X or not all(np.ndim(t) == 2 for t in X):
            cure = "pass blocks=[[columns of the first owner], ...] for one table"
            raise wrong_type(f"{who}: X", "be a list of tables, one an owner", type(X).__name__, cure)
        return list(range(len(X))), _aligned(who, range(len(X)), list(X))

    def _blocks_of(self, X: Any) -> tuple[list[Any], list[Any]]:
        """Return owners and their columns of one table."""
        who, blocks = type(self).__name__, self.blocks
        listed = isinstance(blocks, (Sequence, np.ndarray)) and not isinstance(blocks, str) and len(blocks) > 0
        if not listed or not all(np.ndim(some) == 1 and len(some) for some in blocks):
            raise wrong_type(f"{who}.blocks", "be lists of columns, one an owner", f"{blocks!r}")
        if not hasattr(X, "shape") and any(np.ndim(row) > 1 for row in X):
            raise wrong_type(f"{who}: X", "be one table where blocks are given", "several", "leave blocks out")
        parts = [_columns(who, X, some) for some in blocks]
        taken = np.concatenate([np.asarray(_columns(who, _numbered(X), some)).ravel() for some in blocks])
        twice = np.flatnonzero(np.bincount(taken) > 1)
        if twice.size:
            raise bad(f"{who}.blocks", "hold every column once", f"column {twice[0]} of X twice")
        return list(range(len(parts))), parts

    def _packed(self) -> np.ndarray:
        """Return coefficients and intercept of the last fit as a model."""
        W = np.column_stack([self.coef_, self.intercept_]) if self.fit_intercept else self.coef_
        return np.asarray(W[0] if len(W) == 1 else W)

    def _fitting(self, method: Any) -> Any:
        """Return the method, or raise if it is not one over columns."""
        if VERTICAL_MODEL not in getattr(method, "learns", ()):
            who = type(self).__name__
            raise bad(
                f"{who}.method", "be one over columns of several owners", type(method).__name__, "method='fedbcd'"
            )
        return method


def _names(table: Any) -> list[str] | None:
    """Return the names of the columns of a frame."""
    return [str(c) for c in table.columns] if hasattr(table, "columns") else None


def _matrix(who: str, owner: Any, table: Any) -> Any:
    who = f"{who}: table of {owner}"
    return check_array(sound(who, table), accept_sparse="csr", dtype=np.float64, input_name=who)


def _with_ones(X: Any) -> Any:
    one = np.ones((X.shape[0], 1))
    return sp.hstack([X, sp.csr_array(one)], format="csr") if sp.issparse(X) else np.hstack([X, one])


def _numbered(X: Any) -> Any:
    """Return one row in which every column of a table holds its number."""
    row = np.arange(X.shape[1] if hasattr(X, "shape") else np.shape(X)[1])[None]
    return type(X)(row, columns=X.columns) if hasattr(X, "iloc") else row


def _aligned(who: str, owners: Sequence[Any], tables: list[Any]) -> list[Any]:
    """Return the tables; raise if indices of frames name the same rows in another order."""
    indexed = [(owner, table.index) for owner, table in zip(owners, tables, strict=True) if hasattr(table, "iloc")]
    for owner, index in indexed[1:]:
        first = indexed[0][1]
        if len(index) == len(first) and not index.equals(first) and set(index) == set(first):
            cure = f"sort them: table.loc[tables[{indexed[0][0]!r}].index]"
            raise bad(f"{who}: table of {owner}", "have its rows in the order of the others", "another index", cure)
    return tables


def _columns(who: str, X: Any, some: Any) -> Any:
    """Return some columns of one table, by number or by name."""
    some = list(some)
    try:
        if hasattr(X, "iloc"):
            return X[some] if all(isinstance(c, str) for c in some) else X.iloc[:, some]
        return X[:, some] if hasattr(X, "shape") else np.asarray(X)[:, some]
    except (KeyError, IndexError) as error:
        raise bad(f"{who}.blocks", "name columns of X by number or name", f"{some}") from error
