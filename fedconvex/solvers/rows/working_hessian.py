"""Second derivatives of the smooth part of F over a working set of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dsyrk

from fedconvex.solvers.objective import Objective

CHANGED = 0.3  # by what share curvatures may change before a Hessian is too old


class WorkingHessian:
    """The Hessian of sum_i c_i l(x_i'w) + (l2/2)‖w‖^2 over a set J of the entries of a flat model (C d,).

    For a quadratic loss it does not change with w, and what is known of it for one set serves the next. For other
    losses of one score the Hessian at an earlier w serves as well, until steps of it make too little progress (chord
    steps): a step then costs as much as a gradient.
    """

    def __init__(self, problem: Objective) -> None:
        self.problem = problem
        self.kept = np.empty(0, dtype=np.int64)  # columns whose Gram matrix is known
        self.gram = np.empty((0, 0))
        self.taken: tuple[np.ndarray, Any] = (self.kept, None)  # the last set, and its columns
        self.h: np.ndarray | None = None  # what rows weigh in it

    def columns(self, J: np.ndarray) -> Any:
        """Return the columns of X that the entries J belong to, one for each: (n, |J|), columns contiguous."""
        X, j = self.problem.federation.by_column, J % self.problem.federation.d
        if not np.array_equal(j, self.taken[0]):
            self.taken = j, X[:, j] if sp.issparse(X) else self._gathered(X, j)
        return self.taken[1]

    def _gathered(self, X: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the columns j of rows that are contiguous; those of the last set are copied from there."""
        place, (before, kept) = np.full(X.shape[1], -1), self.taken
        place[before] = np.arange(before.size)
        out, new = np.empty((j.size, len(X))), np.flatnonzero(place[j] < 0)
        if new.size < j.size:
            np.take(kept.T, np.maximum(place[j], 0), axis=0, out=out, mode="clip")
        for lo in range(0, len(X) if new.size else 0, 64):  # a block of rows stays in cache
            out[new, lo : lo + 64] = X[lo : lo + 64, j[new]].T
        return out.T

    def gradient(self, X: Any, J: np.ndarray, A: np.ndarray) -> np.ndarray:
        """Return sum_i A_ic x_ij for the entries (c, j) of J."""
        if A.shape[1] == 1:
            return np.asarray(X.T @ A[:, 0])
        outputs = J // self.problem.federation.d
        out = np.empty(J.size)
        for c in range(A.shape[1]):
            mine = outputs == c
            out[mine] = X[:, mine].T @ A[:, c]
        return out

    def scores(self, X: Any, J: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Return the scores (n, C) of a change d of the entries J."""
        problem = self.problem
        if problem.n_outputs == 1:
            return np.asarray(X @ d)[:, None]
        W = np.zeros((problem.n_outputs, J.size))
        W[J // problem.federation.d, np.arange(J.size)] = d
        return np.ascontiguousarray(X @ W.T)

    def matrix(
        self,
        X: Any,
        J: np.ndarray,
        curvatures: Callable[[], np.ndarray],
        Z: np.ndarray,
        c: np.ndarray,
        fresh: bool = True,
    ) -> np.ndarray:
        """Return the Hessian over J, (|J|, |J|), or a bound of it where the loss has no curvature.

        Unless it is asked to be ``fresh``, it may be that of an earlier w.
        """
        problem = self.problem
        if problem.traits.multinomial:
            H = self._multinomial(X, J, Z, c)
        elif problem.traits.several:
            outputs = J // problem.federation.d
            H = weighted_gram(X, curvatures()) * (outputs[:, None] == outputs)
        else:
            if problem.traits.quadratic:
                h = c
            else:
                h = curvatures()
                if not fresh and self.h is not None and float(np.abs(h - self.h).sum()) <= CHANGED * float(h.sum()):
                    h = self.h
            if h is not self.h:
                self.h, self.kept = h, self.kept[:0]
            H = self._known(X, J, h)
        H.flat[:: J.size + 1] += problem.ridge if np.ndim(problem.ridge) == 0 else problem.ridge[J]
        return H

    def _known(self, X: Any, J: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Return X_J' diag(c) X_J; only columns that were not in the last set are multiplied."""
        if np.array_equal(J, self.kept):
            return self.gram.copy()
        known = np.isin(J, self.kept)
        if 2 * known.sum() < J.size:
            H = weighted_gram(X, c)
        else:
            H, place = np.empty((J.size, J.size)), np.searchsorted(self.kept, J[known])
            H[np.ix_(known, known)] = self.gram[np.ix_(place, place)]
            new = ~known
            if new.any():
                part = X[:, new]
                scaled = part.multiply(c[:, None]).tocsc() if sp.issparse(X) else part * c[:, None]
                cross = X.T @ scaled
                cross = cross.toarray() if sp.issparse(cross) else cross
                H[:, new], H[new] = cross, cross.T
        self.kept, self.gram = J, H.copy()
        return H

    def _multinomial(self, X: Any, J: np.ndarray, Z: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Blocks sum_i c_i P_ia (1[a = b] - P_ib) x_ij x_ik for entries (a, j), (b, k)."""
        P, outputs = np.asarray(self.problem.loss.probabilities(Z)), J // self.problem.federation.d
        H = np.empty((J.size, J.size))
        places = [np.flatnonzero(outputs == a) for a in range(P.shape[1])]
        for a, mine in enumerate(places):
            for b, other in enumerate(places[: a + 1]):
                h = c * P[:, a] * ((a == b) - P[:, b])
                scaled = X[:, other].multiply(h[:, None]).tocsc() if sp.issparse(X) else X[:, other] * h[:, None]
                block = X[:, mine].T @ scaled
                block = block.toarray() if sp.issparse(block) else block
                H[np.ix_(mine, other)] = block
                H[np.ix_(other, mine)] = block.T
        return H


def weighted_gram(X: Any, h: np.ndarray) -> np.ndarray:
    """Return X' diag(h) X for h >= 0, dense."""
    root = np.sqrt(h)
    if sp.issparse(X):
        A = sp.csc_array((X.data * root[X.indices], X.indices, X.indptr), shape=X.shape)
        return np.asarray((A.T @ A).toarray())
    A = X * root[:, None]
    H = dsyrk(1.0, A, trans=1, lower=1) if A.flags.f_contiguous else dsyrk(1.0, A.T, lower=1)
    H = H + H.T  # the upper triangle was 0
    H.flat[:: len(H) + 1] *= 0.5
    return np.ascontiguousarray(H)
