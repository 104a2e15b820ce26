"""Whether intervals of the first slope hold a number: on batches of data sets, and by `analyse` on one of them.

An interval of the likelihood holds b_0 exactly where the likelihood-ratio statistic at b_0 is at most its quantile: two
fits decide, and no end is searched. Intervals are those of `fedconvex.analysis.analyse`, with site intercepts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedconvex.analysis import analyse
from fedconvex.analysis.site_differences import summarise
from fedconvex.papers.inference.batched_fits import Batch, Fits, fit
from fedconvex.papers.inference.simulated_sites import Drawn

HALF = 0.025


class Share(NamedTuple):
    """How many of n intervals hold what they should."""

    held: int
    n: int

    @property
    def mean(self) -> float:
        """The share."""
        return self.held / self.n

    def interval(self, level: float = 1.0 - 2.0 * HALF) -> tuple[float, float]:
        """Return Clopper and Pearson's interval of the probability."""
        half = 0.5 * (1.0 - level)
        low = float(stats.beta.ppf(half, self.held, self.n - self.held + 1)) if self.held else 0.0
        high = float(stats.beta.isf(half, self.held + 1, self.n - self.held)) if self.held < self.n else 1.0
        return low, high


class Verdicts(NamedTuple):
    """Of the first slope; all (R,)."""

    estimate: np.ndarray
    error: np.ndarray
    wald: np.ndarray  # (estimate - b_0)/error over the quantile: the interval holds b_0 where it is in [-1, 1]
    profile: np.ndarray  # likelihood-ratio statistic over its quantile

    @property
    def held(self) -> dict[str, np.ndarray]:
        """Which intervals hold b_0."""
        return {"wald": np.abs(self.wald) <= 1.0, "profile": self.profile <= 1.0}


def dispersion(batch: Batch, found: Fits) -> tuple[np.ndarray, float]:
    """Return phi, (R,), and the quantile of an estimate over its standard error."""
    n, parameters = batch.y.shape[1], len(batch.X) + batch.sizes.size
    if batch.family == "gaussian":
        return 2.0 * found.N[:, 0] / (n - parameters), float(stats.t(n - parameters).isf(HALF))
    return np.ones(len(batch.y)), float(stats.norm.isf(HALF))


def verdicts(batch: Batch, truth: np.ndarray, found: Fits | None = None) -> Verdicts:
    """Return Wald's and the likelihood's verdict on the numbers ``truth`` (R,), one for each data set."""
    found = fit(batch) if found is None else found
    restricted = fit(batch, truth[:, None], found)
    if not (found.settled.all() and restricted.settled.all()):
        raise ArithmeticError(f"{batch.family}: {int((~found.settled).sum())} estimates are not finite")
    phi, reach = dispersion(batch, found)
    error = np.sqrt(phi * found.inverse[:, 0, 0])
    b, ratio = found.b[:, 0, 0], 2.0 * (restricted.N - found.N)[:, 0] / phi
    return Verdicts(b, error, (b - truth) / (reach * error), ratio / reach**2)


class SlopeIntervals(NamedTuple):
    """Centre and half width of three intervals of the first slope; all (R,)."""

    common: tuple[np.ndarray, np.ndarray]  # Wald's, of equal slopes
    client: tuple[np.ndarray, np.ndarray]  # the same estimate, its covariance clustered by client
    random: tuple[np.ndarray, np.ndarray]  # Hartung and Knapp's, of the sites' own estimates
    left_out: np.ndarray  # sites without a finite estimate of their own


def slope_intervals(batch: Batch, found: Fits) -> SlopeIntervals:
    """Return the intervals that a user may choose from where slopes differ between sites."""
    K, n = batch.sizes.size, batch.y.shape[1]
    phi, reach = dispersion(batch, found)
    inverse = found.inverse
    common = reach * np.sqrt(phi * inverse[:, 0, 0])
    row = np.einsum("rj,rkj->rk", inverse[:, 0], found.scores)
    clustered = np.einsum("rk,rk->r", row, row)
    if batch.family != "cox":  # CR1; Cox's is CR0
        heard = (np.einsum("rkjj->rk", found.J) > 0.0).sum(axis=1)
        clustered *= heard / (heard - 1.0) * (n - 1.0) / (n - len(batch.X) - K)
    own = fit(batch, alone=True)
    v = np.linalg.inv(np.where(own.settled[..., None, None], own.J, np.eye(len(batch.X))))[..., 0, 0]
    if batch.family == "gaussian":
        v = v * 2.0 * own.N / (batch.sizes - len(batch.X) - 1)
    summaries = [summarise(b[s], w[s]).hartung_knapp for b, w, s in zip(own.b[..., 0], v, own.settled, strict=True)]
    centre = np.array([s.estimate for s in summaries])
    wide = float(stats.t(K - 1).isf(HALF))
    return SlopeIntervals(
        (found.b[:, 0, 0], common), (found.b[:, 0, 0], wide * np.sqrt(clustered)),
        (centre, np.array([s.high for s in summaries]) - centre), (~own.settled).sum(axis=1),
    )  # fmt: skip


def pooled_targets(sample: Drawn, found: Fits) -> np.ndarray:
    """Return what the common slope estimates where slopes differ, (R,).

    The minimiser of the expected N: the fit to expected responses. Of Cox's model its first-order form, the mean of the
    sites' slopes with the weights of their informations.
    """
    if sample.batch.family != "cox":
        expected = fit(sample.batch._replace(y=sample.mean))
        if not expected.settled.all():
            raise ArithmeticError(f"{sample.batch.family}: fits to expected responses did not settle")
        return expected.b[:, 0, 0]
    mean = found.inverse @ np.einsum("rkij,rkj->ri", found.J, sample.slopes)[..., None]
    return mean[:, 0, 0]


def by_analyse(sample: Drawn, r: int, **options: Any) -> Any:
    """Return the answer of `analyse` to data set r."""
    columns = [f"x{j + 1}" for j in range(len(sample.batch.X))]
    if sample.batch.family == "cox":
        return analyse(sample.table(r), "time", "site", event="event", keep=columns, **options)
    named: dict[str, Any] = {"site_intercepts": True, "family": sample.batch.family, "keep": [*columns, "y"]}
    return analyse(sample.table(r), "y", "site", **named | options)


def disagreement(sample: Drawn, r: int, truth: float, found: Verdicts) -> float:
    """Return the largest difference between the batch and `analyse` on data set r.

    Of the estimate in standard errors, of the standard error as a share; inf where an interval of `analyse` decides
    otherwise and the end is not within 1e-7 of its half width.
    """
    row = by_analyse(sample, r, intervals="profile").table()[0]
    plain = by_analyse(sample, r).table()[0]
    worst = max(abs(row.estimate - found.estimate[r]), abs(plain.standard_error - found.error[r])) / found.error[r]
    for one, edge, kind in ((plain, abs(found.wald[r]), "wald"), (row, found.profile[r], "profile")):
        if (one.low <= truth <= one.high) != bool(found.held[kind][r]) and abs(edge - 1.0) > 1e-7:
            return float("inf")
    return float(worst)
