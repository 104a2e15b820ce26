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
from typing import NamedTuple

import numpy as np

from fedconvex.kernels.pieces import pause
from fedconvex.solvers.expected_losses import ExpectedLoss
from fedconvex.solvers.gaussians import Gaussian, dense, divergence, natural, times

__all__ = ["Fit", "Rows", "gradient_norm", "minimise", "natural_step", "slope_and_curvature"]

_STEPS = 200  # of Newton's kind at most; a dozen is usual
_EXACT = 1e-12  # of the sizes of a gradient's terms: little more than rounding leaves


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
    gradient: float  # its norm in means and roots
    size: float  # of the terms that make up the gradient
    directions: tuple[tuple[np.ndarray, np.ndarray], ...]  # for q and the c_k: step of the mean, next precision


def slope_and_curvature(
    expected: ExpectedLoss, rows: Rows, q: Gaussian, c: Gaussian | None, full: bool
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the expected loss, X'l' (d,), and X' diag(l'') X: (d, d), or its diagonal."""
    mu, v = q.scores(rows.X)
    if c is not None:
        own = c.scores(rows.X)
        mu, v = mu + own[0], v + own[1]
    value, slope, curvature = expected.moments(mu + rows.mean, v + rows.variance, rows.y)
    bent = rows.weight * curvature
    H = (rows.X * bent[:, None]).T @ rows.X if full else bent @ (rows.X * rows.X)
    return float(rows.weight @ value), rows.X.T @ (rows.weight * slope), H


def gradient_norm(q: Gaussian, prior: Gaussian, slope: np.ndarray, curvature: np.ndarray) -> tuple[float, float]:
    """Return the square of the norm of F's gradient in mean and root of q, and that of the sizes of its terms.

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
    square = np.sum((pull + slope) ** 2) + np.sum((up - down) ** 2)
    return float(square), float(np.sum(pull**2) + np.sum(slope**2) + np.sum(up**2) + np.sum(down**2))


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
    step. Both directions descend, and steps are halved until F or its gradient falls. Linear models take one step.
    """
    q, c = start or (prior, [private] * len(clients) if private is not None else [])
    here = _at(prior, private, clients, expected, q, tuple(c))
    for _ in range(_STEPS):
        pause()
        if not here.gradient > _EXACT * here.size:
            break
        share, there = 1.0, _stepped(prior, private, clients, expected, here, 1.0)
        noise = _EXACT * (1.0 + abs(here.value))
        while not _better(there, here, noise) and there.value > here.value + noise and share > 1e-6:
            share *= 0.5
            there = _stepped(prior, private, clients, expected, here, share)
        if not _better(there, here, noise):
            break
        here = there
    return here


def _better(there: Fit, here: Fit, noise: float) -> bool:
    """Whether the gradient fell by much, or F by more than rounding."""
    return there.gradient < 0.7 * here.gradient or there.value < here.value - noise


def _at(
    prior: Gaussian,
    private: Gaussian | None,
    clients: Sequence[Rows],
    expected: ExpectedLoss,
    q: Gaussian,
    c: tuple[Gaussian, ...],
) -> Fit:
    """Return the free energy and its gradient at (q, c), and where to go from there."""
    own: Sequence[Gaussian | None] = c or [None] * len(clients)
    parts = [slope_and_curvature(expected, rows, q, ck, True) for rows, ck in zip(clients, own, strict=True)]
    shaped = (lambda H: np.diag(H).copy()) if q.precision.ndim == 1 else (lambda H: H)
    slope, H = np.sum([g for _, g, _ in parts], axis=0), np.sum([H for _, _, H in parts], axis=0)
    value = divergence(q, prior) + sum(v for v, _, _ in parts)
    square, size = gradient_norm(q, prior, slope, shaped(H))
    size += float(np.sum((np.abs(H) @ np.abs(q.mean)) ** 2))
    pull = times(prior.precision, q.mean - prior.mean) + slope
    schur, steps = dense(prior.precision) + H, []
    for ck, (_, g, Hk) in zip(c, parts if c else (), strict=True):
        assert private is not None
        value += divergence(ck, private)
        more = gradient_norm(ck, private, g, shaped(Hk))
        square, size = square + more[0], size + more[1] + float(np.sum((np.abs(Hk) @ np.abs(ck.mean)) ** 2))
        Q = dense(private.precision)
        left = np.linalg.inv(Q + Hk)
        kept = Hk @ left @ Q  # H - H (Q + H)^-1 H
        schur = schur - Hk + 0.5 * (kept + kept.T)
        gk = times(private.precision, ck.mean - private.mean) + g
        pull = pull - Hk @ (left @ gk)
        steps.append((left, gk, Hk, private.precision + shaped(Hk)))
    dm = np.linalg.solve(schur, pull)
    towards = [(dm, prior.precision + shaped(H))]
    towards += [(left @ (g - Hk @ dm), precision) for left, g, Hk, precision in steps]
    return Fit(q, c, float(value), float(np.sqrt(square)), float(np.sqrt(size)), tuple(towards))


def _stepped(
    prior: Gaussian,
    private: Gaussian | None,
    clients: Sequence[Rows],
    expected: ExpectedLoss,
    here: Fit,
    share: float,
) -> Fit:
    """Return the point that lies a share of the way in all directions."""
    moved = [
        Gaussian(g.mean - share * dm, (1.0 - share) * g.precision + share * precision)
        for g, (dm, precision) in zip((here.q, *here.c), here.directions, strict=True)
    ]
    return _at(prior, private, clients, expected, moved[0], tuple(moved[1:]))


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
