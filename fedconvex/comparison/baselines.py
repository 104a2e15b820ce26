"""What stands beside the linear models: no features at all, and boosted stumps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex.comparison.designs import Models
from fedconvex.comparison.kinds import Training
from fedconvex.driver import run
from fedconvex.federation import Federation
from fedconvex.losses import Exponential
from fedconvex.methods import MultiBoost
from fedconvex.problems import StumpProblem, fit_q

STUMPS, SMOOTHING = 100, 50.0


def base_rates(data: Training) -> Models:
    """Return every client's share of each class in its training rows, one row of each added; or the mean target."""
    rows, train = data.rows, data.train
    C, d = data.outputs, data.X.shape[1]
    intercept = np.zeros((rows.K, C))
    for k in range(rows.K):
        y = rows.y[train[rows.client[train] == k]]
        if not rows.classifies:
            intercept[k] = y.mean()
        elif rows.binary:
            intercept[k] = np.log(((y > 0).sum() + 1.0) / ((y <= 0).sum() + 1.0))
        else:
            intercept[k] = np.log((np.bincount(y.astype(int), minlength=C) + 1.0) / (y.size + C))
    return Models(np.zeros((rows.K, C, d)), intercept)


class Boosted(NamedTuple):
    """An ensemble whose score is twice the log odds of the exponential loss."""

    ensemble: Any

    def scores(self, X: Any, client: np.ndarray) -> np.ndarray:
        """Return log odds of the second class, (n,)."""
        return 2.0 * np.asarray(self.ensemble.decision_function(X.toarray() if sp.issparse(X) else X))


def boosted(data: Training) -> Boosted:
    """Return 100 stumps boosted by MultiBoost, sources the domains, or the clients where there are none.

    References
    ----------
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021.
    """
    rows, train = data.rows, data.train
    code = rows.groups[0][train]
    X = np.asarray(data.X[train].toarray() if sp.issparse(data.X) else data.X[train])
    known, source = np.unique(code, return_inverse=True)
    q = fit_q(X, source, l2=1e-3, seed=0) if known.size > 1 else None
    fed = Federation.from_arrays(X, rows.y[train], source, source)
    problem = StumpProblem(fed, q, Exponential(), bins=255 if train.size > 5000 else None)
    result = run(MultiBoost(smoothing=SMOOTHING), problem, rounds=STUMPS, tol=0.0, record_every=STUMPS, progress=False)
    return Boosted(problem.ensemble(result.state))
