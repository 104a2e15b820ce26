"""Free energies of Gaussian posteriors, and their minimisers: for one client and its cavity, or for all and the prior.

    F(q, c_1, ..., c_K) = KL(q || p) + sum_k KL(c_k || p_w) + sum_k sum_i l(mu_i, v_i),

a = x'theta + x'w_k with theta ~ q and w_k ~ c_k, so that mu_i and v_i are sums of both, plus what is held fixed.
F is convex in the means and roots of the covariances (standard deviations, or triangular factors), with the modulus
tau = min(lambda_min(P), lambda_min(Q)) of the two priors: F - min F <= ‖grad‖^2/(2 tau). Proof: l is convex in
(mu, sqrt v) and grows with v, mu is linear in the means, sqrt v the norm of a linear function of the roots; -log det is
convex; and tr(P CC')/2 is strongly convex with the modulus lambda_min(P).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedconvex.kernels.pieces import pause
from fedconvex.solvers.posteriors.expected_losses import ExpectedLoss
from fedconvex.solvers.posteriors.gaussians import Gaussian, dense, divergence, natural, pack, times, unpack
from fedconvex.solvers.posteriors.mean_steps import Columns, RowSpace

STEPS = 200  # of Newton's kind at most; a dozen is usual
MEMORY = 8  # points that steps are extrapolated from
EXACT = 1e-12  # of the sizes of a gradient's terms: little more than rounding leaves
ROUGH = 1e-9  # gradients above this share of their terms' sizes can be lowered


class Rows(NamedTuple):
    """Rows of a client, and what of their scores is held fixed."""

    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n,)
    weight: np.ndarray  # (n,)
    mean: np.ndarray | float = 0.0
    variance: np.ndarray | float = 0.0


class Fit(NamedTuple):
    """A point of the free energy."""

    q: Gaussian
    c: tuple[Gaussian, ...]  # of the clients; empty without private parameters
    value: float
    gradient: float  # its norm, in units of standard deviations
    size: float  # of the terms that make up the gradient
    directions: tuple[tuple[np.ndarray, np.ndarray], ...]  # for q and the c_k: step of the mean, next precision


class Gradient(NamedTuple):
    """Squares of a gradient's norm, and of the sizes of its terms."""

    square: float  # in means and roots: what the certificate takes
    free: float  # in units of standard deviations
    terms: float  # of the terms that cancel, in these units


def slope_and_curvature(
    expected: ExpectedLoss, rows: Rows, q: Gaussian, c: Gaussian | None, full: bool
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the expected loss, X'l' (d,), and X' diag(l'') X: (d, d), or its diagonal."""
    value, slope, bent = _by_rows(expected, rows, q, c)
    return value, slope, (rows.X * bent[:, None]).T @ rows.X if full else bent @ (rows.X * rows.X)


def _by_rows(
    expected: ExpectedLoss, rows: Rows, q: Gaussian, c: Gaussian | None
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the expected loss, X'l' (d,), and the curvatures of the rows (n,), weights included."""
    mu, v = q.scores(rows.X)
    if c is not None:
        own = c.scores(rows.X)
        mu, v = mu + own[0], v + own[1]
    value, slope, curvature = expected.moments(mu + rows.mean, v + rows.variance, rows.y)
    return float(rows.weight @ value), rows.X.T @ (rows.weight * slope), rows.weight * curvature


def gradient(q: Gaussian, prior: Gaussian, slope: np.ndarray, curvature: np.ndarray) -> Gradient:
    """Return F's gradient in mean and root of q, its square, and both in units of q's standard deviations.

    Parameters
    ----------
    q, prior : Gaussian
    slope : array (d,)
        sum_k X_k'l'.
    curvature : array
        sum_k X_k' diag(l'') X_k in the shape of the precisions.
    """
    C, pull = q.root, times(prior.precision, q.mean - prior.mean)
    if C.ndim == 1:
        up, down = (prior.precision + curvature) * C, 1.0 / C
    else:
        up, down = np.triu((dense(prior.precision) + curvature) @ C), np.diag(1.0 / np.diag(C))
    square = float(np.sum((pull + slope) ** 2) + np.sum((up - down) ** 2))
    free, terms = (np.sum(times(C.T, v) ** 2) for v in (pull + slope, np.abs(pull) + np.abs(slope)))
    by_root = (C * (up - down), C * up) if C.ndim == 1 else (C.T @ (up - down), C.T @ up)
    return Gradient(square, float(free + np.sum(by_root[0] ** 2)), float(terms + np.sum(by_root[1] ** 2)) + C.shape[0])


def minimise(
    prior: Gaussian,
    private: Gaussian | None,
    clients: Sequence[Rows],
    expected: ExpectedLoss,
    start: tuple[Gaussian, Sequence[Gaussian]] | None = None,
) -> Fit:
    """Minimise the free energy up to rounding: Newton steps in the means, fixed points of the precisions.

    Parameters
    ----------
    prior : Gaussian
        Of theta: the prior, or a client's cavity with its share of the prior.
    private : Gaussian, optional
        Prior of every w_k.
    clients : sequence of Rows
    expected : ExpectedLoss
    start : (Gaussian, Gaussians), optional
        q and the c_k to start from; default the priors.

    Notes
    -----
    The precision of a minimiser is that of its prior plus X' diag(l'') X; moving towards it is a natural gradient
    step. Both directions descend, and steps are halved until F or its gradient falls. Linear models take one step; for
    others the steps are extrapolated (Anderson 1965) wherever that lowers the gradient.
    """
    energy = Energy.of(prior, private, clients, expected)
    q, c = start or (prior, [private] * len(clients) if private is not None else [])
    here = energy.at(q, tuple(c))
    past: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(STEPS):
        pause()
        if not here.gradient > EXACT * here.size:
            break
        past = [*past[-MEMORY:], _vectors(here)]
        jump = energy.extrapolated(here, past)
        if jump is not None and jump.gradient < 0.9 * here.gradient:
            here = jump
            continue
        noise = EXACT * (1.0 + abs(here.value))
        share, there = 1.0, energy.stepped(here, 1.0)
        rough = here.gradient > ROUGH * here.size  # where values that are equal up to rounding say nothing yet
        while not _better(there, here, noise) and (rough or there.value > here.value + noise) and share > 1e-6:
            share *= 0.5
            there = energy.stepped(here, share)
        if not _better(there, here, noise):
            break
        here = there
    return here


def _systems(
    prior: Gaussian, private: Gaussian | None, clients: Sequence[Rows], expected: ExpectedLoss
) -> Columns | RowSpace:
    """Return how Newton systems are solved: among rows where these are fewer than columns."""
    X, P, Q = [rows.X for rows in clients], prior.precision, None if private is None else private.precision
    most = [rows.weight * _steepest(expected) for rows in clients]
    return RowSpace(X, P, Q) if RowSpace.fits(X, most, P, Q) else Columns(X, P, Q)


@lru_cache(maxsize=8)
def _steepest(expected: ExpectedLoss) -> float:
    """Return the largest curvature of a row: that of a certain score of zero, whatever the label."""
    return float(expected.moments(np.zeros(1), np.zeros(1), np.ones(1))[2][0])


def _better(there: Fit, here: Fit, noise: float) -> bool:
    """Whether the gradient fell, or F by more than rounding."""
    return there.gradient < 0.999 * here.gradient or there.value < here.value - noise


def _vectors(here: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Return a point as one vector of means and packed precisions, and where its full step leads from there."""
    blocks = list(zip((here.q, *here.c), here.directions, strict=True))
    point = [v for g, _ in blocks for v in (g.mean, pack(g.precision))]
    way = [v for g, (dm, P) in blocks for v in (-dm, pack(P - g.precision))]
    return np.concatenate(point), np.concatenate(way)


class Energy(NamedTuple):
    """The free energy of some clients as a function of q and the c_k."""

    prior: Gaussian
    private: Gaussian | None
    clients: Sequence[Rows]
    expected: ExpectedLoss
    systems: Columns | RowSpace

    @classmethod
    def of(cls, prior: Gaussian, private: Gaussian | None, clients: Sequence[Rows], expected: ExpectedLoss) -> Energy:
        """Return the free energy that `minimise` minimises."""
        return cls(prior, private, clients, expected, _systems(prior, private, clients, expected))

    def at(self, q: Gaussian, c: tuple[Gaussian, ...]) -> Fit:
        """Return the free energy and its gradient at (q, c), and where to go from there."""
        prior, private, clients, systems = self.prior, self.private, self.clients, self.systems
        own: Sequence[Gaussian | None] = c or [None] * len(clients)
        parts = [_by_rows(self.expected, rows, q, ck) for rows, ck in zip(clients, own, strict=True)]
        curvatures = systems.bend([bent for _, _, bent in parts])
        shapes = systems.shaped(curvatures)
        sizes = [
            np.sum((np.sqrt(g.variances) * v) ** 2)
            for g, v in zip((q, *c), systems.spread(curvatures, [q.mean, *(ck.mean for ck in c)]), strict=True)
        ]
        slope, H = np.sum([g for _, g, _ in parts], axis=0), np.sum(shapes, axis=0)
        value = divergence(q, prior) + sum(v for v, _, _ in parts)
        _, free, terms = gradient(q, prior, slope, H)
        terms += float(sizes[0])
        pulls, precisions = [], [prior.precision + H]
        for ck, (_, g, _), Hk, size in zip(c, parts if c else (), shapes if c else (), sizes[1:], strict=True):
            assert private is not None
            value += divergence(ck, private)
            more = gradient(ck, private, g, Hk)
            free, terms = free + more.free, terms + more.terms + float(size)
            pulls.append(times(private.precision, ck.mean - private.mean) + g)
            precisions.append(private.precision + Hk)
        dm, steps = systems.steps(curvatures, times(prior.precision, q.mean - prior.mean) + slope, pulls)
        towards = tuple(zip((dm, *steps), precisions, strict=True))
        return Fit(q, c, float(value), float(np.sqrt(free)), float(np.sqrt(terms)), towards)

    def stepped(self, here: Fit, share: float) -> Fit:
        """Return the point that lies a share of the way in all directions."""
        moved = [
            Gaussian(g.mean - share * dm, (1.0 - share) * g.precision + share * precision)
            for g, (dm, precision) in zip((here.q, *here.c), here.directions, strict=True)
        ]
        return self.at(moved[0], tuple(moved[1:]))

    def extrapolated(self, here: Fit, past: Sequence[tuple[np.ndarray, np.ndarray]]) -> Fit | None:
        """Return the point where the full steps of the last points would be least, were they affine; None if none."""
        if len(past) < 3:
            return None
        points, ways = (np.array(v) for v in zip(*past, strict=True))
        scale = np.concatenate([v for g in (here.q, *here.c) for v in _units(g.precision)])
        ends, d, diagonal = points + ways, here.q.mean.size, here.q.precision.ndim == 1
        try:
            shares = np.linalg.lstsq((np.diff(ways, axis=0) * scale).T, ways[-1] * scale, rcond=1e-10)[0]
            v = ends[-1] - shares @ np.diff(ends, axis=0)
            moved = [Gaussian(b[:d], unpack(b[d:], d, diagonal)) for b in v.reshape(1 + len(here.c), -1)]
            return self.at(moved[0], tuple(moved[1:]))
        except np.linalg.LinAlgError:
            return None


def _units(precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return by what means and entries of packed precisions are multiplied to be free of units."""
    sd = np.sqrt(precision if precision.ndim == 1 else np.diag(precision))
    return sd, 1.0 / pack(sd * sd if precision.ndim == 1 else np.outer(sd, sd))


def natural_step(
    prior: Gaussian,
    private: Gaussian | None,
    rows: Rows,
    expected: ExpectedLoss,
    q: Gaussian,
    c: Gaussian | None,
    share: float,
) -> tuple[Gaussian, Gaussian | None]:
    """Return q and c after a natural gradient step of that length on a client's free energy.

    In natural parameters: the mean, weighted by 1 - share and share, of q and of the prior times exp of the linear and
    quadratic terms of the expected log-likelihood (Khan, Lin 2017). At share = 1 linear models with a full covariance
    and no private parameters end at the minimiser.
    """
    _, g, B = slope_and_curvature(expected, rows, q, c, q.precision.ndim == 2)

    def towards(now: Gaussian, p: Gaussian) -> Gaussian:
        precision = (1.0 - share) * now.precision + share * (p.precision + B)
        shift = (1.0 - share) * now.shift + share * (p.shift + times(B, now.mean) - g)
        return natural(precision, shift)

    return towards(q, prior), None if c is None or private is None else towards(c, private)
