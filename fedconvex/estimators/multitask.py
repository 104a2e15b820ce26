"""Multi-task learning over clients as scikit-learn estimators: a linear model for every client, tied to the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from fedconvex._check import among, bad, flag, real, whole
from fedconvex.estimators.choosing import chosen_lam, relation_of, solved
from fedconvex.estimators.clients import client_names, scores_of
from fedconvex.estimators.rows import Rows, checked_rows, feature_rows, intercept_wanted
from fedconvex.estimators.training import trained
from fedconvex.loss_traits import traits
from fedconvex.losses import Hinge, Logistic, SmoothedHinge, Squared
from fedconvex.problems import Covariance, MultiTaskProblem
from fedconvex.problems.relations import Relation
from fedconvex.solvers import Solution
from fedconvex.tables.frame import as_text

__all__ = ["FederatedMultiTaskClassifier", "FederatedMultiTaskRegressor"]


class MultiTaskFit(BaseEstimator):
    """What the two estimators share: everything but the meaning of y."""

    __metadata_request__fit: ClassVar = {"clients": True}
    __metadata_request__predict: ClassVar = {"clients": True}
    __metadata_request__score: ClassVar = {"clients": True}

    losses: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        loss: Any = "hinge",
        *,
        relation: Any = "joint",
        lam: Any = 0.01,
        lams: Any = None,
        cv: int = 5,
        normalisation: str = "mean",
        fit_intercept: bool = True,
        method: Any = "solve",
        step_size: Any = "auto",
        tol: float = 1e-4,
        max_iter: int = 10_000,
        unknown: str = "mean",
        warm_start: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.loss = loss
        self.relation = relation
        self.lam = lam
        self.lams = lams
        self.cv = cv
        self.normalisation = normalisation
        self.fit_intercept = fit_intercept
        self.method = method
        self.step_size = step_size
        self.tol = tol
        self.max_iter = max_iter
        self.unknown = unknown
        self.warm_start = warm_start
        self.random_state = random_state

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
        self.coef_, self.intercept_ = fit.w[:, :d].copy(), fit.w[:, d:].sum(axis=1)
        self.clients_, self.n_clients_, self.lam_ = np.asarray(problem.federation.labels), m, lam
        self.objective_, self.gap_, self.n_iter_ = fit.value, fit.gap, fit.n_iter
        self.trace_, self.step_size_ = fit.trace, fit.step_size
        self.relationship_ = _covariance(problem, fit.w)

    def _last(self, problem: MultiTaskProblem) -> Solution | None:
        """Return the last fit if there is a warm start and it was of as many clients, features and rows, else None."""
        last = getattr(self, "_solution", None)
        if not flag(f"{type(self).__name__}.warm_start", self.warm_start) or last is None:
            return None
        same = last.alpha is None or last.alpha.shape == (problem.federation.n,)
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
        """Scores x'w_t + b_t of rows of the named clients, (n,); of unknown ones by the mean of all models."""
        check_is_fitted(self)
        X, who = feature_rows(self, X), type(self).__name__
        code, several = np.full(X.shape[0], -1), len(self.clients_) > 1
        if clients is not None:
            known = {as_text(name): t for t, name in enumerate(self.clients_.tolist())}  # 2, 2.0 and "2" are one client
            names = client_names(f"{who}: clients", clients, X.shape[0]).tolist()
            code = np.array([known.get(as_text(name), -1) for name in names], dtype=np.int64)
            if (code < 0).any() and self.unknown != "mean":
                cure = "unknown='mean' uses the mean of all models"
                raise bad(f"{who}: clients", "be among those of fit", f"{names[int(code.argmin())]!r}", cure)
        elif several and self.unknown != "mean":
            cure = "pass clients=, the client of every row"
            raise bad(f"{who}: clients", f"say whose of {len(self.clients_)} models to use", "None", cure)
        elif several:
            text = f"{who}: without clients= all rows are predicted by the mean of {len(self.clients_)} models"
            warnings.warn(text, stacklevel=3)
        W = np.vstack([self.coef_, self.coef_.mean(axis=0)])
        b = np.append(self.intercept_, self.intercept_.mean())
        return scores_of(X, W, code) + b[code]

    @property
    def correlations_(self) -> np.ndarray:
        """Correlations of the clients' models, (m, m): `relationship_` scaled to a diagonal of ones."""
        check_is_fitted(self)
        scale = 1.0 / np.sqrt(np.maximum(np.diag(self.relationship_), 1e-300))
        return np.asarray(self.relationship_ * np.outer(scale, scale))

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


class FederatedMultiTaskClassifier(ClassifierMixin, MultiTaskFit):
    """A linear classifier for every client, the clients tied by a relationship that is learned or given.

    Minimises sum_t c_t sum_i l(x_i'w_t + b_t, y_i) + R(W), certified by a duality gap; row t of W is (w_t, b_t).

    Parameters
    ----------
    loss : {"hinge", "smoothed_hinge", "logistic"} or loss
        Or an object with a conjugate and a dual step.
    relation : {"joint", "mean", "local", "global"}, relationship or function
        R(W): "joint" is (lam/2) ‖W‖_*^2, the minimum of (lam/2) tr(W'Omega^-1 W) over covariances Omega of trace one;
        "mean" is the minimum of (lam/2) (‖w_0‖^2 + sum_t ‖w_t - w_0‖^2) over a common model w_0; "local" is
        (lam/2) ‖W‖^2, every client alone; "global" the same on equal models, one for all. A relationship object of
        `fedconvex.problems` is taken as it is, and `lam` is not used; a function is called with lam and returns one.
    lam : float or "cv"
        Positive; "cv" chooses it among `lams` by cross-validation.
    lams : array, optional
        Default 1e-5, 1e-4, ..., 10.
    cv : int
        Folds. Rows are spread over them client by client and class by class; a client's only row is always trained on.
        What counts is the mean over clients of the share of right rows; of equals the largest lam. Models are compared
        at a gap of ten times `tol`.
    normalisation : {"mean", "sum"}
        c_t = 1/n_t, or 1.
    fit_intercept : bool
        Append a column of ones. It is penalised like every other coordinate: centre the features first.
    class_weight : dict, "balanced" or None
        Factors of the weights of rows, by class; "balanced" makes all classes weigh the same.
    method : "solve", str or method
        "solve": exactly, with `MultiTaskProblem.solve`. Else "mocha", "jointmocha" (a learned covariance), "cocoa" (a
        fixed relationship), or an instance. Cross-validation always solves exactly.
    step_size : "auto", float or `Decay`
        Of a method by name that has one; MOCHA has none.
    tol : float
        Goal for the certified gap, as a share of the objective of zero models.
    max_iter : int
        Most passes over the rows, or rounds of a federated method. Small problems with a fixed relationship are solved
        directly instead.
    unknown : {"mean", "error"}
        Rows of clients that were not there at fit: use the mean of all models, or raise.
    warm_start : bool
        Start at the last fit, if it was of as many clients, features and rows; refused by methods whose models follow
        from dual variables ("mocha", "cocoa").
    random_state : int, RandomState or None
        Folds of the cross-validation, and seed of a federated method.

    Attributes
    ----------
    coef_ : array (m, d)
        Row t is the model of clients_[t].
    intercept_ : array (m,)
    clients_ : array (m,)
    classes_ : array (2,)
    lam_ : float or None
    cv_results_ : dict of arrays
        With ``lam="cv"``: param_lam, mean_test_score, std_test_score, split0_test_score, ..., largest_gap (relative).
    n_clients_ : int
    gap_ : float
        Certified bound of the objective minus its minimum.
    objective_ : float
    n_iter_ : int
    trace_ : Trace
        As for `FederatedLogisticRegression`.
    step_size_ : str or None
    relationship_ : array (m, m)
        Covariance of the clients' models, of trace one: the learned Omega, or what the given relationship implies.
    correlations_ : array (m, m)
    n_features_in_ : int
    feature_names_in_ : array (d,)

    Raises
    ------
    ValueError
        On settings out of range, NaN, more than two classes, or rows whose client is not named, or not known to a model
        with ``unknown="error"``.

    Warns
    -----
    ConvergenceWarning
        If the certified gap is larger than tol allows.
    UserWarning
        If all labels are the same, or rows are predicted without clients by the mean of several models.

    Notes
    -----
    The client of every row is metadata: with ``sklearn.set_config(enable_metadata_routing=True)`` pipelines, searches
    and ``cross_val_score(..., params={"clients": clients})`` pass it on. `fit`, `predict` and `score` ask for it
    already. scikit-learn's scorers by name, such as ``scoring="roc_auc"``, do not pass metadata to `predict`:
    ``client_scorer("roc_auc")`` of this package does.

    Fitted without ``clients``, all rows are one client's.

    References
    ----------
    Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017. Evgeniou, Pontil, KDD 2004 ("mean").

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import FederatedMultiTaskClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, clients = rng.normal(size=(300, 2)), np.repeat(["a", "b", "c"], 100)
    >>> y = np.where(X[:, 0] * np.where(clients == "c", -1.0, 1.0) > 0, "yes", "no")
    >>> model = FederatedMultiTaskClassifier().fit(X, y, clients=clients)
    >>> model.score(X, y, clients=clients) > 0.95
    True
    >>> model.correlations_[0].round().tolist()
    [1.0, 1.0, -1.0]
    """

    __metadata_request__decision_function: ClassVar = {"clients": True}
    __metadata_request__predict_proba: ClassVar = {"clients": True}

    def __init__(
        self,
        loss: Any = "hinge",
        *,
        relation: Any = "joint",
        lam: Any = 0.01,
        lams: Any = None,
        cv: int = 5,
        normalisation: str = "mean",
        fit_intercept: bool = True,
        class_weight: Any = None,
        method: Any = "solve",
        step_size: Any = "auto",
        tol: float = 1e-4,
        max_iter: int = 10_000,
        unknown: str = "mean",
        warm_start: bool = False,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            loss,
            relation=relation,
            lam=lam,
            lams=lams,
            cv=cv,
            normalisation=normalisation,
            fit_intercept=fit_intercept,
            method=method,
            step_size=step_size,
            tol=tol,
            max_iter=max_iter,
            unknown=unknown,
            warm_start=warm_start,
            random_state=random_state,
        )
        self.class_weight = class_weight

    losses: ClassVar = {"hinge": Hinge(), "smoothed_hinge": SmoothedHinge(0.5), "logistic": Logistic()}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> FederatedMultiTaskClassifier:
        """Fit to rows X (n, d), two classes y (n,), the client and the weight of every row (n,)."""
        rows = checked_rows(self, X, y, clients, sample_weight)
        kind = type_of_target(rows.y, input_name="y", raise_unknown=True)
        if kind == "multiclass":
            text = f"Only binary classification is supported. The type of the target is {kind}."
            raise ValueError(text)
        rows, self.classes_, code = rows.coded(self.class_weight)
        if len(self.classes_) == 1:
            name = self.classes_.tolist()[0]
            warnings.warn(
                f"{type(self).__name__}: all labels are {name!r}, which is predicted for every row", stacklevel=2
            )
        self._fit(rows, 2.0 * code - 1.0, code)
        return self

    def decision_function(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return x'w_t + b_t of every row for its client's model, positive for classes_[1], (n,)."""
        return self._predicted(X, clients)

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the class of every row by its client's model, (n,)."""
        z = self._predicted(X, clients)
        return self.classes_[np.minimum((z >= 0.0).astype(int), len(self.classes_) - 1)]

    @available_if(lambda self: traits(self.losses.get(self.loss) if isinstance(self.loss, str) else self.loss).probable)
    def predict_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the probabilities of both classes, (n, 2), for losses that have them, such as logistic."""
        one = self._loss().probabilities(self._predicted(X, clients))
        return np.column_stack([1.0 - one, one]) if len(self.classes_) == 2 else np.ones((len(one), 1))

    def score(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> float:
        """Return the share of right rows."""
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _good(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray((np.where(z >= 0.0, 1.0, -1.0) == y).astype(float))

    def _metric(self) -> Callable:
        return accuracy_score

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class FederatedMultiTaskRegressor(RegressorMixin, MultiTaskFit):
    """A linear model for every client, the clients tied by a relationship that is learned or given.

    Minimises sum_t c_t sum_i (x_i'w_t + b_t - y_i)^2/2 + R(W), certified by a duality gap; row t of W is (w_t, b_t).

    Parameters
    ----------
    loss : {"squared"} or loss
        Or an object with a conjugate and a dual step.
    relation, lam, lams, cv, normalisation, fit_intercept, method, step_size, tol, max_iter, unknown,
    warm_start, random_state
        As for `FederatedMultiTaskClassifier`. Cross-validation compares the mean over clients of the squared error.

    Attributes
    ----------
    coef_, intercept_, clients_, n_clients_, lam_, cv_results_, gap_, objective_, n_iter_, trace_, step_size_,
    relationship_, correlations_
        As for `FederatedMultiTaskClassifier`.

    Raises
    ------
    ValueError
        On settings out of range, NaN, or rows whose client is not named, or not known to a
        model with ``unknown="error"``.

    References
    ----------
    Zhang, Yeung, "A convex formulation for learning task relationships in multi-task learning", UAI 2010. Evgeniou,
    Pontil, KDD 2004 ("mean").

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import FederatedMultiTaskRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, clients = rng.normal(size=(60, 3)), np.repeat([0, 1], 30)
    >>> y = X @ [1.0, 2.0, 0.0] + clients * X[:, 2]
    >>> model = FederatedMultiTaskRegressor(lam="cv", random_state=0).fit(X, y, clients=clients)
    >>> model.coef_.round(1).tolist(), model.lam_
    ([[1.0, 2.0, 0.0], [1.0, 2.0, 1.0]], 1e-05)
    """

    losses: ClassVar = {"squared": Squared()}

    def __init__(
        self,
        loss: Any = "squared",
        *,
        relation: Any = "joint",
        lam: Any = 0.01,
        lams: Any = None,
        cv: int = 5,
        normalisation: str = "mean",
        fit_intercept: bool = True,
        method: Any = "solve",
        step_size: Any = "auto",
        tol: float = 1e-4,
        max_iter: int = 10_000,
        unknown: str = "mean",
        warm_start: bool = False,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            loss,
            relation=relation,
            lam=lam,
            lams=lams,
            cv=cv,
            normalisation=normalisation,
            fit_intercept=fit_intercept,
            method=method,
            step_size=step_size,
            tol=tol,
            max_iter=max_iter,
            unknown=unknown,
            warm_start=warm_start,
            random_state=random_state,
        )

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> FederatedMultiTaskRegressor:
        """Fit to rows X (n, d), labels y (n,), the client and the weight of every row (n,)."""
        rows = checked_rows(self, X, y, clients, sample_weight, numeric=True)
        self._fit(rows, rows.y, np.zeros(len(rows.y), dtype=np.int64))
        return self

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return x'w_t + b_t of every row for its client's model, (n,)."""
        return self._predicted(X, clients)

    def score(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> float:
        """Return R^2, over the rows of all clients."""
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _good(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(-((z - y) ** 2))

    def _metric(self) -> Callable:
        return r2_score


def _covariance(problem: MultiTaskProblem, W: np.ndarray) -> np.ndarray:
    """Return the covariance of the tasks, of trace one."""
    relation = problem.relation
    if isinstance(relation, Covariance) and relation.learned:
        return relation.omega_of(W, 0.0)
    return np.asarray(problem.mbar / np.trace(problem.mbar))
