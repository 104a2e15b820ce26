"""Cox's proportional hazards over clients as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from fedconvex._check import among, bad, flag, unmasked
from fedconvex.estimators.given_rows import client_of, feature_rows
from fedconvex.families.survival import hazard_checks
from fedconvex.families.survival.monotone import monotone_direction
from fedconvex.families.survival.problem import SurvivalProblem
from fedconvex.families.survival.survival_rows import SurvivalFederation, outcomes, times_of
from fedconvex.fields import inside


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedCox(BaseEstimator):
    """Cox's proportional hazards model, every client a stratum with its own baseline hazard.

    Minimises the sum over clients of the negative log partial likelihood, exactly and certified. With one client it is
    the ordinary Cox model.

    Parameters
    ----------
    ties : {"efron", "breslow"}
    robust : bool
        Whether ``covariance_`` is the robust one by client (CR0), which needs many clients, or J^-1.
    level : float
        Of the intervals of `summary`, in (0, 1).

    Attributes
    ----------
    coef_ : array (p,)
        Log hazard ratios.
    covariance_ : array (p, p)
    standard_errors_ : array (p,)
        NaN, as the covariance, where no maximum of the likelihood is certified.
    log_likelihood_, null_log_likelihood_ : float
        Of the partial likelihood, at ``coef_`` and at zero.
    score_statistic_ : float
        U'J^-1 U at zero, chi2 with p degrees of freedom.
    concordance_ : float
        Harrell's C on the rows of fit, within strata.
    proportional_hazards_ : ProportionalityTest or None
        Score tests that coefficients drift with time; None where there are too few event times.
    accuracy_ : float
        (2 (N - min N))^(1/2), certified: no coefficient is farther from its optimum by more standard errors (J^-1), to
        first order. inf where no maximum is certified.
    n_events_, n_rows_, n_clients_, n_iter_ : int
    clients_ : array (K,)
    n_features_in_ : int
    feature_names_in_ : array (p,)

    Raises
    ------
    ValueError, TypeError
        For negative or missing times, entry >= time, no events, NaN among features.

    Warns
    -----
    ConvergenceWarning
        If the likelihood has no maximum, naming the columns along which it is monotone, or the columns are collinear.

    Notes
    -----
    ``y`` is a structured array of events and times, as `fedconvex.problems.outcomes` or scikit-survival's
    ``Surv.from_arrays`` make it. `predict` returns scores x'w, the larger the earlier the event, as scikit-survival's
    do. Rows are not kept; baseline hazards are those of `fedconvex.families.survival.hazard_checks`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import FederatedCox
    >>> from fedconvex.problems import outcomes
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.normal(size=(200, 2)), np.repeat(["a", "b"], 100)
    >>> y = outcomes(rng.exponential(np.exp(-X[:, 0])), rng.random(200) < 0.8)
    >>> model = FederatedCox().fit(X, y, clients=hospital)
    >>> model.coef_.shape, model.n_events_ == y["event"].sum(), model.accuracy_ < 1e-6
    ((2,), np.True_, True)
    >>> print(model.summary().splitlines()[0])
    Cox proportional hazards, 2 clients as strata, efron ties
    """

    __metadata_request__fit: ClassVar = {"clients": True, "entry": True, "strata": True}
    __metadata_request__score: ClassVar = {"clients": True}

    ties: str = "efron"
    robust: bool = False
    level: float = 0.95

    def fit(self, X: Any, y: Any, clients: Any = None, entry: Any = None, strata: Any = None) -> FederatedCox:
        """Fit to rows X (n, p), structured y (n,), and of every row its client, entry time and stratum (n,)."""
        who = type(self).__name__
        among(f"{who}.ties", self.ties, ("efron", "breslow"))
        flag(f"{who}.robust", self.robust)
        inside(f"{who}.level", self.level)
        unmasked(f"{who}: X", X)
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=1)
        times = times_of(f"{who}: y", y)
        if times["time"].size != len(X):
            raise bad(f"{who}: y", f"have one time for each of {len(X)} rows", f"{times['time'].size}")
        rows = outcomes(times["time"], times["event"], times.get("entry", entry), times.get("stratum", strata))
        problem = SurvivalProblem(SurvivalFederation.from_arrays(X, rows, client_of(who, clients, len(X))), self.ties)
        self._keep(problem)
        return self

    def _keep(self, problem: SurvivalProblem) -> None:
        """Set what a fit leaves."""
        best, p, fed = problem.solve(), problem.size, problem.federation
        null, U, J = problem.totals(np.zeros(p))
        self.score_statistic_ = float(U @ np.linalg.lstsq(J, U)[0])
        N, _, J = problem.totals(best.w)
        self.coef_, self.log_likelihood_, self.null_log_likelihood_ = np.array(best.w), -N, -null
        self.accuracy_ = float(np.sqrt(2.0 * problem.certificate(best.w).gap))
        self.covariance_, self.proportional_hazards_ = np.full((p, p), np.nan), None
        if best.attained:
            self.covariance_ = hazard_checks.clustered_covariance(problem, best.w) if self.robust else np.linalg.inv(J)
            total, events = hazard_checks.event_times_sum(problem)
            try:
                sums = hazard_checks.proportionality_sums(problem, best.w, centre=total / events)
                self.proportional_hazards_ = hazard_checks.proportional_hazards_test(sums)
            except ValueError:  # fewer event times than coefficients
                pass
        else:
            self._warn(problem, best.certificate)
        self.standard_errors_ = np.sqrt(np.diag(self.covariance_))
        self.concordance_ = hazard_checks.pair_counts(problem, best.w).concordance
        self.n_events_, self.n_rows_ = int(problem.client_events.sum()), fed.n
        self.clients_, self.n_clients_, self.n_iter_ = np.asarray(fed.labels), fed.K, best.iterations

    def _warn(self, problem: SurvivalProblem, why: str) -> None:
        found = monotone_direction(problem)
        if found is not None:
            names = ", ".join(str(self._names()[j]) for j in found.columns)
            why = f"the partial likelihood rises without end along {names}: there are no standard errors"
        warnings.warn(f"{type(self).__name__}: {why}", ConvergenceWarning, stacklevel=4)

    def predict(self, X: Any) -> np.ndarray:
        """Return the score x'w of every row, (n,): the larger, the earlier the event."""
        check_is_fitted(self)
        return np.asarray(feature_rows(self, X) @ self.coef_)

    def score(self, X: Any, y: Any, clients: Any = None) -> float:
        """Return Harrell's concordance of the scores of X with structured y, within clients."""
        check_is_fitted(self)
        who = type(self).__name__
        z, times = self.predict(X), times_of(f"{who}: y", y)
        rows = outcomes(times["time"], times["event"], times.get("entry"), times.get("stratum"))
        fed = SurvivalFederation.from_arrays(z[:, None], rows, client_of(who, clients, len(z)))
        return hazard_checks.pair_counts(SurvivalProblem(fed, self.ties), np.ones(1)).concordance

    def _names(self) -> list[str]:
        known = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(self.n_features_in_)] if known is None else [str(name) for name in known]

    def summary(self) -> str:
        """Return the table of coefficients as text: columns as lifelines names them, p-values of Wald tests."""
        from scipy.stats import chi2, norm

        check_is_fitted(self)
        level = inside(f"{type(self).__name__}.level", self.level)
        b, se, p = self.coef_, self.standard_errors_, self.coef_.size
        with np.errstate(invalid="ignore", over="ignore"):
            z, half = b / se, norm.isf(0.5 * (1.0 - level)) * se
            columns = [
                b,
                np.exp(b),
                se,
                b - half,
                b + half,
                np.exp(b - half),
                np.exp(b + half),
                z,
                2.0 * norm.sf(abs(z)),
            ]
        percent = f"{100.0 * level:g}%"
        heads = ["coef", "exp(coef)", "se(coef)", f"coef lower {percent}", f"coef upper {percent}"]
        heads += [f"exp(coef) lower {percent}", f"exp(coef) upper {percent}", "z", "p"]
        width = max(map(len, self._names()))
        lines = [" " * width + "".join(f"  {head:>10}" for head in heads)]
        for name, *row in zip(self._names(), *columns, strict=True):
            cells = (f"  {value:>{max(10, len(head))}.4g}" for value, head in zip(row, heads, strict=True))
            lines.append(f"{name:<{width}}" + "".join(cells))
        ratio = 2.0 * (self.log_likelihood_ - self.null_log_likelihood_)
        strata = f"{self.n_clients_} clients as strata" if self.n_clients_ > 1 else "one client"
        head = [
            f"Cox proportional hazards, {strata}, {self.ties} ties",
            f"{self.n_rows_} rows, {self.n_events_} events, covariance {'CR0 by client' if self.robust else 'J⁻¹'}",
            f"log-likelihood {self.log_likelihood_:.6g} (null {self.null_log_likelihood_:.6g}), concordance "
            f"{self.concordance_:.4f}",
            f"likelihood ratio {ratio:.5g} (p {chi2.sf(ratio, p):.3g}), score {self.score_statistic_:.5g} "
            f"(p {chi2.sf(self.score_statistic_, p):.3g}), {p} degree{'s' * (p != 1)} of freedom",
        ]
        if self.proportional_hazards_ is not None:
            test = self.proportional_hazards_
            head.append(f"proportional hazards: chi2 {test.overall:.5g}, {test.df} df, p {test.p_value:.3g}")
        certain = f"certified to {self.accuracy_:.1g} standard errors" if np.isfinite(self.accuracy_) else ""
        head.append(certain or "no maximum is certified: neither standard errors nor intervals")
        return "\n".join([*head, "", *lines])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
