"""Simulated rows of sites whose intercepts, and slopes, differ; as a batch of data sets, and as a table of one of them.

Features are normal; those of a site are moved together, by m_k of standard deviation 1/2. Site k has intercept (log
baseline hazard) spread u_k + tied m_k1 and slopes b + tau v_k, u_k and v_k standard normal. Poisson means are
e^(z - 1). Times of Cox's model are exponential with rate e^z, censored by an exponential with the mean of all rows'
mean times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex.papers.inference.batched_fits import Batch

FAMILIES = ("gaussian", "logistic", "poisson", "cox")
SLOPES = np.array([0.5, -0.3])


class Design(NamedTuple):
    """What is simulated."""

    family: str
    spread: float  # standard deviation of the sites' intercepts
    tau: float = 0.0  # standard deviation of the sites' slopes
    rows: tuple[int, int] = (30, 300)  # least and most rows of a site, all equally likely
    sites: int = 10
    shift: float = 0.5  # standard deviation of the means of a site's features
    tied: float = 0.0  # how levels of sites go with the means of their first feature
    mixing: float = 0.0  # most of a site's correlation of its two features, uniform up to it, of either sign


class Drawn(NamedTuple):
    """R data sets, with what is true of them."""

    batch: Batch
    times: np.ndarray  # (R, n) of Cox's model, else empty
    slopes: np.ndarray  # (R, K, p) of the sites
    mean: np.ndarray  # (R, n) expected responses; of Cox's model the scores

    def table(self, r: int) -> dict[str, np.ndarray]:
        """Return data set r as columns x1, x2, ..., site, and y, or time and event."""
        batch = self.batch
        columns = {f"x{j + 1}": x[r] for j, x in enumerate(batch.X)}
        columns["site"] = np.repeat(np.arange(batch.sizes.size), batch.sizes)
        if batch.family == "cox":
            return columns | {"time": self.times[r], "event": batch.y[r].astype(int)}
        return columns | {"y": batch.y[r]}

    def in_one(self) -> Batch:
        """Return the rows as those of one site: with a common intercept, or one risk set of all rows."""
        batch = self.batch
        one = batch._replace(sizes=np.array([batch.sizes.sum()]))
        if batch.family != "cox":
            return one
        order = np.argsort(-self.times, axis=1)
        return one._replace(X=np.take_along_axis(batch.X, order[None], 2), y=np.take_along_axis(batch.y, order, 1))


def drawn(rng: np.random.Generator, design: Design, R: int) -> Drawn:
    """Draw R data sets, with the sizes of sites in common."""
    K, p = design.sites, SLOPES.size
    sizes = rng.integers(design.rows[0], design.rows[1] + 1, K)
    n = int(sizes.sum())
    slopes = SLOPES + design.tau * rng.standard_normal((R, K, p))
    X, means = rng.standard_normal((p, R, n)), design.shift * rng.standard_normal((p, R, K))
    X += np.repeat(means, sizes, axis=2)
    if design.mixing > 0.0:
        rho = np.repeat(rng.uniform(-design.mixing, design.mixing, (R, K)), sizes, axis=1)
        X[1] = rho * X[0] + np.sqrt(1.0 - rho**2) * X[1]
    z = np.repeat(design.spread * rng.standard_normal((R, K)) + design.tied * means[0], sizes, axis=1)
    for x, b in zip(X, np.moveaxis(slopes, -1, 0), strict=True):
        z += x * np.repeat(b, sizes, axis=1)
    if design.family == "cox":
        return _times(rng, X, z, slopes, sizes)
    if design.family == "gaussian":
        mean, y = z, z + rng.standard_normal((R, n))
    elif design.family == "logistic":
        mean = 1.0 / (1.0 + np.exp(-z))
        y = (rng.random((R, n)) < mean).astype(float)
    else:
        mean = np.exp(z - 1.0)
        y = rng.poisson(mean).astype(float)
    return Drawn(Batch(design.family, X, y, sizes), np.empty((R, 0)), slopes, mean)


def _times(rng: np.random.Generator, X: np.ndarray, z: np.ndarray, slopes: np.ndarray, sizes: np.ndarray) -> Drawn:
    """Draw times and censoring, and put the rows of each site in the order of falling times."""
    usual = np.exp(-z)
    time, censored = (rng.exponential(size=z.shape) * m for m in (usual, usual.mean(axis=1, keepdims=True)))
    seen, times = (time <= censored).astype(float), np.minimum(time, censored)
    ends = np.cumsum(sizes)
    order = [m + np.argsort(-times[:, m:e], axis=1) for m, e in zip(ends - sizes, ends, strict=True)]
    where: Any = np.concatenate(order, axis=1)
    times, seen, z = (np.take_along_axis(v, where, 1) for v in (times, seen, z))
    return Drawn(Batch("cox", np.take_along_axis(X, where[None], 2), seen, sizes), times, slopes, z)
