"""What models of a multi-task problem say of rows: scores, predictions, and how good they are, task by task."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, finite, instance, raw
from fedconvex._sparse import rows_given
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.problems.protocol import ClientWeights


class TaskMetrics(NamedTuple):
    """How good the models are, task by task, in the order of the tasks."""

    error: np.ndarray  # (m,) share of wrong signs or classes, or mean squared error for real labels; NaN without rows
    loss: np.ndarray  # (m,) mean loss
    rows: np.ndarray  # (m,)

    @property
    def mean_error(self) -> float:
        """Mean of the tasks' errors, each task counting once."""
        return float(np.nanmean(self.error))


class TaskPredictions(ClientWeights):
    """What `MultiTaskProblem` says of rows, its own or new ones."""

    loss: Any

    def stack(self, W: Any) -> tuple[np.ndarray, bool]:
        """Return models as (R, m, d), or (R, m, C, d), and whether W was a single one."""
        raise NotImplementedError

    def task_scores(self, W: np.ndarray) -> np.ndarray:
        """x_i'w_t of every row of the federation, (n,), or (n, C)."""
        raise NotImplementedError

    def scores(self, W: Any, X: Any = None, tasks: Any = None) -> np.ndarray:
        """Scores x_i'w_t: of the federation's rows, or of rows X whose tasks are named by their labels.

        Parameters
        ----------
        W : array (m, d), or (m, C, d)
        X : array (N, d), optional
        tasks : array (N,) of labels, or one label
            Required with X.

        Returns
        -------
        array (N,), or (N, C)
        """
        Ws, single = self.stack(W)
        if not single:
            raise bad("MultiTaskProblem.scores: W", "be one set of models", f"{len(Ws)}")
        finite("MultiTaskProblem.scores: W", Ws[0])
        if X is None:
            return self.task_scores(Ws[0])
        rows = rows_given("MultiTaskProblem.scores: X", X)
        if rows.ndim != 2 or rows.shape[1] != self.federation.d:
            raise bad("MultiTaskProblem.scores: X", f"have {self.federation.d} columns", f"shape {rows.shape}")
        finite("MultiTaskProblem.scores: X", rows.data if sp.issparse(rows) else rows)
        if tasks is None:
            raise bad("MultiTaskProblem.scores: tasks", "name the task of every row", "none", "pass tasks=")
        code = self._tasks(tasks, rows.shape[0])
        if not traits(self.loss).several:
            return _products(rows, Ws[0][code])
        return np.stack([_products(rows, w[code]) for w in Ws[0].transpose(1, 0, 2)], axis=1)

    def predict(self, W: Any, X: Any = None, tasks: Any = None) -> np.ndarray:
        """Predictions of the rows' own tasks: real numbers for squared loss, signs, or numbers of classes."""
        z = self.scores(W, X, tasks)
        return traits(self.loss).predict(z)

    def metrics(self, W: Any, federation: Federation | None = None) -> TaskMetrics:
        """Errors and losses of every task on its own rows, or on those of another federation with the same labels."""
        fed = self.federation if federation is None else federation
        instance("MultiTaskProblem.metrics: federation", fed, Federation)
        z = self.scores(W, None if federation is None else fed.X, np.repeat(fed.labels, fed.sizes))
        guess = traits(self.loss).predict(z)
        wrong = (guess - fed.y) ** 2 if traits(self.loss).task == "regression" else (guess != fed.y).astype(float)
        code, m = np.repeat(self._tasks(fed.labels, fed.K), fed.sizes), self.federation.K
        rows = np.bincount(code, minlength=m)
        with np.errstate(invalid="ignore"):
            error, loss = (np.bincount(code, v, minlength=m) / rows for v in (wrong, row_values(self.loss, z, fed.y)))
        return TaskMetrics(error, loss, rows)

    def _tasks(self, labels: Any, N: int) -> np.ndarray:
        """Numbers of the tasks with these labels, (N,)."""
        known = {label: t for t, label in enumerate(self.federation.labels.tolist())}
        given = raw("MultiTaskProblem: tasks", labels)
        if given.ndim > 1 or given.size not in (1, N) or given.dtype.kind not in "iubUS":
            raise bad("MultiTaskProblem: tasks", f"be a label, or one for each of the {N} rows", f"{labels!r}")
        names = np.broadcast_to(given, N).tolist()
        missing = [v for v in names if v not in known]
        if missing:
            raise bad("MultiTaskProblem: tasks", "be labels of the federation's clients", f"{missing[0]!r}")
        return np.array([known[v] for v in names])


def _products(rows: Any, mine: np.ndarray) -> np.ndarray:
    """Return x_i'w_i of rows, dense or sparse, and a model for each, (N,)."""
    return np.asarray(rows.multiply(mine).sum(axis=1) if sp.issparse(rows) else np.sum(rows * mine, axis=1)).ravel()


def row_values(loss: Any, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Losses of rows with scores z (n,) or (n, C), (n,)."""
    out = np.empty((len(z), 1))
    row_losses.row_values(loss, np.ascontiguousarray(z).reshape(len(z), -1), y, out)
    return out[:, 0]
