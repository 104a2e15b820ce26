"""What the estimators with a model for every client share: fitting, choosing lam, and whose model predicts a row."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedconvex._check import among, bad, flag, real, whole
from fedconvex.estimators.clients import client_names, scores_of
from fedconvex.estimators.given_rows import Rows, feature_rows, intercept_wanted
from fedconvex.estimators.training import trained
from fedconvex.families.multitask.estimator.choosing import chosen_lam, relation_of, solved
from fedconvex.families.multitask.relations import Relation
from fedconvex.problems import Covariance, MultiTaskProblem
from fedconvex.solvers import Solution
from fedconvex.tables.spelling import Names


@dataclass(kw_only=True, eq=False, repr=False)
class MultiTaskFit(BaseEstimator):
    """What the two estimators share: everything but the meaning of y."""

    __metadata_request__fit: ClassVar = {"clients": True}
    __metadata_request__predict: ClassVar = {"clients": True}
    __metadata_request__score: ClassVar = {"clients": True}

    losses: ClassVar[dict[str, Any]] = {}
    lam_: Any = field(init=False)  # one task's or several tasks', as are the next two
    trace_: Any = field(init=False)
    cv_results_: Any = field(init=False)
    loss: Any = field(default="hinge", kw_only=False)
    relation: Any = "joint"
    lam: Any = 0.01
    lams: Any = None
    cv: int = 5
    normalisation: str = "mean"
    fit_intercept: bool = True
    method: Any = "solve"
    step_size: Any = "auto"
    tol: float = 1e-4
    max_iter: int = 10_000
    unknown: str = "mean"
    warm_start: bool = False
    random_state: Any = 0

    # ------------------------------------------------------------------ fitting
    def _fit(self, rows: Rows, target: np.ndarray, strata: np.ndarray) -> None:
        """Fit to checked rows and numeric labels; rows of a client are spread over folds within strata."""
        who = type(self).__name__
        among(f"{who}.normalisation", self.normalisation, ("sum", "mean"))
        among(f"{who}.unknown", self.unknown, ("error", "mean"))
        passes, tol = whole(f"{who}.max_iter", self.max_iter, low=1), real(f"{who}.tol", self.tol, low=0.0, strict=True)
        m = len(np.unique(rows.clients))
        lam = self._chosen(rows, target, strata, m)
        problem = self._problem(rows, target, relation_of(type(self).__name__, self.relation, lam, m))
        zero, last = float(problem.value(np.zeros(problem.model_shape))), self._last(problem)
        exact = lambda: solved(problem, tol, last, passes)  # noqa: E731
        start = None if last is None else last.w
        fit = trained(self, problem, exact, scale=zero, start=start, fitting=lambda method: method)
        duals = getattr(fit.state, "alpha", None)
        self._solution = Solution(fit.w, fit.value, fit.value - fit.gap, "", True, False, fit.n_iter, 0.0, duals)
        d = rows.X.shape[1]
        self.coef_, self.intercept_ = fit.w[..., :d].copy(), fit.w[..., d:].sum(axis=-1)
        self.clients_, self.n_clients_, self.lam_ = np.asarray(problem.federation.labels), m, lam
        self.objective_, self.gap_, self.n_iter_ = fit.value, fit.gap, fit.n_iter
        self.trace_, self.step_size_ = fit.trace, fit.step_size
        self.relationship_ = _covariance(problem, fit.w)

    def _last(self, problem: MultiTaskProblem) -> Solution | None:
        """Return the last fit if there is a warm start and it was of as many clients, features and rows, else None."""
        last = getattr(self, "_solution", None)
        if not flag(f"{type(self).__name__}.warm_start", self.warm_start) or last is None:
            return None
        same = last.alpha is None or last.alpha.shape == problem.dual_shape
        return last if same and last.w.shape == problem.model_shape else None

    def _problem(self, rows: Rows, target: np.ndarray, relation: Relation) -> MultiTaskProblem:
        """Return the multi-task problem of checked rows with numeric labels."""
        fed = rows.federation(target, intercept_wanted(self))
        return MultiTaskProblem(fed, self._loss(), relation, self.normalisation)

    def _chosen(self, rows: Rows, target: np.ndarray, strata: np.ndarray, m: int) -> float | None:
        """Return lam, by cross-validation if asked for."""
        who, fixed = type(self).__name__, isinstance(self.relation, Relation)
        self.__dict__.pop("cv_results_", None)
        if not isinstance(self.lam, str):
            return None if fixed else real(f"{who}.lam", self.lam, low=0.0, strict=True)
        among(f"{who}.lam", self.lam, ("cv",))
        if fixed:
            cure = "pass a function of lam that returns a relationship"
            raise bad(f"{who}.lam", "be a number for a given relationship", "'cv'", cure)
        problem_of = lambda some, y, lam: self._problem(some, y, relation_of(who, self.relation, lam, m))  # noqa: E731
        choice = chosen_lam(self, rows, target, strata, problem_of, self._good)
        self.cv_results_ = choice.results
        return choice.lam

    def _loss(self) -> Any:
        who = type(self).__name__
        if not isinstance(self.loss, str):
            return self.loss
        among(f"{who}.loss", self.loss, tuple(self.losses))
        return self.losses[self.loss]

    def _good(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    # ------------------------------------------------------------------ prediction
    def _predicted(self, X: Any, clients: Any) -> np.ndarray:
        """Scores x'w_t + b_t of rows of named clients, (n,) or (n, C); of unknown ones by the mean of all models."""
        check_is_fitted(self)
        X, who = feature_rows(self, X), type(self).__name__
        code, several = np.full(X.shape[0], -1), len(self.clients_) > 1
        if clients is not None:
            names = client_names(f"{who}: clients", clients, X.shape[0]).tolist()
            code = Names(self.clients_.tolist()).places(names)  # 2, 2.0, "2" and "2.0" are one client
            if (code < 0).any() and self.unknown != "mean":
                cure = "unknown='mean' uses the mean of all models"
                raise bad(f"{who}: clients", "be among those of fit", f"{names[int(code.argmin())]!r}", cure)
        elif several and self.unknown != "mean":
            cure = "pass clients=, the client of every row"
            raise bad(f"{who}: clients", f"say whose of {len(self.clients_)} models to use", "None", cure)
        elif several:
            text = f"{who}: without clients= all rows are predicted by the mean of {len(self.clients_)} models"
            warnings.warn(text, stacklevel=3)
        W = np.concatenate([self.coef_, self.coef_.mean(axis=0, keepdims=True)])
        b = np.concatenate([self.intercept_, self.intercept_.mean(axis=0, keepdims=True)])
        return scores_of(X, W, code) + b[code]

    @property
    def correlations_(self) -> np.ndarray:
        """Correlations of the clients' models, like `relationship_`, which is scaled to a diagonal of ones."""
        check_is_fitted(self)
        scale = 1.0 / np.sqrt(np.maximum(np.diagonal(self.relationship_, axis1=-2, axis2=-1), 1e-300))
        return np.asarray(self.relationship_ * (scale[..., :, None] * scale[..., None, :]))

    def client_scores(self, X: Any, y: Any, clients: Any = None) -> dict[Any, float]:
        """Return `score` on the rows of every client by itself: {client: score}.

        Parameters
        ----------
        X : array or sparse matrix (n, d)
        y : array (n,)
        clients : array (n,), optional if there is one only
        """
        guess, y = self.predict(X, clients), np.asarray(y)  # type: ignore[attr-defined]
        if y.shape != guess.shape:
            raise bad(f"{type(self).__name__}: y", f"have shape {guess.shape}", f"{y.shape}")
        names = (
            np.repeat(self.clients_[:1], len(guess))
            if clients is None
            else client_names(f"{type(self).__name__}: clients", clients, len(guess))
        )
        metric, (known, code) = self._metric(), np.unique(names, return_inverse=True)
        return {name: float(metric(y[code == t], guess[code == t])) for t, name in enumerate(known.tolist())}

    def _metric(self) -> Callable:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _covariance(problem: MultiTaskProblem, W: np.ndarray) -> np.ndarray:
    """Return the covariance of the tasks, of trace one."""
    relation = problem.relation
    if isinstance(relation, Covariance) and relation.learned:
        return relation.omega_of(W.reshape(len(W), -1), 0.0)
    return np.asarray(problem.mbar / np.trace(problem.mbar))
