"""One linear model for the worst domain (agnostic federated learning), as scikit-learn estimators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin

from fedconvex._check import bad
from fedconvex.estimators.given_rows import Rows, checked_rows, intercept_wanted
from fedconvex.estimators.linear import FederatedLogisticRegression, LinearFit, spread_of
from fedconvex.estimators.training import Fitted, start_of, trained
from fedconvex.losses import Squared
from fedconvex.problems import Problem
from fedconvex.simplex.uncertainty import Simplex


class WorstDomain:
    """What both estimators do instead of minimising the mean loss; stands before `LinearFit`."""

    __metadata_request__fit: ClassVar = {"clients": True, "domains": True}

    uncertainty_set: Any
    method: Any

    def _minimise(self, problem: Problem, scale: float) -> Fitted:
        """Minimise the largest domain objective over the set of domain weights."""
        sets = Simplex() if self.uncertainty_set is None else self.uncertainty_set
        start = start_of(self, lambda: self._packed(problem.model_shape), problem.model_shape)  # type: ignore[attr-defined]
        exact = lambda: problem.solve_minimax(1.0, sets, start)  # noqa: E731  # the gap is judged below
        return trained(self, problem, exact, scale=scale, start=start, fitting=self._fitting)

    def _fitting(self, method: Any) -> Any:
        """Return the method with the set of domain weights, or raise if it knows none."""
        who = f"{type(self).__name__}.method"
        if not hasattr(method, "uncertainty_set"):
            cure = "AFL, OptimisticAFL and AgnosticFedAvg do"
            raise bad(who, "minimise the largest domain loss", type(method).__name__, cure)
        if self.uncertainty_set is None:
            return method
        if not isinstance(self.method, str):
            cure = "set it on the method"
            raise bad(f"{who[:-7]}.uncertainty_set", "be None where method is an instance", self.uncertainty_set, cure)
        return replace(method, uncertainty_set=self.uncertainty_set)

    def _keep(self, rows: Rows, problem: Problem, fit: Fitted) -> None:
        """Set what all fits leave, and what is known of the domains."""
        super()._keep(rows, problem, fit)  # type: ignore[misc]
        fed = problem.federation
        self.domains_ = np.asarray(fed.labels if fed.domain_labels is None else fed.domain_labels)
        at = fit.state.domain_weights
        self.domain_weights_ = np.array(at if np.ndim(at) == 1 else at[0])
        ridge = problem.ridge_terms(np.ravel(fit.w)[None])[0]
        self.domain_losses_ = problem.domain_values(fit.w) - ridge
        self.worst_loss_ = float(self.domain_losses_.max())

    def _constant(self, rows: Rows) -> None:
        """Set the attributes of a model that knows one class."""
        super()._constant(rows)  # type: ignore[misc]
        self.domains_ = np.unique(rows.clients if rows.domains is None else rows.domains)
        p = len(self.domains_)
        self.domain_weights_, self.domain_losses_, self.worst_loss_ = np.full(p, 1.0 / p), np.zeros(p), 0.0

    def _checked(self, X: Any, y: Any, clients: Any, domains: Any, sample_weight: Any, numeric: bool = False) -> Rows:
        """Return checked rows; domains are the clients where there is only one of the two."""
        return checked_rows(
            self, X, y, domains if clients is None else clients, sample_weight, domains, numeric=numeric
        )


@dataclass(kw_only=True, eq=False, repr=False)
class AgnosticClassifier(WorstDomain, FederatedLogisticRegression):
    """Logistic regression, binary or multinomial, that is best on its worst domain, with a certified gap.

    Minimises max over lambda in Lambda of sum_i lambda_i F_i(w, b), F_i = mean loss over the rows of domain i +
    (l2/2)‖w‖^2. With all weights allowed that is the largest of the F_i.

    Parameters
    ----------
    l2 : float
        As for `FederatedLogisticRegression`.
    uncertainty_set : set of `fedconvex.simplex.uncertainty`, optional
        Lambda: default all weights (`Simplex()`); `KLBall` and `Polytope` keep them near others.
    method : "solve", str or method
        "solve": exactly, up to 3,000 parameters. Else "afl", "optimisticafl", "agnosticfedavg", or an instance.
    step_size : float
        Of both players of a method by name; no theorem gives one ("auto").
    tol : float
        Certified gap to the minimax value at which a federated method stops, as a share of the mean loss at the zero
        model.
    fit_intercept, class_weight, max_iter, warm_start, random_state
        As for `FederatedLogisticRegression`.

    Attributes
    ----------
    domains_ : array (p,)
    domain_weights_ : array (p,)
        lambda: which domains are the worst.
    domain_losses_ : array (p,)
        Mean loss of each domain, without the ridge.
    worst_loss_ : float
        The largest of them.
    classes_, coef_, intercept_, clients_, n_clients_, objective_, gap_, n_iter_, trace_, step_size_
        As for `FederatedLogisticRegression`.

    Raises
    ------
    ValueError
        As for `FederatedLogisticRegression`, or for a method that minimises another objective.

    Notes
    -----
    ``clients`` and ``domains`` are metadata of `fit`: a domain may be spread over clients. Where only one is given, it
    is both.

    References
    ----------
    Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import AgnosticClassifier, FederatedLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X, domains = rng.normal(size=(120, 2)), np.repeat(["large", "small"], [100, 20])
    >>> y = X[:, 0] * np.where(domains == "small", 0.3, 1.0) + X[:, 1] * (domains == "small") > 0
    >>> worst = AgnosticClassifier().fit(X, y, domains)
    >>> worst.domain_weights_.round(2).tolist(), worst.domain_losses_.round(2).tolist()
    ([0.57, 0.43], [0.4, 0.4])
    >>> mean = FederatedLogisticRegression().fit(X, y, domains)
    >>> [round(float(model.score(X[100:], y[100:])), 2) for model in (worst, mean)]
    [0.8, 0.6]
    """

    uncertainty_set: Any = None
    client_weights: ClassVar = "size"  # type: ignore[misc]  # no parameter: domains are weighted instead

    def fit(
        self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, domains: Any = None
    ) -> AgnosticClassifier:
        """Fit to rows X (n, d), classes y (n,), the client, the weight and the domain of every row (n,)."""
        self._fit(self._checked(X, y, clients, domains, sample_weight))
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class AgnosticRegressor(WorstDomain, RegressorMixin, LinearFit):
    """Least squares with a ridge that is best on its worst domain, with a certified gap.

    Minimises max over lambda in Lambda of sum_i lambda_i F_i(w, b), F_i = half the mean square over the rows of domain
    i + (l2/2)‖w‖^2.

    Parameters
    ----------
    tol : float
        As for `AgnosticClassifier`, as a share of half the variance of y.
    l2, uncertainty_set, fit_intercept, method, step_size, max_iter, warm_start, random_state
        As for `AgnosticClassifier`.

    Attributes
    ----------
    coef_ : array (d,)
    intercept_ : float
    domains_, domain_weights_, domain_losses_, worst_loss_
        As for `AgnosticClassifier`; losses are half the mean squares.
    clients_, n_clients_, objective_, gap_, n_iter_, trace_, step_size_
        As for `FederatedLogisticRegression`.

    Raises
    ------
    ValueError
        As for `AgnosticClassifier`.

    References
    ----------
    Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019.

    Examples
    --------
    >>> from fedconvex.estimators import AgnosticRegressor
    >>> model = AgnosticRegressor(l2=0.0).fit([[0.0]] * 4, [0.0, 0.0, 0.0, 2.0], ["a", "a", "a", "b"])
    >>> round(model.intercept_, 9), model.domain_losses_.round(9).tolist()
    (1.0, [0.5, 0.5])
    """

    uncertainty_set: Any = None
    client_weights: ClassVar = "size"  # type: ignore[misc]  # no parameter: domains are weighted instead

    def fit(
        self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, domains: Any = None
    ) -> AgnosticRegressor:
        """Fit to rows X (n, d), labels y (n,), the client, the weight and the domain of every row (n,)."""
        rows = self._checked(X, y, clients, domains, sample_weight, numeric=True)
        problem = self._problem(rows, rows.y, Squared())
        self._keep(rows, problem, self._minimise(problem, spread_of(problem, intercept_wanted(self))))
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return x'w + b of every row, (n,)."""
        return self._scores(X)[:, 0]
