"""Multi-task learning over clients as scikit-learn estimators: a linear model for every client, tied to the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedconvex._check import among, bad
from fedconvex.estimators.given_rows import Rows, checked_rows
from fedconvex.families.multitask.estimator.task_fits import MultiTaskFit
from fedconvex.loss_traits import traits
from fedconvex.losses import Hinge, Logistic, SmoothedHinge, Softmax, Squared

__all__ = ["FederatedMultiTaskClassifier", "FederatedMultiTaskRegressor"]


@dataclass(kw_only=True, eq=False, repr=False)
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
    multi_class : {"auto", "ovr", "multinomial"}
        Of more than two classes: "multinomial" is one problem with the multinomial logistic loss, for loss="logistic"
        or Softmax(C) only; "ovr" one problem for each class against all others, each with a relationship (and, by
        cross-validation, a lam) of its own. "auto" is "multinomial" where it can be.
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
    coef_ : array (m, d), or (m, C, d) of C > 2 classes
        coef_[t] is the model of clients_[t].
    intercept_ : array (m,), or (m, C)
    clients_ : array (m,)
    classes_ : array (C,)
    estimators_ : list of C estimators
        One against all others each, where there are C > 2 of them ("ovr"). Then lam_ is (C,), relationship_ and
        correlations_ are (C, m, m), cv_results_ and trace_ lists; objective_ and gap_ are sums, n_iter_ is the most.
    lam_ : float or None
    cv_results_ : dict of arrays
        With ``lam="cv"``: param_lam, mean_test_score, std_test_score, split0_test_score, ..., largest_gap (relative).
    n_clients_ : int
    gap_ : float
        Certified bound of the objective minus its minimum. A sum over classes bounds that of every class, and says
        nothing about the share of right rows.
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
        On settings out of range, NaN, a loss that is not made for as many classes, or rows whose client is not named,
        or not known to a model with ``unknown="error"``.

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

    Probabilities of more than two classes are those of the multinomial model; one against all others has none.

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

    class_weight: Any = None
    multi_class: str = "auto"

    losses: ClassVar = {"hinge": Hinge(), "smoothed_hinge": SmoothedHinge(0.5), "logistic": Logistic()}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> FederatedMultiTaskClassifier:
        """Fit to rows X (n, d), classes y (n,), the client and the weight of every row (n,)."""
        rows = checked_rows(self, X, y, clients, sample_weight)
        among(f"{type(self).__name__}.multi_class", self.multi_class, ("auto", "ovr", "multinomial"))
        rows, self.classes_, code = rows.coded(self.class_weight)
        C, several = len(self.classes_), traits(super()._loss()).several
        if C < 3 and several:
            raise bad(f"{type(self).__name__}.loss", f"be for {C} classes", f"{self.loss!r}", "use 'logistic'")
        if C == 1:
            name = self.classes_.tolist()[0]
            warnings.warn(
                f"{type(self).__name__}: all labels are {name!r}, which is predicted for every row", stacklevel=2
            )
        if C > 2 and not self._multinomial(C):
            self._fit_each(rows, code)
            return self
        self.__dict__.pop("estimators_", None)
        self._fit(rows, code.astype(np.float64) if C > 2 else 2.0 * code - 1.0, code)
        return self

    def _multinomial(self, C: int) -> bool:
        """Whether C > 2 classes are one multinomial problem; raises where that is asked for and cannot be."""
        who, loss = type(self).__name__, super()._loss()
        if getattr(loss, "n_classes", C) != C:
            raise bad(f"{who}.loss", f"be for {C} classes", f"{loss!r}", f"use Softmax({C}), or 'logistic'")
        can = self._named_logistic() or traits(loss).several
        if self.multi_class == "multinomial" and not can:
            raise bad(f"{who}.multi_class", "be 'ovr' for this loss", f"'multinomial' with {loss!r}", "use 'logistic'")
        if self.multi_class == "ovr" and traits(loss).several:
            raise bad(f"{who}.multi_class", "be 'multinomial' for this loss", f"'ovr' with {loss!r}", "use 'logistic'")
        return can and self.multi_class != "ovr"

    def _loss(self) -> Any:
        loss, C = super()._loss(), len(self.classes_)
        return Softmax(C) if C > 2 and self._named_logistic() and self.multi_class != "ovr" else loss

    def _named_logistic(self) -> bool:
        """Whether the loss is "logistic", which of several classes is the multinomial one."""
        return isinstance(self.loss, str) and self.loss == "logistic"

    def _fit_each(self, rows: Rows, code: np.ndarray) -> None:
        """Fit one class after another against all others, and put the models together."""
        C, last = len(self.classes_), getattr(self, "estimators_", [])
        self.estimators_ = list(last) if len(last) == C and self.warm_start else [clone(self) for _ in range(C)]
        for c, one in enumerate(self.estimators_):
            one.set_params(**self.get_params(deep=False))
            one.classes_, one.n_features_in_ = np.arange(2), self.n_features_in_
            one._fit(rows, np.where(code == c, 1.0, -1.0), code)
        of = lambda name: [getattr(one, name) for one in self.estimators_]  # noqa: E731
        self.coef_, self.intercept_ = np.stack(of("coef_"), axis=1), np.stack(of("intercept_"), axis=1)
        self.clients_, self.n_clients_, self.lam_ = of("clients_")[0], of("n_clients_")[0], np.array(of("lam_"))
        self.objective_, self.gap_, self.n_iter_ = sum(of("objective_")), sum(of("gap_")), max(of("n_iter_"))
        self.trace_, self.step_size_, self.relationship_ = (
            of("trace_"),
            of("step_size_")[0],
            np.array(of("relationship_")),
        )
        self.__dict__.pop("cv_results_", None)
        if hasattr(self.estimators_[0], "cv_results_"):
            self.cv_results_ = of("cv_results_")

    def decision_function(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return x'w_t + b_t of every row for its client's model: (n,), positive for classes_[1], or (n, C)."""
        return self._predicted(X, clients)

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the class of every row by its client's model, (n,)."""
        z = self._predicted(X, clients)
        code = z.argmax(axis=1) if z.ndim == 2 else np.minimum((z >= 0.0).astype(int), len(self.classes_) - 1)
        return self.classes_[code]

    def _probable(self) -> bool:
        """Whether there are probabilities."""
        loss = self.losses.get(self.loss) if isinstance(self.loss, str) else self.loss
        return traits(loss).probable and not hasattr(self, "estimators_")

    @available_if(_probable)
    def predict_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the probabilities of the classes, (n, C), for losses that have them, such as logistic."""
        check_is_fitted(self)
        one = self._loss().probabilities(self._predicted(X, clients))
        if one.ndim == 2:
            return one
        return np.column_stack([1.0 - one, one]) if len(self.classes_) == 2 else np.ones((len(one), 1))

    def score(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> float:
        """Return the share of right rows."""
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _good(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        guess = z.argmax(axis=1) if z.ndim == 2 else np.where(z >= 0.0, 1.0, -1.0)
        return np.asarray((guess == y).astype(float))

    def _metric(self) -> Callable:
        return accuracy_score


@dataclass(kw_only=True, eq=False, repr=False)
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

    loss: Any = field(default="squared", kw_only=False)

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
