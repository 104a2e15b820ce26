"""One linear model for all clients, as scikit-learn estimators: logistic regression, least squares, support vectors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from fedconvex._check import ROUNDS, among, bad, real
from fedconvex.driver import Trace
from fedconvex.estimators.given_rows import Rows, checked_rows, feature_rows, intercept_wanted
from fedconvex.estimators.training import Fitted, start_of, trained
from fedconvex.loss_traits import traits
from fedconvex.losses import Hinge, Logistic, SmoothedHinge, Softmax, Squared
from fedconvex.problems import Problem


@dataclass(kw_only=True, eq=False, repr=False)
class LinearFit(BaseEstimator):
    """Parameters, training and attributes that all estimators of one linear model share."""

    __metadata_request__fit: ClassVar = {"clients": True}

    l2: float = 0.01
    fit_intercept: bool = True
    method: Any = "solve"
    step_size: Any = "auto"
    tol: float = 1e-6
    max_iter: int = ROUNDS
    client_weights: str = "size"
    warm_start: bool = False
    random_state: Any = 0

    def _problem(self, rows: Rows, target: np.ndarray, loss: Any) -> Problem:
        """Return the empirical risk of checked rows with numeric labels."""
        who = type(self).__name__
        l2, free = real(f"{who}.l2", self.l2, low=0.0), intercept_wanted(self)
        among(f"{who}.client_weights", self.client_weights, ("size", "uniform"))
        if traits(loss).kinked and l2 == 0.0:
            raise bad(f"{who}.l2", "be positive for a loss with a kink", l2)
        weights = None if self.client_weights == "size" else "uniform"
        return Problem(rows.federation(target, free), loss, l2, weights, intercept=free)

    def _minimise(self, problem: Problem, scale: float) -> Fitted:
        """Train, from the last fit on if there is a warm start."""
        start = start_of(self, lambda: self._packed(problem.model_shape), problem.model_shape)
        exact = lambda: problem.solve(start=start)  # noqa: E731
        return trained(self, problem, exact, scale=scale, start=start, fitting=self._fitting)

    def _fitting(self, method: Any) -> Any:
        """Return the method, or raise if it minimises something else."""
        if hasattr(method, "measure"):
            who = type(self).__name__
            raise bad(f"{who}.method", "minimise the mean loss over all rows", type(method).__name__)
        return method

    def _packed(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return coefficients and intercept of the last fit as a model."""
        W = np.atleast_2d(self.coef_)
        if self.fit_intercept:
            W = np.column_stack([W, np.atleast_1d(self.intercept_)])
        return W if len(shape) == 2 else W[0]

    def _keep(self, rows: Rows, problem: Problem, fit: Fitted) -> None:
        """Set what all fits leave: coef_ (outputs, d), intercept_ (outputs,), clients, gap, trace."""
        d, fed = rows.X.shape[1], problem.federation
        W = np.atleast_2d(fit.w)
        self.coef_, self.intercept_ = W[:, :d].copy(), W[:, d:].sum(axis=1)
        if problem.n_outputs > 1:  # equal shifts of all classes change nothing
            self.intercept_ = self.intercept_ - self.intercept_.mean()
        self.clients_, self.n_clients_ = np.asarray(fed.labels), fed.K
        self.objective_, self.gap_, self.n_iter_ = fit.value, fit.gap, fit.n_iter
        self.trace_, self.step_size_ = fit.trace, fit.step_size

    def _scores(self, X: Any) -> np.ndarray:
        """Return x'w + b of every row and output, (n, outputs)."""
        check_is_fitted(self)
        return np.asarray(feature_rows(self, X) @ np.atleast_2d(self.coef_).T) + self.intercept_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class LinearClassifier(ClassifierMixin, LinearFit):
    """What classifiers share: classes, class weights, and labels from scores."""

    several: ClassVar = True  # whether it has more than two classes

    class_weight: Any = None

    def _loss(self, n_classes: int) -> Any:
        raise NotImplementedError

    def _fit(self, rows: Rows) -> None:
        """Fit to checked rows; with one class only, a constant."""
        rows, classes, code = self._coded(rows)
        if len(classes) == 1:
            self.classes_ = classes
            return self._constant(rows)
        problem = self._problem(rows, *self._labels(classes, code))
        fit = self._minimise(problem, float(problem.value(np.zeros(problem.model_shape))))
        self.classes_ = classes
        return self._keep(rows, problem, fit)

    def _coded(self, rows: Rows) -> tuple[Rows, np.ndarray, np.ndarray]:
        """Return rows, classes and numbers of the classes."""
        kind = type_of_target(rows.y, input_name="y", raise_unknown=True)
        if kind == "multiclass" and not self.several:
            text = f"Only binary classification is supported. The type of the target is {kind}."
            raise ValueError(f"{text} OneVsRestClassifier({type(self).__name__}(...)) fits several classes")
        return rows.coded(self.class_weight)

    def _labels(self, classes: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return numeric labels, and the loss for them."""
        loss = self._loss(len(classes))
        return (code.astype(float) if traits(loss).several else 2.0 * code - 1.0), loss

    def _constant(self, rows: Rows) -> None:
        """Set the attributes of a model that knows one class."""
        who = type(self).__name__
        warnings.warn(
            f"{who}: all labels are {self.classes_.tolist()[0]!r}, which is predicted for every row", stacklevel=4
        )
        self.coef_, self.intercept_ = np.zeros((1, rows.X.shape[1])), np.zeros(1)
        self.clients_ = np.unique(rows.clients)
        self.n_clients_, self.objective_, self.gap_, self.n_iter_ = len(self.clients_), 0.0, 0.0, 1
        self.trace_, self.step_size_ = Trace(), None

    def decision_function(self, X: Any) -> np.ndarray:
        """Return x'w + b of every row: (n,), positive for classes_[1], or (n, C) for C > 2 classes."""
        Z = self._scores(X)
        return Z[:, 0] if Z.shape[1] == 1 else Z

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of every row, (n,)."""
        Z = self._scores(X)
        if len(self.classes_) == 1:
            return np.repeat(self.classes_, len(Z))
        return self.classes_[(Z[:, 0] >= 0.0).astype(int) if Z.shape[1] == 1 else Z.argmax(axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.several
        return tags


class FederatedLogisticRegression(LinearClassifier):
    """Logistic regression over clients, binary or multinomial: one model for all, with a certified gap.

    Minimises F(w, b) = sum_k p_k mean_i l(x_i'w + b, y_i) + (l2/2)‖w‖^2 over the rows i of every client k. With
    ``client_weights="size"`` the sum is the mean over all rows: the minimiser is that of the pooled rows.

    Parameters
    ----------
    l2 : float
        Ridge weight on the *mean* loss, so that its meaning does not change with the number of rows (folds, clients
        that join). scikit-learn's C is 1/(l2 n), n the number of rows or the sum of their weights.
    fit_intercept : bool
        With an intercept, which l2 leaves out.
    class_weight : dict, "balanced" or None
        Factors of the weights of rows, by class; "balanced" makes all classes weigh the same.
    method : "solve", str or method
        "solve": exactly, as far as rounding allows. Else a federated method: the name of a class of `fedconvex.methods`
        in small letters ("fedavg", "scaffold", "fedsgd"), with its defaults, or an instance.
    step_size : "auto", float or `Decay`
        Of a method by name. "auto" takes what a theorem gives, or 1/L of the roughest client where there is none.
    tol : float
        Certified gap F - min F at which a federated method stops, as a share of F at the zero model.
    max_iter : int
        Most rounds.
    client_weights : {"size", "uniform"}
        p_k: the client's share of all rows (of their weights), or 1/K.
    warm_start : bool
        Start at the model of the last fit, if that has the same shape; for "solve" with a smooth loss, too.
    random_state : int, RandomState or None
        Seed of whatever a method draws; None for another one in every fit.

    Attributes
    ----------
    classes_ : array (C,)
    coef_ : array (1, d), or (C, d) for C > 2
    intercept_ : array (1,), or (C,), of sum zero
    clients_ : array (K,)
        Names of the clients.
    n_clients_ : int
    objective_, gap_ : float
        F, and a certified bound of F - min F.
    n_iter_ : int
        Rounds; of "solve" its gradient evaluations.
    trace_ : Trace
        round, value, gap, seconds and, of a federated method, floats_down and floats_up; one row for "solve".
    step_size_ : str or None
        What "auto" came to.
    n_features_in_ : int
    feature_names_in_ : array (d,)

    Raises
    ------
    ValueError
        On NaN, settings out of range, rows whose client is missing, or a method that diverged.

    Warns
    -----
    ConvergenceWarning
        If the certified gap is larger than tol allows.
    UserWarning
        If all labels are the same: that class is predicted everywhere.

    Notes
    -----
    ``clients``, the client of every row, is metadata of `fit` alone: a model for all needs no clients to predict. With
    ``sklearn.set_config(enable_metadata_routing=True)`` pipelines, searches and cross-validation pass it on without
    being asked. Without ``clients`` all rows are one client's.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from fedconvex.estimators import FederatedLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X, wards = rng.normal(size=(90, 3)), np.repeat(["a", "b", "c"], 30)
    >>> y = np.where(X[:, 0] + rng.normal(size=90) > 0, "ill", "well")
    >>> model = FederatedLogisticRegression(l2=0.01).fit(X, y, clients=wards)
    >>> model.n_clients_, model.gap_ < 1e-10
    (3, True)
    >>> peer = LogisticRegression(C=1 / (0.01 * 90), tol=1e-12).fit(X, y)
    >>> bool(np.abs(model.coef_ - peer.coef_).max() < 1e-6)
    True
    """

    def _loss(self, n_classes: int) -> Any:
        return Logistic() if n_classes == 2 else Softmax(n_classes)

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> FederatedLogisticRegression:
        """Fit to rows X (n, d), classes y (n,), the client and the weight of every row (n,)."""
        self._fit(checked_rows(self, X, y, clients, sample_weight))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, (n, C)."""
        Z = self._scores(X)
        if len(self.classes_) == 1:
            return np.ones_like(Z)
        if Z.shape[1] > 1:
            return Softmax(Z.shape[1]).probabilities(Z)
        one = Logistic().probabilities(Z[:, 0])
        return np.column_stack([1.0 - one, one])

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities of the classes, (n, C)."""
        Z = self._scores(X)
        if len(self.classes_) == 1:
            return np.zeros_like(Z)
        Z = np.column_stack([np.zeros(len(Z)), Z]) if Z.shape[1] == 1 else Z
        return Z - np.logaddexp.reduce(Z, axis=1, keepdims=True)


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedSVC(LinearClassifier):
    """A linear support vector machine over clients, for two classes: one model for all, with a certified gap.

    Minimises F(w, b) = sum_k p_k mean_i max{0, 1 - y_i (x_i'w + b)} + (l2/2)‖w‖^2 over the rows i of every client k.

    Parameters
    ----------
    loss : {"hinge", "smoothed_hinge"} or loss
        The hinge has a kink: federated methods then need steps that decay (what ``step_size="auto"`` takes), and their
        gap falls like 1/t. "smoothed_hinge" (width 1/2) has none.
    l2 : float
        Positive. C of scikit-learn's ``SVC(kernel="linear")`` is 1/(l2 n); `LinearSVC` penalises its intercept too.
    fit_intercept, class_weight, method, step_size, tol, max_iter, client_weights, warm_start, random_state
        As for `FederatedLogisticRegression`.

    Attributes
    ----------
    classes_, coef_, intercept_, clients_, n_clients_, objective_, gap_, n_iter_, trace_, step_size_
        As for `FederatedLogisticRegression`, for two classes.

    Raises
    ------
    ValueError
        As for `FederatedLogisticRegression`, or for more than two classes: ``OneVsRestClassifier(FederatedSVC())``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import FederatedSVC
    >>> X, wards = np.array([[-2.0], [-1.0], [1.0], [3.0]]), ["a", "b", "a", "b"]
    >>> model = FederatedSVC(l2=0.1).fit(X, [0, 0, 1, 1], clients=wards)
    >>> model.predict([[-0.5], [0.5]]).tolist(), model.coef_.round(6).tolist()
    ([0, 1], [[1.0]])
    """

    several = False
    losses: ClassVar = {"hinge": Hinge(), "smoothed_hinge": SmoothedHinge(0.5)}

    loss: Any = field(default="hinge", kw_only=False)

    def _loss(self, n_classes: int) -> Any:
        if not isinstance(self.loss, str):
            return self.loss
        among("FederatedSVC.loss", self.loss, tuple(self.losses))
        return self.losses[self.loss]

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> FederatedSVC:
        """Fit to rows X (n, d), two classes y (n,), the client and the weight of every row (n,)."""
        self._fit(checked_rows(self, X, y, clients, sample_weight))
        return self


class FederatedLinearRegression(RegressorMixin, LinearFit):
    """Least squares with a ridge over clients: one model for all, with a certified gap.

    Minimises F(w, b) = sum_k p_k mean_i (x_i'w + b - y_i)^2/2 + (l2/2)‖w‖^2 over the rows i of every client k.

    Parameters
    ----------
    l2 : float
        Ridge weight on half the *mean* square. scikit-learn's alpha is l2 n, n the number of rows or the sum of their
        weights; 0 is plain least squares.
    tol : float
        Certified gap F - min F at which a federated method stops, as a share of F at the best constant: of half the
        variance of y.
    fit_intercept, method, step_size, max_iter, client_weights, warm_start, random_state
        As for `FederatedLogisticRegression`.

    Attributes
    ----------
    coef_ : array (d,)
    intercept_ : float
    clients_, n_clients_, objective_, gap_, n_iter_, trace_, step_size_
        As for `FederatedLogisticRegression`.

    Raises
    ------
    ValueError
        As for `FederatedLogisticRegression`.

    Examples
    --------
    >>> from fedconvex.estimators import FederatedLinearRegression
    >>> model = FederatedLinearRegression(l2=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0], clients=["a", "a", "b"])
    >>> model.coef_.round(9).tolist(), round(model.intercept_, 9)
    ([2.0], 1.0)
    """

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> FederatedLinearRegression:
        """Fit to rows X (n, d), labels y (n,), the client and the weight of every row (n,)."""
        rows = checked_rows(self, X, y, clients, sample_weight, numeric=True)
        problem = self._problem(rows, rows.y, Squared())
        fit = self._minimise(problem, spread_of(problem, intercept_wanted(self)))
        self._keep(rows, problem, fit)
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return x'w + b of every row, (n,)."""
        return self._scores(X)[:, 0]


def spread_of(problem: Problem, intercept: bool) -> float:
    """Return F at the best constant: half the variance of the labels, or half their mean square."""
    y, p = problem.federation.y, problem.per_row
    center = float(p @ y) if intercept else 0.0
    return 0.5 * float(p @ (y - center) ** 2)
