"""Expected negative log-likelihoods of rows whose score is Gaussian, with their derivatives.

For a row with the score a ~ N(mu, v) and the label y these are l(mu, v) = -E log p(y | a). Each of them is convex in
(mu, sqrt v) and grows with v, so that the free energy of a Gaussian q is convex in its mean and the root of its
covariance. ``moments`` returns l, its slope dl/dmu and its curvature 2 dl/dv, which are E l'(a) and E l''(a) where
expectations are exact. ``rounding`` bounds what l, slope and curvature may be off by, where mu is by off_mu and sqrt v
by off_sd; ``found`` is what ``moments`` returned. For logistic models slopes change by at most 1/4 and curvatures by at
most 1/10 of that, because sigma' <= 1/4, |sigma''| <= 0.0963, and E|z|^3 <= sqrt 3 over symmetric nodes; by less for
the bound of 1997.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedconvex._check import equal_by_type, whole

EPS = float(np.finfo(float).eps)
_ROWS = 400  # whose nodes are looked at together
_TINY = 1e-150  # standard deviations whose quotients are their limits
_LARGE = 700.0  # whose exponential is finite, and far above 1/eps

Moments = tuple[np.ndarray, np.ndarray, np.ndarray]


@lru_cache(maxsize=8)
def gauss_hermite(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes z and weights with sum of weights f(z) = E f(Z), Z standard normal, for polynomials."""
    z, weight = np.polynomial.hermite_e.hermegauss(nodes)
    return z, weight / weight.sum()


@equal_by_type
class NormalNoise(NamedTuple):
    """y = a + noise of this variance: l = ((mu - y)^2 + v)/(2 variance) + log(2 pi variance)/2, exactly."""

    variance: float = 1.0

    def moments(self, mu: np.ndarray, v: np.ndarray, y: np.ndarray) -> Moments:
        """Return l, dl/dmu and 2 dl/dv, (n,) each."""
        off, s2 = mu - y, self.variance
        return 0.5 * (off * off + v) / s2 + 0.5 * math.log(2.0 * math.pi * s2), off / s2, np.full(mu.shape, 1.0 / s2)

    def rounding(
        self, mu: np.ndarray, v: np.ndarray, y: np.ndarray, off_mu: np.ndarray, off_sd: np.ndarray, found: Moments
    ) -> Moments:
        """Return what l, slope and curvature may be off by."""
        off, sd, s2 = np.abs(mu - y), np.sqrt(v), self.variance
        size = (off * off + v) / s2 + abs(math.log(2.0 * math.pi * s2)) + 1.0
        value = 10.0 * EPS * size + ((off + off_mu) * off_mu + (sd + off_sd) * off_sd) / s2
        return value, (off_mu + 4.0 * EPS * off) / s2, np.full(mu.shape, 4.0 * EPS / s2)


@equal_by_type
class GaussHermite(NamedTuple):
    """Logistic likelihood 1/(1 + exp(-y a)) by Gauss-Hermite quadrature.

    With 64 nodes l is right to 1e-10 while the score's standard deviation is at most 2, to 1e-8 at 2.5, to 1e-5 at 4.
    The sum over the nodes is itself convex, and slope and curvature are its derivatives: what is certified holds for
    it without a quadrature error.

    Parameters
    ----------
    nodes : int
        2 to 100.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import GaussHermite
    >>> value, slope, curvature = GaussHermite(20).moments(np.zeros(1), np.zeros(1), np.ones(1))
    >>> value.round(6), slope, curvature  # at a certain score of 0: log 2, -1/2, 1/4
    (array([0.693147]), array([-0.5]), array([0.25]))
    """

    nodes: int = 64

    def moments(self, mu: np.ndarray, v: np.ndarray, y: np.ndarray) -> Moments:
        """Return l, dl/dmu and 2 dl/dv, (n,) each: of every row alone, whatever others there are."""
        nodes = gauss_hermite(whole("GaussHermite.nodes", self.nodes, low=2, high=100))
        mean, sd, ends = y * mu, np.sqrt(v), range(0, max(len(mu), 1), _ROWS)
        pieces = [_at_nodes(mean[a : a + _ROWS], sd[a : a + _ROWS], *nodes) for a in ends]
        value, wrong, curvature = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return value, -y * wrong, curvature

    def rounding(
        self, mu: np.ndarray, v: np.ndarray, y: np.ndarray, off_mu: np.ndarray, off_sd: np.ndarray, found: Moments
    ) -> Moments:
        """Return what l, slope and curvature may be off by: that of mu and sd, margins, and sums over the nodes."""
        moved, (value, slope, curvature) = _moved(off_mu, off_sd, np.abs(mu), np.sqrt(v)), found
        margin = 6.0 * np.abs(mu) + 96.0 * np.sqrt(v)  # of a node, at most 15.3, in each of two factors
        own = (100.0 * EPS * value, 100.0 * EPS * np.abs(slope), (100.0 + margin) * EPS * curvature)
        return moved[0] + own[0], moved[1] + own[1], moved[2] + own[2]


def _at_nodes(mean: np.ndarray, sd: np.ndarray, z: np.ndarray, weight: np.ndarray) -> Moments:
    """Return the expectations of log(1 + e^-m) and 1/(1 + e^m), and 2 dl/dv, of margins m of mean and sd (n,)."""
    (against, logs, right), fall, half = *_room(z.size, len(mean)), z.size // 2
    np.multiply(-z[:, None], sd, out=against)  # minus the margin; nodes are symmetric: y sd z has the law of sd z
    against -= mean
    beyond = None
    if not against.max() <= _LARGE:  # where e^-m would leave double precision; NaN stays
        beyond = np.maximum(against - _LARGE, 0.0)
        np.minimum(against, _LARGE, out=against)
    odds = np.exp(against, out=against)
    np.log1p(odds, out=logs)
    if beyond is not None:
        logs += beyond
    np.add(1.0, odds, out=right)
    np.divide(1.0, right, out=right)
    wrong = np.multiply(odds, right, out=odds)
    # dl/dsd over sd from pairs of nodes -z and z: sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a))
    upper, width = z[-half:], np.maximum(sd, _TINY)
    np.multiply(-2.0 * upper[:, None], width, out=fall)
    np.expm1(fall, out=fall)
    fall *= -1.0 / width
    fall *= wrong[half - 1 :: -1]
    fall *= right[-half:]
    return _weighted(weight, logs), _weighted(weight, wrong), _weighted(weight[-half:] * upper, fall)


class _Numbers(threading.local):
    """A thread's room, because memory that is given back is paged in anew, which takes longer than the arithmetic."""

    room = np.empty(0)


_NUMBERS = _Numbers()


def _room(nodes: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays (3, nodes, rows) and (nodes // 2, rows) to write into."""
    whole, half = 3 * nodes * rows, nodes // 2 * rows
    if _NUMBERS.room.size < whole + half:
        _NUMBERS.room = np.empty(whole + half)
    room = _NUMBERS.room
    return room[:whole].reshape(3, nodes, rows), room[whole : whole + half].reshape(-1, rows)


def _weighted(weight: np.ndarray, each: np.ndarray) -> np.ndarray:
    """Return the sums of each (nodes, n) over the nodes, node by node: they do not depend on other rows."""
    pair = np.repeat(each, 2, axis=1) if each.shape[1] == 1 else each  # a single row would be summed in another order
    return np.asarray(np.einsum("j,ji->i", weight, pair))[: each.shape[1]]


@equal_by_type
class JaakkolaJordan(NamedTuple):
    """Logistic likelihood by its lower bound of 1997: l = log(2 cosh(xi/2)) - y mu/2 with xi^2 = mu^2 + v.

    An upper bound of the exact l without quadrature: what it gives is a lower bound of the log evidence.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.problems import GaussHermite, JaakkolaJordan
    >>> at = np.zeros(1), np.ones(1), np.ones(1)
    >>> bool(JaakkolaJordan().moments(*at)[0] >= GaussHermite().moments(*at)[0])
    True
    """

    def moments(self, mu: np.ndarray, v: np.ndarray, y: np.ndarray) -> Moments:
        """Return l, dl/dmu and 2 dl/dv, (n,) each."""
        xi = np.sqrt(mu * mu + v)
        value = 0.5 * xi + np.log1p(np.exp(-xi)) - 0.5 * y * mu
        small = np.maximum(xi, 1e-6)
        curvature = np.where(xi < 1e-6, 0.25, 0.5 * np.tanh(0.5 * small) / small)
        return value, curvature * mu - 0.5 * y, curvature

    def rounding(
        self, mu: np.ndarray, v: np.ndarray, y: np.ndarray, off_mu: np.ndarray, off_sd: np.ndarray, found: Moments
    ) -> Moments:
        """Return what l, slope and curvature may be off by; near 0 the curvature is its limit, off by 1e-12/48."""
        size, sd = np.abs(mu), np.sqrt(v)
        value, slope, curvature = _moved(off_mu, off_sd, size, sd)
        own = 12.0 * EPS * (size + sd + 1.0)
        return value + own, slope + own, curvature + 12.0 * EPS + np.where(size + sd < 2e-6, 1e-13, 0.0)


def _moved(off_mu: np.ndarray, off_sd: np.ndarray, size: np.ndarray, sd: np.ndarray) -> Moments:
    """Return what errors of mu and sd, and the rounding of margins y mu + sd z, do to l, slope and curvature."""
    off = off_mu + off_sd + 4.0 * EPS * (size + sd)
    return off, 0.25 * off, 0.1 * off


ExpectedLoss = NormalNoise | GaussHermite | JaakkolaJordan
