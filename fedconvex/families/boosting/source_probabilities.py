"""Source probabilities: which source a point is like, Q(l|x), by conditional maximum entropy.

Conditional maximum entropy: Q(l|x) = exp(v_l'psi(x)) / sum_j exp(v_j'psi(x)), where v minimises

    -(1/m) sum_i log Q(k_i|x_i) + mu ‖v‖^2

over pairs (x_i, domain k_i); labels are not used. That is multinomial logistic regression with l2 = 2 mu,
solved exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import Rng, among, array, bad, codes, finite, flag, numeric, real, takes_rng, whole
from fedconvex._sparse import sound
from fedconvex.draws import key_from_seed
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.problems.empirical_risk import Problem

MAPS = ("linear", "squares")
_TOLERANCE = 1e-8  # how far rows of Q may be from summing to one


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

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import MaximumEntropyQ
    >>> q = MaximumEntropyQ(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.zeros(1), np.ones(1), "linear", 1.0, 0.1, {})
    >>> q([[0.0], [2.0]]).round(3)
    array([[0.5  , 0.5  ],
           [0.982, 0.018]])
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

    def by_row(self, X: Any) -> np.ndarray:
        """Return the same up to rounding, each row by itself: a BLAS product depends on how many rows there are."""
        psi = _mapped(X, self.features, self.center, self.scale)
        return _softmax(np.column_stack([(psi * v).sum(axis=1) for v in self.v]) / self.temperature)


@takes_rng
def fit_q(
    X: Any, domain: Any, *, l2: float | None = None, features: Any = "linear", folds: int = 5, calibrate: bool = True,
    seed: int = 0, rng: Rng = None,
) -> MaximumEntropyQ:  # fmt: skip
    """Return Q(l|x), fitted by conditional maximum entropy.

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
    rows, code, p = _rows_and_domains(X, domain, features)
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    psi = _mapped(rows, features, center, scale)
    if p == 1:
        return MaximumEntropyQ(np.zeros((1, psi.shape[1])), center, scale, features, 1.0, 0.0, {})
    grid = [10.0**-e for e in range(7)] if l2 is None else [real("fit_q.l2", l2, low=0.0, strict=True)]
    scores, best, temperature = dict[float, float](), grid[0], 1.0
    if l2 is None or calibrate:
        scores, best, temperature = _cross_validated(psi, code, grid, folds, seed, calibrate)
    return MaximumEntropyQ(_multinomial(psi, code, p, best), center, scale, features, temperature, best, scores)


def _rows_and_domains(X: Any, domain: Any, features: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows, their domains and how many domains there are, checked."""
    if not callable(features) or isinstance(features, type):
        among("fit_q.features (or be a function of X)", features, MAPS)
    rows = numeric("fit_q.X", X, copy=False)
    finite("fit_q.X", rows)
    code = codes("fit_q.domain", domain)
    if rows.ndim != 2 or code.shape != rows.shape[:1]:
        raise bad("fit_q.domain", "be one whole number per row of X", f"shapes {rows.shape} and {code.shape}")
    counts = np.bincount(code)
    if counts.min() == 0:
        raise bad("fit_q: every domain", "have rows", f"none in domain {int(np.argmin(counts))}")
    return rows, code, counts.size


def _cross_validated(
    psi: np.ndarray, code: np.ndarray, grid: list[float], folds: int, seed: int, calibrate: bool
) -> tuple[dict[float, float], float, float]:
    """Return the held-out log loss of every l2, the l2 of the least, and the temperature."""
    parts = min(whole("fit_q.folds", folds, low=2), int(np.bincount(code).max()), len(code))
    fold = np.random.default_rng(int(key_from_seed(seed))).permutation(len(code)) % parts
    held = {c: _held_out(psi, code, fold, c) for c in grid}
    scores = {c: _log_loss(_softmax(z), code) for c, z in held.items()}
    best = min(scores, key=lambda c: scores[c])
    return scores, best, _temperature(held[best], code) if flag("fit_q.calibrate", calibrate) else 1.0


def as_q(who: str, q: Any, X: Any, p: int) -> np.ndarray:
    """Return Q of the rows X as an array (n, p) whose rows are distributions.

    Parameters
    ----------
    who : str
        What messages call Q.
    q : callable, array (n, p) or None
        Q as a function of rows, or its values; None is uniform.
    X : array (n, d)
        Rows, dense or sparse.
    p : int
        Sources.

    Raises
    ------
    ValueError
        If a row has a negative entry, NaN, or does not sum to one.

    Examples
    --------
    >>> from fedconvex.problems import as_q
    >>> as_q("q", None, [[1.0], [2.0]], 4)
    array([[0.25, 0.25, 0.25, 0.25],
           [0.25, 0.25, 0.25, 0.25]])
    """
    X = sound(f"{who}: X", X) if sp.issparse(X) else array(f"{who}: X", X, (None, None), copy=False)
    n, p = X.shape[0], whole(f"{who}: p", p, low=1)
    if q is None:
        return np.full((n, p), 1.0 / p)
    Q = numeric(who, q(X) if callable(q) and not isinstance(q, type) else q)
    if Q.shape != (n, p):
        raise bad(who, f"have one row per row of X and one column per source, {(n, p)}", f"shape {Q.shape}")
    finite(who, Q)
    off = np.abs(Q.sum(axis=1) - 1.0)
    if Q.min(initial=0.0) < 0.0 or off.max(initial=0.0) > _TOLERANCE:
        i = int(np.argmax(off)) if Q.min() >= 0.0 else int(np.argmin(Q.min(axis=1)))
        cure = "divide every row by its sum" if Q.min() >= 0.0 else ""
        raise bad(who, "have rows that are distributions", f"row {i} = {np.round(Q[i], 6).tolist()}", cure)
    return Q


def calibration_error(Q: Any, domain: Any, bins: int = 10) -> float:
    """Return the expected calibration error: mean over (row, source) of |share of source - mean Q| within bins of Q.

    Parameters
    ----------
    Q : array (n, p)
        Probabilities of the sources.
    domain : int array (n,)
        The source of every row.
    bins : int
        Of equal width in [0, 1].

    Raises
    ------
    ValueError, TypeError
        If Q holds no probabilities, domain is not one number per row, or bins is below 1.

    Examples
    --------
    >>> from fedconvex.problems import calibration_error
    >>> calibration_error([[0.5, 0.5], [0.5, 0.5]], [0, 1])
    0.0
    """
    P, bins = array("calibration_error: Q", Q, (None, None)), whole("calibration_error: bins", bins, low=1)
    code = codes("calibration_error: domain", domain, len(P), P.shape[1])
    if not P.size or P.min() < 0.0 or P.max() > 1.0:
        raise bad("calibration_error: Q", "hold probabilities", "others" if P.size else "none")
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
