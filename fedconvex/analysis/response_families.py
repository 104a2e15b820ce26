"""Families of responses: what a generalised linear model assumes of y, as functions of scores z and responses y.

Losses are half the unit deviances, l(z, y) >= 0, convex in z, with l = 0 at the best z for y alone; a log-likelihood is
-l/phi + c(y, phi) (McCullagh and Nelder, Generalized Linear Models, 1989, Chapter 2). Log-likelihoods and AIC are R's.
Binary responses are 0 and 1 here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, gammaln, xlogy

from fedconvex._check import bad, real

Function = Callable[..., np.ndarray]
_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, repr=False)
class Family:
    """One family with its link. Functions take scores z (n,) and responses y (n,) and return an array (n,).

    Attributes
    ----------
    name, loss, link : str
        On the command line; in fedconvex.losses; of the link.
    mean, variance : callable
        mu of the score z, and V of mu.
    value, slope, curvature : callable
        l of (z, y), dl/dz, and the observed information of a row.
    expected_curvature : callable
        Of z: the expected information, which R's glm and statsmodels report.
    self_concordance : float
        c with |l'''| <= c l''.
    dispersion : {"1", "residual", "Pearson"}
        Known; 2 N/(n - p); Pearson's.
    parameters : int
        Beside the coefficients, counted by AIC.
    exponentiated : str
        What exp(coefficient) is called; "" where it has no name.
    row_constant : callable or None
        Of y: what a site sums besides l for the log-likelihood.
    terms : callable
        Of (z, y): sizes of what l is computed from, which its rounding goes by.
    refuse : callable
        What is wrong with y, or "".
    canonical : bool
        Whether the link is the canonical one, so that observed and expected information agree.
    curvature_of : callable, optional
        The curvature from (slope, y), where that is cheaper.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.analysis import negative_binomial
    >>> family = negative_binomial(2.0)
    >>> family.link, family.exponentiated, family.variance(np.array([4.0]))  # mu + mu^2/2
    ('log', 'rate ratio', array([12.]))
    """

    name: str  # on the command line
    loss: str  # in fedconvex.losses
    link: str
    mean: Function  # mu of z
    variance: Function  # V of mu
    value: Function  # l of (z, y)
    slope: Function  # dl/dz of (z, y)
    curvature: Function  # of (z, y): the observed information of a row
    expected_curvature: Function  # of z: the expected one, which R's glm and statsmodels report
    self_concordance: float  # c: |l'''| <= c l''
    dispersion: str  # "1" known, "residual" N/(n - p) * 2, "Pearson"
    parameters: int  # beside the coefficients, counted by AIC
    exponentiated: str  # what exp(coefficient) is called; "" where it has no name
    row_constant: Function | None  # of y: what a site sums besides l for the log-likelihood; None without one
    terms: Function  # of (z, y): sizes of what l is computed from, which its rounding goes by
    refuse: Callable[[np.ndarray], str]  # what is wrong with y, or ""
    canonical: bool = True
    curvature_of: Function | None = None  # curvature of (slope, y), where that is cheaper: in searches only

    def __repr__(self) -> str:
        return self.name

    @property
    def reference(self) -> str:
        """Return the distribution of an estimate over its standard error: "normal", or "t" with n - p degrees."""
        return "normal" if self.dispersion == "1" else "t"

    def check(self, y: np.ndarray, who: str = "y") -> None:
        """Raise ValueError unless every response is one that the family allows."""
        if wrong := self.refuse(y):
            raise bad(who, _ALLOWED[self.name], wrong, _CURES.get(self.name, ""))

    def phi(self, N: float, pearson: float, n: float, p: int) -> float:
        """Return the dispersion from N, the Pearson sum, the number of rows and of coefficients (nan if n <= p)."""
        if self.dispersion == "1":
            return 1.0
        return (2.0 * N if self.dispersion == "residual" else pearson) / (n - p) if n > p else float("nan")

    def log_likelihood(self, N: float, n: float, constants: float) -> float | None:
        """Return that of R from N, the number of rows and the sum of ``row_constant``; None for quasi-likelihoods.

        Its dispersion is 2 N/n (RSS/n, deviance/n), not the one that standard errors use.
        """
        if self.row_constant is None:
            return None
        if self.name == "gaussian":
            return float(-0.5 * n * (np.log(2.0 * np.pi * 2.0 * N / n) + 1.0))
        if self.name == "gamma":
            k = n / (2.0 * N)  # shape
            return float(-k * N + n * (k * np.log(k) - k - gammaln(k)) + constants)
        return float(constants - N)

    def aic(self, log_likelihood: float | None, p: int) -> float | None:
        """Return -2 log-likelihood + 2 (p + what else is estimated), as R does."""
        return None if log_likelihood is None else -2.0 * log_likelihood + 2.0 * (p + self.parameters)


_ALLOWED = {
    "gaussian": "hold finite numbers",
    "logistic": "hold 0 and 1",
    "poisson": "hold whole numbers that are not negative",
    "quasipoisson": "hold numbers that are not negative",
    "gamma": "hold positive numbers",
    "negative-binomial": "hold whole numbers that are not negative",
}
_CURES = {
    "poisson": "quasipoisson allows fractions",
    "gamma": "rows with zero need a model of their own, or poisson with robust standard errors",
}


def _pearson(family: Family, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    mu = family.mean(z)
    return (y - mu) ** 2 / family.variance(mu)


def pearson_sum(family: Family, z: np.ndarray, y: np.ndarray, s: np.ndarray) -> float:
    """Return sum s (y - mu)^2/V(mu) over rows, which sites add up."""
    return float(s @ _pearson(family, z, y))


def value_rounding(family: Family, X: np.ndarray, b: np.ndarray, o: np.ndarray, y: np.ndarray, s: np.ndarray) -> float:
    """Return a bound on the rounding of N at b over rows X (n, p), offsets o, weights s: a number that sites add up.

    Scores are off by at most (p + 1) eps (sum |x_j b_j| + |o|), a row's value by |l'| times that and by eps times the
    terms that it is computed from, the sum by eps log2 n of itself (pairwise summation).
    """
    z = X @ b + o
    scores = (b.size + 1) * _EPS * (np.abs(X) @ np.abs(b) + np.abs(o))
    each = np.abs(family.slope(z, y)) * scores + 4.0 * _EPS * family.terms(z, y)
    return float(s @ each) + (np.log2(max(y.size, 2)) + 4.0) * _EPS * float(s @ family.value(z, y))


def _fractions(y: np.ndarray) -> str:
    wrong = y[(y != np.round(y)) | (y < 0.0)]
    return "" if wrong.size == 0 else f"{wrong[0]:g} in {wrong.size} rows"


def _negatives(y: np.ndarray) -> str:
    return f"{y[y < 0.0][0]:g} in {int((y < 0.0).sum())} rows" if (y < 0.0).any() else ""


def _nonpositives(y: np.ndarray) -> str:
    return f"{y[y <= 0.0][0]:g} in {int((y <= 0.0).sum())} rows" if (y <= 0.0).any() else ""


def _no_classes(y: np.ndarray) -> str:
    wrong = y[(y != 0.0) & (y != 1.0)]
    return "" if wrong.size == 0 else f"{wrong[0]:g} in {wrong.size} rows"


def _finite(refuse: Callable[[np.ndarray], str]) -> Callable[[np.ndarray], str]:
    def also(y: np.ndarray) -> str:
        wrong = ~np.isfinite(y)
        return f"{y[wrong][0]} in {int(wrong.sum())} rows" if wrong.any() else refuse(y)

    return also


def _binomial_variance(mu: np.ndarray) -> np.ndarray:
    return mu * (1.0 - mu)


def _logistic_curvature(z: np.ndarray, y: Any = None) -> np.ndarray:
    t = np.exp(-np.abs(z))
    return t / (1.0 + t) ** 2


def _poisson_value(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """mu - y - y (z - log y): with u = z - log y, y (e^u - 1 - u), whose digits near the minimum expm1 keeps."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = z - np.log(y)
        return np.where(y > 0.0, y * (np.expm1(u) - u), np.exp(z))


def _gamma_value(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        u = np.log(y) - z
        return np.expm1(u) - u


def _exp(z: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.exp(z)


def _log_link_terms(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    logs = np.abs(np.log(np.where(y > 0.0, y, 1.0)))
    return (_exp(z) + y) * (1.0 + np.abs(z) + logs)


def _gamma_terms(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (y * _exp(-z) + 1.0) * (1.0 + np.abs(z) + np.abs(np.log(y)))


GAUSSIAN = Family(
    "gaussian", "Squared", "identity", lambda z: z, np.ones_like, lambda z, y: 0.5 * (z - y) ** 2, lambda z, y: z - y,
    lambda z, y: np.ones_like(z), np.ones_like, 0.0, "residual", 1, "", np.zeros_like,
    lambda z, y: z**2 + y**2, _finite(lambda y: ""),
)  # fmt: skip
LOGISTIC = Family(
    "logistic", "Logistic", "logit", expit, _binomial_variance,
    lambda z, y: np.logaddexp(0.0, (1.0 - 2.0 * y) * z), lambda z, y: (1.0 - 2.0 * y) * expit((1.0 - 2.0 * y) * z),
    _logistic_curvature, _logistic_curvature, 1.0, "1", 0, "odds ratio", np.zeros_like,
    lambda z, y: 1.0 + np.abs(z), _finite(_no_classes), curvature_of=lambda d, y: np.abs(d) * (1.0 - np.abs(d)),
)  # fmt: skip
POISSON = Family(
    "poisson", "Poisson", "log", _exp, lambda mu: mu, _poisson_value, lambda z, y: _exp(z) - y, lambda z, y: _exp(z),
    _exp, 1.0, "1", 0, "rate ratio", lambda y: xlogy(y, y) - y - gammaln(y + 1.0), _log_link_terms,
    _finite(_fractions), curvature_of=np.add,
)  # fmt: skip
QUASIPOISSON = Family(
    "quasipoisson", "Poisson", "log", _exp, lambda mu: mu, _poisson_value, lambda z, y: _exp(z) - y,
    lambda z, y: _exp(z), _exp, 1.0, "Pearson", 0, "rate ratio", None, _log_link_terms, _finite(_negatives),
    curvature_of=np.add,
)  # fmt: skip
GAMMA = Family(
    "gamma", "Gamma", "log", _exp, lambda mu: mu**2, _gamma_value, lambda z, y: 1.0 - y * _exp(-z),
    lambda z, y: y * _exp(-z), np.ones_like, 1.0, "Pearson", 1, "ratio of means", lambda y: -np.log(y),
    _gamma_terms, _finite(_nonpositives), canonical=False,
)  # fmt: skip


def negative_binomial(theta: float) -> Family:
    """Return the family with variance mu + mu^2/theta, theta given.

    Parameters
    ----------
    theta : float
        Shape, positive; the family nears Poisson's as it grows.

    Raises
    ------
    TypeError, ValueError
        If theta is no positive finite number.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.analysis import analyse, negative_binomial
    >>> falls, ward = np.tile([0.0, 1.0, 5.0, 2.0], 10), np.repeat(["a", "b"], 20)
    >>> table = {"age": np.tile([60.0, 70.0, 80.0, 90.0], 10), "ward": ward, "falls": falls}
    >>> found = analyse(table, target="falls", client="ward", family=negative_binomial(1.5))
    >>> np.round(found.estimates, 3).tolist()
    [-5.642, 0.081]
    """
    theta = real("theta", theta, low=0.0, strict=True)
    log_theta = float(np.log(theta))

    def value(z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(y + theta) log((theta + mu)/(theta + y)) - y (z - log y), the logarithm of theta + mu without overflow."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (y + theta) * (np.logaddexp(log_theta, z) - np.log(theta + y)) - y * z + xlogy(y, y)

    def share(z: np.ndarray) -> np.ndarray:
        """mu/(theta + mu)."""
        return expit(z - log_theta)

    def rest(z: np.ndarray) -> np.ndarray:
        """theta/(theta + mu)."""
        return expit(log_theta - z)

    def constant(y: np.ndarray) -> np.ndarray:
        binomial = gammaln(y + theta) - gammaln(theta) - gammaln(y + 1.0)
        return binomial + theta * log_theta - (y + theta) * np.log(y + theta) + xlogy(y, y)

    def terms(z: np.ndarray, y: np.ndarray) -> np.ndarray:
        logs = 1.0 + np.abs(np.logaddexp(log_theta, z)) + np.abs(np.log(theta + y))
        return (y + theta) * logs + np.abs(y * z) + np.abs(xlogy(y, y))

    return Family(
        "negative-binomial", "NegativeBinomial", "log", _exp, lambda mu: mu + mu**2 / theta, value,
        lambda z, y: theta * share(z) - y * rest(z), lambda z, y: (y + theta) * share(z) * rest(z),
        lambda z: theta * share(z), 1.0, "1", 0, "rate ratio", constant, terms, _finite(_fractions), canonical=False,
    )  # fmt: skip


FAMILIES_WITHOUT_PARAMETERS = {f.name: f for f in (GAUSSIAN, LOGISTIC, POISSON, QUASIPOISSON, GAMMA)}
