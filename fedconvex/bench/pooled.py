"""Pooled solvers of scikit-learn, LIBLINEAR among them: what all rows in one place would cost.

They show no iterates. Each is run for 1, 2, 4, ... iterations, every time from the start, and each such run has its own
time: the cost of a target is that of the shortest run that meets it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad

_LEVELS = tuple(2**k for k in range(13))


class Fit(NamedTuple):
    """A solver that is given all rows and a number of iterations.

    ``fit_to(X, y, l2, iterations)`` returns the model.
    """

    words: str
    losses: tuple[str, ...]
    fit_to: Callable[[Any, np.ndarray, float, int], np.ndarray]
    levels: tuple[int, ...] = _LEVELS

    def check(self, problem: Any, loss: str) -> None:
        """Raise unless the problem is one that it solves."""
        if loss not in self.losses:
            raise bad(f"bench: {self.words}", f"be given {' or '.join(self.losses)} loss", loss)
        sizes = problem.federation.sizes
        if not np.allclose(problem.weights, sizes / sizes.sum()):
            raise bad(f"bench: {self.words}", "be given client weights n_k/n", "others")
        if not problem.l2 > 0.0 and loss != "squared":
            raise bad(f"bench: {self.words}", "be given l2 > 0", "0")


def rows_of(federation: Any) -> tuple[Any, np.ndarray]:
    """Return all rows and labels as scikit-learn takes them: copies, sparse ones with indices of 32 bits."""
    X, y = federation.X, federation.y.copy()
    if not sp.issparse(X):
        return X.copy(), y
    parts = (X.data.copy(), X.indices.astype(np.int32), X.indptr.astype(np.int32))
    return sp.csr_array(parts, shape=X.shape), y


def _logistic(X: Any, y: np.ndarray, l2: float, iterations: int, solver: str) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    how = {"C": 1.0 / (l2 * len(y)), "fit_intercept": False, "tol": 1e-15, "max_iter": iterations}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = LogisticRegression(solver=solver, **how).fit(X, y).coef_
    return found[0] if len(found) == 1 else found


def _hinge(X: Any, y: np.ndarray, l2: float, iterations: int) -> np.ndarray:
    from sklearn.svm import LinearSVC

    how = {"loss": "hinge", "C": 1.0 / (l2 * len(y)), "fit_intercept": False, "tol": 1e-15, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LinearSVC(max_iter=iterations, **how).fit(X, y).coef_[0]


def _ridge(X: Any, y: np.ndarray, l2: float, iterations: int) -> np.ndarray:
    from sklearn.linear_model import Ridge

    return Ridge(alpha=l2 * len(y), fit_intercept=False, solver="cholesky").fit(X, y).coef_


FITS: Mapping[str, Fit] = {
    "sklearn-lbfgs": Fit("scikit-learn lbfgs, pooled", ("logistic", "softmax"), partial(_logistic, solver="lbfgs")),
    "sklearn-newton-cg": Fit(
        "scikit-learn newton-cg, pooled", ("logistic", "softmax"), partial(_logistic, solver="newton-cg")
    ),
    "liblinear": Fit("LIBLINEAR (trust region Newton), pooled", ("logistic",), partial(_logistic, solver="liblinear")),
    "liblinear-dual": Fit("LIBLINEAR (dual coordinate descent), pooled", ("hinge",), _hinge),
    "sklearn-cholesky": Fit("scikit-learn Ridge (Cholesky), pooled", ("squared",), _ridge, (1,)),
}
