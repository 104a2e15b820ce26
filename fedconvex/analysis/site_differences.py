"""Whether sites differ: estimates of each site against a common one, and random-effects summaries of one coefficient.

Q and I^2: Higgins and Thompson, Statistics in Medicine 21 (2002). DerSimonian and Laird, Controlled Clinical Trials 7
(1986). REML: Viechtbauer, J. Educational and Behavioral Statistics 30 (2005). Hartung and Knapp, Statistics in Medicine
20 (2001), not truncated. I^2 of REML and the prediction interval, with K - 1 degrees of freedom, are metafor's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from fedconvex._check import bad
from fedconvex.analysis.hypothesis_tests import Significance, likelihood_ratio
from fedconvex.analysis.newton_search import inverse_of


class CommonEffect(NamedTuple):
    """All coefficients together, by full covariances."""

    b: np.ndarray  # (p,) (sum J_k)^-1 sum J_k b_k
    V: np.ndarray  # (p, p)
    Q: Significance  # sum (b_k - b)'J_k (b_k - b), chi2


class RandomEffects(NamedTuple):
    """A random-effects summary of one coefficient."""

    estimate: float
    se: float
    low: float  # confidence interval of the mean effect
    high: float
    tau2: float
    I2: float  # per cent


class Summary(NamedTuple):
    """One coefficient over sites."""

    common: float  # sum w b/sum w, w = 1/v
    common_se: float
    Q: Significance
    I2: float  # per cent, of Q
    dersimonian_laird: RandomEffects  # normal quantiles
    reml: RandomEffects  # normal quantiles
    hartung_knapp: RandomEffects  # REML's tau^2, t(K - 1)
    prediction: tuple[float, float]  # where a new site's effect is expected

    @property
    def narrower(self) -> bool:
        """Return whether Hartung and Knapp's standard error is below the common effect's: then take the larger."""
        return self.hartung_knapp.se < self.common_se


def _at_least_two(K: int) -> None:
    if K < 2:
        raise bad("heterogeneity", "have at least 2 sites with estimates", K)


def slopes_of(b: np.ndarray, J: np.ndarray, kept: np.ndarray | list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the kept coefficients of one site and their information, the Schur complement of the others'."""
    kept = np.asarray(kept, dtype=np.int64)
    rest = np.setdiff1d(np.arange(b.size), kept)
    if rest.size == 0:
        return b[kept], J[np.ix_(kept, kept)]
    across = J[np.ix_(kept, rest)]
    return b[kept], J[np.ix_(kept, kept)] - across @ inverse_of(J[np.ix_(rest, rest)])[0] @ across.T


def common_effect(b: np.ndarray, J: np.ndarray) -> CommonEffect:
    """Return b_GLS of the estimates (K, p) with informations (K, p, p), J_k/phi_k where dispersions are estimated.

    To first order it is the pooled estimate; the mean of each coefficient by itself is not.
    """
    _at_least_two(len(b))
    V, rank = inverse_of(J.sum(axis=0))
    best = V @ np.einsum("kij,kj->i", J, b)
    away = b - best
    Q = float(np.einsum("ki,kij,kj->", away, J, away))
    df = sum(inverse_of(J_k)[1] for J_k in J) - rank
    p = float(stats.chi2.sf(Q, df)) if df > 0 else float("nan")
    return CommonEffect(best, V, Significance(Q, df, None, p))


def equal_slopes(
    N_own: float, N_sites: np.ndarray, slopes: int, phi: float = 1.0, residual_df: float | None = None
) -> Significance:
    """Return the likelihood-ratio test of equal slopes, from the minimum with site intercepts and those of the sites.

    phi and ``residual_df`` = n - K p are those of separate models where the dispersion is estimated.

    Raises
    ------
    ValueError
        If a site's minimum is not finite: a separated site has no chi-squared limit.
    """
    _at_least_two(len(N_sites))
    return likelihood_ratio(N_own, float(np.sum(N_sites)), (len(N_sites) - 1) * slopes, phi, residual_df)


def summarise(b: np.ndarray, v: np.ndarray, level: float = 0.95) -> Summary:
    """Return the fixed- and random-effects summaries of one coefficient's estimates b (K,) with variances v (K,)."""
    b, v = np.asarray(b, dtype=np.float64), np.asarray(v, dtype=np.float64)
    K = b.size
    _at_least_two(K)
    if not ((v > 0.0) & np.isfinite(v) & np.isfinite(b)).all():
        sites = np.flatnonzero(~((v > 0.0) & np.isfinite(v) & np.isfinite(b))).tolist()
        raise bad("estimates of sites", "be finite, with positive variances", f"sites {sites}", "leave these out")
    w = 1.0 / v
    common = float(w @ b / w.sum())
    Q = float(w @ (b - common) ** 2)
    rest = np.concatenate([[0.0], w.cumsum()[:-1]]) + np.append(w[::-1].cumsum()[::-1][1:], 0.0)  # sum of the others
    spread = float(w @ rest / w.sum())
    I2 = 100.0 * max(0.0, (Q - (K - 1)) / Q) if Q > 0.0 else 0.0
    tau2 = max(0.0, (Q - (K - 1)) / spread)
    typical = (K - 1) / spread
    z = float(stats.norm.isf(0.5 * (1.0 - level)))
    reml = reml_variance(b, v)
    mean, se = _mean(b, v, reml)
    share = 100.0 * reml / (reml + typical)
    weights = 1.0 / (v + reml)
    knapp = float(np.sqrt(weights @ (b - mean) ** 2 / ((K - 1) * weights.sum())))
    t = float(stats.t.isf(0.5 * (1.0 - level), K - 1))
    reach = t * float(np.sqrt(reml + knapp**2))
    return Summary(
        common, float(w.sum() ** -0.5), Significance(Q, K - 1, None, float(stats.chi2.sf(Q, K - 1))), I2,
        _interval(*_mean(b, v, tau2), z, tau2, I2), _interval(mean, se, z, reml, share),
        _interval(mean, knapp, t, reml, share), (mean - reach, mean + reach),
    )  # fmt: skip


def _interval(mean: float, se: float, quantile: float, tau2: float, I2: float) -> RandomEffects:
    return RandomEffects(mean, se, mean - quantile * se, mean + quantile * se, tau2, I2)


def _mean(b: np.ndarray, v: np.ndarray, tau2: float) -> tuple[float, float]:
    w = 1.0 / (v + tau2)
    return float(w @ b / w.sum()), float(w.sum() ** -0.5)


def reml_variance(b: np.ndarray, v: np.ndarray) -> float:
    """Return the tau^2 >= 0 of the largest restricted likelihood of estimates b (K,) with variances v (K,).

    The likelihood may have several maxima: each change of sign of its derivative on a grid is refined.
    """

    def slope(tau2: float) -> float:
        w = 1.0 / (v + tau2)
        mean = w @ b / w.sum()
        return float(w**2 @ (b - mean) ** 2 - w.sum() + w @ w / w.sum())

    def log_likelihood(tau2: float) -> float:
        w = 1.0 / (v + tau2)
        mean = w @ b / w.sum()
        return float(0.5 * (np.log(w).sum() - np.log(w.sum()) - w @ (b - mean) ** 2))

    most = 10.0 * (np.ptp(b) ** 2 + v.max())
    grid = np.concatenate([[0.0], np.geomspace(1e-8 * v.min(), most, 400)])
    W = 1.0 / (v + grid[:, None])
    total = W.sum(axis=1)
    away = b - (W @ b / total)[:, None]
    slopes = np.einsum("tk,tk->t", W**2, away**2) - total + np.einsum("tk,tk->t", W, W) / total
    falls = np.flatnonzero((slopes[:-1] > 0.0) & (slopes[1:] <= 0.0))
    found = [float(brentq(slope, grid[i], grid[i + 1], xtol=1e-300, rtol=1e-15)) for i in falls]
    return max([0.0, *found] if slopes[0] <= 0.0 else found, key=log_likelihood)


def without_each(b: np.ndarray, v: np.ndarray, level: float = 0.95) -> list[Summary]:
    """Return the summaries without one site each; at least three sites are needed."""
    if len(b) < 3:
        raise bad("leaving out one site", "have at least 3 sites with estimates", len(b))
    return [summarise(np.delete(b, k), np.delete(v, k), level) for k in range(len(b))]


def confounded(pooled: tuple[float, float], sites: np.ndarray) -> bool:
    """Return whether the pooled interval without site intercepts is disjoint from the intervals (K, 2) of all sites.

    Then differences between sites, not within them, make the pooled estimate.
    """
    low, high = pooled
    return bool(len(sites) and ((sites[:, 0] > high) | (sites[:, 1] < low)).all())
