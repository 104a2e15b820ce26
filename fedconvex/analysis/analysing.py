"""`analyse`: a generalised linear model of several clients' rows, with its uncertainty, from sums over clients.

McCullagh and Nelder, "Generalized linear models", 2nd edition, 1989. Robust covariances: White, Econometrica 48, 1980;
MacKinnon and White, J. Econometrics 29, 1985; Liang and Zeger, Biometrika 73, 1986. Of a client only sums over its rows
are used: N_k, its gradient and Hessian at each of 5 to 10 models, and sums for dispersion and covariance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import among, bad, flag
from fedconvex.analysis import covariances
from fedconvex.analysis.answer import Analysis
from fedconvex.analysis.cox_answer import CoxAnalysis
from fedconvex.analysis.fitting import Fit, Rows, fitted
from fedconvex.analysis.model_rows import model_rows
from fedconvex.analysis.profile_intervals import profile_intervals
from fedconvex.analysis.response_families import Family
from fedconvex.analysis.table_coding import Survival
from fedconvex.fields import inside

INTERVALS = ("wald", "profile")
ROBUST = ("HC0", "HC1", "HC2", "HC3", "client")


def analyse(
    data: Any, target: str | None, client: str, *, formula: str | None = None, family: str | Family | None = None,
    site_intercepts: bool = False, robust: str | None = None, level: float = 0.95, intervals: str = "wald",
    offset: str | None = None, exposure: str | None = None, weight: str | None = None,
    reference: Mapping[str, Any] | None = None, event: str | None = None, entry: str | None = None,
    strata: str | None = None, ties: str = "efron", firth: bool = False, **reading: Any,
) -> Analysis:  # fmt: skip
    """Return a generalised linear model fitted to the rows of all clients by maximum likelihood, with standard errors.

    Parameters
    ----------
    data, target, client
        As `fedconvex.tables.read_table`; rows with a missing cell in a column that is used are left out and counted.
    formula : str, optional
        Such as "ill ~ age * sex + C(ward) + bs(bp, df=4)", as formulaic reads it, in the place of target and features.
    family : str or Family, optional
        "gaussian", "logistic", "poisson", "quasipoisson", "gamma", "cox" or such as ``negative_binomial(theta)``;
        default logistic for two classes, gaussian for measurements, cox where ``event`` is given.
    site_intercepts : bool
        Give every client an intercept of its own, which stays there.
    robust : {"HC0", "HC1", "HC2", "HC3", "client"}, optional
        A robust covariance; "client" is clustered by client (CR1).
    firth : bool
        Take Firth's estimate of a logistic model, which separated responses leave finite; nothing is certified.
    level, intervals : float, {"wald", "profile"}
        Of intervals; "profile" are those of the likelihood, which separated responses leave at one end.
    offset, exposure, weight, reference
        Columns added to the score, as they are or by their logarithm; that count equal rows; levels to compare with.
    event, entry, strata, ties
        Of Cox's model, where the target is a time: whether the event was seen (0 and 1, or "column=level"), columns of
        entry times and of strata beside clients, "efron" or "breslow".

    Raises
    ------
    ColumnProblems, ValueError, TypeError
        As `read_table`; if the response is none of the family, columns are collinear, or responses are separated
        (which profile intervals allow).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.analysis import analyse
    >>> age, ward = np.arange(20.0, 80.0, 0.2) % 61.0, np.repeat(["a", "b", "c"], 100)
    >>> ill = np.where(age > 30.0 + 35.0 * np.sin(np.arange(300)), "yes", "no")
    >>> found = analyse({"age": age, "ward": ward, "ill": ill}, target="ill", client="ward")
    >>> found.names, np.round(found.estimates, 3).tolist(), np.round(found.standard_errors, 3).tolist()
    (('Intercept', 'age'), [-1.313, 0.044], [0.258, 0.007])
    """
    own = flag("analyse: site_intercepts", site_intercepts)
    rows = model_rows(
        data, target, client, family, site_intercepts=own, offset=offset, exposure=exposure, weight=weight,
        reference=reference, survival=Survival(event, entry, strata, ties), formula=formula, reading=reading,
    )  # fmt: skip
    return analysed(rows, own, robust, level, intervals, flag("analyse: firth", firth))


def analysed(
    rows: Rows, own: bool, robust: str | None, level: float, intervals: str = "wald", firth: bool = False
) -> Analysis:
    """Return the analysis of rows, here or at sites, with intercepts of clients or without, columns as they are."""
    level = _checked(robust, intervals, level, firth)
    fit = fitted(rows, own, separated=intervals == "profile", firth=firth)
    V = _covariance(fit, robust)
    kind = CoxAnalysis if rows.family.name == "cox" else Analysis
    found = kind(rows, fit, V, robust, level, own)
    if found.exact:
        return replace(found, covariance=np.full_like(V, np.nan))
    return replace(found, profile=profile_intervals(fit, level)) if intervals == "profile" else found


def _checked(robust: str | None, intervals: str, level: float, firth: bool) -> float:
    """Return the level, once it and the kinds of covariance and intervals are known to be right."""
    if robust is not None:
        among("analyse: robust", robust, ROBUST)
    among("analyse: intervals", intervals, INTERVALS)
    if intervals == "profile" and robust is not None:
        cure = "the likelihood knows no robust variances: intervals='wald'"
        raise bad("analyse: intervals", "be 'wald' with a robust covariance", "'profile'", cure)
    if firth and robust is not None:
        raise bad("analyse: firth", "have the model's covariance", "a robust covariance")
    return inside("analyse: level", level)


def _covariance(fit: Fit, robust: str | None) -> np.ndarray:
    """Return the covariance of the coefficients, in the units of their columns."""
    if robust is None:
        V = covariances.model(fit.expected_inverse, fit.phi)
    else:
        V = fit.problem.covariance(fit.found.b[0], fit.found.inverse[0], robust)
    return fit.T @ V @ fit.T.T
