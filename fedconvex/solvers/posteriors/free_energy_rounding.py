"""The gradient of a free energy with what rounding may do to it, so that its certificate holds in double precision.

A Gaussian is its mean m and its precision Lam as they are stored. With the root C of its covariance, Lam C is lower
triangular with the diagonal 1/C_jj, so that the gradient in C is the upper triangle of (P + H - Lam) C: nothing cancels
that is not small. Means of scores x'm are off by at most n eps |x|'|m|, n the number of terms. The root of a diagonal q
is off by some eps of itself. Of a full q: with R = C'Lam C - I for the computed C and r = ‖R‖_F, the rounding of R
included, r <= 1/4, the exact root is C T, T triangular with T'(I + R)T = I and ‖T - I‖_F <= 2 r: T^{-1} = I + E is the
Cholesky factor of I + R, and E + E' + E'E = R gives sqrt 2 ‖E‖ <= r + ‖E‖^2. So sd = ‖C'x‖ is off by 2 r of itself.
Slopes and curvatures of rows follow by their Lipschitz constants in (mu, sd), sums over rows by the sizes of their
terms. Constants are at least twice what is needed, which makes up for products of errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedconvex.solvers.posteriors.expected_losses import ExpectedLoss
from fedconvex.solvers.posteriors.free_energy import Rows
from fedconvex.solvers.posteriors.gaussians import Gaussian, times

EPS = float(np.finfo(float).eps)


class Off(NamedTuple):
    """What rounding may have done to a client's expected loss, its slope X'l' and its curvature X' diag(l'') X."""

    value: float
    slope: np.ndarray  # (d,)
    curvature: np.ndarray  # (d,) or (d, d)


class Block(NamedTuple):
    """What belongs to q, or to a c_k."""

    at: Gaussian
    prior: Gaussian
    slope: np.ndarray  # X'l' of its rows
    H: np.ndarray  # their curvature, in the shape of the precisions
    prior_root: float  # `root_error` of the prior


def gradient_bound(expected: ExpectedLoss, clients: Sequence[Rows], blocks: Sequence[Block]) -> tuple[float, float]:
    """Return what the norm of a free energy's gradient is at most, in means and roots, and what its value is off by.

    Parameters
    ----------
    expected : ExpectedLoss
    clients : sequence of Rows
        With nothing held fixed.
    blocks : sequence of Block
        That of q and, with private parameters, those of the c_k.
    """
    roots, full = [root_error(b.at) for b in blocks], blocks[0].H.ndim == 2
    if not np.isfinite(roots).all():
        return np.inf, np.inf
    terms, offs = len(clients) + sum(len(rows.y) for rows in clients), []
    for k, rows in enumerate(clients):
        mine = [0] if len(blocks) == 1 else [0, 1 + k]
        offs.append(client_off(expected, rows, [(blocks[i].at, roots[i]) for i in mine], full, terms))
    total = Off(*(np.sum(parts, axis=0) for parts in zip(*offs, strict=True)))
    found = [block_bound(b, root, off) for b, root, off in zip(blocks, roots, [total, *offs], strict=False)]
    norms, by_value = np.array(found).T
    return float(np.linalg.norm(norms)), float(by_value.sum() + total.value)


def least_eigenvalue(P: np.ndarray) -> float:
    """Return a lower bound of the least eigenvalue of a precision (d,) or (d, d): less what rounding may add."""
    if P.ndim == 1:
        return float(P.min())
    found = np.linalg.eigvalsh(P)
    return float(found[0] - 4.0 * len(P) * EPS * np.abs(found).max())


def root_error(q: Gaussian) -> float:
    """Return how far the computed root of q is off, relative in the sense above; inf where nothing is known."""
    C = q.root
    if C.ndim == 1:
        return 4.0 * EPS
    R = C.T @ q.precision @ C - np.eye(len(C))
    sizes = np.abs(C).T @ np.abs(q.precision) @ np.abs(C)
    r = float(np.linalg.norm(R) + (2 * len(C) + 4) * EPS * np.linalg.norm(sizes))
    return 2.0 * r if r <= 0.25 else np.inf


def _score_errors(
    q: Gaussian, C: np.ndarray, v: np.ndarray, root: float, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what means and standard deviations of the rows' scores may be off by, (n,) each; v: their variances."""
    C, count = np.abs(C), (q.mean.size + 6) * EPS
    sizes = np.sqrt((X * X) @ (C * C)) if C.ndim == 1 else np.linalg.norm(np.abs(X) @ C, axis=1)
    return count * (np.abs(X) @ np.abs(q.mean)), count * sizes + root * (np.sqrt(v) + count * sizes)


def client_off(expected: ExpectedLoss, rows: Rows, blocks: list[tuple[Gaussian, float]], full: bool, terms: int) -> Off:
    """Return what a client's part may be off by; blocks: q and c_k with their `root_error`, terms: length of sums."""
    X, roots = np.abs(rows.X), [q.root for q, _ in blocks]
    scores = [q.scores(rows.X, C) for (q, _), C in zip(blocks, roots, strict=True)]
    mu, v = (np.sum(given, axis=0) for given in zip(*scores, strict=True))
    known = zip(blocks, roots, scores, strict=True)
    errors = [_score_errors(q, C, own, root, rows.X) for (q, root), C, (_, own) in known]
    off_mu, off_sd = (np.sum(given, axis=0) for given in zip(*errors, strict=True))
    found = expected.moments(mu, v, rows.y)
    off_mu, off_sd = off_mu + 2.0 * EPS * np.abs(mu), off_sd + 2.0 * EPS * np.sqrt(v)
    off = expected.rounding(mu, v, rows.y, off_mu, off_sd, found)
    value, slope, curvature = (
        rows.weight * (o + 2.0 * (terms + 4) * EPS * np.abs(f)) for f, o in zip(found, off, strict=True)
    )
    return Off(float(value.sum()), X.T @ slope, (X * curvature[:, None]).T @ X if full else curvature @ (X * X))


def block_bound(block: Block, root: float, off: Off) -> tuple[float, float]:
    """Return what the norm of the gradient in a block's mean and root is at most, and what its divergence is off by."""
    (m, Lam), prior, slope, H, prior_root = block
    P, away, d = prior.precision, m - prior.mean, m.size
    C, few, diagonal = block.at.root, (2 * d + 16) * EPS, H.ndim == 1
    pull = times(np.abs(P), np.abs(away))
    mean = np.abs(times(P, away) + slope) + off.slope + few * (pull + np.abs(slope))
    turned, unsure = P + H - Lam, off.curvature + 4.0 * EPS * (np.abs(P) + np.abs(H) + np.abs(Lam))
    by_root, size = (turned * C if diagonal else np.triu(turned @ C)), np.abs(C)
    doubt = unsure * size if diagonal else np.triu((unsure + few * np.abs(turned)) @ size)
    whole = np.linalg.norm(turned * size if diagonal else np.abs(turned) @ size)  # what an error of the root turns
    bent = (1.0 + few) * np.linalg.norm(np.abs(by_root) + doubt) + root * (whole + np.linalg.norm(doubt))
    ends = size if diagonal else np.diag(size)
    trace = float(np.sum(size * (P * size if diagonal else np.abs(P) @ size)))
    logs = 2.0 * float(np.abs(np.log(ends)).sum()) + float(np.abs(np.log(P if diagonal else np.diag(P))).sum())
    value = few * (trace + float(np.abs(away) @ pull) + d + logs) + root * (trace + d) + prior_root * d
    return float((1.0 + few) * np.hypot(np.linalg.norm(mean), bent)), float(value)
