"""Multi-task learning over clients as scikit-learn estimators: a linear model for every client, tied to the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from fedconvex._check import among, bad, flag, real, vector, whole
from fedconvex.estimators.clients import client_names, folds, scores_of
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.losses import Hinge, Logistic, SmoothedHinge, Squared
from fedconvex.problems import Covariance, Independent, MeanRegularised, MultiTaskProblem, Pooled
from fedconvex.problems.relations import Relation
from fedconvex.solvers import Solution

__all__ = ["FederatedMultiTaskClassifier", "FederatedMultiTaskRegressor"]

RELATIONS = ("joint", "mean", "local", "global")
LAMS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # as in Smith et al. (2017)


class _MultiTask(BaseEstimator):
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
        tol: float = 1e-3,
        max_iter: int = 10_000,
        unknown: str = "error",
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.relation = relation
        self.lam = lam
        self.lams = lams
        self.cv = cv
        self.normalisation = normalisation
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.unknown = unknown
        self.random_state = random_state

    # ------------------------------------------------------------------ fitting
    def _fit(self, X: Any, target: np.ndarray, clients: Any, strata: np.ndarray) -> None:
        """Fit to checked rows and numeric labels; rows of a client are spread over folds within strata."""
        who = type(self).__name__
        among(f"{who}.normalisation", self.normalisation, ("sum", "mean"))
        among(f"{who}.unknown", self.unknown, ("error", "mean"))
        tol = real(f"{who}.tol", self.tol, low=0.0, strict=True)
        passes, loss = whole(f"{who}.max_iter", self.max_iter, low=1), self._loss()
        rows = self._with_ones(X)
        names = np.zeros(len(target), dtype=np.int64) if clients is None else self._names(clients, len(target))
        fed = Federation.from_arrays(rows, target, names)
        code = np.unique(names, return_inverse=True)[1]
        lam = self._chosen(rows, target, code, strata, loss, tol, passes)
        problem = MultiTaskProblem(fed, loss, self._relation(lam, fed.K), self.normalisation)
        best, count = _solved(problem, tol, None, passes)
        if best.gap > tol * best.value:
            cure = "scale the features, or take a larger lam or tol"
            text = (
                f"{who} stopped after {count} passes with a certified gap of {best.gap:.3g}, objective "
                f"{best.value:.6g}: {cure if best.alpha is None else 'increase max_iter, ' + cure}"
            )
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        d = X.shape[1]
        self.coef_, self.intercept_ = best.w[:, :d].copy(), best.w[:, d:].sum(axis=1)
        self.clients_, self.lam_ = np.asarray(fed.labels), lam
        self.gap_, self.objective_, self.n_iter_ = float(best.gap), float(best.value), max(count, 1)
        self.relationship_ = _covariance(problem, best.w)

    def _relation(self, lam: float | None, m: int) -> Relation:
        """Return R for m clients."""
        who, kind = type(self).__name__, self.relation
        if isinstance(kind, Relation):
            return kind
        if lam is None:
            raise bad(f"{who}.lam", "be a number or 'cv'", "None", "None goes with a relationship object only")
        if callable(kind):
            found = kind(lam)
            if not isinstance(found, Relation):
                raise bad(f"{who}.relation", "return a relationship", f"{found!r}")
            return found
        among(f"{who}.relation", kind, RELATIONS)
        return {
            "joint": Covariance(0.5 * lam) if m > 1 else Independent(lam),
            "mean": MeanRegularised(0.5 * lam * m / (m + 1.0), 0.5 * lam / (m + 1.0)),
            "local": Independent(lam),
            "global": Pooled(lam),
        }[kind]

    def _loss(self) -> Any:
        who = type(self).__name__
        if not isinstance(self.loss, str):
            return self.loss
        among(f"{who}.loss", self.loss, tuple(self.losses))
        return self.losses[self.loss]

    def _with_ones(self, X: Any) -> Any:
        """X with a last column of ones, if there is an intercept."""
        if not flag(f"{type(self).__name__}.fit_intercept", self.fit_intercept):
            return X
        one = np.ones((X.shape[0], 1))
        return sp.hstack([X, sp.csr_array(one)], format="csr") if sp.issparse(X) else np.hstack([X, one])

    def _names(self, clients: Any, n: int) -> np.ndarray:
        return client_names(f"{type(self).__name__}: clients", clients, n)

    # ------------------------------------------------------------------ cross-validation
    def _chosen(
        self, X: Any, y: np.ndarray, code: np.ndarray, strata: np.ndarray, loss: Any, tol: float, passes: int
    ) -> float | None:
        """Return lam, by cross-validation if asked for."""
        who, fixed = type(self).__name__, isinstance(self.relation, Relation)
        self.__dict__.pop("cv_results_", None)
        if not isinstance(self.lam, str):
            return None if fixed else real(f"{who}.lam", self.lam, low=0.0, strict=True)
        among(f"{who}.lam", self.lam, ("cv",))
        if fixed:
            cure = "pass a function of lam that returns a relationship"
            raise bad(f"{who}.lam", "be a number for a given relationship", "'cv'", cure)
        lams = np.sort(vector(f"{who}.lams", LAMS if self.lams is None else self.lams))[::-1]
        if lams.size == 0 or lams[-1] <= 0.0:
            raise bad(f"{who}.lams", "be positive numbers, at least one", f"{lams.tolist()}")
        k, m = whole(f"{who}.cv", self.cv, low=2), int(code.max()) + 1
        fold = folds(code, strata, k, check_random_state(self.random_state))
        if (fold < 0).all():
            raise bad(f"{who}.lam", "be a number where every client has one sample only", "'cv'")
        parts = [j for j in range(k) if (fold == j).any()]
        scores, gaps = np.empty((len(parts), lams.size)), np.zeros(lams.size)
        for j, part in enumerate(parts):
            train, held = fold != part, np.flatnonzero(fold == part)
            fed, start = Federation.from_arrays(X[train], y[train], code[train]), None
            for i, lam in enumerate(lams.tolist()):
                problem = MultiTaskProblem(fed, loss, self._relation(lam, m), self.normalisation)
                start, _ = _solved(problem, min(10.0 * tol, 0.1), start, passes)
                scores[j, i] = self._held_out(scores_of(X[held], start.w, code[held]), y[held], code[held])
                gaps[i] = max(gaps[i], start.gap / start.value if start.value > 0.0 else 0.0)
        mean = scores.mean(axis=0)
        self.cv_results_ = {
            "param_lam": lams,
            "mean_test_score": mean,
            "std_test_score": scores.std(axis=0),
            "largest_gap": gaps,
        } | {f"split{j}_test_score": s for j, s in enumerate(scores)}
        ties = mean >= mean.max() - 1e-12 * max(1.0, abs(float(mean.max())))  # equal but for rounding
        return float(lams[int(np.flatnonzero(ties)[0])])

    def _held_out(self, z: np.ndarray, y: np.ndarray, code: np.ndarray) -> float:
        """Mean over clients of how good scores z are, the larger the better."""
        good = self._good(z, y)
        rows = np.bincount(code)
        return float(np.mean(np.bincount(code, good)[rows > 0] / rows[rows > 0]))

    def _good(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    # ------------------------------------------------------------------ prediction
    def _predicted(self, X: Any, clients: Any) -> np.ndarray:
        """Scores x'w_t + b_t of rows of the named clients, (n,)."""
        check_is_fitted(self)
        who = type(self).__name__
        X = validate_data(self, X, dtype=np.float64, accept_sparse="csr", reset=False)
        if clients is None:
            if len(self.clients_) > 1:
                cure = "pass clients=, the client of every row"
                raise bad(f"{who}: clients", f"say whose of {len(self.clients_)} models to use", "None", cure)
            code = np.zeros(X.shape[0], dtype=np.int64)
        else:
            known = {name: t for t, name in enumerate(self.clients_.tolist())}
            names = self._names(clients, X.shape[0]).tolist()
            code = np.array([known.get(name, -1) for name in names], dtype=np.int64)
            if (code < 0).any() and self.unknown != "mean":
                cure = "unknown='mean' uses the mean of all models"
                raise bad(f"{who}: clients", "be among those of fit", f"{names[int(code.argmin())]!r}", cure)
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
        names = np.repeat(self.clients_[:1], len(guess)) if clients is None else self._names(clients, len(guess))
        metric, (known, code) = self._metric(), np.unique(names, return_inverse=True)
        return {name: float(metric(y[code == t], guess[code == t])) for t, name in enumerate(known.tolist())}

    def _metric(self) -> Callable:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class FederatedMultiTaskClassifier(ClassifierMixin, _MultiTask):
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
    tol : float
        Goal for the certified gap, relative to the objective.
    max_iter : int
        Most passes over the rows. Small problems with a fixed relationship are solved directly instead.
    unknown : {"error", "mean"}
        What to do with rows of clients that were not there at fit: raise, or use the mean of all models.
    random_state : int, RandomState or None
        Folds of the cross-validation. Fitting itself draws nothing.

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
    gap_ : float
        Certified bound of the objective minus its minimum.
    objective_ : float
    n_iter_ : int
    relationship_ : array (m, m)
        Covariance of the clients' models, of trace one: the learned Omega, or what the given relationship implies.
    correlations_ : array (m, m)
    n_features_in_ : int
    feature_names_in_ : array (d,)

    Raises
    ------
    ValueError
        On settings out of range, NaN, other than two classes, or rows whose client is not named or not known.

    Notes
    -----
    The client of every row is metadata: with ``sklearn.set_config(enable_metadata_routing=True)`` pipelines, searches
    and ``cross_val_score(..., params={"clients": clients})`` pass it on. `fit`, `predict` and `score` ask for it
    already. Scorers by name, such as ``scoring="roc_auc"``, do not pass metadata to `predict`: leave ``scoring`` out,
    or, with one client per model, see `client_scores`.

    Without ``clients`` all rows are one client's.

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

    losses: ClassVar = {"hinge": Hinge(), "smoothed_hinge": SmoothedHinge(0.5), "logistic": Logistic()}

    def fit(self, X: Any, y: Any, clients: Any = None) -> FederatedMultiTaskClassifier:
        """Fit to rows X (n, d), two classes y (n,) and the client of every row (n,), by default all the same."""
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr")
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind != "binary":
            text = f"Only binary classification is supported. The type of the target is {kind}."
            raise ValueError(text)
        self.classes_, code = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            who = type(self).__name__
            text = f"{who} needs samples of 2 classes, but the data contains only one class: {self.classes_[0]!r}"
            raise ValueError(text)
        self._fit(X, 2.0 * code - 1.0, clients, code)
        return self

    def decision_function(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return x'w_t + b_t of every row for its client's model, positive for classes_[1], (n,)."""
        return self._predicted(X, clients)

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the class of every row by its client's model, (n,)."""
        z = self._predicted(X, clients)
        return self.classes_[(z >= 0.0).astype(int)]

    @available_if(lambda self: traits(self.losses.get(self.loss) if isinstance(self.loss, str) else self.loss).probable)
    def predict_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the probabilities of both classes, (n, 2), for losses that have them, such as logistic."""
        one = self._loss().probabilities(self._predicted(X, clients))
        return np.column_stack([1.0 - one, one])

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


class FederatedMultiTaskRegressor(RegressorMixin, _MultiTask):
    """A linear model for every client, the clients tied by a relationship that is learned or given.

    Minimises sum_t c_t sum_i (x_i'w_t + b_t - y_i)^2/2 + R(W), certified by a duality gap; row t of W is (w_t, b_t).

    Parameters
    ----------
    loss : {"squared"} or loss
        Or an object with a conjugate and a dual step.
    relation, lam, lams, cv, normalisation, fit_intercept, tol, max_iter, unknown, random_state
        As for `FederatedMultiTaskClassifier`. Cross-validation compares the mean over clients of the squared error.

    Attributes
    ----------
    coef_, intercept_, clients_, lam_, cv_results_, gap_, objective_, n_iter_, relationship_, correlations_
        As for `FederatedMultiTaskClassifier`.

    Raises
    ------
    ValueError
        On settings out of range, NaN, or rows whose client is not named or not known.

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
        tol: float = 1e-3,
        max_iter: int = 10_000,
        unknown: str = "error",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            loss,
            relation=relation,
            lam=lam,
            lams=lams,
            cv=cv,
            normalisation=normalisation,
            fit_intercept=fit_intercept,
            tol=tol,
            max_iter=max_iter,
            unknown=unknown,
            random_state=random_state,
        )

    def fit(self, X: Any, y: Any, clients: Any = None) -> FederatedMultiTaskRegressor:
        """Fit to rows X (n, d), labels y (n,) and the client of every row (n,), by default all the same."""
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr", y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self._fit(X, y, clients, np.zeros(len(y), dtype=np.int64))
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


# ---------------------------------------------------------------- helpers


def _solved(problem: MultiTaskProblem, tol: float, start: Solution | None, passes: int) -> tuple[Solution, int]:
    """Return a solution with a gap of at most tol times its value, unless passes are up, and the passes it took."""
    count, found = 0, start
    value = float(problem.value(np.zeros(problem.model_shape)))  # of which tol is a larger goal than it will have to be
    while True:
        found = problem.solve(0.9 * tol * value / (1.0 + value) or tol, found, passes - count)
        count, value = count + found.iterations, found.value
        if found.gap <= tol * value or found.alpha is None or count >= passes or found.iterations == 0:
            return found, count


def _covariance(problem: MultiTaskProblem, W: np.ndarray) -> np.ndarray:
    """Return the covariance of the tasks, of trace one."""
    relation = problem.relation
    if isinstance(relation, Covariance) and relation.learned:
        return relation.omega_of(W, 0.0)
    return np.asarray(problem.mbar / np.trace(problem.mbar))
