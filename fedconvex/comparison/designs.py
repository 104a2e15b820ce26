"""Training rows as a federation: standardised by their own means and deviations, with a last column of ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex.comparison.compared_rows import Rows
from fedconvex.federation import Federation
from fedconvex.federation_input import sealed
from fedconvex.tables.moments import sparse_standardised, squares_about


class Models(NamedTuple):
    """Linear models in the units of the features: one for all, or one per client."""

    coef: np.ndarray  # (J, C, d), J = 1 or K; C = 1 for a single score
    intercept: np.ndarray  # (J, C)

    def scores(self, X: Any, client: np.ndarray) -> np.ndarray:
        """Return the scores of rows of the given clients, (n,) or (n, C)."""
        if len(self.coef) == 1:
            Z = np.asarray(X @ self.coef[0].T) + self.intercept[0]
        else:
            Z = np.empty((X.shape[0], self.coef.shape[1]))
            for k in np.unique(client).tolist():
                mine = np.flatnonzero(client == k)
                Z[mine] = np.asarray(X[mine] @ self.coef[k].T) + self.intercept[k]
        return Z[:, 0] if Z.shape[1] == 1 else Z


class Scaling(NamedTuple):
    """Features become (x - center)/scale, a real target (y - shift)/unit."""

    center: np.ndarray
    scale: np.ndarray
    shift: float
    unit: float

    def of_rows(self, X: Any) -> Any:
        """Return scaled features with a last column of ones."""
        if sp.issparse(X):
            ones = sp.csr_array(np.ones((X.shape[0], 1)))
            return sp.hstack([sparse_standardised(X, self.center, self.scale), ones], format="csr")
        out = np.ones((X.shape[0], X.shape[1] + 1))
        np.subtract(X, self.center, out=out[:, :-1])
        out[:, :-1] /= self.scale
        return out

    def models(self, W: np.ndarray, outputs: int) -> Models:
        """Return models W (J, ...) of scaled rows as models of the rows themselves."""
        W = W.reshape(-1, outputs, self.center.size + 1)
        coef = W[:, :, :-1] / self.scale
        intercept = W[:, :, -1] - coef @ self.center
        return Models(self.unit * coef, self.shift + self.unit * intercept)


class Design(NamedTuple):
    """Training rows as solvers take them, and how they were scaled."""

    federation: Federation
    scaling: Scaling


def design(rows: Rows, X: Any, train: np.ndarray) -> Design:
    """Return the design of some rows, in increasing order; every client present has them in one piece.

    Sparse features are divided by their standard deviation, and centred only where they have no zero and a mean beyond
    their deviation, as years have; features that are constant in these rows are not divided.
    """
    mine, y = X[train], rows.y[train]
    center = mean = np.asarray(mine.mean(axis=0)).ravel()
    deviation = np.sqrt(squares_about(mine, mean) / train.size)
    if sp.issparse(mine):
        held = np.bincount(mine.indices[mine.data != 0.0], minlength=mean.size)
        center = np.where((held == train.size) & (np.abs(mean) > deviation), mean, 0.0)
    scale = np.where(deviation > 1e-7 * np.abs(mean), deviation, 1.0)
    scale = np.where(scale > 0.0, scale, 1.0)
    shift, unit = (0.0, 1.0) if rows.classifies else (float(y.mean()), float(y.std()) or 1.0)
    scaling = Scaling(center, scale, shift, unit)
    present, code = np.unique(rows.client[train], return_inverse=True)
    labels = np.array(rows.names)[present]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(code))])
    domain = None if rows.domain is None else rows.domain[train]
    kept = None
    if domain is not None:
        found, domain = np.unique(domain, return_inverse=True)
        kept = np.array(rows.domains)[found]
    fed = Federation(sealed(scaling.of_rows(mine)), (y - shift) / unit, ptr, labels, domain, kept)
    return Design(fed, scaling)


def whole_classes(rows: Rows, y: np.ndarray) -> bool:
    """Whether labels hold every class, so that a free intercept has a minimum."""
    return not rows.classifies or np.unique(y).size == len(rows.classes or ())
