"""Which source a point is like, Q(l|x), by conditional maximum entropy; and the ensembles that Q mixes.

Conditional maximum entropy: Q(l|x) = exp(v_l'psi(x)) / sum_j exp(v_j'psi(x)), where v minimises

    -(1/m) sum_i log Q(k_i|x_i) + mu ‖v‖^2

over pairs (x_i, domain k_i); labels are not used. That is multinomial logistic regression with l2 = 2 mu,
solved exactly.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, finite, numeric, real, whole, wrong_type
from fedconvex.draws import key_from_seed
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.stumps import Stump

__all__ = ["MaximumEntropyQ", "QEnsemble", "Scores", "Tree", "as_q", "calibration_error", "fit_q"]

MAPS = ("linear", "squares")
_TOLERANCE = 1e-8  # how far rows of Q may be from summing to one


# ---------------------------------------------------------------- Q


@dataclass(frozen=True, eq=False)
class MaximumEntropyQ:
    """Q(l|x) = softmax(T^-1 v psi(x)) with psi a feature map of standardised features and a one; callable on X.

    Attributes
    ----------
    v : array (p, D)
        Weights.
    center, scale : array (d,)
        Features are (x - center) / scale before they are mapped.
    features : "linear", "squares" or callable
        psi: the features; with their squares; or a function of X alone (then nothing is standardised).
    temperature : float
        T, 1 unless calibrated.
    l2 : float
        The regularisation that was used (or chosen).
    scores : dict
        Held-out log loss by l2, if it was chosen.
    """

    v: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    features: Any
    temperature: float
    l2: float
    scores: dict[float, float]

    def __call__(self, X: Any) -> np.ndarray:
        """Return Q(l|x) for rows X, (n, p)."""
        return _softmax(_mapped(X, self.features, self.center, self.scale) @ self.v.T / self.temperature)


def fit_q(
    X: Any,
    domain: Any,
    *,
    l2: float | None = None,
    features: Any = "linear",
    folds: int = 5,
    calibrate: bool = True,
    seed: int = 0,
) -> MaximumEntropyQ:
    """Fit Q(l|x) by conditional maximum entropy.

    Parameters
    ----------
    X : array (n, d)
        Unlabelled points.
    domain : array (n,) of int
        Their domains, 0, ..., p-1, each present.
    l2 : float, optional
        2 mu of the penalty mu ‖v‖^2, positive; default the one of 1e-6, 1e-5, ..., 1 with the least held-out log loss.
    features : {"linear", "squares"} or callable
        psi; a callable maps X to (n, D).
    folds : int
        Folds of the cross-validation.
    calibrate : bool
        Fit one temperature to the held-out predictions: the one of least log loss.
    seed : int
        Key of the folds.

    Raises
    ------
    ValueError, TypeError
        On NaN, mismatched lengths, or a domain without rows.

    References
    ----------
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021 (the use of Q). Guo, Pleiss, Sun,
    Weinberger, "On calibration of modern neural networks", ICML 2017 (temperature scaling).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import fit_q
    >>> X = np.repeat([[0.0], [1.0], [1.0], [0.0]], [30, 30, 10, 10], axis=0)
    >>> q = fit_q(X, np.repeat([0, 1, 0, 1], [30, 30, 10, 10]), l2=1e-8, calibrate=False)
    >>> q([[0.0], [1.0]]).round(3)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    if features not in MAPS and not callable(features):
        raise bad("fit_q.features", f"be one of {MAPS} or a function of X", f"{features!r}")
    rows = numeric("fit_q.X", X, copy=False)
    finite("fit_q.X", rows)
    code = np.asarray(domain)
    if rows.ndim != 2 or code.shape != rows.shape[:1] or code.dtype.kind not in "iu" or code.min() < 0:
        raise bad("fit_q.domain", "be one whole number per row of X", f"shapes {rows.shape} and {code.shape}")
    counts = np.bincount(code)
    if counts.min() == 0:
        raise bad("fit_q: every domain", "have rows", f"none in domain {int(np.argmin(counts))}")
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    psi, p = _mapped(rows, features, center, scale), counts.size
    if p == 1:
        return MaximumEntropyQ(np.zeros((1, psi.shape[1])), center, scale, features, 1.0, 0.0, {})
    grid = [10.0**-e for e in range(7)] if l2 is None else [real("fit_q.l2", l2, low=0.0, strict=True)]
    scores, temperature = {}, 1.0
    if l2 is None or calibrate:
        parts = min(whole("fit_q.folds", folds, low=2), int(counts.max()), len(code))
        rng = np.random.default_rng(int(key_from_seed(seed)))
        fold = rng.permutation(len(code)) % parts
        held = {c: _held_out(psi, code, fold, c) for c in grid}
        scores = {c: _log_loss(_softmax(z), code) for c, z in held.items()}
        best = min(scores, key=lambda c: scores[c])
        temperature = _temperature(held[best], code) if calibrate else 1.0
    else:
        best = grid[0]
    return MaximumEntropyQ(_multinomial(psi, code, p, best), center, scale, features, temperature, best, scores)


def as_q(who: str, q: Any, X: Any, p: int) -> np.ndarray:
    """Return Q of the rows X as an array (n, p) whose rows are distributions.

    Raises
    ------
    ValueError
        If a row has a negative entry, NaN, or does not sum to one.
    """
    n = X.shape[0]
    if q is None:
        return np.full((n, p), 1.0 / p)
    Q = numeric(who, q(X) if callable(q) else q)
    if Q.shape != (n, p):
        raise bad(who, f"have one row per row of X and one column per source, {(n, p)}", f"shape {Q.shape}")
    finite(who, Q)
    off = np.abs(Q.sum(axis=1) - 1.0)
    if Q.min() < 0.0 or off.max() > _TOLERANCE:
        i = int(np.argmax(off)) if Q.min() >= 0.0 else int(np.argmin(Q.min(axis=1)))
        cure = "divide every row by its sum" if Q.min() >= 0.0 else ""
        raise bad(who, "have rows that are distributions", f"row {i} = {np.round(Q[i], 6).tolist()}", cure)
    return Q


def calibration_error(Q: Any, domain: Any, bins: int = 10) -> float:
    """Return the expected calibration error: mean over (row, source) of |share of source - mean Q| within bins of Q.

    Examples
    --------
    >>> from fedconvex.problems import calibration_error
    >>> calibration_error([[0.5, 0.5], [0.5, 0.5]], [0, 1])
    0.0
    """
    P, code = numeric("calibration_error: Q", Q), np.asarray(domain)
    hit = (code[:, None] == np.arange(P.shape[1])).astype(float)
    at = np.minimum((P * bins).astype(int), bins - 1).ravel()
    return float(np.abs(np.bincount(at, (hit - P).ravel(), minlength=bins)).sum() / P.size)


def _mapped(X: Any, features: Any, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    rows = numeric("Q: X", X, copy=False)
    if callable(features):
        psi = numeric("Q: features(X)", features(rows))
        if psi.ndim != 2 or len(psi) != len(rows):
            raise bad("Q: features(X)", f"have {len(rows)} rows", f"shape {psi.shape}")
    else:
        if rows.ndim != 2 or rows.shape[1] != center.size:
            raise bad("Q: X", f"have {center.size} columns", f"shape {rows.shape}")
        psi = (rows - center) / scale
        if features == "squares":
            psi = np.hstack([psi, psi**2])
    return np.hstack([psi, np.ones((len(rows), 1))])


def _multinomial(psi: np.ndarray, code: np.ndarray, p: int, l2: float, tol: float | None = None) -> np.ndarray:
    fed = Federation(psi, code.astype(float), np.array([0, len(code)]))
    return Problem(fed, Softmax(p), l2).solve(tol).w


def _held_out(psi: np.ndarray, code: np.ndarray, fold: np.ndarray, l2: float) -> np.ndarray:
    """Scores of every row by the model that was fitted without its fold, (n, p)."""
    p = int(code.max()) + 1
    Z = np.empty((len(code), p))
    for f in range(int(fold.max()) + 1):
        Z[fold == f] = psi[fold == f] @ _multinomial(psi[fold != f], code[fold != f], p, l2, 1e-8).T
    return Z


def _softmax(Z: np.ndarray) -> np.ndarray:
    from scipy.special import softmax

    return softmax(Z, axis=1)


def _log_loss(Q: np.ndarray, code: np.ndarray) -> float:
    return float(-np.log(np.maximum(Q[np.arange(len(code)), code], 1e-300)).mean())


def _temperature(Z: np.ndarray, code: np.ndarray) -> float:
    """Return the T in [1/20, 20] of least log loss of softmax(Z/T), convex in 1/T."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda s: _log_loss(_softmax(np.exp(s) * Z), code), bounds=(-3.0, 3.0), method="bounded")
    return float(np.exp(-found.x))


# ---------------------------------------------------------------- classifiers and ensembles


class Tree(NamedTuple):
    """A classification tree in arrays: at node v go to left[v] if x[feature[v]] <= threshold[v], else to right[v].

    Leaves have left[v] = -1 and predict value[v] in [-1, 1].
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
        self.members = tuple(members)
        self.p = whole("QEnsemble.n_sources", n_sources, low=1)
        self.alpha = numeric("QEnsemble.alpha", alpha)
        self.sources = np.asarray(sources, dtype=np.int64)
        T = len(self.members)
        if self.alpha.shape != (T,) or self.sources.shape != (T,):
            got = f"{self.alpha.shape} and {self.sources.shape}"
            raise bad("QEnsemble", f"be given one alpha and one source for each of the {T} members", got)
        finite("QEnsemble.alpha", self.alpha)
        if T and (self.sources.min() < 0 or self.sources.max() >= self.p):
            raise bad("QEnsemble.sources", f"lie in 0, ..., {self.p - 1}", f"{self.sources}")
        if q is not None and q is not False and not callable(q):
            raise wrong_type("QEnsemble.q", "be a function of X, None or False", type(q).__name__)
        self.q, self.names = q, np.arange(self.p) if names is None else np.asarray(names)

    def __len__(self) -> int:
        return len(self.members)

    def staged_decision_function(self, X: Any, q: Any = None) -> Iterator[np.ndarray]:
        """Yield f_t(x) of every row after t = 1, 2, ... members."""
        rows = numeric("QEnsemble: X", X, copy=False)
        finite("QEnsemble: X", rows)
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
        """
        rows = numeric("QEnsemble: X", X, copy=False)
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
        return numeric("QEnsemble.margins: y", y) * f / (weight if weight > 0.0 else 1.0)

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
        wrong, names = self.predict(X, q) != numeric("QEnsemble.errors: y", y), np.asarray(domain)
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
        arrays: dict[str, np.ndarray] = {"alpha": self.alpha, "sources": self.sources, "names": self.names}
        kinds = []
        for t, h in enumerate(self.members):
            if not isinstance(h, (Stump, Tree)):
                cure = "keep its alpha and retrain it, or use stumps or Dictionary.trees"
                raise wrong_type("QEnsemble.save: members", "be stumps or trees", type(h).__name__, cure)
            kinds.append(isinstance(h, Tree))
            if isinstance(h, Tree):
                arrays |= {f"tree{t}/{name}": v for name, v in h._asdict().items()}
        stumps = [h for h in self.members if isinstance(h, Stump)]
        arrays["stumps"] = np.array([tuple(h) for h in stumps], dtype=float).reshape(-1, 4)
        about: dict[str, Any] = {"format": 1, "n_sources": self.p, "trees": kinds, "q": None}
        if self.q is False:
            about["q"] = "numbers"
        elif self.q is not None:
            if not isinstance(self.q, MaximumEntropyQ) or callable(self.q.features):
                cure = "use fit_q with named features, or pass q= when predicting"
                raise wrong_type("QEnsemble.save: q", "be constant or of fit_q", type(self.q).__name__, cure)
            arrays |= {"q/v": self.q.v, "q/center": self.q.center, "q/scale": self.q.scale}
            about["q"] = {"features": self.q.features, "temperature": self.q.temperature, "l2": self.q.l2}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        with open(path, "wb") as f:
            np.savez(f, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> QEnsemble:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is damaged or foreign.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as stored:
                a = dict(stored)
            about = json.loads(a["about"].tobytes())
            q: Any = None
            if about["q"] == "numbers":
                q = False
            elif about["q"] is not None:
                among("QEnsemble.load: features", about["q"]["features"], MAPS)
                kind, T, l2 = (about["q"][name] for name in ("features", "temperature", "l2"))
                q = MaximumEntropyQ(a["q/v"], a["q/center"], a["q/scale"], kind, float(T), float(l2), {})
            rows = iter(a["stumps"])
            members: list[Any] = []
            for t, is_tree in enumerate(about["trees"]):
                if is_tree:
                    members.append(Tree(*(a[f"tree{t}/{name}"] for name in Tree._fields)))
                else:
                    j, c, left, right = next(rows).tolist()
                    members.append(Stump(int(j), c, left, right))
            return cls(members, a["sources"], a["alpha"], q, int(about["n_sources"]), a["names"])
        except (OSError, KeyError, ValueError, TypeError, StopIteration, zipfile.BadZipFile) as error:
            if isinstance(error, FileNotFoundError):
                raise
            got = f"a damaged or foreign file ({type(error).__name__}: {error})"
            raise bad(f"QEnsemble.load: {path}", "be written by QEnsemble.save", got) from None


class Scores(NamedTuple):
    """A whole ensemble as one base classifier: f(x)/weight."""

    ensemble: QEnsemble
    weight: float

    def predict(self, X: Any) -> np.ndarray:
        """Return f(x)/weight of every row, in [-1, 1]."""
        return np.clip(self.ensemble.decision_function(X) / self.weight, -1.0, 1.0)
