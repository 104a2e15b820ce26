"""Boosting with multiple sources as a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedconvex._check import among, raw, real, whole
from fedconvex.driver import Trace, run
from fedconvex.estimators.clients import client_names
from fedconvex.estimators.given_rows import Rows, checked_rows
from fedconvex.estimators.training import seed_of
from fedconvex.families.boosting.problem import BoostingProblem
from fedconvex.federation import Federation
from fedconvex.losses import Exponential
from fedconvex.methods import MultiBoost
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2, QEnsemble, StumpProblem, fit_q

CUTS = 16  # per feature, where stumps are listed


@dataclass(kw_only=True, eq=False, repr=False)
class MultiSourceBoostClassifier(ClassifierMixin, BaseEstimator):
    """Boosted decision stumps that are good on the worst of several sources: MultiBoost with a Q-ensemble.

    Parameters
    ----------
    n_estimators : int
        Rounds, one stump each.
    loss : {"exponential", "logistic"}
        Phi.
    smoothing : float or None
        mu of the smoothed maximum over the sources, which is then accurate to log(p)/mu; None minimises the maximum
        itself, which may stall (see `MultiBoost`).
    source_model : {"maxent", "uniform"} or callable
        Q(l|x): fitted by conditional maximum entropy, constant, or a function of X.
    source_l2 : float, optional
        Regularisation of the maximum entropy model; default chosen by cross-validation.
    own_classifiers : bool
        Without smoothing: only stumps of the worst sources, as printed in the paper.
    criterion : {"error", "gini"}
        What a stump is chosen by.
    class_weight : dict, "balanced" or None
        Factors of the weights of rows, by class; "balanced" makes both classes weigh the same.
    max_bins : int, optional
        Search histograms of so many bins (at most 255) instead of every cut.
    method : "solve" or method
        "solve": `MultiBoost` on the pooled rows, with the settings above. Else an instance, such as
        ``FedMultiBoost(step_size=0.2)``, taken as it is; it chooses from the sources' stumps at `max_bins` cuts per
        feature (default 16).
    tol : float
        Stop early once the certified gap is at most tol; 0 for all rounds.
    random_state : int, RandomState or None
        Folds of the cross-validation, and seed of a federated method.

    Attributes
    ----------
    classes_ : array (2,)
    sources_ : array (p,)
        Names of the domains.
    clients_ : array (K,)
    n_clients_ : int
    n_iter_ : int
        Rounds.
    gap_ : float
        Certified bound of the smoothed objective minus its minimum, over all stumps and sum of weights at most 100.
    trace_ : Trace
    ensemble_ : QEnsemble
    source_model_ : callable or None
        Q; None if constant.
    worst_loss_ : float
        F, the largest domain loss on the training rows.

    Notes
    -----
    ``clients`` and ``domains`` are metadata of `fit` only: a new row's sources are what Q says. Where only one of the
    two is given, it is both. Without either there is one source, and this is AdaBoost. Q, and the bins of ``max_bins``,
    come from the rows, whatever these weigh.

    References
    ----------
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import MultiSourceBoostClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2)); X[100:, 1] += 6.0
    >>> domains = np.repeat(["a", "b"], 100)
    >>> y = np.where((X[:, 0] > 0) == (domains == "a"), "yes", "no")
    >>> model = MultiSourceBoostClassifier(n_estimators=20).fit(X, y, domains=domains)
    >>> model.score(X, y) > 0.95
    True
    """

    __metadata_request__fit: ClassVar = {"clients": True, "domains": True}

    n_estimators: int = field(default=100, kw_only=False)
    loss: str = "exponential"
    smoothing: float | None = 50.0
    source_model: Any = "maxent"
    source_l2: float | None = None
    own_classifiers: bool = False
    criterion: str = "error"
    max_bins: int | None = None
    class_weight: Any = None
    method: Any = "solve"
    tol: float = 0.0
    random_state: Any = 0

    def fit(
        self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, domains: Any = None
    ) -> MultiSourceBoostClassifier:
        """Fit to rows X (n, d), two classes y (n,), the client, the weight and the domain of every row (n,).

        Raises
        ------
        ValueError
            On NaN, more than two classes, or settings out of range.

        Warns
        -----
        UserWarning
            If all labels are the same: that class is predicted everywhere.
        """
        rounds = whole("MultiSourceBoostClassifier.n_estimators", self.n_estimators, low=1)
        tol = real("MultiSourceBoostClassifier.tol", self.tol, low=0.0)
        among("MultiSourceBoostClassifier.loss", self.loss, ("exponential", "logistic"))
        rows = checked_rows(self, X, y, domains if clients is None else clients, sample_weight, domains, sparse=False)
        rows, classes, code = rows.coded(self.class_weight)
        if len(classes) > 2:
            raise ValueError(f"Only binary classification is supported: got {len(classes)} classes")
        where, self.classes_ = rows.clients if rows.domains is None else rows.domains, classes
        self.sources_, source = np.unique(where, return_inverse=True)
        if len(classes) == 1:
            return self._constant(rows)
        self.source_model_ = self._fitted_q(rows.X, source)
        fed = Federation.from_arrays(rows.X, 2.0 * code - 1.0, rows.clients, where, rows.weight)
        phi = Exponential() if self.loss == "exponential" else Logistic2()
        problem, method = self._problem(fed, phi)
        every, seed = rounds if tol == 0.0 else 1, seed_of(self.random_state)
        result = run(method, problem, rounds=rounds, tol=tol, record_every=every, seed=seed, progress=False)
        self.ensemble_ = problem.ensemble(result.state)
        self.worst_loss_, self.gap_ = float(result.trace.value[-1]), float(result.gap)
        self.clients_, self.n_clients_ = np.asarray(fed.labels), fed.K
        self.n_iter_, self.trace_ = max(1, result.rounds), result.trace
        return self

    def _constant(self, rows: Rows) -> MultiSourceBoostClassifier:
        """Set the attributes of a model that knows one class."""
        name = self.classes_.tolist()[0]
        warnings.warn(f"{type(self).__name__}: all labels are {name!r}, which is predicted for every row", stacklevel=3)
        self.source_model_, self.ensemble_ = None, QEnsemble([], [], [], None, len(self.sources_), self.sources_)
        self.clients_ = np.unique(rows.clients)
        self.n_clients_, self.worst_loss_, self.gap_, self.n_iter_ = len(self.clients_), 0.0, 0.0, 1
        self.trace_ = Trace()
        return self

    def _problem(self, fed: Federation, phi: Any) -> tuple[BoostingProblem, Any]:
        """Return the problem and the method: "solve" searches for stumps, other methods choose from a list of them."""
        if isinstance(self.method, str):
            among("MultiSourceBoostClassifier.method", self.method, ("solve",))
            problem = StumpProblem(fed, self.source_model_, phi, criterion=self.criterion, bins=self.max_bins)
            return problem, MultiBoost(smoothing=self.smoothing, own_classifiers=bool(self.own_classifiers))
        stumps = Dictionary.stumps(fed, CUTS if self.max_bins is None else self.max_bins)
        return EnsembleProblem(fed, stumps, self.source_model_, phi), self.method

    def decision_function(self, X: Any) -> np.ndarray:
        """Return f(x) of every row, positive for classes_[1], (n,)."""
        rows = self._rows(X)
        return self.ensemble_.decision_function(rows)

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of every row, (n,)."""
        return self._labels(self.decision_function(X))

    def _labels(self, f: np.ndarray) -> np.ndarray:
        return self.classes_[np.minimum((f >= 0.0).astype(int), len(self.classes_) - 1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return 1/(1 + exp(-2 f)), or 1/(1 + exp(-f)) for the logistic loss, of both classes, (n, 2).

        Ones, (n, 1), where all labels were the same.
        """
        f = self.decision_function(X) * (2.0 if self.loss == "exponential" else 1.0)
        if len(self.classes_) == 1:
            return np.ones((len(f), 1))
        one = 0.5 * (1.0 + np.tanh(0.5 * f))
        return np.column_stack([1.0 - one, one])

    def staged_predict(self, X: Any) -> Iterator[np.ndarray]:
        """Yield the classes of every row after 1, 2, ... stumps."""
        rows = self._rows(X)
        for f in self.ensemble_.staged_decision_function(rows):
            yield self._labels(f)

    def domain_errors(self, X: Any, y: Any, domains: Any) -> dict[Any, float]:
        """Return the share of wrong rows in every domain."""
        who = f"{type(self).__name__}.domain_errors"
        wrong = self.predict(X) != raw(f"{who}: y", y)
        names = client_names(f"{who}: domains", domains, len(wrong), "domain")
        return {name: float(wrong[names == name].mean()) for name in np.unique(names).tolist()}

    def _fitted_q(self, X: np.ndarray, source: np.ndarray) -> Any:
        if callable(self.source_model):
            return self.source_model
        among("MultiSourceBoostClassifier.source_model", self.source_model, ("maxent", "uniform"))
        if self.source_model == "uniform" or source.max() == 0:
            return None
        return fit_q(X, source, l2=self.source_l2, seed=seed_of(self.random_state))

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
