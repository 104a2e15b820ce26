"""Generalised linear models over clients with their standard errors, as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedconvex._check import among, bad, instance, vector
from fedconvex.analysis.analysing import analysed
from fedconvex.analysis.model_rows import INTERCEPT, ModelRows
from fedconvex.analysis.response_families import FAMILIES_WITHOUT_PARAMETERS, Family
from fedconvex.estimators.given_rows import checked_rows, feature_rows, intercept_wanted
from fedconvex.federation import Federation


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedGLM(RegressorMixin, BaseEstimator):
    """Generalised linear model over clients, by maximum likelihood, with standard errors: `fedconvex.analysis.analyse`.

    There is no penalty, which would leave no standard errors. Of each client only sums over its rows are used.

    Parameters
    ----------
    family : str or Family
        "gaussian", "logistic" (responses 0 and 1), "poisson", "quasipoisson", "gamma", or such as
        ``negative_binomial(theta)``.
    fit_intercept : bool
    site_intercepts : bool
        Whether every client has an intercept of its own, in the place of the common one; then `predict` needs clients.
    robust : {None, "HC0", "HC1", "HC2", "HC3", "client"}
        Covariance; None for that of the model.
    level : float
        Of the intervals of `summary`.

    Attributes
    ----------
    coef_ : array (d,)
    intercept_ : float
        The common intercept; 0 without one.
    client_intercepts_ : array (K,) or None
        With ``site_intercepts``, in the order of ``clients_``; infinite where all responses of a client agree.
    standard_errors_ : array (d,)
        Of ``coef_``; NaN where the fit is exact.
    covariance_ : array (p, p)
        Of the intercept, where there is a common one, and of ``coef_``.
    p_values_ : array (d,)
    dispersion_, deviance_, null_deviance_ : float
    log_likelihood_, aic_ : float or None
    accuracy_ : float
        By how many standard errors an estimate may be off at most, certified.
    n_rows_, n_clients_, n_iter_, n_features_in_ : int
    clients_ : array (K,)
    feature_names_in_ : array (d,)

    Raises
    ------
    ValueError, TypeError
        If a response is none of the family, columns are collinear, rows are too few, or responses are separated.

    Notes
    -----
    `predict` returns means: of a logistic model, probabilities. ``sample_weight`` counts equal rows. A regressor for
    scikit-learn, so `score` is R^2 of the means. Rows are not kept.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import FederatedGLM
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.normal(size=(300, 2)), np.repeat(["a", "b", "c"], 100)
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0]))
    >>> model = FederatedGLM("poisson").fit(X, y, clients=hospital)
    >>> model.coef_.shape, model.standard_errors_.shape, model.accuracy_ < 1e-6
    ((2,), (2,), True)
    >>> print(model.summary().splitlines()[1])
    Family        poisson, link log
    """

    __metadata_request__fit: ClassVar = {"clients": True, "offset": True}
    __metadata_request__predict: ClassVar = {"clients": True, "offset": True}

    family: Any = field(default="gaussian", kw_only=False)
    fit_intercept: bool = True
    site_intercepts: bool = False
    robust: str | None = None
    level: float = 0.95

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, offset: Any = None) -> FederatedGLM:
        """Fit to rows X (n, d), y (n,), and of every row its client, weight and offset of the score (n,)."""
        who, family = type(self).__name__, self._family()
        instance(f"{who}.site_intercepts", self.site_intercepts, bool)
        common = intercept_wanted(self) and not self.site_intercepts
        rows = checked_rows(self, X, y, clients, sample_weight, numeric=True, sparse=False)
        o = None if offset is None else vector(f"{who}: offset", offset)
        if o is not None and sample_weight is not None:
            kept = np.asarray(sample_weight, dtype=np.float64) > 0.0
            o = vector(f"{who}: offset", o, kept.size)[kept]
        if len(rows.y) < 2:
            raise bad(f"{who}: X", "have more rows than coefficients", f"n_samples={len(rows.y)}")
        given = getattr(self, "feature_names_in_", None)
        names = tuple(f"x{j}" for j in range(rows.X.shape[1])) if given is None else tuple(map(str, given))
        terms: dict[str, tuple[int, ...]] = {name: (j + common,) for j, name in enumerate(names)}
        Z = np.column_stack([np.ones(len(rows.y)), rows.X]) if common else rows.X
        fed = Federation.from_arrays(Z, rows.y, rows.clients, None, rows.weight, o)
        family.check(fed.y, f"{who}: y")
        all_names = (INTERCEPT, *names) if common else names
        model = ModelRows(fed, family, all_names, terms, "y", [], fed.n)
        self._keep(analysed(model, self.site_intercepts, self.robust, self.level), common)
        return self

    def _family(self) -> Family:
        if isinstance(self.family, Family):
            return self.family
        among(f"{type(self).__name__}.family", self.family, tuple(FAMILIES_WITHOUT_PARAMETERS))
        return FAMILIES_WITHOUT_PARAMETERS[self.family]

    def _keep(self, found: Any, common: bool) -> None:
        """Set what a fit leaves: numbers only."""
        b, fed, problem = found.estimates, found.rows.federation, found.fit.problem
        self.coef_, self.intercept_ = b[common:].copy(), float(b[0]) if common else 0.0
        self.covariance_, self.standard_errors_ = found.covariance, found.standard_errors[common:]
        self.p_values_ = np.array([c.p for c in found.table()])[common:]
        self.dispersion_, self.deviance_, self.null_deviance_ = found.dispersion, found.deviance, found.null_deviance
        self.log_likelihood_, self.aic_, self.accuracy_ = found.log_likelihood, found.aic, found.certificate
        self.clients_, self.n_clients_ = np.asarray(fed.labels), fed.K
        self.n_rows_, self.n_iter_ = fed.n, found.fit.found.rounds
        self.client_intercepts_ = None
        if self.site_intercepts:
            means = found.rows.federation.X.mean(axis=0)
            own = np.array([problem.at(k, found.fit.found.b[0]).intercept for k in range(fed.K)])
            own = own * found.fit.unit - means @ b
            for k in np.flatnonzero(problem.silent):  # where the loss falls for ever
                y = problem.own_rows(int(k))[1]
                own[k] = np.inf if y.size and y.max() > 0.0 else -np.inf
            self.client_intercepts_ = own
        self._summary = found.summary()

    def predict(self, X: Any, clients: Any = None, offset: Any = None) -> np.ndarray:
        """Return the mean response of every row, (n,); with intercepts of clients, each row's client is needed."""
        check_is_fitted(self)
        rows, who = feature_rows(self, X), type(self).__name__
        z = np.asarray(rows @ self.coef_) + self.intercept_
        if self.client_intercepts_ is not None:
            if clients is None and self.n_clients_ > 1:
                raise bad(f"{who}.predict: clients", "name the client of every row", "none")
            names = np.repeat(self.clients_, len(z)) if clients is None else np.asarray(clients)
            at = {str(name): k for k, name in enumerate(self.clients_.tolist())}
            if strange := [v for v in names.tolist() if str(v) not in at]:
                raise bad(f"{who}.predict: clients", f"be among those of fit ({', '.join(at)})", repr(strange[0]))
            z = z + self.client_intercepts_[[at[str(v)] for v in names.tolist()]]
        if offset is not None:
            z = z + vector(f"{who}.predict: offset", offset, len(z))
        return np.asarray(self._family().mean(z))

    def summary(self) -> str:
        """Return the analysis as text: the fit, and a row for each coefficient."""
        check_is_fitted(self)
        return self._summary
