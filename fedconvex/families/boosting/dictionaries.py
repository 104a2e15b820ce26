"""Dictionaries: finitely many base classifiers with their sources, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex._check import bad, finite, items, numeric, raw, whole, wrong_type
from fedconvex.families.boosting.predictors import Tree
from fedconvex.families.boosting.stumps import Stump, cut_points
from fedconvex.federation import Federation


class Dictionary:
    """Finitely many base classifiers with their sources, as predictions on the rows of a federation.

    Parameters
    ----------
    predictions : array (n, N)
        h_j(x_i) in [-1, 1], in the federation's row order.
    sources : array (N,) of int
        Number of each classifier's source, 0, ..., p-1.
    members : sequence of N, optional
        The classifiers themselves, each with ``predict``; needed to predict new rows.

    Raises
    ------
    ValueError, TypeError
        On values outside [-1, 1], NaN, or mismatched lengths.

    Examples
    --------
    >>> from fedconvex.problems import Dictionary
    >>> Dictionary([[1.0, -1.0], [1.0, 1.0]], [0, 1])
    Dictionary(2 classifiers of 2 sources, 2 rows)
    """

    def __init__(self, predictions: Any, sources: Any, members: Sequence[Any] | None = None) -> None:
        H = numeric("Dictionary.predictions", predictions)
        if H.ndim != 2 or H.shape[1] == 0:
            raise bad("Dictionary.predictions", "have shape (rows, classifiers), not empty", f"{H.shape}")
        finite("Dictionary.predictions", H)
        if np.abs(H).max(initial=0.0) > 1.0:
            got = f"{H[np.abs(H) > 1.0][0]:g}"
            raise bad("Dictionary.predictions", "lie in [-1, 1]", got, "encode labels as -1, +1")
        s = raw("Dictionary.sources", sources)
        members = None if members is None else items("Dictionary.members", members)
        if s.shape != H.shape[1:] or s.dtype.kind not in "iu" or s.min() < 0:
            raise bad("Dictionary.sources", f"be {H.shape[1]} whole numbers, one per classifier", f"{sources!r}")
        if members is not None and len(members) != s.size:
            raise bad("Dictionary.members", f"be {s.size}, one per column", len(members))
        self.predictions, self.sources = H, s.astype(np.int64)
        self.members = None if members is None else tuple(members)

    @classmethod
    def from_classifiers(cls, federation: Federation, classifiers: Sequence[Sequence[Any]]) -> Dictionary:
        """Collect fitted classifiers, given source by source; anything with ``predict`` of values in [-1, 1]."""
        members = [h for mine in classifiers for h in mine]
        sources = [k for k, mine in enumerate(classifiers) for _ in mine]
        if not members:
            raise bad("Dictionary.from_classifiers", "get at least one classifier", "none")
        lacking = [type(h).__name__ for h in members if not hasattr(h, "predict")]
        if lacking:
            raise wrong_type("Dictionary.from_classifiers", "get fitted classifiers with predict", lacking[0])
        columns = [numeric("Dictionary.from_classifiers: predictions", h.predict(federation.X)) for h in members]
        return cls(np.column_stack(columns), np.array(sources), members)

    @classmethod
    def stumps(cls, federation: Federation, cuts: int | None = None) -> Dictionary:
        """All stumps of every source's rows, of both signs, with the two constants.

        Parameters
        ----------
        federation : Federation
            Dense rows with domains (without domains there is one source).
        cuts : int, optional
            At most so many thresholds per feature, at equal row counts, whatever rows weigh; default every midpoint.

        Raises
        ------
        ValueError, TypeError
            If cuts is below 1.
        """
        X, (domain, p) = dense_rows("Dictionary.stumps", federation), domain_numbers(federation)
        lists = []
        for k in range(p):
            bins = [_thresholds(column, cuts) for column in X[domain == k].T]
            pairs = [(j, float(c)) for j, edges in enumerate(bins) for c in edges]
            lists.append([Stump(j, c, s, -s) for j, c in pairs for s in (-1.0, 1.0)])
            lists[-1] += [Stump(0, math.inf, s, s) for s in (-1.0, 1.0)]
        return cls.from_classifiers(federation, lists)

    @classmethod
    def trees(cls, federation: Federation, *, depth: int = 2, rounds: int = 10) -> Dictionary:
        """Shallow trees that AdaBoost trains on each source alone, `rounds` per source (fewer where one is perfect).

        The trees are scikit-learn's, copied into arrays.
        """
        from sklearn.tree import DecisionTreeClassifier

        most, T = whole("Dictionary.trees: depth", depth, low=1), whole("Dictionary.trees: rounds", rounds, low=1)
        X, (domain, p) = dense_rows("Dictionary.trees", federation), domain_numbers(federation)
        lists: list[list[Any]] = []
        for k in range(p):
            rows, y = X[domain == k], federation.y[domain == k]
            weights, mine = np.full(y.size, 1.0 / y.size), []
            if federation.sample_weight is not None:
                weights = federation.sample_weight[domain == k] / federation.sample_weight[domain == k].sum()
            for _ in range(T):
                fitted = DecisionTreeClassifier(max_depth=most, random_state=0).fit(rows, y, sample_weight=weights)
                mine.append(Tree.from_sklearn(fitted))
                wrong = mine[-1].predict(rows) != y
                error = float(weights[wrong].sum())
                if not 0.0 < error < 0.5:
                    break
                weights = np.where(wrong, 0.5 / error, 0.5 / (1.0 - error)) * weights
            lists.append(mine)
        return cls.from_classifiers(federation, lists)

    def __repr__(self) -> str:
        n, N = self.predictions.shape
        return f"Dictionary({N} classifiers of {np.unique(self.sources).size} sources, {n} rows)"


def domain_numbers(federation: Federation) -> tuple[np.ndarray, int]:
    """Return the domain of every row, (n,), and how many there are; one without domains."""
    if federation.domain is None:
        return np.zeros(federation.n, dtype=np.int64), 1
    return federation.domain, federation.n_domains


def dense_rows(who: str, federation: Federation) -> np.ndarray:
    """Return the rows (n, d), or raise TypeError if they are sparse."""
    if federation.is_sparse:
        cure = "pass X.toarray(), or a Dictionary of other classifiers"
        raise wrong_type(f"{who}: X", "be dense", "sparse rows", cure)
    return federation.X


def _thresholds(column: np.ndarray, cuts: int | None) -> np.ndarray:
    return cut_points(column, column.size + 1 if cuts is None else whole("cuts", cuts, low=1) + 1)
