"""Maximum likelihood on many simulated data sets at once: what a simulation of coverage asks of `analyse`, without it.

R data sets with the same sizes of sites stand side by side in arrays (p, R, n), the rows of a site next to each other.
A fit is damped Newton on slopes and site intercepts together, the intercepts eliminated by the Schur complement. The
step log(1 + q)/q, q the largest move of a score, decreases a self-concordant likelihood (Sun and Tran-Dinh, Math.
Program. 178, 2019, nu = 2). Cox's likelihood is Breslow's, for times without ties, a stratum for each site.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FIRST, LATER = 12, 48  # rounds of all data sets, and then of those that are not settled
SETTLED, NEAR = 1e-18, 1e-3  # of the squared Newton decrement; of a step, which is large where nothing is attained
SILENT = 800.0  # the intercept of a site whose responses all agree, where they cost nothing


class Batch(NamedTuple):
    """R data sets of one family; Cox's rows are in the order of falling times within each site."""

    family: str  # gaussian, logistic, poisson or cox
    X: np.ndarray  # (p, R, n)
    y: np.ndarray  # (R, n) responses; 1 where an event was seen
    sizes: np.ndarray  # (K,) rows of each site

    def only(self, which: np.ndarray) -> Batch:
        """Return some of the data sets."""
        return self._replace(X=self.X[:, which], y=self.y[which])

    @property
    def starts(self) -> np.ndarray:
        """First row of each site, (K,)."""
        return np.cumsum(self.sizes) - self.sizes

    def spread(self, of_sites: np.ndarray) -> np.ndarray:
        """Return numbers of sites (R, K), or of data sets (R, 1), for each row: (R, n), or (R, 1)."""
        return of_sites if of_sites.shape[1] == 1 else np.repeat(of_sites, self.sizes, axis=1)

    def added(self, rows: np.ndarray) -> np.ndarray:
        """Return the sums over each site, (R, K), of rows (R, n)."""
        return np.add.reduceat(rows, self.starts, axis=1)


class SiteSums(NamedTuple):
    """Derivatives of every site at some scores, its intercept eliminated; G = K."""

    g: np.ndarray  # (R, G, p)
    J: np.ndarray  # (R, G, p, p)
    a: np.ndarray  # (R, G) Newton's step of the intercept at fixed slopes
    across: np.ndarray  # (R, G, p) how it moves with the slopes
    own: np.ndarray  # (R, G) its squared decrement


class Fits(NamedTuple):
    """Where the searches ended; G = 1 for common slopes, K for those of each site alone."""

    b: np.ndarray  # (R, G, p)
    N: np.ndarray  # (R, G) minus log-likelihood, up to what depends on y alone
    J: np.ndarray  # (R, K, p, p) information of each site about the slopes
    scores: np.ndarray  # (R, K, p) gradients of each site
    z: np.ndarray  # (R, n)
    settled: np.ndarray  # (R, G)

    @property
    def inverse(self) -> np.ndarray:
        """Inverse of the information of all sites together, (R, p, p)."""
        return np.linalg.inv(self.J.sum(axis=1))


def fit(
    batch: Batch,
    fixed: np.ndarray | None = None,
    start: Fits | None = None,
    *,
    alone: bool = False,
    tilt: np.ndarray | None = None,
) -> Fits:
    """Maximise the likelihoods.

    Parameters
    ----------
    batch : Batch
        With one site of all rows the intercept, or the stratum, is common.
    fixed : array (R, q), optional
        Values of the first q slopes, which are then not free.
    start : Fits, optional
        Of the same batch; default slopes 0.
    alone : bool
        Whether every site has slopes of its own.
    tilt : array (R, p), optional
        What is added to the gradient of N: N + t'b is minimised.
    """
    p, R, _ = batch.X.shape
    G = batch.sizes.size if alone else 1
    b = np.zeros((R, G, p)) if start is None else start.b.copy()
    z = batch.spread(_first_intercepts(batch)) + np.zeros_like(batch.y) if start is None else start.z.copy()
    given = 0 if fixed is None else fixed.shape[1]
    for j in range(given):
        assert fixed is not None
        z += batch.X[j] * batch.spread(fixed[:, j, None] - b[:, :, j])
        b[:, :, j] = fixed[:, j, None]
    tilt = np.zeros((R, p)) if tilt is None else tilt
    found = _searched(batch, b, z, tilt, given, FIRST)
    late = np.asarray(~found.settled.all(axis=1))
    if late.any():
        more = _searched(batch.only(late), found.b[late], found.z[late], tilt[late], given, LATER)
        for whole, part in zip(found, more, strict=True):
            whole[late] = part
    return found


def _searched(batch: Batch, b: np.ndarray, z: np.ndarray, tilt: np.ndarray, given: int, rounds: int) -> Fits:
    """Take Newton steps of the slopes b (R, G, p) but the first ``given``, and of the intercepts in the scores z."""
    p, alone = b.shape[2], b.shape[1] == batch.sizes.size
    for _ in range(rounds):
        with np.errstate(all="ignore"):  # far out, where nothing is attained
            at = _cox_sums(batch, z) if batch.family == "cox" else _glm_sums(batch, z)
        g, J, own = (part if alone else part.sum(axis=1, keepdims=True) for part in (at.g, at.J, at.own))
        g = g + tilt[:, None]
        step, regular = np.zeros_like(b), np.ones(b.shape[:2], dtype=bool)
        if given < p:
            step[..., given:], regular = _newton_step(J[..., given:, given:], g[..., given:])
        move = _along(batch, step, at)
        q = _largest(batch, move, alone)
        decrement = own - np.einsum("rgj,rgj->rg", step, g)
        settled = regular & (decrement <= SETTLED) & (q <= NEAR)
        if (settled | ~regular).all():
            break
        with np.errstate(invalid="ignore"):
            t = np.log1p(q) / q if batch.family != "gaussian" else np.ones_like(q)
        t = np.where(settled | ~regular, 0.0, np.where(q > 0.0, t, 1.0))
        b = b + t[..., None] * step
        z = z + batch.spread(t) * move
    return Fits(b, _values(batch, z, alone), at.J, at.g, z, settled)


def _along(batch: Batch, step: np.ndarray, at: SiteSums) -> np.ndarray:
    """Return how scores move along a step, (R, n)."""
    move = batch.spread(at.a + np.einsum("rkj,rkj->rk", at.across, np.broadcast_to(step, at.across.shape)))
    move = move + np.zeros_like(batch.y)
    for x, d in zip(batch.X, np.moveaxis(step, -1, 0), strict=True):
        move += x * batch.spread(d)
    return move


def _largest(batch: Batch, move: np.ndarray, alone: bool) -> np.ndarray:
    """Return the largest move of a score, of a difference within a risk set for Cox's model, (R, G)."""
    if batch.family == "cox":
        q = np.maximum.reduceat(move, batch.starts, axis=1) - np.minimum.reduceat(move, batch.starts, axis=1)
    else:
        q = np.maximum.reduceat(np.abs(move), batch.starts, axis=1)
    return q if alone else q.max(axis=1, keepdims=True)


def _newton_step(J: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return -J^-1 g, and whether J is regular; 0 where it is not."""
    scale = np.sqrt(np.einsum("...jj->...j", J))
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = J / scale[..., :, None] / scale[..., None, :]
    regular = np.isfinite(unit).all(axis=(-1, -2))
    unit = np.where(regular[..., None, None], unit, np.eye(g.shape[-1]))
    regular &= np.linalg.det(unit) > 1e-12
    unit, scale = np.where(regular[..., None, None], unit, np.eye(g.shape[-1])), np.where(scale > 0.0, scale, 1.0)
    step = -np.linalg.solve(unit, (g / scale)[..., None])[..., 0] / scale
    return np.where(regular[..., None], step, 0.0), regular


def _first_intercepts(batch: Batch) -> np.ndarray:
    """Return the link of the mean response of each site, (R, K)."""
    if batch.family == "cox":
        return np.zeros((len(batch.y), 1))
    mean = batch.added(batch.y) / batch.sizes
    if batch.family == "gaussian":
        return mean
    with np.errstate(divide="ignore"):
        link = np.log(mean) - (np.log1p(-mean) if batch.family == "logistic" else 0.0)
    return np.clip(link, -SILENT, SILENT)


def _glm_sums(batch: Batch, z: np.ndarray) -> SiteSums:
    """Return gradients and Schur complements; a silent site has none."""
    if batch.family == "gaussian":
        u, h = z - batch.y, np.ones_like(z)
    elif batch.family == "logistic":
        m = 1.0 / (1.0 + np.exp(-z))
        u, h = m - batch.y, m * (1.0 - m)
    else:
        h = np.exp(z)
        u = h - batch.y
    total, slope = batch.added(h), batch.added(u)
    total = np.where(total > 0.0, total, 1.0)
    p = len(batch.X)
    weighted = [h * x for x in batch.X]
    across = np.stack([batch.added(w) for w in weighted], axis=-1) / total[..., None]
    g = np.stack([batch.added(u * x) for x in batch.X], axis=-1) - across * slope[..., None]
    J = np.empty((*total.shape, p, p))
    for i in range(p):
        for j in range(i + 1):
            J[..., i, j] = J[..., j, i] = batch.added(weighted[i] * batch.X[j])
    J -= total[..., None, None] * across[..., :, None] * across[..., None, :]
    return SiteSums(g, J, -slope / total, -across, slope**2 / total)


def _cox_sums(batch: Batch, z: np.ndarray) -> SiteSums:
    """Return gradients and Hessians of sum over events of log sum_{risk set} e^z - z."""
    p, (R, _), K = len(batch.X), z.shape, batch.sizes.size
    w = np.exp(z)
    mass = 1.0 / _risk(batch, w)
    weighted = [w * x for x in batch.X]
    means = [_risk(batch, v) * mass for v in weighted]
    g = np.stack([batch.added(batch.y * (m - x)) for m, x in zip(means, batch.X, strict=True)], axis=-1)
    J = np.empty((R, K, p, p))
    for i in range(p):
        for j in range(i + 1):
            second = _risk(batch, weighted[i] * batch.X[j]) * mass - means[i] * means[j]
            J[..., i, j] = J[..., j, i] = batch.added(batch.y * second)
    nothing = np.zeros((R, K))
    return SiteSums(g, J, nothing, np.zeros((R, K, p)), nothing)


def _risk(batch: Batch, rows: np.ndarray) -> np.ndarray:
    """Return the sums over the risk sets, (R, n): rows of the site whose times are no earlier."""
    out = np.empty_like(rows)
    for start, n in zip(batch.starts, batch.sizes, strict=True):
        np.cumsum(rows[:, start : start + n], axis=1, out=out[:, start : start + n])
    return out


def _values(batch: Batch, z: np.ndarray, alone: bool) -> np.ndarray:
    """Return N of each site, or of all together, (R, G)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if batch.family == "gaussian":
            each = 0.5 * (z - batch.y) ** 2
        elif batch.family == "logistic":
            each = np.logaddexp(0.0, z) - batch.y * z
        elif batch.family == "poisson":
            each = np.exp(z) - batch.y * z
        else:
            each = batch.y * (np.log(_risk(batch, np.exp(z))) - z)
    sites = batch.added(each)
    return sites if alone else sites.sum(axis=1, keepdims=True)
