"""Predictors of boosting: trees in arrays, ensembles that Q(l|x) mixes, and their files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex import _html
from fedconvex._archives import arrays_in, json_of
from fedconvex._check import among, array, bad, finite, items, numeric, raw, vector, whole, wrong_type
from fedconvex._files import check_file, existing, npz, write_file
from fedconvex.families.boosting.source_probabilities import MAPS, MaximumEntropyQ, as_q
from fedconvex.families.boosting.stumps import Stump


class Tree(NamedTuple):
    """A classification tree in arrays: at node v go to left[v] if x[feature[v]] <= threshold[v], else to right[v].

    Leaves have left[v] = -1 and predict value[v] in [-1, 1].

    Attributes
    ----------
    feature : int array (nodes,)
        Which feature a node asks for.
    threshold : array (nodes,)
        Left where the feature is at most this.
    left, right : int array (nodes,)
        Numbers of the next nodes; left is -1 at leaves.
    value : array (nodes,)
        What leaves predict, in [-1, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import Tree
    >>> leaves = np.array([0, -1, 1]).astype(float)
    >>> tree = Tree(np.zeros(3, int), np.array([0.5, 0, 0]), np.array([1, -1, -1]), np.array([2, -1, -1]), leaves)
    >>> tree.predict([[0.0], [1.0]])
    array([-1.,  1.])
    """

    feature: np.ndarray  # (nodes,) int
    threshold: np.ndarray  # (nodes,)
    left: np.ndarray  # (nodes,) int
    right: np.ndarray  # (nodes,) int
    value: np.ndarray  # (nodes,)

    @classmethod
    def from_sklearn(cls, fitted: Any) -> Tree:
        """Copy a fitted binary DecisionTreeClassifier with classes -1 and +1 (or only one of them)."""
        classes, t = np.asarray(fitted.classes_, dtype=float), fitted.tree_
        if not set(classes.tolist()) <= {-1.0, 1.0}:
            raise bad("Tree.from_sklearn: classes", "be -1 and +1", f"{fitted.classes_}")
        value = classes[np.argmax(t.value[:, 0, :], axis=1)]
        return cls(t.feature.astype(np.int64), t.threshold.copy(), t.children_left, t.children_right, value)

    def predict(self, X: Any) -> np.ndarray:
        """Return the leaf values of every row of X (n, d). Features are compared in single precision, as fitted."""
        rows = np.asarray(X).astype(np.float32)
        at = np.zeros(len(rows), dtype=np.int64)
        every = np.arange(len(rows))
        while (self.left[at] >= 0).any():
            inner = self.left[at] >= 0
            goes = rows[every, np.where(inner, self.feature[at], 0)] <= self.threshold[at]
            at = np.where(inner, np.where(goes, self.left[at], self.right[at]), at)
        return self.value[at]


def _sound(tree: Tree) -> Tree:
    """Return a tree whose arrays fit together; `predict` follows them, in a circle if there is one."""
    n, places, numbers = tree.feature.size, (tree.feature, tree.left, tree.right), (tree.threshold, tree.value)
    kinds = all(a.dtype == np.int64 for a in places) and all(a.dtype == np.float64 for a in numbers)
    if n == 0 or not kinds or any(a.shape != (n,) for a in tree):
        raise bad("Tree", "have whole and real vectors of one length", f"{[a.shape for a in tree]}")
    inner, node = tree.left >= 0, np.arange(n)
    below = all(((a > node) & (a < n))[inner].all() for a in (tree.left, tree.right))
    if not below or (tree.feature[inner] < 0).any() or not np.isfinite([*tree.threshold[inner], *tree.value]).all():
        raise bad("Tree", "lead from every node to later ones, by features and finite numbers", "another")
    return tree


class QEnsemble:
    """f(x) = sum_t alpha_t Q(l_t|x) h_t(x); a plain ensemble has constant Q.

    Parameters
    ----------
    members : sequence of T classifiers
        `Stump`, `Tree`, or anything with ``predict`` of values in [-1, 1].
    sources : array (T,) of int
        l_t.
    alpha : array (T,)
        Nonnegative; entries may be negative where a stage takes back part of an earlier one.
    q : callable, None or False
        Q(l|x) as a function of X; None is the constant 1/p; False means that predictions are given Q's rows as numbers.
    n_sources : int
        p.
    names : sequence, optional
        What the sources are called.

    Raises
    ------
    ValueError, TypeError
        If alpha and sources are not one of each for every member, a source is out of range, or a member has no
        predict.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import QEnsemble, Stump
    >>> near = lambda X: np.hstack([X < 0.5, X >= 0.5]).astype(float)
    >>> always, never = Stump(0, np.inf, 1.0, 1.0), Stump(0, np.inf, -1.0, -1.0)
    >>> f = QEnsemble([always, never], [0, 1], [1.0, 1.0], near, 2)
    >>> f.predict([[0.0], [1.0]])
    array([ 1., -1.])
    """

    def __init__(
        self, members: Sequence[Any], sources: Any, alpha: Any, q: Any = None, n_sources: int = 1, names: Any = None
    ) -> None:
        self.members = items("QEnsemble.members", members)
        if any(isinstance(h, type) or not hasattr(h, "predict") for h in self.members):
            raise wrong_type("QEnsemble.members", "be classifiers with predict", f"{members!r}")
        self.p = whole("QEnsemble.n_sources", n_sources, low=1)
        self.alpha = numeric("QEnsemble.alpha", alpha)
        T, given = len(self.members), raw("QEnsemble.sources", sources)
        if given.size and given.dtype.kind not in "iu":
            raise bad("QEnsemble.sources", "be whole numbers", f"{sources!r}")
        self.sources = given.astype(np.int64)
        if self.alpha.shape != (T,) or self.sources.shape != (T,):
            got = f"{self.alpha.shape} and {self.sources.shape}"
            raise bad("QEnsemble", f"be given one alpha and one source for each of the {T} members", got)
        finite("QEnsemble.alpha", self.alpha)
        if T and (self.sources.min() < 0 or self.sources.max() >= self.p):
            raise bad("QEnsemble.sources", f"lie in 0, ..., {self.p - 1}", f"{self.sources}")
        if q is not None and q is not False and not callable(q):
            raise wrong_type("QEnsemble.q", "be a function of X, None or False", type(q).__name__)
        self.q, self.names = q, np.arange(self.p) if names is None else raw("QEnsemble.names", names)

    def __len__(self) -> int:
        return len(self.members)

    _repr_html_ = _html.of_ensemble

    def staged_decision_function(self, X: Any, q: Any = None) -> Iterator[np.ndarray]:
        """Yield f_t(x) of every row after t = 1, 2, ... members."""
        rows = array("QEnsemble: X", X, (None, None), copy=False)
        Q = self._rows_of_q(rows, q)
        total = np.zeros(len(rows))
        for h, source, a in zip(self.members, self.sources, self.alpha, strict=True):
            total = total + a * Q[:, source] * h.predict(rows)
            yield total

    def decision_function(self, X: Any, q: Any = None) -> np.ndarray:
        """Return f(x) of every row of X, (n,).

        Parameters
        ----------
        X : array (n, d)
        q : array (n, p), optional
            Q of these rows, where the ensemble has no function for it (or to overrule it).

        Raises
        ------
        ValueError, TypeError
            If X is no matrix of numbers.
        """
        rows = array("QEnsemble: X", X, (None, None), copy=False)
        total = np.zeros(len(rows))
        for total in self.staged_decision_function(rows, q):  # noqa: B007
            pass
        return total

    def predict(self, X: Any, q: Any = None) -> np.ndarray:
        """Return the signs of f, +1 where f = 0."""
        return np.where(self.decision_function(X, q) >= 0.0, 1.0, -1.0)

    def margins(self, X: Any, y: Any, q: Any = None) -> np.ndarray:
        """Return y f(x) / ‖alpha‖_1 of every row, in [-1, 1]; ‖alpha‖_1 sums over different members."""
        f = self.decision_function(X, q)
        weight = self.weight
        return vector("QEnsemble.margins: y", y, f.size) * f / (weight if weight > 0.0 else 1.0)

    @property
    def weight(self) -> float:
        """‖alpha‖_1 after the stages of equal members are added up."""
        total: dict[Any, float] = {}
        for h, source, a in zip(self.members, self.sources.tolist(), self.alpha.tolist(), strict=True):
            key = (source, h if isinstance(h, Stump) else id(h))
            total[key] = total.get(key, 0.0) + a
        return float(sum(abs(v) for v in total.values()))

    def errors(self, X: Any, y: Any, domain: Any, q: Any = None) -> dict[Any, float]:
        """Return the share of rows with y != predict(x) in every domain, by the domain's name in `domain`."""
        guess, names = self.predict(X, q), raw("QEnsemble.errors: domain", domain)
        wrong = guess != vector("QEnsemble.errors: y", y, guess.size)
        if names.shape != wrong.shape:
            raise bad("QEnsemble.errors: domain", f"name the domain of each of the {wrong.size} rows", f"{names.shape}")
        return {name: float(wrong[names == name].mean()) for name in np.unique(names).tolist()}

    def _rows_of_q(self, rows: np.ndarray, q: Any) -> np.ndarray:
        if q is None and self.q is False:
            cure = "pass q=, one row of Q(l|x) per row of X, or build the problem with a function"
            raise bad("QEnsemble: Q", "be known on new rows", "only numbers for the training rows", cure)
        return as_q("QEnsemble: Q", self.q if q is None else q, rows, self.p)

    @property
    def scores(self) -> Scores:
        """The ensemble as one base classifier x -> f(x)/‖alpha‖_1 in [-1, 1], for combinations of ensembles."""
        return Scores(self, self.weight or 1.0)

    # ------------------------------------------------------------------ files
    def save(self, path: str | os.PathLike) -> None:
        """Write to an npz file without pickle: stumps, trees, alpha, and Q if it is constant or of `fit_q`.

        Raises
        ------
        TypeError
            If a member or Q is code of somebody else, which only pickle could store.
        """
        file = check_file("QEnsemble.save: path", path)
        write_file(file, npz(arrays_of(self, "QEnsemble.save")))

    @classmethod
    def load(cls, path: str | os.PathLike) -> QEnsemble:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is damaged or foreign.
        """
        file = existing("QEnsemble.load", path)
        try:
            return ensemble_of(arrays_in(file))
        except Exception as error:  # whatever a damaged or foreign file makes its readers raise
            got = f"a damaged or foreign file ({type(error).__name__}: {error})"
            raise bad(f"QEnsemble.load: {path}", "be written by QEnsemble.save", got) from None


def arrays_of(ensemble: QEnsemble, who: str) -> dict[str, np.ndarray]:
    """Return all that makes the ensemble as arrays, without objects; `ensemble_of` reads them.

    Raises
    ------
    TypeError
        As `QEnsemble.save`.
    """
    arrays: dict[str, np.ndarray] = {"alpha": ensemble.alpha, "sources": ensemble.sources, "names": ensemble.names}
    kinds = []
    for t, h in enumerate(ensemble.members):
        if not isinstance(h, (Stump, Tree)):
            cure = "keep its alpha and retrain it, or use stumps or Dictionary.trees"
            raise wrong_type(f"{who}: members", "be stumps or trees", type(h).__name__, cure)
        kinds.append(isinstance(h, Tree))
        if isinstance(h, Tree):
            arrays |= {f"tree{t}/{name}": v for name, v in h._asdict().items()}
    stumps = [h for h in ensemble.members if isinstance(h, Stump)]
    arrays["stumps"] = np.array([tuple(h) for h in stumps], dtype=float).reshape(-1, 4)
    about: dict[str, Any] = {"format": 1, "n_sources": ensemble.p, "trees": kinds, "q": None}
    if ensemble.q is False:
        about["q"] = "numbers"
    elif ensemble.q is not None:
        if not isinstance(ensemble.q, MaximumEntropyQ) or callable(ensemble.q.features):
            cure = "use fit_q with named features, or pass q= when predicting"
            raise wrong_type(f"{who}: q", "be constant or of fit_q", type(ensemble.q).__name__, cure)
        arrays |= {"q/v": ensemble.q.v, "q/center": ensemble.q.center, "q/scale": ensemble.q.scale}
        about["q"] = {"features": ensemble.q.features, "temperature": ensemble.q.temperature, "l2": ensemble.q.l2}
    return arrays | {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}


def ensemble_of(a: dict[str, np.ndarray]) -> QEnsemble:
    """Return the ensemble that `arrays_of` described; whatever is missing or wrong raises."""
    about = json_of(a["about"])
    q: Any = None
    if about["q"] == "numbers":
        q = False
    elif about["q"] is not None:
        among("QEnsemble: features", about["q"]["features"], MAPS)
        kind, T, l2 = (about["q"][name] for name in ("features", "temperature", "l2"))
        q = MaximumEntropyQ(a["q/v"], a["q/center"], a["q/scale"], kind, float(T), float(l2), {})
    rows = iter(a["stumps"])
    members: list[Any] = []
    for t, is_tree in enumerate(about["trees"]):
        if is_tree:
            members.append(_sound(Tree(*(a[f"tree{t}/{name}"] for name in Tree._fields))))
        else:
            j, c, left, right = next(rows).tolist()
            members.append(Stump(whole("QEnsemble: feature of a stump", int(j)), c, left, right))
    return QEnsemble(members, a["sources"], a["alpha"], q, int(about["n_sources"]), a["names"])


class Scores(NamedTuple):
    """A whole ensemble as one base classifier: f(x)/weight.

    Attributes
    ----------
    ensemble : QEnsemble
        f.
    weight : float
        Positive: the sum of the ensemble's weights, so that scores lie in [-1, 1].

    Examples
    --------
    >>> from fedconvex.problems import QEnsemble, Scores, Stump
    >>> Scores(QEnsemble([Stump(0, 1.5, -1.0, 1.0)], [0], [0.5]), 0.5).predict([[1.0], [2.0]])
    array([-1.,  1.])
    """

    ensemble: QEnsemble
    weight: float

    def predict(self, X: Any) -> np.ndarray:
        """Return f(x)/weight of every row, in [-1, 1]."""
        return np.clip(self.ensemble.decision_function(X) / self.weight, -1.0, 1.0)
