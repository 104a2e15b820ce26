"""A Gaussian posterior and what it says: means, variances, predictive probabilities, bounds of the evidence."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.stats import norm

from fedconvex._check import array, bad
from fedconvex._sparse import sound
from fedconvex.fields import inside
from fedconvex.solvers.posteriors.expected_losses import GaussHermite, gauss_hermite
from fedconvex.solvers.posteriors.free_energy import slope_and_curvature
from fedconvex.solvers.posteriors.gaussians import Gaussian, dense, times

if TYPE_CHECKING:
    from fedconvex.problems.posterior import GaussianPosteriorProblem


class Predictive(NamedTuple):
    """What a posterior says of rows, (N,) each.

    Attributes
    ----------
    score, score_sd : array (N,)
        Mean and standard deviation of the score.
    mean : array (N,)
        Of the label: of y, or P(y = +1), averaged over the posterior.
    low, high : array (N,)
        Central interval of y, noise included; or of the probability 1/(1 + exp(-score)).

    Examples
    --------
    >>> from fedconvex import Logistic
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.problems import GaussianPosteriorProblem
    >>> fed = logistic_federation(n_clients=2, n_features=2, seed=1).federation
    >>> said = GaussianPosteriorProblem(fed, Logistic()).solve().posterior.predict(fed.X[:3])
    >>> said.mean.shape, bool((said.low <= said.high).all())
    ((3,), True)
    """

    score: np.ndarray  # mean of the score
    score_sd: np.ndarray  # its standard deviation
    mean: np.ndarray  # of the label: of y, or P(y = +1), averaged over the posterior
    low: np.ndarray  # central interval of y, noise included; or of the probability 1/(1 + exp(-score))
    high: np.ndarray


class ExactPosterior(NamedTuple):
    """The exact posterior of a linear model, all correlations included.

    Attributes
    ----------
    mean, covariance : array (d,), (d, d)
        Of theta.
    models, model_variances : array (K, d)
        Means and variances of theta + w_k; of theta without private parameters.
    log_evidence : float
        log p(all labels).

    Examples
    --------
    >>> from fedconvex import Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.problems import GaussianPosteriorProblem
    >>> fed = linear_federation(n_clients=2, n_features=2, seed=1).federation
    >>> exact = GaussianPosteriorProblem(fed, Squared()).exact()
    >>> exact.mean.shape, exact.models.shape
    ((2,), (2, 2))
    """

    mean: np.ndarray  # (d,) of theta
    covariance: np.ndarray  # (d, d) of theta
    models: np.ndarray  # (K, d) means of theta + w_k; of theta without private parameters
    model_variances: np.ndarray  # (K, d)
    log_evidence: float  # log p(all labels)


class GaussianPosterior:
    """q(theta) prod_k c_k(w_k) of a `GaussianPosteriorProblem`, made by its `solve` and `posterior`.

    Attributes
    ----------
    q : Gaussian
        Of theta.
    private : tuple of Gaussian
        c_k, one for every client; empty without private parameters.
    value, gap : float
        Free energy, and a certified bound of what it is above its minimum, rounding of the gradient included.
    rounding : float
        What the free energy itself may be off by.
    problem : GaussianPosteriorProblem
        Whose posterior it approximates.

    Examples
    --------
    >>> from fedconvex import Logistic
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.problems import GaussianPosteriorProblem
    >>> fed = logistic_federation(seed=1).federation
    >>> posterior = GaussianPosteriorProblem(fed, Logistic()).solve().posterior
    >>> found = posterior.predict(fed.X[:2])
    >>> bool((found.low < found.mean).all() and (found.mean < found.high).all())
    True
    >>> low, high = posterior.log_evidence
    >>> low < high
    True
    """

    def __init__(
        self,
        problem: GaussianPosteriorProblem,
        q: Gaussian,
        private: tuple[Gaussian, ...],
        value: float,
        gap: float,
        rounding: float,
    ) -> None:
        self.problem, self.q, self.private = problem, q, private
        self.value, self.gap, self.rounding = value, gap, rounding

    def __repr__(self) -> str:
        return f"GaussianPosterior(d={self.mean.size}, value={self.value:.6g}, gap={self.gap:.3g})"

    @property
    def lower_bound(self) -> float:
        """A bound of the least free energy from below."""
        return self.value - self.gap - self.rounding

    @property
    def mean(self) -> np.ndarray:
        """Mean of theta, (d,)."""
        return self.q.mean

    @property
    def variances(self) -> np.ndarray:
        """Variances of theta, (d,). Where q leaves out correlations they are too small: `variance_deficit`."""
        return self.q.variances

    @cached_property
    def models(self) -> np.ndarray:
        """Means of theta + w_k, (K, d); of theta for every client without private parameters."""
        K = self.problem.federation.K
        return self.mean + (np.array([c.mean for c in self.private]) if self.private else np.zeros((K, 1)))

    @cached_property
    def model_variances(self) -> np.ndarray:
        """Variances of theta + w_k under q, (K, d)."""
        K = self.problem.federation.K
        return self.variances + (np.array([c.variances for c in self.private]) if self.private else np.zeros((K, 1)))

    @cached_property
    def _curvatures(self) -> list[np.ndarray]:
        """X_k' diag(l'') X_k of every client, less what private parameters explain."""
        problem, out = self.problem, []
        for rows, c in problem.blocks(self.private):
            H = slope_and_curvature(problem.expected, rows, self.q, c, True)[2]
            if c is not None:
                Q = dense(problem.private.precision)
                H = H @ np.linalg.solve(Q + H, Q)
            out.append(H)
        return out

    @cached_property
    def variance_deficit(self) -> np.ndarray:
        """1 - (variance under q)/(variance with all correlations), (d,): what mean field is too sure of.

        Correlations between coordinates, and between theta and the w_k, come from the expected curvature at q: exact
        for linear models, first order for logistic ones.
        """
        whole = dense(self.problem.prior.precision) + sum(self._curvatures)
        return 1.0 - self.variances / np.diag(np.linalg.inv(whole))

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Bounds of log p(labels): -free energy below; above the exact value of linear models, or that of a tangent.

        The upper bound of logistic models: the log-likelihood is concave, so that a tangent at the means bounds it,
        and its exponential is integrated over the priors. The lower one is up to the `quadrature_error`.
        """
        problem, low = self.problem, -self.value
        if problem.linear:
            return low, max(low, problem.exact().log_evidence)
        high, slope, p = 0.0, np.zeros(self.mean.size), problem.prior
        for rows, c in problem.blocks(self.private):
            m = self.mean + (c.mean if c is not None else 0.0)
            t = rows.y * (rows.X @ m)
            g = -rows.X.T @ (rows.weight * rows.y / (1.0 + np.exp(np.clip(t, -700.0, 700.0))))
            high += float(g @ m - rows.weight @ np.logaddexp(0.0, -t))
            slope += g
            if c is not None:
                high += 0.5 * float(g @ np.linalg.solve(dense(problem.private.precision), g))
        high += float(0.5 * slope @ np.linalg.solve(dense(p.precision), slope) - slope @ p.mean)
        return low, high

    @property
    def quadrature_error(self) -> float:
        """By how much the free energy moves when 100 nodes take the place of fewer: 0 for what has none."""
        if not isinstance(self.problem.expected, GaussHermite):
            return 0.0
        values = [
            sum(slope_and_curvature(e, rows, self.q, c, False)[0] for rows, c in self.problem.blocks(self.private))
            for e in (self.problem.expected, GaussHermite(100))
        ]
        return abs(values[0] - values[1])

    def predict(self, X: Any, client: Any = None, level: float = 0.95) -> Predictive:
        """Return predictions of rows with their uncertainty.

        Parameters
        ----------
        X : array or scipy sparse matrix (N, d)
            Rows as those of the federation: standardised, encoded.
        client : label, optional
            Whose rows they are: with private parameters, of that client's. Default a client that is not known yet,
            whose w has the prior's distribution.
        level : float
            Probability of the central interval.

        Raises
        ------
        ValueError, TypeError
            If X has other columns, or no client has that label.
        """
        problem, level = self.problem, inside("GaussianPosterior.predict: level", level)
        rows = sound("GaussianPosterior.predict: X", X).toarray() if sp.issparse(X) else X
        X = array("GaussianPosterior.predict: X", rows, (None, self.mean.size))
        mu, v = self.q.scores(X)
        if client is not None:
            labels = problem.federation.labels.tolist()
            if np.ndim(client) != 0 or client not in labels:
                raise bad("GaussianPosterior.predict: client", "be a label of the federation", f"{client!r}")
        if problem.private is not None:
            own = problem.private if client is None else self.private[labels.index(client)]
            more = own.scores(X)
            mu, v = mu + more[0], v + more[1]
        sd, z = np.sqrt(v), float(norm.ppf(0.5 + 0.5 * level))
        if problem.linear:
            wide = z * np.sqrt(v + problem.noise_variance)
            return Predictive(mu, sd, mu, mu - wide, mu + wide)
        nodes, weight = gauss_hermite(100)
        probability = _sigmoid(mu[:, None] + sd[:, None] * nodes) @ weight
        return Predictive(mu, sd, probability, _sigmoid(mu - z * sd), _sigmoid(mu + z * sd))


def _sigmoid(a: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * a)))


def exact_posterior(
    prior: Gaussian, private: Gaussian | None, A: list[np.ndarray], b: list[np.ndarray], at_zero: float
) -> ExactPosterior:
    """Return the exact posterior for the negative log-likelihoods w'A_k w/2 - b_k'w, which sum to at_zero at 0."""
    P, d, half_logs = dense(prior.precision), prior.mean.size, 0.0
    reduced, pulls, maps, left = [], [], [], []
    for Ak, bk in zip(A, b, strict=True):
        if private is None:
            reduced.append(Ak)
            pulls.append(bk)
            continue
        Q = dense(private.precision)
        M = np.linalg.solve(Q + Ak, np.eye(d))
        reduced.append(Ak @ M @ Q)
        pulls.append(Q @ M @ bk)
        maps.append(M @ Q)  # theta + w_k = M Q theta + M b_k + noise of covariance M
        left.append((M, M @ bk))
        half_logs += 0.5 * float(np.linalg.slogdet(Q)[1] - np.linalg.slogdet(Q + Ak)[1]) + 0.5 * float(bk @ M @ bk)
    H = P + sum(reduced)
    H = 0.5 * (H + H.T)
    cov = np.linalg.inv(H)
    mean = np.linalg.solve(H, times(prior.precision, prior.mean) + sum(pulls))
    half_logs += 0.5 * float(np.linalg.slogdet(P)[1] - np.linalg.slogdet(H)[1])
    log_evidence = half_logs - at_zero + 0.5 * float(mean @ H @ mean - prior.mean @ P @ prior.mean)
    if private is None:
        models, variances = np.tile(mean, (len(A), 1)), np.tile(np.diag(cov), (len(A), 1))
    else:
        models = np.array([m @ mean + u for m, (_, u) in zip(maps, left, strict=True)])
        variances = np.array([np.diag(m @ cov @ m.T + M) for m, (M, _) in zip(maps, left, strict=True)])
    return ExactPosterior(mean, cov, models, variances, log_evidence)
